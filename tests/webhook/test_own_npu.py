"""An NPU defined by settings alone, from admission to the bind: templates, whole ones beside a NIC, adoption."""

import json
from typing import Any

import pytest
from builders import container, nic_entry, pod
from fake_kube import FakeKube
from npus import SETTINGS, npu
from world import World, annotation_of, asks

from allocator.vocabulary.names import DEVICE_ALLOCATED, ORIGINAL_REQUEST
from allocator.wire.allocatehint import DEVICE_JOINT_ALLOCATE
from koordgate.kube.client import KubeClient
from koordgate.kube.resource import NODE_ALLOCATIONS, PODS
from webhook import patch

Raw = dict[str, Any]
H = "huawei.com/npu"
ENV = {
    "name": "ASCEND_VISIBLE_DEVICES",
    "valueFrom": {"fieldRef": {"fieldPath": "metadata.annotations['npu.visible-devices.koordgate.io/main']"}},
}


@pytest.fixture
async def own(fake: FakeKube, kube: KubeClient) -> Any:
    """n1: four NPUs, two on each PCIe root, with a NIC on each."""
    made = World(fake, kube, SETTINGS)

    def at(root: int) -> Raw:
        return {"topology": {"socketID": 0, "nodeID": root, "pcieID": f"pci000{root}:00", "busID": ""}}

    npus = [npu(minor, **at(minor // 2)) for minor in range(4)]
    made.add_node("n1", *npus, *(nic_entry(root, **at(root)) for root in range(2)))
    made.see()
    yield made
    await made.idle()


def asking(own: World, name: str, amounts: Raw, **fields: Any) -> Raw:
    """A Pod as it is stored, admitted by both webhooks."""
    obj = pod(container(limits=amounts), name=name, uid=f"uid-{name}", **fields)
    response = own.parts.pods.mutate(asks(obj))
    assert response.allowed, response.message
    made: Raw = patch.apply(obj, response.patch)
    checked = own.parts.pods.validate(asks(made))
    assert checked.allowed, checked.message
    assert own.parts.pods.mutate(asks(made)).patch == ()
    return made


def test_amounts_become_a_template_and_the_container_sees_its_devices(own: World) -> None:
    made = asking(own, "p", {f"{H}-core": "3", f"{H}-memory": "10Gi"})
    (main,) = made["spec"]["containers"]
    stated = {f"{H}-vir04_3c": "1"}
    assert main["resources"] == {"requests": stated, "limits": stated}
    assert ENV in main["env"]
    kept = json.loads(made["metadata"]["annotations"][ORIGINAL_REQUEST])
    assert kept == {"main": {"limits": {f"{H}-core": "3", f"{H}-memory": "10Gi"}}}
    main["env"].remove(ENV)
    assert "ASCEND_VISIBLE_DEVICES" in own.parts.pods.validate(asks(made)).message


def test_two_ways_to_ask_are_refused_with_both_named(own: World) -> None:
    response = own.parts.pods.mutate(asks(pod(container(limits={f"{H}-vir01": "1", f"{H}-core": "2"}))))
    assert (response.allowed, response.code) == (False, 422)
    assert "template vir01 already states" in response.message


async def test_what_is_bound_is_reported_recorded_and_found_again(own: World, kube: KubeClient) -> None:
    amounts = {"a": {f"{H}-vir04": "1"}, "b": {f"{H}-core": "4", f"{H}-cpu": "3"}, "c": {H: "3"}, "d": {H: "1"}}
    told = {}
    for name, one in amounts.items():
        obj = asking(own, name, one)
        fits = name != "d"
        assert own.parts.extender.filter({"Pod": obj, "NodeNames": ["n1"]})["NodeNames"] == ["n1"] * fits
        own.add_pod(obj)
        own.see(PODS)
        response = await own.bind(name, "n1")
        assert response.allowed is fits, response.message
        told[name] = annotation_of(response.patch) if fits else {}
    seen = {name: one.get("npu.visible-devices.koordgate.io/main") for name, one in told.items()}
    assert seen == {"a": "npu-0", "b": "npu-0", "c": "npu-1,npu-2,npu-3", "d": None}
    (entry,) = json.loads(told["b"][DEVICE_ALLOCATED])["npu"]
    assert entry["extension"] == {"gpuSharedResourceTemplate": "vir04_3c"}
    before = own.holdings()
    own.audit()
    own.fake.remove(NODE_ALLOCATIONS.path("n1"))
    other = World(own.fake, kube, SETTINGS)
    other.see()
    await other.parts.reconciler.reconcile()
    assert {uid: held.shares for uid, held in other.holdings().items()} == {
        uid: held.shares for uid, held in before.items()
    }
    await other.idle()


async def test_an_annotation_that_says_memory_in_bytes_alone_holds_its_percent_too(own: World) -> None:
    entry = {"minor": 1, "id": "npu-1", "resources": {f"{H}-core": "4", f"{H}-memory": "12Gi"}}
    obj = asking(own, "p", {f"{H}-vir04": "1"})
    obj["metadata"]["annotations"][DEVICE_ALLOCATED] = json.dumps({"npu": [entry]})
    own.add_pod({**obj, "spec": {**obj["spec"], "nodeName": "n1"}})
    own.see(PODS)
    await own.parts.reconciler.reconcile()
    (share,) = own.holdings()["uid-p"].shares
    assert (share.amounts["memory-ratio"], share.amounts["core"]) == (50, 4)


async def test_whole_devices_come_with_the_nics_beside_them(own: World) -> None:
    joint = {DEVICE_JOINT_ALLOCATE: json.dumps({"deviceTypes": ["npu", "rdma"], "requiredScope": "SamePCIe"})}
    obj = asking(own, "p", {H: "1", "koordinator.sh/rdma": "100"}, annotations=joint)
    own.add_pod(asking(own, "first", {f"{H}-vir01": "1", "koordinator.sh/rdma": "100"}))
    own.add_pod(obj)
    own.see(PODS)
    assert (await own.bind("first", "n1")).allowed
    assert (await own.bind("p", "n1")).allowed
    held = {share.type: share.minor for share in own.holdings()["uid-p"].shares}
    assert held == {"npu": 2, "rdma": 1}
