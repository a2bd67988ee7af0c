"""A trace's nodes and Pods as Kubernetes objects (pure), as a cluster's reporter and an author would write them.

A trace divides a GPU in thousandths, koordgate in percent: what is no whole percent is rounded up, so that a Pod of 123
thousandths holds 13 percent. Neither the trace nor this module knows what a GPU's memory is needed for: a Pod gets the
same part of it as of the GPU.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Any, Final

from allocator.vocabulary.asks import DeviceAsk
from allocator.vocabulary.devicetype import BUILT_IN
from allocator.vocabulary.mix import Mix, TypicalRequest, mix_of
from allocator.vocabulary.names import TYPE_GPU
from console.simulator.assumed import memory_of
from koordgate.kube.resource import DEVICES
from openb.trace import WHOLE, TraceAsk, TraceNode, TracePod

Raw = dict[str, Any]

MODEL_LABEL: Final = "node.koordinator.sh/gpu-model"
TYPICAL_PERCENT: Final = 95
"""Of the Pods, whose requests are typical (FGD, section 3)."""

_MILLI_OF_PERCENT: Final = 10
_MAX_PODS: Final = "1000"  # the trace states no bound of Pods on a node
_MIB: Final = 2**20
_OTHER_MEMORY: Final = 24_576 * _MIB  # of a model whose product is not known, such as the trace's G2


def percent(milli: int) -> int:
    """Thousandths of a GPU in percent, rounded up."""
    return -(-milli // _MILLI_OF_PERCENT)


def node_objects(node: TraceNode) -> list[Raw]:
    """A node as a Node, and a Device object if it has GPUs."""
    labels = {"kubernetes.io/hostname": node.name, **({MODEL_LABEL: node.model} if node.gpus else {})}
    has = {"cpu": f"{node.cpu}m", "memory": f"{node.memory}Mi", "pods": _MAX_PODS}
    metadata = {"name": node.name, "labels": labels}
    objects: list[Raw] = [{"apiVersion": "v1", "kind": "Node", "metadata": metadata, "status": {"allocatable": has}}]
    if node.gpus:
        memory = f"{(memory_of(node.model) or _OTHER_MEMORY) // _MIB}Mi"
        amounts = {"gpu-core": "100", "gpu-memory": memory, "gpu-memory-ratio": "100"}
        resources = {f"kubernetes.io/{tail}": amount for tail, amount in amounts.items()}
        devices = [
            {"type": "gpu", "id": f"{node.name}-gpu-{minor}", "minor": minor, "health": True, "resources": resources}
            for minor in range(node.gpus)
        ]
        meta = {"name": node.name, "labels": {MODEL_LABEL: node.model}}
        objects.append(
            {"apiVersion": DEVICES.api_version, "kind": "Device", "metadata": meta, "spec": {"devices": devices}}
        )
    return objects


def pod_object(pod: TracePod) -> Raw:
    """A Pod as its author would write it: whole GPUs as `nvidia.com/gpu`, parts in percent, models as node affinity."""
    ask = pod.ask
    limits = {"cpu": f"{ask.cpu}m", "memory": f"{ask.memory}Mi"}
    if ask.milli == WHOLE:
        limits["nvidia.com/gpu"] = str(ask.gpus)
    elif ask.gpus:
        part = str(percent(ask.milli) * ask.gpus)
        shared = {"koordinator.sh/gpu.shared": str(ask.gpus)} if ask.gpus > 1 else {}
        limits |= {**shared, "koordinator.sh/gpu-core": part, "koordinator.sh/gpu-memory-ratio": part}
    container = {"name": "main", "image": "trace", "resources": {"requests": limits, "limits": limits}}
    spec: Raw = {"containers": [container]}
    if ask.models:
        term = {"matchExpressions": [{"key": MODEL_LABEL, "operator": "In", "values": list(ask.models)}]}
        required = {"nodeSelectorTerms": [term]}
        spec["affinity"] = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": pod.name, "namespace": "default"}, "spec": spec}


def mix_of_trace(pods: Iterable[TracePod]) -> Mix:
    """The typical Pods of the FGD paper: the commonest requests (memory left out), until they make up 95 % of all."""
    counted = Counter(pod.ask._replace(memory=0) for pod in pods)
    typical, found = [], 0
    for ask, number in sorted(counted.items(), key=lambda each: (-each[1], each[0])):
        if found * 100 >= counted.total() * TYPICAL_PERCENT:
            break
        typical.append(_typical(ask, number))
        found += number
    return mix_of(typical)


def _typical(ask: TraceAsk, weight: int) -> TypicalRequest:
    if not ask.gpus:
        return TypicalRequest(ask.cpu, 0, weight=weight)
    kind, part = BUILT_IN.by_name[TYPE_GPU], percent(ask.milli)
    amounts = tuple(part if is_percent else None for is_percent in kind.percent)
    return TypicalRequest(ask.cpu, 0, DeviceAsk(kind, ask.gpus, amounts), ask.models, weight)
