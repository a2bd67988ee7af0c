"""Nodes and requests in the form that the index takes: amounts packed by class, requests as wants.

A group of idle devices is worth more together than apart. Where the node has a partition table, it is a partition that
is wholly idle: the largest that hold a device, each device in one. Otherwise it is what fast links connect, directly or
through other idle devices. Devices in use and devices on which nothing may land connect nothing.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Final

from allocator.index.packed import Packed
from allocator.index.query import FULL, MAX_AMOUNT, Amount, PartOf, Query, RatioFrom, Want
from allocator.index.table import Make, TypeRow
from allocator.vocabulary.asks import NODE_CLASSES, ContainerAsk, DeviceAsk, PodRequest
from allocator.vocabulary.cpunode import BindPolicy, CpuNode, NumaPolicy
from allocator.vocabulary.device import LANE_WEIGHT, NO_LINKS, Device, PartitionTable
from allocator.vocabulary.names import Phase
from allocator.vocabulary.node import NodeSnapshot

_MAX: Final = 8192  # groupings that are remembered; nodes of one make share them


def groups_of(devices: Sequence[Device], node: NodeSnapshot, *, partitioned: bool) -> tuple[int, ...]:
    """Number the groups of a node's devices of one type.

    `partitioned`: whether the node's partition table is about devices of the type. Returns for each device the place of
    the first device of its group; its own place where it is not idle.
    """
    used, unusable = node.used, node.unusable
    idle = sum([1 << at for at, one in enumerate(devices) if one.id not in used and one.id not in unusable])
    table = node.wiring.table(devices[0].type) if partitioned else None
    if table is not None:
        return _partitions(table, tuple([one.minor for one in devices]), idle)
    links = node.wiring.links
    if links.rows == NO_LINKS.rows:
        return tuple(range(len(devices)))
    return _linked(_peers(links.rows, tuple([links.index.get(one.id, -1) for one in devices])), idle)


@lru_cache(maxsize=_MAX)
def _peers(rows: tuple[tuple[int, ...], ...], places: tuple[int, ...]) -> tuple[int, ...]:
    """The devices to which each device has a fast link, as a bit mask."""
    known = [(at, place) for at, place in enumerate(places) if place >= 0]
    return tuple(
        sum(1 << to for to, peer in known if rows[place][peer] >= LANE_WEIGHT) if place >= 0 else 0 for place in places
    )


@lru_cache(maxsize=_MAX)
def _linked(peers: tuple[int, ...], idle: int) -> tuple[int, ...]:
    groups, left = list(range(len(peers))), idle
    while left:
        first = due = left & -left
        while due:
            one = due & -due
            left &= ~one
            groups[one.bit_length() - 1] = first.bit_length() - 1
            due = (due | peers[one.bit_length() - 1]) & left
    return tuple(groups)


@lru_cache(maxsize=_MAX)
def _partitions(table: PartitionTable, minors: tuple[int, ...], idle: int) -> tuple[int, ...]:
    groups = list(range(len(minors)))
    places = {minor: at for at, minor in enumerate(minors)}
    left = {at for at in groups if idle >> at & 1}
    for size in sorted(table.best, reverse=True):
        for partition in table.best[size]:
            inside = {places.get(minor, -1) for minor in partition.minors}
            if inside <= left:
                left -= inside
                for at in inside:
                    groups[at] = min(inside)
    return tuple(groups)


CPU_ROW: Final = "(CPUs)"  # in the index, all CPUs of a node as one device; no device type has this name
NUMA_ROW: Final = "(NUMA)"  # likewise the CPUs of each NUMA node as a device
NODE_ROW: Final = "(node)"  # likewise what a node has for all its Pods, as one device
_FREE: Final = "free"
_WHOLE: Final = "whole"


def query_of(request: PodRequest) -> Query:
    """Turn a request into what a node must have: necessary for `place()`, and for plain requests sufficient."""
    wants = [want_of(container.ask) for container in request.containers]
    cpu = request.cpu
    if cpu is not None and cpu.count:
        tail = _WHOLE if cpu.required is BindPolicy.FULL_PCPUS else _FREE
        row = NUMA_ROW if cpu.numa_policy is NumaPolicy.SINGLE_NUMA_NODE else CPU_ROW
        wants.append(Want(row, 1, ((tail, min(cpu.count, MAX_AMOUNT)),)))
    return Query(tuple(dict.fromkeys(wants)))


def query_with_load(request: PodRequest, requests: Iterable[tuple[str, int]]) -> Query:
    """Turn a request into a query that also states what the Pod takes of a node.

    `requests`: what the Pod requests of a node in sum, by resource.
    """
    of_node = tuple((name, min(amount, MAX_AMOUNT)) for name, amount in requests if name in NODE_CLASSES and amount > 0)
    return replace(query_of(request), steps=_steps(request.containers), requests=of_node)


def _steps(containers: Iterable[ContainerAsk]) -> tuple[tuple[Want, ...], ...]:
    """What is held at once: each init container with the sidecars before it, then sidecars and apps."""
    steps = []
    running: tuple[Want, ...] = ()
    for container in containers:
        held = (*running, want_of(container.ask))
        if container.phase is Phase.INIT:
            steps.append(held)
        else:
            running = held
    return (*steps, running)


def want_of(ask: DeviceAsk) -> Want:
    """Turn what one container asks of one type into a want."""
    kind = ask.type
    amounts: list[tuple[str, Amount]] = []
    for tail, amount in zip(kind.tails, ask.amounts, strict=True):
        if amount is not None:
            amounts.append((tail, min(amount, MAX_AMOUNT)))
        elif tail not in (kind.memory or ()):
            amounts.append((tail, PartOf(FULL)))  # all that the device has
        elif kind.memory is not None:
            size, ratio = kind.memory
            if tail == size:
                amounts.append((tail, PartOf(ask.amount(ratio) or 0)))
            else:
                amounts.append((tail, RatioFrom(size, min(ask.amount(size) or 0, MAX_AMOUNT))))
    return Want(kind.name, ask.count, tuple(amounts))


def type_rows(
    node: NodeSnapshot, *, makes_and_groups: bool = False, partitioned: Collection[str] = ()
) -> list[TypeRow]:
    """Pack a node for the index: the devices of each type, all CPUs as one device, and each NUMA node's as one.

    `makes_and_groups`: whether the rows state these of devices. `partitioned`: the types whose devices are divided by
    the node's partition table.
    """
    by_type: dict[str, list[Device]] = {}
    for device in node.devices:
        by_type.setdefault(device.type, []).append(device)
    rows = [_devices_row(kind, devices, node) for kind, devices in by_type.items()]
    if makes_and_groups:
        rows = [
            replace(row, makes=makes_of(of), groups=groups_of(of, node, partitioned=row.type in partitioned))
            for row, of in zip(rows, by_type.values(), strict=True)
        ]
    if node.cpu is not None:
        rows += _cpu_rows(node, node.cpu)
    return rows


def makes_of(devices: Iterable[Device]) -> tuple[Make, ...]:
    """The vendor and model of each device."""
    return tuple([(device.vendor, device.model) for device in devices])


def load_row(allocatable: Mapping[str, int], requested: Mapping[str, int]) -> TypeRow:
    """Pack what a node has for all its Pods, and what of it is not requested yet; 0 of what it does not state."""
    has = {name: max(0, min(allocatable.get(name, 0), MAX_AMOUNT - 1)) for name in NODE_CLASSES}
    free = {name: min(max(total - requested.get(name, 0), 0), total) for name, total in has.items()}
    return TypeRow(NODE_ROW, tuple([Packed.of(name, [has[name]], [free[name]]) for name in has]), usable=1, in_use=0)


def _devices_row(kind: str, devices: list[Device], node: NodeSnapshot) -> TypeRow:
    used, unusable = node.used, node.unusable
    usable = in_use = 0
    bit = 1
    for device in devices:
        if device.id not in unusable:
            usable |= bit
        if device.id in used:
            in_use |= bit
        bit <<= 1
    return TypeRow(kind, packed_classes(devices, node), usable, in_use)


def packed_classes(devices: list[Device], node: NodeSnapshot) -> tuple[Packed, ...]:
    """Pack the total and free amounts of a node's devices of one type, by class (patent)."""
    tails = tuple(devices[0].capacity)
    stock = node.stock(devices, tails)
    return tuple(
        [
            Packed.of(tail, [has[at] for has, _ in stock], [free[at] for _, free in stock])
            for at, tail in enumerate(tails)
        ]
    )


def _cpu_rows(node: NodeSnapshot, cpu: CpuNode) -> list[TypeRow]:
    taken, every = node.cpu_use.taken, node.own_cpus
    return [
        _cpus_row(CPU_ROW, cpu, [every], taken),
        _cpus_row(NUMA_ROW, cpu, [every & inside for inside in cpu.topology.nodes.values()], taken),
    ]


def _cpus_row(name: str, cpu: CpuNode, sets: Sequence[int], taken: int) -> TypeRow:
    """Count for each of these sets, in total and free, its CPUs and its CPUs on whole cores."""
    whole = cpu.topology.whole
    classes = (
        Packed.of(_FREE, [cpus.bit_count() for cpus in sets], [(cpus & ~taken).bit_count() for cpus in sets]),
        Packed.of(
            _WHOLE, [whole(cpus).bit_count() for cpus in sets], [whole(cpus & ~taken).bit_count() for cpus in sets]
        ),
    )
    in_use = sum(1 << at for at, cpus in enumerate(sets) if cpus & taken)
    return TypeRow(name, classes, usable=(1 << len(sets)) - 1, in_use=in_use)
