"""The state file of the kubelet's CPU manager (`cpu_manager_state`): which CPUs it gave to which container.

Supported kubelets write three layouts: v2 by Pod UID and container name; v3 like v2, with sets of whole Pods (1.36,
behind the gate PodLevelResourceManagers); v4 (since 1.37) holds all of that as JSON in the text `data`, which has a
checksum of its own, beside what v2 has, for an older kubelet. In a file without `data` and without sets of Pods only
the checksum shows the layout, because it covers Go's names of the layout (v1.37,
pkg/kubelet/cm/cpumanager/state/checkpoint.go).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import reduce
from operator import or_
from typing import Any, Final

from allocator.vocabulary.cputopology import CpusetError, members
from allocator.vocabulary.cputopology import parse as parse_cpuset
from allocator.vocabulary.outcome import excerpt
from reporter.kubelet.checkpoint import CheckpointError, checksum, decode, read_checksum, read_map, read_text, show_map

FILE: Final = "cpu_manager_state"  # below the kubelet's folder
NO_POLICY: Final = "none"
STATIC_POLICY: Final = "static"


class StateLayout(IntEnum):
    """The layouts of the file, as the kubelet's code numbers them."""

    V2 = 2
    V3 = 3
    V4 = 4


@dataclass(frozen=True, slots=True)
class CpuState:
    """The file as read."""

    layout: StateLayout
    policy: str  # the CPU manager's policy that wrote it, `none` or `static`
    default: int  # CPUs for all containers that own none
    # Pod UID to container name to the container's exclusive CPUs
    entries: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    pods: Mapping[str, int] = field(default_factory=dict)  # Pod UID to the CPUs given to the whole Pod (v3 and later)
    # like `entries`, as they were when the Pod was admitted (v4); the kubelet gives nothing by them
    baselines: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    @property
    def given(self) -> int:
        """All exclusive CPUs of containers and Pods."""
        return reduce(or_, self._sets(), 0)

    @property
    def known(self) -> int:
        """All CPUs that the kubelet manages (all of the machine, less strictly reserved ones)."""
        return self.default | self.given

    def of_pod(self, uid: str) -> int:
        """The exclusive CPUs of a Pod and its containers; 0 if the kubelet allocated none to it."""
        return reduce(or_, self.entries.get(uid, {}).values(), self.pods.get(uid, 0))

    def _sets(self) -> Iterator[int]:
        for containers in self.entries.values():
            yield from containers.values()
        yield from self.pods.values()


def absent() -> CpuState:
    """The meaning of a missing file: the kubelet allocated no CPU."""
    return CpuState(StateLayout.V2, NO_POLICY, 0)


def parse(data: bytes) -> CpuState:
    """Read the file, in the layout that its checksum matches.

    Raises CheckpointError: it is truncated, malformed or too large, its checksum matches no layout, or a set is not a
    CPU list.
    """
    top = decode(data)
    if top.get("data") or top.get("dataChecksum"):  # as the kubelet, which then falls back to no other layout
        return _parse_v4(top)
    raw = _raw(top)
    stated = read_checksum(top.get("checksum"))
    tried = []
    for layout in (StateLayout.V3,) if raw.pods else (StateLayout.V3, StateLayout.V2):
        computed = checksum(_show(raw, layout))
        if stated == computed:
            return _read(raw, layout)
        tried.append(f"{computed} as v{layout.value}")
    raise CheckpointError(f"its checksum is {stated}, its data have {' or '.join(tried)}: corrupt")


def _parse_v4(top: Mapping[str, Any]) -> CpuState:
    text = read_text(top.get("data"), "data")
    stated, computed = read_checksum(top.get("dataChecksum")), _sum_of_text(text)
    if stated != computed:
        raise CheckpointError(f"its dataChecksum is {stated}, its data have {computed} as v4: corrupt")
    try:
        inner = decode(text.encode())
    except CheckpointError as error:
        raise CheckpointError(f"data: {error}") from error
    state = _read(_raw(inner), StateLayout.V4)
    return replace(state, baselines=_baselines(read_map(inner.get("baselines", {}), "baselines")))


