"""What ResourceClaims hold of our devices, by the ResourceSlices that name these."""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeVar

from allocator.claimed import ClaimedPart, claimed_shares, standing
from allocator.vocabulary.device import Device
from allocator.vocabulary.devicetype import DeviceType
from allocator.vocabulary.holdings import (
    ClaimedDevice,
    DeviceName,
    Holding,
    InvariantError,
    ListedDevice,
    ResourceClaim,
    ResourceSlice,
)
from webhook.boundedcache import BoundedCache
from webhook.view.changes import Changes

K = TypeVar("K", bound=Hashable)
Pool = tuple[str, str]
"""A driver and the name of one of its pools."""


class SliceTable:
    """Slices by pool and by node."""

    def __init__(self) -> None:
        self._slices: dict[str, ResourceSlice] = {}
        self._of_pool: defaultdict[Pool, set[str]] = defaultdict(set)  # names of slices
        self._on_node: defaultdict[str, set[str]] = defaultdict(set)  # likewise

    def put(self, listed: ResourceSlice) -> list[ResourceSlice]:
        """Take in a slice; returns what of it changed: the slice as it is, and as it was. Empty where nothing did."""
        before = self._slices.get(listed.name)
        if before == listed:
            return []
        gone = self.drop(listed.name)
        self._slices[listed.name] = listed
        self._of_pool[listed.driver, listed.pool].add(listed.name)
        for node in nodes_of(listed):
            self._on_node[node].add(listed.name)
        return [listed, *gone]

    def drop(self, name: str) -> list[ResourceSlice]:
        """Forget a slice; returns it, if it was known."""
        before = self._slices.pop(name, None)
        if before is None:
            return []
        discard(self._of_pool, (before.driver, before.pool), name)
        for node in nodes_of(before):
            discard(self._on_node, node, name)
        return [before]

    def listed(self, name: DeviceName) -> ListedDevice | None:
        """A device of the newest generation of its pool; None if no slice lists it."""
        newest = self._newest((name.driver, name.pool))
        return next((one.devices[name.device] for one in newest if name.device in one.devices), None)

    def _newest(self, pool: Pool) -> list[ResourceSlice]:
        slices = [self._slices[name] for name in sorted(self._of_pool.get(pool, ()))]
        newest = max((one.generation for one in slices), default=0)
        return [one for one in slices if one.generation == newest]

    def names(self, node: str, devices: Sequence[Device]) -> dict[DeviceName, str]:
        """What DRA calls the devices of a node: name -> id. A part of a card counts as the card."""
        known = {name: device.id for device in devices for name in (device.id, device.bus) if name}
        there = (self._slices[name] for name in self._on_node.get(node, ()))
        pools = {(one.driver, one.pool) for one in there}
        return {
            DeviceName(*pool, device): known[name]
            for pool in sorted(pools)
            for one in self._newest(pool)
            for device, listed in one.devices.items()
            if listed.node == node and (name := next((name for name in listed.ids if name in known), ""))
        }

    def check_invariants(self) -> None:
        """Compare the indices with the slices.

        Raises InvariantError: they disagree.
        """
        pools: dict[Pool, set[str]] = {}
        nodes: dict[str, set[str]] = {}
        for name, one in self._slices.items():
            pools.setdefault((one.driver, one.pool), set()).add(name)
            for node in nodes_of(one):
                nodes.setdefault(node, set()).add(name)
        if (pools, nodes) != (dict(self._of_pool), dict(self._on_node)):
            raise InvariantError(f"slices by pool and by node are not {pools} and {nodes}")


def nodes_of(listed: ResourceSlice) -> set[str]:
    """The nodes on which a slice has devices."""
    return {one.node for one in listed.devices.values() if one.node}


def discard(groups: defaultdict[K, set[str]], group: K, member: str) -> None:
    """Take a member out of a group, and forget a group without members."""
    members = groups.get(group)
    if members is not None:
        members.discard(member)
        if not members:
            del groups[group]


_MAX_DELETED: Final = 16_384  # UIDs of deleted claims; what was reserved for each is released within milliseconds
_NOTHING: Final[Mapping[str, Holding]] = {}
_UNLEARNT: Final[Mapping[DeviceName, ListedDevice | None]] = {}
DevicesOf = Callable[[str], Sequence[Device]]
"""The devices of a node by its name."""


