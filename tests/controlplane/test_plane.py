"""The local control plane is a real Kubernetes: the assumptions of the other tests here."""

import asyncio
import runpy
import sys
from pathlib import Path

import pytest

from localplane import chart
from localplane.admin import AdminClient, ApiError, JsonObject
from localplane.plane import ControlPlane
from localplane.waiting import until


def pod(namespace: str, name: str, *, scheduler: str = "nobody") -> JsonObject:
    container = {"name": "main", "image": "none", "resources": {"requests": {"cpu": "1"}}}
    spec = {"schedulerName": scheduler, "containers": [container]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": namespace, "name": name}, "spec": spec}


def binding(made: JsonObject, node: str, annotations: dict[str, str]) -> JsonObject:
    metadata = {key: made["metadata"][key] for key in ("namespace", "name", "uid")}
    target = {"apiVersion": "v1", "kind": "Node", "name": node}
    return {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {**metadata, "annotations": annotations},
        "target": target,
    }


async def test_annotations_of_a_binding_are_merged_in_the_write_that_binds(admin: AdminClient, namespace: str) -> None:
    path = f"/api/v1/namespaces/{namespace}/pods"
    made = await admin.create(path, pod(namespace, "a"))
    await admin.create(f"{path}/a/binding", binding(made, "node-1", {"example.com/devices": "GPU-1"}))
    async for event in admin.watch(path, resourceVersion=made["metadata"]["resourceVersion"]):
        first = event["object"]
        break
    else:
        pytest.fail("the watch ended without an event")
    assert first["spec"]["nodeName"] == "node-1"
    assert first["metadata"]["annotations"] == {"example.com/devices": "GPU-1"}


@pytest.mark.kubernetes(since="1.37", feature="the fields of 1.37")
async def test_the_fields_that_offline_commands_know_are_those_of_the_newest_api_server(admin: AdminClient) -> None:
    written = runpy.run_path(str(Path(__file__).parents[2] / "docs" / "podfields.py"))
    assert written["FILE"].read_text() == written["text"](await admin.get("/openapi/v2"))


async def test_the_uid_of_a_binding_is_a_precondition(admin: AdminClient, namespace: str) -> None:
    path = f"/api/v1/namespaces/{namespace}/pods"
    made = await admin.create(path, pod(namespace, "a"))
    made["metadata"]["uid"] = "00000000-0000-0000-0000-000000000000"
    with pytest.raises(ApiError) as refused:
        await admin.create(f"{path}/a/binding", binding(made, "node-1", {}))
    assert refused.value.reason == "Conflict"


async def test_the_chart_installs(plane: ControlPlane, admin: AdminClient, installed: list[JsonObject]) -> None:
    """Each object is accepted, the custom resources are served, and the webhook's own account can log in."""
    definitions = [item for item in installed if item["kind"] == "CustomResourceDefinition"]
    assert definitions
    for definition in definitions:
        group, plural = definition["spec"]["group"], definition["spec"]["names"]["plural"]
        await admin.items(f"/apis/{group}/{definition['spec']['versions'][0]['name']}/{plural}")
    token = await plane.service_account_token(chart.NAMESPACE, chart.RELEASE)
    async with plane.admin(token) as webhook:
        assert "koordgate.io" in str(await webhook.get("/apis"))
    assert (await plane.service_address(chart.NAMESPACE, chart.RELEASE))[0].startswith("127.")


_PARENT = """
import signal, sys
from pathlib import Path
from localplane.process import Process
child = Process("child", (sys.executable, "-c", "import signal; signal.pause()"), Path(sys.argv[1]))
child.start()
print(child.pid, flush=True)
signal.pause()
"""


def ended(pid: int) -> bool:
    """Whether a process is gone, or only waits to be reaped by its new parent."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


async def test_a_killed_parent_leaves_no_child(tmp_path: Path) -> None:
    argv = (sys.executable, "-c", _PARENT, str(tmp_path / "log"))
    parent = await asyncio.create_subprocess_exec(*argv, stdout=asyncio.subprocess.PIPE)
    assert parent.stdout is not None
    child = int(await parent.stdout.readline())
    parent.kill()
    await parent.wait()

    async def gone() -> bool:
        return ended(child)

    assert await until(gone, "the child ends with its parent")
