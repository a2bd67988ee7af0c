"""The device map: one HTML page that shows who holds what, without scripts and external content.

Each node is a row of cards, one per device; each share of a device has the colour of its Pod. CPUs are strips of cells,
one per core, in which each thread has the colour of the Pod that owns it. All text from objects is escaped.
"""

import html
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from allocator.vocabulary.cpuset import members
from allocator.vocabulary.cputopology import CpuTopology
from allocator.vocabulary.devicetype import FULL
from allocator.vocabulary.holdings import Share
from webhook.offline import report, words
from webhook.offline.account import Account, DeviceUse, NodeCpus
from webhook.offline.cluster import Result

_HUES: Final = 47  # degrees between the colours of successive Pods: coprime to 360, and neighbours differ clearly
_LEAST: Final = 3  # percent of a card: the smallest width of a share
_SHADES: Final = 3  # lightnesses, which distinguish Pods of the same hue

_STYLE: Final = """
:root { color-scheme: light dark; --bg: #fff; --fg: #1b1f24; --soft: #57606a; --line: #d0d7de; --empty: #eef1f4;
  --card: #f6f8fa; --bad: #b42318; --light: 62%; }
@media (prefers-color-scheme: dark) { :root { --bg: #0d1117; --fg: #e6edf3; --soft: #9aa4b0; --line: #30363d;
  --empty: #21262d; --card: #161b22; --bad: #ff7b72; --light: 48%; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem; max-width: 90rem; background: var(--bg); color: var(--fg);
  font: 14px/1.45 system-ui, sans-serif; }
h1 { font-size: 1.4rem; margin: 0; }
h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; overflow-wrap: anywhere; }
h2 small, h3 small, .soft { color: var(--soft); font-weight: normal; }
h3 { font-size: .9rem; margin: 0 0 .4rem; }
.node { border-top: 1px solid var(--line); }
.numa { border: 1px solid var(--line); border-radius: 8px; padding: .7rem; margin: .6rem 0; }
.cards { display: flex; flex-wrap: wrap; gap: .5rem; }
.card { width: 12.5rem; border: 1px solid var(--line); border-radius: 6px; background: var(--card); padding: .45rem;
  overflow-wrap: anywhere; }
.card b { display: block; }
.card.away { border-color: var(--bad); border-style: dashed; }
.why { color: var(--bad); }
.bar { display: flex; height: 1.1rem; margin: .3rem 0; background: var(--empty); border-radius: 3px; overflow: hidden; }
.bar i { display: block; border-right: 1px solid var(--bg); }
.pod { background: hsl(var(--h) 55% calc(var(--light) + var(--s) * 9%)); }
ul { list-style: none; margin: .3rem 0 0; padding: 0; }
.key { display: inline-block; width: .75em; height: .75em; border-radius: 2px; margin-right: .35em; }
.cores { display: flex; flex-wrap: wrap; gap: 2px; margin-top: .6rem; }
.core { display: flex; flex-direction: column; gap: 1px; }
.core i { display: block; width: 1.9em; height: 1.3em; font: 10px/1.3em ui-monospace, monospace; text-align: center;
  background: var(--empty); color: var(--soft); border-radius: 2px; }
.core i.pod { color: #000; }
.core i.kept { background: repeating-linear-gradient(45deg, var(--line) 0 3px, var(--empty) 3px 6px); }
.legend { columns: 22rem; margin-top: 1rem; }
.legend li { break-inside: avoid; overflow-wrap: anywhere; }
"""
_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'"


class MapError(OSError):
    """The map cannot be written; the message says where and why."""


def write(path: Path, results: Sequence[Result], account: Account) -> None:
    """Write the map.

    Raises:
        MapError: the file cannot be written.
    """
    try:
        path.write_text(page(results, account), encoding="utf-8")
    except OSError as error:
        message = f"--map {path}: cannot be written ({error.strerror}); name a file in an existing folder"
        raise MapError(message) from error


def page(results: Sequence[Result], account: Account) -> str:
    """Make the page: the nodes, then all Pods with what they hold, or why they hold nothing."""
    colours = _colours(account)
    cpus = {one.node: one for one in account.cpus()}
    body = [
        f'<h1>Who holds what</h1>\n<p class="soft">{_text(report.summary(results, account))}</p>',
        *(_node(node, account.devices(node), cpus.get(node), colours) for node in account.nodes),
        _legend(results, account, colours),
    ]
    head = (
        f'<meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>koordgate: who holds what</title>\n<style>{_STYLE}</style>"
    )
    return f'<!doctype html>\n<html lang="en">\n<head>{head}</head>\n<body>\n{"".join(body)}</body>\n</html>\n'


def _text(text: object) -> str:
    """Escape text from an object, for HTML text and attributes; characters that UTF-8 cannot encode are replaced."""
    return html.escape(str(text).encode("utf-8", "replace").decode())


class _Colours:
    """One colour for each Pod; Pods with neighbouring names get very different ones."""

    def __init__(self, pods: Iterable[str]) -> None:
        self._places = {pod: place for place, pod in enumerate(sorted(set(pods)))}

    def style(self, pod: str) -> str:
        """The colour, as the inline style that the class `pod` of the style sheet reads."""
        place = self._places[pod]
        return f"--h:{place * _HUES % 360};--s:{place * _HUES // 360 % _SHADES - 1}"

    def key(self, pod: str) -> str:
        """A small square of the colour; "" for a Pod that holds nothing."""
        if pod not in self._places:
            return ""
        return f'<span class="key pod" style="{self.style(pod)}"></span>'


