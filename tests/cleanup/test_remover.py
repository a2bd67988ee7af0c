"""`koordgate cleanup` on an API server that refuses, changes objects meanwhile, or keeps Pods alive."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from fake_kube import FakeKube, Fault, answer

from console.cleanup.remover import InstalledError, Left, Remover
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
MONITORS = f"/apis/monitoring.coreos.com/v1/namespaces/{SPACE}/servicemonitors"
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
        for name in ("koord-scheduler", "koordgate-health", "another"):
            server.put(LEASES, {"metadata": {"name": name}})
        server.put(MONITORS, {"metadata": {"name": "koordgate", "labels": LABELS}})
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


async def clean(kube: KubeClient, said: list[str], waits: list[float] | None = None, **options: Any) -> Left:
    async def sleep(seconds: float) -> None:
        if waits is not None:
            waits.append(seconds)

    chosen = {"dry_run": False, "timeout": 120.0, **options}
    return await Remover(kube, SPACE, said.append, sleep=sleep, **chosen).run()


def names(fake: FakeKube, path: str) -> list[str]:
    return [one["metadata"]["name"] for one in fake.objects(path)]


async def test_all_of_ours_goes_and_nothing_of_others(fake: FakeKube, kube: KubeClient) -> None:
    said: list[str] = []
    left = await clean(kube, said)
    assert said[0] == "mutatingwebhookconfigurations koordgate"
    assert (left.removed, left.kept) == (10, [])
    assert [names(fake, path) for path in (MUTATING, SECRETS, QUOTAS, DEPLOYMENTS, LEASES, MONITORS)] == [
        ["other"],
        ["koord-scheduler-cert", "own"],  # the first is somebody's own: cert-manager did not make it
        ["cards"],
        [],
        ["another"],
        [],
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
    [({}, "-n SPACE if it is to be removed"), ({"meta.helm.sh/release-name": "gate"}, "helm uninstall gate -n SPACE")],
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
    with pytest.raises(KubeError, match="1 Pods still run after 3 s: koordgate-reporter-x; they would write again"):
        await clean(kube, [], waits := [], timeout=3.0)
    assert waits == [1.0, 1.0, 1.0]
    assert names(fake, SECRETS) == WERE
    assert fake.get(f"{NODES}/n1")["metadata"]["annotations"]["koordgate.io/released"] == "1"


async def test_what_people_wrote_on_namespaces_stays_when_that_is_asked_for(fake: FakeKube, kube: KubeClient) -> None:
    said: list[str] = []
    await clean(kube, said, keep_settings=True)
    assert fake.get(f"{SPACES}/team")["metadata"]["labels"]["koordgate.io/mode"] == "shadow"
    assert "Node n1: annotation koordgate.io/released" in said


async def test_a_namespace_that_changes_meanwhile_is_read_again(fake: FakeKube, kube: KubeClient) -> None:
    fake.faults.add("patch", "namespaces", answer(422, "the test failed"), answer(409, "it has changed"))
    await clean(kube, [])
    assert fake.get(f"{SPACES}/team")["metadata"]["labels"] == {"team": "ml"}


async def test_a_namespace_that_is_deleted_meanwhile_is_passed_over(fake: FakeKube, kube: KubeClient) -> None:
    fake.faults.add("patch", "namespaces", answer(404, "it is gone"))
    said: list[str] = []
    await clean(kube, said)
    assert not [one for one in said if one.startswith("Namespace")]
    assert "Node n1: annotation koordgate.io/released" in said


async def test_a_node_that_changes_meanwhile_is_read_again(fake: FakeKube, kube: KubeClient) -> None:
    fake.faults.add("patch", "nodes/status", answer(422, "the test failed"), answer(409, "it has changed"))
    said: list[str] = []
    await clean(kube, said)
    assert "Node n1: annotation koordgate.io/released" in said
    assert "koordgate.io/released" not in fake.get(f"{NODES}/n1")["metadata"]["annotations"]


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


def conflicts(number: int) -> list[Fault]:
    return [answer(422 if at % 2 else 409, "it has changed") for at in range(number)]


@pytest.mark.parametrize("resource", ["namespaces", "nodes/status"])
async def test_what_others_keep_changing_is_tried_five_times(fake: FakeKube, kube: KubeClient, resource: str) -> None:
    fake.faults.add("patch", resource, *conflicts(5))
    with pytest.raises(KubeError):
        await clean(kube, [])
    assert len(fake.seen("patch", resource)) == 5
    fake.faults.add("patch", resource, *conflicts(4))
    said: list[str] = []
    await clean(kube, said)
    assert "Node n1: annotation koordgate.io/released" in said
    assert len(fake.seen("patch", resource)) == 10


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
    assert left.removed == len(said) == 9


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


@pytest.mark.parametrize(
    ("number", "told"),
    [
        (5, "team/w00, team/w01, team/w02, team/w03, team/w04;"),
        (6, "team/w04 and 1 more;"),
        (11, "team/w04 and 6 more;"),
    ],
)
async def test_five_names_are_told_and_the_others_counted(
    fake: FakeKube, kube: KubeClient, number: int, told: str
) -> None:
    for at in reversed(range(number)):
        spec = {"schedulingGates": [{"name": "example.com/other"}, {"name": "koordgate.io/gang"}]}
        fake.put("/api/v1/namespaces/team/pods", {"metadata": {"name": f"w{at:02}", "namespace": "team"}, "spec": spec})
    left = await clean(kube, [])
    assert left.kept[0].startswith(f"{number} Pods wait for koordgate and are never placed: team/w00, ")
    assert told in left.kept[0]
    assert {one.query["limit"] for one in fake.seen("list", "pods")} == {"250"}


async def test_an_installation_that_is_only_told_of_is_told_once(fake: FakeKube, kube: KubeClient) -> None:
    for space in ("first", "second"):
        fake.put(f"/apis/apps/v1/namespaces/{space}/deployments", {"metadata": {"name": "koordgate", "labels": LABELS}})
    fake.put("/apis/apps/v1/namespaces/third/daemonsets", {"metadata": {"name": "koordgate", "labels": LABELS}})
    left = await clean(kube, [], dry_run=True)
    assert left.notes == [
        (
            f"koordgate runs in namespace first (deployments koordgate), not in {SPACE}: name it with -n first if it "
            "is to be removed"
        )
    ]


async def test_pods_of_ours_that_end_in_time_are_waited_for(fake: FakeKube, kube: KubeClient) -> None:
    fake.put(PODS, {"metadata": {"name": "koordgate-x", "labels": LABELS}})

    class Waits(list[float]):
        def append(self, seconds: float) -> None:
            super().append(seconds)
            if len(self) == 3:
                fake.remove(f"{PODS}/koordgate-x")

    left = await clean(kube, [], waits := Waits(), timeout=3.0)
    assert (waits, left.kept) == ([1.0, 1.0, 1.0], [])
    assert names(fake, SECRETS) == ["koord-scheduler-cert", "own"]
