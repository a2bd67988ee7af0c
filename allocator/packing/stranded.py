"""What of a cluster's free devices is of use to Pods of a size, and why the rest is not.

Everything counts in points: percent of each resource of a device, added, as in `allocator.fragmentation`: an idle card
has 200. For a size, Pods of it are placed on each node, one after another, until the next one fits no more. What these
take is usable. The rest is lost by the first cause of this list:

- out: the device is out of service, or nothing new may land on the node;
- cpu: further Pods would find devices there, but not enough CPU;
- memory: likewise, but not enough memory, or another amount of the node;
- remainder: what is left of the devices suffices for no further Pod: too little of each, too few, or not together.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Final

from allocator.amounts import CPU, PODS, Amounts
from allocator.budget import Budget
from allocator.fragmentation import NOTHING_WORTH, points_left, worth
from allocator.headroom import needs_of
from allocator.packing.filling import MAX_DECISIONS, NOTHING_FITS, DeviceTake, Fill, Filling, NodeRoom, SamplePod
from allocator.request.typical import MEMORY
from allocator.vocabulary.asks import ContainerAsk, DeviceAsk, PodRequest
from allocator.vocabulary.device import Device
from allocator.vocabulary.devicetype import FULL, DeviceType
from allocator.vocabulary.mix import MAX_COUNT, Mix
from allocator.vocabulary.names import Phase
from allocator.vocabulary.node import NodeSnapshot, fullness

_SIZE: Final = re.compile(r"(?P<count>[0-9]{1,3})|((?P<each>[0-9]{1,3}):)?(?P<percent>[0-9]{1,3})%?", re.ASCII)


class SizeError(ValueError):
    """A size cannot be read, or the type cannot be asked for by it; the message says what would work."""


@dataclass(frozen=True, slots=True)
class Size:
    """So many devices, from 1, and so many percent of each, from 1 to 100."""

    count: int
    percent: int = FULL

    def __str__(self) -> str:
        if self.percent == FULL:
            return str(self.count)
        return f"{self.percent}%" if self.count == 1 else f"{self.count}:{self.percent}%"


SIZES: Final = (Size(1, 10), Size(1, 25), Size(1, 50), Size(1), Size(2), Size(4), Size(8))
"""The table of sizes that people ask for."""


def read_size(text: str) -> Size:
    """Read a size: `8` is eight whole devices, `50%` half of one, `2:50%` half of each of two.

    Raises:
        SizeError: it is none.
    """
    found = _SIZE.fullmatch(text)
    if found is None or (found["count"] is None and found["each"] is None and not text.endswith("%")):
        raise SizeError(f"{text!r} is no size: write 8 (whole cards), 50% (of one) or 2:50% (of each of two)")
    size = Size(int(found["count"] or found["each"] or 1), int(found["percent"] or FULL))
    if not 0 < size.count <= MAX_COUNT or not 0 < size.percent <= FULL:
        raise SizeError(f"{text!r} is no size: from 1 to {MAX_COUNT} cards, from 1% to {FULL}% of each")
    return size


def sample_of(
    size: Size, kind: DeviceType, mix: Mix, may: frozenset[str] | None = None, asks: Amounts | None = None
) -> SamplePod:
    """A Pod of a size.

    It requests as much CPU and memory as Pods of the mix request in the mean with as much of such devices, rounded up;
    `asks` states other amounts (thousandths of a CPU, bytes).

    Raises:
        SizeError: devices of the type are not divided in percent.
    """
    if size.percent < FULL and not any(kind.percent):
        raise SizeError(f"{size}: devices of type {kind.name} are not divided in percent; ask for whole ones")
    amounts = tuple(size.percent if percent else None for percent in kind.percent)
    need, percent = needs_of(mix).get(kind.name), size.count * size.percent
    typical = {CPU: need.cpu, MEMORY: need.memory} if need is not None else {}
    of_node = {name: -(-amount * percent // need.percent) for name, amount in typical.items() if need is not None}
    request = PodRequest((ContainerAsk("main", Phase.APP, DeviceAsk(kind, size.count, amounts)),))
    return SamplePod(request, {**of_node, **(asks or {}), PODS: 1}, may)


@dataclass(slots=True)
class Use:
    """What is free of some devices, in points: usable, or lost by the causes above. `fit`, in Pods, is 0 of a mix."""

    fit: int = 0
    usable: int = 0
    cpu: int = 0
    memory: int = 0
    remainder: int = 0
    out: int = 0

    @property
    def free(self) -> int:
        """All that is free."""
        return self.usable + self.cpu + self.memory + self.remainder + self.out

    def add(self, other: "Use") -> None:
        """Add another."""
        for one in fields(self):
            setattr(self, one.name, getattr(self, one.name) + getattr(other, one.name))


@dataclass(slots=True)
class ModelStock:
    """The devices of one model.

    Attributes:
        nodes, devices: how many nodes have some, and how many there are.
        out: how many are out of service, or on a closed node.
        idle: how many others are wholly free.
        parts: how many others are free in part.
        free: what is free of all in service, in points.
        free_out: what nobody holds of those that are out, in points.
    """

    nodes: int = 0
    devices: int = 0
    out: int = 0
    idle: int = 0
    parts: int = 0
    free: int = 0
    free_out: int = 0


@dataclass(slots=True)
class Stranded:
    """What is free of one type of device, by model.

    Attributes:
        stock: model -> its devices.
        sizes: for each size, in the order in which they were given: model -> what is free by what it is worth to it.
        typical: the same for the mix: model -> in points, times `weight`; empty without typical requests for the type.
        weight: of the typical requests for the type together.
        ended: on how many nodes more Pods of a size might fit, because the search was ended; what these would take
            counts as remainder.
    """

    stock: dict[str, ModelStock] = field(default_factory=dict)
    sizes: list[dict[str, Use]] = field(default_factory=list)
    typical: dict[str, Use] = field(default_factory=dict)
    weight: int = 0
    ended: int = 0


def points_of(kind: DeviceType) -> int:
    """The points of one whole device."""
    return FULL * len(fullness(kind))


def stranded(
    rooms: Iterable[NodeRoom], kind: DeviceType, sizes: Iterable[SamplePod], mix: Mix, decisions: Budget | None = None
) -> Stranded:
    """Count what is free of the devices of one type, and of what use it is to Pods of the type alone, and to a mix."""
    wanted = list(sizes)
    own = Mix(tuple(one for one in mix.requests if one.ask is not None and one.ask.type.name == kind.name))
    found = Stranded(sizes=[{} for _ in wanted], weight=own.weight)
    bound = Budget(MAX_DECISIONS) if decisions is None else decisions
    fills = [Filling(sample, bound) for sample in wanted]
    for room in rooms:
        there = [device for device in room.node.devices if device.type == kind.name]
        if not there:
            continue
        lost = _stock(found.stock, room, there, kind)
        ended = False
        for uses, sample, filling in zip(found.sizes, wanted, fills, strict=True):
            fill = NOTHING_FITS if room.closed else filling.of(room.node)
            ended = ended or fill.ended
            _add(uses, {} if room.closed else _of_size(room, there, kind, sample, fill), lost, 1)
        found.ended += ended
        if own:
            _add(found.typical, _of_mix(room, own), lost, own.weight)
    return found


def _stock(stock: dict[str, ModelStock], room: NodeRoom, there: list[Device], kind: DeviceType) -> dict[str, int]:
    """Count a node's devices; returns what is free of those that are out, by model."""
    lost: dict[str, int] = {}
    whole, held = points_of(kind), room.node.kubelet_held
    for model in dict.fromkeys(device.model for device in there):
        stock.setdefault(model, ModelStock()).nodes += 1
    for device in there:
        of = stock[device.model]
        of.devices += 1
        if room.closed or not device.healthy:
            of.out += 1
            left = 0 if device.id in held else _unheld(room.node, device, kind)
            of.free_out += left
            lost[device.model] = lost.get(device.model, 0) + left
            continue
        left = points_left(kind, room.node, device)
        of.free += left
        of.idle += left == whole
        of.parts += 0 < left < whole
    return lost


