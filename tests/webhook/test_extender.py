"""The extender: kube-scheduler's wire in any case of its keys, and the verdict that the bind will give."""

from collections.abc import Callable
from typing import Any

import pytest
from builders import container, device_entry, gpu, holding, part, pod
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from world import SCHEDULER, World, binding, binds, gpu_pod, koordinator_annotation, plain_pod

from koordgate.kube.resource import DEVICES, NODE_ALLOCATIONS, NODES, PODS
from koordgate.ledger.store import Record
from webhook.extender import BadExtenderArgsError, Extender

Raw = dict[str, Any]
CASES: dict[str, Callable[[str], str]] = {
    "as kube-scheduler": lambda key: key,
    "lower": str.lower,
    "upper": str.upper,
    "camel": lambda key: key[0].lower() + key[1:],
}


@pytest.fixture
async def three(world: World) -> World:
    """n1: one free card, n2: one card half full, n3: one card that is full; n4 has none."""
    for name, percent in (("n2", 50), ("n3", 100)):
        world.add_node(name)
        card = gpu(0, device_id=f"GPU-{name}-0")
        world.parts.ledger.observe(Record(name, 1, {"u": holding("u", part(card, percent))}))
    world.see(NODES, DEVICES)
    return world


NAMES = ["n1", "n2", "n3", "n4"]


def args(obj: Raw, names: list[str] = NAMES, *, whole: bool = False, case: str = "as kube-scheduler") -> Raw:
    nodes = {"items": [{"metadata": {"name": name, "x": 1}} for name in names], "metadata": {}}
    sent = {"Pod": obj, "Nodes": nodes if whole else None, "NodeNames": None if whole else names}
    return {CASES[case](key): value for key, value in sent.items()}


def naming(world: World, most: int | None) -> Extender:
    """An extender that names so many nodes, or all that fit."""
    return Extender(world.parts.cluster, world.parts.ranking, world.parts.types, most)


def everything(world: World) -> Extender:
    """An extender that names all nodes that fit."""
    return naming(world, None)


@pytest.mark.parametrize("case", CASES)
def test_keys_are_read_in_any_case(three: World, case: str) -> None:
    answer = everything(three).filter(args(gpu_pod("p", 50), case=case))
    assert answer["NodeNames"] == ["n1", "n2"]


def test_names_are_answered_with_names(three: World) -> None:
    answer = everything(three).filter(args(gpu_pod("p", 50)))
    assert set(answer) == {"NodeNames", "FailedNodes", "FailedAndUnresolvableNodes", "Error"}
    assert list(answer["FailedNodes"]) == ["n3"]
    assert list(answer["FailedAndUnresolvableNodes"]) == ["n4"]
    assert "most free" in answer["FailedNodes"]["n3"]
    assert answer["Error"] == ""


def test_whole_nodes_are_answered_with_the_same_nodes_as_they_came(three: World) -> None:
    sent = args(gpu_pod("p", 50), whole=True)
    answer = everything(three).filter(sent)
    assert set(answer) == {"Nodes", "FailedNodes", "FailedAndUnresolvableNodes", "Error"}
    assert answer["Nodes"] == {"items": sent["Nodes"]["items"][:2], "metadata": {}}


@pytest.mark.parametrize("items", [None, []])
def test_no_candidates_are_no_trouble(three: World, items: list[Raw] | None) -> None:
    for obj in (gpu_pod("p"), plain_pod("p")):
        answer = everything(three).filter({"Pod": obj, "Nodes": {"items": items}})
        assert answer["Nodes"]["items"] == []
    assert everything(three).filter({"Pod": gpu_pod("p"), "NodeNames": []})["NodeNames"] == []


def test_a_pod_without_devices_may_go_anywhere(three: World) -> None:
    assert everything(three).filter(args(plain_pod("p")))["NodeNames"] == NAMES
    scores = three.parts.extender.prioritize(args(plain_pod("p")))
    assert scores == [{"Host": name, "Score": 0} for name in NAMES]


