"""The adoption drill: 200 running Pods of six systems, then koordgate's own until all is full, and an audit.

The auditor reads what each system wrote by parsers of its own. It knows where each Pod was put, as the test put it.
"""

import asyncio
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any, NamedTuple

from controlplane.gpu_cluster import (
    DEVICES,
    GIB,
    add_node,
    amount_of,
    at_home,
    create,
    gpu,
    metric,
    pods_path,
    remove,
    scheduling,
    settled,
    uuid_of,
)

from localplane.admin import AdminClient, ApiError, JsonObject
from localplane.plane import ControlPlane
from localplane.waiting import until

EXEMPT = "kube-system"  # Pods that are older than koordgate have not passed its admission either
NODES = 5
CARDS = 8
TOTAL = 80 * GIB
STARTED, STARTED_S = "2026-11-20T10:00:05Z", 1_795_168_805
SETTINGS = {
    "scheduler": {"assumeSeconds": 600},
    "adopt": {"peers": ["hami", "volcano", "gpushare", "kai"], "reservationNamespaces": [EXEMPT]},
    "dialects": {"gpushare": {"memoryUnit": "1Gi"}},
    "ledger": {"reconcileSeconds": 2},
}
ASKED = {100: 8, 50: 14, 25: 12, 10: 40}  # percent of a card -> Pods


class Given(NamedTuple):
    """What one Pod has of a card, as the test put it: bytes and percent of the compute."""

    system: str
    card: str
    memory: int
    core: int


def foreign(node: str, at: int) -> Iterator[tuple[JsonObject, Given]]:
    """Forty running Pods of a node, and what each has.

    On the first node, cards were numbered otherwise when they started.
    """

    def made(name: str, system: str, card: int, mib: int, core: int, **about: Any) -> tuple[JsonObject, Given]:
        pod = at_home(f"{node}-{name}", about.pop("namespace", EXEMPT), about.pop("asks", {}), **about, nodeName=node)
        return pod, Given(system, uuid_of(node, card), mib << 20, core)

    index = 3 if at == 0 else 2
    for n in range(19):
        card, mib, core = (0, 4096, 5) if n < 10 else (1, 8192, 0)
        told = {"hami.io/vgpu-devices-allocated": f"{uuid_of(node, card)},NVIDIA,{mib},{core}:;"}
        asks = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": str(mib)}
        yield made(f"h{n}", "hami", card, mib, core, asks=asks, annotations=told, schedulerName="hami-scheduler")
    for n in range(6):
        told, asks = {"volcano.sh/gpu-index": str(index)}, {"volcano.sh/gpu-memory": "10240"}
        yield made(f"v{n}", "volcano", 2, 10240, 0, asks=asks, annotations=told, schedulerName="volcano")
    for n in range(5):
        told = {"ALIYUN_COM_GPU_MEM_IDX": "3", "ALIYUN_COM_GPU_MEM_POD": "10", "ALIYUN_COM_GPU_MEM_DEV": "80"}
        yield made(f"g{n}", "gpushare", 3, 10240, 0, asks={"aliyun.com/gpu-mem": "10"}, annotations=told)
    group = {"runai-gpu-group": f"group-{node}"}
    reserved = {"run.ai/reserve_for_gpu_index": uuid_of(node, 4)}
    yield made("kr", "kai", 4, 81920, 100, labels=group, annotations=reserved, asks={"nvidia.com/gpu": "1"})
    for n in range(3):
        told = {"gpu-fraction": "0.3"}
        about = {"labels": group, "annotations": told, "schedulerName": "kai-scheduler", "namespace": node[:-2]}
        yield made(f"k{n}", "kai fraction", 4, 24576, 30, **about)
    for n in range(5):
        amounts = {f"koordinator.sh/{tail}": "10" for tail in ("gpu-core", "gpu-memory-ratio")}
        entry = {"minor": 5, "id": uuid_of(node, 5), "resources": amounts | {"koordinator.sh/gpu-memory": "8Gi"}}
        told = {"scheduling.koordinator.sh/device-allocated": json.dumps({"gpu": [entry]})}
        yield made(f"o{n}", "koordinator", 5, 8192, 10, asks=amounts, annotations=told, schedulerName="koord-scheduler")
    yield made("p0", "kubelet", 6, 81920, 100, asks={"nvidia.com/gpu": "1"})


