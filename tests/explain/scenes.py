"""Nodes and Pods to be explained, and what the command answers."""

from collections.abc import Mapping
from typing import Any

from builders import container, device_entry, device_object, pod

from console.simulator.cluster import OfflineCluster

Raw = dict[str, Any]
GPU = {"nvidia.com/gpu": "1"}
BORN = "2026-01-01T00:00:00Z"


def node(name: str, cards: int = 2, **about: Any) -> list[Raw]:
    room = {"cpu": "8", "memory": "64Gi", "pods": "99", "kubernetes.io/gpu-core": f"{cards}00"}
    room |= {"kubernetes.io/gpu-memory-ratio": f"{cards}00", "kubernetes.io/gpu-memory": f"{80 * cards}Gi"}
    labels = {"zone": "a", **about.pop("labels", {})}
    entries = [device_entry(minor, id=f"GPU-{name}-{minor}", domain="kubernetes.io") for minor in range(cards)]
    own = {"kind": "Node", "metadata": {"name": name, "labels": labels}, "status": {"allocatable": room}, "spec": about}
    return [own, device_object(*entries, name=name)]


def gpu_pod(name: str = "mine", limits: Mapping[str, str] = GPU, **about: Any) -> Raw:
    made = pod(container(limits=limits, requests=limits), name=name, namespace="team", uid=f"uid-{name}", **about)
    return {**made, "kind": "Pod"}


async def bound(name: str, on: str, *cluster: Raw, limits: Mapping[str, str] = GPU) -> Raw:
    """The Pod as it is after koordgate bound it to a node."""
    offline = OfflineCluster.in_process()
    await offline.load([{"apiVersion": "v1", **obj} for obj in cluster])
    offline.only = on
    result = await offline.submit(gpu_pod(name, limits))
    assert result.pod["spec"].get("nodeName") == on, result
    result.pod["metadata"]["creationTimestamp"] = BORN
    return result.pod


async def waiting(name: str = "mine", limits: Mapping[str, str] = GPU, **about: Any) -> Raw:
    """The Pod as it is after admission, and after its scheduler tried it."""
    offline = OfflineCluster.in_process()
    result = await offline.admit(gpu_pod(name, limits, **about))
    result.pod["metadata"]["creationTimestamp"] = BORN
    tried = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/2 nodes"}
    return {**result.pod, "status": {"conditions": [tried]}}


def scheduled(obj: Raw, **spec: Any) -> Raw:
    return {**obj, "spec": {**obj["spec"], **spec}}
