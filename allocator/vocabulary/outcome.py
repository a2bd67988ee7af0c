"""Why a decision is no placement: reasons that a user can act on, what they quote, and which name was meant.

A name is near another if they differ in capitals and separators only, have the same letters in another order, or are
alike (difflib's ratio) from the first letter on. A word is near the only name of which it is a part (nri: nvidia-nri).
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from typing import Final

_MAX: Final = 80  # characters; a container's id with its runtime has 77


def excerpt(text: object) -> str:
    """The first 80 characters of `text`, or of how Python writes another value."""
    return str(text)[:_MAX]


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a node cannot hold a request."""

    message: str  # in the user's words, with the nearest request that would fit if there is one
    permanent: bool = False  # the answer remains the same even if all other Pods leave this node
    # the same without the node's name and figures, so that kube-scheduler can count equal ones together
    short: str = field(default="", compare=False)
    unfinished: bool = False  # the search ended before everything was tried, so the request might fit after all


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong in an object that its author wrote."""

    path: str  # the field, as `spec.containers[0].resources.limits[nvidia.com/gpu]`
    message: str  # what is wrong and what would be right

    def __str__(self) -> str:
        return f"{self.path}: {self.message}"


_ALIKE: Final = 0.8  # gpumem is as near to gpu-memory
_MAX_LENGTH: Final = 128  # characters; bounds the work on text that strangers send
_SEPARATORS: Final = re.compile(r"[-_. /]+")


def meant(written: str, known: Iterable[str]) -> str:
    """The known name that is nearest to what was written; the first of equally near ones, "" if none is near."""
    if len(written) > _MAX_LENGTH:
        return ""
    word, best, name, holders = _plain(written), 0.0, "", []
    for one in known:
        other = _plain(one)
        near = _nearness(word, other)
        if near > best:
            best, name = near, one
        if word in map(str.casefold, _SEPARATORS.split(one)):
            holders.append(one)
    if name:
        return name
    return holders[0] if len(holders) == 1 else ""


def did_you_mean(written: str, known: Iterable[str]) -> str:
    """Ask for the nearest known name, as the end of a sentence: "; did you mean X?", or "" if none is near."""
    name = meant(written, known)
    return f"; did you mean {name}?" if name else ""


def _plain(name: str) -> str:
    return _SEPARATORS.sub("", name).casefold()


def _nearness(word: str, other: str) -> float:
    """How near two plain names are, from 0 (not near) to 1 (the same)."""
    if not word or not other:
        return 0.0
    if sorted(word) == sorted(other):
        return 1.0 if word == other else _ALIKE
    least, most = sorted((len(word), len(other)))
    if word[0] != other[0] or 2 * least < _ALIKE * (least + most):  # no ratio is greater
        return 0.0
    matcher = SequenceMatcher(None, other, word, autojunk=False)
    if matcher.quick_ratio() < _ALIKE:
        return 0.0
    ratio = matcher.ratio()
    return ratio if ratio >= _ALIKE else 0.0
