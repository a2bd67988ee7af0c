"""Memory of one webhook replica that is flooded, and whether it answers others meanwhile.

A real `koordgate serve webhook` gets, at the same time: connections that send most of the largest body and then
wait; compressed ones that would be a hundred times as large; heads without an end; idle TLS connections; and Pods of a
megabyte, each different, so that nothing can be remembered of the last. An API server beside them sends small reviews
without pause. The value is by how much the process grew at its peak. The reference is what the chart's limit leaves
above the largest replica that the benchmark `memory` allows.
"""

import argparse
import asyncio
import contextlib
import gzip
import ssl
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import yaml
from memory import REFERENCE_MB, LargeCluster, memory, ready, replica, say
from result import close

from koordgate.kube.resource import MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS
from localplane.process import free_port

CHART = Path(__file__).parents[1] / "charts" / "koordgate" / "values.yaml"
BODY = 7 * 2**20
SENT = BODY * 95 // 100
HEAD = "POST /mutate-pod?timeout=5s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n"
MAX_S = 300.0
AT_ONCE = 20
PATIENCE_S = 1.75  # of the API server, by the chart


def review(pod: dict[str, Any]) -> bytes:
    request = {
        "uid": "flood",
        "kind": {"group": "", "version": "v1", "kind": "Pod"},
        "resource": {"group": "", "version": "v1", "resource": "pods"},
        "operation": "CREATE",
        "namespace": "team-0",
        "dryRun": True,
        "userInfo": {"username": "somebody"},
        "object": pod,
    }
    return orjson.dumps({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request})


def gpu_pod(name: str, terms: int = 0) -> dict[str, Any]:
    """A Pod that asks for a card; with affinity terms of about a kilobyte each, different for each name."""
    spec: dict[str, Any] = {"containers": [{"name": "main", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]}
    if terms:
        values = [f"{name}-{number:05}-" + "x" * 40 for number in range(16)]
        expression = {"key": "kubernetes.io/hostname", "operator": "In", "values": values}
        term = {"nodeSelectorTerms": [{"matchExpressions": [expression]}] * terms}
        spec["affinity"] = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": term}}
    return {"metadata": {"name": name, "namespace": "team-0"}, "spec": spec}


@dataclass
class Honest:
    """Small reviews, one after another, on a connection that is opened anew from time to time."""

    port: int
    seconds: list[float] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)

    async def run(self) -> None:
        body = review(gpu_pod("honest"))
        timeout = aiohttp.ClientTimeout(total=PATIENCE_S)
        while True:
            connector = aiohttp.TCPConnector(ssl=False)
            async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
                for _ in range(20):
                    await self._ask(session, body)

    async def _ask(self, session: aiohttp.ClientSession, body: bytes) -> None:
        began = time.perf_counter()
        try:
            async with session.post(
                f"https://127.0.0.1:{self.port}/mutate-pod?timeout=2s",
                data=body,
                headers={"Content-Type": "application/json"},
            ) as answer:
                found = orjson.loads(await answer.read())
                if answer.status != 200 or not found["response"]["allowed"]:
                    self.failed.append(f"{answer.status} {str(found)[:200]}")
        except (aiohttp.ClientError, TimeoutError) as error:
            self.failed.append(repr(error))
        self.seconds.append(time.perf_counter() - began)


