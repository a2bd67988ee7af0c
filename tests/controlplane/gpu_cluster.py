"""Nodes with devices and CPUs, and Pods, on a real API server; auditors that share no code with the tested parts."""

import asyncio
import contextlib
import itertools
import json
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from localplane.admin import AdminClient, ApiError, JsonObject
from localplane.koord import NAME, start_koord_scheduler
from localplane.plane import ControlPlane
from localplane.replicas import Replicas
from localplane.waiting import NotInTimeError, until

GIB = 2**30
HOME = "koordgate.test/home"  # label of a test's nodes, which its Pods select
DEVICES = "/apis/scheduling.koordinator.sh/v1alpha1/devices"
ALLOCATIONS = "/apis/koordgate.io/v1alpha1/nodeallocations"
# Assumed placements expire only after a time that no test reaches: a waiting Pod must be woken by a release.
WOKEN: Mapping[str, Any] = {"scheduler": {"assumeSeconds": 600}}
DEVICE_ALLOCATED = "scheduling.koordinator.sh/device-allocated"


def uuid_of(node: str, minor: int) -> str:
    return f"GPU-{node}-{minor}"


async def add_gpu_node(
    plane: ControlPlane, admin: AdminClient, name: str, gpus: int, gib: int = 80, domain: str = "kubernetes.io"
) -> None:
    capacity = {
        "cpu": "128",
        "memory": "1Ti",
        "pods": "250",
        f"{domain}/gpu-core": str(100 * gpus),
        f"{domain}/gpu-memory-ratio": str(100 * gpus),
        f"{domain}/gpu-memory": f"{gib * gpus}Gi",
    }
    device = {
        "apiVersion": "scheduling.koordinator.sh/v1alpha1",
        "kind": "Device",
        "metadata": {"name": name},
        "spec": {
            "devices": [
                {
                    "type": "gpu",
                    "id": uuid_of(name, minor),
                    "minor": minor,
                    "health": True,
                    "resources": {
                        f"{domain}/gpu-core": "100",
                        f"{domain}/gpu-memory-ratio": "100",
                        f"{domain}/gpu-memory": f"{gib}Gi",
                    },
                }
                for minor in range(gpus)
            ]
        },
    }
    await admin.apply(device)
    await plane.add_node(name, capacity)


def pod(name: str, namespace: str, asks: dict[str, str], **spec: Any) -> JsonObject:
    container = {"name": "main", "image": "none", "resources": {"requests": asks, "limits": asks}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"containers": [container], "terminationGracePeriodSeconds": 0, **spec},
    }


def pods_path(namespace: str, name: str = "", subresource: str = "") -> str:
    return "/".join(filter(None, (f"/api/v1/namespaces/{namespace}/pods", name, subresource)))


def binding(namespace: str, name: str, node: str, uid: str | None = None) -> JsonObject:
    metadata = {"name": name, "namespace": namespace}
    if uid is not None:
        metadata["uid"] = uid
    target = {"apiVersion": "v1", "kind": "Node", "name": node}
    return {"apiVersion": "v1", "kind": "Binding", "metadata": metadata, "target": target}


def allocated(found: JsonObject) -> list[JsonObject]:
    listed: list[JsonObject] = json.loads(found["metadata"]["annotations"][DEVICE_ALLOCATED])["gpu"]
    return listed


async def refusal(request: Awaitable[JsonObject]) -> str:
    """The name of the ValidatingAdmissionPolicy that refused a request; empty if it passed."""
    try:
        await request
    except ApiError as error:
        found = error.message.partition("ValidatingAdmissionPolicy '")[2].partition("'")[0]
        if found:
            return found
        raise
    return ""


