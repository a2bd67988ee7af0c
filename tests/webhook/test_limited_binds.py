"""The bind of Pods whose memory limits must be kept: what it writes, and where it refuses."""

from typing import Any

import pytest
from builders import GIB, container, device_entry, device_object, pod
from fake_kube import FakeKube
from sharings import sharing, uses
from world import World, asks, binding, binds

from allocator.vocabulary.delivery import NodeRuntime
from allocator.wire.noderuntime import NODE_RUNTIME, write_runtime
from console import devicewords
from console.simulator import words
from koordgate.kube.client import KubeClient
from koordgate.kube.resource import DEVICES
from webhook import patch
from webhook.settings import parse

Raw = dict[str, Any]
ABLE = NodeRuntime(default_shows=True, mode="auto", toolkit=(1, 20, 2), no_limits="")
READY = NodeRuntime(default_shows=True, fractions=True)
UNABLE = NodeRuntime(default_shows=True, mode="auto", no_limits="the driver is 580.95: install R615 or later")
REQUEST, LIMIT = "nvidia-gpu-memory-request.koordgate.io/", "nvidia-gpu-memory-limit.koordgate.io/"
BYTES = {"kubernetes.io/gpu-memory": "3Mi"}


def world_of(fake: FakeKube, kube: KubeClient, provider: str, runtime: NodeRuntime | None, *memories: str) -> World:
    """A world in which limits are required everywhere; node n1 has cards of these sizes and this runtime."""
    world = World(fake, kube, parse(f"limits: {{provider: {provider}, require: ['*']}}"))
    entries = [device_entry(minor, memory, id=f"GPU-n1-{minor}") for minor, memory in enumerate(memories or ["80Gi"])]
    world.add_node("n1", *entries)
    annotations = None if runtime is None else {NODE_RUNTIME: write_runtime(runtime)}
    fake.put(DEVICES.path(), device_object(*entries, name="n1", annotations=annotations))
    return world


@pytest.fixture
def able(fake: FakeKube, kube: KubeClient) -> World:
    return world_of(fake, kube, "nvidia-toolkit", ABLE)


def create(world: World, obj: Raw, name: str = "p") -> Raw:
    """Create a Pod through admission."""
    response = world.parts.pods.mutate(asks(obj))
    assert response.allowed, response.message
    made = patch.apply(obj, response.patch)
    made["metadata"] |= {"name": name, "uid": f"uid-{name}"}
    judged = world.parts.pods.validate(asks(made))
    assert judged.allowed, judged.message
    world.show(made)
    return made


async def bound(world: World, obj: Raw, name: str = "p") -> dict[str, str]:
    """Create and bind a Pod; its annotations."""
    create(world, obj, name)
    response = await world.bind(name)
    assert response.allowed, response.message
    found: dict[str, str] = world.pod(name)["metadata"]["annotations"]
    return found


def stated(annotations: dict[str, str]) -> dict[str, tuple[str, str]]:
    """Container -> its request and its limit, as the toolkit is told them."""
    names = [key.removeprefix(LIMIT) for key in annotations if key.startswith(LIMIT)]
    assert sorted(names) == sorted(key.removeprefix(REQUEST) for key in annotations if key.startswith(REQUEST))
    return {name: (annotations[f"{REQUEST}{name}"], annotations[f"{LIMIT}{name}"]) for name in names}


def environment(obj: Raw, container: int) -> dict[str, str]:
    """A container's variables about limits, as the kubelet resolves them."""
    annotations = obj["metadata"]["annotations"]
    paths = {
        entry["name"]: entry["valueFrom"]["fieldRef"]["fieldPath"]
        for entry in obj["spec"]["containers"][container]["env"]
        if entry["name"].startswith("NVIDIA_GPU_MEMORY")
    }
    keys = {name: path.removeprefix("metadata.annotations['").removesuffix("']") for name, path in paths.items()}
    return {name: annotations.get(key, "") for name, key in keys.items()}


