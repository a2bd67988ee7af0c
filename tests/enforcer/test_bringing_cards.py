"""Which cards and devices a container gets, by which means, and which containers are kept from all."""

from dataclasses import replace
from typing import Any

import pytest
from enforcing import CARDS, FACTS, NVIDIA_CDI, ONE, RULES, THREE, TWO, container, sandbox
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs
from trials import examples

from reporter.enforcer.cards import Held
from reporter.enforcer.decide import devices
from reporter.enforcer.model import Answer, Mount, Sandbox
from reporter.exchange import Facts

VARIABLE = "NVIDIA_VISIBLE_DEVICES"
MOUNTED = "/var/run/nvidia-container-devices"


def facts(**rest: Any) -> Facts:
    return structs.replace(FACTS, **rest)


CDI = facts(kinds=NVIDIA_CDI)
READS = facts(default_shows=True)
MOUNTS = facts(default_shows=True, mounts=True)
BROUGHT = {"nri.koordgate.io/main": f"{ONE},{TWO}", "visible-devices.koordgate.io/main": "void"}
SHOWN = {"visible-devices.koordgate.io/main": f"{ONE},{TWO}"}
VOID = {VARIABLE: "void"}
BOTH = {VARIABLE: f"{ONE},{TWO}"}
NAMED = tuple(f"nvidia.com/gpu={card}" for card in (ONE, TWO))

# facts, annotations, environment, what is there; then what is added: environment, mounts, CDI devices
WAYS: dict[
    str, tuple[Facts, dict[str, str], dict[str, Any], tuple[dict[str, str], tuple[Mount, ...], tuple[str, ...]]]
] = {
    "by CDI": (CDI, BROUGHT, {"environment": VOID}, ({}, (), NAMED)),
    "by CDI, and not by what the image says": (CDI, BROUGHT, {"environment": {VARIABLE: "all"}}, (VOID, (), NAMED)),
    "by CDI, and not by what an image without the variable means": (CDI, BROUGHT, {}, (VOID, (), NAMED)),
    "by CDI though the runtime reads the variable": (
        facts(kinds=NVIDIA_CDI, default_shows=True),
        BROUGHT,
        {"environment": VOID},
        ({}, (), NAMED),
    ),
    "by CDI, each once": (
        CDI,
        BROUGHT,
        {"environment": VOID, "cdi": (f"k8s.device-plugin.nvidia.com/gpu={ONE}",)},
        ({}, (), NAMED[1:]),
    ),
    "by nobody, because they are there": (FACTS, BROUGHT, {"environment": VOID, "cdi": NAMED}, ({}, (), ())),
    "by the variable": (READS, BROUGHT, {"environment": VOID}, (BOTH, (), ())),
    "by the variable, as the runtime's mode needs it": (
        facts(default_shows=True, variable="runtime.nvidia.com/gpu"),
        BROUGHT,
        {"environment": VOID},
        ({VARIABLE: f"runtime.nvidia.com/gpu={ONE},runtime.nvidia.com/gpu={TWO}"}, (), ()),
    ),
    "by mounts": (
        MOUNTS,
        BROUGHT,
        {"environment": VOID},
        ({}, tuple(Mount("/dev/null", f"{MOUNTED}/{card}") for card in (ONE, TWO)), ()),
    ),
    "by mounts, as the runtime's mode needs them": (
        facts(default_shows=True, mounts=True, variable="runtime.nvidia.com/gpu"),
        BROUGHT,
        {"environment": VOID},
        ({}, tuple(Mount("/dev/null", f"{MOUNTED}/cdi/runtime.nvidia.com/gpu/{card}") for card in (ONE, TWO)), ()),
    ),
    "by the runtime, which reads the variable": (READS, SHOWN, {"environment": BOTH}, ({}, (), ())),
    "by the runtime, of whose reading nothing is known": (CDI, SHOWN, {"environment": BOTH}, ({}, (), ())),
    "by the runtime, in its form": (
        CDI,
        {"visible-devices.koordgate.io/main": f"runtime.nvidia.com/gpu={ONE}"},
        {"environment": {VARIABLE: f"runtime.nvidia.com/gpu={ONE}"}},
        ({}, (), ()),
    ),
    "by the variable in place of another value": (READS, SHOWN, {"environment": {VARIABLE: "all"}}, (BOTH, (), ())),
    "by CDI, because the variable is lost": (CDI, SHOWN, {}, (VOID, (), NAMED)),
    "by NVIDIA's plugin": (CDI, SHOWN, {"environment": VOID, "cdi": NAMED}, ({}, (), ())),
    "by nobody whom the enforcer knows": (FACTS, SHOWN, {"environment": VOID}, ({}, (), ())),
    "by nobody, of a card that the node does not have": (
        CDI,
        {"visible-devices.koordgate.io/main": "GPU-gone"},
        {"environment": VOID},
        ({}, (), ()),
    ),
    "of others' annotations nothing": (
        CDI,
        {"nri.koordgate.io/other": ONE, "visible-devices.koordgate.io/other": TWO, "koordgate.io/limits": "no"},
        {"environment": {VARIABLE: "all"}},
        ({}, (), ()),
    ),
    "without annotations nothing": (CDI, {}, {"environment": {VARIABLE: "all"}}, ({}, (), ())),
    "that holds none, by void": (CDI, {"nri.koordgate.io/main": "void"}, {"environment": VOID}, ({}, (), ())),
}


