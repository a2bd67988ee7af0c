"""The ledger compared with live Pods: what is released, what is kept, and what is reported."""

import asyncio
import json
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pytest
from builders import container, device_entry, device_object, gpu, part, pod
from fake_kube import answer, hold
from world import World, binding, binds, gpu_pod, koordinator_annotation, plain_pod, releasing

from allocator.vocabulary.holdings import Holding
from koordgate.kube.client import KubeClient
from koordgate.kube.errors import KubeError
from koordgate.kube.resource import DEVICES, NODE_ALLOCATIONS, PODS
from webhook import patch
from webhook.upkeep import reconcile as reconcile_module

GRACE = 120
WHOLE = {"kubernetes.io/gpu-core": "100", "kubernetes.io/gpu-memory-ratio": "100"}
HALF = {"kubernetes.io/gpu-core": "50", "kubernetes.io/gpu-memory-ratio": "50"}


def mended(world: World) -> dict[str, float]:
    kinds = ("gone", "finished", "unbound", "moved", "adopted")
    counts = {kind: world.metric("koordgate_ledger_reconciled_total", kind=kind) for kind in kinds}
    return {kind: count for kind, count in counts.items() if count}


async def reconcile(world: World) -> None:
    await world.parts.reconciler.reconcile()
    await world.idle()
    while world.parts.reporter._tasks:
        await asyncio.wait(world.parts.reporter._tasks)


async def hold_share(world: World, name: str, node: str = "n1", percent: int = 50, minor: int = 0) -> Holding:
    """Put a holding into the ledger as a bind would have."""
    share = part(gpu(minor, device_id=f"GPU-{node}-{minor}"), percent, "main")
    made = Holding(f"uid-{name}", "default", name, world.clock.now, (share,))
    await world.parts.ledger.change(node, lambda old: ({**old, made.uid: made}, None), 5)
    return made


# --- each kind


async def test_a_holding_whose_pod_is_gone_goes(world: World) -> None:
    await hold_share(world, "p")
    world.see()
    await reconcile(world)
    assert world.holders() == []
    assert mended(world) == {"gone": 1}


async def test_a_holding_of_an_earlier_pod_of_that_name_goes(world: World) -> None:
    await hold_share(world, "p")
    world.show(gpu_pod("p", uid="uid-another", nodeName="n1"))
    await reconcile(world)
    assert world.holders() == []
    assert mended(world) == {"gone": 1}


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
async def test_a_holding_whose_pod_finished_goes(world: World, phase: str) -> None:
    await hold_share(world, "p")
    world.show({**gpu_pod("p", nodeName="n1"), "status": {"phase": phase}})
    await reconcile(world)
    assert mended(world) == {"finished": 1}
    assert world.holders() == []


async def test_a_holding_on_a_node_where_its_pod_is_not_goes(world: World) -> None:
    world.add_node("n2")
    await hold_share(world, "p", "n1")
    await hold_share(world, "p", "n2")
    world.show(gpu_pod("p", nodeName="n2", annotations=koordinator_annotation((0, HALF, "GPU-n2-0"))))
    await reconcile(world)
    assert (world.holders("n1"), world.holders("n2")) == ([], ["p"])
    assert mended(world) == {"moved": 1}


async def sweep(world: World, seconds: float = GRACE / 2 + 1) -> None:
    """What is not bound is seen, and after this time looked at again."""
    await reconcile(world)
    world.clock.now += int(seconds)
    await reconcile(world)


async def test_a_holding_that_is_not_bound_is_marked_after_half_a_grace_and_released_a_grace_after_that(
    world: World,
) -> None:
    await hold_share(world, "p")
    world.show(gpu_pod("p"))
    await sweep(world, GRACE / 2)
    assert world.holdings()["uid-p"].ending == ""
    world.clock.now += 1
    await reconcile(world)
    mark = world.holdings()["uid-p"].ending
    assert mark
    world.clock.now += GRACE
    await reconcile(world)
    assert world.holdings()["uid-p"].ending == mark
    world.clock.now += 1
    await reconcile(world)
    assert world.holders() == []
    assert mended(world) == {"unbound": 1}


