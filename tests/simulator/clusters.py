"""Small clusters as Kubernetes objects, and runs of the command line on them."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
from builders import GIB, container, device_entry, device_object, pod
from machines_cpu import build, siblings_far

from allocator.wire.nodetopology import NodeTopology, NumaZone, write_node_topology
from koordgate.cli import main

Raw = dict[str, Any]
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
ALLOCATED = "scheduling.koordinator.sh/device-allocated"
STATUS = "scheduling.koordinator.sh/resource-status"
QOS = "koordinator.sh/qosClass"


def node(
    name: str = "node-1",
    *,
    cpu: str = "64",
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    **spec: Any,
) -> Raw:
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": dict(labels or {}), "annotations": dict(annotations or {})},
        "spec": spec,
        "status": {"allocatable": {"cpu": cpu, "memory": "256Gi", "pods": "110"}},
    }


def device(name: str = "node-1", cards: int = 2, memory: str = "80Gi", **fields: Any) -> Raw:
    entries = [device_entry(minor, memory, id=f"GPU-{name}-{minor}", **fields) for minor in range(cards)]
    return device_object(*entries, name=name)


def machine(name: str = "node-1", cards: int = 2, **fields: Any) -> list[Raw]:
    return [node(name, **fields), device(name, cards)]


def topology(name: str = "node-1", *, nodes: int = 2, cores: int = 4, **fields: Any) -> Raw:
    """CPUs of a node: sockets of one NUMA node each; the threads of a core are CPU k and CPU k + half of all."""
    zones = {at: NumaZone(amounts := {"cpu": cores * 2000, "memory": 64 * GIB}, amounts) for at in range(nodes)}
    cpus = build(nodes, 1, cores, 2, siblings_far)
    return write_node_topology(NodeTopology(name, cpus, **{"zones": zones, **fields}))


def nic(minor: int, functions: int = 2, **fields: Any) -> Raw:
    """An RDMA device as a Device object lists it."""
    bus = f"0000:1{minor}:00"
    return {
        "type": "rdma",
        "id": f"{bus}.0",
        "minor": minor,
        "health": True,
        "resources": {"koordinator.sh/rdma": "100"},
        "vfGroups": [{"vfs": [{"minor": n, "busID": f"{bus}.{n + 1}"} for n in range(functions)]}],
        **fields,
    }


def pinned(name: str, cpus: int, qos: str = "LSR", amounts: Mapping[str, Any] | None = None, **fields: Any) -> Raw:
    """A Pod that asks for CPUs of its own."""
    stated = {"cpu": str(cpus), **(amounts or {})}
    made = pod(container(requests=stated, limits=stated), name=name, labels={QOS: qos}, **fields)
    del made["metadata"]["uid"]
    return made


def asking(name: str, amounts: Mapping[str, Any] | None = None, **fields: Any) -> Raw:
    """A Pod of one container with this request; without a UID, as an author writes it."""
    made = pod(container(requests=dict(amounts or {})), name=name, **fields)
    del made["metadata"]["uid"]
    return made


def gpus(name: str, percent: int, **fields: Any) -> Raw:
    return asking(name, {"kubernetes.io/gpu": str(percent)}, **fields)


def held(name: str, on: str, *shares: tuple[int, int], phase: str = "Running", **fields: Any) -> Raw:
    """A Pod that runs on a node and states that it holds (minor, percent) of its cards."""
    entries = [
        {
            "minor": minor,
            "id": f"GPU-{on}-{minor}",
            "resources": {
                "koordinator.sh/gpu-core": str(percent),
                "koordinator.sh/gpu-memory": f"{80 * percent // 100}Gi",
                "koordinator.sh/gpu-memory-ratio": str(percent),
            },
        }
        for minor, percent in shares
    ]
    annotations = {ALLOCATED: json.dumps({"gpu": entries})}
    made = asking(name, annotations=annotations, nodeName=on, schedulerName="koord-scheduler", **fields)
    return {**made, "status": {"phase": phase}}


def saved(folder: Path, objects: Iterable[Mapping[str, Any]], name: str = "objects.json") -> str:
    path = folder / name
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)}))
    return str(path)


def listed(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Raw]:
    """Run `koordgate simulate -o json`: the Pods by name."""
    capsys.readouterr()
    assert main(["simulate", *arguments, "-o", "json"]) == 0
    return {item["metadata"]["name"]: item for item in json.loads(capsys.readouterr().out)["items"]}
