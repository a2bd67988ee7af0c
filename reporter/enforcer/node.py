"""The node on which the enforcer works: the driver, folders and the MPS daemon behind one door (`Doors`)."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from allocator.vocabulary.delivery import LimitProvider
from reporter.enforcer.driver import PATIENCE, CardLimits
from reporter.enforcer.folders import Folders, write_preload
from reporter.enforcer.limits import LIBRARY, Rules
from reporter.enforcer.model import CardLimit, MpsShare
from reporter.enforcer.mps import Mps
from reporter.gpu.guarded import DriverRoots, GuardedNvml


class Node:
    """Implements `Doors`."""

    def __init__(self, rules: Rules, roots: DriverRoots) -> None:
        self._rules = rules
        self._limits = CardLimits(GuardedNvml(PATIENCE, roots, deaf=True))
        self._folders = Folders(Path(rules.caches))
        self._mps = Mps(rules.pipe) if rules.pipe else None

    async def limit(self, limits: Sequence[CardLimit]) -> Mapping[CardLimit, str]:
        """Set limits and read them back; returns those that are not in force, and why."""
        return await self._limits.limit(limits)

    async def empty(self, folders: Sequence[str]) -> str:
        """Make folders that are empty and writable for everybody; returns why that failed."""
        return await self._folders.empty(folders)

    async def remove(self, folders: Sequence[str]) -> None:
        """Remove such folders, as far as they are there."""
        await self._folders.remove(folders)

    async def sweep(self, containers: Collection[str], limits: Collection[CardLimit]) -> None:
        """Remove what containers left that are no more."""
        self._limits.sweep(containers, limits)
        await self._folders.sweep(containers)
        if self._mps is not None:
            await self._mps.sweep(containers)

    async def share(self, share: MpsShare) -> str:
        """Have the MPS daemon make or change a namespace; returns why that failed."""
        return await self._mps.share(share) if self._mps is not None else ""

    async def unshare(self, share: MpsShare) -> None:
        """Have the MPS daemon delete a namespace."""
        if self._mps is not None and share.namespace:
            await self._mps.delete(share.namespace)

    async def look(self, provider: str, cards: Collection[str]) -> tuple[str | None, str]:
        """Look whether a provider's limits can be kept here."""
        if provider == LimitProvider.CGROUP:
            return await self._limits.look(cards), ""
        if provider == LimitProvider.HAMI_CORE and self._rules.library:
            return self._prepare_library(), ""
        if provider == LimitProvider.MPS and self._mps is not None:
            return await self._mps.look(cards)
        return None, ""

    async def aclose(self) -> None:
        """End what runs."""
        await self._limits.aclose()

    def _prepare_library(self) -> str:
        library = self._rules.library
        if not Path(library).is_file():
            return f"HAMi-core's library is not at {library} on this node: put it there"
        try:
            write_preload(Path(self._rules.preload), LIBRARY)
        except OSError as error:
            return f"{self._rules.preload} cannot be written ({error.strerror}): see the state folder"
        return ""
