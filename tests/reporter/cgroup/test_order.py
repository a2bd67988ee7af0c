"""The order of writes, on a model of the kernel's rule: no step is ever refused, and all cgroups get their targets."""

import itertools
from functools import reduce
from operator import or_

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reporter.cgroup.layout import KubernetesQos, Version
from reporter.cgroup.plan import File, Group, Pod, WantedCpusets, Write, ordered, plan

ALL = 0xFF
POD = Pod("u", "ns/u", KubernetesQos.BURSTABLE)


class KernelV1:
    """cpuset of cgroup v1 (kernel/cgroup/cpuset-v1.c): a child's set is always within its parent's, none is emptied."""

    def __init__(self, has) -> None:
        self.has = dict(has)

    def write(self, path, value) -> None:
        parent = path.rpartition("/")[0]
        assert value, f"{path}: ENOSPC"
        assert not value & ~self.has.get(parent, ALL), f"{path}: EACCES"
        for child, below in self.has.items():
            if child.rpartition("/")[0] == path:
                assert not below & ~value, f"{path}: EBUSY for {child}"
        self.has[path] = value


@st.composite
def trees(draw) -> dict[str, int]:
    """A tree of cpusets as v1 allows it: path to set, four levels below kubepods."""
    found = {"kubepods": draw(st.integers(1, ALL))}
    for depth in range(4):
        for path in [path for path in found if path.count("/") == depth]:
            for number in range(draw(st.integers(0, 3 if depth < 3 else 1))):
                name = f"{path}/{number:064x}" if depth == 2 else f"{path}/{'pod' if depth == 1 else 'c'}{number}"
                found[name] = draw(st.integers(0, ALL)) & found[path]
    return found


def within(wanted: dict[str, int]) -> dict[str, int]:
    """Make every parent hold its children."""
    for path in sorted(wanted, key=lambda path: path.count("/"), reverse=True):
        parent = path.rpartition("/")[0]
        if parent in wanted:
            wanted[parent] |= wanted[path]
    return wanted


@given(trees(), st.data())
def test_any_tree_is_led_to_any_other_without_a_refusal(has, data) -> None:
    wanted = within({path: data.draw(st.integers(1, ALL)) for path in has})
    kernel = KernelV1(has)
    steps = ordered(has, wanted)
    for path, value in steps:
        kernel.write(path, value)
    assert kernel.has == wanted
    assert len(steps) <= 2 * len(has)


@given(trees(), st.data())
def test_the_writes_for_pods_are_never_refused_and_settle(has, data) -> None:
    pods = [path for path in has if path.count("/") == 2]
    maybe = st.integers(0, ALL)
    others = st.dictionaries(st.sampled_from([f"{number:064x}" for number in range(4)]), maybe)
    paths = [
        (path, WantedCpusets(POD, *(data.draw(maybe), data.draw(maybe), data.draw(maybe)), others=data.draw(others)))
        for path in pods
    ]
    kernels = {file: KernelV1(has) for file in File}
    tree = {path: Group(value, value) for path, value in has.items()}
    for write in plan(tree, paths, Version.V1).writes:
        kernels[write.file].write(write.path, write.value)
    for path, want in paths:
        for file, wanted in ((File.CPUS, want.cpus), (File.MEMS, want.mems)):
            room = want.room if file is File.CPUS else 0
            now = kernels[file].has
            children = [child for child in has if child.rpartition("/")[0] == path]
            if wanted and not room:
                assert now[path] == reduce(or_, (now[child] for child in children), wanted)
            assert not room & ~now[path]
            for child in children:
                its = want.others.get(child.rpartition("/")[2], wanted) if file is File.CPUS else wanted
                assert now[child] == ((its or has[child]) if wanted else has[child])
                for nested in [nested for nested in has if nested.rpartition("/")[0] == child]:
                    assert not now[nested] & ~now[child]
                    assert bool(now[nested]) == bool(has[nested])
    settled = {path: Group(*(kernels[file].has[path] for file in File)) for path in has}
    assert plan(settled, paths, Version.V1).writes == ()


