"""What the API server refuses by the chart's policies alone: no replica lives here, and no webhook is configured."""

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
from controlplane.conftest import KUBELET
from controlplane.gpu_cluster import DEVICE_ALLOCATED, binding, pod, pods_path, refusal

from allocator.vocabulary.delivery import LIMIT_VARIABLES
from allocator.vocabulary.names import (
    DEVICE_QUOTAS,
    DEVICE_SHARING,
    LIMITS,
    NUMA_SCOPE,
    ORIGINAL_REQUEST,
    OWN_CPUS,
    RESOURCE_STATUS,
    device_quota,
    visible_devices,
)
from localplane import chart
from localplane.admin import STRATEGIC_PATCH, AdminClient, ApiError, JsonObject
from localplane.plane import ControlPlane
from localplane.waiting import until

pytestmark = pytest.mark.usefixtures("guarded")
GROUP = "/apis/admissionregistration.k8s.io/v1"
VISIBLE, PRESET, ALLOCATIONS, BINDINGS, BINDERS = (
    "koordgate-visible-devices",
    "koordgate-preset-node",
    "koordgate-allocations",
    "koordgate-bindings",
    "koordgate-binders",
)
TENANT = "tenant"
CPU = {"cpu": "100m"}
GPU = {"nvidia.com/gpu": "1"}
NVIDIA_MOUNT = "/var/run/nvidia-container-devices"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def guarded(policed: ControlPlane) -> ControlPlane:
    """The control plane without webhooks, with the tenants' namespaces."""
    for name in (TENANT, "exempt", "gpu-operator"):
        await policed.ensure_namespace(name)
    async with policed.admin() as admin:

        async def in_force() -> bool:
            forged = admin.create(pods_path(TENANT), noted({DEVICE_ALLOCATED: "{}"}), dryRun="All")
            shown = admin.create(pods_path(TENANT), setting("0"), dryRun="All")
            preset = admin.create(pods_path(TENANT), pod("p", TENANT, GPU, nodeName="n"), dryRun="All")
            return [await refusal(one) for one in (forged, shown, preset)] == [ALLOCATIONS, VISIBLE, PRESET]

        await until(in_force, "the API server goes by the policies")
    return policed


@contextlib.asynccontextmanager
async def standing(admin: AdminClient, made: JsonObject) -> AsyncIterator[str]:
    """A Pod that exists meanwhile; its name."""
    created = await admin.create(pods_path(TENANT), made)
    try:
        yield created["metadata"]["name"]
    finally:
        await admin.delete(pods_path(TENANT, created["metadata"]["name"]), gracePeriodSeconds="0")


def noted(
    annotations: dict[str, str], asks: dict[str, str] | None = None, namespace: str = TENANT, **spec: Any
) -> JsonObject:
    made = pod("noted", namespace, CPU if asks is None else asks, **spec)
    made["metadata"]["annotations"] = annotations
    return made


def with_env(*env: JsonObject, part: str = "containers", namespace: str = TENANT) -> JsonObject:
    made = pod("showing", namespace, CPU)
    other = {"name": "second", "image": "none", "env": list(env)}
    made["spec"][part] = [*made["spec"].get(part, ()), other]
    return made


def setting(value: str, variable: str = "NVIDIA_VISIBLE_DEVICES", **where: str) -> JsonObject:
    return with_env({"name": "A", "value": "b"}, {"name": variable, "value": value}, **where)


def source(**value_from: Any) -> JsonObject:
    return {"name": "NVIDIA_VISIBLE_DEVICES", "valueFrom": value_from}


