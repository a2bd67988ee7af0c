"""Our CPUs in the kubelet's state: only what the kubelet accepts, and the way back."""

import os
import resource
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reporter.kubelet import cpustate
from reporter.kubelet.checkpoint import CheckpointError
from reporter.kubelet.cpustate import CpuState, StateLayout
from reporter.takeover import (
    TakeOverError,
    WantedState,
    backup_of,
    parse_backup,
    plan,
    plan_undo,
    propose,
    take_over,
    undo,
    waits,
)

ALL = 0xFFFF
RESERVED = 0b11


def state(entries, **rest: Any) -> CpuState:
    held = 0
    for containers in entries.values():
        for cpus in containers.values():
            held |= cpus
    return CpuState(
        **{"layout": StateLayout.V2, "policy": "static", "default": ALL & ~held, "entries": entries, **rest}
    )


BEFORE = state({"a": {"main": 0b1100}, "b": {"main": 0b110000, "log": 0b1000000}})
OURS = {"a": {"main": 0b11 << 10, "side": 0b11 << 10}}


def accepted(found: CpuState, reserved=RESERVED, everything=ALL) -> None:
    """What a kubelet checks at its start (Kubernetes v1.37, staticPolicy.validateState)."""
    assert found.default
    assert not reserved & ~found.default
    assert not found.default & found.given
    assert found.default | found.given == everything


def test_our_cpus_replace_those_of_the_pod_and_the_rest_goes_to_the_default_set() -> None:
    taken = plan(BEFORE, OURS, reserved=RESERVED)
    accepted(taken)
    assert taken.entries == {**BEFORE.entries, **OURS}
    assert taken.default & 0b1100 == 0b1100


def test_with_strict_reservation_reserved_cpus_stay_outside() -> None:
    strict = state({"a": {"main": 0b1100}}, default=ALL & ~0b1111)
    taken = plan(strict, OURS, reserved=RESERVED, strict=True)
    accepted(taken, reserved=0, everything=ALL & ~RESERVED)


def test_a_pod_level_set_goes_with_its_pod() -> None:
    whole = state({"a": {"main": 0b1100}}, layout=StateLayout.V3, pods={"a": 0b1100, "c": 0b1 << 15}, default=0x7FF3)
    taken = plan(whole, OURS, reserved=RESERVED)
    assert taken.pods == {"c": 1 << 15}
    accepted(taken)
    assert plan_undo(taken, whole, OURS) == whole


def test_the_layout_of_1_37_is_kept_with_what_pods_had_when_they_were_admitted() -> None:
    admitted = {"a": {"main": 0b100}, "b": {"log": 0b1000000}}
    start = state(dict(BEFORE.entries), layout=StateLayout.V4, baselines=admitted)
    taken = plan(start, OURS, reserved=RESERVED)
    accepted(taken)
    assert cpustate.parse(cpustate.render(taken)) == taken == replace(taken, layout=StateLayout.V4, baselines=admitted)
    assert plan_undo(taken, start, OURS) == start


REFUSED = {
    "the kubelet has no static policy": (CpuState(StateLayout.V2, "none", 0), OURS, "owns no CPU"),
    "a reserved CPU": (BEFORE, {"a": {"main": 0b10}}, "Pod a was given CPUs 1, which the kubelet reserves"),
    "a CPU that the kubelet lacks": (
        BEFORE,
        {"a": {"main": 1 << 4 | 1 << 20}},
        "Pod a was given CPUs 20, which the kubelet lacks",
    ),
    "a CPU of another Pod": (
        BEFORE,
        {"a": {"main": 0b101000}},
        "Pod a was given CPUs 5, which the kubelet gave to Pod b",
    ),
    "a CPU given twice by us": (
        BEFORE,
        {"a": {"main": 3 << 8}, "b": {"main": 3 << 9}},
        "Pod a and Pod b were both given CPUs 9",
    ),
    "no CPU": (BEFORE, {"a": {"main": 0}}, "Pod a has a container that would own no CPU"),
}


@pytest.mark.parametrize(("before", "ours", "why"), REFUSED.values(), ids=REFUSED)
def test_what_the_kubelet_would_not_start_with_is_refused(before, ours, why) -> None:
    with pytest.raises(TakeOverError, match=why):
        plan(before, ours, reserved=RESERVED)


def test_without_reserved_cpus_something_is_left_for_containers_without_cpus() -> None:
    with pytest.raises(TakeOverError, match="no CPU would be left"):
        plan(state({}), {"a": {"main": ALL}}, reserved=0)


