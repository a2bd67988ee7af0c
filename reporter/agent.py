"""The reporter's process: what is watched, read, decided, enforced and told, each so that none waits for another.

Three things go on side by side. The cards are asked in their own process (`cards`). Rounds read the node's files,
decide, and write cpusets, in one thread. What a round decided is told to the API server by a task of its own, so that
an API server that is away never keeps a cpuset from being right.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, TypeVar

from koordgate.kube.client import KubeClient
from koordgate.kube.resource import DEVICES, NODES, PODS, TOPOLOGIES, Resource
from koordgate.kube.watch import Handler, Reflector
from koordgate.settings import device_types
from reporter import decide as core
from reporter.cards import Cards
from reporter.cgroup.enforcer import Findings
from reporter.decide import Decided, HostReading, Rules, StandingObjects
from reporter.gpu.guarded import GuardedNvml
from reporter.host import Host
from reporter.kubelet import configz
from reporter.kubelet.podresources import PodResourcesSocket
from reporter.metrics import ReporterMetrics
from reporter.podwatch import NodePods
from reporter.proof import evidence
from reporter.proof.agree import Evidence
from reporter.publish.device import worth_telling
from reporter.publish.events import EventWriter, Occurrence, about_node
from reporter.publish.identity import NodeIdentity, read_node
from reporter.publish.live import LiveObject
from reporter.publish.writer import Applied, Target
from reporter.serving import listen
from reporter.settings import ReporterSettings
from reporter.takeover import rounds as takingover
from reporter.takeover.rounds import TakenOver

_LOG: Final = logging.getLogger(__name__)
_GATHER_S: Final = 0.1  # how long a round waits after a change for others to come with it
_PROOF_S: Final = 60.0
_PROOFS_APART_S: Final = 5.0  # at least: a proof looks at every process of every container
_CONFIGZ_S: Final = 60.0
_STUCK_S: Final = 300.0  # a round that takes longer will never end: the kubelet restarts us
_T = TypeVar("_T")


def _enforce(host: Host, decided: Decided) -> tuple[Findings | None, str]:
    topology = decided.topology
    return host.enforce(decided.pods, topology.pools, topology.kubelet, decided.cgroup_root)


async def _set_within(event: asyncio.Event, seconds: float) -> bool:
    """Wait for an event so long at most; tells whether it came."""
    try:
        async with asyncio.timeout(seconds):  # wait_for of Python 3.11 may lose a cancellation
            await event.wait()
    except TimeoutError:
        return False
    return True


def rules_of(settings: ReporterSettings) -> Rules:
    """What of the settings decides."""
    return Rules(
        types=device_types(settings.devices.types),
        policy=settings.gpus.policy,
        outage_seconds=settings.gpus.outage_seconds,
        mems=settings.cpus.memory,
    )


@dataclass(slots=True)
class _Watches:
    """What is watched; objects of one name each, and the node's Pods."""

    node: LiveObject
    device: LiveObject
    topology: LiveObject
    pods: NodePods


