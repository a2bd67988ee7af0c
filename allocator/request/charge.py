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
"""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from allocator.quantity import QuantityError, to_int
from allocator.request.cpuamounts import CPU, peak, read_cpu_amounts
from allocator.request.devices import PodReading
from allocator.request.reuse import Take, least_held
from allocator.vocabulary.asks import DeviceAsk, PodRequest
from allocator.vocabulary.devicetype import FULL, DeviceType
from allocator.vocabulary.hints import ExclusiveLevel
from allocator.vocabulary.names import QUOTA_CPUS, is_quota_resource
from allocator.vocabulary.phase import Phase


@dataclass(slots=True)
class Charge:
    """What is counted for one container.

    Attributes:
        amounts: resource -> amount, above 0, in the unit of the type's tail.
        derived: resources whose amount follows from the memory of the devices in reach. If that is not known, the
            amount is the most that it can be, or is left out if there is no such bound.
        more: resources of which the container may take more than is known when the Pod is created.
        every: those of them that it takes of every device that its hint selects.
    """

    amounts: dict[str, int] = field(default_factory=dict)
    derived: set[str] = field(default_factory=set)
    more: set[str] = field(default_factory=set)
    every: set[str] = field(default_factory=set)


_Asking = list[tuple[Charge, Take]]
"""The charges of the containers that ask for a type, in the Pod's order, and what each takes of it."""


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
    made, asking = _by_container(reading, request, memory)
    for kind, asked in asking.items():
        _keep(kind, asked)
    if reading.cpu is not None and reading.cpu.count:
        for charge, count in zip(made, _own_cpus(spec, reading.cpu.count), strict=True):
            if count:
                charge.amounts[QUOTA_CPUS] = count
    return made


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
    for charge, amounts in zip(_by_container(reading, request, None)[0], stated, strict=True):
        open_ended |= charge.every | (charge.derived | charge.more).difference(amounts)
    phases = [container.phase for container in reading.containers]
    sums = (
        (name, peak((phase, amounts.get(name, 0)) for phase, amounts in zip(phases, stated, strict=True)))
        for name in sorted(known - open_ended)
    )
    return tuple((name, amount) for name, amount in sums if amount > 0)


def _stated(container: Mapping[str, Any]) -> dict[str, int]:
    """What a container states for quotas; an amount that cannot be read counts as not stated."""
    requests: Mapping[str, object] = (container.get("resources") or {}).get("requests") or {}
    stated = {}
    for name in filter(is_quota_resource, requests):
        with suppress(QuantityError):
            stated[name] = to_int(requests[name])
    return stated


def _by_container(
    reading: PodReading, request: PodRequest, memory: int | None
) -> tuple[list[Charge], dict[DeviceType, _Asking]]:
    """Find what is counted for each container by itself; also by type, with what each container takes."""
    asks = iter(request.containers)
    hints = dict(reading.wishes.hints)
    beside = _beside(request)
    made: list[Charge] = []
    asking: dict[DeviceType, _Asking] = {}
    for container in reading.containers:
        charge = Charge()
        for _ in container.requests:
            ask = next(asks).ask
            hint = hints.get(ask.type.name)
            count = max(ask.count, beside.get((container.name, ask.type.name), 0))
            part = _count(charge, ask, count, hint.exclusive if hint else None, memory)
            asking.setdefault(ask.type, []).append((charge, part._replace(phase=container.phase)))
        made.append(charge)
    return made, asking


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
            known = None if memory is None else memory * (stated[ratio] or 0) // FULL
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


def _keep(kind: DeviceType, asked: _Asking) -> None:
    """Count for the last init container what it makes the Pod hold beyond the peak of the sums.

    What its containers take is known of all, or it is not counted. What follows from the memory of devices in reach
    makes this follow from it too.
    """
    last = max((at for at, (_, part) in enumerate(asked) if part.phase is Phase.INIT), default=None)
    held = least_held(kind, [part for _, part in asked]) if last is not None and len(asked) > 1 else None
    if last is None or held is None:
        return
    raised = asked[last][0]
    unknown: set[str] = set()
    for charge, _ in asked:
        unknown |= (charge.more | charge.derived).difference(charge.amounts)
    for name, amount in zip(kind.charged.values(), held, strict=True):
        each = [(part.phase, charge.amounts.get(name, 0)) for charge, part in asked]
        if amount > peak(each) and name not in unknown:
            beside = sum(amount for phase, amount in each[:last] if phase is Phase.SIDECAR)
            raised.amounts[name] = amount - beside
        if name in raised.amounts and any(name in charge.derived for charge, _ in asked):
            raised.derived.add(name)


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
