"""Logs: one line a record, as JSON or as text, with what the current call is about.

`about()` names the review, Pod and trace of the work inside it; every line that is logged there carries them. docs/
operations.md lists the members of a line.
"""

import json
import logging
import sys
from collections.abc import Mapping
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Final, Literal

import orjson

Style = Literal["json", "text"]

_OWN: Final = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}
_MAX_TEXT: Final[Mapping[str, int]] = {"message": 4_000, "trace": 16_000}  # characters; a line has a bound
_MAX_OTHERS: Final = 1_000
_MAX_MEMBERS: Final = 24
_CUT: Final = " ..."
_EMPTY: Final[Mapping[str, str]] = {}
_NOW: Final[ContextVar[Mapping[str, str]]] = ContextVar("koordgate_log_about", default=_EMPTY)


class about:  # noqa: N801 it is used as a function
    """Let each line that is logged inside carry these members; empty ones are left out."""

    __slots__ = ("_members", "_token")

    def __init__(self, **members: str) -> None:
        self._members = members

    def __enter__(self) -> None:
        known = {name: value for name, value in self._members.items() if value}
        self._token = _NOW.set({**_NOW.get(), **known})

    def __exit__(self, *_: object) -> None:
        _NOW.reset(self._token)


def now() -> Mapping[str, str]:
    """What the current call is about."""
    return _NOW.get()


def cut(text: str, most: int) -> str:
    """Shorten a text to at most `most` characters, and show that it was."""
    return text if len(text) <= most else text[: most - len(_CUT)] + _CUT


def _members(record: logging.LogRecord, component: str, formatter: logging.Formatter) -> dict[str, object]:
    """The members of a line, in their order. What a stranger named is cut."""
    line: dict[str, object] = {
        "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
        "level": record.levelname.lower(),
        "component": component,
        "logger": record.name,
        "message": record.getMessage(),
    }
    if not component:
        del line["component"]
    own = {key: value for key, value in record.__dict__.items() if key not in _OWN}
    for key, value in list({**_NOW.get(), **own}.items())[:_MAX_MEMBERS]:
        line.setdefault(key, value if value is None or isinstance(value, (bool, int, float)) else str(value))
    if record.exc_info:
        line["trace"] = formatter.formatException(record.exc_info)
    return {
        key: cut(value, _MAX_TEXT.get(key, _MAX_OTHERS)) if isinstance(value, str) else value
        for key, value in line.items()
    }


class JsonFormatter(logging.Formatter):
    """Writes a record and its `extra` members as one JSON object."""

    def __init__(self, component: str = "") -> None:
        super().__init__()
        self._component = component

    def format(self, record: logging.LogRecord) -> str:
        """Format one record."""
        line = _members(record, self._component, self)
        try:
            return orjson.dumps(line, default=str, option=orjson.OPT_NON_STR_KEYS).decode()
        except TypeError:  # a file's name that is not UTF-8, or an integer of more than 64 bits: the line is not lost
            return json.dumps({key: _encodable(value) for key, value in line.items()}, default=str)


class TextFormatter(logging.Formatter):
    """Writes the same as one line for people: time, level, logger, message, and the other members as name=value."""

    def __init__(self, component: str = "") -> None:
        super().__init__()
        self._component = component

    def format(self, record: logging.LogRecord) -> str:
        """Format one record; line breaks in a value are escaped, so that nobody can forge a line."""
        line = _members(record, self._component, self)
        begin = [str(line.pop("time")), str(line.pop("level")).upper(), str(line.pop("logger"))]
        message = _plain(str(line.pop("message")))
        rest = [f"{_plain(str(key))}={_quoted(value)}" for key, value in line.items()]
        return " ".join([*begin, message, *rest])


def _encodable(value: object) -> object:
    """A value, as UTF-8 can have it."""
    return value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value


def _quoted(value: object) -> str:
    """A value as one word; in quotes if it has blanks or anything that is not printable."""
    text = str(value)
    return text if text and text.isprintable() and not set(' "=') & set(text) else json.dumps(text)


def _plain(text: str) -> str:
    """A text without line breaks and other characters that are not printable."""
    return text if text.isprintable() else text.encode("unicode_escape").decode()


_QUIET: Final = {"aiohttp.access": logging.WARNING, "opentelemetry": logging.ERROR, "urllib3": logging.ERROR}
_STYLES: Final = {"json": JsonFormatter, "text": TextFormatter}


def start(level: str, component: str = "", style: Style = "json") -> None:
    """Send the logs of this process to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_STYLES[style](component))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    for quiet, least in _QUIET.items():
        logging.getLogger(quiet).setLevel(least)
