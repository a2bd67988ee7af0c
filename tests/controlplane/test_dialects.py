"""Every row of every table of dialects, as the real API server admits it: each dialect in a namespace of its own."""

import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest_asyncio
import yaml
from controlplane.gpu_cluster import HOME, add_node, gpu, pods_path
from dialects.rows import ALWAYS, Row, types
from dialects.test_rows import EVERY, TABLES
from npus import TEXT

from allocator.request.original import read_asks
from allocator.vocabulary.devicetype import BUILT_IN
from allocator.vocabulary.dialects import PEERS
from allocator.vocabulary.names import DEVICE_ALLOCATED, DIALECT
from localplane import chart
from localplane.admin import AdminClient, ApiError, JsonObject
from localplane.binaries import Binaries
from localplane.koord import start_koord_scheduler
from localplane.plane import ControlPlane
from localplane.waiting import until

OFF = "dialects-off"
UNITS = {"elastic-gpu": "1Mi"}
CHOSEN = {
    one.name: {"enabled": True, "namespaces": [f"dialect-{one.name}"]}
    | ({"memoryUnit": UNITS[one.name]} if one.name in UNITS else {})
    for one in PEERS
}
VALUES = {"dialects": CHOSEN, "devices": yaml.safe_load(TEXT)["devices"]}


def space(dialect: str) -> str:
    """The namespace in which a dialect is on; names that are always read are tried where all are off."""
    return OFF if dialect in ALWAYS else f"dialect-{dialect}"


def made(row: Row, namespace: str, name: str = "p", **spec: Any) -> JsonObject:
    """A row's Pod as a client sends it."""
    obj = row.pod(name=name, namespace=namespace, **spec)
    del obj["metadata"]["uid"]
    for container in (*obj["spec"]["containers"], *obj["spec"].get("initContainers", ())):
        for amounts in container.get("resources", {}).values():
            amounts.update({key: str(amount) for key, amount in amounts.items()})
    return obj


def is_for_this_chart(dialect: str, settings: Mapping[str, Any]) -> bool:
    """Whether a row is read with the units of the values above."""
    return not settings or settings == {"memoryUnit": UNITS.get(dialect)}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def rendered(
    plane: ControlPlane, binaries: Binaries, installed: list[JsonObject]
) -> AsyncIterator[list[JsonObject]]:
    """The chart with every dialect on in its namespace, and the type of the NPU rows."""
    objects = chart.render(binaries, VALUES)
    await chart.install(plane, objects)
    for dialect in TABLES:
        await plane.ensure_namespace(space(dialect))
    yield objects
    await chart.install(plane, installed)


@pytest_asyncio.fixture(loop_scope="session")
async def serving(rendered: list[JsonObject], admin: AdminClient, webhooks) -> Any:
    """A webhook with these settings, once the API server goes by the new conditions."""
    of_kai, _ = next((row, name) for name, row in EVERY if name == "kai" and row.name == "half a card")
    replicas = await webhooks(count=1, overrides=yaml.safe_load(chart.settings_text(rendered)))

    async def seen() -> bool:
        told = await admin.create(pods_path(space("kai")), made(of_kai, space("kai")), dryRun="All")
        return DIALECT in told["metadata"].get("annotations", {})

    await until(seen, "the API server goes by the new match conditions")
    return replicas


async def verdict(admin: AdminClient, obj: JsonObject) -> tuple[JsonObject | None, str]:
    """The Pod as it would be stored, or why it would not be."""
    try:
        return await admin.create(pods_path(obj["metadata"]["namespace"]), obj, dryRun="All"), ""
    except ApiError as error:
        return None, error.message


async def test_the_api_server_stores_what_each_row_asks_for_or_refuses_it(serving, admin: AdminClient) -> None:
    wrong: list[str] = []
    tried = dict.fromkeys(TABLES, 0)
    for dialect, row in EVERY:
        if not is_for_this_chart(dialect, row.settings):
            continue
        tried[dialect] += 1
        about = f"{dialect}: {row.name}"
        stored, refusal = await verdict(admin, made(row, space(dialect)))
        if row.refused:
            wrong += [] if row.refused in refusal else [f"{about}: {row.refused!r} not in {refusal!r}"]
            continue
        if stored is None:
            wrong.append(f"{about}: refused: {refusal}")
            continue
        reading = read_asks(stored, types("npu") if dialect == "npu" else BUILT_IN)
        asks = {one.name: one.ask for one in reading.request.containers}
        wrong += [] if asks == row.asks and not reading.problems else [f"{about}: {asks} {reading.problems}"]
        told = "; ".join(admin.warnings)
        wrong += [] if row.warned in told else [f"{about}: {row.warned!r} not in {told!r}"]
    assert wrong == []
    assert min(tried.values()) >= 12


