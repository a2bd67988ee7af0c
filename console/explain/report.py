"""An explanation in sentences, of which the first is the answer; with tables; and as data, whose fields stay."""

from collections.abc import Iterator, Sequence
from typing import Any, Final

from rich.table import Table
from rich.text import Text

from allocator.index.query import MAX_AMOUNT
from allocator.index.search import STEP
from allocator.vocabulary.asks import Preference
from console import devicewords
from console.explain.explanation import Explanation, Hurdle, Rival, TypeLeft, Whereabouts, held_by_others, last_said
from console.explain.nodes import CardDetail, NodeDetail, NodeVerdict, WayToFit
from console.plaintable import plain_table
from console.simulator.words import asked
from console.terminal import counted, printable, some

MAX_NAMED: Final = 8


def headline(found: Explanation) -> str:
    """The answer in one sentence."""
    name, stopped = _subject(found), found.stopped
    if stopped is not None and stopped.why in {"finished", "terminating"}:
        return f"{name}: {stopped.text}."
    if found.bound:
        return f"{name} is on {found.scene.given['spec']['nodeName']}: {_why_there(found)}."
    if stopped is not None:
        return f"{name} is on no node: {stopped.text}."
    many = f"{len(found.verdicts)} nodes" if len(found.verdicts) != 1 else "1 node"
    if not found.verdicts:
        return f"{name} is on no node: there is no Node."
    if found.fitting:
        return f"{name} {_where_it_fits(found, many)}."
    nearest = found.verdicts[0]
    return f"{name} fits on none of {many}; the nearest is {nearest.name}: {nearest.reasons[0].short}."


def _subject(found: Explanation) -> str:
    """The Pod; of several that are alike, all of them."""
    target = found.scene.target
    if target.several:
        return f"Each of {target.waiting} Pods of {target.of}"
    return f"The Pod of {target.of}" if target.where else f"Pod {found.scene.name}"


def _alike(found: Explanation) -> Iterator[str]:
    """What is to be known of the Pods that are like the one that is explained, a sentence each."""
    target = found.scene.target
    if target.several:
        yield f"They are alike, and Pod {found.scene.name} is explained for all."
        if found.fitting and found.stopped is None:
            yield "How many of them fit at the same time, koordgate simulate says."
    if target.of and target.bound:
        which = "have" if target.bound > 1 else "has"
        yield f"{counted(target.bound, 'more Pod' if target.waiting else 'Pod')} of {target.of} {which} a node."


def _where_it_fits(found: Explanation, many: str) -> str:
    room = f"{len(found.fitting)} of {many}"
    if found.aside is not None:
        return f"is on no node yet: {found.aside.text}; there is room on {room}"
    return f"fits on {room} now; koordgate would send it to {found.fitting[0].name}"


def next_step(found: Explanation) -> str:
    """What to do, in one sentence; "" if there is nothing to do."""
    stopped = found.stopped
    if found.bound or (stopped is not None and stopped.why == "finished"):
        return ""
    if stopped is not None:
        return f"To do: {stopped.todo}."
    if found.aside is not None:
        return f"To do: {found.aside.todo}."
    if found.fitting:
        return "" if not found.scene.existing else "To do: nothing, if it is bound soon; see below why it waited."
    first = next((remedy for listed in found.remedies for remedy in listed), None)
    if first is None:
        return "To do: no single change makes it fit on the nearest node; look at others with --node, or add a node."
    return f"To do, for example: {first.text}."


def _why_there(found: Explanation) -> str:
    one = found.standing
    if one is None:
        return found.hurdles[0].text if found.hurdles else "it asks for nothing that koordgate gives"
    if one.holding is None:
        theirs = held_by_others(found.scene)
        knows = f"; it holds {theirs}" if theirs else ", which gave it nothing and does not know its devices"
        return f"it was bound without koordgate{knows}"
    held = ", ".join(f"{share.type} {share.minor}" for share in one.shares[:MAX_NAMED]) or "CPUs"
    if one.own is None:
        return f"it holds {held}; the node could not give it that again now: {one.why_not}"
    if one.own.level == 0:
        return f"it holds {held}, and this is {_among_best(one.order)}"
    better = len([other for other in one.order if other.level < one.own.level])
    return f"it holds {held}; now {better} of {len(one.order)} nodes would come before it, {one.order[0].name} first"


def _among_best(order: Sequence[Rival]) -> str:
    best = sum(other.level == 0 for other in order)
    if len(order) == 1:
        return "the only node that could hold it"
    if best == 1:
        return f"the best of {len(order)} nodes that could hold it"
    return f"one of {best} equally good nodes, of {len(order)} that could hold it"


def grouped(verdicts: Sequence[NodeVerdict]) -> list[tuple[str, str, list[str]]]:
    """Group nodes by their first reason: who says so, the reason, and the nodes; the most frequent reason first."""
    groups: dict[tuple[str, str], list[str]] = {}
    for one in verdicts:
        if one.reasons:
            groups.setdefault((one.reasons[0].by, one.reasons[0].short), []).append(one.name)
    return sorted(((by, why, names) for (by, why), names in groups.items()), key=lambda one: (-len(one[2]), one[:2]))