@given(trees(), st.data())
def test_a_container_is_at_no_moment_outside_what_it_had_and_what_it_gets(has, data) -> None:
    """In v2 a cgroup has the part of its set that its parent has; or all of the parent's if they share nothing."""
    pods = [path for path in has if path.count("/") == 2]
    some = st.integers(1, ALL)
    paths = [
        (path, WantedCpusets(POD, data.draw(some), 0, others={f"{number:064x}": data.draw(some) for number in (1, 5)}))
        for path in pods
    ]
    now: dict[str, int] = {}
    for path in sorted(has, key=lambda path: path.count("/")):
        if path.count("/") <= 3:  # an empty one takes its parent's: here every cgroup states what it has
            now[path] = has[path] or now[path.rpartition("/")[0]]

    def effective(path) -> int:
        if path not in now:
            return ALL
        above = effective(path.rpartition("/")[0])
        return now[path] & above or above

    allowed = {}
    due = {}
    for path, want in paths:
        for child in [child for child in now if child.rpartition("/")[0] == path]:
            due[child] = want.others.get(child.rpartition("/")[2], want.cpus)
            allowed[child] = effective(child) | due[child]
    tree = {path: Group(value, 0) for path, value in now.items()}
    for write in plan(tree, paths, Version.V2).writes:
        now[write.path] = write.value
        for child, limit in allowed.items():
            assert not effective(child) & ~limit
    for path, want in paths:
        assert now[path] == reduce(or_, (cpus for child, cpus in due.items() if child.startswith(path)), want.cpus)
    assert {child: effective(child) for child in due} == due


A, B, C = "kubepods", "kubepods/podu", "kubepods/podu/c"


def cpus(*values: int) -> dict[str, Group]:
    return {path: Group(value, 1) for path, value in zip((A, B, C), values, strict=True)}


STEPS = {
    "shrinking: the child first": (cpus(0b1111, 0b1111, 0b1111), 0b0011, [(C, 0b0011), (B, 0b0011)]),
    "growing: the parent first": (cpus(0b1111, 0b0011, 0b0011), 0b1111, [(B, 0b1111), (C, 0b1111)]),
    "moving: wide, then across, then narrow": (
        cpus(0b1111, 0b0011, 0b0011),
        0b1100,
        [(B, 0b1111), (C, 0b1100), (B, 0b1100)],
    ),
    "a tier that is too narrow is widened": (
        cpus(0b0011, 0b0011, 0b0011),
        0b1100,
        [(A, 0b1111), (B, 0b1111), (C, 0b1100), (B, 0b1100)],
    ),
    "what is right is not written": (cpus(0b1111, 0b0011, 0b0011), 0b0011, []),
    "a container that was changed": (cpus(0b1111, 0b0011, 0b0001), 0b0011, [(C, 0b0011)]),
    "a container just made, still empty": (cpus(0b1111, 0b0011, 0), 0b0011, [(C, 0b0011)]),
}


@pytest.mark.parametrize(("tree", "wanted", "steps"), STEPS.values(), ids=STEPS)
def test_named_changes_have_the_expected_steps(tree, wanted, steps) -> None:
    found = plan(tree, [(B, WantedCpusets(POD, wanted, 0))], Version.V1).writes
    assert found == tuple(Write(path, File.CPUS, value) for path, value in steps)


def test_a_pod_that_is_left_alone_is_only_given_room() -> None:
    tree = cpus(0b1111, 0b0011, 0b0011)
    found = plan(tree, [(B, WantedCpusets(POD, 0, 0, room=0b0110))], Version.V1).writes
    assert found == (Write(B, File.CPUS, 0b0111),)


def test_in_v2_a_pods_cgroup_without_a_set_stays_without_where_it_only_needs_room() -> None:
    found = plan(cpus(0, 0, 0), [(B, WantedCpusets(POD, 0b0011, 0, room=0b1111))], Version.V2).writes
    assert found == (Write(C, File.CPUS, 0b0011),)


def test_a_pod_that_has_no_cgroup_hides_none_after_it() -> None:
    gone = WantedCpusets(POD, 1, 1)
    wanted = [("kubepods/podgone", gone), (B, WantedCpusets(POD, 0b0011, 0)), ("kubepods/podgone-too", gone)]

    found = plan(cpus(0b1111, 0b1111, 0b1111), wanted, Version.V1).writes

    assert found == (Write(C, File.CPUS, 0b0011), Write(B, File.CPUS, 0b0011))


def test_cpus_and_mems_are_both_written() -> None:
    tree = {A: Group(0b11, 0b11), B: Group(0b11, 0b11), C: Group(0b11, 0b11)}
    found = plan(tree, [(B, WantedCpusets(POD, 0b01, 0b10))], Version.V1).writes
    assert found == tuple(
        Write(path, file, value) for (file, value), path in itertools.product(((File.CPUS, 1), (File.MEMS, 2)), (C, B))
    )


def test_what_already_is_as_it_should_be_is_told_and_what_is_still_to_be_written_is_not() -> None:
    found = plan(cpus(0b1111, 0b0011, 0b0001), [(B, WantedCpusets(POD, 0b0011, 0))], Version.V1)

    assert found.writes == (Write(C, File.CPUS, 0b0011),)
    assert found.right == {(A, File.CPUS): 0b1111, (B, File.CPUS): 0b0011, (A, File.MEMS): 1, (B, File.MEMS): 1}
