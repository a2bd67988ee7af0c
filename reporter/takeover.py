"""Allocated CPUs put into the kubelet's CPU manager state, and taken out again.

CPU proposal, "Create/Update NodeResourceTopology": when the CPUs of a Pod are allocated by koord-scheduler, replace
the CPUs in the kubelet's state file. What a kubelet checks at its start (Kubernetes v1.37, staticPolicy.validateState)
holds for every planned state: the kubelet would not start otherwise.

The kubelet reads the file only when it starts, and later writes it whole from memory. Our CPUs take effect when the
kubelet restarts; if the kubelet writes the file before that, we write them again. The kubelet creates its PodResources
socket at each start, so the socket shows whether it has started since our write. We set the file's modification time to
that of the backup beside it, so the time shows whether the kubelet has written since.
"""

import contextlib
import json
import os
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import or_
from pathlib import Path
from typing import Any, Final, Literal

from allocator.vocabulary.cputopology import CpuTopology, format_cpuset
from allocator.vocabulary.cputopology import parse as parse_cpuset
from reporter.cgroup.layout import KubernetesQos
from reporter.files import FileError, FileReading, WatchedFile, read_bounded
from reporter.kubelet import cpustate
from reporter.kubelet.checkpoint import MAX_BYTES, CheckpointError, decode, read_map, read_text
from reporter.kubelet.configuration import STATIC, STRICT_RESERVATION, KubeletConfiguration, reserved_cpus
from reporter.kubelet.cpustate import STATIC_POLICY, CpuState
from reporter.pods import NodeIdentity, NodePod
from reporter.publish.events import Occurrence, about_node
from reporter.reading import HostReading

Cpus = Mapping[str, Mapping[str, int]]  # Pod UID -> container -> CPUs


class TakeOverError(Exception):
    """The kubelet's state is left as it is; the message says why, and what to do."""


@dataclass(frozen=True, slots=True)
class WantedState:
    """What the kubelet's state should hold."""

    ours: Cpus  # allocated CPUs of every container of each Pod; other Pods keep what the kubelet gave them
    # UIDs of all Pods of the node that have not finished; what we put in for other Pods is taken out again
    live: Collection[str]
    reserved: int  # the kubelet's reserved CPUs
    strict: bool = False  # whether its option strict-cpu-reservation is on; reserved CPUs are then in no set at all


@dataclass(frozen=True, slots=True)
class Outcome:
    """The possible part of what is wanted."""

    state: CpuState  # the state to be written
    accepted: Cpus  # the Pods of `ours` whose CPUs are in it
    refused: Mapping[str, str] = field(default_factory=dict)  # Pod UID to why its CPUs are not


def propose(state: CpuState, wish: WantedState, put_in: Cpus) -> Outcome:
    """Put in the CPUs of every Pod that can have them, even if other Pods cannot have theirs.

    `put_in`: the CPUs that earlier take-overs put in. Raises TakeOverError: the state cannot be taken over at all.
    """
    state = _without_gone(state, put_in, wish.live)
    ours = {uid: containers for uid, containers in wish.ours.items() if containers}
    refused: dict[str, str] = {}
    while found := _first_refused(state, ours, wish.reserved):  # without it, what the kubelet gave it is in the way
        uid, reason = found
        refused[uid] = reason
        del ours[uid]
    return Outcome(plan(state, ours, reserved=wish.reserved, strict=wish.strict), ours, refused)


def _without_gone(state: CpuState, put_in: Cpus, live: Collection[str]) -> CpuState:
    """Take out the entries of finished Pods that are still as we put them in.

    The kubelet removes its own entries of such Pods (cpumanager's removeStaleState). If it had none, it writes nothing;
    our CPUs would then stay in the file and block the next Pod.
    """
    gone = {uid for uid, containers in put_in.items() if uid not in live and state.entries.get(uid) == containers}
    if not gone:
        return state
    left = replace(state, entries={uid: containers for uid, containers in state.entries.items() if uid not in gone})
    return replace(left, default=state.known & ~left.given)


