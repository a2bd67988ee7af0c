"""A live Pod with an unreadable allocation counts as holding everything that it may hold, never nothing."""

import json
from typing import Any

import machines_cpu
import pytest
from builders import GIB, device_entry, nic_entry
from fake_kube import Raw
from hypothesis import given
from hypothesis import strategies as st
from strategies import json_values
from world import TENANT, World, binding, binds, cpu_pod, gpu_pod, koordinator_annotation, plain_pod

from allocator.vocabulary.device import Device
from allocator.vocabulary.names import DEVICE_ALLOCATED, RESOURCE_STATUS
from webhook.view.podinfo import annotated_holding, read_pod_info

CARD = Device("gpu", "GPU-0", 0, True, {"gpu-core": 100, "gpu-memory": 80 * GIB, "gpu-memory-ratio": 100})
OTHER = Device("gpu", "GPU-1", 1, True, dict(CARD.capacity))
NIC = Device("rdma", "0000:1f:00.0", 0, True, {"rdma": 100})
HALF = {"koordinator.sh/gpu-core": "50", "koordinator.sh/gpu-memory-ratio": "50"}
WHOLE = dict(CARD.capacity)


def held(text: str, obj: Raw | None = None) -> dict[str, dict[str, int]]:
    """The holding of a Pod with this device-allocated annotation, by device."""
    obj = obj or plain_pod("p", nodeName="n1")
    obj = {**obj, "metadata": {**obj["metadata"], "annotations": {DEVICE_ALLOCATED: text}}}
    read = read_pod_info(obj)
    holding = read and annotated_holding(read, (CARD, OTHER, NIC), 0)
    return {share.id: dict(share.amounts) for share in holding.shares} if holding else {}


WHOLE_DEVICE: dict[str, Any] = {
    "no resources": {"minor": 0},
    "empty resources": {"minor": 0, "resources": {}},
    "null": {"minor": 0, "resources": None},
    "unknown names": {"minor": 0, "resources": {"koordinator.sh/gpu-cores": "50"}},
    "zero amounts": {"minor": 0, "resources": {"koordinator.sh/gpu-core": "0"}},
    "by id": {"minor": 7, "id": "GPU-0"},
    "by uuid": {"minor": 7, "uuid": "GPU-0"},
}


@pytest.mark.parametrize("entry", WHOLE_DEVICE.values(), ids=WHOLE_DEVICE)
def test_an_entry_without_amounts_holds_the_whole_device(entry: Any) -> None:
    assert held(json.dumps({"gpu": [entry]})) == {"GPU-0": WHOLE}


def test_a_nic_without_amounts_is_held_whole() -> None:
    assert held('{"rdma":[{"minor":0}]}') == {NIC.id: {"rdma": 100}}


DRAFTS: dict[str, Any] = {
    "resouurces": {"resouurces": {"kubernetes.io/gpu-core": 50, "kubernetes.io/gpu-memory-ratio": 50}},
    "gpu-mem-ratio": {"resources": {"kubernetes.io/gpu-core": 50, "kubernetes.io/gpu-mem-ratio": 50}},
    "gpu-mem": {"resouurces": {"kubernetes.io/gpu-core": 50, "kubernetes.io/gpu-mem": "40Gi"}},
    "in the other domain": {"resources": {"koordinator.sh/gpu-core": "50", "koordinator.sh/gpu-mem": "40Gi"}},
}


@pytest.mark.parametrize("fields", DRAFTS.values(), ids=DRAFTS)
def test_the_device_proposals_own_spellings_are_read(fields: Any) -> None:
    half = {"gpu-core": 50, "gpu-memory": 40 * GIB, "gpu-memory-ratio": 50}
    assert held(json.dumps({"gpu": [{"minor": 1, **fields}]})) == {"GPU-1": half}


