"""Keeps the reservations of ResourceClaims equal to live claims: what is over is released, at once or by a timer."""

import asyncio
import logging
import math
from collections.abc import Callable
from typing import Final, Protocol

from allocator.claimed import ClaimedToo, Freed, claimed_too, end, judge, patience, release
from allocator.vocabulary.holdings import Holding, ResourceClaim
from allocator.wire.nodeallocation import RecordError
from allocator.wire.resourceclaim import ClaimError
from koordgate.kube.errors import KubeError
from webhook.ledger.ledger import BusyError, Change, Ledger
from webhook.ledger.store import new_mark
from webhook.view.claimfeed import LiveClaims
from webhook.view.cluster import ClusterView

_LOG: Final = logging.getLogger(__name__)
_READ_S: Final = 30.0
_WRITE_S: Final = 5.0
_WITHOUT_PAUSE: Final = 100  # claims that are looked at before others run
_SOONEST_S: Final = 1.0  # between two looks at reservations that are due
Key = tuple[str, str]
"""A node and the UID of a claim."""


class ClaimReports(Protocol):
    """Reports what the controller found."""

    def mended(self, kind: Freed) -> None:
        """A reservation was released for this reason."""

    def claimed_too(self, devices: list[ClaimedToo]) -> None:
        """These devices were given to Pods by koordgate, and to claims by DRA."""

    def unmatched(self, claims: dict[str, list[str]]) -> None:
        """Of these claims (by namespace and name) it is not known which devices they hold on these nodes."""


