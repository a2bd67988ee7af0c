"""Reading and writing below one folder: hostile files, links, cgroups that disappear; every refusal is explained."""

import errno
import os

import pytest

from reporter.cgroup.cpusets import Failure, Hierarchy, HierarchyError, apply, find_hierarchy, find_layout, observe
from reporter.cgroup.layout import Driver, Version
from reporter.cgroup.plan import File, Group, Write

POD = "kubepods/podu"
TREE = {"kubepods": "0-7", POD: "0-3", f"{POD}/c": "0-1", f"{POD}/c/inner": "1", "kubepods/podv": "4"}


def test_a_pod_is_read_with_all_that_is_below_it_in_v1(make_tree) -> None:
    seen = observe(make_tree(Version.V1, TREE), ["kubepods"], [POD])
    assert seen.tree == {
        "kubepods": Group(0xFF, 1),
        POD: Group(0xF, 1),
        f"{POD}/c": Group(0b11, 1),
        f"{POD}/c/inner": Group(0b10, 1),
    }
    assert (seen.failures, seen.absent) == ([], set())


def test_in_v2_what_is_deeper_than_containers_is_not_read(make_tree) -> None:
    seen = observe(make_tree(Version.V2, TREE), ["kubepods"], [POD])
    assert set(seen.tree) == {"kubepods", POD, f"{POD}/c"}
    assert seen.effective == {POD: 0xFF}


def test_in_v1_16_levels_below_a_pod_are_read(make_tree) -> None:
    levels = {POD + "/c" * depth: "0" for depth in range(20)}
    seen = observe(make_tree(Version.V1, levels), [], [POD])
    assert set(seen.tree) == {POD + "/c" * depth for depth in range(17)}
    assert seen.failures == []


def test_a_cgroup_that_is_gone_is_absent_and_no_failure(make_tree) -> None:
    hierarchy = make_tree(Version.V1, TREE)
    seen = observe(hierarchy, ["kubepods"], ["kubepods/podgone"])
    assert seen.absent == {"kubepods/podgone"}
    assert seen.failures == []
    assert apply(hierarchy, [Write("kubepods/podgone", File.CPUS, 1)]) == ((), ())


def test_a_cgroup_without_a_cpuset_says_what_must_be_switched_on(make_tree) -> None:
    hierarchy = make_tree(Version.V2, TREE)
    (hierarchy.root / POD / "cpuset.cpus").unlink()
    seen = observe(hierarchy, [], [POD])
    assert "cgroup.subtree_control" in seen.failures[0].message
    assert seen.absent == set()


HOSTILE = {
    "no CPU list": b"all\n",
    "a huge number": b"0-999999999\n",
    "far too long": b"0," * 60_000,
    "not ASCII": "٣\n".encode(),
    "binary": b"\x00\xff\xfe",
}


@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE)
def test_a_file_that_makes_no_sense_is_reported_and_the_rest_is_read(make_tree, content) -> None:
    hierarchy = make_tree(Version.V1, TREE)
    (hierarchy.root / POD / "cpuset.cpus").write_bytes(content)
    seen = observe(hierarchy, ["kubepods"], [POD, "kubepods/podv"])
    assert set(seen.tree) == {"kubepods", "kubepods/podv"}
    assert [failure.path for failure in seen.failures] == [POD]


def test_more_than_64_kib_of_a_file_are_not_looked_at(make_tree) -> None:
    hierarchy = make_tree(Version.V1, TREE)
    for path, size in ((POD, 65536), ("kubepods/podv", 65537)):
        (hierarchy.root / path / "cpuset.cpus").write_bytes(b"3".ljust(size))

    failures = observe(hierarchy, ["kubepods"], [POD, "kubepods/podv"]).failures

    reasons = [failure.message.partition("cannot be read: ")[2] for failure in failures]
    assert reasons[0].startswith("a CPU list of 65536 characters")
    assert reasons[1] == "cpuset.cpus is larger than 65536 bytes"


def test_a_pipe_in_place_of_a_file_does_not_stop_us(make_tree) -> None:
    hierarchy = make_tree(Version.V1, TREE)
    (hierarchy.root / POD / "cpuset.cpus").unlink()
    os.mkfifo(hierarchy.root / POD / "cpuset.cpus")
    assert "plain file" in observe(hierarchy, [], [POD]).failures[0].message


