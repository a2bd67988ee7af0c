"""What each container of a bound Pod may use of its cards, as whatever keeps limits is told: memory, and cores.

Limits follow from what the Pod holds, rounded down to MiB, so that those of a card never sum to more than the card: not
within a Pod at any moment of its life, and not over all Pods. Limits above what is held are the exception; their
authors asked for memory that is free at the moment.

What a container may use of each of its devices is its fraction of what its group holds (FLIP-53, step 5). It follows
from the Pod's request, its holding and the devices' capacity alone, so that whoever computes it again gets the same.
"""

from collections.abc import Iterable, Mapping
from fractions import Fraction

from allocator.devices.offer import completed
from allocator.fractions import divide_among
from allocator.vocabulary.asks import ContainerAsk, DeviceQuota, PodRequest, Quotas
from allocator.vocabulary.delivery import KEEPERS, MIB, NOTHING_KEEPS, WHOLE, LimitProvider, MemoryLimit
from allocator.vocabulary.device import Device
from allocator.vocabulary.holdings import Share
from allocator.vocabulary.names import GPU_CORE, GPU_MEMORY, TYPE_GPU


def memory_limits(
    request: PodRequest, shares: Iterable[Share], devices: Iterable[Device]
) -> dict[str, tuple[list[str], MemoryLimit]]:
    """Find the limit of each container that has GPUs.

    A limit is the same on each of a container's cards. It follows from the card of which least is held.
    Returns container -> the ids of its cards in the order of minors, and its limit. The limit of memory is 0 where less
    than 1 MiB is held, or where what is held is not known, because the device is gone.
    """
    held = sorted((share for share in shares if share.type == TYPE_GPU), key=lambda share: (share.minor, share.id))
    known = tuple(devices)
    quotas = device_quotas(request, held, known)
    parts = {
        (container, quota.id): quota.amounts
        for container, listed in quotas.items()
        for quota in listed
        if quota.type.name == TYPE_GPU
    }
    capacity = {device.id: device.capacity[GPU_MEMORY] for device in known if device.type == TYPE_GPU}
    sizes, portions = dict(request.memory_limits), dict(request.memory_portions)
    cards: dict[str, list[str]] = {}
    for share in held:
        for container in share.containers:
            cards.setdefault(container, []).append(share.id)
    found = {}
    for container, ids in cards.items():
        own = [parts.get((container, card), {}) for card in ids]
        least = min(amounts.get(GPU_MEMORY) or 0 for amounts in own)
        cores = [amount for amounts in own if (amount := amounts.get(GPU_CORE)) is not None]
        smallest = min(capacity.get(card, 0) for card in ids)
        asked = min(sizes.get(container) or smallest * portions.get(container, 0) // WHOLE, smallest)
        found[container] = (ids, MemoryLimit(least // MIB, max(asked, least) // MIB, min(cores, default=None)))
    return found


def limit_annotations(
    request: PodRequest, shares: Iterable[Share], devices: Iterable[Device], provider: LimitProvider
) -> dict[str, str] | str:
    """Write the limits of a Pod that requires them, or say why they cannot be written, and the cure.

    Nothing is written of a Pod without GPUs.
    """
    keeper = KEEPERS.get(provider)
    written: dict[str, str] = {}
    for container, (cards, limit) in memory_limits(request, shares, devices).items():
        if keeper is None:
            return NOTHING_KEEPS
        if not limit.held:
            return (
                f"container {container} has less than 1 MiB of a card, too little for the memory limit that the Pod "
                "requires; ask for more memory"
            )
        if keeper.cores and limit.cores == 0:
            return (
                f"container {container} has less than 1 % of a card's cores, too little for the limit that the Pod "
                "requires; ask for more cores, or for none"
            )
        if len(container) > keeper.longest_name:
            return long_name(container, keeper.longest_name)
        written |= keeper.annotations(container, cards, limit)
    return written


def long_name(container: str, most: int) -> str:
    """Say that a container's name does not fit into the annotations that state its limit."""
    return (
        f"the name of container {container} is too long for the annotations that state its memory limit; give it one "
        f"of {most} characters at most"
    )


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
