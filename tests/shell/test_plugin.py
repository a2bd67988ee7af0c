"""The program as a plugin of kubectl, and what completes its words in shells."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from console.completion import script
from koordgate.cli import main, names, whole_parser

COMMANDS = names()


def called(monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    monkeypatch.setattr("sys.argv", [program])


def help_of(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit, match="0"):
        main([*words, "--help"])
    return capsys.readouterr().out


CLUSTER = (
    *(["top"], ["pod"], ["explain", "p"], ["packing"], ["cordon", "GPU-1234"], ["uncordon", "GPU-1234"]),
    *(["drain", "GPU-1234"], ["adopt", "check"], ["snapshot"], ["cleanup"]),
)
"""The commands that end where there is no cluster."""


@pytest.mark.parametrize(
    ("program", "name"),
    [
        ("/usr/local/bin/kubectl-koordgate", "kubectl koordgate"),
        ("kubectl-koordgate.exe", "kubectl koordgate"),
        ("/usr/local/bin/koordgate", "koordgate"),
        ("/src/koordgate/__main__.py", "koordgate"),
        ("/usr/local/bin/wrapper", "koordgate"),
        ("", "koordgate"),
    ],
)
def test_the_program_names_itself_as_it_was_called(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], program: str, name: str
) -> None:
    called(monkeypatch, program)
    assert f"usage: {name} [-h] [--version] COMMAND" in help_of(capsys)
    told = help_of(capsys, "top")
    assert f"usage: {name} top " in told
    assert f"  {name} top gpu-node-1 --watch" in told


def test_a_message_begins_with_the_command_as_it_was_called(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    called(monkeypatch, "kubectl-koordgate")
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "absent"))
    for words in CLUSTER:
        assert main(words) == 1
        told = capsys.readouterr().err
        assert told.startswith(f"kubectl koordgate {words[0]}: ")
        assert "write the kubeconfig there, or name it in $KUBECONFIG" in told


# Completion


def test_one_parser_has_all_commands() -> None:
    told = whole_parser().format_help()
    assert all(f"    {name} " in told or f"    {name}\n" in told for name in COMMANDS)


@pytest.fixture(scope="module")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("bin") / "kubectl_complete-koordgate"
    file.write_text(script("kubectl"), encoding="utf-8")
    file.chmod(0o755)
    return file


COMPLETED = {
    "the commands": ([""], {*COMMANDS}, set()),
    "the beginning of a command": (["unc"], {"uncordon"}, {"cordon"}),
    "options": (["top", "--"], {"--watch", "--output", "--context"}, {"--timeout"}),
    "the values of an option": (["top", "-o", ""], {"table", "wide", "json", "yaml"}, {"text"}),
    "another command's": (["drain", "--t"], {"--timeout"}, {"--context"}),
    "shells": (["completion", ""], {"bash", "zsh", "fish", "kubectl"}, {"top"}),
    "what a hostile word would run": (["$(touch hacked)`touch hacked`"], set(), set(COMMANDS)),
}


@pytest.mark.parametrize(("words", "offered", "not_offered"), COMPLETED.values(), ids=COMPLETED)
def test_kubectl_completes_the_plugin(
    plugin: Path, tmp_path: Path, words: list[str], offered: set[str], not_offered: set[str]
) -> None:
    ran = subprocess.run([str(plugin), *words], cwd=tmp_path, capture_output=True, text=True, check=True)
    *candidates, directive = ran.stdout.splitlines()
    assert directive == ":4"
    assert offered <= set(candidates)
    assert not not_offered & set(candidates)
    assert list(tmp_path.iterdir()) == []


def test_bash_completes_the_program(tmp_path: Path) -> None:
    file = tmp_path / "koordgate"
    file.write_text(script("bash"), encoding="utf-8")
    code = (
        f"source {file}; COMP_WORDS=(koordgate cordon --d); COMP_CWORD=2; "
        "_shtab_koordgate koordgate --d cordon 2>/dev/null; echo ${COMPREPLY[@]}"
    )
    ran = subprocess.run(["bash", "--norc", "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["--dry-run"]


@pytest.mark.parametrize(("shell", "marks"), [("zsh", "#compdef koordgate"), ("fish", "complete -c koordgate")])
def test_other_shells_get_a_script_of_theirs(shell: str, marks: str, tmp_path: Path) -> None:
    text = script(shell)
    assert marks in text
    assert all(name in text for name in COMMANDS)
    if found := shutil.which(shell):
        file = tmp_path / "script"
        file.write_text(text, encoding="utf-8")
        subprocess.run([found, "-n", str(file)], check=True, env={**os.environ, "HOME": str(tmp_path)})


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish", "kubectl"])
def test_the_script_is_printed(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    assert capsys.readouterr().out == f"{script(shell).rstrip()}\n"


def test_a_shell_that_is_not_known_is_told_with_those_that_are(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["completion", "ksh"])
    assert "'bash', 'zsh', 'fish', 'kubectl'" in capsys.readouterr().err
