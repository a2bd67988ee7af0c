"""What a Pod's author prefers for its CPUs: the resource-spec and numa-topology-spec annotations.

`{"preferredCPUBindPolicy":"SpreadByPCPUs","preferredCPUExclusivePolicy":"PCPULevel"}` (CPU proposal, "Resource
spec"; `requiredCPUBindPolicy` is Koordinator's, apis/extension/numa_aware.go) and
`{"numaTopologyPolicy":"Restricted","singleNUMANodeExclusive":"Preferred"}` (Koordinator, same file). Koordinator
ignores a misspelt key; here every key and value outside the format is a problem.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, TypeVar

from allocator.vocabulary.cpupolicy import BindPolicy, ExclusivePolicy, NumaExclusive, NumaPolicy
from allocator.vocabulary.excerpt import excerpt
from allocator.vocabulary.outcome import Problem
from allocator.wire.strict import annotation_path
from allocator.wire.values import UNREADABLE, parse_json

RESOURCE_SPEC: Final = "scheduling.koordinator.sh/resource-spec"
NUMA_TOPOLOGY_SPEC: Final = "scheduling.koordinator.sh/numa-topology-spec"

_NAMED: Final = 8  # unknown keys that are named; there may be thousands
_Choice = TypeVar("_Choice", bound=StrEnum)


@dataclass(frozen=True, slots=True)
class ResourceSpec:
    """The resource-spec annotation as read; None for what is absent or empty."""

    required: BindPolicy | None = None  # the bind policy without which the Pod does not start
    preferred: BindPolicy | None = None  # the bind policy to try; ignored if `required` is stated
    exclusive: ExclusivePolicy | None = None  # from which Pods of the same policy it is kept apart, if possible


@dataclass(frozen=True, slots=True)
class NumaTopologySpec:
    """The numa-topology-spec annotation as read; None for what is absent or empty."""

    policy: NumaPolicy | None = None
    exclusive: NumaExclusive | None = None


def read_resource_spec(annotations: Mapping[str, Any], problems: list[Problem]) -> ResourceSpec | None:
    """Read a Pod's resource-spec annotation.

    `problems`: is appended to for what is wrong, which the answer leaves out. Returns the spec; None if the Pod has
    none, or if it is not a JSON object.
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
    """Read a Pod's numa-topology-spec annotation; arguments and answer as for `read_resource_spec`."""
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
        raw = parse_json(text, once=True)
    except UNREADABLE as error:
        why = excerpt(error)
        problems.append(Problem(where, f"not JSON ({why}); write an object with any of {keys}, or remove it"))
        return None
    if not isinstance(raw, dict):
        kind = type(raw).__name__
        problems.append(Problem(where, f"a {kind}, not a JSON object; write one with any of {keys}"))
        return None
    unknown = [name for name in raw if name not in allowed]
    problems.extend(
        Problem(where, f"{excerpt(name)!r} is not a key of it; the keys are {keys}") for name in unknown[:_NAMED]
    )
    return raw


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
    shown = repr(excerpt(value)) if isinstance(value, str) else f"a {type(value).__name__}"
    allowed = ", ".join(choices)
    problems.append(Problem(annotation_path(annotation), f"{key}: {shown} is not allowed; write one of {allowed}"))
    return None
