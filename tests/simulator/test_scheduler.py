"""The stand-in for kube-scheduler: which nodes it looks at, what it remembers, and how it calls the extender."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trials import examples

from allocator.amounts import pod_amounts
from console.simulator import api
from console.simulator.scheduler import KubeScheduler, allocatable, candidate, grouped, why_not
from webhook.settings import SchedulerNames

Raw = dict[str, Any]
OURS = "koord-scheduler"
THING, MANAGED = "x.com/thing", "x.com/managed"
TAINT = {"key": "k", "effect": "NoSchedule"}


class Extender:
    """Answers as the webhook, and keeps the names that it is asked about.

    Args:
        failed: why it refuses nodes.
        unresolvable: the same where no preemption helps.
        scores: of the others; 0 for those that are not named.
        error: what it fails with.
    """

    def __init__(
        self,
        failed: Mapping[str, str] | None = None,
        unresolvable: Mapping[str, str] | None = None,
        scores: Mapping[str, int] | None = None,
        error: str = "",
    ) -> None:
        self.failed, self.unresolvable, self.scores = failed or {}, unresolvable or {}, scores or {}
        self.error = error
        self.calls: list[tuple[str, list[str]]] = []

    async def post(self, path: str, body: Mapping[str, Any]) -> Any:
        names = [*body["NodeNames"]]
        self.calls.append((path, names))
        if path == api.PRIORITIZE:
            return [{"Host": name, "Score": self.scores.get(name, 0)} for name in names]
        failed, unresolvable = (
            {name: why for name, why in of.items() if name in names} for of in (self.failed, self.unresolvable)
        )
        left = [name for name in names if name not in failed and name not in unresolvable]
        return {
            "NodeNames": left,
            "FailedNodes": failed,
            "FailedAndUnresolvableNodes": unresolvable,
            "Error": self.error,
        }


def node(name: str, cpu: Any = 4, *taints: Any, labels: Any = None, **amounts: str) -> Raw:
    has = {"cpu": str(cpu), "pods": "9", **{key.replace("_", "/"): text for key, text in amounts.items()}}
    metadata = {"name": name, "labels": dict(labels or {})}
    return {"metadata": metadata, "spec": {"taints": [*taints]}, "status": {"allocatable": has}}


def pod(cpu: int = 1, name: str = "p", scheduler: str = "other", on: str = "", **spec: Any) -> Raw:
    amounts = {"cpu": str(cpu), **spec.pop("amounts", {})}
    containers = [{"name": "c", "resources": {"requests": amounts}}]
    bound = {"nodeName": on} if on else {}
    metadata = {"name": name, "namespace": "d"}
    return {"metadata": metadata, "spec": {"schedulerName": scheduler, "containers": containers, **bound, **spec}}


def scheduler(*nodes: Raw, way: Extender | None = None, plain: Any = None) -> KubeScheduler:
    made = KubeScheduler(way or Extender(), SchedulerNames(OURS), min, frozenset({MANAGED}), plain)
    for one in nodes:
        made.put_node(one, ())
    return made


# The extender


async def test_the_extender_is_asked_about_the_nodes_that_have_enough_and_the_best_of_its_scores_wins() -> None:
    way = Extender(failed={"b": "b: no card"}, scores={"a": 3, "c": 7, "d": 7})
    made = scheduler(*(node(name) for name in "dacbe"), node("small", 0), way=way)
    assert await made.find(pod(scheduler=OURS)) == "c"
    assert way.calls == [(api.FILTER, ["a", "b", "c", "d", "e"]), (api.PRIORITIZE, ["a", "c", "d", "e"])]


@pytest.mark.parametrize(("names", "scored"), [("a", False), ("ab", True)])
async def test_one_node_alone_is_not_scored(names: str, *, scored: bool) -> None:
    way = Extender(failed={"x": "full"})
    made = scheduler(*(node(name) for name in f"{names}x"), way=way)
    assert await made.find(pod(scheduler=OURS)) == "a"
    assert [path for path, _ in way.calls] == [api.FILTER, *[api.PRIORITIZE] * scored]


async def test_the_reasons_of_the_extender_stand_beside_its_own() -> None:
    way = Extender(failed={"a": "a: no card"}, unresolvable={"b": "no such model"})
    made = scheduler(node("a"), node("b"), node("c", 0), node("d", 9, TAINT), way=way)
    assert await made.find(pod(scheduler=OURS)) == (
        "a: no card",
        "b: no such model",
        "c: not enough cpu: 1 requested, 0 of 0 free",
        "d: the Pod does not tolerate the taint k:NoSchedule",
    )


async def test_the_extender_is_not_asked_about_a_pod_for_which_no_node_has_enough() -> None:
    way = Extender()
    assert await scheduler(node("a", 0), way=way).find(pod(scheduler=OURS)) == (
        "a: not enough cpu: 1 requested, 0 of 0 free",
    )
    assert way.calls == []


async def test_a_node_that_states_a_resource_no_longer_leaves_it_to_the_extender() -> None:
    made = scheduler(node("a", **{"x.com_managed": "1"}))
    wanted = pod(scheduler=OURS, amounts={MANAGED: "2"})
    found = []
    every: list[Raw] = [{}, {"x.com_managed": "2"}, {"x.com_managed": "1"}, {}]
    for stated in every:
        found.append(await made.find(wanted))
        made.put_node(node("a", **stated), ())
    full = (f"a: not enough {MANAGED}: 2 requested, 1 of 1 free",)
    assert [*found, await made.find(wanted)] == [full, "a", "a", full, "a"]


async def test_what_the_extender_fails_with_is_told_of_each_node() -> None:
    made = scheduler(node("a"), node("b"), way=Extender(error="too late"))
    assert await made.find(pod(scheduler=OURS)) == ("a, b: the extender failed: too late",)


async def test_a_pod_that_fits_nowhere_is_asked_about_again_when_something_has_changed() -> None:
    way = Extender(failed={"a": "full"})
    made = scheduler(node("a"), way=way)
    asks = []
    for step in (
        lambda: None,
        lambda: None,
        lambda: made.count(pod(name="x", on="a")),
        lambda: made.count(pod(name="y", on="a", status=None)),
        lambda: made.put_node(node("a"), ()),
    ):
        step()
        assert await made.find(pod(scheduler=OURS)) == ("a: full",)
        asks.append(len(way.calls))
    assert asks == [1, 1, 2, 3, 4]
    labelled = pod(scheduler=OURS)
    labelled["metadata"]["labels"] = {"a": "b"}
    for again in (labelled, labelled, pod(scheduler=OURS, name="other")):
        await made.find(again)
    await made.find(pod(scheduler=OURS), "a")
    assert len(way.calls) == 6, "of another template, and where one node alone is asked about"
    ended = {**pod(name="z", on="a"), "status": {"phase": "Failed"}}
    made.count(ended)
    made.count(pod(name="waits"))
    await made.find(labelled)
    assert len(way.calls) == 6


# Pods of other schedulers


async def test_a_pod_of_another_scheduler_goes_to_the_first_node_or_where_the_caller_chooses() -> None:
    nodes = [node("b", 8, memory="8Gi"), node("a", 4, memory="8Gi"), node("c", 8, memory="8Gi")]
    way = Extender()
    for name in ("a-scheduler", "z-scheduler"):
        assert await scheduler(*nodes, way=way).find(pod(scheduler=name)) == "a"
    chosen = scheduler(*nodes, way=way, plain=lambda _spec, _asked, fitting, _used: fitting[-1].name)
    assert await chosen.find(pod()) == "c"
    assert way.calls == []
    assert await scheduler(plain=lambda *_: "none").find(pod()) == ("there is no Node",)


async def test_a_pod_with_gates_waits_for_all_of_them() -> None:
    gated = pod(schedulingGates=[{"name": "one"}, {"name": "two"}])
    assert await scheduler(node("a")).find(gated) == ("the Pod waits for its schedulingGates: one, two",)


def of_node(name: str) -> Raw:
    """The affinity that a DaemonSet's Pod has."""
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [name]}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    return {"affinity": {"nodeAffinity": required}}


