"""Nominations: which Pods that wait get a node beforehand, in which order, and when its place is given back."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import AbstractAsyncContextManager
from typing import Any

import orjson
import pytest
from builders import device_entry
from fake_kube import FakeKube, answer, hold
from waiting import first, until
from world import World, gpu_pod, running

from allocator.vocabulary.names import GANG_GATE
from koordgate.kube.client import KubeClient
from koordgate.kube.resource import PODS
from webhook.scheduling import nominate
from webhook.settings import parse

Raw = dict[str, Any]
SETTINGS = parse("scheduler: {nominateFrom: 3}\ngangs: {allOrNothing: true}\n")
NODES = [f"n{number}" for number in range(1, 9)]
GANG = {"pod-group.scheduling.sigs.k8s.io/name": "g", "pod-group.scheduling.sigs.k8s.io/min-available": "2"}
PREFERRED = {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "preference": {}}]}


def nominating(*worlds: World) -> AbstractAsyncContextManager[None]:
    """These replicas nominate."""
    nominators = [world.parts.extender.nominator for world in worlds]
    services = [one.run for one in nominators if one is not None]
    assert len(services) == len(worlds)
    return running(*services)


def made(fake: FakeKube, kube: KubeClient, settings: Any = SETTINGS) -> World:
    """A world with nodes n1 to n8, of one card each."""
    world = World(fake, kube, settings)
    for name in NODES:
        world.add_node(name)
    world.see()
    return world


@pytest.fixture
async def burst(fake: FakeKube, kube: KubeClient, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    """A replica that nominates, on eight nodes of one card each, and looks at once for places that are lost."""
    monkeypatch.setattr(nominate, "_TICK_S", 0.01)
    world = made(fake, kube)
    async with nominating(world):
        yield world
    await world.idle()


def waiting(name: str, percent: int = 100, /, **about: Any) -> Raw:
    return {**gpu_pod(name, percent, **about), "status": {"phase": "Pending", "message": "kept"}}


def come(world: World, *pods: Raw) -> None:
    """These Pods come, in this order."""
    for obj in pods:
        world.show(obj)


async def ask(world: World, name: str, nodes: Iterable[str] = NODES) -> str:
    """kube-scheduler tries a Pod; returns the node that it is sent to, "" for none."""
    said = await world.parts.extender.filter_patiently({"Pod": world.pod(name), "NodeNames": list(nodes)})
    return next(iter(said["NodeNames"]), "")


def nominated(world: World) -> dict[str, str]:
    """The Pods for which a node is nominated, and which."""
    statuses = {obj["metadata"]["name"]: obj.get("status", {}) for obj in world.fake.objects(PODS.path())}
    return {name: status["nominatedNodeName"] for name, status in statuses.items() if status.get("nominatedNodeName")}


async def until_nominated(world: World, *names: str) -> dict[str, str]:
    """Wait until nodes are nominated for these Pods, and return those of all."""
    await world.fake.until(lambda: nominated(world).keys() >= set(names))
    return nominated(world)


def written(world: World) -> list[str]:
    """The Pods whose status was patched, in this order."""
    return [request.path.split("/")[-2] for request in world.fake.seen("patch", "pods/status")]


async def settled(world: World) -> None:
    """Wait until all writes so far are counted."""
    hows = ("written", "late", "withdrawn")
    await until(lambda: sum(counted(world, how) for how in hows) == len(written(world)))


def counted(world: World, how: str) -> float:
    return world.metric("koordgate_nominations_total", how=how)


# --- who is nominated


async def test_pods_that_wait_behind_one_that_is_asked_about_get_a_node_each(burst: World) -> None:
    come(burst, *(waiting(f"p{number}") for number in range(4)))

    sent = await ask(burst, "p0")

    nodes = await until_nominated(burst, "p1", "p2", "p3")
    assert "p0" not in nodes, "it is tried already"
    assert len({sent, *nodes.values()}) == 4, "each card is meant for one"
    assert burst.pod("p1")["status"] == {"phase": "Pending", "message": "kept", "nominatedNodeName": nodes["p1"]}
    await settled(burst)
    assert counted(burst, "written") == 3


async def test_nobody_is_nominated_before_kube_scheduler_asks(burst: World) -> None:
    come(burst, waiting("p0"), waiting("p1"), waiting("p2"))
    await ask(burst, "p0", NODES[:2])
    await ask(burst, "p1")
    await until_nominated(burst, "p2")
    assert written(burst) == ["p2"], "two candidates are too few for a write to be worth it"


async def test_pods_are_nominated_by_priority_and_then_in_the_order_in_which_they_came(burst: World) -> None:
    pods = [
        waiting("first"),
        waiting("z"),
        waiting("high-z", priority=5),
        waiting("a"),
        waiting("high-a", priority=5),
        waiting("higher", priority=7),
    ]
    come(burst, *pods)

    await ask(burst, "first")

    nodes = await until_nominated(burst, "z", "a")
    order = ["higher", "high-z", "high-a", "z", "a"]
    assert list(map(nodes.get, order)) == sorted(nodes.values()), "of equal nodes, each takes the first that is left"


UNFIT: dict[str, dict[str, Any]] = {
    "gated": {"schedulingGates": [{"name": "example.com/gate"}]},
    "gated by koordgate": {"schedulingGates": [{"name": GANG_GATE}]},
    "bound": {"nodeName": "n8"},
    "of another scheduler": {"schedulerName": "other"},
    "with preferences": {"affinity": {"nodeAffinity": PREFERRED}},
    "with Pod affinity": {"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{}]}}},
    "with Pod anti-affinity": {"affinity": {"podAntiAffinity": PREFERRED}},
    "spread": {"topologySpreadConstraints": [{"maxSkew": 1}]},
    "with claims": {"resourceClaims": [{"name": "c"}]},
    "with a volume": {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]},
    "with a volume of its own": {"volumes": [{"name": "v", "ephemeral": {}}]},
}


@pytest.mark.parametrize("why", UNFIT)
async def test_no_pod_is_nominated_that_is_not_to_be_tried_or_that_other_things_steer(burst: World, why: str) -> None:
    """A Pod like it is asked about, and another that comes after it is nominated."""
    unfit = waiting("unfit")
    unfit["spec"] |= UNFIT[why]
    like = waiting("like")
    like["spec"] |= {key: part for key, part in UNFIT[why].items() if key not in {"schedulingGates", "nodeName"}}
    come(burst, waiting("p0"), like, unfit, waiting("p1"))

    await ask(burst, "like")
    await ask(burst, "p0")

    await until_nominated(burst, "p1")
    assert "unfit" not in written(burst)


async def test_no_pod_is_nominated_that_ends_that_was_tried_or_whose_gang_is_bound_as_a_whole(burst: World) -> None:
    whole = {"annotations": {**GANG, "koordgate.io/gang-all-or-nothing": "true"}}
    ending = waiting("ending")
    ending["metadata"]["deletionTimestamp"] = "2026-11-29T00:00:00Z"
    failed = waiting("failed")
    failed["status"]["phase"] = "Failed"
    come(burst, waiting("p0"), waiting("tried", 200), ending, failed, waiting("whole", **whole), waiting("p1"))

    assert not await ask(burst, "tried"), "it fits on none"
    await ask(burst, "p0")

    await until_nominated(burst, "p1")
    assert written(burst) == ["p1"]


async def test_only_kinds_of_pods_are_nominated_that_were_asked_about_lately(
    burst: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kind is what a Pod selects and requests."""
    here: Raw = {"nodeSelector": {"zone": "a"}}
    come(burst, waiting("p0"), waiting("half", 50), waiting("here", **here), waiting("p1"), waiting("last"))
    come(burst, waiting("here-0", **here))
    with monkeypatch.context() as outdated:
        outdated.setattr(nominate, "_KEPT_S", -1.0)
        await ask(burst, "here-0", NODES[4:])

    await ask(burst, "p0")
    await until_nominated(burst, "p1", "last")
    assert written(burst) == ["p1", "last"], "what was asked about for others is unknown, or outdated"

    come(burst, waiting("here-1", **here))
    await ask(burst, "here-1", NODES[4:])
    await until_nominated(burst, "here")
    assert nominated(burst)["here"] in NODES[4:], "among the nodes that it selects"
    assert "half" not in nominated(burst)


