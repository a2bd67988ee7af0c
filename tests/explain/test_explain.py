"""`koordgate explain`: the first line is the answer, and each thing that keeps a Pod from a node is named."""

import asyncio
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import foreignpods
import pytest
import yaml
from commands import Answer
from explain.scenes import BORN, GPU, Raw, bound, gpu_pod, node, scheduled, waiting

from allocator.index.search import NodeFigures
from allocator.vocabulary.asks import Preference
from allocator.vocabulary.names import DEVICE_ALLOCATED
from console.explain import report
from console.explain.explanation import Rival

TAINT = {"key": "dedicated", "value": "x", "effect": "NoSchedule"}


@pytest.mark.parametrize(
    ("about", "spec", "says", "remedy"),
    [
        pytest.param(
            {"taints": [TAINT]},
            {},
            "the Pod does not tolerate the taint dedicated=x:NoSchedule",
            "add a toleration for dedicated=x:NoSchedule to the Pod, or remove the taint",
            id="a taint",
        ),
        pytest.param(
            {"unschedulable": True},
            {},
            "the node is cordoned (spec.unschedulable)",
            "kubectl uncordon n1",
            id="a cordon",
        ),
        pytest.param(
            {},
            {"nodeSelector": {"zone": "b"}},
            "the Pod's nodeSelector or required node affinity does not match the node's labels",
            "the Pod's nodeSelector asks the node for zone=b (it has a): change one of them",
            id="a label",
        ),
    ],
)
def test_a_condition_on_the_node_is_named_with_its_remedy(ask, about: Raw, spec: Raw, says: str, remedy: str) -> None:
    answer = ask(*node("n1", **about), asyncio.run(waiting(**spec)))
    assert answer.status == 3
    assert answer.first == f"Pod team/mine fits on none of 1 node; the nearest is n1: {says}."
    assert f"To do, for example: {remedy}." in answer.out


def test_all_conditions_are_needed_and_of_the_changes_of_devices_one_is_enough(ask) -> None:
    here = node("n1", 1, unschedulable=True, taints=[TAINT])
    held = asyncio.run(bound("other", "n1", *node("n1", 1)))
    lines = ask(*here, asyncio.run(waiting())).out.splitlines()
    needed = [
        "  - kubectl uncordon n1",
        "  - add a toleration for dedicated=x:NoSchedule to the Pod, or remove the taint",
    ]
    begins = lines.index("What is needed for it to fit on n1, all of this")
    assert lines[begins + 1 :] == needed
    lines = ask(*here, held, asyncio.run(waiting())).out.splitlines()
    begins = lines.index("What is needed for it to fit on n1, all of this")
    assert lines[begins + 1 : begins + 3] == needed
    assert lines[begins + 3].startswith("What is needed besides")
    assert [line for line in lines if "one of these is enough" in line] in ([], [lines[begins + 3]])
    assert "wait until one Pod on it ends: team/other" in "".join(lines[begins + 4 :])


def test_where_no_change_helps_the_conditions_are_not_said_to_suffice(ask) -> None:
    lines = ask(
        *node("n1", 1, unschedulable=True), asyncio.run(waiting(limits={"nvidia.com/gpu": "9"}))
    ).out.splitlines()
    assert "What is needed for it to fit on n1" in lines
    assert lines[-1].startswith(("Besides, no single change", "  - "))


def test_the_nearest_node_is_the_one_with_the_least_lack_and_its_cards_say_who_holds_them(ask) -> None:
    near, far = node("near", 1), node("far", 1)
    half = {"kubernetes.io/gpu-core": "50", "kubernetes.io/gpu-memory-ratio": "50"}
    held = [asyncio.run(bound("small", "near", *near, limits=half)), asyncio.run(bound("large", "far", *far))]
    answer = ask(*near, *far, *held, asyncio.run(waiting()))
    assert answer.status == 3
    assert answer.first.startswith("Pod team/mine fits on none of 2 nodes; the nearest is near: ")
    assert "Node near (the nearest)\n" in answer.out
    free = "core 50 %, memory 40 GiB (50 %) free, core 100 %, memory 80 GiB (100 %) asked"
    assert f"gpu 0 GPU-near-0: {free}; held by team/small" in answer.out
    assert "wait until one Pod on it ends: team/small (priority 0); nobody is evicted for this Pod" in answer.out


