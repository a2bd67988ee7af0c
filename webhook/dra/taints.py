"""Tells DRA which cards are not for it: a DeviceTaintRule (NoSchedule) for each device of which a Pod holds some.

The taints spare kube-scheduler allocations that the review would refuse; nothing depends on them. Every replica keeps
all rules: a creation fails if the rule exists, and the deletion of one that is gone is no failure.
"""

import asyncio
import hashlib
import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

from allocator.vocabulary.holdings import DeviceName
from koordgate.backoff import Backoff
from koordgate.kube.client import KubeClient
from koordgate.kube.errors import AlreadyExists, KubeError, NotFound
from koordgate.kube.resource import Resource
from webhook.view.cluster import ClusterView
from webhook.view.feed import Listing

PREFIX: Final = "koordgate-"
TAINT: Final = "koordgate.io/held"
_MANAGED_BY: Final = {"app.kubernetes.io/managed-by": "koordgate"}
_LOG: Final = logging.getLogger(__name__)
_TOGETHER_S: Final = 0.1  # changes that arrive within this time are looked at together
_FIRST_RETRY_S: Final = 1.0
_MAX_RETRY_S: Final = 60.0
_DEADLINE_S: Final = 5.0


def rule_name(device: DeviceName) -> str:
    """The name of a device's rule: the device's own names may not fit into one."""
    return f"{PREFIX}{hashlib.sha256(str(device).encode()).hexdigest()[:32]}"


def rule(device: DeviceName, api_version: str) -> dict[str, Any]:
    """Write the rule that taints a device."""
    return {
        "apiVersion": api_version,
        "kind": "DeviceTaintRule",
        "metadata": {"name": rule_name(device), "labels": dict(_MANAGED_BY)},
        "spec": {"deviceSelector": device._asdict(), "taint": {"key": TAINT, "effect": "NoSchedule"}},
    }


class RuleFeed(Listing):
    """Takes in DeviceTaintRules, and keeps the names of koordgate's own."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.changed: Callable[[], object] = lambda: None  # called when they change

    def there(self, obj: dict[str, Any]) -> None:
        """Take in a rule."""
        metadata = obj["metadata"]
        if metadata["name"].startswith(PREFIX) and _MANAGED_BY.items() <= (metadata.get("labels") or {}).items():
            self.names.add(metadata["name"])
            self.changed()

    def gone(self, namespace: str, name: str) -> None:  # noqa: ARG002 cluster-scoped
        """Forget a rule."""
        self.names.discard(name)
        self.changed()


class TaintController:
    """Keeps the rules.

    `served`: the version of the rules that the API server serves; None while it serves none.
    """

    def __init__(
        self, kube: KubeClient, cluster: ClusterView, rules: RuleFeed, served: Callable[[], Resource | None]
    ) -> None:
        self._kube = kube
        self._cluster = cluster
        self._rules = rules
        self._served = served
        self._changed = cluster.changes.reader(cluster.nodes.known())
        self._held: dict[str, Mapping[str, DeviceName]] = {}  # node -> name of the rule -> device
        self._news = asyncio.Event()
        rules.changed = self._news.set

    async def run(self, ready: Callable[[], bool]) -> None:
        """Keep the rules until cancelled.

        `ready`: whether all that decides on them has been seen.
        """
        backoff = Backoff(_FIRST_RETRY_S, _MAX_RETRY_S)
        while True:
            served = self._served()
            wait = _FIRST_RETRY_S
            self._news.clear()
            # Made before anything is looked at: what changes meanwhile counts.
            waits = [asyncio.ensure_future(one) for one in (self._cluster.changes.news(), self._news.wait())]
            try:
                if served is not None and ready():
                    await self._mend(served)
                    backoff.reset()
                    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
                    wait = _TOGETHER_S
            except KubeError as error:
                wait = backoff.failed()
                _LOG.warning("the taints of held devices are not up to date; trying again: %s", error)
            finally:
                for one in waits:
                    one.cancel()
            await asyncio.sleep(wait)

    async def wanted(self) -> dict[str, DeviceName]:
        """The rules that there must be: name -> device. Others run after each node that changed."""
        for node in self._changed.drain():
            await asyncio.sleep(0)
            held = self._on(node)
            if held:
                self._held[node] = held
            else:
                self._held.pop(node, None)
        return {name: device for on in self._held.values() for name, device in on.items()}

    def _on(self, node: str) -> dict[str, DeviceName]:
        snapshot = self._cluster.snapshot(node)
        given = {share.id for holding in snapshot.holdings.values() for share in holding.shares}
        names = self._cluster.claims.slices.names(node, snapshot.devices) if given else {}
        return {rule_name(device): device for device, identity in names.items() if identity in given}

    async def _mend(self, served: Resource) -> None:
        """Write what is missing, and delete what is not wanted any more."""
        wanted = await self.wanted()
        for name in sorted(wanted.keys() - self._rules.names):
            try:
                await self._kube.create(served.path(), rule(wanted[name], served.api_version), deadline=_DEADLINE_S)
            except AlreadyExists:
                continue  # another replica was faster; the watch will tell
            self._rules.names.add(name)
        for name in sorted(self._rules.names - wanted.keys()):
            try:
                await self._kube.delete(served.path(name), deadline=_DEADLINE_S)
            except NotFound:
                continue
            self._rules.names.discard(name)
