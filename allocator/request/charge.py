"""What a quota is to count for a Pod: what its containers withhold from others, under names that only quotas know.

ResourceQuota counts what a Pod requests after admission, and no resource of the domain kubernetes.io. A translated Pod
has lost the name that its author wrote (`nvidia.com/gpu`), and an exclusive policy withholds more than is requested.
Admission therefore writes, beside what is allocated, one resource per type and tail (`DeviceType.charged`):

- the amount of each tail, in its unit, for all devices of the container together;
- of a type with several tails also its plain one, in percent of a device: of each device the greatest share that is
  known to be taken, and all of it if none is known;
- with an exclusive policy, all of each device;
- CPUs of the Pod's own, as whole CPUs.

Kubernetes adds them up over containers as it adds up every other resource.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from allocator.request.cpuamounts import CPU, peak, read_cpu_amounts
from allocator.request.devices import PodReading
from allocator.vocabulary.asks import DeviceAsk, PodRequest
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
    asks = iter(request.containers)
    hints = dict(reading.wishes.hints)
    made: list[Charge] = []
    for container in reading.containers:
        charge = Charge()
        for _ in container.requests:
            ask = next(asks).ask
            hint = hints.get(ask.type.name)
            _count(charge, ask, hint.exclusive if hint else None, memory)
        made.append(charge)
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
