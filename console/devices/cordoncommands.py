"""`koordgate cordon`, `uncordon` and `drain`: one device of the whole cluster, by a word that only it has."""

import argparse
import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final, NamedTuple

from allocator.vocabulary.adopted import ForeignHolding
from allocator.vocabulary.device import Device
from allocator.vocabulary.devicetype import DeviceTypes
from allocator.vocabulary.holdings import Holding
from allocator.vocabulary.names import CORDONED, TYPE_GPU
from console import terminal
from console.devices.nodes import (
    CommandError,
    Known,
    SeenNodes,
    read_nodes,
    require_ledger,
    there_are,
    unknown_node,
)
from console.devices.session import CommandEnd, carry_out
from console.devicewords import told_holder, told_share
from console.plaintable import add_row, plain_table
from console.reading import add_cluster
from console.terminal import printable
from koordgate.backoff import Backoff
from koordgate.cli import Command
from koordgate.kube.client import KubeClient
from koordgate.kube.errors import Conflict, NotFound, TooManyRequests
from koordgate.kube.resource import DEVICES, NODES, PODS
from webhook.ledger.kube import cluster_store
from webhook.ledger.store import Store
from webhook.view.nodereport import GONE, DeviceReport, NodeReport

_SHORTEST: Final = 4  # characters of an id's beginning


def is_begun(identity: str, word: str) -> bool:
    """Whether a word is the beginning of an id, in letters of either case; a UUID may be begun after its `GPU-`."""
    whole, begun = identity.lower(), word.lower()
    number = whole.removeprefix("gpu-").removeprefix("mig-")
    return len(word) >= _SHORTEST and (whole.startswith(begun) or number.startswith(begun))


def address_of(text: str) -> str:
    """Write a PCI address as sysfs does: NVML writes the domain with eight digits, and letters in upper case."""
    domain, _, rest = text.lower().partition(":")
    return f"{domain[-4:].zfill(4)}:{rest}" if rest.count(":") == 1 else text.lower()


class NamedDevice(NamedTuple):
    """A device, as messages name it."""

    node: str  # name of its node
    type: str  # its type; "" for one that only a cordon names
    minor: int  # its number there; -1 likewise
    id: str
    bus: str = ""  # its PCI address; "" if unknown

    def __str__(self) -> str:
        return f"{self.node}/{self.type}/{self.minor} {self.id}" if self.type else f"{self.node}/{self.id} (cordoned)"


HOW: Final = (
    "a device is named by its UUID or the beginning of it, by NODE/MINOR (a GPU), NODE/TYPE/MINOR, NODE/UUID or "
    "NODE/PCI-ADDRESS, and by its PCI address alone where one node has it"
)

_DIGITS: Final = 9  # of a minor


def place_of(word: str) -> str:
    """The node that a word names, "" if it names none."""
    node, slash, _ = word.partition("/")
    return node if slash else ""


def find_device(reports: Sequence[NodeReport], word: str) -> NamedDevice:
    """Find the one device that a word names; a device that only Pods or a cordon still name is found too.

    `reports`: of the nodes that it may be on. Raises CommandError: it names none, or several; the message names the
    candidates.
    """
    node, slash, rest = word.partition("/")
    known = [one for report in reports if not slash or report.name == node for one in _devices(report)]
    wanted = rest if slash else word
    by_minor = [one for one in known if slash and _minor(wanted) == (one.type, one.minor)]
    exact = [one for one in known if one.id == wanted]
    address = address_of(wanted)
    by_address = [one for one in known if one.bus and address_of(one.bus) == address]
    begun = [one for one in known if is_begun(one.id, wanted)]
    found = sorted(dict.fromkeys(exact or by_minor or by_address or begun))
    if len(found) == 1:
        (only,) = found
        return only
    if found:
        raise CommandError(f"{word!r} names several devices; {there_are(map(str, found))}")
    if not slash and any(report.name == word for report in reports):
        there = there_are(str(one) for one in known if one.node == word)
        raise CommandError(f"{word} is a node: name a device of it, as {word}/0; {there}")
    there = f"; {there_are(map(str, known))}" if slash else ""
    raise CommandError(f"{f'node {node}' if slash else 'the cluster'} has no device {wanted!r}{there}; {HOW}")


