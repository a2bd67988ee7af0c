"""Gangs that are bound as a whole or not at all: from admission over the plan to the bind, and when time runs out."""

import asyncio
from typing import Any

import pytest
from fake_kube import FakeKube, Fault, answer, lose_answer
from gangs.companies import GATING, HOLD_S, SETTINGS, Company, ended, held_in_vain, member, members, without
from world import POLICY, gpu_pod, plain_pod

from allocator.vocabulary.names import GANG_GATE, GANG_TOGETHER
from allocator.vocabulary.outcome import Refusal
from allocator.wire.gang import GANG_ANNOTATION, GANG_LABELS, GANG_MIN_AVAILABLE
from koordgate.kube.client import KubeClient
from koordgate.kube.resource import EVENTS, NODE_ALLOCATIONS, NODES, PLUGIN_POD_GROUPS, PODS
from webhook import patch
from webhook.admission.translate import translate
from webhook.gangs import room
from webhook.gangs.controller import SETTLE_S, kube_lift
from webhook.scheduling.ranking import Ranked
from webhook.view.podinfo import read_pod_info

# Admission


def gates(obj: dict[str, Any]) -> list[str]:
    return [gate["name"] for gate in obj["spec"].get("schedulingGates", ())]


@pytest.mark.parametrize("before", [None, [], [{"name": "other/gate"}], [{"name": "a/b"}, {"name": GANG_GATE}]])
def test_a_pod_of_a_whole_gang_gets_our_gate_once(before: list[dict[str, str]] | None) -> None:
    made = member("p", 2) if before is None else member("p", 2, schedulingGates=before)
    assert sorted(gates(made)) == sorted({GANG_GATE, *(gate["name"] for gate in before or ())})
    assert not translate(made, GATING, None).operations


GANG = {GANG_ANNOTATION: "g"}
UNGATED: dict[str, dict[str, str]] = {
    "no gang": {},
    "a gang": GANG,
    "a gang that need not be whole": {**GANG, GANG_TOGETHER: "false"},
}


@pytest.mark.parametrize("annotations", UNGATED.values(), ids=UNGATED)
def test_other_pods_get_none(annotations: dict[str, str]) -> None:
    made = gpu_pod("p", admit=False, annotations=annotations)
    translation = translate(made, GATING, None)
    assert gates(patch.apply(made, translation.operations)) == []
    assert translation.warnings == ()


WRONG: dict[str, tuple[dict[str, str], str]] = {
    "no gang": ({GANG_TOGETHER: "true"}, f"the Pod belongs to no gang; name one, as by the label {GANG_LABELS[0]}"),
    "of another namespace": (
        {GANG_TOGETHER: "true", GANG_ANNOTATION: "other/g"},
        "gang other/g is of another namespace; name one of the Pod's own",
    ),
    "no boolean": ({**GANG, GANG_TOGETHER: "yes"}, "'yes' is not allowed; write true or false"),
}


@pytest.mark.parametrize(("annotations", "message"), WRONG.values(), ids=WRONG)
def test_what_cannot_be_a_whole_gang_is_refused(annotations: dict[str, str], message: str) -> None:
    problems = translate(gpu_pod("p", admit=False, annotations=annotations), GATING, None).problems
    assert [str(problem) for problem in problems] == [f"metadata.annotations[{GANG_TOGETHER}]: {message}"]


@pytest.mark.parametrize(("name", "warned"), [("g", False), ("default/g", False), ("victim/g", True)])
def test_the_author_of_a_pod_that_names_a_gang_of_another_namespace_is_warned(name: str, *, warned: bool) -> None:
    translation = translate(gpu_pod("p", admit=False, annotations={GANG_ANNOTATION: name}), POLICY, None)
    warning = "gang victim/g is of another namespace: this Pod counts as one without a gang"
    assert translation.warnings == ((warning,) if warned else ())


