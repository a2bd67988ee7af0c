"""What `koordgate simulate` does: objects through admission, scheduling and binding, then tables and checks."""

import argparse
import asyncio
import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from console import terminal
from console.simulator import compare, devicemap, report, words
from console.simulator.account import Account
from console.simulator.arrivals import Arrivals
from console.simulator.cluster import OfflineCluster, PodFate, Result
from console.simulator.configured import settings_of
from console.simulator.daemons import of_another_node
from console.simulator.documents import InputError
from console.simulator.expectations import Check, Expected, check_bound, check_expected, read_expectations
from console.simulator.inputs import standing, with_devices
from console.simulator.junit import to_junit
from console.simulator.objects import Objects, read
from console.simulator.progress import progress
from console.simulator.running import counting_all
from console.simulator.variants import Variant, variants
from console.simulator.workloads import WantedPod, created
from console.terminal import counted
from koordgate.settings import SettingsError
from webhook import settings
from webhook.settings import WebhookSettings

FAILED: Final = 1
UNUSABLE: Final = 2
_MOST_REASONS: Final = 5
_MOST_ALIKE: Final = 3  # Pods of which the same is said, by name
_MOST_FAILURES: Final = 20
_NARROW: Final = 80  # columns of a comparison


def wanted(objects: Objects) -> list[WantedPod]:
    """List the Pods of the input and those that its objects create; what is not created goes to its notes.

    Where there is none, the notes are written before the error, as they may say why.

    Raises:
        InputError: there is none, or one cannot be used.
    """
    made = created(objects)
    if not made.pods:
        found = ", ".join(f"{count} {kind}" for kind, count in sorted(objects.found.items())) or "no object"
        _tell([*made.notes, *objects.notes][:_MOST_REASONS])
        raise InputError(
            f"the input has no Pod, and nothing in it creates one (found: {found}); give Pods or workloads with -f"
        )
    objects.notes += made.notes
    return made.pods


async def simulate(
    objects: Objects,
    pods: Sequence[WantedPod],
    cluster: OfflineCluster,
    tell: Callable[[int], object] = lambda _done: None,
) -> list[Result]:
    """Load the objects into an empty cluster, and create, schedule and bind the Pods that are not bound yet.

    Pods that are bound hold what their annotations, their products or a device plugin gave them.

    Returns:
        The outcome for each Pod, in the given order.

    Raises:
        InputError: an object cannot be used.
    """
    there = await standing(objects, cluster)
    return await cluster.settle(await Arrivals(cluster, there, tell).run(pods))


def run(arguments: argparse.Namespace) -> int:
    """Run the command; returns the exit status."""
    logging.basicConfig(level=logging.ERROR)  # problems of the input are printed below
    try:
        return _run(arguments)
    except (InputError, SettingsError, devicemap.MapError) as error:
        sys.stderr.write(f"koordgate simulate: {error}\n")
        return UNUSABLE
    except BrokenPipeError:
        return terminal.unread()


def _run(arguments: argparse.Namespace) -> int:
    memory = dict(arguments.gpu_memory)
    objects = read(arguments.files)
    if arguments.config is not None:
        configured = settings.load(arguments.config)
    elif objects.settings is not None:
        configured = settings_of(objects.settings)
    else:
        configured = counting_all(settings_of(None))
    ways = variants(arguments, configured, memory)
    expected = [one for path in arguments.expect for one in read_expectations(path)]
    objects = with_devices(objects, memory, settings.types_of(configured))
    if arguments.compare or arguments.preference:
        _check_comparison(arguments)
        _compare(arguments, objects, ways)
        return 0
    return _simulate(arguments, objects, configured, expected)


def _check_comparison(arguments: argparse.Namespace) -> None:
    of_one_run = {
        "--node": arguments.node,
        "--map": arguments.map,
        "--expect": arguments.expect,
        "--require-bound": arguments.require_bound,
        "--junit": arguments.junit,
        "-o": arguments.output != "table",
    }
    for name, value in of_one_run.items():
        if value:
            raise InputError(f"{name} does not go with --compare and --preference; leave it out")


def _compare(arguments: argparse.Namespace, given: Objects, ways: dict[str, Variant]) -> None:
    runs: dict[str, compare.Run] = {}
    noted: dict[str, None] = {}
    for name, way in ways.items():
        objects = way.objects(given)
        pods = wanted(objects)
        with progress(name) as (begin, tell):
            begin(len(pods))
            runs[name] = asyncio.run(compare.run(objects, pods, way, arguments.seed, tell))
        noted |= dict.fromkeys(objects.notes)
    _tell(_gathered(noted))
    terminal.show(*compare.tables(runs), most=_columns(arguments))
    sys.stdout.flush()