# The Pod, and for each container with a card what its limit is; requests are 0
BOUND: dict[str, tuple[Raw, dict[str, str]]] = {
    "a part": (pod(uses("a", 50), container("b")), {"a": "40960"}),
    "two containers": (pod(uses("a", 25), uses("b", 50)), {"a": "20480", "b": "40960"}),
    "a group": (
        sharing(uses("a"), uses("b"), users=["a", "b"], weights={"a": 3}, slot=50),
        {"a": "30720", "b": "10240"},
    ),
    "init containers": (pod(uses("a", 50), init=[uses("first", 75)]), {"first": "61440", "a": "40960"}),
    "bytes": (pod(container("a", limits=BYTES)), {"a": "3"}),
}


@pytest.mark.parametrize(("obj", "limits"), BOUND.values(), ids=BOUND)
async def test_the_bind_tells_the_toolkit_the_limit_of_each_container(
    able: World, obj: Raw, limits: dict[str, str]
) -> None:
    found = await bound(able, obj)
    assert stated(found) == {name: ("0", limit) for name, limit in limits.items()}
    able.audit()


async def test_the_variables_resolve_in_both_spellings(able: World) -> None:
    await bound(able, pod(uses("a", 50), container("b")))
    assert environment(able.pod("p"), 0) == {
        "NVIDIA_GPU_MEMORY_REQUEST": "0",
        "NVIDIA_GPU_MEMORY_REQUESTS": "0",
        "NVIDIA_GPU_MEMORY_LIMIT": "40960",
        "NVIDIA_GPU_MEMORY_LIMITS": "40960",
    }
    assert environment(able.pod("p"), 1) == {}


async def test_two_cards_of_which_one_is_smaller_have_its_limit(fake: FakeKube, kube: KubeClient) -> None:
    world = world_of(fake, kube, "nvidia-toolkit", ABLE, "80Gi", "16383Mi")
    halves = container("a", limits={"kubernetes.io/gpu": "100", "kubernetes.io/gpu.shared": "2"})
    assert stated(await bound(world, pod(halves))) == {"a": ("0", "8191")}


async def test_the_limits_of_all_pods_on_an_odd_card_sum_to_no_more_than_it_has(
    fake: FakeKube, kube: KubeClient
) -> None:
    world = world_of(fake, kube, "nvidia-toolkit", ABLE, str(15 * GIB + 12_345_677))
    limits = [
        stated(await bound(world, pod(uses("a", percent)), f"p{percent}"))["a"][1] for percent in (7, 11, 19, 30, 33)
    ]
    assert sum(map(int, limits)) * 2**20 <= 15 * GIB + 12_345_677


async def test_a_whole_card_that_its_author_wants_limited_has_all_of_it(able: World) -> None:
    obj = pod(uses("a", 100), annotations={"koordgate.io/limits": "require"})
    assert stated(await bound(able, obj)) == {"a": ("0", "81920")}
    assert stated(await bound(world_without(able), pod(uses("a", 100)), "q")) == {}


def world_without(world: World) -> World:
    """The world without its first Pod."""
    world.remove_pod("p")
    world.add_node("n1", device_entry(1))
    world.see()
    return world


async def test_a_repeated_bind_writes_the_same_and_a_dry_run_too(able: World) -> None:
    create(able, sharing(uses("a", 25), uses("b", 20)))
    dry = await able.mutate(binds(binding("p", "n1"), dry_run=True))
    first, second = [await able.mutate(binds(binding("p", "n1"))) for _ in range(2)]
    assert dry.patch == first.patch == second.patch
    assert stated(patch.apply(binding("p", "n1"), first.patch)["metadata"]["annotations"]) == {
        "a": ("0", "20480"),
        "b": ("0", "16384"),
    }
    assert (await able.validate(binds(patch.apply(binding("p", "n1"), second.patch)))).allowed


