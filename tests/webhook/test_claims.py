"""ResourceClaims beside Pods on the same cards: binds, reviews of allocations, and what becomes of reservations."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest
from builders import container, device_entry, pod
from claims import DRIVER, Raw, allocation, cards, claim, listed, resource_slice, result, with_status
from fake_kube import answer, hold
from waiting import until
from world import World, admitted, asks, gpu_pod, releasing

from allocator.vocabulary.devicetype import GPU_TYPE
from allocator.vocabulary.holdings import InvariantError
from koordgate.kube.resource import DEVICES, EVENTS, NODE_ALLOCATIONS, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES
from webhook.dra import controller as controller_module
from webhook.review import Response
from webhook.view.claimfeed import ClaimFeed, kube_claims


@pytest.fixture
def two(world: World) -> World:
    """A node n1 of two cards that a driver lists too."""
    world.add_node("n1", device_entry(0), device_entry(1))
    put_slice(world, cards("n1", 2))
    world.see()
    return world


def put_slice(world: World, devices: list[Raw], node: str = "n1", **about: Any) -> None:
    world.fake.put(RESOURCE_SLICES.path(), resource_slice(node, devices, **about))


def put_claim(world: World, obj: Raw, *, see: bool = True) -> Raw:
    stored = world.fake.put(RESOURCE_CLAIMS.path(namespace=obj["metadata"]["namespace"]), obj)
    if see:
        world.see(RESOURCE_CLAIMS)
    return stored


def delete_claim(world: World, stored: Raw) -> None:
    """The API server tells of the deletion."""
    metadata = stored["metadata"]
    world.fake.remove(RESOURCE_CLAIMS.path(metadata["name"], metadata["namespace"]))
    world._feeds[RESOURCE_CLAIMS].drop(stored)


async def allocate(world: World, stored: Raw, *results: Raw, perform: bool = True, **options: Any) -> Response:
    """Review an allocation as the API server does, and perform it if it is allowed."""
    given = allocation(*results, node=options.pop("node", "n1"))
    metadata = stored["metadata"]
    now = with_status(stored, given)
    request = asks(now, operation="UPDATE", resource="resourceclaims", subresource="status", old=stored, **options)
    response = await world.parts.claims.validate(request, 4.0)
    if response.allowed and perform and not options.get("dry_run"):
        world.fake.put(RESOURCE_CLAIMS.path(namespace=metadata["namespace"]), now)
    return response


def card_of(world: World, name: str) -> list[str]:
    return [share.id for holding in world.holdings().values() if holding.name == name for share in holding.shares]


def reserved(world: World) -> dict[str, list[str]]:
    held = (one for one in world.holdings().values() if one.fence)
    return {one.name: sorted(share.id for share in one.shares) for one in held}


async def settle(world: World) -> None:
    """What was reserved for claims that let go of it is released."""
    controller = world.parts.claim_controller
    while not controller._ended.empty():
        uid = controller._ended.get_nowait()
        await controller.let_go(uid)
    await world.idle()


# --- binds see claims


async def test_a_bind_gives_no_card_that_a_claim_holds(two: World) -> None:
    put_claim(two, claim("c", result("gpu-0")))
    two.add_pod(gpu_pod("p", 100))
    two.add_pod(gpu_pod("q", 1))
    two.see(PODS)
    assert (await two.bind("p")).allowed
    assert card_of(two, "p") == ["GPU-n1-1"]
    refused = await two.bind("q")
    assert not refused.allowed
    assert "1 held by ResourceClaims" in refused.message


async def test_what_claims_hold_is_never_recorded_by_a_bind(two: World) -> None:
    put_claim(two, claim("c", result("gpu-0")))
    two.add_pod(gpu_pod("p", 100))
    two.see(PODS)
    await two.bind("p")
    assert [one.name for one in two.holdings().values()] == ["p"]


async def test_a_claim_that_is_written_with_the_same_allocation_leaves_no_outdated_snapshot_behind(two: World) -> None:
    put_claim(two, claim("c", result("gpu-0")))
    before = two.parts.cluster.snapshot("n1")
    put_claim(two, claim("c", result("gpu-0"), labels={"a": "b"}))
    two.parts.cluster.check_invariants()
    assert two.parts.cluster.snapshot("n1").used == before.used


async def test_access_for_administration_holds_nothing(two: World) -> None:
    put_claim(two, claim("c", result("gpu-0", adminAccess=True), result("gpu-1", adminAccess=True)))
    two.add_pod(gpu_pod("p", 100))
    two.see(PODS)
    assert (await two.bind("p")).allowed


@pytest.mark.parametrize(("percent", "fits"), [(75, True), (76, False)])
async def test_of_a_card_that_is_consumed_in_part_the_rest_is_given(world: World, percent: int, fits: bool) -> None:  # noqa: FBT001
    put_slice(world, cards("n1", 1))
    put_claim(world, claim("c", result("gpu-0", consumedCapacity={"memory": "20Gi"})))
    world.see()
    world.add_pod(gpu_pod("p", percent))
    world.see(PODS)
    assert (await world.bind("p")).allowed is fits


async def test_a_claim_of_a_device_that_no_slice_lists_holds_all_of_its_node(two: World) -> None:
    put_claim(two, claim("c", result("gpu-7")))
    two.add_pod(gpu_pod("p", 1))
    two.see(PODS)
    assert not (await two.bind("p")).allowed
    put_slice(two, [*cards("n1", 2), listed("gpu-7", "GPU-n1-1")], generation=2)
    two.see(RESOURCE_SLICES)
    assert (await two.bind("p")).allowed
    assert card_of(two, "p") == ["GPU-n1-0"]


async def test_what_a_slice_said_is_remembered_while_its_driver_is_away(two: World) -> None:
    put_claim(two, claim("c", result("gpu-0")))
    two.fake.remove(RESOURCE_SLICES.path("slice-n1"))
    two.see(RESOURCE_SLICES)
    two.add_pod(gpu_pod("p", 100))
    two.see(PODS)
    assert (await two.bind("p")).allowed
    assert card_of(two, "p") == ["GPU-n1-1"]


async def test_slices_of_older_generations_do_not_count(two: World) -> None:
    put_slice(two, [listed("gpu-0", "GPU-n1-1")], generation=2, name="newer")
    two.see(RESOURCE_SLICES)
    put_claim(two, claim("c", result("gpu-0")))
    two.add_pod(gpu_pod("p", 100))
    two.see(PODS)
    await two.bind("p")
    assert card_of(two, "p") == ["GPU-n1-0"]


async def test_a_deallocated_or_deleted_claim_frees_its_card(two: World) -> None:
    first = put_claim(two, claim("c", result("gpu-0")))
    put_claim(two, claim("d", result("gpu-1")))
    view = two.parts.cluster
    assert view.snapshot("n1").claimed == {"GPU-n1-0", "GPU-n1-1"}
    put_claim(two, with_status(first, None))
    assert view.snapshot("n1").claimed == {"GPU-n1-1"}
    two.fake.remove(RESOURCE_CLAIMS.path("d", "default"))
    two.see(RESOURCE_CLAIMS)
    assert view.snapshot("n1").claimed == set()


async def test_an_allocation_that_cannot_be_read_closes_its_node(two: World) -> None:
    given = {**allocation(result("gpu-0")), "devices": "x"}
    put_claim(two, {**claim("c"), "status": {"allocation": given}})
    assert two.parts.cluster.snapshot("n1").claimed == {"GPU-n1-0", "GPU-n1-1"}


async def test_preemption_evicts_no_claim(two: World) -> None:
    put_claim(two, claim("c", result("gpu-0")))
    snapshot = two.parts.cluster.snapshot("n1")
    assert snapshot.holdings == {}
    assert snapshot.without(["uid-c"]).claimed == {"GPU-n1-0"}


# --- reviews


async def test_an_allocation_onto_a_free_card_is_reserved_before_it_is_performed(two: World) -> None:
    stored = put_claim(two, claim("c"))
    assert (await allocate(two, stored, result("gpu-0"), perform=False)).allowed
    assert reserved(two) == {"c": ["GPU-n1-0"]}
    two.add_pod(gpu_pod("p", 100))
    two.add_pod(gpu_pod("q", 100))
    two.see(PODS)
    assert (await two.bind("p")).allowed
    assert card_of(two, "p") == ["GPU-n1-1"]
    assert not (await two.bind("q")).allowed


async def test_an_allocation_onto_a_card_that_a_pod_holds_is_refused_with_the_holder_and_what_to_do(two: World) -> None:
    two.add_pod(gpu_pod("p", 1))
    two.see(PODS)
    await two.bind("p")
    stored = put_claim(two, claim("c"))
    refused = await allocate(two, stored, result("gpu-0"))
    assert not refused.allowed
    assert refused.code == 403
    assert (
        "ResourceClaim default/c is not allocated: gpu 0 (GPU-n1-0) of node n1 is held by default/p" in refused.message
    )
    assert "dra.taints" in refused.message
    assert reserved(two) == {}
    assert (await allocate(two, stored, result("gpu-1"))).allowed


async def test_a_pod_that_only_its_annotations_say_to_hold_a_card_is_respected(two: World) -> None:
    two.add_pod(gpu_pod("p", 100))
    two.see(PODS)
    await two.bind("p")
    two.fake.remove(NODE_ALLOCATIONS.path("n1"))
    two.see()
    refused = await allocate(two, put_claim(two, claim("c")), result("gpu-0"))
    assert not refused.allowed


async def test_what_the_review_cannot_concern_is_allowed_and_records_nothing(two: World) -> None:
    stored = put_claim(two, claim("c"))
    assert (await allocate(two, stored, result("gpu-0", adminAccess=True), perform=False)).allowed
    assert (await allocate(two, stored, result("gpu-0", driver="other.example.com"), perform=False)).allowed
    assert (await allocate(two, stored, result("gpu-0"), node="elsewhere", perform=False)).allowed
    held = put_claim(two, claim("d", result("gpu-1")))
    request = asks(
        {**held, "status": {**held["status"], "reservedFor": [{"name": "p"}]}},
        operation="UPDATE",
        resource="resourceclaims",
        subresource="status",
        old=held,
    )
    assert (await two.parts.claims.validate(request, 4.0)).allowed
    assert reserved(two).keys() <= {"c"}, "the slice says that gpu-0 is on n1, whatever the selector says"
    assert "d" not in reserved(two)


async def test_a_dry_run_is_judged_and_records_nothing(two: World) -> None:
    stored = put_claim(two, claim("c"))
    assert (await allocate(two, stored, result("gpu-0"), dry_run=True)).allowed
    assert reserved(two) == {}
    two.add_pod(gpu_pod("p", 100))
    two.see(PODS)
    await two.bind("p")
    assert not (await allocate(two, stored, result("gpu-0"), dry_run=True)).allowed


async def test_a_claim_that_has_changed_is_to_be_read_again(two: World) -> None:
    stored = put_claim(two, claim("c"))
    put_claim(two, {**stored, "metadata": {**stored["metadata"], "finalizers": ["x"]}})
    refused = await allocate(two, stored, result("gpu-0"))
    assert refused.code == 409
    assert "read it again" in refused.message
    assert reserved(two) == {}


async def test_a_claim_that_the_replica_has_not_seen_is_read(two: World) -> None:
    stored = put_claim(two, claim("c"), see=False)
    assert (await allocate(two, stored, result("gpu-0"))).allowed
    forged = {**stored, "metadata": {**stored["metadata"], "resourceVersion": "999999"}}
    assert (await allocate(two, forged, result("gpu-1"))).code == 409
    unknown = {**stored, "metadata": {**stored["metadata"], "name": "none", "uid": "uid-none"}}
    assert (await allocate(two, unknown, result("gpu-1"))).code == 409
    assert reserved(two) == {"c": ["GPU-n1-0"]}


async def test_a_failing_api_server_is_our_failure(two: World) -> None:
    stored = put_claim(two, claim("c"))
    two.fake.faults.always("update", "nodeallocations", answer(500))
    two.fake.faults.always("create", "nodeallocations", answer(500))
    failed = await allocate(two, stored, result("gpu-0"))
    assert failed.code == 503


async def test_an_object_without_identity_is_the_callers_fault(two: World) -> None:
    refused = await allocate(two, {"metadata": {"name": "c", "namespace": "default"}}, result("gpu-0"), perform=False)
    assert refused.code == 400


async def test_attempts_that_were_not_performed_reserve_on_four_nodes_at_most(two: World) -> None:
    for name in ("n2", "n3", "n4", "n5"):
        two.add_node(name)
        put_slice(two, cards(name, 1), name)
    two.see()
    stored = put_claim(two, claim("c"))
    for name in ("n1", "n2", "n3", "n4"):
        assert (await allocate(two, stored, result("gpu-0", name), node=name, perform=False)).allowed
    refused = await allocate(two, stored, result("gpu-0", "n5"), node="n5")
    assert "devices of n1, n2, n3, n4 were reserved" in refused.message
    assert (await allocate(two, stored, result("gpu-0", "n3"), node="n3", perform=False)).allowed
    later = put_claim(two, {**stored, "metadata": {**stored["metadata"], "finalizers": ["x"]}})
    assert (await allocate(two, later, result("gpu-0", "n5"), node="n5")).allowed


# --- the end of reservations


async def test_a_reservation_ends_as_soon_as_its_claim_is_seen_deallocated(two: World) -> None:
    stored = put_claim(two, claim("c"))
    await allocate(two, stored, result("gpu-0"))
    two.see(RESOURCE_CLAIMS)
    await settle(two)
    assert reserved(two) == {"c": ["GPU-n1-0"]}
    put_claim(two, with_status(stored, None))
    assert two.parts.cluster.snapshot("n1").claimed == set(), "the filter need not wait for the ledger"
    await settle(two)
    assert reserved(two) == {}
    assert two.metric("koordgate_ledger_reconciled_total", kind="deallocated") == 1


async def test_a_reservation_ends_with_its_claim(two: World) -> None:
    stored = put_claim(two, claim("c"))
    await allocate(two, stored, result("gpu-0"), perform=False)
    delete_claim(two, stored)
    await settle(two)
    assert reserved(two) == {}
    assert two.metric("koordgate_ledger_reconciled_total", kind="gone") == 1


@pytest.mark.parametrize("end", ["deleted", "deallocated"])
async def test_a_reservation_that_is_written_after_its_claim_was_seen_to_end_is_released(two: World, end: str) -> None:
    stored = put_claim(two, claim("c"))
    write = hold()
    two.fake.faults.add("create", "nodeallocations", write)
    async with releasing(two):
        allocating = asyncio.create_task(allocate(two, stored, result("gpu-0"), perform=False))
        await write.reached.wait()
        if end == "deleted":
            delete_claim(two, stored)
        else:
            put_claim(two, {**stored, "metadata": {**stored["metadata"], "labels": {"x": "y"}}})
        assert write.gate
        write.gate.set()
        assert (await allocating).allowed
        await until(lambda: reserved(two) == {})


async def test_that_a_list_does_not_name_a_claim_proves_nothing(two: World) -> None:
    stored = put_claim(two, claim("c"))
    await allocate(two, stored, result("gpu-0"), perform=False)
    two.fake.remove(RESOURCE_CLAIMS.path("c", "default"))
    two.see(RESOURCE_CLAIMS)
    put_claim(two, stored, see=False)
    await settle(two)
    assert reserved(two) == {"c": ["GPU-n1-0"]}
    assert two.parts.cluster.snapshot("n1").claimed == {"GPU-n1-0"}
    two.fake.remove(RESOURCE_CLAIMS.path("c", "default"))
    await two.parts.claim_controller.reconcile()
    assert reserved(two) == {}


async def test_an_allocation_that_is_not_performed_is_marked_and_then_given_back(two: World) -> None:
    stored = put_claim(two, claim("c"))
    await allocate(two, stored, result("gpu-0"), perform=False)
    controller = two.parts.claim_controller
    await controller.reconcile()
    two.clock.now += 61
    await controller.reconcile()
    (held,) = two.holdings().values()
    assert held.ending
    refused = await allocate(two, stored, result("gpu-0"))
    assert "being given back" in refused.message
    await controller.reconcile()
    two.clock.now += 120
    await controller.reconcile()
    assert reserved(two) == {"c": ["GPU-n1-0"]}
    two.clock.now += 1
    await controller.reconcile()
    assert reserved(two) == {}
    assert two.metric("koordgate_ledger_reconciled_total", kind="unperformed") == 1


async def test_what_becomes_due_between_two_rounds_is_given_back_before_the_next(
    two: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(controller_module, "_SOONEST_S", 0.001)
    names = ("c", "d")
    for at, name in enumerate(names):
        await allocate(two, put_claim(two, claim(name)), result(f"gpu-{at}"), perform=False)
    controller = two.parts.claim_controller
    controller._clock, controller._grace = time.monotonic, 0.02
    timer = asyncio.create_task(controller.run_timer(3600))
    await until(lambda: two.metric("koordgate_ledger_reconciled_total", kind="unperformed") == 2)
    timer.cancel()
    assert reserved(two) == {}


async def test_all_reservations_are_looked_at_at_the_interval(two: World) -> None:
    timer = asyncio.create_task(two.parts.claim_controller.run_timer(0.01))
    for name in ("c", "d"):
        stored = put_claim(two, claim(name))
        await allocate(two, stored, result("gpu-0"), perform=False)
        two.fake.remove(RESOURCE_CLAIMS.path(name, "default"))
        two.see(RESOURCE_CLAIMS)  # a list proves nothing, and so the claim is read
        two.clock.now += 200
        await two.fake.until(lambda: reserved(two) == {})
    timer.cancel()


async def test_an_allocation_that_was_performed_after_all_stays(two: World) -> None:
    stored = put_claim(two, claim("c"))
    await allocate(two, stored, result("gpu-0"))  # performed, but not seen
    for _ in range(4):
        await two.parts.claim_controller.reconcile()
        two.clock.now += 200
    assert reserved(two) == {"c": ["GPU-n1-0"]}


async def test_while_claims_cannot_be_read_reservations_stay(two: World) -> None:
    stored = put_claim(two, claim("c"), see=False)
    await allocate(two, stored, result("gpu-0"), perform=False)
    two.fake.faults.always("get", "resourceclaims", answer(503))
    for _ in range(3):
        two.clock.now += 200
        await two.parts.claim_controller.reconcile()
    assert reserved(two) == {"c": ["GPU-n1-0"]}


async def test_reconciliation_with_pods_leaves_reservations_alone(two: World) -> None:
    stored = put_claim(two, claim("c"))
    await allocate(two, stored, result("gpu-0"), perform=False)
    two.clock.now += 1000
    await two.parts.reconciler.reconcile()
    assert reserved(two) == {"c": ["GPU-n1-0"]}


# --- what is told


async def test_a_card_that_was_given_twice_around_the_webhook_is_told(two: World) -> None:
    two.add_pod(gpu_pod("p", 50))
    two.see(PODS)
    await two.bind("p")
    put_claim(two, claim("c", result("gpu-0")))
    await two.parts.claim_controller.reconcile()
    await two.parts.reporter.idle()
    assert two.metric("koordgate_devices_claimed_too") == 1
    (event,) = _held_twice(two)
    assert event["involvedObject"]["kind"] == "ResourceClaim"
    assert "GPU-n1-0" in event["message"]
    await two.parts.claim_controller.reconcile()
    await two.parts.reporter.idle()
    assert len(_held_twice(two)) == 1


def _held_twice(world: World) -> list[Raw]:
    events = world.fake.objects(EVENTS.path(namespace="default"))
    return [event for event in events if event["reason"] == "DeviceHeldTwice"]


async def test_a_claim_whose_devices_are_unknown_is_told(two: World) -> None:
    put_claim(two, claim("c", result("gpu-7")))
    await two.parts.claim_controller.reconcile()
    await two.parts.reporter.idle()
    assert two.metric("koordgate_claims_unmatched") == 1
    (event,) = two.fake.objects(EVENTS.path(namespace="default"))
    assert (event["reason"], event["involvedObject"]["name"]) == ("AllocationUnreadable", "c")


async def test_a_slice_that_cannot_be_read_is_told_and_lists_nothing(two: World) -> None:
    put_slice(two, cards("n1", 2), generation="x")
    two.see(RESOURCE_SLICES)
    assert two.complaints["resourceslices", "slice-n1"]
    put_claim(two, claim("c", result("gpu-0")))
    assert two.parts.cluster.snapshot("n1").claimed == {"GPU-n1-0", "GPU-n1-1"}


# --- the tables


async def test_what_dra_calls_a_nodes_cards(two: World) -> None:
    devices = [listed("gpu-0", "GPU-n1-0"), listed("mig-1", "MIG-x", parentUUID="GPU-n1-1"), listed("other", "GPU-y")]
    put_slice(two, devices)
    two.see(RESOURCE_SLICES)
    names = two.parts.cluster.claims.slices.names("n1", two.parts.cluster.devices("n1"))
    assert {name.device: identity for name, identity in names.items()} == {"gpu-0": "GPU-n1-0", "mig-1": "GPU-n1-1"}
    assert {(name.driver, name.pool) for name in names} == {(DRIVER, "n1")}


async def test_a_claim_that_was_created_again_is_another(two: World) -> None:
    put_claim(two, claim("c", result("gpu-0")))
    put_claim(two, claim("c", result("gpu-1"), uid="uid-again"))
    assert two.parts.cluster.snapshot("n1").claimed == {"GPU-n1-1"}


async def test_drivers_and_their_types_are_settings(two: World) -> None:
    assert two.parts.cluster.claims.drivers == {DRIVER: GPU_TYPE}


async def test_a_card_is_found_by_its_pci_address(world: World) -> None:
    entry = device_entry(0)
    entry["topology"] = {"socketID": 0, "nodeID": 0, "pcieID": "pci0000:00", "busID": "0000:3b:00.0"}
    world.add_node("n1", entry, device_entry(1))
    put_slice(world, [listed("gpu-0", pci="0000:3B:00.0")])
    put_claim(world, claim("c", result("gpu-0")))
    world.see(DEVICES, RESOURCE_SLICES)
    assert world.parts.cluster.snapshot("n1").claimed == {"GPU-n1-0"}


async def test_a_pod_with_a_claim_and_koordgates_cards_gets_both(two: World) -> None:
    asked = pod(container(limits={"kubernetes.io/gpu": "100"}), name="p", uid="uid-p")
    asked["spec"]["resourceClaims"] = [{"name": "card", "resourceClaimName": "c"}]
    put_claim(two, claim("c", result("gpu-0")))
    two.add_pod(admitted(asked))
    two.see(PODS)
    assert (await two.bind("p")).allowed
    assert card_of(two, "p") == ["GPU-n1-1"]


SPOILT: dict[str, Callable[[Any], object]] = {
    "a claim by node too many": lambda claims: claims._on["n2"].add("uid-c"),
    "a claim by node too few": lambda claims: claims._on.clear(),
    "a claim by pool too many": lambda claims: claims._users[DRIVER, "n2"].add("uid-c"),
    "a claim by pool too few": lambda claims: claims._users.clear(),
    "a slice by pool too many": lambda claims: claims.slices._of_pool[DRIVER, "n2"].add("slice-n1"),
    "a slice by pool too few": lambda claims: claims.slices._of_pool.clear(),
    "a slice by node too many": lambda claims: claims.slices._on_node["n2"].add("slice-n1"),
    "a slice by node too few": lambda claims: claims.slices._on_node.clear(),
}


@pytest.mark.parametrize("spoil", SPOILT.values(), ids=SPOILT)
def test_an_index_of_claims_that_is_wrong_is_found(two: World, spoil: Callable[[Any], object]) -> None:
    put_claim(two, claim("c", result("gpu-0")))
    claims = two.parts.cluster.claims
    claims.check_invariants()
    spoil(claims)
    with pytest.raises(InvariantError):
        claims.check_invariants()


@pytest.mark.parametrize("name", ["", "..", "a/b"])
async def test_no_claim_has_a_name_that_is_none(two: World, name: str) -> None:
    asked = len(two.fake.requests)
    assert await kube_claims(two.kube, [DRIVER])("default", name, 1.0) is None
    assert len(two.fake.requests) == asked


async def test_what_another_attempt_reserved_on_another_node_is_released_and_what_the_claim_holds_stays(
    two: World,
) -> None:
    for node in ("n0", "n2"):
        two.add_node(node, device_entry(0))
        put_slice(two, cards(node, 1), node)
    two.see()
    stored = put_claim(two, claim("c"))
    for node in ("n0", "n2"):
        await allocate(two, stored, result("gpu-0", pool=node), node=node, perform=False)
    assert (await allocate(two, stored, result("gpu-0"))).allowed
    two.see(RESOURCE_CLAIMS)
    await two.parts.claim_controller.let_go("uid-c")
    assert reserved(two) == {"c": ["GPU-n1-0"]}


async def test_a_reservation_that_cannot_be_corrected_stays_and_is_tried_again(
    two: World, caplog: pytest.LogCaptureFixture
) -> None:
    stored = put_claim(two, claim("c", result("gpu-0")), see=False)
    stored = put_claim(two, {**stored, "status": {}})
    await allocate(two, stored, result("gpu-0"), perform=False)
    two.fake.remove(RESOURCE_CLAIMS.path("c", "default"))
    two.see(RESOURCE_CLAIMS)
    two.fake.faults.always("update", "nodeallocations", answer(403))
    await two.parts.claim_controller.reconcile()
    assert reserved(two) == {"c": ["GPU-n1-0"]}
    assert "a reservation could not be corrected; the next round tries again" in caplog.text
    two.fake.faults.always("update", "nodeallocations", None)
    await two.parts.claim_controller.reconcile()
    assert reserved(two) == {}


@pytest.mark.parametrize(("later", "deleted"), [(True, True), (False, None)])
def test_a_claim_of_the_same_name_ends_the_one_before_unless_an_old_list_names_it(
    two: World, *, later: bool, deleted: bool | None
) -> None:
    feed = ClaimFeed(two.parts.cluster)
    made = claim("c", result("gpu-0"))
    feed.put({**made, "metadata": {**made["metadata"], "resourceVersion": "100"}})
    another = {**made["metadata"], "uid": "another", "resourceVersion": "101" if later else "99"}
    feed.put({**made, "metadata": another})
    claims = two.parts.cluster.claims
    assert (claims.known("uid-c"), claims._deleted.get("uid-c")) == (None, deleted)
    assert claims.known("another") is not None
