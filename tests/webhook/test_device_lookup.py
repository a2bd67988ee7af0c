"""How people name one device of a whole cluster."""

from typing import Any

import pytest
from builders import device_entry, device_object, gpu, holding, part
from nodereports import report

from allocator.vocabulary.names import CORDONED
from allocator.wire.nodeallocation import write_spec
from console.devices.cordoncommands import address_of, find_device, is_begun
from console.devices.nodes import CommandError
from webhook.view.nodereport import NodeReport

Raw = dict[str, Any]


def card(minor: int, identity: str, bus: str) -> Raw:
    return device_entry(minor, id=identity, topology={"nodeID": 0, "pcieID": "p", "busID": bus})


def nic(minor: int, bus: str) -> Raw:
    resources = {"koordinator.sh/rdma": "100"}
    return {"type": "rdma", "id": bus, "minor": minor, "health": True, "resources": resources}


def states() -> list[NodeReport]:
    """n1: two cards, a NIC, a device that only a Pod names; n2: two cards, one address as on n1; a cordon alone."""
    objects = {
        "n1": [card(0, "GPU-aaaa1111-x", "0000:3B:00.0"), card(1, "GPU-aaaa2222-x", "0000:3c:00.0"), nic(1, "01:00.0")],
        "n2": [card(0, "GPU-bbbb1111-x", "0000:3B:00.0"), card(3, "GPU-cccc1111-x", "0000:5e:00.0")],
    }
    made = []
    for name, entries in objects.items():
        obj = device_object(*entries, name=name)
        obj["metadata"]["annotations"] = {CORDONED: "GPU-dddd-gone"} if name == "n2" else {}
        held = [holding("a", part(gpu(7, device_id="GPU-eeee-stray"), 10))] if name == "n1" else []
        made.append(report(name, obj, write_spec(held)))
    return made


NAMES = {
    "a UUID": ("GPU-aaaa1111-x", "n1", "GPU-aaaa1111-x"),
    "the beginning of a UUID": ("GPU-aaaa1", "n1", "GPU-aaaa1111-x"),
    "in small letters": ("gpu-bb", "n2", "GPU-bbbb1111-x"),
    "the beginning of what follows GPU-": ("cccc", "n2", "GPU-cccc1111-x"),
    "a node and a minor": ("n1/1", "n1", "GPU-aaaa2222-x"),
    "a node, a type and a minor": ("n1/rdma/1", "n1", "01:00.0"),
    "a node and the beginning of a UUID": ("n1/GPU-aaaa2", "n1", "GPU-aaaa2222-x"),
    "a node and a PCI address": ("n2/0000:3b:00.0", "n2", "GPU-bbbb1111-x"),
    "a PCI address as NVML writes it": ("n1/00000000:3C:00.0", "n1", "GPU-aaaa2222-x"),
    "a PCI address that one node has": ("0000:5e:00.0", "n2", "GPU-cccc1111-x"),
    "a device that only a Pod names": ("GPU-eeee", "n1", "GPU-eeee-stray"),
    "its minor": ("n1/7", "n1", "GPU-eeee-stray"),
    "a device that only a cordon names": ("GPU-dddd", "n2", "GPU-dddd-gone"),
}


@pytest.mark.parametrize(("word", "node", "identity"), NAMES.values(), ids=NAMES)
def test_a_word_names_one_device(word: str, node: str, identity: str) -> None:
    found = find_device(states(), word)
    assert (found.node, found.id) == (node, identity)


