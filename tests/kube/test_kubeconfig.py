"""Credentials of a kubeconfig: when they are loaded again, and what they say of the connection."""

import asyncio
import json
import ssl
from pathlib import Path

import pytest
import yaml
from kubernetes_asyncio.client import Configuration
from kubernetes_asyncio.config import ConfigException

from koordgate.kube.access import tls_context
from koordgate.kube.client import KubeClient
from koordgate.kube.errors import KubeError
from koordgate.kube.kubeconfig import ConfiguredAccess, kubeconfig_access


class Loads:
    """Stands in for a kubeconfig: each load gives another token; `renewals` says how each one was asked for."""

    def __init__(self, host: str = "https://h:6443/base/") -> None:
        self.renewals: list[bool] = []
        self.failure: Exception | None = None
        self.host = host

    async def __call__(self, configuration: Configuration, renew: bool) -> None:  # noqa: FBT001 as `Load`
        self.renewals.append(renew)
        if self.failure is not None:
            raise self.failure
        configuration.host = self.host
        configuration.api_key["BearerToken"] = f"Bearer {len(self.renewals)} "


async def test_it_is_loaded_once_at_the_start() -> None:
    loads = Loads()
    access = await ConfiguredAccess.create(loads)
    assert access.base_url == "https://h:6443/base"
    assert [await access.authorization() for _ in range(2)] == ["Bearer 1"] * 2
    assert loads.renewals == [False]


@pytest.mark.parametrize(
    "failure", [ConfigException("?"), FileNotFoundError("?"), ValueError("?"), TypeError("?"), KeyError("?")], ids=type
)
async def test_what_cannot_be_loaded_is_an_error_of_the_configuration(failure: Exception) -> None:
    loads = Loads()
    loads.failure = failure
    with pytest.raises(KubeError, match="no usable Kubernetes configuration") as caught:
        await ConfiguredAccess.create(loads)
    assert caught.value.reason == "Configuration"


async def test_credentials_are_loaded_again_once_a_minute_and_when_they_were_refused() -> None:
    now = 1000.0
    loads, configuration = Loads(), Configuration()
    await loads(configuration, False)
    access = ConfiguredAccess(configuration, loads, lambda: now)
    seen = []
    for seconds, renew in (
        *((59, False), (1, False), (59, False), (1, False)),
        *((1, True), (59, False), (1, False), (3600, False), (1, False)),
    ):
        now += seconds
        seen.append(await access.authorization(renew=renew))
    assert seen == [f"Bearer {number}" for number in (1, 2, 2, 3, 4, 4, 5, 6, 6)]
    assert loads.renewals == [False, False, False, True, False, False]


