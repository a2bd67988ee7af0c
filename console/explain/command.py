"""`koordgate explain`: why a Pod is on no node and what would help, or why it is on its node."""

import argparse
import asyncio
from dataclasses import replace
from typing import Final, NamedTuple

from console import terminal
from console.cluster import Reading, checked, read_files, read_live, together
from console.devices.nodes import CommandError
from console.explain import report
from console.explain.explanation import Explanation, explain
from console.explain.report import data
from console.explain.scene import scene
from console.explain.target import Key, Named, find, in_namespace, key_of, read_name, read_object
from console.notes import tell_notes
from console.reading import add_cluster, connect
from console.simulator.documents import InputError
from console.simulator.objects import add_files
from koordgate.cli import Command
from koordgate.kube.access import DEFAULT_NAMESPACE
from koordgate.kube.client import KubeClient
from koordgate.kube.errors import KubeError
from webhook import settings
from webhook.settings import WebhookSettings

_NOWHERE: Final = 3
_MAX_NAMED: Final = 8
_MAX_TARGETS: Final = 5  # that are explained where nothing is named


class _Asked(NamedTuple):
    """What is explained among which objects, which were checked."""

    read: Reading
    named: Named | None = None  # None: all that wait
    applied: frozenset[Key] | None = None  # of the files' objects, where these are put into a live cluster


async def _asked(arguments: argparse.Namespace, configured: WebhookSettings | None) -> _Asked:
    """Read the files, or the cluster; objects of files that have no Node are put into the cluster, if there is one."""
    files = _checked(read_files(arguments.files, configured)) if arguments.files else None
    if files is not None and (any(kind == "Node" for *_, kind in files.objects) or not files.manifests):
        return _Asked(files, _named(arguments, DEFAULT_NAMESPACE))
    try:
        async with connect(arguments) as kube:
            return await _of_cluster(kube, arguments, configured, files)
    except KubeError as error:
        if files is None or error.reason != "Configuration":
            raise
    return _Asked(files, _named(arguments, DEFAULT_NAMESPACE))


async def _of_cluster(
    kube: KubeClient, arguments: argparse.Namespace, configured: WebhookSettings | None, files: Reading | None
) -> _Asked:
    named = _named(arguments, kube.namespace)
    if files is None and named is None:
        raise CommandError("name a Pod, or what creates Pods, such as deploy/NAME; or give files with -f")
    added = Reading([]) if files is None else in_namespace(files, arguments.namespace or kube.namespace)
    if files is None and named is not None:
        added = Reading(await read_object(kube, named))
    live = await read_live(kube, arguments.installed_in, configured)
    applied = None if files is None else frozenset(key_of(obj, kind) for _, obj, kind in added.objects)
    return _Asked(_checked(together(live, added)), named, applied)


def _checked(read: Reading) -> Reading:
    return replace(read, objects=[checked(*one) for one in read.objects])


def _named(arguments: argparse.Namespace, namespace: str) -> Named | None:
    return read_name(arguments.pod, arguments.namespace or namespace) if arguments.pod else None


async def _explain(arguments: argparse.Namespace) -> list[Explanation]:
    configured = settings.load(arguments.config) if arguments.config else None
    asked = await _asked(arguments, configured)
    read = asked.read
    known = {obj["metadata"]["name"] for _, obj, kind in read.objects if kind == "Node"}
    if strange := [name for name in arguments.nodes if name not in known]:
        there = ", ".join(sorted(known)[:_MAX_NAMED]) or "none"
        raise CommandError(f"--node {', '.join(strange)}: no such Node; there are {there}")
    terminal.doing("trying what would help")
    targets = find(read, asked.named, asked.applied)
    shown = targets if arguments.all or arguments.output in {"json", "yaml"} else targets[:_MAX_TARGETS]
    found = [explain(await scene(read, one, configured), arguments.nodes) for one in shown]
    if len(targets) > len(found):
        found[-1].scene.notes.append(f"{len(targets) - len(found)} more wait: name one, or write --all")
    return found


def _run(arguments: argparse.Namespace) -> int:
    return terminal.guarded(
        arguments.called, lambda: _show(arguments), CommandError, InputError, hint=terminal.OR_FILES
    )


def _show(arguments: argparse.Namespace) -> int:
    found = asyncio.run(_explain(arguments))
    notes = dict.fromkeys(note for one in found for note in one.scene.notes)
    tell_notes(arguments.called, notes, everything=arguments.all)
    if arguments.output == "table":
        for at, one in enumerate(found):
            terminal.show(*([""] if at else []), *report.parts(one, everything=arguments.all))
    else:
        named = bool(arguments.pod) and len(found) == 1
        terminal.write_data(data(found[0]) if named else {"explained": [data(one) for one in found]}, arguments.output)
    return 0 if all(one.bound or (one.fitting and one.stopped is None) for one in found) else _NOWHERE


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "pod",
        nargs="?",
        metavar="POD",
        help="the Pod's name, or namespace/name; or what creates Pods: deploy/NAME, sts/NAME, job/NAME and so on "
        "(default: all that wait in the files)",
    )
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
    terminal.add_output(parser)
    add_cluster(parser)


COMMAND: Final = Command(
    description="Say why a Pod is on no node and what would help, or why it is on its node and has its devices.\n\n"
    "The first line is the answer. For a Pod that waits, it is followed by what each node says (koordgate's own "
    "decision, and kube-scheduler's conditions as far as simulate knows them), the nearest node device by device, and "
    "the changes that would make it fit there; each was tried with the same decision. For a bound Pod the decision is "
    "made once more on the cluster as it is now without it. Nothing is written.\n\n"
    "Of what creates Pods, such as a Deployment, one Pod is explained for all that are alike.\n\n"
    "The cluster is that of the kubeconfig, or of -f: a snapshot, or manifests of Nodes, Devices and Pods. Files "
    "without a Node are explained as if they were applied to the cluster of the kubeconfig. A Pod of a manifest that "
    "nobody has translated goes through admission first.\n\n"
    "The exit status is 0 if the Pod is bound or fits now, and 3 if it fits nowhere or something keeps it from all "
    "nodes.",
    examples="examples:\n"
    "  koordgate explain train-7 -n team-a\n"
    "  koordgate explain team-a/train-7 --node gpu-node-3 --all\n"
    "  koordgate explain train-7 -n team-a -f cluster.json.gz -o json | jq -r .answer\n"
    "  koordgate explain deploy/chat -n team-a\n"
    "  koordgate explain -f app.yaml\n"
    "  koordgate explain -f cluster.yaml app.yaml",
    arguments=_arguments,
    run=_run,
)
