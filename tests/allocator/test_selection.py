"""The annotations of other products that choose among devices: what is selected, refused, warned of, and recorded."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from builders import container, pod

from allocator.request.original import read_asks
from allocator.request.pod import asks_by_metadata
from allocator.request.selection import NO_SELECTION, Selection, echo, echoed, read_selection, selecting, with_selection
from allocator.vocabulary.asks import NO_WISHES, Operator, PartOfName, Requirement, Scope, Selector, TypeHint
from allocator.vocabulary.devicetype import BUILT_IN, DeviceTypes
from allocator.vocabulary.dialects import DIALECTS, PEERS, Dialect, Selects
from allocator.vocabulary.names import DIALECT, ISOLATION_PROVIDER
from allocator.vocabulary.outcome import Problem
from allocator.wire.allocatehint import DEVICE_ALLOCATE_HINT

HAMI, VOLCANO = (one for one in PEERS if one.name in {"hami", "volcano"})
OWN = DIALECTS[0]
USE, NOT = "nvidia.com/use-gputype", "nvidia.com/nouse-gputype"
IDS, VIDS = "nvidia.com/use-gpuuuid", "volcano.sh/vgpu-use-gpuuuid"
NUMA, MODE = "nvidia.com/numa-bind", "nvidia.com/vgpu-mode"


def of_ids(*ids: str, wanted: bool = True) -> Requirement:
    return Requirement("koordgate.io/uuid", Operator.IN if wanted else Operator.NOT_IN, ids)


def of_model(*parts: str, wanted: bool = True) -> PartOfName:
    return PartOfName("koordgate.io/model", parts, wanted=wanted)


def selected(annotations: Mapping[str, str], *dialects: Dialect) -> Selection:
    found = read_selection(annotations, dialects)
    assert found.problems == ()
    return found


def test_each_annotation_is_one_requirement_in_a_fixed_order() -> None:
    every = {IDS: "x, y,x", "nvidia.com/nouse-gpuuuid": "z", USE: "a100,NVIDIA T4", NOT: "v100"}
    wanted = (of_model("A100", "T4"), of_model("V100", wanted=False), of_ids("x", "y"), of_ids("z", wanted=False))
    assert selected(every, HAMI) == Selection((("gpu", TypeHint(Selector(wanted))),), dialects=(HAMI,))


def test_nothing_is_selected_by_annotations_of_others_or_by_such_as_have_no_effect() -> None:
    assert selected({"example.com/x": "y"}, HAMI, VOLCANO) == NO_SELECTION
    assert selected({}, HAMI) == NO_SELECTION
    told = "metadata.annotations[hami.io/gpu-scheduler-policy]: has no effect here"
    assert selected({"hami.io/gpu-scheduler-policy": "spread"}, HAMI) == Selection((), (), (told,), (HAMI,))


def test_an_annotation_that_two_products_read_is_read_as_the_first_one_reads_it() -> None:
    both = {USE: "T4", NOT: "A100"}
    for first, second, wanted in (
        (HAMI, VOLCANO, (of_model("T4"), of_model("A100", wanted=False))),
        (VOLCANO, HAMI, (of_model("T4"),)),
    ):
        found = selected(both, first, second)
        assert found == Selection((("gpu", TypeHint(Selector(wanted))),), dialects=(first,))
    assert selected({USE: "T4", IDS: "x"}, HAMI, VOLCANO).dialects == (HAMI,)


def test_what_two_products_select_holds_together() -> None:
    found = selected({IDS: "x", VIDS: "x,y", NUMA: "true"}, HAMI, VOLCANO)
    assert found.dialects == (HAMI, VOLCANO)
    assert found.hints == (("gpu", TypeHint(Selector((of_ids("x"), of_ids("x", "y"))), scope=Scope.NUMA_NODE)),)
    assert selected({IDS: "x", VIDS: "x"}, HAMI, VOLCANO).hints == (("gpu", TypeHint(Selector((of_ids("x"),)))),)


@pytest.mark.parametrize(
    ("text", "bound"), [("true", True), ("True", True), ("t", True), ("1", True), ("yes", False), ("0", False)]
)
def test_a_numa_node_is_kept_for_what_go_reads_as_true(text: str, *, bound: bool) -> None:
    assert selected({NUMA: text}, HAMI).hints == ((("gpu", TypeHint(scope=Scope.NUMA_NODE)),) if bound else ())


TWO_MODES = replace(HAMI, selects=Selects(mode=MODE, given=("one", "two")))
ANY_MODE = replace(HAMI, selects=Selects(mode=MODE))


@pytest.mark.parametrize(
    ("dialect", "mode", "told"),
    [
        (HAMI, "hami-core", ""),
        (HAMI, "mps, hami-core", ""),
        (HAMI, "", ""),
        (HAMI, "mps", "mps: cards are not shared in this way here; remove it, or use hami-core"),
        (TWO_MODES, "two", ""),
        (TWO_MODES, "mig", "mig: cards are not shared in this way here; remove it, or use one"),
        (ANY_MODE, "mig", ""),
    ],
)
def test_a_way_of_sharing_cards_that_is_not_the_one_here_is_refused(dialect: Dialect, mode: str, told: str) -> None:
    problems = (Problem(f"metadata.annotations[{MODE}]", told),) if told else ()
    assert read_selection({MODE: mode}, (dialect,)).problems == problems


@pytest.mark.parametrize(
    ("text", "number"),
    [
        (",".join(map(str, range(64))), 64),
        (",".join(map(str, range(65))), 0),
        ("x" * 8192, 1),
        ("x" * 8193, 0),
        (",".join(["x", "y"] * 2048), 2),
    ],
    ids=["64 values", "65 values", "8192 characters", "8193 characters", "many of 2 values"],
)
def test_a_list_has_64_values_and_8192_characters_at_most(text: str, number: int) -> None:
    found = read_selection({IDS: text}, (HAMI,))
    told = Problem(f"metadata.annotations[{IDS}]", "must be a list of at most 64 values, separated by commas")
    assert found.problems == (() if number else (told,))
    ids = [len(one.values) for _, hint in found.hints if hint.selector for one in hint.selector.requirements]  # type: ignore[union-attr] # ids are no parts of names
    assert ids == [number] * bool(number)


def test_a_value_that_is_no_text_is_refused() -> None:
    assert len(read_selection({IDS: ["x"]}, (HAMI,)).problems) == 1


def test_a_selection_is_added_to_the_pods_own_hints_whose_scope_counts() -> None:
    own = Selector((of_ids("z"),))
    more = selected({IDS: "x", NUMA: "true"}, HAMI)
    both = Selector((of_ids("z"), of_ids("x")))
    rdma = ("rdma", TypeHint(scope=Scope.PCIE))
    assert with_selection((rdma, ("gpu", TypeHint(own))), more) == (
        ("gpu", TypeHint(both, scope=Scope.NUMA_NODE)),
        rdma,
    )
    assert with_selection((("gpu", TypeHint(own, scope=Scope.PCIE)),), more) == (
        ("gpu", TypeHint(both, scope=Scope.PCIE)),
    )
    assert with_selection((("gpu", TypeHint(own)),), selected({NUMA: "true"}, HAMI)) == (
        ("gpu", TypeHint(own, scope=Scope.NUMA_NODE)),
    )
    assert with_selection((("gpu", TypeHint()),), selected({NUMA: "true"}, HAMI)) == (
        ("gpu", TypeHint(scope=Scope.NUMA_NODE)),
    )
    assert with_selection((), more) == more.hints


# Which products' annotations are read


def test_the_products_whose_names_a_pod_uses_select_otherwise_those_that_it_states_otherwise_all() -> None:
    table = DeviceTypes(BUILT_IN.types, (*DIALECTS, VOLCANO), off=(HAMI,))
    plain, stated = pod(), pod(annotations={DIALECT: "hami; memory unit 1Mi"})
    assert selecting(plain, table, (OWN, VOLCANO)) == (VOLCANO,)
    assert selecting(stated, table, (OWN, VOLCANO)) == (VOLCANO,)
    assert selecting(stated, table, (OWN,)) == (HAMI,)
    assert selecting(plain, table, (OWN,)) == table.dialects
    assert selecting(pod(annotations={DIALECT: "gone"}), table, ()) == table.dialects


@pytest.mark.parametrize(
    "own", [None, '{"gpu":{"selector":{"matchLabels":{"a":"b"}}}}'], ids=["alone", "beside a hint"]
)
def test_what_annotations_select_is_part_of_what_a_pod_asks_for(own: str | None) -> None:
    annotations = {
        USE: "T4",
        "hami.io/gpu-scheduler-policy": "x",
        **({} if own is None else {DEVICE_ALLOCATE_HINT: own}),
    }
    obj = pod(container("a", limits={"koordinator.sh/gpu": 50}), annotations=annotations)
    table = DeviceTypes(BUILT_IN.types, (*DIALECTS, HAMI))
    reading = read_asks(obj, table)
    hint = reading.request.wishes.hint("gpu")
    assert hint is not None
    assert hint.selector is not None
    assert hint.selector.requirements[-1] == of_model("T4")
    assert len(hint.selector.requirements) == (1 if own is None else 2)
    assert reading.warnings == ("metadata.annotations[hami.io/gpu-scheduler-policy]: has no effect here",)
    assert [one.name for one in reading.dialects] == ["koordinator.sh", "hami"]
    assert read_asks(pod(container("a", limits={"koordinator.sh/gpu": 50})), table).request.wishes == NO_WISHES


@pytest.mark.parametrize(
    ("about", "depends"),
    [
        ({}, False),
        ({"labels": {"app": "x"}, "annotations": {"example.com/x": "y"}}, False),
        ({"labels": {ISOLATION_PROVIDER: "HAMi-core"}}, True),
        ({"labels": {"pod-group.scheduling.sigs.k8s.io": "x"}, "annotations": {"example.com/x": "y"}}, True),
        ({"labels": {"koordinator.sh/qosClass": "LSR"}}, True),
        ({"labels": {"app": "x"}, "annotations": {DEVICE_ALLOCATE_HINT: "{}"}}, True),
        ({"annotations": {USE: "T4"}}, True),
    ],
)
def test_a_request_that_labels_or_annotations_change_is_read_again(about: dict[str, Any], *, depends: bool) -> None:
    obj = pod(container(limits={"koordinator.sh/gpu": 50}), **about)
    assert asks_by_metadata(obj) is depends


# What a translated Pod records of them


def test_the_dialects_are_recorded_with_the_units_and_defaults_of_the_first() -> None:
    hami = replace(HAMI.with_unit(2**21), size=5 * 2**30, core=30)
    volcano = replace(VOLCANO, size=2**30, core=10)
    assert echo((OWN, hami, volcano)) == "hami, volcano; memory unit 2Mi; default memory 5Gi; default cores 30"
    assert echo((volcano, hami)) == "volcano, hami; memory unit 1Mi; default memory 1Gi; default cores 10"
    assert echo((HAMI,)) == "hami; memory unit 1Mi"
    assert echo((OWN,)) == echo(()) == ""


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("hami, volcano; memory unit 2Mi; default cores 30", ("hami", "volcano")),
        ("hami", ("hami",)),
        (" hami ,, volcano", ("hami", "volcano")),
        ("; memory unit 2Mi", ()),
        ("", ()),
        (1, ()),
        (None, ()),
    ],
)
def test_the_dialects_that_a_pod_records_are_read_again(text: object, names: tuple[str, ...]) -> None:
    assert echoed({"metadata": {"annotations": {DIALECT: text}}}) == names
    assert echoed({"metadata": {"annotations": None}}) == echoed({"metadata": None}) == echoed({}) == ()
