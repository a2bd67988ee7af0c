"""The RuntimeClass of reporters that Helm looks up in the cluster into which it installs the chart."""

from typing import Any

import pytest

from localplane import chart
from localplane.admin import AdminClient, JsonObject
from localplane.binaries import Binaries
from localplane.plane import ControlPlane
from reporter import settings

NAME = "koordgate-reporter"
CLASSES = "/apis/node.k8s.io/v1/runtimeclasses"


def daemon_sets(objects: list[JsonObject]) -> dict[str, tuple[str, dict[str, str]]]:
    """Name to the RuntimeClass and the labels of nodes."""
    specs = {one["metadata"]["name"]: one["spec"]["template"]["spec"] for one in objects if one["kind"] == "DaemonSet"}
    return {name: (one.get("runtimeClassName", ""), one.get("nodeSelector", {})) for name, one in specs.items()}


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, {NAME: ("", {}), f"{NAME}-gpu": ("nvidia", {"nvidia.com/gpu.present": "true"})}),
        ({"reporter": {"gpus": {"runtimeClassName": "other"}}}, {NAME: ("other", {})}),
        ({"reporter": {"gpus": {"enabled": False}}}, {NAME: ("", {})}),
        ({"devices": {"runtimeClassName": "another"}}, {NAME: ("", {})}),
    ],
    ids=["found", "stated", "no cards", "not found"],
)
async def test_reporters_of_nodes_with_cards_have_the_runtime_class_that_the_cluster_has(
    plane: ControlPlane, admin: AdminClient, binaries: Binaries, values: dict[str, Any], expected: dict[str, Any]
) -> None:
    made = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "nvidia"}}
    await admin.apply({**made, "handler": "nvidia-cdi"})
    try:
        objects = chart.render(binaries, values, kubeconfig=plane.admin_kubeconfig)
    finally:
        await admin.delete(f"{CLASSES}/nvidia")

    assert daemon_sets(objects) == expected
    data = chart.find(objects, "ConfigMap", NAME)["data"]
    if "gpu.yaml" in data:
        told = settings.parse(data["gpu.yaml"]).runtime
        assert (told.runtime_class_name, told.handler, told.own_handler) == ("nvidia", "nvidia-cdi", "nvidia-cdi")
    without = chart.render(binaries, {}, kubeconfig=plane.admin_kubeconfig)
    assert daemon_sets(without) == {NAME: ("", {})}