def _devices(report: NodeReport) -> list[NamedDevice]:
    """The devices of a node, those that are held and it does not list, and those that are only cordoned still."""
    known = [
        NamedDevice(one.node, one.kind.name, one.minor, one.id, one.device.bus if one.device is not None else "")
        for one in report.devices
    ]
    ids = {one.id for one in known}
    return [*known, *(NamedDevice(report.name, "", -1, one) for one in sorted(report.cordoned - ids))]


def _minor(text: str) -> tuple[str, int] | None:
    """Read `3` as the GPU of this minor, and `rdma/1`; None for anything else."""
    kind, slash, minor = text.rpartition("/")
    if not (minor.isascii() and minor.isdigit() and len(minor) <= _DIGITS):
        return None
    return (kind if slash else TYPE_GPU), int(minor)


_MAX_ATTEMPTS: Final = 8  # to write a cordon while others write the same object


class DryRun(StrEnum):
    """Whether anything is written."""

    NONE = "none"
    CLIENT = "client"
    SERVER = "server"


@dataclass(frozen=True, slots=True)
class Marked:
    """The result of cordoning or uncordoning a device."""

    report: NodeReport  # of its node, after the change
    identity: str
    # the device; None if the node does not list it: a cordon outlives its device, and so do holdings
    device: Device | None
    changed: bool  # whether anything had to be written


async def mark(
    kube: KubeClient,
    store: Store,
    device: NamedDevice,
    known: Known,
    *,
    cordon: bool,
    held: bool = False,
    dry_run: DryRun = DryRun.NONE,
) -> Marked:
    """Cordon or uncordon a device, by compare-and-swap; idempotent.

    The cordon is written on the object that lists the device: the Device object, or the Node for a software class. For
    a device that no object lists, none can be written.
    `held`: whether a device that Pods hold and no object lists is accepted, without a cordon. `dry_run`: nothing is
    stored; on the server, the API server checks the change. Raises CommandError: there is no such node or device, or
    others kept writing the object; KubeError: the API server refuses, or cannot be reached.
    """
    node, identity = device.node, device.id
    for _ in range(_MAX_ATTEMPTS):
        seen = SeenNodes(known)
        objects = await seen.get(kube, store, node)
        report = seen.report(node)
        lost = [one for one in report.devices if one.device is None]
        if objects[DEVICES] is None and not seen.classes(node) and not (held and lost):
            raise _unlisted(report.name, lost) if lost else await unknown_node(kube, node)
        if not (node in seen.records.found or report.blocked):
            await require_ledger(store)
        if held and identity in {one.id for one in lost}:
            return Marked(report, identity, None, changed=False)
        on_node = _is_class(seen, node, identity, cordon=cordon)
        where = NODES if on_node else DEVICES
        listed = seen.view.nodes.devices(node)
        before = seen.nodes.cordoned[node] if on_node else listed.cordoned if listed is not None else frozenset()
        after = before | {identity} if cordon else before - {identity}
        obj = objects[where]
        if after != before and obj is not None and dry_run is not DryRun.CLIENT:
            annotations = {CORDONED: ",".join(sorted(after)) or None}
            metadata = {"resourceVersion": obj["metadata"]["resourceVersion"], "annotations": annotations}
            dry = dry_run is DryRun.SERVER
            try:
                seen.put(where, await kube.patch(where.path(node), {"metadata": metadata}, "merge", dry_run=dry))
            except Conflict:
                continue
        if not on_node:
            await seen.list_pods(kube, [node])
        await seen.get_record(store, node)
        report = seen.report(node)
        report = replace(report, problems=(*report.problems, *seen.problems()))
        there = next((one.device for one in report.devices if one.id == identity), None)
        return Marked(report, identity, there, after != before)
    raise CommandError(f"others changed the cordons of node {node} during each of {_MAX_ATTEMPTS} attempts; try again")


def _unlisted(node: str, lost: Sequence[DeviceReport]) -> CommandError:
    names = there_are(f"{one.kind.name} {one.minor} {one.id}" for one in lost)
    return CommandError(
        f"node {node} has no Device object, so no cordon can be written; `koordgate drain` evicts the "
        f"Pods that hold its devices by the ledger; {names}"
    )


