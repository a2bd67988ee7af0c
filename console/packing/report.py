"""The report on paper, the answer first, then tables; and as data."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from rich.table import Table
from rich.text import Text

from allocator.amounts import CPU
from allocator.packing.stranded import Stranded, Use, points_of
from allocator.quantity import in_gib
from allocator.request.typical import MEMORY
from allocator.vocabulary.devicetype import DeviceType
from allocator.vocabulary.holdings import Holding
from allocator.vocabulary.names import model_name
from console.packing.state import PackingState
from console.packing.wanted import Answer, LeavingPod, WantedRoom
from console.plaintable import plain_table
from console.terminal import counted, printable

Part = Table | Text | str
Raw = dict[str, Any]
_MAX_NODES: Final = 4
_NO_MODEL: Final = "(unknown)"
_MILLI: Final = 1000


def report_parts(found: Stranded, sizes: Sequence[WantedRoom], answer: Answer) -> Iterator[Part]:
    """The report as text and tables."""
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
    yield ""
    yield from _answer(answer)


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
    asks, noun = whole.pod.asks, whole.kind.noun
    if CPU not in asks and MEMORY not in asks:
        return f"No typical Pods are known: a Pod of a size requests {noun}s, no CPU and no memory (--cpu, --memory)."
    cpu, memory = asks.get(CPU, 0), asks.get(MEMORY, 0)
    return f"A Pod of one {noun} requests {cpu / _MILLI:.1f} CPUs and {in_gib(memory)} of memory."


def _answer(one: Answer) -> Iterator[Part]:
    words = f"{one.wanted.words[0].upper()}{one.wanted.words[1:]}"
    if one.fitting:
        nodes = ", ".join(printable(name) for name, _ in one.fitting[:_MAX_NODES])
        more = f" and {len(one.fitting) - _MAX_NODES} more" if len(one.fitting) > _MAX_NODES else ""
        times = sum(count for _, count in one.fitting)
        yield Text(f"{words} fits now, {'once' if times == 1 else f'{times} times'}: on {nodes}{more}.", "bold")
        return
    yield Text(f"{words} fits on no node now.", "bold")
    if one.nearest is not None:
        near = one.nearest
        yield f"The nearest node is {printable(near.node)}: {printable(near.why)}."
    if one.if_gone is not None:
        these = "this Pod were" if len(one.if_gone.pods) == 1 else f"these {len(one.if_gone.pods)} Pods were"
        yield f"It would fit on {printable(one.if_gone.node)} if {these} elsewhere:"
        yield from (f"  {printable(text)}" for text in _leaving(one.if_gone.pods))
    elif one.nearest is not None:
        yield "No node is known on which it would fit if Pods with devices were elsewhere."


def _leaving(pods: Sequence[LeavingPod]) -> Iterator[str]:
    """Pods with their devices; those of one owner in one line."""
    alike: dict[str, list[Holding]] = {}
    for one in pods:
        alike.setdefault(one.owner or one.holding.uid, []).append(one.holding)
    for owner, holdings in alike.items():
        name = holdings[0].holder if len(holdings) == 1 else f"{counted(len(holdings), 'Pod')} of {owner}"
        yield f"{name} ({_shares(holdings)})"


def _shares(holdings: Iterable[Holding]) -> str:
    """Devices by their types and minors, as `gpu 0,1`."""
    by_type: dict[str, dict[int, None]] = {}
    for share in (share for holding in holdings for share in holding.shares):
        by_type.setdefault(share.type, {})[share.minor] = None
    return "; ".join(f"{kind} {','.join(map(str, sorted(minors)))}" for kind, minors in by_type.items())


def _named(model: str) -> str:
    return printable(model_name(model)) or _NO_MODEL


def _cards(points: int, kind: DeviceType, weight: int = 1) -> str:
    """Points as devices, with one decimal, rounded down."""
    return f"{_milli(points, kind, weight) // 100 / 10:g}"


def _milli(points: int, kind: DeviceType, weight: int = 1) -> int:
    """Points as thousandths of a device, rounded down."""
    return points * _MILLI // (points_of(kind) * weight)


def report_data(state: PackingState, found: Stranded, sizes: Sequence[WantedRoom], answer: Answer) -> Raw:
    """The report as data, for `-o json` and `-o yaml`. Fields are added, and none is renamed."""
    kind = sizes[0].kind
    models = [
        {
            "model": model,
            "nodes": one.nodes,
            "devices": one.devices,
            "outOfService": one.out,
            "idle": one.idle,
            "partlyFree": one.parts,
            "freeMilli": _milli(one.free, kind),
            "freeOutOfServiceMilli": _milli(one.free_out, kind),
        }
        for model, one in sorted(found.stock.items())
    ]
    rows = [_use_data(one.word, one.pod.asks, uses, kind, 1) for one, uses in zip(sizes, found.sizes, strict=True)]
    typical = _use_data("typical", {}, found.typical, kind, found.weight) if found.weight else None
    about = {"type": kind.name, "models": models, "sizes": rows, "typical": typical}
    return {**about, "wanted": _answer_data(answer), "notes": state.notes}


def _use_data(word: str, asks: Mapping[str, int], uses: Mapping[str, Use], kind: DeviceType, weight: int) -> Raw:
    def lost(one: Use) -> Raw:
        return {part: _milli(getattr(one, part), kind, weight) for part in ("cpu", "memory", "remainder", "out")}

    models = [
        {"model": model, "fit": one.fit, "usableMilli": _milli(one.usable, kind, weight), "lostMilli": lost(one)}
        for model, one in sorted(uses.items())
    ]
    return {"size": word, "milliCPU": asks.get(CPU, 0), "memory": asks.get(MEMORY, 0), "models": models}


def _answer_data(one: Answer) -> Raw:
    near, gone = one.nearest, one.if_gone
    return {
        "for": one.wanted.word or one.wanted.words,
        "fitsNow": [{"node": name, "count": count} for name, count in one.fitting],
        "nearest": near and {"node": near.node, "lack": near.lack, "why": near.why},
        "ifGone": gone and {"node": gone.node, "pods": [_pod_data(pod.holding, pod.priority) for pod in gone.pods]},
    }


def _pod_data(of: Holding, priority: int) -> Raw:
    devices = [{"type": s.type, "minor": s.minor, "id": s.id, "amounts": dict(s.amounts)} for s in of.shares]
    return {"namespace": of.namespace, "name": of.name, "uid": of.uid, "priority": priority, "devices": devices}
