"""Keeps the health lease: looks at the Lease and the entries, and does what is decided on them.

Several keepers may run: each change is a compare-and-swap on the configuration, so that one of them makes it. Only who
made it tells it.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

from koordgate.kube.client import KubeClient
from koordgate.kube.errors import Conflict, Invalid, KubeError, NotFound
from koordgate.kube.resource import EVENTS, LEASES, PODS
from koordgate.steady import steadily
from webhook.lease import decide, entries, selftest
from webhook.lease.decide import LeaseLook, LeaseMemory, LeaseRules, LeaseWish
from webhook.lease.entries import EntryState, Guarded, Stands
from webhook.lease.metrics import LeaseMetrics
from webhook.lease.record import Beat, beat_of
from webhook.lease.selftest import Judged, Probe, ProbeAnswer, Verdict
from webhook.settings import WebhookSettings

_LOG: Final = logging.getLogger(__name__)
_CALL_S: Final = 15.0  # a dry run passes two webhooks that may each take 2 s, and those of other products
_ATTEMPTS: Final = 5
_STUCK_S: Final = 300.0  # a look takes less than a minute, whatever fails

States = dict[Guarded, EntryState]


class LeaseKeeper:
    """Opens the guarded entries while no replica lives, and shuts them again.

    Args:
        kube: the open client.
        settings: of the webhook.
        metrics: of this process.
        clock: monotonic seconds.
        wall: seconds since the epoch. Only people read them.
        sleep: waits for seconds.
    """

    def __init__(
        self,
        kube: KubeClient,
        settings: WebhookSettings,
        metrics: LeaseMetrics,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        lease = settings.health_lease
        self._kube = kube
        self._settings = settings
        self._lease = lease
        self._metrics = metrics
        self._clock = clock
        self._wall = wall
        self._sleep = sleep
        self._rules = LeaseRules(lease.renew_seconds, lease.open_after_seconds, lease.self_tests)
        self._memory = LeaseMemory()
        self._problem = ""
        self._began = clock()
        metrics.silent.set_function(lambda: decide.silence(self._memory, clock()))

    async def run(self) -> None:
        """Keep the lease until cancelled."""

        def bug() -> None:
            self._metrics.bugs.inc()
            _LOG.exception("a bug in the keeper of the health lease; it begins again")

        await steadily(self._run, bug)

    def unhealthy(self) -> list[str]:
        """Why the process should be restarted, a sentence each."""
        age = self._clock() - self._began
        return [f"the last look began {age:.0f} s ago"] if age > _STUCK_S + self._rules.every else []

    async def _run(self) -> None:
        while True:
            await self.look()
            await self._sleep(self._rules.every)

    async def look(self) -> LeaseWish:
        """Look once, and do what is then to be done; returns that."""
        self._began = self._clock()
        try:
            wish, problem = await self._look()
        except KubeError as error:
            wish, problem = LeaseWish.NOTHING, str(error)
        if problem and problem != self._problem:
            _LOG.warning("the health lease: %s", problem)
        elif self._problem and not problem:
            _LOG.info("the health lease does its work again")
        self._problem = problem
        self._metrics.problem.set(bool(problem))
        return wish

    async def _look(self) -> tuple[LeaseWish, str]:
        beat, states = await self._beat(), await self._states()
        look = LeaseLook(self._clock(), beat, {guarded: state.stands for guarded, state in states.items()})
        self._memory = decide.notice(self._memory, look, self._rules)
        self._show(states)
        wish, problem = decide.begin(self._memory, look, self._rules), ""
        if wish is LeaseWish.TEST:
            test = await self._self_test(states)
            self._memory, wish, problem = decide.conclude(self._memory, look, self._rules, test)
        if wish is LeaseWish.CHECK_POLICY:
            held = await self._probe(Probe.HELD)
            wish, problem = decide.checked(self._memory, look, self._rules, held), problem or held.reason
        failed = await self._fulfil(wish, states)
        return wish, failed or problem

    async def _self_test(self, states: States) -> Judged:
        """Try whether both entries are answered."""
        for probe, guarded in ((Probe.TRANSLATED, Guarded.MUTATING), (Probe.REFUSED, Guarded.VALIDATING)):
            judged = await self._probe(probe, opened=states[guarded].stands is Stands.OPEN)
            if judged.verdict is not Verdict.YES:
                return judged
        return Judged(Verdict.YES)

    async def _probe(self, probe: Probe, *, opened: bool = False) -> Judged:
        path = PODS.path(namespace=self._lease.namespace)
        try:
            answer = ProbeAnswer(await self._kube.create(path, selftest.pod(probe), dry_run=True, deadline=_CALL_S))
        except KubeError as error:
            answer = ProbeAnswer(message=error.message)
        return selftest.judge(probe, answer, self._settings.scheduler.name, opened=opened)

    async def _beat(self) -> Beat | None:
        try:
            return beat_of(await self._kube.get(LEASES.path(self._lease.name, self._settings.identity.namespace)))
        except NotFound:
            return None

    async def _states(self) -> States:
        return {guarded: await self._state(guarded) for guarded in Guarded}

    async def _state(self, guarded: Guarded) -> EntryState:
        try:
            return entries.state_of(guarded, await self._kube.get(self._path(guarded)))
        except NotFound:
            return entries.state_of(guarded, None)

    def _path(self, guarded: Guarded) -> str:
        identity = self._settings.identity
        return guarded.resource.path(identity.mutating if guarded is Guarded.MUTATING else identity.validating)

    async def _fulfil(self, wish: LeaseWish, states: States) -> str:
        """Do something; returns what an administrator should look at, "" for nothing."""
        match wish:
            case LeaseWish.OPEN_MUTATING:
                return await self._open(Guarded.MUTATING, states)
            case LeaseWish.OPEN_VALIDATING:
                return await self._open(Guarded.VALIDATING, states)
            case LeaseWish.SHUT_VALIDATING:
                return await self._shut(Guarded.VALIDATING, states)
            case LeaseWish.SHUT | LeaseWish.TIDY:
                # The policy follows the mutating entry, which is therefore the last.
                return await self._shut(Guarded.VALIDATING, states) or await self._shut(Guarded.MUTATING, states)
            case LeaseWish.NOTHING | LeaseWish.TEST | LeaseWish.CHECK_POLICY:
                return ""

    async def _open(self, guarded: Guarded, states: States) -> str:
        now = self._now()
        if problem := await self._patch(guarded, states[guarded], lambda state: entries.opening(guarded, state, now)):
            return problem
        self._metrics.open.labels(guarded.entry).set(1)
        self._metrics.changes.labels("opened").inc()
        message = (
            f"no replica has lived for {decide.silence(self._memory, self._clock()):.0f} s, so {guarded.entry} is open "
            "(Ignore): Pods that ask for CPUs of their own or for NUMA alignment are created without these; Pods for "
            "devices are refused as before"
        )
        _LOG.warning("%s", message)
        await self._event("HealthLeaseOpened", message, kind="Warning")
        return ""

    async def _shut(self, guarded: Guarded, states: States) -> str:
        state = states[guarded]
        if state.stands not in {Stands.OPEN, Stands.STALE}:
            return ""
        if problem := await self._patch(guarded, state, partial(entries.shutting, guarded)):
            return problem
        if state.stands is Stands.OPEN:
            self._metrics.open.labels(guarded.entry).set(0)
            self._metrics.changes.labels("shut").inc()
            message = f"{guarded.entry} guards Pods again (Fail); it was open since {state.since}"
            _LOG.info("%s", message)
            await self._event("HealthLeaseShut", message, kind="Normal")
        return ""

    async def _patch(
        self, guarded: Guarded, state: EntryState, make: Callable[[EntryState], list[dict[str, Any]]]
    ) -> str:
        """Write a configuration, whatever else of it others change meanwhile; returns why not, "" if it was written."""
        for _ in range(_ATTEMPTS):
            try:
                await self._kube.patch(self._path(guarded), make(state), "json")
            except (Conflict, Invalid):  # Invalid: a `test` operation of the patch failed
                decided, state = state, await self._state(guarded)
                if state.stands is not decided.stands:
                    return f"somebody else has changed {guarded.entry}; looking again"
            else:
                return ""
        return f"the configuration of {guarded.entry} was changed by others {_ATTEMPTS} times; looking again"

    def _now(self) -> str:
        return datetime.fromtimestamp(self._wall(), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

    def _show(self, states: States) -> None:
        for guarded, state in states.items():
            self._metrics.open.labels(guarded.entry).set(state.stands is Stands.OPEN)

    async def _event(self, reason: str, message: str, *, kind: str) -> None:
        """Write an Event about the Lease."""
        now = self._now()
        namespace, name = self._settings.identity.namespace, self._lease.name
        about = {"apiVersion": LEASES.api_version, "kind": "Lease", "namespace": namespace, "name": name}
        event = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"generateName": f"{name}.", "namespace": namespace},
            "involvedObject": about,
            "type": kind,
            "reason": reason,
            "message": message,
            "source": {"component": "koordgate-lease"},
            "reportingComponent": "koordgate-lease",
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }
        try:
            await self._kube.create(EVENTS.path(namespace=namespace), event)
        except KubeError as error:
            _LOG.warning("an Event about the health lease could not be written: %s", error)
