"""Empty records of Nodes that are gone: deleted once nobody holds anything there, by any replica."""

from dataclasses import dataclass, field
from typing import Any

import pytest
from builders import device_entry, device_object, gpu, part
from fake_kube import FakeKube, answer

from allocator.vocabulary.devicetype import BUILT_IN
from allocator.vocabulary.holdings import Holding
from allocator.wire.nodeallocation import read_spec
from koordgate.kube.client import KubeClient
from koordgate.kube.resource import DEVICES, NODE_ALLOCATIONS, NODES, Resource
from koordgate.kube.watch import Handler
from webhook.ledger.kube import KubeStore, RecordHandler
from webhook.ledger.ledger import Ledger
from webhook.upkeep.discard import Discarder
from webhook.view.cluster import ClusterView, SeenObjects
from webhook.view.feed import NodeFeed, RecordFeed

SOON = 5.0


@dataclass
class Replica:
    """One replica's view of the fake cluster, fed by hand."""

    kube: KubeClient
    name: str = "a"
    sleeps: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        seen = SeenObjects(lambda: 1_800_000_000)
        self.ledger = Ledger(KubeStore(self.kube), watched=seen.changes.touch)
        cluster = ClusterView(seen, self.ledger)
        self.discarder = Discarder(cluster.nodes, self.ledger, self.name, self._sleep)

        def complain(_name: str, _problems: tuple[str, ...]) -> None:
            """A listener that ignores everything."""

        self._handlers: dict[Any, Handler] = {
            NODES: NodeFeed(cluster, BUILT_IN),
            NODE_ALLOCATIONS: RecordHandler(RecordFeed(cluster, self.ledger, complain)),
        }

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

    async def bind(self, node: str, uid: str) -> None:
        """Give a Pod a part of the node's first card."""
        held = Holding(uid, "default", uid, 0, (part(gpu(0, device_id=f"GPU-{node}-0"), 50),))
        await self.ledger.change(node, lambda holdings: ({**holdings, uid: held}, None), SOON)

    async def release(self, node: str) -> None:
        """Leave an empty record."""
        await self.ledger.change(node, lambda _holdings: ({}, None), SOON)


def add_node(fake: FakeKube, name: str) -> None:
    fake.put(NODES.path(), {"metadata": {"name": name, "uid": f"uid-{name}"}})
    fake.put(DEVICES.path(), device_object(device_entry(0, id=f"GPU-{name}-0"), name=name))


def recorded(fake: FakeKube) -> list[str]:
    return sorted(obj["metadata"]["name"] for obj in fake.objects(NODE_ALLOCATIONS.path()))


@pytest.fixture
async def one(fake: FakeKube, kube: KubeClient) -> Replica:
    """A replica that has seen two nodes, each with an empty record."""
    for name in ("n1", "n2"):
        add_node(fake, name)
    replica = Replica(kube).see(fake)
    for name in ("n1", "n2"):
        await replica.bind(name, "u")
        await replica.release(name)
    return replica


async def test_the_record_of_a_node_that_is_gone_is_deleted_once_nobody_holds_anything_there(
    fake: FakeKube, one: Replica
) -> None:
    await one.bind("n1", "u")
    fake.remove(NODES.path("n1"))
    assert await one.see(fake).discarder.discard() == 0
    assert list(read_spec(fake.get(NODE_ALLOCATIONS.path("n1")))) == ["u"]

    await one.release("n1")
    assert await one.discarder.discard() == 1
    assert recorded(fake) == ["n2"]
    assert [record.node for record in one.ledger.records()] == ["n2"]
    fake.requests.clear()
    assert await one.discarder.discard() == 0
    assert fake.requests == []


async def test_a_node_that_has_come_back_keeps_its_record(fake: FakeKube, one: Replica) -> None:
    fake.remove(NODES.path("n1"))
    one.see(fake)
    add_node(fake, "n1")
    assert await one.see(fake, NODES).discarder.discard() == 0
    assert recorded(fake) == ["n1", "n2"]


async def test_a_record_that_another_replica_wrote_meanwhile_is_not_deleted(
    fake: FakeKube, one: Replica, kube: KubeClient
) -> None:
    await Replica(kube, "b").see(fake).bind("n1", "u")
    fake.remove(NODES.path("n1"))
    assert await one.see(fake, NODES).discarder.discard() == 0  # it has not seen that bind
    assert list(read_spec(fake.get(NODE_ALLOCATIONS.path("n1")))) == ["u"]


async def test_records_that_may_not_be_deleted_stay_and_are_reported_once_a_round(
    fake: FakeKube, one: Replica, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("n1", "n2"):
        fake.remove(NODES.path(name))
    fake.faults.always("delete", "nodeallocations", answer(403))
    assert await one.see(fake).discarder.discard() == 0
    assert caplog.text.count("of a node that is gone stays") == 1
    assert recorded(fake) == ["n1", "n2"]


async def test_what_befalls_one_record_holds_up_no_other(
    fake: FakeKube, one: Replica, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("n1", "n2"):
        fake.remove(NODES.path(name))
    fake.faults.add("delete", "nodeallocations", answer(422))
    assert await one.see(fake).discarder.discard() == 1
    assert "of a node that is gone stays" in caplog.text
    assert len(recorded(fake)) == 1
    assert one.sleeps == [0.05, 0.05]


async def test_a_record_of_an_earlier_release_is_read_and_loses_its_packed_amounts_with_the_next_write(
    fake: FakeKube, one: Replica
) -> None:
    await one.bind("n1", "u")
    obj = fake.get(NODE_ALLOCATIONS.path("n1"))
    del obj["metadata"]["managedFields"]
    obj["metadata"]["annotations"] = {"koordgate.io/packed-resources": '{"gpu-core":{"b":7,"n":1}}'}
    fake.put(NODE_ALLOCATIONS.path(), obj)

    assert list(one.see(fake).ledger.record("n1").holdings) == ["u"]
    await one.bind("n1", "v")
    after = fake.get(NODE_ALLOCATIONS.path("n1"))
    assert sorted(read_spec(after)) == ["u", "v"]
    assert "annotations" not in after["metadata"]
