"""Which Pods must go from a node so that another fits: those whose devices and CPUs make room, and no more.

kube-scheduler proposes victims by sums over the node, which says nothing of single devices: two halves of two cards
make no whole one.
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from allocator.amounts import PODS, Amounts
from allocator.place import place
from allocator.vocabulary.asks import PodRequest
from allocator.vocabulary.devicetype import FULL
from allocator.vocabulary.holdings import Holding
from allocator.vocabulary.node import NodeSnapshot
from allocator.vocabulary.outcome import Refusal


@dataclass(frozen=True, slots=True)
class PodStanding:
    """A Pod on the node.

    Attributes:
        priority: of its spec.
        requests: what the scheduler counts for it, by resource, as `pod_amounts` sums it up.
    """

    priority: int
    requests: Amounts = field(default_factory=dict)


def choose_victims(
    request: PodRequest,
    node: NodeSnapshot,
    standing: Mapping[str, PodStanding],
    priority: int,
    proposed: Collection[str],
) -> tuple[str, ...] | None:
    """Choose victims on one node.

    Where those that the scheduler proposes make room, they stand. Else others are added: of the least priorities that
    make room; of each priority, the highest first, none if that will do; one if one will do; else so many that none of
    them could be left out. What is proposed is needed for something that the scheduler counts, which may be no device:
    so of those, the highest first, each is spared without which the others still make room, and give back of every
    resource as much as all that are proposed.

    Args:
        request: of the Pod that is to come.
        node: as it stands.
        standing: the Pods that hold something there, by UID; one that is not named here is never added, nor spared.
        priority: of the Pod that is to come: only lower ones are added.
        proposed: by the scheduler.

    Returns:
        UIDs, the least important first; before them those of the proposal of which nothing is known here. None where
        not even all lower Pods together make room, or one that is proposed is not lower.
    """

    def fits(gone: set[str]) -> bool:
        return not isinstance(place(request, node.without(gone)), Refusal)

    def freed(gone: set[str]) -> Counter[str]:
        total: Counter[str] = Counter()
        for uid in gone & standing.keys():
            total.update(standing[uid].requests)
        del total[PODS]  # a node takes so many that its devices run out first
        return total

    victims = set(proposed)
    if any(standing[uid].priority >= priority for uid in victims & standing.keys()):
        return None
    if fits(victims):
        return tuple(proposed)
    lower = {uid for uid in node.holdings.keys() - victims if uid in standing and standing[uid].priority < priority}
    if not fits(victims | lower):
        return None
    best = _best_victims(node.without(victims))
    for _, group in groupby(sorted(lower, key=lambda uid: -standing[uid].priority), lambda uid: standing[uid].priority):
        of = sorted(group, key=best.__getitem__)
        lower.difference_update(of)
        victims |= _fewest(of, victims | lower, fits)
    needed = freed(set(proposed))
    for uid in sorted(standing.keys() & set(proposed), key=lambda uid: (-standing[uid].priority, uid)):
        rest = victims - {uid}
        if freed(rest) >= needed and fits(rest):
            victims = rest
    unknown = [uid for uid in proposed if uid not in standing]
    return (*unknown, *sorted(victims & standing.keys(), key=lambda uid: (standing[uid].priority, uid)))


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
