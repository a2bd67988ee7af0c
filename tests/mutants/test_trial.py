import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from mutants.coverage_map import CoverageMap, Kept, gather, parts, read, together, without_files_of, write
from mutants.sites import Mutant
from mutants.trial import Copy, Outcome, copied, digests

CODE = """LIMIT = 3

def within(count: int) -> bool:
    while count < 0:
        count += 1
    return count <= LIMIT
"""
TESTS = """import subprocess
import sys
import pytest
from allocator.code import within

@pytest.mark.parametrize("count", [-1, 1])
def test_few_are_within(count):
    assert within(count)

def test_many_are_not():
    assert not within(5)

def test_a_process_agrees():
    code = "from allocator.code import within; assert within(2)"
    subprocess.run([sys.executable, "-c", code], check=True)

def test_fails_as_it_is():
    assert within(9)
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    files = {
        "allocator/__init__.py": "",
        "allocator/code.py": CODE,
        "tests/test_code.py": TESTS,
        ".gitignore": "kept\n",
    }
    files["pytest.ini"] = "[pytest]\nasyncio_default_fixture_loop_scope = function\n"
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    subprocess.run(["git", "init", "--quiet"], cwd=tmp_path, check=True)
    return tmp_path


@pytest.fixture
def copy(checkout: Path) -> Iterator[Copy]:
    with copied(checkout) as made:
        yield made


def mutant(was: str, becomes: str) -> Mutant:
    assert CODE.count(was) == 1
    return Mutant("allocator/code.py", 1, "", CODE.replace(was, becomes), was, becomes)


FEW = ["tests/test_code.py::test_few_are_within[-1]", "tests/test_code.py::test_few_are_within[1]"]
MANY = "tests/test_code.py::test_many_are_not"
CHILD = "tests/test_code.py::test_a_process_agrees"


def test_a_mutant_is_killed_by_a_test_that_sees_it_and_survives_one_that_does_not(copy: Copy, checkout: Path) -> None:
    seen = mutant("count <= LIMIT", "count >= LIMIT")
    assert copy.trial(seen, [MANY], 0) is Outcome.KILLED
    unseen = mutant("LIMIT = 3", "LIMIT = 4")
    assert copy.trial(unseen, [*FEW, MANY], 0) is Outcome.SURVIVED
    same_size = mutant("LIMIT = 3", "LIMIT = 5")  # within the same second
    assert copy.trial(same_size, [MANY], 0) is Outcome.KILLED
    for root in (copy.root, checkout):
        assert (root / "allocator/code.py").read_text() == CODE


def test_a_test_that_is_not_found_kills_nothing(copy: Copy) -> None:
    with pytest.raises(RuntimeError, match="does not find"):
        copy.trial(mutant("LIMIT = 3", "LIMIT = 4"), ["tests/test_code.py::test_that_was"], 0)


@pytest.mark.parametrize(
    ("bound", "becomes"),
    [("GRACE_CPU_S", "count -= 1"), ("GRACE_S", "__import__('signal').pause()")],
    ids=["that computes", "that waits"],
)
def test_a_mutant_that_never_ends_is_stopped(
    copy: Copy, bound: str, becomes: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as bounds:
        bounds.setattr(f"mutants.trial.{bound}", 1)
        assert copy.trial(mutant("count += 1", becomes), FEW[:1], 0) is Outcome.TIMEOUT
    assert copy.trial(mutant("LIMIT = 3", "LIMIT = 4"), FEW[:1], 0) is Outcome.SURVIVED


def test_a_module_that_cannot_be_imported_is_no_mutant(copy: Copy) -> None:
    assert copy.trial(mutant("LIMIT = 3", "LIMIT = 3 + None"), FEW, 0) is None


def test_each_line_has_the_tests_that_run_it_even_in_a_child_but_for_those_that_fail_anyway(
    copy: Copy, tmp_path: Path
) -> None:
    gathered, failed = gather(copy.root, ["tests"], copy.environment, 1)
    assert failed == ["tests/test_code.py::test_fails_as_it_is"]
    write(tmp_path / "kept", gathered, {})
    found = read(tmp_path / "kept").map
    assert found == gathered
    assert found.tests(copy.root, "allocator/code.py", 5) == FEW[:1]
    assert sorted(found.tests(copy.root, "allocator/code.py", 6)) == sorted([*FEW, MANY, CHILD])
    assert sorted(found.tests(copy.root, "allocator/code.py", 1)) == sorted([*FEW, MANY, CHILD])


@pytest.mark.parametrize(
    ("line", "mentioned"),
    [
        pytest.param(
            1,
            ["other.py::test_most", "other.py::test_within", "tests.py::test_a_table[3]", "tests.py::test_the_limit"],
            id="a constant: where another one of it, or a function that reads it, is mentioned, and in tests",
        ),
        pytest.param(
            3,
            ["body.py::test_body", "other.py::test_within"],
            id="a function's header: where it is called, and its body",
        ),
    ],
)
def test_a_line_that_runs_at_import_is_judged_by_what_mentions_its_name(
    checkout: Path, line: int, mentioned: list[str]
) -> None:
    (checkout / "other.py").write_text("from allocator.code import LIMIT\nMOST = LIMIT\nuse(MOST)\nwithin(1)\n")
    lines = {
        "allocator/code.py": {5: frozenset({"body.py::test_body"})},
        "other.py": {3: frozenset({"other.py::test_most"}), 4: frozenset({"other.py::test_within"})},
    }
    tests = "@each(LIMIT)\ndef test_a_table(limit):\n    pass\n"
    tests += "def test_the_limit():\n    assert LIMIT\n\ndef test_other():\n    pass\n"
    (checkout / "tests.py").write_text(tests)
    seconds = dict.fromkeys(("tests.py::test_a_table[3]", "tests.py::test_the_limit", "tests.py::test_other"), 1.0)
    assert CoverageMap(lines, seconds).tests(checkout, "allocator/code.py", line) == mentioned


TEXTS = {
    "allocator/code.py": "LIMIT = 3",
    "allocator/other.py": "READ = 'charts/values.yaml'",
    "allocator/page/page.py": "",
    "allocator/page/static/page.js": "",
    "charts/values.yaml": "",
    "pyproject.toml": "",
    "tests/aid.py": "import further_aid",
    "tests/conftest.py": "",
    "tests/further_aid.py": "",
    "tests/part/conftest.py": "",
    "tests/part/data/boards.json": "",
    "tests/part/test_c.py": "from aid import made",
    "tests/test_a.py": "from further_aid import made",
    "tests/test_b.py": "def test_3(): assert made_by_further_aid_or_charts",
}
FILES = dict.fromkeys(TEXTS, "1")
KEPT = Kept(
    CoverageMap(
        {
            "allocator/code.py": {5: frozenset({"tests/test_a.py::test_1", "tests/test_b.py::test_3"})},
            "allocator/other.py": {7: frozenset({"tests/test_a.py::test_2", "tests/test_b.py::test_3"})},
            "allocator/page/page.py": {1: frozenset({"tests/test_b.py::test_3"})},
        },
        {"tests/test_a.py::test_1": 1.0, "tests/test_a.py::test_2": 2.0, "tests/test_b.py::test_3": 3.0},
    ),
    FILES,
)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name, text in TEXTS.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.mark.parametrize(
    ("changed", "again"),
    [
        pytest.param([], set(), id="nothing"),
        pytest.param(
            ["allocator/code.py"], {"tests/test_a.py::test_1", "tests/test_b.py::test_3"}, id="code: what ran it"
        ),
        pytest.param(["tests/test_b.py"], {"tests/test_b.py"}, id="tests: the whole file"),
        pytest.param(
            ["tests/test_b.py", "allocator/code.py"],
            {"tests/test_a.py::test_1", "tests/test_b.py"},
            id="code and tests of it: the whole file and what else ran it",
        ),
        pytest.param(
            ["tests/further_aid.py"],
            {"tests/test_a.py", "tests/part/test_c.py"},
            id="a helper: who mentions it, or a helper that does",
        ),
        pytest.param(["tests/part/conftest.py"], {"tests/part/test_c.py"}, id="fixtures of a folder: its tests"),
        pytest.param(
            ["tests/conftest.py"], {"tests/test_a.py", "tests/test_b.py", "tests/part/test_c.py"}, id="all fixtures"
        ),
        pytest.param(["tests/part/data/boards.json"], {"tests/part/test_c.py"}, id="data of tests: those around it"),
        pytest.param(["allocator/page/static/page.js"], {"tests/test_b.py::test_3"}, id="data of code: what ran that"),
        pytest.param(
            ["charts/values.yaml"],
            {"tests/test_a.py::test_2", "tests/test_b.py::test_3"},
            id="another folder: what ran code that mentions it",
        ),
        pytest.param(["pyproject.toml"], None, id="settings: everything"),
    ],
)
def test_what_a_change_concerns_is_run_again(tree: Path, changed: list[str], again: set[str] | None) -> None:
    assert KEPT.outdated(tree, FILES | dict.fromkeys(changed, "2")) == again


def test_tests_that_are_new_are_run_and_those_that_are_gone_are_not(tree: Path) -> None:
    gone = {name: digest for name, digest in FILES.items() if name != "tests/test_a.py"}
    (tree / "tests/test_d.py").touch()
    assert KEPT.outdated(tree, {**gone, "tests/test_d.py": "1"}) == {"tests/test_d.py"}


def test_an_interrupted_run_goes_on_with_the_folders_that_it_has_not_reached(tree: Path) -> None:
    first, later = parts(["tests/test_a.py::test_1", "tests/part/test_c.py", "tests/test_b.py"])
    assert (first, later) == (["tests/test_a.py::test_1", "tests/test_b.py"], ["tests/part/test_c.py"])
    assert Kept(KEPT.map, without_files_of(later, FILES)).outdated(tree, FILES) == {"tests/part/test_c.py"}
    assert Kept(KEPT.map, without_files_of(first, FILES)).outdated(tree, FILES) == {
        "tests/test_a.py",
        "tests/test_b.py",
    }


def test_what_is_run_again_or_gone_is_no_longer_known() -> None:
    files = {**FILES, "allocator/code.py": "2", "tests/test_b.py": "2"}
    left = KEPT.without({"tests/test_a.py::test_1", "tests/test_b.py"}, files)
    only = CoverageMap(
        {"allocator/other.py": {7: frozenset({"tests/test_a.py::test_2"})}, "allocator/page/page.py": {1: frozenset()}},
        {"tests/test_a.py::test_2": 2.0},
    )
    assert left == only
    assert together(left, KEPT.map) == KEPT.map
    del files["tests/test_a.py"]
    assert KEPT.without(set(), files).seconds == {"tests/test_b.py::test_3": 3.0}


def test_the_files_of_a_tree_are_known_by_content_but_for_documents(checkout: Path) -> None:
    files = digests(checkout)
    (checkout / "README.md").write_text("new")
    (checkout / "kept").write_text("ignored")
    assert digests(checkout) == files
    (checkout / "allocator/code.py").write_text(CODE + "\n")
    assert {name for name, digest in digests(checkout).items() if digest != files[name]} == {"allocator/code.py"}
