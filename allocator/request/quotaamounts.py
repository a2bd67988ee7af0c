"""What quotas count of a Pod: for each container, in sum, and as a limit of what a decision may give it (pure).

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
the peaks on its devices, from the bind to its end. That is more where an init container needs devices that no other
container takes, or more of one than is left there. The difference counts for an init container. What a Pod states is
its limit (`PodRequest.most`), so that a filter, a bind and a dry run keep what it holds within what is counted.

What a group of containers holds is divided among them by their fractions, so that the sum is the group's. A group that
its author made of containers of several steps holds its slot from its first one on: this counts for every later init
container, and for the first app.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from fractions import Fraction
from math import ceil
from typing import Any, Final, NamedTuple

from allocator.fractions import divide_among, regions
from allocator.quantity import QuantityError, to_int
from allocator.request.cpuamounts import CPU, peak, read_cpu_amounts
from allocator.request.devices import PodReading
from allocator.request.statedamounts import MAX_COUNT
from allocator.vocabulary.asks import ContainerAsk, DeviceAsk, ExclusiveLevel, PodRequest
from allocator.vocabulary.cardmemory import bytes_of
from allocator.vocabulary.devicetype import FULL, DeviceType
from allocator.vocabulary.holdings import Share
from allocator.vocabulary.names import QUOTA_CPUS, Phase, is_quota_resource

Amounts = tuple[int, ...]
_MAX_DEVICES: Final = MAX_COUNT  # of any node
_UNLIMITED: Final = 2**100


@dataclass(slots=True)
class Charge:
    """What is counted for one container."""

    phase: Phase = field(default=Phase.APP, compare=False)
    amounts: dict[str, int] = field(default_factory=dict)  # by resource, above 0 but for those of `parts`
    # Those whose amount follows from the memory of the devices in reach. If that is not known, the amount is the most
    # that it can be, or is left out if there is no such bound.
    derived: set[str] = field(default_factory=set)
    parts: set[str] = field(default_factory=set)  # those of them that are a part of a group's, and may be 0
    more: set[str] = field(default_factory=set)  # of which it may take more than is known when the Pod is created
    every: set[str] = field(default_factory=set)  # that it takes of every device that its hint selects

    @property
    def unknown(self) -> set[str]:
        """Resources of which the container may take any amount."""
        return (self.more | self.derived).difference(self.amounts)


class Take(NamedTuple):
    """What one container or group takes of a type."""

    phase: Phase
    devices: int
    each: Amounts  # of each device, one for each of the type's tails
    # Of each device, one for each tail in percent: as in `each`, or the most that it can be. They say which containers
    # may share a device, and must not depend on what a replica knows of the cluster's devices.
    percents: Amounts


# What is counted


def charges(
    reading: PodReading, request: PodRequest, spec: Mapping[str, Any], memory: int | None = None
) -> list[Charge]:
    """Find what is counted for each container, in the order of `reading.containers`.

    `reading` has no problems, and `request` is its request. `memory`: bytes of every GPU that the Pod could land on;
    None if they differ or none is known.
    """
    counted, takes = _counted(reading, request, memory)
    for kind, taken in takes.items():
        _count_held(kind, taken, counted)
    if reading.cpu is not None and reading.cpu.count:
        for charge, count in zip(counted, _own_cpus(spec, reading, reading.cpu.count), strict=True):
            if count:
                charge.amounts[QUOTA_CPUS] = count
    return counted


def counted_of(reading: PodReading, request: PodRequest, spec: Mapping[str, Any]) -> tuple[tuple[str, int], ...]:
    """Read what quotas count of the devices of a Pod that states it, by resource.

    Left out is what the Pod does not state, and of what a container may take more than is known.
    """
    stated = [_stated(one) for one in (*(spec.get("initContainers") or ()), *(spec.get("containers") or ()))]
    if not any(stated):
        return ()
    counted = list(zip(_counted(reading, request, None)[0], stated, strict=True))
    known = {name for kind in request.types() for name in kind.charged.values()}
    for charge, amounts in counted:
        known -= charge.every | (charge.derived | charge.more).difference(amounts)
    sums = ((name, peak((one.phase, amounts.get(name, 0)) for one, amounts in counted)) for name in sorted(known))
    return tuple((name, amount) for name, amount in sums if amount)


def counted_in_all(request: PodRequest, memory: int | None = None) -> dict[str, int | None]:
    """Find what quotas count of a Pod as a whole, by resource; None for one of which it may take more than is known.

    `memory`: as in `charges`.
    """
    exclusive = {kind: hint.exclusive for kind, hint in request.wishes.hints}
    beside = _beside(request)
    takes: dict[DeviceType, list[Take]] = {}
    each: list[Charge] = []
    for one in request.containers:
        charge, ask = Charge(one.phase), one.ask
        most = max(ask.count, beside.get((one.name, ask.type.name), ask.count))
        takes.setdefault(ask.type, []).append(_count(charge, ask, most, exclusive.get(ask.type.name), memory))
        each.append(charge)
    for kind, taken in takes.items():
        _count_held(kind, taken, each)
    unknown = {name for charge in each for name in charge.more | charge.unknown}
    names = {name for charge in each for name in charge.amounts}
    counted: dict[str, int | None] = {
        name: peak((charge.phase, charge.amounts.get(name, 0)) for charge in each) for name in sorted(names - unknown)
    }
    if request.cpu is not None and request.cpu.count:
        counted[QUOTA_CPUS] = request.cpu.count
    return counted | dict.fromkeys(sorted(unknown))


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
) -> tuple[list[Charge], dict[DeviceType, list[Take]]]:
    """Find what is counted for each container; also by type, what each container or group takes, in the Pod's order."""
    asks = iter([one.ask for one in request.containers if not one.members])
    exclusive = {kind: hint.exclusive for kind, hint in reading.wishes.hints}
    beside = _beside(request)
    takes: dict[DeviceType, list[Take]] = {}

    def count(charge: Charge, name: str, ask: DeviceAsk) -> None:
        most = max(ask.count, beside.get((name, ask.type.name), ask.count))
        take = _count(charge, ask, most, exclusive.get(ask.type.name), memory)
        takes.setdefault(ask.type, []).append(take)

    counted = [Charge(one.phase) for one in reading.containers]
    for container, charge in zip(reading.containers, counted, strict=True):
        for one in container.requests:
            if one.type.name not in (reading.sharing or {}):
                count(charge, container.name, next(asks))
    for group in reading.groups:
        charge = Charge(group.phase)
        count(charge, group.name, group.ask)
        _divide(charge, group, reading.groups, counted, known=memory is not None)
    return counted, takes