def field(path: str, variable: str = "NVIDIA_VISIBLE_DEVICES") -> JsonObject:
    return {"name": variable, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def mounting(path: str) -> JsonObject:
    made = pod("mounting", TENANT, CPU)
    made["spec"]["volumes"] = [{"name": "v", "hostPath": {"path": "/dev/null"}}]
    made["spec"]["containers"][0]["volumeMounts"] = [{"name": "v", "mountPath": path}]
    return made


def initial(asks: dict[str, str]) -> JsonObject:
    resources = {"requests": asks, "limits": asks}
    first = {"name": "first", "image": "none", "resources": resources}
    return pod("initial", TENANT, CPU, nodeName="n", initContainers=[first])


ODD_PATHS = [
    f"{NVIDIA_MOUNT}/all",
    NVIDIA_MOUNT,
    f"{NVIDIA_MOUNT}/",
    "/var/run//nvidia-container-devices/all",
    "/var/./run/nvidia-container-devices/all",
    "/var/lib/../run/nvidia-container-devices/all",
    "/a/b/../../var/run/x/../nvidia-container-devices/GPU-1",
    "var/run/nvidia-container-devices/all",
    "/run/nvidia-container-devices/all",
]
SHOWING = {
    "nvidia.cdi.k8s.io/container.main": "k8s.device-plugin.nvidia.com/gpu=GPU-1",
    "nvidia.cdi.k8s.io/container.debugger": "nvidia.com/gpu=0",
    "nvidia.cdi.k8s.io/pod": "nvidia.com/gpu=all",
    "nvidia.cdi.k8s.io": "nvidia.com/gpu=all",
    "nvidia.cdi.k8s.io/any": "nvidia.com/gpu=all",
    "cdi.k8s.io/gpu": "nvidia.com/gpu=all",
    "cdi.k8s.io": "nvidia.com/gpu=all",
    "nvidia.com/container.main.gpus.devices": "GPU-1",
}

ATTACKS = {
    "all cards": (setting("all"), VISIBLE),
    "in an init container": (setting("all", part="initContainers"), VISIBLE),
    "a type of one's own": (setting("fast", "QUEUE"), VISIBLE),
    "a limiter's switch": (setting("true", "CUDA_DISABLE_CONTROL"), VISIBLE),
    "another variable's value": (setting("$(A)"), VISIBLE),
    "cards and void": (setting("void,all"), VISIBLE),
    **{f"its own {variable}": (setting("1024", variable), VISIBLE) for variable in LIMIT_VARIABLES},
    "no limit at all": (with_env({"name": "NVIDIA_GPU_MEMORY_LIMIT"}), VISIBLE),
    "a limit from a ConfigMap": (
        with_env({"name": "NVIDIA_GPU_MEMORY_LIMITS", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "k"}}}),
        VISIBLE,
    ),
    "a limit that is a card": (
        with_env(field("metadata.annotations['visible-devices.koordgate.io/main']", "NVIDIA_GPU_MEMORY_LIMIT")),
        VISIBLE,
    ),
    "a card that is a limit": (
        with_env(field("metadata.annotations['nvidia-gpu-memory-limit.koordgate.io/x']")),
        VISIBLE,
    ),
    "void, then all": (
        with_env({"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}, {"name": "QUEUE", "value": "x"}),
        VISIBLE,
    ),
    "from a ConfigMap": (with_env(source(configMapKeyRef={"name": "c", "key": "k"})), VISIBLE),
    "from an annotation of its own": (with_env(field("metadata.annotations['my']")), VISIBLE),
    "from an annotation of a like name": (
        with_env(field("metadata.annotations['invisible-devices.koordgate.io/main']")),
        VISIBLE,
    ),
    "from a label": (with_env(field("metadata.labels['visible-devices.koordgate.io/main']")), VISIBLE),
    **{f"by a mount at {path}": (mounting(path), VISIBLE) for path in ODD_PATHS},
    "a claim to be a mirror": (
        noted({"kubernetes.io/config.mirror": "x"}, nodeName="n", containers=setting("all")["spec"]["containers"]),
        VISIBLE,
    ),
    "a node of its choice": (pod("preset", TENANT, GPU, nodeName="n"), PRESET),
    "a node for a share": (pod("preset", TENANT, {"koordinator.sh/gpu-core": "1"}, nodeName="n"), PRESET),
    "a node for a queue": (pod("preset", TENANT, {"example.com/queue": "1"}, nodeName="n"), PRESET),
    "a node for an init container": (initial(GPU), PRESET),
    "an allocation": (noted({DEVICE_ALLOCATED: "{}"}), ALLOCATIONS),
    "CPUs": (noted({RESOURCE_STATUS: '{"cpuset":"0-7"}'}), ALLOCATIONS),
    "visible cards": (noted({visible_devices("main"): "GPU-1"}), ALLOCATIONS),
    **{key: (noted({key: text}), ALLOCATIONS) for key, text in SHOWING.items()},
    "CDI devices among many": (
        noted({f"example.com/{n}": "" for n in range(900)} | {"cdi.k8s.io/x": "y"}),
        ALLOCATIONS,
    ),
    "CDI devices of an asking Pod": (noted({"nvidia.cdi.k8s.io": "nvidia.com/gpu=all"}, GPU), ALLOCATIONS),
    "a limit": (noted({"nvidia-gpu-memory-limit.koordgate.io/main": "1"}), ALLOCATIONS),
    "cores": (noted({"gpu-core-limit.koordgate.io/main": "1"}), ALLOCATIONS),
    "cards of the enforcer": (noted({"nri.koordgate.io/main": "GPU-1"}), ALLOCATIONS),
    "no plugin required of the container": (
        noted({"required-plugins.noderesource.dev/container.main": "[]"}),
        ALLOCATIONS,
    ),
    "quotas": (noted({DEVICE_QUOTAS: "{}"}), ALLOCATIONS),
    "a quota": (noted({device_quota("main", "gpu-memory"): "1"}), ALLOCATIONS),
    "a node for a user of cards": (noted({DEVICE_SHARING: '{"gpu":{"users":["main"]}}'}, nodeName="n"), PRESET),
    "visible queues": (noted({visible_devices("main", "queue"): "fast"}), ALLOCATIONS),
    "an allocation among many": (
        noted({f"example.com/{n}": "" for n in range(2000)} | {DEVICE_ALLOCATED: "{}"}),
        ALLOCATIONS,
    ),
}


@pytest.mark.parametrize(("made", "policy"), ATTACKS.values(), ids=ATTACKS)
async def test_a_pod_that_takes_what_nobody_gave_it_is_refused(
    root: AdminClient, made: JsonObject, policy: str
) -> None:
    assert await refusal(root.create(pods_path(TENANT), made, dryRun="All")) == policy


HONEST = {
    "nothing": pod("plain", TENANT, CPU),
    "a card, to be translated": pod("asking", TENANT, GPU),
    "void": setting("void"),
    "none": setting("none"),
    "empty": with_env({"name": "NVIDIA_VISIBLE_DEVICES"}),
    "other variables": with_env({"name": "NVIDIA_DRIVER_CAPABILITIES", "value": "all"}, {"name": "X", "value": "all"}),
    "a translated Pod": with_env(
        field("metadata.annotations['visible-devices.koordgate.io/second']"),
        field("metadata.annotations['queue.visible-devices.koordgate.io/second']", "QUEUE"),
        *(
            field(f"metadata.annotations['nvidia-gpu-memory-{what}.koordgate.io/second']", variable)
            for what in ("limit", "request")
            for variable in LIMIT_VARIABLES
            if what.upper() in variable
        ),
    ),
    "another mount": mounting("/var/run/nvidia"),
    "another mount in an odd spelling": mounting("/var//run/./nvidia/../x"),
    "a directory of a like name": mounting("/data/nvidia-container-devices/logs"),
    "what it asks of NVIDIA's fractioning": noted(
        {f"nvidia.com/container.main.{what}": "8Gi" for what in ("gpu-memory.request", "gpu-memory.limit")}
        | {"nvidia.com/container.main.gpu-compute.mode": "time-slicing"}
    ),
    "NRI plugins that it requires": noted(
        {f"required-plugins.noderesource.dev{end}": '["other"]' for end in ("", "/pod")}
    ),
    "annotations of like names": noted({"my.cdi.k8s.io/gpu": "x", "example.com/container.main.gpus.devices": "x"}),
    "CDI devices in an exempt namespace": noted(SHOWING, namespace="exempt"),
    "a node without devices": pod("preset", TENANT, CPU, nodeName="n"),
    "a node and no card": pod("preset", TENANT, {"nvidia.com/gpu": "0"}, nodeName="n"),
    "a node and others' devices": pod("preset", TENANT, {"amd.com/gpu": "1"}, nodeName="n"),
    "annotations": noted({"example.com/note": "x", ORIGINAL_REQUEST: "{}", NUMA_SCOPE: "true"}),
    "many annotations": noted({f"example.com/{n}": "" for n in range(2000)}),
    "in an exempt namespace": setting("all", namespace="exempt"),
    "in a namespace that shows cards": setting("all", namespace="gpu-operator"),
}


@pytest.mark.parametrize("made", HONEST.values(), ids=HONEST)
async def test_an_honest_pod_passes(root: AdminClient, made: JsonObject) -> None:
    assert not await refusal(root.create(pods_path(made["metadata"]["namespace"]), made, dryRun="All"))


async def test_the_refusal_names_the_container_and_every_way_out(root: AdminClient) -> None:
    with pytest.raises(ApiError) as caught:
        await root.create(pods_path(TENANT), setting("all"))

    assert caught.value.status == 403
    for said in (
        "container second sets",
        "as a resource",
        "set it to void",
        "policies.visibleDevices.exemptNamespaces",
    ):
        assert said in caught.value.message


async def test_a_static_pods_mirror_passes_if_its_kubelet_writes_it(guarded: ControlPlane) -> None:
    mirror = noted(
        {"kubernetes.io/config.mirror": "x", DEVICE_ALLOCATED: "{}"}, {"nvidia.com/gpu": "1"}, nodeName="node-1"
    )
    mirror["spec"]["containers"][0]["env"] = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]
    async with guarded.admin(guarded.tokens[KUBELET]) as kubelet:
        assert not await refusal(kubelet.create(pods_path(TENANT), mirror, dryRun="All"))
        mirror["spec"]["nodeName"] = "node-2"
        assert await refusal(kubelet.create(pods_path(TENANT), mirror, dryRun="All"))


