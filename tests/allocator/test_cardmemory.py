"""A card's memory is given to the byte and to the percent, both on one card: nothing that is exact is refused."""

from builders import GIB, app, ask, gpu, holding, init, node, request, share, sidecar
from hypothesis import given, settings
from hypothesis import strategies as st
from trials import examples

from allocator.bind import PodToBind, bind
from allocator.index.cluster import ClusterIndex
from allocator.index.rows import query_of, type_rows
from allocator.place import Placement, place
from allocator.vocabulary.asks import DeviceAsk, PodRequest
from allocator.vocabulary.cardmemory import askable
from allocator.vocabulary.device import Device
from allocator.vocabulary.devicetype import GPU_TYPE
from allocator.vocabulary.names import GPU_MEMORY, GPU_MEMORY_RATIO, Phase
from allocator.vocabulary.node import NodeSnapshot, fullness
from allocator.vocabulary.outcome import Refusal
from koordgate.breaks import at_once

CARD = gpu(0, 24 * GIB)
SIZES = (24 * GIB, 80 * GIB, 25_769_803_777, 85_520_809_984, 8_589_934_591)
TOTALS = st.sampled_from(SIZES) | st.integers(2**20, 2**40)


def bytes_(*gib: int) -> list[DeviceAsk]:
    return [ask(memory=one * GIB) for one in gib]


def percent(*of: int) -> list[DeviceAsk]:
    return [ask(ratio=one) for one in of]


def given_to(card: Device, *pods: PodRequest) -> NodeSnapshot | None:
    """The card with all of these Pods, one after another; None if one is refused."""
    on = node(card)
    for number, pod in enumerate(pods):
        found = place(pod, on)
        if not isinstance(found, Placement):
            return None
        on = on.with_holding(holding(f"uid-{number}", *found.shares))
    on.check_invariants()
    return on


# What containers of one Pod, or Pods of one container, ask of a card of 24 GiB; whether they fit


def test_a_refusal_names_a_percentage_that_can_be_asked_for() -> None:
    on = given_to(CARD, request(app("a", *bytes_(16))))
    assert on is not None
    refused = place(request(app("a", *percent(34))), on)
    assert isinstance(refused, Refusal)
    assert refused.message.endswith("the most free is gpu 0 with core 100 %, memory 8 GiB (33 %)")


@st.composite
def parts(draw: st.DrawFn, total: int) -> list[DeviceAsk]:
    """Amounts of a card that sum to exactly all of it, in bytes and in percent."""
    percents = draw(st.lists(st.integers(1, 30), max_size=4).filter(lambda of: sum(of) <= 100))
    rest = total - sum(total * one // 100 for one in percents)
    cuts = sorted(draw(st.sets(st.integers(1, rest - 1), max_size=5))) if rest > 1 else []
    in_bytes = [high - low for low, high in zip([0, *cuts], [*cuts, rest], strict=True) if high > low]
    return draw(st.permutations([*percent(*percents), *(ask(memory=one) for one in in_bytes)]))


@st.composite
def pods(draw: st.DrawFn, asked: list[DeviceAsk]) -> list[PodRequest]:
    """Pods of several containers for these amounts; an init container asks for what a later one asks for too."""
    made = []
    left = list(asked)
    while left:
        count = draw(st.integers(1, len(left)))
        mine, left = left[:count], left[count:]
        early = [init("i", draw(st.sampled_from(mine)))] if draw(st.booleans()) else []
        later = [sidecar(f"s{at}", one) if draw(st.booleans()) else app(f"c{at}", one) for at, one in enumerate(mine)]
        later.sort(key=lambda one: one.phase is Phase.APP)
        made.append(request(*early, *later))
    return made


@settings(max_examples=examples(300), deadline=None)
@given(st.data(), TOTALS)
def test_any_parts_that_sum_to_a_card_fit_on_it_and_not_a_byte_more(data: st.DataObject, total: int) -> None:
    asked = data.draw(parts(total))
    card = gpu(0, total)
    on = given_to(card, *data.draw(pods(asked)))
    assert on is not None
    assert on.used[card.id][GPU_MEMORY] == total
    assert sum(one.shares[0].amounts[GPU_MEMORY_RATIO] for one in on.holdings.values()) <= 100
    assert isinstance(place(request(app("a", ask(memory=1))), on), Refusal)
    assert isinstance(place(request(app("a", ask(ratio=1))), on), Refusal)
    assert on.free(card, (GPU_MEMORY,)) == (0,)


@settings(max_examples=examples(300), deadline=None)
@given(st.data(), TOTALS)
def test_the_percentage_that_is_told_as_free_is_the_greatest_that_fits(data: st.DataObject, total: int) -> None:
    asked = data.draw(parts(total))
    card = gpu(0, total)
    on = given_to(card, *(request(app("a", one)) for one in asked[data.draw(st.integers(0, len(asked))) :]))
    assert on is not None
    tails = GPU_TYPE.tails
    has, unheld = on.stock((card,), tails)[0]
    told = askable(card, tails, has, unheld)[2]
    for one in range(max(told, 1), min(told + 2, 101)):
        assert isinstance(place(request(app("a", *percent(one))), on), Placement) is (one == told)


# Records of earlier releases, which rounded bytes up to the next percent


@settings(max_examples=examples(200), deadline=None)
@given(st.data(), TOTALS)
def test_the_exact_rest_beside_records_of_earlier_releases_can_be_had(data: st.DataObject, total: int) -> None:
    card = gpu(0, total)
    sizes = data.draw(st.lists(st.integers(1, total), min_size=1, max_size=6).filter(lambda of: sum(of) < total))
    records = [
        holding(f"old-{at}", share(card, "a", memory=one, ratio=-(-one * 100 // total))) for at, one in enumerate(sizes)
    ]
    on = node(card, holdings=records)
    rest = total - sum(sizes)
    index = ClusterIndex({"gpu": fullness(GPU_TYPE)})
    index.put(on.name, type_rows(on))
    at = index.positions([on.name])
    for amount, fits in ((rest, True), (rest + 1, False)):
        wanted = request(app("a", ask(memory=amount)))
        assert isinstance(place(wanted, on), Placement) is fits
        assert index.fitting(query_of(wanted))[at].tolist() == [fits]
    found = place(request(app("a", ask(memory=rest))), on)
    assert isinstance(found, Placement)
    on.with_holding(holding("new", *found.shares)).check_invariants()


def test_a_percentage_without_bytes_is_held_as_it_is_stated() -> None:
    on = node(CARD, holdings=[holding("strange", share(CARD, "a", ratio=40))])
    assert on.used[CARD.id][GPU_MEMORY_RATIO] == 39


def test_a_bind_is_answered_with_a_record_of_an_earlier_release() -> None:
    old = holding("uid", share(CARD, "a", memory=8 * GIB, ratio=34))
    claim = PodToBind("uid", "default", "pod-uid", request(app("a", *bytes_(8))))
    change = bind(claim, lambda holdings: node(CARD, holdings=holdings.values()), 1_700_000_000, "mark")
    changed, decision = at_once(change({"uid": old}))
    assert changed is None
    assert decision.outcome == old
