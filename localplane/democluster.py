"""A cluster as a real control plane on loopback, with the chart installed and its replicas."""

import asyncio
import contextlib
import logging
import re
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any, Final

import aiohttp
import msgspec

from allocator.vocabulary.names import KOORD_SCHEDULER, NVIDIA_GPU
from allocator.wire import nodetopology
from console.simulator import apiserver
from console.simulator.account import Account, ClusterObjects
from console.simulator.cluster import OfflineCluster, PodFate, Result
from console.simulator.demo import FOREIGNER
from koordgate.steady import steadily
from localplane import chart
from localplane.admin import AdminClient, ApiError
from localplane.binaries import Binaries, BuildError, find_or_build, say
from localplane.chart import ChartError
from localplane.fakekubelet import fake_kubelets
from localplane.koord import start_koord_scheduler
from localplane.plane import CONTROL_PLANE, ControlPlane
from localplane.process import StartError, free_port
from localplane.replicas import Replicas
from localplane.waiting import NotInTimeError, until
from webhook.settings import WebhookSettings, adoption_of

Raw = dict[str, Any]

_LOG = logging.getLogger(__name__)

PROGRAMS: Final = (*CONTROL_PLANE, "helm")
_HOST: Final = "127.0.0.1"
_CONTROLLERS: Final = "*,-node-lifecycle-controller"  # it would take Nodes without a kubelet for dead
_OUR_TROUBLE: Final = 500
_WEBHOOK_SAYS: Final = re.compile(r'^admission webhook "[^"]*" denied the request: ')


class PlaneError(RuntimeError):
    """The control plane did not start, or failed; the message says how."""


class PlaneCluster:
    """A real cluster; `load` fills it.

    Args:
        plane: a running, empty control plane.
        admin: a client with all rights.
        binaries: must include helm.
        stack: stops what `load` starts.
        settings: the webhook's settings; only those of devices, CPUs and the comparison of nodes count.
        values: further values of the chart.
    """

    def __init__(
        self,
        plane: ControlPlane,
        admin: AdminClient,
        binaries: Binaries,
        stack: contextlib.AsyncExitStack,
        settings: WebhookSettings,
        values: Mapping[str, Any],
    ) -> None:
        self.pods: list[Raw] = []
        self.plane = plane
        self.admin = admin
        self._parts: dict[str, list[Raw]] = {"Node": [], "Device": [], nodetopology.KIND: []}
        self._settings = settings
        self._values = values
        self._binaries = binaries
        self._stack = stack

    async def load(self, objects: Iterable[Mapping[str, Any]]) -> list[Result]:
        """Create the cluster's objects and Pods, then install the chart and start webhook and schedulers.

        Pods come first: once the chart is installed, nobody may create one with an allocation.
        """
        ports = free_port(_HOST), free_port(_HOST)
        url, extender = (f"https://{_HOST}:{port}" for port in ports)
        own = {key: msgspec.to_builtins(getattr(self._settings, key)) for key in ("devices", "cpus")}
        scheduler = msgspec.to_builtins(self._settings.scheduler)
        own["scheduler"] = {key: scheduler[key] for key in ("preference", "preferenceClasses", "mix")}
        values = {"webhook": {"externalURL": url, "externalExtenderURL": extender}, **own, **self._values}
        rendered = await asyncio.to_thread(chart.render, self._binaries, values)
        types = [item for item in rendered if item["kind"] == "CustomResourceDefinition"]
        say("creating the Nodes and their devices")
        await chart.install(self.plane, types)
        there = [result for obj in objects if (result := await self._put(obj)) is not None]
        say("installing the chart, and starting its two replicas and the schedulers")
        await chart.install(self.plane, rendered)
        await self._start(rendered, *ports)
        return there

    async def _put(self, obj: Mapping[str, Any]) -> Result | None:
        if obj["kind"] == "Pod":
            created = await self._create(obj)
            self.pods = await self.admin.items("/api/v1/pods")
            return Result(created, PodFate.STANDING, given=obj)
        made = await self._node(obj) if obj["kind"] == "Node" else await self.admin.apply(dict(obj))
        self._parts[obj["kind"]].append(made)
        return None

    async def _node(self, obj: Mapping[str, Any]) -> Raw:
        metadata, status = obj["metadata"], obj.get("status") or {}
        name, has = metadata["name"], status.get("allocatable") or status.get("capacity") or {}
        await self.plane.add_node(name, has, labels=metadata.get("labels"))
        changed = {"metadata": {"annotations": metadata.get("annotations") or {}}, "spec": obj.get("spec") or {}}
        return await self.admin.patch(f"/api/v1/nodes/{name}", changed)

    @property
    def node_names(self) -> list[str]:
        """The names of the Nodes."""
        return sorted(node["metadata"]["name"] for node in self._parts["Node"])

    def account(self) -> Account:
        """Count who holds what."""
        parts = OfflineCluster.in_process(self._settings).parts
        standing = ClusterObjects(self._parts["Node"], self._parts["Device"], self._parts[nodetopology.KIND], self.pods)
        return Account(standing, parts.types, parts.pools, adoption_of(self._settings))

    async def _start(self, rendered: list[Raw], port: int, extender_port: int) -> None:
        plane = self.plane
        replicas = Replicas(
            chart.settings_text(rendered),
            kubeconfig=await plane.service_account_kubeconfig(chart.NAMESPACE, chart.RELEASE),
            workdir=plane.workdir / "webhook",
            listen=(_HOST, port),
            listen_extender=(_HOST, extender_port),
        )
        await self._stack.enter_async_context(replicas)
        await start_koord_scheduler(plane, rendered)
        await plane.start_scheduler("default-scheduler")
        await self.admin.apply(_all_rights(FOREIGNER))
        await until(self._gated, "the API server reaches the webhook")

    async def _gated(self) -> bool:
        """Whether a Pod that asks for a device is translated; no webhook is called before the CA is published."""
        resources = {"limits": {NVIDIA_GPU: "1"}}
        spec = {"containers": [{"name": "main", "image": "none", "resources": resources}]}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "demo-probe"}, "spec": spec}
        try:
            made = await self.admin.create("/api/v1/namespaces/default/pods", pod, dryRun="All")
        except ApiError as error:
            if error.status < _OUR_TROUBLE:
                raise
            return False
        return bool(made["spec"]["schedulerName"] == KOORD_SCHEDULER)

    async def submit(self, pod: Mapping[str, Any]) -> Result:
        """Create a Pod, and wait until it is bound or reported as unschedulable."""
        try:
            created = await self._create(pod)
        except ApiError as error:
            return Result(dict(pod), PodFate.DENIED, (_WEBHOOK_SAYS.sub("", error.message),), given=pod)
        path = _path(created)

        async def settled() -> Raw | None:
            now = await self.admin.get(path)
            return now if now["spec"].get("nodeName") or _unschedulable(now) else None

        try:
            now = await until(settled, f"{path} is bound or reported as unschedulable") or created
        except NotInTimeError as error:
            return Result(created, PodFate.UNSCHEDULABLE, (str(error),), given=pod)
        self.pods = await self.admin.items("/api/v1/pods")
        if now["spec"].get("nodeName"):
            return Result(now, PodFate.BOUND, given=pod)
        return Result(now, PodFate.UNSCHEDULABLE, (_unschedulable(now),), given=pod)

    async def _create(self, pod: Mapping[str, Any]) -> Raw:
        namespace = pod["metadata"].get("namespace") or "default"
        await self.plane.ensure_namespace(namespace)
        return await self.admin.create(f"/api/v1/namespaces/{namespace}/pods", dict(pod))

    async def bind(self, namespace: str, name: str, node: str, username: str | None = None) -> Result:
        """Bind a Pod as this user, by default as the administrator."""
        path = f"/api/v1/namespaces/{namespace}/pods/{name}"
        pod = await self.admin.get(path)
        async with self.plane.admin(self.plane.tokens[username] if username else None) as client:
            try:
                await client.create(f"{path}/binding", apiserver.binding(pod, node))
            except ApiError as error:
                return Result(pod, PodFate.BIND_REFUSED, (_WEBHOOK_SAYS.sub("", error.message),))
        return Result(await self.admin.get(path), PodFate.BOUND)

    async def delete(self, namespace: str, name: str) -> None:
        """Delete a Pod immediately."""
        await self.admin.delete(f"/api/v1/namespaces/{namespace}/pods/{name}", gracePeriodSeconds="0")
        self.pods = await self.admin.items("/api/v1/pods")


