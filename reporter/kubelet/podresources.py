"""Devices and CPUs that the kubelet reports on its PodResources socket, and how they combine with its files.

The service is a stable interface; the kubelet's files are internal. But the service names a Pod by namespace and name,
and reports neither finished init containers nor the CPU manager's policy and default set. Its answer therefore counts
container by container, and the rest comes from the files.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from reporter.files import FileReading
from reporter.kubelet.cpustate import STATIC_POLICY, CpuState, StateLayout
from reporter.kubelet.devicecheckpoint import DeviceCheckpoint, PodDevices
from reporter.pods import NodePod

WHOLE_POD: Final = ""  # in the place of a container's name: what the Pod has as a whole


@dataclass(frozen=True, slots=True)
class ContainerResources:
    """What one container has."""

    # resource to device ids, as the device plugin names them
    devices: Mapping[str, frozenset[str]] = field(default_factory=dict)
    cpus: int = 0


@dataclass(frozen=True, slots=True)
class PodResources:
    """What the containers of one Pod have, and the Pod as a whole (`WHOLE_POD`), as far as they are reported."""

    namespace: str
    name: str
    containers: Mapping[str, ContainerResources]


@dataclass(frozen=True, slots=True)
class Allocations:
    """The kubelet's answer."""

    # Pod UID (as in the kubelet's files) to container to what the container has
    pods: Mapping[str, Mapping[str, ContainerResources]]
    current: bool = True  # whether it was received in this round; otherwise it is the last answer received


_Names = Mapping[tuple[str, str], str]
_NOTHING: Final = DeviceCheckpoint(())


def names(pods: Iterable[NodePod]) -> _Names:
    """Map the names that the kubelet uses: namespace and name to UID.

    The names must be taken before the kubelet is asked. If the kubelet has written a Pod's status, it has admitted the
    Pod and forgotten an earlier Pod with that name; before that, the name may still mean the earlier one.
    """
    return {(pod.namespace, pod.name): pod.cgroup for pod in pods if pod.acknowledged and not pod.finished}


def by_uid(listed: Iterable[PodResources], known: _Names) -> dict[str, Mapping[str, ContainerResources]]:
    """Map UID to what the kubelet reported; Pods of unknown name, or reported twice, are left out."""
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


def _before(answer: FileReading[Allocations], problem: str | None) -> Mapping[str, Mapping[str, ContainerResources]]:
    """The answer that precedes a file: a current one, or an older one if the file cannot be read."""
    if answer.value is None or not (answer.value.current or problem):
        return {}
    return answer.value.pods


def devices(file: FileReading[DeviceCheckpoint], answer: FileReading[Allocations]) -> FileReading[DeviceCheckpoint]:
    """Combine the kubelet's answer about devices with its device manager's file; the answer takes precedence.

    An entry of the file that agrees stays: it also has the order of NUMA nodes and the plugin's response.
    """
    pods = _before(answer, file.problem)
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


def cpus(file: FileReading[CpuState], answer: FileReading[Allocations]) -> FileReading[CpuState]:
    """Combine the kubelet's answer about CPUs with its CPU manager's file, which has the policy and the default set.

    The answer takes precedence. Only the static policy allocates CPUs: if some are allocated, it is in force even if
    the file was never readable. Of a Pod that has CPUs as a whole (since Kubernetes 1.37, behind the gate
    PodLevelResourceManagers), the answer does not name the sets that containers share: those are the file's.
    """
    pods = _before(answer, file.problem)
    given = any(container.cpus for containers in pods.values() for container in containers.values())
    if file.value is None and not given:
        return file
    state = file.value or CpuState(StateLayout.V2, STATIC_POLICY, 0)
    entries = {uid: dict(containers) for uid, containers in state.entries.items()}
    whole = dict(state.pods)
    for uid, containers in pods.items():
        of_told = {name: container.cpus for name, container in sorted(containers.items()) if container.cpus}
        if WHOLE_POD in of_told:
            whole[uid] = of_told.pop(WHOLE_POD)
        told = of_told if uid in whole else containers
        of_file = {name: cpus for name, cpus in entries.pop(uid, {}).items() if name not in told}
        if of_file or of_told:
            entries[uid] = {**of_file, **of_told}
    if (entries, whole) == (state.entries, state.pods):
        return file
    merged = replace(state, entries=entries, pods=whole)
    return FileReading(replace(merged, default=(state.known | merged.given) & ~merged.given), file.problem)
