"""`koordgate explain`: why a Pod is on no node and what would help, or why it is on its node."""

import argparse
import asyncio
import sys
from datetime import UTC, datetime
from typing import Final

import orjson

from koordgate.cli import Command
from koordgate.kube.access import DEFAULT_NAMESPACE
from koordgate.kube.client import KubeClient
from koordgate.kube.errors import KubeError, Unreachable
from koordgate.settings import SettingsError
from webhook import settings, terminal
from webhook.devices.nodestate import CommandError
from webhook.explain import report
from webhook.explain.data import data
from webhook.explain.explanation import Explanation, explain
from webhook.explain.scene import Found, mapping, scene
from webhook.offline.assumed import UnknownMemoryError, assume_devices
from webhook.offline.objects import InputError, add_files, read_all
from webhook.offline.shapes import wrong_shape
from webhook.settings import WebhookSettings
from webhook.snapshot.command import add_cluster, progress
from webhook.snapshot.read import ABOUT, SnapshotWanted, take
from webhook.terminal import printable

_UNUSABLE: Final = 2
_NOWHERE: Final = 3
_MOST_NAMED: Final = 8


async def _objects(arguments: argparse.Namespace, configured: WebhookSettings | None) -> tuple[list[Found], list[str]]:
    """Read the files, or the cluster; returns the objects, and what could not be read."""
    if arguments.files:
        listed = list(read_all(arguments.files))
        return (listed, []) if any(map(_is_about, listed)) else with_assumed(listed)
    wanted = SnapshotWanted(arguments.installed_in, configured=configured)
    async with KubeClient.autodetect(context=arguments.context) as kube:
        arguments.namespace = arguments.namespace or kube.namespace
        with progress() as told:
            taken = await take(kube, wanted, datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"), told)
    return [("the cluster", obj, obj["kind"]) for obj in taken.items], taken.notes


def _is_about(found: Found) -> bool:
    """Whether an object says that the others are a snapshot, which has all Device objects that the cluster has."""
    _, obj, kind = found
    return kind == "ConfigMap" and mapping(obj.get("metadata")).get("name") == ABOUT


def with_assumed(listed: list[Found]) -> tuple[list[Found], list[str]]:
    """Add devices for the Nodes of manifests that have no Device object, as simulate does; returns what was assumed.

    Raises:
        InputError: the memory of a Node's cards is not known.
    """
    nodes, devices, pods = ([obj for _, obj, kind in listed if kind == of] for of in ("Node", "Device", "Pod"))
    wrong = [one for one in (*nodes, *devices, *pods) if wrong_shape(str(one.get("kind")), one)]
    if wrong:
        return listed, []  # what is wrong with them is told when they are read
    try:
        assumed = assume_devices(nodes, devices, pods)
    except UnknownMemoryError as error:
        raise InputError(str(error)) from error
    return [*listed, *(("assumed", one, "Device") for one in assumed.devices)], list(assumed.notes)


async def _explain(arguments: argparse.Namespace) -> tuple[Explanation, list[str]]:
    configured = settings.load(arguments.config) if arguments.config else None
    objects, notes = await _objects(arguments, configured)
    manifests = bool(arguments.files) and not any(map(_is_about, objects))
    namespace = arguments.namespace or DEFAULT_NAMESPACE
    found = await scene(objects, arguments.pod, namespace, configured, manifests=manifests)
    known = {node["metadata"]["name"] for node in found.nodes}
    if strange := [name for name in arguments.nodes if name not in known]:
        there = ", ".join(sorted(known)[:_MOST_NAMED]) or "none"
        raise CommandError(f"--node {', '.join(strange)}: no such Node; there are {there}")
    return explain(found, arguments.nodes), [*notes, *found.notes]


def _run(arguments: argparse.Namespace) -> int:
    try:
        found, notes = asyncio.run(_explain(arguments))
        for note in notes[: None if arguments.all else _MOST_NAMED]:
            sys.stderr.write(f"koordgate explain: {printable(note)}\n")
        if arguments.output == "json":
            sys.stdout.write(orjson.dumps(data(found), option=orjson.OPT_INDENT_2).decode() + "\n")
        else:
            terminal.show(*report.parts(found, everything=arguments.all))
        sys.stdout.flush()
    except (CommandError, InputError, SettingsError) as error:
        return _failed(_UNUSABLE, str(error))
    except Unreachable as error:
        return _failed(1, f"the API server of the kubeconfig does not answer: {error}")
    except KubeError as error:
        hint = "; or give a snapshot or manifests with -f" if error.reason == "Configuration" else ""
        return _failed(1, f"{error}{hint}")
    except BrokenPipeError:
        return terminal.unread()
    return 0 if found.bound or (found.fitting and found.stopped is None) else _NOWHERE


def _failed(status: int, message: str) -> int:
    sys.stderr.write(f"koordgate explain: {printable(message)}\n")
    return status


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
    parser.add_argument(*("-o", "--output"), choices=("text", "json"), default="text", help="the format of the output")
    add_cluster(parser)


COMMAND: Final = Command(
    description="Say why a Pod is on no node and what would help, or why it is on its node and has its devices.\n\n"
    "The first line is the answer. Then come, for a Pod that waits, what each node says (koordgate's own decision,\n"
    "and kube-scheduler's conditions as far as simulate knows them), the nearest node device by device, and the\n"
    "changes that would make it fit there; each was tried with the same decision. For a bound Pod the decision is\n"
    "made once more on the cluster as it is now without it. Nothing is written.\n\n"
    "The cluster is that of the kubeconfig, or of -f: a snapshot, or manifests of Nodes, Devices and Pods. A Pod of a\n"
    "manifest that nobody has translated is shown to admission first.\n\n"
    "The exit status is 0 if the Pod is bound or fits now, 3 if it fits nowhere or something keeps it from all nodes,\n"
    "1 if the API server refused or did not answer, and 2 for wrong arguments, files, or an unknown Pod.",
    examples="examples:\n"
    "  koordgate explain train-7 -n team-a\n"
    "  koordgate explain team-a/train-7 --node gpu-node-3 --all\n"
    "  koordgate explain train-7 -n team-a -f cluster.json.gz -o json | jq -r .answer\n"
    "  koordgate explain my-pod -f cluster.yaml my-pod.yaml",
    arguments=_arguments,
    run=_run,
)
