"""`koordgate devices`: shows the devices of a cluster's nodes and their holders; cordons, drains."""

import argparse
from typing import Final

from console import terminal
from console.devices.cards import cards_of
from console.devices.drain import DryRun
from console.devices.marking import VERBS, add_dry_run, add_timeout, carry_out_verb
from console.devices.nodestate import CommandError, Known, read_cluster
from console.devices.session import CommandEnd, add_cluster, carry_out
from console.devices.tables import devices_table, document
from koordgate.cli import Command
from koordgate.kube.client import KubeClient
from webhook.ledger.cluster import cluster_store


def _understand(arguments: argparse.Namespace) -> tuple[str, list[str]]:
    """Split the words into a verb, "" for showing devices, and its arguments.

    Raises CommandError: the words do not fit together, or do not fit the options.
    """
    words: list[str] = arguments.words
    if not words or words[0] not in VERBS:
        if arguments.dry_run is not DryRun.NONE:
            raise CommandError("--dry-run can be used with cordon, uncordon and drain only")
        return "", words
    verb, *about = words
    if len(about) != 2:  # noqa: PLR2004 a node and a device
        raise CommandError(f"{verb} takes a node and a device: koordgate devices {verb} NODE DEVICE")
    if arguments.output != "table":
        raise CommandError(f"--output cannot be used with {verb}")
    return verb, about


def _run(arguments: argparse.Namespace) -> int:
    async def work(kube: KubeClient, known: Known) -> CommandEnd:
        verb, about = _understand(arguments)
        store = cluster_store(kube)
        if verb:
            return await carry_out_verb(verb, (about[0], about[1]), kube, store, known, arguments)
        states = await read_cluster(kube, store, about, known)
        if arguments.output != "table":
            listed = [(state, cards_of(state, known.types)) for state in states]
            terminal.write_data(document(listed), arguments.output)
        else:
            terminal.show(devices_table(states, known.types))
        return CommandEnd([problem for state in states for problem in state.problems])

    return carry_out(arguments, work, lambda: _understand(arguments))


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = (
        "koordgate devices [options] [NODE ...]\n       koordgate devices [options] {cordon,uncordon,drain} NODE DEVICE"
    )
    parser.add_argument(
        "words",
        nargs="*",
        metavar="NODE",
        help="the nodes to show (default: all); or cordon, uncordon or drain with a node and a device. A device is "
        "named by its id (a GPU's UUID, another device's PCI address, a name in a software class), the beginning of "
        "one id, its type and minor (gpu/3), or its PCI address",
    )
    parser.add_argument(
        *("-o", "--output"), choices=("table", "json", "yaml"), default="table", help="the format of the output"
    )
    add_dry_run(parser, "with cordon, uncordon and drain: ")
    add_timeout(parser, "with drain: ")
    add_cluster(parser)


COMMAND: Final = Command(
    description="Show the devices of a cluster's nodes, their health, how much of them is used and by which Pods.\n\n"
    "cordon    takes a device out of service. Pods that hold some of it keep running and are listed.\n"
    "uncordon  returns it to service.\n"
    "drain     cordons a device and evicts the Pods that hold some of it. PodDisruptionBudgets are respected.\n\n"
    "The exit status is 0 on success, 1 if the API server refused or did not answer, 2 for wrong arguments, and\n"
    "3 if Pods still hold the drained device. Objects that cannot be read are reported on standard error.\n\n"
    "The cluster is that of the kubeconfig ($KUBECONFIG). The user needs the rights to get and list nodes,\n"
    "devices.scheduling.koordinator.sh and nodeallocations.koordgate.io. cordon and drain also patch the devices\n"
    "(for a software class: the nodes); drain also gets pods and creates pods/eviction. If adopt.peers is set in the\n"
    "installation's configmap, pods are listed too. What ResourceClaims hold is shown to users who may list\n"
    "resourceclaims and resourceslices of resource.k8s.io.",
    examples="examples:\n"
    "  koordgate devices\n"
    "  koordgate devices node-1 node-2 --output yaml\n"
    "  koordgate devices cordon node-1 GPU-8a56a4bc-d184-a047-2620-339f0c8ca1dc --dry-run\n"
    "  koordgate devices drain node-1 gpu/3 --timeout 600\n"
    "  koordgate devices uncordon node-1 GPU-8a56a4bc-d184-a047-2620-339f0c8ca1dc",
    arguments=_arguments,
    run=_run,
)
