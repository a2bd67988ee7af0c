"""Who holds what, counted from the objects alone (pure): Device objects, and the annotations of Pods.

It shares nothing with the ledger, so that what is shown is what stands in the cluster.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from allocator.device import Device
from allocator.holdings import Holding, NodeSnapshot, Share
from allocator.names import ORIGINAL_REQUEST, TYPE_GPU
from allocator.wire.deviceobject import read_device_object
from webhook.podinfo import annotated_holding, read_pod_info
from webhook.translate import MAPS, originals_of

Raw = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Held:
    """What one Pod holds of a card."""

    pod: str
    share: Share


@dataclass(frozen=True, slots=True)
class Card:
    """A GPU, and who holds what of it.

    Attributes:
        node: its node.
        minor: its number there.
        id: its UUID.
        device: as the Device object has it; None where only a Pod's annotation names it.
        by_kubelet: the kubelet's device plugin gave it away.
        held: in the order of Pods' names.
    """

    node: str
    minor: int
    id: str
    device: Device | None
    by_kubelet: bool
    held: tuple[Held, ...]

    def used(self, tail: str) -> int:
        """Sum up what is held of a resource."""
        return sum(held.share.amounts.get(tail, 0) for held in self.held)
