"""How a Pod's containers share its devices: the annotation koordgate.io/device-sharing, written by the Pod's author.

JSON, from the device type to `users`, `weights`, `groups`, `regions` and `slot`. A mistake refuses all of it, and every
mistake is named. The default slot is filled in when the Pod is created, so that a later default changes no Pod.

The annotation gpu-memory-limit.koordgate.io/CONTAINER: bytes of each card, or a percentage of its memory.

What a Pod's author prefers for its CPUs: the resource-spec and numa-topology-spec annotations.

`{"preferredCPUBindPolicy":"SpreadByPCPUs","preferredCPUExclusivePolicy":"PCPULevel"}` (CPU proposal, "Resource
spec"; `requiredCPUBindPolicy` is Koordinator's, apis/extension/numa_aware.go) and
`{"numaTopologyPolicy":"Restricted","singleNUMANodeExclusive":"Preferred"}` (Koordinator, same file). Koordinator
ignores a misspelt key; here every key and value outside the format is a problem.
"""

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from allocator.quantity import QuantityError, format_bytes, to_int
from allocator.vocabulary.asks import LARGEST_WEIGHT, Regions, TypeSharing
from allocator.vocabulary.cpunode import BindPolicy, ExclusivePolicy, NumaExclusive, NumaPolicy
from allocator.vocabulary.delivery import WHOLE, AskedLimit
from allocator.vocabulary.devicetype import FULL
from allocator.vocabulary.names import DEVICE_SHARING
from allocator.vocabulary.outcome import Problem, excerpt
from allocator.wire.strict import MAX_TERMS, StrictReader, annotation_path, show
from allocator.wire.values import stated

_KEYS: Final = ("users", "weights", "groups", "regions", "slot")
_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", re.ASCII)  # a container's, as Kubernetes has it


def read_sharing(
    annotations: Mapping[str, object], types: Collection[str]
) -> dict[str, TypeSharing] | tuple[Problem, ...] | None:
    """Read the annotation.

    Returns type's name to what is said of it; None without the annotation; or all that is wrong with it.
    """
    if DEVICE_SHARING not in annotations:
        return None
    reader = _Reader()
    raw = reader.load(DEVICE_SHARING, annotations[DEVICE_SHARING])
    path = annotation_path(DEVICE_SHARING)
    found = {kind: reader.sharing(f"{path}.{kind}", raw[kind]) for kind in reader.known(path, raw, sorted(types))}
    return tuple(reader.problems) or found


def write_sharing(sharing: Mapping[str, TypeSharing]) -> str:
    """Write the annotation; `read_sharing` reads it back."""
    return json.dumps({kind: _written(one) for kind, one in sharing.items()}, separators=(",", ":"))


def _written(one: TypeSharing) -> dict[str, Any]:
    return stated(
        users=list(one.users),
        weights=dict(one.weights),
        groups={name: list(members) for name, members in one.groups},
        regions="" if one.regions is Regions.ONE_GROUP else str(one.regions),
        slot=one.slot,
    )


class _Reader(StrictReader):
    """Reads what is said of a type."""

    def sharing(self, path: str, value: object) -> TypeSharing:
        """Read one type's entry."""
        raw = self.mapping(path, value)
        self.known(path, raw, _KEYS)
        regions = self.word(f"{path}.regions", raw.get("regions"), Regions)
        slot = raw.get("slot")
        return TypeSharing(
            self.containers(f"{path}.users", raw.get("users")),
            tuple(
                (
                    self.container(f"{path}.weights", name),
                    self.whole(f"{path}.weights.{show(name)}", weight, LARGEST_WEIGHT),
                )
                for name, weight in self.entries(f"{path}.weights", raw.get("weights"))
            ),
            tuple(
                (name, self.members(f"{path}.groups.{show(name)}", members))
                for name, members in self.entries(f"{path}.groups", raw.get("groups"))
            ),
            Regions(regions) if regions else Regions.ONE_GROUP,
            0 if slot is None else self.whole(f"{path}.slot", slot, FULL),
        )

    def entries(self, path: str, value: object) -> list[tuple[str, Any]]:
        """Return the entries of an optional object of bounded length."""
        raw = self.mapping(path, value)
        if len(raw) > MAX_TERMS:
            self.note(path, f"must have at most {MAX_TERMS} entries")
            return []
        return list(raw.items())

    def members(self, path: str, value: object) -> tuple[str, ...]:
        """Read the containers of a group."""
        found = self.containers(path, value)
        if not found:
            self.note(path, "must be a list of containers")
        return found

    def containers(self, path: str, value: object) -> tuple[str, ...]:
        """Read a list of containers, each named once."""
        found = tuple(self.container(path, name) for name in self.items(path, value))
        if len(set(found)) != len(found):
            self.note(path, "must name each container once")
        return found

    def container(self, path: str, value: object) -> str:
        """Return a container's name."""
        if isinstance(value, str) and _NAME.fullmatch(value):
            return value
        self.note(path, f"{show(value)} is not a container's name")
        return ""

    def whole(self, path: str, value: object, most: int) -> int:
        """Return a whole number from 1 on."""
        if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= most:
            return value
        self.note(path, f"must be a whole number from 1 to {most}")
        return 1


