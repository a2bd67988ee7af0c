"""Plays a trace through admission, filter and bind, and measures allocation and fragmentation on the way."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from typing import Final, NamedTuple

from allocator.headroom import needs_of
from allocator.vocabulary.mix import Mix
from console.simulator.cluster import OfflineCluster, PodFate
from console.simulator.compare import Measure
from openb.objects import pod_object
from openb.trace import WHOLE, TracePod
from webhook.upkeep.headroom import Eased, bounds_of, short_now, with_taint

_NAMESPACE: Final = "default"
SAMPLES: Final = 100
"""Times at which a run is measured, about."""


class Sample(NamedTuple):
    """The state of a cluster at one moment; all but the first figure in percent of all its GPUs.

    Attributes:
        at: what the Pods that have arrived ask for, in percent of all GPUs; if Pods end too, the time in seconds.
        asked: what the Pods that have arrived and not ended ask for.
        allocated: what those of them ask for that are bound.
        fragmented: the fragmentation that is expected for the mix.
    """

    at: float
    asked: float
    allocated: float
    fragmented: float


@dataclass(slots=True)
class Played:
    """How a trace went.

    Attributes:
        samples: in order; the first before any Pod arrives, the last after the last event.
        bound: number of Pods that were bound.
        failed: number of Pods that fitted nowhere, or were refused.
        failed_plain: those of them that ask for no GPU.
        taints: number of times at which a node got or lost the taint koordgate.io/headroom.
        refused: why admission or a bind refused a Pod: one reason for each kind, with the first such Pod.
    """

    samples: list[Sample] = field(default_factory=list)
    bound: int = 0
    failed: int = 0
    failed_plain: int = 0
    taints: int = 0
    refused: dict[str, str] = field(default_factory=dict)

    def at(self, where: float) -> Sample | None:
        """The first sample from a place on; None if the run did not get so far."""
        return next((sample for sample in self.samples if sample.at >= where), None)


class Player:
    """Plays Pods into a cluster.

    Args:
        cluster: with its nodes loaded, and a stock kube-scheduler's scores for the Pods of others.
        mix: by which fragmentation is measured.
        tell: called after each event with how many are over.
        plain: chooses a node for a Pod that asks for no GPU, in place of the stock kube-scheduler; None to leave it.
        moved: called with a Pod, its node, its GPUs' minors, and 1 when it is bound or -1 when it has ended.
    """

    def __init__(
        self,
        cluster: OfflineCluster,
        mix: Mix,
        *,
        tell: Callable[[int], object] = lambda _over: None,
        plain: Callable[[TracePod], str | None] | None = None,
        moved: Callable[[TracePod, str, Sequence[int], int], object] = lambda _pod, _node, _minors, _sign: None,
    ) -> None:
        self._cluster = cluster
        self._tell = tell
        self._plain = plain
        self._moved = moved
        self.played = Played()
        self._over = 0
        self._bound: dict[str, tuple[TracePod, str, tuple[int, ...]]] = {}
        self._asked = self._allocated = self._arrived = 0
        headroom = cluster.parts.settings.headroom
        self._bounds = bounds_of(headroom) if headroom.mode == "taint" else None
        self._eased = Eased(headroom.untaint_after_seconds)
        self._now = 0.0  # seconds; they pass in a replay only
        self._needs = needs_of(mix)
        for name in cluster.node_names:
            self._tend(name)
        self._measure = Measure(cluster, mix)
        self.all_milli = WHOLE * self._measure.gpus

    async def arrive(self, pods: Sequence[TracePod]) -> Played:
        """Let Pods arrive one by one, of which none ends; what fits nowhere has failed.

        No time passes, so that a taint is removed only if the settings demand no time for it.
        """
        every = max(1, self.all_milli // SAMPLES)
        due = every
        self._sample(0.0)
        for pod in pods:
            await self._submit(pod)
            if self._arrived >= due or pod is pods[-1]:
                due = (self._arrived // every + 1) * every
                self._sample(self._percent(self._arrived))
        return self.played

    async def replay(self, pods: Iterable[TracePod]) -> Played:
        """Let Pods arrive and end at their own times; what fits nowhere when it arrives has failed.

        At the same time, Pods end before others arrive.
        """
        events = sorted(_events(pods), key=itemgetter(0, 1))
        if not events:
            return self.played
        begin, last = events[0][0], events[-1][0]
        every = max(1, (last - begin) // SAMPLES)
        due = begin
        for (time, arrives), group in groupby(events, key=itemgetter(0, 1)):
            while due < time:
                self._sample(float(due - begin))
                due += every
            self._now = float(time - begin)
            for node in self._eased.due(self._now):
                self._tend(node)
            here = [pod for _, _, pod in group]
            if not arrives:
                await self._end(here)
            else:
                for pod in here:
                    await self._submit(pod)
        self._sample(float(last - begin))
        return self.played

    async def _submit(self, pod: TracePod) -> None:
        milli = pod.ask.gpu_milli
        self._arrived += milli
        self._asked += milli
        made, played = pod_object(pod), self.played
        if self._plain is None or pod.ask.gpus:
            result = await self._cluster.submit(made)
        else:
            result, node = await self._cluster.admit(made), self._plain(pod)
            if result.state is PodFate.ADMITTED and node is not None:
                result = await self._cluster.bind(_NAMESPACE, pod.name, node)
        if result.state is PodFate.BOUND:
            played.bound += 1
            self._allocated += milli
            node = str(result.pod["spec"]["nodeName"])
            self._touch(node)
            holding = self._cluster.parts.cluster.snapshot(node).holdings.get(result.pod["metadata"]["uid"])
            minors = tuple(share.minor for share in holding.shares) if holding is not None else ()
            self._bound[pod.name] = (pod, node, minors)
            self._moved(pod, node, minors, 1)
        else:
            played.failed += 1
            played.failed_plain += not pod.ask.gpus
            if result.state in {PodFate.DENIED, PodFate.BIND_REFUSED}:
                played.refused.setdefault(result.state, f"Pod {pod.name}: {result.message}")
            if result.state is not PodFate.DENIED:
                await self._cluster.delete_all([(_NAMESPACE, pod.name)], settle=False)
        self._over += 1
        self._tell(self._over)

    async def _end(self, pods: Sequence[TracePod]) -> None:
        self._asked -= sum(pod.ask.gpu_milli for pod in pods)
        ended = [self._bound.pop(pod.name) for pod in pods if pod.name in self._bound]
        await self._cluster.delete_all((_NAMESPACE, pod.name) for pod, _, _ in ended)
        for pod, node, minors in ended:
            self._allocated -= pod.ask.gpu_milli
            self._touch(node)
            self._moved(pod, node, minors, -1)
        self._over += len(pods)
        self._tell(self._over)

    def _touch(self, node: str) -> None:
        self._measure.touch(node)
        self._tend(node)

    def _tend(self, node: str) -> None:
        """Set or remove the taint of a node that is short, as the webhook does in a cluster."""
        view = self._cluster.parts.cluster
        if self._bounds is None:
            return
        was = node in view.nodes.short
        short = short_now(view, node, self._needs, self._bounds, was=was)
        if self._eased.wants_taint(node, was=was, short=short, now=self._now) != was:
            self._cluster.taint(node, with_taint(self._cluster.taints(node), wanted=not was))
            self._eased.forget(node)
            self.played.taints += 1

    def _sample(self, at: float) -> None:
        asked, allocated = self._percent(self._asked), self._percent(self._allocated)
        self.played.samples.append(Sample(at, asked, allocated, self._measure.fragmented()))

    def _percent(self, milli: int) -> float:
        return milli * 100 / max(self.all_milli, 1)


def _events(pods: Iterable[TracePod]) -> Iterator[tuple[int, bool, TracePod]]:
    """Arrivals and ends: the time, whether it is not an end (ends come first), and the Pod."""
    for pod in pods:
        if pod.created is not None:
            yield pod.created, True, pod
            if pod.deleted is not None:
                yield max(pod.deleted, pod.created + 1), False, pod
