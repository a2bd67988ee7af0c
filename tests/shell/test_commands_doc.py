"""Every command in the documents: those that need no cluster are run, of the others the arguments are parsed."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
import yaml

from koordgate import cli

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    (
        *ROOT.glob("*.md"),
        *(ROOT / "docs").rglob("*.md"),
        ROOT / "charts" / "koordgate" / "README.md",
        ROOT / "examples" / "recipes" / "README.md",
    )
)
FIRST_HOUR = ROOT / "docs" / "start" / "first-hour.md"
HISTORY = {"CHANGELOG.md"}  # it may name commands of old releases
PROGRAMS = {"koordgate", ".venv/bin/koordgate"}
KNOWN = {*PROGRAMS, "kubectl", "helm"}
OUTPUT = re.compile(r"^\S+(?: serve)? \S+: |──")  # what a program writes, or a picture
PLAIN = {"", "sh"}  # blocks that are commands, or text
FENCE = re.compile(r"^( *)```([a-z]*)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
VERBS = re.compile(
    r"annotate|api-resources|apply|auth|cordon|create|delete|describe|drain|edit|explain|exec|get|label|logs|patch|"
    r"port-forward|proxy|replace|rollout|run|scale|taint|top|wait"
)
HELM = {"get", "install", "rollback", "show", "template", "test", "uninstall", "upgrade"}


def blocks(page: Path, languages: set[str]) -> Iterator[str]:
    for indent, language, body in FENCE.findall(page.read_text(encoding="utf-8")):
        if language in languages:
            yield "".join(line.removeprefix(indent) for line in body.splitlines(keepends=True))


def lines(block: str) -> Iterator[str]:
    """The commands of a block: wrapped lines are joined; the texts of here-documents are left out."""
    ending = ""
    for line in block.replace("\\\n", " ").splitlines():
        if ending:
            ending = "" if line.strip() == ending else ending
            continue
        if found := re.search(r"<<-?\s*['\"]?(\w+)", line):
            ending = found[1]
        yield line.strip().removeprefix("$ ")


def commands() -> Iterator[tuple[str, str]]:
    """Each command of our program, kubectl or helm, with the page that it is on."""
    for page in PAGES:
        if page.name in HISTORY:
            continue
        for block in blocks(page, PLAIN):
            for line in (one.removeprefix("kubectl ") if "kubectl koordgate " in one else one for one in lines(block)):
                if line.partition(" ")[0] not in KNOWN or OUTPUT.search(line):
                    continue
                for part in re.split(r"\s\|\s|\s&&\s|\s\|\|\s|;\s", line.partition(" #")[0]):
                    if part.split(" ")[0] in KNOWN and " " in part:
                        yield page.relative_to(ROOT).as_posix(), part.strip()


EVERY = sorted(set(commands()))
OURS = [one for one in EVERY if one[1].split()[0] in PROGRAMS]


def words(command: str) -> list[str]:
    """The words of a command before any redirection, without the program."""
    return shlex.split(re.split(r"\s[<>]", command)[0])[1:]


def named(one: tuple[str, str]) -> str:
    return f"{one[0]}: {one[1][:60]}"


def test_commands_are_found() -> None:
    assert len(OURS) > 40
    assert {"simulate", "explain", "doctor", "top", "adopt", "cleanup"} <= {words(line)[0] for _, line in OURS}


@pytest.mark.parametrize("one", OURS, ids=named)
def test_each_command_of_ours_has_the_options_that_it_is_shown_with(
    one: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = words(one[1])
    if arguments[0] == "COMMAND":
        return
    status: object = 0
    try:
        cli.parse([word for word in arguments if word != "..."])
    except SystemExit as ended:
        status = ended.code
    assert not status or "..." in arguments, capsys.readouterr().err


@pytest.mark.parametrize("one", [one for one in EVERY if one[1].startswith("kubectl ")], ids=named)
def test_each_command_of_kubectl_begins_with_one_of_its_verbs(one: tuple[str, str]) -> None:
    flags = {"-n", "--namespace", "--context"}
    rest = words(one[1])
    while rest and rest[0] in flags:
        rest = rest[2:]
    assert VERBS.fullmatch(rest[0])


@pytest.mark.parametrize("one", [one for one in EVERY if one[1].startswith("helm ")], ids=named)
def test_each_value_that_helm_is_given_is_one_of_the_chart(one: tuple[str, str]) -> None:
    values = yaml.safe_load((ROOT / "charts" / "koordgate" / "values.yaml").read_text())
    arguments = words(one[1])
    assert arguments[0] in HELM
    for flag, value in pairwise(arguments):
        if flag in {"--set", "--set-string"}:
            for pair in re.split(r",(?=[\w.]+=)", value):
                inside = values
                for key in re.sub(r"\[\d+\].*", "", pair.partition("=")[0]).split("."):
                    assert key in inside, pair
                    inside = inside[key] if isinstance(inside[key], dict) else {}


# Run


def folder(at: Path) -> Path:
    """A folder as a checkout is after `make setup`: the examples and the program, and nothing else."""
    (at / "examples").symlink_to(ROOT / "examples")
    program = at / ".venv" / "bin" / "koordgate"
    program.parent.mkdir(parents=True)
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m koordgate "$@"\n')
    program.chmod(0o755)
    return at


def ran(script: str, at: Path, **more: str) -> subprocess.CompletedProcess[str]:
    """Run a script in a folder; `more` is of its environment, where `PATH` comes after the folder's own program."""
    environment = {
        "KUBECONFIG": str(at / "none"),
        **more,
        "PATH": f"{at / '.venv' / 'bin'}{os.pathsep}{more.get('PATH', os.environ['PATH'])}",
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
        "HOME": str(at),
    }
    return subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script], cwd=at, env=environment, capture_output=True, text=True, check=False
    )


