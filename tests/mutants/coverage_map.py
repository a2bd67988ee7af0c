"""Which tests run which line: gathered once for a tree by coverage.py, with a context for each test."""

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree as ET

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

        A line that runs when its module is imported belongs to no test: then the tests of all lines that mention a name
        which the statement binds.
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


def gather(root: Path, kept: Path, environment: Mapping[str, str], workers: int) -> None:
    """Run all unit tests of the tree at `root` once and keep what each line was run by at `kept`.

    Raises:
        subprocess.CalledProcessError: the tests do not pass as they are, so that they can judge no mutant.
    """
    kept.parent.mkdir(parents=True, exist_ok=True)
    folders = sorted({folder.split("/")[0] for folders in AREAS.values() for folder in folders})
    command = [sys.executable, "-m", "pytest", "-m", UNIT, "-q", "-n", str(workers), "-p", "no:cacheprovider"]
    command += [*(f"--cov={folder}" for folder in folders), "--cov-context=test", "--cov-report="]
    command += [f"--junitxml={root / 'seconds.xml'}", "-o", "junit_duration_report=call"]
    subprocess.run(command, cwd=root, env={**environment, "COVERAGE_FILE": str(root / "lines.coverage")}, check=True)
    lines = _lines(root / "lines.coverage", root)
    seconds = _seconds(
        root / "seconds.xml", {test for each in lines.values() for tests in each.values() for test in tests}
    )
    tests = sorted({test for each in lines.values() for tests in each.values() for test in tests})
    number = {test: index for index, test in enumerate(tests)}
    written = {
        "tests": [[test, seconds.get(test, 0.0)] for test in tests],
        "lines": {
            path: {str(line): sorted(number[test] for test in tests) for line, tests in each.items()}
            for path, each in lines.items()
        },
    }
    beside = kept.with_suffix(".new")
    beside.write_text(json.dumps(written))
    beside.replace(kept)


def read(kept: Path) -> CoverageMap:
    """What `gather` kept."""
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


def _seconds(report: Path, tests: Iterable[str]) -> dict[str, float]:
    told = {
        (case.get("classname"), case.get("name")): float(case.get("time", 0))
        for case in ET.parse(report).iter("testcase")
    }
    return {test: told.get(_junit_key(test), 0.0) for test in tests}


def _junit_key(test: str) -> tuple[str, str]:
    path, _, rest = test.partition("::")
    name = rest.partition("[")[0].rpartition("::")
    return ".".join([path.removesuffix(".py").replace("/", "."), *filter(None, name[0].split("::"))]), rest[
        len(name[0] + name[1]) :
    ]


def _bound(text: str, line: int) -> set[str]:
    """Names bound by the innermost function or class header, or module or class level assignment, around a line."""
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
