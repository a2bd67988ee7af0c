"""What a Pod asks for, normalised: a number of devices and an amount of each, by container and by type."""

from dataclasses import dataclass, field

from allocator.vocabulary.cpuask import CpuAsk, QosClass
from allocator.vocabulary.devicetype import FULL, DeviceType
from allocator.vocabulary.gangs import UNSTATED, GangSize
from allocator.vocabulary.hints import Joint, PartitionSpec, Strategy, TypeHint
from allocator.vocabulary.phase import Phase
from allocator.vocabulary.sharing import Member


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
        stated = zip(self.type.percent, self.amounts, strict=True)
        full = all(amount == FULL if percent else amount is None for percent, amount in stated)
        memory = self.type.memory
        object.__setattr__(self, "whole", full and not self.template)
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
    told: bool = False  # whether its bind states what each container may use of its devices
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
