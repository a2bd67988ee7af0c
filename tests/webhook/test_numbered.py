"""Pods whose annotations name devices by minor alone, on a node whose devices were numbered again."""

import json
from typing import Any

import pytest
from builders import device_entry, device_object
from world import World, gpu_pod, koordinator_annotation

from allocator.vocabulary.names import DEVICE_ALLOCATED
from koordgate.kube.resource import DEVICES

BOUND, AGAIN = "2026-11-20T10:00:00Z", 1_795_200_000  # the latter is twelve days later
HALF = {"kubernetes.io/gpu-core": "50", "kubernetes.io/gpu-memory-ratio": "50"}


def numbered(world: World, *ids: str, past: tuple[str, ...] = ()) -> None:
    """Let the reporter tell the node's cards, and which numbers they had until `AGAIN`."""
    listed = [{**device_entry(minor), "id": identity} for minor, identity in enumerate(ids)]
    history = [(0, past or ids), (AGAIN, ids)]
    entries = [{"since": at, "indexes": [], "minors": dict(enumerate(those))} for at, those in history]
    told = {"koordgate.io/device-numbers": json.dumps(entries)}
    world.fake.put(DEVICES.path(), device_object(*listed, name="n1", annotations=told))
    world.see()


def running(world: World, name: str, bound: str | None = BOUND) -> None:
    """A Pod that Koordinator's scheduler bound to the card with minor 0."""
    annotations = koordinator_annotation((0, HALF, ""))
    made = gpu_pod(name, nodeName="n1", annotations=annotations)
    made["metadata"].setdefault("annotations", {}).update(annotations)
    made["spec"]["nodeName"] = "n1"
    conditions = [{"type": "PodScheduled", "status": "True", "lastTransitionTime": bound}] if bound else []
    made["status"] = {"phase": "Running", "conditions": conditions}
    world.show(made)


async def card_of(world: World, name: str) -> Any:
    """Bind a Pod that wants a whole card; its id, None if there is none."""
    world.show(gpu_pod(name, 100))
    answer = await world.bind(name)
    if not answer.allowed:
        return None
    (share,) = json.loads(world.pod(name)["metadata"]["annotations"][DEVICE_ALLOCATED])["gpu"]
    return share["id"]


@pytest.mark.parametrize(
    ("bound", "free"), [(BOUND, ["GPU-b", "GPU-c"]), (None, ["GPU-c"]), ("2027-01-01T00:00:00Z", ["GPU-a", "GPU-c"])]
)
async def test_a_minor_keeps_its_card_after_the_cards_were_numbered_again(
    world: World, bound: str | None, free: list[str]
) -> None:
    world.add_node("n1")
    numbered(world, "GPU-b", "GPU-a", "GPU-c", past=("GPU-a", "GPU-b", "GPU-c"))
    running(world, "seed", bound)

    given = [await card_of(world, f"new-{number}") for number in range(3)]

    assert sorted(filter(None, given)) == free
    (held,) = [one for one in world.parts.cluster.snapshot("n1").holdings.values() if one.name == "seed"]
    assert {share.id for share in held.shares}.isdisjoint(free)


async def test_a_card_that_has_gone_since_is_what_the_pod_holds(world: World) -> None:
    world.add_node("n1")
    numbered(world, "GPU-b", past=("GPU-a", "GPU-b"))
    running(world, "seed")

    assert await card_of(world, "new") == "GPU-b"
