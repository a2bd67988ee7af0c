"""A node as a decision sees it, and what Pods hold of it."""

from dataclasses import replace

import pytest
from builders import GIB, gpu, held, holding, node, part, request, share
from builders import app as wants
from builders import gpus as percent
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, multiple, rule
from machines import SERVER_CPUS, server_cpu
from strategies import device_lists, pod_requests

from allocator.place import Placement, place
from allocator.vocabulary.asks import PodRequest
from allocator.vocabulary.cpunode import CpuShare, NumaPolicy, NumaShare
from allocator.vocabulary.cputopology import parse
from allocator.vocabulary.device import Device
from allocator.vocabulary.devicetype import GPU_TYPE
from allocator.vocabulary.holdings import Share
from allocator.vocabulary.node import NodeSnapshot
from allocator.vocabulary.outcome import Refusal

CARD = gpu(0)
TAILS = GPU_TYPE.tails

# A node with card 0 in some state; its free part: percent of compute, bytes, percent of memory

FREE: dict[str, tuple[NodeSnapshot, tuple[int, int, int]]] = {
    "idle": (node(CARD), (100, 80 * GIB, 100)),
    "in use": (node(CARD, holdings=held(part(CARD, 30), share(CARD, core=20))), (50, 56 * GIB, 70)),
    "full": (node(CARD, holdings=held(part(CARD, 100))), (0, 0, 0)),
    "more is held than it has now": (node(gpu(0, 40 * GIB), holdings=held(part(CARD, 60))), (40, 0, 40)),
    "one more is held than it has": (node(CARD, holdings=held(share(CARD, core=101))), (0, 80 * GIB, 100)),
    "unhealthy": (node(gpu(0, healthy=False)), (0, 0, 0)),
    "given away by the kubelet": (node(CARD, kubelet=["GPU-0"]), (0, 0, 0)),
    "another one is unhealthy, and another the kubelet's": (
        node(CARD, gpu(1, healthy=False), gpu(2), kubelet=["GPU-2"]),
        (100, 80 * GIB, 100),
    ),
}


@pytest.mark.parametrize(("on", "free"), FREE.values(), ids=FREE)
def test_what_is_free_is_what_may_still_be_given(on: NodeSnapshot, free: tuple[int, int, int]) -> None:
    card = next(device for device in on.devices if device.minor == 0)
    assert on.free(card, TAILS) == free
    assert on.free(card, TAILS[::-1]) == free[::-1]
    assert on.is_usable(card) is (any(free) or card.id in on.used)


def test_what_is_used_of_the_cpus_is_summed_over_pods() -> None:
    own = CpuShare("LSR", parse("2-3"))
    pool = CpuShare("LS", numa=(NumaShare(1, 500, GIB),))
    idle = CpuShare("LS", numa=(NumaShare(0, 0, 1), NumaShare(1, 0, 0)))
    pods = {"own": own, "pool": pool, "idle": idle}
    on = node(holdings=[holding(uid, cpus=cpus) for uid, cpus in pods.items()], cpu=server_cpu(reserved=0b11))
    assert on.cpu_use.taken == parse("2-3")
    assert on.cpu_use.numa == {0: (1, 1), 1: (501, GIB)}
    assert (on.cpu_use.exclusive_cores, on.cpu_use.lone_cores, on.cpu_use.exclusive_nodes) == (0, 0, 0)
    assert on.cpu_use is on.cpu_use, "summed once"
    assert on.own_cpus == SERVER_CPUS.all & ~0b11
    assert on.free_cpus == SERVER_CPUS.all & ~0b1111
    assert on.without(["own"]).free_cpus == SERVER_CPUS.all & ~0b11


# --- the order of NUMA nodes by the free parts of their devices: the fullest first, as for nodes by default


def cards_at(*numas: int, memory: int = 80 * GIB) -> list[Device]:
    return [gpu(minor, memory, numa_node=numa) for minor, numa in enumerate(numas)]


ORDERED = {
    "what the kubelet gave away is not free": (
        node(*cards_at(0, 0, 1, 1), kubelet=["GPU-0"], holdings=held(share(gpu(3), core=30, ratio=30))),
        100,
        [1],
    ),
    "an unhealthy card is not free": (
        node(gpu(0, healthy=False, numa_node=0), *cards_at(0, 0, 1, 1)[1:], holdings=held(part(gpu(3), 30))),
        100,
        [1],
    ),
    "a small idle card is emptier than a large one in use": (
        node(gpu(0, numa_node=0), gpu(1, 16 * GIB, numa_node=1), holdings=held(share(gpu(0), core=80, ratio=10))),
        10,
        [0],
    ),
}


