"""Which CPUs each Pod gets: the CPU proposal, QoS by QoS; and those that the kubelet's policies own."""

from dataclasses import replace
from typing import Any

import pytest

from allocator.vocabulary.cputopology import format_cpuset, parse
from reporter.cgroup.layout import KubernetesQos
from reporter.cgroup.plan import KubeletRules, Pod, SharedCpus, wants

# 16 CPUs, two NUMA nodes; LSE has 2-3, LSR 4-5; the rest is shared.
POOLS = SharedCpus(
    shared=parse("0-1,6-15"),
    best_effort=parse("0-1,4-15"),
    shared_by_node={0: parse("0-1,6-7"), 1: parse("8-15")},
    best_effort_by_node={0: parse("0-1,4-7"), 1: parse("8-15")},
    system=parse("0"),
)
OFF = KubeletRules()
STATIC = KubeletRules(static=True, given={"kubelet-pod": {"web": parse("14")}}, default=parse("0-13,15"))


def pod(uid="u", qos_class=KubernetesQos.BURSTABLE, **rest: Any) -> Pod:
    return Pod(uid, f"ns/{uid}", qos_class, **rest)


DECIDED = {
    "LSE: its own CPUs": (pod(qos="LSE", cpus=parse("2-3")), "2-3"),
    "LSR: its own CPUs": (
        pod(qos="LSR", cpus=parse("4-5"), qos_class=KubernetesQos.GUARANTEED, whole_cpus=True),
        "4-5",
    ),
    "LS: the shared pool": (pod(qos="LS"), "0-1,6-15"),
    "Burstable without a class: the shared pool": (pod(), "0-1,6-15"),
    "Guaranteed without a class is LS": (pod(qos_class=KubernetesQos.GUARANTEED, whole_cpus=True), "0-1,6-15"),
    "LS bound to a NUMA node's pool": (pod(qos="LS", pools=0b10), "8-15"),
    "LS bound to the pools of both": (pod(qos="LS", pools=0b11), "0-1,6-15"),
    "BE: the BE pool": (pod(qos="BE"), "0-1,4-15"),
    "BestEffort without a class: the BE pool": (pod(qos_class=KubernetesQos.BEST_EFFORT), "0-1,4-15"),
    "BE bound to a NUMA node's pool": (pod(qos="BE", pools=0b01), "0-1,4-7"),
    "BestEffort that says LS: the shared pool": (pod(qos="LS", qos_class=KubernetesQos.BEST_EFFORT), "0-1,6-15"),
    "SYSTEM: the system's CPUs": (pod(qos="SYSTEM"), "0"),
    "its own CPUs win over a pool": (pod(qos="LSR", cpus=parse("4"), pools=0b10), "4"),
}


RESERVED = KubeletRules(static=True, reserved=parse("0-2"))
BE, BEST_EFFORT = {"qos": "BE"}, {"qos_class": KubernetesQos.BEST_EFFORT}
FIRST = {
    "one": ([BE], ["0-1"]),
    "as many as CPUs": ([BE, BEST_EFFORT], ["0-1"] * 2),
    "more": ([BE, BEST_EFFORT, BE], ["0-1,4-15"] * 3),
    "one that requests all": ([{**BE, "needs": 2}], ["0-1"]),
    "one that requests more": ([{**BE, "needs": 3}], ["0-1,4-15"]),
    "one that is bound to a NUMA node": ([BE, {**BE, "pools": 0b10}], ["0-1", "8-15"]),
    "others": ([BE, {}, BE, {}], ["0-1", "0-1,6-15"] * 2),
}


@pytest.mark.parametrize(("asked", "cpus"), FIRST.values(), ids=FIRST)
def test_be_pods_use_the_cpus_that_the_kubelet_reserves_as_long_as_these_suffice(
    asked: list[dict[str, Any]], cpus: list[str]
) -> None:
    """CPU proposal, "Take over kubelet CPU management policies", 2.1."""
    planned = wants([pod(**one) for one in asked], POOLS, RESERVED)
    assert [format_cpuset(want.cpus) for want in planned] == cpus


