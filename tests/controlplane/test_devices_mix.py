"""Devices of every type, on a real API server and kube-scheduler: mixed, filled up, failing, malformed, in gangs."""

import random
from collections import defaultdict
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from controlplane.gpu_cluster import (
    GIB,
    Audit,
    add_node,
    all_see_held,
    at_home,
    audit_devices,
    bound,
    create,
    device_object,
    gpu,
    ledger,
    machine,
    metric,
    pods_path,
    refused_binds,
    remove,
    scheduling,
    settled,
    uuid_of,
    waits,
    why_waiting,
)

from localplane.admin import AdminClient, JsonObject
from localplane.plane import ControlPlane
from localplane.replicas import Replicas
from localplane.waiting import NotInTimeError, until

NODES = 12
FUNCTIONS = {"fast": 4, "slow": 2}  # virtual functions of each NIC, by group
JOINT = {
    "scheduling.koordinator.sh/device-joint-allocate": {"deviceTypes": ["gpu", "rdma"], "requiredScope": "SamePCIe"},
    "scheduling.koordinator.sh/device-allocate-hint": {"rdma": {"vfSelector": {"matchLabels": {"speed": "fast"}}}},
}
SPREAD = {"koordgate.io/device-order": "leastUsed"}
VISIBLE = "visible-devices.koordgate.io/main"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def replicas(
    plane: ControlPlane, installed: list[JsonObject], tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Replicas]:
    async with scheduling(plane, installed, tmp_path_factory.mktemp("devices-mix")) as started:
        yield started


@pytest_asyncio.fixture(loop_scope="session")
async def nodes(admin: AdminClient, namespace: str) -> AsyncIterator[list[str]]:
    """Names for this test's nodes; the nodes and the test's Pods are deleted at the end."""
    names = [f"{namespace}-n{number}" for number in range(NODES)]
    yield names
    await remove(admin, namespace, names)


# Requests: the number of cards, and the amounts of each (core, ratio, bytes)
KINDS: dict[str, tuple[int, dict[str, str], int, dict[str, int]]] = {
    "eight": (2, {"nvidia.com/gpu": "8"}, 8, {"gpu-core": 100, "gpu-memory-ratio": 100}),
    "four": (4, {"kubernetes.io/gpu": "400"}, 4, {"gpu-core": 100, "gpu-memory-ratio": 100}),
    "two": (6, {"koordinator.sh/gpu": "200"}, 2, {"gpu-core": 100, "gpu-memory-ratio": 100}),
    "two-joint": (
        8,
        {"kubernetes.io/gpu": "200", "kubernetes.io/rdma": "10"},
        2,
        {"gpu-core": 100, "gpu-memory-ratio": 100},
    ),
    "one": (14, {"nvidia.com/gpu": "1"}, 1, {"gpu-core": 100, "gpu-memory-ratio": 100}),
    "half": (40, {"kubernetes.io/gpu": "50"}, 1, {"gpu-core": 50, "gpu-memory-ratio": 50}),
    "half-joint": (
        12,
        {"kubernetes.io/gpu": "50", "kubernetes.io/rdma": "20"},
        1,
        {"gpu-core": 50, "gpu-memory-ratio": 50},
    ),
    "quarter": (24, {"kubernetes.io/gpu": "25"}, 1, {"gpu-core": 25, "gpu-memory-ratio": 25}),
    "bytes": (
        12,
        {"kubernetes.io/gpu-core": "20", "kubernetes.io/gpu-memory": "24Gi"},
        1,
        {"gpu-core": 20, "gpu-memory": 24 * GIB},
    ),
    "card": (8, {"kubernetes.io/fpga": "100"}, 0, {}),
    "part": (8, {"kubernetes.io/fpga": "50"}, 0, {}),
    "net": (12, {"kubernetes.io/rdma": "15"}, 0, {}),
}


def mix(namespace: str) -> list[JsonObject]:
    """Pods of all kinds, in a mixed order that is always the same; together they request more than exists."""
    pods = [
        at_home(f"{kind}-{number}", namespace, asks, annotations=JOINT if kind.endswith("joint") else None)
        for kind, (count, asks, _, _) in KINDS.items()
        for number in range(count)
    ]
    random.Random(4).shuffle(pods)
    return pods


