"""What a replica knows about the cluster: lists, watches and deletions taken in, and the results for each node."""

import copy
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import machines_cpu
import pytest
from builders import GIB, container, device_entry, device_object, gpu, holding, nic, part, pod
from world import BEGINNING, World, cpu_pod, gpu_pod, koordinator_annotation, plain_pod

from allocator.vocabulary.asks import Preference
from allocator.vocabulary.delivery import Keeping, MemoryUse
from allocator.vocabulary.device import Device
from allocator.vocabulary.devicetype import BUILT_IN
from allocator.vocabulary.holdings import Holding
from allocator.vocabulary.names import GPU_CORE, GPU_MEMORY, GPU_MEMORY_RATIO
from allocator.vocabulary.outcome import Refusal
from allocator.wire.deviceobject import NodeDevices
from allocator.wire.noderuntime import read_uses, write_uses
from allocator.wire.nodetopology import NodeTopology, write_node_topology
from koordgate.kube.resource import DEVICES, NODE_ALLOCATIONS, NODES, PODS
from webhook.ledger.kube import RecordHandler
from webhook.ledger.ledger import Ledger
from webhook.ledger.store import MemoryStore, Record
from webhook.scheduling.assumed import Assumed
from webhook.scheduling.ranking import Ranking
from webhook.settings import SchedulerNames
from webhook.view.changes import Changes
from webhook.view.cluster import ClusterView, SeenObjects
from webhook.view.feed import DeviceFeed, NodeFeed, PodFeed, RecordFeed, TopologyFeed
from webhook.view.livepods import KubeLivePods
from webhook.view.nodes import NodeFacts, NodeTable
from webhook.view.podinfo import PodInfo, annotated_holding, read_pod_info

Raw = dict[str, Any]
CORE, RATIO = "kubernetes.io/gpu-core", "kubernetes.io/gpu-memory-ratio"
HALF = {"kubernetes.io/gpu-core": "50", "kubernetes.io/gpu-memory-ratio": "50", "kubernetes.io/gpu-memory": "40Gi"}


@pytest.fixture
def view() -> Iterator[ClusterView]:
    made = view_on_a_ledger()
    yield made
    made.check_invariants()


def view_on_a_ledger() -> ClusterView:
    seen = SeenObjects(lambda: BEGINNING)
    return ClusterView(seen, Ledger(MemoryStore(), watched=seen.changes.touch))


def ledger_of(view: ClusterView) -> Ledger:
    assert isinstance(view.held, Ledger)
    return view.held


def facts(name: str, **labels: str) -> Raw:
    return {"metadata": {"name": name, "uid": f"uid-{name}", "labels": labels}}


def info(obj: Raw) -> PodInfo:
    made = read_pod_info(obj)
    assert made
    return made


