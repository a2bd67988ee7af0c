"""Resident memory of one webhook replica in a large cluster: 5,000 nodes of 8 GPUs, 50,000 Pods.

A real `koordgate serve webhook` lists all objects from an API server in this process and becomes ready. It then
judges all nodes for Pods of several kinds, as a scheduler requests. The value is its resident memory after that
(VmRSS).
"""

import argparse
import asyncio
import contextlib
import hashlib
import json
import os
import re
import sys
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import aiohttp
import yaml
from aiohttp import web
from result import close

from allocator.vocabulary.asks import Preference
from allocator.vocabulary.devicetype import FULL
from allocator.vocabulary.holdings import Holding, Share
from allocator.vocabulary.names import GPU_CORE, GPU_MEMORY, GPU_MEMORY_RATIO, KOORD_SCHEDULER, TYPE_GPU
from allocator.wire.nodeallocation import write_spec
from allocator.wire.podallocated import write_annotations
from koordgate.kube.resource import (
    DEVICES,
    MUTATING_WEBHOOKS,
    NODE_ALLOCATIONS,
    NODES,
    PODS,
    VALIDATING_WEBHOOKS,
    Resource,
)
from localplane.process import free_port
from webhook.admission.translate import TranslationPolicy, translate

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from fake_kube import FakeKube, Raw, Where

REFERENCE_MB = 300
GPUS = 8
GPU_BYTES = 80 * 2**30
DEVICE_PODS_A_NODE = 4
SINCE = 1_760_000_000
MODELS = ("NVIDIA-H100-80GB-HBM3", "NVIDIA-A100-SXM4-80GB")
POLICY = TranslationPolicy("kubernetes.io")
READY_WITHIN_S = 300.0
ENDED_WITHIN_S = 20.0
QUIET_S = 3.0


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


# The cluster. Objects are made when they are requested, the same ones each time.


def uid_of(*parts: object) -> str:
    return str(uuid.UUID(bytes=hashlib.md5(repr(parts).encode(), usedforsecurity=False).digest()))


def gpu_id(node: int, minor: int) -> str:
    return f"GPU-{uid_of('gpu', node, minor)}"


def node_name(number: int) -> str:
    return f"gpu-pool-{number % 7}-node-{number:05d}.example.com"


def node(number: int) -> Raw:
    """A Node with labels and status as in a cloud."""
    name, zone = node_name(number), f"region-1{'abc'[number % 3]}"
    labels = {
        "beta.kubernetes.io/arch": "amd64",
        "beta.kubernetes.io/os": "linux",
        "kubernetes.io/arch": "amd64",
        "kubernetes.io/os": "linux",
        "kubernetes.io/hostname": name,
        "node.kubernetes.io/instance-type": "gpu.8xlarge",
        "topology.kubernetes.io/region": "region-1",
        "topology.kubernetes.io/zone": zone,
        "failure-domain.beta.kubernetes.io/region": "region-1",
        "failure-domain.beta.kubernetes.io/zone": zone,
        "node.koordinator.sh/gpu-model": MODELS[number % len(MODELS)],
        "nvidia.com/gpu.count": str(GPUS),
        "nvidia.com/gpu.memory": "81559",
        "example.com/pool": f"gpu-pool-{number % 7}",
        "example.com/rack": f"rack-{number // 8}",
    }
    capacity = {"cpu": "192", "memory": "2113455264Ki", "pods": "110", "ephemeral-storage": "3750Gi"}
    images = [
        {
            "names": [
                f"registry.example.com/team-{i}/model@sha256:{hashlib.sha256(bytes([i])).hexdigest()}",
                f"registry.example.com/team-{i}/model:v1.{i}.0",
            ],
            "sizeBytes": 9_000_000_000 + i,
        }
        for i in range(30)
    ]
    conditions = [
        {
            "type": kind,
            "status": "False",
            "lastHeartbeatTime": "2026-01-01T00:00:00Z",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
            "reason": f"Kubelet{kind}",
            "message": f"kubelet has no {kind}",
        }
        for kind in ("MemoryPressure", "DiskPressure", "PIDPressure", "Ready")
    ]
    return {
        "metadata": {**metadata(NODES, name), "labels": labels},
        "spec": {"podCIDR": f"10.{number // 256}.{number % 256}.0/24", "providerID": f"cloud:///{uid_of(name)}"},
        "status": {"capacity": capacity, "allocatable": capacity, "images": images, "conditions": conditions},
    }


def metadata(resource: Resource, name: str, namespace: str | None = None, uid: str | None = None) -> Raw:
    made = {
        "name": name,
        "uid": uid or uid_of(resource.plural, namespace, name),
        "resourceVersion": str(1_000_000_000 + len(name)),
        "creationTimestamp": "2026-01-01T00:00:00Z",
    }
    return {**made, "namespace": namespace} if namespace else made


