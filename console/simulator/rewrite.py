"""A Pod that asks in any dialect, written in a given one (pure)."""

import copy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from allocator.request.express import express
from allocator.request.original import read_asks
from allocator.vocabulary.devicetype import DeviceTypes
from allocator.vocabulary.dialect import Dialect
from allocator.vocabulary.names import (
    ASKED_LIMIT_PREFIX,
    DEVICE_ORDER,
    DIALECT,
    ORIGINAL_REQUEST,
    RESOURCE_MAPS,
    is_quota_resource,
)
from allocator.wire.allocatehint import HINT_ANNOTATIONS

Raw = dict[str, Any]
_OURS: Final = (*HINT_ANNOTATIONS, DEVICE_ORDER)


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A Pod in another dialect.

    Attributes:
        pod: as written; as given where something is missing.
        missing: why it cannot be written so, a sentence each.
        notes: what its author should know.
    """

    pod: Raw
    missing: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def rewrite(pod: Raw, dialect: Dialect, types: DeviceTypes) -> Rewritten:
    """Write what a Pod asks of a dialect's type in that dialect; the rest of the Pod stays as it is.

    Args:
        pod: in any dialect that is read.
        dialect: to write it in.
        types: the table for its namespace.
    """
    reading = read_asks(pod, types, implied=False)
    if reading.problems:
        return Rewritten(pod, tuple(map(str, reading.problems)))
    kind = types.by_name[dialect.type]
    request = reading.request
    if not any(one.ask.type == kind for one in request.containers):
        return Rewritten(pod)
    apps = pod["spec"].get("containers") or ()
    first = str(apps[0].get("name", "")) if apps else ""
    made = express(request, dialect, kind, first, one_device=kind.name in reading.one_device)
    if made.missing:
        return Rewritten(pod, tuple(made.missing))
    done = copy.deepcopy(pod)
    for container in _containers(done):
        _replace(container, made.resources.get(container["name"], {}), kind.name, types)
    metadata = done["metadata"]
    annotations: Mapping[str, str] = metadata.get("annotations") or {}
    gone = {ORIGINAL_REQUEST, DIALECT, *types.known.annotations, *types.known.selections}
    gone.update(one.container for one in types.known.dialects if one.container)
    gone.update(key for key in annotations if key.startswith(ASKED_LIMIT_PREFIX) or types.known.form_of(key))
    kept = {key: text for key, text in annotations.items() if key not in gone} | made.annotations
    metadata["annotations"] = kept
    if not kept:
        del metadata["annotations"]
    notes = [f"{dialect.title} does not read the annotation {key}" for key in _OURS if dialect.title and key in kept]
    return Rewritten(done, notes=tuple(notes))


def _containers(pod: Mapping[str, Any]) -> Iterable[Raw]:
    spec = pod["spec"]
    return (*(spec.get("initContainers") or ()), *(spec.get("containers") or ()))


def _replace(container: Raw, amounts: Mapping[str, str], kind: str, types: DeviceTypes) -> None:
    """Write a container's amounts of one type in place of those that it has."""
    resources = container.get("resources") or {}
    known = types.known.resources
    for key in RESOURCE_MAPS:
        if key not in resources and (key == "requests" or not amounts):
            continue
        present = resources.get(key) or {}
        others = {
            name: text
            for name, text in present.items()
            if not is_quota_resource(name) and (name not in known or known[name].type.name != kind)
        }
        resources[key] = {**others, **amounts}
        if not resources[key]:
            del resources[key]
    if resources or "resources" in container:
        container["resources"] = resources