@pytest.mark.parametrize(
    ("wanted", "only", "found"),
    [
        ("b", None, ("b: not enough cpu: 9 requested, 4 of 4 free",)),
        ("b", "b", ("b: not enough cpu: 9 requested, 4 of 4 free",)),
        ("b", "a", ("a: the Pod's nodeSelector or required node affinity does not match the node's labels",)),
        (
            "gone",
            None,
            ("a, b, c: the Pod's nodeSelector or required node affinity does not match the node's labels",),
        ),
        ("", "c", ("c: not enough cpu: 9 requested, 4 of 4 free",)),
    ],
)
async def test_of_a_daemon_set_s_pod_its_own_node_alone_is_told(
    wanted: str, only: str | None, found: tuple[str, ...]
) -> None:
    made = scheduler(node("a"), node("b"), node("c"))
    assert await made.find(pod(9, **(of_node(wanted) if wanted else {})), only) == found


async def test_a_resource_that_is_left_to_the_extender_is_judged_where_a_node_states_it() -> None:
    asks: Raw = {"amounts": {MANAGED: "2"}}
    made = scheduler(node("a", **{"x.com_managed": "1"}), node("b"))
    assert await made.find(pod(scheduler=OURS, **asks)) == "b"
    assert await made.find(pod(**asks)) == (
        f"a: not enough {MANAGED}: 2 requested, 1 of 1 free",
        f"b: not enough {MANAGED}: 2 requested, and the node states none in status.allocatable",
    )
    assert made.would_fit(pod(scheduler=OURS, **asks), "b", ())
    assert not made.would_fit(pod(scheduler=OURS, **asks), "a", ())
    assert not made.would_fit(pod(**asks), "b", ())


