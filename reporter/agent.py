"""The reporter's process: a thin loop around the state machine (`round`).

I/O becomes events, and effects become I/O. Each lane of the machine works at its own speed: cards are read in their own
process, cpusets are written in one thread, and objects are published by a lane of their own. An unreachable API server
therefore never delays a cpuset.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

from allocator.vocabulary.devicetype import DeviceTypes
from koordgate.kube.client import KubeClient
from koordgate.kube.errors import KubeError
from koordgate.kube.resource import DEVICES, NODES, PODS, TOPOLOGIES
from koordgate.kube.watch import Handler, Reflector, WatchPace
from koordgate.serving import listen
from koordgate.steady import steadily
from reporter.gpu.guarded import GuardedNvml
from reporter.host import Host
from reporter.kubelet.podsocket import PodResourcesSocket
from reporter.metrics import ReporterMetrics
from reporter.perform import Performer, plan_of
from reporter.pods import NodePod, in_order, read_pod
from reporter.publish.events import EventWriter
from reporter.round.messages import (
    CountWrite,
    CountXid,
    Due,
    Lane,
    LaneFailed,
    Listed,
    Moment,
    Note,
    ObjectGone,
    ObjectStands,
    PodsChanged,
    Restored,
    RoundEffect,
    RoundEvent,
    ShowRound,
    Warn,
    WatchedKind,
)
from reporter.round.state import RoundPace, RoundState, unhealthy
from reporter.round.step import next_due, step, wakes_at
from reporter.settings import ReporterSettings

Raw = dict[str, Any]


class ObjectWatch:
    """One object, watched by name: a Reflector's handler."""

    def __init__(self, what: WatchedKind, name: str, report: Callable[[RoundEvent], None]) -> None:
        self._what = what
        self._name = name
        self._report = report
        self._listed = False

    def begin_list(self) -> None:
        """A list begins."""
        self._listed = False

    def put(self, obj: Raw) -> None:
        """An object was listed, added or changed."""
        if obj["metadata"]["name"] == self._name:
            self._listed = True
            self._report(ObjectStands(self._what, obj))

    def drop(self, obj: Raw) -> None:
        """An object was deleted."""
        if obj["metadata"]["name"] == self._name:
            self._report(ObjectGone(self._what))

    def end_list(self) -> None:
        """The list is complete: an object that it does not name is gone."""
        if not self._listed:
            self._report(ObjectGone(self._what))


class PodWatch:
    """The node's Pods: a Reflector's handler that keeps of each Pod only what the reporter needs.

    During a list nothing is reported: half a list would show Pods as gone.
    `report`: called with an event whenever a Pod comes, goes, or changes in a part that is kept.
    """

    def __init__(self, types: DeviceTypes, report: Callable[[RoundEvent], None]) -> None:
        self._types = types
        self._report = report
        self._pods: dict[str, NodePod] = {}
        self._listed: dict[str, NodePod] | None = None

    def begin_list(self) -> None:
        """A list begins."""
        self._listed = {}

    def put(self, obj: Raw) -> None:
        """A Pod was listed, added or changed."""
        pod = read_pod(obj, self._types)
        if self._listed is not None:
            self._listed[pod.uid] = pod
        elif self._pods.get(pod.uid) != pod:
            self._become({**self._pods, pod.uid: pod})

    def drop(self, obj: Raw) -> None:
        """A Pod was deleted, or is no longer on this node."""
        uid = obj["metadata"]["uid"]
        if uid in self._pods:
            self._become({known: pod for known, pod in self._pods.items() if known != uid})

    def end_list(self) -> None:
        """The list is complete: a Pod that it does not name is gone."""
        listed, self._listed = self._listed, None
        if listed is not None and listed != self._pods:
            self._become(listed)

    def _become(self, pods: dict[str, NodePod]) -> None:
        self._pods = pods
        self._report(PodsChanged(in_order(pods.values())))


_LOG: Final = logging.getLogger(__name__)
_SILENT_S: Final = 180.0  # there is a reporter on every node: each opens its watches less often
_RESOURCES: Final = {
    WatchedKind.NODE: NODES,
    WatchedKind.DEVICE: DEVICES,
    WatchedKind.TOPOLOGY: TOPOLOGIES,
    WatchedKind.PODS: PODS,
}


def _now() -> Moment:
    return Moment(time.time(), time.monotonic())


