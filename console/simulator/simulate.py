"""`koordgate simulate`: objects through admission, scheduling and binding, then tables and checks."""

import argparse
import asyncio
import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from allocator.quantity import QuantityError, to_int
from console import terminal
from console.notes import tell_notes
from console.simulator import devicemap, podgroups, report, words
from console.simulator.account import Account
from console.simulator.arrivals import Arrivals, standing, with_devices
from console.simulator.cluster import OfflineCluster, PodFate, Result
from console.simulator.documents import InputError, settings_of
from console.simulator.expectations import Check, Expected, check_bound, check_expected, read_expectations, to_junit
from console.simulator.objects import Objects, add_files, read
from console.simulator.running import counting_all
from console.simulator.workloads import WantedPod, created, of_another_node
from console.terminal import counted
from koordgate.cli import Command
from webhook import settings
from webhook.settings import WebhookSettings

FAILED: Final = 1
_MAX_REASONS: Final = 5
_MAX_FAILURES: Final = 20


def wanted(objects: Objects, called: str) -> list[WantedPod]:
    """List the Pods of the input and those that its objects create; what is not created goes to its notes.

    Where there is none, the notes are written before the error, as they may say why; `called`: the command.

    Raises:
        InputError: there is none, or one cannot be used.
    """
    made = created(objects)
    if not made.pods:
        found = ", ".join(f"{count} {kind}" for kind, count in sorted(objects.found.items())) or "no object"
        tell_notes(called, [*made.notes, *objects.notes][:_MAX_REASONS])
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
    return terminal.guarded(arguments.called, lambda: _run(arguments), InputError, devicemap.MapError)


def _run(arguments: argparse.Namespace) -> int:
    objects, configured = read_input(arguments)
    expected = [one for path in arguments.expect for one in read_expectations(path)]
    return _simulate(arguments, objects, configured, expected)


def read_input(arguments: argparse.Namespace) -> tuple[Objects, WebhookSettings]:
    """Read the files of `add_input`, and the settings; Nodes without a Device object get assumed cards.

    Raises:
        InputError: something cannot be used.
        SettingsError: likewise.
    """
    terminal.doing("reading the files")
    objects = read(arguments.files)
    if arguments.config is not None:
        configured = settings.load(arguments.config)
    elif objects.settings is not None:
        configured = settings_of(objects.settings)
    else:
        configured = counting_all(settings_of(None))
    return with_devices(objects, dict(arguments.gpu_memory), settings.types_of(configured)), configured


def _simulate(
    arguments: argparse.Namespace, objects: Objects, configured: WebhookSettings, expected: Sequence[Expected]
) -> int:
    cluster = _cluster(arguments, objects, configured)
    pods = wanted(objects, arguments.called)
    results = asyncio.run(simulate(objects, pods, cluster, lambda done: terminal.doing("Pods", done, len(pods))))
    if arguments.node is not None:
        kept = [one for one in results if not of_another_node(one.pod, arguments.node)]
        if left_out := len(results) - len(kept):
            objects.notes.append(f"Pods of DaemonSets for other nodes than {arguments.node} are left out: {left_out}")
        results = kept
    account = cluster.account()
    remarks = () if arguments.output == "table" else _remarks(results, account)  # the table has them
    notes = (*objects.notes, *cluster.notes, *account.overgiven(), *remarks)
    tell_notes(arguments.called, notes, everything=arguments.all)
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
    for name, check in failed[:_MAX_FAILURES]:
        for problem in check.problems[:_MAX_REASONS]:
            terminal.tell(arguments.called, f"{name}: {check.name}: {problem}")
    if len(failed) > _MAX_FAILURES:
        terminal.tell(arguments.called, f"{counted(len(failed) - _MAX_FAILURES, 'more check')} failed")
    every = sum(len(checks) for checks in suites.values())
    if every:
        terminal.tell(arguments.called, f"{every - len(failed)} of {counted(every, 'check')} passed")
    return FAILED if failed else 0


def _cluster(arguments: argparse.Namespace, objects: Objects, configured: WebhookSettings) -> OfflineCluster:
    cluster = OfflineCluster.in_process(configured)
    names = sorted(node["metadata"]["name"] for node in objects.nodes)
    if arguments.node is not None and arguments.node not in names:
        there = ", ".join(names[:_MAX_FAILURES]) or "none"
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


def _remarks(results: Iterable[Result], account: Account) -> Iterator[str]:
    """Remarks on Pods that the objects themselves do not contain."""
    for result in results:
        trouble = words.trouble(result.pod, account) if result.state is PodFate.STANDING else ""
        remarks = [trouble] if trouble else [f"warning: {warning}" for warning in result.warnings]
        yield from (f"Pod {words.name_of(result.pod)}: {remark}" for remark in remarks)


def _print(arguments: argparse.Namespace, results: Sequence[Result], account: Account) -> None:
    node = arguments.node
    if node is not None:
        results = [one for one in results if one.state is not PodFate.STANDING or podgroups.node_of(one) == node]
    if arguments.output == "json":
        terminal.write_data(report.as_list(results, account), "json")
    elif arguments.output == "yaml":
        report.write_yaml(results, account)
    else:
        shown = results if arguments.all or node is not None else podgroups.settled(results, account)
        report.show_pods(podgroups.grouped(shown, account, apart=arguments.all), arguments.width)
        if arguments.all:
            every = report.node_parts(account.reports(), account, terminal.columns(arguments.width))
            terminal.show(*every, most=arguments.width)
        else:
            report.show_nodes(account, results, node, rest=arguments.all_nodes, most=arguments.width)
        if node is None and any(one.state is PodFate.UNSCHEDULABLE for one in results):
            terminal.show("What would help a Pod without a node: koordgate explain, with the same files.")
        terminal.show(report.summary(results, account, node), most=arguments.width)


