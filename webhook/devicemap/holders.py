"""Who holds something of a node, for the device map (pure): each once, whatever it holds."""

from typing import Any

from allocator.vocabulary.adopted import ForeignHolding
from allocator.vocabulary.holdings import Holding
from allocator.wire.nodetopology import PodCpuAlloc
from webhook.devicemap.text import LONGEST, cut

Raw = dict[str, Any]


class Holders:
    """The holders of one node."""

    def __init__(self) -> None:
        self.entries: list[Raw] = []  # for the document; others name a holder by its place in this list
        self._places: dict[tuple[str, str], int] = {}

    def pod(self, holding: Holding) -> int:
        """Take in a Pod that koordgate gave something to; returns its place."""
        numa = [one.node for one in holding.cpus.numa] if holding.cpus is not None else []
        return self._add("pod", holding.uid, holding.namespace, holding.name, _note(holding), numa)

    def claim(self, claim: Holding) -> int:
        """Take in a ResourceClaim; returns its place."""
        return self._add("claim", claim.uid, claim.namespace, claim.name, "ResourceClaim (DRA)")

    def foreign(self, holding: ForeignHolding) -> int:
        """Take in a Pod of another product; returns its place."""
        note = f"by {holding.peer.value}, {holding.evidence}" + (f": {holding.why}" if holding.why else "")
        return self._add("foreign", holding.uid, holding.namespace, holding.name, note)

    def kubelet(self, alloc: PodCpuAlloc) -> int:
        """Take in a Pod that got CPUs from the kubelet's static policy; returns its place."""
        uid = alloc.uid or f"{alloc.namespace}/{alloc.name}"
        return self._add("kubelet", uid, alloc.namespace, alloc.name, "CPUs by the kubelet's static policy")

    def _add(self, kind: str, uid: str, namespace: str, name: str, note: str, numa: list[int] | None = None) -> int:
        key = ("claim" if kind == "claim" else "pod", uid)
        place = self._places.get(key)
        if place is None:
            place = self._places[key] = len(self.entries)
            about = {"kind": kind, "uid": cut(uid), "namespace": cut(namespace), "name": cut(name)}
            self.entries.append({**about, "note": cut(note, LONGEST), "numa": numa or []})
        return place


def _note(holding: Holding) -> str:
    """What is particular about a holding, for people; "" for nothing."""
    if holding.unread:
        return f"its annotations cannot be read ({', '.join(holding.unread)}), so all that they may mean is held"
    if holding.ending:
        return "not bound in time: it is being given back"
    return f"room held for the gang {holding.gang}" if holding.until else ""
