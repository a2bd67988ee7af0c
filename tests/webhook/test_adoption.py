"""Other products' Pods in the cluster view, from filter to bind; what is told of them; and the mirror of a bind."""

import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from builders import device_entry, device_object
from foreignpods import STARTED_S, Raw, gpushare, hami, kai, reservation, volcano
from world import World, annotation_of, gpu_pod, koordinator_annotation

from allocator.vocabulary.holdings import InvariantError
from allocator.vocabulary.names import DEVICE_ALLOCATED
from allocator.wire.foreignpods import read_foreign_pod
from koordgate.kube.resource import DEVICES, EVENTS, PODS
from webhook.settings import adoption_of, parse

SETTINGS = parse(
    "{domain: koordinator.sh, adopt: {peers: [hami, volcano, gpushare, kai]}, mirror: [hami, volcano, gpushare]}"
)
ENTRY = "{},NVIDIA,{},{}:;"
MIB = 2**20


@pytest.fixture
def two(fake, kube) -> World:
    """A node n1 of two cards, with a history of their numbers."""
    world = World(fake, kube, SETTINGS)
    world.add_node("n1", device_entry(0), device_entry(1))
    numbers(world, ["GPU-n1-0", "GPU-n1-1"])
    return world


def numbers(world: World, *indexes: list[str], **annotations: str) -> None:
    """Write the history of the node's numbers, and other annotations of its Device object."""
    entries = [
        {"since": STARTED_S - 100 + 200 * at, "indexes": one, "minors": {str(n): uuid for n, uuid in enumerate(one)}}
        for at, one in enumerate(indexes)
    ]
    listed = [device_entry(0), device_entry(1)]
    for entry in listed:
        entry["id"] = f"GPU-n1-{entry['minor']}"
    told = {"koordgate.io/device-numbers": json.dumps(entries), **annotations}
    world.fake.put(DEVICES.path(), device_object(*listed, name="n1", annotations=told))
    world.see()


def there(world: World, *pods: Raw) -> None:
    for pod in pods:
        world.add_pod(pod)
    world.see(PODS)


async def binds(world: World, name: str, percent: int) -> str:
    """Bind a new Pod: its card, or why it is refused."""
    world.add_pod(gpu_pod(name, percent))
    world.see(PODS)
    answer = await world.bind(name)
    if not answer.allowed:
        return answer.message
    (holding,) = [one for one in world.holdings().values() if one.name == name]
    return holding.shares[0].id


def events(world: World) -> list[tuple[str, str]]:
    found = world.fake.objects(EVENTS.path())
    return [(one["involvedObject"]["name"], one["message"]) for one in found if one["reason"] == "AdoptionConflict"]


WHOLE_CARD = {
    "HAMi": hami(ENTRY.format("GPU-n1-0", 81920, 0)),
    "Volcano": volcano("0", "81920"),
    "gpushare": gpushare("0", "16", "16", 16),
}


@pytest.mark.parametrize("adopted", [False, True], ids=["seen", "in the ledger"])
@pytest.mark.parametrize(
    "forged", [koordinator_annotation((1, {"koordinator.sh/gpu-core": "1"}, "")), {DEVICE_ALLOCATED: "{}"}]
)
async def test_an_author_hides_no_card_that_another_product_gave_by_an_allocation_of_his_own(
    two: World, forged: dict[str, str], *, adopted: bool
) -> None:
    pod = hami(ENTRY.format("GPU-n1-0", 81920, 0))
    pod["metadata"]["annotations"] |= forged
    there(two, pod)
    if adopted:
        await two.parts.reconciler.reconcile()
    assert await binds(two, "p", 50) != "GPU-n1-0"
    assert await binds(two, "q", 25) != "GPU-n1-0"


@pytest.mark.parametrize("pod", WHOLE_CARD.values(), ids=WHOLE_CARD)
async def test_a_bind_gives_nothing_of_a_card_that_another_products_pod_holds(two: World, pod: Raw) -> None:
    there(two, pod)
    assert await binds(two, "p", 100) == "GPU-n1-1"
    assert "1 held by Pods of other products" in await binds(two, "q", 1)
    assert [one.name for one in two.holdings().values()] == ["p"]
    two.remove_pod("peer", "team")
    two.see(PODS)
    assert await binds(two, "r", 100) == "GPU-n1-0"


