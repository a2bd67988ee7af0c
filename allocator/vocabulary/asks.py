"""What a Pod asks of devices, normalised: a number and an amount of each by container and type, hints, gangs, sharing.

Sharing follows FLIP-53, "Slot Sharing": an operator is a container here, a slot is the Pod's holding on its devices, a
slot sharing group is a group of containers that use one holding, and a pipelined region is what runs at the same time:
an init container with the sidecars started before it, or the sidecars and apps together.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from fractions import Fraction
from typing import Final, NamedTuple

from allocator.vocabulary.cpunode import CpuAsk, QosClass
from allocator.vocabulary.devicetype import FULL, DeviceType
from allocator.vocabulary.names import Phase

MAX_MEMBERS: Final = 1000  # a larger size counts as this


class GangSize(NamedTuple):
    """A gang's size, in Pods; 0 where nobody states it."""

    least: int = 0  # Pods that are needed for any to be of use
    total: int = 0  # Pods that will come; never fewer than `least`


UNSTATED: Final = GangSize()


def largest(sizes: Iterable[GangSize]) -> GangSize:
    """Combine several statements about one gang: the largest number counts."""
    least = total = 0
    for size in sizes:
        least, total = max(least, size.least), max(total, size.total)
    return GangSize(least, total)


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


NODE_CLASSES: Final = ("cpu", "memory", "ephemeral-storage")  # the resource classes of a node beside its devices'


class Preference(StrEnum):
    """How nodes are compared.

    PACKING keeps whole devices and whole nodes free. LEAST_REQUESTED and MOST_BALANCED are those of the patent,
    claim 7: the least mean request over the node's resource classes, and the least variance. FRAGMENTATION is FGD's:
    the node on which the least becomes useless to the requests that are typical of the cluster; of equally good ones
    the smallest is begun, one in use before an idle one, and then the most balanced one is taken.
    """

    PACKING = "packing"
    LEAST_REQUESTED = "leastRequested"
    MOST_BALANCED = "mostBalanced"
    FRAGMENTATION = "fragmentation"


class DeviceOrder(StrEnum):
    """Which of the fitting devices comes first (patent, claim 10; minor order is the device proposal's).

    SMALLEST and MOST_USED take devices in use before idle ones and keep larger units whole; SMALLEST also takes the
    smallest sufficient device first, on a node and across nodes. `allocator.devices.options` states the whole order.
    """

    SMALLEST = "smallest"
    MOST_USED = "mostUsed"
    LEAST_USED = "leastUsed"
    MINOR = "minor"


LARGEST_WEIGHT: Final = 1000


class Regions(StrEnum):
    """Whether containers that run at the same time share one holding by default, or have one each."""

    ONE_GROUP = "OneGroup"
    GROUP_EACH = "GroupEach"


class TypeSharing(NamedTuple):
    """How containers share the devices of one type."""

    users: tuple[str, ...] = ()  # the containers that use such devices and state no amount
    weights: tuple[tuple[str, int], ...] = ()  # (container, weight) pairs of users; 1 for those that are not named
    # (name, containers) pairs: those that share one holding because the Pod's author says so
    groups: tuple[tuple[str, tuple[str, ...]], ...] = ()
    regions: Regions = Regions.ONE_GROUP  # what holds for all others
    slot: int = 0  # percent of one device that a group of users gets; 0 if it is not stated


class Member(NamedTuple):
    """A container of a group, and its part of the group's holding."""

    name: str
    place: int  # its place in the Pod, init containers first
    phase: Phase
    # of each of the type's tails, the container's fraction of what the group holds on a device; None if the container
    # cannot state it in its dialect, so that it is not counted and not limited
    parts: tuple[Fraction | None, ...]


class DeviceQuota(NamedTuple):
    """What one container may use of one device."""

    type: DeviceType  # device type
    id: str
    # resource tail -> percent, bytes or units; None for one that is not limited, because nobody counts it
    amounts: Mapping[str, int | None]
    # resource tail -> the container's part of what its group holds of the device, of those that are limited; empty if
    # it is in no group
    fractions: Mapping[str, Fraction] = {}


Quotas = dict[str, list[DeviceQuota]]  # container -> its quotas, by type, then in the order of minors


@dataclass(frozen=True, slots=True)
class DeviceAsk:
    """The same amounts of each of `count` distinct devices of one type."""

    type: DeviceType  # device type
    count: int  # number of distinct devices, 1 or more; with `every`, the least number
    # what is asked of each device: one amount for each of the type's tails, in the tail's unit. None for a memory tail
    # whose amount follows from the type's other memory tail. None for any other tail means all that the device has.
    amounts: tuple[int | None, ...]
    every: bool = False  # the amounts are asked of every device that the ask's hint selects (Koordinator's ApplyForAll)
    template: str = ""  # name of the type's template that has these amounts; "" for none
    vendor: str = ""  # whose devices are meant; "" for anybody's
    # whether it states all of everything that a device has: 100 % each, and no amounts in other units; derived
    whole: bool = field(init=False, repr=False, compare=False)
    # whether it states a part of each device's memory in percent; derived
    partial: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        memory = self.type.memory
        object.__setattr__(self, "whole", self.amounts == self.type.whole and not self.template)
        object.__setattr__(self, "partial", memory is not None and (self.amount(memory[1]) or FULL) < FULL)

    def amount(self, tail: str) -> int | None:
        """The amount asked of one resource; None if it was not stated."""
        return self.amounts[self.type.tails.index(tail)]

    @property
    def is_split(self) -> bool:
        """Whether its number of devices does not follow from its amounts: it takes a part of each of several."""
        percents = [amount for amount, percent in zip(self.amounts, self.type.percent, strict=True) if percent]
        follows = any(percents) and all(amount in {None, 0, FULL} for amount in percents)
        return self.count > 1 and not follows

    @property
    def empty(self) -> bool:
        """Whether it takes nothing of its device: a user's part that is less than a percent."""
        return 0 in self.amounts and not any(self.amounts)

    @property
    def models(self) -> tuple[str, ...]:
        """The models that the devices may have; empty: any."""
        return self.type.template(self.template).models if self.template else ()