def fits_somewhere(name: str, audit: Audit, nodes: list[str]) -> list[str]:
    """The nodes on which a waiting Pod would fit, from the free amounts of the audit."""
    kind = name.rpartition("-")[0]
    _, asks, cards, each = KINDS[kind]
    found: dict[str, int] = defaultdict(int)
    for (node, _), entry in audit.has.items():
        if node not in nodes or entry["type"] != "gpu":
            continue
        free = audit.free((node, entry["id"]))
        rdma = int(asks.get("kubernetes.io/rdma", 0))
        beside = not rdma or nic_serves(audit, node, entry["topology"]["pcieID"], rdma)
        found[node] += beside and all(free[tail] >= amount for tail, amount in each.items())
    return [node for node, count in found.items() if cards and count >= cards]


def nic_serves(audit: Audit, node: str, root: str, percent: int) -> bool:
    """Whether a PCIe root's NIC has this much free, and a fast virtual function."""
    (entry,) = (
        entry
        for (at, _), entry in audit.has.items()
        if at == node and entry["type"] == "rdma" and entry["topology"]["pcieID"] == root
    )
    fast = [one["busID"] for group in entry["vfGroups"] if group["labels"]["speed"] == "fast" for one in group["vfs"]]
    free = any((node, address) not in audit.functions for address in fast)
    return free and audit.free((node, entry["id"]))["rdma"] >= percent


def check_joint(audit: Audit, found: JsonObject) -> None:
    """The NICs of a joint Pod are on the PCIe roots of its GPUs, and each comes with one fast virtual function."""
    node = found["spec"]["nodeName"]
    roots: dict[str, set[str]] = defaultdict(set)
    for entry in audit.held[found["metadata"]["name"]]:
        device = audit.has[node, entry["id"]]
        roots[entry["type"]].add(device["topology"]["pcieID"])
        if entry["type"] == "rdma":
            (function,) = entry["extension"]["vfs"]
            fast = device["vfGroups"][0]
            assert fast["labels"] == {"speed": "fast"}
            assert function["busID"] in {one["busID"] for one in fast["vfs"]}
    assert roots["gpu"] == roots["rdma"]


@pytest_asyncio.fixture(loop_scope="session")
async def first_replica(replicas: Replicas) -> AsyncIterator[Replicas]:
    """The replicas; one of them runs."""
    await replicas.stop(1)
    yield replicas
    await replicas.start(1)


async def test_one_replica_refuses_no_bind_of_what_it_has_sent_itself(
    first_replica: Replicas, plane: ControlPlane, admin: AdminClient, namespace: str, nodes: list[str]
) -> None:
    assert await refused_of_the_mix(first_replica, plane, admin, namespace, nodes) == 0


# A replica does not know the other one's assumed placements on the same node. When this cluster was filled to the last
# card within two seconds, up to 3 of 135 binds were refused, and retried immediately. How many depends on the machine.
async def test_of_a_mix_all_that_can_be_placed_is_placed_and_nothing_is_given_twice(
    replicas: Replicas, plane: ControlPlane, admin: AdminClient, namespace: str, nodes: list[str]
) -> None:
    await refused_of_the_mix(replicas, plane, admin, namespace, nodes)


async def refused_of_the_mix(
    replicas: Replicas, plane: ControlPlane, admin: AdminClient, namespace: str, nodes: list[str]
) -> float:
    """Place the mix and check it; returns how many binds were refused for each Pod that is bound."""
    for node in nodes:
        await add_node(plane, admin, node, namespace, machine(node, FUNCTIONS))
    before = await refused_binds(replicas)
    pods = mix(namespace)
    await create(admin, pods)

    async def no_room_is_left() -> list[list[str]]:
        """The waiting Pods, once none of them would fit: until then one may wait for the place of another."""
        waiting = {one["metadata"]["name"]: why_waiting(one) for one in await settled(admin, namespace)}
        audit = await audit_devices(admin, namespace)
        rooms = {name: fits_somewhere(name, audit, nodes) for name in waiting}
        forgotten.clear()
        forgotten.update({name: (rooms[name], why) for name, why in waiting.items() if rooms[name]})
        return [] if forgotten else [list(waiting)]

    forgotten: dict[str, tuple[list[str], str]] = {}  # Pod -> where it would fit, and what it was told
    try:
        (waiting,) = await until(no_room_is_left, "no Pod waits that would fit", poll_s=0.3)
    except NotInTimeError as error:
        raise AssertionError(f"{error}: {forgotten}") from error

    audit = await audit_devices(admin, namespace)
    assert waiting, "the mix was to ask for more than there is"
    assert not [name for name in waiting if name.startswith(("card", "part", "net"))]
    placed = [one for one in await admin.items(pods_path(namespace)) if one["metadata"]["name"] not in waiting]
    for one in placed:
        if "joint" in one["metadata"]["name"]:
            check_joint(audit, one)
    return (await refused_binds(replicas) - before) / len(placed)


