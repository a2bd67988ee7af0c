"""What `koordgate doctor` reads of a cluster: lists with a bound, rights, and Pods and Bindings that are tried."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from commands import Koordgate
from fake_kube import FakeKube, Fault, Where, answer, drop
from kubeconfigs import write_kubeconfig

from allocator.vocabulary.names import Mode
from console import reading
from console.doctor.reader import read_cluster, wanted
from console.doctor.snapshot import Snapshot
from console.doctor.trials import Came
from console.reading import ReadList
from koordgate.kube.client import KubeClient
from koordgate.kube.errors import KubeError
from koordgate.kube.resource import (
    CONFIG_MAPS,
    DAEMON_SETS,
    DEFINITIONS,
    DEPLOYMENTS,
    DEVICES,
    LEASES,
    MUTATING_WEBHOOKS,
    NAMESPACES,
    NODES,
    PODS,
    POLICY_BINDINGS,
    PRIORITY_LEVELS,
    RESOURCE_QUOTAS,
    SECRETS,
    TOPOLOGIES,
)
from webhook.settings import WebhookSettings

Raw = dict[str, Any]
SPACE = "koordgate-system"
PART_OF = {"app.kubernetes.io/part-of": "koordgate"}
NOT_ALLOWED = 'pods is forbidden: User "eve" cannot create resource "pods" in API group "" in the namespace "team"'


class Api(FakeKube):
    """An API server that gives every account all rights but those to Events."""

    def _create(self, where: Where, obj: Raw, *, dry: bool) -> Raw:
        if where.plural == "subjectaccessreviews":
            return {**obj, "status": {"allowed": obj["spec"]["resourceAttributes"]["resource"] != "events"}}
        return super()._create(where, obj, dry=dry)


@pytest.fixture
async def fake() -> AsyncIterator[FakeKube]:
    """koordgate in mode shadow, with a reporter that asks kubelets for their configuration."""
    async with Api() as server:
        server.discovery["/version"] = {"gitVersion": "v1.36.3"}
        install(server, "koordgate", "mode: shadow\n")
        install(server, "koordgate-reporter", "kubelet: {configz: true}\nruntime: {policies: true}\n")
        yield server


def install(fake: FakeKube, name: str, text: str) -> None:
    obj = {"metadata": {"name": name}, "data": {"config.yaml": text}}
    fake.put(CONFIG_MAPS.path(namespace=SPACE), obj)


async def read(fake: FakeKube, kube: KubeClient, users: list[str] | None = None) -> Snapshot:
    def connect(user: str) -> KubeClient:
        if users is not None:
            users.append(user)
        return KubeClient(fake.url, impersonate=user)

    return await read_cluster(kube, SPACE, "team", connect, clock=lambda: 1000.0)


def came(found: Snapshot) -> dict[str, Came]:
    return {one.trial.about: one.came for one in found.outcomes}


ALL_CARDS = "a Pod that shows itself all cards"


async def test_an_installation_is_read_with_its_settings_rights_and_what_became_of_the_trials(
    fake: FakeKube, kube: KubeClient
) -> None:
    for name, action in (("koordgate-visible-devices", ["Audit", "Deny"]), ("koordgate-preset-node", ["Warn"])):
        spec = {"policyName": name, "validationActions": action}
        fake.put(POLICY_BINDINGS.path(), {"metadata": {"name": name}, "spec": spec})
    users: list[str] = []
    found = await read(fake, kube, users)
    assert (found.namespace, found.version, found.settings_problem) == (SPACE, "v1.36.3", "")
    assert found.settings.mode == "shadow"
    assert found.reporter == {"kubelet": {"configz": True}, "runtime": {"policies": True}}
    assert {right.resource for right, may in found.rights.items() if may is False} == {"events"}
    assert {right.account for right in found.rights} == {"koordgate", "koordgate-reporter"}
    assert {"nodes/proxy", "clusterpolicies"} < {right.resource for right in found.rights}
    told = came(found)
    assert told["a Pod that asks for nvidia.com/gpu"] is Came.STORED
    assert told[ALL_CARDS] is Came.STORED
    assert "a Pod for a GPU that names its node" not in told
    assert told[f"a Binding by {users[0]}"] is Came.NOT_THERE
    assert users == [found.settings.scheduler.username]
    assert fake.objects(PODS.path()) == []
    (bound,) = [one for one in fake.requests if one.resource == "pods/binding"]
    assert bound.headers["Impersonate-User"] == users[0]
    assert {one.query.get("dryRun") for one in fake.seen("create", "pods")} == {"All"}
    bodies = [one.body for one in found.outcomes if one.came is Came.STORED]
    assert all(one["metadata"]["generateName"] == "koordgate-doctor-" for one in bodies)
    assert found.offset is not None
    assert found.now == 1000.0 + found.offset
    assert "nodeallocations.koordgate.io" in found.crds


async def test_the_mode_of_a_namespace_is_its_labels_or_the_installations(fake: FakeKube, kube: KubeClient) -> None:
    fake.put(NAMESPACES.path(), {"metadata": {"name": "team", "labels": {"koordgate.io/mode": "enforce"}}})
    fake.put(NAMESPACES.path(), {"metadata": {"name": "kube-system"}})
    found = await read(fake, kube)
    assert found.modes == {"team": Mode.ENFORCE, "kube-system": Mode.SHADOW, SPACE: Mode.SHADOW}


async def test_without_an_installation_nothing_is_tried(fake: FakeKube, kube: KubeClient) -> None:
    for name in ("koordgate", "koordgate-reporter"):
        fake.remove(CONFIG_MAPS.path(name, SPACE))
    fake.put(NODES.path(), {"metadata": {"name": "n1"}})
    found = await read(fake, kube)
    assert found.settings_problem == (
        "the webhook's settings cannot be read from ConfigMap koordgate-system/koordgate (there is none: koordgate is "
        "not installed there)"
    )
    assert (found.reporter, found.rights, found.outcomes) == ({}, {}, ())
    assert found.of("nodes").names == {"n1"}


@pytest.mark.parametrize("text", ["mode: 7", "{"])
async def test_settings_that_are_wrong_are_told(fake: FakeKube, kube: KubeClient, text: str) -> None:
    install(fake, "koordgate", text)
    found = await read(fake, kube)
    assert "ConfigMap koordgate-system/koordgate" in found.settings_problem


async def test_settings_that_may_not_be_read_are_told(fake: FakeKube, kube: KubeClient) -> None:
    fake.faults.always("get", "configmaps", answer(403, "not for you"))
    found = await read(fake, kube)
    assert found.reporter == {}
    assert "not for you" in found.settings_problem


@pytest.mark.parametrize("text", ["[1, 2]", "{", "", "7"])
async def test_settings_of_a_reporter_that_are_none_count_as_none(fake: FakeKube, kube: KubeClient, text: str) -> None:
    install(fake, "koordgate-reporter", text)
    found = await read(fake, kube)
    assert found.reporter == {}
    assert {right.account for right in found.rights} == {"koordgate"}


async def test_rights_that_cannot_be_asked_are_not_known(fake: FakeKube, kube: KubeClient) -> None:
    fake.faults.always("create", "subjectaccessreviews", answer(403))
    found = await read(fake, kube)
    assert found.rights
    assert set(found.rights.values()) == {None}


async def test_lists_end_at_a_bound_and_what_cannot_be_read_is_told_apart(
    fake: FakeKube, kube: KubeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "MAX_OBJECTS", 3)
    monkeypatch.setattr(reading, "PAGE", 2)
    for name in "abcde":
        fake.put(NODES.path(), {"metadata": {"name": name}})
    for name in "ab":
        fake.put(DEVICES.path(), {"metadata": {"name": name}})
    for name in "abc":
        fake.put(DEPLOYMENTS.path(namespace=SPACE), {"metadata": {"name": name}})
    fake.absent.add("noderesourcetopologies")
    fake.faults.always("list", "resourcequotas", answer(403, "no quotas for you"))
    fake.faults.add("list", "daemonsets", Fault(), answer(410, "too old"))
    for name in "abc":
        fake.put(DAEMON_SETS.path(namespace=SPACE), {"metadata": {"name": name}})
    found = await read(fake, kube)
    assert [one["metadata"]["name"] for one in found.of("nodes").items] == ["a", "b", "c", "d"]
    assert (found.of("nodes").cut, found.of("nodes").error, found.of("nodes").absent) == (True, "", False)
    assert (found.of("devices").names, found.of("devices").cut) == ({"a", "b"}, False)  # type: ignore[comparison-overlap]
    assert (found.of("deployments").names, found.of("deployments").cut) == ({"a", "b", "c"}, True)  # type: ignore[comparison-overlap]
    assert found.of("topologies") == ReadList(absent=True)
    assert (found.of("daemonsets").names, found.of("daemonsets").cut) == ({"a", "b"}, True)  # type: ignore[comparison-overlap]
    assert found.of("quotas").items == ()
    assert "no quotas for you" in found.of("quotas").error
    assert found.of("levels") == ReadList()


async def test_what_is_read_by_name_is_read_although_one_is_absent_or_forbidden(
    fake: FakeKube, kube: KubeClient
) -> None:
    fake.put(PRIORITY_LEVELS.path(), {"metadata": {"name": "koord-scheduler"}})
    for name in ("devices.scheduling.koordinator.sh", "noderesourcetopologies.topology.node.k8s.io"):
        fake.put(DEFINITIONS.path(), {"metadata": {"name": name}})
    fake.faults.add("get", "customresourcedefinitions", Fault(), answer(403, "not that one"))
    found = await read(fake, kube)
    assert (found.of("levels").names, found.of("levels").error) == ({"koord-scheduler"}, "")  # type: ignore[comparison-overlap]
    assert len(found.of("crds").names) == 2
    assert "not that one" in found.of("crds").error


async def test_pods_of_koordgate_alone_are_read_and_no_key_of_a_secret(fake: FakeKube, kube: KubeClient) -> None:
    for name, labels, space in (("a", PART_OF, SPACE), ("b", {}, SPACE), ("c", PART_OF, "team")):
        fake.put(PODS.path(namespace=space), {"metadata": {"name": name, "labels": labels}})
    data = {"tls.crt": "a", "tls.key": "b", "ca.crt": "c", "ca.key": "d"}
    for name in ("koordgate-tls", "own"):
        fake.put(SECRETS.path(namespace=SPACE), {"metadata": {"name": name}, "data": data})
    for space in ("kube-node-lease", "team"):
        fake.put(LEASES.path(namespace=space), {"metadata": {"name": "n1"}})
    found = await read(fake, kube)
    assert found.of("pods").names == {"a"}
    assert [(one["metadata"]["name"], one["data"]) for one in found.of("secrets").items] == [
        ("koordgate-tls", {"tls.crt": "a", "ca.crt": "c"})
    ]
    assert [one["metadata"]["namespace"] for one in found.of("leases").items] == ["kube-node-lease"]


CAME: dict[str, tuple[Fault, Came]] = {
    "a user without the right": (answer(403, NOT_ALLOWED), Came.NO_RIGHT),
    "a quota": (answer(403, "exceeded quota: cards"), Came.REFUSED),
    "a wrong Pod": (answer(422, "is invalid"), Came.REFUSED),
    "the name is taken": (Fault(status=409, message="already exists", reason="AlreadyExists"), Came.REFUSED),
    "a webhook": (answer(400, "admission webhook denied the request"), Came.REFUSED),
    "no such namespace": (answer(404, "namespaces not found"), Came.NOT_THERE),
    "a webhook that is not reached": (answer(500, 'failed calling webhook "x"'), Came.WEBHOOK_FAILED),
    "a right of a webhook that is not reached": (answer(403, 'failed calling webhook "x"'), Came.WEBHOOK_FAILED),
    "no answer": (drop(), Came.NO_ANSWER),
}


@pytest.mark.parametrize(("fault", "wanted_"), CAME.values(), ids=CAME)
async def test_what_came_back_is_told_by_who_is_to_blame(
    fake: FakeKube, kube: KubeClient, fault: Fault, wanted_: Came
) -> None:
    fake.faults.always("create", "pods", fault)
    found = await read(fake, kube)
    assert {one.came for one in found.outcomes if not one.trial.binding} == {wanted_}
    assert all(one.message and not one.body for one in found.outcomes if not one.trial.binding)


async def test_an_api_server_that_does_not_answer_ends_the_reading(fake: FakeKube, kube: KubeClient) -> None:
    del fake.discovery["/version"]
    with pytest.raises(KubeError):
        await read(fake, kube)


async def test_the_command_reads_the_cluster_of_the_kubeconfig(
    fake: FakeKube, koordgate: Koordgate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(write_kubeconfig(tmp_path, fake.url)))
    said = await koordgate("doctor", "--try-in", "team-a", "-o", "wide")
    assert said.status == 2
    assert "the API server is v1.36.3" in said.out
    assert "team-a is in mode shadow: koordgate lets pass" in said.out
    asked = {one.path for one in fake.seen("create", "pods")}
    assert PODS.path(namespace="team-a") in asked
    assert PODS.path(namespace="default") not in asked
    assert any("Impersonate-User" in one.headers for one in fake.requests)
    await koordgate("doctor", "-q")
    assert PODS.path(namespace="default") in {one.path for one in fake.seen("create", "pods")}


async def test_a_cluster_that_does_not_answer_is_a_finding(
    fake: FakeKube, koordgate: Koordgate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    said = await koordgate("doctor")
    assert said.status == 2
    assert "API server" in said.out
    assert said.out.splitlines()[-1] == "1 failure, 0 warnings, 0 not known, 0 ok"


def test_each_resource_is_read_where_it_is() -> None:
    read_ = {one.key: one for one in wanted("elsewhere", WebhookSettings())}
    spaces = {key: one.namespace for key, one in read_.items() if one.namespace is not None}
    assert spaces == {
        "pods": "elsewhere",
        "leases": "kube-node-lease",
        "budgets": "elsewhere",
        "secrets": "elsewhere",
    }
    assert {key: one.selector for key, one in read_.items() if one.selector} == {
        "pods": "app.kubernetes.io/part-of=koordgate"
    }
    assert {key: one.fields for key, one in read_.items() if one.fields} == {
        "events": "reportingComponent=koordgate,type=Warning"
    }
    assert read_["levels"].names == read_["flows"].names == ("koordgate", "koord-scheduler")
    assert read_["secrets"].names == ("koordgate-tls", "koordgate-extender-tls")
    assert read_["crds"].names == (
        "devices.scheduling.koordinator.sh",
        "nodeallocations.koordgate.io",
        "noderesourcetopologies.topology.node.k8s.io",
    )
    assert (read_["quotas"].resource, read_["topologies"].resource) == (RESOURCE_QUOTAS, TOPOLOGIES)
    assert read_["mutating"].resource == MUTATING_WEBHOOKS