def test_a_pod_that_is_refused_keeps_no_other_from_its_cpus() -> None:
    ours = {"a": {"main": 0b11 << 10}, "c": {"main": 0b100000}, "d": {"main": 1 << 12}}
    made = propose(BEFORE, WantedState(ours, {"a", "b", "c", "d"}, RESERVED), {})
    accepted(made.state)
    assert made.state.entries == {**BEFORE.entries, "a": ours["a"], "d": ours["d"]}
    assert made.accepted == {"a": ours["a"], "d": ours["d"]}
    assert made.refused == {"c": "was given CPUs 5, which the kubelet gave to Pod b; delete one"}


def test_two_pods_that_change_places_are_no_obstacle_to_each_other() -> None:
    ours = {"a": {"main": 0b110000}, "b": {"main": 0b1100, "log": 0b1100}}
    made = propose(BEFORE, WantedState(ours, {"a", "b"}, RESERVED), {})
    assert (made.state.entries, made.refused) == (ours, {})


def test_a_pod_that_is_refused_is_in_the_way_with_what_the_kubelet_gave_it() -> None:
    ours = {"a": {"main": 0b110000}, "b": {"main": RESERVED}}
    made = propose(BEFORE, WantedState(ours, {"a", "b"}, RESERVED), {})
    assert made.state == BEFORE
    assert set(made.refused) == {"a", "b"}


@pytest.mark.parametrize(
    ("now", "left"),
    [({"main": 0b11 << 10, "side": 0b11 << 10}, {}), ({"main": 1 << 10}, {"a": {"main": 1 << 10}})],
    ids=["as we put it in", "as the kubelet has changed it"],
)
def test_what_we_put_in_for_a_pod_that_has_ended_is_taken_out_and_nothing_else(now, left) -> None:
    made = propose(state({"a": now}), WantedState({}, frozenset(), RESERVED), OURS)
    accepted(made.state)
    assert made.state.entries == left


sets = st.integers(1, ALL & ~RESERVED).map(lambda cpus: cpus & ~RESERVED).filter(bool)
pods = st.dictionaries(st.sampled_from("abcd"), st.dictionaries(st.sampled_from("xy"), sets, min_size=1), max_size=3)


def disjoint(entries) -> bool:
    """No two Pods have a CPU in common."""
    held = 0
    for containers in entries.values():
        union = 0
        for cpus in containers.values():
            union |= cpus
        if union & held:
            return False
        held |= union
    return True


@given(pods.filter(disjoint), pods)
def test_whatever_is_taken_over_the_kubelet_accepts_and_undoing_leads_back(before, ours) -> None:
    start = state(before)
    try:
        taken = plan(start, ours, reserved=RESERVED)
    except TakeOverError:
        return
    accepted(taken)
    assert cpustate.parse(cpustate.render(taken)) == taken
    assert plan(taken, ours, reserved=RESERVED) == taken
    undone = plan_undo(taken, start, ours)
    accepted(undone)
    assert undone == start


@given(pods.filter(disjoint), pods, pods, st.sets(st.sampled_from("abcd")))
def test_whatever_is_proposed_the_kubelet_accepts_and_it_is_all_that_can_be(before, ours, put_in, live) -> None:
    wish = WantedState({uid: ours[uid] for uid in ours if uid in live}, live, RESERVED)
    try:
        made = propose(state(before), wish, put_in)
    except TakeOverError:
        return
    accepted(made.state)
    assert {*made.accepted, *made.refused} == set(wish.ours)
    for uid, containers in before.items():
        gone = uid not in live and put_in.get(uid) == containers
        assert made.state.entries.get(uid) == made.accepted.get(uid, None if gone else containers)
    again = propose(made.state, wish, put_in)
    assert (again.state, again.accepted) == (made.state, made.accepted)


@given(pods.filter(disjoint), pods, pods.filter(disjoint))
def test_undoing_after_the_kubelet_went_on_gives_nobody_a_cpu_twice(before, ours, later) -> None:
    start, now = state(before), state(later)
    undone = plan_undo(now, start, ours)
    accepted(undone)
    assert disjoint(undone.entries)
    for uid, containers in later.items():
        for name, cpus in containers.items():
            if ours.get(uid, {}).get(name) != cpus:
                assert undone.entries[uid][name] == cpus


# files


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "cpu_manager_state"
    file.write_bytes(cpustate.render(BEFORE))
    file.chmod(0o600)
    kubelet_starts(file)
    return file


