"""RDMA NICs, FPGAs and configured types, read from realistic trees of sysfs."""

import shutil

import pytest
from sysfs_tree import Machine

from reporter.inventory import FPGAS, PciDevice, PciMatch, read_devices

CX7 = "0000:3b:00.0"


def one(machine: Machine, *matches: PciMatch) -> PciDevice:
    (found,) = read_devices(machine.sysfs, (*matches, *FPGAS))
    return found


def test_a_nic_is_reported_with_its_place_and_the_number_of_its_name(machine: Machine) -> None:
    machine.rdma("mlx5_3", CX7, root="pci0000:3a", numa=1)

    assert one(machine) == PciDevice("rdma", CX7, 3, "mlx5_3", numa_node=1, pcie_root="pci0000:3a")


def test_a_nic_behind_switches_hangs_on_the_root_of_all_of_them(machine: Machine) -> None:
    machine.rdma("mlx5_0", CX7, root="pci0000:80", between="0000:80:01.0/0000:81:00.0")

    assert one(machine).pcie_root == "pci0000:80"


@pytest.mark.parametrize(
    ("states", "reason", "problem"),
    [
        (("4: ACTIVE",), "", ""),
        (("4: ACTIVE", "4: ACTIVE"), "", ""),
        (("4: ACTIVE", "1: DOWN"), "LinkDown", "port 2 is DOWN"),
        (("", "1: DOWN"), "LinkDown", "port 1 is unknown; port 2 is DOWN"),
        (("2: INIT",), "LinkDown", "port 1 is INIT"),
        (("",), "LinkUnknown", "port 1 is unknown"),
        (("INACTIVE",), "LinkDown", "port 1 is INACTIVE"),
        ((), "NoPort", "it has no port that can be read"),
    ],
    ids=["active", "both", "one down", "empty and down", "initialising", "empty", "a word that ends alike", "no port"],
)
def test_a_nic_can_be_used_only_with_all_its_ports_active(
    machine: Machine, states: tuple[str, ...], reason: str, problem: str
) -> None:
    machine.rdma("mlx5_0", CX7, states)

    found = one(machine)
    assert (found.reason, found.problem) == (reason, problem)


def test_virtual_functions_come_with_their_nic_by_bus_id_and_are_no_nics_themselves(machine: Machine) -> None:
    nic = machine.rdma("mlx5_0", CX7)
    machine.virtual(nic, 0, "0000:3b:00.4")
    machine.virtual(nic, 1, "0000:3b:00.3", name="mlx5_1")

    assert one(machine).functions == ("0000:3b:00.3", "0000:3b:00.4")


@pytest.mark.parametrize(
    ("names", "minors"),
    [
        (("mlx5_0", "mlx5_1"), [0, 1]),
        (("mlx5_4", "mlx5_2"), [4, 2]),
        (("mlx4_0", "mlx5_0"), [0, 1]),
        (("irdma0", "mlx5_0"), [1, 0]),
        (("rocep1s0", "irdma0", "bnxt_re0"), [0, 1, 2]),
    ],
    ids=["in order", "as named", "two drivers with one number", "a name without one", "none of them"],
)
def test_no_two_nics_have_one_minor_and_mlx_names_keep_theirs(
    machine: Machine, names: tuple[str, ...], minors: list[int]
) -> None:
    for number, name in enumerate(names):
        machine.rdma(name, f"0000:{0x10 + number:02x}:00.0")

    found = {device.name: device.minor for device in read_devices(machine.sysfs)}

    assert [found[name] for name in names] == minors


@pytest.mark.parametrize(
    ("vendor", "device", "code", "found"),
    [
        (0x10EE, 0x5004, 0x120000, True),
        (0x1172, 0x1234, 0x120000, True),
        *((0x8086, device, 0x120000, True) for device in (0x09C4, 0x0B2B, 0x0B30, 0xBCCE)),
        (0x10EE, 0x5004, 0x020000, False),
        (0x8086, 0x1592, 0x020000, False),
        (0x10DE, 0x2335, 0x030200, False),
    ],
    ids=["Alveo", "Altera", "A10", "N3000", "D5005", "IPU", "Xilinx NIC", "Intel NIC", "GPU"],
)
def test_fpgas_are_known_by_maker_and_class_or_id(
    machine: Machine,
    vendor: int,
    device: int,
    code: int,
    found: bool,  # noqa: FBT001 a parameter of the test
) -> None:
    machine.pci("0000:17:00.0", vendor, device, code)

    assert [one.type for one in read_devices(machine.sysfs)] == ["fpga"] * found


