"""Which gang a Pod belongs to, and how large the gang is, in every form that states it."""

from typing import Any

import pytest
from builders import container, pod
from hypothesis import given, settings
from hypothesis import strategies as st
from trials import examples

from allocator.request.pod import asks_by_metadata, read_request
from allocator.vocabulary.asks import MAX_MEMBERS, UNSTATED, GangSize, largest
from allocator.vocabulary.names import GANG_TOGETHER
from allocator.wire.gang import (
    GANG_ANNOTATION,
    GANG_MIN_AVAILABLE,
    GANG_TOTAL_NUMBER,
    PodGroupError,
    is_all_or_nothing,
    read_gang,
    read_pod_group,
    stated_size,
)

GPU = "kubernetes.io/gpu"
PATH = f"metadata.annotations[{GANG_MIN_AVAILABLE}]"


READ: dict[str, tuple[str, str, str]] = {
    "a name": ("a", "team/a", ""),
    "its own namespace": ("team/a", "team/a", ""),
    "another namespace": ("other/a", "", ""),
    "another namespace, after its own": ("zoo/a", "", ""),
    "none": ("", "", ""),
    "three parts": ("team/a/b", "", "'team/a/b'"),
    "a slash": ("/", "", "'/'"),
    "no name": ("team/", "", "'team/'"),
    "no namespace": ("/a", "", "'/a'"),
    "long": ("/" * 90, "", f"'{'/' * 80}'"),
}


@pytest.mark.parametrize(("name", "gang", "wrong"), READ.values(), ids=READ)
def test_a_pod_belongs_to_a_gang_of_its_own_namespace(name: str, gang: str, wrong: str) -> None:
    made = pod(container(limits={GPU: 50}), annotations={GANG_ANNOTATION: name, GANG_MIN_AVAILABLE: "3"})
    made["metadata"]["namespace"] = "team"
    found = read_gang(made)
    assert (found.name, found.size, found.all_or_nothing) == (gang, GangSize(3, 3) if gang else UNSTATED, False)
    said = f"metadata.annotations[{GANG_ANNOTATION}]: {wrong} is no name of a gang; write NAME, or NAMESPACE/NAME"
    assert [str(problem) for problem in found.problems] == ([said] if wrong else [])
    reading = read_request(made, {})
    assert reading.request.wishes.gang == gang
    assert reading.problems == found.problems


STATED: dict[str, tuple[dict[str, str], GangSize, int]] = {
    "nothing": ({}, UNSTATED, 0),
    "the least number": ({GANG_MIN_AVAILABLE: "4"}, GangSize(4, 4), 0),
    "both": ({GANG_MIN_AVAILABLE: "4", GANG_TOTAL_NUMBER: "6"}, GangSize(4, 6), 0),
    "the total alone": ({GANG_TOTAL_NUMBER: "6"}, GangSize(0, 6), 0),
    "a total below the least": ({GANG_MIN_AVAILABLE: "4", GANG_TOTAL_NUMBER: "2"}, GangSize(4, 4), 0),
    "empty": ({GANG_MIN_AVAILABLE: "", GANG_TOTAL_NUMBER: ""}, UNSTATED, 0),
    "all that count": ({GANG_MIN_AVAILABLE: "1000"}, GangSize(1000, 1000), 0),
    "more than counts": ({GANG_MIN_AVAILABLE: "1001"}, GangSize(1000, 1000), 0),
    "zero": ({GANG_MIN_AVAILABLE: "0"}, UNSTATED, 1),
    "negative": ({GANG_MIN_AVAILABLE: "-1", GANG_TOTAL_NUMBER: "2"}, GangSize(0, 2), 1),
    "a fraction": ({GANG_MIN_AVAILABLE: "1.5"}, UNSTATED, 1),
    "no number, twice": ({GANG_MIN_AVAILABLE: "x", GANG_TOTAL_NUMBER: "٣"}, UNSTATED, 2),
    "eleven digits": ({GANG_MIN_AVAILABLE: "10000000000"}, GangSize(MAX_MEMBERS, MAX_MEMBERS), 0),
    "endless": ({GANG_MIN_AVAILABLE: "9" * 5000}, GangSize(MAX_MEMBERS, MAX_MEMBERS), 0),
    "many zeros": ({GANG_MIN_AVAILABLE: "0" * 5000 + "4"}, GangSize(4, 4), 0),
    "zeros alone": ({GANG_MIN_AVAILABLE: "000"}, UNSTATED, 1),
}


@pytest.mark.parametrize(("annotations", "size", "wrong"), STATED.values(), ids=STATED)
def test_annotations_state_a_size(annotations: dict[str, str], size: GangSize, wrong: int) -> None:
    found, problems = stated_size(annotations)
    assert (found, len(problems)) == (size, wrong)


def test_a_wrong_size_is_a_problem_of_a_pod_that_names_a_gang() -> None:
    wrong = {GANG_MIN_AVAILABLE: "four"}
    asked = container(limits={GPU: 50})
    reading = read_request(pod(asked, annotations={GANG_ANNOTATION: "g", **wrong}), {})
    assert [str(problem) for problem in reading.problems] == [
        f"{PATH}: 'four' is no number of Pods; write a whole number from 1 on"
    ]
    assert not read_request(pod(asked, annotations=wrong), {}).problems


