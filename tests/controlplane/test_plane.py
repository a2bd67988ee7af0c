"""The local control plane is a real Kubernetes: the assumptions of the other tests here."""

import asyncio
import contextlib
import runpy
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from localplane import chart
from localplane.admin import AdminClient, ApiError, JsonObject
from localplane.balancer import Balancer
from localplane.plane import ControlPlane
from localplane.process import Process, StartError
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


async def test_data_is_there_after_a_restart_of_the_api_server(plane: ControlPlane, namespace: str) -> None:
    path = f"/api/v1/namespaces/{namespace}/pods"
    async with plane.admin() as admin:
        made = await admin.create(path, pod(namespace, "a"))
    await plane.restart_apiserver()
    async with plane.admin() as admin:
        assert (await admin.get(f"{path}/a"))["metadata"]["uid"] == made["metadata"]["uid"]


async def test_a_scheduler_binds_a_pod_to_the_node_that_has_room(
    plane: ControlPlane, admin: AdminClient, namespace: str
) -> None:
    labels = {"example.com/test": namespace}  # other tests have Nodes too
    await plane.add_node(f"{namespace}-full", {"cpu": "0", "pods": "0"}, labels=labels)
    await plane.add_node(f"{namespace}-roomy", {"cpu": "4", "pods": "10"}, labels=labels)
    config = """
        apiVersion: kubescheduler.config.k8s.io/v1
        kind: KubeSchedulerConfiguration
        profiles: [{schedulerName: ours}]
    """
    path = f"/api/v1/namespaces/{namespace}/pods"
    await plane.start_scheduler("ours", config)
    try:
        wanted = pod(namespace, "a", scheduler="ours")
        wanted["spec"]["nodeSelector"] = labels
        await admin.create(path, wanted)

        async def node_of_pod() -> str:
            return str((await admin.get(f"{path}/a"))["spec"].get("nodeName", ""))

        assert await until(node_of_pod, "the Pod is bound") == f"{namespace}-roomy"
    finally:
        await plane.stop_scheduler("ours")


async def test_a_service_account_has_the_rights_that_rbac_gives_it(plane: ControlPlane, namespace: str) -> None:
    async with plane.admin(await plane.service_account_token(namespace, "default")) as client:
        review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
        who = await client.create("/apis/authentication.k8s.io/v1/selfsubjectreviews", review)
        with pytest.raises(ApiError) as refused:
            await client.items("/api/v1/nodes")
    assert who["status"]["userInfo"]["username"] == f"system:serviceaccount:{namespace}:default"
    assert refused.value.reason == "Forbidden"


async def test_the_api_server_calls_a_webhook_by_its_service(
    plane: ControlPlane, admin: AdminClient, namespace: str
) -> None:
    """It connects to the Service's own address, on which the balancer listens; no URL is rewritten for the tests."""
    metadata = {"namespace": namespace, "name": "hook"}
    service = {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": {"ports": [{"port": 443}]}}
    await admin.apply(service)
    called = asyncio.Event()

    def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        called.set()
        writer.close()

    client_config = {"service": {"namespace": namespace, "name": "hook", "path": "/"}}
    webhook = {
        "name": "hook.example.com",
        "clientConfig": client_config,
        "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["secrets"]}],
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
    }
    configuration = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": namespace},
        "webhooks": [webhook],
    }
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"generateName": "s-"}}

    async def refused() -> bool:
        """True once the configuration is in effect: a webhook that closes the connection causes a refusal."""
        try:
            await admin.create(f"/api/v1/namespaces/{namespace}/secrets", secret)
        except ApiError as error:
            return "failed calling webhook" in error.message
        return False

    async with (
        await asyncio.start_server(hang_up, "127.0.0.1", 0) as server,
        Balancer(*await plane.service_address(namespace, "hook"), [server.sockets[0].getsockname()[:2]]),
    ):
        await admin.apply(configuration)
        await until(refused, "the webhook is in force")
    assert called.is_set()


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


async def test_the_balancer_takes_turns_and_passes_over_a_dead_backend() -> None:
    async with echo_servers(b"1", b"2") as ports:
        dead = ("127.0.0.1", 1)
        async with Balancer("127.0.0.1", 0, [("127.0.0.1", ports[0]), dead, ("127.0.0.1", ports[1])]) as balancer:
            answers = [await ask(balancer.port) for _ in range(6)]
            balancer.set_backends([dead])
            nobody = await ask(balancer.port)
    assert answers == [b"1:x", b"2:x", b"2:x"] * 2
    assert nobody == b""


@contextlib.asynccontextmanager
async def echo_servers(*names: bytes) -> AsyncIterator[list[int]]:
    """Servers that echo what they read after their name; their ports."""
    async with contextlib.AsyncExitStack() as stack:
        ports = []
        for name in names:

            async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, name: bytes = name) -> None:
                writer.write(name + b":" + await reader.read())
                writer.close()
                await writer.wait_closed()

            server = await stack.enter_async_context(await asyncio.start_server(answer, "127.0.0.1", 0))
            ports.append(server.sockets[0].getsockname()[1])
        yield ports


async def ask(port: int) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"x")
    writer.write_eof()
    try:
        return await reader.read()
    finally:
        writer.close()
        await writer.wait_closed()


async def test_a_process_that_ends_while_it_starts_is_reported_with_its_log(tmp_path: Path) -> None:
    process = Process("quitter", (sys.executable, "-c", "raise SystemExit('no room')"), tmp_path / "log")

    async def never() -> bool:
        return False

    process.start()
    with pytest.raises(StartError, match="no room"):
        await process.ready(never)
    assert process.status == 1


async def test_a_process_that_never_serves_is_reported_after_the_deadline(tmp_path: Path) -> None:
    process = Process("sleeper", (sys.executable, "-c", "import signal; signal.pause()"), tmp_path / "log")

    async def never() -> bool:
        return False

    process.start()
    with pytest.raises(StartError, match="not within"):
        await process.ready(never, deadline_s=0.2)
    await process.stop()
    assert not process.alive


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
