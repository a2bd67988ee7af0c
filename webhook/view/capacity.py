"""What the cluster has, what of it is given, and what is free, summed over all nodes for people who watch it.

The sums are for each type and model of device. Figures of single devices come from the reporter of their node: a
replica that told them of each node would tell the same hundreds of thousands as the next replica.
"""

from collections import Counter
from collections.abc import Iterable
from enum import StrEnum
from typing import Final, NamedTuple

from allocator.vocabulary.cardmemory import askable
from allocator.vocabulary.device import Device
from allocator.vocabulary.devicetype import DeviceTypes
from allocator.vocabulary.holdings import InvariantError
from allocator.vocabulary.node import NodeSnapshot
from koordgate.breaks import Breaks
from webhook.view.cluster import ClusterView

_MAX_MODELS: Final = 100  # that are distinguished; nodes state them as text
OTHER: Final = "other"


class DeviceState(StrEnum):
    """How a device is used.

    IDLE: nobody holds any of it. SHARED: something of it is held, and something is free of each of its resources. FULL:
    nothing is free of one of them. UNUSABLE: nothing new may land on it.
    """

    IDLE = "idle"
    SHARED = "shared"
    FULL = "full"
    UNUSABLE = "unusable"


class DeviceSum(NamedTuple):
    """Devices of one type and model in one state."""

    type: str
    model: str
    state: DeviceState


class AmountSum(NamedTuple):
    """One resource of the devices of one type and model."""

    type: str
    model: str
    resource: str  # its tail, as gpu-core
    what: str  # "capacity", "allocated" (to Pods and ResourceClaims) or "free" (of usable devices)


Sum = DeviceSum | AmountSum


class Capacity:
    """The sums. Only nodes that changed are counted again."""

    def __init__(self, cluster: ClusterView, types: DeviceTypes) -> None:
        self._cluster = cluster
        self._types = types
        self._changed = cluster.changes.reader(cluster.nodes.known())
        self._of: dict[str, Counter[Sum]] = {}
        self._sums: Counter[Sum] = Counter()
        self._models: dict[tuple[str, str], int] = {}  # and on how many nodes each is

    async def refresh(self) -> None:
        """Count the nodes that changed; others run in between."""
        breaks = Breaks()
        for name in self._changed.drain():
            self._count(name)
            if breaks.due():
                await breaks.take()

    def sums(self) -> list[tuple[Sum, int]]:
        """All sums, in their order; models beyond the first hundred are one, called `other`."""
        named = self.named()
        shown: Counter[Sum] = Counter()
        for key, amount in self._sums.items():
            kept = (key.type, key.model) in named
            shown[key if kept else key._replace(model=OTHER)] += amount
        return sorted(shown.items())

    def named(self) -> frozenset[tuple[str, str]]:
        """The types and models that are distinguished."""
        return frozenset(sorted(self._models)[:_MAX_MODELS])

    def _count(self, name: str) -> None:
        before = self._of.pop(name, Counter())
        after = Counter(self._counted(name)) if self._cluster.nodes.knows(name) else Counter[Sum]()
        if after:
            self._of[name] = after
        self._sums.update(after)
        self._sums.subtract(before)
        for key in before.keys() - after.keys():
            if not self._sums[key]:
                del self._sums[key]
        for one in {(key.type, key.model) for key in after}:
            self._models[one] = self._models.get(one, 0) + 1
        for one in {(key.type, key.model) for key in before}:
            self._models[one] -= 1
            if not self._models[one]:
                del self._models[one]

    def _counted(self, name: str) -> dict[Sum, int]:
        if self._cluster.nodes.blocked(name):
            return _unread(self._cluster.devices(name))
        return counted(self._cluster.snapshot(name), self._types)

    def check_invariants(self) -> None:
        """Count all nodes anew.

        Raises InvariantError: the sums are others. Nodes that changed must have been taken in before.
        """
        expected: Counter[Sum] = Counter()
        for name in self._cluster.nodes.known():
            expected.update(self._counted(name))
        if {key: amount for key, amount in self._sums.items() if amount} != {k: v for k, v in expected.items() if v}:
            raise InvariantError(f"the sums of what nodes have are {self._sums}, not {expected}")


def _unread(devices: Iterable[Device]) -> dict[Sum, int]:
    """Of a node on which nothing may be placed, all devices are unusable; what is held of them is not known."""
    found: Counter[Sum] = Counter()
    for device in devices:
        found[DeviceSum(device.type, device.model, DeviceState.UNUSABLE)] += 1
        for tail, amount in device.capacity.items():
            found[AmountSum(device.type, device.model, tail, "capacity")] += amount
    return found


def counted(node: NodeSnapshot, types: DeviceTypes) -> dict[Sum, int]:
    """Count what one node has, has given, and has free."""
    found: Counter[Sum] = Counter()
    for device in node.devices:
        kind = types.by_name.get(device.type)
        if kind is None:
            continue
        tails = tuple(tail for tail in kind.tails if tail in device.capacity)
        has, unheld = node.stock((device,), tails)[0]
        free = askable(device, tails, has, unheld)
        held = node.used.get(device.id, {})
        ratio = kind.memory[1] if kind.memory else ""  # what is left in bytes can be had
        compared = [left for tail, left in zip(tails, free, strict=True) if tail != ratio]
        state = DeviceState.SHARED if held else DeviceState.IDLE
        if not node.is_usable(device):
            state = DeviceState.UNUSABLE
        elif not all(compared):
            state = DeviceState.FULL
        found[DeviceSum(device.type, device.model, state)] += 1
        for tail, all_of_it, left in zip(tails, has, free, strict=True):
            sums = {"capacity": all_of_it, "allocated": held.get(tail, 0), "free": left}
            for what, amount in sums.items():
                found[AmountSum(device.type, device.model, tail, what)] += amount
    return found