def _first_refused(state: CpuState, ours: Cpus, reserved: int) -> tuple[str, str] | None:
    for uid in sorted(ours):
        if reason := _objection(state, ours, uid, reserved):
            return uid, reason
    return None


def plan(state: CpuState, ours: Cpus, *, reserved: int, strict: bool = False) -> CpuState:
    """Put our CPUs into the kubelet's state (see `WantedState`), so that the kubelet accepts it at its start.

    Raises TakeOverError: there is no such state.
    """
    if state.policy != STATIC_POLICY:
        raise TakeOverError(
            f"the kubelet's CPU manager policy is {state.policy or 'unset'}: it owns no CPU, nothing to take over"
        )
    ours = {uid: containers for uid, containers in ours.items() if containers}
    if found := _first_refused(state, ours, reserved):
        raise TakeOverError(f"Pod {found[0]} {found[1]}")
    taken = replace(
        state,
        entries={**state.entries, **{uid: dict(containers) for uid, containers in ours.items()}},
        pods={uid: cpus for uid, cpus in state.pods.items() if uid not in ours},
    )
    taken = replace(taken, default=state.known & ~taken.given)
    if not taken.default:
        raise TakeOverError("no CPU would be left for containers that own none, and the kubelet would not start")
    missing = 0 if strict else reserved & ~taken.default
    if missing:
        raise TakeOverError(f"CPUs {format_cpuset(missing)} are reserved by the kubelet, but not in its default set")
    return taken


def _objection(state: CpuState, ours: Cpus, uid: str, reserved: int) -> str:
    """Say why a Pod cannot have its CPUs: the kubelet lacks, reserves or gave them to others; "" if it can."""
    cpus = reduce(or_, ours[uid].values(), 0)
    if not all(ours[uid].values()):
        return "has a container that would own no CPU"
    if cpus & reserved:
        shown = format_cpuset(cpus & reserved)
        return f"was given CPUs {shown}, which the kubelet reserves; reserve them for us as well"
    if cpus & ~state.known:
        return f"was given CPUs {format_cpuset(cpus & ~state.known)}, which the kubelet lacks"
    for other in sorted({*state.entries, *state.pods} - {*ours}):
        if clash := cpus & state.of_pod(other):
            return f"was given CPUs {format_cpuset(clash)}, which the kubelet gave to Pod {other}; delete one"
    for other, theirs in sorted(ours.items()):
        if other != uid and (clash := cpus & reduce(or_, theirs.values(), 0)):
            return f"and Pod {other} were both given CPUs {format_cpuset(clash)}; delete one"
    return ""


def plan_undo(state: CpuState, before: CpuState, ours: Cpus) -> CpuState:
    """Take our CPUs out of the kubelet's state again.

    Containers that still have exactly our CPUs get back what they had before; they get nothing if others have it now.
    Everything that the kubelet did since stays. `before`: its state before the first take-over.
    """
    left = {
        uid: {name: cpus for name, cpus in containers.items() if ours.get(uid, {}).get(name) != cpus}
        for uid, containers in state.entries.items()
    }
    pods = dict(state.pods)
    for uid in [uid for uid, containers in sorted(state.entries.items()) if len(left[uid]) < len(containers)]:
        others = {other: sets for other, sets in left.items() if other != uid}
        refused = replace(state, entries=others, pods=pods).given | ~state.known
        now = state.entries[uid]
        for name, cpus in sorted(before.entries.get(uid, {}).items()):
            taken_from = name not in left[uid] if name in now else name not in ours[uid]
            if taken_from and not cpus & refused:
                left[uid][name] = cpus
        if uid not in pods and uid in before.pods and not before.pods[uid] & refused:
            pods[uid] = before.pods[uid]
    undone = replace(state, entries={uid: containers for uid, containers in left.items() if containers}, pods=pods)
    return replace(undone, default=state.known & ~undone.given)


