"""The administrator's MPS daemon, asked through NVIDIA's own program; koordgate starts none.

A daemon of protocol 3 (R615) has servers, and a server namespaces, each with a folder by which clients reach it. A
client that does not reach its daemon runs without MPS, with the whole card, and nobody is told: so the daemon is asked
before each container that relies on it (NVIDIA, Multi-Process Service, "MPS v3 Interface").
"""

import asyncio
import csv
import os
import re
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from allocator.vocabulary.outcome import excerpt
from reporter.enforcer.limits import OUR_NAMESPACES, namespace
from reporter.enforcer.model import MpsShare

PROGRAM: Final = "nvidia-cuda-mps-control"
_OURS: Final = re.compile(rf"\b{OUR_NAMESPACES}[0-9a-z_]+\b", re.ASCII)
_CARD: Final = re.compile(r"GPU-[0-9a-fA-F-]{36}", re.ASCII)
_FAILED: Final = re.compile(r"error|fail|invalid|unrecognized|unknown|denied|cannot", re.IGNORECASE)
_SECONDS: Final = 0.5
_END_S: Final = 0.5
_FIELDS: Final = 4  # at least, of a line that tells of a server: name, uid, pid, status, pipe directory, cards and more
_CSV: Final = "--format=csv,noheader"


class MpsError(Exception):
    """The daemon did not do what it was asked for; the message says why, and the cure."""


@dataclass(frozen=True, slots=True)
class MpsServer:
    """A server of a daemon of protocol 3."""

    name: str
    cards: frozenset[str]  # UUIDs of those that it may use; empty for all


