"""A real Kueue beside koordgate: its own chart, with its ServiceAccount, behind its Service.

Nothing plays the kubelet but this module: it mounts the Secret with the certificate that Kueue makes for itself.
"""

import base64
import contextlib
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import aiohttp
import yaml
from controlplane.gpu_cluster import pods_path

from localplane import chart
from localplane.admin import AdminClient, ApiError, JsonObject
from localplane.balancer import Balancer
from localplane.binaries import Binaries, module_folder
from localplane.plane import ControlPlane
from localplane.process import Process, free_port
from localplane.replicas import laid_over
from localplane.waiting import NotInTimeError, until

NAMESPACE = "kueue-system"
QUEUE = "kueue.x-k8s.io/queue-name"
GATE = "kueue.x-k8s.io/admission"
GROUP = "/apis/kueue.x-k8s.io/v1beta2"
_HOST = "127.0.0.1"
_ACCOUNT = "kueue-controller-manager"
_CONFIG = ("kueue-manager-config", "controller_manager_config.yaml")
_SECRET = f"/api/v1/namespaces/{NAMESPACE}/secrets/kueue-webhook-server-cert"
_OK = 200


async def install(plane: ControlPlane, binaries: Binaries) -> JsonObject:
    """Install Kueue's chart for Jobs and plain Pods; returns its settings, which are Kueue's own otherwise."""
    folder = module_folder("kueue") / "charts" / "kueue"
    own = yaml.safe_load((folder / "values.yaml").read_text())["managerConfig"]["controllerManagerConfigYaml"]
    config = laid_over(yaml.safe_load(own), {"integrations": {"frameworks": ["batch/job", "pod"]}})
    values = {"fullnameOverride": "kueue", "managerConfig": {"controllerManagerConfigYaml": yaml.safe_dump(config)}}
    objects = chart.render(binaries, values, chart=folder, namespace=NAMESPACE)
    # Its server of another API stays off: the API server would ask it for every discovery.
    await chart.install(plane, [one for one in objects if one["kind"] != "APIService"], namespace=NAMESPACE)
    settings: JsonObject = yaml.safe_load(chart.find(objects, "ConfigMap", _CONFIG[0])["data"][_CONFIG[1]])
    return settings


@contextlib.asynccontextmanager
async def running(
    plane: ControlPlane, binaries: Binaries, settings: JsonObject, workdir: Path, resources: Mapping[str, Any]
) -> AsyncIterator[None]:
    """Run Kueue.

    Args:
        plane: The control plane, with its controllers.
        binaries: The programs, Kueue included.
        settings: From `install`.
        workdir: For its settings, certificate and log.
        resources: Its settings of that name: what it leaves out, and what it counts as something else.
    """
    port, health = free_port(), free_port()
    here = {
        "health": {"healthProbeBindAddress": f"{_HOST}:{health}"},
        "metrics": {"bindAddress": "0"},
        "webhook": {"host": _HOST, "port": port, "certDir": str(workdir / "certificate")},
        "leaderElection": {"leaderElect": False},
        "resources": dict(resources),
    }
    file = _write(workdir, {"kueue.yaml": yaml.safe_dump(laid_over(settings, here)).encode()}) / "kueue.yaml"
    kubeconfig = await plane.service_account_kubeconfig(NAMESPACE, _ACCOUNT)
    options = (f"--config={file}", f"--kubeconfig={kubeconfig}", "--feature-gates=VisibilityOnDemand=false")
    process = Process("kueue", (binaries["kueue"], *options), workdir / "kueue.log")
    address = await plane.service_address(NAMESPACE, "kueue-webhook-service")
    async with Balancer(*address, backends=((_HOST, port),)):
        process.start()
        try:
            await _mount(plane, workdir / "certificate")
            await process.ready(lambda: _ready(health), deadline_s=90)
            yield
        finally:
            await process.stop()


async def _mount(plane: ControlPlane, folder: Path) -> None:
    async with plane.admin() as admin:

        async def made() -> dict[str, str]:
            return (await admin.get(_SECRET)).get("data") or {}

        data = await until(made, "Kueue has made its certificate")
    _write(folder, {name: base64.b64decode(text) for name, text in data.items()})


