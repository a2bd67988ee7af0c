"""The same Pods in several ways: placement, how full and how fragmented the GPUs are, and refusals side by side."""

import argparse
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import msgspec
from rich.table import Table
from rich.text import Text

from allocator.fragmentation import fragmentation, points_left
from allocator.request.typical import typical_of
from allocator.vocabulary.asks import Preference
from allocator.vocabulary.devicetype import BUILT_IN, FULL
from allocator.vocabulary.mix import Mix, mix_of
from allocator.vocabulary.names import GPU_CORE, GPU_MEMORY_RATIO, TYPE_GPU
from allocator.vocabulary.node import NodeSnapshot
from console import devicewords
from console.plaintable import plain_table
from console.simulator import words
from console.simulator.arrivals import Arrivals, key_of, read_cluster, standing
from console.simulator.cluster import OfflineCluster, PodFate, Result
from console.simulator.documents import InputError, read_documents
from console.simulator.objects import Objects
from console.simulator.workloads import WantedPod
from console.terminal import counted
from koordgate.settings import SettingsError
from webhook import settings
from webhook.settings import WebhookSettings, read_mix, types_of
from webhook.view.podinfo import read_pod_info

GIVEN: Final = "as given"
_MAX: Final = 16
_MAX_LENGTH: Final = 24
_OF_NODES: Final = ("Node", "Device", "NodeResourceTopology", "ResourceSlice")


@dataclass(frozen=True, slots=True)
class Variant:
    """One of the runs that are compared.

    `nodes` stand in place of the input's.
    """

    settings: WebhookSettings
    nodes: Objects | None = None

    def objects(self, given: Objects) -> Objects:
        """The input, with this variant's nodes."""
        if self.nodes is None:
            return replace(given, notes=list(given.notes))
        # Pods that run are bound to nodes that are not there in this variant.
        names = {node["metadata"]["name"] for node in self.nodes.nodes}
        pods = [pod for pod in given.pods if not pod["spec"].get("nodeName") or pod["spec"]["nodeName"] in names]
        kept = {id(pod) for pod in pods}
        return replace(
            given,
            nodes=self.nodes.nodes,
            devices=self.nodes.devices,
            topologies=self.nodes.topologies,
            claims=[*(one for one in given.claims if one["kind"] not in _OF_NODES), *self.nodes.claims],
            pods=pods,
            sources=[one for one in given.sources if one.kind != "Pod" or id(one.object) in kept],
            notes=[*given.notes, *self.nodes.notes],
        )


def add_compare(parser: argparse.ArgumentParser) -> None:
    """Add the options of what is compared."""
    parser.add_argument(
        "--compare",
        action="append",
        default=[],
        metavar="NAME=FILE",
        help="another way: FILE has settings of the webhook, or Nodes (with their Device objects) in place of "
        "those of -f; may be given more than once",
    )
    known = [str(one) for one in Preference]
    parser.add_argument(
        "--preference",
        action="append",
        choices=known,
        metavar="NAME",
        help=f"how nodes are compared: {', '.join(known)}; may be given more than once (default: the settings' "
        "scheduler.preference)",
    )
    parser.add_argument(
        "--seed",
        type=int,
        metavar="N",
        help="choose at random among nodes of equal score, as kube-scheduler does if the extender names all nodes that "
        "fit (scheduler.mostNodes: 0); the same N gives the same choice (default: the first by name)",
    )


def variants(
    arguments: argparse.Namespace, configured: WebhookSettings, memory: Mapping[str, int] | None = None
) -> dict[str, Variant]:
    """What is to be run, by name; one alone where nothing is compared.

    Raises:
        InputError: something cannot be used.
        SettingsError: likewise.
    """
    preferences: Sequence[str] = list(dict.fromkeys(arguments.preference or ()))
    found = {name: Variant(preferring(configured, name)) for name in preferences}
    if not found:
        found[GIVEN] = Variant(configured)
    for text in arguments.compare:
        name, equals, path = text.partition("=")
        name = name.strip()
        if not equals or not name or not path or len(name) > _MAX_LENGTH or not name.isprintable():
            raise InputError(f"--compare {text!r}: write NAME=FILE, with a name of at most {_MAX_LENGTH} characters")
        if name in found:
            raise InputError(f"--compare {text!r}: {name} is another way's name already; take another")
        found[name] = _read(path, configured, memory)
    if len(found) > _MAX:
        raise InputError(f"{len(found)} ways to compare; give {_MAX} at most")
    return found


