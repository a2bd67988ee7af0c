"""CPUs are allocated when the Pod is bound, as devices are: requested, recorded, shown, kept apart and released."""

import asyncio
import json
from typing import Any

import machines_cpu
import pytest
from builders import GIB, container, device_entry, pod
from fake_kube import FakeKube
from hypothesis import given, settings
from hypothesis import strategies as st
from world import (
    POLICY,
    SCHEDULER,
    TENANT,
    World,
    admitted,
    annotation_of,
    asks,
    binding,
    binds,
    cpu_pod,
    gpu_pod,
    releasing,
    repeated,
)

from allocator.request.cpus import QOS_LABEL
from allocator.vocabulary.cpunode import BindPolicy, CpuShare, ExclusivePolicy, NumaPolicy
from allocator.vocabulary.cputopology import parse
from allocator.vocabulary.names import DEVICE_ALLOCATED, ORIGINAL_REQUEST, OWN_CPUS, QUOTA_CPUS, RESOURCE_STATUS
from allocator.wire.nodetopology import CpuManagerPolicy, KubeletCpus, PodCpuAlloc
from allocator.wire.podannotations import NUMA_TOPOLOGY_SPEC, RESOURCE_SPEC
from koordgate.kube.client import KubeClient
from koordgate.kube.resource import NODE_ALLOCATIONS, NODES, PODS, TOPOLOGIES
from webhook import patch
from webhook.admission.pods import PodWebhooks
from webhook.scheduling.account import Occasion

Raw = dict[str, Any]
WEBHOOKS = PodWebhooks(POLICY, SCHEDULER, lambda _pod: (0, 0))
NEAR = machines_cpu.build(2, 1, 4, 2, machines_cpu.siblings_near)  # CPUs 2k and 2k+1 are a core; 0-7 and 8-15 a node


@pytest.fixture
async def cpus(world: World) -> World:
    """n1: 16 CPUs in two NUMA nodes, and a GPU in each."""
    cards = [device_entry(at, topology={"nodeID": at, "pcieID": str(at), "socketID": at}) for at in (0, 1)]
    world.add_node("n1", *cards, cpu=NEAR)
    world.see()
    return world


def status_of(world: World, name: str) -> Raw:
    told: Raw = json.loads(world.pod(name)["metadata"]["annotations"][RESOURCE_STATUS])
    return told


def cpuset_of(world: World, name: str) -> int:
    return parse(status_of(world, name).get("cpuset", ""))


def spec(**wishes: str) -> dict[str, str]:
    return {RESOURCE_SPEC: json.dumps(wishes)}


def numa(policy: str) -> dict[str, str]:
    return {NUMA_TOPOLOGY_SPEC: json.dumps({"numaTopologyPolicy": policy})}


# --- admission


@pytest.mark.parametrize("qos", ["LSE", "LSR"])
def test_a_pod_that_asks_cpus_alone_goes_to_our_scheduler_is_counted_and_nothing_else_of_it_is_touched(
    qos: str,
) -> None:
    env = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}, {"name": "A", "value": "1"}]
    obj = cpu_pod("p", 2, qos, admit=False)
    obj["spec"]["containers"][0]["env"] = env
    done = patch.apply(obj, WEBHOOKS.mutate(asks(obj)).patch)
    for amounts in done["spec"]["containers"][0]["resources"].values():
        assert amounts.pop("quota.koordgate.io/cpus") == "2"
    assert done == {**obj, "spec": {**obj["spec"], "schedulerName": "koord-scheduler"}}
    done = patch.apply(obj, WEBHOOKS.mutate(asks(obj)).patch)
    assert WEBHOOKS.mutate(asks(done)).patch == ()
    assert WEBHOOKS.validate(asks(done)).allowed


@pytest.mark.parametrize("qos", ["LS", "BE"])
def test_a_pod_of_a_class_without_cpus_of_its_own_goes_to_our_scheduler_too(qos: str) -> None:
    """A node may require alignment of its LS Pods; they may request parts of CPUs."""
    obj = cpu_pod("p", "1500m", qos, admit=False)
    done = patch.apply(obj, WEBHOOKS.mutate(asks(obj)).patch)
    assert done == {**obj, "spec": {**obj["spec"], "schedulerName": "koord-scheduler"}}
    assert WEBHOOKS.validate(asks(done)).allowed


