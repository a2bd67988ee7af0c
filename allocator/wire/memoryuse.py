"""The Device object's annotation koordgate.io/memory-limits: what containers have of their cards' memory.

`{"GPU-...":[{"pod":"team/train","container":"main","state":"enforced","used":1073741824,"limit":2147483648,
"held":2147483648}]}`. What is not known, or is not there, is left out; `wanted` is written where it is not the limit.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

from allocator.vocabulary.memoryuse import Keeping, MemoryUse
from allocator.wire.values import UNREADABLE, as_json, as_list, as_object, as_text, one_of

MEMORY_LIMITS: Final = "koordgate.io/memory-limits"
MAX_USES_LENGTH: Final = 64 * 1024
"""Characters of the annotation; all annotations of an object together may have 256 KiB."""

_MAX: Final = 2**63 - 1
_ORDER: Final = (Keeping.MISSING, Keeping.ENFORCED, Keeping.ACCOUNTING)


def write_uses(uses: Iterable[MemoryUse]) -> str:
    """Write the annotation; "" for nothing. If it is too long, missing limits come first, and what fits."""
    found = sorted(uses, key=lambda one: (_ORDER.index(one.keeping), one.card, one.namespace, one.pod, one.container))
    entries: dict[str, list[dict[str, Any]]] = {}
    size = 2
    for one in found:
        entry = _entry(one)
        size += len(_text(entry)) + 1 + (0 if one.card in entries else len(_text(one.card)) + 3)
        if size > MAX_USES_LENGTH:
            break
        entries.setdefault(one.card, []).append(entry)
    return _text({card: entries[card] for card in sorted(entries)}) if entries else ""


def _text(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


def _entry(one: MemoryUse) -> dict[str, Any]:
    figures = {
        "used": one.used,
        "limit": one.limit,
        "wanted": one.wanted if one.wanted != one.limit else None,
        "held": one.held,
    }
    stated = {key: value for key, value in figures.items() if value is not None}
    return {"pod": f"{one.namespace}/{one.pod}", "container": one.container, "state": one.keeping.value, **stated}


def read_uses(text: object) -> tuple[tuple[MemoryUse, ...], str]:
    """Read the annotation.

    Returns what it tells, by card; nothing if it is missing or cannot be read; and why it cannot be read, "" if it can.
    """
    try:
        return tuple(
            _use(card, as_object(entry))
            for card, entries in as_object(as_json(text, MAX_USES_LENGTH)).items()
            for entry in as_list(entries)
        ), ""
    except UNREADABLE as error:
        return (), f"annotation {MEMORY_LIMITS}: {error}; who uses how much of a card's memory is not known"


def _use(card: str, entry: Mapping[str, Any]) -> MemoryUse:
    namespace, _, pod = as_text(entry.get("pod")).partition("/")
    keeping, limit = _keeping(entry.get("state")), _bytes(entry, "limit")
    wanted = _bytes(entry, "wanted")
    return MemoryUse(
        as_text(card),
        namespace,
        pod,
        as_text(entry.get("container")),
        keeping,
        _bytes(entry, "used"),
        limit,
        limit if keeping is Keeping.ENFORCED and wanted is None else wanted,
        _bytes(entry, "held") or 0,
    )


_keeping = one_of(Keeping)


def _bytes(entry: Mapping[str, Any], key: str) -> int | None:
    value = entry.get(key)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _MAX:
        raise ValueError(f"{key} is no number of bytes")
    return value
