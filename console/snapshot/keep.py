"""What is kept of an object: an allow-list, stated as a shape (pure).

A shape names each field that is kept, and how. What no shape names is left out, whatever it is called and however deep
it is, so that a field that nobody here knows gets into no snapshot.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from console.snapshot.names import Namer

Raw = dict[str, Any]


class _Dropped:
    """Nothing is kept."""


DROPPED: Final = _Dropped()
Shape = Callable[[object, Namer], object]
"""Returns what is kept of a value, or `DROPPED`."""


def plain(value: object, _names: Namer) -> object:
    """Keep a text, a number or a truth value."""
    return value if isinstance(value, str | int | float) else DROPPED


def name(value: object, names: Namer) -> object:
    """Keep the name of an object that people named."""
    return names.name(value) if isinstance(value, str) else DROPPED


def label_key(value: object, names: Namer) -> object:
    """Keep the key of a label."""
    return names.key(value) if isinstance(value, str) else DROPPED


def path(value: object, names: Namer) -> object:
    """Keep a name, or namespace/name."""
    return "/".join(map(names.name, value.split("/"))) if isinstance(value, str) else DROPPED


def message(value: object, names: Namer) -> object:
    """Keep a sentence, which may name objects."""
    return value if isinstance(value, str) and not names.hides else DROPPED


def labels(value: object, names: Namer) -> object:
    """Keep labels, or what selects by them: every key with a plain value."""
    if not isinstance(value, Mapping):
        return DROPPED
    return {names.key(key): names.value(key, of) for key, of in value.items() if isinstance(of, str)}


def label(value: object, names: Namer) -> object:
    """Keep an object with a key, and a value or values of it: a taint, a toleration, or part of a selector."""
    if not isinstance(value, Mapping):
        return DROPPED
    stated = value.get("key")
    of = stated if isinstance(stated, str) else ""
    kept: Raw = {"key": names.key(of)} if of else {}
    for field in ("operator", "effect"):
        if isinstance(value.get(field), str):
            kept[field] = value[field]
    if isinstance(value.get("value"), str):
        kept["value"] = names.value(of, value["value"])
    if isinstance(value.get("values"), list):
        kept["values"] = [names.value(of, one) for one in value["values"] if isinstance(one, str)]
    return kept


def fields(plains: str = "", named: str = "", /, **shapes: Shape) -> Shape:
    """Keep these fields of an object: plain ones, the names of objects, and those with a shape of their own."""
    known = {**dict.fromkeys(plains.split(), plain), **dict.fromkeys(named.split(), name), **shapes}

    def keep(value: object, names: Namer) -> object:
        if not isinstance(value, Mapping):
            return DROPPED
        found = ((key, shape(value[key], names)) for key, shape in known.items() if key in value)
        return {key: kept for key, kept in found if kept is not DROPPED}

    return keep


def each(shape: Shape) -> Shape:
    """Keep a list, and of each of its items what the shape keeps."""

    def keep(value: object, names: Namer) -> object:
        if not isinstance(value, list):
            return DROPPED
        return [kept for kept in (shape(one, names) for one in value) if kept is not DROPPED]

    return keep


def keyed(shape: Shape) -> Shape:
    """Keep an object whose keys are data, such as amounts by resource."""

    def keep(value: object, names: Namer) -> object:
        if not isinstance(value, Mapping):
            return DROPPED
        found = ((key, shape(of, names)) for key, of in value.items() if isinstance(key, str))
        return {key: kept for key, kept in found if kept is not DROPPED}

    return keep


amounts: Final = keyed(plain)
texts: Final = each(plain)


def object_of(shape: Shape, obj: Mapping[str, Any], names: Namer) -> Raw:
    """What a shape keeps of an object."""
    kept = shape(obj, names)
    return kept if isinstance(kept, dict) else {}
