"""The report and the plan as data, for `-o json` and `-o yaml`. Fields are added, and none is renamed."""

from collections.abc import Mapping, Sequence
from typing import Any

from allocator.packing.defrag import Move, MovePlan
from allocator.packing.stranded import Stranded, Use, points_of
from allocator.vocabulary.devicetype import DeviceType
from allocator.vocabulary.holdings import Share
from console.packing.apply import MoveResult
from console.packing.planning import RoomPlan, must_be_gone
from console.packing.state import PackingState, Stay
from console.packing.wanted import WantedRoom

Raw = dict[str, Any]

_MILLI = 1000


def milli(points: int, kind: DeviceType, weight: int = 1) -> int:
    """Points as thousandths of a device, rounded down."""
    return points * _MILLI // (points_of(kind) * weight)


def report_data(state: PackingState, found: Stranded, sizes: Sequence[WantedRoom], plans: Sequence[RoomPlan]) -> Raw:
    """Write the packing report."""
    kind = sizes[0].kind
    models = [
        {
            "model": model,
            "nodes": one.nodes,
            "devices": one.devices,
            "outOfService": one.out,
            "idle": one.idle,
            "partlyFree": one.parts,
            "freeMilli": milli(one.free, kind),
            "freeOutOfServiceMilli": milli(one.free_out, kind),
        }
        for model, one in sorted(found.stock.items())
    ]
    rows = [_use_data(one.word, one.guest.asks, uses, kind, 1) for one, uses in zip(sizes, found.sizes, strict=True)]
    typical = _use_data("typical", {}, found.typical, kind, found.weight) if found.weight else None
    return {
        "type": kind.name,
        "models": models,
        "sizes": rows,
        "typical": typical,
        "plans": [plan_data(state, one) for one in plans],
        **about(state),
    }


def _use_data(word: str, asks: Mapping[str, int], uses: Mapping[str, Use], kind: DeviceType, weight: int) -> Raw:
    return {
        "size": word,
        "milliCPU": asks.get("cpu", 0),
        "memory": asks.get("memory", 0),
        "models": [
            {
                "model": model,
                "fit": one.fit,
                "usableMilli": milli(one.usable, kind, weight),
                "lostMilli": {
                    part: milli(getattr(one, part), kind, weight) for part in ("cpu", "memory", "remainder", "out")
                },
            }
            for model, one in sorted(uses.items())
        ],
    }


def plan_data(state: PackingState, found: RoomPlan) -> Raw:
    """Write a plan."""
    near = found.nearest
    return {
        "for": found.wanted.word or found.wanted.words,
        "fitsNow": [{"node": name, "count": count} for name, count in found.plan.fitting],
        "fitBefore": found.plan.before,
        "fitAfter": found.plan.after,
        "ended": str(found.plan.ended),
        "rooms": _rooms_data(state, found.plan),
        "ifGoneFirst": None
        if found.if_gone is None
        else {
            "rooms": _rooms_data(state, found.if_gone),
            "pods": [f"{guest.namespace}/{guest.name}" for guest in must_be_gone(found.if_gone)],
        },
        "nearest": None
        if near is None
        else {
            "node": near.node,
            "lack": near.lack,
            "why": near.why,
            "movable": near.movable,
            "stays": [_stay_data(one) for one in near.stays],
        },
    }


def _rooms_data(state: PackingState, made: MovePlan) -> list[Raw]:
    return [{"node": room.node, "moves": [_move_data(state, move) for move in room.moves]} for room in made.rooms]


def about(state: PackingState) -> Raw:
    """Write what holds for every plan: who stays, and what is not known."""
    return {"stays": [_stay_data(one) for one in state.stays], "notes": state.notes}


def made_data(one: MoveResult) -> Raw:
    """Write what came of a move."""
    guest = one.move.tenant.guest
    return {
        "namespace": guest.namespace,
        "name": guest.name,
        "outcome": str(one.outcome),
        "text": one.text,
        "became": one.pod,
        "node": one.node,
    }


def _stay_data(one: Stay) -> Raw:
    return {"pod": one.pod, "node": one.node, "why": one.why}


def _move_data(state: PackingState, move: Move) -> Raw:
    guest, owner = move.tenant.guest, state.owners[move.tenant.guest.uid]
    return {
        "namespace": guest.namespace,
        "name": guest.name,
        "uid": guest.uid,
        "controller": {"kind": owner.kind, "name": owner.name, "uid": owner.uid},
        "priority": move.tenant.priority,
        "from": {"node": move.tenant.node, "devices": [_share_data(share) for share in move.before.shares]},
        "to": {"node": move.to, "devices": [_share_data(share) for share in move.after.shares]},
    }


def _share_data(share: Share) -> Raw:
    return {"type": share.type, "minor": share.minor, "id": share.id, "amounts": dict(share.amounts)}