async def test_a_template_brings_no_pod_that_shows_itself_cards(guarded: ControlPlane, root: AdminClient) -> None:
    """The author of a template learns it from the ReplicaSet, as he does of any Pod that is refused."""
    path = f"/apis/apps/v1/namespaces/{TENANT}/replicasets"
    template = noted({"nvidia.cdi.k8s.io/pod": "nvidia.com/gpu=all"})
    about = {"annotations": template["metadata"]["annotations"], "labels": {"app": "forger"}}
    made = {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "metadata": {"name": "forger", "namespace": TENANT},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": about["labels"]},
            "template": {"metadata": about, "spec": template["spec"] | {"terminationGracePeriodSeconds": 30}},
        },
    }
    await root.create(path, made)

    async def told() -> str:
        conditions = (await root.get(f"{path}/forger"))["status"].get("conditions", ())
        return next((one["message"] for one in conditions if one["type"] == "ReplicaFailure"), "")

    try:
        message = await until(told, "the ReplicaSet cannot create its Pod")
    finally:
        await root.delete(f"{path}/forger")
    assert ALLOCATIONS in message
    assert "nvidia.cdi.k8s.io" in message


# Ephemeral containers


async def debugged(admin: AdminClient, name: str, *added: JsonObject) -> str:
    """The policy that refused to add ephemeral containers; empty if none did."""
    body = {"spec": {"ephemeralContainers": [{"image": "none", **one} for one in added]}}
    return await refusal(admin.patch(pods_path(TENANT, name, "ephemeralcontainers"), body, STRATEGIC_PATCH))