async def test_where_all_dialects_are_off_the_same_pods_are_stored_as_they_are_and_warned_about(
    serving, admin: AdminClient
) -> None:
    wrong: list[str] = []
    warned = {one.name: 0 for one in PEERS}
    for dialect, row in EVERY:
        obj = made(row, OFF)
        asked = {n: of for c in obj["spec"]["containers"] for n, of in c.get("resources", {}).get("limits", {}).items()}
        known = {
            n for n, of in asked.items() if n in BUILT_IN.known.resources and n not in BUILT_IN.resources and of != "0"
        }
        if (
            dialect in ALWAYS
            or "beside" in row.name
            or not known
            or asked.keys() & BUILT_IN.resources.keys() - {"nvidia.com/gpu"}
        ):
            continue
        stored, refusal = await verdict(admin, obj)
        if stored is None:
            wrong += [] if "koordgate" not in refusal else [f"{dialect}: {row.name}: refused: {refusal}"]
            continue
        kept = [c.get("resources", {}).get("limits", {}).keys() for c in stored["spec"]["containers"]]
        given = [c.get("resources", {}).get("limits", {}).keys() for c in obj["spec"]["containers"]]
        wrong += (
            []
            if kept == given and stored["spec"]["schedulerName"] == "default-scheduler"
            else [f"{dialect}: {row.name}"]
        )
        warned[dialect] += any(f"of the dialect {dialect} (" in one for one in admin.warnings)
    assert wrong == []
    assert all(count for name, count in warned.items() if name != "kai"), warned


SHARES: dict[str, tuple[str, list[tuple[int, dict[str, str]]]]] = {
    "hami": ("cores and memory of two", [(30, {"gpu-memory": "3000Mi"})] * 2),
    "volcano": ("cores and memory", [(50, {"gpu-memory": "3000Mi"})]),
    "volcano-share": ("a card", [(100, {"gpu-memory-ratio": "100"})]),
    "gpushare": ("GiB of one card", [(0, {"gpu-memory": "3Gi"})]),
    "kai": ("half a card", [(50, {"gpu-memory-ratio": "50"})]),
    "tencent": ("a share", [(50, {"gpu-memory": "7680Mi"})]),
    "elastic-gpu": ("cores and memory", [(30, {"gpu-memory": "1Gi"})]),
}


async def test_a_pod_of_each_product_is_bound_with_the_share_that_it_asks_for(
    serving, plane: ControlPlane, rendered: list[JsonObject], admin: AdminClient, namespace: str
) -> None:
    node = f"{namespace}-cards"
    await add_node(plane, admin, node, namespace, [gpu(node, minor) for minor in range(8)])
    await start_koord_scheduler(plane, rendered, serving.extender)
    try:
        for dialect, (name, shares) in SHARES.items():
            row = next(row for row in TABLES[dialect] if row.name == name)
            obj = made(row, space(dialect), f"{namespace}-bound", nodeSelector={HOME: namespace})
            await admin.create(pods_path(space(dialect)), obj)

            async def bound(path: str = pods_path(space(dialect), f"{namespace}-bound")) -> JsonObject | None:
                found = await admin.get(path)
                return found if found["spec"].get("nodeName") else None

            found = await until(bound, f"the Pod of {dialect} is bound")
            entries = json.loads(found["metadata"]["annotations"][DEVICE_ALLOCATED])["gpu"]
            got = [{key.rpartition("/")[2]: amount for key, amount in one["resources"].items()} for one in entries]
            assert [int(one.get("gpu-core", 0)) for one in got] == [core for core, _ in shares]
            assert all(memory.items() <= one.items() for one, (_, memory) in zip(got, shares, strict=True)), got
    finally:
        await plane.stop_scheduler("koord-scheduler")
        for dialect in SHARES:
            await admin.delete(pods_path(space(dialect)), {"gracePeriodSeconds": 0})
        await admin.delete(f"/api/v1/nodes/{node}")