def told_cards(cards: Sequence[CardDetail], *, apart: bool = False) -> Iterator[str]:
    """Devices: which they are, why they cannot serve the Pod, and who holds them; equal ones in one line.

    `apart`: each in a line of its own.
    """
    alike: dict[object, list[CardDetail]] = {}
    for at, one in enumerate(cards):
        alike.setdefault(at if apart else (one.device.type, one.reason.why, one.holders), []).append(one)
    for of in alike.values():
        first = of[0]
        held = f"; held by {some(first.holders, 4)}" if first.holders else ""
        minors = ", ".join(str(one.device.minor) for one in of)
        which = f" {devicewords.short_id(first.device.id)}" if len(of) == 1 else ""
        yield f"{first.device.type} {minors}{which}: {first.reason.why or 'room for the Pod'}{held}"


def figures(one: Rival, preference: Preference) -> str:
    """The figures by which a node is compared, in the order in which they count."""
    found = one.parts
    texts = [f"{found.mates} of its gang there"] if found.mates else []
    texts += [f"room for {found.room} of its gang"] if found.room > 1 else []
    texts += [f"fragmentation grows by {found.growth}"] if found.growth is not None else []
    texts += [f"breaks a group of {found.broken}"] if found.broken else []
    texts += [_begun(found.begun)] if found.begun else []
    opened = [] if found.opened is None else [_opened(found.opened)]
    opened += [_begins(found.idle)] if found.idle else []
    if preference is Preference.PACKING:
        return ", ".join([*texts, *opened, f"packing {found.score} of 100 (counts as {found.score // STEP * STEP})"])
    if preference is Preference.FRAGMENTATION:
        return ", ".join([*texts, *opened, f"place {found.score + 1} by {Preference.MOST_BALANCED}"])
    return ", ".join([*texts, f"place {found.score + 1} by {preference}", *opened])


def _opened(size: int) -> str:
    return f"opens a device of size {size}" if size else "opens no idle device"


def _begins(devices: int) -> str:
    return f"begins an idle node of {devices} devices" if devices > 1 else "begins an idle node"


def _begun(cpus: int) -> str:
    return f"opens one on a node of {cpus // 1000} CPUs" if cpus < MAX_AMOUNT else "opens one on a node without CPUs"


def _idle(left: TypeLeft) -> str:
    if not left.idle_before:
        return "none was idle"
    if left.idle_before == 1:
        return "the one that was idle stays whole" if left.idle_after else "the one that was idle is in use now"
    return f"{left.idle_after} of the {left.idle_before} idle ones stay whole"


def why_these(found: Explanation, one: Whereabouts) -> Iterator[str]:
    """Why the Pod has these devices, a sentence each."""
    types = found.scene.types
    for share in one.shares:
        kind = types.by_name[share.type]
        beside = one.beside.get(share.id, ())
        use = f"in use already, shared with {some(list(beside), 4)}" if beside else "idle before"
        yield f"{devicewords.device(share, kind)}: {use}"
    for left in one.left:
        yield f"of {counted(left.total, 'device')} of type {left.type}, {_idle(left)}"
    taken = {share.id for share in one.shares}
    for other in one.cards if one.holding is not None else ():
        if other.device.id not in taken:
            state = other.why or "it has room as well, and comes later in the order of devices"
            yield f"not {other.device.type} {other.device.minor} {devicewords.short_id(other.device.id)}: {state}"
    if one.placed is not None and not one.same:
        now = [f"{share.type} {share.minor}" for share in one.placed.shares]
        why = ": what else runs there has changed since" if one.holding is not None else " from koordgate"
        yield f"now it would get {some(now) or 'other CPUs'} there{why}"


Part = Table | Text | str
_MAX_GROUPS = 12
_MAX_CARDS = 32
_MAX_ORDER = 5
_MAX_TEXT = 600  # characters of one reason


def parts(found: Explanation, *, everything: bool) -> Iterator[Part]:
    """Write an explanation."""
    yield Text(_line(headline(found)), "bold")
    for one in found.hurdles if found.stopped is None else [found.stopped]:
        yield from (f"  - {_line(text)}" for text in one.details)
    yield from map(_line, _alike(found))
    step = next_step(found)
    if step:
        yield _line(step)
    for one in found.hurdles:
        if one is not found.stopped and one is not found.aside:
            yield _line(f"Also: {one.text}. To do: {one.todo}.")
    requests = asked(found.scene.pod, found.scene.types)
    if requests:
        how = " (as koordgate would translate it)" if found.scene.translated else ""
        yield ""
        yield f"What it asks for{how}"
        yield from (f"  {_line(line)}" for line in requests)
    if found.standing is not None:
        yield from _standing(found, found.standing, everything=everything)
        return
    if found.bound:
        return
    if said := last_said(found.scene.given):
        yield ""
        yield f"What its scheduler said last: {_line(said)}"
    yield from _nodes(found, everything=everything)
    for node, remedies in zip(found.nodes, found.remedies, strict=True):
        yield from _node(found, node, remedies, everything=everything)


