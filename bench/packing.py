"""The FGD paper's experiment on Alibaba's openb trace: koordgate beside random, first fit, BestFit and FGD.

Pods arrive one by one in the order of a seed, until they ask for 130 % of the GPUs, and none ends; what fits nowhere
has failed. koordgate places them through its own admission, filter and bind; Pods without GPUs are placed as by a stock
kube-scheduler. The others place the same Pods on plain arrays, from their definitions. A row is the mean over the
seeds. The value is what koordgate has allocated at the end with the last of its variants that ran, in percent of all
GPUs. The reference is the same by FGD as published (95.4), or 92 without the taint koordgate.io/headroom.

`bench/openb/README.md` says where the data is from. For its seeds (42 to 51) the orders are the paper's own; for
others, and for other traces (--pods, --nodes), they are drawn here.

With --replay, Pods come and go at the trace's own times. They then ask for a hundredth of the GPUs at most, so take
few nodes: --share 130. The value is what koordgate has allocated in the mean over time, the reference the same by the
best of the strategies on arrays that ran, or else what was asked.
"""

import argparse
import asyncio
import gzip
import random
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
from openb.arrays import Arrays, typical
from openb.objects import mix_of_trace, node_objects
from openb.play import SAMPLES, Played, Player, Sample
from openb.plot import ASKED, TIMES, plot
from openb.stock import stock_scores
from openb.strategies import STRATEGIES, Fgd
from openb.trace import WHOLE, TraceNode, TracePod, named, read_nodes, read_pods, shuffled
from result import close
from rich.table import Table

from allocator.vocabulary.asks import Preference
from console import terminal
from console.simulator.cluster import OfflineCluster
from console.simulator.scheduler import Plain, best
from webhook.settings import HeadroomSettings, WebhookSettings

DATA = Path(__file__).parent / "openb"
PODS, NODES, ORDERS = (
    DATA / f"{name}.gz" for name in ("openb_pod_list_default.csv", "openb_node_list_gpu_node.csv", "order_default.txt")
)
LOAD = 130
PUBLISHED = {"random": 87.6, "BestFit": 93.2, "first fit": 94.6, "FGD": 95.4}
PUBLISHED["FGD, CPU-only Pods by a stock kube-scheduler"] = 90.2
WITHIN = 0.5
WITH_TAINT, WITHOUT = 95.4, 92.0
TAINT, BY_FGD = ", with headroom", ", CPU-only Pods by FGD"
MARKS = (80, 90, 100)
VARIANTS = [f"koordgate, {one}{how}" for one in Preference for how in ("", TAINT, BY_FGD)]


@dataclass(frozen=True)
class Run:
    """One run: a strategy or a variant of koordgate, a seed, and the data."""

    what: str
    seed: int
    pods: Path
    nodes: Path
    replay: bool
    share: int

    def cluster(self) -> tuple[list[TraceNode], list[TracePod], list[TracePod]]:
        """The nodes in their order, all Pods, and those that arrive."""
        nodes = sorted(read_nodes(self.nodes), key=lambda node: node.name)[:: self.share]
        pods = sorted(read_pods(self.pods), key=lambda pod: pod.name)
        places = list(range(len(nodes)))
        enough = sum(node.gpus for node in nodes) * WHOLE * LOAD // 100
        own = orders() if (self.pods, self.nodes, self.share) == (PODS, NODES, 1) else {}
        if self.seed in own:
            order, places = own[self.seed]
            arriving = named(pods, order, enough + WHOLE * len(pods))  # the paper's order ends by itself
        else:
            random.Random(self.seed).shuffle(places)
            arriving = shuffled(pods, enough, self.seed)
        renamed = (replace(node, name=f"{at:05d}-{node.name}") for at, node in zip(places, nodes, strict=True))
        numbered = sorted(renamed, key=lambda node: node.name)
        return numbered, pods, pods if self.replay else arriving

    def played(self) -> Played:
        """Do it."""
        nodes, pods, arriving = self.cluster()
        if self.what in STRATEGIES:
            return on_arrays(self.what, self.seed, nodes, pods, arriving, replay=self.replay)
        return asyncio.run(self._by_koordgate(nodes, pods, arriving))

    async def _by_koordgate(
        self, nodes: Sequence[TraceNode], pods: Sequence[TracePod], arriving: Sequence[TracePod]
    ) -> Played:
        base = WebhookSettings()
        preference = Preference(self.what.split(", ")[1])
        settings = msgspec.structs.replace(
            base,
            scheduler=msgspec.structs.replace(base.scheduler, preference=preference),
            headroom=HeadroomSettings(mode="taint" if self.what.endswith(TAINT) else "none"),
        )
        cluster = OfflineCluster.in_process(settings, plain=stock(self.seed))
        await cluster.load([obj for node in nodes for obj in node_objects(node)])
        if not self.what.endswith(BY_FGD):
            player = Player(cluster, mix_of_trace(pods))
        else:
            arrays = Arrays(nodes, typical(pods))
            choose, at = Fgd(arrays, self.seed), {node.name: number for number, node in enumerate(nodes)}

            def plain(pod: TracePod) -> str | None:
                found = choose(pod.ask)
                return None if found is None else nodes[found[0]].name

            def moved(pod: TracePod, node: str, minors: Sequence[int], sign: int) -> None:
                arrays.put(at[node], pod.ask, minors, sign)

            player = Player(cluster, mix_of_trace(pods), plain=plain, moved=moved)
        return await (player.replay(arriving) if self.replay else player.arrive(arriving))


