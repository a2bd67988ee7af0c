"""Policies of the cluster that name what translation removes: which are told, and what they are told to write."""

from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from typing import Any

import pytest
from fake_kube import FakeKube, answer

from allocator.vocabulary.devicetype import BUILT_IN
from console.doctor.checks.served import policies
from console.doctor.findings import Level
from console.doctor.policies import OutdatedPolicy, PolicyFindings, cure, outdated, removed, search_policies
from console.doctor.snapshot import Snapshot
from koordgate.kube.client import KubeClient
from webhook.settings import DialectSettings, WebhookSettings, types_of

Raw = dict[str, Any]
K8S = "kubernetes.io"
PODS = {
    "resourceRules": [{"apiGroups": [""], "resources": ["deployments"]}, {"apiGroups": [""], "resources": ["pods"]}]
}


def policy(kind: str, version: str, spec: Raw, name: str = "p", **metadata: Any) -> Raw:
    return {"kind": kind, "apiVersion": version, "metadata": {"name": name, **metadata}, "spec": spec}


def cel(text: str, kind: str = "ValidatingAdmissionPolicy", **about: Any) -> Raw:
    spec = {"matchConstraints": PODS, "validations": [{"expression": text}], **about}
    return policy(kind, "admissionregistration.k8s.io/v1", spec)


def kyverno(kinds: list[str], kind: str = "ClusterPolicy", **rule: Any) -> Raw:
    match = {"any": [{"resources": {"kinds": kinds}}]}
    pattern = {"spec": {"containers": [{"resources": {"limits": {"nvidia.com/gpu": "<=2"}}}]}}
    return policy(kind, "kyverno.io/v1", {"rules": [{"match": match, "validate": {"pattern": pattern}, **rule}]})


TEMPLATE = policy(
    "ConstraintTemplate",
    "templates.gatekeeper.sh/v1",
    {
        "crd": {"spec": {"names": {"kind": "MostGpus"}}},
        "targets": [
            {"rego": 'violation { input.review.object.spec.containers[_].resources.limits["nvidia.com/gpu"] }'}
        ],
    },
    name="mostgpus",
)


def constraint(kinds: list[str] | None, **spec: Any) -> Raw:
    match = {} if kinds is None else {"match": {"kinds": [{"apiGroups": [""], "kinds": kinds}]}}
    return policy("MostGpus", "constraints.gatekeeper.sh/v1beta1", {**match, **spec})


def mutator(*kinds: list[str], **spec: Any) -> Raw:
    applied = {"applyTo": [{"groups": [""], "kinds": one} for one in kinds]} if kinds else {}
    where = 'spec.containers[name: *].resources.limits."nvidia.com/gpu"'
    return policy("Assign", "mutations.gatekeeper.sh/v1", {**applied, "location": where, **spec})


def told(*objects: Raw, domain: str = K8S) -> list[tuple[str, str, tuple[str, ...]]]:
    return [(one.kind, one.name, one.names) for one in outdated(objects, BUILT_IN, domain).outdated]


NAMED: Mapping[str, Raw] = {
    "CEL over Pods": cel("'nvidia.com/gpu' in object.spec.containers[0].resources.limits"),
    "a variable": cel("true", variables=[{"name": "gpus", "expression": 'c.limits["nvidia.com/gpu"]'}]),
    "a match condition": cel("true", matchConditions=[{"expression": "r == 'nvidia.com/gpu'"}]),
    "all resources": cel("true", matchConstraints={"resourceRules": [{"resources": ["*"]}]}, x="nvidia.com/gpu"),
    "a patch of a mutating policy": cel("path: '/limits/nvidia.com~1gpu'", kind="MutatingAdmissionPolicy"),
    "a pattern of Kyverno's": kyverno(["Pod"]),
    "a group and version before the kind": kyverno(["apps/v1/Deployment", "v1/Pod"]),
    "a namespaced policy": kyverno(["*"], kind="Policy"),
    "an older form of a match": policy(
        "ClusterPolicy",
        "kyverno.io/v1",
        {"rules": [{"match": {"resources": {"kinds": ["Pod"]}}, "x": "nvidia.com/gpu"}]},
    ),
    "CEL of Kyverno's": policy(
        "ValidatingPolicy", "policies.kyverno.io/v1", {"matchConstraints": PODS, "x": ["nvidia.com/gpu"]}
    ),
    "parameters of a constraint": constraint(["Pod"], parameters={"resources": ["nvidia.com/gpu"]}),
    "a mutator of Gatekeeper's": mutator(["Deployment"], ["Pod"]),
    "a mutator of metadata": mutator(),
    "a constraint of all kinds": constraint(None, parameters={"most": {"nvidia.com/gpu": 2}}),
}