def _line(text: str) -> str:
    """One printable line of bounded length."""
    text = " ".join(printable(text.replace("\n", " ")).split())
    return text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}..."


def _nodes(found: Explanation, *, everything: bool) -> Iterator[Part]:
    groups = grouped(found.verdicts)
    if not groups and not found.fitting:
        return
    most = len(found.verdicts) if everything else MAX_NAMED
    table = plain_table("NODES", "WHY NOT", "SAYS", "WHICH")
    for by, why, names in groups if everything else groups[:_MAX_GROUPS]:
        table.add_row(str(len(names)), _line(why), by, some(names, most))
    if fitting := [one.name for one in found.fitting]:
        table.add_row(str(len(fitting)), "it fits", "", some(fitting, most))
    yield ""
    yield table
    if len(groups) > _MAX_GROUPS and not everything:
        yield f"{counted(len(groups) - _MAX_GROUPS, 'more reason')}: --all"


def _node(found: Explanation, node: NodeDetail, remedies: list[WayToFit], *, everything: bool) -> Iterator[Part]:
    verdict = node.verdict
    yield ""
    if verdict.fits:
        yield f"Node {verdict.name}: it fits"
    else:
        yield f"Node {verdict.name} (the nearest)" if verdict is found.verdicts[0] else f"Node {verdict.name}"
    for reason in verdict.reasons:
        yield f"  {reason.by}: {_line(reason.text)}"
    lines = list(told_cards(node.cards, apart=everything))
    shown = lines if everything else lines[:_MAX_CARDS]
    yield from (f"  {_line(text)}" for text in shown)
    if len(lines) > len(shown):
        yield f"  {counted(len(lines) - len(shown), 'more line')} about devices: --all"
    yield from (f"  {_line(doubt)}" for doubt in node.doubts[: None if everything else _MAX_CARDS])
    for numa, why in node.numas.items():
        yield f"  NUMA node {numa}: {_line(why) or 'it fits there'}"
    if verdict.fits:
        return
    yield ""
    yield from _remedies(node, remedies)


def _remedies(node: NodeDetail, remedies: list[WayToFit]) -> Iterator[str]:
    name = node.verdict.name
    needed, ways = [one for one in remedies if one.needed], [one for one in remedies if not one.needed]
    if needed:
        yield f"What is needed for it to fit on {name}{', all of this' if len(needed) > 1 else ''}"
        yield from (f"  - {_line(one.text)}" for one in needed)
    if ways:
        beside = "What is needed besides" if needed else f"What would make it fit on {name}"
        yield f"{beside}, one of these is enough" if len(ways) > 1 else beside
        yield from (f"  - {_line(one.text)}" for one in ways)
    elif not needed or any(reason.by == "koordgate" for reason in node.verdict.reasons):
        besides = "Besides, no" if needed else "No"
        yield f"{besides} single change that koordgate knows makes it fit on {name}."


def _standing(found: Explanation, one: Whereabouts, *, everything: bool) -> Iterator[Part]:
    yield ""
    yield "Why these devices (the same decision on the cluster as it is now without the Pod; the past is not recorded)"
    yield from (f"  {_line(text)}" for text in why_these(found, one))
    if one.order:
        preference = found.scene.settings.scheduler.preference
        table = plain_table("PLACE", "NODE", f"COMPARED BY ({preference})")
        shown = list(one.order if everything else one.order[:_MAX_ORDER])
        if one.own is not None and one.own not in shown:
            shown.append(one.own)
        for other in shown:
            mark = " (the Pod's)" if other.name == one.node else ""
            table.add_row(str(other.level + 1), f"{other.name}{mark}", figures(other, preference))
        yield ""
        yield table
        if len(one.order) > len(shown):
            yield f"{counted(len(one.order) - len(shown), 'more node')}: --all"
    if one.recorded:
        yield ""
        yield "What was recorded when it was bound"
        yield from (f"  {_line(text)}" for text in one.recorded)


Raw = dict[str, Any]


def data(found: Explanation) -> Raw:
    """Write an explanation in full."""
    scene = found.scene
    return {
        "pod": scene.name,
        "of": scene.target.of,
        "alike": scene.target.waiting,
        "withNode": scene.target.bound,
        "uid": scene.given["metadata"]["uid"],
        "node": scene.given["spec"].get("nodeName") or "",
        "answer": headline(found),
        "toDo": next_step(found),
        "mode": str(scene.mode),
        "schedulerName": scene.given["spec"].get("schedulerName") or "",
        "translatedHere": scene.translated,
        "schedulerSaid": last_said(scene.given),
        "hurdles": [_hurdle(one) for one in found.hurdles],
        "fits": [one.name for one in found.fitting],
        "nodes": [_verdict(one) for one in found.verdicts],
        "details": [_detail(*both) for both in zip(found.nodes, found.remedies, strict=True)],
        "standing": None if found.standing is None else _standing_data(found.standing),
        "notes": scene.notes,
    }


def _hurdle(one: Hurdle) -> Raw:
    text = "; ".join((one.text, *one.details))
    return {"why": str(one.why), "text": text, "toDo": one.todo, "stops": one.stops}


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


def _standing_data(one: Whereabouts) -> Raw:
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
