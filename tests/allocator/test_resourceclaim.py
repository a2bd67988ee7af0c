"""ResourceClaims and ResourceSlices: what is read, and that what cannot be read counts as held."""

from typing import Any

import pytest
from claims import DRIVER, PCI, Raw, allocation, claim, listed, resource_slice, result
from hypothesis import given, settings
from hypothesis import strategies as st
from trials import examples

from allocator.vocabulary.holdings import ClaimedDevice, DeviceName, ListedDevice
from allocator.wire.resourceclaim import ClaimError, read_resource_claim, read_resource_slice

DRIVERS = {DRIVER}
GPU_0 = DeviceName(DRIVER, "n1", "gpu-0")
GPU_1 = DeviceName(DRIVER, "n1", "gpu-1")
GIB = 2**30


def stored(obj: Raw) -> Raw:
    return {**obj, "metadata": {**obj["metadata"], "resourceVersion": "7"}}


@pytest.mark.parametrize(
    ("results", "held"),
    [
        ((result("gpu-0"), result("gpu-1")), (ClaimedDevice(GPU_0), ClaimedDevice(GPU_1))),
        ((result("gpu-0", adminAccess=False),), (ClaimedDevice(GPU_0),)),
        ((result("gpu-0", adminAccess=True), result("gpu-1")), (ClaimedDevice(GPU_1),)),
        ((result("gpu-0", driver="other.example.com"), result("gpu-1")), (ClaimedDevice(GPU_1),)),
        ((result("gpu-0", consumedCapacity={"memory": "20Gi"}),), (ClaimedDevice(GPU_0, 20 * GIB),)),
        ((result("gpu-0", consumedCapacity={f"{DRIVER}/memory": "1Gi"}),), (ClaimedDevice(GPU_0, GIB),)),
        ((result("gpu-0", consumedCapacity={"memory": "20Gi", "cores": "5"}),), (ClaimedDevice(GPU_0),)),
        ((result("gpu-0", consumedCapacity={"cores": "5"}),), (ClaimedDevice(GPU_0),)),
        ((result("gpu-0", consumedCapacity={"memory": "much"}),), (ClaimedDevice(GPU_0),)),
        ((result("gpu-0", consumedCapacity={}),), (ClaimedDevice(GPU_0),)),
    ],
)
def test_a_claim_holds_the_results_of_the_drivers(results: tuple[Raw, ...], held: tuple[ClaimedDevice, ...]) -> None:
    read = read_resource_claim(stored(claim("c", *results)), DRIVERS)
    assert (read.uid, read.namespace, read.name, read.revision, read.node) == ("uid-c", "default", "c", 7, "n1")
    assert read.devices == held
    assert not read.unread
    assert read.holds


def test_a_claim_without_an_allocation_holds_nothing() -> None:
    read = read_resource_claim(stored(claim()), DRIVERS)
    assert not read.holds
    assert read.node == ""


@pytest.mark.parametrize(
    ("selector", "node"),
    [
        (None, ""),
        ([{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["a"]}]}], "a"),
        ([{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["a", "b"]}]}], ""),
        ([{"matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": ["a"]}]}], ""),
        ([{"matchFields": [{"key": "metadata.name", "operator": "In", "values": []}]}], ""),
        ([{"matchFields": [{"key": "metadata.name", "operator": "Exists", "values": ["a"]}]}], ""),
        ([{"matchFields": [{"key": "host", "operator": "In", "values": ["a"]}]}], ""),
        ([{"matchFields": [{"key": key, "operator": "In", "values": ["a"]} for key in ("x", "metadata.name")]}], "a"),
        ([{"matchFields": [{"key": "other", "operator": "In", "values": ["b"]}]}, {}], ""),
        ([{"matchExpressions": [{"key": "metadata.name", "operator": "In", "values": ["a"]}]}], ""),
    ],
)
def test_the_node_is_the_one_that_the_allocation_names(selector: list[Raw] | None, node: str) -> None:
    given_ = {**allocation(result("gpu-0"), node=""), "nodeSelector": {"nodeSelectorTerms": selector}}
    read = read_resource_claim(stored({**claim(), "status": {"allocation": given_}}), DRIVERS)
    assert read.node == node
    assert read.holds