async def test_of_many_kinds_the_last_eight_that_were_asked_about_are_kept(burst: World) -> None:
    kinds: list[Raw] = [{"nodeSelector": {"kind": f"k{number}"}} for number in range(9)]
    come(burst, *(waiting(f"asked-{at}", 1, **kind) for at, kind in enumerate(kinds)))
    for at in range(9):
        await ask(burst, f"asked-{at}")

    come(burst, *(waiting(f"p{at}", 1, **kind) for at, kind in enumerate(kinds)), waiting("last", 2))
    await ask(burst, "last")

    await until_nominated(burst, *(f"p{at}" for at in range(2, 9)))
    assert not nominated(burst).keys() & {"p0", "p1"}, "with the last one, these are more than eight"


async def test_nodes_that_a_pod_is_better_kept_off_by_a_taint_are_nominated_last(burst: World) -> None:
    for name in NODES[:-2]:
        obj = burst.fake.get(f"/api/v1/nodes/{name}")
        obj["spec"] = {"taints": [{"key": "k", "effect": "PreferNoSchedule"}]}
        burst.fake.put("/api/v1/nodes", obj)
    come(burst, waiting("p0"), waiting("p1"), waiting("p2"))

    assert await ask(burst, "p0") in NODES[-2:]

    nodes = await until_nominated(burst, "p1", "p2")
    assert {nodes["p1"], nodes["p2"]} - {*NODES[:-2]}, "the other node without a taint is one of them"
    assert len({nodes["p1"], nodes["p2"]}) == 2