def priority_class(name: str, value: Any, **about: Any) -> Raw:
    return {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": name},
        "value": value,
    } | about


HIGH, LOW = priority_class("high", 5000), priority_class("low", 10)


@pytest.mark.parametrize(
    ("about", "classes", "held", "says"),
    [
        pytest.param(
            {"priorityClassName": "high"}, [HIGH], {}, "may evict them for this Pod, whose priority is 5000", id="class"
        ),
        pytest.param(
            {}, [LOW | {"globalDefault": True}, HIGH], {}, "whose priority is 10: give it one above 10", id="default"
        ),
        pytest.param(
            {"priorityClassName": "high"},
            [HIGH | {"preemptionPolicy": "Never"}],
            {},
            "because its preemptionPolicy is Never",
            id="a class that evicts nobody",
        ),
        pytest.param(
            {"priorityClassName": "low"},
            [LOW, HIGH],
            {"priorityClassName": "high"},
            "give it one above 5000",
            id="the other's class",
        ),
        pytest.param(
            {"priorityClassName": "low"},
            [LOW, HIGH],
            {"priority": 3, "priorityClassName": "high"},
            "team/other (priority 3)",
            id="the other's own",
        ),
        pytest.param(
            {"priorityClassName": "system-node-critical"},
            [],
            {},
            "whose priority is 2000001000",
            id="a class of Kubernetes",
        ),
        pytest.param({"priorityClassName": "none"}, [], {}, "whose priority is 0", id="no class at all"),
    ],
)
def test_a_pod_of_a_manifest_has_the_priority_of_its_class(
    ask: Callable[..., Answer], about: Raw, classes: list[Raw], held: Raw, says: str
) -> None:
    other = scheduled(asyncio.run(bound("other", "n1", *node("n1", 1))), **held)
    answer = ask(*node("n1", 1), other, *classes, gpu_pod(**about))
    assert says in answer.out
    assert ("PriorityClass none is not in the input" in answer.err) is (about.get("priorityClassName") == "none")


def test_a_class_that_is_not_among_the_others_is_refused_for_a_new_pod_alone(ask: Callable[..., Answer]) -> None:
    answer = ask(*node("n1"), HIGH, gpu_pod(priorityClassName="hihg"))
    assert answer.status == 3
    assert "admission refuses it: it is forbidden: no PriorityClass with name hihg was found" in answer.first
    there = asyncio.run(waiting(priorityClassName="gone"))
    assert ask(*node("n1"), HIGH, there).status == 0


def test_a_class_that_no_api_server_would_send_is_refused_with_what_to_do(ask: Callable[..., Answer]) -> None:
    answer = ask(*node("n1"), priority_class("high", "much"), gpu_pod())
    assert (answer.status, "correct it" in answer.err) == (2, True)


def test_others_are_told_to_end_only_where_they_hold_what_is_missing(ask: Callable[..., Answer]) -> None:
    there = asyncio.run(bound("other", "n1", *node("n1"), limits={**GPU, "cpu": "5"}))
    held = ask(*node("n1"), there, gpu_pod(limits={**GPU, "cpu": "4"}))
    assert "ask for less, or let other Pods end: not enough cpu: 4 requested, 3 of 8 free" in held.out
    small = ask(*node("n1"), there, gpu_pod(limits={**GPU, "cpu": "9"}))
    assert "ask for no more than the node has: not enough cpu: 9 requested, 3 of 8 free" in small.out
    assert "let other Pods end" not in small.out


