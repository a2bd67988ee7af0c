"""What a Pod's author wishes of its CPUs: the resource-spec and numa-topology-spec annotations.

`{"preferredCPUBindPolicy":"SpreadByPCPUs","preferredCPUExclusivePolicy":"PCPULevel"}` (CPU proposal, "Resource
spec"; `requiredCPUBindPolicy` is Koordinator's, apis/extension/numa_aware.go) and
`{"numaTopologyPolicy":"Restricted","singleNUMANodeExclusive":"Preferred"}` (Koordinator, same file). Unlike
Koordinator, which takes a misspelt key for no wish, every key and value that is not of the format is a problem.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, TypeVar

from allocator.vocabulary.cpupolicy import BindPolicy, ExclusivePolicy, NumaExclusive, NumaPolicy
from allocator.vocabulary.outcome import Problem

RESOURCE_SPEC: Final = "scheduling.koordinator.sh/resource-spec"
NUMA_TOPOLOGY_SPEC: Final = "scheduling.koordinator.sh/numa-topology-spec"

_SHOWN: Final = 40  # characters of a wrong value that are quoted
_TOLD: Final = 8  # unknown keys that are named; there may be thousands
_Choice = TypeVar("_Choice", bound=StrEnum)


@dataclass(frozen=True, slots=True)
class ResourceSpec:
    """The resource-spec annotation as read; None where nothing, or the empty text, is stated.

    Attributes:
        required: bind policy without which the Pod does not start.
        preferred: bind policy that is tried; left out of account where `required` is stated.
        exclusive: from which Pods of the same policy it is kept apart where that can be.
    """

    required: BindPolicy | None = None
    preferred: BindPolicy | None = None
    exclusive: ExclusivePolicy | None = None


@dataclass(frozen=True, slots=True)
class NumaTopologySpec:
    """The numa-topology-spec annotation as read; None where nothing, or the empty text, is stated."""

    policy: NumaPolicy | None = None
    exclusive: NumaExclusive | None = None


def read_resource_spec(annotations: Mapping[str, Any], problems: list[Problem]) -> ResourceSpec | None:
    """Read a Pod's resource-spec annotation.

    Args:
        annotations: of the Pod.
        problems: takes what is wrong; where it grew, the answer leaves out what was wrong.

    Returns:
        The spec; None where the Pod has none, or one that is no JSON object.
    """
    raw = _read(annotations, RESOURCE_SPEC, _RESOURCE_SPEC_KEYS, problems)
    if raw is None:
        return None
    required, preferred, exclusive = _RESOURCE_SPEC_KEYS
    return ResourceSpec(
        required=_choose(raw, RESOURCE_SPEC, required, BindPolicy, problems),
        preferred=_choose(raw, RESOURCE_SPEC, preferred, BindPolicy, problems),
        exclusive=_choose(raw, RESOURCE_SPEC, exclusive, ExclusivePolicy, problems),
    )


def read_numa_topology_spec(annotations: Mapping[str, Any], problems: list[Problem]) -> NumaTopologySpec | None:
    """Read a Pod's numa-topology-spec annotation; arguments and answer as of `read_resource_spec`."""
    raw = _read(annotations, NUMA_TOPOLOGY_SPEC, _NUMA_TOPOLOGY_SPEC_KEYS, problems)
    if raw is None:
        return None
    policy, exclusive = _NUMA_TOPOLOGY_SPEC_KEYS
    return NumaTopologySpec(
        policy=_choose(raw, NUMA_TOPOLOGY_SPEC, policy, NumaPolicy, problems),
        exclusive=_choose(raw, NUMA_TOPOLOGY_SPEC, exclusive, NumaExclusive, problems),
    )


_RESOURCE_SPEC_KEYS: Final = ("requiredCPUBindPolicy", "preferredCPUBindPolicy", "preferredCPUExclusivePolicy")
_NUMA_TOPOLOGY_SPEC_KEYS: Final = ("numaTopologyPolicy", "singleNUMANodeExclusive")


def annotation_path(key: str) -> str:
    """Spell where a Pod's annotation stands, as problems name it."""
    return f"metadata.annotations[{key}]"


def _read(
    annotations: Mapping[str, Any], key: str, allowed: tuple[str, ...], problems: list[Problem]
) -> dict[str, Any] | None:
    """Read one annotation as a JSON object with no other keys than these."""
    text = annotations.get(key)
    if text is None:
        return None
    where = annotation_path(key)
    keys = ", ".join(allowed)
    try:
        raw = json.loads(text, object_pairs_hook=_once)
    except (ValueError, TypeError, RecursionError) as error:
        told = str(error)[:100]
        problems.append(Problem(where, f"not JSON ({told}); write an object with any of {keys}, or remove it"))
        return None
    if not isinstance(raw, dict):
        kind = type(raw).__name__
        problems.append(Problem(where, f"a {kind} where a JSON object must be; write one with any of {keys}"))
        return None
    unknown = [name for name in raw if name not in allowed]
    problems.extend(
        Problem(where, f"{name[:_SHOWN]!r} is no key of it; allowed are {keys}") for name in unknown[:_TOLD]
    )
    return raw


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make an object of its pairs, none of which may be said twice: readers differ in which one counts."""
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ValueError("it states a key twice")
    return made


def _choose(
    raw: Mapping[str, Any], annotation: str, key: str, choices: type[_Choice], problems: list[Problem]
) -> _Choice | None:
    value = raw.get(key)
    if value is None or value == "":
        return None
    if isinstance(value, str):
        for choice in choices:
            if choice.value == value:
                return choice
    shown = repr(value[:_SHOWN]) if isinstance(value, str) else f"a {type(value).__name__}"
    allowed = ", ".join(choices)
    problems.append(Problem(annotation_path(annotation), f"{key}: {shown} is not allowed; write one of {allowed}"))
    return None