@pytest.mark.parametrize(("told", "annotations", "has", "added"), WAYS.values(), ids=WAYS)
def test_a_container_gets_its_cards(told, annotations, has, added) -> None:
    pod = sandbox(more=annotations)
    answer = devices(pod, container(pod, **has), told, RULES)
    edits = answer.edits
    assert (dict(edits.environment), edits.mounts, edits.cdi) == added
    assert (answer.refusal, answer.remarks, answer.limits, answer.kept) == ("", (), (), {})


HANDLERS = {
    "the default one, which reads": ("", True, (), True),
    "the default one, which does not": ("", False, ("nvidia",), False),
    "one that reads": ("nvidia", False, ("other", "nvidia"), True),
    "one that does not": ("runc", True, ("nvidia",), False),
}


@pytest.mark.parametrize(("handler", "default", "showing", "reads"), HANDLERS.values(), ids=HANDLERS)
def test_the_variable_brings_cards_where_the_sandboxs_handler_reads_it(handler, default, showing, reads) -> None:
    pod = sandbox(more=BROUGHT, handler=handler)
    answer = devices(pod, container(pod), facts(default_shows=default, showing=showing), RULES)
    if reads:
        assert (dict(answer.edits.environment), answer.refusal) == (BOTH, "")
    else:
        named = f"runtime handler {handler}" if handler else "the default runtime handler"
        assert answer.refusal.startswith(f"{named} shows containers no cards")
        assert "nvidia-ctk cdi generate" in answer.refusal
        assert answer.edits.environment == {}


def test_a_container_whose_card_the_node_does_not_have_is_refused() -> None:
    pod = sandbox(more={"nri.koordgate.io/main": f"{ONE},GPU-gone"})
    answer = devices(pod, container(pod), CDI, RULES)
    assert answer.refusal == (
        "card GPU-gone was allocated to container main, and the node does not have it: look for its fault "
        "(koordgate doctor), or delete the Pod, so that the one in its place is given another card"
    )
    assert (answer.edits.cdi, answer.edits.environment) == ((), {})


def test_without_facts_only_containers_with_cards_that_the_enforcer_alone_brings_are_refused() -> None:
    found = {
        name: devices(sandbox(more=more), container(sandbox()), None, replace(RULES, closed=True)).refusal
        for name, more in {
            "brought": BROUGHT,
            "shown": SHOWN,
            "none": {},
            "void": {"nri.koordgate.io/main": ""},
        }.items()
    }
    assert [name for name, refusal in found.items() if refusal] == ["brought"]
    assert "see that it runs" in found["brought"]


OTHERS = {
    "rdma.visible-devices.koordgate.io/main": "mlx5_0,mlx5_1",
    "npu.visible-devices.koordgate.io/main": "3",
    "fpga.visible-devices.koordgate.io/main": "x",
    "rdma.visible-devices.koordgate.io/other": "mlx5_2",
}


def test_devices_of_other_types_come_by_the_cdi_kind_of_their_type() -> None:
    told = facts(kinds={"rdma": "example.com/rdma", "npu": "huawei.com/npu"})
    pod = sandbox(more=OTHERS)
    found = container(pod, cdi=("example.com/rdma=mlx5_1",))
    assert devices(pod, found, told, RULES).edits.cdi == ("example.com/rdma=mlx5_0", "huawei.com/npu=3")