@pytest.mark.parametrize(("asked", "cpus"), DECIDED.values(), ids=DECIDED)
def test_a_pod_gets_the_cpus_of_its_class(asked, cpus) -> None:
    (want,) = wants([asked], POOLS, OFF)
    assert format_cpuset(want.cpus) == cpus
    assert (want.note, want.room) == ("", 0)


@pytest.mark.parametrize("qos", ["", "LSE", "LSR", "LS", "BE", "SYSTEM"])
def test_a_pod_whose_cpus_cannot_be_read_keeps_those_that_it_has(qos) -> None:
    (want,) = wants([pod(qos=qos, mems=0b1, unreadable=True)], POOLS, OFF)
    assert (want.cpus, want.mems, want.room) == (0, 0, 0)
    assert want.note == "ns/u: its resource-status cannot be read; its CPUs are left alone"


def test_memory_is_bound_only_when_asked() -> None:
    assert [want.mems for want in wants([pod(), pod(mems=0b10)], POOLS, OFF)] == [0, 0b10]


@pytest.mark.parametrize(("qos", "pool"), [("LS", "shared pool"), ("BE", "BE pool")])
def test_an_empty_pool_moves_nobody_and_is_reported(qos, pool) -> None:
    (want,) = wants([pod(qos=qos)], SharedCpus(0, 0), OFF)
    assert want.cpus == 0
    assert want.note.endswith(f": the {pool} has no CPU left; its containers stay where they are")


def test_a_pod_bound_to_an_empty_or_unknown_pool_runs_on_the_whole_one_and_it_is_reported() -> None:
    (want,) = wants([pod(qos="LS", pools=1 << 7)], POOLS, OFF)
    assert want.cpus == POOLS.shared
    assert "NUMA node 7" in want.note


MIXED = {"a" * 64: "istio-proxy", "b" * 64: "istio-init"}


def test_containers_that_left_a_pods_own_cpus_get_the_shared_pool_of_the_whole_node() -> None:
    (want,) = wants([pod(qos="LSR", cpus=parse("4-5"), pools=0b10, mems=0b10, shared=MIXED)], POOLS, OFF)
    assert (format_cpuset(want.cpus), want.mems, want.room, want.note) == ("4-5", 0b10, 0, "")
    assert want.others == dict.fromkeys(MIXED, POOLS.shared)


def test_they_stay_with_the_pod_while_the_shared_pool_is_empty() -> None:
    (want,) = wants([pod(qos="LSR", cpus=parse("4-5"), shared=MIXED)], SharedCpus(0, 0), OFF)
    assert (want.cpus, want.others) == (parse("4-5"), dict.fromkeys(MIXED, parse("4-5")))
    assert want.note == "ns/u: the shared pool has no CPU left; all of its containers run on its own CPUs"


@pytest.mark.parametrize("rest", [{"qos": "LS"}, {"qos": "LSR"}, {"qos": "LSR", "unreadable": True}])
def test_no_container_leaves_a_pod_without_cpus_of_its_own(rest: dict[str, Any]) -> None:
    (want,) = wants([pod(shared=MIXED, **rest)], POOLS, OFF)
    assert want.others == {}


# the kubelet's static policy

OWNED = {
    "given CPUs by the kubelet": pod("kubelet-pod", KubernetesQos.GUARANTEED, whole_cpus=True),
    "about to be given some": pod("new", KubernetesQos.GUARANTEED, whole_cpus=True),
    "decided by us, and otherwise by the kubelet": pod(
        "kubelet-pod", KubernetesQos.GUARANTEED, qos="LSR", cpus=0b110000
    ),
    "decided by us, about to be given by the kubelet": pod(
        "new", KubernetesQos.GUARANTEED, qos="LSR", cpus=0b110000, whole_cpus=True
    ),
}


