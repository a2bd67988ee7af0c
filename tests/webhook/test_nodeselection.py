"""The nodes that a Pod's own selection allows: kube-scheduler's NodeAffinity, case by case."""

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from webhook.view.nodeselection import may_land, selected, selection_of, selects, simple, tolerated

LABELS = {"zone": "a", "gpu": "t4", "cards": "4", "negative": "-3", "empty": "", "int64": "-9223372036854775808"}
Raw = dict[str, Any]


def required(*terms: Raw) -> Raw:
    wanted = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}
    return {"affinity": {"nodeAffinity": wanted}}


def expressions(*parts: tuple[str, str, list[str] | None]) -> Raw:
    return {"matchExpressions": [_expression(*part) for part in parts]}


def _expression(key: str, operator: str, values: list[str] | None) -> Raw:
    return {"key": key, "operator": operator, **({} if values is None else {"values": values})}


@pytest.mark.parametrize(
    ("spec", "lands"),
    [
        ({}, True),
        ({"nodeSelector": None, "affinity": None}, True),
        ({"nodeSelector": {}}, True),
        ({"nodeSelector": {"zone": "a"}}, True),
        ({"nodeSelector": {"zone": "a", "gpu": "t4"}}, True),
        ({"nodeSelector": {"zone": "b"}}, False),
        ({"nodeSelector": {"zone": "a", "gpu": "l4"}}, False),
        ({"nodeSelector": {"absent": ""}}, False),
        ({"nodeSelector": {"empty": ""}}, True),
        ({"affinity": {"nodeAffinity": {}}}, True),
        ({"affinity": {"podAffinity": {"x": 1}}}, True),
        ({"affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1}]}}}, True),
    ],
)
def test_node_selectors(spec: Raw, *, lands: bool) -> None:
    assert may_land(spec, "n1", LABELS) is lands


@pytest.mark.parametrize(
    ("key", "operator", "values", "lands"),
    [
        ("zone", "In", ["a", "b"], True),
        ("zone", "In", ["b"], False),
        ("absent", "In", ["a"], False),
        ("zone", "NotIn", ["a", "b"], False),
        ("zone", "NotIn", ["b"], True),
        ("absent", "NotIn", ["a"], True),
        ("zone", "Exists", None, True),
        ("empty", "Exists", None, True),
        ("absent", "Exists", None, False),
        ("zone", "DoesNotExist", None, False),
        ("absent", "DoesNotExist", None, True),
        ("cards", "Gt", ["3"], True),
        ("cards", "Gt", ["4"], False),
        ("cards", "Lt", ["5"], True),
        ("cards", "Lt", ["4"], False),
        ("cards", "Lt", ["10"], True),  # as numbers, not as texts
        ("negative", "Lt", ["-2"], True),
        ("negative", "Gt", ["-4"], True),
        ("zone", "Gt", ["3"], False),
        ("absent", "Lt", ["3"], False),
        ("empty", "Lt", ["3"], False),
        ("cards", "Gt", [], False),
        ("cards", "Gt", ["1", "2"], False),
        ("cards", "Gt", ["many"], False),
        ("cards", "Gt", ["³"], False),
        ("cards", "Lt", ["9" * 5000], False),
        ("cards", "Lt", ["9" * 20], True),
        ("cards", "Lt", ["9" * 21], False),
        ("int64", "Lt", ["-9223372036854775807"], True),
        ("int64", "Gt", ["-9223372036854775808"], False),
        ("cards", "Gt", ["-4"], True),
        ("cards", "Gt", ["--4"], False),
        ("zone", "Near", ["a"], False),
    ],
)
def test_operators(key: str, operator: str, values: list[str] | None, *, lands: bool) -> None:
    assert may_land(required(expressions((key, operator, values))), "n1", LABELS) is lands


def test_terms_are_alternatives_and_their_parts_are_all_needed() -> None:
    good, bad = ("zone", "In", ["a"]), ("zone", "In", ["b"])
    assert may_land(required(expressions(bad), expressions(good)), "n1", LABELS)
    assert not may_land(required(expressions(good, bad)), "n1", LABELS)
    assert may_land(required(expressions(good, ("gpu", "Exists", None))), "n1", LABELS)


def test_selector_and_affinity_are_both_needed() -> None:
    term = required(expressions(("zone", "In", ["a"])))
    assert may_land({"nodeSelector": {"gpu": "t4"}, **term}, "n1", LABELS)
    assert not may_land({"nodeSelector": {"gpu": "l4"}, **term}, "n1", LABELS)


@pytest.mark.parametrize("spec", [required(), required({}), required({"matchExpressions": []}, {"matchFields": None})])
def test_no_term_or_an_empty_one_selects_nothing(spec: Raw) -> None:
    assert not may_land(spec, "n1", LABELS)


def test_a_node_may_be_selected_by_its_name() -> None:
    for name, lands in (("n1", True), ("n2", False)):
        term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [name]}]}
        assert may_land(required(term), "n1", LABELS) is lands
        both = {**term, **expressions(("zone", "In", ["b"]))}
        assert not may_land(required(both), "n1", LABELS)


