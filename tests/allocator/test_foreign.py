"""Names of devices that only a vendor's device plugin gives."""

import pytest

from allocator.request.devices import UnknownName, unknown_names
from allocator.request.unread import foreign_of
from allocator.vocabulary.devicetype import BUILT_IN

COUNTED: dict[str, str] = {
    "nvidia.com/mig-1g.5gb": "MIG devices",
    "nvidia.com/gpu.shared": "replicas of a card, whose size only the node knows",
    "nvidia.com/gpu-10gb": "slices of a card",
    "huawei.com/Ascend910": "NPUs",
    "huawei.com/npu": "NPUs",
    "huawei.com/npu-core": "NPUs",
}
OTHERS = (
    "nvidia.com/gpu",
    "nvidia.com/gpu.shared2",
    "nvidia.com/mig",
    "rdma/hca",
    "amd.com/gpu",
    "cpu",
    "huawei.com/a",
)


@pytest.mark.parametrize(("name", "what"), COUNTED.items())
def test_a_device_plugins_name_is_told_by_what_it_counts(name: str, what: str) -> None:
    found = foreign_of(name)
    assert found is not None
    assert found.what == what


@pytest.mark.parametrize("name", OTHERS)
def test_other_names_are_no_device_plugins(name: str) -> None:
    assert foreign_of(name) is None


def test_what_containers_ask_for_in_names_that_no_type_has_is_listed_with_its_place() -> None:
    spec = {
        "initContainers": [{"name": "bare"}, {"resources": {"limits": {"a/b": 1}, "requests": {"g/h": 2, "cpu": 2}}}],
        "containers": [
            {"resources": None},
            {"resources": {"limits": {"c/d": 3, "e/f": 4, "memory": 5}, "requests": None}},
            {"resources": {"requests": {"nvidia.com/gpu": 6, "ephemeral-storage": 7}}},
        ],
    }
    assert unknown_names(spec, BUILT_IN) == [
        UnknownName("spec.initContainers[1]", "g/h", 2),
        UnknownName("spec.initContainers[1]", "a/b", 1),
        UnknownName("spec.containers[1]", "c/d", 3),
        UnknownName("spec.containers[1]", "e/f", 4),
    ]
