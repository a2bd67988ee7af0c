"""Traces: spans around the work of a call, in the words that the rest of the program uses. Here they are off.

`webhook.otlp` has the tracing that is on. Nothing else knows OpenTelemetry, which is imported only there.
"""

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Final

Attributes = Mapping[str, str | int]
_NONE: Final[Attributes] = {}


class Span:
    """One piece of work; where it is not recorded, nothing is kept.

    Attributes:
        trace_id: 32 hexadecimal digits; "" where the span is not recorded.
    """

    trace_id: str = ""

    def note(self, attributes: Attributes) -> None:
        """Add attributes; texts are cut."""

    def fail(self, why: str) -> None:
        """Mark the work as failed: an error of ours, not a refusal."""


NO_SPAN: Final = Span()
_NOTHING: Final = nullcontext(NO_SPAN)


class Tracing:
    """Makes spans. This one makes none, and costs a call."""

    def called(  # what is off looks at nothing
        self,
        name: str,  # noqa: ARG002
        caller: str,  # noqa: ARG002
        attributes: Attributes = _NONE,  # noqa: ARG002
    ) -> AbstractContextManager[Span]:
        """Record the answer to a call.

        Args:
            name: of the span.
            caller: the call's `traceparent` (W3C Trace Context); "" or nonsense begins a new trace.
            attributes: of the span.
        """
        return _NOTHING

    def work(
        self,
        name: str,  # noqa: ARG002
        attributes: Attributes = _NONE,  # noqa: ARG002
        *,
        of: object = None,  # noqa: ARG002
        also: Iterable[object] = (),  # noqa: ARG002
    ) -> AbstractContextManager[Span]:
        """Record a part of a call's work.

        Args:
            name: of the span.
            attributes: of the span.
            of: the work that it is a part of, as `here()` returned it there; None for the work that is under way.
            also: other work that it serves too.
        """
        return _NOTHING

    def here(self) -> object:
        """The work that is under way, to be a part of or to be served elsewhere."""
        return None

    def end(self) -> None:
        """Send what is left, within a few seconds; called once, in a thread of its own."""


OFF: Final = Tracing()
