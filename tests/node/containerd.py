"""containerd and runc alone, in a folder of their own: a node's container runtime."""

import asyncio
import contextlib
import json
import os
import subprocess
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Self

from grpclib.exceptions import GRPCError
from node import images, machine
from node.cri import Cri

from localplane.admin import JsonObject
from localplane.binaries import Binaries
from localplane.process import Process

PROGRAMS = ("containerd", "containerd-shim-runc-v2", "ctr")


class Containerd:
    """A container runtime; an async context manager.

    Attributes:
        process: The process of containerd.
        socket: Where it answers the kubelet.
        nri_socket: Where it listens to NRI plugins, in a folder of its own.
        configuration: The folder of its configuration, which has its usual name.
    """

    def __init__(
        self,
        folder: Path,
        binaries: Binaries,
        runtimes: Mapping[str, Path] | None = None,
        cdi: Path | None = None,
    ) -> None:
        """Describe it.

        Args:
            folder: A short path: a socket's may have 107 characters.
            binaries: The programs, `PROGRAMS` among them.
            runtimes: Programs to run containers with in place of runc, by the handler of a RuntimeClass.
            cdi: The folder of its CDI specs.
        """
        self.socket = folder / "containerd.sock"
        self.nri_socket = folder / "nri" / "nri.sock"
        self.configuration = folder / "etc" / "containerd"
        self._folder = folder
        self._binaries = binaries
        self._runtimes = {"runc": Path("runc"), **(runtimes or {})}
        self._cdi = cdi or folder / "cdi"
        shims = binaries["containerd-shim-runc-v2"].parent
        env = {**os.environ, "PATH": f"{shims}:{os.environ['PATH']}"}
        argv = (binaries["containerd"], "--config", self.configuration / "config.toml")
        self.process = Process("containerd", argv, folder / "containerd.log", env=env)

    async def __aenter__(self) -> Self:
        self._configure()
        network = self._folder / "cni" / "10-ptp.conflist"
        network.parent.mkdir(parents=True)
        network.write_text(json.dumps(_network(self._folder)))
        await self.start()
        try:
            for archive in await asyncio.to_thread(images.make, self._folder / "images"):
                await self.load(archive)
        except BaseException:
            await self.process.stop()
            raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.process.stop()

    async def start(self) -> None:
        """Start it, and wait until it answers."""
        self.process.start()
        await self.process.ready(self._ready)

    @contextlib.asynccontextmanager
    async def down(self) -> AsyncIterator[None]:
        """Stop it for the duration; containers keep running, each under its shim."""
        await self.process.stop()
        try:
            yield
        finally:
            await self.start()

    @contextlib.asynccontextmanager
    async def defaulting_to(self, handler: str) -> AsyncIterator[None]:
        """Run Pods that name no RuntimeClass with another handler than runc for the duration."""
        async with self.down():
            self._configure(handler)
        try:
            yield
        finally:
            async with self.down():
                self._configure()

    async def load(self, archive: Path) -> None:
        """Take an image, from an OCI layout archive that names it."""
        await self.ctr("images", "import", str(archive))

    def oci_spec(self, container_id: str) -> JsonObject:
        """What runc was given for a running container."""
        bundle = self._folder / "state" / "io.containerd.runtime.v2.task" / "k8s.io" / container_id
        spec: JsonObject = json.loads((bundle / "config.json").read_text())
        return spec

    async def ctr(self, *argv: str) -> str:
        """Run containerd's own command; returns its output.

        Raises:
            RuntimeError: It failed; the message is its output.
        """
        command = (str(self._binaries["ctr"]), "--address", str(self.socket), "-n", "k8s.io", *argv)
        done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"ctr {' '.join(argv)}: {done.stdout}{done.stderr}")
        return done.stdout

    async def _ready(self) -> bool:
        # Its plugin for the CRI is listed a moment before it answers, and a kubelet that comes in between ends.
        try:
            async with Cri(self.socket) as cri:
                return bool(await cri.runtime())
        except (GRPCError, OSError):
            return False

    def _configure(self, default: str = "runc") -> None:
        self.configuration.mkdir(parents=True, exist_ok=True)
        toml = _toml(self._folder, self._runtimes, default, self.nri_socket, self._cdi)
        (self.configuration / "config.toml").write_text(toml)


def _toml(folder: Path, runtimes: Mapping[str, Path], default: str, nri_socket: Path, cdi: Path) -> str:
    handlers = "".join(
        f"""
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.{name}]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.{name}.options]
BinaryName = "{program}"
Root = "{folder}/runc"
"""
        for name, program in runtimes.items()
    )
    return f"""
version = 3
root = "{folder}/containerd"
state = "{folder}/state"
[grpc]
address = "{folder}/containerd.sock"
[plugins."io.containerd.internal.v1.opt"]
path = "{folder}/opt"
[plugins."io.containerd.nri.v1.nri"]
socket_path = "{nri_socket}"
plugin_path = "{folder}/nri/plugins"
plugin_config_path = "{folder}/nri/conf.d"
[plugins."io.containerd.nri.v1.nri".default_validator]
enable = true
[plugins."io.containerd.cri.v1.images".pinned_images]
sandbox = "{images.PAUSE}"
[plugins."io.containerd.cri.v1.runtime"]
restrict_oom_score_adj = true # root without CAP_SYS_RESOURCE, as in some virtual machines
netns_mounts_under_state_dir = true
cdi_spec_dirs = ["{cdi}"]
[plugins."io.containerd.cri.v1.runtime".containerd]
default_runtime_name = "{default}"
{handlers}
[plugins."io.containerd.cri.v1.runtime".cni]
bin_dirs = ["{machine.cni_folder()}"]
conf_dir = "{folder}/cni"
"""


def _network(folder: Path) -> JsonObject:
    ranges = [[{"subnet": "10.211.0.0/24"}]]
    routes = [{"dst": "0.0.0.0/0"}]  # Pods reach Services by this machine
    ipam = {"type": "host-local", "dataDir": f"{folder}/addresses", "ranges": ranges, "routes": routes}
    ptp = {"type": "ptp", "ipam": ipam}
    return {"cniVersion": "1.0.0", "name": "koordgate-node", "plugins": [ptp]}
