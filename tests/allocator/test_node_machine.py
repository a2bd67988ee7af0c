"""The life of one node: Pods come and go, cards vanish, come back, break and renumber; nothing is ever given twice."""

from dataclasses import replace

from builders import holding, node
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, multiple, rule
from strategies import device_lists, pod_requests

from allocator.place import place
from allocator.vocabulary.asks import PodRequest
from allocator.vocabulary.device import Device
from allocator.vocabulary.holdings import Share
from allocator.vocabulary.node import NodeSnapshot
from allocator.vocabulary.outcome import Refusal


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
