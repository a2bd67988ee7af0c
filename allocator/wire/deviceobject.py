"""Koordinator's Device object (scheduling.koordinator.sh/v1alpha1): what one node has.

Understood are today's fields and those of seed document 1's first draft (`id`/`uuid`, `type`/`deviceType`,
`resources`/`resource`), resource names in both domains, and the kubelet's checkpoint annotations.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from allocator.device import FULL, RESOURCES_OF, Device
from allocator.names import DEVICE_RESOURCES, DEVICES_CHECKPOINTS, GPU_CORE, GPU_MEMORY, GPU_MEMORY_RATIO, TYPE_GPU
from allocator.quantity import QuantityError, to_int

_MODEL_LABEL = "node.koordinator.sh/gpu-model"


@dataclass(frozen=True, slots=True)
class NodeDevices:
    """A Device object as read.

    Attributes:
        node: the node's name, which is the object's.
        devices: what could be read, in the order of minors.
        kubelet_held: ids of devices that the kubelet's own device manager gave away.
        problems: what could not be read, a sentence each; the rest counts all the same.
    """

    node: str
    devices: tuple[Device, ...]
    kubelet_held: frozenset[str]
    problems: tuple[str, ...]


def read_device_object(obj: Mapping[str, Any]) -> NodeDevices:
    """Read a Device object; a device that makes no sense is left out and named in `problems`."""
    problems: list[str] = []
    metadata = _mapping(obj.get("metadata"), "metadata", problems)
    devices: dict[str, Device] = {}
    minors: set[tuple[str, int]] = set()
    model = str(_mapping(metadata.get("labels"), "metadata.labels", problems).get(_MODEL_LABEL, ""))
    listed = _mapping(obj.get("spec"), "spec", problems).get("devices")
    if listed is not None and not isinstance(listed, list):
        problems.append("spec.devices: not a list; no device is read")
        listed = None
    for index, entry in enumerate(listed or ()):
        try:
            device = _read_device(entry, model)
        except (QuantityError, ValueError, TypeError, AttributeError) as error:
            problems.append(f"spec.devices[{index}]: {error}; left out")
            continue
        if device is None:
            continue
        if device.id in devices or (device.type, device.minor) in minors:
            problems.append(f"spec.devices[{index}]: id {device.id} or minor {device.minor} stands twice; left out")
            continue
        devices[device.id] = device
        minors.add((device.type, device.minor))
    held = _read_checkpoints(_mapping(metadata.get("annotations"), "metadata.annotations", problems), problems)
    ordered = tuple(sorted(devices.values(), key=lambda device: (device.type, device.order)))
    return NodeDevices(str(metadata.get("name", "")), ordered, held, tuple(problems))


def _mapping(value: object, path: str, problems: list[str]) -> Mapping[str, Any]:
    """Take an object that may be left out; anything else is a problem, and read as left out."""
    if isinstance(value, dict):
        return value
    if value is not None:
        problems.append(f"{path}: not an object; left out")
    return {}


def _read_device(entry: Mapping[str, Any], model: str) -> Device | None:
    """Read one entry; None for a type that this version does not allocate."""
    kind = entry.get("type") or entry.get("deviceType")
    if not isinstance(kind, str):
        raise TypeError("no type")
    if kind not in RESOURCES_OF:
        return None
    identity = entry.get("id") or entry.get("uuid")
    minor = entry.get("minor", 0)
    if not isinstance(identity, str) or not identity:
        raise ValueError("no id; a GPU's id is its UUID")
    if not isinstance(minor, int) or isinstance(minor, bool) or minor < 0:
        raise ValueError(f"minor {minor!r} is not 0 or more")
    topology = entry.get("topology") or {}
    numa, pcie = topology.get("nodeID"), topology.get("pcieID")
    labels = {str(key): str(value) for key, value in (entry.get("labels") or {}).items()}
    return Device(
        type=kind,
        id=identity,
        minor=minor,
        healthy=entry.get("health") is True,
        capacity=_read_capacity(kind, entry.get("resources") or entry.get("resource") or {}),
        numa_node=numa if isinstance(numa, int) and not isinstance(numa, bool) and numa >= 0 else None,
        pcie=pcie if isinstance(pcie, str) and pcie else None,
        model=labels.get(_MODEL_LABEL, model),
        labels=labels,
    )


def _read_capacity(kind: str, resources: Mapping[str, object]) -> dict[str, int]:
    capacity: dict[str, int] = {}
    for name, amount in resources.items():
        known = DEVICE_RESOURCES.get(name)
        if known is not None and known[1] in RESOURCES_OF[kind]:
            capacity[known[1]] = to_int(amount)
    if kind == TYPE_GPU:
        capacity = {GPU_CORE: FULL, GPU_MEMORY_RATIO: FULL, **capacity}
        if not capacity.get(GPU_MEMORY):
            raise ValueError("no gpu-memory; a share of it cannot be counted")
        if capacity[GPU_CORE] > FULL or capacity[GPU_MEMORY_RATIO] > FULL:
            raise ValueError("gpu-core or gpu-memory-ratio above 100, which is a whole device")
    return capacity


def _read_checkpoints(annotations: Mapping[str, str], problems: list[str]) -> frozenset[str]:
    """Read which devices the kubelet gave away (seed document 1, "Compatible"); both annotation names are in use."""
    held: set[str] = set()
    for key in DEVICES_CHECKPOINTS:
        if key not in annotations:
            continue
        try:
            for entry in json.loads(annotations[key]) or ():
                held.update(_read_ids(entry))
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            problems.append(f"annotation {key}: not the expected JSON ({error})")
    return frozenset(held)


def _read_ids(entry: Mapping[str, Any]) -> list[str]:
    ids = entry.get("deviceIDs") or []
    if not isinstance(ids, list):
        raise TypeError("deviceIDs is not a list")
    return [str(device) for device in ids]
