"""The Pods that manifests state, and manifests with other Pods."""

from typing import Any

import pytest

from console.simulator.manifests import must_have_pods, place_of, pods_in, with_pods

Raw = dict[str, Any]
SPEC = {"containers": [{"name": "c"}]}


def template(**metadata: Any) -> Raw:
    return {"metadata": metadata, "spec": SPEC}


@pytest.mark.parametrize(
    ("version", "kind", "expected"),
    [
        ("apps/v1", "Deployment", True),
        ("apps/v1beta2", "StatefulSet", True),
        ("batch/v1", "Job", True),
        ("v1", "Pod", True),
        ("batch.volcano.sh/v1alpha1", "Job", False),
        ("v1", "Deployment", False),
        ("other/apps", "Deployment", False),
        (None, "Pod", False),
    ],
)
def test_kubernetes_own_workloads_always_state_a_pod(version: str | None, kind: str, *, expected: bool) -> None:
    assert must_have_pods({"apiVersion": version}, kind) is expected


@pytest.mark.parametrize(
    ("metadata", "named"),
    [
        ({"name": "a", "generateName": "b-", "namespace": "team"}, {"name": "a", "namespace": "team"}),
        ({"generateName": "run-"}, {"name": "run-0", "namespace": "default"}),
        ({"generateName": "run"}, {"name": "runx", "namespace": "default"}),
        (None, {"name": "jobx", "namespace": "default"}),
    ],
)
def test_a_pod_has_the_name_and_namespace_of_its_object(metadata: Raw | None, named: Raw) -> None:
    obj = {"metadata": metadata, "spec": {"template": template(labels={"a": "b"}, name="t")}}
    expected = {"apiVersion": "v1", "kind": "Pod", "metadata": {"labels": {"a": "b"}, **named}, "spec": SPEC}
    assert pods_in(obj, "Job") == {("spec", "template"): expected}


SEVERAL: Raw = {
    "metadata": {"name": "x"},
    "spec": {
        "tasks": [{"template": template(labels={"a": "1"})}, {"other": 5}, {"template": {"spec": SPEC}}],
        "head": {"spec": {**SPEC, "inner": template()}},
        "none": {"spec": ["containers"]},
    },
}


def test_all_templates_are_found_in_their_order_and_none_in_another() -> None:
    assert list(pods_in(SEVERAL, "Thing")) == [
        ("spec", "tasks", 0, "template"),
        ("spec", "tasks", 2, "template"),
        ("spec", "head"),
    ]
    assert [place_of(way) for way in pods_in(SEVERAL, "Thing")] == [
        "spec.tasks[0].template",
        "spec.tasks[2].template",
        "spec.head",
    ]
    assert place_of(()) == ""


def test_other_pods_bring_their_labels_annotations_and_spec() -> None:
    pods = {
        ("spec", "tasks", 0, "template"): {"metadata": {"name": "p", "annotations": {"b": "2"}}, "spec": {"x": 1}},
        ("spec", "tasks", 2, "template"): {"metadata": {"name": "p"}, "spec": {"x": 2}},
        ("spec", "head"): {"metadata": {"labels": {"c": "3"}, "annotations": {}}, "spec": {"x": 3}},
    }
    assert with_pods(SEVERAL, pods) == {
        "metadata": {"name": "x"},
        "spec": {
            "tasks": [
                {"template": {"metadata": {"annotations": {"b": "2"}}, "spec": {"x": 1}}},
                {"other": 5},
                {"template": {"spec": {"x": 2}}},
            ],
            "head": {"metadata": {"labels": {"c": "3"}}, "spec": {"x": 3}},
            "none": {"spec": ["containers"]},
        },
    }
    assert SEVERAL["spec"]["tasks"][0]["template"] == template(labels={"a": "1"})