def test_the_first_hour_runs_as_it_is_written_up_to_the_playground(tmp_path: Path) -> None:
    """The rest needs a control plane: controlplane/test_playground.py."""
    at = folder(tmp_path)
    script, begun, _ = "\n".join(blocks(FIRST_HOUR, {"sh"})).partition("kubectl get pods --all-namespaces")
    assert begun
    done = ran(script, at)
    assert done.returncode == 0, done.stderr
    assert "gpu 150 is over 100, where only multiples of 100 are whole devices; ask 100 or 200" in done.stdout
    assert "scheduling.koordinator.sh/device-allocated" in done.stdout
    assert "5 of 5 checks passed" in done.stderr
    assert (at / "hour" / "map.html").read_text().startswith("<!doctype html>")


OFFLINE = [
    (page.relative_to(ROOT).as_posix(), block)
    for page in PAGES
    if page.name not in {*HISTORY, "first-hour.md"}
    for block in blocks(page, {"sh"})
    if "examples/" in block and not re.search(r"kubectl|helm|make |koordgate (?:doctor|top|snapshot)", block)
]


def test_there_are_blocks_that_run_offline() -> None:
    assert {"README.md", "docs/use/cpus.md", "examples/recipes/README.md"} <= {page for page, _ in OFFLINE}


@pytest.mark.parametrize(("page", "block"), OFFLINE, ids=lambda value: " ".join(value.split())[:60])
def test_each_block_that_needs_no_cluster_runs(page: str, block: str, tmp_path: Path) -> None:
    done = ran(block, folder(tmp_path))
    assert done.returncode == 0, f"{page}: {done.stderr}"


# Shown with what they print

SHOWN = [
    (line.removeprefix("$ "), printed)
    for block in blocks(ROOT / "docs" / "operate" / "packing.md", {""})
    if block.startswith("$ koordgate ")
    for line, _, printed in [block.partition("\n")]
]


def test_there_are_commands_that_are_shown_with_what_they_print() -> None:
    assert {words(line)[0] for line, _ in SHOWN} == {"packing"}


@pytest.mark.parametrize(("line", "printed"), SHOWN, ids=[line for line, _ in SHOWN])
def test_a_command_prints_what_its_page_shows(line: str, printed: str, tmp_path: Path) -> None:
    done = ran(line, folder(tmp_path))
    assert done.returncode == 0, done.stderr
    assert [row.rstrip() for row in done.stdout.splitlines()] == printed.splitlines()
