"""The files of a release, built by `make release`'s program with buildah and kept in the cache.

The image is built on a base of Debian packages, and stands on the same base without its shells.
"""

import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from node import machine

from localplane.binaries import cache_folder

ROOT = Path(__file__).resolve().parents[2]
_REPOSITORY = "localhost/koordgate"
_SUITE = "bookworm"
_INCLUDED = "python3,python3-venv,ca-certificates"
_BASE = f"localhost/koordgate-base:{_SUITE}-{hashlib.sha256(_INCLUDED.encode()).hexdigest()[:12]}"
# All shells of the base, without which the image must run.
_REMOVED = ("/bin/sh", "/bin/dash", "/bin/bash", "/bin/rbash")
_WITHOUT = f"FROM {_BASE}\nRUN {json.dumps(['rm', *_REMOVED])}\n"
_RUNTIME = f"localhost/koordgate-runtime:{_SUITE}-{hashlib.sha256(_WITHOUT.encode()).hexdigest()[:12]}"
_CONTEXT = (
    *("CHANGELOG.md", "Dockerfile", ".dockerignore", "LICENSE", "README.md", "pyproject.toml", "requirements.txt"),
    *("allocator", "charts", "console", "examples", "image", "koordgate", "release", "reporter", "webhook"),
)
_AUTHORITIES = "/etc/ssl/certs/ca-certificates.crt"  # those that this machine trusts; an index of its own may need one
_TOOLS = ("buildah", "mmdebstrap")
_HERE = f"linux-{platform.machine()}"


class ReleaseError(RuntimeError):
    """The release cannot be built; the message says why."""


@dataclass(frozen=True)
class Release:
    """The files of a release.

    Attributes:
        folder: Where they are.
        version: Which one it is.
        repository: The name of its image.
    """

    folder: Path
    version: str
    repository: str = _REPOSITORY

    @property
    def image(self) -> Path:
        """The image, as an OCI archive."""
        return self.folder / f"koordgate-{self.version}-image.tar"

    @property
    def sbom(self) -> Path:
        """The list of its Python packages."""
        return self.folder / f"koordgate-{self.version}.cdx.json"

    @property
    def chart(self) -> Path:
        """The chart, as a package."""
        return self.folder / f"koordgate-{self.version}.tgz"

    @property
    def client(self) -> Path:
        """The client for this machine, as one file."""
        return self.folder / f"koordgate-{self.version}-{_HERE}.pyz"

    def digest(self) -> str:
        """The digest of the image."""
        with tarfile.open(self.image) as archive:
            return _listed(archive)

    def config(self) -> dict[str, Any]:
        """How the image's processes are started, and its labels (OCI image configuration, `config`)."""
        with tarfile.open(self.image) as archive:
            about = _blob(archive, _manifest(archive)["config"]["digest"])
        return dict(about["config"])

    def files(self) -> set[str]:
        """The names of all files, links and folders of the image's layers, with those that a later layer takes away."""
        names: set[str] = set()
        with tarfile.open(self.image) as archive:
            for layer in _manifest(archive)["layers"]:
                with tarfile.open(fileobj=archive.extractfile(_path(layer["digest"]))) as one:
                    names.update(f"/{name.removeprefix('./')}" for name in one.getnames())
        return names


def problem() -> str | None:
    """Why no release can be built on this machine, None if one can; missing packages are installed."""
    if any(shutil.which(tool) is None for tool in _TOOLS):
        machine.install(*_TOOLS)
    lacking = [tool for tool in _TOOLS if shutil.which(tool) is None]
    return f"an image is built with {', '.join(lacking)} (Debian packages of these names)" if lacking else None


def release(helm: Path) -> Release:
    """Build the release, unless it was built from the same files.

    Raises:
        ReleaseError: It cannot be built; the message is the end of what the tools said.
    """
    folder = cache_folder() / "images"
    folder.mkdir(parents=True, exist_ok=True)
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    made = Release(folder / f"release-{_key()}", version)
    if not made.folder.exists():
        for old in folder.glob("release-*"):
            shutil.rmtree(old)
        _build(made, _environment(folder, helm))
    return made