def _simulate(
    arguments: argparse.Namespace, objects: Objects, configured: WebhookSettings, expected: Sequence[Expected]
) -> int:
    cluster = _cluster(arguments, objects, configured)
    pods = wanted(objects)
    with progress("Pods") as (begin, tell):
        begin(len(pods))
        results = asyncio.run(simulate(objects, pods, cluster, tell))
    if arguments.node is not None:
        kept = [one for one in results if not of_another_node(one.pod, arguments.node)]
        if left_out := len(results) - len(kept):
            objects.notes.append(f"Pods of DaemonSets for other nodes than {arguments.node} are left out: {left_out}")
        results = kept
    account = cluster.account()
    remarks = () if arguments.output == "table" else _remarks(results, account)  # the table has them
    notes = (*objects.notes, *cluster.notes, *account.overgiven(), *remarks)
    _tell(notes if arguments.all else _gathered(notes))
    if arguments.map is not None:
        devicemap.write(arguments.map, results, account)
    _print(arguments, results, account)
    sys.stdout.flush()
    suites: dict[str, Sequence[Check]] = {}
    if expected:
        suites["expectations"] = check_expected(expected, results, account)
    if arguments.require_bound:
        suites["require-bound"] = check_bound(results)
    return _judge(arguments, suites)


def _judge(arguments: argparse.Namespace, suites: dict[str, Sequence[Check]]) -> int:
    """Say which checks failed, and write them all as JUnit XML if that is wanted."""
    if arguments.junit is not None:
        try:
            arguments.junit.write_text(to_junit(suites), encoding="utf-8")
        except OSError as error:
            told = f"--junit {arguments.junit}: cannot be written ({error.strerror}); name another file"
            raise InputError(told) from error
    failed = [(name, check) for name, checks in suites.items() for check in checks if not check.passed]
    for name, check in failed[:_MOST_FAILURES]:
        for problem in check.problems[:_MOST_REASONS]:
            sys.stderr.write(f"koordgate simulate: {name}: {check.name}: {problem}\n")
    if len(failed) > _MOST_FAILURES:
        sys.stderr.write(f"koordgate simulate: {counted(len(failed) - _MOST_FAILURES, 'more check')} failed\n")
    every = sum(len(checks) for checks in suites.values())
    if every:
        sys.stderr.write(f"koordgate simulate: {every - len(failed)} of {counted(every, 'check')} passed\n")
    return FAILED if failed else 0


def _cluster(arguments: argparse.Namespace, objects: Objects, configured: WebhookSettings) -> OfflineCluster:
    cluster = OfflineCluster.in_process(configured, arguments.seed)
    names = sorted(node["metadata"]["name"] for node in objects.nodes)
    if arguments.node is not None and arguments.node not in names:
        there = ", ".join(names[:_MOST_FAILURES]) or "none"
        raise InputError(f"--node {arguments.node}: no such Node in the input; there are {there}")
    if arguments.junit is not None and not (arguments.expect or arguments.require_bound):
        raise InputError("--junit writes what is checked: give expectations with -e, or --require-bound")
    cluster.only = arguments.node
    nodes = set(names)
    objects.notes.extend(
        f"{obj['kind']} {obj['metadata']['name']}: there is no Node with this name, so no Pod is placed there"
        for obj in (*objects.devices, *objects.topologies)
        if obj["metadata"]["name"] not in nodes
    )
    return cluster


def _tell(notes: Iterable[str]) -> None:
    for note in notes:
        sys.stderr.write(f"koordgate simulate: {note}\n")


def _gathered(notes: Iterable[str]) -> Iterator[str]:
    """Notes in order, where those that say the same of many Pods are one."""
    pods: dict[str, list[str]] = {}  # what is said -> of which Pods; no Pod for a note about something else
    for note in notes:
        who, _, what = note.partition(": ")
        if who.startswith("Pod "):
            pods.setdefault(what, []).append(who.removeprefix("Pod "))
        else:
            pods.setdefault(note, [])
    for what, names in pods.items():
        more = f" and {counted(len(names) - _MOST_ALIKE, 'more Pod')}" if len(names) > _MOST_ALIKE else ""
        yield (
            f"{'Pod' if len(names) == 1 else 'Pods'} {', '.join(names[:_MOST_ALIKE])}{more}: {what}" if names else what
        )


def _remarks(results: Iterable[Result], account: Account) -> Iterator[str]:
    """Remarks on Pods that the objects themselves do not contain."""
    for result in results:
        trouble = words.trouble(result.pod, account) if result.state is PodFate.STANDING else ""
        remarks = [trouble] if trouble else [f"warning: {warning}" for warning in result.warnings]
        yield from (f"Pod {words.name_of(result.pod)}: {remark}" for remark in remarks)


def _print(arguments: argparse.Namespace, results: Sequence[Result], account: Account) -> None:
    node = arguments.node
    if node is not None:
        results = [one for one in results if one.state is not PodFate.STANDING or report.node_of(one) == node]
    if arguments.output == "json":
        terminal.write_data(report.as_list(results, account), "json")
    elif arguments.output == "yaml":
        report.write_yaml(results, account)
    else:
        many = len(results) > report.MOST_LISTED and not arguments.all
        if many:
            report.show_groups(results, arguments.width)
        else:
            report.show_pods(results, account, arguments.width)
        if node is not None or not many:
            report.show_nodes(account, node, arguments.width)
        terminal.show(report.summary(results, account, node), most=arguments.width)


def _columns(arguments: argparse.Namespace) -> int:
    return arguments.width if arguments.width < terminal.WIDE or arguments.all else _NARROW
