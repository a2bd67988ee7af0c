"""The whole reporter against an API server in process: objects are written once and kept; no outage stops the rest."""

import json
from typing import Any, ClassVar

import aiohttp
import pytest
from fake_kube import FakeKube

from allocator.vocabulary.names import CORDONED
from allocator.wire.nodetopology import read_node_topology
from reporter.pods import MANAGER
from reporter.round.messages import Lane, Listed, RoundEvent, WatchedKind

DEVICE = "/apis/scheduling.koordinator.sh/v1alpha1/devices/n1"
TOPOLOGY = "/apis/topology.node.k8s.io/v1alpha1/noderesourcetopologies/n1"
NODE = "/api/v1/nodes/n1"
UID = "11111111-2222-3333-4444-555555555555"
OTHER = "99999999-2222-3333-4444-555555555555"
CONTAINER = "a" * 64
OFTEN = {"proof": 0.01, "proofs_apart": 0.01}


def events(fake: FakeKube) -> list[dict[str, Any]]:
    return fake.objects("/api/v1/events")


async def test_a_node_is_reported_and_then_left_alone(site, start, fake: FakeKube) -> None:
    site.add_node()
    await start()
    await site.settled()
    before = site.writes()

    await site.more_rounds(20)

    assert site.writes() == before
    device, topology = fake.get(DEVICE), fake.get(TOPOLOGY)
    assert [one["id"] for one in device["spec"]["devices"]] == ["0000:3b:00.0"]
    assert read_node_topology(topology).cpu is not None
    assert device["metadata"]["ownerReferences"][0]["uid"] == "node-uid"
    assert (
        fake.get(NODE)["status"]["capacity"] | {"cpu": "8", "kubernetes.io/rdma": "100"}
        == (fake.get(NODE)["status"]["capacity"])
    )
    applies = fake.seen("patch", "devices")
    assert all(one.query["fieldManager"] == MANAGER and one.query["force"] == "true" for one in applies)


async def test_only_the_pods_of_this_node_and_objects_of_its_name_are_asked_for(site, start, fake: FakeKube) -> None:
    site.add_node()
    await start()
    await site.settled()

    selectors = {
        request.resource: request.query["fieldSelector"] for request in fake.requests if request.verb == "list"
    }

    assert selectors == {
        "nodes": "metadata.name=n1",
        "devices": "metadata.name=n1",
        "noderesourcetopologies": "metadata.name=n1",
        "pods": "spec.nodeName=n1",
    }


async def test_what_an_administrator_writes_on_the_object_stays_and_counts(site, start, fake: FakeKube) -> None:
    site.add_node()
    await start()
    await site.settled()
    device = fake.get(DEVICE)
    device["metadata"]["annotations"][CORDONED] = "0000:3b:00.0"

    fake.put("/apis/scheduling.koordinator.sh/v1alpha1/devices", device)
    await site.more_rounds(1)
    await site.settled()

    device = fake.get(DEVICE)
    assert device["metadata"]["annotations"][CORDONED] == "0000:3b:00.0"
    assert device["spec"]["devices"][0]["health"] is False
    assert site.amount() == "0"


async def test_a_node_created_again_owns_the_objects(site, start, fake: FakeKube) -> None:
    site.add_node()
    await start()
    await site.settled()

    fake.remove(NODE)
    site.add_node("another-uid")
    await site.more_rounds(1)
    await site.settled()

    assert fake.get(DEVICE)["metadata"]["ownerReferences"][0]["uid"] == "another-uid"


async def test_cpusets_are_kept_while_the_api_server_is_unreachable_and_all_is_reported_when_it_is_back(
    site, start, fake: FakeKube
) -> None:
    site.add_node()
    site.add_pod("pinned", UID, qos="LSR", resource_status='{"cpuset":"2-3"}')
    pod = site.cgroup(f"kubepods/burstable/pod{UID}")
    main = site.cgroup(f"kubepods/burstable/pod{UID}/{CONTAINER}")
    await start()
    await site.settled()
    assert (main / "cpuset.cpus").read_text() == "2-3\n"

    await fake.stop()
    (main / "cpuset.cpus").write_text("0-7\n")
    site.machine.rdma("mlx5_1", "0000:3c:00.0", numa=1)
    await site.more_rounds(3)
    assert (main / "cpuset.cpus").read_text() == "2-3\n"
    assert (pod / "cpuset.cpus").read_text() == "2-3\n"
    await fake.start()
    await site.more_rounds(1)
    await fake.until(lambda: len((site.find(DEVICE) or {})["spec"]["devices"]) == 2, within=15)


async def test_nobody_is_moved_onto_the_cpus_of_a_pod_whose_status_cannot_be_read(site, start, fake: FakeKube) -> None:
    site.add_node()
    site.add_pod("sharing", OTHER, container="b" * 64)
    site.cgroup(f"kubepods/burstable/pod{OTHER}")
    sharing = site.cgroup(f"kubepods/burstable/pod{OTHER}/{'b' * 64}")
    site.add_pod("pinned", UID, container=CONTAINER, qos="LSR", resource_status='{"cpuset":2}')
    site.cgroup(f"kubepods/burstable/pod{UID}", "2-3")
    pinned = site.cgroup(f"kubepods/burstable/pod{UID}/{CONTAINER}", "2-3")

    await start()
    await site.settled()

    assert (pinned / "cpuset.cpus").read_text() == "2-3\n"
    assert (sharing / "cpuset.cpus").read_text() == "0-1,4-7\n"
    assert [pool.cpus for pool in read_node_topology(fake.get(TOPOLOGY)).shared_pools] == [0b00110011, 0b11000000]