@pytest.mark.parametrize("ahead", [-100_000, 0, 100_000])
async def test_how_old_a_holding_is_by_the_clocks_of_replicas_does_not_count(
    world: World, kube: KubeClient, ahead: int
) -> None:
    """Replicas whose clocks are a day apart: each goes by how long it has seen the holding itself."""
    world.show(gpu_pod("p"))
    assert (await world.mutate(binds(binding("p", "n1")))).allowed
    other = World(world.fake, kube)
    other.clock.ahead = ahead
    other.see()
    await sweep(other, GRACE / 2)
    assert other.holdings()["uid-p"].ending == ""
    other.clock.now += 1
    await reconcile(other)
    assert other.holdings()["uid-p"].ending
    world.see()
    await reconcile(world)  # has seen the mark only now
    other.clock.now += GRACE
    await reconcile(other)
    await reconcile(world)
    assert world.holders() == ["p"]
    other.clock.now += 1
    await reconcile(other)
    assert world.holders() == []


async def test_what_another_replica_marked_is_released_by_whoever_has_seen_the_mark_for_a_grace(
    world: World, kube: KubeClient
) -> None:
    """The replica that marked it has ended."""
    world.show(gpu_pod("p"))
    await world.mutate(binds(binding("p", "n1")))
    await sweep(world)
    started = World(world.fake, kube)
    started.see()
    await sweep(started, GRACE)
    assert started.holders() == ["p"]
    started.clock.now += 1
    await reconcile(started)
    assert started.holders() == []


async def test_no_bind_is_answered_with_what_is_being_given_back_and_says_until_when(world: World) -> None:
    world.show(gpu_pod("p"))
    await world.mutate(binds(binding("p", "n1")))
    await sweep(world)
    refused = await world.mutate(binds(binding("p", "n1")))
    assert (refused.allowed, refused.code) == (False, 409)
    assert "is being given back" in refused.message
    assert "within 240 s" in refused.message


async def test_a_bind_that_was_answered_before_the_mark_is_still_performed_and_the_mark_goes(world: World) -> None:
    world.show(gpu_pod("p"))
    mutated = await world.mutate(binds(binding("p", "n1")))
    await sweep(world)
    assert world.holdings()["uid-p"].ending
    asked = patch.apply(binding("p", "n1"), mutated.patch)
    assert (await world.validate(binds(asked))).allowed
    await world.kube.create(PODS.path("p", "default", "binding"), asked)
    world.see(PODS)
    world.clock.now += 10 * GRACE
    await reconcile(world)
    assert world.holders() == ["p"]
    assert world.holdings()["uid-p"].ending == ""


async def test_repeated_binds_do_not_keep_what_is_not_bound(world: World) -> None:
    """A forged review, or one that the API server does not perform, every 20 s."""
    world.show(gpu_pod("p"))
    answers = []
    for _ in range(20):
        answers.append((await world.mutate(binds(binding("p", "n1")))).allowed)
        await reconcile(world)
        if not world.holders():
            break
        world.clock.now += 20
    assert world.holders() == []
    assert len(answers) <= 12, "240 s"
    assert answers[:4] == [True] * 4
    assert answers[-6:] == [False] * 6


async def test_what_is_seen_by_one_round_is_marked_and_released_when_it_is_due_without_another_round(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reconcile_module, "_SOONEST_S", 0.001)
    world.add_node("n1", device_entry(0), device_entry(1))
    for name in ("p", "q"):
        world.show(gpu_pod(name, 100))
        await world.mutate(binds(binding(name, "n1")))
    reconciler = world.parts.reconciler
    reconciler._clock, reconciler._grace = time.monotonic, 0.02
    await reconcile(world)
    timer = asyncio.create_task(reconciler.run_timer(3600))
    await world.fake.until(lambda: world.holders() == [])
    timer.cancel()


