"""`koordgate doctor` on a real API server: a whole installation is right, and each damage is found."""

import asyncio
import json
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from koordgate.cli import main
from webhook.localplane import chart
from webhook.localplane.admin import AdminClient, JsonObject
from webhook.localplane.plane import ControlPlane

WEBHOOKS = "/apis/admissionregistration.k8s.io/v1"


@pytest_asyncio.fixture(loop_scope="session")
async def running(plane: ControlPlane, installed: list[JsonObject], webhooks) -> AsyncIterator[None]:
    await webhooks(count=1)
    yield


async def doctor(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, list[JsonObject]]:
    status = await asyncio.to_thread(main, ["doctor", "--output", "json", *arguments])
    said = json.loads(capsys.readouterr().out)
    assert said["exitStatus"] == status
    return status, said["findings"]


async def test_show(plane, running, capsys, monkeypatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(plane.admin_kubeconfig))
    await asyncio.to_thread(main, ["doctor"])
    print(capsys.readouterr().out)
    assert 0
