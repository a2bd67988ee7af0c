"""Mutual TLS between a real kube-scheduler and the extender."""

import base64
import ssl
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

import aiohttp
import pytest
import pytest_asyncio
from controlplane.conftest import StartWebhooks
from controlplane.gpu_cluster import add_gpu_node, pod, pods_path

from localplane.admin import AdminClient, JsonObject
from localplane.koord import NAME, start_koord_scheduler
from localplane.plane import ControlPlane
from localplane.replicas import Replicas
from localplane.waiting import until
from webhook.tls import pki
from webhook.tls.pki import Pair

SECRETS = "/api/v1/namespaces/koordgate-system/secrets"


@pytest_asyncio.fixture(loop_scope="session")
async def webhook(webhooks: StartWebhooks) -> Replicas:
    return await webhooks(count=2)


@pytest_asyncio.fixture(loop_scope="session")
async def mounted(plane: ControlPlane, installed: list[JsonObject], webhook: Replicas) -> AsyncIterator[Path]:
    """A running koord-scheduler; the folder with its mounted files."""
    await start_koord_scheduler(plane, installed, webhook.extender)
    yield plane.workdir / NAME / "tls"
    await plane.stop_scheduler(NAME)


async def data(admin: AdminClient, name: str) -> dict[str, bytes]:
    secret = await admin.get(f"{SECRETS}/{name}")
    return {key: base64.b64decode(value) for key, value in secret["data"].items()}


def log(webhook: Replicas) -> str:
    return "".join(webhook.process(number).log.read_text() for number in range(2))


async def call(webhook: Replicas, trust: ssl.SSLContext) -> int:
    host, port = webhook.extender
    url, body = f"https://{host}:{port}/scheduler/filter", {"Pod": pod("p", "default", {}), "NodeNames": []}
    trust.check_hostname = False
    async with (
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=trust)) as session,
        session.post(url, json=body) as answer,
    ):
        return answer.status


async def test_the_extender_answers_to_the_schedulers_certificate_and_to_nobody_without(
    webhook: Replicas, admin: AdminClient, tmp_path: Path
) -> None:
    secret = await data(admin, "koordgate-scheduler-tls")
    with pytest.raises(aiohttp.ClientError):
        await call(webhook, ssl.create_default_context(cadata=secret["ca.crt"].decode()))

    async def logged() -> bool:
        return "a caller of the extender was refused: it presented no certificate" in log(webhook)

    await until(logged, "the refusal is in the log")

    (file := tmp_path / "pair.pem").write_bytes(secret["tls.key"] + secret["tls.crt"])
    trust = ssl.create_default_context(cadata=secret["ca.crt"].decode())
    trust.load_cert_chain(file)
    assert await call(webhook, trust) == 200


class Pods:
    """Creates Pods until something is seen: kube-scheduler keeps a certificate that it read for a second."""

    def __init__(self, admin: AdminClient, namespace: str, webhook: Replicas) -> None:
        self._admin, self._namespace, self._webhook = admin, namespace, webhook
        self.names: list[str] = []

    async def make(self) -> None:
        """Create one more, for which kube-scheduler opens a connection."""
        await self._webhook.extender_balancer.drop()
        name = f"{self._namespace}-{uuid4().hex[:8]}"
        await self._admin.create(pods_path(self._namespace), pod(name, self._namespace, {"kubernetes.io/gpu": "1"}))
        self.names.append(name)

    async def until_refused(self, reason: str) -> None:
        async def refused() -> bool:
            await self.make()
            return f"a caller of the extender was refused: {reason}" in log(self._webhook)

        await until(refused, "the extender refuses the scheduler", poll_s=0.5)

    async def until_bound(self) -> None:
        before = len(self.names)

        async def bound() -> bool:
            await self.make()
            found = {one["metadata"]["name"]: one for one in await self._admin.items(pods_path(self._namespace))}
            return any(found[name]["spec"].get("nodeName") for name in self.names[before:])

        await until(bound, "a Pod is bound", poll_s=0.5)


@pytest_asyncio.fixture(loop_scope="session")
async def pods(plane: ControlPlane, admin: AdminClient, namespace: str, webhook: Replicas) -> AsyncIterator[Pods]:
    name = f"{namespace}-gpu"
    await add_gpu_node(plane, admin, name, gpus=8)
    yield Pods(admin, namespace, webhook)
    await admin.delete(pods_path(namespace), {"gracePeriodSeconds": 0})
    await admin.delete(f"/api/v1/nodes/{name}")
    await admin.delete(f"/apis/scheduling.koordinator.sh/v1alpha1/devices/{name}")


async def test_kube_scheduler_is_refused_by_another_name_and_takes_a_new_certificate_without_a_restart(
    admin: AdminClient, pods: Pods, mounted: Path
) -> None:
    ours = await data(admin, "koordgate-extender-tls")

    def mount(name: str) -> None:
        made = pki.new_client_certificate(Pair(ours["ca.crt"], ours["ca.key"]), name, datetime.now(UTC), 1)
        (mounted / "tls.crt").write_bytes(made.certificate)
        (mounted / "tls.key").write_bytes(made.key)

    await pods.until_bound()
    mount("somebody-else")
    await pods.until_refused("its certificate is for 'somebody-else', and only 'koord-scheduler' may call")
    mount("koord-scheduler")
    await pods.until_bound()


async def test_a_kube_scheduler_that_trusts_another_ca_is_reported_with_what_to_do(
    plane: ControlPlane, pods: Pods, mounted: Path
) -> None:
    (mounted / "ca.crt").write_bytes(pki.new_authority("koordgate", datetime.now(UTC), 1).certificate)
    await pods.until_bound()  # it has read its CA when it started
    await plane.process(NAME).stop()
    plane.process(NAME).start()
    await pods.until_refused("it does not trust our certificate: kube-scheduler reads its caFile when it starts")
