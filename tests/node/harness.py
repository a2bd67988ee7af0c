"""A node that really runs Pods: containerd, runc and a kubelet, joined to a local control plane."""

import asyncio
import contextlib
import fcntl
import itertools
import json
import os
import socket
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import aiohttp
import yaml
from node import machine
from node.containerd import PROGRAMS, Containerd

from localplane.admin import ApiError, JsonObject
from localplane.binaries import Binaries
from localplane.plane import ControlPlane
from localplane.process import Process, free_port
from localplane.replicas import laid_over, this_koordgate
from localplane.waiting import NotInTimeError, until

RUNTIME = ("kubelet", *PROGRAMS)
CGROUP = "koordgate-node"
_LOCK = Path("/run/koordgate-node.lock")
_PREFIX = "kg-node-"
_MANAGER_STATES = ("cpu_manager_state", "memory_manager_state")
_NUMBERS = itertools.count(1)


def node_user(name: str) -> dict[str, Sequence[str]]:
    """The user of a node's kubelet, for `ControlPlane(users=...)`."""
    return {f"system:node:{name}": ("system:nodes",)}


class Node:
    """One node; an async context manager. Only one runs on a machine at a time: others wait for it.

    Everything is in a folder and a cgroup of its own, so that a machine that is also a node of a real cluster is not
    disturbed. Everything is removed at the end: Pods, processes, cgroups, mounts, network namespaces, kernel settings.

    Attributes:
        name: Of the Node.
        cgroup: Its root in every cgroup hierarchy; `kubepods` is below it.
        root: The kubelet's folder (checkpoints, sockets).
    """

    def __init__(
        self,
        plane: ControlPlane,
        binaries: Binaries,
        *,
        name: str = "node-1",
        kubelet: Mapping[str, Any] | None = None,
        runtimes: Mapping[str, Path] | None = None,
        cdi: Path | None = None,
    ) -> None:
        """Describe the node.

        Args:
            plane: A control plane with the user of `node_user(name)`, and with a controller manager, which creates what
                Pods mount.
            binaries: The programs, those of `RUNTIME` included.
            name: The Node's name.
            kubelet: Merged over the KubeletConfiguration.
            runtimes: Programs to run containers with in place of runc, by the handler of a RuntimeClass.
            cdi: The folder of its CDI specs.
        """
        self.name = name
        self.cgroup = CGROUP
        self._plane = plane
        self._binaries = binaries
        self._kubelet_overrides = dict(kubelet or {})
        self._runtimes = runtimes
        self._cdi = cdi
        self._health_port = free_port()
        self._undo = contextlib.AsyncExitStack()
        self._folder = Path()

    @property
    def root(self) -> Path:
        return self._folder / "kubelet"

    @property
    def nri_socket(self) -> Path:
        """Where containerd listens to NRI plugins."""
        return self.containerd.nri_socket

    @property
    def containerd_configuration(self) -> Path:
        """The folder of containerd's configuration, which has its usual name."""
        return self.containerd.configuration

    @property
    def configuration(self) -> Path:
        """The kubelet's configuration file, in its folder where kubeadm puts it."""
        return self.root / "config.yaml"

    async def __aenter__(self) -> Self:
        async with self._undo:
            self._undo.enter_context(_only_one())
            machine.remove_stale(_PREFIX)  # left by a killed run: only one run at a time has such a folder
            # Not pytest's own folder: a socket's path may have 107 characters.
            self._folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
            self._undo.callback(machine.remove, self._folder)
            self._undo.enter_context(machine.cgroup(self.cgroup))
            self._undo.enter_context(machine.kernel_settings_kept())
            self._undo.callback(machine.kill_users_of, self._folder)
            self.containerd = Containerd(self._folder, self._binaries, self._runtimes, self._cdi)
            await self._undo.enter_async_context(self.containerd)
            await self._start_kubelet()
            self._undo.push_async_callback(self._delete_pods)
            self._undo = self._undo.pop_all()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._undo.aclose()

    async def load(self, archive: Path) -> None:
        """Take an image into containerd, from an OCI layout archive that names it."""
        await self.containerd.load(archive)

    async def logs(self, namespace: str, pod: str, container: str) -> str:
        """The output of a container so far, over all its starts; empty if it has not started."""
        files = sorted((self._folder / "logs").glob(f"{namespace}_{pod}_*/{container}/*.log"))
        lines = (line for file in files for line in file.read_text().splitlines())
        return "".join(map(_text_of, lines))

    async def run(self, namespace: str, pod: str, container: str, *argv: str) -> str:
        """Run a program in a container, as `kubectl exec` does; returns its output.

        Raises:
            RuntimeError: It failed; the message is its output.
        """
        container_id = await self.container_id(namespace, pod, container)
        return await self.containerd.ctr("tasks", "exec", "--exec-id", f"run-{next(_NUMBERS)}", container_id, *argv)

    async def container_id(self, namespace: str, pod: str, container: str) -> str:
        """The id that containerd has for a running container."""
        found = await self._get_pod(namespace, pod)
        for status in found["status"].get("containerStatuses") or ():
            if status["name"] == container and status.get("started"):
                container_id: str = status["containerID"]
                return container_id.removeprefix("containerd://")
        raise RuntimeError(f"{namespace}/{pod}: {container} does not run")

    async def container_pid(self, namespace: str, pod: str, container: str) -> int:
        """The process id on this machine of a container's first process."""
        container_id = await self.container_id(namespace, pod, container)
        for row in (await self.containerd.ctr("tasks", "list")).splitlines():
            if row.split()[0] == container_id:
                return int(row.split()[1])
        raise RuntimeError(f"containerd does not run {container_id}")

    async def oci_spec(self, namespace: str, pod: str, container: str) -> JsonObject:
        """What runc was given for a running container."""
        container_id = await self.container_id(namespace, pod, container)
        return self.containerd.oci_spec(container_id)

    async def phase(self, namespace: str, pod: str, *phases: str, deadline_s: float = 60.0) -> JsonObject:
        """Wait until a Pod is in one of some phases.

        Returns:
            The Pod.

        Raises:
            NotInTimeError: It did not reach one; the message has its status and the end of the kubelet's log.
        """
        found: JsonObject = {}

        async def reached() -> bool:
            found.update(await self._get_pod(namespace, pod))
            return found["status"].get("phase") in phases

        try:
            await until(reached, f"{namespace}/{pod} is {' or '.join(phases)}", deadline_s=deadline_s, poll_s=0.1)
        except NotInTimeError as error:
            status = json.dumps(found.get("status"), indent=1)
            raise NotInTimeError(f"{error}\n{status}\n{self._kubelet.tail()}") from error
        return found

    async def bind(self, pod: JsonObject, annotations: Mapping[str, str] | None = None) -> None:
        """Bind a Pod to this node, with annotations on the Binding."""
        metadata = {key: pod["metadata"][key] for key in ("namespace", "name", "uid")}
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {**metadata, "annotations": dict(annotations or {})},
            "target": {"apiVersion": "v1", "kind": "Node", "name": self.name},
        }
        path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}/binding"
        async with self._plane.admin() as admin:
            await admin.create(path, binding)

    async def set_capacity(self, capacity: Mapping[str, str | None]) -> None:
        """Add (or, with None, remove) resources of the Node's status, as an agent on the node does."""
        status = {"capacity": dict(capacity), "allocatable": dict(capacity)}
        async with self._plane.admin() as admin:
            await admin.patch(f"/api/v1/nodes/{self.name}/status", {"status": status})

    async def service_account_kubeconfig(self, namespace: str, name: str) -> Path:
        """A kubeconfig of a ServiceAccount with a token that names this node, as the token of a Pod does."""
        async with self._plane.admin() as admin:
            uid = (await admin.get(f"/api/v1/nodes/{self.name}"))["metadata"]["uid"]
            reference = {"apiVersion": "v1", "kind": "Node", "name": self.name, "uid": uid}
            request = {
                "apiVersion": "authentication.k8s.io/v1",
                "kind": "TokenRequest",
                "spec": {"boundObjectRef": reference},
            }
            path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token"
            token = (await admin.create(path, request))["status"]["token"]
        return self._plane.kubeconfig(token, self._folder / "kubeconfigs" / f"{namespace}.{name}.yaml")

    def processes(self, pod: JsonObject) -> dict[Path, tuple[int, ...]]:
        """The processes of a Pod.

        Returns:
            Folder of each cpuset cgroup directly below the Pod's own (a container's, the sandbox's) to the ids of its
            processes on this machine.
        """
        uid = pod["metadata"]["uid"]
        return {
            procs.parent: tuple(map(int, procs.read_text().split()))
            for procs in (_cpusets() / self.cgroup).glob(f"kubepods/**/pod{uid}/*/cgroup.procs")
        }

    async def restart_kubelet(self) -> None:
        """Stop and start the kubelet; Pods keep running."""
        async with self.kubelet_down():
            pass

    @contextlib.asynccontextmanager
    async def kubelet_down(self) -> AsyncIterator[None]:
        """Stop the kubelet for the duration; Pods keep running."""
        await self._kubelet.stop()
        try:
            yield
        finally:
            self._kubelet.start()
            await self._kubelet.ready(self._kubelet_ready)

    async def restart_containerd(self) -> None:
        """Stop and start containerd; Pods keep running, each under its shim."""
        async with self.containerd_down():
            pass

    @contextlib.asynccontextmanager
    async def containerd_down(self) -> AsyncIterator[None]:
        """Stop containerd for the duration; Pods keep running, each under its shim."""
        async with self.containerd.down():
            yield
        await self._kubelet.ready(self._kubelet_ready)

    @contextlib.asynccontextmanager
    async def defaulting_to(self, handler: str) -> AsyncIterator[None]:
        """Run Pods that name no RuntimeClass with another handler than runc for the duration."""
        async with self.containerd.defaulting_to(handler):
            await self._kubelet.ready(self._kubelet_ready)
            yield
        await self._kubelet.ready(self._kubelet_ready)

    @contextlib.asynccontextmanager
    async def powered_off(self) -> AsyncIterator[None]:
        """End everything on the node at once for the duration, as a power failure does: kubelet, runtime, containers.

        Disks keep what was written. Where the API server was off as well, it must be on again at the end.
        """
        for process in (self._kubelet, self.containerd.process):
            process.kill()
        await asyncio.to_thread(machine.kill_users_of, self._folder)  # shims
        await asyncio.to_thread(machine.empty_cgroup, self.cgroup)
        try:
            yield
        finally:
            await self.containerd.start()
            self._kubelet.start()  # a kubelet ends if no runtime answers; here nothing starts it again
            await self._kubelet.ready(self._kubelet_ready)

    @contextlib.asynccontextmanager
    async def configured(self, kubelet: Mapping[str, Any]) -> AsyncIterator[None]:
        """Run another KubeletConfiguration for the duration; before and after it, Pods end and state files are deleted.

        Args:
            kubelet: Merged over the node's configuration.
        """
        before = self._kubelet_overrides
        await self._begin_anew({**before, **kubelet})
        try:
            yield
        finally:
            await self._begin_anew(before)

    async def _begin_anew(self, overrides: Mapping[str, Any]) -> None:
        await self._delete_pods()
        await self._kubelet.stop()
        self._kubelet_overrides = dict(overrides)
        _write(self.configuration, yaml.safe_dump(self._kubelet_configuration()))
        for name in _MANAGER_STATES:
            (self.root / name).unlink(missing_ok=True)  # a kubelet refuses to start with that of another policy
        self._kubelet.start()

        async def decided() -> bool:
            return (self.root / _MANAGER_STATES[0]).exists() and await self._kubelet_ready()

        await self._kubelet.ready(decided)

    async def _get_pod(self, namespace: str, pod: str) -> JsonObject:
        async with self._plane.admin() as admin:
            return await admin.get(f"/api/v1/namespaces/{namespace}/pods/{pod}")

    async def _start_kubelet(self) -> None:
        config = _write(self.configuration, yaml.safe_dump(self._kubelet_configuration()))
        token = self._plane.tokens[f"system:node:{self.name}"]
        argv = (
            self._binaries["kubelet"],
            f"--config={config}",
            f"--kubeconfig={self._plane.kubeconfig(token, self._folder / 'kubeconfig')}",
            f"--root-dir={self.root}",
            f"--cert-dir={self.root / 'pki'}",
            f"--hostname-override={self.name}",
            f"--node-ip={own_address()}",
        )
        self._kubelet = self._process("kubelet", argv)
        self._kubelet.start()
        self._undo.push_async_callback(self._kubelet.stop)
        await self._kubelet.ready(self._kubelet_ready)

    async def _kubelet_ready(self) -> bool:
        url = f"http://127.0.0.1:{self._health_port}/healthz"
        try:
            async with aiohttp.ClientSession() as session, session.get(url) as answer:
                return answer.status == 200 and await self._node_ready()
        except aiohttp.ClientError:
            return False

    async def _node_ready(self) -> bool:
        async with self._plane.admin() as admin:
            node = await admin.find(f"/api/v1/nodes/{self.name}")
        stated = (node or {}).get("status", {}).get("conditions") or ()
        conditions = {item["type"]: item["status"] for item in stated}
        return conditions.get("Ready") == "True"

    def _kubelet_configuration(self) -> JsonObject:
        endpoint = f"unix://{self.containerd.socket}"
        ours = {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "enableServer": False,  # not needed: logs are files, and containerd runs programs in containers
            "healthzPort": self._health_port,
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{self.cgroup}",
            "containerRuntimeEndpoint": endpoint,
            "evictionHard": {},
            "failCgroupV1": False,
            "failSwapOn": False,
            "localStorageCapacityIsolation": False,
            "makeIPTablesUtilChains": False,
            "nodeStatusUpdateFrequency": "2s",
            "podLogsDir": str(self._folder / "logs"),
            "volumePluginDir": str(self._folder / "volume-plugins"),
        }
        return {**ours, **self._kubelet_overrides}

    async def _delete_pods(self) -> None:
        """Have the kubelet end all Pods; remaining processes are killed with its cgroup."""
        async with self._plane.admin() as admin:

            async def gone() -> bool:
                pods = await admin.items("/api/v1/pods", fieldSelector=f"spec.nodeName={self.name}")
                for pod in pods:
                    metadata = pod["metadata"]
                    if "deletionTimestamp" not in metadata:
                        path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"
                        with contextlib.suppress(ApiError):  # somebody else deleted it
                            await admin.delete(path, gracePeriodSeconds="1")
                return not pods

            with contextlib.suppress(NotInTimeError):
                await until(gone, "all Pods are gone", poll_s=0.2)

    def _process(self, name: str, argv: Sequence[str | Path], env: Mapping[str, str] | None = None) -> Process:
        return Process(name, argv, self._folder / f"{name}.log", env=env)


