"""A card's driver keeps some of its memory: what was given before that was known stays, and nothing new goes there."""

import pytest
from builders import GIB, MIB, app, ask, device_entry, device_object, gpu, gpus, held, node, request, share

from allocator.adopted import adopt, conflicts
from allocator.index.rows import type_rows
from allocator.place import place
from allocator.vocabulary.adopted import ConflictKind, ForeignPart, ForeignPod, Product
from allocator.vocabulary.devicetype import BUILT_IN, GPU_TYPE
from allocator.vocabulary.holdings import InvariantError
from allocator.vocabulary.node import NodeSnapshot
from allocator.vocabulary.outcome import Refusal
from allocator.wire.deviceobject import read_device_object
from webhook.view.capacity import AmountSum, counted

RESERVED = 640 * MIB
TOTAL = 80 * GIB
CARD = gpu(0, TOTAL - RESERVED, reserved=RESERVED)
BESIDE = gpu(1, TOTAL - RESERVED, reserved=RESERVED)
WHOLE = share(CARD, core=100, memory=TOTAL, ratio=100)
HALF = share(CARD, core=50, memory=TOTAL // 2, ratio=50)
THEN: dict[str, NodeSnapshot] = {
    "a Pod has a whole card": node(CARD, BESIDE, holdings=held(WHOLE)),
    "two Pods have a half each": node(CARD, BESIDE, holdings=held(HALF, HALF)),
}


@pytest.mark.parametrize("on", THEN.values(), ids=THEN)
def test_what_pods_hold_since_before_the_upgrade_is_no_contradiction_and_leaves_nothing_free(on: NodeSnapshot) -> None:
    on.check_invariants()
    assert on.used[CARD.id]["gpu-memory"] == TOTAL
    assert on.stock(on.devices, GPU_TYPE.tails) == [
        ((100, TOTAL - RESERVED, 100), (0, 0, 0)),
        ((100, TOTAL - RESERVED, 100), (100, TOTAL - RESERVED, 100)),
    ]
    (row,) = type_rows(on)
    assert [packed.frees() for packed in row.classes] == [[0, 100], [0, TOTAL - RESERVED], [0, 100]]
    sums = counted(on, BUILT_IN)
    assert [sums[AmountSum("gpu", "", "gpu-memory", what)] for what in ("capacity", "allocated", "free")] == [
        2 * (TOTAL - RESERVED),
        TOTAL,
        TOTAL - RESERVED,
    ]


@pytest.mark.parametrize("on", THEN.values(), ids=THEN)
def test_new_pods_go_beside_it_and_the_card_is_given_again_once_its_pods_have_ended(on: NodeSnapshot) -> None:
    whole = request(app("main", gpus(100)))
    beside = place(whole, on)
    assert not isinstance(beside, Refusal)
    assert [(one.id, one.amounts["gpu-memory"]) for one in beside.shares] == [(BESIDE.id, TOTAL - RESERVED)]
    assert isinstance(place(request(app("main", gpus(200))), on), Refusal)
    assert isinstance(place(request(app("main", ask(2, memory=MIB))), on), Refusal)
    assert not isinstance(place(request(app("main", gpus(200))), on.without(on.holdings)), Refusal)


def test_half_a_card_that_was_given_before_leaves_what_is_left_in_bytes() -> None:
    on = node(CARD, holdings=held(HALF))
    assert on.free(CARD, GPU_TYPE.tails) == (50, TOTAL // 2 - RESERVED, 50)
    left = place(request(app("main", ask(memory=TOTAL // 2 - RESERVED))), on)
    assert not isinstance(left, Refusal)
    on.with_holding(held(*left.shares)[0]).check_invariants()


def test_more_than_the_whole_card_is_still_given_twice() -> None:
    with pytest.raises(InvariantError, match="of GPU-0 given, it has 85899345920"):
        node(CARD, holdings=held(WHOLE, share(CARD, memory=1))).check_invariants()
    with pytest.raises(InvariantError, match="101 gpu-core of GPU-0 given, it has 100"):
        node(CARD, holdings=held(share(CARD, core=101))).check_invariants()


@pytest.mark.parametrize(("each", "kinds"), [(TOTAL // 2, []), (TOTAL // 2 + MIB, [ConflictKind.OVERFULL])])
def test_other_products_give_all_of_a_card_and_that_is_no_conflict(each: int, kinds: list[ConflictKind]) -> None:
    pods = [
        ForeignPod(f"uid-{name}", "team", name, "n1", Product.HAMI, "evidence", (ForeignPart(CARD.id, memory=each),))
        for name in ("a", "b")
    ]
    on = node(CARD, foreign=adopt(pods, [CARD], ()))
    assert [one.kind for one in conflicts(on)] == kinds
    assert on.free(CARD, GPU_TYPE.tails)[1:] == (0, 0)


LABELS = {
    "told": ("671088640", RESERVED),
    "nothing told": (None, 0),
    "a quantity": ("640Mi", 0),
    "negative": ("-1", 0),
    "far too long": ("9" * 16, 0),
    "other digits": ("٣", 0),
}


@pytest.mark.parametrize(("text", "reserved"), LABELS.values(), ids=LABELS)
def test_the_device_object_tells_what_is_kept_beside_what_there_is_to_give(text: str | None, reserved: int) -> None:
    labels = {} if text is None else {"koordgate.io/reserved-memory": text}
    read = read_device_object(device_object(device_entry(0, "80Gi", labels=labels)))
    assert not read.problems
    assert [(one.reserved, one.capacity["gpu-memory"]) for one in read.devices] == [(reserved, 80 * GIB)]