async def test_a_node_is_nominated_for_as_many_pods_as_it_has_room_for(burst: World) -> None:
    come(burst, *(waiting(f"p{number:02}", 50) for number in range(20)))

    await ask(burst, "p00")

    nodes = await until_nominated(burst, *(f"p{number:02}" for number in range(1, 16)))
    assert len(nodes) == 15, "the others find no room, and wait to be tried"
    assert all(list(nodes.values()).count(name) <= 2 for name in NODES)


# --- how many


AHEAD = 64


@pytest.fixture
async def wide(burst: World, monkeypatch: pytest.MonkeyPatch) -> World:
    """One node has a hundred cards besides, so that many Pods fit; what was asked about is kept for long."""
    monkeypatch.setattr(nominate, "_KEPT_S", 1000.0)
    burst.add_node("wide", *(device_entry(number) for number in range(100)))
    burst.see()
    return burst


async def test_sixty_four_pods_are_nominated_ahead_and_all_others_in_turn(wide: World) -> None:
    names = [f"p{number:03}" for number in range(400)]
    for name in names:
        wide.add_pod(waiting(name, 1))
    wide.see(PODS)

    await ask(wide, names[0], [*NODES, "wide"])

    await until(lambda: counted(wide, "written") == AHEAD)
    assert nominated(wide).keys() == {*names[1 : AHEAD + 1]}, "no more until some of them are tried"
    for at, name in enumerate(names[1:-AHEAD], 1):
        node = wide.pod(name)["status"]["nominatedNodeName"]
        assert await ask(wide, name, [node]) == node
        if at % 16 == 0:
            await until(lambda at=at: counted(wide, "written") == AHEAD + at)  # type: ignore[misc]


