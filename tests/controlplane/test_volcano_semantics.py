"""What the source "Volcano GPU sharing" tells, through the API server, kube-scheduler, the extender and the bind.

Each test names the section that it follows. Faults that the source tells of are mended here; their tests say so.
Expected cards are given by index, which is the minor of the Device object. Units of memory are GiB, as in the source.
"""

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Sequence
from typing import Any, NamedTuple

import pytest
import pytest_asyncio
from controlplane.gpu_cluster import (
    ALLOCATIONS,
    DEVICES,
    add_node,
    allocated,
    at_home,
    audit,
    bound,
    create,
    device_object,
    gpu,
    ledger,
    pods_path,
    remove,
    scheduling,
    uuid_of,
    waits,
)

from allocator.vocabulary.adopted import Numbering
from allocator.vocabulary.names import DEVICE_ALLOCATED, DEVICE_ORDER, DIALECT, visible_devices
from allocator.wire.deviceobject import DEVICE_NUMBERS, write_numberings
from localplane import chart
from localplane.admin import AdminClient, ApiError, JsonObject
from localplane.binaries import Binaries
from localplane.plane import ControlPlane
from localplane.replicas import Replicas
from localplane.waiting import until

MEMORY, NUMBER = "volcano.sh/gpu-memory", "volcano.sh/gpu-number"
INDEX = "volcano.sh/gpu-index"
VALUES = {
    "dialects": {"volcano-share": {"enabled": True, "memoryUnit": "1Gi"}},
    "devices": {"order": "minor"},
    "mirror": ["volcano"],
}
Units = int | Sequence[int]


def asks(units: Units) -> dict[str, str]:
    return {MEMORY: str(units)}


def sharing(name: str, namespace: str, units: Units, init: int = 0, **more: Any) -> JsonObject:
    """A Pod whose containers ask for this memory of a card."""
    first, *others = [units] if isinstance(units, int) else units
    made = at_home(name, namespace, asks(first), **more)
    containers = made["spec"]["containers"]
    for number, amount in enumerate(others):
        resources = {"requests": asks(amount), "limits": asks(amount)}
        containers.append({"name": f"more-{number}", "image": "none", "resources": resources})
    if init:
        resources = {"requests": asks(init), "limits": asks(init)}
        made["spec"]["initContainers"] = [{"name": "init", "image": "none", "resources": resources}]
    return made


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def rendered(
    plane: ControlPlane, binaries: Binaries, installed: list[JsonObject]
) -> AsyncIterator[list[JsonObject]]:
    """The chart of an administrator who comes from Volcano: its names, in GiB, and its order of cards."""
    objects = chart.render(binaries, VALUES)
    await chart.install(plane, objects)
    yield objects
    await chart.install(plane, installed)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def serving(
    plane: ControlPlane, rendered: list[JsonObject], tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Replicas]:
    """Two replicas and the scheduler, once the API server goes by the chart's conditions."""
    async with scheduling(plane, rendered, tmp_path_factory.mktemp("volcano")) as replicas, plane.admin() as admin:

        async def seen() -> bool:
            told = await admin.create(pods_path("default"), sharing("p", "default", 1), dryRun="All")
            return DIALECT in told["metadata"].get("annotations", {})

        await until(seen, "the API server goes by the new match conditions")
        yield replicas


@pytest.fixture
def node(namespace: str) -> str:
    return f"{namespace}-cards"


@pytest_asyncio.fixture(loop_scope="session")
async def cards(serving: Replicas, plane: ControlPlane, admin: AdminClient, namespace: str, node: str) -> Any:
    """Make the test's one node, with cards of these sizes in GiB; it is removed after the test."""

    async def made(*sizes: int, **labels: str) -> None:
        await add_node(
            plane, admin, node, namespace, [gpu(node, at, gib=gib) for at, gib in enumerate(sizes)], **labels
        )
        # What the reporter tells: which card each number means.
        uuids = [uuid_of(node, at) for at in range(len(sizes))]
        numbers = write_numberings((Numbering(0, 0, tuple(uuids), tuple(enumerate(uuids))),))
        await admin.patch(f"{DEVICES}/{node}", {"metadata": {"annotations": {DEVICE_NUMBERS: numbers}}})

    yield made
    await remove(admin, namespace, [node])


async def listed(admin: AdminClient, node: str, *entries: JsonObject) -> None:
    """What the node's agent reports from now on."""
    await admin.apply(device_object(node, entries))


async def card_of(admin: AdminClient, namespace: str, made: JsonObject) -> tuple[int, ...]:
    """Create a Pod, and return the indices of the cards that it was bound to."""
    await create(admin, [made])
    found = await bound(admin, namespace, made["metadata"]["name"])
    return tuple(sorted(entry["minor"] for entry in allocated(found)))


# "Choose a fitting GPU": card by card from index 0, the first with enough memory left


