"""Whether a machine has a card of NVIDIA, by PCI ids: what is like one in one respect only is none."""

import pytest
from sysfs_tree import Machine

from reporter.host import has_nvidia

NVIDIA, OTHER = 0x10DE, 0x1002
MACHINES = {
    "no device": ([], False),
    "another maker's card": ([(OTHER, 0x030000)], False),
    "NVIDIA's switches": ([(NVIDIA, 0x068000), (NVIDIA, 0x068000)], False),
    "the sound of a card": ([(NVIDIA, 0x040300)], False),
    "a display card after others": ([(OTHER, 0x030000), (NVIDIA, 0x068000), (NVIDIA, 0x030000)], True),
    "an accelerator": ([(NVIDIA, 0x030200)], True),
}


@pytest.mark.parametrize(("devices", "found"), MACHINES.values(), ids=MACHINES)
def test_a_card_is_a_display_device_of_nvidia(
    machine: Machine,
    devices: list[tuple[int, int]],
    found: bool,  # noqa: FBT001 a parameter of the test
) -> None:
    for number, (vendor, code) in enumerate(devices):
        machine.pci(f"0000:0{number}:00.0", vendor, 0x2335, code)

    assert has_nvidia(machine.sysfs) is found


def test_a_device_whose_class_cannot_be_read_is_no_card(machine: Machine) -> None:
    machine.pci("0000:01:00.0", NVIDIA, 0x2335, 0x030200)
    (machine.sysfs / "bus" / "pci" / "devices" / "0000:01:00.0" / "class").unlink()

    assert not has_nvidia(machine.sysfs)
