"""What is wrong with a kubeconfig, for people, where the library that reads it says only which key it missed."""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

import yaml

_MAX_NAMED: Final = 16
_MAX_BYTES: Final = 4 * 2**20  # a cluster's entry with its CA takes some 3 KB


def mistake(files: str, context: str | None = None) -> str:
    """Say what is wrong with kubeconfigs, and what to do; "" if nothing wrong can be seen here.

    `context`: the context that was asked for; None for the current one.
    """
    paths = [Path(one).expanduser() for one in files.split(os.pathsep) if one]
    there = [path for path in paths if path.exists()]
    if not there:
        return f"there is no file {files}; write the kubeconfig there, or name it in $KUBECONFIG"
    named: list[str] = []
    wanted = context or ""
    for path in there:
        whole = _read(path)
        if isinstance(whole, str):
            return whole
        named += _names(whole.get("contexts"))
        stated = whole.get("current-context")
        wanted = wanted or (stated if isinstance(stated, str) else "")
    if not named:
        return f"{files} has no context, so no cluster is known; name a kubeconfig in $KUBECONFIG"
    if wanted in named:
        return ""
    what = f"has no context {wanted!r}" if wanted else "names no current context"
    return f"{files} {what}; choose one with --context: {_listed(named)}"


def _read(path: Path) -> Mapping[str, object] | str:
    """The content of a kubeconfig, or what is wrong with it."""
    try:
        if path.stat().st_size > _MAX_BYTES:
            return f"{path} is too large for a kubeconfig; name another file in $KUBECONFIG"
        whole = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        return f"{path} cannot be read as a kubeconfig ({_first_line(error)}); name another file in $KUBECONFIG"
    if whole is None:
        return {}
    return whole if isinstance(whole, dict) else f"{path} is not a kubeconfig; name another file in $KUBECONFIG"


def _names(contexts: object) -> list[str]:
    entries = contexts if isinstance(contexts, list) else []
    names = (entry.get("name") for entry in entries if isinstance(entry, dict))
    return [name for name in names if isinstance(name, str) and name]


def _listed(names: Iterable[str]) -> str:
    known = sorted(set(names))
    more = f" and {len(known) - _MAX_NAMED} more" if len(known) > _MAX_NAMED else ""
    return f"{', '.join(known[:_MAX_NAMED])}{more}"


def _first_line(error: Exception) -> str:
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return next(iter(str(error).splitlines()), "it is no text")
