"""A cluster on this machine in which koordgate runs as Helm installs it: from images, as Pods, behind Services.

The fixtures end with their module, because a machine runs one node at a time.
"""

import asyncio
import contextlib
import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import yaml
from controlplane.needs import missing
from incluster import built, cards, names, proxy
from node import harness, images, machine

from localplane import chart
from localplane.admin import AdminClient, JsonObject
from localplane.binaries import Binaries, BuildError, find_or_build
from localplane.plane import CONTROL_PLANE, ControlPlane
from localplane.process import free_port
from localplane.waiting import NotInTimeError, until

_HERE = Path(__file__).parent
NODE = "node-1"
SCHEDULER = "localhost/kube-scheduler"
CARDS = "a100x8"
_DNS = "10.212.0.10"  # of the network `plane.SERVICES`
_PATIENCE_S = 300
# What the reporter makes on its node, at a fixed place.
_MADE = Path("/var/lib/koordgate")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of this folder, and run them in the event loop of their module's fixtures."""
    for item in items:
        if item.path.is_relative_to(_HERE):
            item.add_marker(pytest.mark.node)
            item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)


@pytest.fixture(scope="session")
def incluster_binaries() -> Binaries:
    """The programs; built if they are missing."""
    trouble = machine.problem() or built.problem() or proxy.problem() or _occupied()
    if trouble:
        missing(trouble)
    try:
        return find_or_build((*CONTROL_PLANE, "kube-proxy", *harness.RUNTIME, "helm"))
    except BuildError as error:
        missing(str(error))


@pytest.fixture(scope="session")
def release(incluster_binaries: Binaries, tmp_path_factory: pytest.TempPathFactory) -> Iterator[built.Release]:
    """The files of a release, in a folder in which nothing else is; built if what they are made of changed."""
    try:
        made = built.release(incluster_binaries["helm"])
    except built.ReleaseError as error:
        missing(str(error))
    alone = shutil.copytree(made.folder, tmp_path_factory.mktemp("release") / "files")
    yield replace(made, folder=alone)
    shutil.rmtree(alone)  # hundreds of MiB