BACKUP_BYTES: Final = 12 * MAX_BYTES  # two states within JSON text, and our CPUs
_BACKUP_SUFFIX: Final = ".koordgate-backup"
_SOCKET: Final = "pod-resources/kubelet.sock"  # below the kubelet's folder
_ATTEMPTS: Final = 3


class _MeanwhileError(TakeOverError):
    """The kubelet wrote its file between our reading and writing."""


@dataclass(frozen=True, slots=True)
class Backup:
    """The backup beside the file."""

    before: CpuState  # what the kubelet had given to the Pods of `ours`, each before our CPUs were put in
    ours: Cpus  # the CPUs that take-overs put in
    memory: CpuState  # what the kubelet had in memory when we last wrote the file


def take_over(path: Path, wish: WantedState) -> Outcome:
    """Put our CPUs into the kubelet's state file, atomically and after a backup.

    Raises TakeOverError: the file is left as it is.
    """
    with _writable(path):
        for _ in range(_ATTEMPTS - 1):
            with contextlib.suppress(_MeanwhileError):
                return _take_over(path, wish)
        return _take_over(path, wish)


def _take_over(path: Path, wish: WantedState) -> Outcome:
    data = _read(path, MAX_BYTES)
    state = _parsed(path, data)
    backup = _read_backup(path)
    put_in = backup.ours if backup is not None else {}
    made = propose(state, wish, put_in)
    if made.state != state:
        ours = {uid: sets for uid, sets in {**put_in, **made.accepted}.items() if uid in made.state.entries}
        memory = _memory(path, state, backup)
        _exchange(path, data, made.state, Backup(_before(memory, backup, ours), ours, memory))
    return made


def _before(memory: CpuState, backup: Backup | None, ours: Cpus) -> CpuState:
    """What the kubelet gave to each Pod of ours: from the backup, or from its memory for Pods that are put in now."""
    put_in = backup.ours if backup is not None else {}
    states = {uid: backup.before if backup is not None and uid in put_in else memory for uid in ours}
    return replace(
        memory,
        entries={uid: state.entries[uid] for uid, state in states.items() if uid in state.entries},
        pods={uid: state.pods[uid] for uid, state in states.items() if uid in state.pods},
    )


def undo(path: Path) -> bool:
    """Take our CPUs out of the kubelet's state file; remove the backup once the kubelet's memory has none of them.

    Returns whether the kubelet's memory still has them. It may write them again until it restarts; then call this
    again. Raises TakeOverError: the file, and the backup, are left as they are.
    """
    with _writable(path):
        backup = _read_backup(path)
        if backup is None:
            return False
        waiting = path.exists() and _undo(path, backup)  # else the node was drained and the file removed
        if not waiting:
            backup_of(path).unlink(missing_ok=True)
            _sync(path.parent)
        return waiting


def _undo(path: Path, backup: Backup) -> bool:
    data = _read(path, MAX_BYTES)
    state = _parsed(path, data)
    memory = _memory(path, state, backup)
    undone = plan_undo(state, backup.before, backup.ours)
    if undone != state:
        _exchange(path, data, undone, replace(backup, memory=memory))
    return undone != memory


def waits(path: Path) -> bool:
    """Whether the file is as we last wrote it and the kubelet has not started since."""
    try:
        written = backup_of(path).stat().st_mtime_ns
        if path.stat().st_mtime_ns != written:
            return False
    except OSError:
        return False
    try:
        return (path.parent / _SOCKET).stat().st_mtime_ns <= written
    except OSError:
        return True  # none runs


def _memory(path: Path, state: CpuState, backup: Backup | None) -> CpuState:
    """What the kubelet has in its memory: what it wrote last, or read at its start."""
    return backup.memory if backup is not None and waits(path) else state


def backup_of(path: Path) -> Path:
    """Where the backup of a file is."""
    return path.with_name(path.name + _BACKUP_SUFFIX)