async def card_of(admin: AdminClient, namespace: str, name: str) -> str:
    """The UUID of a Pod's one card, once it is bound."""
    found = await bound(admin, namespace, name)
    uuid: str = found["metadata"]["annotations"][VISIBLE]
    return uuid


async def hold_half_of_card_0(plane: ControlPlane, admin: AdminClient, namespace: str, node: str) -> str:
    """A node with one card, half of which a Pod holds; returns the Pod's UID."""
    await add_node(plane, admin, node, namespace, [gpu(node, 0)])
    room = {f"kubernetes.io/{tail}": "400" for tail in ("gpu-core", "gpu-memory-ratio")}
    room["kubernetes.io/gpu-memory"] = "320Gi"  # kube-scheduler's sum must not decide here
    await admin.patch(f"/api/v1/nodes/{node}/status", {"status": {"capacity": room, "allocatable": room}})
    await create(admin, [at_home("first", namespace, {"kubernetes.io/gpu": "50"})])
    assert await card_of(admin, namespace, "first") == uuid_of(node, 0)
    uid: str = (await admin.get(pods_path(namespace, "first")))["metadata"]["uid"]
    return uid


async def what_is_held(admin: AdminClient, node: str, uid: str) -> list[tuple[str, int]]:
    return [(share["id"], share["amounts"]["gpu-core"]) for share in (await ledger(admin))[node][uid]]


async def test_on_a_lost_card_nothing_new_lands_what_is_held_stays_held_and_when_it_is_back_it_is_used_again(
    replicas: Replicas, plane: ControlPlane, admin: AdminClient, namespace: str, nodes: list[str]
) -> None:
    node = nodes[0]
    uid = await hold_half_of_card_0(plane, admin, namespace, node)

    # A Pod bound to the card that comes with the same write shows that the write was seen.
    await admin.apply(device_object(node, [gpu(node, 0, health=False), gpu(node, 1)]))
    await create(admin, [at_home("whole", namespace, {"kubernetes.io/gpu": "100"})])
    assert await card_of(admin, namespace, "whole") == uuid_of(node, 1)
    await create(admin, [at_home("second", namespace, {"kubernetes.io/gpu": "50"})])
    await waits(admin, namespace, "second", "1 unhealthy")
    assert await what_is_held(admin, node, uid) == [(uuid_of(node, 0), 50)]

    await admin.apply(device_object(node, [gpu(node, 0), gpu(node, 1)]))

    assert await card_of(admin, namespace, "second") == uuid_of(node, 0)
    assert await what_is_held(admin, node, uid) == [(uuid_of(node, 0), 50)]
    await create(admin, [at_home("third", namespace, {"kubernetes.io/gpu": "50"})])
    await waits(admin, namespace, "third")  # the first one's half was never free


async def test_a_card_that_is_renumbered_is_the_same_card(
    replicas: Replicas, plane: ControlPlane, admin: AdminClient, namespace: str, nodes: list[str]
) -> None:
    node = nodes[0]
    uid = await hold_half_of_card_0(plane, admin, namespace, node)

    # Another card has its minor now.
    await admin.apply(device_object(node, [gpu(node, 1, minor=0), gpu(node, 0, minor=1)]))

    await create(admin, [at_home("whole", namespace, {"kubernetes.io/gpu": "100"})])
    assert await card_of(admin, namespace, "whole") == uuid_of(node, 1)
    await create(admin, [at_home("second", namespace, {"kubernetes.io/gpu": "50"})])
    assert await card_of(admin, namespace, "second") == uuid_of(node, 0)
    assert await what_is_held(admin, node, uid) == [(uuid_of(node, 0), 50)]
    await create(admin, [at_home("third", namespace, {"kubernetes.io/gpu": "50"})])
    await waits(admin, namespace, "third")