@pytest.mark.parametrize("qos", ["SYSTEM", ""])
def test_a_pod_of_no_class_of_ours_is_left_alone(qos: str) -> None:
    obj = cpu_pod("p", "1500m", qos, admit=False)
    assert WEBHOOKS.mutate(asks(obj)).patch == ()
    assert WEBHOOKS.validate(asks(obj)).allowed


def test_a_pod_with_cpus_of_its_own_that_was_not_translated_is_refused() -> None:
    response = WEBHOOKS.validate(asks(cpu_pod("p", admit=False)))
    assert "MutatingWebhookConfigurations" in response.message
    born = WEBHOOKS.validate(asks(cpu_pod("p", nodeName="n1")))
    assert "spec.nodeName" in born.message


def two(**second: Any) -> Raw:
    """A Pod of one valid container and this one."""
    right = {"cpu": "1"}
    return pod(container("good", requests=right, limits=right), container("bad", **second), labels={QOS_LABEL: "LSR"})


WRONG: dict[str, tuple[Raw, str, str]] = {
    "request below the limit": (
        two(requests={"cpu": "1"}, limits={"cpu": "2"}),
        "spec.containers[bad].resources",
        "",
    ),
    "no whole number": (
        two(requests={"cpu": "1500m"}, limits={"cpu": "1500m"}),
        "spec.containers[bad].resources",
        "whole",
    ),
    "no number": (two(requests={"cpu": "two"}, limits={"cpu": "two"}), "spec.containers[bad].resources", ""),
    "reclaimed resources": (
        cpu_pod("p", labels={"koordinator.sh/priority-class": "koord-batch"}, admit=False),
        "priority",
        "koord-prod",
    ),
    "no such class": (
        cpu_pod("p", qos="LSX", admit=False),
        f"metadata.labels[{QOS_LABEL}]",
        "LSE, LSR, LS, BE, SYSTEM",
    ),
    "no such policy": (
        cpu_pod("p", annotations=spec(requiredCPUBindPolicy="Any"), admit=False),
        f"metadata.annotations[{RESOURCE_SPEC}]",
        "",
    ),
    "no JSON": (cpu_pod("p", annotations={NUMA_TOPOLOGY_SPEC: "{"}, admit=False), NUMA_TOPOLOGY_SPEC, ""),
    "a policy that needs CPUs of its own": (
        cpu_pod("p", qos="LS", annotations=spec(requiredCPUBindPolicy="FullPCPUs"), admit=False),
        f"metadata.annotations[{RESOURCE_SPEC}]",
        "LSR",
    ),
    "beside a GPU that is asked rightly": (
        cpu_pod("p", "1500m", more={"kubernetes.io/gpu": "50"}, admit=False),
        "spec.containers[main].resources",
        "whole",
    ),
}


@pytest.mark.parametrize(("obj", "path", "cure"), WRONG.values(), ids=WRONG)
def test_what_can_never_work_is_denied_with_its_field_by_both_webhooks(obj: Raw, path: str, cure: str) -> None:
    for response in (WEBHOOKS.mutate(asks(obj)), WEBHOOKS.validate(asks(obj))):
        assert not response.allowed
        assert response.code == 422
        assert path in response.message
        assert cure in response.message
        assert "containers[good]" not in response.message


# --- containers that run on shared CPUs

PROXY = container("istio-proxy", requests={"cpu": "100m", "memory": "1Gi"}, limits={"cpu": "2", "memory": "1Gi"})
STRANGE = container("logger", requests={"cpu": "250m"}, limits={"cpu": "250m"})


def injected(obj: Raw, *sidecars: Raw) -> Raw:
    """The Pod after an injector put containers before its own."""
    return {**obj, "spec": {**obj["spec"], "containers": [*sidecars, *obj["spec"]["containers"]]}}


@pytest.mark.parametrize("stated", [{}, {OWN_CPUS: "main"}], ids=["implied", "stated"])
@pytest.mark.parametrize("sidecar", [PROXY, STRANGE], ids=["a known injector's", "another"])
def test_what_is_injected_before_or_after_the_translation_is_right_and_counted_by_no_quota(
    sidecar: Raw, stated: dict[str, str]
) -> None:
    born = cpu_pod("p", 2, annotations=stated, overhead={"cpu": "1"}, admit=False)
    before, after = admitted(injected(born, sidecar)), injected(admitted(born), sidecar)
    for obj in (before, after):
        assert WEBHOOKS.validate(asks(obj)).allowed, WEBHOOKS.validate(asks(obj)).message
        first, main = obj["spec"]["containers"]
        assert QUOTA_CPUS not in first["resources"]["requests"]
        assert main["resources"]["requests"][QUOTA_CPUS] == "3"
    warnings = WEBHOOKS.mutate(asks(injected(born, sidecar))).warnings
    assert any(OWN_CPUS in one for one in warnings) is (sidecar is STRANGE and not stated)