def kubelet_starts(path: Path) -> None:
    """Create the kubelet's socket again, later than every write so far."""
    socket = path.parent / "pod-resources" / "kubelet.sock"
    socket.parent.mkdir(exist_ok=True)
    socket.write_bytes(b"")
    latest = max(file.stat().st_mtime_ns for file in path.parent.iterdir())
    os.utime(socket, ns=(latest + 1, latest + 1))


def kubelet_writes(path: Path, entries) -> None:
    """Write the file from the kubelet's memory, with a new modification time."""
    before = path.stat().st_mtime_ns
    path.write_bytes(cpustate.render(state(entries)))
    os.utime(path, ns=(before + 1, before + 1))


def on(ours, *others: str) -> WantedState:
    return WantedState(ours, {*ours, *BEFORE.entries, *others}, RESERVED)


def in_file(path: Path) -> Any:
    return cpustate.parse(path.read_bytes()).entries


def test_the_file_is_replaced_with_a_right_checksum_and_its_mode_and_a_backup_beside_it(path) -> None:
    path.chmod(0o751)
    assert take_over(path, on(OURS)).accepted == OURS
    assert in_file(path)["a"] == OURS["a"]
    assert path.stat().st_mode & 0o777 == 0o751
    kept = parse_backup(backup_of(path).read_bytes())
    assert (kept.before.entries, kept.ours, kept.memory) == ({"a": BEFORE.entries["a"]}, OURS, BEFORE)
    assert names(path.parent) == [path.name, backup_of(path).name, "pod-resources"]


def test_taking_over_twice_changes_nothing_more_and_pods_that_come_later_are_undone_with_the_first(path) -> None:
    original = path.read_bytes()
    take_over(path, on(OURS))
    stat = path.stat()
    take_over(path, on(OURS))
    again = path.stat()
    assert (again.st_ino, again.st_mtime_ns) == (stat.st_ino, stat.st_mtime_ns)  # reading may change st_atime
    take_over(path, on({**OURS, "b": {"main": 1 << 14}}))
    assert in_file(path)["b"] == {"main": 1 << 14}
    assert not undo(path)
    assert path.read_bytes() == original


def test_it_waits_until_the_kubelet_starts(path) -> None:
    assert not waits(path)
    take_over(path, on(OURS))
    assert waits(path)
    kubelet_starts(path)
    assert not waits(path)


def test_it_waits_while_no_kubelet_runs(path) -> None:
    take_over(path, on(OURS))
    (path.parent / "pod-resources" / "kubelet.sock").unlink()
    assert waits(path)


def test_what_a_kubelet_that_did_not_restart_wrote_is_its_own(path) -> None:
    take_over(path, on(OURS))
    kubelet_writes(path, BEFORE.entries)
    assert not waits(path)
    take_over(path, on(OURS))
    assert waits(path)
    assert in_file(path)["a"] == OURS["a"]


@pytest.mark.parametrize("times", [2, 3])
def test_a_kubelet_that_writes_meanwhile_loses_nothing_and_is_waited_for_twice(path, times, monkeypatch) -> None:
    made = tempfile.mkstemp
    left = [{f"new-{number}": {"main": 1 << number}} for number in range(12, 12 + times)]

    def meanwhile(**how: Any) -> tuple[int, str]:
        """The kubelet writes after our reading; we write next."""
        if left:
            kubelet_writes(path, {**BEFORE.entries, **left.pop()})
        return made(**how)

    monkeypatch.setattr("tempfile.mkstemp", meanwhile)
    if times == 3:
        with pytest.raises(TakeOverError, match="the kubelet writes it repeatedly"):
            take_over(path, on(OURS, "new-12"))
        assert in_file(path) == {**BEFORE.entries, "new-12": {"main": 1 << 12}}
    else:
        take_over(path, on(OURS, "new-12"))
        assert in_file(path) == {**BEFORE.entries, **OURS, "new-12": {"main": 1 << 12}}


def test_undoing_what_the_kubelet_has_not_read_restores_the_file_byte_by_byte_at_once(path) -> None:
    original = path.read_bytes()
    take_over(path, on(OURS))
    assert not undo(path)
    assert path.read_bytes() == original
    assert names(path.parent) == [path.name, "pod-resources"]
    assert not undo(path)


def test_undoing_what_the_kubelet_has_read_is_done_again_until_it_restarts(path) -> None:
    original = path.read_bytes()
    take_over(path, on(OURS))
    kubelet_starts(path)
    assert undo(path)
    assert path.read_bytes() == original
    kubelet_writes(path, {**BEFORE.entries, **OURS})
    assert undo(path)
    assert path.read_bytes() == original
    assert undo(path)
    kubelet_starts(path)
    assert not undo(path)
    assert (path.read_bytes(), names(path.parent)) == (original, [path.name, "pod-resources"])


