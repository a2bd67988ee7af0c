"""What each node has for Pods, and what its Pods request in sum: every resource, of all Pods, as kube-scheduler counts.

CPU counts in thousandths, every other resource in its own unit.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import Any, Final, NamedTuple

from allocator.amounts import BadQuantityError, node_amounts, pod_amounts
from allocator.vocabulary.holdings import InvariantError
from webhook.view.changes import Changes

Requests = tuple[tuple[str, int], ...]
"""Amounts by resource, in the order of names; none is 0."""

_NONE: Final[Mapping[str, int]] = {}


class BoundRequests(NamedTuple):
    """What counts of a Pod that is bound and has not finished: its node, and what it requests there."""

    node: str
    requests: Requests


class NodeLoads:
    """The sums by node. They order nodes, and say where the Pods of a gang have room.

    Whether these resources suffice for a Pod is kube-scheduler's decision alone.
    """

    def __init__(self) -> None:
        self.changes = Changes()  # publishes the nodes whose figures changed
        self._allocatable: dict[str, Mapping[str, int]] = {}
        self._requested: dict[str, dict[str, int]] = {}

    def put_node(self, node: str, allocatable: Mapping[str, int]) -> None:
        """Take in what a node has for Pods; nothing once it is gone."""
        if allocatable == self.allocatable(node):
            return
        if allocatable:
            self._allocatable[node] = allocatable
        else:
            del self._allocatable[node]
        self.changes.touch(node)

    def move(self, before: BoundRequests | None, now: BoundRequests | None) -> None:
        """Take in what counts of one Pod now, in place of what counted before; None where nothing does."""
        if before == now:
            return
        for of, sign in ((before, -1), (now, 1)):
            if of is not None:
                self._add(of, sign)
                self.changes.touch(of.node)

    def _add(self, of: BoundRequests, sign: int) -> None:
        sums = self._requested.setdefault(of.node, {})
        for name, amount in of.requests:
            total = sums.pop(name, 0) + sign * amount
            if total:
                sums[name] = total
        if not sums:
            del self._requested[of.node]

    def allocatable(self, node: str) -> Mapping[str, int]:
        """What a node has for Pods, by resource; nothing where that is not known."""
        return self._allocatable.get(node, _NONE)

    def requested(self, node: str) -> Mapping[str, int]:
        """What the Pods that are bound to a node and have not finished request in sum, by resource."""
        return self._requested.get(node, _NONE)

    def lacks(self, node: str, requests: Iterable[tuple[str, int]], ignored: AbstractSet[str] = frozenset()) -> str:
        """Name a resource of which a node has too little left for these requests in sum; "" if it has enough.

        `requests`: amounts by resource; every one counts, as kube-scheduler counts them. `ignored`: resources that do
        not count on a node that does not state them.
        """
        has, used = self.allocatable(node), self.requested(node)
        asked: Counter[str] = Counter()
        for name, amount in requests:
            if name in has or name not in ignored:
                asked[name] += amount
        short = (name for name in asked if asked[name] and asked[name] > has.get(name, 0) - used.get(name, 0))
        return min(short, default="")

    def check_invariants(self, counted: Iterable[BoundRequests | None]) -> None:
        """Compare the sums with the Pods.

        `counted`: what counts of each Pod. Raises InvariantError: they disagree.
        """
        sums: dict[str, Counter[str]] = {}
        for of in counted:
            if of is not None:
                sums.setdefault(of.node, Counter()).update(dict(of.requests))
        expected = {node: {name: total for name, total in of.items() if total} for node, of in sums.items()}
        expected = {node: of for node, of in expected.items() if of}
        if expected != self._requested:
            raise InvariantError(f"requests by node are {self._requested}, not {expected}")


def read_requests(spec: Mapping[str, Any]) -> Requests:
    """What kube-scheduler counts for a Pod on a node; nothing if a quantity cannot be read.

    The API server stores no such Pod. Nobody is stopped because of one.
    """
    try:
        return tuple(sorted((name, amount) for name, amount in pod_amounts(spec).items() if amount))
    except BadQuantityError:
        return ()


def read_allocatable(node: Mapping[str, Any]) -> Requests:
    """What a Node states that it has for Pods; nothing if a quantity cannot be read."""
    try:
        return tuple(sorted(node_amounts(node).items()))
    except BadQuantityError:
        return ()
