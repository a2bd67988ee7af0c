"""What is wrong in a settings file, all of it at once and in words (pure).

msgspec ends at the first fault. Each fault is therefore taken out, and the rest is read again.
"""

import copy
import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import inspect

from allocator.vocabulary.devicetype import DeviceTypeError
from allocator.vocabulary.excerpt import excerpt
from allocator.vocabulary.meant import did_you_mean

MAX_FAULTS: Final = 20
"""Faults of one file that are told."""

_AT: Final = re.compile(r"^(?P<what>.*?)(?: - at (?:`(?P<key>key)` in )?`\$(?P<path>[^`]*)`)?$", re.DOTALL)
_STEP: Final = re.compile(r"\.([^.\[]+)|\[(\d+|\.\.\.)\]")
_UNKNOWN: Final = re.compile(r"Object contains unknown field `(.*)`", re.DOTALL)
_MISSING: Final = re.compile(r"Object missing required field `(.*)`", re.DOTALL)
_ENUM: Final = re.compile(r"Invalid enum value .*", re.DOTALL)
_EXPECTED: Final = re.compile(r"Expected (.*?)(?:, got `.*`)?", re.DOTALL)
_WORDS: Final = {
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "bool": "true or false",
    "array": "a list",
    "object": "a section with keys",
    "null": "nothing",
}
_KINDS: Final = ((bool, "true or false"), (str, "text"), (dict, "a section with keys"), (list, "a list"))
_MAX_INT: Final = 2**63
_Path = tuple[str | int, ...]


class _Fault(NamedTuple):
    """A fault as msgspec tells it."""

    what: str
    path: _Path  # where, in keys and places of lists
    of_key: bool = False  # whether a key is wrong, and not its value


def faults(raw: Any, kind: type[msgspec.Struct]) -> list[str]:
    """Say what is wrong, a sentence each; at most `MAX_FAULTS`.

    What contradicts something else in its section is told where nothing else there is wrong.
    """
    left, found = copy.deepcopy(raw), list[str]()
    spoilt: set[_Path] = set()
    for _ in range(2 * MAX_FAULTS):
        fault = _first(left, kind)
        if fault is None or len(found) == MAX_FAULTS:
            break
        told = _told(left, kind, fault)
        stated = bool(_EXPECTED.match(fault.what) or _ENUM.fullmatch(fault.what) or _UNKNOWN.fullmatch(fault.what))
        follows = not stated and any(path[: len(fault.path)] == fault.path for path in spoilt)
        if not follows:
            found.append(told)
        spoilt.add(fault.path)
        if not _taken_out(left, fault):
            break
    return found


def _first(raw: Any, kind: type[msgspec.Struct]) -> _Fault | None:
    try:
        msgspec.convert(raw, kind)
    except (msgspec.ValidationError, DeviceTypeError) as error:
        match = _AT.match(str(error))
        if match is None:
            return _Fault(str(error), ())
        path: _Path = ()
        for name, place in _STEP.findall(match["path"] or ""):
            path += (_among(raw, kind, path, str(error)) if place == "..." else int(place) if place else name,)
        return _Fault(match["what"], path, bool(match["key"]))
    return None


def _among(raw: Any, kind: type[msgspec.Struct], path: _Path, told: str) -> str:
    """The key of a mapping whose value is wrong, which msgspec does not name: the fault is there with it alone."""
    values = _at(raw, path)
    for key in values if isinstance(values, dict) else ():
        alone = copy.deepcopy(raw)
        section = _at(alone, path)
        for other in [one for one in section if one != key]:
            del section[other]
        try:
            msgspec.convert(alone, kind)
        except (msgspec.ValidationError, DeviceTypeError) as error:
            if str(error) == told:
                return str(key)
    return "..."


def _at(raw: Any, path: _Path) -> Any:
    for step in path:
        try:
            raw = raw[step]
        except (KeyError, IndexError, TypeError):
            return None
    return raw


