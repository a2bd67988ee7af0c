"""Which requests go through an HTTP proxy: by the kubeconfig, else by the environment."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from fake_kube import FakeKube

from koordgate.kube.client import KubeClient
from koordgate.kube.errors import KubeError
from koordgate.kube.resource import NODES

ENVIRONMENT = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ENVIRONMENT:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.fixture
async def proxy() -> AsyncIterator[str]:
    """A proxy that refuses every request."""

    async def refuse(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 407 Proxy\r\nContent-Length: 7\r\nConnection: close\r\n\r\nproxied")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(refuse, "127.0.0.1") as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def proxied(fake: FakeKube, folder: Path, host: str, **cluster: Any) -> bool:
    """Whether a request to an API server with this host name reaches the proxy."""
    fake.put(NODES.path(), {"metadata": {"name": "n1"}})
    path = folder / "kubeconfig"
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "fake", "user": "me"}}],
        "clusters": [{"name": "fake", "cluster": {"server": fake.url.replace("127.0.0.1", host), **cluster}}],
        "users": [{"name": "me", "user": {"token": "any"}}],
    }
    path.write_text(yaml.safe_dump(config))
    async with KubeClient.from_kubeconfig(path) as kube:
        try:
            await kube.get(NODES.path("n1"))
        except KubeError as error:
            return "proxied" in str(error)
    return False


@pytest.mark.parametrize(
    ("no_proxy", "host", "through"),
    [
        ("", "localhost", True),
        ("localhost", "localhost", False),
        ("other.example.com,localhost", "localhost", False),
        ("other.example.com", "localhost", True),
        ("127.0.0.1", "localhost", True),
        ("127.0.0.1", "127.0.0.1", False),
        ("*", "localhost", False),
    ],
)
async def test_the_environment_names_the_proxy_and_the_hosts_that_are_reached_without_it(
    fake: FakeKube,
    tmp_path: Path,
    proxy: str,
    monkeypatch: pytest.MonkeyPatch,
    no_proxy: str,
    host: str,
    *,
    through: bool,
) -> None:
    monkeypatch.setenv("http_proxy", proxy)
    monkeypatch.setenv("no_proxy", no_proxy)
    assert await proxied(fake, tmp_path, host) is through


async def test_a_proxy_for_another_scheme_is_not_used(
    fake: FakeKube, tmp_path: Path, proxy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("https_proxy", proxy)
    assert not await proxied(fake, tmp_path, "localhost")


async def test_the_proxy_of_the_kubeconfig_is_used_whatever_the_environment_says(
    fake: FakeKube, tmp_path: Path, proxy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("no_proxy", "*")
    assert await proxied(fake, tmp_path, "localhost", **{"proxy-url": proxy})
