"""Containers that share a device, through a real API server and kube-scheduler, wrong Pods among them."""

import json
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any

import pytest
import pytest_asyncio
from controlplane.gpu_cluster import (
    GIB,
    WOKEN,
    add_node,
    at_home,
    audit,
    bound,
    gpu,
    pods_path,
    refusal,
    remove,
    scheduling,
    waits,
)

from localplane.admin import MERGE_PATCH, AdminClient, ApiError, JsonObject
from localplane.plane import ControlPlane
from localplane.replicas import Replicas

SHARING = "koordgate.io/device-sharing"
QUOTAS = "koordgate.io/device-quotas"
HALF = 40 * GIB


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def replicas(
    plane: ControlPlane, installed: list[JsonObject], tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Replicas]:
    slots = {"devices": {"defaultSlotResourceFraction": {"types": {"gpu": 50}}}}
    async with scheduling(
        plane, installed, tmp_path_factory.mktemp("sharing"), overrides={**WOKEN, **slots}
    ) as started:
        yield started


@pytest_asyncio.fixture(loop_scope="session")
async def node(plane: ControlPlane, admin: AdminClient, namespace: str, replicas: Replicas) -> AsyncIterator[str]:
    """A node with two cards of 80 GiB, for this test's Pods."""
    name = f"{namespace}-n0"
    await add_node(plane, admin, name, namespace, [gpu(name, 0), gpu(name, 1)])
    yield name
    await remove(admin, namespace, [name])


def container(name: str, percent: int = 0, **amounts: Any) -> JsonObject:
    """A container that asks for a percentage of a GPU, or for other amounts, or for none."""
    stated = {"gpu": percent} if percent else {key.replace("_", "-"): amount for key, amount in amounts.items()}
    asks = {f"kubernetes.io/{key}": str(amount) for key, amount in stated.items()}
    return {"name": name, "image": "none", **({"resources": {"limits": asks}} if asks else {})}


def sidecar(name: str, percent: int) -> JsonObject:
    return {**container(name, percent), "restartPolicy": "Always"}


def sharing(
    name: str, namespace: str, said: Mapping[str, Any] | None, *apps: JsonObject, init: Iterable[JsonObject] = ()
) -> JsonObject:
    annotations = {} if said is None else {SHARING: json.dumps({"gpu": said})}
    made = at_home(name, namespace, {}, annotations=annotations, containers=list(apps))
    if init:
        made["spec"]["initContainers"] = list(init)
    return made


Told = dict[str, dict[str, list[str]]]


def told(found: JsonObject) -> Told:
    """Container -> resource -> what it may use of each of its cards, as the Pod's annotation says."""
    quotas = json.loads(found["metadata"]["annotations"][QUOTAS])
    return {
        name: {
            key.rpartition("/")[2]: [entry["resources"][key] for entry in by_type["gpu"]]
            for key in by_type["gpu"][0]["resources"]
        }
        for name, by_type in quotas.items()
    }


USERS = {"users": ["a", "b"]}
# What the annotation says, the containers, and for each what it may use of compute and of memory
RIGHT: dict[str, tuple[Mapping[str, Any], list[JsonObject], list[JsonObject], dict[str, tuple[str, str]]]] = {
    "stated": ({}, [container("a", 30), container("b", 50)], [], {"a": ("30", "24Gi"), "b": ("50", "40Gi")}),
    "weights": (
        {**USERS, "weights": {"a": 3}, "slot": 40},
        [container("a"), container("b"), container("c")],
        [],
        {"a": ("30", "24Gi"), "b": ("10", "8Gi")},
    ),
    "sidecar": (
        {},
        [container("a", 60)],
        [sidecar("side", 10), container("first", 70)],
        {"side": ("10", "8Gi"), "first": ("70", "56Gi"), "a": ("60", "48Gi")},
    ),
    "group-each": (
        {"regions": "GroupEach"},
        [container("a", 60), container("b", 60)],
        [],
        {"a": ("60", "48Gi"), "b": ("60", "48Gi")},
    ),
}


