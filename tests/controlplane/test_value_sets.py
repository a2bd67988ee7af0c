"""Each set of values renders objects that the API server takes: all of them are applied as dry runs."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from value_sets import VALUE_SETS

from webhook.localplane import chart
from webhook.localplane.admin import APPLY_PATCH, AdminClient, JsonObject
from webhook.localplane.binaries import Binaries
from webhook.localplane.plane import ControlPlane

# Definitions of others, of which this machine has no copy: their kinds are served, their fields are not checked.
FOREIGN = {
    "monitoring.coreos.com": ("ServiceMonitor", "PodMonitor", "PrometheusRule"),
    "cert-manager.io": ("Certificate",),
}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def prepared(binaries: Binaries) -> AsyncIterator[AdminClient]:
    """A cluster of its own before `helm install`: the release's namespace, and the definitions that objects need."""
    definitions = [item for item in chart.render(binaries) if item["kind"] == "CustomResourceDefinition"]
    foreign = [_definition(group, kind) for group, kinds in FOREIGN.items() for kind in kinds]
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "koordgate-doctor"}}
    async with ControlPlane(binaries) as plane, plane.admin() as admin:
        await plane.ensure_namespace("team-a")  # doctor.tryIn
        await chart.install(plane, [*definitions, *foreign])
        await admin.apply(account, namespace=chart.NAMESPACE)  # dry runs of Pods ask for theirs
        yield admin


@pytest.mark.parametrize("name", VALUE_SETS)
async def test_the_api_server_takes_what_these_values_render_with_every_field(
    name: str, prepared: AdminClient, binaries: Binaries
) -> None:
    for item in chart.render(binaries, VALUE_SETS[name], tests=True):
        path = await prepared.path_of(item, namespace=chart.NAMESPACE)
        query = {"fieldManager": "helm", "force": "true", "dryRun": "All", "fieldValidation": "Strict"}
        await prepared.patch(path, item, APPLY_PATCH, **query)
        assert prepared.warnings == (), path


def _definition(group: str, kind: str) -> JsonObject:
    plural = f"{kind.lower()}s"
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    names = {"kind": kind, "plural": plural, "singular": kind.lower(), "listKind": f"{kind}List"}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {"group": group, "scope": "Namespaced", "names": names, "versions": [version]},
    }
