"""Names: those of the vocabulary, of PCI addresses, and what a message repeats of a name."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allocator.vocabulary import names
from allocator.vocabulary.device import pci_address
from allocator.vocabulary.devicetype import BUILT_IN
from allocator.vocabulary.outcome import excerpt

# Kubernetes: a key is an optional DNS subdomain of at most 253 characters, "/", and a name of at most 63.
PREFIX = re.compile(r"(?=.{1,253}/)[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/")
NAME = re.compile(r"(?=.{1,63}$)([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")

KEYS = (
    names.DEVICE_ALLOCATED,
    names.RESOURCE_STATUS,
    *names.DEVICES_CHECKPOINTS,
    names.ORIGINAL_REQUEST,
    names.RELEASED,
    names.CORDONED,
    names.DEVICE_ORDER,
    names.CLASSES,
    names.MIRROR_POD,
    names.visible_devices("main"),
    names.visible_devices("main", "rdma"),
    names.DEVICE_QUOTAS,
    names.device_quota("main", "gpu-memory"),
)


def is_key(text: str) -> bool:
    prefix = PREFIX.match(text)
    return prefix is not None and NAME.fullmatch(text[prefix.end() :]) is not None


def test_every_name_is_a_valid_key_for_kubernetes() -> None:
    assert [key for key in (*KEYS, *BUILT_IN.resources) if not is_key(key)] == []


@given(st.from_regex(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", fullmatch=True))
def test_every_container_name_makes_a_valid_annotation_of_its_own(container: str) -> None:
    key = names.visible_devices(container)
    assert is_key(key)
    assert key.removeprefix(names.VISIBLE_DEVICES_PREFIX) == container


def test_the_longest_container_name_fits() -> None:
    assert is_key(names.visible_devices("c" * 63))
    assert not is_key(names.visible_devices("c" * 64))


def test_allocation_annotations_are_distinguished_from_all_others() -> None:
    told = [
        key
        for key in (*KEYS, "koordgate.io/else", "visible-devices.koordgate.io")
        if names.is_allocation_annotation(key)
    ]
    shown = [names.visible_devices("main"), names.visible_devices("main", "rdma")]
    quotas = [names.DEVICE_QUOTAS, "gpu-memory.device-quotas.koordgate.io/main"]
    assert told == [names.DEVICE_ALLOCATED, names.RESOURCE_STATUS, *shown, *quotas]


@pytest.mark.parametrize(
    "key",
    [
        "nvidia.cdi.k8s.io/container.main",
        "nvidia.cdi.k8s.io/pod",
        "nvidia.cdi.k8s.io",  # GetEffectiveAnnotation of containerd/nri, pkg/plugin
        "nvidia.cdi.k8s.io/nvidia-device-plugin_1",
        "cdi.k8s.io/gpu",
        "cdi.k8s.io",
        "nvidia.com/container.main.gpus.devices",
        "nvidia.com/container.a-1.gpus.devices",
        "nvidia.com/container..gpus.devices",
    ],
)
def test_what_shows_devices_by_the_nodes_own_software_is_an_allocation(key: str) -> None:
    assert names.is_delivery_annotation(key)
    assert names.is_allocation_annotation(key)


@pytest.mark.parametrize(
    "key",
    [
        "nvidia-gpu-memory-limit.koordgate.io/main",
        "nvidia-gpu-memory-request.koordgate.io/main",
        "gpu-core-limit.koordgate.io/main",
        "nri.koordgate.io/main",
        "required-plugins.noderesource.dev/container.main",
    ],
)
def test_what_the_enforcer_goes_by_is_an_allocation_that_koordgate_alone_writes(key: str) -> None:
    assert names.is_allocation_annotation(key)
    assert not names.is_delivery_annotation(key)


@pytest.mark.parametrize("key", ["required-plugins.noderesource.dev", "required-plugins.noderesource.dev/pod"])
def test_which_nri_plugins_a_pod_requires_its_author_may_say(key: str) -> None:
    assert not names.is_allocation_annotation(key)


@pytest.mark.parametrize(
    "key",
    [
        "nvidia.com/container.main.gpu-memory.request",
        "nvidia.com/container.main.gpu-memory.limit",
        "nvidia.com/container.main.gpu-compute.mode",
        "nvidia.com/gpus.devices",
        "nvidia.com/container.main.gpus.devices.x",
        "example.com/container.main.gpus.devices",
        "example.com/cdi.k8s.io",
        "my.cdi.k8s.io/gpu",
        "amd.cdi.k8s.io/pod",
        "nvidia-gpu-memory-limit.koordgate.io",
        "nvidia-gpu-memory.koordgate.io/main",
        "xnvidia-gpu-memory-limit.koordgate.io/main",
        "",
    ],
)
def test_requests_of_authors_and_like_names_are_no_allocation(key: str) -> None:
    assert not names.is_delivery_annotation(key)
    assert not names.is_allocation_annotation(key)


@given(
    st.from_regex(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", fullmatch=True),
    st.sampled_from(["gpu", "rdma", "fpga"]) | st.from_regex(r"[a-z0-9]([-a-z0-9]{0,20}[a-z0-9])?", fullmatch=True),
)
def test_an_annotation_of_visible_devices_names_type_and_container(container: str, kind: str) -> None:
    key = names.visible_devices(container, kind)
    assert is_key(key)
    assert names.shown_by(key) == (kind, container)


@pytest.mark.parametrize(
    "key", ["visible-devices.koordgate.io", "xvisible-devices.koordgate.io/a", "koordgate.io/visible-devices", ""]
)
def test_an_annotation_of_another_name_shows_nothing(key: str) -> None:
    assert names.shown_by(key) is None


ADDRESSES = {
    "as NVML spells it": ("00000000:3B:00.0", "0000:3b:00.0"),
    "as sysfs spells it": ("0000:3b:00.0", "0000:3b:00.0"),
    "a domain beyond 16 bits": ("00010001:AF:1F.7", "10001:af:1f.7"),
    "no function": ("0000:3b:00", None),
    "a way out of the folder": ("../../etc", None),
    "a line too many": ("0000:3b:00.0\n", None),
    "nothing": ("", None),
}


@pytest.mark.parametrize(("text", "expected"), ADDRESSES.values(), ids=ADDRESSES)
def test_an_address_is_spelled_as_sysfs_does_or_is_none(text, expected) -> None:
    assert pci_address(text) == expected


@given(st.text(alphabet="0123456789abcdefABCDEF:./\n", max_size=20))
def test_whatever_is_taken_for_an_address_is_a_plain_file_name(text) -> None:
    found = pci_address(text)
    assert found is None or ("/" not in found and found == found.strip() and pci_address(found) == found)


@pytest.mark.parametrize(
    ("value", "shown"),
    [("", ""), ("a" * 80, "a" * 80), ("a" * 81, "a" * 80), (12, "12"), (["x" * 100], "['" + "x" * 78)],
)
def test_a_message_repeats_80_characters(value: object, shown: str) -> None:
    assert excerpt(value) == shown
