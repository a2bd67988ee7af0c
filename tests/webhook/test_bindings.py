"""Devices are chosen when the Pod is bound, and no other user may bind it: both reviews of a Binding, end to end."""

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest
from builders import GIB, container, device_entry, nic_entry, pod
from fake_kube import FakeKube, Fault, answer, drop, hold, hold_answer, lose_answer
from world import (
    SCHEDULER,
    TENANT,
    World,
    admitted,
    annotation_of,
    binding,
    binds,
    gpu_pod,
    koordinator_annotation,
    plain_pod,
    releasing,
    repeated,
)

from allocator.vocabulary.names import DEVICE_ALLOCATED
from allocator.wire.allocatehint import DEVICE_ALLOCATE_HINT
from koordgate.kube.client import KubeClient
from koordgate.kube.resource import DEVICES, NODE_ALLOCATIONS, PODS
from webhook import patch
from webhook.review import Response
from webhook.scheduling.account import Occasion
from webhook.settings import parse

Raw = dict[str, Any]
TENTH = {"kubernetes.io/gpu-core": "10", "kubernetes.io/gpu-memory-ratio": "10"}
HALF = {"kubernetes.io/gpu-core": "50", "kubernetes.io/gpu-memory": "40Gi", "kubernetes.io/gpu-memory-ratio": "50"}


def allocation(minor: int = 0, node: str = "n1", **containers: list[int]) -> dict[str, str]:
    """The annotations of half a card, exactly."""
    entry = {"minor": minor, "resources": HALF, "id": f"GPU-{node}-{minor}"}
    told = {DEVICE_ALLOCATED: json.dumps({"gpu": [entry]}, separators=(",", ":"))}
    for name in containers or {"main": [minor]}:
        told[f"visible-devices.koordgate.io/{name}"] = f"GPU-{node}-{minor}"
    return told


def refused(response: Response, code: int, *words: str) -> None:
    assert not response.allowed
    assert response.code == code, response.message
    for word in words:
        assert word in response.message


async def given_back(world: World) -> None:
    """What is not bound is given back: half a grace until the mark, a grace until the release."""
    for seconds in (61, 121):
        await world.parts.reconciler.reconcile()
        world.clock.now += seconds
    await world.parts.reconciler.reconcile()


async def retried(world: World) -> Response:
    """Repeat a bind after what it was given before has changed: nothing is given until that is given back."""
    before = world.holdings()["uid-p"]
    refused(await world.mutate(binds(binding("p", "n1"))), 409, "is being given back", "within 240 s")
    marked = world.holdings()["uid-p"]
    assert marked.ending
    assert replace(marked, ending="") == before
    world.see()
    await given_back(world)
    return await world.mutate(binds(binding("p", "n1")))


def writes(world: World) -> int:
    return sum(len(world.fake.seen(verb, "nodeallocations")) for verb in ("create", "update"))


# --- allocation


async def test_a_bind_chooses_devices_records_them_and_puts_them_on_the_pod(world: World) -> None:
    world.show(gpu_pod("p"))
    response = await world.bind("p")
    assert response.allowed
    stored = world.pod("p")
    assert stored["spec"]["nodeName"] == "n1"
    told = {key: text for key, text in stored["metadata"]["annotations"].items() if "original-request" not in key}
    assert told == allocation()
    held = world.holdings()["uid-p"]
    assert (held.namespace, held.name, held.since) == ("default", "p", world.clock.now)
    share = held.shares[0]
    assert (share.id, share.minor, share.containers) == ("GPU-n1-0", 0, ("main",))
    assert dict(share.amounts) == {"gpu-core": 50, "gpu-memory": 40 * GIB, "gpu-memory-ratio": 50}
    assert response.audit == {
        "held": "gpu:0:GPU-n1-0",
        "node": "n1",
        "pod-uid": "uid-p",
        "preference": "fragmentation",
        "reason": Occasion.NAMED,
        "recorded": "yes",
    }


async def test_the_environment_finds_each_containers_own_cards(world: World) -> None:
    world.add_node("n1", device_entry(0), device_entry(1), device_entry(2))
    asked = {"kubernetes.io/gpu": "100"}
    obj = admitted(
        pod(
            container("one", limits=asked),
            container("two", limits={"kubernetes.io/gpu": "200"}),
            container("none"),
            init=[container("first", limits=asked)],
            name="p",
            uid="uid-p",
        )
    )
    world.show(obj)
    assert (await world.bind("p")).allowed
    told = world.pod("p")["metadata"]["annotations"]
    seen = {}
    for one in [*obj["spec"]["initContainers"], *obj["spec"]["containers"]]:
        source = one["env"][0].get("valueFrom")
        path = source["fieldRef"]["fieldPath"] if source else ""
        key = path.removeprefix("metadata.annotations['").removesuffix("']")
        seen[one["name"]] = set(told[key].split(",")) if key else one["env"][0]["value"]
    assert seen["none"] == "void"
    assert seen["one"] | seen["two"] == {f"GPU-n1-{minor}" for minor in range(3)}
    assert not seen["one"] & seen["two"]
    assert seen["first"] < seen["one"] | seen["two"]
    world.audit()


async def test_the_binding_keeps_its_own_annotations(world: World) -> None:
    world.show(gpu_pod("p"))
    asked = binding("p", "n1", annotations={"a/b": "c"})
    response = await world.mutate(binds(asked))
    assert patch.apply(asked, response.patch)["metadata"]["annotations"] == {"a/b": "c", **allocation()}


