"""Recorded nodes, read by the real pynvml in the NVML process."""

import pytest

from reporter import files
from reporter.gpu.facts import (
    DriverFacts,
    Fabric,
    FabricState,
    GpuFacts,
    GpuProcess,
    Link,
    LostCard,
    MigDevice,
    Peer,
    RecoveryAction,
    Wear,
)
from reporter.gpu.guarded import NvmlRefusedError

H200 = "GPU-26af1747-9a4d-edd9-a942-cdc49d8df2b6"
CLEAN = Wear(corrected=0, uncorrected=0, remapped_rows=0, remap_pending=False, remap_failed=False)


async def test_an_h200_in_a_virtual_machine_is_read_though_it_reports_no_numa_id_and_no_nvlink(played) -> None:
    played.play("h200")
    played.pci("0000:00:06.0", "pci0000:00", "-1")
    played.numa_nodes("0")
    played.boot("7ede3d37")

    reading = await played.nvml().read()

    assert reading.driver == DriverFacts("580.159.04", "13.0", memory_limits=True)
    assert reading.gpus == (
        GpuFacts(
            uuid=H200,
            minor=0,
            model="NVIDIA H200",
            memory=150754820096,
            reserved=644939776,
            bus="0000:00:06.0",
            pcie_root="pci0000:00",
            numa_node=0,
            module=7,
            compute_capability=(9, 0),
            mig=False,
            wear=Wear(
                corrected=0,
                uncorrected=0,
                remapped_rows=0,
                remap_pending=False,
                remap_failed=False,
                sram_worn=False,
                repair_pending=False,
            ),
            recovery=RecoveryAction.NONE,
            xid_events=True,
        ),
    )
    assert reading.lost == ()
    assert reading.boot == "7ede3d37"


async def test_eight_a100_have_twelve_lanes_to_switches_each_and_the_numa_node_that_nvml_reports(played) -> None:
    played.play("a100x8")
    for index, bus in enumerate(("07", "0f", "47", "4e", "87", "90", "b7", "bd")):
        played.pci(f"0000:{bus}:00.0", f"pci0000:{index // 2:02x}", "0", between=f"0000:{index // 2:02x}:01.0")

    gpus = (await played.nvml().read()).gpus

    assert [gpu.minor for gpu in gpus] == list(range(8))
    assert [gpu.numa_node for gpu in gpus] == [3, 3, 1, 1, 7, 7, 5, 5]
    assert [gpu.pcie_root for gpu in gpus] == [f"pci0000:{index // 2:02x}" for index in range(8)]
    assert [gpu.module for gpu in gpus] == [2, 4, 3, 1, 7, 5, 8, 6]
    assert {gpu.links for gpu in gpus} == {(Link(Peer.SWITCH, None),) * 12}
    assert {gpu.wear for gpu in gpus} == {CLEAN}
    assert {(gpu.recovery, gpu.fabric, gpu.problems) for gpu in gpus} == {(None, None, ())}


async def test_mixed_cards_keep_what_each_of_them_reports(played) -> None:
    played.play("mixed")
    for bus in ("17", "18", "31", "32"):
        played.pci(f"0000:{bus}:00.0", "pci0000:16", "0")
    for bus in ("98", "99", "b1", "b2"):
        played.pci(f"0000:{bus}:00.0", "pci0000:97", "1")
    played.numa_nodes("0-1")

    gpus = (await played.nvml().read()).gpus

    assert [gpu.minor for gpu in gpus] == [0, 1, 2, 3, 5, 6, 8, 9]
    assert [gpu.model for gpu in gpus[::2]] == ["Tesla T4", "NVIDIA A30", "NVIDIA L40S", "NVIDIA H100 PCIe"]
    assert [gpu.numa_node for gpu in gpus] == [0] * 4 + [1] * 4
    assert [gpu.mig for gpu in gpus[::2]] == [None, False, None, False]
    assert [len(gpu.links) for gpu in gpus] == [0, 0, 4, 4, 0, 0, 12, 12]
    assert set(gpus[2].links) == {Link(Peer.GPU, "0000:32:00.0")}
    assert gpus[0].wear == Wear(corrected=0, uncorrected=0, retired_pages=2, retirement_pending=False)
    assert gpus[2].wear == CLEAN


