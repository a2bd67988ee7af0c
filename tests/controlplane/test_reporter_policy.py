"""What a node's reporter may write, as decided by the API server with the chart's ValidatingAdmissionPolicy."""

from collections.abc import AsyncIterator, Awaitable

import pytest
import pytest_asyncio
from builders import gpu, nic
from controlplane.conftest import KUBELET

from allocator.vocabulary.device import Device
from allocator.vocabulary.devicetype import BUILT_IN, Unit, own_type
from allocator.vocabulary.names import TYPE_FPGA
from allocator.wire.deviceobject import GPU_MODEL, GPU_VENDOR
from localplane import chart
from localplane.admin import APPLY_PATCH, MERGE_PATCH, AdminClient, ApiError, JsonObject
from localplane.plane import ControlPlane
from localplane.waiting import until
from reporter.gpu.entries import DRIVER_VERSION
from reporter.gpu.facts import GpuFacts
from reporter.pods import MANAGER, read_node
from reporter.publish import nodestatus
from reporter.publish.nodestatus import discovery_labels

pytestmark = pytest.mark.usefixtures("guarded")
DEVICES = "/apis/scheduling.koordinator.sh/v1alpha1/devices"
TOPOLOGIES = "/apis/topology.node.k8s.io/v1alpha1/noderesourcetopologies"
NODES = "/api/v1/nodes"
POLICIES = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
NAME = "koordgate-reporter"
USER = f"system:serviceaccount:{chart.NAMESPACE}:{NAME}"
OWN, OTHER, LARGE = "own", "node-1", "large"
TYPES = BUILT_IN.with_types([own_type("queue", "example.com/queue", Unit.UNITS)])
HOST_LABEL = "kubernetes.io/hostname"
REFUSED = 403
NOT_ITS_OWN = "may write of its own node only"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def guarded(policed: ControlPlane) -> AsyncIterator[ControlPlane]:
    """The control plane without webhooks, with two Nodes."""
    async with policed.admin() as admin:
        for name in (OWN, OTHER):
            amounts = {"cpu": "8", "pods": "110", "nvidia.com/gpu": "1", "example.com/gone": "3"}
            await policed.add_node(name, amounts, labels={HOST_LABEL: name})
            await admin.patch(f"{NODES}/{name}", {"metadata": {"annotations": {"kept": "yes"}}})
        async with policed.admin(await policed.service_account_token(chart.NAMESPACE, NAME)) as nobody:

            async def in_force() -> bool:
                return bool(await refusal(applied(nobody, device(OWN))))

            await until(in_force, "the API server goes by the policy")
        yield policed
        for name in (OWN, OTHER):
            await admin.delete(f"{NODES}/{name}")


@pytest_asyncio.fixture(loop_scope="session")
async def reporter(guarded: ControlPlane) -> AsyncIterator[AdminClient]:
    """A client with the token that is mounted into the reporter's Pod on the Node `own`."""
    token = await guarded.service_account_token(chart.NAMESPACE, NAME, node=OWN)
    async with guarded.admin(token) as client:
        yield client


def device(node: str) -> JsonObject:
    return {
        "apiVersion": "scheduling.koordinator.sh/v1alpha1",
        "kind": "Device",
        "metadata": {"name": node},
        "spec": {"devices": []},
    }


def topology(node: str) -> JsonObject:
    return {
        "apiVersion": "topology.node.k8s.io/v1alpha1",
        "kind": "NodeResourceTopology",
        "metadata": {"name": node},
        "topologyPolicies": [],
        "zones": [],
    }


def everything() -> list[Device]:
    """A device of every type."""
    return [
        gpu(0),
        nic(0),
        Device(TYPE_FPGA, "FPGA-0", 0, healthy=True, capacity={"fpga": 100}),
        Device("queue", "QUEUE-0", 0, healthy=True, capacity={"queue": 40}),
    ]


def applied(client: AdminClient, body: JsonObject) -> Awaitable[JsonObject]:
    """Apply an object as the reporter does, as a dry run."""
    path = {"Device": DEVICES, "NodeResourceTopology": TOPOLOGIES}[body["kind"]]
    return client.patch(f"{path}/{body['metadata']['name']}", body, APPLY_PATCH, **tried())


def status(client: AdminClient, node: str, body: JsonObject) -> Awaitable[JsonObject]:
    """Write through the Node's status, as a dry run."""
    return client.patch(f"{NODES}/{node}/status", body, MERGE_PATCH, dryRun="All")


def tried() -> dict[str, str]:
    return {"fieldManager": MANAGER, "force": "true", "dryRun": "All"}


async def refusal(request: Awaitable[JsonObject]) -> str:
    """The policy's message about a request; empty if it let the request pass."""
    try:
        await request
    except ApiError as error:
        if error.status == REFUSED and f"ValidatingAdmissionPolicy '{NAME}'" in error.message:
            return error.message
        raise
    return ""


