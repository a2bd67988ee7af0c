"""Ordinary Pods per second beside hostile ones, and the worst lag of the event loop: 5,000 nodes of 8 GPUs.

kube-scheduler decides for one Pod at a time. Here it calls the filter for ordinary Pods of half a GPU and, in turn, for
Pods of another namespace. In the reference these are ordinary too. Otherwise they are hostile: nine containers of a
little more than half a GPU, and seventeen of a little more than a third. No two cards of a node are alike, so that the
search for such a Pod is as long as it can be. Meanwhile ordinary and hostile Pods are admitted: 1,000 affinity terms,
500 containers, 20,000 entries of environment, an annotation that names 5,600 containers, 30,000 resources. The
replica's watches take in such Pods as well, and a NodeResourceTopology of 40,000 zones. The callers are a process of
their own, so that the lag is the replica's.
"""

import argparse
import asyncio
import gc
import json
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context
from typing import Any

import aiohttp
import orjson
import uvloop
from filter_call import CAPACITY, GIB, GPUS, HALF, cluster, question
from result import close

from allocator.vocabulary.device import Device
from allocator.vocabulary.holdings import Holding, Share
from allocator.vocabulary.names import GPU_CORE, GPU_MEMORY, GPU_MEMORY_RATIO, ORIGINAL_REQUEST, TYPE_GPU
from allocator.wire.deviceobject import NodeDevices
from console.simulator import api
from webhook.assembly import Parts
from webhook.ledger.store import Record
from webhook.upkeep.looplag import LoopLag
from webhook.view.feed import PodFeed, TopologyFeed
from webhook.view.nodes import NodeFacts

GOAL = 0.5  # of the ordinary Pods per second beside ordinary neighbours
ADMIT_EVERY_S = 0.02
ATTACK_EVERY_S = 0.2
EXPIRE_EVERY_S = 0.5
HOSTILE = "hostile"
GARBAGE = 20_000

Json = dict[str, Any]


def uneven(parts: Parts, number: int) -> None:
    """Give a node labels of its own, and take another part of each of its cards."""
    name = f"gpu-node-{number:05d}"
    parts.cluster.nodes.put(name, NodeFacts({"host": name, "zone": f"z{number % 3}"}))
    cards = [Device(TYPE_GPU, f"GPU-{number}-{minor}", minor, healthy=True, capacity=CAPACITY) for minor in range(GPUS)]
    parts.cluster.nodes.put_devices(NodeDevices(name, tuple(cards)))
    held = {}
    for card in cards:
        uid, percent = f"{number}-{card.minor}", 1 + card.minor + number % 32
        amounts = {GPU_CORE: percent, GPU_MEMORY: 80 * GIB * percent // 100, GPU_MEMORY_RATIO: percent}
        held[uid] = Holding(uid, "d", uid, 0, (Share(TYPE_GPU, card.id, card.minor, amounts),))
    parts.ledger.observe(Record(name, 2, held))


def container(name: str, percent: int | None = None, **more: Any) -> Json:
    amounts = {"kubernetes.io/gpu-core": str(percent), "kubernetes.io/gpu-memory-ratio": str(percent)}
    resources = {} if percent is None else {"resources": {"requests": amounts, "limits": amounts}}
    return {"name": name, "image": "example.org/image", **resources, **more}


def pod(name: str, namespace: str, *containers: Json, **spec: Any) -> Json:
    metadata = {"name": name, "namespace": namespace, "uid": f"uid-{name}"}
    return {"metadata": metadata, "spec": {"schedulerName": "koord-scheduler", "containers": [*containers], **spec}}


def hard(number: int, names: list[str]) -> Json:
    """A Pod that fits on no node, which only a long search can find out; each asks for other amounts."""
    many, least = ((GPUS + 1, 51), (2 * GPUS + 1, 34))[number % 2]
    shift = number // 2 % 7
    asked = (container(f"c{at}-{shift}", least + (at + shift) % (8 - 5 * (number % 2))) for at in range(many))
    return {"Pod": pod(f"hard-{number}", HOSTILE, *asked), "NodeNames": names}


def neighbour(number: int, names: list[str]) -> Json:
    """An ordinary Pod of another namespace."""
    return {"Pod": pod(f"near-{number}", "neighbour", container("main", 50)), "NodeNames": names}


def terms(count: int) -> Json:
    wanted = [{"matchExpressions": [{"key": "host", "operator": "In", "values": [f"m{at}"]}]} for at in range(count)]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": wanted}}
    return {"nodeAffinity": required}


def review(obj: Json) -> Json:
    asked = {"uid": "review", "operation": "CREATE", "namespace": obj["metadata"]["namespace"], "object": obj}
    asked |= {"resource": {"resource": "pods"}, "userInfo": {"username": "author", "groups": []}}
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": asked}


def attacks() -> list[Json]:
    """Pods that take long to admit."""
    variables = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}] * 20_000
    return [
        *map(review, stored()),
        review(pod("terms", HOSTILE, container("a", 50), affinity=terms(1000))),
        review(pod("containers", HOSTILE, *(container(f"c{at}", 50) for at in range(500)))),
        review(pod("variables", HOSTILE, container("a", 50, env=variables))),
    ]


