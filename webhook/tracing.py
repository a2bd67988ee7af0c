"""Traces: spans around the work of a call, in the words that the rest of the program uses. Here they are off.

`webhook.otlp` has the tracing that is on. Nothing else knows OpenTelemetry: where traces are off it need not be there.
"""

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Final

Attributes = Mapping[str, str | int]
_NONE: Final[Attributes] = {}


class Span:
    """One piece of work; where it is not recorded, nothing is kept."""

    trace_id: str = ""  # 32 hexadecimal digits; "" where the span is not recorded

    def note(self, attributes: Attributes) -> None:
        """Add attributes; texts are cut."""

    def fail(self, why: str) -> None:
        """Mark the work as failed: an error of ours, not a refusal."""


NO_SPAN: Final = Span()
NOTHING: Final = nullcontext(NO_SPAN)
"""Work that is not recorded."""


class Tracing:
    """Makes spans. This one makes none, and costs a call."""

    def called(self, _name: str, _caller: str, _attributes: Attributes = _NONE) -> AbstractContextManager[Span]:
        """Record the answer to a call; a `traceparent` (W3C Trace Context) that is "" or nonsense begins a trace."""
        return NOTHING

    def work(
        self, _name: str, _attributes: Attributes = _NONE, *, of: object = None, also: Iterable[object] = ()
    ) -> AbstractContextManager[Span]:
        """Record a part of a call's work.

        `of`: the work that it is a part of, as `here()` returned it there; None for the work that is under way.
        `also`: other work that it serves too.
        """
        del of, also  # what is off looks at nothing
        return NOTHING

    def here(self) -> object:
        """The work that is under way, to be a part of or to be served elsewhere."""
        return None

    def end(self) -> None:
        """Send what is left, within a few seconds; called once, in a thread of its own."""


OFF: Final = Tracing()
