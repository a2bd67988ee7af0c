"""`koordgate devices`: what the nodes of a cluster have and who holds it, what is published of it, and cordons."""

import argparse
import asyncio
import sys
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml
from rich.table import Table
from rich.text import Text

from allocator.device import Device
from allocator.devicetype import BUILT_IN, DeviceTypes
from allocator.holdings import Holding, Share
from allocator.index.packed import Packed, PackedError, read_packed
from allocator.names import CORDONED, GPU_MEMORY, PACKED
from allocator.quantity import format_bytes
from allocator.wire.deviceobject import NodeDevices, read_device_object
from allocator.wire.nodeallocation import RecordError, read_spec
from koordgate.cli import Command
from koordgate.kube.client import KubeClient
from koordgate.kube.errors import Conflict, KubeError, NotFound, Unreachable
from koordgate.kube.resource import DEVICES, NODE_ALLOCATIONS, Resource
from koordgate.settings import SettingsError, device_types, load
from webhook.offline import report

Raw = dict[str, Any]

_UNUSABLE: Final = 2
_ATTEMPTS: Final = 8  # to write a cordon while others write the same object
_AT_ONCE: Final = 8  # nodes that are read at the same time
_MOST_NAMED: Final = 16  # nodes or devices that an error names
_PAGE: Final = 100  # objects a page: a node of many devices is some 50 KB
_VERBS: Final = ("cordon", "uncordon")


class CommandError(Exception):
    """What was asked cannot be done as it stands; the message says what can."""


@dataclass(frozen=True, slots=True)
class NodeState:
    """One node as the cluster has it.

    Attributes:
        devices: its Device object, read; without devices where it has none.
        holdings: who holds what.
        packed: what it has published; None where it has not.
        problems: what could not be read, a sentence each.
    """

    devices: NodeDevices
    holdings: tuple[Holding, ...] = ()
    packed: tuple[Packed, ...] | None = None
    problems: tuple[str, ...] = ()

    @property
    def node(self) -> str:
        """Its name."""
        return self.devices.node

    def held(self, identity: str) -> list[tuple[Holding, Share]]:
        """Who holds something of a device, by namespace and name."""
        return [(one, share) for one in self.holdings for share in one.shares if share.id == identity]

    def strays(self) -> list[Share]:
        """One share of each device that is held and does not stand in the Device object, by type and number."""
        listed = {device.id for device in self.devices.devices}
        found = {share.id: share for one in self.holdings for share in one.shares if share.id not in listed}
        return sorted(found.values(), key=lambda share: (share.type, share.minor, share.id))


def read_node(node: str, device: Raw | None, record: Raw | None, types: DeviceTypes) -> NodeState:
    """Read a node's objects; what is not there or makes no sense is left out and told."""
    devices = NodeDevices(node, ()) if device is None else read_device_object(device, types)
    problems = [f"Device {node}: {problem}" for problem in devices.problems]
    holdings: Iterable[Holding] = ()
    packed = None
    if record is not None:
        try:
            holdings = read_spec(record).values()
        except RecordError as error:
            problems.append(f"who holds what there is unknown: {error}")
        text = (record["metadata"].get("annotations") or {}).get(PACKED)
        try:
            packed = None if text is None else read_packed(text)
        except PackedError as error:
            problems.append(f"NodeAllocation {node}: annotation {PACKED}: {error}")
    ordered = tuple(sorted(holdings, key=lambda one: (one.namespace, one.name, one.uid)))
    return NodeState(devices, ordered, packed, tuple(problems))


# Reading the cluster


async def _list(kube: KubeClient, resource: Resource, limit: int = _PAGE) -> AsyncIterator[Raw]:
    try:
        async for page, _ in kube.list_pages(resource.path(), limit=limit):
            for obj in page:
                yield obj
    except NotFound as error:
        raise CommandError(
            f"the cluster has no {resource.plural}.{resource.group}: install koordgate's chart, which brings that CRD"
        ) from error


async def _find(kube: KubeClient, resource: Resource, node: str) -> Raw | None:
    try:
        path = resource.path(node)
    except ValueError as error:
        raise CommandError(f"no node can have that name: {error}") from error
    try:
        return await kube.get(path)
    except NotFound:
        return None