def writes(client: AdminClient, node: str) -> dict[str, Awaitable[JsonObject]]:
    """One write of each kind of object that belongs to a Node."""
    rdma = {"kubernetes.io/rdma": "100"}
    return {
        "Device applied": applied(client, device(node)),
        "Device created": client.create(DEVICES, device(node), dryRun="All"),
        "NodeResourceTopology applied": applied(client, topology(node)),
        "NodeResourceTopology created": client.create(TOPOLOGIES, topology(node), dryRun="All"),
        "status of the Node": status(client, node, {"status": {"capacity": rdma, "allocatable": rdma}}),
        "labels of the Node": status(client, node, {"metadata": {"labels": {GPU_MODEL: "H100"}}}),
    }


# Whose objects


async def test_all_that_is_reported_about_its_own_node_passes(reporter: AdminClient, root: AdminClient) -> None:
    node = read_node(await root.get(f"{NODES}/{OWN}"))
    labels = {GPU_VENDOR: "NVIDIA", GPU_MODEL: "H100", DRIVER_VERSION: "580"}
    body = nodestatus.build(node, everything(), labels, TYPES)

    for made in (device(OWN), topology(OWN)):
        assert not await refusal(applied(reporter, made))
    answer = await reporter.patch(f"{NODES}/{OWN}/status", body, APPLY_PATCH, **tried())

    told = {
        "koordinator.sh/gpu",
        "kubernetes.io/gpu-memory",
        "koordinator.sh/fpga",
        "kubernetes.io/rdma",
        "example.com/queue",
    }
    assert told < body["status"]["capacity"].keys()
    assert len(body["metadata"]["labels"]) == 4
    assert body["metadata"]["labels"].items() <= answer["metadata"]["labels"].items()
    assert body["status"]["capacity"].keys() <= answer["status"]["capacity"].keys()


async def test_labels_of_nvidias_discovery_follow_their_owner(reporter: AdminClient, root: AdminClient) -> None:
    cards = [GpuFacts(uuid=f"GPU-{at}", minor=at, model="NVIDIA H100", memory=80 * 2**30) for at in range(2)]
    told = {"nvidia.com/gpu.product": "NVIDIA-H100", "nvidia.com/gpu.memory": "81920", "nvidia.com/gpu.count": "2"}

    async def a_round(found: list[GpuFacts]) -> JsonObject:
        labels = discovery_labels(found, await root.get(f"{NODES}/{OWN}"))
        body = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": OWN, "labels": labels}}
        owner = {"fieldManager": MANAGER, "force": "true"}
        written = await reporter.patch(f"{NODES}/{OWN}/status", body, APPLY_PATCH, **owner)
        return {key: value for key, value in written["metadata"].get("labels", {}).items() if key in told}

    assert await a_round(cards) == told
    assert await a_round(cards) == told
    other = {"nvidia.com/gpu.product": "NVIDIA-H100-SHARED"}
    await root.patch(f"{NODES}/{OWN}", {"metadata": {"labels": other}}, MERGE_PATCH, fieldManager="nfd-master")
    for _ in range(2):
        assert await a_round(cards) == told | other
    assert await a_round([]) == other
    gone = {"metadata": {"labels": dict.fromkeys(other)}}
    await root.patch(f"{NODES}/{OWN}", gone, MERGE_PATCH, fieldManager="nfd-master")
    assert await a_round(cards) == told
    assert await a_round([]) == {}


async def test_nothing_of_another_node_may_be_written(reporter: AdminClient) -> None:
    for what, write in writes(reporter, OTHER).items():
        said = await refusal(write)

        assert f"the reporter of node {OWN} {NOT_ITS_OWN}, and this is of {OTHER}" in said, what
        assert "set NODE_NAME" in said, what


async def test_a_name_that_the_api_server_would_make_up_is_refused(reporter: AdminClient) -> None:
    body = device(OWN) | {"metadata": {"generateName": OWN}}

    assert NOT_ITS_OWN in await refusal(reporter.create(DEVICES, body, dryRun="All"))


async def test_what_exists_of_another_node_may_not_be_changed(reporter: AdminClient, root: AdminClient) -> None:
    for path, body in ((DEVICES, device(OTHER)), (TOPOLOGIES, topology(OTHER))):
        await root.apply(body)
        change = {"metadata": {"annotations": {"a": "b"}}}

        assert NOT_ITS_OWN in await refusal(reporter.patch(f"{path}/{OTHER}", change, dryRun="All"))
        await root.delete(f"{path}/{OTHER}")


async def test_a_token_that_names_no_node_writes_nothing(guarded: ControlPlane) -> None:
    unbound = await guarded.service_account_token(chart.NAMESPACE, NAME)
    async with guarded.admin(unbound) as nobody:
        for what, write in writes(nobody, OWN).items():
            said = await refusal(write)

            assert f"the token of {USER} names no node" in said, what
            assert "reporter.ownNodeOnly" in said, what


