"""Plans for what is wanted, and the nearest node where no plan leads to room."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from allocator.packing.defrag import Ended, MovePlan, PlanBounds, plan
from allocator.packing.fleet import Guest, NodeRoom
from allocator.place import Placement, place
from allocator.reasons.cards import lack
from allocator.vocabulary.devicetype import FULL
from console.packing.state import PackingState, Stay
from console.packing.wanted import WantedRoom


@dataclass(frozen=True, slots=True)
class Nearest:
    """The node that lacks least.

    Attributes:
        node: its name.
        lack: percent of devices and of other amounts that it lacks, as `koordgate explain` counts it.
        why: why it cannot hold the Pod.
        stays: who holds something there and is not moved.
        movable: how many Pods there may be moved.
    """

    node: str
    lack: int
    why: str
    stays: tuple[Stay, ...]
    movable: int


@dataclass(frozen=True, slots=True)
class RoomPlan:
    """A plan for what is wanted.

    Attributes:
        wanted: what room is wanted for.
        plan: the moves.
        nearest: the node that lacks least, where it fits on none; None if there is no node.
        if_gone: where there are no moves, those that would help if each Pod were gone before its controller makes the
            next one; None if these do not help either.
    """

    wanted: WantedRoom
    plan: MovePlan
    nearest: Nearest | None
    if_gone: MovePlan | None = None


def planned(state: PackingState, wanted: WantedRoom, rooms: int, most: int) -> RoomPlan:
    """Plan room for more Pods of what is wanted; where no moves help, also what would if Pods were gone first.

    Args:
        state: the cluster.
        wanted: what room is wanted for.
        rooms: for how many more.
        most: the most moves.
    """
    return _if_gone(state, _certain(state, wanted, rooms, most), rooms, most)


def first_with_moves(state: PackingState, choice: Sequence[WantedRoom], rooms: int, most: int) -> RoomPlan | None:
    """The plan for the first of these for which moves help.

    If none do, that for the first of these for which moves would help if Pods were gone first; else for the first.
    """
    vain = []
    for one in choice:
        made = _certain(state, one, rooms, most)
        if made.plan.moves:
            return made
        vain.append(made)
    tried = (_if_gone(state, made, rooms, most) for made in vain)
    return next((made for made in tried if made.if_gone is not None), vain[0] if vain else None)


def _certain(state: PackingState, wanted: WantedRoom, rooms: int, most: int) -> RoomPlan:
    found = plan(state.rooms, state.tenants, wanted.guest, state.compared, PlanBounds(rooms, most))
    return RoomPlan(wanted, found, None if found.fitting else _nearest(state, wanted))


def _if_gone(state: PackingState, made: RoomPlan, rooms: int, most: int) -> RoomPlan:
    """Add what would help if Pods were gone first, where nothing else does."""
    if made.plan.moves or not made.plan.doubted:
        return made
    bounds = PlanBounds(rooms, most)
    found = plan(state.rooms, state.tenants, made.wanted.guest, state.compared, bounds, gone_first=True)
    return replace(made, if_gone=found) if found.moves else made


def _nearest(state: PackingState, wanted: WantedRoom) -> Nearest | None:
    guest = wanted.guest
    open_to = [room for room in state.rooms if not room.closed and (guest.may is None or room.node.name in guest.may)]
    if not open_to:
        return None
    far = {room.node.name: _lack(state, room, wanted) for room in open_to}
    best = min(open_to, key=lambda room: (far[room.node.name], room.node.name))
    name = best.node.name
    stays = tuple(one for one in state.stays if one.node == name)
    movable = sum(one.node == name for one in state.tenants)
    return Nearest(name, far[name], _why(best, wanted), stays, movable)


def _lack(state: PackingState, room: NodeRoom, wanted: WantedRoom) -> int:
    devices = state.types.resources  # what of these is missing, the devices themselves say
    asks = {name: amount for name, amount in wanted.guest.asks.items() if name not in devices}
    short = ((asked, room.free(name)) for name, asked in asks.items())
    beside = sum(-(-FULL * (asked - free) // asked) for asked, free in short if free is not None and asked > free)
    return lack(wanted.guest.request, room.node) + beside


def _why(room: NodeRoom, wanted: WantedRoom) -> str:
    outcome = place(wanted.guest.request, room.node)
    if isinstance(outcome, Placement):
        return f"not enough {room.lacks(wanted.guest.asks)}"
    return outcome.short or outcome.message.removeprefix(f"{room.node.name}: ")


def must_be_gone(made: MovePlan) -> list[Guest]:
    """The Pods of a plan whose next ones would go elsewhere, or nowhere, while the old ones are still there."""
    return [move.tenant.guest for move in made.moves if not move.certain]


def why_no_more(found: RoomPlan) -> str:
    """Why the plan has no more rooms, in a sentence; "" if it has as many as were wanted."""
    return {
        Ended.ENOUGH: "",
        Ended.MOVES: "more moves would be needed than --most allows",
        Ended.NOTHING: "no move helps for which it is certain where the Pod goes"
        if found.if_gone is not None
        else "no further move helps",
        Ended.WORK: "the search ended before everything was tried: name a model, or a smaller size",
    }[found.plan.ended]