@pytest.mark.parametrize("asked", OWNED.values(), ids=OWNED)
def test_what_the_static_policy_owns_is_left_alone_and_reported(asked) -> None:
    (want,) = wants([asked], POOLS, STATIC)
    assert (want.cpus, want.mems) == (0, 0)
    assert "static policy" in want.note
    assert want.room & STATIC.default == STATIC.default
    if asked.cpus:
        assert "run the enforcer" in want.note


OURS = {
    "LS": (pod(qos="LS"), "0-1,6-15"),
    "Guaranteed with a part of a CPU": (pod(qos_class=KubernetesQos.GUARANTEED), "0-1,6-15"),
    "LSR that Kubernetes calls Burstable": (pod(qos="LSR", cpus=0b110000, whole_cpus=True), "4-5"),
    "given the same by the kubelet": (
        pod("kubelet-pod", KubernetesQos.GUARANTEED, qos="LSR", cpus=1 << 14, whole_cpus=True),
        "14",
    ),
}


@pytest.mark.parametrize(("asked", "cpus"), OURS.values(), ids=OURS)
def test_beside_the_static_policy_a_pods_cgroup_keeps_room_for_what_the_kubelet_writes(asked, cpus) -> None:
    (want,) = wants([asked], POOLS, STATIC)
    assert format_cpuset(want.cpus) == cpus
    assert want.room == want.cpus | STATIC.default
    assert want.note == ""


def test_a_container_that_left_and_that_the_kubelet_gives_cpus_is_left_to_it() -> None:
    own = parse("4-5")
    kubelet = KubeletRules(static=True, given={"u": {"main": own, "istio-proxy": own}}, default=parse("0-3,6-15"))
    asked = pod("u", KubernetesQos.GUARANTEED, qos="LSR", cpus=own, whole_cpus=True, shared=MIXED)
    (want,) = wants([asked], POOLS, kubelet)
    assert (want.cpus, want.others) == (own, {"a" * 64: 0, "b" * 64: POOLS.shared})
    assert want.room == own | kubelet.default


@pytest.mark.parametrize("asked", [one for one in OWNED.values() if one.cpus], ids=str)
def test_where_the_enforcer_overrules_the_kubelet_a_pod_has_the_cpus_that_we_allocated(asked) -> None:
    (want,) = wants([asked], POOLS, replace(STATIC, overruled=True))
    assert (want.cpus, want.note) == (asked.cpus, "")


@pytest.mark.parametrize("asked", [one for one in OWNED.values() if not one.cpus], ids=str)
def test_where_the_enforcer_overrules_the_kubelet_pods_without_cpus_of_ours_are_left_to_it(asked) -> None:
    (want,) = wants([asked], POOLS, replace(STATIC, overruled=True))
    assert want.cpus == 0
    assert "static policy" in want.note


def test_a_container_that_left_and_that_the_overruled_kubelet_gives_cpus_runs_in_the_shared_pool() -> None:
    own = parse("4-5")
    given = {"u": {"main": own, "istio-proxy": own}}
    kubelet = KubeletRules(static=True, given=given, default=parse("0-3,6-15"), overruled=True)
    asked = pod("u", KubernetesQos.GUARANTEED, qos="LSR", cpus=own, whole_cpus=True, shared=MIXED)
    (want,) = wants([asked], POOLS, kubelet)
    assert want.others == dict.fromkeys(MIXED, POOLS.shared)


def test_the_static_memory_policy_keeps_the_memory_of_guaranteed_pods() -> None:
    kubelet = KubeletRules(static_memory=True)
    guaranteed, burstable = wants([pod(qos_class=KubernetesQos.GUARANTEED, mems=1), pod(mems=1)], POOLS, kubelet)
    assert (guaranteed.mems, burstable.mems) == (0, 1)
    assert "memory policy" in guaranteed.note
