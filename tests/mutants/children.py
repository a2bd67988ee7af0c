"""A pytest plugin: coverage.py also measures the processes that a test starts, each under the name of its test."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import pytest

_SETTINGS: Final = "KOORDGATE_MUTANTS_CHILDREN"
_DATA: Final = "children.coverage"


def prepare(root: Path, measured: Iterable[str]) -> dict[str, str]:
    """Write settings of coverage.py for child processes below `root`; the environment that pytest needs for them."""
    settings = root / "children.ini"
    source = ",".join(str(root / package) for package in measured)
    lines = ["[run]", "parallel = true", f"data_file = {root / _DATA}", f"source = {source}"]
    settings.write_text("\n".join([*lines, "context = ${PYTEST_CURRENT_TEST-}", ""]))
    return {_SETTINGS: str(settings)}


def data_files(root: Path) -> list[Path]:
    """What was measured in children."""
    return sorted(root.glob(f"{_DATA}.*"))


def test_of(context: str) -> str:
    """The test that a context of a child names: pytest says "<test> (call)"."""
    return context.rpartition(" (")[0]


def pytest_configure(config: pytest.Config) -> None:
    """In a worker, where tests run; coverage.py looks for this variable when Python starts."""
    if hasattr(config, "workerinput"):
        os.environ["COVERAGE_PROCESS_START"] = os.environ[_SETTINGS]
