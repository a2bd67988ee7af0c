"""Claims and Pods on the same cards: kube-scheduler's DRA, a stand-in driver's slices, and the chart's own rights."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from claiming import (
    DRIVER,
    Mix,
    TaintRules,
    add_dra_node,
    claim,
    claiming_pod,
    device_class,
    listed_cards,
    resource_slice,
    run_mix,
)
from controlplane.features import TAINT_RULES
from controlplane.gpu_cluster import (
    add_gpu_node,
    allocated,
    at_home,
    bound,
    metric,
    pod,
    pods_path,
    remove,
    scheduling,
    uuid_of,
    waits,
)

from allocator.vocabulary.holdings import DeviceName
from localplane import chart
from localplane.admin import AdminClient, ApiError, JsonObject
from localplane.binaries import Binaries
from localplane.plane import ControlPlane
from localplane.waiting import until
from webhook.dra.taints import rule

GROUP = "/apis/resource.k8s.io/v1"


def claims_path(namespace: str, name: str = "", subresource: str = "") -> str:
    return "/".join(filter(None, (f"{GROUP}/namespaces/{namespace}/resourceclaims", name, subresource)))


async def test_pods_and_claims_fill_the_same_cards_and_nothing_is_given_twice(
    binaries: Binaries, tmp_path: Path
) -> None:
    told: list[str] = []
    result = await run_mix(Mix(pods=60, nodes=2, workers=20, seconds=240), binaries, told.append, tmp_path)
    assert (result.audit.twice(), result.unfinished, result.left) == ([], [], []), told
    assert result.bound == {"claim": 30, "share": 30}
    assert len(result.audit.claims) >= 30
    assert result.audit.shared > 0


@pytest_asyncio.fixture(loop_scope="session")
async def cluster(
    plane: ControlPlane, admin: AdminClient, namespace: str, installed: list[JsonObject], tmp_path: Path
) -> AsyncIterator[str]:
    """A node of two cards that a DRA driver lists too, two webhook replicas, and koord-scheduler: the node's name."""
    node = f"{namespace}-dra"
    await add_dra_node(plane, admin, node, 2)
    await admin.patch(f"/api/v1/nodes/{node}", {"metadata": {"labels": {"koordgate.test/home": namespace}}})
    async with scheduling(plane, installed, tmp_path):
        yield node
    await remove(admin, namespace, [node])
    await admin.delete(claims_path(namespace))
    await admin.delete(f"{GROUP}/resourceslices/{node}-{DRIVER}")


async def allocate(admin: AdminClient, namespace: str, name: str, node: str, *cards: int, **params: str) -> JsonObject:
    """Write an allocation as kube-scheduler does."""
    results = [{"request": "gpu", "driver": DRIVER, "pool": node, "device": f"gpu-{card}"} for card in cards]
    field = {"key": "metadata.name", "operator": "In", "values": [node]}
    selector = {"nodeSelectorTerms": [{"matchFields": [field]}]}
    status = {"allocation": {"devices": {"results": results}, "nodeSelector": selector}}
    return await admin.patch(claims_path(namespace, name, "status"), {"status": status}, **params)


async def test_an_allocation_of_a_card_that_a_pod_holds_is_refused_in_that_very_write(
    cluster: str, admin: AdminClient, namespace: str
) -> None:
    await admin.create(pods_path(namespace), at_home("half", namespace, {"kubernetes.io/gpu": "50"}))
    (share,) = allocated(await bound(admin, namespace, "half"))
    held = share["minor"]
    await admin.create(claims_path(namespace), claim("c", namespace))

    with pytest.raises(ApiError) as refused:
        await allocate(admin, namespace, "c", cluster, held)
    assert refused.value.status == 403
    assert (
        f"gpu {held} ({uuid_of(cluster, held)}) of node {cluster} is held by {namespace}/half" in refused.value.message
    )
    found = await admin.get(claims_path(namespace, "c"))
    assert "allocation" not in (found.get("status") or {})

    await allocate(admin, namespace, "c", cluster, 1 - held)
    await admin.create(pods_path(namespace), at_home("whole", namespace, {"kubernetes.io/gpu": "100"}))
    await waits(admin, namespace, "whole", "held by ResourceClaims")
    await admin.patch(claims_path(namespace, "c", "status"), {"status": {"allocation": None}})
    (share,) = allocated(await bound(admin, namespace, "whole"))
    assert share["minor"] == 1 - held


