"""One mutant against the tests that run its line, in a copy of the tree; the checkout itself is never written."""

import hashlib
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import count
from pathlib import Path

import pytest
from mutants.sites import Mutant

GRACE_S = 60
"""What is granted beside four times the seconds that the tests took: a start, and a machine that is shared."""


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

    @property
    def environment(self) -> dict[str, str]:
        """CI: properties are tried with the same examples every time."""
        kept = {name: value for name, value in os.environ.items() if name not in {"PYTHONSAFEPATH", "COVERAGE_FILE"}}
        return kept | {"CI": "true", "PYTHONPATH": str(self.root)}

    def imports(self, mutant: Mutant) -> bool:
        """Whether the mutated module can be imported; if not, it is no mutant, because any test would fail."""
        module = mutant.path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        with self._mutated(mutant):
            return self._run([sys.executable, "-c", f"import {module}"], GRACE_S) == 0

    def trial(self, mutant: Mutant, tests: Sequence[str], seconds: float) -> Outcome:
        """Run `tests`, which take `seconds` without the mutant, until one fails.

        Raises:
            RuntimeError: pytest does not find the tests, so that its failure shows nothing about the mutant.
        """
        listed = self.root / "tests.txt"
        listed.write_text("\n".join(tests))
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-p", "no:cov", f"@{listed}"]
        with self._mutated(mutant):
            ended = self._run(command, GRACE_S + 4 * seconds)
        if ended is None:
            return Outcome.TIMEOUT
        unfound = pytest.ExitCode.USAGE_ERROR
        if ended == unfound and self._run([*command, "--collect-only"], GRACE_S) == unfound:
            raise RuntimeError(f"pytest does not find tests that it ran before: see {mutant.path}:{mutant.line}")
        return Outcome.SURVIVED if ended == 0 else Outcome.KILLED

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

    def _run(self, command: Sequence[str], limit_s: float) -> int | None:
        """The exit status; None if the limit was reached. The whole process group ends with the process."""
        quiet = subprocess.DEVNULL
        with subprocess.Popen(
            command,
            cwd=self.root,
            env=self.environment,
            stdout=quiet,
            stderr=quiet,
            stdin=quiet,
            start_new_session=True,
        ) as process:
            try:
                return process.wait(limit_s)
            except subprocess.TimeoutExpired:
                return None
            finally:
                _end_group(process)


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
        yield Copy(root)


def listed(checkout: Path) -> list[str]:
    """Names of the files of a checkout, relative to it."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    told = subprocess.run(command, cwd=checkout, check=True, capture_output=True, text=True).stdout
    return sorted(name for name in told.split("\0") if name and (checkout / name).is_file())


def tree_hash(checkout: Path, tests: Sequence[str]) -> str:
    """A name for the folders of judging tests and the files that they read, without documents and benchmarks."""
    seen = hashlib.sha256("\0".join(sorted(tests)).encode())
    for name in listed(checkout):
        if name.startswith(("docs/", "bench/", "tests/mutants/")) or ("/" not in name and name != "pyproject.toml"):
            continue
        seen.update(name.encode() + b"\0" + hashlib.sha256((checkout / name).read_bytes()).digest())
    return seen.hexdigest()[:16]


def _end_group(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
