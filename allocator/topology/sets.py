"""Which set of devices of one type serves an ask best.

`allocator.devices.options` states the whole order of preference; the part that concerns sets is kept here. Sets of
whole devices (the default) compare by the following, and the first difference decides:

1. devices that the Pod does not hold anyway: fewest first; then unbroken devices: fewest first; then the devices'
   sizes: smallest first;
2. how well they are connected among themselves and to `near`, the devices of the Pod's gang on this node: "the GPU
   instances with the maximum data transfer speed combined relationship" (device proposal, "Motivation");
3. how strongly they are connected to the wholly free devices, each other included: least first. Of sets that are equal
   so far this leaves the best connected remainder: the largest free groups stay whole;
4. the caller's order, device by device: rank, minor, id.

For parts of devices (`SetRule.rank_first`) the caller's ranks, device by device, replace 1. One part of a device also
breaks as few of the partition table's sets as possible.

The best set is exact up to `EXACT_UP_TO` devices. A node of more gets the best that a bounded search finds.

Partition tables are the sets of GPUs into which a node's switched fabric can be partitioned.

A table comes from the Device object's annotation (Koordinator, apis/extension, gpu-partitions), or is built in for the
HGX boards of the Hopper family (Koordinator, pkg/scheduler/plugins/deviceshare). A set outside the table may work
only slowly, or not at all; the node's policy, Honor or Prefer, says whether that matters.

Of the partitions that fit, those of the highest allocationScore come first. Koordinator documents the score so but
tries the lowest first; its documents are followed here.

Joint allocation: devices of a second type that belong to those chosen of a first (a NIC near each GPU).

The rules are Koordinator's (pkg/scheduler/plugins/deviceshare, device-joint-allocate), with two differences. Any type
may be the second one, GPUs included. If a PCIe root has no device left, the nearest other device (same NUMA node) is
taken instead of any other.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from heapq import merge
from itertools import chain, combinations, islice
from math import comb
from operator import itemgetter
from typing import Any, Final, NamedTuple, Protocol

from allocator.budget import UNLIMITED, Budget
from allocator.quantity import format_bytes
from allocator.vocabulary.asks import Scope
from allocator.vocabulary.device import Links, Partition, PartitionTable, VirtualFunction
from allocator.wire.deviceobject import GPU_PARTITIONS


class PartitionFit(NamedTuple):
    """A partition that can be given, and its place among the others, smaller better."""

    standing: tuple[int, ...]
    partition: Partition


def fits(
    table: PartitionTable,
    count: int,
    free: Collection[int],
    ring_bandwidth: int | None = None,
    *,
    restricted: bool = False,
) -> list[PartitionFit]:
    """List the partitions of `count` GPUs that can be given, best first.

    Order: the higher score; then what leaves the most whole: the larger partitions of their size's best score that
    stay wholly free, largest size first, by the sum of their scores; then the table's order.
    `free`: minors of GPUs that are healthy and wholly free. `ring_bandwidth`: bytes that a partition must state at
    least. `restricted`: only partitions of the highest score that the table has for this count.
    """
    unbroken = set(free)
    listed = table.best if restricted else table.sizes
    found = [
        partition
        for partition in listed.get(count, ())
        if unbroken.issuperset(partition.minors)
        and (ring_bandwidth is None or (partition.bandwidth is not None and partition.bandwidth >= ring_bandwidth))
    ]
    whole = [
        [other for other in table.best[size] if unbroken.issuperset(other.minors)]
        for size in sorted(table.best, reverse=True)
        if size >= count
    ]
    ranked = [
        PartitionFit((-partition.score, *(-_kept(partition, others) for others in whole)), partition)
        for partition in found
    ]
    ranked.sort(key=lambda fit: fit.standing)
    return ranked


def broken(table: PartitionTable, minor: int, free: frozenset[int]) -> tuple[int, ...]:
    """Count the partitions that a share of this GPU would break: those of each size's best score that are wholly free.

    `free`: minors of GPUs that are healthy and wholly free. Returns one figure for each size, the largest size first.
    """
    return tuple(
        sum(minor in one.minors and free.issuperset(one.minors) for one in table.best[size])
        for size in sorted(table.best, reverse=True)
    )


def _kept(partition: Partition, others: list[Partition]) -> int:
    return sum(other.score for other in others if set(partition.minors).isdisjoint(other.minors))


def why_none(
    table: PartitionTable | None,
    count: int,
    free: Collection[int],
    ring_bandwidth: int | None = None,
    *,
    restricted: bool = False,
) -> str:
    """Say in a user's words why `fits` finds nothing."""
    if table is None:
        return (
            f"GPUs must come as a partition here, and the node has no partition table "
            f"(annotation {GPU_PARTITIONS} of its Device object)"
        )
    listed = (table.best if restricted else table.sizes).get(count)
    if listed is None:
        counts = ", ".join(map(str, table.sizes)) or "none"
        return f"{count} GPUs are not a partition here; ask for a number that the table has: {counts}"
    which = "best-scored partitions" if restricted else "partitions"
    if ring_bandwidth is not None:
        quick = [p for p in listed if p.bandwidth is not None and p.bandwidth >= ring_bandwidth]
        if not quick:
            most = max((p.bandwidth for p in listed if p.bandwidth is not None), default=None)
            have = "state none" if most is None else f"have at most {format_bytes(most)}"
            return f"ringBusBandwidth {format_bytes(ring_bandwidth)} asked; {which} of {count} GPUs {have}"
        listed = tuple(quick)
    return (
        f"{len(listed)} {which} of {count} GPUs are suitable, but in each a GPU is in use or unhealthy "
        f"({len(set(free))} GPUs wholly free)"
    )