def test_where_gangs_need_not_be_whole_the_author_is_warned() -> None:
    made = gpu_pod("p", admit=False, annotations={**GANG, GANG_TOGETHER: "true"})
    translation = translate(made, POLICY, None)
    assert gates(patch.apply(made, translation.operations)) == []
    (warning,) = translation.warnings
    assert "has no effect, because gangs.allOrNothing of this installation is off" in warning


# Room for all, or for none


@pytest.fixture
def company(fake: FakeKube, kube: KubeClient) -> Company:
    return Company(fake, kube)


async def test_room_is_held_for_all_and_only_then_they_are_scheduled(company: Company) -> None:
    company.add_nodes(a=2, b=8)
    for made in members(4):
        assert await company.schedule() == {}
        assert company.held() == []
        company.add(made)
        if len(company.gated()) < 4:
            await company.tend()
    await company.tend()
    assert company.gated() == []
    assert company.holds() == dict.fromkeys(["m0", "m1", "m2", "m3"], HOLD_S)
    assert await company.schedule() == {}
    assert company.bound() == dict.fromkeys(["m0", "m1", "m2", "m3"], "b")
    assert company.holds() == {}
    company.one.audit()


async def test_kube_scheduler_is_made_to_try_again_when_gates_are_lifted_and_room_is_given_back(
    fake: FakeKube, kube: KubeClient
) -> None:
    company = Company(fake, kube)
    woken: list[str] = []
    company.one.parts.gang_controller._released = woken.append
    await held_in_vain(company)
    assert woken == ["a", "a"]  # held, and lifted
    await ended(company)
    assert woken == ["a", "a", "a"]


async def test_a_pod_group_may_state_the_size_later(company: Company) -> None:
    company.add_nodes(a=4)
    label = {GANG_LABELS[0]: "g"}
    for number in range(2):
        made = member(f"m{number}", 1, labels=label)
        del made["metadata"]["annotations"][GANG_ANNOTATION]
        del made["metadata"]["annotations"][GANG_MIN_AVAILABLE]
        company.add(made)
    await company.tend()
    assert company.gated() == ["m0", "m1"]
    group = {"metadata": {"name": "g", "namespace": "default"}, "spec": {"minMember": 2}}
    company.fake.put(PLUGIN_POD_GROUPS.path(namespace="default"), group)
    company.see()
    await company.tend()
    assert company.gated() == []


async def test_where_there_is_no_room_for_all_nothing_is_held_and_an_event_says_so(company: Company) -> None:
    company.add_nodes(a=2, b=4)
    company.add(*members(4))
    for _ in range(3):
        await company.tend()
        company.pass_time(6)
    assert company.gated() == ["m0", "m1", "m2", "m3"]
    assert company.held() == []
    await company.one.parts.reporter.idle()
    events = [event for event in company.fake.objects(EVENTS.path()) if event["reason"] == "GangWaits"]
    assert [event["involvedObject"]["name"] for event in events] == ["m0", "m1", "m2", "m3"]
    start = "there is room for 3 of 4 Pods, and once they are placed none for m3; nothing is held for them: "
    assert events[0]["message"].startswith(start)
    assert not company.one.parts.ranking.assumed.on("b")
    company.add_nodes(c=2)
    company.pass_time(60)
    await company.tend()
    assert company.gated() == []


async def test_more_pods_than_needed_do_not_hold_up_those_that_are(company: Company) -> None:
    company.add_nodes(a=4)
    company.add(*members(3, least=2))
    await company.tend()
    assert company.gated() == ["m2"]
    await company.schedule()
    assert company.bound() == {"m0": "a", "m1": "a"}
    company.add_nodes(b=2)
    company.pass_time(60)
    await company.tend()
    await company.schedule()
    assert company.bound() == {"m0": "a", "m1": "a", "m2": "b"}


NOT_COUNTED: dict[str, dict[str, Any]] = {
    "of another namespace": {"namespace": "elsewhere"},
    "of another gang": {"gang": "h"},
    "with another gate": {"schedulingGates": [{"name": "queue/waits"}]},
}


