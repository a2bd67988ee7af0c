"""Whose a field of the Node is (pure): the API server notes the owners of each in `metadata.managedFields`."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from reporter.publish.identity import MANAGER

_MOST_ENTRIES: Final = 256  # of managedFields; with more, every field counts as somebody else's


def is_ours(live: Mapping[str, Any], at: Sequence[str], key: str) -> bool:
    """Whether nobody has a key, or the reporter alone.

    `at`: the way to the map that has the key.
    """
    there: Mapping[str, Any] = live
    for step in at:
        there = there.get(step) or {}
    if key not in there:
        return True
    entries = (live.get("metadata") or {}).get("managedFields") or []
    return len(entries) <= _MOST_ENTRIES and set(_owners(at, key, entries)) == {MANAGER}


def _owners(at: Sequence[str], key: str, entries: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """The field managers that own a key."""
    for entry in entries:
        fields = entry.get("fieldsV1") or {}
        for step in at:
            fields = fields.get(f"f:{step}") or {}
        if f"f:{key}" in fields:
            yield str(entry.get("manager"))