UNREADABLE: dict[str, tuple[str, set[str]]] = {
    "no JSON": ("{", {"GPU-0", "GPU-1", NIC.id}),
    "empty": ("", {"GPU-0", "GPU-1", NIC.id}),
    "null": ("null", {"GPU-0", "GPU-1", NIC.id}),
    "a list": ("[]", {"GPU-0", "GPU-1", NIC.id}),
    "nested deeply": ("[" * 100_000, {"GPU-0", "GPU-1", NIC.id}),
    "no list of cards": ('{"gpu":{"minor":0}}', {"GPU-0", "GPU-1"}),
    "a card that is a number": ('{"gpu":[0]}', {"GPU-0", "GPU-1"}),
    "a card without a minor": ('{"gpu":[{"resources":{}}]}', {"GPU-0", "GPU-1"}),
    "no quantity": ('{"gpu":[{"minor":0,"resources":{"koordinator.sh/gpu-core":"x"}}]}', {"GPU-0", "GPU-1"}),
    "one card twice": ('{"gpu":[{"minor":0},{"minor":0}]}', {"GPU-0", "GPU-1"}),
    "NICs, beside a card": ('{"gpu":[{"minor":0}],"rdma":7}', {"GPU-0", NIC.id}),
}


@pytest.mark.parametrize(("text", "ids"), UNREADABLE.values(), ids=UNREADABLE)
def test_what_cannot_be_read_holds_every_device_that_it_may_mean(text: str, ids: set[str]) -> None:
    assert held(text).keys() == ids


@pytest.mark.parametrize("text", ["{}", '{"gpu":[]}', '{"gpus":[{"minor":0}]}', '{"rdma":[{"minor":0}]}'])
def test_an_annotation_without_the_type_that_the_pod_asks_for_holds_all_of_the_type(text: str) -> None:
    assert {"GPU-0", "GPU-1"} <= held(text, gpu_pod("p", nodeName="n1")).keys()


@given(json_values() | st.fixed_dictionaries({"gpu": json_values() | st.lists(json_values(), min_size=1)}))
def test_a_pod_that_asks_and_is_annotated_always_holds_something(value: Any) -> None:
    try:
        text = json.dumps(value)
        text.encode()
    except (TypeError, ValueError):
        return
    found = held(text, gpu_pod("p", nodeName="n1"))
    assert all(any(amounts.values()) for amounts in found.values() if amounts)
    assert found


# --- in the cluster


def with_text(name: str, text: str, **about: Any) -> Raw:
    return gpu_pod(name, nodeName="n1", annotations={DEVICE_ALLOCATED: text}, **about)


async def settle(world: World) -> None:
    world.see()
    await world.parts.reconciler.reconcile()
    await world.idle()
    await world.parts.reporter.idle()


def unreadable(world: World) -> float | None:
    return world.metric("koordgate_pods_unreadable")


@pytest.mark.parametrize("text", ["{}", '{"gpu":[]}', '{"xpu":[{"minor":0}]}', "null"])
def test_an_annotation_that_names_nothing_holds_all_where_the_request_cannot_be_read_either(text: str) -> None:
    made = gpu_pod("p", annotations={DEVICE_ALLOCATED: text})
    made["spec"]["nodeName"] = "n1"
    made["spec"]["containers"][0]["resources"]["limits"] = {"kubernetes.io/gpu": "no number"}
    info = read_pod_info(made)
    assert info is not None
    assert info.unread == ("gpu", "rdma", "fpga")
    assert DEVICE_ALLOCATED in info.annotation_problem


async def test_a_node_is_closed_until_somebody_looks(world: World) -> None:
    world.add_pod(with_text("old", "{"))
    world.add_pod(gpu_pod("new"))
    await settle(world)
    refused = await world.bind("new")
    assert not refused.allowed
    assert world.holders() == []
    (event,) = world.events("AllocationUnreadable")
    assert event["involvedObject"]["name"] == "old"
    assert "until the annotation is corrected, or the Pod is deleted" in event["message"]
    assert unreadable(world) == 1

    half = koordinator_annotation((0, HALF, "GPU-n1-0"))
    world.add_pod(gpu_pod("old", nodeName="n1", annotations=half))
    await settle(world)
    assert unreadable(world) == 0
    assert (await world.bind("new")).allowed
    assert world.holders() == ["new", "old"]


async def test_a_minor_that_the_node_lacks_closes_the_type_until_the_node_lists_it(world: World) -> None:
    world.add_pod(gpu_pod("old", nodeName="n1", annotations=koordinator_annotation((9, HALF, ""))))
    world.add_pod(gpu_pod("new"))
    await settle(world)
    assert not (await world.bind("new")).allowed
    assert world.holders() == []
    (event,) = world.events("AllocationUnreadable")
    assert event["involvedObject"]["name"] == "old"
    assert "names gpu 9, which the node lacks. Nothing new lands on any gpu device of node n1" in event["message"]
    assert unreadable(world) == 1

    world.add_node("n1", device_entry(0), device_entry(9), nic_entry(0))
    await settle(world)
    assert unreadable(world) == 0
    assert (await world.bind("new")).allowed
    assert world.holders() == ["new", "old"]


