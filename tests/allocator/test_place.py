"""Placing whole Pods: properties against a recount and a search of the test's own.

Nothing here calls the allocator's arithmetic: amounts, steps and peaks are counted again from Kubernetes' rules.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import combinations, product
from math import floor
from typing import NamedTuple

import pytest
from builders import app, ask, gpus, holding, init, node, request, sidecar
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from machines import machine
from strategies import device_lists, pod_requests
from trials import examples

from allocator.place import Placement, place
from allocator.vocabulary.asks import ContainerAsk, DeviceAsk, PodRequest
from allocator.vocabulary.device import Device
from allocator.vocabulary.names import GPU_CORE, GPU_MEMORY, GPU_MEMORY_RATIO, Phase
from allocator.vocabulary.node import NodeSnapshot
from allocator.vocabulary.outcome import Refusal

TAILS = (GPU_CORE, GPU_MEMORY, GPU_MEMORY_RATIO)
SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]


class Use(NamedTuple):
    """Core percent, memory bytes, memory percent, of one card."""

    core: int = 0
    memory: int = 0
    ratio: int = 0


# The recount


def use_of(of: DeviceAsk, device: Device) -> Use:
    """The amounts that a request takes of a card: what is asked, and the same in the other unit, rounded down."""
    total = device.capacity[GPU_MEMORY]
    core, memory, ratio = (of.amount(tail) for tail in TAILS)
    assert core is not None
    if ratio is not None:
        return Use(core, floor(Fraction(total * ratio, 100)), ratio)
    assert memory is not None
    return Use(core, memory, floor(Fraction(memory * 100, total)))


def moments(of: PodRequest) -> list[list[ContainerAsk]]:
    """Which containers run together: each init container with the sidecars before it; then sidecars and apps."""
    told = []
    started: list[ContainerAsk] = []
    for one in of.containers:
        if one.phase is Phase.SIDECAR:
            started.append(one)
        elif one.phase is Phase.INIT:
            told.append([*started, one])
    told.append(started + [one for one in of.containers if one.phase is Phase.APP])
    return told


def peak(of: PodRequest, device: Device, containers: Sequence[str]) -> Use:
    """The peak of what these containers of the Pod use of one card together."""
    sums = [
        [
            sum(column)
            for column in zip(Use(), *(use_of(c.ask, device) for c in running if c.name in containers), strict=True)
        ]
        for running in moments(of)
    ]
    return Use(*(max(column) for column in zip(*sums, strict=True)))


def free_of(on: NodeSnapshot, device: Device) -> Use:
    taken = [
        [one.amounts.get(tail, 0) for tail in TAILS]
        for owner in on.holdings.values()
        for one in owner.shares
        if one.id == device.id
    ]
    return Use(*(device.capacity[tail] - sum(row[i] for row in taken) for i, tail in enumerate(TAILS)))


def fits(use: Use, free: Use) -> bool:
    return all(a <= b for a, b in zip(use, free, strict=True))


def usable(on: NodeSnapshot) -> list[Device]:
    return [device for device in on.devices if device.healthy and device.id not in on.kubelet_held]


def can_be_placed(of: PodRequest, on: NodeSnapshot) -> bool:
    """Try every way to give every container its cards."""
    cards = usable(on)
    ways = [combinations(range(len(cards)), one.ask.count) for one in of.containers]
    return any(
        all(
            fits(peak(of, card, [c.name for c, mine in zip(of.containers, given, strict=True) if i in mine]), free)
            for i, (card, free) in enumerate(zip(cards, [free_of(on, card) for card in cards], strict=True))
        )
        for given in product(*ways)
    )


def check(of: PodRequest, on: NodeSnapshot, answer: Placement) -> None:
    """Check every rule for a placement."""
    by_id = {device.id: device for device in usable(on)}
    assert answer.node == on.name
    assert len({one.id for one in answer.shares}) == len(answer.shares)
    assert [one.minor for one in answer.shares] == sorted(one.minor for one in answer.shares)
    names = [c.name for c in of.containers]
    for one in answer.shares:
        device = by_id[one.id]  # healthy, and not the kubelet's
        assert (one.type, one.minor) == (device.type, device.minor)
        assert one.containers
        assert list(one.containers) == [name for name in names if name in one.containers]
        assert Use(*(one.amounts[tail] for tail in TAILS)) == peak(of, device, one.containers)
        assert set(one.amounts) == set(TAILS)
        assert fits(peak(of, device, one.containers), free_of(on, device))
    for c in of.containers:
        assert sum(c.name in one.containers for one in answer.shares) == c.ask.count


# Nodes in use


@st.composite
def nodes(draw: st.DrawFn, most: int = 8, others: int = 4) -> NodeSnapshot:
    """A node with holdings of earlier placements; some of its cards are the kubelet's or have become unhealthy."""
    made = draw(device_lists(most))
    on = node(*made)
    for index in range(draw(st.integers(0, others))):
        answer = place(draw(pod_requests(2, 2)), on)
        if isinstance(answer, Placement):
            on = on.with_holding(holding(f"other-{index}", *answer.shares))
    kubelet = draw(st.sets(st.sampled_from([device.id for device in made]), max_size=1))
    return NodeSnapshot(on.name, on.devices, on.holdings, frozenset(kubelet if draw(st.booleans()) else ()))