async def test_the_rest_of_a_shared_card_is_given(two: World) -> None:
    there(two, hami(ENTRY.format("GPU-n1-0", 20480, 25)), hami(ENTRY.format("GPU-n1-1", 81920, 0), name="all"))
    assert "held by Pods of other products" in await binds(two, "p", 76)
    assert await binds(two, "q", 75) == "GPU-n1-0"


async def test_a_reserved_card_of_kai_is_held_as_a_whole_and_not_twice(two: World) -> None:
    there(two, kai("g", annotations={"gpu-fraction": "0.5"}), reservation("g", "GPU-n1-1"))
    assert await binds(two, "p", 100) == "GPU-n1-0"
    assert "held by Pods of other products" in await binds(two, "q", 1)
    await two.parts.adoption.look()
    assert events(two) == []


async def test_a_finished_pod_holds_nothing(two: World) -> None:
    there(two, hami(ENTRY.format("GPU-n1-0", 81920, 0)), hami(ENTRY.format("GPU-n1-1", 81920, 0), name="all"))
    assert "held by Pods" in await binds(two, "p", 1)
    two.add_pod(hami(ENTRY.format("GPU-n1-0", 81920, 0), phase="Succeeded"))
    two.see(PODS)
    assert (await two.bind("p")).allowed


async def test_an_index_means_the_card_that_it_meant_when_the_pod_started(two: World) -> None:
    numbers(two, ["GPU-gone", "GPU-n1-1"], ["GPU-n1-1", "GPU-n1-0"])
    there(two, volcano("1", "81920"))
    assert await binds(two, "p", 100) == "GPU-n1-0"


async def test_a_card_that_the_kubelet_gave_to_an_adopted_pod_is_held_by_as_much_as_that_pod_states(
    two: World,
) -> None:
    given = [{"podUID": "uid-peer", "deviceIDs": ["GPU-n1-0"]}]
    checkpoint = {"node.koordinator.sh/devices-checkpoints": json.dumps(given)}
    numbers(two, ["GPU-n1-0", "GPU-n1-1"], **checkpoint)
    there(two, hami(ENTRY.format("GPU-n1-0", 20480, 25)), hami(ENTRY.format("GPU-n1-1", 81920, 0), name="all"))
    assert await binds(two, "a", 75) == "GPU-n1-0"
    given.append({"podUID": "uid-unknown", "deviceIDs": ["GPU-n1-0"]})
    checkpoint = {"node.koordinator.sh/devices-checkpoints": json.dumps(given)}
    numbers(two, ["GPU-n1-0", "GPU-n1-1"], **checkpoint)
    assert "1 held by the kubelet's device plugin" in await binds(two, "b", 1)


@pytest.mark.parametrize("entry", [{"deviceIDs": ["GPU-n1-0"]}, {"podUID": "", "deviceIDs": ["GPU-n1-0"]}])
async def test_a_card_that_the_kubelet_gave_to_nobody_knows_whom_stays_closed(
    two: World, entry: Mapping[str, Any]
) -> None:
    given = json.dumps([{"podUID": "uid-peer", "deviceIDs": ["GPU-n1-0"]}, entry])
    numbers(two, ["GPU-n1-0", "GPU-n1-1"], **{"node.koordinator.sh/devices-checkpoints": given})
    there(two, hami(ENTRY.format("GPU-n1-0", 20480, 25)), hami(ENTRY.format("GPU-n1-1", 81920, 0), name="all"))
    assert "held by the kubelet's device plugin" in await binds(two, "a", 1)


async def test_conflicts_are_counted_and_told_once_on_each_pod(two: World) -> None:
    there(
        two,
        hami("nonsense", name="bad"),
        hami(ENTRY.format("GPU-x", 1, 0), name="lost"),
        hami(ENTRY.format("GPU-n1-0", 1, 0), name="other", scheduler="default-scheduler"),
        hami(ENTRY.format("GPU-n1-1", 81920, 0), name="one"),
        hami(ENTRY.format("GPU-n1-1", 81920, 0), name="more"),
    )
    for _ in range(2):
        await two.parts.adoption.look()
        await two.parts.reporter.idle()
    kinds = ("unreadable", "unknownDevice", "uncounted", "overfull", "besideOurs", "outOfRange", "unknownNumber")
    assert [two.metric("koordgate_adoption_conflicts", kind=kind) for kind in kinds] == [1, 1, 1, 1, 0, 0, 0]
    assert two.metric("koordgate_adopted_pods", peer="hami") == 4
    assert sorted(name for name, _ in events(two)) == ["bad", "lost", "more", "one", "other"]
    two.remove_pod("bad", "team")
    two.see(PODS)
    await two.parts.adoption.look()
    assert two.metric("koordgate_adoption_conflicts", kind="unreadable") == 0


