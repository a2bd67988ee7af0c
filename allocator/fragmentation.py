"""How much of a node's free devices is of no use to typical requests: the fragmentation of FGD, by its definition.

For a typical request m, F_n(m) is what is left of the devices of its type on node n if m does not fit there: devices,
CPU and memory. A request without devices can use none of any type. If m fits, F_n(m) is what is left of those devices
that cannot serve m. F_n(M) is the mean of F_n(m) over the mix M, by weight. Among nodes, the best is that where F_n(M)
grows least. With several types this holds for each, and the growths are added.

Everything is an integer. What is left of a device counts in points: percent of each of its resources, added, so that an
idle card has 200 points (compute and memory; bytes of memory state the same again and do not count). The mean is not
divided by the sum of the weights.

This is the definition, for one node at a time. `allocator.index.fragments` computes the same for all nodes at once.
"""

from operator import le
from typing import Final, NamedTuple

from allocator.devices.offer import Amounts, completed
from allocator.vocabulary.cardmemory import askable
from allocator.vocabulary.device import Device
from allocator.vocabulary.devicetype import FULL, DeviceType
from allocator.vocabulary.mix import Mix, TypicalRequest
from allocator.vocabulary.names import model_name
from allocator.vocabulary.node import NodeSnapshot, fullness


class Worth(NamedTuple):
    """What is left of devices by what it is worth to the typical requests for their type: points, times the weights."""

    useful: int  # it can serve the request
    node_short: int  # it could, if the node had more CPU or memory left
    # it cannot: too little is left of the device, too few such devices are left, or the model is another
    remainder: int


NOTHING_WORTH: Final = Worth(0, 0, 0)


def worth(node: NodeSnapshot, cpu: int | None, memory: int | None, mix: Mix) -> dict[tuple[str, str], Worth]:
    """What is left on a node by what it is worth, for each type and model of its usable devices.

    The sum over a type is what is left in points, multiplied by the sum of the weights of the requests for this type.
    Requests for other types, and those without devices, find no use in any device and are left out: they would hide
    what could be changed.

    The arguments are those of `fragmentation`.
    """
    found: dict[tuple[str, str], Worth] = {}
    known: dict[str, list[_Alike]] = {}
    for one in mix.requests:
        ask = one.ask
        if ask is None:
            continue
        if ask.type.name not in known:
            known[ask.type.name] = _alike(ask.type, node)
        groups = known[ask.type.name]
        serving = {group.device.id: group.number for group in groups if _serves(group, one)}
        if sum(serving.values()) < ask.count:
            serving = {}
        short = _less(cpu, one.cpu) or _less(memory, one.memory)
        for group in groups:
            device, points = group.device, one.weight * group.points
            useful = points if device.id in serving else 0
            had = found.get((device.type, device.model), NOTHING_WORTH)
            found[device.type, device.model] = Worth(
                had.useful + (0 if short else useful),
                had.node_short + (useful if short else 0),
                had.remainder + points - useful,
            )
    return found


class _Alike(NamedTuple):
    """Usable devices of one node that serve the same requests, and as much of which is left."""

    device: Device  # one of them
    number: int  # how many they are
    points: int  # what is left of all of them
    has: Amounts  # each of them
    free: Amounts


def _alike(kind: DeviceType, node: NodeSnapshot) -> list[_Alike]:
    """The usable devices of a type: few devices of a node differ in what `_serves` looks at."""
    usable = [device for device in node.devices if device.type == kind.name and node.is_usable(device)]
    groups: dict[tuple[str, str, tuple[Amounts, Amounts]], list[Device]] = {}
    for device, stock in zip(usable, node.stock(usable, kind.tails), strict=True):
        groups.setdefault((device.model, device.vendor, stock), []).append(device)
    return [
        _Alike(of[0], len(of), len(of) * points_left(kind, node, of[0]), *_stock(kind, node, of[0]))
        for of in groups.values()
    ]


def fragmentation(node: NodeSnapshot, cpu: int | None, memory: int | None, mix: Mix) -> int:
    """F_n(M), multiplied by the sum of the mix's weights, in points.

    Only devices of the types that the mix asks for count, and of those only usable ones. A request counts for its own
    type alone: with those for another it would make what differs between nodes look small. As the index does, it looks
    at each request by itself and at no connections, partitions or NUMA nodes.
    `cpu`: thousandths of a CPU that no Pod of the node requests; None if unknown, which suffices for everything.
    `memory`: bytes, likewise.
    """
    kinds = {one.ask.type.name: one.ask.type for one in mix.requests if one.ask is not None}
    left = sum(group.points for kind in kinds.values() for group in _alike(kind, node))
    without_devices = sum(one.weight for one in mix.requests if one.ask is None)
    return without_devices * left + sum(of.node_short + of.remainder for of in worth(node, cpu, memory, mix).values())


def _serves(group: _Alike, one: TypicalRequest) -> bool:
    """Whether a device has enough free for one device of a request for its type, and is of its vendor and models."""
    ask, device = one.ask, group.device
    if ask is None or (ask.vendor and not device.is_of(ask.vendor)):
        return False
    model = model_name(device.model)
    if any(named and model not in map(model_name, named) for named in (one.models, ask.models)):
        return False
    return all(map(le, completed(ask, group.has), group.free))


def points_left(kind: DeviceType, node: NodeSnapshot, device: Device) -> int:
    """What is left of a device, in points: 100 for each resource of which nothing is held; bytes are left out.

    All that is left counts, because all of it may be lost. `allocator.headroom.free_percent` is the least of the same
    percentages: how much of a device Pods can still get, and so what CPU they will need.
    """
    has, free = _stock(kind, node, device)
    counted = [kind.tails.index(tail) for tail in fullness(kind)]
    return sum(FULL * free[at] // has[at] for at in counted if has[at])


def _stock(kind: DeviceType, node: NodeSnapshot, device: Device) -> tuple[Amounts, Amounts]:
    has, free = node.stock((device,), kind.tails)[0]
    return has, askable(device, kind.tails, has, free)


def _less(left: int | None, asked: int) -> bool:
    return left is not None and left < asked