LEAST: Final = 2**20  # bytes; whatever keeps limits counts MiB
_MAX: Final = 2**50  # bytes; no card has as much
_PERCENT: Final = re.compile(r"([0-9]{1,3})(?:\.([0-9]{1,3}))?%", re.ASCII)
_DIGITS: Final = 3  # behind the point of a percentage


def read_bytes(text: object) -> int:
    """Read an amount of memory.

    Raises QuantityError: it is no quantity of whole bytes, less than 1Mi, or more than any card has.
    """
    amount = to_int(text)
    if not LEAST <= amount <= _MAX:
        raise QuantityError(f"{excerpt(text)} is not from {format_bytes(LEAST)} to {format_bytes(_MAX)}; write bytes")
    return amount


def read_limit(text: object) -> AskedLimit:
    """Read the annotation.

    Raises QuantityError: it is neither such an amount nor a percentage above 0 and at most 100.
    """
    if not isinstance(text, str) or not text.endswith("%"):
        return AskedLimit(read_bytes(text))
    match = _PERCENT.fullmatch(text)
    if match is not None:
        portion = int(match[1] + (match[2] or "").ljust(_DIGITS, "0"))
        if 0 < portion <= WHOLE:
            return AskedLimit(portion=portion)
    raise QuantityError(
        f"{excerpt(text)!r} is no percentage above 0 and at most 100, with at most {_DIGITS} digits behind the point; "
        "write one, or bytes"
    )


def write_limit(limit: AskedLimit) -> str:
    """Write the annotation; `read_limit` reads it back."""
    if limit.size:
        return format_bytes(limit.size)
    whole, rest = divmod(limit.portion, WHOLE // 100)
    return f"{whole}.{rest:03d}".rstrip("0").rstrip(".") + "%"


RESOURCE_SPEC: Final = "scheduling.koordinator.sh/resource-spec"
NUMA_TOPOLOGY_SPEC: Final = "scheduling.koordinator.sh/numa-topology-spec"


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


_RESOURCE_SPEC: Final = {
    "requiredCPUBindPolicy": BindPolicy,
    "preferredCPUBindPolicy": BindPolicy,
    "preferredCPUExclusivePolicy": ExclusivePolicy,
}
_NUMA_TOPOLOGY_SPEC: Final = {"numaTopologyPolicy": NumaPolicy, "singleNUMANodeExclusive": NumaExclusive}


def read_resource_spec(annotations: Mapping[str, Any], problems: list[Problem]) -> ResourceSpec:
    """Read a Pod's resource-spec annotation; what is wrong is appended to `problems` and counts as left out."""
    return ResourceSpec(*_chosen(annotations, RESOURCE_SPEC, _RESOURCE_SPEC, problems))


def read_numa_topology_spec(annotations: Mapping[str, Any], problems: list[Problem]) -> NumaTopologySpec:
    """Read a Pod's numa-topology-spec annotation, as `read_resource_spec` does."""
    return NumaTopologySpec(*_chosen(annotations, NUMA_TOPOLOGY_SPEC, _NUMA_TOPOLOGY_SPEC, problems))


def _chosen(
    annotations: Mapping[str, Any], annotation: str, choices: Mapping[str, type[StrEnum]], problems: list[Problem]
) -> list[Any]:
    """What an annotation chooses for each of its keys; None where it chooses nothing."""
    if annotations.get(annotation) is None:
        return [None] * len(choices)
    reader, path = StrictReader(), annotation_path(annotation)
    raw = reader.load(annotation, annotations[annotation])
    reader.known(path, raw, choices)
    words = [(kind, reader.word(f"{path}.{key}", raw.get(key), kind)) for key, kind in choices.items()]
    problems.extend(reader.problems)
    return [kind(word) if word else None for kind, word in words]