async def test_pods_of_a_kind_that_nobody_asks_about_do_not_hide_others_behind_them(wide: World) -> None:
    others = [f"other-{number:03}" for number in range(300)]
    for name in others:
        wide.add_pod(waiting(name, 2))
    wide.see(PODS)
    come(wide, waiting("p0", 1), waiting("p1", 1), waiting("p2", 1), waiting("p3", 1), waiting("p4", 1))

    async def asked() -> bool:
        await ask(wide, "p0")
        return len(nominated(wide)) == 4

    await first(asked, unless=LookupError)
    assert nominated(wide).keys() == {"p1", "p2", "p3", "p4"}


# --- tried on its node


async def test_a_pod_that_is_tried_on_its_node_keeps_its_place_there_and_others_follow(burst: World) -> None:
    come(burst, waiting("p0"), waiting("p1"))
    sent = await ask(burst, "p0")
    node = (await until_nominated(burst, "p1"))["p1"]
    burst.clock.now += 4
    before = burst.parts.ranking.assumed.of("uid-p1", node)

    assert await ask(burst, "p1", [node]) == node

    assert before is not None
    assert burst.parts.ranking.assumed.of("uid-p1", node) is before, "its place is the same"
    burst.clock.now += 2
    assert burst.parts.ranking.assumed.expire() == [sent], "it is expected for as long again"
    assert (await burst.bind("p1", node)).allowed
    come(burst, waiting("p2"), waiting("p3"))
    await ask(burst, "p2")
    assert (await until_nominated(burst, "p3"))["p3"] != node


async def test_a_pod_whose_node_has_no_room_any_more_is_searched_on_all_nodes(burst: World) -> None:
    come(burst, waiting("p0"), waiting("p1"))
    await ask(burst, "p0")
    node = (await until_nominated(burst, "p1"))["p1"]
    burst.fake.remove(f"/apis/scheduling.koordinator.sh/v1alpha1/devices/{node}")
    burst.see()

    assert not await ask(burst, "p1", [node])

    assert await ask(burst, "p1") not in {"", node}


async def test_nodes_nominated_are_bound_and_each_card_is_given_once(burst: World) -> None:
    names = [f"p{number}" for number in range(8)]
    come(burst, *map(waiting, names))
    sent = {"p0": await ask(burst, "p0")}
    await until_nominated(burst, *names[1:])
    for name in names[1:]:
        sent[name] = await ask(burst, name, [nominated(burst)[name]])
    for name, node in sent.items():
        assert (await burst.bind(name, node)).allowed
    assert sorted(sent.values()) == NODES
    burst.audit()


# --- given back


@pytest.mark.parametrize("status", [403, 404, 422, 500])
async def test_a_write_that_fails_gives_the_place_back(burst: World, status: int) -> None:
    burst.fake.faults.always("patch", "pods/status", answer(status))
    come(burst, waiting("p0"), waiting("p1"))

    await ask(burst, "p0")

    assumed = burst.parts.ranking.assumed
    await burst.fake.until(lambda: written(burst))
    await until(lambda: not assumed.node_of("uid-p1"))
    assert assumed.node_of("uid-p0"), "nobody else's"
    assert nominated(burst) == {}
    assert counted(burst, "written") == counted(burst, "late") == 0


async def test_a_pod_that_is_tried_before_its_nomination_is_written_goes_where_it_is_sent_then(burst: World) -> None:
    written_late = hold()
    burst.fake.faults.add("patch", "pods/status", written_late)
    come(burst, waiting("p0"), waiting("p1"))
    await ask(burst, "p0")
    await written_late.reached.wait()

    sent = await ask(burst, "p1")

    assert written_late.gate
    written_late.gate.set()
    await until(lambda: counted(burst, "late"))
    assert burst.parts.ranking.assumed.node_of("uid-p1") == sent