def preferring(configured: WebhookSettings, name: str) -> WebhookSettings:
    """The same settings with another preference."""
    scheduler = msgspec.structs.replace(configured.scheduler, preference=Preference(name))
    return msgspec.structs.replace(configured, scheduler=scheduler)


def _read(path: str, configured: WebhookSettings, memory: Mapping[str, int] | None) -> Variant:
    """Read settings, or nodes: every Kubernetes object has a kind, and settings have none."""
    documents = [document for _, document in read_documents(path) if document is not None]
    if any(isinstance(one, dict) and "kind" in one for one in documents):
        nodes = read_cluster([path], memory, types_of(configured))
        if not nodes.nodes:
            raise InputError(f"--compare {path}: has no Node; give Nodes, or settings of the webhook")
        return Variant(configured, nodes)
    try:
        read = settings.load(Path(path))
    except SettingsError as error:
        raise InputError(f"--compare {error}") from error
    if not read.adopt.peers:
        read = msgspec.structs.replace(read, adopt=configured.adopt)
    return Variant(read)


_GPU: Final = BUILT_IN.by_name[TYPE_GPU]
_ALIKE: Final = (GPU_CORE, GPU_MEMORY_RATIO)


class Measure:
    """Figures about the GPUs of a cluster, in percent of all usable ones."""

    def __init__(self, cluster: OfflineCluster, mix: Mix) -> None:
        self._cluster = cluster
        self._mix = mix
        self._stale = set(cluster.node_names)
        self._points: dict[str, int] = {}
        self._given: dict[str, int] = {}
        snapshots = [cluster.parts.cluster.snapshot(name) for name in cluster.node_names]
        gpus = [(node, one) for node in snapshots for one in node.devices if one.type == TYPE_GPU and one.healthy]
        self.gpus = len(gpus)
        self._all_points = sum(points_left(_GPU, node.without(node.holdings), one) for node, one in gpus)

    def touch(self, node: str) -> None:
        """Something changed on a node."""
        self._stale.add(node)

    def _refresh(self) -> None:
        for name in self._stale:
            node = self._cluster.parts.cluster.snapshot(name)
            self._points[name] = self._of(node)
            self._given[name] = sum(
                max(node.used.get(one.id, {}).get(tail, 0) for tail in _ALIKE)
                for one in node.devices
                if one.type == TYPE_GPU and one.healthy
            )
        self._stale.clear()

    def _of(self, node: NodeSnapshot) -> int:
        loads = self._cluster.parts.cluster.loads
        has, used = loads.allocatable(node.name), loads.requested(node.name)
        cpu, memory = (has.get(name, 0) - used.get(name, 0) for name in ("cpu", "memory"))
        return fragmentation(node, cpu, memory, self._mix)

    def fragmented(self) -> float:
        """The fragmentation that is expected for the mix."""
        self._refresh()
        return _percent(sum(self._points.values()), self._mix.weight * self._all_points)

    def allocated(self) -> float:
        """What is given of the GPUs: of each the greater of its compute and its memory."""
        self._refresh()
        return _percent(sum(self._given.values()), self.gpus * FULL)


def _percent(part: int, whole: int) -> float:
    return part * 100 / whole if whole else 0.0


_MAX_PODS: Final = 20  # that are listed because they fare differently
_MAX_REASONS: Final = 3  # of one way
_RUNS: Final = (PodFate.BOUND, PodFate.STANDING)


@dataclass(frozen=True, slots=True)
class Run:
    """One of the runs: what became of each Pod, and how full and how fragmented the GPUs are then, in percent."""

    results: Sequence[Result]
    allocated: float
    fragmented: float


