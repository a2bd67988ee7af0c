"""Why a node refuses a Pod, device by device, and what would change that: each claim is checked with `place()`."""

import re
from dataclasses import replace
from typing import Any

import pytest
from builders import (
    GIB,
    MIB,
    app,
    asking,
    gpu,
    gpus,
    held,
    holding,
    init,
    nic,
    nics,
    node,
    part,
    request,
    share,
    sidecar,
)
from hypothesis import given as drawn
from hypothesis import settings
from hypothesis import strategies as st
from machines_cpu import machine
from npus import CAPACITY, NPU
from trials import examples

from allocator.place import Placement, place, place_by_numa
from allocator.preempt import PodStanding, choose_victims
from allocator.reasons import Change, ChangeKind, card_reasons, changes, given, lack
from allocator.vocabulary.adopted import ForeignHolding, Product
from allocator.vocabulary.asks import DeviceAsk, PodRequest, Wishes
from allocator.vocabulary.cpunode import CpuNode, CpuShare, NumaPolicy, QosClass
from allocator.vocabulary.cputopology import parse
from allocator.vocabulary.device import Device, VirtualFunction
from allocator.vocabulary.devicetype import BUILT_IN
from allocator.vocabulary.holdings import Holding, Share
from allocator.vocabulary.names import GPU_CORE
from allocator.vocabulary.node import NodeSnapshot
from allocator.vocabulary.outcome import Refusal

WHOLE = {"nvidia.com/gpu": "1"}
TWO = {"nvidia.com/gpu": "2"}
HALF = {"koordinator.sh/gpu-core": "50", "koordinator.sh/gpu-memory-ratio": "50"}
MODELS = ("910B", "310P3")  # the template vir02 is of the second one alone
FREE, USED, MORE = gpu(0), gpu(1), gpu(2)


@pytest.mark.parametrize(
    ("there", "wanted", "why", "missing"),
    [
        pytest.param(node(FREE), WHOLE, "", 0, id="a free card can serve it"),
        pytest.param(
            node(FREE, holdings=held(part(FREE, 70))),
            HALF,
            "core 30 %, memory 24 GiB (30 %) free, core 50 %, memory 40 GiB (50 %) asked",
            20,
            id="too little is free",
        ),
        pytest.param(
            node(FREE, holdings=held(part(FREE, 100))),
            WHOLE,
            "nothing free, core 100 %, memory 80 GiB (100 %) asked",
            100,
            id="nothing is free",
        ),
        pytest.param(node(gpu(0, healthy=False, why_not="XID79: lost")), WHOLE, "XID79: lost", 100, id="broken"),
        pytest.param(node(gpu(0, healthy=False)), WHOLE, "unhealthy", 100, id="broken, nobody knows why"),
        pytest.param(
            node(gpu(0, healthy=False, cordoned=True, why_not="XID79: lost")), WHOLE, "cordoned", 100, id="cordoned"
        ),
        pytest.param(
            node(FREE, kubelet=[FREE.id]), WHOLE, "held by the kubelet's device plugin", 100, id="of the kubelet"
        ),
        pytest.param(
            node(FREE, holdings=[holding("x", part(FREE, 10)._replace(unshared=True))]),
            HALF,
            "held by a Pod that does not share it",
            100,
            id="held alone",
        ),
    ],
)
def test_a_card_states_its_first_reason(there: NodeSnapshot, wanted: dict[str, str], why: str, missing: int) -> None:
    assert [(one.why, one.lack) for one in card_reasons(asking(wanted), there)] == [(why, missing)]


@settings(max_examples=examples(40))
@drawn(
    used=st.lists(st.integers(0, 100), min_size=1, max_size=4),
    asked=st.integers(1, 100),
    sick=st.sets(st.integers(0, 3)),
)
def test_a_pod_for_one_card_fits_where_a_card_has_no_reason_and_nowhere_else(
    used: list[int], asked: int, sick: set[int]
) -> None:
    cards = [gpu(minor, healthy=minor not in sick) for minor in range(len(used))]
    there = node(*cards, holdings=held(*(part(card, much) for card, much in zip(cards, used, strict=True) if much)))
    wanted = asking({"koordinator.sh/gpu-core": str(asked), "koordinator.sh/gpu-memory-ratio": str(asked)})
    serving = [one for one in card_reasons(wanted, there) if not one.why]
    assert isinstance(place(wanted, there), Placement) is bool(serving)
    assert (lack(wanted, there) == 0) is bool(serving)


