"""Cpusets kept as planned: cgroups are read after every change and on a timer, and written if they differ.

Nothing outside the hierarchy's folder is ever opened: paths are opened name by name, and a symbolic link on the way is
an error. A cgroup that disappears during the work is no error: containers end.
"""

import contextlib
import errno
import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Final

from allocator.vocabulary.cputopology import CpusetError, format_cpuset
from allocator.vocabulary.cputopology import parse as parse_cpuset
from reporter.cgroup.layout import CgroupLayout, Driver, KubernetesQos, LayoutError, Version
from reporter.cgroup.plan import File, Group, KubeletRules, Pod, SharedCpus, WantedCpusets, Write, plan, wants

_MOUNT: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_FOLDER: Final = _MOUNT | os.O_NOFOLLOW
_MAX_TEXT: Final = 65536  # bytes of one file
_MAX_BELOW: Final = 4096  # cgroups below one Pod's; more are not read, which is a failure
_MAX_DEPTH: Final = 16
_GONE: Final = (errno.ENOENT, errno.ENODEV)  # ENODEV: removed while it was open

_EXPLAINED: Final = {
    errno.EACCES: "the cgroup above lacks some of these CPUs or NUMA nodes, or the reporter may not write here: widen"
    " the cgroup above, or run the reporter as root",
    errno.EPERM: "the reporter may not write here: run it as root, in the host's cgroup namespace",
    errno.EROFS: "mounted read-only: mount the host's /sys/fs/cgroup read-write into the reporter",
    errno.EBUSY: "a cgroup below has other CPUs or NUMA nodes (it was just made or widened), or a process here has a"
    " deadline to keep; the write is repeated",
    errno.ENOSPC: "this cgroup has processes, and the write would leave them no CPU or NUMA node",
    errno.EINVAL: "the machine has no such CPU or NUMA node online, or a cgroup beside it has it exclusively: see"
    " cpuset.cpu_exclusive (v1) or cpuset.cpus.partition (v2)",
    errno.ERANGE: "the kernel has no CPU or NUMA node with such a high number",
    errno.ELOOP: "a symbolic link; it is not followed, because cgroups have none",
}


class HierarchyError(Exception):
    """The expected cpuset hierarchy is missing; the message says what must be mounted."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Something that could not be read or written."""

    path: str  # path of the cgroup below the cpuset hierarchy
    file: str  # the file; empty if the cgroup itself is meant
    code: int  # errno; 0 if the kernel returned none
    message: str  # what was tried, why it failed, and what to do

    @property
    def passing(self) -> bool:
        """Whether an immediate retry may succeed: containers appeared or changed between reading and writing."""
        return self.code in {errno.EBUSY, errno.EACCES}


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """A mounted cpuset hierarchy."""

    root: Path
    version: Version


@dataclass(slots=True)
class SeenCgroup:
    """What was read."""

    tree: dict[str, Group] = field(default_factory=dict)  # path to cgroup
    effective: dict[str, int] = field(default_factory=dict)  # path of a Pod's cgroup to its effective CPUs (v2 only)
    absent: set[str] = field(default_factory=set)  # requested paths that do not exist
    failures: list[Failure] = field(default_factory=list)  # what could not be read


def find_hierarchy(mount: Path) -> Hierarchy:
    """Find the cpuset controller below a folder such as /sys/fs/cgroup: v2, or v1's own mount.

    Raises HierarchyError: it is not there.
    """
    if (mount / "cgroup.controllers").is_file():
        return Hierarchy(mount, Version.V2)
    v1 = (mount / "cpuset").resolve()  # some systems mount it as `cpuset,other`, and link to it
    if (v1 / File.CPUS).is_file() and v1.parent == mount.resolve():
        return Hierarchy(v1, Version.V1)
    raise HierarchyError(f"{mount}: no cpuset hierarchy of cgroup v1 or v2; mount the host's /sys/fs/cgroup here")


def find_layout(hierarchy: Hierarchy, cgroup_root: str, stated: str = "") -> CgroupLayout:
    """Find the cgroup driver of the kubelet; its configuration does not state it if the kubelet asked the runtime.

    `stated`: the driver in the kubelet's configuration; empty if it has none. It decides if both drivers have a
    `kubepods`, one of them left over from before a change. Raises HierarchyError: there is no `kubepods`, or both
    drivers have one and none is stated; LayoutError: `cgroup_root` is not a path of cgroups.
    """
    layouts = [CgroupLayout(driver, cgroup_root) for driver in Driver]
    found = [layout for layout in layouts if (hierarchy.root / layout.kubepods).is_dir()]
    meant = found if len(found) == 1 else [layout for layout in found if layout.driver == stated]
    if meant:
        return meant[0]
    looked = " and ".join(layout.kubepods for layout in layouts)
    what = "both of" if found else "neither of"
    raise HierarchyError(f"{hierarchy.root}: {what} {looked}; start the kubelet, state its cgroupRoot and cgroupDriver")


