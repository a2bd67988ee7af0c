"""The memory that each container of a bound Pod may use, as whatever keeps limits is told.

Limits follow from what the Pod holds, rounded down to MiB, so that those of a card never sum to more than the card: not
within a Pod at any moment of its life, and not over all Pods. Limits above what is held are the exception; their
authors asked for memory that is free at the moment.
"""

from collections.abc import Iterable

from allocator.devicequotas import device_quotas
from allocator.vocabulary.asks import PodRequest
from allocator.vocabulary.delivery import KEEPERS, MIB, NOTHING_KEEPS, WHOLE, LimitProvider, MemoryLimit
from allocator.vocabulary.device import Device
from allocator.vocabulary.holdings import Share
from allocator.vocabulary.names import GPU_MEMORY, TYPE_GPU


def memory_limits(
    request: PodRequest, shares: Iterable[Share], devices: Iterable[Device]
) -> dict[str, tuple[list[str], MemoryLimit]]:
    """Find the limit of each container that has GPUs.

    A limit is the same on each of a container's cards. It follows from the card of which least is held.
    Returns container -> the ids of its cards in the order of minors, and its limit. The limit is 0 where less than 1
    MiB is held, or where what is held is not known, because the device is gone.
    """
    held = sorted((share for share in shares if share.type == TYPE_GPU), key=lambda share: (share.minor, share.id))
    known = tuple(devices)
    quotas = device_quotas(request, held, known)
    parts = {
        (container, quota.id): quota.amounts[GPU_MEMORY] or 0
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
        least = min(parts.get((container, card), 0) for card in ids)
        smallest = min(capacity.get(card, 0) for card in ids)
        asked = min(sizes.get(container) or smallest * portions.get(container, 0) // WHOLE, smallest)
        found[container] = (ids, MemoryLimit(least // MIB, max(asked, least) // MIB))
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
