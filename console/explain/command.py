"""`koordgate explain`: why a Pod is on no node and what would help, or why it is on its node."""

import argparse
import asyncio
from typing import Final

from console import terminal
from console.cluster import Reading, read_files, read_live
from console.devices.nodes import CommandError
from console.explain import report
from console.explain.explanation import Explanation, explain
from console.explain.report import data
from console.explain.scene import scene
from console.reading import add_cluster, connect
from console.simulator.documents import InputError
from console.simulator.objects import add_files
from koordgate.cli import Command
from koordgate.kube.access import DEFAULT_NAMESPACE
from webhook import settings
from webhook.settings import WebhookSettings

_NOWHERE: Final = 3
_MAX_NAMED: Final = 8


async def _objects(arguments: argparse.Namespace, configured: WebhookSettings | None) -> Reading:
    """Read the files, or the cluster."""
    if arguments.files:
        return read_files(arguments.files, configured)
    async with connect(arguments) as kube:
        arguments.namespace = arguments.namespace or kube.namespace
        return await read_live(kube, arguments.installed_in, configured)


async def _explain(arguments: argparse.Namespace) -> tuple[Explanation, list[str]]:
    configured = settings.load(arguments.config) if arguments.config else None
    read = await _objects(arguments, configured)
    namespace = arguments.namespace or DEFAULT_NAMESPACE
    found = await scene(read, arguments.pod, namespace, configured)
    known = {node["metadata"]["name"] for node in found.nodes}
    if strange := [name for name in arguments.nodes if name not in known]:
        there = ", ".join(sorted(known)[:_MAX_NAMED]) or "none"
        raise CommandError(f"--node {', '.join(strange)}: no such Node; there are {there}")
    terminal.doing("trying what would help")
    return explain(found, arguments.nodes), found.notes


def _run(arguments: argparse.Namespace) -> int:
    return terminal.guarded(
        arguments.called, lambda: _show(arguments), CommandError, InputError, hint=terminal.OR_FILES
    )


def _show(arguments: argparse.Namespace) -> int:
    found, notes = asyncio.run(_explain(arguments))
    for note in notes[: None if _everything(arguments) else _MAX_NAMED]:
        terminal.tell(arguments.called, note)
    if arguments.output in {"table", "wide"}:
        terminal.show(*report.parts(found, everything=_everything(arguments)))
    else:
        terminal.write_data(data(found), arguments.output)
    return 0 if found.bound or (found.fitting and found.stopped is None) else _NOWHERE


def _everything(arguments: argparse.Namespace) -> bool:
    return bool(arguments.all) or arguments.output == "wide"


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("pod", metavar="POD", help="the Pod's name, or namespace/name")
    parser.add_argument(
        *("-n", "--namespace"),
        type=terminal.namespace,
        metavar="NAMESPACE",
        help="the Pod's namespace (default: that of the kubeconfig's context; of files: default)",
    )
    add_files(parser, required=False)
    parser.add_argument(
        "--node",
        dest="nodes",
        nargs="+",
        action="extend",
        default=[],
        metavar="NODE",
        help="look closely at these nodes (default: the nearest one)",
    )
    parser.add_argument("--all", action="store_true", help="write all nodes, devices and reasons")
    terminal.add_output(parser, wide="is the same as --all")
    add_cluster(parser)


COMMAND: Final = Command(
    description="Say why a Pod is on no node and what would help, or why it is on its node and has its devices.\n\n"
    "The first line is the answer. For a Pod that waits, it is followed by what each node says (koordgate's own "
    "decision, and kube-scheduler's conditions as far as simulate knows them), the nearest node device by device, and "
    "the changes that would make it fit there; each was tried with the same decision. For a bound Pod the decision is "
    "made once more on the cluster as it is now without it. Nothing is written.\n\n"
    "The cluster is that of the kubeconfig, or of -f: a snapshot, or manifests of Nodes, Devices and Pods. A Pod of a "
    "manifest that nobody has translated goes through admission first.\n\n"
    "The exit status is 0 if the Pod is bound or fits now, and 3 if it fits nowhere or something keeps it from all "
    "nodes.",
    examples="examples:\n"
    "  koordgate explain train-7 -n team-a\n"
    "  koordgate explain team-a/train-7 --node gpu-node-3 --all\n"
    "  koordgate explain train-7 -n team-a -f cluster.json.gz -o json | jq -r .answer\n"
    "  koordgate explain my-pod -f cluster.yaml my-pod.yaml",
    arguments=_arguments,
    run=_run,
)
