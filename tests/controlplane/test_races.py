"""Many binds at once, several replicas, and processes that die in between: nothing is given twice or lost."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator

import aiohttp
import pytest_asyncio
from controlplane.gpu_cluster import (
    DEVICE_ALLOCATED,
    add_gpu_node,
    allocated,
    audit,
    binding,
    ledger,
    pod,
    pods_path,
)

from localplane.admin import AdminClient, ApiError, JsonObject
from localplane.plane import ControlPlane
from localplane.waiting import until

NODES = 20
GPUS = 8
PODS = 600
AT_ONCE = 32  # creations; binds all go at once
PATIENCE_S = 240.0


@pytest_asyncio.fixture(loop_scope="session")
async def nodes(plane: ControlPlane, admin: AdminClient, namespace: str) -> AsyncIterator[list[str]]:
    names = [f"{namespace}-n{number}" for number in range(NODES)]
    await asyncio.gather(*(add_gpu_node(plane, admin, name, GPUS) for name in names))
    yield names
    await admin.delete(pods_path(namespace), {"gracePeriodSeconds": 0})
    for name in names:
        await admin.delete(f"/api/v1/nodes/{name}")
        await admin.delete(f"/apis/scheduling.koordinator.sh/v1alpha1/devices/{name}")


@pytest_asyncio.fixture(loop_scope="session")
async def binder(plane: ControlPlane, installed: list[JsonObject]) -> AsyncIterator[AdminClient]:
    """koord-scheduler's own account, with its own rights."""
    token = await plane.service_account_token("koordgate-system", "koord-scheduler")
    async with plane.admin(token) as client:
        yield client


class Binds:
    """Bind every Pod to a node fixed in advance; retry as kube-scheduler does until each has an answer."""

    def __init__(self, admin: AdminClient, binder: AdminClient, namespace: str, nodes: list[str]) -> None:
        self.admin, self.binder, self.namespace, self.nodes = admin, binder, namespace, nodes
        self.uids: dict[str, str] = {}
        self.outcomes: Counter[str] = Counter()
        self.tries: Counter[str] = Counter()

    def node_of(self, name: str) -> str:
        return self.nodes[int(name.rpartition("-")[2]) % len(self.nodes)]

    async def create(self, count: int) -> None:
        gate = asyncio.Semaphore(AT_ONCE)

        async def one(name: str) -> None:
            async with gate:
                created = await self.admin.create(
                    pods_path(self.namespace), pod(name, self.namespace, {"kubernetes.io/gpu": "50"})
                )
                self.uids[name] = created["metadata"]["uid"]

        await asyncio.gather(*(one(f"half-{number}") for number in range(count)))

    async def bind_all(self) -> None:
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.gather(*(self._bind(name) for name in self.uids))

    async def _bind(self, name: str) -> None:
        body = binding(self.namespace, name, self.node_of(name), self.uids[name])
        path = pods_path(self.namespace, name, "binding")

        async def said() -> str | None:
            self.tries["all"] += 1
            try:
                await self.binder.create(path, body)
            except ApiError as error:
                if "is not bound:" in error.message:
                    return "refused"
                if "already" in error.message:
                    return "bound"  # by an earlier try whose answer was lost
                self.tries[f"{error.status}"] += 1
                return None
            except (aiohttp.ClientError, TimeoutError):
                self.tries["connection"] += 1
                return None
            return "bound"

        self.outcomes[await until(said, f"{name} is bound or refused", deadline_s=PATIENCE_S, poll_s=0.2)] += 1

    async def some_are_bound(self, at_least: int) -> None:
        async def enough() -> bool:
            return self.outcomes["bound"] >= at_least

        await until(enough, f"{at_least} Pods are bound", deadline_s=PATIENCE_S)


async def check(admin: AdminClient, namespace: str) -> int:
    """Audit annotations; the ledger must hold exactly the same, Pod by Pod. Returns the number of holding Pods."""
    await audit(admin)
    said: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for found in await admin.items(pods_path(namespace)):
        if found["spec"].get("nodeName"):
            key = found["spec"]["nodeName"], found["metadata"]["uid"]
            assert DEVICE_ALLOCATED in found["metadata"]["annotations"], "bound without an allocation"
            said[key] = [(s["id"], s["resources"]["kubernetes.io/gpu-core"]) for s in allocated(found)]
    held = {
        (node, uid): [(d["id"], str(d["amounts"]["gpu-core"])) for d in devices]
        for node, holdings in (await ledger(admin)).items()
        if node.startswith(namespace)
        for uid, devices in holdings.items()
    }
    assert held == said
    return len(said)


async def test_600_concurrent_binds_by_three_replicas_give_no_gpu_twice(
    webhooks, admin: AdminClient, binder: AdminClient, namespace: str, nodes: list[str]
) -> None:
    await webhooks(count=3)
    binds = Binds(admin, binder, namespace, nodes)
    await binds.create(PODS)

    await binds.bind_all()

    room = NODES * GPUS * 2
    assert binds.outcomes == {"bound": room, "refused": PODS - room}
    assert await check(admin, namespace) == room
    assert all(set(sums.values()) == {100} for sums in (await audit(admin)).values())


async def test_a_replica_killed_amid_binds_loses_and_doubles_nothing(
    webhooks, admin: AdminClient, binder: AdminClient, namespace: str, nodes: list[str]
) -> None:
    replicas = await webhooks(count=3)
    binds = Binds(admin, binder, namespace, nodes)
    await binds.create(PODS // 2)

    async def kill_one_after_another() -> None:
        for number in range(3):
            await binds.some_are_bound(70 * (number + 1))
            replicas.kill(number)
            await replicas.start(number)

    await asyncio.gather(binds.bind_all(), kill_one_after_another())

    room = min(PODS // 2, NODES * GPUS * 2)
    assert binds.outcomes["bound"] == room
    assert await check(admin, namespace) == room


async def test_a_restart_of_the_api_server_amid_binds_loses_and_doubles_nothing(
    webhooks, plane: ControlPlane, admin: AdminClient, binder: AdminClient, namespace: str, nodes: list[str]
) -> None:
    await webhooks(count=3)
    binds = Binds(admin, binder, namespace, nodes)
    await binds.create(PODS // 2)

    async def restart() -> None:
        await binds.some_are_bound(100)
        await plane.restart_apiserver()

    await asyncio.gather(binds.bind_all(), restart())

    room = min(PODS // 2, NODES * GPUS * 2)
    assert binds.outcomes["bound"] == room
    assert await check(admin, namespace) == room
    interrupted = sum(number for kind, number in binds.tries.items() if kind != "all")
    assert interrupted > 0
