"""An explanation as data, for `-o json`. Fields are added, and none is renamed."""

from typing import Any

from console.explain import words
from console.explain.bound import Whereabouts
from console.explain.explanation import Explanation
from console.explain.nodes import NodeDetail, NodeVerdict
from console.explain.remedies import WayToFit
from console.explain.waiting import last_said

Raw = dict[str, Any]


def data(found: Explanation) -> Raw:
    """Write an explanation in full."""
    scene = found.scene
    return {
        "pod": scene.name,
        "uid": scene.given["metadata"]["uid"],
        "node": scene.given["spec"].get("nodeName") or "",
        "answer": words.headline(found),
        "toDo": words.next_step(found),
        "mode": str(scene.mode),
        "schedulerName": scene.given["spec"].get("schedulerName") or "",
        "translatedHere": scene.translated,
        "schedulerSaid": last_said(scene.given),
        "hurdles": [
            {"why": str(one.why), "text": one.text, "toDo": one.todo, "stops": one.stops} for one in found.hurdles
        ],
        "fits": [one.name for one in found.fitting],
        "nodes": [_verdict(one) for one in found.verdicts],
        "details": [_detail(*both) for both in zip(found.nodes, found.remedies, strict=True)],
        "standing": None if found.standing is None else _standing(found.standing),
        "notes": scene.notes,
    }


def _verdict(one: NodeVerdict) -> Raw:
    reasons = [{"by": reason.by, "short": reason.short, "text": reason.text} for reason in one.reasons]
    return {"name": one.name, "fits": one.fits, "lack": one.lack, "permanent": one.permanent, "reasons": reasons}


def _detail(node: NodeDetail, remedies: list[WayToFit]) -> Raw:
    cards = [
        {
            "type": one.device.type,
            "minor": one.device.minor,
            "id": one.device.id,
            "why": one.reason.why,
            "lack": one.reason.lack,
            "holders": list(one.holders),
        }
        for one in node.cards
    ]
    return {
        "name": node.verdict.name,
        "devices": cards,
        "doubts": list(node.doubts),
        "numaNodes": [{"node": numa, "why": why} for numa, why in node.numas.items()],
        "remedies": [
            {"kind": one.kind, "text": one.text, "pods": list(one.pods), "needed": one.needed} for one in remedies
        ],
    }


def _standing(one: Whereabouts) -> Raw:
    return {
        "node": one.node,
        "holds": [
            {"type": share.type, "minor": share.minor, "id": share.id, "amounts": dict(share.amounts)}
            for share in one.shares
        ],
        "order": [
            {
                "node": other.name,
                "level": other.level,
                **{k: v for k, v in other.parts._asdict().items() if v is not None},
            }
            for other in one.order
        ],
        "whyNotNow": one.why_not,
        "sameNow": one.same,
        "openedDevices": one.opened[0],
        "openedRoots": one.opened[1],
        "left": [
            {"type": left.type, "total": left.total, "idleBefore": left.idle_before, "idleAfter": left.idle_after}
            for left in one.left
        ],
        "recorded": list(one.recorded),
    }
