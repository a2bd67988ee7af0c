"""The files about the container runtime: which there are, read with bounds, each parsed only when it changed."""

import fnmatch
import os.path
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final, TypeVar

from reporter.delivery import formats
from reporter.delivery.facts import CdiSpec, Engine, EngineFile, NvidiaConfiguration, RuntimeReading
from reporter.inventory import files
from reporter.kubelet.watched import WatchedFile

NAMES: Final = ("cdi", "containerd", "crio", "nvidia-container-runtime")  # what the last part of a path may be
_MOST_FILES: Final = 64  # of one folder, and of one engine
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
                    specs += self._all(folder, (".yaml", ".json"), formats.cdi_spec)[0]
                case "nvidia-container-runtime":
                    found, _ = self._one(Path(folder) / "config.toml", formats.nvidia_configuration)
                    if found is not None:
                        nvidia[folder] = found
                case "containerd":
                    self._add(engines, folder, *self._containerd(folder), formats.containerd)
                case _:
                    self._add(engines, folder, *self._crio(folder), formats.crio)
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
            if len(done) == _MOST_FILES:
                return found, False
            done.add(path)
            file, fine = self._one(path, formats.containerd_file)
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
        main, fine = self._one(Path(folder) / "crio.conf", formats.crio_file)
        more, whole = self._all(f"{folder}/crio.conf.d", ("",), formats.crio_file)
        return [one for one in (main, *more) if one is not None], fine and whole

    def _all(self, folder: str, endings: tuple[str, ...], parse: Callable[[bytes], _T]) -> tuple[list[_T], bool]:
        """Read the files of a folder in the order of their names; returns also whether all are usable."""
        names = [name for name in files.names(folder) if name.endswith(endings) and not name.startswith(".")]
        whole = len(names) <= _MOST_FILES
        if not whole:
            self._problems.append(f"{folder}: more than {_MOST_FILES} files; the others are not read")
        read = [self._one(Path(folder) / name, parse) for name in names[:_MOST_FILES]]
        return [found for found, _ in read if found is not None], whole and all(fine for _, fine in read)

    def _one(self, path: Path, parse: Callable[[bytes], _T]) -> tuple[_T | None, bool]:
        """Read a file, None if it is missing or cannot be used; returns also whether nothing is wrong with it."""
        watched: WatchedFile[_T] = self._watched.get(path) or WatchedFile(
            path, parse, most_bytes=formats.MOST_BYTES, absent=_nothing
        )
        self._seen[path] = watched
        reading = watched.read()
        if reading.problem:
            self._problems.append(reading.problem)
        return reading.value, reading.problem is None or reading.value is not None


def _nothing() -> None:
    """What a missing file means: nothing is known."""
