"""`koordgate simulate --trace`: runs a trace on nodes, once for each preference, and prints a table and a plot."""

import argparse
import asyncio
import gzip
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from rich.table import Table

from allocator.vocabulary.mix import Mix
from console import terminal
from console.simulator.cluster import OfflineCluster
from console.simulator.documents import InputError
from console.simulator.inputs import with_devices
from console.simulator.objects import Objects
from console.simulator.progress import progress
from console.simulator.simulateoptions import refuse_of_one_run, write_file
from console.simulator.trace import TracePod, read_nodes, read_pods, shuffled
from console.simulator.traceobjects import mix_of_trace, node_objects
from console.simulator.traceplay import Played, Player, Sample
from console.simulator.traceplot import ASKED, TIMES, plot
from console.simulator.variants import GIVEN, variants
from webhook.settings import WebhookSettings

_MARKS: Final = (80, 90, 100)
FULL_LOAD: Final = 130
_LONGEST_TRACE: Final = 64 * 2**20
_MOST_LOAD: Final = 1000
_PERCENT: Final = 100
Raw = dict[str, object]


def add_trace(parser: argparse.ArgumentParser) -> None:
    """Add the options for traces."""
    group = parser.add_argument_group(
        "traces", "place the Pods of a trace, and show how full and how fragmented the GPUs become"
    )
    group.add_argument(
        "--trace", type=Path, metavar="PODS.csv", help="Pods in the format of Alibaba's openb trace; may end in .gz"
    )
    group.add_argument(
        "--trace-nodes", type=Path, metavar="NODES.csv", help="nodes in that format, in place of a cluster from -f"
    )
    group.add_argument(
        "--load",
        type=int,
        metavar="PERCENT",
        help="let Pods arrive by chance (--seed), some more than once, until they ask for so many percent of all GPUs, "
        "and none end (default: 130)",
    )
    group.add_argument(
        "--replay", action="store_true", help="let Pods arrive and end at the trace's own times, instead of --load"
    )


def run_trace(
    arguments: argparse.Namespace, given: Objects, configured: WebhookSettings, memory: Mapping[str, int]
) -> None:
    """Run what the arguments say, and print it.

    Args:
        arguments: of the command line.
        given: the objects of the files.
        configured: the settings.
        memory: bytes of a card by model, where the user states it.

    Raises:
        InputError: something cannot be used; the message says what to do.
    """
    pods, nodes = _pods(arguments), _nodes(arguments, given, memory)
    preference = str(configured.scheduler.preference)
    mix, runs = mix_of_trace(pods), {}
    for name, way in variants(arguments, configured, memory).items():
        has = nodes if way.nodes is None else [*way.nodes.cluster, *way.nodes.groups, *way.nodes.pods]
        told = preference if name == GIVEN and not arguments.compare else name
        runs[told] = asyncio.run(_run(arguments, told, way.settings, pods, has, mix))
    for name, played in runs.items():
        for why in played.refused.values():
            sys.stderr.write(f"koordgate simulate: {name}: {why}\n")
    terminal.show(
        table(
            {name: [played] for name, played in runs.items()}, timed=arguments.replay, load=arguments.load or FULL_LOAD
        )
    )
    if arguments.plot is not None:
        drawn = plot({name: played.samples for name, played in runs.items()}, TIMES if arguments.replay else ASKED)
        write_file(arguments.plot, drawn, "--plot")


def checked(arguments: argparse.Namespace) -> None:
    """Check that the options go together.

    Raises:
        InputError: they do not; the message says which.
    """
    of_traces = {
        "--trace-nodes": arguments.trace_nodes,
        "--load": arguments.load,
        "--replay": arguments.replay or None,
    }
    given = [name for name, value in of_traces.items() if value is not None]
    if arguments.trace is None:
        if given:
            raise InputError(f"{given[0]} is for traces: give --trace PODS.csv too")
        if not arguments.files:
            raise InputError("give the cluster and the Pods with -f, or a trace with --trace")
        return
    refuse_of_one_run(arguments, "--trace")
    if arguments.output != "table":
        raise InputError("a trace has a table only: leave out -o, and take --plot for a picture")
    if (arguments.trace_nodes is None) == (not arguments.files):
        raise InputError(
            "a trace needs nodes: give either --trace-nodes NODES.csv, or -f with Nodes and Device objects"
        )
    if arguments.replay and arguments.load is not None:
        raise InputError("--load and --replay exclude each other: leave one out")
    if arguments.load is not None and not 0 < arguments.load <= _MOST_LOAD:
        raise InputError(f"--load {arguments.load}: give a percentage from 1 to {_MOST_LOAD}")


def read_text(path: Path) -> str:
    """Read a text file; one that ends in .gz is unpacked.

    Raises:
        InputError: it cannot be read, is no text, or is too long.
    """
    opened: Callable[..., object] = gzip.open if path.suffix == ".gz" else open
    try:
        with opened(path, "rb") as file:  # type: ignore[attr-defined]
            text: bytes = file.read(_LONGEST_TRACE + 1)
        if len(text) > _LONGEST_TRACE:
            raise InputError(f"{path}: has more than {_LONGEST_TRACE >> 20} MiB; take a part of the trace")
        return text.decode("utf-8-sig")
    except (OSError, EOFError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{path}: cannot be read ({reason}); give a CSV file, or one packed by gzip (.gz)") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: is not UTF-8 text ({error.reason}); give a CSV file") from error


def table(runs: Mapping[str, Sequence[Played]], *, timed: bool = False, load: int = FULL_LOAD) -> Table:
    """The table of runs: the mean over those of one name.

    Args:
        runs: by name.
        timed: whether Pods came and went at their own times.
        load: what the Pods of the others asked for in the end, in percent of all GPUs.
    """
    marks = [*(mark for mark in _MARKS if mark < load), load]
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


def _pods(arguments: argparse.Namespace) -> list[TracePod]:
    pods = read_pods(read_text(arguments.trace), str(arguments.trace))
    if arguments.replay and not any(pod.created is not None for pod in pods):
        raise InputError(f"{arguments.trace}: no Pod has a creation_time, which --replay needs; use --load instead")
    return pods


def _nodes(arguments: argparse.Namespace, given: Objects, memory: Mapping[str, int]) -> list[Raw]:
    """The cluster's objects."""
    if arguments.trace_nodes is not None:
        listed = read_nodes(read_text(arguments.trace_nodes), str(arguments.trace_nodes))
        return [obj for node in listed for obj in node_objects(node)]
    objects = with_devices(given, memory)
    for note in objects.notes:
        sys.stderr.write(f"koordgate simulate: {note}\n")
    return [*objects.cluster, *objects.groups, *objects.pods]


async def _run(
    arguments: argparse.Namespace,
    name: str,
    settings: WebhookSettings,
    pods: Sequence[TracePod],
    nodes: Sequence[Raw],
    mix: Mix,
) -> Played:
    seed = arguments.seed or 0
    cluster = OfflineCluster.in_process(settings, stock=seed)
    await cluster.load(nodes)
    with progress(name) as (begin, tell):
        player = Player(cluster, mix, tell=tell)
        if not player.all_milli:
            raise InputError("the nodes have no usable GPU, so nothing can be allocated; give nodes with GPUs")
        if arguments.replay:
            begin(
                sum((pod.created is not None) + (pod.created is not None and pod.deleted is not None) for pod in pods)
            )
            return await player.replay(pods)
        arriving = shuffled(pods, player.all_milli * (arguments.load or FULL_LOAD) // _PERCENT, seed)
        begin(len(arriving))
        return await player.arrive(arriving)