def _colours(account: Account) -> _Colours:
    holders = [pod for use in account.devices() for pod, _ in use.held]
    for one in account.cpus():
        holders += [pod for pod, _ in one.held]
        holders += [f"{alloc.namespace}/{alloc.name}" for alloc in one.kubelet]
    return _Colours(holders)


def _node(node: str, uses: Sequence[DeviceUse], cpus: NodeCpus | None, colours: _Colours) -> str:
    if not uses and cpus is None:
        return ""
    topology = cpus.topology if cpus is not None else None
    numas = topology.nodes if topology is not None else {}
    parts = [f'<section class="node"><h2>{_text(node)} <small>{_text(report.has(uses, cpus))}</small></h2>']
    by_numa: dict[int | None, list[DeviceUse]] = {}
    for use in uses:
        at = use.device.numa_node if use.device is not None else None
        by_numa.setdefault(at, []).append(use)
    for at in sorted({*numas, *(numa for numa in by_numa if numa is not None)}):
        strips = _strips(cpus, topology, at, colours) if cpus is not None and topology is not None else ""
        parts.append(f'<div class="numa"><h3>NUMA node {at}</h3>{_cards(by_numa.get(at, ()), colours)}{strips}</div>')
    if None in by_numa:
        parts.append(f'<div class="numa"><h3>On no NUMA node</h3>{_cards(by_numa[None], colours)}</div>')
    return "\n".join((*parts, "</section>\n"))


def _cards(uses: Iterable[DeviceUse], colours: _Colours) -> str:
    cards = "\n".join(_card(use, colours) for use in uses)
    return f'<div class="cards">{cards}</div>' if cards else ""


def _card(use: DeviceUse, colours: _Colours) -> str:
    tail = _fullest(use)
    segments = "".join(
        f'<i class="pod" style="{colours.style(pod)};width:{_width(share, use, tail)}%" '
        f'title="{_text(f"{pod}: {words.share_of(share, use.type)}")}"></i>'
        for pod, share in use.held
    )
    lines = [
        f"<li>{colours.key(pod)}{_text(f'{words.short_name(pod)}: {words.part_of(share, use.type)}')}</li>"
        for pod, share in use.held
    ]
    why = f'<div class="why">{_text(use.why_not)}</div>' if use.why_not else ""
    model = f"{_text(use.device.model)} " if use.device is not None else ""
    away = " away" if use.why_not else ""
    return (
        f'<div class="card{away}"><b>{_text(use.type.name)} {use.minor}</b>'
        f'<span class="soft">{model}{_text(words.shown_id(use.id, use.type))}</span>'
        f'<div class="bar">{segments}</div>{_text(words.used_of(use))}{why}<ul>{"".join(lines)}</ul></div>'
    )


def _fullest(use: DeviceUse) -> str:
    """The resource of a device with the greatest part held; the device is drawn by it."""
    return max(use.type.tails, key=lambda tail: _percent(use.used(tail), use, tail))


def _percent(amount: int, use: DeviceUse, tail: str) -> int:
    total = use.device.capacity.get(tail, 0) if use.device is not None else 0
    return min(FULL * amount // total, FULL) if total else FULL


def _width(share: Share, use: DeviceUse, tail: str) -> int:
    """How much of a device a share fills, in percent; at least a visible width."""
    return max(_percent(share.amounts.get(tail, 0), use, tail), _LEAST)


def _strips(cpus: NodeCpus, topology: CpuTopology, numa: int, colours: _Colours) -> str:
    """The cores of a NUMA node, and a list of the Pods and their CPUs there."""
    owners = dict(_owners(cpus))
    inside = topology.nodes[numa]
    cores = "".join(
        f'<span class="core">{"".join(_cell(cpu, owners, cpus.reserved, colours) for cpu in members(core))}</span>'
        for core in topology.cores
        if core & inside
    )
    lines = []
    for at, which, who, pod in report.cpu_rows(cpus):
        if at == str(numa):
            lines.append(f"<li>{colours.key(pod)}{_text(f'{which}  {who}'.strip())}</li>")
    return f'<div class="cores">{cores}</div><ul>{"".join(lines)}</ul>'


def _owners(cpus: NodeCpus) -> Iterator[tuple[int, str]]:
    """The Pod of each CPU that belongs to one Pod alone."""
    for pod, share in cpus.held:
        yield from ((cpu, pod) for cpu in members(share.cpus))
    for alloc in cpus.kubelet:
        yield from ((cpu, f"{alloc.namespace}/{alloc.name}") for cpu in members(alloc.cpus))


def _cell(cpu: int, owners: Mapping[int, str], reserved: int, colours: _Colours) -> str:
    pod = owners.get(cpu)
    if pod is not None:
        return f'<i class="pod" style="{colours.style(pod)}" title="CPU {cpu}: {_text(pod)}">{cpu}</i>'
    if reserved >> cpu & 1:
        return f'<i class="kept" title="CPU {cpu}: reserved">{cpu}</i>'
    return f'<i title="CPU {cpu}: shared pool">{cpu}</i>'


def _legend(results: Sequence[Result], account: Account, colours: _Colours) -> str:
    """All Pods: what each holds, or why it holds nothing."""
    lines = []
    for result in results:
        name = words.name_of(result.given or result.pod)
        message = "; ".join(report.outcome(result, account))
        lines.append(f"<li>{colours.key(name)}<b>{_text(name)}</b> {_text(result.state)}: {_text(message)}</li>")
    return f'<section class="node"><h2>Pods</h2><ul class="legend">{"".join(lines)}</ul></section>\n' if lines else ""
