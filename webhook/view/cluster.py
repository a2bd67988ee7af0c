"""What a replica knows of the cluster, built from what it has seen and from the ledger.

`SeenObjects` holds what the API server's objects state. `ClusterView` adds who holds what by the ledger. Everything
here is memory, and is filled by the handlers of the Reflectors or, offline, by the loader.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from allocator.disputed import Dispute
from allocator.vocabulary.asks import UNSTATED, GangSize, largest
from allocator.vocabulary.device import Device
from allocator.vocabulary.devicetype import DeviceType
from allocator.vocabulary.holdings import Holding, InvariantError
from allocator.vocabulary.node import NodeSnapshot
from allocator.wire.foreignpods import NO_ADOPTION, Adoption
from webhook.ledger.store import Record
from webhook.view.changes import Changes
from webhook.view.claims import ClaimTable
from webhook.view.foreign import ForeignTable
from webhook.view.loads import NodeLoads
from webhook.view.nodes import NodeTable
from webhook.view.podinfo import PodInfo
from webhook.view.pods import PodTable
from webhook.view.reach import DeviceReach
from webhook.view.runtimeclasses import RuntimeClassTable
from webhook.view.snapshots import Defaults, Snapshots
from webhook.view.typical import SeenMix


class GroupTable:
    """The PodGroups. Those of different API groups may have the same name: the largest size counts."""

    def __init__(self) -> None:
        self._sizes: dict[str, dict[str, GangSize]] = {}  # gang -> API group -> size

    def put(self, group: str, gang: str, size: GangSize) -> None:
        """Take in a PodGroup of an API group."""
        if size == UNSTATED:
            self.drop(group, gang)
        else:
            self._sizes.setdefault(gang, {})[group] = size

    def drop(self, group: str, gang: str) -> None:
        """Take in that a PodGroup is gone, or states no size."""
        stated = self._sizes.get(gang, {})
        stated.pop(group, None)
        if not stated:
            self._sizes.pop(gang, None)

    def size(self, gang: str) -> GangSize:
        """The size that PodGroups state for a gang."""
        stated = self._sizes.get(gang)
        return largest(stated.values()) if stated else UNSTATED


class Held(Protocol):
    """Who holds what, as last seen."""

    def record(self, node: str) -> Record:
        """A node's record; one without holdings where nothing was seen."""

    def nodes_of(self, uid: str) -> Sequence[str]:
        """The nodes on which a Pod holds something."""


class NothingHeld:
    """A ledger in which nobody holds anything: only annotations of Pods count."""

    def record(self, node: str) -> Record:
        """A record without holdings."""
        return Record(node)

    def nodes_of(self, uid: str) -> Sequence[str]:  # noqa: ARG002 the protocol's
        """No nodes."""
        return ()


class SeenObjects:
    """What the API server's objects say, without the ledger.

    `clock`: seconds since the epoch. `refitted`: called with a known node whose devices, CPUs or labels changed, or on
    which a ResourceClaim let go of something: Pods that wait may fit there now. `drivers`: DRA drivers whose devices
    ResourceClaims hold, and the type of these. `monotonic`: seconds since any moment. `learns`: whether the mix of
    requests is learned from the Pods.
    """

    def __init__(
        self,
        clock: Callable[[], int],
        defaults: Defaults | None = None,
        refitted: Callable[[str], object] = lambda _node: None,
        drivers: Mapping[str, DeviceType] | None = None,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        adoption: Adoption = NO_ADOPTION,
        learns: bool = False,
    ) -> None:
        # publishes the nodes about which anything changed; the ledger's changes belong there as well
        self.changes = Changes()
        self.nodes = NodeTable(self.changes, refitted)
        self.loads = NodeLoads()  # what nodes have for Pods, and what their Pods request in sum
        # the requests that are typical of the Pods; None where it is not learned
        self.mix = SeenMix() if learns else None
        self.pods = PodTable(self.changes, self.loads, self.mix, monotonic)
        self.groups = GroupTable()  # the sizes of gangs
        self.claims = ClaimTable(self.changes, drivers, refitted)  # ResourceClaims and ResourceSlices
        self.foreign = ForeignTable(self.changes, adoption, refitted)  # running Pods of other products
        defaults = defaults or Defaults()
        # the RuntimeClasses, and how containers get their cards with them
        self.runtime_classes = RuntimeClassTable(defaults.delivery, self.nodes.reconsider)
        # of nodes on given holdings
        self.snapshots = Snapshots(
            self.nodes, self.pods, self.claims, self.foreign, clock, defaults, lambda: self.runtime_classes.rules
        )

    def snapshot_on(self, node: str, holdings: Mapping[str, Holding]) -> NodeSnapshot:
        """A node with these holdings of the ledger; see `Snapshots.on`."""
        return self.snapshots.on(node, holdings)


