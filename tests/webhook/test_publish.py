"""The totals and free amounts of nodes, packed as in the patent, are published: by any writer, and never twice."""

import asyncio
import json
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
from builders import device_entry, device_object, gpu, holding, part
from fake_kube import FakeKube, answer, hold
from hypothesis import given
from hypothesis import strategies as st
from machines_cpu import machine

from allocator.index.packed import read_packed
from allocator.vocabulary.cpunode import CpuNode, CpuShare
from allocator.vocabulary.device import Device
from allocator.vocabulary.devicetype import BUILT_IN
from allocator.vocabulary.holdings import Holding
from allocator.vocabulary.names import CORDONED, DEVICES_CHECKPOINTS, PACKED
from allocator.vocabulary.node import NodeSnapshot
from allocator.wire.deviceobject import read_device_object
from allocator.wire.nodeallocation import read_spec
from koordgate.kube.client import KubeClient
from koordgate.kube.resource import DEVICES, NODE_ALLOCATIONS, NODES, Resource
from koordgate.kube.watch import Handler
from webhook.ledger.kube import KubeStore, RecordHandler
from webhook.ledger.ledger import Counters, Ledger
from webhook.upkeep import publish as publish_module
from webhook.upkeep.publish import Publisher, packed_text
from webhook.upkeep.publish import published as published_text
from webhook.view.cluster import ClusterView, SeenObjects
from webhook.view.feed import DeviceFeed, NodeFeed, RecordFeed
from webhook.view.nodes import NodeFacts

Raw = dict[str, Any]
GIB = 2**30


def read(text: str) -> dict[str, tuple[list[int], list[int]]]:
    """Class -> total and free amount of each device."""
    return {one.name: (one.totals(), one.frees()) for one in read_packed(text)}


# What is packed


def rdma(minor: int) -> Device:
    return Device("rdma", f"0000:0{minor}:00.0", minor, healthy=True, capacity={"rdma": 100})


def own(kind: str, tail: str, units: int) -> Device:
    return Device(kind, f"{kind}-a", 0, healthy=True, capacity={tail: units})


HALVES = {
    "gpu-core": ([100, 100], [50, 100]),
    "gpu-memory": ([80 * GIB, 80 * GIB], [40 * GIB, 80 * GIB]),
    "gpu-memory-ratio": ([100, 100], [50, 100]),
}
SECOND_CLOSED = {name: (totals, [frees[0], 0]) for name, (totals, frees) in HALVES.items()}
HALF = {"u": holding("u", part(gpu(0), 50))}
MACHINE = machine("two sockets, 2 nodes, SMT, siblings near")


@pytest.mark.parametrize(
    ("node", "packed"),
    [
        pytest.param(NodeSnapshot("n", ()), {}, id="nothing at all"),
        pytest.param(NodeSnapshot("n", (gpu(0), gpu(1)), HALF), HALVES, id="a card half used, one free"),
        pytest.param(
            NodeSnapshot("n", (gpu(0), gpu(1, healthy=False)), HALF),
            SECOND_CLOSED,
            id="of an unhealthy card none is free",
        ),
        pytest.param(
            NodeSnapshot("n", (gpu(0), gpu(1)), HALF, frozenset({"GPU-1"})),
            SECOND_CLOSED,
            id="of a card that the kubelet gave away none is free",
        ),
        pytest.param(
            NodeSnapshot("n", (gpu(0), gpu(1), rdma(1), rdma(2)), HALF),
            {**HALVES, "rdma": ([100, 100], [100, 100])},
            id="devices of two types",
        ),
        pytest.param(
            NodeSnapshot("n", (gpu(0), gpu(1), own("queue", "gpu-core", 7)), HALF),
            {**HALVES, "queue/gpu-core": ([7], [7])},
            id="a type of one's own whose class has the name of another",
        ),
        pytest.param(
            NodeSnapshot("n", (gpu(0),), {"u": holding("u", part(gpu(9), 50))}),
            {name: ([totals[0]], [totals[0]]) for name, (totals, _) in HALVES.items()},
            id="what is held of a device that is gone is of no class",
        ),
        pytest.param(
            NodeSnapshot(
                "n",
                (),
                {"u": Holding("u", "default", "p", 0, (), CpuShare("LSR", 0b1100))},
                cpu=CpuNode(MACHINE, reserved=0b11),
            ),
            {"cpu": ([14, 16], [12, 16])},
            id="CPUs by NUMA node, less those that are never given",
        ),
    ],
)
def test_a_node_is_packed_by_class(node: NodeSnapshot, packed: Mapping[str, Any]) -> None:
    assert read(packed_text(node)) == packed


