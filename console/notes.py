"""Notes about the input and the cluster, on standard error: those that say the same of several objects are one."""

import re
from collections.abc import Iterable

from console import terminal
from console.terminal import counted, some

_MAX_NAMED = 3  # objects of which the same is said
_MAX_NOTES = 12
_ABOUT = re.compile(r"(Pod|Node|Device|NodeResourceTopology) (\S+): (.*)", re.DOTALL)


def tell_notes(called: str, notes: Iterable[str], *, everything: bool = False, more: str = "--all has all") -> None:
    """Write notes to standard error, with how the command was called: all as they are, or the first gathered ones.

    `more`: what a reader does to see those that are left out.
    """
    shown = list(notes) if everything else gathered(notes)
    most = len(shown) if everything or len(shown) == _MAX_NOTES + 1 else _MAX_NOTES
    for note in shown[:most]:
        terminal.tell(called, note)
    if len(shown) > most:
        terminal.tell(called, f"{counted(len(shown) - most, 'more note')}; {more}")


def gathered(notes: Iterable[str]) -> list[str]:
    """Notes in order, where those that say the same of many objects of a kind are one."""
    found: dict[tuple[str, str], list[str]] = {}  # the kind and what is said -> of which; no kind: of something else
    for note in notes:
        about = _ABOUT.fullmatch(note)
        kind, name, what = about.groups() if about is not None else ("", "", note)
        names = found.setdefault((kind, what), [])
        if name and name not in names:
            names.append(name)
    return [_note(kind, names, what) for (kind, what), names in found.items()]


def _note(kind: str, names: list[str], what: str) -> str:
    if not kind:
        return what
    if len(names) == 1:
        return f"{kind} {names[0]}: {what}"
    plural = "NodeResourceTopologies" if kind == "NodeResourceTopology" else f"{kind}s"
    return f"{plural} {some(names, _MAX_NAMED)}: {what}"
