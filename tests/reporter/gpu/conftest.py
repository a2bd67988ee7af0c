"""NVIDIA's library, played by a stand-in (`nvml_standin`), and a way to wait for its answers."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

import nvml_standin
import pytest
from nvml_standin import Played
from waiting import first

from reporter.gpu.guarded import NvmlUnavailableError


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the stand-in library."""
    return nvml_standin.build(tmp_path_factory.mktemp("standin"))


@pytest.fixture
async def played(library: Path, tmp_path: Path) -> AsyncIterator[Played]:
    async with AsyncExitStack() as stack:
        yield Played(library, tmp_path, stack)


@pytest.fixture
async def bare(tmp_path: Path) -> AsyncIterator[Played]:
    """A node without NVIDIA's library."""
    async with AsyncExitStack() as stack:
        yield Played(None, tmp_path, stack)


@pytest.fixture
def until() -> Callable[[Callable[[], Awaitable[Any]]], Awaitable[Any]]:
    """Wait for an answer that is true; an outage means "not yet"."""
    return partial(first, unless=NvmlUnavailableError)
