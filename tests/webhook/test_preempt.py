"""Which Pods must leave so that another fits: those whose devices and CPUs make room on the node, and no more."""

from typing import Any

import machines_cpu
import pytest
from builders import container, device_entry, pod
from world import World, admitted, cpu_pod, gpu_pod, plain_pod

from allocator.vocabulary.names import DEVICE_ALLOCATED
from koordgate.kube.resource import PODS
from webhook.scheduling.extender import BadExtenderArgsError, Extender
from webhook.scheduling.fairness import Effort
from webhook.view.podinfo import read_pod_info

Raw = dict[str, Any]


@pytest.fixture
async def full(world: World) -> World:
    """n1: two cards; low-a and low-b hold a half of each, mid the rest of the first, high the rest of the second."""
    world.add_node("n1", device_entry(0), device_entry(1))
    world.see()
    for name, priority, node in (("low-a", 1, "n1"), ("mid", 5, "n1"), ("low-b", 1, "n1"), ("high", 9, "n1")):
        world.add_pod(gpu_pod(name, 50, priority=priority))
        world.see(PODS)
        assert (await world.bind(name, node)).allowed
    assert [share.minor for name in ("low-a", "mid", "low-b", "high") for share in shares(world, name)] == [0, 0, 1, 1]
    return world


def shares(world: World, name: str) -> Any:
    return world.holdings()[f"uid-{name}"].shares


def args(obj: Raw, proposed: dict[str, list[str]], *, whole: bool = False, violations: int = 0) -> Raw:
    """kube-scheduler's question: with UIDs if it knows that the extender caches nodes, otherwise with whole Pods."""
    if whole:
        named = {
            node: {"Pods": [{"metadata": {"uid": uid, "name": uid}} for uid in uids], "NumPDBViolations": violations}
            for node, uids in proposed.items()
        }
        return {"Pod": obj, "NodeNameToVictims": named, "NodeNameToMetaVictims": None}
    meta = {
        node: {"Pods": [{"UID": uid} for uid in uids], "NumPDBViolations": violations}
        for node, uids in proposed.items()
    }
    return {"Pod": obj, "NodeNameToVictims": None, "NodeNameToMetaVictims": meta}


def victims(world: World, sent: Raw) -> dict[str, list[str]]:
    answer = world.parts.extender.preempt(sent)
    assert answer.keys() == {"NodeNameToMetaVictims"}
    return {node: sorted(one["UID"] for one in told["Pods"]) for node, told in answer["NodeNameToMetaVictims"].items()}


@pytest.mark.parametrize("whole", [False, True])
def test_those_go_who_make_room_on_one_card(full: World, *, whole: bool) -> None:
    """kube-scheduler sees sums: two halves of two cards look like a card. The victim that does not help is spared."""
    sent = args(gpu_pod("new", 100, priority=7), {"n1": ["uid-low-a", "uid-low-b"]}, whole=whole, violations=3)
    answer = full.parts.extender.preempt(sent)
    told = answer["NodeNameToMetaVictims"]["n1"]
    assert sorted(one["UID"] for one in told["Pods"]) == ["uid-low-a", "uid-mid"]
    assert told["NumPDBViolations"] == 3


@pytest.mark.parametrize(("stated", "told"), [({}, 0), ({"NumPDBViolations": None}, 0), ({"NumPDBViolations": 2}, 2)])
def test_a_node_keeps_the_number_of_disruption_budgets_that_it_violates(full: World, stated: Raw, told: int) -> None:
    proposed = {node: {"Pods": [{"UID": "uid-low-a"}], **stated} for node in ("n1", "n2")}
    for asking in (gpu_pod("new", 50, priority=7), plain_pod("plain")):
        sent = {"Pod": asking, "NodeNameToMetaVictims": proposed}
        answer = full.parts.extender.preempt(sent)["NodeNameToMetaVictims"]
        assert {one["NumPDBViolations"] for one in answer.values()} == {told}


def test_the_least_important_goes_where_one_is_enough_and_none_is_proposed(full: World) -> None:
    assert victims(full, args(gpu_pod("new", 50, priority=7), {"n1": []})) in (
        {"n1": ["uid-low-a"]},
        {"n1": ["uid-low-b"]},
    )


async def test_a_proposal_that_makes_room_stands_for_it_may_be_needed_for_plain_cpu(world: World) -> None:
    """kube-scheduler proposes A, whose 30 CPUs the new Pod needs; B has an equal card, but frees no CPUs."""
    world.add_node("n1", device_entry(0), device_entry(1))
    world.see()
    for name, cpu, priority in (("a", "30", 5), ("b", "1", 1)):
        card = {"kubernetes.io/gpu": "100"}
        asked = container(requests={"cpu": cpu, **card}, limits=card)
        world.add_pod(admitted(pod(asked, name=name, uid=f"uid-{name}", priority=priority)))
        world.see(PODS)
        assert (await world.bind(name)).allowed
    assert victims(world, args(gpu_pod("new", 50, priority=9), {"n1": ["uid-a"]})) == {"n1": ["uid-a"]}


