"""Makes moves: evicts one Pod after another, and waits where the next one of its controller goes."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from allocator.packing.defrag import Move
from allocator.vocabulary.devicetype import DeviceTypes
from allocator.vocabulary.evictions import stays
from console.devices.drain import Drain, DrainStep, DryRun, Progress
from console.packing.movable import Owner, owner_of
from console.packing.shareswords import shares_words
from koordgate.backoff import Backoff
from koordgate.kube.client import KubeClient
from koordgate.kube.errors import NotFound
from koordgate.kube.resource import PODS
from webhook.view.podinfo import read_pod_info

Raw = Mapping[str, Any]

_FIRST_WAIT_S: Final = 0.5
_LONGEST_WAIT_S: Final = 5.0
_PAGE: Final = 250


class MoveOutcome(StrEnum):
    """What came of a move."""

    MOVED = "moved"
    CHANGED = "changed"
    REFUSED = "refused"
    STILL_THERE = "stillThere"
    UNBOUND = "notBound"
    ELSEWHERE = "elsewhere"


@dataclass(frozen=True, slots=True)
class MoveResult:
    """A move that was tried.

    Attributes:
        move: the move.
        outcome: what came of it; all but MOVED end the plan.
        text: the same in a sentence.
        pod: the next Pod, as namespace/name; "" while there is none.
        node: where it is.
    """

    move: Move
    outcome: MoveOutcome
    text: str
    pod: str = ""
    node: str = ""


class Mover:
    """Makes moves.

    Args:
        kube: the open client.
        owners: UID of a Pod -> its controller.
        types: the device types.
        timeout: seconds for each of: an eviction that a budget does not allow yet, with the end of the Pod; and the
            bind of the next one.
        report: called with a line for each step.
    """

    def __init__(
        self,
        kube: KubeClient,
        owners: Mapping[str, Owner],
        types: DeviceTypes,
        timeout: float,
        report: Callable[[str], None],
    ) -> None:
        self._kube = kube
        self._owners = owners
        self._types = types
        self._timeout = timeout
        self._report = report

    async def run(self, moves: Sequence[Move]) -> list[MoveResult]:
        """Make moves in order, up to the first surprise; returns what came of each that was tried.

        Raises:
            KubeError: the API server refuses for another reason than a PodDisruptionBudget, or cannot be reached.
        """
        made: list[MoveResult] = []
        for number, move in enumerate(moves, 1):
            done = await self._one(move)
            self._report(f"{number}/{len(moves)} {done.text}")
            made.append(done)
            if done.outcome is not MoveOutcome.MOVED:
                break
        return made

    async def _one(self, move: Move) -> MoveResult:
        guest, owner = move.tenant.guest, self._owners[move.tenant.guest.uid]
        name = f"Pod {guest.namespace}/{guest.name}"
        changed = await self._changed(move, owner)
        if changed:
            return MoveResult(move, MoveOutcome.CHANGED, f"{name} was not evicted: {changed}")
        before = {pod["metadata"]["uid"] for pod in await self._pods(guest.namespace, owner)}
        (ended,) = await Drain(self._kube, DryRun.NONE, self._timeout, self._step).run([move.before])
        if ended.step is DrainStep.BUDGET:
            return MoveResult(move, MoveOutcome.REFUSED, f"{name} was not evicted: {ended.why}")
        if ended.step is not DrainStep.GONE:
            text = f"{name} was evicted and is still there after {self._timeout:g} s"
            return MoveResult(move, MoveOutcome.STILL_THERE, text)
        found = await self._next(guest.namespace, owner, before)
        if found is None:
            text = f"{name} is gone, and no new Pod of {owner} was bound within {self._timeout:g} s"
            return MoveResult(move, MoveOutcome.UNBOUND, text)
        after, node = f"{guest.namespace}/{found['metadata']['name']}", found["spec"]["nodeName"]
        wrong = self._not_as_planned(move, found)
        outcome = MoveOutcome.ELSEWHERE if wrong else MoveOutcome.MOVED
        return MoveResult(move, outcome, f"{name} became {after} on {node}, {wrong or 'as planned'}", after, node)

    def _not_as_planned(self, move: Move, found: Raw) -> str:
        """How the place of the next Pod differs from the plan; "" if it does not.

        Of a Pod that came back to its node, the devices are compared: it may have got the same ones again.
        """
        if found["spec"]["nodeName"] != move.to:
            return f"not on {move.to} as planned"
        if move.to != move.tenant.node:
            return ""
        info = read_pod_info(found, types=self._types)
        got = () if info is None or info.annotation_problem else info.shares
        if {share.id for share in got} == {share.id for share in move.after.shares}:
            return ""
        if not got:
            return f"but its devices cannot be read; planned is {shares_words(move.after.shares)}"
        return f"but on {shares_words(got)}, not on {shares_words(move.after.shares)} as planned"

    def _step(self, one: Progress) -> None:
        why = f": {one.why}" if one.why else ""
        self._report(f"    Pod {one.pod.namespace}/{one.pod.name}: {one.step}{why}")

    async def _changed(self, move: Move, owner: Owner) -> str:
        """Why a Pod is not as it was when the plan was made; "" if it is."""
        guest = move.tenant.guest
        try:
            pod = await self._kube.get(PODS.path(guest.name, guest.namespace))
        except NotFound:
            return "it is gone"
        metadata = pod["metadata"]
        if metadata.get("uid") != guest.uid:
            return "another Pod has its name now"
        if metadata.get("deletionTimestamp") is not None:
            return "it is ending"
        if (pod.get("spec") or {}).get("nodeName") != move.tenant.node:
            return f"it is not on {move.tenant.node}"
        now = owner_of(pod)
        if now is None or now.uid != owner.uid:
            return f"it does not belong to {owner} any more"
        kept = stays(metadata.get("annotations") or {})
        return f"its annotation forbids it now ({kept})" if kept else ""

    async def _pods(self, namespace: str, owner: Owner) -> list[Raw]:
        """The Pods of a controller."""
        found: list[Raw] = []
        async for page, _ in self._kube.list_pages(PODS.path(namespace=namespace), limit=_PAGE):
            found += [pod for pod in page if (of := owner_of(pod)) is not None and of.uid == owner.uid]
        return found

    async def _next(self, namespace: str, owner: Owner, before: set[str]) -> Raw | None:
        """The first new Pod of a controller that is bound; None if none was in time."""
        end = time.monotonic() + self._timeout
        backoff = Backoff(_FIRST_WAIT_S, _LONGEST_WAIT_S)
        while True:
            pods = await self._pods(namespace, owner)
            new = [pod for pod in pods if pod["metadata"]["uid"] not in before and pod["spec"].get("nodeName")]
            if new:
                return min(new, key=_age)
            wait = backoff.failed()
            if time.monotonic() + wait > end:
                return None
            await asyncio.sleep(wait)


def _age(pod: Raw) -> tuple[str, str]:
    metadata = pod["metadata"]
    return str(metadata.get("creationTimestamp") or ""), str(metadata["name"])