async def test_what_is_malformed_in_a_device_object_is_left_out_and_counted_and_all_else_continues(
    replicas: Replicas, plane: ControlPlane, admin: AdminClient, namespace: str, nodes: list[str]
) -> None:
    bad, good = nodes[:2]
    before = await metric(replicas, "koordgate_bad_objects", resource="devices")
    negative = {"kubernetes.io/gpu-core": "100", "kubernetes.io/gpu-memory": "-80Gi"}
    entries = [
        gpu(bad, 0),
        gpu(bad, 1, id=uuid_of(bad, 0)),
        gpu(bad, 2, resources=negative),
        gpu(bad, 3, type="abacus"),
        gpu(bad, 4),
    ]
    await add_node(plane, admin, bad, namespace, entries)
    await add_node(plane, admin, good, namespace, [gpu(good, 0)])

    async def counted() -> bool:
        return await metric(replicas, "koordgate_bad_objects", resource="devices") == before + len(replicas.urls)

    await until(counted, "each replica counts the object")
    whole = {"kubernetes.io/gpu": "100"}
    pods = [at_home(f"bad-{n}", namespace, whole, nodeSelector={"kubernetes.io/hostname": bad}) for n in range(3)]
    await create(admin, [*pods, at_home("good", namespace, whole, nodeSelector={"kubernetes.io/hostname": good})])

    (waiting,) = await settled(admin, namespace, waiting=1)
    assert waiting["metadata"]["name"].startswith("bad-")
    audit = await audit_devices(admin, namespace)
    given = {entry["id"] for of in audit.held.values() for entry in of}
    assert given == {uuid_of(bad, 0), uuid_of(bad, 4), uuid_of(good, 0)}

    await admin.apply(device_object(bad, [gpu(bad, 0), gpu(bad, 2), gpu(bad, 4)]))
    await bound(admin, namespace, waiting["metadata"]["name"])

    async def right_again() -> bool:
        return await metric(replicas, "koordgate_bad_objects", resource="devices") == before

    await until(right_again, "each replica has seen that it is right again")


async def test_a_pod_that_fits_nowhere_says_why_and_no_binding_is_ever_refused_for_it(
    replicas: Replicas,
    plane: ControlPlane,
    admin: AdminClient,
    namespace: str,
    nodes: list[str],
) -> None:
    node = nodes[0]
    await add_node(plane, admin, node, namespace, [gpu(node, minor) for minor in range(8)])
    before = await refused_binds(replicas)
    halves = [at_home(f"half-{n}", namespace, {"kubernetes.io/gpu": "50"}, annotations=SPREAD) for n in range(8)]
    await create(admin, halves)
    await settled(admin, namespace, waiting=0)
    await all_see_held(replicas, 8 * 50)

    await create(admin, [at_home("never", namespace, {"kubernetes.io/gpu": "60"})])

    told = "0 of 8 GPUs can hold it; the most free is gpu 0 with core 50 percent"
    await waits(admin, namespace, "never", told)
    assert await refused_binds(replicas) == before


async def test_a_gang_lands_on_the_one_node_that_has_room_for_all_of_it(
    replicas: Replicas, plane: ControlPlane, admin: AdminClient, namespace: str, nodes: list[str]
) -> None:
    fuller, roomy = nodes[:2]
    for node in (fuller, roomy):
        await add_node(plane, admin, node, namespace, machine(node, FUNCTIONS))
    gang = {"scheduling.x-k8s.io/pod-group": "training"}
    gates = [{"name": "koordgate.test/all-are-there"}]
    asks = {"nvidia.com/gpu": "2"}
    names = [f"worker-{number}" for number in range(4)]
    await create(admin, (at_home(name, namespace, asks, labels=gang, schedulingGates=gates) for name in names))
    selector = {"kubernetes.io/hostname": fuller}
    await create(admin, [at_home("filler", namespace, {"nvidia.com/gpu": "4"}, nodeSelector=selector)])
    await bound(admin, namespace, "filler")  # a Pod that packs goes beside it
    await all_see_held(replicas, 4 * 100)

    for name in names:
        await admin.patch(pods_path(namespace, name), {"spec": {"schedulingGates": None}})

    assert {(await bound(admin, namespace, name))["spec"]["nodeName"] for name in names} == {roomy}
    audit = await audit_devices(admin, namespace)
    for name in names:
        roots = {audit.has[roomy, entry["id"]]["topology"]["pcieID"] for entry in audit.held[name]}
        assert len(roots) == 1, "each Pod's two cards are on one PCIe root"
