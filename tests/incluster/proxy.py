"""kube-proxy on this machine: Services get their addresses by rules of iptables, which are removed at the end."""

import contextlib
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import aiohttp
import yaml

from localplane.binaries import Binaries
from localplane.plane import ControlPlane
from localplane.process import Process, free_port

# The rules are the whole machine's. This file says that those that are there were made by these tests.
_OURS = Path("/run/koordgate-kube-proxy")
_CHAIN = "KUBE-SERVICES"


def problem() -> str | None:
    """Why no kube-proxy can run on this machine, None if one can."""
    if shutil.which("iptables") is None:
        return "kube-proxy needs iptables"
    if _ruled() and not interrupted():
        return "this machine has a kube-proxy already, whose rules are left alone"
    return None


def interrupted() -> bool:
    """Whether a run of these tests was killed: what it left on this machine is not anybody else's."""
    return _OURS.exists()


@contextlib.asynccontextmanager
async def running(plane: ControlPlane, binaries: Binaries, *, node: str, workdir: Path) -> AsyncIterator[Process]:
    """Run kube-proxy for the duration; it is ready when its first rules are there."""
    health = free_port()
    config = {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "iptables",
        "clientConnection": {"kubeconfig": str(plane.admin_kubeconfig)},
        "hostnameOverride": node,
        "healthzBindAddress": f"127.0.0.1:{health}",
        "metricsBindAddress": f"127.0.0.1:{free_port()}",
        # Settings of the whole machine are left as they are.
        "conntrack": {"maxPerCore": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
        "iptables": {"localhostNodePorts": False, "minSyncPeriod": "100ms"},
    }
    file = workdir / "kube-proxy.yaml"
    file.write_text(yaml.safe_dump(config))
    process = Process("kube-proxy", (binaries["kube-proxy"], f"--config={file}"), workdir / "kube-proxy.log")

    async def ready() -> bool:
        try:
            async with (
                aiohttp.ClientSession() as session,
                session.get(f"http://127.0.0.1:{health}/livez") as answer,
            ):
                return answer.status == 200 and _ruled()
        except aiohttp.ClientError:
            return False

    with _rules(binaries):
        try:
            process.start()
            await process.ready(ready)
            yield process
        finally:
            await process.stop()


@contextlib.contextmanager
def _rules(binaries: Binaries) -> Iterator[None]:
    _OURS.touch()
    try:
        yield
    finally:
        subprocess.run((str(binaries["kube-proxy"]), "--cleanup"), check=False, capture_output=True)
        _OURS.unlink(missing_ok=True)


def _ruled() -> bool:
    listed = subprocess.run(("iptables", "-w", "-t", "nat", "-n", "-L", _CHAIN), check=False, capture_output=True)
    return listed.returncode == 0
