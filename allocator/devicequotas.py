"""What each container may use of each of its devices: its fraction of what its group holds (FLIP-53, step 5).

It follows from the Pod's request, its holding and the devices' capacity alone, so that whoever computes it again gets
the same.
"""

from collections.abc import Iterable, Mapping
from fractions import Fraction

from allocator.devices.offer import completed
from allocator.fractions import divide_among
from allocator.vocabulary.asks import ContainerAsk, DeviceQuota, PodRequest, Quotas
from allocator.vocabulary.device import Device
from allocator.vocabulary.holdings import Share


def device_quotas(request: PodRequest, shares: Iterable[Share], devices: Iterable[Device]) -> Quotas:
    """Find what each container of a Pod that holds these shares may use: by type, then in the order of minors.

    The quotas of a device that is not among the node's are left out if several groups use it, one after another: what
    each of them has then follows from its capacity.
    """
    capacities = {(device.type, device.id): device.capacity for device in devices}
    quotas: Quotas = {}
    for share in sorted(shares, key=lambda one: (one.type, one.minor, one.id)):
        asks = [
            one
            for one in request.containers
            if one.ask.type.name == share.type and not set(one.names).isdisjoint(share.containers)
        ]
        for ask in asks:
            slot = share.amounts
            if len(asks) > 1 and not share.unshared:
                capacity = capacities.get((share.type, share.id))
                if capacity is None:
                    continue
                slot = _slot(ask, capacity, share)
            for member, amounts, fractions in _divided(ask, slot):
                quotas.setdefault(member, []).append(DeviceQuota(ask.ask.type, share.id, amounts, fractions))
    return quotas


def _slot(ask: ContainerAsk, capacity: Mapping[str, int], share: Share) -> dict[str, int]:
    """What one of several groups has of a device, and never more than the Pod holds."""
    tails = ask.ask.type.tails
    amounts = completed(ask.ask, tuple([capacity[tail] for tail in tails]))
    return {tail: min(amount, share.amounts.get(tail, 0)) for tail, amount in zip(tails, amounts, strict=True)}


def _divided(
    ask: ContainerAsk, slot: Mapping[str, int]
) -> list[tuple[str, dict[str, int | None], dict[str, Fraction]]]:
    """Divide what a group has of a device among its members: each with its amounts, and its fractions of the slot."""
    members = ask.members
    if not members:  # it shares with no other container, and has all of what it asks for
        asked = zip(ask.ask.type.tails, ask.ask.amounts, strict=True)
        return [(ask.name, {tail: None if amount == 0 else slot.get(tail, 0) for tail, amount in asked}, {})]
    found: list[dict[str, int | None]] = [{} for _ in members]
    for at, tail in enumerate(ask.ask.type.tails):
        parts = [member.parts[at] for member in members]
        amounts = divide_among(slot.get(tail, 0), members, [part or Fraction(0) for part in parts])
        for one, part, amount in zip(found, parts, amounts, strict=True):
            one[tail] = None if part is None else amount
    return [
        (
            member.name,
            amounts,
            {tail: part for tail, part in zip(ask.ask.type.tails, member.parts, strict=True) if part is not None},
        )
        for member, amounts in zip(members, found, strict=True)
    ]