@given(st.lists(st.tuples(st.integers(0, 100), st.booleans()), max_size=40))
def test_what_is_free_of_each_card_can_be_recounted_from_the_packed_text(cards: list[tuple[int, bool]]) -> None:
    devices = tuple(gpu(minor, healthy=healthy) for minor, (_, healthy) in enumerate(cards))
    held = {f"u{at}": holding(f"u{at}", part(devices[at], used)) for at, (used, _) in enumerate(cards) if used}
    found = read(packed_text(NodeSnapshot("n", devices, held)))
    if cards:
        assert found["gpu-core"] == ([100] * len(cards), [100 - used if healthy else 0 for used, healthy in cards])
        assert all(free <= 80 * GIB for free in found["gpu-memory"][1])
    else:
        assert found == {}


# Where it is written


@dataclass
class Replica:
    """One replica's view of the fake cluster, fed by hand, and its publisher."""

    kube: KubeClient
    name: str = "a"
    races: int = 0
    sleeps: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        seen = SeenObjects(lambda: 1_800_000_000)
        self.ledger = Ledger(
            KubeStore(self.kube),
            Counters(lost_race=self._lost),
            watched=seen.changes.touch,
            published=partial(published_text, seen),
        )
        self.cluster = ClusterView(seen, self.ledger)
        self.publisher = Publisher(self.cluster, self.ledger, self.name, self._sleep)

        def complain(_name: str, _problems: tuple[str, ...]) -> None:
            """A listener that ignores everything."""

        self._handlers: dict[Any, Handler] = {
            NODES: self.publisher.nodes(NodeFeed(self.cluster, BUILT_IN)),
            DEVICES: DeviceFeed(self.cluster, BUILT_IN, complain),
            NODE_ALLOCATIONS: RecordHandler(RecordFeed(self.cluster, self.ledger, complain)),
        }

    def _lost(self) -> None:
        self.races += 1

    async def _sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)

    def see(self, fake: FakeKube, *resources: Resource) -> "Replica":
        """List these resources, or everything."""
        for resource in resources or self._handlers:
            handler = self._handlers[resource]
            handler.begin_list()
            for obj in fake.objects(resource.path()):
                handler.put(obj)
            handler.end_list()
        return self

    async def bind(self, node: str, uid: str, percent: int = 50) -> None:
        """Give a Pod a part of the node's first card."""
        await self.ledger.change(node, lambda held: ({**held, uid: holding(uid, part(card(node), percent))}, None), 5.0)


def card(node: str) -> Device:
    return gpu(0, device_id=f"GPU-{node}-0")


def add_node(fake: FakeKube, name: str, *, gpus: int = 1, annotations: Mapping[str, str] | None = None) -> None:
    fake.put(NODES.path(), {"metadata": {"name": name, "uid": f"uid-{name}"}})
    entries = [device_entry(minor, id=f"GPU-{name}-{minor}") for minor in range(gpus)]
    if gpus:
        fake.put(DEVICES.path(), device_object(*entries, name=name, annotations=annotations))


def published(fake: FakeKube, node: str) -> dict[str, tuple[list[int], list[int]]] | None:
    for obj in fake.objects(NODE_ALLOCATIONS.path()):
        if obj["metadata"]["name"] == node:
            text = obj["metadata"].get("annotations", {}).get(PACKED)
            return None if text is None else read(text)
    return None


def core(fake: FakeKube, node: str) -> list[int]:
    """The free part of each card."""
    found = published(fake, node)
    assert found is not None
    return found["gpu-core"][1]


def written(fake: FakeKube) -> list[tuple[str, str]]:
    return [(one.verb, one.path.rpartition("/")[2]) for one in fake.requests if one.verb in {"create", "update"}]


@pytest.fixture
def one(fake: FakeKube, kube: KubeClient) -> Replica:
    """A replica that has seen one node with one card."""
    add_node(fake, "n1")
    return Replica(kube).see(fake)


async def test_an_idle_node_is_published(fake: FakeKube, one: Replica) -> None:
    assert await one.publisher.publish() == 1
    assert core(fake, "n1") == [100]
    (obj,) = fake.objects(NODE_ALLOCATIONS.path())
    assert read_spec(obj) == {}


