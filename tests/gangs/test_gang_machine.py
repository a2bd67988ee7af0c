"""Two replicas in any order of events: whoever tends, sees, schedules, ends or deletes, no gang is bound by half."""

import asyncio
from contextlib import AsyncExitStack

from fake_kube import FakeKube
from gangs.companies import HOLD_S, Company, member
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from trials import examples

from koordgate.kube.client import KubeClient
from koordgate.kube.resource import PODS

LEAST = 3
GANGS = "gh"


class GangMachine(RuleBasedStateMachine):
    """Room for one gang and a half; two gangs, whose Pods come and go."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.stack = AsyncExitStack()
        self.number = 0
        self.broken: set[str] = set()  # gangs of which the test deleted a Pod

    @initialize()
    def begin(self) -> None:
        self.runner.run(self._begin())

    async def _begin(self) -> None:
        fake = await self.stack.enter_async_context(FakeKube())
        kube = await self.stack.enter_async_context(KubeClient(fake.url))
        self.company = Company(fake, kube, 2)
        self.company.add_nodes(a=2, b=3, c=1)

    def teardown(self) -> None:
        self.runner.run(self.stack.aclose())
        self.runner.close()

    @rule(gang=st.sampled_from(GANGS), percent=st.sampled_from([100, 100, 200]))
    def create(self, gang: str, percent: int) -> None:
        if self.number < 3 * LEAST:
            self.number += 1
            self.company.one.add_pod(member(f"{gang}-{self.number}", LEAST, percent, gang=gang))

    @rule(which=st.integers(0, 1))
    def see(self, which: int) -> None:
        self.company.replicas[which].see()

    @rule(which=st.integers(0, 1))
    def tend(self, which: int) -> None:
        self.runner.run(self._tend(which))

    async def _tend(self, which: int) -> None:
        replica = self.company.replicas[which]
        await replica.parts.gang_controller.round()
        await replica.idle()

    @rule(which=st.integers(0, 1), after=st.integers(1, 6), lost=st.booleans())
    def tend_and_end(self, which: int, after: int, *, lost: bool) -> None:
        """A replica ends in the middle; a new one takes its place."""
        fake = self.company.fake
        fake.writes_left, fake.answer_lost = after, lost
        self.runner.run(self._tend(which))
        fake.writes_left = None
        now = self.company.now
        kube = self.company.replicas[which].kube
        self.company.replicas[which] = Company(fake, kube).one
        self.company.replicas[which].clock.now = now
        self.company.replicas[which].see()

    @rule()
    def tend_at_once(self) -> None:
        self.runner.run(self._tend_at_once())

    async def _tend_at_once(self) -> None:
        await asyncio.gather(self._tend(0), self._tend(1))

    @rule(which=st.integers(0, 1), gangs=st.sampled_from([GANGS, "g", "h"]))
    def schedule(self, which: int, gangs: str) -> None:
        pods = self.company.fake.objects(PODS.path())
        names = [pod["metadata"]["name"] for pod in pods if pod["metadata"]["name"][0] in gangs]
        self.runner.run(self.company.schedule(names[:2], self.company.replicas[which]))

    @rule(seconds=st.sampled_from([5, 20, HOLD_S // 2, HOLD_S]))
    def pass_time(self, seconds: int) -> None:
        """Watches are late by less than the margin: what happened is seen before much time passes."""
        self.company.see()
        for _ in range(0, seconds, 20):
            self.company.pass_time(min(seconds, 20))
            self.company.see()

    @precondition(lambda self: self.number > LEAST)
    @rule(index=st.integers(0, 8))
    def delete(self, index: int) -> None:
        pods = self.company.fake.objects(PODS.path())
        if index < len(pods):
            name = pods[index]["metadata"]["name"]
            self.company.one.remove_pod(name)
            self.broken.add(name[0])

    @invariant()
    def nothing_is_given_twice(self) -> None:
        if hasattr(self, "company"):
            self.company.one.audit()

    @invariant()
    def what_has_begun_is_held(self) -> None:
        """Of a gang of which a Pod is bound, as many as it needs are bound or hold something.

        `until` does not matter: no step compares it with a clock. A hold whose time is over stays, and a bind may take
        it until a replica has marked it.
        """
        if not hasattr(self, "company"):
            return
        bound = self.company.bound()
        holding = {held.name for held in self.company.held()}
        for gang in {name[0] for name in bound} - self.broken:
            assert len([name for name in holding if name[0] == gang]) >= LEAST, (gang, bound, holding)


GangMachine.TestCase.settings = settings(max_examples=examples(20), stateful_step_count=30)
TestGangMachine = GangMachine.TestCase
