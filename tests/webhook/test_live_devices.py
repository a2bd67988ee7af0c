"""Devices as they change: what watches bring, and the page that fits a terminal."""

import asyncio
import functools
import signal
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from builders import device_entry, device_object, gpu, holding, part
from claims import claim, listed, resource_slice, result
from fake_kube import FakeKube, answer
from foreignpods import hami, put_pod
from kubeconfigs import write_kubeconfig
from nodereports import report
from terminals import on_terminal
from waiting import until

from allocator.vocabulary.adopted import Product
from allocator.wire.nodeallocation import write_spec
from console.devices.nodes import Known, SeenNodes
from console.devices.topcommand import LiveNodes, Look, ShownNode, page
from koordgate.kube.client import KubeClient
from koordgate.kube.errors import KubeError
from koordgate.kube.resource import DEVICES, NODE_ALLOCATIONS, NODES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES
from koordgate.kube.watch import WatchPace
from webhook.ledger.kube import cluster_store, record_or_error
from webhook.ledger.store import UnreadableError
from webhook.settings import WebhookSettings, adoption_of
from webhook.view.nodereport import Availability

Raw = dict[str, Any]
KNOWN = Known(drivers=WebhookSettings().claimed)
COUNTED = KNOWN._replace(adoption=replace(adoption_of(WebhookSettings()), peers=frozenset({Product.HAMI})))


def record(node: str, *held: Any) -> Raw:
    return {"metadata": {"name": node}, "spec": write_spec(held)}


@pytest.fixture
def cluster(fake: FakeKube) -> FakeKube:
    for name in ("n1", "n2"):
        fake.put(DEVICES.path(), device_object(device_entry(0, id=f"GPU-{name}"), name=name))
        fake.put(NODES.path(), {"metadata": {"name": name}, "status": {"conditions": []}})
    return fake


async def following(kube: KubeClient, *nodes: str, known: Known = KNOWN) -> AsyncIterator[LiveNodes]:
    live = LiveNodes(kube, cluster_store(kube), nodes, known, WatchPace(first=0.01, longest=0.01, jitter=lambda: 0.0))
    running = asyncio.create_task(live.run())
    try:
        await live.synced()
        yield live
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


@pytest.fixture
async def live(cluster: FakeKube, kube: KubeClient) -> AsyncIterator[LiveNodes]:
    async for made in following(kube):
        yield made


def shown(live: LiveNodes) -> dict[str, list[Availability]]:
    return {one.name: [device.state for device in one.devices] for one in live.reports()}


async def test_what_pods_hold_is_followed(cluster: FakeKube, live: LiveNodes) -> None:
    assert shown(live) == {"n1": [Availability.FREE], "n2": [Availability.FREE]}
    cluster.put(NODE_ALLOCATIONS.path(), record("n1", holding("a", part(gpu(0, device_id="GPU-n1"), 30))))
    await until(lambda: shown(live)["n1"] == [Availability.PARTS])
    cluster.remove(NODE_ALLOCATIONS.path("n1"))
    await until(lambda: shown(live)["n1"] == [Availability.FREE])


async def test_nodes_come_and_go(cluster: FakeKube, live: LiveNodes) -> None:
    cluster.put(DEVICES.path(), device_object(device_entry(0), name="n3"))
    await until(lambda: list(shown(live)) == ["n1", "n2", "n3"])
    cluster.remove(DEVICES.path("n1"))
    await until(lambda: list(shown(live)) == ["n2", "n3"])


async def test_only_the_nodes_that_were_named_are_shown(cluster: FakeKube, kube: KubeClient) -> None:
    async for live in following(kube, "n2"):
        assert list(shown(live)) == ["n2"]


async def test_a_record_that_becomes_unreadable_holds_all_and_is_told(cluster: FakeKube, live: LiveNodes) -> None:
    cluster.put(NODE_ALLOCATIONS.path(), {"metadata": {"name": "n1"}, "spec": {"allocations": [{}]}})
    await until(lambda: shown(live)["n1"] == [Availability.HELD])
    (problem,) = live.problems()
    assert "Node n1: its holdings are unknown" in problem


