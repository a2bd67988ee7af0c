"""How a node gives containers their cards: the decision, what it refuses, the forms of names, and the annotation."""

import json
from dataclasses import replace

import pytest
from builders import app, gpu, gpus, nic, nics, node, part, request
from runtimes import OPERATOR, OPERATOR_NRI, PLUGIN

from allocator.devices.delivery import DeliveryRules, classes_help, delivery_of
from allocator.place import Placement, place
from allocator.vocabulary.asks import Wishes
from allocator.vocabulary.delivery import (
    ASSUMED,
    MADE_IN_MEMORY,
    NOTHING_TOLD,
    Bringing,
    Delivery,
    EnforcerTold,
    LimitProvider,
    NodeDelivery,
    NodeRuntime,
    Way,
)
from allocator.vocabulary.holdings import Share
from allocator.vocabulary.names import DEVICE_ALLOCATED, RDMA, TYPE_RDMA
from allocator.vocabulary.outcome import Refusal
from allocator.wire.noderuntime import read_runtime, write_runtime
from allocator.wire.podallocated import in_any_form, read_allocation, shown, write_annotations

CLASSED = DeliveryRules(runtime_class="nvidia", handler="nvidia")
NO_CLASS = DeliveryRules()
# What the reporter tells of nodes as people have them.
PACKAGES = NodeRuntime(
    handlers=("nvidia", "runc"), showing=("nvidia",), default_shows=True, toolkit=(1, 20, 2), mode="auto"
)
OLD = replace(PACKAGES, toolkit=(1, 14, 6))
LEGACY = replace(PACKAGES, mode="legacy")
BARE = NodeRuntime(handlers=("runc",), default_shows=False, nri=False)
BOTTLEROCKET = NodeRuntime(handlers=("nvidia", "runc"), showing=("nvidia",), default_shows=True, unprivileged=False)
UNSURE = NodeRuntime(handlers=("nvidia",), showing=("nvidia",))
NONE = None