def observe(hierarchy: Hierarchy, above: Iterable[str], pods: Iterable[str]) -> SeenCgroup:
    """Read cgroups.

    `above`: paths of cgroups that are read without those below. `pods`: paths of cgroups that are read with those
    below: in v1 all levels, in v2 one level (deeper ones do not matter).
    """
    seen = SeenCgroup()
    with _open(hierarchy.root, _MOUNT) as root:
        for path in above:
            with _reading(seen, path), _opened(root, path) as folder:
                seen.tree[path] = _group(folder)
        deepest = 1 if hierarchy.version is Version.V2 else _MAX_DEPTH
        for path in pods:
            with _reading(seen, path), _opened(root, path) as folder:
                seen.tree[path] = _group(folder)
                if hierarchy.version is Version.V2:
                    seen.effective[path] = _read_set(folder, f"{File.CPUS}.effective")
                _observe_below(seen, folder, path, deepest, [_MAX_BELOW])
    return seen


@contextlib.contextmanager
def _reading(seen: SeenCgroup, path: str) -> Iterator[None]:
    """Record a failure to read a cgroup; one that is gone is absent."""
    try:
        yield
    except CpusetError as error:
        seen.tree.pop(path, None)
        seen.failures.append(Failure(path, "", 0, f"{path}: its cpuset cannot be read: {error}"))
    except OSError as error:
        seen.tree.pop(path, None)
        if error.errno in _GONE and not isinstance(error, _NoControllerError):
            seen.absent.add(path)
        else:
            seen.failures.append(_failure(path, "", "cannot be read", error))


class _NoControllerError(FileNotFoundError):
    """A cgroup that exists but has no cpuset."""


def _observe_below(seen: SeenCgroup, folder: int, path: str, depth: int, budget: list[int]) -> None:
    if not depth:
        return
    for name in _names(folder):
        child = f"{path}/{name}"
        budget[0] -= 1
        if budget[0] < 0:
            message = f"{path}: more than {_MAX_BELOW} cgroups below one Pod; the rest is not read"
            seen.failures.append(Failure(path, "", 0, message))
            return
        with _reading(seen, child), _open(name, inside=folder) as inner:
            seen.tree[child] = _group(inner)
            _observe_below(seen, inner, child, depth - 1, budget)


def _names(folder: int) -> list[str]:
    with os.scandir(folder) as entries:
        folders = (entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
        return sorted(islice(folders, _MAX_BELOW + 1))  # one more than is read, so that the rest is reported


def _group(folder: int) -> Group:
    return Group(_read_set(folder, File.CPUS), _read_set(folder, File.MEMS))


def _read_set(folder: int, name: str) -> int:
    try:
        handle = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=folder)
    except FileNotFoundError as error:
        os.stat("cgroup.procs", dir_fd=folder)  # missing as well if the cgroup itself is gone
        raise _NoControllerError(errno.ENOENT, "no such file") from error
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise CpusetError(f"{name} is not a plain file")
        data = os.read(handle, _MAX_TEXT + 1)
    finally:
        os.close(handle)
    if len(data) > _MAX_TEXT:
        raise CpusetError(f"{name} is larger than {_MAX_TEXT} bytes")
    try:
        return parse_cpuset(data.decode("ascii"))
    except UnicodeDecodeError as error:
        raise CpusetError(f"{name} is not ASCII") from error


def apply(hierarchy: Hierarchy, writes: Iterable[Write]) -> tuple[tuple[Write, ...], tuple[Failure, ...]]:
    """Write, in order; a failure stops nothing else.

    Returns what was written, and what failed.
    """
    done: list[Write] = []
    failures: list[Failure] = []
    with _open(hierarchy.root, _MOUNT) as root:
        for write in writes:
            try:
                with _opened(root, write.path) as folder:
                    _write_set(folder, write)
            except OSError as error:
                if error.errno not in _GONE:
                    tried = f"{format_cpuset(write.value)} was refused"
                    failures.append(_failure(write.path, write.file, tried, error))
            else:
                done.append(write)
    return tuple(done), tuple(failures)


def _write_set(folder: int, write: Write) -> None:
    with _open(write.file, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_TRUNC, folder) as handle:
        os.write(handle, f"{format_cpuset(write.value)}\n".encode())  # in one piece: each write is a whole set


def _failure(path: str, file: str, tried: str, error: OSError) -> Failure:
    code = error.errno or 0
    if isinstance(error, _NoControllerError):
        why = "it has no cpuset: add +cpuset to cgroup.subtree_control of the cgroups above (v2)"
    else:
        why = _EXPLAINED.get(code, os.strerror(code) if code else str(error))
    name = errno.errorcode.get(code, "")
    return Failure(path, file, code, f"{path}{'/' if file else ''}{file}: {tried} ({name}): {why}")


@contextlib.contextmanager
def _open(path: Path | str, flags: int = _FOLDER, inside: int | None = None) -> Iterator[int]:
    handle = os.open(path, flags, dir_fd=inside)
    try:
        yield handle
    finally:
        os.close(handle)


