"""An explanation on paper: the answer first, then tables."""

from collections.abc import Iterator

from rich.table import Table
from rich.text import Text

from console.explain import words
from console.explain.bound import Whereabouts
from console.explain.explanation import Explanation
from console.explain.nodes import NodeDetail
from console.explain.remedies import WayToFit
from console.explain.waiting import last_said
from console.plaintable import plain_table
from console.simulator.words import asked
from console.terminal import counted, printable

Part = Table | Text | str
_MOST_GROUPS = 12
_MOST_CARDS = 32
_MOST_ORDER = 5
_MOST_TEXT = 600  # characters of one reason


def parts(found: Explanation, *, everything: bool) -> Iterator[Part]:
    """Write an explanation."""
    yield Text(_line(words.headline(found)), "bold")
    step = words.next_step(found)
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
        yield from _node(node, remedies, everything=everything)


def _line(text: str) -> str:
    """One printable line of bounded length."""
    text = " ".join(printable(text.replace("\n", " ")).split())
    return text if len(text) <= _MOST_TEXT else f"{text[:_MOST_TEXT]}..."


def _nodes(found: Explanation, *, everything: bool) -> Iterator[Part]:
    groups = words.grouped(found.verdicts)
    if not groups and not found.fitting:
        return
    most = len(found.verdicts) if everything else words.MOST_NAMED
    table = plain_table("NODES", "WHY NOT", "SAYS", "WHICH")
    for by, why, names in groups if everything else groups[:_MOST_GROUPS]:
        table.add_row(str(len(names)), _line(why), by, words.some(names, most))
    if fitting := [one.name for one in found.fitting]:
        table.add_row(str(len(fitting)), "it fits", "", words.some(fitting, most))
    yield ""
    yield table
    if len(groups) > _MOST_GROUPS and not everything:
        yield f"{counted(len(groups) - _MOST_GROUPS, 'more reason')}: --all"


def _node(node: NodeDetail, remedies: list[WayToFit], *, everything: bool) -> Iterator[Part]:
    verdict = node.verdict
    yield ""
    if verdict.fits:
        yield f"Node {verdict.name}: it fits"
    else:
        yield f"Node {verdict.name} (lack {verdict.lack}: percent of a device, CPU or amount; see docs/explain.md)"
    for reason in verdict.reasons:
        yield f"  {reason.by}: {_line(reason.text)}"
    shown = node.cards if everything else node.cards[:_MOST_CARDS]
    for card in shown:
        yield f"  {_line(words.card(card))}"
    if len(node.cards) > len(shown):
        yield f"  {counted(len(node.cards) - len(shown), 'more device')}: --all"
    yield from (f"  {_line(doubt)}" for doubt in node.doubts[: None if everything else _MOST_CARDS])
    for numa, why in node.numas.items():
        yield f"  NUMA node {numa}: {_line(why) or 'it would fit'}"
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
    yield from (f"  {_line(text)}" for text in words.why_these(found, one))
    if one.order:
        preference = found.scene.settings.scheduler.preference
        table = plain_table("PLACE", "NODE", f"COMPARED BY ({preference})")
        shown = list(one.order if everything else one.order[:_MOST_ORDER])
        if one.own is not None and one.own not in shown:
            shown.append(one.own)
        for other in shown:
            mark = " (the Pod's)" if other.name == one.node else ""
            table.add_row(str(other.level + 1), f"{other.name}{mark}", words.parts(other, preference))
        yield ""
        yield table
        if len(one.order) > len(shown):
            yield f"{counted(len(one.order) - len(shown), 'more node')}: --all"
    if one.recorded:
        yield ""
        yield "What was recorded when it was bound"
        yield from (f"  {_line(text)}" for text in one.recorded)