async def test_claims_are_followed_too(cluster: FakeKube, live: LiveNodes) -> None:
    cluster.put(RESOURCE_SLICES.path(), resource_slice("n2", [listed("gpu-0", "GPU-n2")]))
    cluster.put(RESOURCE_CLAIMS.path(namespace="team"), claim("c", result("gpu-0", "n2"), namespace="team"))
    await until(lambda: shown(live)["n2"] == [Availability.HELD])
    cluster.remove(RESOURCE_CLAIMS.path("c", "team"))
    await until(lambda: shown(live)["n2"] == [Availability.FREE])


@pytest.fixture
async def counting(cluster: FakeKube, kube: KubeClient) -> AsyncIterator[LiveNodes]:
    async for made in following(kube, known=COUNTED):
        yield made


async def test_pods_of_other_products_are_followed_too(cluster: FakeKube, counting: LiveNodes) -> None:
    assert shown(counting)["n1"] == [Availability.FREE]
    put_pod(cluster, hami("GPU-n1,NVIDIA,1024,5:;"))
    await until(lambda: shown(counting)["n1"] == [Availability.PARTS])
    cluster.remove(PODS.path("peer", "team"))
    await until(lambda: shown(counting)["n1"] == [Availability.FREE])


@pytest.fixture
def no_pods(cluster: FakeKube) -> None:
    cluster.faults.always("list", "pods", answer(403, "no pods for you"))


async def test_without_the_right_to_pods_nothing_is_free_and_that_is_told(no_pods: None, counting: LiveNodes) -> None:
    await until(lambda: shown(counting) == {"n1": [Availability.HELD], "n2": [Availability.HELD]})
    await until(lambda: shown(counting) and any("no pods for you" in one for one in counting.problems()))
    assert counting.trouble == ""


async def test_without_the_right_to_claims_the_rest_is_shown_and_that_is_told(
    cluster: FakeKube, kube: KubeClient
) -> None:
    cluster.faults.always("list", "resourceclaims", answer(403))
    async for live in following(kube):
        assert list(shown(live)) == ["n1", "n2"]
        await until(live.problems)
        assert "what ResourceClaims hold is not shown" in live.problems()[0]


def both_refused(live: LiveNodes) -> bool:
    return all(one.last_error is not None for one in live._claims)


async def test_of_two_rights_that_are_missing_the_one_to_claims_is_told(cluster: FakeKube, kube: KubeClient) -> None:
    for resource in ("resourceclaims", "resourceslices"):
        cluster.faults.always("list", resource, answer(403, f"no {resource} for you"))
    async for live in following(kube):
        await until(functools.partial(both_refused, live))
        (told,) = live.problems()
        assert "no resourceclaims for you" in told


@pytest.mark.parametrize("resource", ["nodes", "devices", "nodeallocations"])
async def test_without_the_right_to_list_it_ends_and_says_so(
    cluster: FakeKube, kube: KubeClient, resource: str
) -> None:
    cluster.faults.always("list", resource, answer(403, f"no {resource} for you"))
    with pytest.raises(KubeError, match=f"no {resource} for you"):
        async for _ in following(kube, "n1"):
            pass


async def test_a_status_of_a_node_is_no_news(cluster: FakeKube, live: LiveNodes) -> None:
    before = live.reports()
    cluster.put(NODES.path(), {"metadata": {"name": "n1"}, "status": {"conditions": [{"type": "Ready"}]}})
    cluster.put(NODES.path(), {"metadata": {"name": "n2", "labels": {"a": "b"}}, "status": {}})
    await until(lambda: live.reports()[1] is not before[1])
    assert live.reports()[0] is before[0]


async def test_a_watch_that_fails_is_told_until_it_succeeds(cluster: FakeKube, live: LiveNodes) -> None:
    assert live.trouble == ""
    cluster.faults.always("watch", "devices", answer(403, "no longer"))
    cluster.end_watches()
    await until(lambda: live.trouble)
    assert "no longer" in live.trouble
    cluster.faults.always("watch", "devices", None)
    await until(lambda: not live.trouble)


# The page


