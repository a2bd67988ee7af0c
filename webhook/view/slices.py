"""ResourceSlices (DRA): where a driver's devices are, and which cards of ours."""

from collections import defaultdict
from collections.abc import Hashable, Sequence
from typing import TypeVar

from allocator.vocabulary.claims import DeviceName, ListedDevice, ResourceSlice
from allocator.vocabulary.device import Device
from allocator.vocabulary.holdings import InvariantError

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