def _beside(request: PodRequest) -> dict[tuple[str, str], int]:
    """How many devices a container may get of a type that is chosen beside another: one for each device of that.

    They are one for each PCIe root (`allocator.topology.sets`), and no device is on two roots. The keys are names of
    the container and the type.
    """
    together = request.joint_types()
    if not together:
        return {}
    own = {one.name: one.ask.count for one in request.containers if one.ask.type == together[0]}
    every = sum(own.values())  # beside which a container gets some that asks for none of the first type
    rest = [one for one in request.containers if one.ask.type in together[1:]]
    return {(one.name, one.ask.type.name): own.get(one.name, every) for one in rest}


def _count(charge: Charge, ask: DeviceAsk, count: int, exclusive: ExclusiveLevel | None, memory: int | None) -> Take:
    """Count an ask for its container, which may get `count` devices, and return what it takes."""
    kind = ask.type
    size, ratio = kind.memory or ("", "")
    memory = memory if kind.states_memory else None
    stated = dict(zip(kind.tails, ask.amounts, strict=True))
    if exclusive is not None:
        stated = {tail: FULL if percent else None for tail, percent in zip(kind.tails, kind.percent, strict=True)}
    each: list[int] = []
    for tail, amount in stated.items():
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
        each.append(known or 0)
    if not kind.simple:
        charge.amounts[kind.charged[kind.plain]] = (kind.counted(each)[0] or FULL) * count
    if ask.every:
        charge.every.update(kind.charged.values())
    if ask.every or exclusive is ExclusiveLevel.PCIE:
        charge.more.update(kind.charged.values())
    percents = [amount for amount, percent in zip(stated.values(), kind.percent, strict=True) if percent]
    return Take(charge.phase, count, tuple(each), tuple(FULL if one is None else one for one in percents))


