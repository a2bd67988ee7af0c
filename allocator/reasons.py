"""Why a node refuses a Pod, device by device; what would make it fit; and what a Pod was given there, in one line.

Each change that would make it fit is tried with `place()`; none is guessed.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from itertools import islice
from sys import maxsize
from typing import Final, NamedTuple

from allocator.budget import UNLIMITED, Budget
from allocator.devices.explain import hindrances, shortage
from allocator.devices.offer import Demand, Offer
from allocator.devices.options import meant
from allocator.devices.search import TypeSearch
from allocator.devices.terms import Terms, terms_of
from allocator.devices.words import describe, describe_amounts, named
from allocator.place import MAX_STEPS, Placement, place
from allocator.preempt import PodStanding, choose_victims
from allocator.quantity import whole_mebibytes
from allocator.vocabulary.asks import ContainerAsk, DeviceAsk, PodRequest, Wishes
from allocator.vocabulary.cardmemory import askable
from allocator.vocabulary.cpunode import MILLI, REFUSING, NumaPolicy
from allocator.vocabulary.cputopology import format_cpuset
from allocator.vocabulary.device import Device
from allocator.vocabulary.devicetype import FULL, DeviceType, DeviceTypes, Unit
from allocator.vocabulary.holdings import Holding, Share
from allocator.vocabulary.names import LIMITS, Phase
from allocator.vocabulary.node import NodeSnapshot


class CardReason(NamedTuple):
    """What one device has for a Pod."""

    device: Device
    why: str  # why it can serve none of the Pod's containers, for people; "" if it can serve one
    # how much of it the least demanding container lacks, in percent of the device, rounded up; 0 if it can serve one,
    # and 100 if the device is out of reach whatever is free of it
    lack: int


def card_reasons(request: PodRequest, node: NodeSnapshot) -> list[CardReason]:
    """Judge each device of the types that a Pod requests, as the decision does for a single device.

    A node may refuse the Pod although enough single devices can serve it: they may not belong together, or be too few
    for all containers. `place()` says so.
    `node`: now; its holdings must not include the Pod's own. The order is that of the request's types, then the node's.
    """
    found: list[CardReason] = []
    for kind in request.types():
        search = _search(kind, request, node)
        found += _of_type(search, [device for device in node.devices if device.type == kind.name])
    return found


def lack(request: PodRequest, node: NodeSnapshot) -> int:
    """How far the devices and CPUs of a node are from a Pod's request, in percent of a device or CPU.

    For each container, the hardest to serve first, the devices with the least lack are counted, as many as it asks for;
    of equal ones those with the least free. What it takes of them is not free for the next container. A device that
    does not exist lacks 100. Init containers reuse what the others hold, and do not count; if there are no others, the
    one that lacks most counts. Each CPU of its own that the Pod asks for and that is not free counts 100. 0 says that
    amounts suffice, not that the Pod fits: its devices may have to be together.
    """
    total = sum(_type_lack(_search(kind, request, node)) for kind in request.types())
    cpu = request.cpu
    if cpu is not None and node.cpu is not None:
        total += FULL * max(cpu.count - node.free_cpus.bit_count(), 0)
    return total


def _search(kind: DeviceType, request: PodRequest, node: NodeSnapshot) -> TypeSearch:
    return TypeSearch(terms_of(kind, request, node, None, None), UNLIMITED)  # each device once for each container


def _of_type(search: TypeSearch, known: Sequence[Device]) -> list[CardReason]:
    serving = {option.id for demand in search.demands for option in search.options(demand)}
    offers = {offer.device.id: offer for offer in search.offers}
    asks = list(dict.fromkeys(one.ask for one in search.terms.asks))
    return [
        CardReason(device, "", 0)
        if device.id in serving
        else _refused(device, offers.get(device.id), asks, search.terms)
        for device in known
    ]


def _refused(device: Device, offer: Offer | None, asks: Sequence[DeviceAsk], terms: Terms) -> CardReason:
    for hindrance in hindrances(terms):
        if hindrance.holds(device):
            why = device.why_not if hindrance.words == "unhealthy" and device.why_not else hindrance.words
            return CardReason(device, why, FULL)
    if offer is None:
        return CardReason(device, _apart(device, terms), FULL)
    ask = min(asks, key=lambda one: shortage(offer, one, terms))
    if not meant((offer,), ask):
        return CardReason(device, f"of model {device.model or 'unknown'}", FULL)
    asked = describe_amounts(terms.kind, terms.amounts(offer.capacity, ask), ask.amounts)
    left = askable(device, terms.kind.tails, offer.capacity, offer.free)
    free = describe_amounts(terms.kind, left) if any(left) else "nothing"
    return CardReason(device, f"{free} free, {asked} asked", shortage(offer, ask, terms))


def _apart(device: Device, terms: Terms) -> str:
    """Why a usable device is not offered: a Pod has it, or its PCIe root, to itself, or this Pod would not share it."""
    if device.id in terms.node.unshared:
        return "held by a Pod that does not share it"
    if device.id in terms.node.used and (terms.alone or terms.unshared):
        return "in use, and the Pod asks for devices that it shares with nobody"
    if terms.alone or terms.node.alone:
        return "on a PCIe root that a Pod has, or would have, for itself"
    return "without a free virtual function that the hint selects"


def _type_lack(search: TypeSearch) -> int:
    """What the devices of a type lack for all containers; init containers run one after the other."""
    lasting = [demand for demand in search.demands if demand.container.phase is not Phase.INIT]
    if lasting:
        return _together(search, lasting)
    return max(_together(search, [demand]) for demand in search.demands)


def _together(search: TypeSearch, demands: Sequence[Demand]) -> int:
    """What the devices lack for containers that run together: what one takes is not free for the next."""
    terms = search.terms
    barred = list(hindrances(terms))
    offers = [offer for offer in search.offers if not any(one.holds(offer.device) for one in barred)]
    left = [offer.free for offer in offers]
    total = 0
    for demand in demands:
        ask = demand.container.ask
        each = sorted(
            (shortage(offer, ask, terms, free), free, offer.device.order, at)
            for at, (offer, free) in enumerate(zip(offers, left, strict=True))
        )
        taken = each[: search.count(ask)]
        total += sum(one for one, *_ in taken) + FULL * (search.count(ask) - len(taken))
        for *_, at in taken:
            amounts = terms.amounts(offers[at].capacity, ask)
            left[at] = tuple([max(free - much, 0) for free, much in zip(left[at], amounts, strict=True)])
    return total


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
    told = partial(describe, typed=True)
    for kind in request.types():
        asks = [one for one in request.containers if one.ask.type == kind and not one.ask.every]
        if not asks:
            continue
        most = max(asks, key=lambda one: one.ask.count)
        count = _largest(most.ask.count, partial(_fits_with_count, request, node, most))
        if count:
            less = replace(most.ask, count=count)
            yield Change(ChangeKind.REQUEST, f"{named(most)}: ask for {told(less)} instead of {told(most.ask)}")
        if not any(kind.percent) or any(one.ask.whole and one.ask.count > 1 for one in asks):
            continue
        percent = _largest(FULL, partial(_fits_scaled, request, node, kind))
        if percent:
            texts = (f"{named(one)}: {told(_part(one.ask, percent))} instead of {told(one.ask)}" for one in asks)
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
        pods = f"{len(victims)} Pods on it end" if len(victims) > 1 else "one Pod on it ends"
        yield Change(ChangeKind.PODS, f"wait until {pods}", victims, priority)


_MAX_DEVICES: Final = 8
_MAX_CPUS: Final = 100  # characters
_MAX_ID: Final = 12


def given(holding: Holding, node: NodeSnapshot, types: DeviceTypes) -> str:
    """Say what a Pod holds, beside whom, and how many idle devices of the same types it left idle."""
    without = node.without([holding.uid])
    told = [_device(share, without, types) for share in islice(holding.shares, _MAX_DEVICES)]
    if len(holding.shares) > _MAX_DEVICES:
        told.append(f"{len(holding.shares) - _MAX_DEVICES} more devices")
    if holding.cpus is not None and holding.cpus.cpus:
        cpus = format_cpuset(holding.cpus.cpus)
        told.append(f"CPUs {cpus if len(cpus) <= _MAX_CPUS else f'{cpus[:_MAX_CPUS]}...'}")
    return "; ".join([", ".join(told) or "a place in NUMA nodes", *_left(holding, without)])


def _device(share: Share, node: NodeSnapshot, types: DeviceTypes) -> str:
    kind = types.by_name[share.type]
    amounts = describe_amounts(kind, [share.amounts.get(tail) for tail in kind.tails])
    use = "shared" if share.id in node.used else "idle before"
    return f"{share.type} {share.minor} {share.id[:_MAX_ID]} ({amounts}; {use})"


def _left(holding: Holding, node: NodeSnapshot) -> Iterator[str]:
    taken = {share.id for share in holding.shares}
    for kind in islice(dict.fromkeys(share.type for share in holding.shares), _MAX_DEVICES):
        idle = [one.id for one in node.devices if one.type == kind and node.is_usable(one) and one.id not in node.used]
        left = sum(one not in taken for one in idle)
        yield f"{left} of {len(idle)} idle devices of type {kind} stay whole"
