"""What containers really have, read from their cgroups and procfs; None if it cannot be read."""

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Final

from allocator.vocabulary.names import VISIBLE_DEVICES_ENV
from reporter import files
from reporter.cgroup.cpusets import Hierarchy
from reporter.cgroup.layout import CgroupLayout, LayoutError, Version, container_id
from reporter.gpu.facts import GpuProcess
from reporter.pods import NodePod
from reporter.proof.agree import CardUse, ContainerSeen

_WITHIN: Final = re.compile(r"(?:^|[/-])([0-9a-f]{64})(?:\.scope)?(?:/|$)", re.ASCII | re.MULTILINE)
_POD: Final = re.compile(r"pod([0-9a-f]{32}|[0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12})(?:\.slice)?(?:/|$)")
_CARD: Final = re.compile(r"nvidia([0-9]{1,3})", re.ASCII)
_OF_CRUN: Final = "container"
_MAX_CONTAINERS: Final = 64  # of one Pod
_MAX_BELOW: Final = 64  # cgroups of one container
_MAX_ENVIRONMENT: Final = 256 * 1024
# What is kept of each container of the node until the next proof: four times the ids, and the minors, of 32 cards.
_MAX_VISIBLE: Final = 4096
_MAX_MINORS: Final = 128


def containers(
    hierarchy: Hierarchy, layout: CgroupLayout, pods: Iterable[NodePod], proc: Path, *, environment: bool
) -> dict[str, ContainerSeen]:
    """Inspect the containers of Pods.

    Returns container id to what was seen of it; containers that do not run are left out.
    """
    return {
        identity: _container(f"{hierarchy.root}/{path}", hierarchy.version, proc, environment=environment)
        for identity, path in _running(hierarchy, layout, pods)
    }


def cgroups(hierarchy: Hierarchy, layout: CgroupLayout, pods: Iterable[NodePod]) -> dict[str, str]:
    """Find the cgroup of each running container of Pods, as a path below the hierarchy's root.

    It is the innermost one, which limits are set on: crun makes a cgroup `container` below the one that the kubelet
    names.
    """
    inner = {identity: f"{path}/{_OF_CRUN}" for identity, path in _running(hierarchy, layout, pods)}
    return {
        identity: path if (hierarchy.root / path).is_dir() else path.removesuffix(f"/{_OF_CRUN}")
        for identity, path in inner.items()
    }


def _running(hierarchy: Hierarchy, layout: CgroupLayout, pods: Iterable[NodePod]) -> Iterator[tuple[str, str]]:
    """The id of each running container of Pods, and its cgroup as a path below the hierarchy's root."""
    for pod in pods:
        try:
            path = layout.pod(pod.qos_class, pod.cgroup)
        except LayoutError:
            continue
        for name in files.names(f"{hierarchy.root}/{path}")[:_MAX_CONTAINERS]:
            identity = container_id(name)
            if identity in pod.containers:
                yield identity, f"{path}/{name}"


def _container(folder: str, version: Version, proc: Path, *, environment: bool) -> ContainerSeen:
    file = "cpuset.cpus.effective" if version is Version.V2 else "cpuset.cpus"
    visible, minors = None, None
    if environment and (pid := _first_process(folder)):
        visible = _environment(f"{proc}/{pid}/environ")
        minors = _cards(f"{proc}/{pid}/root/dev")
    return ContainerSeen(files.cpu_list(f"{folder}/{file}"), visible, minors)


def _first_process(folder: str) -> str:
    """The first process of a container; "" if it has none.

    With cgroup v2 all processes may be one level down: crun makes a cgroup `container`, and an init system makes
    several.
    """
    own = _first_of(folder)
    return own or next(filter(None, map(_first_of, _cgroups_below(folder))), "")


def _first_of(folder: str) -> str:
    pid = (files.text(f"{folder}/cgroup.procs") or "").partition("\n")[0]
    return pid if pid.isdecimal() else ""


def _cgroups_below(folder: str) -> list[str]:
    """The cgroups directly below one, sorted: `init.scope` comes before `system.slice`."""
    try:
        with os.scandir(folder) as entries:
            return sorted(islice((one.path for one in entries if one.is_dir(follow_symlinks=False)), _MAX_BELOW))
    except OSError:
        return []


def _environment(path: str) -> str | None:
    """Read NVIDIA_VISIBLE_DEVICES; "" if it is not set, None if the environment cannot be read, or not all of it."""
    data = files.content(path, _MAX_ENVIRONMENT)
    if data is None:
        return None
    start = f"{VISIBLE_DEVICES_ENV}=".encode()
    for entry in data.split(b"\0"):
        if entry.startswith(start):
            return entry[len(start) :][:_MAX_VISIBLE].decode(errors="replace")
    # A process that is starting or ending has an empty file.
    return "" if 0 < len(data) < _MAX_ENVIRONMENT else None


def _cards(folder: str) -> frozenset[int] | None:
    """The minors of the cards' device files; None if they cannot be determined.

    Every container has device files: an empty list means that /dev cannot be read. One that is full may lack some.
    """
    names = files.names(folder)
    if not 0 < len(names) < files.MAX_NAMES:
        return None
    minors = (int(match[1]) for name in names if (match := _CARD.fullmatch(name)))
    return frozenset(minor for minor in minors if minor < _MAX_MINORS)


def card_uses(processes: Mapping[str, Iterable[GpuProcess]], proc: Path) -> tuple[CardUse, ...]:
    """Find the Pods that the processes on cards belong to."""
    found = []
    for card, listed in sorted(processes.items()):
        for one in listed:
            within = files.text(proc / str(one.pid) / "cgroup") or ""
            found.append(CardUse(card, pod_of(within), one.pid, one.memory, container_of(within)))
    return tuple(found)


def pod_of(cgroups: str) -> str | None:
    """Find a Pod's UID in /proc/PID/cgroup; None if the process belongs to no Pod."""
    match = _POD.search(cgroups)
    if match is None:
        return None
    return match[1].replace("_", "-")


def container_of(cgroups: str) -> str:
    """Find a container's id in /proc/PID/cgroup; "" if the process belongs to none that can be told."""
    match = _WITHIN.search(cgroups)
    return match[1] if match is not None else ""
