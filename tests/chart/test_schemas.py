"""What each set of values renders has the form that Kubernetes publishes: the oldest version, and the newest.

Kinds of Prometheus' operator and of cert-manager have the form that these publish.
"""

import copy
import functools
import json
import operator
import subprocess
from pathlib import Path
from typing import Any

import definitions
import pytest
from chart import schemas
from controlplane.needs import missing
from value_sets import VALUE_SETS

from console.doctor.checks.installed import OLDEST
from localplane import chart
from localplane.admin import JsonObject
from localplane.binaries import Binaries, BuildError, find_or_build, openapi_document
from localplane.versions import KUBERNETES, number

# The oldest version that is supported, in the patch that `make test-matrix` runs.
_OLDEST = "v1.34.4"


@pytest.fixture(scope="module")
def kubeconform() -> Path:
    """kubeconform; built if it is missing."""
    try:
        return find_or_build(["kubeconform"])["kubeconform"]
    except BuildError as error:
        missing(str(error))


def publish(version: str, folder: Path) -> None:
    """Write the schemas of a version of Kubernetes, and of the others."""
    try:
        document, others = openapi_document(version), definitions.of_others()
    except BuildError as error:
        missing(str(error))
    schemas.write(json.loads(document.read_text()), folder)
    schemas.add(others, folder)


def conform(kubeconform: Path, folder: Path, *files: Path) -> dict[str, Any]:
    """The report about some files."""
    location = f"{folder}/{{{{.ResourceKind}}}}{{{{.KindSuffix}}}}.json"
    options = ("-strict", "-summary", "-output=json", f"-schema-location={location}")
    argv = (str(kubeconform), *options, *map(str, files))
    report: dict[str, Any] = json.loads(subprocess.run(argv, capture_output=True, check=False).stdout)
    return report


@pytest.fixture(scope="module")
def rendered(binaries: Binaries) -> dict[str, list[JsonObject]]:
    """What each set renders, which only the tag of the scheduler's image makes depend on the version."""
    return {name: chart.render(binaries, values, tests=True) for name, values in VALUE_SETS.items()}


@pytest.mark.parametrize("version", [_OLDEST, KUBERNETES])
def test_every_set_of_values_renders_what_kubernetes_publishes(
    version: str, rendered: dict[str, list[JsonObject]], kubeconform: Path, tmp_path: Path
) -> None:
    publish(version, tmp_path / "schemas")
    for name, objects in rendered.items():
        file = tmp_path / f"{name.replace(' ', '-')}.json"
        file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))

    found = conform(kubeconform, tmp_path / "schemas", *tmp_path.glob("*.json"))

    assert found["resources"] == []
    every = sum(map(len, rendered.values()))
    assert found["summary"] == {"valid": every, "invalid": 0, "errors": 0, "skipped": 0}


@pytest.mark.parametrize(
    ("kind", "place", "field"),
    [
        pytest.param("Deployment", ("template", "spec", "containers", 0), "imagePolicy", id="Deployment"),
        pytest.param("ServiceMonitor", ("endpoints", 0), "sheme", id="ServiceMonitor"),
        pytest.param("PodMonitor", ("podMetricsEndpoints", 0), "every", id="PodMonitor"),
        pytest.param("PrometheusRule", ("groups", 0, "rules", 0), "after", id="PrometheusRule"),
        pytest.param("Certificate", ("issuerRef",), "namespace", id="Certificate"),
    ],
)
def test_an_unknown_field_would_be_found(
    kind: str,
    place: tuple[str | int, ...],
    field: str,
    rendered: dict[str, list[JsonObject]],
    kubeconform: Path,
    tmp_path: Path,
) -> None:
    publish(KUBERNETES, tmp_path / "schemas")
    wrong = copy.deepcopy(next(item for objects in rendered.values() for item in objects if item["kind"] == kind))
    functools.reduce(operator.getitem, place, wrong["spec"])[field] = "Always"
    file = tmp_path / "wrong.yaml"
    file.write_text(json.dumps(wrong))
    assert conform(kubeconform, tmp_path / "schemas", file)["summary"]["invalid"] == 1


def test_no_template_but_the_schedulers_asks_for_the_version_of_kubernetes() -> None:
    templates = chart.chart_folder() / "templates"
    assert [path.name for path in templates.rglob("*.*") if ".Capabilities" in path.read_text()] == ["scheduler.yaml"]


@pytest.mark.parametrize("version", [_OLDEST, KUBERNETES])
def test_helm_installs_it_on_the_oldest_version_and_on_the_newest(version: str, binaries: Binaries) -> None:
    assert chart.render(Binaries(binaries.paths, version))


def test_the_oldest_version_is_the_one_that_is_supported() -> None:
    assert number(_OLDEST)[:2] == OLDEST
