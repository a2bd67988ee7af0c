"""Manifests that are applied again to a real API server, as GitOps tools do: by kubectl, from either side."""

import asyncio
import copy
import json
import subprocess
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import pytest_asyncio
from controlplane.gpu_cluster import pods_path

from localplane.admin import AdminClient, JsonObject
from localplane.binaries import find_or_build
from localplane.plane import ControlPlane
from localplane.replicas import Replicas

SLOTS = {"devices": {"defaultSlotResourceFraction": {"types": {"gpu": 50}}}}


class Kubectl:
    """kubectl, as the cluster's administrator, for one namespace."""

    def __init__(self, plane: ControlPlane, namespace: str, folder: Path) -> None:
        self._program = str(find_or_build(("kubectl",))["kubectl"])
        self._first = ["--kubeconfig", str(plane.admin_kubeconfig), "--namespace", namespace]
        self._folder = folder

    async def __call__(self, *words: str, objects: Iterable[JsonObject], status: int = 0) -> str:
        """Run it for these objects; returns what it writes."""
        file = self._folder / "objects.json"
        file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)}))
        command = [self._program, *self._first, *words, "-f", str(file)]
        done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=False)
        assert done.returncode == status, done.stderr
        return done.stdout + done.stderr


def container(name: str = "main", limits: JsonObject | None = None, **fields: Any) -> JsonObject:
    return {"name": name, "image": "none", **({"resources": {"limits": limits}} if limits else {}), **fields}


def pod(name: str, *containers: JsonObject, about: JsonObject | None = None, **spec: Any) -> JsonObject:
    metadata = {"name": name, **(about or {})}
    spec = {"containers": list(containers), "terminationGracePeriodSeconds": 0, **spec}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