def test_fuller_nodes_score_higher_so_that_whole_cards_stay_whole(three: World) -> None:
    scores = {one["Host"]: one["Score"] for one in three.parts.extender.prioritize(args(gpu_pod("p", 50)))}
    assert 0 <= scores["n1"] < scores["n2"] <= 10
    assert (scores["n3"], scores["n4"]) == (0, 0)


@pytest.mark.parametrize("whole", [False, True])
def test_scores_are_whole_numbers_from_0_to_10_for_each_candidate(three: World, *, whole: bool) -> None:
    for percent in (1, 50, 100, 200):
        scores = three.parts.extender.prioritize(args(gpu_pod("p", percent), whole=whole))
        assert [one["Host"] for one in scores] == NAMES
        assert all(isinstance(one["Score"], int) and 0 <= one["Score"] <= 10 for one in scores)


@pytest.mark.parametrize("whole", [False, True])
def test_where_only_the_best_are_wanted_those_are_named_that_score_highest(three: World, *, whole: bool) -> None:
    for name in ("n5", "n6", "n7"):
        three.add_node(name)
    three.see(NODES, DEVICES)
    names = ["n7", "n1", "n6", "n2", "n5", "n3"]
    for percent, best in ((50, ["n2"]), (100, ["n7", "n1", "n6", "n5"]), (200, [])):
        scores = three.parts.extender.prioritize(args(gpu_pod("p", percent), names))
        fits = everything(three).filter(args(gpu_pod("p", percent), names))["NodeNames"]
        top = max((one["Score"] for one in scores if one["Host"] in fits), default=0)
        assert [one["Host"] for one in scores if one["Host"] in fits and one["Score"] == top] == best
        for most in (1, 2, 16):
            answer = naming(three, most).filter(args(gpu_pod("p", percent), names, whole=whole))
            listed = [item["metadata"]["name"] for item in answer["Nodes"]["items"]] if whole else answer["NodeNames"]
            few = set(sorted(best)[:most])  # the first by name, so that Pods that come together go together
            assert listed == ([name for name in names if name in few] if whole else sorted(few))
            assert not {*answer["FailedNodes"], *answer["FailedAndUnresolvableNodes"]} & set(fits)


async def test_a_node_whose_record_cannot_be_read_starves_no_pod(three: World) -> None:
    # It would be the best, be named alone, and answer each bind with a 503.
    best = naming(three, 1)
    assert best.filter(args(gpu_pod("p", 50)))["NodeNames"] == ["n2"]
    three.fake.put(NODE_ALLOCATIONS.path(), {"metadata": {"name": "n2"}, "spec": {"allocations": "?"}})
    three.see(NODE_ALLOCATIONS)
    three.add_pod(gpu_pod("p", 50))
    three.see(PODS)
    assert (await three.bind("p", "n2")).code == 503
    answer = best.filter(args(gpu_pod("p", 50)))
    assert answer["NodeNames"] == ["n1"]
    assert "NodeAllocation n2" in answer["FailedAndUnresolvableNodes"]["n2"]
    assert "administrator" in answer["FailedAndUnresolvableNodes"]["n2"]
    scores = {one["Host"]: one["Score"] for one in three.parts.extender.prioritize(args(gpu_pod("p", 50)))}
    assert scores["n2"] == 0


def test_a_pod_without_devices_is_never_kept_to_a_few_nodes(three: World) -> None:
    assert naming(three, 1).filter(args(plain_pod("p")))["NodeNames"] == NAMES


def test_a_request_that_cannot_be_read_fits_nowhere_and_says_why(three: World) -> None:
    wrong = pod(container(limits={"kubernetes.io/gpu": "150"}))
    answer = everything(three).filter(args(wrong))
    assert answer["NodeNames"] == []
    assert all("ask 100 or 200" in why for why in answer["FailedAndUnresolvableNodes"].values())