@pytest.mark.parametrize(("old", "new"), [("main", None), (None, "main"), ("main", "main,logger")])
def test_nobody_says_later_which_containers_have_the_cpus(old: str | None, new: str | None) -> None:
    made = admitted(injected(cpu_pod("p", admit=False), STRANGE))
    was, now = (
        {**made, "metadata": {**made["metadata"], "annotations": {} if one is None else {OWN_CPUS: one}}}
        for one in (old, new)
    )
    response = WEBHOOKS.validate(asks(now, old=was, operation="UPDATE", username=TENANT))
    assert response.message.endswith(
        f"metadata.annotations[{OWN_CPUS}]: is decided when the Pod is created; leave it unchanged"
    )


@pytest.mark.parametrize("amount", ["1", "100m", "3"])
def test_a_container_that_left_is_not_resized_in_place_either(amount: str) -> None:
    was = admitted(injected(cpu_pod("p", 2, admit=False), PROXY))
    sidecar, main = was["spec"]["containers"]
    changed = {**sidecar, "resources": {**sidecar["resources"], "limits": {"cpu": amount, "memory": "1Gi"}}}
    now = {**was, "spec": {**was["spec"], "containers": [changed, main]}}
    response = WEBHOOKS.validate(asks(now, old=was, operation="UPDATE", subresource="resize", username=TENANT))
    assert "spec.containers[0].resources.limits[cpu]: its CPUs were chosen when it was bound" in response.message


async def test_a_pod_with_a_sidecar_gets_what_its_own_containers_ask_and_its_memory_in_full(cpus: World) -> None:
    obj = cpu_pod("p", 2, annotations=numa("SingleNUMANode"), more={"memory": "1Gi"}, admit=False)
    (response,) = await cpus.start(admitted(injected(obj, PROXY)))
    assert response.allowed, response.message
    assert status_of(cpus, "p") == {
        "cpuset": "0-1",
        "numaNodeResources": [{"node": 0, "resources": {"cpu": "2", "memory": "2Gi"}}],
    }
    cpus.audit()


# --- the bind


@pytest.mark.parametrize("qos", ["LSE", "LSR"])
async def test_a_bind_gives_cpus_records_them_and_shows_them(cpus: World, qos: str) -> None:
    (response,) = await cpus.start(cpu_pod("p", 2, qos))
    assert response.allowed, response.message
    assert cpus.pod("p")["spec"]["nodeName"] == "n1"
    told = cpus.pod("p")["metadata"]["annotations"]
    assert DEVICE_ALLOCATED not in told
    assert status_of(cpus, "p") == {"cpuset": "0-1"}  # a whole core
    held = cpus.holdings()["uid-p"]
    assert (held.shares, held.namespace, held.name, held.since) == ((), "default", "p", cpus.clock.now)
    assert held.cpus is not None
    assert (held.cpus.qos, held.cpus.cpus, held.cpus.bind) == (qos, 0b11, BindPolicy.FULL_PCPUS)
    assert response.audit == {
        "held": "cpus:0-1",
        "node": "n1",
        "pod-uid": "uid-p",
        "preference": "fragmentation",
        "reason": Occasion.NAMED,
        "recorded": "yes",
    }


async def test_cpus_and_devices_come_in_one_patch_and_one_holding(cpus: World) -> None:
    (response,) = await cpus.start(cpu_pod("p", 4, more={"kubernetes.io/gpu": "50"}))
    told = annotation_of(response.patch)
    assert told.keys() == {DEVICE_ALLOCATED, RESOURCE_STATUS, "visible-devices.koordgate.io/main"}
    held = cpus.holdings()["uid-p"]
    assert [share.id for share in held.shares] == ["GPU-n1-0"]
    assert held.cpus is not None
    assert held.cpus.cpus == cpuset_of(cpus, "p") == 0b1111
    assert response.audit["held"] == "gpu:0:GPU-n1-0 cpus:0-3"
    cpus.audit()