MISTAKES = {
    "the beginning of several UUIDs": (
        "GPU-aaaa",
        "'GPU-aaaa' names several devices; there are: n1/gpu/0 GPU-aaaa1111-x, n1/gpu/1 GPU-aaaa2222-x",
    ),
    "a PCI address that two nodes have": (
        "0000:3b:00.0",
        "names several devices; there are: n1/gpu/0 GPU-aaaa1111-x, n2/gpu/0 GPU-bbbb1111-x",
    ),
    "too little of a UUID": ("GPU", "the cluster has no device 'GPU'; a device is named by its UUID"),
    "a minor without a node": ("3", "the cluster has no device '3'"),
    "a minor that only a NIC could have": (
        "n2/rdma/3",
        "node n2 has no device 'rdma/3'; there are: n2/GPU-dddd-gone (cordoned), n2/gpu/0",
    ),
    "a minor that no device has": ("n1/5", "node n1 has no device '5'; there are: n1/gpu/0"),
    "a node without a device": ("n1", "n1 is a node: name a device of it, as n1/0; there are: n1/gpu/0"),
    "another node's UUID": ("n1/GPU-bbbb1111-x", "node n1 has no device 'GPU-bbbb1111-x'"),
    "nothing": ("", "the cluster has no device ''"),
    "a node and nothing": ("n1/", "node n1 has no device ''"),
    "a number beyond all minors": (f"n1/{'9' * 5000}", "node n1 has no device"),
    "digits of another script": ("n1/٣", "node n1 has no device"),
}


@pytest.mark.parametrize(("word", "told"), MISTAKES.values(), ids=MISTAKES)
def test_a_word_that_names_none_or_several_is_told_with_the_candidates(word: str, told: str) -> None:
    with pytest.raises(CommandError) as caught:
        find_device(states(), word)
    assert told in str(caught.value)


@pytest.mark.parametrize(
    ("node", "devices"),
    [
        ("n1", "n1/gpu/0 GPU-aaaa1111-x, n1/gpu/1 GPU-aaaa2222-x, n1/gpu/7 GPU-eeee-stray, n1/rdma/1 01:00.0"),
        ("n2", "n2/GPU-dddd-gone (cordoned), n2/gpu/0 GPU-bbbb1111-x, n2/gpu/3 GPU-cccc1111-x"),
    ],
)
def test_a_node_alone_is_told_with_its_own_devices(node: str, devices: str) -> None:
    with pytest.raises(CommandError) as caught:
        find_device(states(), node)
    assert str(caught.value) == f"{node} is a node: name a device of it, as {node}/0; there are: {devices}"


@pytest.mark.parametrize("word", ["n0", "n1x", "zzzz", "a"])
def test_a_word_beside_the_names_of_nodes_is_no_node(word: str) -> None:
    with pytest.raises(CommandError, match=f"^the cluster has no device '{word}'; a device is named by its UUID"):
        find_device(states(), word)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("0000:3B:00.0", "0000:3b:00.0"),
        ("00000000:3B:00.0", "0000:3b:00.0"),
        ("00012345:3b:00.0", "2345:3b:00.0"),
        ("1:3b:00.0", "0001:3b:00.0"),
        ("3B:00.0", "3b:00.0"),
        ("GPU-A", "gpu-a"),
        ("A:b:c:d", "a:b:c:d"),
    ],
)
def test_a_pci_address_is_written_as_sysfs_does(text: str, address: str) -> None:
    assert address_of(text) == address


@pytest.mark.parametrize(
    ("identity", "word", "begun"),
    [
        ("GPU-8a56a4bc", "8a56", True),
        ("GPU-8a56a4bc", "8a5", False),
        ("GPU-8a56a4bc", "gpu-", True),
        ("MIG-8a56a4bc", "8A56A", True),
        ("MIG-8a56a4bc", "mig-8a", True),
        ("0000:01:00.0", "0000", True),
        ("GPU-8a56a4bc", "56a4", False),
        ("GPU-MIG-8a56", "8a56", True),
    ],
)
def test_four_characters_begin_an_id(identity: str, word: str, *, begun: bool) -> None:
    assert is_begun(identity, word) is begun


@pytest.mark.parametrize(("word", "there"), [("n1/123456789", True), ("n1/1234567890", False)])
def test_a_minor_has_nine_digits(word: str, *, there: bool) -> None:
    minors = [123456789, 1234567890]
    held = [holding(str(at), part(gpu(minor, device_id=f"GPU-{at}"), 10)) for at, minor in enumerate(minors)]
    found = [report("n1", device_object(name="n1"), write_spec(held))]
    if there:
        assert find_device(found, word).id == "GPU-0"
    else:
        with pytest.raises(CommandError, match="node n1 has no device '1234567890'"):
            find_device(found, word)
