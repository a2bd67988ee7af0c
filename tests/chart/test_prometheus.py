"""A real Prometheus reads what both processes serve, and answers every query of dashboard, alerts and page."""

import importlib.util
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from aiohttp import ClientConnectionError, ClientSession, web
from aiohttp.test_utils import TestServer
from fake_kube import FakeKube
from prometheus_server import asked, prometheus
from waiting import first
from world import World, asks, binding, binds, body, gpu_pod

from koordgate.kube.client import KubeClient
from reporter.metrics import ReporterMetrics
from webhook.app import make_app

DOCS = Path(__file__).parents[2] / "docs"
JSON = {"Content-Type": "application/json"}
NEEDED = {"panel Compute given A", "panel Memory given A", "panel Cards A", "panel Replicas ready A"}


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
    section = (DOCS / "operate" / "metrics.md").read_text().partition("## Questions")[2].partition("\n## ")[0]
    return found | {f"page {query}": query for query in re.findall(r"\| `([^`]+)`", section)}


def scraping(**ports: int) -> dict[str, Any]:
    """A configuration that reads these ports, by the name of each, every two seconds."""
    jobs = [{"job_name": name, "static_configs": [{"targets": [f"127.0.0.1:{port}"]}]} for name, port in ports.items()]
    return {"global": {"scrape_interval": "2s", "scrape_timeout": "2s"}, "scrape_configs": jobs}


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
        prometheus(tmp_path, scraping(webhook=replica.port or 0, reporter=second.port or 0)) as api,
    ):
        await session.get(replica.make_url("/readyz"))
        await session.post(replica.make_url("/mutate-pod"), data=body(asks(gpu_pod("q", admit=False))), headers=JSON)
        await session.post(replica.make_url("/mutate-binding"), data=body(binds(binding("p", "n1"))), headers=JSON)

        async def filled() -> set[str] | None:
            """What shows something, once that is enough: on a busy machine single readings come too late."""
            written = await asked(session, f"{api}/query", query="koordgate_ledger_writes_total == 1")
            if not written.get("data", {}).get("result"):
                return None
            answers = {where: await asked(session, f"{api}/query", query=query) for where, query in queries().items()}
            assert {where: one for where, one in answers.items() if one.get("status") != "success"} == {}
            shown = {where for where, one in answers.items() if one["data"]["result"]}
            return shown if shown >= NEEDED else None

        shown = await first(filled, unless=ClientConnectionError)
        assert "alert KoordgateNotReady" not in shown
        span = {"start": "0", "end": "4000000000"}
        found = await asked(session, f"{api}/query_exemplars", query="koordgate_request_seconds_bucket", **span)
        labels = [one["labels"] for series in found["data"] for one in series["exemplars"]]
        assert {"review": "review-1"} in labels