async def test_an_aligned_pod_has_its_devices_and_cpus_in_one_numa_node(cpus: World) -> None:
    annotations = numa("SingleNUMANode")
    pods = [cpu_pod(f"p{at}", 4, annotations=annotations, more={"kubernetes.io/gpu": "100"}) for at in range(2)]
    assert [response.allowed for response in await cpus.start(*pods)] == [True, True]
    for name in ("p0", "p1"):
        held = cpus.holdings()[f"uid-{name}"]
        (share,) = held.shares
        assert held.cpus is not None
        assert held.cpus.cpus & NEAR.nodes[share.minor] == held.cpus.cpus
        told = status_of(cpus, name)["numaNodeResources"]
        assert told == [{"node": share.minor, "resources": {"cpu": "4"}}]


async def test_an_ls_pod_that_is_aligned_gets_its_shared_pool(cpus: World) -> None:
    obj = cpu_pod("p", 2, "LS", annotations=numa("SingleNUMANode"), more={"memory": "1Gi"})
    assert obj["spec"]["schedulerName"] == "koord-scheduler"
    (response,) = await cpus.start(obj)
    assert response.allowed, response.message
    told = status_of(cpus, "p")
    assert "cpuset" not in told
    (pool,) = told["cpuSharedPools"]
    assert pool == {"socket": pool["node"], "node": pool["node"]}
    assert told["numaNodeResources"] == [{"node": pool["node"], "resources": {"cpu": "2", "memory": "1Gi"}}]
    held = cpus.holdings()["uid-p"].cpus
    assert held is not None
    assert [(one.milli, one.memory) for one in held.numa] == [(2000, GIB)]


@pytest.mark.parametrize(("qos", "told"), [("LS", True), ("BE", False)])
async def test_a_node_that_wants_it_aligns_pods_of_the_shared_pool_that_say_nothing(
    cpus: World, qos: str, *, told: bool
) -> None:
    cpus.add_bare_node("n1", labels={"node.koordinator.sh/numa-topology-alignment-policy": "SingleNUMANode"})
    cpus.see(NODES)
    pods = [cpu_pod(f"p{number}", "3500m", qos) for number in range(5)]
    responses = await cpus.start(*pods)
    assert [response.allowed for response in responses] == [True] * 4 + [not told]  # two fit each NUMA node
    if told:
        pools = [status_of(cpus, f"p{number}")["cpuSharedPools"] for number in range(4)]
        assert sorted(pool["node"] for (pool,) in pools) == [0, 0, 1, 1]
    else:
        assert [status_of(cpus, f"p{number}") for number in range(5)] == [{}] * 5


@pytest.mark.parametrize("label", [{}, {"node.koordinator.sh/numa-topology-alignment-policy": "None"}])
@pytest.mark.parametrize("qos", ["LS", "BE"])
async def test_elsewhere_such_a_pod_is_given_no_cpus_and_takes_none(
    cpus: World, qos: str, label: dict[str, str]
) -> None:
    cpus.add_bare_node("n1", labels=label)
    cpus.see(NODES)
    first, second = await cpus.start(cpu_pod("p", "99", qos), cpu_pod("all", 16))  # kube-scheduler counts parts
    assert first.allowed, first.message
    assert second.allowed, second.message
    assert status_of(cpus, "p") == {}
    assert cpus.holdings()["uid-p"].cpus == CpuShare(qos)


async def test_cpusets_of_many_pods_are_apart_until_there_are_no_more(cpus: World) -> None:
    names = [f"p{number:02}" for number in range(12)]
    for number, name in enumerate(names):
        cpus.add_pod(cpu_pod(name, 2, "LSE" if number % 2 else "LSR"))
    cpus.see(PODS)
    responses = await asyncio.gather(*(cpus.bind(name, see=False) for name in names))
    bound = [name for name, response in zip(names, responses, strict=True) if response.allowed]
    assert len(bound) == 8
    sets = [cpuset_of(cpus, name) for name in bound]
    assert sum(sets) == (1 << 16) - 1  # as many bits as CPUs: none is given twice
    refused = next(response for response in responses if not response.allowed)
    assert refused.code == 409
    assert "2 CPUs are requested, 0 are free" in refused.message
    cpus.audit()


async def test_replicas_side_by_side_give_no_cpu_twice(fake: FakeKube, kube: KubeClient) -> None:
    replicas = [World(fake, kube) for _ in range(3)]
    replicas[0].add_node("n1", cpu=NEAR)
    names = [f"p{number:02}" for number in range(15)]
    for name in names:
        replicas[0].add_pod(cpu_pod(name, 3))
    for replica in replicas:
        replica.see()
    responses = await asyncio.gather(*(replicas[number % 3].bind(name, see=False) for number, name in enumerate(names)))
    assert sum(response.allowed for response in responses) == 5
    replicas[0].audit()
    for replica in replicas:
        await replica.idle()


