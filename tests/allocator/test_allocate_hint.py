"""The hint annotations of a Pod: what they mean, and every way in which they can be wrong."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import json_near, json_values

from allocator.vocabulary.asks import (
    ExclusiveLevel,
    Joint,
    Operator,
    PartitionSpec,
    Requirement,
    Scope,
    Selector,
    Strategy,
    TypeHint,
)
from allocator.vocabulary.outcome import Problem
from allocator.wire.allocatehint import (
    DEVICE_ALLOCATE_HINT,
    DEVICE_JOINT_ALLOCATE,
    GPU_PARTITION_SPEC,
    HINT_ANNOTATIONS,
    PodHints,
    read_hints,
)

TYPES = frozenset({"gpu", "rdma", "fpga"})
GIB = 2**30


def read(**texts: str) -> PodHints | tuple[Problem, ...]:
    names = {"hint": DEVICE_ALLOCATE_HINT, "joint": DEVICE_JOINT_ALLOCATE, "partition": GPU_PARTITION_SPEC}
    return read_hints({names[name]: text for name, text in texts.items()}, TYPES)


def is_in(key: str, *values: str) -> Requirement:
    return Requirement(key, Operator.IN, values)


HINTS: dict[str, tuple[str, tuple[tuple[str, TypeHint], ...]]] = {
    "nothing": ("{}", ()),
    "null": ("null", ()),
    "a type of nothing": ('{"gpu":{}}', (("gpu", TypeHint()),)),
    "a type of null": ('{"gpu":null}', ()),
    "fields left out": (
        '{"gpu":{"selector":null,"vfSelector":null,"allocateStrategy":"","requiredTopologyScope":"","exclusivePolicy":null}}',
        (("gpu", TypeHint()),),
    ),
    "scope Device": ('{"gpu":{"requiredTopologyScope":"Device"}}', (("gpu", TypeHint(scope=Scope.DEVICE)),)),
    "scope PCIe": ('{"gpu":{"requiredTopologyScope":"PCIe"}}', (("gpu", TypeHint(scope=Scope.PCIE)),)),
    "scope NUMANode": ('{"gpu":{"requiredTopologyScope":"NUMANode"}}', (("gpu", TypeHint(scope=Scope.NUMA_NODE)),)),
    "scope Node": ('{"gpu":{"requiredTopologyScope":"Node"}}', (("gpu", TypeHint(scope=Scope.NODE)),)),
    "a device by its PCI address": (
        '{"rdma":{"selector":{"matchLabels":{"koordgate.io/uuid":"0000:1f:00.0"}}}}',
        (("rdma", TypeHint(selector=Selector((is_in("koordgate.io/uuid", "0000:1f:00.0"),)))),),
    ),
    "alone on the device": (
        '{"rdma":{"exclusivePolicy":"DeviceLevel"}}',
        (("rdma", TypeHint(exclusive=ExclusiveLevel.DEVICE)),),
    ),
    "alone on the root": (
        '{"gpu":{"exclusivePolicy":"PCIeLevel"}}',
        (("gpu", TypeHint(exclusive=ExclusiveLevel.PCIE)),),
    ),
    "of all": ('{"rdma":{"allocateStrategy":"ApplyForAll"}}', (("rdma", TypeHint(strategy=Strategy.APPLY_FOR_ALL)),)),
    "of so many": (
        '{"fpga":{"allocateStrategy":"RequestsAsCount"}}',
        (("fpga", TypeHint(strategy=Strategy.REQUESTS_AS_COUNT)),),
    ),
    "virtual functions": ('{"rdma":{"vfSelector":{}}}', (("rdma", TypeHint(functions=Selector())),)),
    "labels": (
        '{"rdma":{"selector":{"matchLabels":{"type":"fast","example.com/a":""}}}}',
        (("rdma", TypeHint(Selector((is_in("example.com/a", ""), is_in("type", "fast"))))),),
    ),
    "expressions": (
        (
            '{"gpu":{"selector":{"matchLabels":{"a":"b"},"matchExpressions":['
            '{"key":"k","operator":"In","values":["x","y"]},{"key":"k","operator":"NotIn","values":["z"]},'
            '{"key":"m","operator":"Exists"},{"key":"n","operator":"DoesNotExist","values":[]}]}}}'
        ),
        (
            (
                "gpu",
                TypeHint(
                    Selector(
                        (
                            is_in("a", "b"),
                            is_in("k", "x", "y"),
                            Requirement("k", Operator.NOT_IN, ("z",)),
                            Requirement("m", Operator.EXISTS),
                            Requirement("n", Operator.DOES_NOT_EXIST),
                        )
                    )
                ),
            ),
        ),
    ),
    "several types, in the order of names": ('{"rdma":{},"gpu":{}}', (("gpu", TypeHint()), ("rdma", TypeHint()))),
}


@pytest.mark.parametrize(("text", "hints"), HINTS.values(), ids=HINTS)
def test_hints_are_read(text: str, hints: tuple[tuple[str, TypeHint], ...]) -> None:
    assert read(hint=text) == PodHints(hints)


JOINTS: dict[str, tuple[str, Joint]] = {
    "nothing": ("{}", Joint((), same_pcie=False)),
    "two types": ('{"deviceTypes":["gpu","rdma"]}', Joint(("gpu", "rdma"), same_pcie=False)),
    "the first type first": (
        '{"deviceTypes":["rdma","gpu"],"requiredScope":""}',
        Joint(("rdma", "gpu"), same_pcie=False),
    ),
    "same PCIe": ('{"deviceTypes":["gpu","rdma"],"requiredScope":"SamePCIe"}', Joint(("gpu", "rdma"), same_pcie=True)),
}


@pytest.mark.parametrize(("text", "joint"), JOINTS.values(), ids=JOINTS)
def test_joint_allocation_is_read(text: str, joint: Joint) -> None:
    assert read(joint=text) == PodHints(joint=joint)


SPECS: dict[str, tuple[str, PartitionSpec]] = {
    "its mere presence": ("{}", PartitionSpec()),
    "best effort": ('{"allocatePolicy":"BestEffort"}', PartitionSpec()),
    "restricted": ('{"allocatePolicy":"Restricted"}', PartitionSpec(restricted=True)),
    "bandwidth": ('{"ringBusBandwidth":"400Gi"}', PartitionSpec(ring_bandwidth=400 * GIB)),
    "bandwidth as a number": ('{"ringBusBandwidth":1000}', PartitionSpec(ring_bandwidth=1000)),
    "both": ('{"allocatePolicy":"Restricted","ringBusBandwidth":"1G"}', PartitionSpec(True, 10**9)),
}


@pytest.mark.parametrize(("text", "spec"), SPECS.values(), ids=SPECS)
def test_partition_specs_are_read(text: str, spec: PartitionSpec) -> None:
    assert read(partition=text) == PodHints(partition=spec)


def test_what_is_read_can_be_a_key() -> None:
    texts = {"hint": HINTS["expressions"][0], "joint": JOINTS["same PCIe"][0], "partition": SPECS["both"][0]}
    assert hash(read(**texts)) == hash(read(**texts))


DEEP = "[" * 60_000

# annotation and the path below it, its text, the message

WRONG: dict[str, tuple[str, str, str]] = {
    "empty": ("hint", "", "must be a JSON object"),
    "not JSON": ("hint", "{", "must be a JSON object"),
    "deep": ("joint", DEEP, "must be a JSON object"),
    "a list": ("partition", "[]", "must be a JSON object"),
    "text": ("partition", '"Restricted"', "must be a JSON object"),
    "too long": ("hint", "{}" + " " * 2**16, "more than the 64 KiB that are read"),
    "a key twice": ("hint", '{"gpu":{},"gpu":{"exclusivePolicy":"DeviceLevel"}}', "a key occurs twice"),
    "a number without end": ("partition", '{"ringBusBandwidth":' + "9" * 5000 + "}", "must be a JSON object"),
    "an unknown type": ("hint", '{"gpus":{}}', "unknown key 'gpus'; use fpga or gpu or rdma"),
    "a type of text": ("hint.gpu", '{"gpu":"all"}', "must be a JSON object"),
    "an unknown key": (
        "hint.gpu",
        '{"gpu":{"topologyScope":"PCIe"}}',
        "unknown key 'topologyScope'; use selector or vfSelector or allocateStrategy or requiredTopologyScope",
    ),
    "an unknown scope": (
        "hint.gpu.requiredTopologyScope",
        '{"gpu":{"requiredTopologyScope":"NUMA"}}',
        "'NUMA' is not allowed; use Device or PCIe or NUMANode or Node",
    ),
    "a scope of another kind": (
        "hint.gpu.requiredTopologyScope",
        '{"gpu":{"requiredTopologyScope":3}}',
        "what is written here is not allowed; use Device",
    ),
    "an unknown strategy": (
        "hint.rdma.allocateStrategy",
        '{"rdma":{"allocateStrategy":"applyforall"}}',
        "'applyforall' is not allowed; use ApplyForAll or RequestsAsCount",
    ),
    "an unknown policy": (
        "hint.rdma.exclusivePolicy",
        '{"rdma":{"exclusivePolicy":"NodeLevel"}}',
        "'NodeLevel' is not allowed; use DeviceLevel or PCIeLevel",
    ),
    "a selector of text": ("hint.gpu.selector", '{"gpu":{"selector":"a=b"}}', "must be a JSON object"),
    "a selector without matchLabels": (
        "hint.gpu.selector",
        '{"gpu":{"selector":{"a":"b"}}}',
        "unknown key 'a'; use matchLabels or matchExpressions",
    ),
    "a key that is none": (
        "hint.gpu.vfSelector.matchLabels",
        '{"gpu":{"vfSelector":{"matchLabels":{"a b":"c"}}}}',
        "'a b'",
    ),
    "a value that is none": (
        "hint.gpu.selector.matchLabels",
        '{"gpu":{"selector":{"matchLabels":{"a":"b c"}}}}',
        "'b c'",
    ),
    "a value of another kind": (
        "hint.gpu.selector.matchLabels",
        '{"gpu":{"selector":{"matchLabels":{"a":true}}}}',
        "not a value",
    ),
    "expressions that are an object": (
        "hint.gpu.selector.matchExpressions",
        '{"gpu":{"selector":{"matchExpressions":{}}}}',
        "must be a list of at most 64",
    ),
    "an unknown operator": (
        "hint.gpu.selector.matchExpressions[0].operator",
        '{"gpu":{"selector":{"matchExpressions":[{"key":"a","operator":"Gt","values":["1"]}]}}}',
        "'Gt' is not allowed; use In or NotIn or Exists or DoesNotExist",
    ),
    "no operator": (
        "hint.gpu.selector.matchExpressions[0].operator",
        '{"gpu":{"selector":{"matchExpressions":[{"key":"a"}]}}}',
        "is missing; use In",
    ),
    "no key": (
        "hint.gpu.selector.matchExpressions[0].key",
        '{"gpu":{"selector":{"matchExpressions":[{"operator":"Exists"}]}}}',
        "nothing is not a key of a label",
    ),
    "In of nothing": (
        "hint.gpu.selector.matchExpressions[0].values",
        '{"gpu":{"selector":{"matchExpressions":[{"key":"a","operator":"In"}]}}}',
        "must be there for In and NotIn",
    ),
    "Exists of something": (
        "hint.gpu.selector.matchExpressions[0].values",
        '{"gpu":{"selector":{"matchExpressions":[{"key":"a","operator":"Exists","values":["b"]}]}}}',
        "not for Exists",
    ),
    "joint: an unknown key": ("joint", '{"types":["gpu"]}', "unknown key 'types'; use deviceTypes or requiredScope"),
    "joint: an unknown type": ("joint.deviceTypes", '{"deviceTypes":["gpu","nic"]}', "'nic' is not allowed; use fpga"),
    "joint: no type": ("joint.deviceTypes", '{"deviceTypes":["gpu",""]}', "'' is not allowed; use fpga or gpu or rdma"),
    "joint: a type of a list": (
        "joint.deviceTypes",
        '{"deviceTypes":[["gpu"]]}',
        "what is written here is not allowed",
    ),
    "joint: a type twice": ("joint.deviceTypes", '{"deviceTypes":["gpu","gpu"]}', "must name each type once"),
    "joint: types of text": ("joint.deviceTypes", '{"deviceTypes":"gpu,rdma"}', "must be a list"),
    "joint: an unknown scope": (
        "joint.requiredScope",
        '{"requiredScope":"SameNUMA"}',
        "'SameNUMA' is not allowed; use SamePCIe",
    ),
    "partition: an unknown key": (
        "partition",
        '{"policy":"Restricted"}',
        "unknown key 'policy'; use allocatePolicy or",
    ),
    "partition: an unknown policy": (
        "partition.allocatePolicy",
        '{"allocatePolicy":"Honor"}',
        "'Honor' is not allowed; use Restricted or BestEffort",
    ),
    "partition: a bandwidth of nonsense": (
        "partition.ringBusBandwidth",
        '{"ringBusBandwidth":"fast"}',
        "'fast' is not a",
    ),
    "partition: a negative bandwidth": (
        "partition.ringBusBandwidth",
        '{"ringBusBandwidth":"-1Gi"}',
        "written as 400Gi",
    ),
    "partition: true": ("partition.ringBusBandwidth", '{"ringBusBandwidth":true}', "True is not a"),
}
NAMES = {"hint": DEVICE_ALLOCATE_HINT, "joint": DEVICE_JOINT_ALLOCATE, "partition": GPU_PARTITION_SPEC}


@pytest.mark.parametrize(("where", "text", "message"), WRONG.values(), ids=WRONG)
def test_a_hint_that_makes_no_sense_is_refused_by_name(where: str, text: str, message: str) -> None:
    which, dot, below = where.partition(".")
    problems = read(**{which: text})
    assert isinstance(problems, tuple)
    assert [problem.path for problem in problems] == [f"metadata.annotations[{NAMES[which]}]{dot}{below}"]
    assert message in problems[0].message


def test_all_mistakes_are_named_at_once() -> None:
    problems = read(
        hint='{"gpu":{"scope":1,"exclusivePolicy":"x"},"nic":{}}', joint='{"requiredScope":"y"}', partition="[]"
    )
    assert isinstance(problems, tuple)
    assert [problem.path.removeprefix("metadata.annotations") for problem in problems] == [
        f"[{GPU_PARTITION_SPEC}]",
        f"[{DEVICE_ALLOCATE_HINT}]",
        f"[{DEVICE_ALLOCATE_HINT}].gpu",
        f"[{DEVICE_ALLOCATE_HINT}].gpu.exclusivePolicy",
        f"[{DEVICE_JOINT_ALLOCATE}].requiredScope",
    ]


LONG: dict[str, str] = {
    "keys": json.dumps({"x" * 1000 + str(index): {} for index in range(50)}),
    "labels": json.dumps({"gpu": {"selector": {"matchLabels": {f"a{index}": "b" for index in range(65)}}}}),
    "values": json.dumps({"gpu": {"selector": {"matchExpressions": [{"key": "a", "values": ["b"] * 65}] * 64}}}),
    "a key of dots": json.dumps({"gpu": {"selector": {"matchLabels": {"a." * 20_000 + "/": "b"}}}}),
    "a value": json.dumps({"gpu": {"selector": {"matchLabels": {"a": "b" * 60_000}}}}),
    "half a character": json.dumps({"\ud800": {}, "gpu": {"selector": {"matchLabels": {"\ud800": "\udfff"}}}}),
}


@pytest.mark.parametrize("text", LONG.values(), ids=LONG)
def test_what_is_said_about_hostile_hints_is_short_and_plain_text(text: str) -> None:
    problems = read(hint=text)
    assert isinstance(problems, tuple)
    assert 0 < len(problems) <= 16
    assert all(len(str(problem)) < 400 for problem in problems)
    assert all(str(problem).encode() for problem in problems)


def test_an_annotation_that_is_no_text_is_refused() -> None:
    assert isinstance(read_hints({GPU_PARTITION_SPEC: 7}, TYPES), tuple)


# Selectors

LABELS = {"type": "fast", "rack": ""}

MATCHES: dict[str, tuple[Selector, bool]] = {
    "everything": (Selector(), True),
    "In": (Selector((is_in("type", "slow", "fast"),)), True),
    "In, another value": (Selector((is_in("type", "slow"),)), False),
    "In, no such label": (Selector((is_in("tier", "fast"),)), False),
    "In, an empty value": (Selector((is_in("rack", ""),)), True),
    "NotIn": (Selector((Requirement("type", Operator.NOT_IN, ("slow",)),)), True),
    "NotIn, that value": (Selector((Requirement("type", Operator.NOT_IN, ("slow", "fast")),)), False),
    "NotIn, no such label": (Selector((Requirement("tier", Operator.NOT_IN, ("fast",)),)), True),
    "Exists": (Selector((Requirement("rack", Operator.EXISTS),)), True),
    "Exists, no such label": (Selector((Requirement("tier", Operator.EXISTS),)), False),
    "DoesNotExist": (Selector((Requirement("tier", Operator.DOES_NOT_EXIST),)), True),
    "DoesNotExist, there": (Selector((Requirement("rack", Operator.DOES_NOT_EXIST),)), False),
    "all must hold": (Selector((is_in("type", "fast"), Requirement("tier", Operator.EXISTS))), False),
}


@pytest.mark.parametrize(("selector", "selected"), MATCHES.values(), ids=MATCHES)
def test_selectors_select_as_in_kubernetes(selector: Selector, *, selected: bool) -> None:
    assert selector.matches(LABELS) is selected


# Anything

KEYS = [
    "gpu",
    "rdma",
    "selector",
    "vfSelector",
    "matchLabels",
    "matchExpressions",
    "key",
    "operator",
    "values",
    "allocateStrategy",
    "requiredTopologyScope",
    "exclusivePolicy",
    "deviceTypes",
    "requiredScope",
    "allocatePolicy",
    "ringBusBandwidth",
]
LEAVES = ["gpu", "PCIe", "In", "Exists", "a", "", None, 0, True, ["a"], "SamePCIe", "Restricted", "400Gi", {"a": "b"}]


@given(st.dictionaries(st.sampled_from(HINT_ANNOTATIONS), json_near(KEYS, LEAVES).map(json.dumps) | json_values()))
def test_any_annotation_is_read_or_refused(annotations: dict[str, Any]) -> None:
    found = read_hints(annotations, TYPES)
    if isinstance(found, PodHints):
        assert hash(found) == hash(read_hints(annotations, TYPES))
        assert {kind for kind, _ in found.hints} <= TYPES
    else:
        assert found
        assert all(problem.path.startswith("metadata.annotations[") for problem in found)
        assert all(str(problem).encode() for problem in found)


@pytest.mark.parametrize(
    ("key", "longest"), [("koordgate.io/uuid", 253), ("type", 63)], ids=["the id of a device", "a label"]
)
def test_what_is_selected_has_a_longest_value(key: str, longest: int) -> None:
    def selecting(value: str) -> Any:
        return read(hint=json.dumps({"rdma": {"selector": {"matchLabels": {key: value}}}}))

    for value in ("x", "x" * longest):
        assert isinstance(selecting(value), PodHints)
    (problem,) = selecting("x" * (longest + 1))
    assert "is not a value of a label" in problem.message