async def run(
    objects: Objects, wanted: Sequence[WantedPod], variant: Variant, seed: int | None, tell: Callable[[int], object]
) -> Run:
    """Run Pods in one way.

    Raises:
        InputError: an object cannot be used.
    """
    cluster = OfflineCluster.in_process(variant.settings, seed)
    there = await standing(objects, cluster)
    stated = read_mix(variant.settings.scheduler.mix, cluster.parts.types)
    results = await cluster.settle(await Arrivals(cluster, there, tell).run(wanted))
    measure = Measure(cluster, stated or _mix(wanted, cluster))
    return Run(results, measure.allocated(), measure.fragmented())


def _mix(wanted: Sequence[WantedPod], cluster: OfflineCluster) -> Mix:
    """What all these Pods typically ask for."""
    found = []
    for one in wanted:
        metadata = {"uid": "", "namespace": "default", **one.pod["metadata"]}
        info = read_pod_info({**one.pod, "metadata": metadata}, types=cluster.parts.types)
        typical = typical_of(info.request, info.requests, info.models) if info is not None else None
        found += [typical] if typical is not None else []
    return mix_of(found)


def tables(runs: Mapping[str, Run]) -> list[Table | Text | str]:
    """Make the tables of a comparison."""
    return [_figures(runs), "", *_refusals(runs), *_placements(runs)]


def _figures(runs: Mapping[str, Run]) -> Table:
    table = plain_table("WAY")
    for head in ("bound", "waiting", "refused", "allocated %", "fragmented %"):
        table.add_column(head, justify="right")
    for name, one in runs.items():
        states = Counter(result.state for result in one.results)
        bound = sum(states[state] for state in _RUNS)
        waiting = len(one.results) - bound - states[PodFate.DENIED]
        figures = (bound, waiting, states[PodFate.DENIED])
        table.add_row(name, *map(str, figures), f"{one.allocated:.1f}", f"{one.fragmented:.1f}")
    return table


def _refusals(runs: Mapping[str, Run]) -> list[Table | Text | str]:
    table = plain_table("WAY", "PODS", "WHY NOT BOUND")
    for name, one in runs.items():
        reasons = Counter(_reason(result) for result in one.results if result.state not in _RUNS)
        for reason, count in reasons.most_common(_MAX_REASONS):
            table.add_row(name, str(count), reason)
        more = sum(reasons.values()) - sum(count for _, count in reasons.most_common(_MAX_REASONS))
        if more:
            table.add_row(name, str(more), "for other reasons")
    return [table, ""] if table.row_count else []


def _reason(result: Result) -> str:
    """The first reason, without the nodes or the Pod that it names."""
    first = next(iter(result.reasons), "no reason is known")
    about = f"Pod {words.name_of(result.given or result.pod)}"
    if result.state is PodFate.UNSCHEDULABLE:
        return first.partition(": ")[2] or first
    return first.removeprefix(f"{about}: ").removeprefix(f"{about} is forbidden: ")


def _placements(runs: Mapping[str, Run]) -> list[Table | Text | str]:
    """The Pods that are on other nodes, or that only some of the ways place."""
    if len(runs) < 2:  # noqa: PLR2004 with one there is nothing to compare
        return []
    fates = {name: {key_of(one.given or one.pod): _where(one) for one in of.results} for name, of in runs.items()}
    every = list(dict.fromkeys(key for of in fates.values() for key in of))
    differing = [key for key in every if len({of.get(key, "-") for of in fates.values()}) > 1]
    if not differing:
        return ["All Pods are placed alike."]
    table = plain_table("POD", *runs)
    for key in differing[:_MAX_PODS]:
        table.add_row(devicewords.short_name("/".join(key)), *(of.get(key, "-") for of in fates.values()))
    more = len(differing) - _MAX_PODS
    return [table, *([f"... and {counted(more, 'more Pod')} with different fates"] if more > 0 else [])]


def _where(result: Result) -> str:
    return result.pod["spec"].get("nodeName") or "?" if result.state in _RUNS else str(result.state)
