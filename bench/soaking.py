"""A cluster that is never left alone: binds at volume while replicas, the API server and etcd are killed and paused.

The auditor shares no code with koordgate. It reads Pods alone, by its own watch: the API server's order of events is
the order in which devices were given and given back, so at no event may the sums of a device exceed it.
"""

import asyncio
import contextlib
import json
import signal
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Final

import aiohttp
from controlplane.gpu_cluster import DEVICE_ALLOCATED, add_gpu_node, binding, ledger, pod, pods_path

from webhook.localplane import chart
from webhook.localplane.admin import AdminClient, ApiError, JsonObject
from webhook.localplane.balancer import Balancer
from webhook.localplane.binaries import Binaries
from webhook.localplane.plane import ControlPlane
from webhook.localplane.process import StartError
from webhook.localplane.replicas import Replicas, this_koordgate
from webhook.localplane.waiting import until

NAMESPACE: Final = "soak"
KILLED, API_KILLED, CUT = "replica killed", "API server killed", "connections cut"
PAUSED, ETCD_PAUSED = "replica paused", "etcd paused"
_SHIFTED: Final = Path(__file__).with_name("shifted.py")
_LOST: Final = (aiohttp.ClientError, TimeoutError, OSError)
ASKS: Final = "koordgate.test/percent"  # label of a Pod: what it asks for, in percent of a card
_KINDS: Final = ((50, 60), (25, 20), (100, 15), (200, 5))  # percent of a card, and how many of a hundred Pods ask that
_AWAY_S: Final = 0.1  # between tries of a request that was not answered
_NODES_TRIED: Final = 6  # of a Pod, before it is given up as one for which there is no room
_PATIENCE_S: Final = 240.0
_RECONCILE_S: Final = 2.0


@dataclass(frozen=True)
class Soak:
    """What is done to the cluster. All times are in seconds; an event that is `every` 0 seconds never happens.

    Attributes:
        binds: how many Pods are to be bound; more are, until each kind of event has happened.
        seconds: after which no more Pods are created.
        nodes: of 8 GPUs each.
        workers: Pods that are bound at the same time.
        grace: of the ledger: after how long a holding that was never bound is released.
        kill_every: between kills (SIGKILL) of a replica.
        api_every: between kills of the API server.
        cut_every: between cuts of all connections between replicas and the API server.
        pause_every: between pauses (SIGSTOP) of a replica.
        pause: how long a replica is paused: longer than the grace.
        etcd_every: between pauses of etcd.
        etcd_pause: how long etcd is paused.
        shifts: of the replicas' clocks.
        seed: of the choices.
    """

    binds: int = 100_000
    seconds: float = 24 * 3600.0
    nodes: int = 8
    workers: int = 24
    grace: float = 15.0
    kill_every: float = 2.0
    api_every: float = 60.0
    cut_every: float = 7.0
    pause_every: float = 45.0
    pause: float = 20.0
    etcd_every: float = 20.0
    etcd_pause: float = 2.0
    shifts: Sequence[float] = (0.0, 40.0, -40.0)
    seed: int = 1

    @property
    def events(self) -> set[str]:
        """What is to happen to the cluster, by its name in `Findings.done`."""
        every = {
            KILLED: self.kill_every,
            API_KILLED: self.api_every,
            CUT: self.cut_every,
            PAUSED: self.pause_every,
            ETCD_PAUSED: self.etcd_every,
        }
        return {event for event, seconds in every.items() if seconds}


@dataclass
class Findings:
    """What happened, and what is wrong.

    Attributes:
        bound: Pods that were seen bound.
        twice: devices that were given twice, each with the Pods.
        bare: Pods that were bound without the devices that they ask for.
        unreachable: devices that nobody can get although no Pod has them, after the grace.
        done: what was done to the cluster -> how often.
        tries: outcomes of requests -> how often.
        seconds: that it took.
    """

    bound: int = 0
    twice: list[str] = field(default_factory=list)
    bare: list[str] = field(default_factory=list)
    unreachable: list[str] = field(default_factory=list)
    done: Counter[str] = field(default_factory=Counter)
    tries: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0


