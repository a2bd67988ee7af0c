"""Pods so large that reading them would keep others waiting are refused as they are created."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from builders import container, pod
from world import World, asks, gpu_pod

from allocator.vocabulary.names import DEVICE_ALLOCATED, ORIGINAL_REQUEST
from webhook.review import Response
from webhook.view.loads import BoundRequests
from webhook.view.podinfo import PodInfo, read_other_pod, read_pod_info

Raw = dict[str, Any]


def created(world: World, obj: Raw) -> tuple[Response, Response]:
    """The answers of both webhooks to the creation of a Pod."""
    question = asks({**obj, "metadata": {**obj["metadata"], "name": "p"}})
    return world.parts.pods.mutate(question), world.parts.pods.validate(question)


def of_containers(apps: int, first: int) -> Raw:
    half = {"kubernetes.io/gpu": "50"}
    return pod(
        container("a0", limits=half, requests=half),
        *(container(f"a{at}") for at in range(1, apps)),
        init=[container(f"i{at}") for at in range(first)],
    )


@pytest.mark.parametrize(("apps", "first"), [(257, 0), (1, 256), (5000, 1200)])
async def test_a_pod_of_too_many_containers_is_refused(world: World, apps: int, first: int) -> None:
    for answer in created(world, of_containers(apps, first)):
        assert not answer.allowed
        assert answer.message == (
            f"Pod default/p: spec.containers: {apps + first} containers; koordgate reads 256 at most"
        )


async def test_a_pod_of_many_containers_is_translated(world: World) -> None:
    answer, _ = created(world, of_containers(200, 56))
    assert answer.allowed
    assert answer.patch


@pytest.mark.parametrize(("length", "refused"), [(262_143, False), (262_144, True), (5_000_000, True)])
async def test_annotations_that_kubernetes_would_not_store_are_not_read(
    world: World, length: int, *, refused: bool
) -> None:
    obj = gpu_pod("p", annotations={"a": "x" * length}, admit=False)
    answer, _ = created(world, obj)
    assert answer.allowed != refused
    if refused:
        assert answer.message == (
            f"Pod default/p: metadata.annotations: {length + 1} characters; koordgate reads 256Ki at most"
        )


async def test_an_update_of_a_large_pod_that_exists_is_not_refused(world: World) -> None:
    obj = of_containers(300, 0)
    question = asks(obj, operation="UPDATE", old=obj)
    assert world.parts.pods.validate(question).allowed


@pytest.mark.parametrize("key", ["koordgate.io/original-request", "koordgate.io/device-sharing"])
async def test_an_annotation_that_names_thousands_of_containers_is_refused_at_birth(world: World, key: str) -> None:
    text = json.dumps({f"c{at}": {"limits": {"nvidia.com/gpu": "1"}} for at in range(5600)})
    mutated, validated = created(world, gpu_pod("p", annotations={key: text}, admit=False))
    for answer in (mutated, validated):
        assert not answer.allowed
        assert key in answer.message
        assert "64" in answer.message


def taken_in(obj: Raw) -> PodInfo:
    obj["metadata"] |= {"uid": "u-p"}
    obj["spec"]["nodeName"] = "n1"
    info = read_pod_info(obj)
    assert info is not None
    return info


LARGE = {
    "containers": lambda: of_containers(5000, 0),
    "amounts": lambda: pod(container("a", limits={"kubernetes.io/gpu": "50"} | {f"a/{at}": "1" for at in range(9000)})),
    "annotations": lambda: gpu_pod("p", annotations={f"a{at}": "" for at in range(9000)}, admit=False),
    "an annotation": lambda: gpu_pod("p", annotations={ORIGINAL_REQUEST: " " * 70_000}, admit=False),
}


@pytest.mark.parametrize("made", LARGE.values(), ids=LARGE)
async def test_a_large_pod_that_exists_holds_what_was_given_to_it(made: Callable[[], Raw]) -> None:
    obj = made()
    obj["metadata"].setdefault("annotations", {})[DEVICE_ALLOCATED] = '{"gpu":[{"minor":3,"id":"GPU-3"}]}'
    info = taken_in(obj)
    assert [share.id for share in info.shares] == ["GPU-3"]
    assert info.problem
    assert not info.request


async def test_what_was_given_counts_as_everything_where_it_is_too_long_to_be_read() -> None:
    shares = ",".join(f'{{"minor":{at},"id":"GPU-{at}"}}' for at in range(5000))
    info = taken_in(gpu_pod("p", annotations={DEVICE_ALLOCATED: f'{{"gpu":[{shares}]}}'}, admit=False))
    assert not info.shares
    assert "gpu" in info.unread


async def test_a_large_pod_of_others_is_none_of_ours_and_counts_as_nothing() -> None:
    obj = pod(*(container(f"c{at}", requests={"cpu": "1"}) for at in range(2000)), name="p")
    obj["metadata"] |= {"uid": "u-p"}
    obj["spec"]["nodeName"] = "n1"
    assert read_pod_info(obj) is None
    assert read_other_pod(obj).counted == BoundRequests("n1", ())
