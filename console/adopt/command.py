"""`koordgate adopt`: checks what a move to koordgate still needs, shows what would happen, switches namespaces."""

import argparse
import asyncio
from collections.abc import Sequence
from typing import Final

import msgspec

from allocator.vocabulary.names import MODE_LABEL, Mode
from console import terminal
from console.adopt import tables
from console.adopt.findings import ClusterFindings, find
from console.adopt.report import report
from console.adopt.steps import blockers, steps
from console.cluster import Cluster, ReadCluster, cluster_of, read_files, read_live
from console.devices.nodes import CommandError
from console.doctor.policies import PolicyFindings, outdated, search_policies
from console.reading import add_cluster, connect
from console.simulator.assumed import assume_devices
from console.simulator.documents import InputError
from console.simulator.objects import add_files
from console.terminal import printable
from koordgate.cli import Command
from koordgate.kube.client import KubeClient
from koordgate.kube.errors import NotFound
from koordgate.kube.resource import DEVICES, NAMESPACES, NODE_ALLOCATIONS, NODES, PODS
from webhook import settings

_NOT_NOW: Final = 3
_CLASH: Final = 4
_NEEDED: Final = (NODES, DEVICES, NODE_ALLOCATIONS, NAMESPACES, PODS)
_MANAGER: Final = "koordgate-adopt"
_VERBS: Final = {
    "check": "node by node what is ready, who holds what, what would clash; the steps",
    "report": "what would have become of the Pods of namespaces that are observed",
    "switch": "switch namespaces to another mode, together",
}


async def _read(arguments: argparse.Namespace, kube: KubeClient | None) -> tuple[Cluster, PolicyFindings]:
    """The cluster, and its own policies that do not apply to Pods that are translated."""
    configured = settings.load(arguments.config) if arguments.config else None
    if kube is None:
        read = read_files(arguments.files, configured, assumed=False)
        cluster = cluster_of(read, configured)
        types = settings.types_of(cluster.settings)
        return cluster, outdated((obj for _, obj, _ in read.objects), types, cluster.settings.domain)
    read = await read_live(kube, arguments.installed_in, configured, _NEEDED, beside=False)
    cluster = cluster_of(read, configured)
    return cluster, await search_policies(kube, settings.types_of(cluster.settings), cluster.settings.domain)


async def _main(arguments: argparse.Namespace) -> int:
    if getattr(arguments, "files", None):
        return await _do(arguments, None)
    async with connect(arguments) as kube:
        return await _do(arguments, kube)


async def _do(arguments: argparse.Namespace, kube: KubeClient | None) -> int:
    cluster, policies = await _read(arguments, kube)
    nodes, devices, pods = (cluster.objects(kind) for kind in ("Node", "Device", "Pod"))
    assumed = assume_devices(nodes, devices, pods, types=settings.types_of(cluster.settings))
    cluster.unlisted = assumed.devices
    cluster.notes += assumed.notes
    seen = ReadCluster(cluster)
    found = find(cluster, seen, policies)
    for note in (*found.notes, *((*found.doubts, *found.policies) if arguments.verb == "check" else ())):
        terminal.tell(arguments.called, note)
    if arguments.verb == "check":
        return _check(arguments, found)
    if arguments.verb == "report":
        return await _report(arguments, cluster, seen, found)
    if kube is None:
        raise CommandError("switch needs a cluster: leave out -f")
    to = Mode(arguments.to)
    return await _switch(kube, found, arguments.namespaces, to, dry_run=arguments.dry_run, force=arguments.force)


def _check(arguments: argparse.Namespace, found: ClusterFindings) -> int:
    made = steps(found)
    if arguments.output == "table":
        terminal.show(*tables.check_tables(found, made))
    else:
        told = {
            "nodes": found.nodes,
            "namespaces": found.modes,
            "pods": found.pods,
            "clashes": found.clashes,
            "steps": made,
            "notes": found.notes,
            "policies": found.policies,
        }
        terminal.write_data(msgspec.to_builtins(told), arguments.output)
    if found.clashes:
        return _CLASH
    return 0 if all(step.done for step in made) else _NOT_NOW


