"""Our CPUs in the kubelet's state: what it accepts, nothing else, and back again."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reporter.kubelet import cpustate
from reporter.kubelet.cpustate import CpuState, Layout
from reporter.kubelet.takeover import BACKUP_SUFFIX, TakeOverError, plan, plan_undo, take_over, undo

ALL = 0xFFFF
RESERVED = 0b11


def state(entries, **rest: Any) -> CpuState:
    held = 0
    for containers in entries.values():
        for cpus in containers.values():
            held |= cpus
    return CpuState(**{"layout": Layout.V2, "policy": "static", "default": ALL & ~held, "entries": entries, **rest})


BEFORE = state({"a": {"main": 0b1100}, "b": {"main": 0b110000, "log": 0b1000000}})
OURS = {"a": {"main": 0b11 << 10, "side": 0b11 << 10}}


def accepted(found: CpuState, reserved=RESERVED, everything=ALL) -> None:
    """What a kubelet checks at its start (Kubernetes v1.36, staticPolicy.validateState)."""
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
    whole = state({"a": {"main": 0b1100}}, layout=Layout.V3, pods={"a": 0b1100, "c": 0b1 << 15}, default=0x7FF3)
    taken = plan(whole, OURS, reserved=RESERVED)
    assert taken.pods == {"c": 1 << 15}
    accepted(taken)
    assert plan_undo(taken, whole, OURS) == whole


REFUSED = {
    "the kubelet has no static policy": (CpuState(Layout.V2, "none", 0), OURS, "owns no CPU"),
    "a kubelet too old": (CpuState(Layout.V1, "static", ALL), OURS, "before 1.18"),
    "a reserved CPU": (BEFORE, {"a": {"main": 0b10}}, "which the kubelet reserves"),
    "a CPU that the kubelet lacks": (BEFORE, {"a": {"main": 1 << 20}}, "which the kubelet lacks"),
    "a CPU of another Pod": (BEFORE, {"a": {"main": 0b100000}}, "gave to Pod b"),
    "a CPU given twice by us": (BEFORE, {"a": {"main": 1 << 9}, "b": {"main": 1 << 9}}, "both given"),
    "no CPU": (BEFORE, {"a": {"main": 0}}, "would own no CPU"),
}


@pytest.mark.parametrize(("before", "ours", "why"), REFUSED.values(), ids=REFUSED)
def test_what_the_kubelet_would_not_start_with_is_refused(before, ours, why) -> None:
    with pytest.raises(TakeOverError, match=why):
        plan(before, ours, reserved=RESERVED)


def test_without_reserved_cpus_something_is_left_for_containers_without_cpus() -> None:
    with pytest.raises(TakeOverError, match="no CPU would be left"):
        plan(state({}), {"a": {"main": ALL}}, reserved=0)


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
def path(tmp_path) -> Path:
    file = tmp_path / "cpu_manager_state"
    file.write_bytes(cpustate.render(BEFORE))
    file.chmod(0o600)
    return file


def test_the_file_is_replaced_with_a_right_checksum_and_its_mode_and_a_backup_beside_it(path) -> None:
    original = path.read_bytes()
    assert take_over(path, OURS, reserved=RESERVED)
    assert cpustate.parse(path.read_bytes()).entries["a"] == OURS["a"]
    assert path.stat().st_mode & 0o777 == 0o600
    backup = path.with_name(path.name + BACKUP_SUFFIX)
    assert json.loads(backup.read_bytes())["before"].encode() == original
    assert names(path.parent) == [path.name, backup.name]


def test_taking_over_twice_changes_nothing_more_and_keeps_the_first_backup(path) -> None:
    original = path.read_bytes()
    take_over(path, OURS, reserved=RESERVED)
    assert not take_over(path, OURS, reserved=RESERVED)
    assert take_over(path, {"b": {"main": 1 << 14}}, reserved=RESERVED)
    assert undo(path)
    assert path.read_bytes() == original


def test_undoing_restores_the_file_byte_by_byte_and_removes_the_backup(path) -> None:
    original = path.read_bytes()
    take_over(path, OURS, reserved=RESERVED)
    assert undo(path)
    assert path.read_bytes() == original
    assert names(path.parent) == [path.name]
    assert not undo(path)


def test_undoing_after_the_kubelet_went_on_keeps_what_it_did(path) -> None:
    take_over(path, OURS, reserved=RESERVED)
    later = cpustate.parse(path.read_bytes())
    entries = {"a": later.entries["a"], "new": {"main": 0b1100}}  # b ended; new has what a had before
    path.write_bytes(cpustate.render(state(entries)))
    assert undo(path)
    found = cpustate.parse(path.read_bytes())
    assert found.entries == {"new": {"main": 0b1100}}
    accepted(found)


def test_undoing_where_the_file_was_removed_only_removes_the_backup(path) -> None:
    take_over(path, OURS, reserved=RESERVED)
    path.unlink()
    assert undo(path)
    assert names(path.parent) == []


@pytest.mark.parametrize("content", [b"", b"{", b'{"policyName":"static","checksum":5}'])
def test_a_corrupt_state_is_left_as_it_is(path, content) -> None:
    path.write_bytes(content)
    with pytest.raises(TakeOverError, match="drain the node"):
        take_over(path, OURS, reserved=RESERVED)
    assert path.read_bytes() == content
    assert names(path.parent) == [path.name]


def test_a_refused_take_over_writes_nothing(path) -> None:
    original = path.read_bytes()
    with pytest.raises(TakeOverError):
        take_over(path, {"a": {"main": RESERVED}}, reserved=RESERVED)
    assert path.read_bytes() == original
    assert names(path.parent) == [path.name]


@pytest.mark.parametrize(
    "content", [b"", b"{", b'{"before":1}', b'{"before":"{","ours":{}}', b'{"ours":{"a":{"b":"x"}}}']
)
def test_a_backup_that_cannot_be_used_is_told_and_nothing_is_written(path, content) -> None:
    original = path.read_bytes()
    backup = path.with_name(path.name + BACKUP_SUFFIX)
    backup.write_bytes(content)
    with pytest.raises(TakeOverError):
        undo(path)
    assert (path.read_bytes(), backup.read_bytes()) == (original, content)


def test_a_missing_state_file_is_told(tmp_path) -> None:
    with pytest.raises(TakeOverError, match="does not exist"):
        take_over(tmp_path / "cpu_manager_state", OURS, reserved=RESERVED)