async def test_an_ephemeral_container_may_show_itself_no_cards_but_those_of_its_pod(
    guarded: ControlPlane, root: AdminClient
) -> None:
    of_main = field("metadata.annotations['visible-devices.koordgate.io/main']")
    async with standing(root, pod("debugged", TENANT, CPU)) as name:
        every = {"name": "all", "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]}
        assert await debugged(root, name, every) == VISIBLE
        assert not await debugged(root, name, {"name": "plain"})
        assert not await debugged(root, name, {"name": "same", "env": [of_main]})
        assert await debugged(root, name, {"name": "again", "volumeMounts": []}, every) == VISIBLE
        for variable in LIMIT_VARIABLES:
            unlimited = {"name": "more", "env": [{"name": variable, "value": "99999"}]}
            assert await debugged(root, name, unlimited) == VISIBLE
        limit = field("metadata.annotations['nvidia-gpu-memory-limit.koordgate.io/main']", "NVIDIA_GPU_MEMORY_LIMIT")
        assert not await debugged(root, name, {"name": "limited", "env": [of_main, limit]})


async def test_an_ephemeral_container_leaves_no_cards_to_its_image_where_nvidias_runtime_would_show_them(
    guarded: ControlPlane, root: AdminClient
) -> None:
    """CUDA's images ask for all cards, and koordgate itself gives Pods the RuntimeClass."""
    classes = "/apis/node.k8s.io/v1/runtimeclasses"
    of_main = field("metadata.annotations['visible-devices.koordgate.io/main']")
    void = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}
    for name in ("nvidia", "kata"):
        made = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": name}, "handler": name}
        await root.create(classes, made)
    try:
        async with standing(root, pod("classed", TENANT, CPU, runtimeClassName="nvidia")) as name:
            assert await debugged(root, name, {"name": "left"}) == VISIBLE
            assert await debugged(root, name, {"name": "left", "env": [{"name": "OTHER", "value": "void"}]}) == VISIBLE
            assert not await debugged(root, name, {"name": "none", "env": [void]})
            assert not await debugged(root, name, {"name": "same", "env": [of_main]})
        async with standing(root, pod("other", TENANT, CPU, runtimeClassName="kata")) as name:
            assert not await debugged(root, name, {"name": "plain"})
    finally:
        for name in ("nvidia", "kata"):
            await root.delete(f"{classes}/{name}")