@settings(max_examples=examples(100), deadline=None, suppress_health_check=SLOW)
@given(nodes(), pod_requests())
def test_a_placement_gives_each_container_its_distinct_healthy_cards_and_never_more_than_they_have(
    on: NodeSnapshot, of: PodRequest
) -> None:
    answer = place(of, on)
    if isinstance(answer, Refusal):
        assert answer.message.startswith("node-1: ")
        assert len(answer.message) < 1000
        return
    check(of, on, answer)
    on.with_holding(holding("uid", *answer.shares)).check_invariants()


@settings(max_examples=60, deadline=None, suppress_health_check=SLOW)
@given(device_lists(), st.lists(pod_requests(3, 3), max_size=8))
def test_a_node_filled_pod_by_pod_is_never_given_twice(made: list[Device], asked: list[PodRequest]) -> None:
    on = node(*made)
    for index, of in enumerate(asked):
        answer = place(of, on)
        if isinstance(answer, Placement):
            check(of, on, answer)
            on = on.with_holding(holding(f"uid-{index}", *answer.shares))
    on.check_invariants()
    for device in made:
        assert min(free_of(on, device)) >= 0


@settings(max_examples=examples(100), deadline=None, suppress_health_check=SLOW)
@given(nodes(most=4, others=3), pod_requests(3, 3))
def test_a_pod_is_refused_only_where_no_way_to_place_it_exists(on: NodeSnapshot, of: PodRequest) -> None:
    assert isinstance(place(of, on), Placement) == can_be_placed(of, on)


@settings(max_examples=100, deadline=None, suppress_health_check=SLOW)
@given(nodes(), pod_requests(), st.randoms(use_true_random=False))
def test_the_same_question_has_the_same_answer_in_whatever_order_it_is_reported(
    on: NodeSnapshot, of: PodRequest, chance: random.Random
) -> None:
    answer = place(of, on)
    assert place(of, on) == answer
    shuffled = chance.sample(on.devices, len(on.devices))
    owners = dict(chance.sample(sorted(on.holdings.items()), len(on.holdings)))
    again = node(*shuffled, holdings=owners.values(), kubelet=on.kubelet_held)
    assert place(of, again) == answer


@settings(max_examples=60, deadline=None, suppress_health_check=SLOW)
@given(nodes(), pod_requests())
def test_placing_changes_nothing_of_the_node(on: NodeSnapshot, of: PodRequest) -> None:
    before = (on.devices, dict(on.holdings), {key: dict(used) for key, used in on.used.items()})
    place(of, on)
    assert (on.devices, dict(on.holdings), {key: dict(used) for key, used in on.used.items()}) == before


@settings(max_examples=100, deadline=None, suppress_health_check=SLOW)
@given(nodes(most=4), pod_requests(3, 3))
def test_a_permanent_refusal_stands_on_the_empty_node_too(on: NodeSnapshot, of: PodRequest) -> None:
    answer = place(of, on)
    assume(isinstance(answer, Refusal))
    assert isinstance(answer, Refusal)
    if answer.permanent:
        assert isinstance(place(of, on.without(on.holdings)), Refusal)


@settings(max_examples=60, deadline=None, suppress_health_check=SLOW)
@given(nodes(most=6), pod_requests(3, 3))
def test_a_pod_that_goes_leaves_the_node_as_it_was(on: NodeSnapshot, of: PodRequest) -> None:
    answer = place(of, on)
    assume(isinstance(answer, Placement))
    assert isinstance(answer, Placement)
    after = on.with_holding(holding("uid", *answer.shares)).without(["uid"])
    assert after == on
    assert after.used == on.used
    assert place(of, after) == answer


