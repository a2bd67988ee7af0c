"""A real Kueue in front of koordgate: what its queues count of Jobs and of Pods, as docs/use/quotas.md says."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
import yaml
from controlplane.gpu_cluster import GIB, add_gpu_node, allocated, audit, bound, pod, pods_path
from controlplane.kueue import GATE, QUEUE, apply_queue, finish, held_back, install, job, pods_of, queues, running, uses
from controlplane.needs import missing

from console.data import data_folder
from localplane import chart
from localplane.admin import AdminClient, JsonObject
from localplane.binaries import Binaries, BuildError, find_or_build
from localplane.koord import start_koord_scheduler
from localplane.plane import CONTROL_PLANE, ControlPlane
from localplane.replicas import Replicas
from localplane.waiting import until

RECIPE = data_folder("examples") / "recipes" / "kueue"
CORE, RATIO, MEMORY = (f"kubernetes.io/gpu-{name}" for name in ("core", "memory-ratio", "memory"))
CARD = 80 * GIB
_NUMBERS = itertools.count(1)
JOBS = "/apis/batch/v1/namespaces/{}/jobs"


@pytest.fixture(scope="module")
def with_kueue() -> Binaries:
    try:
        return find_or_build((*CONTROL_PLANE, "helm", "kueue"))
    except BuildError as error:
        missing(str(error))


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def cluster(with_kueue: Binaries, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ControlPlane]:
    """A control plane with its controllers, koordgate, and a node of eight cards."""
    # Nodes without a kubelet are taken for dead by the controller that is left out.
    async with ControlPlane(with_kueue, controller_manager=True, controllers="*,-node-lifecycle-controller") as plane:
        objects = chart.render(with_kueue)
        await chart.install(plane, objects)
        replicas = await Replicas.installed(
            plane, objects, tmp_path_factory.mktemp("kueue"), overrides={"ledger": {"reconcileSeconds": 0.5}}
        )
        async with replicas, plane.admin() as admin:
            await start_koord_scheduler(plane, objects, replicas.extender)
            await add_gpu_node(plane, admin, "node-1", gpus=8)
            yield plane


@pytest_asyncio.fixture(loop_scope="session")
async def root(cluster: ControlPlane) -> AsyncIterator[AdminClient]:
    async with cluster.admin() as client:
        yield client


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def settings(cluster: ControlPlane, with_kueue: Binaries) -> JsonObject:
    """The settings of Kueue, which is installed."""
    return await install(cluster, with_kueue)


@pytest_asyncio.fixture(loop_scope="session")
async def stock(
    cluster: ControlPlane, with_kueue: Binaries, settings: JsonObject, tmp_path: Path
) -> AsyncIterator[None]:
    """Kueue without settings about resources."""
    async with running(cluster, with_kueue, settings, tmp_path, {}):
        yield


@pytest_asyncio.fixture(loop_scope="session")
async def space(cluster: ControlPlane, root: AdminClient) -> AsyncIterator[str]:
    """A namespace of this test's own; what it holds ends with it."""
    name = f"team-{next(_NUMBERS)}"
    await cluster.ensure_namespace(name)
    yield name
    await root.delete(f"/apis/batch/v1/namespaces/{name}/jobs", {"propagationPolicy": "Background"})
    await root.delete(pods_path(name), {"gracePeriodSeconds": 0})

    async def gone() -> bool:
        return not await root.items(pods_path(name))

    await until(gone, f"the Pods of {name} are gone")


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def counting(
    cluster: ControlPlane, with_kueue: Binaries, settings: JsonObject, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[None]:
    """Kueue with the recipe's settings."""
    resources = yaml.safe_load((RECIPE / "settings.yaml").read_text())["resources"]
    async with running(cluster, with_kueue, settings, tmp_path_factory.mktemp("counting"), resources):
        yield


def cards(percent: int) -> dict[str, str]:
    """So many percent of a card, as Kueue counts them with the settings."""
    return {CORE: str(percent), RATIO: str(percent), MEMORY: str(CARD * percent // 100)}


def queued(made: JsonObject, queue: str) -> JsonObject:
    made["metadata"]["labels"] = {QUEUE: queue}
    return made


async def job_bound(root: AdminClient, namespace: str, name: str, count: int = 1) -> list[JsonObject]:
    """Wait until all Pods of a Job are bound; returns them."""

    async def all_bound() -> list[JsonObject]:
        found = await pods_of(root, namespace, name)
        return found if len(found) == count and all(one["spec"].get("nodeName") for one in found) else []

    return await until(all_bound, f"{count} Pods of {name} are bound")


async def test_without_settings_a_job_counts_by_the_names_of_its_template_and_others_wait_for_a_queue_that_covers_them(
    root: AdminClient, stock: None, space: str
) -> None:
    jobs = JOBS.format(space)
    await apply_queue(root, queues("plain", space, {"nvidia.com/gpu": "3"}), "plain")
    await root.create(jobs, job("first", space, "plain", {"nvidia.com/gpu": "2"}))
    (first,) = await job_bound(root, space, "first")
    assert first["spec"]["schedulerName"] == "koord-scheduler"
    assert len(allocated(first)) == 2
    await uses(root, "plain", {"nvidia.com/gpu": "2"})

    await root.create(jobs, job("second", space, "plain", {"nvidia.com/gpu": "2"}))
    await held_back(root, space, "second", "insufficient unused quota for nvidia.com/gpu")
    assert await pods_of(root, space, "second") == []
    await root.create(jobs, job("shares", space, "plain", {"kubernetes.io/gpu": "50"}))
    await held_back(root, space, "shares", "resource kubernetes.io/gpu unavailable in ClusterQueue")
    await root.create(pods_path(space), queued(pod("alone", space, {"nvidia.com/gpu": "1"}), "plain"))
    await held_back(root, space, "alone", "unavailable in ClusterQueue")

    await finish(root, space, first["metadata"]["name"])
    await job_bound(root, space, "second")
    await uses(root, "plain", {"nvidia.com/gpu": "2"})


async def test_the_recipe_lets_eight_cards_run_and_what_is_beyond_waits(
    root: AdminClient, counting: None, space: str
) -> None:
    objects = list(yaml.safe_load_all((RECIPE / "queues.yaml").read_text()))
    objects[-1]["metadata"]["namespace"] = space
    await apply_queue(root, objects, "training")
    app = yaml.safe_load((RECIPE / "app.yaml").read_text())
    jobs = JOBS.format(space)
    await root.create(jobs, app)
    for found in await job_bound(root, space, "fine-tune", 2):
        assert len(allocated(found)) == 2
    await uses(root, "training", {"cpu": "16", "memory": "128Gi", **cards(400)})

    await root.create(jobs, {**app, "metadata": {**app["metadata"], "name": "again"}})
    await job_bound(root, space, "again", 2)
    await root.create(jobs, {**app, "metadata": {**app["metadata"], "name": "third"}})
    await held_back(root, space, "third", f"insufficient unused quota for {CORE}")
    for found in await pods_of(root, space, "again"):
        await finish(root, space, found["metadata"]["name"])
    await job_bound(root, space, "third", 2)


async def test_jobs_and_pods_count_alike_whatever_names_they_use_and_each_counts_once(
    root: AdminClient, counting: None, space: str
) -> None:
    await apply_queue(root, queues("alike", space, cards(800)), "alike")
    asked = {
        "whole": ({"nvidia.com/gpu": "2"}, 200),
        "share": ({"kubernetes.io/gpu": "50"}, 50),
        "koordinator": ({"koordinator.sh/gpu": "20"}, 20),
    }
    for name, (asks, _) in asked.items():
        await root.create(JOBS.format(space), job(name, space, "alike", asks))
        made = await root.create(pods_path(space), queued(pod(f"{name}-pod", space, asks), "alike"))
        assert {"name": GATE} in made["spec"]["schedulingGates"], name
    pods = [await bound(root, space, f"{name}-pod") for name in asked]
    pods += [(await job_bound(root, space, name))[0] for name in asked]
    total = 2 * sum(percent for _, percent in asked.values())
    await uses(root, "alike", cards(total))
    assert sum(held["gpu-core"] for held in (await audit(root)).values()) == total

    for found in pods[:-1]:
        await finish(root, space, found["metadata"]["name"])
    await uses(root, "alike", cards(20))
    await root.delete(f"{JOBS.format(space)}/koordinator", {"propagationPolicy": "Background"})
    await uses(root, "alike", {})


async def test_a_job_with_bytes_counts_what_its_template_says_and_a_pod_with_bytes_the_same(
    root: AdminClient, counting: None, space: str
) -> None:
    asks = {CORE: "50", MEMORY: "8Gi"}
    await apply_queue(root, queues("percent", space, {CORE: "100", RATIO: "100"}), "percent")
    await apply_queue(root, queues("bytes", space, {CORE: "200", MEMORY: "20Gi"}), "bytes")
    await root.create(JOBS.format(space), job("nowhere", space, "percent", asks))
    await held_back(root, space, "nowhere", f"resource {MEMORY} unavailable in ClusterQueue")

    await root.create(JOBS.format(space), job("first", space, "bytes", asks))
    await root.create(pods_path(space), queued(pod("second", space, asks), "bytes"))
    await job_bound(root, space, "first")
    await bound(root, space, "second")
    await uses(root, "bytes", {CORE: "100", MEMORY: str(16 * GIB)})
    await root.create(pods_path(space), queued(pod("third", space, asks), "bytes"))
    await held_back(root, space, "third", f"insufficient unused quota for {MEMORY}")


async def test_of_many_jobs_and_pods_at_once_no_more_run_than_the_queue_has_cards(
    root: AdminClient, counting: None, space: str
) -> None:
    await apply_queue(root, queues("race", space, cards(300)), "race")
    card = {"nvidia.com/gpu": "1"}
    jobs = (root.create(JOBS.format(space), job(f"job-{n}", space, "race", card)) for n in range(3))
    pods = (root.create(pods_path(space), queued(pod(f"pod-{n}", space, card), "race")) for n in range(6))
    await asyncio.gather(*jobs, *pods)
    done = 0
    while done < 9:

        async def three_run() -> list[JsonObject]:
            found = await root.items(pods_path(space))
            free = [one for one in found if not one["spec"].get("schedulingGates")]
            running = [one for one in free if one["status"]["phase"] == "Pending"]
            assert len(running) <= 3, [one["metadata"]["name"] for one in running]
            bound_now = [one for one in running if one["spec"].get("nodeName")]
            return bound_now if len(bound_now) == 3 else []

        three = await until(three_run, f"three run after {done}")
        await asyncio.gather(*(finish(root, space, one["metadata"]["name"]) for one in three))
        done += len(three)
    await uses(root, "race", {})