TAINT = {"key": "gpu", "value": "m", "effect": "NoSchedule"}


@pytest.mark.parametrize(
    ("toleration", "covers"),
    [
        ({"key": "gpu", "value": "m", "effect": "NoSchedule"}, True),
        ({"key": "gpu", "value": "m"}, True),
        ({"key": "gpu", "operator": "Equal", "value": "m"}, True),
        ({"key": "gpu", "operator": "Exists"}, True),
        ({"operator": "Exists"}, True),
        ({"operator": "Exists", "effect": "NoSchedule"}, True),
        # what differs comes before or after it in the alphabet
        ({"operator": "Exists", "effect": "NoExecute"}, False),
        ({"operator": "Exists", "effect": "PreferNoSchedule"}, False),
        ({"key": "cpu", "operator": "Exists"}, False),
        ({"key": "rdma", "operator": "Exists"}, False),
        ({"key": "gpu", "value": "a"}, False),
        ({"key": "gpu", "value": "z"}, False),
        ({"key": "gpu"}, False),
        ({"value": "m"}, False),  # a toleration of all keys must be `Exists`
        ({"key": "gpu", "operator": "Always", "value": "m"}, False),
        ({"key": "gpu", "operator": "Near", "value": "m"}, False),
        ({}, False),
    ],
)
def test_a_toleration_covers_a_taint_by_effect_key_and_value(toleration: Raw, *, covers: bool) -> None:
    other = {"key": "other", "operator": "Exists"}
    assert tolerated(TAINT, [other, "no object", toleration, other]) is covers
    assert tolerated(TAINT, (toleration,)) is covers
    assert not tolerated(TAINT, toleration)  # not a list


def test_a_taint_without_a_value_is_covered_by_an_empty_one() -> None:
    taint = {"key": "gpu", "effect": "NoExecute"}
    assert tolerated(taint, [{"key": "cpu"}, {"key": "gpu"}])
    assert tolerated(taint, [{"key": "cpu"}, {"key": "gpu", "value": ""}])
    assert not tolerated(taint, [{"key": "cpu"}, {"key": "gpu", "value": "a"}])


def test_a_daemonset_pod_selects_and_a_plain_one_does_not() -> None:
    assert selects(required({}))
    assert selects({"nodeSelector": {"a": "b"}})
    assert not selects({"nodeSelector": {}, "affinity": {"podAntiAffinity": {}}})
    assert not selects({})


PREFERS: Raw = {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1}]}


