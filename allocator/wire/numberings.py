"""The Device object's annotation koordgate.io/device-numbers: which device each number meant, and since when.

Who names a device by its number means the one that had it when the Pod started. The reporter appends an entry when the
numbers change; the oldest are dropped.
"""

import itertools
import json
from collections.abc import Mapping
from typing import Any, Final

from allocator.vocabulary.adopted import Numbering, Numberings
from allocator.vocabulary.excerpt import excerpt
from allocator.wire.values import MAX_OF_NODE, UNREADABLE, as_json, as_list, as_object, as_text, as_time

DEVICE_NUMBERS: Final = "koordgate.io/device-numbers"
MAX_NUMBERINGS: Final = 16  # of some 1 KB each for a node of 16 cards
_MAX_WRITTEN: Final = 2**16  # characters: all annotations of an object together may have 256 KiB
_MAX_CARDS: Final = 1024
_MAX_TYPES: Final = 64
_LATEST: Final = 253_402_300_799  # the last second of the year 9999


def write_numberings(numberings: Numberings) -> str:
    """Write the annotation: the latest entries, as many as there is room for."""
    entries = [
        {
            "since": one.since,
            **({"after": one.after} if one.after != one.since else {}),
            "indexes": list(one.indexes),
            "minors": {str(minor): identity for minor, identity in one.minors},
            **({"others": _by_type(one)} if one.others else {}),
        }
        for one in numberings[-MAX_NUMBERINGS:]
    ]
    while len(text := json.dumps(entries, separators=(",", ":"))) > _MAX_WRITTEN and entries:
        del entries[0]
    return text


def _by_type(one: Numbering) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    for kind, minor, identity in one.others:
        found.setdefault(kind, {})[str(minor)] = identity
    return found


def read_numberings(text: object) -> tuple[Numberings, str]:
    """Read the annotation.

    Returns what is known of the past, and why the annotation cannot be read; nothing is known then. "" if it can.
    """
    try:
        entries = as_list(as_json(text, MAX_OF_NODE))
        if len(entries) > MAX_NUMBERINGS:
            raise ValueError(f"more than {MAX_NUMBERINGS} entries")
        found = tuple(_read(as_object(entry)) for entry in entries)
        for before, one in itertools.pairwise(found):
            if not before.since <= one.after <= one.since:
                raise ValueError("the entries are not in the order of time")
    except UNREADABLE as error:
        return (), f"annotation {DEVICE_NUMBERS}: {error}; what a card's number meant is not known"
    return found, ""


def _read(entry: dict[str, Any]) -> Numbering:
    since, after = entry.get("since"), entry.get("after", entry.get("since"))
    for time in (since, after):
        if not isinstance(time, int) or isinstance(time, bool) or not 0 <= time <= _LATEST:
            raise ValueError(f"{excerpt(time)!r} is no time in seconds")
    indexes, others = as_list(entry.get("indexes")), as_object(entry.get("others") or {})
    if len(indexes) > _MAX_CARDS or len(others) > _MAX_TYPES:
        raise ValueError(f"more than {_MAX_CARDS} cards, or more than {_MAX_TYPES} other types")
    return Numbering(
        since or 0,
        after or 0,
        tuple(as_text(identity) for identity in indexes),
        _minors(entry.get("minors")),
        tuple((kind, *one) for kind in sorted(others) for one in _minors(others[kind])),
    )


def _minors(value: object) -> tuple[tuple[int, str], ...]:
    minors = as_object(value)
    if len(minors) > _MAX_CARDS:
        raise ValueError(f"more than {_MAX_CARDS} cards, or other devices of a type")
    return tuple(sorted((int(minor), as_text(identity)) for minor, identity in minors.items()))


def starts_of(pod: Mapping[str, Any]) -> tuple[int, ...]:
    """When the minors of a bound Pod were resolved, seconds since the epoch; empty if that is not known.

    A container gets its devices when it starts. While none runs, the Pod has those that it was bound to.
    """
    status = pod.get("status") or {}
    running = ((one.get("state") or {}).get("running") or {} for one in status.get("containerStatuses") or ())
    bound = (
        one.get("lastTransitionTime") for one in status.get("conditions") or () if one.get("type") == "PodScheduled"
    )
    started = {_time(one.get("startedAt")) for one in running} - {None}
    times = started or {_time(one) for one in bound} - {None} or {_time(status.get("startTime"))} - {None}
    return tuple(sorted(time for time in times if time is not None))


def _time(text: object) -> int | None:
    try:
        return as_time(text)
    except UNREADABLE:
        return None
