"""Any history of binds on one node: `place()` on the true node allows everything that is confirmed, given or adopted.

The number of NUMA nodes that a policy allows is counted here from the holdings alone, without the code of `place()`.
"""

from dataclasses import replace

from builders import finish
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, multiple, rule
from machines_cpu import build, siblings_near
from strategies import aligned_requests, cpu_rules, server_nodes

from allocator.bind import ENDING, Decision, PodToBind, bind, release
from allocator.place import Placement, numa_policy, place
from allocator.vocabulary.asks import PodRequest
from allocator.vocabulary.cpunode import CpuShare
from allocator.vocabulary.cpupolicy import NumaPolicy
from allocator.vocabulary.holdings import Holding
from allocator.vocabulary.node import NodeSnapshot

CPUS = build(2, 1, 4, 2, siblings_near)
NOW = 1_700_000_000


def span(of: Placement | Holding, on: NodeSnapshot) -> set[int]:
    """The NUMA nodes of everything that is held, as far as they are known."""
    where = {device.id: device.numa_node for device in on.devices}
    stands = {at for share in of.shares if (at := where.get(share.id)) is not None}
    if of.cpus is not None:
        stands |= {one.node for one in of.cpus.numa}
        stands |= {at for at, cpus in CPUS.nodes.items() if cpus & of.cpus.cpus}
    return stands


def check_width(of: PodRequest, given: Holding, on: NodeSnapshot) -> None:
    """No more NUMA nodes than the policy allows; under Restricted, no more than on the same node if it were empty."""
    policy = numa_policy(of, on.cpu)
    if policy is NumaPolicy.SINGLE_NUMA_NODE:
        assert len(span(given, on)) <= 1
    elif policy is NumaPolicy.RESTRICTED:
        cpu = None if on.cpu is None else replace(on.cpu, reserved=0)
        empty = place(of, replace(on, holdings={}, cpu=cpu))
        assert isinstance(empty, Placement)
        assert len(span(given, on)) <= max(len(span(empty, on)), 1)


class Binds(RuleBasedStateMachine):  # hypothesis wants a class
    pods = Bundle("pods")

    def __init__(self) -> None:
        super().__init__()
        self.on = NodeSnapshot("node-1", ())
        self.claims: dict[str, PodToBind] = {}
        self.made = 0

    @initialize(on=server_nodes(CPUS))
    def boot(self, on: NodeSnapshot) -> None:
        self.on = on

    def _seen(self, of: PodRequest, uid: str, ago: int, *, free: bool) -> Holding | None:
        """What the Pod would get on the node as it was: without some of its Pods, and sometimes without a policy."""
        gone = [other for index, other in enumerate(self.on.holdings) if (ago >> index) & 1]
        before = self.on.without(gone)
        if free:
            healthy = tuple(replace(device, healthy=True) for device in before.devices)
            cpu = None if before.cpu is None else replace(before.cpu, policy=NumaPolicy.NONE, reserved=0)
            before = replace(before, devices=healthy, kubelet_held=frozenset(), cpu=cpu)
            of = of if of.cpu is None else replace(of, cpu=replace(of.cpu, numa_policy=None, of_kubelet=()))
        placed = place(of, before)
        return Holding(uid, "d", uid, 0, placed.shares, placed.cpus) if isinstance(placed, Placement) else None

    def _claim(self, of: PodRequest, said: Holding | None = None) -> str:
        self.made += 1
        uid = f"uid-{self.made}"
        holds = None if said is None else replace(said, uid=uid)
        annotated = None if holds is None else lambda _devices: holds
        self.claims[uid] = PodToBind(uid, "d", uid, of, annotated)
        return uid

    def _bind(self, uid: str, sent: Holding | None = None) -> Decision:
        """Bind a Pod, and check the answer against the node without it."""
        pod, others = self.claims[uid], self.on.without([uid])
        before = self.on.holdings.get(uid)
        holdings, decided = finish(bind(pod, self.on.holding_all, NOW, "mark", sent)(self.on.holdings))
        assert decided.repeated == (before is not None and decided.outcome == before)
        if isinstance(decided.outcome, Holding):
            assert isinstance(place(pod.request, others), Placement), "the true node has room and its policy allows it"
            check_width(pod.request, decided.outcome, others)
        elif decided.outcome == ENDING:
            assert before is not None
            marked = replace(before, ending="mark")
            assert (before if holdings is None else holdings[uid]) == marked
        self.on = self.on if holdings is None else self.on.holding_all(holdings)
        return decided

    @rule(target=pods, of=aligned_requests())
    def bound(self, of: PodRequest) -> str:
        uid = self._claim(of)
        self._bind(uid)
        return uid

    @rule(target=pods, of=aligned_requests(), ago=st.integers(0, 7), free=st.booleans())
    def bound_as_assumed(self, of: PodRequest, ago: int, *, free: bool) -> str:
        uid = self._claim(of)
        self._bind(uid, self._seen(of, uid, ago, free=free))
        return uid

    @rule(
        target=pods,
        of=aligned_requests(),
        ago=st.integers(0, 7),
        free=st.booleans(),
        more=st.sampled_from([None, None, None, CpuShare("LSR", 0b110000)]),
    )
    def adopted(self, of: PodRequest, ago: int, more: CpuShare | None, *, free: bool) -> object:
        said = self._seen(of, "annotated", ago, free=free)
        if said is None or not (said.shares or said.cpus):
            return multiple()
        uid = self._claim(of, said if more is None else replace(said, cpus=more))
        self._bind(uid)
        return uid

    @rule(uid=pods)
    def bound_again(self, uid: str) -> None:
        self._bind(uid)

    @rule(uid=pods)
    def bound_again_at_once(self, uid: str) -> None:
        """What a Pod has just been given serves it."""
        given = self._bind(uid).outcome
        if isinstance(given, Holding):
            again = self._bind(uid)
            assert (again.outcome, again.repeated) == (given, True)

    @rule(uid=pods, of=aligned_requests())
    def asks_for_something_else(self, uid: str, of: PodRequest) -> None:
        self.claims[uid] = replace(self.claims[uid], request=of)

    @rule(uid=pods)
    def released(self, uid: str) -> None:
        holdings, held = release(uid)(self.on.holdings)
        assert held == (uid in self.on.holdings)
        self.on = self.on if holdings is None else self.on.holding_all(holdings)

    @rule(chance=st.integers(0, 11))
    def change_health(self, chance: int) -> None:
        at = chance % len(self.on.devices)
        turned = replace(self.on.devices[at], healthy=not self.on.devices[at].healthy)
        self.on = replace(self.on, devices=(*self.on.devices[:at], turned, *self.on.devices[at + 1 :]))

    @rule(chance=st.integers(0, 11))
    def the_kubelet_takes_or_gives_back(self, chance: int) -> None:
        device = self.on.devices[chance % len(self.on.devices)]
        self.on = replace(self.on, kubelet_held=self.on.kubelet_held ^ {device.id})

    @rule(rules=cpu_rules())
    def the_nodes_rules_change(self, rules: dict[str, object]) -> None:
        if self.on.cpu is not None:
            self.on = replace(self.on, cpu=replace(self.on.cpu, **rules))  # type: ignore[arg-type] # fields of it

    @invariant()
    def nothing_is_given_twice(self) -> None:
        self.on.check_invariants()


TestBinds = Binds.TestCase
TestBinds.settings = settings(
    max_examples=120, stateful_step_count=25, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