@pytest.mark.parametrize("about", NOT_COUNTED.values(), ids=NOT_COUNTED)
async def test_pods_that_cannot_be_scheduled_with_a_gang_do_not_count(company: Company, about: dict[str, Any]) -> None:
    company.add_nodes(a=8)
    company.add(*members(1, least=2), member("other", 2, **about))
    await company.tend()
    assert "m0" in company.gated()
    assert company.held() == []


@pytest.mark.parametrize(
    ("spec", "landed"),
    [
        ({}, "a"),
        ({"nodeSelector": {"zone": "x"}}, "b"),
        ({"tolerations": [{"operator": "Exists"}]}, "0-cordoned"),
    ],
)
async def test_nodes_that_a_pod_may_not_go_to_hold_nothing_for_it(
    company: Company, spec: dict[str, Any], landed: str
) -> None:
    company.add_nodes(**{"0-cordoned": 2, "0-tainted": 2, "a": 2, "b": 2})
    for name, changes in (
        ("0-cordoned", {"unschedulable": True}),
        ("0-tainted", {"taints": [{"key": "k", "effect": "NoExecute"}]}),
    ):
        node = company.fake.get(NODES.path(name))
        company.fake.put(NODES.path(), {**node, "spec": changes})
    node = company.fake.get(NODES.path("b"))
    node["metadata"]["labels"] = {"zone": "x"}
    company.fake.put(NODES.path(), node)
    company.add(*members(2, least=2, percent=100, **spec))
    await company.tend()
    await company.schedule()
    assert set(company.bound().values()) == {landed}


@pytest.mark.parametrize("lacking", ["gpu-core", "gpu-memory-ratio", "licence"])
async def test_nodes_that_lack_any_resource_of_the_pods_hold_nothing_for_them(company: Company, lacking: str) -> None:
    company.add_nodes(a=4, b=4)
    for name in "ab":
        company.state(name, **{f"{POLICY.domain}/licence": "4"})
    company.state("a", **{f"{POLICY.domain}/{lacking}": "1"})
    pods = members(2, least=2)
    for made in pods:
        made["spec"]["containers"][0]["resources"]["requests"][f"{POLICY.domain}/licence"] = "2"
    company.add(*pods)
    await company.tend()
    assert (company.one.holders("a"), company.one.holders("b")) == ([], ["m0", "m1"])


