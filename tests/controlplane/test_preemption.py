"""Preemption on a real kube-scheduler: it proposes victims by a node's sums, koordgate names those that make room."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from controlplane.gpu_cluster import (
    DEVICE_ALLOCATED,
    add_node,
    at_home,
    audit_devices,
    bound,
    create,
    gpu,
    ledger,
    pods_path,
    remove,
    scheduling,
    uuid_of,
    waits,
)

from localplane.admin import AdminClient, JsonObject
from localplane.plane import ControlPlane
from localplane.replicas import Replicas
from localplane.waiting import until

PRIORITIES = {"test-low": 10, "test-middle": 20, "test-high": 1000}
VISIBLE = "visible-devices.koordgate.io/main"
HALF, WHOLE = {"kubernetes.io/gpu": "50"}, {"nvidia.com/gpu": "1"}
# Each Pod that exists first: its name, its request, its card, its priority.
Standing = tuple[str, dict[str, str], int, str]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def replicas(
    plane: ControlPlane, installed: list[JsonObject], tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Replicas]:
    async with plane.admin() as admin:
        for name, value in PRIORITIES.items():
            about = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}}
            await admin.apply({**about, "value": value})
    async with scheduling(plane, installed, tmp_path_factory.mktemp("preemption")) as started:
        yield started


@pytest_asyncio.fixture(loop_scope="session")
async def node(plane: ControlPlane, admin: AdminClient, namespace: str) -> AsyncIterator[str]:
    """A node with two cards."""
    name = f"{namespace}-gpu"
    await add_node(plane, admin, name, namespace, [gpu(name, 0), gpu(name, 1)])
    yield name
    await remove(admin, namespace, [name])


def on_card(name: str, namespace: str, asks: dict[str, str], card: str, priority: str) -> JsonObject:
    """A Pod for one card and no other."""
    only = {"gpu": {"selector": {"matchLabels": {"koordgate.io/uuid": card}}}}
    hint = {"scheduling.koordinator.sh/device-allocate-hint": only}
    return at_home(name, namespace, asks, annotations=hint, priorityClassName=priority)


async def stand(admin: AdminClient, namespace: str, node: str, standing: list[Standing]) -> None:
    """Bind the first Pods, one after another."""
    for name, asks, card, priority in standing:
        await create(admin, [on_card(name, namespace, asks, uuid_of(node, card), priority)])
        found = await bound(admin, namespace, name)
        assert found["metadata"]["annotations"][VISIBLE] == uuid_of(node, card)


async def events_until_bound(admin: AdminClient, namespace: str, name: str, since: str) -> list[tuple[str, str]]:
    """The events of Pods, in order, until one was bound: (DELETED, name) or (BOUND, name)."""
    seen: list[tuple[str, str]] = []
    async for event in admin.watch(pods_path(namespace), resourceVersion=since, timeoutSeconds="60"):
        about = event["object"]
        who = about["metadata"]["name"]
        if event["type"] == "DELETED":
            seen.append(("DELETED", who))
        elif who == name and about["spec"].get("nodeName"):
            return [*seen, ("BOUND", who)]
    raise AssertionError(f"{name} was not bound; seen were {seen}")


@pytest.mark.parametrize(
    ("standing", "victims"),
    [
        (
            [
                ("half-a", HALF, 0, "test-low"),
                ("half-b", HALF, 0, "test-low"),
                ("whole", WHOLE, 1, "test-middle"),
            ],
            {"half-a", "half-b"},
        ),
        (
            # By sums the two least important would suffice, but they are on two cards.
            [
                ("low-0", HALF, 0, "test-low"),
                ("low-1", HALF, 1, "test-low"),
                ("middle-0", HALF, 0, "test-middle"),
                ("high-1", HALF, 1, "test-high"),
            ],
            {"low-0", "middle-0"},
        ),
    ],
    ids=["two halves of one card", "not the two least important, which are on two cards"],
)
async def test_exactly_the_pods_whose_device_makes_room_are_preempted(
    replicas: Replicas, admin: AdminClient, namespace: str, node: str, standing: list[Standing], victims: set[str]
) -> None:
    await stand(admin, namespace, node, standing)
    since = (await admin.get(pods_path(namespace)))["metadata"]["resourceVersion"]

    await create(admin, [at_home("urgent", namespace, WHOLE, priorityClassName="test-high")])

    seen = await events_until_bound(admin, namespace, "urgent", since)
    assert sorted(seen[:-1]) == sorted(("DELETED", name) for name in victims), "victims go first, and nobody else"
    left = {one["metadata"]["name"]: one for one in await admin.items(pods_path(namespace))}
    assert left.keys() == {"urgent", *(name for name, *_ in standing)} - victims
    assert all(DEVICE_ALLOCATED in one["metadata"]["annotations"] for one in left.values())
    await audit_devices(admin, namespace)
    freed = {card for name, _, card, _ in standing if name in victims}
    assert {left["urgent"]["metadata"]["annotations"][VISIBLE]} == {uuid_of(node, card) for card in freed}

    async def only_those_left() -> bool:
        return (await ledger(admin))[node].keys() == {one["metadata"]["uid"] for one in left.values()}

    await until(only_those_left, "the ledger forgets the victims")


async def test_nobody_is_preempted_where_that_would_not_make_room(
    replicas: Replicas, admin: AdminClient, namespace: str, node: str
) -> None:
    """By sums two low halves are one card, but beside each is a half that may not be preempted."""
    standing: list[Standing] = [
        ("low-0", HALF, 0, "test-low"),
        ("low-1", HALF, 1, "test-low"),
        ("high-0", HALF, 0, "test-high"),
        ("high-1", HALF, 1, "test-high"),
    ]
    await stand(admin, namespace, node, standing)

    await create(admin, [at_home("urgent", namespace, WHOLE, priorityClassName="test-high")])

    await waits(admin, namespace, "urgent", "Insufficient kubernetes.io/gpu-core")
    await create(admin, [at_home("later", namespace, WHOLE, priorityClassName="test-middle")])
    await waits(admin, namespace, "later")  # by then the first one was decided
    assert len(await admin.items(pods_path(namespace))) == 6
