"""What is shown in the end: a table of Pods, a table of GPUs, and the Pods as Kubernetes objects."""

import io
import os
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import orjson
import yaml
from rich.console import Console
from rich.table import Table
from rich.text import Text

from allocator.names import GPU_CORE, GPU_MEMORY, GPU_MEMORY_RATIO
from webhook.offline import words
from webhook.offline.account import Account, Card
from webhook.offline.cluster import Result, State

_REASONS: Final = {
    State.DENIED: "Denied",
    State.UNSCHEDULABLE: "Unschedulable",
    State.BIND_REFUSED: "BindRefused",
}
_STYLES: Final = {
    State.BOUND: "green",
    State.STANDING: "cyan",
    State.DENIED: "red",
    State.UNSCHEDULABLE: "yellow",
    State.BIND_REFUSED: "red",
}
_COUNTED: Final = {State.STANDING: "there already", State.UNSCHEDULABLE: "without a node"}
_SIGPIPE: Final = 141  # 128 + SIGPIPE, as a shell reports it
_WIDE: Final = 10_000  # off a terminal nothing is wrapped: a line is as long as its longest reason


def show(*parts: Table | Text | str) -> None:
    """Print tables and lines: in colour and as wide as a terminal is, elsewhere plain, with nothing wrapped."""
    if sys.stdout.isatty():
        console = _terminal()
        for part in parts:
            console.print(part)
        return
    text = io.StringIO()
    console = Console(file=text, width=_WIDE, color_system=None, highlight=False, markup=False, emoji=False)
    for part in parts:
        console.print(part)
    sys.stdout.write("".join(f"{line.rstrip()}\n" for line in text.getvalue().splitlines()))