class _Result(NamedTuple):
    """One device of a claim, and what a slice says of it, if one ever did."""

    claimed: ClaimedDevice
    listed: ListedDevice | None


@dataclass(frozen=True, slots=True)
class _Known:
    """A claim as last seen, what it holds, and the nodes of that."""

    claim: ResourceClaim
    results: tuple[_Result, ...] = ()
    on: AbstractSet[str] = field(default_factory=frozenset)

    def at(self, result: _Result) -> str:
        """The node of a device: that of the slice, else the one that the allocation is limited to; "" for none."""
        return self.claim.node if result.listed is None else result.listed.node


class ClaimTable:
    """Claims by UID and by node.

    `changes`: where each node is published whose claims or slices changed. `drivers`: the drivers whose devices count,
    and the type of these. `freed`: called with a node on which a claim may have let go of something: Pods that wait may
    fit there now.
    """

    def __init__(
        self,
        changes: Changes,
        drivers: Mapping[str, DeviceType] | None = None,
        freed: Callable[[str], object] = lambda _node: None,
    ) -> None:
        self.drivers: Mapping[str, DeviceType] = drivers or {}  # as above
        self.slices = SliceTable()
        # called with a claim's UID once it holds nothing any more: what is reserved for it can be released
        self.ended: Callable[[str], object] = lambda _uid: None
        # the nodes on which the ledger has something for a claim, by its UID. What that counts depends on what is known
        # of the claim.
        self.reserved_on: Callable[[str], Sequence[str]] = lambda _uid: ()
        self._changes = changes
        self._freed = freed
        self._claims: dict[str, _Known] = {}  # by UID
        self._on: defaultdict[str, set[str]] = defaultdict(set)  # node -> UIDs of the claims that hold something there
        self._users: defaultdict[Pool, set[str]] = defaultdict(set)  # UIDs of the claims that hold something of it
        self._deleted: BoundedCache[str, bool] = BoundedCache(_MAX_DELETED)

    def put(self, claim: ResourceClaim) -> None:
        """Take in a claim."""
        before = self._claims.get(claim.uid)
        self._keep(claim)
        self._touch(self.reserved_on(claim.uid), ())
        if before is not None and before.claim.holds and not claim.holds:
            self.ended(claim.uid)

    def drop(self, uid: str, *, deleted: bool) -> None:
        """Forget a claim.

        `deleted`: whether the API server said so. That a list does not name a claim proves nothing: the list may be
        older than the claim.
        """
        before = self._claims.pop(uid, None)
        if deleted:
            self._deleted.put(uid, value=True)
        if before is not None:
            self._leave(before)
            self._touch({*before.on, *self.reserved_on(uid)}, before.on)
        self.ended(uid)

    def put_slice(self, listed: ResourceSlice) -> None:
        """Take in a slice of one of the drivers."""
        self._relisted(self.slices.put(listed))

    def drop_slice(self, name: str) -> None:
        """Forget a slice."""
        self._relisted(self.slices.drop(name))

    def _relisted(self, slices: Sequence[ResourceSlice]) -> None:
        """What is known of a pool's devices changed: look again at what its claims hold."""
        for uid in {uid for one in slices for uid in self._users.get((one.driver, one.pool), ())}:
            self._keep(self._claims[uid].claim)
        self._touch({node for one in slices for node in nodes_of(one)}, ())

    def _keep(self, claim: ResourceClaim) -> None:
        """Find what a claim holds, and publish the nodes on which that differs from before."""
        before = self._claims.get(claim.uid)
        if before is not None:
            self._leave(before)
        # A slice may vanish while its driver is restarted: what it said of the device is remembered.
        learnt = {result.claimed.name: result.listed for result in (before.results if before is not None else ())}
        now = self._found(claim, learnt)
        self._claims[claim.uid] = now
        for node in now.on:
            self._on[node].add(claim.uid)
        for claimed in claim.devices:
            self._users[claimed.name.driver, claimed.name.pool].add(claim.uid)
        was = before or _Known(claim)
        if (was.results, was.on, was.claim.unread) != (now.results, now.on, claim.unread):
            self._touch(was.on | now.on, was.on)
        elif was.claim.revision != claim.revision:  # what is remembered of its nodes names the revision
            self._touch(now.on, ())

    def _found(self, claim: ResourceClaim, learnt: Mapping[DeviceName, ListedDevice | None] = _UNLEARNT) -> _Known:
        results = tuple(
            _Result(claimed, self.slices.listed(claimed.name) or learnt.get(claimed.name)) for claimed in claim.devices
        )
        known = _Known(claim, results)
        nodes = {known.at(result) for result in results} | ({claim.node} if claim.unread else set())
        return _Known(claim, results, frozenset(filter(None, nodes)))

    def _leave(self, known: _Known) -> None:
        for node in known.on:
            discard(self._on, node, known.claim.uid)
        for claimed in known.claim.devices:
            discard(self._users, (claimed.name.driver, claimed.name.pool), known.claim.uid)

    def _touch(self, nodes: Iterable[str], freed: Iterable[str]) -> None:
        for node in nodes:
            self._changes.touch(node)
        for node in freed:
            self._freed(node)

    def known(self, uid: str) -> ResourceClaim | None:
        """A claim as last seen; None if it was not seen, or is gone."""
        known = self._claims.get(uid)
        return None if known is None else known.claim

    def where(self, claim: ResourceClaim) -> AbstractSet[str]:
        """The nodes on which a claim holds something."""
        known = self._claims.get(claim.uid)
        return known.on if known is not None and known.claim == claim else self._found(claim).on

    def is_over(self, reservation: Holding) -> bool:
        """Whether it is certain that no allocation which was answered with a reservation is still to come."""
        known = self.known(reservation.uid)
        return self._deleted.get(reservation.uid) is not None or not standing(reservation, known)

    def on(
        self, node: str, devices: Sequence[Device], reserved: Mapping[str, Holding] = _NOTHING
    ) -> Mapping[str, Holding]:
        """What claims hold of a node's devices, by UID.

        `reserved`: what the ledger has for claims there. Where it says more than is known here, it is what counts
        (`allocator.claimed`).
        """
        uids = self._on.get(node)
        if not uids and not reserved:
            return _NOTHING
        held = {uid: self._holding(self._claims[uid], node, devices)[0] for uid in sorted(uids or ())}
        held.update((uid, one) for uid, one in reserved.items() if not self.is_over(one))
        return held

    def reach(self, claim: ResourceClaim, devices: DevicesOf) -> dict[str, Holding]:
        """What an allocation holds, by node.

        `claim`: with the allocation, which need not be known.
        """
        known = self._found(claim)
        return {node: self._holding(known, node, devices(node))[0] for node in sorted(known.on)}

    def unmatched(self, uid: str, devices: DevicesOf) -> list[str]:
        """The nodes on which a claim holds all devices of a type, because it is not known which it has."""
        known = self._claims.get(uid)
        there = () if known is None else known.on
        return [] if known is None else [on for on in sorted(there) if not self._holding(known, on, devices(on))[1]]

    def all(self) -> Iterable[ResourceClaim]:
        """All claims."""
        return [known.claim for known in self._claims.values()]

    def _holding(self, known: _Known, node: str, devices: Sequence[Device]) -> tuple[Holding, bool]:
        """What a claim holds on a node, and whether it is known which devices these are."""
        claim = known.claim
        parts = [
            ClaimedPart(self.drivers[one.claimed.name.driver], one.listed.ids if one.listed else (), one.claimed.memory)
            for one in known.results
            if known.at(one) == node
        ]
        if claim.unread:
            parts = [ClaimedPart(kind, ()) for kind in dict.fromkeys(self.drivers.values())]
        shares, found = claimed_shares(parts, devices)
        return Holding(claim.uid, claim.namespace, claim.name, 0, shares, fence=claim.revision), found

    def check_invariants(self) -> None:
        """Compare the indices with the claims and slices.

        Raises InvariantError: they disagree.
        """
        self.slices.check_invariants()
        on: dict[str, set[str]] = {}
        users: dict[Pool, set[str]] = {}
        for uid, known in self._claims.items():
            for node in known.on:
                on.setdefault(node, set()).add(uid)
            for claimed in known.claim.devices:
                users.setdefault((claimed.name.driver, claimed.name.pool), set()).add(uid)
        if (on, users) != (dict(self._on), dict(self._users)):
            raise InvariantError(f"claims by node and by pool are not {on} and {users}")
