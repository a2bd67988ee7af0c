"""The extender: kube-scheduler's JSON with keys in any case, and the same verdict as the bind."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import machines_cpu
import orjson
import pytest
from builders import container, device_entry, gpu, holding, part, pod
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from strategies import json_values
from world import SCHEDULER, World, binding, binds, cpu_pod, gpu_pod, koordinator_annotation, plain_pod

from allocator.vocabulary.cpunode import CpuShare
from allocator.vocabulary.holdings import Holding
from allocator.wire.allocatehint import DEVICE_ALLOCATE_HINT
from allocator.wire.podannotations import NUMA_TOPOLOGY_SPEC
from koordgate.kube.resource import DEVICES, NODE_ALLOCATIONS, NODES, PODS
from webhook.ledger.store import Record
from webhook.scheduling.extender import BadExtenderArgsError, Extender

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
    """An extender that names this many nodes, or all that fit."""
    return Extender(world.parts.cluster, world.parts.ranking, world.parts.types, most)


def everything(world: World) -> Extender:
    """An extender that names all nodes that fit."""
    return naming(world, None)


@pytest.mark.parametrize("case", CASES)
def test_keys_are_read_in_any_case(three: World, case: str) -> None:
    answer = everything(three).filter(args(gpu_pod("p", 50), case=case))
    assert answer["NodeNames"] == ["n2", "n1"]


def test_names_are_answered_with_names(three: World) -> None:
    answer = everything(three).filter(args(gpu_pod("p", 50)))
    nothing: Raw = {"FailedNodes": {}, "FailedAndUnresolvableNodes": {}, "Error": ""}
    assert answer == {"NodeNames": ["n2", "n1"], **nothing}


def test_why_no_node_fits_is_reported_for_each_if_none_does(three: World) -> None:
    answer = everything(three).filter(args(gpu_pod("p", 50), ["n3", "n4"]))
    assert answer["NodeNames"] == []
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


def scores(world: World, obj: Raw, names: list[str]) -> dict[str, int]:
    return {one["Host"]: one["Score"] for one in world.parts.extender.prioritize(args(obj, names))}


@pytest.mark.parametrize("count", [1, 2, 11, 12, 40])
async def test_only_the_best_node_has_the_greatest_score_and_none_is_out_of_order(world: World, count: int) -> None:
    """Nodes of a card each, larger and larger; the smallest that is opened is the best."""
    names = [f"m{number:02}" for number in range(count)]
    for number, name in enumerate(names):
        memory = {"koordinator.sh/gpu-memory": f"{16 + number}Gi"}
        world.add_node(name, device_entry(0, id=f"GPU-{name}-0", resources=memory))
    world.see(NODES, DEVICES)
    given = scores(world, gpu_pod("p", 50), ["nowhere", *reversed(names)])
    assert given.pop("nowhere") == 0, "it is not known"
    ordered = [given[name] for name in names]
    assert ordered == sorted(ordered, reverse=True)
    assert ordered.count(10) == 1
    assert ordered[-1] == (0 if count > 1 else 10)
    if count <= 11:
        assert len(set(ordered)) == count


# --- which nodes are named


SPREAD = [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}]
PREFERRED = {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "preference": {}}]}
REQUIRED: Raw = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": []}}
PREFERRING: dict[str, Raw] = {
    "topology spread": {"topologySpreadConstraints": SPREAD},
    "preferred node affinity": {"affinity": {"nodeAffinity": PREFERRED}},
    "preferred Pod affinity": {"affinity": {"podAffinity": PREFERRED}},
    "preferred Pod anti-affinity": {"affinity": {"podAntiAffinity": {**REQUIRED, **PREFERRED}}},
}
INDIFFERENT: dict[str, Raw] = {
    "nothing": {},
    "required affinity": {"affinity": {"nodeAffinity": REQUIRED}},
    "an empty preference": {
        "affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}},
        "topologySpreadConstraints": [],
    },
    "affinity of nothing": {"affinity": {"nodeAffinity": None, "podAffinity": 7, "podAntiAffinity": []}},
    "null": {"affinity": None, "topologySpreadConstraints": None},
}


@pytest.fixture
async def seven(three: World) -> World:
    """Besides the first three, of which n2 is the best for a part of a card: n5 to n7, free like n1."""
    for name in ("n5", "n6", "n7"):
        three.add_node(name)
    three.see(NODES, DEVICES)
    return three


SEVEN = ["n7", "n1", "n6", "n2", "n5", "n3"]


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("spec", PREFERRING.values(), ids=PREFERRING)
def test_a_pod_that_prefers_nodes_is_named_the_few_best(seven: World, spec: Raw, *, whole: bool) -> None:
    for percent, best in ((50, ["n2", "n1", "n5", "n6", "n7"]), (100, ["n1", "n5", "n6", "n7"]), (200, [])):
        obj = gpu_pod("p", percent, **spec)
        scores = {one["Host"]: one["Score"] for one in seven.parts.extender.prioritize(args(obj, SEVEN))}
        assert best == sorted(best, key=lambda name: (-scores[name], name))  # among equals the first by name
        for most in (1, 2, 16):
            answer = naming(seven, most).filter(args(obj, SEVEN, whole=whole))
            listed = [item["metadata"]["name"] for item in answer["Nodes"]["items"]] if whole else answer["NodeNames"]
            few = best[:most]
            assert listed == ([name for name in SEVEN if name in few] if whole else few)
            assert not {*answer["FailedNodes"], *answer["FailedAndUnresolvableNodes"]} & set(best)
            seven.parts.ranking.assumed.drop("uid-p")


@pytest.mark.parametrize("spec", INDIFFERENT.values(), ids=INDIFFERENT)
@pytest.mark.parametrize("most", [1, 2, 16])
def test_a_pod_that_prefers_no_node_is_sent_to_the_best_one(seven: World, spec: Raw, most: int) -> None:
    obj = gpu_pod("p", 50)
    obj["spec"] |= spec
    assert naming(seven, most).filter(args(obj, SEVEN))["NodeNames"] == ["n2"]


def test_where_all_that_fit_are_wanted_preferences_do_not_matter_and_nothing_is_assumed(seven: World) -> None:
    for spec in ({}, PREFERRING["topology spread"]):
        assert len(everything(seven).filter(args(gpu_pod("p", 50, **spec), SEVEN))["NodeNames"]) == 5
    assert not any(seven.parts.ranking.assumed.on(name) for name in SEVEN)


async def test_what_was_assumed_is_forgotten_with_the_bind_or_its_refusal(three: World) -> None:
    extender, assumed = naming(three, 16), three.parts.ranking.assumed
    for name in ("a", "b"):
        three.add_pod(gpu_pod(name, 100))
    three.see(PODS)
    for name in ("a", "b"):
        assert extender.filter(args(three.pod(name), ["n1", "n3"]))["NodeNames"] == (["n1"] if name == "a" else [])
    assert (await three.bind("a", "n1")).allowed
    assert assumed.node_of("uid-a") == ""
    three.remove_pod("a")
    three.see(PODS)
    await three.parts.reconciler.reconcile()
    assert extender.filter(args(three.pod("b"), ["n1", "n3"]))["NodeNames"] == ["n1"]
    assert not (await three.bind("b", "n4")).allowed  # the scheduler ignored the answer, and was refused
    assert assumed.node_of("uid-b") == ""


@pytest.mark.parametrize("how", ["deleted", "bound by another replica", "failed before it was bound"])
def test_what_was_assumed_is_forgotten_with_what_the_watch_says(three: World, how: str) -> None:
    extender = naming(three, 16)
    for name in ("a", "b"):
        three.add_pod(gpu_pod(name, 100))
    three.see(PODS)
    assert extender.filter(args(three.pod("a"), ["n1"]))["NodeNames"] == ["n1"]
    assert extender.filter(args(three.pod("b"), ["n1"]))["NodeNames"] == []
    match how:
        case "deleted":
            three.remove_pod("a")
        case "failed before it was bound":
            three.change_pod("a", status={"phase": "Failed"})
        case _:
            three.change_pod("a", spec={"nodeName": "n5"})
    three.see(PODS)
    assert three.parts.ranking.assumed.node_of("uid-a") == ""
    assert extender.filter(args(three.pod("b"), ["n1"]))["NodeNames"] == ["n1"]


async def test_a_dry_run_of_a_bind_leaves_the_assumption(three: World) -> None:
    three.add_pod(gpu_pod("p", 50))
    three.see(PODS)
    assert naming(three, 16).filter(args(three.pod("p")))["NodeNames"] == ["n2"]
    assert (await three.bind("p", "n2", dry_run=True)).allowed
    assert three.parts.ranking.assumed.node_of("uid-p") == "n2"


def test_scores_are_reported_as_if_the_pod_were_not_assumed_anywhere(three: World) -> None:
    before = three.parts.extender.prioritize(args(gpu_pod("p", 50)))
    naming(three, 16).filter(args(gpu_pod("p", 50)))
    assert three.parts.extender.prioritize(args(gpu_pod("p", 50))) == before


# --- CPUs


async def cpu_nodes(world: World) -> World:
    """wide: 8 CPUs over two NUMA nodes, and a GPU in the second; small: 4 CPUs; plain: a GPU and unknown CPUs."""
    card = device_entry(0, topology={"nodeID": 1, "pcieID": "0", "socketID": 1})
    world.add_node("wide", card, cpu=machines_cpu.build(2, 1, 2, 2, machines_cpu.siblings_near))
    world.add_bare_node("small")
    world.add_topology("small", machines_cpu.build(1, 1, 2, 2, machines_cpu.siblings_near))
    world.add_node("plain")
    world.see()
    return world


CPU_NAMES = ["plain", "small", "wide"]
BALANCED = ["plain", "wide", "small"]  # a node that states no resource at all comes last


def numa(policy: str, **more: str) -> dict[str, str]:
    return {NUMA_TOPOLOGY_SPEC: json.dumps({"numaTopologyPolicy": policy, **more})}


async def test_a_node_of_which_no_cpus_are_known_is_refused_for_pods_with_cpus_of_their_own(world: World) -> None:
    await cpu_nodes(world)
    answer = everything(world).filter(args(cpu_pod("p", 2), CPU_NAMES))
    assert answer["NodeNames"] == BALANCED[1:]
    answer = everything(world).filter(args(cpu_pod("p", 2), ["plain"]))
    assert list(answer["FailedAndUnresolvableNodes"]) == ["plain"]
    assert "no NodeResourceTopology object" in answer["FailedAndUnresolvableNodes"]["plain"]


async def test_cpus_are_counted_by_themselves_and_beside_devices(world: World) -> None:
    await cpu_nodes(world)
    assert everything(world).filter(args(cpu_pod("p", 5), CPU_NAMES))["NodeNames"] == ["wide"]
    both = cpu_pod("p", 2, more={"kubernetes.io/gpu": "50"})
    assert everything(world).filter(args(both, CPU_NAMES))["NodeNames"] == ["wide"]
    answer = everything(world).filter(args(both, ["small"]))
    assert "no GPUs known" in answer["FailedAndUnresolvableNodes"]["small"]
    too_many = everything(world).filter(args(cpu_pod("p", 9), CPU_NAMES))
    assert "9 CPUs are requested, 8 are free: 0-7" in too_many["FailedAndUnresolvableNodes"]["wide"]


async def test_a_numa_policy_that_cannot_be_kept_is_reported_as_such(world: World) -> None:
    await cpu_nodes(world)
    one = cpu_pod("p", 6, annotations=numa("SingleNUMANode"))
    answer = everything(world).filter(args(one, CPU_NAMES))
    assert answer["NodeNames"] == []
    told = {**answer["FailedNodes"], **answer["FailedAndUnresolvableNodes"]}
    assert "fits, but not in one NUMA node (NUMA policy SingleNUMANode)" in told["wide"]
    assert "6 CPUs are requested" in told["small"]
    assert everything(world).filter(args(cpu_pod("p", 6, annotations=numa("BestEffort")), CPU_NAMES))["NodeNames"] == [
        "wide"
    ]


async def test_devices_and_cpus_of_an_aligned_pod_must_be_in_one_numa_node(world: World) -> None:
    await cpu_nodes(world)
    world.parts.ledger.observe(
        Record("wide", 1, {"u": Holding("u", "default", "u", 0, (), CpuShare("LSR", 0b11110000))})
    )
    one = cpu_pod("p", 2, annotations=numa("SingleNUMANode"), more={"kubernetes.io/gpu": "50"})
    answer = everything(world).filter(args(one, ["wide"]))
    assert "fits, but not in one NUMA node" in answer["FailedNodes"]["wide"]
    free = cpu_pod("p", 2, more={"kubernetes.io/gpu": "50"})
    assert everything(world).filter(args(free, ["wide"]))["NodeNames"] == ["wide"]


async def test_a_pod_without_cpus_of_its_own_goes_anywhere_if_nothing_is_to_be_aligned(world: World) -> None:
    await cpu_nodes(world)
    orders = {"LS": BALANCED, "BE": BALANCED, "SYSTEM": CPU_NAMES, "": CPU_NAMES}  # the last two are not ours to order
    for qos, names in orders.items():
        assert everything(world).filter(args(cpu_pod("p", 2, qos), CPU_NAMES))["NodeNames"] == names


# --- records that cannot be read, requests that cannot


async def test_a_node_whose_record_cannot_be_read_starves_no_pod(three: World) -> None:
    # It would be the best node, be named alone, and answer each bind with a 503.
    best = naming(three, 1)
    assert best.filter(args(gpu_pod("first", 50)))["NodeNames"] == ["n2"]
    three.parts.ranking.assumed.drop("uid-first")
    three.fake.put(NODE_ALLOCATIONS.path(), {"metadata": {"name": "n2"}, "spec": {"allocations": "?"}})
    three.see(NODE_ALLOCATIONS)
    three.add_pod(gpu_pod("p", 50))
    three.see(PODS)
    assert (await three.bind("p", "n2")).code == 503
    assert best.filter(args(gpu_pod("p", 50)))["NodeNames"] == ["n1"]
    answer = best.filter(args(gpu_pod("p", 50), ["n2"]))
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
    # Otherwise the Pod would be tried first, and refused, in every cycle.
    wrong = gpu_pod("p", annotations={"scheduling.koordinator.sh/device-allocated": "{"})
    answer = everything(three).filter(args(wrong))
    assert answer["NodeNames"] == []
    assert all("format" in why for why in answer["FailedAndUnresolvableNodes"].values())


def test_to_thousands_of_nodes_a_pod_that_cannot_be_read_is_reported_in_few_words(three: World) -> None:
    hints = {DEVICE_ALLOCATE_HINT: json.dumps({"gpu": {f"{'x' * 60}{number}": 1 for number in range(16)}})}
    names = [f"node-{number}" for number in range(5000)]
    answer = everything(three).filter(args(gpu_pod("p", annotations=hints), names))
    told = answer["FailedAndUnresolvableNodes"]
    assert list(told) == names
    assert "unknown key" in told["node-0"]
    assert sum("unknown key" in why for why in told.values()) == 16
    assert max(map(len, told.values())) <= 204
    assert sum(map(len, told.values())) < 5000 * 50


def test_why_a_pod_cannot_be_read_is_no_format(three: World) -> None:
    answer = everything(three).filter(args(pod(container(limits={"kubernetes.io/gpu": "150%d"}))))
    assert not any("%" in why for why in answer["FailedAndUnresolvableNodes"].values())


OPERATOR = {"key": "a", "operator": "Exists"}
TOLERATING: dict[str, tuple[Any, bool]] = {
    "nothing": (None, False),
    "another key": ([{"key": "b", "operator": "Exists"}], False),
    "another effect": ([{**OPERATOR, "effect": "NoSchedule"}], False),
    "another value": ([{"key": "a", "value": "2"}], False),
    "it": ([{"key": "a", "value": "1", "effect": "PreferNoSchedule"}], True),
    "its key": ([OPERATOR], True),
    "everything": ([{"operator": "Exists"}], True),
}


def taint(world: World, name: str, effect: str) -> None:
    """Put a taint a=1 on a Node, the only one."""
    obj = world.fake.get(NODES.path(name))
    obj["spec"] = {"taints": [{"key": "a", "value": "1", "effect": effect}] if effect else []}
    world.fake.put(NODES.path(), obj)
    world.see(NODES)


@pytest.mark.parametrize(("tolerations", "tolerates"), TOLERATING.values(), ids=TOLERATING)
def test_a_pod_goes_to_a_node_that_is_better_avoided_where_no_other_is_left(
    three: World, tolerations: Any, *, tolerates: bool
) -> None:
    obj = gpu_pod("p", 50)
    obj["spec"]["tolerations"] = tolerations
    asked = naming(three, 1).filter
    taint(three, "n2", "PreferNoSchedule")
    assert asked(args(obj))["NodeNames"] == ["n2" if tolerates else "n1"]
    three.parts.ranking.assumed.drop("uid-p")
    assert asked(args(obj, ["n2", "n3"]))["NodeNames"] == ["n2"]
    three.parts.ranking.assumed.drop("uid-p")
    taint(three, "n2", "")
    obj["metadata"] |= {"name": "q", "uid": "uid-q"}
    assert asked(args(obj))["NodeNames"] == ["n2"]


def test_taints_of_other_effects_are_kube_schedulers_business(three: World) -> None:
    taint(three, "n2", "NoSchedule")
    assert naming(three, 1).filter(args(gpu_pod("p", 50)))["NodeNames"] == ["n2"]


def test_a_node_that_is_gone_is_shunned_no_more(three: World) -> None:
    taint(three, "n2", "PreferNoSchedule")
    assert three.parts.cluster.nodes.shunned(None) == {"n2"}
    three.fake.remove(NODES.path("n2"))
    three.see(NODES)
    assert three.parts.cluster.nodes.shunned(None) == frozenset()


def test_a_pod_with_no_uid_is_judged_as_a_new_one(three: World) -> None:
    obj = gpu_pod("p", 50)
    del obj["metadata"]["uid"]
    assert everything(three).filter(args(obj))["NodeNames"] == ["n2", "n1"]
    assert naming(three, 1).filter(args(obj))["NodeNames"] == ["n2"]
    assert three.parts.ranking.assumed.on("n2") == {}  # its bind could not be noticed


def test_what_the_pod_itself_holds_from_earlier_tries_counts_as_free_and_after_two_it_may_go_only_there(
    three: World,
) -> None:
    assert three.parts.ledger.nodes_of("u") == ["n2", "n3"]
    obj = gpu_pod("p", 100, uid="u")
    assert sorted(everything(three).filter(args(obj))["NodeNames"]) == ["n2", "n3"]
    nowhere = everything(three).filter(args(obj, ["n1"]))
    assert nowhere["NodeNames"] == []
    assert nowhere["FailedNodes"] == {"n1": "only the nodes that it was given room on are open to it: n2, n3"}
    three.parts.ledger.forget("n3")
    assert sorted(everything(three).filter(args(obj))["NodeNames"]) == ["n1", "n2", "n3"]


def test_no_pod_is_sent_to_where_what_it_was_given_is_being_given_back(three: World) -> None:
    marked = replace(three.parts.ledger.record("n2").holdings["u"], ending="mark")
    three.parts.ledger.observe(Record("n2", 2, {"u": marked}))
    three.parts.ledger.forget("n3")
    answer = everything(three).filter(args(gpu_pod("p", 50, uid="u"), ["n2", "n3"]))
    assert answer["NodeNames"] == ["n3"]
    away = everything(three).filter(args(gpu_pod("p", 50, uid="u"), ["n2"]))
    assert "is being given back" in away["FailedNodes"]["n2"]


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
        with pytest.raises(BadExtenderArgsError, match=r"ExtenderArgs|body is not an object|uid that is not text"):
            handler(wrong)


def with_part(value: Any, *path: str | int) -> Raw:
    """A Pod with one part replaced."""
    obj: Raw = json.loads(json.dumps(gpu_pod("p")))
    at: Any = obj
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    return obj


MAIN = ("spec", "containers", 0)
MISSHAPEN = {
    "no name": with_part({"uid": "x"}, "metadata"),
    "a name that is a list": with_part(["p"], "metadata", "name"),
    "a namespace that is a number": with_part(5, "metadata", "namespace"),
    "annotations that are a list": with_part(["a"], "metadata", "annotations"),
    "an annotation that is a number": with_part({DEVICE_ALLOCATE_HINT: 5}, "metadata", "annotations"),
    "labels that are a text": with_part("a", "metadata", "labels"),
    "a spec that is a list": with_part([1], "spec"),
    "a spec that is a text": with_part("x", "spec"),
    "a node that is a number": with_part(5, "spec", "nodeName"),
    "a priority that is a text": with_part("x", "spec", "priority"),
    "containers that are a text": with_part("x", "spec", "containers"),
    "a container that is a number": with_part([1], "spec", "containers"),
    "an init container that is a text": with_part(["x"], "spec", "initContainers"),
    "resources that are a list": with_part([1], *MAIN, "resources"),
    "requests that are a list": with_part(["kubernetes.io/gpu"], *MAIN, "resources", "requests"),
    "resources of the Pod that are a text": with_part("x", "spec", "resources"),
    "a status that is a list": with_part([1], "status"),
    "tolerations that are texts": with_part(["a"], "spec", "tolerations"),
    "affinity that is a text": with_part("any", "spec", "affinity"),
}


def ask_all(world: World, obj: Raw) -> list[str]:
    """Send a Pod to all verbs; returns those that refuse it as malformed."""
    extender, refused = world.parts.extender, []
    victims = {"Pod": obj, "NodeNameToMetaVictims": {"n1": {"Pods": []}}}
    verbs = ((extender.filter, args(obj)), (extender.prioritize, args(obj)), (extender.preempt, victims))
    for verb, sent in verbs:
        try:
            orjson.dumps(verb(json.loads(json.dumps(sent))))
        except BadExtenderArgsError:
            refused.append(verb.__name__)
    return refused


@pytest.mark.parametrize("case", MISSHAPEN)
def test_what_is_no_pod_is_said_to_be_none(three: World, case: str) -> None:
    assert ask_all(three, MISSHAPEN[case]) == ["filter", "prioritize", "preempt"]


PARTS: list[tuple[str | int, ...]] = [
    ("metadata",),
    *(("metadata", key) for key in ("name", "namespace", "uid", "annotations", "labels", "deletionTimestamp")),
    *(("metadata", "annotations", key) for key in (DEVICE_ALLOCATE_HINT, "koordgate.io/original-request")),
    ("spec",),
    *(("spec", key) for key in ("containers", "initContainers", "affinity", "priority", "nodeName", "schedulerName")),
    *(("spec", key) for key in ("resources", "topologySpreadConstraints", "tolerations")),
    MAIN,
    *((*MAIN, key) for key in ("name", "resources", "restartPolicy", "env")),
    *((*MAIN, "resources", key) for key in ("requests", "limits", "claims")),
    (*MAIN, "resources", "limits", "kubernetes.io/gpu-core"),
    ("status",),
]


@given(st.sampled_from(PARTS), json_values())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_whatever_stands_in_a_pod_it_is_answered_or_said_to_be_none(
    world: World, path: tuple[str | int, ...], value: Any
) -> None:
    ask_all(world, with_part(value, *path))


FILLED = st.lists(
    st.tuples(st.sampled_from(["n1", "n2"]), st.integers(0, 1), st.sampled_from([10, 50, 60])), max_size=5
)


@given(FILLED, st.sampled_from([10, 40, 50, 90, 100, 200, 300]))
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
async def test_the_verdict_is_what_the_bind_says(
    world: World, filled: list[tuple[str, int, int]], percent: int
) -> None:
    """Filter and bind agree on every node, asked one after the other; a dry run leaves nothing behind."""
    for name in ("n1", "n2"):
        world.add_node(name, device_entry(0), device_entry(1))
        cards = [gpu(minor, device_id=f"GPU-{name}-{minor}") for minor in (0, 1)]
        held = {}
        for number, (where, minor, share) in enumerate(filled):
            total = sum(s for w, m, s in filled[:number] if (w, m) == (where, minor))
            if where == name and total + share <= 100:
                uid = f"u{number}"
                held[uid] = holding(uid, part(cards[minor], share))
        await world.parts.ledger.change(name, lambda _old, held=held: (held, None), 5)  # type: ignore[misc]
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


async def test_a_node_with_more_labels_than_are_read_takes_nothing_until_they_are_removed(world: World) -> None:
    for name, number in (("n1", 4097), ("n2", 4096)):
        world.add_node(name, labels={f"l{at}": "x" for at in range(number)})
    world.show(gpu_pod("p", 100))
    why = "nothing is placed there: metadata.labels: 4097 entries; koordgate reads 4096 at most"
    assert everything(world).filter(args(gpu_pod("p", 100), ["n1", "n2"]))["NodeNames"] == ["n2"]
    assert why in str(everything(world).filter(args(gpu_pod("p", 100), ["n1"])))
    assert not (await world.bind("p", "n1")).allowed
    world.add_node("n1")
    world.see()
    assert (await world.bind("p", "n1")).allowed