ENV, CLASS, NRI = Delivery.ENVIRONMENT, Delivery.RUNTIME_CLASS, Delivery.NVIDIA_NRI
OURS = Delivery.NRI
BY_CDI = EnforcerTold(Bringing.CDI)
BY_VARIABLE = EnforcerTold(Bringing.ENVIRONMENT)
BY_MOUNTS = EnforcerTold(Bringing.MOUNTS)
BRINGS_NOTHING = EnforcerTold(why_not="has an enforcer that can bring nothing: let it")
WAYS = {
    # name: (runtime, label, rules), (plain delivery, kind), (classed delivery, kind)
    "the GPU Operator's default": ((OPERATOR, "", CLASSED), (NONE, ""), (CLASS, MADE_IN_MEMORY)),
    "the same without the RuntimeClass": ((OPERATOR, "", NO_CLASS), (NONE, ""), (CLASS, MADE_IN_MEMORY)),
    "NVIDIA's NRI plugin": ((OPERATOR_NRI, "", NO_CLASS), (NRI, PLUGIN), (NRI, PLUGIN)),
    "the same, and a RuntimeClass without handler": ((OPERATOR_NRI, "", CLASSED), (NRI, PLUGIN), (NONE, "")),
    "NVIDIA's runtime is the default": ((PACKAGES, "", CLASSED), (ENV, MADE_IN_MEMORY), (CLASS, MADE_IN_MEMORY)),
    "a toolkit before 1.15": ((OLD, "", CLASSED), (ENV, ""), (CLASS, "")),
    "mode legacy": ((LEGACY, "", CLASSED), (ENV, ""), (CLASS, "")),
    "no runtime of NVIDIA's": ((BARE, "", NO_CLASS), (NONE, ""), (CLASS, "")),
    "a runtime that ignores the variable": ((BOTTLEROCKET, "", CLASSED), (NONE, ""), (NONE, "")),
    "a default runtime that is not known": ((UNSURE, "", CLASSED), (ENV, ""), (CLASS, "")),
    "the label: NRI": ((OPERATOR, "nvidia-nri", CLASSED), (NONE, ""), (NONE, "")),
    "the label: environment": ((OPERATOR, "environment", CLASSED), (ENV, MADE_IN_MEMORY), (CLASS, MADE_IN_MEMORY)),
    "the label: runtimeClass": ((PACKAGES, "runtimeClass", CLASSED), (NONE, ""), (CLASS, MADE_IN_MEMORY)),
    "a label that is no way": ((PACKAGES, "magic", CLASSED), (ENV, MADE_IN_MEMORY), (CLASS, MADE_IN_MEMORY)),
    "the setting: environment": (
        (OPERATOR, "", replace(CLASSED, delivery="environment")),
        (ENV, MADE_IN_MEMORY),
        (CLASS, MADE_IN_MEMORY),
    ),
    "the label precedes the setting": (
        (OPERATOR_NRI, "nvidia-nri", replace(NO_CLASS, delivery="environment")),
        (NRI, PLUGIN),
        (NRI, PLUGIN),
    ),
    "the enforcer by CDI": ((replace(BARE, enforcer=BY_CDI), "", NO_CLASS), (OURS, ""), (OURS, "")),
    "the enforcer by CDI, without the RuntimeClass's handler": (
        (replace(BARE, enforcer=BY_CDI), "", CLASSED),
        (OURS, ""),
        (NONE, ""),
    ),
    "the enforcer before NVIDIA's NRI plugin": (
        (replace(OPERATOR_NRI, enforcer=BY_CDI), "", NO_CLASS),
        (OURS, ""),
        (OURS, ""),
    ),
    "the enforcer by the variable": (
        (replace(PACKAGES, enforcer=BY_VARIABLE), "", CLASSED),
        (OURS, MADE_IN_MEMORY),
        (OURS, MADE_IN_MEMORY),
    ),
    "the same where only the RuntimeClass leads to NVIDIA's runtime": (
        (replace(OPERATOR, enforcer=BY_VARIABLE), "", CLASSED),
        (NONE, ""),
        (OURS, MADE_IN_MEMORY),
    ),
    "the enforcer by mounts, where the variable is ignored": (
        (replace(BOTTLEROCKET, enforcer=BY_MOUNTS), "", CLASSED),
        (OURS, ""),
        (OURS, ""),
    ),
    "an enforcer that brings nothing": (
        (replace(PACKAGES, enforcer=BRINGS_NOTHING), "", CLASSED),
        (ENV, MADE_IN_MEMORY),
        (CLASS, MADE_IN_MEMORY),
    ),
    "the label: the enforcer": ((replace(PACKAGES, enforcer=BY_CDI), "nri", CLASSED), (OURS, ""), (OURS, "")),
    "the label: the enforcer, which is not there": ((PACKAGES, "nri", CLASSED), (NONE, ""), (NONE, "")),
    "the setting: the enforcer, of which nothing is told": (
        (None, "", replace(NO_CLASS, delivery="nri")),
        (NONE, ""),
        (NONE, ""),
    ),
    "the label: the variable, beside an enforcer": (
        (replace(PACKAGES, enforcer=BY_CDI), "environment", CLASSED),
        (ENV, MADE_IN_MEMORY),
        (CLASS, MADE_IN_MEMORY),
    ),
    "nothing is told, and a label says how": ((None, "environment", CLASSED), (ENV, ""), (CLASS, "")),
}


@pytest.mark.parametrize(("told", "plain", "classed"), WAYS.values(), ids=WAYS)
def test_a_node_gives_cards_in_the_way_that_its_runtime_has(
    told: tuple[NodeRuntime | None, str, DeliveryRules],
    plain: tuple[Delivery | None, str],
    classed: tuple[Delivery | None, str],
) -> None:
    found = delivery_of(*told)
    assert (found.plain.delivery, found.plain.kind) == plain, found.plain.why_not
    assert (found.classed.delivery, found.classed.kind) == classed, found.classed.why_not
    for way in (found.plain, found.classed):
        assert bool(way.why_not) == (way.delivery is None)


