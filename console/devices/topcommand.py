"""`koordgate top`: every device of a cluster in a line, once or as it changes."""

import argparse
import sys
from collections.abc import Sequence
from typing import Final

from console import terminal
from console.devices import topview
from console.devices.cards import cards_of
from console.devices.live import watch
from console.devices.nodestate import CommandError, Known, NodeState, read_cluster
from console.devices.session import CommandEnd, add_cluster, add_listing, carry_out
from console.devices.tables import document
from console.devices.topview import ShownNode, last_line, lines, look, wide_table
from koordgate.cli import Command
from koordgate.kube.client import KubeClient
from webhook.ledger.cluster import cluster_store


def chosen(state: NodeState, known: Known, namespace: str) -> ShownNode | None:
    """What of a node is shown: all of it, or the devices of which Pods of a namespace hold some; None for nothing."""
    cards = cards_of(state, known.types)
    shown = [card for card in cards if card.is_of(namespace)]
    return ShownNode(state, shown, cards) if shown or not namespace else None


def _show(shown: Sequence[ShownNode], output: str, namespace: str) -> None:
    if output in {"json", "yaml"}:
        terminal.write_data(document((one.state, one.cards) for one in shown), output)
    elif output == "wide":
        terminal.show(wide_table(shown), "", last_line(shown, namespace))
    else:
        width = terminal.screen().width if sys.stdout.isatty() else topview.WIDTH
        drawn = look(width, sys.stdout.encoding)
        terminal.show(*lines(shown, drawn), "", last_line(shown, namespace), most=topview.WIDTH)


def _check(arguments: argparse.Namespace) -> None:
    if arguments.watch and arguments.output != "table":
        raise CommandError("--watch draws on a terminal: it cannot be used with --output")
    if arguments.watch and not sys.stdout.isatty():
        raise CommandError("--watch needs a terminal; without it the devices are shown once")


def _run(arguments: argparse.Namespace) -> int:
    async def work(kube: KubeClient, known: Known) -> CommandEnd:
        namespace = arguments.namespace or ""
        store = cluster_store(kube)
        if arguments.watch:
            await watch(kube, store, arguments.nodes, known, lambda state: chosen(state, known, namespace), namespace)
            return CommandEnd()
        states = await read_cluster(kube, store, arguments.nodes, known)
        found = (chosen(state, known, namespace) for state in states)
        _show([one for one in found if one is not None], arguments.output, namespace)
        return CommandEnd([problem for state in states for problem in state.problems])

    try:
        return carry_out(arguments, work, lambda: _check(arguments))
    except KeyboardInterrupt:
        return 0  # the way in which a user ends --watch


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("nodes", nargs="*", metavar="NODE", help="the nodes to show (default: all)")
    add_listing(
        parser,
        namespace="only devices of which Pods of this namespace hold some",
        everywhere="devices whoever holds them (default)",
        wide="ids, NUMA nodes and PCI addresses, and all Pods",
    )
    parser.add_argument(*("-w", "--watch"), action="store_true", help="show them as they change, until Ctrl-C")
    add_cluster(parser)


COMMAND: Final = Command(
    description="Show every device of a cluster in a line: how much of its core and memory is held, and by whom.\n\n"
    "A line has at most 100 columns. The first bar is the compute (of other devices than GPUs: the whole device), the\n"
    "second the memory. The last line counts devices: free, in parts (some of each resource is free), held (nothing\n"
    "more can be given), and out of service. Objects that cannot be read are reported on standard error; devices of a\n"
    "node whose record cannot be read count as held.\n\n"
    "The exit status is 0 on success, 1 if the API server refused or did not answer, and 2 for wrong arguments.\n\n"
    "The user needs the rights to get and list nodes, devices.scheduling.koordinator.sh and\n"
    "nodeallocations.koordgate.io (with --watch also to watch them), and to get the installation's configmap. If it\n"
    "has adopt.peers, pods are listed or watched too. What ResourceClaims hold is shown to users who may also read\n"
    "resourceclaims and resourceslices of resource.k8s.io.",
    examples="examples:\n"
    "  koordgate top\n"
    "  koordgate top gpu-node-1 --watch\n"
    "  koordgate top -n team-a -o wide\n"
    "  koordgate top -o json | jq .summary",
    arguments=_arguments,
    run=_run,
)
