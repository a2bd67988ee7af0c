"""YAML as Kubernetes reads it: an unquoted time is text, 12:30 is text too, and no key occurs twice in a mapping.

Nearly all manifests consist of plain mappings, lists and scalars. These are built from libyaml's events one by one, so
that a large file needs little more memory than its objects. A document with anchors, tags or merge keys is composed by
PyYAML; both ways give the same objects.
"""

import contextlib
import re
from collections.abc import Iterator
from typing import Any, Final

import yaml

try:
    from yaml import CSafeLoader as _Fast
except ImportError:  # a PyYAML built without libyaml
    from yaml import SafeLoader as _Fast  # type: ignore[assignment]

_BOOLS: Final = {
    text: value
    for words, value in ((("yes", "true", "on"), True), (("no", "false", "off"), False))
    for word in words
    for text in (word, word.capitalize(), word.upper())
}
_NULLS: Final = frozenset({"~", "null", "Null", "NULL", ""})
_INT: Final = re.compile(r"^[-+]?(?:0x[0-9a-fA-F]+|0[0-7]*|[1-9][0-9]*)$")
_FLOAT: Final = re.compile(r"^[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]+)?$")
_NUMERIC: Final = frozenset("-+.0123456789")
_DEEPEST: Final = 1000  # levels of a document that PyYAML composes
_SPECIAL: Final = frozenset({"<<", "="})  # a merge key, and a value that PyYAML does not construct


class _Loader(_Fast):
    """PyYAML's own loader with these rules for scalars, and for keys that occur twice."""

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:  # noqa: FBT001, FBT002 as PyYAML has it
        """Make a mapping; what a merge key brings may be stated again."""
        keys = [one.value for one, _ in node.value if isinstance(one, yaml.ScalarNode) and one.value not in _SPECIAL]
        if twice := next((key for at, key in enumerate(keys) if key in keys[:at]), None):
            raise _twice(twice, node.start_mark)
        return super().construct_mapping(node, deep)


def _twice(key: object, mark: Any) -> yaml.YAMLError:
    return yaml.constructor.ConstructorError(None, None, f"the key {key!r} occurs twice; keep one", mark)


_SCALARS: Final = ("timestamp", "int", "float")
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag.rpartition(":")[2] not in _SCALARS]
    for first, resolvers in _Fast.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver("tag:yaml.org,2002:int", _INT, list("-+0123456789"))
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+.0123456789"))


class _UnusualError(Exception):
    """A document has something that only PyYAML composes."""


def load_all(text: str) -> Iterator[tuple[object, bool]]:
    """Read all documents; each with whether it may share parts, which aliases do.

    Raises:
        yaml.YAMLError: it is not YAML.
        RecursionError: it is nested too deeply.
    """
    number = 0
    parser = _Loader(text)
    try:
        while True:
            try:
                document = _document(parser)
            except _UnusualError:
                break
            if document is None:
                return
            yield document[0], False
            number += 1
    finally:
        parser.dispose()
    _refuse_deep(text)
    for at, composed in enumerate(yaml.load_all(text, _Loader)):
        if at >= number:
            yield composed, True


def _refuse_deep(text: str) -> None:
    """Raise RecursionError where libyaml would compose documents by calls that no stack has room for."""
    depth = 0
    with contextlib.suppress(yaml.YAMLError):  # composing finds it too, after the documents before it
        for event in yaml.parse(text, _Loader):
            if isinstance(event, yaml.CollectionStartEvent):
                depth += 1
            elif isinstance(event, yaml.CollectionEndEvent):
                depth -= 1
            if depth > _DEEPEST:
                raise RecursionError(f"more than {_DEEPEST} levels of nesting")


def _document(parser: _Loader) -> tuple[object] | None:
    """Build the next document from its events; None at the end."""
    get = parser.get_event
    event = get()
    while isinstance(event, (yaml.StreamStartEvent, yaml.DocumentEndEvent)):
        event = get()
    if isinstance(event, yaml.StreamEndEvent):
        return None
    made = _value(get(), get)
    return (made,)


def _value(event: Any, get: Any) -> object:
    kind = type(event)
    if kind is yaml.ScalarEvent:
        return _scalar(event)
    if event.anchor is not None or event.tag is not None:  # an alias has the anchor that it names
        raise _UnusualError
    if kind is yaml.SequenceStartEvent:
        items = []
        while type(event := get()) is not yaml.SequenceEndEvent:
            items.append(_scalar(event) if type(event) is yaml.ScalarEvent else _value(event, get))
        return items
    members: dict[Any, object] = {}
    while type(event := get()) is not yaml.MappingEndEvent:
        if type(event) is not yaml.ScalarEvent:
            raise _UnusualError  # a key that is no scalar
        key = _scalar(event)
        if key in members:
            raise _twice(key, event.start_mark)
        event = get()
        members[key] = _scalar(event) if type(event) is yaml.ScalarEvent else _value(event, get)
    return members


def _scalar(event: Any) -> object:
    if event.anchor is not None or event.tag is not None:
        raise _UnusualError
    text: str = event.value
    if not event.implicit[0]:  # it is quoted
        return text
    first = text[:1]
    if first in _NUMERIC:
        return _number(text)
    if text in _NULLS:
        return None
    if text in _SPECIAL:
        raise _UnusualError
    return _BOOLS.get(text, text)


def _number(text: str) -> object:
    if _INT.match(text):
        sign, digits = (-1 if text.startswith("-") else 1), text.lstrip("+-")
        if digits.startswith("0x"):
            return sign * int(digits, 16)
        return sign * int(digits, 8 if digits.startswith("0") else 10)
    if _FLOAT.match(text):
        return float(text)
    return text
