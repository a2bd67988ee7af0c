"""Making moves: one eviction after another, and a stop at the first surprise."""

import asyncio
import copy
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from defrag.fleets import guest, shares, tenants
from fake_kube import FakeKube, answer
from waiting import until

from allocator.packing.defrag import Move
from allocator.vocabulary.devicetype import BUILT_IN
from allocator.vocabulary.holdings import Holding
from allocator.vocabulary.names import DEVICE_ALLOCATED
from console.packing.apply import MoveOutcome, Mover, MoveResult
from console.packing.movable import Owner
from koordgate.kube.client import KubeClient

Raw = dict[str, Any]
PODS = "/api/v1/namespaces/team/pods"
OWNER = Owner("ReplicaSet", "serve", "u-serve")


def pod(name: str, node: str = "", owner: str = "u-serve", **about: Any) -> Raw:
    metadata = {"name": name, "namespace": "team", **about}
    metadata["ownerReferences"] = [{"kind": "ReplicaSet", "name": "serve", "uid": owner, "controller": True}]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"nodeName": node} if node else {}}


def move_of(stored: Raw, to: str) -> Move:
    name, uid = stored["metadata"]["name"], stored["metadata"]["uid"]
    (tenant,) = tenants("b", (name, "0"))
    who = guest(name, "0")
    who = type(who)(uid, who.namespace, name, who.request, who.asks)
    tenant = type(tenant)(who, "b")
    before = Holding(uid, "team", name, 0, shares("b", "0"))
    return Move(tenant, before, Holding(f"after {uid}", "team", name, 0, shares(to, "0")), to)


class Cluster:
    """Pods of one controller, the moves, and what is told of them."""

    def __init__(self, fake: FakeKube, kube: KubeClient) -> None:
        self.fake, self.kube = fake, kube
        self.told: list[str] = []

    def move(self, name: str, to: str) -> Move:
        return move_of(self.fake.put(PODS, pod(name, "b")), to)

    async def make(self, *moves: Move, within: float = 30.0) -> list[MoveResult]:
        owners = {move.tenant.guest.uid: OWNER for move in moves}
        return await Mover(self.kube, owners, BUILT_IN, within, self.told.append).run(moves)

    async def controller(self, old: str, new: str, node: str, annotations: Raw | None = None) -> None:
        """Makes a Pod again when it is gone, and has it bound."""
        await until(lambda: all(one["metadata"]["name"] != old for one in self.fake.objects(PODS)))
        self.fake.put(PODS, pod(new))
        bound = copy.deepcopy(self.fake.get(f"{PODS}/{new}"))
        bound["spec"]["nodeName"] = node
        bound["metadata"]["annotations"] = annotations or {}
        self.fake.put(PODS, bound)


@pytest.fixture
def cluster(fake: FakeKube, kube: KubeClient) -> Cluster:
    return Cluster(fake, kube)


async def test_each_move_waits_for_the_next_pod_of_its_controller(cluster: Cluster) -> None:
    moves = cluster.move("one", "a"), cluster.move("two", "c")
    cluster.fake.put(PODS, pod("stranger", "a", owner="u-other"))

    async def controller() -> None:
        await cluster.controller("one", "one-again", "a")
        await cluster.controller("two", "two-again", "c")

    made, _ = await asyncio.gather(cluster.make(*moves), controller())
    assert [(one.outcome, one.pod, one.node) for one in made] == [
        (MoveOutcome.MOVED, "team/one-again", "a"),
        (MoveOutcome.MOVED, "team/two-again", "c"),
    ]
    assert "1/2 Pod team/one became team/one-again on a, as planned" in cluster.told
    assert {one.query["limit"] for one in cluster.fake.seen("list", "pods")} == {"250"}


async def test_it_stops_where_the_next_pod_goes_elsewhere(cluster: Cluster) -> None:
    moves = cluster.move("one", "a"), cluster.move("two", "c")
    made, _ = await asyncio.gather(cluster.make(*moves), cluster.controller("one", "one-again", "d"))
    assert [one.outcome for one in made] == [MoveOutcome.ELSEWHERE]
    assert made[0].text == "Pod team/one became team/one-again on d, not on a as planned"
    assert cluster.fake.get(f"{PODS}/two")["spec"]["nodeName"] == "b"