def _unheld(node: NodeSnapshot, device: Device, kind: DeviceType) -> int:
    """What nobody holds of a device, whether it is in service or not."""
    used = node.used.get(device.id, {})
    has = ((device.capacity.get(tail, 0), used.get(tail, 0)) for tail in fullness(kind))
    return sum(FULL * max(total - gone, 0) // total for total, gone in has if total)


def _add(uses: dict[str, Use], more: Mapping[str, Use], lost: Mapping[str, int], weight: int) -> None:
    for model in {**more, **lost}:
        of = uses.setdefault(model, Use())
        of.add(more.get(model, Use()))
        of.out += weight * lost.get(model, 0)


def _of_size(room: NodeRoom, there: list[Device], kind: DeviceType, sample: SamplePod, fill: Fill) -> dict[str, Use]:
    """What is free on one node by what it is worth to Pods of a size."""
    uses = {model: Use() for model in dict.fromkeys(device.model for device in there)}
    for device in there:
        if device.healthy:
            uses[device.model].remainder += points_left(kind, room.node, device)
    fit = min(len(fill.takes), room.times(sample.asks))
    lack = room.lacks(sample.asks, fit + 1)
    for take, times in Counter(fill.takes[:fit]).items():
        _count(uses, take, times, "usable")
        if take.model in uses:
            uses[take.model].fit += times
    for take, times in Counter(fill.takes[fit:]).items():
        _count(uses, take, times, "cpu" if lack == CPU else "memory")
    return uses


def _count(uses: Mapping[str, Use], take: DeviceTake, times: int, part: str) -> None:
    """Count what more Pods take, or would take."""
    for model, points in take.points:
        of = uses[model]
        of.remainder -= times * points
        setattr(of, part, getattr(of, part) + times * points)


def _of_mix(room: NodeRoom, mix: Mix) -> dict[str, Use]:
    """The same for a mix for the type alone, as the metric `koordgate_free_devices` counts it: in the mean."""
    if room.closed:
        return {}
    cpu, memory = room.free(CPU), room.free(MEMORY)
    both = worth(room.node, cpu, memory, mix)
    memory_counts = memory is not None and any(has.node_short for has in both.values())
    with_memory = worth(room.node, cpu, None, mix) if memory_counts else both
    found = {}
    for (kind, model), has in both.items():  # of the one type
        by_cpu = with_memory.get((kind, model), NOTHING_WORTH).node_short
        found[model] = Use(0, has.useful, by_cpu, has.node_short - by_cpu, has.remainder)
    return found