_NARROWEST: Final = 40


def _memory(text: str) -> tuple[str, int]:
    """Read `MODEL=QUANTITY` or `QUANTITY`: how much memory each card has."""
    model, _, quantity = text.rpartition("=")
    try:
        amount = to_int(quantity)
    except QuantityError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {error}; write MODEL=QUANTITY, such as A10=24Gi") from error
    if not amount:
        raise argparse.ArgumentTypeError(f"{text!r}: a card has more memory than that; write bytes, such as A10=24Gi")
    return model, amount


def _width(text: str) -> int:
    """Read a number of columns."""
    if text.isascii() and text.isdigit() and _NARROWEST <= int(text[:6]) <= terminal.WIDE:
        return int(text)
    raise argparse.ArgumentTypeError(f"{text!r}: state columns from {_NARROWEST} to {terminal.WIDE}")


def add_input(parser: argparse.ArgumentParser) -> None:
    """Add the options that say what is simulated, and how wide tables are."""
    add_files(parser)
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="settings of the webhook (default: those of the installation whose ConfigMap is in the files, as in a "
        "snapshot; without it, the defaults with every dialect on)",
    )
    parser.add_argument(
        "--gpu-memory",
        type=_memory,
        action="append",
        default=[],
        metavar="MODEL=QUANTITY",
        help="memory of each card of a model, for Nodes without a Device object whose labels do not say it; without "
        "MODEL= of any other model; may be given more than once",
    )
    parser.add_argument(
        "--width",
        type=_width,
        default=terminal.WIDE,
        metavar="COLUMNS",
        help="fold tables to so many columns (default: as many as the terminal has; elsewhere nothing is folded)",
    )


def _arguments(parser: argparse.ArgumentParser) -> None:
    add_input(parser)
    terminal.add_output(parser)
    parser.add_argument(
        "--node", metavar="NAME", help="consider and show only this node: does a Pod fit on it, and if not, why"
    )
    parser.add_argument(
        "--all", action="store_true", help="list each Pod and each node, however many there are, and each note"
    )
    parser.add_argument(
        "--all-nodes", action="store_true", help="show the nodes without new Pods too, equal ones in one line"
    )
    parser.add_argument("--map", type=Path, metavar="FILE", help="also draw who holds what as one HTML file")
    checks = parser.add_argument_group("checks", "for CI: the exit status is 1 if one of them fails")
    checks.add_argument("--require-bound", action="store_true", help="every Pod must be bound")
    checks.add_argument(
        *("-e", "--expect"),
        action="append",
        default=[],
        metavar="FILE",
        help="what must become of which Pods (docs/operate/explain.md); may be given more than once",
    )
    checks.add_argument("--junit", type=Path, metavar="FILE", help="write the checks as JUnit XML")


COMMAND: Final = Command(
    description="Show what koordgate would do, without a cluster: the Pods in the files, and those that workloads "
    "there create, go through the webhook's own admission, scheduling and binding, onto the Nodes, Device objects and "
    "NodeResourceTopologies in the files. kubectl get -o yaml writes such files.\n\n"
    "It reads Deployments, StatefulSets, DaemonSets, Jobs, CronJobs (one run) and all others that contain Pod "
    "templates; the modes of Namespaces, LimitRanges, ResourceQuotas, PriorityClasses, RuntimeClasses, PodGroups. A "
    "Node without a Device object gets cards that are assumed from its amounts and labels; the output says so.\n\n"
    "A Pod with spec.nodeName is there already, and holds what its annotations, another product or a device plugin "
    "gave it (with --config: products in adopt.peers); a finished one holds nothing. A stand-in for kube-scheduler "
    "counts taints, node selection, sums of resources and the order by priority, but not Pod affinity, topology "
    "spread, volumes and host ports. It names the Pods that a Pod would preempt, and evicts none. As data it writes a "
    "List of the Pods as they would be in the cluster.\n\n"
    "The exit status is 0 whatever becomes of the Pods, unless a check is asked for; 1 if a check fails (-e, "
    "--require-bound); 2 where the input cannot be used, or has no Pod.",
    examples="examples:\n"
    "  koordgate simulate -f examples/cluster.yaml examples/workload.yaml \\\n"
    "    --config examples/config.yaml\n"
    "  kubectl get nodes,devices,noderesourcetopologies,pods -A -o json \\\n"
    "    | koordgate simulate -f - my-pod.yaml\n"
    "  koordgate simulate -f cluster.yaml my-pod.yaml --node gpu-node-1\n"
    "  koordgate simulate -f cluster.yaml app.yaml --require-bound \\\n"
    "    -e expected.yaml --junit simulate.xml\n"
    "  koordgate simulate -f cluster.yaml app.yaml -o json \\\n"
    "    | jq '.items[] | {(.metadata.name): .spec.nodeName}'",
    arguments=_arguments,
    run=run,
)