def test_a_node_that_is_too_small_by_itself_is_not_the_nearest(ask: Callable[..., Answer]) -> None:
    full = asyncio.run(bound("other", "z", *node("z"), limits={**GPU, "cpu": "8"}))
    nodes = [*node("a"), *node("z")]
    nodes[0]["status"]["allocatable"]["cpu"] = "7"
    answer = ask(*nodes, full, gpu_pod(limits={**GPU, "cpu": "8"}))
    assert answer.first.startswith("Pod team/mine fits on none of 2 nodes; the nearest is z: ")


def test_a_node_that_the_pods_own_selection_excludes_is_not_the_nearest(ask: Callable[..., Answer]) -> None:
    near = asyncio.run(bound("other", "z", *node("z", 1)))
    nodes = [*node("a", 2), *node("z", 1, labels={"zone": "b"})]
    answer = ask(*nodes, near, asyncio.run(waiting(nodeSelector={"zone": "b"})))
    assert answer.first.startswith("Pod team/mine fits on none of 2 nodes; the nearest is z: ")
    beyond = ask(*nodes, asyncio.run(waiting(limits={"nvidia.com/gpu": "2"}, nodeSelector={"zone": "b"})))
    assert beyond.first.startswith("Pod team/mine fits on none of 2 nodes; the nearest is z: ")


def test_memory_is_read_in_gib_and_asked_for_in_amounts_that_a_person_can_type(ask: Callable[..., Answer]) -> None:
    third = {"kubernetes.io/gpu-core": "33", "kubernetes.io/gpu-memory": "12345678901"}
    there = asyncio.run(bound("other", "n1", *node("n1", 1), limits=third))
    answer = ask(
        *node("n1", 1), there, gpu_pod(limits={"kubernetes.io/gpu-core": "80", "kubernetes.io/gpu-memory": "79Gi"})
    )
    assert "free, core 80 %, memory 79 GiB (98 %) asked" in answer.out
    shown = re.findall(r"memory ([0-9.]+) GiB \(", answer.out)
    assert len(shown) > 1
    assert all(float(amount) <= 80 for amount in shown)
    (share,) = set(re.findall(r"m(?:ain)?: 1 x \(core ([0-9]+) %, memory ([0-9]+Mi)\) instead of", answer.out))
    less = {"kubernetes.io/gpu-core": share[0], "kubernetes.io/gpu-memory": share[1]}
    assert ask(*node("n1", 1), there, gpu_pod(limits=less)).status == 0


