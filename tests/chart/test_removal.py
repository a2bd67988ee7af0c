"""`koordgate cleanup` knows what of the chart would stay, or do harm, once its namespace is deleted."""

from typing import Any

import pytest
from value_sets import VALUE_SETS

from console.cleanup.command import REST, STOPPED, RemovedKind
from localplane import chart
from localplane.admin import JsonObject
from localplane.binaries import Binaries

HARMFUL = ("Deployment", "DaemonSet", "Pod")
DEFINITION = "CustomResourceDefinition"  # the command removes these itself, where nobody else has objects of them


def removes(part: RemovedKind, obj: JsonObject) -> bool:
    """Whether a part is about an object: its kind, its namespace and its labels."""
    about: dict[str, Any] = obj["metadata"]
    name = obj["kind"].lower()
    alike = part.resource.api_version == obj["apiVersion"] and part.resource.plural in {f"{name}s", f"{name[:-1]}ies"}
    there = not part.resource.namespaced or part.everywhere or about.get("namespace") == chart.NAMESPACE
    key, _, value = part.selector.partition("=")
    return alike and there and about.get("labels", {}).get(key) == value


@pytest.mark.parametrize("name", VALUE_SETS)
def test_each_object_of_the_chart_that_would_stay_is_removed_by_cleanup(binaries: Binaries, name: str) -> None:
    rendered = chart.render(binaries, VALUE_SETS[name], tests=True)
    staying = [
        obj
        for obj in rendered
        if obj["kind"] != DEFINITION and (obj["metadata"].get("namespace") != chart.NAMESPACE or obj["kind"] in HARMFUL)
    ]
    assert len(staying) > 3
    passed_over = [
        f"{obj['apiVersion']} {obj['kind']} {obj['metadata']['name']}"
        for obj in staying
        if not any(removes(part, obj) for part in (*STOPPED, *REST))
    ]
    assert passed_over == []
