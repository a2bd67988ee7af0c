"""Our CPUs written into the kubelet's CPU manager state, so that the kubelet hands out what we decided; and undone.

Seed document 4, "Create/Update NodeResourceTopology": when the CPUs of a Pod are allocated by koord-scheduler, replace
the CPUs in the kubelet's state file. An administrator asks for it. The kubelet reads the file at its start only, and
afterwards writes it from memory: so this is done while it is stopped (from an ExecStartPre, say), or it is restarted at
once. What a kubelet checks at its start (Kubernetes v1.36, staticPolicy.validateState) is checked here before a byte is
written.
"""

import contextlib
import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from functools import reduce
from operator import or_
from pathlib import Path
from typing import Any, Final

from allocator.cpu.cpuset import format_cpuset
from allocator.cpu.cpuset import parse as parse_cpuset
from reporter.kubelet import cpustate
from reporter.kubelet.checkpoint import MOST_BYTES, CheckpointError, decode, read_map, read_text
from reporter.kubelet.cpustate import STATIC_POLICY, CpuState, Layout
from reporter.kubelet.watched import FileError, read_bounded

BACKUP_SUFFIX: Final = ".koordgate-backup"
_BACKUP_BYTES: Final = 8 * MOST_BYTES  # a file within JSON text, and our CPUs

Cpus = Mapping[str, Mapping[str, int]]  # Pod UID -> container -> CPUs


class TakeOverError(Exception):
    """The kubelet's state is left as it is; the message says why and who must do what."""


def plan(state: CpuState, ours: Cpus, *, reserved: int, strict: bool = False) -> CpuState:
    """Put our CPUs into the kubelet's state.

    Args:
        state: the kubelet's.
        ours: what we decided, for every container of each Pod. A Pod without it keeps what the kubelet gave it.
        reserved: the kubelet's reserved CPUs.
        strict: whether its option strict-cpu-reservation is on: then they are in no set at all.

    Returns:
        A state that the kubelet accepts at its start.

    Raises:
        TakeOverError: there is none.
    """
    if state.policy != STATIC_POLICY:
        raise TakeOverError(
            f"the kubelet's CPU manager policy is {state.policy or 'unset'}: it owns no CPU, nothing needs taking over"
        )
    if state.layout is Layout.V1:
        raise TakeOverError("the file is of a kubelet before 1.18, which counts by container id; update the kubelet")
    ours = {uid: containers for uid, containers in ours.items() if containers}
    for uid, containers in sorted(ours.items()):
        _check(state, ours, uid, containers, reserved)
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


def _check(state: CpuState, ours: Cpus, uid: str, containers: Mapping[str, int], reserved: int) -> None:
    """Refuse CPUs of one Pod that the kubelet does not have, has reserved, or gave to a Pod that we do not replace."""
    cpus = 0
    for name, owned in containers.items():
        if owned <= 0:
            raise TakeOverError(f"Pod {uid}: container {name} would own no CPU")
        cpus |= owned
    if cpus & reserved:
        shown = format_cpuset(cpus & reserved)
        raise TakeOverError(
            f"Pod {uid} was given CPUs {shown}, which the kubelet reserves; reserve them for us as well"
        )
    if cpus & ~state.known:
        raise TakeOverError(f"Pod {uid} was given CPUs {format_cpuset(cpus & ~state.known)}, which the kubelet lacks")
    for other in sorted({*state.entries, *state.pods} - {*ours}):
        if clash := cpus & state.of_pod(other):
            shown = format_cpuset(clash)
            raise TakeOverError(f"Pod {uid} was given CPUs {shown}, which the kubelet gave to Pod {other}; delete one")
    for other, theirs in sorted(ours.items()):
        if other != uid and (clash := cpus & reduce(or_, theirs.values(), 0)):
            raise TakeOverError(f"Pods {uid} and {other} were both given CPUs {format_cpuset(clash)}")


