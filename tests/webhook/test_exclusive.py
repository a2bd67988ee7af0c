"""With late replicas and failures, in any order: nothing is ever given twice to live Pods."""

import asyncio
import json
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import machines_cpu
from builders import device_entry
from fake_kube import FakeKube, answer, drop, lose_answer
from hypothesis import given, settings
from hypothesis import strategies as st
from trials import examples
from waiting import until
from world import World, binding, binds, cpu_pod

from allocator.vocabulary.cputopology import members, parse
from allocator.vocabulary.names import RESOURCE_STATUS
from allocator.wire.podallocated import read_allocation
from koordgate.kube.client import KubeClient
from koordgate.kube.errors import KubeError
from koordgate.kube.resource import DEVICES, NODE_ALLOCATIONS, NODES, PODS, TOPOLOGIES
from webhook import patch

MAX_REQUEST_S = 34
FOUR_CPUS = machines_cpu.build(1, 1, 2, 2, machines_cpu.siblings_near)
NAMES = "abcd"
NODES_THERE = ("n1", "n2")
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("bind"), st.sampled_from(NAMES), st.sampled_from(NODES_THERE), st.integers(0, 1)),
        st.tuples(st.just("bind"), st.sampled_from(NAMES), st.sampled_from(NODES_THERE), st.integers(0, 1)),
        st.tuples(st.just("review"), st.sampled_from(NAMES), st.sampled_from(NODES_THERE), st.integers(0, 1)),
        st.tuples(st.just("arrive"), st.sampled_from(NAMES)),
        st.tuples(st.just("see"), st.integers(0, 1), st.sampled_from([PODS, NODE_ALLOCATIONS])),
        st.tuples(st.just("delete"), st.sampled_from(NAMES)),
        st.tuples(st.just("finish"), st.sampled_from(NAMES)),
        st.tuples(st.just("reconcile"), st.integers(0, 1)),
        st.tuples(st.just("wait"), st.sampled_from([1, 30, 61, 121, 500])),
        st.tuples(
            st.just("fault"),
            st.sampled_from(["get", "create", "update"]),
            st.sampled_from(["nodeallocations", "pods/binding", "pods"]),
            st.sampled_from(["drop", "lose", "refuse"]),
        ),
    ),
    max_size=25,
)


def asking(name: str, uid: str) -> dict[str, Any]:
    """A Pod that is too large for two of them to share a card or a node's CPUs."""
    return cpu_pod(name, 3, more={"kubernetes.io/gpu": "60"}, uid=uid)


async def _at_once(_seconds: float) -> None:
    """The client's waits take no time."""


@dataclass
class Story:
    """Two replicas with late watches, a scheduler that tries anything, and an API server that fails now and then."""

    replicas: list[World]
    on_the_way: list[tuple[str, int, dict[str, Any]]] = field(default_factory=list)  # Pod, since when, its Binding
    lives: Counter[str] = field(default_factory=Counter)

    @property
    def world(self) -> World:
        return self.replicas[0]

    def there(self, name: str) -> bool:
        return any(obj["metadata"]["name"] == name for obj in self.world.fake.objects(PODS.path()))

    def uid(self, name: str) -> str:
        return f"uid-{name}-{self.lives[name]}"

    def fault(self, verb: str, resource: str, kind: str) -> None:
        made = {"drop": drop, "lose": lose_answer, "refuse": lambda: answer(500)}[kind]()
        self.world.fake.faults.add(verb, resource, made)

    async def review(self, name: str, node: str, replica: int) -> None:
        """Both webhooks answer; the write itself is still outstanding."""
        if not self.there(name):
            return
        world = self.replicas[replica]
        asked = binding(name, node, uid=self.uid(name))
        mutated = await world.mutate(binds(asked))
        if mutated.allowed:
            asked = patch.apply(asked, mutated.patch)
            if (await world.validate(binds(asked))).allowed:
                self.on_the_way.append((name, world.clock.now, asked))

    async def arrive(self, name: str) -> None:
        """The oldest Binding of a Pod is performed, or refused by the API server."""
        for index, (whose, _, asked) in enumerate(self.on_the_way):
            if whose == name:
                del self.on_the_way[index]
                with suppress(KubeError):
                    await self.world.kube.create(PODS.path(name, "default", "binding"), asked)
                return

    async def bind(self, name: str, node: str, replica: int) -> None:
        await self.review(name, node, replica)
        await self.arrive(name)

    def see(self, replica: int, resource: Any) -> None:
        self.replicas[replica].see(resource)

    def delete(self, name: str) -> None:
        if self.there(name):
            self.world.remove_pod(name)
            self.lives[name] += 1
            self.world.add_pod(asking(name, self.uid(name)))

    def finish(self, name: str) -> None:
        if self.world.pod(name)["spec"].get("nodeName"):
            self.world.change_pod(name, status={"phase": "Succeeded"})

    async def reconcile(self, replica: int) -> None:
        with suppress(KubeError):
            await self.replicas[replica].parts.reconciler.reconcile()

    async def wait(self, seconds: int) -> None:
        for replica in self.replicas:
            replica.clock.now += seconds
        ended = self.world.clock.now - MAX_REQUEST_S  # no API request lives longer
        self.on_the_way = [one for one in self.on_the_way if one[1] >= ended]

    def audit(self) -> None:
        """Audit the Pods' own annotations, which determine what their containers see."""
        given: Counter[str] = Counter()
        cpus: Counter[tuple[str, int]] = Counter()
        for obj in self.world.fake.objects(PODS.path()):
            if obj["spec"].get("nodeName") and obj.get("status", {}).get("phase") != "Succeeded":
                shares = read_allocation(obj["metadata"]["annotations"]).shares
                assert shares, "bound without an allocation"
                for share in shares:
                    assert share.id.startswith(f"GPU-{obj['spec']['nodeName']}-")
                    given[share.id] += share.amounts["gpu-core"]
                own = parse(json.loads(obj["metadata"]["annotations"][RESOURCE_STATUS])["cpuset"])
                assert own.bit_count() == 3
                cpus.update((obj["spec"]["nodeName"], cpu) for cpu in members(own))
        assert all(percent <= 100 for percent in given.values()), given
        assert all(owners == 1 for owners in cpus.values()), cpus


async def tell(steps: list[tuple[Any, ...]]) -> None:
    async with FakeKube() as fake, KubeClient(fake.url, sleep=_at_once) as kube:
        story = Story([World(fake, kube), World(fake, kube)])
        story.replicas[1].clock.ahead = 100_000  # the clocks of replicas are a day apart
        for node in NODES_THERE:
            story.world.add_node(node, device_entry(0), cpu=FOUR_CPUS)
        for name in NAMES:
            story.world.add_pod(asking(name, story.uid(name)))
        for replica in story.replicas:
            replica.see(NODES, DEVICES, TOPOLOGIES)
        releases = [asyncio.create_task(replica.parts.reconciler.run_releases()) for replica in story.replicas]
        for what, *arguments in steps:
            done = getattr(story, what)(*arguments)
            if done is not None:
                await done
            for replica in story.replicas:
                await until(replica.parts.reconciler._looks.empty)
                await replica.idle()
            story.audit()
        for task in releases:
            task.cancel()
        await asyncio.gather(*releases, return_exceptions=True)


@given(STEPS)
@settings(max_examples=examples(100))
def test_no_card_and_no_cpu_is_given_twice_to_pods_that_live(steps: list[tuple[Any, ...]]) -> None:
    asyncio.run(tell(steps))
