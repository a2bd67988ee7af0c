"""Selectors of workloads: what the API server refuses is told in its words, and nothing else."""

from pathlib import Path
from typing import Any

import pytest
from simulator.clusters import saved

from console.simulator.documents import InputError
from console.simulator.objects import read
from console.simulator.selectors import wrong_selector

Raw = dict[str, Any]
SETS = ("Deployment", "ReplicaSet", "StatefulSet", "DaemonSet")
UNMATCHED = 'spec.template.metadata.labels: Invalid value: {"app":"a"}: `selector` does not match template `labels`'
ENDS = {"restartPolicy": "Never"}
UID = "batch.kubernetes.io/controller-uid"


def workload(kind: str, selector: Any = None, labels: Any = None, **spec: Any) -> Raw:
    version = {"Job": "batch/v1", "CronJob": "batch/v1", "ReplicationController": "v1"}.get(kind, "apps/v1")
    metadata = {"labels": {"app": "a"} if labels is None else labels}
    given: Raw = {
        "template": {
            "metadata": metadata,
            "spec": {"containers": [{"name": "m"}], **(ENDS if version == "batch/v1" else {})},
        },
        **spec,
    }
    given |= {} if selector is None else {"selector": selector}
    if kind == "CronJob":
        given = {"jobTemplate": {"spec": given}}
    return {"apiVersion": version, "kind": kind, "metadata": {"name": "web"}, "spec": given}


def exactly(**labels: str) -> Raw:
    return {"matchLabels": labels}


def requiring(operator: str, *values: str, key: str = "app") -> Raw:
    return {"matchExpressions": [{"key": key, "operator": operator, **({"values": list(values)} if values else {})}]}


ACCEPTED = {
    **{kind: workload(kind, exactly(app="a")) for kind in SETS},
    "one of several labels": workload("Deployment", exactly(app="a"), {"app": "a", "tier": "x"}),
    "by expressions": workload("Deployment", requiring("In", "a", "b")),
    "a label that must not be there": workload("Deployment", requiring("DoesNotExist", key="tier")),
    "a controller": workload("ReplicationController", {"app": "a"}),
    "a controller that selects by its template": workload("ReplicationController"),
    "a job": workload("Job"),
    "a job of a cluster": workload("Job", exactly(**{UID: "u"}), {"app": "a", UID: "u", "job-name": "web"}),
    "a job that selects what is generated": workload("Job", exactly(**{UID: "u", "job-name": "web"})),
    "a job with a selector of its own": workload("Job", exactly(app="a"), manualSelector=True),
    "a run": workload("CronJob"),
}
REFUSED = {
    **{kind: (workload(kind, exactly(app="b")), UNMATCHED) for kind in SETS},
    **{f"{kind} without one": (workload(kind), "spec.selector: Required value") for kind in SETS},
    "an empty one": (
        workload("Deployment", {}),
        "spec.selector: Invalid value: {}: empty selector is invalid for deployment",
    ),
    "an empty one of a ReplicaSet": (workload("ReplicaSet", exactly()), "empty selector is invalid for deployment"),
    "an empty one of a set": (workload("StatefulSet", {}), "empty selector is invalid for statefulset"),
    "an empty one of daemons": (workload("DaemonSet", {}), "empty selector is invalid for daemonset"),
    "no labels": (workload("Deployment", exactly(app="a"), {}), "metadata.labels: Invalid value: null: `selector`"),
    "of a controller": (workload("ReplicationController", {"app": "b"}), UNMATCHED),
    "a controller without labels": (workload("ReplicationController", labels={}), "spec.selector: Required value"),
    "of a job": (workload("Job", exactly(app="b")), UNMATCHED),
    "another uid than the job's labels": (
        workload("Job", exactly(**{UID: "u"}), {UID: "v"}),
        'Invalid value: {"batch.kubernetes.io/controller-uid":"v"}: `selector` does not match template `labels`',
    ),
    "of a job by hand": (workload("Job", exactly(app="b"), manualSelector=True), UNMATCHED),
    "a job by hand without one": (workload("Job", manualSelector=True), "spec.selector: Required value"),
    "of a run": (
        workload("CronJob", exactly(app="a")),
        'spec.jobTemplate.spec.selector: Invalid value: {"matchLabels":{"app":"a"}}: `selector` will be auto-generated',
    ),
    "a run by hand": (workload("CronJob", manualSelector=True), "spec.jobTemplate.spec.manualSelector: Unsupported"),
    "an operator": (
        workload("Deployment", requiring("Is", "a")),
        'spec.selector.matchExpressions[0].operator: Invalid value: "Is": not a valid selector operator',
    ),
    "no values": (
        workload("Job", requiring("NotIn")),
        "matchExpressions[0].values: Required value: must be specified when `operator` is 'In' or 'NotIn'",
    ),
    "values": (
        workload("DaemonSet", requiring("Exists", "a")),
        "values: Forbidden: may not be specified when `operator` is 'Exists' or 'DoesNotExist'",
    ),
    "a text": (workload("Deployment", "app=a"), "Expected object | null, got str - at spec.selector"),
}