@pytest.mark.parametrize(
    ("minor", "outcome", "text"),
    [
        (1, MoveOutcome.MOVED, "Pod team/one became team/one-again on b, as planned"),
        (0, MoveOutcome.ELSEWHERE, "Pod team/one became team/one-again on b, but on gpu 0, not on gpu 1 as planned"),
        (
            None,
            MoveOutcome.ELSEWHERE,
            "Pod team/one became team/one-again on b, but its devices cannot be read; planned is gpu 1",
        ),
    ],
    ids=["planned", "where it was", "unread"],
)
async def test_of_a_move_within_a_node_the_devices_are_compared(
    cluster: Cluster, minor: int | None, outcome: MoveOutcome, text: str
) -> None:
    stored = cluster.fake.put(PODS, pod("one", "b"))
    move = move_of(stored, "b")
    move = replace(move, after=replace(move.after, shares=shares("b", "1")))
    amounts = {"kubernetes.io/gpu-core": "100", "kubernetes.io/gpu-memory": "80Gi"}
    given = {"gpu": [{"minor": minor, "id": f"b-{minor}", "resources": amounts}]}
    annotations = {} if minor is None else {DEVICE_ALLOCATED: json.dumps(given)}
    made, *_ = await asyncio.gather(
        cluster.make(move, cluster.move("two", "c")),
        cluster.controller("one", "one-again", "b", annotations),
        *([cluster.controller("two", "two-again", "c")] if outcome is MoveOutcome.MOVED else []),
    )
    assert (made[0].outcome, made[0].text) == (outcome, text)
    assert len(made) == (2 if outcome is MoveOutcome.MOVED else 1)


def _renewed(fake: FakeKube) -> None:
    fake.remove(f"{PODS}/one")
    fake.put(PODS, pod("one", "b"))


def _changed(**change: Any) -> Callable[[FakeKube], None]:
    def change_it(fake: FakeKube) -> None:
        now = copy.deepcopy(fake.get(f"{PODS}/one"))
        now["metadata"] |= change.get("metadata", {})
        now["spec"] |= change.get("spec", {})
        fake.put(PODS, now)

    return change_it


@pytest.mark.parametrize(
    ("happens", "says"),
    [
        (lambda fake: fake.remove(f"{PODS}/one"), "it is gone"),
        (_renewed, "another Pod has its name now"),
        (_changed(metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"}), "it is ending"),
        (_changed(spec={"nodeName": "d"}), "it is not on b"),
        (_changed(metadata={"ownerReferences": []}), "it does not belong to ReplicaSet serve any more"),
        (
            _changed(metadata={"annotations": {"koordgate.io/movable": "false"}}),
            "its annotation forbids it now (koordgate.io/movable: false)",
        ),
    ],
    ids=["gone", "another", "ending", "moved", "orphan", "forbidden"],
)
async def test_a_pod_that_changed_since_the_plan_is_not_evicted(
    cluster: Cluster, happens: Callable[[FakeKube], None], says: str
) -> None:
    move = cluster.move("one", "a")
    happens(cluster.fake)
    (made,) = await cluster.make(move)
    assert (made.outcome, made.text) == (MoveOutcome.CHANGED, f"Pod team/one was not evicted: {says}")
    assert cluster.fake.seen("create", "pods/eviction") == []


async def test_a_budget_that_still_refuses_ends_it(cluster: Cluster) -> None:
    move, other = cluster.move("one", "a"), cluster.move("two", "a")
    cluster.fake.faults.always("create", "pods/eviction", answer(429, "Cannot evict"))
    made = await cluster.make(move, other, within=0)
    assert [(one.outcome, one.text) for one in made] == [
        (MoveOutcome.REFUSED, "Pod team/one was not evicted: Cannot evict")
    ]
    assert len(cluster.fake.objects(PODS)) == 2


async def test_a_pod_that_does_not_end_in_time_ends_it(cluster: Cluster) -> None:
    kept = move_of(cluster.fake.put(PODS, pod("one", "b", finalizers=["example.com/backup"])), "a")
    made = await cluster.make(kept, cluster.move("two", "a"), within=0)
    assert [(one.outcome, one.text) for one in made] == [
        (MoveOutcome.STILL_THERE, "Pod team/one was evicted and is still there after 0 s")
    ]
    assert cluster.fake.get(f"{PODS}/one")["metadata"]["deletionTimestamp"]
    assert len(cluster.fake.seen("create", "pods/eviction")) == 1


async def test_a_controller_that_makes_no_pod_ends_it(cluster: Cluster) -> None:
    (made,) = await cluster.make(cluster.move("one", "a"), within=0)
    assert made.outcome is MoveOutcome.UNBOUND
    assert made.text.startswith("Pod team/one is gone, and no new Pod of ReplicaSet serve was bound within")