def _taken_out(raw: Any, fault: _Fault) -> bool:
    """Take what is wrong out, of a list all, so that the places of the others stay; False if it cannot be."""
    path = fault.path
    unknown = _UNKNOWN.fullmatch(fault.what)
    if unknown:
        path += (unknown[1],)
    while path and not (isinstance(path[-1], str) and isinstance(_at(raw, path[:-1]), dict)):
        path = path[:-1]
    section = _at(raw, path[:-1])
    if not path or path[-1] not in section:
        return False
    del section[path[-1]]
    return True


def _told(raw: Any, kind: type[msgspec.Struct], fault: _Fault) -> str:
    where, value = _name(fault.path) or "the settings", _at(raw, fault.path)
    if unknown := _UNKNOWN.fullmatch(fault.what):
        keys = _keys(_type_at(kind, fault.path))
        near = did_you_mean(unknown[1], keys) or f"; the keys there are {', '.join(keys)}"
        return f"{_name((*fault.path, unknown[1]))}: there is no such key{near}"
    if missing := _MISSING.fullmatch(fault.what):
        return f"{where}: {missing[1]} is missing; write it"
    choices = [] if fault.of_key or isinstance(value, dict | list) else _choices(_type_at(kind, fault.path))
    if choices:
        return f"{where}: {_shown(value)} is none of {', '.join(choices)}{did_you_mean(excerpt(value), choices)}"
    if expected := _EXPECTED.fullmatch(fault.what):
        must = re.sub(r"`([^`]*)`", lambda one: _words(one[1]), expected[1])
        if fault.of_key:
            return f"{where}: one of the keys there is not {must}"
        return f"{where}: must be {must}, and is {_shown(value)}"
    return f"{where}: {fault.what}" if fault.path else fault.what


def _words(kinds: str) -> str:
    return " or ".join(_WORDS.get(one, one) for one in kinds.split(" | "))


def _shown(value: Any) -> str:
    """A value as its author finds it in the file."""
    if value is None:
        return "empty"
    if isinstance(value, bool):  # YAML 1.1 reads off, no, on and yes so
        return f"{str(value).lower()} (text needs quotes)"
    if isinstance(value, int) and abs(value) > _MAX_INT:
        return "a longer number"  # Python refuses to print very long ones
    if isinstance(value, dict | list):
        return next(words for kind, words in _KINDS if isinstance(value, kind))
    return f"the text {excerpt(value)!r}" if isinstance(value, str) else excerpt(value)


def _name(path: _Path) -> str:
    """A path as `devices.types[0].name`."""
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path).removeprefix(".")


def _type_at(kind: type[msgspec.Struct], path: _Path) -> inspect.Type:
    found: inspect.Type = inspect.type_info(kind)
    for step in path:
        found = next(_below(found, step), inspect.AnyType())
    return found


def _below(of: inspect.Type, step: str | int) -> Iterator[inspect.Type]:
    for one in _options(of):
        if isinstance(one, inspect.StructType):
            yield from (field.type for field in one.fields if field.encode_name == step)
        elif isinstance(one, inspect.DictType):
            yield one.value_type
        elif isinstance(one, inspect.VarTupleType | inspect.ListType):
            yield one.item_type


def _options(of: inspect.Type) -> tuple[inspect.Type, ...]:
    if isinstance(of, inspect.Metadata):
        return _options(of.type)
    return of.types if isinstance(of, inspect.UnionType) else (of,)


def _keys(of: inspect.Type) -> list[str]:
    return [field.encode_name for one in _options(of) if isinstance(one, inspect.StructType) for field in one.fields]


def _choices(of: inspect.Type) -> list[str]:
    found: list[str] = []
    for one in _options(of):
        if isinstance(one, inspect.EnumType):
            found += [str(each.value) for each in one.cls]
        elif isinstance(one, inspect.LiteralType):
            found += map(str, one.values)
    return found
