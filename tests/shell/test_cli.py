"""The console script: its overview, its sub-commands, and its messages about mistakes."""

import subprocess
import sys
from importlib.metadata import entry_points, version
from pathlib import Path

import pytest

from koordgate.cli import Command, main
from localplane.replicas import this_koordgate

COMMANDS = sorted(point.name for point in entry_points(group="koordgate.commands"))


def ends(code: int, *arguments: str) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == code


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"]])
def test_the_overview_names_every_command_with_a_summary(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    ends(0, *arguments)
    lines = capsys.readouterr().out.splitlines()
    for name in COMMANDS:
        (line,) = [line.strip() for line in lines if line.strip().startswith(f"{name} ")]
        assert len(line.removeprefix(name).strip()) > 20


def test_the_version_is_the_packages(capsys: pytest.CaptureFixture[str]) -> None:
    ends(0, "--version")
    assert capsys.readouterr().out == f"koordgate {version('koordgate')}\n"


@pytest.mark.parametrize("wrong", ["webhok", "", "Webhook", "--nothing"])
def test_an_unknown_command_is_a_2_that_names_those_there_are(wrong: str, capsys: pytest.CaptureFixture[str]) -> None:
    ends(2, wrong)
    said = capsys.readouterr()
    assert said.out == ""
    assert "usage: koordgate" in said.err
    assert wrong.startswith("--") or all(name in said.err for name in COMMANDS)


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["simulat"], "simulate"),
        (["Webhook"], "webhook"),
        (["simulate", "-f", "-", "-o", "jsn"], "json"),
        (["simulate", "-f", "-", "--gpu-memroy", "1Gi"], "--gpu-memory"),
        (["adopt", "chek"], "check"),
        (["translate", "-f", "-", "--to", "volcanos"], "volcano"),
    ],
)
def test_a_misspelt_word_is_answered_with_the_one_that_was_meant(
    words: list[str], meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    ends(2, *words)
    assert capsys.readouterr().err.endswith(f"; did you mean {meant}?\n")


def test_a_word_that_is_like_none_is_answered_without_a_guess(capsys: pytest.CaptureFixture[str]) -> None:
    ends(2, "zzz")
    ends(2, "simulate", "-f", "-", "--zzz")
    assert "did you mean" not in capsys.readouterr().err


def test_a_command_that_is_not_the_first_argument_is_a_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    ends(2, "--", "webhook")
    assert "give the command first" in capsys.readouterr().err


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_can_be_loaded_and_helps_with_examples(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    (point,) = entry_points(group="koordgate.commands", name=name)
    assert isinstance(point.load(), Command)
    ends(0, name, "--help")
    said = capsys.readouterr().out
    assert f"usage: koordgate {name}" in said
    assert "examples:" in said
    assert f"  koordgate {name}" in said


def test_the_overview_imports_no_command(tmp_path: Path) -> None:
    """`--help` answers immediately, on any machine, without what the command needs."""
    code = (
        "import sys; from koordgate.cli import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'webhook', 'aiohttp', 'kubernetes_asyncio', 'cryptography', 'msgspec'} & set(sys.modules)\n"
        "sys.exit(f'imported: {heavy}' if heavy else 0)"
    )
    ran = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr


def test_it_runs_as_a_module_from_anywhere(tmp_path: Path) -> None:
    argv = [*this_koordgate(), "--version"]
    ran = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout) == (0, f"koordgate {version('koordgate')}\n")


# --- koordgate webhook


def test_settings_can_be_checked_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("logLevel: debug", encoding="utf-8")
    assert main(["webhook", "--config", str(file), "--check"]) == 0
    assert capsys.readouterr().out == f"{file}: all right\n"
    file.write_text("serve: {prot: 1}", encoding="utf-8")
    assert main(["webhook", "--config", str(file), "--check"]) == 2
    assert "prot" in capsys.readouterr().err


def test_the_settings_must_be_given(capsys: pytest.CaptureFixture[str]) -> None:
    ends(2, "webhook")
    assert "--config" in capsys.readouterr().err


def test_without_a_cluster_the_webhook_says_so_and_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("", encoding="utf-8")
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "absent"))
    code = f"import sys; from koordgate.cli import main\nsys.exit(main(['webhook', '--config', {str(file)!r}]))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert ran.returncode == 1
    assert ran.stderr.splitlines()[-1].startswith("koordgate webhook: ")
    assert "Traceback" not in ran.stderr
    assert capsys.readouterr().out == ""
