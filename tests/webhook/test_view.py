"""The cluster view after any history: its indices agree, and it equals a new view of the same objects."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import machines_cpu
import pytest
from builders import GIB, container, device_entry, device_object, gpu, holding, part
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from world import BEGINNING, cpu_pod, gpu_pod, koordinator_annotation, plain_pod

from allocator.vocabulary.devicetype import BUILT_IN
from allocator.vocabulary.holdings import InvariantError
from allocator.vocabulary.names import GPU_CORE
from allocator.wire.deviceobject import NodeDevices
from allocator.wire.gang import GANG_ANNOTATION, GANG_LABELS
from allocator.wire.nodetopology import NodeTopology, write_node_topology
from webhook.ledger.ledger import Ledger
from webhook.ledger.store import MemoryStore, Record
from webhook.settings import SchedulerNames
from webhook.view.changes import Changes
from webhook.view.cluster import ClusterView, SeenObjects
from webhook.view.feed import DeviceFeed, NodeFeed, PodFeed, TopologyFeed
from webhook.view.nodes import NodeFacts, NodeTable
from webhook.view.podinfo import OtherPod, PodInfo, read_pod_info

Raw = dict[str, Any]
NODES = ("n1", "n2")
POD_NAMES = ("a", "b", "c")
HALF = {"kubernetes.io/gpu-core": "50", "kubernetes.io/gpu-memory-ratio": "50"}
STATUSES: list[Raw] = [
    {},
    {"capacity": {"cpu": "4"}},
    {"capacity": {"cpu": "4"}, "allocatable": {"cpu": "3500m", "memory": "1Gi"}},
    {"allocatable": {"cpu": "much"}},
]
SELECTIONS: list[Raw] = [{}, {"nodeSelector": {"pool": "x"}}, {"nodeSelector": {"pool": "y"}}]


def view_on_a_ledger() -> tuple[ClusterView, Ledger]:
    seen = SeenObjects(lambda: BEGINNING)
    ledger = Ledger(MemoryStore(), watched=seen.changes.touch)
    return ClusterView(seen, ledger), ledger


def info(obj: Raw) -> PodInfo:
    made = read_pod_info(obj)
    assert made
    return made


# --- changes


def test_each_reader_takes_every_change_once() -> None:
    changes = Changes()
    early = changes.reader()
    for node in ("n1", "n2", "n1"):
        changes.touch(node)
    late = changes.reader(start=["n3"])
    changes.touch("n2")
    assert sorted(early.drain()) == ["n1", "n2"]
    assert sorted(late.drain()) == ["n2", "n3"]
    assert list(early.drain()) == list(late.drain()) == []
    changes.touch("n1")
    assert list(early.drain()) == list(late.drain()) == ["n1"]


def test_what_a_reader_did_not_get_to_comes_the_next_time() -> None:
    changes = Changes()
    reader = changes.reader()
    for node in ("n1", "n2", "n3"):
        changes.touch(node)
    for node in reader.drain():
        assert node == "n3"
        break
    changes.touch("n4")
    assert sorted(reader.drain()) == ["n1", "n2", "n4"]


async def test_all_who_wait_for_news_are_woken_by_the_next_change_alone() -> None:
    changes = Changes()
    changes.touch("before")
    waiting = [asyncio.ensure_future(changes.news()) for _ in range(2)]
    await asyncio.sleep(0)
    assert not any(one.done() for one in waiting)
    changes.touch("n1")
    changes.touch("n2")
    await asyncio.gather(*waiting)
    again = asyncio.ensure_future(changes.news())
    await asyncio.sleep(0)
    assert not again.done()
    changes.touch("n1")
    await again


async def test_one_who_gives_up_waiting_takes_the_news_from_nobody() -> None:
    changes = Changes()
    leaving, staying = (asyncio.ensure_future(changes.news()) for _ in range(2))
    await asyncio.sleep(0)
    leaving.cancel()
    await asyncio.sleep(0)
    changes.touch("n1")
    await staying
    assert leaving.cancelled()


# --- nodes


def test_a_node_is_known_while_it_has_anything_to_give() -> None:
    refitted: list[str] = []
    nodes = NodeTable(Changes(), refitted.append)
    nodes.put("n1", NodeFacts({}))
    assert not nodes.knows("n1")
    assert refitted == []
    nodes.put("n1", NodeFacts({}, classes=(gpu(0),)))
    assert nodes.knows("n1")
    nodes.put("n1", NodeFacts({}))
    assert not nodes.knows("n1")
    nodes.put_devices(NodeDevices("n1", (gpu(0),)))
    nodes.put_topology(NodeTopology("n1"))
    nodes.drop("n1")
    nodes.drop_devices("n1")
    assert nodes.knows("n1")
    nodes.drop_topology("n1")
    assert not nodes.knows("n1")
    assert refitted == ["n1"] * 7


def test_nodes_are_open_to_a_pod_that_selects_and_tolerates_them_if_they_are_known() -> None:
    nodes = NodeTable(Changes())
    for name, pool, closing in (
        ("n1", "x", ()),
        ("n2", "y", ()),
        ("n3", "x", (("out", "", "NoSchedule"), ("slow", "a", "NoExecute"))),
        ("n4", "x", (("out", "", "NoSchedule"),)),
        ("n5", "x", ()),
        ("unknown", "x", ()),
    ):
        nodes.put(name, NodeFacts({"pool": pool}, closing=closing))
    for name in ("n5", "n4", "n3", "n2", "n1", "n0"):
        nodes.put_devices(NodeDevices(name, (gpu(0),)))
    selection = {"nodeSelector": {"pool": "x"}}
    out, slow = {"key": "out", "operator": "Exists"}, {"key": "slow", "value": "a", "effect": "NoExecute"}
    assert nodes.open_to(selection) == ["n1", "n5"]
    assert nodes.open_to({**selection, "tolerations": [out]}) == ["n1", "n4", "n5"]
    assert nodes.open_to({**selection, "tolerations": [slow, out]}) == ["n1", "n3", "n4", "n5"]
    assert nodes.open_to({}) == ["n1", "n2", "n5"]


def test_nodes_that_a_pod_should_avoid_are_those_with_a_taint_that_it_does_not_tolerate() -> None:
    nodes = NodeTable(Changes())
    for name, shunning in (("n1", (("slow", "a"),)), ("n2", (("slow", "a"), ("hot", ""))), ("n3", ()), ("n4", ())):
        nodes.put(name, NodeFacts({}, shunning=shunning))
    slow, hot = {"key": "slow", "value": "a", "effect": "PreferNoSchedule"}, {"key": "hot", "operator": "Exists"}
    assert [nodes.shunned(one) for one in (None, [slow], [hot], [slow, hot])] == [
        {"n1", "n2"},
        {"n2"},
        {"n1", "n2"},
        set(),
    ]
    nodes.put("n1", NodeFacts({}))
    nodes.put("n3", NodeFacts({}, shunning=(("slow", "b"),)))
    assert nodes.shunned([slow]) == {"n2", "n3"}


def test_a_snapshot_of_a_node_that_loses_everything_is_empty_at_once() -> None:
    view, ledger = view_on_a_ledger()
    view.nodes.put("n1", NodeFacts({}, classes=(gpu(0),)))
    ledger.observe(Record("n1", 1, {"u": holding("u", part(gpu(0), 50))}))
    assert len(view.snapshot("n1").devices) == 1
    view.nodes.put("n1", NodeFacts({}))
    view.check_invariants()
    assert view.snapshot("n1").devices == ()


# --- Pods of one name, one after another


def test_pods_of_another_namespace_do_not_count_as_pods_of_a_gang() -> None:
    view, _ = view_on_a_ledger()
    for name, namespace, gang in (("a", "default", "g"), ("b", "default", "default/g"), ("c", "other", "default/g")):
        made = gpu_pod(name, uid=f"uid-{name}", namespace=namespace, annotations={GANG_ANNOTATION: gang})
        view.pods.put(info(made))
    assert view.pods.gang("default/g") == {"uid-a": "", "uid-b": ""}


@pytest.mark.parametrize("uids", [("uid-3", "uid-4"), ("uid-0", "uid-00")], ids=["later UIDs", "earlier UIDs"])
@pytest.mark.parametrize("foreign", ["none of ours", "ours, with another UID"])
def test_one_of_our_pods_that_another_of_the_same_name_replaces_is_gone_from_every_index(
    foreign: str, uids: tuple[str, str]
) -> None:
    view, ledger = view_on_a_ledger()
    view.nodes.put_devices(NodeDevices("n1", (gpu(0),)))
    gang = {GANG_LABELS[0]: "g"}
    annotated = koordinator_annotation((0, HALF, "GPU-0"))
    bound = gpu_pod("a", nodeName="n1", uid="uid-1", labels=gang, annotations=annotated)
    waiting = gpu_pod("b", uid="uid-2", labels=gang)
    for obj in (bound, waiting):
        view.pods.put(info(obj))
    ledger.observe(Record("n1", 1, {"uid-1": holding("uid-1", part(gpu(0), 50))}))
    assert view.snapshot("n1").used["GPU-0"][GPU_CORE] == 50
    assert view.pods.gang("default/g") == {"uid-1": "n1", "uid-2": ""}
    assert view.pods.anybody_waits(SchedulerNames())
    for name, uid in zip("ab", uids, strict=True):
        if foreign == "none of ours":
            view.pods.put_other("default", name, OtherPod(uid))
        else:
            view.pods.put(info(gpu_pod(name, uid=uid, nodeName="n2")))
        view.check_invariants()
    assert [view.pods.by_uid(uid) for uid in ("uid-1", "uid-2")] == [None, None]
    assert view.pods.gang("default/g") == {}
    assert not view.pods.anybody_waits(SchedulerNames())
    assert view.pods.on("n1") == {}
    assert view.pods.has_ended("uid-1", "n1")
    for other in ("n0", "n2"):
        assert not view.pods.has_ended("uid-1", other), "what it holds there is from a bind that failed"
    assert not view.pods.has_ended("uid-2", ""), "it was never bound, so it holds nothing that counts as free"
    assert view.snapshot("n1").used == {}, "the ledger follows"
    assert (view.pods.other("default", "a", uids[0]) is not None) is (foreign == "none of ours")
    assert not view.pods.other("default", "a", "uid-1")


def test_a_pod_that_finished_unbound_counts_as_ended_on_no_node() -> None:
    view, _ = view_on_a_ledger()
    view.pods.put(info({**gpu_pod("a"), "status": {"phase": "Failed"}}))
    view.pods.put(info({**gpu_pod("b", nodeName="n1"), "status": {"phase": "Failed"}}))
    assert [view.pods.has_ended("uid-a", ""), view.pods.has_ended("uid-b", "n1")] == [False, True]


@pytest.mark.parametrize("later", ["Succeeded", "Running"])
def test_a_finished_pod_that_seems_to_move_leaves_no_outdated_snapshot_behind(later: str) -> None:
    view, ledger = view_on_a_ledger()
    for name in NODES:
        view.nodes.put_devices(NodeDevices(name, (gpu(0, device_id=f"GPU-{name}"),)))
    ledger.observe(Record("n1", 1, {"uid-a": holding("uid-a", part(gpu(0, device_id="GPU-n1"), 50))}))
    view.pods.put(info({**gpu_pod("a", nodeName="n1"), "status": {"phase": "Failed"}}))
    assert view.snapshot("n1").used == {}
    view.pods.put(info({**gpu_pod("a", nodeName="n2"), "status": {"phase": later}}))
    view.check_invariants()
    assert (view.snapshot("n1").used == {}) is (later == "Running")


def test_a_finished_pod_that_takes_the_name_of_another_has_ended_as_the_other_has() -> None:
    view, _ = view_on_a_ledger()
    view.pods.put(info(gpu_pod("a", uid="uid-1", nodeName="n1")))
    view.pods.put(info({**gpu_pod("a", uid="uid-2", nodeName="n2"), "status": {"phase": "Failed"}}))
    assert [view.pods.has_ended("uid-1", "n1"), view.pods.has_ended("uid-2", "n2")] == [True, True]


def test_only_bound_pods_change_their_nodes_whatever_they_state() -> None:
    view, _ = view_on_a_ledger()
    changed = view.changes.reader()
    view.pods.put(info(gpu_pod("b", annotations=koordinator_annotation((0, HALF, "")))))
    assert list(changed.drain()) == []
    view.pods.put(info(gpu_pod("a", nodeName="n2")))
    view.pods.put(info(gpu_pod("c", nodeName="n1", annotations=koordinator_annotation((0, HALF, "")))))
    assert sorted(changed.drain()) == ["n1", "n2"]


def test_of_pods_that_ended_the_latest_16384_are_remembered() -> None:
    view, _ = view_on_a_ledger()
    made = info(gpu_pod("p", nodeName="n1"))
    for number in range(16_385):
        view.pods.put(replace(made, uid=str(number)))
    view.pods.drop("default", "p")
    assert [view.pods.has_ended(str(number), "n1") for number in (0, 1, 16_384)] == [False, True, True]


@pytest.mark.parametrize("node", ["", "n1"])
def test_a_pod_is_gone_once_it_was_seen_to_vanish_and_not_where_it_is_none_of_ours_any_more(node: str) -> None:
    view, _ = view_on_a_ledger()
    for name in "abc":
        view.pods.put(info(gpu_pod(name, nodeName=node)))
    view.pods.drop("default", "a")
    view.pods.put_other("default", "b", OtherPod("uid-b"))
    view.pods.put_other("default", "c", OtherPod("uid-another"))
    assert [view.pods.is_gone(uid) for uid in ("uid-a", "uid-b", "uid-c", "uid-d")] == [True, False, True, False]
    view.pods.put(info(gpu_pod("b", nodeName=node)))
    view.pods.put(info({**gpu_pod("b", nodeName="n1"), "status": {"phase": "Failed"}}))
    assert not view.pods.is_gone("uid-b"), "it is there, and has finished"


SPOILT: dict[str, Callable[[Any], object]] = {
    "by_uid": lambda pods: pods._by_uid.pop("uid-a"),
    "two Pods of one UID": lambda pods: setattr(
        pods, "_by_name", {("default", "c"): replace(pods._by_uid["uid-a"], name="c"), **pods._by_name}
    ),
    "on": lambda pods: pods._on.update(n2=pods._on.pop("n1")),
    "one too many waits": lambda pods: pods._waiting.setdefault("s", {}).update(dict.fromkeys(pods._by_uid, 0.0)),
    "none waits": lambda pods: pods._waiting.clear(),
    "gangs": lambda pods: pods._gangs["default/g"].update({"uid-b": ""}),
    "whole gangs": lambda pods: pods._all_or_nothing.update({"default/g": {"uid-b": pods._by_uid["uid-b"]}}),
    "strangers": lambda pods: pods._strangers.update({("default", "a"): OtherPod("uid-a")}),
    "a later name": lambda pods: pods._by_name.update({("default", "c"): pods._by_name.pop(("default", "a"))}),
    "an earlier name": lambda pods: pods._by_name.update({("default", "0"): pods._by_name.pop(("default", "a"))}),
    "requested": lambda pods: pods._loads._requested["n1"].update(pods=2),
}


@pytest.mark.parametrize("spoil", SPOILT.values(), ids=SPOILT)
def test_an_index_of_pods_that_is_wrong_is_found(spoil: Callable[[Any], object]) -> None:
    view, _ = view_on_a_ledger()
    view.pods.put(info(gpu_pod("a")))
    view.pods.put(info(gpu_pod("b", nodeName="n1", labels={GANG_LABELS[0]: "g"})))
    view.check_invariants()
    spoil(view.pods)
    with pytest.raises(InvariantError):
        view.check_invariants()


@pytest.mark.parametrize(
    "broken",
    [
        "bare",
        "lost",
        "shunned",
        "empty",
        "forgotten",
        "current",
        "other",
        "reach of a node",
        "reach of all",
        "reach of more",
    ],
)
def test_an_index_of_nodes_that_is_wrong_is_found(broken: str) -> None:
    view, _ = view_on_a_ledger()
    facts = NodeFacts({}, classes=(gpu(1),), shunning=(("slow", ""),))
    view.nodes.put("n1", facts)
    view.nodes.put_devices(NodeDevices("n1", (gpu(0),)))
    view.snapshot("n1")
    view.check_invariants()
    own: Any = view
    match broken:
        case "bare":
            own.nodes._known["n2"] = type(own.nodes._known["n1"])()
        case "lost":
            own.nodes._facts["n2"] = facts
        case "shunned":
            own.nodes._shunned[facts.shunning].add("n2")
        case "empty":
            own._snapshots._empty["n1"] = own._snapshots._make("n2")
        case "forgotten":
            own._snapshots._empty["n2"] = own._snapshots._make("n2")
        case "current":
            own._current["n2"] = own.snapshot("n1")
        case "other":
            own._current["n1"] = replace(own.snapshot("n1"), devices=())
        case "reach of all":
            own.reach._all.clear()
        case "reach of a node":
            own.reach._of.clear()
        case _:
            own.reach._all[GIB] = 1
    with pytest.raises(InvariantError):
        view.check_invariants()


# --- any history


class AnyHistory(RuleBasedStateMachine):
    """Any order of the API server's reports; the present objects are kept beside the view."""

    @initialize()
    def begin(self) -> None:
        self.view, self.ledger = view_on_a_ledger()
        self.feeds = feeds(self.view)
        self.objects: dict[str, dict[str, Raw]] = {"node": {}, "devices": {}, "topology": {}, "pod": {}}
        self.pods: dict[str, tuple[str, str, str]] = {}  # by name: UID, kind, gang
        self.blocked: set[str] = set()
        self.made = 0
        self.revision = 0
        self.reader = self.view.changes.reader()
        self.load_reader = self.view.loads.changes.reader()
        self.seen = {name: self.view.snapshot(name) for name in NODES}
        self.seen_loads = {name: load_of(self.view, name) for name in NODES}

    def _put(self, kind: str, name: str, obj: Raw) -> None:
        self.objects[kind][name] = obj
        self.feeds[kind].put(obj)

    def _drop(self, kind: str, name: str) -> None:
        obj = self.objects[kind].pop(name, None)
        if obj is not None:
            self.feeds[kind].drop(obj)

    @rule(
        name=st.sampled_from(NODES),
        pool=st.sampled_from(["", "x", "y"]),
        tainted=st.booleans(),
        remade=st.booleans(),
        status=st.sampled_from(STATUSES),
    )
    def node(self, name: str, pool: str, tainted: bool, remade: bool, status: Raw) -> None:  # noqa: FBT001 drawn
        taints = [{"key": "slow", "effect": "PreferNoSchedule"}] if tainted else []
        metadata = {"name": name, "uid": f"uid-{name}-{remade}", "labels": {"pool": pool}}
        self._put("node", name, {"metadata": metadata, "spec": {"taints": taints}, "status": status})

    @rule(name=st.sampled_from(NODES), memories=st.lists(st.sampled_from([16, 80]), max_size=2))
    def devices(self, name: str, memories: list[int]) -> None:
        entries = [
            device_entry(minor, id=f"GPU-{name}-{minor}", resources={"koordinator.sh/gpu-memory": f"{size}Gi"})
            for minor, size in enumerate(memories)
        ]
        self._put("devices", name, device_object(*entries, name=name))

    @rule(name=st.sampled_from(NODES))
    def topology(self, name: str) -> None:
        said = NodeTopology(name, machines_cpu.machine("one socket, 4 cores, SMT"))
        self._put("topology", name, write_node_topology(said))

    @rule(kind=st.sampled_from(["node", "devices", "topology"]), name=st.sampled_from(NODES))
    def gone(self, kind: str, name: str) -> None:
        self._drop(kind, name)

    @rule(name=st.sampled_from(NODES), spoilt=st.booleans())
    def record(self, name: str, spoilt: bool) -> None:  # noqa: FBT001 drawn
        if spoilt:
            self.blocked.add(name)
            self.view.nodes.block(name, "spoilt")
        else:
            self.blocked.discard(name)
            self.view.nodes.unblock(name)

    @rule(name=st.sampled_from(NODES), holders=st.sets(st.integers(0, 9), max_size=2))
    def held(self, name: str, holders: set[int]) -> None:
        self.revision += 1
        cards = {f"uid-{number}": gpu(at, device_id=f"GPU-{name}-{at}") for at, number in enumerate(sorted(holders))}
        held = {uid: holding(uid, part(card, 50)) for uid, card in cards.items()}
        self.ledger.observe(Record(name, self.revision, held))

    @rule(
        name=st.sampled_from(POD_NAMES),
        kind=st.sampled_from(["gpu", "cpu", "stranger"]),
        again=st.booleans(),
        node=st.sampled_from(["", *NODES]),
        gang=st.sampled_from(["", "g"]),
        annotated=st.booleans(),
        phase=st.sampled_from(["Pending", "Succeeded"]),
        memory=st.sampled_from(["0", "1Gi", "2Gi", "much"]),
    )
    def pod(
        self,
        name: str,
        kind: str,
        again: bool,  # noqa: FBT001 drawn
        node: str,
        gang: str,
        annotated: bool,  # noqa: FBT001 drawn
        phase: str,
        memory: str,
    ) -> None:
        """A Pod comes, changes, or takes the name of another; it may even seem to move."""
        before = self.pods.get(name)
        if before is not None and again:
            uid, kind, gang = before  # these never change
        else:
            uid, self.made = f"uid-{self.made}", self.made + 1
        self.pods[name] = uid, kind, gang
        about: Raw = {"uid": uid, "nodeName": node, "labels": {GANG_LABELS[0]: gang} if gang else {}}
        if annotated:
            about["annotations"] = koordinator_annotation((0, HALF, f"GPU-{node}-0"))
        made = {"gpu": gpu_pod, "stranger": plain_pod}.get(kind)
        obj = made(name, **about) if made else cpu_pod(name, 2, **about)
        obj["spec"]["containers"].append(container("side", requests={"memory": memory}))
        self._put("pod", name, {**obj, "status": {"phase": phase}})

    @rule(name=st.sampled_from(POD_NAMES))
    def pod_gone(self, name: str) -> None:
        self.pods.pop(name, None)
        self._drop("pod", name)

    @rule(kind=st.sampled_from(["node", "devices", "topology", "pod"]))
    def listed_again(self, kind: str) -> None:
        self.feeds[kind].begin_list()
        for obj in self.objects[kind].values():
            self.feeds[kind].put(obj)
        self.feeds[kind].end_list()

    @rule(name=st.sampled_from(NODES), selection=st.sampled_from(SELECTIONS))
    def asked(self, name: str, selection: Raw) -> None:
        self.view.snapshot(name)
        self.view.reach.of({"spec": selection})

    @invariant()
    def indices_agree(self) -> None:
        if hasattr(self, "view"):
            self.view.check_invariants()

    @invariant()
    def a_view_made_anew_says_the_same(self) -> None:
        if not hasattr(self, "view"):
            return
        anew, _ = view_on_a_ledger()
        for kind, feed in feeds(anew).items():
            for obj in self.objects[kind].values():
                feed.put(obj)
        for name in self.blocked:
            anew.nodes.block(name, "spoilt")
        assert anew.nodes.known() == self.view.nodes.known()
        assert ours(anew) == ours(self.view)
        assert anew.pods.anybody_waits(SchedulerNames()) == self.view.pods.anybody_waits(SchedulerNames())
        assert anew.pods.gang("default/g") == self.view.pods.gang("default/g")
        assert anew.nodes.shunned(None) == self.view.nodes.shunned(None)
        for name in NODES:
            assert anew.snapshot_on(name, {}) == self.view.snapshot_on(name, {})
            assert load_of(anew, name) == load_of(self.view, name)
        for selection in SELECTIONS:
            assert anew.reach.of({"spec": selection}) == self.view.reach.of({"spec": selection})

    @invariant()
    def every_change_is_published(self) -> None:
        """A snapshot changes only if its node was named."""
        if not hasattr(self, "view"):
            return
        named = set(self.reader.drain())
        for name in NODES:
            now = self.view.snapshot(name)
            assert name in named or now == self.seen[name]
            self.seen[name] = now
        named = set(self.load_reader.drain())
        for name in NODES:
            load = load_of(self.view, name)
            assert (name in named) >= (load != self.seen_loads[name])
            self.seen_loads[name] = load


def load_of(view: ClusterView, node: str) -> tuple[dict[str, int], dict[str, int]]:
    """What a node has for Pods, and what those that are bound there request."""
    return dict(view.loads.allocatable(node)), dict(view.loads.requested(node))


def ours(view: ClusterView) -> list[str]:
    return sorted(str(pod) for pod in view.pods.all() if pod.asks or pod.holds)


def feeds(view: ClusterView) -> dict[str, Any]:
    def unheard(_name: str, _problems: tuple[str, ...]) -> None:
        """A listener that ignores everything."""

    return {
        "node": NodeFeed(view, BUILT_IN),
        "devices": DeviceFeed(view, BUILT_IN, unheard),
        "topology": TopologyFeed(view, unheard),
        "pod": PodFeed(view, lambda _pod: None, lambda _pod: None, BUILT_IN),
    }


AnyHistory.TestCase.settings = settings(max_examples=40, stateful_step_count=25)
TestAnyHistory = AnyHistory.TestCase