async def audit(admin: AdminClient) -> dict[str, dict[str, int]]:
    """Count what is held of each GPU, from the annotations of live Pods alone; fail if it is more than the GPU has."""
    used: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for found in await admin.items("/api/v1/pods"):
        annotations = found["metadata"].get("annotations") or {}
        if DEVICE_ALLOCATED not in annotations or found.get("status", {}).get("phase") in {"Succeeded", "Failed"}:
            continue
        shares = allocated(found)
        assert len({share["id"] for share in shares}) == len(shares), f"{found['metadata']['name']} has one GPU twice"
        for share in shares:
            assert share["id"].startswith(f"GPU-{found['spec']['nodeName']}-"), "a GPU of another node"
            for name, amount in share["resources"].items():
                if not name.endswith("/gpu-memory"):
                    used[share["id"]][name.rpartition("/")[2]] += int(amount)
    over = {gpu: dict(sums) for gpu, sums in used.items() if any(amount > 100 for amount in sums.values())}
    assert not over, f"over-allocated: {over}"
    return {gpu: dict(sums) for gpu, sums in used.items()}


async def ledger(admin: AdminClient) -> dict[str, dict[str, list[JsonObject]]]:
    """The ledger: node -> Pod UID -> devices."""
    return {
        record["metadata"]["name"]: {held["uid"]: held["devices"] for held in record["spec"].get("allocations") or ()}
        for record in await admin.items(ALLOCATIONS)
    }


# Nodes with devices of every type


def gpu(node: str, number: int, *, numa: int = 0, root: str = "pci0000:00", gib: int = 80, **said: Any) -> JsonObject:
    """One entry of a Device object; the fields in `said` replace others."""
    resources = {
        "kubernetes.io/gpu-core": "100",
        "kubernetes.io/gpu-memory-ratio": "100",
        "kubernetes.io/gpu-memory": f"{gib}Gi",
    }
    place = {"socketID": numa, "nodeID": numa, "pcieID": root}
    entry = {"type": "gpu", "id": uuid_of(node, number), "minor": number, "health": True}
    return {**entry, "resources": resources, "topology": place, **said}


def nic(minor: int, *, numa: int, root: str, functions: Mapping[str, int]) -> JsonObject:
    """A NIC with these numbers of virtual functions per group; groups are labelled `speed`."""
    groups, number = [], 0
    for speed, count in functions.items():
        numbers = range(number, number + count)
        vfs = [{"minor": one, "busID": f"0000:{minor:02x}:01.{one}"} for one in numbers]
        groups.append({"labels": {"speed": speed}, "vfs": vfs})
        number += count
    return {
        "type": "rdma",
        "id": f"0000:{minor:02x}:00.0",
        "minor": minor,
        "health": True,
        "resources": {"kubernetes.io/rdma": "100"},
        "topology": {"socketID": numa, "nodeID": numa, "pcieID": root},
        "vfGroups": groups,
    }


def fpga(minor: int) -> JsonObject:
    address, resources = f"0000:f{minor:x}:00.0", {"kubernetes.io/fpga": "100"}
    return {"type": "fpga", "id": address, "minor": minor, "health": True, "resources": resources}


