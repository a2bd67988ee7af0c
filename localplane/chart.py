"""Renders the Helm chart, and installs the rendered objects through the API."""

import asyncio
import os
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from console.data import MissingDataError, data_folder
from localplane.admin import AdminClient, ApiError, JsonObject
from localplane.binaries import Binaries
from localplane.plane import ControlPlane
from localplane.waiting import until

RELEASE = "koordgate"
NAMESPACE = "koordgate-system"
CONFIG_KEY = "config.yaml"
# Objects that others need come first; objects that can refuse others come last.
_FIRST = ("Namespace", "PriorityClass", "CustomResourceDefinition", "ServiceAccount", "ConfigMap", "Secret")
_LAST = (
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
    "ValidatingWebhookConfiguration",
    "MutatingWebhookConfiguration",
)


class ChartError(RuntimeError):
    """The chart cannot be rendered, or lacks an object that is needed."""


def chart_folder() -> Path:
    """The folder of the chart, in the checkout or the installed wheel.

    Raises:
        ChartError: It is in neither.
    """
    try:
        return data_folder("charts") / "koordgate"
    except MissingDataError as error:
        raise ChartError(str(error)) from error


def render(
    binaries: Binaries,
    values: Mapping[str, Any] | None = None,
    *,
    chart: Path | None = None,
    namespace: str = NAMESPACE,
    tests: bool = False,
    kubeconfig: Path | None = None,
) -> list[JsonObject]:
    """Render the chart as `helm install` would.

    Args:
        binaries: The programs, helm included; the chart is rendered for their version of Kubernetes.
        values: Merged over the chart's own values.
        chart: The chart's folder; ours by default.
        namespace: The release's namespace.
        tests: Whether the hooks of `helm test` are among them.
        kubeconfig: Of the cluster in which the chart may look something up; without one, it finds nothing.

    Returns:
        The objects, custom resource definitions included.

    Raises:
        ChartError: Helm refused; the message is Helm's.
    """
    with tempfile.TemporaryDirectory(prefix="koordgate-helm-") as folder:
        values_file = Path(folder, "values.yaml")
        values_file.write_text(yaml.safe_dump(dict(values or {})))
        argv = (
            *(str(binaries["helm"]), "template", RELEASE, str(chart or chart_folder())),
            *("--namespace", namespace, "--values", str(values_file)),
            *(("--dry-run=server", "--kubeconfig", str(kubeconfig)) if kubeconfig else ()),
            *("--kube-version", binaries.kubernetes, "--include-crds", *(() if tests else ("--skip-tests",))),
        )
        homes = {f"HELM_{kind}_HOME": folder for kind in ("CACHE", "CONFIG", "DATA")}  # ignore the user's own
        done = subprocess.run(argv, env={**os.environ, **homes}, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ChartError(done.stderr.strip())
    return [document for document in yaml.safe_load_all(done.stdout) if document]


def find(objects: Iterable[JsonObject], kind: str, name: str) -> JsonObject:
    """The object of a kind and name.

    Raises:
        ChartError: There is none.
    """
    for item in objects:
        if (item["kind"], item["metadata"]["name"]) == (kind, name):
            return item
    raise ChartError(f"the chart renders no {kind} {name}")


def settings_text(objects: Iterable[JsonObject]) -> str:
    """The settings file of the webhook, from its ConfigMap."""
    text: str = find(objects, "ConfigMap", RELEASE)["data"][CONFIG_KEY]
    return text


async def install(plane: ControlPlane, objects: Iterable[JsonObject], *, namespace: str = NAMESPACE) -> None:
    """Apply objects in the order of their dependencies, as `helm install --create-namespace` does.

    Deployments are created too, but nothing runs them without a controller manager and a kubelet.

    Args:
        plane: The control plane.
        objects: From `render`.
        namespace: The release's namespace; created if it does not exist.
    """
    await plane.ensure_namespace(namespace)
    async with plane.admin() as admin:
        for item in sorted(objects, key=_rank):
            await admin.apply(item, namespace=namespace, manager="helm")
            if item["kind"] == "CustomResourceDefinition":
                await _established(admin, item["metadata"]["name"])


async def uninstall(plane: ControlPlane, objects: Iterable[JsonObject], *, namespace: str = NAMESPACE) -> None:
    """Delete what `install` created, except the namespace and the custom resource definitions, as Helm does."""
    kept = {"Namespace", "CustomResourceDefinition"}
    async with plane.admin() as admin:
        for item in sorted(objects, key=_rank, reverse=True):
            if item["kind"] not in kept:
                await _gone(admin, await admin.path_of(item, namespace=namespace))


def _rank(item: JsonObject) -> tuple[int, int]:
    kind = item["kind"]
    if kind in _FIRST:
        return 0, _FIRST.index(kind)
    return (2, _LAST.index(kind)) if kind in _LAST else (1, 0)


async def _gone(admin: AdminClient, path: str) -> None:
    try:
        await admin.delete(path)
    except ApiError as error:
        if error.reason != "NotFound":
            raise


async def _established(admin: AdminClient, name: str) -> None:
    """Wait until a custom resource is served: its condition first, then discovery, which follows it."""

    async def established() -> bool:
        found = await admin.get(f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}")
        conditions = {item["type"]: item["status"] for item in (found.get("status", {}).get("conditions") or ())}
        if conditions.get("Established") != "True":
            return False
        group, plural = found["spec"]["group"], found["spec"]["names"]["plural"]
        served = [version["name"] for version in found["spec"]["versions"] if version["served"]]
        answers = await asyncio.gather(*(_served(admin, f"/apis/{group}/{version}/{plural}") for version in served))
        return all(answers)

    await until(established, f"{name} is established")


async def _served(admin: AdminClient, path: str) -> bool:
    try:
        await admin.get(path, limit="1")
    except ApiError as error:
        if error.status in (404, 429):  # not yet known, or "storage is (re)initializing"
            return False
        raise
    return True