def test_a_link_is_never_followed_neither_folder_nor_file(make_tree, tmp_path) -> None:
    hierarchy = make_tree(Version.V1, TREE)
    outside = tmp_path / "outside"
    outside.mkdir()
    for file in ("cgroup.procs", "cpuset.cpus", "cpuset.mems"):
        (outside / file).write_text("0\n")
    (hierarchy.root / "kubepods" / "podlink").symlink_to(outside)
    (hierarchy.root / "kubepods" / "podv" / "cpuset.cpus").unlink()
    (hierarchy.root / "kubepods" / "podv" / "cpuset.cpus").symlink_to(outside / "cpuset.cpus")
    seen = observe(hierarchy, [], ["kubepods/podlink", "kubepods/podv"])
    assert seen.tree == {}
    assert len(seen.failures) == 2
    writes = [Write(path, File.CPUS, 2) for path in ("kubepods/podlink", "kubepods/podv", "../outside", "/kubepods")]
    done, failures = apply(hierarchy, writes)
    assert done == ()
    assert [failure.path for failure in failures] == [write.path for write in writes]
    assert (outside / "cpuset.cpus").read_text() == "0\n"


def test_a_container_that_makes_endless_cgroups_is_cut_off_and_reported(make_tree) -> None:
    groups = {POD: "0", **{f"{POD}/c{number}": "0" for number in range(4100)}}
    seen = observe(make_tree(Version.V1, groups), [], [POD])
    assert len(seen.tree) == 4097
    message = f"{POD}: more than 4096 cgroups below one Pod; the rest is not read"
    assert seen.failures == [Failure(POD, "", 0, message)]


def test_what_is_written_is_a_cpu_list_and_one_refusal_stops_nothing_else(make_tree) -> None:
    hierarchy = make_tree(Version.V1, TREE)
    (hierarchy.root / POD / "cpuset.mems").unlink()
    (hierarchy.root / POD / "cpuset.mems").mkdir()
    wanted = [Write(POD, File.MEMS, 1), Write(POD, File.CPUS, 0b1011), Write(f"{POD}/c", File.CPUS, 0b1)]
    done, failures = apply(hierarchy, wanted)
    assert done == tuple(wanted[1:])
    message = f"{POD}/cpuset.mems: 0 was refused (EISDIR): Is a directory"
    assert failures == (Failure(POD, "cpuset.mems", errno.EISDIR, message),)
    assert (hierarchy.root / POD / "cpuset.cpus").read_text() == "0-1,3\n"


# finding the hierarchy and its layout

FOUND = {
    "v2": (["cgroup.controllers"], Version.V2, "."),
    "v1": (["cpuset/cpuset.cpus"], Version.V1, "cpuset"),
    "v1 and v2 side by side": (["cpuset/cpuset.cpus", "unified/cgroup.controllers"], Version.V1, "cpuset"),
}


@pytest.mark.parametrize(("files", "version", "root"), FOUND.values(), ids=FOUND)
def test_the_hierarchy_is_found_by_what_is_mounted(tmp_path, files, version, root) -> None:
    for file in files:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text("0\n")
    assert find_hierarchy(tmp_path) == Hierarchy((tmp_path / root).resolve(), version)


@pytest.mark.parametrize(
    ("folders", "driver"), [(["node/kubepods"], Driver.CGROUPFS), (["node.slice/node-kubepods.slice"], Driver.SYSTEMD)]
)
def test_the_driver_is_found_by_what_the_kubelet_made(tmp_path, folders, driver) -> None:
    for folder in folders:
        (tmp_path / folder).mkdir(parents=True)
    assert find_layout(Hierarchy(tmp_path, Version.V1), "/node").driver is driver


@pytest.mark.parametrize("folders", [[], ["kubepods", "kubepods.slice"]], ids=["none", "both"])
def test_without_one_clear_answer_the_administrator_is_informed_what_to_state(tmp_path, folders) -> None:
    for folder in folders:
        (tmp_path / folder).mkdir()
    with pytest.raises(HierarchyError, match="cgroupDriver"):
        find_layout(Hierarchy(tmp_path, Version.V1), "/")


@pytest.mark.parametrize("driver", Driver)
def test_of_two_trees_that_of_the_stated_driver_counts(tmp_path, driver) -> None:
    for folder in ("kubepods", "kubepods.slice"):
        (tmp_path / folder).mkdir()
    assert find_layout(Hierarchy(tmp_path, Version.V2), "/", str(driver)).driver is driver


def test_the_one_tree_that_is_there_counts_whatever_is_stated(tmp_path) -> None:
    (tmp_path / "kubepods.slice").mkdir()
    assert find_layout(Hierarchy(tmp_path, Version.V2), "/", "cgroupfs").driver is Driver.SYSTEMD


@pytest.mark.parametrize(("folders", "stated"), [(["kubepods", "kubepods.slice"], ""), ([], "systemd")])
def test_without_a_tree_or_a_word_on_two_of_them_nothing_is_guessed(tmp_path, folders, stated) -> None:
    for folder in folders:
        (tmp_path / folder).mkdir()
    with pytest.raises(HierarchyError, match="cgroupDriver"):
        find_layout(Hierarchy(tmp_path, Version.V2), "/", stated)
