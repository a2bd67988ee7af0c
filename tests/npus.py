"""A vendor's NPU by settings alone: cores, CPUs, memory and image units, cut by templates, on boards with rings."""

from typing import Any

from builders import GIB

from koordgate.settings import SettingsError, device_types
from webhook.settings import WebhookSettings, parse

TYPES_TEXT = """
    - name: npu
      resource: huawei.com/npu
      unit: devices
      environment: ASCEND_VISIBLE_DEVICES
      split: huawei.com/npu.shared
      amounts:
        - {name: core, resource: huawei.com/npu-core, unit: units}
        - {name: cpu, resource: huawei.com/npu-cpu, unit: units}
        - {name: memory, resource: huawei.com/npu-memory, unit: bytes, ratio: huawei.com/npu-memory-ratio}
        - {name: dvpp, resource: huawei.com/npu-dvpp}
      templates:
        - {name: vir04, amounts: {core: 4, cpu: 4, memory: 12Gi, dvpp: 50}}
        - {name: vir01, amounts: {core: 1, cpu: 1, memory: 3Gi, dvpp: 12}}
        - {name: vir02, amounts: {core: 2, cpu: 2, memory: 6Gi, dvpp: 25}, models: [310P3]}
        - {name: vir04_3c, amounts: {core: 4, cpu: 3, memory: 12Gi, dvpp: 50}}
      boards:
        - {models: [310P3], partitions: [[0], [1], [2], [3], [0, 3], [1, 2], [0, 1, 2, 3]]}
    - name: dcu
      resource: example.com/dcu
      environment: DCU_VISIBLE_DEVICES
      split: example.com/dcu.shared
      amounts:
        - {name: compute, resource: example.com/dcu-compute}
        - {name: vram, resource: example.com/dcu-vram, unit: bytes, ratio: example.com/dcu-vram-ratio}
"""
TEXT = f"devices:\n  types:{TYPES_TEXT}"
SETTINGS: WebhookSettings = parse(TEXT)
TYPES = device_types(SETTINGS.devices.types)
NPU, DCU = TYPES.by_name["npu"], TYPES.by_name["dcu"]
CAPACITY = {"core": 8, "cpu": 7, "memory": 24 * GIB, "memory-ratio": 100, "dvpp": 100}


def refused(text: str) -> str:
    """The refusal of settings with these keys of a type."""
    try:
        parse(f"devices: {{types: [{{name: npu, resource: a/npu, {text}}}]}}")
    except SettingsError as error:
        return str(error)
    return ""


def npu(minor: int, *, model: str = "310P3", healthy: bool = True, **fields: Any) -> dict[str, Any]:
    """An entry of a Device object."""
    amounts = {"core": "8", "cpu": "7", "memory": str(24 * GIB), "dvpp": "100"}
    return {
        "type": "npu",
        "id": f"npu-{minor}",
        "minor": minor,
        "health": healthy,
        "resources": {f"huawei.com/npu-{name}": amount for name, amount in amounts.items()},
        "labels": {"node.koordinator.sh/gpu-model": model},
        **fields,
    }
