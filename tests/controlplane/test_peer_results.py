"""Who may write what other products state of running Pods: the policy alone, on a real API server, without replicas."""

import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest
import pytest_asyncio
from controlplane.gpu_cluster import DEVICE_ALLOCATED, binding, pod, pods_path, refusal

from localplane import chart
from localplane.admin import STRATEGIC_PATCH, AdminClient, JsonObject
from localplane.binaries import Binaries
from localplane.plane import ControlPlane
from localplane.waiting import until

GROUP = "/apis/admissionregistration.k8s.io/v1"
WEBHOOKS = ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")
POLICY = "koordgate-peer-results"
ALL_PEERS = ["hami", "volcano", "gpushare", "kai"]
TENANT, SHADOW, OFF, RESERVED, EXEMPT = "tenant", "shadow", "off", "kai-resource-reservation", "exempt"
KUBELET = "system:node:node-1"
WRITER = "system:serviceaccount:kube-system:hami-scheduler"
STRANGER = "stranger"  # all rights, and no writer
CPU = {"cpu": "100m"}
OPEN: JsonObject = {
    "adopt": {"peers": ALL_PEERS},
    "mirror": ["hami", "volcano", "gpushare"],
    "exemptNamespaces": [EXEMPT],
}
CLOSED: JsonObject = OPEN | {"adopt": {"peers": ALL_PEERS, "writers": [WRITER]}}
HAMI = {"hami.io/vgpu-devices-allocated": "GPU-1,NVIDIA,8192,50:;"}
RESULTS: dict[str, dict[str, str]] = {
    "HAMi": HAMI,
    "Volcano vGPU": {"volcano.sh/vgpu-ids-new": "GPU-1,NVIDIA,8192,50:;"},
    "Volcano GPU share": {"volcano.sh/gpu-index": "0"},
    "gpushare's card": {"ALIYUN_COM_GPU_MEM_IDX": "0"},
    "gpushare's part": {"ALIYUN_COM_GPU_MEM_POD": "10"},
    "gpushare's whole": {"ALIYUN_COM_GPU_MEM_DEV": "80"},
    "KAI's card": {"run.ai/reserve_for_gpu_index": "GPU-1"},
    "HAMi, empty": {"hami.io/vgpu-devices-allocated": ""},
    "HAMi among many": {f"example.com/{n}": "" for n in range(2000)} | HAMI,
}
GROUPS = {
    "KAI's group": {"runai-gpu-group": "g"},
    "one of several groups": {"runai-gpu-group/g": "g"},
    "a group among many labels": {f"example.com/{n}": "" for n in range(900)} | {"runai-gpu-group": "g"},
}
OTHERS: dict[str, JsonObject] = {
    "nothing": {},
    "requests of these products": {"annotations": {"gpu-fraction": "0.5", "hami.io/use-gpuuuid": "GPU-1"}},
    "what HAMi writes for itself": {"annotations": {"hami.io/vgpu-node": "n", "hami.io/bind-phase": "allocating"}},
    "like names": {"annotations": {"x.hami.io/vgpu-devices-allocated": "x", "volcano.sh/gpu-index-x": "0"}},
    "a like label": {"labels": {"runai-gpu-groups": "g", "x/runai-gpu-group": "g"}},
    "many annotations": {"annotations": {f"example.com/{n}": "" for n in range(2000)}},
    "many labels": {"labels": {f"example.com/{n}": "" for n in range(900)}},
}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def guarded(binaries: Binaries) -> AsyncIterator[ControlPlane]:
    """A control plane with the chart except its webhook configurations; its controllers check the types of policies."""
    users = {KUBELET: ["system:nodes"], WRITER: ["system:masters"], STRANGER: ["system:masters"]}
    async with ControlPlane(binaries, controller_manager=True, users=users) as plane:
        for name in (TENANT, RESERVED, EXEMPT):
            await plane.ensure_namespace(name)
        for name in (SHADOW, OFF):
            await plane.ensure_namespace(name, {"koordgate.io/mode": name})
        await plane.add_node("node-1", {"cpu": "8", "pods": "110"})
        yield plane


