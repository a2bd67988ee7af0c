"""Pods without a class that an administrator puts under NUMA policies: from admission to the bind."""

import json
from typing import Any

import machines_cpu
import pytest
from builders import GIB, container, device_entry, pod
from fake_kube import FakeKube
from world import SCHEDULER, TENANT, US, World, asks, binding, binds

from allocator.request.cpus import QOS_LABEL
from allocator.vocabulary.devicetype import BUILT_IN
from allocator.vocabulary.names import NUMA_SCOPE, RESOURCE_STATUS
from allocator.wire.nodetopology import NumaZone
from allocator.wire.podannotations import RESOURCE_SPEC
from koordgate.kube.client import KubeClient
from koordgate.kube.resource import NODES, PODS
from webhook import patch, settings
from webhook.admission.scope import PolicyScope
from webhook.review import Response

Raw = dict[str, Any]
SETTINGS = settings.parse("""
numa:
  scope:
    namespaces: [training, batch]
    selector: {example.com/numa: aligned, team: a}
""")
LABELS = {"example.com/numa": "aligned", "team": "a"}
MACHINE = machines_cpu.build(2, 1, 4, 2, machines_cpu.siblings_near)  # 8 CPUs in each of two NUMA nodes
SINGLE = {"node.koordinator.sh/numa-topology-alignment-policy": "SingleNUMANode"}
CPUS = {"cpu": "3500m"}


@pytest.fixture
async def scoped(fake: FakeKube, kube: KubeClient) -> World:
    """n1 keeps each Pod in one of its two NUMA nodes."""
    world = World(fake, kube, SETTINGS)
    has = {"cpu": 8000, "memory": 32 * GIB, "example.com/nic": 3}
    zones = {at: NumaZone(has, has) for at in (0, 1)}
    cards = [device_entry(at, topology={"nodeID": at, "pcieID": str(at), "socketID": at}) for at in (0, 1)]
    world.add_node("n1", *cards, cpu=MACHINE)
    world.add_bare_node("n1", labels=SINGLE)
    world.add_topology("n1", MACHINE, zones=zones)
    world.see()
    return world


def made(name: str = "p", namespace: str = "training", asked: Raw | None = None, **about: Any) -> Raw:
    amounts = CPUS if asked is None else asked
    one = container(requests=amounts, limits=amounts)
    return pod(container("side"), one, name=name, namespace=namespace, uid=f"uid-{name}", **about)


def admitted(world: World, obj: Raw) -> Raw:
    """The Pod after both webhooks, which let it through."""
    review = asks(obj)
    response = world.parts.pods.mutate(review)
    assert response.allowed, response.message
    done = patch.apply(obj, response.patch)
    assert world.parts.pods.validate(asks(done)).allowed
    assert world.parts.pods.mutate(asks(done)).patch == ()
    return done


# A Pod, and whether it is in scope

CASES: dict[str, tuple[Raw, bool]] = {
    "in a namespace": (made(), True),
    "in another namespace of the list": (made(namespace="batch"), True),
    "with the labels": (made(namespace="default", labels=LABELS), True),
    "with the labels and others": (made(namespace="default", labels={**LABELS, "x": "y"}), True),
    "with one of the labels": (made(namespace="default", labels={"team": "a"}), False),
    "with a label of another value": (made(namespace="default", labels={**LABELS, "team": "b"}), False),
    "elsewhere": (made(namespace="default"), False),
    "memory alone": (made(asked={"memory": "1Gi"}), True),
    "neither CPU nor memory": (made(asked={"example.com/nic": "1"}), False),
    "nothing requested": (made(asked={}), False),
    "requested by an init container": (
        pod(container(), name="p", namespace="training", init=[container("first", CPUS)]),
        True,
    ),
    "requested for the Pod as a whole": (
        pod(container(), name="p", namespace="training", resources={"requests": {"cpu": "2"}}),
        True,
    ),
    "limits alone": (pod(container(limits=CPUS), name="p", namespace="training"), True),
    "an empty class": (made(labels={QOS_LABEL: ""}), True),
    "of our scheduler": (made(namespace="default", schedulerName="koord-scheduler"), True),
    "of our scheduler, nothing requested": (
        made(namespace="default", asked={}, schedulerName="koord-scheduler"),
        False,
    ),
    "of our scheduler, and its node is named": (
        made(namespace="default", schedulerName="koord-scheduler", nodeName="n1"),
        False,
    ),
    "of our scheduler, a wish without effect": (
        made(namespace="default", schedulerName="koord-scheduler", annotations={RESOURCE_SPEC: "{}"}),
        True,
    ),
    "of another scheduler": (made(namespace="default", schedulerName="other"), False),
    "SYSTEM is left to the kubelet": (made(labels={QOS_LABEL: "SYSTEM"}), False),
}