@pytest.mark.parametrize(("cpu", "expected"), [("1", ["uid-a", "uid-c"]), ("30", ["uid-a", "uid-b", "uid-c"])])
async def test_a_proposed_pod_that_frees_plain_cpu_goes_as_well(world: World, cpu: str, expected: list[str]) -> None:
    """A and B are proposed, C shares A's card. B's CPUs may be needed, since C releases fewer."""
    world.add_node("n1", device_entry(0), device_entry(1))
    world.see()
    for name, asked_cpu, priority in (("a", "1", 1), ("c", "1", 5), ("b", cpu, 1), ("high", "1", 9)):
        card = {"kubernetes.io/gpu": "50"}
        asked = container(requests={"cpu": asked_cpu, **card}, limits=card)
        world.add_pod(admitted(pod(asked, name=name, uid=f"uid-{name}", priority=priority)))
        world.see(PODS)
        assert (await world.bind(name)).allowed
    assert victims(world, args(gpu_pod("new", 100, priority=9), {"n1": ["uid-a", "uid-b"]})) == {"n1": expected}


@pytest.mark.parametrize(("percent", "priority"), [(100, 5), (100, 1), (200, 8), (50, 0), (50, 1), (50, None)])
def test_a_node_on_which_lower_pods_do_not_make_room_is_left_out(full: World, percent: int, priority: int) -> None:
    assert victims(full, args(gpu_pod("new", percent, priority=priority), {"n1": ["uid-low-a", "uid-low-b"]})) == {}


def test_who_holds_nothing_of_ours_goes_as_proposed(full: World) -> None:
    sent = args(gpu_pod("new", 50, priority=7), {"n1": ["uid-plain", "uid-low-a"]})
    found = victims(full, sent)["n1"]
    assert "uid-plain" in found
    assert len(found) == 2


def test_a_node_of_which_nothing_is_known_is_left_out(full: World) -> None:
    assert victims(full, args(gpu_pod("new", 50, priority=7), {"nowhere": ["uid-x"], "n1": ["uid-low-a"]})).keys() == {
        "n1"
    }


async def test_a_node_is_left_out_whose_victims_are_a_group_that_runs_on_other_nodes_too(full: World) -> None:
    """kube-scheduler 1.37 proposes a PodGroup as one victim, and refuses an answer with a Pod of another node."""
    full.add_node("n2", device_entry(0))
    full.see()
    full.add_pod(gpu_pod("member", 100, priority=1))
    full.see(PODS)
    assert (await full.bind("member", "n2")).allowed
    proposed = {"n1": ["uid-low-a", "uid-member"], "n2": ["uid-member"]}
    assert victims(full, args(gpu_pod("new", 50, priority=7), proposed)) == {"n2": ["uid-member"]}


async def test_a_pod_that_is_not_bound_is_no_victim(full: World) -> None:
    """kube-scheduler refuses the whole answer if it names a Pod that it does not see on the node."""
    full.add_node("n2")
    full.see()
    full.add_pod(gpu_pod("on-the-way", 100, priority=1))
    full.see(PODS)
    named = full.parts.extender.filter({"Pod": full.pod("on-the-way"), "NodeNames": ["n2"]})["NodeNames"]
    assert named == ["n2"]  # and therefore assumed there
    assert victims(full, args(gpu_pod("new", 100, priority=7), {"n2": []})) == {}


async def test_what_just_ended_is_room_already(full: World) -> None:
    victims(full, args(gpu_pod("new", 50, priority=7), {"n1": []}))  # so that the earlier node is remembered
    full.remove_pod("mid")
    full.see(PODS)
    await full.parts.reconciler.reconcile()
    assert victims(full, args(gpu_pod("new", 50, priority=7), {"n1": ["uid-low-a"]}))["n1"] in (
        ["uid-low-a"],
        ["uid-low-b"],
    )
    assert victims(full, args(gpu_pod("new", 100, priority=2), {"n1": ["uid-low-a"]})) == {"n1": ["uid-low-a"]}


