"""What the reporter answers on its local port."""

import aiohttp
import pytest

from reporter.metrics import ReporterMetrics
from reporter.serving import listen
from reporter.settings import ReporterServeSettings


@pytest.mark.parametrize(
    ("reasons", "status", "text"),
    [([], 200, "ok"), (["no round for 9 s", "NVML hangs"], 503, "no round for 9 s\nNVML hangs")],
    ids=["healthy", "unhealthy"],
)
async def test_health_is_503_with_all_reasons_or_200(reasons: list[str], status: int, text: str) -> None:
    async with (
        listen(ReporterServeSettings(host="127.0.0.1", port=0), ReporterMetrics(), lambda: reasons) as port,
        aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session,
        session.get("/healthz") as health,
    ):
        assert (health.status, await health.text()) == (status, text)