class Mps:
    """A daemon.

    `pipe`: its pipe directory. `seconds`: how long one answer, or all that are needed for a container, may take.
    `path`: where its program is, as PATH.
    """

    def __init__(self, pipe: str, seconds: float = _SECONDS, path: str | None = None) -> None:
        self._pipe = Path(pipe)
        self._seconds = seconds
        self._environment = {"PATH": path or os.environ.get("PATH", os.defpath), "CUDA_MPS_PIPE_DIRECTORY": pipe}
        self._server: str | None = None  # that containers have their namespaces in; None with protocol 2
        self._made: set[str] = set()  # the namespaces that were made here, and not deleted since
        self._there: set[str] | None = None  # those of the containers that there are, as long as a sweep is due

    async def look(self, cards: Collection[str]) -> tuple[str, str]:
        """Ask whether it answers, and by which protocol.

        `cards`: UUIDs of the node's. Returns why it cannot be used, and the cure, or ""; and the folder that has a
        folder for each namespace, "" with protocol 2.
        """
        try:
            async with asyncio.timeout(self._seconds):
                server = await self._find(frozenset(card for card in cards if _CARD.fullmatch(card)))
        except TimeoutError:
            return self._late(), ""
        except MpsError as error:
            return str(error), ""
        self._server = server
        await self._sweep()
        return "", str(self._pipe / server) if server else ""

    async def share(self, share: MpsShare) -> str:
        """Make or change a namespace, or ask only whether the daemon answers; returns why that failed, or ""."""
        try:
            async with asyncio.timeout(self._seconds):
                if self._server is None or not share.namespace:
                    await self._listed()
                else:
                    await self._make(share, self._server)
        except TimeoutError:
            return self._late()
        except MpsError as error:
            return str(error)
        return ""

    async def delete(self, name: str) -> None:
        """Delete a namespace, if it is there."""
        self._made.discard(name)
        if self._server is not None:
            with suppress(MpsError, TimeoutError):
                async with asyncio.timeout(self._seconds):
                    await self._ask("namespace", "delete", name, f"--server={self._server}")

    async def sweep(self, containers: Collection[str]) -> None:
        """Delete the namespaces of all containers but those with these ids, once the daemon's server is known."""
        self._there = {namespace(one) for one in containers}
        await self._sweep()

    async def _sweep(self) -> None:
        if self._server is None or self._there is None:
            return
        there = self._there
        with suppress(MpsError, TimeoutError):
            async with asyncio.timeout(self._seconds):
                listed = await self._ask("namespace", "list", f"--server={self._server}", _CSV)
            for name in sorted(set(_OURS.findall(listed)) - there - self._made):
                await self.delete(name)
            if self._there is there:
                self._there = None

    async def _find(self, cards: frozenset[str]) -> str | None:
        """The server that may use all cards; None with protocol 2.

        Raises MpsError: there is none, or no daemon answers.
        """
        try:
            servers = read_servers(await self._ask("server", "list", _CSV))
        except MpsError:  # a daemon that does not know the command, or none
            servers = ()
        if not servers:
            await self._listed()
            return None
        for server in servers:
            if not server.cards or server.cards >= cards:
                return server.name
        raise MpsError(
            "no server of the MPS daemon may use all cards of the node: make one, with `server create NAME "
            f"--allowed-devices={','.join(sorted(cards))} --uid=0`"
        )

    async def _listed(self) -> None:
        """See that the daemon answers.

        Raises MpsError: it does not.
        """
        said = await (self._ask(said="get_server_list") if self._server is None else self._ask("server", "list", _CSV))
        if self._server is None and any(not line.strip().isdigit() for line in said.splitlines()):
            raise MpsError(
                f"the MPS daemon has no server, and said {excerpt(said.strip())!r}: make one, with `server create`"
            )

    async def _make(self, share: MpsShare, server: str) -> None:
        self._made.add(share.namespace)
        where = (share.namespace, f"--server={server}")
        with suppress(MpsError):  # It may be there; whether it is, the next command tells.
            await self._ask("namespace", "create", *where)
        await self._ask("namespace", "set", *where, f"--active-thread-percentage={share.percent}")
        folder = self._pipe / server / share.namespace
        if not folder.is_dir():
            raise MpsError(
                f"the MPS daemon made no folder {folder}: let enforcement.mps.pipe be its pipe directory, "
                "CUDA_MPS_PIPE_DIRECTORY"
            )

    async def _ask(self, *command: str, said: str = "") -> str:
        """Have the program tell the daemon something; returns what it prints.

        `command`: of protocol 3. `said`: in place of that, one of protocol 2, whose program reads them. Raises
        MpsError: the daemon refuses, or does not answer.
        """
        pipes = asyncio.subprocess
        try:
            process = await asyncio.create_subprocess_exec(
                PROGRAM, *command, stdin=pipes.PIPE, stdout=pipes.PIPE, stderr=pipes.STDOUT, env=self._environment
            )
        except OSError as error:
            raise MpsError(
                f"{PROGRAM} cannot be started ({error.strerror}): the enforcer needs NVIDIA's driver capability compute"
            ) from error
        try:
            output, _ = await process.communicate(f"{said}\n".encode() if said else b"")
        finally:
            await _end(process)
        answer = output.decode(errors="replace")
        if process.returncode or _FAILED.search(answer):
            raise MpsError(
                f"the MPS daemon at {self._pipe} does not do `{said or ' '.join(command)}`: "
                f"{excerpt(answer.strip())!r} (status {process.returncode}); see that it runs"
            )
        return answer

    def _late(self) -> str:
        return f"the MPS daemon at {self._pipe} did not answer within {self._seconds:g} s: restart it"


def read_servers(listed: str) -> tuple[MpsServer, ...]:
    """Read what `server list --format=csv,noheader` prints (pure): name, uid, pid, status, and more."""
    servers = []
    for line in listed.splitlines():
        fields = [field.strip() for field in next(csv.reader([line]), [])]
        if len(fields) >= _FIELDS and fields[2].isdigit():
            servers.append(MpsServer(fields[0], frozenset(_CARD.findall(line))))
    return tuple(servers)


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        with suppress(ProcessLookupError):
            process.kill()
        with suppress(TimeoutError):
            async with asyncio.timeout(_END_S):
                await process.wait()
