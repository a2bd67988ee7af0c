"""Running Pods of other products by name and by node, and what they therefore hold of a node's devices."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from allocator.adopted import adopt
from allocator.vocabulary.adopted import ForeignHolding, ForeignPod, Numberings
from allocator.vocabulary.device import Device
from allocator.vocabulary.holdings import InvariantError
from allocator.wire.deviceobject import NodeDevices
from allocator.wire.foreignpods import NO_ADOPTION, Adoption, read_foreign_pod
from webhook.view.changes import Changes

_NONE: Final[Mapping[str, ForeignHolding]] = {}
_NOBODY: Final[Mapping[tuple[str, str], ForeignPod]] = {}


def held_by_kubelet(
    listed: NodeDevices, kubelet_held: frozenset[str], foreign: Mapping[str, ForeignHolding]
) -> frozenset[str]:
    """The devices that the kubelet gave to Pods of which it is not known exactly what they hold of them.

    `kubelet_held`: ids of the devices that the kubelet gave away. `foreign`: what Pods of other products hold there, by
    UID.
    """
    if not (foreign and kubelet_held):
        return kubelet_held
    exact = {(uid, share.id) for uid, one in foreign.items() if one.doubt is None for share in one.shares}
    told = {card: uids for card, uids in listed.kubelet_pods.items() if card in kubelet_held}
    finer = {card for card, uids in told.items() if all((uid, card) in exact for uid in uids)}
    return kubelet_held - finer if finer else kubelet_held


class ForeignTable:
    """Pods of other products that are bound and have not finished; only what they state is kept.

    `changes`: where each node is published whose Pods of this kind changed. `freed`: called with a node on which one
    let go of something: Pods that wait may fit there now.
    """

    def __init__(
        self,
        changes: Changes,
        adoption: Adoption = NO_ADOPTION,
        freed: Callable[[str], object] = lambda _node: None,
    ) -> None:
        self._changes = changes
        self._adoption = adoption
        self._freed = freed
        self._pods: dict[tuple[str, str], ForeignPod] = {}
        self._on: dict[str, dict[tuple[str, str], ForeignPod]] = {}
        # What is adopted of a node's Pods, with the devices and numberings that it was found on.
        self._adopted: dict[str, tuple[Sequence[Device], Numberings, Mapping[str, ForeignHolding]]] = {}

    def read(self, obj: Mapping[str, Any]) -> None:
        """Take in a Pod of any kind."""
        if not self._adoption.peers:
            return
        metadata = obj["metadata"]
        self._put((metadata.get("namespace", ""), metadata["name"]), read_foreign_pod(obj, self._adoption))

    def drop(self, namespace: str, name: str) -> None:
        """Take in that a Pod is gone."""
        self._put((namespace, name), None)

    def _put(self, key: tuple[str, str], pod: ForeignPod | None) -> None:
        before = self._pods.get(key)
        if before == pod:
            return
        if before is not None:
            del self._pods[key]
            there = self._on[before.node]
            del there[key]
            if not there:
                del self._on[before.node]
        if pod is not None:
            self._pods[key] = pod
            self._on.setdefault(pod.node, {})[key] = pod
        for one in filter(None, (before, pod)):
            self._adopted.pop(one.node, None)
            self._changes.touch(one.node)
        if before is not None:
            self._freed(before.node)

    def nodes(self) -> list[str]:
        """The nodes with such Pods, by name."""
        return sorted(self._on)

    def on(self, node: str, devices: Sequence[Device], numberings: Numberings) -> Mapping[str, ForeignHolding]:
        """What these Pods hold of a node's devices, by UID."""
        pods = self._on.get(node, _NOBODY)
        if not pods:
            return _NONE
        known = self._adopted.get(node)
        if known is not None and known[0] is devices and known[1] is numberings:
            return known[2]
        found = adopt(pods.values(), devices, numberings)
        self._adopted[node] = devices, numberings, found
        return found

    def check_invariants(self) -> None:
        """Compare the indices with the Pods.

        Raises InvariantError: they disagree.
        """
        on: dict[str, dict[tuple[str, str], ForeignPod]] = {}
        for key, pod in self._pods.items():
            on.setdefault(pod.node, {})[key] = pod
        if on != self._on:
            raise InvariantError(f"Pods of other products by node are {self._on}, not {on}")
        for node, (devices, numberings, found) in self._adopted.items():
            if found != adopt(self._on.get(node, _NOBODY).values(), devices, numberings):
                raise InvariantError(f"{node}: what is remembered of other products' Pods is not what they state now")
