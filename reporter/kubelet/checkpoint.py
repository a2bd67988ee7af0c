"""The common form of the kubelet's checkpoint files: JSON with a checksum over Go's view of the data.

The checksum is the 32-bit FNV-1a hash of the text that go-spew prints for the Go value (`%#v`, sorted keys, no pointer
addresses): Kubernetes v1.37, pkg/kubelet/checkpointmanager/checksum, pkg/util/hash and k8s.io/utils/dump. The text
names Go types, so it depends on the kubelet's version as well as on the data. This module prints only the kinds of
values that checkpoints hold: text, lists, maps and bytes. Each may also be nil (JSON's null).
"""

import base64
import binascii
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NoReturn, TypeVar

MAX_BYTES: Final = 2 * 2**20  # a node of 250 Pods writes a few hundred kilobytes
NIL: Final = "<nil>"
HALF_CHARACTER: Final = "holds half a character (a lone surrogate)"
_FNV_OFFSET: Final = 0x811C9DC5
_FNV_PRIME: Final = 0x01000193
_MAX_CHECKSUM: Final = 2**64 - 1
_Key = TypeVar("_Key", int, str)
_Value = TypeVar("_Value")


class CheckpointError(ValueError):
    """A checkpoint file that cannot be used; the message says what is wrong with it."""


def decode(data: bytes, max_bytes: int = MAX_BYTES) -> dict[str, Any]:
    """Decode the JSON object that a checkpoint file is.

    Raises CheckpointError: it is too large, not UTF-8, not JSON (for example truncated), not an object, or has half a
    character.
    """
    if len(data) > max_bytes:
        raise CheckpointError(f"{len(data)} bytes; no more than {max_bytes} are read")
    try:
        value = json.loads(data.decode(), parse_constant=_refuse_constant)
    except RecursionError as error:
        raise CheckpointError("not JSON that can be read: nested too deeply") from error
    except ValueError as error:
        raise CheckpointError(f"not JSON: {error}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"not a JSON object but {_kind(value)}")
    if has_half_character(value):
        raise CheckpointError(HALF_CHARACTER)
    return value


def has_half_character(value: object) -> bool:
    """Whether a decoded text, keys included, has a lone surrogate: a message that quotes it could not be written."""
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, str):
            if not one.isascii() and any("\ud800" <= character <= "\udfff" for character in one):
                return True
        elif isinstance(one, dict):
            waiting += [*one, *one.values()]
        elif isinstance(one, (list, tuple, set, frozenset)):  # YAML makes all of these
            waiting += one
    return False


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def checksum(text: str) -> int:
    """Hash the text that Go prints for the data: 32-bit FNV-1a.

    Raises CheckpointError: the text has half a character (a lone surrogate), which no kubelet writes.
    """
    try:
        data = text.encode()
    except UnicodeEncodeError as error:
        raise CheckpointError(HALF_CHARACTER) from error
    state = _FNV_OFFSET
    for byte in data:
        state = ((state ^ byte) * _FNV_PRIME) & 0xFFFFFFFF
    return state


def read_checksum(value: object) -> int:
    """Take the stated checksum; 0 if it is left out, as in Go.

    Raises CheckpointError: it is not an unsigned 64-bit integer.
    """
    if value is None:
        return 0
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _MAX_CHECKSUM:
        raise CheckpointError("its checksum is not an unsigned integer")
    return value


def read_text(value: object, where: str) -> str:
    """Take a text; empty if it is left out, as in Go.

    Raises CheckpointError: it is something else.
    """
    if value is None:
        return ""
    if not isinstance(value, str):
        raise CheckpointError(f"{where} is not a text but {_kind(value)}")
    return value


def read_map(value: object, where: str) -> dict[str, Any] | None:
    """Take an object or null.

    Raises CheckpointError: it is something else.
    """
    if value is None or isinstance(value, dict):
        return value
    raise CheckpointError(f"{where} is not an object but {_kind(value)}")


def read_list(value: object, where: str) -> list[Any] | None:
    """Take a list or null.

    Raises CheckpointError: it is something else.
    """
    if value is None or isinstance(value, list):
        return value
    raise CheckpointError(f"{where} is not a list but {_kind(value)}")


def read_texts(value: object, where: str) -> list[str] | None:
    """Take a list of texts, or null.

    Raises CheckpointError: it is something else, or an entry is not a text.
    """
    items = read_list(value, where)
    return None if items is None else [read_text(item, f"{where}[{index}]") for index, item in enumerate(items)]


def read_bytes(value: object, where: str) -> bytes | None:
    """Take bytes written as base64, or null.

    Raises CheckpointError: it is not base64.
    """
    if value is None:
        return None
    try:
        return base64.b64decode(read_text(value, where), validate=True)
    except (binascii.Error, ValueError) as error:
        raise CheckpointError(f"{where} is not base64: {error}") from error


def show_list(items: Iterable[str] | None) -> str:
    """Print a slice as Go's spew does: `[a b]`."""
    return NIL if items is None else f"[{' '.join(items)}]"


def show_map(entries: Mapping[_Key, _Value] | None, show: Callable[[_Value], str]) -> str:
    """Print a map as Go's spew does, its keys ascending: `map[a:1 b:2]`."""
    if entries is None:
        return NIL
    return f"map[{' '.join(f'{key}:{show(entries[key])}' for key in sorted(entries))}]"


def show_bytes(data: bytes | None) -> str:
    """Print bytes as Go's spew does: `[10 2 200]`."""
    return NIL if data is None else f"[{' '.join(map(str, data))}]"


def _kind(value: object) -> str:
    """Name the kind of a JSON value, not its content, which may be huge."""
    names = {dict: "an object", list: "a list", str: "a text", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")
