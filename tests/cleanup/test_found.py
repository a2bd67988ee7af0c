"""What koordgate left on Nodes, and whose Pods still need it."""

from typing import Any

import pytest

from console.cleanup.found import PodsLeft, in_our_domain, left_on

Raw = dict[str, Any]
CORE, RATIO, OLD = "kubernetes.io/gpu-core", "kubernetes.io/gpu-memory-ratio", "koordinator.sh/gpu-core"
MODEL = "node.koordinator.sh/gpu-model"


def owner(manager: str, labels: tuple[str, ...] = (), amounts: tuple[str, ...] = ()) -> Raw:
    fields = {
        "f:metadata": {"f:labels": {f"f:{key}": {} for key in labels}},
        "f:status": {"f:capacity": {f"f:{name}": {} for name in amounts}},
    }
    return {"manager": manager, "operation": "Apply", "fieldsV1": fields}


def node(*owners: Raw, labels: tuple[str, ...] = (), annotations: tuple[str, ...] = ()) -> Raw:
    amounts = {CORE: "800", RATIO: "800", OLD: "800", "cpu": "8"}
    return {
        "metadata": {
            "name": "n1",
            "labels": dict.fromkeys(labels, "x"),
            "annotations": dict.fromkeys(annotations, "x"),
            "managedFields": list(owners),
        },
        "status": {"capacity": amounts, "allocatable": dict(amounts)},
    }


REPORTED = owner("koordgate-reporter", (MODEL,), (CORE, RATIO, OLD))


@pytest.mark.parametrize(
    ("key", "ours"),
    [
        ("koordgate.io/released", True),
        ("quota.koordgate.io/mirror", True),
        ("gpu.visible-devices.koordgate.io/main", True),
        ("koordgate.io", False),
        ("notkoordgate.io/x", False),
        ("koordgate.io.example.com/x", False),
        ("example.com/koordgate.io", False),
    ],
)
def test_a_key_is_ours_by_its_domain(key: str, ours: bool) -> None:  # noqa: FBT001 a parameter of the test
    assert in_our_domain(key) is ours


def test_amounts_and_labels_are_the_reporters_by_the_api_servers_record() -> None:
    left = left_on(node(REPORTED, labels=(MODEL, "example.com/own")), {}, keep_settings=False)
    assert (left.amounts, left.labels) == ((OLD, CORE, RATIO), (MODEL,))


def test_the_reporter_is_no_owner_any_more_once_nothing_must_stay() -> None:
    bare = owner("koordgate-reporter")
    left = left_on(node(bare), {}, keep_settings=False)
    assert (left.something, left.recorded, left.patch(node(bare))) == (True, True, [])
    assert not left_on(node(REPORTED), {CORE: ["team/a"]}, keep_settings=False).recorded


def test_what_another_manager_wrote_stays() -> None:
    theirs = owner("koord-manager", (), (OLD,))
    left = left_on(node(theirs, labels=(MODEL,)), {}, keep_settings=False)
    assert not left.something


def test_a_label_that_another_owns_too_stays() -> None:
    left = left_on(node(REPORTED, owner("koordlet", (MODEL,)), labels=(MODEL,)), {}, keep_settings=False)
    assert left.labels == ()


def test_settings_of_people_stay_only_when_asked() -> None:
    of_people = ("koordgate.io/classes", "koordgate.io/released")
    one = node(labels=("koordgate.io/device-order",), annotations=of_people)
    left = left_on(one, {}, keep_settings=False)
    assert (left.labels, left.annotations) == (("koordgate.io/device-order",), of_people)
    left = left_on(one, {}, keep_settings=True)
    assert (left.labels, left.annotations) == ((), ("koordgate.io/released",))