def _count_held(kind: DeviceType, takes: Sequence[Take], every: Iterable[Charge]) -> None:
    """Count for the last init container what it makes the Pod hold of a type beyond the peak of the sums.

    What its containers take is known of all, or it is not counted. What follows from the memory of devices in reach
    makes this follow from it too.
    """
    counted = [one for one in every if not one.amounts.keys().isdisjoint(kind.charged.values())]
    last = max((at for at, one in enumerate(counted) if one.phase is Phase.INIT), default=None)
    held = least_held(kind, takes) if last is not None else None
    if last is None or held is None:
        return
    raised = counted[last]
    unknown = set[str]().union(*[one.unknown for one in counted])
    for name, amount in zip(kind.charged.values(), held, strict=True):
        each = [(one.phase, one.amounts.get(name, 0)) for one in counted]
        if amount > peak(each) and name not in unknown:
            raised.amounts[name] = amount - sum(beside for phase, beside in each[:last] if phase is Phase.SIDECAR)
        if name in raised.amounts and any(name in one.derived for one in counted):
            raised.derived.add(name)


def _divide(
    charge: Charge, group: ContainerAsk, groups: Sequence[ContainerAsk], every: Sequence[Charge], *, known: bool
) -> None:
    """Divide what is counted for a group among containers, so that Kubernetes' sum over them is what the groups hold.

    What follows from the memory of devices in reach is a bound if that is not `known`. It is then rounded up for each
    container, so that a replica that knows the memory writes no more.
    """
    members, kind = group.members, group.ask.type
    names = [kind.charged[tail] for tail in kind.tails]
    parts = {name: [member.parts[at] or Fraction(0) for member in members] for at, name in enumerate(names)}
    asked = {name: of for name, of in parts.items() if any(of)}
    percent = dict(zip(names, kind.percent, strict=True))
    # The greatest percentage decides; one that not all replicas know counts as the greatest.
    most = max(asked, key=lambda name: (percent[name], name in charge.derived, charge.amounts.get(name, 0)))
    divisible = _is_divisible(group, groups, asked[most])
    # A Pod without app containers comes to a webhook too: the API server refuses it afterwards.
    first_app = [one for one in every if one.phase is Phase.APP][:1]
    later = [one for one in every[members[0].place :] if one.phase is Phase.INIT]
    bearers = [every[member.place] for member in members] if divisible else [*later, *first_app]
    for name, amount in charge.amounts.items():
        of = asked.get(name, asked[most])  # an exclusive Pod also withholds what nobody asked for
        if not divisible:
            divided = [amount] * len(bearers)
        elif name in charge.derived and not known:
            divided = [ceil(amount * part) for part in of]
        else:
            divided = divide_among(amount, members, of)
        for one, own in zip(bearers, divided, strict=True):
            if own or name in charge.derived:
                one.amounts[name] = one.amounts.get(name, 0) + own
    for one in bearers:
        one.derived |= charge.derived
        one.parts |= charge.derived if divisible and len(members) > 1 else set()
        one.more |= charge.more
        one.every |= charge.every


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