async def test_mig_devices_are_read_as_what_they_are(played) -> None:
    played.play("mig")

    parent, plain = (await played.nvml().read()).gpus

    assert (parent.mig, plain.mig, plain.mig_devices) == (True, False, ())
    assert parent.mig_devices == (
        MigDevice("MIG-aaaaaaaa-0000-5000-8000-000000000000", "3g.40gb"),
        MigDevice("MIG-bbbbbbbb-0000-5000-8000-000000000000", "1g.10gb"),
        MigDevice("MIG-cccccccc-0000-5000-8000-000000000000", "1g.10gb"),
    )
    assert parent.wear.remapped_rows is None  # not reported in MIG mode


async def test_a_mig_device_that_does_not_report_its_name_leaves_the_others(played) -> None:
    played.play("mig")
    played.change({"gpu.0.mig.0.uuid": "\udcff", "gpu.0.mig.1.name": "NVIDIA A100"})

    parent = (await played.nvml().read()).gpus[0]

    assert [mig.profile for mig in parent.mig_devices] == ["", "1g.10gb"]
    assert parent.problems[0].startswith("nvmlDeviceGetUUID: not text")


async def test_cards_that_die_report_how_far_gone_they_are(played) -> None:
    played.play("dying")

    reading = await played.nvml().read()

    well, wants_reset, worn = reading.gpus
    assert (well.recovery, well.wear.uncorrected) == (RecoveryAction.NONE, 0)
    assert (wants_reset.recovery, wants_reset.wear.uncorrected) == (RecoveryAction.RESET, 2)
    assert (wants_reset.wear.remapped_rows, wants_reset.wear.remap_pending) == (10, True)
    assert (worn.wear.remap_failed, worn.wear.remap_pending) == (True, False)
    assert well.fabric == Fabric(FabricState.COMPLETED, 0, "ab" * 16, 7)
    assert reading.lost == (LostCard(3, None, reset=False, message="GPU is lost"),)


async def test_a_card_that_was_seen_alive_is_lost_by_name(played) -> None:
    played.play("a100x8")
    nvml = played.nvml()
    await nvml.read()

    played.change({"gpu.2.lost": "1", "gpu.5.error.nvmlDeviceGetHandleByIndex_v2": "16"})
    reading = await nvml.read()

    assert [gpu.minor for gpu in reading.gpus] == [0, 1, 3, 4, 6, 7]
    assert reading.lost == (
        LostCard(2, "GPU-a1000000-0000-4000-8000-000000000002", reset=False, message="GPU is lost"),
        LostCard(5, "GPU-a1000000-0000-4000-8000-000000000005", reset=True, message="GPU requires restart"),
    )