def device(number: int) -> Raw:
    labels = {"node.koordinator.sh/gpu-model": MODELS[number % len(MODELS)]}
    resources = {
        "koordinator.sh/gpu-core": "100",
        "koordinator.sh/gpu-memory": "80Gi",
        "koordinator.sh/gpu-memory-ratio": "100",
    }
    entries = [
        {
            "type": "gpu",
            "id": gpu_id(number, minor),
            "minor": minor,
            "health": True,
            "resources": resources,
            "topology": {
                "socketID": minor // 4,
                "nodeID": minor // 4,
                "pcieID": f"pci0000:{minor // 2:02x}",
                "busID": f"0000:{minor:02x}:00.0",
            },
        }
        for minor in range(GPUS)
    ]
    return {"metadata": {**metadata(DEVICES, node_name(number)), "labels": labels}, "spec": {"devices": entries}}


def asked(number: int) -> tuple[int, tuple[int, ...]]:
    """What a device Pod holds on its node: percent of each card, and the minors; four Pods share a node."""
    at, slot = divmod(number, DEVICE_PODS_A_NODE)
    if at % 5 == 0:  # a node that is full
        return FULL, (2 * slot, 2 * slot + 1)
    return ((50, (0,)), (50, (0,)), (FULL, (1,)), (FULL, (2, 3)))[slot]


def pod_of(number: int) -> tuple[str, str]:
    """Namespace and name."""
    return f"team-{number % 40}", f"train-{number // 8}-{uid_of('pod', number)[:5]}-{number % 8}"