class Auditor:
    """Follows the Pods, and adds up what the annotations of the bound ones state.

    Args:
        admin: a client.
        findings: where what is wrong is noted.
    """

    def __init__(self, admin: AdminClient, findings: Findings) -> None:
        self._admin = admin
        self._findings = findings
        self._held: dict[str, tuple[str, dict[str, int]]] = {}  # UID -> Pod, and GPU -> percent
        self._used: Counter[str] = Counter()
        self._seen: set[str] = set()

    @property
    def holders(self) -> int:
        """How many Pods hold something now."""
        return len(self._held)

    async def run(self) -> None:
        """Follow until cancelled; after a lost watch, from a new list on."""
        while True:
            with contextlib.suppress(ApiError, *_LOST):
                listed = await self._admin.get(pods_path(NAMESPACE))
                found = {one["metadata"]["uid"]: one for one in listed["items"]}
                for uid in self._held.keys() - found.keys():
                    self.drop(uid)
                for one in found.values():
                    self.take(one)
                at = listed["metadata"]["resourceVersion"]
                async for event in self._admin.watch(pods_path(NAMESPACE), resourceVersion=at):
                    if event["type"] == "ERROR":
                        break
                    if event["type"] == "DELETED":
                        self.drop(event["object"]["metadata"]["uid"])
                    else:
                        self.take(event["object"])
            await asyncio.sleep(_AWAY_S)

    def drop(self, uid: str) -> None:
        """Take in that a Pod is gone."""
        for gpu, percent in self._held.pop(uid, ("", {}))[1].items():
            self._used[gpu] -= percent

    def take(self, found: JsonObject) -> None:
        """Take in a Pod as it is now."""
        metadata, node = found["metadata"], found["spec"].get("nodeName")
        uid, name = metadata["uid"], metadata["name"]
        if not node:
            return
        shares = json.loads((metadata.get("annotations") or {}).get(DEVICE_ALLOCATED, "{}")).get("gpu", [])
        has = {share["id"]: int(share["resources"]["kubernetes.io/gpu-core"]) for share in shares}
        if uid in self._held and self._held[uid][1] == has:
            return
        self.drop(uid)
        self._held[uid] = name, has
        for gpu, percent in has.items():
            self._used[gpu] += percent
        if uid not in self._seen:
            self._seen.add(uid)
            self._findings.bound += 1
        asked = int(metadata["labels"][ASKS])
        if sum(has.values()) != asked or any(not gpu.startswith(f"GPU-{node}-") for gpu in has):
            self._findings.bare.append(f"{name} asks {asked} on {node} and has {has}")
        for gpu in has:
            if self._used[gpu] > 100:
                who = sorted(f"{pod} {share[gpu]}" for pod, share in self._held.values() if gpu in share)
                self._findings.twice.append(f"{gpu} has {self._used[gpu]} percent given: {', '.join(who)}")


