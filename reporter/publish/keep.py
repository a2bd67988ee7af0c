"""When an object is written (pure): if it differs from what we want, and not too soon after a failure."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import orjson

from koordgate.backoff import doubled
from reporter.publish.compare import holds

_TYPE: Final = ("apiVersion", "kind")  # the items of a list lack them


@dataclass(frozen=True, slots=True)
class RetryPace:
    """How long to wait after failed writes, in seconds."""

    first: float = 1.0  # after the first failure; the wait doubles with each further one
    longest: float = 300.0

    def after(self, failures: int) -> float:
        """The wait after a number of failures in a row, one or more."""
        return doubled(self.first, self.longest, failures)


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

    def refused(self, problem: str, now: float, pace: RetryPace) -> "Kept":
        """A copy after the write failed."""
        failures = self.failures + 1
        return Kept(self.last, failures=failures, retry_at=now + pace.after(failures), problem=problem)

    def dropped(self) -> "Kept":
        """A copy after a bug ended the write."""
        return replace(self, trying=None, taken_back=False)