class Flood:
    """Connections that mean harm."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._tls = ssl.create_default_context()
        self._tls.check_hostname, self._tls.verify_mode = False, ssl.CERT_NONE
        self._open: list[asyncio.StreamWriter] = []

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        made = await asyncio.open_connection("127.0.0.1", self._port, ssl=self._tls)
        self._open.append(made[1])
        return made

    async def idle(self, count: int) -> None:
        """Open connections, and send nothing."""
        for _ in range(count // AT_ONCE):
            await asyncio.gather(*(self._connect() for _ in range(AT_ONCE)), return_exceptions=True)

    async def stuck(self, count: int) -> None:
        """Send most of a body on each connection at once, and then nothing."""
        await asyncio.gather(*(self._send_most() for _ in range(count)))

    async def _send_most(self) -> None:
        with contextlib.suppress(OSError):
            _, writer = await self._connect()
            writer.write(HEAD.format(BODY).encode())
            for _ in range(SENT // 65_536):
                writer.write(b" " * 65_536)
                await writer.drain()

    async def compressed(self, count: int) -> None:
        """Send bodies of zeros, compressed and without their ends."""
        packed = gzip.compress(bytes(BODY))[:-64] if count else b""
        head = HEAD.format(len(packed) + 64).removesuffix("\r\n") + "Content-Encoding: gzip\r\n\r\n"
        await asyncio.gather(*(self._send(head.encode() + packed) for _ in range(count)))

    async def heads(self, count: int) -> None:
        """Send heads of a megabyte without their ends."""
        head = HEAD.format(0).removesuffix("\r\n") + "".join(f"x-{at}: {'x' * 8000}\r\n" for at in range(120))
        await asyncio.gather(*(self._send(head.encode()) for _ in range(count)))

    async def _send(self, data: bytes) -> None:
        with contextlib.suppress(OSError):
            _, writer = await self._connect()
            writer.write(data)
            await writer.drain()

    async def large(self, count: int) -> None:
        """Have large Pods judged, one after another, each of its own kind."""
        headers = {"Content-Type": "application/json"}
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=False)) as session:
            for number in range(count):
                with contextlib.suppress(aiohttp.ClientError):
                    url = f"https://127.0.0.1:{self._port}/mutate-pod?timeout=5s"
                    async with session.post(url, data=review(gpu_pod(f"p{number}", 1000)), headers=headers) as answer:
                        await answer.read()

    def close(self) -> None:
        """Close all connections."""
        for writer in self._open:
            writer.transport.abort()


def limit_mb() -> float:
    """The chart's memory limit of a replica, in MB (2^20 bytes)."""
    text: str = yaml.safe_load(CHART.read_text())["resources"]["limits"]["memory"]
    return float(text.removesuffix("Mi"))


async def measure(arguments: argparse.Namespace) -> tuple[float, Honest]:
    nodes = arguments.nodes
    with tempfile.TemporaryDirectory() as directory:
        async with LargeCluster(nodes, nodes * 10) as server:
            for resource in (MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS):
                webhooks = [{"name": "pods.koordgate.io", "clientConfig": {"service": {"name": "koordgate"}}}]
                server.put(resource.path(), {"metadata": {"name": "koordgate"}, "webhooks": webhooks})
            port, extender = free_port(), free_port()
            async with replica(server.url, Path(directory), port, extender, "packing") as process:
                async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=False)) as session:
                    await ready(process, session, f"https://127.0.0.1:{port}")
                before = memory(process.pid)["VmRSS"]
                honest, flood = Honest(port), Flood(port)
                asking = asyncio.create_task(honest.run())
                try:
                    async with asyncio.timeout(MAX_S):
                        await asyncio.gather(
                            flood.idle(arguments.idle),
                            flood.stuck(arguments.stuck),
                            flood.compressed(arguments.compressed),
                            flood.heads(arguments.heads),
                            flood.large(arguments.large),
                        )
                    peak = memory(process.pid)["VmHWM"]
                finally:
                    flood.close()
                    asking.cancel()
                    await asyncio.wait([asking])
                say(f"  {before:.0f} MB resident before, {peak:.0f} MB at the peak")
                return peak - before, honest


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=50)
    parser.add_argument("--idle", type=int, default=1500, help="idle TLS connections")
    parser.add_argument("--stuck", type=int, default=40, help="connections that send most of a body of 7 MB")
    parser.add_argument("--compressed", type=int, default=100, help="connections that send a compressed body of 7 MB")
    parser.add_argument("--heads", type=int, default=100, help="connections that send a head without an end")
    parser.add_argument("--large", type=int, default=30, help="Pods of a megabyte, each different")
    arguments = parser.parse_args()
    if not Path("/proc/self/status").exists():
        parser.error("memory is read from /proc, which only Linux has")
    value, honest = asyncio.run(measure(arguments))
    worst, asked = max(honest.seconds), len(honest.seconds)
    say(f"  small reviews meanwhile: {asked}, of which {len(honest.failed)} failed; the slowest took {worst:.2f} s")
    if honest.failed:
        sys.exit(f"small reviews failed, the first: {honest.failed[0]}")
    close(name="flood", value=value, unit="MB", reference=limit_mb() - REFERENCE_MB, goal=1.0, higher_is_better=False)


if __name__ == "__main__":
    main()