async def read_cluster(kube: KubeClient, nodes: Sequence[str], types: DeviceTypes) -> list[NodeState]:
    """Read these nodes, or all, in the order of their names.

    Raises:
        CommandError: a node that was named has neither a Device object nor a NodeAllocation, or a CRD is missing.
        KubeError: the API server refuses, or cannot be reached.
    """
    if not nodes:
        devices = {obj["metadata"]["name"]: obj async for obj in _list(kube, DEVICES)}
        records = {obj["metadata"]["name"]: obj async for obj in _list(kube, NODE_ALLOCATIONS)}
        names = sorted({*devices, *records})
        return [read_node(name, devices.get(name), records.get(name), types) for name in names]
    gate = asyncio.Semaphore(_AT_ONCE)

    async def one(name: str) -> NodeState:
        async with gate:
            device, record = await _find(kube, DEVICES, name), await _find(kube, NODE_ALLOCATIONS, name)
        if device is None and record is None:
            raise await _unknown_node(kube, name)
        return read_node(name, device, record, types)

    return await asyncio.gather(*(one(name) for name in sorted(set(nodes))))


async def _unknown_node(kube: KubeClient, node: str) -> CommandError:
    known = [obj["metadata"]["name"] async for obj in _list(kube, DEVICES)]
    return CommandError(f"node {node} has no Device object; {_there_are(known)}")


def _there_are(names: Iterable[str]) -> str:
    listed = sorted(names)
    more = f" and {len(listed) - _MOST_NAMED} more" if len(listed) > _MOST_NAMED else ""
    return f"there are: {', '.join(listed[:_MOST_NAMED])}{more}" if listed else "there are none at all"


# Cordons


@dataclass(frozen=True, slots=True)
class Marked:
    """A device that is cordoned, or is no more.

    Attributes:
        state: of its node, after it.
        device: None where the Device object does not name it, which a cordon may outlive.
        changed: whether anything had to be written.
    """

    state: NodeState
    identity: str
    device: Device | None
    changed: bool


async def mark(
    kube: KubeClient, node: str, identity: str, types: DeviceTypes, *, cordon: bool, dry_run: bool = False
) -> Marked:
    """Cordon a device or end that, by compare-and-swap on the Device object; done twice it changes nothing more.

    Args:
        kube: the open client.
        node: its node.
        identity: its id: a GPU's UUID, another device's PCI address.
        types: of devices.
        cordon: or uncordon.
        dry_run: the API server checks it and stores nothing.

    Raises:
        CommandError: there is no such node or device, or others wrote the object again and again.
        KubeError: the API server refuses, or cannot be reached.
    """
    for _ in range(_ATTEMPTS):
        found = await _find(kube, DEVICES, node)
        if found is None:
            raise await _unknown_node(kube, node)
        read = read_device_object(found, types)
        _check_id(read, identity, cordon=cordon)
        cordoned = read.cordoned | {identity} if cordon else read.cordoned - {identity}
        changed = cordoned != read.cordoned
        if changed:
            annotations = {CORDONED: ",".join(sorted(cordoned)) or None}
            metadata = {"resourceVersion": found["metadata"]["resourceVersion"], "annotations": annotations}
            try:
                found = await kube.patch(DEVICES.path(node), {"metadata": metadata}, "merge", dry_run=dry_run)
            except Conflict:
                continue
        state = read_node(node, found, await _find(kube, NODE_ALLOCATIONS, node), types)
        device = next((device for device in state.devices.devices if device.id == identity), None)
        return Marked(state, identity, device, changed)
    raise CommandError(f"Device {node} was changed by others again and again; try again")


def _check_id(read: NodeDevices, identity: str, *, cordon: bool) -> None:
    """Refuse an id that stands nowhere; a cordon may be ended of a device that is not there any more."""
    ids = {device.id for device in read.devices}
    if identity in ids or (not cordon and identity in read.cordoned):
        return
    told = [f"{device.type} {device.minor} {device.id}" for device in read.devices]
    raise CommandError(f"node {read.node} has no device {identity!r}; {_there_are(told)}")


# What is shown


def _table(*headers: str) -> Table:
    table = Table(box=None, padding=(0, 3, 0, 0), header_style="bold", pad_edge=False)
    for header in headers:
        table.add_column(header, overflow="fold")
    return table


def _row(table: Table, *cells: str | Iterable[str]) -> None:
    """Add a row of texts, or of several lines each; what no terminal should see is replaced."""
    texts = ([cell] if isinstance(cell, str) else list(cell) for cell in cells)
    table.add_row(*(Text("\n".join(_printable(line) for line in lines) or "-") for lines in texts))


def _printable(text: str) -> str:
    return "".join(char if char.isprintable() else "?" for char in text)


def _amount(tail: str, amount: int) -> str:
    return format_bytes(amount) if tail.rpartition("/")[2] == GPU_MEMORY else str(amount)


def _health(state: NodeState, device: Device) -> list[str]:
    lines = ["healthy" if device.healthy else device.why_not]
    if device.id in state.devices.kubelet_held:
        lines.append("given away by the kubelet's device plugin")
    return lines