async def run_foreign(admin: AdminClient, node: str, at: int, given: dict[str, Given]) -> None:
    """Create a node's Pods as their systems left them, and write what its reporter would."""
    pods = list(foreign(node, at))
    await create(admin, [pod for pod, _ in pods])
    running = [{"name": "main", "ready": True, "restartCount": 0, "image": "", "imageID": ""}]
    state = {"state": {"running": {"startedAt": STARTED}}}
    status = {"phase": "Running", "startTime": STARTED, "containerStatuses": [running[0] | state]}
    plugged = ""
    for pod, has in pods:
        namespace, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
        found = await admin.patch(pods_path(namespace, name, "status"), {"status": status})
        given[found["metadata"]["uid"]] = has
        plugged = found["metadata"]["uid"] if has.system == "kubelet" else plugged
    cards = [uuid_of(node, minor) for minor in range(CARDS)]
    minors = {str(minor): card for minor, card in enumerate(cards)}
    now = {"since": STARTED_S + 3600, "after": STARTED_S + 3500, "indexes": cards, "minors": minors}
    before = [*cards[:2], "GPU-gone", *cards[2:]] if at == 0 else cards
    numbers = [{"since": STARTED_S - 3600, "indexes": before, "minors": minors}, now]
    checkpoint = [{"podUID": plugged, "containerName": "main", "resourceName": "nvidia.com/gpu"}]
    told = {
        "koordgate.io/device-numbers": json.dumps(numbers),
        "node.koordinator.sh/devices-checkpoints": json.dumps([checkpoint[0] | {"deviceIDs": [cards[6]]}]),
    }
    await admin.patch(f"{DEVICES}/{node}", {"metadata": {"annotations": told}})


async def audit(admin: AdminClient, given: dict[str, Given]) -> tuple[dict[str, tuple[int, int]], int]:
    """Sum what each card's Pods have; fail where it is more than the card has. Returns the sums, and our Pods."""
    memory: dict[str, int] = defaultdict(int)
    core: dict[str, int] = defaultdict(int)
    ours, seen = 0, set()
    for pod in await admin.items("/api/v1/pods"):
        uid = pod["metadata"]["uid"]
        seen.add(uid)
        if uid in given:
            has = given[uid]
            counts = has.system != "kai fraction"  # it is within the card that the reservation Pod has
            memory[has.card] += has.memory if counts else 0
            core[has.card] += has.core if counts else 0
            continue
        text = (pod["metadata"].get("annotations") or {}).get("scheduling.koordinator.sh/device-allocated")
        for entry in json.loads(text)["gpu"] if text else ():
            ours += 1
            said = {name.partition("/")[2]: amount_of(amount) for name, amount in entry["resources"].items()}
            memory[entry["id"]] += said["gpu-memory"]
            core[entry["id"]] += said["gpu-core"]
    assert given.keys() <= seen, "a Pod of another system is gone"
    over = {card: (memory[card], core[card]) for card in memory if memory[card] > TOTAL or core[card] > 100}
    assert not over, f"given twice: {over}"
    return {card: (memory[card], core[card]) for card in memory}, ours


async def persistently(admin: AdminClient, pods: Iterable[JsonObject]) -> None:
    """Create Pods one by one, as controllers do: again where a webhook was killed while it was asked."""
    for made in pods:
        while True:
            try:
                await create(admin, [made])
                break
            except ApiError as error:
                if error.status != HTTPStatus.INTERNAL_SERVER_ERROR or "failed calling webhook" not in error.message:
                    raise


async def test_beside_200_pods_of_six_systems_nothing_is_given_twice_and_nothing_is_wasted(
    plane: ControlPlane, admin: AdminClient, namespace: str, installed: list[JsonObject], tmp_path: Path
) -> None:
    nodes = [f"{namespace}-{at}" for at in range(NODES)]
    await plane.ensure_namespace(EXEMPT)
    given: dict[str, Given] = {}
    for at, node in enumerate(nodes):
        await add_node(plane, admin, node, namespace, [gpu(node, minor) for minor in range(CARDS)])
        await run_foreign(admin, node, at, given)
    assert len(given) == 200
    try:
        async with scheduling(plane, installed, tmp_path, 2, SETTINGS) as replicas:
            pods = [
                at_home(f"ours-{percent}-{n}", namespace, {"kubernetes.io/gpu": str(percent)})
                for percent, count in ASKED.items()
                for n in range(count)
            ]
            half = len(pods) // 2
            await create(admin, pods[:half])
            replicas.kill(0)
            creating = asyncio.create_task(persistently(admin, pods[half:]))
            await replicas.start(0)
            await creating
            waiting = await settled(admin, namespace)

            cards, ours = await audit(admin, given)
            assert ours >= 30
            assert {one["metadata"]["name"].split("-")[1] for one in waiting} >= {"100", "10"}
            least = min(int(one["metadata"]["name"].split("-")[1]) for one in waiting)
            left = {card: (100 * (TOTAL - memory) // TOTAL, 100 - core) for card, (memory, core) in cards.items()}
            assert [card for card, free in left.items() if min(free) >= least] == [], "a Pod waits although it fits"

            async def counted() -> bool:
                """Each replica counts all of them, and finds no conflict."""
                wanted = {"hami": 95, "volcano": 30, "gpushare": 25, "kai": 20}
                found = [await metric(replicas, "koordgate_adopted_pods", peer=peer) for peer in wanted]
                return found == [2 * count for count in wanted.values()]

            await until(counted, "both replicas count every Pod")
            assert await metric(replicas, "koordgate_adoption_conflicts") == 0
            assert await metric(replicas, "koordgate_devices_held_twice") == 0
    finally:
        for pod in await admin.items(f"/api/v1/namespaces/{EXEMPT}/pods"):
            if pod["metadata"]["uid"] in given:
                await admin.delete(pods_path(EXEMPT, pod["metadata"]["name"]), {"gracePeriodSeconds": 0})
        await remove(admin, namespace, nodes)
