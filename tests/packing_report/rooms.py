"""Small nodes with Pods on them."""

from dataclasses import replace

from allocator.packing.filling import NodeRoom, SamplePod
from allocator.packing.stranded import read_size
from allocator.request.typical import MEMORY
from allocator.vocabulary.asks import ContainerAsk, DeviceAsk, PodRequest
from allocator.vocabulary.device import Device
from allocator.vocabulary.devicetype import GPU_TYPE
from allocator.vocabulary.holdings import Holding, Share
from allocator.vocabulary.names import Phase
from allocator.vocabulary.node import NodeSnapshot

GIB = 2**30
CARD = {"gpu-core": 100, "gpu-memory": 80 * GIB, "gpu-memory-ratio": 100}


def room(name: str, *held: tuple[str, str], cards: int = 4, cpu: int = 64, model: str = "A100") -> NodeRoom:
    """A node with cards, and Pods on them.

    Args:
        name: of the node.
        held: for each Pod its name and what it holds: "0,1" for whole cards, "2:50" for a part of one.
        cards: how many there are.
        cpu: CPUs; each Pod of `held` requests 4 of them, and 1 GiB.
        model: of the cards.
    """
    devices = tuple(Device("gpu", f"{name}-{at}", at, healthy=True, capacity=CARD, model=model) for at in range(cards))
    node = NodeSnapshot(name, devices)
    for pod, what in held:
        node = node.with_holding(Holding(pod, "team", pod, 0, shares(name, what)))
    used = {"cpu": 4000 * len(held), MEMORY: GIB * len(held), "pods": len(held)}
    return NodeRoom(node, {"cpu": cpu * 1000, MEMORY: 512 * GIB, "pods": 110}, used)


def shares(node: str, what: str) -> tuple[Share, ...]:
    minors, _, percent = what.partition(":")
    part = int(percent or 100)
    amounts = {"gpu-core": part, "gpu-memory": 80 * GIB * part // 100, "gpu-memory-ratio": part}
    return tuple(Share("gpu", f"{node}-{minor}", int(minor), amounts, ("main",)) for minor in minors.split(","))


def wanted(size: str, cpu: int = 0) -> SamplePod:
    read = read_size(size)
    ask = DeviceAsk(GPU_TYPE, read.count, (read.percent, None, read.percent))
    request = PodRequest((ContainerAsk("main", Phase.APP, ask),))
    return SamplePod(request, {"cpu": cpu * 1000, "pods": 1})


def closed(of: NodeRoom) -> NodeRoom:
    return replace(of, closed=True)


def broken(of: NodeRoom, *minors: int) -> NodeRoom:
    devices = tuple(replace(one, healthy=one.minor not in minors) for one in of.node.devices)
    return replace(of, node=replace(of.node, devices=devices))
