"""`koordgate packing` and `defrag` on a real API server with koord-scheduler: budgets govern each eviction."""

import argparse
import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
import pytest_asyncio
from controlplane.conftest import StartWebhooks
from controlplane.gpu_cluster import add_gpu_node, audit, ledger, pod, pods_path, remove

from allocator.vocabulary.names import DEVICE_ALLOCATED
from console.packing.command import COMMAND as PACKING
from console.packing.defrag import COMMAND as DEFRAG
from koordgate.cli import Command
from localplane.admin import AdminClient, JsonObject
from localplane.koord import NAME, start_koord_scheduler
from localplane.plane import ControlPlane
from localplane.waiting import until

Run = Callable[..., Awaitable[tuple[int, str, str]]]
CONTROLLER = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "serve", "uid": "uid-of-serve", "controller": True}


@pytest_asyncio.fixture(loop_scope="session")
async def nodes(plane: ControlPlane, admin: AdminClient, namespace: str) -> AsyncIterator[tuple[str, str]]:
    names = f"{namespace}-a", f"{namespace}-b"
    for name in names:
        await add_gpu_node(plane, admin, name, gpus=4)
    yield names
    await remove(admin, namespace, names)


@pytest_asyncio.fixture(loop_scope="session")
async def packed(plane: ControlPlane, installed: list[JsonObject], webhooks: StartWebhooks) -> AsyncIterator[None]:
    """koord-scheduler, and two replicas that pack: no Pod of four cards is typical, and one is to find room."""
    settings = {"ledger": {"reconcileSeconds": 0.5}, "scheduler": {"preference": "packing"}}
    replicas = await webhooks(count=2, overrides=settings)
    await start_koord_scheduler(plane, installed, replicas.extender)
    yield
    await plane.stop_scheduler(NAME)


