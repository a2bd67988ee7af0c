"""Frees one device of its Pods: `koordgate devices drain` evicts the Pods that hold some of it, and no others."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from allocator.vocabulary.holdings import Holding
from koordgate.backoff import Backoff
from koordgate.kube.client import KubeClient
from koordgate.kube.errors import Conflict, NotFound, TooManyRequests
from koordgate.kube.resource import PODS

_FIRST_WAIT_S: Final = 0.5
_LONGEST_WAIT_S: Final = 10.0
_ANSWER_S: Final = 10.0
_ENDED: Final = ("Succeeded", "Failed")


class DryRun(StrEnum):
    """Whether anything is written."""

    NONE = "none"
    CLIENT = "client"
    SERVER = "server"


class DrainStep(StrEnum):
    """The stage that a Pod reached."""

    WOULD_EVICT = "would be evicted"
    BUDGET = "may not be evicted now"
    EVICTED = "evicted, ending"
    GONE = "gone"
    LEFT = "still there"


@dataclass(frozen=True, slots=True)
class Progress:
    """One Pod at one moment."""

    pod: Holding  # the Pod, which holds some of the device
    step: DrainStep  # the stage that it reached
    why: str = ""  # the API server's message; "" if there is none


@dataclass(frozen=True, slots=True)
class Drain:
    """Evicts Pods.

    `timeout`: seconds after which it gives up. `grace`: seconds that a Pod has to end; None for its own.
    """

    kube: KubeClient
    dry_run: DryRun
    timeout: float
    report: Callable[[Progress], None]
    grace: int | None = None

    async def run(self, pods: Sequence[Holding]) -> list[Progress]:
        """Evict these Pods and wait until they are gone; returns each one's outcome, in their order.

        Raises KubeError: the API server refuses for another reason than a PodDisruptionBudget, or cannot be reached.
        """
        end = time.monotonic() + self.timeout
        try:
            async with asyncio.TaskGroup() as tasks:
                running = [tasks.create_task(self._one(pod, end)) for pod in pods]
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from failed
        return [task.result() for task in running]

    async def _one(self, pod: Holding, end: float) -> Progress:
        done = await self._evicted(pod, end)
        if done.step is DrainStep.EVICTED:
            self.report(done)
            done = await self._gone(pod, end)
        self.report(done)
        return done

    async def _evicted(self, pod: Holding, end: float) -> Progress:
        """Evict a Pod; retry while its PodDisruptionBudget does not allow it."""
        if self.dry_run is DryRun.CLIENT:
            return Progress(pod, DrainStep.WOULD_EVICT)
        backoff = Backoff(_FIRST_WAIT_S, _LONGEST_WAIT_S)
        while True:
            tried, least = await self._attempt(pod)
            wait = max(backoff.failed(), least)
            last = self.dry_run is DryRun.SERVER or time.monotonic() + wait > end
            if tried.step is not DrainStep.BUDGET or last:
                return tried
            if backoff.failures == 1:
                self.report(tried)
            await asyncio.sleep(wait)

    async def _attempt(self, pod: Holding) -> tuple[Progress, float]:
        """Evict a Pod once; returns the result, and the least seconds to wait before the next attempt."""
        dry = self.dry_run is DryRun.SERVER
        path = PODS.path(pod.name, pod.namespace, "eviction")
        try:
            await self.kube.create(path, self._eviction(pod), dry_run=dry, deadline=_ANSWER_S)
        except TooManyRequests as error:
            return Progress(pod, DrainStep.BUDGET, error.message), error.retry_after or 0
        except NotFound:
            return Progress(pod, DrainStep.GONE), 0
        except Conflict as error:  # another Pod has the name, or the budget was written at this moment
            ended = await self._has_ended(pod)
            return Progress(pod, DrainStep.GONE) if ended else Progress(pod, DrainStep.BUDGET, error.message), 0
        return Progress(pod, DrainStep.WOULD_EVICT if dry else DrainStep.EVICTED), 0

    def _eviction(self, pod: Holding) -> dict[str, Any]:
        options: dict[str, Any] = {"preconditions": {"uid": pod.uid}}
        if self.grace is not None:
            options["gracePeriodSeconds"] = self.grace
        metadata = {"name": pod.name, "namespace": pod.namespace}
        return {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": metadata, "deleteOptions": options}

    async def _gone(self, pod: Holding, end: float) -> Progress:
        backoff = Backoff(_FIRST_WAIT_S, _LONGEST_WAIT_S)
        while not await self._has_ended(pod):
            wait = backoff.failed()
            if time.monotonic() + wait > end:
                return Progress(pod, DrainStep.LEFT)
            await asyncio.sleep(wait)
        return Progress(pod, DrainStep.GONE)

    async def _has_ended(self, pod: Holding) -> bool:
        try:
            found = await self.kube.get(PODS.path(pod.name, pod.namespace))
        except NotFound:
            return True
        return (found.get("status") or {}).get("phase") in _ENDED or found["metadata"].get("uid") != pod.uid
