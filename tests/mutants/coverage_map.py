"""Which tests run which line, themselves or in a process that they start: gathered once for a tree by coverage.py."""

import ast
import json
import os
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from coverage import CoverageData
from mutants import children
from mutants.sites import AREAS

UNIT = "not controlplane and not node"


@dataclass(frozen=True, slots=True)
class CoverageMap:
    """The tests of each line of each file, and the seconds that each test takes."""

    lines: Mapping[str, Mapping[int, frozenset[str]]]
    seconds: Mapping[str, float]

    def tests(self, root: Path, path: str, line: int) -> list[str]:
        """The tests that run a line, the quickest first.

        A line that runs when its module is imported belongs to no test. For such a line these are the tests of all
        lines that mention a name bound by the statement.
        """
        found = self.lines.get(path, {}).get(line, frozenset())
        if not found:
            found = self._of_names(root, _bound((root / path).read_text(), line))
        return sorted(found, key=lambda test: (self.seconds.get(test, 0.0), test))

    def _of_names(self, root: Path, names: Iterable[str]) -> frozenset[str]:
        """The tests of lines that mention a name; if no test runs such a line, those of names that these lines bind."""
        todo, seen = set(names), set[str]()
        while todo:
            seen |= todo
            mention = re.compile(rf"\b(?:{'|'.join(map(re.escape, sorted(todo)))})\b")
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


def gather(root: Path, folders: Sequence[str], kept: Path, environment: Mapping[str, str], workers: int) -> list[str]:
    """Run the unit tests of `folders` of the tree at `root` once; store at `kept` which of them run which line.

    Returns:
        The tests that fail on the unchanged tree; they judge no mutant.

    Raises:
        RuntimeError: the tests could not be run.
    """
    kept.parent.mkdir(parents=True, exist_ok=True)
    report, data = root / "report.xml", root / "lines.coverage"
    measured = sorted({folder.split("/")[0] for area in AREAS.values() for folder in area})
    command = [sys.executable, "-m", "pytest", *folders, "-m", UNIT, "-q", "-n", str(workers), "-p", "no:cacheprovider"]
    command += [*(f"--cov={package}" for package in measured), "--cov-context=test", "--cov-report="]
    command += [f"--junitxml={report}", "-o", "junit_duration_report=call", "-p", children.__name__]
    path = os.pathsep.join([environment["PYTHONPATH"], str(Path(__file__).parents[1])])  # where the plugin is found
    own = {"COVERAGE_FILE": str(data), "PYTHONPATH": path, **children.prepare(root, measured)}
    ended = subprocess.run(command, cwd=root, env={**environment, **own}, check=False).returncode
    if ended not in {pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED}:
        raise RuntimeError(f"the tests could not be run: pytest ended with {ended}")
    lines = _lines(data, root)
    told = _report(report)
    tests = sorted({test for each in lines.values() for tests in each.values() for test in tests})
    failed = {test for test in tests if told.get(_junit_key(test), 0.0) is None}
    number = {test: index for index, test in enumerate(test for test in tests if test not in failed)}
    written = {
        "tests": [[test, told.get(_junit_key(test), 0.0)] for test in number],
        "lines": {
            path: {str(line): sorted(number[test] for test in tests - failed) for line, tests in each.items()}
            for path, each in lines.items()
        },
    }
    beside = kept.with_suffix(".new")
    beside.write_text(json.dumps(written))
    beside.replace(kept)
    return sorted(failed)


def read(kept: Path) -> CoverageMap:
    """Read what `gather` stored."""
    written = json.loads(kept.read_text())
    names = [test for test, _ in written["tests"]]
    lines = {
        path: {int(line): frozenset(names[index] for index in tests) for line, tests in each.items()}
        for path, each in written["lines"].items()
    }
    return CoverageMap(lines, dict(written["tests"]))


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