@pytest.mark.parametrize("name", RIGHT)
async def test_each_container_is_told_its_part_of_what_the_pod_holds(
    admin: AdminClient, namespace: str, node: str, name: str
) -> None:
    said, apps, init, wanted = RIGHT[name]
    await admin.create(pods_path(namespace), sharing(name, namespace, said, *apps, init=init))

    found = await bound(admin, namespace, name)

    quotas = told(found)
    assert {one: (*of["gpu-core"], *of["gpu-memory"]) for one, of in quotas.items()} == wanted
    by_name = {one["name"]: one for one in [*found["spec"].get("initContainers", ()), *found["spec"]["containers"]]}
    for one, entry in by_name.items():
        variables = {each["name"] for each in entry["env"]}
        assert ("KOORDGATE_GPU_MEMORY_BYTES" in variables) is (one in wanted)
    cards = {one: found["metadata"]["annotations"][f"visible-devices.koordgate.io/{one}"] for one in wanted}
    assert len(set(cards.values())) == (2 if name == "group-each" else 1)  # regions reuse what others held
    await audit(admin)


async def test_whole_cards_are_seen_by_both_and_two_groups_of_60_percent_wait_for_the_second_card(
    admin: AdminClient, namespace: str, node: str
) -> None:
    pair = sharing("pair", namespace, {}, container("a", 100), container("b", 100))
    await admin.create(pods_path(namespace), pair)
    found = await bound(admin, namespace, "pair")
    assert told(found)["a"] == {
        "gpu-core": ["50", "50"],
        "gpu-memory": ["40Gi", "40Gi"],
        "gpu-memory-ratio": ["50", "50"],
    }
    annotations = found["metadata"]["annotations"]
    assert annotations["gpu-memory.device-quotas.koordgate.io/b"] == f"{HALF},{HALF}"
    assert annotations["gpu-core.device-quotas.koordgate.io/b"] == "50,50"

    each = sharing("each", namespace, {"regions": "GroupEach"}, container("a", 60), container("b", 60))
    await admin.create(pods_path(namespace), each)
    await waits(admin, namespace, "each")
    await admin.delete(pods_path(namespace, "pair"))
    assert len({*cards_of(await bound(admin, namespace, "each"))}) == 2


def cards_of(found: JsonObject) -> list[str]:
    annotations = found["metadata"]["annotations"]
    return [text for key, text in annotations.items() if key.startswith("visible-devices.koordgate.io/")]


WRONG: dict[str, tuple[Mapping[str, Any], list[JsonObject], str]] = {
    "mixed": ({"users": ["b"]}, [container("a", 30), container("b")], "which cannot be mixed"),
    "slot-over-a-device": ({"users": ["a"], "slot": 150}, [container("a")], "must be a whole number from 1 to 100"),
}


@pytest.mark.parametrize("name", WRONG)
async def test_a_pod_that_can_never_work_is_refused_with_the_remedy(
    admin: AdminClient, namespace: str, node: str, name: str
) -> None:
    said, apps, why = WRONG[name]
    with pytest.raises(ApiError, match=why) as refused:
        await admin.create(pods_path(namespace), sharing(name, namespace, said, *apps))
    assert f"metadata.annotations[{SHARING}]" in refused.value.message


@pytest.mark.parametrize("key", [QUOTAS, "gpu-memory.device-quotas.koordgate.io/a"])
async def test_nobody_may_say_what_a_container_may_use(admin: AdminClient, namespace: str, node: str, key: str) -> None:
    forged = sharing("forged", namespace, {}, container("a", 30))
    forged["metadata"]["annotations"][key] = "1"
    assert await refusal(admin.create(pods_path(namespace), forged)) == "koordgate-allocations"
    plain = sharing("plain", namespace, None, {"name": "a", "image": "none"})
    await admin.create(pods_path(namespace), plain)
    change = {"metadata": {"annotations": {key: "1"}}}
    path = pods_path(namespace, "plain")
    assert await refusal(admin.patch(path, change, MERGE_PATCH)) == "koordgate-allocations"


async def test_how_containers_share_cannot_be_changed(admin: AdminClient, namespace: str, node: str) -> None:
    await admin.create(pods_path(namespace), sharing("fixed", namespace, {}, container("a", 30)))
    for text in (None, "{}"):
        change = {"metadata": {"annotations": {SHARING: text}}}
        assert await refusal(admin.patch(pods_path(namespace, "fixed"), change, MERGE_PATCH)) == "koordgate-allocations"