def test_nodes_are_told_in_the_steps_in_which_they_are_compared(ask: Callable[..., Answer]) -> None:
    nodes = [one for name, cards in (("a", 2), ("b", 3), ("c", 8)) for one in node(name, cards)]
    packs = {"kind": "ConfigMap", "metadata": SETTINGS, "data": {"config.yaml": "scheduler: {preference: packing}"}}
    answer = ask(packs, *nodes, asyncio.run(bound("mine", "a", *node("a"))))
    table = re.findall(r"^([0-9]+) +([abc]) .*packing ([0-9]+) of 100 \(counts as ([0-9]+)\)", answer.out, re.MULTILINE)
    assert len(table) == 3
    assert all(int(step) == int(score) // 10 * 10 for _, _, score, step in table)
    places = {step: place for place, _, _, step in table}
    assert [place for place, *_ in table] == [places[step] for *_, step in table]
    assert len(places) == len(set(places.values()))


@pytest.mark.parametrize(
    ("preference", "figures", "says"),
    [
        pytest.param(
            Preference.PACKING, {}, "opens a device of size 80, packing 97 of 100 (counts as 90)", id="packing"
        ),
        pytest.param(
            Preference.MOST_BALANCED,
            {"score": 1},
            f"place 2 by {Preference.MOST_BALANCED}, opens a device of size 80",
            id="balance",
        ),
        pytest.param(
            Preference.PACKING,
            {"mates": 2, "room": 3, "opened": 0, "score": 100},
            "2 of its gang there, room for 3 of its gang, opens no idle device, packing 100 of 100 (counts as 100)",
            id="a gang",
        ),
        pytest.param(
            Preference.FRAGMENTATION,
            {"growth": 4, "broken": 8, "begun": 64_000, "idle": 0, "score": 0},
            "fragmentation grows by 4, breaks a group of 8, opens one on a node of 64 CPUs, opens a device of size 80, "
            f"place 1 by {Preference.MOST_BALANCED}",
            id="fragmentation",
        ),
        pytest.param(
            Preference.FRAGMENTATION,
            {"growth": 0, "begun": 2**53 - 1, "score": 0},
            "fragmentation grows by 0, opens one on a node without CPUs, opens a device of size 80, "
            f"place 1 by {Preference.MOST_BALANCED}",
            id="a node without CPUs",
        ),
        pytest.param(
            Preference.FRAGMENTATION,
            {"growth": 0, "begun": 1999, "opened": 1, "room": 2, "score": 0},
            "room for 2 of its gang, fragmentation grows by 0, opens one on a node of 1 CPUs, opens a device of size "
            f"1, place 1 by {Preference.MOST_BALANCED}",
            id="a node of little CPU",
        ),
        pytest.param(
            Preference.FRAGMENTATION,
            {"growth": 0, "opened": None, "idle": 8, "score": 2},
            f"fragmentation grows by 0, begins an idle node of 8 devices, place 3 by {Preference.MOST_BALANCED}",
            id="an idle node",
        ),
        pytest.param(
            Preference.FRAGMENTATION,
            {"growth": 0, "opened": 0, "idle": 1, "score": 2},
            "fragmentation grows by 0, opens no idle device, begins an idle node, "
            f"place 3 by {Preference.MOST_BALANCED}",
            id="an idle node for a Pod without devices",
        ),
    ],
)
def test_figures_are_told_in_the_order_in_which_they_count(preference: Preference, figures: Raw, says: str) -> None:
    plain = {"mates": 0, "room": 1, "growth": None, "broken": None, "begun": None, "opened": 80, "idle": None}
    assert report.figures(Rival("n1", 0, NodeFigures(**{**plain, "score": 97, **figures})), preference) == says


def test_a_pod_that_fits_is_told_where_it_would_be_sent(ask) -> None:
    answer = ask(*node("n1"), *node("n2"), asyncio.run(waiting()))
    assert answer.status == 0
    assert answer.first == "Pod team/mine fits on 2 of 2 nodes now; koordgate would send it to n1."


def test_the_node_that_koordgate_would_choose_is_named_first_and_explained(ask) -> None:
    packs = {"kind": "ConfigMap", "metadata": {"name": "koordgate"}}
    packs |= {"data": {"config.yaml": "scheduler: {preference: packing}"}}
    answer = ask(packs, *node("n1", 8), *node("n2", 2), *node("n3", 0), asyncio.run(waiting()))
    assert answer.first == "Pod team/mine fits on 2 of 3 nodes now; koordgate would send it to n2."
    assert [line.split()[-2:] for line in answer.out.splitlines() if "it fits  " in line] == [["n2,", "n1"]]
    assert [line for line in answer.out.splitlines() if line.startswith("Node ")] == ["Node n2: it fits"]


def test_a_pod_of_a_manifest_is_shown_to_admission_first(ask) -> None:
    answer = ask(*node("n1"), gpu_pod())
    assert (answer.status, "as koordgate would translate it" in answer.out) == (0, True)
    refused = ask(*node("n1"), gpu_pod(limits={"nvidia.com/gpu": "1.5"}))
    assert (refused.status, "admission refuses it" in refused.first, "it fits" in refused.out) == (3, True, False)
    forged = ask(*node("n1"), gpu_pod(annotations={"scheduling.koordinator.sh/device-allocated": "{}"}))
    assert "admission refuses it" in forged.first


def test_a_misspelt_resource_is_why_a_pod_waits_unless_a_node_reports_it(ask: Callable[..., Answer]) -> None:
    made = gpu_pod(limits={"kubernetes.io/gpus": "50"})
    answer = ask(*node("n1"), made, words=("team/mine", "-o", "json"))
    (hurdle,) = answer.data["hurdles"]
    assert (answer.status, hurdle["why"]) == (3, "misspelt")
    assert hurdle["text"].endswith("did you mean kubernetes.io/gpu?")
    there = node("n1")
    there[0]["status"]["allocatable"]["kubernetes.io/gpus"] = "100"
    assert ask(*there, made, words=("team/mine", "-o", "json")).data["hurdles"][0]["why"] == "notKoordgates"


def namespace(mode: str) -> Raw:
    return {"kind": "Namespace", "metadata": {"name": "team", "labels": {"koordgate.io/mode": mode}}}


@pytest.mark.parametrize(
    ("change", "more", "why", "status"),
    [
        pytest.param(
            lambda made: scheduled(made, schedulingGates=[{"name": "x.io/wait"}]), [], "gate", 3, id="another gate"
        ),
        pytest.param(lambda made: {**made, "status": {}}, [], "noScheduler", 3, id="no scheduler tried it"),
        pytest.param(lambda made: {**made, "status": {"phase": "Failed"}}, [], "finished", 3, id="it has ended"),
        pytest.param(lambda made: scheduled(made, schedulerName="mine"), [], "otherScheduler", 3, id="other scheduler"),
        pytest.param(lambda made: made, [namespace("shadow")], "mode", 0, id="a namespace that is observed"),
        pytest.param(lambda made: made, [namespace("off")], "mode", 0, id="a namespace that is off"),
        pytest.param(
            lambda _made: {**gpu_pod(), "metadata": {**gpu_pod()["metadata"], "creationTimestamp": BORN}},
            [],
            "notTranslated",
            3,
            id="it was never translated",
        ),
        pytest.param(
            lambda made: {**made, "metadata": {**made["metadata"], "deletionTimestamp": BORN}},
            [],
            "terminating",
            3,
            id="it is being deleted",
        ),
    ],
)
def test_what_keeps_a_pod_from_all_nodes_is_named(ask, change, more: list[Raw], why: str, status: int) -> None:
    answer = ask(*node("n1"), *more, change(asyncio.run(waiting())), words=("team/mine", "-o", "json"))
    assert answer.data["hurdles"][0]["why"] == why
    assert answer.status == status


def test_an_explanation_is_the_same_in_both_forms_of_data_and_more_with_all(ask: Callable[..., Answer]) -> None:
    nodes = [part for name in map("n{}".format, range(12)) for part in node(name, unschedulable=True)]

    def told(*words: str) -> Answer:
        return ask(*nodes, gpu_pod(), words=("mine", "-n", "team", *words))

    assert yaml.safe_load(told("-o", "yaml").out) == told("-o", "json").data
    assert told("--all").out != told().out


def test_a_bound_pod_is_compared_with_all_nodes_as_they_are_without_it(ask) -> None:
    mine = asyncio.run(bound("mine", "n2", *node("n2")))
    answer = ask(*node("n1"), *node("n2"), mine)
    assert answer.status == 0
    assert answer.first == (
        "Pod team/mine is on n2: it holds gpu 0, and this is one of 2 equally good nodes, of 2 that could hold it."
    )
    assert "of 2 devices of type gpu, 1 of the 2 idle ones stay whole" in answer.out
    assert "n2 (the Pod's)" in answer.out
    assert "not gpu 1 GPU-n2-1: it has room as well" in answer.out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        pytest.param(("nobody", "-n", "team"), "there is no Pod nobody in namespace team; 1 Pod read", id="none"),
        pytest.param(("min", "-n", "team"), "did you mean mine?", id="alike"),
        pytest.param(("mine",), "there is one in team: name it with -n", id="another namespace"),
        pytest.param(("team/mine", "--node", "x"), "--node x: no such Node; there are n1", id="no such node"),
    ],
)
def test_what_is_not_there_is_told_with_what_is(ask, words: tuple[str, ...], says: str) -> None:
    answer = ask(*node("n1"), gpu_pod(), words=words)
    assert answer.status == 2
    assert says in answer.err