def _key() -> str:
    listed = ("git", "ls-files", "--cached", "--others", "--exclude-standard", "-z", *_CONTEXT)
    names = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\0")
    digest = hashlib.sha256(_RUNTIME.encode())
    for name in sorted({name for name in names if name and (ROOT / name).exists()}):
        content = (ROOT / name).read_bytes()
        digest.update(f"{name} {len(content)}\n".encode() + content)
    return digest.hexdigest()[:16]


def _environment(folder: Path, helm: Path) -> Mapping[str, str]:
    """The environment of the tools: a storage of buildah's of our own, this machine's index and certificates, Helm."""
    storage = folder / "storage.conf"
    store = folder / "store"
    storage.write_text(f'[storage]\ndriver = "overlay"\ngraphroot = "{store}"\nrunroot = "{folder}/run"\n')
    pip = {"PIP_CONFIG": "/etc/pip.conf", "PIP_CA": os.environ.get("PIP_CERT") or _AUTHORITIES}
    given = {name: file for name, file in pip.items() if file and Path(file).exists()}
    path = f"{helm.parent}:{os.environ['PATH']}"
    ours = {"CONTAINERS_STORAGE_CONF": str(storage), "BUILDAH_ISOLATION": "chroot", "PATH": path}
    return {**os.environ, **ours, **given}


def _build(made: Release, env: Mapping[str, str]) -> None:
    folder = made.folder.parent
    if not _there(_BASE, env):
        _build_base(folder, env)
    if not _there(_RUNTIME, env):
        _build_runtime(folder, env)
    ours = {"BASE": _pinned(_BASE, env), "RUNTIME": _pinned(_RUNTIME, env), "ENGINE": "buildah"}
    program = (sys.executable, "-m", "release", made.version, made.repository)
    _run({**env, **ours}, *program, "--trial", "--client", _HERE, "--out", str(made.folder))
    _run(env, "buildah", "rmi", f"{made.repository}:{made.version}")


def _build_base(folder: Path, env: Mapping[str, str]) -> None:
    context = folder / "base"
    context.mkdir(exist_ok=True)
    try:
        tarball = context / "base.tar"
        _run(env, "mmdebstrap", "--quiet", "--variant=minbase", f"--include={_INCLUDED}", _SUITE, str(tarball))
        (context / "Dockerfile").write_text(f"FROM scratch\nADD {tarball.name} /\n")
        _run(env, "buildah", "build", "--quiet", "--tag", _BASE, str(context))
    finally:
        shutil.rmtree(context)


def _build_runtime(folder: Path, env: Mapping[str, str]) -> None:
    """Build what the image stands on, in one layer: no shell is hidden in one below."""
    context = folder / "runtime"
    context.mkdir(exist_ok=True)
    try:
        (context / "Dockerfile").write_text(_WITHOUT)
        _run(env, "buildah", "build", "--quiet", "--squash", "--tag", _RUNTIME, str(context))
    finally:
        shutil.rmtree(context)


def _there(name: str, env: Mapping[str, str]) -> bool:
    inspected = ("buildah", "inspect", "--type=image", name)
    return subprocess.run(inspected, env=env, capture_output=True, check=False).returncode == 0


def _pinned(name: str, env: Mapping[str, str]) -> str:
    digest = _run(env, "buildah", "inspect", "--type=image", "--format={{.FromImageDigest}}", name).strip()
    return f"{name.partition(':')[0]}@{digest}"


def _listed(archive: tarfile.TarFile) -> str:
    """The digest of the one image of an OCI archive."""
    (only,) = _content(archive, "index.json")["manifests"]
    return str(only["digest"])


def _manifest(archive: tarfile.TarFile) -> dict[str, Any]:
    return _blob(archive, _listed(archive))


def _blob(archive: tarfile.TarFile, digest: str) -> dict[str, Any]:
    return _content(archive, _path(digest))


def _path(digest: str) -> str:
    return f"blobs/{digest.replace(':', '/')}"


def _content(archive: tarfile.TarFile, name: str) -> dict[str, Any]:
    file = archive.extractfile(name)
    return dict(json.loads(file.read() if file else "{}"))


def _run(env: Mapping[str, str], *argv: str) -> str:
    done = subprocess.run(argv, env=dict(env), cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        tail = "\n".join(f"{done.stdout}\n{done.stderr}".splitlines()[-30:])
        raise ReleaseError(f"{' '.join(argv[:3])} failed with status {done.returncode}:\n{tail}")
    return done.stdout
