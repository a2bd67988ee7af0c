"""koordgate as users install it from a release: the image, the chart's Pods, the client, and a roll-out under load."""

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from controlplane.gpu_cluster import ALLOCATIONS, DEVICE_ALLOCATED, allocated
from incluster.conftest import CARDS, NODE, Cluster
from node import images
from nvml_standin import recorded

from localplane import chart
from localplane.admin import ApiError, JsonObject
from localplane.waiting import until

UUIDS = {value for key, value in recorded(CARDS).items() if key.endswith(".uuid")}
APPS = {
    "koordgate": ("webhook", 2),
    "koord-scheduler": ("scheduler", 2),
    "koordgate-reporter": ("reporter", 1),
}
DONE_S = 120.0
MOST = 60  # Pods of 10 % that are created during a roll-out; the cards that are not held take 50 at once


def pod(name: str, script: str, asks: Mapping[str, str]) -> JsonObject:
    container = {
        "name": "main",
        "image": images.BUSYBOX,
        "imagePullPolicy": "Never",
        "command": ["/bin/sh", "-c", script],
        "resources": {"limits": dict(asks)},
    }
    spec = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "containers": [container]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


async def bound(cluster: Cluster, path: str) -> None:
    async def has_node() -> bool:
        return "nodeName" in (await cluster.admin.get(path))["spec"]

    await until(has_node, f"{path} is bound", deadline_s=DONE_S)


async def namespace(cluster: Cluster, name: str) -> str:
    await cluster.plane.ensure_namespace(name)
    return f"/api/v1/namespaces/{name}/pods"


@pytest.mark.parametrize("app", APPS)
async def test_the_charts_pods_are_ready_and_have_not_restarted(cluster: Cluster, app: str) -> None:
    container, count = APPS[app]
    pods = await cluster.pods(app)
    assert len(pods) == count
    for found in pods:
        (status,) = found["status"]["containerStatuses"]
        assert (status["name"], status["ready"], status["restartCount"]) == (container, True, 0), await cluster.told()


@pytest.mark.parametrize(
    ("app", "user"),
    [("koordgate", 65532), ("koord-scheduler", 65532), ("koordgate-reporter", 0)],
)
async def test_a_process_has_the_charts_user_no_capability_and_a_root_that_cannot_be_written(
    cluster: Cluster, app: str, user: int
) -> None:
    container, _ = APPS[app]
    (found, *_) = await cluster.pods(app)
    pid = await cluster.node.container_pid(chart.NAMESPACE, found["metadata"]["name"], container)
    process = Path("/proc", str(pid))
    status = dict(line.split(":\t", 1) for line in (process / "status").read_text().splitlines() if ":\t" in line)
    assert status["Uid"].split() == [str(user)] * 4
    assert {status[key] for key in ("CapEff", "CapPrm", "CapBnd")} == {"0" * 16}
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
    mounts = [line.split() for line in (process / "mountinfo").read_text().splitlines()]
    root = next(mount for mount in reversed(mounts) if mount[4] == "/")
    assert "ro" in root[5].split(",")


@pytest.mark.parametrize("app", APPS)
async def test_no_container_of_the_chart_has_a_shell_to_run(cluster: Cluster, app: str) -> None:
    container, _ = APPS[app]
    (found, *_) = await cluster.pods(app)
    with pytest.raises(RuntimeError, match=r"/bin/sh.*no such file or directory"):
        await cluster.node.run(chart.NAMESPACE, found["metadata"]["name"], container, "/bin/sh", "-c", "true")


async def test_the_reporter_publishes_the_cards_that_the_runtime_class_shows_it(cluster: Cluster) -> None:
    async def published() -> bool:
        found = await cluster.admin.find(f"/apis/scheduling.koordinator.sh/v1alpha1/devices/{NODE}")
        return {device["id"] for device in (found or {}).get("spec", {}).get("devices", ())} >= UUIDS

    await until(published, "the cards are published", deadline_s=DONE_S)


async def test_a_users_pod_is_admitted_bound_and_runs_with_the_card_that_it_was_given(cluster: Cluster) -> None:
    path = await namespace(cluster, "users")
    await cluster.admin.create(path, pod("one", 'echo "[$NVIDIA_VISIBLE_DEVICES]"', {"nvidia.com/gpu": "1"}))

    found = await cluster.node.phase("users", "one", "Succeeded", deadline_s=DONE_S)

    (share,) = allocated(found)
    assert share["id"] in UUIDS
    assert found["spec"]["schedulerName"] == "koord-scheduler"
    assert await cluster.node.logs("users", "one", "main") == f"[{share['id']}]\n"


async def test_helm_test_says_that_nothing_failed(cluster: Cluster) -> None:
    await cluster.test()
    told = await cluster.node.logs(chart.NAMESPACE, "koordgate-doctor", "doctor")
    assert re.search(r"^0 failures, ", told, re.MULTILINE), told


