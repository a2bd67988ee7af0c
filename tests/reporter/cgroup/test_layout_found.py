"""Which of the kubelet's cgroup trees counts."""

import pytest

from reporter.cgroup.enforcer import Hierarchy, HierarchyError, find_layout
from reporter.cgroup.layout import Driver, Version


@pytest.mark.parametrize("driver", Driver)
def test_of_two_trees_that_of_the_stated_driver_counts(tmp_path, driver) -> None:
    for folder in ("kubepods", "kubepods.slice"):
        (tmp_path / folder).mkdir()
    assert find_layout(Hierarchy(tmp_path, Version.V2), "/", str(driver)).driver is driver


def test_the_one_tree_that_is_there_counts_whatever_is_stated(tmp_path) -> None:
    (tmp_path / "kubepods.slice").mkdir()
    assert find_layout(Hierarchy(tmp_path, Version.V2), "/", "cgroupfs").driver is Driver.SYSTEMD


@pytest.mark.parametrize(("folders", "stated"), [(["kubepods", "kubepods.slice"], ""), ([], "systemd")])
def test_without_a_tree_or_a_word_on_two_of_them_nothing_is_guessed(tmp_path, folders, stated) -> None:
    for folder in folders:
        (tmp_path / folder).mkdir()
    with pytest.raises(HierarchyError, match="cgroupDriver"):
        find_layout(Hierarchy(tmp_path, Version.V2), "/", stated)