def many(nodes: int) -> list[ShownNode]:
    made = []
    for at in range(nodes):
        obj = device_object(*(device_entry(minor) for minor in range(8)), name=f"n{at}")
        made.append(ShownNode(shown := report(f"n{at}", obj), shown.devices))
    return made


@pytest.mark.parametrize("height", [5, 24, 27, 28, 29, 100])
def test_a_page_is_no_higher_than_the_terminal_and_ends_with_the_sums(height: int) -> None:
    rows = [row.plain for row in page(many(3), ["a problem"], "", "", Look(80), height)]
    assert len(rows) <= height
    assert rows[-1] == "3 nodes, 24 devices: 24 free"
    assert rows[-2] == "a problem"
    left = [row for row in rows if row.startswith("...")]
    more = 27 - (height - 3) + 1  # the line that says so takes the place of one
    assert left == ([f"... {more} more lines: name nodes, or make the terminal larger"] if height < 30 else [])


@pytest.mark.parametrize(
    ("height", "first"),
    [
        (1, ["... 27 more lines: name nodes, or make the terminal larger"]),
        (3, ["... 27 more lines: name nodes, or make the terminal larger"]),
        (4, ["n0  8 devices: 8 free", "... 26 more lines: name nodes, or make the terminal larger"]),
    ],
)
def test_a_terminal_of_few_lines_shows_at_least_how_many_more_there_are(height: int, first: list[str]) -> None:
    rows = [row.plain for row in page(many(3), [], "", "", Look(80), height)]
    assert rows == [*first, "", "3 nodes, 24 devices: 24 free"]


@pytest.mark.parametrize(("height", "cut"), [(28, True), (29, False), (30, False)])
def test_a_page_that_just_fits_is_whole(height: int, *, cut: bool) -> None:
    rows = [row.plain for row in page(many(3), [], "", "", Look(80), height)]
    assert any(row.startswith("...") for row in rows) is cut
    assert len(rows) == min(height, 29)


def test_trouble_comes_first_and_few_problems_are_named() -> None:
    rows = [row.plain for row in page(many(1), [f"p{at}\x1b" for at in range(9)], "not up to date", "", Look(80), 40)]
    assert rows[-5:] == ["not up to date", "p0?", "p1?", "p2?", "1 node, 8 devices: 8 free"]


# On a terminal


async def test_the_terminal_follows_the_cluster_until_control_c(cluster: FakeKube, tmp_path: Path) -> None:
    async with on_terminal(write_kubeconfig(tmp_path, cluster.url), "top", "--watch", columns=80) as terminal:
        await terminal.reads(b"2 nodes, 2 devices: 2 free")
        cluster.put(NODE_ALLOCATIONS.path(), record("n1", holding("a", part(gpu(0, device_id="GPU-n1"), 30))))
        await terminal.reads(b"default/pod-a")
        terminal.process.send_signal(signal.SIGINT)
        assert await terminal.ends() == 0
        assert b"Traceback" not in terminal.seen


# What is known of nodes, as objects come and go


def test_a_record_that_could_not_be_read_and_is_listed_no_more_blocks_its_node_no_longer() -> None:
    seen = SeenNodes(KNOWN)
    seen.put(DEVICES, device_object(device_entry(0), name="n1"))
    broken = record_or_error({"metadata": {"name": "n1", "resourceVersion": "1"}, "spec": {"allocations": [{}]}})
    assert isinstance(broken, UnreadableError)
    seen.records.take(broken)
    assert [bool(one.blocked) for one in seen.reports()] == [True]
    seen.records.begin_list()
    seen.records.end_list()
    assert [one.blocked for one in seen.reports()] == [""]


def test_what_is_unknown_of_all_nodes_is_shown_of_each_as_soon_as_it_is_and_no_longer() -> None:
    seen = SeenNodes(KNOWN)
    seen.put(DEVICES, device_object(device_entry(0), name="n1"))
    found = []
    for unread in ("", "no pods for you", ""):
        seen.no_pods = unread
        found.append([one.devices[0].state for one in seen.reports()])
    assert found == [[Availability.FREE], [Availability.HELD], [Availability.FREE]]
