"""`koordgate snapshot` and `koordgate explain` on a real API server with koord-scheduler."""

import gzip
import json
from pathlib import Path

import pytest
from commands import Koordgate
from controlplane.gpu_cluster import pod, pods_path

from localplane.admin import AdminClient, JsonObject
from localplane.waiting import until

SECRET = "hunter2-in-an-argument"


@pytest.mark.usefixtures("as_administrator")
async def test_a_bound_pod_and_a_waiting_one_are_explained_live_and_from_a_snapshot(
    scheduler,
    admin: AdminClient,
    namespace: str,
    node: str,
    tmp_path: Path,
    koordgate: Koordgate,
) -> None:
    async def run(*words: str) -> tuple[int, str]:
        said = await koordgate(*words)
        return said.status, said.out

    async def create(name: str, gpus: int) -> None:
        made = pod(name, namespace, {"nvidia.com/gpu": str(gpus)})
        made["spec"]["containers"][0]["args"] = [SECRET]
        await admin.create(pods_path(namespace), made)

    async def is_bound() -> bool:
        return bool((await admin.get(pods_path(namespace, "first")))["spec"].get("nodeName"))

    async def waits() -> bool:
        found = await admin.get(pods_path(namespace, "second"))
        return any(one.get("reason") == "Unschedulable" for one in found["status"].get("conditions") or ())

    async def is_told() -> list[JsonObject]:
        events = (await admin.get(f"/api/v1/namespaces/{namespace}/events"))["items"]
        return [event for event in events if event["reason"] == "DevicesAllocated"]

    await create("first", 1)
    await until(is_bound, "the first Pod is bound", poll_s=0.2)
    (event,) = await until(is_told, "the bind is told as an Event", poll_s=0.2)
    assert event["message"].startswith(f"on {node}: gpu ")
    assert "1 of 2 idle devices of type gpu stay whole" in event["message"]

    status, said = await run("explain", "first", "-n", namespace)
    assert status == 0
    assert said.startswith(f"Pod {namespace}/first is on {node}: it holds gpu ")
    assert event["message"] in said

    await create("second", 2)
    await until(waits, "the second Pod waits", poll_s=0.2)
    status, said = await run("explain", "second", "-n", namespace)
    assert status == 3
    assert said.startswith(f"Pod {namespace}/second fits on none of ")
    status, near = await run("explain", "second", "-n", namespace, "--node", node, "-o", "json")
    (detail,) = json.loads(near)["details"]
    assert sorted(one["why"] for one in detail["devices"]) == [
        "",
        "nothing free, core 100 %, memory 80 GiB (100 %) asked",
    ]
    assert [f"{namespace}/first"] in [one["pods"] for one in detail["remedies"]]

    file = tmp_path / "cluster.json.gz"
    assert (await run("snapshot", str(file)))[0] == 0
    text = gzip.decompress(file.read_bytes()).decode()
    assert SECRET not in text
    assert f'"name":"{namespace}"' in text
    assert (await run("explain", "second", "-n", namespace, "-f", str(file)))[1].splitlines()[0] == said.splitlines()[0]
    assert (await run("simulate", "-f", str(file), "--node", node))[0] == 0

    assert (await run("snapshot", "--anonymize", str(file)))[0] == 0
    hidden = gzip.decompress(file.read_bytes()).decode()
    names = (namespace, "first", "second")
    assert [name for name in names if f'"{name}"' in hidden or f"/{name}" in hidden] == []
    assert '"kind":"NodeAllocation"' in hidden


@pytest.mark.usefixtures("as_administrator", "scheduler", "node")
async def test_a_deployment_is_explained_once_for_its_replicas_live_and_from_its_manifest(
    admin: AdminClient, namespace: str, tmp_path: Path, koordgate: Koordgate
) -> None:
    labels = {"app": "web"}
    template = {"metadata": {"labels": labels}, "spec": pod("web", namespace, {"nvidia.com/gpu": "9"})["spec"]}
    web = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web", "namespace": namespace},
        "spec": {"replicas": 3, "selector": {"matchLabels": labels}, "template": template},
    }
    await admin.create(f"/apis/apps/v1/namespaces/{namespace}/deployments", web)
    said = await koordgate("explain", "deploy/web", "-n", namespace)
    assert said.status == 3
    assert said.out.startswith(f"Each of 3 Pods of Deployment {namespace}/web fits on none of ")
    manifest = tmp_path / "web.json"
    manifest.write_text(json.dumps(web))
    applied = await koordgate("explain", "-f", str(manifest))
    assert (applied.status, applied.out) == (said.status, said.out)