def _is_class(seen: SeenNodes, node: str, identity: str, *, cordon: bool) -> bool:
    """Whether an id is that of a device of a software class; a device that is gone can still be uncordoned.

    Raises CommandError: the node has no device or cordon of this id.
    """
    listed = seen.view.nodes.devices(node)
    if listed is not None and identity in {device.id for device in listed.devices}:
        return False
    if identity in {device.id for device in seen.classes(node)}:
        return True
    report = seen.report(node)
    if cordon or identity not in report.cordoned:
        devices = [one for one in report.devices if one.device is not None]
        names = [f"{one.kind.name} {one.minor} {one.id}" for one in devices]
        raise CommandError(f"node {node} has no device {identity!r}; {there_are(names)}")
    return identity in seen.nodes.cordoned.get(node, frozenset())


_FIRST_WAIT_S: Final = 0.5
_MAX_WAIT_S: Final = 10.0
_ANSWER_S: Final = 10.0
_ENDED: Final = ("Succeeded", "Failed")


class DrainStep(StrEnum):
    """The stage that a Pod reached."""

    WOULD_EVICT = "would be evicted"
    BUDGET = "may not be evicted now"
    EVICTED = "evicted, ending"
    GONE = "gone"
    LEFT = "still there"


@dataclass(frozen=True, slots=True)
class Progress:
    """One Pod at one moment."""

    pod: Holding  # the Pod, which holds some of the device
    step: DrainStep  # the stage that it reached
    why: str = ""  # the API server's message; "" if there is none