CARD = {"nvidia.com/gpu": "1"}
SHARING = json.dumps({"gpu": {"users": ["a", "b"]}})
PODS = [
    pod("card", container(limits=CARD)),
    pod("cards", container(limits={"cpu": "1", "nvidia.com/gpu": 2}, env=[{"name": "A", "value": "b"}])),
    pod("own", container(limits={"kubernetes.io/gpu": "50"})),
    pod("bytes", container(limits={"koordinator.sh/gpu-core": "50", "koordinator.sh/gpu-memory": "8Gi"})),
    pod(
        "phases",
        container(limits=CARD),
        container("none", {"nvidia.com/gpu": "0"}),
        initContainers=[container("first", {"nvidia.com/gpu": "3"}), container("beside", restartPolicy="Always")],
    ),
    pod(
        "environment",
        container(
            limits=CARD,
            env=[
                {"name": "A", "value": "b"},
                {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"},
                {"name": "C", "value": "d"},
            ],
        ),
    ),
    pod("elsewhere", container(limits=CARD), schedulerName="volcano"),
    pod("tolerant", container(limits=CARD), tolerations=[{"key": "a", "operator": "Exists", "effect": "NoSchedule"}]),
    pod("sharing", container("a"), container("b"), about={"annotations": {"koordgate.io/device-sharing": SHARING}}),
    pod(
        "cpus",
        container(limits={"cpu": "2", "memory": "1Gi"}),
        about={"labels": {"koordinator.sh/qosClass": "LSR"}},
        schedulerName="default-scheduler",
    ),
]
LIMITS = {
    "apiVersion": "v1",
    "kind": "LimitRange",
    "metadata": {"name": "defaults"},
    "spec": {"limits": [{"type": "Container", "default": {"cpu": "1", "nvidia.com/gpu": "0"}}]},
}


@pytest_asyncio.fixture(loop_scope="session")
async def replica(webhooks: Any) -> AsyncIterator[Replicas]:
    yield await webhooks(count=1, overrides=SLOTS)


async def specs(admin: AdminClient, namespace: str) -> dict[str, tuple[JsonObject, JsonObject]]:
    """The Pods: name -> its spec, and its annotations but for the one that kubectl writes."""
    found = {one["metadata"]["name"]: one for one in await admin.items(pods_path(namespace))}
    last = "kubectl.kubernetes.io/last-applied-configuration"
    return {
        name: (one["spec"], {key: text for key, text in one["metadata"].get("annotations", {}).items() if key != last})
        for name, one in found.items()
    }


async def applied(kubectl: Kubectl, admin: AdminClient, namespace: str, flags: tuple[str, ...]) -> None:
    """Apply all Pods, and again, with a changed label too; no spec may change, and no difference be told."""
    await kubectl("apply", *flags, objects=PODS)
    first = await specs(admin, namespace)
    assert {spec["schedulerName"] for spec, _ in first.values()} == {"koord-scheduler"}
    assert not any("nvidia.com/gpu" in one["resources"]["limits"] for one in first["card"][0]["containers"])

    assert "nvidia.com" not in await kubectl("diff", *flags, objects=PODS)
    await kubectl("apply", *flags, "--dry-run=server", objects=PODS)
    for _ in range(2):
        await kubectl("apply", *flags, objects=PODS)
        assert await specs(admin, namespace) == first

    labelled = copy.deepcopy(PODS)
    for one in labelled:
        one["metadata"].setdefault("labels", {})["team"] = "a"
    told = await kubectl("diff", *flags, objects=labelled, status=1)
    assert told.count("+    team: a") == len(PODS)
    await kubectl("apply", *flags, objects=labelled)
    assert await specs(admin, namespace) == first
    found = await admin.items(pods_path(namespace))
    assert {one["metadata"]["labels"]["team"] for one in found} == {"a"}

    more = copy.deepcopy(labelled[:1])
    more[0]["spec"]["containers"][0]["resources"]["limits"] = {"nvidia.com/gpu": "2"}
    told = await kubectl("apply", *flags, objects=more, status=1)
    assert "[nvidia.com/gpu]: 2, but the Pod asked for 1 when it was created" in told
    assert await specs(admin, namespace) == first


async def test_kubectl_apply_of_unchanged_pods_changes_nothing_and_a_label_is_stored(
    replica: Replicas, plane: ControlPlane, admin: AdminClient, namespace: str, tmp_path: Path
) -> None:
    await applied(Kubectl(plane, namespace, tmp_path), admin, namespace, ())


async def test_a_server_side_apply_of_unchanged_pods_changes_nothing_and_a_label_is_stored(
    replica: Replicas, plane: ControlPlane, admin: AdminClient, namespace: str, tmp_path: Path
) -> None:
    await applied(Kubectl(plane, namespace, tmp_path), admin, namespace, ("--server-side",))


async def test_pods_of_a_namespace_with_defaults_are_applied_again(
    replica: Replicas, plane: ControlPlane, admin: AdminClient, namespace: str, tmp_path: Path
) -> None:
    kubectl = Kubectl(plane, namespace, tmp_path)
    await kubectl("create", objects=[LIMITS])
    await kubectl("apply", objects=PODS)
    first = await specs(admin, namespace)
    await kubectl("apply", objects=PODS)
    assert await specs(admin, namespace) == first


async def test_pods_are_applied_again_by_either_way_in_turn(
    replica: Replicas, plane: ControlPlane, admin: AdminClient, namespace: str, tmp_path: Path
) -> None:
    kubectl = Kubectl(plane, namespace, tmp_path)
    await kubectl("apply", objects=PODS)
    first = await specs(admin, namespace)
    for flags in (("--server-side", "--force-conflicts"), (), ("--server-side", "--force-conflicts")):
        await kubectl("apply", *flags, objects=PODS)
        assert await specs(admin, namespace) == first


async def test_a_pod_is_replaced_by_itself_with_a_changed_label(
    replica: Replicas, plane: ControlPlane, admin: AdminClient, namespace: str, tmp_path: Path
) -> None:
    kubectl = Kubectl(plane, namespace, tmp_path)
    await kubectl("apply", objects=PODS[:1])
    first = await specs(admin, namespace)
    (live,) = await admin.items(pods_path(namespace))
    live |= {"apiVersion": "v1", "kind": "Pod"}
    live["metadata"]["labels"] = {"team": "a"}
    await kubectl("replace", objects=[live])
    assert await specs(admin, namespace) == first


async def test_without_a_replica_only_what_the_api_server_refuses_itself_is_refused(
    webhooks: Any, plane: ControlPlane, admin: AdminClient, namespace: str, tmp_path: Path
) -> None:
    replicas = await webhooks(count=1)
    kubectl = Kubectl(plane, namespace, tmp_path)
    await kubectl("apply", objects=PODS[:1])
    replicas.kill(0)
    await admin.patch(pods_path(namespace, "card"), {"spec": {"activeDeadlineSeconds": 3600}})
    told = await kubectl("apply", objects=PODS[:1], status=1)
    assert "pod updates may not change fields" in told
