"""The report and the plan on paper: the answer first, then tables."""

from collections.abc import Iterator, Sequence

from rich.table import Table
from rich.text import Text

from allocator.amounts import CPU
from allocator.packing.defrag import Move
from allocator.packing.stranded import Stranded, Use
from allocator.request.typical import MEMORY
from allocator.vocabulary.devicetype import DeviceType
from allocator.vocabulary.models import model_name
from console.packing.data import milli
from console.packing.planning import Nearest, RoomPlan, must_be_gone, why_no_more
from console.packing.shareswords import shares_words
from console.packing.state import PackingState, Stay
from console.packing.wanted import WantedRoom
from console.plaintable import plain_table
from console.terminal import counted, printable

Part = Table | Text | str
_MOST_STAYS = 8
_MOST_NODES = 4
_MOST_GONE = 8
_NO_MODEL = "(unknown)"
_MILLI = 1000
_GIB = 2**30


def report_parts(
    state: PackingState, found: Stranded, sizes: Sequence[WantedRoom], plans: Sequence[RoomPlan]
) -> Iterator[Part]:
    """Write the packing report."""
    kind = sizes[0].kind
    if not found.stock:
        yield Text(f"No node has a device of type {kind.name}.", "bold")
        return
    yield Text(_headline(found, kind), "bold")
    yield ""
    yield _stock(found, kind)
    yield ""
    yield f"How much of it Pods of a size can use, and why not the rest (in {kind.noun}s)"
    yield _uses(found, sizes, kind)
    yield _requests(sizes)
    for one in plans:
        yield ""
        yield from _suggestion(state, one)


def _headline(found: Stranded, kind: DeviceType) -> str:
    stock = found.stock.values()
    free, idle, every = (sum(parts) for parts in zip(*((o.free, o.idle, o.devices) for o in stock), strict=True))
    nodes = sum(one.nodes for one in stock)
    text = f"Free: {_cards(free, kind)} of {counted(every, kind.noun)} on {counted(nodes, 'node')}"
    return f"{text}; {idle} of them whole, and parts of {sum(one.parts for one in stock)} more."


def _stock(found: Stranded, kind: DeviceType) -> Table:
    table = plain_table("MODEL", "NODES", f"{kind.noun.upper()}S", "WHOLE FREE", "PARTLY FREE", "FREE IN SUM", "OUT")
    for model, one in sorted(found.stock.items()):
        row = (one.nodes, one.devices, one.idle, one.parts, _cards(one.free, kind), one.out)
        table.add_row(_named(model), *map(str, row))
    return table


def _uses(found: Stranded, sizes: Sequence[WantedRoom], kind: DeviceType) -> Table:
    several = len(found.stock) > 1
    table = plain_table(
        *(["MODEL"] if several else []), "SIZE", "FIT", "USABLE", "NO CPU", "NO MEMORY", "REMAINDER", "OUT"
    )
    for model in sorted(found.stock):
        first = [_named(model)] if several else []
        for one, uses in zip(sizes, found.sizes, strict=True):
            use = uses.get(model, Use())
            table.add_row(*first, one.word, str(use.fit), *_parts(use, kind, 1))
            first = [""] if several else []
        if found.weight:
            table.add_row(*first, "typical", "", *_parts(found.typical.get(model, Use()), kind, found.weight))
    return table


def _parts(use: Use, kind: DeviceType, weight: int) -> list[str]:
    return [_cards(one, kind, weight) for one in (use.usable, use.cpu, use.memory, use.remainder, use.out)]


def _requests(sizes: Sequence[WantedRoom]) -> str:
    whole = next(one for one in sizes if one.word == "1")
    asks, noun = whole.guest.asks, whole.kind.noun
    if CPU not in asks and MEMORY not in asks:
        return f"No typical Pods are known: a Pod of a size requests {noun}s, no CPU and no memory (--cpu, --memory)."
    cpu, memory = asks.get(CPU, 0), asks.get(MEMORY, 0)
    return f"A Pod of one {noun} requests {cpu / _MILLI:.1f} CPUs and {memory / _GIB:.1f} GiB of memory."


def _suggestion(state: PackingState, one: RoomPlan) -> Iterator[Part]:
    words, moves = one.wanted.words, one.plan.moves
    words = f"{words[0].upper()}{words[1:]}"
    if one.plan.fitting:
        nodes = ", ".join(_said(name) for name, _ in one.plan.fitting[:_MOST_NODES])
        more = f" and {len(one.plan.fitting) - _MOST_NODES} more" if len(one.plan.fitting) > _MOST_NODES else ""
        yield Text(f"{words} fits now, {_times(one.plan.before)}: on {nodes}{more}.", "bold")
    else:
        yield Text(f"{words} fits on no node now.", "bold")
    if moves:
        yield f"{counted(len(moves), 'Pod')} would have to move to make room for one more on {one.plan.rooms[0].node}:"
        yield moves_table(state, moves)
        if one.wanted.word:
            yield f"To do that: koordgate defrag --for {one.wanted.word} --apply"
        return
    yield f"No room can be made by moving Pods: {why_no_more(one)}."
    yield from _if_gone(state, one)
    if one.nearest is not None:
        yield from _nearest(one.nearest)


