"""What an API server sends has the shapes; anything else is named, with its place."""

from typing import Any

import pytest
from builders import container, pod
from world import binding, cpu_pod, gpu_pod, invalid_pods

from webhook.shapes import BindingShape, PodShape, misshapen

RIGHT: dict[str, Any] = {
    **invalid_pods(),
    "translated": gpu_pod("p"),
    "with CPUs of its own": cpu_pod("p"),
    "fields that are null": pod(
        container(resources=None, env=None), affinity=None, tolerations=None, initContainers=None
    ),
    "fields that koordgate does not read": pod(container(args=["x"], ports=[{"containerPort": 1}]), hostNetwork=True),
    "a variable from a Secret": pod(container(env=[{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s"}}}])),
    "affinity": pod(
        affinity={
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "Exists"}]}]
                }
            },
            "podAffinity": {},
        }
    ),
}


@pytest.mark.parametrize("obj", RIGHT.values(), ids=RIGHT)
def test_a_pod_of_an_api_server_has_the_shape_of_one_valid_or_not(obj: Any) -> None:
    assert misshapen(obj, PodShape) == ""


WRONG: dict[str, tuple[Any, str]] = {
    "nothing": ({}, "missing required field `metadata`"),
    "a spec that is text": ({"metadata": {}, "spec": ""}, "$.spec"),
    "no containers": (pod() | {"spec": {}}, "missing required field `containers` - at `$.spec`"),
    "a container without a name": (pod() | {"spec": {"containers": [{}]}}, "$.spec.containers[0]"),
    "a quantity that is a list": (pod(container(limits={"cpu": []})), "$.spec.containers[0].resources.limits"),
    "a label that is a number": (pod(labels={"a": 1}), "$.metadata.labels"),  # type: ignore[dict-item]
    "a gate that is text": (pod(schedulingGates=["a"]), "$.spec.schedulingGates[0]"),
    "values that are text": (
        pod(
            affinity={
                "nodeAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": {
                        "nodeSelectorTerms": [{"matchFields": [{"key": "a", "operator": "In", "values": "b"}]}]
                    }
                }
            }
        ),
        "nodeSelectorTerms[0].matchFields[0].values",
    ),
}


@pytest.mark.parametrize(("obj", "where"), WRONG.values(), ids=WRONG)
def test_what_no_api_server_sends_is_named_with_its_place(obj: Any, where: str) -> None:
    assert where in misshapen(obj, PodShape)


def test_a_binding_has_metadata_and_a_target() -> None:
    assert misshapen(binding("p", "n1"), BindingShape) == ""
    assert misshapen({"metadata": {}}, BindingShape) == "Object missing required field `target`"
    assert "$.target.name" in misshapen({"metadata": {}, "target": {"name": 1}}, BindingShape)
