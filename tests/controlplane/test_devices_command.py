"""Devices by command on a real API server: what replicas publish is read back; a cordoned card takes no Pod."""

import pytest
import yaml
from commands import Koordgate
from controlplane.gpu_cluster import allocated, bound, metric, pod, pods_path, uuid_of, waits

from localplane.admin import AdminClient
from localplane.replicas import Replicas
from localplane.waiting import until

WHOLE = {"nvidia.com/gpu": "1"}


@pytest.mark.usefixtures("as_administrator")
async def test_a_cordoned_card_takes_no_pod_until_it_is_uncordoned(
    scheduler: Replicas,
    admin: AdminClient,
    namespace: str,
    node: str,
    koordgate: Koordgate,
) -> None:
    async def run(*words: str) -> str:
        said = await koordgate(*words)
        assert said.status == 0, said.err
        return said.out

    async def free() -> list[int]:
        """The free amount of each card."""
        (found,) = yaml.safe_load(await run("top", node, "--output", "yaml"))["nodes"]
        return [one["amounts"][0][2] for one in found["devices"]]

    async def until_free(*wanted: int) -> None:
        async def is_free() -> bool:
            return await free() == list(wanted)

        await until(is_free, f"{wanted} percent are free", poll_s=0.2)

    async def unusable() -> float:
        """Cards that take no Pod, counted by each replica."""
        return await metric(scheduler, "koordgate_devices", type="gpu", state="unusable")

    async def create(name: str) -> None:
        await admin.create(pods_path(namespace), pod(name, namespace, WHOLE))

    async def card_of(name: str) -> str:
        (share,) = allocated(await bound(admin, namespace, name))
        return str(share["id"])

    await until_free(100, 100)
    before = await unusable()
    assert "it takes no new Pods" in await run("cordon", uuid_of(node, 0))
    await until_free(0, 100)

    async def both_know() -> bool:
        return await unusable() == before + len(scheduler.urls)

    await until(both_know, "each replica has seen the cordon", poll_s=0.2)

    await create("first")
    assert await card_of("first") == uuid_of(node, 1)
    await until_free(0, 0)
    await create("second")
    await waits(admin, namespace, "second")
    await admin.delete(pods_path(namespace, "second"), gracePeriodSeconds="0")

    assert f"{namespace}/first" in await run("cordon", uuid_of(node, 1))
    await run("uncordon", uuid_of(node, 1))
    await run("uncordon", uuid_of(node, 0))
    await until_free(100, 0)
    await create("third")
    assert await card_of("third") == uuid_of(node, 0)


@pytest.mark.usefixtures("as_administrator")
async def test_draining_a_card_respects_a_disruption_budget_and_spares_the_other_card(
    scheduler,
    admin: AdminClient,
    namespace: str,
    node: str,
    koordgate: Koordgate,
) -> None:
    async def run(*words: str) -> tuple[int, str]:
        said = await koordgate(*words)
        return said.status, said.out

    async def uid_of(name: str) -> str | None:
        found = await admin.get(pods_path(namespace))
        return next((one["metadata"]["uid"] for one in found["items"] if one["metadata"]["name"] == name), None)

    cards: dict[str, str] = {}
    for name in ("kept", "spared"):
        made = pod(name, namespace, WHOLE)
        made["metadata"]["labels"] = {"app": name}
        made["spec"]["terminationGracePeriodSeconds"] = 0
        await admin.create(pods_path(namespace), made)

        (share,) = allocated(await bound(admin, namespace, name))
        cards[name] = str(share["id"])
        running = {"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}
        await admin.patch(f"{pods_path(namespace, name)}/status", running)
    budgets = f"/apis/policy/v1/namespaces/{namespace}/poddisruptionbudgets"
    spec = {"minAvailable": 1, "selector": {"matchLabels": {"app": "kept"}}}
    budget = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "b"}, "spec": spec}
    await admin.create(budgets, budget)

    status, out = await run("drain", cards["kept"], "--dry-run=server")
    assert status == 3
    assert "may not be evicted now" in out
    status, _ = await run("drain", cards["kept"], "--timeout", "1")
    assert status == 3
    assert await uid_of("kept") is not None

    allowed = {"disruptionsAllowed": 1, "currentHealthy": 2, "desiredHealthy": 1, "expectedPods": 2}
    observed = (await admin.get(f"{budgets}/b"))["metadata"]["generation"]
    await admin.patch(f"{budgets}/b/status", {"status": {**allowed, "observedGeneration": observed}})
    status, out = await run("drain", cards["kept"], "--timeout", "60")
    assert (status, await uid_of("kept")) == (0, None)
    assert await uid_of("spared") is not None
    assert "it stays cordoned" in out
    assert (await run("uncordon", cards["kept"]))[0] == 0
    await admin.delete(f"{budgets}/b")
