"""What is kept of a node's cards, as JSON, so that a fatal error is not forgotten with the reporter's process."""

from typing import Any, Final

import msgspec

from reporter.gpu.facts import DriverFacts
from reporter.gpu.health import NOTHING_KNOWN, CardRecord, NodeRecord

_LARGEST: Final = 1 << 20  # bytes; a node of 16 cards needs about 50 kB


class _Record(msgspec.Struct, frozen=True):
    """The whole, its cards still to be read one by one."""

    boot: str
    cards: dict[str, Any]
    driver: Any = None  # files of before it was kept lack it


def encode(node: NodeRecord) -> bytes:
    """Write a record."""
    return msgspec.json.encode({"boot": node.boot, "cards": dict(node.cards), "driver": node.driver})


def decode(data: bytes) -> tuple[NodeRecord, tuple[str, ...]]:
    """Read a record.

    Returns:
        What it holds, and a sentence for each card, and for the driver, that makes no sense and is left out.
    """
    if len(data) > _LARGEST:
        return NOTHING_KNOWN, (f"{len(data)} bytes are no record of a node's cards; begun anew",)
    try:
        record = msgspec.json.decode(data, type=_Record)
    except (ValueError, RecursionError) as error:  # msgspec's are of the first kind
        return NOTHING_KNOWN, (f"no record of a node's cards ({error}); begun anew",)
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
