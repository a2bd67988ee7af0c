"""The place of a PCI device, from recorded trees of sysfs, some of them invalid."""

import pytest

from reporter import files


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
