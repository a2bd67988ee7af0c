"""Which Pods must leave a node so that another fits: those whose devices and CPUs make room, and no others.

kube-scheduler proposes victims by sums over the node. Sums say nothing about single devices: half of one card and half
of another do not make a whole card.
"""

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final

from allocator.amounts import PODS, Amounts
from allocator.budget import Budget, BudgetSpentError, Steps
from allocator.place import MAX_STEPS as DECISION_STEPS
from allocator.place import Placement, place
from allocator.signature import depends_on_names, signature_of
from allocator.vocabulary.asks import PodRequest
from allocator.vocabulary.devicetype import FULL
from allocator.vocabulary.holdings import Holding
from allocator.vocabulary.node import NodeSnapshot
from allocator.vocabulary.outcome import Refusal

MAX_STEPS: Final = 8000
"""Steps of one choice of victims, which makes many decisions: some 20 ms."""
_HOLDINGS_A_STEP: Final = 4
_SHARED_STEPS: Final = 100  # from which a refusal is remembered for nodes that are alike
_ALIKE_STEPS: Final = 10  # to find such a refusal


@dataclass(frozen=True, slots=True)
class PodStanding:
    """A Pod on the node."""

    priority: int
    # what kube-scheduler counts for it, by resource, as `pod_amounts` sums it
    requests: Amounts = field(default_factory=dict)


class LongRefusals:
    """The refusals of one request that took long; each holds on all nodes that are alike (`allocator/signature.py`)."""

    def __init__(self, request: PodRequest) -> None:
        self._request = request
        self._unfinished: dict[Hashable, bool] = {}  # signature_of of a node -> whether the decision was ended

    def get(self, node: NodeSnapshot, budget: Budget) -> bool | None:
        """Whether a node's refusal, which is known, was unfinished; None where no refusal is known."""
        if not self._unfinished or depends_on_names(self._request, node):
            return None
        budget.spend(_ALIKE_STEPS)
        return self._unfinished.get(signature_of(node))

    def put(self, node: NodeSnapshot, *, unfinished: bool) -> None:
        """Remember that a node refuses the request."""
        if not depends_on_names(self._request, node):
            self._unfinished[signature_of(node)] = unfinished


def choose_victims(
    request: PodRequest,
    node: NodeSnapshot,
    standing: Mapping[str, PodStanding],
    priority: int,
    proposed: Collection[str],
    budget: Budget | None = None,
    known: LongRefusals | None = None,
) -> Steps[tuple[str, ...] | None]:
    """Choose victims on one node.

    If the proposed victims make room, they are the answer. Otherwise others are added, of priorities as low as
    possible. Priorities are examined from the highest down. Of each, none is taken if the rest makes room, one if one
    is enough, otherwise a set from which none can be left out.

    kube-scheduler may have proposed a victim for a resource that is not a device. Each proposed Pod, from the highest
    priority down, is therefore spared only if the others still make room and still release at least as much of every
    resource as all proposed Pods together.

    All decisions together have one budget, and each has what a bind has. Where that does not suffice, there are no
    victims: nobody is evicted for a Pod of which it is not certain that it then fits.
    `standing`: the Pods that hold something there, by UID; a Pod not listed here is never added, nor spared.
    `priority`: of the incoming Pod; only Pods of lower priority are added. `budget`: for all that is tried; by default
    `MAX_STEPS`. `known`: refusals of this request by other nodes; those of this node are added. Yields after each
    decision; the choice is made on the node as it was given. Returns UIDs, the lowest priority first; before them
    proposed Pods that are not in `standing`. None if not even all Pods of lower priority together make room, if a
    proposed Pod does not have a lower priority, or if the budget was spent first.
    """
    budget, known = budget or Budget(MAX_STEPS), known or LongRefusals(request)

    def fits(gone: set[str]) -> Steps[bool]:
        budget.spend(len(node.holdings) // _HOLDINGS_A_STEP)  # the node without these Pods is summed up again
        left = node.without(gone)
        unfinished = known.get(left, budget)
        if unfinished is None:
            placed, unfinished, steps = _decide(request, left, budget)
            yield 0
            if not isinstance(placed, Refusal) and not unfinished:
                return True
            if steps >= _SHARED_STEPS and (not unfinished or steps == DECISION_STEPS):
                known.put(left, unfinished=unfinished)
        if unfinished:
            raise BudgetSpentError
        return False

    try:
        return (yield from _choose(node, standing, priority, proposed, fits))
    except BudgetSpentError:
        return None


def _decide(request: PodRequest, node: NodeSnapshot, budget: Budget) -> tuple[Placement | Refusal, bool, int]:
    """Make one decision with part of a budget; returns whether the part was too small as well, and the steps taken."""
    part = Budget(min(DECISION_STEPS, budget.left))
    most = int(part.left)
    placed = place(request, node, None, part)
    steps = most - int(part.left)
    budget.spend(steps)
    return placed, part.short, steps


def _choose(
    node: NodeSnapshot,
    standing: Mapping[str, PodStanding],
    priority: int,
    proposed: Collection[str],
    fits: Callable[[set[str]], Steps[bool]],
) -> Steps[tuple[str, ...] | None]:
    victims = set(proposed)
    if any(standing[uid].priority >= priority for uid in victims & standing.keys()):
        return None
    if (yield from fits(victims)):
        return tuple(proposed)
    lower = {uid for uid in node.holdings.keys() - victims if uid in standing and standing[uid].priority < priority}
    if not (yield from fits(victims | lower)):
        return None
    best = _best_victims(node.without(victims))
    for _, group in groupby(sorted(lower, key=lambda uid: -standing[uid].priority), lambda uid: standing[uid].priority):
        of = sorted(group, key=best.__getitem__)
        lower.difference_update(of)
        victims |= yield from _fewest(of, victims | lower, fits)
    needed = _freed(standing, set(proposed))
    for uid in sorted(standing.keys() & set(proposed), key=lambda uid: (-standing[uid].priority, uid)):
        rest = victims - {uid}
        if _freed(standing, rest) >= needed and (yield from fits(rest)):
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


def _fewest(of: Sequence[str], rest: set[str], fits: Callable[[set[str]], Steps[bool]]) -> Steps[set[str]]:
    """Those Pods of one priority (`of`, the best victims first) that must leave in addition to the rest."""
    if (yield from fits(rest)):
        return set()
    for uid in of:
        if (yield from fits(rest | {uid})):
            return {uid}
    needed = set(of)
    for spared in reversed(of):
        if (yield from fits(rest | needed - {spared})):
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