_PERCENT = st.integers(0, 100)
_PART = st.tuples(_PERCENT, _PERCENT)  # core and memory
_SMALL = 100 * MIB  # a percent of it is a whole number of bytes


@st.composite
def shared_nodes(draw: st.DrawFn) -> NodeSnapshot:
    """A node whose cards koordgate's own Pods, Pods of other products and ResourceClaims hold in part."""
    cards = [gpu(minor, _SMALL, healthy=draw(st.integers(0, 9)) > 0) for minor in range(draw(st.integers(1, 4)))]
    own, foreign, claims = {}, {}, {}
    for card in cards:
        for holder in draw(st.sets(st.sampled_from(["own", "foreign", "claim"]))):
            core, memory = draw(_PART)
            some, uid = share(card, core=core, memory=memory * MIB, ratio=memory), f"{holder}-{card.minor}"
            if holder == "own":
                own[uid] = holding(uid, some)
            elif holder == "claim":
                claims[uid] = replace(holding(uid, some), fence=1)
            else:
                foreign[uid] = ForeignHolding(uid, "team", uid, Product.HAMI, "an annotation", (some,))
    return node(*cards, holdings=own.values(), foreign=foreign, claims=claims)


def _of(core: int, memory: int) -> dict[str, str]:
    return {"koordinator.sh/gpu-core": str(core), "koordinator.sh/gpu-memory-ratio": str(memory)}


@settings(max_examples=examples(60))
@drawn(there=shared_nodes(), core=st.integers(1, 100), memory=st.integers(1, 100))
def test_a_pod_that_asks_for_the_lack_less_fits_and_one_that_asks_for_more_than_that_does_not(
    there: NodeSnapshot, core: int, memory: int
) -> None:
    missing = lack(asking(_of(core, memory)), there)
    assert isinstance(place(asking(_of(core, memory)), there), Placement) is (missing == 0)
    if 0 < missing < min(core, memory):
        assert isinstance(place(asking(_of(core - missing, memory - missing)), there), Placement)
        more = place(asking(_of(core - missing + 1, memory - missing + 1)), there)
        assert isinstance(more, Refusal)


@settings(max_examples=examples(60))
@drawn(there=shared_nodes(), core=st.integers(1, 100), memory=st.integers(1, 100))
def test_each_card_says_what_the_decision_says_of_it_whoever_holds_the_rest(
    there: NodeSnapshot, core: int, memory: int
) -> None:
    wanted = asking(_of(core, memory))
    for one in card_reasons(wanted, there):
        alone = replace(there, devices=(one.device,))
        assert isinstance(place(wanted, alone), Placement) is (not one.why) is (one.lack == 0)


@settings(max_examples=examples(60))
@drawn(there=shared_nodes(), core=st.integers(1, 100), memory=st.integers(1, 100))
def test_the_card_that_a_refusal_names_is_the_nearest_one(there: NodeSnapshot, core: int, memory: int) -> None:
    wanted = asking(_of(core, memory))
    refusal = place(wanted, there)
    if not isinstance(refusal, Refusal):
        return
    named = re.search(r"the most free is gpu ([0-9]+) with", refusal.message)
    lacks = {one.device.minor: one.lack for one in card_reasons(wanted, there)}
    assert (named is None) is all(not one.healthy for one in there.devices)
    assert named is None or lacks[int(named[1])] == min(lacks.values()) == lack(wanted, there)


@settings(max_examples=examples(60))
@drawn(there=shared_nodes(), asked=st.lists(st.integers(1, 100), min_size=2, max_size=3))
def test_a_node_that_can_hold_several_containers_lacks_nothing(there: NodeSnapshot, asked: list[int]) -> None:
    even = replace(
        there,
        holdings={},
        claims={},
        foreign={
            uid: replace(
                one, shares=tuple(part(there.devices[share.minor], share.amounts[GPU_CORE]) for share in one.shares)
            )
            for uid, one in there.foreign.items()
        },
    )
    wanted = asking(*(_of(much, much) for much in asked))
    if isinstance(place(wanted, even), Placement):
        assert lack(wanted, even) == 0