ONE_READING: dict[str, tuple[dict[str, str | None], dict[str, object]]] = {
    "no minor number": ({"gpu.0.minor": None}, {"minor": 0}),
    "a minor number that none can be": ({"gpu.0.minor": "4294967295"}, {"minor": 0}),
    "the largest minor number": ({"gpu.0.minor": "1048575"}, {"minor": 1048575}),
    "a minor number beyond the largest": ({"gpu.0.minor": "1048576"}, {"minor": 0}),
    "no name": ({"gpu.0.name": None}, {"model": ""}),
    "no memory size, as where it is the host's": ({"gpu.0.memory": None}, {"memory": None}),
    "no PCI address": ({"gpu.0.bus": None}, {"bus": None, "pcie_root": None, "numa_node": None}),
    "a PCI address that is no text": ({"gpu.0.bus": "\udcff"}, {"bus": None, "pcie_root": None, "numa_node": None}),
    "a PCI address in no sysfs": (
        {"gpu.0.bus": "00010000:3B:00.0"},
        {"bus": "10000:3b:00.0", "pcie_root": None, "numa_node": 0},
    ),
    "memory near one NUMA node": ({"gpu.0.memory_affinity": "4"}, {"numa_node": 2}),
    "memory near the last NUMA node of the first word": (
        {"gpu.0.memory_affinity": "8000000000000000"},
        {"numa_node": 63},
    ),
    "memory near a NUMA node of the third word": ({"gpu.0.memory_affinity": "0 0 2"}, {"numa_node": 129}),
    "memory near several NUMA nodes": ({"gpu.0.memory_affinity": "6"}, {"numa_node": 0}),
    "no compute capability": ({"gpu.0.capability": None}, {"compute_capability": None}),
    "no error correction": (
        {"gpu.0.ecc": None, "gpu.0.corrected": None, "gpu.0.uncorrected": None},
        {"wear": Wear(remapped_rows=0, remap_pending=False, remap_failed=False, sram_worn=False, repair_pending=False)},
    ),
    "no Xid events": ({"gpu.0.event_types": None}, {"xid_events": False}),
    "Xid events not among those reported": ({"gpu.0.event_types": "1"}, {"xid_events": False}),
    "a fabric that is being joined": (
        {"gpu.0.fabric": "2 0 0"},
        {"fabric": Fabric(FabricState.IN_PROGRESS, 0, "ab" * 16, 0)},
    ),
    "a restart asked for": ({"gpu.0.recovery_action": "2"}, {"recovery": RecoveryAction.REBOOT}),
    "an action of a driver to come": ({"gpu.0.recovery_action": "77"}, {"recovery": RecoveryAction.OTHER}),
    "a link that is down": (
        {"gpu.0.link.0": "down", "gpu.0.link.1": "gpu 00000000:0A:00.0"},
        {"links": (Link(Peer.GPU, "0000:0a:00.0"),)},
    ),
    "a link to a processor": ({"gpu.0.link.0": "cpu"}, {"links": (Link(Peer.OTHER, None),)}),
    "readings that fail": (
        {"gpu.0.error.nvmlDeviceGetName": "999", "gpu.0.error.nvmlDeviceGetRepairStatus": "4"},
        {"problems": ("nvmlDeviceGetName: Unknown Error", "nvmlDeviceGetRepairStatus: Insufficient Permissions")},
    ),
    "a name that is no text": ({"gpu.0.name": "\udcff"}, {"model": ""}),  # byte ff
}


@pytest.mark.parametrize(("changes", "expected"), ONE_READING.values(), ids=ONE_READING)
async def test_each_reading_stands_for_itself(played, changes, expected) -> None:
    played.play("h200")
    played.pci("0000:00:06.0", "pci0000:00", "-1")
    played.numa_nodes("0")
    played.change(changes)

    (gpu,) = (await played.nvml().read()).gpus

    assert gpu.uuid == H200
    assert {name: getattr(gpu, name) for name in expected} == expected


@pytest.mark.parametrize(("reported", "cuda"), [("12090", "12.9"), ("11070", "11.7"), ("13010", "13.1")])
async def test_the_version_of_cuda_is_written_as_nvidia_writes_it(played, reported: str, cuda: str) -> None:
    played.play("h200")
    played.change({"cuda": reported})

    assert (await played.nvml().read()).driver.cuda == cuda


async def test_a_card_whose_uuid_is_no_text_is_not_taken_for_one(played) -> None:
    played.play("h200")
    played.change({"gpu.0.uuid": "\udcff"})

    reading = await played.nvml().read()

    assert reading.gpus == ()
    (lost,) = reading.lost
    assert (lost.index, lost.uuid, lost.reset) == (0, None, False)
    assert lost.message.startswith("its UUID is not text")


async def test_the_processes_on_a_card_are_those_of_all_kinds_once_each(played) -> None:
    played.play("h200")
    played.change({"gpu.0.processes": "30:1048576 7:-", "gpu.0.graphics": "12:5", "gpu.0.mps": "30:2097152 12:3 7:-"})

    processes = await played.nvml().processes(H200)

    assert processes == (GpuProcess(7, None), GpuProcess(12, 5), GpuProcess(30, 2097152))


async def test_the_processes_on_a_mig_device_can_be_listed(played) -> None:
    played.play("mig")
    played.change({"gpu.0.mig.1.processes": "41:100"})

    assert await played.nvml().processes("MIG-bbbbbbbb-0000-5000-8000-000000000000") == (GpuProcess(41, 100),)