@pytest.mark.parametrize(
    ("spec", "is_simple"),
    [
        ({}, True),
        ({"containers": [], "priority": 7}, True),
        ({"nodeSelector": {"zone": "a"}}, True),
        ({"tolerations": [{"operator": "Exists"}]}, True),
        (required(expressions(("zone", "In", ["a"]))), True),
        ({"affinity": {"nodeAffinity": {}}}, True),
        ({"affinity": {"nodeAffinity": None}}, True),
        ({"affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}}}, True),
        ({"topologySpreadConstraints": [], "resourceClaims": None, "volumes": []}, True),
        ({"volumes": [{"name": "v", "emptyDir": {}}, {"name": "w", "configMap": {"name": "c"}}]}, True),
        ({"affinity": {"nodeAffinity": PREFERS}}, False),
        ({"affinity": {"podAffinity": PREFERS}}, False),
        ({"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{}]}}}, False),
        ({"affinity": {"nodeAffinity": {}, "podAffinity": PREFERS}}, False),
        ({"topologySpreadConstraints": [{"maxSkew": 1}]}, False),
        ({"resourceClaims": [{"name": "c"}]}, False),
        ({"volumes": [{"name": "v", "emptyDir": {}}, {"persistentVolumeClaim": {"claimName": "c"}}]}, False),
        ({"volumes": [{"name": "v", "ephemeral": {}}, {"name": "w", "emptyDir": {}}]}, False),
    ],
)
def test_selectors_and_tolerations_are_simple_and_all_else_that_steers_is_not(spec: Raw, *, is_simple: bool) -> None:
    assert simple(orjson.loads(selection_of(spec))) is is_simple


def test_a_selection_is_the_same_text_in_any_order_and_differs_by_what_steers() -> None:
    tolerations = [{"key": "gpu", "operator": "Exists"}]
    one = {"nodeSelector": {"a": "1", "b": "2"}, "tolerations": tolerations, "containers": [1]}
    other = {"containers": [2], "tolerations": tolerations, "nodeSelector": {"b": "2", "a": "1"}}
    assert selection_of(one) == selection_of(other)
    more: list[Raw] = [{"topologySpreadConstraints": [{}]}, {"resourceClaims": [{}]}, {"volumes": [{"ephemeral": {}}]}]
    assert len({selection_of({**one, **part}) for part in ({}, {"nodeSelector": {"a": "1"}}, *more)}) == 5
    assert may_land(orjson.loads(selection_of(one)), "n1", {"a": "1", "b": "2"})


NAMES = st.sampled_from([*LABELS, "absent"])
VALUES = st.lists(st.sampled_from(["a", "b", "t4", "3", "4", "5", ""]), max_size=3)


@given(NAMES, VALUES)
def test_an_operator_and_its_opposite_never_agree(key: str, values: list[str]) -> None:
    for one, opposite in (("In", "NotIn"), ("Exists", "DoesNotExist")):
        said = may_land(required(expressions((key, one, values))), "n1", LABELS)
        assert said is not may_land(required(expressions((key, opposite, values))), "n1", LABELS)


NODES = {f"n{number}": {"gpu": "t4" if number % 2 else "l4", "host": f"n{number}"} for number in range(40)}
SELECTIONS: dict[str, Raw] = {
    "nothing": {},
    "a label": {"nodeSelector": {"gpu": "t4"}},
    "a label that no node has": {"nodeSelector": {"gpu": "none"}},
    "a term": required(expressions(("gpu", "In", ["l4"]))),
    "two terms": required(expressions(("gpu", "In", ["l4"])), expressions(("host", "In", ["n1"]))),
    "no terms": required(),
    "a label and a term": {"nodeSelector": {"gpu": "t4"}, **required(expressions(("host", "NotIn", ["n1"])))},
    "names": required({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n7"]}]}),
    "a key that is absent": required(expressions(("zone", "DoesNotExist", None))),
}


@pytest.mark.parametrize("name", SELECTIONS)
def test_all_nodes_together_are_selected_as_each_by_itself(name: str) -> None:
    spec = SELECTIONS[name]
    assert selected(spec, NODES) == [node for node, labels in NODES.items() if may_land(spec, node, labels)]


LARGE = {f"n{number}": {"gpu": "t4", "host": f"n{number}"} for number in range(5000)}
LONG: dict[str, Raw] = {
    "a thousand terms": required(*(expressions(("host", "In", [f"m{at}"])) for at in range(1000))),
    "a thousand labels": {"nodeSelector": {f"l{at}": "x" for at in range(1000)}},
    "a million values": required(expressions(("host", "NotIn", [f"m{at}" for at in range(1_000_000)]))),
    "a thousand names": required(
        *({"matchFields": [{"key": "metadata.name", "operator": "In", "values": [f"m{at}"]}]} for at in range(1000))
    ),
}


@pytest.mark.parametrize("name", LONG)
def test_a_selection_that_is_too_long_for_so_many_nodes_is_not_looked_at(name: str) -> None:
    assert selected(LONG[name], LARGE) is None


def test_a_thousand_terms_are_looked_at_where_few_nodes_differ_in_what_they_name() -> None:
    spec = required(*(expressions(("gpu", "In", [f"a{at}"])) for at in range(999)), expressions(("gpu", "In", ["t4"])))
    assert selected(spec, LARGE) == list(LARGE)


def test_a_usual_selection_is_looked_at_on_five_thousand_nodes() -> None:
    spec = {
        "nodeSelector": {"gpu": "t4"},
        **required(expressions(("host", "In", ["n7", "n9"]), ("gpu", "Exists", None))),
    }
    assert selected(spec, LARGE) == ["n7", "n9"]


DIFFERENT = {f"n{number}": {"host": f"n{number}"} for number in range(10)}


@pytest.mark.parametrize(
    ("labels", "terms", "values", "looked_at"),
    [
        pytest.param(1, 1, 16 * 1998 - 1, True, id="1 + 1 + 1 + 1997 looks at each of ten nodes"),
        pytest.param(1, 1, 16 * 1998, False, id="one look more at each"),
        pytest.param(0, 1, 16 * 1998, True, id="no label, and 1 + 1 + 1998 looks"),
        pytest.param(0, 1, 16 * 1999, False, id="no label, and one look more"),
        pytest.param(0, 2, 16 * 998, True, id="two terms, each with 1 + 1 + 998 looks"),
        pytest.param(1, 2, 16 * 998, False, id="two terms, and a label"),
        pytest.param(0, 1000, 0, True, id="a thousand terms without values"),
        pytest.param(1, 1000, 0, False, id="a thousand terms, and a label"),
        pytest.param(2000, 0, 0, True, id="two thousand labels"),
        pytest.param(2001, 0, 0, False, id="a label more"),
    ],
)
def test_terms_are_looked_at_twenty_thousand_times(labels: int, terms: int, values: int, *, looked_at: bool) -> None:
    """A term, an expression and each sixteen values of it are one look at each node that differs."""
    one = expressions(("host", "NotIn", [f"m{at}" for at in range(values)]))
    spec = {"nodeSelector": {"host" if not at else f"l{at}": "none" for at in range(labels)}}
    spec |= required(*[one] * terms) if terms else {}
    found = selected(spec, DIFFERENT)
    assert found == (([] if labels else list(DIFFERENT)) if looked_at else None)


@pytest.mark.parametrize(
    ("keys", "nodes", "compared"), [(10, 10_000, True), (11, 9091, False), (1, 100_000, True), (1, 100_001, False)]
)
def test_a_hundred_thousand_labels_of_nodes_are_compared(keys: int, nodes: int, *, compared: bool) -> None:
    spec = {"nodeSelector": {f"l{at}": "x" for at in range(keys)}}
    assert (selected(spec, {f"n{at}": {} for at in range(nodes)}) == []) is compared