class ClusterView:
    """What this replica knows of the cluster.

    `changes, nodes, loads, pods, groups, claims, foreign, runtime_classes`: of `seen`. `held`: the ledger, whose
    changes `seen.changes` publishes.
    """

    def __init__(self, seen: SeenObjects, held: Held | None = None) -> None:
        self.changes = seen.changes
        self.nodes = seen.nodes
        self.loads = seen.loads
        self.pods = seen.pods
        self.groups = seen.groups
        self.claims = seen.claims
        self.foreign = seen.foreign
        self.runtime_classes = seen.runtime_classes
        self.held: Held = NothingHeld() if held is None else held  # the ledger, to be read only
        # the GPUs that a Pod could land on: their memory, and how it would get them
        self.reach = DeviceReach(seen.nodes, seen.snapshots.delivery)
        self.claims.reserved_on = self.held.nodes_of
        self._snapshots = seen.snapshots
        self._changed = seen.changes.reader()
        self._current: dict[str, NodeSnapshot] = {}  # of known nodes, on the ledger as last seen

    def snapshot(self, node: str) -> NodeSnapshot:
        """A node as it is now, on the ledger as last seen; without devices and CPUs while it is blocked.

        What a Pod that ended holds in the ledger is left out: it is about to be released.
        """
        for changed in self._changed.drain():
            self._current.pop(changed, None)
        snapshot = self._current.get(node)
        if snapshot is None:
            snapshot = self._make(node)
            if self.nodes.knows(node):  # else no change would be published that makes it stale
                self._current[node] = snapshot
        return snapshot

    def _make(self, node: str) -> NodeSnapshot:
        if self.nodes.blocked(node):
            return NodeSnapshot(node, ())
        held, has_ended = self.held.record(node).holdings, self.pods.has_ended
        ended = [uid for uid in held if has_ended(uid, node)]
        if ended:
            held = {uid: holding for uid, holding in held.items() if uid not in ended}
        return self._snapshots.on(node, held)

    def snapshot_on(self, node: str, holdings: Mapping[str, Holding]) -> NodeSnapshot:
        """The node with these holdings (see `Snapshots.on`), without devices and CPUs while it is blocked."""
        return NodeSnapshot(node, ()) if self.nodes.blocked(node) else self._snapshots.on(node, holdings)

    def disputes(self, node: str) -> Mapping[str, Dispute]:
        """What the ledger and the annotations of a node's live Pods state differently, by the Pods' UIDs."""
        return self._snapshots.disputes(node, self.held.record(node).holdings)

    def devices(self, node: str) -> Sequence[Device]:
        """The devices of a node."""
        return self._snapshots.devices(node)

    def compared(self, pod: PodInfo) -> PodInfo:
        """A bound Pod beside its node: what it names by numbers is found there; see `on_node`."""
        return self._snapshots.compared(pod)

    def requested(self, node: str, holders: Iterable[str]) -> dict[str, int]:
        """What Pods request of a node in sum: those bound there, and of these UIDs those that are not bound yet."""
        sums = Counter(self.loads.requested(node))
        sums.update(self.to_come(holders))
        return dict(sums)

    def to_come(self, holders: Iterable[str]) -> Counter[str]:
        """What those of these Pods request in sum that are not bound yet, and have not finished."""
        sums: Counter[str] = Counter()
        for uid in holders:
            pod = self.pods.by_uid(uid)
            if pod is not None and not pod.node and not pod.finished:
                sums.update(dict(pod.requests))
        return sums

    def check_invariants(self) -> None:
        """Check that all indices agree with one another, and all that is remembered with what it was made from.

        Raises InvariantError: they do not.
        """
        self.nodes.check_invariants()
        self.pods.check_invariants()
        self.reach.check_invariants()
        self.claims.check_invariants()
        self.foreign.check_invariants()
        self._snapshots.check_invariants()
        for node in tuple(self._current):
            if self.snapshot(node) != self._make(node):
                raise InvariantError(f"{node}: the snapshot that is remembered is not what is known now")
        if lost := self._current.keys() - self.nodes.known():
            raise InvariantError(f"snapshots of nodes that are not known: {sorted(lost)}")