def plan_undo(state: CpuState, before: CpuState, ours: Cpus) -> CpuState:
    """Take our CPUs out of the kubelet's state again.

    Containers that still have exactly our CPUs get back what they had before, as far as nobody else has it by now, or
    else nothing; whatever the kubelet did since stays.

    Args:
        state: the kubelet's, now.
        before: what it was before the first take-over.
        ours: what take-overs put in.
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


def take_over(path: Path, ours: Cpus, *, reserved: int, strict: bool = False) -> bool:
    """Put our CPUs into the kubelet's state file: atomically, after a backup beside it.

    Args:
        path: of cpu_manager_state.
        ours: as for `plan`.
        reserved: as for `plan`.
        strict: as for `plan`.

    Returns:
        Whether the file was changed; not where it says already what we decided.

    Raises:
        TakeOverError: the file is left as it is.
    """
    data = _read(path, MOST_BYTES)
    state = _parsed(path, data)
    taken = plan(state, ours, reserved=reserved, strict=strict)
    if taken == state:
        return False
    backup = _backup_of(path)
    record = _read_backup(backup) or (data.decode(), {})
    _write(backup, _render_backup(record[0], {**record[1], **ours}), like=path)
    _replace(path, data, cpustate.render(taken))
    return True


def undo(path: Path) -> bool:
    """Take our CPUs out of the kubelet's state file, and remove the backup.

    Returns:
        Whether there was anything to undo.

    Raises:
        TakeOverError: the file, and the backup, are left as they are.
    """
    backup = _backup_of(path)
    record = _read_backup(backup)
    if record is None:
        return False
    text, ours = record
    if not path.exists():  # the node was drained and the file removed: nothing of ours is left in it
        backup.unlink()
        return True
    data = _read(path, MOST_BYTES)
    before = _parsed(backup, text.encode())
    undone = plan_undo(_parsed(path, data), before, ours)
    new = text.encode() if undone == before else cpustate.render(undone)
    if new != data:
        _replace(path, data, new)
    backup.unlink()
    _sync(backup.parent)
    return True


def _backup_of(path: Path) -> Path:
    return path.with_name(path.name + BACKUP_SUFFIX)


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


def _read_backup(path: Path) -> tuple[str, dict[str, dict[str, int]]] | None:
    """The file as it was before the first take-over, and what take-overs put in; None if there was none."""
    if not path.exists():
        return None
    try:
        record = decode(_read(path, _BACKUP_BYTES), _BACKUP_BYTES)
        ours = {
            uid: {name: parse_cpuset(read_text(cpus, name)) for name, cpus in (read_map(value, uid) or {}).items()}
            for uid, value in (read_map(record.get("ours"), "ours") or {}).items()
        }
        return read_text(record.get("before"), "before"), ours
    except ValueError as error:
        raise TakeOverError(f"{path}: not a backup that can be used: {error}; see what became of it") from error


def _render_backup(before: str, ours: Cpus) -> bytes:
    sets: dict[str, Any] = {
        uid: {name: format_cpuset(cpus) for name, cpus in sorted(containers.items())}
        for uid, containers in sorted(ours.items())
    }
    return json.dumps({"before": before, "ours": sets}, indent=1, ensure_ascii=False).encode()


def _replace(path: Path, expected: bytes, data: bytes) -> None:
    """Write a file, unless somebody else did meanwhile."""
    if _read(path, MOST_BYTES) != expected:
        raise TakeOverError(f"{path}: the kubelet wrote it meanwhile; stop the kubelet, then try again")
    _write(path, data, like=path)


def _write(path: Path, data: bytes, *, like: Path) -> None:
    """Write a file whole or not at all, with the owner and mode of another; it lasts over a loss of power."""
    try:
        # Its name starts with a dot: the kubelet takes any other file in its folder for a checkpoint.
        handle, temporary = tempfile.mkstemp(prefix=".koordgate-", dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                _wear(file.fileno(), like)
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            Path(temporary).replace(path)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                Path(temporary).unlink()
            raise
        _sync(path.parent)
    except OSError as error:
        raise TakeOverError(f"{path}: cannot be written ({error.strerror}); mount its folder read-write") from error


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
