"""An API server in process, and how properties are tried: no deadline (machines are shared), in CI always the same way.

A usual run tries a quarter of each property's examples, `make unit ARGS=--hypothesis-profile=thorough` ten times all.
"""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import PurePath
from typing import Final

import pytest
from commands import Koordgate, Said
from fake_kube import FakeKube
from hypothesis import HealthCheck, settings
from world import World
from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]

from koordgate import breaks
from koordgate.cli import main
from koordgate.kube.client import KubeClient

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # As in a background job of a shell: processes that tests start would inherit it, and ignore Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("koordgate", deadline=None, max_examples=25, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", settings.get_profile("koordgate"), derandomize=True, print_blob=True)
settings.register_profile("thorough", settings.get_profile("koordgate"), max_examples=1000)
settings.load_profile("ci" if os.environ.get("CI") else "koordgate")


_ON_NODE: Final = frozenset({"node", "incluster", "test_real_cpusets"})
_POLICED: Final = frozenset({"test_policies", "test_reporter_policy", "test_webhook_policy"})


class _ByPlace(LoadFileScheduling):  # type: ignore[misc] # xdist has no types
    """Gives each worker whole files: all that use the machine's one node to one, and those that share a plane."""

    def _split_scope(self, nodeid: str) -> str:
        path = PurePath(nodeid.partition("::")[0])
        if _ON_NODE.intersection((*path.parts, path.stem)):
            return "node"
        return "policies" if path.stem in _POLICED else str(path)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> _ByPlace | None:
    """Schedule `--dist loadfile` by what tests share."""
    return _ByPlace(config, log) if config.getvalue("dist") == "loadfile" else None


async def _at_once(_seconds: float) -> None:
    """Stands in for sleep: the client's waits before a retry take no time."""


@pytest.fixture
async def fake() -> AsyncIterator[FakeKube]:
    async with FakeKube() as server:
        yield server


@pytest.fixture
async def kube(fake: FakeKube) -> AsyncIterator[KubeClient]:
    async with KubeClient(fake.url, sleep=_at_once) as client:
        yield client


@pytest.fixture
async def world(fake: FakeKube, kube: KubeClient) -> AsyncIterator[World]:
    """A world with one seen node that has one GPU of 80Gi."""
    made = World(fake, kube)
    made.add_node()
    made.see()
    yield made
    await made.idle()


@pytest.fixture
def breaking(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets work take each break that it may take, however short it is."""
    monkeypatch.setattr(breaks, "HOLD_S", 0.0)


@pytest.fixture
def koordgate(capsys: pytest.CaptureFixture[str]) -> Koordgate:
    """Run `koordgate` with these arguments."""

    async def run(*words: str) -> Said:
        status = await asyncio.to_thread(main, words)
        return Said(status, *capsys.readouterr())

    return run
