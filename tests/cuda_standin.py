"""Stand-ins for CUDA, in C: a library that keeps to the driver's limits, one in HAMi-core's place, and a program."""

import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_SOURCES = Path(__file__).parent / "enforcer" / "standin"
OUT_OF_MEMORY = 2


@dataclass(frozen=True)
class Cuda:
    """What was built: it works at the path of its folder only."""

    folder: Path

    @property
    def limits(self) -> Path:
        """The file of limits, for the stand-in of NVML (NVML_STANDIN_LIMITS)."""
        return self.folder / "limits"

    @property
    def limiter(self) -> Path:
        """The library in HAMi-core's place."""
        return self.folder / "libvgpu.so"

    @property
    def program(self) -> Path:
        """The program that allocates."""
        return self.folder / "allocate"


def build(folder: Path, mount: Path, cards: Mapping[int, int], controller: str = "") -> Cuda:
    """Build them; needs a C compiler.

    Args:
        folder: Where they go, and are.
        mount: Where the cgroup v2 hierarchy is.
        cards: The memory of each card in bytes, by its number (minor).
        controller: Of the hierarchy of cgroup v1 that stands for it; "" for none.
    """
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc")
    assert compiler, "no C compiler (cc): install gcc, or name one in CC"
    (folder / "cards").write_text("".join(f"{number} {memory}\n" for number, memory in cards.items()))
    (folder / "limits").touch()
    flags = ["-std=c11", "-D_DEFAULT_SOURCE", "-Wall", "-Wextra", "-Werror", "-O1"]
    places = [f'-DFOLDER="{folder}"', f'-DMOUNT="{mount}"', f'-DCONTROLLER="{controller}"']
    shared = [*flags, "-fPIC", "-shared"]
    cuda = folder / "libcuda.so.1"
    commands: tuple[list[str | Path], ...] = (
        [*shared, *places, "-Wl,-soname,libcuda.so.1", "-o", cuda, _SOURCES / "cuda.c"],
        [*shared, "-o", folder / "libvgpu.so", _SOURCES / "limiter.c", "-ldl"],
        [*flags, f"-Wl,-rpath,{folder}", "-o", folder / "allocate", _SOURCES / "allocate.c", cuda],
    )
    for command in commands:
        subprocess.run([compiler, *command], check=True)
    return Cuda(folder)