async def test_a_node_that_is_full_is_refused_with_the_pod_and_what_would_fit(world: World) -> None:
    for name in ("a", "b", "c"):
        world.add_pod(gpu_pod(name, 40))
    world.see()
    assert (await world.bind("a")).allowed
    assert (await world.bind("b")).allowed
    refused(await world.bind("c"), 409, "Pod default/c is not bound", "n1", "core 20 percent")
    assert world.holders() == ["a", "b"]
    assert "nodeName" not in world.pod("c")["spec"]


@pytest.mark.parametrize("node", ["nowhere", "n2"])
async def test_a_node_without_known_devices_is_refused(world: World, node: str) -> None:
    world.show(gpu_pod("p"))
    refused(await world.bind("p", node), 409, "no GPUs known")


async def test_pods_that_arrive_together_never_share_what_is_not_there(world: World) -> None:
    world.add_node("n1", *(device_entry(minor) for minor in range(4)))
    names = [f"p{number:02}" for number in range(30)]
    for name in names:
        world.add_pod(gpu_pod(name, 30))
    world.see()
    responses = await asyncio.gather(*(world.bind(name, see=False) for name in names))
    assert sum(response.allowed for response in responses) == 12  # three on each of four cards
    world.audit()
    assert writes(world) <= 4  # group commit


async def test_three_replicas_bind_side_by_side_and_nothing_is_given_twice(fake: FakeKube, kube: KubeClient) -> None:
    replicas = [World(fake, kube) for _ in range(3)]
    replicas[0].add_node("n1", *(device_entry(minor) for minor in range(4)))
    names = [f"p{number:02}" for number in range(30)]
    for name in names:
        replicas[0].add_pod(gpu_pod(name, 50))
    for replica in replicas:
        replica.see()
    binding_now = (replicas[number % 3].bind(name, see=False) for number, name in enumerate(names))
    responses = await asyncio.gather(*binding_now)
    assert sum(response.allowed for response in responses) == 8
    replicas[0].audit()
    bound = [obj for obj in fake.objects(PODS.path()) if obj["spec"].get("nodeName")]
    assert sorted(obj["metadata"]["name"] for obj in bound) == replicas[0].holders()


# --- the same Pod again


async def test_the_same_pod_again_gets_the_same_answer_and_nothing_is_written(world: World) -> None:
    world.add_node("n1", device_entry(0), device_entry(1))
    world.show(gpu_pod("p"))
    first = await world.mutate(binds(binding("p", "n1")))
    again = await world.mutate(binds(binding("p", "n1")))
    assert again == repeated(first)
    assert writes(world) == 1


async def test_another_replica_gives_the_same_pod_the_same_answer(world: World, kube: KubeClient) -> None:
    world.show(gpu_pod("p"))
    other = World(world.fake, kube)
    other.see(*[resource for resource in world._feeds if resource is not NODE_ALLOCATIONS])
    first = await world.mutate(binds(binding("p", "n1")))
    again = await other.mutate(binds(binding("p", "n1")))
    assert again == repeated(first)
    assert (await other.validate(binds(patch.apply(binding("p", "n1"), again.patch)))).allowed


async def test_a_lost_answer_of_the_write_is_found_by_the_retry(world: World) -> None:
    world.show(gpu_pod("p"))
    world.fake.faults.add("create", "nodeallocations", lose_answer())
    refused(await world.mutate(binds(binding("p", "n1"))), 503)
    assert world.holders() == ["p"]
    assert annotation_of((await world.mutate(binds(binding("p", "n1")))).patch) == allocation()
    assert writes(world) == 1


async def test_a_card_that_became_unhealthy_before_the_retry_is_left(world: World) -> None:
    world.add_node("n1", device_entry(0), device_entry(1))
    world.show(gpu_pod("p"))
    await world.mutate(binds(binding("p", "n1")))
    world.add_node("n1", device_entry(0, health=False), device_entry(1))
    world.see()
    assert annotation_of((await retried(world)).patch) == allocation(1)
    assert [share.minor for share in world.holdings()["uid-p"].shares] == [1]


async def test_a_card_that_shrank_before_the_retry_is_given_as_it_is_now(world: World) -> None:
    world.show(gpu_pod("p", 100))
    await world.mutate(binds(binding("p", "n1")))
    world.add_node("n1", device_entry(0, "40Gi"))
    world.see()
    response = await retried(world)
    (share,) = world.holdings()["uid-p"].shares
    assert share.amounts == {"gpu-core": 100, "gpu-memory": 40 * GIB, "gpu-memory-ratio": 100}
    assert '"kubernetes.io/gpu-memory":"40Gi"' in annotation_of(response.patch)[DEVICE_ALLOCATED]
    world.audit()


def selecting(minor: int) -> dict[str, str]:
    selector = {"matchLabels": {"koordgate.io/minor": str(minor)}}
    return {DEVICE_ALLOCATE_HINT: json.dumps({"gpu": {"selector": selector}})}


