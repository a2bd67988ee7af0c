"""Schemas as kubeconform reads them: a JSON schema for each kind, which refuses unknown fields."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

_KINDS = "x-kubernetes-group-version-kind"
_OPEN = "x-kubernetes-preserve-unknown-fields"
_DEFINITIONS = "definitions.json"
_QUANTITY = "io.k8s.apimachinery.pkg.api.resource.Quantity"
_NUMBER_OR_TEXT = {"type": ["string", "number"]}


def write(openapi: Mapping[str, Any], folder: Path) -> None:
    """Write a file for each kind.

    Args:
        openapi: What an API server serves as /openapi/v2.
        folder: Is made. The files have kubeconform's names: `deployment-apps-v1.json`.
    """
    folder.mkdir()
    definitions = {name: _strict(schema) for name, schema in openapi["definitions"].items()}
    definitions[_QUANTITY] = _NUMBER_OR_TEXT
    for name, schema in openapi["definitions"].items():
        for kind in schema.get(_KINDS, ()):
            reference = {"$ref": f"{_DEFINITIONS}#/definitions/{name}"}
            _write(folder, kind["kind"], kind["group"], kind["version"], reference)
    (folder / _DEFINITIONS).write_text(json.dumps({"definitions": definitions}))


def add(customs: Iterable[Mapping[str, Any]], folder: Path) -> None:
    """Write a file for each version of each CustomResourceDefinition, into the folder of `write`."""
    for spec in (custom["spec"] for custom in customs):
        for version in spec["versions"]:
            schema = _strict(version["schema"]["openAPIV3Schema"])
            _write(folder, spec["names"]["kind"], spec["group"], version["name"], schema)


def _write(folder: Path, kind: str, group: str, version: str, schema: Any) -> None:
    file = "-".join(filter(None, (kind.lower(), group.split(".", maxsplit=1)[0], version)))
    (folder / f"{file}.json").write_text(json.dumps(schema))


def _strict(schema: Any) -> Any:
    """Refuse fields that a schema does not list, and take numbers for texts as the API server does."""
    if not isinstance(schema, Mapping):
        return schema
    if "$ref" in schema:
        return {"$ref": schema["$ref"].replace("#/", f"{_DEFINITIONS}#/")}
    if schema.get("format") == "int-or-string":
        return _NUMBER_OR_TEXT
    strict = {key: value for key, value in schema.items() if key in {"type", "required", "enum"}}
    if "items" in schema:
        strict["items"] = _strict(schema["items"])
    if "properties" in schema:
        strict["properties"] = {name: _strict(value) for name, value in schema["properties"].items()}
    if "additionalProperties" in schema:
        strict["additionalProperties"] = _strict(schema["additionalProperties"])
    elif "properties" in schema and not schema.get(_OPEN):
        strict["additionalProperties"] = False
    return strict
