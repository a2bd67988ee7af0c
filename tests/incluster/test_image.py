"""The image itself: what it holds, what it says of itself, and what it lacks."""

import json
import re
import tomllib
from pathlib import PurePosixPath

from incluster import built

# What a publisher may call a shell, and a program that is one by another name.
SHELLS = {"sh", "ash", "bash", "busybox", "csh", "dash", "fish", "ksh", "ksh93", "mksh", "rbash", "tcsh", "zsh"}
LISTED = "/opt/koordgate/share/sbom.cdx.json"


async def test_the_list_of_packages_names_every_pinned_requirement(release: built.Release) -> None:
    listed = {
        (part["name"].lower().replace("_", "-"), part["version"])
        for part in json.loads(release.sbom.read_text())["components"]
    }
    lines = (built.ROOT / "requirements.txt").read_text().splitlines()
    pinned = {tuple(line.split()[0].split("==")) for line in lines if "==" in line and not line.startswith((" ", "#"))}
    assert len(pinned) > 30
    assert pinned <= listed


async def test_there_is_no_shell_in_any_layer(release: built.Release) -> None:
    programs = {PurePosixPath(name) for name in release.files() if PurePosixPath(name).parent.name in {"bin", "sbin"}}
    assert PurePosixPath("/opt/koordgate/bin/koordgate") in programs
    assert not {program for program in programs if program.name in SHELLS}


async def test_its_labels_say_what_it_is_and_where_the_list_of_packages_is(release: built.Release) -> None:
    labels = release.config()["Labels"]
    project = tomllib.loads((built.ROOT / "pyproject.toml").read_text())["project"]
    told = {name.removeprefix("org.opencontainers.image."): text for name, text in labels.items()}
    assert (told["title"], told["version"]) == ("koordgate", project["version"])
    assert told["licenses"] == project["license"]
    assert told["description"]
    assert re.fullmatch(r"[0-9a-f]{40}(-changed)?", told["revision"])
    assert re.fullmatch(r"localhost/koordgate-runtime@sha256:[0-9a-f]{64}", told["base.name"])
    assert labels["io.koordgate.sbom"] == LISTED
    assert LISTED in release.files()


async def test_it_starts_koordgate_without_a_shell_as_a_user_without_rights(release: built.Release) -> None:
    config = release.config()
    assert (config["Entrypoint"], config.get("Cmd") or []) == (["koordgate"], [])
    assert config["User"] == "65532:65532"
