"""The command, run on objects in a file."""

from collections.abc import Callable
from pathlib import Path

import pytest
from commands import Answer, Raw, answer


@pytest.fixture(autouse=True)
def no_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files without a Node are read with the cluster of the kubeconfig, of which there is none here."""
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))


@pytest.fixture
def ask(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., Answer]:
    def run(*objects: Raw, words: tuple[str, ...] = ("mine", "-n", "team")) -> Answer:
        return answer("explain", objects, words, tmp_path, capsys)

    return run
