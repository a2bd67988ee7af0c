"""Who holds what on one node, and what is therefore free."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from allocator.vocabulary.cpunode import MILLI, CpuNode, CpuShare
from allocator.vocabulary.cpuset import format_cpuset
from allocator.vocabulary.device import Device
from allocator.vocabulary.wiring import UNWIRED, Wiring


class InvariantError(AssertionError):
    """Holdings that can never be: more than a device has, or one Pod twice. Always a bug."""


class Function(NamedTuple):
    """A virtual function that comes with a share: its number, -1 where it has none, and its bus id."""

    minor: int
    bus_id: str


@dataclass(frozen=True, slots=True)
class Share:
    """What one Pod holds of one device.

    Attributes:
        type: device type.
        id: the device's identity.
        minor: the device's number when the share was given.
        amounts: resource tail -> percent, bytes or units: the Pod's peak on this device.
        containers: the containers that see the device, in the Pod's order.
        functions: virtual functions that come with it.
        alone: nobody else may hold a device of its PCIe root (Koordinator's exclusive policy PCIeLevel), nor, where
            the root is not known, the device.
        unshared: nobody else may hold anything of the device, however much it has (DeviceLevel).
    """

    type: str
    id: str
    minor: int
    amounts: Mapping[str, int]
    containers: tuple[str, ...] = ()
    functions: tuple[Function, ...] = ()
    alone: bool = False
    unshared: bool = False


@dataclass(frozen=True, slots=True)
class Holding:
    """What one Pod holds on one node.

    Attributes:
        uid: the Pod's UID, the only key: names are used again.
        namespace: of the Pod, for people.
        name: of the Pod, for people.
        since: when it was recorded, seconds since the epoch.
        shares: at most one a device.
        cpus: CPUs and NUMA nodes; None where the kubelet sees to them.
        gang: the group that the Pod belongs to, as namespace/name; "" for none.
    """

    uid: str
    namespace: str
    name: str
    since: int
    shares: tuple[Share, ...]
    cpus: CpuShare | None = None
    gang: str = ""


@dataclass(frozen=True, slots=True)
class NodeSnapshot:
    """One node at one moment: the only thing a decision looks at.

    Attributes:
        name: of the node.
        devices: by type, then in the order of `Device.order`.
        holdings: by Pod UID.
        kubelet_held: ids of devices that the kubelet's own device manager gave away; never ours to give.
        wiring: how its devices hang together.
        cpu: its CPUs and NUMA nodes; None where nothing is known of them.
        order: name of the `DeviceOrder` that the node's administrator wants; "" for the Pod's or the default.
        used: device id -> resource tail -> amount, summed over holdings; derived.
        alone: ids of the devices that somebody holds without neighbours on their PCIe root; derived.
        unshared: ids of the devices that somebody shares with nobody; derived.
    """

    name: str
    devices: tuple[Device, ...]
    holdings: Mapping[str, Holding] = field(default_factory=dict)
    kubelet_held: frozenset[str] = frozenset()
    wiring: Wiring = UNWIRED
    cpu: CpuNode | None = None
    order: str = ""
    used: Mapping[str, Mapping[str, int]] = field(init=False, repr=False, compare=False)
    alone: frozenset[str] = field(init=False, repr=False, compare=False)
    unshared: frozenset[str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "used", sum_used(self.holdings.values()))
        shares = [share for holding in self.holdings.values() for share in holding.shares]
        object.__setattr__(self, "alone", frozenset([share.id for share in shares if share.alone]))
        object.__setattr__(self, "unshared", frozenset([share.id for share in shares if share.unshared]))

    def holding_all(self, holdings: Mapping[str, Holding]) -> "NodeSnapshot":
        """Return the node with these holdings and no others."""
        return replace(self, holdings=holdings)

    def with_holding(self, holding: Holding) -> "NodeSnapshot":
        """Return the node with this holding added, or put in place of the same Pod's."""
        return self.holding_all({**self.holdings, holding.uid: holding})

    def without(self, uids: Iterable[str]) -> "NodeSnapshot":
        """Return the node less the holdings of these Pods."""
        gone = set(uids)
        return self.holding_all({uid: holding for uid, holding in self.holdings.items() if uid not in gone})

    def check_invariants(self) -> None:
        """Recount from scratch that no device is given more than once over.

        Raises:
            InvariantError: naming the device, the resource, and both figures.
        """
        by_id = {device.id: device for device in self.devices}
        if len(by_id) != len(self.devices):
            raise InvariantError(f"{self.name}: two devices with one id")
        totals: dict[tuple[str, str], int] = {}
        for uid, holding in self.holdings.items():
            if uid != holding.uid:
                raise InvariantError(f"{self.name}: holding of {holding.uid} kept under {uid}")
            if len({share.id for share in holding.shares}) != len(holding.shares):
                raise InvariantError(f"{self.name}: Pod {uid} has two shares of one device")
            for share in holding.shares:
                for tail, amount in share.amounts.items():
                    if amount < 0:
                        raise InvariantError(f"{self.name}: negative {tail} in a share of {share.id}")
                    totals[share.id, tail] = totals.get((share.id, tail), 0) + amount
        self._check_cpus()
        for (device_id, tail), total in totals.items():
            device = by_id.get(device_id)
            if device is not None and total > device.capacity.get(tail, 0):
                message = f"{self.name}: {total} {tail} of {device_id} given, it has {device.capacity.get(tail, 0)}"
                raise InvariantError(message)

    def _check_cpus(self) -> None:
        """Recount that no CPU and no virtual function has two owners."""
        given = 0
        functions: set[str] = set()
        for uid, holding in self.holdings.items():
            mask = holding.cpus.cpus if holding.cpus else 0
            if given & mask:
                raise InvariantError(f"{self.name}: CPUs {format_cpuset(given & mask)} given twice, to Pod {uid} too")
            given |= mask
            for function in (function for share in holding.shares for function in share.functions):
                if function.bus_id in functions:
                    raise InvariantError(
                        f"{self.name}: virtual function {function.bus_id} given twice, to Pod {uid} too"
                    )
                functions.add(function.bus_id)
        self._check_pools(given)

    def _check_pools(self, given: int) -> None:
        """Recount that Pods on the shared pool of a NUMA node have the CPUs there that they need; each needs some."""
        nodes = self.cpu.topology.nodes if self.cpu is not None else {}
        needed = dict.fromkeys(nodes, 0)
        for holding in self.holdings.values():
            for one in holding.cpus.numa if holding.cpus is not None and not holding.cpus.cpus else ():
                if one.node in needed:
                    needed[one.node] += max(one.milli, 1)
        for at, milli in needed.items():
            left = (nodes[at] & ~given).bit_count()
            if milli > MILLI * left:
                told = f"{milli} thousandths of a CPU in the shared pool of NUMA node {at}, which has {left} CPUs left"
                raise InvariantError(f"{self.name}: Pods were given {told}")


def sum_used(holdings: Iterable[Holding]) -> dict[str, dict[str, int]]:
    """Sum what is held: device id -> resource tail -> amount."""
    used: dict[str, dict[str, int]] = {}
    for holding in holdings:
        for share in holding.shares:
            device = used.setdefault(share.id, {})
            for tail, amount in share.amounts.items():
                device[tail] = device.get(tail, 0) + amount
    return used