def holding(number: int) -> Holding:
    namespace, name = pod_of(number)
    percent, minors = asked(number)
    amounts = {GPU_CORE: percent, GPU_MEMORY: GPU_BYTES * percent // FULL, GPU_MEMORY_RATIO: percent}
    shares = tuple(
        Share(TYPE_GPU, gpu_id(number // DEVICE_PODS_A_NODE, minor), minor, amounts, ("train",)) for minor in minors
    )
    return Holding(uid_of(PODS.plural, namespace, name), namespace, name, SINCE + number, shares)


def allocation(number: int) -> Raw:
    first = number * DEVICE_PODS_A_NODE
    holdings = [holding(each) for each in range(first, first + DEVICE_PODS_A_NODE)]
    return {"metadata": metadata(NODE_ALLOCATIONS, node_name(number)), "spec": write_spec(holdings)}


def plain_pod(number: int, nodes: int) -> Raw:
    """A running Pod of some 3 KB."""
    namespace, name = pod_of(number)
    amounts = {"cpu": "500m", "memory": "1Gi"}
    token = f"kube-api-access-{uid_of(number)[:5]}"
    container = {
        "name": "train",
        "image": "registry.example.com/team/train:1",
        "args": ["--epochs", "3"],
        "env": [{"name": f"SETTING_{each}", "value": f"value-{number}-{each}"} for each in range(10)],
        "resources": {"requests": amounts, "limits": amounts},
        "volumeMounts": [
            {"name": token, "readOnly": True, "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"}
        ],
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
        "imagePullPolicy": "IfNotPresent",
    }
    conditions = [
        {"type": kind, "status": "True", "lastProbeTime": None, "lastTransitionTime": "2026-01-01T00:00:00Z"}
        for kind in ("Initialized", "Ready", "ContainersReady", "PodScheduled")
    ]
    status = {
        "name": "train",
        "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}},
        "ready": True,
        "restartCount": 0,
        "image": container["image"],
        "imageID": f"registry.example.com/team/train@sha256:{hashlib.sha256(b'train').hexdigest()}",
        "containerID": f"containerd://{hashlib.sha256(name.encode()).hexdigest()}",
    }
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": name[:-2], "uid": uid_of("job", name), "controller": True}
    return {
        "metadata": {
            **metadata(PODS, name, namespace),
            "labels": {"app": f"train-{number // 8}", "job-name": name[:-2], "controller-uid": uid_of("job", name)},
            "annotations": {"example.com/checksum": hashlib.sha256(name.encode()).hexdigest()},
            "ownerReferences": [owner],
        },
        "spec": {
            "containers": [container],
            "volumes": [
                {"name": token, "projected": {"sources": [{"serviceAccountToken": {"expirationSeconds": 3607}}]}}
            ],
            "restartPolicy": "Never",
            "nodeName": node_name(number % nodes),
            "schedulerName": "default-scheduler",
            "serviceAccountName": "default",
            "tolerations": [
                {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
                for key in ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
            ],
        },
        "status": {
            "phase": "Running",
            "podIP": f"10.{number // 65536}.{number // 256 % 256}.{number % 256}",
            "conditions": conditions,
            "containerStatuses": [status],
        },
    }


def pod(number: int, nodes: int) -> Raw:
    """A Pod; the first four of each node hold devices, bound as koordgate binds them."""
    made = plain_pod(number, nodes)
    if number >= nodes * DEVICE_PODS_A_NODE:
        return made
    percent, minors = asked(number)
    resources = made["spec"]["containers"][0]["resources"]
    amounts = {**resources["limits"], "kubernetes.io/gpu": str(percent * len(minors))}
    resources |= {"requests": dict(amounts), "limits": dict(amounts)}
    for operation in translate(made, POLICY, GPU_BYTES).operations:
        apply(made, operation)
    made["spec"]["nodeName"] = node_name(number // DEVICE_PODS_A_NODE)
    made["metadata"]["annotations"] |= write_annotations(holding(number).shares, POLICY.domain)
    return made


def apply(obj: Any, operation: Mapping[str, Any]) -> None:
    """Apply an operation of a JSON Patch that translations use; jsonpatch would take minutes for 20,000 Pods."""
    *path, last = (
        part.replace("~1", "/").replace("~0", "~") for part in operation["path"].removeprefix("/").split("/")
    )
    for part in path:
        obj = obj[int(part)] if isinstance(obj, list) else obj[part]
    if isinstance(obj, list):
        obj.insert(int(last), operation["value"])
    elif operation["op"] == "remove":
        del obj[last]
    else:
        obj[last] = operation["value"]


class LargeCluster(FakeKube):
    """An API server that makes large collections page by page; everything else is stored as in tests."""

    def __init__(self, nodes: int, pods: int) -> None:
        super().__init__()
        self.bytes: dict[str, int] = {}
        self._large: dict[tuple[str, str], tuple[int, Callable[[int], Raw]]] = {
            (NODES.group, NODES.plural): (nodes, node),
            (DEVICES.group, DEVICES.plural): (nodes, device),
            (NODE_ALLOCATIONS.group, NODE_ALLOCATIONS.plural): (nodes, allocation),
            (PODS.group, PODS.plural): (pods, lambda number: pod(number, nodes)),
        }

    def _perform(self, verb: str, where: Where, http: web.Request, body: Any) -> Raw:
        if verb != "list" or where.kind not in self._large:
            return super()._perform(verb, where, http, body)
        total, make = self._large[where.kind]
        start = int(http.query.get("continue") or 0)
        end = min(total, start + int(http.query.get("limit") or total))
        about = {"resourceVersion": str(self.revision), **({"continue": str(end)} if end < total else {})}
        answer = {"kind": "List", "metadata": about, "items": [make(number) for number in range(start, end)]}
        self.bytes[where.plural] = self.bytes.get(where.plural, 0) + len(json.dumps(answer["items"]))
        return answer


# The replica


@contextlib.asynccontextmanager
async def replica(
    server: str, workdir: Path, port: int, extender: int, preference: str
) -> AsyncIterator[asyncio.subprocess.Process]:
    """A replica against this API server, by default but for addresses, and asking for no certificate."""
    kubeconfig = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "bench", "cluster": {"server": server}}],
        "users": [{"name": "bench", "user": {}}],
        "contexts": [{"name": "bench", "context": {"cluster": "bench", "user": "bench"}}],
        "current-context": "bench",
    }
    config = {
        "serve": {"host": "127.0.0.1", "port": port, "extenderPort": extender, "shutdownDelaySeconds": 0},
        "scheduler": {"clientCertificates": False, "preference": preference},
        "certificate": {"ipAddresses": ["127.0.0.1"]},
        "logLevel": "warning",
    }
    (workdir / "kubeconfig").write_text(yaml.safe_dump(kubeconfig))
    (workdir / "config.yaml").write_text(yaml.safe_dump(config))
    environment = {k: v for k, v in os.environ.items() if not k.startswith("KUBERNETES_SERVICE_")}
    process = await asyncio.create_subprocess_exec(
        Path(sys.executable).parent / "koordgate",
        *("serve", "webhook"),
        "--config",
        workdir / "config.yaml",
        env={**environment, "KUBECONFIG": str(workdir / "kubeconfig")},
        stdout=sys.stderr,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.terminate()
            try:
                await asyncio.wait_for(process.wait(), ENDED_WITHIN_S)
            except TimeoutError:
                process.kill()
                await process.wait()


async def ready(process: asyncio.subprocess.Process, session: aiohttp.ClientSession, url: str) -> None:
    shown = ""
    deadline = time.monotonic() + READY_WITHIN_S
    while process.returncode is None:
        with contextlib.suppress(aiohttp.ClientConnectionError):
            async with session.get(f"{url}/readyz") as answer:
                text = (await answer.text()).strip()
                if answer.status == 200:
                    return
                if text != shown:
                    shown = text
                    say(f"  waiting: {text.splitlines()[0]}" + f" (and {text.count(chr(10))} more)" * ("\n" in text))
        if time.monotonic() > deadline:
            raise TimeoutError(f"not ready within {READY_WITHIN_S:.0f} s: {shown or 'does not answer'}")
        await asyncio.sleep(0.25)
    raise RuntimeError(f"the webhook ended with {process.returncode}")


async def judge_all(session: aiohttp.ClientSession, url: str, nodes: int, kinds: int) -> None:
    """Ask about all nodes for this number of kinds of Pods, as a scheduler does."""
    names = [node_name(number) for number in range(nodes)]
    for kind in range(kinds):
        amounts = {"kubernetes.io/gpu-core": str(1 + kind % FULL), "kubernetes.io/gpu-memory": f"{1 + kind % 64}Gi"}
        container = {"name": f"main-{kind}", "resources": {"requests": amounts, "limits": amounts}}
        waiting = {
            "metadata": metadata(PODS, f"waiting-{kind}", "team-0"),
            "spec": {"containers": [container], "schedulerName": KOORD_SCHEDULER},
        }
        for _ in range(2):  # the second is answered from memory
            async with session.post(f"{url}/scheduler/filter", json={"Pod": waiting, "NodeNames": names}) as answer:
                found = await answer.json(content_type=None)
                if answer.status != 200 or found.get("Error") or not found["NodeNames"]:
                    raise RuntimeError(f"filter failed: {answer.status} {str(found)[:300]}")


def memory(pid: int) -> dict[str, float]:
    """MB (2^20 bytes) of a process by /proc: VmRSS, VmHWM and the like."""
    text = Path(f"/proc/{pid}/status").read_text()
    return {key: int(kilobytes) / 1024 for key, kilobytes in re.findall(r"^(\w+):\s+(\d+) kB$", text, re.MULTILINE)}


def tell_memory(when: str, found: Mapping[str, float]) -> None:
    say(f"  {when}: {found['VmRSS']:.0f} MB resident, {found['VmHWM']:.0f} MB at the peak")


async def measure(nodes: int, pods: int, kinds: int, preference: str) -> float:
    with tempfile.TemporaryDirectory() as directory:
        async with LargeCluster(nodes, pods) as server:
            for resource in (MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS):
                webhooks = [{"name": "pods.koordgate.io", "clientConfig": {"service": {"name": "koordgate"}}}]
                server.put(resource.path(), {"metadata": {"name": "koordgate"}, "webhooks": webhooks})
            port, extender = free_port(), free_port()
            url = f"https://127.0.0.1:{port}"
            connector = aiohttp.TCPConnector(ssl=False)
            async with (
                replica(server.url, Path(directory), port, extender, preference) as process,
                aiohttp.ClientSession(connector=connector) as session,
            ):
                began = time.monotonic()
                await ready(process, session, url)
                listed = ", ".join(f"{plural} {size / 2**20:.0f} MB" for plural, size in server.bytes.items())
                say(f"  ready after {time.monotonic() - began:.1f} s; listed as JSON: {listed}")
                tell_memory("at ready", memory(process.pid))
                await judge_all(session, f"https://127.0.0.1:{extender}", nodes, kinds)
                await asyncio.sleep(QUIET_S)
                after = memory(process.pid)
                tell_memory(f"all nodes judged for {kinds} kinds of Pods", after)
                return after["VmRSS"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--pods", type=int, default=50_000, help="four a node hold devices, the rest are plain")
    parser.add_argument("--kinds", type=int, default=60, help="different requests that all nodes are judged for")
    parser.add_argument("--preference", choices=[way.value for way in Preference], default="packing")
    arguments = parser.parse_args()
    if not Path("/proc/self/status").exists():
        parser.error("memory is read from /proc, which only Linux has")
    if arguments.nodes * DEVICE_PODS_A_NODE > arguments.pods:
        parser.error(f"--pods must be at least {DEVICE_PODS_A_NODE} per node")
    say(f"one replica, {arguments.nodes} nodes of {GPUS} GPUs, {arguments.pods} Pods:")
    value = asyncio.run(measure(arguments.nodes, arguments.pods, arguments.kinds, arguments.preference))
    close(name="memory", value=value, unit="MB", reference=REFERENCE_MB, goal=1.0, higher_is_better=False)


if __name__ == "__main__":
    main()