async def test_a_dry_run_of_an_allocation_reserves_nothing(cluster: str, admin: AdminClient, namespace: str) -> None:
    await admin.create(claims_path(namespace), claim("c", namespace, 2))
    await allocate(admin, namespace, "c", cluster, 0, 1, dryRun="All")
    await admin.create(pods_path(namespace), at_home("all", namespace, {"nvidia.com/gpu": "2"}))
    assert len(allocated(await bound(admin, namespace, "all"))) == 2


@pytest.mark.kubernetes(since="1.36", feature="claims for extended resources (DRAExtendedResource)")
async def test_a_claim_that_kube_scheduler_makes_for_an_extended_resource_holds_its_card(
    cluster: str, plane: ControlPlane, admin: AdminClient, namespace: str
) -> None:
    """KEP-5004: in an exempt namespace, `nvidia.com/gpu` is a matter of the stock kube-scheduler."""
    await admin.apply(device_class(extendedResourceName="nvidia.com/gpu"))
    await plane.ensure_namespace("kube-system")
    made = at_home("stock", "kube-system", {"nvidia.com/gpu": "1"}, nodeSelector={"koordgate.test/home": namespace})
    await plane.start_scheduler("default-scheduler")
    try:
        await admin.create(pods_path("kube-system"), made)
        await bound(admin, "kube-system", "stock")
    finally:
        await plane.stop_scheduler("default-scheduler")
        await admin.delete(f"{GROUP}/deviceclasses/{DRIVER}")
    (found,) = await admin.items(claims_path("kube-system"))
    (taken,) = found["status"]["allocation"]["devices"]["results"]
    await admin.create(pods_path(namespace), at_home("whole", namespace, {"kubernetes.io/gpu": "100"}))
    (share,) = allocated(await bound(admin, namespace, "whole"))
    assert f"gpu-{share['minor']}" != taken["device"]
    await admin.create(pods_path(namespace), at_home("more", namespace, {"kubernetes.io/gpu": "1"}))
    await waits(admin, namespace, "more", "held by ResourceClaims")
    await admin.delete(pods_path("kube-system", "stock"), {"gracePeriodSeconds": 0})
    await admin.patch(claims_path("kube-system", found["metadata"]["name"]), {"metadata": {"finalizers": None}})
    await admin.delete(claims_path("kube-system", found["metadata"]["name"]))
    await bound(admin, namespace, "more")


async def test_a_pod_with_a_claim_of_its_own_and_koordgates_cards_gets_both(
    cluster: str, admin: AdminClient, namespace: str
) -> None:
    await admin.apply(device_class())
    await admin.create(claims_path(namespace), claim("c", namespace))
    both = at_home("both", namespace, {"kubernetes.io/gpu": "100"})
    both["spec"]["resourceClaims"] = claiming_pod("x", namespace, resourceClaimName="c")["spec"]["resourceClaims"]
    await admin.create(pods_path(namespace), both)
    (share,) = allocated(await bound(admin, namespace, "both"))
    (taken,) = (await admin.get(claims_path(namespace, "c")))["status"]["allocation"]["devices"]["results"]
    assert taken["device"] == f"gpu-{1 - share['minor']}"
    await admin.delete(f"{GROUP}/deviceclasses/{DRIVER}")