def unread() -> int:
    """Take it that nobody reads our output any more, as after `| head`; the exit status is that of a Unix tool."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else Python complains when it flushes at the end
    return _SIGPIPE


def show_pods(results: Sequence[Result], account: Account) -> None:
    """Print the table of Pods; on a terminal that is too narrow for it, a few lines a Pod."""
    table = pods_table(results, account)
    if sys.stdout.isatty():
        console = _terminal()
        if console.measure(table, options=console.options.update(width=_WIDE)).maximum > console.width:
            show(*(part for result in results for part in (block(result, account), "")))
            return
    show(table, "")


def _terminal() -> Console:
    return Console(highlight=False, markup=False, emoji=False)


def _table(*headers: str) -> Table:
    table = Table(box=None, padding=(0, 3, 0, 0), header_style="bold", pad_edge=False)
    for header in headers:
        table.add_column(header, overflow="fold")
    return table


def _cell(lines: Iterable[str], style: str = "") -> Text:
    return Text("\n".join(lines), style)


def pods_table(results: Sequence[Result], account: Account) -> Table:
    """Make the table of Pods, in their order."""
    table = _table("POD", "ASKED", "STATE", "NODE", "DEVICES, OR WHY NOT")
    for result in results:
        given = result.given or result.pod
        table.add_row(
            _cell([words.name_of(given)]),
            _cell(words.asked(given) or ["no devices"]),
            _cell([_state(result)], _STYLES.get(result.state, "")),
            _cell([_node(result) or "-"]),
            _cell(_outcome(result, account)),
        )
    return table


def block(result: Result, account: Account) -> Text:
    """Tell of one Pod in a few lines: what it asked, what admission made of it, and what came of it."""
    given = result.given or result.pod
    text = Text(f"{words.name_of(given)}  ", "bold")
    node = _node(result)
    where = f" {'to' if result.state is State.BOUND else 'on'} {node}" if node else ""
    text.append(f"{_state(result)}{where}", f"not bold {_STYLES.get(result.state, '')}")
    asked = words.asked(given) or ("no devices",)
    became = () if result.state is State.DENIED else words.admitted(result.pod)
    lines = [f"asked   {line}" for line in asked]
    lines += [f"became  {line}" for line in became if became != asked]
    lines += [f"   {line}" for line in _outcome(result, account) if line != "-"]
    text.append("".join(f"\n  {line}" for line in lines), "not bold")
    return text


def _node(result: Result) -> str:
    return "" if result.state is State.DENIED else result.pod["spec"].get("nodeName") or ""


def _state(result: Result) -> str:
    phase = (result.pod.get("status") or {}).get("phase")
    finished = result.state is State.STANDING and phase in {"Succeeded", "Failed"}
    return f"{result.state} ({phase})" if finished else str(result.state)


def _outcome(result: Result, account: Account) -> list[str]:
    shares = [] if result.state is State.DENIED else [words.device(share) for share in account.shares(result.pod)]
    trouble = words.trouble(result.pod) if result.state is State.STANDING else ""
    warnings = [f"warning: {warning}" for warning in result.warnings]
    return [*shares, *([trouble] if trouble else ()), *result.reasons, *warnings] or ["-"]


def cards_table(account: Account) -> Table:
    """Make the table of GPUs."""
    table = _table("NODE", "GPU", "UUID", "MODEL", "NUMA", "CORE", "MEMORY", "HELD BY")
    before = ""
    for card in account.cards():
        node, before = ("" if card.node == before else card.node), card.node
        device = card.device
        numa = "-" if device is None or device.numa_node is None else str(device.numa_node)
        core = f"{card.used(GPU_CORE)} %"
        table.add_row(
            *(Text(text) for text in (node, str(card.minor), words.short_id(card.id), _model(card), numa, core)),
            Text(_memory(card)),
            _cell(_holders(card) or ["-"]),
        )
    return table


def _model(card: Card) -> str:
    return card.device.model.removeprefix("NVIDIA-") or "-" if card.device else "-"


def _memory(card: Card) -> str:
    used = words.gib(card.used(GPU_MEMORY))
    if card.device is not None:
        used = f"{used.removesuffix(' GiB')} of {words.gib(card.device.capacity[GPU_MEMORY])}"
    return f"{used} ({card.used(GPU_MEMORY_RATIO)} %)"


def _holders(card: Card) -> list[str]:
    lines = []
    if card.device is None:
        lines.append("not in the node's Device object")
    elif not card.device.healthy:
        lines.append("unhealthy: nothing new lands here")
    if card.by_kubelet:
        lines.append("given away by the kubelet's device plugin")
    return lines + [f"{pod}: {words.share_of(share)}" for pod, share in card.held]


def summary(results: Sequence[Result], account: Account) -> str:
    """Count Pods and GPUs in one line."""
    counted = Counter(result.state for result in results)
    pods = ", ".join(f"{counted[state]} {_COUNTED.get(state, state)}" for state in State if counted[state]) or "none"
    cards = account.cards()
    used = sum(bool(card.held) or card.by_kubelet for card in cards)
    return f"{len(results)} Pods: {pods}; {used} of {len(cards)} GPUs in use"


def as_list(results: Sequence[Result]) -> dict[str, Any]:
    """Make a v1 List of the Pods as they stand in the cluster; a refused one says so in its status."""
    items: list[Mapping[str, Any]] = []
    for result in results:
        reason = _REASONS.get(result.state)
        if reason is None:
            items.append(result.pod)
        else:
            status = {"phase": "Pending", "reason": reason, "message": result.message}
            items.append({**result.pod, "status": status})
    return {"apiVersion": "v1", "kind": "List", "items": items}


def write_json(results: Sequence[Result]) -> None:
    """Print the List as JSON."""
    sys.stdout.write(orjson.dumps(as_list(results), option=orjson.OPT_INDENT_2).decode() + "\n")


class _Plain(yaml.SafeDumper):
    """Writes no anchors: every object stands alone."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 the base's
        """Repeat what is shared."""
        return True


def write_yaml(results: Sequence[Result]) -> None:
    """Print the List as YAML."""
    yaml.dump(as_list(results), sys.stdout, _Plain, sort_keys=False, width=_WIDE, allow_unicode=True)
