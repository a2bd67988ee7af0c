"""Each set of values renders objects that this Kubernetes takes: by its schemas (kubeconform), and as a dry run."""

import asyncio
import json
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from controlplane import schemas
from controlplane.needs import missing
from value_sets import VALUE_SETS

from webhook.localplane import chart
from webhook.localplane.admin import APPLY_PATCH, AdminClient, JsonObject
from webhook.localplane.binaries import Binaries, BuildError, find_or_build
from webhook.localplane.plane import ControlPlane

# Definitions of others, of which this machine has no copy: their kinds are served, their fields are not checked.
FOREIGN = {
    "monitoring.coreos.com": ("ServiceMonitor", "PodMonitor", "PrometheusRule"),
    "cert-manager.io": ("Certificate",),
}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def prepared(plane: ControlPlane, binaries: Binaries) -> AsyncIterator[AdminClient]:
    """The cluster before `helm install`: the release's namespace, and the definitions that objects need."""
    definitions = [item for item in chart.render(binaries) if item["kind"] == "CustomResourceDefinition"]
    foreign = [_definition(group, kind) for group, kinds in FOREIGN.items() for kind in kinds]
    await plane.ensure_namespace("team-a")  # doctor.tryIn
    await chart.install(plane, [*definitions, *foreign])
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "koordgate-doctor"}}
    async with plane.admin() as admin:
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


async def test_everything_that_is_rendered_has_the_form_that_kubernetes_publishes(
    prepared: AdminClient, binaries: Binaries, tmp_path: Path
) -> None:
    try:
        kubeconform = find_or_build(["kubeconform"])["kubeconform"]
    except BuildError as error:
        missing(str(error))
    await asyncio.to_thread(schemas.write, await prepared.get("/openapi/v2"), tmp_path / "schemas")
    rendered = {name: chart.render(binaries, values, tests=True) for name, values in VALUE_SETS.items()}
    for number, objects in enumerate(rendered.values()):
        (tmp_path / f"{number}.json").write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))

    def conform(*files: Path) -> dict[str, Any]:
        location = f"{tmp_path}/schemas/{{{{.ResourceKind}}}}{{{{.KindSuffix}}}}.json"
        argv = [
            str(kubeconform),
            "-strict",
            "-summary",
            "-output=json",
            f"-schema-location={location}",
            *map(str, files),
        ]
        done: dict[str, Any] = json.loads(subprocess.run(argv, capture_output=True, check=False).stdout)
        return done

    found = await asyncio.to_thread(conform, *(tmp_path / f"{number}.json" for number in range(len(rendered))))
    assert found["resources"] == [], "names of files are positions in VALUE_SETS"
    assert found["summary"] == {"valid": sum(map(len, rendered.values())), "invalid": 0, "errors": 0, "skipped": 0}

    (wrong,) = (item for item in rendered["the defaults"] if _is(item, "Deployment", "koordgate"))
    wrong["spec"]["template"]["spec"]["containers"][0]["imagePolicy"] = "Always"
    (tmp_path / "wrong.json").write_text(json.dumps(wrong))
    assert (await asyncio.to_thread(conform, tmp_path / "wrong.json"))["summary"]["invalid"] == 1


def _is(item: JsonObject, kind: str, name: str) -> bool:
    return (item["kind"], item["metadata"]["name"]) == (kind, name)


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