class Load:
    """Creates Pods, binds them as koord-scheduler's user, and deletes them, so that the cluster stays almost full."""

    def __init__(self, soak: Soak, admin: AdminClient, binder: AdminClient, findings: Findings) -> None:
        self._soak = soak
        self._admin = admin
        self._binder = binder
        self._findings = findings
        self._random = Random(soak.seed)
        self._living: dict[str, int] = {}  # name -> percent
        self._number = 0
        self._ends = time.monotonic() + soak.seconds
        self.bound = 0

    @property
    def nodes(self) -> list[str]:
        return [f"soak-{number}" for number in range(self._soak.nodes)]

    @property
    def is_over(self) -> bool:
        enough = self.bound >= self._soak.binds and self._soak.events <= self._findings.done.keys()
        return enough or time.monotonic() > self._ends

    async def run(self) -> None:
        """Bind until there are enough."""
        await asyncio.gather(*(self._work() for _ in range(self._soak.workers)))

    async def _work(self) -> None:
        while not self.is_over:
            self._number += 1
            percent = self._random.choices([kind for kind, _ in _KINDS], [share for _, share in _KINDS])[0]
            name = f"p{self._number}"
            if await self.bind(name, percent, [self._random.choice(self.nodes) for _ in range(_NODES_TRIED)]):
                self.bound += 1
                self._living[name] = percent
            else:
                await self.delete(name)
            while sum(self._living.values()) > 90 * 8 * self._soak.nodes:
                name = self._random.choice(list(self._living))
                del self._living[name]
                await self.delete(name)

    async def bind(self, name: str, percent: int, nodes: Sequence[str]) -> bool:
        """Create a Pod and bind it to the first of these nodes that has room; tells whether it is bound.

        What is not answered is tried again, half the time on another node, as kube-scheduler may do.
        """
        asks = {"kubernetes.io/gpu": str(percent)}
        made = pod(name, NAMESPACE, asks)
        made["metadata"]["labels"] = {ASKS: str(percent)}
        uid = ""
        while not uid:
            uid = await self._answered("create", self._created(made)) or ""
        left = list(nodes)
        while left:
            body = binding(NAMESPACE, name, left[0], uid)
            said = await self._answered("bind", self._bound(name, body))
            if said == "bound":
                return True
            if said == "refused" or self._random.random() < 0.5:
                left.append(left.pop(0))
            if said == "refused":
                left.pop()
        return False

    async def _created(self, made: JsonObject) -> str:
        name = made["metadata"]["name"]
        try:
            return str((await self._admin.create(pods_path(NAMESPACE), made))["metadata"]["uid"])
        except ApiError as error:
            if error.reason != "AlreadyExists":
                raise
            return str((await self._admin.get(pods_path(NAMESPACE, name)))["metadata"]["uid"])

    async def _bound(self, name: str, body: JsonObject) -> str:
        try:
            await self._binder.create(pods_path(NAMESPACE, name, "binding"), body)
        except ApiError as error:
            if "already assigned" in error.message or "is bound to" in error.message:
                return "bound"  # by an earlier try whose answer was lost
            if "is not bound:" in error.message:
                return "refused"
            raise
        return "bound"

    async def delete(self, name: str) -> None:
        """Delete a Pod, until it is gone."""
        gone = False
        while not gone:
            gone = await self._answered("delete", self._deleted(name)) == "gone"

    async def _deleted(self, name: str) -> str:
        try:
            await self._admin.delete(pods_path(NAMESPACE, name), {"gracePeriodSeconds": 0})
        except ApiError as error:
            if error.reason != "NotFound":
                raise
        return "gone"

    async def _answered(self, what: str, request: Awaitable[str]) -> str | None:
        """An answer; None where there is none, or an error that asks to try again."""
        try:
            answer = await request
        except ApiError as error:
            self._findings.tries[f"{what} {error.status}"] += 1
        except _LOST:
            self._findings.tries[f"{what} unanswered"] += 1
        else:
            told = {"bound": "bound", "refused": "refused"}.get(answer, "done")
            self._findings.tries[f"{what} {told}"] += 1
            return answer
        await asyncio.sleep(_AWAY_S)
        return None

    async def clear(self) -> None:
        """Delete all Pods."""

        async def cleared() -> bool:
            try:
                await self._admin.delete(pods_path(NAMESPACE), {"gracePeriodSeconds": 0})
                return not await self._admin.items(pods_path(NAMESPACE))
            except (ApiError, *_LOST):
                return False

        await until(cleared, "all Pods are deleted", deadline_s=_PATIENCE_S, poll_s=0.5)
        self._living.clear()


class Chaos:
    """Kills, pauses and cuts, each in its own rhythm."""

    def __init__(
        self, soak: Soak, plane: ControlPlane, running: Replicas, between: Balancer, findings: Findings
    ) -> None:
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

    async def mend(self) -> None:
        """Let everything run again."""
        while self._starting:
            await asyncio.wait(self._starting)
        await self._start_api_server()


async def soak_cluster(
    soak: Soak, binaries: Binaries, say: Callable[[str], None], workdir: Path | None = None
) -> Findings:
    """Bind, with everything that is done meanwhile; then give everything back, and hand out each card once more."""
    findings = Findings()
    began = time.monotonic()
    objects = chart.render(binaries)
    async with ControlPlane(binaries, workdir=workdir) as plane, plane.admin() as admin:
        await chart.install(plane, objects)
        await plane.ensure_namespace(NAMESPACE)
        names = [f"soak-{number}" for number in range(soak.nodes)]
        await asyncio.gather(*(add_gpu_node(plane, admin, name, 8) for name in names))
        async with _replicas(soak, plane, objects) as (running, between):
            token = await plane.service_account_token(chart.NAMESPACE, "koord-scheduler")
            async with plane.admin(token) as binder:
                await _soaked(soak, plane, admin, binder, running, between, findings, say)
    findings.seconds = time.monotonic() - began
    return findings