class Agent:
    """One reporter on one node.

    Args:
        settings: of the process.
        node: name of the Node.
        kube: the open client.
        nvml: how cards are asked; None where GPUs are switched off.
        metrics: of the process.

    Attributes:
        port: where health and metrics are told, once it runs.
        decided: what the last round came to; None before the first.
    """

    def __init__(
        self,
        settings: ReporterSettings,
        node: str,
        kube: KubeClient,
        nvml: GuardedNvml | None,
        metrics: ReporterMetrics,
    ) -> None:
        self._settings = settings
        self._name = node
        self._kube = kube
        self._metrics = metrics
        self._rules = rules_of(settings)
        self._host = Host(settings)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="files")
        self._stirred = asyncio.Event()
        self._fresh = asyncio.Event()  # there is something to tell
        self._unproved = asyncio.Event()  # something may have changed that a proof would see
        self._proved = False  # whether it is known what Pods hold that nobody allocated
        node_live, device, topology = (LiveObject(node, self._stir) for _ in range(3))
        self._watches = _Watches(node_live, device, topology, NodePods(self._rules.types, self._stir))
        self._reflectors = [
            self._reflector(NODES, self._watches.node, "metadata.name"),
            self._reflector(DEVICES, self._watches.device, "metadata.name"),
            self._reflector(TOPOLOGIES, self._watches.topology, "metadata.name"),
            self._reflector(PODS, self._watches.pods, "spec.nodeName"),
        ]
        self.cards = Cards(
            nvml,
            settings.gpus.policy,
            self._host.save_health,
            self._in_thread,
            self._stir,
            heard=metrics.heard_xid,
            outage_seconds=settings.gpus.outage_seconds,
        )
        self._events = EventWriter(kube, time.time)
        self._told_health = self.cards.view.node
        self._told_device: Mapping[str, Any] | None = None  # as last told; None until it is known what stands
        self._told: dict[str, object] = {}
        self._unusable: frozenset[str] = frozenset()  # what was said to be wrong with the kubelet's files
        self._evidence = Evidence()
        self._configz: configz.Answer | None = None  # what the kubelet itself answered last
        self._pod_resources = PodResourcesSocket(settings.kubelet.pod_resources, pause=settings.round_seconds)
        self._applied = {
            target: Applied(kube, target, live, time.monotonic, self._wrote)
            for target, live in (
                (Target(DEVICES), self._watches.device),
                (Target(TOPOLOGIES), self._watches.topology),
                (Target(NODES, "status"), self._watches.node),
            )
        }
        self._nvidia = True  # whether there is NVIDIA's hardware, as far as is known
        self._taken = TakenOver()
        self._round_at: float | None = None
        self.decided: Decided | None = None
        self._telling: Decided | None = None  # of these the last that knew what stands in the cluster, and the Pods
        self._with_cards = False  # and whether it knew the cards, and who has them
        self.port = 0

    async def run(self, until: asyncio.Event) -> None:
        """Report until the event is set; then end at once: cpusets and objects stay as they are."""
        node, problems = await self._in_thread(self._host.load_health)
        for problem in problems:
            _LOG.warning("%s", problem)
        self.cards.start_from(node)
        self._told_health = node
        every = self._settings.round_seconds
        parts = (
            self._follow_cards(every),
            self._rounds(every),
            self._publish(every),
            self._proofs(),
            self._ask_configz(),
        )
        async with (
            listen(self._settings.serve, self._metrics, self.unhealthy) as self.port,
            asyncio.TaskGroup() as tasks,
        ):
            running = [tasks.create_task(reflector.run()) for reflector in self._reflectors]
            running += [tasks.create_task(part) for part in parts]
            await until.wait()
            for task in running:
                task.cancel()
        self._thread.shutdown(wait=False, cancel_futures=True)

    def unhealthy(self) -> list[str]:
        """Why the process should be restarted: a round that does not end."""
        began = self._round_at
        if began is not None and time.monotonic() - began > _STUCK_S:
            return [f"a round takes longer than {_STUCK_S:.0f} s: a file of this node does not answer"]
        return []

    async def _follow_cards(self, every: float) -> None:
        while True:
            await self._guarded("cards", self.cards.run(every))
            await asyncio.sleep(every)

    async def _rounds(self, every: float) -> None:
        while True:
            self._stirred.clear()
            await self._guarded("round", self.round())
            if await _set_within(self._stirred, every):
                await asyncio.sleep(_GATHER_S)

    async def round(self) -> None:
        """Read, decide, enforce; what is to be told is left for the publisher."""
        node, pods_known = self._identity(), self._reflectors[3].synced.is_set()
        all_known = all(reflector.synced.is_set() for reflector in self._reflectors)
        self._round_at = time.monotonic()
        findings, problem = None, ""
        try:
            host = await self._in_thread(self._host.read)
            configured = not self._settings.kubelet.configz
            if self._configz is not None:
                host, configured = replace(host, configuration=self._configz), True
            self._nvidia = host.nvidia
            host = replace(host, told=await self._pod_resources.read(self._watches.pods.pods))
            with_cards = self._cards_settled() and (self._proved or not self._settings.proof.enabled)
            decided = core.decide(
                node or NodeIdentity(self._name, ""),
                host,
                self.cards.view,
                self._watches.pods.pods,
                self._evidence,
                self._rules,
                StandingObjects(self._watches.device.obj, self._watches.topology.obj),
                time.time(),
            )
            if self._settings.cpus.enforce and pods_known and configured:
                findings, problem = await self._in_thread(partial(_enforce, self._host, decided))
            if pods_known and configured:
                self._taken = await self._in_thread(partial(self._host.take_over, self._watches.pods.pods, host))
        finally:
            self._round_at = None
        self.decided = decided
        if all_known and self._told_device is None:
            self._told_device = self._watches.device.obj or {}
        self._account(decided, findings, problem)
        if node is not None and configured:
            self._occurrences(node, host, decided)
        if all_known and configured:  # else it would take from the objects what it did not see there
            self._telling, self._with_cards = decided, with_cards
            self._fresh.set()

    async def _proofs(self) -> None:
        """Prove once cards and Pods are known, when other cards or containers are there, and every minute."""
        while self._settings.proof.enabled:
            if self.decided is None or not self._reflectors[3].synced.is_set() or not self._cards_settled():
                await asyncio.sleep(_GATHER_S)
                continue
            seen = self._to_prove()
            await self._guarded("proof", self.prove(self.decided))
            self._stir()
            await asyncio.sleep(_PROOFS_APART_S)
            until = time.monotonic() + _PROOF_S - _PROOFS_APART_S
            while self._to_prove() == seen and (left := until - time.monotonic()) > 0:
                self._unproved.clear()
                await _set_within(self._unproved, left)

    def _to_prove(self) -> tuple[frozenset[str], frozenset[str]]:
        """The cards and containers that there are."""
        containers = (identity for pod in self._watches.pods.pods if not pod.finished for identity in pod.containers)
        return frozenset(self.cards.view.node.cards), frozenset(containers)

    async def prove(self, decided: Decided) -> None:
        """Gather what containers and cards really have; the next round compares.

        NVML may take its time for each card, so no round waits for this.
        """
        pods = [pod for pod in self._watches.pods.pods if not pod.finished]
        try:
            seen = await self._in_thread(partial(self._host.containers, pods, decided.cgroup_root))
            processes = await self.cards.processes()
            uses = await self._in_thread(partial(evidence.card_uses, processes, self._host.proc))
            there = self.cards.view.node
            self._evidence = Evidence(seen, uses, core.by_minor(there), core.by_index(there))
        finally:
            self._proved = True  # or as far as it goes: a bug in it must not keep the cards' health from being told

    async def _ask_configz(self) -> None:
        """Ask the kubelet itself, where that is wanted: beside the rounds, which its silence must not keep waiting."""
        while self._settings.kubelet.configz:
            await self._guarded("configz", self._ask_configz_once())
            await asyncio.sleep(_CONFIGZ_S)

    async def _ask_configz_once(self) -> None:
        known = self._configz
        self._configz = await configz.ask(self._kube, self._name, known.value if known else None)
        if self._configz != known:
            self._stir()

    async def _publish(self, every: float) -> None:
        for reflector in self._reflectors:
            await reflector.synced.wait()
        self._stir()
        while True:
            await _set_within(self._fresh, every)
            self._fresh.clear()
            await self._guarded("publish", self.publish())

    async def publish(self) -> None:
        """Tell the cluster what the last round decided, as far as it is not told already."""
        decided = self._telling
        await self._events.write()
        if decided is None or self._identity() is None or not self._for_this_node(decided):
            return
        worth = worth_telling(decided.device.body, self._watches.device.obj)
        bodies = {
            Target(DEVICES): decided.device.body if worth else None,
            Target(TOPOLOGIES): decided.topology.body,
            Target(NODES, "status"): decided.status,
        }
        if not self._with_cards:
            # Cards would be missing, or one in use that nobody allocated be told as free.
            del bodies[Target(DEVICES)], bodies[Target(NODES, "status")]
        for target, body in bodies.items():
            if body is not None:
                await self._applied[target].keep(body)

    def _cards_settled(self) -> bool:
        """Whether it is known which cards there are; without NVIDIA's hardware, that there are none."""
        return not self._nvidia or self.cards.settled

    def _for_this_node(self, decided: Decided) -> bool:
        """Whether the last round knew the Node that stands now: one deleted and made anew has another UID."""
        node = self._identity()
        return node is not None and decided.device.body["metadata"]["ownerReferences"][0]["uid"] == node.uid

    def _identity(self) -> NodeIdentity | None:
        return read_node(self._watches.node.obj) if self._watches.node.obj is not None else None

    def _occurrences(self, node: NodeIdentity, host: HostReading, decided: Decided) -> None:
        """Note what is to be told as Events: each change once."""
        view = self.cards.view
        now = decided.device.body
        self._events.note(core.health_events(node, self._told_health, view.node, self._told_device, now))
        self._told_health = view.node
        if self._told_device is not None:
            self._told_device = now
        outage = core.outage_event(node, view, host)
        if outage is not None and self._is_new("outage", outage.reason):
            self._events.note([outage])
        elif outage is None:
            self._told.pop("outage", None)
        taken = takingover.events(node, self._taken)
        if self._is_new("taken over", taken):
            self._events.note(taken)
        mismatches = core.mismatch_events(decided.agreements)
        if self._is_new("mismatches", mismatches):
            self._events.note(mismatches)
        for problem in host.problems:
            if problem not in self._unusable:
                reason = "PodResourcesUnusable" if problem == host.told.problem else "KubeletFileUnusable"
                self._events.note([Occurrence(about_node(node), reason, problem)])
        self._unusable = frozenset(host.problems)

    def _is_new(self, key: str, value: object) -> bool:
        if self._told.get(key) == value:
            return False
        self._told[key] = value
        return True

    def _account(self, decided: Decided, findings: Findings | None, problem: str) -> None:
        metrics = self._metrics
        metrics.rounds.inc()
        metrics.nvml_up.set(self.cards.view.outage is None)
        metrics.show_cards(self.cards.view.node)
        metrics.show_devices(decided.device.body)
        metrics.show_agreements(decided.agreements)
        metrics.take_overs.inc(self._taken.written)
        problems = [*decided.problems, *self._taken.problems, *filter(None, (problem, self.cards.problem))]
        if findings is not None:
            metrics.cpuset_writes.inc(findings.written)
            metrics.cpuset_reapplied.inc(len(findings.reapplied))
            problems += [failure.message for failure in findings.failures]
            problems += [note for _, note in findings.notes]
        problems += [applied.problem for applied in self._applied.values() if applied.problem]
        metrics.problems.set(len(problems))
        if self._is_new("log", problems):
            for one in problems:
                _LOG.warning("%s", one, extra={"node": self._name})

    def _wrote(self, target: Target, taken_back: bool) -> None:  # noqa: FBT001 a callback's
        self._metrics.writes.labels(str(target), str(taken_back).lower()).inc()
        _LOG.info("wrote %s", target, extra={"node": self._name, "taken_back": taken_back})

    def _stir(self) -> None:
        self._stirred.set()
        self._unproved.set()

    def _reflector(self, resource: Resource, handler: Handler, field: str) -> Reflector:
        counter = self._metrics.watch
        return Reflector(
            self._kube,
            resource,
            handler,
            selectors={"fieldSelector": f"{field}={self._name}"},
            count=lambda happening: counter.labels(resource.plural, happening).inc(),
            on_error=lambda about, error: _LOG.warning("%s: %s", about, error),
        )

    async def _guarded(self, part: str, work: Coroutine[None, None, None]) -> None:
        """A bug in one round must not end the node's reporter: it is logged and counted, and the next one tries."""
        try:
            await work
        except Exception:  # noqa: BLE001 whatever it is, the node needs its reporter
            self._metrics.bugs.labels(part).inc()
            _LOG.exception("a bug in %s", part)

    async def _in_thread(self, work: Callable[[], _T]) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)
