"""Processor seconds of `koordgate simulate` for 100,000 Pods on 5,000 nodes, as a process of its own.

The nodes have eight GPUs each, which a device plugin states, as `kubectl get -o yaml` prints them. Of the Pods a part
runs already, a part is in the input one by one, and workloads create the others. A quarter ask for no device; the
last do not fit anywhere. The value is the user and system time of the process: on a quiet machine it is the time that a
user waits. The greatest resident memory is reported beside it.
"""

import argparse
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import yaml
from result import close

Raw = dict[str, Any]

SEED = 16
GPUS = 8
LIMIT_S = 180.0
NAMESPACES = 40
REPLICAS = (1, 2, 3, 8, 20, 64, 200)
RUNNING, SINGLE = 20, 5  # one of so many Pods runs already, or is in the input by itself
ASKS: tuple[tuple[float, dict[str, str]], ...] = (
    (25, {"cpu": "500m", "memory": "1Gi"}),
    (21, {"cpu": "1", "memory": "4Gi", "kubernetes.io/gpu": "50"}),
    (21, {"cpu": "1", "memory": "4Gi", "kubernetes.io/gpu": "25"}),
    (20, {"cpu": "1", "memory": "4Gi", "kubernetes.io/gpu-core": "30", "kubernetes.io/gpu-memory": "10Gi"}),
    (7, {"cpu": "4", "memory": "16Gi", "nvidia.com/gpu": "1"}),
    (2, {"cpu": "8", "memory": "32Gi", "nvidia.com/gpu": "2"}),
    (3, {"cpu": "2", "memory": "8Gi", "nvidia.com/gpu": "1", "nvidia.com/gpumem": "8000"}),
    (0.5, {"cpu": "16", "memory": "64Gi", "nvidia.com/gpu": "8"}),
)


def nodes(count: int) -> Iterator[Raw]:
    """Nodes as a cloud provider and NVIDIA's operator describe them."""
    for number in range(count):
        has = {"cpu": "96", "memory": "786432Mi", "pods": "110", "ephemeral-storage": "500Gi", "nvidia.com/gpu": "8"}
        yield {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {
                "name": f"gpu-node-{number:05d}",
                "uid": f"00000000-0000-4000-8000-{number:012d}",
                "creationTimestamp": "2026-01-01T00:00:00Z",
                "resourceVersion": str(number),
                "labels": {
                    "kubernetes.io/arch": "amd64",
                    "kubernetes.io/hostname": f"gpu-node-{number:05d}",
                    "node.kubernetes.io/instance-type": "gpu.8xlarge",
                    "topology.kubernetes.io/zone": f"zone-{number % 3}",
                    "nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB",
                    "nvidia.com/gpu.memory": "81920",
                    "nvidia.com/gpu.count": str(GPUS),
                },
            },
            "spec": {"podCIDR": f"10.{number >> 8}.{number & 255}.0/24", "providerID": f"cloud:///{number}"},
            "status": {
                "allocatable": has,
                "capacity": has,
                "conditions": [
                    {"type": kind, "status": status, "lastHeartbeatTime": "2026-01-02T00:00:00Z", "reason": "Kubelet"}
                    for kind, status in (("MemoryPressure", "False"), ("DiskPressure", "False"), ("Ready", "True"))
                ],
                "images": [{"names": [f"registry.example.com/image-{image}:1"], "sizeBytes": 1} for image in range(10)],
            },
        }


def template(number: int, asks: dict[str, str]) -> Raw:
    """A Pod template as people write one."""
    return {
        "metadata": {"labels": {"app": f"app-{number}", "team": f"team-{number % NAMESPACES}"}},
        "spec": {
            "containers": [
                {
                    "name": "main",
                    "image": f"registry.example.com/app-{number}:1",
                    "args": ["--port=8080", f"--model=/models/{number}"],
                    "env": [{"name": f"SETTING_{index}", "value": f"value-{index}"} for index in range(4)],
                    "ports": [{"containerPort": 8080, "name": "http"}],
                    "resources": {"limits": asks},
                    "readinessProbe": {"httpGet": {"path": "/ready", "port": "http"}, "periodSeconds": 10},
                }
            ],
        },
    }


