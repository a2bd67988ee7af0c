"""For each device of a node: whether it can serve a Pod, and the first reason why not."""

from collections.abc import Sequence
from typing import NamedTuple

from allocator.budget import UNLIMITED
from allocator.devices.explain import hindrances, shortage
from allocator.devices.offer import Demand, Offer
from allocator.devices.options import meant
from allocator.devices.search import TypeSearch
from allocator.devices.terms import Terms, terms_of
from allocator.devices.words import describe_amounts
from allocator.vocabulary.asks import DeviceAsk, PodRequest
from allocator.vocabulary.cardmemory import askable
from allocator.vocabulary.device import Device
from allocator.vocabulary.devicetype import FULL, DeviceType
from allocator.vocabulary.node import NodeSnapshot
from allocator.vocabulary.phase import Phase


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
