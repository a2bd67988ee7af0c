"""The Pythons and wheels of the one-file client."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from packaging.markers import Marker
from packaging.utils import parse_wheel_filename

from release import ReleaseError, client

WHEELS = {
    "linux-x86_64": "numpy-2.4.6-cp312-cp312-manylinux_2_27_x86_64.manylinux_2_28_x86_64.whl",
    "linux-aarch64": "cryptography-50.0.2-cp311-abi3-manylinux_2_28_aarch64.whl",
    "macos-arm64": "orjson-3.13.0-cp312-cp312-macosx_10_15_x86_64.macosx_11_0_arm64.macosx_10_15_universal2.whl",
}


def described(folder: Path, platform: str, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What PEX is told of each Python of a platform; nothing is downloaded."""
    calls: list[list[str]] = []

    def record(argv: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        calls.append(list(argv))
        return subprocess.CompletedProcess(argv, 0, "", "")

    monkeypatch.setattr(subprocess, "run", record)
    client.build(folder, folder / "koordgate.whl", platform, 0, folder, folder / "koordgate.pyz")
    *pips, pex = calls
    assert all("--require-hashes" in call and "--only-binary=:all:" in call for call in pips)
    option = "--complete-platform="
    return [json.loads(Path(word.removeprefix(option)).read_text()) for word in pex if word.startswith(option)]


@pytest.mark.parametrize("platform", client.PLATFORMS)
def test_each_python_takes_the_wheels_of_its_platform_and_those_of_all(
    platform: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = described(tmp_path, platform, monkeypatch)
    assert [one["marker_environment"]["python_version"] for one in found] == ["3.11", "3.12", "3.13", "3.14"]
    taken = set(found[1]["compatible_tags"])
    assert {str(tag) for tag in parse_wheel_filename(WHEELS[platform])[3]} & taken
    assert "py3-none-any" in taken
    others = {str(tag) for name, wheel in WHEELS.items() if name != platform for tag in parse_wheel_filename(wheel)[3]}
    assert not {tag for tag in others & taken if "arm64" not in tag}


@pytest.mark.parametrize(
    ("platform", "marker"),
    [
        ("linux-x86_64", "sys_platform == 'linux' and platform_machine == 'x86_64' and platform_system == 'Linux'"),
        ("linux-aarch64", "sys_platform == 'linux' and platform_machine == 'aarch64' and os_name == 'posix'"),
        ("macos-arm64", "sys_platform == 'darwin' and platform_machine == 'arm64' and platform_system == 'Darwin'"),
    ],
)
def test_requirements_for_one_platform_are_judged_by_it(
    platform: str, marker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for one in described(tmp_path, platform, monkeypatch):
        assert Marker(marker).evaluate(one["marker_environment"])


def test_a_tool_that_fails_is_named_with_what_it_said(tmp_path: Path) -> None:
    with pytest.raises(ReleaseError, match=r"-m pip download failed: .*requirements.txt"):
        client.build(tmp_path, tmp_path / "koordgate.whl", "linux-x86_64", 0, tmp_path, tmp_path / "koordgate.pyz")
