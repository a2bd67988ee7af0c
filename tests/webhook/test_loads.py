"""What nodes have for Pods, and what Pods request of them in sum, ours and others, as kube-scheduler counts."""

import json
from collections.abc import Mapping
from typing import Any

import pytest
from builders import GIB, container, pod, pod_spec, sidecar_container
from world import gpu_pod, plain_pod

from allocator.vocabulary.devicetype import BUILT_IN
from webhook.ledger.ledger import Ledger
from webhook.ledger.store import MemoryStore
from webhook.view.cluster import ClusterView, SeenObjects
from webhook.view.feed import NodeFeed, PodFeed

Raw = dict[str, Any]


@pytest.fixture
def view() -> ClusterView:
    seen = SeenObjects(lambda: 0)
    return ClusterView(seen, Ledger(MemoryStore(), watched=seen.changes.touch))


@pytest.fixture
def pods(view: ClusterView) -> PodFeed:
    return PodFeed(view, lambda _pod: None, lambda _pod: None, BUILT_IN)


def asked(name: str = "main", **amounts: str) -> Raw:
    return container(name, requests=amounts)


def on(node: str, name: str, *containers: Raw, **about: Any) -> Raw:
    """A Pod of others on a node."""
    made = plain_pod(name, nodeName=node, **about)
    return {**made, "spec": {**made["spec"], "containers": [*containers]}}


# (a Pod's spec, what it counts for)

COUNTED: dict[str, tuple[Raw, Mapping[str, int]]] = {
    "containers are added up": (
        pod_spec(asked("a", cpu="500m", memory="1Gi"), asked("b", cpu="1", memory="2Gi")),
        {"cpu": 1500, "memory": 3 * GIB},
    ),
    "an init container counts where it is greater": (
        pod_spec(asked(cpu="1", memory="3Gi"), init=[asked("i", cpu="4"), asked("j", cpu="2", memory="1Gi")]),
        {"cpu": 4000, "memory": 3 * GIB},
    ),
    "a sidecar counts beside the containers": (
        pod_spec(asked(cpu="1"), init=[sidecar_container("s", resources={"requests": {"cpu": "250m"}})]),
        {"cpu": 1250},
    ),
    "the overhead is added": (pod_spec(asked(cpu="1"), overhead={"cpu": "100m"}), {"cpu": 1100}),
    "resources of the Pod as a whole take precedence": (
        pod_spec(asked(cpu="1"), resources={"requests": {"cpu": "3"}}),
        {"cpu": 3000},
    ),
    "disk counts, and what other device plugins give": (
        pod_spec(asked(**{"ephemeral-storage": "10Gi", "example.com/nic": "2"})),
        {"ephemeral-storage": 10 * GIB, "example.com/nic": 2},
    ),
    "nothing requested": (pod_spec(asked()), {}),
}


@pytest.mark.parametrize(("spec", "expected"), COUNTED.values(), ids=COUNTED)
def test_a_pod_of_others_counts_as_kube_scheduler_counts(
    view: ClusterView, pods: PodFeed, spec: Raw, expected: Mapping[str, int]
) -> None:
    pods.put({**pod(name="p", uid="uid-p"), "spec": {**spec, "nodeName": "n1"}})
    pods.put(on("n2", "q", asked(cpu="7")))
    assert view.loads.requested("n1") == {**expected, "pods": 1}
    assert view.loads.requested("n2") == {"cpu": 7000, "pods": 1}
    assert view.loads.requested("n3") == {}


def test_pods_of_ours_and_of_others_are_summed_up(view: ClusterView, pods: PodFeed) -> None:
    pods.put(on("n1", "a", asked(cpu="1", memory="1Gi")))
    pods.put(on("n1", "b", asked(cpu="2")))
    ours = gpu_pod("c", 50, nodeName="n1")
    ours["spec"]["containers"].append(asked("side", cpu="500m", memory="1Gi"))
    pods.put(ours)
    sums = view.loads.requested("n1")
    assert (sums["cpu"], sums["memory"], sums["pods"]) == (3500, 2 * GIB, 3)
    assert sums["kubernetes.io/gpu-core"] == 50


