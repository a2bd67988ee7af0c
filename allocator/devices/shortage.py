"""How far a single device is from serving an ask: one measure, for the nearest node and for the nearest device."""

from operator import le

from allocator.devices.offer import Amounts, Offer
from allocator.devices.options import meant
from allocator.devices.terms import Terms
from allocator.vocabulary.asks import DeviceAsk
from allocator.vocabulary.devicetype import FULL


def shortage(offer: Offer, ask: DeviceAsk, terms: Terms, free: Amounts | None = None) -> int:
    """What a device lacks for an ask, in percent of the device, rounded up: of the resource that it lacks most.

    It is 0 if, and only if, the device can serve the ask by itself. It does not matter who holds the rest of the
    device: what a Pod of another product leaves can be given as well. A device that the ask does not mean lacks 100.
    `free`: what is free of it, if not what other Pods leave.
    """
    if not meant((offer,), ask):
        return FULL
    amounts = terms.amounts(offer.capacity, ask)
    left = offer.free if free is None else free
    if all(map(le, amounts, left)):
        return 0
    each = zip(amounts, left, offer.capacity, strict=True)
    short = [-(-FULL * (asked - has_left) // has) if has else FULL for asked, has_left, has in each if asked > has_left]
    return min(max(short), FULL)