@pytest.mark.parametrize("path", ODD_PATHS[:4])
async def test_an_ephemeral_container_mounts_nothing_by_which_the_runtime_shows_cards(
    guarded: ControlPlane, root: AdminClient, path: str
) -> None:
    made = mounting("/data")
    async with standing(root, made) as name:
        assert await debugged(root, name, {"name": "m", "volumeMounts": [{"name": "v", "mountPath": path}]}) == VISIBLE


async def test_an_ephemeral_container_brings_no_annotation(guarded: ControlPlane, root: AdminClient) -> None:
    async with standing(root, pod("debugged", TENANT, CPU)) as name:
        body = {
            "metadata": {"annotations": SHOWING},
            "spec": {"ephemeralContainers": [{"name": "plain", "image": "none"}]},
        }
        await root.patch(pods_path(TENANT, name, "ephemeralcontainers"), body, STRATEGIC_PATCH)
        assert not (await root.get(pods_path(TENANT, name)))["metadata"].get("annotations")


async def test_what_stood_before_the_policy_stops_no_debugging(guarded: ControlPlane, root: AdminClient) -> None:
    """A Pod of another time has the variable, and so has one of its ephemeral containers."""
    path = f"{GROUP}/validatingadmissionpolicybindings/{VISIBLE}"
    kept = await root.get(path)
    every = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]
    old = pod("old", TENANT, CPU)
    old["spec"]["containers"][0]["env"] = every

    async def acts(action: str) -> None:
        await root.patch(path, {"spec": {"validationActions": [action]}})

        async def seen() -> bool:
            return bool(await refusal(root.create(pods_path(TENANT), setting("all"), dryRun="All"))) is (
                action == "Deny"
            )

        await until(seen, f"the API server goes by {action}")

    await acts("Warn")
    try:
        async with standing(root, old) as name:
            assert not await debugged(root, name, {"name": "first", "env": every})
            await acts(kept["spec"]["validationActions"][0])
            assert not await debugged(root, name, {"name": "second"})
            assert await debugged(root, name, {"name": "third", "env": every}) == VISIBLE
    finally:
        await acts(kept["spec"]["validationActions"][0])


