"""Runs the same Pods in several ways, and shows for each what is placed, how full the GPUs are, and what is refused."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from rich.table import Table
from rich.text import Text

from allocator.request.typical import typical_of
from allocator.vocabulary.mix import Mix, mix_of
from console.plaintable import plain_table
from console.simulator import words
from console.simulator.arrivals import Arrivals
from console.simulator.cluster import OfflineCluster, PodFate, Result
from console.simulator.inputs import key_of, standing
from console.simulator.measure import Measure
from console.simulator.objects import Objects
from console.simulator.variants import Variant
from console.simulator.workloads import WantedPod
from webhook.statedmix import read_mix
from webhook.view.podinfo import read_pod_info

_MOST_PODS: Final = 20  # that are listed because they fare differently
_MOST_REASONS: Final = 3  # of one way
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

    Args:
        objects: of the cluster, in this way.
        wanted: the Pods.
        variant: the way.
        seed: as for `OfflineCluster.in_process`.
        tell: called with the number of Pods that are scheduled.

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
        for reason, count in reasons.most_common(_MOST_REASONS):
            table.add_row(name, str(count), reason)
        more = sum(reasons.values()) - sum(count for _, count in reasons.most_common(_MOST_REASONS))
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
    for key in differing[:_MOST_PODS]:
        table.add_row(words.short_name("/".join(key)), *(of.get(key, "-") for of in fates.values()))
    more = len(differing) - _MOST_PODS
    return [table, *([f"... and {more} more Pods that fare differently"] if more > 0 else [])]


def _where(result: Result) -> str:
    return result.pod["spec"].get("nodeName") or "?" if result.state in _RUNS else str(result.state)
