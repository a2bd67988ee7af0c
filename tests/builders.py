"""Short makers of Pods, Device objects and nodes; every default is the plainest possible."""

import json
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from allocator.request.cpus import QOS_LABEL
from allocator.request.pod import read_request
from allocator.vocabulary.asks import NO_WISHES, ContainerAsk, DeviceAsk, PodRequest, Wishes
from allocator.vocabulary.cpunode import CpuAsk, CpuShare
from allocator.vocabulary.device import Device, VirtualFunction
from allocator.vocabulary.devicetype import FULL, GPU_TYPE, RDMA_TYPE
from allocator.vocabulary.holdings import Holding, Share
from allocator.vocabulary.names import (
    DEVICE_ORDER,
    GPU_CORE,
    GPU_MEMORY,
    GPU_MEMORY_RATIO,
    RDMA,
    TYPE_GPU,
    TYPE_RDMA,
    Phase,
)
from allocator.vocabulary.node import NodeSnapshot
from allocator.wire.allocatehint import DEVICE_ALLOCATE_HINT, DEVICE_JOINT_ALLOCATE, GPU_PARTITION_SPEC
from allocator.wire.gang import GANG_LABELS
from allocator.wire.podannotations import NUMA_TOPOLOGY_SPEC, RESOURCE_SPEC

T = TypeVar("T")

MIB = 2**20
GIB = 2**30


# Pods, as JSON


def container(
    name: str = "main",
    requests: Mapping[str, Any] | None = None,
    limits: Mapping[str, Any] | None = None,
    **fields: Any,
) -> dict[str, Any]:
    resources = {
        key: dict(amounts) for key, amounts in (("requests", requests), ("limits", limits)) if amounts is not None
    }
    return {"name": name, "image": "example.org/image", **({"resources": resources} if resources else {}), **fields}


def sidecar_container(name: str, **parts: Any) -> dict[str, Any]:
    return container(name, restartPolicy="Always", **parts)


def pod_spec(*containers: Mapping[str, Any], init: Iterable[Mapping[str, Any]] = (), **fields: Any) -> dict[str, Any]:
    first = [dict(c) for c in init]
    return {**({"initContainers": first} if first else {}), "containers": [dict(c) for c in containers], **fields}


def pod(
    *containers: Mapping[str, Any],
    name: str = "pod",
    namespace: str = "default",
    uid: str = "uid-1",
    annotations: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
    init: Iterable[Mapping[str, Any]] = (),
    **spec: Any,
) -> dict[str, Any]:
    metadata: dict[str, Any] = {"name": name, "namespace": namespace, "uid": uid}
    if annotations is not None:
        metadata["annotations"] = dict(annotations)
    if labels is not None:
        metadata["labels"] = dict(labels)
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": pod_spec(*(containers or (container(),)), init=init, **spec),
    }


# What a Pod asks, as read


def ask(
    count: int = 1, *, core: int = 0, ratio: int | None = None, memory: int | None = None, vendor: str = ""
) -> DeviceAsk:
    return DeviceAsk(GPU_TYPE, count, (core, memory, ratio), vendor=vendor)


def plain(count: int = 1) -> DeviceAsk:
    """The ask that `nvidia.com/gpu: count` makes."""
    return ask(count, core=FULL, ratio=FULL, vendor="nvidia")


