"""Which Pods must go from a node so that another fits: those whose devices and CPUs make room, and no more.

kube-scheduler proposes victims by sums over the node, which says nothing of single devices: two halves of two cards
make no whole one.
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import groupby

from allocator.asks import PodRequest
from allocator.devicetype import FULL
from allocator.holdings import Holding, NodeSnapshot
from allocator.outcome import Refusal
from allocator.place import place


def choose_victims(
    request: PodRequest, node: NodeSnapshot, priorities: Mapping[str, int], priority: int, proposed: Collection[str]
) -> tuple[str, ...] | None:
    """Choose victims on one node.

    Those that the scheduler proposes stay: each is needed for something that it counts, which may be no device. Where
    they make no room, others are added: of the least priorities that make room; of each priority, the highest first,
    none if that will do; one if one will do; else so many that none of them could be left out.

    Args:
        request: of the Pod that is to come.
        node: as it stands.
        priorities: of the Pods that hold something there, by UID; one that is not named here is never added.
        priority: of the Pod that is to come: only lower ones are added.
        proposed: by the scheduler.

    Returns:
        UIDs, the proposed ones first. None where not even all lower Pods together make room, or one that is proposed is
        not lower.
    """

    def fits(gone: set[str]) -> bool:
        return not isinstance(place(request, node.without(gone)), Refusal)

    victims = set(proposed)
    if any(priorities[uid] >= priority for uid in victims & priorities.keys()):
        return None
    if fits(victims):
        return tuple(proposed)
    lower = {uid for uid in node.holdings.keys() - victims if priorities.get(uid, priority) < priority}
    if not fits(victims | lower):
        return None
    best = _best_victims(node.without(victims))
    for _, group in groupby(sorted(lower, key=lambda uid: -priorities[uid]), priorities.__getitem__):
        of = sorted(group, key=best.__getitem__)
        lower.difference_update(of)
        victims |= _fewest(of, victims | lower, fits)
    added = victims.difference(proposed)
    return (*proposed, *sorted(added, key=lambda uid: (priorities[uid], uid)))


def _fewest(of: Sequence[str], rest: set[str], fits: Callable[[set[str]], bool]) -> set[str]:
    """Those of one priority, the best victims first, that must go beside the rest."""
    if fits(rest):
        return set()
    one = next(({uid} for uid in of if fits(rest | {uid})), None)
    if one is not None:
        return one
    needed = set(of)
    for spared in reversed(of):
        if fits(rest | needed - {spared}):
            needed -= {spared}
    return needed


def _best_victims(node: NodeSnapshot) -> dict[str, tuple[int, int, int, str]]:
    """Order Pods of one priority, who goes first least: few share its devices; it holds little; it came late."""
    holders = Counter(share.id for holding in node.holdings.values() for share in holding.shares)
    capacity = {device.id: device.capacity for device in node.devices}

    def held(holding: Holding) -> int:
        """In percent of devices, all resources of each added up, and of the node's CPUs."""
        every = node.cpu.topology.all.bit_count() if node.cpu is not None else 0
        own = holding.cpus.cpus.bit_count() if holding.cpus is not None else 0
        percent = FULL * own // every if every else 0
        for share in holding.shares:
            has = capacity.get(share.id, {})
            percent += sum(FULL * amount // has[tail] for tail, amount in share.amounts.items() if has.get(tail))
        return percent

    return {
        uid: (max((holders[share.id] for share in of.shares), default=0), held(of), -of.since, uid)
        for uid, of in node.holdings.items()
    }