@dataclass(frozen=True, slots=True)
class Drain:
    """Evicts Pods.

    `timeout`: seconds after which it gives up. `grace`: seconds that a Pod has to end; None for its own.
    """

    kube: KubeClient
    dry_run: DryRun
    timeout: float
    report: Callable[[Progress], None]
    grace: int | None = None

    async def run(self, pods: Sequence[Holding]) -> list[Progress]:
        """Evict these Pods and wait until they are gone; returns each one's outcome, in their order.

        Raises KubeError: the API server refuses for another reason than a PodDisruptionBudget, or cannot be reached.
        """
        end = time.monotonic() + self.timeout
        try:
            async with asyncio.TaskGroup() as tasks:
                running = [tasks.create_task(self._one(pod, end)) for pod in pods]
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from failed
        return [task.result() for task in running]

    async def _one(self, pod: Holding, end: float) -> Progress:
        done = await self._evicted(pod, end)
        if done.step is DrainStep.EVICTED:
            self.report(done)
            done = await self._gone(pod, end)
        self.report(done)
        return done

    async def _evicted(self, pod: Holding, end: float) -> Progress:
        """Evict a Pod; retry while its PodDisruptionBudget does not allow it."""
        if self.dry_run is DryRun.CLIENT:
            return Progress(pod, DrainStep.WOULD_EVICT)
        backoff = Backoff(_FIRST_WAIT_S, _MAX_WAIT_S)
        while True:
            tried, least = await self._attempt(pod)
            wait = max(backoff.failed(), least)
            last = self.dry_run is DryRun.SERVER or time.monotonic() + wait > end
            if tried.step is not DrainStep.BUDGET or last:
                return tried
            if backoff.failures == 1:
                self.report(tried)
            await asyncio.sleep(wait)

    async def _attempt(self, pod: Holding) -> tuple[Progress, float]:
        """Evict a Pod once; returns the result, and the least seconds to wait before the next attempt."""
        dry = self.dry_run is DryRun.SERVER
        path = PODS.path(pod.name, pod.namespace, "eviction")
        try:
            await self.kube.create(path, self._eviction(pod), dry_run=dry, deadline=_ANSWER_S)
        except TooManyRequests as error:
            return Progress(pod, DrainStep.BUDGET, error.message), error.retry_after or 0
        except NotFound:
            return Progress(pod, DrainStep.GONE), 0
        except Conflict as error:  # another Pod has the name, or the budget was written at this moment
            ended = await self._has_ended(pod)
            return Progress(pod, DrainStep.GONE) if ended else Progress(pod, DrainStep.BUDGET, error.message), 0
        return Progress(pod, DrainStep.WOULD_EVICT if dry else DrainStep.EVICTED), 0

    def _eviction(self, pod: Holding) -> dict[str, Any]:
        options: dict[str, Any] = {"preconditions": {"uid": pod.uid}}
        if self.grace is not None:
            options["gracePeriodSeconds"] = self.grace
        metadata = {"name": pod.name, "namespace": pod.namespace}
        return {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": metadata, "deleteOptions": options}

    async def _gone(self, pod: Holding, end: float) -> Progress:
        backoff = Backoff(_FIRST_WAIT_S, _MAX_WAIT_S)
        while not await self._has_ended(pod):
            wait = backoff.failed()
            if time.monotonic() + wait > end:
                return Progress(pod, DrainStep.LEFT)
            await asyncio.sleep(wait)
        return Progress(pod, DrainStep.GONE)

    async def _has_ended(self, pod: Holding) -> bool:
        try:
            found = await self.kube.get(PODS.path(pod.name, pod.namespace))
        except NotFound:
            return True
        return (found.get("status") or {}).get("phase") in _ENDED or found["metadata"].get("uid") != pod.uid


_PODS_LEFT: Final = 3


async def _carry_out_verb(
    verb: str, where: NamedDevice, kube: KubeClient, store: Store, known: Known, arguments: argparse.Namespace
) -> CommandEnd:
    """Cordon, uncordon or drain a device, print what became of it, and return the end of the command.

    Raises CommandError: there is no such node or device, or others kept writing the object; KubeError: the API server
    refuses, or cannot be reached.
    """
    cordon, dry_run = verb != "uncordon", DryRun(arguments.dry_run)
    marked = await mark(kube, store, where, known, cordon=cordon, held=verb == "drain", dry_run=dry_run)
    _show_marked(marked, known.types, cordon=cordon, dry_run=dry_run is not DryRun.NONE)
    status = await _drain(kube, marked, arguments) if verb == "drain" else 0
    return CommandEnd(marked.report.problems, status)


def _show_marked(marked: Marked, types: DeviceTypes, *, cordon: bool, dry_run: bool) -> None:
    report, device, dry = marked.report, marked.device, ""
    name = f"{device.type} {device.minor} {device.id}" if device else f"{marked.identity} ({GONE})"
    done, after = ("is cordoned", "it takes no new Pods") if cordon else ("is not cordoned", "it takes new Pods")
    if not marked.changed:
        done = "is cordoned already" if cordon else "was not cordoned"
    elif dry_run:
        done, dry = "would be cordoned" if cordon else "would be uncordoned", " (dry run: nothing is written)"
        after = after.replace("takes", "would take")
    if cordon and device is None:
        done, after = "cannot be cordoned", "the node does not list it"
    if not cordon and device is not None and not device.healthy:
        after = f"it still takes no new Pods: {device.why_not}"
    terminal.show(printable(f"{report.name}: {name} {done}; {after}{dry}"))
    held = report.held(marked.identity)
    if not held:
        terminal.show(f"no Pod {'of koordgate ' if _unseen(marked) else ''}holds anything of it")
        return
    table = plain_table("POD", "HOLDS")
    for holding, share in held:
        add_row(table, told_holder(holding), told_share(share, types))
    terminal.show(f"Pods that hold something of it: {len(held)}", table)


async def _drain(kube: KubeClient, marked: Marked, arguments: argparse.Namespace) -> int:
    """Evict the Pods of koordgate that hold some of a cordoned device; returns the exit status."""
    dry_run = DryRun(arguments.dry_run)
    held = [holding for holding, _ in marked.report.held(marked.identity)]
    theirs = {one.uid: one for one in held if isinstance(one, ForeignHolding)}
    pods = [one for one in held if isinstance(one, Holding) and not one.fence and one.uid not in theirs]
    for one in theirs.values():
        terminal.show(printable(f"Pod {told_holder(one)}: not evicted, another product placed it"))
    terminal.doing("waiting for the Pods to end")
    done = await Drain(kube, dry_run, arguments.timeout, _show_step).run(pods)
    left = [one for one in done if one.step in (DrainStep.BUDGET, DrainStep.LEFT)]
    stays = "it stays cordoned" if marked.device is not None else "its node does not list it"
    if theirs:
        told = f"Pods of other products hold the device, and drain does not evict them: {len(theirs)}"
        terminal.tell(arguments.called, f"{told}; {stays}, delete them or let them end")
    elif _unseen(marked):
        terminal.tell(arguments.called, "Pods of other products may hold the device; they cannot be listed")
    open_end = bool(theirs) or _unseen(marked)
    if dry_run is not DryRun.NONE:
        return _PODS_LEFT if left or open_end else 0
    if not left and open_end:
        return _PODS_LEFT
    if not left:
        terminal.show(printable(f"{marked.report.name}: no Pod holds {marked.identity} any more; {stays}"))
        return 0
    terminal.tell(
        arguments.called,
        f"Pods that still hold the device after {arguments.timeout:g} s: {len(left)} of {len(done)}; {stays}, run the "
        "command again",
    )
    return _PODS_LEFT


def _unseen(marked: Marked) -> bool:
    """Whether a Pod of another product that is not known may hold the device."""
    return marked.report.unseen and marked.device is not None and marked.device.type == TYPE_GPU


def _show_step(one: Progress) -> None:
    why = f": {one.why}" if one.why else ""
    terminal.show(printable(f"Pod {one.pod.namespace}/{one.pod.name}: {one.step}{why}"))


def _command(verb: str, what: str, examples: str) -> Command:
    def run(arguments: argparse.Namespace) -> int:
        async def work(kube: KubeClient, known: Known) -> CommandEnd:
            store = cluster_store(kube)
            node = place_of(arguments.device)
            reports = await read_nodes(kube, store, [node] if node else [], known)
            found = find_device(reports, arguments.device)
            return await _carry_out_verb(verb, found, kube, store, known, arguments)

        return carry_out(arguments, work)

    def arguments_of(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("device", metavar="DEVICE", help=HOW)
        parser.add_argument(
            "--dry-run",
            choices=[str(DryRun.CLIENT), str(DryRun.SERVER)],
            nargs="?",
            const=str(DryRun.SERVER),
            default=str(DryRun.NONE),
            help="write nothing; --dry-run alone is server: the API server checks the changes and evictions",
        )
        if verb == "drain":
            parser.add_argument(
                "--timeout",
                type=terminal.seconds,
                default=300.0,
                metavar="SECONDS",
                help="how long to retry evictions that a PodDisruptionBudget does not allow, and to wait for Pods to "
                "end (default: 300)",
            )
        add_cluster(parser)

    drains = " drain also gets pods and creates pods/eviction." if verb == "drain" else ""
    left = " The exit status is 3 if Pods still hold it." if verb == "drain" else ""
    return Command(
        description=f"{what} If DEVICE names several devices, they are listed and nothing is done.{left}\n\n"
        "The user needs the rights to get and list nodes, devices.scheduling.koordinator.sh and "
        "nodeallocations.koordgate.io, and to patch the devices (for a software class: the nodes)."
        f"{drains} The command reads the installation's configmap, and lists pods if that has adopt.peers.",
        examples=f"examples:\n{examples}",
        arguments=arguments_of,
        run=run,
    )


CORDON: Final = _command(
    "cordon",
    "Take a device out of service. Pods that hold some of it keep running and are listed.",
    "  koordgate cordon GPU-8a56a4bc\n  koordgate cordon gpu-node-1/3 --dry-run\n"
    "  koordgate cordon gpu-node-1/0000:3b:00.0",
)
UNCORDON: Final = _command(
    "uncordon",
    "Return a device to service.",
    "  koordgate uncordon GPU-8a56a4bc\n  koordgate uncordon gpu-node-1/3",
)
DRAIN: Final = _command(
    "drain",
    "Cordon a device, and evict the Pods that hold some of it. PodDisruptionBudgets are respected.",
    "  koordgate drain GPU-8a56a4bc --dry-run\n  koordgate drain gpu-node-1/rdma/0 --timeout 600",
)
