"""Devices and CPUs that the kubelet reports on its PodResources socket, and how they combine with its files.

The service is a stable interface; the kubelet's files are internal. But the service names a Pod by namespace and name,
and reports neither finished init containers nor the CPU manager's policy and default set. Its answer therefore counts
container by container, and the rest comes from the files. HTTP/2 and protobuf are loaded only if there is a socket, to
save their memory otherwise.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
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


DEADLINE_S: Final = 3.0  # the kubelet answers within milliseconds
PATIENCE_S: Final = 60.0  # how long a kubelet may not answer before that is a problem: each restart takes a while
MAX_BYTES: Final = 2 * 2**20  # a node of 250 Pods answers some hundred kilobytes
_NOT_THERE: Final[FileReading[Allocations]] = FileReading(None, None)


class PodResourcesSocket:
    """The socket, called at each reading.

    A missing socket is no problem: older kubelets have none. If nobody serves the socket, the last answer is kept and
    marked as old, because the files, which are read each time, are newer.
    `path`: path of the socket; if "", it is never called. `pause`: seconds after a failure without another call: a
    kubelet that hangs then delays only one round in that time. `patience`: seconds that the socket may be unserved
    before that is a problem. A malformed answer is a problem immediately.
    """

    def __init__(
        self,
        path: str,
        *,
        pause: float = 0.0,
        patience: float = PATIENCE_S,
        deadline: float = DEADLINE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path = path
        self._pause = pause
        self._patience = patience
        self._deadline = deadline
        self._clock = clock
        self._reading = _NOT_THERE
        self._away_since: float | None = None
        self._not_before: float | None = None

    async def read(self, pods: Iterable[NodePod]) -> FileReading[Allocations]:
        """Call the kubelet; never raises because of the kubelet or a missing socket."""
        if not self._path or not _exists(self._path):
            self._away_since = self._not_before = None
            return _NOT_THERE
        if self._not_before is not None and self._clock() < self._not_before:
            return self._reading
        self._reading = await self._ask(pods)
        return self._reading

    async def _ask(self, pods: Iterable[NodePod]) -> FileReading[Allocations]:
        from reporter.kubelet import podlist  # noqa: PLC0415 they bring the libraries

        known = names(pods)
        try:
            data = await podlist.call(self._path, podlist.METHOD, b"", max_bytes=MAX_BYTES, seconds=self._deadline)
            listed = podlist.parse(data)
        except podlist.NotServedError as error:
            return self._kept(self._away(str(error)))
        except (podlist.CallError, podlist.PodListError) as error:
            return self._kept(f"{self._path}: {error}; the kubelet's files are used instead")
        self._away_since = self._not_before = None
        return FileReading(Allocations(by_uid(listed, known)), None)

    def _kept(self, problem: str | None) -> FileReading[Allocations]:
        self._not_before = self._clock() + self._pause
        value = self._reading.value
        return FileReading(replace(value, current=False) if value is not None else None, problem)

    def _away(self, why: str) -> str | None:
        now = self._clock()
        since = self._away_since = now if self._away_since is None else self._away_since
        if now - since < self._patience:
            return None
        return f"{self._path}: the kubelet does not serve it: {why}; see the kubelet's log; its files are used instead"


def _exists(path: str) -> bool:
    """Whether something exists there; True if that cannot be checked, so that the call shows the reason."""
    try:
        Path(path).stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return True
