"""What a node needs from this machine, and what must be restored: packages, cgroups, mounts, kernel settings."""

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")
_CNI_FOLDERS = ("/usr/lib/cni", "/opt/cni/bin")
_CNI_PLUGINS = ("ptp", "host-local", "loopback")
# Debian's names. Go needs libseccomp's headers to build runc with seccomp. All packages are small.
_PACKAGES = ("runc", "containernetworking-plugins", "busybox-static", "gcc", "libc6-dev")
# What a kubelet, and the network plugin, set for the whole machine.
_SYSCTLS = (
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
    "net/ipv4/ip_forward",
)
_LOG_LINKS = Path("/var/log/containers")  # the kubelet's links to its logs, at a fixed place
_MNT_DETACH = 2


def problem() -> str | None:
    """Why no node can run on this machine, None if one can; missing packages are installed."""
    if sys.platform != "linux":
        return "a node needs Linux"
    if os.geteuid() != 0:
        return "a node needs root"
    lacking = _lacking()
    if lacking:
        install(*_PACKAGES)
        lacking = _lacking()
    return f"a node needs {', '.join(lacking)} (Debian: {' '.join(_PACKAGES)})" if lacking else None


def cni_folder() -> Path | None:
    """The folder of the network plugins."""
    for folder in map(Path, _CNI_FOLDERS):
        if all((folder / plugin).exists() for plugin in _CNI_PLUGINS):
            return folder
    return None


def _lacking() -> list[str]:
    programs = [name for name in ("runc", "busybox", "gcc") if shutil.which(name) is None]
    return programs if cni_folder() else [*programs, "network plugins"]


def install(*packages: str) -> None:
    """Install Debian packages, as far as this machine can."""
    if shutil.which("apt-get") is None:
        return
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    install_them = ("apt-get", "install", "--yes", "--no-install-recommends", *packages)
    for command in (install_them, ("apt-get", "update"), install_them):  # most machines need no update of the lists
        done = subprocess.run(command, env=env, capture_output=True, check=False)
        if command is install_them and done.returncode == 0:
            return


@contextlib.contextmanager
def kernel_settings_kept() -> Iterator[None]:
    """Restore afterwards what a kubelet sets for the whole machine."""
    files = [Path("/proc/sys", name) for name in _SYSCTLS]
    before = {file: file.read_text() for file in files if file.exists()}
    try:
        yield
    finally:
        for file, text in before.items():
            if file.read_text() != text:
                file.write_text(text)


@contextlib.contextmanager
def cgroup(name: str) -> Iterator[None]:
    """A cgroup of ours in every hierarchy; everything in it at the end is killed and removed.

    Remains of a killed run are removed at the start as well.
    """
    folders = [hierarchy / name for hierarchy in _hierarchies()]
    for folder in folders:
        _remove_cgroup(folder)
        _make_cgroup(folder)
    try:
        yield
    finally:
        for folder in folders:
            _remove_cgroup(folder)


def empty_cgroup(name: str) -> None:
    """Kill what runs in a cgroup of ours and below it, and remove the cgroups below it."""
    for hierarchy in _hierarchies():
        _kill_all(hierarchy / name)
        for below in (path for path in (hierarchy / name).iterdir() if path.is_dir()):
            _remove_cgroup(below)


def _hierarchies() -> list[Path]:
    if (_CGROUPS / "cgroup.controllers").exists():
        return [_CGROUPS]
    return sorted({folder.resolve() for folder in _CGROUPS.iterdir() if (folder / "cgroup.procs").exists()})


def _make_cgroup(folder: Path) -> None:
    subtree = folder.parent / "cgroup.subtree_control"
    if subtree.exists():  # v2: the kubelet does not find controllers that the parent does not enable
        available = (folder.parent / "cgroup.controllers").read_text().split()
        subtree.write_text(" ".join(f"+{controller}" for controller in available))
    folder.mkdir()
    for file in ("cpuset.cpus", "cpuset.mems"):
        if (folder / file).exists() and not subtree.exists():  # v1: empty at first, and then nothing can run in it
            (folder / file).write_text((folder.parent / file).read_text())


def _remove_cgroup(folder: Path) -> None:
    if not folder.exists():
        return
    below = sorted((path for path in folder.rglob("*") if path.is_dir()), reverse=True)
    for path in (*below, folder):
        _kill_all(path)
        path.rmdir()


def _kill_all(folder: Path) -> None:
    procs = folder / "cgroup.procs"
    while pids := procs.read_text().split():
        for pid in map(int, pids):
            _kill_and_wait(pid)


def _kill_and_wait(pid: int) -> None:
    """Kill a process and wait until it is gone; by pidfd, because most are not children of ours."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        signal.pidfd_send_signal(handle, signal.SIGKILL)
        os.waitid(os.P_PIDFD, handle, os.WEXITED)
    except (ProcessLookupError, ChildProcessError):
        pass  # gone, or another process's child: cgroup.procs shows when it is gone
    finally:
        os.close(handle)


def remove_stale(prefix: str) -> None:
    """Remove the folders of nodes whose test run was killed."""
    for folder in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        remove(folder)


def remove(folder: Path) -> None:
    """Remove a node's folder with its processes, mounts and links."""
    kill_users_of(folder)
    _unmount_below(folder)
    for link in _LOG_LINKS.glob("*.log"):
        if link.is_symlink() and link.readlink().is_relative_to(folder):
            link.unlink()
    shutil.rmtree(folder, ignore_errors=True)


def _unmount_below(folder: Path) -> None:
    """The innermost first."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    points = [line.split()[4] for line in lines]
    libc = ctypes.CDLL(None)
    for point in sorted((point for point in points if point.startswith(f"{folder}/")), reverse=True):
        libc.umount2(point.encode(), _MNT_DETACH)


def kill_users_of(folder: Path) -> None:
    """Kill processes that were started with a path below a folder: shims that outlived their containerd."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):  # it has ended
            if f"{folder}/".encode() in (entry / "cmdline").read_bytes() and int(entry.name) != os.getpid():
                _kill_and_wait(int(entry.name))