def test_a_node_of_which_nothing_is_told_counts_as_before_unless_the_setting_refuses_it() -> None:
    assert delivery_of(None, "", CLASSED) is NOTHING_TOLD
    assert NOTHING_TOLD.plain == ASSUMED
    refused = delivery_of(None, "", replace(CLASSED, unknown_refused=True)).plain
    assert refused.delivery is None
    assert "is not known to show containers their cards" in refused.why_not


REFUSED = {
    "a default runtime that shows nothing": (
        OPERATOR,
        "",
        CLASSED,
        "",
        "a Pod needs runtimeClassName nvidia there: create it again",
    ),
    "the same with a runtime that ignores the variable whatever the Pod names": (
        replace(OPERATOR, unprivileged=False),
        "",
        CLASSED,
        "",
        "accept-nvidia-visible-devices-envvar",
    ),
    "the same where there is no RuntimeClass": (OPERATOR, "", NO_CLASS, "", "create a RuntimeClass for NVIDIA"),
    "no runtime of NVIDIA's": (BARE, "", NO_CLASS, "", "has a default runtime that shows containers no cards"),
    "no runtime of NVIDIA's, though there is a RuntimeClass": (
        BARE,
        "",
        CLASSED,
        "",
        "configure NVIDIA's runtime there as handler nvidia, which RuntimeClass nvidia names",
    ),
    "a handler that the node lacks": (BARE, "", CLASSED, "nvidia", "has no runtime handler nvidia"),
    "a runtime that ignores the variable": (BOTTLEROCKET, "", CLASSED, "", "accept-nvidia-visible-devices-envvar"),
    "no specification for the NRI plugin": (
        replace(OPERATOR_NRI, kinds=()),
        "nvidia-nri",
        CLASSED,
        "",
        "no CDI specification that names every card",
    ),
    "no NRI plugin": (OPERATOR, "nvidia-nri", CLASSED, "", "ClusterPolicy cdi.nriPluginEnabled"),
    "no enforcer": (PACKAGES, "nri", CLASSED, "", "set enforcement.enabled"),
    "an enforcer that brings nothing": (replace(PACKAGES, enforcer=BRINGS_NOTHING), "nri", CLASSED, "", "let it"),
    "an enforcer whose mounts the default runtime does not read": (
        replace(OPERATOR, enforcer=BY_MOUNTS),
        "nri",
        CLASSED,
        "",
        "let `nvidia-ctk cdi generate` write one",
    ),
    "only Pods with a RuntimeClass": (PACKAGES, "runtimeClass", CLASSED, "", "only to Pods with runtimeClassName"),
    "only with a RuntimeClass that is missing": (PACKAGES, "runtimeClass", NO_CLASS, "", "the cluster does not have"),
}


@pytest.mark.parametrize(("runtime", "label", "rules", "named", "words"), REFUSED.values(), ids=REFUSED)
def test_a_node_that_cannot_show_cards_takes_no_pod_for_them(
    runtime: NodeRuntime, label: str, rules: DeliveryRules, named: str, words: str
) -> None:
    there = replace(node(gpu(0)), delivery=delivery_of(runtime, label, rules))
    asked = request(app("main", gpus(50)), wishes=Wishes(runtime_class=named))
    refused = place(asked, there)
    assert isinstance(refused, Refusal)
    assert refused.message.startswith(f"{there.name}: the node ")
    assert words in refused.message
    assert refused.short == "the node cannot show containers their cards"


def test_pods_without_cards_and_pods_with_another_runtime_class_are_not_refused() -> None:
    there = replace(node(gpu(0), nic(0)), delivery=delivery_of(BARE, "", NO_CLASS))
    assert isinstance(place(request(app("main", nics(50))), there), Placement)
    other = request(app("main", gpus(50)), wishes=Wishes(runtime_class="kata"))
    assert isinstance(place(other, there), Placement)


@pytest.mark.parametrize("runtime", [OPERATOR_NRI, replace(BARE, enforcer=BY_CDI)], ids=["NVIDIA's", "the enforcer"])
@pytest.mark.parametrize("length", [53, 54])
def test_a_name_of_54_characters_does_not_fit_into_the_annotation_of_an_nri_plugin(
    runtime: NodeRuntime, length: int
) -> None:
    there = replace(node(gpu(0)), delivery=delivery_of(runtime, "", NO_CLASS))
    placed = place(request(app("c" * length, gpus(50)), app("short", gpus(10))), there)
    assert isinstance(placed, Refusal) == (length == 54)
    if isinstance(placed, Refusal):
        assert "a name of more than 53 characters" in placed.message


