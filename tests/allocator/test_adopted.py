"""Which cards other products' Pods hold, what counts where that is in doubt, and which conflicts there are."""

from typing import Any

import pytest
from builders import GIB, gpu, part, share
from builders import holding as held_by_us

from allocator.adopted import adopt, conflicts, survey
from allocator.vocabulary.adopted import LATER, ConflictKind, ForeignPart, ForeignPod, Numbered, Numbering, Product
from allocator.vocabulary.node import NodeSnapshot
from allocator.wire.numberings import MOST_NUMBERINGS, read_numberings, write_numberings

CARDS = [gpu(minor) for minor in range(3)]
IDS = [card.id for card in CARDS]
TOTAL = CARDS[0].capacity["gpu-memory"]
# Card 1 vanished at some time between 1000 and 1100.
PAST = (
    Numbering(100, 100, (IDS[0], IDS[1], IDS[2]), ((0, IDS[0]), (1, IDS[1]), (2, IDS[2]))),
    Numbering(1100, 1000, (IDS[0], IDS[2]), ((0, IDS[0]), (2, IDS[2]))),
)


def of(name: str, *parts: ForeignPart, peer: Product = Product.HAMI, **said: Any) -> ForeignPod:
    return ForeignPod(f"uid-{name}", "team", name, "n1", peer, "evidence", parts, **said)


def by_index(number: int, memory: int | None = GIB) -> ForeignPart:
    return ForeignPart(by=Numbered.INDEX, number=number, memory=memory)


def held(pod: ForeignPod, *others: ForeignPod, past=(), cards=CARDS) -> tuple[dict[str, int], ConflictKind | None]:
    """Memory by card, and the doubt."""
    found = adopt([pod, *others], cards, past)[pod.uid]
    return {one.id: one.amounts["gpu-memory"] for one in found.shares}, found.doubt