def _read(path: Path, max_bytes: int) -> bytes:
    try:
        return read_bounded(path, max_bytes)
    except FileNotFoundError as error:
        raise TakeOverError(f"{path}: does not exist; no kubelet with a CPU manager has run here") from error
    except FileError as error:
        raise TakeOverError(str(error)) from error


def _parsed(path: Path, data: bytes) -> CpuState:
    try:
        return cpustate.parse(data)
    except CheckpointError as error:
        raise TakeOverError(f"{path}: {error}; drain the node and remove the file, then start the kubelet") from error


def _read_backup(path: Path) -> Backup | None:
    file = backup_of(path)
    if not file.exists():
        return None
    try:
        return parse_backup(_read(file, BACKUP_BYTES))
    except CheckpointError as error:
        raise TakeOverError(f"{file}: {error}") from error


def parse_backup(data: bytes) -> Backup:
    """Read a backup.

    Raises CheckpointError: it cannot be used.
    """
    try:
        record = decode(data, BACKUP_BYTES)
        ours = {
            uid: {name: parse_cpuset(read_text(cpus, name)) for name, cpus in (read_map(value, uid) or {}).items()}
            for uid, value in (read_map(record.get("ours"), "ours") or {}).items()
        }
        before, memory = (cpustate.parse(read_text(record.get(key), key).encode()) for key in ("before", "memory"))
        return Backup(before, ours, memory)
    except ValueError as error:
        raise CheckpointError(f"the backup cannot be used: {error}; repair it or restore it from a copy") from error


def _render_backup(backup: Backup) -> bytes:
    sets: dict[str, Any] = {
        uid: {name: format_cpuset(cpus) for name, cpus in sorted(containers.items())}
        for uid, containers in sorted(backup.ours.items())
    }
    states = {"before": backup.before, "memory": backup.memory}
    value = {**{key: cpustate.render(state).decode() for key, state in states.items()}, "ours": sets}
    return json.dumps(value, indent=1, ensure_ascii=False).encode()


def _exchange(path: Path, expected: bytes, state: CpuState, backup: Backup) -> None:
    """Write the backup, then the file with the backup's time, unless another program has written the file since."""
    file = backup_of(path)
    _write(file, _render_backup(backup), like=path)
    stamp = file.stat().st_mtime_ns
    if _read(path, MAX_BYTES) != expected:
        raise _MeanwhileError(f"{path}: the kubelet writes it repeatedly; the take-over is tried again later")
    _write(path, cpustate.render(state), like=path, stamp=stamp)