def test_the_functions_of_one_slot_are_one_card_represented_by_its_first(machine: Machine) -> None:
    for function in (1, 0):
        machine.pci(f"0000:17:00.{function}", 0x10EE, 0x5004 + function, 0x120000)
    machine.pci("0000:18:00.0", 0x10EE, 0x5004, 0x120000)

    assert [(one.bus, one.minor) for one in read_devices(machine.sysfs)] == [("0000:17:00.0", 0), ("0000:18:00.0", 1)]


def test_a_type_may_be_of_one_sub_class_only(machine: Machine) -> None:
    for number, code in enumerate([0x0B4001, 0x0B8001, 0x0C4001, 0x0B4000]):
        machine.pci(f"0000:2{number}:00.0", 0x1234, number, code)
    match = PciMatch("coprocessor", vendor=0x1234, base_class=0x0B, sub_class=0x40)

    assert [device.bus for device in read_devices(machine.sysfs, (match,))] == ["0000:20:00.0", "0000:23:00.0"]


def test_a_type_of_ones_own_comes_before_what_is_built_in(machine: Machine) -> None:
    machine.pci("0000:17:00.0", 0x10EE, 0x5004, 0x120000, numa=-1)

    assert one(machine, PciMatch("dsp", vendor=0x10EE, device=0x5004)).type == "dsp"


@pytest.mark.parametrize(
    ("states", "reason", "problem"),
    [
        (("up",), "", ""),
        (("down", "up"), "", ""),
        (("down",), "LinkDown", "interface eth0 is down"),
        (("unknown",), "LinkUnknown", "interface eth0 is unknown"),
        ((), "", ""),
    ],
    ids=["up", "one of two", "down", "unknown", "no network device"],
)
def test_a_device_with_interfaces_needs_one_that_is_up(
    machine: Machine, states: tuple[str, ...], reason: str, problem: str
) -> None:
    place = machine.pci("0000:17:00.0", 0x1D0F, 0xEFA1, 0x020000)
    for number, state in enumerate(states):
        machine.interface(place, f"eth{number}", state)

    found = one(machine, PciMatch("efa", vendor=0x1D0F, device=0xEFA1))
    assert (found.reason, found.problem) == (reason, problem)


@pytest.mark.parametrize("states", [(), ("down",)], ids=["no network device", "a link that is down"])
def test_a_card_that_fell_off_the_bus_says_nothing_but_ones_and_that_is_why_its_link_is_down(
    machine: Machine, states: tuple[str, ...]
) -> None:
    place = machine.pci("0000:17:00.0", 0x10EE, 0x5004, 0x120000, config=b"\xff" * 64)
    for state in states:
        machine.interface(place, "eth0", state)

    assert one(machine).reason == "FallenOffBus"
    assert "fallen off the bus" in one(machine).problem


def test_rubbish_where_numbers_should_be_is_no_device_and_no_error(machine: Machine) -> None:
    place = machine.pci("0000:17:00.0", 0x10EE, 0x5004, 0x120000)
    (place / "vendor").write_bytes(b"\xff\xfe\0")
    machine.file("class/infiniband/mlx5_9/ports", "not a folder")

    assert read_devices(machine.sysfs) == ()


def test_a_device_that_does_not_say_which_it_is_has_no_type(machine: Machine) -> None:
    place = machine.pci("0000:17:00.0", 0x1D0F, 0xEFA1, 0x020000)
    anything = PciMatch("efa", vendor=0x1D0F)
    assert len(read_devices(machine.sysfs, (anything,))) == 1

    (place / "device").write_text("?")

    assert read_devices(machine.sysfs, (anything,)) == ()


def test_without_sysfs_there_is_nothing(machine: Machine) -> None:
    shutil.rmtree(machine.folder)

    assert read_devices(machine.sysfs) == ()
