"""Pods and objects of the input: loaded into a cluster, created in their order and scheduled by priority.

`read_cluster` reads files or the output of kubectl, `standing` makes a cluster of it in which every Pod that is bound
holds what it holds. Commands that ask what would happen begin with these two.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from heapq import heappop, heappush
from typing import Any

from allocator.vocabulary.devicetype import BUILT_IN, DeviceTypes
from allocator.wire.noderuntime import NODE_RUNTIME, read_runtime
from console.simulator.assumed import assume_devices
from console.simulator.cluster import OfflineCluster, PodFate, Result, stands
from console.simulator.objects import Objects, read
from console.simulator.scheduler import unready
from console.simulator.workloads import Key, WantedPod


def read_cluster(
    paths: Iterable[str], memory: Mapping[str, int] | None = None, types: DeviceTypes = BUILT_IN
) -> Objects:
    """Read all objects of files, folders and `-`, as `with_devices` completes them.

    Raises:
        InputError: something cannot be used.
    """
    return with_devices(read(paths), memory, types)


def with_devices(objects: Objects, memory: Mapping[str, int] | None = None, types: DeviceTypes = BUILT_IN) -> Objects:
    """Give Nodes without a Device object devices that are assumed, and remark what the input leaves out.

    `memory` has bytes of a card by model, where the user states it; "" for any other model.
    """
    assumed = assume_devices(objects.nodes, objects.devices, objects.pods, memory, types)
    objects.devices += assumed.devices
    objects.notes += (*assumed.notes, *unready(objects.nodes), *_without_classes(objects))
    return objects


def _without_classes(objects: Objects) -> Iterator[str]:
    """Remark that RuntimeClasses may have been left out, where nodes show their cards to Pods with one only."""
    for device in objects.devices if not objects.runtimes else ():
        annotations = device["metadata"].get("annotations") or {}
        runtime, _ = read_runtime(annotations.get(NODE_RUNTIME))
        if runtime is not None and runtime.default_shows is False and not runtime.nri:
            yield (
                "no RuntimeClass is in the input, and nodes show containers no cards without one: if the cluster has "
                "some, add what `kubectl get runtimeclasses -o yaml` prints"
            )
            return


async def standing(objects: Objects, cluster: OfflineCluster) -> dict[tuple[str, str], Result]:
    """Load all but the Pods that are still to be scheduled into an empty cluster.

    Pods that are bound and have not finished hold what their annotations, their products, or a device plugin gave them.

    Returns:
        The Pods that are there, by namespace and name.

    Raises:
        InputError: an amount of a Node, or of a Pod on it, is not a quantity.
    """
    there = [pod for pod in objects.pods if stands(pod)]
    loaded = await cluster.load([*objects.cluster, *objects.groups, *there])
    return {key_of(one.pod): one for one in loaded}


def key_of(pod: Mapping[str, Any]) -> tuple[str, str]:
    """The namespace and the name of a Pod."""
    return pod["metadata"].get("namespace") or "default", pod["metadata"]["name"]


_RUNS = (PodFate.BOUND, PodFate.STANDING)


class Arrivals:
    """Creates Pods and schedules them.

    Each is scheduled when it is created. Where Pods name different priorities, all are created first, and the waiting
    Pod of the highest priority is taken, of equals the one that was created first, as kube-scheduler does. A Pod that
    follows another is created once that one is bound.

    `tell` is called with the number of Pods that are done.
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