def test_the_taint_goes_and_those_of_others_keep_their_order() -> None:
    ours = {"key": "koordgate.io/headroom", "effect": "PreferNoSchedule"}
    first, last = ({"key": f"{domain}/a", "effect": "NoSchedule"} for domain in ("zone.io", "example.com"))
    one = node() | {"spec": {"taints": [first, ours, last]}}
    left = left_on(one, {}, keep_settings=True)
    assert (left.something, left.patch(one)) == (True, [])
    assert [step["value"] for step in left.untaint(one)] == [[first, ours, last], [first, last]]
    without = node() | {"spec": {"taints": [first, last]}}
    left = left_on(without, {}, keep_settings=True)
    assert (left.something, left.untaint(without)) == (False, [])


def test_an_amount_that_a_kubelet_would_miss_stays_while_pods_request_it() -> None:
    left = left_on(node(REPORTED), {CORE: ["team/a", "team/b"]}, keep_settings=False)
    assert (left.amounts, left.needed, left.pods) == ((OLD, RATIO), (CORE,), ("team/a", "team/b"))


def test_the_patch_removes_only_what_is_there_and_as_it_was_read() -> None:
    one = node(REPORTED, labels=(MODEL,))
    del one["status"]["allocatable"][OLD]
    patch = left_on(one, {}, keep_settings=False).patch(one)
    removed = [step["path"] for step in patch if step["op"] == "remove"]
    assert removed == [
        "/metadata/labels/node.koordinator.sh~1gpu-model",
        "/status/capacity/koordinator.sh~1gpu-core",
        "/status/capacity/kubernetes.io~1gpu-core",
        "/status/capacity/kubernetes.io~1gpu-memory-ratio",
        "/status/allocatable/kubernetes.io~1gpu-core",
        "/status/allocatable/kubernetes.io~1gpu-memory-ratio",
    ]
    assert [step["path"] for step in patch if step["op"] == "test"] == removed


def pod(name: str, node_name: str = "", phase: str = "Running", **spec: Any) -> Raw:
    containers = [{"name": "main", "resources": {"requests": {CORE: "50", OLD: "1", "cpu": "1"}}}]
    return {
        "metadata": {"namespace": "team", "name": name, "annotations": {"koordgate.io/original-request": "{}"}},
        "spec": {"containers": containers, "nodeName": node_name, "schedulerName": "koord-scheduler", **spec},
        "status": {"phase": phase},
    }


def test_a_pod_that_was_not_changed_is_told_by_what_it_requests() -> None:
    found = PodsLeft()
    by_quota = {"name": "main", "resources": {"requests": {"cpu": "1", "quota.koordgate.io/cpus": "1"}}}
    for name, spec in {
        "asks": pod("asks")["spec"],
        "pinned": {"containers": [by_quota], "schedulerName": "koord-scheduler"},
        "koordinator": {"containers": [{"name": "main"}], "schedulerName": "koord-scheduler"},
        "default": {"containers": [by_quota]},
    }.items():
        found.add({"metadata": {"namespace": "team", "name": name}, "spec": spec})
    assert sorted(found.waiting) == ["team/asks", "team/pinned"]


def test_pods_that_run_and_those_that_wait_are_told_apart() -> None:
    found = PodsLeft()
    foreign = {"metadata": {"namespace": "team", "name": "foreign"}, "spec": {"containers": [{"name": "main"}]}}
    gated = {
        "metadata": {"namespace": "team", "name": "gang"},
        "spec": {"schedulingGates": [{"name": "koordgate.io/gang"}]},
    }
    other = {
        "metadata": {"namespace": "team", "name": "other"},
        "spec": {"schedulingGates": [{"name": "a.io/x"}, {"name": "z.io/x"}]},
    }
    init = {**pod("init", "n2"), "metadata": {"namespace": "team", "name": "init"}}
    init["spec"]["initContainers"], init["spec"]["containers"] = init["spec"]["containers"], [{"name": "main"}]
    for one in (
        pod("a", "n1"),
        pod("b", "n1"),
        pod("done", "n1", "Succeeded"),
        pod("w", phase="Pending"),
        foreign,
        gated,
        other,
        init,
    ):
        found.add(one)
    assert found.running == 3
    assert sorted(found.waiting) == ["team/gang", "team/w"]
    assert found.uses == {"n1": {CORE: ["team/a", "team/b"]}, "n2": {CORE: ["team/init"]}}
