"""`koordgate cleanup` on an API server that refuses, changes objects meanwhile, or keeps Pods alive."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from fake_kube import FakeKube, answer

from console.cleanup.command import InstalledError, Remover
from koordgate.kube.client import KubeClient
from koordgate.kube.errors import Forbidden, KubeError

Raw = dict[str, Any]
SPACE = "koordgate-system"
LABELS = {"app.kubernetes.io/part-of": "koordgate"}
MUTATING = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
SECRETS = f"/api/v1/namespaces/{SPACE}/secrets"
DEPLOYMENTS = f"/apis/apps/v1/namespaces/{SPACE}/deployments"
PODS = f"/api/v1/namespaces/{SPACE}/pods"
QUOTAS = "/api/v1/namespaces/team/resourcequotas"
NODES = "/api/v1/nodes"
SPACES = "/api/v1/namespaces"
LEASES = f"/apis/coordination.k8s.io/v1/namespaces/{SPACE}/leases"
DEVICES = "/apis/scheduling.koordinator.sh/v1alpha1/devices"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
WERE = ["koord-scheduler-cert", "koordgate-cert", "koordgate-tls", "own"]  # the Secrets
DEFINED = "devices.scheduling.koordinator.sh"


@pytest_asyncio.fixture
async def fake() -> AsyncIterator[FakeKube]:
    async with FakeKube() as server:
        server.put(MUTATING, {"metadata": {"name": "koordgate", "labels": LABELS}, "webhooks": []})
        server.put(MUTATING, {"metadata": {"name": "other"}, "webhooks": []})
        server.put(DEPLOYMENTS, {"metadata": {"name": "koordgate", "labels": LABELS}})
        server.put(SECRETS, {"metadata": {"name": "koordgate-tls"}})
        server.put(SECRETS, {"metadata": {"name": "own"}})
        server.put(SECRETS, {"metadata": {"name": "koord-scheduler-cert"}})
        issued = {"cert-manager.io/certificate-name": "koordgate"}
        server.put(SECRETS, {"metadata": {"name": "koordgate-cert", "annotations": issued}})
        for name in ("koord-scheduler", "another"):
            server.put(LEASES, {"metadata": {"name": name}})
        noted = {"koordgate.io/mode": "shadow", "team": "ml"}
        server.put(SPACES, {"metadata": {"name": "team", "labels": noted, "annotations": {"koordgate.io/x": "1"}}})
        server.put(SPACES, {"metadata": {"name": "others", "labels": {"team": "web"}}})
        server.put(QUOTAS, {"metadata": {"name": "cards.koordgate", "labels": {"quota.koordgate.io/mirror": "true"}}})
        server.put(QUOTAS, {"metadata": {"name": "cards"}})
        noted = {"koordgate.io/released": "1", "example.com/own": "x"}
        server.put(NODES, {"metadata": {"name": "n1", "annotations": noted}})
        yield server


@pytest_asyncio.fixture
async def kube(fake: FakeKube) -> AsyncIterator[KubeClient]:
    async with KubeClient(fake.url) as client:
        yield client


async def clean(kube: KubeClient, said: list[str], waits: list[float] | None = None, **options: Any) -> Remover:
    async def sleep(seconds: float) -> None:
        if waits is not None:
            waits.append(seconds)

    chosen = {"dry_run": False, **options}
    remover = Remover(kube, SPACE, said.append, sleep=sleep, **chosen)
    await remover.run()
    return remover


def names(fake: FakeKube, path: str) -> list[str]:
    return [one["metadata"]["name"] for one in fake.objects(path)]


async def test_all_of_ours_goes_and_nothing_of_others(fake: FakeKube, kube: KubeClient) -> None:
    said: list[str] = []
    left = await clean(kube, said)
    assert said[0] == "mutatingwebhookconfigurations koordgate"
    assert (left.removed, left.kept) == (8, [])
    assert [names(fake, path) for path in (MUTATING, SECRETS, QUOTAS, DEPLOYMENTS, LEASES)] == [
        ["other"],
        ["koord-scheduler-cert", "own"],  # the first is somebody's own: cert-manager did not make it
        ["cards"],
        [],
        ["another"],
    ]
    assert "Namespace team: label koordgate.io/mode, annotation koordgate.io/x" in said
    about = fake.get(f"{SPACES}/team")["metadata"]
    assert (about["labels"], about["annotations"]) == ({"team": "ml"}, {})
    assert fake.get(f"{NODES}/n1")["metadata"]["annotations"] == {"example.com/own": "x"}
    again: list[str] = []
    assert (await clean(kube, again)).removed == 0
    assert again == []


async def test_a_dry_run_says_the_same_and_writes_nothing(fake: FakeKube, kube: KubeClient) -> None:
    dry: list[str] = []
    await clean(kube, dry, dry_run=True)
    assert not [one for one in fake.requests if one.verb not in {"get", "list"}]
    said: list[str] = []
    await clean(kube, said)
    assert dry == said


async def test_a_release_of_helm_is_left_to_helm(fake: FakeKube, kube: KubeClient) -> None:
    about = {"name": "koordgate", "labels": LABELS, "annotations": {"meta.helm.sh/release-name": "gate"}}
    fake.put(DEPLOYMENTS, {"metadata": about})
    with pytest.raises(InstalledError, match="helm uninstall gate -n koordgate-system"):
        await clean(kube, [])
    assert not [one for one in fake.requests if one.verb not in {"get", "list"}]
    left = await clean(kube, [], dry_run=True)
    assert "helm uninstall gate" in left.notes[0]


@pytest.mark.parametrize("kind", ["deployments", "daemonsets"])
@pytest.mark.parametrize("space", ["gpus", "zoo"])
@pytest.mark.parametrize(
    ("annotations", "way_out"),
    [
        ({}, "--installed-in SPACE if it is to be removed"),
        ({"meta.helm.sh/release-name": "gate"}, "helm uninstall gate -n SPACE"),
    ],
    ids=["applied", "by Helm"],
)
async def test_an_installation_in_another_namespace_is_not_robbed_of_what_it_needs(
    fake: FakeKube, kube: KubeClient, kind: str, space: str, annotations: dict[str, str], way_out: str
) -> None:
    way_out = way_out.replace("SPACE", space)
    about = {"name": "koordgate-there", "labels": LABELS, "annotations": annotations}
    fake.put(f"/apis/apps/v1/namespaces/{space}/{kind}", {"metadata": about})
    with pytest.raises(InstalledError, match=way_out):
        await clean(kube, [])
    assert not [one for one in fake.requests if one.verb not in {"get", "list"}]
    left = await clean(kube, [], dry_run=True)
    assert way_out in left.notes[0]


async def test_what_comes_after_a_refusal_is_not_begun(fake: FakeKube, kube: KubeClient) -> None:
    fake.faults.add("delete", "mutatingwebhookconfigurations", answer(403, "you may not"))
    with pytest.raises(Forbidden):
        await clean(kube, [])
    assert names(fake, SECRETS) == WERE
    await clean(kube, [])
    assert names(fake, SECRETS) == ["koord-scheduler-cert", "own"]


async def test_pods_of_ours_that_do_not_end_keep_the_rest_waiting(fake: FakeKube, kube: KubeClient) -> None:
    fake.put(PODS, {"metadata": {"name": "koordgate-reporter-x", "labels": LABELS}})
    waits: list[float] = []
    with pytest.raises(
        KubeError,
        match=r"that run after 120 s \(1\): koordgate-reporter-x; they would write again",
    ):
        await clean(kube, [], waits)
    assert waits == [1.0] * 120
    assert names(fake, SECRETS) == WERE
    assert fake.get(f"{NODES}/n1")["metadata"]["annotations"]["koordgate.io/released"] == "1"


async def test_a_namespace_that_is_deleted_meanwhile_is_passed_over(fake: FakeKube, kube: KubeClient) -> None:
    fake.faults.add("patch", "namespaces", answer(404, "it is gone"))
    said: list[str] = []
    await clean(kube, said)
    assert not [one for one in said if one.startswith("Namespace")]
    assert "Node n1: annotation koordgate.io/released" in said


async def test_a_definition_stays_while_others_have_objects_of_it(fake: FakeKube, kube: KubeClient) -> None:
    fake.put(CRDS, {"metadata": {"name": DEFINED, "labels": LABELS}})
    fake.put(DEVICES, {"metadata": {"name": "n1", "labels": {"app.kubernetes.io/managed-by": "koordgate"}}})
    fake.put(DEVICES, {"metadata": {"name": "n2", "labels": {"app.kubernetes.io/managed-by": "koordlet"}}})
    fake.put(DEVICES, {"metadata": {"name": "n3", "labels": {"app.kubernetes.io/managed-by": "another"}}})
    left = await clean(kube, [])
    assert names(fake, DEVICES) == ["n2", "n3"]
    fake.remove(f"{DEVICES}/n3")
    assert names(fake, CRDS) == [DEFINED]
    assert "others have objects of it" in left.notes[0]
    fake.remove(f"{DEVICES}/n2")
    await clean(kube, [])
    assert names(fake, CRDS) == []


async def test_a_definition_of_another_product_stays(fake: FakeKube, kube: KubeClient) -> None:
    fake.put(CRDS, {"metadata": {"name": DEFINED, "labels": {"app": "koordinator"}}})
    left = await clean(kube, [])
    assert names(fake, CRDS) == [DEFINED]
    assert "another product's" in left.notes[0]


def owner(manager: str, *labels: str) -> Raw:
    return {"manager": manager, "fieldsV1": {"f:metadata": {"f:labels": {f"f:{key}": {} for key in labels}}}}


REPORTED, THEIRS = owner("koordgate-reporter", "model"), owner("koordlet")
TOPOLOGIES = "/apis/topology.node.k8s.io/v1alpha1/noderesourcetopologies"
LEDGER = "/apis/koordgate.io/v1alpha1/nodeallocations"


async def test_each_node_is_freed_of_its_taint_and_of_the_record_of_the_reporter(
    fake: FakeKube, kube: KubeClient
) -> None:
    taint, other = ({"key": key, "effect": "NoSchedule"} for key in ("koordgate.io/headroom", "example.com/own"))
    fake.put(NODES, {"metadata": {"name": "n2"}, "spec": {"taints": [taint, other]}})
    fake.put(NODES, {"metadata": {"name": "n3"}, "spec": {"taints": [other]}})
    fake.put(NODES, {"metadata": {"name": "n4", "managedFields": [owner("koordgate-reporter")]}})
    for owners in ([], [REPORTED]):  # a label that is written belongs to nobody at first
        fake.put(NODES, {"metadata": {"name": "n5", "labels": {"model": "x"}, "managedFields": owners}})
    said: list[str] = []
    await clean(kube, said)
    assert [one for one in said if one.startswith("Node")] == [
        "Node n1: annotation koordgate.io/released",
        "Node n2: taint koordgate.io/headroom",
        "Node n4: the record of the reporter as an owner",
        "Node n5: label model",
    ]
    assert fake.get(f"{NODES}/n2")["spec"]["taints"] == [other]
    assert [one.path for one in fake.seen("patch", "nodes")] == [f"{NODES}/n2"]
    applied = [one for one in fake.seen("patch", "nodes/status") if "apply" in one.headers["Content-Type"]]
    assert [one.path.split("/")[-2] for one in applied] == ["n4", "n5"]
    assert {(one.query["fieldManager"], one.query["force"]) for one in applied} == {("koordgate-reporter", "true")}


async def test_a_node_that_is_deleted_meanwhile_is_passed_over(fake: FakeKube, kube: KubeClient) -> None:
    fake.put(NODES, {"metadata": {"name": "n0", "labels": {"koordgate.io/x": "1"}}})
    fake.faults.add("patch", "nodes/status", answer(404, "it is gone"))
    said: list[str] = []
    left = await clean(kube, said)
    assert [one for one in said if one.startswith("Node")] == ["Node n1: annotation koordgate.io/released"]
    assert left.removed == len(said)


async def test_objects_that_others_write_too_stay_without_what_is_the_reporters(
    fake: FakeKube, kube: KubeClient
) -> None:
    for path, kind in ((DEVICES, "Device"), (TOPOLOGIES, "NodeResourceTopology")):
        for name, owners in (("a", [REPORTED]), ("b", [THEIRS, REPORTED]), ("c", [THEIRS]), ("d", [REPORTED])):
            fake.put(path, {"kind": kind, "metadata": {"name": name, "managedFields": owners}})
        fake.put(
            path, {"kind": kind, "metadata": {"name": "e", "labels": {"app.kubernetes.io/managed-by": "koordgate"}}}
        )
    for name in ("a", "b"):
        fake.put(LEDGER, {"metadata": {"name": name}})
    dry: list[str] = []
    await clean(kube, dry, dry_run=True)
    assert not [one for one in fake.requests if one.verb not in {"get", "list"}]
    said: list[str] = []
    left = await clean(kube, said)
    assert dry == said
    assert left.removed == len(said)
    for path in (DEVICES, TOPOLOGIES):
        assert names(fake, path) == ["b", "c"]
        plural = path.rpartition("/")[2]
        told = [one for one in said if plural in one]
        assert told == [
            f"{plural} a",
            f"what is koordgate's in {plural} b",
            f"{plural} d",
            f"{plural} e",
        ]
        (applied,) = fake.seen("patch", plural)
        assert (applied.path, applied.query["fieldManager"]) == (f"{path}/b", "koordgate-reporter")
    assert [one for one in said if one.startswith("nodeallocations")] == ["nodeallocations a", "nodeallocations b"]
    assert names(fake, LEDGER) == []


async def test_an_object_that_others_delete_first_is_not_told(fake: FakeKube, kube: KubeClient) -> None:
    fake.faults.add("delete", "mutatingwebhookconfigurations", answer(404, "it is gone"))
    said: list[str] = []
    left = await clean(kube, said)
    assert said[0] == f"deployments {SPACE}/koordgate"
    assert left.removed == len(said) == 7


@pytest.mark.parametrize("others", [True, False])
async def test_each_definition_is_judged_by_itself(fake: FakeKube, kube: KubeClient, *, others: bool) -> None:
    defined = (DEFINED, "noderesourcetopologies.topology.node.k8s.io", "nodeallocations.koordgate.io")
    for name in defined:
        fake.put(CRDS, {"metadata": {"name": name, "labels": LABELS}})
    fake.put(LEDGER, {"metadata": {"name": "a"}})
    if others:
        fake.put(TOPOLOGIES, {"metadata": {"name": "n1"}})
    left = await clean(kube, [])
    assert names(fake, CRDS) == ([defined[1]] if others else [])
    assert left.notes == ([f"the definition {defined[1]} stays: others have objects of it"] if others else [])


async def test_an_installation_that_is_only_told_of_is_told_once(fake: FakeKube, kube: KubeClient) -> None:
    for space in ("first", "second"):
        fake.put(f"/apis/apps/v1/namespaces/{space}/deployments", {"metadata": {"name": "koordgate", "labels": LABELS}})
    fake.put("/apis/apps/v1/namespaces/third/daemonsets", {"metadata": {"name": "koordgate", "labels": LABELS}})
    left = await clean(kube, [], dry_run=True)
    assert left.notes == [
        (
            f"koordgate runs in namespace first (deployments koordgate), not in {SPACE}: name it with --installed-in "
            "first if it is to be removed"
        )
    ]


async def test_pods_of_ours_that_end_in_time_are_waited_for(fake: FakeKube, kube: KubeClient) -> None:
    fake.put(PODS, {"metadata": {"name": "koordgate-x", "labels": LABELS}})

    class Waits(list[float]):
        def append(self, seconds: float) -> None:
            super().append(seconds)
            if len(self) == 3:
                fake.remove(f"{PODS}/koordgate-x")

    left = await clean(kube, [], waits := Waits())
    assert (waits, left.kept) == ([1.0, 1.0, 1.0], [])
    assert names(fake, SECRETS) == ["koord-scheduler-cert", "own"]


# Of each Node

CORE, RATIO, OLD = "kubernetes.io/gpu-core", "kubernetes.io/gpu-memory-ratio", "koordinator.sh/gpu-core"


def owns(manager: str, labels: tuple[str, ...] = (), amounts: tuple[str, ...] = ()) -> Raw:
    fields: Raw = {
        "f:metadata": {"f:labels": {f"f:{key}": {} for key in labels}},
        "f:status": {"f:capacity": {f"f:{name}": {} for name in amounts}},
    }
    return {"manager": manager, "operation": "Apply", "fieldsV1": fields}


ALL = owns("koordgate-reporter", ("model",), (CORE, RATIO, OLD))
NODE_ROWS: dict[str, tuple[list[Raw], list[str], str]] = {
    "what the reporter owns by the API server's record": ([ALL], [OLD, CORE, RATIO, "label model"], ""),
    "not what another manager wrote": ([owns("koord-manager", ("model",), (OLD,))], [], ""),
    "not a label that another owns too": ([ALL, owns("koordlet", ("model",))], [OLD, CORE, RATIO], ""),
    "not what a kubelet would miss": ([ALL], [OLD, RATIO, "label model"], CORE),
}


@pytest.mark.parametrize(("owners", "gone", "used"), NODE_ROWS.values(), ids=NODE_ROWS)
async def test_of_a_node_what_is_koordgates_is_removed(
    fake: FakeKube, kube: KubeClient, owners: list[Raw], gone: list[str], used: str
) -> None:
    amounts = {CORE: "800", RATIO: "800", OLD: "800", "cpu": "8"}
    about = {"name": "n2", "labels": {"model": "x", "example.com/koordgate.io": "x", "notkoordgate.io/x": "x"}}
    status = {"capacity": amounts, "allocatable": {key: amounts[key] for key in (CORE, RATIO, "cpu")}}
    fake.put(NODES, {"metadata": about, "status": status})
    await kube.patch(f"{NODES}/n2", [{"op": "add", "path": "/metadata/managedFields", "value": owners}], "json")
    ended = {"status": {"phase": "Succeeded"}}
    for name, request, more in (("a", used, {}), ("b", used, {}), ("c", RATIO, ended), ("d", OLD, {})):
        spec = {"nodeName": "n2", "containers": [{}], "initContainers": [{"resources": {"requests": {request: "1"}}}]}
        fake.put(
            "/api/v1/namespaces/team/pods", {"metadata": {"name": name, "namespace": "team"}, "spec": spec, **more}
        )
    said: list[str] = []
    left = await clean(kube, said)
    assert [one for one in said if "n2" in one] == ([f"Node n2: {', '.join(gone)}"] if gone else [])
    now = fake.get(f"{NODES}/n2")
    assert sorted(now["status"]["capacity"]) == sorted(amounts.keys() - set(gone))
    assert sorted(now["status"]["allocatable"]) == sorted({CORE, RATIO, "cpu"} - set(gone))
    assert ("model" in now["metadata"]["labels"]) is ("label model" not in gone)
    assert {"example.com/koordgate.io", "notkoordgate.io/x"} <= now["metadata"]["labels"].keys()
    told = f"Node n2 keeps {used}: team/a, team/b request it, and a kubelet that restarts would reject them"
    assert [one.partition(";")[0] for one in left.kept] == ([told] if used else [])
    applied = [one for one in fake.seen("patch", "nodes/status") if "apply" in one.headers["Content-Type"]]
    assert bool(applied) is (ALL in owners and not used)  # the reporter is no owner any more once nothing must stay


ASKS = {"resources": {"requests": {CORE: "50"}}}
BY_QUOTA = {"resources": {"requests": {"quota.koordgate.io/cpus": "1"}}}
OURS = {"schedulerName": "koord-scheduler"}
WAITING: dict[str, tuple[Raw, Raw, bool]] = {
    "by what it requests": ({**OURS, "containers": [ASKS]}, {}, True),
    "by its quota": ({**OURS, "containers": [BY_QUOTA]}, {}, True),
    "by its record": ({**OURS, "containers": [{}]}, {"koordgate.io/original-request": "{}"}, True),
    "by its gate": ({"schedulingGates": [{"name": "a.io/x"}, {"name": "koordgate.io/gang"}]}, {}, True),
    "of Koordinator": ({**OURS, "containers": [{}]}, {}, False),
    "of the default scheduler": ({"containers": [BY_QUOTA]}, {}, False),
    "behind another gate": ({"schedulingGates": [{"name": "a.io/x"}]}, {}, False),
    "bound": ({**OURS, "containers": [ASKS], "nodeName": "n1"}, {}, False),
}


@pytest.mark.parametrize(("spec", "annotations", "waits"), WAITING.values(), ids=WAITING)
async def test_pods_that_wait_for_koordgate_are_told(
    fake: FakeKube,
    kube: KubeClient,
    spec: Raw,
    annotations: Raw,
    waits: bool,  # noqa: FBT001
) -> None:
    for at in range(6):
        about = {"name": f"w{at}", "namespace": "team", "annotations": annotations}
        fake.put("/api/v1/namespaces/team/pods", {"metadata": about, "spec": spec})
    left = await clean(kube, [])
    told = (
        "Pods that wait for koordgate and are never placed (6): team/w0, team/w1, team/w2, team/w3, team/w4 and 1 more"
    )
    assert [one.partition(";")[0] for one in left.kept] == ([told] if waits else [])
