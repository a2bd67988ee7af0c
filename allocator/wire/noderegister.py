"""A Node's annotation in which another product's device plugin lists its cards, with UUIDs and memory.

Formats, from the products' own code: HAMi (Project-HAMi/HAMi, pkg/device/devices.go: a JSON list, and before v2.6 the
text of docs/develop/protocol.md), Volcano vGPU, which has the same text (volcano-sh/devices, pkg/plugin/vgpu).
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from allocator.vocabulary.excerpt import excerpt
from allocator.wire.values import UNREADABLE, as_json, as_list, as_object

REGISTERS: Final = ("hami.io/node-nvidia-register", "volcano.sh/node-vgpu-register")
"""The annotations that list NVIDIA's cards; the first that a Node has counts."""

_MOST_TEXT: Final = 64 * 1024
_MOST_CARDS: Final = 64
_MOST_MIB: Final = 2**32
_LEAST_FIELDS: Final = 7


class RegisteredCard(NamedTuple):
    """A card as a product registers it.

    Attributes:
        id: its UUID.
        memory_mib: its memory in MiB, as the product counts it: more than the card has where it overcommits memory.
        model: with the vendor's name, blanks as dashes.
        numa: its NUMA node; None if it is not stated.
        healthy: whether the product gives it.
    """

    id: str
    memory_mib: int
    model: str
    numa: int | None
    healthy: bool


def read_register(annotations: Mapping[str, Any]) -> tuple[str, Sequence[RegisteredCard], str]:
    """Read the cards that a Node's annotations list, in their order, which is that of NVML.

    Returns:
        The annotation ("" where there is none), the cards, and why it cannot be read ("" if it can).
    """
    key = next((one for one in REGISTERS if annotations.get(one)), "")
    if not key:
        return "", (), ""
    text = annotations[key]
    try:
        if not isinstance(text, str) or len(text) > _MOST_TEXT:
            raise ValueError(f"more than {_MOST_TEXT} characters, or no text")
        found = [_entry(one) for one in as_list(as_json(text))] if text.lstrip().startswith("[") else _of_text(text)
        if len(found) > _MOST_CARDS:
            raise ValueError(f"more than {_MOST_CARDS} cards")
        if len({card.id for card in found}) < len(found):
            raise ValueError("it lists a card twice")
    except UNREADABLE as error:
        return key, (), f"annotation {key}: {error}"
    return key, found, ""


def _of_text(text: str) -> list[RegisteredCard]:
    return [_line(part.split(",")) for part in text.split(":") if part.strip()]


def _line(fields: Sequence[str]) -> RegisteredCard:
    if len(fields) < _LEAST_FIELDS:
        raise ValueError(f"{excerpt(','.join(fields))!r} has fewer than {_LEAST_FIELDS} values")
    identity, _, memory, _, model, numa, healthy = fields[:_LEAST_FIELDS]
    return _card(identity, _number(memory), model, _number(numa), healthy=healthy.strip().lower() == "true")


def _entry(value: object) -> RegisteredCard:
    entry = as_object(value)
    numa = entry.get("numa", 0)
    return _card(
        entry.get("id"), entry.get("devmem"), entry.get("type", ""), numa, healthy=entry.get("health", True) is True
    )


def _card(identity: object, memory: object, model: object, numa: object, *, healthy: bool) -> RegisteredCard:
    if not isinstance(identity, str) or not identity.strip() or "," in identity:
        raise ValueError(f"{excerpt(identity)!r} is no UUID")
    if not isinstance(memory, int) or isinstance(memory, bool) or not 0 < memory <= _MOST_MIB:
        raise ValueError(f"{excerpt(memory)!r} is no number of MiB")
    where = numa if isinstance(numa, int) and not isinstance(numa, bool) and numa >= 0 else None
    name = "-".join(str(model).split())
    return RegisteredCard(identity.strip(), memory, name, where, healthy)


def _number(text: str) -> int:
    stripped = text.strip()
    if not stripped.isascii() or not stripped.removeprefix("-").isdecimal() or len(stripped) > len(str(_MOST_MIB)):
        raise ValueError(f"{excerpt(text)!r} is no number")
    return int(stripped)
