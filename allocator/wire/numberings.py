"""The Device object's annotation koordgate.io/device-numbers: which card each number meant, and since when.

Products that name a card by its number mean the one that had it when the Pod started. The reporter appends an entry
when the numbers change; the oldest are dropped.
"""

import itertools
import json
from typing import Any, Final

from allocator.vocabulary.adopted import Numbering, Numberings
from allocator.vocabulary.excerpt import excerpt
from allocator.wire.values import UNREADABLE, as_json, as_list, as_object, as_text

DEVICE_NUMBERS: Final = "koordgate.io/device-numbers"
MOST_NUMBERINGS: Final = 16  # of some 1 KB each for a node of 16 cards
_MOST_CARDS: Final = 1024
_LATEST: Final = 253_402_300_799  # the last second of the year 9999


def write_numberings(numberings: Numberings) -> str:
    """Write the annotation: the latest entries."""
    entries = [
        {
            "since": one.since,
            **({"after": one.after} if one.after != one.since else {}),
            "indexes": list(one.indexes),
            "minors": {str(minor): identity for minor, identity in one.minors},
        }
        for one in numberings[-MOST_NUMBERINGS:]
    ]
    return json.dumps(entries, separators=(",", ":"))


def read_numberings(text: object) -> tuple[Numberings, str]:
    """Read the annotation.

    Returns:
        What is known of the past, and why the annotation cannot be read; nothing is known then. "" if it can.
    """
    try:
        entries = as_list(as_json(text))
        if len(entries) > MOST_NUMBERINGS:
            raise ValueError(f"more than {MOST_NUMBERINGS} entries")
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
    indexes, minors = as_list(entry.get("indexes")), as_object(entry.get("minors"))
    if max(len(indexes), len(minors)) > _MOST_CARDS:
        raise ValueError(f"more than {_MOST_CARDS} cards")
    return Numbering(
        since or 0,
        after or 0,
        tuple(as_text(identity) for identity in indexes),
        tuple(sorted((int(minor), as_text(identity)) for minor, identity in minors.items())),
    )