@pytest.mark.parametrize("product", ["NVIDIA-H100-80GB-HBM3", "Tesla-T4", ""])
async def test_a_selector_of_a_model_follows_the_nodes_label_where_the_device_object_states_none(
    world: World, product: str
) -> None:
    labels = {"nvidia.com/gpu.product": product} if product else {}
    world.add_node("other", device_entry(0, labels={"node.koordinator.sh/gpu-model": "H100-80GB-HBM3"}))
    world.add_node("n1", device_entry(0), labels=labels)
    selector = {"matchLabels": {"koordgate.io/model": "H100-80GB-HBM3"}}
    hint = {DEVICE_ALLOCATE_HINT: json.dumps({"gpu": {"selector": selector}})}
    world.show(gpu_pod("p", annotations=hint))
    assert (await world.bind("p")).allowed is (product == "NVIDIA-H100-80GB-HBM3")


async def test_a_plain_request_goes_to_no_card_of_another_vendor(world: World) -> None:
    vendor = "node.koordinator.sh/gpu-vendor"
    world.add_node("huawei", device_entry(0, labels={vendor: "huawei"}))
    world.add_node("mixed", device_entry(0, labels={vendor: "amd"}), device_entry(1, labels={vendor: "NVIDIA"}))
    plain = pod(container(limits={"nvidia.com/gpu": "1"}), name="p", uid="uid-p")
    anybodys = gpu_pod("anybodys", 100)
    for obj in (admitted(plain, 80 * GIB), anybodys):
        world.add_pod(obj)
    world.see()

    for nodes, fitting in ((["huawei", "mixed"], ["mixed"]), (["huawei"], [])):
        named = world.parts.extender.filter({"Pod": world.pod("p"), "NodeNames": nodes})
        assert named["NodeNames"] == fitting
    refused(await world.bind("p", "huawei"), 409, "0 of 1 GPUs (1 of another vendor) can hold it")
    assert (await world.bind("p", "mixed")).allowed
    assert [share.minor for share in world.holdings("mixed")["uid-p"].shares] == [1]
    assert (await world.bind("anybodys", "huawei")).allowed


async def test_a_retry_gives_what_the_pods_hint_says_now(world: World) -> None:
    world.add_node("n1", device_entry(0), device_entry(1))
    world.show(gpu_pod("p", annotations=selecting(0)))
    await world.mutate(binds(binding("p", "n1")))
    world.change_pod("p", metadata={"annotations": {**world.pod("p")["metadata"]["annotations"], **selecting(1)}})
    world.see(PODS)
    assert annotation_of((await retried(world)).patch) == allocation(1)
    assert [share.minor for share in world.holdings()["uid-p"].shares] == [1]


@pytest.mark.parametrize(
    ("functions", "given"),
    [(["01.0", "01.1"], "01.0"), (["01.1"], "01.1")],
    ids=["there and once more free beside", "gone"],
)
async def test_a_retry_keeps_the_virtual_function_while_there_is_one(
    world: World, functions: list[str], given: str
) -> None:
    def nic(*told: str) -> Raw:
        vfs = [{"minor": at, "busID": f"0000:{name}"} for at, name in enumerate(told)]
        return {"type": "rdma", "id": "0000:00", "minor": 0, "health": True, "vfGroups": [{"labels": {}, "vfs": vfs}]}

    world.add_node("n1", nic("01.0"))
    hint = {DEVICE_ALLOCATE_HINT: json.dumps({"rdma": {"vfSelector": {}}})}
    asked = container(limits={"kubernetes.io/rdma": "10"}, requests={"kubernetes.io/rdma": "10"})
    world.show(admitted(pod(asked, name="p", uid="uid-p", annotations=hint)))
    await world.mutate(binds(binding("p", "n1")))
    world.add_node("n1", nic(*functions))
    world.see()
    again = await world.mutate(binds(binding("p", "n1"))) if "01.0" in functions else await retried(world)
    assert again.allowed
    assert [function.bus_id for function in world.holdings()["uid-p"].shares[0].functions] == [f"0000:{given}"]


async def test_a_retry_gives_the_same_though_others_came_and_went_meanwhile(world: World) -> None:
    """In a new choice the Pod would go to card 0, which has become free, or beside the Pod that came to card 2."""
    world.add_node("n1", *map(device_entry, range(3)))
    for name, percent, minor in (("left", 100, 0), ("p", 50, 1), ("came", 40, 2)):
        world.add_pod(gpu_pod(name, percent, annotations=selecting(minor) if name != "p" else None))
    world.see()
    assert (await world.bind("left")).allowed
    first = await world.mutate(binds(binding("p", "n1")))
    assert annotation_of(first.patch) == allocation(1)
    assert (await world.bind("came")).allowed
    world.remove_pod("left")
    world.see(PODS)
    await world.parts.reconciler.reconcile()
    assert await world.mutate(binds(binding("p", "n1"))) == repeated(first)


async def test_containers_that_ask_alike_keep_each_its_card(world: World) -> None:
    world.add_node("n1", device_entry(0), device_entry(1), device_entry(2))
    half = {"kubernetes.io/gpu": "60"}
    two = pod(container("a", limits=half, requests=half), container("b", limits=half, requests=half), uid="uid-p")
    world.add_pod(gpu_pod("before", 40, annotations=selecting(1)))
    world.show(admitted({**two, "metadata": {**two["metadata"], "name": "p"}}))
    assert (await world.bind("before")).allowed
    first = await world.mutate(binds(binding("p", "n1")))
    assert annotation_of(first.patch)["visible-devices.koordgate.io/a"] == "GPU-n1-1"
    world.remove_pod("before")
    world.see(PODS)
    await world.parts.reconciler.reconcile()
    assert await world.mutate(binds(binding("p", "n1"))) == repeated(first)


