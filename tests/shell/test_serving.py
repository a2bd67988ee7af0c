"""What a process answers that serves health and metrics alone."""

import aiohttp
import pytest

from koordgate.serving import listen


@pytest.mark.parametrize(
    ("reasons", "status", "text"),
    [([], 200, "ok"), (["no round for 9 s", "NVML hangs"], 503, "no round for 9 s\nNVML hangs")],
    ids=["healthy", "unhealthy"],
)
async def test_health_is_503_with_all_reasons_or_200(reasons: list[str], status: int, text: str) -> None:
    async with (
        listen("127.0.0.1", 0, lambda _: (b"up 1\n", "text/plain"), lambda: reasons) as port,
        aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session,
        session.get("/healthz") as health,
    ):
        assert (health.status, await health.text()) == (status, text)


async def test_metrics_come_in_the_format_that_the_scraper_accepts() -> None:
    asked: list[str] = []

    def exposed(accept: str) -> tuple[bytes, str]:
        asked.append(accept)
        return b"up 1\n", "application/openmetrics-text; version=1.0.0; charset=utf-8"

    async with (
        listen("127.0.0.1", 0, exposed, list) as port,
        aiohttp.ClientSession(
            f"http://127.0.0.1:{port}", headers={"Accept": "application/openmetrics-text"}
        ) as session,
        session.get("/metrics") as metrics,
    ):
        assert (await metrics.read(), metrics.headers["Content-Type"]) == exposed("application/openmetrics-text")
    assert set(asked) == {"application/openmetrics-text"}