@TAINT_RULES
async def test_the_webhook_may_write_only_its_own_taints(binaries: Binaries, tmp_path: Path) -> None:
    rules = TaintRules.of(binaries.kubernetes)
    async with (
        ControlPlane(binaries, workdir=tmp_path, feature_gates=rules.gates, apiserver_args=rules.arguments) as plane,
        plane.admin() as admin,
    ):
        await chart.install(plane, chart.render(binaries, {"dra": {"taints": True}}))
        token = await plane.service_account_token(chart.NAMESPACE, chart.RELEASE)
        async with plane.admin(token) as webhook:
            own = rule(DeviceName(DRIVER, "n1", "gpu-0"), rules.api_version)
            everything = _tainting(rules, {"driver": DRIVER})
            evicting = _tainting(rules, own["spec"]["deviceSelector"], effect="NoExecute")
            for wrong in (everything, evicting, {**own, "metadata": {"name": "another"}}):
                await until(lambda wrong=wrong: _is_refused(webhook, rules.path, wrong), "the policy is in force")  # type: ignore[misc]
            await webhook.create(rules.path, own)
            await admin.create(rules.path, {**own, "metadata": {"name": "theirs"}})
            with pytest.raises(ApiError, match="only DeviceTaintRules that it made"):
                await webhook.delete(f"{rules.path}/theirs")
            await webhook.delete(f"{rules.path}/{own['metadata']['name']}")


@TAINT_RULES
async def test_dra_takes_the_card_that_no_pod_holds_and_is_not_refused_once(binaries: Binaries, tmp_path: Path) -> None:
    rules = TaintRules.of(binaries.kubernetes)
    async with (
        ControlPlane(binaries, workdir=tmp_path, feature_gates=rules.gates, apiserver_args=rules.arguments) as plane,
        plane.admin() as admin,
    ):
        objects = chart.render(binaries, {"dra": {"taints": True}})
        await chart.install(plane, objects)
        await plane.ensure_namespace("team")
        await add_gpu_node(plane, admin, "n1", 2)
        await admin.apply(device_class())
        async with scheduling(plane, objects, tmp_path / "webhook") as replicas:
            await admin.create(pods_path("team"), pod("half", "team", {"kubernetes.io/gpu": "50"}))
            (share,) = allocated(await bound(admin, "team", "half"))
            held = f"gpu-{share['minor']}"
            cards = sorted(listed_cards("n1", 2), key=lambda card: card["name"] != held)
            await admin.apply(resource_slice("n1", cards))  # kube-scheduler takes the first that fits
            await until(lambda: admin.items(rules.path), "the card that the Pod holds is tainted")
            await plane.start_scheduler("default-scheduler")
            await admin.create(claims_path("team"), claim("c", "team"))
            await admin.create(pods_path("team"), claiming_pod("x", "team", resourceClaimName="c"))
            await bound(admin, "team", "x")
            await plane.stop_scheduler("default-scheduler")
            (taken,) = (await admin.get(claims_path("team", "c")))["status"]["allocation"]["devices"]["results"]
            refused = await metric(replicas, "koordgate_requests_total", path="/validate-claim", outcome="denied")
            assert {taken["device"], held} == {"gpu-0", "gpu-1"}
            assert refused == 0


def _tainting(rules: TaintRules, selector: JsonObject, effect: str = "NoSchedule") -> JsonObject:
    spec = {"deviceSelector": selector, "taint": {"key": "koordgate.io/held", "effect": effect}}
    kind = {"apiVersion": rules.api_version, "kind": "DeviceTaintRule"}
    return {**kind, "metadata": {"name": "koordgate-x"}, "spec": spec}


async def _is_refused(client: AdminClient, path: str, wrong: JsonObject) -> bool:
    """Whether a rule is refused; a policy takes a moment until it is in force."""
    try:
        await client.create(path, wrong, dryRun="All")
    except ApiError as error:
        return error.status == 403 and "keep DRA from scheduling" in error.message
    return False
