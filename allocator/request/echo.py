"""What a translated Pod is told of the dialect that it was read in, so that later settings change nothing for it."""

from collections.abc import Iterable, Mapping
from typing import Any

from allocator.quantity import format_bytes
from allocator.vocabulary.dialect import Dialect
from allocator.vocabulary.names import DIALECT


def echo(dialects: Iterable[Dialect]) -> str:
    """The annotation's text: `hami; memory unit 1Mi`; "" for koordgate's own names alone.

    Args:
        dialects: that the Pod's names and selections are in, that of its names first.
    """
    used = [one for one in dialects if one.title]
    unit = used[0].unit if used else 0
    names = ", ".join(one.name for one in used)
    return f"{names}; memory unit {format_bytes(unit)}" if unit else names


def echoed(pod: Mapping[str, Any]) -> tuple[str, ...]:
    """The names of the dialects that a Pod's annotation states."""
    text = ((pod.get("metadata") or {}).get("annotations") or {}).get(DIALECT)
    named = text.partition(";")[0] if isinstance(text, str) else ""
    return tuple(filter(None, (one.strip() for one in named.split(","))))
