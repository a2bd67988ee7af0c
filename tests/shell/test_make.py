import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]
PINS = ("requirements-pip.txt", "requirements.txt", "requirements-build.txt", "requirements-docs.txt", "pyproject.toml")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder in which only the Makefile says something."""
    shutil.copy(CHECKOUT / "Makefile", tmp_path)
    for name in PINS:
        (tmp_path / name).touch()
    return tmp_path


def script(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def make(checkout: Path, target: str, python: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["make", target, f"PYTHON={python}"], cwd=checkout, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(("target", "made"), [("demo", ".venv"), ("setup", ".venv"), ("docs", ".venv-docs")])
def test_a_python_that_is_named_and_too_old_is_refused_before_anything_is_made(
    checkout: Path, target: str, made: str
) -> None:
    old = script(checkout / "old", "exit 1")  # as a Python that is asked whether it is new enough
    done = make(checkout, target, old)
    assert done.returncode != 0
    assert f"needs Python 3.11 or newer ({old} is none)" in done.stderr
    assert not (checkout / made).exists()


@pytest.mark.parametrize(
    ("held", "option"),
    [("exit 1", "-m venv --clear .venv"), ("exit 0", "-m venv .venv"), (None, "-m venv --clear .venv")],
    ids=["older", "new enough", "none"],
)
def test_an_environment_of_an_older_python_is_made_again_and_another_is_kept(
    checkout: Path, held: str | None, option: str
) -> None:
    if held is not None:
        script(checkout / ".venv/bin/python", held)
    new = script(checkout / "new", f'case "$1" in -c) exec {sys.executable} "$@";; esac; echo "$*"; exit 3')
    done = make(checkout, ".venv/.runs", new)
    assert option in done.stdout.splitlines()
