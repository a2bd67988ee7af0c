"""Microseconds to choose GPUs on one 8-GPU node, beside Koordinator's compiled Go.

Half of the node's GPUs are half taken; these are drawn again for every call. The requests are half a GPU, one, two and
four GPUs, on two nodes: one reports no wiring; the other has NVLink switches, two NUMA nodes and four PCIe roots, so
that sets of whole GPUs are compared by their connections.
"""

import argparse
import random
import statistics
import sys
import time

from result import close

from allocator.budget import Budget
from allocator.devices.choose import choose_devices
from allocator.place import MAX_STEPS
from allocator.vocabulary.asks import ContainerAsk, DeviceAsk, PodRequest
from allocator.vocabulary.device import UNWIRED, Device, Place, Wiring, link
from allocator.vocabulary.devicetype import GPU_TYPE
from allocator.vocabulary.holdings import Holding, Share
from allocator.vocabulary.names import GPU_CORE, GPU_MEMORY, GPU_MEMORY_RATIO, TYPE_GPU, Phase
from allocator.vocabulary.node import NodeSnapshot
from allocator.vocabulary.outcome import Refusal

GPUS = 8
GIB = 2**30
CAPACITY = {GPU_CORE: 100, GPU_MEMORY: 80 * GIB, GPU_MEMORY_RATIO: 100}
HALF = {GPU_CORE: 50, GPU_MEMORY: 40 * GIB, GPU_MEMORY_RATIO: 50}
LANES = 12
# Koordinator's device allocator, compiled Go on one core of a similar machine, when the design was made.
KOORDINATOR_MICROSECONDS = 15.0
ASKS = {
    "half": DeviceAsk(GPU_TYPE, 1, (50, None, 50)),
    "1 whole": DeviceAsk(GPU_TYPE, 1, (100, None, 100)),
    "2 whole": DeviceAsk(GPU_TYPE, 2, (100, None, 100)),
    "4 whole": DeviceAsk(GPU_TYPE, 4, (100, None, 100)),
}


def nodes(number: int, *, wired: bool) -> list[NodeSnapshot]:
    """Make nodes, each with half of its GPUs half taken."""
    draw = random.Random(20260724)
    devices = tuple(
        Device(
            TYPE_GPU,
            f"GPU-{minor}",
            minor,
            healthy=True,
            capacity=CAPACITY,
            numa_node=minor // 4 if wired else None,
            pcie=f"pci{minor // 2}" if wired else None,
        )
        for minor in range(GPUS)
    )
    lanes = {(a.id, b.id): LANES for a in devices for b in devices if a.id < b.id}
    wiring = Wiring(link([Place(d.id, d.numa_node, d.pcie) for d in devices], lanes)) if wired else UNWIRED
    made = []
    for _ in range(number):
        taken = draw.sample(range(GPUS), GPUS // 2)
        holdings = {
            str(minor): Holding(str(minor), "d", str(minor), 0, (Share(TYPE_GPU, f"GPU-{minor}", minor, HALF),))
            for minor in taken
        }
        made.append(NodeSnapshot("node", devices, holdings, wiring=wiring))
    return made


def microseconds(request: PodRequest, on: list[NodeSnapshot]) -> float:
    began = time.perf_counter()
    for node in on:
        if isinstance(choose_devices(GPU_TYPE, request, node, Budget(MAX_STEPS)), Refusal):
            raise SystemExit("a node with room was refused")
    return (time.perf_counter() - began) / len(on) * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--nodes", type=int, default=1000)
    arguments = parser.parse_args()
    rounds: list[float] = []
    machines = {"unwired": nodes(arguments.nodes, wired=False), "NVLink": nodes(arguments.nodes, wired=True)}
    requests = {name: PodRequest((ContainerAsk("main", Phase.APP, ask),)) for name, ask in ASKS.items()}
    best: dict[tuple[str, str], float] = {}
    for _ in range(arguments.rounds):
        figures = {
            (kind, name): microseconds(request, on)
            for kind, on in machines.items()
            for name, request in requests.items()
        }
        rounds.append(statistics.mean(figures.values()))
        best = {key: min(best.get(key, figure), figure) for key, figure in figures.items()}
    for (kind, name), figure in best.items():
        print(f"{kind:8} {name:8} {figure:6.1f} us", file=sys.stderr)
    close(
        name="choose_gpus",
        value=statistics.median(rounds),
        unit="us",
        reference=KOORDINATOR_MICROSECONDS,
        goal=2.0,
        higher_is_better=False,
    )


if __name__ == "__main__":
    main()