def stored() -> list[Json]:
    """Pods that take long to read, and that an API server stores."""
    named = pod("named", HOSTILE, container("a", 50))
    original = {f"c{at}": {"limits": {"nvidia.com/gpu": "1"}} for at in range(5600)}
    named["metadata"]["annotations"] = {ORIGINAL_REQUEST: json.dumps(original, separators=(",", ":"))}
    amounts = {f"example.org/r{at}": "1" for at in range(30_000)}
    resources = container("a", 50)
    resources["resources"]["requests"] = {**resources["resources"]["requests"], **amounts}
    return [named, pod("resources", HOSTILE, resources)]


def zones() -> Json:
    """A NodeResourceTopology that no node needs."""
    listed = [{"name": f"node-{at}", "type": "Node"} for at in range(40_000)]
    return {"metadata": {"name": "gpu-node-00000"}, "zones": listed}


@dataclass
class Seen:
    """What was measured, in seconds.

    Attributes:
        pods: ordinary Pods for which the filter named a node.
        waits: of each, with the neighbour's Pod before it.
        admitted: of each ordinary Pod at admission.
        lag: the worst of the replica's event loop.
        lasted: the whole.
        cpu: that the replica used.
    """

    pods: int = 0
    waits: list[float] = field(default_factory=list)
    admitted: list[float] = field(default_factory=list)
    lag: float = 0.0
    lasted: float = 0.0
    cpu: float = 0.0


def call(url: str, extender: str, names: list[str], seconds: float, *, hostile: bool) -> Seen:
    """Call a replica from this process; its certificate is self-made, and not looked at."""

    async def run() -> Seen:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=False)) as session:
            return await calls(api.Https(session, url, extender), names, seconds, hostile=hostile)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(run())


async def calls(way: api.Api, names: list[str], seconds: float, *, hostile: bool) -> Seen:
    seen, clock = Seen(), time.perf_counter
    began = clock()
    until = began + seconds

    async def schedule() -> None:
        number = 0
        while clock() < until:
            start = clock()
            await way.post(api.FILTER, hard(number, names) if hostile else neighbour(number, names))
            answer = await way.post(api.FILTER, question(number, names, cpus=False))
            seen.waits.append(clock() - start)
            if len(answer["NodeNames"]) != 1:
                raise SystemExit(f"an ordinary Pod fits, and one node should have been named: {answer}"[:500])
            number += 1
        seen.pods = number

    async def every(pause: float, act: Callable[[], Awaitable[None]]) -> None:
        while clock() < until:
            await act()
            await asyncio.sleep(pause)

    ordinary = review(pod("p", "default", {"name": "main", "resources": {"requests": HALF, "limits": HALF}}))
    bad = attacks()

    async def admit() -> None:
        start = clock()
        answer = await way.post(api.MUTATE_POD, ordinary)
        seen.admitted.append(clock() - start)
        if not answer["response"]["allowed"]:
            raise SystemExit(f"an ordinary Pod was refused: {answer}")

    async def attack() -> None:
        bad.append(bad.pop(0))
        await way.post(api.MUTATE_POD, bad[0])

    loads = [schedule(), every(ADMIT_EVERY_S, admit)]
    await asyncio.gather(*loads, *([every(ATTACK_EVERY_S, attack)] if hostile else []))
    seen.lasted = clock() - began
    return seen


