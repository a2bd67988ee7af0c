"""Where the cgroups of Pods and containers are (pure).

The kubelet has two drivers. `cgroupfs` nests plain names. `systemd` nests slices, whose names repeat those above them
and write `-` as `_` (Kubernetes v1.37, pkg/kubelet/cm/cgroup_manager_linux.go). Each container runtime names the
innermost cgroup in its own way. Paths are relative to the mount of the hierarchy.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Final

from allocator.vocabulary.outcome import excerpt

_UID: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_-]{0,126}[A-Za-z0-9])?", re.ASCII)
_CONTAINER: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}", re.ASCII)
# CRI-O's monitor of a container, crio-conmon-ID.scope, is none.
_OF_CONTAINER: Final = re.compile(r"(?:^|(?<!-conmon)-)([0-9a-f]{64})(?:\.scope)?$", re.ASCII)
_PART: Final = re.compile(r"(?!\.)[A-Za-z0-9_.:@\\-]{1,255}", re.ASCII)
_STATIC_POD: Final = "kubernetes.io/config.hash"
_KUBEPODS: Final = "kubepods"
_SLICE: Final = ".slice"


class LayoutError(ValueError):
    """A name that cannot be part of a cgroup's path; the message says which."""


class Version(IntEnum):
    """Version of the cgroup hierarchy that has the cpuset controller."""

    V1 = 1
    V2 = 2


class Driver(StrEnum):
    """How the kubelet names cgroups (its `cgroupDriver`)."""

    CGROUPFS = "cgroupfs"
    SYSTEMD = "systemd"


class KubernetesQos(StrEnum):
    """A Pod's Kubernetes QoS class (`status.qosClass`), which decides its place among cgroups."""

    GUARANTEED = "Guaranteed"
    BURSTABLE = "Burstable"
    BEST_EFFORT = "BestEffort"


# runtime, as a container id names it -> prefix of the cgroup, and prefix of the scope
_RUNTIMES: Final[Mapping[str, tuple[str, str]]] = {
    "containerd": ("", "cri-containerd-"),
    "cri-o": ("crio-", "crio-"),
    "docker": ("", "docker-"),
}


@dataclass(frozen=True, slots=True)
class CgroupLayout:
    """The paths of one node."""

    driver: Driver  # the kubelet's `cgroupDriver`
    root: str = "/"  # the kubelet's `cgroupRoot`, `/` by default

    def __post_init__(self) -> None:
        for part in self._above:
            if not _PART.fullmatch(part):
                raise LayoutError(f"cgroupRoot {excerpt(self.root)!r} is not a path of cgroups")

    @property
    def _above(self) -> tuple[str, ...]:
        return tuple(part for part in self.root.split("/") if part)

    @property
    def kubepods(self) -> str:
        """The cgroup that all Pods are below."""
        return self._path(_KUBEPODS)

    def tier(self, qos: KubernetesQos) -> str:
        """The cgroup that the Pods of a QoS class are in; Guaranteed ones are in `kubepods` itself."""
        return self._path(_KUBEPODS, *_tier(qos))

    def pod(self, qos: KubernetesQos, uid: str) -> str:
        """A Pod's own cgroup.

        Raises LayoutError: `uid` is not a UID.
        """
        if not _UID.fullmatch(uid):
            raise LayoutError(f"not a Pod's UID: {excerpt(uid)!r}")
        return self._path(_KUBEPODS, *_tier(qos), f"pod{uid}")

    def container(self, qos: KubernetesQos, uid: str, container_id: str) -> str:
        """The cgroup of a container, or of a sandbox: both are directly below their Pod's.

        Raises LayoutError: `container_id` is not a container's id, or names an unknown runtime.
        """
        runtime, found, name = container_id.partition("://")
        if not found or runtime not in _RUNTIMES or not _CONTAINER.fullmatch(name):
            known = ", ".join(f"{runtime}://" for runtime in _RUNTIMES)
            raise LayoutError(f"not a container's id with one of {known}: {excerpt(container_id)!r}")
        plain, scope = _RUNTIMES[runtime]
        last = f"{plain}{name}" if self.driver is Driver.CGROUPFS else f"{scope}{name}.scope"
        return f"{self.pod(qos, uid)}/{last}"

    def _path(self, *parts: str) -> str:
        parts = (*self._above, *parts)
        if self.driver is Driver.CGROUPFS:
            return "/".join(parts)
        names = [part.replace("-", "_") for part in parts]
        return "/".join(_nested(names))


def container_id(name: str) -> str:
    """The id in the name of a container's cgroup, without its runtime; "" if it is none of a container or sandbox."""
    match = _OF_CONTAINER.search(name)
    return match[1] if match is not None else ""


def from_runtime(named: str) -> str:
    """The path of a cgroup that a container runtime names, as NRI has it.

    `named`: with the driver cgroupfs, the path. With systemd a slice, alone or as a path, of which the last name says
    everything; for a container, `slice:prefix:name` (runc, libcontainer/cgroups/systemd: the scope prefix-name).
    Raises LayoutError: it is neither.
    """
    above, colon, scope = named.partition(":")
    last = above.rpartition("/")[2]
    if last.endswith(_SLICE):
        names = last.removesuffix(_SLICE).split("-")
        parts = _nested(names) if all(names) else [""]
        if colon:
            prefix, found, name = scope.partition(":")
            parts.append(f"{prefix}-{name}.scope" if found and prefix and name else "")
    else:
        parts = named.removeprefix("/").split("/")
    if not all(map(_PART.fullmatch, parts)):
        raise LayoutError(f"the runtime names a cgroup {excerpt(named)!r}, which is no path of one")
    return "/".join(parts)


def _nested(names: Sequence[str]) -> list[str]:
    """Slices, each of which repeats the names above it."""
    return [f"{'-'.join(names[: depth + 1])}{_SLICE}" for depth in range(len(names))]


def qos_of(path: str) -> KubernetesQos:
    """The QoS class of the Pod whose own cgroup this is (`CgroupLayout.pod`)."""
    tier = path.rpartition("/")[0].rpartition("/")[2].removesuffix(_SLICE).rpartition("-")[2]
    return next((qos for qos in KubernetesQos if tier in _tier(qos)), KubernetesQos.GUARANTEED)


def _tier(qos: KubernetesQos) -> tuple[str, ...]:
    return () if qos is KubernetesQos.GUARANTEED else (qos.value.lower(),)


def cgroup_uid(uid: str, annotations: Mapping[str, str]) -> str:
    """The UID in the name of a Pod's cgroup; for a static Pod, the hash of its file, not the UID of its mirror Pod."""
    return annotations.get(_STATIC_POD) or uid
