"""OfflineCluster: load, submit, bind, delete, in this process and over HTTPS alike."""

import random
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from builders import container, device_entry, device_object, pod
from simulator.clusters import asking, gpus, held, machine, nic, node, pinned, topology

from console.simulator.api import MUTATE_BINDING, VALIDATE_BINDING, InProcess
from console.simulator.cluster import OfflineCluster, PodFate
from webhook.settings import parse

Raw = dict[str, Any]


async def test_a_pod_goes_from_its_author_to_a_card() -> None:
    cluster = OfflineCluster.in_process()
    await cluster.load(machine())
    author = gpus("a", 50)
    result = await cluster.submit(author)
    assert (result.state, result.message, result.warnings) == (PodFate.BOUND, "", ())
    assert result.pod["spec"]["nodeName"] == "node-1"
    assert result.given is author
    assert author == gpus("a", 50), "the author's object stays as it was"
    assert cluster.pods == [result.pod]
    holding = cluster.account().holding(result.pod)
    assert holding is not None
    assert [share.id for share in holding.shares] == ["GPU-node-1-0"]


async def test_both_ways_to_the_webhook_give_the_same() -> None:
    objects = [*machine("node-1"), *machine("node-2"), held("old", "node-2", (0, 50))]
    pods = [gpus("a", 50), gpus("b", 250), gpus("c", 200), asking("d"), gpus("e", 100), gpus("f", 100)]
    here = OfflineCluster.in_process()
    await here.load(objects)
    direct = [await here.submit(one) for one in pods]
    async with OfflineCluster.over_https() as (there, way):
        await there.load(objects)
        remote = [await there.submit(one) for one in pods]
        assert way.calls > len(pods)
    assert remote == direct
    assert {result.state for result in direct} == {PodFate.BOUND, PodFate.DENIED, PodFate.UNSCHEDULABLE}


async def test_what_a_deleted_pod_held_is_free_again() -> None:
    cluster = OfflineCluster.in_process()
    await cluster.load(machine(cards=1))
    assert (await cluster.submit(gpus("a", 100))).state is PodFate.BOUND
    assert (await cluster.submit(gpus("b", 100))).state is PodFate.UNSCHEDULABLE
    await cluster.delete("default", "a")
    assert (await cluster.submit(gpus("c", 100))).state is PodFate.BOUND


# (scheduler's settings, the nodes of three Pods of a card each, one after another)

PREFERRED: dict[str, tuple[str, list[str]]] = {
    "packing fills the node with a card in use": ("preference: packing", ["node-1", "node-2", "node-2"]),
    "least requested avoids ordinary Pods": ("preference: leastRequested", ["node-2", "node-3", "node-2"]),
    "by its cards alone": ("{preference: leastRequested, preferenceClasses: [gpu]}", ["node-2", "node-3", "node-1"]),
    "by CPU alone": ("{preference: leastRequested, preferenceClasses: [cpu]}", ["node-2", "node-2", "node-3"]),
}


@pytest.mark.parametrize(("scheduler", "expected"), PREFERRED.values(), ids=PREFERRED)
@pytest.mark.parametrize("most", ["", "mostNodes: 0"])
async def test_a_simulation_compares_nodes_by_the_preference_of_its_settings(
    scheduler: str, expected: list[str], most: str
) -> None:
    given = parse(f"scheduler: {{{', '.join(filter(None, (scheduler.strip('{}'), most)))}}}")
    cluster = OfflineCluster.in_process(given)
    ordinary = [asking(f"o{number}", {"cpu": "19", "memory": "60Gi"}, nodeName="node-1") for number in range(3)]
    nodes = [one for number in (1, 2, 3) for one in machine(f"node-{number}")]
    await cluster.load(
        [*nodes, *ordinary, held("old", "node-1", (0, 50)), asking("x", {"cpu": "1"}, nodeName="node-3")]
    )
    taken = []
    for name in ("a", "b", "c"):
        result = await cluster.submit(gpus(name, 100))
        assert result.state is PodFate.BOUND, result.message
        taken.append(result.pod["spec"]["nodeName"])
    assert taken == expected


async def test_the_ledger_holds_what_the_annotations_say() -> None:
    cluster = OfflineCluster.in_process()
    await cluster.load([*machine(cards=2), held("old", "node-1", (0, 30))])
    for name, percent in (("a", 50), ("b", 70)):
        assert (await cluster.submit(gpus(name, percent))).state is PodFate.BOUND
    account = cluster.account()
    recorded = cluster.parts.ledger.record("node-1").holdings
    assert len(recorded) == 3
    for one in cluster.pods:
        said = account.holding(one)
        assert said is not None
        told = [(share.id, share.amounts) for share in said.shares]
        assert [(share.id, share.amounts) for share in recorded[one["metadata"]["uid"]].shares] == told


