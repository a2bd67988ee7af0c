"""The vocabulary."""

import re

from hypothesis import given
from hypothesis import strategies as st

from allocator import names

# Kubernetes: a key is an optional DNS subdomain of at most 253 characters, "/", and a name of at most 63.
PREFIX = re.compile(r"(?=.{1,253}/)[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/")
NAME = re.compile(r"(?=.{1,63}$)([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")

KEYS = (
    names.DEVICE_ALLOCATED,
    names.RESOURCE_STATUS,
    *names.DEVICES_CHECKPOINTS,
    names.ORIGINAL_REQUEST,
    names.MIRROR_POD,
    names.visible_devices("main"),
)


def is_key(text: str) -> bool:
    prefix = PREFIX.match(text)
    return prefix is not None and NAME.fullmatch(text[prefix.end() :]) is not None


def test_every_name_is_its_own() -> None:
    resources = [names.resource_name(domain, tail) for domain in names.DOMAINS for tail in names.GPU_TAILS]
    everything = [*resources, names.NVIDIA_GPU, *KEYS]
    assert len(set(everything)) == len(everything)
    assert set(names.DEVICE_RESOURCES) == {*resources, names.NVIDIA_GPU}
    assert len(set(names.GPU_TAILS)) == len(names.GPU_TAILS)


def test_no_constant_says_what_another_says() -> None:
    domains_and_types = {"KUBERNETES_DOMAIN", "KOORDINATOR_DOMAIN", "TYPE_GPU", "GPU"}  # "gpu" is a type and a tail
    told = [value for key, value in vars(names).items() if isinstance(value, str) and key.isupper()]
    alike = {value for value in told if told.count(value) > 1}
    assert alike == {names.TYPE_GPU}, domains_and_types


def test_every_resource_tells_its_dialect_and_tail() -> None:
    assert names.DEVICE_RESOURCES["kubernetes.io/gpu-core"] == ("kubernetes.io", "gpu-core")
    assert names.DEVICE_RESOURCES["koordinator.sh/gpu.shared"] == ("koordinator.sh", "gpu.shared")
    assert names.DEVICE_RESOURCES["nvidia.com/gpu"] == ("nvidia.com/gpu", "gpu")


def test_every_name_is_a_valid_key_for_kubernetes() -> None:
    assert [key for key in (*KEYS, *names.DEVICE_RESOURCES) if not is_key(key)] == []


@given(st.from_regex(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", fullmatch=True))
def test_every_container_name_makes_a_valid_annotation_of_its_own(container: str) -> None:
    key = names.visible_devices(container)
    assert is_key(key)
    assert key.removeprefix(names.VISIBLE_DEVICES_PREFIX) == container


def test_the_longest_container_name_fits() -> None:
    assert is_key(names.visible_devices("c" * 63))
    assert not is_key(names.visible_devices("c" * 64))


def test_allocation_annotations_are_told_from_all_others() -> None:
    told = [
        key
        for key in (*KEYS, "koordgate.io/else", "visible-devices.koordgate.io")
        if names.is_allocation_annotation(key)
    ]
    assert told == [names.DEVICE_ALLOCATED, names.RESOURCE_STATUS, names.visible_devices("main")]
