"""A node that the index excludes and `place()` accepts: always a bug, which is counted and logged reproducibly."""

import json
import logging
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any, Final

from allocator.vocabulary.asks import PodRequest
from allocator.vocabulary.devicetype import DeviceType
from allocator.vocabulary.node import NodeSnapshot

_LOG: Final = logging.getLogger(__name__)
_MAX_CHARACTERS: Final = 16_384  # of a request or a node in a log line
_MAX_REMEMBERED: Final = 256  # (node, request) pairs that were logged; when full, all are forgotten and logged again


class Contradictions:
    """Reports contradictions: each is counted, and logged once per node and request."""

    def __init__(self, count: Callable[[], object]) -> None:
        self._count = count
        self._logged: set[tuple[str, PodRequest]] = set()

    def __call__(self, request: PodRequest, node: NodeSnapshot) -> None:
        """Report that the index excludes a node on which `place()` accepts a request."""
        self._count()
        key = (node.name, request)
        if key in self._logged:
            return
        if len(self._logged) >= _MAX_REMEMBERED:
            self._logged.clear()
        self._logged.add(key)
        _LOG.error(
            "the index excludes a node that place() accepts; the node is offered all the same. This is a bug: please "
            "report it with this line",
            extra={"node": node.name, "request": compact(request), "snapshot": compact(node)},
        )


def compact(value: object, most: int = _MAX_CHARACTERS) -> str:
    """Write a value of the core as JSON without default values, cut off after `most` characters."""
    text = json.dumps(_plain(value), separators=(",", ":"))
    return text if len(text) <= most else f"{text[:most]}... ({len(text)} characters)"


def _plain(value: Any) -> Any:
    if isinstance(value, DeviceType):
        return value.name
    if is_dataclass(value) or hasattr(value, "_fields"):
        return {name: _plain(held) for name, held in _stated(value)}
    if isinstance(value, Mapping):
        return {str(key): _plain(held) for key, held in value.items()}
    if isinstance(value, AbstractSet):
        return sorted(map(str, value))
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    return value if value is None or isinstance(value, (str, int)) else str(value)


def _stated(value: Any) -> Iterator[tuple[str, Any]]:
    """Go through the fields of a dataclass or named tuple that are not derived and do not have their default."""
    if not is_dataclass(value):
        defaults = value._field_defaults
        for name, held in value._asdict().items():
            if name not in defaults or held != defaults[name]:
                yield name, held
        return
    for one in fields(value):
        held = getattr(value, one.name)
        if one.init and one.compare and not _is_default(one, held):
            yield one.name, held


def _is_default(field: "Field[Any]", held: object) -> bool:
    if field.default is not MISSING:
        return bool(held == field.default)
    return field.default_factory is not MISSING and bool(held == field.default_factory())
