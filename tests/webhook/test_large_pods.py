"""Pods so large that reading them would keep others waiting are refused as they are created."""

from typing import Any

import pytest
from builders import container, pod
from world import World, asks, gpu_pod

from webhook.review import Response

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
            f"Pod default/p: metadata.annotations: {length + 1} characters; Kubernetes stores 256Ki at most"
        )


async def test_an_update_of_a_large_pod_that_exists_is_not_refused(world: World) -> None:
    obj = of_containers(300, 0)
    question = asks(obj, operation="UPDATE", old=obj)
    assert world.parts.pods.validate(question).allowed
