"""A real Prometheus: the one on PATH, or Debian's package, which is unpacked into the cache and never installed.

An installed package would start a service. Unpacking needs no root, and the two programs need nothing beside them.
"""

import asyncio
import contextlib
import fcntl
import functools
import shutil
import subprocess
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from aiohttp import ClientSession
from controlplane.needs import missing

from localplane.binaries import cache_folder
from localplane.process import free_port

_PACKAGE = "prometheus"


@dataclass(frozen=True)
class Programs:
    """Where Prometheus and its tool are."""

    server: Path
    tool: Path


@functools.cache
def programs() -> Programs:
    """Find both, or fetch them; without them the test is skipped with a report, and fails in CI."""
    found = [shutil.which(name) for name in ("prometheus", "promtool")]
    if all(found):
        return Programs(*(Path(one) for one in found if one))
    return Programs(*(_unpacked(name) for name in ("prometheus", "promtool")))


def _unpacked(name: str) -> Path:
    folder = cache_folder() / "debian" / _PACKAGE
    folder.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f".{_PACKAGE}.lock").open("w") as lock:  # tests run side by side
        fcntl.flock(lock, fcntl.LOCK_EX)
        program = folder / "usr" / "bin" / name
        if not program.exists():
            why = _fetch(folder)
            if not program.exists():
                missing(f"Prometheus needs Debian's package {_PACKAGE} (apt install {_PACKAGE}): {why}")
    return program


def _fetch(folder: Path) -> str:
    """Download the package and unpack it; returns why that failed, "" if it did not."""
    if not (shutil.which("apt-get") and shutil.which("dpkg-deb")):
        return "there is no apt-get here"
    download = ("apt-get", "download", _PACKAGE)
    done = _run(download, folder)
    if done.returncode:  # mostly the lists are old, or there are none yet
        _run(("apt-get", "update"), folder)
        done = _run(download, folder)
    archives = sorted(folder.glob("*.deb"))
    if done.returncode or not archives:
        return done.stderr.strip()[-500:]
    done = _run(("dpkg-deb", "--extract", str(archives[-1]), str(folder)), folder)
    for archive in archives:
        archive.unlink()
    return done.stderr.strip()[-500:]


def _run(command: tuple[str, ...], folder: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@contextlib.asynccontextmanager
async def prometheus(folder: Path, config: Mapping[str, Any]) -> AsyncIterator[str]:
    """Run Prometheus with a configuration; yields the address of its API. Its data stays in the folder.

    Args:
        folder: for its configuration, data and log.
        config: as in prometheus.yml.
    """
    (folder / "prometheus.yml").write_text(yaml.safe_dump(dict(config)))
    port = free_port()
    with (folder / "prometheus.log").open("w") as log:
        process = await asyncio.create_subprocess_exec(
            programs().server,
            f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
            "--enable-feature=exemplar-storage",
            stdout=log,
            stderr=log,
        )
    try:
        yield f"http://127.0.0.1:{port}/api/v1"
    finally:
        process.kill()
        await process.wait()


async def asked(session: ClientSession, url: str, **params: str) -> Any:
    """What its API answers; nothing while it is starting."""
    async with session.get(url, params=params) as answer:
        return {} if answer.status == 503 else await answer.json()
