"""Folders that look like a cpuset hierarchy, and real ones if this machine allows them."""

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from controlplane.needs import missing

from reporter.cgroup.cpusets import Hierarchy, HierarchyError, find_hierarchy
from reporter.cgroup.layout import Version

_MOUNT = Path("/sys/fs/cgroup")

Make = Callable[[Version, Mapping[str, str]], Hierarchy]


@pytest.fixture
def make_tree(tmp_path: Path) -> Make:
    """Make a hierarchy out of plain files: path of a cgroup to its CPUs."""

    def make(version: Version, groups: Mapping[str, str]) -> Hierarchy:
        root = tmp_path / "cpuset"
        root.mkdir(exist_ok=True)
        for path, cpus in groups.items():
            folder = root / path
            folder.mkdir(parents=True)
            (folder / "cgroup.procs").write_text("")
            (folder / "cpuset.cpus").write_text(f"{cpus}\n")
            (folder / "cpuset.mems").write_text("0\n")
            if version is Version.V2:
                (folder / "cpuset.cpus.effective").write_text("0-7\n")
        return Hierarchy(root, version)

    return make


class RealCgroups:
    """A cgroup of this test's own in the machine's cpuset hierarchy, with all CPUs."""

    def __init__(self, hierarchy: Hierarchy) -> None:
        self.hierarchy = hierarchy
        self.name = f"koordgate-test-{os.getpid()}"
        self.top = hierarchy.root / self.name

    def make(self, path: str) -> Path:
        """Make a cgroup and those above it; each has its parent's CPUs and NUMA nodes."""
        folder = self.top
        for name in ("", *path.split("/")):
            folder = folder / name
            if not folder.exists():
                self._make(folder)
        return folder

    def _make(self, folder: Path) -> None:
        if self.hierarchy.version is Version.V2:
            (folder.parent / "cgroup.subtree_control").write_text("+cpuset")
        folder.mkdir()
        if self.hierarchy.version is Version.V1:
            for file in ("cpuset.cpus", "cpuset.mems"):
                (folder / file).write_text((folder.parent / file).read_text())

    def remove(self) -> None:
        """Remove every cgroup of ours; the processes in them have ended."""
        for folder in sorted((path for path in self.top.rglob("*") if path.is_dir()), reverse=True):
            folder.rmdir()
        if self.top.exists():
            self.top.rmdir()


@pytest.fixture
def real() -> Iterator[RealCgroups]:
    if os.geteuid() != 0:
        missing("cpusets need root")
    if len(os.sched_getaffinity(0)) < 2:
        missing("cpusets need two CPUs")
    try:
        hierarchy = find_hierarchy(_MOUNT)
    except HierarchyError as error:
        missing(str(error))
    cgroups = RealCgroups(hierarchy)
    try:
        yield cgroups
    finally:
        cgroups.remove()