def machine(node: str, functions: Mapping[str, int]) -> list[JsonObject]:
    """Two NUMA nodes with two PCIe roots each, two GPUs and a NIC on each root; and two FPGAs."""
    roots = [f"pci0000:{number}0" for number in range(4)]
    gpus = [gpu(node, minor, numa=minor // 4, root=roots[minor // 2]) for minor in range(8)]
    nics = [nic(minor, numa=minor // 2, root=root, functions=functions) for minor, root in enumerate(roots)]
    return [*gpus, *nics, fpga(0), fpga(1)]


def device_object(name: str, entries: Iterable[JsonObject]) -> JsonObject:
    head = {"apiVersion": "scheduling.koordinator.sh/v1alpha1", "kind": "Device", "metadata": {"name": name}}
    return {**head, "spec": {"devices": list(entries)}}


async def add_node(
    plane: ControlPlane, admin: AdminClient, name: str, home: str, entries: Sequence[JsonObject], **labels: str
) -> None:
    """A test's Node, which its Pods select by `home`, and its Device object; the Node reports all listed devices."""
    await admin.apply(device_object(name, entries))
    await plane.add_node(name, capacity_of(entries), labels={HOME: home, "kubernetes.io/hostname": name, **labels})


def capacity_of(entries: Iterable[JsonObject]) -> dict[str, str]:
    """What a Node with these devices reports."""
    capacity: dict[str, int] = defaultdict(int)
    for entry in entries:
        for resource, amount in entry["resources"].items():
            capacity[resource] += max(amount_of(amount), 0)
    return {"cpu": "128", "memory": "1Ti", "pods": "250", **{key: str(value) for key, value in capacity.items()}}


async def remove(admin: AdminClient, namespace: str, nodes: Iterable[str]) -> None:
    """Delete a test's Pods and nodes, so that they do not disturb the next test."""
    await admin.delete(pods_path(namespace), {"gracePeriodSeconds": 0})
    topologies = "/apis/topology.node.k8s.io/v1alpha1/noderesourcetopologies"
    paths = [f"{collection}/{name}" for name in nodes for collection in ("/api/v1/nodes", DEVICES, topologies)]
    for path in paths:
        if await admin.find(path) is not None:
            await admin.delete(path)


@contextlib.asynccontextmanager
async def scheduling(
    plane: ControlPlane,
    installed: list[JsonObject],
    workdir: Path,
    count: int = 2,
    overrides: Mapping[str, Any] | None = WOKEN,
) -> AsyncIterator[Replicas]:
    """Run webhook processes behind the chart's Service, and the chart's scheduler."""
    replicas = await Replicas.installed(plane, installed, workdir, count=count, overrides=overrides)
    async with replicas:
        await start_koord_scheduler(plane, installed, replicas.extender)
        try:
            yield replicas
        finally:
            await plane.stop_scheduler(NAME)


async def bind_at_last(binder: AdminClient, namespace: str, name: str, body: JsonObject, **params: str) -> None:
    """Bind a Pod as kube-scheduler does: again, while the replica that is asked has not seen what makes it possible."""

    async def done() -> bool:
        try:
            await binder.create(pods_path(namespace, name, "binding"), body, **params)
        except ApiError as error:
            if "is not bound:" not in error.message:
                raise
            return False
        return True

    await until(done, f"Pod {namespace}/{name} is bound", poll_s=0.2)


# Pods


def at_home(
    name: str,
    namespace: str,
    asks: dict[str, str],
    *,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, Any] | None = None,
    **spec: Any,
) -> JsonObject:
    """A Pod for the nodes of its own test; annotations that are not text are written as JSON."""
    made = pod(name, namespace, asks, **{"nodeSelector": {HOME: namespace}, **spec})
    told = {key: one if isinstance(one, str) else json.dumps(one) for key, one in (annotations or {}).items()}
    made["metadata"].update(labels=dict(labels or {}), annotations=told)
    return made


async def create(admin: AdminClient, pods: Iterable[JsonObject], at_once: int = 16) -> None:
    gate = asyncio.Semaphore(at_once)

    async def one(made: JsonObject) -> None:
        async with gate:
            await admin.create(pods_path(made["metadata"]["namespace"]), made)

    await asyncio.gather(*map(one, pods))


async def bound(admin: AdminClient, namespace: str, name: str) -> JsonObject:
    """Wait until a Pod is bound; returns it. If it is not bound, the error quotes its conditions and Events."""

    async def is_bound() -> JsonObject | None:
        found = await admin.get(pods_path(namespace, name))
        return found if found["spec"].get("nodeName") else None

    try:
        return await until(is_bound, f"Pod {namespace}/{name} is bound")
    except NotInTimeError as error:
        found = await admin.get(pods_path(namespace, name))
        events = await admin.items(f"/api/v1/namespaces/{namespace}/events")
        told = [f"{event['reason']} ({event.get('count')}): {event['message']}" for event in events]
        raise AssertionError("\n".join([str(error), json.dumps(found["status"]), *told])) from error


def why_waiting(found: JsonObject) -> str:
    """Why kube-scheduler found no node for a Pod; "" if it gives no reason, or the Pod is bound."""
    conditions = found["status"].get("conditions") or ()
    said = (c.get("message", "") for c in conditions if c.get("reason") == "Unschedulable")
    return "" if found["spec"].get("nodeName") else next(said, "")


async def waits(admin: AdminClient, namespace: str, name: str, says: str = "") -> str:
    """Wait until kube-scheduler finds that a Pod fits nowhere, with this in the reason; returns the whole reason.

    The first reason may be another one: a replica, or kube-scheduler, may not have seen a node or a device yet.
    """
    last = ""

    async def told() -> str:
        nonlocal last
        found = await admin.get(pods_path(namespace, name))
        assert not found["spec"].get("nodeName"), f"{name} is bound to {found['spec']['nodeName']}, it was to wait"
        last = why_waiting(found)
        return last if says in last else ""

    try:
        return await until(told, f"Pod {namespace}/{name} is found unschedulable: {says}")
    except NotInTimeError as error:
        raise AssertionError(f"{error}; it was told {last!r}") from error


async def settled(admin: AdminClient, namespace: str, waiting: int | None = None) -> list[JsonObject]:
    """Wait until each Pod is bound or found to fit nowhere; returns those that fit nowhere.

    Args:
        admin: The API server.
        namespace: The Pods' namespace.
        waiting: How many Pods fit nowhere. A Pod that is tried before all have seen its node is bound later.
    """
    last: list[str] = []

    async def all_said() -> list[list[JsonObject]]:
        found = await admin.items(pods_path(namespace))
        left = [one for one in found if not one["spec"].get("nodeName")]
        last[:] = [f"{one['metadata']['name']}: {why_waiting(one)}" for one in left]
        said = all(map(why_waiting, left)) and waiting in {None, len(left)}
        return [left] if said else []

    try:
        (unplaced,) = await until(all_said, "each Pod is bound or found unschedulable", deadline_s=90, poll_s=0.3)
    except NotInTimeError as error:
        raise AssertionError(f"{error}; these wait: {last}") from error
    return unplaced


async def cordon(admin: AdminClient, namespace: str, node: str) -> None:
    """Make a node unschedulable, and wait until koord-scheduler goes by it: an ordinary Pod for this node waits."""
    await admin.patch(f"/api/v1/nodes/{node}", {"spec": {"unschedulable": True}})
    only = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [only]}}}
    numbers = itertools.count()

    async def seen() -> bool:
        name = f"probe-{next(numbers)}"
        about = {"schedulerName": NAME, "affinity": affinity}
        await admin.create(pods_path(namespace), pod(name, namespace, {"cpu": "1m"}, **about))

        async def tried() -> JsonObject | None:
            found = await admin.get(pods_path(namespace, name))
            return found if found["spec"].get("nodeName") or why_waiting(found) else None

        found = await until(tried, "koord-scheduler has tried an ordinary Pod")
        await admin.delete(pods_path(namespace, name), {"gracePeriodSeconds": 0})
        return "unschedulable" in why_waiting(found)

    await until(seen, f"koord-scheduler goes by the cordon of {node}")