class Row(NamedTuple):
    """Cards in GiB, the Pods that come one after another, and the index that each gets; None where it waits."""

    cards: tuple[int, ...]
    pods: tuple[Units, ...]
    indices: tuple[int | None, ...]


FIRST_FIT = {
    "a card is used up before the next one": Row((20, 20), (5, 5, 5, 5, 5), (0, 0, 0, 0, 1)),
    "a later Pod goes back to the first card": Row((20, 20), (16, 10, 4), (0, 1, 0)),
    "more than any card has left, though less than all have": Row((20, 20), (12, 12, 9), (0, 1, None)),
    "containers whose sum is more than a card": Row((20, 20), ((12, 12),), (None,)),
    # The source divides the node's memory by its number of cards, and says that unequal cards cannot be used so.
    "unequal cards: more than the mean": Row((20, 100), (70,), (1,)),
}


@pytest.mark.parametrize("row", FIRST_FIT.values(), ids=FIRST_FIT)
async def test_a_pod_gets_the_first_card_by_index_that_has_enough(
    cards, admin: AdminClient, namespace: str, row: Row
) -> None:
    await cards(*row.cards)
    for number, (units, index) in enumerate(zip(row.pods, row.indices, strict=True)):
        made = sharing(f"p{number}", namespace, units)
        if index is None:
            await create(admin, [made])
            told = "not all together inside one device" if isinstance(units, tuple) else f"of {len(row.cards)} GPUs"
            await waits(admin, namespace, f"p{number}", told)
        else:
            assert await card_of(admin, namespace, made) == (index,)
    await audit(admin)


async def test_a_nodes_label_gives_this_order_where_the_installation_has_another(
    cards, admin: AdminClient, namespace: str
) -> None:
    """And the other way round: the label `smallest` passes over the large card with index 0."""
    await cards(100, 20, **{DEVICE_ORDER: "smallest"})
    assert await card_of(admin, namespace, sharing("p0", namespace, 12)) == (1,)
    path = f"/api/v1/nodes/{namespace}-cards"
    await admin.patch(path, {"metadata": {"labels": {DEVICE_ORDER: "minor"}}})
    numbers = itertools.count(1)

    async def followed() -> bool:
        """A replica gives by the order that it has seen."""
        return await card_of(admin, namespace, sharing(f"p{next(numbers)}", namespace, 1)) == (0,)

    await until(followed, "cards are given by the new order")


async def test_init_containers_count_for_the_card(cards, admin: AdminClient, namespace: str) -> None:
    """The source counts a Pod's app containers alone, so that an init container's card was given twice."""
    await cards(20)
    assert await card_of(admin, namespace, sharing("p0", namespace, 4, init=16)) == (0,)
    await create(admin, [sharing("p1", namespace, 8)])
    await waits(admin, namespace, "p1")
    assert await card_of(admin, namespace, sharing("p2", namespace, 4)) == (0,)


# "Node's GPU information": what a node states, and in which unit


async def test_a_unit_is_what_the_installation_says(cards, admin: AdminClient, namespace: str) -> None:
    """24 units of 1 GiB are a card of 24 GiB; the Pod keeps the unit that was used."""
    await cards(24)
    assert await card_of(admin, namespace, sharing("p", namespace, 24)) == (0,)
    found = await admin.get(pods_path(namespace, "p"))
    assert found["metadata"]["annotations"][DIALECT] == "volcano-share; memory unit 1Gi"
    assert [entry["resources"]["kubernetes.io/gpu-memory"] for entry in allocated(found)] == ["24Gi"]


async def test_a_pod_that_asks_for_no_memory_of_a_card_is_left_alone(cards, admin: AdminClient, namespace: str) -> None:
    for units in ({}, {MEMORY: "0"}):
        made = await admin.create(pods_path(namespace), at_home("p", namespace, units), dryRun="All")
        assert made["spec"]["schedulerName"] == "default-scheduler"
        assert DIALECT not in made["metadata"].get("annotations", {})


# "Assigning the Pod": what is written, and when


async def test_the_card_is_told_in_the_write_that_binds_the_pod(
    cards, admin: AdminClient, namespace: str, node: str
) -> None:
    """The source writes the index first. If that write fails, the Pod is bound and its card is not counted."""
    await cards(20, 20)
    await create(admin, [sharing("p", namespace, 8)])
    seen: list[JsonObject] = []
    async with asyncio.timeout(60):
        async for event in admin.watch(pods_path(namespace)):
            seen.append(event["object"])
            if event["object"].get("spec", {}).get("nodeName"):
                break
    assert all(DEVICE_ALLOCATED not in one["metadata"].get("annotations", {}) for one in seen[:-1])
    annotations = seen[-1]["metadata"]["annotations"]
    assert [entry["minor"] for entry in json.loads(annotations[DEVICE_ALLOCATED])["gpu"]] == [0]
    assert annotations[visible_devices("main")] == uuid_of(node, 0)
    assert annotations[INDEX] == "0"