@given(
    st.lists(
        st.tuples(
            st.sampled_from("abcde"), st.sampled_from([1, 2, 3, 4, 9]), st.sampled_from(["LSE", "LSR", "LS", "end"])
        ),
        max_size=12,
    )
)
@settings(max_examples=25)
def test_through_any_history_no_cpu_has_two_owners(steps: list[tuple[str, int, str]]) -> None:
    async def tell() -> None:
        async with FakeKube() as fake, KubeClient(fake.url) as kube:
            world = World(fake, kube)
            world.add_node("n1", cpu=NEAR)
            world.see()
            async with releasing(world):
                for name, count, what in steps:
                    there = any(obj["metadata"]["name"] == name for obj in fake.objects(PODS.path()))
                    if what == "end":
                        if there:
                            world.remove_pod(name)
                            world.see(PODS)
                            await fake.until(lambda name=name: name not in world.holders())  # type: ignore[misc]
                    elif not there:
                        policy = numa("BestEffort") if what == "LS" else {}
                        await world.start(cpu_pod(name, count, what, annotations=policy))
                    world.audit()
            taken = 0
            for obj in fake.objects(PODS.path()):
                if obj["spec"].get("nodeName"):
                    own = cpuset_of(world, obj["metadata"]["name"])
                    assert not taken & own
                    taken |= own

    asyncio.run(tell())


async def test_cpus_that_the_kubelet_has_are_never_given(cpus: World) -> None:
    static = KubeletCpus(CpuManagerPolicy.STATIC, {"full-pcpus-only": "true"}, reserved=0b11)
    own = PodCpuAlloc("default", "guaranteed", "uid-g", 0b1100, managed_by_kubelet=True)
    cpus.add_topology("n1", NEAR, kubelet=static, pod_cpu_allocs=(own,))
    cpus.see(TOPOLOGIES)
    responses = await cpus.start(cpu_pod("a", 12), cpu_pod("b", 2))
    assert [response.allowed for response in responses] == [True, False]
    assert cpuset_of(cpus, "a") == 0xFFF0
    (odd,) = await cpus.start(cpu_pod("odd", 3))
    assert "only whole cores" in odd.message  # the kubelet would not admit the Pod


async def test_pods_choose_how_their_cpus_are_bound_and_kept_apart(cpus: World) -> None:
    spread = spec(preferredCPUBindPolicy="SpreadByPCPUs", preferredCPUExclusivePolicy="PCPULevel")
    await cpus.start(cpu_pod("a", 2, annotations=spread), cpu_pod("b", 2, annotations=spread))
    held = [cpus.holdings()[f"uid-{name}"].cpus for name in "ab"]
    cores = [NEAR.cores_of(one.cpus) for one in held if one is not None]
    assert [core.bit_count() for core in cores] == [4, 4]
    assert not cores[0] & cores[1]
    assert {one.exclusive for one in held if one is not None} == {ExclusivePolicy.PCPU_LEVEL}


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("no topology", "its CPUs are unknown"),
        ("unreadable allocations", "which of its CPUs are held or reserved cannot be read"),
        ("topology gone", "its CPUs are unknown"),
    ],
)
async def test_a_node_of_which_the_cpus_are_not_known_gives_none(cpus: World, how: str, told: str) -> None:
    if how == "topology gone":
        cpus.fake.remove(TOPOLOGIES.path("n1"))
    elif how == "no topology":
        cpus.add_topology("n1", NEAR)
        broken = cpus.fake.get(TOPOLOGIES.path("n1"))
        del broken["metadata"]["annotations"]["node.koordinator.sh/cpu-topology"]
        cpus.fake.put(TOPOLOGIES.path(), broken)
    else:
        broken = cpus.fake.get(TOPOLOGIES.path("n1"))
        broken["metadata"]["annotations"]["node.koordinator.sh/pod-cpu-allocs"] = "{"
        cpus.fake.put(TOPOLOGIES.path(), broken)
    cpus.see(TOPOLOGIES)
    (response,) = await cpus.start(cpu_pod("p"))
    assert response.code == 409
    assert told in response.message
    (card,) = await cpus.start(gpu_pod("card"))
    assert card.allowed  # devices are still given


