"""`make image`: what each engine is asked to do, and what is refused. The engines are recorders on PATH."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PINNED = "registry.example.com/python@sha256:" + "a" * 64
GIVEN = {"IMAGE": "registry.example.com/koordgate:1", "BASE": PINNED}
# Records its arguments, and writes the list of packages where `--output` wants it.
RECORDER = """#!/bin/sh
echo "$(basename "$0") $*" >> "$CALLS"
for word; do
    case $word in type=local,dest=*) echo list > "${word#type=local,dest=}/sbom.cdx.json" ;; esac
done
"""


def build(folder: Path, engines: tuple[str, ...], **given: str) -> tuple[int, list[str], str]:
    """Run the script; returns its status, the calls of engines, and what it wrote on standard error."""
    tools = folder / "bin"
    tools.mkdir()
    for name in ("sh", "dirname", "basename", "expr", "sed", "git", "mktemp", "rm", "mkdir", "cp"):
        (tools / name).symlink_to(shutil.which(name) or name)
    for name in engines:
        (tools / name).write_text(RECORDER)
        (tools / name).chmod(0o755)
    calls = folder / "calls"
    calls.touch()
    env = {
        "PATH": str(tools),
        "CALLS": str(calls),
        "HOME": os.environ["HOME"],
        "SBOM": str(folder / "sbom.json"),
        **given,
    }
    done = subprocess.run([ROOT / "image" / "build.sh"], env=env, capture_output=True, text=True, check=False)
    return done.returncode, calls.read_text().splitlines(), done.stderr


@pytest.mark.parametrize(
    ("engines", "given", "wanted"),
    [
        pytest.param(("docker",), {"IMAGE": ""}, "IMAGE is empty", id="no name"),
        pytest.param(("docker",), {"BASE": ""}, "BASE is empty", id="no base"),
        pytest.param(("docker",), {"BASE": "python:3.13"}, "add its digest, as in python:3.13@sha256:", id="tag"),
        pytest.param(("docker",), {"BASE": PINNED[:-1]}, "add its digest", id="short digest"),
        pytest.param(
            ("docker",), {"BASE": "p:1@sha256:DIGEST"}, "as in p:1@sha256:DIGEST (64", id="the word of the example"
        ),
        pytest.param(("docker",), {"RUNTIME": "distroless"}, "RUNTIME is distroless", id="runtime by tag"),
        pytest.param(("docker",), {"PUSH": "1"}, "PUSH is 1: set it to yes", id="another word for yes"),
        pytest.param(
            ("docker",), {"PLATFORMS": "linux/amd64,linux/arm64"}, "PUSH=yes or ARCHIVE", id="two platforms kept here"
        ),
        pytest.param(("docker",), {"PUSH": "yes", "ARCHIVE": "/a.tar"}, "exclude each other", id="pushed and kept"),
        pytest.param((), {}, "neither docker nor podman nor buildah", id="no engine"),
        pytest.param(("docker",), {"ENGINE": "podman"}, "podman, which is not on PATH", id="engine that is not there"),
        pytest.param(("docker",), {"ENGINE": "kaniko"}, "set it to docker, podman or buildah", id="unknown engine"),
    ],
)
def test_what_cannot_be_built_is_refused_with_the_remedy(
    tmp_path: Path, engines: tuple[str, ...], given: dict[str, str], wanted: str
) -> None:
    status, calls, said = build(tmp_path, engines, **{**GIVEN, **given})
    assert (status, calls) == (2, [])
    assert wanted in said


@pytest.mark.parametrize(
    ("engines", "given", "ends"),
    [
        pytest.param(("docker", "podman"), {}, [f"--tag {GIVEN['IMAGE']} --load ."], id="docker first"),
        pytest.param(("podman", "buildah"), {}, [f"--target image --tag {GIVEN['IMAGE']} ."], id="podman"),
        pytest.param(
            ("buildah",),
            {"PUSH": "yes"},
            [" .", f" push {GIVEN['IMAGE']} docker://{GIVEN['IMAGE']}"],
            id="pushed by buildah",
        ),
        pytest.param(
            ("docker",),
            {"PUSH": "yes", "PLATFORMS": "linux/amd64,linux/arm64"},
            [f"--platform linux/amd64,linux/arm64 --tag {GIVEN['IMAGE']} --push ."],
            id="two platforms by docker",
        ),
        pytest.param(
            ("podman",),
            {"PUSH": "yes", "PLATFORMS": "linux/amd64,linux/arm64"},
            [
                f"podman manifest rm {GIVEN['IMAGE']}",
                f"--manifest {GIVEN['IMAGE']} .",
                f"podman manifest push --all {GIVEN['IMAGE']} docker://{GIVEN['IMAGE']}",
            ],
            id="two platforms by podman",
        ),
        pytest.param(
            ("docker",),
            {"ARCHIVE": "/a.tar", "PLATFORMS": "linux/amd64,linux/arm64"},
            [f"--platform linux/amd64,linux/arm64 --output type=oci,dest=/a.tar,name={GIVEN['IMAGE']} ."],
            id="two platforms kept by docker",
        ),
        pytest.param(
            ("buildah",),
            {"ARCHIVE": "/a.tar"},
            [f"--tag {GIVEN['IMAGE']} .", f"buildah push {GIVEN['IMAGE']} oci-archive:/a.tar:{GIVEN['IMAGE']}"],
            id="kept by buildah",
        ),
        pytest.param(
            ("podman",),
            {"ARCHIVE": "/a.tar", "PLATFORMS": "linux/amd64,linux/arm64"},
            [
                f"podman manifest rm {GIVEN['IMAGE']}",
                f"--manifest {GIVEN['IMAGE']} .",
                f"podman manifest push --all {GIVEN['IMAGE']} oci-archive:/a.tar:{GIVEN['IMAGE']}",
            ],
            id="two platforms kept by podman",
        ),
    ],
)
def test_each_engine_is_asked_for_the_list_of_packages_and_then_for_the_image(
    tmp_path: Path, engines: tuple[str, ...], given: dict[str, str], ends: list[str]
) -> None:
    status, (first, *calls), said = build(tmp_path, engines, **GIVEN, **given)
    assert status == 0, said
    assert " --target sbom --output type=local,dest=" in first
    assert "amd64,linux" not in first
    assert (tmp_path / "sbom.json").read_text() == "list\n"
    assert len(calls) == len(ends)
    for call, end in zip(calls, ends, strict=True):
        assert call.endswith(end)
        assert call.startswith(f"{engines[0]} ")


# Records its arguments, and finds no wheel on one machine.
PIP = """#!/bin/sh
echo "$*" >> "$CALLS"
case $* in *manylinux2014_"$LACKING"*) exit 1 ;; esac
"""


def wheels(folder: Path, lacking: str) -> tuple[int, list[str], str]:
    """Run the check of the pins; returns its status, what pip was asked, and what it wrote on standard error."""
    pip, calls = folder / "pip", folder / "calls"
    pip.write_text(PIP)
    pip.chmod(0o755)
    env = {**os.environ, "PIP": str(pip), "CALLS": str(calls), "LACKING": lacking}
    done = subprocess.run([ROOT / "image" / "wheels.sh"], env=env, capture_output=True, text=True, check=False)
    return done.returncode, calls.read_text().splitlines(), done.stderr


def test_pins_are_asked_for_on_both_machines_and_on_each_python_with_their_hashes(tmp_path: Path) -> None:
    status, calls, _ = wheels(tmp_path, lacking="none")
    assert status == 0
    asked = {(call.split("manylinux2014_")[1].split()[0], call.split()[-1]) for call in calls}
    assert asked == {
        (machine, file) for machine in ("x86_64", "aarch64") for file in ("requirements.txt", "image/tools.txt")
    }
    assert len(calls) == 16
    assert all("--require-hashes --only-binary :all:" in call for call in calls)


def test_a_pin_without_a_wheel_for_one_machine_is_refused_by_name(tmp_path: Path) -> None:
    status, _, said = wheels(tmp_path, lacking="aarch64")
    assert status == 1
    assert "requirements.txt: a package has no wheel for Python 3.11 on aarch64" in said


def test_secrets_of_the_index_are_mounted_and_are_no_arguments_of_the_build(tmp_path: Path) -> None:
    _, calls, _ = build(tmp_path, ("docker",), **GIVEN, PIP_CONFIG="/etc/pip.conf", PIP_CA="/etc/ca.crt")
    for call in calls:
        assert "--secret id=pip,src=/etc/pip.conf --secret id=ca,src=/etc/ca.crt" in call


def test_a_base_without_a_digest_is_taken_when_that_is_said(tmp_path: Path) -> None:
    status, calls, _ = build(tmp_path, ("docker",), IMAGE=GIVEN["IMAGE"], BASE="python:3.13", UNPINNED="yes")
    assert status == 0
    assert all("BASE=python:3.13 --build-arg RUNTIME=python:3.13" in call for call in calls)
