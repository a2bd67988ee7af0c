"""The devices that can serve one demand, and how well each of them serves it.

This is the order in which devices are preferred; single shares, sets of shares and whole devices all keep it:

1. devices that the Pod holds anyway, in another step of its life;
2. devices in use before idle ones;
3. the smallest sufficient device: the fewest GiB of memory (of other types, the least of the resource that fits first);
4. of shares, what leaves the least of the device over; then the model;
5. of whole devices and of equally good shares, connections: the best connected set, then the one that leaves the free
   devices best connected, so that untouched partitions, NVLink groups, PCIe roots and NUMA nodes stay whole
   (`allocator.topology.sets`);
6. minor, id.

`DeviceOrder.SMALLEST` is this order. MOST_USED leaves out 3, LEAST_USED leaves out 3 and reverses 2 and 4, MINOR keeps
only 1 and 6.
"""

from collections.abc import Iterable, Sequence
from operator import le
from typing import Final, NamedTuple

from allocator.devices.offer import Amounts, Demand, Offer
from allocator.devices.terms import Terms
from allocator.topology.sets import Candidate
from allocator.vocabulary.asks import DeviceAsk, DeviceOrder
from allocator.vocabulary.device import Device

_ANY_SIZE: Final = (0, "")


class DeviceFit(NamedTuple):
    """How well a device serves a demand (the least rank first), and what the Pod would then take and hold of it.

    `size` is the device's if smaller ones come first, else 0.
    """

    rank: tuple[object, ...]
    amounts: Amounts
    peak: Amounts
    size: int = 0


_UNSEEN: Final = DeviceFit((), (), ())


class Option(NamedTuple):
    """A device that can serve a demand. Options are ordered as tuples are: by rank, then by minor and id."""

    rank: tuple[object, ...]
    minor: int
    id: str
    offer: Offer
    fit: DeviceFit


def meant(offers: Sequence[Offer], ask: DeviceAsk) -> Sequence[Offer]:
    """The devices that an ask means: of the vendor whose name it uses, and of a model that its template names."""
    models, vendor = ask.models, ask.vendor
    if not models and not vendor:
        return offers
    return [
        offer
        for offer in offers
        if not ((models and offer.device.model not in models) or (vendor and not offer.device.is_of(vendor)))
    ]


def find_options(demand: Demand, offers: Sequence[Offer], terms: Terms) -> list[Option]:
    """Find the devices that can serve a demand, in no particular order."""
    ask = demand.container.ask
    options = []
    # Most devices of a node are alike while the Pod holds nothing of them.
    amounts_of: dict[Amounts, Amounts] = {}
    fits: dict[tuple[Amounts, Amounts, bool, str] | Offer, DeviceFit | None] = {}
    for offer in meant(offers, ask):
        device = offer.device
        alike = offer if offer.containers else (offer.capacity, offer.free, offer.idle, device.model)
        fit = fits.get(alike, _UNSEEN)
        if fit is _UNSEEN:
            amounts = amounts_of.get(offer.capacity)
            if amounts is None:
                amounts = amounts_of[offer.capacity] = terms.amounts(offer.capacity, ask)
            fit = fits[alike] = _fit(offer, amounts, demand.steps, terms)
        if fit is not None:
            options.append(Option(fit.rank, device.minor, device.id, offer, fit))
    return options


def _fit(offer: Offer, amounts: Amounts, steps: Sequence[int], terms: Terms) -> DeviceFit | None:
    """Rank a device for a container that takes these amounts in these steps; None if it does not fit."""
    peak, free = offer.peak_with(amounts, steps), offer.free
    if not all(map(le, peak, free)):
        return None
    grows = peak != offer.peak
    if terms.order is DeviceOrder.MINOR:
        return DeviceFit((grows,), amounts, peak)
    untouched = offer.idle and not offer.containers
    left = [free[index] - peak[index] for index in terms.kind.fit]
    if terms.order is DeviceOrder.LEAST_USED:
        return DeviceFit((grows, not untouched, *(-one for one in left)), amounts, peak)
    if terms.order is DeviceOrder.MOST_USED:
        return DeviceFit((grows, untouched, *left), amounts, peak)
    size = terms.size(offer.capacity)
    return DeviceFit((grows, untouched, size, *left, offer.device.model), amounts, peak, size)


def as_candidates(options: Iterable[Option], terms: Terms) -> list[Candidate]:
    """Turn options into the candidates from which sets are made."""
    by_minor = terms.order is DeviceOrder.MINOR  # minors then come before connections
    return [
        Candidate(
            option.id,
            option.minor,
            (*option.rank, option.minor) if by_minor else option.rank,
            option.offer.device.numa_node,
            option.offer.device.pcie,
            option.offer.idle,
            not option.offer.containers,
            (option.fit.size, option.offer.device.model) if option.fit.size else _ANY_SIZE,
        )
        for option in options
    ]


def as_lead(device: Device) -> Candidate:
    """Turn a chosen device into a candidate beside which others are chosen."""
    return Candidate(device.id, device.minor, (), device.numa_node, device.pcie, idle=False)


def roots_of(options: Iterable[Option]) -> frozenset[str]:
    """The known PCIe roots of these devices."""
    return frozenset(pcie for option in options if (pcie := option.offer.device.pcie) is not None)
