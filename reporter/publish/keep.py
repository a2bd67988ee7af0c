"""When an object is written, and how: if it differs from what we want, and not too soon after a failure.

It is applied by server-side apply, with a field manager of our own. Fields of others stay, and fields that we no longer
set are removed. Fields of ours that somebody else changed are taken back by force, as Kubernetes recommends for
controllers.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import orjson

from allocator.quantity import QuantityError, parse
from koordgate.backoff import doubled
from koordgate.kube.client import KubeClient
from koordgate.kube.errors import Conflict
from koordgate.kube.resource import Resource
from reporter.pods import MANAGER

_AMOUNTS: Final = ("capacity", "allocatable")


def holds(live: Any, wanted: Any, key: str = "") -> bool:
    """Whether a live value has everything that is wanted; what others added does not matter.

    An empty map may be missing: the API server does not keep one. Amounts are compared as numbers, since the API server
    may rewrite them. A list is one field and must be equal; owner references are the exception, as they have many
    owners.
    """
    if isinstance(wanted, Mapping):
        same = _same_amount if key in _AMOUNTS else holds
        return isinstance(live, Mapping) and all(
            same(live[name], wanted[name], name) if name in live else wanted[name] == {} for name in wanted
        )
    if isinstance(wanted, list):
        if not isinstance(live, list):
            return False
        if key == "ownerReferences":
            return all(any(holds(one, ref) for one in live) for ref in wanted)
        return len(live) == len(wanted) and all(map(holds, live, wanted))
    return bool(live == wanted)


def _same_amount(live: Any, wanted: Any, _name: str) -> bool:
    try:
        return parse(live) == parse(wanted)
    except QuantityError:
        return False


_TRIES: Final = 4
_FIRST_S: Final = 1.0  # the wait after a failed write; it doubles with each further one
_MAX_S: Final = 300.0


@dataclass(frozen=True, slots=True)
class Target:
    """Where something is applied."""

    resource: Resource
    subresource: str | None = None  # the subresource to write through; None for the object itself

    def __str__(self) -> str:
        return f"{self.resource.plural}/{self.subresource}" if self.subresource else self.resource.plural


async def apply(kube: KubeClient, target: Target, body: Mapping[str, Any]) -> dict[str, Any]:
    """Apply an object; after a conflict it is tried again immediately, a few times.

    Returns the object as it is now. Raises KubeError: the API server did not accept it.
    """
    path = target.resource.path(body["metadata"]["name"], subresource=target.subresource)
    for attempt in range(1, _TRIES + 1):
        try:
            return await kube.patch(path, body, "apply", field_manager=MANAGER, force=True)
        except Conflict:  # the API server gives up after repeated simultaneous writes of others
            if attempt == _TRIES:
                raise
    raise AssertionError("the last attempt returns or raises")


_TYPE: Final = ("apiVersion", "kind")  # the items of a list lack them


@dataclass(frozen=True, slots=True)
class Kept:
    """The writes of one object so far."""

    # the last accepted body, serialised; None before the first write of this process: until then, the object may have
    # fields that an earlier version wrote
    last: bytes | None = None
    trying: bytes | None = None  # what is being written; None if nothing is
    taken_back: bool = False  # whether somebody else had changed what is being written
    failures: int = 0  # failed writes in a row
    retry_at: float = 0.0  # when the next attempt may be made, on the steady clock
    problem: str = ""  # why the last write failed; "" if it did not

    def begun(self, body: Mapping[str, Any], live: Mapping[str, Any] | None, now: float) -> "Kept | None":
        """A copy with a write begun; None if the object is as wanted, or if it is too soon."""
        wanted = orjson.dumps(body, option=orjson.OPT_SORT_KEYS)
        stands = holds(live, {key: value for key, value in body.items() if key not in _TYPE})
        if (wanted == self.last and stands) or now < self.retry_at:
            return None
        return replace(self, trying=wanted, taken_back=wanted == self.last and live is not None)

    def written(self) -> "Kept":
        """A copy after the write was accepted."""
        return Kept(last=self.trying)

    def refused(self, problem: str, now: float) -> "Kept":
        """A copy after the write failed."""
        failures = self.failures + 1
        return Kept(self.last, failures=failures, retry_at=now + doubled(_FIRST_S, _MAX_S, failures), problem=problem)

    def dropped(self) -> "Kept":
        """A copy after a bug ended the write."""
        return replace(self, trying=None, taken_back=False)