def test_a_request_knows_the_size_that_its_pod_states() -> None:
    stated = {GANG_MIN_AVAILABLE: "3", GANG_TOTAL_NUMBER: "5"}
    made = pod(container(limits={GPU: 50}), annotations={GANG_ANNOTATION: "g", **stated})
    assert read_request(made, {}).request.wishes.size == GangSize(3, 5)
    for key in stated:  # which may change while the Pod waits
        assert asks_by_metadata(pod(container(), annotations={key: "1"}))


def plugin(count: Any, **annotations: str) -> dict[str, Any]:
    said = {key.replace("_", "-").replace("total", GANG_TOTAL_NUMBER): text for key, text in annotations.items()}
    return {"metadata": {"name": "g", "annotations": said}, "spec": {"minMember": count}}


def native(policy: Any) -> dict[str, Any]:
    return {"metadata": {"name": "g"}, "spec": {"schedulingPolicy": policy}}


GROUPS: dict[str, tuple[dict[str, Any], GangSize | str]] = {
    "of scheduler-plugins": (plugin(4), GangSize(4, 4)),
    "of one Pod": (plugin(1), GangSize(1, 1)),
    "with Koordinator's total": (plugin(4, total="6"), GangSize(4, 6)),
    "with a smaller total": (plugin(4, total="2"), GangSize(4, 4)),
    "more than counts": (plugin(2**31 - 1), GangSize(MAX_MEMBERS, MAX_MEMBERS)),
    "of Kubernetes": (native({"gang": {"minCount": 4}}), GangSize(4, 4)),
    "of Kubernetes, and no gang": (native({"basic": {}}), UNSTATED),
    "no number": (plugin("4"), "spec.minMember: 4 is no number of Pods"),
    "true is no number": (plugin(count=True), "spec.minMember: True is no number of Pods"),
    "zero": (plugin(0), "spec.minMember: 0 is no number of Pods"),
    "nothing": ({"metadata": {"name": "g"}}, "spec.minMember: None is no number of Pods"),
    "a spec of no form": ({"metadata": {}, "spec": [1]}, "spec.minMember: None is no number of Pods"),
    "of Kubernetes, without a number": (native({"gang": {}}), "spec.schedulingPolicy.gang.minCount: None is no number"),
    "of Kubernetes, of no form": (native({"gang": 4}), UNSTATED),
    "a wrong total": (plugin(4, total="x"), f"metadata.annotations[{GANG_TOTAL_NUMBER}]: 'x' is no number of Pods"),
}


@pytest.mark.parametrize(("obj", "expected"), GROUPS.values(), ids=GROUPS)
def test_pod_groups_state_a_size(obj: dict[str, Any], expected: GangSize | str) -> None:
    if isinstance(expected, str):
        with pytest.raises(PodGroupError) as caught:
            read_pod_group(obj)
        assert str(caught.value).startswith(expected)
        assert str(caught.value).endswith("write a whole number from 1 on")
    else:
        assert read_pod_group(obj) == expected


json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(), lambda of: st.lists(of) | st.dictionaries(st.text(), of)
)
specs = st.dictionaries(
    st.sampled_from(["minMember", "schedulingPolicy"]), json | st.fixed_dictionaries({"gang": json})
)


@given(specs | json)
@settings(max_examples=examples(100))
def test_whatever_a_pod_group_says_its_size_is_bounded_or_it_is_refused(spec: Any) -> None:
    try:
        size = read_pod_group({"metadata": {"name": "g"}, "spec": spec})
    except PodGroupError:
        return
    assert 0 <= size.least <= size.total <= MAX_MEMBERS


def test_of_several_statements_the_largest_number_counts() -> None:
    assert largest([]) == UNSTATED
    assert largest([GangSize(2, 7), GangSize(4, 4), UNSTATED]) == GangSize(4, 7)


TOGETHER: dict[str, tuple[str | None, str, bool, str]] = {
    "nothing": (None, "team/g", False, ""),
    "true": ("true", "team/g", True, ""),
    "false": ("false", "team/g", False, ""),
    "false, without a gang": ("false", "", False, ""),
    "true, without a gang": ("true", "", False, "the Pod belongs to no gang; name one, as by the label scheduling.x-"),
    "of a namespace before": ("true", "ape/g", False, "gang ape/g is of another namespace; name one of the Pod's own"),
    "of a namespace behind": ("true", "zoo/g", False, "gang zoo/g is of another namespace; name one of the Pod's own"),
    "no boolean": ("yes", "team/g", False, "'yes' is not allowed; write true or false"),
    "long": ("y" * 81, "team/g", False, f"'{'y' * 80}' is not allowed; write true or false"),
}


@pytest.mark.parametrize(("text", "gang", "all_or_nothing", "message"), TOGETHER.values(), ids=TOGETHER)
def test_a_pod_says_whether_its_gang_is_bound_as_a_whole(
    text: str | None, gang: str, *, all_or_nothing: bool, message: str
) -> None:
    annotations = {} if text is None else {GANG_TOGETHER: text}
    found, problems = is_all_or_nothing({"namespace": "team", "annotations": annotations}, gang)
    assert found is all_or_nothing
    assert len(problems) == bool(message)
    assert all(problem.message.startswith(message) for problem in problems)


def test_a_long_wrong_number_is_cut() -> None:
    _, (problem,) = stated_size({GANG_MIN_AVAILABLE: "x" * 81})
    assert problem.message.startswith(f"'{'x' * 80}' is no number of Pods")