FUNCTIONS = {"scheduling.koordinator.sh/device-allocate-hint": '{"rdma":{"vfSelector":{}}}'}
ONE_NUMA = {"scheduling.koordinator.sh/numa-topology-spec": '{"numaTopologyPolicy":"SingleNUMANode"}'}
QUEUE = parse("devices: {types: [{name: queue, resource: example.com/queue, unit: units}]}")

# Ways to ask, by a number from 1 to 220.
FORMS: list[Callable[[str, int], Raw]] = [
    lambda name, n: gpus(name, n if n <= 100 else n // 100 * 100),
    lambda name, n: asking(name, {"kubernetes.io/gpu-memory": f"{n}Gi"}),
    lambda name, n: asking(
        name,
        {"kubernetes.io/gpu-core": str(min(n, 100)), "kubernetes.io/gpu-memory-ratio": str(101 - min(n, 100))},
    ),
    lambda name, n: asking(
        name, {"koordinator.sh/gpu-core": str(2 * (n % 51) or 2), "koordinator.sh/gpu-memory": "7G"}
    ),
    lambda name, n: asking(name, {"kubernetes.io/rdma": str(n % 60 + 1)}, annotations=FUNCTIONS),
    lambda name, n: asking(name, {"kubernetes.io/rdma": "100", "kubernetes.io/gpu": str(n % 9 + 1)}),
    lambda name, n: asking(name, {"example.com/queue": str(n % 5 + 1)}),
    lambda name, n: pinned(name, n % 6 + 1),
    lambda name, n: pinned(name, 2, "LSE", {"kubernetes.io/gpu": str(n % 100 + 1)}, annotations=ONE_NUMA),
]


@pytest.mark.parametrize("seed", range(4))
async def test_whatever_comes_and_goes_nothing_is_given_twice(seed: int) -> None:
    """Counted after each step from the annotations alone; the ledger must agree at the end."""
    dice = random.Random(seed)
    cluster = OfflineCluster.in_process(QUEUE, seed=seed)
    cards = [device_entry(minor, id=f"GPU-node-1-{minor}", topology={"nodeID": minor % 2}) for minor in range(3)]
    first = [node("node-1"), device_object(*cards, nic(0), nic(1), name="node-1"), topology("node-1")]
    classes = {"koordgate.io/classes": '{"queue":{"fast":6,"slow":9}}'}
    second = [*machine("node-2", cards=2, annotations=classes), topology("node-2", nodes=1)]
    await cluster.load([*first, *second, held("old", "node-2", (0, 35))])
    states, kinds = set(), set()
    for number in range(90):
        bound = [one for one in cluster.pods if one["spec"].get("nodeName")]
        if bound and dice.random() < 0.4:
            gone = dice.choice(bound)["metadata"]
            await cluster.delete(gone["namespace"], gone["name"])
        result = await cluster.submit(dice.choice(FORMS)(f"pod-{number}", dice.randint(1, 220)))
        states.add(result.state)
        account = cluster.account()
        assert account.overgiven() == []
        holding = account.holding(result.pod)
        if holding is not None:
            kinds |= {share.type for share in holding.shares} | ({"cpu"} if holding.cpus is not None else set())
    assert {PodFate.BOUND, PodFate.UNSCHEDULABLE} <= states
    assert kinds == {"gpu", "rdma", "queue", "cpu"}
    holders = {one["metadata"]["uid"] for one in cluster.pods if one["spec"].get("nodeName")}
    assert {uid for record in cluster.parts.ledger.records() for uid in record.holdings} == holders


async def test_a_name_that_is_taken_is_refused() -> None:
    cluster = OfflineCluster.in_process()
    await cluster.load(machine())
    await cluster.submit(gpus("a", 50))
    result = await cluster.submit(gpus("a", 50))
    assert (result.state, result.message) == (PodFate.DENIED, "Pod default/a exists already")


async def test_an_amount_that_is_no_quantity_is_refused_as_by_the_api_server() -> None:
    cluster = OfflineCluster.in_process()
    await cluster.load(machine())
    result = await cluster.submit(asking("a", {"cpu": "much"}))
    assert result.state is PodFate.DENIED
    assert "resources.requests[cpu]: 'much' is not a Kubernetes quantity" in result.message


async def test_nobody_else_binds_a_pod_that_asks_for_devices() -> None:
    cluster = OfflineCluster.in_process()
    await cluster.load(machine())
    await cluster.admit(gpus("a", 50))
    result = await cluster.bind("default", "a", "node-1", "somebody")
    assert result.state is PodFate.BIND_REFUSED
    assert "somebody is not its scheduler" in result.message
    assert (await cluster.bind("default", "a", "node-1")).state is PodFate.BOUND


async def test_a_refusal_of_the_bind_is_reported_and_leaves_the_pod_unbound() -> None:
    """The cards become unhealthy between the scheduler's call and the bind."""
    cluster = OfflineCluster.in_process()
    await cluster.load(machine(cards=1))
    parts = cluster.parts

    class IllAtBind(InProcess):
        async def post(self, path: str, body: Mapping[str, Any]) -> Any:
            if path == MUTATE_BINDING:
                parts.cluster.nodes.drop_devices("node-1")
            assert path != VALIDATE_BINDING, "the API server asks no further after a refusal"
            return await super().post(path, body)

    cluster._api = IllAtBind(parts)
    result = await cluster.submit(gpus("a", 50))
    assert result.state is PodFate.BIND_REFUSED
    assert "is not bound: node-1: no GPUs known here" in result.message
    assert "nodeName" not in result.pod["spec"]


async def test_a_pod_that_holds_what_cannot_be_read_may_hold_every_card_of_its_node() -> None:
    cluster = OfflineCluster.in_process()
    broken = held("old", "node-1", (0, 100))
    broken["metadata"]["annotations"] = {"scheduling.koordinator.sh/device-allocated": "{"}
    await cluster.load([*machine(cards=2), broken])
    assert (await cluster.submit(gpus("a", 10))).state is PodFate.UNSCHEDULABLE
    await cluster.delete("default", "old")
    assert (await cluster.submit(gpus("b", 200))).state is PodFate.BOUND


async def test_a_pod_that_holds_cpus_alone_is_adopted_and_deleted_like_any_other() -> None:
    cluster = OfflineCluster.in_process()
    await cluster.load([node(), topology(nodes=1, cores=2)])
    first = await cluster.submit(pinned("a", 4))
    again = OfflineCluster.in_process()
    await again.load([node(), topology(nodes=1, cores=2), first.pod])
    assert again.parts.ledger.record("node-1").holdings, "the reconciler adopted it"
    assert (await again.submit(pinned("b", 1))).state is PodFate.UNSCHEDULABLE
    await again.delete("default", "a")
    assert (await again.submit(pinned("c", 4))).state is PodFate.BOUND


@pytest.mark.parametrize(
    "asked",
    [pinned("a", 2), asking("a", {"example.com/queue": "1"}), asking("a", {"kubernetes.io/rdma": "10"})],
    ids=["CPUs", "an own type", "a NIC"],
)
async def test_nobody_else_binds_a_pod_that_asks_for_anything_of_ours(asked: Raw) -> None:
    cluster = OfflineCluster.in_process(QUEUE)
    await cluster.load([node(), topology()])
    await cluster.admit(asked)
    assert (await cluster.bind("default", "a", "node-1", "somebody")).state is PodFate.BIND_REFUSED


async def test_pods_that_the_settings_put_in_scope_are_aligned_and_exempt_namespaces_are_not() -> None:
    scope = "numa: {scope: {namespaces: [training, kube-system]}}\ncpus: {numaTopologyPolicy: SingleNUMANode}"
    cluster = OfflineCluster.in_process(parse(scope))
    await cluster.load([node(), topology()])  # 8 CPUs in each of two NUMA nodes

    placed = [await cluster.submit(asking(f"p{at}", {"cpu": "5"}, namespace="training")) for at in range(3)]
    left = [await cluster.submit(asking("p", {"cpu": "5"}, namespace=name)) for name in ("default", "kube-system")]

    assert [one.state for one in placed] == [PodFate.BOUND, PodFate.BOUND, PodFate.UNSCHEDULABLE]
    assert [one.pod["spec"]["schedulerName"] for one in left] == ["default-scheduler"] * 2


# What is shown to the webhook


class Recorded(InProcess):
    """Notes what is posted."""

    def __init__(self, cluster: OfflineCluster) -> None:
        super().__init__(cluster.parts)
        self.posted: list[tuple[str, Any]] = []

    async def post(self, path: str, body: Mapping[str, Any]) -> Any:
        self.posted.append((path, body))
        return await super().post(path, body)

    def taken(self) -> list[str]:
        """The paths since the last call."""
        paths = [path for path, _ in self.posted]
        self.posted.clear()
        return paths


def recorded(cluster: OfflineCluster) -> Recorded:
    cluster._api = made = Recorded(cluster)
    return made


def space(name: str, mode: str) -> Raw:
    return {"kind": "Namespace", "metadata": {"name": name, "labels": {"koordgate.io/mode": mode}}}


REVIEWED: dict[str, tuple[Raw, list[str]]] = {
    "asks for devices": (gpus("a", 50), ["/mutate-pod", "/validate-pod"]),
    "asks for nothing": (asking("a", {"cpu": "1"}), ["/warn-pod"]),
    "carries an allocation": (
        asking("a", annotations={"scheduling.koordinator.sh/device-allocated": "{}"}),
        ["/mutate-pod", "/validate-pod"],
    ),
    "has other annotations": (asking("a", annotations={"example.com/a": "b"}), ["/warn-pod"]),
    "asks in a form that is not read": (
        asking("a", annotations={"nvidia.com/container.main.gpus.devices": "1"}),
        ["/mutate-pod"],
    ),
    "in a namespace in shadow": (gpus("a", 50, namespace="shadow"), ["/shadow-pod"]),
    "asks for nothing in shadow": (asking("a", namespace="shadow"), []),
    "in a namespace that is off": (gpus("a", 50, namespace="off"), []),
    "in a namespace that is exempt": (gpus("a", 50, namespace="kube-system"), []),
}


@pytest.mark.parametrize("name", REVIEWED)
async def test_a_new_pod_is_shown_to_the_webhooks_that_the_chart_calls_for_it(name: str) -> None:
    pod_, paths = REVIEWED[name]
    cluster = OfflineCluster.in_process(parse("dialects: {kai: {enabled: true}}"))
    await cluster.load([*machine(), space("shadow", "shadow"), space("off", "off")])
    way = recorded(cluster)
    await cluster.admit(pod_)
    assert way.taken() == paths


async def test_a_gate_of_another_stays_when_that_of_a_gang_is_lifted() -> None:
    cluster = OfflineCluster.in_process(parse("gangs: {allOrNothing: true}"))
    group = {"kind": "PodGroup", "metadata": {"name": "train"}, "spec": {"minMember": 2}}
    await cluster.load([*machine(cards=2), group])
    about = {
        "labels": {"scheduling.x-k8s.io/pod-group": "train"},
        "annotations": {"koordgate.io/gang-all-or-nothing": "true"},
    }
    results = [await cluster.submit(gpus(name, 100, **about)) for name in "ab"]
    assert {one.state for one in results} == {PodFate.UNSCHEDULABLE}
    assert all(len(one.pod["spec"]["schedulingGates"]) == 1 for one in results)
    settled = await cluster.settle(results)
    assert [one.state for one in settled] == [PodFate.BOUND] * 2
    assert [one.pod["spec"]["schedulingGates"] for one in settled] == [[], []]


@pytest.mark.parametrize("field", ["requests", "limits"])
async def test_a_limit_that_is_no_quantity_is_refused_where_a_quota_or_a_range_reads_it(field: str) -> None:
    objects: dict[str, Raw] = {
        "requests": {"kind": "ResourceQuota", "metadata": {"name": "q"}, "spec": {"hard": {"limits.cpu": "9"}}},
        "limits": {
            "kind": "LimitRange",
            "metadata": {"name": "r"},
            "spec": {"limits": [{"type": "Container", "max": {"cpu": "9"}}]},
        },
    }
    cluster = OfflineCluster.in_process()
    await cluster.load([*machine(), objects[field]])
    result = await cluster.submit(pod(container(requests={"cpu": "1"}, limits={"cpu": "much"})))
    assert result.state is PodFate.DENIED
    assert result.message.startswith("Pod default/pod is forbidden: ")
    assert "'much' is not a Kubernetes quantity" in result.message


async def test_the_extender_is_asked_whom_a_pod_for_devices_would_evict_and_no_other() -> None:
    cluster = OfflineCluster.in_process()
    web = asking("web", {"cpu": "1"}, nodeName="plain")
    await cluster.load(
        [*machine(cards=1), node("plain", cpu="1", labels={"a": "b"}), web, held("old", "node-1", (0, 100))]
    )
    card, cpu = gpus("card", 100, priority=9), asking("cpu", {"cpu": "1"}, priority=9, nodeSelector={"a": "b"})
    results = [await cluster.submit(one) for one in (card, cpu)]
    way = recorded(cluster)
    await cluster.settle(results)
    ((path, body),) = way.posted
    assert (path, body["Pod"]["metadata"]["name"]) == ("/scheduler/preempt", "card")
    assert body["NodeNameToMetaVictims"] == {"node-1": {"Pods": [], "NumPDBViolations": 0}}
