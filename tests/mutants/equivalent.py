"""Mutants that no test can distinguish from the code, with reasons; they count neither as killed nor as survived."""

import tomllib
from dataclasses import dataclass
from pathlib import Path

from mutants.sites import Mutant

LIST = Path(__file__).with_name("equivalent.toml")


@dataclass(frozen=True, slots=True)
class Equivalent:
    """A mutant identified by its text, so that it is still found when lines move."""

    path: str
    was: str
    becomes: str
    why: str


def known() -> list[Equivalent]:
    """The entries of `equivalent.toml`."""
    return [Equivalent(**entry) for entry in tomllib.loads(LIST.read_text()).get("mutant", [])]


def is_known(mutant: Mutant, equivalents: list[Equivalent]) -> bool:
    """Whether `mutant` is one of them."""
    return any((mutant.path, mutant.was, mutant.becomes) == (each.path, each.was, each.becomes) for each in equivalents)