@contextlib.asynccontextmanager
async def _replicas(
    soak: Soak, plane: ControlPlane, objects: list[JsonObject]
) -> AsyncIterator[tuple[Replicas, Balancer]]:
    """Replicas whose clocks are wrong, and what their connections to the API server pass."""
    host, port = plane.admin_url.removeprefix("https://").split(":")
    async with Balancer(host, 0, [(host, int(port))]) as between:
        token = await plane.service_account_token(chart.NAMESPACE, chart.RELEASE)
        kubeconfig = plane.kubeconfig(token, plane.workdir / "kubeconfig" / "between.yaml")
        kubeconfig.write_text(kubeconfig.read_text().replace(f":{port}", f":{between.port}"))
        overrides: Mapping[str, Any] = {"ledger": {"graceSeconds": soak.grace, "reconcileSeconds": _RECONCILE_S}}

        def command(number: int) -> Sequence[str]:
            shift = soak.shifts[number]
            return (sys.executable, str(_SHIFTED), str(shift)) if shift else this_koordgate()

        running = Replicas(
            chart.settings_text(objects),
            kubeconfig=kubeconfig,
            workdir=plane.workdir / "replicas",
            listen=await plane.service_address(chart.NAMESPACE, chart.RELEASE),
            count=len(soak.shifts),
            overrides=overrides,
            command=command,
        )
        async with running:
            yield running, between


async def _soaked(
    soak: Soak,
    plane: ControlPlane,
    admin: AdminClient,
    binder: AdminClient,
    running: Replicas,
    between: Balancer,
    findings: Findings,
    say: Callable[[str], None],
) -> None:
    auditor = Auditor(admin, findings)
    load = Load(soak, admin, binder, findings)
    chaos = Chaos(soak, plane, running, between, findings)
    async with asyncio.TaskGroup() as tasks:
        auditing = tasks.create_task(auditor.run())
        telling = tasks.create_task(_tell(findings, auditor, say))
        raging = tasks.create_task(chaos.run())
        await load.run()
        raging.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await raging
        await chaos.mend()
        say(f"{findings.bound} Pods bound; all is given back and handed out once more")
        await load.clear()
        findings.unreachable += await _hand_out(soak, load, admin)
        telling.cancel()
        auditing.cancel()


async def _hand_out(soak: Soak, load: Load, admin: AdminClient) -> list[str]:
    """Bind a Pod of a whole card for each card; returns what nobody gets within the grace and some reconciliations."""

    async def one(node: str, number: int) -> str:
        try:
            async with asyncio.timeout(4 * soak.grace + 10 * _RECONCILE_S):
                while not await load.bind(f"last-{node}-{number}", 100, [node]):  # noqa: ASYNC110 nothing tells of it
                    await asyncio.sleep(1)
        except TimeoutError:
            return f"{node}: a card that no Pod has"
        return ""

    missing = await asyncio.gather(*(one(node, number) for node in load.nodes for number in range(8)))
    found = sorted(filter(None, missing))
    if found:
        held = await ledger(admin)
        living = {one["metadata"]["uid"] for one in await admin.items(pods_path(NAMESPACE))}
        gone = [(node, uid, has) for node, holders in held.items() for uid, has in holders.items() if uid not in living]
        found += [f"{node}: the ledger holds {has} for {uid}" for node, uid, has in gone]
    return found


async def _tell(findings: Findings, auditor: Auditor, say: Callable[[str], None]) -> None:
    began, before = time.monotonic(), 0
    while True:
        await asyncio.sleep(10)
        took = time.monotonic() - began
        rate, before = (findings.bound - before) / 10, findings.bound
        wrong = f"{len(findings.twice)} twice, {len(findings.bare)} bare"
        say(f"{took:.0f} s: {findings.bound} bound ({rate:.0f}/s), {auditor.holders} hold devices, {wrong}")
