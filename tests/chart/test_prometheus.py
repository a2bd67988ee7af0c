"""A real Prometheus reads what both processes serve, and answers every query of dashboard, alerts and page."""

import asyncio
import importlib.util
import json
import re
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import ClientConnectionError, ClientSession, web
from aiohttp.test_utils import TestServer, unused_port
from fake_kube import FakeKube
from waiting import first
from world import World, asks, binding, binds, body, gpu_pod

from koordgate.kube.client import KubeClient
from reporter.metrics import ReporterMetrics
from webhook.app import make_app

DOCS = Path(__file__).parents[2] / "docs"
PROMETHEUS = shutil.which("prometheus")
JSON = {"Content-Type": "application/json"}
pytestmark = pytest.mark.skipif(PROMETHEUS is None, reason="no Prometheus on PATH (Debian: apt install prometheus)")


def alerts() -> Iterator[tuple[str, str]]:
    spec = importlib.util.spec_from_file_location("generate", DOCS / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for rule in module.alerts():
        yield rule["alert"], rule["expr"]


def queries() -> dict[str, str]:
    """Each query by where it stands, with the dashboard's variables as Grafana fills them in."""
    board = json.loads((DOCS.parent / "charts" / "koordgate" / "files" / "dashboard.json").read_text())
    found = {
        f"panel {panel['title']} {target['refId']}": target["expr"].replace("$model", ".*")
        for panel in board["panels"]
        for target in panel.get("targets", ())
    }
    found |= {f"alert {name}": expr for name, expr in alerts()}
    section = (DOCS / "metrics.md").read_text().partition("## Questions")[2].partition("\n## ")[0]
    return found | {f"page {query}": query for query in re.findall(r"\| `([^`]+)`", section)}


@asynccontextmanager
async def prometheus(folder: Path, targets: dict[str, int]) -> AsyncIterator[str]:
    """Prometheus, which reads these ports by name every second; yields its address."""
    assert PROMETHEUS is not None
    jobs = [
        {"job_name": name, "static_configs": [{"targets": [f"127.0.0.1:{port}"]}]} for name, port in targets.items()
    ]
    every = {"scrape_interval": "1s", "scrape_timeout": "1s"}
    (folder / "prometheus.yml").write_text(yaml.safe_dump({"global": every, "scrape_configs": jobs}))
    port = unused_port()
    process = await asyncio.create_subprocess_exec(
        PROMETHEUS,
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--enable-feature=exemplar-storage",
        "--log.level=error",
    )
    try:
        yield f"http://127.0.0.1:{port}/api/v1"
    finally:
        process.kill()
        await process.wait()


async def asked(session: ClientSession, url: str, **params: str) -> Any:
    async with session.get(url, params=params) as answer:
        return {} if answer.status == 503 else await answer.json()  # it is starting


async def test_a_real_prometheus_answers_every_query(fake: FakeKube, kube: KubeClient, tmp_path: Path) -> None:
    world = World(fake, kube)
    world.add_node()
    world.add_pod(gpu_pod("p"))
    world.add_pod(gpu_pod("waits"))
    world.see()
    world.clock.now += 5
    reporter = ReporterMetrics()

    async def reported(http: web.Request) -> web.Response:
        data, kind = reporter.exposed(http.headers.get("Accept", ""))
        return web.Response(body=data, headers={"Content-Type": kind})

    site = web.Application()
    site.router.add_get("/metrics", reported)
    async with (
        TestServer(make_app(world.parts, list)) as replica,
        TestServer(site) as second,
        ClientSession() as session,
        prometheus(tmp_path, {"webhook": replica.port or 0, "reporter": second.port or 0}) as api,
    ):
        await session.get(replica.make_url("/readyz"))
        await session.post(replica.make_url("/mutate-pod"), data=body(asks(gpu_pod("q", admit=False))), headers=JSON)
        await session.post(replica.make_url("/mutate-binding"), data=body(binds(binding("p", "n1"))), headers=JSON)

        async def scraped() -> Any:
            # Of the very first reading of a target some series are seen before others.
            read = "koordgate_ledger_writes_total == 1 and on () count(count_over_time(up[5m]) > 1) == 2"
            found = await asked(session, f"{api}/query", query=read)
            return found.get("data", {}).get("result")

        await first(scraped, unless=ClientConnectionError)
        wrong = {}
        filled = set()
        for where, query in queries().items():
            found = await asked(session, f"{api}/query", query=query)
            if found.get("status") != "success":
                wrong[where] = found
            elif found["data"]["result"]:
                filled.add(where)
        assert wrong == {}
        assert {"panel Compute given A", "panel Memory given A", "panel Cards A", "panel Replicas ready A"} <= filled
        assert "alert KoordgateNotReady" not in filled
        span = {"start": "0", "end": "4000000000"}
        found = await asked(session, f"{api}/query_exemplars", query="koordgate_request_seconds_bucket", **span)
        labels = [one["labels"] for series in found["data"] for one in series["exemplars"]]
        assert {"review": "review-1"} in labels