class Agent:
    """One reporter on one node."""

    def __init__(
        self,
        settings: ReporterSettings,
        node: str,
        kube: KubeClient,
        nvml: GuardedNvml | None,
        metrics: ReporterMetrics,
        *,
        pace: RoundPace | None = None,
        checked: Callable[[RoundState], None] = lambda _: None,
    ) -> None:
        self._settings = settings
        self._node = node
        self._kube = kube
        self._metrics = metrics
        self._checked = checked
        self._host = Host(settings)
        self._events = EventWriter(kube, time.time)
        socket = PodResourcesSocket(settings.kubelet.pod_resources, pause=settings.round_seconds)
        self._performer = Performer(self._host, socket, nvml, (kube, self._events), node)
        self._woken = asyncio.Event()
        self._tasks = asyncio.TaskGroup()
        # what the reporter knows and is about to do
        self.state = RoundState(plan_of(settings, node, gpus=nvml is not None, pace=pace))
        self.working: dict[Lane, asyncio.Task[None]] = {}  # the task of each lane that is busy
        self.port = 0  # where health and metrics are served, once it runs

    async def run(self, until: asyncio.Event) -> None:
        """Report until the event is set, then end at once: cpusets and objects stay as they are."""
        restored = Restored(*await self._performer.in_thread(self._host.load_health))
        reflectors = {what: self._reflector(what) for what in WatchedKind}
        serve = self._settings.serve
        async with listen(serve.host, serve.port, self._metrics.exposed, self.unhealthy) as self.port, self._tasks:
            self.handle(restored)
            running = [self._begin(f"watch {what.value}", one.run) for what, one in reflectors.items()]
            running += [
                self._begin(f"first list of {what.value}", partial(self._first_list, what, one))
                for what, one in reflectors.items()
            ]
            running.append(self._begin("time", self._keep_time))
            await until.wait()
            for task in (*running, *self.working.values()):
                task.cancel()
        self._performer.close()

    def _begin(self, part: str, work: Callable[[], Awaitable[object]]) -> asyncio.Task[None]:
        """Begin work that goes on after a bug, which is logged and counted."""
        return self._tasks.create_task(steadily(work, lambda: self._bug(part)))

    def unhealthy(self) -> list[str]:
        """Why the process should be restarted, a sentence each."""
        return unhealthy(self.state, _now())

    def handle(self, event: RoundEvent) -> None:
        """Take an event in, and begin the work that is then due."""
        now = _now()
        self._take(event, now)
        while (lane := next_due(self.state, now)) is not None:
            self._take(Due(lane), now)
        self._woken.set()

    def _take(self, event: RoundEvent, now: Moment) -> None:
        """Take one event in; after a bug in the machine the state stays, and the lane is tried again later."""
        try:
            self.state, effects = step(self.state, event, now)
        except Exception:  # noqa: BLE001 whatever it is, the node needs its reporter
            lane = event.which if isinstance(event, Due) else event.lane
            self._bug(lane.value if lane is not None else type(event).__name__)
            if lane is None:
                return
            self.state, effects = step(self.state, LaneFailed(lane), now)
        self._checked(self.state)
        for effect in effects:
            self._do(effect)

    def _do(self, effect: RoundEffect) -> None:
        if effect.lane is not None:
            self.working[effect.lane] = self._tasks.create_task(self._work(effect, effect.lane))
            return
        match effect:
            case Note(occurrences):
                self._events.note(occurrences)
            case Warn(message):
                _LOG.warning("%s", message, extra={"node": self._node})
            case CountXid(xid, known):
                self._metrics.heard_xid(xid, known=known)
            case CountWrite(target, taken_back):
                self._metrics.writes.labels(str(target), str(taken_back).lower()).inc()
                _LOG.info("wrote %s", target, extra={"node": self._node, "taken_back": taken_back})
            case ShowRound():
                self._metrics.show_round(effect)
            case _:
                raise AssertionError(f"{type(effect).__name__} belongs to no lane, and nothing does it at once")

    async def _work(self, effect: RoundEffect, lane: Lane) -> None:
        try:
            event = await self._performer.perform(effect)
        except Exception:  # noqa: BLE001 as above
            self._bug(lane.value)
            event = LaneFailed(lane)
        del self.working[lane]
        self.handle(event)

    def _bug(self, part: str) -> None:
        self._metrics.bugs.labels(part).inc()
        _LOG.exception("a bug in %s", part)

    async def _keep_time(self) -> None:
        """Begin work that becomes due while no event comes."""
        while True:
            self._woken.clear()
            now = _now()
            wait = wakes_at(self.state, now) - now.steady
            try:
                async with asyncio.timeout(min(wait, self.state.plan.pace.every)):
                    await self._woken.wait()
            except TimeoutError:
                now = _now()
                while (lane := next_due(self.state, now)) is not None:
                    self._take(Due(lane), now)

    async def _first_list(self, what: WatchedKind, reflector: Reflector) -> None:
        await reflector.synced.wait()
        self.handle(Listed(what))

    def _reflector(self, what: WatchedKind) -> Reflector:
        resource, counter = _RESOURCES[what], self._metrics.watch
        field, handler = self._handler(what)
        return Reflector(
            self._kube,
            resource,
            handler,
            selectors={"fieldSelector": f"{field}={self._node}"},
            pace=WatchPace(silent=_SILENT_S),
            count=lambda happening: counter.labels(resource.plural, happening).inc(),
            on_error=self._watch_failed,
        )

    def _watch_failed(self, about: str, error: Exception) -> None:
        if isinstance(error, KubeError):
            _LOG.warning("%s: %s", about, error)
        else:
            self._metrics.bugs.labels("watch").inc()
            _LOG.error("a bug while %s were taken in: %s", about, error, exc_info=error)

    def _handler(self, what: WatchedKind) -> tuple[str, Handler]:
        if what is WatchedKind.PODS:
            return "spec.nodeName", PodWatch(self.state.plan.rules.types, self.handle)
        return "metadata.name", ObjectWatch(what, self._node, self.handle)
