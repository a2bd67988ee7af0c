"""How Pods fill nodes: what is remembered of nodes and cards that are alike is what `place()` would say anew."""

from collections import Counter
from dataclasses import replace

import pytest
from builders import app, gpus, holding
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from machines_cpu import build, siblings_near
from packing_report.rooms import room, shares, wanted
from strategies import aligned_requests, pod_requests, server_nodes
from trials import examples

from allocator.budget import Budget
from allocator.packing.filling import MAX_COPIES, MAX_DECISIONS, DeviceTake, Filling, SamplePod
from allocator.packing.stranded import stranded
from allocator.place import Placement, place
from allocator.vocabulary.asks import PodRequest
from allocator.vocabulary.cpunode import CpuAsk, CpuNode, QosClass
from allocator.vocabulary.device import Partition, PartitionTable, Wiring
from allocator.vocabulary.devicetype import BUILT_IN, FULL, GPU_TYPE
from allocator.vocabulary.mix import NO_MIX
from allocator.vocabulary.node import NodeSnapshot, fullness

SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
CPUS = build(2, 1, 4, 2, siblings_near)


def sizes() -> st.SearchStrategy[PodRequest]:
    return st.sampled_from(["10%", "30%", "50%", "1", "2", "4", "2:50%"]).map(lambda text: wanted(text).request)


@st.composite
def states(draw: st.DrawFn, count: int = 3) -> list[NodeSnapshot]:
    """Nodes of one make in several states, some of them alike but for names and ids."""
    make = draw(server_nodes(CPUS))
    if draw(st.booleans()):
        make = replace(make, cpu=None)
    if draw(st.integers(0, 3)) == 0:
        models = draw(st.lists(st.sampled_from(["", "T4", "A100"]), min_size=12, max_size=12))
        made = zip(make.devices, models, strict=False)
        make = replace(make, devices=tuple(replace(one, model=model) for one, model in made))
    found = []
    for number in range(count):
        on = make
        for pod in range(draw(st.integers(0, 5))):
            answer = place(draw(sizes() | sizes() | aligned_requests()), on)
            if isinstance(answer, Placement):
                on = on.with_holding(holding(f"p{pod}", *answer.shares, cpus=answer.cpus))
        found += [replace(on, name=f"n{number}"), renamed(on, f"m{number}")]
    return draw(st.permutations(found))


def renamed(on: NodeSnapshot, name: str) -> NodeSnapshot:
    """A node that is alike, with other ids and other Pods."""
    ids = {one.id: f"{name}-{number:02d}" for number, one in enumerate(on.devices)}
    held = {}
    for uid, one in on.holdings.items():
        shares = tuple(share._replace(id=ids[share.id]) for share in one.shares)
        held[f"{name}-{uid}"] = replace(one, uid=f"{name}-{uid}", name=name, shares=shares)
    devices = tuple(replace(one, id=ids[one.id]) for one in on.devices)
    return replace(
        on, name=name, devices=devices, holdings=held, kubelet_held=frozenset(ids[one] for one in on.kubelet_held)
    )


def anew(on: NodeSnapshot, of: SamplePod) -> list[dict[str, int]]:
    """What each Pod takes of each model, by a new decision for each."""
    has = {one.id: one for one in on.devices}
    found: list[dict[str, int]] = []
    while len(found) < MAX_COPIES and isinstance(answer := place(of.request, on), Placement):
        points: Counter[str] = Counter()
        for share in answer.shares:
            for tail in fullness(BUILT_IN.by_name[share.type]):
                if has[share.id].capacity.get(tail):
                    points[has[share.id].model] += FULL * share.amounts.get(tail, 0) // has[share.id].capacity[tail]
        found.append(dict(points))
        on = on.with_holding(holding(f"c{len(found)}", *answer.shares, cpus=answer.cpus, gang=of.request.wishes.gang))
    return found


@settings(max_examples=examples(60), deadline=None, suppress_health_check=SLOW)
@given(states(), sizes() | sizes() | aligned_requests() | pod_requests(2, 2))
def test_what_is_remembered_is_what_would_be_decided_anew(nodes: list[NodeSnapshot], of: PodRequest) -> None:
    sample = SamplePod(of)
    fills = Filling(sample, Budget(MAX_DECISIONS))
    for on in nodes:
        fill = fills.of(on)
        assert [+Counter(dict(take.points)) for take in fill.takes] == [+Counter(one) for one in anew(on, sample)]
        assert fill.ended == (len(fill.takes) == MAX_COPIES)
        event("some fit" if fill.takes else "none fits")