async def metric(replicas: Replicas, name: str, **labels: str) -> float:
    """A metric's value, summed over running replicas and unnamed labels."""
    total = 0.0
    running = [url for number, url in enumerate(replicas.urls) if replicas.process(number).alive]
    async with aiohttp.ClientSession() as session:
        for url in running:
            async with session.get(f"{url}/metrics", ssl=False) as answer:
                families = text_string_to_metric_families(await answer.text())
            samples = (sample for family in families for sample in family.samples if sample.name == name)
            total += sum(sample.value for sample in samples if labels.items() <= sample.labels.items())
    return total


async def all_see_held(replicas: Replicas, percent: int) -> None:
    """Wait until each running replica counts this compute as held, in percent of cards, on all nodes together."""
    running = sum(replicas.process(number).alive for number in range(len(replicas.urls)))

    async def seen() -> bool:
        told = await metric(replicas, "koordgate_allocated", type="gpu", resource="gpu-core")
        return told == running * percent

    await until(seen, f"each replica counts {percent} percent as held", poll_s=0.2)


async def refused_binds(replicas: Replicas) -> float:
    """How many Bindings the webhooks have refused so far."""
    return await metric(replicas, "koordgate_requests_total", path="/mutate-binding", outcome="denied")


# An audit of every type of device, by annotations and Device objects alone