@dataclass(frozen=True, slots=True)
class ContainerAsk:
    """What one container asks of one type of device, and when it runs; or what a group of containers asks together."""

    name: str  # of the container, or of the group's first one
    # when it runs; a group that runs in several steps of the Pod's life does so from its first one to the end
    phase: Phase
    ask: DeviceAsk  # of the container, or of the group
    # of a group, in the Pod's order; empty if the Pod does not say how it shares such devices
    members: tuple[Member, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The containers that get these devices."""
        return tuple([member.name for member in self.members]) if self.members else (self.name,)


@dataclass(frozen=True, slots=True)
class Wishes:
    """How the devices of a Pod are to be chosen, apart from their number."""

    hints: tuple[tuple[str, TypeHint], ...] = ()  # (type's name, hint) pairs (device-allocate-hint)
    # types that belong together (device-joint-allocate); None if the Pod does not ask for that
    joint: Joint | None = None
    # how GPUs are chosen from the node's partition table (gpu-partition-spec); None if not asked
    partition: PartitionSpec | None = None
    order: str = ""  # which of the fitting devices comes first: "", or the name of a `DeviceOrder`
    gang: str = ""  # the group that the Pod belongs to, as namespace/name; "" for none
    # number of Pods of the gang still to be placed beside this one, as far as the caller knows. If they all ask alike,
    # the first is placed where whole devices for all of them are close together.
    waiting: int = 0
    # what must keep shares of one GPU apart on the node (label gpu-isolation-provider); "" for anything
    isolation: str = ""
    size: GangSize = UNSTATED  # of the gang, as the Pod's annotations state it
    all_or_nothing: bool = False  # whether the gang is to be bound as a whole or not at all
    runtime_class: str = ""  # the Pod's RuntimeClass; "" for none
    limits: bool = False  # whether its memory limits must be kept on the node

    def hint(self, kind: str) -> TypeHint | None:
        """The hint for a type; None if there is none."""
        return next((hint for name, hint in self.hints if name == kind), None)


NO_WISHES = Wishes()


@dataclass(frozen=True, slots=True)
class PodRequest:
    """All that a Pod asks for."""

    # one for each container, or group of containers, and type; init containers and sidecars in their order, then apps
    containers: tuple[ContainerAsk, ...]
    cpu: CpuAsk | None = None  # its request for CPUs and NUMA nodes; None if these are left to the kubelet
    wishes: Wishes = field(default=NO_WISHES)  # how its devices are to be chosen
    states_quotas: bool = False  # whether its bind states what each container may use of its devices
    # (resource, amount) pairs of what quotas count of the Pod. What it holds of all devices together stays within each.
    most: tuple[tuple[str, int], ...] = ()
    # (container, bytes of each of its GPUs) pairs of the containers that may use more memory than they ask for while it
    # is free. Only what is asked for is held, so that they decide nothing about a placement; they are for whatever
    # keeps containers to their memory (`allocator.memorylimits`).
    memory_limits: tuple[tuple[str, int], ...] = ()
    # (container, 100000ths of the memory of each of its GPUs) pairs, likewise
    memory_portions: tuple[tuple[str, int], ...] = ()
    _hash: int = field(default=0, init=False, repr=False, compare=False)

    def __hash__(self) -> int:
        """Hash as a tuple, once: a request is looked up for each of thousands of nodes."""
        if not self._hash:
            object.__setattr__(self, "_hash", hash((self.containers, self.cpu, self.wishes)))
        return self._hash

    def __bool__(self) -> bool:
        """Return whether anything is asked."""
        return bool(self.containers) or self.cpu is not None

    @property
    def scope(self) -> str:
        """Why only koordgate's scheduler may bind the Pod, in a user's words."""
        if self.containers or self.cpu is None or self.cpu.insists:
            return "asks for devices or CPUs"
        labelled = f"is labelled koordinator.sh/qosClass: {self.cpu.qos}"
        return f"is in numa.scope or {labelled}" if self.cpu.qos is QosClass.LS else labelled

    def types(self) -> tuple[DeviceType, ...]:
        """The types that are asked for, in the order of their first container."""
        return tuple(dict.fromkeys(container.ask.type for container in self.containers))

    def joint_types(self) -> tuple[DeviceType, ...]:
        """The requested types that belong together, the leading one first; empty if fewer than two do.

        A type of which every selected device is requested (ApplyForAll) leaves no choice and is not among them
        (Koordinator, pkg/scheduler/plugins/deviceshare).
        """
        joint = self.wishes.joint
        if joint is None:
            return ()
        by_name = {kind.name: kind for kind in self.types()}
        for name, hint in self.wishes.hints:
            if hint.strategy is Strategy.APPLY_FOR_ALL:
                by_name.pop(name, None)
        together = tuple(by_name[name] for name in joint.types if name in by_name)
        return together if len(together) > 1 else ()