async def test_nodes_without_cpu_for_the_pods_hold_nothing_for_them(company: Company) -> None:
    company.add_nodes(a=4, b=4, c=4)
    for name, cpu in (("a", "3"), ("b", "4"), ("c", "16")):
        company.state(name, cpu=cpu, memory="64Gi", pods="10")
    for name, phase in (("runs", "Running"), ("ended", "Succeeded")):
        filler = plain_pod(name, nodeName="c")
        filler["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "14"}}
        company.one.add_pod({**filler, "status": {"phase": phase}})
    pods = members(3, least=3, percent=100)
    for made in pods:
        made["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "2"
    company.add(*pods)
    company.one.parts.cluster.check_invariants()
    await company.tend()
    held = {node: company.one.holders(node) for node in "abc"}
    assert sorted(map(len, held.values())) == [0, 1, 2]
    assert len(held["b"]) == 2
    company.add(member("more", 4, 100), member("most", 4, 100))
    for made in (company.one.pod("more"), company.one.pod("most")):
        made["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "2"
        company.add(made)
    await company.tend()
    assert sum(len(company.one.holders(node)) for node in "abc") == 4  # the last CPUs
    company.pass_time(60)
    await company.tend()
    company.pass_time(10)
    await company.tend()
    await company.one.parts.reporter.idle()
    events = [event["message"] for event in company.fake.objects(EVENTS.path()) if event["reason"] == "GangWaits"]
    assert any("too little cpu is left on 3 of the nodes" in message for message in events)


# What kube-scheduler asks


async def test_where_room_is_held_elsewhere_the_answer_says_where(company: Company) -> None:
    await held_in_vain(company)
    company.add_nodes(b=8, c=8)
    extender = company.one.parts.extender
    answered = extender.filter({"Pod": company.one.pod("m0"), "NodeNames": ["b", "c"]})
    assert (answered["NodeNames"], answered["FailedNodes"]) == (
        [],
        dict.fromkeys("bc", "room for its gang is held on a"),
    )
    answered = extender.filter({"Pod": company.one.pod("m0"), "NodeNames": ["b", "a", "c"]})
    assert answered["NodeNames"] == ["a"]


async def test_nobody_is_evicted_for_one_pod_of_a_whole_gang(company: Company) -> None:
    company.add_nodes(a=2)
    company.add(gpu_pod("low", 200))
    await company.schedule()
    company.add(member("m0", 2, 200, priority=10))
    proposed = {"a": {"Pods": [{"UID": "uid-low"}], "NumPDBViolations": 0}}
    args = {"Pod": company.one.pod("m0"), "NodeNameToMetaVictims": proposed}
    assert company.one.parts.extender.preempt(args) == {"NodeNameToMetaVictims": {}}


async def test_where_gangs_need_not_be_whole_their_pods_are_scheduled_one_by_one(
    fake: FakeKube, kube: KubeClient
) -> None:
    company = Company(fake, kube, settings=without(SETTINGS))
    company.add_nodes(a=2)
    company.add(*members(2, least=2, schedulingGates=[]))
    for name in ("m0", "m1"):
        company.one.change_pod(name, spec={"schedulingGates": None})
    company.see()
    waiting = await company.schedule()
    assert (company.bound(), set(waiting)) == ({"m0": "a"}, {"m1"})


# What may go wrong


async def test_a_node_that_was_taken_meanwhile_costs_the_whole_plan(company: Company) -> None:
    company.add_nodes(a=2, b=2)
    company.add(*members(2, least=2))
    company.one.add_pod(gpu_pod("quick", 200))
    company.one.see()
    other = Company(company.fake, company.one.kube)
    other.see()
    assert (await other.one.bind("quick", "b")).allowed  # the first replica does not see it
    await company.one.parts.gang_controller.round()
    assert company.held()[0].name == "quick"
    assert (len(company.held()), company.gated()) == (1, ["m0", "m1"])


async def test_a_write_that_fails_leaves_no_half_of_a_plan(company: Company) -> None:
    company.add_nodes(a=2, b=2)
    company.add(*members(2, least=2))
    company.fake.faults.add("create", "nodeallocations", Fault(), answer(500))
    await company.tend(rounds=1)
    assert company.gated() == ["m0", "m1"]
    assert company.held() == []
    company.pass_time(60)
    await company.tend()
    assert company.gated() == []


async def test_a_write_whose_answer_is_lost_is_built_upon_once_it_is_settled(company: Company) -> None:
    company.add_nodes(a=2, b=2)
    company.add(*members(2, least=2))
    company.fake.faults.add("create", "nodeallocations", Fault(), lose_answer())
    await company.tend()
    assert (len(company.holds()), company.gated()) == (1, ["m0", "m1"])
    company.pass_time(SETTLE_S + 1)
    await company.tend()
    assert company.gated() == []
    assert len(set(company.holds().values())) == 1
    await company.schedule()
    assert sorted(company.bound().values()) == ["a", "b"]


def gated(*names: str, uid: str = "uid-1") -> Any:
    """A Pod with these gates."""
    made = member("p", 2)
    made["metadata"]["uid"] = uid
    made["spec"]["schedulingGates"] = [{"name": name} for name in names]
    return made


@pytest.mark.parametrize(
    "now",
    [
        pytest.param(None, id="gone"),
        pytest.param(gated(GANG_GATE, uid="uid-2"), id="created again"),
        pytest.param(gated(), id="without the gate"),
        pytest.param(gated("other/gate", GANG_GATE), id="behind another gate"),
    ],
)
async def test_a_gate_is_lifted_of_the_same_pod_that_has_it_first_and_of_no_other(
    fake: FakeKube, kube: KubeClient, now: Any
) -> None:
    known = read_pod_info(gated(GANG_GATE))
    assert known
    if now is not None:
        fake.put(PODS.path(namespace="default"), now)

    await kube_lift(kube)(known)

    assert [gates(one) for one in fake.objects(PODS.path())] == ([] if now is None else [gates(now)])


async def test_a_gate_that_is_lifted_leaves_the_gates_after_it(fake: FakeKube, kube: KubeClient) -> None:
    made = gated(GANG_GATE, "other/gate")
    fake.put(PODS.path(namespace="default"), made)
    known = read_pod_info(made)
    assert known
    for _ in range(2):
        await kube_lift(kube)(known)
        assert gates(fake.get(PODS.path("p", "default"))) == ["other/gate"]


async def test_a_gang_whose_gates_cannot_be_lifted_is_left_alone_for_a_while_and_the_others_go_on(
    company: Company,
) -> None:
    company.add_nodes(a=8)
    company.add(*members(2, least=2), *(member(f"h{number}", 2, gang="h") for number in range(2)))
    company.fake.faults.add("patch", "pods", answer(403))
    await company.tend(rounds=1)
    assert company.gated() == ["m0", "m1"]
    asked = len(company.fake.seen("patch", "pods"))
    await company.tend()
    assert len(company.fake.seen("patch", "pods")) == asked
    company.pass_time(2)
    await company.tend()
    assert company.gated() == []


async def test_a_replica_that_is_not_healthy_tends_nothing(company: Company) -> None:
    asked = 0

    def healthy() -> bool:
        nonlocal asked
        asked += 1
        if asked > 1:
            raise EOFError
        return False

    company.add_nodes(a=8)
    company.add(*members(2, least=2))
    with pytest.raises(EOFError):
        await company.one.parts.gang_controller.run(healthy)
    assert company.held() == []


async def test_pods_without_devices_are_left_alone(company: Company) -> None:
    company.add_nodes(a=2)
    company.add(plain_pod("p", annotations={**GANG, GANG_TOGETHER: "true"}))
    await company.tend()
    assert company.fake.objects(NODE_ALLOCATIONS.path()) == []


async def test_a_search_that_takes_long_keeps_what_it_has_found(company: Company) -> None:
    company.add_nodes(**{f"n{number:02}": 8 for number in range(18)})
    company.add(*(member(f"m{number:03}", 140, 100) for number in range(140)))
    assumed = company.one.parts.ranking.assumed
    assumed._clock = iter(range(10_000)).__next__  # each look at the clock takes a second
    assumed._keep = 220

    async def expire() -> None:
        while True:
            assumed.expire()
            await asyncio.sleep(0)

    expiring = asyncio.create_task(expire())
    await company.tend(rounds=1)
    expiring.cancel()
    assert len(company.holds()) == 140
    company.one.audit()


def test_of_the_nodes_that_refuse_a_gangs_pod_three_say_why_and_those_that_lack_something_are_counted() -> None:
    ranked = Ranked((), {f"n{number}": Refusal(f"n{number}: too full") for number in range(5)})
    full = "n0: too full; n1: too full; n2: too full"
    assert room._why(ranked, {}) == full
    short = "too little cpu is left on 2 of the nodes; too little memory is left on 7 of the nodes"
    assert room._why(ranked, {"memory": 7, "cpu": 2}) == f"{full}; {short}"
    assert room._why(Ranked((), {}), {"memory": 7, "cpu": 2}) == short
    assert room._why(Ranked((), {}), {}) == "it selects no node that has devices"
