"""Who holds what, counted from the objects alone (pure): Device objects, and the annotations of Pods.

It asks no ledger, so that what is shown is what stands in the cluster.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from allocator.device import Device
from allocator.holdings import Holding, InvariantError, NodeSnapshot, Share
from allocator.names import TYPE_GPU
from allocator.wire.deviceobject import NodeDevices, read_device_object
from webhook.podinfo import annotated_holding, read_pod_info

Raw = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Card:
    """A GPU, and who holds what of it.

    Attributes:
        node: its node.
        minor: its number there.
        id: its UUID.
        device: as the Device object has it; None where only a Pod's annotation names it.
        by_kubelet: the kubelet's device plugin gave it away.
        held: Pod (namespace/name) and its share, in the order of names.
    """

    node: str
    minor: int
    id: str
    device: Device | None
    by_kubelet: bool
    held: tuple[tuple[str, Share], ...]

    def used(self, tail: str) -> int:
        """Sum up what is held of a resource."""
        return sum(share.amounts.get(tail, 0) for _, share in self.held)


class Account:
    """All nodes' devices, and what Pods hold of them.

    Args:
        devices: Device objects.
        pods: Pods; those that are bound and not finished hold what their annotations say.
    """

    def __init__(self, devices: Iterable[Raw], pods: Iterable[Raw]) -> None:
        self._devices = {read.node: read for read in map(read_device_object, devices)}
        self._held: dict[str, dict[str, Holding]] = {}
        for pod in pods:
            info = read_pod_info(pod)
            if info is None or not info.node or info.finished:
                continue
            holding = annotated_holding(info, self._on(info.node).devices, 0)
            if holding is not None:
                self._held.setdefault(info.node, {})[holding.uid] = holding

    def _on(self, node: str) -> NodeDevices:
        return self._devices.get(node) or NodeDevices(node, (), frozenset(), ())

    def _nodes(self) -> list[str]:
        return sorted({*self._devices, *self._held})

    def shares(self, pod: Raw) -> tuple[Share, ...]:
        """What a Pod holds, in the order of minors."""
        held = self._held.get(pod["spec"].get("nodeName") or "", {}).get(pod["metadata"]["uid"])
        return tuple(sorted(held.shares, key=lambda share: (share.type, share.minor))) if held else ()

    def cards(self) -> list[Card]:
        """All GPUs by node and minor; after a node's own those that only annotations name."""
        return [card for node in self._nodes() for card in self._cards(node)]

    def _cards(self, node: str) -> list[Card]:
        listed = self._on(node)
        held: dict[str, list[tuple[str, Share]]] = {}
        for holding in sorted(self._held.get(node, {}).values(), key=lambda one: (one.namespace, one.name)):
            for share in holding.shares:
                if share.type == TYPE_GPU:
                    held.setdefault(share.id, []).append((f"{holding.namespace}/{holding.name}", share))
        cards = [
            Card(node, one.minor, one.id, one, one.id in listed.kubelet_held, tuple(held.pop(one.id, ())))
            for one in listed.devices
            if one.type == TYPE_GPU
        ]
        strays = [
            Card(node, shares[0][1].minor, stray, None, by_kubelet=False, held=tuple(shares))
            for stray, shares in held.items()
        ]
        return cards + sorted(strays, key=lambda card: (card.minor, card.id))

    def overgiven(self) -> list[str]:
        """Recount every device: a sentence for each node on which more is held than there is."""
        found = []
        for node in self._nodes():
            listed = self._on(node)
            try:
                NodeSnapshot(node, listed.devices, self._held.get(node, {}), listed.kubelet_held).check_invariants()
            except InvariantError as error:
                found.append(str(error))
        return found
