"""What would make a Pod fit on a node that refuses it. Each change is tried with `place()`; none is guessed."""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from sys import maxsize
from typing import Final

from allocator.budget import Budget
from allocator.devices.words import describe, named
from allocator.place import MAX_STEPS, Placement, place
from allocator.preempt import PodStanding, choose_victims
from allocator.quantity import whole_mebibytes
from allocator.vocabulary.asks import ContainerAsk, DeviceAsk, PodRequest, Wishes
from allocator.vocabulary.cpunode import MILLI
from allocator.vocabulary.cpupolicy import REFUSING, NumaPolicy
from allocator.vocabulary.device import Device
from allocator.vocabulary.devicetype import FULL, DeviceType, Unit
from allocator.vocabulary.names import LIMITS
from allocator.vocabulary.node import NodeSnapshot

_MAX_NAMED: Final = 8
_ANY: Final = maxsize  # a priority above all
_VICTIM_STEPS: Final = 64_000  # nobody waits for it, and nobody is evicted


class ChangeKind(StrEnum):
    """What is changed."""

    REQUEST = "smaller request"
    WISH = "fewer conditions"
    NODE = "devices back in service"
    PODS = "Pods that leave"


@dataclass(frozen=True, slots=True)
class Change:
    """A change after which the Pod fits on the node."""

    kind: ChangeKind
    text: str  # for people, as an order: "ask for ..."
    pods: tuple[str, ...] = ()  # with PODS, the UIDs of Pods that must leave; no one of them can be left out
    priority: int = 0  # with PODS, the highest priority among them


def changes(request: PodRequest, node: NodeSnapshot, standing: Mapping[str, PodStanding]) -> list[Change]:
    """Find single changes that would make a refused Pod fit.

    `node`: now; its holdings must not include the Pod's own. In this order: smaller requests, conditions to drop,
    devices that come back, and Pods that leave.
    """
    found = [*_smaller(request, node), *_fewer_cpus(request, node), *_relaxed(request, node), *_mended(request, node)]
    return [*found, *_leaving(request, node, standing)]


def _fits(request: PodRequest, node: NodeSnapshot) -> bool:
    return isinstance(place(request, node, None, Budget(MAX_STEPS)), Placement)


def _largest(below: int, fits: Callable[[int], bool]) -> int:
    """The largest number from 1 to less than `below` that fits, if all that fit are smaller than the others; else 0."""
    return bisect_left(range(1, below), x=True, key=lambda number: not fits(number))


def _smaller(request: PodRequest, node: NodeSnapshot) -> Iterator[Change]:
    for kind in request.types():
        asks = [one for one in request.containers if one.ask.type == kind and not one.ask.every]
        if not asks:
            continue
        most = max(asks, key=lambda one: one.ask.count)
        count = _largest(most.ask.count, partial(_fits_with_count, request, node, most))
        if count:
            less = replace(most.ask, count=count)
            yield Change(ChangeKind.REQUEST, f"{named(most)}: ask for {describe(less)} instead of {describe(most.ask)}")
        if not any(kind.percent) or any(one.ask.whole and one.ask.count > 1 for one in asks):
            continue
        percent = _largest(FULL, partial(_fits_scaled, request, node, kind))
        if percent:
            texts = (
                f"{named(one)}: {describe(_part(one.ask, percent))} instead of {describe(one.ask)}" for one in asks
            )
            yield Change(ChangeKind.REQUEST, f"ask for at most {percent} % of that of each device: {'; '.join(texts)}")


def _fits_with_count(request: PodRequest, node: NodeSnapshot, of: ContainerAsk, count: int) -> bool:
    """Whether the Pod fits if one container asks for another number of devices."""
    changed = replace(of, ask=replace(of.ask, count=count))
    containers = tuple(changed if one is of else one for one in request.containers)
    return _fits(replace(request, containers=containers), node)


def _fits_scaled(request: PodRequest, node: NodeSnapshot, kind: DeviceType, percent: int) -> bool:
    """Whether the Pod fits if all containers ask for this part of what they ask of each device of a type."""
    containers = tuple(
        replace(one, ask=_part(one.ask, percent)) if one.ask.type == kind else one for one in request.containers
    )
    return _fits(replace(request, containers=containers), node)


