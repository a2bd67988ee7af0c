"""What the API server refuses by its names of kinds and fields is refused by every command that reads manifests."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from builders import container, pod

from console.simulator.manifests import refused, wrong_shape
from koordgate.cli import main

Raw = dict[str, Any]
HALF = {"kubernetes.io/gpu": "50"}
ONE: Raw = {"containers": [{"name": "a"}]}


def of(spec: Raw, **about: Any) -> Raw:
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", **about}, "spec": spec}


def with_container(**more: Any) -> Raw:
    return of({"containers": [{"name": "a", "image": "x"}, {"name": "b", "image": "x", **more}]})


def deployment(**more: Any) -> Raw:
    template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "a", "image": "x"}], **more}}
    spec = {"selector": {"matchLabels": {"a": "b"}}, "template": template}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"}, "spec": spec}


def job(**more: Any) -> Raw:
    spec = {"template": {"spec": {"containers": [{"name": "a", "image": "x"}], **more}}}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "j"}, "spec": spec}


def job_of_volcano(**more: Any) -> Raw:
    template = {"spec": {"containers": [{"name": "a", "image": "x"}], **more}}
    spec = {"tasks": [{"replicas": 1, "template": template}], "anything": {"goes": 1}}
    return {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "metadata": {"name": "j"}, "spec": spec}


WRONG: dict[str, tuple[Raw, str]] = {
    "a container's": (
        with_container(resource={"limits": HALF}),
        "spec.containers[1].resource is no field; did you mean resources?",
    ),
    "of resources": (
        with_container(resources={"limit": HALF}),
        "spec.containers[1].resources.limit is no field; did you mean limits?",
    ),
    "a Pod's": (of({"container": [], "containers": []}), "spec.container is no field; did you mean containers?"),
    "deep inside": (
        with_container(env=[{"name": "A", "valueFrom": {"secretKeyRf": {"key": "k"}}}]),
        "spec.containers[1].env[0].valueFrom.secretKeyRf is no field; did you mean secretKeyRef?",
    ),
    "of metadata": (
        of(ONE, anotations={}),
        "metadata.anotations is no field; did you mean annotations?",
    ),
    "like no other": (with_container(zzzz=1), "spec.containers[1].zzzz is no field"),
    "a Deployment's": (
        {**deployment(), "specs": {}},
        "specs is no field; did you mean spec?",
    ),
    "of a template": (
        deployment(schedulername="x"),
        "spec.template.spec.schedulername is no field; did you mean schedulerName?",
    ),
    "of another product's template": (
        job_of_volcano(nodeSelectors={}),
        "spec.tasks[0].template.spec.nodeSelectors is no field; did you mean nodeSelector?",
    ),
    "a Pod's devices": (
        of({**ONE, "resources": {"limits": {"cpu": "1", "hugepages-2Mi": "2Mi", **HALF}}}),
        (
            "spec.resources.limits[kubernetes.io/gpu]: a Pod as a whole may state cpu, memory and hugepages; "
            "ask in a container"
        ),
    ),
    "a kind": ({**of({}), "kind": "Podd"}, "v1 has no kind Podd; did you mean Pod?"),
    "a kind of a group": (
        {**deployment(), "kind": "Deploymnt"},
        "apps/v1 has no kind Deploymnt; did you mean Deployment?",
    ),
    "a kind of another group": ({**of({}), "apiVersion": "apps/v1"}, "apps/v1 has no kind Pod; write apiVersion: v1"),
    "two containers of one name": (
        of({"containers": [{"name": "a"}, {"name": "b"}], "initContainers": [{"name": "b"}]}),
        "spec.containers[1].name: b is the name of two containers; rename one",
    ),
    "a request above its limit": (
        with_container(resources={"requests": {"cpu": "1100m"}, "limits": {"cpu": 1}}),
        "spec.containers[1].resources.requests[cpu]: 1100m is above the limit 1; raise the limit or lower it",
    ),
    "a restart policy": (
        of({**ONE, "restartPolicy": "never"}),
        "spec.restartPolicy: never is not possible here; write Always or OnFailure or Never",
    ),
    "a Job's restart policy, by default": (
        job(),
        "spec.template.spec.restartPolicy: Always is not possible here; write OnFailure or Never",
    ),
    "a CronJob's": (
        {**job(), "kind": "CronJob", "spec": {"jobTemplate": {"spec": job()["spec"]}}},
        "spec.jobTemplate.spec.template.spec.restartPolicy: Always is not possible here; write OnFailure or Never",
    ),
    "a Deployment's restart policy": (
        deployment(restartPolicy="Never"),
        "spec.template.spec.restartPolicy: Never is not possible here; write Always",
    ),
}


@pytest.mark.parametrize(("obj", "why"), WRONG.values(), ids=WRONG)
def test_names_that_kubernetes_does_not_have_are_refused_with_the_one_that_is_meant(obj: Raw, why: str) -> None:
    assert refused(obj, obj["kind"]) == why


@pytest.mark.parametrize(
    "obj",
    [
        pytest.param(with_container(resources={"limits": HALF}, livenessProbe={"exec": {"command": ["a"]}}), id="Pod"),
        pytest.param({**with_container(), "status": {}}, id="an empty status"),
        pytest.param(of(ONE, creationTimestamp=None, labels={"any": "thing"}), id="metadata"),
        pytest.param({**with_container(later=1), "metadata": {"name": "p", "uid": "u"}}, id="of a cluster"),
        pytest.param({**with_container(later=1), "metadata": {"name": "p", "resourceVersion": "1"}}, id="read there"),
        pytest.param(deployment(), id="Deployment"),
        pytest.param(job_of_volcano(), id="another product's"),
        pytest.param({"apiVersion": "v1", "kind": "Event"}, id="a kind that two groups have"),
        pytest.param({"apiVersion": "example.com/v1", "kind": "Podd", "spec": {"resource": {}}}, id="another group"),
        pytest.param(of({**ONE, "resources": {"limits": {"cpu": "1"}}}), id="what a Pod may state"),
        pytest.param(of({**ONE, "evictionResponders": []}), id="a field of Kubernetes 1.37"),
    ],
)
def test_names_that_kubernetes_has_and_what_is_not_its_own_pass(obj: Raw) -> None:
    assert refused(obj, obj["kind"]) == ""


def named(name: str, **more: Any) -> Raw:
    return {"metadata": {"name": name, **more}}


SHAPES: dict[str, tuple[str, Raw, str]] = {
    "a name of 253 characters": ("Thing", named("a" * 253), ""),
    "a name of 254 characters": ("Thing", named("a" * 254), " is no name"),
    "a name of one character": ("Thing", named("7"), ""),
    "a name that ends in a dash": ("Thing", named("a-"), "metadata.name: 'a-' is no name"),
    "no name": ("Thing", {"metadata": {}}, "metadata.name is missing"),
    "a label that is a number": ("Thing", named("a", labels={"b": 1}), "labels.b: a whole number where text must be"),
    "a label that is null": ("Thing", named("a", labels={"b": None}), "metadata.labels.b: null where text must be"),
    "an owner without a kind": (
        "Thing",
        named("a", ownerReferences=[{"name": "b"}]),
        "ownerReferences[0].kind is miss",
    ),
    "no container": ("Pod", of({"containers": []}), "spec.containers: a Pod has at least one container"),
    "no spec": ("Pod", named("a"), "spec is missing"),
    "a container without a name": ("Pod", of({"containers": [{}]}), "spec.containers[0].name is missing"),
    "a container's name": ("Pod", of({"containers": [{"name": "A"}]}), "spec.containers[0].name: 'A' is no name"),
    "an amount that is a list": (
        "Pod",
        with_container(resources={"limits": {"cpu": []}}),
        "spec.containers[1].resources.limits.cpu: a list where text must be",
    ),
    "a truth value": ("Pod", of({**ONE, "priority": True}), "spec.priority: true or false where a whole number must"),
    "what a later version has": ("Pod", of({**ONE, "later": [1]}), ""),
    "a Node": ("Node", {**named("a"), "status": {"allocatable": [1]}}, "status.allocatable: a list where an object"),
    "a limit without a type": ("LimitRange", {**named("a"), "spec": {"limits": [{}]}}, "spec.limits[0].type is miss"),
    "a claim": ("ResourceClaim", named("a", resourceVersion="10"), ""),
    "a claim's revision": ("ResourceClaim", named("a", resourceVersion="x"), "resourceVersion is no number"),
}


@pytest.mark.parametrize(("kind", "obj", "told"), SHAPES.values(), ids=SHAPES)
def test_an_object_has_values_of_the_kinds_that_the_api_server_demands(kind: str, obj: Raw, told: str) -> None:
    assert told in wrong_shape(kind, obj)
    assert bool(told) is bool(wrong_shape(kind, obj))


TEXTS = {
    "a field": (yaml.safe_dump(WRONG["a container's"][0]), "did you mean resources?"),
    "a kind": (yaml.safe_dump(WRONG["a kind"][0]), "v1 has no kind Podd"),
    "devices of a Pod": (
        yaml.safe_dump(of({"containers": [{"name": "a"}], "resources": {"limits": HALF}})),
        "ask in a container",
    ),
    "a key twice in YAML": (
        "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec:\n  containers:\n  - name: a\n    name: b\n",
        "the key 'name' occurs twice; keep one",
    ),
    "a key twice beside an anchor": (
        "apiVersion: v1\nkind: Pod\nmetadata: {name: p, labels: &a {b: c}}\nspec: {containers: [{name: a, name: b}]}\n",
        "the key 'name' occurs twice; keep one",
    ),
    "a key twice in JSON": (
        '{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p"},"spec":{"containers":[{"name":"a","name":"b"}]}}',
        "the key 'name' occurs twice; keep one",
    ),
}


@pytest.mark.parametrize("command", ["simulate", "translate", "explain"])
@pytest.mark.parametrize("text", TEXTS)
def test_every_command_refuses_what_the_api_server_would(
    command: str, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written, why = TEXTS[text]
    file = tmp_path / ("p.json" if written.startswith("{") else "p.yaml")
    file.write_text(written)
    assert main([*(["explain", "p"] if command == "explain" else [command]), "-f", str(file)]) == 2
    err = capsys.readouterr().err
    assert why in err
    assert str(file) in err


@pytest.mark.parametrize("text", ['{"a": "\\u0022", "b": "\\""}', '{"a": 1}\n{"a": 2}', '{"a": {"a": {"a": 1}}}'])
def test_json_with_each_key_once_is_read(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "p.json"
    file.write_text(text)
    main(["translate", "-f", str(file)])
    assert "occurs twice" not in capsys.readouterr().err


def test_a_merge_key_may_be_overridden(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "p.yaml"
    made = json.dumps({**pod(container(limits=HALF), name="p"), "apiVersion": "v1", "kind": "Pod"})
    file.write_text(
        f"base: &base {{kind: A, metadata: {{name: x}}}}\n<<: *base\nkind: ConfigMap\napiVersion: v1\n---\n{made}\n"
    )
    assert main(["translate", "-f", str(file)]) == 0, capsys.readouterr().err
