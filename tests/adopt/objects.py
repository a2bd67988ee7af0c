"""Objects of a cluster that is moved to koordgate, and what is found in them."""

import json
from collections.abc import Mapping
from typing import Any

from builders import container, device_entry, device_object, pod

from allocator.vocabulary.names import DEVICES_CHECKPOINTS, Mode
from console.adopt.findings import ClusterFindings, find
from console.cluster import Cluster, ReadCluster
from webhook.settings import DialectSettings, WebhookSettings

Raw = dict[str, Any]
GPU = {"nvidia.com/gpu": "1"}
SHADOW = WebhookSettings(mode=Mode.SHADOW, dialects={"hami": DialectSettings(enabled=True)})


def node(name: str, **offers: str) -> Raw:
    room = {"cpu": "64", "memory": "512Gi", "pods": "99", "kubernetes.io/gpu-core": "200"}
    room |= {"kubernetes.io/gpu-memory-ratio": "200", "kubernetes.io/gpu-memory": "160Gi"}
    return {"kind": "Node", "metadata": {"name": name}, "status": {"allocatable": {**room, **offers}}}


def devices(name: str, held: Mapping[int, str] | str = "[]", cards: int = 2, **entry: Any) -> Raw:
    """A Device object; `held` is what the kubelet's checkpoint states, or who has each minor."""
    entries = [device_entry(at, id=f"GPU-{name}-{at}", domain="kubernetes.io", **entry) for at in range(cards)]
    if not isinstance(held, str):
        held = json.dumps([{"podUID": uid, "deviceIDs": [f"GPU-{name}-{minor}"]} for minor, uid in held.items()])
    told = {DEVICES_CHECKPOINTS[0]: held, "koordgate.io/runtime": '{"defaultShows":true}'}
    return device_object(*entries, name=name, annotations=told)


def gpu_pod(
    name: str, namespace: str = "team", limits: Mapping[str, str] = GPU, at: str = "", on: str = "", **about: Any
) -> Raw:
    about |= {"nodeName": on} if on else {}
    made = pod(container(limits=limits, requests=limits), name=name, namespace=namespace, uid=f"uid-{name}", **about)
    made["spec"].setdefault("schedulerName", "default-scheduler")
    made["metadata"] |= {"creationTimestamp": at} if at else {}
    return {**made, "kind": "Pod"}


def cluster(*objects: Raw, settings: WebhookSettings = SHADOW) -> Cluster:
    made = Cluster(settings=settings, installed=True)
    for obj in objects:
        made.take(obj["kind"], obj)
    return made


def found(*objects: Raw, settings: WebhookSettings = SHADOW) -> ClusterFindings:
    made = cluster(*objects, settings=settings)
    return find(made, ReadCluster(made))
