import ast
from pathlib import Path

import pytest
from mutants.equivalent import known
from mutants.sites import AREAS, files, sample

CHECKOUT = Path(__file__).resolve().parents[2]

CODE = '''
import ssl
from dataclasses import dataclass
from typing import Final

WAIT_S: Final = 10.0

@dataclass(frozen=True)
class Held(Struct, frozen=True):
    count: int | None = None
    every: float = 5.0
    until: float = 0.0
    asked: Seconds = 5.0
    kept: list[int] = field(repr=False)
    sum: int = field(init=False, compare=False)

def free(all_of: int, held: list[Held | None]) -> int | None:
    """What is left."""
    left = all_of
    for one in held:
        if one is None:
            continue
        left -= one.count or 0
    for one, number in zip(held, range(all_of), strict=True):
        left += number
    try:
        return left if left > 0 and held else None
    except (OSError, ssl.SSLError):
        return None
'''


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    files = (
        "allocator/code.py",
        "webhook/ledger/code.py",
        "localplane/code.py",
        "localplane/democluster.py",
    )
    for file in files:
        (tmp_path / file).parent.mkdir(parents=True)
        (tmp_path / file).write_text(CODE)
    return tmp_path


def test_a_seed_draws_the_same_mutants_every_time(tree: Path) -> None:
    first = list(sample(tree, "allocator", 7))
    assert list(sample(tree, "allocator", 7)) == first
    assert list(sample(tree, "allocator", 8)) != first


def test_a_mutant_changes_the_line_it_names_and_still_parses(tree: Path) -> None:
    for mutant in sample(tree, "allocator", 1):
        lines = mutant.source.splitlines()
        changed = [number for number, line in enumerate(CODE.splitlines(), 1) if lines[number - 1] != line]
        assert changed == [mutant.line]
        assert (mutant.was, mutant.becomes) == (
            CODE.splitlines()[mutant.line - 1].strip(),
            lines[mutant.line - 1].strip(),
        )
        ast.parse(mutant.source)


def test_what_says_nothing_about_the_tests_is_left_alone(tree: Path) -> None:
    lines = CODE.splitlines()
    drawn = [lines[mutant.line - 1] for mutant in sample(tree, "allocator", 1)]
    assert not [
        line for line in drawn if line.startswith(("@", "class", "def", "    count", "WAIT_S", "    every", "    sum"))
    ]
    assert not any("zip(" in mutant.becomes and "False" in mutant.becomes for mutant in sample(tree, "allocator", 1))
    assert {
        "    until: float = 0.0",
        "    asked: Seconds = 5.0",
        "    kept: list[int] = field(repr=False)",
        "            continue",
        "        if one is None:",
        "        left -= one.count or 0",
    } <= set(drawn)


def test_each_file_is_of_one_area_and_what_needs_an_api_server_of_none(tree: Path) -> None:
    found = {area: [str(path.relative_to(tree)) for path in files(tree, area)] for area in AREAS}
    assert found == {
        "allocator": ["allocator/code.py"],
        "ledger": ["webhook/ledger/code.py"],
        "webhook": [],
        "reporter": [],
    }


def test_files_that_are_named_are_mutated_and_no_others(tree: Path) -> None:
    (tree / "allocator/other.py").write_text(CODE)
    (tree / "allocator/third.py").write_text(CODE)
    named = {"allocator/code.py", "allocator/third.py", "webhook/ledger/code.py"}
    drawn = {mutant.path for mutant in sample(tree, "allocator", 1, named)}
    assert drawn == {"allocator/code.py", "allocator/third.py"}


@pytest.mark.parametrize("area", AREAS)
def test_each_area_of_this_tree_has_files(area: str) -> None:
    assert files(CHECKOUT, area)


def test_what_is_listed_as_equivalent_is_still_in_the_code() -> None:
    gone = [
        each
        for each in known()
        if each.was not in {line.strip() for line in (CHECKOUT / each.path).read_text().splitlines()}
    ]
    assert gone == []
    assert all(each.why for each in known())
