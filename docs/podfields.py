"""The fields that the API server knows of what states Pods, as a file that offline commands read.

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
_STATING: Final = (
    *("core.v1.Pod", "core.v1.PodTemplate", "core.v1.PodTemplateSpec", "core.v1.ReplicationController"),
    *("apps.v1.Deployment", "apps.v1.StatefulSet", "apps.v1.DaemonSet", "apps.v1.ReplicaSet"),
    *("batch.v1.Job", "batch.v1.CronJob"),
)
_OF_OBJECTS: Final = {"apiVersion", "kind", "metadata"}
_OWN: Final = "io.k8s."  # other definitions are those of CustomResourceDefinitions
_GROUPS: Final = "x-kubernetes-group-version-kind"

Raw = Mapping[str, Any]


def text(api: Raw) -> str:
    """Write the file.

    `types` has type -> field -> type of its value or of its elements, "" for what has no fields of its own; `kinds` has
    the kinds of all groups at version v1.

    Args:
        api: what the API server serves as /openapi/v2.
    """
    known: Mapping[str, Raw] = {name: one for name, one in api["definitions"].items() if name.startswith(_OWN)}
    types: dict[str, dict[str, str]] = {}
    waiting = [f"{_OWN}api.{name}" for name in _STATING]
    while waiting:
        name = waiting.pop()
        if _short(name) in types:
            continue
        inner = {field: _inner(value, known) for field, value in known[name]["properties"].items()}
        types[_short(name)] = {field: _short(of) for field, of in inner.items()}
        waiting += filter(None, inner.values())
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


def _inner(value: Raw, known: Mapping[str, Raw]) -> str:
    value = value.get("items", value)
    stated = value.get("allOf", [value])[0].get("$ref", "").rpartition("/")[2]
    return stated if known.get(stated, {}).get("properties") else ""


if __name__ == "__main__":
    FILE.write_text(text(json.loads(Path(sys.argv[1]).read_text())))
