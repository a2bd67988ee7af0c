"""What room is wanted for, a size or a Pod of a file; where it fits, and what would have to be gone otherwise."""

import argparse
from collections import Counter
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from allocator.amounts import CPU
from allocator.budget import Budget
from allocator.packing.filling import MAX_DECISIONS, Filling, NodeRoom, SamplePod
from allocator.packing.stranded import SIZES, Size, SizeError, read_size, sample_of
from allocator.place import Placement, place
from allocator.preempt import PodStanding, choose_victims
from allocator.quantity import QuantityError, to_int, to_milli
from allocator.reasons import lack
from allocator.request.typical import MEMORY
from allocator.vocabulary.devicetype import FULL, DeviceType
from allocator.vocabulary.holdings import Holding
from allocator.vocabulary.names import TYPE_GPU, model_name
from console.cluster import checked
from console.devices.nodes import CommandError
from console.explain.scene import admitted
from console.packing.state import PackingState
from console.simulator import words
from console.simulator.objects import read_all
from console.simulator.scheduler import managed
from koordgate.breaks import at_once
from webhook.shadow.judge import as_submitted
from webhook.view.podinfo import read_pod_info

_MAX_NAMED: Final = 8
_MAX_NODES: Final = 64  # of which it is found which Pods would have to leave them: some 20 ms each
_ABOVE_ALL: Final = 2**31  # a priority


@dataclass(frozen=True, slots=True)
class WantedRoom:
    """A Pod, its name for people, the same in one word as the command line takes it ("": of a file), and its type."""

    pod: SamplePod
    words: str
    word: str
    kind: DeviceType


def add_wanted(parser: argparse.ArgumentParser) -> None:
    """Add the options that say what room is wanted for."""
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--for",
        dest="size",
        type=_size,
        metavar="SIZE",
        help="room for a Pod of this size: 8 (whole cards), 50%% (of one), 2:50%% (of each of two)",
    )
    what.add_argument("--pod", metavar="FILE", help="room for the Pod of this file")
    parser.add_argument("--type", default=TYPE_GPU, metavar="NAME", help=f"the device type (default: {TYPE_GPU})")
    parser.add_argument("--model", metavar="NAME", help="only nodes with devices of this model (default: all)")
    parser.add_argument(
        "--cpu",
        type=_cpu,
        metavar="AMOUNT",
        help="the CPUs that a Pod of a size requests (default: the mean of typical Pods for as much of such devices)",
    )
    parser.add_argument("--memory", type=_memory, metavar="AMOUNT", help="its memory (default: likewise)")


def _size(text: str) -> Size:
    try:
        return read_size(text)
    except SizeError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _cpu(text: str) -> int:
    try:
        return to_milli(text)
    except QuantityError as error:
        raise argparse.ArgumentTypeError(f"{error}; write a quantity such as 16 or 500m") from error


def _memory(text: str) -> int:
    try:
        return to_int(text)
    except QuantityError as error:
        raise argparse.ArgumentTypeError(f"{error}; write a quantity such as 64Gi") from error


def kind_of(state: PackingState, arguments: argparse.Namespace) -> DeviceType:
    """The device type that is named.

    Raises:
        CommandError: there is none of this name.
    """
    kind = state.types.by_name.get(arguments.type)
    if kind is None:
        raise CommandError(f"--type {arguments.type}: no such device type; there are {', '.join(state.types.by_name)}")
    return kind


def sized(state: PackingState, arguments: argparse.Namespace, size: Size) -> WantedRoom:
    """A Pod of a size.

    Raises:
        CommandError: there is no such type or model, or the type cannot be asked for by this size.
    """
    kind = kind_of(state, arguments)
    asks = {name: amount for name, amount in ((CPU, arguments.cpu), (MEMORY, arguments.memory)) if amount is not None}
    try:
        pod = sample_of(size, kind, state.mix, _of_model(state, kind, arguments.model), asks)
    except SizeError as error:
        raise CommandError(str(error)) from error
    noun = kind.noun if size.count == 1 else f"{kind.noun}s"
    whole = f"{size.count} {noun}"
    part = f"{size.percent} % of each of {whole}" if size.count > 1 else f"{size.percent} % of a {noun}"
    return WantedRoom(pod, f"a Pod of {whole if size.percent == FULL else part}", str(size), kind)


def table(state: PackingState, arguments: argparse.Namespace) -> list[WantedRoom]:
    """The sizes of the report; of a type that is not divided in percent, whole devices only."""
    kind = kind_of(state, arguments)
    return [sized(state, arguments, size) for size in SIZES if size.percent == FULL or any(kind.percent)]


def largest(state: PackingState, arguments: argparse.Namespace) -> WantedRoom:
    """The largest of 8, 4, 2 and 1 whole devices that a node has."""
    kind = kind_of(state, arguments)
    most = max((sum(d.type == kind.name for d in room.node.devices) for room in state.rooms), default=0)
    return sized(state, arguments, Size(next((count for count in (8, 4, 2) if count <= most), 1)))


def _of_model(state: PackingState, kind: DeviceType, model: str | None) -> frozenset[str] | None:
    """The nodes with devices of a model; None for all.

    Raises:
        CommandError: no node has such a device.
    """
    if model is None:
        return None
    by_model: dict[str, set[str]] = {}
    for room in state.rooms:
        for device in room.node.devices:
            if device.type == kind.name:
                by_model.setdefault(model_name(device.model), set()).add(room.node.name)
    found = by_model.get(model_name(model))
    if found is None:
        there = ", ".join(sorted(filter(None, by_model))[:_MAX_NAMED]) or "none that state a model"
        raise CommandError(f"--model {model}: no node has such a device of type {kind.name}; there are {there}")
    return frozenset(found)


