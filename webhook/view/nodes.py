"""What nodes are and have, as their Node, Device and NodeResourceTopology objects say; nothing of who holds what."""

from collections import defaultdict
from collections.abc import Callable, KeysView, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

from allocator.vocabulary.device import Device
from allocator.vocabulary.holdings import InvariantError
from allocator.wire.deviceobject import NodeDevices
from allocator.wire.nodetopology import NodeTopology
from webhook.view.changes import Changes
from webhook.view.nodeselection import PREFER_NO_SCHEDULE, selected, tolerated

Taints = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What is kept of a Node."""

    labels: Mapping[str, str]
    classes: tuple[Device, ...] = ()  # its software classes, as devices
    shunning: Taints = ()  # its taints of effect PreferNoSchedule, as key and value
    # its taints of other effects, as key, value and effect; a cordon counts as one
    closing: tuple[tuple[str, str, str], ...] = ()
    unread: str = ""  # why the Node cannot be read, so that nothing may be placed there; "" if it can


@dataclass(eq=False, slots=True)
class _Inventory:
    """What a node has to give; kept while any of it is known."""

    devices: NodeDevices | None = None
    topology: NodeTopology | None = None
    blocked: str = ""


class NodeTable:
    """The nodes.

    A node is *known* while it has anything that could be given (a Device object, a topology, software classes), or is
    blocked; a Node without any of these is kept as facts alone.
    `changes`: where each change of a known node is published. `refitted`: called with a known node whose devices, CPUs
    or labels changed: Pods that wait may fit there now.
    """

    def __init__(self, changes: Changes, refitted: Callable[[str], object] = lambda _node: None) -> None:
        self.remade = Changes()  # publishes the nodes whose devices, CPUs or labels changed
        # the Nodes with koordgate's own taint: short of CPU or memory for their free devices
        self.short: set[str] = set()
        self._changes = changes
        self._refitted = refitted
        self._facts: dict[str, NodeFacts] = {}
        self._known: dict[str, _Inventory] = {}
        self._shunned: defaultdict[Taints, set[str]] = defaultdict(set)  # names of nodes by their taints

    # Node objects

    def put(self, name: str, facts: NodeFacts, *, short: bool = False) -> None:
        """Take in a Node.

        `short`: it has koordgate's own taint. This is no change of the node: it says nothing about Pods of ours.
        """
        (self.short.add if short else self.short.discard)(name)
        before = self._facts.get(name)
        if before == facts:
            return
        self._shun(name, before.shunning if before else (), facts.shunning)
        self._facts[name] = facts
        if facts.classes:
            self._inventory(name)
        self._remake(name)

    def drop(self, name: str) -> None:
        """Take in that a Node is gone."""
        before = self._facts.pop(name, None)
        self.short.discard(name)
        if before is not None:
            self._shun(name, before.shunning, ())
            self._remake(name)

    def _shun(self, name: str, before: Taints, now: Taints) -> None:
        if before:
            self._shunned[before].discard(name)
            if not self._shunned[before]:
                del self._shunned[before]
        if now:
            self._shunned[now].add(name)

    def facts(self, name: str) -> NodeFacts | None:
        """What is kept of a Node; None where there is none."""
        return self._facts.get(name)

    def shunned(self, tolerations: object) -> AbstractSet[str]:
        """The nodes with a taint of effect PreferNoSchedule that these tolerations of a Pod do not cover."""
        nodes: AbstractSet[str] = frozenset()
        for taints, names in self._shunned.items():
            objects = ({"key": key, "value": value, "effect": PREFER_NO_SCHEDULE} for key, value in taints)
            if not all(tolerated(taint, tolerations) for taint in objects):
                nodes |= names
        return nodes

    def open_to(self, selection: Mapping[str, Any]) -> list[str]:
        """The known nodes that a Pod selects, and whose taints it tolerates, by name.

        If the selection is too long to be looked at, there are none.
        """
        tolerations = selection.get("tolerations")
        known = ((name, self._facts.get(name)) for name in sorted(self._known))
        labels = {name: facts.labels for name, facts in known if facts is not None}
        return [name for name in selected(selection, labels) or () if self._lets_in(name, tolerations)]

    def _lets_in(self, name: str, tolerations: object) -> bool:
        """Whether these tolerations cover a node's taints."""
        closing = self._facts[name].closing
        return all(
            tolerated({"key": key, "value": value, "effect": effect}, tolerations) for key, value, effect in closing
        )

    # Device and NodeResourceTopology objects

    def put_devices(self, devices: NodeDevices) -> None:
        """Take in a Device object."""
        inventory = self._inventory(devices.node)
        before, inventory.devices = inventory.devices, devices
        if before != devices:  # else only what is not kept of it was written
            self._remake(devices.node)
        elif before.memory_uses != devices.memory_uses:  # which nothing is decided by, and people are shown
            self._changes.touch(devices.node)

    def drop_devices(self, name: str) -> None:
        """Take in that a Device object is gone: nothing new lands on its devices, and what is held stays held."""
        inventory = self._known.get(name)
        if inventory is not None and inventory.devices is not None:
            inventory.devices = None
            self._remake(name)

    def put_topology(self, topology: NodeTopology) -> None:
        """Take in a NodeResourceTopology."""
        inventory = self._inventory(topology.node)
        if inventory.topology != topology:
            inventory.topology = topology
            self._remake(topology.node)

    def drop_topology(self, name: str) -> None:
        """Take in that a NodeResourceTopology is gone: no CPUs are given there, and what is held stays held."""
        inventory = self._known.get(name)
        if inventory is not None and inventory.topology is not None:
            inventory.topology = None
            self._remake(name)

    def devices(self, name: str) -> NodeDevices | None:
        """A node's Device object; None where it has none."""
        inventory = self._known.get(name)
        return inventory.devices if inventory else None

    def topology(self, name: str) -> NodeTopology | None:
        """A node's NodeResourceTopology; None where it has none."""
        inventory = self._known.get(name)
        return inventory.topology if inventory else None

    # Nodes whose record cannot be read

    def block(self, name: str, reason: str) -> None:
        """Place nothing on a node until `unblock`: its holdings are unknown, and each bind there fails.

        `reason`: for users, with what an administrator must do.
        """
        self._inventory(name).blocked = reason
        self._changes.touch(name)

    def unblock(self, name: str) -> None:
        """A node's record can be read again, or is gone."""
        inventory = self._known.get(name)
        if inventory is not None and inventory.blocked:
            inventory.blocked = ""
            self._remake(name)

    def blocked(self, name: str) -> str:
        """Why nothing may be placed on a node, for users; "" where it may."""
        inventory, facts = self._known.get(name), self._facts.get(name)
        return (inventory.blocked if inventory is not None else "") or (facts.unread if facts is not None else "")

    # Which nodes are known

    def knows(self, name: str) -> bool:
        """Whether a node is known."""
        return name in self._known

    def known(self) -> KeysView[str]:
        """The names of all known nodes."""
        return self._known.keys()

    def _inventory(self, name: str) -> _Inventory:
        inventory = self._known.get(name)
        if inventory is None:
            inventory = self._known[name] = _Inventory()
        return inventory

    def _remake(self, name: str) -> None:
        """Publish a change of what a known node is or has, and forget one that has nothing left."""
        if name not in self._known:
            return
        if self._is_bare(name):
            del self._known[name]
        self.remade.touch(name)
        self._changes.touch(name)
        self._refitted(name)

    def reconsider(self) -> None:
        """Publish every known node: what follows from its objects is to be made again."""
        for name in tuple(self._known):
            self._remake(name)

    def _is_bare(self, name: str) -> bool:
        one, facts = self._known[name], self._facts.get(name)
        return one.devices is None and one.topology is None and not one.blocked and not (facts and facts.classes)

    def check_invariants(self) -> None:
        """Compare the indices with what they are made from.

        Raises InvariantError: they disagree.
        """
        if bare := [name for name in self._known if self._is_bare(name)]:
            raise InvariantError(f"known nodes with nothing to give: {bare}")
        if lost := [name for name, facts in self._facts.items() if facts.classes and name not in self._known]:
            raise InvariantError(f"nodes with software classes that are not known: {lost}")
        shunned: dict[Taints, set[str]] = {}
        for name, facts in self._facts.items():
            if facts.shunning:
                shunned.setdefault(facts.shunning, set()).add(name)
        if shunned != self._shunned:
            raise InvariantError(f"nodes by taints are {dict(self._shunned)}, not {shunned}")
