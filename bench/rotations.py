"""Changes of certificates under load: three replicas, a real API server, and whether a request is lost.

The webhooks' CA lives for seconds, so that it is replaced again and again, and with it the serving certificates and the
scheduler's. Pods are created without pause (as dry runs), each through both webhooks of Pods. Beside them a scheduler
asks the extender: it reads the CA once, when it starts, and its own certificate for each connection, as kube-scheduler
does. The value is the number of requests that failed, plus one. The reference is one: none may fail.
"""

import argparse
import asyncio
import contextlib
import ssl
import sys
import tempfile
from base64 import b64decode
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
from result import close

from localplane import binaries, chart
from localplane.admin import AdminClient, ApiError
from localplane.plane import ControlPlane
from localplane.replicas import Replicas

PROGRAMS = ("etcd", "kube-apiserver", "helm")
SECRETS = f"/api/v1/namespaces/{chart.NAMESPACE}/secrets"
PODS = "/api/v1/namespaces/default/pods"
HURRIED = Path(__file__).with_name("hurried.py")
LIFE_S = 15.0
"""Of the webhooks' CA and what it signs: two thirds of it, and the publication, fit well into it."""

DAY_S = 86_400.0
CREATORS = 4


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


@dataclass
class Load:
    """Requests that must not fail."""

    asked: int = 0
    failed: list[str] = field(default_factory=list)

    async def create(self, admin: AdminClient) -> None:
        """Create Pods that ask for a card, one after another."""
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"generateName": "p-", "namespace": "default"},
            "spec": {
                "containers": [{"name": "main", "image": "none", "resources": {"limits": {"kubernetes.io/gpu": "1"}}}]
            },
        }
        while True:
            self.asked += 1
            try:
                made = await admin.create(f"{PODS}?dryRun=All", pod)
                if made["spec"]["schedulerName"] != "koord-scheduler":
                    self.failed.append("a Pod was not translated")
            except (ApiError, aiohttp.ClientError, TimeoutError) as error:
                self.failed.append(f"create: {error}")

    async def schedule(self, admin: AdminClient, address: tuple[str, int], folder: Path) -> None:
        """Ask the extender, on a new connection each time."""
        url = f"https://{address[0]}:{address[1]}/scheduler/filter"
        name = f"koordgate.{chart.NAMESPACE}.svc"
        question = {
            "Pod": {"metadata": {"name": "p", "namespace": "default", "uid": "u"}, "spec": {"containers": []}},
            "NodeNames": [],
        }
        secret = await data(admin, "koordgate-scheduler-tls")
        trusted = secret["extender-ca.crt"].decode()
        while True:
            secret = await data(admin, "koordgate-scheduler-tls")
            (file := folder / "scheduler.pem").write_bytes(secret["tls.key"] + secret["tls.crt"])
            trust = ssl.create_default_context(cadata=trusted)
            trust.load_cert_chain(file)
            self.asked += 1
            try:
                async with (
                    aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=trust)) as session,
                    session.post(url, json=question, server_hostname=name) as answer,
                ):
                    if answer.status != 200:
                        self.failed.append(f"filter: {answer.status} {(await answer.text())[:200]}")
            except (aiohttp.ClientError, TimeoutError) as error:
                self.failed.append(f"filter: {error}")


async def data(admin: AdminClient, name: str) -> dict[str, bytes]:
    secret = await admin.get(f"{SECRETS}/{name}")
    return {key: b64decode(value) for key, value in secret["data"].items()}


async def rotate(changes: int, progress: Callable[[str], None] = say) -> Load:
    """Let the webhooks' CA change this often under load."""
    programs, load = binaries.find_or_build(PROGRAMS), Load()
    objects = chart.render(programs)
    seconds = 1 / DAY_S
    lives = {"authorityDays": LIFE_S * seconds, "certificateDays": LIFE_S * seconds, "extenderAuthorityDays": 1}
    with tempfile.TemporaryDirectory() as directory:
        async with ControlPlane(programs) as plane:
            await chart.install(plane, objects)
            replicas = await Replicas.installed(
                plane,
                objects,
                Path(directory),
                count=3,
                overrides={"certificate": lives, "logLevel": "warning"},
                command=lambda _number: (sys.executable, str(HURRIED)),
            )
            async with replicas, plane.admin() as admin:
                await _under_load(load, changes, progress, admin, replicas.extender, Path(directory))
    return load


async def _under_load(
    load: Load,
    changes: int,
    progress: Callable[[str], None],
    admin: AdminClient,
    extender: tuple[str, int],
    folder: Path,
) -> None:
    tasks = [asyncio.create_task(load.create(admin)) for _ in range(CREATORS)]
    tasks.append(asyncio.create_task(load.schedule(admin, extender, folder)))
    try:
        known, changed = (await data(admin, "koordgate-tls"))["ca.crt"], 0
        while changed < changes:
            await asyncio.sleep(0.2)
            found = (await data(admin, "koordgate-tls"))["ca.crt"]
            if found != known:
                known, changed = found, changed + 1
                if changed % 10 == 0 or changed == changes:
                    progress(f"  {changed} changes, {load.asked} requests, {len(load.failed)} failed")
    finally:
        for task in tasks:
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait(tasks)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--changes", type=int, default=100)
    arguments = parser.parse_args()
    load = asyncio.run(rotate(arguments.changes))
    say(f"{arguments.changes} changes of the CA, three replicas: {load.asked} requests, {len(load.failed)} failed")
    for failure in load.failed[:5]:
        say(f"  {failure}")
    close(
        name="rotations",
        value=len(load.failed) + 1,
        unit="requests failed, plus one",
        reference=1,
        goal=1.0,
        higher_is_better=False,
    )


if __name__ == "__main__":
    main()
