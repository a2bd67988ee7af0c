"""Expectations, `--require-bound` and JUnit: what passes, what fails, with which exit status and words."""

import json
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
from simulator.clusters import ALLOCATED, STATUS, asking, gpus, machine, pinned, saved

from console.simulator.cluster import PodFate, Result
from koordgate.cli import main

Raw = dict[str, Any]
HEAD = {"apiVersion": "koordgate.io/v1alpha1", "kind": "Expectations"}


def objects() -> list[Raw]:
    """Two cards; two halves fit on the first, a whole one on the second, and nothing after that."""
    pods = [gpus("half-1", 50), gpus("half-2", 50), gpus("whole", 100), gpus("late", 100), gpus("odd", 250)]
    return [*machine(cards=2), *pods]


def expecting(folder: Path, *pods: Raw, **about: Any) -> str:
    path = folder / "expected.json"
    path.write_text(json.dumps({**HEAD, "pods": pods, **about}))
    return str(path)


HELD: dict[str, Raw] = {
    "a bound Pod": {"pod": "whole", "state": "bound"},
    "its node by a pattern": {"pod": "default/whole", "node": "node-*"},
    "the number of its devices": {"pod": "whole", "devices": {"gpu": 1, "rdma": 0}},
    "a device by its minor": {"pod": "whole", "devices": {"gpu": [1]}},
    "a device by its id": {"pod": "whole", "devices": {"gpu": ["GPU-node-1-1"]}},
    "several Pods": {"pod": "half-*", "count": 2, "state": "bound", "devices": {"gpu": [0]}},
    "no such Pod": {"pod": "other-*", "count": 0},
    "a Pod that waits": {"pod": "late", "state": "pending", "refusal": "not enough"},
    "a Pod that is refused": {"pod": "odd", "state": "refused", "refusal": "ask 200 or 300"},
}
MISSED: dict[str, tuple[Raw, str]] = {
    "another state": (
        {"pod": "late", "state": "bound"},
        "default/late: is pending, bound expected (node-1: not enough",
    ),
    "another node": ({"pod": "whole", "node": "node-9"}, "default/whole: is on node-1, node-9 expected"),
    "no node": ({"pod": "odd", "node": "node-1"}, "default/odd: is on no node, node-1 expected"),
    "more devices": ({"pod": "whole", "devices": {"gpu": 2}}, "default/whole: holds 1 GPU, 2 expected"),
    "another device": (
        {"pod": "whole", "devices": {"gpu": [0]}},
        "default/whole: holds of GPUs 1 (GPU-node-1-1); 0 expected",
    ),
    "no such type": ({"pod": "whole", "devices": {"tpu": 1}}, "'tpu' is no device type; there are gpu, rdma, fpga"),
    "another reason": ({"pod": "odd", "refusal": "too hot"}, "'too hot' expected in the refusal, which is 'Pod"),
    "a bound Pod has no reason": ({"pod": "whole", "refusal": "x"}, "'x' expected in the refusal, which is 'none'"),
    "no such Pod": ({"pod": "half"}, "Pod half: no Pod has this name; there are default/half-1, default/half-2"),
    "another number": ({"pod": "half-*", "count": 3}, "3 Pods half-*: 2 Pods have this name, 3 expected"),
}