@settings(max_examples=60, deadline=None, suppress_health_check=SLOW)
@given(st.integers(1, 2**50), st.integers(1, 100))
def test_what_follows_in_the_other_unit_is_rounded_down(total: int, percent: int) -> None:
    [device] = machine("one T4").devices
    card = Device(device.type, device.id, 0, healthy=True, capacity={**device.capacity, GPU_MEMORY: total})
    by_ratio = place(request(app("a", ask(ratio=percent))), node(card))
    assert isinstance(by_ratio, Placement)
    bytes_given = by_ratio.shares[0].amounts[GPU_MEMORY]
    assert bytes_given * 100 <= total * percent < (bytes_given + 1) * 100
    if bytes_given:
        by_bytes = place(request(app("a", ask(memory=bytes_given))), node(card))
        assert isinstance(by_bytes, Placement)
        assert by_bytes.shares[0].amounts[GPU_MEMORY] == bytes_given
        accounted = by_bytes.shares[0].amounts[GPU_MEMORY_RATIO]
        assert accounted * total <= bytes_given * 100 < (accounted + 1) * total


# Lives of Pods, moment by moment: (containers in order, core of one card at each moment)

LIVES: dict[str, tuple[PodRequest, list[int]]] = {
    "apps only": (request(app("a", gpus(30)), app("b", gpus(20))), [50]),
    "init, then app": (request(init("i", gpus(40)), app("a", gpus(30))), [40, 30]),
    "two inits": (request(init("i", gpus(40)), init("j", gpus(50)), app("a", gpus(30))), [40, 50, 30]),
    "sidecar first": (request(sidecar("s", gpus(20)), init("i", gpus(40)), app("a", gpus(30))), [60, 50]),
    "sidecar between": (
        request(init("i", gpus(90)), sidecar("s", gpus(20)), init("j", gpus(40)), app("a", gpus(30))),
        [90, 60, 50],
    ),
    "sidecar last": (request(init("i", gpus(90)), sidecar("s", gpus(20)), app("a", gpus(30))), [90, 50]),
    "two sidecars": (
        request(
            sidecar("s", gpus(10)), init("i", gpus(40)), sidecar("t", gpus(20)), init("j", gpus(50)), app("a", gpus(20))
        ),
        [50, 80, 50],
    ),
    "no app asks": (request(sidecar("s", gpus(10)), init("i", gpus(40))), [50, 10]),
}


@pytest.mark.parametrize(("of", "steps"), LIVES.values(), ids=LIVES)
def test_a_pod_holds_the_most_that_runs_together_at_any_moment(of: PodRequest, steps: list[int]) -> None:
    assert [sum(c.ask.amount(GPU_CORE) or 0 for c in running) for running in moments(of)] == steps  # the recount itself
    answer = place(of, machine("one T4"))
    assert isinstance(answer, Placement)
    assert [one.amounts[GPU_CORE] for one in answer.shares] == [max(steps)]
    check(of, machine("one T4"), answer)


@pytest.mark.parametrize(("of", "steps"), LIVES.values(), ids=LIVES)
def test_one_percent_beside_a_pods_peak_is_all_that_can_be_too_much(of: PodRequest, steps: list[int]) -> None:
    card = machine("one T4").devices[0]
    for room, fitting in ((100 - max(steps), True), (100 - max(steps) + 1, False)):
        other = place(request(app("x", ask(core=room, ratio=1))), node(card))
        assert isinstance(other, Placement)
        on = node(card, holdings=[holding("other", *other.shares)])
        small = request(
            *(ContainerAsk(c.name, c.phase, ask(core=c.ask.amount(GPU_CORE) or 0, ratio=1)) for c in of.containers)
        )
        assert isinstance(place(small, on), Placement) == fitting


# Size


def big_pods() -> Iterator[tuple[str, PodRequest]]:
    yield "sixteen containers of half a card", request(*(app(f"c{i}", gpus(50)) for i in range(16)))
    yield "eight whole cards, one each", request(*(app(f"c{i}", gpus(100)) for i in range(8)))
    yield "a hundred small ones", request(*(app(f"c{i}", ask(core=8, ratio=8)) for i in range(96)))
    yield "inits of all cards", request(*(init(f"i{i}", gpus(800)) for i in range(20)), app("a", gpus(800)))


BIG: Mapping[str, PodRequest] = dict(big_pods())


@pytest.mark.parametrize("of", BIG.values(), ids=BIG)
def test_a_pod_of_many_containers_that_fills_the_node_is_placed(of: PodRequest) -> None:
    on = machine("eight A100")
    answer = place(of, on)
    assert isinstance(answer, Placement), answer
    check(of, on, answer)


def test_a_pod_that_cannot_be_placed_is_refused_after_a_bounded_search() -> None:
    of = request(*(app(f"c{i}", gpus(51)) for i in range(9)))  # nine cards needed, each fits alone
    answer = place(of, machine("eight A100"))
    assert isinstance(answer, Refusal)
    assert not answer.permanent
