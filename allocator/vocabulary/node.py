"""One node at one moment: its devices and CPUs, who holds what, and what is therefore free."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from operator import sub

from allocator.vocabulary.adopted import ForeignHolding, counted
from allocator.vocabulary.cardmemory import sum_held
from allocator.vocabulary.cpunode import MILLI, NO_USE, CpuNode, CpuUse, cpu_use
from allocator.vocabulary.cputopology import format_cpuset
from allocator.vocabulary.delivery import NOTHING_TOLD, NodeDelivery
from allocator.vocabulary.device import UNWIRED, Device, Wiring
from allocator.vocabulary.devicetype import DeviceType
from allocator.vocabulary.holdings import HasShares, Holding, InvariantError


@dataclass(frozen=True, slots=True)
class NodeSnapshot:
    """One node at one moment: the only thing a decision looks at.

    It alone answers what is usable, used and free. Amounts are in their resource's unit: percent, bytes or units.
    """

    name: str
    devices: tuple[Device, ...]  # by type, then in the order of `Device.order`
    holdings: Mapping[str, Holding] = field(default_factory=dict)  # by Pod UID
    # ids of devices that the kubelet's device manager allocated; they are never given to a Pod here
    kubelet_held: frozenset[str] = frozenset()
    wiring: Wiring = UNWIRED  # how its devices are connected
    cpu: CpuNode | None = None  # its CPUs and NUMA nodes; None if they are not known
    order: str = ""  # name of the `DeviceOrder` that the node's administrator set; "" for the Pod's or the default
    isolation: str = ""  # what keeps shares of one GPU apart there, as the Node's label states; "" for nothing
    delivery: NodeDelivery = NOTHING_TOLD  # how Pods there get the cards that were chosen for them
    # what ResourceClaims hold, by their UID. Nobody here decides about them: they are no victims of preemption, and
    # share no gang.
    claims: Mapping[str, Holding] = field(default_factory=dict)
    # what Pods of other products hold, by their UID. koordgate decides nothing about these Pods either.
    foreign: Mapping[str, ForeignHolding] = field(default_factory=dict)
    # ids of devices of which the ledger and the annotation of a Pod there state different
    disputed: frozenset[str] = frozenset()
    # device id -> resource tail -> amount, summed over holdings, claims and what Pods of other products hold; derived
    used: Mapping[str, Mapping[str, int]] = field(init=False, repr=False, compare=False)
    # ids of the devices on which nothing new may land: unhealthy, cordoned, allocated by the kubelet, or disputed;
    # derived
    unusable: frozenset[str] = field(init=False, repr=False, compare=False)
    # ids of the devices whose holder has their PCIe root to itself; derived
    alone: frozenset[str] = field(init=False, repr=False, compare=False)
    # ids of the devices whose holder does not share them; derived
    unshared: frozenset[str] = field(init=False, repr=False, compare=False)
    # ids of the devices of which ResourceClaims hold some; derived
    claimed: frozenset[str] = field(init=False, repr=False, compare=False)
    # ids of the devices of which Pods of other products hold some; derived
    adopted: frozenset[str] = field(init=False, repr=False, compare=False)
    _cpu_use: CpuUse | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        held = self.holdings.values()
        foreign = counted(self.foreign) if self.foreign else ()
        object.__setattr__(self, "used", self.held_by(chain(held, self.claims.values(), foreign)))
        claimed = [share.id for claim in self.claims.values() for share in claim.shares]
        object.__setattr__(self, "claimed", frozenset(claimed))
        adopted = [share.id for one in counted(self.foreign) for share in one.shares] if self.foreign else ()
        object.__setattr__(self, "adopted", frozenset(adopted))
        broken = [device.id for device in self.devices if not device.healthy]
        closed = self.kubelet_held | self.disputed if self.disputed else self.kubelet_held
        object.__setattr__(self, "unusable", closed.union(broken) if broken else closed)
        lone = [
            share for holding in self.holdings.values() for share in holding.shares if share.alone or share.unshared
        ]
        object.__setattr__(self, "alone", frozenset([share.id for share in lone if share.alone]))
        object.__setattr__(self, "unshared", frozenset([share.id for share in lone if share.unshared]))

    def is_usable(self, device: Device) -> bool:
        """Return whether anything new may land on one of the node's devices."""
        return device.id not in self.unusable

    def held_by(self, holders: Iterable[HasShares]) -> dict[str, dict[str, int]]:
        """Sum what some hold of the node's devices: device id -> resource tail -> amount."""
        return sum_held(holders, self.devices)

    def free(self, device: Device, tails: Sequence[str]) -> tuple[int, ...]:
        """What is free of a device, one amount for each of these resources; as in `stock`."""
        return self.stock((device,), tails)[0][1]

    def stock(self, devices: Iterable[Device], tails: Sequence[str]) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
        """What devices have and what is free of them: for each device (has, free), one amount per resource each.

        Nothing of an unusable device is free. Nothing of a resource is free if more of it is held than the device now
        has.
        """
        used, unusable = self.used, self.unusable
        none = (0,) * len(tails)
        has = none
        whose: Mapping[str, int] | None = None  # devices of one node mostly share one capacity object
        stock = []
        for device in devices:
            if device.capacity is not whose:
                whose = device.capacity
                has = tuple([whose[tail] for tail in tails])
            free = has
            if device.id in unusable:
                free = none
            elif device.id in used:
                free = left(has, used[device.id], tails)
            stock.append((has, free))
        return stock

    @property
    def cpu_use(self) -> CpuUse:
        """What Pods hold of the node's CPUs; nothing if these are not known. Computed once."""
        known = self._cpu_use
        if known is None:
            shares = (holding.cpus for holding in self.holdings.values() if holding.cpus is not None)
            known = NO_USE if self.cpu is None else cpu_use(self.cpu, shares)
            object.__setattr__(self, "_cpu_use", known)
        return known

    @property
    def own_cpus(self) -> int:
        """The CPUs that Pods may have as their own: all but the reserved ones; bit i is CPU i."""
        return 0 if self.cpu is None else self.cpu.topology.all & ~self.cpu.reserved

    @property
    def free_cpus(self) -> int:
        """The CPUs of `own_cpus` that no Pod has."""
        return self.own_cpus & ~self.cpu_use.taken

    def functions_held(self) -> set[str]:
        """Bus ids of the virtual functions that Pods hold."""
        holders = self.holdings.values()
        return {one.bus_id for holding in holders for share in holding.shares for one in share.functions}

    def holding_all(self, holdings: Mapping[str, Holding]) -> "NodeSnapshot":
        """Return the node with these holdings and no others."""
        return replace(self, holdings=holdings)

    def with_holding(self, holding: Holding) -> "NodeSnapshot":
        """Return the node with this holding added; it replaces an earlier one of the same Pod."""
        return self.holding_all({**self.holdings, holding.uid: holding})

    def given(self) -> list[Holding]:
        """All that koordgate has given, or counts for ResourceClaims."""
        return [*self.holdings.values(), *self.claims.values()]

    def without(self, uids: Iterable[str]) -> "NodeSnapshot":
        """Return the node without the holdings of these Pods, of other products too."""
        gone = set(uids)
        kept = {uid: holding for uid, holding in self.holdings.items() if uid not in gone}
        if gone.isdisjoint(self.foreign):
            return self.holding_all(kept)
        return replace(self, holdings=kept, foreign={uid: o for uid, o in self.foreign.items() if uid not in gone})

    def check_invariants(self) -> None:
        """Recount from scratch that no device and no CPU is given twice.

        Raises InvariantError: one is; the message names it, and both figures where amounts are compared.
        """
        if len({device.id for device in self.devices}) != len(self.devices):
            raise InvariantError(f"{self.name}: two devices with one id")
        for uid, holding in self.holdings.items():
            if uid != holding.uid:
                raise InvariantError(f"{self.name}: holding of {holding.uid} kept under {uid}")
            if len({share.id for share in holding.shares}) != len(holding.shares):
                raise InvariantError(f"{self.name}: Pod {uid} has two shares of one device")
            amounts = ((share, *one) for share in holding.shares for one in share.amounts.items())
            for share, tail, amount in amounts:
                if amount < 0:
                    raise InvariantError(f"{self.name}: negative {tail} in a share of {share.id}")
        self._check_cpus()
        given = self.held_by(self.holdings.values())
        for device in self.devices:
            for tail, total in given.get(device.id, {}).items():
                if total > device.has_at_most(tail):
                    message = f"{self.name}: {total} {tail} of {device.id} given, it has {device.has_at_most(tail)}"
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
        """Recount that the shared pool of each NUMA node has the CPUs that the Pods on it need; each Pod needs some."""
        nodes = self.cpu.topology.nodes if self.cpu is not None else {}
        needed = dict.fromkeys(nodes, 0)
        for holding in self.holdings.values():
            for one in holding.cpus.numa if holding.cpus is not None and not holding.cpus.cpus else ():
                if one.node in needed:
                    needed[one.node] += max(one.milli, 1)
        for at, milli in needed.items():
            left = (nodes[at] & ~given).bit_count()
            if milli > MILLI * left:
                what = f"{milli} thousandths of a CPU in the shared pool of NUMA node {at}, which has {left} CPUs left"
                raise InvariantError(f"{self.name}: Pods were given {what}")


def fullness(kind: DeviceType) -> tuple[str, ...]:
    """The resources by which devices of a type are compared; bytes that a ratio states as well are left out.

    Percent can be added up over devices of different sizes.
    """
    return tuple([tail for tail in kind.tails if tail != kind.restated])


def size_class(kind: DeviceType) -> tuple[str, int]:
    """The resource by which devices of a type are large, and how much of it counts as 1."""
    at, unit = kind.sized
    return kind.tails[at], unit


def left(has: tuple[int, ...], held: Mapping[str, int], tails: Sequence[str]) -> tuple[int, ...]:
    """What is free of a device's amounts, at least 0 each, because more may be held than the device now has."""
    free = tuple(map(sub, has, map(held.get, tails, (0,) * len(tails))))
    return tuple([max(one, 0) for one in free]) if free and min(free) < 0 else free
