"""Pods that are older than a quota: how its mirror takes them in, and which may be bound, on a fake API server."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from builders import container, device_entry, gpu, pod
from fake_kube import FakeKube, Refused
from gangs.companies import Company, member
from quotas.laterquotas import CARDS, KEY, NVIDIA, make_pod
from waiting import until
from world import POLICY, World, gpu_pod

from allocator.request.cpus import QOS_LABEL
from allocator.vocabulary.devicetype import BUILT_IN
from koordgate.breaks import at_once
from koordgate.kube.client import KubeClient
from koordgate.kube.resource import PODS, RESOURCE_QUOTAS
from koordgate.kube.watch import Reflector
from webhook import patch
from webhook.admission.translate import translate
from webhook.quotas.controller import QuotaController
from webhook.quotas.gate import QuotaGate
from webhook.quotas.mirror import UNSTATED, mirror_body, written_names
from webhook.quotas.table import LimitTable, QuotaFeed
from webhook.quotas.unstated import Unstated
from webhook.review import RefusalReason
from webhook.view.changes import Changes
from webhook.view.feed import Listing
from webhook.view.loads import NodeLoads
from webhook.view.podinfo import PodInfo, read_pod_info
from webhook.view.pods import PodTable

Raw = dict[str, Any]
TEAM = RESOURCE_QUOTAS.path(namespace="default")
GIB_OF_A_CARD = 80 * 2**30


class Pods(Listing):
    """Takes in Pods, and nothing else of a cluster."""

    def __init__(self, table: PodTable) -> None:
        super().__init__()
        self._table = table

    def there(self, obj: Raw) -> None:
        known = self._table.get(obj["metadata"]["namespace"], obj["metadata"]["name"])
        found = read_pod_info(obj, known)
        if found is not None:
            self._table.put(found)

    def gone(self, namespace: str, name: str) -> None:
        self._table.drop(namespace, name)


class Replica:
    """What of a replica quotas concern."""

    def __init__(self, kube: KubeClient, *, followed: bool = True) -> None:
        self.problems: dict[str, tuple[str, ...]] = {}
        self.table = LimitTable(BUILT_IN)
        self.pods = PodTable(Changes(), NodeLoads())
        written = written_names(BUILT_IN, "kubernetes.io")
        self.unstated = Unstated(self.table, self.pods, written, lambda _: followed, lambda: GIB_OF_A_CARD, catch_up=0)
        self.controller = QuotaController(
            kube, self.table, self.unstated, lambda _: not followed, self.problems.__setitem__
        )
        self.gate = QuotaGate(kube, self.table, self.unstated, self.pods, lambda _uid: False, lambda _: followed)
        self.watches = [
            Reflector(kube, RESOURCE_QUOTAS, QuotaFeed(self.table)),
            Reflector(kube, PODS, Pods(self.pods)),
        ]
        self.pods.revision = lambda: self.watches[1].seen

    async def admit(self, name: str) -> PodInfo | str:
        found = self.pods.get("default", name)
        assert found is not None
        return await self.gate.admit(found, 5)


@asynccontextmanager
async def replicas(kube: KubeClient, count: int = 1, **about: bool) -> AsyncIterator[list[Replica]]:
    made = [Replica(kube, **about) for _ in range(count)]
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(watch.run()) for one in made for watch in one.watches]
        tasks += [group.create_task(one.controller.run(*(watch.synced for watch in one.watches))) for one in made]
        for one in made:
            await until(one.controller.settled.is_set)
        yield made
        for one in made:
            one.unstated.check_invariants()
        for task in tasks:
            task.cancel()


@pytest.fixture
async def fake() -> AsyncIterator[FakeKube]:
    async with FakeKube() as server:
        yield server


def put_quota(fake: FakeKube, hard: dict[str, str], **spec: Any) -> None:
    fake.put(TEAM, {"metadata": {"name": "q", "namespace": "default", "uid": "uid-q"}, "spec": {"hard": hard, **spec}})


def put_pod(fake: FakeKube, obj: Raw) -> None:
    fake.put(PODS.path(namespace="default"), {**obj, "metadata": {**obj["metadata"], "namespace": "default"}})


def stored(fake: FakeKube, name: str = "q.koordgate") -> Raw | None:
    with suppress(Refused):
        return fake.get(RESOURCE_QUOTAS.path(name, "default"))
    return None


def limit(fake: FakeKube, key: str = KEY) -> str | None:
    found = stored(fake)
    return None if found is None else found["spec"]["hard"].get(key)


def listed(fake: FakeKube) -> dict[str, Any]:
    found = stored(fake)
    assert found is not None
    return dict(json.loads(found["metadata"]["annotations"][UNSTATED])["pods"])


def enforce(fake: FakeKube, used: int = 0) -> None:
    """What the quota controller does."""
    for name in ("q", "q.koordgate"):
        if (found := stored(fake, name)) is not None:
            counted = {key: str(used) for key in found["spec"]["hard"]}
            fake.put(TEAM, {**found, "status": {"hard": dict(found["spec"]["hard"]), "used": counted}})


async def admitted_soon(one: Replica, name: str) -> PodInfo:
    """What a Pod gets once the replica has seen the quotas as they are."""
    found = one.pods.get("default", name)
    assert found is not None
    await until(lambda: isinstance(one.gate.judge(found, one.table.quotas("default")), PodInfo))
    admitted = await one.admit(name)
    assert isinstance(admitted, PodInfo)
    return admitted


async def test_a_quota_of_ones_own_has_a_mirror_only_while_older_pods_are_there(
    fake: FakeKube, kube: KubeClient
) -> None:
    for name in ("a", "b"):
        put_pod(fake, make_pod(name, 100, states=False, node="n"))
    put_pod(fake, make_pod("newer", 100, states=True, node="n"))
    async with replicas(kube, 2) as (one, _):
        put_quota(fake, {KEY: "400", "pods": "9"})
        await until(lambda: limit(fake) == "200")
        assert (stored(fake) or {})["spec"]["hard"] == {KEY: "200"}
        fake.remove(PODS.path("a", "default"))
        await until(lambda: limit(fake) == "300")
        fake.remove(PODS.path("b", "default"))
        await until(lambda: stored(fake) is None)
        assert fake.seen("update", "resourcequotas") != []
        assert all("/q.koordgate" in request.path for request in fake.seen("update", "resourcequotas"))
        assert one.problems["default/q"] == ()


async def test_the_mirror_of_a_quota_by_name_leaves_out_what_the_quota_itself_counts(
    fake: FakeKube, kube: KubeClient
) -> None:
    put_pod(fake, make_pod("translated", 50, states=False, node="n"))
    cards = {"nvidia.com/gpu": "2"}
    put_pod(fake, pod(container(limits=cards, requests=cards), name="plain", uid="uid-plain", nodeName="n"))
    put_quota(fake, {NVIDIA: "8"})
    found = stored(fake, "q") or {}
    fake.put(TEAM, {**found, "status": {"hard": {NVIDIA: "8"}, "used": {NVIDIA: "2"}}})
    async with replicas(kube):
        assert limit(fake) == "550"
    put_quota(fake, {KEY: "800"})
    async with replicas(kube):
        assert limit(fake) == "550", "no quota counts the plain Pod in this resource"


async def test_only_pods_in_the_scopes_of_a_quota_count_and_only_until_they_end(
    fake: FakeKube, kube: KubeClient
) -> None:
    ends = make_pod("ends", 100, states=False, node="n")
    ends["spec"]["activeDeadlineSeconds"] = 60
    for one in (ends, make_pod("stays", 50, states=False, node="n")):
        put_pod(fake, one)
    over = make_pod("over", 100, states=False, node="n")
    put_pod(fake, {**over, "status": {"phase": "Succeeded"}})
    put_quota(fake, {KEY: "400"}, scopes=["NotTerminating"])
    async with replicas(kube):
        assert limit(fake) == "350"
        assert (stored(fake) or {})["spec"]["scopes"] == ["NotTerminating"]


async def test_a_bound_pod_counts_what_it_holds_and_its_own_cpus(fake: FakeKube, kube: KubeClient) -> None:
    amounts = {"kubernetes.io/gpu-core": "20", "kubernetes.io/gpu-memory-ratio": "40"}
    shown = {"gpu": [{"minor": 0, "id": gpu(0).id, "resources": {**amounts, "kubernetes.io/gpu-memory": "32Gi"}}]}
    asks = {"kubernetes.io/gpu-memory": "32Gi", "kubernetes.io/gpu-core": "20"}
    held = pod(container(limits=asks, requests=asks), name="bytes", uid="uid-bytes", nodeName="n")
    held["metadata"]["annotations"] = {"scheduling.koordinator.sh/device-allocated": json.dumps(shown)}
    put_pod(fake, held)
    cpus = {"cpu": "3", "memory": "1Gi"}
    own = pod(container(limits=cpus, requests=cpus), name="own", uid="uid-own", nodeName="n", labels={QOS_LABEL: "LSR"})
    put_pod(fake, own)
    put_quota(fake, {KEY: "400", f"requests.{CARDS}-memory": "100Gi", "requests.quota.koordgate.io/cpus": "8"})
    async with replicas(kube):
        assert limit(fake) == "360"
        assert limit(fake, f"requests.{CARDS}-memory") == str(68 * 2**30)
        assert limit(fake, "requests.quota.koordgate.io/cpus") == "5"


async def test_a_bound_pod_that_withholds_its_card_counts_as_a_whole_one(fake: FakeKube, kube: KubeClient) -> None:
    amounts = {"kubernetes.io/gpu-core": "1", "kubernetes.io/gpu-memory-ratio": "1"}
    shown = {"gpu": [{"minor": 0, "id": gpu(0).id, "resources": {**amounts, "kubernetes.io/gpu-memory": "1Gi"}}]}
    alone = make_pod("alone", 1, states=False, node="n")
    alone["metadata"]["annotations"] = {
        "scheduling.koordinator.sh/device-allocated": json.dumps(shown),
        "scheduling.koordinator.sh/device-allocate-hint": json.dumps({"gpu": {"exclusivePolicy": "DeviceLevel"}}),
    }
    put_pod(fake, alone)
    put_quota(fake, {KEY: "400"})
    async with replicas(kube):
        assert limit(fake) == "300"


async def test_a_pod_that_waits_is_bound_in_its_turn_once_the_api_server_enforces_the_rest(
    fake: FakeKube, kube: KubeClient
) -> None:
    put_pod(fake, make_pod("runs", 100, states=False, node="n"))
    for name in ("first", "second"):
        put_pod(fake, make_pod(name, 200, states=False))
    put_quota(fake, {KEY: "400"})
    async with replicas(kube) as (one,):
        assert limit(fake) == "0"
        assert listed(fake) == {f"uid-{name}": {CARDS: 200} for name in ("first", "second")}
        await until(lambda: one.table.quota(("default", "q.koordgate")) is not None)
        assert "until the API server enforces the rest" in str(await one.admit("first"))
        enforce(fake)
        admitted = await admitted_soon(one, "first")
        assert dict(admitted.request.most) == {CARDS: 200}
        refused = await one.admit("second")
        assert refused == (
            f"it does not state {CARDS}, because it was created before ResourceQuota q limited that: the limit is 400, "
            "0 of it is counted, and this Pod and those before it would hold 500 more; it waits until Pods of its "
            "namespace end, or the quota is raised"
        )
        fake.remove(PODS.path("runs", "default"))
        await until(lambda: limit(fake) == "0" and one.pods.get("default", "runs") is None)
        enforce(fake, used=0)
        await admitted_soon(one, "second")
        enforce(fake, used=50)
        assert "50 of it is counted" in str(await one.admit("second"))


async def test_a_pod_that_is_not_judged_costs_no_read(fake: FakeKube, kube: KubeClient) -> None:
    put_quota(fake, {KEY: "300", f"requests.{CARDS}x": "1"})
    put_pod(fake, make_pod("states", 100, states=True))
    put_pod(fake, make_pod("older", 100, states=False))
    elsewhere = make_pod("elsewhere", 100, states=False)
    elsewhere["metadata"]["namespace"] = "other"
    fake.put(PODS.path(namespace="other"), elsewhere)
    async with replicas(kube) as (one,):
        before = len(fake.seen("list", "resourcequotas"))
        other = one.pods.get("other", "elsewhere")
        assert other is not None
        assert await one.admit("states") is one.pods.get("default", "states")
        assert await one.gate.admit(other, 5) is other
        assert len(fake.seen("list", "resourcequotas")) == before
        assert isinstance(await one.admit("older"), str)
        assert len(fake.seen("list", "resourcequotas")) == before, "it has to wait"
        enforce(fake)
        await until(lambda: CARDS in one.unstated.counted("default"))
        assert isinstance(await one.admit("older"), PodInfo)
        assert len(fake.seen("list", "resourcequotas")) == before + 1


async def test_a_replica_that_has_seen_less_than_the_writer_of_a_mirror_neither_writes_it_nor_binds(
    fake: FakeKube, kube: KubeClient
) -> None:
    put_pod(fake, make_pod("waits", 100, states=False))
    put_quota(fake, {KEY: "300"})
    async with replicas(kube) as (one,):
        await until(lambda: limit(fake) == "200")
        enforce(fake)
        await admitted_soon(one, "waits")
        one.pods.revision = lambda: 0
        assert await one.admit("waits") == (
            f"it does not state {CARDS}, because it was created before ResourceQuota q limited that: it waits until "
            "this replica has seen the Pods that another one has seen"
        )
        quota, mirror = one.table.quota(("default", "q")), one.table.quota(("default", "q.koordgate"))
        assert quota is not None
        assert one.unstated.plan(quota, mirror) is None


async def test_a_pod_of_which_nobody_knows_how_much_it_takes_is_refused_for_good(
    fake: FakeKube, kube: KubeClient
) -> None:
    odd = make_pod("odd", 10, states=False)
    hint = {"gpu": {"exclusivePolicy": "PCIeLevel"}}
    odd["metadata"]["annotations"] = {"scheduling.koordinator.sh/device-allocate-hint": json.dumps(hint)}
    put_pod(fake, odd)
    put_quota(fake, {KEY: "300"})
    async with replicas(kube) as (one,):
        assert "is only known when it is bound: delete it" in str(await one.admit("odd"))


async def test_where_pods_are_not_translated_quotas_stay_as_they_are(fake: FakeKube, kube: KubeClient) -> None:
    put_pod(fake, make_pod("a", 100, states=False, node="n"))
    put_quota(fake, {KEY: "300"})
    async with replicas(kube, followed=False) as (one,):
        assert stored(fake) is None
        assert await one.admit("a") is one.pods.get("default", "a")


async def test_a_pod_states_what_a_quota_limits_once_the_api_server_enforces_the_rest(
    fake: FakeKube, kube: KubeClient
) -> None:
    put_pod(fake, make_pod("a", 100, states=False, node="n"))
    async with replicas(kube) as (one,):
        put_quota(fake, {KEY: "300"})
        await until(lambda: limit(fake) == "200")
        await until(lambda: one.table.quota(("default", "q.koordgate")))
        assert CARDS not in one.unstated.counted("default")
        enforce(fake)
        await until(lambda: CARDS in one.unstated.counted("default"))
        put_pod(fake, make_pod("late", 100, states=False))
        await until(lambda: CARDS not in one.unstated.counted("default"))
        await until(lambda: limit(fake) == "100")
        enforce(fake)
        await until(lambda: CARDS in one.unstated.counted("default"))


async def test_a_quota_whose_mirror_cannot_be_made_stops_nobody(fake: FakeKube, kube: KubeClient) -> None:
    put_pod(fake, make_pod("waits", 100, states=False))
    put_quota(fake, {NVIDIA: "3"})
    fake.put(TEAM, {"metadata": {"name": "q.koordgate", "namespace": "default"}, "spec": {"hard": {"pods": "1"}}})
    async with replicas(kube) as (one,):
        await until(lambda: one.problems.get("default/q"))
        assert isinstance(await one.admit("waits"), PodInfo)
        assert CARDS in one.unstated.counted("default")


# --- what a replica does with them


def limited(world: World, fake: FakeKube) -> None:
    """A replica sees the quotas of the fake API server, and writes the mirror that it plans."""
    parts = world.parts
    parts.cluster.pods.revision = lambda: 1
    feed = QuotaFeed(parts.limits)
    for _ in range(2):
        for obj in fake.objects(TEAM):
            feed.put(obj)
        at_once(parts.unstated.fill())
        quota = parts.limits.quota(("default", "q"))
        assert quota is not None
        plan = parts.unstated.plan(quota, parts.limits.quota(("default", "q.koordgate")))
        assert plan is not None
        if plan[0]:
            fake.put(TEAM, mirror_body(quota, plan[0], None, plan[1]))
        enforce(fake)


def older(name: str, percent: int = 100, **about: Any) -> Raw:
    """A Pod that was admitted before anything was limited."""
    made = gpu_pod(name, percent, admit=False, **about)
    return patch.apply(made, translate(made, POLICY, None, states=()).operations)


async def test_a_bind_that_quotas_leave_no_room_for_is_refused_and_holds_nothing(
    fake: FakeKube, kube: KubeClient
) -> None:
    world = World(fake, kube)
    world.add_node("n1", *(device_entry(minor) for minor in range(4)))
    for name in ("first", "second"):
        world.add_pod(older(name))
    world.see()
    put_quota(fake, {KEY: "100"})
    limited(world, fake)
    assert (await world.bind("first", "n1")).allowed
    refused = await world.bind("second", "n1")
    assert (refused.code, refused.why) == (409, RefusalReason.QUOTA)
    assert "Pod default/second is not bound: it does not state quota.koordgate.io/gpu" in refused.message
    assert world.holders() == ["first"]
    await world.idle()


async def test_a_pod_does_not_get_more_than_was_counted_of_it(fake: FakeKube, kube: KubeClient) -> None:
    world = World(fake, kube)
    world.add_node("n1", device_entry(0))
    asks = {"kubernetes.io/gpu-memory": "8Gi"}
    made = pod(container(limits=asks, requests=asks), name="p", uid="uid-p")
    world.add_pod(patch.apply(made, translate(made, POLICY, None, states=()).operations))
    world.see()
    put_quota(fake, {KEY: "100"})
    limited(world, fake)
    assert listed(fake) == {"uid-p": {CARDS: 10}}
    world.add_node("n2", device_entry(0, "16Gi"))
    world.see()
    refused = await world.bind("p", "n2")
    assert "more than quotas count of the Pod" in refused.message
    assert (await world.bind("p", "n1")).allowed
    await world.idle()


def test_nobody_is_evicted_for_a_pod_that_may_have_to_wait(fake: FakeKube, kube: KubeClient) -> None:
    world = World(fake, kube)
    world.add_node("n1", device_entry(0))
    world.add_pod(older("low", namespace="other"))
    world.add_pod(older("high", priority=9))
    world.see()
    args = {"Pod": world.pod("high"), "NodeNameToMetaVictims": {"n1": {"Pods": [{"UID": "uid-low"}]}}}
    assert world.parts.extender.preempt(args)["NodeNameToMetaVictims"] != {}
    put_quota(fake, {KEY: "100"})
    limited(world, fake)
    assert world.parts.extender.preempt(args)["NodeNameToMetaVictims"] == {}


async def test_no_room_is_held_for_a_gang_that_quotas_leave_no_room_for(fake: FakeKube, kube: KubeClient) -> None:
    company = Company(fake, kube)
    company.add_nodes(n1=4)
    company.add(*(member(name, 2) for name in ("a", "b")))
    company.see()
    put_quota(fake, {KEY: "100"})
    limited(company.one, fake)
    await company.one.parts.gang_controller.round()
    assert company.one.holders() == []
    put_quota(fake, {KEY: "200"})
    limited(company.one, fake)
    company.pass_time(60)
    await company.one.parts.gang_controller.round()
    assert company.one.holders() == ["a", "b"]
    await company.one.idle()


async def test_pods_state_what_is_enforced_and_everything_where_they_are_only_observed(
    fake: FakeKube, kube: KubeClient
) -> None:
    world = World(fake, kube)
    put_quota(fake, {KEY: "100"})
    QuotaFeed(world.parts.limits).put(fake.get(RESOURCE_QUOTAS.path("q", "default")))
    assert world.parts._stated("default") == set(), "the API server does not enforce it yet"
    assert world.parts._stated("elsewhere") == set()
    assert world.parts._stated("kube-system") is None
    limited(world, fake)
    QuotaFeed(world.parts.limits).put(fake.get(RESOURCE_QUOTAS.path("q", "default")))
    assert world.parts._stated("default") == {CARDS}