EXACT_UP_TO: Final = 16  # devices; among more, the best that a bounded search finds
_MAX_STEPS: Final = 512  # of one search among more than EXACT_UP_TO devices

Places = tuple[int, ...]


class BestPlaces(NamedTuple):
    """The best set, and how many devices the search considered adding to a set."""

    places: Places
    considered: int


@lru_cache(maxsize=512)  # nodes of one model repeat the same requests
def best_places(
    rows: tuple[tuple[int, ...], ...], gains: tuple[int, ...], losses: tuple[int, ...], count: int
) -> BestPlaces:
    """Find the best set of places: the greatest sum of weights and gains; then the least losses; then the first.

    `rows`: weights of pairs, 0 or more: a symmetric matrix, 0 on its diagonal. `gains`: of each place, 0 or more.
    `losses`: of each place, 0 or more. Returns the set, ascending. "First" is the order of such tuples.
    """
    scale = sum(losses) + 1
    scaled = [[scale * weight for weight in row] for row in rows]
    values = [scale * gain - loss for gain, loss in zip(gains, losses, strict=True)]
    search = _Search(scaled, values, count)
    return BestPlaces(search.found, search.considered)


class _Search:
    """Branch and bound for the set of the greatest sum of pairs and of single values.

    Devices are visited in the caller's order, taking before leaving: among equally good sets the one found first is the
    first in that order. Among devices with the same connections (twins) a later one is never taken if an earlier one
    was left, so that a switched node of any size takes a few steps.
    """

    def __init__(self, rows: Sequence[Sequence[int]], values: Sequence[int], count: int) -> None:
        self.rows = rows
        self.count = count
        size = len(rows)
        self.twins = [_later_twins(rows, values, at) for at in range(size)]
        # reach[i][k]: twice the most that i can add to a set by k partners, and half of it counted for i.
        self.reach = [
            _sums(sorted((w for at, w in enumerate(row) if at != i), reverse=True)) for i, row in enumerate(rows)
        ]
        self.steps = _MAX_STEPS if size > EXACT_UP_TO else -1
        self.considered = 0
        self.best, self.found = self._greedy(values)
        self.certain = False  # whether `found` is the first of its value, not only one of them
        self._extend((), 0, list(values), 0, 0)

    def _greedy(self, values: Sequence[int]) -> tuple[int, Places]:
        """A good set, for a start: the best of those grown from each device."""
        return max((self._grown(seed, values) for seed in range(len(values))), key=itemgetter(0))

    def _grown(self, seed: int, values: Sequence[int]) -> tuple[int, Places]:
        """A set and its sum: the device that adds most is taken next, from one device on."""
        total, chosen, gains = 0, [seed], list(values)
        while True:
            at = chosen[-1]
            total += gains[at]
            if len(chosen) == self.count:
                return total, tuple(sorted(chosen))
            gains = [gain + weight for gain, weight in zip(gains, self.rows[at], strict=True)]
            rest = (other for other in range(len(values)) if other not in chosen)
            chosen.append(max(rest, key=gains.__getitem__))

    def _extend(self, chosen: Places, start: int, gains: list[int], value: int, left: int) -> None:
        """Go through the sets that begin with `chosen` and go on from `start`, without those in the mask `left`."""
        missing = self.count - len(chosen)
        if not missing:
            if value > self.best or (value == self.best and not self.certain):
                self.best, self.found, self.certain = value, chosen, True
            return
        for at in range(start, len(gains) - missing + 1):
            if left >> at & 1:
                continue
            if not self.steps or not self._promising(at, gains, value, left, missing):
                return
            self.steps -= 1
            self.considered += 1
            row = self.rows[at]
            onward = [gain + weight for gain, weight in zip(gains, row, strict=True)]
            self._extend((*chosen, at), at + 1, onward, value + gains[at], left)
            left |= self.twins[at]

    def _promising(self, start: int, gains: list[int], value: int, left: int, missing: int) -> bool:
        """Say whether a set that goes on from `start` can beat the best, or be as good and the first such."""
        reach = self.reach
        most = [2 * gains[at] + reach[at][missing - 1] for at in range(start, len(gains)) if not left >> at & 1]
        if len(most) < missing:
            return False
        most.sort(reverse=True)
        bound = value + sum(most[:missing]) // 2
        return bound > self.best or (bound == self.best and not self.certain)