def _used(held: Iterable[tuple[Holding, Share]], tail: str) -> int:
    return sum(share.amounts.get(tail, 0) for _, share in held)


def _holder(holding: Holding, share: Share) -> str:
    return f"{holding.namespace}/{holding.name}: {_share(share)}"


def _share(share: Share) -> str:
    return ", ".join(f"{tail} {_amount(tail, amount)}" for tail, amount in share.amounts.items())


def devices_table(states: Iterable[NodeState]) -> Table:
    """Make the table of devices, by node, type and number."""
    table = _table("NODE", "TYPE", "MINOR", "ID", "MODEL", "NUMA", "PCIE ROOT", "HEALTH", "USED", "PODS")
    for state in states:
        for device in state.devices.devices:
            held = state.held(device.id)
            used = [
                f"{tail} {_amount(tail, _used(held, tail))}/{_amount(tail, total)}"
                for tail, total in device.capacity.items()
            ]
            numa = "" if device.numa_node is None else str(device.numa_node)
            about = (state.node, device.type, str(device.minor), device.id, device.model, numa, device.pcie or "")
            _row(table, *about, _health(state, device), used, [_holder(*one) for one in held])
        for share in state.strays():
            held = state.held(share.id)
            used = [f"{tail} {_amount(tail, _used(held, tail))}" for tail in share.amounts]
            about = (state.node, share.type, str(share.minor), share.id, "", "", "")
            _row(table, *about, "not in the Device object", used, [_holder(*one) for one in held])
    return table


def packed_table(states: Iterable[NodeState]) -> Table:
    """Make the table of what nodes have published, a line for each class."""
    table = _table("NODE", "CLASS", "B", "N", "TOTAL", "FREE", "TOTAL OF EACH", "FREE OF EACH")
    for state in states:
        if state.packed is None:
            _row(table, state.node, "not published", *[""] * 6)
        for one in state.packed or ():
            totals, frees = (
                " ".join(_amount(one.name, amount) for amount in amounts) for amounts in (one.totals(), one.frees())
            )
            row = (str(one.bits), str(one.count), hex(one.total), hex(one.free), totals, frees)
            _row(table, state.node, one.name, *row)
    return table


def devices_list(states: Iterable[NodeState]) -> list[Raw]:
    """Say of each node what `devices_table` shows, as data: amounts in percent, bytes and units."""
    return [
        {
            "node": state.node,
            "devices": [_device_data(state, device) for device in state.devices.devices],
            "notInDeviceObject": [
                {"type": share.type, "minor": share.minor, "id": share.id, "pods": _pods_data(state, share.id)}
                for share in state.strays()
            ],
            "problems": list(state.problems),
        }
        for state in states
    ]


def _device_data(state: NodeState, device: Device) -> Raw:
    held = state.held(device.id)
    return {
        "type": device.type,
        "minor": device.minor,
        "id": device.id,
        "model": device.model,
        "numaNode": device.numa_node,
        "pcieRoot": device.pcie,
        "healthy": device.healthy,
        "reason": device.why_not,
        "cordoned": device.id in state.devices.cordoned,
        "heldByKubelet": device.id in state.devices.kubelet_held,
        "resources": {tail: {"used": _used(held, tail), "total": total} for tail, total in device.capacity.items()},
        "pods": _pods_data(state, device.id),
    }


def _pods_data(state: NodeState, identity: str) -> list[Raw]:
    return [
        {
            "namespace": holding.namespace,
            "name": holding.name,
            "uid": holding.uid,
            "containers": list(share.containers),
            "amounts": dict(share.amounts),
        }
        for holding, share in state.held(identity)
    ]


def packed_list(states: Iterable[NodeState]) -> list[Raw]:
    """Say of each node what `packed_table` shows, as data."""
    return [
        {
            "node": state.node,
            "published": state.packed is not None,
            "classes": [
                {
                    "class": one.name,
                    "b": one.bits,
                    "n": one.count,
                    "total": hex(one.total),
                    "free": hex(one.free),
                    "totals": one.totals(),
                    "frees": one.frees(),
                }
                for one in state.packed or ()
            ],
            "problems": list(state.problems),
        }
        for state in states
    ]


def _show_marked(marked: Marked, *, cordon: bool, dry_run: bool) -> None:
    state, device = marked.state, marked.device
    name = f"{device.type} {device.minor} {device.id}" if device else f"{marked.identity} (not in the Device object)"
    done = "is cordoned" if cordon else "is not cordoned"
    again = "" if marked.changed else " already" if cordon else " anyway"
    dry = " (dry run: nothing is written)" if dry_run and marked.changed else ""
    after = "nothing new lands on it" if cordon else "Pods may land on it"
    if not cordon and device is not None and not device.healthy:
        after = f"nothing new lands on it still: {device.why_not}"
    report.show(_printable(f"{state.node}: {name} {done}{again}; {after}{dry}"))
    held = state.held(marked.identity)
    if not held:
        report.show("no Pod holds anything of it")
        return
    table = _table("POD", "HOLDS")
    for holding, share in held:
        _row(table, f"{holding.namespace}/{holding.name}", _share(share))
    report.show(f"Pods that hold something of it, and run on: {len(held)}", table)


