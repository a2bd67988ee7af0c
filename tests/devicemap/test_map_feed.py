"""The device map as it changes: pages, then only what changed, and a new beginning where that is not known."""

from typing import Any

import orjson
import pytest
from world import World, gpu_pod

from webhook.devicemap import feed as feed_module
from webhook.devicemap.feed import MapFeed, WaitingPods
from webhook.scheduling.extender import Answer

WAITING = {"pods": [], "total": 0}


async def nobody() -> dict[str, Any]:
    return WAITING


def feed_of(world: World) -> MapFeed:
    return MapFeed(world.parts.cluster, world.parts.types, nobody, world.clock, epoch="e")


async def page(feed: MapFeed, *arguments: Any) -> dict[str, Any]:
    answer: dict[str, Any] = orjson.loads(await feed.page(*arguments))
    return answer


async def changes(feed: MapFeed, since: int, **more: Any) -> dict[str, Any]:
    answer: dict[str, Any] = orjson.loads((await feed.changes(since, **more)).body)
    return answer


def names(answer: dict[str, Any]) -> list[str]:
    return [one["name"] for one in answer["nodes"]]


async def test_all_nodes_come_in_pages_by_name_and_the_first_has_what_concerns_all(world: World) -> None:
    for name in ("n3", "n2", "n4"):
        world.add_node(name)
    world.see()
    feed = feed_of(world)
    first = await page(feed, "", 3)
    assert (names(first), first["next"], first["total"]) == (["n1", "n2", "n3"], "n3", 4)
    assert first["version"] == 1
    assert "gpu" in first["types"]
    assert first["waiting"] == WAITING
    last = await page(feed, "n3", 3)
    assert (names(last), last["next"]) == (["n4"], "")
    assert "types" not in last


async def test_only_what_changed_is_told_and_then_nothing(world: World) -> None:
    world.add_node("n2")
    world.see()
    feed = feed_of(world)
    began = (await page(feed))["revision"]
    world.add_pod(gpu_pod("a", 30))
    world.see()
    await world.bind("a")
    told = await changes(feed, began)
    assert names(told) == ["n1"]
    assert told["nodes"][0]["devices"][0]["amounts"][0] == [100, 30, 70]
    again = await changes(feed, told["revision"])
    assert (again["nodes"], again["gone"], again["more"]) == ([], [], False)


async def test_a_node_that_is_gone_is_told_until_it_comes_back(world: World) -> None:
    feed = feed_of(world)
    began = (await page(feed))["revision"]
    world.fake.remove("/api/v1/nodes/n1")
    world.fake.remove("/apis/scheduling.koordinator.sh/v1alpha1/devices/n1")
    world.see()
    told = await changes(feed, began)
    assert (names(told), told["gone"]) == ([], ["n1"])
    world.add_node("n1")
    world.see()
    told = await changes(feed, began)
    assert (names(told), told["gone"]) == (["n1"], [])


async def test_many_changes_come_in_parts_and_none_is_left_out(world: World) -> None:
    feed = feed_of(world)
    began = (await page(feed))["revision"]
    for number in range(2, 7):
        world.add_node(f"n{number}")
    world.see()
    seen = []
    more = True
    while more:
        told = await changes(feed, began, most=2)
        assert len(told["nodes"]) <= 2
        seen += names(told)
        began, more = told["revision"], told["more"]
    assert sorted(seen) == ["n2", "n3", "n4", "n5", "n6"]


@pytest.mark.parametrize("since", [-1, 99], ids=["of another process", "that never was"])
async def test_a_revision_that_is_not_known_begins_anew(world: World, since: int) -> None:
    assert (await changes(feed_of(world), since))["reset"] is True


async def test_whoever_is_behind_the_nodes_that_are_remembered_as_gone_begins_anew(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed_module, "_MAX_GONE", 1)
    world.add_node("n2")
    world.see()
    feed = feed_of(world)
    began = (await page(feed))["revision"]
    for name in ("n1", "n2"):
        world.fake.remove(f"/api/v1/nodes/{name}")
        world.fake.remove(f"/apis/scheduling.koordinator.sh/v1alpha1/devices/{name}")
    world.see()
    assert (await changes(feed, began))["reset"] is True


async def test_of_nodes_that_are_gone_the_latest_are_remembered(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed_module, "_MAX_GONE", 2)
    for number in range(2, 6):
        world.add_node(f"n{number}")
    world.see()
    feed = feed_of(world)
    began = (await page(feed))["revision"]
    for number in range(1, 5):
        world.fake.remove(f"/api/v1/nodes/n{number}")
        world.fake.remove(f"/apis/scheduling.koordinator.sh/v1alpha1/devices/n{number}")
        world.see()
        feed.moved(began)
    assert (await page(feed))["revision"] == began + 4
    told = await changes(feed, began + 2)
    assert (told["gone"], told["nodes"], "reset" in told) == (["n3", "n4"], [], False)
    assert (await changes(feed, began + 1))["reset"] is True


async def test_a_pod_on_a_node_of_which_nothing_is_known_is_no_change_of_a_node(world: World) -> None:
    feed = feed_of(world)
    began = (await page(feed))["revision"]
    for name in ("n1", "nowhere"):
        world.parts.cluster.changes.touch(name)
    told = await changes(feed, began)
    assert (names(told), told["gone"]) == (["n1"], [])
    assert (await page(feed))["total"] == 1