@pytest.mark.parametrize("changed", ["shrunk", "sick"])
async def test_what_a_pod_holds_that_was_bound_unseen_is_never_changed(world: World, changed: str) -> None:
    """The bind was performed and its answer lost; then the card changed, and the scheduler repeats the bind.

    The repeated bind marks the holding, and the mark goes once it is seen that the Pod is bound.
    """
    world.add_node("n1", device_entry(0), device_entry(1))
    world.show(gpu_pod("p", 100))
    assert (await world.bind("p", see=False)).allowed
    held = world.holdings()
    world.add_node("n1", device_entry(0, "40Gi", health=changed == "shrunk"), device_entry(1))
    world.see(DEVICES)
    refused(await world.mutate(binds(binding("p", "n1"))), 409, "is being given back")
    assert world.holdings()["uid-p"].shares == held["uid-p"].shares
    await given_back(world)
    assert world.holdings() == held


async def test_a_pod_that_is_gone_unseen_is_given_nothing_else(world: World) -> None:
    world.add_node("n1", device_entry(0), device_entry(1))
    world.show(gpu_pod("p"))
    await world.mutate(binds(binding("p", "n1")))
    world.add_node("n1", device_entry(0, health=False), device_entry(1))
    world.see(DEVICES)
    world.remove_pod("p")
    refused(await world.mutate(binds(binding("p", "n1"))), 409, "is being given back")
    await world.parts.reconciler.reconcile()
    await world.parts.reconciler.reconcile()
    assert world.holders() == ["p"], "the view has the Pod still, and a grace is not over"
    world.see()
    await world.parts.reconciler.reconcile()
    assert world.holders() == []


async def test_a_pod_bound_to_another_node_leaves_the_first(world: World) -> None:
    world.add_node("n2")
    world.show(gpu_pod("p"))
    await world.mutate(binds(binding("p", "n1")))  # and the bind fails after our webhook
    async with releasing(world):
        assert (await world.bind("p", "n2")).allowed
        await world.fake.until(lambda: (world.holders("n1"), world.holders("n2")) == ([], ["p"]))


async def test_a_pod_that_was_bound_after_all_keeps_what_it_holds(world: World) -> None:
    """The bind was performed and its answer lost; the scheduler, unaware, tries another node, which must fail."""
    world.add_node("n2")
    world.show(gpu_pod("p", 100))
    await world.bind("p", "n1", see=False)
    mutated = await world.mutate(binds(binding("p", "n2")))  # our own watch is late too
    assert mutated.allowed
    world.add_pod(gpu_pod("thief", 100))
    async with releasing(world):
        world.see()
        await world.fake.until(lambda: world.holders("n2") == [])
    assert world.holders("n1") == ["p"]
    refused(await world.bind("thief", "n1"), 409)
    world.audit()


async def test_a_bind_that_is_still_on_its_way_keeps_what_it_holds(world: World) -> None:
    """The scheduler stopped waiting and tries another node; it is not yet known which of the two is performed."""
    world.add_node("n2")
    for name in ("p", "thief"):
        world.add_pod(gpu_pod(name, 100))
    world.see()
    first = await world.mutate(binds(binding("p", "n1")))
    second = await world.mutate(binds(binding("p", "n2")))
    assert first.allowed
    assert second.allowed
    await world.idle()
    for node in ("n1", "n2"):
        refused(await world.bind("thief", node), 409)
    async with releasing(world):
        await world.kube.create(PODS.path("p", "default", "binding"), patch.apply(binding("p", "n1"), first.patch))
        world.see()
        await world.fake.until(lambda: world.holders("n2") == [])
    assert world.holders("n1") == ["p"]


async def test_what_cannot_be_left_at_once_is_left_to_the_reconciler(world: World) -> None:
    world.add_node("n2")
    world.show(gpu_pod("p"))
    await world.mutate(binds(binding("p", "n1")))
    failing = answer(500)
    async with releasing(world):
        await world.bind("p", "n2", see=False)
        world.fake.faults.add("update", "nodeallocations", failing)
        world.see()
        await failing.reached.wait()
        await world.idle()
    assert world.holders("n1") == ["p"]
    await world.parts.reconciler.reconcile()
    assert world.holders("n1") == []


# --- other users' Bindings


@pytest.mark.parametrize("by", [TENANT, "system:kube-scheduler", f"{SCHEDULER}-2", f"x:{SCHEDULER}", ""])
@pytest.mark.parametrize("old_way", [False, True])
async def test_other_binders_get_no_devices_and_are_refused(world: World, by: str, *, old_way: bool) -> None:
    world.show(gpu_pod("p"))
    asked = binds(binding("p", "n1", annotations=allocation()), username=by, old_way=old_way)
    mutated = await world.mutate(asked)
    assert mutated.allowed
    assert not mutated.patch
    refused(await world.validate(asked), 403, "Pod default/p", SCHEDULER, by)
    assert world.holders() == []


@pytest.mark.parametrize(
    ("label", "key"), [("label", "koordgate.io/ignore"), ("annotation", "scheduling.koordinator.sh/skip")]
)
async def test_nothing_that_a_tenant_may_set_switches_the_guard_off(world: World, label: str, key: str) -> None:
    obj = gpu_pod("p")
    obj["metadata"].setdefault(f"{label}s", {})[key] = "true"
    world.show(obj)
    refused(await world.validate(binds(binding("p", "n1"), username=TENANT)), 403)