class Reporter:
    """The node's reporter as a process of this machine; an async context manager.

    Its settings are the chart's, except paths; its rights are those of the chart's ServiceAccount.

    Attributes:
        config: The file of its settings.
    """

    def __init__(
        self,
        node: Node,
        settings: str,
        *,
        kubeconfig: Path,
        workdir: Path,
        overrides: Mapping[str, Any] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Describe the reporter.

        Args:
            node: The reporter's node.
            settings: Its settings file's YAML, as in the chart's ConfigMap.
            kubeconfig: Its credentials.
            workdir: Folder for settings, state and log.
            overrides: Merged over the settings.
            environment: Added to this process's.
        """
        port = free_port()
        self._url = f"http://127.0.0.1:{port}"
        ours = {
            "node": node.name,
            "roots": {
                "sysfs": "/sys",
                "proc": "/proc",
                "cgroup": "/sys/fs/cgroup",
                "kubelet": str(node.root),
                "state": str(workdir / "state"),
            },
            "serve": {"host": "127.0.0.1", "port": port},
            "kubelet": {
                "configuration": str(node.configuration),
                "podResources": str(node.root / "pod-resources" / "kubelet.sock"),
            },
        }
        told = laid_over(laid_over(yaml.safe_load(settings), ours), overrides or {})
        self.config = _write(workdir / "reporter.yaml", yaml.safe_dump(told))
        env = {**os.environ, **(environment or {}), "KUBECONFIG": str(kubeconfig)}
        argv = (*this_koordgate(), "serve", "reporter", "--config", str(self.config))
        self.process = Process("reporter", argv, workdir / "reporter.log", env=env)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.process.stop()

    async def start(self) -> None:
        """Start or restart it, and wait until it serves."""
        self.process.start()
        await self.process.ready(self._ready)

    async def metric(self, name: str) -> float:
        """The value of a metric that has no labels."""
        async with aiohttp.ClientSession() as session, session.get(f"{self._url}/metrics") as answer:
            rows = (await answer.text()).splitlines()
        (value,) = (float(row.split()[1]) for row in rows if row.startswith(f"{name} "))
        return value

    async def _ready(self) -> bool:
        try:
            async with aiohttp.ClientSession() as session, session.get(f"{self._url}/healthz") as answer:
                return answer.status == 200
        except aiohttp.ClientError:
            return False


@contextlib.contextmanager
def _only_one() -> Iterator[None]:
    with _LOCK.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def _text_of(line: str) -> str:
    """One line of a container's log file: time, stream, F(ull) or P(artial), text."""
    _, _, tag, text = line.split(" ", 3)
    return text if tag == "P" else f"{text}\n"


def _cpusets() -> Path:
    """The mount of the cpuset hierarchy: in v1 its own, in v2 the only one."""
    v1 = Path("/sys/fs/cgroup/cpuset")
    return v1 if v1.is_dir() else v1.parent


def own_address() -> str:
    """An address of this machine that is not loopback, which a kubelet requires. Nothing is sent to find it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))
        return str(probe.getsockname()[0])