def _own_cpus(spec: Mapping[str, Any], reading: PodReading, count: int) -> Iterator[int]:
    """Divide a Pod's own CPUs among the containers that run on them, so that Kubernetes' sum over them is their number.

    What the Pod states beyond its containers, as a whole or as overhead, counts for the first of these that is an app.
    """
    containers = read_cpu_amounts(spec, []).containers
    own = [(one.phase, 0 if one.name in reading.shared else one.milli // CPU) for one in containers]
    steady = sum(cpus for phase, cpus in own if phase is not Phase.INIT)
    rest = count - steady if count > peak(own) else 0
    apps = [(one.name in reading.shared, at) for at, one in enumerate(containers) if one.phase is Phase.APP]
    _, first = min(apps, default=(False, 0))
    for at, (_, cpus) in enumerate(own):
        yield cpus + (rest if at == first else 0)


# What a Pod holds


def least_held(kind: DeviceType, takes: Sequence[Take]) -> Amounts | None:
    """Find what a Pod holds of a type in sum, if all devices are free.

    That depends on which containers share devices. They are divided in the better of two ways: sidecars and apps
    together on as few devices as possible, or each on devices of its own. Init containers then take the devices on
    which the Pod's peak grows least. Returns one amount for each of `kind.charged`, in its order; None if the Pod needs
    more devices than any node has.
    """
    shares = len(takes[0].percents)
    ways = [peaks for packed in (True, False) if (peaks := _peaks(takes, shares, packed=packed)) is not None]
    if not ways:
        return None
    best = min(ways, key=lambda peaks: sum(max(one[:shares], default=FULL) for one in peaks))
    return tuple(map(sum, zip(*[kind.counted(one[shares:]) for one in best], strict=True)))


def _peaks(takes: Sequence[Take], shares: int, *, packed: bool) -> list[Amounts] | None:
    """What a Pod holds of each device: first so many percents, which decide what is shared, then each amount."""
    peaks: list[Amounts] = []  # at first what sidecars and apps take
    places: dict[int, list[int]] = {}
    for at, take in enumerate(takes):
        if take.phase is not Phase.INIT:
            fitting = [number for number, taken in enumerate(peaks) if _fits(taken, take)] if packed else []
            places[at] = _devices_of(take, fitting, peaks)
            for number in places[at]:
                peaks[number] = _sum(peaks[number], take)
        if len(peaks) > _MAX_DEVICES:
            return None
    running = [(0,) * len(one) for one in peaks]
    for at, take in enumerate(takes):
        if take.phase is Phase.INIT:
            grown = [
                (_growth(peaks[number][:shares], _sum(now, take)[:shares]), number)
                for number, now in enumerate(running)
                if _fits(now, take)
            ]
            found = _devices_of(take, [number for _, number in sorted(grown)], peaks)
            running += peaks[len(running) :]
            for number in found:
                peaks[number] = _most(peaks[number], _sum(running[number], take))
        elif take.phase is Phase.SIDECAR:
            for number in places[at]:
                running[number] = _sum(running[number], take)
    return peaks if len(peaks) <= _MAX_DEVICES else None


def _devices_of(take: Take, known: Sequence[int], devices: list[Amounts]) -> list[int]:
    """The first of the known devices, and new ones if these are too few."""
    new = take.devices - len(known)
    found = [*known[: take.devices], *range(len(devices), len(devices) + new)]
    devices += [(0,) * (len(take.percents) + len(take.each))] * new
    return found


def _fits(taken: Amounts, take: Take) -> bool:
    return all(a + b <= FULL for a, b in zip(taken, take.percents, strict=False))


def _sum(taken: Amounts, take: Take) -> Amounts:
    return tuple([a + b for a, b in zip(taken, take.percents + take.each, strict=True)])


def _most(one: Amounts, other: Amounts) -> Amounts:
    return tuple([max(a, b) for a, b in zip(one, other, strict=True)])


def _growth(peak: Amounts, step: Amounts) -> tuple[int, int]:
    """How much a step of a Pod's life raises the peak of a device: its greatest share, then the sum of its shares."""
    grown = _most(peak, step)
    return max(grown, default=0) - max(peak, default=0), sum(grown) - sum(peak)


# What a Pod may hold


class TypeLimit(NamedTuple):
    """What a Pod may hold in sum of the devices of one type: one amount for each of `kind.charged`, in its order."""

    kind: DeviceType
    most: Amounts

    def exceeded(self, amounts: Sequence[int]) -> Iterator[tuple[str, int, int]]:
        """Name each resource of which these amounts are more than may be held; with both."""
        for name, amount, most in zip(self.kind.charged.values(), amounts, self.most, strict=True):
            if amount > most:
                yield name, amount, most


def limit_of(kind: DeviceType, request: PodRequest) -> TypeLimit | None:
    """Find what a Pod may hold of a type; None if that is not limited."""
    most = dict(request.most)
    if most.keys().isdisjoint(kind.charged.values()):
        return None
    return TypeLimit(kind, tuple([most.get(name, _UNLIMITED) for name in kind.charged.values()]))


def beyond(request: PodRequest, shares: Iterable[Share]) -> str:
    """Say which limit of a Pod these shares, all that it would hold, exceed together; "" if none."""
    held = list(shares)
    for kind in request.types():
        limit = limit_of(kind, request)
        of = [[share.amounts.get(tail, 0) for tail in kind.tails] for share in held if share.type == kind.name]
        if limit is not None and of:
            for name, amount, most in limit.exceeded(tuple(map(sum, zip(*map(kind.counted, of), strict=True)))):
                return f"{name} {amount} is more than quotas count of the Pod ({most})"
    return ""
