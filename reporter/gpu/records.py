"""The saved record of a node's cards, as JSON, so that a fatal error outlives the reporter's process."""

from typing import Any, Final

import msgspec

from reporter.gpu.facts import DriverFacts
from reporter.gpu.health import NOTHING_KNOWN, CardRecord, NodeRecord

_LARGEST: Final = 1 << 20  # bytes; a node of 16 cards needs about 50 kB


class _Record(msgspec.Struct, frozen=True):
    """The whole record; its cards are read one by one afterwards."""

    boot: str
    cards: dict[str, Any]
    driver: Any = None  # older files lack it


def encode(node: NodeRecord) -> bytes:
    """Write a record."""
    return msgspec.json.encode({"boot": node.boot, "cards": dict(node.cards), "driver": node.driver})


def decode(data: bytes) -> tuple[NodeRecord, tuple[str, ...]]:
    """Read a record.

    Returns the record, and a sentence for each part (a card, the driver) that cannot be read and is left out.
    """
    if len(data) > _LARGEST:
        return NOTHING_KNOWN, (f"{len(data)} bytes are no record of a node's cards; a new one is started",)
    try:
        record = msgspec.json.decode(data, type=_Record)
    except (ValueError, RecursionError) as error:  # msgspec's are of the first kind
        return NOTHING_KNOWN, (f"no record of a node's cards ({error}); a new one is started",)
    cards: dict[str, CardRecord] = {}
    problems = []
    for uuid, raw in record.cards.items():
        try:
            cards[uuid] = _read_card(uuid, raw)
        except ValueError as error:
            problems.append(f"card {uuid}: {error}; forgotten")
    driver = None
    try:
        driver = msgspec.convert(record.driver, DriverFacts | None)
    except ValueError as error:
        problems.append(f"the driver: {error}; forgotten")
    return NodeRecord(record.boot, cards, driver), tuple(problems)


def _read_card(uuid: str, raw: Any) -> CardRecord:
    card = msgspec.convert(raw, CardRecord)
    health = card.health
    if card.facts.uuid != uuid:
        raise ValueError(f"its facts are of {card.facts.uuid}")
    if health.count < 0 or health.falls < 0:
        raise ValueError("a count is below zero")
    return card
