"""What the tree states of a version, and whether it may be released."""

import re
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

import yaml

_HEADING = re.compile(r"## (?P<version>\S+) - (?P<day>\S+)")
_LINK = re.compile(r"\[([^\]]+)\]\((?!https?:)[^)]+\)")
_DAY = re.compile(r"\d{4}-\d\d-\d\d")
_REPOSITORY = re.compile(r"[a-z0-9][a-z0-9.-]*(:\d+)?(/[a-z0-9]+([._-]+[a-z0-9]+)*)+")


def problems(root: Path, version: str, repository: str, *, trial: bool) -> list[str]:
    """Why this version cannot be released from this tree; all reasons at once.

    Args:
        root: The checkout.
        version: As `0.2.0`.
        repository: The image's name, without a tag.
        trial: Whether changes that are not committed, and a version without a day, are no reasons.
    """
    return [
        *_versions(root, version),
        *(_changelog(root, version, trial=trial) if version else ()),
        *_repository(repository),
        *([] if trial else _uncommitted(root)),
        *([] if shutil.which("helm") else ["helm is not on PATH: install Helm 3 (https://helm.sh/docs/intro/install)"]),
    ]


def _versions(root: Path, version: str) -> Iterator[str]:
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    chart = yaml.safe_load((root / "charts" / "koordgate" / "Chart.yaml").read_text(encoding="utf-8"))
    if project["version"] != version:
        given = f"{version}, but" if version else "empty:"
        yield f"VERSION is {given} pyproject.toml states {project['version']}"
    for key in ("version", "appVersion"):
        if chart[key] != project["version"]:
            stated = project["version"]
            yield f"charts/koordgate/Chart.yaml: {key} is {chart[key]}; set it to {stated}, as in pyproject.toml"


def _changelog(root: Path, version: str, *, trial: bool) -> Iterator[str]:
    day = _parts(root).get(version, ("", ""))[0]
    if not day:
        yield f"CHANGELOG.md has no part `## {version} - YYYY-MM-DD`: write what this version brings"
    elif not trial and not _DAY.fullmatch(day):
        yield f"CHANGELOG.md: {version} is {day}; write the day of the release in its heading, as YYYY-MM-DD"


def _repository(repository: str) -> Iterator[str]:
    if not _REPOSITORY.fullmatch(repository):
        yield (
            f"IMAGE is {repository or 'empty'}: name the repository from which the image will be pulled, without tag "
            "and digest, as in registry.example.com/koordgate"
        )


def _uncommitted(root: Path) -> Iterator[str]:
    done = subprocess.run(("git", "status", "--porcelain"), cwd=root, capture_output=True, text=True, check=False)
    if done.returncode:
        yield f"git does not say what is committed: {done.stderr.strip()}"
    elif done.stdout:
        files = ", ".join(line[3:] for line in done.stdout.splitlines()[:5])
        yield f"not everything is committed ({files}): commit it, or build a trial with ARGS=--trial"


def notes(root: Path, version: str) -> str:
    """The part of CHANGELOG.md about a version, without its heading.

    Links to pages of the tree lose their targets: the notes are read elsewhere.
    """
    return _LINK.sub(r"\1", _parts(root)[version][1])


def _parts(root: Path) -> dict[str, tuple[str, str]]:
    """Each version of CHANGELOG.md, with its day and its text."""
    found: dict[str, tuple[str, str]] = {}
    for part in re.split(r"^(?=## )", (root / "CHANGELOG.md").read_text(encoding="utf-8"), flags=re.MULTILINE):
        heading, _, text = part.partition("\n")
        if match := _HEADING.fullmatch(heading.strip()):
            found[match["version"]] = (match["day"], text.strip() + "\n")
    return found


def commit_time(root: Path) -> int:
    """When the commit was made, in seconds since 1970: the time of all files that are built from it."""
    asked = ("git", "log", "-1", "--format=%ct")
    return int(subprocess.run(asked, cwd=root, check=True, capture_output=True, text=True).stdout)