async def test_cpus_make_room_as_devices_do(world: World) -> None:
    world.add_node("n1", cpu=machines_cpu.build(2, 1, 2, 2, machines_cpu.siblings_near))
    world.see()
    for name, count in (("a", 3), ("b", 2), ("c", 3)):
        world.add_pod(cpu_pod(name, count, priority=1))
        world.see(PODS)
        assert (await world.bind(name)).allowed
    sent = args(cpu_pod("new", 3, priority=7), {"n1": ["uid-b"]})
    found = victims(world, sent)
    assert found in ({"n1": ["uid-a", "uid-b"]}, {"n1": ["uid-b", "uid-c"]}, {"n1": ["uid-a"]}, {"n1": ["uid-c"]})
    rest = world.parts.cluster.snapshot("n1").without(found["n1"])
    held = [holding.cpus for holding in rest.holdings.values()]
    assert 8 - sum(share.cpus.bit_count() for share in held if share) >= 3


@pytest.mark.parametrize("wrong", ["request", "annotation"])
def test_a_pod_that_can_never_be_bound_preempts_nobody(full: World, wrong: str) -> None:
    obj = gpu_pod("new", 50, priority=7)
    if wrong == "request":
        obj["spec"]["containers"][0]["resources"]["limits"] = {"kubernetes.io/gpu": "150"}
    else:
        obj["metadata"]["annotations"] = {DEVICE_ALLOCATED: "{"}
    assert victims(full, args(obj, {"n1": ["uid-low-a"]})) == {}


def test_of_a_pod_without_devices_all_stays_as_proposed(full: World) -> None:
    proposed = {"n1": ["uid-low-a", "uid-plain"], "n2": []}
    assert victims(full, args(plain_pod("new", priority=7), proposed)) == {
        node: sorted(uids) for node, uids in proposed.items()
    }


async def test_once_the_victims_are_gone_the_new_pod_is_bound(full: World) -> None:
    full.add_pod(gpu_pod("new", 100, priority=7))
    full.see(PODS)
    assert not (await full.bind("new")).allowed
    for uid in victims(full, args(full.pod("new"), {"n1": []}))["n1"]:
        full.remove_pod(uid.removeprefix("uid-"))
    full.see(PODS)
    await full.parts.reconciler.reconcile()
    assert (await full.bind("new")).allowed
    full.audit()


@pytest.mark.parametrize(
    "wrong",
    [
        None,
        [],
        {},
        {"Pod": None},
        {"Pod": {"spec": {}}},
        {"Pod": gpu_pod("p"), "NodeNameToMetaVictims": [1]},
        {"Pod": gpu_pod("p"), "NodeNameToMetaVictims": {"n1": None}},
        {"Pod": gpu_pod("p"), "NodeNameToMetaVictims": {"n1": {"Pods": [None]}}},
        {"Pod": gpu_pod("p"), "NodeNameToMetaVictims": {"n1": {"Pods": [{}]}}},
        {"Pod": gpu_pod("p"), "NodeNameToMetaVictims": {"n1": {"Pods": [{"UID": ["x"]}]}}},
        {"Pod": gpu_pod("p"), "NodeNameToMetaVictims": {"n1": {"Pods": 7}}},
        {"Pod": gpu_pod("p"), "NodeNameToMetaVictims": {"n1": {"Pods": [], "NumPDBViolations": "x"}}},
        {"Pod": gpu_pod("p"), "NodeNameToMetaVictims": {"n1": {"Pods": [], "NumPDBViolations": True}}},
        {"Pod": gpu_pod("p"), "NodeNameToVictims": {"n1": {"Pods": [{"metadata": {}}]}}},
        {"Pod": gpu_pod("p", uid=["x"]), "NodeNameToMetaVictims": {}},
    ],
)
def test_what_is_no_preemption_args_is_said_to_be_none(full: World, wrong: Any) -> None:
    with pytest.raises(BadExtenderArgsError):
        full.parts.extender.preempt(wrong)


@pytest.mark.parametrize(("why", "told"), [("", "time"), ("used up", "namespace")])
def test_a_search_for_victims_that_is_ended_answers_with_the_nodes_that_it_has_judged(
    full: World, why: str, told: str
) -> None:
    ended: list[str] = []
    parts = full.parts
    of = Extender(parts.cluster, parts.ranking, parts.types, 16, interrupted=ended.append)
    pod = read_pod_info(gpu_pod("new", 50, priority=7))
    proposed: dict[str, tuple[list[str], int]] = {node: (["uid-low-a"], 0) for node in ("n1", "n2", "n3")}
    full.add_node("n2", device_entry(0))
    full.add_node("n3", device_entry(0))
    full.see()
    answer: Any = None
    search = of._preempt(pod, proposed, Effort(why=why))
    next(search)
    try:
        while True:
            search.send(True)
    except StopIteration as done:
        answer = done.value
    assert list(answer["NodeNameToMetaVictims"]) == ["n1"]
    assert ended == [told]