class ClaimController:
    """Keeps reservations.

    `cluster`: what is known; its claims report here what they let go of. `clock`: monotonic seconds. `grace`: seconds
    from the mark on a reservation to its release. `released`: called with each node on which something was released.
    """

    def __init__(
        self,
        *,
        cluster: ClusterView,
        ledger: Ledger,
        live: LiveClaims,
        clock: Callable[[], float],
        grace: float,
        reports: ClaimReports,
        released: Callable[[str], None],
    ) -> None:
        self._cluster = cluster
        self._ledger = ledger
        self._live = live
        self._clock = clock
        self._grace = grace
        self._reports = reports
        self._released = released
        self._seen: dict[Key, tuple[Holding, float]] = {}  # reservations that nobody is known to use, and since when
        self._ended: asyncio.Queue[str] = asyncio.Queue()
        cluster.claims.ended = self._end
        ledger.recorded.append(self._recorded)

    def _end(self, uid: str) -> None:
        if self._ledger.nodes_of(uid):
            self._ended.put_nowait(uid)

    def _recorded(self, _node: str, reservation: Holding) -> None:
        """A reservation is seen for the first time; `run_releases` releases it if its claim has let go of it by now."""
        if reservation.fence and self._cluster.claims.is_over(reservation):
            self._ended.put_nowait(reservation.uid)

    async def run_releases(self) -> None:
        """Release what was reserved for claims as these let go of it, until cancelled."""
        while True:
            await self.let_go(await self._ended.get())

    async def let_go(self, uid: str) -> None:
        """Release what is reserved for a claim where it is certain that the claim does not hold it."""
        for node in self._ledger.nodes_of(uid):
            reservation = self._ledger.record(node).holdings.get(uid)
            known = self._cluster.claims.known(uid)
            if reservation is None or not reservation.fence or self._is_on(node, known):
                continue
            if self._cluster.claims.is_over(reservation):
                await self._release(node, reservation, "deallocated" if known is not None else "gone")

    async def run_timer(self, every: float) -> None:
        """Look at all reservations at this interval, in seconds, until cancelled; what fails is tried again.

        What becomes due before the next round is looked at when it does.
        """
        left = 0.0
        while True:
            if left <= 0:
                await self.reconcile()
                left = every
            wait = min(left, max(self._due_in(), _SOONEST_S))
            await asyncio.sleep(wait)
            left -= wait
            for (node, _), (reservation, since) in list(self._seen.items()):
                if left > 0 and self._clock() - since > patience(reservation, self._grace):
                    await self._check(node, reservation)

    def _due_in(self) -> float:
        """Seconds until something is to be done about a reservation that has been seen."""
        ends = (since + patience(reservation, self._grace) for reservation, since in self._seen.values())
        return min(ends, default=math.inf) - self._clock()

    async def reconcile(self) -> None:
        """Compare all reservations with live claims once, and tell what DRA and koordgate gave away independently."""
        suspects = [
            (record.node, one)
            for record in self._ledger.records()
            for one in record.holdings.values()
            if one.fence and not self._is_on(record.node, self._cluster.claims.known(one.uid))
        ]
        self._see(suspects)
        for node, reservation in suspects:
            await self._check(node, reservation)
        await self._tell()

    async def _tell(self) -> None:
        """Tell what claims and Pods hold together, and which claims are not understood."""
        claims = self._cluster.claims
        unmatched: dict[str, list[str]] = {}
        nodes: set[str] = set()
        for number, claim in enumerate(claims.all()):
            nodes |= claims.where(claim)
            if found := claims.unmatched(claim.uid, self._cluster.devices):
                unmatched[f"{claim.namespace}/{claim.name}"] = found
            if number % _WITHOUT_PAUSE == _WITHOUT_PAUSE - 1:
                await asyncio.sleep(0)
        twice: list[ClaimedToo] = []
        for node in sorted(nodes):
            twice += claimed_too(self._cluster.snapshot(node))
            await asyncio.sleep(0)
        self._reports.claimed_too(twice)
        self._reports.unmatched(unmatched)

    def _is_on(self, node: str, claim: ResourceClaim | None) -> bool:
        return claim is not None and node in self._cluster.claims.where(claim)

    def _see(self, suspects: list[tuple[str, Holding]]) -> None:
        """Remember since when each suspect has been seen as it is; the others are forgotten."""
        now, before = self._clock(), self._seen
        self._seen = {}
        for node, reservation in suspects:
            known = before.get((node, reservation.uid))
            same = known is not None and known[0] == reservation
            self._seen[node, reservation.uid] = known if same and known is not None else (reservation, now)

    async def _check(self, node: str, reservation: Holding) -> None:
        """Read a claim, and do what is due about its reservation."""
        seen_s = self._clock() - self._seen[node, reservation.uid][1]
        known = self._cluster.claims.known(reservation.uid)
        waits = known is not None and not self._cluster.claims.is_over(reservation)
        if waits and seen_s <= patience(reservation, self._grace):
            return
        try:
            live = await self._live(reservation.namespace, reservation.name, _READ_S)
        except (KubeError, ClaimError) as error:
            _LOG.warning(
                "a reservation could not be compared with its claim; the next round tries again: %s",
                error,
                extra={"node": node, "uid": reservation.uid},
            )
            return
        match judge(reservation, live, here=self._is_on(node, live), seen_s=seen_s, grace=self._grace):
            case None:
                pass
            case "end":
                await self._change(node, reservation, end(reservation, new_mark()))
                marked = self._ledger.record(node).holdings.get(reservation.uid)
                if marked is not None and marked.ending:
                    self._seen[node, reservation.uid] = marked, self._clock()
            case why:
                await self._release(node, reservation, why)

    async def _release(self, node: str, reservation: Holding, why: Freed) -> None:
        if await self._change(node, reservation, release(reservation)):
            self._seen.pop((node, reservation.uid), None)
            self._reports.mended(why)
            self._released(node)

    async def _change(self, node: str, reservation: Holding, change: Change[bool]) -> bool:
        """Correct the ledger; tell whether it was changed."""
        try:
            return await self._ledger.change(node, change, _WRITE_S)
        except (KubeError, BusyError, RecordError) as error:
            _LOG.warning(
                "a reservation could not be corrected; the next round tries again: %s",
                error,
                extra={"node": node, "uid": reservation.uid},
            )
            return False