def stock(seed: int) -> Plain:
    """Pods of others go where a stock kube-scheduler would put them, by chance among equally good nodes."""
    chance = random.Random(seed)
    return lambda *of: best(stock_scores(*of), chance.choice)


def table(runs: Mapping[str, Sequence[Played]], *, timed: bool = False, load: int = LOAD) -> Table:
    """The table of runs: the mean over those of one name.

    Args:
        runs: by name.
        timed: whether Pods came and went at their own times.
        load: what the Pods of the others asked for in the end, in percent of all GPUs.
    """
    marks = [*(mark for mark in MARKS if mark < load), load]
    shown = Table(box=None, padding=(0, 2, 0, 0), header_style="bold", pad_edge=False)
    shown.add_column("allocated %, when Pods have asked for" if not timed else "allocated % of all GPUs")
    over_time = ("mean", "highest", "asked, mean", "asked, highest")
    heads = over_time if timed else tuple(f"{mark} %" for mark in marks)
    for head in (*heads, "fragmented %", "Pods that failed", "of them without GPUs"):
        shown.add_column(head, justify="right")
    for name, of in runs.items():
        cells = [_timed(one.samples) for one in of] if timed else [_marked(one.samples, marks) for one in of]
        fragmented = [_mean([s.fragmented for s in one.samples]) if timed else one.samples[-1].fragmented for one in of]
        shown.add_row(
            name,
            *(_told([each[column] for each in cells]) for column in range(len(heads))),
            _told(fragmented),
            *(f"{_mean([getattr(one, what) for one in of]):.0f}" for what in ("failed", "failed_plain")),
        )
    return shown


def _marked(samples: Sequence[Sample], marks: Sequence[int]) -> list[float | None]:
    """Allocation at each mark; the last mark is the end of the run."""
    reached = [next((one.allocated for one in samples if one.at >= mark), None) for mark in marks[:-1]]
    return [*reached, samples[-1].allocated]


def _timed(samples: Sequence[Sample]) -> list[float | None]:
    allocated, asked = [one.allocated for one in samples], [one.asked for one in samples]
    return [_mean(allocated), max(allocated), _mean(asked), max(asked)]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _told(values: Sequence[float | None]) -> str:
    return "-" if None in values else f"{_mean([value for value in values if value is not None]):.1f}"


def orders() -> dict[int, tuple[list[int], list[int]]]:
    """The paper's own orders: seed -> indices of the Pods by name as they arrive, and places of the nodes by name."""
    parts = [line.split(";") for line in gzip.decompress(ORDERS.read_bytes()).decode().splitlines()]
    return {int(seed): ([*map(int, pods.split())], [*map(int, nodes.split())]) for seed, pods, nodes in parts}


