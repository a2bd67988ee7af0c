"""`koordgate devices`: shows the devices of a cluster's nodes and their holders."""

import argparse
from typing import Final

from console import terminal
from console.devices.cards import devices_table, document
from console.devices.nodes import Known, read_nodes
from console.devices.session import CommandEnd, add_cluster, carry_out
from koordgate.cli import Command
from koordgate.kube.client import KubeClient
from webhook.ledger.kube import cluster_store


def _run(arguments: argparse.Namespace) -> int:
    async def work(kube: KubeClient, known: Known) -> CommandEnd:
        reports = await read_nodes(kube, cluster_store(kube), arguments.nodes, known)
        if arguments.output != "table":
            terminal.write_data(document(reports, known.types), arguments.output)
        else:
            terminal.show(devices_table(reports))
        return CommandEnd([problem for report in reports for problem in report.problems])

    return carry_out(arguments, work)


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("nodes", nargs="*", metavar="NODE", help="the nodes to show (default: all)")
    parser.add_argument(
        *("-o", "--output"), choices=("table", "json", "yaml"), default="table", help="the format of the output"
    )
    add_cluster(parser)


COMMAND: Final = Command(
    description="Show the devices of a cluster's nodes, their health, how much of them is used and by which Pods.\n\n"
    "The exit status is 0 on success, 1 if the API server refused or did not answer, and 2 for wrong arguments.\n"
    "Objects that cannot be read are reported on standard error.\n\n"
    "The cluster is that of the kubeconfig ($KUBECONFIG). The user needs the rights to get and list nodes,\n"
    "devices.scheduling.koordinator.sh and nodeallocations.koordgate.io. If adopt.peers is set in the installation's\n"
    "configmap, pods are listed too. What ResourceClaims hold is shown to users who may list resourceclaims and\n"
    "resourceslices of resource.k8s.io.",
    examples="examples:\n  koordgate devices\n  koordgate devices node-1 node-2 --output yaml",
    arguments=_arguments,
    run=_run,
)
