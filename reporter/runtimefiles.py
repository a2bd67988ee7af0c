"""The files about the node's container runtime, read with bounds: only what counts for delivery is kept of them.

They may hold credentials of registries. No message therefore quotes them.
"""

import fnmatch
import json
import os.path
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any, Final, TypeGuard, TypeVar

import yaml

from reporter import files
from reporter.files import WatchedFile

_MAX_NAME: Final = 256  # characters
_PROGRAM: Final = "nvidia-container-runtime"  # also with a mode appended: nvidia-container-runtime.cdi
OPERATORS: Final = "/usr/local/nvidia/toolkit/"
"""Where the GPU Operator puts NVIDIA's toolkit on the node."""


def is_name(value: object) -> TypeGuard[str]:
    """Whether a value can be a name, a kind or a path here: a short text that can be told and logged."""
    return isinstance(value, str) and 0 < len(value) <= _MAX_NAME and value.isascii() and value.isprintable()


def is_nvidias(program: str) -> bool:
    """Whether a program is NVIDIA's container runtime, by its file name."""
    return PurePath(program).name.split(".")[0] == _PROGRAM


@dataclass(frozen=True, slots=True)
class CdiSpec:
    """One CDI specification."""

    kind: str  # as `nvidia.com/gpu`
    names: frozenset[str]
    limits: bool = False  # whether its edits have the hook of NVIDIA's that sets memory limits


@dataclass(frozen=True, slots=True)
class NvidiaConfiguration:
    """The configuration of NVIDIA's runtime, with its defaults."""

    mode: str = "auto"  # auto, legacy, cdi, jit-cdi or csv
    unprivileged: bool = True  # whether it heeds the variable of an unprivileged container
    mounts: bool = False  # whether it heeds mounts below /var/run/nvidia-container-devices


@dataclass(frozen=True, slots=True)
class EngineFile:
    """The parts that count of one configuration file of containerd or CRI-O."""

    default: str | None = None  # name of the default handler; None if it states none
    # handler to the program that it runs, as far as that is stated
    programs: Mapping[str, str] = field(default_factory=dict)
    section: bool = False  # whether it has the section that these are in
    imports: tuple[str, ...] = ()  # further files that it names, as patterns


@dataclass(frozen=True, slots=True)
class Engine:
    """The configuration of containerd or CRI-O, all files taken together."""

    default: str | None  # name of the default handler; None if it is not known
    # handler to the program that it runs, as far as that is stated
    programs: Mapping[str, str] = field(default_factory=dict)

    @property
    def showing(self) -> tuple[str, ...]:
        """The handlers that are NVIDIA's runtime."""
        return tuple(sorted(name for name, program in self.programs.items() if is_nvidias(program)))

    @property
    def default_shows(self) -> bool | None:
        """Whether the default handler is NVIDIA's runtime; None if that is not known."""
        return None if self.default is None else is_nvidias(self.programs.get(self.default, ""))

    @property
    def operators(self) -> bool | None:
        """Whether NVIDIA's runtime is the one that the GPU Operator brought; None without one, or with several."""
        found = {self.programs[name].startswith(OPERATORS) for name in self.showing}
        return found.pop() if len(found) == 1 else None


@dataclass(frozen=True, slots=True)
class RuntimeReading:
    """The files about the container runtime, as read once."""

    specs: tuple[CdiSpec, ...] = ()
    # folder to the configuration of NVIDIA's runtime in it
    nvidia: Mapping[str, NvidiaConfiguration] = field(default_factory=dict)
    # folder to the configuration of containerd or CRI-O in it; None where it cannot be used
    engines: Mapping[str, Engine | None] = field(default_factory=dict)
    # whether the reporter's own container has device files of cards; None if nothing follows from that
    own: bool | None = None
    cgroup2: bool = False  # whether the node has cgroup v2
    problems: tuple[str, ...] = ()  # why a file cannot be used, a sentence each


@dataclass(frozen=True, slots=True)
class OperatorPolicy:
    """What the GPU Operator's ClusterPolicy says; None, or empty, where it does not, or where there is none."""

    cdi: bool | None = None  # whether cards come by CDI
    nri: bool | None = None  # whether NVIDIA's NRI plugin is on
    brings_toolkit: bool | None = None  # whether the operator installs the NVIDIA Container Toolkit
    toolkit: tuple[int, ...] = ()  # the toolkit's version, as (1, 18, 1)
    version: tuple[int, ...] = ()


UNTOLD: Final = OperatorPolicy()


MAX_BYTES: Final = 256 * 1024
_MAX_ITEMS: Final = 4096  # devices of a specification, handlers, imports
_LIMITS_HOOK: Final = "apply-cuda-memory-limits"
_CRI: Final = ("io.containerd.cri.v1.runtime", "io.containerd.grpc.v1.cri", "cri")  # versions 3, 2 and 1
_CONTAINERDS_DEFAULT: Final = "runc"


