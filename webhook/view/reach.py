"""The GPUs that a Pod could land on, as admission needs it: their memory, and how the Pod would get them."""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import orjson

from allocator.budget import Steps
from allocator.devices.delivery import classes_help
from allocator.vocabulary.delivery import Delivery, NodeDelivery, Way
from allocator.vocabulary.holdings import InvariantError
from allocator.vocabulary.names import GPU_MEMORY, TYPE_GPU
from koordgate.breaks import at_once, with_breaks
from webhook.boundedcache import BoundedCache
from webhook.view.nodes import NodeFacts, NodeTable
from webhook.view.nodeselection import selected, selects

_MAX_BYTES: Final = 4 * 2**20  # of answers remembered by what Pods select, which their authors write as they like
_ANSWER_BYTES: Final = 300  # of an answer, beside its key
_Counted = TypeVar("_Counted", bound=Hashable)
Reach = tuple[int, int]
"""Bytes of the smallest GPU and of the largest; 0 and 0 where none is known."""


@dataclass(frozen=True, slots=True)
class DeliveryReach:
    """How a Pod would get GPUs on the nodes that it selects."""

    # whether it gets them on more nodes, or more certainly, with the RuntimeClass of the installation
    classed: bool = False
    # why a Pod without a RuntimeClass gets none on any of them; "" if it gets some, or no node is known
    plain_fails: str = ""
    classed_fails: str = ""  # the same with the RuntimeClass of the installation
    showing: frozenset[str] = frozenset()  # the handlers that are NVIDIA's runtime, as far as that is known
    by_nri: bool = False  # whether NVIDIA's NRI plugin shows them on some, whatever the RuntimeClass


@dataclass(frozen=True, slots=True)
class _Gpus:
    """The GPUs of one node: each one's bytes, how Pods get them, and what is kept of the Node."""

    memories: tuple[int, ...]
    delivery: NodeDelivery
    facts: NodeFacts | None


class DeviceReach:
    """Answers from what the nodes have, and remembers it until a Node, Device object or RuntimeClass changes."""

    def __init__(self, nodes: NodeTable, delivery: Callable[[str], NodeDelivery]) -> None:
        self._nodes = nodes
        self._delivery = delivery
        self._remade = nodes.remade.reader(nodes.known())
        self._of: dict[str, _Gpus] = {}  # of nodes that have any
        self._all: Counter[int] = Counter()
        self._ways: Counter[NodeDelivery] = Counter()
        self._found: BoundedCache[bytes, tuple[Reach, DeliveryReach]] = BoundedCache(_MAX_BYTES)
        self._anywhere: tuple[Reach, DeliveryReach] | None = None  # for Pods that select no nodes

    def of(self, pod: Mapping[str, Any]) -> Reach:
        """Find the memory of the GPUs on the nodes that a Pod selects; unknown if its selection is very long."""
        return self._answer(pod)[0]

    def delivery(self, pod: Mapping[str, Any]) -> DeliveryReach:
        """Find how a Pod would get GPUs on the nodes that it selects; unknown if its selection is very long."""
        return self._answer(pod)[1]

    def _answer(self, pod: Mapping[str, Any]) -> tuple[Reach, DeliveryReach]:
        if self._remade:
            self._catch_up()
        spec = pod.get("spec") or {}
        if not selects(spec):
            if self._anywhere is None:
                self._anywhere = _reach(set(self._all)), _delivery_reach(self._ways)
            return self._anywhere
        key = orjson.dumps((spec.get("nodeSelector"), spec.get("affinity")))
        found = self._found.get(key)
        if found is None:
            memories, ways = self._selected(spec)
            found = self._found.put(key, (_reach(memories), _delivery_reach(ways)), _weight(key))
        return found

    def _selected(self, spec: Mapping[str, Any]) -> tuple[set[int], Counter[NodeDelivery]]:
        """The GPUs that a Pod selects; none are known if its selection is too long to be looked at."""
        labels = {name: one.facts.labels for name, one in self._of.items() if one.facts is not None}
        nodes = [self._of[name] for name in selected(spec, labels) or ()]
        return {memory for one in nodes for memory in one.memories}, Counter(one.delivery for one in nodes)

    async def catch_up_slowly(self) -> None:
        """Take in what changed, with breaks; `of` takes in at once what is left by then, and what changed since."""
        await with_breaks(self._take_in())

    def _catch_up(self) -> None:
        at_once(self._take_in())

    def _take_in(self) -> Steps[None]:
        """Take in what changed, and yield after each node; in the step in which it ends, nothing is left."""
        for name in self._remade.drain():
            before = self._of.pop(name, None)
            now = self._read(name)
            if now is not None:
                self._of[name] = now
            if before != now:
                if now is not None:
                    self._all.update(now.memories)
                    self._ways.update([now.delivery])
                if before is not None:
                    _take_away(self._all, before.memories)
                    _take_away(self._ways, [before.delivery])
                self._found.clear()
                self._anywhere = None
            yield 0

    def _read(self, name: str) -> _Gpus | None:
        """The GPUs of a node; None if it has none."""
        listed = self._nodes.devices(name)
        devices = listed.devices if listed else ()
        memories = tuple([one.capacity[GPU_MEMORY] for one in devices if one.type == TYPE_GPU])
        return _Gpus(memories, self._delivery(name), self._nodes.facts(name)) if memories else None

    def check_invariants(self) -> None:
        """Compare the GPUs as counted with those of the nodes.

        Raises InvariantError: they disagree.
        """
        self._catch_up()
        read = {name: one for name in self._nodes.known() if (one := self._read(name)) is not None}
        if read != self._of:
            raise InvariantError(f"GPUs by node are {self._of}, not {read}")
        counted = Counter(memory for one in read.values() for memory in one.memories)
        if counted != self._all:
            raise InvariantError(f"GPUs by memory are {self._all}, not {counted}")
        ways = Counter(one.delivery for one in read.values())
        if ways != self._ways:
            raise InvariantError(f"nodes by how they give GPUs are {self._ways}, not {ways}")


def _take_away(counted: Counter[_Counted], gone: Iterable[_Counted]) -> None:
    """Count each of these once less; of what is no longer there, nothing is kept."""
    for one in gone:
        counted[one] -= 1
        if not counted[one]:
            del counted[one]


def _reach(memories: set[int]) -> Reach:
    return min(memories, default=0), max(memories, default=0)


def _delivery_reach(ways: Mapping[NodeDelivery, int]) -> DeliveryReach:
    return DeliveryReach(
        classes_help(ways),
        _failure([one.plain for one in ways]),
        _failure([one.classed for one in ways]),
        frozenset(handler for one in ways for handler in one.showing),
        any(one.other.delivery in {Delivery.NVIDIA_NRI, Delivery.NRI} for one in ways),
    )


def _failure(ways: list[Way]) -> str:
    """Why none of these is a way; "" if one is, or there are none."""
    return ways[0].why_not if ways and all(way.delivery is None for way in ways) else ""


def _weight(key: bytes) -> int:
    return len(key) + _ANSWER_BYTES