async def test_a_minor_that_the_node_lacks_closes_nothing_of_what_the_ledger_holds(world: World) -> None:
    world.add_pod(gpu_pod("p", nodeName="n1", annotations=koordinator_annotation((0, HALF, ""))))
    world.add_pod(gpu_pod("q"))
    await settle(world)
    assert world.holders() == ["p"]
    world.add_node("n1", device_entry(1), device_entry(2), nic_entry(0))
    await settle(world)
    assert unreadable(world) == 0
    assert (await world.bind("q")).allowed


@pytest.mark.parametrize("text", ["{}", '{"cpuset":"99"}'])
async def test_cpus_that_a_running_pod_does_not_name_are_given_to_nobody(world: World, text: str) -> None:
    world.add_node("n1", device_entry(0), cpu=machines_cpu.build(1, 1, 4, 2, machines_cpu.siblings_near))
    world.add_pod(cpu_pod("old", 2, nodeName="n1", annotations={RESOURCE_STATUS: text}))
    world.add_pod(cpu_pod("around", 2, nodeName="n1"))
    world.add_pod(cpu_pod("new", 2))
    await settle(world)
    assert not (await world.bind("new")).allowed
    assert world.holders() == []
    (event,) = world.events("AllocationUnreadable")
    assert event["involvedObject"]["name"] == "old"
    assert "names no CPU" in event["message"]
    assert "Nothing new lands on any CPU of node n1" in event["message"]
    world.add_pod(cpu_pod("old", 2, nodeName="n1", annotations={RESOURCE_STATUS: '{"cpuset":"0-1"}'}))
    await settle(world)
    assert (await world.bind("new")).allowed


async def test_an_annotation_that_became_unreadable_later_closes_what_the_ledger_holds(world: World) -> None:
    world.show(gpu_pod("p"))
    await world.bind("p")
    world.add_pod(with_text("p", "{", uid="uid-p"))
    world.add_pod(gpu_pod("q"))
    await settle(world)
    assert unreadable(world) == 0
    assert not (await world.bind("q")).allowed


async def test_an_allocation_by_minor_is_recorded_once_the_node_has_that_device(world: World) -> None:
    world.add_bare_node("n2")
    world.add_pod(gpu_pod("p", nodeName="n2", annotations=koordinator_annotation((1, HALF, ""))))
    await settle(world)
    assert world.holders("n2") == []
    world.add_node("n2", device_entry(0), device_entry(1), nic_entry(0))
    await settle(world)
    (share,) = world.holdings("n2")["uid-p"].shares
    assert share.id == "GPU-n2-1"


@pytest.mark.parametrize("key", [DEVICE_ALLOCATED, RESOURCE_STATUS, "visible-devices.koordgate.io/main"])
async def test_another_binder_cannot_write_an_allocation_of_any_pod(world: World, key: str) -> None:
    """No user can close a node by binding a Pod of their own with an unreadable annotation."""
    world.show(plain_pod("p"))
    refused = await world.validate(binds(binding("p", "n1", annotations={key: "{"}), username=TENANT))
    assert not refused.allowed
    assert key in refused.message
    assert (await world.validate(binds(binding("p", "n1"), username=TENANT))).allowed


async def test_a_choice_without_amounts_is_adopted_as_the_whole_card(world: World) -> None:
    world.show(gpu_pod("p", 100, annotations=koordinator_annotation((0, {}, ""))))
    assert (await world.bind("p")).allowed
    (share,) = world.holdings()["uid-p"].shares
    assert dict(share.amounts) == WHOLE


async def test_a_choice_without_amounts_gives_no_pod_more_than_quotas_counted(world: World) -> None:
    world.show(gpu_pod("p", annotations=koordinator_annotation((0, {}, ""))))
    refused = await world.bind("p")
    assert refused.code == 409
    assert "quota.koordgate.io/gpu 100 is more than quotas count of the Pod (50)" in refused.message
    assert world.holdings() == {}
