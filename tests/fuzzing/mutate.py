"""Changes an input at random places, as JSON and not as bytes: what results gets past the parser.

Annotations hold JSON in text, so such a text is opened, changed inside, and closed again. Most changes keep the kind of
a value, since the API server has checked the kinds of nearly all that we read.
"""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Final, NamedTuple

Case = Any

_MAX_CHANGES: Final = 4  # of one input
_MAX_SLOTS: Final = 3000  # places of one input that are looked at
_OPENED: Final = 40_000  # characters of a text that is opened as JSON
_HEX: Final = re.compile(r"([0-9a-f]{2})*")  # bytes, in an input that is no text
_SHORTEST_HEX: Final = 40  # characters
NUMBERS: Final = (
    *(0, 1, -1, 2, 3, 7, 8, 9, 16, 50, 99, 100, 101, 127, 128, 129, 150, 200, 255, 256, 800, 1000, 12_800, 12_900),
    *(65_535, 2**20, 2**30, 2**31 - 1, 2**31, 2**32, 80 * 2**30, 2**53, 2**62, 2**63 - 1),
    *(-(2**31), -(2**63), 2**63, 2**64 - 1, 2**64),
)
TEXTS: Final = (
    *("", " ", "0", "1", "-1", "00", "01", "50", "100", "101", "200", "0.5", "1e3", "1E3", "1e-3", "1500m", "100m"),
    *("80Gi", "8Gi", "1Ki", "7", "9Ei", "1e400", "9223372036854775807", "9223372036854775808", "+1", ".5", "5.", "1_0"),
    *("NaN", "Infinity", "0x10", "\u0660", "\u00b2", "true", "false", "True", "null", "none", "None", "all", "void"),
    *("0-3", "3-0", "0,2,4-6", "0-", "-3", "0,,1", "0-99999", "1048576", "a/b", "/", "//", "~", "~0", "~1", "..", "%s"),
    *("%", "%d", "{}", "[]", "[", "{", '"', "\\", "\n", "\x00", "\x7f", "\u00e9", "\u2028", "\ud800", "\U0001f600"),
    *("2026-01-01T00:00:00Z", "0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z", "A" * 300, "a" * 5000),
)


class _Text(NamedTuple):
    """A text that holds JSON, opened."""

    value: Any


class _Slot(NamedTuple):
    """A place in an input: a member of an object or of a list."""

    holder: Any
    key: Any

    @property
    def is_there(self) -> bool:
        """Whether an earlier change has left it in its holder."""
        return self.key in self.holder if isinstance(self.holder, dict) else self.key < len(self.holder)


@dataclass(frozen=True, slots=True)
class Pool:
    """What changes are made of: values of the corpus by the key that they stand under, all keys, and all texts."""

    by_key: dict[str, list[Any]]
    keys: Sequence[str]
    texts: Sequence[str]

    @classmethod
    def of(cls, cases: Sequence[Case]) -> "Pool":
        """Collect from these inputs."""
        by_key: dict[str, list[Any]] = {}
        texts: dict[str, None] = {}
        for case in cases:
            for holder, key in _slots([_opened(case)]):
                value = holder[key]
                if isinstance(key, str):
                    by_key.setdefault(key, []).append(value)
                if isinstance(value, str):
                    texts[value] = None
        return cls(by_key, sorted(by_key), [*sorted(texts), *TEXTS])


def mutate(case: Case, pool: Pool, random: Random) -> Case:
    """A changed copy of an input."""
    root = [_opened(case)]
    slots = list(_slots(root))
    for _ in range(random.randint(1, _MAX_CHANGES)):
        slot = random.choice(slots)
        if slot.is_there:
            _change(slot, slots, pool, random)
    return _closed(root[0])