def test_they_come_beside_cards_in_every_way() -> None:
    pod = sandbox(more={**OTHERS, **BROUGHT})
    for told in (CDI, READS, MOUNTS):
        with_rdma = structs.replace(told, kinds={**told.kinds, "rdma": "example.com/rdma"})
        answer = devices(pod, container(pod, environment=VOID), with_rdma, RULES)
        assert answer.edits.cdi[-2:] == ("example.com/rdma=mlx5_0", "example.com/rdma=mlx5_1")


# mounts for other cards


@pytest.mark.parametrize("more", [BROUGHT, {}], ids=["with cards", "without"])
@pytest.mark.parametrize(
    "mount",
    [
        f"{MOUNTED}/{THREE}",
        f"{MOUNTED}/all",
        f"{MOUNTED}/cdi/nvidia.com/gpu/{THREE}",
        f"{MOUNTED}{THREE}",
        "/var/run/../run//./nvidia-container-devices/all",
        "//var/run/nvidia-container-devices/all",
    ],
)
def test_a_mount_by_which_the_runtime_shows_another_card_is_refused(more, mount) -> None:
    pod, rules = sandbox(more=more), replace(RULES, closed=True)
    found = container(pod, mounts=("/data", mount))
    answer = devices(pod, found, MOUNTS, rules, {})
    assert answer.refusal.endswith("was not allocated to it: remove the mount from the Pod")
    assert devices(pod, found, READS, rules, {}).refusal == ""


def test_what_an_author_names_does_not_make_a_refusal_long() -> None:
    long = "x" * 100_000
    pod = sandbox(more={"nri.koordgate.io/main": long})
    assert 0 < len(devices(pod, container(pod), CDI, RULES).refusal) < 1000
    closed = replace(RULES, closed=True)
    found = container(sandbox(), mounts=(f"{MOUNTED}/{long}",))
    assert 0 < len(devices(sandbox(), found, MOUNTS, closed, {}).refusal) < 1000


def test_mounts_of_a_containers_own_cards_are_not_refused_nor_those_of_the_device_plugin() -> None:
    rules, pod, other = replace(RULES, closed=True), sandbox(more=BROUGHT), sandbox(2)
    assert devices(pod, container(pod, mounts=(f"{MOUNTED}/{ONE}",)), MOUNTS, rules, {}).refusal == ""
    mounted = container(other, mounts=(f"{MOUNTED}/{THREE}",), environment={VARIABLE: MOUNTED})
    for told in (MOUNTS, None):
        assert devices(other, mounted, told, rules, {"u2": ("main",)}).refusal == ""
        assert devices(other, mounted, told, rules, None).refusal == ""
        assert "was not allocated to it" in devices(other, mounted, told, rules, {}).refusal


# closed nodes

# sandbox, and who has cards of the device plugin
OPEN: dict[str, tuple[Sandbox, Held | None]] = {
    "an exempt namespace": (replace(sandbox(), namespace="monitoring"), {}),
    "one with a card of NVIDIA's device plugin": (sandbox(), {"u1": ("log", "main")}),
    "one of NVIDIA's fractioning operator": (sandbox(more={"nvidia.com/container.main.gpus.devices": ONE}), {}),
    "one that names single cards, if the device plugin's are not known": (sandbox(), None),
    "one that has cards": (sandbox(more=SHOWN), {}),
}
SHUT: dict[str, tuple[Sandbox, Held | None]] = {
    "a plain one": (sandbox(), {}),
    "one beside a container with a card of the device plugin": (sandbox(), {"u1": ("log",)}),
    "one of another Pod than that": (sandbox(2), {"u1": ("main",)}),
    "one whose author asks the fractioning operator, which gave it nothing": (
        sandbox(more={"nvidia.com/container.main.gpu-memory.limit": "1Gi", "nvidia.com/container.main.": ""}),
        {},
    ),
    "one beside a container of the fractioning operator": (
        sandbox(more={"nvidia.com/container.main2.gpus.devices": ONE}),
        {},
    ),
    "one beside a container with cards": (sandbox(more={"visible-devices.koordgate.io/log": ONE}), {}),
}
CLOSED = replace(RULES, closed=True, exempt=frozenset({"kube-system", "monitoring"}))


