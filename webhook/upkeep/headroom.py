"""Keeps a taint on Nodes that are short of CPU or memory for their free devices (koordgate.io/headroom).

The taint (PreferNoSchedule) has schedulers put Pods without devices elsewhere if they can. Every replica keeps it:
a Node is read, and written only at the revision that was read, so that replicas do not undo each other's work, and
taints of others stay.

A Node that is short gets the taint at once. It loses it only when it has not been short for hours: a small Node is
short while its devices are free and is not while Pods hold them, so that each Pod would write it twice.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from itertools import takewhile
from typing import Any, Final

from allocator.headroom import Bounds, Needs, is_short, needs_of
from allocator.vocabulary.mix import Mix
from allocator.vocabulary.names import HEADROOM
from koordgate.backoff import Backoff
from koordgate.kube.client import KubeClient
from koordgate.kube.errors import Conflict, KubeError, NotFound
from koordgate.kube.resource import NODES
from webhook.settings import HeadroomSettings
from webhook.view.cluster import ClusterView
from webhook.view.nodeselection import PREFER_NO_SCHEDULE

_LOG: Final = logging.getLogger(__name__)
_EVERY_S: Final = 1.0  # between two looks at nodes that changed
_MIX_S: Final = 60.0  # between two looks at what is typical
_FIRST_RETRY_S: Final = 1.0
_MAX_RETRY_S: Final = 60.0
_DEADLINE_S: Final = 5.0
TAINT: Final[Mapping[str, str]] = {"key": HEADROOM, "effect": PREFER_NO_SCHEDULE}


def bounds_of(settings: HeadroomSettings) -> Bounds:
    """The bounds as they are decided by."""
    return Bounds(settings.taint_below_percent, settings.untaint_from_percent)


def short_now(cluster: ClusterView, node: str, needs: Needs, bounds: Bounds, *, was: bool) -> bool:
    """Whether a node is short of CPU or memory for its free devices, by what is known of the cluster."""
    has, used = cluster.loads.allocatable(node), cluster.loads.requested(node)
    cpu, memory = (has[name] - used.get(name, 0) if name in has else None for name in ("cpu", "memory"))
    return is_short(cluster.snapshot(node), cpu, memory, needs, bounds, was=was)


def with_taint(taints: Iterable[Mapping[str, Any]], *, wanted: bool) -> list[Mapping[str, Any]]:
    """The taints of a Node with koordgate's own, or without it; those of others stay in their order."""
    others = [taint for taint in taints if taint.get("key") != HEADROOM]
    return [*others, dict(TAINT)] if wanted else others


class Eased:
    """Nodes that have the taint and are short no longer, and since when.

    `seconds`: for how long a node must not have been short before it loses the taint.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._since: dict[str, float] = {}  # the earliest first

    def wants_taint(self, node: str, *, was: bool, short: bool, now: float) -> bool:
        """Whether a node is to have the taint.

        `now`: seconds since any moment; never less than before.
        """
        if short or not was:
            self.forget(node)
            return short
        return now - self._since.setdefault(node, now) < self._seconds

    def forget(self, node: str) -> None:
        """A node lost the taint, or is gone."""
        self._since.pop(node, None)

    def due(self, now: float) -> list[str]:
        """The nodes that have not been short for long enough, unless that changed since they were looked at."""
        return [*takewhile(lambda node: now - self._since[node] >= self._seconds, self._since)]


class HeadroomController:
    """Keeps the taints.

    `cluster`: what nodes have, and what is requested and held of it. `mix`: returns which requests are typical now; the
    same object while they are the same. `clock`: monotonic seconds.
    """

    def __init__(
        self,
        kube: KubeClient,
        cluster: ClusterView,
        settings: HeadroomSettings,
        mix: Callable[[], Mix],
        changed: Callable[[str], object] = lambda _how: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._kube = kube
        self._cluster = cluster
        self._removes = settings.mode == "remove"
        self._bounds = bounds_of(settings)
        self._eased = Eased(settings.untaint_after_seconds)
        self._now_typical = mix
        self._written = changed
        self._clock = clock
        self._needs: Needs = {}
        self._held = cluster.changes.reader(cluster.nodes.known())
        self._loaded = cluster.loads.changes.reader()

    async def run(self, ready: Callable[[], bool]) -> None:
        """Keep the taints until cancelled.

        `ready`: whether all that decides on them has been seen.
        """
        backoff, learned = Backoff(_FIRST_RETRY_S, _MAX_RETRY_S), float("-inf")
        while True:
            wait = _EVERY_S
            if ready():
                try:
                    if self._clock() - learned >= _MIX_S:
                        self.learn()
                        learned = self._clock()
                    await self.tend()
                    backoff.reset()
                except KubeError as error:
                    wait = backoff.failed()
                    _LOG.warning("the taints %s are not up to date; trying again: %s", HEADROOM, error)
            await asyncio.sleep(wait)

    def learn(self) -> None:
        """Take in what is typical now; if devices need more or less than before, all nodes are looked at again."""
        needs = needs_of(self._now_typical())
        if needs != self._needs:
            self._needs = needs
            for node in list(self._cluster.nodes.known()):
                self._held.note(node)

    async def tend(self) -> None:
        """Look at the nodes that changed, and write what differs.

        Raises KubeError: a Node could not be written; it is looked at again the next time.
        """
        if self._removes:
            for node in sorted(self._cluster.nodes.short):
                await self._write(node, wanted=False)
            return
        for node in (*self._loaded.drain(), *self._eased.due(self._clock())):
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
        if known.facts(node) is None:
            self._eased.forget(node)
            return
        short = short_now(self._cluster, node, self._needs, self._bounds, was=was)
        wanted = self._eased.wants_taint(node, was=was, short=short, now=self._clock())
        if wanted != was and await self._write(node, wanted=wanted):
            self._eased.forget(node)

    async def _write(self, node: str, *, wanted: bool) -> bool:
        """Set or remove the taint; nothing where another replica, or somebody else, was faster.

        Returns whether it is so now; otherwise the node is looked at again.
        """
        try:
            found = await self._kube.get(NODES.path(node), deadline=_DEADLINE_S)
            taints = (found.get("spec") or {}).get("taints") or []
            now = with_taint(taints, wanted=wanted)
            if now == taints:
                return True
            revision = found["metadata"]["resourceVersion"]
            body = {"metadata": {"resourceVersion": revision}, "spec": {"taints": now or None}}
            await self._kube.patch(NODES.path(node), body, "merge", deadline=_DEADLINE_S)
        except NotFound:
            return True
        except Conflict:
            self._held.note(node)
            return False
        self._written("set" if wanted else "removed")
        _LOG.info("taint %s %s", HEADROOM, "set" if wanted else "removed", extra={"node": node})
        return True
