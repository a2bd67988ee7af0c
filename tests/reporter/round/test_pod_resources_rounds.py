"""Rounds with a kubelet that reports its allocations: its answers count, and without them its files."""

import asyncio
import json
from typing import Any

import cpu_states
from fake_kube import FakeKube, answer
from grpc_kubelet import Kubelet, container, pod

from allocator.wire.nodetopology import read_node_topology
from reporter.command import look
from reporter.kubelet import cpustate
from reporter.kubelet.cpustate import CpuState, StateLayout

DEVICE = "/apis/scheduling.koordinator.sh/v1alpha1/devices/n1"
TOPOLOGY = "/apis/topology.node.k8s.io/v1alpha1/noderesourcetopologies/n1"
OTHER = "99999999-2222-3333-4444-555555555555"
CONTAINER = "a" * 64
UID = "11111111-2222-3333-4444-555555555555"
ANSWER = pod("theirs", container("main", "nvidia.com/gpu", "GPU-7::1", cpus=b"\x02\x03"))


def devices(fake: FakeKube) -> Any:
    annotations = fake.get(DEVICE)["metadata"]["annotations"]
    return json.loads(annotations.get("node.koordinator.sh/devices-checkpoints", "[]"))


def acknowledged(fake: FakeKube, uid: str = UID) -> None:
    obj = fake.get("/api/v1/namespaces/ns/pods/theirs")
    obj["metadata"]["uid"] = uid
    obj["status"]["startTime"] = "2026-01-01T00:00:00Z"
    fake.put("/api/v1/namespaces/ns/pods", obj)


async def test_what_the_kubelet_reports_is_on_the_objects_once_it_knows_the_pod(site, start, fake: FakeKube) -> None:
    site.add_node()
    site.add_pod("theirs", UID, qos="")
    state = CpuState(StateLayout.V2, "static", 0xFF)
    (site.folder / "kubelet" / cpustate.FILE).write_bytes(cpu_states.render(state))
    async with Kubelet(site.pod_resources, ANSWER) as kubelet:
        await start()
        await site.settled()
        assert kubelet.asked
        assert not devices(fake)

        acknowledged(fake)
        await fake.until(lambda: devices(fake), within=15)
        await site.settled()

    (row,) = devices(fake)
    assert (row["podUID"], row["containerName"], row["deviceIDs"]) == (UID, "main", ["GPU-7"])
    topology = read_node_topology(fake.get(TOPOLOGY))
    (alloc,) = topology.pod_cpu_allocs
    assert (alloc.name, alloc.cpus, alloc.managed_by_kubelet) == ("theirs", 0b1100, True)
    assert not any(pool.cpus & 0b1100 for pool in topology.shared_pools)


async def test_a_kubelet_that_hangs_is_waited_for_once_and_then_left_alone(site, start, fake: FakeKube) -> None:
    connections = []

    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(writer)
        while await reader.read(1024):
            pass
        writer.close()

    site.add_node()
    site.add_pod("pinned", OTHER, qos="LSR", resource_status='{"cpuset":"2-3"}')
    site.cgroup(f"kubepods/burstable/pod{OTHER}")
    main = site.cgroup(f"kubepods/burstable/pod{OTHER}/{CONTAINER}")
    async with await asyncio.start_unix_server(hang, str(site.pod_resources)):
        await start(every=60)
        await fake.until(lambda: (main / "cpuset.cpus").read_text() == "2-3\n" and site.find(TOPOLOGY), within=15)
        for number in range(3):
            site.add_pod(f"more-{number}", f"{number}{OTHER[1:]}")
            await site.more_rounds(1)

    assert len(connections) == 1


async def test_one_look_asks_too_and_says_at_once_that_nobody_answers(site, kube, fake: FakeKube) -> None:
    site.add_node()
    site.add_pod("theirs", UID)
    acknowledged(fake)
    async with Kubelet(site.pod_resources, ANSWER):
        found, _ = await look(site.settings(), kube)
    without, _ = await look(site.settings(), kube)

    assert "GPU-7" in found.device.body["metadata"]["annotations"]["node.koordinator.sh/devices-checkpoints"]
    assert not any("kubelet.sock" in problem for problem in found.problems)
    assert any("nobody answers (Connection refused)" in problem for problem in without.problems)


async def test_one_look_says_what_it_could_not_read_and_decides_from_the_rest(site, kube, fake: FakeKube) -> None:
    site.add_node()
    site.add_pod("pinned", UID, qos="LSR", resource_status='{"cpuset":"2-3"}')
    site.cgroup(f"kubepods/burstable/pod{OTHER}")
    sharing = site.cgroup(f"kubepods/burstable/pod{OTHER}/{CONTAINER}")
    site.add_pod("sharing", OTHER, container=CONTAINER)
    good, problems = await look(site.settings(), kube)
    fake.faults.always("list", "pods", answer(403, "no"))

    found, without = await look(site.settings(), kube)
    offline, alone = await look(site.settings(configz=True), None)

    assert problems == ()
    assert [any("the API server: " in one for one in said) for said in (without, alone)] == [True, False]
    assert good.device.body["metadata"]["name"] == found.device.body["metadata"]["name"] == "n1"
    assert [one["uid"] for one in good.device.body["metadata"]["ownerReferences"]] == ["node-uid"]
    assert offline.device.body["metadata"]["name"] == "n1"
    assert (sharing / "cpuset.cpus").read_text() == "0-7\n", "a look writes nothing"
    assert site.writes() == 0