async def test_nvml_that_is_missing_on_a_machine_with_a_card_is_reported_and_stops_nothing(
    site, start, fake: FakeKube
) -> None:
    site.add_node()
    site.machine.pci("0000:17:00.0", 0x10DE, 0x2335, 0x030200)
    await start(gpus=True)
    await fake.until(lambda: events(fake), within=15)
    await site.settled()

    (event,) = events(fake)
    assert event["reason"] == "NvmlNotFound"
    outages = json.loads(fake.get(DEVICE)["metadata"]["annotations"]["koordgate.io/device-outages"])
    assert outages["gpu"]["reason"] == "NvmlNotFound"
    assert site.amount() == "100"
    assert site.metrics.nvml_up._value.get() == 0


async def test_nvml_that_is_missing_on_a_machine_without_a_card_is_nothing_to_report(
    site, start, fake: FakeKube
) -> None:
    site.add_node()
    agent = await start(gpus=True)
    await fake.until(lambda: site.find(DEVICE), within=15)
    while agent.state.cards.view.outage is None:
        await site.more_rounds(1)
    await site.settled()

    assert not events(fake)
    assert "koordgate.io/device-outages" not in fake.get(DEVICE)["metadata"]["annotations"]
    assert site.metrics.nvml_up._value.get() == 1  # no alert on nodes without cards


async def test_a_container_that_lacks_what_was_decided_is_an_event_a_metric_and_published(
    site, start, fake: FakeKube
) -> None:
    site.add_node()
    given = '{"gpu":[{"minor":0,"id":"GPU-0","resources":{"koordinator.sh/gpu-core":"50"}}]}'
    site.add_pod("shares", UID, container=CONTAINER, device_allocated=given)
    main = site.cgroup(f"kubepods/burstable/pod{UID}/{CONTAINER}")
    site.cgroup(f"kubepods/burstable/pod{UID}")
    (main / "cgroup.procs").write_text("77\n")
    site.machine.file("77/environ", "A=1\0NVIDIA_VISIBLE_DEVICES=GPU-1\0", site.machine.proc)
    pod = fake.get("/api/v1/namespaces/ns/pods/shares")
    pod["metadata"]["annotations"]["visible-devices.koordgate.io/main"] = "GPU-0"
    fake.put("/api/v1/namespaces/ns/pods", pod)

    await start(pace=OFTEN, environment=True)
    await fake.until(lambda: events(fake), within=15)
    await site.settled()

    (event,) = events(fake)
    assert (event["reason"], event["involvedObject"]["name"]) == ("AllocationMismatch", "shares")
    assert event["message"] == "the environment of container main names GPU-1; GPU-0 was allocated"
    told = json.loads(fake.get(DEVICE)["metadata"]["annotations"]["koordgate.io/pod-agreement"])
    assert told[UID] == {"pod": "ns/shares", "agrees": False, "mismatches": [event["message"]]}
    assert b'koordgate_reporter_mismatches{kind="environment"} 1.0' in site.metrics.exposition()


async def test_health_and_metrics_are_served_on_the_local_port(site, start) -> None:
    site.add_node()
    agent = await start()
    await site.settled()

    async with aiohttp.ClientSession(f"http://127.0.0.1:{agent.port}") as session:
        async with session.get("/healthz") as health:
            assert (health.status, await health.text()) == (200, "ok")
        async with session.get("/metrics") as metrics:
            assert "koordgate_reporter_rounds_total" in await metrics.text()


async def test_a_bug_after_a_first_list_is_told_and_tried_again_and_the_node_is_reported(
    site, start, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = [WatchedKind.PODS, WatchedKind.NODE]

    def listed(what: WatchedKind) -> Listed:
        if what in failures:
            failures.remove(what)
            raise RuntimeError("a bug")
        return Listed(what)

    monkeypatch.setattr("koordgate.steady._FIRST_S", 0.01)
    monkeypatch.setattr("reporter.agent.Listed", listed)
    site.add_node()
    await start()
    await site.settled()

    told = {kind: site.metrics.bugs.labels(f"first list of {kind.value}")._value.get() for kind in WatchedKind}
    assert told == {kind: float(kind in {WatchedKind.PODS, WatchedKind.NODE}) for kind in WatchedKind}


class Strange(RoundEvent, frozen=True):
    """An event that the machine cannot take in."""


class StrangeProof(RoundEvent, frozen=True):
    """The same, of a lane."""

    lane: ClassVar = Lane.PROOF


async def test_a_bug_in_the_machine_is_told_and_the_node_is_reported_all_the_same(site, start) -> None:
    site.add_node()
    agent = await start()
    await site.settled()

    def bugs() -> list[float]:
        return [site.metrics.bugs.labels(part)._value.get() for part in ("Strange", "proof")]

    agent.handle(Strange())
    agent.handle(Strange())
    assert bugs() == [2, 0]
    agent.handle(StrangeProof())
    assert bugs() == [2, 1]
    assert not agent.state.lanes[Lane.PROOF].busy, "the lane is tried again later"
    await site.more_rounds(3)
