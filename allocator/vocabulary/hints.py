"""How the devices of a Pod are to be chosen, apart from their number."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Final


class Scope(IntEnum):
    """How close together the devices of one ask must be (Koordinator's requiredTopologyScope and its levels)."""

    NODE = 1
    NUMA_NODE = 2
    PCIE = 3
    DEVICE = 4


class Strategy(StrEnum):
    """How an amount is spread over devices (allocateStrategy)."""

    APPLY_FOR_ALL = "ApplyForAll"
    REQUESTS_AS_COUNT = "RequestsAsCount"


class ExclusiveLevel(StrEnum):
    """What is not shared with any other Pod: the devices, or their PCIe roots (exclusivePolicy)."""

    DEVICE = "DeviceLevel"
    PCIE = "PCIeLevel"


class Operator(StrEnum):
    """How a requirement compares a label."""

    IN = "In"
    NOT_IN = "NotIn"
    EXISTS = "Exists"
    DOES_NOT_EXIST = "DoesNotExist"


@dataclass(frozen=True, slots=True)
class Requirement:
    """What one label must be."""

    key: str
    operator: Operator  # how it is compared
    values: tuple[str, ...] = ()  # what it is compared with; none for Exists and DoesNotExist

    def holds(self, labels: Mapping[str, str]) -> bool:
        """Return whether labels meet it; as in Kubernetes, NotIn is met if the label is missing."""
        if self.operator is Operator.EXISTS:
            return self.key in labels
        if self.operator is Operator.DOES_NOT_EXIST:
            return self.key not in labels
        return (labels.get(self.key) in self.values) is (self.operator is Operator.IN)


@dataclass(frozen=True, slots=True)
class PartOfName:
    """What a label must contain, or must not."""

    key: str
    parts: tuple[str, ...]  # in capital letters; one of them is in the label's value, whatever its case
    wanted: bool  # whether one must be in it; otherwise none may be

    def holds(self, labels: Mapping[str, str]) -> bool:
        """Return whether labels meet it; a missing label contains nothing."""
        value = labels.get(self.key, "").upper()
        return any(part in value for part in self.parts) is self.wanted


@dataclass(frozen=True, slots=True)
class Selector:
    """A Kubernetes LabelSelector: all its requirements must hold; without any, everything is selected."""

    requirements: tuple[Requirement | PartOfName, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Return whether labels are selected."""
        return all(requirement.holds(labels) for requirement in self.requirements)


@dataclass(frozen=True, slots=True)
class TypeHint:
    """How devices of one type are to be chosen."""

    selector: Selector | None = None  # on the devices' labels
    # on the labels of groups of virtual functions (vfSelector); if set, each device comes with one
    functions: Selector | None = None
    strategy: Strategy | None = None  # None for the type's own rule
    scope: Scope | None = None  # how close together the devices must be; None if not asked
    exclusive: ExclusiveLevel | None = None  # what is not shared with other Pods; None if not asked


NO_HINT: Final = TypeHint()


@dataclass(frozen=True, slots=True)
class Joint:
    """Types whose devices belong together."""

    types: tuple[str, ...]  # devices of the first type are chosen first
    same_pcie: bool  # all must be on the same PCIe roots


@dataclass(frozen=True, slots=True)
class PartitionSpec:
    """GPUs must come as a partition of the node's table."""

    restricted: bool = False  # only a partition of the highest score is accepted
    ring_bandwidth: int | None = None  # the least bandwidth in bytes; None if not asked
