"""The product's image, built by `image/build.sh` with buildah and kept in the cache.

It is built on a base of Debian packages, and stands on the same base without its shells.
"""

import hashlib
import json
import os
import shutil
import subprocess
import tarfile
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
    *("Dockerfile", ".dockerignore", "LICENSE", "README.md", "image", "pyproject.toml", "requirements.txt"),
    *("allocator", "charts", "console", "examples", "koordgate", "reporter", "webhook"),
)
_AUTHORITIES = "/etc/ssl/certs/ca-certificates.crt"  # those that this machine trusts; an index of its own may need one
_TOOLS = ("buildah", "mmdebstrap")


class ImageError(RuntimeError):
    """The image cannot be built; the message says why."""


@dataclass(frozen=True)
class Image:
    """A built image.

    Attributes:
        repository: Its name.
        tag: Its tag, which follows what it is built from.
        archive: A file that `ctr images import` reads.
        sbom: The list of its Python packages.
    """

    repository: str
    tag: str
    archive: Path
    sbom: Path

    def config(self) -> dict[str, Any]:
        """How its processes are started, and its labels (OCI image configuration, `config`)."""
        with tarfile.open(self.archive) as archive:
            about = json.loads(_content(archive, _described(archive)["Config"]))
        return dict(about["config"])

    def files(self) -> set[str]:
        """The names of all files, links and folders of its layers, with those that a later layer takes away."""
        names: set[str] = set()
        with tarfile.open(self.archive) as archive:
            for layer in _described(archive)["Layers"]:
                with tarfile.open(fileobj=archive.extractfile(layer)) as one:
                    names.update(f"/{name.removeprefix('./')}" for name in one.getnames())
        return names


def problem() -> str | None:
    """Why no image can be built on this machine, None if one can; missing packages are installed."""
    if any(shutil.which(tool) is None for tool in _TOOLS):
        machine.install(*_TOOLS)
    lacking = [tool for tool in _TOOLS if shutil.which(tool) is None]
    return f"an image is built with {', '.join(lacking)} (Debian packages of these names)" if lacking else None


def image() -> Image:
    """Build the image, unless it was built from the same files.

    Raises:
        ImageError: It cannot be built; the message is the end of what the tools said.
    """
    folder = cache_folder() / "images"
    folder.mkdir(parents=True, exist_ok=True)
    tag = _key()
    made = Image(_REPOSITORY, tag, folder / f"koordgate-{tag}.tar", folder / f"koordgate-{tag}.cdx.json")
    if not made.archive.exists():
        for old in folder.glob("koordgate-*"):
            old.unlink()
        _build(made, _environment(folder))
    return made


def _key() -> str:
    listed = ("git", "ls-files", "--cached", "--others", "--exclude-standard", "-z", *_CONTEXT)
    names = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\0")
    digest = hashlib.sha256(_RUNTIME.encode())
    for name in sorted({name for name in names if name and (ROOT / name).exists()}):
        content = (ROOT / name).read_bytes()
        digest.update(f"{name} {len(content)}\n".encode() + content)
    return digest.hexdigest()[:16]


def _environment(folder: Path) -> Mapping[str, str]:
    """The environment of buildah: a storage of our own, and this machine's index and certificates."""
    storage = folder / "storage.conf"
    store = folder / "store"
    storage.write_text(f'[storage]\ndriver = "overlay"\ngraphroot = "{store}"\nrunroot = "{folder}/run"\n')
    pip = {"PIP_CONFIG": "/etc/pip.conf", "PIP_CA": os.environ.get("PIP_CERT") or _AUTHORITIES}
    given = {name: file for name, file in pip.items() if file and Path(file).exists()}
    return {**os.environ, "CONTAINERS_STORAGE_CONF": str(storage), "BUILDAH_ISOLATION": "chroot", **given}


def _build(made: Image, env: Mapping[str, str]) -> None:
    name = f"{made.repository}:{made.tag}"
    if not _there(_BASE, env):
        _build_base(made.archive.parent, env)
    if not _there(_RUNTIME, env):
        _build_runtime(made.archive.parent, env)
    ours = {"IMAGE": name, "BASE": _pinned(_BASE, env), "RUNTIME": _pinned(_RUNTIME, env), "ENGINE": "buildah"}
    _run({**env, **ours, "SBOM": str(made.sbom)}, str(ROOT / "image" / "build.sh"))
    fresh = made.archive.with_suffix(".new")
    fresh.unlink(missing_ok=True)
    _run(env, "buildah", "push", "--quiet", name, f"docker-archive:{fresh}:{name}")
    fresh.replace(made.archive)
    _run(env, "buildah", "rmi", name)


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


def _described(archive: tarfile.TarFile) -> dict[str, Any]:
    """The one image of an archive of docker's form."""
    (only,) = json.loads(_content(archive, "manifest.json"))
    return dict(only)


def _content(archive: tarfile.TarFile, name: str) -> bytes:
    file = archive.extractfile(name)
    return b"" if file is None else file.read()


def _run(env: Mapping[str, str], *argv: str) -> str:
    done = subprocess.run(argv, env=dict(env), cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        tail = "\n".join(f"{done.stdout}\n{done.stderr}".splitlines()[-30:])
        raise ImageError(f"{' '.join(argv[:3])} failed with status {done.returncode}:\n{tail}")
    return done.stdout
