"""Files of YAML and JSON, read within bounds, and the settings of an installation in them.

YAML is built from libyaml's events one by one, with the scalars of YAML 1.1 that Kubernetes reads: ten times as fast as
PyYAML's own constructor, and a large file needs little more memory than its objects.

Of settings those of `--config` come first, then those of the installation whose ConfigMap is in the input, as in a
snapshot. Where there are neither, a person wants to know what is possible: every dialect is on.
"""

import gzip
import json
import re
import sys
import zlib
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

import orjson
import yaml

from allocator.vocabulary.dialects import PEERS
from console.reading import CONFIG_KEY, RELEASE
from koordgate.settings import SettingsError
from webhook import settings
from webhook.settings import DialectSettings, WebhookSettings

try:
    from yaml import CSafeLoader as _Parser
except ImportError:  # a PyYAML built without libyaml
    from yaml import SafeLoader as _Parser  # type: ignore[assignment]

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
_DEEPEST: Final = 250  # levels of a document; JSON is written to about as many
_MERGE: Final = "<<"
_TAG: Final = "tag:yaml.org,2002:"
_TAGS: Final = frozenset({f"{_TAG}{name}" for name in ("int", "float", "bool", "null", "seq", "map")})


def load_all(text: str) -> Iterator[object]:
    """Read all documents.

    Raises:
        yaml.YAMLError: it is not YAML, or has what JSON has not.
        RecursionError: it is nested too deeply.
    """
    events = yaml.parse(text, _Parser)
    for event in events:
        if isinstance(event, yaml.DocumentStartEvent):
            yield _value(next(events), events, {})


def _value(event: Any, events: Iterator[Any], anchors: dict[str, object], depth: int = 1) -> object:
    """Build the value that begins with an event; its anchor is known after it, so that nothing contains itself."""
    kind = type(event)
    made: object
    if kind is yaml.AliasEvent:
        if event.anchor not in anchors:
            raise _wrong(f"the alias {event.anchor!r} names nothing before it", event)
        return anchors[event.anchor]
    if kind is yaml.ScalarEvent:
        made = _scalar(event)
    elif depth > _DEEPEST:
        raise RecursionError(f"more than {_DEEPEST} levels of nesting")
    elif event.tag is not None and event.tag not in _TAGS:
        raise _wrong(f"JSON has nothing for the tag {event.tag}", event)
    elif kind is yaml.SequenceStartEvent:
        items: list[object] = []
        while type(inner := next(events)) is not yaml.SequenceEndEvent:
            items.append(_value(inner, events, anchors, depth + 1))
        made = items
    else:
        made = _mapping(events, anchors, depth + 1)
    if event.anchor is not None:
        anchors[event.anchor] = made
    return made


def _mapping(events: Iterator[Any], anchors: dict[str, object], depth: int) -> dict[Any, object]:
    members: dict[Any, object] = {}
    merged: list[Any] = []
    while type(event := next(events)) is not yaml.MappingEndEvent:
        key = _value(event, events, anchors, depth)
        if isinstance(key, list | dict):
            raise _wrong("a key is no scalar", event)
        value = _value(next(events), events, anchors, depth)
        if key == _MERGE and event.implicit[0]:
            merged += value if isinstance(value, list) else [value]
        elif key in members:
            raise _wrong(f"the key {key!r} occurs twice; keep one", event)
        else:
            members[key] = value
    if not all(isinstance(one, dict) for one in merged):
        raise _wrong("what is merged is no mapping", event)
    # The first of them wins, and what is stated beside the merge key wins over all.
    return {key: value for one in (*reversed(merged), members) for key, value in one.items()} if merged else members


def _wrong(what: str, event: Any) -> yaml.YAMLError:
    return yaml.constructor.ConstructorError(None, None, what, event.start_mark)


def _scalar(event: Any) -> object:
    text: str = event.value
    if event.tag is not None and event.tag not in _TAGS:
        if event.tag not in {f"{_TAG}str", "!"}:
            raise _wrong(f"JSON has nothing for the tag {event.tag}", event)
        return text
    if event.tag is None and not event.implicit[0]:  # it is quoted
        return text
    if text[:1] in _NUMERIC:
        return _number(text)
    return None if text in _NULLS else _BOOLS.get(text, text)