@pytest.mark.parametrize("obj", NAMED.values(), ids=NAMED)
def test_a_policy_about_pods_that_names_what_is_removed_is_told(obj: Raw) -> None:
    assert told(obj) == [(obj["kind"], "p", ("nvidia.com/gpu",))]


def test_a_template_is_told_where_a_constraint_uses_it_for_pods() -> None:
    assert told(TEMPLATE, constraint(["Pod"])) == [("ConstraintTemplate", "mostgpus", ("nvidia.com/gpu",))]
    assert told(TEMPLATE, constraint(["Deployment"])) == []
    assert told(TEMPLATE) == []


SILENT: Mapping[str, Raw] = {
    "a policy about Deployments": cel(
        "'nvidia.com/gpu'", matchConstraints={"resourceRules": [{"resources": ["deployments", "pods/exec"]}]}
    ),
    "a rule of Kyverno's about Deployments": kyverno(["Deployment", "PodDisruptionBudget"]),
    "a constraint about Deployments": constraint(["Deployment"], parameters=["nvidia.com/gpu"]),
    "a mutator of Deployments": mutator(["Deployment"], match={"kinds": [{"kinds": ["Pod"]}]}),
    "a mutator of Deployments' metadata": mutator(match={"kinds": [{"kinds": ["Deployment"]}]}),
    "a longer name": cel("'nvidia.com/gpu.present' in labels && 'requests.nvidia.com/gpu' in hard"),
    "a path": cel("'nvidia.com/gpu/x' + 'x.nvidia.com/gpu' + 'nvidia.com/gpu-count'"),
    "what is there after translation, too": cel("'nvidia.com/gpu' in limits || 'kubernetes.io/gpu-core' in limits"),
    "the annotation": cel("annotations['koordgate.io/original-request'].contains('nvidia.com/gpu')"),
    "one of koordgate's": {
        **(one := cel("'nvidia.com/gpu'")),
        "metadata": {**one["metadata"], "labels": {"app.kubernetes.io/part-of": "koordgate"}},
    },
    "no policy": policy("Pod", "v1", {"x": "nvidia.com/gpu"}),
    "no spec": {"kind": "ClusterPolicy", "apiVersion": "kyverno.io/v1"},
    "another shape": policy(
        "ClusterPolicy", "kyverno.io/v1", {"rules": [{"match": ["Pod"]}, 1, {"match": {"any": {}}}]}
    ),
}


@pytest.mark.parametrize("obj", SILENT.values(), ids=SILENT)
def test_a_policy_that_still_applies_is_not_told(obj: Raw) -> None:
    assert told(obj) == []


def test_a_beginning_of_names_is_told_if_no_name_of_the_domain_stays() -> None:
    (found,) = told(cel("limits.exists(name, name.startsWith('nvidia.com/'))"))
    assert found[2] == ("nvidia.com/",)
    assert told(cel("limits.exists(name, name.startsWith('kubernetes.io/'))")) == []
    assert told(cel("limits.exists(name, name.startsWith('koordinator.sh/'))"))


def test_what_is_removed_follows_from_the_domain_and_the_dialects() -> None:
    of_gpus = ("gpu-core", "gpu-memory", "gpu-memory-ratio")
    for domain, other in ((K8S, "koordinator.sh"), ("koordinator.sh", K8S)):
        gone = removed(BUILT_IN, domain)
        assert gone["nvidia.com/gpu"] == tuple(f"{domain}/{tail}" for tail in of_gpus)
        assert gone[f"{other}/rdma"] == (f"{domain}/rdma",)
        assert f"{domain}/gpu" in gone
        assert not gone.keys() & {f"{domain}/gpu-core", f"{domain}/rdma", "nvidia.com/gpumem"}
    somewhere = DialectSettings(enabled=True, namespaces=("team",))
    with_hami = types_of(WebhookSettings(dialects={"hami": somewhere}))
    assert removed(with_hami, K8S)["nvidia.com/gpumem"] == removed(BUILT_IN, K8S)["nvidia.com/gpu"]


