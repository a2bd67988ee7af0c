"""The enforcer's process: it registers with the container runtime, and puts into effect what `Mirror` decides.

The runtime makes one call at a time for all Pods of the node, and goes on without a plugin that is late. On the usual
path there is no I/O but two stats. If something here fails, containers that hold cards are refused, and tried again by
the kubelet; all others are let through, without cards where the node is closed.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, NoReturn

from allocator.vocabulary.delivery import ENFORCER
from koordgate.backoff import Backoff
from koordgate.steady import steadily
from reporter import exchange, files
from reporter.enforcer.cards import cards_of
from reporter.enforcer.decide import LIMIT_MISSING, rules_of, shut, void
from reporter.enforcer.doors import Doors
from reporter.enforcer.exchanged import FactsReader, StateWriter, only_one, wait
from reporter.enforcer.limits import Rules, decided
from reporter.enforcer.mirror import Mirror
from reporter.enforcer.model import Answer, CardLimit, Container, Edits, MpsShare, Sandbox, Update
from reporter.enforcer.nri.connection import NriError, RefusedError, UntoldError, serve
from reporter.exchange import CardState, Facts, Remark, State
from reporter.settings import ReporterSettings

_LOG: Final = logging.getLogger(__name__)
_INDEX: Final = "99"  # after all other plugins, so that it sees what they set
_REFUSED: Final = "ContainerRefused"
_SHARE_OF_PATIENCE: Final = 0.6  # of what the runtime waits for an answer
_LOOK_S: Final = 60.0
_LOOKED_S: Final = 0.6  # that a container waits for a look, which takes half a second but for the driver's
_FIRST_LOOK_S: Final = 3.0
_FACTS_S: Final = 5.0
_FIRST_S, _LONGEST_S = 0.2, 3.0
# containerd may panic over what it is to tell (NRI 0.12, plugin.synchronize): it must work between our attempts.
_UNTOLD_S, _LONGEST_UNTOLD_S = 5.0, 300.0
_ANOTHER: Final = "another enforcer is registered on this node: this one waits until that process has ended"
_NOT_YET: Final = "it has not registered with the container runtime yet"


class Enforcer:
    """What answers the runtime."""

    def __init__(self, rules: Rules, facts: FactsReader, doors: Doors, folder: Path) -> None:
        self._rules = rules
        self._mirror = Mirror(rules)
        self._facts = facts
        self._doors = doors
        self._runtime = ""
        self._seconds = 2.0 * _SHARE_OF_PATIENCE
        self._away = _NOT_YET  # why it is not registered
        self._no_limits: str | None = None
        self._looked: tuple[str, Collection[str]] | None = None  # provider and cards of the last look
        self._look_due = 0.0
        self._looking = asyncio.Lock()
        self._kept: dict[str, Mapping[str, CardState]] = {}
        # What a container that is no more leaves, by its id.
        self._caches: dict[str, tuple[str, ...]] = {}
        self._shares: dict[str, MpsShare] = {}
        self._remarks: deque[Remark] = deque(maxlen=exchange.MAX_REMARKS)
        self._going: set[asyncio.Task[None]] = set()  # what no call waits for
        self._unsettled = False  # whether it knows of containers about which not all could be decided yet
        self.again = asyncio.Event()  # set: it is to register anew, so that it is told all that there is
        self.writer = StateWriter(folder, lambda: self.state)

    @property
    def state(self) -> State:
        """What the reporter is told."""
        self._facts.read()
        return State(
            runtime=self._runtime,
            away=not self.registered,
            problems=tuple(filter(None, (self._away, *self._facts.problems))),
            provider=self._looked[0] if self._looked is not None else "",
            limits=self._no_limits,
            cpus=self._mirror.sets_cpus,
            containers={identity: dict(cards) for identity, cards in self._kept.items()},
            remarks=tuple(self._remarks),
        )

    @property
    def registered(self) -> bool:
        """Whether the runtime has taken the registration, and told what there is on the node."""
        return not self._away

    def away(self, why: str) -> None:
        """Take why it is not registered."""
        if why != self._away:
            self._away = why
            _LOG.warning("not registered with the container runtime", extra={"problem": why})
            self.writer.changed()

    def alone(self, *, certain: bool) -> None:
        """Take whether this is the node's only enforcer: the state of any other is not ours to overwrite."""
        self.writer.silent = not certain
        if certain:
            self.writer.changed()
        else:
            self.away(_ANOTHER)

    def configured(self, runtime: str, seconds: float) -> None:
        """Take the runtime's name and version, and how long it waits for an answer."""
        self._runtime = runtime
        if seconds > 0:
            self._seconds = seconds * _SHARE_OF_PATIENCE

    async def synchronized(
        self, sandboxes: tuple[Sandbox, ...], containers: tuple[Container, ...]
    ) -> tuple[Update, ...]:
        """Take all that there is on the node; limits of running containers are set after the answer."""
        ids = [one.id for one in containers]
        self._kept = {}
        for identity in (*self._caches, *self._shares):
            if identity not in ids:
                self._forget(identity)
        facts = self._facts.read()
        self._unsettled = not self._facts.looked
        answer = self._mirror.synchronized(sandboxes, containers, facts)
        self._later(self._set_all(answer))
        try:
            async with asyncio.timeout(self._seconds):
                await self._doors.sweep(ids, answer.limits)
        except Exception:  # noqa: BLE001 without an answer there is no registration
            _LOG.exception("what earlier containers left could not be removed")
        self._away = ""
        _LOG.info("registered with the container runtime", extra={"runtime": self._runtime})
        self.writer.changed()
        return answer.updates

    async def created(self, sandbox: Sandbox, container: Container) -> tuple[Edits, tuple[Update, ...]]:
        """Edit a container that is about to be created, and prepare what it needs."""
        edits = Edits()  # after a fault
        try:
            async with asyncio.timeout(self._seconds):
                facts = await self._facts_for(sandbox, container)
                if shut(sandbox, container, self._rules, self._facts.held):
                    edits = Edits(environment=void(container))
                answer = await self._created(sandbox, container, facts)
        except RefusedError:
            self._forget(container.id)
            raise
        except Exception as error:  # noqa: BLE001 whatever it is, the runtime waits
            self._forget(container.id)  # No answer tells anybody to make room for it.
            self._failed(sandbox, container, error)
            return edits, ()
        return answer.edits, answer.updates

    async def _facts_for(self, sandbox: Sandbox, container: Container) -> Facts | None:
        """The facts; if limits of a container were decided, with what a look for them finds, if it is quick."""
        facts = self._facts.read()
        if facts is not None and not self._facts.looked and decided(sandbox.annotations, container.name):
            await self.found_within(_LOOKED_S)
            facts = self._facts.read()
        return facts

    async def _created(self, sandbox: Sandbox, container: Container, facts: Facts | None) -> Answer:
        answer = self._mirror.created(sandbox, container, facts, self._facts.held)
        if answer.refusal:
            self._refuse(sandbox, answer.refusal)
        for remark in answer.remarks:
            self._remark(remark)
        if answer.caches:
            self._caches[container.id] = answer.caches
            if why := await self._doors.empty(answer.caches):
                self._refuse(sandbox, f"container {container.name}: {why}")
        if answer.mps is not None:
            self._shares[container.id] = answer.mps
            if why := await self._doors.share(answer.mps):
                self._lacks(sandbox, container, answer, why)
                # What is not there cannot be mounted, and the container is to start.
                there = tuple(one for one in answer.edits.mounts if Path(one.source).exists())  # noqa: ASYNC240
                answer = replace(answer, edits=replace(answer.edits, mounts=there), kept=_missing(answer.kept))
        return await self._limited(sandbox, container, answer)

    async def started(self, sandbox: Sandbox, container: Container) -> None:
        """Limit a container that is created, before its first instruction."""
        try:
            async with asyncio.timeout(self._seconds):
                answer = self._mirror.started(container, self._facts.read())
                await self._limited(sandbox, container, answer)
        except RefusedError:
            raise
        except Exception as error:  # noqa: BLE001 whatever it is, the runtime waits
            self._failed(sandbox, container, error)

    async def _limited(self, sandbox: Sandbox, container: Container, answer: Answer) -> Answer:
        """Set the limits, and note what is in force."""
        failed = await self._doors.limit(answer.limits) if answer.limits else {}
        if failed:
            self._lacks(sandbox, container, answer, next(iter(failed.values())))
        self._keep(answer.kept, answer.limits, failed)
        return answer

    async def updated(self, container: Container, cpus: int, mems: int) -> tuple[Update, ...]:
        """Have a container keep the CPUs that are its own."""
        try:
            answer = self._mirror.updated(container.id, cpus, mems, self._facts.read())
        except Exception:  # noqa: BLE001 what was asked is let through; the reporter corrects it
            _LOG.exception("a change of CPUs could not be decided about", extra={"container": container.name})
            return ()
        return (Update(container.id, answer.edits.cpus, answer.edits.mems), *answer.updates)

    async def stopped(self, container: str) -> None:
        """Take back what outlives a container; when this is answered, the runtime removes its cgroup."""
        if limits := self._mirror.stopped(container):
            failed = await self._doors.limit(limits)
            if failed:
                _warn(failed)
                self._later(self._doors.sweep(self._mirror.living, ()))
        if self._kept.pop(container, None) is not None:
            self.writer.changed()

    async def removed(self, container: str) -> None:
        """Forget a container."""
        self._forget(container)
        if self._kept.pop(container, None) is not None:
            self.writer.changed()

    async def sandbox_removed(self, sandbox: str) -> None:
        """Forget a sandbox."""
        self._mirror.sandbox_removed(sandbox)

    async def look(self) -> None:
        """Look every now and then whether limits can be kept here, and for the first facts; until cancelled."""
        while True:
            await self.find()
            if self._unsettled and self._facts.looked:
                self.again.set()
            self.writer.changed()
            await asyncio.sleep(_FACTS_S)

    async def found_within(self, seconds: float) -> None:
        """Find out whether limits can be kept here, as `find`; it goes on if it takes longer."""
        found = asyncio.Event()

        async def find() -> None:
            try:
                await self.find()
            finally:
                found.set()

        self._later(find())
        await wait(found, seconds)

    async def find(self) -> None:
        """Find out whether limits can be kept here, if that is not known, or was found out a minute ago."""
        async with self._looking:
            facts = self._facts.read()
            asked = (facts.provider, facts.cards.keys()) if facts is not None else self._looked
            if asked is None or (asked == self._looked and time.monotonic() < self._look_due):
                return
            no_limits, namespaces = await self._doors.look(*asked)
            self._facts.found(asked[0], no_limits, namespaces)
            self._no_limits, self._looked, self._look_due = no_limits, asked, time.monotonic() + _LOOK_S
            self.writer.changed()

    def _refuse(self, sandbox: Sandbox, why: str) -> NoReturn:
        _LOG.info("a container is refused", extra={"pod": str(sandbox), "problem": why})
        self._remark(Remark(_REFUSED, why, sandbox.uid, sandbox.namespace, sandbox.name))
        raise RefusedError(why)

    def _lacks(self, sandbox: Sandbox, container: Container, answer: Answer, why: str) -> None:
        """Refuse a container that must have its limits; tell of any other that it has not."""
        if answer.required:
            self._refuse(sandbox, f"container {container.name} requires limits of its cards: {why}")
        text = f"container {container.name} runs without the limits of its cards that were decided: {why}"
        self._remark(Remark(LIMIT_MISSING, text, sandbox.uid, sandbox.namespace, sandbox.name))

    def _forget(self, container: str) -> None:
        self._mirror.removed(container)
        if folders := self._caches.pop(container, ()):
            self._later(self._doors.remove(folders))
        if share := self._shares.pop(container, None):
            self._later(self._doors.unshare(share))

    def _failed(self, sandbox: Sandbox, container: Container, error: Exception) -> None:
        """Refuse a container that holds cards after a fault of ours; let any other through."""
        what = f"no answer within {self._seconds:g} s" if isinstance(error, TimeoutError) else type(error).__name__
        about = {"container": container.name, "pod": str(sandbox), "problem": what}
        _LOG.error("a container could not be decided about", extra=about, exc_info=error)
        if cards_of(sandbox.annotations, container.name).names:
            self._forget(container.id)
            self._refuse(sandbox, f"container {container.name}: the enforcer failed ({what}); see its log")

    def _remark(self, remark: Remark) -> None:
        if remark not in self._remarks:
            self._remarks.append(remark)
            self.writer.changed()

    def _keep(
        self,
        kept: Mapping[str, Mapping[str, CardState]],
        limits: Sequence[CardLimit],
        failed: Mapping[CardLimit, str],
    ) -> None:
        """Note what keeps containers to their memory, now that the limits were set."""
        for identity, cards in kept.items():
            own = [one for one in limits if identity in one.cgroup] or limits
            lost = {one.card for one in own if one in failed}
            self._kept[identity] = {card: one.missing if card in lost else one for card, one in cards.items()}
        if kept:
            self.writer.changed()

    async def _set_all(self, answer: Answer) -> None:
        failed = await self._set_each(answer.limits)
        self._keep(answer.kept, answer.limits, failed)

    async def _set_each(self, limits: Sequence[CardLimit]) -> dict[CardLimit, str]:
        """Set limits one by one: creations must not wait for all of them."""
        failed: dict[CardLimit, str] = {}
        for one in limits:
            failed |= await self._doors.limit((one,))
        _warn(failed)
        return failed

    def _later(self, work: Awaitable[object]) -> None:
        async def done() -> None:
            try:
                await work
            except Exception:  # noqa: BLE001 nobody waits for it
                _LOG.exception("work after a call failed")

        task = asyncio.create_task(done())
        self._going.add(task)
        task.add_done_callback(self._going.discard)


