"""The whole reporter with a stand-in for NVIDIA's library: cards reported, failing, returning; NVML out of reach."""

import asyncio
import json
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
from fake_kube import FakeKube
from nvml_standin import Played, recorded
from waiting import until

from allocator.wire.deviceobject import read_device_object
from allocator.wire.noderuntime import read_uses
from reporter.gpu.guarded import Patience
from reporter.round.messages import Due, Lane

Raw = dict[str, Any]

DEVICES = "/apis/scheduling.koordinator.sh/v1alpha1/devices"
NODE = "/api/v1/nodes/n1"
A100 = "GPU-a1000000-0000-4000-8000-00000000000{}"
UID = "11111111-2222-3333-4444-555555555555"
BOX = "a" * 64
GIB = 2**30
NVIDIA = 0x10DE
DISPLAY = 0x030200
OFTEN = {"proof": 0.01, "proofs_apart": 0.01}


def device(site) -> Raw:
    found: Raw = site.fake.get(f"{DEVICES}/n1")
    return found


def cards(site) -> list[Raw]:
    """The published entries of GPUs; none if there is no object yet."""
    obj = site.find(f"{DEVICES}/n1") or {"spec": {"devices": []}}
    return [entry for entry in obj["spec"]["devices"] if entry["type"] == "gpu"]


def conditions(site) -> list[str]:
    return [entry["conditions"][0]["reason"] for entry in cards(site)]


def states(site) -> list[str]:
    return [entry["labels"]["koordgate.io/health-state"] for entry in cards(site)]


def amounts(site, name: str = "kubernetes.io/gpu-core") -> tuple[str | None, str | None]:
    """A resource in the Node's status: capacity and allocatable."""
    status = site.fake.get(NODE)["status"]
    return status["capacity"].get(name), status.get("allocatable", {}).get(name)


def events(fake: FakeKube) -> dict[str, Raw]:
    """The Events by the beginning of their messages (the card, if they are about one) and the reason."""
    found = {}
    for one in fake.objects("/api/v1/events"):
        words = one["message"].split()
        card = f"{words[1][-1]} " if words[0] == "card" else ""
        found[f"{card}{one['reason']}"] = one
    return found


def metric(site, name: str, **labels: str) -> float | None:
    found: float | None = site.metrics._registry.get_sample_value(f"koordgate_reporter_{name}", labels)
    return found


async def told(site, start, played: Played, name: str, patience: Patience | None = None, **over: Any) -> Any:
    """Run the reporter on a recorded node, with its cards in sysfs, until it is published; returns its NVML."""
    played.play(name)
    for number, card in enumerate(recorded_cards(name)):
        played.change({f"gpu.{number}.bus": card["bus"]})
        bus = card["bus"][4:].lower()
        site.machine.pci(bus, NVIDIA, 0x20B0, DISPLAY, root=f"pci0000:{number // 2:02x}", numa=number % 2)
    site.add_node()
    nvml = played.nvml(*([patience] if patience else []))
    await start(nvml=nvml, **over)
    await until(lambda: cards(site) and amounts(site)[1] is not None)
    await site.settled()
    return nvml


# What is published, recomputed from the recording


def recorded_cards(name: str) -> list[dict[str, str]]:
    """The library's answers for each card, including those for all cards."""
    lines = recorded(name)
    common = {key.removeprefix("gpu.*."): value for key, value in lines.items() if key.startswith("gpu.*.")}
    found = []
    for number in range(int(lines["count"])):
        own = f"gpu.{number}."
        card = common | {key.removeprefix(own): value for key, value in lines.items() if key.startswith(own)}
        found.append(card | {"bus": card["bus"].replace("3B", "3C")})  # at 3b is the machine's NIC
    return found