@pytest.mark.parametrize("by", [TENANT, SCHEDULER])
async def test_pods_without_devices_are_bound_by_anybody(world: World, by: str) -> None:
    world.show(plain_pod("p"))
    before = len(world.fake.requests)
    for asked in (binds(binding("p", "n1"), username=by), binds(binding("p", "n1"), username=by, old_way=True)):
        assert await world.mutate(asked) == Response(allowed=True)
        assert (await world.validate(asked)).allowed
    assert len(world.fake.requests) == before  # known from the watch alone


KAI = "system:serviceaccount:kai-scheduler:binder"
SHOWING = {
    "nvidia.cdi.k8s.io/container.main": "nvidia.com/gpu=all",
    "nvidia.cdi.k8s.io/pod": "nvidia.com/gpu=all",
    "nvidia.cdi.k8s.io": "nvidia.com/gpu=all",
    "cdi.k8s.io/gpu": "nvidia.com/gpu=0",
    "nvidia.com/container.main.gpus.devices": "GPU-n1-0",
}


@pytest.fixture
def beside_kai(fake: FakeKube, kube: KubeClient) -> World:
    """A replica whose settings let KAI's binder say what its own Pods see."""
    made = World(fake, kube, parse(f"{{adopt: {{writers: [other, '{KAI}']}}}}"))
    made.add_node("n1", device_entry(0), device_entry(1))
    return made


@pytest.mark.parametrize("old_way", [True, False])
@pytest.mark.parametrize("key", SHOWING)
async def test_only_a_binder_of_another_product_shows_its_pods_devices_by_its_binding(
    beside_kai: World, key: str, *, old_way: bool
) -> None:
    world = beside_kai
    world.show(plain_pod("p"))
    made = binding("p", "n1", annotations={key: SHOWING[key], "others/key": "1"})
    assert (await world.validate(binds(made, username=KAI, old_way=old_way))).allowed
    for by in (TENANT, "system:kube-scheduler", f"{KAI}-x"):
        refused(await world.validate(binds(made, username=by, old_way=old_way)), 403, f"annotations {key}:", "remove")


@pytest.mark.parametrize(
    "key",
    [DEVICE_ALLOCATED, "visible-devices.koordgate.io/main", "nvidia-gpu-memory-limit.koordgate.io/main"],
)
async def test_a_binder_of_another_product_brings_no_allocation_of_ours(beside_kai: World, key: str) -> None:
    world = beside_kai
    world.show(plain_pod("p"))
    made = binding("p", "n1", annotations={key: "{}"} | SHOWING)
    refused(await world.validate(binds(made, username=KAI)), 403, f"annotations {key}:")


async def test_a_binder_of_another_product_binds_none_of_our_pods(beside_kai: World) -> None:
    world = beside_kai
    world.show(gpu_pod("p"))
    made = binding("p", "n1", annotations=SHOWING)
    refused(await world.validate(binds(made, username=KAI)), 403, "is not its scheduler")


async def test_what_shows_devices_beside_the_ledgers_allocation_is_another_allocation(world: World) -> None:
    world.show(gpu_pod("p"))
    await world.mutate(binds(binding("p", "n1")))
    for key, text in SHOWING.items():
        refused(await validated(world, {**allocation(), key: text}), 409, "another allocation")


def never_translated(name: str = "p") -> Raw:
    asked = container(limits={"nvidia.com/gpu": "1"})
    return pod(asked, name=name, uid=f"uid-{name}", schedulerName="default-scheduler")


@pytest.mark.parametrize("node", ["bare", "nics", "unknown"])
async def test_a_plain_request_that_was_never_translated_is_not_ours_to_stop_elsewhere(world: World, node: str) -> None:
    world.add_bare_node("bare")
    world.add_node("nics", nic_entry(0))
    world.show(never_translated())
    assert (await world.validate(binds(binding("p", node), username="system:kube-scheduler"))).allowed


@pytest.mark.parametrize("health", [True, False])
async def test_a_plain_request_is_kept_off_nodes_whose_cards_are_ours_to_give(
    fake: FakeKube, kube: KubeClient, *, health: bool
) -> None:
    world = World(fake, kube)
    world.add_node("n1", device_entry(0, health=health))
    world.show(never_translated())
    asked = binds(binding("p", "n1"), username="system:kube-scheduler")
    refused(await world.validate(asked), 403, "was never translated", "create it again")
    warned = World(fake, kube, parse("guard: {plainPods: warn}"))
    warned.see()
    response = await warned.validate(asked)
    assert response.allowed
    assert "another Pod may hold" in response.warnings[0]


@pytest.mark.parametrize("where", ["in the ledger", "by annotation alone", "the record cannot be read"])
async def test_a_plain_request_is_kept_off_nodes_whose_cards_are_held_although_the_device_object_is_gone(
    world: World, where: str
) -> None:
    world.add_node("n1", device_entry(0), device_entry(1))
    world.add_node("other", device_entry(0))
    world.add_pod(never_translated())
    if where == "in the ledger":
        world.show(gpu_pod("held"))
        await world.bind("held")
    elif where == "by annotation alone":
        held = koordinator_annotation((0, {"koordinator.sh/gpu-core": "50"}, "GPU-n1-0"))
        world.add_pod(gpu_pod("held", nodeName="n1", annotations=held))
    else:
        world.fake.put(NODE_ALLOCATIONS.path(), {"metadata": {"name": "n1"}, "spec": {"allocations": "none"}})
    world.fake.remove(DEVICES.path("n1"))
    world.fake.remove(DEVICES.path("other"))
    world.see()

    asked = binds(binding("p", "n1"), username="system:kube-scheduler")
    refused(await world.validate(asked), 403, "was never translated")
    assert (await world.validate(binds(binding("p", "other"), username="system:kube-scheduler"))).allowed


