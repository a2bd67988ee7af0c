"""One mutant against the tests that run its line, in a copy of the tree; the checkout itself is never written."""

import hashlib
import importlib.util
import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import count
from pathlib import Path

import pytest
from mutants import warm
from mutants.sites import Mutant
from mutants.warm import Order

GRACE_S = 60.0
"""What is granted beside four times the seconds that the tests took; all of it times the processes of a processor."""
GRACE_CPU_S = 10
"""The same of processor time, which no other process lengthens."""


class Outcome(StrEnum):
    """The result for a mutant."""

    KILLED = "killed"
    TIMEOUT = "timeout"
    SURVIVED = "survived"
    EQUIVALENT = "equivalent"


@dataclass
class Copy:
    """A copy of the tree; one file at a time is mutated in it."""

    root: Path
    times: Iterator[int] = field(default_factory=lambda: count(1_000_000_000))
    _process: "subprocess.Popen[str] | None" = None

    @property
    def environment(self) -> dict[str, str]:
        """CI: properties are tried with the same examples every time."""
        kept = {name: value for name, value in os.environ.items() if name not in {"PYTHONSAFEPATH", "COVERAGE_FILE"}}
        return kept | {"CI": "true", "PYTHONPATH": str(self.root)}

    def trial(self, mutant: Mutant, tests: Sequence[str], seconds: float) -> Outcome | None:
        """Run `tests`, which take `seconds` without the mutant, until one fails.

        Returns:
            None if the mutated module cannot be imported: any test would fail, so that it is no mutant.

        Raises:
            RuntimeError: pytest does not find the tests, so that its failure shows nothing about the mutant.
        """
        listed = self.root / "tests.txt"
        listed.write_text("\n".join(tests))
        module = mutant.path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        crowd = max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))  # a machine that is shared is not a mutant's fault
        order = Order(module, str(listed), GRACE_CPU_S + math.ceil(4 * seconds), crowd * (GRACE_S + 4 * seconds))
        with self._mutated(mutant):
            ended = self._answer(order)
        if ended == pytest.ExitCode.USAGE_ERROR and self._answer(replace(order, module="pytest")) == ended:
            raise RuntimeError(f"pytest does not find tests that it ran before: see {mutant.path}:{mutant.line}")
        match ended:
            case warm.NO_MUTANT:
                return None
            case pytest.ExitCode.OK:
                return Outcome.SURVIVED
            case _ if ended in {-signal.SIGALRM, -signal.SIGXCPU}:
                return Outcome.TIMEOUT
            case _:
                return Outcome.KILLED

    @contextmanager
    def _mutated(self, mutant: Mutant) -> Iterator[None]:
        path = self.root / mutant.path
        before = path.read_text()
        self._write(path, mutant.source)
        try:
            yield
        finally:
            self._write(path, before)

    def _write(self, path: Path, text: str) -> None:
        """Write with a new time: Python distinguishes compiled modules by size and whole seconds."""
        path.write_text(text)
        now = next(self.times)
        os.utime(path, (now, now))
        Path(importlib.util.cache_from_source(str(path))).unlink(missing_ok=True)

    def _answer(self, order: Order) -> int:
        """The exit status of a trial."""
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-P", warm.__file__],
                cwd=self.root,
                env=self.environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(order.line())
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def close(self) -> None:
        """End the process that runs the trials."""
        if self._process is not None:
            self._process.communicate()


@contextmanager
def copied(checkout: Path) -> Iterator[Copy]:
    """A copy of all files that git tracks or does not ignore; programs in `.cache/bin` are linked, not copied."""
    with tempfile.TemporaryDirectory(prefix="koordgate-mutants-") as folder:
        root = Path(folder)
        for name in listed(checkout):
            target = root / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(checkout / name, target)
        for command in (["git", "init", "--quiet"], ["git", "add", "--all"]):  # some tests ask git what is in the tree
            subprocess.run(command, cwd=root, check=True, capture_output=True)
        if (checkout / ".cache" / "bin").is_dir():
            (root / ".cache").mkdir(exist_ok=True)
            (root / ".cache" / "bin").symlink_to((checkout / ".cache" / "bin").resolve())
        with closing(Copy(root)) as copy:
            yield copy


def listed(checkout: Path) -> list[str]:
    """Names of the files of a checkout, relative to it."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    told = subprocess.run(command, cwd=checkout, check=True, capture_output=True, text=True).stdout
    return sorted(name for name in told.split("\0") if name and (checkout / name).is_file())


def digests(checkout: Path) -> dict[str, str]:
    """Each file by name, with a digest of its content; without documents, benchmarks and this tool."""
    return {
        name: hashlib.sha256((checkout / name).read_bytes()).hexdigest()[:16]
        for name in listed(checkout)
        if not name.startswith(("docs/", "bench/", "tests/mutants/")) and ("/" in name or name == "pyproject.toml")
    }