@pytest.mark.parametrize(
    "wrong",
    [
        "text",
        {"devices": []},
        {"devices": {"results": "gpu-0"}},
        {"devices": {"results": ["gpu-0"]}},
        {"devices": {"results": [{"driver": 7}]}},
        {"devices": {"results": [result("gpu-0", consumedCapacity=["memory"])]}},
        {"devices": {"results": [result(f"gpu-{number}") for number in range(33)]}},
        {"devices": {"results": [result("gpu-0")]}, "nodeSelector": []},
    ],
    ids=str,
)
def test_an_allocation_that_cannot_be_read_may_hold_anything(wrong: Any) -> None:
    read = read_resource_claim(stored({**claim(), "status": {"allocation": wrong}}), DRIVERS)
    assert read.unread
    assert read.holds
    assert read.devices == ()


@pytest.mark.parametrize(
    "metadata",
    [
        {},
        {"uid": "u"},
        {"resourceVersion": "7"},
        {"uid": "u", "resourceVersion": "x"},
        {"uid": "u", "resourceVersion": "0"},
    ],
    ids=str,
)
def test_a_claim_without_identity_is_an_error(metadata: Raw) -> None:
    with pytest.raises(ClaimError, match="metadata"):
        read_resource_claim({"metadata": metadata}, DRIVERS)


def test_a_slice_states_where_a_device_is_and_which() -> None:
    part = listed("mig-0", "MIG-1", parentUUID="GPU-a")
    obj = resource_slice("n1", [listed("gpu-0", "GPU-a", pci="0000:3B:00.0"), part, {"name": "bare"}], name="s")
    read = read_resource_slice(obj, DRIVERS)
    assert read is not None
    assert (read.name, read.driver, read.pool, read.generation) == ("s", DRIVER, "n1", 1)
    assert read.devices == {
        "gpu-0": ListedDevice("n1", ("GPU-a", "0000:3b:00.0")),
        "mig-0": ListedDevice("n1", ("GPU-a", "MIG-1")),
        "bare": ListedDevice("n1"),
    }


def test_attributes_may_bear_the_drivers_domain_and_devices_a_node_of_their_own() -> None:
    device = {"name": "d", "nodeName": "n2", "attributes": {f"{DRIVER}/uuid": {"string": "GPU-b"}}}
    read = read_resource_slice(resource_slice("", [device], perDeviceNodeSelection=True), DRIVERS)
    assert read is not None
    assert read.devices == {"d": ListedDevice("n2", ("GPU-b",))}


def test_a_device_whose_attributes_cannot_be_read_is_any_card_of_its_node() -> None:
    wrong = {"name": "d", "attributes": {"uuid": {"string": 7}, PCI: {"string": "0000:3b:00.0"}}}
    read = read_resource_slice(resource_slice("n1", [wrong]), DRIVERS)
    assert read is not None
    assert read.devices == {"d": ListedDevice("n1")}


def test_slices_of_other_drivers_are_left_out() -> None:
    assert read_resource_slice(resource_slice("n1", [], driver="other.example.com"), DRIVERS) is None


@pytest.mark.parametrize(
    "change",
    [{"devices": "x"}, {"devices": [7]}, {"pool": {"name": "n1"}}, {"devices": [{"name": "d"}] * 129}],
    ids=lambda change: str(change)[:40],
)
def test_a_slice_that_no_api_server_accepts_is_an_error(change: Raw) -> None:
    with pytest.raises((ValueError, TypeError)):
        read_resource_slice(resource_slice("n1", [], **change), DRIVERS)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=examples(200))
@given(wrong=JSON, where=st.sampled_from(["allocation", "devices", "results", "result", "nodeSelector"]))
def test_whatever_stands_in_an_allocation_it_is_read_or_counts_as_unread(wrong: Any, where: str) -> None:
    made = allocation(result("gpu-0"))
    match where:
        case "allocation":
            made = wrong
        case "devices":
            made["devices"] = wrong
        case "results":
            made["devices"]["results"] = wrong
        case "result":
            made["devices"]["results"].append(wrong)
        case _:
            made["nodeSelector"] = wrong
    read = read_resource_claim(stored({**claim(), "status": {"allocation": made}}), DRIVERS)
    assert not (read.unread and read.devices)