async def test_a_warning_names_the_remedy_and_stops_nobody(guarded: ControlPlane, root: AdminClient) -> None:
    path = f"{GROUP}/validatingadmissionpolicybindings/{PRESET}"
    preset = pod("preset", TENANT, GPU, nodeName="n")
    await root.patch(path, {"spec": {"validationActions": ["Warn"]}})

    async def passed() -> bool:
        return not await refusal(root.create(pods_path(TENANT), preset, dryRun="All"))

    try:
        await until(passed, "the policy warns")
        headers = {"Authorization": f"Bearer {guarded.admin_token}"}
        url = f"{guarded.admin_url}{pods_path(TENANT)}?dryRun=All"
        async with (
            aiohttp.ClientSession() as session,
            session.post(url, json=preset, headers=headers, ssl=False) as answer,
        ):
            assert answer.status == 201
            assert "remove spec.nodeName" in " ".join(answer.headers.getall("Warning"))
    finally:
        await root.patch(path, {"spec": {"validationActions": ["Deny"]}})

        async def refused() -> bool:
            return bool(await refusal(root.create(pods_path(TENANT), preset, dryRun="All")))

        await until(refused, "the policy denies again")


# Allocations of Pods that exist


@pytest.mark.parametrize("subresource", ["", "status"])
async def test_what_a_pod_holds_is_changed_by_nobody(root: AdminClient, subresource: str) -> None:
    async with standing(
        root, noted({ORIGINAL_REQUEST: "{}", NUMA_SCOPE: "true", DEVICE_SHARING: "{}", OWN_CPUS: "main", "note": "x"})
    ) as name:
        path = pods_path(TENANT, name, subresource)
        for annotations in (
            {DEVICE_ALLOCATED: "{}"},
            {RESOURCE_STATUS: "{}"},
            {ORIGINAL_REQUEST: "{ }"},
            {ORIGINAL_REQUEST: None},
            {NUMA_SCOPE: None},
            {DEVICE_SHARING: None},
            {OWN_CPUS: "other"},
            {DEVICE_QUOTAS: "{}"},
            {device_quota("main", "gpu-core"): "1"},
            {visible_devices("main"): "GPU-1"},
            {visible_devices("main", "queue"): "fast"},
            {"nvidia-gpu-memory-limit.koordgate.io/main": "99999"},
            {"nvidia-gpu-memory-request.koordgate.io/main": "99999"},
            {"gpu-core-limit.koordgate.io/main": "99"},
            {"nri.koordgate.io/main": "GPU-2"},
            {"required-plugins.noderesource.dev/container.main": "[]"},
            *({key: text} for key, text in SHOWING.items()),
        ):
            assert await refusal(root.patch(path, {"metadata": {"annotations": annotations}})) == ALLOCATIONS
        await root.patch(path, {"metadata": {"annotations": {"note": None, "other": "y"}, "labels": {"a": "b"}}})


ASKED = {f"nvidia.com/container.main.gpu-memory.{what}": "8Gi" for what in ("request", "limit")}


@pytest.mark.parametrize("subresource", ["", "status"])
@pytest.mark.parametrize("limited", [True, False])
async def test_whoever_must_have_limits_keeps_those_that_the_bind_was_told(
    root: AdminClient, subresource: str, *, limited: bool
) -> None:
    """Else an author would take the whole card when his container starts again."""
    async with standing(root, noted(ASKED | ({LIMITS: "require"} if limited else {}))) as name:
        path = pods_path(TENANT, name, subresource)
        for key in ASKED:
            for text in ("80Gi", None):
                change = {"metadata": {"annotations": {key: text}}}
                assert await refusal(root.patch(path, change, dryRun="All")) == (ALLOCATIONS if limited else "")
        added = {"metadata": {"annotations": {"nvidia.com/container.side.gpu-memory.limit": "80Gi"}}}
        assert await refusal(root.patch(path, added, dryRun="All")) == (ALLOCATIONS if limited else "")
        for text in (None, "require", "off"):
            unchanged = text == ("require" if limited else None)
            change = {"metadata": {"annotations": {LIMITS: text}}}
            assert await refusal(root.patch(path, change, dryRun="All")) == ("" if unchanged else ALLOCATIONS)