def _sum_of_text(text: str) -> int:
    return checksum(f"(string){text}")


def _baselines(found: dict[str, Any] | None) -> dict[str, dict[str, int]]:
    sets: dict[str, dict[str, int]] = {}
    for uid, containers in (found or {}).items():
        where = f"baselines[{excerpt(uid)}]"
        sets[uid] = {
            name: _cpus(read_text((read_map(one, where) or {}).get("baseline"), where), where)
            for name, one in (read_map(containers, where) or {}).items()
        }
    return sets


def _raw(top: Mapping[str, Any]) -> "_Raw":
    return _Raw(
        policy=read_text(top.get("policyName"), "policyName"),
        default=read_text(top.get("defaultCpuSet"), "defaultCpuSet"),
        entries=read_map(top.get("entries", {}), "entries"),
        pods=read_map(top.get("podEntries", {}), "podEntries"),
    )


@dataclass(frozen=True, slots=True)
class _Raw:
    """The file's values. For the checksum, null and empty stay distinct, and sets stay as written."""

    policy: str
    default: str
    entries: dict[str, Any] | None
    pods: dict[str, Any] | None


def _show(raw: _Raw, layout: StateLayout) -> str:
    """Print the data as Go does: Kubernetes v1.37, VerifyChecksum of each layout."""
    entries = show_map(_nested(raw.entries), lambda containers: show_map(containers, str))
    pods = ""
    if layout is StateLayout.V3:
        sets = None if raw.pods is None else {uid: _pod_set(entry, uid) for uid, entry in raw.pods.items()}
        pods = f" PodEntries:(state.PodCPUAssignments){show_map(sets, _show_pod_set)}"
    return (
        f"(*state.CPUManagerCheckpoint){{PolicyName:(string){raw.policy} DefaultCPUSet:(string){raw.default} "
        f"Entries:(map[string]map[string]string){entries}{pods} Checksum:(checksum.Checksum)0}}"
    )


def _show_pod_set(cpus: int) -> str:
    elements = " ".join(f"{cpu}:{{}}" for cpu in members(cpus))
    return f"{{CPUSet:(cpuset.CPUSet){{elems:(map[int]struct {{}})map[{elements}]}}}}"


def _nested(entries: dict[str, Any] | None) -> dict[str, dict[str, str] | None] | None:
    if entries is None:
        return None
    nested: dict[str, dict[str, str] | None] = {}
    for uid, value in entries.items():
        where = f"entries[{excerpt(uid)}]"
        containers = read_map(value, where)
        nested[uid] = (
            None
            if containers is None
            else {name: read_text(text, f"{where}[{excerpt(name)}]") for name, text in containers.items()}
        )
    return nested


def _pod_set(entry: object, uid: str) -> int:
    where = f"podEntries[{excerpt(uid)}]"
    value = read_map(entry, where)
    if value is None:
        raise CheckpointError(f"{where} is null")
    return _cpus(read_text(value.get("cpuSet"), f"{where}.cpuSet"), where)


def _read(raw: _Raw, layout: StateLayout) -> CpuState:
    entries: dict[str, dict[str, int]] = {}
    for uid, sets in (_nested(raw.entries) or {}).items():
        where = f"entries[{excerpt(uid)}]"
        entries[uid] = {name: _cpus(text, where) for name, text in (sets or {}).items()}
    return CpuState(
        layout=layout,
        policy=raw.policy,
        default=_cpus(raw.default, "defaultCpuSet"),
        entries=entries,
        pods={uid: _pod_set(entry, uid) for uid, entry in (raw.pods or {}).items()},
    )


def _cpus(text: str, where: str) -> int:
    try:
        return parse_cpuset(text)
    except CpusetError as error:
        raise CheckpointError(f"{where}: {error}") from error


def by_pod(state: CpuState) -> dict[str, int]:
    """Sum up the exclusive CPUs of each Pod: UID to CPUs, none of them empty, by ascending UID."""
    found = {uid: state.of_pod(uid) for uid in sorted({*state.entries, *state.pods})}
    return {uid: cpus for uid, cpus in found.items() if cpus}