def test_undoing_gives_a_pod_what_it_had_before_its_own_take_over_not_before_the_first(path) -> None:
    take_over(path, on(OURS))
    kubelet_starts(path)
    kubelet_writes(path, {**BEFORE.entries, **OURS, "new": {"main": 1 << 8}})
    take_over(path, on({**OURS, "new": {"main": 1 << 14}}))
    kubelet_starts(path)
    assert undo(path)
    assert in_file(path) == {**BEFORE.entries, "new": {"main": 1 << 8}}


def test_undoing_after_the_kubelet_went_on_keeps_what_it_did(path) -> None:
    take_over(path, on(OURS))
    kubelet_starts(path)
    kubelet_writes(path, {"a": OURS["a"], "new": {"main": 0b1100}})  # b ended; new has what a had before
    assert undo(path)
    assert in_file(path) == {"new": {"main": 0b1100}}
    accepted(cpustate.parse(path.read_bytes()))


def test_undoing_where_the_file_was_removed_only_removes_the_backup(path) -> None:
    take_over(path, on(OURS))
    path.unlink()
    assert not undo(path)
    assert names(path.parent) == ["pod-resources"]


def test_a_pod_that_ended_is_in_neither_the_file_nor_the_backup(path) -> None:
    take_over(path, on(OURS))
    take_over(path, WantedState({}, {"b"}, RESERVED))
    assert in_file(path) == {"b": BEFORE.entries["b"]}
    assert parse_backup(backup_of(path).read_bytes()).ours == {}


@pytest.mark.parametrize("content", [b"", b"{", b'{"policyName":"static","checksum":5}'])
def test_a_corrupt_state_is_left_as_it_is(path, content) -> None:
    path.write_bytes(content)
    with pytest.raises(TakeOverError, match="drain the node"):
        take_over(path, on(OURS))
    assert path.read_bytes() == content
    assert names(path.parent) == [path.name, "pod-resources"]


def test_a_refused_take_over_writes_nothing(path) -> None:
    original = path.read_bytes()
    assert take_over(path, on({"a": {"main": RESERVED}})).refused
    with pytest.raises(TakeOverError, match="no CPU would be left"):
        take_over(path, WantedState({"a": {"main": ALL & ~0b1110000}}, {"a", "b"}, 0))
    assert path.read_bytes() == original
    assert names(path.parent) == [path.name, "pod-resources"]


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b'{"before":1}', b'{"before":"{","ours":{}}', b'{"ours":{"a":{"b":"x"}}}', b"9" * 2**25],
    ids=["empty", "cut off", "no text", "no state", "no set", "huge"],
)
@pytest.mark.parametrize("act", [undo, lambda path: take_over(path, on(OURS))], ids=["undo", "take over"])
def test_a_backup_that_cannot_be_used_is_reported_and_nothing_is_written(path, content, act) -> None:
    original = path.read_bytes()
    backup_of(path).write_bytes(content)
    with pytest.raises(TakeOverError, match="backup"):
        act(path)
    assert path.read_bytes() == original
    assert backup_of(path).read_bytes() == content


def test_a_backup_may_have_24_mebibytes_and_no_more(path) -> None:
    take_over(path, on(OURS))
    data = backup_of(path).read_bytes()

    assert parse_backup(data.ljust(24 * 2**20)).ours == OURS
    with pytest.raises(CheckpointError, match="25165825 bytes; no more than 25165824 are read"):
        parse_backup(data.ljust(24 * 2**20 + 1))


def test_a_missing_state_file_is_reported(tmp_path) -> None:
    with pytest.raises(TakeOverError, match="does not exist"):
        take_over(tmp_path / "cpu_manager_state", on(OURS))


@pytest.mark.parametrize("act", [undo, lambda path: take_over(path, on({"b": {"main": 1 << 14}}))])
def test_a_folder_that_cannot_be_written_is_reported(path, act, monkeypatch) -> None:
    take_over(path, on(OURS))

    def refuse(**_: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr("tempfile.mkstemp", refuse)
    with pytest.raises(TakeOverError, match="mount its folder read-write"):
        act(path)


def test_a_full_disk_leaves_the_file_as_it_is_and_nothing_beside_it(path) -> None:
    before, original = names(path.parent), path.read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8, limits[1]))  # as if the disk had so many bytes left
    try:
        with pytest.raises(TakeOverError, match="cannot be written"):
            take_over(path, on(OURS))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)

    assert (names(path.parent), path.read_bytes()) == (before, original)