async def of_file(state: PackingState, path: str) -> WantedRoom:
    """The Pod of a file, as admission would make it.

    Raises:
        CommandError: the file has no Pod, or more than one, or admission refuses it, or it asks for no devices.
        InputError: the file cannot be read.
    """
    found = [(where, obj) for where, obj, kind in read_all([path]) if kind == "Pod"]
    if len(found) != 1:
        raise CommandError(f"--pod {path}: {len(found)} Pods; give a file with one Pod, as of a workload's template")
    where, given = found[0]
    _, submitted, _ = checked(where, {**given, "kind": "Pod"}, "Pod")
    refused, pod = await admitted(state.cluster, as_submitted(submitted))
    if refused:
        raise CommandError(f"--pod {path}: admission refuses it: {refused}")
    info = read_pod_info(pod, types=state.types)
    if info is None or info.problem or not info.request.containers:
        why = info.problem if info is not None and info.problem else "it asks for no devices"
        raise CommandError(f"--pod {path}: {why}")
    left = managed(state.types)
    asks = {name: amount for name, amount in info.requests if name not in left}
    sample = SamplePod(info.request, asks, state.allowed(pod["spec"]))
    return WantedRoom(sample, f"Pod {info.namespace}/{info.name}", "", info.request.types()[0])


@dataclass(frozen=True, slots=True)
class Nearest:
    """The node that lacks least: percent of devices and of other amounts, as `koordgate explain` counts it, and why."""

    node: str
    lack: int
    why: str


class LeavingPod(NamedTuple):
    """A Pod that would have to leave, with what it holds."""

    holding: Holding
    priority: int
    owner: str  # what creates it, as `Deployment team/web`; "" for nothing


@dataclass(frozen=True, slots=True)
class IfGone:
    """A node on which the Pod would fit without these Pods, none of which can be left out."""

    node: str
    pods: tuple[LeavingPod, ...]


@dataclass(frozen=True, slots=True)
class Answer:
    """On which nodes the Pod fits now, and how often; where it fits on none, what is nearest to that."""

    wanted: WantedRoom
    fitting: tuple[tuple[str, int], ...]
    nearest: Nearest | None = None
    if_gone: IfGone | None = None


def answered(state: PackingState, wanted: WantedRoom) -> Answer:
    """Say where a Pod fits, or what it would need."""
    filling = Filling(wanted.pod, Budget(MAX_DECISIONS))
    fitting = tuple((room.node.name, count) for room in state.rooms if (count := filling.count(room)))
    if fitting:
        return Answer(wanted, fitting)
    far = sorted((_lack(state, room, wanted), at) for at, room in enumerate(state.rooms) if room.open_to(wanted.pod))
    if not far:
        return Answer(wanted, ())
    least, first = far[0]
    nearest = Nearest(state.rooms[first].node.name, least, _why(state.rooms[first], wanted))
    found = (_if_gone(state, state.rooms[at], wanted) for _, at in far[:_MAX_NODES])
    best = min(filter(None, found), key=_harm, default=None)
    return Answer(wanted, (), nearest, best)


def _lack(state: PackingState, room: NodeRoom, wanted: WantedRoom) -> int:
    devices = state.types.resources  # what of these is missing, the devices themselves say
    short = ((asked, room.free(name)) for name, asked in wanted.pod.asks.items() if name not in devices)
    beside = sum(-(-FULL * (asked - free) // asked) for asked, free in short if free is not None and asked > free)
    return lack(wanted.pod.request, room.node) + beside


def _why(room: NodeRoom, wanted: WantedRoom) -> str:
    outcome = place(wanted.pod.request, room.node)
    if isinstance(outcome, Placement):
        return f"not enough {room.lacks(wanted.pod.asks)}"
    return outcome.short or outcome.message.removeprefix(f"{room.node.name}: ")


def _if_gone(state: PackingState, room: NodeRoom, wanted: WantedRoom) -> IfGone | None:
    """Which Pods would have to be gone from a node; None where that does not help or is not known."""
    known = {uid: info for uid in room.node.holdings if (info := state.seen.view.pods.by_uid(uid)) is not None}
    standing = {uid: PodStanding(info.priority) for uid, info in known.items()}
    uids = at_once(choose_victims(wanted.pod.request, room.node, standing, _ABOVE_ALL, ())) or ()
    used = Counter(room.used)
    for uid in uids:
        used.subtract(dict(known[uid].requests))
    if not uids or replace(room, used=used).lacks(wanted.pod.asks):
        return None
    owners = {
        pod["metadata"]["uid"]: f"{owner[0]} {pod['metadata'].get('namespace') or 'default'}/{owner[1]}"
        for pod in state.cluster.objects("Pod")
        if pod["metadata"].get("uid") in known and (owner := words.owner_of(pod)) is not None
    }
    leaving = (LeavingPod(room.node.holdings[uid], known[uid].priority, owners.get(uid, "")) for uid in uids)
    return IfGone(room.node.name, tuple(leaving))


def _harm(one: IfGone) -> tuple[int, int, int, str]:
    """Few Pods, of low priorities, that hold little."""
    held = sum(len(pod.holding.shares) for pod in one.pods)
    return len(one.pods), max(pod.priority for pod in one.pods), held, one.node