def _sums(weights: Sequence[int]) -> list[int]:
    sums = [0]
    for weight in weights:
        sums.append(sums[-1] + weight)
    return sums


def _later_twins(rows: Sequence[Sequence[int]], values: Sequence[int], at: int) -> int:
    """The later devices that are interchangeable with this one, as a mask."""
    twins = 0
    for other in range(at + 1, len(rows)):
        swapped = list(rows[other])
        swapped[at], swapped[other] = swapped[other], swapped[at]
        if values[at] == values[other] and swapped == list(rows[at]):
            twins |= 1 << other
    return twins


_MAX_SORTED: Final = comb(EXACT_UP_TO, EXACT_UP_TO // 2)  # sets put in order at once; more come in the caller's order
_CONSIDERED_STEPS: Final = 4  # of a budget, for each device that the search for the best set considers


WITHIN: Final = {Scope.NODE: "node", Scope.NUMA_NODE: "NUMA node", Scope.PCIE: "PCIe root", Scope.DEVICE: "device"}


class Candidate(NamedTuple):
    """A device that can serve the ask."""

    id: str
    minor: int  # its number on the node
    # the caller's order of preference, smaller better. Devices that the caller regards as equal have equal ranks; minor
    # and id are compared after everything else.
    rank: tuple[Any, ...] = ()
    numa: int | None = None  # its NUMA node; None if unknown
    pcie: str | None = None  # name of its PCIe root; None if unknown
    idle: bool = True  # no other Pod holds a part of it
    fresh: bool = True  # the Pod itself holds nothing of it yet, in another step of its life
    # the device's size and model, if smaller ones come first; otherwise the same for all
    size: tuple[int, str] = (0, "")


@dataclass(frozen=True, slots=True)
class SetRule:
    """What a set must be, and what is preferred, beyond good connections."""

    # all devices must be inside one place of this kind. A device without a stated place shares none.
    scope: Scope = Scope.NODE
    # the ask takes parts of devices: the caller's ranks come before connections, and a set need not be a partition
    rank_first: bool = False
    partitions: PartitionTable | None = None  # the node's partition table; None if it has none
    partition_required: bool = False  # the set must be a partition; else partitions come first
    restricted: bool = False  # only partitions of the table's highest score for the count
    ring_bandwidth: int | None = None  # bytes that a partition must have at least; None if not asked
    near: frozenset[str] = frozenset()  # ids of devices to be well connected to
    # PCIe roots; sets wholly on these come first (joint allocation: the other type has a free device there)
    roots: frozenset[str] = frozenset()
    # whole devices that the gang's other Pods are still to get. Sets inside the best set of that many more devices come
    # first, if there is one, so that the gang's first Pod begins in a place with room for all.
    company: int = 0

    def binding(self, count: int) -> bool:
        """Whether some sets of this size are not allowed."""
        return (count > 1 and self.scope is not Scope.NODE) or (self.cut and self.partition_required)

    @property
    def cut(self) -> bool:
        """Whether partitions matter."""
        return not self.rank_first and (self.partition_required or self.partitions is not None)


PLAIN_RULE: Final = SetRule()

Set = tuple[Candidate, ...]


class Spot(NamedTuple):
    """A device's number on its node, and its id."""

    minor: int
    id: str


_BY_RANK: Final = itemgetter(2, 1, 0)  # rank, minor, id
_BY_STATE: Final = itemgetter(6, 5, 7, 2, 1, 0)  # fresh, idle, size, then as above
_RANK: Final = itemgetter(2)
_STATE: Final = itemgetter(6, 5, 7)


def choices(
    candidates: Sequence[Candidate],
    count: int,
    links: Links,
    rule: SetRule = PLAIN_RULE,
    budget: Budget = UNLIMITED,
) -> Iterator[tuple[Candidate, ...]]:
    """Go through the sets of `count` devices that keep the rule, the best first.

    `candidates`: all devices that could serve the ask, ids distinct; their order does not matter. `rule`: what the ask
    and the node want of a set. `budget`: bounds the search for the best set, and how many sets are put in order; those
    that it does not cover come in the caller's order. Returns each set once, its devices in the caller's order (of a
    partition too); none if none keeps the rule. Raises BudgetSpentError: the budget is spent before the best set is
    found; when the sets are gone through.
    """
    pool = _pool(candidates, links, rule, budget)
    # Company does not matter if no device is near another.
    if count == 1 and not (rule.cut or rule.roots or (rule.company and not links.flat)):
        return zip([pool.order[place] for place in _one_by_one(pool, range(len(pool.order)))], strict=True)
    return _choices(pool, count, rule)


def _choices(pool: "_Pool", count: int, rule: SetRule) -> Iterator[Set]:
    given: set[Places] = set()
    for places in _stages(pool, count, rule):
        if places not in given:
            given.add(places)
            yield pool.take(places)


def _stages(pool: "_Pool", count: int, rule: SetRule) -> Iterator[Places]:
    """Go through the partitions, the sets on preferred roots, those with room beside them, and all; some come again."""
    if rule.cut:
        yield from _partitions(pool, count, rule)
        if rule.partition_required:
            return
    everywhere = range(len(pool.order))
    if rule.roots:
        preferred = [place for place in everywhere if pool.order[place].pcie in rule.roots]
        yield from _best_first(pool, _groups(pool.order, preferred, count, rule.scope), count)
    if rule.company and not rule.rank_first:
        total = count + rule.company
        for together in islice(_best_first(pool, _groups(pool.order, everywhere, total, rule.scope), total), 1):
            yield from _best_first(pool, _groups(pool.order, together, count, rule.scope), count)
    yield from _best_first(pool, _groups(pool.order, everywhere, count, rule.scope), count)


def why_no_set(candidates: Sequence[Candidate], count: int, rule: SetRule) -> str:
    """Say in a user's words why `choices` finds nothing."""
    if rule.cut and rule.partition_required:
        free = [candidate.minor for candidate in candidates if candidate.idle]
        table, bandwidth = rule.partitions, rule.ring_bandwidth
        if table is None or not fits(table, count, free, bandwidth, restricted=rule.restricted):
            return why_none(table, count, free, bandwidth, restricted=rule.restricted)
        return f"partitions of {count} GPUs are free, none of them inside one {WITHIN[rule.scope]}"
    if len(candidates) < count:
        return f"{count} devices asked, {len(candidates)} can serve it"
    if rule.scope is Scope.DEVICE:
        return f"requiredTopologyScope Device allows one device, not {count}; use PCIe, NUMANode or Node"
    where = WITHIN[rule.scope]
    counted = Counter(candidate.numa if rule.scope is Scope.NUMA_NODE else candidate.pcie for candidate in candidates)
    unknown = counted.pop(None, 0)
    most = max(counted.values(), default=0)
    less = f"; of {unknown} the {where} is not known" if unknown else ""
    return f"{count} devices inside one {where} are requested; suitable inside one: at most {most}{less}"


def least_broken(tied: Sequence[Spot], free: Sequence[Spot], links: Links, table: PartitionTable | None) -> int:
    """Find the device whose partial use breaks the least: the fewest partitions, then the weakest connections.

    `tied`: devices that are otherwise equally good, 1 or more. `table`: the node's partition table; None if it has
    none. Returns its place in `tied`; of equals, the first.
    """
    index, rows = links.index if links.rows else {}, links.rows
    ids = {spot.id for spot in free}
    minors = frozenset([spot.minor for spot in free])
    places = [index[one] for one in ids if one in index]

    def breaks(at: int) -> tuple[tuple[int, ...], int]:
        minor, device = tied[at]
        if device not in ids:
            return (), 0
        row = rows[index[device]] if device in index else ()
        parts = broken(table, minor, minors) if table is not None else ()
        return parts, sum([row[place] for place in places]) if row else 0

    return min(range(len(tied)), key=breaks)


class _Pool(NamedTuple):
    """The candidates of one decision in the caller's order, and all that sets are compared by."""

    order: list[Candidate]
    tiers: list[Any]  # what is compared before connections, for each candidate
    rows: tuple[tuple[int, ...], ...]  # weights between them
    gains: tuple[int, ...]  # weight of each towards `near`
    # weight of each towards the devices that are free and would stay so, counted for those alone
    losses: tuple[int, ...]
    budget: Budget

    def take(self, places: Places) -> Set:
        """The candidates in these places."""
        return tuple([self.order[place] for place in places])

    def key(self, places: Places) -> tuple[list[Any], int, int, Places]:
        """Order among sets, smaller better."""
        rows = self.rows
        inner = sum(rows[a][b] for a, b in combinations(places, 2))
        near = sum(self.gains[place] for place in places)
        return (
            [self.tiers[place] for place in places],
            -inner - near,
            sum(self.losses[place] for place in places),
            places,
        )


def _pool(candidates: Sequence[Candidate], links: Links, rule: SetRule, budget: Budget) -> _Pool:
    order = sorted(candidates, key=_BY_RANK if rule.rank_first else _BY_STATE)
    tiers = list(map(_RANK if rule.rank_first else _STATE, order))
    size = len(order)
    nothing = (0,) * size
    if links.flat or size < 2:  # noqa: PLR2004 - a pair
        return _Pool(order, tiers, (nothing,) * size, nothing, nothing, budget)
    rows = _rows(order, links)
    free = [place for place, candidate in enumerate(order) if candidate.idle and candidate.fresh]
    if len(free) == size:
        losses = tuple(map(sum, rows))
    else:
        is_free = set(free)
        losses = tuple(sum(rows[a][b] for b in free) if a in is_free else 0 for a in range(size))
    gains = nothing
    if rule.near:
        near = sorted(rule.near)
        gains = tuple(sum(links.weight(candidate.id, mate) for mate in near) for candidate in order)
    return _Pool(order, tiers, rows, gains, losses, budget)


def _rows(order: Sequence[Candidate], links: Links) -> tuple[tuple[int, ...], ...]:
    """The weights between these devices, in this order."""
    index = links.index
    at = [index.get(candidate.id, -1) for candidate in order]
    if -1 in at:
        return tuple(tuple(links.weight(a.id, b.id) for b in order) for a in order)
    if at == list(range(len(links.ids))):
        return links.rows
    pick = itemgetter(*at)
    return tuple(map(pick, pick(links.rows)))


def _groups(order: Sequence[Candidate], places: Sequence[int], count: int, scope: Scope) -> list[Sequence[int]]:
    """Split the places into what sets must be inside of; only groups that are large enough."""
    if count == 1 or scope is Scope.NODE:  # one device is inside of any scope
        return [places] if len(places) >= count else []
    if scope is Scope.DEVICE:
        return []
    groups: dict[int | str, list[int]] = {}
    for place in places:
        where = order[place].numa if scope is Scope.NUMA_NODE else order[place].pcie
        if where is not None:
            groups.setdefault(where, []).append(place)
    return [group for group in groups.values() if len(group) >= count]


def _best_first(pool: _Pool, groups: Sequence[Sequence[int]], count: int) -> Iterator[Places]:
    """Go through all sets inside the groups, the best first."""
    if not groups:
        return
    if _alike(pool, groups):
        yield from _all_in_turn(groups, count)
        return
    if count == 1:
        yield from zip(_one_by_one(pool, chain.from_iterable(groups)), strict=True)
        return
    best = [_best_of(pool, group, count) for group in groups]
    first = min(best, key=pool.key) if len(best) > 1 else best[0]
    yield first
    sets = sum(comb(len(group), count) for group in groups)
    if sets <= _MAX_SORTED and pool.budget.covers(sets * count):
        yield from islice(sorted(_all_in_turn(groups, count), key=pool.key), 1, None)
        return
    for places in _all_in_turn(groups, count):
        if places != first:
            yield places


def _one_by_one(pool: _Pool, places: Iterable[int]) -> list[int]:
    """Sort single devices, the best first."""
    tiers, gains, losses = pool.tiers, pool.gains, pool.losses
    return [key[-1] for key in sorted([(tiers[place], -gains[place], losses[place], place) for place in places])]


def _all_in_turn(groups: Sequence[Sequence[int]], count: int) -> Iterator[Places]:
    """Go through all sets inside the groups in the caller's order."""
    sets = [combinations(group, count) for group in groups]
    return merge(*sets) if len(sets) > 1 else sets[0]


def _alike(pool: _Pool, groups: Sequence[Sequence[int]]) -> bool:
    """Say whether only the caller's order distinguishes sets."""
    if any(map(any, pool.rows)) or any(pool.gains):
        return False
    places = [place for group in groups for place in group]
    return bool(pool.tiers[max(places)] == pool.tiers[min(places)])


def _best_of(pool: _Pool, group: Sequence[int], count: int) -> Places:
    """Find the best set inside a group: the places of the better tiers, and the best of the tier that has too many."""
    last = pool.tiers[group[count - 1]]
    forced = [place for place in group if pool.tiers[place] < last]
    open_places = [place for place in group if pool.tiers[place] == last]
    if len(open_places) + len(forced) == count:
        return tuple(forced + open_places)
    rows, size = pool.rows, len(open_places)
    if size == len(rows):
        found = best_places(rows, pool.gains, pool.losses, count)
    else:
        pick = itemgetter(*open_places)
        gains = [pool.gains[a] + sum(rows[a][b] for b in forced) for a in open_places]
        found = best_places(tuple(map(pick, pick(rows))), tuple(gains), pick(pool.losses), count - len(forced))
    pool.budget.spend(_CONSIDERED_STEPS * found.considered)
    return tuple(forced + [open_places[at] for at in found.places])


def _partitions(pool: _Pool, count: int, rule: SetRule) -> list[Places]:
    """List the partitions that keep the rule, the best first."""
    if rule.partitions is None:
        return []
    order = pool.order
    by_minor = {candidate.minor: place for place, candidate in enumerate(order) if candidate.idle}
    ranked = []
    found = fits(rule.partitions, count, by_minor, rule.ring_bandwidth, restricted=rule.restricted)
    for index, (standing, partition) in enumerate(found):
        places = tuple(sorted(by_minor[minor] for minor in partition.minors))
        if not _groups(order, places, count, rule.scope):
            continue
        off = bool(rule.roots) and any(order[place].pcie not in rule.roots for place in places)
        tiers, connection, *_ = pool.key(places)
        ranked.append(((off, tiers, standing, connection, index), places))
    return [places for _, places in sorted(ranked)]


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