@contextlib.contextmanager
def _opened(root: int, path: str) -> Iterator[int]:
    """Open a cgroup below the root, name by name."""
    handle = os.dup(root)
    try:
        for name in path.split("/"):
            if name in {"", ".", ".."}:
                raise OSError(errno.EINVAL, "not a path below the root")
            inner = os.open(name, _FOLDER, dir_fd=handle)
            os.close(handle)
            handle = inner
        yield handle
    finally:
        os.close(handle)


@dataclass(frozen=True, slots=True)
class Findings:
    """What a round of enforcement found and did."""

    written: int  # files written
    # cgroups that somebody else had changed; they are right again unless a failure says otherwise
    reapplied: tuple[str, ...]
    # Pod and note, in the order of Pods: why a Pod is left alone, or which pool is empty
    notes: tuple[tuple[str, str], ...]
    absent: tuple[str, ...]  # names of Pods without a cgroup (not yet, or no longer)
    failures: tuple[Failure, ...]  # what could not be done


class CpusetKeeper:
    """Applies plans to one node's cgroups; remembers what it wrote, and therefore detects what others changed.

    It has no clock and does not wait. `round` must not be called concurrently.
    """

    def __init__(self, hierarchy: Hierarchy, layout: CgroupLayout) -> None:
        """Enforce below `hierarchy`, with the kubelet's names for cgroups."""
        self._hierarchy = hierarchy
        self._layout = layout
        self._left_at: dict[tuple[str, File], int] = {}

    def round(self, pods: Iterable[Pod], pools: SharedCpus, kubelet: KubeletRules) -> Findings:
        """Set the cpusets of all Pods.

        A Pod that ends during the round is no failure. If containers appeared between reading and writing, what failed
        is read again and tried once more.
        """
        decided = wants(pods, pools, kubelet)
        placed, misnamed = self._place(decided)
        seen, done, failures, reapplied = self._pass(placed)
        written = done
        if any(failure.passing for failure in failures):
            seen, done, failures, _ = self._pass(placed)
            written += done
        self._left_at = {key: value for key, value in self._left_at.items() if key[0] in seen.tree}
        return Findings(
            written=written,
            reapplied=reapplied,
            notes=tuple((want.pod.uid, want.note) for want in decided if want.note),
            absent=tuple(want.pod.name for path, want in placed if path in seen.absent),
            failures=(*misnamed, *self._lost(seen), *failures, *self._cut(placed, seen)),
        )

    def _place(self, decided: tuple[WantedCpusets, ...]) -> tuple[list[tuple[str, WantedCpusets]], list[Failure]]:
        placed: list[tuple[str, WantedCpusets]] = []
        misnamed: list[Failure] = []
        for want in decided:
            try:
                placed.append((self._layout.pod(want.pod.qos_class, want.pod.uid), want))
            except LayoutError as error:
                misnamed.append(Failure("", "", 0, f"{want.pod.name}: {error}; it is left out"))
        return placed, misnamed

    def _pass(
        self, placed: list[tuple[str, WantedCpusets]]
    ) -> tuple[SeenCgroup, int, tuple[Failure, ...], tuple[str, ...]]:
        """Read everything and write what differs; the cgroups that others changed are among the results."""
        tiers = dict.fromkeys([self._layout.kubepods, *map(self._layout.tier, KubernetesQos)])
        seen = observe(self._hierarchy, tiers, dict.fromkeys(path for path, _ in placed))
        planned = plan(seen.tree, placed, self._hierarchy.version)
        final = {(write.path, write.file): write.value for write in planned.writes}  # the last of two steps
        reapplied = {path for (path, file), value in final.items() if self._left_at.get((path, file)) == value}
        done, failures = apply(self._hierarchy, planned.writes)
        self._left_at |= planned.right
        for write in done:
            self._left_at[write.path, write.file] = write.value
        return seen, len(done), (*seen.failures, *failures), tuple(sorted(reapplied))

    def _lost(self, seen: SeenCgroup) -> list[Failure]:
        path = self._layout.kubepods
        if path not in seen.absent:
            return []
        message = f"{path}: not below {self._hierarchy.root}; correct cgroupRoot or cgroupDriver, or start the kubelet"
        return [Failure(path, "", 0, message)]

    def _cut(self, placed: list[tuple[str, WantedCpusets]], seen: SeenCgroup) -> list[Failure]:
        """Compare effective CPUs: v2 accepts every write, but gives a cgroup only what the cgroups above it have."""
        if self._hierarchy.version is Version.V1:
            return []
        found = []
        for path, want in placed:
            has = seen.tree.get(path)
            missing = want.cpus & ~seen.effective.get(path, want.cpus)
            if has is not None and not want.cpus & ~has.cpus and missing:
                message = (
                    f"{path}: lacks CPUs {format_cpuset(missing)}: a cgroup above lacks them, or they are offline;"
                    " widen cpuset.cpus of the cgroups above"
                )
                found.append(Failure(path, f"{File.CPUS}.effective", 0, message))
        return found
