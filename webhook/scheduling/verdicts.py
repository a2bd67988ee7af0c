"""What `place()` said of requests on nodes, remembered until the node changes."""

import itertools
from dataclasses import dataclass, field
from typing import Final

from allocator.place import Placement
from allocator.vocabulary.asks import PodRequest
from allocator.vocabulary.outcome import Refusal
from webhook.boundedcache import BoundedCache

_MOST_BYTES: Final = 64 * 2**20  # some 100,000 verdicts on one or two devices each
_VERDICT_BYTES: Final = 500
_SHARE_BYTES: Final = 150
_REQUEST_BYTES: Final = 1_000  # beside what a request is long when written out


PlaceVerdict = Placement | Refusal
"""What `place()` says of one request on one node."""


@dataclass(eq=False, slots=True)
class _Judged:
    """The verdicts on one request.

    Attributes:
        weight: in bytes, about.
        by_node: a verdict, and the node's number when it was given.
    """

    weight: int
    by_node: dict[str, tuple[int, PlaceVerdict]] = field(default_factory=dict)


class Verdicts:
    """Remembers verdicts, those on the requests that were asked for last where there are too many.

    Requests are as their authors write them, so the bound is in bytes. A node has a number, and loses it when it
    changes: a verdict given under another number than the node's own is stale.

    Args:
        most: bytes, about, of all that is remembered.
    """

    def __init__(self, most: int = _MOST_BYTES) -> None:
        self._requests: BoundedCache[PodRequest, _Judged] = BoundedCache(most)
        self._numbers: dict[str, int] = {}
        self._next = itertools.count()

    @property
    def weight(self) -> int:
        """Bytes, about, of all that is remembered."""
        return self._requests.weight

    def get(self, request: PodRequest, node: str) -> PlaceVerdict | None:
        """The verdict on a request on a node as it is now; None where it is not remembered."""
        judged = self._requests.get(request)
        found = judged.by_node.get(node) if judged is not None else None
        return found[1] if found is not None and found[0] == self._numbers.get(node) else None

    def put(self, request: PodRequest, node: str, verdict: PlaceVerdict) -> PlaceVerdict:
        """Remember a verdict on a node as it is now, and return it."""
        judged = self._requests.get(request) or _Judged(len(repr(request)) + _REQUEST_BYTES)
        stale = judged.by_node.get(node)
        if stale is not None:
            judged.weight -= _weight(stale[1])
        number = self._numbers.get(node)
        if number is None:
            number = self._numbers[node] = next(self._next)
        judged.by_node[node] = number, verdict
        judged.weight += _weight(verdict)
        self._requests.put(request, judged, judged.weight)
        return verdict

    def forget(self, node: str) -> None:
        """A node changed: forget the verdicts on it."""
        self._numbers.pop(node, None)


def _weight(verdict: PlaceVerdict) -> int:
    if isinstance(verdict, Refusal):
        return _VERDICT_BYTES + len(verdict.message)
    return _VERDICT_BYTES + _SHARE_BYTES * sum(1 + len(share.containers) for share in verdict.shares)
