"""Which tests run which line: gathered once per tree by coverage.py, with a context for each test."""

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from coverage import CoverageData
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
        alternatives = "|".join(map(re.escape, names))
        if not alternatives:
            return frozenset()
        mention = re.compile(rf"\b(?:{alternatives})\b")
        found: set[str] = set()
        for path, lines in self.lines.items():
            for number, text in enumerate((root / path).read_text().splitlines(), 1):
                if mention.search(text):
                    found |= lines.get(number, frozenset())
        return frozenset(found)


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
    command += [f"--junitxml={report}", "-o", "junit_duration_report=call"]
    ended = subprocess.run(command, cwd=root, env={**environment, "COVERAGE_FILE": str(data)}, check=False).returncode
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
    coverage = CoverageData(str(data))
    coverage.read()
    return {
        str(Path(file).relative_to(root)): {
            line: tests
            for line, contexts in coverage.contexts_by_lineno(file).items()
            if (tests := {context.rpartition("|")[0] for context in contexts if context})
        }
        for file in sorted(coverage.measured_files())
    }


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
