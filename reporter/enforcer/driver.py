"""The driver's limits of cgroups' memory (R615): set, read back, and taken back where their container has gone.

NVML runs in a process of its own, which is started and asked before a container needs it. The runtime waits for each
answer and makes no other call meanwhile.
"""

import asyncio
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Final

from reporter.cgroup.layout import container_id
from reporter.enforcer.model import CardLimit
from reporter.gpu.facts import MemoryLimit
from reporter.gpu.guarded import GuardedNvml, NvmlRefusedError, NvmlUnavailableError, Patience

SECONDS: Final = 0.5
# A hang is noticed, and the process killed, within the time of one answer.
PATIENCE: Final = Patience(answer=0.4, longest_pause=30.0)
_CGROUPS: Final = Path("/sys/fs/cgroup")
_KUBEPODS: Final = ("kubepods", "kubepods.slice", "*/kubepods", "*/*-kubepods.slice")  # the latter below a cgroupRoot
_PROBE: Final = "koordgate-probe"
_PROBE_BYTES: Final = 64 * 2**20
_MIG: Final = "MIG-"
_AT_ONCE: Final = 256  # readings, while which a container waits
_VERSION: Final = (
    "the driver keeps limits in cgroup v2, and this node has cgroup v1 at {cgroups}: boot it with "
    "systemd.unified_cgroup_hierarchy=1"
)


