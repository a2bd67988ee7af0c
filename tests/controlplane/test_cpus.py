"""CPUs of Pods' own and NUMA alignment, on a real API server and kube-scheduler."""

import asyncio
import json
import random
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable
from typing import Any

import pytest
import pytest_asyncio
from controlplane.gpu_cluster import (
    ALLOCATIONS,
    GIB,
    add_node,
    at_home,
    audit_devices,
    bound,
    create,
    gpu,
    pods_path,
    remove,
    scheduling,
    settled,
    uuid_of,
    waits,
)
from machines_cpu import build, siblings_far

from allocator.wire.nodetopology import KubeletCpus, NodeReservation, NodeTopology, NumaZone, write_node_topology
from localplane.admin import AdminClient, ApiError, JsonObject
from localplane.plane import ControlPlane
from localplane.replicas import Replicas
from localplane.waiting import until

QOS = "koordinator.sh/qosClass"
SPEC = "scheduling.koordinator.sh/resource-spec"
NUMA_SPEC = "scheduling.koordinator.sh/numa-topology-spec"
STATUS = "scheduling.koordinator.sh/resource-status"
SINGLE = {NUMA_SPEC: {"numaTopologyPolicy": "SingleNUMANode"}}

# Two sockets of one NUMA node with 8 cores each; core k is CPUs k and k + 16. The kubelet keeps core 0, and the
# administrator core 15.
NODES = 4
CORES = 16
RESERVED = {0, 16, 15, 31}
USABLE = 2 * CORES - len(RESERVED)
TOPOLOGY = build(2, 1, 8, 2, siblings_far)


def core_of(cpu: int) -> int:
    return cpu % CORES


def numa_of(cpu: int) -> int:
    return core_of(cpu) // 8


def mask(cpus: Iterable[int]) -> int:
    return sum(1 << cpu for cpu in cpus)


