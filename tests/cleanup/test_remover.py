"""`koordgate cleanup` on an API server that refuses, changes objects meanwhile, or keeps Pods alive."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from fake_kube import FakeKube, answer

from koordgate.kube.client import KubeClient
from koordgate.kube.errors import Forbidden, KubeError
from webhook.cleanup.remover import InstalledError, Left, Remover

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


async def clean(kube: KubeClient, said: list[str], **options: Any) -> Left:
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    return await Remover(kube, SPACE, said.append, sleep=sleep, **{"dry_run": False, **options}).run()


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
@pytest.mark.parametrize(
    ("annotations", "way_out"),
    [({}, "-n gpus if it is to be removed"), ({"meta.helm.sh/release-name": "gate"}, "helm uninstall gate -n gpus")],
    ids=["applied", "by Helm"],
)
async def test_an_installation_in_another_namespace_is_not_robbed_of_what_it_needs(
    fake: FakeKube, kube: KubeClient, kind: str, annotations: dict[str, str], way_out: str
) -> None:
    about = {"name": "koordgate-there", "labels": LABELS, "annotations": annotations}
    fake.put(f"/apis/apps/v1/namespaces/gpus/{kind}", {"metadata": about})
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
        await clean(kube, [], timeout=3.0)
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
    left = await clean(kube, [])
    assert names(fake, DEVICES) == ["n2"]
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
