"""The round's state machine under events in any order: what holds for every interleaving of lanes and failures."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import orjson
from fake_kube import own_labels
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from round_driver import CARDS, Driven, check_invariants, cluster_node, host, node_pod, reading, uid

from allocator.vocabulary.names import DEVICES_CHECKPOINTS
from reporter.files import FileReading
from reporter.gpu.facts import Outage, XidEvent
from reporter.gpu.health import NOTHING_KNOWN
from reporter.kubelet.configuration import KubeletConfiguration
from reporter.pods import MANAGER
from reporter.proof.agree import CardUse
from reporter.publish.keep import Target
from reporter.round.decide import Decided
from reporter.round.messages import (
    Apply,
    CardsAway,
    CardsRead,
    CpusWritten,
    EventsSent,
    HealthSaved,
    HostRead,
    KubeletAnswered,
    Lane,
    LaneFailed,
    Listed,
    ObjectGone,
    ObjectStands,
    PodsChanged,
    PolicyRead,
    Prove,
    Proved,
    Restored,
    RoundEffect,
    WatchedKind,
    WriteRefused,
    Written,
    XidsHeard,
)
from reporter.round.state import DEVICE, STATUS, WATCHED
from reporter.runtimefiles import UNTOLD

LANES = st.sampled_from([lane for lane in Lane if lane is not Lane.XIDS] + 3 * [Lane.ROUND, Lane.PUBLISH])
PODS = range(4)


class AnyOrder(RuleBasedStateMachine):
    """A node with three cards and up to four Pods; some use cards that were not allocated to them."""

    def __init__(self) -> None:
        super().__init__()
        self.driven = Driven.of(configz=True, policies=True)
        self.revision = 10
        self.identity = "node-uid"
        self.outage: Outage | None = None
        self.pods: frozenset[int] = frozenset()
        self.uses: dict[str, int] = {}  # card to the Pod that uses it
        self.sick: set[str] = set()  # cards with a fatal error that the machine has received
        self.cards_read = self.proof_seen = False
        self.accepted: dict[Target, bytes] = {}
        self.disturbed: set[Target] = set(WATCHED)  # objects that are, or may be, changed by others
        self.expected: dict[int, tuple[frozenset[str], frozenset[str]]] = {}  # a round's body to cards in use, and sick
        self.rounds: list[Decided] = []
        self.knowing: set[int] = set()  # bodies that were decided after a proof, of the Device object and of the status
        self.slow: Lane | None = None  # a lane whose effect takes long
        self.checked = 0

    # What happens

    @initialize(late=st.sampled_from([None, *WatchedKind]), slow=st.sampled_from([None, Lane.PROOF, *Lane]))
    def the_start(self, late: WatchedKind | None, slow: Lane | None) -> None:
        self.slow = slow
        for what in WatchedKind:
            if what is not late:
                self.a_list_is_complete(what)
        self.feed(Restored(NOTHING_KNOWN))

    @rule(lanes=st.lists(LANES, min_size=1, max_size=8))
    def lanes_finish(self, lanes: list[Lane]) -> None:
        for lane in lanes:
            if lane in self.driven.waiting and lane is not self.slow:
                self.answer(lane)

    @precondition(lambda self: self.slow in self.driven.waiting)
    @rule()
    def the_slow_lane_finishes(self) -> None:
        if self.slow is not None and self.slow is not Lane.XIDS:
            self.answer(self.slow)
        self.slow = None

    @rule(lane=st.sampled_from(list(Lane)))
    def a_bug_ends_a_lane(self, lane: Lane) -> None:
        if lane in self.driven.waiting:
            del self.driven.waiting[lane]
            self.proof_seen |= lane is Lane.PROOF
            self.feed(LaneFailed(lane))

    @rule(seconds=st.sampled_from([0.05, 1.0, 11.0, 70.0]))
    def time_passes(self, seconds: float) -> None:
        self.driven.pass_time(seconds)
        self.check_effects()

    @rule(what=st.sampled_from(WatchedKind))
    def a_list_is_complete(self, what: WatchedKind) -> None:
        if what is WatchedKind.NODE and WatchedKind.NODE not in self.driven.state.cluster.objects:
            self.feed(ObjectStands(WatchedKind.NODE, self.node()))
        self.feed(Listed(what))

    @rule(pods=st.frozensets(st.sampled_from(PODS)))
    def pods_come_and_go(self, pods: frozenset[int]) -> None:
        self.pods = pods
        self.uses = {card: number for card, number in self.uses.items() if number in pods}
        self.feed(PodsChanged(tuple(node_pod(number) for number in sorted(pods))))

    @precondition(lambda self: self.pods)
    @rule(card=st.sampled_from(CARDS), data=st.data())
    def a_pod_uses_a_card_that_it_was_not_given(self, card: str, data: st.DataObject) -> None:
        self.uses[card] = data.draw(st.sampled_from(sorted(self.pods)))

    @rule(card=st.sampled_from(CARDS))
    def a_card_is_used_no_more(self, card: str) -> None:
        self.uses.pop(card, None)

    @rule(card=st.sampled_from(CARDS), xid=st.sampled_from([13, 79, 94]))
    def a_card_has_an_error(self, card: str, xid: int) -> None:
        if Lane.XIDS in self.driven.waiting:
            if xid == 79 and self.cards_read:
                self.sick.add(card)
            self.feed(XidsHeard((XidEvent(None, 31, 0.0), XidEvent(card, xid, 0.0))))

    @rule()
    def nvml_goes_or_comes_back(self) -> None:
        self.outage = None if self.outage else Outage("NvmlHangs", "it hangs", self.driven.now.wall)

    @rule(which=st.sampled_from(list(WATCHED)))
    def somebody_changes_an_object(self, which: Target) -> None:
        known = self.driven.state.cluster.objects.get(WATCHED[which])
        if known is not None:
            self.revision += 1
            about = {key: known["metadata"][key] for key in ("name", "uid")}
            self.disturbed.add(which)
            self.feed(ObjectStands(WATCHED[which], {"metadata": {**about, "resourceVersion": str(self.revision)}}))

    @rule(what=st.sampled_from([WatchedKind.DEVICE, WatchedKind.TOPOLOGY]))
    def an_object_is_deleted(self, what: WatchedKind) -> None:
        self.disturbed |= {target for target, watched in WATCHED.items() if watched is what}
        self.feed(ObjectGone(what))

    @rule(anew=st.booleans())
    def the_node_is_deleted(self, *, anew: bool) -> None:
        self.disturbed.add(STATUS)
        self.identity = f"node-{self.revision}" if anew else self.identity
        self.feed(ObjectGone(WatchedKind.NODE))
        if anew:
            self.feed(ObjectStands(WatchedKind.NODE, self.node()))

    # Answers

    def answer(self, lane: Lane, *, refuse: bool = False) -> None:
        effect = self.driven.waiting[lane]
        if lane is Lane.CARDS:
            if self.outage is None:
                self.cards_read = True
                self.feed(CardsRead(reading()))
            else:
                self.feed(CardsAway(self.outage, 1.0))
        elif lane is Lane.HEALTH:
            self.feed(HealthSaved())
        elif lane is Lane.ROUND:
            decided_before = self.driven.state.current is not None and self.driven.state.current.decided is not None
            self.feed(CpusWritten() if decided_before else HostRead(host()))
        elif lane is Lane.PROOF:
            assert isinstance(effect, Prove)
            self.feed(self.proved(effect))
        elif lane is Lane.CONFIGZ:
            self.feed(KubeletAnswered(FileReading(KubeletConfiguration(), None)))
        elif lane is Lane.POLICY:
            self.feed(PolicyRead(UNTOLD))
        elif isinstance(effect, Apply):
            self.feed(WriteRefused(effect.target, "refused") if refuse else self.accept(effect))
        else:
            self.feed(EventsSent())

    @rule()
    def a_write_is_refused(self) -> None:
        if isinstance(self.driven.waiting.get(Lane.PUBLISH), Apply):
            self.answer(Lane.PUBLISH, refuse=True)

    def proved(self, effect: Prove) -> Proved:
        """What a proof sees: the processes of cards that answer, and those last listed of the others."""
        self.proof_seen = True
        users = {card: (CardUse(card, uid(number), 100 + number, None),) for card, number in self.uses.items()}
        listed: dict[str, Any] = dict(effect.known)
        if self.outage is None:
            listed |= {card: users.get(card, ()) for card in effect.ask}
        return Proved({}, tuple(use for uses in listed.values() for use in uses), listed)

    def accept(self, effect: Apply) -> Written:
        self.revision += 1
        self.accepted[effect.target] = orjson.dumps(effect.body, option=orjson.OPT_SORT_KEYS)
        self.disturbed.discard(effect.target)
        identity = self.identity if effect.target == STATUS else str(effect.target)
        about = {**effect.body["metadata"], "uid": identity, "resourceVersion": str(self.revision)}
        obj = {**effect.body, "metadata": about}
        own_labels(obj, obj, MANAGER, about["labels"])
        return Written(effect.target, obj)

    def node(self) -> dict[str, Any]:
        self.revision += 1
        return cluster_node(self.identity, self.revision)

    # What must hold

    def feed(self, *events: Any) -> None:
        for event in events:
            in_use = frozenset(
                use.card
                for use in self.driven.state.proof.evidence.uses
                if use.pod in {uid(number) for number in self.pods}
            )
            known = self.driven.state.cards.view.node.cards
            sick = frozenset(card for card in self.sick if card in known)
            proved = self.driven.state.proof.done
            self.driven.feed(event)
            current = self.driven.state.current
            if isinstance(event, HostRead):
                decided = current.decided if current is not None else self.driven.state.decided
                assert decided is not None
                self.expected[id(decided.device.body)] = in_use, sick
                self.rounds.append(decided)  # kept, so that no other body gets its id
                if proved:
                    self.knowing |= {id(decided.device.body), id(decided.status)}
            self.check_effects()

    def check_effects(self) -> None:
        for effect in self.driven.done[self.checked :]:
            self.check(effect)
        self.checked = len(self.driven.done)

    def check(self, effect: RoundEffect) -> None:
        if not isinstance(effect, Apply):
            return
        state = self.driven.state
        assert state.cluster.complete, "everything in the cluster is known before anything is written"
        assert state.configz is not None, "and how the kubelet is configured"
        text = orjson.dumps(effect.body, option=orjson.OPT_SORT_KEYS)
        again = text == self.accepted.get(effect.target) and effect.target not in self.disturbed
        assert not again, "nothing is written twice without a change"
        if effect.target == DEVICE:
            node = state.cluster.node
            assert node is not None, "without the Node nothing is written"
            assert effect.body["metadata"]["ownerReferences"][0]["uid"] == node.uid, "about the Node that stands"
            self.check_cards(effect.body)
        if effect.target in {DEVICE, STATUS}:
            assert self.cards_read or self.outage is not None, "the cards are known before they are reported"
            assert state.policy is not None, "and what the GPU Operator is told to do"
            assert id(effect.body) in self.knowing, "and who has them, when the round decides"

    def check_cards(self, body: Mapping[str, Any]) -> None:
        in_use, sick = self.expected[id(body)]
        held = body["metadata"]["annotations"].get(DEVICES_CHECKPOINTS[0], "")
        assert all(card in held for card in in_use), "a card in use is never reported as free"
        healthy = {entry["id"]: entry["health"] for entry in body["spec"]["devices"] if entry["type"] == "gpu"}
        if self.cards_read:
            assert set(healthy) in ({*CARDS}, set()), "an outage takes no card off the object"
        assert not any(healthy.get(card) for card in sick), "a card that failed is never reported as healthy"

    @invariant()
    def the_state_never_contradicts_itself(self) -> None:
        check_invariants(self.driven.state)

    def teardown(self) -> None:
        """Without further faults, everything is published, and then nothing more is written."""
        self.outage = None
        if self.driven.state.host is None and not self.driven.waiting:
            return  # it never began
        self.disturbed.add(STATUS)  # the Node stands as if it had been made anew
        self.feed(ObjectStands(WatchedKind.NODE, self.node()), *map(Listed, WatchedKind))
        self.run_for(330.0)
        assert set(self.accepted) == set(WATCHED), "all is published in the end"
        assert all(self.driven.state.cards.view.node.cards[card].health.usable for card in set(CARDS) - self.failed)
        before = len(self.driven.asked(Apply))
        self.run_for(70.0)
        assert len(self.driven.asked(Apply)) == before, "and then left alone"

    @property
    def failed(self) -> set[str]:
        cards = self.driven.state.cards.view.node.cards
        return {card for card in CARDS if cards[card].health.cause is not None}

    def run_for(self, seconds: float) -> None:
        """Answer everything immediately, for a while."""
        end = self.driven.now.steady + seconds
        while self.driven.now.steady < end:
            while lanes := [lane for lane in self.driven.waiting if lane is not Lane.XIDS]:
                self.answer(lanes[0])
            self.driven.pass_time(10.0)
            self.check_effects()


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)


def test_the_machine_ends_well_from_any_state_that_it_settled_in() -> None:
    world = AnyOrder()
    world.the_start(late=None, slow=None)
    world.run_for(60.0)
    assert set(world.accepted) == set(WATCHED)
    world.teardown()


def test_a_card_used_since_before_the_start_is_never_reported_as_free() -> None:
    """The cards, the Pods, the proof and the cluster become known in any order."""
    world = AnyOrder()
    world.feed(Restored(NOTHING_KNOWN))
    world.pods_come_and_go(frozenset({1, 3}))
    world.uses = {CARDS[0]: 3, CARDS[2]: 1}
    world.run_for(30.0)
    for what in WatchedKind:
        world.a_list_is_complete(what)
        world.run_for(30.0)
    world.outage = Outage("NvmlHangs", "it hangs", world.driven.now.wall)
    world.run_for(300.0)

    written = [one.body for one in world.driven.asked(Apply) if one.target == DEVICE]
    held = [body["metadata"]["annotations"][DEVICES_CHECKPOINTS[0]] for body in written]
    assert written
    assert [[card in text for card in CARDS] for text in held] == [[True, False, True]] * len(held)
    assert replace(world.driven.state.cards, processes={}).view.outage is not None
