"""Short makers of Pods, Device objects and nodes; whatever is not said is the plainest possible."""

from collections.abc import Iterable, Mapping
from typing import Any

from allocator.asks import ContainerAsk, DeviceAsk, PodRequest, gpu_ask
from allocator.device import Device
from allocator.devicetype import FULL
from allocator.holdings import Holding, NodeSnapshot, Share
from allocator.names import GPU_CORE, GPU_MEMORY, GPU_MEMORY_RATIO, TYPE_GPU
from allocator.phase import Phase

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


def ask(count: int = 1, *, core: int = 0, ratio: int | None = None, memory: int | None = None) -> DeviceAsk:
    return gpu_ask(count, core, ratio=ratio, memory=memory)


def gpus(percent: int) -> DeviceAsk:
    """The ask that `kubernetes.io/gpu: percent` makes."""
    count = max(percent // FULL, 1)
    return ask(count, core=percent // count, ratio=percent // count)


def app(name: str, of: DeviceAsk) -> ContainerAsk:
    return ContainerAsk(name, Phase.APP, of)


def init(name: str, of: DeviceAsk) -> ContainerAsk:
    return ContainerAsk(name, Phase.INIT, of)


def sidecar(name: str, of: DeviceAsk) -> ContainerAsk:
    return ContainerAsk(name, Phase.SIDECAR, of)


def request(*containers: ContainerAsk) -> PodRequest:
    """A Pod's request: init containers and sidecars in their order, then apps, as `read_pod` gives them."""
    return PodRequest(tuple(sorted(containers, key=lambda c: c.phase is Phase.APP)))


# Nodes, as read


def gpu(
    minor: int, memory: int = 80 * GIB, *, device_id: str | None = None, healthy: bool = True, **fields: Any
) -> Device:
    capacity = {GPU_CORE: FULL, GPU_MEMORY: memory, GPU_MEMORY_RATIO: FULL}
    return Device(TYPE_GPU, device_id or f"GPU-{minor}", minor, healthy, capacity, **fields)


def share(device: Device, *containers: str, core: int = 0, memory: int = 0, ratio: int = 0) -> Share:
    amounts = {GPU_CORE: core, GPU_MEMORY: memory, GPU_MEMORY_RATIO: ratio}
    return Share(device.type, device.id, device.minor, amounts, containers)


def part(device: Device, percent: int, *containers: str) -> Share:
    """So much of a device, compute and memory alike."""
    memory = device.capacity[GPU_MEMORY] * percent // FULL
    return share(device, *containers, core=percent, memory=memory, ratio=percent)


def holding(uid: str, *shares: Share, since: int = 1_700_000_000) -> Holding:
    return Holding(uid, "default", f"pod-{uid}", since, shares)


def node(*devices: Device, holdings: Iterable[Holding] = (), kubelet: Iterable[str] = ()) -> NodeSnapshot:
    ordered = tuple(sorted(devices, key=lambda device: device.order))
    return NodeSnapshot("node-1", ordered, {h.uid: h for h in holdings}, frozenset(kubelet))


def held(*parts: Share) -> list[Holding]:
    """One Pod of somebody else for each of these shares."""
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
