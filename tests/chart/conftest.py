"""The chart rendered by a real Helm."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from controlplane.needs import missing

from localplane import chart
from localplane.admin import JsonObject
from localplane.binaries import Binaries, BuildError, find_or_build

Render = Callable[..., list[JsonObject]]


@pytest.fixture(scope="session")
def binaries() -> Binaries:
    """Helm; built if it is missing, which takes a minute the first time."""
    try:
        return find_or_build(["helm"])
    except BuildError as error:
        missing(str(error))


@pytest.fixture(scope="session")
def chart_folder() -> Path:
    return chart.chart_folder()


@pytest.fixture(scope="session")
def render(binaries: Binaries) -> Render:
    """Render with values merged over the chart's own; a refusal is a `chart.ChartError`."""

    def rendered(values: dict[str, Any] | None = None, namespace: str = chart.NAMESPACE) -> list[JsonObject]:
        return chart.render(binaries, values, namespace=namespace)

    return rendered


@pytest.fixture(scope="session")
def objects(render: Render) -> list[JsonObject]:
    """The objects rendered with the chart's own values."""
    return render()