async def test_the_kubelet_goes_on_to_report_a_pod_that_holds_cards(guarded: ControlPlane, root: AdminClient) -> None:
    await guarded.add_node("node-1", {"cpu": "8", "pods": "110"})
    async with (
        standing(root, pod("held", TENANT, CPU)) as name,
        guarded.admin(await guarded.service_account_token(chart.NAMESPACE, "koord-scheduler")) as scheduler,
        guarded.admin(guarded.tokens[KUBELET]) as kubelet,
    ):
        given = binding(TENANT, name, "node-1")
        delivered = {"nvidia.cdi.k8s.io/container.main": "nvidia.com/gpu=GPU-1"}
        delivered |= {"nvidia.com/container.main.gpus.devices": "GPU-1"}
        delivered |= {f"nvidia-gpu-memory-{what}.koordgate.io/main": "1024" for what in ("limit", "request")}
        delivered |= {"nri.koordgate.io/main": "GPU-1", "gpu-core-limit.koordgate.io/main": "50"}
        delivered |= {"required-plugins.noderesource.dev/container.main": '["koordgate"]'}
        given["metadata"]["annotations"] = {DEVICE_ALLOCATED: "{}", visible_devices("main"): "GPU-1", **delivered}
        await scheduler.create(pods_path(TENANT, name, "binding"), given)

        await kubelet.patch(pods_path(TENANT, name, "status"), {"status": {"phase": "Running"}})

        stored = await root.get(pods_path(TENANT, name))
        assert stored["metadata"]["annotations"][visible_devices("main")] == "GPU-1"
        forged = {"metadata": {"annotations": {visible_devices("main"): "GPU-2"}}}
        removed = {"metadata": {"annotations": {DEVICE_ALLOCATED: None}}}
        for change in (
            forged,
            removed,
            *({"metadata": {"annotations": {key: text}}} for key in delivered for text in ("other", None)),
        ):
            assert await refusal(root.patch(pods_path(TENANT, name), change)) == ALLOCATIONS


# Bindings


@pytest.mark.parametrize("resource", ["binding", "bindings"])
async def test_another_binder_brings_no_allocation(root: AdminClient, resource: str) -> None:
    async with standing(root, pod("waiting", TENANT, CPU)) as name:
        old = resource == "bindings"
        path = f"/api/v1/namespaces/{TENANT}/bindings" if old else pods_path(TENANT, name, "binding")

        async def bound(annotations: dict[str, str]) -> str:
            made = binding(TENANT, name, "nowhere")
            made["metadata"]["annotations"] = annotations
            return await refusal(root.create(path, made, dryRun="All"))

        for key in (
            DEVICE_ALLOCATED,
            RESOURCE_STATUS,
            ORIGINAL_REQUEST,
            NUMA_SCOPE,
            DEVICE_SHARING,
            LIMITS,
            OWN_CPUS,
            DEVICE_QUOTAS,
            device_quota("main", "gpu-core"),
            visible_devices("main"),
            visible_devices("main", "queue"),
            "nvidia-gpu-memory-limit.koordgate.io/main",
            "nvidia-gpu-memory-request.koordgate.io/main",
            "gpu-core-limit.koordgate.io/main",
            "nri.koordgate.io/main",
            "required-plugins.noderesource.dev/container.main",
            *SHOWING,
        ):
            assert await bound({key: "{}"}) == BINDINGS
        assert await bound({f"example.com/{n}": "" for n in range(1001)}) == BINDINGS
        assert not await bound({"example.com/note": "x"})
        assert not await bound({})


