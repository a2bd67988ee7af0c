"""Keeps a taint on Nodes that are short of CPU or memory for their free devices (koordgate.io/headroom).

The taint (PreferNoSchedule) has schedulers put Pods without devices elsewhere if they can. Every replica keeps it:
a Node is read, and written only at the revision that was read, so that replicas do not undo each other's work, and
taints of others stay.
"""

import asyncio
import logging
from collections.abc import Callable, Generator, Iterable, Mapping
from typing import Any, Final

from allocator.headroom import Bounds, Needs, is_short, needs_of
from allocator.vocabulary.mix import MOST_COUNT, Mix, MixError, TypicalRequest, mix_of
from allocator.vocabulary.names import HEADROOM
from koordgate.backoff import Backoff
from koordgate.breaks import with_breaks
from koordgate.kube.client import KubeClient
from koordgate.kube.errors import Conflict, KubeError, NotFound
from koordgate.kube.resource import NODES
from webhook.settings import HeadroomSettings
from webhook.view.cluster import ClusterView
from webhook.view.nodeselection import PREFER_NO_SCHEDULE
from webhook.view.podinfo import PodInfo

_LOG: Final = logging.getLogger(__name__)
_EVERY_S: Final = 1.0  # between two looks at nodes that changed
_MIX_S: Final = 60.0  # between two looks at what is typical
_FIRST_RETRY_S: Final = 1.0
_LONGEST_RETRY_S: Final = 60.0
_DEADLINE_S: Final = 5.0
TAINT: Final[Mapping[str, str]] = {"key": HEADROOM, "effect": PREFER_NO_SCHEDULE}


def bounds_of(settings: HeadroomSettings) -> Bounds:
    """The bounds as they are decided by."""
    return Bounds(settings.taint_below_percent, settings.untaint_from_percent)


def short_now(cluster: ClusterView, node: str, needs: Needs, bounds: Bounds, *, was: bool) -> bool:
    """Whether a node is short of CPU or memory for its free devices, by what is known of the cluster.

    Args:
        cluster: what is known.
        node: its name.
        needs: what devices need.
        bounds: the multiples.
        was: whether it was short before.
    """
    has, used = cluster.loads.allocatable(node), cluster.loads.requested(node)
    cpu, memory = (has[name] - used.get(name, 0) if name in has else None for name in ("cpu", "memory"))
    return is_short(cluster.snapshot(node), cpu, memory, needs, bounds, was=was)


def live_mix(pods: Iterable[PodInfo]) -> Generator[None, None, Mix]:
    """The requests of Pods that hold devices, have not finished, and ask for one type in one container.

    A Pod that only names a node would cost its author nothing, and could ask for more CPU than any node has.
    """
    found = []
    for pod in pods:
        yield
        if pod.shares and pod.node and not pod.finished and len(pod.request.containers) == 1:
            requests, ask = dict(pod.requests), pod.request.containers[0].ask
            if ask.count <= MOST_COUNT:
                try:
                    found.append(TypicalRequest(requests.get("cpu", 0), requests.get("memory", 0), ask))
                except MixError as error:
                    _LOG.warning("Pod %s/%s is not typical: %s", pod.namespace, pod.name, error)
    return mix_of(found)


def with_taint(taints: Iterable[Mapping[str, Any]], *, wanted: bool) -> list[Mapping[str, Any]]:
    """The taints of a Node with koordgate's own, or without it; those of others stay in their order."""
    others = [taint for taint in taints if taint.get("key") != HEADROOM]
    return [*others, dict(TAINT)] if wanted else others


class HeadroomKeeper:
    """Keeps the taints.

    Args:
        kube: the open client.
        cluster: what nodes have, and what is requested and held of it.
        settings: mode taint or remove.
        changed: called with "set" or "removed" after each write.
    """

    def __init__(
        self,
        kube: KubeClient,
        cluster: ClusterView,
        settings: HeadroomSettings,
        changed: Callable[[str], object] = lambda _how: None,
    ) -> None:
        self._kube = kube
        self._cluster = cluster
        self._removes = settings.mode == "remove"
        self._bounds = bounds_of(settings)
        self._written = changed
        self._needs: Needs = {}
        self._held = cluster.changes.reader(cluster.nodes.known())
        self._loaded = cluster.loads.changes.reader()

    async def run(self, ready: Callable[[], bool]) -> None:
        """Keep the taints until cancelled.

        Args:
            ready: whether all that decides on them has been seen.
        """
        clock = asyncio.get_running_loop().time
        backoff, learned = Backoff(_FIRST_RETRY_S, _LONGEST_RETRY_S), float("-inf")
        while True:
            wait = _EVERY_S
            if ready():
                try:
                    if clock() - learned >= _MIX_S:
                        await self.learn()
                        learned = clock()
                    await self.tend()
                    backoff.reset()
                except KubeError as error:
                    wait = backoff.failed()
                    _LOG.warning("the taints %s are not up to date; trying again: %s", HEADROOM, error)
            await asyncio.sleep(wait)

    async def learn(self) -> None:
        """Take in what is typical now; if that differs from before, all nodes are looked at again."""
        needs = needs_of(await with_breaks(live_mix(list(self._cluster.pods.all()))))
        if needs != self._needs:
            self._needs = needs
            for node in list(self._cluster.nodes.known()):
                self._held.note(node)

    async def tend(self) -> None:
        """Look at the nodes that changed, and write what differs.

        Raises:
            KubeError: a Node could not be written; it is looked at again the next time.
        """
        if self._removes:
            for node in sorted(self._cluster.nodes.short):
                await self._write(node, wanted=False)
            return
        for node in self._loaded.drain():
            self._held.note(node)
        due = list(self._held.drain())
        try:
            while due:
                await asyncio.sleep(0)
                await self._look(due[-1])
                due.pop()
        finally:
            for node in due:
                self._held.note(node)

    async def _look(self, node: str) -> None:
        """Look at one node, and write its taint if that differs."""
        known = self._cluster.nodes
        was = node in known.short
        if known.facts(node) is not None:
            now = short_now(self._cluster, node, self._needs, self._bounds, was=was)
            if now != was:
                await self._write(node, wanted=now)

    async def _write(self, node: str, *, wanted: bool) -> None:
        """Set or remove the taint; nothing where another replica, or somebody else, was faster."""
        try:
            found = await self._kube.get(NODES.path(node), deadline=_DEADLINE_S)
            taints = (found.get("spec") or {}).get("taints") or []
            now = with_taint(taints, wanted=wanted)
            if now == taints:
                return
            revision = found["metadata"]["resourceVersion"]
            body = {"metadata": {"resourceVersion": revision}, "spec": {"taints": now or None}}
            await self._kube.patch(NODES.path(node), body, "merge", deadline=_DEADLINE_S)
        except NotFound:
            return
        except Conflict:
            self._held.note(node)
            return
        self._written("set" if wanted else "removed")
        _LOG.info("taint %s %s", HEADROOM, "set" if wanted else "removed", extra={"node": node})
