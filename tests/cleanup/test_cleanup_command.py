"""`koordgate cleanup` as a user calls it: what it prints, and its exit status."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from commands import Koordgate
from fake_kube import FakeKube, answer, drop
from kubeconfigs import write_kubeconfig

from koordgate.cli import parser_of
from koordgate.kube.client import KubeClient

Raw = dict[str, Any]
LABELS = {"app.kubernetes.io/part-of": "koordgate"}
MUTATING = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
DEPLOYMENTS = "/apis/apps/v1/namespaces/koordgate-system/deployments"
PODS = "/api/v1/namespaces/team/pods"
NODES = "/api/v1/nodes"
SPACES = "/api/v1/namespaces"
CORE = "kubernetes.io/gpu-core"


@pytest.fixture
def cleanup(koordgate: Koordgate, fake: FakeKube, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Koordgate:
    """Run `koordgate cleanup` against the fake cluster."""
    monkeypatch.setenv("KUBECONFIG", str(write_kubeconfig(tmp_path, fake.url)))
    return partial(koordgate, "cleanup")


@pytest.fixture
def left(fake: FakeKube) -> FakeKube:
    """A webhook configuration, a Node with settings, and a namespace with a mode."""
    fake.put(MUTATING, {"metadata": {"name": "koordgate", "labels": LABELS}, "webhooks": []})
    noted = {"koordgate.io/released": "1", "koordgate.io/classes": "{}"}
    metadata = {"name": "n1", "labels": {"koordgate.io/device-order": "pcie"}, "annotations": noted}
    fake.put(NODES, {"metadata": metadata, "status": {"capacity": {CORE: "800", "cpu": "8"}}})
    fake.put(SPACES, {"metadata": {"name": "team", "labels": {"koordgate.io/mode": "shadow"}}})
    return fake


def pod(name: str, node: str = "") -> Raw:
    spec: Raw = {"containers": [{"name": "main", "resources": {"requests": {CORE: "50"}}}]}
    spec |= {"schedulerName": "koord-scheduler"} | ({"nodeName": node} if node else {})
    return {"metadata": {"name": name, "namespace": "team"}, "spec": spec}


def writes(fake: FakeKube) -> list[str]:
    return [one.verb for one in fake.requests if one.verb not in {"get", "list"}]


WHAT = [
    "mutatingwebhookconfigurations koordgate",
    "Namespace team: label koordgate.io/mode",
    "Node n1: label koordgate.io/device-order, annotation koordgate.io/classes, annotation koordgate.io/released",
]


@pytest.fixture
async def reported(left: FakeKube, kube: KubeClient) -> FakeKube:
    """The same; the reporter wrote an amount of the Node."""
    fields = {"f:metadata": {"f:labels": {}}, "f:status": {"f:capacity": {f"f:{CORE}": {}}}}
    owners = [{"manager": "koordgate-reporter", "operation": "Apply", "fieldsV1": fields}]
    patch = [{"op": "add", "path": "/metadata/managedFields", "value": owners}]
    await kube.patch(f"{NODES}/n1", patch, "json")
    left.requests.clear()
    return left


@pytest.mark.parametrize("words", [(), ("--dry-run",)])
async def test_without_yes_it_is_only_told_what_would_be_removed(
    left: FakeKube, cleanup: Koordgate, words: tuple[str, ...]
) -> None:
    said = await cleanup(*words)
    assert (said.status, said.err) == (0, "")
    assert said.out.splitlines() == [
        *(f"would remove  {what}" for what in WHAT),
        "dry run: 3 would be removed; nothing was; --yes removes it",
    ]
    assert writes(left) == []


async def test_with_yes_it_is_removed_and_a_second_time_nothing_is_left(left: FakeKube, cleanup: Koordgate) -> None:
    said = await cleanup("--yes")
    assert (said.status, said.err) == (0, "")
    assert said.out.splitlines() == [
        *(f"removed  {what}" for what in WHAT),
        "3 removed; nothing of koordgate is left",
    ]
    assert (await cleanup("--yes")).out == "0 removed; nothing of koordgate is left\n"


async def test_what_stays_is_noted_and_a_3(reported: FakeKube, cleanup: Koordgate) -> None:
    for name, node in (("a", "n1"), ("b", ""), ("c", "n1"), ("d", "")):
        reported.put(PODS, pod(name, node))
    notes = [
        (
            "note: Pods that wait for koordgate and are never placed (2): team/b, team/d; delete them, and create "
            "them again in another product's names (koordgate translate)"
        ),
        (
            f"note: Node n1 keeps {CORE}: team/a, team/c request it, and a kubelet that restarts would reject them; "
            "run the command again when they have ended, or with --force"
        ),
    ]
    dry = await cleanup()
    assert dry.status == 0
    assert dry.out.splitlines()[3:] == [*notes, "dry run: 3 would be removed; nothing was; --yes removes it"]
    said = await cleanup("--yes")
    assert said.status == 3
    assert said.out.splitlines()[3:] == [*notes, "3 removed; the notes above say what stays (2)"]
    assert said.out.splitlines()[2] == f"removed  {WHAT[2]}"
    assert reported.get(f"{NODES}/n1")["status"]["capacity"] == {CORE: "800", "cpu": "8"}
    forced = await cleanup("--yes", "--force")
    assert forced.out.splitlines() == [
        f"removed  Node n1: {CORE}",
        notes[0],
        "1 removed; the notes above say what stays (1)",
    ]
    assert reported.get(f"{NODES}/n1")["status"]["capacity"] == {"cpu": "8"}


async def test_an_installation_of_helm_is_a_2(left: FakeKube, cleanup: Koordgate) -> None:
    about = {"name": "koordgate", "labels": LABELS, "annotations": {"meta.helm.sh/release-name": "gate"}}
    left.put(DEPLOYMENTS, {"metadata": about})
    said = await cleanup("--yes")
    assert (said.status, said.out, writes(left)) == (2, "", [])
    assert said.err == (
        "koordgate cleanup: Helm's release gate is installed: first run helm uninstall gate -n koordgate-system\n"
    )
    assert "note: Helm's release gate is installed" in (await cleanup()).out


async def test_another_namespace_may_be_named(left: FakeKube, cleanup: Koordgate) -> None:
    left.put(DEPLOYMENTS, {"metadata": {"name": "koordgate", "labels": LABELS}})
    said = await cleanup("--yes", "--installed-in", "gpus")
    assert said.status == 2
    assert "not in gpus: name it with --installed-in koordgate-system" in said.err


async def test_a_refusal_is_a_1_and_says_that_more_is_left(left: FakeKube, cleanup: Koordgate) -> None:
    left.faults.add("delete", "mutatingwebhookconfigurations", answer(403, "not for you"))
    said = await cleanup("--yes")
    assert (said.status, said.out) == (1, "")
    assert "not for you" in said.err
    assert said.err.endswith("; what comes after it is not removed: run the command again\n")


async def test_an_api_server_that_does_not_answer_is_a_1(left: FakeKube, cleanup: Koordgate) -> None:
    left.faults.always("list", "deployments", drop())
    said = await cleanup()
    assert said.status == 1
    assert said.err.startswith("koordgate cleanup: the API server of the kubeconfig does not answer: ")


def test_by_default_nothing_is_removed_of_the_usual_namespace() -> None:
    parser = parser_of("cleanup")
    read = parser.parse_args([])
    assert (read.installed_in, read.yes, read.force) == ("koordgate-system", False, False)
    with pytest.raises(SystemExit, match="2"):
        parser.parse_args(["--yes", "--dry-run"])
