"""Milliseconds of one whole call of /scheduler/filter over 5,000 nodes, over HTTPS with its JSON.

GPUs: 8 per node, half of them taken; a Pod asks for half a GPU. With --cpus: 128 CPUs per node, half of them taken; a
Pod of class LSR asks for 8, and the value is without HTTP and JSON. Each call is for another Pod, with the names in
another order. Between two calls one node changes, as by a bind.
"""

import argparse
import asyncio
import random
import statistics
import sys
import time
from typing import Any

import uvloop
from result import close

from allocator.vocabulary.cpunode import CpuShare
from allocator.vocabulary.cputopology import Cpu, CpuTopology
from allocator.vocabulary.device import Device
from allocator.vocabulary.holdings import Holding, Share
from allocator.vocabulary.names import GPU_CORE, GPU_MEMORY, GPU_MEMORY_RATIO, TYPE_GPU
from allocator.wire.deviceobject import NodeDevices
from allocator.wire.nodetopology import NodeTopology
from console.simulator import api
from webhook.assembly import Parts
from webhook.ledger.store import MemoryStore, Record
from webhook.settings import WebhookSettings, without_gathering
from webhook.view.livepods import LivePods
from webhook.view.nodes import NodeFacts

GPUS, CPUS = 8, 128
LIMIT_MS, CPUS_LIMIT_MS = 8.0, 2.0
GIB = 2**30
CAPACITY = {GPU_CORE: 100, GPU_MEMORY: 80 * GIB, GPU_MEMORY_RATIO: 100}
SEED = 11
HALF = {"kubernetes.io/gpu-core": "50", "kubernetes.io/gpu-memory-ratio": "50"}
LSR = {"cpu": "8", "memory": "8Gi"}


class NoPods(LivePods):
    """Stands in for the API server; it has no Pods."""

    async def find(self, namespace: str, name: str, deadline: float) -> None:
        return None


def cluster(nodes: int, *, cpus: bool) -> Parts:
    parts = Parts(without_gathering(WebhookSettings()), MemoryStore(), NoPods())
    chance = random.Random(SEED)
    devices = tuple(Device(TYPE_GPU, f"GPU-{m}", m, healthy=True, capacity=CAPACITY) for m in range(GPUS))
    topology = CpuTopology.of(Cpu(cpu, cpu % 64 % 32, cpu % 64 // 32, cpu % 64 // 32) for cpu in range(CPUS))
    for number in range(nodes):
        name = f"gpu-node-{number:05d}"
        parts.cluster.nodes.put(name, NodeFacts({}))
        if cpus:
            parts.cluster.nodes.put_topology(NodeTopology(name, topology))
        else:
            parts.cluster.nodes.put_devices(NodeDevices(name, devices))
        parts.ledger.observe(Record(name, 1, dict(taken(number, chance, cpus=cpus))))
    return parts


def taken(number: int, chance: random.Random, *, cpus: bool) -> list[tuple[str, Holding]]:
    """Who holds half of a node: whole GPUs, half ones, or sets of 16 CPUs."""
    held = []
    for part in range(4):
        uid = f"{number}-{part}"
        if cpus:
            mask = 0xFF << 16 * part | 0xFF << 64 + 16 * part
            held.append((uid, Holding(uid, "d", uid, 0, (), CpuShare("LSR", mask))))
        else:
            percent = chance.choice((50, 100))
            amounts = {GPU_CORE: percent, GPU_MEMORY: 80 * GIB * percent // 100, GPU_MEMORY_RATIO: percent}
            held.append((uid, Holding(uid, "d", uid, 0, (Share(TYPE_GPU, f"GPU-{part}", part, amounts),))))
    return held


def question(number: int, names: list[str], *, cpus: bool) -> dict[str, Any]:
    resources = {"requests": LSR if cpus else HALF, "limits": LSR if cpus else HALF}
    labels = {"koordinator.sh/qosClass": "LSR"} if cpus else {}
    metadata = {"name": f"p{number}", "namespace": "default", "uid": f"pod-{number}", "labels": labels}
    spec = {"schedulerName": "koord-scheduler", "containers": [{"name": "main", "resources": resources}]}
    return {"Pod": {"metadata": metadata, "spec": spec}, "NodeNames": names}


async def _measure(nodes: int, rounds: int, *, cpus: bool) -> tuple[float, float]:
    """Median milliseconds of a call, over HTTPS and without."""
    parts = cluster(nodes, cpus=cpus)
    names = [f"gpu-node-{number:05d}" for number in range(nodes)]
    chance = random.Random(SEED)
    whole, inner = [], []
    async with api.serving(parts) as way:
        for number in range(rounds):
            chance.shuffle(names)
            asked = question(number, names, cpus=cpus)
            began = time.perf_counter()
            answer = await way.post(api.FILTER, asked)
            whole.append((time.perf_counter() - began) * 1000)
            if len(answer["NodeNames"]) != 1:
                raise SystemExit(f"one node should have been named: {answer['NodeNames'][:5]}")
            parts.cluster.changes.touch(names[0])
            again = question(rounds + number, list(map(str, names)), cpus=cpus)
            began = time.perf_counter()
            parts.extender.filter(again)
            inner.append((time.perf_counter() - began) * 1000)
            parts.ranking.assumed.drop(f"pod-{number}")
    first = whole[0]
    print(f"first call, with every node still to be indexed: {first:.1f} ms", file=sys.stderr)
    return statistics.median(whole[1:]), statistics.median(inner)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--cpus", action="store_true", help="Pods ask for CPUs of their own, without HTTP and JSON")
    arguments = parser.parse_args()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        whole, inner = runner.run(_measure(arguments.nodes, arguments.rounds, cpus=arguments.cpus))
    print(f"with HTTP and JSON {whole:.2f} ms, without {inner:.2f} ms", file=sys.stderr)
    value, limit = (inner, CPUS_LIMIT_MS) if arguments.cpus else (whole, LIMIT_MS)
    close(name="filter_call", value=value, unit="ms", reference=limit, goal=1.0, higher_is_better=False)


if __name__ == "__main__":
    main()