def on_arrays(
    what: str,
    seed: int,
    nodes: Sequence[TraceNode],
    pods: Sequence[TracePod],
    arriving: Sequence[TracePod],
    *,
    replay: bool,
) -> Played:
    """Place Pods by a strategy on plain arrays, and measure as koordgate is measured."""
    cluster, played = Arrays(nodes, typical(pods)), Played()
    choose = STRATEGIES[what](cluster, seed)
    bound: dict[str, tuple[int, list[int]]] = {}
    asked, at, due = 0, 0.0, 0.0
    events = list(timed(arriving)) if replay else [(0, True, pod) for pod in arriving]
    whole = events[-1][0] - events[0][0] if replay else cluster.all_milli

    def sample(place: float) -> None:
        of_all = 100 / cluster.all_milli
        played.samples.append(Sample(place, asked * of_all, cluster.allocated_percent, cluster.fragmented_percent))

    for time, begins, pod in events:
        if replay:
            at = float(time - events[0][0])
        while at >= due:
            sample(due if replay else at * 100 / cluster.all_milli)
            due += max(1, whole // SAMPLES)
        asked += pod.ask.gpu_milli if begins else -pod.ask.gpu_milli
        if not replay:
            at += pod.ask.gpu_milli
        if not begins:
            if pod.name in bound:
                cluster.put(bound[pod.name][0], pod.ask, bound.pop(pod.name)[1], -1)
        elif found := choose(pod.ask):
            bound[pod.name] = found
            cluster.put(found[0], pod.ask, found[1])
            played.bound += 1
        else:
            played.failed += 1
            played.failed_plain += not pod.ask.gpus
    sample(at if replay else at * 100 / cluster.all_milli)
    return played


def timed(pods: Sequence[TracePod]) -> Iterator[tuple[int, bool, TracePod]]:
    """Arrivals and ends, in order; at one time the ends come first."""
    begins = [(pod.created, True, pod) for pod in pods if pod.created is not None]
    both = [pod for pod in pods if pod.created is not None and pod.deleted is not None]
    ends = [(max(pod.deleted or 0, (pod.created or 0) + 1), False, pod) for pod in both]
    yield from sorted([*begins, *ends], key=lambda each: each[:2])


def run(one: Run) -> Played:
    return one.played()


def check(rows: dict[str, list[Played]], seeds: Sequence[int]) -> None:
    """Compare the strategies with the published figures."""
    for name, figure in PUBLISHED.items():
        if name in rows:
            found = sum(one.samples[-1].allocated for one in rows[name]) / len(seeds)
            met = "as published" if abs(found - figure) <= WITHIN else "NOT as published"
            print(f"{name}: {found:.2f} % at {LOAD} %, published {figure}: {met}", file=sys.stderr)


def over_time(runs: Sequence[Played], figure: str) -> float:
    """The mean of a figure of the samples, over all times and seeds."""
    return float(statistics.mean(getattr(sample, figure) for one in runs for sample in one.samples))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[42, 43, 44, 45, 46])
    parser.add_argument("--only", nargs="+", metavar="NAME", help=f"of: {'; '.join([*STRATEGIES, *VARIANTS])}")
    parser.add_argument("--pods", type=Path, default=PODS, help="another trace of the same format")
    parser.add_argument("--nodes", type=Path, default=NODES, help="other nodes of the same format")
    parser.add_argument("--share", type=int, default=1, metavar="N", help="take each N-th node only, for a short run")
    parser.add_argument("--replay", action="store_true", help="let Pods come and go at the trace's own times")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the first seed's runs into this file as SVG")
    parser.add_argument("--jobs", type=int, default=None, help="runs at the same time (default: one for each core)")
    arguments = parser.parse_args()
    default = WebhookSettings().scheduler.preference
    names = arguments.only or [*STRATEGIES, *(f"koordgate, {default}{how}" for how in ("", BY_FGD, TAINT))]
    if unknown := [name for name in names if name not in (*STRATEGIES, *VARIANTS)]:
        parser.error(f"{unknown[0]!r} is none of: {'; '.join([*STRATEGIES, *VARIANTS])}")
    of_data = (arguments.pods, arguments.nodes, arguments.replay, arguments.share)
    runs = [Run(name, seed, *of_data) for name in names for seed in arguments.seeds]
    rows: dict[str, list[Played]] = {name: [] for name in names}
    with ProcessPoolExecutor(arguments.jobs) as pool:
        for each, played in zip(runs, pool.map(run, runs), strict=True):
            rows[each.what].append(played)
            last = played.samples[-1]
            allocated = over_time([played], "allocated") if arguments.replay else last.allocated
            told = f"{allocated:.2f} % allocated, {played.failed} Pods failed, {played.taints} taints changed"
            print(f"  {each.what}, seed {each.seed}: {told}", file=sys.stderr, flush=True)
            for why in played.refused.values():
                print(f"    {why}", file=sys.stderr)
    terminal.show(table(rows, timed=arguments.replay))
    if (arguments.pods, arguments.nodes, arguments.replay, arguments.share) == (PODS, NODES, False, 1):
        check(rows, arguments.seeds)
    if arguments.plot:
        arguments.plot.write_text(
            plot({name: of[0].samples for name, of in rows.items()}, TIMES if arguments.replay else ASKED)
        )
    ours = [name for name in names if name in VARIANTS and not name.endswith(BY_FGD)] or names
    if arguments.replay:
        others = [over_time(rows[name], "allocated") for name in names if name in STRATEGIES]
        reference = max(others, default=over_time(rows[ours[-1]], "asked"))
        value = over_time(rows[ours[-1]], "allocated")
        close(name="packing replay", value=value, unit="% of GPUs allocated", reference=reference, goal=1.0)
        return
    value = sum(one.samples[-1].allocated for one in rows[ours[-1]]) / len(arguments.seeds)
    goal = WITH_TAINT if ours[-1].endswith(TAINT) else WITHOUT
    close(name="packing", value=value, unit="% of GPUs allocated", reference=goal, goal=1.0)


if __name__ == "__main__":
    main()
