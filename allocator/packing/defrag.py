"""Which Pods to move so that one more Pod of a size fits: a greedy plan, in the order of the moves.

The rule, for one more room at a time:

1. For each node, the Pods are found that would have to leave so that one more Pod of the size fits there: of the lowest
   priorities, and none that can be left out. Only Pods that may be moved count. The node with the fewest such Pods is
   tried first; then that with the lowest priority among them, that where they hold the least, and by name.
2. On that node, the first of these Pods whose move helps is moved: it is evicted, and goes where `Fleet.goes_to` sends
   it, which may be to other devices of the same node. A move helps if fewer Pods than before must leave the node after
   it, or none. If none of these moves helps, the other Pods of the node are tried: of two Pods on two devices, it may
   be certain of the other one only that it goes beside the first.
3. A move is left out if the Pod would find no node, if a node would lose room for the size by it, or if it is not
   certain where it goes: its controller may make the next Pod while it still holds its devices, or afterwards. Both
   must lead to the same devices.
4. Once one more Pod of the size fits, the moves are the plan for this room. If no move helps before, none of them is
   made, and the next node is tried.

So each move brings the room nearer, no node loses room at any moment, and a Pod is moved once at most.

With `gone_first` the third rule is looser: each Pod is gone before its controller makes the next one, as with a
StatefulSet. That is what somebody can see to who scales a controller to zero and back.
"""

import heapq
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import islice
from typing import Final

from allocator.budget import Budget
from allocator.packing.clearing import NEVER, fewest_leaving
from allocator.packing.fills import MOST_DECISIONS, Fills
from allocator.packing.fleet import Comparison, Fleet, Guest, NodeRoom, held_by
from allocator.place import MOST_STEPS as DECISION_STEPS
from allocator.place import Placement, place
from allocator.preempt import PodStanding, choose_victims
from allocator.vocabulary.holdings import Holding

MOST_STEPS: Final = 4_000_000
"""Steps of all choices of Pods that must leave: some ten seconds."""
MOST_LANDINGS: Final = 4000
"""Searches for where a Pod would go: some ten seconds with 1,000 nodes."""
MOST_NODES: Final = 64  # that are tried for one room
_A_CHOICE: Final = 8000  # steps of one choice
_ABOVE_ALL: Final = 2**31  # a priority


@dataclass(frozen=True, slots=True)
class Tenant:
    """A Pod that may be moved.

    Attributes:
        guest: the Pod.
        node: where it is.
        priority: of its spec.
        late: its controller makes the next Pod only when it is gone, as a StatefulSet does.
    """

    guest: Guest
    node: str
    priority: int = 0
    late: bool = False


@dataclass(frozen=True, slots=True)
class Move:
    """One Pod that is evicted.

    Attributes:
        tenant: the Pod.
        before: what it holds where it is.
        after: what the next Pod of its controller will hold.
        to: where that goes.
        certain: whether it goes there too if it is made while the old one still holds its devices.
    """

    tenant: Tenant
    before: Holding
    after: Holding
    to: str
    certain: bool = True


@dataclass(frozen=True, slots=True)
class Room:
    """One more Pod of the size that fits.

    Attributes:
        node: where it fits.
        moves: what must be done for it, in order.
    """

    node: str
    moves: tuple[Move, ...]


class Ended(StrEnum):
    """Why a plan has no more rooms."""

    ENOUGH = "enough"
    MOVES = "mostMoves"
    NOTHING = "noMoveHelps"
    WORK = "unfinished"


@dataclass(frozen=True, slots=True)
class MovePlan:
    """Moves, and what they lead to.

    Attributes:
        rooms: what is made room for, in order.
        fitting: the nodes on which Pods of the size fit now, by name, with how many.
        after: how many fit into the cluster after the moves.
        ended: why there is not more.
        doubted: whether a move was left out because it is not certain where the Pod goes.
    """

    rooms: tuple[Room, ...]
    fitting: tuple[tuple[str, int], ...]
    after: int
    ended: Ended
    doubted: bool = False

    @property
    def before(self) -> int:
        """How many Pods of the size fit into the cluster now."""
        return sum(count for _, count in self.fitting)

    @property
    def moves(self) -> tuple[Move, ...]:
        """All moves in order."""
        return tuple(move for room in self.rooms for move in room.moves)


