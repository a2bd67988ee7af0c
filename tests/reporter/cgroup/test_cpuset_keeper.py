"""Rounds on folders of plain files: what is written, restored, left alone and reported."""

from dataclasses import replace

import pytest

from allocator.vocabulary.cputopology import format_cpuset, parse
from reporter.cgroup.cpusets import CpusetKeeper
from reporter.cgroup.layout import CgroupLayout, Driver, KubernetesQos, Version
from reporter.cgroup.plan import KubeletRules, Pod, SharedCpus

LSR = Pod("lsr", "ns/lsr", KubernetesQos.GUARANTEED, qos="LSR", cpus=parse("4-5"))
LS = Pod("ls", "ns/ls", KubernetesQos.BURSTABLE, qos="LS")
BE = Pod("be", "ns/be", KubernetesQos.BEST_EFFORT)
PODS = (LSR, LS, BE)
POOLS = SharedCpus(shared=parse("0-3,6-7"), best_effort=parse("0-7"))
OFF = KubeletRules()

TREE = {
    "kubepods": "0-7",
    "kubepods/burstable": "0-7",
    "kubepods/besteffort": "0-7",
    "kubepods/podlsr": "0-7",
    "kubepods/podlsr/main": "0-7",
    "kubepods/podlsr/sandbox": "0-7",
    "kubepods/burstable/podls": "0-7",
    "kubepods/burstable/podls/main": "0-7",
    "kubepods/burstable/podls/sandbox": "0-7",
    "kubepods/besteffort/podbe": "0-7",
    "kubepods/besteffort/podbe/main": "0-7",
}


def kept(hierarchy) -> CpusetKeeper:
    return CpusetKeeper(hierarchy, CgroupLayout(Driver.CGROUPFS))


def cpus(hierarchy, path) -> str:
    return str((hierarchy.root / path / "cpuset.cpus").read_text().strip())


def put(hierarchy, path, text) -> None:
    (hierarchy.root / path / "cpuset.cpus").write_text(text)


def test_every_container_and_sandbox_gets_what_its_class_has(make_tree) -> None:
    hierarchy = make_tree(Version.V1, TREE)
    findings = kept(hierarchy).round(PODS, POOLS, OFF)
    for name in ("", "/main", "/sandbox"):
        assert cpus(hierarchy, f"kubepods/podlsr{name}") == "4-5"
        assert cpus(hierarchy, f"kubepods/burstable/podls{name}") == "0-3,6-7"
    assert cpus(hierarchy, "kubepods/besteffort/podbe/main") == "0-7"
    assert cpus(hierarchy, "kubepods") == cpus(hierarchy, "kubepods/burstable") == "0-7"
    assert (findings.written, findings.failures, findings.notes, findings.absent) == (6, (), (), ())


PROXY = "e" * 64
MIXED = replace(LSR, shared={PROXY: "istio-proxy", "f" * 64: "istio-init"})


@pytest.mark.parametrize("version", Version)
def test_a_container_that_left_runs_in_the_shared_pool_and_moves_with_it(make_tree, version) -> None:
    hierarchy = make_tree(version, TREE | {f"kubepods/podlsr/{PROXY}": "0-7"})
    keeper = kept(hierarchy)
    for pools in (POOLS, SharedCpus(shared=parse("0-1"), best_effort=parse("0-1,4-7")), POOLS):
        findings = keeper.round((MIXED, LS), pools, OFF)
        assert (findings.failures, findings.reapplied) == ((), ())
        shared = format_cpuset(pools.shared)
        for name, wanted in (("main", "4-5"), ("sandbox", "4-5"), (PROXY, shared)):
            assert cpus(hierarchy, f"kubepods/podlsr/{name}") == wanted
        assert cpus(hierarchy, "kubepods/podlsr") == format_cpuset(parse("4-5") | pools.shared)
        assert keeper.round((MIXED, LS), pools, OFF).written == 0


def test_a_second_round_writes_nothing(make_tree) -> None:
    keeper = kept(make_tree(Version.V1, TREE))
    keeper.round(PODS, POOLS, OFF)
    findings = keeper.round(PODS, POOLS, OFF)
    assert (findings.written, findings.reapplied) == (0, ())


