"""The writes that bring cgroups to their targets, in an order that the kernel allows (pure).

cgroup v1 refuses a cpuset that its parent does not contain (EACCES), and one that does not contain its children's
(EBUSY), at every moment (Linux, kernel/cgroup/cpuset-v1.c). Therefore every parent is first widened to
hold its children's targets, from the top; then every cgroup gets its target, from the bottom. v2 allows any order; with
this one, a container with a cpuset runs on its old or its new CPUs at every moment.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from reporter.cgroup.layout import Version, container_id
from reporter.cgroup.plan import WantedCpusets


class File(StrEnum):
    """The files of a cpuset that are written."""

    CPUS = "cpuset.cpus"
    MEMS = "cpuset.mems"


@dataclass(frozen=True, slots=True)
class Group:
    """A cgroup as read."""

    cpus: int  # CPU set; 0 if empty, which in v2 means the parent's
    mems: int  # set of NUMA nodes; 0 if empty, likewise

    def of(self, file: File) -> int:
        """The set in one file."""
        return self.cpus if file is File.CPUS else self.mems


@dataclass(frozen=True, slots=True)
class Write:
    """One file to write."""

    path: str  # path of the cgroup
    file: File  # which file
    value: int


Tree = Mapping[str, Group]  # `kubepods` and cgroups below it, by path, with all their parents up to `kubepods`


def targets(tree: Tree, paths: Iterable[tuple[str, WantedCpusets]], version: Version, file: File) -> dict[str, int]:
    """Compute each cgroup's target.

    Returns path to target, for each cgroup of the tree; 0 if it stays as it is.
    """
    below = _below(tree)
    found = dict.fromkeys(tree, 0)
    for path, want in paths:
        wanted, room, others = (want.cpus, want.room, want.others) if file is File.CPUS else (want.mems, 0, {})
        if path not in tree:
            continue
        has = tree[path].of(file)
        if room or not wanted:
            # It is never narrowed; in v2 an empty set already means everything that the parent has.
            found[path] = has | room | wanted if has or version is Version.V1 else 0
        else:
            found[path] = wanted
        if wanted:
            for child in below.get(path, ()):
                its = others.get(container_id(child.rpartition("/")[2]), wanted)
                if its:
                    _spread(tree, below, found, child, its, file)
    for path in sorted(tree, key=_depth, reverse=True):  # a parent holds at least what its children hold
        parent = _parent(path)
        if parent in tree:
            holds = found[parent] or tree[parent].of(file)
            if holds or version is Version.V1:
                found[parent] = holds | (found[path] or tree[path].of(file))
    return found


def _spread(
    tree: Tree, below: Mapping[str, list[str]], found: dict[str, int], path: str, wanted: int, file: File
) -> None:
    """Give a container's cgroup the target, and cgroups that the container made below it the part that they had."""
    found[path] = wanted
    pending = [(child, wanted) for child in below.get(path, ())]
    while pending:
        child, limit = pending.pop()
        has = tree[child].of(file)
        found[child] = (has & limit or limit) if has else 0
        pending.extend((grandchild, found[child] or limit) for grandchild in below.get(child, ()))


@dataclass(frozen=True, slots=True)
class Plan:
    """What to write."""

    writes: tuple[Write, ...]  # in order
    right: Mapping[tuple[str, File], int]  # path and file to the set, for each set that already is the target


def plan(tree: Tree, paths: Iterable[tuple[str, WantedCpusets]], version: Version) -> Plan:
    """Compute what to write, and what is already right."""
    paths = tuple(paths)
    found: list[Write] = []
    right: dict[tuple[str, File], int] = {}
    for file in File:
        wanted = targets(tree, paths, version, file)
        has = {path: group.of(file) for path, group in tree.items()}
        found.extend(Write(path, file, value) for path, value in ordered(has, wanted))
        right |= {(path, file): value for path, value in wanted.items() if value and has[path] == value}
    return Plan(tuple(found), right)


def ordered(has: Mapping[str, int], wanted: Mapping[str, int]) -> list[tuple[str, int]]:
    """Order the writes of one file.

    `has`: path to set as read; 0 if empty. `wanted`: path to target; 0 if it stays as it is. A parent's target holds
    its children's. Returns path and set of each write, in order; a set that is already right is not written.
    """
    now = dict(has)
    below = _below(has)
    steps: list[tuple[str, int]] = []

    def write(path: str, value: int) -> None:
        if value and now[path] != value:
            now[path] = value
            steps.append((path, value))

    for path in sorted(has, key=_depth):
        if below.get(path) and wanted[path] & ~has[path]:
            write(path, has[path] | wanted[path])
    for path in sorted(has, key=_depth, reverse=True):
        write(path, wanted[path])
    return steps


def _depth(path: str) -> tuple[int, str]:
    return path.count("/"), path


def _parent(path: str) -> str:
    return path.rpartition("/")[0]


def _below(paths: Iterable[str]) -> dict[str, list[str]]:
    """The children of each path that has any."""
    found: dict[str, list[str]] = {}
    for path in sorted(paths):
        found.setdefault(_parent(path), []).append(path)
    return found