async def test_containers_are_told_the_uuid_and_not_the_index(
    cards, admin: AdminClient, namespace: str, node: str
) -> None:
    """An index means another card once one before it is masked; the source sets NVIDIA_VISIBLE_DEVICES to the index."""
    await cards(20, 20)
    assert await card_of(admin, namespace, sharing("filler", namespace, 20)) == (0,)
    assert await card_of(admin, namespace, sharing("p", namespace, (4, 8), init=2)) == (1,)
    found = await admin.get(pods_path(namespace, "p"))
    told = {name: found["metadata"]["annotations"][visible_devices(name)] for name in ("main", "more-0", "init")}
    assert set(told.values()) == {uuid_of(node, 1)}
    for container in (*found["spec"]["initContainers"], *found["spec"]["containers"]):
        (entry,) = [one for one in container["env"] if one["name"] == "NVIDIA_VISIBLE_DEVICES"]
        wanted = f"metadata.annotations['{visible_devices(container['name'])}']"
        assert entry["valueFrom"]["fieldRef"]["fieldPath"] == wanted


async def test_an_index_that_an_author_writes_is_refused(cards, admin: AdminClient, namespace: str) -> None:
    """After a restart Volcano counts a Pod on the card that its annotation names, whoever wrote it."""
    await cards(20, 20)
    with pytest.raises(ApiError, match=INDEX):
        await create(admin, [sharing("p", namespace, 8, annotations={INDEX: "1"})])


# "Counting used GPU memory": whose memory counts


async def test_the_memory_of_a_finished_pod_counts_no_more(cards, admin: AdminClient, namespace: str) -> None:
    await cards(20, 20)
    assert await card_of(admin, namespace, sharing("job", namespace, 16)) == (0,)
    assert await card_of(admin, namespace, sharing("other", namespace, 16)) == (1,)
    await create(admin, [sharing("next", namespace, 16)])
    await waits(admin, namespace, "next")
    await admin.patch(pods_path(namespace, "job", "status"), {"status": {"phase": "Failed"}})
    (entry,) = allocated(await bound(admin, namespace, "next"))
    assert entry["minor"] == 0


# "Recovery of GPU scheduling after a restart"


async def test_a_restart_and_a_lost_ledger_lose_nothing(
    cards, serving: Replicas, admin: AdminClient, namespace: str, node: str
) -> None:
    """The source keeps what cards hold in memory, and rebuilds it from annotations; here the ledger has it as well."""
    await cards(20, 20)
    assert await card_of(admin, namespace, sharing("p0", namespace, 16)) == (0,)
    assert await card_of(admin, namespace, sharing("p1", namespace, 10)) == (1,)
    before = (await ledger(admin))[node]
    for number in range(2):
        await serving.stop(number)
    await admin.delete(f"{ALLOCATIONS}/{node}")
    for number in range(2):
        await serving.start(number)
    assert (await ledger(admin))[node] == before
    assert await card_of(admin, namespace, sharing("p2", namespace, 8)) == (1,)
    assert await card_of(admin, namespace, sharing("p3", namespace, 4)) == (0,)
    await create(admin, [sharing("p4", namespace, 8)])
    await waits(admin, namespace, "p4")
    await audit(admin)


async def test_pods_that_are_seen_before_their_nodes_cards_still_count(
    cards, admin: AdminClient, namespace: str, node: str
) -> None:
    """The source drops a Pod whose card is not known yet, and never adds it again."""
    await cards(20, 20)
    assert await card_of(admin, namespace, sharing("p0", namespace, 16)) == (0,)
    await admin.delete(f"{DEVICES}/{node}")
    await create(admin, [sharing("p1", namespace, 8)])
    await waits(admin, namespace, "p1", "no GPUs known here")
    await listed(admin, node, gpu(node, 0, gib=20), gpu(node, 1, gib=20))
    (entry,) = allocated(await bound(admin, namespace, "p1"))
    assert entry["minor"] == 1


# "Updating the node" and "A card that drops out"


async def test_a_masked_middle_card_leaves_the_others_their_indices(
    cards, admin: AdminClient, namespace: str, node: str
) -> None:
    """The node need not be drained: Pods of the other cards go on, and new ones come to these."""
    await cards(20, 20, 20)
    for number in range(3):
        assert await card_of(admin, namespace, sharing(f"p{number}", namespace, 12)) == (number,)
    await listed(admin, node, gpu(node, 0, gib=20), gpu(node, 2, gib=20))
    assert await card_of(admin, namespace, sharing("p3", namespace, 8)) == (0,)
    assert await card_of(admin, namespace, sharing("p4", namespace, 8)) == (2,)
    await create(admin, [sharing("p5", namespace, 8)])
    await waits(admin, namespace, "p5")
    await listed(admin, node, *(gpu(node, at, gib=20) for at in range(3)))
    (entry,) = allocated(await bound(admin, namespace, "p5"))
    assert (entry["minor"], entry["id"]) == (1, uuid_of(node, 1))