@pytest.fixture
def run(as_administrator: None, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    settings = tmp_path / "packed.yaml"
    settings.write_text("scheduler: {preference: packing}\n")

    async def one(of: Command, *words: str) -> tuple[int, str, str]:
        parser = argparse.ArgumentParser()
        of.arguments(parser)
        status = await asyncio.to_thread(of.run, parser.parse_args([*words, "--config", str(settings)]))
        told = capsys.readouterr()
        return status, told.out, told.err

    return one


def serving(name: str, namespace: str) -> JsonObject:
    made = pod(name, namespace, {"nvidia.com/gpu": "1"})
    made["metadata"] |= {"labels": {"app": "serve"}, "ownerReferences": [CONTROLLER]}
    return made


async def test_a_pod_is_moved_only_as_its_budget_allows_and_a_larger_one_fits_after_that(
    packed, admin: AdminClient, namespace: str, nodes: tuple[str, str], run: Run
) -> None:
    for each in nodes:
        await admin.patch(f"/api/v1/nodes/{each}", {"metadata": {"labels": {"kubernetes.io/hostname": each}}})

    async def bound(name: str) -> str:
        async def on() -> str:
            return str((await admin.get(pods_path(namespace, name)))["spec"].get("nodeName") or "")

        return str(await until(on, f"{name} is bound", poll_s=0.2))

    async def run_pod(made: JsonObject) -> str:
        """Create a Pod, and let it run; returns its node."""
        await admin.create(pods_path(namespace), made)
        node = await bound(made["metadata"]["name"])
        running = {"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}
        await admin.patch(f"{pods_path(namespace, made['metadata']['name'])}/status", running)
        return node

    wide = await run_pod(serving("serve-1", namespace))
    (full,) = {*nodes} - {wide}
    other = {"nodeSelector": {"kubernetes.io/hostname": full}}
    assert await run_pod(pod("stays", namespace, {"nvidia.com/gpu": "2"}, **other)) == full
    budgets = f"/apis/policy/v1/namespaces/{namespace}/poddisruptionbudgets"
    spec = {"minAvailable": 1, "selector": {"matchLabels": {"app": "serve"}}}
    await admin.create(
        budgets, {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "b"}, "spec": spec}
    )
    status, out, _ = await run(DEFRAG, "--for", "4", "-o", "json")
    found = json.loads(out)
    assert (status, found["rooms"]) == (3, [])
    assert {
        "pod": f"{namespace}/serve-1",
        "node": wide,
        "why": "PodDisruptionBudget b: it allows no disruption now",
    } in (found["stays"])

    allowed = {"disruptionsAllowed": 1, "currentHealthy": 2, "desiredHealthy": 1, "expectedPods": 2}
    await admin.patch(f"{budgets}/b/status", {"status": {**allowed, "observedGeneration": 0}})
    status, out, _ = await run(PACKING, "--for", "4")
    assert status == 3
    assert f"{namespace}/serve-1" in out
    status, out, _ = await run(DEFRAG, "--for", "4", "--apply", "--yes", "--timeout", "1")
    assert status == 3, "the API server does not evict by a budget that its controller has not seen"
    assert f"Pod {namespace}/serve-1 was not evicted" in out
    assert await bound("serve-1") == wide

    async def made_again() -> None:
        """Stands in for the ReplicaSet controller."""

        async def gone() -> bool:
            listed = (await admin.get(pods_path(namespace)))["items"]
            return "serve-1" not in {one["metadata"]["name"] for one in listed}

        await until(gone, "serve-1 is evicted", poll_s=0.1)
        await admin.create(pods_path(namespace), serving("serve-2", namespace))

    generation = (await admin.get(f"{budgets}/b"))["metadata"]["generation"]
    await admin.patch(f"{budgets}/b/status", {"status": {**allowed, "observedGeneration": generation}})
    controller = asyncio.create_task(made_again())
    status, out, err = await run(DEFRAG, "--for", "4", "--apply", "--yes", "--timeout", "60", "-o", "json")
    await controller
    assert status == 0, (out, err)
    (done,) = json.loads(out)["made"]
    assert (done["outcome"], done["became"], done["node"]) == ("moved", f"{namespace}/serve-2", full)
    await audit(admin)

    await admin.create(pods_path(namespace), pod("large", namespace, {"nvidia.com/gpu": "4"}))
    assert await bound("large") == wide


async def test_two_halves_on_two_cards_of_a_node_are_joined_and_the_card_is_compared(
    scheduler, admin: AdminClient, namespace: str, nodes: tuple[str, str], run: Run
) -> None:
    await admin.patch(f"/api/v1/nodes/{nodes[1]}", {"spec": {"unschedulable": True}})

    async def create(name: str, gpus: str) -> str:
        """Create a Pod of the controller; returns the minors of its cards."""
        made = pod(name, namespace, {"kubernetes.io/gpu": gpus})
        made["metadata"] |= {"ownerReferences": [CONTROLLER]}
        await admin.create(pods_path(namespace), made)

        async def given() -> str:
            found = await admin.get(pods_path(namespace, name))
            return str(found["metadata"].get("annotations", {}).get(DEVICE_ALLOCATED) or "")

        entries = json.loads(await until(given, f"{name} is bound", poll_s=0.2))["gpu"]
        return ",".join(str(one["minor"]) for one in entries)

    async def gone(name: str) -> None:
        async def left() -> bool:
            listed = (await admin.get(pods_path(namespace)))["items"]
            return name not in {one["metadata"]["name"] for one in listed}

        await until(left, f"{name} is gone", poll_s=0.1)

    async def made_again(old: str) -> str:
        """Stands in for the ReplicaSet controller."""
        await gone(old)
        return await create("serve-again", "50")

    first = await create("serve-1", "50")
    fillers = [await create(f"filler-{at}", gpus) for at, gpus in enumerate(("50", "100", "100"))]
    second = await create("serve-2", "50")
    assert fillers[0] == first != second
    for at in range(3):
        await admin.delete(f"{pods_path(namespace, f'filler-{at}')}?gracePeriodSeconds=0")
        await gone(f"filler-{at}")

    async def released() -> bool:
        return len((await ledger(admin))[nodes[0]]) == len(("serve-1", "serve-2"))

    await until(released, "the ledger has released what the fillers held", poll_s=0.1)
    status, out, err = await run(DEFRAG, "--for", "3", "-o", "json")
    assert status == 0, (out, err)
    (room,) = json.loads(out)["rooms"]
    (move,) = room["moves"]
    assert (move["to"]["node"], move["name"]) == (nodes[0], "serve-2"), (out, err)
    assert [str(one["minor"]) for one in move["to"]["devices"]] == [first]

    controller = asyncio.create_task(made_again("serve-2"))
    status, out, err = await run(DEFRAG, "--for", "3", "--apply", "--yes", "--timeout", "60", "-o", "json")
    assert (status, await controller) == (0, first), (out, err)
    (done,) = json.loads(out)["made"]
    assert (done["outcome"], done["became"]) == ("moved", f"{namespace}/serve-again")
    await audit(admin)
