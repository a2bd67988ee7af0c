"""The files of the page: as they are served, and as one file with the data in it."""

import base64
import hashlib
import mimetypes
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

import orjson

_FOLDER: Final = Path(__file__).resolve().parent / "static"
_INDEX: Final = "index.html"
_STYLE: Final = '<link rel="stylesheet" href="style.css">'
_DATA: Final = '<script type="application/json" id="data"></script>'
SCRIPTS: Final = (
    "vendor/preact-10.29.8.js",
    "vendor/preact-hooks-10.29.8.js",
    "vendor/htm-3.1.1.js",
    "model.js",
    "source.js",
    "topology.js",
    "cards.js",
    "nodes.js",
    "side.js",
    "app.js",
)
"""In the order in which they are run; index.html names the same."""

_CSP: Final = "default-src 'none'; base-uri 'none'; form-action 'none'; img-src data:"
SERVED_POLICY: Final = f"{_CSP}; script-src 'self'; style-src 'self'; connect-src 'self'; frame-ancestors 'none'"
"""The Content-Security-Policy of the page as it is served: nothing inline, nothing from elsewhere."""


class PageFile(NamedTuple):
    """A file to serve."""

    body: bytes
    type: str  # the media type, with the character set of text
    etag: str  # changes with the bytes


@cache
def files() -> dict[str, PageFile]:
    """The files by path below the page; "" is the page itself.

    Raises FileNotFoundError: the installation lacks one.
    """
    found = {name: _read(name) for name in (*SCRIPTS, "style.css")}
    return {"": _read(_INDEX), **found}


def _read(name: str) -> PageFile:
    try:
        body = (_FOLDER / name).read_bytes()
    except FileNotFoundError as error:
        raise FileNotFoundError(f"no file {name} in {_FOLDER}; install again") from error
    kind = "text/javascript" if name.endswith(".js") else mimetypes.guess_type(name)[0] or "text/plain"
    return PageFile(body, f"{kind}; charset=utf-8", hashlib.sha256(body).hexdigest()[:16])


def single(document: dict[str, Any]) -> str:
    """The page with this document in it, as one file that needs no server.

    Its policy admits the scripts and the style by their hashes and nothing else.
    """
    known = files()
    page = known[""].body.decode()
    style = known["style.css"].body.decode()
    scripts = [(name, known[name].body.decode()) for name in SCRIPTS]
    hashes = " ".join(f"'sha256-{_hash(text)}'" for _, text in scripts)
    policy = f"{_CSP}; script-src {hashes}; style-src 'sha256-{_hash(style)}'"
    page = page.replace(
        _STYLE, f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n<style>{style}</style>'
    )
    # Within a script element only these characters could end it, or open a comment that hides the end.
    data = orjson.dumps(document).decode().replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    page = page.replace(_DATA, f'<script type="application/json" id="data">{data}</script>')
    for name, text in scripts:
        page = page.replace(f'<script defer src="{name}"></script>', f"<script>{text}</script>")
    return page


def _hash(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
