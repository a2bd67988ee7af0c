"""An explanation in sentences (pure): the first one is the answer."""

from collections.abc import Iterator, Sequence
from typing import Final

from allocator.index.query import MAX_AMOUNT
from allocator.index.search import STEP
from allocator.vocabulary.preference import Preference
from console.explain.bound import Rival, TypeLeft, Whereabouts
from console.explain.explanation import Explanation
from console.explain.nodes import CardDetail, NodeVerdict
from console.explain.waiting import held_by_others
from console.simulator import words
from console.terminal import counted

MOST_NAMED: Final = 8


def headline(found: Explanation) -> str:
    """The answer in one sentence."""
    name, stopped = f"Pod {found.scene.name}", found.stopped
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


def _where_it_fits(found: Explanation, many: str) -> str:
    room = f"{len(found.fitting)} of {many}"
    if found.aside is not None:
        return f"is on no node yet: {found.aside.text}; it has room on {room}"
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
    held = ", ".join(f"{share.type} {share.minor}" for share in one.shares[:MOST_NAMED]) or "CPUs"
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


def some(names: Sequence[str], most: int = MOST_NAMED) -> str:
    """Name the first of many."""
    told = ", ".join(names[:most])
    return told if len(names) <= most else f"{told} and {len(names) - most} more"


def card(one: CardDetail) -> str:
    """One device in a line: what it is, why it does not do, and who holds it."""
    device = one.device
    held = f"; held by {some(one.holders, 4)}" if one.holders else ""
    return f"{device.type} {device.minor} {words.short_id(device.id)}: {one.reason.why or 'it would do'}{held}"


def parts(one: Rival, preference: Preference) -> str:
    """The figures by which a node is compared, in the order in which they count."""
    figures = one.parts
    texts = [f"{figures.mates} of its gang there"] if figures.mates else []
    texts += [f"room for {figures.room} of its gang"] if figures.room > 1 else []
    texts += [f"fragmentation grows by {figures.growth}"] if figures.growth is not None else []
    texts += [f"breaks a group of {figures.broken}"] if figures.broken else []
    texts += [_begun(figures.begun)] if figures.begun else []
    opened = [] if figures.opened is None else [_opened(figures.opened)]
    opened += [_begins(figures.idle)] if figures.idle else []
    if preference is Preference.PACKING:
        return ", ".join([*texts, *opened, f"packing step {figures.score // STEP} ({figures.score} of 100)"])
    if preference is Preference.FRAGMENTATION:
        return ", ".join([*texts, *opened, f"place {figures.score + 1} by {Preference.MOST_BALANCED}"])
    return ", ".join([*texts, f"place {figures.score + 1} by {preference}", *opened])


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
        yield f"{words.device(share, kind)}: {use}"
    for left in one.left:
        yield f"of {counted(left.total, 'device')} of type {left.type}, {_idle(left)}"
    taken = {share.id for share in one.shares}
    for other in one.cards if one.holding is not None else ():
        if other.device.id not in taken:
            state = other.why or "it would have done as well: it comes later in the order of devices"
            yield f"not {other.device.type} {other.device.minor} {words.short_id(other.device.id)}: {state}"
    if one.placed is not None and not one.same:
        now = [f"{share.type} {share.minor}" for share in one.placed.shares]
        why = ": what else runs there has changed since" if one.holding is not None else " from koordgate"
        yield f"now it would get {some(now) or 'other CPUs'} there{why}"
