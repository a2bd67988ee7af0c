"""Which node a real kube-scheduler takes where ordinary Pods fill one, by the preference of the settings."""

import asyncio
from collections.abc import Iterable

import pytest
from controlplane.conftest import StartWebhooks
from controlplane.gpu_cluster import add_node, at_home, bound, create, gpu, ledger, pods_path, remove

from localplane.admin import AdminClient, JsonObject
from localplane.koord import NAME, start_koord_scheduler
from localplane.plane import ControlPlane
from localplane.waiting import until

BUSY = {"cpu": "14", "memory": "115Gi"}  # of each of eight Pods, on a node of 128 CPUs and 1 TiB


def ordinary(namespace: str, node: str, number: int) -> JsonObject:
    """A Pod that no webhook of ours sees, on a node without a scheduler's help."""
    return at_home(f"ordinary-{number}", namespace, BUSY, nodeName=node)


async def probe(admin: AdminClient, namespace: str, name: str, node: str = "") -> str:
    """The node of a Pod of a whole card, or of 20 % of one on the node that is named; the Pod stays."""
    on = {"nodeSelector": {"kubernetes.io/hostname": node}} if node else {}
    await create(admin, [at_home(name, namespace, {"kubernetes.io/gpu": "20" if node else "100"}, **on)])
    found = await bound(admin, namespace, name)
    return str(found["spec"]["nodeName"])


async def gone(admin: AdminClient, namespace: str, nodes: Iterable[str], *names: str) -> None:
    """Delete Pods that hold all that is held on these nodes, and wait until the ledger has released it."""
    for name in names:
        await admin.delete(pods_path(namespace, name), {"gracePeriodSeconds": 0})

    async def none_left() -> bool:
        found = await asyncio.gather(*(admin.find(pods_path(namespace, name)) for name in names))
        held = await ledger(admin)
        return not any(found) and not any(held.get(node) for node in nodes)

    await until(none_left, f"Pods {', '.join(names)} are gone, and what they held")


# (preference, the node of a whole card's Pod where the idle node has 20 % of a card in use, and where the busy one has)

TAKEN = {
    "fragmentation": ("idle", "busy"),
    "mostBalanced": ("busy", "busy"),
}


@pytest.mark.parametrize(("preference", "expected"), TAKEN.items(), ids=TAKEN)
async def test_ordinary_pods_count_where_the_preference_says_so(
    plane: ControlPlane,
    admin: AdminClient,
    namespace: str,
    installed: list[JsonObject],
    webhooks: StartWebhooks,
    preference: str,
    expected: tuple[str, str],
) -> None:
    nodes = {kind: f"{namespace}-{kind}" for kind in ("busy", "idle")}
    for node in nodes.values():
        await add_node(plane, admin, node, namespace, [gpu(node, 0), gpu(node, 1)])
    replicas = await webhooks(count=1, overrides={"scheduler": {"preference": preference}})
    await start_koord_scheduler(plane, installed, replicas.extender)
    try:
        await create(admin, [ordinary(namespace, nodes["busy"], number) for number in range(8)])
        taken = []
        for used in ("idle", "busy"):
            # The webhook sees Pods in the order of their changes: once this one is bound, the ordinary ones are known.
            assert await probe(admin, namespace, "part", nodes[used]) == nodes[used]
            taken.append(await probe(admin, namespace, "whole"))
            await gone(admin, namespace, nodes.values(), "part", "whole")
        assert taken == [nodes[kind] for kind in expected]
    finally:
        await plane.stop_scheduler(NAME)
        await remove(admin, namespace, nodes.values())