WITH_AND_WITHOUT_FACTS = pytest.mark.parametrize("told", [READS, None], ids=["with facts", "before the first facts"])


@pytest.mark.parametrize(("pod", "held"), OPEN.values(), ids=OPEN)
@WITH_AND_WITHOUT_FACTS
def test_of_a_closed_node_left_alone_is(pod, held, told) -> None:
    answer = devices(pod, container(pod, environment={VARIABLE: f"{ONE},{TWO}"}), told, CLOSED, held)
    assert (answer.edits.environment, answer.refusal) == ({}, "")


@pytest.mark.parametrize(("pod", "held"), SHUT.values(), ids=SHUT)
@pytest.mark.parametrize("stated", [{}, {VARIABLE: "all"}, {VARIABLE: ""}, {VARIABLE: ONE}])
@WITH_AND_WITHOUT_FACTS
def test_of_a_closed_node_kept_from_cards_is(pod, held, stated, told) -> None:
    found = container(pod, environment=stated)
    assert dict(devices(pod, found, told, CLOSED, held).edits.environment) == VOID
    assert devices(pod, found, told, RULES, held).edits.environment == {}


@pytest.mark.parametrize("stated", [{}, {VARIABLE: "all"}, {VARIABLE: ""}, {VARIABLE: f"{ONE},all"}])
@WITH_AND_WITHOUT_FACTS
def test_what_is_not_the_device_plugins_is_kept_from_cards_though_its_cards_are_not_known(stated, told) -> None:
    answer = devices(sandbox(), container(sandbox(), environment=stated), told, CLOSED, None)
    assert dict(answer.edits.environment) == VOID


@WITH_AND_WITHOUT_FACTS
def test_what_is_void_already_is_not_set_again(told) -> None:
    found = container(sandbox(), environment=VOID)
    assert devices(sandbox(), found, told, CLOSED, {}).edits.environment == {}
    assert devices(sandbox(), found, told, CLOSED, None).edits.environment == {}


# properties

NAMES = st.lists(st.sampled_from([*CARDS, "GPU-gone", "void", "all", ""]), max_size=4).map(",".join)
ANNOTATIONS = st.dictionaries(
    st.sampled_from(
        [
            f"{prefix}{name}"
            for prefix in ("nri.koordgate.io/", "visible-devices.koordgate.io/", "rdma.visible-devices.koordgate.io/")
            for name in ("main", "main2", "log")
        ]
    ),
    NAMES,
)
TOLD = st.builds(
    facts,
    kinds=st.sampled_from([{}, NVIDIA_CDI]),
    default_shows=st.booleans(),
    mounts=st.booleans(),
    variable=st.sampled_from(["", "runtime.nvidia.com/gpu"]),
    provider=st.sampled_from(["none", "cgroup", "HAMi-core", "mps"]),
)
FOUND = st.fixed_dictionaries(
    {"environment": st.sampled_from([{}, VOID, {VARIABLE: "all"}, BOTH]), "cdi": st.sampled_from([(), NAMED[:1]])}
)


def brought_by(answer: Answer) -> set[str]:
    """The cards that an answer brings."""
    named = answer.edits.environment.get(VARIABLE, "void").split(",")
    by_mounts = [one.destination for one in answer.edits.mounts if one.destination.startswith(MOUNTED)]
    names = [*named, *(one.rpartition("/")[2] for one in by_mounts), *answer.edits.cdi]
    return {name.rpartition("=")[2] for name in names} - {"void"}


@given(ANNOTATIONS, st.none() | TOLD, FOUND, st.booleans(), st.sampled_from([None, {}, {"u1": ("main",)}]))
@settings(max_examples=examples(400), deadline=None)
def test_no_container_gets_a_card_that_its_annotations_do_not_name(annotations, told, found, closed, held) -> None:
    pod = sandbox(more=annotations)
    answer = devices(pod, container(pod, **found), told, replace(RULES, closed=closed), held)
    cards = brought_by(answer)
    keys = ("nri.koordgate.io/main", "visible-devices.koordgate.io/main")
    named = next((annotations[key] for key in keys if key in annotations), "").split(",")
    assert cards <= set(named) & set(CARDS)
    assert not (answer.refusal and cards)
