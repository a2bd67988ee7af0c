"""What a Pod requests of one type of device on one node, and the terms on which its devices are chosen."""

from collections.abc import Mapping
from dataclasses import dataclass
from operator import le

from allocator.devices.offer import Amounts, completed
from allocator.request.quotaamounts import TypeLimit, limit_of
from allocator.vocabulary.asks import (
    NO_HINT,
    ContainerAsk,
    DeviceAsk,
    DeviceOrder,
    ExclusiveLevel,
    PodRequest,
    TypeHint,
    Wishes,
)
from allocator.vocabulary.devicetype import DeviceType
from allocator.vocabulary.holdings import Holding, Share
from allocator.vocabulary.node import NodeSnapshot


@dataclass(slots=True)
class Terms:
    """What a Pod requests of one type of device on one node. Nothing in it changes during a decision."""

    kind: DeviceType
    node: NodeSnapshot
    # NUMA nodes to stay inside; None for all. A device whose NUMA node is unknown counts as inside each.
    numa: frozenset[int] | None
    only: Mapping[str, Share] | None  # the most that may be taken, by device id; None if that is not restricted
    asks: list[ContainerAsk]  # the containers' asks for this type, in the Pod's order
    wishes: Wishes  # those of the Pod
    hint: TypeHint  # the Pod's hint for this type
    order: DeviceOrder  # which of the fitting devices comes first
    alone: bool  # the Pod wants the PCIe roots of its devices for itself
    unshared: bool  # the Pod shares its devices with no other Pod
    limit: TypeLimit | None  # what it may hold of all devices in sum; None if that is not limited

    def amounts(self, capacity: Amounts, ask: DeviceAsk) -> Amounts:
        """What an ask takes of a device of this capacity: all if the Pod does not share and it suffices."""
        amounts = completed(ask, capacity)
        return capacity if self.unshared and all(map(le, amounts, capacity)) else amounts

    def takes_all(self, capacity: Amounts, ask: DeviceAsk) -> bool:
        """Whether an ask leaves nothing of a device of this capacity that another Pod could request.

        True if it takes all the memory (of a type whose shares must state memory) or all of everything (other types).
        """
        amounts = self.amounts(capacity, ask)
        memory = self.kind.memory
        if memory is None or self.kind.templates:
            return amounts == capacity
        return any(amounts[at] >= capacity[at] for at in map(self.kind.tails.index, memory))

    def size(self, capacity: Amounts) -> int:
        """How large a device of this capacity is, by the resource that fits first; bytes count in whole GiB."""
        at, unit = self.kind.sized
        return capacity[at] // unit


def terms_of(
    kind: DeviceType, request: PodRequest, node: NodeSnapshot, numa: frozenset[int] | None, only: Holding | None
) -> Terms:
    """Collect the terms on which devices of one type are chosen.

    `numa`: NUMA nodes to stay inside; None for all.
    """
    wishes = request.wishes
    hint = (wishes.hint(kind.name) or NO_HINT) if wishes.hints else NO_HINT
    order = wishes.order or node.order
    return Terms(
        kind,
        node,
        numa,
        None if only is None else {share.id: share for share in only.shares if share.type == kind.name},
        [container for container in request.containers if container.ask.type == kind],
        wishes,
        hint,
        DeviceOrder(order) if order else DeviceOrder.SMALLEST,
        hint.exclusive is ExclusiveLevel.PCIE,
        hint.exclusive is ExclusiveLevel.DEVICE,
        limit_of(kind, request),
    )