# (the Pod after, what is requested of n1 and of n2)

CHANGED: dict[str, tuple[Raw | None, Mapping[str, int], Mapping[str, int]]] = {
    "deleted": (None, {}, {}),
    "succeeded": ({**on("n1", "p", asked(cpu="1")), "status": {"phase": "Succeeded"}}, {}, {}),
    "failed": ({**on("n1", "p", asked(cpu="1")), "status": {"phase": "Failed"}}, {}, {}),
    "running": (
        {**on("n1", "p", asked(cpu="1")), "status": {"phase": "Running"}},
        {"cpu": 1000, "pods": 1},
        {},
    ),
    "being deleted, it still runs": (
        on("n1", "p", asked(cpu="1"), deletionTimestamp="2026-01-01T00:00:00Z"),
        {"cpu": 1000, "pods": 1},
        {},
    ),
    "resized in place": (on("n1", "p", asked(cpu="3", memory="1Gi")), {"cpu": 3000, "memory": GIB, "pods": 1}, {}),
    "another of its name, elsewhere": (on("n2", "p", asked(cpu="5"), uid="uid-2"), {}, {"cpu": 5000, "pods": 1}),
    "another of its name, not bound": (on("", "p", asked(cpu="5"), uid="uid-2"), {}, {}),
    "with a quantity that cannot be read": (on("n1", "p", asked(cpu="much", memory="1Gi")), {}, {}),
}


@pytest.mark.parametrize(("after", "first", "second"), CHANGED.values(), ids=CHANGED)
def test_sums_follow_a_pod(
    view: ClusterView, pods: PodFeed, after: Raw | None, first: Mapping[str, int], second: Mapping[str, int]
) -> None:
    before = on("n1", "p", asked(cpu="1"))
    pods.put(before)
    if after is None:
        pods.drop(before)
    else:
        pods.put(after)
    assert (view.loads.requested("n1"), view.loads.requested("n2")) == (first, second)
    view.check_invariants()


def test_a_pod_of_ours_that_is_resized_counts_by_its_new_size(view: ClusterView, pods: PodFeed) -> None:
    for memory in ("1Gi", "2Gi"):
        ours = gpu_pod("c", 50, nodeName="n1")
        ours["spec"]["containers"].append(asked("side", memory=memory))
        pods.put(ours)
    assert view.loads.requested("n1")["memory"] == 2 * GIB


def test_pods_that_a_list_does_not_name_count_no_more(view: ClusterView, pods: PodFeed) -> None:
    for name in ("a", "b", "c"):
        pods.put(on("n1", name, asked(cpu="1")))
    pods.begin_list()
    pods.put(on("n1", "b", asked(cpu="1")))
    pods.end_list()
    assert view.loads.requested("n1") == {"cpu": 1000, "pods": 1}


# (the Node's status, what it has for Pods)

HAS: dict[str, tuple[Raw, Mapping[str, int]]] = {
    "allocatable": (
        {"capacity": {"cpu": "4"}, "allocatable": {"cpu": "3500m", "memory": "1Gi", "pods": "110"}},
        {"cpu": 3500, "memory": GIB, "pods": 110},
    ),
    "no allocatable, so the API server states the capacity": ({"capacity": {"cpu": "4"}}, {"cpu": 4000}),
    "nothing": ({}, {}),
    "a quantity that cannot be read": ({"allocatable": {"cpu": "much", "memory": "1Gi"}}, {}),
}


