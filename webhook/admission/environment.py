"""The variables by which a container finds its devices, and what it may use of them (pure).

Their values are annotations that the bind writes: the kubelet resolves them when the container starts.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from allocator.request.devices import ContainerReading, PodReading
from allocator.vocabulary.devicetype import DeviceType, DeviceTypes
from allocator.vocabulary.limits import LIMIT_VARIABLES
from allocator.vocabulary.names import CUDA_DEVICES_ENV, TYPE_GPU, VISIBLE_DEVICES_ENV, device_quota, visible_devices
from webhook.patch import Operation, add, remove, replace

_MOST_REMOVALS: Final = 16  # of entries of one list; more cost the API server the square of the list's length
Entries = dict[str, dict[str, Any]]  # variable -> its entry


def shown_types(reading: PodReading, types: DeviceTypes) -> tuple[DeviceType, ...]:
    """The types whose variable every container of a Pod gets.

    The GPU variable is set for every Pod that asks for any device, because an image may request all GPUs by itself.
    Variables of other types are set if the Pod asks for the type. A Pod without devices gets none.
    """
    asked = {ask.type for container in reading.containers for ask in container.requests}
    if not asked:
        return ()
    return tuple(kind for kind in types.types if kind.environment and (kind in asked or kind.nothing))


def wanted_env(
    container: ContainerReading, shown: Sequence[DeviceType], *, told: bool, limits: Mapping[str, str]
) -> Entries:
    """Write a container's environment entries.

    An entry refers to the container's own annotation. A container that asks for no such device gets the type's value
    `nothing`, or no entry if that is empty, and no entries about what it may use.
    `shown`: the types whose variables the containers of the Pod get. `limits`: variables by which what keeps the Pod's
    memory limits learns them of each container with GPUs -> the beginning of the annotation's key; none if no limits
    are required.
    """
    entries: Entries = {}
    for kind in shown:
        variable = kind.environment
        if any(ask.type == kind for ask in container.requests):
            entries[variable] = _from_annotation(variable, visible_devices(container.name, kind.name))
            for tail, limit in kind.limits.items() if told else ():
                entries[limit] = _from_annotation(limit, device_quota(container.name, tail))
            for limit, prefix in limits.items() if kind.name == TYPE_GPU else ():
                entries[limit] = _from_annotation(limit, f"{prefix}{container.name}")
        elif kind.nothing:
            entries[variable] = {"name": variable, "value": kind.nothing}
    return entries


def closed_env(wanted: Entries) -> Iterator[str]:
    """The variables that this container is to be without; none in a Pod without devices, which has no entry of ours."""
    return (variable for variable in LIMIT_VARIABLES if wanted and variable not in wanted)


def misleading_env(container: ContainerReading, spec: Mapping[str, Any]) -> Iterator[str]:
    """Warn of a variable by which CUDA would look for other cards than those that the container gets."""
    gets = any(ask.type.environment == VISIBLE_DEVICES_ENV for ask in container.requests)
    if gets and any(entry.get("name") == CUDA_DEVICES_ENV for entry in spec.get("env") or ()):
        yield (
            f"{container.path}.env: {CUDA_DEVICES_ENV} was set by the author; the container sees its own cards alone, "
            "which CUDA numbers from 0, and an index or UUID of the host then names another card or none: remove it"
        )


def _from_annotation(variable: str, key: str) -> dict[str, Any]:
    return {"name": variable, "valueFrom": {"fieldRef": {"fieldPath": f"metadata.annotations['{key}']"}}}


def is_wanted_env(entry: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Compare an entry with ours; the API server adds `apiVersion: v1` to a fieldRef."""
    if entry == wanted:
        return True
    reference = (entry.get("valueFrom") or {}).get("fieldRef") or {}
    path = (wanted.get("valueFrom") or {}).get("fieldRef", {}).get("fieldPath")
    return (
        path is not None
        and entry == {"name": wanted["name"], "valueFrom": {"fieldRef": reference}}
        and reference == {"apiVersion": "v1", "fieldPath": path}
    )


def translate_env(
    container: ContainerReading,
    spec: Mapping[str, Any],
    wanted: Entries,
    operations: list[Operation],
    warnings: list[str],
) -> None:
    """Make a container's environment have each of these entries exactly once, and none that is closed to authors."""
    env: Sequence[Mapping[str, Any]] = spec.get("env") or ()
    at = f"{container.pointer}/env"
    missing: list[dict[str, Any]] = []
    first: dict[int, dict[str, Any]] = {}  # entries that are replaced, by index
    surplus: list[int] = []
    for variable, own in wanted.items():
        found = [index for index, entry in enumerate(env) if entry.get("name") == variable]
        if len(found) == 1 and is_wanted_env(env[found[0]], own):
            continue
        if not found:
            missing.append(own)
            continue
        first[found[0]] = own
        surplus += found[1:]
        warnings.append(
            f"{container.path}.env: {variable} was set by the author; koordgate decides which devices a "
            "container sees and what it may use of them, and has replaced it"
        )
    for variable in closed_env(wanted):
        found = [index for index, entry in enumerate(env) if entry.get("name") == variable]
        if found:
            surplus += found
            warnings.append(
                f"{container.path}.env: {variable} was set by the author; koordgate decides what a container may use "
                "of its devices, and has removed it"
            )
    if len(surplus) > _MOST_REMOVALS:
        gone = set(surplus)
        kept = [first.get(index, entry) for index, entry in enumerate(env) if index not in gone]
        operations.append(replace(at, [*missing, *kept]))
        return
    operations.extend(replace(f"{at}/{index}", own) for index, own in first.items())
    operations.extend(remove(f"{at}/{index}") for index in sorted(surplus, reverse=True))
    if spec.get("env") is None and missing:
        operations.append(add(at, missing))
    else:  # first, so that later entries may refer to them
        operations.extend(add(f"{at}/0", own) for own in reversed(missing))
