"""What a quota is to count for a Pod: what its containers withhold from others, under names that only quotas know.

ResourceQuota counts what a Pod requests after admission, and no resource of the domain kubernetes.io. A translated Pod
has lost the name that its author wrote (`nvidia.com/gpu`), and an exclusive policy withholds more than is requested.
Admission therefore writes, beside what is allocated, one resource per type and tail (`DeviceType.charged`):

- the amount of each tail, in its unit, for all devices of the container together;
- of a type with several tails also its plain one, in percent of a device: of each device the greatest share that is
  known to be taken, and all of it if none is known;
- with an exclusive policy, all of each device;
- CPUs of the Pod's own, as whole CPUs.

Kubernetes adds them up over containers as it adds up every other resource. What a group of containers holds is divided
among them by their fractions, so that the sum is the group's. A group that its author made of containers of several
steps holds its slot from its first one on: this counts for every later init container, and for the first app.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import ceil
from typing import Any, NamedTuple

from allocator.fractions import divide_among, regions
from allocator.request.cpuamounts import CPU, peak, read_cpu_amounts
from allocator.request.devices import PodReading
from allocator.vocabulary.asks import ContainerAsk, DeviceAsk, PodRequest
from allocator.vocabulary.devicetype import FULL
from allocator.vocabulary.hints import ExclusiveLevel
from allocator.vocabulary.names import QUOTA_CPUS
from allocator.vocabulary.phase import Phase


@dataclass(slots=True)
class Charge:
    """What is counted for one container.

    Attributes:
        amounts: resource -> amount, above 0, in the unit of the type's tail.
        derived: resources whose amount follows from the memory of the devices in reach. If that is not known, the
            amount is the most that it can be, or is left out if there is no such bound.
        more: resources of which the container may take more than is known when the Pod is created.
    """

    amounts: dict[str, int] = field(default_factory=dict)
    derived: set[str] = field(default_factory=set)
    more: set[str] = field(default_factory=set)


class _Bearer(NamedTuple):
    """A container: its place in the Pod, when it runs, and what is counted for it."""

    place: int
    phase: Phase
    charge: Charge


def charges(
    reading: PodReading, request: PodRequest, spec: Mapping[str, Any], memory: int | None = None
) -> list[Charge]:
    """Find what is counted for each container.

    Args:
        reading: the Pod as read, without problems.
        request: the reading's request.
        spec: the Pod's spec.
        memory: bytes of every GPU that the Pod could land on; None if they differ or none is known.

    Returns:
        One for each container, in the order of `reading.containers`.
    """
    asks = iter([one.ask for one in request.containers if not one.members])
    hints = dict(reading.wishes.hints)
    exclusive = {kind: hint.exclusive for kind, hint in hints.items()}
    shared = reading.sharing or {}
    made: list[Charge] = []
    for container in reading.containers:
        charge = Charge()
        for one in container.requests:
            if one.type.name not in shared:
                ask = next(asks)
                _count(charge, ask, exclusive.get(ask.type.name), memory)
        made.append(charge)
    bearers = [_Bearer(at, one.phase, own) for at, (one, own) in enumerate(zip(reading.containers, made, strict=True))]
    for group in reading.groups:
        charge = Charge()
        _count(charge, group.ask, exclusive.get(group.ask.type.name), memory)
        _divide(charge, group, reading.groups, bearers, known=memory is not None)
    if reading.cpu is not None and reading.cpu.count:
        for charge, count in zip(made, _own_cpus(spec, reading.cpu.count), strict=True):
            if count:
                charge.amounts[QUOTA_CPUS] = count
    return made


def _count(charge: Charge, ask: DeviceAsk, exclusive: ExclusiveLevel | None, memory: int | None) -> None:
    kind = ask.type
    size, ratio = kind.memory or ("", "")
    memory = memory if kind.states_memory else None
    stated = dict(zip(kind.tails, ask.amounts, strict=True))
    if exclusive is not None:
        stated = {tail: FULL if percent else None for tail, percent in zip(kind.tails, kind.percent, strict=True)}
    shares: list[int] = []
    for (tail, amount), percent in zip(stated.items(), kind.percent, strict=True):
        name = kind.charged[tail]
        each = amount
        if amount is None and tail == size and stated[ratio] is not None:
            charge.derived.add(name)
            each = None if memory is None else memory * (stated[ratio] or 0) // FULL
        elif amount is None and tail == ratio:
            charge.derived.update((name, kind.charged[kind.plain]))
            each = FULL if memory is None else min(-(-(stated[size] or 0) * FULL // memory), FULL)
        elif amount is None:
            charge.more.add(name)  # all that the device has
        if each:
            charge.amounts[name] = each * ask.count
            shares += [each] if percent else []
    if not kind.simple:
        charge.amounts[kind.charged[kind.plain]] = max(shares, default=FULL) * ask.count
    if ask.every or exclusive is ExclusiveLevel.PCIE:
        charge.more.update(kind.charged.values())


def _divide(
    charge: Charge, group: ContainerAsk, groups: Sequence[ContainerAsk], made: Sequence[_Bearer], *, known: bool
) -> None:
    """Divide what is counted for a group among containers, so that Kubernetes' sum over them is what the groups hold.

    Args:
        charge: of the group. What follows from the memory of devices in reach is a bound if that is not known. It is
            then rounded up for each container, so that a replica that knows the memory writes no more.
        group: the group.
        groups: all groups of the Pod.
        made: all containers in the Pod's order, with their charges, which are added to.
        known: whether the memory of devices in reach is known.
    """
    members, kind = group.members, group.ask.type
    every = {at: [member.parts[at] or Fraction(0) for member in members] for at in range(len(kind.tails))}
    asked = {at: parts for at, parts in every.items() if any(parts)}
    most = max(asked, key=lambda at: charge.amounts.get(kind.charged[kind.tails[at]], 0) if kind.percent[at] else -1)
    tails = {kind.charged[tail]: at for at, tail in enumerate(kind.tails)}
    divisible = _is_divisible(group, groups, asked[most])
    later = [one for one in made if one.phase is Phase.INIT and one.place >= members[0].place]
    first_app = next(one for one in made if one.phase is Phase.APP)
    bearers = [made[member.place] for member in members] if divisible else [*later, first_app]
    for name, amount in charge.amounts.items():
        parts = asked.get(tails.get(name, most), asked[most])  # an exclusive Pod also withholds what nobody asked for
        if not divisible:
            divided = [amount] * len(bearers)
        elif name in charge.derived and not known:
            divided = [ceil(amount * part) for part in parts]
        else:
            divided = divide_among(amount, members, parts)
        for one, own in zip(bearers, divided, strict=True):
            if own:
                one.charge.amounts[name] = one.charge.amounts.get(name, 0) + own
    for one in bearers:
        one.charge.derived |= charge.derived
        one.charge.more |= charge.more


def _is_divisible(group: ContainerAsk, groups: Sequence[ContainerAsk], parts: Sequence[Fraction]) -> bool:
    """Whether Kubernetes' sum over a group's members, by their parts, is what the group holds.

    It is not if the group holds something for members that run later, while others begin to hold something of their
    own; nor if its members never run all at the same time and reuse nothing.
    """
    members, kind = group.members, group.ask.type
    if group.phase is not Phase.SIDECAR or len(members) == 1:
        return True
    first = members[0].place
    if any(one.ask.type == kind and one.members[0].place > first for one in groups):
        return False
    return any(sum(parts[at] for at in region) == 1 for region in regions([one.phase for one in members]))


def _own_cpus(spec: Mapping[str, Any], count: int) -> Iterator[int]:
    """Divide a Pod's CPUs among its containers, so that Kubernetes' sum over them is `count`.

    What the Pod states beyond its containers, as a whole or as overhead, counts for the first app.
    """
    containers = read_cpu_amounts(spec, []).containers
    own = [(one.phase, (one.cpu[0] if one.cpu[0] is not None else one.cpu[1] or 0) // CPU) for one in containers]
    steady = sum(cpus for phase, cpus in own if phase is not Phase.INIT)
    rest = count - steady if count > peak(own) else 0
    for phase, cpus in own:
        more, rest = (rest, 0) if phase is Phase.APP else (0, rest)
        yield cpus + more