# What is remembered


async def test_a_node_that_fills_up_is_left_out_however_many_amounts_were_asked_for() -> None:
    made = scheduler(node("a", 1000), node("b", 1000))
    assert await made.find(pod(1)) == "a"
    for cpu in range(2, 70):
        assert await made.find(pod(cpu), "a") == "a"
    made.count(pod(1000, "large", on="a"))
    assert await made.find(pod(1)) == "b"


async def search(nodes: Mapping[str, Raw], there: Sequence[Raw], wanted: Raw, only: str | None) -> Any:
    """The same by looking at each node."""
    reasons = {}
    for name in sorted(nodes) if only is None else [only]:
        used: Counter[str] = Counter()
        for one in there:
            used.update(pod_amounts(one["spec"]) if one["spec"]["nodeName"] == name else {})
        has = allocatable(nodes[name], ())
        why = why_not(wanted["spec"], pod_amounts(wanted["spec"]), candidate(nodes[name], has), used)
        if why is None:
            return name
        reasons[name] = why
    return grouped(reasons) or ("there is no Node",)


NAMES = st.sampled_from("abcd")
STEPS = st.one_of(
    st.tuples(st.just("node"), NAMES, st.integers(0, 4), st.booleans(), st.sampled_from(["", "1", "2"])),
    st.tuples(st.just("pod"), NAMES, st.integers(0, 3), st.integers(0, 1)),
    st.tuples(st.just("forget"), st.integers(0, 5)),
    st.tuples(st.just("find"), st.integers(0, 4), st.integers(0, 2), st.booleans(), st.none() | NAMES),
)


@settings(max_examples=examples(150), deadline=None)
@given(st.lists(STEPS, min_size=4, max_size=40))
async def test_whatever_is_remembered_the_node_is_the_one_that_a_search_finds(steps: list[tuple[Any, ...]]) -> None:
    made, nodes, there = scheduler(), dict[str, Raw](), list[Raw]()
    for kind, *of in steps:
        if kind == "node":
            name, cpu, tainted, things = of
            nodes[name] = node(
                name, cpu, *[TAINT] * tainted, labels={"z": name}, **({"x.com_thing": things} if things else {})
            )
            made.put_node(nodes[name], ())
        elif kind == "pod":
            name, cpu, things = of
            there.append(pod(cpu, on=name, amounts={THING: str(things)}))
            made.count(there[-1])
        elif kind == "forget":
            if of[0] < len(there):
                made.forget(there.pop(of[0]))
        else:
            cpu, things, selects, only = of
            wanted = pod(cpu, amounts={THING: str(things)}, nodeSelector={"z": "b"} if selects else {})
            if only is None or only in nodes:
                assert await made.find(wanted, only) == await search(nodes, there, wanted, only)
