"""How a Pod wants its devices chosen: Koordinator's hint annotations (its apis/extension/device_share.go).

device-allocate-hint, device-joint-allocate and gpu-partition-spec are JSON written by the Pod's author. A hint with a
mistake is refused as a whole, and every mistake is named: a hint that is read in part would place a Pod where its
author did not want it. As in Go, null and "" mean that a field is left out.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from allocator.quantity import QuantityError, to_int
from allocator.vocabulary.asks import (
    ExclusiveLevel,
    Joint,
    Operator,
    PartitionSpec,
    Requirement,
    Scope,
    Selector,
    Strategy,
    TypeHint,
)
from allocator.vocabulary.names import DEVICE_ID, MODEL_LABELS, model_name
from allocator.vocabulary.outcome import Problem
from allocator.wire.strict import MAX_TERMS, StrictReader, annotation_path, either, show

DEVICE_ALLOCATE_HINT: Final = "scheduling.koordinator.sh/device-allocate-hint"
DEVICE_JOINT_ALLOCATE: Final = "scheduling.koordinator.sh/device-joint-allocate"
GPU_PARTITION_SPEC: Final = "scheduling.koordinator.sh/gpu-partition-spec"
HINT_ANNOTATIONS: Final = (DEVICE_ALLOCATE_HINT, DEVICE_JOINT_ALLOCATE, GPU_PARTITION_SPEC)

_SCOPES: Final = {"Device": Scope.DEVICE, "PCIe": Scope.PCIE, "NUMANode": Scope.NUMA_NODE, "Node": Scope.NODE}
_HINT_KEYS: Final = ("selector", "vfSelector", "allocateStrategy", "requiredTopologyScope", "exclusivePolicy")
_MAX_ID: Final = 253  # characters of a device's id

# Kubernetes' syntax of label keys and values (apimachinery, util/validation).
_NAME: Final = r"[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
_DOMAIN: Final = r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?"
_KEY: Final = re.compile(rf"(?:(?=[^/]{{1,253}}/){_DOMAIN}(?:\.{_DOMAIN})*/)?{_NAME}")
_VALUE: Final = re.compile(rf"(?:{_NAME})?")


@dataclass(frozen=True, slots=True)
class PodHints:
    """A Pod's annotations about how its devices are to be chosen."""

    hints: tuple[tuple[str, TypeHint], ...] = ()  # (type's name, hint) pairs, in the order of names
    joint: Joint | None = None  # None if the annotation is absent
    partition: PartitionSpec | None = None  # None if the annotation is absent


NO_HINTS: Final = PodHints()


def read_hints(annotations: Mapping[str, object], types: Collection[str]) -> PodHints | tuple[Problem, ...]:
    """Read a Pod's hints.

    Returns the hints, or all that is wrong with them: the annotation, the key in it, and the correct value.
    """
    if annotations.keys().isdisjoint(HINT_ANNOTATIONS):
        return NO_HINTS
    reader = _Reader(types)
    raw = {key: reader.load(key, annotations[key]) for key in HINT_ANNOTATIONS if key in annotations}
    hints = tuple(
        (kind, reader.hint(f"{annotation_path(DEVICE_ALLOCATE_HINT)}.{kind}", raw[DEVICE_ALLOCATE_HINT][kind]))
        for kind in reader.known(
            annotation_path(DEVICE_ALLOCATE_HINT), raw.get(DEVICE_ALLOCATE_HINT, {}), sorted(types)
        )
    )
    joint = reader.joint(raw[DEVICE_JOINT_ALLOCATE]) if DEVICE_JOINT_ALLOCATE in raw else None
    partition = reader.partition(raw[GPU_PARTITION_SPEC]) if GPU_PARTITION_SPEC in raw else None
    if reader.problems:
        return tuple(reader.problems)
    return PodHints(hints, joint, partition)


