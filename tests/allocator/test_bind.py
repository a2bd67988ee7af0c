"""Binds: what is decided about a node's holdings."""

from collections.abc import Iterable
from dataclasses import replace
from itertools import combinations

import pytest
from builders import app, ask, asking, gpu, gpus, held, holding, node, part, request, share
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, multiple, rule
from machines import server, server_cpu
from machines_cpu import build, siblings_near
from strategies import aligned_requests, cpu_rules, server_nodes

from allocator.bind import ENDING, GANG_WAITS, Decision, PodToBind, adopt_running, bind, end, keep, may_take, release
from allocator.place import Placement, numa_policy, place
from allocator.vocabulary.asks import DeviceOrder, PodRequest, Wishes
from allocator.vocabulary.cpunode import CpuAsk, CpuShare, NumaPolicy, NumaShare, QosClass
from allocator.vocabulary.cputopology import parse
from allocator.vocabulary.holdings import Holding, Share
from allocator.vocabulary.node import NodeSnapshot
from allocator.vocabulary.outcome import Refusal
from koordgate.breaks import at_once

NOW = 1_700_000_000


def claim(of: PodRequest, said: Iterable[Share] | None = None, cpus: CpuShare | None = None) -> PodToBind:
    """A Pod of this request, whose annotations name these shares."""
    holds = None if said is None else Holding("p", "default", "p", 0, tuple(said), cpus)
    return PodToBind("p", "default", "p", of, None if holds is None else lambda _devices: holds)


def decide(on: NodeSnapshot, pod: PodToBind, sent: Holding | None = None) -> Decision:
    """Bind on a node, and check what the ledger would then hold."""
    after, decided = at_once(bind(pod, on.holding_all, NOW, "mark", sent)(on.holdings))
    if after is not None:
        on.holding_all(after).check_invariants()
        assert after["p"] == (
            replace(on.holdings["p"], ending="mark") if decided.outcome == ENDING else decided.outcome
        )
    return decided


def minors(decided: Decision) -> list[int]:
    assert isinstance(decided.outcome, Holding), decided.outcome
    return [share.minor for share in decided.outcome.shares]


# --- four cards on two NUMA nodes under Restricted: two cards are given of one NUMA node, or none are

