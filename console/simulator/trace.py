"""Traces of clusters in the format of Alibaba's openb (pure): CSV text of nodes and of Pods, and orders of arrival.

The columns are those of the trace (docs/sources.md, openb). Of nodes: `sn`, `cpu_milli`, `memory_mib`, `gpu` (number of
GPUs) and `model`. Of Pods: `name`, `cpu_milli`, `memory_mib`, `num_gpu`, `gpu_milli` (thousandths of each GPU),
optionally `gpu_spec` (models, with | between them), `creation_time` and `deletion_time` (seconds). Others are not read.
"""

import csv
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from typing import Final, NamedTuple

from console.simulator.documents import InputError

WHOLE: Final = 1000
"""Thousandths in one GPU."""

MOST_ROWS: Final = 200_000
MOST_GPUS: Final = 64
MOST_AMOUNT: Final = 2**40
_MOST_DIGITS: Final = 13  # of a time in seconds
_LONGEST: Final = 63
_NODE_COLUMNS: Final = ("sn", "cpu_milli", "memory_mib", "gpu", "model")
_POD_COLUMNS: Final = ("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli")
_NAME: Final = frozenset("abcdefghijklmnopqrstuvwxyz0123456789-.")
_MODEL: Final = _NAME | frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZ_")
_EDGES: Final = "-._"


@dataclass(frozen=True, slots=True)
class TraceNode:
    """A node.

    Attributes:
        name: its name.
        cpu: thousandths of a CPU.
        memory: MiB.
        gpus: the number of its GPUs, all of one model.
        model: of its GPUs; "" without any.
    """

    name: str
    cpu: int
    memory: int
    gpus: int
    model: str


class TraceAsk(NamedTuple):
    """What a Pod asks for.

    Attributes:
        cpu: thousandths of a CPU.
        memory: MiB.
        gpus: the number of GPUs.
        milli: thousandths of each of them; 0 without GPUs.
        models: those that will do, sorted; all, where empty.
    """

    cpu: int
    memory: int
    gpus: int
    milli: int
    models: tuple[str, ...]

    @property
    def gpu_milli(self) -> int:
        """Thousandths of GPUs in sum."""
        return self.gpus * self.milli


@dataclass(frozen=True, slots=True)
class TracePod:
    """A Pod.

    Attributes:
        name: its name.
        ask: what it asks for.
        created: when it arrived, in seconds; None where the trace does not say.
        deleted: when it ended, likewise.
    """

    name: str
    ask: TraceAsk
    created: int | None = None
    deleted: int | None = None


def read_nodes(text: str, where: str) -> list[TraceNode]:
    """Read a list of nodes.

    Args:
        text: CSV with a header.
        where: the file, for errors.

    Raises:
        InputError: a column is missing, a value is wrong, or a name occurs twice; the line is named.
    """
    nodes = []
    for row in _rows(text, where, _NODE_COLUMNS):
        gpus, model = row.amount("gpu", MOST_GPUS), row.model("model")
        if gpus and not model:
            raise row.wrong("model", "is empty, but the node has GPUs: name their model")
        nodes.append(
            TraceNode(row.name("sn"), row.amount("cpu_milli"), row.amount("memory_mib"), gpus, model if gpus else "")
        )
    return nodes


def read_pods(text: str, where: str) -> list[TracePod]:
    """Read a list of Pods; otherwise as `read_nodes`."""
    return [_pod(row) for row in _rows(text, where, _POD_COLUMNS)]


def _pod(row: "_Row") -> TracePod:
    gpus, milli = row.amount("num_gpu", MOST_GPUS), row.amount("gpu_milli", WHOLE)
    if bool(gpus) != bool(milli):
        raise row.wrong("gpu_milli", f"is {milli} where num_gpu is {gpus}: both are 0, or neither is")
    models = tuple(sorted({row.checked_model("gpu_spec", model) for model in row.text("gpu_spec").split("|") if model}))
    ask = TraceAsk(row.amount("cpu_milli"), row.amount("memory_mib"), gpus, milli, models if gpus else ())
    created, deleted = row.time("creation_time"), row.time("deletion_time")
    if created is not None and deleted is not None and deleted < created:
        raise row.wrong("deletion_time", f"is {deleted}, before creation_time, which is {created}")
    return TracePod(row.name("name"), ask, created, deleted)


