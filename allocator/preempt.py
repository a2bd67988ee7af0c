"""Which Pods must leave a node so that another fits: those whose devices and CPUs make room, and no others.

kube-scheduler proposes victims by sums over the node. Sums say nothing about single devices: half of one card and half
of another do not make a whole card.
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final

from allocator.amounts import PODS, Amounts
from allocator.budget import Budget, BudgetSpentError
from allocator.place import place
from allocator.vocabulary.asks import PodRequest
from allocator.vocabulary.devicetype import FULL
from allocator.vocabulary.holdings import Holding
from allocator.vocabulary.node import NodeSnapshot
from allocator.vocabulary.outcome import Refusal

MOST_STEPS: Final = 8000
"""Steps of one choice of victims, which makes many decisions: some 20 ms."""
_HOLDINGS_A_STEP: Final = 4


@dataclass(frozen=True, slots=True)
class PodStanding:
    """A Pod on the node.

    Attributes:
        priority: of its spec.
        requests: what kube-scheduler counts for it, by resource, as `pod_amounts` sums it.
    """

    priority: int
    requests: Amounts = field(default_factory=dict)


def choose_victims(
    request: PodRequest,
    node: NodeSnapshot,
    standing: Mapping[str, PodStanding],
    priority: int,
    proposed: Collection[str],
    budget: Budget | None = None,
) -> tuple[str, ...] | None:
    """Choose victims on one node.

    If the proposed victims make room, they are the answer. Otherwise others are added, of priorities as low as
    possible. Priorities are examined from the highest down. Of each, none is taken if the rest makes room, one if one
    is enough, otherwise a set from which none can be left out.

    kube-scheduler may have proposed a victim for a resource that is not a device. Each proposed Pod, from the highest
    priority down, is therefore spared only if the others still make room and still release at least as much of every
    resource as all proposed Pods together.

    All decisions together have one budget. Where it does not suffice, there are no victims: nobody is evicted for a Pod
    of which it is not certain that it then fits.

    Args:
        request: of the incoming Pod.
        node: with all its holdings.
        standing: the Pods that hold something there, by UID; a Pod not listed here is never added, nor spared.
        priority: of the incoming Pod; only Pods of lower priority are added.
        proposed: by kube-scheduler.
        budget: for all that is tried; by default `MOST_STEPS`.

    Returns:
        UIDs, the lowest priority first; before them proposed Pods that are not in `standing`. None if not even all
        Pods of lower priority together make room, if a proposed Pod does not have a lower priority, or if the budget
        was spent first.
    """
    budget = budget or Budget(MOST_STEPS)

    def fits(gone: set[str]) -> bool:
        budget.spend(len(node.holdings) // _HOLDINGS_A_STEP)  # the node without these Pods is summed up again
        placed = place(request, node.without(gone), None, budget)
        if budget.short:
            raise BudgetSpentError
        return not isinstance(placed, Refusal)

    try:
        return _choose(node, standing, priority, proposed, fits)
    except BudgetSpentError:
        return None


def _choose(
    node: NodeSnapshot,
    standing: Mapping[str, PodStanding],
    priority: int,
    proposed: Collection[str],
    fits: Callable[[set[str]], bool],
) -> tuple[str, ...] | None:
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
    needed = _freed(standing, set(proposed))
    for uid in sorted(standing.keys() & set(proposed), key=lambda uid: (-standing[uid].priority, uid)):
        rest = victims - {uid}
        if _freed(standing, rest) >= needed and fits(rest):
            victims = rest
    unknown = [uid for uid in proposed if uid not in standing]
    return (*unknown, *sorted(victims & standing.keys(), key=lambda uid: (standing[uid].priority, uid)))


def _freed(standing: Mapping[str, PodStanding], gone: set[str]) -> Counter[str]:
    """What Pods request in sum."""
    total: Counter[str] = Counter()
    for uid in gone & standing.keys():
        total.update(standing[uid].requests)
    del total[PODS]  # a node's devices run out before its number of Pods does
    return total


def _fewest(of: Sequence[str], rest: set[str], fits: Callable[[set[str]], bool]) -> set[str]:
    """Those Pods of one priority (`of`, the best victims first) that must leave in addition to the rest."""
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
    """Sort keys for Pods of one priority, the best victim least: few share its devices, it holds little, it is new."""
    holders = Counter(share.id for holding in node.holdings.values() for share in holding.shares)
    capacity = {device.id: device.capacity for device in node.devices}

    def held(holding: Holding) -> int:
        """The holding in percent of its devices, summed over all their resources, and of the node's CPUs."""
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