# --- the scheduler's own Binding


async def validated(world: World, annotations: dict[str, str] | None, **options: Any) -> Response:
    return await world.validate(binds(binding("p", "n1", annotations=annotations), **options))


async def test_the_schedulers_binding_must_carry_what_the_ledger_holds(world: World) -> None:
    world.show(gpu_pod("p"))
    refused(await validated(world, None), 409, "carries no allocation", "pods/binding")
    refused(await validated(world, allocation()), 409, "another allocation")  # the ledger holds nothing yet
    await world.mutate(binds(binding("p", "n1")))
    assert (await validated(world, allocation())).allowed
    assert (await validated(world, {**allocation(), "others/key": "1"})).allowed
    refused(await validated(world, None), 409, "carries no allocation")
    refused(await validated(world, allocation(1)), 409, "another allocation")
    more = {**allocation(), "visible-devices.koordgate.io/side": "GPU-n1-0"}
    refused(await validated(world, more), 409, "another allocation")
    less = {DEVICE_ALLOCATED: allocation()[DEVICE_ALLOCATED]}
    refused(await validated(world, less), 409, "another allocation")


async def test_the_old_way_of_binding_is_closed_to_the_scheduler_too(world: World) -> None:
    world.show(gpu_pod("p"))
    asked = binds(binding("p", "n1"), old_way=True)
    assert not (await world.mutate(asked)).patch
    refused(await world.validate(asked), 409, "bind through pods/binding")


async def test_the_ledger_is_read_where_the_replica_that_checks_is_not_the_one_that_wrote(
    world: World, kube: KubeClient
) -> None:
    world.show(gpu_pod("p"))
    other = World(world.fake, kube)
    other.see()
    await world.mutate(binds(binding("p", "n1")))
    assert (await validated(other, allocation())).allowed


# --- which Pod


async def test_a_pod_that_the_watch_has_not_seen_yet_is_read(world: World) -> None:
    world.add_pod(gpu_pod("p"))
    assert (await world.bind("p")).allowed
    assert world.holders() == ["p"]
    assert world.fake.seen("get", "pods")


async def test_a_stranger_that_the_watch_has_not_seen_yet_is_read(world: World) -> None:
    world.add_pod(plain_pod("p"))
    assert (await world.mutate(binds(binding("p", "n1")))) == Response(allowed=True)


async def test_a_pod_that_does_not_exist_is_refused(world: World) -> None:
    refused(await world.mutate(binds(binding("p", "n1"))), 409, "default/p", "does not exist")
    refused(await world.validate(binds(binding("p", "n1"))), 409)


@pytest.mark.parametrize("uid", ["an-older-one", "x-later-one"])
@pytest.mark.parametrize("seen", [True, False])
async def test_a_binding_for_another_pod_of_the_same_name_is_refused(world: World, uid: str, *, seen: bool) -> None:
    world.add_pod(gpu_pod("p"))
    if seen:
        world.see()
    for by in (SCHEDULER, TENANT):
        asked = binds(binding("p", "n1", uid=uid), username=by)
        if by == SCHEDULER:
            refused(await world.mutate(asked), 409, "does not exist any more")
        refused(await world.validate(asked), 409, "does not exist any more")
    assert world.holders() == []


async def test_a_pod_made_again_is_bound_as_what_it_is_now(world: World) -> None:
    """The watch still shows the older Pod, without devices."""
    world.show(plain_pod("p", uid="uid-older"))
    world.remove_pod("p")
    world.add_pod(gpu_pod("p"))
    assert (await world.bind("p")).allowed
    assert world.holders() == ["p"]


async def test_a_binding_without_uid_is_read_and_gets_the_uid(world: World) -> None:
    world.show(gpu_pod("p"))
    asked = binding("p", "n1", uid="")
    response = await world.mutate(binds(asked))
    assert world.fake.seen("get", "pods")
    done = patch.apply(asked, response.patch)
    assert done["metadata"]["uid"] == "uid-p"
    assert done["metadata"]["annotations"] == allocation()


async def test_a_binding_of_the_metadata_less_kind_is_completed(world: World) -> None:
    world.show(gpu_pod("p"))
    asked = binding("p", "n1")
    del asked["metadata"]
    response = await world.mutate(binds(binding("p", "n1"))._replace(object=asked))
    done = patch.apply(asked, response.patch)
    assert done["metadata"] == {"annotations": allocation(), "uid": "uid-p"}


@pytest.mark.parametrize(
    "member", [{"target": {}}, {"target": {"name": ""}}, {"target": None}, {"target": {"name": 5}}]
)
async def test_a_binding_to_no_node_is_refused(world: World, member: Raw) -> None:
    world.show(gpu_pod("p"))
    refused(await world.mutate(binds({**binding("p", "n1"), **member})), 400, "target.name")