def _part(ask: DeviceAsk, percent: int) -> DeviceAsk:
    """The ask with a part of each amount, at least 1 of what was more than nothing; bytes in whole MiB."""
    parts = [amount and max(amount * percent // FULL, 1) for amount in ask.amounts]
    amounts = tuple(
        [
            part and whole_mebibytes(part) if unit is Unit.BYTES else part
            for part, unit in zip(parts, ask.type.units, strict=True)
        ]
    )
    return replace(ask, amounts=amounts, template="")


def _fewer_cpus(request: PodRequest, node: NodeSnapshot) -> Iterator[Change]:
    cpu = request.cpu
    if cpu is None:
        return

    def with_cpus(count: int) -> PodRequest:
        milli = cpu.milli - (cpu.count - count) * MILLI
        return replace(request, cpu=replace(cpu, count=count, milli=milli, of_kubelet=()))

    count = _largest(cpu.count, lambda number: _fits(with_cpus(number), node))
    if count:
        yield Change(ChangeKind.REQUEST, f"ask for {count} CPUs instead of {cpu.count}")


def _relaxed(request: PodRequest, node: NodeSnapshot) -> Iterator[Change]:
    """Drop one condition after the other."""
    tried = [(f"drop {words}", replace(request, wishes=wishes), node) for words, wishes in _easier(request.wishes)]
    tried += _easier_cpus(request, node)
    for words, changed, on in tried:
        if _fits(changed, on):
            yield Change(ChangeKind.WISH, words)


def _easier_cpus(request: PodRequest, node: NodeSnapshot) -> Iterator[tuple[str, PodRequest, NodeSnapshot]]:
    cpu, on, lenient = request.cpu, node.cpu, NumaPolicy.BEST_EFFORT
    if cpu is not None and cpu.numa_policy in REFUSING:
        words = f"state the NUMA policy {lenient} instead of the Pod's {cpu.numa_policy}"
        yield words, replace(request, cpu=replace(cpu, numa_policy=lenient)), node
    elif on is not None and on.policy in REFUSING:
        words = f"give the node the NUMA policy {lenient} instead of {on.policy}"
        yield words, request, replace(node, cpu=replace(on, policy=lenient))
    if cpu is not None and cpu.required is not None:
        words = f"only prefer the CPU bind policy {cpu.required} (preferredCPUBindPolicy)"
        yield words, replace(request, cpu=replace(cpu, required=None)), node


def _easier(wishes: Wishes) -> Iterator[tuple[str, Wishes]]:
    for kind, hint in wishes.hints:
        for field, words in (
            ("scope", "requiredTopologyScope"),
            ("selector", "the selector"),
            ("functions", "vfSelector"),
            ("exclusive", "exclusivePolicy"),
        ):
            if getattr(hint, field) is not None:
                hints = {**dict(wishes.hints), kind: replace(hint, **{field: None})}
                yield f"{words} for {kind}", replace(wishes, hints=tuple(hints.items()))
    if wishes.joint is not None and wishes.joint.same_pcie:
        yield "the required scope SamePCIe", replace(wishes, joint=replace(wishes.joint, same_pcie=False))
    if wishes.partition is not None:
        yield "gpu-partition-spec", replace(wishes, partition=None)
    if wishes.isolation:
        yield f"the isolation {wishes.isolation}", replace(wishes, isolation="")
    if wishes.limits:
        yield f"the requirement of memory limits ({LIMITS})", replace(wishes, limits=False)


def _mended(request: PodRequest, node: NodeSnapshot) -> Iterator[Change]:
    """Put devices back in service, or take them from those that hold them beside koordgate."""
    cordoned = [one for one in node.devices if one.cordoned]
    broken = [one for one in node.devices if not one.healthy and not one.cordoned]
    for gone, words in ((cordoned, "uncordon"), (broken, "repair")):
        if gone and _fits(request, _healed(node, gone)):
            yield Change(ChangeKind.NODE, f"{words} {_listed(gone)}")
    if node.kubelet_held and _fits(request, replace(node, kubelet_held=frozenset())):
        text = f"let the Pods of the kubelet's device plugin that hold {_counted(len(node.kubelet_held))} end"
        yield Change(ChangeKind.NODE, text)
    if node.disputed and _fits(request, replace(node, disputed=frozenset())):
        about = _counted(len(node.disputed))
        text = f"correct its NodeAllocation by the annotations of its Pods, which differ about {about}"
        yield Change(ChangeKind.NODE, text)
    for held, words, left in (
        (node.claims, "ResourceClaims", replace(node, claims={})),
        (node.foreign, "Pods of other products", replace(node, foreign={})),
    ):
        if held and _fits(request, left):
            names = sorted(f"{one.namespace}/{one.name}" for one in held.values())
            yield Change(ChangeKind.NODE, f"let {words} end: {', '.join(names[:_MAX_NAMED])}")


def _counted(devices: int) -> str:
    return "1 device" if devices == 1 else f"{devices} devices"


def _healed(node: NodeSnapshot, gone: list[Device]) -> NodeSnapshot:
    back = {one.id for one in gone}
    return replace(node, devices=tuple([replace(one, healthy=True) if one.id in back else one for one in node.devices]))


def _listed(devices: list[Device]) -> str:
    names = ", ".join(f"{one.type} {one.minor}" for one in devices[:_MAX_NAMED])
    return names if len(devices) <= _MAX_NAMED else f"{names} and {len(devices) - _MAX_NAMED} more"


def _leaving(request: PodRequest, node: NodeSnapshot, standing: Mapping[str, PodStanding]) -> Iterator[Change]:
    """Find the Pods whose end would make room: of the lowest priorities, and as few as possible."""
    choosing = choose_victims(request, node, standing, _ANY, (), Budget(_VICTIM_STEPS))
    victims: tuple[str, ...] | None = None
    try:
        while True:
            next(choosing)
    except StopIteration as end:
        victims = end.value
    if victims:
        priority = max(standing[uid].priority for uid in victims)
        pods = f"{len(victims)} Pods" if len(victims) > 1 else "one Pod"
        yield Change(ChangeKind.PODS, f"wait until {pods} on it end", victims, priority)
