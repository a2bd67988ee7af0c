"""Which tests must be run again to learn what they execute, once files of the tree changed.

What nobody can know of a change is told generously: by names that a text mentions. A test that should have been run
again and was not misses lines that are new to it. It then judges fewer mutants; no mutant is judged wrongly killed.
"""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import Final

_TESTS: Final = "tests"


def is_test(name: str) -> bool:
    """Whether a file of this name has tests."""
    return PurePosixPath(name).match("test_*.py")


def concerned(
    root: Path, changed: Iterable[str], files: Iterable[str], ran: Mapping[str, frozenset[str]], code: Iterable[str]
) -> set[str] | None:
    """Tests and files of tests that changes concern; None if all.

    Args:
        root: of the tree as it is now.
        changed: names of files that changed, came or went, from the root.
        files: names of all files that are there now.
        ran: the tests that ran each file of the code.
        code: the folders of the code, directly below the root.
    """
    changed = sorted(changed)
    if any("/" not in name for name in changed):  # the settings of pytest
        return None
    tree = _Tree(root, frozenset(files), ran, frozenset(code))
    found: set[str] = set()
    for name in changed:
        top = PurePosixPath(name).parts[0]
        if top in tree.code:
            found |= ran.get(name, frozenset()) if name.endswith(".py") else tree.ran_beside(name)
        elif top != _TESTS:
            found |= tree.mentioning(top)
        elif is_test(name):
            found |= {name} & tree.files
        elif PurePosixPath(name).name == "conftest.py":
            found |= tree.tests_below(PurePosixPath(name).parent)
        else:
            found |= tree.mentioning(PurePosixPath(name).stem) if name.endswith(".py") else tree.tests_around(name)
    return found


class _Tree:
    """The files of a tree, and what they mention."""

    def __init__(
        self, root: Path, files: frozenset[str], ran: Mapping[str, frozenset[str]], code: frozenset[str]
    ) -> None:
        self.files = files
        self.code = code
        self._ran = ran
        python = {name for name in files if name.endswith(".py")}
        self._words = {name: frozenset(re.findall(r"\w+", (root / name).read_text())) for name in python}

    def mentioning(self, word: str) -> set[str]:
        """The tests of files, and those that ran code, that mention a word, or a helper of tests that does."""
        found: set[str] = set()
        todo, seen = {word}, set[str]()
        while todo:
            seen |= todo
            mention = {name for name, words in self._words.items() if words & todo}
            todo = set()
            for name in mention:
                path = PurePosixPath(name)
                if path.parts[0] in self.code:
                    found |= self._ran.get(name, frozenset())
                elif path.parts[0] == _TESTS and path.name == "conftest.py":
                    found |= self.tests_below(path.parent)
                elif path.parts[0] == _TESTS and not is_test(name):
                    todo.add(path.stem)
                elif path.parts[0] == _TESTS:
                    found.add(name)
            todo -= seen
        return found

    def tests_below(self, folder: PurePosixPath) -> set[str]:
        """The files of tests in a folder and below it."""
        return {name for name in self.files if is_test(name) and PurePosixPath(name).is_relative_to(folder)}

    def tests_around(self, name: str) -> set[str]:
        """The files of tests in the nearest folder around a file that has any."""
        return next((found for each in PurePosixPath(name).parents if (found := self.tests_below(each))), set())

    def ran_beside(self, name: str) -> set[str]:
        """The tests that ran code in the nearest folder around a file."""
        for folder in PurePosixPath(name).parents:
            beside = [tests for each, tests in self._ran.items() if PurePosixPath(each).is_relative_to(folder)]
            if beside:
                return {test for tests in beside for test in tests}
        return set()
