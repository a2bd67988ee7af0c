"""Snapshots as files: a List, an object a line, compressed if the name says so."""

import gzip
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import orjson

from console.snapshot.keep import Raw

STDOUT: Final = "-"
_GZIP: Final = ".gz"
_MINE: Final = 0o600  # it names what runs in the cluster


def write(path: str, items: Iterable[Raw]) -> int:
    """Write a snapshot, and return its size in bytes. A file is replaced at once, or left as it is.

    Args:
        path: of the file; `-` for standard output. One that ends in .gz is compressed.
        items: the objects.

    Raises:
        OSError: the file cannot be written.
    """
    lines = b",\n".join(map(orjson.dumps, items))
    text = b'{"apiVersion":"v1","kind":"List","items":[\n' + lines + b"\n]}\n"
    if path == STDOUT:
        sys.stdout.write(text.decode())
        return len(text)
    body = gzip.compress(text, mtime=0) if path.endswith(_GZIP) else text
    target = Path(path)
    part = Path(f"{path}.part")
    part.unlink(missing_ok=True)
    try:
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _MINE), "wb") as file:
            file.write(body)
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)
    return len(body)
