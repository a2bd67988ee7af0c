"""What `kubectl get` shows of koordgate's objects: the columns of their definitions, as the API server fills them."""

import copy
import ssl

import aiohttp

from localplane import chart
from localplane.admin import AdminClient, JsonObject
from localplane.plane import ControlPlane

TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
DEVICE = {
    "apiVersion": "scheduling.koordinator.sh/v1alpha1",
    "kind": "Device",
    "metadata": {
        "name": "columns",
        "labels": {
            "node.koordinator.sh/gpu-model": "NVIDIA-A100",
            "node.koordinator.sh/gpu-driver-version": "570.1",
        },
        "annotations": {"koordgate.io/devices": "1/3 gpu"},
    },
    "spec": {
        "devices": [
            {"type": "gpu", "id": "GPU-0", "minor": 0, "health": True},
            {"type": "gpu", "id": "GPU-1", "minor": 1, "health": False},
            {"type": "gpu", "id": "GPU-2", "minor": 2, "health": False},
        ]
    },
}
RECORD = {
    "apiVersion": "koordgate.io/v1alpha1",
    "kind": "NodeAllocation",
    "metadata": {"name": "columns"},
    "spec": {"allocations": []},
    "status": {"holders": 3, "devices": 2, "cpus": 8},
}


async def columns(plane: ControlPlane, path: str) -> dict[str, object]:
    """The columns of one object by name, without its age."""
    headers = {"Authorization": f"Bearer {plane.admin_token}", "Accept": TABLE}
    trusted = ssl.create_default_context(cafile=plane.ca_file)
    async with (
        aiohttp.ClientSession(headers=headers) as session,
        session.get(plane.admin_url + path, ssl=trusted) as answer,
    ):
        table = await answer.json()
    (row,) = table["rows"]
    names = [column["name"] for column in table["columnDefinitions"]]
    return {name: cell for name, cell in zip(names, row["cells"], strict=True) if name not in {"Name", "Age"}}


async def test_the_columns_say_what_a_node_has_and_what_is_held(
    plane: ControlPlane, admin: AdminClient, installed: list[JsonObject]
) -> None:
    await admin.apply(DEVICE)
    await admin.apply(RECORD)
    devices = "/apis/scheduling.koordinator.sh/v1alpha1/devices/columns"
    records = "/apis/koordgate.io/v1alpha1/nodeallocations/columns"
    try:
        assert await columns(plane, devices) == {
            "Model": "NVIDIA-A100",
            "Driver": "570.1",
            "Devices": "1/3 gpu",
            "Unhealthy": "GPU-1",
        }
        assert await columns(plane, records) == {"Holders": 3, "Devices": 2, "CPUs": 8}
    finally:
        await admin.delete(devices)
        await admin.delete(records)


async def test_an_older_definition_is_upgraded_in_place_and_keeps_the_objects(
    plane: ControlPlane, admin: AdminClient, installed: list[JsonObject]
) -> None:
    """Helm upgrades no definition: docs/install/upgrade.md applies them. What an older one could not show is shown."""
    new = chart.find(installed, "CustomResourceDefinition", "nodeallocations.koordgate.io")
    old = copy.deepcopy(new)
    (version,) = old["spec"]["versions"]
    version["additionalPrinterColumns"] = version["additionalPrinterColumns"][-1:]
    path = "/apis/koordgate.io/v1alpha1/nodeallocations"
    stored = await admin.get(f"{DEFINITIONS}/{new['metadata']['name']}")
    old["metadata"]["resourceVersion"] = stored["metadata"]["resourceVersion"]
    await admin.replace(f"{DEFINITIONS}/{new['metadata']['name']}", old)
    made = await admin.create(path, {**RECORD, "metadata": {"name": "older"}})
    try:
        await chart.install(plane, [new])
        found = await admin.get(f"{path}/older")
        assert (found["metadata"]["uid"], found["spec"]) == (made["metadata"]["uid"], made["spec"])
        stated = (await admin.get(f"{DEFINITIONS}/{new['metadata']['name']}"))["spec"]["versions"][0]
        assert [column["name"] for column in stated["additionalPrinterColumns"]] == [
            "Holders",
            "Devices",
            "CPUs",
            "Age",
        ]
    finally:
        await admin.delete(f"{path}/older")
