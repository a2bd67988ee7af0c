"""Which tests run which line, themselves or in a process that they start: gathered once for a tree by coverage.py."""

import ast
import json
import os
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final
from xml.etree import ElementTree as ET

import pytest
from coverage import CoverageData
from mutants import children
from mutants.outdated import concerned
from mutants.sites import AREAS

UNIT = "not controlplane and not node and not browser"
MEASURED: Final = sorted({folder.split("/")[0] for area in AREAS.values() for folder in area})


@dataclass(frozen=True, slots=True)
class CoverageMap:
    """The tests of each line of each file, and the seconds that each test takes."""

    lines: Mapping[str, Mapping[int, frozenset[str]]]
    seconds: Mapping[str, float]

    def tests(self, root: Path, path: str, line: int) -> list[str]:
        """The tests that run a line, the quickest first.

        A line that runs when its module is imported belongs to no test. For such a line these are the tests of all
        lines that mention a name bound by the statement, the tests that mention it themselves, and for a function's
        header those that run its body.
        """
        ran = self.lines.get(path, {})
        found = ran.get(line, frozenset())
        if not found and (names := _bound(text := (root / path).read_text(), line)):
            body = frozenset[str]().union(*(ran.get(each, frozenset()) for each in _body(text, line)))
            found = body | self._of_names(root, names) | self._that_mention(root, names)
        return sorted(found, key=lambda test: (self.seconds.get(test, 0.0), test))

    def _of_names(self, root: Path, names: Iterable[str]) -> frozenset[str]:
        """The tests of lines that mention a name; if no test runs such a line, those of names that these lines bind."""
        todo, seen = set(names), set[str]()
        while todo:
            seen |= todo
            mention = _mention(todo)
            found: set[str] = set()
            bound: set[str] = set()
            for path, lines in self.lines.items():
                text = (root / path).read_text()
                for number, line in enumerate(text.splitlines(), 1):
                    if mention.search(line):
                        tests = lines.get(number, frozenset())
                        found |= tests
                        bound |= set() if tests else _bound(text, number)
            if found:
                return frozenset(found)
            todo = bound - seen
        return frozenset()

    def _that_mention(self, root: Path, names: set[str]) -> frozenset[str]:
        """The tests whose own text, decorators included, mentions a name."""
        mention = _mention(names)
        functions = {
            f"{file}::{node.name}"
            for file in {_file(test) for test in self.seconds}
            if mention.search(text := (root / file).read_text())
            for node in ast.parse(text).body
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            and any(mention.search(ast.get_source_segment(text, part) or "") for part in (*node.decorator_list, node))
        }
        return frozenset(test for test in self.seconds if test.partition("[")[0] in functions)


@dataclass(frozen=True, slots=True)
class Kept:
    """A map, and digests of the files of the tree that it was gathered from, by name."""

    map: CoverageMap
    files: Mapping[str, str]

    def outdated(self, root: Path, files: Mapping[str, str]) -> set[str] | None:
        """Tests, and files of tests, to run again on the tree at `root` with these files; None if all are."""
        names = self.files.keys() | files.keys()
        changed = {name for name in names if self.files.get(name) != files.get(name)}
        ran = {name: frozenset().union(*lines.values()) for name, lines in self.map.lines.items()}
        again = concerned(root, changed, files, ran, MEASURED)
        whole = {each for each in again or () if "::" not in each}
        return None if again is None else {each for each in again if each in whole or _file(each) not in whole}

    def without(self, tests: Container[str], files: Mapping[str, str]) -> CoverageMap:
        """The map without these tests, without tests of these files of tests, and without files that are gone."""
        seconds = {
            test: took
            for test, took in self.map.seconds.items()
            if test not in tests and _file(test) not in tests and _file(test) in files
        }
        lines = {
            path: {line: frozenset(test for test in ran if test in seconds) for line, ran in each.items()}
            for path, each in self.map.lines.items()
            if self.files.get(path) == files.get(path)
        }
        return CoverageMap(lines, seconds)


def gather(
    root: Path, tests: Iterable[str], environment: Mapping[str, str], workers: int
) -> tuple[CoverageMap, list[str]]:
    """Run `tests` (unit tests, files of tests or folders) of the tree at `root` once.

    Returns:
        Which of them run which line, and the tests that fail on the unchanged tree; they judge no mutant.

    Raises:
        RuntimeError: the tests could not be run.
    """
    report, data, listed = root / "report.xml", root / "lines.coverage", root / "tests.txt"
    for left in (report, data, *children.data_files(root)):
        left.unlink(missing_ok=True)
    listed.write_text("\n".join(sorted(tests)))
    command = [sys.executable, "-m", "pytest", f"@{listed}", "-m", UNIT, "-q", "-n", str(workers)]
    command += [*(f"--cov={package}" for package in MEASURED), "--cov-context=test", "--cov-report="]
    command += ["-p", "no:cacheprovider", "-p", children.__name__]
    command += [f"--junitxml={report}", "-o", "junit_duration_report=call"]
    path = os.pathsep.join([environment["PYTHONPATH"], str(Path(__file__).parents[1])])  # where the plugin is found
    own = {"COVERAGE_FILE": str(data), "PYTHONPATH": path, **children.prepare(root, MEASURED)}
    ended = subprocess.run(command, cwd=root, env={**environment, **own}, check=False).returncode
    if ended not in {pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED}:
        raise RuntimeError(f"the tests could not be run: pytest ended with {ended}")
    lines = _lines(data, root)
    told = _report(report)
    ran = sorted({test for each in lines.values() for tests in each.values() for test in tests})
    failed = frozenset(test for test in ran if told.get(_junit_key(test), 0.0) is None)
    seconds = {test: told.get(_junit_key(test)) or 0.0 for test in ran if test not in failed}
    passed = {path: {line: frozenset(ran - failed) for line, ran in each.items()} for path, each in lines.items()}
    return CoverageMap(passed, seconds), sorted(failed)