def _write(path: Path, data: bytes, *, like: Path, stamp: int | None = None) -> None:
    """Write a file whole or not at all, with the owner and mode of another; it survives a loss of power."""
    # The name starts with a dot: the kubelet takes any other file in its folder for a checkpoint.
    handle, temporary = tempfile.mkstemp(prefix=".koordgate-", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            _wear(file.fileno(), like)
            file.write(data)
            file.flush()
            if stamp is not None:
                os.utime(file.fileno(), ns=(stamp, stamp))
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            Path(temporary).unlink()
        raise
    _sync(path.parent)


def _wear(handle: int, like: Path) -> None:
    found = like.stat()
    os.fchmod(handle, found.st_mode & 0o777)
    os.fchown(handle, found.st_uid, found.st_gid)


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextlib.contextmanager
def _writable(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise TakeOverError(f"{path}: cannot be written ({error.strerror}); mount its folder read-write") from error


Mode = Literal["leave", "write", "undo"]
_STRICT_TOPOLOGY: Final = ("restricted", "single-numa-node")
_NAMED: Final = 5  # Pods in one message


@dataclass(frozen=True, slots=True)
class TakenOver:
    """The result of the take-over in one round."""

    written: bool = False  # whether our CPUs were written
    reason: str = ""  # `notice` in one word
    notice: str = ""  # what happened, or what must happen next; "" if nothing
    problems: tuple[str, ...] = ()  # what an administrator must attend to, a sentence each


def events(node: NodeIdentity, taken: TakenOver) -> list[Occurrence]:
    """The Events of a round, about the Node."""
    found = [Occurrence(about_node(node), taken.reason, taken.notice, "Normal")] if taken.notice else []
    refusals = [problem for problem in taken.problems if problem != taken.notice]
    return [*found, *(Occurrence(about_node(node), "CpuStateNotTakenOver", problem) for problem in refusals)]


def wish(pods: Iterable[NodePod], host: HostReading, memory: CpuState) -> tuple[WantedState, tuple[str, ...]]:
    """Say what the kubelet's state should hold.

    All containers of a Pod but those in the shared pool have all of its CPUs, regardless of their requests. Init
    containers that have ended are included: the kubelet would look for CPUs for them when it restarts.

    `memory`: the state in the kubelet's memory. Returns also why Pods are left out, a sentence each. Raises
    TakeOverError: the kubelet's reserved CPUs are uncertain; the kubelet would not start with a wrong guess.
    """
    configuration, topology = host.configuration.value, host.cpus.topology
    if configuration is None or topology is None or configuration.cpu_policy != STATIC:
        raise TakeOverError(
            "the kubelet's policy is static, but its configuration does not say so; correct kubelet.configuration, or"
            " set kubelet.configz"
        )
    reserved, unsure = reserved_cpus(configuration, topology)
    if unsure or not reserved:
        raise TakeOverError(unsure or "the kubelet's configuration reserves no CPUs; state them in reservedSystemCPUs")
    live = [pod for pod in pods if not pod.finished]
    ours, left_out = {}, []
    for pod in live:
        if not pod.cpus or pod.deleted:
            continue
        if reason := _not_again(pod, configuration, topology, memory):
            left_out.append(f"Pod {pod} {reason}")
        else:
            ours[pod.cgroup] = {name: pod.cpus for name in pod.asked if name not in pod.shared}
    strict = configuration.option(STRICT_RESERVATION)
    return WantedState(ours, frozenset(pod.cgroup for pod in live), reserved, strict), tuple(left_out)


def _not_again(pod: NodePod, configuration: KubeletConfiguration, topology: CpuTopology, memory: CpuState) -> str:
    """Say why a Pod that has its CPUs from us cannot have them in the kubelet's state; "" if it can.

    The kubelet must give none to a container in the shared pool. A restarting kubelet admits all Pods again. With a
    strict topology policy, each container's set must have as many CPUs as the container requests (Kubernetes v1.37,
    staticPolicy.GetTopologyHints), on the same NUMA nodes as before.
    """
    if pod.qos_class is not KubernetesQos.GUARANTEED or not pod.whole_cpus:
        return ""
    shared = next((name for name in sorted(pod.shared) if pod.asked.get(name)), None)
    if shared is not None:
        return (
            f"has container {shared}, which runs on shared CPUs and asks for whole ones, so that the kubelet gives it"
            " CPUs of its own; let it ask for less than one CPU, or for a limit above its request"
        )
    if configuration.topology_policy not in _STRICT_TOPOLOGY:
        return ""
    policy = configuration.topology_policy
    if {asked for name, asked in pod.asked.items() if name not in pod.shared} != {pod.cpus.bit_count()}:
        return (
            f"has containers that ask for less than all of its CPUs {format_cpuset(pod.cpus)}; under"
            f" topologyManagerPolicy {policy} the kubelet would reject it when it restarts"
        )
    had = memory.of_pod(pod.cgroup)
    if had and topology.nodes_of(had) != topology.nodes_of(pod.cpus):
        return (
            f"was given CPUs {format_cpuset(pod.cpus)}, on other NUMA nodes than the kubelet's {format_cpuset(had)};"
            f" under topologyManagerPolicy {policy} the kubelet might reject it when it restarts"
        )
    return ""


class TakeOver:
    """The state file of one kubelet."""

    def __init__(self, path: Path, mode: Mode) -> None:
        self._path = path
        self._mode = mode
        self._backup: WatchedFile[Backup | None] = WatchedFile(
            backup_of(path), parse_backup, max_bytes=BACKUP_BYTES, absent=lambda: None
        )
        self._file: FileReading[CpuState] = FileReading(None, None)
        self._kept: FileReading[Backup | None] = FileReading(None, None)
        self._memory: CpuState | None = None

    def in_memory(self, file: FileReading[CpuState]) -> FileReading[CpuState]:
        """The state in the kubelet's memory: the file's, unless the kubelet has not yet read what we wrote."""
        self._file, self._kept = file, self._backup.read()
        backup = self._kept.value
        self._memory = backup.memory if backup is not None and waits(self._path) else file.value
        return FileReading(self._memory, file.problem)

    def round(self, pods: Iterable[NodePod], host: HostReading, *, dry: bool) -> TakenOver:
        """Do what the mode requires, with the file last given to `in_memory`; never raises because of its content.

        `dry`: whether to write nothing and only report what would be written.
        """
        try:
            if self._mode == "write":
                return self._write(tuple(pods), host, dry=dry)
            if self._kept.problem is None and self._kept.value is None:
                return TakenOver()
            return self._undo(dry=dry) if self._mode == "undo" else self._leave()
        except TakeOverError as error:
            return TakenOver(problems=(f"cpus.takeOver: {error}",))

    def _leave(self) -> TakenOver:
        problem = f"{self._path}: was taken over, and is no longer kept so; set cpus.takeOver to undo, or back to write"
        return TakenOver(problems=(problem,))

    def _undo(self, *, dry: bool) -> TakenOver:
        if dry:
            return TakenOver(problems=(f"{self._path}: our CPUs would be taken out of it",))
        reason = "CpuStateGivenBack"
        if undo(self._path):
            notice = f"{self._path}: our CPUs were taken out of it; restart the kubelet, which still has them"
            return TakenOver(reason=reason, notice=notice, problems=(notice,))
        notice = f"{self._path}: neither it nor the kubelet has any of our CPUs any more; set cpus.takeOver to leave"
        return TakenOver(reason=reason, notice=notice)

    def _write(self, pods: tuple[NodePod, ...], host: HostReading, *, dry: bool) -> TakenOver:
        state, memory = self._file.value, self._memory
        if state is None or memory is None or state.policy != STATIC:
            return TakenOver()  # there is nothing to take over, or the file's problem is reported elsewhere
        if self._kept.problem is not None:
            raise TakeOverError(self._kept.problem)
        wanted, left_out = wish(pods, host, memory)
        made = propose(state, wanted, self._kept.value.ours if self._kept.value is not None else {})
        written = made.state != state and not dry
        if written:
            made = take_over(self._path, wanted)
        names = {pod.cgroup: str(pod) for pod in pods}
        planned = dry and made.state != state
        notice = self._notice([names[uid] for uid in _waiting(made.accepted, memory)], planned=planned)
        refused = (f"Pod {names[uid]} {reason}" for uid, reason in made.refused.items())
        problems = (*filter(None, (notice,)), *(f"cpus.takeOver: {problem}" for problem in (*refused, *left_out)))
        return TakenOver(written, "CpuStateTakenOver", notice, problems)

    def _notice(self, waiting: list[str], *, planned: bool) -> str:
        if not waiting:
            return ""
        more = f" and {len(waiting) - _NAMED} more" if len(waiting) > _NAMED else ""
        shown = f"the CPUs allocated to {', '.join(sorted(waiting)[:_NAMED])}{more}"
        if planned:
            return f"{self._path}: {shown} would be in it"
        return f"{self._path}: {shown} are in it; restart the kubelet, which still has others"


def _waiting(accepted: Cpus, memory: CpuState) -> list[str]:
    return [uid for uid, containers in accepted.items() if memory.entries.get(uid) != containers]