@pytest.mark.parametrize("text", [None, "81920"])
@pytest.mark.parametrize("provider", ["nvidia-toolkit", "nvidia-fractions"])
async def test_a_binding_with_another_limit_than_follows_from_the_ledger_is_refused(
    fake: FakeKube, kube: KubeClient, provider: str, text: str | None
) -> None:
    world = world_of(fake, kube, provider, ABLE if provider == "nvidia-toolkit" else READY)
    create(world, pod(uses("a", 50)))
    asked = patch.apply(binding("p", "n1"), (await world.mutate(binds(binding("p", "n1")))).patch)
    key = f"{LIMIT}a" if provider == "nvidia-toolkit" else "nvidia.com/container.a.gpu-memory.limit"
    assert asked["metadata"]["annotations"].pop(key)
    asked["metadata"]["annotations"] |= {} if text is None else {key: text}
    judged = await world.validate(binds(asked))
    assert not judged.allowed
    assert "carries another allocation than the ledger holds" in judged.message


async def test_the_fractioning_operator_is_told_each_containers_cards_and_memory(
    fake: FakeKube, kube: KubeClient
) -> None:
    world = world_of(fake, kube, "nvidia-fractions", READY)
    found = await bound(world, pod(uses("a", 50), container("b"), uses("c", 25)))
    told = {key: text for key, text in found.items() if key.startswith("nvidia.com/container.")}
    assert told == {
        f"nvidia.com/container.{name}.{key}": text
        for name, mebibytes in (("a", 40960), ("c", 20480))
        for key, text in {
            "gpus.devices": "GPU-n1-0",
            "gpu-compute.mode": "time-slicing",
            "gpu-memory.request": f"{mebibytes}Mi",
            "gpu-memory.limit": f"{mebibytes}Mi",
        }.items()
    }
    assert stated(found) == {}


@pytest.mark.parametrize(
    ("provider", "runtime", "why"),
    [
        ("nvidia-toolkit", None, "let koordgate's reporter run there"),
        ("nvidia-toolkit", READY, "let koordgate's reporter run there"),
        ("nvidia-toolkit", UNABLE, "the driver is 580.95: install R615 or later"),
        ("nvidia-fractions", ABLE, "gpu-sharing.nvidia.com/Ready is not True"),
    ],
)
async def test_a_node_that_keeps_no_limits_takes_no_pod_that_requires_them(
    fake: FakeKube, kube: KubeClient, provider: str, runtime: NodeRuntime | None, why: str
) -> None:
    world = world_of(fake, kube, provider, runtime)
    create(world, pod(uses("a", 50)))
    response = await world.bind("p")
    assert (response.allowed, response.code) == (False, 409)
    assert "n1: the node does not keep memory limits, which the Pod requires" in response.message
    assert why in response.message
    assert world.holders() == []
    assert stated(await bound(world, pod(uses("a", 100)), "whole")) == {}


async def test_less_than_a_mib_of_a_card_is_refused_by_the_bind_where_admission_could_not_know(
    fake: FakeKube, kube: KubeClient
) -> None:
    world = world_of(fake, kube, "nvidia-toolkit", ABLE, "64Mi")
    create(world, pod(container("a", limits={"kubernetes.io/gpu-memory-ratio": "1"})))
    response = await world.bind("p")
    assert not response.allowed
    assert "n1: container a has less than 1 MiB of a card, too little for the memory limit" in response.message
    assert world.holders() == []


async def test_simulate_tells_what_each_container_is_kept_to(able: World) -> None:
    await bound(able, pod(uses("a", 50), uses("b", 25)))
    assert devicewords.limits(able.pod("p")) == [
        "a is kept to 40 GiB of each of its GPUs",
        "b is kept to 20 GiB of each of its GPUs",
    ]
    assert devicewords.limits(pod(uses("a", 50))) == []
    limited = pod(uses("a", 50), annotations={"koordgate.io/limits": "require"})
    assert "limits require" in words.asked(limited, able.parts.types)[-1]