async def _report(arguments: argparse.Namespace, cluster: Cluster, seen: ReadCluster, found: ClusterFindings) -> int:
    known = found.modes
    if strange := [name for name in arguments.namespaces if name not in known]:
        raise CommandError(f"no Pod of {', '.join(strange)} asks for devices; there are {', '.join(known) or 'none'}")
    chosen = arguments.namespaces or [name for name, mode in known.items() if mode is Mode.SHADOW]
    terminal.doing("placing the Pods")
    reports = await report(cluster, seen, found, chosen)
    if arguments.output == "table":
        if not reports:
            terminal.show("no namespace in mode shadow has Pods that ask for devices; name the namespaces to report on")
        else:
            terminal.show(tables.report_table(reports))
    else:
        terminal.write_data(msgspec.to_builtins({"namespaces": reports}), arguments.output)
    return 0


async def _switch(
    kube: KubeClient, found: ClusterFindings, namespaces: Sequence[str], to: Mode, *, dry_run: bool, force: bool
) -> int:
    """Set the label of namespaces, unless something is in the way; returns the exit status.

    Raises CommandError: there is no such namespace; KubeError: the API server refuses, or cannot be reached.
    """
    objects = {}
    for namespace in dict.fromkeys(namespaces):
        try:
            objects[namespace] = await kube.get(NAMESPACES.path(namespace))
        except (NotFound, ValueError) as error:
            raise CommandError(f"there is no namespace {namespace}: name one that exists") from error
    reasons = list(blockers(found, list(objects), to))
    for reason in reasons:
        terminal.show(printable(f"in the way: {reason}"))
    if reasons and not force:
        terminal.show("nothing was switched; --force switches all the same")
        return _NOT_NOW
    for namespace, obj in objects.items():
        metadata = obj["metadata"]
        before = (metadata.get("labels") or {}).get(MODE_LABEL)
        dry = " (dry run: nothing is written)" if dry_run else ""
        if before == to:
            terminal.show(printable(f"{namespace} is in mode {to} already"))
            continue
        change = {"metadata": {"labels": {MODE_LABEL: str(to)}, "resourceVersion": metadata["resourceVersion"]}}
        path = NAMESPACES.path(namespace)
        await kube.patch(path, change, "merge", field_manager=_MANAGER, dry_run=dry_run)
        terminal.show(printable(f"{namespace}: {before or 'no mode of its own'} -> {to}{dry}"))
    return 0


def _run(arguments: argparse.Namespace) -> int:
    def run() -> int:
        return asyncio.run(_main(arguments))

    hint = "; or give objects with -f" if hasattr(arguments, "files") else ""
    return terminal.guarded(arguments.called, run, CommandError, InputError, hint=hint)


def _arguments(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="{check,report,switch}")
    check, told, change = (verbs.add_parser(name, help=about, description=about) for name, about in _VERBS.items())
    told.add_argument(
        "namespaces", nargs="*", metavar="NAMESPACE", help="write them before -f (default: those in mode shadow)"
    )
    change.add_argument("namespaces", nargs="+", metavar="NAMESPACE", help="the namespaces to switch")
    change.add_argument("--to", choices=[str(mode) for mode in Mode], required=True, help="their new mode")
    change.add_argument("--dry-run", action="store_true", help="check everything, and write nothing")
    change.add_argument("--force", action="store_true", help="switch although something is in the way")
    for verb in (check, told):
        add_files(verb, required=False)
        terminal.add_output(verb)
    for verb in (check, told, change):
        add_cluster(verb)


COMMAND: Final = Command(
    description="Move a cluster from another product to koordgate, namespace by namespace, and back.\n\n"
    "check: node by node what is ready, how containers would get their cards, who holds what and what would clash, the "
    "mode of each namespace, and which of the seven steps of a move are done.\n\n"
    "report: places the Pods of observed namespaces as koordgate would, in memory, and shows the difference.\n\n"
    "switch: sets the label koordgate.io/mode of namespaces, unless that would strand Pods or give a device twice.\n\n"
    "The exit status is 0 if all is done, 3 if steps are left or something is in the way of a switch, and 4 if devices "
    "clash.\n\n"
    "The user needs the rights to list nodes, pods, namespaces, devices.scheduling.koordinator.sh and "
    "nodeallocations.koordgate.io; for switch also to get and patch namespaces, and to `set` "
    "namespacemodes.koordgate.io.",
    examples="examples:\n"
    "  koordgate adopt check\n"
    "  koordgate adopt check -o json --context production\n"
    "  koordgate adopt check -f cluster.yaml\n"
    "  koordgate adopt report team-a\n"
    "  koordgate adopt report team-a -f cluster.yaml --config settings.yaml\n"
    "  koordgate adopt switch team-a --to shadow\n"
    "  koordgate adopt switch team-a team-b --to enforce --dry-run",
    arguments=_arguments,
    run=_run,
)
