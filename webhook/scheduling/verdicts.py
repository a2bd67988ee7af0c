"""What `place()` said of requests on nodes, remembered until the node changes."""

import itertools
from dataclasses import dataclass, field
from typing import Final

from allocator.place import Placement
from allocator.signature import depends_on_names, renamed, signature_of
from allocator.vocabulary.asks import PodRequest
from allocator.vocabulary.node import NodeSnapshot
from allocator.vocabulary.outcome import Refusal
from webhook.boundedcache import BoundedCache

_MAX_BYTES: Final = 64 * 2**20  # some 100,000 verdicts on one or two devices each
_VERDICT_BYTES: Final = 500
_SHARE_BYTES: Final = 150
_REQUEST_BYTES: Final = 1_000  # beside what a request is long when written out
_MAX_KINDS: Final = 2048  # of nodes, some KiB each


PlaceVerdict = Placement | Refusal
"""What `place()` says of one request on one node."""


@dataclass(eq=False, slots=True)
class _Judged:
    """The verdicts on one request."""

    weight: int  # in bytes, about
    # a verdict, and the node's number when it was given
    by_node: dict[str, tuple[int, PlaceVerdict]] = field(default_factory=dict)
    # a refusal by one node of a kind, and the node's name; it holds for all nodes of the kind
    by_kind: dict[int, tuple[str, Refusal]] = field(default_factory=dict)
    # the node on which the last decision with few steps ended without an answer, and its number then
    short: tuple[str, int] = ("", -1)


class Verdicts:
    """Remembers verdicts, those on the requests that were asked for last where there are too many.

    Requests are as their authors write them, so the bound is in bytes. A node has a number, and loses it when it
    changes: a verdict given under another number than the node's own is stale.
    `most`: bytes, about, of all that is remembered.
    """

    def __init__(self, most: int = _MAX_BYTES) -> None:
        self._most = most
        self._requests: BoundedCache[PodRequest, _Judged] = BoundedCache(most)
        self._numbers: dict[str, int] = {}
        self._next = itertools.count()
        self._kinds = _Kinds()
        # The request that was asked for last, and what is known of it: a search asks for one of them thousands of times
        # in a row, and to hash it takes longer than the rest.
        self._last: tuple[PodRequest | None, _Judged | None] = (None, None)

    @property
    def weight(self) -> int:
        """Bytes, about, of all that is remembered."""
        return self._requests.weight

    def get(self, request: PodRequest, node: str) -> PlaceVerdict | None:
        """The verdict on a request on a node as it is now; None where it is not remembered."""
        judged = self._known(request)
        found = judged.by_node.get(node) if judged is not None else None
        return found[1] if found is not None and found[0] == self._numbers.get(node) else None

    def put(self, request: PodRequest, node: str, verdict: PlaceVerdict) -> PlaceVerdict:
        """Remember a verdict on a node as it is now, and return it."""
        judged = self._judged(request)
        stale = judged.by_node.get(node)
        if stale is not None:
            judged.weight -= _weight(stale[1])
        judged.by_node[node] = self._number(node), verdict
        judged.weight += _weight(verdict)
        self._keep(request, judged)
        return verdict

    def is_short(self, request: PodRequest, node: str) -> bool:
        """Whether few steps are known not to suffice for a request on a node as it is now."""
        judged = self._known(request)
        return judged is not None and judged.short == (node, self._numbers.get(node))

    def put_short(self, request: PodRequest, node: str) -> None:
        """Remember that few steps did not suffice on a node as it is now; of each request, the last such node."""
        judged = self._judged(request)
        judged.short = node, self._number(node)
        self._keep(request, judged)

    def _known(self, request: PodRequest) -> _Judged | None:
        if request is not self._last[0]:
            self._last = request, self._requests.get(request)
        return self._last[1]

    def _judged(self, request: PodRequest) -> _Judged:
        judged = self._known(request)
        if judged is None:
            judged = _Judged(len(repr(request)) + _REQUEST_BYTES)
            self._last = request, judged
        return judged

    def _keep(self, request: PodRequest, judged: _Judged) -> None:
        """Keep what is known of a request with its weight as it is now, or forget it where that is beyond the bound."""
        self._requests.put(request, judged, judged.weight)
        if judged.weight > self._most:
            self._last = (None, None)

    def _number(self, node: str) -> int:
        number = self._numbers.get(node)
        if number is None:
            number = self._numbers[node] = next(self._next)
        return number

    def get_alike(self, request: PodRequest, node: NodeSnapshot) -> Refusal | None:
        """The refusal by a node that is like this one, as this node would word it; None if none is remembered."""
        judged = self._known(request)
        if judged is None or not judged.by_kind or depends_on_names(request, node):
            return None
        by, refusal = judged.by_kind.get(self._kinds.of(node), ("", None))
        told = None if refusal is None else renamed(refusal, by, node.name)
        if told is not None:
            self.put(request, node.name, told)
        return told

    def put_alike(self, request: PodRequest, node: NodeSnapshot, refusal: Refusal) -> None:
        """Remember that `place()` refuses a request on all nodes that are like this one as it is now."""
        judged = self._known(request)
        if judged is None or depends_on_names(request, node):
            return
        kind = self._kinds.of(node)
        if kind not in judged.by_kind:
            judged.by_kind[kind] = node.name, refusal
            judged.weight += _weight(refusal)
            self._keep(request, judged)

    def forget(self, node: str) -> None:
        """A node changed: forget the verdicts on it."""
        self._numbers.pop(node, None)
        self._kinds.forget(node)


class _Kinds:
    """Numbers the kinds of nodes, so that what a node is like is worked out once until it changes."""

    def __init__(self) -> None:
        self._numbers: dict[object, int] = {}
        self._by_node: dict[str, int] = {}
        self._next = itertools.count()

    def of(self, node: NodeSnapshot) -> int:
        """The number of a node's kind; nodes of one number are alike."""
        number = self._by_node.get(node.name)
        if number is None:
            like = signature_of(node)
            number = self._numbers.get(like)
            if number is None:
                if len(self._numbers) >= _MAX_KINDS:  # numbers are not given again
                    self._numbers.clear()
                number = self._numbers[like] = next(self._next)
            self._by_node[node.name] = number
        return number

    def forget(self, node: str) -> None:
        """A node changed."""
        self._by_node.pop(node, None)


def _weight(verdict: PlaceVerdict) -> int:
    if isinstance(verdict, Refusal):
        return _VERDICT_BYTES + len(verdict.message)
    return _VERDICT_BYTES + _SHARE_BYTES * sum(1 + len(share.containers) for share in verdict.shares)