@pytest.mark.parametrize(("status", "expected"), HAS.values(), ids=HAS)
def test_what_nodes_have_for_pods_is_known_until_they_are_gone(
    view: ClusterView, status: Raw, expected: Mapping[str, int]
) -> None:
    feed = NodeFeed(view, BUILT_IN)
    for name, said in (("n1", {"allocatable": {"cpu": "1"}}), ("n2", {"allocatable": {"cpu": "2"}}), ("n1", status)):
        feed.put({"metadata": {"name": name, "uid": name}, "status": said})
    assert view.loads.allocatable("n1") == expected
    assert view.loads.allocatable("n2") == {"cpu": 2000}
    feed.drop({"metadata": {"name": "n2", "uid": "n2"}})
    assert view.loads.allocatable("n2") == {}


def test_only_what_changes_a_figure_is_published(view: ClusterView, pods: PodFeed) -> None:
    reader, others = view.loads.changes.reader(), view.changes.reader()
    pods.put(on("n1", "p", asked(cpu="1")))
    assert list(reader.drain()) == ["n1"]
    pods.put({**on("n1", "p", asked(cpu="1")), "status": {"phase": "Running"}})
    pods.put(on("", "q", asked(cpu="1")))
    assert list(reader.drain()) == []
    pods.put(on("n2", "p", asked(cpu="1"), uid="uid-2"))
    assert sorted(reader.drain()) == ["n1", "n2"]
    assert list(others.drain()) == [], "decisions do not depend on it"


def test_what_pods_will_request_where_they_hold_something_counts_until_they_are_bound(
    view: ClusterView, pods: PodFeed
) -> None:
    pods.put(on("n1", "other", asked(cpu="1")))
    for name, node, phase in (
        ("a", "", "Pending"),
        ("b", "n2", "Running"),
        ("c", "n1", "Running"),
        ("d", "", "Failed"),
    ):
        ours = gpu_pod(name, 50, nodeName=node)
        ours["spec"]["containers"].append(asked("side", cpu="2"))
        pods.put({**ours, "status": {"phase": phase}})
    holders = ["uid-a", "uid-b", "uid-c", "uid-d", "unknown"]
    assert view.requested("n1", holders)["cpu"] == 1000 + 2000 + 2000
    assert view.requested("n1", [])["cpu"] == 1000 + 2000
    assert view.requested("n3", []) == {}


def test_more_than_an_integer_of_the_api_holds_counts_as_much_and_is_taken_away_again(
    view: ClusterView, pods: PodFeed
) -> None:
    huge = on("n1", "huge", *[asked(f"c{number}", memory=str(2**63 - 1)) for number in range(3)])
    pods.put(on("n1", "other", asked(memory="1Gi")))
    pods.put(huge)
    assert view.loads.requested("n1")["memory"] == 2**63 - 1 + GIB
    pods.drop(huge)
    assert view.loads.requested("n1") == {"memory": GIB, "pods": 1}


def test_what_pods_of_others_and_nodes_say_alike_is_kept_once(view: ClusterView, pods: PodFeed) -> None:
    feed = NodeFeed(view, BUILT_IN)
    for number in range(3):
        made = json.loads(json.dumps(on("n1", f"p{number}", asked(cpu=f"{number + 1}", memory="1Gi"))))
        pods.put(made)
        feed.put(
            json.loads(json.dumps({"metadata": {"name": f"n{number}", "uid": "u"}, "status": HAS["allocatable"][0]}))
        )
    kept = list(view.pods._strangers.values())
    for what in (lambda one: one.node, lambda one: one.resources):
        assert len({id(what(one)) for one in kept}) == 1
    assert len({id(view.loads.allocatable(f"n{number}")) for number in range(3)}) == 1