def test_what_somebody_changed_is_put_back_and_counted(make_tree) -> None:
    hierarchy = make_tree(Version.V1, TREE)
    keeper = kept(hierarchy)
    keeper.round(PODS, POOLS, OFF)
    put(hierarchy, "kubepods/podlsr/main", "4")
    findings = keeper.round(PODS, POOLS, OFF)
    assert findings.reapplied == ("kubepods/podlsr/main",)
    assert cpus(hierarchy, "kubepods/podlsr/main") == "4-5"


def test_a_pool_that_changes_is_no_change_by_somebody_else(make_tree) -> None:
    hierarchy = make_tree(Version.V1, TREE)
    keeper = kept(hierarchy)
    keeper.round(PODS, POOLS, OFF)
    findings = keeper.round(PODS, replace(POOLS, shared=parse("0-1")), OFF)
    assert findings.reapplied == ()
    assert cpus(hierarchy, "kubepods/burstable/podls/main") == "0-1"


def test_where_the_static_policy_owns_cpus_nothing_is_written_and_it_is_reported(make_tree) -> None:
    hierarchy = make_tree(Version.V1, TREE)
    static = KubeletRules(static=True, given={"lsr": {"main": parse("2")}}, default=parse("0-1,3-7"))
    put(hierarchy, "kubepods/podlsr/main", "2")
    findings = kept(hierarchy).round([LSR], POOLS, static)
    assert cpus(hierarchy, "kubepods/podlsr/main") == "2"
    assert findings.written == 0
    ((uid, note),) = findings.notes
    assert uid == "lsr"
    assert "static policy" in note


def test_once_the_policy_is_static_a_pods_cgroup_is_widened_again_so_that_the_kubelet_can_write(make_tree) -> None:
    hierarchy = make_tree(Version.V1, TREE)
    keeper = kept(hierarchy)
    keeper.round(PODS, POOLS, OFF)
    static = KubeletRules(static=True, given={"lsr": {"main": parse("2")}}, default=parse("0-1,3-7"))
    keeper.round(PODS, POOLS, static)
    assert cpus(hierarchy, "kubepods/podlsr") == "0-7"
    assert cpus(hierarchy, "kubepods/podlsr/main") == "4-5"
    assert cpus(hierarchy, "kubepods/burstable/podls") == "0-7"
    assert cpus(hierarchy, "kubepods/burstable/podls/main") == "0-3,6-7"


def test_memory_is_bound_where_it_was_asked(make_tree) -> None:
    hierarchy = make_tree(Version.V1, TREE)
    for path in TREE:
        (hierarchy.root / path / "cpuset.mems").write_text("0-1\n")
    kept(hierarchy).round([replace(LSR, mems=0b10), LS], POOLS, OFF)
    assert (hierarchy.root / "kubepods/podlsr/main/cpuset.mems").read_text() == "1\n"
    assert (hierarchy.root / "kubepods/burstable/podls/main/cpuset.mems").read_text() == "0-1\n"


def test_a_pod_with_a_hostile_uid_is_left_out_and_reported(make_tree) -> None:
    hostile = Pod("../../etc", "ns/hostile", KubernetesQos.BURSTABLE)
    findings = kept(make_tree(Version.V1, TREE)).round([hostile, LS], POOLS, OFF)
    assert "ns/hostile" in findings.failures[0].message
    assert findings.written == 3


def test_a_wrong_driver_is_reported(make_tree) -> None:
    findings = CpusetKeeper(make_tree(Version.V1, TREE), CgroupLayout(Driver.SYSTEMD)).round(PODS, POOLS, OFF)
    assert "cgroupDriver" in findings.failures[0].message


def test_in_v2_a_pod_that_gets_less_than_it_states_is_reported(make_tree) -> None:
    hierarchy = make_tree(Version.V2, TREE)
    keeper = kept(hierarchy)
    keeper.round(PODS, POOLS, OFF)
    (hierarchy.root / "kubepods/podlsr/cpuset.cpus.effective").write_text("4\n")
    (failure,) = keeper.round(PODS, POOLS, OFF).failures
    assert "lacks CPUs 5" in failure.message