def _number(text: str) -> object:
    if _INT.match(text):
        sign, digits = (-1 if text.startswith("-") else 1), text.lstrip("+-")
        if digits.startswith("0x"):
            return sign * int(digits, 16)
        return sign * int(digits, 8 if digits.startswith("0") else 10)
    return float(text) if _FLOAT.match(text) else text


STDIN: Final = "-"
_STDIN: Final = "standard input"
_BETWEEN: Final = re.compile(r"^---(?=\s*$)", re.MULTILINE)
_SOMETHING: Final = re.compile(r"\S")
_JSON: Final = ".json"
_SUFFIXES: Final = (".yaml", ".yml", _JSON)
_GZIP: Final = ".gz"
_MAX_BYTES: Final = 2**30  # of one file: snapshots of 100,000 Pods have less than 200 MB
_MAX_VALUES: Final = 1_000_000  # of one document, where aliases multiply them
_MARKS: Final = ((BOM_UTF8, "utf-8"), (BOM_UTF16_LE, "utf-16-le"), (BOM_UTF16_BE, "utf-16-be"))


class _Readable(Protocol):
    def read(self, size: int, /) -> bytes:
        """Read so many bytes, or all."""


class InputError(ValueError):
    """Input that cannot be used; the message names the file, the document, and what to do."""


def read_documents(path: str) -> Iterator[tuple[str, object]]:
    """Read all documents of a file, a folder or `-`, whatever they are; where each is, and the document.

    Raises:
        InputError: something cannot be read.
    """
    for source, text in _texts(path):
        yield from _documents(source, text)


def _texts(path: str) -> Iterator[tuple[str, str]]:
    if path == STDIN:
        yield _STDIN, _text(_STDIN, _bounded(sys.stdin.buffer, _STDIN))
        return
    given = Path(path)
    files: Sequence[Path] = (given,)
    if given.is_dir():
        files = sorted(file for file in given.iterdir() if file.suffix in _SUFFIXES and file.is_file())
        if not files:
            raise InputError(f"{path}: no {', '.join(_SUFFIXES)} file in this folder; give one with Kubernetes objects")
    for file in files:
        try:
            with gzip.open(file) if file.suffix == _GZIP else file.open("rb") as opened:
                body = _bounded(opened, str(file))
        except (EOFError, zlib.error) as error:
            raise InputError(f"{file}: is not a whole gzip file ({error}); write or copy it again") from error
        except OSError as error:
            why = error.strerror or str(error)
            raise InputError(f"{file}: cannot be read ({why}); give a file of Kubernetes objects") from error
        yield str(file), _text(str(file), body)


def _bounded(opened: _Readable, name: str) -> bytes:
    """Read all, up to a bound."""
    body = opened.read(_MAX_BYTES + 1)
    if len(body) > _MAX_BYTES:
        unpacked = " when it is unpacked" if name.endswith(_GZIP) else ""
        raise InputError(f"{name}: has more than {_MAX_BYTES} bytes{unpacked}; give fewer objects, or several files")
    return body


def _text(source: str, body: bytes) -> str:
    """Decode UTF-8, and UTF-16 with its mark, as Windows' shells write it."""
    mark, coding = next(((mark, coding) for mark, coding in _MARKS if body.startswith(mark)), (b"", "utf-8"))
    try:
        return body[len(mark) :].decode(coding)
    except UnicodeDecodeError as error:
        raise InputError(f"{source}: is not UTF-8 text ({error.reason}); give a YAML or JSON file") from error


def _documents(source: str, text: str) -> Iterator[tuple[str, object]]:
    named_json = source.removesuffix(_GZIP).endswith(_JSON)
    if named_json or text.lstrip()[:1] in {"{", "["}:
        try:
            found = _json_values(text)
        except (ValueError, RecursionError) as error:
            if named_json:
                raise InputError(f"{source}: {_not_json(error)}") from error
        else:
            yield from ((f"{source}, document {number}", value) for number, value in enumerate(found, 1))
            return
    number = 0
    try:
        for number, document in enumerate(load_all(text), 1):
            where = f"{source}, document {number}"
            # Without aliases no document has more values than characters.
            yield where, _as_json(document, where, max(_MAX_VALUES, len(text)) if "*" in text else None)
    except yaml.YAMLError as error:
        reason = " ".join(str(error).split())
        raise InputError(f"{source}, document {number + 1}: not YAML; correct it: {reason}{_hint(text)}") from error
    except InputError:
        raise
    except (RecursionError, ValueError) as error:
        raise InputError(f"{source}, document {number + 1}: cannot be written as JSON ({error}); correct it") from error


