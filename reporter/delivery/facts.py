"""What was read about the node's container runtime, as frozen values."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Final, TypeGuard

_LONGEST: Final = 256  # characters
_PROGRAM: Final = "nvidia-container-runtime"  # also with a mode appended: nvidia-container-runtime.cdi
OPERATORS: Final = "/usr/local/nvidia/toolkit/"
"""Where the GPU Operator puts NVIDIA's toolkit on the node."""


def is_name(value: object) -> TypeGuard[str]:
    """Whether a value can be a name, a kind or a path here: a short text that can be told and logged."""
    return isinstance(value, str) and 0 < len(value) <= _LONGEST and value.isascii() and value.isprintable()


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