async def test_a_steady_cluster_causes_no_request(fake: FakeKube, one: Replica) -> None:
    await one.bind("n1", "u")
    await one.publisher.publish()
    one.see(fake)
    fake.requests.clear()
    for _ in range(3):
        assert await one.publisher.publish() == 0
    assert fake.requests == []


async def test_a_node_with_nothing_to_give_gets_no_record(fake: FakeKube, kube: KubeClient) -> None:
    add_node(fake, "plain", gpus=0)
    assert await Replica(kube).see(fake).publisher.publish() == 0
    assert fake.requests == []


async def turns_of(work: Coroutine[Any, Any, int]) -> int:
    """How often others have their turn while something is done."""
    task = asyncio.ensure_future(work)
    turns = 0
    while not task.done():
        await asyncio.sleep(0)
        turns += 1
    return turns


async def test_packing_many_nodes_lets_others_have_their_turn_in_between(
    fake: FakeKube,
    kube: KubeClient,
    breaking: None,
) -> None:
    for number in range(20):
        add_node(fake, f"n{number}")
    assert await Replica(kube).see(fake).publisher.publish() == 20
    second = Replica(kube, "b").see(fake)
    assert await turns_of(second.publisher.publish()) >= 60, "all is packed, and nothing written"


@pytest.mark.parametrize("fails", ["packing", "writing"])
async def test_a_node_on_which_publishing_fails_does_not_stop_the_others(
    fake: FakeKube, kube: KubeClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, fails: str
) -> None:
    for number in range(4):
        add_node(fake, f"n{number}")
    replica = Replica(kube).see(fake)
    pack, publish = publish_module.packed_text, replica.ledger.publish

    def packed(node: NodeSnapshot) -> str:
        if fails == "packing" and node.name == "n1":
            raise LookupError("a bug")
        return pack(node)

    async def written(node: str, deadline: float) -> bool:
        if fails == "writing" and node == "n1":
            raise LookupError("a bug")
        return await publish(node, deadline)

    monkeypatch.setattr(publish_module, "packed_text", packed)
    monkeypatch.setattr(replica.ledger, "publish", written)
    assert await replica.publisher.publish() == 3
    assert [published(fake, f"n{number}") is None for number in range(4)] == [False, True, False, False]
    assert [record.message for record in caplog.records] == ["a bug while what is free was published"]


async def test_a_record_that_cannot_be_deleted_does_not_keep_the_others(fake: FakeKube, kube: KubeClient) -> None:
    for number in range(3):
        add_node(fake, f"n{number}")
    replica = Replica(kube).see(fake)
    await replica.publisher.publish()
    for number in range(3):
        fake.remove(NODES.path(f"n{number}"))
    replica.see(fake)
    fake.faults.add("delete", "nodeallocations", answer(422))
    await replica.publisher.publish()
    assert len(fake.objects(NODE_ALLOCATIONS.path())) == 1


async def test_what_stands_of_a_node_that_has_nothing_any_more_is_taken_back(fake: FakeKube, one: Replica) -> None:
    await one.publisher.publish()
    fake.remove(DEVICES.path("n1"))
    await one.see(fake).publisher.publish()
    assert published(fake, "n1") is None


async def test_after_a_bind_the_rest_stands_there_and_who_holds_it_is_unharmed(fake: FakeKube, one: Replica) -> None:
    await one.publisher.publish()
    await one.see(fake).bind("n1", "u", 30)
    await one.see(fake).publisher.publish()
    assert core(fake, "n1") == [70]
    assert list(read_spec(fake.get(NODE_ALLOCATIONS.path("n1")))) == ["u"]


async def test_a_bind_publishes_with_the_write_that_it_makes(fake: FakeKube, one: Replica) -> None:
    await one.bind("n1", "u", 30)
    assert core(fake, "n1") == [70]
    one.see(fake)
    fake.requests.clear()
    assert await one.publisher.publish() == 0
    assert fake.requests == []


async def test_a_cordoned_card_and_an_allocated_one_have_nothing_free(fake: FakeKube, kube: KubeClient) -> None:
    checkpoint = json.dumps([{"deviceIDs": ["GPU-n1-1"]}])
    add_node(fake, "n1", gpus=3, annotations={CORDONED: "GPU-n1-0", DEVICES_CHECKPOINTS[0]: checkpoint})
    assert read_device_object(fake.get(DEVICES.path("n1"))).kubelet_held
    await Replica(kube).see(fake).publisher.publish()
    assert core(fake, "n1") == [0, 0, 100]


async def test_the_next_bind_loses_no_race_to_what_was_published(fake: FakeKube, one: Replica) -> None:
    await one.publisher.publish()
    await one.bind("n1", "u")  # before any watch reported it
    assert one.races == 0


