"""What the API server knows of the objects that offline commands read, as a file: fields and kinds of values.

They come from Kubernetes' own OpenAPI, of the newest version that koordgate supports. Its file is in the Go module from
which the tests build a control plane, and a control-plane test compares what is kept with the API server's answer:

    folder=$(cd localplane/module && go list -m -f '{{.Dir}}' k8s.io/kubernetes)
    .venv/bin/python docs/podfields.py $folder/api/openapi-spec/swagger.json
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[1]

FILE: Final = ROOT / "console" / "simulator" / "fields.json"
_READ: Final = (
    *("core.v1.Pod", "core.v1.PodTemplate", "core.v1.PodTemplateSpec", "core.v1.ReplicationController"),
    *("apps.v1.Deployment", "apps.v1.StatefulSet", "apps.v1.DaemonSet", "apps.v1.ReplicaSet"),
    *("batch.v1.Job", "batch.v1.CronJob", "core.v1.Node", "core.v1.Namespace", "core.v1.ConfigMap"),
    *("core.v1.LimitRange", "core.v1.ResourceQuota", "policy.v1.PodDisruptionBudget"),
    *("scheduling.v1.PriorityClass", "node.v1.RuntimeClass"),
)
_OF_OBJECTS: Final = {"apiVersion", "kind", "metadata"}
_OWN: Final = "io.k8s."  # other definitions are those of CustomResourceDefinitions
_GROUPS: Final = "x-kubernetes-group-version-kind"
_QUANTITY: Final = "Quantity"  # a text in OpenAPI, and a number too for the API server
_SCALARS: Final = ("string", "integer", "number", "boolean")

Raw = Mapping[str, Any]


def text(api: Raw) -> str:
    """Write the file.

    `types` has type -> field -> its value: a type, `[...]` for a list, `{...}` for a mapping, "" for anything.
    `kinds` has the kinds of all groups at version v1.

    Args:
        api: what the API server serves as /openapi/v2.
    """
    known: Mapping[str, Raw] = {name: one for name, one in api["definitions"].items() if name.startswith(_OWN)}
    types: dict[str, dict[str, str]] = {}
    waiting = [f"{_OWN}api.{name}" for name in _READ]
    while waiting:
        name = waiting.pop()
        short = _short(name)
        if short in types:
            continue
        properties = known[name]["properties"]
        types[short] = {field: _value(value, known, waiting) for field, value in properties.items()}
    kinds = {
        of["kind"]
        for one in known.values()
        for of in one.get(_GROUPS, ())
        if of["version"] == "v1" and set(one.get("properties", ())) >= _OF_OBJECTS
    }
    lines = [f"{json.dumps(name)}: {json.dumps(types[name], sort_keys=True)}" for name in sorted(types)]
    return f'{{"kinds": {json.dumps(sorted(kinds))},\n"types": {{\n' + ",\n".join(lines) + "\n}}\n"


def _short(name: str) -> str:
    return name.rpartition(".")[2]


def _value(value: Raw, known: Mapping[str, Raw], waiting: list[str]) -> str:
    """How the file writes a value; types in it are added to those that wait."""
    if "items" in value:
        return f"[{_value(value['items'], known, waiting)}]"
    if "additionalProperties" in value:
        return f"{{{_value(value['additionalProperties'], known, waiting)}}}"
    stated = value.get("allOf", [value])[0].get("$ref", "").rpartition("/")[2]
    if stated and known[stated].get("properties"):
        waiting.append(stated)
        return _short(stated)
    if _short(stated) == _QUANTITY:
        return _QUANTITY
    scalar = known[stated] if stated else value
    return scalar["type"] if scalar.get("type") in _SCALARS and scalar.get("format") != "int-or-string" else ""


if __name__ == "__main__":
    FILE.write_text(text(json.loads(Path(sys.argv[1]).read_text())))