def _write(folder: Path, files: Mapping[str, bytes]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


async def _ready(port: int) -> bool:
    try:
        async with aiohttp.ClientSession() as session, session.get(f"http://{_HOST}:{port}/readyz") as answer:
            return answer.status == _OK
    except aiohttp.ClientError:
        return False


def queues(name: str, namespace: str, limits: Mapping[str, str]) -> list[JsonObject]:
    """A ClusterQueue with limits, and the LocalQueue of a namespace, both with the same name."""
    head = {"apiVersion": "kueue.x-k8s.io/v1beta2"}
    quotas = [{"name": resource, "nominalQuota": amount} for resource, amount in limits.items()]
    flavors = [{"name": name, "resources": quotas}]
    groups = [{"coveredResources": list(limits), "flavors": flavors}]
    return [
        {**head, "kind": "ResourceFlavor", "metadata": {"name": name}},
        {
            **head,
            "kind": "ClusterQueue",
            "metadata": {"name": name},
            "spec": {"namespaceSelector": {}, "resourceGroups": groups},
        },
        {
            **head,
            "kind": "LocalQueue",
            "metadata": {"name": name, "namespace": namespace},
            "spec": {"clusterQueue": name},
        },
    ]


def job(name: str, namespace: str, queue: str, asks: Mapping[str, str], count: int = 1) -> JsonObject:
    container = {"name": "main", "image": "none", "resources": {"requests": asks, "limits": asks}}
    template = {"spec": {"restartPolicy": "Never", "terminationGracePeriodSeconds": 0, "containers": [container]}}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": namespace, "labels": {QUEUE: queue}},
        "spec": {"completions": count, "parallelism": count, "template": template},
    }


async def used(admin: AdminClient, queue: str) -> dict[str, str]:
    """What a ClusterQueue counts as used, without what is zero."""
    status = (await admin.get(f"{GROUP}/clusterqueues/{queue}")).get("status") or {}
    return {
        one["name"]: one["total"]
        for flavor in status.get("flavorsUsage") or ()
        for one in flavor["resources"]
        if one["total"] != "0"
    }


async def uses(admin: AdminClient, queue: str, wanted: Mapping[str, str]) -> None:
    """Wait until a ClusterQueue counts this and nothing else."""

    async def counted() -> bool:
        return await used(admin, queue) == dict(wanted)

    try:
        await until(counted, f"ClusterQueue {queue} counts {wanted}")
    except NotInTimeError as error:
        raise AssertionError(f"{error}; it counts {await used(admin, queue)}") from error


async def held_back(admin: AdminClient, namespace: str, owner: str, reason: str) -> None:
    """Wait until Kueue says for this reason that it does not admit a Job or Pod."""
    told: list[str] = []

    async def said() -> bool:
        for one in await admin.items(f"{GROUP}/namespaces/{namespace}/workloads"):
            if one["metadata"]["ownerReferences"][0]["name"] == owner:
                conditions = {item["type"]: item for item in one.get("status", {}).get("conditions") or ()}
                assert conditions.get("Admitted", {}).get("status") != "True", f"{owner} was admitted"
                told[:] = [conditions.get("QuotaReserved", {}).get("message", "")]
        return any(reason in text for text in told)

    try:
        await until(said, f"Kueue holds {owner} back: {reason}")
    except NotInTimeError as error:
        raise AssertionError(f"{error}; it says {told}") from error


async def pods_of(admin: AdminClient, namespace: str, owner: str) -> list[JsonObject]:
    return await admin.items(pods_path(namespace), labelSelector=f"batch.kubernetes.io/job-name={owner}")


async def finish(admin: AdminClient, namespace: str, name: str) -> None:
    """Say that a Pod has succeeded, as its kubelet would."""
    await admin.patch(pods_path(namespace, name, "status"), {"status": {"phase": "Succeeded"}})


async def apply_queue(admin: AdminClient, objects: list[JsonObject], queue: str) -> None:
    """Create a queue's objects, and wait until Kueue admits by them."""

    async def applied() -> bool:
        try:
            for one in objects:
                await admin.apply(one)
        except ApiError as error:  # its webhook does not answer yet
            if "failed calling webhook" in error.message:
                return False
            raise
        return True

    async def active() -> bool:
        conditions = (await admin.get(f"{GROUP}/clusterqueues/{queue}")).get("status", {}).get("conditions") or ()
        return any(one["type"] == "Active" and one["status"] == "True" for one in conditions)

    await until(applied, f"Kueue takes queue {queue}")
    await until(active, f"ClusterQueue {queue} is active")