async def test_the_token_of_another_nodes_pod_is_good_for_that_node(guarded: ControlPlane) -> None:
    async with guarded.admin(await guarded.service_account_token(chart.NAMESPACE, NAME, node=OTHER)) as there:
        assert [await refusal(write) for write in writes(there, OTHER).values()] == [""] * 6
        assert all([NOT_ITS_OWN in await refusal(write) for write in writes(there, OWN).values()])


@pytest.mark.parametrize("path", [f"{DEVICES}/{OWN}", f"{TOPOLOGIES}/{OWN}", f"{NODES}/{OWN}"])
async def test_nothing_may_be_deleted_not_even_of_its_own_node(reporter: AdminClient, path: str) -> None:
    with pytest.raises(ApiError, match="cannot delete resource") as failed:
        await reporter.delete(path)

    assert failed.value.status == REFUSED


# Other users are not affected


async def test_an_administrator_is_not_stopped(root: AdminClient) -> None:
    assert [await refusal(write) for write in writes(root, OTHER).values()] == [""] * 6
    assert not await refusal(status(root, OTHER, {"status": {"capacity": {"cpu": "9"}}}))


async def test_a_kubelet_is_not_stopped(guarded: ControlPlane) -> None:
    body = {
        "metadata": {"annotations": {"a": "b"}, "labels": {HOST_LABEL: "renamed"}},
        "status": {"capacity": {"cpu": "9", "nvidia.com/gpu": "8"}, "conditions": []},
    }
    async with guarded.admin(guarded.tokens[KUBELET]) as kubelet:
        answer = await status(kubelet, OTHER, body)

    assert answer["status"]["capacity"]["nvidia.com/gpu"] == "8"


@pytest.mark.parametrize(
    ("namespace", "account"),
    [("koordinator-system", "koordlet"), ("default", NAME), (chart.NAMESPACE, f"{NAME}-2")],
    ids=["koordlet", "of that name elsewhere", "of a longer name"],
)
async def test_other_accounts_with_the_same_rights_are_not_stopped(
    guarded: ControlPlane, root: AdminClient, namespace: str, account: str
) -> None:
    await guarded.ensure_namespace(namespace)
    metadata = {"name": account, "namespace": namespace}
    await root.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata})
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": f"{namespace}.{account}"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": NAME},
        "subjects": [{"kind": "ServiceAccount", **metadata}],
    }
    await root.apply(binding)
    async with guarded.admin(await guarded.service_account_token(namespace, account)) as client:

        async def has_rights() -> bool:
            review = {
                "apiVersion": "authorization.k8s.io/v1",
                "kind": "SelfSubjectAccessReview",
                "spec": {"resourceAttributes": {"verb": "patch", "resource": "nodes", "subresource": "status"}},
            }
            answer = await client.create("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", review)
            return bool(answer["status"]["allowed"])

        await until(has_rights, "the binding is known")
        assert [await refusal(write) for write in writes(client, OTHER).values()] == [""] * 6
        assert not await refusal(status(client, OTHER, {"status": {"capacity": {"cpu": "9"}}}))


# What it may change of its own Node


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"status": {"capacity": {"cpu": "9"}}}, "of the status"),
        ({"status": {"allocatable": {"nvidia.com/gpu": "2"}}}, "of the status"),
        ({"status": {"capacity": {"example.com/other": "1"}}}, "of the status"),
        ({"status": {"conditions": []}}, "of the status"),
        ({"status": {"nodeInfo": {"kubeletVersion": "v0.0.1"}}}, "of the status"),
        ({"metadata": {"labels": {"node-restriction.kubernetes.io/trusted": "yes"}}}, "of the labels"),
        ({"metadata": {"labels": {HOST_LABEL: OTHER}}}, "of the labels"),
        ({"metadata": {"annotations": {"a": "b"}}}, "of the metadata"),
        ({"metadata": {"annotations": None}}, "of the metadata"),
        (
            {"metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u"}]}},
            "of the metadata",
        ),
    ],
    ids=[
        "CPUs",
        "the kubelet's cards",
        "a resource of others",
        "conditions",
        "versions",
        "a label that kubelets may not set",
        "a label of others changed",
        "an annotation",
        "annotations removed",
        "an owner",
    ],
)
async def test_what_is_not_the_reporters_stays_in_its_own_node_too(
    reporter: AdminClient, body: JsonObject, said: str
) -> None:
    assert f"{said} of its Node the reporter may change" in await refusal(status(reporter, OWN, body))


