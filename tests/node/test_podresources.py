"""What a real kubelet reports over its PodResources socket about CPUs and a device plugin's devices."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest_asyncio
from grpc_kubelet import Served, once, part
from grpclib.server import Stream
from node import images
from node.harness import Node

from localplane.admin import AdminClient, JsonObject
from localplane.plane import ControlPlane
from localplane.waiting import until
from reporter.files import FileReading
from reporter.kubelet import cpustate, devicecheckpoint, podresources
from reporter.kubelet.podresources import Allocations, ContainerResources
from reporter.kubelet.podsocket import PodResourcesSocket
from reporter.pods import NodePod, read_pod

CARD = "example.com/card"
CARDS = ("card-0", "card-1", "card-2")
CHECKPOINT = Path(devicecheckpoint.PATH)  # the kubelet's constant, which does not follow its folder
SLEEP = "trap exit TERM; while :; do sleep 1 & wait; done"


async def _tell_cards(stream: Stream[bytes, bytes]) -> None:
    """ListAndWatch: the devices, and then no change."""
    await stream.recv_message()
    await stream.send_message(b"".join(part(1, part(1, card) + part(2, "Healthy")) for card in CARDS))
    await asyncio.Event().wait()


def device_plugin(socket: Path) -> Served:
    """A device plugin that the kubelet finds in its folder of plugins.

    k8s.io/kubelet, pkg/apis/pluginregistration/v1/api.proto and pkg/apis/deviceplugin/v1beta1/api.proto.
    """
    return Served(
        socket,
        {
            "/pluginregistration.Registration/GetInfo": once(
                part(1, "DevicePlugin") + part(2, CARD) + part(4, "v1beta1")
            ),
            "/pluginregistration.Registration/NotifyRegistrationStatus": once(b""),
            "/v1beta1.DevicePlugin/GetDevicePluginOptions": once(b""),
            "/v1beta1.DevicePlugin/Allocate": once(part(1, part(1, part(1, "CARDS") + part(2, "yes")))),
        },
        {"/v1beta1.DevicePlugin/ListAndWatch": _tell_cards},
    )


def _checkpoint() -> bytes | None:
    return CHECKPOINT.read_bytes() if CHECKPOINT.exists() else None


def _put_back(before: bytes | None) -> None:
    CHECKPOINT.unlink(missing_ok=True)
    if before is not None:
        CHECKPOINT.write_bytes(before)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def carded_node(static_node: Node, node_plane: ControlPlane) -> AsyncIterator[Node]:
    """The node with cards; afterwards the kubelet has forgotten them, and its folder is as it was."""
    before = _checkpoint()
    socket = static_node.root / "plugins_registry" / "card.sock"

    async def registered() -> bool:
        async with node_plane.admin() as admin:
            status = (await admin.get(f"/api/v1/nodes/{static_node.name}"))["status"]
        return bool(status["allocatable"].get(CARD) == str(len(CARDS)))

    try:
        async with device_plugin(socket):
            await until(registered, "the kubelet reports the cards")
            yield static_node
            socket.unlink()
    finally:
        async with static_node.kubelet_down():
            _put_back(before)
        await static_node.set_capacity({CARD: None})


def pod(name: str, amounts: dict[str, str]) -> JsonObject:
    main = {
        "name": "main",
        "image": images.BUSYBOX,
        "imagePullPolicy": "Never",
        "command": ["/bin/sh", "-c", SLEEP],
        "resources": {"requests": amounts, "limits": amounts},
    }
    spec = {"schedulerName": "nobody", "terminationGracePeriodSeconds": 1, "containers": [main]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


@contextlib.asynccontextmanager
async def running(node: Node, admin: AdminClient, namespace: str, name: str, **amounts: str) -> AsyncIterator[NodePod]:
    """A Pod that runs; it is gone afterwards."""
    path = f"/api/v1/namespaces/{namespace}/pods"
    asks = {"memory": "16Mi", **{key.replace("cards", CARD): amount for key, amount in amounts.items()}}
    await node.bind(await admin.create(path, pod(name, asks)))

    async def gone() -> bool:
        return await admin.find(f"{path}/{name}") is None

    try:
        yield read_pod(await node.phase(namespace, name, "Running"))
    finally:
        await admin.delete(f"{path}/{name}", gracePeriodSeconds="1")
        await until(gone, f"Pod {name} is gone")


def socket_of(node: Node) -> PodResourcesSocket:
    return PodResourcesSocket(str(node.root / "pod-resources" / "kubelet.sock"))


async def test_what_the_kubelet_reports_is_what_its_files_say(
    carded_node: Node, node_admin: AdminClient, node_namespace: str
) -> None:
    here = (carded_node, node_admin, node_namespace)
    async with running(*here, "owner", cpu="1", cards="2") as owner, running(*here, "sharer") as sharer:
        reading = await socket_of(carded_node).read([owner, sharer])
        files = (_checkpoint() or b"", (carded_node.root / cpustate.FILE).read_bytes())

    assert reading.problem is None
    assert reading.value is not None
    main = reading.value.pods[owner.cgroup]["main"]
    assert (len(main.devices[CARD]), main.devices[CARD] < set(CARDS)) == (2, True)
    assert (main.cpus.bit_count(), main.cpus & 1) == (1, 0)  # CPU 0 is reserved
    assert reading.value.pods[sharer.cgroup] == {"main": ContainerResources()}
    (entry,) = devicecheckpoint.parse(files[0]).entries
    assert (entry.pod_uid, entry.container) == (owner.cgroup, "main")
    assert frozenset(entry.device_ids) == main.devices[CARD]
    state = cpustate.parse(files[1])
    assert state.layout is cpustate.StateLayout.V4
    assert state.entries == {owner.cgroup: {"main": main.cpus}}
    assert podresources.cpus(FileReading(state, None), reading).value == state


async def test_a_pod_of_the_same_name_inherits_nothing(
    carded_node: Node, node_admin: AdminClient, node_namespace: str
) -> None:
    here = (carded_node, node_admin, node_namespace)
    socket = socket_of(carded_node)
    async with running(*here, "a", cards="2") as first:
        later = replace(first, uid="later", cgroup="later", acknowledged=False)
        too_soon = await socket.read([later])
    async with running(*here, "a") as second:
        known = await socket.read([second])

    assert first.cgroup != second.cgroup
    assert too_soon == FileReading(Allocations({}), None)
    assert known == FileReading(Allocations({second.cgroup: {"main": ContainerResources()}}), None)


async def test_a_kubelet_that_is_down_leaves_its_socket_and_what_it_reported(
    carded_node: Node, node_admin: AdminClient, node_namespace: str
) -> None:
    socket = socket_of(carded_node)
    async with running(carded_node, node_admin, node_namespace, "a", cards="1") as only:
        up = await socket.read([only])
        async with carded_node.kubelet_down():
            down = await socket.read([only])

        async def told_again() -> bool:
            return await socket.read([only]) == up

        await until(told_again, "the kubelet reports the same again")

    assert up.value is not None
    assert len(up.value.pods[only.cgroup]["main"].devices[CARD]) == 1
    assert down == FileReading(replace(up.value, current=False), None)
