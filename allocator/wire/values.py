"""Values in JSON from others: each is read as its required type, or the error says what it is instead.

As in Go, `null` counts as left out.
"""

import json
from collections.abc import Callable
from datetime import datetime
from enum import StrEnum
from typing import Any, Final, TypeVar

from allocator.quantity import format_bytes, to_int, to_milli
from allocator.vocabulary.cputopology import MAX_ID, parse
from allocator.vocabulary.outcome import excerpt

UNREADABLE: Final = (ValueError, TypeError, RecursionError)  # what the functions here raise
MAX_TEXT: Final = 2**16
"""Characters of a Pod's annotation that is parsed: it may come from anybody, and all that reads it takes as long."""

MAX_OF_NODE: Final = 2**18
"""Characters of one of a node's objects: Kubernetes' limit for all annotations of an object."""

MAX_CONTAINERS: Final = 256
"""Containers of a Pod, and entries of annotations about them."""

_MAX_ENTRIES: Final = 4096  # of one list, and of all lists of one object; the largest nodes have some thousand

_Read = TypeVar("_Read")
_Choice = TypeVar("_Choice", bound=StrEnum)


class Problems(list[str]):
    """One sentence for each value of an object that could not be read, in order."""

    def __init__(self) -> None:
        super().__init__()
        self._left = _MAX_ENTRIES

    def read(self, where: str, read: Callable[[Any], _Read], value: object, instead: _Read) -> _Read:
        """Read a value; if that fails, note that it is left out and return `instead`."""
        try:
            return read(value)
        except UNREADABLE as error:
            self.append(f"{where}: {error}; left out")
            return instead

    def object(self, where: str, value: Any) -> dict[str, Any]:
        """Read an object; empty if it is left out or wrong."""
        nothing: dict[str, Any] = {}
        return self.read(where, as_object, value, nothing)

    def list(self, where: str, value: Any) -> list[Any]:
        """Read a list; empty if it is left out or wrong, or has more entries than are left of what is read."""
        nothing: list[Any] = []
        found = self.read(where, as_list, value, nothing)
        self._left -= len(found)
        if self._left < 0:
            self.append(f"{where}: with it the object has more than {_MAX_ENTRIES} entries; left out")
            return nothing
        return found

    def each(self, where: str, read: Callable[[Any], _Read], value: Any) -> tuple[_Read, ...]:
        """Read the entries of a list and leave out those that cannot be read."""
        found = []
        for index, entry in enumerate(self.list(where, value)):
            try:
                found.append(read(entry))
            except UNREADABLE as error:
                self.append(f"{where}[{index}]: {error}; left out")
        return tuple(found)


def as_time(text: object) -> int:
    """Read a time of the API server: seconds since the epoch."""
    if not isinstance(text, str):
        raise TypeError(f"a {type(text).__name__} where a time must be")
    try:
        return int(datetime.fromisoformat(text).timestamp())
    except (ValueError, OverflowError) as error:
        raise ValueError(f"{excerpt(text)!r} is no time") from error


def as_json(text: object, most: int = MAX_TEXT) -> Any:
    """Read an annotation's JSON; None if the annotation is absent or empty."""
    if text is None or text == "":
        return None
    try:
        return parse_json(text, most)
    except ValueError as error:
        raise ValueError(f"not JSON ({error})") from error


def parse_json(text: object, most: int = MAX_TEXT, *, once: bool = False) -> Any:
    """Parse JSON that others wrote: the only place that does.

    `once`: whether no object may have a key twice; readers differ in which one counts. Raises ValueError: it is none,
    or too long to be parsed; TypeError: it is no text.
    """
    if not isinstance(text, str):
        raise TypeError(f"a {type(text).__name__} where text must be")
    if len(text) > most:
        raise ValueError(f"more than the {most // 2**10} KiB that are read")
    try:
        return json.loads(text, object_pairs_hook=_once if once else None)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make an object of its members."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key occurs twice")
    return found


def as_object(value: object) -> dict[str, Any]:
    """Read an object."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise TypeError(f"a {type(value).__name__} where an object must be")
    return value


def as_list(value: object, most: int = _MAX_ENTRIES) -> list[Any]:
    """Read a list."""
    if value is None:
        return []
    if not isinstance(value, list):
        raise TypeError(f"a {type(value).__name__} where a list must be")
    if len(value) > most:
        raise ValueError(f"more than {most} entries")
    return value


def as_text(value: object) -> str:
    """Read text that an object in the cluster can hold."""
    if value is None:
        return ""
    if not isinstance(value, str):
        raise TypeError(f"a {type(value).__name__} where text must be")
    value.encode()  # UnicodeEncodeError, a ValueError: a lone surrogate
    return value


def as_flag(value: object) -> bool:
    """Read a boolean, or the text of one, as in the example of the CPU proposal."""
    if value is None or value is False or value == "false":
        return False
    if value is True or value == "true":
        return True
    raise TypeError("neither true nor false")


def as_id(entry: dict[str, Any], key: str) -> int:
    """Read the number of a CPU, core, socket or NUMA node: a required int32, 0 or more."""
    value = entry.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MAX_ID:
        raise ValueError(f"{key} is no whole number from 0 to 2^31-1")
    return value


def as_cpus(value: object) -> int:
    """Read a Linux CPU list as a set, bit i for CPU i."""
    return parse(as_text(value))


def one_of(kind: type[_Choice]) -> Callable[[object], _Choice]:
    """Return a function that reads one of the enum's texts."""

    def choose(value: object) -> _Choice:
        text = as_text(value)
        for choice in kind:
            if choice.value == text:
                return choice
        raise ValueError(f"{excerpt(text)!r} is none of {', '.join(choice for choice in kind if choice)}")

    return choose


def read_amount(resource: str, quantity: object) -> int:
    """Read an amount of a resource: cpu in thousandths, any other as a whole number of its unit."""
    return to_milli(quantity) if resource == "cpu" else to_int(quantity)


def write_amount(resource: str, amount: int) -> str:
    """Write an amount, in the unit of `read_amount`, as a quantity in Kubernetes' canonical form."""
    if resource == "cpu":
        return f"{amount}m" if amount % 1000 else f"{amount // 1000}"
    return format_bytes(amount) if resource == "memory" or resource.startswith("hugepages-") else f"{amount}"


def stated(**fields: Any) -> dict[str, Any]:
    """Return an object with the fields that are not empty."""
    return {key: value for key, value in fields.items() if value}