UNLISTED: dict[str, tuple[str, dict[str, str | None], str]] = {
    "a card that is not there": ("GPU-other", {}, "GPU-other: its processes cannot be listed: Not Found"),
    "a card that fell off the bus": (H200, {"gpu.0.lost": "1"}, "GPU is lost"),
    "a card that reports only half": (H200, {"gpu.0.error.nvmlDeviceGetGraphicsRunningProcesses_v3": "999"}, "Unknown"),
}


@pytest.mark.parametrize(("uuid", "changes", "message"), UNLISTED.values(), ids=UNLISTED)
async def test_processes_that_cannot_be_listed_are_never_taken_for_none(played, uuid, changes, message) -> None:
    played.play("h200")
    nvml = played.nvml()
    await nvml.read()
    pid = nvml.pid
    played.change(changes)

    with pytest.raises(NvmlRefusedError, match=message):
        await nvml.processes(uuid)

    assert nvml.pid == pid  # a problem of this question, not of NVML


def test_a_device_behind_bridges_hangs_on_its_root_complex(played) -> None:
    played.pci("0000:3b:00.0", "pci0000:3a", "1", between="0000:3a:00.0/0000:3b:08.0")

    assert files.pcie_root(played.sysfs, "0000:3b:00.0") == "pci0000:3a"
    assert files.numa_node(played.sysfs, "0000:3b:00.0") == 1


def test_a_device_that_sysfs_does_not_list_is_nowhere(played) -> None:
    played.numa_nodes("0-1")

    assert files.pcie_root(played.sysfs, "0000:3b:00.0") is None
    assert files.numa_node(played.sysfs, "0000:3b:00.0") is None


NUMA = {
    "told": ("1", "0-1", 1),
    "told, the first": ("0", "0-1", 0),
    "not reported, one node": ("-1", "0", 0),
    "not reported, two nodes": ("-1", "0-1", None),
    "not reported, nodes unknown": ("-1", None, None),
    "no number": ("many", "0-1", None),
    "empty": ("", "0-1", None),
}


@pytest.mark.parametrize(("told", "nodes", "expected"), NUMA.values(), ids=NUMA)
def test_the_numa_node_is_what_the_device_reports_or_the_only_one_there_is(played, told, nodes, expected) -> None:
    played.pci("0000:00:06.0", "pci0000:00", told)
    if nodes is not None:
        played.numa_nodes(nodes)

    assert files.numa_node(played.sysfs, "0000:00:06.0") == expected


def test_links_in_a_circle_lead_nowhere(played) -> None:
    folder = played.sysfs / "bus" / "pci" / "devices"
    folder.mkdir(parents=True)
    (folder / "0000:00:06.0").symlink_to("0000:00:06.0")

    assert files.pcie_root(played.sysfs, "0000:00:06.0") is None
    assert files.numa_node(played.sysfs, "0000:00:06.0") is None


def test_a_file_that_is_no_text_is_unknown(played) -> None:
    played.pci("0000:00:06.0", "pci0000:00", "0")
    (played.sysfs / "devices" / "pci0000:00" / "0000:00:06.0" / "numa_node").write_bytes(b"\xff\xfe")

    assert files.numa_node(played.sysfs, "0000:00:06.0") is None


def test_the_nodes_run_is_named_where_it_is_known(played) -> None:
    assert files.boot_id(played.proc) == ""

    played.boot("7ede3d37-5422-49c3-b733-fc82e3803a4b")

    assert files.boot_id(played.proc) == "7ede3d37-5422-49c3-b733-fc82e3803a4b"


def test_the_time_of_the_boot_is_looked_for_in_a_mebibyte(played) -> None:
    assert files.booted_at(played.proc) == 0.0
    played.proc.mkdir(exist_ok=True)
    for before, found in ((0, 1764000000.0), (2**20 - 18, 1764000000.0), (2**20 - 1, 0.0)):
        text = "cpu 1 2\nbtime 1764000000\n" if not before else f"{'x' * before}\nbtime 1764000000\n"
        (played.proc / "stat").write_text(text)
        assert files.booted_at(played.proc) == found