@dataclass
class Cluster:
    """The cluster, with koordgate in it.

    Attributes:
        plane: Its control plane.
        node: Its one node.
        admin: A client with all rights.
        values: Those that koordgate was installed with.
        release: The files from which it was installed.
    """

    plane: ControlPlane
    node: harness.Node
    admin: AdminClient
    values: JsonObject
    release: built.Release
    helm: Path
    folder: Path

    async def upgrade(self, **values: Any) -> None:
        """Run `helm upgrade --install --wait` with the values, and some in place of them; the reporter is rolled out.

        Raises:
            RuntimeError: Helm failed; the message is Helm's, with the state of the Pods.
        """
        file = self.folder / "values.yaml"
        file.write_text(yaml.safe_dump({**self.values, **values}))
        chosen = ("--create-namespace", "--values", str(file))
        await self._run("upgrade", "--install", chart.RELEASE, self.release.chart.name, *chosen, "--wait")
        await self._reporter_rolled_out()

    async def _reporter_rolled_out(self) -> None:
        """Wait for the DaemonSet: Helm holds one for ready when all Pods but its `maxUnavailable` are."""

        async def so() -> bool:
            found = await self.admin.get(f"/apis/apps/v1/namespaces/{chart.NAMESPACE}/daemonsets/koordgate-reporter")
            status = found["status"]
            if status.get("observedGeneration") != found["metadata"]["generation"]:
                return False
            counts = (status.get("updatedNumberScheduled"), status.get("numberReady"))
            return status["desiredNumberScheduled"] > 0 and counts == (status["desiredNumberScheduled"],) * 2

        try:
            await until(so, "the reporter is rolled out", deadline_s=_PATIENCE_S)
        except NotInTimeError as error:
            raise NotInTimeError(f"{error}\n{await self.told()}") from error

    async def uninstall(self) -> None:
        """Run `helm uninstall --wait`: no controller makes new Pods while the node ends them."""
        await self._run("uninstall", chart.RELEASE, "--wait")

    async def test(self) -> None:
        """Run `helm test`; its Pod is kept, with its log.

        Raises:
            RuntimeError: the Pod failed; the message is what Helm says.
        """
        await self._run("test", chart.RELEASE)

    async def _run(self, *words: str) -> None:
        homes = {f"HELM_{kind}_HOME": str(self.folder) for kind in ("CACHE", "CONFIG", "DATA")}
        waiting = ("--timeout", f"{_PATIENCE_S}s")
        where = ("--namespace", chart.NAMESPACE, "--kubeconfig", str(self.plane.admin_kubeconfig))
        process = await asyncio.create_subprocess_exec(
            *(str(self.helm), *words, *where, *waiting),
            cwd=self.release.folder,
            env={**os.environ, **homes},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        output, _ = await process.communicate()
        if process.returncode:
            raise RuntimeError(f"{output.decode()}\n{await self.told()}")

    async def pods(self, app: str) -> list[JsonObject]:
        """The chart's Pods of an app, without those that end."""
        path = f"/api/v1/namespaces/{chart.NAMESPACE}/pods"
        found = await self.admin.items(path, labelSelector=f"app.kubernetes.io/name={app}")
        return [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]

    async def told(self) -> str:
        """What the chart's Pods and their Events say."""
        rows = []
        for pod in await self.admin.items(f"/api/v1/namespaces/{chart.NAMESPACE}/pods"):
            name, status = pod["metadata"]["name"], pod["status"]
            rows.append(f"{name}: {status.get('phase')} {status.get('containerStatuses')}")
            logs = [await self.node.logs(chart.NAMESPACE, name, one["name"]) for one in pod["spec"]["containers"]]
            rows.extend(log[-3000:] for log in logs)
        events = await self.admin.items(f"/api/v1/namespaces/{chart.NAMESPACE}/events")
        rows.extend(f"{one['involvedObject'].get('name')}: {one.get('reason')}: {one.get('message')}" for one in events)
        return "\n".join(rows)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def cluster(
    incluster_binaries: Binaries, release: built.Release, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Cluster]:
    """koordgate as `helm install` leaves it: the webhook, koord-scheduler and the reporter run and are ready."""
    binaries = incluster_binaries
    folder = tmp_path_factory.mktemp("incluster")
    address = harness.own_address()
    async with contextlib.AsyncExitStack() as stack:
        stack.callback(_remove_made)  # after the node's end
        plane = await stack.enter_async_context(
            ControlPlane(
                binaries,
                controller_manager=True,
                users=harness.node_user(NODE),
                address=address,
            )
        )
        await plane.start_scheduler("kube-scheduler")
        runtime = await asyncio.to_thread(cards.runtime, folder / "runtime", CARDS)
        node = await stack.enter_async_context(
            harness.Node(
                plane,
                binaries,
                name=NODE,
                kubelet={"clusterDNS": [_DNS], "clusterDomain": names.DOMAIN},
                runtimes={cards.HANDLER: runtime},
            )
        )
        await stack.enter_async_context(proxy.running(plane, binaries, node=NODE, workdir=folder))
        port = free_port(address)
        await stack.enter_async_context(names.Names(names.services_of(plane), address, port))
        admin = await stack.enter_async_context(plane.admin())
        await _serve_names(admin, address, port)
        await admin.apply(
            {
                "apiVersion": "node.k8s.io/v1",
                "kind": "RuntimeClass",
                "metadata": {"name": cards.HANDLER},
                "handler": cards.HANDLER,
            }
        )
        await node.load(release.image)
        image = release.repository  # containerd knows an image by the names that it was given alone
        await node.containerd.ctr("images", "tag", f"{image}:{release.version}", f"{image}@{release.digest()}")
        tar = folder / "kube-scheduler.tar"
        scheduler = f"{SCHEDULER}:{binaries.kubernetes}"
        await node.load(await asyncio.to_thread(images.around, scheduler, binaries["kube-scheduler"], tar))
        made = Cluster(plane, node, admin, _values(node, binaries.kubernetes), release, binaries["helm"], folder)
        await made.upgrade()
        yield made
        await made.uninstall()


def _values(node: harness.Node, kubernetes: str) -> JsonObject:
    """Values for this machine: images are not pulled, and the kubelet's folder; all else is as the chart states it."""
    kubelet = {"directory": str(node.root), "configuration": str(node.configuration)}
    return {
        "image": {"pullPolicy": "Never"},
        "scheduler": {"image": {"repository": SCHEDULER, "tag": kubernetes, "pullPolicy": "Never"}},
        "reporter": {"kubelet": kubelet, "gpus": {"runtimeClassName": cards.HANDLER}},
    }


async def _serve_names(admin: AdminClient, address: str, port: int) -> None:
    """Make the Service of the cluster's DNS, before the stand-in that runs on this machine."""
    metadata: Mapping[str, Any] = {"name": "kube-dns", "namespace": "kube-system"}
    ports = [{"name": "dns", "protocol": "UDP", "port": 53, "targetPort": port}]
    service = {"clusterIP": _DNS, "ports": ports}
    await admin.apply({"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": service})
    await admin.apply(
        {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {**metadata, "labels": {"kubernetes.io/service-name": metadata["name"]}},
            "addressType": "IPv4",
            "endpoints": [{"addresses": [address], "conditions": {"ready": True}}],
            "ports": [{"name": "dns", "protocol": "UDP", "port": port}],
        }
    )


def _occupied() -> str | None:
    """Why this machine must not be used: a reporter of its own has its state here."""
    if not _MADE.exists() or proxy.interrupted():
        return None
    return f"the reporter would write into {_MADE}, which is there: is this machine a node of a cluster?"


def _remove_made() -> None:
    machine.remove(_MADE)