HELP = {
    "they help where only they work": ([OPERATOR, OPERATOR], True),
    "they do not help where the default runtime shows cards": ([PACKAGES], False),
    "they do not help where nothing is told": ([None], False),
    "they help where only with them it is certain": ([UNSURE], True),
    "one node that needs them beside one that does not": ([OPERATOR, PACKAGES], True),
    "nodes without the handler outweigh": ([OPERATOR, OPERATOR_NRI, OPERATOR_NRI], False),
}


@pytest.mark.parametrize(("runtimes", "helps"), HELP.values(), ids=HELP)
def test_pods_get_a_runtime_class_where_it_gives_them_cards_on_more_nodes(
    runtimes: list[NodeRuntime | None],
    helps: bool,  # noqa: FBT001 a row's
) -> None:
    ways: dict[NodeDelivery, int] = {}
    for runtime in runtimes:
        way = delivery_of(runtime, "", CLASSED)
        ways[way] = ways.get(way, 0) + 1
    assert classes_help(ways) is helps


FORMS = {
    "the bare UUID": (Way(ENV), {"visible-devices.koordgate.io/main": "GPU-0,GPU-1"}),
    "a qualified name": (
        Way(CLASS, MADE_IN_MEMORY),
        {"visible-devices.koordgate.io/main": "runtime.nvidia.com/gpu=GPU-0,runtime.nvidia.com/gpu=GPU-1"},
    ),
    "NVIDIA's NRI plugin": (
        Way(NRI, PLUGIN),
        {
            "visible-devices.koordgate.io/main": "GPU-0,GPU-1",
            "nvidia.cdi.k8s.io/container.main": f"{PLUGIN}=GPU-0,{PLUGIN}=GPU-1",
        },
    ),
    "the enforcer's variable": (Way(OURS), {"visible-devices.koordgate.io/main": "GPU-0,GPU-1"}),
    "the enforcer alone": (
        Way(OURS, hidden=True),
        {
            "visible-devices.koordgate.io/main": "void",
            "nri.koordgate.io/main": "GPU-0,GPU-1",
            "required-plugins.noderesource.dev/container.main": '["koordgate"]',
        },
    ),
}


@pytest.mark.parametrize(("way", "named"), FORMS.values(), ids=FORMS)
def test_each_way_names_cards_in_its_form_and_all_are_read_back_alike(way: Way, named: dict[str, str]) -> None:
    shares = (part(gpu(0), 50, "main"), part(gpu(1), 50, "main"))
    annotations = write_annotations(shares, "kubernetes.io", way=way)
    allocated = annotations.pop("scheduling.koordinator.sh/device-allocated")
    assert annotations == named
    read = read_allocation({**annotations, DEVICE_ALLOCATED: allocated})
    assert read.shares == shares
    assert in_any_form(annotations) == {"visible-devices.koordgate.io/main": "GPU-0,GPU-1"}


def test_a_limit_is_not_the_same_with_a_card_that_comes_without_it() -> None:
    shares = (part(gpu(0), 50, "main"),)
    limit = {"nvidia-gpu-memory-limit.koordgate.io/main": "1024"}
    hidden, seen = (
        write_annotations(shares, "kubernetes.io", way=way) | limit for way in (Way(OURS, hidden=True), Way(ENV))
    )
    assert in_any_form(hidden) != in_any_form(seen)
    assert in_any_form(hidden) == hidden


def test_each_container_has_its_own_cards_whatever_the_others_of_its_pod_have() -> None:
    shares = (
        part(gpu(0), 50, "first", "main"),
        part(gpu(1), 50, "main"),
        Share(TYPE_RDMA, nic(0).id, 0, {RDMA: 100}, ("main",)),
    )
    annotations = write_annotations(shares, "kubernetes.io", way=Way(OURS, hidden=True))
    assert sorted(shown(annotations)) == [
        ("gpu", "first", ("GPU-0",)),
        ("gpu", "main", ("GPU-0", "GPU-1")),
        ("rdma", "main", (nic(0).id,)),
    ]
    assert read_allocation(annotations).shares == shares


