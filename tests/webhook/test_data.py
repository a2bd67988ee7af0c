"""Data files of the package: found by the folder's name, or said to be missing with where they were looked for."""

import pytest

from console.data import MissingDataError, data_folder


@pytest.mark.parametrize("name", ["charts", "examples"])
def test_a_folder_is_found_beside_the_package(name: str) -> None:
    found = data_folder(name)
    assert found.is_dir()
    assert found.name == name


def test_a_folder_that_is_missing_is_said_to_be_with_both_places() -> None:
    with pytest.raises(MissingDataError, match=r"no folder nonsense in .* or .*/console/data; install again"):
        data_folder("nonsense")
