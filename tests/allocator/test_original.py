"""What the annotation of a translated Pod says of its author's asks, in every product's names."""

import json
from typing import Any

import pytest
from builders import container, pod
from dialects.rows import types

from allocator.request.devices import Stated
from allocator.request.original import originals, read_asks
from allocator.vocabulary.devicetype import BUILT_IN
from allocator.vocabulary.names import ORIGINAL_REQUEST

K, H, V, N = "kubernetes.io/gpu", "nvidia.com/gpu", "volcano.sh/", "nvidia.com/gpu"
LEFT = {f"{K}-core": 100, f"{K}-memory-ratio": 100}  # by a translation
Raw = dict[str, Any]


def noted(original: object, table: str = "koordinator") -> Stated:
    """What is read of the annotation's entry for a container."""
    obj = pod(container("a", limits=LEFT), annotations={ORIGINAL_REQUEST: json.dumps({"a": original})})
    return read_asks(obj, types(table)).containers[0].stated


def limits(**amounts: Any) -> Raw:
    return {"limits": {f"{K}{name.replace('_', '-')}": amount for name, amount in amounts.items()}}


# The entry; whether bytes are no ask, over how many cards its author split it, and of which types it states some
SAID: dict[str, tuple[object, bool, int | None, tuple[str, ...]]] = {
    "nothing": ({}, True, None, ()),
    "compute and a ratio": (limits(_core=50, _memory_ratio=50), True, None, ("gpu",)),
    "bytes": (limits(_memory="1Gi"), False, None, ("gpu",)),
    "bytes between others": (limits(_core=50, _memory=1, _memory_ratio=50), False, None, ("gpu",)),
    "no bytes": (limits(_memory=0, _memory_ratio=50), True, None, ("gpu",)),
    "bytes that cannot be read": (limits(_memory="x"), False, None, ("gpu",)),
    "a split": ({"limits": {K: 100, f"{K}.shared": 2}}, True, 2, ("gpu",)),
    "a split of bytes": ({"limits": {f"{K}-memory": "1Gi", f"{K}.shared": 4}}, False, 4, ("gpu",)),
    "a split that cannot be read": ({"limits": {K: 100, f"{K}.shared": "x"}}, True, None, ("gpu",)),
    "requests first": (
        {"requests": {K: 100, f"{K}.shared": 2}, "limits": {K: 200, f"{K}.shared": 4}},
        True,
        2,
        ("gpu",),
    ),
    "bytes in one map": ({"requests": {f"{K}-memory": "1Gi"}, "limits": {K: 100}}, False, None, ("gpu",)),
    "whole cards": ({"limits": {N: 2}}, True, None, ("gpu",)),
    "no whole card": ({"limits": {N: 0}}, True, None, ()),
    "other types": ({"limits": {"kubernetes.io/fpga": 10, "koordinator.sh/rdma": 0}}, True, None, ("rdma", "fpga")),
    "names of no device": ({"limits": {"cpu": 1}}, True, None, ()),
    "no maps": ({"limits": 1, "requests": None}, True, None, ()),
    "no object": (["limits"], True, None, ()),
}


@pytest.mark.parametrize(("original", "derived", "shared", "named"), SAID.values(), ids=SAID)
def test_what_an_author_stated_is_read_from_the_annotation(
    original: object, *, derived: bool, shared: int | None, named: tuple[str, ...]
) -> None:
    stated = noted(original)
    assert (stated.derived, stated.shared, stated.types) == (derived, shared, named)
    assert (stated.one_device, stated.vendors) == ((), (("gpu", "nvidia"),) if original == {"limits": {N: 2}} else ())


# A product, an author's names in it; whether bytes are no ask, the split, and whether all containers share a card
PRODUCTS: dict[str, tuple[str, Raw, bool, int | None, bool]] = {
    "HAMi, bytes of two": ("hami", {N: 2, f"{H}mem": 100}, False, 2, False),
    "HAMi, a percentage": ("hami", {N: 2, f"{H}mem-percentage": 50}, True, 2, False),
    "HAMi, no number": ("hami", {f"{H}mem-percentage": 50}, True, None, False),
    "HAMi, both": ("hami", {f"{H}mem": 100, f"{H}mem-percentage": 50}, False, None, False),
    "Volcano, both": ("volcano", {f"{V}vgpu-memory": 9, f"{V}vgpu-memory-percentage": 5}, True, None, False),
    "Volcano's share": ("volcano-share", {f"{V}gpu-memory": 100}, False, None, True),
    "Volcano's whole cards": ("volcano-share", {f"{V}gpu-number": 2}, True, None, True),
}