def test_text_that_a_terminal_would_interpret_is_not_printed(ask) -> None:
    made = asyncio.run(waiting())
    made["status"]["conditions"][0]["message"] = "\x1b[31mred\x07"
    assert "\x1b" not in ask(*node("n1", 1, unschedulable=True), made).out


SETTINGS = {"name": "koordgate", "namespace": "koordgate-system"}


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param({"kind": "Pod", "metadata": {"name": "mine"}}, id="a Pod without a spec"),
        pytest.param({"kind": "Pod", "metadata": {"name": "mine"}, "spec": {"containers": "x"}}, id="no list"),
        pytest.param({"kind": "ResourceQuota", "metadata": "x"}, id="a quota without metadata"),
        pytest.param({"kind": "Node", "metadata": {"name": "n1"}, "status": {"allocatable": [1]}}, id="a Node"),
        pytest.param({"kind": "Event", "metadata": []}, id="an Event"),
        pytest.param({"kind": "ConfigMap", "metadata": [1]}, id="a ConfigMap without metadata"),
        pytest.param({"kind": "ConfigMap", "metadata": SETTINGS, "data": [{}]}, id="settings that are a list"),
        pytest.param({"kind": "ConfigMap", "metadata": SETTINGS, "data": {"config.yaml": 1.5}}, id="a number"),
        pytest.param(
            {
                "kind": "Pod",
                "metadata": {"name": "x"},
                "spec": {"containers": [{"name": "c"}], "schedulingGates": [{}]},
            },
            id="a gate without a name",
        ),
        pytest.param(
            {"kind": "ResourceClaim", "metadata": {"name": "c", "resourceVersion": ["x"]}},
            id="a claim's revision, a list",
        ),
        pytest.param(
            {"kind": "ResourceClaim", "metadata": {"name": "c", "resourceVersion": "x"}},
            id="a claim's revision, a word",
        ),
    ],
)
def test_an_object_that_no_api_server_would_send_is_refused_with_what_to_do(ask, wrong: Raw) -> None:
    answer = ask(wrong, gpu_pod())
    assert answer.status == 2
    assert "correct it" in answer.err