async def test_the_spec_stays_because_status_gives_no_right_to_it(reporter: AdminClient, root: AdminClient) -> None:
    taint = {"spec": {"taints": [{"key": "a", "effect": "NoExecute"}], "unschedulable": True}}

    answer = await status(reporter, OWN, taint)

    assert answer["spec"] == (await root.get(f"{NODES}/{OWN}"))["spec"]


async def test_a_resource_of_a_type_that_is_configured_no_more_may_be_withdrawn(reporter: AdminClient) -> None:
    gone = {"example.com/gone": None}

    answer = await status(reporter, OWN, {"status": {"capacity": gone, "allocatable": gone}})

    assert "example.com/gone" not in answer["status"]["capacity"]


async def test_a_node_larger_than_kubernetes_supports_is_within_the_servers_limits(
    guarded: ControlPlane, root: AdminClient
) -> None:
    amounts = {"cpu": "512", "pods": "1000"} | {f"example.com/r{n}": "1000" for n in range(500)}
    await guarded.add_node(LARGE, amounts, labels={f"example.com/label-{n}": f"{n:063}" for n in range(1000)})
    images = [{"names": [f"example.com/{n}/{k}:{'x' * 64}" for k in range(5)], "sizeBytes": 1} for n in range(500)]
    volumes = [f"kubernetes.io/csi/example.com^{n:064}" for n in range(500)]
    attached = [{"name": name, "devicePath": ""} for name in volumes]
    kept = {"images": images, "volumesInUse": volumes, "volumesAttached": attached}
    await root.patch(f"{NODES}/{LARGE}/status", {"status": kept})
    notes = {f"example.com/{n}": "x" * 1000 for n in range(200)}
    await root.patch(f"{NODES}/{LARGE}", {"metadata": {"annotations": notes}})
    body = {"status": {"allocatable": {"kubernetes.io/rdma": "100"}}}

    async with guarded.admin(await guarded.service_account_token(chart.NAMESPACE, NAME, node=LARGE)) as there:
        answer = await status(there, LARGE, body)

    assert len(answer["status"]["images"]) == 500
    assert answer["status"]["allocatable"]["kubernetes.io/rdma"] == "100"


@pytest.mark.parametrize(
    ("amounts", "labels", "body"),
    [
        (1001, 1, {"status": {"allocatable": {"kubernetes.io/rdma": "1"}}}),
        (1, 1001, {"metadata": {"labels": None}}),
        (1, 1, {"metadata": {"labels": {f"m{n}": "" for n in range(1000)}}}),
        (1, 1, {"status": {"allocatable": {f"example.com/s{n}": "1" for n in range(1000)}}}),
    ],
    ids=["resources", "labels until now", "labels from now on", "allocatable from now on"],
)
async def test_a_node_that_is_larger_still_is_not_looked_through(
    guarded: ControlPlane, amounts: int, labels: int, body: JsonObject
) -> None:
    name = f"swollen-{amounts}-{labels}"
    await guarded.add_node(
        name, {f"example.com/r{n}": "1" for n in range(amounts)}, labels={f"l{n}": "" for n in range(labels)}
    )
    async with guarded.admin(await guarded.service_account_token(chart.NAMESPACE, NAME, node=name)) as there:
        assert "more than 1000 labels or resources" in await refusal(status(there, name, body))


# The kubelet's API, with reporter.kubelet.configuration


async def asked(client: AdminClient, node: str, path: str) -> str:
    """The policy's message about a request to a kubelet; empty if it was passed on (the kubelet has no address)."""
    with pytest.raises(ApiError) as failed:
        await client.get(f"{NODES}/{node}/proxy{path}")
    if failed.value.status == REFUSED:
        return failed.value.message
    assert "no preferred addresses found" in failed.value.message
    return ""


async def test_its_own_kubelet_may_be_asked_for_its_configuration(reporter: AdminClient) -> None:
    assert not await asked(reporter, OWN, "/configz")


@pytest.mark.parametrize("path", ["", "/pods", "/configz/x", "/configz%2f..%2fpods"])
async def test_nothing_else_may_be_asked_of_it(reporter: AdminClient, path: str) -> None:
    assert "may ask /configz only" in await asked(reporter, OWN, path)


@pytest.mark.parametrize("node", [OTHER, f"https:{OTHER}:10250", f"https:{OWN}:22"])
async def test_no_other_kubelet_and_no_other_port_may_be_asked(reporter: AdminClient, node: str) -> None:
    assert NOT_ITS_OWN in await asked(reporter, node, "/configz")


# The policy itself


async def test_the_cluster_finds_no_fault_with_the_policys_types(root: AdminClient) -> None:
    async def checked() -> JsonObject:
        found = await root.get(f"{POLICIES}/{NAME}")
        about: JsonObject = found.get("status", {})
        return about if about.get("observedGeneration") == found["metadata"]["generation"] else {}

    assert (await until(checked, "the policy was checked"))["typeChecking"] == {}
