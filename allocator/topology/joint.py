"""Joint allocation: devices of a second type that belong to those chosen of a first (a NIC near each GPU).

The rules are Koordinator's (pkg/scheduler/plugins/deviceshare, device-joint-allocate), with two differences. Any type
may be the second one, GPUs included. If a PCIe root has no device left, the nearest other device (same NUMA node) is
taken instead of any other.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain, combinations, islice
from typing import Final, Protocol

from allocator.budget import UNLIMITED, Budget
from allocator.topology.sets import PLAIN_RULE, Candidate, SetRule, choices, why_no_set
from allocator.vocabulary.device import Links, VirtualFunction

_MAX_SETS: Final = 20_000  # considered of each size: more than sixteen devices have


class Matcher(Protocol):
    """A hint's selector: says whether labels match."""

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Say whether these labels match."""


def free_function(
    functions: Iterable[VirtualFunction], selector: Matcher, taken: Collection[str]
) -> VirtualFunction | None:
    """Choose a device's virtual function: the free one of the smallest bus id (as text) among the matching groups."""
    free = (one for one in functions if one.bus_id not in taken and selector.matches(one.labels))
    return min(free, key=lambda one: one.bus_id, default=None)


def choices_beside(
    lead: Sequence[Candidate],
    candidates: Iterable[Candidate],
    count: int,
    links: Links,
    rule: SetRule = PLAIN_RULE,
    *,
    same_pcie: bool = False,
    budget: Budget = UNLIMITED,
) -> Iterator[tuple[Candidate, ...]]:
    """Go through the sets of devices that belong beside those of the first type, the nearest first.

    A set has at least `count` devices, and if possible one for each PCIe root of the first type's devices; smaller sets
    come after all larger ones. Order: one on each of these roots, then a second on each, and so on; then the rest,
    those of the lead's NUMA nodes first. Within each of these turns the caller's order decides.
    `lead`: the chosen devices of the first type, 1 or more. `candidates`: devices of the other type that can each serve
    the ask. `rule`: what a set must keep; what the rule only prefers is ignored here. `same_pcie`: both types must be
    on the same PCIe roots (Koordinator's requiredScope SamePCIe). `budget`: takes a step for each set that is looked
    at. Raises BudgetSpentError: the budget is spent; when the sets are gone through.
    """
    roots = _roots_of(lead)
    if same_pcie and any(device.pcie is None for device in lead):
        return
    near = _nearest_first(lead, candidates, same_pcie=same_pcie)
    most = max(count, len(roots))
    for size in range(min(most, len(near)), (most if same_pcie else count) - 1, -1):
        sets: Iterable[tuple[Candidate, ...]] = combinations(near, size)
        if rule.binding(size):
            place = {candidate.id: at for at, candidate in enumerate(near)}
            kept = _counted(islice(choices(near, size, links, rule, budget), _MAX_SETS), budget)
            sets = sorted(kept, key=lambda chosen: _distance(chosen, lead, place))
        for chosen in _counted(islice(sets, _MAX_SETS), budget):
            if not same_pcie or len({device.pcie for device in chosen}) == len(roots):
                yield chosen


def _counted(sets: Iterable[tuple[Candidate, ...]], budget: Budget) -> Iterator[tuple[Candidate, ...]]:
    for chosen in sets:
        budget.spend(1)
        yield chosen


def why_none_beside(
    lead: Sequence[Candidate],
    candidates: Iterable[Candidate],
    count: int,
    rule: SetRule = PLAIN_RULE,
    *,
    same_pcie: bool = False,
) -> str:
    """Say in a user's words why `choices_beside` finds nothing."""
    roots = _roots_of(lead)
    near = _nearest_first(lead, candidates, same_pcie=same_pcie)
    size = max(count, len(roots)) if same_pcie else count
    if len(near) >= size and rule.binding(size):
        where = "SamePCIe is requested; on those roots: " if same_pcie else ""
        return f"{where}{why_no_set(near, size, rule)}"
    if not same_pcie:
        return f"{count} devices are requested beside the others, {len(near)} are suitable"
    if lost := [device.minor for device in lead if device.pcie is None]:
        minors = ", ".join(map(str, lost))
        where = f"the PCIe roots of the devices {minors} of the first type"
        return f"SamePCIe is requested; the node does not report {where}"
    if bare := [root for root in roots if all(candidate.pcie != root for candidate in near)]:
        return f"SamePCIe is requested; no device of the second type is left on PCIe root {', '.join(bare)}"
    few = f"{len(near)} are suitable on the PCIe roots {', '.join(roots)}"
    return f"SamePCIe is requested; {count} devices are requested, {few}"


def _roots_of(lead: Sequence[Candidate]) -> list[str]:
    """The PCIe roots on which devices are, each once."""
    return list(dict.fromkeys(device.pcie for device in sorted(lead, key=_order) if device.pcie is not None))


def _nearest_first(
    lead: Sequence[Candidate], candidates: Iterable[Candidate], *, same_pcie: bool
) -> tuple[Candidate, ...]:
    """Those on the lead's roots in turn; if others may be taken, then those of its NUMA nodes, then all."""
    by_root: dict[str | None, list[Candidate]] = {root: [] for root in _roots_of(lead)}
    others: list[Candidate] = []
    for candidate in sorted(candidates, key=_order):
        by_root.get(candidate.pcie, others).append(candidate)
    beside = _in_turn(list(by_root.values()))
    if same_pcie:
        return beside
    numa = {device.numa for device in lead if device.numa is not None}
    others.sort(key=lambda candidate: candidate.numa not in numa)  # stable: the order stays within
    return (*beside, *others)


def _distance(
    chosen: Sequence[Candidate], lead: Sequence[Candidate], place: Mapping[str, int]
) -> tuple[int, int, int, list[int]]:
    """Order among sets that keep a rule: roots covered, devices on them, devices in the NUMA nodes, the nearest."""
    roots, numa = {device.pcie for device in lead} - {None}, {device.numa for device in lead} - {None}
    return (
        -len(roots & {device.pcie for device in chosen}),
        sum(device.pcie not in roots for device in chosen),
        sum(device.numa not in numa for device in chosen),
        sorted(place[device.id] for device in chosen),
    )


def _order(candidate: Candidate) -> tuple[object, ...]:
    return (candidate.rank, candidate.minor, candidate.id)


def _in_turn(groups: Sequence[Sequence[Candidate]]) -> tuple[Candidate, ...]:
    """One of each group, then a second of each, and so on; within each turn in the caller's order."""
    longest = max(map(len, groups), default=0)
    turns = (sorted((group[turn] for group in groups if turn < len(group)), key=_order) for turn in range(longest))
    return tuple(chain.from_iterable(turns))