async def test_a_refused_nomination_takes_no_place_from_a_pod_that_was_tried_meanwhile(burst: World) -> None:
    refused = answer(422)
    refused.gate = asyncio.Event()
    burst.fake.faults.add("patch", "pods/status", refused)
    come(burst, waiting("p0"), waiting("p1"), waiting("p2"))
    await ask(burst, "p0")
    await refused.reached.wait()
    late = written(burst)[0]
    sent = await ask(burst, late)

    refused.gate.set()

    come(burst, waiting("p3"), waiting("p4"))
    await ask(burst, "p3")
    await until_nominated(burst, "p4")
    assert burst.parts.ranking.assumed.node_of(f"uid-{late}") == sent


async def test_what_kube_scheduler_does_not_come_to_is_withdrawn(burst: World) -> None:
    come(burst, *(waiting(f"p{number}") for number in range(4)))
    await ask(burst, "p0")
    nodes = await until_nominated(burst, "p1", "p2", "p3")
    await settled(burst)
    burst.clock.now += 3
    await ask(burst, "p2", [nodes["p2"]])

    burst.clock.now += 3
    burst.parts.ranking.assumed.expire()

    await until(lambda: counted(burst, "withdrawn") == 2)
    assert nominated(burst) == {"p2": nodes["p2"]}
    assert burst.pod("p1")["status"] == {"phase": "Pending", "message": "kept"}
    last = [orjson.loads(one.body) for one in burst.fake.seen("patch", "pods/status") if "/p1/" in one.path][-1]
    field = "/status/nominatedNodeName"
    assert last == [
        {"op": "test", "path": "/metadata/uid", "value": "uid-p1"},
        {"op": "test", "path": field, "value": nodes["p1"]},
        {"op": "remove", "path": field},
    ]


async def test_a_pod_that_is_tried_while_others_are_withdrawn_is_not_withdrawn(burst: World) -> None:
    come(burst, waiting("p0"), waiting("p1"), waiting("p2"), waiting("p3"))
    await ask(burst, "p0")
    nodes = await until_nominated(burst, "p1", "p2", "p3")
    await settled(burst)
    slow = hold()
    burst.fake.faults.add("patch", "pods/status", slow)
    burst.clock.now += 6
    burst.parts.ranking.assumed.expire()
    await slow.reached.wait()

    for name in ("p2", "p3"):
        assert await ask(burst, name, [nodes[name]]) == nodes[name]

    assert slow.gate
    slow.gate.set()
    await until(lambda: counted(burst, "withdrawn") == 1)
    come(burst, waiting("p4"), waiting("p5"))
    await ask(burst, "p4")
    await until_nominated(burst, "p5")
    assert nominated(burst).keys() == {"p2", "p3", "p5"}


@pytest.mark.parametrize("gone", ["deleted", "bound"])
async def test_nothing_is_withdrawn_from_a_pod_that_is_deleted_or_bound(burst: World, gone: str) -> None:
    come(burst, waiting("p0"), waiting("p1"), waiting("p2"))
    await ask(burst, "p0")
    nodes = await until_nominated(burst, "p1", "p2")
    await settled(burst)
    if gone == "deleted":
        burst.remove_pod("p1")
    else:
        burst.change_pod("p1", spec={"nodeName": "n8"})
    burst.see(PODS)
    burst.clock.now += 6
    burst.parts.ranking.assumed.expire()

    await until(lambda: counted(burst, "withdrawn") == 1)
    assert written(burst).count("p1") == 1
    assert "p2" not in nominated(burst)
    assert nodes["p1"] != nodes["p2"]


# --- others


async def test_a_pod_of_higher_priority_that_finds_no_room_takes_the_places_of_nominated_ones(burst: World) -> None:
    low = [f"low-{number}" for number in range(8)]
    come(burst, *map(waiting, low), waiting("same", priority=0))
    await ask(burst, "low-0")
    await until_nominated(burst, *low[1:])
    await settled(burst)
    assert not await ask(burst, "same"), "its priority is not higher"

    come(burst, waiting("high", priority=5))
    sent = await ask(burst, "high")

    assert sent in NODES
    assert burst.parts.ranking.assumed.node_of("uid-high") == sent
    await burst.fake.until(lambda: nominated(burst).keys() <= {"high"})