class _Row:
    """One line of a list, with the words for its errors."""

    def __init__(self, cells: Mapping[str, str], where: str) -> None:
        self._cells = cells
        self._where = where

    def wrong(self, column: str, what: str) -> InputError:
        return InputError(f"{self._where}: {column} {what}")

    def text(self, column: str) -> str:
        return self._cells.get(column, "").strip()

    def name(self, column: str) -> str:
        name = self.text(column)
        if not name or len(name) > _LONGEST or not _NAME.issuperset(name) or name[0] in _EDGES or name[-1] in _EDGES:
            raise self.wrong(
                column,
                f"is {_told(name)}: a name has 1 to {_LONGEST} small letters, digits, dashes and dots, and begins and "
                "ends with a letter or digit",
            )
        return name

    def amount(self, column: str, most: int = MOST_AMOUNT) -> int:
        given = self.text(column)
        if not given.isascii() or not given.isdecimal() or len(given) > len(str(most)) or int(given) > most:
            raise self.wrong(column, f"is {_told(given)}: write a whole number from 0 to {most}")
        return int(given)

    def model(self, column: str) -> str:
        return self.checked_model(column, self.text(column))

    def checked_model(self, column: str, model: str) -> str:
        if len(model) > _LONGEST or not _MODEL.issuperset(model) or model[:1] in {*_EDGES} or model[-1:] in {*_EDGES}:
            raise self.wrong(
                column,
                f"is {_told(model)}: a model has at most {_LONGEST} letters, digits, dashes, dots and underscores",
            )
        return model

    def time(self, column: str) -> int | None:
        """Whole seconds; the trace writes some with a fraction, which is always 0."""
        given = self.text(column)
        if not given:
            return None
        whole, _, part = given.partition(".")
        if not whole.isascii() or not whole.isdecimal() or part.strip("0") or len(whole) > _MOST_DIGITS:
            raise self.wrong(column, f"is {_told(given)}: write whole seconds, or leave it empty")
        return int(whole)


def _told(value: str) -> str:
    return f"{value[:40]!r}" if value else "empty"


def _rows(text: str, where: str, columns: Sequence[str]) -> Iterator[_Row]:
    """The lines of a list, each name once."""
    reader = csv.reader(StringIO(text, newline=""), strict=True)
    seen: dict[str, int] = {}
    try:
        header = [cell.strip() for cell in next(reader, [])]
        missing = [column for column in columns if column not in header]
        if missing:
            raise InputError(
                f"{where}: the first line lacks {', '.join(missing)}; it must name the columns {','.join(columns)}"
            )
        for cells in reader:
            line = reader.line_num
            if not cells:
                continue
            if len(seen) == MOST_ROWS:
                raise InputError(f"{where}: more than {MOST_ROWS} lines; take a part of the trace")
            if len(cells) != len(header):
                raise InputError(
                    f"{where}, line {line}: {len(cells)} values where the first line names {len(header)} columns"
                )
            row = _Row(dict(zip(header, cells, strict=True)), f"{where}, line {line}")
            name = row.text(columns[0])
            if name in seen:
                raise InputError(
                    f"{where}, line {line}: {name[:80]} is in line {seen[name]} already; give it another name"
                )
            seen[name] = line
            yield row
    except csv.Error as error:
        raise InputError(f"{where}, line {reader.line_num}: not CSV ({error}); correct it") from error
    if not seen:
        raise InputError(f"{where}: nothing below the first line; add a line for each")


def shuffled(pods: Sequence[TracePod], enough: int, seed: int) -> list[TracePod]:
    """Order Pods by chance, and repeat some until what they ask for in sum reaches an amount.

    Each Pod comes once before any is repeated. A repeated Pod has a name of its own.

    Args:
        pods: at least one must ask for GPUs.
        enough: thousandths of GPUs.
        seed: the same one gives the same order.

    Raises:
        InputError: no Pod asks for a GPU.
    """
    if not any(pod.ask.gpu_milli for pod in pods):
        raise InputError("no Pod of the trace asks for a GPU, so no amount of GPUs is ever reached; add some")
    chance = random.Random(seed)  # noqa: S311 - no secret
    order = chance.sample(range(len(pods)), len(pods))
    asked = sum(pod.ask.gpu_milli for pod in pods)
    while asked < enough:
        order.append(chance.randrange(len(pods)))
        asked += pods[order[-1]].ask.gpu_milli
    return named(pods, order, enough)


def named(pods: Sequence[TracePod], order: Iterable[int], enough: int) -> list[TracePod]:
    """Pods in an order of their indices, until what they ask for in sum reaches `enough` thousandths of GPUs."""
    arriving, counts, asked = [], [0] * len(pods), 0
    for index in order:
        if asked >= enough:
            break
        pod, again = pods[index], counts[index]
        counts[index] += 1
        asked += pod.ask.gpu_milli
        arriving.append(TracePod(f"{pod.name}-r{again}", pod.ask, pod.created, pod.deleted) if again else pod)
    return arriving