@pytest.mark.parametrize(("obj", "marked"), CASES.values(), ids=CASES)
async def test_a_pod_in_scope_is_marked_and_goes_to_our_scheduler(scoped: World, obj: Raw, *, marked: bool) -> None:
    done = admitted(scoped, obj)

    if not marked:
        assert done == obj
        return
    annotations = {**obj["metadata"].get("annotations", {}), NUMA_SCOPE: "true"}
    assert done["metadata"] == {**obj["metadata"], "annotations": annotations}
    assert done["spec"] == {**obj["spec"], "schedulerName": "koord-scheduler"}
    untranslated = scoped.parts.pods.validate(asks(obj))
    assert "koordgate.io/numa-scope]: is missing" in untranslated.message


@pytest.mark.parametrize("qos", ["LSR", "LS", "BE"])
async def test_a_pod_with_a_class_is_in_scope_by_that_alone(scoped: World, qos: str) -> None:
    done = admitted(scoped, made(labels={QOS_LABEL: qos}, asked={"cpu": "2"}))
    assert NUMA_SCOPE not in done["metadata"].get("annotations", {})
    assert done["spec"]["schedulerName"] == "koord-scheduler"


async def test_a_pod_that_asks_for_devices_is_translated_and_marked(scoped: World) -> None:
    done = admitted(scoped, made(asked={**CPUS, "nvidia.com/gpu": "1"}))
    assert done["metadata"]["annotations"][NUMA_SCOPE] == "true"
    assert "nvidia.com/gpu" not in done["spec"]["containers"][1]["resources"]["limits"]


async def test_an_author_may_put_a_pod_in_scope_and_mistakes_are_refused(scoped: World) -> None:
    own = made(namespace="default", annotations={NUMA_SCOPE: "true"})
    assert admitted(scoped, own)["spec"]["schedulerName"] == "koord-scheduler"
    wrong = scoped.parts.pods.mutate(asks(made(namespace="default", annotations={NUMA_SCOPE: "yes"})))
    assert 'metadata.annotations[koordgate.io/numa-scope]: must be "true"' in wrong.message
    assert admitted(scoped, made(annotations={NUMA_SCOPE: "yes"}))["metadata"]["annotations"][NUMA_SCOPE] == "true"


@pytest.mark.parametrize("by", [TENANT, US, SCHEDULER])
async def test_nobody_else_takes_a_pod_out_of_scope(scoped: World, by: str) -> None:
    done = admitted(scoped, made())
    out = {**done, "metadata": {**done["metadata"], "annotations": {}}}
    response = scoped.parts.pods.validate(asks(out, old=done, operation="UPDATE", username=by))
    assert response.allowed is (by == SCHEDULER)
    assert response.allowed or "is decided when the Pod is created" in response.message


async def test_refusals_of_a_pod_in_scope_say_that_it_is_in_scope_and_not_that_it_asks(scoped: World) -> None:
    done = admitted(scoped, made())
    for spec, what in (
        ({"nodeName": "n1"}, "spec.nodeName: must be empty: the Pod is in numa.scope"),
        ({"schedulerName": "x"}, "spec.schedulerName: is not koord-scheduler although the Pod is in numa.scope"),
    ):
        response = scoped.parts.pods.validate(asks({**done, "spec": {**done["spec"], **spec}}))
        assert what in response.message
        assert "asks for" not in response.message


