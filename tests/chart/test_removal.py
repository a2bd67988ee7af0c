"""`koordgate cleanup` knows each object that the chart installs, whatever the values: it removes what was applied."""

from typing import Any

import pytest
from value_sets import VALUE_SETS

from console.cleanup.parts import PHASES, RemovedKind
from localplane import chart
from localplane.admin import JsonObject
from localplane.binaries import Binaries

PARTS = [part for phase in PHASES for part in phase.parts]
# The command removes these itself, where nobody else has objects of them.
DEFINITION = "CustomResourceDefinition"


def plurals(kind: str) -> set[str]:
    """What the API may call the objects of a kind in a path."""
    name = kind.lower()
    return {f"{name}s", f"{name}ies" if not name.endswith("y") else f"{name[:-1]}ies"}


def removes(part: RemovedKind, obj: JsonObject) -> bool:
    """Whether a part is about an object: its kind, its namespace and its labels."""
    about: dict[str, Any] = obj["metadata"]
    alike = part.resource.api_version == obj["apiVersion"] and part.resource.plural in plurals(obj["kind"])
    there = not part.resource.namespaced or part.everywhere or about.get("namespace") == chart.NAMESPACE
    key, _, value = part.selector.partition("=")
    return alike and there and about.get("labels", {}).get(key) == value


@pytest.mark.parametrize("name", VALUE_SETS)
def test_each_object_of_the_chart_is_removed_by_cleanup(binaries: Binaries, name: str) -> None:
    objects = chart.render(binaries, VALUE_SETS[name], tests=True)
    assert len(objects) > 10
    passed_over = [
        f"{obj['apiVersion']} {obj['kind']} {obj['metadata'].get('namespace', '')}/{obj['metadata']['name']}"
        for obj in objects
        if obj["kind"] != DEFINITION and not any(removes(part, obj) for part in PARTS)
    ]
    assert passed_over == []