WHOLE = dict.fromkeys(IDS, TOTAL)
EACH = dict.fromkeys(IDS, GIB)
CASES = {
    "a UUID": (of("p", ForeignPart(IDS[1], memory=GIB)), (), {IDS[1]: GIB}, None),
    "two parts of a card add up": (of("p", *2 * [ForeignPart(IDS[1], memory=GIB)]), (), {IDS[1]: 2 * GIB}, None),
    "no amount": (of("p", ForeignPart(IDS[1])), (), {IDS[1]: TOTAL}, None),
    "more than the card": (of("p", ForeignPart(IDS[1], memory=2 * TOTAL)), (), {IDS[1]: TOTAL}, None),
    "a third, rounded up": (of("p", ForeignPart(IDS[0], part=(1, 3))), (), {IDS[0]: -(-TOTAL // 3)}, None),
    "an unknown UUID": (of("p", ForeignPart("GPU-x", memory=1)), (), WHOLE, ConflictKind.UNKNOWN_DEVICE),
    "unreadable": (of("p", problem="evidence: nonsense"), (), WHOLE, ConflictKind.UNREADABLE),
    "another scheduler": (of("p", uncounted="not its scheduler"), (), {}, ConflictKind.UNCOUNTED),
    "an index in the past": (of("p", by_index(2), starts=(500,)), PAST, {IDS[2]: GIB}, None),
    "an index after the change": (of("p", by_index(1), starts=(1100,)), PAST, {IDS[2]: GIB}, None),
    "an index of a card that vanished": (of("p", by_index(1), starts=(1000,)), PAST, {IDS[1]: GIB}, None),
    "an index within the change": (
        of("p", by_index(1), starts=(1050,)), PAST, {IDS[1]: GIB, IDS[2]: GIB}, ConflictKind.UNKNOWN_NUMBER,
    ),
    "an index that both times mean the same": (of("p", by_index(0), starts=(1050,)), PAST, {IDS[0]: GIB}, None),
    "an index, containers on both sides of the change": (
        of("p", by_index(1), starts=(500, 2000)), PAST, {IDS[1]: GIB, IDS[2]: GIB}, ConflictKind.UNKNOWN_NUMBER,
    ),
    "an index, not started yet": (of("p", by_index(1), starts=(LATER,)), PAST, {IDS[2]: GIB}, None),
    "an index from before what is known": (
        of("p", by_index(1), starts=(99,)), PAST, EACH, ConflictKind.UNKNOWN_NUMBER,
    ),
    "an index without any history": (of("p", by_index(1), starts=(500,)), (), EACH, ConflictKind.UNKNOWN_NUMBER),
    "an index without a start": (of("p", by_index(1)), PAST, EACH, ConflictKind.UNKNOWN_NUMBER),
    "an index that no card had": (of("p", by_index(7), starts=(500,)), PAST, WHOLE, ConflictKind.OUT_OF_RANGE),
    "an index just above the last": (of("p", by_index(3), starts=(500,)), PAST, WHOLE, ConflictKind.OUT_OF_RANGE),
    "an index of which the reporter was not certain": (
        of("p", by_index(1), starts=(500,)), (Numbering(100, 100, (IDS[0], "", IDS[2])),), EACH,
        ConflictKind.UNKNOWN_NUMBER,
    ),
    "a minor": (
        of("p", ForeignPart(by=Numbered.MINOR, number=2, memory=GIB), starts=(2000,)), PAST, {IDS[2]: GIB}, None,
    ),
    "an index of a card that the node lists no more": (
        of("p", by_index(0), starts=(5,)), (Numbering(1, 1, ("GPU-gone",)),), EACH, ConflictKind.UNKNOWN_NUMBER,
    ),
}  # fmt: skip


@pytest.mark.parametrize(("pod", "past", "memory", "doubt"), CASES.values(), ids=CASES)
def test_what_a_pod_holds_is_exact_or_all_that_it_may_be(pod, past, memory, doubt) -> None:
    assert held(pod, past=past) == (memory, doubt)


NAMES = [None, "GPU-a", "GPU-b", None]


@pytest.mark.parametrize(("number", "identity"), list(enumerate(NAMES, -1)))
def test_a_numbering_names_no_card_but_its_own(number: int, identity: str | None) -> None:
    indexes, minors = ("GPU-a", "GPU-b"), ((0, "GPU-a"), (1, "GPU-b"))
    for by in Numbered:
        assert Numbering(1, 1, indexes, minors).named(by, number) == identity


def test_compute_of_which_nothing_is_said_counts_as_none() -> None:
    for stated in (ForeignPart(IDS[1], memory=GIB), ForeignPart(IDS[1], part=(1, 2))):
        found = adopt([of("p", stated)], CARDS)["uid-p"]
        assert [(one.id, one.amounts["gpu-core"]) for one in found.shares] == [(IDS[1], 0)]


def test_on_a_node_with_one_card_its_first_index_needs_no_history() -> None:
    assert held(of("p", by_index(0), starts=(5,)), cards=CARDS[:1]) == ({IDS[0]: GIB}, None)
    assert held(of("p", by_index(1), starts=(5,)), cards=CARDS[:1]) == ({IDS[0]: GIB}, ConflictKind.UNKNOWN_NUMBER)


def test_a_node_that_lists_no_card_has_nothing_to_hold_and_no_conflict() -> None:
    assert held(of("p", ForeignPart("GPU-x")), cards=[]) == ({}, None)


def test_shares_of_a_reserved_card_are_within_the_reservation_which_holds_all_of_it() -> None:
    keeper = of("keeper", ForeignPart(IDS[0]), peer=Product.KAI, reserves="g")
    users = [of(name, ForeignPart(group="g", part=(1, 2), core=50), peer=Product.KAI) for name in "ab"]
    node = NodeSnapshot("n1", tuple(CARDS), foreign=adopt([*users, keeper], CARDS))
    assert node.used == {IDS[0]: dict(CARDS[0].capacity)}
    assert [one.within for one in survey(node).held] == ["uid-keeper", "uid-keeper", ""]
    assert conflicts(node) == []
    third = of("c", ForeignPart(group="g", part=(1, 100), core=1), peer=Product.KAI)
    full = NodeSnapshot("n1", tuple(CARDS), foreign=adopt([*users, third, keeper], CARDS))
    assert [(one.kind, one.pods) for one in conflicts(full)] == [
        (ConflictKind.OVERFULL, ("team/a", "team/b", "team/c"))
    ]


@pytest.mark.parametrize("known", [None, "GPU-x"], ids=["not yet", "of no card here"])
def test_a_group_whose_card_is_not_known_holds_every_card(known) -> None:
    part_of = ForeignPart(known) if known else ForeignPart(group="g")
    keeper = of("keeper", part_of, peer=Product.KAI, reserves="g")
    user = of("user", ForeignPart(group="g", part=(1, 2)), peer=Product.KAI)
    assert held(user, keeper) == (WHOLE, ConflictKind.UNKNOWN_DEVICE)
    assert held(keeper, user) == (WHOLE, ConflictKind.UNKNOWN_DEVICE)
    assert held(user) == (WHOLE, ConflictKind.UNKNOWN_DEVICE)


def test_cards_beyond_their_size_are_conflicts_that_name_who_holds_them() -> None:
    pods = [of(name, ForeignPart(IDS[0], memory=TOTAL // 2 + 1)) for name in "ba"]
    pods.append(of("c", ForeignPart(IDS[1], core=60, memory=1)))
    ours = held_by_us("ours", share(CARDS[1], "main", core=60), part(CARDS[2], 50))
    node = NodeSnapshot("n1", tuple(CARDS), {ours.uid: ours}, foreign=adopt(pods, CARDS))
    assert [(one.kind, one.devices, one.pods) for one in conflicts(node)] == [
        (ConflictKind.BESIDE_OURS, (IDS[1],), ("team/c",)),
        (ConflictKind.OVERFULL, (IDS[0],), ("team/a", "team/b")),
    ]
    assert node.adopted == {IDS[0], IDS[1]}


def test_what_a_victim_of_another_product_holds_counts_as_free_once_it_is_proposed() -> None:
    pod = of("p", ForeignPart(IDS[0]))
    node = NodeSnapshot("n1", tuple(CARDS), foreign=adopt([pod], CARDS))
    assert node.without([pod.uid]).used == {}
    assert node.without(["uid-else"]).used == node.used


def test_the_history_of_numbers_is_written_and_read_as_the_same() -> None:
    assert read_numberings(write_numberings(PAST)) == (PAST, "")
    assert read_numberings(None) == ((), "")
    long = tuple(Numbering(time, time, (str(time),)) for time in range(40))
    assert read_numberings(write_numberings(long))[0] == long[40 - MOST_NUMBERINGS :]


WRONG = {
    "no JSON": "[",
    "no list": "{}",
    "no time": '[{"since": "now"}]',
    "a truth for a time": '[{"since": true}]',
    "not in order": '[{"since": 5}, {"since": 4}]',
    "indexes that are no list": '[{"since": 5, "indexes": {}}]',
    "a UUID that is no text": '[{"since": 5, "indexes": [1]}]',
    "a minor that is no number": '[{"since": 5, "minors": {"a": "GPU-a"}}]',
    "too many": "[" + ",".join(['{"since": 5}'] * 17) + "]",
}


@pytest.mark.parametrize("text", WRONG.values(), ids=WRONG)
def test_a_history_that_cannot_be_read_says_so_and_proves_nothing(text) -> None:
    found, problem = read_numberings(text)
    assert found == ()
    assert "what a card's number meant is not known" in problem