class Ended:
    """Pods that a feed reported as ended."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def __call__(self, pod_info: PodInfo) -> None:
        self.names.append(f"{pod_info.name}/{pod_info.uid}")


@pytest.fixture
def ended() -> Ended:
    return Ended()


@pytest.fixture
def pods(view: ClusterView, ended: Ended) -> PodFeed:
    return PodFeed(view, ended, lambda _pod: None, BUILT_IN)


# --- lists and watches


def test_what_a_list_does_not_name_is_gone(view: ClusterView) -> None:
    feed = NodeFeed(view, BUILT_IN)
    feed.begin_list()
    for name in ("n1", "n2"):
        feed.put(facts(name))
    feed.end_list()
    feed.begin_list()
    feed.put(facts("n2"))
    assert view.nodes.facts("n1")  # not before the list is complete
    feed.end_list()
    assert view.nodes.facts("n1") is None
    assert view.nodes.facts("n2")


def test_a_list_that_failed_half_way_takes_nothing_away(view: ClusterView) -> None:
    feed = NodeFeed(view, BUILT_IN)
    feed.begin_list()
    for name in ("n1", "n2"):
        feed.put(facts(name))
    feed.end_list()
    feed.begin_list()
    feed.put(facts("n3"))
    feed.begin_list()
    for name in ("n1", "n2"):
        feed.put(facts(name))
    feed.end_list()
    assert [bool(view.nodes.facts(name)) for name in ("n1", "n2", "n3")] == [True, True, False]


def test_a_device_object_that_is_gone_leaves_nothing_to_allocate(view: ClusterView) -> None:
    complaints: dict[str, tuple[str, ...]] = {}
    feed = DeviceFeed(view, BUILT_IN, complaints.__setitem__)
    feed.put(device_object(device_entry(0), {"type": "gpu"}))
    assert len(view.snapshot("node-1").devices) == 1
    assert "left out" in complaints["node-1"][0]
    feed.drop(device_object())
    assert complaints["node-1"] == ()
    assert view.snapshot("node-1").devices == ()
    assert not view.nodes.knows("node-1")


def test_an_allocation_that_cannot_be_read_is_complained_of_until_it_is_repaired(world: World) -> None:
    good = {"metadata": {"name": "n1"}, "spec": {"allocations": []}}
    complaints: dict[str, tuple[str, ...]] = {}
    feed = RecordHandler(RecordFeed(world.parts.cluster, world.parts.ledger, complaints.__setitem__))
    feed.put(world.fake.put(NODE_ALLOCATIONS.path(), {**good, "spec": {"allocations": "?"}}))
    assert "administrator" in complaints["n1"][0]
    feed.put(world.fake.put(NODE_ALLOCATIONS.path(), good))
    assert complaints["n1"] == ()
    feed.drop(world.fake.get(NODE_ALLOCATIONS.path("n1")))
    assert world.parts.ledger.records() == []


async def test_the_complaint_ends_though_a_bind_has_read_the_repaired_record_before_the_watch_shows_it(
    world: World,
) -> None:
    complaints: dict[str, tuple[str, ...]] = {}
    feed = RecordHandler(RecordFeed(world.parts.cluster, world.parts.ledger, complaints.__setitem__))
    spoilt = {"metadata": {"name": "n1"}, "spec": {"allocations": "?"}}
    feed.put(world.fake.put(NODE_ALLOCATIONS.path(), spoilt))
    mended = world.fake.put(NODE_ALLOCATIONS.path(), {**spoilt, "spec": {"allocations": []}})
    await world.parts.ledger.read("n1", 5)
    feed.put(mended)
    assert complaints["n1"] == ()


def test_a_topology_that_is_gone_leaves_no_cpus_to_give_and_what_was_wrong_is_reported_until_then(
    view: ClusterView,
) -> None:
    complaints: dict[str, tuple[str, ...]] = {}
    feed = TopologyFeed(view, complaints.__setitem__)
    topology = write_node_topology(NodeTopology("n1", machines_cpu.machine("one socket, 4 cores, SMT")))
    topology["zones"] = 5
    feed.begin_list()
    feed.put(topology)
    feed.end_list()
    snapshot = view.snapshot("n1")
    assert snapshot.cpu is not None
    assert snapshot.cpu.topology.all.bit_count() == 8
    assert "zones" in complaints["n1"][0]
    feed.begin_list()
    feed.end_list()
    assert view.snapshot("n1").cpu is None
    assert complaints["n1"] == ()
    assert not view.nodes.knows("n1")


def test_machines_of_one_make_share_what_is_derived_from_their_cpus(view: ClusterView) -> None:
    feed = TopologyFeed(view, lambda _node, _problems: None)
    for name in ("n1", "n2"):
        feed.put(write_node_topology(NodeTopology(name, machines_cpu.machine("one socket, 4 cores, SMT"))))
    first, second = (view.snapshot(name).cpu for name in ("n1", "n2"))
    assert first is not None
    assert second is not None
    assert first.topology is second.topology


def outcome(world: World) -> Any:
    request = info(gpu_pod("p")).request
    return world.parts.ranking.verdict("n1", request, "")


def test_a_pod_is_reported_as_bound_when_it_is_and_another_of_its_name_too(view: ClusterView) -> None:
    told: list[tuple[str, str]] = []
    feed = PodFeed(
        view,
        lambda pod: told.append(("ended", pod.uid)),
        lambda pod: told.append(("bound", f"{pod.uid} to {pod.node}")),
        BUILT_IN,
    )

    def news(name: str, **about: Any) -> list[tuple[str, str]]:
        told.clear()
        status = {"status": about.pop("status")} if "status" in about else {}
        feed.put({**gpu_pod(name, **about), **status})
        return list(told)

    feed.put(gpu_pod("other", nodeName="n1"))
    assert news("p") == []
    assert news("p", nodeName="n1") == [("bound", "uid-p to n1")]
    assert news("p", nodeName="n1", labels={"any": "change"}) == []
    assert news("p", nodeName="n2", uid="second") == [("ended", "uid-p"), ("bound", "second to n2")]
    assert news("p", uid="third") == [("ended", "second")]
    assert news("p", uid="third", nodeName="n1") == [("bound", "third to n1")]
    assert news("p", uid="third", nodeName="n1", status={"phase": "Failed"}) == [("ended", "third")]
    assert news("p", uid="third", nodeName="n1", status={"phase": "Failed"}, labels={"any": "change"}) == []
    assert news("q", nodeName="n1", status={"phase": "Succeeded"}) == [("ended", "uid-q")]
    told.clear()
    feed.put(plain_pod("p", uid="fourth"))
    assert told == [("ended", "third")]
    told.clear()
    feed.put(plain_pod("p", uid="fourth", nodeName="n1"))
    feed.drop(plain_pod("p", uid="fourth"))
    assert told == []
    feed.drop(gpu_pod("other", nodeName="n1"))
    assert told == [("ended", "uid-other")]


@pytest.mark.parametrize("how", ["mended", "deleted", "vanished", "read before the watch shows it"])
async def test_a_node_whose_record_cannot_be_read_refuses_until_it_can(world: World, how: str) -> None:
    spoilt = {"metadata": {"name": "n1"}, "spec": {"allocations": "?"}}
    good = {"metadata": {"name": "n1"}, "spec": {"allocations": []}}
    assert not isinstance(outcome(world), Refusal)
    world.fake.put(NODE_ALLOCATIONS.path(), spoilt)
    world.see(NODE_ALLOCATIONS)
    for _ in range(2):
        refusal = outcome(world)
        assert isinstance(refusal, Refusal)
        assert refusal.permanent
        assert "an administrator must correct or delete it" in refusal.message
        assert world.parts.cluster.snapshot("n1").devices == ()
        world.see(NODES, DEVICES, PODS)  # none of these repairs it
    if how == "mended":
        world.fake.put(NODE_ALLOCATIONS.path(), good)
    elif how == "read before the watch shows it":
        world.fake.put(NODE_ALLOCATIONS.path(), good)
        await world.parts.ledger.read("n1", 5)
    elif how == "deleted":
        world._feeds[NODE_ALLOCATIONS].drop(world.fake.get(NODE_ALLOCATIONS.path("n1")))
        assert not isinstance(outcome(world), Refusal)
        world.fake.remove(NODE_ALLOCATIONS.path("n1"))
    else:
        world.fake.remove(NODE_ALLOCATIONS.path("n1"))
    world.see(NODE_ALLOCATIONS)
    assert not isinstance(outcome(world), Refusal)
    assert len(world.parts.cluster.snapshot("n1").devices) == 1


def test_a_node_that_is_gone_is_forgotten_when_its_damaged_record_is_gone_too(view: ClusterView) -> None:
    view.nodes.put("n1", NodeFacts({}))
    view.nodes.block("n1", "spoilt")
    view.nodes.drop("n1")
    assert view.nodes.knows("n1")
    view.nodes.unblock("n1")
    assert not view.nodes.known()
    view.nodes.unblock("nowhere")
    assert not view.nodes.known()


def test_pods_of_all_kinds_are_distinguished(view: ClusterView, pods: PodFeed) -> None:
    for obj in (gpu_pod("ours"), plain_pod("stranger"), plain_pod("annotated", annotations=koordinator_annotation())):
        pods.put(obj)
    assert [view.pods.get("default", name) is not None for name in ("ours", "stranger", "annotated")] == [
        True,
        False,
        False,
    ]
    assert view.pods.other("default", "annotated", "")  # with an empty allocation
    assert view.pods.other("default", "stranger", "uid-stranger")
    assert view.pods.other("default", "stranger", "")
    assert not view.pods.other("default", "stranger", "another")
    assert not view.pods.other("default", "ours", "")
    assert not view.pods.other("default", "nobody", "")


def test_a_stranger_that_gets_an_allocation_becomes_ours_and_holds_nothing_without_it(
    view: ClusterView, pods: PodFeed
) -> None:
    pods.put(plain_pod("p"))
    pods.put(plain_pod("p", annotations=koordinator_annotation((0, HALF, ""))))
    kept = view.pods.get("default", "p")
    assert kept
    assert kept.shares
    assert not view.pods.other("default", "p", "uid-p")
    pods.put(plain_pod("p"))
    kept = view.pods.get("default", "p")
    assert kept is None or not (kept.asks or kept.shares)


ENDINGS = ["deleted", "vanished", "finished", "failed", "made again", "made again, later", "made again as a stranger"]


@pytest.mark.parametrize("how", ENDINGS)
def test_a_pod_that_ended_is_reported_once(pods: PodFeed, ended: Ended, how: str) -> None:
    obj = gpu_pod("p", nodeName="n1")
    pods.put(obj)
    pods.put({**obj, "status": {"phase": "Running"}})
    assert ended.names == []
    match how:
        case "deleted":
            pods.drop(obj)
        case "vanished":
            pods.begin_list()
            pods.end_list()
        case "finished" | "failed":
            for _ in range(2):
                pods.put({**obj, "status": {"phase": "Succeeded" if how == "finished" else "Failed"}})
        case "made again" | "made again, later":
            pods.put(gpu_pod("p", uid="uid-2" if how == "made again" else "uid-q"))
        case _:
            pods.put(plain_pod("p", uid="uid-2"))
    assert ended.names == ["p/uid-p"]


def test_each_pod_that_is_bound_and_runs_is_reported_once(view: ClusterView, ended: Ended) -> None:
    bound: list[str] = []
    pods = PodFeed(view, ended, lambda pod_info: bound.append(f"{pod_info.name}/{pod_info.uid}"), BUILT_IN)
    pods.put(gpu_pod("p", uid="b"))
    assert bound == []
    for uid in ("b", "a", "c"):
        for _ in range(2):
            pods.put(gpu_pod("p", uid=uid, nodeName="n1"))
    pods.put({**gpu_pod("q", nodeName="n1"), "status": {"phase": "Failed"}})
    assert bound == ["p/b", "p/a", "p/c"]
    assert ended.names == ["p/b", "p/a", "q/uid-q"]


def test_a_pod_that_is_being_deleted_still_holds(view: ClusterView, pods: PodFeed, ended: Ended) -> None:
    obj = gpu_pod("p", nodeName="n1", annotations=koordinator_annotation((0, HALF, "GPU-0")))
    obj["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    view.nodes.put_devices(NodeDevices("n1", (gpu(0),), frozenset(), ()))
    pods.put(obj)
    assert ended.names == []
    assert view.snapshot("n1").used["GPU-0"][GPU_CORE] == 50


def test_pods_of_one_name_in_two_namespaces_are_two(view: ClusterView, pods: PodFeed) -> None:
    pods.put(gpu_pod("p", namespace="a", uid="1"))
    pods.put(gpu_pod("p", namespace="b", uid="2"))
    pods.drop(gpu_pod("p", namespace="a", uid="1"))
    assert view.pods.get("a", "p") is None
    assert view.pods.by_uid("2") == view.pods.get("b", "p") is not None


def test_what_containers_use_is_a_change_to_look_at_and_makes_no_pod_fit() -> None:
    fitting: list[str] = []
    changes = Changes()
    nodes = NodeTable(changes, fitting.append)
    seen, remade = changes.reader(), nodes.remade.reader()
    told = NodeDevices("n1", (gpu(0),))
    use = MemoryUse("GPU-0", "team", "p", "main", Keeping.ACCOUNTING, 1)
    nodes.put_devices(told)
    assert (list(seen.drain()), list(remade.drain()), fitting) == (["n1"], ["n1"], ["n1"])
    for _ in range(2):
        nodes.put_devices(replace(told, memory_uses=write_uses([use])))
        assert (there := nodes.devices("n1")) is not None
        assert read_uses(there.memory_uses) == ((use,), "")
    assert (list(seen.drain()), list(remade.drain()), fitting) == (["n1"], [], ["n1"])
    assert list(seen.drain()) == []


# --- memory in reach


def devices(name: str, *memories: int) -> NodeDevices:
    return NodeDevices(name, tuple(gpu(minor, memory) for minor, memory in enumerate(memories)), frozenset(), ())


def test_the_smallest_and_the_largest_card_in_reach_follow_the_nodes(view: ClusterView) -> None:
    anywhere = pod()
    assert view.reach.of(anywhere) == (0, 0)
    others = (Device("disk", "disk-0", 0, True, {}), nic(0))
    view.nodes.put_devices(NodeDevices("n1", (gpu(0, 8 * GIB), gpu(1, 8 * GIB), *others)))
    assert view.reach.of(anywhere) == (8 * GIB, 8 * GIB)
    view.nodes.put_devices(devices("n2", 80 * GIB))
    assert view.reach.of(anywhere) == (8 * GIB, 80 * GIB)
    view.nodes.drop_devices("n2")
    assert view.reach.of(anywhere) == (8 * GIB, 8 * GIB)
    view.nodes.put_devices(devices("n1", 24 * GIB))
    assert view.reach.of(anywhere) == (24 * GIB, 24 * GIB)
    view.nodes.put_devices(devices("n1"))
    assert view.reach.of(anywhere) == (0, 0)


def test_a_pod_that_selects_nodes_reaches_only_their_memory(view: ClusterView) -> None:
    view.nodes.put("n1", NodeFacts({"gpu": "t4"}))
    view.nodes.put("n2", NodeFacts({"gpu": "a100"}))
    view.nodes.put_devices(devices("n1", 16 * GIB))
    view.nodes.put_devices(devices("n2", 80 * GIB))
    view.nodes.put_devices(devices("unknown", 1 * GIB))  # its Node is not seen yet
    t4, none = pod(nodeSelector={"gpu": "t4"}), pod(nodeSelector={"gpu": "l4"})
    assert view.reach.of(t4) == (16 * GIB, 16 * GIB)
    assert view.reach.of(none) == (0, 0)
    view.nodes.put("n2", NodeFacts({"gpu": "t4"}))
    assert view.reach.of(t4) == (16 * GIB, 80 * GIB)
    view.nodes.drop("n2")
    assert view.reach.of(t4) == (16 * GIB, 16 * GIB)
    view.nodes.put_devices(devices("n1", 15 * GIB))
    assert view.reach.of(t4) == (15 * GIB, 15 * GIB)


# --- snapshots


def test_a_snapshot_is_rebuilt_when_anything_about_the_node_changes(view: ClusterView, pods: PodFeed) -> None:
    ledger = ledger_of(view)

    def used() -> int:
        return view.snapshot("n1").used.get("GPU-0", {}).get(GPU_CORE, 0)

    view.nodes.put_devices(devices("n1", 80 * GIB))
    assert used() == 0
    assert view.snapshot("n1") is view.snapshot("n1")
    ledger.observe(Record("n1", 1, {"u": holding("u", part(gpu(0), 30))}))
    assert used() == 30
    running = gpu_pod("p", nodeName="n1", annotations=koordinator_annotation((0, HALF, "GPU-0")))
    pods.put(running)
    assert used() == 80
    ledger.observe(Record("n1", 2, {}))
    assert used() == 50
    pods.put({**running, "status": {"phase": "Succeeded"}})
    assert used() == 0
    view.nodes.put_devices(NodeDevices("n1", (gpu(0, healthy=False),), frozenset({"GPU-0"}), ()))
    assert not view.snapshot("n1").devices[0].healthy
    assert view.snapshot("n1").kubelet_held == {"GPU-0"}
    ledger.observe(Record("n1", 3, {"u": holding("u", part(gpu(0), 30))}))
    ledger.forget("n1")
    assert used() == 0


def test_an_annotated_pod_that_lives_counts_though_the_ledger_is_empty(view: ClusterView, pods: PodFeed) -> None:
    view.nodes.put_devices(devices("n1", 80 * GIB))
    pods.put(gpu_pod("p", nodeName="n1", annotations=koordinator_annotation((0, HALF, ""))))
    snapshot = view.snapshot("n1")
    assert snapshot.used["GPU-0"] == {GPU_CORE: 50, GPU_MEMORY: 40 * GIB, GPU_MEMORY_RATIO: 50}
    assert snapshot.holdings["uid-p"].since == BEGINNING


def test_what_the_ledger_says_of_a_pod_counts_before_its_annotation(view: ClusterView, pods: PodFeed) -> None:
    view.nodes.put_devices(devices("n1", 80 * GIB))
    pods.put(gpu_pod("p", nodeName="n1", annotations=koordinator_annotation((0, HALF, "GPU-0"))))
    mine: dict[str, Holding] = {"uid-p": holding("uid-p", part(gpu(0), 20, "main"))}
    assert view.snapshot_on("n1", mine).holdings == mine


@pytest.mark.parametrize("bound", ["", "n2"])
def test_an_annotation_counts_only_where_its_pod_is_bound(view: ClusterView, pods: PodFeed, bound: str) -> None:
    view.nodes.put_devices(devices("n1", 80 * GIB))
    pods.put(gpu_pod("p", nodeName=bound, annotations=koordinator_annotation((0, HALF, "GPU-0"))))
    assert view.snapshot("n1").holdings == {}


@pytest.mark.parametrize(
    ("resources", "accounted"),
    [
        (HALF, {GPU_CORE: 50, GPU_MEMORY: 40 * GIB, GPU_MEMORY_RATIO: 50}),
        # Either ratio or memory is left out. A ratio that is more than its bytes counts in both.
        ({"koordinator.sh/gpu-memory-ratio": "50"}, {GPU_MEMORY: 40 * GIB, GPU_MEMORY_RATIO: 50}),
        ({"koordinator.sh/gpu-memory": "40Gi"}, {GPU_MEMORY: 40 * GIB, GPU_MEMORY_RATIO: 50}),
        (
            {"koordinator.sh/gpu-memory": str(40 * GIB + 1), "koordinator.sh/gpu-memory-ratio": "50"},
            {GPU_MEMORY: 40 * GIB + 1, GPU_MEMORY_RATIO: 50},
        ),
        (
            {"koordinator.sh/gpu-memory": "1Gi", "koordinator.sh/gpu-memory-ratio": "50"},
            {GPU_MEMORY: 40 * GIB, GPU_MEMORY_RATIO: 50},
        ),
        ({"koordinator.sh/gpu-core": "10"}, {GPU_CORE: 10, GPU_MEMORY: 80 * GIB, GPU_MEMORY_RATIO: 100}),
    ],
)
def test_what_an_annotation_leaves_out_is_worked_out_never_below_what_it_says(
    resources: Raw, accounted: dict[str, int]
) -> None:
    said = annotated_holding(info(plain_pod("p", annotations=koordinator_annotation((0, resources, "")))), (gpu(0),), 7)
    assert said
    (share,) = said.shares
    assert (share.id, dict(share.amounts), said.since) == ("GPU-0", accounted, 7)


def test_cpus_that_an_annotation_names_are_read_where_the_cpus_of_the_node_are_not_known(view: ClusterView) -> None:
    view.nodes.put_devices(devices("n1", GIB))
    annotations = {"scheduling.koordinator.sh/resource-status": '{"cpuset":"2-3"}'}
    bound = info(cpu_pod("p", 2, nodeName="n1", annotations=annotations))
    assert bound.cpus is not None
    assert view.compared(bound) == bound


def test_an_annotation_of_a_device_that_is_not_there_still_holds_its_name() -> None:
    said = annotated_holding(info(plain_pod("p", annotations=koordinator_annotation((5, HALF, "")))), (gpu(0),), 0)
    assert said
    assert said.shares[0].id == "gpu-minor-5"


TWICE: dict[str, tuple[list[tuple[int, Raw, str]], dict[str, int]]] = {
    "by id and by minor": (
        [(0, HALF, "GPU-0"), (0, {CORE: "10", RATIO: "25"}, "")],
        {GPU_CORE: 60, GPU_MEMORY: 60 * GIB, GPU_MEMORY_RATIO: 75},
    ),
    "by minor and by id, with another minor": (
        [(0, HALF, ""), (1, HALF, "GPU-0")],
        {GPU_CORE: 100, GPU_MEMORY: 80 * GIB, GPU_MEMORY_RATIO: 100},
    ),
    "more than any object can hold": (
        [(0, {CORE: str(2**63 - 1)}, "GPU-0"), (0, {CORE: "1", RATIO: str(2**63 - 1)}, "")],
        {GPU_CORE: 2**63 - 1, GPU_MEMORY: 2**63 - 1, GPU_MEMORY_RATIO: 2**63 - 1},
    ),
}


@pytest.mark.parametrize(("entries", "sum_of_them"), TWICE.values(), ids=TWICE)
async def test_two_entries_of_one_card_are_added_up_to_one_share_that_can_be_recorded(
    world: World, entries: list[tuple[int, Raw, str]], sum_of_them: dict[str, int]
) -> None:
    entries = [(minor, said, identity.replace("GPU-0", "GPU-n1-0")) for minor, said, identity in entries]
    world.show(gpu_pod("p", nodeName="n1", annotations=koordinator_annotation(*entries)))
    await world.parts.reconciler.reconcile()
    (share,) = world.holdings()["uid-p"].shares
    assert (share.id, share.minor, dict(share.amounts)) == ("GPU-n1-0", 0, sum_of_them)


async def test_of_two_entries_of_one_card_the_containers_stay(world: World) -> None:
    annotations = {
        **koordinator_annotation((0, HALF, ""), (0, HALF, "GPU-0")),
        "visible-devices.koordgate.io/main": "GPU-0",
    }
    said = annotated_holding(info(plain_pod("p", annotations=annotations)), (gpu(0),), 0)
    assert said
    assert [(share.id, share.containers) for share in said.shares] == [("GPU-0", ("main",))]


def test_a_node_of_which_nothing_is_known_any_more_is_forgotten(view: ClusterView, pods: PodFeed) -> None:
    view.nodes.put("n1", NodeFacts({}))
    view.nodes.put_devices(devices("n1", GIB))
    running = gpu_pod("p", nodeName="n1")
    pods.put(running)
    view.nodes.drop("n1")
    view.nodes.drop_devices("n1")
    assert view.pods.on("n1")  # a Pod still runs there
    pods.drop(running)
    view.nodes.drop("n1")
    assert not view.nodes.known()


# --- verdicts


def ranking_of(view: ClusterView) -> Ranking:
    return Ranking(view, BUILT_IN, Preference.PACKING, Assumed(lambda: 0.0, 5.0))


def test_a_node_that_nobody_knows_has_no_devices(view: ClusterView) -> None:
    request = info(gpu_pod("p")).request
    outcome = ranking_of(view).verdict("nowhere", request, "")
    assert isinstance(outcome, Refusal)
    assert "no GPUs known" in outcome.message
    assert not view.nodes.known()  # unknown candidates leave nothing behind


# --- the kept part of a Pod


def test_what_is_kept_is_what_decisions_use() -> None:
    obj = gpu_pod("p", 50, nodeName="n1", labels={"a": "b"})
    kept = info({**obj, "status": {"phase": "Failed"}})
    assert (kept.uid, kept.namespace, kept.name, kept.node) == ("uid-p", "default", "p", "n1")
    assert kept.finished
    assert kept.canonical
    assert kept.in_scope(SchedulerNames())


def test_a_plain_request_of_another_scheduler_is_not_ours_to_stop() -> None:
    theirs = info(pod(container(limits={"nvidia.com/gpu": "1"}), schedulerName="default-scheduler"))
    assert theirs.asks
    assert not theirs.in_scope(SchedulerNames())
    ours = info(pod(container(limits={"nvidia.com/gpu": "1"}), schedulerName="koord-scheduler"))
    assert ours.in_scope(SchedulerNames())
    canonical = info(pod(container(limits={"koordinator.sh/gpu": "50"}), schedulerName="default-scheduler"))
    assert canonical.in_scope(SchedulerNames())


@pytest.mark.parametrize("text", ["", "{", "[]", '{"gpu":5}', '{"gpu":[{"minor":"0"}]}', "null"])
def test_an_annotation_that_cannot_be_read_is_reported_and_holds_nothing(text: str) -> None:
    kept = info(plain_pod("p", annotations={"scheduling.koordinator.sh/device-allocated": text}))
    assert kept.shares == ()
    assert "not Koordinator's format" in kept.annotation_problem


async def test_a_whole_cluster_is_seen_again_after_the_watches_were_lost(world: World) -> None:
    world.add_node("n2")
    world.show(gpu_pod("a"))
    before = copy.deepcopy(world.parts.cluster.snapshot("n2"))
    world.fake.remove(NODES.path("n2"))
    world.fake.remove(DEVICES.path("n2"))
    world.remove_pod("a")
    world.see()
    assert [world.parts.cluster.nodes.knows(name) for name in ("n1", "n2")] == [True, False]
    assert world.parts.cluster.pods.get("default", "a") is None
    world.add_node("n2")
    world.see(NODES, DEVICES, PODS)
    assert world.parts.cluster.snapshot("n2") == before


# --- live Pods


async def test_pods_are_listed_by_five_hundred(world: World) -> None:
    for number in range(3):
        world.add_pod(gpu_pod(f"p{number}"))
    world.add_pod(plain_pod("elsewhere", namespace="other"))
    found = [obj["metadata"]["name"] async for obj in KubeLivePods(world.kube, BUILT_IN).list("default")]
    assert sorted(found) == ["p0", "p1", "p2"]
    (asked,) = world.fake.seen("list", "pods")
    assert asked.query["limit"] == "500"


async def test_a_live_pod_is_read_with_its_uid_and_none_where_there_is_none(world: World) -> None:
    world.add_pod(gpu_pod("ours"))
    world.add_pod(plain_pod("theirs"))
    live = KubeLivePods(world.kube, BUILT_IN)
    ours = await live.read("default", "ours", 5.0)
    assert ours is not None
    assert (ours[0], ours[1] and ours[1].name) == ("uid-ours", "ours")
    assert await live.read("default", "theirs", 5.0) == ("uid-theirs", None)
    assert [await live.read("default", name, 5.0) for name in ("gone", "", "..", "a/b")] == [None] * 4