def _warn(failed: Mapping[CardLimit, str]) -> None:
    for one, why in failed.items():
        about = {"card": one.card, "cgroup": one.cgroup, "problem": why}
        _LOG.warning("a limit is not in force", extra=about)


def _missing(kept: Mapping[str, Mapping[str, CardState]]) -> dict[str, dict[str, CardState]]:
    return {identity: {card: one.missing for card, one in cards.items()} for identity, cards in kept.items()}


async def stay_registered(enforcer: Enforcer, socket: str, folder: Path, until: asyncio.Event) -> None:
    """Register, and register anew whenever the connection has ended, until the event is set."""
    backoff, untold = Backoff(_FIRST_S, _LONGEST_S), Backoff(_UNTOLD_S, _LONGEST_UNTOLD_S)
    while not until.is_set():
        enforcer.again.clear()
        ending = asyncio.create_task(_ends_with(until, enforcer.again))
        try:
            async with only_one(folder, until, lambda: enforcer.alone(certain=False)) as alone:
                if alone:
                    enforcer.alone(certain=True)
                    await serve(socket, ENFORCER, _INDEX, enforcer, enforcer.again)
            continue
        except (NriError, OSError) as error:
            if enforcer.registered:
                backoff.reset()
                untold.reset()
            enforcer.away(str(error))
            seconds = (untold if isinstance(error, UntoldError) else backoff).failed()
        finally:
            ending.cancel()
        await wait(until, seconds)


async def _ends_with(until: asyncio.Event, connection: asyncio.Event) -> None:
    await until.wait()
    connection.set()


def _bug() -> None:
    _LOG.exception("a part of the enforcer failed, and begins again")


async def run(settings: ReporterSettings, doors: Doors, until: asyncio.Event) -> None:
    """Enforce until the event is set."""
    folder = exchange.folder(settings.roots.state)
    files.own_folder(folder)
    closed = settings.enforcement.closed
    facts = FactsReader(folder, Path(settings.kubelet.device_checkpoint) if closed else None)
    enforcer = Enforcer(rules_of(settings), facts, doors, folder)
    beside = [asyncio.create_task(steadily(work, _bug)) for work in (enforcer.writer.run, enforcer.look)]
    try:
        await enforcer.found_within(_FIRST_LOOK_S)  # before the runtime tells what runs, and asks
        await stay_registered(enforcer, settings.enforcement.socket, folder, until)
    finally:
        for task in beside:
            task.cancel()
        await enforcer.writer.write()