async def test_a_pod_beside_which_koordgate_gave_the_same_card_is_a_conflict(two: World) -> None:
    assert await binds(two, "p", 100) == "GPU-n1-0"
    there(two, hami(ENTRY.format("GPU-n1-0", 20480, 0), name="late"))
    await two.parts.adoption.look()
    await two.parts.reporter.idle()
    ((name, message),) = events(two)
    assert name == "late"
    assert "is held by team/late (hami) as well as by default/p" in message


async def test_nothing_is_read_unless_it_is_turned_on(fake, kube) -> None:
    world = World(fake, kube)
    world.add_node("n1", device_entry(0))
    world.see()
    there(world, hami("nonsense"), hami(ENTRY.format("GPU-n1-0", 81920, 0), name="all"))
    assert await binds(world, "p", 100) == "GPU-n1-0"


async def test_a_bind_mirrors_what_the_products_would_have_written_and_that_counts_once(two: World) -> None:
    two.add_pod(gpu_pod("p", 25))
    two.see(PODS)
    written = annotation_of((await two.bind("p")).patch)
    now = two.clock()
    expected = {
        "hami.io/vgpu-devices-allocated": "GPU-n1-0,NVIDIA,20480,25:;",
        "hami.io/vgpu-devices-to-allocate": ";",
        "hami.io/vgpu-node": "n1",
        "hami.io/vgpu-time": f"{now}",
        "hami.io/bind-time": f"{now}",
        "hami.io/bind-phase": "success",
        "volcano.sh/gpu-index": "0",
        "volcano.sh/predicate-time": f"{now}000000000",
        "ALIYUN_COM_GPU_MEM_IDX": "0",
        "ALIYUN_COM_GPU_MEM_POD": "20",
        "ALIYUN_COM_GPU_MEM_DEV": "80",
        "ALIYUN_COM_GPU_MEM_ASSIGNED": "true",
        "ALIYUN_COM_GPU_MEM_ASSUME_TIME": f"{now}000000000",
    }
    assert {key: value for key, value in written.items() if key in expected} == expected
    assert await binds(two, "q", 75) == "GPU-n1-0"
    stored = two.pod("p")
    assert read_foreign_pod(stored, adoption_of(SETTINGS)) is None
    await two.parts.adoption.look()
    assert events(two) == []


async def test_an_index_that_no_reporter_stated_is_not_mirrored(two: World) -> None:
    numbers(two)
    two.add_pod(gpu_pod("p", 25))
    two.see(PODS)
    written = annotation_of((await two.bind("p")).patch)
    assert "volcano.sh/gpu-index" not in written
    assert written["ALIYUN_COM_GPU_MEM_IDX"] == "0"


SPOILT: dict[str, Callable[[Any], object]] = {
    "a Pod by node too few": lambda foreign: foreign._on.clear(),
    "a Pod by node too many": lambda foreign: foreign._on.update(n2=foreign._on["n1"]),
    "what is remembered": lambda foreign: foreign._adopted.update(n1=(*foreign._adopted["n1"][:2], {})),
}


@pytest.mark.parametrize("spoil", SPOILT.values(), ids=SPOILT)
def test_what_is_kept_of_other_products_pods_and_is_wrong_is_found(two: World, spoil: Callable[[Any], object]) -> None:
    there(two, hami(ENTRY.format("GPU-n1-0", 20480, 25)), hami(ENTRY.format("GPU-n1-1", 1, 0), name="other"))
    two.parts.cluster.snapshot("n1")
    foreign = two.parts.cluster.foreign
    foreign.check_invariants()
    spoil(foreign)
    with pytest.raises(InvariantError):
        foreign.check_invariants()