async def test_a_pod_of_lower_priority_leaves_the_places_of_nominated_ones(burst: World) -> None:
    high = [f"high-{number}" for number in range(8)]
    come(burst, *(waiting(name, priority=5) for name in high), waiting("p", priority=4))
    await ask(burst, high[0])
    nodes = await until_nominated(burst, *high[1:])
    await settled(burst)

    assert not await ask(burst, "p")

    assert nominated(burst) == nodes


async def test_the_nomination_of_another_is_never_overwritten_nor_withdrawn(burst: World) -> None:
    theirs = waiting("theirs")
    theirs["status"]["nominatedNodeName"] = "n7"
    come(burst, waiting("p0"), theirs, waiting("p1"), waiting("p2"))
    await ask(burst, "p0")
    await until_nominated(burst, "p1", "p2")
    assert nominated(burst)["theirs"] == "n7"
    assumed = burst.parts.ranking.assumed
    await until(lambda: not assumed.node_of("uid-theirs"))

    burst.change_pod("p1", status={"nominatedNodeName": "n7"})
    burst.clock.now += 6
    assumed.expire()

    await until(lambda: counted(burst, "withdrawn") == 1)
    assert nominated(burst) == {"theirs": "n7", "p1": "n7"}


async def test_a_pod_that_was_created_anew_is_not_nominated_in_place_of_the_one_before_it(burst: World) -> None:
    come(burst, waiting("p0"), waiting("p1"), waiting("p2"))
    burst.remove_pod("p1")
    burst.add_pod(waiting("p1", uid="uid-new"))

    await ask(burst, "p0")

    await until_nominated(burst, "p2")
    await until(lambda: not burst.parts.ranking.assumed.node_of("uid-p1"))
    assert "p1" not in nominated(burst)


async def test_only_the_replica_that_is_asked_nominates_and_the_next_one_leaves_what_it_wrote(
    burst: World, kube: KubeClient
) -> None:
    other = World(burst.fake, kube, SETTINGS)
    come(burst, *(waiting(f"p{number}") for number in range(4)))
    other.see()
    async with nominating(other):
        await ask(burst, "p0")
        before = await until_nominated(burst, "p1", "p2", "p3")
        assert counted(other, "written") == 0

        come(other, waiting("p4"))
        await ask(other, "p0")
        after = await until_nominated(burst, "p4")

        assert {name: after[name] for name in before} == before
        await until(lambda: not other.parts.ranking.assumed.node_of("uid-p1"))
        await until(lambda: counted(other, "written") == 1)


async def test_without_the_setting_nobody_is_nominated(fake: FakeKube, kube: KubeClient) -> None:
    world = made(fake, kube, parse("scheduler: {nominateFrom: 0}"))
    come(world, waiting("p0"), waiting("p1"))
    await ask(world, "p0")
    assert world.parts.extender.nominator is None
    assert written(world) == []


# --- newcomers


def test_a_pod_is_a_newcomer_once_and_again_only_when_its_gates_are_gone(world: World) -> None:
    gated = waiting("gated", schedulingGates=[{"name": "example.com/gate"}])
    come(world, gated, waiting("a"), waiting("bound", nodeName="n1"))
    newcomers = world.parts.cluster.pods.newcomers
    assert list(newcomers) == ["uid-a"]

    world.change_pod("a", metadata={"labels": {"x": "y"}})
    world.see(PODS)
    assert list(newcomers) == ["uid-a"]

    world.change_pod("gated", spec={"schedulingGates": []})
    world.see(PODS)
    assert list(newcomers) == ["uid-a", "uid-gated"]

    world.remove_pod("a")
    come(world, waiting("a", uid="uid-new"))
    assert list(newcomers) == ["uid-a", "uid-gated", "uid-new"]