@pytest.mark.parametrize(("on", "asked", "given"), ORDERED.values(), ids=ORDERED)
def test_the_fullest_numa_node_comes_first(on: NodeSnapshot, asked: int, given: list[int]) -> None:
    on = NodeSnapshot(
        on.name, on.devices, on.holdings, on.kubelet_held, cpu=server_cpu(policy=NumaPolicy.SINGLE_NUMA_NODE)
    )
    placed = place(request(wants("main", percent(asked))), on)
    assert isinstance(placed, Placement)
    assert [one.minor for one in placed.shares] == given


class Node(RuleBasedStateMachine):  # hypothesis wants a class
    pods = Bundle("pods")

    def __init__(self) -> None:
        super().__init__()
        self.on = node()
        self.made = 0
        self.away: list[Device] = []
        self.cards: dict[str, Device] = {}  # the test's own record: every card that ever existed
        self.owned: dict[str, tuple[Share, ...]] = {}  # Pod -> what it was given

    def _set(self, devices: list[Device]) -> None:
        self.on = NodeSnapshot(
            self.on.name, tuple(sorted(devices, key=lambda d: d.order)), self.on.holdings, self.on.kubelet_held
        )

    def _pick(self, chance: int) -> Device | None:
        return self.on.devices[chance % len(self.on.devices)] if self.on.devices else None

    @initialize(made=device_lists(most=4))
    def boot(self, made: list[Device]) -> None:
        self.cards = {device.id: device for device in made}
        self._set(made)

    @rule(target=pods, of=pod_requests(3, 3))
    def place(self, of: PodRequest) -> object:
        answer = place(of, self.on)
        if isinstance(answer, Refusal):
            return multiple()
        usable = {d.id for d in self.on.devices if d.healthy} - self.on.kubelet_held
        assert {one.id for one in answer.shares} <= usable
        self.made += 1
        uid = f"uid-{self.made}"
        self.owned[uid] = answer.shares
        self.on = self.on.with_holding(holding(uid, *answer.shares))
        return uid

    @rule(uid=pods)
    def bind_again(self, uid: str) -> None:
        """The same Pod, asked again without its own holding, fits where it was."""
        if uid not in self.owned:
            return
        aside = self.on.without([uid])
        assert aside.with_holding(self.on.holdings[uid]).used == self.on.used

    @rule(uid=pods)
    def release(self, uid: str) -> None:
        self.owned.pop(uid, None)
        self.on = self.on.without([uid])

    @rule(chance=st.integers(0, 15))
    def vanish(self, chance: int) -> None:
        if device := self._pick(chance):
            self.away.append(device)
            self._set([d for d in self.on.devices if d.id != device.id])

    @rule(chance=st.integers(0, 15))
    def come_back(self, chance: int) -> None:
        if self.away:
            self._set([*self.on.devices, self.away.pop(chance % len(self.away))])

    @rule(chance=st.integers(0, 15))
    def change_health(self, chance: int) -> None:
        if device := self._pick(chance):
            self._set([replace(d, healthy=not d.healthy) if d.id == device.id else d for d in self.on.devices])

    @rule(chance=st.randoms(use_true_random=False))
    def renumber(self, chance: object) -> None:
        minors = list(range(len(self.on.devices)))
        chance.shuffle(minors)  # type: ignore[attr-defined]
        self._set([replace(d, minor=minor) for d, minor in zip(self.on.devices, minors, strict=True)])

    @rule(chance=st.integers(0, 15))
    def the_kubelet_takes_or_gives_back(self, chance: int) -> None:
        if device := self._pick(chance):
            self.on = NodeSnapshot(
                self.on.name, self.on.devices, self.on.holdings, self.on.kubelet_held ^ frozenset([device.id])
            )

    @invariant()
    def the_node_holds_what_it_was_told(self) -> None:
        self.on.check_invariants()
        assert {uid: owner.shares for uid, owner in self.on.holdings.items()} == self.owned

    @invariant()
    def no_card_is_given_more_than_once_over(self) -> None:
        given: dict[tuple[str, str], int] = {}
        for shares in self.owned.values():
            for one in shares:
                for tail, amount in one.amounts.items():
                    given[one.id, tail] = given.get((one.id, tail), 0) + amount
        # Missing cards keep their holdings, which count as well.
        assert all(0 <= total <= self.cards[card].capacity[tail] for (card, tail), total in given.items())
        used = {(card, tail): amount for card, amounts in self.on.used.items() for tail, amount in amounts.items()}
        assert used == given


TestNode = Node.TestCase
TestNode.settings = settings(
    max_examples=60, stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
