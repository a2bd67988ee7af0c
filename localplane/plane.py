"""etcd, kube-apiserver and, optionally, kube-controller-manager and kube-schedulers on loopback."""

import asyncio
import json
import secrets
import shutil
import ssl
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import aiohttp
import yaml

from localplane.admin import AdminClient, ApiError
from localplane.binaries import Binaries
from localplane.keys import signing_key_pem
from localplane.process import Process, free_port
from localplane.waiting import until

CONTROL_PLANE = ("etcd", "kube-apiserver", "kube-scheduler", "kube-controller-manager")
SERVICES = "10.212.0.0/24"  # the network of Services' addresses where Pods reach the API server
ADMIN = "koordgate-admin"  # the administrator's user name
_HOST = "127.0.0.1"
_PROBE_S = 5.0
_GOODBYE_S = 1.0  # the API server would drain its watches for a minute; the data is not needed afterwards
_TOKEN_S = 24 * 3600


class ControlPlane:
    """A Kubernetes control plane; an async context manager.

    Everything is as in a cluster (RBAC, the Node authorizer, the default admission plugins, signed service account
    tokens), with three exceptions. etcd does not sync to disk. The API server makes its own certificates. There is no
    kube-proxy: Services get addresses of 127.0.0.0/8, on which a `Balancer` can listen, so that the API server reaches
    webhooks by their Service as it does in a cluster.

    Without the controller manager nothing creates a namespace's default ServiceAccount: use `ensure_namespace`.
    """

    def __init__(
        self,
        binaries: Binaries,
        *,
        workdir: Path | None = None,
        controller_manager: bool = False,
        controllers: str = "*",
        users: Mapping[str, Sequence[str]] | None = None,
        feature_gates: Mapping[str, bool] | None = None,
        apiserver_args: Sequence[str] = (),
        address: str = _HOST,
    ) -> None:
        """Describe the control plane; `async with` starts it.

        Args:
            binaries: The programs; see `binaries.find_or_build`.
            workdir: Folder for logs, data and keys, which is kept at the end; by default a temporary folder.
            controller_manager: Whether to run kube-controller-manager.
            controllers: Which controllers it runs, as its argument of that name. That of the lives of nodes takes Nodes
                without a kubelet for dead after 40 s: `*,-node-lifecycle-controller` leaves it out.
            users: Further users by name, each with its groups; their tokens are in `tokens`.
            feature_gates: For kube-apiserver, kube-controller-manager and the schedulers.
            apiserver_args: Further arguments of kube-apiserver.
            address: Where the API server listens: loopback, or an address of this machine that Pods reach, in which
                case Services get addresses of `SERVICES`, for a kube-proxy.
        """
        self._binaries = binaries
        self._given_workdir = workdir
        self._with_controller_manager = controller_manager
        self._controllers = controllers
        self._groups = {ADMIN: ("system:masters",), **{name: tuple(groups) for name, groups in (users or {}).items()}}
        self._gates = [f"--feature-gates={gate}={str(on).lower()}" for gate, on in (feature_gates or {}).items()]
        self._apiserver_args = tuple(apiserver_args)
        self._address = address
        self._processes: dict[str, Process] = {}
        self.tokens: dict[str, str] = {user: secrets.token_urlsafe(24) for user in self._groups}
        self.workdir = Path()
        self.etcd_url = ""
        self.admin_url = ""

    async def __aenter__(self) -> Self:
        given = self._given_workdir
        self.workdir = Path(tempfile.mkdtemp(prefix="koordgate-plane-")) if given is None else given.resolve()
        self.workdir.mkdir(parents=True, exist_ok=True)
        try:
            await self._start()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        # Together, not in order: the API server logs errors until etcd answers, which is harmless.
        await asyncio.gather(*(process.stop(deadline_s=_GOODBYE_S) for process in self._processes.values()))
        self._processes.clear()
        if self._given_workdir is None:
            shutil.rmtree(self.workdir, ignore_errors=True)

    @property
    def admin_token(self) -> str:
        """The token of a user in system:masters."""
        return self.tokens[ADMIN]

    @property
    def ca_file(self) -> Path:
        """The certificates that verify the API server."""
        return self.workdir / "apiserver" / "apiserver.crt"

    @property
    def admin_kubeconfig(self) -> Path:
        """A kubeconfig of the administrator."""
        return self.workdir / "kubeconfig" / "admin.yaml"

    def admin(self, token: str | None = None) -> AdminClient:
        """A client, to be used with `async with`; the administrator's unless a token is given."""
        return AdminClient(self.admin_url, token or self.admin_token, self.ca_file)

    def kubeconfig(self, token: str, path: Path) -> Path:
        """Write a kubeconfig for the owner of a token.

        Args:
            token: The bearer token.
            path: The file.

        Returns:
            The same path.
        """
        cluster = {"server": self.admin_url, "certificate-authority": str(self.ca_file)}
        context = {"cluster": "local", "user": "user", "namespace": "default"}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "local", "cluster": cluster}],
            "users": [{"name": "user", "user": {"token": token}}],
            "contexts": [{"name": "local", "context": context}],
            "current-context": "local",
        }
        return _write_private(path, yaml.safe_dump(config, sort_keys=False))

    async def service_account_token(self, namespace: str, name: str, *, node: str = "") -> str:
        """A token of a ServiceAccount, signed by the API server (TokenRequest).

        Args:
            namespace: The account's namespace.
            name: The account's name.
            node: If given, the token is bound to a Pod on this Node and names both, as a token that a kubelet mounts.
                The Pod is created if it does not exist, and serves no other purpose.
        """
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token"
        spec: dict[str, Any] = {"expirationSeconds": _TOKEN_S}
        request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        async with self.admin() as admin:
            if node:
                pod = await admin.apply(_pod_on(node, namespace, name))
                names = {"name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}
                spec["boundObjectRef"] = {"apiVersion": "v1", "kind": "Pod", **names}
            token: str = (await admin.create(path, request))["status"]["token"]
        return token

    async def service_account_kubeconfig(self, namespace: str, name: str, *, node: str = "") -> Path:
        """A kubeconfig of a ServiceAccount, in the working folder; `node` as for `service_account_token`."""
        token = await self.service_account_token(namespace, name, node=node)
        file = ".".join(filter(None, (namespace, name, node, "yaml")))
        return self.kubeconfig(token, self.workdir / "kubeconfig" / file)

    async def ensure_namespace(self, name: str, labels: Mapping[str, str] | None = None) -> None:
        """Create a namespace, unless it exists, with the default ServiceAccount that its Pods need."""
        namespace: dict[str, Any] = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
        if labels:
            namespace["metadata"]["labels"] = dict(labels)
        account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default", "namespace": name}}
        async with self.admin() as admin:
            await admin.apply(namespace)
            await admin.apply(account)

    async def add_node(
        self, name: str, capacity: Mapping[str, str], *, labels: Mapping[str, str] | None = None
    ) -> None:
        """Add a Node without a kubelet, to which Pods can be bound.

        Args:
            name: The Node's name.
            capacity: Its capacity, all of it allocatable; schedulers need `pods` in it.
            labels: The Node's labels.
        """
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": dict(labels or {})}}
        ready = {
            "type": "Ready",
            "status": "True",
            "reason": "Declared",
            "message": "a Node of the local control plane",
        }
        status = {"capacity": dict(capacity), "allocatable": dict(capacity), "conditions": [ready]}
        async with self.admin() as admin:
            await admin.apply(node)
            await admin.patch(f"/api/v1/nodes/{name}/status", {"status": status})
            # Admission taints every new Node as not ready, and no node controller removes the taint.
            await admin.patch(f"/api/v1/nodes/{name}", {"spec": {"taints": None}})

    async def service_address(self, namespace: str, name: str) -> tuple[str, int]:
        """The address and the first port of a Service, on which a `Balancer` can listen in its place."""
        async with self.admin() as admin:
            spec = (await admin.get(f"/api/v1/namespaces/{namespace}/services/{name}"))["spec"]
        return spec["clusterIP"], spec["ports"][0]["port"]

    def kill_apiserver(self) -> None:
        """Kill the API server, as a crash does; etcd and its data stay."""
        self._processes["kube-apiserver"].kill()

    async def start_apiserver(self) -> None:
        """Start the API server that was killed, on the same port."""
        apiserver = self._processes["kube-apiserver"]
        apiserver.start()
        await apiserver.ready(self._apiserver_ready)

    async def restart_apiserver(self) -> None:
        """Kill and start the API server: same port, same certificate, same data."""
        self.kill_apiserver()
        await self.start_apiserver()

    def power_off(self) -> None:
        """Kill all processes at once, as a power failure does; what is on disk stays."""
        for process in self._processes.values():
            process.kill()

    async def power_on(self) -> None:
        """Start what was killed, all at once.

        What gives up before the API server answers is started again, as a kubelet does with static Pods.
        """
        for process in self._processes.values():
            process.start()

        async def ready() -> bool:
            for process in self._processes.values():
                if not process.alive:
                    process.start()
            return await self._apiserver_ready()

        await until(ready, "the control plane is back", deadline_s=120)

    async def start_scheduler(self, name: str, config: str = "", kubeconfig: Path | None = None) -> str:
        """Start a kube-scheduler and wait until it is ready.

        Args:
            name: This process's name, for `stop_scheduler` and the log.
            config: A KubeSchedulerConfiguration as YAML. Its kubeconfig is set here; leader election is off unless it
                is set there.
            kubeconfig: The scheduler's credentials; the administrator's by default.

        Returns:
            Its base URL on loopback (metrics, with the administrator's token; verified by `scheduler_ca_file`).
        """
        folder = self.workdir / name
        path = _write_private(folder / "config.yaml", _scheduler_config(config, kubeconfig or self.admin_kubeconfig))
        return await self._start_component(name, "kube-scheduler", (f"--config={path}", *self._gates), "/readyz")

    def scheduler_ca_file(self, name: str) -> Path:
        """The certificate that verifies a scheduler's own port."""
        return self.workdir / name / "kube-scheduler.crt"

    async def stop_scheduler(self, name: str) -> None:
        """Stop a scheduler."""
        await self._processes.pop(name).stop()

    def process(self, name: str) -> Process:
        """A process by name (etcd, kube-apiserver, kube-controller-manager, a scheduler's), for its log or a signal."""
        return self._processes[name]

    async def _start(self) -> None:
        _write_private(self.workdir / "service-account.pem", signing_key_pem())
        rows = (f'{self.tokens[user]},{user},{user},"{",".join(groups)}"\n' for user, groups in self._groups.items())
        _write_private(self.workdir / "tokens.csv", "".join(rows))
        port = free_port(self._address)
        self.admin_url = f"https://{self._address}:{port}"
        self.kubeconfig(self.admin_token, self.admin_kubeconfig)
        await self._start_etcd()
        self._add("kube-apiserver", "kube-apiserver", self._apiserver_argv(port))
        await self.start_apiserver()
        await self._default_namespace()
        if self._with_controller_manager:
            await self._start_controller_manager()

    async def _start_etcd(self) -> None:
        self.etcd_url, peer_url = (f"http://{_HOST}:{free_port(_HOST)}" for _ in range(2))
        argv = (
            f"--data-dir={self.workdir / 'etcd'}",
            f"--listen-client-urls={self.etcd_url}",
            f"--advertise-client-urls={self.etcd_url}",
            f"--listen-peer-urls={peer_url}",
            f"--initial-advertise-peer-urls={peer_url}",
            f"--initial-cluster=default={peer_url}",
            "--unsafe-no-fsync",
            f"--quota-backend-bytes={8 * 2**30}",
            "--log-level=warn",
        )
        etcd = self._add("etcd", "etcd", argv)
        etcd.start()

        async def ready() -> bool:
            return await _answers(f"{self.etcd_url}/readyz", None)

        await etcd.ready(ready)

    def _apiserver_argv(self, port: int) -> tuple[str, ...]:
        key = self.workdir / "service-account.pem"
        local = self._address == _HOST
        return (
            f"--etcd-servers={self.etcd_url}",
            f"--bind-address={self._address}",
            f"--advertise-address={self._address}",
            # The Endpoints of the Service `kubernetes` may not hold a loopback address.
            f"--endpoint-reconciler-type={'none' if local else 'lease'}",
            f"--secure-port={port}",
            f"--cert-dir={self.ca_file.parent}",
            # All of 127.0.0.0/8 is local; the port makes the range unique to this control plane.
            f"--service-cluster-ip-range={f'127.{port >> 8}.{port & 0xFF}.0/24' if local else SERVICES}",
            f"--token-auth-file={self.workdir / 'tokens.csv'}",
            "--authorization-mode=Node,RBAC",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={key}",
            f"--service-account-signing-key-file={key}",
            "--allow-privileged=true",
            *self._gates,
            *self._apiserver_args,
        )

    async def _apiserver_ready(self) -> bool:
        return await _answers(f"{self.admin_url}/readyz", self.ca_file)

    async def _default_namespace(self) -> None:
        """Wait for the namespace `default`, which the API server creates shortly after it is ready."""

        async def made() -> bool:
            try:
                await self.ensure_namespace("default")
            except ApiError as error:
                if error.status == 404 or error.reason == "Conflict":  # noqa: PLR2004 - created twice at once
                    return False
                raise
            return True

        await until(made, "the namespace default has a service account")

    async def _start_controller_manager(self) -> None:
        argv = (
            f"--kubeconfig={self.admin_kubeconfig}",
            f"--service-account-private-key-file={self.workdir / 'service-account.pem'}",
            f"--root-ca-file={self.ca_file}",
            "--use-service-account-credentials=true",
            "--leader-elect=false",
            f"--controllers={self._controllers}",
            *self._gates,
        )
        name = "kube-controller-manager"
        await self._start_component(name, name, argv, "/healthz")  # it has no /readyz

    async def _start_component(self, name: str, binary: str, argv: Sequence[str], health: str) -> str:
        port = free_port(_HOST)
        folder = self.workdir / name
        serving = (
            f"--bind-address={_HOST}",
            f"--secure-port={port}",
            f"--cert-dir={folder}",
            f"--authentication-kubeconfig={self.admin_kubeconfig}",
            f"--authorization-kubeconfig={self.admin_kubeconfig}",
        )
        process = self._add(name, binary, (*argv, *serving))
        process.start()
        url = f"https://{_HOST}:{port}"

        async def ready() -> bool:
            return await _answers(f"{url}{health}", folder / f"{binary}.crt")

        await process.ready(ready)
        return url

    def _add(self, name: str, binary: str, argv: Sequence[str]) -> Process:
        if name in self._processes and self._processes[name].alive:
            raise ValueError(f"{name} is already running")
        process = Process(name, (self._binaries[binary], *argv), self.workdir / "logs" / f"{name}.log")
        self._processes[name] = process
        return process


def _pod_on(node: str, namespace: str, account: str) -> dict[str, Any]:
    """Describe a Pod that is bound to a Node and runs as a ServiceAccount."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"{account}-{node}", "namespace": namespace},
        "spec": {
            "nodeName": node,
            "serviceAccountName": account,
            "containers": [{"name": "main", "image": "none"}],
            "tolerations": [{"operator": "Exists"}],
        },
    }


def _write_private(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(mode=0o600)
    path.write_text(text)
    return path


def _scheduler_config(text: str, kubeconfig: Path) -> str:
    config = yaml.safe_load(text) or {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
    }
    config.setdefault("leaderElection", {"leaderElect": False})
    config["clientConnection"] = {**config.get("clientConnection", {}), "kubeconfig": str(kubeconfig)}
    return json.dumps(config, indent=1)


async def _answers(url: str, ca_file: Path | None) -> bool:
    """Whether a health endpoint reports success; unreachable, not yet certified and not yet ready are all failures."""
    try:
        tls = ssl.create_default_context(cafile=ca_file)
        timeout = aiohttp.ClientTimeout(total=_PROBE_S)
        async with aiohttp.ClientSession(timeout=timeout) as session, session.get(url, ssl=tls) as answer:
            return answer.status == 200  # noqa: PLR2004 - HTTP's OK
    except (aiohttp.ClientError, TimeoutError, OSError):  # ssl.SSLError is an OSError: a certificate half written
        return False