def workloads(count: int, chance: random.Random, on: int) -> Iterator[Raw]:
    """Deployments and Jobs with as many Pods in sum, and Pods alone; the first of them run."""
    running = count // RUNNING
    for number in range(running):
        made = pod(number, template(number % 50, {"cpu": "1", "memory": "2Gi", "nvidia.com/gpu": "1"}))
        yield {
            **made,
            "spec": {**made["spec"], "nodeName": f"gpu-node-{number % on:05d}"},
            "status": {"phase": "Running"},
        }
    left, number = count - running, running
    alone = count // SINGLE
    weights = [weight for weight, _ in ASKS]
    while left:
        asks = chance.choices(ASKS, weights)[0][1]
        if alone:
            yield pod(number, template(number % 1000, asks))
            alone, left, number = alone - 1, left - 1, number + 1
            continue
        replicas = min(chance.choice(REPLICAS), left)
        metadata = {"name": f"app-{number}", "namespace": f"team-{number % NAMESPACES}"}
        if number % 3:
            spec = {"replicas": replicas, "selector": {"matchLabels": {"app": f"app-{number}"}}}
            yield {
                "apiVersion": "apps/v1",
                "kind": "Deployment",
                "metadata": metadata,
                "spec": {**spec, "template": template(number, asks)},
            }
        else:
            made = template(number, asks)
            made["spec"]["restartPolicy"] = "Never"
            spec = {"parallelism": replicas, "completions": replicas, "template": made}
            yield {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec}
        left, number = left - replicas, number + 1


def pod(number: int, made_of: Raw) -> Raw:
    """A Pod by itself, with what an API server adds."""
    metadata = {
        **made_of["metadata"],
        "name": f"pod-{number}",
        "namespace": f"team-{number % NAMESPACES}",
        "uid": f"00000000-0000-4000-9000-{number:012d}",
        "managedFields": [
            {"manager": "kubectl", "operation": "Update", "fieldsV1": {"f:spec": {"f:containers": {".": {}}}}}
        ],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": made_of["spec"]}


def write(folder: Path, count: int, on: int, form: str) -> list[Path]:
    """Write the input; returns its files."""
    chance = random.Random(SEED)
    paths = []
    for name, items in (("nodes", list(nodes(on))), ("pods", list(workloads(count, chance, on)))):
        path = folder / f"{name}.{form}"
        listed = {"apiVersion": "v1", "kind": "List", "items": items}
        if form == "json":
            path.write_bytes(orjson.dumps(listed))
        else:
            plain = orjson.loads(orjson.dumps(listed))  # without shared parts, which would become anchors
            with path.open("w", encoding="utf-8") as file:
                yaml.dump(plain, file, yaml.CSafeDumper, sort_keys=False)
        paths.append(path)
    return paths


def measure(paths: list[Path]) -> tuple[float, float, float, str]:
    """Run the command; returns processor seconds, seconds, MB of memory, and the last line that it printed."""
    command = [sys.executable, "-m", "koordgate", "simulate", *(part for path in paths for part in ("-f", str(path)))]
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise SystemExit(done.stderr)
    used = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    return used, wall, after.ru_maxrss / 1024, done.stdout.strip().rpartition("\n")[2]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pods", type=int, default=100_000)
    parser.add_argument("--nodes", type=int, default=5_000)
    parser.add_argument("--form", choices=("yaml", "json"), default="yaml")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="write the input there, and leave it")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        at = arguments.keep or Path(folder)
        at.mkdir(parents=True, exist_ok=True)
        paths = write(at, arguments.pods, arguments.nodes, arguments.form)
        size = sum(path.stat().st_size for path in paths) / 1e6
        print(f"{size:.0f} MB of {arguments.form}", file=sys.stderr, flush=True)
        used, wall, memory, last = measure(paths)
    print(f"{last}\n{wall:.0f} s, of which {used:.0f} s of processor time; {memory:.0f} MB", file=sys.stderr)
    close(name="simulate", value=used, unit="s", reference=LIMIT_S, goal=1.0, higher_is_better=False)


if __name__ == "__main__":
    main()