@pytest.mark.parametrize("on", [True, False], ids=["on", "off"])
@pytest.mark.parametrize(("name", "amounts", "derived", "shared", "one_device"), PRODUCTS.values(), ids=PRODUCTS)
def test_what_an_author_stated_in_a_products_names_is_read_whether_it_is_on_or_off(
    name: str, amounts: Raw, *, derived: bool, shared: int | None, one_device: bool, on: bool
) -> None:
    stated = noted({"limits": amounts}, name if on else "koordinator")
    assert (stated.derived, stated.shared) == (derived, shared)
    assert stated.one_device == (("gpu",) if one_device else ())
    assert (stated.vendors, stated.types) == ((("gpu", "nvidia"),), ("gpu",))


def test_none_of_another_product_beside_an_ask_says_nothing() -> None:
    """Volcano would put all containers on one card, and AMD's plugin would give cards of AMD."""
    for other in (f"{V}gpu-memory", "amd.com/gpu"):
        for first, then in ((0, 100), (100, 0)):
            names = (other, f"{H}mem") if first == 0 else (f"{H}mem", other)
            stated = noted({"requests": {names[0]: first}, "limits": {names[1]: then}})
            assert stated == Stated(derived=False, vendors=(("gpu", "nvidia"),), types=("gpu",))


def test_bytes_that_an_author_stated_beside_a_ratio_are_an_ask_whatever_is_left() -> None:
    both = {**LEFT, f"{K}-memory": "40Gi"}
    for original, told in ((limits(_memory="1Gi"), ["gpu-memory and gpu-memory-ratio are both asked for"]), ({}, [])):
        obj = pod(container("a", limits=both), annotations={ORIGINAL_REQUEST: json.dumps({"a": original})})
        problems = [one.message.partition(";")[0] for one in read_asks(obj).problems]
        assert problems == told


@pytest.mark.parametrize("text", ["{", "[]", "1", 5, None, "[" * 60_000])
def test_an_annotation_that_cannot_be_read_states_nothing(text: object) -> None:
    obj = pod(container("a", limits=LEFT))
    obj["metadata"]["annotations"] = {ORIGINAL_REQUEST: text}
    assert originals(obj) == {}
    assert read_asks(obj).problems == ()


@pytest.mark.parametrize("text", ["[" * 65_537, json.dumps({"a": "x" * 70_000}), " " * 65_537])
def test_an_annotation_that_is_longer_than_koordgate_writes_is_refused_unread(text: str) -> None:
    obj = pod(container("a", limits=LEFT), annotations={ORIGINAL_REQUEST: text})
    reading = read_asks(obj)
    assert [str(one) for one in reading.problems] == [
        "metadata.annotations[koordgate.io/original-request]: has more than 64Ki; remove it, koordgate writes less"
    ]
    assert not reading.containers


def test_an_annotation_that_mixes_dialects_of_a_type_is_refused() -> None:
    def told(original: Raw) -> list[str]:
        obj = pod(container("a", limits=LEFT), container("b"), annotations={ORIGINAL_REQUEST: json.dumps(original)})
        return [str(one) for one in read_asks(obj, BUILT_IN).problems]

    def refused(names: str) -> list[str]:
        of = "gpu devices in several dialects at once"
        return [f"metadata.annotations[{ORIGINAL_REQUEST}]: states {of} ({names}), as koordgate never does; remove it"]

    hami, volcano = {f"{H}mem": 1}, {f"{V}vgpu-memory": 1}
    assert told({"a": {"limits": {**volcano, **hami}}}) == refused(f"{H}mem, {V}vgpu-memory")
    assert told({"a": {"requests": hami, "limits": volcano}}) == refused(f"{H}mem, {V}vgpu-memory")
    assert told({"a": {"limits": hami}, "b": {"limits": volcano}}) == refused(f"{H}mem, {V}vgpu-memory")
    assert told({"a": {"limits": {**hami, K: 50}}}) == refused(f"{K}, {H}mem")
    for fine in (
        {"a": {"limits": {**hami, f"{V}vgpu-memory": 0}}},
        {"a": {"limits": hami}, "b": {"limits": {K: 50}}},
        {"a": {"limits": {**hami, "kubernetes.io/rdma": 5, "cpu": 1}}, "b": {"limits": {N: 1}}},
        {"a": {"limits": {**hami, "nvidia.com/priority": 1}}},
    ):
        assert told(fine) == []