def _nearest(near: Nearest) -> Iterator[Part]:
    yield f"The nearest node is {_said(near.node)} (lack {near.lack} %): {_said(near.why)}."
    if near.movable:
        yield f"{counted(near.movable, 'Pod')} there may be moved."
    yield from stays_lines(near.stays)


def plan_parts(state: PackingState, found: RoomPlan, *, applying: bool) -> Iterator[Part]:
    """Write a plan.

    Args:
        state: the cluster.
        found: the plan.
        applying: whether it is about to be carried out.
    """
    made, words = found.plan, found.wanted.words
    if not made.moves:
        now = f"It fits {_times(made.before)} now." if made.before else "It fits nowhere now."
        yield Text(f"No moves make room for {words}: {why_no_more(found)}. {now}", "bold")
        yield from _if_gone(state, found)
        if found.nearest is not None:
            yield from _nearest(found.nearest)
        else:
            yield from stays_lines(state.stays)
        return
    grows = f"It fits {_times(made.before)} now, and {_times(made.after)} after that."
    yield Text(f"{counted(len(made.moves), 'Pod')} would move to make room for {words}. {grows}", "bold")
    yield moves_table(state, made.moves)
    rooms = ", ".join(dict.fromkeys(_said(room.node) for room in made.rooms))
    yield f"Room for: {len(made.rooms)} more, on {rooms}."
    if why := why_no_more(found):
        yield f"There is no room for more: {why}."
    if not applying:
        yield "Nothing was changed. Each move is an eviction; to do them one by one: --apply"


def _if_gone(state: PackingState, found: RoomPlan) -> Iterator[Part]:
    """What would help if somebody saw to it that Pods are gone before the next ones are made."""
    made = found.if_gone
    if made is None:
        return
    count = len(made.moves)
    gone = [f"{guest.namespace}/{guest.name}" for guest in must_be_gone(made)]
    more = f" and {len(gone) - _MOST_GONE} more" if len(gone) > _MOST_GONE else ""
    names = f"{_said(', '.join(gone[:_MOST_GONE]))}{more}"
    yield f"{counted(count, 'Pod')} could move, in this order, to make room on {_said(made.rooms[0].node)}:"
    yield moves_table(state, made.moves[:_MOST_GONE])
    if count > _MOST_GONE:
        yield f"  and {count - _MOST_GONE} more moves; -o json names all"
    if len(gone) == 1:
        yield f"But {names} must be gone before its controller makes the next Pod, which goes elsewhere otherwise."
    else:
        yield f"But {names} must be gone before their controllers make the next Pods, which go elsewhere otherwise."
    yield (
        "By hand: scale the controller to 0, and back once its Pods are gone; or give its Deployment the strategy "
        "Recreate, and restart it (kubectl rollout restart). Either ends all Pods of the controller at once. Then run "
        "koordgate defrag again: what is left of the moves may be certain."
    )


def moves_table(state: PackingState, moves: Sequence[Move]) -> Table:
    """The moves, in order."""
    table = plain_table("", "EVICT POD", "OF", "FROM", "IT WOULD GO TO")
    for number, move in enumerate(moves, 1):
        guest = move.tenant.guest
        owner = state.owners[guest.uid]
        start, end = (
            f"{node} {shares_words(shares)}"
            for node, shares in ((move.tenant.node, move.before.shares), (move.to, move.after.shares))
        )
        table.add_row(str(number), *map(_said, (f"{guest.namespace}/{guest.name}", str(owner), start, end)))
    return table


def stays_lines(stays: Sequence[Stay]) -> Iterator[str]:
    """Who holds devices and is not moved, a line each."""
    for one in stays[:_MOST_STAYS]:
        yield f"  {_said(one.pod)} on {_said(one.node)} stays: {_said(one.why)}"
    if len(stays) > _MOST_STAYS:
        yield f"  and {len(stays) - _MOST_STAYS} more stay; -o json names all"


def _named(model: str) -> str:
    return _said(model_name(model)) or _NO_MODEL


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _cards(points: int, kind: DeviceType, weight: int = 1) -> str:
    """Points as devices, with one decimal, rounded down."""
    return f"{milli(points, kind, weight) // 100 / 10:g}"


def _said(text: str) -> str:
    return printable(text)
