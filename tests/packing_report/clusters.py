"""Objects of a small cluster, as kubectl would write them, and the commands run on them."""

import asyncio
from collections.abc import Callable
from typing import Any

from builders import container, device_entry, device_object, pod
from commands import Answer

from console.simulator.cluster import OfflineCluster

Raw = dict[str, Any]
Run = Callable[..., Answer]


def node(name: str, cards: int = 4, cpu: int = 64, **spec: Any) -> list[Raw]:
    room = {"cpu": str(cpu), "memory": "512Gi", "pods": "99", "kubernetes.io/gpu-core": f"{cards}00"}
    room |= {"kubernetes.io/gpu-memory-ratio": f"{cards}00", "kubernetes.io/gpu-memory": f"{80 * cards}Gi"}
    entries = [device_entry(minor, id=f"GPU-{name}-{minor}", domain="kubernetes.io") for minor in range(cards)]
    own = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name},
        "status": {"allocatable": room},
        "spec": spec,
    }
    return [own, device_object(*entries, name=name)]


def bound(name: str, on: str, cluster: list[Raw], gpus: str = "100", **about: Any) -> Raw:
    """A Pod as it is after koordgate bound it to a node, beside the Pods that are in the cluster."""
    asks = {"kubernetes.io/gpu": gpus}
    made = pod(
        container(limits=asks, requests={**asks, "cpu": "4"}), name=name, namespace="team", uid=f"u-{name}", **about
    )

    async def bind() -> Raw:
        offline = OfflineCluster.in_process()
        await offline.load([{"apiVersion": "v1", **obj} for obj in cluster])
        offline.only = on
        return (await offline.submit(made)).pod

    found = asyncio.run(bind())
    assert found["spec"].get("nodeName") == on, found
    metadata = found["metadata"] | {"creationTimestamp": "2026-01-01T00:00:00Z"}
    return {**found, "kind": "Pod", "metadata": metadata, "status": {"phase": "Running"}}


def usual() -> list[Raw]:
    """Node b would be free but for one Pod."""
    cluster = [*node("a"), *node("b")]
    cluster.append(bound("big", "a", cluster, "200"))
    return [*cluster, bound("one", "b", cluster)]
