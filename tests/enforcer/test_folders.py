"""The folders that containers write to: empty at each start, and whatever a tenant made of them goes."""

import os
import stat
from pathlib import Path

import pytest

from reporter.enforcer.folders import Folders, write_preload

ONE, TWO = "a" * 64, "b" * 64


@pytest.fixture
def folders(tmp_path: Path) -> Folders:
    return Folders(tmp_path / "caches")


def at(folders: Folders, name: str) -> Path:
    return folders._root / name


async def make(folders: Folders, *names: str) -> None:
    assert await folders.empty([str(at(folders, name)) for name in names]) == ""


async def test_a_container_gets_a_folder_that_everybody_may_write_to_and_nobody_else_reaches(folders) -> None:
    before = os.umask(0o077)
    try:
        await make(folders, ONE, TWO)
    finally:
        os.umask(before)
    assert {stat.S_IMODE(at(folders, name).stat().st_mode) for name in (ONE, TWO)} == {0o777}
    assert stat.S_IMODE(folders._root.stat().st_mode) == 0o700


async def test_it_is_empty_at_each_start(folders) -> None:
    await make(folders, ONE)
    (at(folders, ONE) / "shared").write_text("an earlier limit")
    await make(folders, ONE)
    assert list(at(folders, ONE).iterdir()) == []


async def test_it_goes_with_its_container_and_all_that_a_tenant_put_into_it(folders, tmp_path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").touch()
    await make(folders, ONE, TWO)
    handle = os.open(at(folders, ONE), os.O_RDONLY)
    for _ in range(3000):  # deeper than a path may be long, and than Python may call
        os.mkdir("d" * 50, dir_fd=handle)
        deeper = os.open("d" * 50, os.O_RDONLY, dir_fd=handle)
        os.close(handle)
        handle = deeper
    os.symlink(outside, "link", dir_fd=handle)
    os.mkfifo("pipe", dir_fd=handle)
    os.close(handle)
    (at(folders, ONE) / "link").symlink_to(outside)
    (at(folders, ONE) / "closed").mkdir(mode=0)
    (at(folders, ONE) / "-rf *\n").touch()
    await folders.remove([str(at(folders, ONE)), str(at(folders, "c" * 64))])
    assert [one.name for one in folders._root.iterdir()] == [TWO]
    assert (outside / "kept").exists()


async def test_what_a_tenant_put_a_link_in_place_of_is_not_followed(folders, tmp_path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir(mode=0o700)
    (outside / "kept").touch()
    await make(folders, TWO)
    at(folders, ONE).symlink_to(outside)
    await make(folders, ONE)
    assert not at(folders, ONE).is_symlink()
    assert (stat.S_IMODE(outside.stat().st_mode), [one.name for one in outside.iterdir()]) == (0o700, ["kept"])


async def test_at_the_start_the_folders_of_containers_that_are_no_more_go(folders) -> None:
    await folders.sweep([ONE])  # before there are any
    await make(folders, ONE, TWO)
    (at(folders, ONE) / "shared").touch()
    (at(folders, ".gone-from-an-earlier-process") / "in").mkdir(parents=True)
    (folders._root / "stray").touch()
    await folders.sweep([ONE])
    assert sorted(str(one.relative_to(folders._root)) for one in folders._root.rglob("*")) == [ONE, f"{ONE}/shared"]


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "a/b", "a" * 129, ".gone-x", "a\n"])
async def test_no_other_folder_is_made_or_removed(folders, name) -> None:
    told = await folders.empty([f"{folders._root}/{name}"])
    assert "is no folder of a container's" in told
    await make(folders, ONE)
    with pytest.raises(ValueError, match="is no folder of a container's"):
        await folders.remove([f"{folders._root}/{name}"])
    assert [one.name for one in folders._root.iterdir()] == [ONE]


async def test_a_folder_that_cannot_be_made_is_told_with_its_cure(tmp_path) -> None:
    (tmp_path / "file").touch()
    told = await Folders(tmp_path / "file" / "caches").empty([f"{tmp_path}/file/caches/{ONE}"])
    assert told.startswith("a folder for the container cannot be made (")
    assert told.endswith(f"see whether {tmp_path}/file/caches can be written")


def test_the_loaders_file_names_the_library_and_every_program_may_read_it(tmp_path) -> None:
    path = tmp_path / "ld.so.preload"
    write_preload(path, "/usr/local/vgpu/libvgpu.so")
    assert path.read_text() == "/usr/local/vgpu/libvgpu.so\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
