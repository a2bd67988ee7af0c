"""The annotations that state what each container may use of its devices: exactly as written, and what is read."""

import json

import pytest
from builders import GIB

from allocator.vocabulary.devicetype import BUILT_IN, GPU_TYPE, RDMA_TYPE
from allocator.vocabulary.names import DEVICE_QUOTAS
from allocator.vocabulary.sharing import DeviceQuota, Quotas
from allocator.wire.devicequotas import read_quotas, write_quotas

QUOTAS: Quotas = {
    "b": [
        DeviceQuota(GPU_TYPE, "GPU-1", {"gpu-core": 0, "gpu-memory": 1, "gpu-memory-ratio": 1}),
        DeviceQuota(GPU_TYPE, "GPU-0", {"gpu-core": None, "gpu-memory": None, "gpu-memory-ratio": None}),
        DeviceQuota(RDMA_TYPE, "NIC-0", {"rdma": 1}),
    ],
    "a": [DeviceQuota(GPU_TYPE, "GPU-0", {"gpu-core": 100, "gpu-memory": 16 * GIB, "gpu-memory-ratio": 20})],
}
WRITTEN = {
    "a": {
        "gpu": [{"id": "GPU-0", "resources": {"k/gpu-core": "100", "k/gpu-memory": "16Gi", "k/gpu-memory-ratio": "20"}}]
    },
    "b": {
        "gpu": [
            {"id": "GPU-1", "resources": {"k/gpu-core": "none", "k/gpu-memory": "1", "k/gpu-memory-ratio": "1"}},
            {
                "id": "GPU-0",
                "resources": dict.fromkeys(("k/gpu-core", "k/gpu-memory", "k/gpu-memory-ratio"), "unlimited"),
            },
        ],
        "rdma": [{"id": "NIC-0", "resources": {"k/rdma": "1"}}],
    },
}


def test_quotas_are_written_as_json_and_as_plain_numbers() -> None:
    assert write_quotas(QUOTAS, "k") == {
        DEVICE_QUOTAS: json.dumps(WRITTEN, separators=(",", ":")),
        "gpu-core.device-quotas.koordgate.io/a": "100",
        "gpu-memory.device-quotas.koordgate.io/a": "17179869184",
        "gpu-core.device-quotas.koordgate.io/b": "none,unlimited",
        "gpu-memory.device-quotas.koordgate.io/b": "1,unlimited",
    }
    assert write_quotas({}, "k") == {}


def test_quotas_are_read_as_they_were_written() -> None:
    read = read_quotas(write_quotas(QUOTAS, "koordinator.sh"), BUILT_IN)
    assert read == QUOTAS
    assert list(read) == ["a", "b"]


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        "null",
        '{"a":[]}',
        '{"a":{"gpu":[7]}}',
        '{"a":{"gpu":[{"id":"x"}]}}',
        '{"a":{"tpu":[{"id":"x","resources":{}}]}}',
        '{"a":{"gpu":[{"id":"x","resources":{"k/gpu":"1"}}]}}',
        '{"a":{"gpu":[{"id":"x","resources":{"koordinator.sh/gpu-core":"much"}}]}}',
        '{"a":{"gpu":[{"id":"x","resources":{"koordinator.sh/gpu-core":"vast"}}]}}',
    ],
)
def test_quotas_that_cannot_be_read_are_none(text: str) -> None:
    assert read_quotas({DEVICE_QUOTAS: text}, BUILT_IN) == {}
    assert read_quotas({}, BUILT_IN) == {}
