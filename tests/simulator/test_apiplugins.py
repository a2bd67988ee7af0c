"""What the API server itself does to new Pods offline: LimitRanges, ResourceQuotas, PriorityClasses, modes."""

from pathlib import Path
from typing import Any

import pytest
from simulator.clusters import asking, gpus, listed, machine, node, saved

from koordgate.cli import main

Raw = dict[str, Any]


def limit_range(**limit: Any) -> Raw:
    return {"kind": "LimitRange", "metadata": {"name": "r"}, "spec": {"limits": [{"type": "Container", **limit}]}}


def quota(hard: Raw, **spec: Any) -> Raw:
    return {"kind": "ResourceQuota", "metadata": {"name": "q"}, "spec": {"hard": hard, **spec}}


def priority(name: str, value: int, **fields: Any) -> Raw:
    return {"kind": "PriorityClass", "metadata": {"name": name}, "value": value, **fields}


def said(capsys: pytest.CaptureFixture[str], folder: Path, *objects: Raw) -> dict[str, str]:
    """By Pod: its node, or why it has none."""
    pods = listed(capsys, "-f", saved(folder, objects))
    return {name: pod["spec"].get("nodeName") or pod["status"]["message"] for name, pod in pods.items()}


def test_defaults_of_a_limit_range_are_written_before_admission(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    limits = limit_range(default={"cpu": "2", "nvidia.com/gpu": "1"}, defaultRequest={"cpu": "1"})
    pods = listed(capsys, "-f", saved(tmp_path, [*machine(), limits, asking("plain"), asking("own", {"cpu": "500m"})]))
    resources = pods["plain"]["spec"]["containers"][0]["resources"]
    assert (resources["limits"]["cpu"], resources["requests"]["cpu"]) == ("2", "1")
    assert resources["requests"]["kubernetes.io/gpu-core"] == "100", "the default card is translated"
    assert pods["own"]["spec"]["containers"][0]["resources"]["requests"]["cpu"] == "500m"


@pytest.mark.parametrize(
    ("limit", "told"),
    [
        ({"max": {"cpu": "1"}}, "maximum cpu usage per Container is 1, but limit is 2"),
        ({"min": {"memory": "1Gi"}}, "minimum memory usage per Container is 1Gi, but request is 1048576"),
        ({"maxLimitRequestRatio": {"cpu": "1"}}, "cpu max limit to request ratio per Container is 1, but provided rat"),
        ({"type": "Pod", "max": {"cpu": "1500m"}}, "maximum cpu usage per Pod is 1500m, but limit is 2"),
        ({"max": {"kubernetes.io/gpu": "40"}}, "maximum kubernetes.io/gpu usage per Container is 40"),
    ],
)
def test_a_pod_outside_a_limit_range_is_refused(
    limit: Raw, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pod = gpus("p", 50)
    amounts = {"memory": "1Mi", "kubernetes.io/gpu": "50"}
    resources = {"requests": {"cpu": "1", **amounts}, "limits": {"cpu": "2", **amounts}}
    pod["spec"]["containers"][0]["resources"] = resources
    assert told in said(capsys, tmp_path, *machine(), limit_range(**limit), pod)["p"]


@pytest.mark.parametrize(
    ("hard", "pods", "bound"),
    [
        pytest.param({"pods": "2"}, [gpus(f"p{n}", 10) for n in range(3)], ["p0", "p1"], id="Pods"),
        pytest.param({"requests.cpu": "3"}, [asking(f"p{n}", {"cpu": "2"}) for n in range(2)], ["p0"], id="CPU"),
        pytest.param(
            {"requests.nvidia.com/gpu": "1"}, [gpus(f"p{n}", 40) for n in range(3)], ["p0", "p1"], id="a mirrored quota"
        ),
        pytest.param(
            {"requests.quota.koordgate.io/gpu": "50"}, [gpus(f"p{n}", 30) for n in range(2)], ["p0"], id="our own names"
        ),
    ],
)
def test_a_quota_lets_as_many_pods_be_created_as_it_allows(
    hard: Raw, pods: list[Raw], bound: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = said(capsys, tmp_path, *machine(), quota(hard), *pods)
    assert [name for name, what in found.items() if what == "node-1"] == bound
    assert all("is forbidden: exceeded quota: q" in what for what in found.values() if what != "node-1")


def test_what_runs_already_counts_for_a_quota_until_it_has_ended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = asking("old", {"nvidia.com/gpu": "1"}, nodeName="node-1", schedulerName="default-scheduler")
    for phase, expected in (("Running", "limited: requests.quota.koordgate.io/gpu=0"), ("Succeeded", "node-1")):
        there = {**old, "status": {"phase": phase}}
        objects = [*machine(), quota({"requests.nvidia.com/gpu": "1"}), there, gpus("new", 50)]
        assert expected in said(capsys, tmp_path, *objects)["new"]


def test_a_quota_of_cpu_demands_that_containers_state_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = said(capsys, tmp_path, *machine(), quota({"limits.cpu": "9"}), asking("p", {"cpu": "1"}))
    assert found["p"] == "Pod default/p is forbidden: failed quota: q: must specify limits.cpu"


@pytest.mark.parametrize(
    ("spec", "counted"),
    [
        ({"scopes": ["BestEffort"]}, {"bare"}),
        ({"scopes": ["NotBestEffort"]}, {"sized", "high"}),
        ({"scopes": ["NotTerminating"]}, {"bare", "sized", "high"}),
        ({"scopes": ["Terminating"]}, set()),
        (
            {
                "scopeSelector": {
                    "matchExpressions": [{"scopeName": "PriorityClass", "operator": "In", "values": ["h"]}]
                }
            },
            {"high"},
        ),
    ],
)
def test_a_quota_with_scopes_counts_the_pods_in_its_scope(
    spec: Raw, counted: set[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pods = [asking("bare"), asking("sized", {"cpu": "1"}), asking("high", {"cpu": "1"}, priorityClassName="h")]
    found = said(capsys, tmp_path, *machine(), priority("h", 5), quota({"pods": "0"}, **spec), *pods)
    assert {name for name, what in found.items() if "exceeded quota" in what} == counted


def test_a_scope_that_is_not_read_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    objects = [*machine(), quota({"pods": "0"}, scopes=["CrossNamespacePodAffinity"]), gpus("p", 50)]
    assert main(["simulate", "-f", saved(tmp_path, objects)]) == 0
    assert "ResourceQuota default/q is not used: its scope CrossNamespacePodAffinity" in capsys.readouterr().err


def test_pods_of_a_higher_priority_are_scheduled_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pods = [gpus("low", 100), gpus("default", 100), gpus("high", 100, priorityClassName="h")]
    classes = [priority("h", 100), priority("d", 10, globalDefault=True)]
    pods[0]["spec"]["priorityClassName"] = "l"
    found = said(capsys, tmp_path, *machine(cards=2), *classes, priority("l", 1), *pods)
    assert [name for name, what in found.items() if what == "node-1"] == ["default", "high"]


def test_a_class_that_is_not_there_is_refused_or_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pod = gpus("p", 50, priorityClassName="none")
    found = said(capsys, tmp_path, *machine(), priority("h", 1), pod)
    assert found["p"] == "Pod default/p is forbidden: no PriorityClass with name none was found"
    assert main(["simulate", "-f", saved(tmp_path, [*machine(), pod])]) == 0
    assert "PriorityClass none is not in the input: its Pods are given priority 0" in capsys.readouterr().err


@pytest.mark.parametrize(("mode", "translated"), [("enforce", "yes"), ("shadow", ""), ("off", ""), ("x", "yes")])
def test_the_mode_of_a_namespace_decides_whether_its_pods_are_translated(
    mode: str, translated: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    space = {"kind": "Namespace", "metadata": {"name": "team", "labels": {"koordgate.io/mode": mode}}}
    has = node()
    has["status"]["allocatable"]["nvidia.com/gpu"] = "2"
    file = saved(tmp_path, [has, machine()[1], space, asking("p", {"nvidia.com/gpu": "1"}, namespace="team")])
    pod = listed(capsys, "-f", file)["p"]
    assert (pod["spec"]["schedulerName"] == "koord-scheduler") is bool(translated)
    assert pod["spec"]["nodeName"] == "node-1"


BOTH = "gpu devices are asked for in 2 dialects at once"
MOST = {"max": {"nvidia.com/gpu": "2", "cpu": "9"}, "default": {"cpu": "1"}}


def run(capsys: pytest.CaptureFixture[str], folder: Path, *objects: Raw) -> tuple[dict[str, str], str]:
    """By Pod: its lines of the table; and what is told beside it."""
    capsys.readouterr()
    assert main(["simulate", "--all", "-f", saved(folder, objects)]) == 0
    out, err = capsys.readouterr()
    rows: dict[str, str] = {}
    for line in out.split("\n\n")[0].splitlines()[1:]:
        name = line.split()[0] if line[0] != " " else list(rows)[-1]
        rows[name] = rows.get(name, "") + line + "\n"
    return rows, err


def test_devices_that_a_limit_range_adds_are_told_with_its_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    zero, partly = gpus("zero", 50), asking("partly", {"nvidia.com/gpu": "1"})
    zero["spec"]["containers"][0]["resources"] = {"limits": {"kubernetes.io/gpu": "50", "nvidia.com/gpu": "0"}}
    pods = [gpus("half", 50), asking("web"), asking("other"), zero, partly]
    rows, told = run(capsys, tmp_path, *machine(cards=8), limit_range(**MOST), *pods)
    added = "main: nvidia.com/gpu=2 (added by LimitRange r)"
    assert added in rows["default/half"]
    assert BOTH in rows["default/half"]
    assert (
        "LimitRange r adds nvidia.com/gpu to containers that do not state it; write nvidia.com/gpu: 0 in limits to"
        in (rows["default/half"])
    )
    assert added in rows["default/web"]
    assert added in rows["default/other"], "also of the second Pod of a template"
    assert "no devices" not in rows["default/web"]
    assert added in rows["default/partly"], "its limit is added"
    assert "LimitRange" not in rows["default/zero"]
    assert " bound " in rows["default/zero"]
    note = "LimitRange default/r adds nvidia.com/gpu 2 to containers that do not state it, such as main of Pod half"
    assert told.count(note) == told.count("LimitRange default/r") == 1
    assert "cpu" not in told


@pytest.mark.parametrize(
    "limit",
    [
        {"max": {"nvidia.com/gpu": "2"}, "default": {"nvidia.com/gpu": "0"}},
        {"type": "Pod", "max": {"nvidia.com/gpu": "2"}},
    ],
)
def test_a_limit_range_that_adds_no_device_is_not_told(
    limit: Raw, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows, told = run(capsys, tmp_path, *machine(), limit_range(**limit), asking("web"))
    assert "no devices, no CPUs of its own" in rows["default/web"]
    assert "LimitRange" not in told
