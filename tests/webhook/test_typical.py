"""The mix that a replica learns: a function of the Pods that hold devices, whatever happened before."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from builders import GIB, app, ask, gpu, gpus, init, part, plain, request
from hypothesis import given
from hypothesis import strategies as st

from allocator.request.typical import models_of, rounded, stated, typical_of
from allocator.vocabulary.asks import (
    DeviceAsk,
    Operator,
    PartOfName,
    PodRequest,
    Requirement,
    Scope,
    Selector,
    TypeHint,
    Wishes,
)
from allocator.vocabulary.devicetype import BUILT_IN, FPGA_TYPE, GPU_TYPE, RDMA_TYPE
from allocator.vocabulary.holdings import InvariantError, Share
from allocator.vocabulary.mix import MAX_TYPICAL, MAX_WEIGHT, Mix, MixError, TypicalRequest, mix_of
from webhook.settings import TypicalSettings, read_mix
from webhook.view import typical
from webhook.view.cluster import SeenObjects
from webhook.view.podinfo import OtherPod, PodInfo

CARD = gpu(0)
GPU_PRODUCT = "nvidia.com/gpu.product"


def pod(uid: str, of: PodRequest, *shares: Share, node: str = "n1", cpu: int = 4000, finished: bool = False) -> PodInfo:
    amounts = (("cpu", cpu), ("memory", 8 * GIB), ("pods", 1))
    return PodInfo(
        uid, "default", uid, node, finished, False, "koord-scheduler", True, of, requests=amounts, shares=shares
    )


def holding(uid: str, percent: int, **fields: object) -> PodInfo:
    """A Pod that asks for this percentage of a card, or for so many whole ones, and holds it."""
    shares = [replace_id(part(CARD, min(percent, 100)), card) for card in range(max(percent // 100, 1))]
    return pod(uid, request(app("main", gpus(percent))), *shares, **fields)  # type: ignore[arg-type] # of a PodInfo


def replace_id(share: Share, minor: int) -> Share:
    return share._replace(id=f"GPU-{minor}", minor=minor)


def learned(pods: Sequence[PodInfo]) -> Mix:
    seen = SeenObjects(lambda: 0, learns=True)
    for one in pods:
        seen.pods.put(one)
    return mix_in(seen)


def mix_in(seen: SeenObjects) -> Mix:
    assert seen.mix is not None
    seen.pods.check_invariants()
    return seen.mix.now()


def weights(mix: Mix) -> list[tuple[tuple[int | None, ...] | None, int]]:
    return [(one.ask.amounts if one.ask else None, one.weight) for one in mix.requests]


PODS = st.builds(
    holding,
    st.sampled_from([f"u{number}" for number in range(8)]),
    st.sampled_from([5, 20, 30, 50, 100, 200]),
    node=st.sampled_from(["", "n1", "n2"]),
    cpu=st.sampled_from([1000, 4000, 4001]),
    finished=st.booleans(),
)
EVENTS = st.lists(st.tuples(st.sampled_from(["put", "put", "put", "drop", "stranger"]), PODS), max_size=30)


def tell(seen: SeenObjects, events: Sequence[tuple[str, PodInfo]]) -> None:
    for what, one in events:
        if what == "put":
            seen.pods.put(one)
        elif what == "drop":
            seen.pods.drop(one.namespace, one.name)
        else:
            seen.pods.put_other(one.namespace, one.name, OtherPod.requesting(one.uid, "n1", one.requests))
        mix_in(seen)


@given(EVENTS)
def test_replicas_that_saw_the_same_pods_have_the_same_mix_and_so_has_one_that_starts(
    events: list[tuple[str, PodInfo]],
) -> None:
    first = SeenObjects(lambda: 0, learns=True)
    tell(first, events)
    pods = list(first.pods.all())
    started = learned(pods)
    assert mix_in(first) == started
    assert learned(pods[::-1]) == started
    other = SeenObjects(lambda: 0, learns=True)
    tell(other, [*events[::-1], *(("drop", one) for _, one in events), *(("put", one) for one in pods)])
    assert mix_in(other) == started


def test_equal_requests_count_together_and_the_weight_is_what_is_held_up_to_a_quarter_of_a_card() -> None:
    pods = [holding("a", 100), holding("b", 800), holding("c", 20), holding("d", 20), holding("e", 1)]
    assert weights(learned(pods)) == [
        ((1, None, 1), 1),
        ((20, None, 20), 40),
        ((100, None, 100), 24),
        ((100, None, 100), 24),
    ]


@pytest.mark.parametrize(
    "one",
    [
        pytest.param(holding("a", 100, node=""), id="waits"),
        pytest.param(holding("a", 100, finished=True), id="has finished"),
        pytest.param(pod("a", request(app("main", gpus(100)))), id="holds nothing"),
        pytest.param(pod("a", request()), id="asks for no devices"),
    ],
)
def test_a_pod_that_holds_no_devices_does_not_count(one: PodInfo) -> None:
    assert not learned([one])


def test_many_small_pods_of_a_card_weigh_no_more_than_four_pods() -> None:
    small = [replace(holding(f"s{number}", 1), node="n1") for number in range(100)]
    large = [holding(f"l{number}", 100) for number in range(4)]
    assert [one.weight for one in learned([*small, *large]).requests] == [96, 96]  # of 100 each, in three digits


@pytest.mark.parametrize(("count", "weight"), [(9, 224), (10, 224), (11, 256)])  # 225, 250 and 275 in three digits
def test_a_pod_of_a_quarter_of_a_card_or_more_weighs_25(count: int, weight: int) -> None:
    for percent in (25, 26, 100):
        (one,) = learned([holding(f"u{number}", percent) for number in range(count)]).requests
        assert one.weight == weight


def test_the_mix_stays_the_same_object_until_a_weight_changes_noticeably() -> None:
    seen = SeenObjects(lambda: 0, learns=True)
    for number in range(400):
        seen.pods.put(holding(f"u{number}", 100))
    before = mix_in(seen)
    seen.pods.put(holding("more", 100))
    assert mix_in(seen) is before
    for number in range(200):
        seen.pods.put(holding(f"v{number}", 50))
    assert mix_in(seen) != before


def test_requests_for_one_type_push_out_none_for_another() -> None:
    nics = DeviceAsk(RDMA_TYPE, 1, (25,))
    share = Share("rdma", "nic", 0, {"rdma": 25})
    # Of 64 sizes, each more common than the Pod of cards, which is one of 1,651.
    others = [pod(f"n{n}", request(app("main", nics)), share, cpu=32 + n % 32 << n % 64 // 32) for n in range(1650)]
    mix = learned([holding("card", 800), *others])
    assert [one for one in mix.requests if one.ask and one.ask.type == GPU_TYPE] == [
        *learned([holding("card", 800)]).requests
    ]
    assert len(mix.requests) == 1 + MAX_TYPICAL


def test_rare_requests_are_dropped_so_that_few_are_looked_at() -> None:
    common = [holding(f"u{number}", 100) for number in range(2000)]
    rare = [holding(f"r{percent}", percent) for percent in range(1, 100)]
    assert [one.ask.count for one in learned([*common, *rare]).requests if one.ask] == [1]


def test_nothing_is_learned_unless_it_is_asked_for() -> None:
    assert SeenObjects(lambda: 0).mix is None


MIXED_HINT = TypeHint(
    Selector(
        (
            PartOfName("koordgate.io/model", ("T4",), wanted=True),
            Requirement("koordgate.io/model", Operator.NOT_IN, ("H100",)),
            Requirement("zone", Operator.IN, ("L4",)),
            Requirement("koordgate.io/model", Operator.IN, ("A100",)),
        )
    )
)
HINT = TypeHint(Selector((Requirement("koordgate.io/model", Operator.IN, ("T4", "A100")),)))


@pytest.mark.parametrize(
    ("of", "models", "expected"),
    [
        pytest.param(request(), (), None, id="no devices"),
        pytest.param(request(app("a", DeviceAsk(RDMA_TYPE, 1, (50,)))), (), (("rdma", 1, (50,)), ()), id="one type"),
        pytest.param(
            request(app("a", DeviceAsk(RDMA_TYPE, 1, (50,))), app("a", gpus(50))),
            (),
            (("gpu", 1, (50, None, 50)), ()),
            id="GPUs before other types",
        ),
        pytest.param(
            request(app("a", gpus(200)), app("b", gpus(100)), app("c", gpus(50))),
            (),
            (("gpu", 3, (100, None, 100)), ()),
            id="whole cards in sum",
        ),
        pytest.param(
            request(app("a", gpus(30)), app("b", gpus(60))),
            (),
            (("gpu", 1, (60, None, 60)), ()),
            id="the greatest part",
        ),
        pytest.param(
            request(init("a", gpus(100)), app("b", gpus(20))),
            (),
            (("gpu", 1, (20, None, 20)), ()),
            id="no init container",
        ),
        pytest.param(
            request(init("a", gpus(100))), (), (("gpu", 1, (100, None, 100)), ()), id="nothing but an init container"
        ),
        pytest.param(
            request(app("a", ask(memory=GIB))),
            ("NVIDIA-T4",),
            (("gpu", 1, (0, GIB, None)), ("T4",)),
            id="bytes, a model",
        ),
        pytest.param(
            request(app("a", gpus(50)), wishes=Wishes(hints=(("gpu", HINT),))),
            ("A100", "H100"),
            (("gpu", 1, (50, None, 50)), ("A100",)),
            id="the models that both the hint and the node selector allow",
        ),
        pytest.param(
            request(app("a", gpus(50)), wishes=Wishes(hints=(("gpu", MIXED_HINT),))),
            (),
            (("gpu", 1, (50, None, 50)), ("A100",)),
            id="models are named by what must be in one label of the model",
        ),
        pytest.param(
            request(app("a", gpus(50)), wishes=Wishes(hints=(("gpu", TypeHint(scope=Scope.PCIE)),))),
            ("T4",),
            (("gpu", 1, (50, None, 50)), ("T4",)),
            id="a hint that selects nothing",
        ),
        pytest.param(
            request(app("a", gpus(50))),
            tuple(f"M{n:02}" for n in range(32)),
            (("gpu", 1, (50, None, 50)), tuple(f"M{n:02}" for n in range(32))),
            id="as many models as are named",
        ),
        pytest.param(
            request(app("a", gpus(50))),
            tuple(f"M{n:02}" for n in range(33)),
            (("gpu", 1, (50, None, 50)), ()),
            id="more models than are named",
        ),
        pytest.param(
            request(app("a", gpus(6400)), app("b", gpus(6400))),
            (),
            (("gpu", 128, (100, None, 100)), ()),
            id="as many cards as a node may have",
        ),
        pytest.param(request(app("a", gpus(6500)), app("b", gpus(6400))), (), None, id="more than any node has"),
        pytest.param(
            request(app("a", DeviceAsk(FPGA_TYPE, 1, (50,))), app("b", DeviceAsk(RDMA_TYPE, 1, (60,)))),
            (),
            (("fpga", 1, (50,)), ()),
            id="without GPUs the first type",
        ),
        pytest.param(
            request(app("a", DeviceAsk(FPGA_TYPE, 1, (50,))), app("b", gpus(60))),
            (),
            (("gpu", 1, (60, None, 60)), ()),
            id="GPUs before the first type",
        ),
        pytest.param(
            request(app("a", ask(ratio=50)), app("b", ask(core=1, ratio=40))),
            (),
            (("gpu", 1, (1, None, 40)), ()),
            id="of parts the one with more compute",
        ),
        pytest.param(
            request(app("a", ask(core=90, ratio=90)), app("b", ask(2, core=10, ratio=10))),
            (),
            (("gpu", 2, (10, None, 10)), ()),
            id="of parts the one of more cards",
        ),
        pytest.param(
            request(app("a", DeviceAsk(GPU_TYPE, 1, (0, None, 0))), app("b", DeviceAsk(RDMA_TYPE, 1, (50,)))),
            (),
            (("rdma", 1, (50,)), ()),
            id="a part of nothing does not count",
        ),
    ],
)
def test_a_pod_is_reduced_to_one_ask(of: PodRequest, models: tuple[str, ...], expected: object) -> None:
    one = typical_of(of, [("cpu", 4000), ("memory", GIB)], models)
    found = None
    if one is not None and one.ask is not None:
        found = ((one.ask.type.name, one.ask.count, one.ask.amounts), one.models)
    assert found == expected


def test_the_vendor_of_whole_cards_is_that_of_the_first() -> None:
    one = typical_of(request(app("a", plain(1)), app("b", ask(2, core=100, ratio=100, vendor="amd"))), (), ())
    assert one is not None
    assert one.ask == plain(3)


def test_cpu_and_memory_that_are_not_requested_are_none() -> None:
    for requests in ([], [("cpu", -5), ("memory", -5)]):
        one = typical_of(request(app("a", gpus(50))), requests, ())
        assert one is not None
        assert (one.cpu, one.memory, one.weight) == (0, 0, 1)
    one = stated({"koordinator.sh/gpu": "50"}, (), 3, BUILT_IN)
    assert (one.cpu, one.memory, one.weight) == (0, 0, 3)


def test_cpu_and_memory_are_rounded_down_to_six_binary_digits() -> None:
    assert [rounded(amount) for amount in (0, 63, 64, 65, 12000, 12031, 2**40 + 1)] == [
        0,
        63,
        64,
        64,
        11776,
        11776,
        2**40,
    ]


MANY = [f"M{n:02}" for n in range(33)]
TERMS = "requiredDuringSchedulingIgnoredDuringExecution"


def expression(*values: str, key: str = GPU_PRODUCT, operator: str = "In") -> dict[str, object]:
    return {"key": key, "operator": operator, "values": list(values)}


def term(*expressions: dict[str, object]) -> dict[str, object]:
    return {"matchExpressions": list(expressions)}


@pytest.mark.parametrize(
    ("selector", "terms", "models"),
    [
        pytest.param({}, [], (), id="none"),
        pytest.param({"zone": "a", GPU_PRODUCT: "NVIDIA-T4-SHARED"}, [], ("T4",), id="selector"),
        pytest.param({}, [term(expression("T4", "A10"))], ("A10", "T4"), id="one term"),
        pytest.param({}, [term(expression("T4")), term(expression("A10"))], ("A10", "T4"), id="either term"),
        pytest.param({}, [term(expression("T4")), term()], (), id="a term that allows any"),
        pytest.param({}, [term(expression("T4", operator="NotIn"))], (), id="what must not be is not read"),
        pytest.param({}, [term(expression("T4", operator="Gt"))], (), id="what is compared is not read"),
        pytest.param({}, [term(expression("T4", key="zone"))], (), id="another label"),
        pytest.param(
            {},
            [term(expression("a", key="zone"), expression("T4", "L4"), expression("T4"))],
            ("T4",),
            id="all of a term",
        ),
        pytest.param({GPU_PRODUCT: "T4"}, [term(expression("T4", "A10"))], ("T4",), id="both"),
        pytest.param({GPU_PRODUCT: "T4"}, [term(expression("L4")), term()], ("T4",), id="a selector alone"),
        pytest.param({}, [{"matchExpressions": ["x", None]}, "x"], (), id="what no API server sends"),
        pytest.param({}, [term(expression(*MANY[:32]))], tuple(MANY[:32]), id="as many as are named"),
        pytest.param({}, [term(expression(*MANY))], (), id="too many"),
    ],
)
def test_the_models_of_the_selected_nodes_are_read_from_labels(
    selector: dict[str, str], terms: list[object], models: tuple[str, ...]
) -> None:
    spec = {"nodeSelector": selector, "affinity": {"nodeAffinity": {TERMS: {"nodeSelectorTerms": terms}}}}
    assert models_of(spec) == models
    assert models_of({"affinity": {"nodeAffinity": {TERMS: None}}, "nodeSelector": None}) == ()


def test_the_commonest_requests_are_kept_and_equal_ones_added() -> None:
    many = [TypicalRequest(cpu, 0, gpus(100), weight=1 + (cpu < 64)) for cpu in range(70)]
    mix = mix_of([*many, replace(many[69], weight=5)])
    kept = [one.cpu for one in mix.requests]
    assert len(kept) == MAX_TYPICAL == 64
    assert kept == [*range(63), 69]
    assert mix.weight == 63 * 2 + 6
    assert mix_of(reversed(many)) == mix_of(many)


def test_an_amount_that_follows_from_another_comes_before_all_that_are_stated() -> None:
    follows, stated_ = (
        TypicalRequest(cpu, 0, DeviceAsk(GPU_TYPE, 1, (1, memory, 1))) for cpu, memory in ((2, None), (1, 0))
    )
    assert mix_of([stated_, follows]).requests == (follows, stated_)


def test_weights_stay_within_their_bound_together() -> None:
    mix = mix_of(
        [TypicalRequest(0, 0, gpus(percent), weight=2**20) for percent in (10, 20, 30)] + [TypicalRequest(1, 0)]
    )
    assert mix.weight <= MAX_WEIGHT == 2**20
    assert [one.weight for one in mix.requests] == [2**18] * 3


@pytest.mark.parametrize(
    ("weights", "kept"),
    [
        pytest.param((1_048_575, 1), [1_048_575, 1], id="just the bound"),
        pytest.param((1_048_576, 1), [524_288], id="one more"),
        pytest.param((1_048_576, 1_048_576), [524_288] * 2, id="twice the bound"),
        pytest.param((1_048_576, 1_048_575, 2), [262_144, 262_143], id="one more than twice"),
    ],
)
def test_weights_are_halved_no_oftener_than_their_bound_demands(weights: tuple[int, ...], kept: list[int]) -> None:
    mix = mix_of([TypicalRequest(cpu, 0, gpus(100), weight=weight) for cpu, weight in enumerate(weights)])
    assert [one.weight for one in mix.requests] == kept


@pytest.mark.parametrize(
    ("requests", "models", "words"),
    [
        ({"cpu": "x"}, (), "cpu"),
        ({"cpu": "1", "koordinator.sh/gpu": "130"}, (), "gpu"),
        ({"cpu": "1"}, ("T4",), "names models"),
    ],
)
def test_a_stated_request_that_cannot_be_read_is_refused(
    requests: dict[str, str], models: tuple[str, ...], words: str
) -> None:
    with pytest.raises(MixError, match=words):
        stated(requests, models, 1, BUILT_IN)


def test_a_stated_request_is_read_as_a_pod_is() -> None:
    one = stated({"cpu": "3", "memory": "1Gi", "koordinator.sh/gpu": "50"}, ("NVIDIA-T4",), 7, BUILT_IN)
    assert (one.cpu, one.memory, one.models, one.weight) == (3000, GIB, ("T4",), 7)
    assert one.ask == gpus(50)


@pytest.mark.parametrize("what", ["sums", "weights", "known"])
def test_a_mix_that_is_wrong_is_found(what: str) -> None:
    pods = [holding(name, percent) for name, percent in (("a", 100), ("b", 50), ("c", 20))]
    seen = typical.SeenMix()
    for one in pods:
        seen.move(None, one)
    seen.check_invariants(pods)
    (kind,) = seen._kinds.values()
    match what:
        case "sums":
            kind.sums[next(iter(kind.sums))] += 1
        case "weights":
            kind.weights[next(iter(kind.weights))] += 64
            seen._mix = None
        case _:
            pods.pop()
    with pytest.raises(InvariantError):
        seen.check_invariants(pods)


@pytest.mark.parametrize(
    ("requests", "told"),
    [
        pytest.param([{"kubernetes.io/gpu": "100"}, {"kubernetes.io/gpu": "x"}], r"scheduler\.mix\[1\]: ", id="unread"),
        pytest.param([{"cpu": "1"}, {"cpu": "2"}], "no request asks for devices", id="no devices"),
    ],
)
def test_a_stated_mix_that_cannot_be_read_is_refused_with_the_entry(
    requests: list[dict[str, str | int]], told: str
) -> None:
    with pytest.raises(ValueError, match=told):
        read_mix([TypicalSettings(one) for one in requests], BUILT_IN)


def test_a_stated_mix_needs_one_request_for_devices_and_may_be_empty() -> None:
    mix = read_mix([TypicalSettings({"cpu": "1"}), TypicalSettings({"kubernetes.io/gpu": "100"})], BUILT_IN)
    assert [one.ask.count for one in mix.requests if one.ask] == [1]
    assert read_mix([], BUILT_IN).requests == ()


def test_weights_for_a_type_are_scaled_so_that_their_sum_is_below_1024() -> None:
    assert [typical._shift(total) for total in (0, 1, 1023, 1024, 2047, 2048, 2**20)] == [0, 0, 0, 1, 1, 2, 11]