@dataclass(slots=True)
class PlanBounds:
    """How much a plan may be, and how much may be looked at.

    Attributes:
        rooms: how many more Pods of the size are to fit.
        moves: the most moves.
        steps: of the choices of Pods that must leave.
        landings: searches for where a Pod would go.
        decisions: on how often the size fits; nodes that are alike are decided once.
    """

    rooms: int = 1
    moves: int = 10
    steps: Budget = field(default_factory=lambda: Budget(MOST_STEPS))
    landings: Budget = field(default_factory=lambda: Budget(MOST_LANDINGS))
    decisions: Budget = field(default_factory=lambda: Budget(MOST_DECISIONS))

    @property
    def spent(self) -> bool:
        """Whether something was not looked at."""
        return self.steps.short or self.landings.short or self.decisions.short


def plan(
    rooms: Iterable[NodeRoom],
    tenants: Iterable[Tenant],
    wanted: Guest,
    compared: Comparison,
    bounds: PlanBounds,
    *,
    gone_first: bool = False,
) -> MovePlan:
    """Plan moves that make room for Pods of a size.

    Pure: the same arguments give the same plan, in whatever order nodes and Pods are given.

    Args:
        rooms: the nodes.
        tenants: the Pods that may be moved.
        wanted: a Pod of the size.
        compared: how the cluster orders nodes.
        bounds: how much may be moved and looked at; the budgets are spent.
        gone_first: whether each Pod is gone before its controller makes the next one.
    """
    ordered = sorted(rooms, key=lambda room: room.node.name)
    return _Planner(ordered, tenants, wanted, compared, bounds, gone_first=gone_first).run()


