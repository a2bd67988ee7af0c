"""The device map on a real API server: tokens of ServiceAccounts are reviewed with the rights that the chart gives."""

import ssl
from collections.abc import AsyncIterator

import aiohttp
import pytest_asyncio
from controlplane.conftest import StartWebhooks
from waiting import first

from localplane import chart
from localplane.admin import AdminClient, JsonObject
from localplane.binaries import Binaries
from localplane.plane import ControlPlane
from localplane.process import free_port

_BINDINGS = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"


def roles(objects: list[JsonObject], *names: str) -> list[JsonObject]:
    """The ClusterRoles of these names."""
    found = [one for one in objects if one["kind"] == "ClusterRole" and one["metadata"]["name"] in names]
    assert len(found) == len(names)
    return found


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def rights(plane: ControlPlane, binaries: Binaries, installed: list[JsonObject]) -> AsyncIterator[None]:
    """What the chart adds with map.enabled: the role of readers, and the right to review tokens."""
    await chart.install(plane, roles(chart.render(binaries, {"map": {"enabled": True}}), "koordgate", "koordgate-map"))
    yield
    await chart.install(plane, roles(installed, "koordgate"))
    async with plane.admin() as client:
        await client.delete("/apis/rbac.authorization.k8s.io/v1/clusterroles/koordgate-map")


async def token_of(admin: AdminClient, namespace: str, name: str) -> str:
    """Make a ServiceAccount; returns a token of it, as `kubectl create token` does."""
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts"
    await admin.create(path, {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}})
    asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    answer = await admin.create(f"{path}/{name}/token", asked)
    token: str = answer["status"]["token"]
    return token


async def test_only_a_token_of_a_reader_opens_the_map(
    rights: None, plane: ControlPlane, webhooks: StartWebhooks, admin: AdminClient, namespace: str, node: str
) -> None:
    port = free_port("127.0.0.1")
    reader, other = await token_of(admin, namespace, "reader"), await token_of(admin, namespace, "other")
    await admin.create(
        _BINDINGS,
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": f"{namespace}-map"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "koordgate-map"},
            "subjects": [{"kind": "ServiceAccount", "name": "reader", "namespace": namespace}],
        },
    )
    await webhooks(count=1, overrides={"map": {"enabled": True, "port": port}})
    unverified = ssl.create_default_context()
    unverified.check_hostname, unverified.verify_mode = False, ssl.CERT_NONE
    url = f"https://127.0.0.1:{port}/api/nodes"
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=unverified)) as session:

        async def status(token: str) -> tuple[int, str]:
            async with session.get(url, headers={"Authorization": f"Bearer {token}"} if token else {}) as answer:
                return answer.status, await answer.text()

        assert (await status(""))[0] == 401
        assert (await status("nonsense"))[0] == 401
        refused = await status(other)
        assert refused[0] == 403
        assert f"system:serviceaccount:{namespace}:other" in refused[1]

        async def seen() -> str:
            """The map, once the API server knows the reader's role and the replica the node."""
            code, text = await status(reader)
            return text if code == 200 and node in text else ""

        assert await first(seen, unless=aiohttp.ClientError)
