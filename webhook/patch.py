"""JSON Patch (RFC 6902): the operations of admission's answers, and their application offline and in tests.

Only named paths are ever patched, so that unknown fields survive.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import jsonpatch
import orjson

Operation = dict[str, Any]


@lru_cache(maxsize=1024)  # the same few names are written again and again
def pointer(*parts: str | int) -> str:
    """Write a JSON Pointer from unescaped parts: `pointer("metadata", "annotations", "a/b")`."""
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in parts)


def add(path: str, value: object) -> Operation:
    """Add a member or array element, or replace the member that is there."""
    return {"op": "add", "path": path, "value": value}


def replace(path: str, value: object) -> Operation:
    """Replace the value at a path."""
    return {"op": "replace", "path": path, "value": value}


def remove(path: str) -> Operation:
    """Remove the value at a path."""
    return {"op": "remove", "path": path}


def set_annotations(obj: Mapping[str, Any], annotations: Mapping[str, str]) -> list[Operation]:
    """Set annotations on an object that may have none yet, or no metadata."""
    metadata = obj.get("metadata")
    if metadata is None:
        return [add("/metadata", {"annotations": dict(annotations)})]
    if metadata.get("annotations") is None:
        return [add("/metadata/annotations", dict(annotations))]
    return [add(pointer("metadata", "annotations", key), value) for key, value in annotations.items()]


def apply(obj: Mapping[str, Any], operations: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Apply a patch as the API server would; the object itself, which is JSON, stays as it is."""
    copied = orjson.loads(orjson.dumps(obj))  # ten times as fast as a copy of each part
    result: dict[str, Any] = jsonpatch.apply_patch(copied, list(operations), in_place=True)
    return result