@pytest.mark.parametrize("provider", LimitProvider)
@pytest.mark.parametrize("enforcer", [BY_CDI, BY_VARIABLE, BY_MOUNTS])
def test_where_the_enforcer_keeps_limits_it_alone_brings_what_is_limited(
    provider: LimitProvider, enforcer: EnforcerTold
) -> None:
    alone = provider in {LimitProvider.CGROUP, LimitProvider.HAMI_CORE, LimitProvider.MPS}
    for runtime in (PACKAGES, replace(PACKAGES, enforcer=enforcer)):
        there = delivery_of(runtime, "", CLASSED, provider)
        assert there.provider is provider
        for runtime_class in ("", "nvidia", "kata"):
            free, limited = there.way(runtime_class), there.way(runtime_class, limits=True)
            assert limited == (replace(free, delivery=OURS, kind="", hidden=True) if alone else free)


def test_a_node_that_shows_no_cards_shows_none_with_limits_either() -> None:
    there = delivery_of(BARE, "", NO_CLASS, "cgroup")
    assert there.way("", limits=True) == there.plain
    assert there.plain.delivery is None


def test_another_runtime_class_gets_its_cards_only_by_cdi() -> None:
    assert delivery_of(replace(BARE, enforcer=BY_CDI), "", NO_CLASS).other.delivery is OURS
    for enforcer in (BY_VARIABLE, BY_MOUNTS):
        assert not delivery_of(replace(PACKAGES, enforcer=enforcer), "", CLASSED).other.known


TOLD = {
    "everything": NodeRuntime(
        ("nvidia", "runc"),
        ("nvidia",),
        False,
        (PLUGIN,),
        True,
        (1, 20, 2),
        "cdi",
        False,
        True,
        "why",
        EnforcerTold(Bringing.MOUNTS, "", LimitProvider.HAMI_CORE, ""),
    ),
    "an enforcer that does nothing": NodeRuntime(enforcer=EnforcerTold()),
    "an enforcer that is not ready": NodeRuntime(
        enforcer=EnforcerTold(None, "has no specification", LimitProvider.CGROUP, "no driver")
    ),
    "nothing": NodeRuntime(),
    "limits are kept": NodeRuntime(no_limits=""),
    "limits are not known": NodeRuntime(no_limits=None),
}


@pytest.mark.parametrize("runtime", TOLD.values(), ids=TOLD)
def test_what_is_told_of_a_runtime_is_read_back(runtime: NodeRuntime) -> None:
    assert read_runtime(write_runtime(runtime)) == (runtime, "")


def test_what_a_later_version_tells_of_an_enforcer_counts_as_nothing() -> None:
    told = NodeRuntime(default_shows=True, enforcer=EnforcerTold(no_limits=""))
    later = {"brings": "dra", "provider": "magic", "noLimits": "", "more": 1}
    assert read_runtime(json.dumps({"defaultShows": True, "enforcer": later})) == (told, "")


UNREADABLE = {
    "an enforcer that is a list": json.dumps({"enforcer": []}),
    "an enforcer's text that is too long": json.dumps({"enforcer": {"whyNot": "a" * 2000}}),
    "no JSON": "{",
    "a list": "[]",
    "handlers that are no list": json.dumps({"handlers": {"a": 1}}),
    "a flag that is a text": json.dumps({"nri": "yes"}),
    "too many kinds": json.dumps({"kinds": ["a"] * 65}),
    "a text that is too long": json.dumps({"mode": "a" * 2000}),
}


@pytest.mark.parametrize("text", UNREADABLE.values(), ids=UNREADABLE)
def test_what_cannot_be_read_of_a_runtime_is_not_known_and_said(text: str) -> None:
    runtime, problem = read_runtime(text)
    assert runtime is None
    assert problem.startswith("annotation koordgate.io/runtime: ")
