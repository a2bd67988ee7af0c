"""Lets Pods arrive in a cluster: created in their order and scheduled, by priority where that differs."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from heapq import heappop, heappush
from typing import Any

from console.simulator.cluster import OfflineCluster, PodFate, Result, stands
from console.simulator.inputs import key_of
from console.simulator.workloads import Key, WantedPod

_RUNS = (PodFate.BOUND, PodFate.STANDING)


class Arrivals:
    """Creates Pods and schedules them.

    Each is scheduled when it is created. Where Pods name different priorities, all are created first, and the waiting
    Pod of the highest priority is taken, of equals the one that was created first, as kube-scheduler does. A Pod that
    follows another is created once that one is bound.

    Args:
        cluster: in which everything else is loaded.
        there: the Pods that are there, by namespace and name.
        tell: called with the number of Pods that are done.
    """

    def __init__(
        self,
        cluster: OfflineCluster,
        there: Mapping[Key, Result],
        tell: Callable[[int], object] = lambda _done: None,
    ) -> None:
        self._cluster = cluster
        self._there = there
        self._tell = tell
        self._results: dict[int, Result] = {}
        self._waiting: list[tuple[int, int]] = []  # the negative priority and the place of each Pod to be scheduled
        self._followers: dict[Key, int] = {}
        self._bound: set[Key] = set()
        self._done = 0
        self._wanted: Sequence[WantedPod] = ()

    async def run(self, wanted: Iterable[WantedPod]) -> list[Result]:
        """Let all arrive; returns the outcomes in their order."""
        self._wanted = list(wanted)
        new = [one.pod["spec"] for one in self._wanted if not stands(one.pod)]
        alike = len({(spec.get("priorityClassName"), spec.get("priority")) for spec in new}) <= 1
        for index, one in enumerate(self._wanted):
            key = key_of(one.pod)
            if stands(one.pod):
                self._results[index] = self._there[key]
            elif one.follows is None or self._runs(one.follows):
                await self._create(index)
            else:
                self._followers[one.follows] = index
            if alike:
                await self._schedule()
        await self._schedule()
        return [self._outcome(index) for index in range(len(self._wanted))]

    async def _schedule(self) -> None:
        """Schedule the Pods that wait."""
        while self._waiting:
            index = heappop(self._waiting)[1]
            result = self._results[index] = await self._cluster.schedule(self._results[index])
            self._done += 1
            self._tell(self._done)
            if result.state is PodFate.BOUND:
                self._bound.add(key_of(self._wanted[index].pod))
                await self._follow(key_of(self._wanted[index].pod))

    def _runs(self, key: Key) -> bool:
        return key in self._bound or (key in self._there and self._there[key].state in _RUNS)

    async def _follow(self, key: Key) -> None:
        """Create the Pod that follows one that runs now."""
        index = self._followers.pop(key, None)
        if index is not None:
            await self._create(index)

    async def _create(self, index: int) -> None:
        result = self._results[index] = await self._cluster.admit(self._wanted[index].pod)
        if result.state is PodFate.ADMITTED:
            heappush(self._waiting, (-_priority(result.pod), index))

    def _outcome(self, index: int) -> Result:
        known = self._results.get(index)
        if known is not None:
            return known
        one = self._wanted[index]
        before = "/".join(one.follows or ())
        pod: dict[str, Any] = one.pod
        return Result(pod, PodFate.NOT_CREATED, (f"{one.of} creates it once Pod {before} runs",), given=pod)


def _priority(pod: Mapping[str, Any]) -> int:
    priority = pod["spec"].get("priority")
    return priority if isinstance(priority, int) else 0