def _as_json(document: object, where: str, most: int | None) -> object:
    """Kubernetes treats YAML as JSON. The conversion also copies what an alias shares, up to so many values."""
    try:
        if most is not None and _values(document, {}) > most:
            raise InputError(f"{where}: its aliases make it too large; write less with aliases")
        return orjson.loads(orjson.dumps(document, option=orjson.OPT_NON_STR_KEYS))
    except (orjson.JSONEncodeError, RecursionError) as error:
        raise InputError(f"{where}: cannot be written as JSON ({error}); correct it") from error


def _not_json(error: ValueError | RecursionError) -> str:
    """Say where a file is not the JSON that its name promises."""
    if isinstance(error, json.JSONDecodeError):
        where = f"line {error.lineno}, column {error.colno}: {error.msg}"
        return f"not JSON ({where}); correct it; if it is YAML, name it .yaml"
    return f"not JSON; correct it: {error}"


def _json_values(text: str) -> list[object]:
    """Read JSON: one value, one a line, or several one after the other, as jq prints them, or with `---` between them.

    Raises:
        json.JSONDecodeError: it is not JSON, from this place on.
        ValueError: it has a number that JSON does not have.
        RecursionError: it is nested too deeply.
    """
    try:
        return [_whole(text)]
    except orjson.JSONDecodeError:
        pass
    try:
        return [_whole(line) for line in text.splitlines() if line.strip()]
    except orjson.JSONDecodeError:
        pass
    found: list[object] = []
    text = _BETWEEN.sub("   ", text)  # no JSON text has a line break in it, so that this is between two values
    read = json.JSONDecoder(parse_constant=_refuse, object_pairs_hook=_once).raw_decode
    begin = _SOMETHING.search(text)
    while begin is not None:
        value, end = read(text, begin.start())
        found.append(value)
        begin = _SOMETHING.search(text, end)
    return found


def _whole(text: str) -> object:
    """Read one value. orjson keeps the last of two equal keys, so that fewer quotation marks are left then."""
    found: object = orjson.loads(text)
    if text.count('"') != orjson.dumps(found).count(b'"'):
        return json.loads(text, object_pairs_hook=_once)
    return found


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    made = dict(pairs)
    if len(made) != len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for at, key in enumerate(keys) if key in keys[:at])
        raise ValueError(f"the key {twice!r} occurs twice; keep one")
    return made


def _refuse(name: str) -> object:
    raise ValueError(f"{name} is no number in JSON")


def _hint(text: str) -> str:
    """What else a text that is not YAML may be."""
    if "{{" in text:
        return "; it looks like a template: give what `helm template` or `kubectl kustomize` makes of it"
    if "\t" in text:
        return "; it has tabs, and YAML is indented by spaces"
    return ""


def _values(part: object, counted: dict[int, int]) -> int:
    """How many values a document has when what its aliases share is copied."""
    if not isinstance(part, dict | list):
        return 1
    if id(part) not in counted:
        inner = part.values() if isinstance(part, dict) else part
        counted[id(part)] = 1 + sum(_values(one, counted) for one in inner)
    return counted[id(part)]


def every_dialect() -> WebhookSettings:
    """Settings in which every dialect is on whose unit of memory is known."""
    on = {one.name: DialectSettings(enabled=True) for one in PEERS if one.unit or not one.sized}
    return WebhookSettings(dialects=on)


def is_settings(obj: Mapping[str, Any], kind: str) -> bool:
    """Whether an object has the settings of an installation."""
    metadata = obj.get("metadata")
    return kind == "ConfigMap" and isinstance(metadata, Mapping) and metadata.get("name") == RELEASE


def stated_among(objects: Iterable[tuple[str, Mapping[str, Any], str]]) -> Mapping[str, Any] | None:
    """The first ConfigMap with settings; None without one."""
    return next((obj for _, obj, kind in objects if is_settings(obj, kind)), None)


def settings_of(found: Mapping[str, Any] | None) -> WebhookSettings:
    """The settings in a ConfigMap; without one, those in which every dialect is on.

    Raises:
        InputError: they are wrong.
    """
    if found is None:
        return every_dialect()
    data = found.get("data")
    text = data.get(CONFIG_KEY) if isinstance(data, Mapping) else None
    try:
        return settings.parse(text if isinstance(text, str) else "", f"ConfigMap {RELEASE}")
    except SettingsError as error:
        raise InputError(str(error)) from error
