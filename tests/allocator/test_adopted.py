"""Which cards other products' Pods hold, what counts where that is in doubt, and which conflicts there are."""

from dataclasses import replace
from typing import Any

import pytest
from builders import GIB, gpu, nic, part, share
from builders import holding as held_by_us

from allocator.adopted import adopt, conflicts, doubts, in_doubt, survey
from allocator.vocabulary.adopted import LATER, ConflictKind, ForeignPart, ForeignPod, Numbered, Numbering, Product
from allocator.vocabulary.device import Device
from allocator.vocabulary.holdings import Share
from allocator.vocabulary.node import NodeSnapshot
from allocator.wire.deviceobject import MAX_NUMBERINGS, read_numberings, write_numberings
from allocator.wire.foreignpods import Adoption, read_foreign_pod

CARDS = [gpu(minor) for minor in range(3)]
IDS = [card.id for card in CARDS]
FPGA = Device("fpga", "FPGA-0", 0, healthy=True, capacity={"fpga": 100})
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
    "another scheduler": (
        of("p", ForeignPart(IDS[1]), uncounted="not its scheduler"), (), {}, ConflictKind.UNCOUNTED,
    ),
    "an index in the past": (of("p", by_index(2), starts=(500,)), PAST, {IDS[2]: GIB}, None),
    "an index from the first second that is known": (of("p", by_index(1), starts=(100,)), PAST, {IDS[1]: GIB}, None),
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
    "the first index without any history": (of("p", by_index(0), starts=(5,)), (), EACH, ConflictKind.UNKNOWN_NUMBER),
    "an index without a start": (of("p", by_index(1)), PAST, EACH, ConflictKind.UNKNOWN_NUMBER),
    "an index that no card had": (of("p", by_index(7), starts=(500,)), PAST, WHOLE, ConflictKind.OUT_OF_RANGE),
    "an index just above the last": (of("p", by_index(3), starts=(500,)), PAST, WHOLE, ConflictKind.OUT_OF_RANGE),
    "an index of which the reporter was not certain": (
        of("p", by_index(1), starts=(500,)), (Numbering(100, 100, (IDS[0], "", IDS[2])),), EACH,
        ConflictKind.UNKNOWN_NUMBER,
    ),
    "no card is named": (of("p", ForeignPart(memory=GIB)), PAST, EACH, ConflictKind.UNKNOWN_NUMBER),
    "no card is named, and no amount": (of("p", ForeignPart()), PAST, WHOLE, ConflictKind.UNKNOWN_NUMBER),
    "a minor": (
        of("p", ForeignPart(by=Numbered.MINOR, number=2, memory=GIB), starts=(2000,)), PAST, {IDS[2]: GIB}, None,
    ),
    "an index of cards of which the node lists one": (
        of("p", by_index(0), starts=(1, 9)), (Numbering(1, 1, (IDS[0],)), Numbering(5, 5, ("GPU-gone",))), EACH,
        ConflictKind.UNKNOWN_NUMBER,
    ),
    "an index that a card had before": (
        of("p", by_index(2), starts=(500, 2000)), PAST, EACH, ConflictKind.UNKNOWN_NUMBER,
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


@pytest.mark.parametrize(
    ("by", "number", "certain"),
    [
        (Numbered.INDEX, 0, True),
        (Numbered.INDEX, 1, False),
        (Numbered.INDEX, 3, False),
        (Numbered.MINOR, 0, False),
        (Numbered.MINOR, 2, False),
        (Numbered.MINOR, 3, True),
        (Numbered.MINOR, 4, False),
    ],
)
def test_on_a_node_with_one_card_its_own_numbers_need_no_history(by: Numbered, number: int, *, certain: bool) -> None:
    pod = of("p", ForeignPart(by=by, number=number, memory=GIB), starts=(5,))
    doubt = None if certain else ConflictKind.UNKNOWN_NUMBER
    assert held(pod, cards=[gpu(3)]) == ({"GPU-3": GIB}, doubt)


def test_on_a_node_with_one_card_a_pod_of_which_nothing_names_a_card_has_that_card() -> None:
    assert held(of("p", ForeignPart(memory=GIB)), cards=[gpu(3)], past=PAST) == ({"GPU-3": GIB}, None)
    assert held(of("p", ForeignPart(memory=GIB)), cards=[FPGA]) == ({}, None)


def test_on_a_node_with_one_card_a_number_counts_by_its_history_where_there_is_one() -> None:
    pod = of("p", by_index(0), starts=(5,))
    assert held(pod, cards=CARDS[:1], past=(Numbering(1, 1, ("GPU-gone",)),)) == (
        {IDS[0]: GIB},
        ConflictKind.UNKNOWN_NUMBER,
    )


@pytest.mark.parametrize("part_of", [ForeignPart("GPU-x"), by_index(0), ForeignPart(group="g")], ids=str)
def test_a_node_that_lists_no_card_has_nothing_to_hold_and_no_conflict(part_of: ForeignPart) -> None:
    assert held(of("p", part_of), cards=[]) == ({}, None)


def test_devices_of_other_types_are_not_held_where_it_is_not_known_which_card_is() -> None:
    assert held(of("p", problem="nonsense"), cards=[FPGA, *CARDS, nic(0)]) == (WHOLE, ConflictKind.UNREADABLE)


@pytest.mark.parametrize(
    ("stated", "core", "memory", "ratio"),
    [
        (ForeignPart(IDS[0], memory=TOTAL // 8, core=30), 30, TOTAL // 8, 12),
        (ForeignPart(IDS[0], memory=0, core=30), 30, 0, 0),
        (ForeignPart(IDS[0], memory=1), 0, 1, 0),
        (ForeignPart(IDS[0], part=(2, 3), core=7), 7, -(-TOTAL * 2 // 3), 66),
        (ForeignPart(IDS[0], core=30), 100, TOTAL, 100),
    ],
)
def test_the_bytes_of_a_part_round_up_and_their_percentage_down(
    stated: ForeignPart, core: int, memory: int, ratio: int
) -> None:
    (found,) = adopt([of("p", stated)], CARDS)["uid-p"].shares
    assert found == share(CARDS[0], core=core, memory=memory, ratio=ratio)


LIST_IT = "let the node's reporter list its GPUs (give its Device object if files were read), or delete Pod team/p"
NO_CARD = "which is none of the GPUs of node n1. All GPUs of the node are held"


@pytest.mark.parametrize(
    ("pod", "why"),
    [
        (of("p", ForeignPart("GPU-x")), f"evidence names GPU-x, {NO_CARD}: {LIST_IT}"),
        (
            of("p", ForeignPart(group="g")),
            f"evidence names the card of the reservation Pod of group g, {NO_CARD}: {LIST_IT}",
        ),
        (
            of("p", ForeignPart(group="h")),
            (
                "the reservation Pod of group h, which names its GPU of node n1, was not read. All GPUs of the node "
                "are held: give that Pod too if this was read from files, and delete Pod team/p if it is gone"
            ),
        ),
        (
            of("p", by_index(7), starts=(500,)),
            (
                "evidence names the card with index 7, and node n1 had none when the Pod started. "
                "All its GPUs are held: delete Pod team/p"
            ),
        ),
        (
            of("p", by_index(1), starts=(1050,)),
            (
                "evidence names the card with index 1, which meant GPU-1 or GPU-2 when its containers started. "
                "Each of them is held: delete Pod team/p to end the doubt"
            ),
        ),
    ],
    ids=["no such card", "a group's card that is none", "a group of nobody", "no such number", "either of two"],
)
def test_a_doubt_says_why_and_what_to_do(pod: ForeignPod, why: str) -> None:
    keeper = of("keeper", ForeignPart("GPU-y"), peer=Product.KAI, reserves="g")
    assert adopt([pod, keeper], CARDS, PAST)["uid-p"].why == why


STATIC = "; of static Pods ({}) remove the manifest from the node instead of deleting them"


@pytest.mark.parametrize(
    ("metadata", "told"),
    [
        ({}, ""),
        ({"ownerReferences": [{"kind": "A"}, {"kind": "Job", "controller": True}]}, "; a Job then creates {} anew"),
        ({"annotations": {"kubernetes.io/config.mirror": "x"}, "ownerReferences": [{"kind": "Node"}]}, STATIC),
    ],
    ids=["nobody", "a Job", "a static Pod"],
)
def test_what_creates_a_pod_anew_is_told_with_the_advice_to_delete_it(metadata: dict[str, Any], told: str) -> None:
    annotations = metadata.get("annotations", {}) | {"hami.io/vgpu-devices-allocated": "GPU-x,NVIDIA,1,0:;"}
    obj = {
        "metadata": {"uid": "uid-p", "namespace": "team", "name": "p", **metadata, "annotations": annotations},
        "spec": {"nodeName": "n1", "containers": [{"name": "a"}]},
    }
    read = read_foreign_pod(obj, Adoption(frozenset({Product.HAMI})))
    assert read is not None
    assert adopt([read], CARDS)["uid-p"].why.partition(LIST_IT)[2] == told.format("team/p")
    over = [of(name, ForeignPart(IDS[0], core=60), maker=read.maker) for name in "ab"]
    (found,) = conflicts(NodeSnapshot("n1", tuple(CARDS), foreign=adopt(over, CARDS)))
    said = told.format("team/a, team/b" if told == STATIC else "team/a and team/b")
    assert found.message.partition("delete one of the Pods")[2] == said


def test_the_pods_in_doubt_are_listed_by_name_and_neither_exact_nor_uncounted_ones() -> None:
    pods = [
        of("b", ForeignPart("GPU-x")),
        of("a", problem="nonsense"),
        of("c", ForeignPart(IDS[0])),
        of("d", uncounted="not its scheduler"),
    ]
    foreign = adopt(pods, CARDS)
    assert [in_doubt(foreign[f"uid-{name}"]) for name in "abcd"] == [True, True, False, False]
    assert [told.split(":")[0] for told in doubts(NodeSnapshot("n1", tuple(CARDS), foreign=foreign))] == [
        "what Pod team/a holds on n1 is in doubt",
        "what Pod team/b holds on n1 is in doubt",
    ]


def test_the_first_doubt_of_a_pod_is_told() -> None:
    strange, number = ForeignPart("GPU-x"), by_index(1)
    assert held(of("p", strange, number))[1] is ConflictKind.UNKNOWN_DEVICE
    assert held(of("p", number, strange))[1] is ConflictKind.UNKNOWN_NUMBER
    assert held(of("p", strange, ForeignPart(IDS[0])))[1] is ConflictKind.UNKNOWN_DEVICE


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


@pytest.mark.parametrize("why", [{"problem": "nonsense"}, {"uncounted": "not its scheduler"}], ids=str)
def test_a_reservation_pod_that_does_not_say_its_card_vouches_for_no_other(why: dict[str, str]) -> None:
    parts = [] if "problem" in why else [ForeignPart(IDS[0])]
    keeper = of("keeper", *parts, peer=Product.KAI, reserves="g", **why)
    user = of("user", ForeignPart(group="g", part=(1, 2)), peer=Product.KAI)
    assert held(user, keeper) == (WHOLE, ConflictKind.UNKNOWN_DEVICE)


@pytest.mark.parametrize(
    ("cards", "within"),
    [((0,), "uid-keeper"), ((0, 1), "uid-other"), ((0, 2), ""), ((2,), "")],
    ids=["reserved", "both reserved", "one not reserved", "not reserved"],
)
def test_cards_that_are_named_are_within_the_reservations_if_these_have_all_of_them(
    cards: tuple[int, ...], within: str
) -> None:
    keeper = of("keeper", ForeignPart(IDS[0]), peer=Product.KAI, reserves="g")
    other = of("other", ForeignPart(IDS[1]), peer=Product.KAI, reserves="h")
    pod = of("p", *(ForeignPart(IDS[at], group="g", memory=GIB) for at in cards), peer=Product.KAI)
    found = adopt([keeper, other, pod], CARDS)["uid-p"]
    assert {share.id: share.amounts["gpu-memory"] for share in found.shares} == {IDS[at]: GIB for at in cards}
    assert (found.within, found.doubt) == (within, None)


def test_a_named_card_that_the_node_lacks_is_any_of_its_cards() -> None:
    pod = of("p", ForeignPart("GPU-x", group="g", memory=GIB), peer=Product.KAI)
    found = adopt([pod], CARDS)["uid-p"]
    assert {share.id for share in found.shares} == {*IDS}
    assert found.why.startswith("evidence names GPU-x, which is none of the GPUs of node n1")


def test_a_pod_of_which_one_card_is_in_doubt_counts_beside_the_reservation_pod() -> None:
    keeper = of("keeper", ForeignPart(IDS[0]), peer=Product.KAI, reserves="g")
    parts = [ForeignPart(group="g", part=(1, 2)), ForeignPart("GPU-x")]
    for user in (of("user", *parts), of("user", *reversed(parts))):
        found = adopt([user, keeper], CARDS)
        assert (found["uid-user"].within, found["uid-user"].doubt) == ("", ConflictKind.UNKNOWN_DEVICE)
        assert found["uid-keeper"].within == ""


def test_a_card_that_is_held_to_the_last_percent_is_no_conflict() -> None:
    theirs = [of(name, ForeignPart(IDS[0], part=(1, 2), core=50)) for name in "ab"]
    theirs.append(of("c", ForeignPart(IDS[1], part=(1, 4), core=25)))
    ours = held_by_us("ours", part(CARDS[1], 75))
    twice = [held_by_us(name, part(CARDS[2], 60)) for name in ("x", "y")]
    held = {one.uid: one for one in (ours, *twice)}
    assert conflicts(NodeSnapshot("n1", tuple(CARDS), held, foreign=adopt(theirs, CARDS))) == []
    compute = held_by_us("compute", Share("gpu", IDS[0], 0, {"gpu-core": 1}))
    memory = [of("memory", ForeignPart(IDS[0], memory=TOTAL, core=99))]
    assert conflicts(NodeSnapshot("n1", tuple(CARDS), {"compute": compute}, foreign=adopt(memory, CARDS))) == []
    more = replace(ours, shares=(part(CARDS[1], 76),))
    (found,) = conflicts(NodeSnapshot("n1", tuple(CARDS), {"ours": more}, foreign=adopt(theirs, CARDS)))
    assert (found.kind, found.devices, found.pods) == (ConflictKind.BESIDE_OURS, (IDS[1],), ("team/c",))


@pytest.mark.parametrize(("number", "more"), [(8, ""), (9, " and 1 more"), (17, " and 9 more")])
def test_a_conflict_names_eight_pods(number: int, more: str) -> None:
    theirs = [of(f"p{at:02}", ForeignPart(IDS[0], core=20)) for at in range(number)]
    ours = [held_by_us(f"o{at:02}", share(CARDS[1], core=1)) for at in range(number)]
    ours += [held_by_us(f"elsewhere-{card.minor}", share(card, core=1)) for card in (CARDS[0], CARDS[2])]
    foreign = adopt([*theirs, of("q", ForeignPart(IDS[1]))], CARDS)
    found = conflicts(NodeSnapshot("n1", tuple(CARDS), {one.uid: one for one in ours}, foreign=foreign))
    pods, own = [f"team/p{at:02}" for at in range(8)], [f"default/pod-o{at:02}" for at in range(8)]
    beside = f"is held by team/q (hami) as well as by {', '.join(own)}, and it has too little for both"
    over = f"is held beyond what it has, by {' (hami), '.join(pods)} (hami){more}: their products gave it away twice"
    assert [one.message for one in found] == [
        f"gpu 1 (GPU-1) of node n1 {beside}; delete one of the Pods",
        f"gpu 0 (GPU-0) of node n1 {over}; delete one of the Pods",
    ]
    assert found[1].pods == tuple(pods)
    assert found[1].uids == tuple(f"uid-p{at:02}" for at in range(8))


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
    assert read_numberings(write_numberings(long))[0] == long[40 - MAX_NUMBERINGS :]


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
