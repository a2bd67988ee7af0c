"""The devices that can serve one wish, and how well each of them serves it."""

from collections.abc import Iterable, Sequence
from operator import le
from typing import NamedTuple

from allocator.devices.offer import Amounts, Offer, Wish
from allocator.devices.terms import Terms
from allocator.topology.sets import Candidate
from allocator.vocabulary.device import Device
from allocator.vocabulary.preference import DeviceOrder


class DeviceFit(NamedTuple):
    """How well a device serves a wish (the least rank first), and what the Pod would then take and hold of it."""

    rank: tuple[object, ...]
    amounts: Amounts
    peak: Amounts


class Option(NamedTuple):
    """A device that can serve a wish. Options are ordered as tuples are: by rank, then by minor and id."""

    rank: tuple[object, ...]
    minor: int
    id: str
    offer: Offer
    amounts: Amounts
    peak: Amounts


def find_options(wish: Wish, offers: Iterable[Offer], terms: Terms) -> list[Option]:
    """Find the devices that can serve a wish, in no particular order."""
    ask = wish.container.ask
    options = []
    # Most devices of a node are alike while the Pod holds nothing of them.
    amounts_of: dict[Amounts, Amounts] = {}
    fits: dict[tuple[Amounts, Amounts, bool], DeviceFit | None] = {}
    models = ask.models if ask.template else ()
    for offer in offers:
        if models and offer.device.model not in models:
            continue
        alike = (offer.capacity, offer.free, offer.idle)
        if offer.containers or alike not in fits:
            amounts = amounts_of.get(offer.capacity)
            if amounts is None:
                amounts = amounts_of[offer.capacity] = terms.amounts(offer.capacity, ask)
            fit = _fit(offer, amounts, wish.steps, terms)
            if not offer.containers:
                fits[alike] = fit
        else:
            fit = fits[alike]
        if fit is not None:
            device = offer.device
            options.append(Option(fit.rank, device.minor, device.id, offer, fit.amounts, fit.peak))
    return options


def _fit(offer: Offer, amounts: Amounts, steps: Sequence[int], terms: Terms) -> DeviceFit | None:
    """Rank a device for a container that takes so much of it during these steps; None where it does not fit.

    A device whose peak does not grow comes first. Then, most used: devices in use, and what leaves the least over, so
    that whole devices stay whole; least used: the reverse.
    """
    peak, free = offer.peak_with(amounts, steps), offer.free
    if not all(map(le, peak, free)):
        return None
    grows = peak != offer.peak
    if terms.order is DeviceOrder.MINOR:
        return DeviceFit((grows,), amounts, peak)
    sign = 1 if terms.order is DeviceOrder.MOST_USED else -1
    untouched = offer.idle and not offer.containers
    left = [sign * (free[index] - peak[index]) for index in terms.kind.fit]
    return DeviceFit((grows, untouched is (sign > 0), *left), amounts, peak)


def as_candidates(options: Iterable[Option], terms: Terms) -> list[Candidate]:
    """Turn options into the candidates from which sets are made."""
    by_minor = terms.order is DeviceOrder.MINOR  # which then come before connections
    return [
        Candidate(
            option.id,
            option.minor,
            (*option.rank, option.minor) if by_minor else option.rank,
            option.offer.device.numa_node,
            option.offer.device.pcie,
            option.offer.idle,
            not option.offer.containers,
        )
        for option in options
    ]


def as_lead(device: Device) -> Candidate:
    """Turn a chosen device into a candidate beside which others are chosen."""
    return Candidate(device.id, device.minor, (), device.numa_node, device.pcie, idle=False)


def roots_of(options: Iterable[Option]) -> frozenset[str]:
    """The known PCIe roots of these devices."""
    return frozenset(pcie for option in options if (pcie := option.offer.device.pcie) is not None)