class _Reader(StrictReader):
    """Reads the fields of hints."""

    def __init__(self, types: Collection[str]) -> None:
        super().__init__()
        self.types = types

    def hint(self, path: str, value: object) -> TypeHint:
        """Read the hint of one type."""
        raw = self.mapping(path, value)
        self.known(path, raw, _HINT_KEYS)
        strategy = self.word(f"{path}.allocateStrategy", raw.get("allocateStrategy"), Strategy)
        scope = self.word(f"{path}.requiredTopologyScope", raw.get("requiredTopologyScope"), _SCOPES)
        exclusive = self.word(f"{path}.exclusivePolicy", raw.get("exclusivePolicy"), ExclusiveLevel)
        return TypeHint(
            self.selector(f"{path}.selector", raw.get("selector")),
            self.selector(f"{path}.vfSelector", raw.get("vfSelector")),
            Strategy(strategy) if strategy else None,
            _SCOPES[scope] if scope else None,
            ExclusiveLevel(exclusive) if exclusive else None,
        )

    def selector(self, path: str, value: object) -> Selector | None:
        """Read a LabelSelector."""
        if value is None:
            return None
        raw = self.mapping(path, value)
        self.known(path, raw, ("matchLabels", "matchExpressions"))
        where = f"{path}.matchLabels"
        labels = self.mapping(where, raw.get("matchLabels"))
        if len(labels) > MAX_TERMS:
            self.note(where, f"must have at most {MAX_TERMS} labels")
            labels = {}
        found = [
            Requirement(self.key(where, key), Operator.IN, (self.value(where, key, labels[key]),))
            for key in sorted(labels)
        ]
        for index, entry in enumerate(self.items(f"{path}.matchExpressions", raw.get("matchExpressions"))):
            requirement = self.requirement(f"{path}.matchExpressions[{index}]", entry)
            if requirement is not None:
                found.append(requirement)
        return Selector(tuple(found))

    def requirement(self, path: str, value: object) -> Requirement | None:
        """Read one expression."""
        raw = self.mapping(path, value)
        self.known(path, raw, ("key", "operator", "values"))
        key = self.key(f"{path}.key", raw.get("key"))
        listed = self.items(f"{path}.values", raw.get("values"))
        values = tuple(self.value(f"{path}.values", key, one) for one in listed)
        name = self.word(f"{path}.operator", raw.get("operator"), Operator)
        if name is None:
            if not raw.get("operator"):
                self.note(f"{path}.operator", f"is missing; use {either(Operator)}")
            return None
        operator = Operator(name)
        if bool(values) is not (operator in {Operator.IN, Operator.NOT_IN}):
            self.note(f"{path}.values", "must be there for In and NotIn, and not for Exists and DoesNotExist")
        return Requirement(key, operator, values)

    def key(self, path: str, value: object) -> str:
        """Return a label's key."""
        if isinstance(value, str) and _KEY.fullmatch(value):
            return value
        self.note(path, f"{show(value)} is not a key of a label")
        return ""

    def value(self, path: str, key: str, value: object) -> str:
        """Return a label's value; a device's id need not have a label's syntax, as it may be a PCI address."""
        if isinstance(value, str) and (_VALUE.fullmatch(value) or (key == DEVICE_ID and len(value) <= _MAX_ID)):
            return model_name(value) if key in MODEL_LABELS else value
        self.note(path, f"{show(value)} is not a value of a label (a text of at most 63 letters, digits, -, _ and .)")
        return ""

    def joint(self, raw: Mapping[str, object]) -> Joint:
        """Read device-joint-allocate."""
        path = annotation_path(DEVICE_JOINT_ALLOCATE)
        self.known(path, raw, ("deviceTypes", "requiredScope"))
        where = f"{path}.deviceTypes"
        types = self.items(where, raw.get("deviceTypes"))
        wrong = [kind for kind in types if not (isinstance(kind, str) and kind in self.types)]
        if wrong:
            self.note(where, f"{show(wrong[0])} is not allowed; use {either(sorted(self.types))}")
            types = []
        if len(set(types)) != len(types):
            self.note(where, "must name each type once")
        scope = self.word(f"{path}.requiredScope", raw.get("requiredScope"), ("SamePCIe",))
        return Joint(tuple(types), same_pcie=scope is not None)

    def partition(self, raw: Mapping[str, object]) -> PartitionSpec:
        """Read gpu-partition-spec."""
        path = annotation_path(GPU_PARTITION_SPEC)
        self.known(path, raw, ("allocatePolicy", "ringBusBandwidth"))
        policy = self.word(f"{path}.allocatePolicy", raw.get("allocatePolicy"), ("Restricted", "BestEffort"))
        asked = raw.get("ringBusBandwidth")
        bandwidth = None
        if asked is not None:
            try:
                bandwidth = to_int(asked)
            except QuantityError as error:
                self.note(f"{path}.ringBusBandwidth", f"{error}; a bandwidth is written as 400Gi")
        return PartitionSpec(policy == "Restricted", bandwidth)