# --- the same Pod again, dry runs, others' Bindings


async def test_a_bind_that_is_tried_again_gets_the_same_cpus(cpus: World) -> None:
    for name in ("p", "other"):
        cpus.add_pod(cpu_pod(name, 2))
    cpus.see(PODS)
    first = await cpus.mutate(binds(binding("p", "n1")))
    await cpus.mutate(binds(binding("other", "n1")))
    assert await cpus.mutate(binds(binding("p", "n1"))) == repeated(first)
    assert cpus.holders() == ["other", "p"]


async def test_cpus_that_the_kubelet_took_before_the_retry_are_left(cpus: World) -> None:
    cpus.add_pod(cpu_pod("p", 2))
    cpus.see(PODS)
    await cpus.mutate(binds(binding("p", "n1")))
    cpus.add_topology("n1", NEAR, kubelet=KubeletCpus(reserved=0b11))
    cpus.see(TOPOLOGIES)
    refused = await cpus.mutate(binds(binding("p", "n1")))
    assert "is being given back" in refused.message
    cpus.see()
    for seconds in (0, 121):
        cpus.clock.now += seconds
        await cpus.parts.reconciler.reconcile()
    again = annotation_of((await cpus.mutate(binds(binding("p", "n1")))).patch)
    assert json.loads(again[RESOURCE_STATUS]) == {"cpuset": "2-3"}


@pytest.mark.parametrize("by", [TENANT, "system:kube-scheduler"])
@pytest.mark.parametrize("old_way", [False, True])
async def test_another_binder_gets_no_cpus_and_is_refused(cpus: World, by: str, *, old_way: bool) -> None:
    cpus.add_pod(cpu_pod("p"))
    cpus.see(PODS)
    forged = binding("p", "n1", annotations={RESOURCE_STATUS: '{"cpuset":"0-1"}'})
    asked = binds(forged, username=by, old_way=old_way)
    assert not (await cpus.mutate(asked)).patch
    refused = await cpus.validate(asked)
    assert (refused.allowed, refused.code) == (False, 403)
    assert "Pod default/p asks for devices or CPUs" in refused.message
    assert cpus.holders() == []


async def test_the_schedulers_binding_must_carry_the_cpus_that_the_ledger_holds(cpus: World) -> None:
    cpus.add_pod(cpu_pod("p"))
    cpus.see(PODS)
    await cpus.mutate(binds(binding("p", "n1")))
    for text, allowed in (('{"cpuset":"0-1"}', True), ('{"cpuset":"0-3"}', False), ("{}", False)):
        asked = binds(binding("p", "n1", annotations={RESOURCE_STATUS: text}))
        assert (await cpus.validate(asked)).allowed is allowed, text
    assert "carries no allocation" in (await cpus.validate(binds(binding("p", "n1")))).message


@pytest.mark.parametrize("qos", ["LSR", "LS", "BE"])
async def test_a_pod_that_never_came_to_our_scheduler_is_not_ours_to_stop(cpus: World, qos: str) -> None:
    """A Pod older than the installation gets no CPUs of its own and is bound as before."""
    cpus.add_pod(cpu_pod("p", 1, qos, admit=False, schedulerName="default-scheduler"))
    cpus.see(PODS)
    for by, old_way in (("system:kube-scheduler", False), (TENANT, False), (TENANT, True)):
        asked = binds(binding("p", "n1"), username=by, old_way=old_way)
        assert not (await cpus.mutate(asked)).patch
        assert (await cpus.validate(asked)).allowed
    assert cpus.holders() == []


# --- released, adopted, bound without us


@pytest.mark.parametrize("how", ["deleted", "finished"])
async def test_cpus_are_given_back_when_the_pod_ends(cpus: World, how: str) -> None:
    await cpus.start(cpu_pod("a", 16))
    (refused,) = await cpus.start(cpu_pod("b", 2))
    assert not refused.allowed
    async with releasing(cpus):
        if how == "deleted":
            cpus.remove_pod("a")
        else:
            cpus.change_pod("a", status={"phase": "Succeeded"})
        cpus.see(PODS)
        await cpus.fake.until(lambda: cpus.holders() == [])
    assert (await cpus.bind("b")).allowed