async def add_machine(plane: ControlPlane, admin: AdminClient, name: str, namespace: str, **labels: str) -> None:
    """A node with the CPUs above and GPUs in both NUMA nodes.

    It reports more CPUs to kube-scheduler than it has, so that only koordgate decides.
    """
    zone = {"cpu": 16_000, "memory": 64 * GIB}
    told = NodeTopology(
        name,
        TOPOLOGY,
        kubelet=KubeletCpus(reserved=mask({0, 16})),
        reservation=NodeReservation(mask({15, 31})),
        zones={numa: NumaZone(zone, zone) for numa in (0, 1)},
    )
    await admin.apply(write_node_topology(told))
    cards = [gpu(name, number, numa=number // 2, root=f"pci0000:{number}0") for number in range(4)]
    await add_node(plane, admin, name, namespace, cards, **labels)


def cpu_pod(name: str, namespace: str, cpus: int, qos: str = "LSR", *, cards: int = 0, **about: Any) -> JsonObject:
    asks = {"cpu": str(cpus), "memory": "1Gi", **({"nvidia.com/gpu": str(cards)} if cards else {})}
    return at_home(name, namespace, asks, labels={QOS: qos}, **about)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def replicas(
    plane: ControlPlane, installed: list[JsonObject], tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Replicas]:
    async with scheduling(plane, installed, tmp_path_factory.mktemp("cpus")) as started:
        yield started


@pytest_asyncio.fixture(loop_scope="session")
async def nodes(admin: AdminClient, namespace: str) -> AsyncIterator[list[str]]:
    """Names for this test's nodes; the nodes and the test's Pods are deleted at the end."""
    names = [f"{namespace}-n{number}" for number in range(NODES)]
    yield names
    await remove(admin, namespace, names)


# What Pods were given, according to annotations alone


def status_of(found: JsonObject) -> JsonObject:
    status: JsonObject = json.loads(found["metadata"]["annotations"][STATUS])
    return status


def cpus_of(found: JsonObject) -> set[int]:
    """The CPUs that a Pod's annotation names."""
    cpus: set[int] = set()
    for part in status_of(found)["cpuset"].split(","):
        first, _, last = part.partition("-")
        cpus.update(range(int(first), int(last or first) + 1))
    return cpus


async def audit_cpus(admin: AdminClient, namespace: str) -> dict[str, set[int]]:
    """Each bound Pod's CPUs; fails if a CPU has two owners or is reserved, or if a Pod has a wrong number."""
    given: dict[str, set[int]] = {}
    taken: dict[str, set[int]] = defaultdict(set)
    for found in await admin.items(pods_path(namespace)):
        node = found["spec"].get("nodeName")
        if not node:
            continue
        name, cpus = found["metadata"]["name"], cpus_of(found)
        assert len(cpus) == int(found["spec"]["containers"][0]["resources"]["requests"]["cpu"])
        assert not cpus & taken[node], f"{name} shares {cpus & taken[node]} on {node}"
        assert not cpus & RESERVED
        assert max(cpus) < 2 * CORES
        taken[node] |= cpus
        given[name] = cpus
    return given


async def ledger_agrees(admin: AdminClient, namespace: str) -> bool:
    """Whether the ledger has the same CPUs for these Pods as the annotations, and no other Pod there."""
    found = [one for one in await admin.items(pods_path(namespace)) if one["spec"].get("nodeName")]
    said = {(one["spec"]["nodeName"], one["metadata"]["uid"]): status_of(one)["cpuset"] for one in found}
    held = {
        (record["metadata"]["name"], one["uid"]): one["cpus"]["cpuset"]
        for record in await admin.items(ALLOCATIONS)
        for one in record["spec"].get("allocations") or ()
        if one["namespace"] == namespace
    }
    return said == held


def mix(namespace: str) -> list[JsonObject]:
    """40 Pods that request 92 of 112 CPUs in all ways, in a mixed order that is always the same."""
    full, spread = ({SPEC: {"requiredCPUBindPolicy": policy}} for policy in ("FullPCPUs", "SpreadByPCPUs"))
    pods = [cpu_pod(f"full-{n}", namespace, 2, annotations=full) for n in range(12)]
    pods += [cpu_pod(f"gpu-{n}", namespace, 4, cards=1, qos="LSE" if n % 2 else "LSR") for n in range(8)]
    pods += [cpu_pod(f"spread-{n}", namespace, 2, annotations=spread) for n in range(8)]
    pods += [cpu_pod(f"single-{n}", namespace, 1, qos="LSE") for n in range(8)]
    pods += [cpu_pod(f"odd-{n}", namespace, 3) for n in range(4)]
    random.Random(6).shuffle(pods)
    return pods


async def test_forty_pods_get_cpus_of_their_own_as_their_policies_say(
    replicas: Replicas, plane: ControlPlane, admin: AdminClient, namespace: str, nodes: list[str]
) -> None:
    for node in nodes:
        await add_machine(plane, admin, node, namespace)

    await create(admin, mix(namespace))

    await settled(admin, namespace, waiting=0)
    given = await audit_cpus(admin, namespace)
    assert len(given) == 40
    for name, cpus in given.items():
        cores = {core_of(cpu) for cpu in cpus}
        if name.startswith("full"):
            assert len(cores) == len(cpus) / 2, "whole cores"
        if name.startswith("spread"):
            assert len(cores) == len(cpus), "one thread a core"
    audit = await audit_devices(admin, namespace)
    assert {name for name, entries in audit.held.items() if entries} == {f"gpu-{n}" for n in range(8)}
    await until(lambda: ledger_agrees(admin, namespace), "ledger and annotations agree")


@pytest.mark.parametrize(
    ("how", "policy", "cpus", "cores"),
    [
        ("required", "FullPCPUs", 6, 3),
        ("preferred", "SpreadByPCPUs", 20, 14),  # of the 16 cores two are reserved
    ],
)
async def test_whole_cores_by_fullpcpus_and_one_thread_a_core_by_spreadbypcpus_while_cores_last(
    replicas: Replicas,
    plane: ControlPlane,
    admin: AdminClient,
    namespace: str,
    nodes: list[str],
    how: str,
    policy: str,
    cpus: int,
    cores: int,
) -> None:
    await add_machine(plane, admin, nodes[0], namespace)
    wish = {SPEC: {f"{how}CPUBindPolicy": policy}}

    await create(admin, [cpu_pod("one", namespace, cpus, annotations=wish)])
    await bound(admin, namespace, "one")

    assert len({core_of(cpu) for cpu in (await audit_cpus(admin, namespace))["one"]}) == cores


async def test_a_node_that_gives_whole_cores_only_is_passed_over_by_a_pod_of_three_cpus(
    replicas: Replicas, plane: ControlPlane, admin: AdminClient, namespace: str, nodes: list[str]
) -> None:
    whole, other = nodes[:2]
    await add_machine(plane, admin, whole, namespace, **{"node.koordinator.sh/cpu-bind-policy": "FullPCPUsOnly"})
    await add_machine(plane, admin, other, namespace)
    there: JsonObject = {"nodeSelector": {"kubernetes.io/hostname": whole}}
    elsewhere: JsonObject = {"nodeSelector": {"kubernetes.io/hostname": other}}
    await create(admin, [cpu_pod("four", namespace, 4, **there), cpu_pod("eight", namespace, 8, **elsewhere)])
    for name in ("four", "eight"):
        await bound(admin, namespace, name)  # of two nodes in use, the more balanced comes first: that with the four

    await create(admin, [cpu_pod("three", namespace, 3), cpu_pod("three-there", namespace, 3, **there)])

    assert (await bound(admin, namespace, "three"))["spec"]["nodeName"] == other
    told = "3 CPUs are requested, but only whole cores of 2 CPUs are allocated here"
    await waits(admin, namespace, "three-there", told)
    await create(admin, [cpu_pod("two", namespace, 2)])
    assert (await bound(admin, namespace, "two"))["spec"]["nodeName"] == whole


async def hold_cards(admin: AdminClient, namespace: str, node: str, *numbers: int) -> None:
    """Let Pods hold these cards."""
    for number in numbers:
        only = {"gpu": {"selector": {"matchLabels": {"koordgate.io/uuid": uuid_of(node, number)}}}}
        hint = {"scheduling.koordinator.sh/device-allocate-hint": only}
        name = f"holds-{number}"
        await create(admin, [at_home(name, namespace, {"nvidia.com/gpu": "1"}, annotations=hint)])
        found = await bound(admin, namespace, name)
        assert found["metadata"]["annotations"]["visible-devices.koordgate.io/main"] == uuid_of(node, number)


BY_POD: tuple[dict[str, Any], dict[str, str]] = (SINGLE, {})
BY_NODE: tuple[dict[str, Any], dict[str, str]] = ({}, {"node.koordinator.sh/numa-topology-policy": "SingleNUMANode"})


@pytest.mark.parametrize(("annotations", "labels"), [BY_POD, BY_NODE], ids=["the Pod says so", "the node says so"])
async def test_cpus_and_cards_come_from_one_numa_node_where_that_is_asked(
    replicas: Replicas,
    plane: ControlPlane,
    admin: AdminClient,
    namespace: str,
    nodes: list[str],
    annotations: dict[str, Any],
    labels: dict[str, str],
) -> None:
    """Without the cards, the CPUs would come from NUMA node 0, whose cards are taken."""
    node = nodes[0]
    await add_machine(plane, admin, node, namespace, **labels)
    await hold_cards(admin, namespace, node, 0, 1)

    await create(admin, [cpu_pod("aligned", namespace, 4, cards=1, annotations=annotations)])

    found = await bound(admin, namespace, "aligned")
    assert {numa_of(cpu) for cpu in cpus_of(found)} == {1}
    assert [(one["node"], one["resources"]["cpu"]) for one in status_of(found)["numaNodeResources"]] == [(1, "4")]
    audit = await audit_devices(admin, namespace)
    (card,) = audit.held["aligned"]
    assert audit.has[node, card["id"]]["topology"]["nodeID"] == 1


@pytest.mark.parametrize(("annotations", "labels"), [BY_POD, BY_NODE], ids=["the Pod says so", "the node says so"])
async def test_a_pod_that_fits_but_not_in_one_numa_node_waits_and_says_so(
    replicas: Replicas,
    plane: ControlPlane,
    admin: AdminClient,
    namespace: str,
    nodes: list[str],
    annotations: dict[str, Any],
    labels: dict[str, str],
) -> None:
    node = nodes[0]
    await add_machine(plane, admin, node, namespace, **labels)
    await hold_cards(admin, namespace, node, 0, 2)

    await create(admin, [cpu_pod("apart", namespace, 4, cards=2, annotations=annotations)])

    told = "the Pod fits, but not in one NUMA node (NUMA policy SingleNUMANode)"
    await waits(admin, namespace, "apart", told)
    await admin.delete(pods_path(namespace, "holds-2"))
    assert {numa_of(cpu) for cpu in cpus_of(await bound(admin, namespace, "apart"))} == {1}


@pytest.mark.parametrize(
    ("about", "labels"),
    [
        ({"labels": {QOS: "LS"}, "annotations": SINGLE}, BY_POD[1]),
        ({"schedulerName": "koord-scheduler"}, {"node.koordinator.sh/numa-topology-alignment-policy": "Restricted"}),
    ],
    ids=["an LS Pod that says so", "a Pod of our scheduler, and the node says so"],
)
async def test_a_pod_without_cpus_of_its_own_that_is_aligned_gets_the_shared_pool_of_its_numa_node(
    replicas: Replicas,
    plane: ControlPlane,
    admin: AdminClient,
    namespace: str,
    nodes: list[str],
    about: dict[str, Any],
    labels: dict[str, str],
) -> None:
    await add_machine(plane, admin, nodes[0], namespace, **labels)
    await create(admin, [at_home("shared", namespace, {"cpu": "4", "memory": "1Gi"}, **about)])

    status = status_of(await bound(admin, namespace, "shared"))

    (pool,) = status["cpuSharedPools"]
    (numa,) = status["numaNodeResources"]
    assert pool["node"] == pool["socket"] == numa["node"]
    assert numa["resources"] == {"cpu": "4", "memory": "1Gi"}
    assert "cpuset" not in status


async def test_the_cpus_of_a_deleted_pod_go_to_the_one_that_waits(
    replicas: Replicas, plane: ControlPlane, admin: AdminClient, namespace: str, nodes: list[str]
) -> None:
    await add_machine(plane, admin, nodes[0], namespace)
    await create(admin, [cpu_pod("first", namespace, USABLE)])
    first = cpus_of(await bound(admin, namespace, "first"))
    await create(admin, [cpu_pod("second", namespace, USABLE)])
    await waits(admin, namespace, "second", f"{USABLE} CPUs are requested, 0 are free")

    await admin.delete(pods_path(namespace, "first"))

    assert cpus_of(await bound(admin, namespace, "second")) == first


async def test_the_class_of_a_pod_that_has_its_cpus_cannot_be_changed(
    replicas: Replicas, plane: ControlPlane, admin: AdminClient, namespace: str, nodes: list[str]
) -> None:
    await add_machine(plane, admin, nodes[0], namespace)
    await create(admin, [cpu_pod("steady", namespace, 2)])
    await bound(admin, namespace, "steady")

    for other in ("LSE", "LS", None):
        with pytest.raises(ApiError) as refused:
            await admin.patch(pods_path(namespace, "steady"), {"metadata": {"labels": {QOS: other}}})
        assert refused.value.status == 403
        assert f"LSR cannot become {other or 'no class'}" in refused.value.message
    with pytest.raises(ApiError, match="written by the bind alone"):
        await admin.patch(pods_path(namespace, "steady"), {"metadata": {"annotations": {STATUS: '{"cpuset":"0-3"}'}}})
    await admin.patch(pods_path(namespace, "steady"), {"metadata": {"labels": {"other": "fine"}}})


async def test_after_a_restart_and_a_lost_record_the_ledger_still_says_what_the_annotations_say(
    replicas: Replicas, plane: ControlPlane, admin: AdminClient, namespace: str, nodes: list[str]
) -> None:
    for node in nodes[:2]:
        await add_machine(plane, admin, node, namespace)
    await create(admin, (cpu_pod(f"before-{number}", namespace, 4) for number in range(10)))
    await settled(admin, namespace, waiting=0)
    before = await audit_cpus(admin, namespace)

    for number in range(2):
        replicas.kill(number)
    await admin.delete(f"{ALLOCATIONS}/{nodes[0]}")
    await asyncio.gather(*(replicas.start(number) for number in range(2)))

    await until(lambda: ledger_agrees(admin, namespace), "ledger and annotations agree")
    await create(admin, (cpu_pod(f"after-{number}", namespace, 4) for number in range(4)))
    await settled(admin, namespace, waiting=0)
    after = await audit_cpus(admin, namespace)
    assert {name: after[name] for name in before} == before
    await until(lambda: ledger_agrees(admin, namespace), "ledger and annotations agree again")
