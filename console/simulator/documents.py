"""Documents from files, folders and standard input: YAML, JSON, or JSON values one after the other."""

import gzip
import json
import re
import sys
import zlib
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, Protocol

import orjson
import yaml

from console.simulator.yamltext import load_all

STDIN: Final = "-"
_STDIN: Final = "standard input"
_BETWEEN: Final = re.compile(r"^---(?=\s*$)", re.MULTILINE)
_SOMETHING: Final = re.compile(r"\S")
_JSON: Final = ".json"
_SUFFIXES: Final = (".yaml", ".yml", _JSON)
_GZIP: Final = ".gz"
_MOST_BYTES: Final = 2**30  # of one file: snapshots of 100,000 Pods have less than 200 MB
_MOST_VALUES: Final = 1_000_000  # of one document, where aliases multiply them
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
    body = opened.read(_MOST_BYTES + 1)
    if len(body) > _MOST_BYTES:
        unpacked = " when it is unpacked" if name.endswith(_GZIP) else ""
        raise InputError(f"{name}: has more than {_MOST_BYTES} bytes{unpacked}; give fewer objects, or several files")
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
        for number, (document, shares) in enumerate(load_all(text), 1):
            where = f"{source}, document {number}"
            # Without aliases no document has more values than characters.
            yield where, _as_json(document, where, max(_MOST_VALUES, len(text)) if shares else None)
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
        return f"not JSON; correct it, or name a file of YAML .yaml: {where}"
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