def _opened(value: Any) -> Any:
    """A copy in which each text that holds a JSON object or list is opened."""
    if isinstance(value, dict):
        return {key: _opened(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_opened(one) for one in value]
    if isinstance(value, str) and value[:1] in {"{", "["} and len(value) < _OPENED:
        try:
            return _Text([_opened(json.loads(value))])
        except (ValueError, RecursionError):
            return value
    return value


def _closed(value: Any) -> Any:
    if isinstance(value, _Text):
        return json.dumps(_closed(value.value[0]), separators=(",", ":"))
    if isinstance(value, dict):
        return {key: _closed(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_closed(one) for one in value]
    return value


def _copied(value: Any) -> Any:
    if isinstance(value, _Text):
        return _Text([_copied(value.value[0])])
    if isinstance(value, dict):
        return {key: _copied(one) for key, one in value.items()}
    return [_copied(one) for one in value] if isinstance(value, list) else value


def _slots(root: list[Any]) -> Iterator[_Slot]:
    """All places, the outermost first."""
    waiting: list[Any] = [root]
    seen = 0
    for holder in waiting:  # it grows meanwhile
        for key in list(holder) if isinstance(holder, dict) else range(len(holder)):
            seen += 1
            if seen > _MAX_SLOTS:
                return
            yield _Slot(holder, key)
            value = holder[key]
            if isinstance(value, _Text):
                waiting.append(value.value)
            elif isinstance(value, (dict, list)):
                waiting.append(value)


def _change(slot: _Slot, slots: Sequence[_Slot], pool: Pool, random: Random) -> None:
    """Make one change at a place."""
    holder, key = slot
    how = random.randrange(20)
    if how < 9:
        holder[key] = _other(holder[key], pool, random)
    elif how < 13:
        _splice(holder, key, slots, pool, random)
    elif how < 15:
        del holder[key]
        if not holder and isinstance(holder, list):
            holder.append(None)
    elif how < 17 and isinstance(holder, list):
        holder.insert(random.randint(0, len(holder)), _copied(random.choice(holder)))
    elif how < 19 and isinstance(holder, dict):
        holder[random.choice(pool.keys) if pool.keys and random.random() < 0.9 else random.choice(TEXTS)] = holder.pop(
            key
        )
    else:
        holder[key] = random.choice((None, True, False, 0, 1.5, "", [], {}, [None], {"": None}, "x", -1, 2**70))


def _splice(holder: Any, key: Any, slots: Sequence[_Slot], pool: Pool, random: Random) -> None:
    """Put in a value that stands under the same key elsewhere, or, under a key of its own, something of the corpus."""
    if isinstance(key, str) and pool.by_key.get(key) and random.random() < 0.5:
        holder[key] = _copied(random.choice(pool.by_key[key]))
    elif isinstance(holder, dict) and pool.keys:
        name = random.choice(pool.keys)
        holder[name] = _copied(random.choice(pool.by_key[name]))
    else:
        other = random.choice(slots)
        if other.is_there:
            holder[key] = _copied(other.holder[other.key])


def _other(value: Any, pool: Pool, random: Random) -> Any:
    """Another value of the same kind."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return random.choice((*NUMBERS, value + 1, value - 1, value * 2, -value))
    if isinstance(value, float):
        return random.choice((0.0, -0.0, 0.5, value / 3, -value, 1e308))
    if isinstance(value, str):
        return _other_text(value, pool, random)
    if isinstance(value, list):
        return [_copied(one) for one in value] * random.choice((0, 2, 3)) or [] if value else [random.choice(TEXTS)]
    if isinstance(value, dict):
        return {} if random.random() < 0.2 else dict(reversed(value.items()))
    if isinstance(value, _Text):
        return random.choice(("", "{", "[]", "{}", "null", "[" * 2000, _closed(value)[:-1]))
    return random.choice((False, 0, "", [], {}))


def _other_text(value: str, pool: Pool, random: Random) -> str:
    if len(value) > _SHORTEST_HEX and _HEX.fullmatch(value) and random.random() < 0.95:
        return _other_bytes(bytearray.fromhex(value), random).hex()
    how = random.randrange(8)
    if how < 3:
        return random.choice(pool.texts)
    if how < 5:
        return str(random.choice(NUMBERS))
    at = random.randint(0, len(value))
    if how == 5:
        return value[:at] + random.choice(TEXTS)[:400] + value[at:]
    if how == 6:
        return value[:at] + value[at + 1 :]
    return value[:at]


def _other_bytes(data: bytearray, random: Random) -> bytearray:
    """Change some bytes: one replaced, left out or doubled, or a run of them."""
    for _ in range(random.randint(1, _MAX_CHANGES)):
        at = random.randrange(len(data) or 1)
        run = random.choice((1, 1, 2, 8, 40))
        how = random.randrange(4)
        if how == 0:
            data[at : at + 1] = bytes([random.choice((0, 1, 2, 8, 10, 18, 0x7F, 0x80, 0xFF, random.randrange(256)))])
        elif how == 1:
            del data[at : at + run]
        elif how == 2:
            data[at:at] = data[at : at + run]
        else:
            data[at:at] = random.randbytes(run)
    return data
