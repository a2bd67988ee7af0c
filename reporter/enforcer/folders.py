"""Folders that containers get to write to, one each, and the file that names HAMi-core's library.

What is in such a folder a tenant made: links to anywhere, folders in folders, as many as he likes. Nothing in it is
followed, and nobody waits for its removal.
"""

import asyncio
import os
import re
import stat
import uuid
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from reporter.files import write_whole

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}", re.ASCII)
_GONE: Final = ".gone-"  # begins no name of a container's
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_EVERYBODY: Final = 0o777
_SECONDS: Final = 0.5


class Folders:
    """Folders directly below one that is ours alone. `root`: that one."""

    def __init__(self, root: Path, seconds: float = _SECONDS) -> None:
        self._root = root
        self._seconds = seconds
        self._removing = asyncio.Lock()

    async def empty(self, folders: Sequence[str]) -> str:
        """Make folders that are empty and writable for everybody; returns why that failed, and the cure, or ""."""
        try:
            async with asyncio.timeout(self._seconds):
                await asyncio.to_thread(self._empty, folders)
        except TimeoutError:
            return f"{self._root}: the disk did not answer within {self._seconds:g} s"
        except (OSError, ValueError) as error:
            return f"a folder for the container cannot be made ({error}): see whether {self._root} can be written"
        return ""

    async def remove(self, folders: Collection[str]) -> None:
        """Remove such folders, as far as they are there; it takes as long as there is something in them."""
        await asyncio.to_thread(self._put_away, folders)
        await self._clear()

    async def sweep(self, containers: Collection[str]) -> None:
        """Remove the folders of all containers but those with these ids, and what an earlier process put away."""
        await asyncio.to_thread(self._put_others_away, frozenset(containers))
        await self._clear()

    def _empty(self, folders: Sequence[str]) -> None:
        self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
        names = [self._name(folder) for folder in folders]
        with _opened(self._root) as root:
            for name in names:
                _put_away(root, name)
                # Only by its handle: a mode that mkdir is given is cut by the umask.
                os.mkdir(name, 0o700, dir_fd=root)
                with _opened(name, root) as folder:
                    os.fchmod(folder, _EVERYBODY)

    def _put_away(self, folders: Collection[str]) -> None:
        with suppress(FileNotFoundError), _opened(self._root) as root:
            for folder in folders:
                _put_away(root, self._name(folder))

    def _put_others_away(self, containers: frozenset[str]) -> None:
        with suppress(FileNotFoundError), _opened(self._root) as root, os.scandir(root) as entries:
            for one in list(entries):
                if one.name not in containers and not one.name.startswith(_GONE):
                    _put_away(root, one.name)

    def _name(self, folder: str) -> str:
        """The name of a folder.

        Raises ValueError: it is none directly below ours.
        """
        above, _, name = folder.rpartition("/")
        if above != str(self._root) or not _NAME.fullmatch(name):
            raise ValueError(f"{folder} is no folder of a container's")
        return name

    async def _clear(self) -> None:
        async with self._removing:
            with suppress(FileNotFoundError):
                await asyncio.to_thread(self._remove_all)

    def _remove_all(self) -> None:
        with _opened(self._root) as root:
            stuck: set[str] = set()
            while _remove_one(root, stuck):
                pass


def write_preload(path: Path, library: str) -> None:
    """Write a file for containers' /etc/ld.so.preload.

    Raises OSError: as the file system does.
    """
    write_whole(path, f"{library}\n".encode())
    path.chmod(0o644)  # The loader reads it as whoever starts a program.


@contextmanager
def _opened(path: Path | str, above: int | None = None) -> Iterator[int]:
    handle = os.open(path, _FOLDER, dir_fd=above)
    try:
        yield handle
    finally:
        os.close(handle)


def _put_away(root: int, name: str) -> None:
    """Give the name free at once, however much is in the folder."""
    with suppress(FileNotFoundError):
        os.rename(name, f"{_GONE}{uuid.uuid4().hex}", src_dir_fd=root, dst_dir_fd=root)


def _remove_one(root: int, stuck: set[str]) -> bool:
    """Remove one thing that was put away, as far as that is possible; returns whether there may be more.

    Folders in it are put away as well, so that neither their depth nor their number needs memory. `stuck`: what cannot
    be removed; it is added to.
    """
    with os.scandir(root) as entries:
        names = (one.name for one in entries if one.name.startswith(_GONE))
        found = next((name for name in names if name not in stuck), None)
    if found is None:
        return False
    try:
        _empty_out(root, found)
    except FileNotFoundError:
        pass
    except OSError:
        stuck.add(found)
    return True


def _empty_out(root: int, found: str) -> None:
    if not stat.S_ISDIR(os.stat(found, dir_fd=root, follow_symlinks=False).st_mode):
        os.unlink(found, dir_fd=root)
        return
    emptied = False
    with _opened(found, root) as folder, os.scandir(folder) as entries:
        for one in entries:
            emptied = True
            if one.is_dir(follow_symlinks=False):
                os.rename(one.name, f"{_GONE}{uuid.uuid4().hex}", src_dir_fd=folder, dst_dir_fd=root)
            else:
                os.unlink(one.name, dir_fd=folder)
    if not emptied:  # Otherwise it is looked into again: the pass may have missed some.
        os.rmdir(found, dir_fd=root)
