"""Files and folders of sysfs and procfs are read with bounds, whoever wrote them."""

from pathlib import Path

import pytest
from sysfs_tree import Machine

from reporter import files
from reporter.host import has_nvidia


@pytest.mark.parametrize(("read", "most"), [(files.word, 64), (files.text, 65536)])
def test_no_more_of_a_file_is_read_than_it_should_have(tmp_path: Path, read, most: int) -> None:
    file = tmp_path / "file"
    file.write_text(" " + "x" * 70000)

    assert read(file) == "x" * (most - 1)


def test_what_is_no_readable_file_is_unknown(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("../mlx5_0")

    for path in (tmp_path, tmp_path / "missing", tmp_path / "null\0"):
        assert (files.text(path), files.number(path), files.cpu_list(path)) == (None, None, None)
    assert files.names(tmp_path / "missing") == []
    assert files.target(tmp_path / "missing") is None
    assert files.target(tmp_path / "link") == "mlx5_0"


def test_a_set_that_cannot_be_read_is_unknown_and_an_empty_one_is_empty(tmp_path: Path) -> None:
    for text, meant in (("0-2,4\n", 0b10111), ("\n", 0), ("0-", None)):
        (tmp_path / "list").write_text(text)
        assert files.cpu_list(tmp_path / "list") == meant


def test_of_a_large_folder_8192_names_are_read(tmp_path: Path) -> None:
    for number in range(8193):
        (tmp_path / str(number)).symlink_to("x")

    assert len(files.names(tmp_path)) == 8192


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