_UNITS = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}


def amount_of(text: str) -> int:
    return int(text[:-2]) * _UNITS[text[-2:]] if text[-2:] in _UNITS else int(text)


@dataclass
class Audit:
    """The results of an audit.

    Attributes:
        has: (node, device) -> its entry in the Device object.
        used: (node, device) -> resource without its domain -> amount that Pods hold.
        functions: (node, bus id) -> the Pod that holds that virtual function.
        held: name of each Pod -> its entries in the annotation, with the type as `type`.
    """

    has: dict[tuple[str, str], JsonObject] = field(default_factory=dict)
    used: dict[tuple[str, str], dict[str, int]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(int)))
    functions: dict[tuple[str, str], str] = field(default_factory=dict)
    held: dict[str, list[JsonObject]] = field(default_factory=dict)

    def free(self, key: tuple[str, str]) -> dict[str, int]:
        """The free part of a device."""
        has = {name.rpartition("/")[2]: amount_of(text) for name, text in self.has[key]["resources"].items()}
        return {tail: amount - self.used[key][tail] for tail, amount in has.items()}


async def audit_devices(admin: AdminClient, *namespaces: str) -> Audit:
    """Count what the Pods of these namespaces hold; fail if a device or a virtual function was given twice."""
    audit = Audit()
    for listed in await admin.items(DEVICES):
        for entry in listed["spec"]["devices"]:
            audit.has.setdefault((listed["metadata"]["name"], entry["id"]), entry)
    for found in [pod for namespace in namespaces for pod in await admin.items(pods_path(namespace))]:
        said = (found["metadata"].get("annotations") or {}).get(DEVICE_ALLOCATED)
        asks = any(
            name.startswith("kubernetes.io/") for name in found["spec"]["containers"][0]["resources"]["requests"]
        )
        assert (said is not None) == (asks and bool(found["spec"].get("nodeName"))), "bound and not allocated, or so"
        entries = [{**entry, "type": kind} for kind, of in json.loads(said or "{}").items() for entry in of]
        audit.held[found["metadata"]["name"]] = entries
        for entry in entries:
            _count(audit, found, entry)
    free = {key: audit.free(key) for key in tuple(audit.used)}
    over = {key: left for key, left in free.items() if min(left.values()) < 0}
    assert not over, f"over-allocated: {over}"
    return audit


def _count(audit: Audit, found: JsonObject, entry: JsonObject) -> None:
    node, name = found["spec"]["nodeName"], found["metadata"]["name"]
    device = audit.has[node, entry["id"]]  # a KeyError means a device of another node, or of none
    assert (device["type"], device["minor"]) == (entry["type"], entry["minor"])
    for resource, text in entry["resources"].items():
        audit.used[node, entry["id"]][resource.rpartition("/")[2]] += amount_of(text)
    for function in entry.get("extension", {}).get("vfs", ()):
        address = function["busID"]
        assert address in {one["busID"] for group in device["vfGroups"] for one in group["vfs"]}
        holder = audit.functions.setdefault((node, address), name)
        assert holder == name, f"virtual function {address} of {node} is given to {holder} and {name}"
