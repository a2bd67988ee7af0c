"""What a quota is to count for a Pod: what its containers withhold from others, under names that only quotas know.

ResourceQuota counts what a Pod requests after admission, and no resource of the domain kubernetes.io. A translated Pod
has lost the name that its author wrote (`nvidia.com/gpu`), and an exclusive policy withholds more than is requested.
Admission therefore writes, beside what is allocated, one resource per type and tail (`DeviceType.charged`):

- the amount of each tail, in its unit, for all devices of the container together;
- of a type with several tails also its plain one, in percent of a device: of each device the greatest share that is
  known to be taken, and all of it if none is known;
- with an exclusive policy, all of each device;
- of devices that are chosen beside those of another type, as many as there may be of these;
- CPUs of the Pod's own, as whole CPUs.

Kubernetes adds them up over containers as it adds up every other resource: the peak of the sums. A Pod holds the sum of
the peaks on its devices (`allocator.request.reuse`). Where that is more, the difference counts for an init container.
A decision keeps what a Pod holds within what is counted (`allocator.devices.limit`).

What a group of containers holds is divided among them by their fractions, so that the sum is the group's. A group that
its author made of containers of several steps holds its slot from its first one on: this counts for every later init
container, and for the first app.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from fractions import Fraction
from math import ceil
from typing import Any, NamedTuple

from allocator.fractions import divide_among, regions
from allocator.quantity import QuantityError, to_int
from allocator.request.cpuamounts import CPU, peak, read_cpu_amounts
from allocator.request.devices import PodReading
from allocator.request.reuse import Take, least_held
from allocator.vocabulary.asks import ContainerAsk, DeviceAsk, PodRequest
from allocator.vocabulary.cardmemory import bytes_of
from allocator.vocabulary.devicetype import FULL, DeviceType
from allocator.vocabulary.hints import ExclusiveLevel
from allocator.vocabulary.names import QUOTA_CPUS, is_quota_resource
from allocator.vocabulary.phase import Phase


@dataclass(slots=True)
class Charge:
    """What is counted for one container.

    Attributes:
        amounts: resource -> amount in the unit of the type's tail, above 0 but for those of `parts`.
        derived: resources whose amount follows from the memory of the devices in reach. If that is not known, the
            amount is the most that it can be, or is left out if there is no such bound.
        parts: those of them of which the container has a part, which may be less than 1: 0 is then counted.
        more: resources of which the container may take more than is known when the Pod is created.
        every: those of them that it takes of every device that its hint selects.
    """

    amounts: dict[str, int] = field(default_factory=dict)
    derived: set[str] = field(default_factory=set)
    parts: set[str] = field(default_factory=set)
    more: set[str] = field(default_factory=set)
    every: set[str] = field(default_factory=set)


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
    made, takes = _counted(reading, request, memory)
    for kind, taken in takes.items():
        _keep(kind, taken, made)
    charged = [bearer.charge for bearer in made]
    if reading.cpu is not None and reading.cpu.count:
        for charge, count in zip(charged, _own_cpus(spec, reading), strict=True):
            if count:
                charge.amounts[QUOTA_CPUS] = count
    return charged


def counted_of(reading: PodReading, request: PodRequest, spec: Mapping[str, Any]) -> tuple[tuple[str, int], ...]:
    """Read what quotas count of the devices of a Pod that states it.

    Left out is what the Pod does not state, and of what a container may take more than is known.

    Args:
        reading: the Pod as read, without problems.
        request: the reading's request.
        spec: the Pod's spec.

    Returns:
        (resource, amount) pairs by resource, each amount above 0 and in the unit of the type's tail.
    """
    specs = [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]
    stated = [_stated(one) for one in specs]
    if not any(stated):
        return ()
    open_ended: set[str] = set()
    known = {name for kind in request.types() for name in kind.charged.values()}
    for bearer, amounts in zip(_counted(reading, request, None)[0], stated, strict=True):
        charge = bearer.charge
        open_ended.update(charge.every, charge.derived.difference(amounts), charge.more.difference(amounts))
    phases = [container.phase for container in reading.containers]
    sums = (
        (name, peak((phase, amounts.get(name, 0)) for phase, amounts in zip(phases, stated, strict=True)))
        for name in sorted(known.difference(open_ended))
    )
    return tuple((name, amount) for name, amount in sums if amount)


def _stated(container: Mapping[str, Any]) -> dict[str, int]:
    """What a container states for quotas; an amount that cannot be read counts as not stated."""
    requests: Mapping[str, object] = (container.get("resources") or {}).get("requests") or {}
    stated = {}
    for name in filter(is_quota_resource, requests):
        with suppress(QuantityError):
            stated[name] = to_int(requests[name])
    return stated


def _counted(
    reading: PodReading, request: PodRequest, memory: int | None
) -> tuple[list[_Bearer], dict[DeviceType, list[Take]]]:
    """Find what is counted for each container; also by type, what each container or group takes, in the Pod's order."""
    asks = iter([one.ask for one in request.containers if not one.members])
    exclusive = {kind: hint.exclusive for kind, hint in reading.wishes.hints}
    beside = _beside(request)
    shared = reading.sharing or {}
    takes: dict[DeviceType, list[Take]] = {}

    def count(charge: Charge, name: str, phase: Phase, ask: DeviceAsk) -> None:
        most = max(ask.count, beside.get((name, ask.type.name), ask.count))
        part = _count(charge, ask, most, exclusive.get(ask.type.name), memory)
        takes.setdefault(ask.type, []).append(part._replace(phase=phase))

    made = [_Bearer(at, one.phase, Charge()) for at, one in enumerate(reading.containers)]
    for container, bearer in zip(reading.containers, made, strict=True):
        for one in container.requests:
            if one.type.name not in shared:
                count(bearer.charge, container.name, container.phase, next(asks))
    for group in reading.groups:
        charge = Charge()
        count(charge, group.name, group.phase, group.ask)
        _divide(charge, group, reading.groups, made, known=memory is not None)
    return made, takes


