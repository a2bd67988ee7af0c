"""The memory of the GPUs that a Pod could land on, as admission needs it to state amounts in bytes."""

from collections import Counter
from collections.abc import Generator, Mapping
from typing import Any, Final

import orjson

from allocator.vocabulary.holdings import InvariantError
from allocator.vocabulary.names import GPU_MEMORY, TYPE_GPU
from koordgate.breaks import with_breaks
from webhook.boundedcache import BoundedCache
from webhook.view.nodes import NodeFacts, NodeTable
from webhook.view.nodeselection import selected, selects

_MOST_BYTES: Final = 4 * 2**20  # of answers remembered by what Pods select, which their authors write as they like
_ANSWER_BYTES: Final = 300  # of an answer, beside its key
Reach = tuple[int | None, int]
"""Bytes of each GPU, where all have the same, else None; and the bytes of the largest, 0 where none is known."""


class MemoryReach:
    """Answers from what the nodes have, and remembers it until a Node or Device object changes.

    Args:
        nodes: what nodes have.
    """

    def __init__(self, nodes: NodeTable) -> None:
        self._nodes = nodes
        self._remade = nodes.remade.reader(nodes.known())
        self._of: dict[str, tuple[tuple[int, ...], NodeFacts | None]] = {}  # each GPU's bytes, of nodes that have any
        self._all: Counter[int] = Counter()
        self._found: BoundedCache[bytes, Reach] = BoundedCache(_MOST_BYTES)

    def of(self, pod: Mapping[str, Any]) -> Reach:
        """Find the memory of the GPUs on the nodes that a Pod selects; unknown if its selection is very long."""
        self._catch_up()
        spec = pod.get("spec") or {}
        key = orjson.dumps((spec.get("nodeSelector"), spec.get("affinity"))) if selects(spec) else b""
        found = self._found.get(key)
        if found is None:
            found = self._found.put(key, _reach(self._selected(spec) if key else set(self._all)), _weight(key))
        return found

    def _selected(self, spec: Mapping[str, Any]) -> set[int]:
        """The memories of the GPUs that a Pod selects; none are known if its selection is too long to be looked at."""
        labels = {name: facts.labels for name, (_, facts) in self._of.items() if facts is not None}
        return {memory for name in selected(spec, labels) or () for memory in self._of[name][0]}

    async def catch_up_slowly(self) -> None:
        """Take in what changed, with breaks; `of` takes in at once what is left by then, and what changed since."""
        await with_breaks(self._take_in())

    def _catch_up(self) -> None:
        for _ in self._take_in():
            pass

    def _take_in(self) -> Generator[None, None, None]:
        """Take in what changed, and yield after each node; in the step in which it ends, nothing is left."""
        for name in self._remade.drain():
            before = self._of.pop(name, None)
            now = self._read(name)
            if now[0]:
                self._of[name] = now
            if (before or ((), None)) != (now if now[0] else ((), None)):
                self._all.subtract(before[0] if before else ())
                self._all.update(now[0])
                self._all += Counter()  # drops what no GPU has any more
                self._found.clear()
            yield

    def _read(self, name: str) -> tuple[tuple[int, ...], NodeFacts | None]:
        listed = self._nodes.devices(name)
        devices = listed.devices if listed else ()
        return tuple(one.capacity[GPU_MEMORY] for one in devices if one.type == TYPE_GPU), self._nodes.facts(name)

    def check_invariants(self) -> None:
        """Compare the GPUs as counted with those of the nodes.

        Raises:
            InvariantError: they disagree.
        """
        self._catch_up()
        read = {name: self._read(name) for name in self._nodes.known()}
        read = {name: one for name, one in read.items() if one[0]}
        if read != self._of:
            raise InvariantError(f"GPU memory by node is {self._of}, not {read}")
        counted = Counter(memory for memories, _ in read.values() for memory in memories)
        if counted != self._all:
            raise InvariantError(f"GPUs by memory are {self._all}, not {counted}")


def _reach(memories: set[int]) -> Reach:
    return (next(iter(memories)) if len(memories) == 1 else None, max(memories, default=0))


def _weight(key: bytes) -> int:
    return len(key) + _ANSWER_BYTES