def test_an_annotation_that_the_bind_would_refuse_fits_nowhere_either(three: World) -> None:
    # Else the Pod would be tried, and refused, first in every cycle.
    wrong = gpu_pod("p", annotations={"scheduling.koordinator.sh/device-allocated": "{"})
    answer = everything(three).filter(args(wrong))
    assert answer["NodeNames"] == []
    assert all("format" in why for why in answer["FailedAndUnresolvableNodes"].values())


def test_a_pod_with_no_uid_is_judged_as_a_new_one(three: World) -> None:
    obj = gpu_pod("p", 50)
    del obj["metadata"]["uid"]
    assert everything(three).filter(args(obj))["NodeNames"] == ["n1", "n2"]


def test_what_the_pod_itself_holds_from_an_earlier_try_counts_as_free(three: World) -> None:
    assert everything(three).filter(args(gpu_pod("p", 100, uid="u")))["NodeNames"] == ["n1", "n2", "n3"]


@pytest.mark.parametrize(
    "wrong",
    [
        None,
        [],
        "text",
        {},
        {"NodeNames": ["n1"]},
        {"Pod": None, "NodeNames": ["n1"]},
        {"Pod": {"spec": {}}, "NodeNames": ["n1"]},
        {"Pod": gpu_pod("p")},
        {"Pod": gpu_pod("p"), "NodeNames": "n1"},
        {"Pod": gpu_pod("p"), "NodeNames": None, "Nodes": None},
        {"Pod": gpu_pod("p"), "NodeNames": ["n1", 5]},
        {"Pod": plain_pod("p"), "NodeNames": [["n1"]]},
        {"Pod": gpu_pod("p", uid=["uid"]), "NodeNames": ["n1"]},
        {"Pod": gpu_pod("p"), "Nodes": {"items": [{}]}},
        {"Pod": gpu_pod("p"), "Nodes": {"items": [None]}},
        {"Pod": gpu_pod("p"), "Nodes": {"items": 5}},
    ],
)
def test_what_is_no_extender_args_is_said_to_be_none(three: World, wrong: Any) -> None:
    for handler in (three.parts.extender.filter, three.parts.extender.prioritize):
        with pytest.raises(BadExtenderArgsError, match="ExtenderArgs"):
            handler(wrong)


FILLED = st.lists(
    st.tuples(st.sampled_from(["n1", "n2"]), st.integers(0, 1), st.sampled_from([10, 50, 60])), max_size=5
)


@given(FILLED, st.sampled_from([10, 40, 50, 90, 100, 200, 300]))
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
async def test_the_verdict_is_what_the_bind_says(
    world: World, filled: list[tuple[str, int, int]], percent: int
) -> None:
    """Filter and bind, asked one after the other about every node, agree; a dry run leaves nothing behind."""
    for name in ("n1", "n2"):
        world.add_node(name, device_entry(0), device_entry(1))
        cards = [gpu(minor, device_id=f"GPU-{name}-{minor}") for minor in (0, 1)]
        held = {}
        for number, (where, minor, share) in enumerate(filled):
            total = sum(s for w, m, s in filled[:number] if (w, m) == (where, minor))
            if where == name and total + share <= 100:
                uid = f"u{number}"
                held[uid] = holding(uid, part(cards[minor], share))
        await world.parts.ledger.change(name, lambda _old, held=held: (held, None), 5)
    obj = world.add_pod(gpu_pod("p", percent))
    world.see()
    fitting = everything(world).filter(args(obj, ["n1", "n2"]))["NodeNames"]
    for name in ("n1", "n2"):
        response = await world.mutate(binds(binding("p", name), username=SCHEDULER, dry_run=True))
        assert response.allowed is (name in fitting), response.message


async def test_a_pod_annotated_by_koordinator_is_filtered_by_its_request(world: World) -> None:
    half = {"kubernetes.io/gpu-core": "50", "kubernetes.io/gpu-memory-ratio": "50"}
    obj = gpu_pod("p", 50, annotations=koordinator_annotation((0, half, "GPU-n1-0")))
    assert everything(world).filter(args(obj, ["n1"]))["NodeNames"] == ["n1"]
