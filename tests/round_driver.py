"""The reporter's state machine driven by hand: a small node as values, and effects answered one by one."""

from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from allocator.vocabulary.cputopology import Cpu, CpuTopology
from allocator.vocabulary.devicetype import BUILT_IN
from allocator.wire.nodetopology import CpuBasicInfo
from reporter.cgroup.layout import KubernetesQos
from reporter.files import FileReading
from reporter.gpu.facts import DriverFacts, GpuFacts, NodeReading
from reporter.inventory import CpuInventory, PciDevice
from reporter.kubelet import devicecheckpoint
from reporter.kubelet.configuration import KubeletConfiguration
from reporter.kubelet.cpustate import absent
from reporter.pods import NodePod
from reporter.reading import HostReading
from reporter.round.decide import Rules
from reporter.round.messages import Due, Lane, Moment, RoundEffect, RoundEvent
from reporter.round.state import DEVICE, STATUS, RoundPace, RoundPlan, RoundState
from reporter.round.step import next_due, step, wakes_at

NAME = "n1"
DRIVER = DriverFacts("580", "13.0")
CARDS = tuple(f"GPU-{number}" for number in range(3))
_CPUS = CpuTopology.of([Cpu(number, number // 2, 0, 0) for number in range(4)])
_E = TypeVar("_E", bound=RoundEffect)


def uid(number: int) -> str:
    return f"{number:08d}-2222-3333-4444-555555555555"


def node_pod(number: int, **over: Any) -> NodePod:
    plain = NodePod(uid(number), "ns", f"pod-{number}", uid(number), KubernetesQos.BURSTABLE)
    return replace(plain, containers={f"{number:064x}": "main"}, **over)


def reading(count: int = len(CARDS), boot: str = "boot") -> NodeReading:
    gpus = (GpuFacts(uuid=CARDS[n], minor=n, memory=2**30, bus=f"0000:0{n}:00.0") for n in range(count))
    return NodeReading(DRIVER, tuple(gpus), (), boot)


def host(*, nvidia: bool = True) -> HostReading:
    return HostReading(
        cpus=CpuInventory(_CPUS, CpuBasicInfo()),
        devices=(PciDevice("rdma", "0000:3b:00.0", 0), PciDevice("rdma", "0000:3c:00.0", 1)),
        nvidia=nvidia,
        configuration=FileReading(KubeletConfiguration(), None),
        cpu_state=FileReading(absent(), None),
        checkpoint=FileReading(devicecheckpoint.absent(), None),
    )


def plan(**over: Any) -> RoundPlan:
    return replace(RoundPlan(NAME, Rules(BUILT_IN), RoundPace()), **over)


def cluster_node(identity: str = "node-uid", revision: int = 1) -> dict[str, Any]:
    return {"metadata": {"name": NAME, "uid": identity, "resourceVersion": str(revision)}}


@dataclass
class Driven:
    """The machine, its clock, the effects it waits for, and all effects so far."""

    state: RoundState
    now: Moment = field(default_factory=lambda: Moment(1000.0, 0.0))
    waiting: dict[Lane, RoundEffect] = field(default_factory=dict)
    done: list[RoundEffect] = field(default_factory=list)

    @classmethod
    def of(cls, **over: Any) -> "Driven":
        return cls(RoundState(plan(**over)))

    def feed(self, *events: RoundEvent) -> list[RoundEffect]:
        """Take events in, and begin due work; returns the effects."""
        asked: list[RoundEffect] = []
        for event in events:
            if event.lane is not None:
                del self.waiting[event.lane]
            asked += self._step(event)
            while (lane := next_due(self.state, self.now)) is not None:
                asked += self._step(Due(lane))
        return asked

    def pass_time(self, seconds: float) -> list[RoundEffect]:
        """Let time pass, and begin work that becomes due."""
        end = self.now.steady + seconds
        asked: list[RoundEffect] = []
        while (at := wakes_at(self.state, self.now)) <= end:
            self._go_to(max(at, self.now.steady))
            while (lane := next_due(self.state, self.now)) is not None:
                asked += self._step(Due(lane))
        self._go_to(end)
        return asked

    def effect(self, lane: Lane, kind: type[_E]) -> _E:
        """The effect that a lane waits for."""
        found = self.waiting[lane]
        assert isinstance(found, kind)
        return found

    def asked(self, kind: type[_E]) -> list[_E]:
        """All effects of a kind so far."""
        return [effect for effect in self.done if isinstance(effect, kind)]

    def _go_to(self, steady: float) -> None:
        self.now = Moment(self.now.wall + steady - self.now.steady, steady)

    def _step(self, event: RoundEvent) -> list[RoundEffect]:
        self.state, effects = step(self.state, event, self.now)
        check_invariants(self.state)
        for effect in effects:
            if effect.lane is not None:
                assert effect.lane not in self.waiting, "one effect of a lane at a time"
                self.waiting[effect.lane] = effect
        busy = {lane for lane, work in self.state.lanes.items() if work.busy}
        assert busy == self.waiting.keys(), "a lane is busy exactly while an effect of it is under way"
        self.done += effects
        return list(effects)


def check_invariants(state: RoundState) -> None:
    """Raise AssertionError if the state contradicts itself."""
    broken = [words for words, holds in _invariants(state).items() if not holds]
    if broken:
        raise AssertionError("; ".join(broken))


def _invariants(state: RoundState) -> dict[str, bool]:
    """What must always hold, and whether it does."""
    lanes, cluster, plan, telling = state.lanes, state.cluster, state.plan, state.telling
    busy = frozenset(lane for lane, work in lanes.items() if work.busy)
    trying = [target for target, kept in state.kept.items() if kept.trying is not None]
    cards_written = any(state.kept[target].last is not None for target in (DEVICE, STATUS))
    holders_known = state.proof.done or not plan.proof
    return {
        "a round is under way exactly while its lane is busy": (Lane.ROUND in busy) == (state.current is not None),
        "without GPUs no card is read": plan.gpus or busy.isdisjoint({Lane.CARDS, Lane.XIDS, Lane.HEALTH}),
        "the kubelet is asked only if the settings say so": plan.configz or Lane.CONFIGZ not in busy,
        "the ClusterPolicy is read only if the settings say so": plan.policies or Lane.POLICY not in busy,
        "proofs are made only if the settings say so": plan.proof or Lane.PROOF not in busy,
        "no proof before the Pods are known": cluster.pods_known or not state.proof.done,
        "nothing is published before the cluster is known": cluster.complete or Lane.PUBLISH not in busy,
        "writes are pending only during a publication": Lane.PUBLISH in busy or not state.publishing,
        "one write at a time": len(trying) <= (Lane.PUBLISH in busy),
        "what is published is known": telling is None
        or (cluster.complete and state.configured and bool(state.decided)),
        "cards are published once their holders are known": telling is None or not telling.with_cards or holders_known,
        "cards are published once the runtime is known": telling is None
        or not telling.with_cards
        or state.runtime_known,
        "cards are written once their holders are known": not cards_written or holders_known,
        "cards go by their UUIDs": all(card.facts.uuid == uuid for uuid, card in state.cards.view.node.cards.items()),
    }
