"""The client as one file that needs Python and nothing else: a PEX with the wheels of each Python that it runs on.

A PEX unpacks itself where it is first run. What only servers import is left out.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from packaging import tags

from release import ReleaseError

MINORS: Final = (11, 12, 13, 14)  # of Python 3
_SERVERS: Final = ("nvidia-ml-py", "opentelemetry-exporter-otlp-proto-http", "opentelemetry-sdk", "requests", "uvloop")
_GLIBC: Final = range(28, 16, -1)  # wheels for 2.17 to 2.28 run on every distribution with a newer one


def _linux(machine: str) -> list[str]:
    return [*(f"manylinux_2_{minor}_{machine}" for minor in _GLIBC), f"manylinux2014_{machine}"]


PLATFORMS: Final[Mapping[str, tuple[str, str, list[str]]]] = {  # markers of the system and the machine, and tags
    "linux-x86_64": ("linux", "x86_64", _linux("x86_64")),
    "linux-aarch64": ("linux", "aarch64", _linux("aarch64")),
    "macos-arm64": ("darwin", "arm64", list(tags.mac_platforms((14, 0), "arm64"))),
}


def build(root: Path, wheel: Path, platform: str, when: int, folder: Path, out: Path) -> None:
    """Build the client of a platform, the same bytes each time.

    Args:
        root: The checkout.
        wheel: koordgate's own.
        platform: One of `PLATFORMS`.
        when: The time of all files in it, in seconds since 1970.
        folder: An empty one, for the wheels.
        out: The file that is made.

    Raises:
        ReleaseError: A package has no wheel for the platform, or PEX failed; the message is theirs.
    """
    system, machine, names = PLATFORMS[platform]
    pex = [sys.executable, "-m", "pex", "koordgate[console]", "--console-script=koordgate", f"--output-file={out}"]
    pex += ["--python-shebang=/usr/bin/env python3", "--venv", "--no-pre-install-wheels", "--disable-cache"]
    pex += [f"--pre-resolved-dists={wheel}", f"--pre-resolved-dists={folder}"]
    pex += [f"--exclude={name}" for name in _SERVERS]
    for minor in MINORS:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes"]
        pip += ["--only-binary=:all:", "--implementation=cp", f"--python-version=3.{minor}", f"--dest={folder}"]
        pip += [f"--platform={name}" for name in names]
        _run(root, when, *pip, f"--requirement={root / 'requirements.txt'}")
        described = folder / f"cp3{minor}.json"
        described.write_text(json.dumps(_complete(minor, system, machine, names)))
        pex.append(f"--complete-platform={described}")
    _run(root, when, *pex)


def _complete(minor: int, system: str, machine: str, names: list[str]) -> dict[str, Any]:
    """A Python on a platform as PEX reads it: its markers, and the tags of the wheels that it takes."""
    version = f"3.{minor}"
    python = {"implementation_name": "cpython", "platform_python_implementation": "CPython", "python_version": version}
    exact = {"implementation_version": f"{version}.0", "python_full_version": f"{version}.0"}
    host = {"os_name": "posix", "sys_platform": system, "platform_system": system.capitalize()}
    unknown = {"platform_release": "", "platform_version": ""}
    taken = [*tags.cpython_tags((3, minor), platforms=names), *tags.compatible_tags((3, minor), f"cp3{minor}", names)]
    return {
        "marker_environment": {**python, **exact, **host, **unknown, "platform_machine": machine},
        "compatible_tags": [str(tag) for tag in taken],
    }


def _run(root: Path, when: int, *argv: str) -> None:
    done = subprocess.run(
        argv, cwd=root, env={**os.environ, "SOURCE_DATE_EPOCH": str(when)}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise ReleaseError(f"{' '.join(argv[1:4])} failed: {done.stderr.strip()[-2000:]}")