class _Planner:
    def __init__(
        self,
        rooms: list[NodeRoom],
        tenants: Iterable[Tenant],
        wanted: Guest,
        compared: Comparison,
        bounds: PlanBounds,
        *,
        gone_first: bool,
    ) -> None:
        self._fleet = Fleet(rooms, compared)
        self._wanted = wanted
        self._bounds = bounds
        self._gone_first = gone_first
        self._doubted = False
        self._tenants: dict[str, dict[str, Tenant]] = {}
        for one in sorted(tenants, key=lambda one: (one.guest.namespace, one.guest.name, one.guest.uid)):
            self._tenants.setdefault(one.node, {})[one.guest.uid] = one
        self._fills = Fills(wanted, bounds.decisions)
        self._counts: dict[str, int] = {}
        self._must: dict[str, tuple[Tenant, ...] | None] = {}

    def run(self) -> MovePlan:
        fitting = tuple((name, count) for name in self._fleet.rooms if (count := self._count(name)))
        found: list[Room] = []
        ended = Ended.ENOUGH
        while len(found) < self._bounds.rooms:
            room = self._next(self._bounds.moves - sum(len(one.moves) for one in found))
            if room is None:
                ended = self._why_none(self._bounds.moves - sum(len(one.moves) for one in found))
                break
            found.append(room)
        return MovePlan(tuple(found), fitting, self._total(), ended, self._doubted)

    def _why_none(self, left: int) -> Ended:
        if self._bounds.spent:
            return Ended.WORK
        larger = (name for name, tenants in self._tenants.items() if len(tenants) > left and self._fewest(name) < NEVER)
        more = any(len(self._must_leave(name) or ()) > left for name in larger)
        return Ended.MOVES if more else Ended.NOTHING

    def _total(self) -> int:
        return sum(self._count(name) for name in self._fleet.rooms)

    def _count(self, name: str) -> int:
        """How many Pods of the size fit on a node."""
        known = self._counts.get(name)
        if known is None:
            known = self._counts[name] = self._fills.count(self._fleet.rooms[name])
        return known

    def _put(self, room: NodeRoom) -> None:
        self._fleet.put(room)
        self._counts.pop(room.node.name, None)
        self._must.pop(room.node.name, None)

    def _next(self, most: int) -> Room | None:
        """Make room for one more Pod of the size."""
        for name in islice(self._nearest(most), MOST_NODES):
            moves = self._clear(name, most)
            if moves:
                return Room(name, moves)
            if self._bounds.landings.short:
                break
        return None

    def _nearest(self, most: int) -> Iterator[str]:
        """The nodes on which moves may make room, the best first; what must leave the others exactly is not found."""
        # A bound sorts before the figures of equally many Pods: () is less than any of these.
        found: list[tuple[int, tuple[int, ...], str]] = []
        for name in self._tenants:
            fewest = self._fewest(name)
            if fewest <= most:
                found.append((fewest, (), name))
        heapq.heapify(found)
        while found:
            _, figures, name = heapq.heappop(found)
            if figures:
                yield name
                continue
            must = self._must_leave(name)
            if must and len(must) <= most:
                held = sum(len(self._held(name, one).shares) for one in must)
                heapq.heappush(found, (len(must), (max(one.priority for one in must), held), name))

    def _fewest(self, name: str) -> int:
        """A number of Pods of which not fewer must leave a node; `NEVER` if that is in vain."""
        tenants, room, may = self._tenants.get(name), self._fleet.rooms[name], self._wanted.may
        if not tenants or room.closed or (may is not None and name not in may):
            return NEVER
        return fewest_leaving(self._wanted, room.node, self._count(name), tenants)

    def _held(self, name: str, tenant: Tenant) -> Holding:
        return self._fleet.rooms[name].node.holdings[tenant.guest.uid]

    def _clear(self, name: str, most: int) -> tuple[Move, ...]:
        """Move Pods until one more of the size fits on a node; no moves if that cannot be."""
        goal = self._count(name) + 1
        done: list[tuple[Move, tuple[NodeRoom, ...]]] = []
        while self._count(name) < goal:
            must = self._must_leave(name)
            step = self._step(name, must, goal) if must and len(done) < most else None
            if step is None:
                for move, rooms in reversed(done):
                    self._undo(move, rooms)
                return ()
            done.append(step)
        return tuple(move for move, _ in done)

    def _step(self, name: str, must: tuple[Tenant, ...], goal: int) -> tuple[Move, tuple[NodeRoom, ...]] | None:
        """Make the first move that helps."""
        for tenant in self._in_question(name, must):
            made = self._move(tenant)
            if made is None:
                continue
            now = self._must_leave(name)
            if self._count(name) >= goal or (now is not None and len(now) < len(must)):
                return made
            self._undo(*made)
        return None

    def _in_question(self, name: str, must: tuple[Tenant, ...]) -> Iterator[Tenant]:
        """The Pods that must leave, then those that might help as much; of the lowest priorities first."""
        yield from must
        room, tenants = self._fleet.rooms[name], self._tenants[name]
        chosen = {one.guest.uid for one in must}
        others = [(one.priority, len(self._held(name, one).shares), uid) for uid, one in tenants.items()]
        for _, _, uid in sorted(each for each in others if each[2] not in chosen):
            one = tenants[uid]
            left = [each for each in tenants if each != uid]
            without = room.without(uid, one.guest.asks)
            if len(must) == 1:
                helps = self._fills.count(without) > self._count(name)
            else:
                helps = fewest_leaving(self._wanted, without.node, self._count(name), left) < len(must)
            if helps:
                yield one

    def _move(self, tenant: Tenant) -> tuple[Move, tuple[NodeRoom, ...]] | None:
        """Try a move; returns it with the nodes as they were, or None where it is left out."""
        if not self._bounds.landings.covers(2 - tenant.late):
            return None
        guest, old = tenant.guest, self._fleet.rooms[tenant.node]
        early = None if tenant.late else self._fleet.goes_to(guest)
        if early is None and not tenant.late and not self._gone_first:
            self._doubted = True
            return None
        before, had = old.node.holdings[guest.uid], self._count(tenant.node)
        self._put(old.without(guest.uid, guest.asks))
        placed = self._fleet.goes_to(guest)
        certain = tenant.late or (early is not None and placed is not None and _same(early, placed))
        if placed is None or not (certain or self._gone_first):
            self._doubted = self._doubted or placed is not None
            self._put(old)
            return None
        there = self._fleet.rooms[placed.node]
        room = had if placed.node == tenant.node else self._count(placed.node)
        after = replace(held_by(guest, placed), uid=f"after {guest.uid}")
        self._put(there.holding(after, guest.asks))
        rooms = (old,) if placed.node == tenant.node else (there, old)
        del self._tenants[tenant.node][guest.uid]
        move = Move(tenant, before, after, placed.node, certain)
        if self._count(placed.node) < room:
            self._undo(move, rooms)
            return None
        return move, rooms

    def _undo(self, move: Move, rooms: tuple[NodeRoom, ...]) -> None:
        for room in rooms:
            self._put(room)
        self._tenants[move.tenant.node][move.tenant.guest.uid] = move.tenant

    def _must_leave(self, name: str) -> tuple[Tenant, ...] | None:
        """The Pods that must leave so that one more of the size fits; None where that does not help or is not known."""
        if name not in self._must:
            self._must[name] = self._choose(name)
        return self._must[name]

    def _choose(self, name: str) -> tuple[Tenant, ...] | None:
        tenants = self._tenants.get(name)
        room, may = self._fleet.rooms[name], self._wanted.may
        if not tenants or room.closed or (may is not None and name not in may):
            return None
        full = self._fills.full(room).room
        chosen = self._victims(full, tenants)
        if chosen is None:
            return None
        return _enough(full, chosen, tenants, self._wanted)

    def _victims(self, room: NodeRoom, tenants: Mapping[str, Tenant]) -> list[str] | None:
        """The Pods that must leave for the devices' and CPUs' sake: none if these suffice, None if that is in vain."""
        request, node = self._wanted.request, room.node
        if _fits(self._wanted, room):
            return []
        if not _fits(self._wanted, replace(room, node=node.without(tenants))):
            return None
        if self._fewest(node.name) == len(tenants):
            return sorted(tenants, key=lambda uid: (tenants[uid].priority, uid))
        budget = Budget(_A_CHOICE)
        standing = {uid: PodStanding(one.priority) for uid, one in tenants.items()}
        found = _result(choose_victims(request, node, standing, _ABOVE_ALL, (), budget))
        self._bounds.steps.covers(int(_A_CHOICE - budget.left))
        return None if found is None or self._bounds.steps.short else list(found)