async def put_in_force(plane: ControlPlane, binaries: Binaries, values: JsonObject, *, updates: bool) -> None:
    """Install the chart with values, and wait until the API server goes by them."""
    objects = [one for one in chart.render(binaries, values) if one["kind"] not in WEBHOOKS]
    await chart.install(plane, objects)
    async with plane.admin() as admin, standing(admin, noted()) as name:
        forging = noted(HAMI)
        forging["metadata"]["name"] = "forging"

        async def in_force() -> bool:
            forged = await refusal(admin.create(pods_path(TENANT), forging, dryRun="All"))
            changed = await refusal(admin.patch(pods_path(TENANT, name), annotated(HAMI), dryRun="All"))
            return (forged, changed) == (POLICY, POLICY if updates else "")

        await until(in_force, "the API server goes by the policy")


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def without_writers(guarded: ControlPlane, binaries: Binaries) -> ControlPlane:
    await put_in_force(guarded, binaries, OPEN, updates=False)
    return guarded


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def with_writers(without_writers: ControlPlane, binaries: Binaries) -> ControlPlane:
    """The same cluster after an upgrade; the tests without writers stand first in this file."""
    await put_in_force(without_writers, binaries, CLOSED, updates=True)
    return without_writers


@pytest_asyncio.fixture(loop_scope="session")
async def tenant(guarded: ControlPlane) -> AsyncIterator[AdminClient]:
    """No right is missing, so only the policy refuses."""
    async with guarded.admin(guarded.tokens[STRANGER]) as client:
        yield client


@contextlib.asynccontextmanager
async def standing(admin: AdminClient, made: JsonObject, namespace: str = TENANT) -> AsyncIterator[str]:
    """A Pod that exists meanwhile; its name."""
    created = await admin.create(pods_path(namespace), made)
    try:
        yield created["metadata"]["name"]
    finally:
        await admin.delete(pods_path(namespace, created["metadata"]["name"]), gracePeriodSeconds="0")


def noted(
    annotations: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
    namespace: str = TENANT,
    **spec: Any,
) -> JsonObject:
    made = pod("noted", namespace, CPU, **spec)
    made["metadata"] |= {"annotations": dict(annotations or {}), "labels": dict(labels or {})}
    return made


def annotated(annotations: Mapping[str, str | None]) -> JsonObject:
    return {"metadata": {"annotations": annotations}}


# Without writers


@pytest.mark.parametrize("results", RESULTS.values(), ids=RESULTS)
async def test_nobody_creates_a_pod_that_states_a_result(
    without_writers: ControlPlane, tenant: AdminClient, results: dict[str, str]
) -> None:
    assert await refusal(tenant.create(pods_path(TENANT), noted(results), dryRun="All")) == POLICY


@pytest.mark.parametrize("namespace", [SHADOW, OFF])
async def test_nor_in_a_namespace_that_koordgate_leaves_alone(
    without_writers: ControlPlane, tenant: AdminClient, namespace: str
) -> None:
    made = noted(HAMI, namespace=namespace)
    assert await refusal(tenant.create(pods_path(namespace), made, dryRun="All")) == POLICY


@pytest.mark.parametrize("groups", GROUPS.values(), ids=GROUPS)
async def test_nobody_creates_a_pod_in_a_group_of_kai(
    without_writers: ControlPlane, tenant: AdminClient, groups: dict[str, str]
) -> None:
    assert await refusal(tenant.create(pods_path(TENANT), noted(labels=groups), dryRun="All")) == POLICY


@pytest.mark.parametrize("about", OTHERS.values(), ids=OTHERS)
async def test_a_pod_that_states_no_result_passes(
    without_writers: ControlPlane, tenant: AdminClient, about: JsonObject
) -> None:
    assert not await refusal(tenant.create(pods_path(TENANT), noted(**about), dryRun="All"))


@pytest.mark.parametrize("namespace", [RESERVED, EXEMPT])
async def test_kai_creates_its_reservation_pods_and_exempt_namespaces_are_left_alone(
    without_writers: ControlPlane, tenant: AdminClient, namespace: str
) -> None:
    made = noted(RESULTS["KAI's card"], GROUPS["KAI's group"], namespace, nodeName="node-1")
    assert not await refusal(tenant.create(pods_path(namespace), made, dryRun="All"))


@pytest.mark.parametrize("subresource", ["", "status"])
async def test_without_writers_whoever_may_update_a_pod_states_results(
    without_writers: ControlPlane, tenant: AdminClient, subresource: str
) -> None:
    async with standing(tenant, noted()) as name:
        path = pods_path(TENANT, name, subresource)
        assert not await refusal(tenant.patch(path, annotated(HAMI)))


# With writers