def test_a_claim_that_somebody_wrote_by_hand_needs_neither_uid_nor_revision(ask) -> None:
    assert ask(*node("n1"), asyncio.run(waiting()), {"kind": "ResourceClaim", "metadata": {"name": "c"}}).status == 0


def test_nonsense_in_fields_that_nobody_checks_does_no_harm(ask) -> None:
    made = asyncio.run(waiting())
    quota = {"kind": "ResourceQuota", "metadata": {"name": "q", "namespace": "team"}, "status": {"hard": {"x": "y"}}}
    event = {"kind": "Event", "metadata": {"name": "e"}, "involvedObject": 7, "reason": "DevicesAllocated"}
    assert ask(*node("n1"), made, quota, event).status == 0


def plain_node(name: str) -> Raw:
    """A Node of a cluster without koordgate: eight cards that NVIDIA's plugin counts."""
    room = {"cpu": "96", "memory": "1Ti", "pods": "110", "nvidia.com/gpu": "8"}
    labels = {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB", "nvidia.com/gpu.memory": "81920"}
    status = {"capacity": room, "allocatable": room}
    return {"kind": "Node", "metadata": {"name": name, "labels": labels}, "spec": {}, "status": status}


def running(name: str, cards: str) -> Raw:
    """A Pod to which the kubelet's device plugin gave cards."""
    limits = {"nvidia.com/gpu": cards}
    made = gpu_pod(name, limits)
    made["metadata"]["creationTimestamp"] = BORN
    return {**made, "spec": {**made["spec"], "nodeName": "n1"}, "status": {"phase": "Running"}}


@pytest.mark.parametrize(
    ("held", "says", "status"),
    [
        pytest.param("8", "fits on none of 1 node; the nearest is n1: no whole GPU is free", 3, id="all of them"),
        pytest.param("7", "fits on 1 of 1 node now", 0, id="all but one"),
    ],
)
def test_cards_of_a_device_plugins_pods_are_not_free_in_manifests(
    ask: Callable[..., Answer], held: str, says: str, status: int
) -> None:
    answer = ask(plain_node("n1"), running("old", held), gpu_pod())
    assert says in answer.first
    assert answer.status == status


OWN_TYPE = "devices: {types: [{name: npu, resource: example.com/npu}, {name: dsp, resource: example.com/dsp}]}"


@pytest.mark.parametrize("stated", ["the installation", "an option"])
def test_devices_of_types_of_ones_own_are_assumed_as_simulate_does(
    ask: Callable[..., Answer], tmp_path: Path, stated: str
) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text(OWN_TYPE)
    capacity = {"cpu": "8", "memory": "64Gi", "pods": "99", "example.com/npu": "400"}
    own = {"kind": "Node", "metadata": {"name": "n1"}, "status": {"allocatable": capacity, "capacity": capacity}}
    settings = {"kind": "ConfigMap", "metadata": {"name": "koordgate"}, "data": {"config.yaml": OWN_TYPE}}
    options = ("--config", str(file)) if stated == "an option" else ()
    more = [settings] if stated == "the installation" else []
    answer = ask(own, *more, gpu_pod(limits={"example.com/npu": "200"}), words=("mine", "-n", "team", *options))
    assert (answer.status, answer.first) == (0, "Pod team/mine fits on 1 of 1 node now; koordgate would send it to n1.")
    assert "assumed devices: 4 on n1, from example.com/npu" in answer.err


def test_of_an_object_that_is_given_twice_the_last_counts(ask: Callable[..., Answer]) -> None:
    """As a Pod is in the files and in what simulate makes of them: it does not hold other cards in place of its own."""
    whole = {f"kubernetes.io/gpu-{tail}": "100" for tail in ("core", "memory-ratio")}
    shares = [{"minor": minor, "resources": whole, "id": f"assumed-{minor}-n1"} for minor in range(7)]
    again = running("old", "7")
    again["metadata"]["annotations"] = {DEVICE_ALLOCATED: json.dumps({"gpu": shares})}
    two = gpu_pod(limits={"nvidia.com/gpu": "2"})
    one = ask(plain_node("n1"), again, two)
    both = ask(plain_node("n1"), running("old", "7"), again, two)
    assert one.first == both.first
    assert "only 1 of 2 whole GPUs is free" in both.first
    assert "Pod old is given more than once" in both.err


def test_cards_that_hami_gave_are_not_free_in_manifests_without_settings(ask: Callable[..., Answer]) -> None:
    own = plain_node("n1")
    own["status"] = {of: {**room, "nvidia.com/gpu": "1"} for of, room in own["status"].items()}
    other = running("old", "1")
    other["metadata"]["annotations"] = {
        "hami.io/vgpu-node": "n1",
        "hami.io/bind-phase": "success",
        "hami.io/vgpu-devices-allocated": "GPU-8dcd427f-483b-b48f-d7e5-75fb19a52b76,NVIDIA,8000,30:;",
    }
    answer = ask(own, other, gpu_pod())
    assert "no whole GPU is free" in answer.first


def test_the_cards_of_a_running_pod_that_hami_placed_are_told(ask: Callable[..., Answer]) -> None:
    counted = {"kind": "ConfigMap", "metadata": {"namespace": "koordgate-system", "name": "koordgate"}}
    counted |= {"data": {"config.yaml": "adopt: {peers: [hami]}"}}
    other = foreignpods.hami("GPU-n1-1,NVIDIA,8192,30:;", name="mine", namespace="team", limits=GPU)
    answer = ask(*node("n1"), other, counted)
    assert "it was bound without koordgate; it holds gpu 1 GPU-n1-1: core 30 %" in answer.first
    assert "by hami.io/vgpu-devices-allocated" in answer.first


def test_a_running_pod_of_a_device_plugin_is_not_said_to_hold_nothing(ask: Callable[..., Answer]) -> None:
    answer = ask(plain_node("n1"), running("mine", "4"))
    assert "it was bound without koordgate, which gave it nothing and does not know its devices" in answer.first
    assert "no scheduler has tried it" not in answer.out
    assert "it has room as well" not in answer.out


def test_a_pod_that_has_ended_is_explained_in_one_line(ask: Callable[..., Answer]) -> None:
    answer = ask(plain_node("n1"), {**running("mine", "4"), "status": {"phase": "Succeeded"}})
    assert answer.first == "Pod team/mine: it has ended: Succeeded."
    assert "Why these devices" not in answer.out


@pytest.mark.parametrize(
    ("limits", "mode", "says"),
    [
        pytest.param({"cpu": "1"}, "enforce", "it asks for no devices or CPUs of koordgate's", id="nothing of ours"),
        pytest.param(GPU, "shadow", "koordgate only observes namespace team (mode shadow)", id="observed"),
    ],
)
def test_the_first_line_says_that_another_scheduler_places_the_pod(
    ask: Callable[..., Answer], limits: Mapping[str, str], mode: str, says: str
) -> None:
    space = {"kind": "Namespace", "metadata": {"name": "team", "labels": {"koordgate.io/mode": mode}}}
    answer = ask(plain_node("n1"), space, gpu_pod(limits=limits))
    assert says in answer.first
    assert "koordgate would send it" not in answer.out
    assert answer.out.count(says) == 1


def test_a_pod_of_another_product_in_doubt_is_told_with_what_ends_the_doubt(ask: Callable[..., Answer]) -> None:
    theirs = foreignpods.kai("one", name="shared", node="n1")
    cluster = [*node("n1"), *node("n2", taints=[TAINT])]
    missing = "the reservation Pod of group one, which names its GPU of node n1, was not read"
    give = "give that Pod too if this was read from files, and delete Pod team/shared if it is gone"
    doubt = f"what Pod team/shared holds on n1 is in doubt: {missing}. All GPUs of the node are held: {give}"
    told = ask(*cluster, theirs, gpu_pod())
    assert doubt in told.out
    data = ask(*cluster, theirs, gpu_pod(), words=("mine", "-n", "team", "-o", "json")).data
    assert [one["doubts"] for one in data["details"] if one["name"] == "n1"] == [[doubt]]
    own = ask(*cluster, theirs, gpu_pod(), words=("shared", "-n", "team"))
    assert "on n1 it holds gpu 0 GPU-n1-0: core 100 %, memory 80 GiB (100 %); gpu 1 GPU-n1-1" in own.out
    assert f"by runai-gpu-group, in doubt: {missing}" in own.out
    sure = [theirs, foreignpods.reservation("one", "GPU-n1-1", node="n1")]
    assert "doubt" not in ask(*cluster, *sure, gpu_pod()).out
    own = ask(*cluster, *sure, words=("shared", "-n", "team"))
    assert "on n1 it holds gpu 1 GPU-n1-1: core 100 %, memory 80 GiB (100 %); by runai-gpu-group" in own.out
    assert "doubt" not in own.out


def test_a_node_that_is_not_ready_and_has_no_taint_is_told(ask: Callable[..., Answer]) -> None:
    def cluster(name: str, *taints: Raw) -> list[Raw]:
        made, devices = node(name, taints=list(taints))
        made["status"]["conditions"] = [{"type": "Ready", "status": "False"}]
        return [made, devices]

    assert "Node n1 is not Ready, without the taint node.kubernetes.io/not-ready: " in (
        ask(*cluster("n1"), gpu_pod()).err
    )
    taint = {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}
    assert "not Ready" not in ask(*cluster("n1", taint), gpu_pod()).err
