"""The container runtime's CRI, as a kubelet calls it: sandboxes and containers without Kubernetes.

The messages are those of k8s.io/cri-api, pkg/apis/runtime/v1/api.proto; only the fields that are used are described.
"""

from pathlib import Path
from typing import Any, Self

from grpc_kubelet import _Plain
from grpclib.client import Channel, UnaryUnaryMethod

from reporter import protobuf
from reporter.protobuf import UINT32, Field

_TABLE = {
    "VersionRequest": (Field("version", 1),),
    "VersionResponse": (Field("runtime_name", 2),),
    "SandboxMetadata": (Field("name", 1), Field("uid", 2), Field("namespace", 3), Field("attempt", 4, UINT32)),
    "LinuxSandbox": (Field("cgroup_parent", 1),),
    "SandboxConfig": (
        Field("metadata", 1, "SandboxMetadata"),
        Field("log_directory", 3),
        Field("annotations", 7, protobuf.TEXTS),
        Field("linux", 8, "LinuxSandbox"),
    ),
    "RunPodSandboxRequest": (Field("config", 1, "SandboxConfig"),),
    "SandboxId": (Field("pod_sandbox_id", 1),),
    "ContainerId": (Field("container_id", 1),),
    "Metadata": (Field("name", 1), Field("attempt", 2, UINT32)),
    "Image": (Field("image", 1),),
    "ContainerConfig": (
        Field("metadata", 1, "Metadata"),
        Field("image", 2, "Image"),
        Field("command", 3, many=True),
        Field("log_path", 11),
    ),
    "CreateContainerRequest": (
        Field("pod_sandbox_id", 1),
        Field("config", 2, "ContainerConfig"),
        Field("sandbox_config", 3, "SandboxConfig"),
    ),
}


class Cri:
    """A client; an async context manager."""

    def __init__(self, socket: Path) -> None:
        self._socket = socket
        self._types = protobuf.messages("runtime.v1", _TABLE)
        self._configs: dict[str, Any] = {}

    async def __aenter__(self) -> Self:
        self._channel = Channel(path=str(self._socket), codec=_Plain())
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._channel.close()

    async def runtime(self) -> str:
        """The name of the runtime."""
        name: str = (await self._call("Version", "VersionRequest", "VersionResponse")).runtime_name
        return name

    async def run_sandbox(self, name: str) -> str:
        """Start a sandbox on the host's network; returns its id."""
        config = {
            "metadata": {"name": name, "uid": f"uid-{name}", "namespace": "bench"},
            "log_directory": f"/tmp/kg-cri-{name}",
        }
        sandbox: str = (
            await self._call("RunPodSandbox", "RunPodSandboxRequest", "SandboxId", config=config)
        ).pod_sandbox_id
        self._configs[sandbox] = config
        return sandbox

    async def create(self, sandbox: str, name: str, image: str, *command: str) -> str:
        """Create a container; returns its id."""
        config = {"metadata": {"name": name}, "image": {"image": image}, "command": command}
        made = await self._call(
            "CreateContainer",
            "CreateContainerRequest",
            "ContainerId",
            pod_sandbox_id=sandbox,
            config=config,
            sandbox_config=self._configs[sandbox],
        )
        identity: str = made.container_id
        return identity

    async def start(self, container: str) -> None:
        """Start a container."""
        await self._call("StartContainer", "ContainerId", "ContainerId", container_id=container)

    async def remove_sandbox(self, sandbox: str) -> None:
        """End and remove a sandbox with its containers."""
        for method in ("StopPodSandbox", "RemovePodSandbox"):
            await self._call(method, "SandboxId", "SandboxId", pod_sandbox_id=sandbox)

    async def _call(self, method: str, asks: str, answers: str, **fields: Any) -> Any:
        call = UnaryUnaryMethod(self._channel, f"/runtime.v1.RuntimeService/{method}", bytes, bytes)
        return protobuf.parse(self._types[answers], await call(self._types[asks](**fields).SerializeToString()))