def _beside(request: PodRequest) -> dict[tuple[str, str], int]:
    """How many devices of types that are chosen beside another a container may get: one for each device of that.

    They are one for each PCIe root (`allocator.topology.joint`), and no device is on two roots.

    Returns:
        (container's name, type's name) -> number.
    """
    together = request.joint_types()
    if not together:
        return {}
    lead = together[0]
    own = {one.name: one.ask.count for one in request.containers if one.ask.type == lead}
    every = sum(own.values())  # beside which a container gets some that asks for none of the first type
    return {
        (one.name, one.ask.type.name): own.get(one.name, every)
        for one in request.containers
        if one.ask.type in together[1:]
    }


def _count(charge: Charge, ask: DeviceAsk, count: int, exclusive: ExclusiveLevel | None, memory: int | None) -> Take:
    """Count an ask for its container, and return what the container takes; the phase is left to the caller.

    Args:
        charge: of the container; it is added to.
        ask: for one type.
        count: the most devices that it may get.
        exclusive: what the Pod's hint withholds from others.
        memory: as for `charges`.
    """
    kind = ask.type
    size, ratio = kind.memory or ("", "")
    memory = memory if kind.states_memory else None
    stated = dict(zip(kind.tails, ask.amounts, strict=True))
    if exclusive is not None:
        stated = {tail: FULL if percent else None for tail, percent in zip(kind.tails, kind.percent, strict=True)}
    each: dict[str, int] = {}
    percents: list[int] = []
    for (tail, amount), percent in zip(stated.items(), kind.percent, strict=True):
        name = kind.charged[tail]
        known = amount
        if amount is None and tail == size and stated[ratio] is not None:
            charge.derived.add(name)
            known = None if memory is None else bytes_of(stated[ratio] or 0, memory)
        elif amount is None and tail == ratio:
            charge.derived.update((name, kind.charged[kind.plain]))
            known = FULL if memory is None else min(-(-(stated[size] or 0) * FULL // memory), FULL)
        elif amount is None:
            charge.more.add(name)  # all that the device has
        if known:
            charge.amounts[name] = known * count
        each[tail] = known or 0
        percents += [FULL if amount is None else amount] if percent else []
    if not kind.simple:
        shares = [each[tail] for tail, percent in zip(kind.tails, kind.percent, strict=True) if percent]
        charge.amounts[kind.charged[kind.plain]] = (max(shares, default=FULL) or FULL) * count
    if ask.every:
        charge.every.update(kind.charged.values())
    if ask.every or exclusive is ExclusiveLevel.PCIE:
        charge.more.update(kind.charged.values())
    return Take(Phase.APP, count, tuple(each.values()), tuple(percents))


def _keep(kind: DeviceType, takes: Sequence[Take], made: Sequence[_Bearer]) -> None:
    """Count for the last init container what it makes the Pod hold beyond the peak of the sums.

    What its containers take is known of all, or it is not counted. What follows from the memory of devices in reach
    makes this follow from it too.

    Args:
        kind: the type.
        takes: what containers and groups take of it, in the Pod's order.
        made: all containers in the Pod's order, with what is counted for them.
    """
    names = set(kind.charged.values())
    counted = [one for one in made if names.intersection(one.charge.amounts)]
    last = max((at for at, one in enumerate(counted) if one.phase is Phase.INIT), default=None)
    held = least_held(kind, takes) if last is not None else None
    if last is None or held is None:
        return
    raised = counted[last].charge
    unknown: set[str] = set()
    for one in counted:
        amounts = one.charge.amounts
        unknown.update(one.charge.more.difference(amounts), one.charge.derived.difference(amounts))
    for name, amount in zip(kind.charged.values(), held, strict=True):
        each = [(one.phase, one.charge.amounts.get(name, 0)) for one in counted]
        if amount > peak(each) and name not in unknown:
            beside = sum(amount for phase, amount in each[:last] if phase is Phase.SIDECAR)
            raised.amounts[name] = amount - beside
        if name in raised.amounts and any(name in one.charge.derived for one in counted):
            raised.derived.add(name)


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

    def weight(at: int) -> tuple[bool, bool, int]:
        """The greatest percentage decides; one that not all replicas know counts as the greatest."""
        name = kind.charged[kind.tails[at]]
        return kind.percent[at], name in charge.derived, charge.amounts.get(name, 0)

    most = max(asked, key=weight)
    tails = {kind.charged[tail]: at for at, tail in enumerate(kind.tails)}
    divisible = _is_divisible(group, groups, asked[most])
    later = [one for one in made if one.phase is Phase.INIT and one.place >= members[0].place]
    # A Pod without app containers comes to a webhook too: the API server refuses it afterwards.
    first_app = [one for one in made if one.phase is Phase.APP][:1]
    bearers = [made[member.place] for member in members] if divisible else [*later, *first_app]
    for name, amount in charge.amounts.items():
        parts = asked.get(tails.get(name, most), asked[most])  # an exclusive Pod also withholds what nobody asked for
        if not divisible:
            divided = [amount] * len(bearers)
        elif name in charge.derived and not known:
            divided = [ceil(amount * part) for part in parts]
        else:
            divided = divide_among(amount, members, parts)
        for one, own in zip(bearers, divided, strict=True):
            if own or name in charge.derived:
                one.charge.amounts[name] = one.charge.amounts.get(name, 0) + own
    for one in bearers:
        one.charge.derived |= charge.derived
        one.charge.parts |= charge.derived if divisible and len(members) > 1 else set()
        one.charge.more |= charge.more
        one.charge.every |= charge.every


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


def _own_cpus(spec: Mapping[str, Any], reading: PodReading) -> Iterator[int]:
    """Divide a Pod's own CPUs among the containers that run on them, so that Kubernetes' sum over them is their number.

    What the Pod states beyond its containers, as a whole or as overhead, counts for the first of these that is an app.
    """
    count = reading.cpu.count if reading.cpu is not None else 0
    containers = read_cpu_amounts(spec, []).containers
    own = [(one.phase, 0 if one.name in reading.shared else one.milli // CPU) for one in containers]
    steady = sum(cpus for phase, cpus in own if phase is not Phase.INIT)
    rest = count - steady if count > peak(own) else 0
    apps = [(one.name in reading.shared, at) for at, one in enumerate(containers) if one.phase is Phase.APP]
    _, first = min(apps, default=(False, 0))
    for at, (_, cpus) in enumerate(own):
        yield cpus + (rest if at == first else 0)