def test_nodes_that_are_alike_are_decided_once() -> None:
    rooms = [room(f"n{number}", ("x", "0")) for number in range(50)]
    decisions = Budget(100)
    fills = Filling(wanted("2"), decisions)
    assert [fills.count(one) for one in rooms] == [1] * 50
    assert decisions.left == 100 - 2


def test_cards_that_are_alike_are_decided_once_for_pods_of_one_card() -> None:
    parts = [("x", "0:50"), ("y", "1:25"), ("z", "2:75")]
    rooms = [room(f"n{number}", *(one for at, one in enumerate(parts) if number >> at & 1)) for number in range(8)]
    decisions = Budget(100)
    fills = Filling(wanted("25%"), decisions)
    assert [fills.count(one) for one in rooms] == [16, 14, 15, 13, 13, 11, 12, 10]
    assert decisions.left == 100 - (4 + 1) - (2 + 1) - (3 + 1) - (1 + 1)


def test_what_depends_on_the_other_devices_of_a_node_is_not_found_of_each_alone() -> None:
    plain = room("a").node
    assert len(Filling(wanted("1"), Budget(100)).of(plain).takes) == 4
    # A Pod has a PCIe root with two cards to itself.
    rooted = tuple(replace(one, pcie=f"root-{one.minor // 2}") for one in plain.devices)
    alone = tuple(share._replace(alone=True) for share in shares("a", "0"))
    held = replace(plain, devices=rooted).with_holding(holding("p", *alone))
    assert len(Filling(wanted("1"), Budget(100)).of(held).takes) == 2
    # Only pairs may be given.
    pairs = PartitionTable((Partition((0, 1)), Partition((2, 3))))
    honoured = replace(plain, wiring=Wiring(partitions=pairs, honour_partitions=True))
    assert [len(Filling(wanted(size), Budget(100)).of(honoured).takes) for size in ("1", "2")] == [0, 2]


def test_cards_of_two_models_are_filled_in_the_order_in_which_pods_take_them() -> None:
    on = room("a", ("x", "1:50"), cards=2).node
    on = replace(on, devices=tuple(replace(one, model=f"model-{one.minor}") for one in on.devices))
    takes = Filling(wanted("50%"), Budget(100)).of(on).takes
    assert [take.model for take in takes] == ["model-1", "model-0", "model-0"]


def test_a_pod_of_two_containers_or_with_cpus_of_its_own_is_not_filled_card_by_card() -> None:
    on = replace(room("a").node, cpu=CpuNode(build(1, 1, 4, 2, siblings_near)))
    asks = (app("one", gpus(60)),), (app("one", gpus(60)), app("two", gpus(60))), (app("one", gpus(10)),)
    found = []
    for containers, cpu in zip(asks, (None, None, CpuAsk(QosClass.LSR, 2, 2000, 0)), strict=True):
        of = replace(wanted("1"), request=PodRequest(containers, cpu))
        found.append(len(Filling(of, Budget(1000)).of(on).takes))
    assert found == [4, 2, 4]


@pytest.mark.parametrize(("decisions", "count", "ended"), [(3, 2, True), (7, 6, True), (8, 6, False)])
def test_where_the_decisions_do_not_suffice_more_might_fit(decisions: int, count: int, *, ended: bool) -> None:
    # Two more fit on the first card, which the third decision says, and four on the other.
    found = Filling(wanted("25%"), Budget(decisions)).of(room("a", ("x", "0:50"), cards=2).node)
    assert (len(found.takes), found.ended) == (count, ended)


def test_a_report_that_reaches_its_bound_says_on_how_many_nodes_and_still_adds_up() -> None:
    rooms = [room(f"n{number}", ("x", f"{number}")) for number in range(4)]
    found = stranded(rooms, GPU_TYPE, [wanted("2"), wanted("1")], NO_MIX, Budget(6))
    assert found.ended > 0
    for uses in found.sizes:
        assert uses["A100"].free == found.stock["A100"].free
    assert stranded(rooms, GPU_TYPE, [wanted("2"), wanted("1")], NO_MIX).ended == 0


def test_a_pod_that_takes_nothing_ends_at_the_most_pods_of_a_node() -> None:
    fills = Filling(wanted("1"), Budget(MAX_DECISIONS))
    assert fills.of(room("a").node).takes == (DeviceTake("A100", (("A100", 200),)),) * 4
    small = Filling(wanted("1%"), Budget(MAX_DECISIONS)).of(room("a", cards=30).node)
    assert (len(small.takes), small.ended) == (2048, True)
