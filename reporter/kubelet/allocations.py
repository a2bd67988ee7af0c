"""What the kubelet itself tells that it gave away, and what of it counts before its files (pure).

Its PodResources service is an interface that lasts; its files are its own business. But the service names a Pod by
namespace and name, and tells neither of init containers that end, nor of the CPU manager's policy and default set. So
its word counts container by container, and what it does not tell is taken from the files.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from reporter.kubelet.cpustate import STATIC_POLICY, CpuState, StateLayout
from reporter.kubelet.devicecheckpoint import DeviceCheckpoint, PodDevices
from reporter.kubelet.watched import FileReading
from reporter.pods import NodePod


@dataclass(frozen=True, slots=True)
class ContainerResources:
    """What one container has.

    Attributes:
        devices: resource to ids, as the device plugin names them.
        cpus: those that it alone has.
    """

    devices: Mapping[str, frozenset[str]] = field(default_factory=dict)
    cpus: int = 0


@dataclass(frozen=True, slots=True)
class PodResources:
    """What the containers of one Pod have; those that are not named are not told of."""

    namespace: str
    name: str
    containers: Mapping[str, ContainerResources]


@dataclass(frozen=True, slots=True)
class Allocations:
    """What the kubelet tells.

    Attributes:
        pods: UID (as the kubelet's files have it) to container to what it has.
        current: whether it was told in this round; else it is what was told last.
    """

    pods: Mapping[str, Mapping[str, ContainerResources]]
    current: bool = True


_Names = Mapping[tuple[str, str], str]
_NOTHING: Final = DeviceCheckpoint((), {})


def names(pods: Iterable[NodePod]) -> _Names:
    """Say for which Pods the kubelet's names stand: namespace and name to UID.

    To be taken before the kubelet is asked. A Pod whose status the kubelet has written is one that it knows and has
    admitted, and then it has forgotten an earlier one of this name; before that its name may still mean the earlier.
    """
    return {(pod.namespace, pod.name): pod.cgroup for pod in pods if pod.acknowledged and not pod.finished}


def by_uid(listed: Iterable[PodResources], known: _Names) -> dict[str, Mapping[str, ContainerResources]]:
    """Find out whom the kubelet told of; left out are Pods that are not known by name, or were told of twice."""
    found: dict[str, Mapping[str, ContainerResources]] = {}
    twice = set()
    for pod in listed:
        uid = known.get((pod.namespace, pod.name))
        if uid is None:
            continue
        if uid in found:
            twice.add(uid)
        found[uid] = pod.containers
    return {uid: found[uid] for uid in sorted(found) if uid not in twice}


def _before(told: FileReading[Allocations], problem: str | None) -> Mapping[str, Mapping[str, ContainerResources]]:
    """What counts before a file: an older answer only where the file cannot be read, which is else the newer one."""
    if told.value is None or not (told.value.current or problem):
        return {}
    return told.value.pods


def devices(file: FileReading[DeviceCheckpoint], told: FileReading[Allocations]) -> FileReading[DeviceCheckpoint]:
    """Put what the kubelet tells of devices before its device manager's file.

    The file's entry stays where it says the same: it has the order of NUMA nodes and the plugin's answer as well.
    """
    pods = _before(told, file.problem)
    if not pods:
        return file
    value = file.value or _NOTHING
    found = [entry for entry in value.entries if entry.container not in pods.get(entry.pod_uid, {})]
    known = {(entry.pod_uid, entry.container, entry.resource): entry for entry in value.entries}
    for uid, containers in pods.items():
        for name, container in sorted(containers.items()):
            for resource, ids in container.devices.items():
                entry = known.get((uid, name, resource))
                same = entry is not None and frozenset(entry.device_ids) == ids
                found.append(entry if entry and same else PodDevices(uid, name, resource, tuple(sorted(ids))))
    return FileReading(replace(value, entries=tuple(found)), file.problem)


def cpus(file: FileReading[CpuState], told: FileReading[Allocations]) -> FileReading[CpuState]:
    """Put what the kubelet tells of CPUs before its CPU manager's file, which has the policy and the default set.

    Only the static policy gives CPUs away: so it is in force where some are, even if the file was never readable.
    """
    pods = _before(told, file.problem)
    given = any(container.cpus for containers in pods.values() for container in containers.values())
    if file.value is None and not given:
        return file
    state = file.value or CpuState(StateLayout.V2, STATIC_POLICY, 0)
    entries = {uid: dict(containers) for uid, containers in state.entries.items()}
    for uid, containers in pods.items():
        of_file = {name: cpus for name, cpus in entries.pop(uid, {}).items() if name not in containers}
        of_told = {name: container.cpus for name, container in sorted(containers.items()) if container.cpus}
        if of_file or of_told:
            entries[uid] = {**of_file, **of_told}
    if entries == state.entries:
        return file
    merged = replace(state, entries=entries)
    return FileReading(replace(merged, default=(state.known | merged.given) & ~merged.given), file.problem)