async def test_our_scheduler_brings_allocations_by_the_subresource_alone(
    guarded: ControlPlane, root: AdminClient
) -> None:
    async with (
        standing(root, pod("waiting", TENANT, CPU)) as name,
        guarded.admin(await guarded.service_account_token(chart.NAMESPACE, "koord-scheduler")) as scheduler,
    ):
        given = binding(TENANT, name, "nowhere")
        given["metadata"]["annotations"] = {DEVICE_ALLOCATED: "{}"} | SHOWING
        path = pods_path(TENANT, name, "binding")
        assert not await refusal(scheduler.create(path, given, dryRun="All"))
        plain = binding(TENANT, name, "nowhere")
        for made in (given, plain):
            old = scheduler.create(f"/api/v1/namespaces/{TENANT}/bindings", made, dryRun="All")
            assert await refusal(old) == BINDINGS


async def test_another_binder_leaves_pods_of_our_scheduler_alone_and_binds_all_others(
    guarded: ControlPlane, root: AdminClient
) -> None:
    async with (
        standing(root, pod("ours", TENANT, CPU, schedulerName="koord-scheduler")) as ours,
        standing(root, pod("theirs", TENANT, CPU)) as theirs,
        guarded.admin(await guarded.service_account_token(chart.NAMESPACE, "koord-scheduler")) as scheduler,
    ):

        async def told(by: AdminClient, name: str, *, old: bool = False) -> str:
            path = f"/api/v1/namespaces/{TENANT}/bindings" if old else pods_path(TENANT, name, "binding")
            return await refusal(by.create(path, binding(TENANT, name, "nowhere"), dryRun="All"))

        async def known() -> bool:
            return await told(root, ours) == BINDERS

        await until(known, "the API server's cache has the Pod")
        assert await told(root, ours, old=True) == BINDERS
        assert not await told(root, theirs)
        assert not await told(scheduler, ours)


# What the policies cost


def large(variables: int, containers: int = 1) -> JsonObject:
    env = [{"name": f"VARIABLE_{n}", "value": "x"} for n in range(variables)]
    made = pod("large", TENANT, CPU)
    made["spec"]["containers"] = [{"name": f"c{n}", "image": "none", "env": env} for n in range(containers)]
    return made


def many_mounts(containers: int, mounts: int, named: str = "x") -> JsonObject:
    made = large(0, containers)
    made["spec"]["volumes"] = [{"name": "v", "emptyDir": {}}]
    for one in made["spec"]["containers"]:
        one["volumeMounts"] = [{"name": "v", "mountPath": f"/data/{n}/{named}"} for n in range(mounts)]
    return made


@pytest.mark.parametrize(
    "made",
    [
        large(5000),
        large(100, 200),
        large(10, 1000),
        many_mounts(1, 5000),
        many_mounts(200, 50),
        many_mounts(1, 1000, "nvidia-container-devices"),
        noted({f"nvidia.com/container.{n}.gpu-memory.limit": "8Gi" for n in range(1000)}),
    ],
    ids=["variables", "containers", "more containers", "mounts", "mounts everywhere", "like mounts", "annotations"],
)
async def test_a_pod_larger_than_any_passes_within_the_servers_limits(root: AdminClient, made: JsonObject) -> None:
    assert not await refusal(root.create(pods_path(TENANT), made, dryRun="All"))


async def test_one_variable_among_thousands_is_found(root: AdminClient) -> None:
    made = large(5000)
    made["spec"]["containers"][0]["env"].append({"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"})

    assert await refusal(root.create(pods_path(TENANT), made, dryRun="All")) == VISIBLE


async def test_the_cluster_finds_no_fault_with_the_policies_types(root: AdminClient) -> None:
    found = await root.items(f"{GROUP}/validatingadmissionpolicies")
    names = [one["metadata"]["name"] for one in found]
    assert {VISIBLE, PRESET, ALLOCATIONS, BINDINGS, BINDERS, "koordgate-webhook", "koordgate-gates"} < set(names)
    for name in names:

        async def checked(name: str = name) -> JsonObject:
            policy = await root.get(f"{GROUP}/validatingadmissionpolicies/{name}")
            about: JsonObject = policy.get("status", {})
            return about if about.get("observedGeneration") == policy["metadata"]["generation"] else {}

        assert (await until(checked, f"{name} was checked"))["typeChecking"] == {}, name
