"""The command line of `koordgate simulate`."""

import argparse
from pathlib import Path
from typing import Final

from allocator.quantity import QuantityError, to_int
from console import terminal
from console.simulator import simulation
from console.simulator.objects import add_files
from console.simulator.variants import add_compare
from koordgate.cli import Command

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


def _arguments(parser: argparse.ArgumentParser) -> None:
    add_files(parser)
    parser.add_argument(
        *("-o", "--output"),
        choices=("table", "yaml", "json"),
        default="table",
        help="table (the default), or a List of the Pods as they would be in the cluster",
    )
    parser.add_argument(
        "--node", metavar="NAME", help="consider and show only this node: does a Pod fit on it, and if not, why"
    )
    parser.add_argument(
        "--width",
        type=_width,
        default=terminal.WIDE,
        metavar="COLUMNS",
        help="fold tables to so many columns (default: as many as the terminal has; elsewhere nothing is folded)",
    )
    parser.add_argument(
        "--all", action="store_true", help="list each Pod and each node, however many there are, and each note"
    )
    parser.add_argument(
        "--seed",
        type=int,
        metavar="N",
        help="choose at random among nodes of equal score, as kube-scheduler does if the extender names all nodes that "
        "fit (scheduler.mostNodes: 0); the same N gives the same choice (default: the first by name)",
    )
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
    parser.add_argument("--map", type=Path, metavar="FILE", help="also draw who holds what as one HTML file")
    checks = parser.add_argument_group("checks", "for CI: the exit status is 1 if one of them fails")
    checks.add_argument("--require-bound", action="store_true", help="every Pod must be bound")
    checks.add_argument(
        *("-e", "--expect"),
        action="append",
        default=[],
        metavar="FILE",
        help="what must become of which Pods (docs/simulate.md); may be given more than once",
    )
    checks.add_argument("--junit", type=Path, metavar="FILE", help="write the checks as JUnit XML")
    add_compare(parser)


COMMAND: Final = Command(
    description="Show what koordgate would do, without a cluster: the Pods in the files, and those that workloads\n"
    "there create, go through the webhook's own admission, scheduling and binding, onto the Nodes, Device\n"
    "objects and NodeResourceTopologies in the files. kubectl get -o yaml writes such files.\n\n"
    "It reads Deployments, StatefulSets, DaemonSets, Jobs, CronJobs (one run) and all others that contain Pod\n"
    "templates; the modes of Namespaces, LimitRanges, ResourceQuotas, PriorityClasses, RuntimeClasses, PodGroups.\n"
    "A Node without a Device object gets cards that are assumed from its amounts and labels; the output says so.\n\n"
    "A Pod with spec.nodeName is there already, and holds what its annotations, another product or a device\n"
    "plugin gave it (with --config: products in adopt.peers); a finished one holds nothing. A stand-in\n"
    "for kube-scheduler counts taints, node selection, sums of resources and the order by priority, but not Pod\n"
    "affinity, topology spread, volumes and host ports. It names the Pods that a Pod would preempt, and evicts\n"
    "none.\n\n"
    "Exit status: 0 whatever becomes of the Pods, unless a check is asked for; 1 if a check fails (-e,\n"
    "--require-bound); 2 where the input cannot be used, or has no Pod.",
    examples="examples:\n"
    "  koordgate simulate -f examples/cluster.yaml -f examples/workload.yaml --config examples/config.yaml\n"
    "  kubectl get nodes,devices,noderesourcetopologies,pods -A -o json | koordgate simulate -f - -f my-pod.yaml\n"
    "  koordgate simulate -f cluster.yaml -f my-pod.yaml --node gpu-node-1\n"
    "  koordgate simulate -f cluster.yaml -f app.yaml --require-bound -e expected.yaml --junit simulate.xml\n"
    "  koordgate simulate -f cluster.yaml -f app.yaml --preference packing --preference mostBalanced\n"
    "  koordgate simulate -f cluster.yaml -f app.yaml --compare 'big nodes=other-nodes.yaml'\n"
    "  koordgate simulate -f cluster.yaml workload.yaml -o json | jq '.items[] | {(.metadata.name): .spec.nodeName}'",
    arguments=_arguments,
    run=simulation.run,
)
