"""The place of a PCI device, from recorded trees of sysfs, some of them invalid."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reporter.gpu import sysfs

ADDRESSES = {
    "as NVML spells it": ("00000000:3B:00.0", "0000:3b:00.0"),
    "as sysfs spells it": ("0000:3b:00.0", "0000:3b:00.0"),
    "a domain beyond 16 bits": ("00010001:AF:1F.7", "10001:af:1f.7"),
    "no function": ("0000:3b:00", None),
    "a way out of the folder": ("../../etc", None),
    "a line too many": ("0000:3b:00.0\n", None),
    "nothing": ("", None),
}


@pytest.mark.parametrize(("text", "expected"), ADDRESSES.values(), ids=ADDRESSES)
def test_an_address_is_spelled_as_sysfs_does_or_is_none(text, expected) -> None:
    assert sysfs.address(text) == expected


@given(st.text(alphabet="0123456789abcdefABCDEF:./\n", max_size=20))
def test_whatever_is_taken_for_an_address_is_a_plain_file_name(text) -> None:
    found = sysfs.address(text)
    assert found is None or ("/" not in found and found == found.strip() and sysfs.address(found) == found)


def test_a_device_behind_bridges_hangs_on_its_root_complex(played) -> None:
    played.pci("0000:3b:00.0", "pci0000:3a", "1", between="0000:3a:00.0/0000:3b:08.0")

    assert sysfs.pcie_root(played.sysfs, "0000:3b:00.0") == "pci0000:3a"
    assert sysfs.numa_node(played.sysfs, "0000:3b:00.0") == 1


def test_a_device_that_sysfs_does_not_list_is_nowhere(played) -> None:
    played.numa_nodes("0-1")

    assert sysfs.pcie_root(played.sysfs, "0000:3b:00.0") is None
    assert sysfs.numa_node(played.sysfs, "0000:3b:00.0") is None


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

    assert sysfs.numa_node(played.sysfs, "0000:00:06.0") == expected


def test_links_in_a_circle_lead_nowhere(played) -> None:
    folder = played.sysfs / "bus" / "pci" / "devices"
    folder.mkdir(parents=True)
    (folder / "0000:00:06.0").symlink_to("0000:00:06.0")

    assert sysfs.pcie_root(played.sysfs, "0000:00:06.0") is None
    assert sysfs.numa_node(played.sysfs, "0000:00:06.0") is None


def test_a_file_that_is_no_text_is_unknown(played) -> None:
    played.pci("0000:00:06.0", "pci0000:00", "0")
    (played.sysfs / "devices" / "pci0000:00" / "0000:00:06.0" / "numa_node").write_bytes(b"\xff\xfe")

    assert sysfs.numa_node(played.sysfs, "0000:00:06.0") is None


def test_the_nodes_run_is_named_where_it_is_known(played) -> None:
    assert sysfs.boot_id(played.proc) == ""

    played.boot("7ede3d37-5422-49c3-b733-fc82e3803a4b")

    assert sysfs.boot_id(played.proc) == "7ede3d37-5422-49c3-b733-fc82e3803a4b"


def test_the_time_of_the_boot_is_looked_for_in_a_mebibyte(played) -> None:
    assert sysfs.booted(played.proc) == 0.0
    played.proc.mkdir(exist_ok=True)
    for before, found in ((0, 1764000000.0), (2**20 - 18, 1764000000.0), (2**20 - 1, 0.0)):
        text = "cpu 1 2\nbtime 1764000000\n" if not before else f"{'x' * before}\nbtime 1764000000\n"
        (played.proc / "stat").write_text(text)
        assert sysfs.booted(played.proc) == found


def test_256_bytes_of_a_small_file_are_read(played) -> None:
    played.boot("7" * 256 + "8")

    assert sysfs.boot_id(played.proc) == "7" * 256
