"""Small clusters with Pods on them, and makers of what the planner takes."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from allocator.packing.defrag import Tenant
from allocator.packing.fleet import Comparison, Guest, NodeRoom
from allocator.packing.sizes import read_size
from allocator.request.typical import MEMORY
from allocator.vocabulary.asks import ContainerAsk, DeviceAsk, PodRequest
from allocator.vocabulary.device import Device
from allocator.vocabulary.devicetype import BUILT_IN, GPU_TYPE
from allocator.vocabulary.holdings import Holding, Share
from allocator.vocabulary.node import NodeSnapshot
from allocator.vocabulary.phase import Phase
from allocator.vocabulary.preference import Preference

GIB = 2**30
CARD = {"gpu-core": 100, "gpu-memory": 80 * GIB, "gpu-memory-ratio": 100}
PACKED = Comparison(BUILT_IN, Preference.PACKING)


def room(name: str, *held: tuple[str, str], cards: int = 4, cpu: int = 64, model: str = "A100") -> NodeRoom:
    """A node with cards, and Pods on them.

    Args:
        name: of the node.
        held: for each Pod its name and what it holds: "0,1" for whole cards, "2:50" for a part of one.
        cards: how many there are.
        cpu: CPUs; each Pod of `held` requests 4 of them.
        model: of the cards.
    """
    devices = tuple(Device("gpu", f"{name}-{at}", at, healthy=True, capacity=CARD, model=model) for at in range(cards))
    made = NodeRoom(NodeSnapshot(name, devices), {"cpu": cpu * 1000, MEMORY: 512 * GIB, "pods": 110})
    for pod, what in held:
        made = made.holding(Holding(pod, "team", pod, 0, shares(name, what)), ASKS)
    return made


ASKS = {"cpu": 4000, MEMORY: GIB, "pods": 1}


def shares(node: str, what: str) -> tuple[Share, ...]:
    minors, _, percent = what.partition(":")
    part = int(percent or 100)
    amounts = {"gpu-core": part, "gpu-memory": 80 * GIB * part // 100, "gpu-memory-ratio": part}
    return tuple(Share("gpu", f"{node}-{minor}", int(minor), amounts, ("main",)) for minor in minors.split(","))


def guest(name: str, what: str, may: frozenset[str] | None = None) -> Guest:
    minors, _, percent = what.partition(":")
    part = int(percent or 100)
    ask = DeviceAsk(GPU_TYPE, len(minors.split(",")), (part, None, part))
    return Guest(name, "team", name, PodRequest((ContainerAsk("main", Phase.APP, ask),)), ASKS, may)


def tenants(node: str, *held: tuple[str, str], late: bool = False, priority: int = 0) -> list[Tenant]:
    return [Tenant(guest(pod, what), node, priority, late) for pod, what in held]


def wanted(size: str, cpu: int = 0) -> Guest:
    read = read_size(size)
    ask = DeviceAsk(GPU_TYPE, read.count, (read.percent, None, read.percent))
    request = PodRequest((ContainerAsk("main", Phase.APP, ask),))
    return Guest(f"wanted {size}", "", size, request, {"cpu": cpu * 1000, "pods": 1})


def closed(of: NodeRoom, why: str = "cordoned") -> NodeRoom:
    return replace(of, closed=why)


def broken(of: NodeRoom, *minors: int) -> NodeRoom:
    devices = tuple(replace(one, healthy=one.minor not in minors) for one in of.node.devices)
    return replace(of, node=replace(of.node, devices=devices))


def names(of: Iterable[Tenant]) -> Sequence[str]:
    return [one.guest.name for one in of]