@pytest.mark.parametrize("ours", [False, True])
def test_names_of_which_a_pod_requests_nothing_are_not_kept(view: ClusterView, pods: PodFeed, ours: bool) -> None:  # noqa: FBT001
    """Any node has room for a Pod that asks for nothing of thousands of resources; each Pod may name others."""
    named = {f"example.com/r{number}": "0" for number in range(1000)} | ({"nvidia.com/gpu": "1"} if ours else {})
    made = on("n1", "p", asked(cpu="1", **named), asked("more", **named))
    pods.put(made)
    [kept] = [*(one.counted for one in view.pods.all()), *(one.counted for one in view.pods._strangers.values())]
    assert kept is not None
    assert [name for name, _ in kept.requests if name.startswith("example.com")] == []
    assert view.loads.requested("n1")["cpu"] == 1000


def test_a_pod_of_others_takes_nothing_from_what_the_others_request(view: ClusterView, pods: PodFeed) -> None:
    pods.put(on("n1", "other", asked(memory="1Gi")))
    pods.put(on("n1", "odd", asked(memory="-2Gi")))
    assert view.loads.requested("n1") == {"memory": GIB, "pods": 2}


# (Pods, what further Pods request in sum, the resource that the node lacks)

ROOMY = {"cpu": "4", "memory": "8Gi", "pods": "3", "example.com/licence": "1"}
LACKS: dict[str, tuple[list[Raw], list[tuple[str, int]], str]] = {
    "an empty node": ([], [("cpu", 4000), ("memory", 8 * GIB), ("pods", 1)], ""),
    "more CPU than there is": ([], [("cpu", 4001), ("memory", 9 * GIB)], "cpu"),
    "more memory than there is": ([], [("cpu", 1), ("memory", 8 * GIB + 1)], "memory"),
    "what the node does not state": ([], [("ephemeral-storage", 1)], "ephemeral-storage"),
    "an extended resource": ([], [("example.com/licence", 1)], ""),
    "more of an extended resource than there is": ([], [("example.com/licence", 2)], "example.com/licence"),
    "an extended resource that others have": (
        [on("n1", "x", asked(**{"example.com/licence": "1"}))],
        [("example.com/licence", 1)],
        "example.com/licence",
    ),
    "an extended resource that the node does not state": ([], [("example.com/seat", 1)], "example.com/seat"),
    "what is ignored": ([], [("example.com/ignored", 1)], ""),
    "others are there": (
        [on("n1", "x", asked(cpu="1500m")), on("n1", "y", asked(cpu="1"))],
        [("cpu", 1501)],
        "cpu",
    ),
    "others are there, and it fits": (
        [on("n1", "x", asked(cpu="1500m")), on("n1", "y", asked(cpu="1"))],
        [("cpu", 1500), ("pods", 1)],
        "",
    ),
    "too many Pods": ([on("n1", name, asked()) for name in "xyz"], [("pods", 1)], "pods"),
    "others are elsewhere": ([on("n2", "x", asked(cpu="4")), on("", "y", asked(cpu="4"))], [("cpu", 4000)], ""),
    "several requests are added up": ([], [("cpu", 2000), ("pods", 1), ("cpu", 2001)], "cpu"),
    "several requests fit": ([], [("cpu", 2000), ("pods", 1), ("cpu", 2000)], ""),
    "more is taken than there is, and none of it is asked": (
        [on("n1", "x", asked(cpu="9"))],
        [("cpu", 0), ("memory", 1)],
        "",
    ),
}


@pytest.mark.parametrize(("there", "more", "lacking"), LACKS.values(), ids=LACKS)
def test_a_node_lacks_what_it_has_too_little_left_of(
    view: ClusterView, pods: PodFeed, there: list[Raw], more: list[tuple[str, int]], lacking: str
) -> None:
    feed = NodeFeed(view, BUILT_IN)
    for name, has in (("n1", ROOMY), ("n2", {"cpu": "100"})):
        feed.put({"metadata": {"name": name, "uid": name}, "status": {"allocatable": has}})
    for one in there:
        pods.put(one)
    assert view.loads.lacks("n1", more, {"example.com/ignored", "example.com/licence"}) == lacking
    assert view.loads.lacks("unknown", [("cpu", 1)]) == "cpu"