@pytest.mark.parametrize("subresource", ["", "status"])
async def test_only_a_writer_changes_what_a_pod_states(
    with_writers: ControlPlane, tenant: AdminClient, subresource: str
) -> None:
    async with (
        with_writers.admin(with_writers.tokens[WRITER]) as writer,
        standing(tenant, noted({"note": "x"}, {"a": "b"})) as name,
    ):
        path = pods_path(TENANT, name, subresource)
        adding = [annotated(results) for results in RESULTS.values()]
        adding += [{"metadata": {"labels": groups}} for groups in GROUPS.values()]
        for change in adding:
            assert await refusal(tenant.patch(path, change, dryRun="All")) == POLICY
            assert not await refusal(writer.patch(path, change, dryRun="All"))

        stated = {"metadata": {"annotations": HAMI, "labels": {"runai-gpu-group": "g", "runai-gpu-group/h": "h"}}}
        await writer.patch(path, stated)

        for key in HAMI:
            for value in (None, "", "GPU-2,NVIDIA,1,1:;"):
                assert await refusal(tenant.patch(path, annotated({key: value}))) == POLICY
        for label in ("runai-gpu-group", "runai-gpu-group/h"):
            for value in (None, "", "other"):
                assert await refusal(tenant.patch(path, {"metadata": {"labels": {label: value}}})) == POLICY


async def test_everybody_else_goes_on_with_a_pod_that_states_a_result(
    with_writers: ControlPlane, tenant: AdminClient
) -> None:
    async with (
        with_writers.admin(with_writers.tokens[WRITER]) as writer,
        with_writers.admin(with_writers.tokens[KUBELET]) as kubelet,
        standing(tenant, noted(finalizers=None)) as name,
    ):
        path = pods_path(TENANT, name)
        await writer.patch(path, {"metadata": {"annotations": HAMI, "labels": {"runai-gpu-group": "g"}}})
        await writer.create(f"{path}/binding", binding(TENANT, name, "node-1"))

        await kubelet.patch(f"{path}/status", {"status": {"phase": "Running"}})
        added = {"spec": {"ephemeralContainers": [{"name": "debug", "image": "none"}]}}
        await tenant.patch(f"{path}/ephemeralcontainers", added, STRATEGIC_PATCH)
        resources = {"requests": {"cpu": "50m"}, "limits": CPU}
        await tenant.patch(
            f"{path}/resize", {"spec": {"containers": [{"name": "main", "resources": resources}]}}, STRATEGIC_PATCH
        )
        await tenant.patch(path, {"metadata": {"annotations": {"note": "y"}, "labels": {"a": "b"}}})
        await tenant.patch(path, {"metadata": {"finalizers": ["example.com/wait"]}})
        await tenant.patch(path, {"metadata": {"finalizers": None}})


@pytest.mark.parametrize("subresource", ["ephemeralcontainers", "resize"])
async def test_other_subresources_write_no_annotations(
    with_writers: ControlPlane, tenant: AdminClient, subresource: str
) -> None:
    async with standing(tenant, noted()) as name:
        for subject in (annotated(HAMI), {"metadata": {"labels": {"runai-gpu-group": "g"}}}):
            with contextlib.suppress(Exception):
                await tenant.patch(pods_path(TENANT, name, subresource), subject, STRATEGIC_PATCH)
        found = (await tenant.get(pods_path(TENANT, name)))["metadata"]
        assert not found.get("annotations")
        assert not found.get("labels")


SHOWING = {
    "nvidia.cdi.k8s.io/container.main": "nvidia.com/gpu=GPU-1",
    "nvidia.cdi.k8s.io": "nvidia.com/gpu=GPU-1",
    "cdi.k8s.io/gpu": "nvidia.com/gpu=GPU-1",
    "nvidia.com/container.main.gpus.devices": "GPU-1",
}


@pytest.mark.parametrize("subresource", ["", "status"])
async def test_only_a_writer_shows_a_pod_devices_by_software_of_the_nodes(
    with_writers: ControlPlane, tenant: AdminClient, subresource: str
) -> None:
    async with (
        with_writers.admin(with_writers.tokens[WRITER]) as writer,
        standing(tenant, noted({"note": "x"})) as name,
    ):
        path = pods_path(TENANT, name, subresource)
        for key, text in SHOWING.items():
            assert await refusal(tenant.patch(path, annotated({key: text}))) == "koordgate-allocations"
        assert await refusal(writer.patch(path, annotated(SHOWING | {DEVICE_ALLOCATED: "{}"}))) == (
            "koordgate-allocations"
        )
        await writer.patch(path, annotated(SHOWING))
        for key in SHOWING:
            for wrong in (None, "other"):
                assert await refusal(tenant.patch(path, annotated({key: wrong}))) == "koordgate-allocations"
        await writer.patch(path, annotated(dict.fromkeys(SHOWING)))