async def test_a_second_replica_finds_nothing_to_do(fake: FakeKube, one: Replica, kube: KubeClient) -> None:
    blind = Replica(kube, "b").see(fake)  # it has seen none of the first one's writes
    await one.publisher.publish()
    fake.requests.clear()
    assert await blind.publisher.publish() == 0
    assert written(fake) == []
    blind.see(fake)
    fake.requests.clear()
    assert await blind.publisher.publish() == 0
    assert fake.requests == []


async def test_what_another_replica_bound_meanwhile_is_counted(fake: FakeKube, one: Replica, kube: KubeClient) -> None:
    other = Replica(kube, "b").see(fake)
    await other.bind("n1", "u", 30)
    await one.publisher.publish()  # it has not seen that bind
    assert core(fake, "n1") == [70]


@pytest.mark.parametrize("before", [False, True], ids=["the record is made", "the record is written"])
async def test_a_bind_that_comes_before_the_write_stays_and_what_is_free_is_packed_again(
    fake: FakeKube,
    one: Replica,
    kube: KubeClient,
    before: bool,  # noqa: FBT001 a parameter of the test
) -> None:
    other = Replica(kube, "b").see(fake)
    if before:
        await other.bind("n1", "first", 10)
    fake.put(
        DEVICES.path(), device_object(device_entry(0, id="GPU-n1-0"), name="n1", annotations={CORDONED: "GPU-n1-0"})
    )
    one.see(fake)  # the other one has not seen that yet
    held = hold()
    fake.faults.add("update" if before else "create", "nodeallocations", held)
    publishing = asyncio.create_task(one.publisher.publish())
    await held.reached.wait()
    await other.bind("n1", "u", 30)
    assert held.gate
    held.gate.set()

    assert await publishing == 1  # decided again, on the bind's record
    assert set(read_spec(fake.get(NODE_ALLOCATIONS.path("n1")))) == ({"first", "u"} if before else {"u"})
    assert core(fake, "n1") == [0]


async def test_replicas_take_the_nodes_in_orders_of_their_own_the_same_every_time(
    fake: FakeKube, kube: KubeClient
) -> None:
    names = [f"n{number}" for number in range(12)]
    for name in names:
        add_node(fake, name)
    orders = []
    for replica in ("a", "a", "b"):
        for name in names:
            if fake.objects(NODE_ALLOCATIONS.path()):
                fake.remove(NODE_ALLOCATIONS.path(name))
        fake.requests.clear()
        await Replica(kube, replica).see(fake).publisher.publish()
        orders.append([request.path.rpartition("/")[2] for request in fake.requests if request.verb == "get"])
    assert sorted(orders[0]) == sorted(names)
    assert orders[0] == orders[1] != orders[2]


async def test_writes_are_paced_and_rounds_come_at_the_interval(fake: FakeKube, kube: KubeClient) -> None:
    for number in range(3):
        add_node(fake, f"n{number}")
    replica = Replica(kube).see(fake)
    rounds = asyncio.Event()

    async def sleep(seconds: float) -> None:
        replica.sleeps.append(seconds)
        if replica.sleeps.count(30.0) == 2:
            rounds.set()
            await asyncio.Event().wait()

    replica.publisher._sleep = sleep
    running = asyncio.create_task(replica.publisher.run(30.0))
    await rounds.wait()
    running.cancel()
    pauses = replica.sleeps[: replica.sleeps.index(30.0)]
    assert len(pauses) == 3
    assert all(0 < pause < 1 for pause in pauses)
    assert all(published(fake, f"n{number}") for number in range(3))