async def test_the_first_of_200_nodes_are_one_page_and_one_part_of_the_changes(world: World) -> None:
    for number in range(200):
        world.add_node(f"m{number:03}")
    world.see()
    feed = feed_of(world)
    first = await page(feed)
    assert (len(names(first)), first["next"], first["total"]) == (200, "m199", 201)
    last = await page(feed, first["next"])
    assert (names(last), last["next"]) == (["n1"], "")
    told = await changes(feed, 0)
    assert (len(told["nodes"]), told["more"]) == (200, True)
    rest = await changes(feed, told["revision"])
    assert (len(rest["nodes"]), rest["more"]) == (1, False)


async def test_a_page_that_ends_with_the_last_node_is_the_last(world: World) -> None:
    for name in ("n2", "n3"):
        world.add_node(name)
    world.see()
    feed = feed_of(world)
    only = await page(feed, "", 3)
    assert (names(only), only["next"]) == (["n1", "n2", "n3"], "")
    told = await changes(feed, 0, most=3)
    assert (len(told["nodes"]), told["more"]) == (3, False)


async def test_a_change_wakes_and_an_unchanged_list_of_pods_is_not_told_again(world: World) -> None:
    feed = feed_of(world)
    first = await feed.changes(0)
    assert orjson.loads(first.body)["waiting"] == WAITING
    assert not feed.moved(first.revision)
    second = await feed.changes(first.revision, first.waiting)
    assert "waiting" not in orjson.loads(second.body)
    world.add_node("n2")
    world.see()
    assert feed.moved(first.revision)


async def test_however_many_ask_the_pods_that_wait_are_looked_at_once(world: World) -> None:
    looked = 0

    async def count() -> dict[str, Any]:
        nonlocal looked
        looked += 1
        return {"pods": [], "total": looked}

    feed = MapFeed(world.parts.cluster, world.parts.types, count, world.clock, epoch="e")
    told = [(await page(feed))["waiting"]["total"] for _ in range(3)]
    told += [(await changes(feed, 0))["waiting"]["total"] for _ in range(2)]
    assert (told, looked) == ([1] * 5, 1)


async def test_pods_that_wait_are_told_with_what_place_says(world: World) -> None:
    world.add_pod(gpu_pod("big", 300))
    world.add_pod(gpu_pod("new", 50))
    world.see()
    uids = {name: world.pod(name)["metadata"]["uid"] for name in ("big", "new")}
    said = {uids["big"]: Answer.IMPOSSIBLE}
    parts = world.parts
    waiting = WaitingPods(parts.cluster, parts.ranking, parts.settings.scheduler.names, said.get)
    told = await waiting()
    assert told["total"] == 2
    reasons = {one["name"]: one["reasons"] for one in told["pods"]}
    assert reasons["new"] == ["kube-scheduler has not asked about it lately"]
    assert reasons["big"][0] == "fits on no node, even if nobody else held anything"
    assert reasons["big"][1].startswith("n1: ")


async def test_a_pod_is_told_how_long_it_has_waited_and_why_it_cannot_be_read(world: World) -> None:
    world.add_pod(gpu_pod("big", 300))
    world.see()
    parts = world.parts
    waiting = WaitingPods(parts.cluster, parts.ranking, parts.settings.scheduler.names, lambda _uid: None)
    uid = world.pod("big")["metadata"]["uid"]
    (pod,) = (await waiting())["pods"]
    assert (pod["uid"], pod["namespace"], pod["state"], pod["seconds"]) == (uid, "default", "waiting", 0)


@pytest.mark.parametrize(
    ("said", "judged"),
    [
        (Answer.FULL, True),
        (Answer.IMPOSSIBLE, True),
        (Answer.UNFINISHED, True),
        (Answer.FITS, False),
        (Answer.GANG, False),
        (Answer.UNREADABLE, False),
    ],
)
async def test_nodes_are_judged_where_no_node_was_named(world: World, said: Answer, *, judged: bool) -> None:
    world.add_pod(gpu_pod("big", 300))
    world.see()
    parts = world.parts
    waiting = WaitingPods(parts.cluster, parts.ranking, parts.settings.scheduler.names, lambda _uid: said)
    (pod,) = (await waiting())["pods"]
    assert (len(pod["reasons"]) > 1) is judged


@pytest.mark.parametrize("nodes", [4, 5, 16, 17, 20, 33])
async def test_of_up_to_four_nodes_each_is_named_and_of_sixteen_the_reasons_are_counted(
    world: World, nodes: int
) -> None:
    for number in range(2, nodes + 1):
        world.add_node(f"n{number}")
    world.add_pod(gpu_pod("big", 300))
    world.see()
    parts = world.parts
    waiting = WaitingPods(parts.cluster, parts.ranking, parts.settings.scheduler.names, lambda _uid: Answer.FULL)
    (pod,) = (await waiting())["pods"]
    _, *told = pod["reasons"]
    starts = {
        4: ["n1: ", "n2: ", "n3: ", "n4: "],
        5: ["5 nodes: "],
        16: ["16 nodes: "],
        17: ["16 nodes: ", "1 further nodes were not looked at here"],
        20: ["16 nodes: ", "4 further nodes were not looked at here"],
        33: ["16 nodes: ", "17 further nodes were not looked at here"],
    }[nodes]
    assert len(told) == len(starts)
    assert all(why.startswith(start) for why, start in zip(told, starts, strict=True))


async def test_200_pods_are_told_and_all_are_counted(world: World) -> None:
    for number in range(201):
        world.add_pod(gpu_pod(f"p{number:03}", 300))
    world.see()
    parts = world.parts
    waiting = WaitingPods(parts.cluster, parts.ranking, parts.settings.scheduler.names, lambda _uid: None)
    told = await waiting()
    assert (len(told["pods"]), told["total"]) == (200, 201)
    assert {one["name"] for one in told["pods"]} == {f"p{number:03}" for number in range(200)}