def test_the_cure_names_what_a_translated_pod_states() -> None:
    gone = removed(BUILT_IN, K8S)
    names = "kubernetes.io/gpu-core, kubernetes.io/gpu-memory, kubernetes.io/gpu-memory-ratio"
    for name in ("nvidia.com/gpu", "nvidia.com/"):
        said = cure([name], gone)
        assert said.startswith(f"match {names} too, or the annotation koordgate.io/original-request")


def test_a_policy_that_is_long_or_deep_is_searched_in_part() -> None:
    deep: Any = "nvidia.com/gpu"
    for _ in range(3000):
        deep = [deep]
    for part in (deep, ["x" * 2**20, "y"], ["x"] * 3_000_000):
        found = outdated([cel("true", variables=part)], BUILT_IN, K8S)
        assert found.problems == ("ValidatingAdmissionPolicy p is too long, and was not searched as a whole",)
    assert told(cel("true", variables=["x" * (2**20 - 100)], y="nvidia.com/gpu")) != []


# What is read


@pytest.fixture
async def fake() -> AsyncIterator[FakeKube]:
    async with FakeKube() as server:
        server.serve(
            "admissionregistration.k8s.io", v1=["validatingadmissionpolicies", "mutatingwebhookconfigurations"]
        )
        server.put("/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies", {**cel("'nvidia.com/gpu'")})
        yield server


async def search(fake: FakeKube) -> PolicyFindings:
    async with KubeClient(fake.url) as kube:
        return await search_policies(kube, BUILT_IN, K8S)


async def test_kinds_that_are_not_served_are_not_missed(fake: FakeKube) -> None:
    found = await search(fake)
    assert (found.problems, found.searched) == ((), 1)
    assert found.outdated == (OutdatedPolicy("ValidatingAdmissionPolicy", "p", ("nvidia.com/gpu",)),)


async def test_each_kind_is_read_in_the_first_version_that_serves_it(fake: FakeKube) -> None:
    fake.serve(
        "kyverno.io", v2=["cleanuppolicies", "policyexceptions"], v1=["clusterpolicies", "clusterpolicies/status"]
    )
    fake.put("/apis/kyverno.io/v1/clusterpolicies", kyverno(["Pod"]))
    fake.serve("constraints.gatekeeper.sh", v1beta1=["mostgpus"])
    fake.serve("templates.gatekeeper.sh", v1=["constrainttemplates"])
    fake.put("/apis/constraints.gatekeeper.sh/v1beta1/mostgpus", constraint(["Pod"]))
    fake.put("/apis/templates.gatekeeper.sh/v1/constrainttemplates", TEMPLATE)
    found = await search(fake)
    assert found.problems == ()
    kinds = [one.kind for one in found.outdated]
    assert kinds == ["ClusterPolicy", "ConstraintTemplate", "ValidatingAdmissionPolicy"]


async def test_what_may_not_be_read_is_said(fake: FakeKube) -> None:
    fake.faults.always("list", "validatingadmissionpolicies", answer(403, "not for you"))
    assert (await search(fake)).problems == ("validatingadmissionpolicies are left out: not for you",)


def test_doctor_warns_of_each_says_what_is_not_known_and_is_content_with_none() -> None:
    snapshot = Snapshot("s", settings=WebhookSettings())
    assert list(policies(snapshot)) == []
    (right,) = policies(replace(snapshot, policies=PolicyFindings(searched=3)))
    assert (right.level, right.what[-2:]) == (Level.OK, " 3")
    many = tuple(OutdatedPolicy("ClusterPolicy", f"p{n}", ("nvidia.com/gpu",)) for n in range(25))
    found = list(policies(replace(snapshot, policies=PolicyFindings(many, 25, ("x cannot be read",)))))
    assert [one.level for one in found] == [Level.UNKNOWN, *[Level.WARNING] * 21]
    assert found[1].what == "ClusterPolicy p0 names nvidia.com/gpu, which a translated Pod does not state"
    assert found[-1].what == "policies like these: 25"
