"""What a reporter publishes first: nothing before it knows the cluster's objects and what Pods already hold."""

import asyncio
from typing import Any

import orjson
import pytest
from fake_kube import FakeKube, hold
from nvml_standin import Played

from allocator.vocabulary.names import CORDONED, DEVICES_CHECKPOINTS
from reporter.files import FileReading
from reporter.kubelet.configuration import KubeletConfiguration

DEVICE = "/apis/scheduling.koordinator.sh/v1alpha1/devices/n1"
TOPOLOGY = "/apis/topology.node.k8s.io/v1alpha1/noderesourcetopologies/n1"
NVIDIA, DISPLAY = 0x10DE, 0x030200
NIC = "0000:3b:00.0"
POD, BOX = "11111111-2222-3333-4444-555555555555", "c" * 64
CARD = "GPU-a1000000-0000-4000-8000-000000000000"


def put_collection(fake: FakeKube, path: str, obj: dict[str, Any]) -> None:
    fake.put(path.rpartition("/")[0], obj)


@pytest.mark.parametrize("late", ["devices", "noderesourcetopologies", "pods"])
async def test_what_stands_in_the_cluster_is_known_before_anything_is_reported(
    site, start, fake: FakeKube, late: str
) -> None:
    site.add_node()
    await start()
    await site.settled()
    await site.end()
    standing = fake.get(DEVICE)
    standing["metadata"]["annotations"][CORDONED] = NIC
    (nic,) = standing["spec"]["devices"]
    nic["health"] = False
    nic["conditions"][0].update(status="False", reason="Cordoned", lastTransitionTime="2020-01-01T00:00:00Z")
    put_collection(fake, DEVICE, standing)
    zones = fake.get(TOPOLOGY)
    foreign = {"name": "example.com/foo", "capacity": "3", "allocatable": "3", "available": "3"}
    zones["zones"][0]["resources"].append(foreign)
    put_collection(fake, TOPOLOGY, zones)
    before = len(fake.requests)
    listing = hold()
    fake.faults.add("list", late, listing)

    await start()
    await listing.reached.wait()
    await site.more_rounds(10)
    assert not [request for request in fake.requests[before:] if request.verb == "patch"]
    assert listing.gate
    listing.gate.set()
    await site.more_rounds(20)
    await fake.until(lambda: site.amount() == "0")

    assert foreign in fake.get(TOPOLOGY)["zones"][0]["resources"]
    (nic,) = fake.get(DEVICE)["spec"]["devices"]
    assert (nic["health"], nic["conditions"][0]["lastTransitionTime"]) == (False, "2020-01-01T00:00:00Z")
    told = [orjson.loads(request.body) for request in fake.requests[before:] if request.verb == "patch"]
    assert all(one["spec"]["devices"][0]["health"] is False for one in told if one["kind"] == "Device")


def eight_cards(site, played: Played) -> None:
    """A node with cards, in NVML and in sysfs."""
    played.play("a100x8")
    site.machine.pci("0000:07:00.0", NVIDIA, 0x20B0, DISPLAY)
    site.add_node()


def a_stranger(site, played: Played) -> None:
    """A Pod with a card that only its process shows."""
    site.machine.file("7/cgroup", f"0::/kubepods/burstable/pod{POD}/{BOX}", site.machine.proc)
    played.change({"gpu.0.processes": "7:1048576"})
    site.add_pod("stranger", POD, container=BOX)


def told_of_cards(fake: FakeKube, since: int = 0) -> list[str]:
    """The held cards in each write of the Device object that names cards."""
    found = []
    for request in fake.requests[since:]:
        if request.verb == "patch" and request.resource == "devices":
            body = orjson.loads(request.body)
            if any(device["type"] == "gpu" for device in body["spec"]["devices"]):
                found.append(body["metadata"]["annotations"].get(DEVICES_CHECKPOINTS[0], ""))
    return found


async def test_a_card_that_a_stranger_has_is_never_reported_as_free(
    site, start, fake: FakeKube, played: Played
) -> None:
    eight_cards(site, played)
    a_stranger(site, played)
    nvml = played.nvml()
    read, ready = nvml.read, asyncio.Event()

    async def slow(*expected):  # noqa: ANN002, ANN202 as the other
        await ready.wait()
        return await read(*expected)

    nvml.read = slow  # type: ignore[method-assign]
    await start(nvml=nvml, gpus=True)
    await site.more_rounds(10)
    ready.set()
    await fake.until(lambda: told_of_cards(fake))
    await site.more_rounds(5)
    assert all(CARD in told for told in told_of_cards(fake))
    await site.end()

    since = len(fake.requests)
    again = played.nvml()
    processes, asked = again.processes, asyncio.Event()

    async def waiting(uuid: str):  # noqa: ANN202 as the other
        await asked.wait()
        return await processes(uuid)

    again.processes = waiting  # type: ignore[method-assign]
    agent = await start(nvml=again, gpus=True)
    await site.more_rounds(10)
    asked.set()
    await fake.until(lambda: agent.state.proof.done)
    await site.more_rounds(10)
    assert all(CARD in told for told in told_of_cards(fake, since))
    assert CARD in fake.get(DEVICE)["metadata"]["annotations"][DEVICES_CHECKPOINTS[0]]


async def test_a_kubelet_that_does_not_answer_keeps_no_cpuset_from_being_right(
    site, start, fake: FakeKube, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is published or written before the kubelet has reported its configuration once."""
    answered, asked = asyncio.Event(), []

    async def ask(
        _kube: object, _node: str, before: KubeletConfiguration | None = None
    ) -> FileReading[KubeletConfiguration]:
        asked.append(before)
        if len(asked) > 1:
            await asyncio.Event().wait()
        await answered.wait()
        return FileReading(KubeletConfiguration(), None)

    monkeypatch.setattr("reporter.perform.ask_configz", ask)
    site.add_node()
    site.add_pod("own", POD, container=BOX, qos="LSR", resource_status='{"cpuset": "2-3"}')
    site.cgroup(f"kubepods/burstable/pod{POD}")
    main = site.cgroup(f"kubepods/burstable/pod{POD}/{BOX}")
    await start(configz=True, pace={"configz": 0.01})
    await site.more_rounds(10)
    assert (site.writes(), (main / "cpuset.cpus").read_text()) == (0, "0-7\n")

    answered.set()
    await site.settled()
    assert (main / "cpuset.cpus").read_text() == "2-3\n"
    assert len(asked) == 2  # and this time it never answers
    (main / "cpuset.cpus").write_text("0-7\n")
    await site.more_rounds(5)
    assert (main / "cpuset.cpus").read_text() == "2-3\n"