def parts(tests: Iterable[str]) -> list[list[str]]:
    """Tests, and files of tests, by the folder that they are in."""
    found: dict[str, list[str]] = defaultdict(list)
    for test in sorted(tests):
        found[str(Path(_file(test)).parent)].append(test)
    return [each for _, each in sorted(found.items())]


def without_files_of(tests: Iterable[str], files: Mapping[str, str]) -> dict[str, str]:
    """The files without those of tests: what these execute is not known yet."""
    unknown = {_file(test) for test in tests}
    return {name: digest for name, digest in files.items() if name not in unknown}


def write(kept: Path, lines: CoverageMap, files: Mapping[str, str]) -> None:
    """Store a map of the tree with these files."""
    kept.parent.mkdir(parents=True, exist_ok=True)
    number = {test: index for index, test in enumerate(lines.seconds)}
    written = {
        "files": dict(files),
        "tests": list(lines.seconds.items()),
        "lines": {
            path: {str(line): sorted(number[test] for test in tests) for line, tests in each.items()}
            for path, each in lines.lines.items()
        },
    }
    beside = kept.with_suffix(".new")
    beside.write_text(json.dumps(written))
    beside.replace(kept)


def read(kept: Path) -> Kept:
    """Read what `write` stored."""
    written = json.loads(kept.read_text())
    names = [test for test, _ in written["tests"]]
    lines = {
        path: {int(line): frozenset(names[index] for index in tests) for line, tests in each.items()}
        for path, each in written["lines"].items()
    }
    return Kept(CoverageMap(lines, dict(written["tests"])), written["files"])


def together(one: CoverageMap, other: CoverageMap) -> CoverageMap:
    """What either map knows."""
    lines = {
        path: {
            line: one.lines.get(path, {}).get(line, frozenset()) | other.lines.get(path, {}).get(line, frozenset())
            for line in one.lines.get(path, {}).keys() | other.lines.get(path, {}).keys()
        }
        for path in one.lines.keys() | other.lines.keys()
    }
    return CoverageMap(lines, {**one.seconds, **other.seconds})


def _mention(names: Iterable[str]) -> re.Pattern[str]:
    return re.compile(rf"\b(?:{'|'.join(map(re.escape, sorted(names)))})\b")


def _file(test: str) -> str:
    return test.partition("::")[0]


def _lines(data: Path, root: Path) -> dict[str, dict[int, set[str]]]:
    found: dict[str, dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
    for path in (data, *children.data_files(root)):
        coverage = CoverageData(str(path))
        coverage.read()
        for file in sorted(coverage.measured_files()):
            inside = _in_functions(Path(file).read_text())
            for line, contexts in coverage.contexts_by_lineno(file).items():
                tests = {_test_of(context) for context in contexts} - {""}
                if tests and line in inside:
                    found[str(Path(file).relative_to(root))][line] |= tests
    return found


@cache
def _in_functions(text: str) -> frozenset[int]:
    """Lines of functions' bodies. The other lines run when the first test of a process imports the module."""
    functions = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return frozenset(
        line for node in functions for line in range(node.body[0].lineno, (node.end_lineno or node.lineno) + 1)
    )


def _test_of(context: str) -> str:
    """The test of a context, "<test>|run" or that of a child; "" where no test ran."""
    return context.rpartition("|")[0] or children.test_of(context)


def _report(report: Path) -> dict[tuple[str, str], float | None]:
    """The seconds of each test; None for one that failed."""
    return {
        (case.get("classname", ""), case.get("name", "")): None
        if any(case.find(bad) is not None for bad in ("failure", "error"))
        else float(case.get("time", 0))
        for case in ET.parse(report).iter("testcase")
    }


def _junit_key(test: str) -> tuple[str, str]:
    """A node id's class name and name in a JUnit report."""
    path, _, rest = test.partition("::")
    names, bracket, parameters = rest.partition("[")
    *classes, name = names.split("::")
    return ".".join([path.removesuffix(".py").replace("/", "."), *classes]), name + bracket + parameters


def _body(text: str, line: int) -> range:
    """The lines of the body of the function whose header a line belongs to; none if there is no such function."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.lineno <= line < node.body[0].lineno:
            return range(node.body[0].lineno, (node.end_lineno or line) + 1)
    return range(0)


def _bound(text: str, line: int) -> set[str]:
    """Names bound by the innermost function or class header, or by the module or class level assignment, of a line."""
    around = [
        node
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Assign | ast.AnnAssign)
        and node.lineno <= line <= (node.end_lineno or node.lineno)
    ]
    if not around:
        return set()
    match max(around, key=lambda node: node.lineno):
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return {name}
        case ast.Assign(targets=targets):
            return {node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name)}
        case ast.AnnAssign(target=ast.Name(id=name)):
            return {name}
        case _:
            return set()
