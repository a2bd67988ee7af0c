"""A stand-in for NVIDIA's library, built from C, that plays recorded nodes to the real pynvml."""

import os
import shutil
import subprocess
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from reporter.gpu.guarded import DriverRoots, GuardedNvml, Patience

_GPU = Path(__file__).parent / "reporter" / "gpu"
QUICK = Patience(answer=30.0, first_answer=30.0, first_pause=0.001, longest_pause=0.01, end=30.0, renewal=0.0)


def build(folder: Path, *, limits: bool = True) -> Path:
    """Build the stand-in libnvidia-ml.so.1 in a folder, and return the folder; needs a C compiler.

    Args:
        folder: Where it goes.
        limits: Whether it is a driver that keeps memory limits (R615).
    """
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc")
    assert compiler, "no C compiler (cc): install gcc, or name one in CC"
    flags = ["-std=c11", "-D_DEFAULT_SOURCE", "-Wall", "-Wextra", "-Werror", "-O1", "-fPIC", "-shared"]
    flags += [] if limits else ["-DBEFORE_R615"]
    target = folder / "libnvidia-ml.so.1"
    subprocess.run([compiler, *flags, "-o", target, _GPU / "standin" / "nvml.c"], check=True)
    return folder


def recorded(name: str) -> dict[str, str]:
    """Read a recorded node: the library's answers by key."""
    lines = (_GPU / "nodes" / f"{name}.nvml").read_text().splitlines()
    return dict(line.split(" = ", 1) for line in lines if line and not line.startswith("#"))


class Played:
    """One played node: the library's answers, its events, and its sysfs."""

    def __init__(self, library: Path | None, folder: Path, stack: AsyncExitStack) -> None:
        self.folder = folder
        self.sysfs = folder / "sys"
        self.proc = folder / "proc"
        self.hung = folder / "hung"
        self.limits = folder / "limits"
        self._file = folder / "node.nvml"
        self._events = folder / "events"
        self._stack = stack
        self._lines: dict[str, str] = {}
        self._events.touch()
        self.env = {
            **os.environ,
            "LD_LIBRARY_PATH": str(library or folder),
            "NVML_STANDIN_NODE": str(self._file),
            "NVML_STANDIN_EVENTS": str(self._events),
            "NVML_STANDIN_HUNG": str(self.hung),
            "NVML_STANDIN_LIMITS": str(self.limits),
        }

    def play(self, name: str) -> None:
        """Play a recorded node."""
        self._lines.update(recorded(name))
        self._write()

    def change(self, changes: dict[str, str | None]) -> None:
        """Change the library's answers from now on; None removes a line."""
        for key, value in changes.items():
            if value is None:
                self._lines.pop(key, None)
            else:
                self._lines[key] = value
        self._write()

    def happen(self, card: int, xid: int, times: int = 1) -> None:
        """Let a card have an Xid error; card -1 is one that the library does not name."""
        with self._events.open("a") as file:
            file.write(f"{card} {xid}\n" * times)

    def limit(self, card: int, cgroup: Path | str, soft: int, hard: int) -> None:
        """Limit a cgroup's memory of a card, as NVIDIA's hook does when a container is created."""
        with self.limits.open("a") as file:
            file.write(f"{card} {soft} {hard} {cgroup}\n")

    def pci(self, bus: str, root: str, numa: str, between: str = "") -> None:
        """Put a device into sysfs, behind a bridge or at the root."""
        place = self.sysfs / "devices" / root / between / bus
        place.mkdir(parents=True)
        (place / "numa_node").write_text(f"{numa}\n")
        link = self.sysfs / "bus" / "pci" / "devices" / bus
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(os.path.relpath(place, link.parent))

    def numa_nodes(self, online: str) -> None:
        """Set the host's NUMA nodes."""
        folder = self.sysfs / "devices" / "system" / "node"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "online").write_text(f"{online}\n")

    def boot(self, name: str) -> None:
        """Set the node's boot id."""
        folder = self.proc / "sys" / "kernel" / "random"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "boot_id").write_text(f"{name}\n")

    def nvml(self, patience: Patience = QUICK, **options: Any) -> GuardedNvml:
        """Guard this node's library; closed at the test's end."""
        guarded = GuardedNvml(patience, DriverRoots(self.sysfs, self.proc), env=self.env, **options)
        self._stack.push_async_callback(_close, guarded)
        return guarded

    def _write(self) -> None:
        fresh = self._file.with_suffix(".new")
        fresh.write_text("".join(f"{key} = {value}\n" for key, value in self._lines.items()), errors="surrogateescape")
        fresh.replace(self._file)


async def _close(nvml: GuardedNvml) -> None:
    await nvml.aclose()
    if nvml._stuck is not None:  # killed, but not gone within the test's patience
        await nvml._stuck.gone.wait()
