"""Each set of values renders objects that the API server takes: all of them are applied as dry runs."""

import re
from collections.abc import AsyncIterator

import definitions
import pytest
import pytest_asyncio
from controlplane.needs import missing
from value_sets import VALUE_SETS

from localplane import chart
from localplane.admin import APPLY_PATCH, AdminClient, ApiError
from localplane.binaries import Binaries, BuildError
from localplane.plane import ControlPlane

QUERY = {"fieldManager": "helm", "force": "true", "dryRun": "All", "fieldValidation": "Strict"}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def prepared(binaries: Binaries) -> AsyncIterator[AdminClient]:
    """A control plane without webhooks, and the definitions that objects of other projects need."""
    own = [item for item in chart.render(binaries) if item["kind"] == "CustomResourceDefinition"]
    try:
        foreign = definitions.of_others()
    except BuildError as error:
        missing(str(error))
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "koordgate-doctor"}}
    async with ControlPlane(binaries) as plane, plane.admin() as admin:
        await plane.ensure_namespace("team-a")  # doctor.tryIn
        await chart.install(plane, [*own, *foreign])
        await admin.apply(account, namespace=chart.NAMESPACE)  # dry runs of Pods ask for theirs
        yield admin


@pytest.mark.parametrize("name", VALUE_SETS)
async def test_the_api_server_takes_what_these_values_render_with_every_field(
    name: str, prepared: AdminClient, binaries: Binaries
) -> None:
    for item in chart.render(binaries, VALUE_SETS[name], tests=True):
        path = await prepared.path_of(item, namespace=chart.NAMESPACE)
        await prepared.patch(path, item, APPLY_PATCH, **QUERY)
        assert prepared.warnings == (), path


@pytest.mark.parametrize(
    ("kind", "field", "value"),
    [
        pytest.param("ServiceMonitor", "endpoint", [], id="an unknown field of a ServiceMonitor"),
        pytest.param("PodMonitor", "podMetricsEndpoints", [{"interval": "often"}], id="no duration"),
        pytest.param("PrometheusRule", "groups", [{"name": "x", "rules": [{"alert": "x"}]}], id="a rule without expr"),
        pytest.param("Certificate", "usages", ["serve"], id="no usage that cert-manager has"),
    ],
)
async def test_a_wrong_field_of_others_kinds_would_be_found(
    kind: str, field: str, value: object, prepared: AdminClient, binaries: Binaries
) -> None:
    items = (item for values in VALUE_SETS.values() for item in chart.render(binaries, values) if item["kind"] == kind)
    item = next(items)
    path = await prepared.path_of(item, namespace=chart.NAMESPACE)
    with pytest.raises(ApiError, match=re.escape(field)):
        await prepared.patch(path, item | {"spec": item["spec"] | {field: value}}, APPLY_PATCH, **QUERY)
