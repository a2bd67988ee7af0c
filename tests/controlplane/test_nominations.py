"""Nominations on a real API server and kube-scheduler: the nominated node is tried first, and holds nobody up."""

import base64
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import aiohttp
import pytest_asyncio
from controlplane.conftest import StartWebhooks
from controlplane.gpu_cluster import (
    add_node,
    at_home,
    audit_devices,
    bound,
    create,
    gpu,
    metric,
    pods_path,
    remove,
    settled,
)

from localplane import chart
from localplane.admin import AdminClient, JsonObject
from localplane.koord import NAME, start_koord_scheduler
from localplane.plane import ControlPlane
from localplane.replicas import Replicas
from localplane.waiting import until

Schedule = Callable[[Replicas], Awaitable[None]]
HALF, WHOLE, TOO_MANY = {"kubernetes.io/gpu": "50"}, {"nvidia.com/gpu": "1"}, {"nvidia.com/gpu": "3"}
NOMINATES = {"nominateFrom": 2}
LASTING = {**NOMINATES, "assumeSeconds": 600}
SECRET = f"/api/v1/namespaces/{chart.NAMESPACE}/secrets/koordgate-scheduler-tls"


@pytest_asyncio.fixture(loop_scope="session")
async def nodes(plane: ControlPlane, admin: AdminClient, namespace: str) -> AsyncIterator[list[str]]:
    """Three nodes with two cards each."""
    names = [f"{namespace}-{number}" for number in range(3)]
    for name in names:
        await add_node(plane, admin, name, namespace, [gpu(name, 0), gpu(name, 1)])
    yield names
    await remove(admin, namespace, names)


@pytest_asyncio.fixture(loop_scope="session")
async def schedule(plane: ControlPlane, installed: list[JsonObject]) -> AsyncIterator[Schedule]:
    """Start koord-scheduler with these replicas; it ends with the test."""

    async def start(webhook: Replicas) -> None:
        await start_koord_scheduler(plane, installed, webhook.extender)

    yield start
    await plane.stop_scheduler(NAME)


async def ask(
    admin: AdminClient, webhook: Replicas, folder: Path, namespace: str, name: str, nodes: list[str]
) -> list[str]:
    """Ask about a Pod as kube-scheduler does, which does not run; returns the node that it is sent to."""
    secret = {key: base64.b64decode(value) for key, value in (await admin.get(SECRET))["data"].items()}
    (file := folder / "pair.pem").write_bytes(secret["tls.key"] + secret["tls.crt"])
    trust = ssl.create_default_context(cadata=secret["ca.crt"].decode())
    trust.load_cert_chain(file)
    trust.check_hostname = False
    host, port = webhook.extender
    body = {"Pod": await admin.get(pods_path(namespace, name)), "NodeNames": nodes}
    async with (
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=trust)) as session,
        session.post(f"https://{host}:{port}/scheduler/filter", json=body) as answer,
    ):
        sent: list[str] = (await answer.json())["NodeNames"]
        return sent


async def nominated(
    admin: AdminClient, webhook: Replicas, folder: Path, namespace: str, nodes: list[str]
) -> dict[str, str]:
    """Create three Pods, ask about the first, and wait until nodes are nominated for the others."""
    await create(admin, [at_home(name, namespace, WHOLE) for name in ("first", "second", "third")])
    await ask(admin, webhook, folder, namespace, "first", nodes)

    async def both() -> dict[str, str]:
        found = await nominations(admin, namespace)
        return found if len(found) == 2 else {}

    return await until(both, "nodes are nominated for the Pods that wait")


async def nominations(admin: AdminClient, namespace: str) -> dict[str, str]:
    """The Pods that wait and for which a node is nominated, and which."""
    found = await admin.items(pods_path(namespace))
    waiting = {one["metadata"]["name"]: one["status"] for one in found if not one["spec"].get("nodeName")}
    return {name: status["nominatedNodeName"] for name, status in waiting.items() if status.get("nominatedNodeName")}


async def counted(webhook: Replicas, how: str) -> float:
    return await metric(webhook, "koordgate_nominations_total", how=how)


async def test_pods_of_a_burst_are_bound_by_nominations_and_none_is_left(
    webhooks: StartWebhooks, schedule: Schedule, admin: AdminClient, namespace: str, nodes: list[str]
) -> None:
    webhook = await webhooks(count=2, overrides={"scheduler": NOMINATES})
    await create(admin, [at_home(f"large-{number}", namespace, TOO_MANY) for number in range(2)])
    await create(admin, [at_home(f"half-{number}", namespace, HALF) for number in range(12)])

    await schedule(webhook)

    left = await settled(admin, namespace, waiting=2)
    assert {one["metadata"]["name"] for one in left} == {"large-0", "large-1"}
    await audit_devices(admin, namespace)
    assert await counted(webhook, "written") > 0

    async def none_left() -> bool:
        return not await nominations(admin, namespace)

    await until(none_left, "no Pod that waits has a nomination")


async def test_a_pod_of_higher_priority_evicts_one_other_while_nominated_ones_wait(
    webhooks: StartWebhooks, schedule: Schedule, admin: AdminClient, namespace: str, nodes: list[str]
) -> None:
    about = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "nominations-high"}}
    await admin.apply({**about, "value": 1000})
    webhook = await webhooks(count=2, overrides={"scheduler": NOMINATES})
    await schedule(webhook)
    standing = [f"low-{number}" for number in range(6)]
    await create(admin, [at_home(name, namespace, WHOLE) for name in standing])
    for name in standing:
        await bound(admin, namespace, name)

    urgent = at_home("urgent", namespace, WHOLE, priorityClassName="nominations-high")
    await create(admin, [urgent, *(at_home(f"more-{number}", namespace, WHOLE) for number in range(8))])

    await bound(admin, namespace, "urgent")
    await settled(admin, namespace, waiting=8)
    left = {one["metadata"]["name"] for one in await admin.items(pods_path(namespace))}
    assert len(left.intersection(standing)) == 5, "one was evicted"
    await audit_devices(admin, namespace)


async def test_a_node_that_is_cordoned_after_its_nomination_is_not_used(
    webhooks: StartWebhooks, schedule: Schedule, admin: AdminClient, namespace: str, nodes: list[str], tmp_path: Path
) -> None:
    webhook = await webhooks(count=1, overrides={"scheduler": LASTING})
    for_whom = await nominated(admin, webhook, tmp_path, namespace, nodes)
    closed = for_whom["second"]
    await admin.patch(f"/api/v1/nodes/{closed}", {"spec": {"unschedulable": True}})

    await schedule(webhook)

    for name in ("first", "second", "third"):
        assert (await bound(admin, namespace, name))["spec"]["nodeName"] != closed
    await audit_devices(admin, namespace)


async def test_nominations_are_withdrawn_where_kube_scheduler_does_not_come(
    webhooks: StartWebhooks, admin: AdminClient, namespace: str, nodes: list[str], tmp_path: Path
) -> None:
    webhook = await webhooks(count=1, overrides={"scheduler": {**NOMINATES, "assumeSeconds": 3}})
    await nominated(admin, webhook, tmp_path, namespace, nodes)

    async def withdrawn() -> bool:
        return await counted(webhook, "withdrawn") == 2

    await until(withdrawn, "both are withdrawn")
    assert await nominations(admin, namespace) == {}