class CardLimits:
    """The driver's limits on this node.

    `nvml`: its process, deaf. `cgroups`: where the host's cgroup v2 hierarchy is mounted, as on the host. `seconds`:
    how long setting limits may take in all.
    """

    def __init__(self, nvml: GuardedNvml, cgroups: Path = _CGROUPS, seconds: float = SECONDS) -> None:
        self._nvml = nvml
        self._cgroups = cgroups
        self._seconds = seconds
        self._turn = asyncio.Lock()  # so that nothing comes between reading a limit and setting it
        self._probing = asyncio.Lock()  # one at a time has the cgroup for it
        self._soft: set[tuple[str, str]] = set()  # card and cgroup of those that may have a soft limit
        self._cards: tuple[str, ...] = ()
        self._left: frozenset[str] | None = None  # the containers that there are, as long as a sweep is due
        self._since: set[str] = set()  # the cgroups that were limited since
        self._changes = 0  # how often soft limits were set
        self._back: asyncio.Task[None] | None = None

    async def limit(self, limits: Sequence[CardLimit]) -> dict[CardLimit, str]:
        """Set limits and read them back; returns those that are not in force, why, and the cure.

        A soft limit of 0 takes back one that was set here. Of any other cgroup it leaves the soft limit alone: the
        driver adds to that of a Pod those of its containers.
        """
        if not limits:
            return {}
        self._since.update(one.cgroup for one in limits)
        wanted = tuple(MemoryLimit(one.card, one.cgroup, self._soft_of(one), one.hard) for one in limits)
        self._soft.update((one.card, one.cgroup) for one in limits if one.soft)
        self._changes += any(one.soft for one in limits)
        try:
            async with asyncio.timeout(self._seconds), self._turn:
                problems = await self._nvml.limit(wanted)
        except TimeoutError:
            outage = self._nvml.outage
            late = f"NVML did not answer within {self._seconds:g} s: it has just started, or the driver hangs"
            why = late if outage is None else outage.message
        except NvmlUnavailableError as error:
            why = str(error)
        else:
            self._soft.difference_update((one.card, one.cgroup) for one in limits if not one.soft)
            return {one: problem for one, problem in zip(limits, problems, strict=True) if problem}
        self._come_back()
        return dict.fromkeys(limits, why)

    async def look(self, cards: Collection[str]) -> str | None:
        """Try whether limits can be kept, and take back soft limits that are due; returns why not, and the cure.

        None: that is not known, because there are no cards. It takes up to a minute if the driver wakes cards.
        """
        self._cards = tuple(sorted(card for card in cards if not card.startswith(_MIG)))
        if not (self._cgroups / "cgroup.controllers").is_file():
            return _VERSION.format(cgroups=self._cgroups)
        if not cards:
            return None
        if not self._cards:
            return "the driver keeps no limits on cards in MIG mode: MIG itself keeps them"
        try:
            async with self._probing:
                return await self._probe()
        except NvmlUnavailableError as error:
            self._come_back()
            return str(error)

    def sweep(self, containers: Collection[str], limits: Collection[CardLimit]) -> None:
        """Have soft limits taken back that containers left which are no more, as soon as the driver answers.

        `containers`: the ids of those that there are. `limits`: those that are to be in force.
        """
        self._left = frozenset(containers)
        self._since = {one.cgroup for one in limits}
        if self._cards:
            self._come_back()

    async def aclose(self) -> None:
        """End the NVML process."""
        if self._back is not None:
            self._back.cancel()
            with suppress(asyncio.CancelledError):
                await self._back
        await self._nvml.aclose()

    def _soft_of(self, limit: CardLimit) -> int | None:
        return limit.soft if limit.soft or (limit.card, limit.cgroup) in self._soft else None

    def _come_back(self) -> None:
        """See that the NVML process is there again, and has answered, before it is needed."""
        if self._back is None or self._back.done():
            self._back = asyncio.create_task(self._try())

    async def _try(self) -> None:
        while self._cards:
            try:
                async with self._probing:
                    await self._probe()
            except NvmlUnavailableError as error:
                await asyncio.sleep(error.retry_seconds)
            else:
                return

    async def _probe(self) -> str:
        """Limit a cgroup without processes beside those of Pods: only that tells whether limits can be kept.

        Raises NvmlUnavailableError: NVML does not answer, or a retry is not due.
        """
        folder = next(self._kubepods(), self._cgroups) / _PROBE
        try:
            folder.mkdir(exist_ok=True)
        except OSError as error:
            return (
                f"{folder} cannot be made ({error.strerror}): mount {self._cgroups} of the host writable, at this path"
            )
        try:
            problems = await self._nvml.limit(
                tuple(MemoryLimit(card, str(folder), 0, _PROBE_BYTES) for card in self._cards)
            )
            await self._nvml.limit(tuple(MemoryLimit(card, str(folder), 0, None) for card in self._cards))
        finally:
            with suppress(OSError):
                folder.rmdir()
        if self._left is not None:
            await self._take_back(self._left)
        return "" if "" in problems else problems[0]

    def _kubepods(self) -> Iterator[Path]:
        return (folder for pattern in _KUBEPODS for folder in sorted(self._cgroups.glob(pattern)))

    async def _take_back(self, containers: frozenset[str]) -> None:
        """Lower soft limits, from the innermost cgroups outwards, to what is guaranteed below them.

        That is nothing below a container that is no more. Where it has gone with its cgroup, those above still count
        it. Raises NvmlUnavailableError: NVML does not answer any more.
        """
        levels = await asyncio.to_thread(lambda: [_levels(folder) for folder in self._kubepods()])
        below: defaultdict[tuple[str, Path], int] = defaultdict(int)
        changes = self._changes
        with suppress(NvmlRefusedError):
            for folders in (folders for of_one in levels for folders in reversed(of_one)):
                asked = iter([(card, folder) for folder in folders for card in self._cards])
                while chunk := tuple(islice(asked, _AT_ONCE)):
                    async with self._turn:
                        if self._changes != changes:
                            return  # What was read may not be so any more. It is due again.
                        await self._lower(chunk, containers, below)
            if self._left is containers:
                self._left = None
        self._soft = {(card, cgroup) for card, cgroup in self._soft if Path(cgroup).is_dir()}  # noqa: ASYNC240

    async def _lower(
        self,
        chunk: tuple[tuple[str, Path], ...],
        containers: frozenset[str],
        below: defaultdict[tuple[str, Path], int],
    ) -> None:
        found = await self._nvml.memory(tuple((card, str(folder)) for card, folder in chunk))
        lower: list[MemoryLimit] = []
        for (card, folder), memory in zip(chunk, found, strict=True):
            soft = memory.soft
            lives = container_id(folder.name) in containers or str(folder) in self._since
            if not lives and soft > below[card, folder]:
                soft = below[card, folder]
                lower.append(MemoryLimit(card, str(folder), soft, memory.hard))
            below[card, folder.parent] += soft
        if lower:
            await self._nvml.limit(tuple(lower))


def _levels(top: Path) -> list[list[Path]]:
    """The cgroups from one down to those of containers, by depth."""
    levels = [[top]]
    while levels[-1]:
        levels.append([])
        for folder in levels[-2]:
            if not container_id(folder.name):
                with suppress(OSError):  # it has gone meanwhile
                    levels[-1] += [one for one in sorted(folder.iterdir()) if one.is_dir()]
    return levels[:-1]
