"""The structure that an API server requires of objects, at its bounds, and in which words others are refused."""

from pathlib import Path
from typing import Any

import pytest
from simulator.clusters import saved

from console.simulator.documents import InputError
from console.simulator.manifests import wrong_shape
from console.simulator.objects import read

Raw = dict[str, Any]
POD: Raw = {"metadata": {"name": "a"}, "spec": {"containers": [{"name": "c"}]}}
SPEC: Raw = {"template": {}}


def named(name: str) -> Raw:
    return {"metadata": {"name": name}}


CASES: dict[str, tuple[str, Raw, str]] = {
    "a Pod": ("Pod", POD, ""),
    "a name of 253 characters": ("Thing", named("a" * 253), ""),
    "a name of 254 characters": ("Thing", named("a" * 254), "Expected str of length <= 253 - at metadata.name"),
    "a name of one character": ("Thing", named("7"), ""),
    "a name that ends in a dash": (
        "Thing",
        named("a-"),
        "Expected str matching regex '^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$' - at metadata.name",
    ),
    "no container": (
        "Pod",
        {**POD, "spec": {"containers": []}},
        "Expected array of length >= 1 - at spec.containers",
    ),
    "as many replicas as there may be": ("Deployment", {**named("a"), "spec": {**SPEC, "replicas": 2_147_483_647}}, ""),
    "one too many": (
        "Deployment",
        {**named("a"), "spec": {**SPEC, "replicas": 2_147_483_648}},
        "Expected int <= 2147483647 - at spec.replicas",
    ),
    "no replicas": ("ReplicationController", {**named("a"), "spec": {**SPEC, "replicas": 0}}, ""),
    "fewer": (
        "ReplicationController",
        {**named("a"), "spec": {**SPEC, "replicas": -1}},
        "Expected int >= 0 - at spec.replicas",
    ),
    "an ordinal": ("StatefulSet", {**named("a"), "spec": {**SPEC, "ordinals": {}}}, ""),
    "the revision of a claim": ("ResourceClaim", {"metadata": {"name": "a", "resourceVersion": "10"}}, ""),
    "a revision that is no number": (
        "ResourceClaim",
        {"metadata": {"name": "a", "resourceVersion": "010"}},
        "Expected str matching regex '^([1-9][0-9]*)?$' - at metadata.resourceVersion",
    ),
    "a PriorityClass": ("PriorityClass", named("a"), ""),
}


@pytest.mark.parametrize(("kind", "obj", "told"), CASES.values(), ids=CASES)
def test_an_object_has_the_shape_of_its_kind(kind: str, obj: Raw, told: str) -> None:
    assert wrong_shape(kind, obj) == told


def test_a_file_whose_object_has_too_long_a_name_is_refused(tmp_path: Path) -> None:
    assert len(read([saved(tmp_path, [{"kind": "Node", **named("a" * 253)}])]).nodes) == 1
    with pytest.raises(InputError, match=r"Expected str of length <= 253 - at metadata\.name; the API server would"):
        read([saved(tmp_path, [{"kind": "Node", **named("a" * 254)}])])
