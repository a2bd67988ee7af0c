"""The file of the kubelet's CPU manager state: written with a backup beside it, and restored.

The kubelet reads the file only when it starts, and later writes it whole from memory. Our CPUs take effect when the
kubelet restarts; if the kubelet writes the file before that, we write them again. The kubelet creates its PodResources
socket at each start, so the socket shows whether it has started since our write. We set the file's modification time to
that of the backup, so the time shows whether the kubelet has written since.
"""

import contextlib
import json
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from allocator.vocabulary.cpuset import format_cpuset
from allocator.vocabulary.cpuset import parse as parse_cpuset
from reporter.kubelet import cpustate
from reporter.kubelet.checkpoint import MOST_BYTES, CheckpointError, decode, read_map, read_text
from reporter.kubelet.cpustate import CpuState
from reporter.kubelet.watched import FileError, read_bounded
from reporter.takeover.plan import Cpus, Outcome, TakeOverError, WantedState, plan_undo, propose

BACKUP_BYTES: Final = 12 * MOST_BYTES  # two states within JSON text, and our CPUs
_BACKUP_SUFFIX: Final = ".koordgate-backup"
_SOCKET: Final = "pod-resources/kubelet.sock"  # below the kubelet's folder
_ATTEMPTS: Final = 3


class _MeanwhileError(TakeOverError):
    """The kubelet wrote its file between our reading and writing."""


@dataclass(frozen=True, slots=True)
class Backup:
    """The backup beside the file.

    Attributes:
        before: what the kubelet had given to the Pods of `ours`, each before our CPUs were put in.
        ours: the CPUs that take-overs put in.
        memory: what the kubelet had in memory when we last wrote the file.
    """

    before: CpuState
    ours: Cpus
    memory: CpuState


def take_over(path: Path, wish: WantedState) -> Outcome:
    """Put our CPUs into the kubelet's state file, atomically and after a backup.

    Args:
        path: path of cpu_manager_state.
        wish: the wanted content.

    Returns:
        What was put in, and what was refused.

    Raises:
        TakeOverError: the file is left as it is.
    """
    with _writable(path):
        for _ in range(_ATTEMPTS - 1):
            with contextlib.suppress(_MeanwhileError):
                return _take_over(path, wish)
        return _take_over(path, wish)


def _take_over(path: Path, wish: WantedState) -> Outcome:
    data = _read(path, MOST_BYTES)
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

    Returns:
        Whether the kubelet's memory still has them. It may write them again until it restarts; then call this again.

    Raises:
        TakeOverError: the file, and the backup, are left as they are.
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
    data = _read(path, MOST_BYTES)
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


def _read(path: Path, most_bytes: int) -> bytes:
    try:
        return read_bounded(path, most_bytes)
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

    Raises:
        CheckpointError: it cannot be used.
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
    if _read(path, MOST_BYTES) != expected:
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