# The command


def _understand(arguments: argparse.Namespace) -> tuple[str, list[str]]:
    """Split the words into a verb, "" for showing devices, and what it is about.

    Raises:
        CommandError: they do not go together, or with the options.
    """
    words: list[str] = arguments.words
    if not words or words[0] not in _VERBS:
        if arguments.dry_run:
            raise CommandError("--dry-run goes with cordon and uncordon only")
        return "", words
    verb, *about = words
    if len(about) != 2:  # noqa: PLR2004 a node and a device
        raise CommandError(f"{verb} takes a node and a device's id, as in: koordgate devices {verb} NODE ID")
    if arguments.packed or arguments.output != "table":
        raise CommandError(f"--packed and --output do not go with {verb}")
    return verb, about


async def _main(arguments: argparse.Namespace, types: DeviceTypes) -> list[str]:
    """Do it; returns what could not be read."""
    verb, about = _understand(arguments)
    async with KubeClient.autodetect() as kube:
        if verb:
            cordon, dry_run = verb == "cordon", arguments.dry_run
            node, identity = about
            marked = await mark(kube, node, identity, types, cordon=cordon, dry_run=dry_run)
            _show_marked(marked, cordon=cordon, dry_run=dry_run)
            return list(marked.state.problems)
        states = await read_cluster(kube, about, types)
    if arguments.output == "yaml":
        listed = packed_list(states) if arguments.packed else devices_list(states)
        sys.stdout.write(yaml.safe_dump({"nodes": listed}, sort_keys=False, allow_unicode=True))
    else:
        report.show(packed_table(states) if arguments.packed else devices_table(states))
    return [problem for state in states for problem in state.problems]


def _run(arguments: argparse.Namespace) -> int:
    try:
        types = device_types(load(arguments.config)) if arguments.config else BUILT_IN
        problems = asyncio.run(_main(arguments, types))
        sys.stdout.flush()
    except (CommandError, SettingsError) as error:
        return _failed(_UNUSABLE, str(error))
    except Unreachable as error:
        return _failed(1, f"the API server of the kubeconfig does not answer: {error}")
    except KubeError as error:
        return _failed(1, str(error))
    except BrokenPipeError:
        return report.unread()
    for problem in problems:
        sys.stderr.write(f"koordgate devices: {_printable(problem)}\n")
    return 0


def _failed(status: int, message: str) -> int:
    sys.stderr.write(f"koordgate devices: {_printable(message)}\n")
    return status


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = (
        "koordgate devices [options] [NODE ...]\n       koordgate devices [options] {cordon,uncordon} NODE ID"
    )
    parser.add_argument(
        "words",
        nargs="*",
        metavar="NODE",
        help="nodes that are shown, all if none is named; or cordon or uncordon, a node, and a device's id (a GPU's "
        "UUID, another device's PCI address)",
    )
    parser.add_argument(
        "--packed", action="store_true", help="show what the nodes have published: total and free of each class, packed"
    )
    parser.add_argument("--output", choices=("table", "yaml"), default="table", help="as what devices are shown")
    parser.add_argument(
        "--dry-run", action="store_true", help="with cordon and uncordon: have the API server check it, write nothing"
    )
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="the webhook's settings: needed to know device types of your own"
    )


COMMAND: Final = Command(
    description="Show the devices of a cluster's nodes, their health, what is used of them and by which Pods; or take\n"
    "one out with cordon: the Pods that hold something of it run on and are listed, and nothing new lands on it until\n"
    "uncordon. The cluster is that of the kubeconfig ($KUBECONFIG). Needed are the rights to get and list\n"
    "devices.scheduling.koordinator.sh and nodeallocations.koordgate.io, and for cordons to patch the former.\n"
    "What cannot be read of an object is told on standard error.",
    examples="examples:\n"
    "  koordgate devices\n"
    "  koordgate devices node-1 node-2 --output yaml\n"
    "  koordgate devices --packed\n"
    "  koordgate devices cordon node-1 GPU-8a56a4bc-d184-a047-2620-339f0c8ca1dc --dry-run\n"
    "  koordgate devices uncordon node-1 GPU-8a56a4bc-d184-a047-2620-339f0c8ca1dc",
    arguments=_arguments,
    run=_run,
)
