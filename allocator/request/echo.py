"""What a translated Pod records of the dialect that it was read in, so that later settings change nothing for it."""

from collections.abc import Iterable, Mapping
from typing import Any

from allocator.quantity import format_bytes
from allocator.vocabulary.dialect import Dialect
from allocator.vocabulary.names import DIALECT


def echo(dialects: Iterable[Dialect]) -> str:
    """The annotation's text: `hami; memory unit 1Mi; default cores 30`; "" for koordgate's own names alone.

    `dialects`: that the Pod's names and selections are in, that of its names first.
    """
    used = [one for one in dialects if one.title]
    if not used:
        return ""
    first = used[0]
    told = {"memory unit": first.unit, "default memory": first.size}
    parts = [", ".join(one.name for one in used)]
    parts += [f"{what} {format_bytes(amount)}" for what, amount in told.items() if amount]
    parts += [f"default cores {first.core}"] if first.core else []
    return "; ".join(parts)


def echoed(pod: Mapping[str, Any]) -> tuple[str, ...]:
    """The names of the dialects that a Pod's annotation states."""
    text = ((pod.get("metadata") or {}).get("annotations") or {}).get(DIALECT)
    named = text.partition(";")[0] if isinstance(text, str) else ""
    return tuple(filter(None, (one.strip() for one in named.split(","))))