CARDS = [gpu(minor, numa_node=minor // 2) for minor in range(4)]
TWO = request(app("main", gpus(200)))
ACROSS = [part(CARDS[minor], 100, "main") for minor in (0, 2)]
OCCUPIED = [set(minors) for width in range(4) for minors in combinations(range(4), width)]


def restricted(occupied: Iterable[int], *, policy: NumaPolicy = NumaPolicy.RESTRICTED) -> NodeSnapshot:
    others = held(*(part(CARDS[minor], 100) for minor in sorted(occupied)))
    return node(*CARDS, holdings=others, cpu=server_cpu(policy=policy))


@pytest.mark.parametrize("occupied", OCCUPIED, ids=str)
def test_no_bind_gives_cards_across_numa_nodes_where_the_policy_forbids_it(occupied: set[int]) -> None:
    on = restricted(occupied)
    placed = place(TWO, on)
    across = Holding("p", "default", "p", NOW, tuple(ACROSS))
    on_hold = on
    if not occupied & {0, 2}:
        assert decide(on.with_holding(across), claim(TWO)) == Decision(ENDING)
        on_hold = on.with_holding(replace(across, until=NOW + 60))  # no bind was answered with it
    for decided in (decide(on_hold, claim(TWO)), decide(on, claim(TWO), across)):
        if isinstance(placed, Refusal):
            assert decided.outcome == placed
        else:
            assert minors(decided) in ([0, 1], [2, 3])
    adopted = decide(on, claim(TWO, ACROSS)).outcome
    assert isinstance(adopted, Refusal)
    assert "cannot be adopted" in adopted.message
    short = "does not have the stated amounts free"
    assert (short if occupied & {0, 2} else "NUMA policy Restricted") in adopted.message


@pytest.mark.parametrize("policy", [NumaPolicy.NONE, NumaPolicy.BEST_EFFORT])
def test_where_the_policy_allows_it_cards_across_numa_nodes_are_confirmed(policy: NumaPolicy) -> None:
    on = restricted((), policy=policy)
    across = Holding("p", "default", "p", NOW, tuple(ACROSS))
    again = decide(on.with_holding(across), claim(TWO))
    assert (again.outcome, again.repeated) == (across, True)
    assert minors(decide(on, claim(TWO), across)) == [0, 2]
    assert minors(decide(on, claim(TWO, ACROSS))) == [0, 2]


def test_a_pod_as_wide_as_it_needs_keeps_its_cards_under_restricted() -> None:
    three = request(app("main", gpus(300)))
    of = Holding("p", "default", "p", NOW, tuple(part(CARDS[minor], 100, "main") for minor in (0, 2, 3)))
    again = decide(restricted(()).with_holding(of), claim(three))
    assert again.outcome == of


# --- repeated binds


def test_a_repeated_bind_confirms_what_is_held_and_changes_nothing_however_old_it_is() -> None:
    of = Holding("p", "default", "p", NOW - 1_000_000, (part(CARDS[3], 50, "main"),))
    half = claim(request(app("main", gpus(50))))
    on = node(*CARDS).with_holding(of)
    assert at_once(bind(half, on.holding_all, NOW, "mark")(on.holdings)) == (None, Decision(of, repeated=True))


STALE: dict[str, tuple[NodeSnapshot, PodRequest]] = {
    "it asks for more": (node(*CARDS), request(app("main", gpus(60)))),
    "it asks for less": (node(*CARDS), request(app("main", gpus(40)))),
    "its card is unhealthy": (node(gpu(0, healthy=False), *CARDS[1:]), request(app("main", gpus(50)))),
    "its card is gone": (node(*CARDS[1:]), request(app("main", gpus(50)))),
    "the kubelet gave its card away": (node(*CARDS, kubelet=["GPU-0"]), request(app("main", gpus(50)))),
    "its card is over-full": (node(*CARDS, holdings=held(part(CARDS[0], 60))), request(app("main", gpus(50)))),
}


@pytest.mark.parametrize(("on", "of"), STALE.values(), ids=STALE)
def test_what_no_longer_serves_a_pod_is_marked_and_kept_because_a_bind_to_it_may_still_be_performed(
    on: NodeSnapshot, of: PodRequest
) -> None:
    before = Holding("p", "default", "p", NOW, (part(CARDS[0], 50, "main"),))
    holdings = {**on.holdings, "p": before}
    after, decided = at_once(bind(claim(of), on.holding_all, NOW, "mark")(holdings))
    assert decided == Decision(ENDING)
    assert after == {**holdings, "p": replace(before, ending="mark")}
    assert at_once(bind(claim(of), on.holding_all, NOW, "other")(after)) == (None, Decision(ENDING))


@pytest.mark.parametrize(("on", "of"), STALE.values(), ids=STALE)
def test_what_is_held_for_a_gang_and_no_longer_serves_the_pod_is_replaced_at_once(
    on: NodeSnapshot, of: PodRequest
) -> None:
    """No bind was answered with it yet."""
    before = Holding("p", "default", "p", NOW, (part(CARDS[0], 50, "main"),), until=NOW + 60)
    anew = at_once(bind(claim(of), on.holding_all, NOW, "mark")({**on.holdings, "p": before}))[1].outcome
    placed = place(of, on)
    assert isinstance(placed, Placement)
    assert isinstance(anew, Holding)
    assert (anew.shares, anew.until, anew.ending) == (placed.shares, 0, "")


def test_who_asks_for_every_nic_is_not_given_fewer_again_when_one_comes_back() -> None:
    every = asking({"koordinator.sh/rdma": "50"}, hint={"rdma": {"allocateStrategy": "ApplyForAll"}})
    on = server()
    nics = [device for device in on.devices if device.type == "rdma"]
    three = tuple(Share("rdma", nic.id, nic.minor, {"rdma": 50}, ("a",)) for nic in nics[:3])
    held_by_p = Holding("p", "default", "p", NOW, three)
    assert at_once(bind(claim(every), on.holding_all, NOW, "mark")({"p": held_by_p}))[1] == Decision(ENDING)
    on_hold = {"p": replace(held_by_p, until=NOW + 60)}
    assert minors(at_once(bind(claim(every), on.holding_all, NOW, "mark")(on_hold))[1]) == [0, 1, 2, 3]


def test_a_pod_of_a_shared_pool_keeps_its_numa_node_and_one_whose_node_is_full_is_refused() -> None:
    ls = PodRequest((), CpuAsk(QosClass.LS, 0, 2000, 0, numa_policy=NumaPolicy.SINGLE_NUMA_NODE))
    of = Holding("p", "default", "p", NOW, (), CpuShare("LS", numa=(NumaShare(1, 2000, 0, 1),)))
    placed = place(ls, server())
    assert isinstance(placed, Placement)
    assert placed.cpus is not None
    assert [one.node for one in placed.cpus.numa] == [0], "anew it would be the other one"
    assert decide(server([of]), claim(ls)).outcome == of
    full = holding("full", cpus=CpuShare("LSR", parse("16-30")))
    assert at_once(bind(claim(ls), server().holding_all, NOW, "mark")({"p": of, "full": full}))[1].outcome == ENDING


def test_a_bind_yields_the_steps_of_each_of_its_decisions() -> None:
    on = node(*CARDS)
    half = claim(request(app("main", gpus(50))))
    sent = holding("p", part(CARDS[0], 50, "main"))
    taken = on.with_holding(holding("other", part(CARDS[0], 100)))
    steps = {
        "what was assumed": list(bind(half, on.holding_all, NOW, "mark", sent)(on.holdings)),
        "something else": list(bind(half, on.holding_all, NOW, "mark", sent)(taken.holdings)),
        "what it holds": list(bind(half, on.holding_all, NOW, "mark")({"p": sent})),
    }
    assert steps == {"what was assumed": [4], "something else": [4, 7], "what it holds": [4]}


# --- marks

BOUND = holding("p", part(CARDS[0], 50, "main"), since=NOW)
MARKED = replace(BOUND, ending="mark")


def test_no_bind_is_answered_with_what_is_marked() -> None:
    half = claim(request(app("main", gpus(50))))
    on = node(*CARDS).with_holding(MARKED)
    assert at_once(bind(half, on.holding_all, NOW, "other")(on.holdings)) == (None, Decision(ENDING))
    assert at_once(bind(replace(half, all_or_nothing=True), on.holding_all, NOW, "other")(on.holdings)) == (
        None,
        Decision(GANG_WAITS),
    )
    assert (may_take(BOUND), may_take(MARKED), may_take(None)) == (True, False, False)


def test_a_holding_is_marked_only_as_it_was_seen_and_only_once() -> None:
    others = {"b": holding("b", since=NOW)}
    assert end(BOUND, "mark")({**others, "p": BOUND}) == ({**others, "p": MARKED}, True)
    for other in (MARKED, *(replace(BOUND, since=NOW + more) for more in (1, -1)), replace(BOUND, until=NOW + 1)):
        assert end(BOUND, "second")({**others, "p": other}) == (None, False)
    assert end(BOUND, "mark")(others) == (None, False)


def test_the_mark_of_a_bound_pod_is_removed() -> None:
    others = {"b": replace(holding("b", since=NOW), ending="mark")}
    assert keep("p")({**others, "p": MARKED}) == ({**others, "p": BOUND}, True)
    assert keep("p")({**others, "p": BOUND}) == (None, False)
    assert keep("p")(others) == (None, False)


# --- what was sent


def test_what_a_pod_was_sent_for_is_given_but_not_where_devices_are_used_alike() -> None:
    sent = Holding("p", "default", "p", NOW, (part(CARDS[3], 50),))
    half = request(app("main", gpus(50)))
    first = decide(node(*CARDS), claim(half), sent)
    assert (minors(first), first.repeated) == ([3], False)
    for order in DeviceOrder:
        expected = [0] if order == "leastUsed" else [3]
        assert minors(decide(node(*CARDS), claim(replace(half, wishes=Wishes(order=order))), sent)) == expected
        assert minors(decide(node(*CARDS, order=order), claim(half), sent)) == expected


# --- what annotations say

HALF = request(app("main", gpus(50)))
TAKEN_OVER: dict[str, tuple[NodeSnapshot, PodRequest, list[Share]]] = {
    "just what is asked": (node(*CARDS), HALF, [part(CARDS[2], 50)]),
    "more of a card than is asked": (node(*CARDS), HALF, [part(CARDS[2], 60)]),
    "beside others on the card": (node(*CARDS, holdings=held(part(CARDS[2], 50))), HALF, [part(CARDS[2], 50)]),
    "each container's": (
        node(*CARDS),
        request(app("a", gpus(100)), app("b", ask(1, core=10, ratio=10))),
        [part(CARDS[1], 10), part(CARDS[3], 100)],
    ),
}


@pytest.mark.parametrize(("on", "of", "said"), TAKEN_OVER.values(), ids=TAKEN_OVER)
def test_annotations_that_serve_the_pod_are_taken_over_as_they_are(
    on: NodeSnapshot, of: PodRequest, said: list[Share]
) -> None:
    decided = decide(on, claim(of, said))
    assert isinstance(decided.outcome, Holding), decided.outcome
    assert [(one.id, one.amounts) for one in decided.outcome.shares] == [(one.id, one.amounts) for one in said]
    containers = {container.name for container in of.containers}
    assert {name for share in decided.outcome.shares for name in share.containers} == containers


NOT_TAKEN_OVER: dict[str, tuple[NodeSnapshot, list[Share], CpuShare | None, str]] = {
    "less than is asked": (node(*CARDS), [part(CARDS[2], 40)], None, "gpu 2 (GPU-2) needs more than they state"),
    "a card more than is asked": (
        node(*CARDS),
        [part(CARDS[2], 50), part(CARDS[3], 50)],
        None,
        "gpu 3 (GPU-3) is not needed",
    ),
    "a card that is held": (
        node(*CARDS, holdings=held(part(CARDS[2], 60))),
        [part(CARDS[2], 50)],
        None,
        "gpu 2 (GPU-2) does not have the stated amounts free",
    ),
    "an unhealthy card": (
        node(*CARDS[:2], gpu(2, healthy=False)),
        [part(CARDS[2], 50)],
        None,
        "gpu 2 (GPU-2) does not have the stated amounts free",
    ),
    "a card of another node": (
        node(*CARDS),
        [part(gpu(9), 50)],
        None,
        "gpu 9 (GPU-9) does not have the stated amounts free",
    ),
    "CPUs that are not asked": (
        server(),
        [part(CARDS[2], 50)],
        CpuShare("LSR", parse("4-5")),
        "CPUs 4-5 are not needed",
    ),
    "CPUs that the node has not": (server(), [part(CARDS[2], 50)], CpuShare("LSR", 1 << 99), "CPUs 99 are not free"),
    "more of a shared pool than it has": (
        server(),
        [part(CARDS[2], 50)],
        CpuShare("LS", numa=(NumaShare(1, 16_001, 0, 1),)),
        "16.001 CPUs are not free in NUMA node 1",
    ),
    "the shared pool of a NUMA node that is not there": (
        server(),
        [part(CARDS[2], 50)],
        CpuShare("LS", numa=(NumaShare(5, 1, 0),)),
        "0.001 CPUs are not free in NUMA node 5",
    ),
}


@pytest.mark.parametrize(("on", "said", "cpus", "why"), NOT_TAKEN_OVER.values(), ids=NOT_TAKEN_OVER)
def test_annotations_that_do_not_serve_the_pod_are_refused_with_what_is_wrong(
    on: NodeSnapshot, said: list[Share], cpus: CpuShare | None, why: str
) -> None:
    outcome = decide(on, claim(HALF, said, cpus)).outcome
    assert outcome == Refusal(f"the allocation in the Pod's annotations cannot be adopted: node-1: {why}")


TWO_HALVES = request(app("main", ask(2, core=50, ratio=50)))
ONE_PERCENT, NO_COMPUTE = request(app("main", ask(core=1, ratio=50))), request(app("main", ask(2, ratio=50)))
LESS = "needs more than they state"


def without_compute(minor: int, percent: int) -> Share:
    of = part(CARDS[minor], percent)
    return of._replace(amounts={tail: amount for tail, amount in of.amounts.items() if tail != "gpu-core"})


@pytest.mark.parametrize(
    ("of", "said", "why"),
    [
        (TWO_HALVES, [part(CARDS[0], 50), part(CARDS[1], 40)], f"gpu 1 (GPU-1) {LESS}"),
        (TWO_HALVES, [part(CARDS[0], 60), part(CARDS[1], 40)], f"gpu 1 (GPU-1) {LESS}"),
        (TWO_HALVES, [part(CARDS[0], 40), part(CARDS[1], 50)], f"gpu 0 (GPU-0) {LESS}"),
        (ONE_PERCENT, [without_compute(2, 50)], f"gpu 2 (GPU-2) {LESS}"),
        (NO_COMPUTE, [without_compute(2, 50), part(CARDS[3], 40)], f"gpu 3 (GPU-3) {LESS}"),
        (HALF, [part(CARDS[2], 50), share(gpu(9))], "gpu 9 (GPU-9) is not needed"),
        (
            HALF,
            [part(CARDS[2], 50)._replace(amounts={**part(CARDS[2], 50).amounts, "strange": 1})],
            "gpu 2 (GPU-2) does not have the stated amounts free",
        ),
    ],
    ids=[
        "the second of two", "the second beside too much", "the first of two", "no compute where one percent is asked",
        "no compute where none is asked", "nothing of a device that is not there", "a resource that no GPU has",
    ],
)  # fmt: skip
def test_the_device_of_which_annotations_state_too_little_or_too_much_is_named(
    of: PodRequest, said: list[Share], why: str
) -> None:
    outcome = decide(node(*CARDS), claim(of, said)).outcome
    assert outcome == Refusal(f"the allocation in the Pod's annotations cannot be adopted: node-1: {why}")


OWN_TWO, POOL_OF_TWO = asking({"cpu": 2}, qos="LSR"), asking({"cpu": 2}, qos="LS")
SHARED = CpuShare("LS", numa=(NumaShare(1, 2000, 0, 1),))


@pytest.mark.parametrize(
    ("of", "policy", "said", "recorded"),
    [
        (OWN_TWO, NumaPolicy.NONE, CpuShare("LSR", parse("4-5")), CpuShare("LSR", parse("4-5"))),
        (
            OWN_TWO,
            NumaPolicy.NONE,
            CpuShare("LSR", parse("0-1"), numa=(NumaShare(0, 2000, 0),)),
            CpuShare("LSR", parse("0-1"), numa=(NumaShare(0, 2000, 0),)),
        ),
        (
            OWN_TWO,
            NumaPolicy.SINGLE_NUMA_NODE,
            CpuShare("LSR", parse("16-17")),
            CpuShare("LSR", parse("16-17"), numa=(NumaShare(1, 2000, 0, 1),)),
        ),
        (POOL_OF_TWO, NumaPolicy.SINGLE_NUMA_NODE, replace(SHARED, numa=(NumaShare(1, 1000, 0, 1),)), SHARED),
        (PodRequest(()), NumaPolicy.NONE, SHARED, SHARED),
    ],
    ids=[
        "just what is asked", "on a NUMA node that is not accounted", "aligned CPUs", "the amounts are the placement's",
        "a pool where no CPU is asked",
    ],
)  # fmt: skip
def test_cpus_that_annotations_name_are_recorded_with_the_amounts_that_are_accounted(
    of: PodRequest, policy: NumaPolicy, said: CpuShare, recorded: CpuShare
) -> None:
    outcome = decide(server(cpu=server_cpu(policy=policy)), claim(of, [], said)).outcome
    assert isinstance(outcome, Holding), outcome
    assert outcome.cpus == recorded


@pytest.mark.parametrize(
    ("used", "milli", "told"),
    [(1, 15_999, ""), (15_999, 1, ""), (15_999, 0, ""), (15_999, 2, "0.002"), (16_000, 0, "0"), (16_000, 1, "0.001")],
)
def test_annotations_may_state_what_is_left_of_a_shared_pool_to_the_last_thousandth(
    used: int, milli: int, told: str
) -> None:
    on = server([holding("other", cpus=CpuShare("LS", numa=(NumaShare(1, used, 0),)))])
    outcome = decide(on, claim(PodRequest(()), [], CpuShare("LS", numa=(NumaShare(1, milli, 0),)))).outcome
    if told:
        refused = f"node-1: {told} CPUs are not free in NUMA node 1"
        assert outcome == Refusal(f"the allocation in the Pod's annotations cannot be adopted: {refused}")
    else:
        assert isinstance(outcome, Holding)


def test_where_the_cpus_of_a_node_are_not_known_a_shared_pool_is_taken_over() -> None:
    outcome = decide(node(*CARDS), claim(HALF, [part(CARDS[2], 50)], SHARED)).outcome
    assert isinstance(outcome, Holding)
    assert outcome.cpus == SHARED


@pytest.mark.parametrize(
    ("of", "said", "why"),
    [
        (PodRequest(()), "0", "CPUs 0 are not needed"),
        (POOL_OF_TWO, "4-5", "CPUs 4-5 are not needed"),
        (OWN_TWO, "", "they name no CPUs, and the Pod asks for 2 of its own"),
        (OWN_TWO, "4-6", "CPUs 6 are not needed"),
        (OWN_TWO, "4", "2 CPUs are requested, 1 are free: 4"),
    ],
)
def test_cpus_that_are_too_many_or_too_few_are_named(of: PodRequest, said: str, why: str) -> None:
    outcome = decide(server(), claim(of, [], CpuShare("LSR", parse(said)))).outcome
    assert outcome == Refusal(f"the allocation in the Pod's annotations cannot be adopted: node-1: {why}")


@pytest.mark.parametrize("said", ["4-5", "4-6"])
def test_cpus_that_koordinator_gave_for_containers_on_shared_cpus_as_well_are_taken_over(said: str) -> None:
    injected = asking({"cpu": 2}, qos="LSR")
    assert injected.cpu is not None
    of_three = replace(injected, cpu=replace(injected.cpu, milli=3000))
    outcome = decide(server(), claim(of_three, [], CpuShare("LSR", parse(said)))).outcome
    assert isinstance(outcome, Holding)
    assert outcome.cpus == CpuShare("LSR", parse(said))


# --- the other changes


def test_a_release_takes_the_pods_holding_and_no_other_and_only_with_the_mark_that_it_names() -> None:
    holdings = {"a": replace(holding("a", since=NOW), ending="mark"), "b": holding("b", since=NOW)}
    without_a = {"b": holdings["b"]}
    assert release("a")(holdings) == (without_a, True)
    assert release("b")(holdings) == ({"a": holdings["a"]}, True)
    assert release("c")(holdings) == (None, False)
    assert release("a", ending="mark")(holdings) == (without_a, True)
    assert release("a", ending="another")(holdings) == (None, False)
    assert release("b", ending="mark")(holdings) == (None, False)


def test_a_running_pod_is_recorded_as_its_node_shows_it_and_only_if_it_is_missing() -> None:
    runs = holding("runs", part(CARDS[0], 100))

    def snapshot(holdings: object) -> NodeSnapshot:
        return node(*CARDS, holdings=[runs])

    assert adopt_running("runs", snapshot)({}) == ({"runs": runs}, True)
    assert adopt_running("runs", snapshot)({"runs": runs}) == (None, False)
    assert adopt_running("gone", snapshot)({}) == (None, False)


@pytest.mark.parametrize(
    ("shares", "unread", "recorded"),
    [
        ([part(CARDS[0], 50)], (), True),
        ([part(CARDS[0], 50)], ("cpu",), False),
        ([part(CARDS[0], 50), Share("gpu", "gpu-minor-1", 1, {"gpu-core": 50})], (), False),
        ([part(CARDS[0], 50), Share("gpu", "GPU-1", 1, {})], (), False),
        ([Share("gpu", name, 1, {"gpu-core": 50}) for name in ("a", "gpu-minor-0", "z")], (), True),
    ],
    ids=["as stated", "not all can be read", "a device that is not there yet", "no amounts", "other names"],
)
def test_a_running_pod_is_recorded_once_all_that_it_has_is_known(
    shares: list[Share], unread: tuple[str, ...], *, recorded: bool
) -> None:
    runs = replace(holding("runs", *shares), unread=unread)
    other = {"other": holding("other")}
    expected = ({**other, "runs": runs}, True) if recorded else (None, False)
    assert adopt_running("runs", lambda _held: node(*CARDS, holdings=[runs]))(other) == expected


def test_a_holding_without_a_uid_cannot_be() -> None:
    with pytest.raises(ValueError, match="without a UID"):
        Holding("", "default", "p", NOW, ())


CPUS = build(2, 1, 4, 2, siblings_near)


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
        holdings, decided = at_once(bind(pod, self.on.holding_all, NOW, "mark", sent)(self.on.holdings))
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