@pytest.mark.parametrize("percent", [0, 50])
async def test_a_running_pods_cpus_are_taken_from_its_annotations_where_the_ledger_is_lost(
    cpus: World, kube: KubeClient, percent: int
) -> None:
    more = {"kubernetes.io/gpu": str(percent)} if percent else {}
    wishes = spec(preferredCPUBindPolicy="SpreadByPCPUs", preferredCPUExclusivePolicy="PCPULevel")
    await cpus.start(cpu_pod("p", 4, annotations=wishes, more=more))
    before = cpus.holdings()["uid-p"]
    cpus.fake.remove(NODE_ALLOCATIONS.path("n1"))
    other = World(cpus.fake, kube)
    other.see()
    held = other.parts.cluster.snapshot("n1").holdings["uid-p"]
    assert (held.cpus, held.shares) == (before.cpus, before.shares)  # none of it is free at any moment
    await other.parts.reconciler.reconcile()
    assert other.holdings()["uid-p"].cpus == before.cpus
    other.audit()
    await other.idle()


async def test_a_pod_with_cpus_alone_is_not_bound_around_us(cpus: World) -> None:
    def unmanaged() -> float | None:
        return cpus.metric("koordgate_pods_bound_around")

    await cpus.start(cpu_pod("ours"), cpu_pod("aligned", 1, "LS", annotations=numa("BestEffort")))
    await cpus.parts.reconciler.reconcile()
    assert unmanaged() == 0
    for qos in ("LS", "BE"):  # as written by Koordinator's scheduler, or by the default one before the installation
        cpus.add_pod(cpu_pod(f"theirs-{qos.lower()}", 1, qos, nodeName="n1"))
        cpus.add_pod(cpu_pod(f"old-{qos.lower()}", 1, qos, nodeName="n1", admit=False))
    cpus.see(PODS)
    await cpus.parts.reconciler.reconcile()
    assert unmanaged() == 0
    cpus.add_pod(cpu_pod("theirs", nodeName="n1"))
    cpus.see(PODS)
    await cpus.parts.reconciler.reconcile()
    assert unmanaged() == 1


@pytest.mark.parametrize("cpuset", ["0", "1", "0-1"])
async def test_koordinators_choice_of_cpus_is_not_taken_over_where_the_nodes_cpus_are_not_known(
    world: World, cpuset: str
) -> None:
    whole = {"koordinator.sh/gpu-core": "100", "koordinator.sh/gpu-memory-ratio": "100"}
    card = {"minor": 0, "id": "GPU-n1-0", "resources": whole}
    said = {RESOURCE_STATUS: json.dumps({"cpuset": cpuset}), DEVICE_ALLOCATED: json.dumps({"gpu": [card]})}
    world.show(gpu_pod("p", 100, annotations=said))
    response = await world.bind("p")
    assert not response.allowed
    assert f"CPUs {cpuset} are not free" in response.message
    assert world.holdings() == {}


async def test_koordinators_choice_for_an_aligned_pod_is_taken_over(cpus: World) -> None:
    """What is not named is not held: otherwise a Pod of several NUMA nodes would seem to hold them whole."""
    said = {RESOURCE_STATUS: '{"cpuset":"12-15","numaNodeResources":[{"node":1,"resources":{"cpu":"4"}}]}'}
    obj = cpu_pod("p", 4, annotations=numa("SingleNUMANode"), more={"kubernetes.io/gpu": "100"})
    card = {
        "minor": 1,
        "id": "GPU-n1-1",
        "resources": {"koordinator.sh/gpu-core": "100", "koordinator.sh/gpu-memory-ratio": "100"},
    }
    obj["metadata"]["annotations"] |= {**said, DEVICE_ALLOCATED: json.dumps({"gpu": [card]})}
    (response,) = await cpus.start(obj)
    assert response.allowed, response.message
    assert status_of(cpus, "p") == json.loads(said[RESOURCE_STATUS])
    assert [share.id for share in cpus.holdings()["uid-p"].shares] == ["GPU-n1-1"]


async def test_koordinators_choice_is_taken_over_beside_pods_that_run_on_the_same_pool(cpus: World) -> None:
    shares = cpu_pod("shares", 2, "LS", annotations=numa("SingleNUMANode"))
    obj = cpu_pod("p", 2)
    obj["metadata"]["annotations"] = {RESOURCE_STATUS: '{"cpuset":"0-1"}'}
    responses = await cpus.start(shares, obj)
    assert [response.allowed for response in responses] == [True, True], responses[-1].message
    assert status_of(cpus, "shares")["cpuSharedPools"] == [{"socket": 0, "node": 0}]
    assert cpuset_of(cpus, "p") == 0b11


