"""The stand-in for the API server: the objects and reviews that it makes, and the answers that it reads."""

import base64
import json
from typing import Any

import pytest

from console.simulator.apiserver import ReviewVerdict, binding, bound, review, uid, verdict, with_defaults

Raw = dict[str, Any]


@pytest.mark.parametrize("kind", ["LimitRange", "PodGroup", "ResourceClaim", "ResourceQuota"])
def test_an_object_of_a_namespace_gets_one(kind: str) -> None:
    given = {"kind": kind, "metadata": {"name": "a"}, "spec": {"initContainers": [{"name": "c"}]}}
    made = {"name": "a", "namespace": "default", "uid": uid(kind, "default", "a"), "resourceVersion": "1"}
    assert with_defaults(given) == {**given, "metadata": made}
    own = {"name": "a", "namespace": "team", "uid": "u", "resourceVersion": "7"}
    assert with_defaults({**given, "metadata": own}) == {**given, "metadata": own}
    assert given["metadata"] == {"name": "a"}


@pytest.mark.parametrize("kind", ["Device", "Node", "ResourceSlice"])
def test_an_object_of_the_cluster_gets_none(kind: str) -> None:
    made = with_defaults({"kind": kind, "metadata": {"name": "a"}})
    assert made["metadata"] == {"name": "a", "uid": uid(kind, "", "a"), "resourceVersion": "1"}


def test_a_uid_is_the_same_for_the_same_kind_namespace_and_name() -> None:
    assert uid("Pod", "default", "a") == "39bc8cd5-c263-552b-a3c9-f659105b9e9d"
    assert len({uid("Pod", "x", "a"), uid("Pod", "y", "a"), uid("Node", "x", "a"), uid("Pod", "x", "b")}) == 4


def test_a_pod_gets_what_the_api_server_adds() -> None:
    containers = [
        {"name": "a", "resources": {"limits": {"m": "2", "cpu": "1"}, "requests": {"z": "1", "cpu": "500m"}}},
        {"name": "b", "resources": {"limits": {"b": 1, "a": 2}}},
        {"name": "c", "resources": {"requests": {"b": 1, "a": 2}, "limits": {}}},
        {"name": "d", "resources": None},
        {"name": "e"},
    ]
    given = {
        "kind": "Pod",
        "metadata": {"name": "p"},
        "spec": {"containers": containers[1:], "initContainers": containers[:1]},
    }
    made = with_defaults(given)
    assert made["metadata"] == {"name": "p", "namespace": "default", "uid": uid("Pod", "default", "p")}
    assert made["spec"]["schedulerName"] == "default-scheduler"
    first = made["spec"]["initContainers"][0]["resources"]
    assert list(first["requests"].items()) == [("cpu", "500m"), ("m", "2"), ("z", "1")]
    assert list(first["limits"].items()) == [("cpu", "1"), ("m", "2")]
    second, third, *others = made["spec"]["containers"]
    assert [list(second["resources"][key].items()) for key in ("requests", "limits")] == [[("a", 2), ("b", 1)]] * 2
    assert list(third["resources"]["requests"].items()) == [("a", 2), ("b", 1)]
    assert third["resources"]["limits"] == {}
    assert others == containers[3:]


def test_what_a_pod_states_itself_stays() -> None:
    own = {"name": "p", "namespace": "team", "uid": "u"}
    given = {
        "kind": "Pod",
        "metadata": own,
        "spec": {"schedulerName": "mine", "containers": None, "initContainers": None},
    }
    assert with_defaults(given) == given


POD: Raw = {"kind": "Pod", "metadata": {"name": "p", "namespace": "team", "uid": "u"}, "spec": {"a": 1}}


def test_a_binding_brings_a_node_annotations_and_labels() -> None:
    by = binding(POD, "n1")
    assert by == {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": "p", "namespace": "team", "uid": "u"},
        "target": {"apiVersion": "v1", "kind": "Node", "name": "n1"},
    }
    assert bound(POD, by) == {**POD, "spec": {"a": 1, "nodeName": "n1"}}
    carrying = {**by, "metadata": {**by["metadata"], "annotations": {"b": "2", "c": "3"}, "labels": {"l": "1"}}}
    labelled = {**POD, "metadata": {**POD["metadata"], "annotations": {"a": "1", "b": "1"}, "labels": None}}
    assert bound(labelled, carrying)["metadata"] == {
        **POD["metadata"],
        "annotations": {"a": "1", "b": "2", "c": "3"},
        "labels": {"l": "1"},
    }


@pytest.mark.parametrize(("kind", "subresource"), [("Pod", ""), ("Binding", "binding")])
def test_a_review_is_what_the_api_server_sends(kind: str, subresource: str) -> None:
    obj = {"kind": kind, "metadata": {"name": "p", "namespace": "team"}}
    group = {"group": "", "version": "v1"}
    assert review(obj, "/path", "me", ["mine"]) == {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": uid("/path", "team", "p"),
            "kind": {**group, "kind": kind},
            "resource": {**group, "resource": "pods"},
            "subResource": subresource,
            "requestKind": {**group, "kind": kind},
            "requestResource": {**group, "resource": "pods"},
            "name": "p",
            "namespace": "team",
            "operation": "CREATE",
            "userInfo": {"username": "me", "groups": ["mine", "system:authenticated"]},
            "object": obj,
            "oldObject": None,
            "dryRun": False,
            "options": {"apiVersion": "meta.k8s.io/v1", "kind": "CreateOptions"},
        },
    }
    assert review(obj, "/path", "me")["request"]["userInfo"]["groups"] == ["system:authenticated"]


def test_an_answer_is_read_and_its_patch_applied() -> None:
    operations = [{"op": "add", "path": "/spec/b", "value": 2}]
    text = base64.b64encode(json.dumps(operations).encode()).decode()
    answers: list[tuple[Raw, ReviewVerdict]] = [
        ({"allowed": True}, ReviewVerdict("", POD)),
        (
            {"allowed": True, "patch": text, "warnings": ["w", "x"]},
            ReviewVerdict("", {**POD, "spec": {"a": 1, "b": 2}}, ("w", "x")),
        ),
        ({"allowed": False, "patch": text, "warnings": None}, ReviewVerdict("refused without a message", POD)),
        ({"allowed": False, "status": None}, ReviewVerdict("refused without a message", POD)),
        ({"status": {"message": "no"}, "warnings": ["w"]}, ReviewVerdict("no", POD, ("w",))),
    ]
    for response, expected in answers:
        assert verdict(POD, {"response": response}) == expected


def test_an_answer_that_is_none_is_told_up_to_200_characters() -> None:
    with pytest.raises(ValueError, match="not the answer") as raised:
        verdict(POD, {"response": "x" * 300})
    assert str(raised.value) == f"not the answer to an AdmissionReview: {{'response': '{'x' * 186}"
    with pytest.raises(ValueError, match=r"^not the answer to an AdmissionReview: {}$"):
        verdict(POD, {})