def test_a_card_of_which_another_product_holds_some_lacks_what_is_missing_of_the_rest() -> None:
    theirs = ForeignHolding("x", "team", "x", Product.HAMI, "an annotation", (part(FREE, 30),))
    there = node(FREE, foreign={"x": theirs})
    (card,) = card_reasons(asking(_of(80, 80)), there)
    free = "core 70 %, memory 56 GiB (70 %) free, core 80 %, memory 64 GiB (80 %) asked"
    assert (card.why, card.lack, lack(asking(_of(80, 80)), there)) == (free, 10, 10)
    refused = place(asking(_of(80, 80)), there)
    assert isinstance(refused, Refusal)
    assert "(1 held in part by Pods of other products) can hold it; the most free is gpu 0" in refused.message
    assert "(1 held by Pods of other products)" in str(
        place(asking(_of(1, 1)), node(FREE, foreign={"x": replace(theirs, shares=(part(FREE, 100),))}))
    )


FPGA = Device("fpga", "FPGA-0", 0, healthy=True, capacity={"fpga": 100})


def test_only_devices_of_the_types_that_are_asked_for_are_judged_in_the_order_of_the_request() -> None:
    there = node(FPGA, FREE, USED, nic(0))
    nics_first = request(app("a", nics(50)), app("b", gpus(50)))
    assert [one.device.id for one in card_reasons(asking(HALF), there)] == ["GPU-0", "GPU-1"]
    assert [one.device.id for one in card_reasons(nics_first, there)] == ["NIC-0", "GPU-0", "GPU-1"]


def test_a_card_is_judged_by_the_least_demanding_container() -> None:
    there = node(FREE, holdings=held(part(FREE, 70)))
    (card,) = card_reasons(asking(_of(90, 90), _of(40, 40), _of(60, 60)), there)
    asked = "core 30 %, memory 24 GiB (30 %) free, core 40 %, memory 32 GiB (40 %) asked"
    assert (card.why, card.lack) == (asked, 10)


def test_a_card_of_which_something_is_free_says_what() -> None:
    there = node(FREE, holdings=held(share(FREE, core=100, memory=20 * GIB, ratio=25)))
    (card,) = card_reasons(asking(HALF), there)
    assert card.why == "memory 60 GiB (75 %) free, core 50 %, memory 40 GiB (50 %) asked"


ALONE, ROOT = ({"gpu": {"exclusivePolicy": policy}} for policy in ("DeviceLevel", "PCIeLevel"))
PAIR = gpu(0, pcie="p"), gpu(1, pcie="p")
SHARED = "in use, and the Pod asks for devices that it shares with nobody"
BESIDE = "on a PCIe root that a Pod has, or would have, for itself"


@pytest.mark.parametrize(
    ("wanted", "others", "why"),
    [
        pytest.param(asking(HALF, hint=ALONE), [part(PAIR[0], 10)], [SHARED, ""], id="a card of its own"),
        pytest.param(asking(HALF, hint=ROOT), [part(PAIR[0], 10)], [SHARED, BESIDE], id="a root of its own"),
        pytest.param(
            asking(HALF), [part(PAIR[0], 10)._replace(alone=True)], [BESIDE, BESIDE], id="another has the root"
        ),
    ],
)
def test_a_usable_card_that_is_not_offered_says_who_keeps_it(
    wanted: PodRequest, others: list[Share], why: list[str]
) -> None:
    judged = card_reasons(wanted, node(*PAIR, holdings=held(*others)))
    assert [(one.why, one.lack) for one in judged] == [(each, 100 if each else 0) for each in why]


def test_a_nic_in_use_of_which_no_virtual_function_is_left_says_so() -> None:
    label = {"matchLabels": {"a": "b"}}
    wanted = asking({"koordinator.sh/rdma": "10"}, hint={"rdma": {"vfSelector": label}})
    there = node(nic(0), holdings=held(Share("rdma", "NIC-0", 0, {"rdma": 10})))
    (told,) = card_reasons(wanted, there)
    assert (told.why, told.lack) == ("without a free virtual function that the hint selects", 100)


@pytest.mark.parametrize(("model", "told"), [("910B", "of model 910B"), ("", "of model unknown")])
def test_a_card_of_another_model_says_which(model: str, told: str) -> None:
    wanted = request(app("a", DeviceAsk(NPU, 1, NPU.template("vir02").amounts, template="vir02")))
    (card,) = card_reasons(wanted, node(Device("npu", "npu-0", 0, healthy=True, capacity=CAPACITY, model=model)))
    assert (card.why, card.lack) == (told, 100)