async def load(parts: Parts, callers: ProcessPoolExecutor, called: partial[Seen], *, hostile: bool = False) -> Seen:
    """Let the callers call, and measure how late the replica's event loop is meanwhile."""
    lag = LoopLag()

    async def expire() -> None:  # as a replica does: here no bind ever comes
        while True:
            parts.ranking.assumed.expire()
            await asyncio.sleep(EXPIRE_EVERY_S)

    async def watch() -> None:
        events = [(pods, obj) for obj in stored()] + [(topologies, zones())]
        while hostile:
            for feed, obj in events:
                feed.put(orjson.loads(orjson.dumps(obj)))
                await asyncio.sleep(ATTACK_EVERY_S)

    pods = PodFeed(parts.cluster, lambda _: None, lambda _: None, parts.types)
    topologies = TopologyFeed(parts.cluster, lambda *_: None)
    tasks = [asyncio.create_task(one) for one in (lag.run(), expire(), watch())]
    used = time.process_time()
    seen = await asyncio.get_running_loop().run_in_executor(callers, called)
    seen.lag, seen.cpu = lag.worst_recent_s, time.process_time() - used
    for task in tasks:
        task.cancel()
    return seen


def show(what: str, seen: Seen) -> None:
    waits, admitted = sorted(seen.waits), sorted(seen.admitted)
    print(
        f"{what:<22} {seen.pods / seen.lasted:8.1f} Pods/s   filter {1000 * statistics.median(waits):7.1f} ms median "
        f"{1000 * waits[-1]:7.1f} worst   admission {1000 * statistics.median(admitted):6.1f} ms median "
        f"{1000 * admitted[-1]:6.1f} worst   loop lag {1000 * seen.lag:6.1f} ms worst   "
        f"CPU {100 * seen.cpu / seen.lasted:3.0f} % of a core",
        file=sys.stderr,
    )


async def _measure(nodes: int, seconds: float) -> tuple[Seen, Seen]:
    parts = cluster(nodes, cpus=False)
    for number in range(nodes):
        uneven(parts, number)
    names = [f"gpu-node-{number:05d}" for number in range(nodes)]
    await parts.ranking.catch_up_slowly()
    gc.collect()  # as a replica does once it has listed everything
    gc.freeze()
    gc.set_threshold(GARBAGE)
    with ProcessPoolExecutor(1, get_context("spawn")) as callers:
        async with api.serving(parts) as way:
            of = partial(call, way.url, way.extender, names)
            await load(parts, callers, partial(of, 1.0, hostile=False))  # all that is made at the first call
            usual = await load(parts, callers, partial(of, seconds, hostile=False))
            beside = await load(parts, callers, partial(of, seconds, hostile=True), hostile=True)
    return usual, beside


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each of the two loads (default: %(default)s)")
    arguments = parser.parse_args()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        usual, beside = runner.run(_measure(arguments.nodes, arguments.seconds))
    show("beside ordinary ones", usual)
    show("beside hostile ones", beside)
    close(
        name="hostile",
        value=beside.pods / beside.lasted,
        unit="Pods/s",
        reference=usual.pods / usual.lasted,
        goal=GOAL,
    )


if __name__ == "__main__":
    main()