async def test_a_pod_that_runs_and_is_not_in_the_ledger_is_adopted(world: World) -> None:
    world.add_node("n1", device_entry(0), device_entry(1))
    for minor in (0, 1):
        annotations = koordinator_annotation((minor, WHOLE, ""))
        world.add_pod(gpu_pod(f"p{minor}", 100, nodeName="n1", annotations=annotations))
    world.see()
    await reconcile(world)
    held = world.holdings()
    assert {h.name: [share.id for share in h.shares] for h in held.values()} == {"p0": ["GPU-n1-0"], "p1": ["GPU-n1-1"]}
    assert {h.since for h in held.values()} == {world.clock.now}
    assert mended(world) == {"adopted": 2}  # each is counted, although one write has both
    await reconcile(world)
    assert mended(world) == {"adopted": 2}


async def test_a_pod_is_adopted_though_its_card_is_over_full_for_it_runs(world: World) -> None:
    for name in ("a", "b"):
        world.add_pod(gpu_pod(name, 100, nodeName="n1", annotations=koordinator_annotation((0, WHOLE, ""))))
    world.see()
    await reconcile(world)
    assert world.holders() == ["a", "b"]


@pytest.mark.parametrize("status", ["Succeeded", "Failed"])
async def test_a_finished_pod_is_not_adopted(world: World, status: str) -> None:
    obj = gpu_pod("p", nodeName="n1", annotations=koordinator_annotation((0, HALF, "")))
    world.show({**obj, "status": {"phase": status}})
    await reconcile(world)
    assert world.holders() == []


