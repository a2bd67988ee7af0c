"""examples/recipes on a real API server: every field is known, and every Pod is translated and accepted."""

from typing import Any

import pytest
import yaml
from controlplane.conftest import StartWebhooks
from controlplane.gpu_cluster import pods_path

from console.data import data_folder
from localplane.admin import APPLY_PATCH, AdminClient, ApiError
from localplane.plane import ControlPlane

FILES = sorted(data_folder("examples").glob("recipes/*/app.yaml"))
STRICT = {"fieldManager": "kubectl", "dryRun": "All", "fieldValidation": "Strict"}


def pod_of(owner: dict[str, Any], namespace: str) -> dict[str, Any]:
    """The first Pod of a workload, as its controller creates it."""
    template = owner["spec"]["template"]
    metadata = {**template.get("metadata", {}), "name": f"{owner['metadata']['name']}-0", "namespace": namespace}
    claims = [one["metadata"]["name"] for one in owner["spec"].get("volumeClaimTemplates", ())]
    claimed = [{"name": name, "persistentVolumeClaim": {"claimName": f"{name}-0"}} for name in claims]
    spec = {**template["spec"], "volumes": [*template["spec"].get("volumes", ()), *claimed]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


async def test_the_api_server_takes_each_recipe_and_the_webhook_its_pods(
    plane: ControlPlane, admin: AdminClient, webhooks: StartWebhooks
) -> None:
    await webhooks(count=1)
    seen = 0
    for file in FILES:
        for item in yaml.safe_load_all(file.read_text()):
            namespace = item["metadata"].get("namespace", "default")
            await plane.ensure_namespace(namespace)
            path = await admin.path_of(item, namespace=namespace)
            await admin.patch(path, item, APPLY_PATCH, **STRICT)
            assert admin.warnings == (), (file, path)
            if "template" in item.get("spec", {}):
                made = await admin.create(pods_path(namespace), pod_of(item, namespace), dryRun="All")
                assert made["spec"]["schedulerName"] == "koord-scheduler", file
                assert "koordgate.io/original-request" in made["metadata"].get("annotations", {}) or not gpus(item), (
                    file
                )
                seen += 1
    assert seen >= len(FILES) >= 8


def gpus(owner: dict[str, Any]) -> bool:
    """Whether a workload asks for GPUs by a name that is translated."""
    names = {name for one in owner["spec"]["template"]["spec"]["containers"] for name in one["resources"]["limits"]}
    return bool(names & {"nvidia.com/gpu", "kubernetes.io/gpu"})


async def test_a_recipe_with_a_mistake_would_be_seen(admin: AdminClient) -> None:
    (item,) = [one for one in yaml.safe_load_all(FILES[0].read_text()) if "template" in one.get("spec", {})]
    item["spec"]["template"]["spec"]["containers"][0]["resource"] = {}
    path = await admin.path_of(item)
    with pytest.raises(ApiError, match="field not declared in schema"):
        await admin.patch(path, item, APPLY_PATCH, **STRICT)
