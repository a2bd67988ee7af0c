"""Access from inside a Pod: the mounted files, which of them are read again, and no kubeconfig library is loaded."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from fake_kube import FakeKube

from koordgate.kube.access import ServiceAccountAccess, inside_a_pod, service_account_access
from koordgate.kube.client import KubeClient
from koordgate.kube.errors import KubeError
from koordgate.kube.resource import NODES


@pytest.fixture
def mounted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a Pod's service account; there is no kubeconfig."""
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "6443")
    (tmp_path / "token").write_text("one\n")
    return tmp_path


@pytest.mark.parametrize(
    ("host", "port", "url"),
    [
        ("10.0.0.1", "6443", "https://10.0.0.1:6443"),
        ("fd00::1", "443", "https://[fd00::1]:443"),
        ("h", "", "https://h:443"),
    ],
)
def test_the_address_is_the_environments(
    mounted: Path, monkeypatch: pytest.MonkeyPatch, host: str, port: str, url: str
) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", port)
    assert ServiceAccountAccess(mounted).base_url == url


async def test_the_token_is_read_again_once_a_minute_or_when_it_was_refused(mounted: Path) -> None:
    now = 1000.0
    access = ServiceAccountAccess(mounted, lambda: now)
    assert await access.authorization() == "Bearer one"
    (mounted / "token").write_text("two")
    now += 59
    assert await access.authorization() == "Bearer one"
    now += 1
    assert await access.authorization() == "Bearer two"
    (mounted / "token").write_text("three")
    assert await access.authorization(renew=True) == "Bearer three"
    (mounted / "token").write_text("four")
    now += 3600
    assert await access.authorization() == "Bearer four"
    (mounted / "token").unlink()
    assert await access.authorization(renew=True) == "Bearer four"  # the last one may still be valid


@pytest.mark.parametrize(("written", "namespace"), [("team-a\n", "team-a"), ("\n", "default"), (None, "default")])
def test_the_namespace_is_the_mounted_one_or_else_the_default(
    mounted: Path, written: str | None, namespace: str
) -> None:
    if written is not None:
        (mounted / "namespace").write_text(written)
    assert ServiceAccountAccess(mounted).namespace == namespace


async def test_no_more_of_a_token_is_read_than_64_kib(mounted: Path) -> None:
    for written in (65535, 65536, 65537):
        (mounted / "token").write_text("x" * written)
        assert await ServiceAccountAccess(mounted).authorization() == "Bearer " + "x" * min(written, 65536)


async def test_what_is_not_mounted_is_named(mounted: Path) -> None:
    with pytest.raises(KubeError, match=r"ca\.crt"):
        ServiceAccountAccess(mounted).ssl_context()
    (mounted / "ca.crt").write_text("no certificate")
    with pytest.raises(KubeError, match=r"ca\.crt"):
        ServiceAccountAccess(mounted).ssl_context()
    (mounted / "token").unlink()
    with pytest.raises(KubeError, match=r"token: .*; mount the token"):
        await ServiceAccountAccess(mounted).authorization()


@pytest.mark.parametrize(
    ("no_proxy", "proxy"), [("", "http://proxy:3128"), ("10.0.0.1", None), ("other.example", "http://proxy:3128")]
)
def test_a_proxy_of_the_environment_is_used_unless_the_server_is_excepted(
    mounted: Path, monkeypatch: pytest.MonkeyPatch, no_proxy: str, proxy: str | None
) -> None:
    for name in ("HTTPS_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("https_proxy", "http://proxy:3128")
    monkeypatch.setenv("no_proxy", no_proxy)
    assert ServiceAccountAccess(mounted).proxy == proxy


@pytest.mark.parametrize(
    ("environment", "inside"),
    [
        ({}, False),
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, True),
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBECONFIG": "/some/file"}, False),
    ],
)
def test_a_kubeconfig_that_is_named_goes_before_the_service_account(
    monkeypatch: pytest.MonkeyPatch,
    environment: dict[str, str],
    inside: bool,  # noqa: FBT001 a parameter of the test
) -> None:
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert inside_a_pod() is inside
    assert (KubeClient.autodetect()._source is service_account_access) is inside


@pytest.mark.parametrize("process", ["webhook", "reporter"])
def test_neither_process_loads_the_kubeconfig_library_inside_a_pod(process: str, mounted: Path) -> None:
    code = f"""
import asyncio, os, pathlib, sys
import {process}.command
from koordgate.kube import access as accesses
from koordgate.kube.client import KubeClient
accesses.ServiceAccountAccess.__init__.__defaults__ = (pathlib.Path({str(mounted)!r}), lambda: 0.0)
access = asyncio.run(KubeClient.autodetect()._source())
assert access.base_url == "https://10.0.0.1:6443", access
assert "koordgate.kube.kubeconfig" not in sys.modules
assert not [name for name in sys.modules if name.startswith("kubernetes")]
"""
    subprocess.run([sys.executable, "-c", code], check=True)


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
