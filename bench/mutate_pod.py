"""Requests per second of CPU time of /mutate-pod, beside a bare handler on the same stack that answers `{}`.

Two HTTPS servers (aiohttp, uvloop, the same certificate) get the same AdmissionReview: ours, with every stage (limits,
deadline, decoding, translation, warnings, metrics), and the bare one. Each is pinned to one core, the load (raw HTTP
over TLS, connections kept open) to another. Rounds alternate, and medians are compared. CPU time counts because other
work on the machine changes it less; on a quiet machine one core answers as many.
"""

import argparse
import asyncio
import os
import ssl
import statistics
import subprocess
import sys
from pathlib import Path
from typing import cast

import orjson
import uvloop
from aiohttp import web
from result import close

from webhook.app import listen, make_app
from webhook.assembly import Parts
from webhook.ledger.store import MemoryStore
from webhook.settings import Certificate, ServeSettings, WebhookSettings
from webhook.tls.certs import MemorySource
from webhook.view.livepods import LivePods

SERVERS = ("ours", "bare")
CONNECTIONS = 8


def review() -> bytes:
    """An AdmissionReview as the API server sends it for a training Pod of two containers."""
    resources = {"requests": {"nvidia.com/gpu": "2", "cpu": "4"}, "limits": {"nvidia.com/gpu": "2", "cpu": "4"}}
    token = "/var/run/secrets/kubernetes.io/serviceaccount"
    mounts = [{"name": "kube-api-access-x", "readOnly": True, "mountPath": token}]
    sources = [{"serviceAccountToken": {"path": "token"}}]
    container = {
        "name": "train",
        "image": "registry.example.com/team/train:1",
        "args": ["--epochs", "3"],
        "env": [{"name": f"SETTING_{number}", "value": "x" * 20} for number in range(8)],
        "resources": resources,
        "volumeMounts": mounts,
        "terminationMessagePath": "/dev/termination-log",
        "imagePullPolicy": "IfNotPresent",
    }
    pod = {
        "kind": "Pod",
        "apiVersion": "v1",
        "metadata": {"name": "train-0", "namespace": "team", "labels": {"app": "train"}, "annotations": {"a": "b"}},
        "spec": {
            "containers": [container, {**container, "name": "log", "resources": {}}],
            "volumes": [{"name": "kube-api-access-x", "projected": {"sources": sources}}],
            "restartPolicy": "Always",
            "schedulerName": "default-scheduler",
            "tolerations": [{"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}],
        },
        "status": {},
    }
    request = {
        "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
        "kind": {"group": "", "version": "v1", "kind": "Pod"},
        "resource": {"group": "", "version": "v1", "resource": "pods"},
        "name": "train-0",
        "namespace": "team",
        "operation": "CREATE",
        "userInfo": {"username": "system:serviceaccount:team:ci", "groups": ["system:serviceaccounts"]},
        "object": pod,
        "oldObject": None,
        "dryRun": False,
    }
    return orjson.dumps({"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": request})


def bare() -> web.Application:
    """A handler that reads the body and answers `{}`."""

    async def handle(request: web.Request) -> web.Response:
        await request.read()
        return web.Response(body=b"{}", content_type="application/json")

    app = web.Application(client_max_size=7 * 2**20)
    app.router.add_post("/mutate-pod", handle)
    return app


class NoPods(LivePods):
    async def find(self, namespace: str, name: str, deadline: float) -> None:
        return None


async def serve(which: str) -> None:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    source = MemorySource(Certificate(dns_names=("localhost",)))
    await source.start()
    app = make_app(Parts(WebhookSettings(), MemoryStore(), NoPods()), list) if which == "ours" else bare()
    async with listen(app, ServeSettings(host="127.0.0.1", port=0), source.context) as port:
        print(port, flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)  # until the parent is done


class Load(asyncio.Protocol):
    """One connection that sends the next request as soon as it has an answer."""

    def __init__(self, request: bytes) -> None:
        self._request = request
        self._rest = 0
        self.answers = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by its classes
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        if self._rest == 0:
            head, _, body = data.partition(b"\r\n\r\n")
            if not head.startswith(b"HTTP/1.1 200"):
                raise RuntimeError(data[:300])
            length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
            self._rest = length - len(body)
        else:
            self._rest -= len(data)
        if self._rest == 0:
            self.answers += 1
            self._transport.write(self._request)


def cpu_seconds(pid: int) -> float:
    """The CPU time of a process's first thread, which runs the event loop."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


async def rate(port: int, pid: int, seconds: float) -> float:
    """Requests per second of CPU time of one server."""
    body = review()
    lines = (
        "POST /mutate-pod?timeout=4s HTTP/1.1",
        "Host: localhost",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
    )
    head = "\r\n".join((*lines, "", ""))
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    loop = asyncio.get_running_loop()
    made = [
        await loop.create_connection(lambda: Load(head.encode() + body), "127.0.0.1", port, ssl=context)
        for _ in range(CONNECTIONS)
    ]
    began, before = cpu_seconds(pid), sum(load.answers for _, load in made)
    await asyncio.sleep(seconds)
    rated = (sum(load.answers for _, load in made) - before) / (cpu_seconds(pid) - began)
    for transport, _ in made:
        transport.abort()
    return rated


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=1.5)
    parser.add_argument("--serve", choices=SERVERS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        uvloop.run(serve(arguments.serve))
        return
    processes = {}
    for which in SERVERS:
        argv = (sys.executable, str(Path(__file__)), "--serve", which)
        processes[which] = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    ports = {which: int(process.stdout.readline() if process.stdout else b"") for which, process in processes.items()}
    rates: dict[str, list[float]] = {which: [] for which in SERVERS}
    for number in range(arguments.rounds + 1):
        for which in SERVERS:
            rated = uvloop.run(rate(ports[which], processes[which].pid, arguments.seconds))
            if number:  # the first round warms up
                rates[which].append(rated)
        figures = ", ".join(f"{which} {values[-1]:.0f}/s" for which, values in rates.items() if values)
        print(f"round {number} of {arguments.rounds}: {figures or 'warmed up'}", file=sys.stderr, flush=True)
    for process in processes.values():
        process.communicate()
    medians = {which: statistics.median(values) for which, values in rates.items()}
    told = ", ".join(f"{which} {1e6 / median:.0f} us" for which, median in medians.items())
    print(f"CPU time of a request: {told}", file=sys.stderr)
    close(name="mutate_pod", value=medians["ours"], unit="requests/s", reference=medians["bare"], goal=0.3)


if __name__ == "__main__":
    main()