async def test_the_pods_run_the_image_of_the_release_by_its_digest(cluster: Cluster) -> None:
    image = f"{cluster.release.repository}@{cluster.release.digest()}"
    for app in ("koordgate", "koordgate-reporter"):
        for found in await cluster.pods(app):
            assert [container["image"] for container in found["spec"]["containers"]] == [image]


async def test_the_client_of_the_release_says_that_nothing_failed_and_needs_nothing_but_python(
    cluster: Cluster, tmp_path: Path
) -> None:
    """It has no environment of this checkout, no home, and a folder in which only the release is."""
    python = getattr(sys, "_base_executable", sys.executable)
    env = {"PATH": os.defpath, "HOME": str(tmp_path), "KUBECONFIG": str(cluster.plane.admin_kubeconfig)}
    asked = (python, cluster.release.client.name, "doctor")
    done = await asyncio.to_thread(
        subprocess.run, asked, cwd=cluster.release.folder, env=env, capture_output=True, text=True, check=False
    )
    assert re.search(r"^0 failures, ", done.stdout, re.MULTILINE), f"{done.stdout}\n{done.stderr}"
    assert done.returncode == 0


async def test_an_upgrade_rolls_while_pods_are_created_and_no_admission_fails_and_no_allocation_is_lost(
    cluster: Cluster,
) -> None:
    path = await namespace(cluster, "rolled")
    held = [f"held-{number}" for number in range(3)]
    for name in held:
        await cluster.admin.create(path, pod(name, "trap exit TERM; sleep 3600 & wait", {"nvidia.com/gpu": "1"}))
    before = {name: allocated(await cluster.node.phase("rolled", name, "Running", deadline_s=DONE_S)) for name in held}
    old = {one["metadata"]["uid"] for app in APPS for one in await cluster.pods(app)}

    rolling = asyncio.create_task(cluster.upgrade(logLevel="debug", podAnnotations={"example.com/rolled": "yes"}))
    refused: list[str] = []
    created: list[str] = []
    while not rolling.done() and len(created) < MOST and not refused:
        name = f"new-{len(created)}"
        try:
            await cluster.admin.create(path, pod(name, "true", {"kubernetes.io/gpu": "10"}))
        except ApiError as error:
            refused.append(str(error))
        else:
            created.append(name)
            await bound(cluster, f"{path}/{name}")
    await rolling

    assert not refused
    assert len(created) > 3
    assert not old & {one["metadata"]["uid"] for app in APPS for one in await cluster.pods(app)}
    for name in created:
        done = await cluster.node.phase("rolled", name, "Succeeded", deadline_s=DONE_S)
        assert DEVICE_ALLOCATED in done["metadata"]["annotations"]
    after = {name: await cluster.node.phase("rolled", name, "Running") for name in held}
    assert {name: allocated(found) for name, found in after.items()} == before

    async def only_they_hold() -> bool:
        record = await cluster.admin.get(f"{ALLOCATIONS}/{NODE}")
        return {one["uid"]: {share["id"] for share in one["devices"]} for one in record["spec"]["allocations"]} == {
            after[name]["metadata"]["uid"]: {share["id"] for share in before[name]} for name in held
        }

    await until(only_they_hold, "the ledger holds what the running Pods hold, and nothing else", deadline_s=DONE_S)


# While no replica lives

LASTS = "trap exit TERM; sleep 3600 & wait"


async def all_ready(cluster: Cluster, besides: frozenset[str] = frozenset()) -> None:
    """Wait until all Pods of the chart are ready, without those of some UIDs."""

    async def so() -> bool:
        for app, (_, count) in APPS.items():
            pods = await cluster.pods(app)
            ready = [one for one in pods if any(c["ready"] for c in one["status"].get("containerStatuses") or ())]
            if len(ready) != count or {one["metadata"]["uid"] for one in pods} & besides:
                return False
        return True

    try:
        await until(so, "all Pods of the chart are ready", deadline_s=2 * DONE_S)
    except TimeoutError as error:
        raise AssertionError(await cluster.told()) from error


def pinned(name: str, labels: Mapping[str, str]) -> JsonObject:
    made = pod(name, LASTS, {"cpu": "50m"})
    made["metadata"]["labels"] = dict(labels)
    return made