async def bound(world: World, *pods: Raw) -> list[Response]:
    for obj in pods:
        world.add_pod(admitted(world, obj))
    world.see(PODS)
    requests = [binds(binding(obj["metadata"]["name"], "n1", namespace=obj["metadata"]["namespace"])) for obj in pods]
    return [await world.mutate(request) for request in requests]


def status_of(response: Response) -> Raw:
    (text,) = (
        value
        for operation in response.patch
        for key, value in ({} if isinstance(operation["value"], str) else operation["value"]).items()
        if key == RESOURCE_STATUS
    )
    status: Raw = json.loads(text)
    return status


async def test_a_single_numa_node_holds_for_pods_in_scope_as_for_labelled_ones(scoped: World) -> None:
    pods = [made(f"p{at}") for at in range(5)]

    responses = await bound(scoped, *pods)

    assert [response.allowed for response in responses] == [True] * 4 + [False]  # two fit into each NUMA node
    statuses = [status_of(response) for response in responses[:4]]
    assert sorted(one["cpuSharedPools"][0]["node"] for one in statuses) == [0, 0, 1, 1]
    assert all(one["numaNodeResources"][0]["resources"] == {"cpu": "3500m"} for one in statuses)
    assert "NUMA policy SingleNUMANode" in responses[4].message


async def test_resources_that_zones_report_are_held_too(scoped: World) -> None:
    pods = [made(f"p{at}", asked={"cpu": "1", "example.com/nic": "2"}) for at in range(3)]

    responses = await bound(scoped, *pods)

    assert [response.allowed for response in responses] == [True, True, False]


async def test_without_a_policy_of_the_node_a_pod_in_scope_is_bound_anywhere(scoped: World) -> None:
    scoped.add_bare_node("n1")
    scoped.see(NODES)
    (response,) = await bound(scoped, made(asked={"cpu": "12"}))
    assert response.allowed, response.message
    assert status_of(response) == {}


async def test_other_schedulers_may_not_bind_a_pod_in_scope(scoped: World) -> None:
    scoped.add_pod(admitted(scoped, made()))
    scoped.add_pod(made("older", schedulerName="default-scheduler"))  # created before the setting
    scoped.see(PODS)

    refused = await scoped.validate(binds(binding("p", "n1", namespace="training"), username="system:kube-scheduler"))
    older = await scoped.validate(binds(binding("older", "n1", namespace="training"), username="system:kube-scheduler"))

    assert (refused.allowed, refused.code) == (False, 403)
    assert "Pod training/p is in numa.scope or is labelled koordinator.sh/qosClass: LS" in refused.message
    assert older.allowed


def test_no_namespace_and_no_label_is_no_pod() -> None:
    assert not PolicyScope().includes("default", made(labels={"team": "a"}), BUILT_IN)


async def test_a_pod_that_koordgate_itself_sends_to_our_scheduler_needs_no_mark(scoped: World) -> None:
    done = admitted(scoped, made(namespace="default", asked={**CPUS, "nvidia.com/gpu": "1"}))
    assert done["spec"]["schedulerName"] == "koord-scheduler"
    assert NUMA_SCOPE not in done["metadata"]["annotations"]


@pytest.mark.parametrize("on", [True, False])
async def test_whether_pods_of_our_scheduler_are_in_scope_is_a_setting(
    fake: FakeKube, kube: KubeClient, *, on: bool
) -> None:
    world = World(fake, kube, settings.parse("" if on else "numa: {scope: {scheduler: false}}"))
    done = admitted(world, made(namespace="default", schedulerName="koord-scheduler"))
    assert (NUMA_SCOPE in done["metadata"].get("annotations", {})) is on