async def test_what_befalls_all_nodes_ends_the_round_and_the_next_one_continues(
    fake: FakeKube, kube: KubeClient, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("n1", "n2"):
        add_node(fake, name)
    replica = Replica(kube).see(fake)
    fake.faults.add("create", "nodeallocations", answer(403))
    assert await replica.publisher.publish() == 0
    assert len(written(fake)) == 1
    assert "until the next round" in caplog.text
    assert await replica.publisher.publish() == 2


async def test_what_befalls_one_node_holds_up_no_other(
    fake: FakeKube, kube: KubeClient, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("n1", "n2"):
        add_node(fake, name)
    replica = Replica(kube).see(fake)
    fake.faults.add("create", "nodeallocations", answer(422))
    assert await replica.publisher.publish() == 1
    assert "what is free is not published" in caplog.text


BROKEN = {"metadata": {"name": "n1"}, "spec": {"allocations": ["nonsense"]}}


@pytest.mark.parametrize("seen", [True, False], ids=["seen", "not seen yet"])
async def test_a_record_that_cannot_be_read_is_left_as_it_is(
    fake: FakeKube,
    one: Replica,
    seen: bool,  # noqa: FBT001 a parameter of the test
) -> None:
    stands = fake.put(NODE_ALLOCATIONS.path(), BROKEN)
    if seen:
        one.see(fake)
    assert await one.publisher.publish() == 0
    assert fake.get(NODE_ALLOCATIONS.path("n1")) == stands


async def test_what_somebody_else_wrote_there_is_put_right(fake: FakeKube, one: Replica) -> None:
    await one.bind("n1", "u", 30)
    obj = fake.get(NODE_ALLOCATIONS.path("n1"))
    obj["metadata"]["annotations"] = {PACKED: "lies"}
    fake.put(NODE_ALLOCATIONS.path(), obj)
    assert await one.see(fake).publisher.publish() == 1
    assert core(fake, "n1") == [70]
    assert list(read_spec(fake.get(NODE_ALLOCATIONS.path("n1")))) == ["u"]


async def test_a_record_that_was_deleted_is_made_again_but_not_that_of_a_node_that_is_gone(
    fake: FakeKube, one: Replica
) -> None:
    await one.publisher.publish()
    fake.remove(NODE_ALLOCATIONS.path("n1"))
    await one.see(fake).publisher.publish()
    assert core(fake, "n1") == [100]

    fake.remove(NODE_ALLOCATIONS.path("n1"))
    fake.remove(NODES.path("n1"))
    assert await one.see(fake).publisher.publish() == 0
    assert published(fake, "n1") is None


async def test_the_record_of_a_node_that_is_gone_is_deleted_once_nobody_holds_anything_there(
    fake: FakeKube, one: Replica
) -> None:
    add_node(fake, "n2")
    await one.see(fake).bind("n1", "u")
    await one.publisher.publish()
    fake.remove(NODES.path("n1"))
    fake.remove(DEVICES.path("n1"))
    assert await one.see(fake).publisher.publish() == 0
    assert list(read_spec(fake.get(NODE_ALLOCATIONS.path("n1")))) == ["u"]

    await one.ledger.change("n1", lambda _held: ({}, None), 5.0)
    assert await one.publisher.publish() == 1
    assert [obj["metadata"]["name"] for obj in fake.objects(NODE_ALLOCATIONS.path())] == ["n2"]
    assert [record.node for record in one.ledger.records()] == ["n2"]
    fake.requests.clear()
    assert await one.publisher.publish() == 0
    assert fake.requests == []


async def test_a_record_that_another_replica_wrote_meanwhile_is_not_deleted(
    fake: FakeKube, one: Replica, kube: KubeClient
) -> None:
    await one.publisher.publish()
    await Replica(kube, "b").see(fake).bind("n1", "u")
    for resource in (NODES, DEVICES):
        fake.remove(resource.path("n1"))
        one.see(fake, resource)
    assert await one.publisher.publish() == 0  # it has not seen that bind
    assert list(read_spec(fake.get(NODE_ALLOCATIONS.path("n1")))) == ["u"]


async def test_records_that_may_not_be_deleted_stay_and_are_reported_once_a_round(
    fake: FakeKube, kube: KubeClient, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("n1", "n2"):
        add_node(fake, name)
    replica = Replica(kube).see(fake)
    await replica.publisher.publish()
    for name in ("n1", "n2"):
        fake.remove(NODES.path(name))
    fake.faults.always("delete", "nodeallocations", answer(403))
    assert await replica.see(fake).publisher.publish() == 0
    assert caplog.text.count("of a node that is gone stays") == 1
    assert len(fake.objects(NODE_ALLOCATIONS.path())) == 2


async def test_a_node_that_the_format_cannot_hold_is_reported_once(
    fake: FakeKube, one: Replica, caplog: pytest.LogCaptureFixture
) -> None:
    one.cluster.nodes.put("n1", NodeFacts({}, (own("IP pool", "IP pool", 3),)))
    for _ in range(2):
        assert await one.publisher.publish() == 0
    assert caplog.text.count("what is free cannot be published: 'IP pool' is no name of a resource class") == 1
    assert published_text(one.cluster, "n1", {}) == published_text(one.cluster, "unknown", {}) == ""
    assert published(fake, "n1") is None