@contextlib.asynccontextmanager
async def real_cluster(
    settings: WebhookSettings, values: Mapping[str, Any] | None = None
) -> AsyncIterator[PlaneCluster]:
    """Run a control plane, and stop it with everything that was started on it.

    Args:
        settings: the webhook's settings; only those of devices, CPUs and the comparison of nodes count.
        values: further values of the chart.

    Raises:
        PlaneError: something did not start, or did not answer.
    """
    try:
        binaries = await asyncio.to_thread(find_or_build, PROGRAMS)
        async with contextlib.AsyncExitStack() as stack:
            say("starting etcd, kube-apiserver and the controllers")
            made = ControlPlane(binaries, controller_manager=True, controllers=_CONTROLLERS, users={FOREIGNER: ()})
            plane = await stack.enter_async_context(made)
            admin = await stack.enter_async_context(plane.admin())
            kubelets = asyncio.create_task(
                steadily(lambda: fake_kubelets(admin), lambda: _LOG.exception("fake kubelets"))
            )
            stack.callback(kubelets.cancel)
            yield PlaneCluster(plane, admin, binaries, stack, settings, values or {})
    except (BuildError, ChartError, StartError, NotInTimeError, ApiError, aiohttp.ClientError) as error:
        raise PlaneError(str(error)) from error


def _all_rights(username: str) -> Raw:
    """Give a user all rights, so that only the guard can stop them."""
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"}
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": f"demo-{username}"},
        "roleRef": role,
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": username}],
    }


def _path(pod: Mapping[str, Any]) -> str:
    return f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"


def _unschedulable(pod: Mapping[str, Any]) -> str:
    for condition in (pod.get("status") or {}).get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return condition.get("message") or condition.get("reason") or "unschedulable"
    return ""
