"""What the Device object states about a node's cards, and how the allocator reads it."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allocator.wire.deviceobject import NodeDevices, read_device_object
from reporter.gpu.entries import (
    DEVICE_OUTAGES,
    Circumstances,
    DeviceReport,
    build,
    device_lanes,
    label,
    model_label,
    timestamp,
)
from reporter.gpu.facts import (
    DriverFacts,
    Fabric,
    FabricState,
    GpuFacts,
    Link,
    NodeReading,
    Outage,
    Peer,
    Wear,
    XidEvent,
)
from reporter.gpu.health import NOTHING_KNOWN, HealthPolicy, NodeRecord, advance, hear

GIB = 2**30
MIB = 2**20
POLICY = HealthPolicy(quiet=300.0, proving=600.0)
DRIVER = DriverFacts("580.159.04", "13.0")
NOW = 1_795_208_000.0
THEN = "2026-11-20T20:53:20Z"  # NOW


def card(minor: int, **facts: Any) -> GpuFacts:
    plain = GpuFacts(
        uuid=f"GPU-{minor}",
        minor=minor,
        model="NVIDIA H200",
        memory=141 * GIB,
        bus=f"0000:{minor:02x}:00.0",
        pcie_root=f"pci0000:{minor:02x}",
        numa_node=0,
        xid_events=True,
    )
    return replace(plain, **facts)


def known(*gpus: GpuFacts) -> NodeRecord:
    return advance(NOTHING_KNOWN, NodeReading(DRIVER, gpus, (), "one"), (), NOW, POLICY)


def report(node: NodeRecord, **circumstances: Any) -> DeviceReport:
    return build(node, DRIVER, POLICY, Circumstances(**circumstances))


def read(told: DeviceReport) -> NodeDevices:
    """Read the report as the allocator does, after a round trip through the API server."""
    metadata = {"name": "node-1", "labels": dict(told.labels), "annotations": dict(told.annotations)}
    return read_device_object(json.loads(json.dumps({"metadata": metadata, "spec": {"devices": told.devices}})))


def condition(told: DeviceReport, place: int = 0) -> tuple[str, str, str]:
    (only,) = told.devices[place]["conditions"]
    return only["status"], only["reason"], only["message"]


async def reported(played, domain: str = "kubernetes.io") -> DeviceReport:
    reading = await played.nvml().read()
    return build(advance(NOTHING_KNOWN, reading, (), NOW, POLICY), reading.driver, POLICY, domain=domain)


# Recorded nodes, from the library to the Device object


@pytest.mark.parametrize("domain", ["kubernetes.io", "koordinator.sh"])
async def test_an_h200_is_written_as_koordinator_writes_it(played, domain: str) -> None:
    played.play("h200")
    played.pci("0000:00:06.0", "pci0000:00", "-1")
    played.numa_nodes("0")

    told = await reported(played, domain)

    assert told.devices == (
        {
            "type": "gpu",
            "id": "GPU-26af1747-9a4d-edd9-a942-cdc49d8df2b6",
            "minor": 0,
            "moduleID": 7,
            "health": True,
            "labels": {
                "node.koordinator.sh/gpu-vendor": "nvidia",
                "node.koordinator.sh/gpu-model": "H200",
                "koordgate.io/health-state": "healthy",
                "koordgate.io/compute-capability": "9.0",
                "koordgate.io/reserved-memory": "671088640",
            },
            "resources": {
                f"{domain}/gpu-core": "100",
                f"{domain}/gpu-memory": "150083731456",
                f"{domain}/gpu-memory-ratio": "100",
            },
            "topology": {"socketID": -1, "nodeID": 0, "pcieID": "pci0000:00", "busID": "0000:00:06.0"},
            "conditions": [{"type": "Healthy", "status": "True", "reason": "Healthy", "message": ""}],
        },
    )
    assert told.labels == {
        "node.koordinator.sh/gpu-vendor": "nvidia",
        "node.koordinator.sh/gpu-model": "H200",
        "node.koordinator.sh/gpu-driver-version": "580.159.04",
        "koordgate.io/cuda-version": "13.0",
    }
    assert (told.annotations, told.problems) == ({}, ())


async def test_eight_a100_reach_each_other_with_all_their_lanes(played) -> None:
    played.play("a100x8")

    told = await reported(played)

    links = json.loads(told.annotations["koordgate.io/device-links"])
    uuids = [entry["id"] for entry in told.devices]
    assert links == {one: dict.fromkeys(sorted(set(uuids) - {one}), 12) for one in uuids}
    assert [device.healthy for device in read(told).devices] == [True] * 8


async def test_mixed_cards_are_distinguished_and_keep_their_minors(played) -> None:
    played.play("mixed")

    told = await reported(played)

    devices = read(told).devices
    assert [device.minor for device in devices] == [0, 1, 2, 3, 5, 6, 8, 9]
    assert [device.model for device in devices[::2]] == ["Tesla-T4", "A30", "L40S", "H100-PCIe"]
    assert "node.koordinator.sh/gpu-model" not in told.labels
    lanes = [
        [b["id"][-1], n]
        for b in told.devices
        for n in json.loads(told.annotations["koordgate.io/device-links"]).get(b["id"], {}).values()
    ]
    assert lanes == [["2", 4], ["3", 4], ["6", 12], ["7", 12]]


async def test_mig_devices_are_listed_and_neither_they_nor_their_card_are_shared(played) -> None:
    played.play("mig")

    told = await reported(played)

    assert [(entry["type"], entry["minor"], entry["health"]) for entry in told.devices] == [
        ("gpu", 0, False),
        ("gpu", 1, True),
        ("mig", 0, True),
        ("mig", 1, True),
        ("mig", 2, True),
    ]
    assert condition(told)[1] == "MIGEnabled"
    assert told.devices[3]["labels"] == {
        "node.koordinator.sh/gpu-vendor": "nvidia",
        "node.koordinator.sh/gpu-model": "A100-PCIE-80GB",
        "koordgate.io/mig-profile": "1g.10gb",
        "koordgate.io/mig-parent": "GPU-b1600000-0000-4000-8000-000000000000",
    }
    assert "resources" not in told.devices[3]
    found = read(told)
    assert [(device.minor, device.healthy) for device in found.devices] == [(0, False), (1, True)]
    assert found.problems == ()


async def test_cards_that_die_are_listed_with_the_reason(played) -> None:
    played.play("dying")

    told = await reported(played)

    assert [entry["health"] for entry in told.devices] == [True, False, False]  # the fourth has never answered
    assert condition(told, 1) == (
        "False",
        "RecoveryReset",
        "unhealthy: the driver asks for a reset of the card; reset the card, or restart the node",
    )
    assert condition(told, 2)[1] == "RowRemapFailed"
    assert told.devices[1]["labels"]["koordgate.io/health-state"] == "unhealthy"


# Why a card takes nothing new


def test_an_outage_before_any_card_was_seen_is_reported_on_the_object() -> None:
    outage = Outage("NvmlNotFound", "libnvidia-ml.so.1 not found", NOW)

    told = build(NOTHING_KNOWN, None, POLICY, Circumstances(outage=outage))

    assert (told.devices, told.labels) == ((), {})
    assert list(told.annotations) == [DEVICE_OUTAGES]


WHY: dict[str, tuple[dict[str, object], dict[str, object], str]] = {
    "unhealthy before set aside": (
        {"wear": Wear(remap_failed=True)},
        {"cordoned": frozenset({"GPU-0"})},
        "RowRemapFailed",
    ),
    "set aside before an outage": (
        {},
        {"cordoned": frozenset({"GPU-0"}), "outage": Outage("NvmlHangs", "", NOW)},
        "Cordoned",
    ),
    "an outage before MIG mode": ({"mig": True}, {"outage": Outage("NvmlHangs", "", NOW)}, "NvmlHangs"),
    "MIG mode before an unknown size": ({"mig": True, "memory": None}, {}, "MIGEnabled"),
    "an unknown size": ({"memory": None}, {}, "NoMemorySize"),
}


@pytest.mark.parametrize(("facts", "circumstances", "reason"), WHY.values(), ids=WHY)
def test_of_several_reasons_the_gravest_is_reported(facts, circumstances, reason) -> None:
    told = report(known(card(0, **facts)), **circumstances)

    assert condition(told)[:2] == ("False", reason)


# Identity and place


def test_a_card_that_is_missing_keeps_its_entry_and_gives_up_its_number_to_one_that_is_there() -> None:
    first = known(card(0), card(1), card(2))
    renumbered = (replace(card(1), minor=0), replace(card(2), minor=1))
    away = advance(first, NodeReading(DRIVER, renumbered, (), "one"), (), NOW + 1, POLICY)

    told = report(away)

    assert [(entry["minor"], entry["id"]) for entry in told.devices] == [(0, "GPU-1"), (1, "GPU-2"), (2, "GPU-0")]
    found = read(told)
    assert found.problems == ()
    assert {device.id: device.healthy for device in found.devices} == {"GPU-0": False, "GPU-1": True, "GPU-2": True}


NOWHERE = {"no NUMA node": {"numa_node": None}, "no PCIe root": {"pcie_root": None}}


@pytest.mark.parametrize("facts", NOWHERE.values(), ids=NOWHERE)
def test_a_card_whose_place_is_unknown_has_no_topology_but_its_address(facts) -> None:
    known_place, unknown, nowhere = report(known(card(0), card(1, **facts), card(2, **facts, bus=None))).devices

    assert ["topology" in entry for entry in (known_place, unknown, nowhere)] == [True, False, False]
    buses = [entry["labels"].get("koordgate.io/pci-bus") for entry in (known_place, unknown, nowhere)]
    assert buses == [None, "0000:01:00.0", None]


def test_the_fabric_that_a_card_has_joined_is_a_label() -> None:
    fabrics = (
        Fabric(FabricState.COMPLETED, 0, "ab", 7),
        Fabric(FabricState.COMPLETED, 1, "ab", 7),
        Fabric(FabricState.IN_PROGRESS, 0, "ab", 7),
        None,
    )

    told = report(known(*(card(minor, fabric=fabric) for minor, fabric in enumerate(fabrics))))

    assert [entry["labels"].get("koordgate.io/nvlink-fabric") for entry in told.devices] == ["ab.7", None, None, None]


SWITCHED = (Link(Peer.SWITCH, None),)


def apart(minor: int, bridge: int) -> GpuFacts:
    """One of two cards with a bridge of some lanes, and a lane to switches whose fabric the other is not in."""
    links = SWITCHED + (Link(Peer.GPU, f"0000:0{1 - minor}:00.0"),) * bridge
    return card(minor, links=links, fabric=Fabric(FabricState.COMPLETED, 0, "ab", minor))


LANES: dict[str, tuple[list[GpuFacts], dict[tuple[str, str], int]]] = {
    "none": ([card(0), card(1)], {}),
    "a bridge": (
        [card(0, links=(Link(Peer.GPU, "0000:01:00.0"),) * 4), card(1, links=(Link(Peer.GPU, "0000:00:00.0"),) * 4)],
        {("GPU-0", "GPU-1"): 4},
    ),
    "a bridge of which one end has lost a lane": (
        [card(0, links=(Link(Peer.GPU, "0000:01:00.0"),) * 4), card(1, links=(Link(Peer.GPU, "0000:00:00.0"),) * 3)],
        {("GPU-0", "GPU-1"): 3},
    ),
    "a bridge to a card that is not there": ([card(0, links=(Link(Peer.GPU, "0000:77:00.0"),)), card(1)], {}),
    "a link to nobody knows whom": ([card(0, links=(Link(Peer.GPU, None),)), card(1, bus=None)], {}),
    "a link to a processor": ([card(0, links=(Link(Peer.OTHER, "0000:01:00.0"),)), card(1)], {}),
    "switches, of which one card has lost lanes": (
        [card(0, links=SWITCHED * 18), card(1, links=SWITCHED * 18), card(2, links=SWITCHED * 16)],
        {("GPU-0", "GPU-1"): 18, ("GPU-0", "GPU-2"): 16, ("GPU-1", "GPU-2"): 16},
    ),
    "switches that one card is not on": ([card(0, links=SWITCHED), card(1)], {}),
    "a fabric cut in two": (
        [card(minor, links=SWITCHED, fabric=Fabric(FabricState.COMPLETED, 0, "ab", minor // 2)) for minor in range(4)],
        {("GPU-0", "GPU-1"): 1, ("GPU-2", "GPU-3"): 1},
    ),
    "a fabric cut in two, and a bridge across it of which the first end has lost a lane": (
        [apart(0, bridge=3), apart(1, bridge=4)],
        {("GPU-0", "GPU-1"): 3},
    ),
    "a fabric cut in two, and a bridge across it of which the second end has lost a lane": (
        [apart(0, bridge=4), apart(1, bridge=3)],
        {("GPU-0", "GPU-1"): 3},
    ),
    "a fabric that is not ready": (
        [card(minor, links=SWITCHED, fabric=Fabric(FabricState.IN_PROGRESS, 0, "ab", 0)) for minor in range(2)],
        {},
    ),
    "a fabric that one card has not joined yet": (
        [
            card(minor, links=SWITCHED, fabric=Fabric(state, 0, "ab", 0))
            for minor, state in enumerate([FabricState.COMPLETED, FabricState.IN_PROGRESS, FabricState.COMPLETED])
        ],
        {("GPU-0", "GPU-2"): 1},
    ),
    "a fabric that one card does not report": (
        [card(0, links=SWITCHED, fabric=Fabric(FabricState.COMPLETED, 0, "ab", 0)), card(1, links=SWITCHED)],
        {},
    ),
}


@pytest.mark.parametrize(("gpus", "expected"), LANES.values(), ids=LANES)
def test_lanes_between_cards(gpus, expected) -> None:
    assert device_lanes(gpus) == expected
    assert device_lanes(reversed(gpus)) == expected


# Any other input from a library or a cluster

MODELS = {
    "NVIDIA H200": "H200",
    "NVIDIA A100-SXM4-80GB": "A100-SXM4-80GB",
    "Tesla T4": "Tesla-T4",
    "NVIDIA RTX A6000 (rev. 2)": "RTX-A6000-rev.-2",
    "": "",
}


@pytest.mark.parametrize(("model", "expected"), MODELS.items(), ids=MODELS)
def test_a_model_is_spelled_as_koordinator_does(model, expected) -> None:
    assert model_label(model) == expected


@given(st.text(max_size=100))
def test_any_text_becomes_a_label_that_kubernetes_takes(text) -> None:
    found = label(text)
    assert len(found) <= 63
    assert not found or (found[0].isalnum() and found[-1].isalnum() and found.isascii())


@pytest.mark.parametrize("seconds", [0.0, -1.0, 1e12, 1e17, 1e300, float("inf"), float("nan")], ids=str)
def test_any_number_becomes_a_time_that_kubernetes_takes(seconds) -> None:
    assert len(timestamp(seconds)) == len(THEN)


@given(
    st.lists(
        st.builds(
            GpuFacts,
            uuid=st.sampled_from([f"GPU-{n}" for n in range(6)]),
            minor=st.integers(0, 5),
            model=st.sampled_from(["NVIDIA H200", "Tesla T4", ""]),
            memory=st.sampled_from([None, GIB, 80 * GIB]),
            numa_node=st.sampled_from([None, 0, 1]),
            pcie_root=st.sampled_from([None, "pci0000:00"]),
            mig=st.sampled_from([None, False, True]),
            wear=st.builds(Wear, remap_failed=st.booleans()),
            xid_events=st.booleans(),
        ),
        max_size=6,
        unique_by=lambda gpu: gpu.uuid,
    ),
    st.lists(st.sampled_from([f"GPU-{n}" for n in range(6)]), max_size=3),
    st.sets(st.sampled_from([f"GPU-{n}" for n in range(6)])),
)
def test_the_allocator_allocates_the_healthy_cards_and_no_others(gpus, sick, aside) -> None:
    node = hear(known(*gpus), [XidEvent(uuid, 79, NOW) for uuid in sick], NOW, POLICY)

    found = read(report(node, cordoned=frozenset(aside)))

    usable = {
        gpu.uuid
        for gpu in gpus
        if gpu.memory and not gpu.mig and not gpu.wear.remap_failed and gpu.uuid not in {*sick, *aside}
    }
    assert {device.id for device in found.devices if device.healthy} == usable
    assert {device.id for device in found.devices} == {gpu.uuid for gpu in gpus if gpu.memory}


@pytest.mark.parametrize(
    ("reserved", "kept"),
    [
        pytest.param(None, 0, id="not told"),
        pytest.param(0, 0, id="nothing"),
        pytest.param(1, 64, id="a byte"),
        pytest.param(600 * MIB, 640, id="rounded up to 64 MiB"),
        pytest.param(615 * MIB + 64 * 1024, 640, id="another card of the model"),
        pytest.param(640 * MIB, 640, id="exactly"),
        pytest.param(640 * MIB + 1, 704, id="a byte more"),
        pytest.param(141 * GIB - 64 * MIB, 141 * 1024 - 64, id="nearly all"),
        pytest.param(141 * GIB - 64 * MIB + 1, 0, id="all of it, which cannot be"),
    ],
)
def test_a_card_gives_what_its_driver_does_not_keep(reserved: int | None, kept: int) -> None:
    (entry,) = report(known(card(0, reserved=reserved))).devices
    (device,) = read(report(known(card(0, reserved=reserved)))).devices
    assert entry["resources"]["kubernetes.io/gpu-memory"] == str(141 * GIB - kept * MIB)
    assert entry["labels"].get("koordgate.io/reserved-memory") == (str(kept * MIB) if kept else None)
    assert (device.capacity["gpu-memory"], device.reserved) == (141 * GIB - kept * MIB, kept * MIB)


async def test_a_library_without_the_call_tells_nothing_of_it(played) -> None:
    played.play("h200")
    played.change({"error.nvmlDeviceGetMemoryInfo_v2": "13"})
    (gpu,) = (await played.nvml().read()).gpus
    assert (gpu.memory, gpu.reserved, gpu.problems) == (150754820096, None, ())