@pytest.mark.parametrize("name", HELD)
def test_what_is_so_passes(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = ("-f", saved(tmp_path, objects()), "-e", expecting(tmp_path, HELD[name]))
    assert main(["simulate", *files]) == 0
    assert "koordgate simulate: 1 of 1 check passed" in capsys.readouterr().err


@pytest.mark.parametrize("name", MISSED)
def test_what_is_not_so_fails_and_says_what_is(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    expected, told = MISSED[name]
    files = ("-f", saved(tmp_path, objects()), "-e", expecting(tmp_path, {"pod": "whole"}, expected))
    assert main(["simulate", *files]) == 1
    errors = capsys.readouterr().err
    assert told in errors
    assert "1 of 2 checks passed" in errors


@pytest.mark.parametrize(
    ("text", "told"),
    [
        pytest.param("kind: [", "not YAML", id="no YAML"),
        pytest.param("", "states no expectation; add one below pods", id="nothing"),
        pytest.param(json.dumps({**HEAD, "pods": []}), "Expected array of length >= 1", id="an empty list"),
        pytest.param(json.dumps({**HEAD, "pods": [{}]}), "missing required field pod", id="no Pod"),
        pytest.param(json.dumps({**HEAD, "pods": [{"pod": "a", "nodes": "b"}]}), "unknown field nodes", id="a key"),
        pytest.param(
            json.dumps({**HEAD, "pods": [{"pod": "a", "state": "ok"}]}), "Invalid enum value 'ok'", id="state"
        ),
        pytest.param(
            json.dumps({**HEAD, "kind": "Pod", "pods": [{"pod": "a"}]}), "write kind: Expectations", id="kind"
        ),
        pytest.param(
            json.dumps({**HEAD, "pods": [{"pod": "a", "count": 0, "state": "bound"}]}), "with count 0", id="none is so"
        ),
    ],
)
def test_expectations_that_cannot_be_read_are_unusable_input(
    text: str, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "expected.yaml"
    path.write_text(text)
    assert main(["simulate", "-f", saved(tmp_path, objects()), "-e", str(path)]) == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(("count", "status"), [(3, 0), (4, 1), (5, 1)])
def test_require_bound_fails_if_a_pod_waits_or_is_refused(
    count: int, status: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = saved(tmp_path, objects()[: 2 + count])
    assert main(["simulate", "-f", file]) == 0
    assert main(["simulate", "-f", file, "--require-bound"]) == status
    assert f"3 of {count} checks passed" in capsys.readouterr().err


def test_junit_has_a_case_for_each_check_and_survives_what_xml_cannot_hold(tmp_path: Path) -> None:
    hostile = asking("web", {"cpu": "1"}, annotations={"a": "]]><x>&\u0000"})
    file, out = saved(tmp_path, [*objects(), hostile]), tmp_path / "out.xml"
    expected = expecting(tmp_path, {"pod": "whole"}, {"pod": "no\u0001<pe>&", "state": "bound"})
    assert main(["simulate", "-f", file, "-e", expected, "--require-bound", "--junit", str(out)]) == 1
    root = ET.parse(out).getroot()
    suites = {suite.get("name"): suite for suite in root}
    assert {name: (suite.get("tests"), suite.get("failures")) for name, suite in suites.items()} == {
        "expectations": ("2", "1"),
        "require-bound": ("6", "2"),
    }
    failure = suites["expectations"].find("testcase[2]/failure")
    assert failure is not None
    assert failure.get("message") == "no Pod has this name"
    assert suites["expectations"][1].get("name") == "Pod no?<pe>& is bound"


def test_junit_without_checks_and_a_path_that_cannot_be_written_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = saved(tmp_path, objects())
    assert main(["simulate", "-f", file, "--junit", str(tmp_path / "a.xml")]) == 2
    assert "--junit writes what is checked" in capsys.readouterr().err
    assert main(["simulate", "-f", file, "--require-bound", "--junit", str(tmp_path / "none" / "a.xml")]) == 2
    assert "cannot be written (No such file or directory); name another file" in capsys.readouterr().err


def share(kind: str, minor: int, **amounts: str) -> Raw:
    named = {f"koordinator.sh/{tail.replace('_', '-')}": amount for tail, amount in amounts.items()}
    return {"minor": minor, "id": f"{kind.upper()}-{minor}", "resources": named}


def running(name: str, on: str = "node-1", **shares: list[Raw]) -> Raw:
    """A Pod with two CPUs of its own that states that it holds these devices, by type."""
    annotations = {ALLOCATED: json.dumps(shares), STATUS: json.dumps({"cpuset": "0,8"})}
    made = pinned(name, 2, annotations=annotations, nodeName=on)
    return {**made, "metadata": {**made["metadata"], "uid": f"uid-{name}"}}


ALL_TYPES = running(
    "all",
    fpga=[share("fpga", 4, fpga="100")],
    gpu=[share("gpu", 7, gpu_core="100"), share("gpu", 5, gpu_core="50")],
    rdma=[share("rdma", 6, rdma="25")],
)
RESULTS = [
    Result(ALL_TYPES, PodFate.STANDING),
    Result(running("half-1"), PodFate.BOUND),
    Result(running("hall", on="node-2"), PodFate.BOUND),
    Result(asking("hatch"), PodFate.UNSCHEDULABLE, ("no room", "at all")),
    Result(asking("half-1", namespace="team"), PodFate.ADMITTED),
    Result({**ALL_TYPES, "metadata": {"name": "odd"}}, PodFate.DENIED, ("too odd",), given=asking("odd")),
]
CARD = [share("gpu", 1, gpu_core="100")]
RESULTS.append(
    Result(asking("card", annotations={ALLOCATED: json.dumps({"gpu": CARD})}, nodeName="node-1"), PodFate.BOUND)
)
RESULTS[-1].pod["metadata"]["uid"] = "uid-card"