def given(card: Mapping[str, str]) -> int:
    """Bytes that Pods can have of a card: without what its driver keeps, in steps of 64 MiB."""
    return int(card["memory"]) - -(-int(card.get("reserved", "0")) // 2**26) * 2**26


def expected_entry(number: int, card: Mapping[str, str]) -> Raw:
    """The wanted entry without its health: by hand, from the recording and the place that `told` gave the card."""
    near = int(card.get("memory_affinity", "0"), 16)
    labels = {
        "node.koordinator.sh/gpu-vendor": "nvidia",
        "node.koordinator.sh/gpu-model": card["name"].removeprefix("NVIDIA ").replace(" ", "-"),
        "koordgate.io/compute-capability": card["capability"],
    }
    if "reserved" in card:
        labels["koordgate.io/reserved-memory"] = str(int(card["memory"]) - given(card))
    if card.get("mig_mode") == "1":
        labels["koordgate.io/mig-mode"] = "enabled"
    if card.get("fabric", "0").startswith("3 0 "):
        labels["koordgate.io/nvlink-fabric"] = f"{'ab' * 16}.{card['fabric'].split()[2]}"
    return {
        "type": "gpu",
        "id": card["uuid"],
        "minor": int(card["minor"]),
        **({"moduleID": int(card["module"])} if "module" in card else {}),
        "labels": labels,
        "resources": {
            "kubernetes.io/gpu-core": "100",
            "kubernetes.io/gpu-memory": str(given(card)),
            "kubernetes.io/gpu-memory-ratio": "100",
        },
        "topology": {
            "socketID": -1,
            "nodeID": near.bit_length() - 1 if near else number % 2,
            "pcieID": f"pci0000:{number // 2:02x}",
            "busID": card["bus"][4:].lower(),
        },
    }


# Recorded node -> healthy percent of compute, the Node's labels, reasons of cards not in service.
NODES: dict[str, tuple[int, dict[str, str], dict[int, str]]] = {
    "a100x8": (800, {"gpu-model": "A100-SXM4-80GB", "gpu-driver-version": "535.161.08", "memory": "81920"}, {}),
    "h200": (100, {"gpu-model": "H200", "gpu-driver-version": "580.159.04", "memory": "143771"}, {}),
    "mig": (
        100,
        {"gpu-model": "A100-PCIE-80GB", "gpu-driver-version": "550.90.07", "memory": "81920"},
        {0: "MIGEnabled"},
    ),
    "mixed": (800, {"gpu-driver-version": "550.90.07"}, {}),
    "dying": (
        100,
        {"gpu-model": "H100-80GB-HBM3", "gpu-driver-version": "570.124.06", "memory": "81559"},
        {1: "RecoveryReset", 2: "RowRemapFailed"},
    ),
}


PRODUCTS = {
    "a100x8": "NVIDIA-A100-SXM4-80GB",
    "h200": "NVIDIA-H200",
    "mig": "NVIDIA-A100-PCIE-80GB",
    "dying": "NVIDIA-H100-80GB-HBM3",
}


@pytest.mark.parametrize("name", NODES)
async def test_each_recorded_node_is_reported_whole(site, played, start, fake: FakeKube, name) -> None:
    healthy, node_labels, sick = NODES[name]
    await told(site, start, played, name)
    there = {number: card for number, card in enumerate(recorded_cards(name)) if card.get("lost") != "1"}

    entries = [
        {
            **{key: value for key, value in entry.items() if key not in {"health", "conditions"}},
            "labels": {key: value for key, value in entry["labels"].items() if "health-state" not in key},
        }
        for entry in cards(site)
    ]
    assert entries == [expected_entry(number, card) for number, card in there.items()]
    assert [entry["health"] for entry in cards(site)] == [number not in sick for number in there]
    assert conditions(site) == [sick.get(number, "Healthy") for number in there]
    total = sum(int(card["memory"]) for number, card in there.items() if number not in sick)
    assert amounts(site) == (str(healthy), str(healthy))
    assert amounts(site, "koordinator.sh/gpu-memory")[0] == str(total)
    each = {given(card) // 2**20 for card in there.values()}
    shown = {
        "node.koordinator.sh/gpu-vendor": "nvidia",
        **{f"node.koordinator.sh/{key}": value for key, value in node_labels.items() if key != "memory"},
        **({"koordgate.io/gpu-memory-mib": str(*each)} if "memory" in node_labels else {}),
        "nvidia.com/gpu.count": str(len(there)),
        **({"nvidia.com/gpu.memory": node_labels["memory"]} if "memory" in node_labels else {}),
        **({"nvidia.com/gpu.product": product} if (product := PRODUCTS.get(name)) else {}),
    }
    assert fake.get(NODE)["metadata"]["labels"] == shown
    lines = recorded(name)
    cuda = int(lines["cuda"])
    labels = device(site)["metadata"]["labels"]
    assert labels["koordgate.io/cuda-version"] == f"{cuda // 1000}.{cuda % 1000 // 10}"
    assert labels["node.koordinator.sh/gpu-driver-version"] == lines["driver"]
    assert metric(site, "nvml_up") == 1
    assert metric(site, "gpus", state="healthy") == len(there) - len(sick.keys() - {0})


# Cards that fail while the reporter runs

# Card -> the library's answers from then on, the reported reason, the state, whether a reset or more is needed.
FAULTS: dict[int, tuple[dict[str, str], str, str]] = {
    1: ({}, "Xid79", "unhealthy"),
    2: ({}, "Xid94", "suspect"),
    3: ({"gpu.3.lost": "1"}, "GpuLost", "unhealthy"),
    4: ({"gpu.4.error.nvmlDeviceGetHandleByIndex_v2": "16"}, "GpuNeedsReset", "unhealthy"),
    5: ({"gpu.5.remapped": "0 1 0 1"}, "RowRemapFailed", "unhealthy"),
    6: ({"gpu.6.uncorrected": "2"}, "UncorrectedErrors", "suspect"),
    7: ({"gpu.7.retired_pending": "1"}, "PageRetirementPending", "suspect"),
}


def strike(played: Played) -> None:
    """Give each card except the first a fault of its own; the first has only application errors."""
    for xid in (13, 31, 43, 45, 68, 109):
        played.happen(0, xid)
    played.happen(1, 79, times=3)
    played.happen(2, 94)
    played.change({key: value for changes, _, _ in FAULTS.values() for key, value in changes.items()})


async def test_each_card_falls_by_its_own_fault_and_no_other_card_with_it(site, played, start, fake: FakeKube) -> None:
    await told(site, start, played, "a100x8")

    strike(played)
    await until(lambda: [entry["health"] for entry in cards(site)] == [True] + [False] * 7)
    await site.settled()

    assert conditions(site) == ["Healthy", *(reason for _, reason, _ in FAULTS.values())]
    assert states(site) == ["healthy", *(state for _, _, state in FAULTS.values())]
    (xid,) = cards(site)[1]["conditions"]
    assert xid["message"].startswith("unhealthy (3 errors): Xid 79: GPU has fallen off the bus; restart the node")
    assert amounts(site) == ("100", "100")
    assert amounts(site, "koordinator.sh/gpu-memory") == (str(80 * GIB), str(80 * GIB))
    found = events(fake)
    wanted = {f"{card} {reason}": 1 for card, (_, reason, _) in FAULTS.items()} | {"1 Xid79": 3}
    assert {key: one["count"] for key, one in found.items()} == wanted
    assert all(one["type"] == "Warning" and one["involvedObject"]["uid"] == "node-uid" for one in found.values())
    for card, (_, reason, _) in FAULTS.items():
        assert metric(site, "gpu_errors", uuid=A100.format(card), reason=reason) == (3 if card == 1 else 1)
    counted = {state: metric(site, "gpus", state=state) for state in ("healthy", "suspect", "unhealthy", "recovering")}
    assert counted == {"healthy": 1, "suspect": 3, "unhealthy": 4, "recovering": 0}
    assert not json.loads(device(site)["metadata"]["annotations"]["koordgate.io/device-links"]).get(A100.format(3))


async def test_an_error_that_is_heard_while_cards_are_read_counts(site, played, start) -> None:
    await told(site, start, played, "a100x8")

    for card in range(8):
        site.agent.handle(Due(Lane.CARDS))
        await asyncio.sleep(0)  # the question is sent, and waits until the wait for an error ends
        played.happen(card, 79)
        await until(lambda card=card: states(site)[card] == "unhealthy")  # type: ignore[misc]
    await site.settled()

    assert amounts(site) == ("0", "0")


# NVML out of reach


def pinned(site) -> tuple[Path, ...]:
    """A running Pod with CPUs of its own, and the files of its cpusets."""
    site.add_pod("pinned", UID, qos="LSR", resource_status='{"cpuset":"2-3"}')
    path = f"kubepods/burstable/pod{UID}"
    return tuple(site.cgroup(one) / "cpuset.cpus" for one in (path, f"{path}/{BOX}"))


def read(files: Iterable[Path]) -> set[str]:
    return {file.read_text() for file in files}


async def test_while_a_call_of_nvml_hangs_cpusets_are_enforced_and_devices_reported(
    site, played, start, fake: FakeKube
) -> None:
    files = pinned(site)
    nvml = await told(site, start, played, "a100x8", Patience(first_answer=600.0, answer=600.0, end=0.05), pace=OFTEN)
    assert read(files) == {"2-3\n"}
    asking = nvml.pid

    played.change({"hang": "nvmlDeviceGetMemoryInfo"})
    await until(played.hung.exists)
    for number in (1, 2):
        files[1].write_text("0-7\n")
        site.machine.rdma(f"mlx5_{number}", f"0000:7{number}:00.0")
        await until(lambda count=number + 1: len(device(site)["spec"]["devices"]) == 8 + count)  # type: ignore[misc]
        assert read(files) == {"2-3\n"}
    await site.settled()

    assert nvml.pid == asking  # it hangs all the time
    assert site.agent.state.cards.view.outage is None
    assert site.amount() == "300"
    assert conditions(site) == ["Healthy"] * 8
    assert site.agent.unhealthy() == []


async def test_a_reading_that_is_called_off_as_its_process_starts_or_is_killed_leaves_none_behind(played) -> None:
    played.play("h200")
    calls: list[asyncio.Task[Any]] = []

    def kill(process: asyncio.SubprocessTransport) -> None:
        process.kill()
        calls[-1].cancel()

    nvml = played.nvml(Patience(answer=0.05, first_answer=30.0, end=30.0), kill=kill)
    calls.append(asyncio.create_task(nvml.read()))
    await asyncio.sleep(0)
    await asyncio.sleep(0)  # the start has begun
    starting = nvml._starting
    assert not starting.done()
    calls[-1].cancel()
    await asyncio.wait(calls)
    await nvml.aclose()
    assert (await starting).gone.is_set()

    await nvml.read()
    child = nvml._child
    played.change({"hang": "nvmlDeviceGetName"})
    calls.append(asyncio.create_task(nvml.read()))
    await asyncio.wait(calls)
    await nvml.aclose()

    assert [call.cancelled() for call in calls] == [True, True]
    assert child.gone.is_set()


# What processes on cards show


async def test_a_card_that_somebody_uses_unasked_stays_taken_while_nvml_is_out_of_reach(
    site, played, start, fake: FakeKube
) -> None:
    site.add_pod("stranger", UID)
    site.machine.file("77/cgroup", f"0::/kubepods/burstable/pod{UID}/{BOX}", site.machine.proc)
    await told(site, start, played, "a100x8", Patience(first_pause=0.2, end=30.0), outage=600, pace=OFTEN)

    def taken() -> frozenset[str]:
        return read_device_object(device(site)).kubelet_held

    played.change({"gpu.3.processes": "77:1048576"})
    await until(lambda: taken() == {A100.format(3)})
    played.change({"error.nvmlInitWithFlags": "9", "error.nvmlDeviceGetCount_v2": "9"})
    await until(lambda: metric(site, "nvml_up") == 0)
    before = device(site)
    for _ in range(2):
        seen = site.agent.state.proof.evidence
        await until(lambda seen=seen: site.agent.state.proof.evidence is not seen)  # type: ignore[misc]
    await site.more_rounds(3)
    assert device(site) == before

    (site.machine.proc / "77" / "cgroup").unlink()
    await until(lambda: not read_device_object(site.agent.state.decided.device.body).kubelet_held)


# Memory limits


def cgroup_v2(site, *boxes: str) -> None:
    """Make the machine one with cgroup v2 on which these containers of the Pod run."""
    shutil.rmtree(site.folder / "cgroup")
    for path in ("", "kubepods", "kubepods/burstable", f"kubepods/burstable/pod{UID}"):
        _cgroup_v2(site, path)
    for box in boxes:
        _cgroup_v2(site, f"kubepods/burstable/pod{UID}/{box}")


def _cgroup_v2(site, path: str) -> None:
    folder = site.folder / "cgroup" / path
    folder.mkdir()
    for name in ("cpuset.cpus", "cpuset.cpus.effective"):
        (folder / name).write_text("0-7\n")
    for name, text in {"cpuset.mems": "0-1\n", "cgroup.procs": "", "cgroup.controllers": "cpuset\n"}.items():
        (folder / name).write_text(text)


def limited_pod(site, mib: int | None) -> None:
    """A Pod with half of a card, to which its container is to be kept if a limit is given."""
    share = {"minor": 0, "id": A100.format(0), "resources": {"koordinator.sh/gpu-memory": "40Gi"}}
    pod = site.add_pod("limited", UID, container=BOX, device_allocated=json.dumps({"gpu": [share]}))
    pod["metadata"]["annotations"]["visible-devices.koordgate.io/main"] = A100.format(0)
    if mib is not None:
        pod["metadata"]["annotations"]["nvidia-gpu-memory-limit.koordgate.io/main"] = str(mib)
    site.fake.put("/api/v1/namespaces/ns/pods", pod)


def uses(site) -> list[tuple[str, int | None, int | None]]:
    found, problem = read_uses(device(site)["metadata"]["annotations"].get("koordgate.io/memory-limits"))
    assert not problem
    return [(one.keeping.value, one.used, one.limit) for one in found]


CGROUP = f"/sys/fs/cgroup/kubepods/burstable/pod{UID}/{BOX}"


async def test_a_container_that_is_kept_to_its_memory_is_told_and_so_is_one_that_is_not_any_more(
    site, played, start, fake: FakeKube
) -> None:
    cgroup_v2(site, BOX)
    limited_pod(site, 40 * 1024)
    played.limit(0, CGROUP, 0, 40 * GIB)
    played.change({f"gpu.0.used.{CGROUP}": str(3 * GIB)})
    await told(site, start, played, "a100x8", pace=OFTEN)
    await until(lambda: uses(site) == [("enforced", 3 * GIB, 40 * GIB)])
    assert not events(fake)

    played.limits.unlink()
    await until(lambda: "LimitMissing" in events(fake))
    await until(lambda: [one[0] for one in uses(site)] == ["missing"])
    assert events(fake)["LimitMissing"]["involvedObject"]["uid"] == UID


async def test_a_container_that_nothing_keeps_to_its_memory_is_counted_by_its_processes(
    site, played, start, fake: FakeKube
) -> None:
    limited_pod(site, None)
    site.cgroup(f"kubepods/burstable/pod{UID}")
    site.cgroup(f"kubepods/burstable/pod{UID}/{BOX}")
    site.machine.file("77/cgroup", f"0::/kubepods/burstable/pod{UID}/{BOX}", site.machine.proc)
    played.change({"gpu.0.processes": f"77:{GIB}"})
    await told(site, start, played, "a100x8", pace=OFTEN)
    await until(lambda: uses(site) == [("accounting", GIB, None)])
    played.change({"gpu.0.processes": f"77:{41 * GIB}"})
    await until(lambda: "ShareExceeded" in events(fake))
    assert "AllocationMismatch" not in events(fake)


async def test_a_driver_that_dies_of_the_question_takes_no_card_out_of_service(
    site, played, start, fake: FakeKube
) -> None:
    cgroup_v2(site, BOX)
    limited_pod(site, 40 * 1024)
    nvml = await told(site, start, played, "a100x8", outage=600, pace=OFTEN)
    await until(lambda: [one[0] for one in uses(site)] == ["missing"])
    before = nvml.pid
    played.change({"crash": "nvmlDeviceGetMemoryLimits_v1"})
    await until(lambda: nvml.pid not in {None, before})
    proofs, before = site.agent.state.proof.count, nvml.pid
    await until(lambda: site.agent.state.proof.count > proofs + 2)
    await until(lambda: metric(site, "nvml_up") == 1)
    assert site.agent.state.decided.memory == (), "what the driver does not tell is not guessed"
    assert conditions(site) == ["Healthy"] * 8
    assert nvml.pid == before, "it is not asked again for a while"