@pytest.mark.parametrize("resource", ["binding", "bindings"])
async def test_only_a_writers_binding_shows_a_pod_devices_by_software_of_the_nodes(
    with_writers: ControlPlane, tenant: AdminClient, resource: str
) -> None:
    async with (
        with_writers.admin(with_writers.tokens[WRITER]) as writer,
        standing(tenant, noted()) as name,
    ):
        old = resource == "bindings"
        path = f"/api/v1/namespaces/{TENANT}/bindings" if old else pods_path(TENANT, name, "binding")
        made = binding(TENANT, name, "node-1")
        for key, text in SHOWING.items():
            made["metadata"]["annotations"] = {key: text}
            assert await refusal(tenant.create(path, made, dryRun="All")) == "koordgate-bindings"
            assert not await refusal(writer.create(path, made, dryRun="All"))
        made["metadata"]["annotations"] = SHOWING | {DEVICE_ALLOCATED: "{}"}
        assert await refusal(writer.create(path, made, dryRun="All")) == "koordgate-bindings"


@pytest.mark.parametrize("key", SHOWING)
async def test_even_a_writer_creates_no_pod_that_shows_itself_devices(with_writers: ControlPlane, key: str) -> None:
    async with with_writers.admin(with_writers.tokens[WRITER]) as writer:
        made = noted({key: SHOWING[key]})
        assert await refusal(writer.create(pods_path(TENANT), made, dryRun="All")) == "koordgate-allocations"


async def test_a_writer_creates_what_it_likes(with_writers: ControlPlane) -> None:
    async with with_writers.admin(with_writers.tokens[WRITER]) as writer:
        assert not await refusal(writer.create(pods_path(TENANT), noted(HAMI), dryRun="All"))


@pytest.mark.parametrize("resource", ["binding", "bindings"])
@pytest.mark.parametrize("results", [HAMI, RESULTS["HAMi among many"]], ids=["HAMi", "HAMi among many"])
async def test_a_stranger_brings_no_result_by_a_binding(
    with_writers: ControlPlane, tenant: AdminClient, results: dict[str, str], resource: str
) -> None:
    async with (
        with_writers.admin(with_writers.tokens[WRITER]) as writer,
        with_writers.admin(await with_writers.service_account_token(chart.NAMESPACE, "koord-scheduler")) as ours,
        standing(tenant, noted()) as name,
    ):
        old = resource == "bindings"
        path = f"/api/v1/namespaces/{TENANT}/bindings" if old else pods_path(TENANT, name, "binding")
        made = binding(TENANT, name, "node-1")
        made["metadata"]["annotations"] = results
        few = len(results) == 1
        assert await refusal(tenant.create(path, made, dryRun="All")) in {POLICY, "koordgate-bindings"}
        if few:
            assert await refusal(tenant.create(path, made, dryRun="All")) == POLICY
            assert not await refusal(writer.create(path, made, dryRun="All"))
        if not old:
            assert not await refusal(ours.create(path, made, dryRun="All"))
        made["metadata"]["annotations"] = {"note": "x"}
        assert not await refusal(tenant.create(path, made, dryRun="All"))


async def test_our_binding_brings_an_allocation_and_its_mirror(with_writers: ControlPlane, tenant: AdminClient) -> None:
    async with (
        with_writers.admin(await with_writers.service_account_token(chart.NAMESPACE, "koord-scheduler")) as ours,
        with_writers.admin(with_writers.tokens[KUBELET]) as kubelet,
        standing(tenant, noted()) as name,
    ):
        made = binding(TENANT, name, "node-1")
        made["metadata"]["annotations"] = {DEVICE_ALLOCATED: "{}"} | HAMI | RESULTS["gpushare's card"]
        await ours.create(pods_path(TENANT, name, "binding"), made)

        await kubelet.patch(pods_path(TENANT, name, "status"), {"status": {"phase": "Running"}})
        found = (await tenant.get(pods_path(TENANT, name)))["metadata"]["annotations"]
        assert HAMI.items() <= found.items()
        assert await refusal(tenant.patch(pods_path(TENANT, name), annotated(dict.fromkeys(HAMI)))) == POLICY


async def test_the_cluster_finds_no_fault_with_the_policys_types(with_writers: ControlPlane) -> None:
    async with with_writers.admin() as root:

        async def checked() -> JsonObject:
            policy = await root.get(f"{GROUP}/validatingadmissionpolicies/{POLICY}")
            about: JsonObject = policy.get("status", {})
            return about if about.get("observedGeneration") == policy["metadata"]["generation"] else {}

        assert (await until(checked, f"{POLICY} was checked"))["typeChecking"] == {}
