"""Files and folders of sysfs and procfs are read with bounds, whoever wrote them."""

from pathlib import Path

import pytest

from reporter import files


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
