"""The Node's device amounts and labels (pure): sums over devices, model, driver and memory.

As Koordinator's noderesource controller does (pkg/slo-controller/noderesource/plugins/gpudeviceresource), in both
domains. `nvidia.com/gpu` belongs to the kubelet and is never touched.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, Final

from allocator.vocabulary.device import Device
from allocator.vocabulary.devicetype import FULL, DeviceTypes, Unit
from allocator.vocabulary.names import GPU_MEMORY, KOORDINATOR_DOMAIN, TYPE_GPU
from allocator.wire.partitions import GPU_MODEL, GPU_VENDOR
from reporter.gpu.inventory import DRIVER_VERSION
from reporter.publish.identity import NodeIdentity

MEMORY_LABEL: Final = "koordgate.io/gpu-memory-mib"  # of each card, if all have the same
_MIB: Final = 2**20


def build(
    node: NodeIdentity, devices: Iterable[Device], labels: Mapping[str, str], types: DeviceTypes
) -> dict[str, Any]:
    """Write what is applied to the Node through its `status` subresource, which gives no right to its spec.

    Args:
        node: the Node.
        devices: all devices of the node; unhealthy ones count nothing.
        labels: the Device object's; vendor, model and driver are copied.
        types: the device types.
    """
    devices = tuple(devices)
    copied = {key: labels[key] for key in (GPU_VENDOR, GPU_MODEL, DRIVER_VERSION) if key in labels}
    sizes = {device.capacity.get(GPU_MEMORY, 0) for device in devices if device.type == TYPE_GPU}
    if len(sizes) == 1:
        copied[MEMORY_LABEL] = str(sizes.pop() // _MIB)
    # Each status sync of the kubelet sets allocatable to capacity, for each name (pkg/kubelet/nodestatus/setters.go of
    # Kubernetes): with the totals as capacity, each would overwrite the other. The totals are on the Device object.
    usable = amounts(devices, types)
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": node.name, "labels": copied},
        "status": {"capacity": usable, "allocatable": dict(usable)},
    }


def amounts(devices: Iterable[Device], types: DeviceTypes) -> dict[str, str]:
    """Sum up healthy devices by full resource name: 0 if none of a type is healthy, no name if the node has none."""
    sums: dict[str, int] = defaultdict(int)
    for device in devices:
        kind = types.by_name[device.type]
        for tail in kind.tails:
            amount = device.capacity.get(tail, 0)
            whole = amount // FULL if kind.simple and kind.unit is Unit.DEVICES else amount
            for name in kind.spellings(tail):
                sums[name] += whole if device.healthy else 0
        if not kind.simple:  # all of a device at once, which Koordinator sums for GPUs as well
            whole = 1 if kind.unit is Unit.DEVICES else FULL
            sums[kind.resource_name(KOORDINATOR_DOMAIN, kind.plain)] += whole if device.healthy else 0
    return {name: str(sums[name]) for name in sorted(sums)}