@pytest.mark.parametrize("state", ["bound", "terminating", "finished"])
async def test_a_pod_that_can_no_longer_be_bound_gets_nothing(world: World, state: str) -> None:
    world.add_pod(gpu_pod("p"))
    match state:
        case "bound":
            world.change_pod("p", spec={"nodeName": "n2"})
        case "terminating":
            world.change_pod("p", metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"})
        case _:
            world.change_pod("p", status={"phase": "Failed"})
    world.see()
    words = {"bound": "is bound to n2 already", "terminating": "is being deleted", "finished": "has finished"}
    refused(await world.mutate(binds(binding("p", "n1"))), 409, words[state])
    assert world.holders() == []


async def test_a_pod_whose_request_cannot_be_read_is_refused_permanently(world: World) -> None:
    world.show(pod(container(limits={"kubernetes.io/gpu": "150"}), name="p", uid="uid-p"))
    refused(await world.mutate(binds(binding("p", "n1"))), 422, "ask 100 or 200", "delete it")


@pytest.mark.parametrize("name", ["../secrets/x", "a/b", "..", "%2e"])
async def test_a_name_that_leads_elsewhere_is_nobody(world: World, name: str) -> None:
    before = len(world.fake.requests)
    refused(await world.mutate(binds(binding(name, "n1"))), 409, "does not exist")
    assert len(world.fake.requests) == before


# --- dry run


async def test_a_dry_run_decides_and_writes_nothing(world: World) -> None:
    world.show(gpu_pod("p"))
    revision = world.fake.revision
    response = await world.bind("p", dry_run=True)
    assert annotation_of(response.patch) == allocation()
    assert response.audit["recorded"] == "no"
    assert world.fake.revision == revision
    assert world.holders() == []


async def test_a_dry_run_on_a_full_node_is_refused_as_the_bind_would_be(world: World) -> None:
    for name in ("a", "b"):
        world.add_pod(gpu_pod(name, 100))
    world.see()
    await world.bind("a")
    refused(await world.mutate(binds(binding("b", "n1"), dry_run=True)), 409, "b is not bound")


async def test_a_dry_run_to_another_node_leaves_the_first_alone(world: World) -> None:
    world.add_node("n2")
    world.show(gpu_pod("p"))
    await world.mutate(binds(binding("p", "n1")))
    await world.mutate(binds(binding("p", "n2"), dry_run=True))
    await world.idle()
    assert world.holders("n1") == ["p"]


# --- Pods that Koordinator's scheduler annotated


async def test_koordinators_choice_is_taken_over(world: World) -> None:
    world.add_node("n1", device_entry(0), device_entry(1))
    world.show(gpu_pod("p", annotations=koordinator_annotation((1, HALF, ""))))
    response = await world.bind("p")
    assert annotation_of(response.patch) == allocation(1)
    assert world.holdings()["uid-p"].shares[0].id == "GPU-n1-1"


@pytest.mark.parametrize(
    ("why", "entries"),
    [
        ("over-full", [(0, HALF, "GPU-n1-0")]),
        ("sick", [(1, HALF, "GPU-n1-1")]),
        ("not there", [(7, HALF, "GPU-n1-7")]),
        ("less than asked", [(2, {"kubernetes.io/gpu-core": "10", "kubernetes.io/gpu-memory-ratio": "10"}, "")]),
        ("core left out", [(2, {"kubernetes.io/gpu-memory-ratio": "50"}, "")]),
        (
            "spread where one card is asked",
            [
                (2, {key: "25" for key in HALF if "Gi" not in HALF[key]}, ""),
                (3, {key: "25" for key in HALF if "Gi" not in HALF[key]}, ""),
            ],
        ),
    ],
)
async def test_koordinators_choice_is_refused_where_it_cannot_be(
    world: World, why: str, entries: list[tuple[int, Raw, str]]
) -> None:
    cards = [device_entry(minor, health=minor != 1) for minor in range(4)]
    world.add_node("n1", *cards)
    world.show(gpu_pod("holder", 80))
    await world.bind("holder")
    world.show(gpu_pod("p", annotations=koordinator_annotation(*entries)))
    refused(await world.bind("p"), 409, "cannot be adopted")
    assert world.holders() == ["holder"], why


@pytest.mark.parametrize(("level", "alone"), [("DeviceLevel", False), ("PCIeLevel", True)])
@pytest.mark.parametrize("neighbour", [False, True])
async def test_koordinators_choice_for_a_pod_that_shares_with_nobody_is_taken_over(
    world: World, level: str, *, alone: bool, neighbour: bool
) -> None:
    """Cards 0 and 1 are on one PCIe root, 2 on another; only what the annotations name is held."""
    cards = [device_entry(at, topology={"nodeID": 0, "pcieID": "ab"[at // 2], "socketID": 0}) for at in range(3)]
    world.add_node("n1", *cards)
    world.add_pod(gpu_pod("other", 10, annotations=koordinator_annotation((1, {**TENTH}, ""))))
    whole = {"kubernetes.io/gpu-core": "100", "kubernetes.io/gpu-memory-ratio": "100"}
    hint = {"scheduling.koordinator.sh/device-allocate-hint": json.dumps({"gpu": {"exclusivePolicy": level}})}
    world.show(gpu_pod("p", 100, annotations={**hint, **koordinator_annotation((0, whole, ""))}))
    if neighbour:
        assert (await world.bind("other")).allowed
    response = await world.bind("p")
    if alone and neighbour:
        refused(response, 409, "cannot be adopted")
        return
    assert response.allowed, response.message
    (share,) = world.holdings()["uid-p"].shares
    assert (share.minor, share.containers, share.alone) == (0, ("main",), alone)
    if not neighbour:
        assert (await world.bind("other")).allowed is not alone


async def test_koordinators_part_of_a_card_whose_pcie_root_nobody_else_may_be_on_is_taken_over(world: World) -> None:
    world.add_node("n1", *(device_entry(at, topology={"pcieID": "a"}) for at in range(2)))
    hint = {DEVICE_ALLOCATE_HINT: json.dumps({"gpu": {"exclusivePolicy": "PCIeLevel"}})}
    for name, entry in (("less", TENTH), ("p", HALF)):
        world.add_pod(gpu_pod(name, annotations={**hint, **koordinator_annotation((0, entry, ""))}))
    world.see()
    refused(await world.bind("less"), 409, "cannot be adopted", "needs more than they state")
    assert (await world.bind("p")).allowed
    assert [share.alone for share in world.holdings()["uid-p"].shares] == [True]


async def test_who_has_a_pcie_root_to_itself_keeps_it_when_the_ledger_is_lost(world: World) -> None:
    world.add_node("n1", *(device_entry(at, topology={"pcieID": "a"}) for at in range(2)))
    hint = {DEVICE_ALLOCATE_HINT: json.dumps({"gpu": {"exclusivePolicy": "PCIeLevel"}})}
    world.add_pod(gpu_pod("p", annotations=hint))
    world.show(gpu_pod("neighbour"))
    assert (await world.bind("p")).allowed
    before = world.holdings()["uid-p"].shares
    world.see(NODE_ALLOCATIONS)
    world.fake.remove(NODE_ALLOCATIONS.path("n1"))
    world.see()
    refused(await world.bind("neighbour"), 409)
    await world.parts.reconciler.reconcile()
    assert world.holdings()["uid-p"].shares == before


async def test_a_card_that_the_annotations_name_beyond_what_is_needed_must_be_free_too(world: World) -> None:
    world.add_node("n1", device_entry(0), device_entry(1))
    world.show(gpu_pod("holder", 80))
    await world.bind("holder")
    world.show(gpu_pod("p", annotations=koordinator_annotation((0, HALF, ""), (1, HALF, ""))))
    refused(await world.bind("p"), 409, "cannot be adopted", "gpu 0 (GPU-n1-0) does not have the stated amounts free")
    world.audit()


async def test_an_annotation_that_cannot_be_read_is_refused(world: World) -> None:
    world.show(gpu_pod("p", annotations={DEVICE_ALLOCATED: "{"}))
    refused(await world.bind("p"), 422, "format", "delete it")


async def test_a_running_pod_that_only_its_annotation_shows_is_never_given_again(world: World) -> None:
    whole = {"kubernetes.io/gpu-core": "100", "kubernetes.io/gpu-memory-ratio": "100"}
    world.add_pod(gpu_pod("old", 100, nodeName="n1", annotations=koordinator_annotation((0, whole, ""))))
    world.show(gpu_pod("p"))
    refused(await world.bind("p"), 409)


# --- our own trouble


@pytest.mark.parametrize("resource", ["nodeallocations", "pods"])
@pytest.mark.parametrize("fault", [answer(500), answer(503), answer(403)])
async def test_an_api_server_in_trouble_is_a_503_so_that_failure_policy_applies(
    world: World, resource: str, fault: Fault
) -> None:
    world.add_pod(gpu_pod("p"))
    if resource == "nodeallocations":
        world.see()
    for verb in ("get", "create", "update"):
        world.fake.faults.always(verb, resource, fault)
    refused(await world.mutate(binds(binding("p", "n1"))), 503, "default/p")
    refused(await world.validate(binds(binding("p", "n1"))), 503, "default/p")


@pytest.mark.parametrize("fault", [hold, hold_answer])
async def test_an_api_server_that_hangs_is_a_503_at_the_deadline(world: World, fault: Any) -> None:
    world.show(gpu_pod("p"))
    held = fault()
    world.fake.faults.add("create", "nodeallocations", held)
    refused(await world.mutate(binds(binding("p", "n1")), 0.1), 503)
    (held.gate or held.answer_gate).set()
    assert annotation_of((await world.mutate(binds(binding("p", "n1")))).patch) == allocation()


async def test_a_connection_that_breaks_is_a_503_and_the_next_try_succeeds(world: World) -> None:
    world.show(gpu_pod("p"))
    world.fake.faults.add("create", "nodeallocations", drop())
    refused(await world.mutate(binds(binding("p", "n1"))), 503)
    assert (await world.bind("p")).allowed


async def test_a_record_that_somebody_damaged_is_a_503_that_says_who_must_mend_it(world: World) -> None:
    world.fake.put(NODE_ALLOCATIONS.path(), {"metadata": {"name": "n1"}, "spec": {"allocations": "?"}})
    world.show(gpu_pod("p"))
    refused(await world.mutate(binds(binding("p", "n1"))), 503, "NodeAllocation n1", "administrator")
    refused(await world.mutate(binds(binding("p", "n1"), dry_run=True)), 503, "administrator")
    refused(await world.validate(binds(binding("p", "n1"))), 503, "administrator")


async def test_a_pod_that_two_nodes_refused_may_be_bound_to_a_third(world: World) -> None:
    for name in ("n2", "n3"):
        world.add_node(name)
    world.see()
    await world.start(gpu_pod("a", 100), node="n1")
    await world.start(gpu_pod("b", 100), node="n2")
    world.show(gpu_pod("p", 50))
    for name in ("n1", "n2", "n1"):
        refused(await world.bind("p", name), 409, name)
    assert (await world.bind("p", "n3")).allowed