async def test_a_pod_is_bound_to_what_it_was_sent_for_where_that_is_still_free(cpus: World) -> None:
    pods = [cpu_pod(name, 4, annotations=numa("SingleNUMANode")) for name in "ab"]
    for obj in pods:
        cpus.add_pod(obj)
    cpus.see(PODS)
    for obj in pods:
        assert cpus.parts.extender.filter({"Pod": obj, "NodeNames": ["n1"]})["NodeNames"] == ["n1"]
    assert (await cpus.bind("b")).allowed  # the second, which was sent to the rest
    assert cpuset_of(cpus, "b") == 0b11110000
    assert (await cpus.bind("a")).allowed
    assert cpuset_of(cpus, "a") == 0b1111


async def test_where_that_is_taken_by_now_a_pod_is_bound_to_something_else(cpus: World) -> None:
    for name in "ab":
        cpus.add_pod(cpu_pod(name, 4))
    cpus.see(PODS)
    assert cpus.parts.extender.filter({"Pod": cpus.pod("a"), "NodeNames": ["n1"]})["NodeNames"] == ["n1"]
    (sent,) = cpus.parts.ranking.assumed.on("n1").values()
    assert (await cpus.bind("b")).allowed  # directly to the CPUs for which `a` was sent
    assert sent.cpus is not None
    assert cpuset_of(cpus, "b") == sent.cpus.cpus
    assert (await cpus.bind("a")).allowed
    assert not cpuset_of(cpus, "a") & cpuset_of(cpus, "b")


TAKEN = {
    "all of it is held": '{"cpuset":"0-1"}',
    "a part of it is held": '{"cpuset":"1-3"}',
    "more than is asked, and that is held": '{"cpuset":"0-5"}',
    "less than is asked": '{"cpuset":"6"}',
    "not there": '{"cpuset":"14-17"}',
}


@pytest.mark.parametrize("said", TAKEN.values(), ids=TAKEN)
async def test_koordinators_choice_of_cpus_is_refused_where_it_cannot_be(cpus: World, said: str) -> None:
    await cpus.start(cpu_pod("holder", 2))
    obj = cpu_pod("p", 2)
    obj["metadata"]["annotations"] = {RESOURCE_STATUS: said}
    (response,) = await cpus.start(obj)
    assert response.code == 409
    assert "cannot be adopted" in response.message
    assert cpus.holders() == ["holder"]


@pytest.mark.parametrize("text", ["{", "[]", '{"cpuset":7}', '{"cpuset":"3-1"}', '{"numaNodeResources":[{}]}'])
async def test_a_resource_status_that_cannot_be_read_is_refused(cpus: World, text: str) -> None:
    obj = cpu_pod("p", 2)
    obj["metadata"]["annotations"] = {RESOURCE_STATUS: text}
    (response,) = await cpus.start(obj)
    assert response.code == 422
    assert RESOURCE_STATUS in response.message


# --- waiting Pods may still change


async def test_a_policy_that_is_changed_while_the_pod_waits_is_followed(cpus: World) -> None:
    cpus.add_pod(cpu_pod("p", 2))
    cpus.see(PODS)
    cpus.change_pod("p", metadata={"annotations": spec(requiredCPUBindPolicy="SpreadByPCPUs")})
    cpus.see(PODS)
    assert (await cpus.bind("p")).allowed
    assert NEAR.cores_of(cpuset_of(cpus, "p")).bit_count() == 4  # of two cores one thread each


async def test_the_nodes_label_decides_how_its_pods_are_aligned(cpus: World) -> None:
    label = {"node.koordinator.sh/numa-topology-policy": NumaPolicy.SINGLE_NUMA_NODE.value}
    cpus.add_bare_node("n1", labels=label)
    cpus.see(NODES)
    (wide, narrow) = await cpus.start(cpu_pod("wide", 10), cpu_pod("narrow", 8))
    assert "not in one NUMA node" in wide.message
    assert narrow.allowed
    assert status_of(cpus, "narrow")["numaNodeResources"][0]["resources"] == {"cpu": "8"}


def test_original_request_is_written_for_devices_only() -> None:
    assert ORIGINAL_REQUEST not in (cpu_pod("p")["metadata"].get("annotations") or {})
    both = admitted(cpu_pod("p", more={"kubernetes.io/gpu": "50"}, admit=False))
    assert json.loads(both["metadata"]["annotations"][ORIGINAL_REQUEST]).keys() == {"main"}