def cdi_spec(data: bytes) -> CdiSpec:
    """Read a CDI specification, YAML or JSON.

    Raises ValueError: it is none.
    """
    spec = table(_yaml(data))
    kind, devices = spec.get("kind"), spec.get("devices")
    if not is_name(kind) or not isinstance(devices, list) or len(devices) > _MAX_ITEMS:
        raise ValueError("is no CDI specification: it needs a kind, and a list of devices")
    entries = [table(one) for one in devices]
    names = frozenset(name for one in entries if is_name(name := one.get("name")))
    return CdiSpec(kind, names, any(map(_limits, (spec, *entries))))


def _yaml(data: bytes) -> object:
    """Read YAML or JSON. PyYAML's loader in C is faster, and dies of deep nesting."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        pass
    try:
        return yaml.safe_load(data)
    except (yaml.YAMLError, RecursionError, ValueError, TypeError, AttributeError, OverflowError):
        raise ValueError("is neither YAML nor JSON") from None


def _limits(holder: Mapping[str, Any]) -> bool:
    hooks = table(holder.get("containerEdits")).get("hooks")
    return any(
        isinstance(arguments := table(hook).get("args"), list) and _LIMITS_HOOK in arguments
        for hook in (hooks[:_MAX_ITEMS] if isinstance(hooks, list) else ())
    )


def nvidia_configuration(data: bytes) -> NvidiaConfiguration:
    """Read the config.toml of NVIDIA's runtime.

    Raises ValueError: it is no TOML, or a value has the wrong kind.
    """
    found = _toml(data)
    mode = table(found.get("nvidia-container-runtime")).get("mode", "auto")
    unprivileged = found.get("accept-nvidia-visible-devices-envvar-when-unprivileged", True)
    mounts = found.get("accept-nvidia-visible-devices-as-volume-mounts", False)
    if not is_name(mode) or not isinstance(unprivileged, bool) or not isinstance(mounts, bool):
        raise ValueError("mode is no word, or one of accept-nvidia-visible-devices-* is no boolean")
    return NvidiaConfiguration(mode, unprivileged, mounts)


def containerd_file(data: bytes) -> EngineFile:
    """Read a configuration file of containerd.

    Raises ValueError: it is no TOML.
    """
    found = _toml(data)
    plugins = table(found.get("plugins"))
    section = next((plugins[name] for name in _CRI if name in plugins), None)
    engine = table(table(section).get("containerd"))
    runtimes = table(engine.get("runtimes"))
    programs = {name: table(table(one).get("options")).get("BinaryName") for name, one in runtimes.items()}
    imports = found.get("imports")
    return EngineFile(
        _stated(engine.get("default_runtime_name")),
        _texts(programs),
        section is not None,
        tuple(one for one in (imports[:_MAX_ITEMS] if isinstance(imports, list) else ()) if is_name(one)),
    )


def crio_file(data: bytes) -> EngineFile:
    """Read a configuration file of CRI-O.

    Raises ValueError: it is no TOML.
    """
    section = table(table(_toml(data).get("crio")).get("runtime"))
    runtimes = table(section.get("runtimes"))
    programs = {name: table(one).get("runtime_path") for name, one in runtimes.items()}
    return EngineFile(_stated(section.get("default_runtime")), _texts(programs), section=bool(section))


def containerd(files: Iterable[EngineFile], *, whole: bool) -> Engine:
    """Take the files of containerd together, in the order in which it reads them.

    A file that is imported adds to the section, as containerd 2 does, or replaces it, as older ones do. Where the
    default would differ, it is not known.
    """
    added: str | None = None
    replaced: str | None = None
    programs: dict[str, str] = {}
    for one in files:
        programs.update(one.programs)
        if one.section:
            added = one.default or added
            replaced = one.default
    default = added or _CONTAINERDS_DEFAULT
    return Engine(default if whole and default == (replaced or _CONTAINERDS_DEFAULT) else None, programs)


def crio(files: Iterable[EngineFile], *, whole: bool) -> Engine:
    """Take the files of CRI-O together, in the order in which it reads them."""
    default = ""  # runc or crun, by its version
    programs: dict[str, str] = {}
    for one in files:
        programs.update(one.programs)
        default = one.default or default
    return Engine(default if whole else None, programs)


def _toml(data: bytes) -> dict[str, Any]:
    try:
        return tomllib.loads(data.decode())
    except (ValueError, RecursionError):
        raise ValueError("is no TOML") from None


def table(value: object) -> Mapping[str, Any]:
    """A table, or an object; empty if it is anything else."""
    return value if isinstance(value, dict) else {}


def _stated(value: object) -> str | None:
    return value if is_name(value) else None


def _texts(found: Mapping[str, object]) -> dict[str, str]:
    kept = ((name, stated) for name, value in found.items() if (stated := _stated(value)) and is_name(name))
    return dict(sorted(kept)[:_MAX_ITEMS])


NAMES: Final = ("cdi", "containerd", "crio", "nvidia-container-runtime")  # what the last part of a path may be
_MAX_FILES: Final = 64  # of one folder, and of one engine
_WILD: Final = frozenset("*?[")
_CARD: Final = re.compile(r"nvidia[0-9]{1,3}", re.ASCII)
_T = TypeVar("_T")


class RuntimeFiles:
    """The files about the container runtime.

    `folders`: where they are, as on the host; the last part of a path, one of `NAMES`, says what is in it. `dev`: the
    reporter's own /dev; None if nothing follows from what is in it.
    """

    def __init__(self, folders: Iterable[str], cgroup: Path, dev: Path | None) -> None:
        self._folders = tuple(os.path.normpath(folder) for folder in folders)
        self._cgroup = cgroup
        self._dev = dev
        self._watched: dict[Path, WatchedFile[Any]] = {}
        self._seen: dict[Path, WatchedFile[Any]] = {}  # in this reading
        self._problems: list[str] = []
        self._first: dict[str, Engine | None] | None = None

    def read(self) -> RuntimeReading:
        """Read everything; never raises because of what is there."""
        self._seen, self._problems = {}, []
        specs: list[CdiSpec] = []
        nvidia: dict[str, NvidiaConfiguration] = {}
        engines: dict[str, Engine | None] = {}
        for folder in self._folders:
            match Path(folder).name:
                case "cdi":
                    specs += self._all(folder, (".yaml", ".json"), cdi_spec)[0]
                case "nvidia-container-runtime":
                    found, _ = self._one(Path(folder) / "config.toml", nvidia_configuration)
                    if found is not None:
                        nvidia[folder] = found
                case "containerd":
                    self._add(engines, folder, *self._containerd(folder), containerd)
                case _:
                    self._add(engines, folder, *self._crio(folder), crio)
        self._watched = self._seen
        return RuntimeReading(
            specs=tuple(specs),
            nvidia=nvidia,
            engines=engines,
            own=self._own(engines),
            cgroup2=(self._cgroup / "cgroup.controllers").exists(),
            problems=tuple(self._problems),
        )

    def _own(self, engines: dict[str, Engine | None]) -> bool | None:
        """Whether our own container was shown cards: that tells of the runtime as it was when the container began."""
        if self._first is None:
            self._first = engines
        if self._dev is None or engines != self._first:
            return None
        names = files.names(self._dev)
        return any(map(_CARD.fullmatch, names)) if names else None

    @staticmethod
    def _add(
        engines: dict[str, Engine | None],
        folder: str,
        found: list[EngineFile],
        whole: bool,  # noqa: FBT001 the second half of a result
        together: Callable[..., Engine],
    ) -> None:
        if found:
            engines[folder] = together(found, whole=whole)
        elif not whole:
            engines[folder] = None

    def _containerd(self, folder: str) -> tuple[list[EngineFile], bool]:
        """Read config.toml and what it imports; returns also whether that is everything."""
        found: list[EngineFile] = []
        whole = True
        waiting, done = [Path(folder) / "config.toml"], set[Path]()
        while waiting:
            path = waiting.pop(0)
            if path in done:
                continue
            if len(done) == _MAX_FILES:
                return found, False
            done.add(path)
            file, fine = self._one(path, containerd_file)
            whole &= fine
            if file is None:
                continue
            found.append(file)
            for pattern in file.imports:
                paths, fine = self._imported(os.path.normpath(path.parent / pattern))
                waiting += paths
                whole &= fine
        return found, whole

    def _imported(self, pattern: str) -> tuple[list[Path], bool]:
        """The files that an import names; returns also whether they are in a folder that the reporter sees."""
        folder, _, name = pattern.rpartition("/")
        seen = any(f"{folder}/".startswith(f"{one}/") for one in self._folders)
        if not seen or _WILD.intersection(folder):
            return [], False
        if not _WILD.intersection(name):
            return [Path(pattern)], True
        return [Path(folder) / one for one in fnmatch.filter(files.names(folder), name)], True

    def _crio(self, folder: str) -> tuple[list[EngineFile], bool]:
        main, fine = self._one(Path(folder) / "crio.conf", crio_file)
        more, whole = self._all(f"{folder}/crio.conf.d", ("",), crio_file)
        return [one for one in (main, *more) if one is not None], fine and whole

    def _all(self, folder: str, endings: tuple[str, ...], parse: Callable[[bytes], _T]) -> tuple[list[_T], bool]:
        """Read the files of a folder in the order of their names; returns also whether all are usable."""
        names = [name for name in files.names(folder) if name.endswith(endings) and not name.startswith(".")]
        whole = len(names) <= _MAX_FILES
        if not whole:
            self._problems.append(f"{folder}: more than {_MAX_FILES} files; the others are not read")
        read = [self._one(Path(folder) / name, parse) for name in names[:_MAX_FILES]]
        return [found for found, _ in read if found is not None], whole and all(fine for _, fine in read)

    def _one(self, path: Path, parse: Callable[[bytes], _T]) -> tuple[_T | None, bool]:
        """Read a file, None if it is missing or cannot be used; returns also whether nothing is wrong with it."""
        watched: WatchedFile[_T] = self._watched.get(path) or WatchedFile(
            path, parse, max_bytes=MAX_BYTES, absent=_nothing
        )
        self._seen[path] = watched
        reading = watched.read()
        if reading.problem:
            self._problems.append(reading.problem)
        return reading.value, reading.problem is None or reading.value is not None


def _nothing() -> None:
    """What a missing file means: nothing is known."""
