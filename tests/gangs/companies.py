"""Gangs that are bound as a whole, on a fake API server: their Pods, replicas that tend them, and a kube-scheduler."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec
from builders import device_entry
from fake_kube import FakeKube
from world import POLICY, World, gpu_pod

from allocator.vocabulary.holdings import Holding
from allocator.vocabulary.names import GANG_GATE, GANG_TOGETHER
from allocator.wire.gang import GANG_ANNOTATION, GANG_MIN_AVAILABLE
from koordgate.kube.client import KubeClient
from koordgate.kube.resource import NODES, PODS
from webhook import patch
from webhook.admission.translate import TranslationPolicy, translate
from webhook.gangs.controller import MARGIN_S
from webhook.settings import GangSettings, WebhookSettings

Raw = dict[str, Any]
HOLD_S: Final = 100
SETTINGS: Final = WebhookSettings(gangs=GangSettings(all_or_nothing=True, hold_seconds=HOLD_S))
GATING: Final = TranslationPolicy(POLICY.domain, gates=True)


def member(name: str, least: int, percent: int = 100, gang: str = "g", **about: Any) -> Raw:
    """A Pod of an all-or-nothing gang, as it is stored after admission."""
    annotations = {GANG_ANNOTATION: gang, GANG_MIN_AVAILABLE: str(least), GANG_TOGETHER: "true"}
    annotations |= about.pop("annotations", {})
    made = gpu_pod(name, percent, admit=False, annotations=annotations, **about)
    return patch.apply(made, translate(made, GATING, None).operations)


class Company:
    """A cluster with several replicas that see and tend it when the test says so.

    Attributes:
        fake: the API server.
        replicas: share one clock.
    """

    def __init__(
        self, fake: FakeKube, kube: KubeClient, replicas: int = 1, settings: WebhookSettings = SETTINGS
    ) -> None:
        self.fake = fake
        self.replicas = [World(fake, kube, settings) for _ in range(replicas)]

    @property
    def one(self) -> World:
        """The first replica."""
        return self.replicas[0]

    @property
    def now(self) -> int:
        return self.one.clock.now

    def pass_time(self, seconds: int) -> None:
        for replica in self.replicas:
            replica.clock.now += seconds

    def add_nodes(self, **cards: int) -> None:
        for name, count in cards.items():
            self.one.add_node(name, *(device_entry(minor) for minor in range(count)))
            amounts = dict.fromkeys(
                [f"{POLICY.domain}/gpu-core", f"{POLICY.domain}/gpu-memory-ratio"], str(100 * count)
            )
            self.state(name, cpu="64", memory="64Gi", pods="110", **amounts)
        self.see()

    def state(self, name: str, **allocatable: str) -> None:
        """Let a Node have this for Pods, beside what it has already."""
        node = self.fake.get(NODES.path(name))
        known = node.get("status", {}).get("allocatable", {})
        self.fake.put(NODES.path(), {**node, "status": {"allocatable": {**known, **allocatable}}})

    def add(self, *pods: Raw) -> None:
        for made in pods:
            self.one.add_pod(made)
        self.see()

    def see(self) -> None:
        for replica in self.replicas:
            replica.see()

    async def tend(self, *, rounds: int = 2) -> None:
        """Each replica tends all gangs, and sees what the others did."""
        for _ in range(rounds):
            for replica in self.replicas:
                await replica.parts.gang_controller.round()
                await replica.idle()
                self.see()

    async def schedule(self, names: Iterable[str] | None = None, replica: World | None = None) -> dict[str, str]:
        """Do what kube-scheduler does with the Pods that no gate holds; returns the reason for each that waits."""
        replica = replica or self.one
        waiting: dict[str, str] = {}
        nodes = [node["metadata"]["name"] for node in self.fake.objects(NODES.path())]
        for pod in self.fake.objects(PODS.path()):
            name, spec = pod["metadata"]["name"], pod["spec"]
            if spec.get("nodeName") or spec.get("schedulingGates") or (names is not None and name not in names):
                continue
            answer = replica.parts.extender.filter({"Pod": pod, "NodeNames": nodes})
            if not answer["NodeNames"]:
                waiting[name] = next(iter({**answer["FailedNodes"], **answer["FailedAndUnresolvableNodes"]}.values()))
                continue
            bound = await replica.bind(name, answer["NodeNames"][0])
            if not bound.allowed:
                waiting[name] = bound.message
        self.see()
        return waiting

    async def bind_all(self) -> None:
        """Tend and schedule until nothing changes any more, for longer than anything is held."""
        for _ in range(8):
            for replica in self.replicas:
                await replica.parts.gang_controller.round()
                await replica.idle()
                self.see()
                await self.schedule(replica=replica)
                self.check()
            self.pass_time(HOLD_S // 2)

    def check(self) -> None:
        """Nothing is given twice, and no gang is half: a Pod that waits while another is bound has room of its own."""
        self.one.audit()
        holding = {held.uid for held in self.held() if not held.until or held.until > self.now}
        gangs: dict[str, list[Raw]] = defaultdict(list)
        for pod in self.fake.objects(PODS.path()):
            gangs[pod["metadata"].get("annotations", {}).get(GANG_ANNOTATION, "")].append(pod)
        for name, pods in gangs.items():
            if name and any(pod["spec"].get("nodeName") for pod in pods):
                assert {pod["metadata"]["name"] for pod in pods if pod["metadata"]["uid"] not in holding} == set()

    # What a test looks at, from the API server alone

    def gated(self) -> list[str]:
        pods = self.fake.objects(PODS.path())
        return [
            pod["metadata"]["name"] for pod in pods if {"name": GANG_GATE} in pod["spec"].get("schedulingGates", ())
        ]

    def bound(self) -> dict[str, str]:
        pods = self.fake.objects(PODS.path())
        return {pod["metadata"]["name"]: pod["spec"]["nodeName"] for pod in pods if pod["spec"].get("nodeName")}

    def holds(self) -> dict[str, int]:
        """What is held and not bound yet: Pod -> seconds that are left."""
        return {held.name: held.until - self.now for held in self.held() if held.until}

    def held(self) -> Sequence[Holding]:
        nodes = [node["metadata"]["name"] for node in self.fake.objects(NODES.path())]
        return [held for node in nodes for held in self.one.holdings(node).values()]


def without(settings: WebhookSettings) -> WebhookSettings:
    """The same, but gangs are not bound as a whole."""
    return msgspec.structs.replace(settings, gangs=GangSettings())


def members(count: int, least: int = 4, percent: int = 200, **about: Any) -> list[dict[str, Any]]:
    """Pods of a gang of four, or of which so many are needed, with two cards each."""
    return [member(f"m{number}", least, percent, **about) for number in range(count)]


async def held_in_vain(company: Company) -> None:
    """Hold four cards for two Pods, m0 and m1, that nobody binds yet."""
    company.add_nodes(a=4)
    company.add(*members(2, least=2))
    await company.tend()
    assert company.holds() == {"m0": HOLD_S, "m1": HOLD_S}


async def ended(company: Company) -> None:
    """Let the time of all holds pass: they are marked, and released when the marks have been seen for long enough."""
    for seconds in (HOLD_S, MARGIN_S + 1):
        company.pass_time(seconds)
        await company.tend()