def test_a_card_of_another_model_is_not_near() -> None:
    wanted = request(app("a", DeviceAsk(NPU, 1, NPU.template("vir02").amounts, template="vir02")))
    strange, used = (Device("npu", f"npu-{model}", 0, healthy=True, capacity=CAPACITY, model=model) for model in MODELS)
    half = Share("npu", used.id, 0, {name: much // 2 + much // 4 + 1 for name, much in CAPACITY.items()})
    assert lack(wanted, node(strange)) == 100
    assert lack(wanted, node(used, holdings=[holding("x", half)])) < 100
    assert "the most free" not in str(place(wanted, node(strange)))


@pytest.mark.parametrize(
    ("there", "wanted", "missing"),
    [
        pytest.param(node(FREE), asking(TWO), 100, id="a card that does not exist lacks 100"),
        pytest.param(node(FREE, USED, holdings=held(part(USED, 40))), asking(TWO), 40, id="the least lack counts"),
        pytest.param(
            node(FREE, holdings=held(part(FREE, 40))), asking(HALF, HALF), 40, id="what one container takes is gone"
        ),
        pytest.param(
            node(FREE, holdings=held(part(FREE, 60))),
            request(init("i", gpus(50)), init("j", gpus(70))),
            30,
            id="init containers come one after the other",
        ),
        pytest.param(
            node(FREE, holdings=held(part(FREE, 60))),
            request(init("i", gpus(70)), app("a", gpus(50))),
            10,
            id="init containers reuse what the others hold",
        ),
        pytest.param(
            node(FREE, holdings=held(part(FREE, 60))),
            request(init("i", gpus(30)), sidecar("s", gpus(50))),
            10,
            id="a sidecar is there to the end",
        ),
        pytest.param(
            node(FREE, USED, MORE, holdings=held(part(FREE, 40), part(USED, 50), part(MORE, 60))),
            asking({"koordinator.sh/gpu": 140, "koordinator.sh/gpu.shared": 2}, HALF),
            40,
            id="the next container has what the first one left",
        ),
        pytest.param(node(FREE), asking(*[_of(30, 30)] * 4), 20, id="the fourth has what three left"),
        pytest.param(
            node(FREE, holdings=held(part(FREE, 60))), asking(HALF, HALF), 60, id="less than nothing is nothing"
        ),
        pytest.param(node(), asking(WHOLE), 100, id="no device"),
        pytest.param(node(), asking({"nvidia.com/gpu": "3"}), 300, id="three devices that do not exist"),
        pytest.param(node(gpu(0, healthy=False), USED), asking(TWO), 100, id="a broken card does not count"),
    ],
)
def test_the_lack_of_a_node_is_in_percent_of_a_device(there: NodeSnapshot, wanted, missing: int) -> None:
    assert lack(wanted, there) == missing


def found(request, there: NodeSnapshot, **priorities: int) -> dict[ChangeKind, list[Change]]:
    assert isinstance(place(request, there), Refusal)
    made: dict[ChangeKind, list[Change]] = {}
    for one in changes(request, there, {uid: PodStanding(number) for uid, number in priorities.items()}):
        made.setdefault(one.kind, []).append(one)
    return made


def test_fewer_devices_are_offered_as_far_as_there_are_some() -> None:
    (change,) = found(asking({"nvidia.com/gpu": "3"}), node(FREE, USED, holdings=held(part(USED, 10))))[
        ChangeKind.REQUEST
    ]
    assert change.text == "a: ask for 1 x (core 100 %, memory 100 %) instead of 3 x (core 100 %, memory 100 %)"


def test_a_share_is_offered_that_is_as_large_as_fits() -> None:
    there = node(FREE, holdings=held(part(FREE, 70)))
    (change,) = found(asking(HALF), there)[ChangeKind.REQUEST]
    assert change.text.startswith("ask for at most 61 % of that of each device: a: 1 x (core 30 %, memory 30 %)")


def test_a_part_of_an_amount_is_at_least_1_and_of_bytes_whole_mebibytes() -> None:
    there = node(FREE, holdings=held(part(FREE, 70)))
    (little,) = found(asking(_of(1, 50)), there)[ChangeKind.REQUEST]
    assert little.text == (
        "ask for at most 61 % of that of each device: "
        "a: 1 x (core 1 %, memory 30 %) instead of 1 x (core 1 %, memory 50 %)"
    )
    in_bytes = {"koordinator.sh/gpu-core": "0", "koordinator.sh/gpu-memory": "50Gi"}
    (bytes_,) = found(asking(in_bytes), there)[ChangeKind.REQUEST]
    assert bytes_.text == (
        "ask for at most 48 % of that of each device: a: 1 x (memory 24Gi) instead of 1 x (memory 50Gi)"
    )


def test_parts_of_several_cards_and_a_whole_card_may_become_smaller_and_several_whole_ones_may_not() -> None:
    there = node(FREE, USED, holdings=held(part(FREE, 70), part(USED, 70)))
    less = "ask for at most {} of that of each device: a: {} instead of {}"
    for wanted, texts in (
        (
            {"koordinator.sh/gpu": 100, "koordinator.sh/gpu.shared": 2},
            [less.format("61 %", "2 x (core 30 %, memory 30 %)", "2 x (core 50 %, memory 50 %)")],
        ),
        (WHOLE, [less.format("30 %", "1 x (core 30 %, memory 30 %)", "1 x (core 100 %, memory 100 %)")]),
        (TWO, []),
    ):
        assert [one.text for one in found(asking(wanted), there).get(ChangeKind.REQUEST, [])] == texts


def test_the_container_that_asks_for_most_is_to_ask_for_less_and_all_are_to_ask_for_a_part() -> None:
    there = node(FREE, USED, MORE, holdings=held(part(FREE, 70)))
    (fewer,) = found(asking(WHOLE, {"nvidia.com/gpu": "3"}), there)[ChangeKind.REQUEST]
    assert fewer.text == "b: ask for 1 x (core 100 %, memory 100 %) instead of 3 x (core 100 %, memory 100 %)"
    (less,) = found(asking(HALF, HALF), node(FREE, holdings=held(part(FREE, 40))))[ChangeKind.REQUEST]
    each = "1 x (core 30 %, memory 30 %) instead of 1 x (core 50 %, memory 50 %)"
    assert less.text == f"ask for at most 61 % of that of each device: a: {each}; b: {each}"


def test_less_of_a_second_type_is_offered_where_the_first_one_suffices() -> None:
    there = node(FREE, USED, nic(0), FPGA, holdings=held(Share("fpga", FPGA.id, 0, {"fpga": 70})))
    second, every = {"koordinator.sh/fpga": "50"}, {"rdma": {"allocateStrategy": "ApplyForAll"}}
    for wanted in (asking(TWO | second), asking({"koordinator.sh/rdma": "50"} | second, hint=every)):
        (change,) = found(wanted, there)[ChangeKind.REQUEST]
        less = "a: 1 x (fpga 30 %) instead of 1 x (fpga 50 %)"
        assert change.text == f"ask for at most 61 % of that of each device: {less}"


def test_the_fewest_pods_of_the_lowest_priority_are_named() -> None:
    there = node(FREE, USED, holdings=[holding("low", part(FREE, 10)), holding("high", part(USED, 10))])
    (change,) = found(asking(WHOLE), there, low=1, high=9)[ChangeKind.PODS]
    assert change == Change(ChangeKind.PODS, "wait until one Pod on it ends", ("low",), 1)


def test_a_pod_of_the_highest_priority_may_be_waited_for_and_a_change_without_pods_has_none() -> None:
    there = node(FREE, holdings=[holding("system", part(FREE, 1))])
    highest = 2_000_001_000  # of system-node-critical
    assert changes(asking(WHOLE), there, {"system": PodStanding(highest)}) == [
        Change(
            ChangeKind.REQUEST,
            "ask for at most 99 % of that of each device: "
            "a: 1 x (core 99 %, memory 99 %) instead of 1 x (core 100 %, memory 100 %)",
            (),
            0,
        ),
        Change(ChangeKind.PODS, "wait until one Pod on it ends", ("system",), highest),
    ]


def test_the_search_for_pods_that_would_make_room_takes_64_000_steps_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    budgets: list[float] = []

    def counted(*arguments: Any) -> Any:
        budgets.append(arguments[-1].left)
        return choose_victims(*arguments)

    monkeypatch.setattr("allocator.reasons.choose_victims", counted)
    found(asking(WHOLE), node(FREE, holdings=held(part(FREE, 10))))
    assert budgets == [64_000]


def test_a_cordoned_card_and_a_broken_one_are_told_apart() -> None:
    there = node(gpu(0, healthy=False, cordoned=True), gpu(1, healthy=False))
    assert [one.text for one in found(asking(WHOLE), there)[ChangeKind.NODE]] == ["uncordon gpu 0", "repair gpu 1"]


def test_a_scope_that_is_in_the_way_is_named() -> None:
    apart = [gpu(0, numa_node=0, pcie="a"), gpu(1, numa_node=1, pcie="b")]
    wanted = asking(TWO, hint={"gpu": {"requiredTopologyScope": "PCIe"}})
    assert [one.text for one in found(wanted, node(*apart))[ChangeKind.WISH]] == ["drop requiredTopologyScope for gpu"]


LABEL = {"matchLabels": {"a": "b"}}


@pytest.mark.parametrize(
    ("wanted", "there", "words"),
    [
        (asking(WHOLE, hint={"gpu": {"selector": LABEL}}), node(FREE, USED), "the selector for gpu"),
        (
            asking({"koordinator.sh/rdma": "10"}, hint={"rdma": {"vfSelector": LABEL}}),
            node(nic(0, VirtualFunction(0, "x", {})), nic(1)),
            "vfSelector for rdma",
        ),
        (
            asking(HALF, hint={"gpu": {"exclusivePolicy": "DeviceLevel"}}),
            node(FREE, USED, holdings=held(part(FREE, 10), part(USED, 10))),
            "exclusivePolicy for gpu",
        ),
        (
            asking(
                WHOLE | {"koordinator.sh/rdma": "10"},
                joint={"deviceTypes": ["gpu", "rdma"], "requiredScope": "SamePCIe"},
            ),
            node(gpu(0, pcie="a"), gpu(1, pcie="b"), nic(0, pcie="c")),
            "the required scope SamePCIe",
        ),
        (asking(TWO, partition={"allocatePolicy": "Restricted"}), node(FREE, USED), "gpu-partition-spec"),
        (
            replace(asking(HALF), wishes=Wishes(isolation="HAMi-core")),
            node(FREE, isolation="other"),
            "the isolation HAMi-core",
        ),
        (
            asking(
                WHOLE | {"koordinator.sh/rdma": "10"},
                hint={"gpu": {"selector": LABEL}, "rdma": {"selector": {"matchLabels": {"c": "d"}}}},
            ),
            node(FREE, nic(0, labels={"c": "d"}), nic(1)),
            "the selector for gpu",
        ),
        (
            asking(
                WHOLE | {"koordinator.sh/rdma": "10"},
                hint={"gpu": {"selector": {"matchLabels": {"c": "d"}}}, "rdma": {"selector": LABEL}},
            ),
            node(FREE, gpu(1, labels={"c": "d"}), nic(0)),
            "the selector for rdma",
        ),
    ],
)
def test_the_one_condition_that_is_in_the_way_is_to_be_dropped(
    wanted: PodRequest, there: NodeSnapshot, words: str
) -> None:
    assert [one.text for one in found(wanted, there)[ChangeKind.WISH]] == [f"drop {words}"]


CPUS = CpuNode(machine("two sockets, 2 nodes, SMT, siblings near"))  # 32, of which 16 in each NUMA node
SINGLE = NumaPolicy.SINGLE_NUMA_NODE


def with_cpus(uid: str, cpus: str) -> Holding:
    return holding(uid, cpus=CpuShare(QosClass.LSR, parse(cpus)))


def own(count: int, **wishes: Any) -> PodRequest:
    return asking({"cpu": str(count), "memory": "1Gi"}, qos="LSR", **wishes)


@pytest.mark.parametrize(
    ("wanted", "there", "texts"),
    [
        (own(8), node(cpu=CPUS, holdings=[with_cpus("x", "0-24")]), {"ask for 7 CPUs instead of 8"}),
        (own(2), node(cpu=CPUS, holdings=[with_cpus("x", "0-30")]), {"ask for 1 CPUs instead of 2"}),
        (own(33), node(cpu=CPUS), {"ask for 32 CPUs instead of 33"}),
        (own(1), node(cpu=CPUS, holdings=[with_cpus("x", "0-31")]), set()),
        (
            own(17, numa={"numaTopologyPolicy": "SingleNUMANode"}),
            node(cpu=CPUS),
            {"ask for 16 CPUs instead of 17", "state the NUMA policy BestEffort instead of the Pod's SingleNUMANode"},
        ),
        (
            own(17),
            node(cpu=replace(CPUS, policy=SINGLE)),
            {"ask for 16 CPUs instead of 17", "give the node the NUMA policy BestEffort instead of SingleNUMANode"},
        ),
        (
            own(2, cpus={"requiredCPUBindPolicy": "FullPCPUs"}),
            node(cpu=CPUS, holdings=[with_cpus("x", ",".join(map(str, range(0, 32, 2))))]),
            {"only prefer the CPU bind policy FullPCPUs (preferredCPUBindPolicy)"},
        ),
    ],
    ids=[
        "fewer are free",
        "one is free",
        "too many",
        "one",
        "the Pod's policy",
        "the node's policy",
        "halves of cores",
    ],
)
def test_what_would_make_cpus_suffice_is_told(wanted: PodRequest, there: NodeSnapshot, texts: set[str]) -> None:
    made = found(wanted, there)
    assert {one.text for kind in (ChangeKind.REQUEST, ChangeKind.WISH) for one in made.get(kind, [])} == texts


def test_each_cpu_that_is_not_free_is_a_lack_of_100() -> None:
    there = node(FREE, cpu=CPUS, holdings=[with_cpus("x", "0-25"), *held(part(FREE, 20))])
    assert [lack(own(cpus), there) for cpus in (5, 6, 7, 9)] == [0, 0, 100, 300]
    assert lack(asking(WHOLE | {"cpu": "8", "memory": "1Gi"}, qos="LSR"), there) == 220
    assert lack(asking(WHOLE | {"cpu": "8", "memory": "1Gi"}, qos="LSR"), replace(there, cpu=None)) == 20


@pytest.mark.parametrize(
    ("number", "listed"),
    [(8, "0, 1, 2, 3, 4, 5, 6, 7"), (9, "0, 1, 2, 3, 4, 5, 6, 7, 1"), (17, "0, 1, 2, 3, 4, 5, 6, 7, 9")],
)
def test_eight_devices_to_repair_are_named_and_the_others_are_counted(number: int, listed: str) -> None:
    there = node(*(gpu(minor, healthy=False) for minor in range(number)))
    (change,) = found(asking({"nvidia.com/gpu": str(number)}), there)[ChangeKind.NODE]
    assert re.findall("[0-9]+", change.text) == listed.split(", ")
    assert change.text.endswith("more") is (number > 8)


@pytest.mark.parametrize(("number", "many"), [(1, "1 device"), (2, "2 devices")])
def test_how_many_devices_the_kubelet_has_given_is_told(number: int, many: str) -> None:
    cards = [gpu(minor) for minor in range(number)]
    there = node(*cards, kubelet=[card.id for card in cards])
    (change,) = found(asking({"nvidia.com/gpu": str(number)}), there)[ChangeKind.NODE]
    assert change.text == f"let the Pods of the kubelet's device plugin that hold {many} end"


@pytest.mark.parametrize(("number", "many"), [(1, "1 device"), (2, "2 devices")])
def test_how_many_devices_are_disputed_is_told(number: int, many: str) -> None:
    cards = [gpu(minor) for minor in range(number)]
    there = node(*cards, disputed=frozenset(card.id for card in cards))
    (change,) = found(asking({"nvidia.com/gpu": str(number)}), there)[ChangeKind.NODE]
    assert change.text == f"correct its NodeAllocation by the annotations of its Pods, which differ about {many}"


def test_eight_claims_and_eight_pods_of_other_products_are_named() -> None:
    cards = [gpu(minor) for minor in range(9)]
    claims = {f"c{at}": replace(holding(f"c{at}", part(card, 100)), fence=1) for at, card in enumerate(cards)}
    foreign = {
        f"f{at}": ForeignHolding(f"f{at}", "team", f"f{at}", Product.HAMI, "an annotation", (part(card, 100),))
        for at, card in enumerate(cards)
    }
    wanted = asking({"nvidia.com/gpu": "9"})
    names = [
        re.findall(r"[a-z]+/[-a-z0-9]+", one.text)
        for there in (node(*cards, claims=claims), node(*cards, foreign=foreign))
        for one in found(wanted, there)[ChangeKind.NODE]
    ]
    assert names == [[f"default/pod-c{at}" for at in range(8)], [f"team/f{at}" for at in range(8)]]


def test_two_pods_that_must_both_end_are_counted_with_the_highest_priority() -> None:
    there = node(FREE, USED, holdings=[holding("a", part(FREE, 10)), holding("b", part(USED, 10))])
    (change,) = found(asking(TWO), there, a=7, b=5)[ChangeKind.PODS]
    assert (change.text, change.pods, change.priority) == ("wait until 2 Pods on it end", ("b", "a"), 7)


@pytest.mark.parametrize(
    "there",
    [
        node(),
        node(FREE, kubelet=[FREE.id]),
        node(gpu(0, healthy=False)),
        node(gpu(0, healthy=False, cordoned=True)),
        node(FREE, claims={"c": replace(holding("c", part(FREE, 100)), fence=1)}),
        node(FREE, foreign={"f": ForeignHolding("f", "team", "f", Product.HAMI, "an annotation", (part(FREE, 100),))}),
        node(FREE, holdings=held(part(FREE, 100))),
    ],
    ids=["no card", "the kubelet's", "broken", "cordoned", "a claim's", "another product's", "a Pod's"],
)
def test_nothing_is_promised_where_nothing_helps(there: NodeSnapshot) -> None:
    assert found(asking(TWO), there, **{"other-0": 1}) == {}


def test_each_numa_node_says_why_an_aligned_pod_does_not_fit_into_it_alone() -> None:
    apart = [gpu(0, numa_node=0), gpu(1, numa_node=1)]
    wanted = asking(TWO, numa={"numaTopologyPolicy": "SingleNUMANode"})
    assert list(place_by_numa(wanted, node(*apart))) == [0, 1]
    assert place_by_numa(asking(TWO), node(*apart)) == {}


def test_what_was_given_is_told_in_one_line() -> None:
    mine = holding("mine", part(FREE, 50))
    there = node(FREE, USED, MORE, holdings=[mine, *held(part(FREE, 10))])
    assert given(mine, there, BUILT_IN) == (
        "gpu 0 GPU-0 (core 50 %, memory 40 GiB (50 %); shared); 2 of 2 idle devices of type gpu stay whole"
    )


def test_eight_devices_that_were_given_are_told_and_the_others_are_counted() -> None:
    cards = [gpu(minor, device_id=f"GPU-01234567-{minor}") for minor in range(11)]
    there = node(*cards, nic(0), nic(1))
    for number, ends in ((8, "3 of 11"), (9, "1 more devices; 2 of 11"), (10, "2 more devices; 1 of 11")):
        told = given(holding("mine", *(part(card, 100) for card in cards[:number])), there, BUILT_IN)
        assert re.findall(r"gpu ([0-9]+) (\S+) \(core 100", told) == [(str(at), "GPU-01234567") for at in range(8)]
        assert told.count("idle before") == 8
        assert told.endswith(f"{ends} idle devices of type gpu stay whole")
        assert ("more" in told) is (number > 8)


def test_cpus_that_were_given_are_told_in_a_hundred_characters() -> None:
    one, every = ",".join(map(str, range(10, 76, 2))), ",".join(map(str, range(10, 80, 2)))
    assert (len(f"{one},1"), len(every)) == (100, 104)
    for cpus, told in (("0-3,6", "0-3,6"), (f"1,{one[:-3]},74", f"1,{one[:-3]},74"), (every, f"{every[:100]}...")):
        assert given(with_cpus("mine", cpus), node(FREE, USED), BUILT_IN) == f"CPUs {told}"
    assert given(holding("mine"), node(FREE, USED), BUILT_IN) == "a place in NUMA nodes"


def test_devices_that_stay_whole_are_counted_for_each_type_by_itself_and_only_where_they_can_be_given() -> None:
    there = node(FREE, USED, gpu(2, healthy=False), nic(0), nic(1), nic(2), FPGA, holdings=held(part(USED, 10)))
    mine = holding("mine", part(FREE, 50), Share("rdma", "NIC-1", 1, {"rdma": 30}))
    assert given(mine, there, BUILT_IN) == (
        "gpu 0 GPU-0 (core 50 %, memory 40 GiB (50 %); idle before), rdma 1 NIC-1 (rdma 30 %; idle before); "
        "0 of 1 idle devices of type gpu stay whole; 2 of 3 idle devices of type rdma stay whole"
    )
