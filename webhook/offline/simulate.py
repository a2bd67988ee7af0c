"""`koordgate simulate`: Kubernetes objects from files through admission, scheduling and binding, offline."""

import argparse
import asyncio
import logging
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final

from koordgate.cli import Command
from koordgate.settings import SettingsError
from webhook import settings, terminal
from webhook.offline import devicemap, report, tracerun, words
from webhook.offline.account import Account
from webhook.offline.arrivals import Arrivals
from webhook.offline.cluster import OfflineCluster, PodFate, Result
from webhook.offline.inputs import read_cluster, standing
from webhook.offline.objects import InputError, Objects, add_files
from webhook.offline.running import counting_all
from webhook.offline.workloads import created
from webhook.settings import WebhookSettings

_UNUSABLE: Final = 2
_MOST_REASONS: Final = 5


async def simulate(
    objects: Objects, cluster: OfflineCluster, tell: Callable[[int], object] = lambda _done: None
) -> list[Result]:
    """Load the objects into a cluster, and create, schedule and bind the Pods that are not bound yet.

    Pods that are bound hold what their annotations, their products or a device plugin gave them. Workloads create the
    Pods that they lack.

    Args:
        objects: of the cluster.
        cluster: empty.
        tell: called with the number of Pods that are scheduled.

    Returns:
        The outcome for each Pod, in the order of the input.

    Raises:
        InputError: an object cannot be used, or there is no Pod at all; the message says what there is instead.
    """
    made = created(objects)
    objects.notes += made.notes
    if not made.pods:
        raise InputError(_no_pod(objects))
    there = await standing(objects, cluster)
    return await cluster.settle(await Arrivals(cluster, there, tell).run(made.pods))


def _no_pod(objects: Objects) -> str:
    found = ", ".join(f"{count} {kind}" for kind, count in sorted(objects.found.items())) or "no object"
    why = f": {'; '.join(objects.notes[:_MOST_REASONS])}" if objects.notes else ""
    return f"the input has no Pod, and nothing in it creates one (found: {found}); give Pods or workloads with -f{why}"


def _cluster(arguments: argparse.Namespace, objects: Objects, configured: WebhookSettings) -> OfflineCluster:
    cluster = OfflineCluster.in_process(configured, arguments.seed)
    names = sorted(node["metadata"]["name"] for node in objects.nodes)
    if arguments.node is not None and arguments.node not in names:
        there = ", ".join(names) or "none"
        raise InputError(f"--node {arguments.node}: no such Node in the input; there are {there}")
    cluster.only = arguments.node
    nodes = set(names)
    objects.notes.extend(
        f"{obj['kind']} {obj['metadata']['name']}: there is no Node with this name, so no Pod is placed there"
        for obj in (*objects.devices, *objects.topologies)
        if obj["metadata"]["name"] not in nodes
    )
    return cluster


def _run(arguments: argparse.Namespace) -> int:
    logging.basicConfig(level=logging.ERROR)  # problems of the input are printed below
    try:
        tracerun.checked(arguments)
        configured = counting_all(WebhookSettings()) if arguments.config is None else settings.load(arguments.config)
        if arguments.trace is not None:
            tracerun.run_trace(arguments, configured)
            sys.stdout.flush()
            return 0
        objects = read_cluster(arguments.files)
        cluster = _cluster(arguments, objects, configured)
        results = asyncio.run(simulate(objects, cluster))
    except (InputError, SettingsError) as error:
        sys.stderr.write(f"koordgate simulate: {error}\n")
        return _UNUSABLE
    except BrokenPipeError:
        return terminal.unread()
    account = cluster.account()
    remarks = () if arguments.output == "table" else _remarks(results, account)  # the table has them
    for note in (*objects.notes, *cluster.notes, *account.overgiven(), *remarks):
        sys.stderr.write(f"koordgate simulate: {note}\n")
    try:
        if arguments.map is not None:
            devicemap.write(arguments.map, results, account)
        _print(arguments.output, results, account)
        sys.stdout.flush()
    except devicemap.MapError as error:
        sys.stderr.write(f"koordgate simulate: {error}\n")
        return _UNUSABLE
    except BrokenPipeError:
        return terminal.unread()
    return 0


def _remarks(results: Iterable[Result], account: Account) -> Iterator[str]:
    """Remarks on Pods that the objects themselves do not contain."""
    for result in results:
        trouble = words.trouble(result.pod, account) if result.state is PodFate.STANDING else ""
        remarks = [trouble] if trouble else [f"warning: {warning}" for warning in result.warnings]
        yield from (f"Pod {words.name_of(result.pod)}: {remark}" for remark in remarks)


def _print(output: str, results: list[Result], account: Account) -> None:
    if output == "json":
        report.write_json(results, account)
    elif output == "yaml":
        report.write_yaml(results, account)
    else:
        report.show_pods(results, account)
        report.show_nodes(account)
        terminal.show(report.summary(results, account))


def _arguments(parser: argparse.ArgumentParser) -> None:
    add_files(parser, required=False)
    parser.add_argument(
        *("-o", "--output"),
        choices=("table", "yaml", "json"),
        default="table",
        help="table (the default), or a List of the Pods as they would be in the cluster",
    )
    parser.add_argument("--node", metavar="NAME", help="consider only this node: does a Pod fit on it, and if not, why")
    parser.add_argument(
        "--seed",
        type=int,
        metavar="N",
        help="choose at random among nodes of equal score, as kube-scheduler does if the extender names all nodes that "
        "fit (scheduler.mostNodes: 0); the same N gives the same choice (default: the first by name). With --trace: "
        "the order of arrival, and the choices of the stock kube-scheduler",
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="settings of the webhook (default: all defaults)")
    parser.add_argument("--map", type=Path, metavar="FILE", help="also draw who holds what as one HTML file")
    tracerun.add_trace(parser)


COMMAND: Final = Command(
    description="Show what koordgate would do, without a cluster: the Pods in the files go, in their order, through\n"
    "the webhook's own admission, scheduling and binding, onto the Nodes, Device objects and\n"
    "NodeResourceTopologies in the files. PodGroups there state the sizes of gangs.\n\n"
    "A Pod with spec.nodeName is there already, and holds what its annotations say, those of other products too\n"
    "if adopt.peers of --config names the product; a finished one holds nothing. kube-scheduler is stood in\n"
    "for: taints, node selection and sums of resources count; Pod affinity, topology spread, volumes, host ports,\n"
    "priorities and preemption do not.\n"
    "With --trace, the Pods of a trace arrive until the GPUs are full, or come and go at their own times. Those\n"
    "without GPUs are placed as by a stock kube-scheduler.\n"
    "The exit status is 0 whatever becomes of the Pods, and 2 where the input cannot be used.",
    examples="examples:\n"
    "  koordgate simulate -f examples/cluster.yaml -f examples/workload.yaml --config examples/config.yaml\n"
    "  koordgate simulate -f cluster.yaml -f my-pod.yaml --node gpu-node-1\n"
    "  kubectl get nodes,devices,noderesourcetopologies,pods -A -o json | koordgate simulate -f - -f my-pod.yaml\n"
    "  koordgate simulate -f cluster.yaml workload.yaml -o json | jq '.items[] | {(.metadata.name): .spec.nodeName}'\n"
    "  koordgate simulate --trace pods.csv.gz --trace-nodes nodes.csv --plot packing.svg \\\n"
    "    --preference packing --preference mostBalanced",
    arguments=_arguments,
    run=_run,
)