async def test_credentials_that_cannot_be_loaded_again_stay_for_another_minute(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now = 1000.0
    loads, configuration = Loads(), Configuration()
    await loads(configuration, False)
    access = ConfiguredAccess(configuration, loads, lambda: now)
    loads.failure = OSError("no such plugin")
    for seconds in (60, 1, 58, 1):
        now += seconds
        assert await access.authorization() == "Bearer 1"
    assert loads.renewals == [False, False, False]
    assert ["no such plugin" in message for message in caplog.messages] == [True, True]


async def test_without_a_token_there_is_no_header() -> None:
    async def load(configuration: Configuration, _renew: bool) -> None:  # noqa: FBT001 as `Load`
        configuration.host = "http://h"

    access = await ConfiguredAccess.create(load)
    assert await access.authorization() is None
    assert access.ssl_context() is None


async def test_the_connection_is_the_clusters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", "http://of-the-environment:1")
    monkeypatch.delenv("no_proxy", raising=False)
    configuration = Configuration()
    configuration.host = "https://h"
    access = ConfiguredAccess(configuration, Loads())
    assert (access.server_name, access.proxy) == (None, "http://of-the-environment:1")
    tls = access.ssl_context()
    assert tls is not None
    assert (tls.check_hostname, tls.verify_mode) == (True, ssl.CERT_REQUIRED)
    configuration.tls_server_name, configuration.proxy = "name", "http://of-the-cluster:2"
    configuration.verify_ssl = False
    assert (access.server_name, access.proxy) == ("name", "http://of-the-cluster:2")
    tls = access.ssl_context()
    assert tls is not None
    assert (tls.check_hostname, tls.verify_mode) == (False, ssl.CERT_NONE)


def test_of_pythons_checks_of_certificates_only_the_strict_one_is_off() -> None:
    usual, ours = ssl.create_default_context().verify_flags, tls_context(None).verify_flags
    assert not ours & ssl.VERIFY_X509_STRICT
    assert ours | ssl.VERIFY_X509_STRICT == usual | ssl.VERIFY_X509_STRICT


async def test_a_token_that_is_renewed_leaves_tls_as_it_is() -> None:
    access = await ConfiguredAccess.create(Loads())
    assert access.ssl_context() is not None
    assert await access.authorization(renew=True) == "Bearer 2"


@pytest.mark.parametrize("wrong", ["missing", "no certificate"])
@pytest.mark.parametrize("of", ["ssl_ca_cert", "cert_file"])
async def test_certificates_that_cannot_be_used_are_an_error_of_the_configuration(
    tmp_path: Path, of: str, wrong: str
) -> None:
    if wrong != "missing":
        (tmp_path / "file").write_text(wrong)
    configuration = Configuration()
    configuration.host = "https://h"
    setattr(configuration, of, str(tmp_path / "file"))
    with pytest.raises(KubeError, match="certificates of https://h") as caught:
        ConfiguredAccess(configuration, Loads()).ssl_context()
    assert caught.value.reason == "Configuration"


@pytest.mark.parametrize(
    ("stated", "namespace"),
    [({}, "default"), ({"namespace": "team-a"}, "team-a"), ({"namespace": ""}, "default")],
    ids=["none", "one", "an empty one"],
)
async def test_the_namespace_is_that_of_the_context(tmp_path: Path, stated: dict[str, str], namespace: str) -> None:
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "contexts": [
            {"name": "here", "context": {"cluster": "c", "user": "me", **stated}},
            {"name": "there", "context": {"cluster": "c", "user": "me", "namespace": "other"}},
        ],
        "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}],
        "users": [{"name": "me", "user": {}}],
    }
    path = tmp_path / "kubeconfig"
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    assert (await kubeconfig_access(path)).namespace == namespace
    async with KubeClient.from_kubeconfig(path, context="there") as kube:
        assert kube.namespace == "other"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # what the library asks of aiohttp
async def test_a_token_that_an_issuer_renews_is_used_and_leaves_the_file_as_it_is(tmp_path: Path) -> None:
    asked: list[bytes] = []

    async def issue(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        asked.append(head.split(b" ", 2)[1])
        address = f"http://127.0.0.1:{writer.get_extra_info('sockname')[1]}/token"
        body = json.dumps({"token_endpoint": address, "id_token": "renewed", "refresh_token": "another"}).encode()
        start = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Type: application/json\r\n"
        writer.write(start + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        await writer.drain()
        writer.close()

    path = tmp_path / "kubeconfig"
    async with await asyncio.start_server(issue, "127.0.0.1") as issuer:
        address = f"http://127.0.0.1:{issuer.sockets[0].getsockname()[1]}"
        client = {"client-id": "me", "client-secret": "s", "idp-issuer-url": address, "refresh-token": "first"}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "here",
            "contexts": [{"name": "here", "context": {"cluster": "c", "user": "me"}}],
            "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}],
            "users": [{"name": "me", "user": {"auth-provider": {"name": "oidc", "config": client}}}],
        }
        path.write_text(yaml.safe_dump(config), encoding="utf-8")
        before = path.read_bytes()
        access = await kubeconfig_access(path)
    assert await access.authorization() == "Bearer renewed"
    assert asked == [b"/.well-known/openid-configuration", b"/token"]
    assert path.read_bytes() == before