async def test_pods_that_ask_for_no_device_are_created_while_no_replica_lives_and_later_all_is_as_before(
    cluster: Cluster,
) -> None:
    path = await namespace(cluster, "outage")
    scale = f"/apis/apps/v1/namespaces/{chart.NAMESPACE}/deployments/koordgate/scale"
    await cluster.admin.patch(scale, {"spec": {"replicas": 0}})

    replicas = f"/api/v1/namespaces/{chart.NAMESPACE}/pods"

    async def gone() -> bool:  # one that ends answers until it has ended
        return not await cluster.admin.items(replicas, labelSelector="app.kubernetes.io/name=koordgate")

    await until(gone, "no replica lives", deadline_s=DONE_S)
    await cluster.admin.create(path, pod("service", LASTS, {"cpu": "50m"}))
    await cluster.node.phase("outage", "service", "Running", deadline_s=DONE_S)
    with pytest.raises(ApiError, match="failed calling webhook"):
        await cluster.admin.create(path, pod("one", "true", {"nvidia.com/gpu": "1"}))

    await cluster.admin.patch(scale, {"spec": {"replicas": 2}})
    await all_ready(cluster)

    await cluster.admin.create(path, pod("one", "true", {"nvidia.com/gpu": "1"}))
    await cluster.node.phase("outage", "one", "Succeeded", deadline_s=DONE_S)


async def test_a_cluster_of_one_node_that_lost_its_power_comes_up_by_itself(cluster: Cluster) -> None:
    """Nothing of koordgate is left running, and none of its Pods: their controllers make all of them anew."""
    path = await namespace(cluster, "powered")
    held = pod("held", LASTS, {"nvidia.com/gpu": "1"})
    held["spec"]["restartPolicy"] = "Always"
    await cluster.admin.create(path, held)
    before = allocated(await cluster.node.phase("powered", "held", "Running", deadline_s=DONE_S))
    (status,) = (await cluster.admin.get(f"{path}/held"))["status"]["containerStatuses"]
    old = frozenset([one["metadata"]["uid"] for app in APPS for one in await cluster.pods(app)])

    async with cluster.node.powered_off():
        cluster.plane.power_off()
        await cluster.plane.power_on()
        for app in APPS:
            for one in await cluster.pods(app):
                await cluster.admin.delete(
                    f"/api/v1/namespaces/{chart.NAMESPACE}/pods/{one['metadata']['name']}", gracePeriodSeconds="0"
                )

    await all_ready(cluster, besides=old)

    async def restarted() -> bool:
        (now,) = (await cluster.admin.get(f"{path}/held"))["status"]["containerStatuses"]
        return bool(now["ready"]) and now["containerID"] != status["containerID"]

    await until(restarted, "the Pod that had a card runs again", deadline_s=DONE_S)
    assert allocated(await cluster.admin.get(f"{path}/held")) == before
    await cluster.admin.create(path, pod("new", 'echo "[$NVIDIA_VISIBLE_DEVICES]"', {"nvidia.com/gpu": "1"}))
    new = await cluster.node.phase("powered", "new", "Succeeded", deadline_s=DONE_S)
    assert {share["id"] for share in allocated(new)}.isdisjoint(share["id"] for share in before)


# With the enforcer

_TOLD = Path("/var/lib/koordgate/enforcer")
FIRST_WORDS = 'echo "$(grep Cpus_allowed_list /proc/self/status) $NVIDIA_VISIBLE_DEVICES"'


async def test_with_the_enforcer_cpus_and_void_are_in_the_first_instruction_of_a_container(cluster: Cluster) -> None:
    path = await namespace(cluster, "enforced")
    await cluster.upgrade(
        enforcement={"enabled": True, "directory": str(cluster.node.nri_socket.parent)},
        devices={"closed": True},
    )
    (reporter,) = await cluster.pods("koordgate-reporter")
    assert {one["name"]: one["ready"] for one in reporter["status"]["containerStatuses"]} == {
        "reporter": True,
        "enforcer": True,
    }

    async def registered() -> bool:
        state, facts = _TOLD / "state.json", _TOLD / "facts.json"
        return facts.exists() and state.exists() and '"runtime":"containerd' in state.read_text()

    await until(registered, "the enforcer is registered, and told of the node", deadline_s=DONE_S)
    own = pod("own", FIRST_WORDS, {"cpu": "1", "memory": "32Mi"})
    own["metadata"]["labels"] = {"koordinator.sh/qosClass": "LSR"}
    plain = pod("plain", FIRST_WORDS, {"cpu": "50m"})
    plain["spec"]["containers"][0]["env"] = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]
    for one in (own, plain):
        await cluster.admin.create(path, one)

    found = await cluster.node.phase("enforced", "own", "Succeeded", deadline_s=DONE_S)
    cpus = json.loads(found["metadata"]["annotations"]["scheduling.koordinator.sh/resource-status"])["cpuset"]
    assert await cluster.node.logs("enforced", "own", "main") == f"Cpus_allowed_list:\t{cpus} void\n"
    await cluster.node.phase("enforced", "plain", "Succeeded", deadline_s=DONE_S)
    assert (await cluster.node.logs("enforced", "plain", "main")).endswith(" void\n")