def gpus(percent: int) -> DeviceAsk:
    """The request of `kubernetes.io/gpu: percent`."""
    count = max(percent // FULL, 1)
    return ask(count, core=percent // count, ratio=percent // count)


def nics(percent: int, count: int = 1, *, every: bool = False) -> DeviceAsk:
    """A percentage of each of several RDMA NICs."""
    return DeviceAsk(RDMA_TYPE, count, (percent,), every)


def app(name: str, of: DeviceAsk) -> ContainerAsk:
    return ContainerAsk(name, Phase.APP, of)


def init(name: str, of: DeviceAsk) -> ContainerAsk:
    return ContainerAsk(name, Phase.INIT, of)


def sidecar(name: str, of: DeviceAsk) -> ContainerAsk:
    return ContainerAsk(name, Phase.SIDECAR, of)


def request(*containers: ContainerAsk, cpu: CpuAsk | None = None, wishes: Wishes = NO_WISHES) -> PodRequest:
    """A Pod's request: init containers and sidecars in their order, then apps, as `read_pod` gives them."""
    return PodRequest(tuple(sorted(containers, key=lambda c: c.phase is Phase.APP)), cpu, wishes)


_WISHES = {
    "hint": DEVICE_ALLOCATE_HINT,
    "joint": DEVICE_JOINT_ALLOCATE,
    "partition": GPU_PARTITION_SPEC,
    "cpus": RESOURCE_SPEC,
    "numa": NUMA_TOPOLOGY_SPEC,
}


def asking(
    *limits: Mapping[str, Any], order: str = "", gang: str = "", qos: str = "", **wishes: Mapping[str, Any] | None
) -> PodRequest:
    """The request, as it is read, of a Pod whose containers a, b, ... have these requests and limits.

    Args:
        limits: of each container.
        order: the order of devices.
        gang: name of its group.
        qos: its QoS class.
        wishes: its annotations as JSON: hint, joint, partition, cpus (resource-spec), numa; None leaves one out.
    """
    annotations = {_WISHES[name]: json.dumps(value) for name, value in wishes.items() if value is not None}
    if order:
        annotations[DEVICE_ORDER] = order
    labels = {**({QOS_LABEL: qos} if qos else {}), **({GANG_LABELS[0]: gang} if gang else {})}
    containers = [
        container(name, requests=amounts, limits=amounts) for name, amounts in zip("abcdefgh", limits, strict=False)
    ]
    reading = read_request(pod(*containers, annotations=annotations, labels=labels), {})
    assert reading.problems == ()
    return reading.request


# Nodes, as read


def gpu(
    minor: int, memory: int = 80 * GIB, *, device_id: str | None = None, healthy: bool = True, **fields: Any
) -> Device:
    capacity = {GPU_CORE: FULL, GPU_MEMORY: memory, GPU_MEMORY_RATIO: FULL}
    return Device(TYPE_GPU, device_id or f"GPU-{minor}", minor, healthy, capacity, **fields)


def nic(
    minor: int, *functions: VirtualFunction, device_id: str | None = None, healthy: bool = True, **fields: Any
) -> Device:
    """An RDMA NIC with these virtual functions."""
    return Device(TYPE_RDMA, device_id or f"NIC-{minor}", minor, healthy, {RDMA: FULL}, functions=functions, **fields)


def share(device: Device, *containers: str, core: int = 0, memory: int = 0, ratio: int = 0) -> Share:
    amounts = {GPU_CORE: core, GPU_MEMORY: memory, GPU_MEMORY_RATIO: ratio}
    return Share(device.type, device.id, device.minor, amounts, containers)


def part(device: Device, percent: int, *containers: str) -> Share:
    """A percentage of a device, the same for compute and memory."""
    memory = device.capacity[GPU_MEMORY] * percent // FULL
    return share(device, *containers, core=percent, memory=memory, ratio=percent)


def holding(
    uid: str, *shares: Share, since: int = 1_700_000_000, cpus: CpuShare | None = None, gang: str = ""
) -> Holding:
    return Holding(uid, "default", f"pod-{uid}", since, shares, cpus, gang)


def node(
    *devices: Device, holdings: Iterable[Holding] = (), kubelet: Iterable[str] = (), **fields: Any
) -> NodeSnapshot:
    ordered = tuple(sorted(devices, key=lambda device: (device.type, device.order)))
    return NodeSnapshot("node-1", ordered, {h.uid: h for h in holdings}, frozenset(kubelet), **fields)


def held(*parts: Share) -> list[Holding]:
    """One other Pod for each of these shares."""
    return [holding(f"other-{index}", one) for index, one in enumerate(parts)]


# Device objects, as JSON


def device_entry(
    minor: int, memory: str = "80Gi", /, *, domain: str = "koordinator.sh", drop: Iterable[str] = (), **fields: Any
) -> dict[str, Any]:
    entry = {
        "type": "gpu",
        "id": f"GPU-{minor}",
        "minor": minor,
        "health": True,
        "resources": {
            f"{domain}/gpu-core": "100",
            f"{domain}/gpu-memory": memory,
            f"{domain}/gpu-memory-ratio": "100",
        },
        **fields,
    }
    return {key: value for key, value in entry.items() if key not in set(drop)}


def nic_entry(minor: int, /, *, drop: Iterable[str] = (), **fields: Any) -> dict[str, Any]:
    entry = {
        "type": "rdma",
        "id": f"NIC-{minor}",
        "minor": minor,
        "health": True,
        "resources": {"koordinator.sh/rdma": "100"},
        **fields,
    }
    return {key: value for key, value in entry.items() if key not in set(drop)}


def device_object(*entries: Any, name: str = "node-1", annotations: Mapping[str, str] | None = None) -> dict[str, Any]:
    metadata: dict[str, Any] = {"name": name}
    if annotations is not None:
        metadata["annotations"] = dict(annotations)
    return {
        "apiVersion": "scheduling.koordinator.sh/v1alpha1",
        "kind": "Device",
        "metadata": metadata,
        "spec": {"devices": list(entries)},
    }
