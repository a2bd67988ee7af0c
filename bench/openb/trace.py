"""Traces in the format of Alibaba's openb (README.md): nodes and Pods from CSV files, and orders of arrival."""

import csv
import gzip
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

WHOLE: Final = 1000
"""Thousandths in one GPU."""


@dataclass(frozen=True, slots=True)
class TraceNode:
    """A node: thousandths of CPUs, MiB of memory, and GPUs of one model ("" without any)."""

    name: str
    cpu: int
    memory: int
    gpus: int
    model: str


class TraceAsk(NamedTuple):
    """What a Pod asks for: thousandths of CPUs, MiB, GPUs, thousandths of each, and models (all, where empty)."""

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
    """A Pod, with the seconds at which it arrived and ended; None where the trace does not say."""

    name: str
    ask: TraceAsk
    created: int | None = None
    deleted: int | None = None


def read_nodes(path: Path) -> list[TraceNode]:
    return [_node(row) for row in _rows(path)]


def _node(row: dict[str, str]) -> TraceNode:
    gpus = int(row["gpu"])
    return TraceNode(row["sn"], int(row["cpu_milli"]), int(row["memory_mib"]), gpus, row["model"] if gpus else "")


def read_pods(path: Path) -> list[TracePod]:
    return [TracePod(row["name"], _ask(row), *map(_seconds, _times(row))) for row in _rows(path)]


def _ask(row: dict[str, str]) -> TraceAsk:
    gpus = int(row["num_gpu"])
    models = tuple(sorted({model for model in (row.get("gpu_spec") or "").split("|") if model})) if gpus else ()
    return TraceAsk(int(row["cpu_milli"]), int(row["memory_mib"]), gpus, int(row["gpu_milli"]) if gpus else 0, models)


def _times(row: dict[str, str]) -> tuple[str, str]:
    return row.get("creation_time") or "", row.get("deletion_time") or ""


def _seconds(text: str) -> int | None:
    return int(float(text)) if text else None


def _rows(path: Path) -> list[dict[str, str]]:
    text = gzip.decompress(path.read_bytes()).decode() if path.suffix == ".gz" else path.read_text()
    return list(csv.DictReader(text.splitlines()))


def shuffled(pods: Sequence[TracePod], enough: int, seed: int) -> list[TracePod]:
    """Order Pods by chance, and repeat some until they ask for `enough` thousandths of GPUs; each comes once first."""
    chance = random.Random(seed)
    order = chance.sample(range(len(pods)), len(pods))
    asked = sum(pod.ask.gpu_milli for pod in pods)
    if not asked:
        raise ValueError("no Pod of the trace asks for a GPU")
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
