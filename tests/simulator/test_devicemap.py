"""The device map of an offline cluster: true to who holds what, as one file, and served on this machine."""

import socket
import sys
from dataclasses import replace
from typing import Any

import aiohttp
import orjson
import pytest
from builders import device_entry, device_object
from simulator.clusters import gpus, machine, nic, node, pinned, topology

from console.simulator import devicemap
from console.simulator.cluster import OfflineCluster, Result
from console.simulator.devicemap import MapError
from webhook.devicemap.document import VERSION
from webhook.settings import parse

OWN = parse("devices: {types: [{name: queue, resource: example.com/queue, unit: units}]}")
Raw = dict[str, Any]


async def played(*objects: Raw, pods: tuple[Raw, ...] = ()) -> tuple[list[Result], OfflineCluster]:
    cluster = OfflineCluster.in_process(OWN)
    results = await cluster.load(objects)
    results += [await cluster.submit(pod) for pod in pods]
    return results, cluster


async def drawn(*objects: Raw, pods: tuple[Raw, ...] = ()) -> Raw:
    results, cluster = await played(*objects, pods=pods)
    document = devicemap.document(results, cluster.account())
    assert orjson.loads(orjson.dumps(document)) == document
    return document


async def test_each_device_and_each_core_is_told() -> None:
    classes = {"koordgate.io/classes": '{"queue":{"fast":4}}'}
    objects = (node(annotations=classes), device_object(*map(device_entry, range(3)), nic(0)), topology(cores=3))
    (one,) = (await drawn(*objects))["nodes"]
    assert [device["type"] for device in one["devices"]] == ["gpu"] * 3 + ["rdma", "queue"]
    assert [len(zone["cores"]) for zone in one["cpus"]["zones"]] == [3, 3]


async def test_a_pod_is_one_holder_of_cards_and_cpus() -> None:
    objects = (node(), device_object(device_entry(0), device_entry(1)), topology())
    pods = (pinned("a", 2, amounts={"kubernetes.io/gpu": "40"}), pinned("b", 4, amounts={"kubernetes.io/gpu": "60"}))
    (one,) = (await drawn(*objects, pods=pods))["nodes"]
    assert [holder["name"] for holder in one["holders"]] == ["a", "b"]
    assert [share["holder"] for share in one["devices"][0]["shares"]] == [0, 1]
    assert [own["holder"] for own in one["cpus"]["own"]] == [0, 1]


async def test_why_nothing_lands_and_why_a_pod_waits_is_told() -> None:
    sick = device_object(device_entry(0), annotations={"koordgate.io/cordoned-devices": "GPU-0"})
    document = await drawn(node(), sick, pods=(gpus("waits", 50),))
    (device,) = document["nodes"][0]["devices"]
    assert (device["health"], device["why"]) == ("cordoned", "cordoned by an administrator")
    (waits,) = document["waiting"]["pods"]
    assert (waits["namespace"], waits["name"], waits["state"]) == ("default", "waits", "no node")
    assert waits["reasons"][0].startswith("node-1: ")


async def test_the_same_cluster_gives_the_same_map() -> None:
    assert await drawn(*machine(), pods=(gpus("a", 50),)) == await drawn(*machine(), pods=(gpus("a", 50),))


async def test_an_empty_cluster_is_a_map_too() -> None:
    document = await drawn()
    assert (document["nodes"], document["waiting"]) == ([], {"pods": [], "total": 0})


async def test_a_map_in_a_file_has_no_revision_and_no_time() -> None:
    results, cluster = await played(node(), pods=(gpus("waits", 50),))
    document = devicemap.document(
        [*results, replace(results[0], given={"metadata": {"name": "own"}})], cluster.account()
    )
    assert {key: document[key] for key in ("version", "epoch", "revision", "at")} == {
        "version": VERSION,
        "epoch": "",
        "revision": 0,
        "at": 0,
    }
    assert [(one["namespace"], one["name"]) for one in document["waiting"]["pods"]] == [
        ("default", "waits"),
        ("default", "own"),
    ]
    assert document["waiting"]["total"] == 2


async def test_sixteen_follow_a_map_that_is_served_and_its_time_stands_still() -> None:
    results, cluster = await played(*machine())
    async with devicemap.serving(results, cluster.account(), 0) as url, aiohttp.ClientSession() as session:
        async with session.get(f"{url}api/nodes") as answer:
            first = await answer.json()
        assert first["at"] == 0
        events = f"{url}api/events?since={first['revision']}&epoch={first['epoch']}"
        streams = [await session.get(events) for _ in range(17)]
        assert [one.status for one in streams] == [200] * 16 + [503]
        for one in streams:
            one.close()


@pytest.mark.parametrize(
    ("stdin", "stdout", "expected"), [(True, True, True), (True, False, False), (False, True, False)]
)
def test_a_person_watches_where_input_and_output_are_a_terminal(
    monkeypatch: pytest.MonkeyPatch, *, stdin: bool, stdout: bool, expected: bool
) -> None:
    monkeypatch.setattr(sys.stdin, "isatty", lambda: stdin, raising=False)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: stdout)
    assert devicemap.watched() is expected


@pytest.mark.parametrize(
    ("platform", "variable", "opened"),
    [
        ("darwin", "", True),
        ("aix", "", False),
        ("linux", "", False),
        ("aix", "WAYLAND_DISPLAY", True),
        ("linux", "DISPLAY", True),
    ],
)
def test_a_browser_has_windows_on_a_mac_and_where_a_display_is_named(
    platform: str, variable: str, monkeypatch: pytest.MonkeyPatch, *, opened: bool
) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.setenv(name, ":0" if name == variable else "")
    seen: list[str] = []
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr("webbrowser.open", lambda url: not seen.append(url))  # type: ignore[func-returns-value]
    assert devicemap.browse("http://x/") is opened
    assert seen == ["http://x/"] * opened


async def test_the_map_is_served_on_this_machine_while_it_is_asked_for() -> None:
    results, cluster = await played(*machine(), pods=(gpus("a", 50),))
    async with devicemap.serving(results, cluster.account(), 0) as url, aiohttp.ClientSession() as session:
        assert url.startswith("http://127.0.0.1:")
        async with session.get(f"{url}api/nodes") as answer:
            assert [one["name"] for one in (await answer.json())["nodes"]] == ["node-1"]
        async with session.get(f"{url}api/nodes", headers={"Host": "elsewhere.example.com"}) as answer:
            assert answer.status == 403


async def test_a_port_that_is_taken_is_told() -> None:
    results, cluster = await played()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(MapError, match=rf"--map-port {port}: cannot be used \(.*\); name a free port"):
            async with devicemap.serving(results, cluster.account(), port):
                pass