async def test_releases_and_adoptions_that_hang_leave_the_ledger_to_binds_soon(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ledger writes to eight nodes at once: eight writes that hang stop every bind until they end."""
    assert reconcile_module._WRITE_S <= 5
    monkeypatch.setattr(reconcile_module, "_WRITE_S", 0.3)
    nodes = [f"m{number}" for number in range(8)]
    for number, node in enumerate(nodes):
        world.add_node(node)
        if number % 2:
            await hold_share(world, f"gone{number}", node)
        else:
            annotations = koordinator_annotation((0, HALF, ""))
            world.add_pod(gpu_pod(f"runs{number}", nodeName=node, annotations=annotations))
    world.show(gpu_pod("p"))
    hung = {verb: [hold() for _ in range(4)] for verb in ("create", "update")}
    for verb, faults in hung.items():
        world.fake.faults.add(verb, "nodeallocations", *faults)
    mending = asyncio.create_task(world.parts.reconciler.reconcile())
    for fault in (*hung["create"], *hung["update"]):
        await fault.reached.wait()
    assert (await world.mutate(binds(binding("p", "n1")), 4)).allowed
    for fault in (*hung["create"], *hung["update"]):
        assert fault.gate
        fault.gate.set()
    with suppress(KubeError):
        await mending


async def test_all_is_well_and_nothing_is_asked_or_written(world: World) -> None:
    world.show(gpu_pod("p"))
    await world.bind("p")
    before = len(world.fake.requests)
    world.clock.now += 10 * GRACE
    await reconcile(world)
    assert world.holders() == ["p"]
    assert len(world.fake.requests) == before
    assert mended(world) == {}


# --- nothing is released by the cache alone


async def test_a_holding_stays_where_only_the_cache_is_behind(world: World) -> None:
    """Another replica bound a Pod that our watch has not shown yet."""
    await hold_share(world, "p")
    world.add_pod(gpu_pod("p", nodeName="n1"))
    world.clock.now += 10 * GRACE
    await reconcile(world)  # the Pod is not seen
    assert world.holders() == ["p"]
    assert mended(world) == {}


async def test_an_old_holding_stays_where_the_cache_has_not_seen_the_bind(world: World) -> None:
    await hold_share(world, "p")
    world.show(gpu_pod("p"))
    world.change_pod("p", spec={"nodeName": "n1"})
    world.clock.now += 10 * GRACE
    await reconcile(world)
    assert world.holders() == ["p"]


async def test_a_holding_stays_where_the_cache_has_the_pod_elsewhere_and_the_api_server_here(world: World) -> None:
    world.add_node("n2")
    await hold_share(world, "p", "n1")
    world.show(gpu_pod("p", nodeName="n2"))
    world.change_pod("p", spec={"nodeName": "n1"})
    await reconcile(world)
    assert world.holders("n1") == ["p"]


async def test_a_young_holding_of_a_pod_that_nobody_has_seen_yet_stays(world: World) -> None:
    await hold_share(world, "p")
    world.add_pod(gpu_pod("p"))
    await reconcile(world)
    assert world.holders() == ["p"]


async def test_nothing_goes_while_the_api_server_does_not_answer(world: World) -> None:
    await hold_share(world, "p")
    world.see()
    world.fake.faults.always("get", "pods", answer(500))
    with pytest.raises(KubeError):
        await world.parts.reconciler.reconcile()
    assert world.holders() == ["p"]
    world.fake.faults.always("get", "pods", None)
    await reconcile(world)
    assert world.holders() == []


async def test_a_bind_that_is_decided_while_a_sweep_reads_the_pod_is_refused_or_lasts_a_grace(world: World) -> None:
    """The sweep finds the holding unbound; meanwhile a bind is answered with it and is outstanding."""
    world.show(gpu_pod("p"))
    await world.mutate(binds(binding("p", "n1")))
    await reconcile(world)
    world.clock.now += GRACE // 2 + 1
    held = hold()
    world.fake.faults.add("get", "pods", held)
    sweeping = asyncio.create_task(world.parts.reconciler.reconcile())
    await held.reached.wait()
    assert (await world.mutate(binds(binding("p", "n1")))).allowed
    assert held.gate
    held.gate.set()
    await sweeping
    assert world.holdings()["uid-p"].ending, "a grace begins now"
    assert not (await world.mutate(binds(binding("p", "n1")))).allowed


async def test_a_holding_that_was_given_back_and_given_anew_is_not_released_by_a_replica_that_saw_the_old_mark(
    world: World, kube: KubeClient
) -> None:
    world.show(gpu_pod("p"))
    await world.mutate(binds(binding("p", "n1")))
    await sweep(world)
    late = World(world.fake, kube)
    late.see()
    await reconcile(late)
    world.clock.now += GRACE + 1
    await reconcile(world)
    world.clock.now -= 2 * GRACE  # by its own clock, the second holding is as old as the first
    await world.mutate(binds(binding("p", "n1")))
    await sweep(world)
    assert world.holdings()["uid-p"].ending
    late.clock.now += GRACE + 1
    await reconcile(late)
    assert world.holders() == ["p"]


# --- at the start, and failures


async def test_a_replica_that_starts_finds_what_happened_while_there_was_none(world: World, kube: KubeClient) -> None:
    world.add_node("n1", device_entry(0), device_entry(1))
    for name in ("stays", "gone", "finished"):
        world.add_pod(gpu_pod(name, 30))
    world.see()
    for name in ("stays", "gone", "finished"):
        assert (await world.bind(name)).allowed
    world.remove_pod("gone")
    world.change_pod("finished", status={"phase": "Succeeded"})
    world.add_pod(gpu_pod("koordinators", nodeName="n1", annotations=koordinator_annotation((1, HALF, ""))))
    started = World(world.fake, kube)
    started.see()
    await reconcile(started)
    assert started.holders() == ["koordinators", "stays"]
    assert mended(started) == {"gone": 1, "finished": 1, "adopted": 1}


async def test_a_lost_ledger_is_made_again_from_the_pods(world: World) -> None:
    names = ["a", "b"]
    for name in names:
        world.add_pod(gpu_pod(name))
    world.see()
    for name in names:
        await world.bind(name)
    world.see()
    before = world.holdings()
    world.fake.remove(NODE_ALLOCATIONS.path("n1"))
    world.see()
    await reconcile(world)
    assert world.holdings() == before
    assert mended(world) == {"adopted": 2}


async def test_one_damaged_record_does_not_keep_the_rest_from_being_repaired(world: World) -> None:
    """The process does not end: the timer continues, and the node waits for its administrator."""
    world.add_node("n2")
    await hold_share(world, "gone", "n2")
    spoilt = world.fake.put(NODE_ALLOCATIONS.path(), {"metadata": {"name": "n1"}, "spec": {"allocations": "?"}})
    world.show(gpu_pod("p", nodeName="n1", annotations=koordinator_annotation((0, HALF, ""))))
    await reconcile(world)
    assert world.holders("n2") == []
    assert world.fake.get(NODE_ALLOCATIONS.path("n1")) == spoilt
    assert world.metric("koordgate_bad_objects", resource="nodeallocations") == 1


async def test_a_release_that_fails_is_left_to_the_next_time(world: World) -> None:
    await hold_share(world, "p")
    world.see()
    world.fake.faults.add("update", "nodeallocations", answer(500))
    await reconcile(world)
    assert world.holders() == ["p"]
    await reconcile(world)
    assert world.holders() == []
    assert mended(world) == {"gone": 1}


async def test_the_timer_continues_after_a_failure(world: World) -> None:
    await hold_share(world, "p")
    world.see()
    failing = answer(500)
    world.fake.faults.always("get", "pods", failing)
    timer = asyncio.create_task(world.parts.reconciler.run_timer(0.01))
    await failing.reached.wait()
    world.fake.faults.always("get", "pods", None)
    await world.fake.until(lambda: world.holders() == [])
    timer.cancel()


# --- immediately


@pytest.mark.parametrize("how", ["deleted", "finished"])
async def test_what_a_pod_held_is_given_back_as_it_ends(world: World, how: str) -> None:
    world.show(gpu_pod("p"))
    await world.bind("p")
    async with releasing(world):
        if how == "deleted":
            world.remove_pod("p")
        else:
            world.change_pod("p", status={"phase": "Succeeded"})
        world.see(PODS)
        await world.fake.until(lambda: world.holders() == [])


async def test_releases_go_on_after_one_failed(world: World) -> None:
    world.add_node("n2")
    for name, node in (("a", "n1"), ("b", "n2")):
        world.show(gpu_pod(name))
        await world.bind(name, node)
    # Another writer damages the record of n1, so that the release loses its race and cannot read the record.
    world.fake.put(NODE_ALLOCATIONS.path(), {"metadata": {"name": "n1"}, "spec": {"allocations": "?"}})
    async with releasing(world):
        for name in ("a", "b"):
            world.remove_pod(name)
        world.see(PODS)
        await world.fake.until(lambda: world.holders("n2") == [])


async def test_many_pods_that_end_together_are_given_back_in_few_writes(world: World) -> None:
    world.add_node("n1", *(device_entry(minor) for minor in range(4)))
    names = [f"p{number}" for number in range(16)]
    for name in names:
        world.add_pod(gpu_pod(name, 25))
    world.see()
    await asyncio.gather(*(world.bind(name, see=False) for name in names))
    world.see()
    assert len(world.holders()) == 16
    before = len(world.fake.seen("update", "nodeallocations"))
    async with releasing(world):
        for name in names:
            world.remove_pod(name)
        world.see(PODS)
        await world.fake.until(lambda: world.holders() == [])
    assert len(world.fake.seen("update", "nodeallocations")) - before <= 2


# --- Pods bound without us


def around(world: World) -> list[Any]:
    return world.events("BoundWithoutDevices")


async def test_a_pod_bound_around_us_is_an_event_and_a_metric_once(world: World) -> None:
    world.add_pod(gpu_pod("p", nodeName="n1"))
    world.show(gpu_pod("other-namespace", namespace="team", nodeName="n1"))
    for _ in range(3):
        await reconcile(world)
    events = around(world)
    assert [event["involvedObject"]["uid"] for event in events] == ["uid-p", "uid-other-namespace"]
    assert [event["metadata"]["namespace"] for event in events] == ["default", "team"]
    assert events[0]["type"] == "Warning"
    assert "n1" in events[0]["message"]
    assert "delete it" in events[0]["message"]
    assert world.metric("koordgate_pods_bound_around") == 2
    world.remove_pod("p")
    world.see()
    await reconcile(world)
    assert world.metric("koordgate_pods_bound_around") == 1
    assert world.holders() == []


STATIC = {"kubernetes.io/config.mirror": "hash"}
REPLACED = {
    "a bare Pod": ((), {}, "delete it and create it again; koord-scheduler then binds it"),
    "a DaemonSet's": (("DaemonSet",), {}, "delete it, and let its DaemonSet create another one, which koord-scheduler"),
    "a static Pod": (("Node",), STATIC, "a static Pod, which koordgate never binds: remove its manifest from node n1"),
}


@pytest.mark.parametrize(("owners", "annotations", "told"), REPLACED.values(), ids=REPLACED)
async def test_what_to_do_about_a_pod_bound_around_us_depends_on_what_creates_it(
    owners: Sequence[str], annotations: dict[str, str], told: str, world: World
) -> None:
    obj = gpu_pod("p", nodeName="n1", annotations=annotations)
    obj["metadata"]["ownerReferences"] = [
        {"kind": "Other", "name": "x", "uid": "x"},
        *({"kind": kind, "name": "it", "uid": "it", "controller": True} for kind in owners),
    ]
    world.show(obj)
    await reconcile(world)
    (event,) = around(world)
    assert told in event["message"]
    assert ("delete it" in event["message"]) is not bool(annotations)


@pytest.mark.parametrize("what", ["ours", "plain", "never translated", "finished", "unbound"])
async def test_other_pods_are_not_reported(world: World, what: str) -> None:
    match what:
        case "ours":
            obj = gpu_pod("p", nodeName="n1", annotations=koordinator_annotation((0, HALF, "")))
        case "plain":
            obj = plain_pod("p", nodeName="n1")
        case "never translated":
            asked = container(limits={"nvidia.com/gpu": "1"})
            obj = pod(asked, name="p", nodeName="n1", schedulerName="default-scheduler")
        case "finished":
            obj = {**gpu_pod("p", nodeName="n1"), "status": {"phase": "Failed"}}
        case _:
            obj = gpu_pod("p")
    world.show(obj)
    await reconcile(world)
    assert around(world) == []
    assert world.metric("koordgate_pods_bound_around") == 0


async def test_of_very_many_pods_bound_around_us_all_are_counted_and_all_are_reported_in_the_end(world: World) -> None:
    for number in range(130):
        world.add_pod(gpu_pod(f"p{number:03}", nodeName="n1"))
    world.see()
    await reconcile(world)
    assert len(around(world)) == 100
    assert world.metric("koordgate_pods_bound_around") == 130
    await reconcile(world)
    assert len({event["involvedObject"]["uid"] for event in around(world)}) == 130


async def test_an_event_that_cannot_be_written_is_no_trouble(world: World) -> None:
    world.fake.faults.always("create", "events", answer(403))
    world.show(gpu_pod("p", nodeName="n1"))
    await reconcile(world)
    assert world.metric("koordgate_pods_bound_around") == 1


async def test_a_bind_on_a_reconciled_ledger_sees_what_was_given_back(world: World) -> None:
    await hold_share(world, "gone", percent=100)
    world.show(gpu_pod("p", 100))
    response = await world.bind("p")
    assert not response.allowed
    await reconcile(world)
    assert (await world.bind("p")).allowed


# --- devices that the kubelet gave away as well


def given_away(**devices: str) -> dict[str, str]:
    """The kubelet's checkpoint on a Device object: Pod's UID to its device."""
    entries = [{"podUID": uid, "deviceIDs": [identity]} for uid, identity in devices.items()]
    return {"node.koordinator.sh/devices-checkpoints": json.dumps(entries)}


def twice(world: World) -> list[Any]:
    return world.events("DeviceHeldTwice")


def plugin_pod(name: str, namespace: str = "default") -> Any:
    asked = container(limits={"nvidia.com/gpu": "1"})
    about: Any = {"namespace": namespace, "nodeName": "n1", "schedulerName": "default-scheduler"}
    return pod(asked, name=name, uid=name, **about)


@pytest.mark.parametrize("namespace", ["default", "kube-system"])
async def test_a_card_that_two_hold_is_an_event_on_both_and_a_metric(world: World, namespace: str) -> None:
    await hold_share(world, "p")
    world.add_pod(gpu_pod("p", nodeName="n1", annotations=koordinator_annotation((0, HALF, "GPU-n1-0"))))
    world.add_pod(plugin_pod("theirs", namespace))
    annotations = given_away(theirs="GPU-n1-0")
    world.fake.put(DEVICES.path(), device_object(device_entry(0, id="GPU-n1-0"), name="n1", annotations=annotations))
    world.see()
    for _ in range(3):
        await reconcile(world)
    events = twice(world)
    assert sorted(event["involvedObject"]["uid"] for event in events) == ["theirs", "uid-p"]
    others = {"theirs": "default/p", "uid-p": f"{namespace}/theirs"}
    for event in events:
        other = others[event["involvedObject"]["uid"]]
        assert f"GPU-n1-0 of node n1 is held by {other} as well" in event["message"]
    assert world.metric("koordgate_devices_held_twice") == 1
    world.remove_pod("theirs", namespace)
    world.see()
    await reconcile(world)
    assert world.metric("koordgate_devices_held_twice") == 0


async def test_nobody_is_told_to_delete_the_mirror_of_a_static_pod(world: World) -> None:
    held = koordinator_annotation((0, HALF, "GPU-n1-0"))
    world.add_pod(gpu_pod("p", nodeName="n1", annotations=held))
    static = plugin_pod("theirs")
    static["metadata"]["annotations"] = STATIC
    world.add_pod(static)
    world.add_pod(gpu_pod("odd", nodeName="n1", annotations={**STATIC, **dict.fromkeys(held, "{")}))
    annotations = given_away(theirs="GPU-n1-0")
    world.fake.put(DEVICES.path(), device_object(device_entry(0, id="GPU-n1-0"), name="n1", annotations=annotations))
    world.see()
    await reconcile(world)
    for event in twice(world):
        assert "of static Pods (default/theirs) remove the manifest from the node" in event["message"]
    (event,) = world.events("AllocationUnreadable")
    assert "is corrected, or the static Pod's manifest is removed from the node" in event["message"]


@pytest.mark.parametrize("owner", ["uid-p", "uid-of-nobody", "other-card"])
async def test_a_card_that_one_holds_is_no_such_case(world: World, owner: str) -> None:
    await hold_share(world, "p")
    world.add_pod(gpu_pod("p", nodeName="n1", annotations=koordinator_annotation((0, HALF, "GPU-n1-0"))))
    world.add_pod(plugin_pod("other-card"))
    annotations = given_away(**{owner: "GPU-n1-1" if owner == "other-card" else "GPU-n1-0"})
    cards = [device_entry(minor, id=f"GPU-n1-{minor}") for minor in range(2)]
    world.fake.put(DEVICES.path(), device_object(*cards, name="n1", annotations=annotations))
    world.see()
    await reconcile(world)
    assert twice(world) == []
    assert world.metric("koordgate_devices_held_twice") == 0
