"""The API server shows koordgate a certificate, by the files of the chart's README; others are not answered."""

import contextlib
import re
import ssl
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio
from controlplane.gpu_cluster import add_gpu_node, allocated, bind_at_last, binding, pod, pods_path

from localplane import chart
from localplane.admin import ApiError
from localplane.binaries import Binaries
from localplane.plane import ControlPlane
from localplane.replicas import Replicas
from webhook.tls import pki
from webhook.tls.pki import Pair

NAME = "kube-apiserver"
FOLDER = "/etc/kubernetes/koordgate"
FILES = ("admission.yaml", "callers.yaml")
DEVICE = {"nvidia.com/gpu": "1"}


def documented() -> dict[str, str]:
    """The two files of the README, in its order."""
    section = (chart.chart_folder() / "README.md").read_text().partition("## Who may ask the webhooks")[2]
    blocks = re.findall(r"^   ```yaml\n(.*?)^   ```$", section, re.MULTILINE | re.DOTALL)
    return dict(zip(FILES, (re.sub("^   ", "", block, flags=re.MULTILINE) for block in blocks), strict=False))


@pytest.fixture(scope="module")
def authority() -> Pair:
    return pki.new_authority("koordgate-callers", datetime.now(UTC), 10)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def showing(
    binaries: Binaries, authority: Pair, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[ControlPlane]:
    """A control plane whose API server is configured as the README says, with koordgate's objects."""
    folder = tmp_path_factory.mktemp("callers")
    shown = pki.new_client_certificate(authority, NAME, datetime.now(UTC), 5)
    (folder / "client.crt").write_bytes(shown.certificate)
    (folder / "client.key").write_bytes(shown.key)
    for name, text in documented().items():
        (folder / name).write_text(text.replace(FOLDER, str(folder)))
    arguments = (f"--admission-control-config-file={folder / FILES[0]}",)
    async with ControlPlane(binaries, apiserver_args=arguments) as plane:
        await chart.install(plane, chart.render(binaries))
        yield plane


@contextlib.asynccontextmanager
async def asking(plane: ControlPlane, binaries: Binaries, authority: Pair, workdir: Path) -> AsyncIterator[Replicas]:
    """One replica that answers only to this CA's certificate, behind the chart's Service."""
    values = {"webhook": {"clientAuthority": authority.certificate.decode(), "clientName": NAME}}
    replicas = await Replicas.installed(plane, chart.render(binaries, values), workdir, count=1)
    async with replicas:
        yield replicas


async def test_the_documented_files_make_the_api_server_show_its_certificate_to_koordgate(
    showing: ControlPlane, binaries: Binaries, authority: Pair, tmp_path: Path
) -> None:
    async with asking(showing, binaries, authority, tmp_path) as replicas, showing.admin() as admin:
        await add_gpu_node(showing, admin, "gpu-1", gpus=1)
        made = await admin.create(pods_path("default"), pod("p", "default", DEVICE))
        assert made["spec"]["schedulerName"] == "koord-scheduler"
        token = await showing.service_account_token(chart.NAMESPACE, "koord-scheduler")
        async with showing.admin(token) as scheduler:
            await bind_at_last(scheduler, "default", "p", binding("default", "p", "gpu-1"))
        assert [one["minor"] for one in allocated(await admin.get(pods_path("default", "p")))] == [0]

        trust = ssl.create_default_context()
        trust.check_hostname, trust.verify_mode = False, ssl.CERT_NONE
        async with (
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=trust)) as session,
            session.post(f"{replicas.urls[0]}/mutate-pod", json={}) as answer,
        ):
            assert answer.status == 403
            assert "it presented no certificate" in (await answer.json())["message"]


async def test_an_api_server_that_shows_none_tells_the_author_why_the_pod_is_refused(
    plane: ControlPlane, installed: None, binaries: Binaries, authority: Pair, tmp_path: Path
) -> None:
    async with asking(plane, binaries, authority, tmp_path), plane.admin() as admin:
        with pytest.raises(ApiError) as refused:
            await admin.create(pods_path("default"), pod("p", "default", DEVICE))
        assert refused.value.status == 500
        assert "the caller of this review is refused: it presented no certificate" in refused.value.message
        assert "--admission-control-config-file" in refused.value.message
