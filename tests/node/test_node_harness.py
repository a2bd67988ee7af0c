"""The node of these tests really runs Pods: the assumptions of the other tests here."""

from pathlib import Path

from node import images
from node.harness import Node

from localplane.admin import AdminClient, JsonObject
from localplane.waiting import until

SLEEP = "trap exit TERM; while :; do sleep 1 & wait; done"
DEVICES = "example.com/devices"


def pod(name: str, script: str, *, env: list[JsonObject] | None = None) -> JsonObject:
    container = {
        "name": "main",
        "image": images.BUSYBOX,
        "imagePullPolicy": "Never",
        "command": ["/bin/sh", "-c", script],
        "env": env or [],
        "resources": {"requests": {"cpu": "100m", "memory": "16Mi"}},
    }
    spec = {"restartPolicy": "Never", "schedulerName": "nobody", "containers": [container]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def from_annotation(name: str, annotation: str) -> JsonObject:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": f"metadata.annotations['{annotation}']"}}}


def cgroups_of(pid: int) -> str:
    return Path(f"/proc/{pid}/cgroup").read_text()


async def test_a_pod_runs_and_what_it_writes_can_be_read(
    node: Node, node_admin: AdminClient, node_namespace: str
) -> None:
    made = await node_admin.create(f"/api/v1/namespaces/{node_namespace}/pods", pod("a", "echo one; echo two"))
    await node.bind(made)
    await node.phase(node_namespace, "a", "Succeeded")
    assert await node.logs(node_namespace, "a", "main") == "one\ntwo\n"


async def test_an_annotation_of_the_binding_reaches_the_environment(
    node: Node, node_admin: AdminClient, node_namespace: str
) -> None:
    path = f"/api/v1/namespaces/{node_namespace}/pods"
    env = [from_annotation("DEVICES", DEVICES)]
    script = 'echo "devices=[$DEVICES]"'
    await node.bind(await node_admin.create(path, pod("with", script, env=env)), {DEVICES: "GPU-1"})
    await node.bind(await node_admin.create(path, pod("without", script, env=env)))
    for name, line in (("with", "devices=[GPU-1]\n"), ("without", "devices=[]\n")):
        await node.phase(node_namespace, name, "Succeeded")
        assert await node.logs(node_namespace, name, "main") == line


async def test_a_program_runs_in_a_container_in_the_nodes_own_cgroup(
    node: Node, node_admin: AdminClient, node_namespace: str
) -> None:
    made = await node_admin.create(f"/api/v1/namespaces/{node_namespace}/pods", pod("a", SLEEP))
    await node.bind(made)
    await node.phase(node_namespace, "a", "Running")
    assert await node.run(node_namespace, "a", "main", "echo", "here") == "here\n"
    pid = await node.container_pid(node_namespace, "a", "main")
    assert f"/{node.cgroup}/kubepods/" in cgroups_of(pid)


async def test_a_resource_added_to_the_node_outlives_a_restart_of_the_kubelet(
    node: Node, node_admin: AdminClient, node_namespace: str
) -> None:
    await node.set_capacity({"kubernetes.io/test-device": "100"})
    await node.restart_kubelet()
    made = pod("a", "echo admitted")
    made["spec"]["containers"][0]["resources"]["requests"]["kubernetes.io/test-device"] = "50"
    made = await node_admin.create(f"/api/v1/namespaces/{node_namespace}/pods", made)
    await node.bind(made)

    async def written() -> bool:
        return await node.logs(node_namespace, "a", "main") == "admitted\n"

    await until(written, "the Pod was admitted and ran")
    capacity = (await node_admin.get(f"/api/v1/nodes/{node.name}"))["status"]["capacity"]
    assert capacity["kubernetes.io/test-device"] == "100"
