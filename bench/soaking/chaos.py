"""What is done to the cluster while Pods are bound."""

import asyncio
import contextlib
import signal
from collections.abc import Awaitable, Callable
from random import Random

from controlplane.gpu_cluster import ALLOCATIONS, uuid_of

from localplane.admin import AdminClient, ApiError
from localplane.balancer import Balancer
from localplane.plane import ControlPlane
from localplane.process import StartError
from localplane.replicas import Replicas
from soaking.auditor import Auditor
from soaking.plan import API_KILLED, CARDS, CUT, EDITED, ETCD_PAUSED, KILLED, LOST, PAUSED, Findings, Soak


class Chaos:
    """Kills, pauses and cuts, each in its own rhythm."""

    def __init__(
        self,
        soak: Soak,
        plane: ControlPlane,
        running: Replicas,
        between: Balancer,
        auditor: Auditor,
        admin: AdminClient,
        findings: Findings,
    ) -> None:
        self._auditor = auditor
        self._admin = admin
        self._soak = soak
        self._plane = plane
        self._running = running
        self._between = between
        self._findings = findings
        self._random = Random(soak.seed + 1)
        self._ready = set(range(len(soak.shifts)))
        self._paused: set[int] = set()
        self._starting: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Go on until cancelled."""
        soak = self._soak
        await asyncio.gather(
            self._every(soak.kill_every, self._kill),
            self._every(soak.api_every, self._restart_api_server),
            self._every(soak.cut_every, self._cut),
            self._every(soak.pause_every, self._pause),
            self._every(soak.etcd_every, self._pause_etcd),
            self._every(soak.edit_every, self._edit),
        )

    async def _every(self, seconds: float, act: Callable[[], Awaitable[None]]) -> None:
        while seconds:
            await asyncio.sleep(seconds)
            await act()

    async def _kill(self) -> None:
        """Kill a replica; another starts in its place. While the last one is ready, it is spared."""
        able = sorted(self._ready - self._paused)
        if len(able) < 2:
            self._findings.done["spared: the last that was ready"] += 1
            return
        number = self._random.choice(able)
        self._findings.done[KILLED] += 1
        self._ready.discard(number)
        self._running.kill(number)
        self._running.leave_out(number)
        task = asyncio.create_task(self._start(number))
        self._starting.add(task)
        task.add_done_callback(self._starting.discard)

    async def _start(self, number: int) -> None:
        while number not in self._ready:
            try:
                await self._running.start(number)
                self._ready.add(number)
            except StartError:  # no API server for longer than a start may take
                self._findings.done["start repeated"] += 1
                self._running.kill(number)

    async def _restart_api_server(self) -> None:
        self._findings.done[API_KILLED] += 1
        self._plane.kill_apiserver()
        await self._start_api_server()

    async def _start_api_server(self) -> None:
        while not self._plane.process("kube-apiserver").alive:
            try:
                await self._plane.start_apiserver()
            except StartError:  # on a busy machine it may take longer than a start may
                self._findings.done["start of the API server repeated"] += 1
                self._plane.kill_apiserver()

    async def _cut(self) -> None:
        self._findings.done[CUT] += 1
        await self._between.drop()

    async def _pause(self) -> None:
        """Pause a replica, the last that is ready too; what it was about to do, it does afterwards."""
        able = sorted(self._ready - self._paused)
        if not able:
            return
        number = self._random.choice(able)
        self._paused.add(number)
        process = self._running.process(number)
        process.signal(signal.SIGSTOP)
        self._running.leave_out(number)
        try:
            await asyncio.sleep(self._soak.pause)
        finally:
            process.signal(signal.SIGCONT)
            self._paused.discard(number)
            self._running.take_in(number)  # with the memory that it had
        self._findings.done[PAUSED] += 1

    async def _pause_etcd(self) -> None:
        self._findings.done[ETCD_PAUSED] += 1
        etcd = self._plane.process("etcd")
        etcd.signal(signal.SIGSTOP)
        try:
            await asyncio.sleep(self._soak.etcd_pause)
        finally:
            etcd.signal(signal.SIGCONT)

    async def _edit(self) -> None:
        """Edit a record by hand: a Pod that has run for a while holds another card of its node than it was given."""
        path = f"{ALLOCATIONS}/{self._random.choice(self._soak.names)}"
        with contextlib.suppress(ApiError, *LOST):
            record = await self._admin.get(path)
            node = record["metadata"]["name"]
            held = [
                one["devices"]
                for one in record["spec"].get("allocations") or ()
                if self._auditor.seen_for(one["uid"]) > self._soak.settled_s
            ]
            if held:
                shares = self._random.choice(held)
                minor = self._random.choice([*{*range(CARDS)}.difference(share["minor"] for share in shares)])
                self._random.choice(shares).update(id=uuid_of(node, minor), minor=minor)
                await self._admin.replace(path, record)
                self._findings.done[EDITED] += 1

    async def mend(self) -> None:
        """Let everything run again."""
        while self._starting:
            await asyncio.wait(self._starting)
        await self._start_api_server()
