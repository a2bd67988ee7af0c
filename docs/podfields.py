"""The fields that the API server knows of what states Pods, as a file that offline commands read.

They come from Kubernetes' own OpenAPI, by the models of kubernetes_asyncio. Importing these takes seconds, so that the
file is kept in the tree: `make generate` writes it, and a test compares it with the models.
"""

import json
import re
from pathlib import Path
from typing import Any, Final

from kubernetes_asyncio import client

ROOT: Final = Path(__file__).resolve().parents[1]

FILE: Final = ROOT / "webhook" / "offline" / "fields.json"
_STATING: Final = (
    "Pod",
    "PodTemplate",
    "PodTemplateSpec",
    "ReplicationController",
    "Deployment",
    "StatefulSet",
    "DaemonSet",
    "ReplicaSet",
    "Job",
    "CronJob",
)
_TYPE: Final = re.compile(r"\b([A-Z]\w+)\b")
_OF_OBJECTS: Final = {"apiVersion", "kind", "metadata"}
_VERSION: Final = "V1"
_KIND: Final = re.compile(r"(?:[A-Z][a-z]+)?V1([A-Z]\w*)")  # as CoreV1Event, where two groups have a kind


def text() -> str:
    """Write the file.

    `types` has type -> field -> type of its value or of its elements, "" for what has no fields of its own; `kinds` has
    the kinds of all groups at version v1.
    """
    types: dict[str, dict[str, str]] = {}
    waiting = [f"{_VERSION}{kind}" for kind in _STATING]
    while waiting:
        name = waiting.pop()
        if name in types:
            continue
        model: Any = getattr(client, name)
        types[name] = {field: _inner(model.openapi_types[own]) for own, field in model.attribute_map.items()}
        waiting += filter(None, types[name].values())
    kinds = {
        named[1]
        for name, model in vars(client).items()
        if (named := _KIND.fullmatch(name)) and set(getattr(model, "attribute_map", {}).values()) >= _OF_OBJECTS
    }
    lines = [f"{json.dumps(name)}: {json.dumps(types[name], sort_keys=True)}" for name in sorted(types)]
    return f'{{"kinds": {json.dumps(sorted(kinds))},\n"types": {{\n' + ",\n".join(lines) + "\n}}\n"


def _inner(stated: str) -> str:
    found = _TYPE.search(stated)
    return found[1] if found is not None and not stated.startswith("dict") else ""