@pytest.mark.parametrize("obj", [pytest.param(obj, id=name) for name, obj in ACCEPTED.items()])
def test_a_workload_that_selects_its_pods_is_accepted(obj: Raw, tmp_path: Path) -> None:
    assert len(read([saved(tmp_path, [obj])]).sources) == 1


@pytest.mark.parametrize(("obj", "told"), [pytest.param(*case, id=name) for name, case in REFUSED.items()])
def test_a_workload_that_does_not_select_its_pods_is_refused_in_the_api_servers_words(
    obj: Raw, told: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError) as error:
        read([saved(tmp_path, [obj])])
    assert f"{obj['kind']} web: " in str(error.value)
    assert told in str(error.value)
    assert str(error.value).endswith("; the API server would refuse it; correct it")


def test_another_product_s_kind_of_the_same_name_selects_as_it_likes(tmp_path: Path) -> None:
    assert read([saved(tmp_path, [{**workload("Deployment"), "apiVersion": "example.com/v1"}])]).sources


TOLD: dict[str, tuple[Raw, str]] = {
    "each expression": (
        workload(
            "Deployment",
            {
                "matchExpressions": [
                    {"key": "a", "operator": "In", "values": ["x"]},
                    {"key": "b", "operator": "NotIn", "values": []},
                    {"key": "c", "operator": "DoesNotExist", "values": ["x"]},
                    {"key": "d", "operator": "Exists"},
                    {"key": "e", "operator": "Gt", "values": ["1"]},
                ]
            },
        ),
        (
            "spec.selector.matchExpressions[1].values: Required value: must be specified when `operator` is 'In' or "
            "'NotIn'; "
            "spec.selector.matchExpressions[2].values: Forbidden: may not be specified when `operator` is 'Exists' or "
            "'DoesNotExist'; "
            'spec.selector.matchExpressions[4].operator: Invalid value: "Gt": not a valid selector operator'
        ),
    ),
    "a wrong expression of a Job": (
        workload("Job", requiring("Is", "a"), manualSelector=True),
        'spec.selector.matchExpressions[0].operator: Invalid value: "Is": not a valid selector operator',
    ),
    "an empty selector": (
        workload("StatefulSet", {"matchExpressions": []}),
        'spec.selector: Invalid value: {"matchExpressions":[]}: empty selector is invalid for statefulset',
    ),
    "labels by name": (
        workload("ReplicaSet", exactly(app="b"), {"z": "1", "app": "a"}),
        UNMATCHED.replace("}", ',"z":"1"}'),
    ),
    "a Job by hand with an empty selector": (workload("Job", {}, manualSelector=True), ""),
    "a Job by hand that selects its Pods": (workload("Job", requiring("In", "a"), manualSelector=True), ""),
    "a Job that selects another name": (
        workload("Job", exactly(**{"job-name": "other"})),
        'spec.template.metadata.labels: Invalid value: {"app":"a"}: `selector` does not match template `labels`',
    ),
    "a Job that selects its uid in the old way": (workload("Job", exactly(**{"controller-uid": "u"})), ""),
    "a Job whose uid is not selected": (workload("Job", labels={"controller-uid": "v"}), ""),
    "a controller of one label of several": (
        workload("ReplicationController", {"app": "a"}, {"app": "a", "b": "c"}),
        "",
    ),
    "a run with both": (
        workload("CronJob", {}, manualSelector=True),
        (
            "spec.jobTemplate.spec.selector: Invalid value: {}: `selector` will be auto-generated; "
            'spec.jobTemplate.spec.manualSelector: Unsupported value: true: supported values: "nil", "false"'
        ),
    ),
    "a run not by hand": (workload("CronJob", manualSelector=False), ""),
    "another kind": ({**workload("Deployment"), "kind": "Thing"}, ""),
}


@pytest.mark.parametrize(("obj", "told"), TOLD.values(), ids=TOLD)
def test_all_that_is_wrong_with_a_selector_is_told_in_the_order_of_the_fields(obj: Raw, told: str) -> None:
    assert wrong_selector(obj["kind"], obj) == told


@pytest.mark.parametrize("metadata", [None, [], {}, {"labels": None}, {"labels": ["a"]}])
def test_a_template_without_labels_is_not_selected_by_any(metadata: Any) -> None:
    obj = workload("Deployment", exactly(app="a"))
    obj["spec"]["template"]["metadata"] = metadata
    assert wrong_selector("Deployment", obj) == (
        "spec.template.metadata.labels: Invalid value: null: `selector` does not match template `labels`"
    )
