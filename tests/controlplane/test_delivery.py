"""How Pods get their cards, on a real API server and scheduler: RuntimeClasses, annotations, and a second apply."""

import asyncio
import json
import subprocess
from collections.abc import AsyncIterator

import pytest_asyncio
from controlplane.gpu_cluster import DEVICES, pod, pods_path, uuid_of

from allocator.vocabulary.delivery import NodeRuntime
from allocator.wire.noderuntime import NODE_RUNTIME, write_runtime
from localplane.admin import AdminClient, JsonObject
from localplane.binaries import find_or_build
from localplane.plane import ControlPlane
from localplane.replicas import Replicas
from localplane.waiting import until

HALF = {"kubernetes.io/gpu-core": "50", "kubernetes.io/gpu-memory-ratio": "50"}
KIND = "k8s.device-plugin.nvidia.com/gpu"
OPERATOR = NodeRuntime(("nvidia", "runc"), ("nvidia",), default_shows=False, toolkit=(1, 18, 1), mode="cdi")
NRI = NodeRuntime(("runc",), default_shows=False, kinds=(KIND,), nri=True)
OVERHEAD = {"cpu": "250m"}
CLASSES = "/apis/node.k8s.io/v1/runtimeclasses"
VISIBLE = "visible-devices.koordgate.io/main"
BY_NRI = "nvidia.cdi.k8s.io/container.main"


@pytest_asyncio.fixture(loop_scope="session")
async def classed(admin: AdminClient, node: str) -> AsyncIterator[str]:
    """The RuntimeClass nvidia, with an overhead and a rule where its Pods run; the test's node has the label."""
    await admin.patch(f"/api/v1/nodes/{node}", {"metadata": {"labels": {"delivery.test/node": node}}})
    scheduling = {
        "nodeSelector": {"delivery.test/node": node},
        "tolerations": [{"key": "delivery.test/taint", "operator": "Exists"}],
    }
    about = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "nvidia"}}
    made = {**about, "handler": "nvidia", "overhead": {"podFixed": OVERHEAD}, "scheduling": scheduling}
    await admin.create(CLASSES, made)
    yield "nvidia"
    await admin.delete(f"{CLASSES}/nvidia")


async def tell(admin: AdminClient, node: str, runtime: NodeRuntime) -> None:
    await admin.patch(f"{DEVICES}/{node}", {"metadata": {"annotations": {NODE_RUNTIME: write_runtime(runtime)}}})


async def created(admin: AdminClient, namespace: str, runtime_class: str | None) -> JsonObject:
    """A Pod for half a card, created once the replica admits it with this RuntimeClass."""
    made = pod("p", namespace, HALF)

    async def known() -> bool:
        tried = await admin.create(pods_path(namespace), made, dryRun="All")
        return bool(tried["spec"].get("runtimeClassName") == runtime_class)

    await until(known, f"the replica gives a Pod the RuntimeClass {runtime_class}")
    return await admin.create(pods_path(namespace), made)


async def written(admin: AdminClient, namespace: str) -> list[JsonObject]:
    """The states of the Pod from here until it is bound, as a watch tells them."""
    states = []
    async for event in admin.watch(pods_path(namespace)):
        states.append(event["object"])
        if event["object"]["spec"].get("nodeName"):
            break
    return states


async def test_a_pod_gets_the_runtime_class_and_all_that_the_api_server_adds_with_it(
    lone_scheduler, admin: AdminClient, namespace: str, node: str, classed: str
) -> None:
    await tell(admin, node, OPERATOR)
    stored = await created(admin, namespace, classed)
    spec = stored["spec"]
    assert spec["overhead"] == OVERHEAD
    assert spec["nodeSelector"] == {"delivery.test/node": node}
    assert {"key": "delivery.test/taint", "operator": "Exists"} in spec["tolerations"]
    found = (await asyncio.wait_for(written(admin, namespace), 60))[-1]
    assert found["metadata"]["annotations"][VISIBLE] in {f"runtime.nvidia.com/gpu={uuid_of(node, n)}" for n in (0, 1)}
    assert BY_NRI not in found["metadata"]["annotations"]


async def test_nvidias_nri_plugin_finds_its_annotation_in_the_write_that_sets_the_node(
    lone_scheduler, admin: AdminClient, namespace: str, node: str, classed: str
) -> None:
    await tell(admin, node, NRI)
    await created(admin, namespace, None)
    states = await asyncio.wait_for(written(admin, namespace), 60)
    for state in states:
        annotations = state["metadata"].get("annotations") or {}
        assert (BY_NRI in annotations) == (VISIBLE in annotations) == bool(state["spec"].get("nodeName"))
    annotations = states[-1]["metadata"]["annotations"]
    assert annotations[BY_NRI] == f"{KIND}={annotations[VISIBLE]}"


async def test_a_node_that_shows_no_cards_takes_no_pod_until_it_can(
    lone_scheduler, admin: AdminClient, namespace: str, node: str
) -> None:
    await tell(admin, node, OPERATOR)
    await created(admin, namespace, None)

    async def refused() -> bool:
        found = await admin.get(pods_path(namespace, "p"))
        said = [one.get("message") or "" for one in (found.get("status") or {}).get("conditions") or ()]
        return any("has a default runtime that shows containers no cards" in one for one in said)

    await until(refused, "the scheduler is told why the node shows no cards")
    await tell(admin, node, NRI)
    found = (await asyncio.wait_for(written(admin, namespace), 60))[-1]
    assert found["spec"]["nodeName"] == node


async def test_a_second_apply_of_the_same_manifest_changes_nothing(
    webhook: Replicas,
    plane: ControlPlane,
    admin: AdminClient,
    namespace: str,
    node: str,
    classed: str,
    tmp_path,
) -> None:
    await tell(admin, node, OPERATOR)
    await created(admin, namespace, classed)
    manifest = tmp_path / "pod.json"
    manifest.write_text(json.dumps(pod("applied", namespace, HALF)))
    kubectl = str(find_or_build(("kubectl",))["kubectl"])

    async def apply() -> str:
        words = [kubectl, "--kubeconfig", str(plane.admin_kubeconfig), "apply", "-f", str(manifest)]
        done = await asyncio.to_thread(subprocess.run, words, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "created" in await apply()
    first = await admin.get(pods_path(namespace, "applied"))
    assert first["spec"]["runtimeClassName"] == classed
    assert "unchanged" in await apply()
    second = await admin.get(pods_path(namespace, "applied"))
    assert second["spec"] == first["spec"]
