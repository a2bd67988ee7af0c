"""The console script: its overview, its commands and servers, its help, and its messages about mistakes."""

import argparse
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest
import yaml

from koordgate import cli
from koordgate.cli import GROUPS, SERVERS, Command, commands, load, main, names, parser_of
from koordgate.topics import REQUESTS, TOPICS
from localplane.replicas import this_koordgate

OURS = [*names(), *(f"serve {name}" for name in SERVERS)]


def ends(code: int, *arguments: str) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == code


def test_each_command_that_is_installed_is_one_that_is_shown() -> None:
    assert {*commands(), "help", "version"} == {*names(), *SERVERS}


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"]])
def test_the_overview_names_every_command_in_its_group_and_no_server(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    ends(0, *arguments)
    lines = capsys.readouterr().out.splitlines()
    for title, group in GROUPS.items():
        first = lines.index(f"{title}:") + 1
        shown = dict(line.split(maxsplit=1) for line in lines[first : first + len(group)])
        assert shown == group
    assert not [line for line in lines if line.split()[:1] and line.split()[0] in SERVERS]


@pytest.mark.parametrize("arguments", [["serve"], ["serve", "--help"], ["help", "serve"]])
def test_the_servers_are_listed_under_serve(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    ends(0, *arguments)
    lines = capsys.readouterr().out.splitlines()
    assert all(any(line.startswith(f"  {name} ") for line in lines) for name in SERVERS)


def test_the_version_is_the_packages(capsys: pytest.CaptureFixture[str]) -> None:
    ends(0, "--version")
    assert capsys.readouterr().out == f"koordgate {version('koordgate')}\n"
    assert main(["version"]) == 0
    assert capsys.readouterr().out == f"koordgate {version('koordgate')}\n"


def test_an_interrupt_while_a_command_is_imported_is_told_in_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(_: str) -> Command:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "load", interrupted)
    assert main(["top"]) == 130
    assert capsys.readouterr() == ("", "koordgate: interrupted\n")


@pytest.mark.parametrize("wrong", ["tpo", "", "Top", "--nothing", "webhook"])
def test_an_unknown_command_is_a_2(wrong: str, capsys: pytest.CaptureFixture[str]) -> None:
    ends(2, wrong)
    said = capsys.readouterr()
    assert said.out == ""
    assert "usage: koordgate" in said.err


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["simulat"], "simulate"),
        (["Top"], "top"),
        (["webhook"], "serve webhook"),
        (["serve", "reportr"], "serve reporter"),
        (["top", "--wacth"], "--watch"),
        (["top", "-o", "jsn"], "json"),
        (["simulate", "-f", "-", "-o", "jsn"], "json"),
        (["simulate", "-f", "-", "--gpu-memroy", "1Gi"], "--gpu-memory"),
        (["adopt", "chek"], "check"),
        (["adopt", "check", "--kubconfig", "x"], "--kubeconfig"),
        (["adopt", "switch", "a", "--to", "shadwo"], "shadow"),
        (["cordon", "GPU-1234", "--dry-run=clinet"], "client"),
        (["translate", "-f", "-", "--to", "volcanos"], "volcano"),
    ],
)
def test_a_misspelt_word_is_answered_with_the_one_that_was_meant(
    words: list[str], meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    ends(2, *words)
    assert capsys.readouterr().err.endswith(f"; did you mean {meant}?\n")


@pytest.mark.parametrize("words", [["doctor", "-n", "gpus"], ["cleanup", "--yes", "--namespace", "gpus"]])
def test_the_namespace_of_the_release_is_asked_for_by_another_name(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    ends(2, *words)
    assert capsys.readouterr().err.endswith("; --installed-in says where koordgate is installed\n")


def test_a_word_that_is_like_none_is_answered_without_a_guess(capsys: pytest.CaptureFixture[str]) -> None:
    ends(2, "zzz")
    ends(2, "simulate", "-f", "-", "--zzz")
    assert "did you mean" not in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ["cleanup", "--ye"],
        ["adopt", "switch", "a", "--to", "off", "--forc"],
        ["drain", "GPU-1234", "--time", "1"],
        ["serve", "reporter", "--onc", "--dry-run"],
    ],
)
def test_an_abbreviated_option_is_a_mistake(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    ends(2, *words)
    assert "unrecognized arguments: --" in capsys.readouterr().err


def test_a_command_that_is_not_the_first_argument_is_a_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    ends(2, "--", "top")
    assert "give the command first" in capsys.readouterr().err


@pytest.mark.parametrize("name", OURS)
def test_every_command_can_be_loaded_and_helps_with_examples(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert isinstance(load(name), Command)
    ends(0, *name.split(), "--help")
    said = capsys.readouterr().out
    assert f"usage: koordgate {name}" in said
    assert "examples:" in said
    assert f"  koordgate {name}" in said
    ends(0, "help", *name.split())
    assert capsys.readouterr().out == said


@pytest.mark.parametrize("name", TOPICS)
def test_a_topic_is_explained_in_80_columns(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["help", name]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) > 5
    assert [line for line in lines if len(line) > 80] == []


@pytest.mark.parametrize("words", [[], ["serve"], ["adopt", "check"], *(name.split() for name in OURS)])
def test_help_has_80_columns(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    ends(0, "help", *words)
    assert [line for line in capsys.readouterr().out.splitlines() if len(line) > 80] == []


@pytest.mark.parametrize(
    ("word", "meant"), [("simulat", "simulate"), ("request", "requests"), ("exitcodes", "exit-codes")]
)
def test_help_that_does_not_exist_is_a_2_with_what_was_meant(
    word: str, meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["help", word]) == 2
    assert capsys.readouterr().err.endswith(f"; did you mean {meant}?\n")
    assert main(["help", "zzz"]) == 2
    assert capsys.readouterr().err.endswith("; the topics are requests, kubeconfig, exit-codes\n")


ASKED = [line.split("  ")[1] for line in REQUESTS.splitlines() if line.startswith("  ") and ": " in line]


@pytest.mark.parametrize("line", ASKED)
def test_each_request_that_is_explained_is_admitted(
    line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = yaml.safe_load(line)
    if set(asked) & {"kubernetes.io/gpu-core", "kubernetes.io/gpu.shared"}:  # they are said to need another beside them
        asked["kubernetes.io/gpu-memory-ratio"] = 60
    container = {"name": "main", "image": "main:1", "resources": {"limits": asked}}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": [container]}}
    file = tmp_path / "pod.yaml"
    file.write_text(yaml.safe_dump(pod))
    assert main(["translate", "-f", str(file)]) == 0
    said = capsys.readouterr()
    assert "schedulerName: koord-scheduler" in said.out
    assert said.err == ""


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


# --- koordgate serve webhook


def test_settings_can_be_checked_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("logLevel: debug", encoding="utf-8")
    assert main(["serve", "webhook", "--config", str(file), "--check"]) == 0
    assert capsys.readouterr().out == f"{file}: all right\n"
    file.write_text("serve: {prot: 1}", encoding="utf-8")
    assert main(["serve", "webhook", "--config", str(file), "--check"]) == 2
    assert "prot" in capsys.readouterr().err


def test_the_settings_must_be_given(capsys: pytest.CaptureFixture[str]) -> None:
    ends(2, "serve", "webhook")
    assert "--config" in capsys.readouterr().err


def test_without_a_cluster_the_webhook_says_so_and_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("", encoding="utf-8")
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "absent"))
    words = ["serve", "webhook", "--config", str(file)]
    code = f"import sys; from koordgate.cli import main\nsys.exit(main({words!r}))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert ran.returncode == 1
    assert ran.stderr.splitlines()[-1].startswith("koordgate serve webhook: ")
    assert "Traceback" not in ran.stderr
    assert capsys.readouterr().out == ""


# --- Options, which mean the same everywhere

CLUSTER = ["--config", "--context", "--installed-in", "--kubeconfig"]
READS_CLUSTER = {
    *("doctor", "top", "pod", "explain", "packing", "cordon", "uncordon", "drain"),
    *("adopt check", "adopt report", "adopt switch", "snapshot", "cleanup"),
}
NO_SETTINGS = {"doctor", "cleanup"}  # they judge what is installed
FORMATS = {"table", "wide", "json", "yaml"}


def parsers() -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Each command that takes options, with its parser."""
    for name in OURS:
        made: argparse.ArgumentParser = parser_of(name)
        nested = [action for action in made._actions if isinstance(action, argparse._SubParsersAction)]
        yield from (
            ((f"{name} {verb}", child) for one in nested for verb, child in one.choices.items())
            if nested
            else [(name, made)]
        )


def options(made: argparse.ArgumentParser) -> dict[str, argparse.Action]:
    return {flag: action for action in made._actions for flag in action.option_strings}


def test_each_command_that_reads_a_cluster_has_the_same_options_for_it() -> None:
    found = {
        name: sorted(set(options(made)) & set(CLUSTER)) for name, made in parsers() if "--context" in options(made)
    }
    assert found == {name: CLUSTER[name in NO_SETTINGS :] for name in READS_CLUSTER}


def test_a_namespace_is_always_that_of_pods() -> None:
    about = {name: options(made)["-n"] for name, made in parsers() if "-n" in options(made)}
    assert {name for name, made in parsers() if "--namespace" in options(made)} == set(about)
    assert set(about) == {"top", "pod", "explain", "snapshot"}


def test_a_format_of_output_has_one_name() -> None:
    found = {name: options(made)["-o"] for name, made in parsers() if "-o" in options(made)}
    assert all(action.choices and set(action.choices) <= FORMATS for action in found.values())
    assert all("--output" in action.option_strings for action in found.values())
    assert "--output" not in {flag for name, made in parsers() if name not in found for flag in options(made)}