def _result(choosing: Iterator[None]) -> tuple[str, ...] | None:
    while True:
        try:
            next(choosing)
        except StopIteration as end:
            found: tuple[str, ...] | None = end.value
            return found


def _fits(wanted: Guest, room: NodeRoom) -> bool:
    return isinstance(place(wanted.request, room.node, None, Budget(DECISION_STEPS)), Placement)


def _enough(
    room: NodeRoom, chosen: list[str], tenants: Mapping[str, Tenant], wanted: Guest
) -> tuple[Tenant, ...] | None:
    """Add Pods until CPU and memory suffice too, and leave out those that are not needed then; None if in vain."""
    left = {uid: one for uid, one in tenants.items() if uid not in chosen}
    now = _without(room, chosen, tenants)
    added = False
    while lack := now.lacks(wanted.asks):
        more = [(one.priority, -one.guest.asks.get(lack, 0), uid) for uid, one in left.items()]
        uid = min((each for each in more if each[1]), default=None)
        if uid is None:
            return None
        chosen, added = [*chosen, uid[2]], True
        now = _without(room, chosen, tenants)
        del left[uid[2]]
    if added:
        for uid_of in sorted(chosen, key=lambda each: (-tenants[each].priority, each)):
            fewer = [each for each in chosen if each != uid_of]
            without = _without(room, fewer, tenants)
            if not without.lacks(wanted.asks) and _fits(wanted, without):
                chosen = fewer
    return tuple(tenants[uid] for uid in chosen)


def _without(room: NodeRoom, uids: Iterable[str], tenants: Mapping[str, Tenant]) -> NodeRoom:
    for uid in uids:
        room = room.without(uid, tenants[uid].guest.asks)
    return room


def _same(one: Placement, other: Placement) -> bool:
    """Whether two placements are on the same devices and CPUs of the same node."""
    cpus = [each.cpus.cpus if each.cpus is not None else 0 for each in (one, other)]
    ids = [{share.id for share in each.shares} for each in (one, other)]
    return one.node == other.node and ids[0] == ids[1] and cpus[0] == cpus[1]
