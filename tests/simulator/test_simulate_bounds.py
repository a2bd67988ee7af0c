"""`koordgate simulate` at its bounds: options, checks, LimitRanges, quotas, comparisons, and notes of many Pods."""

import json
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
from openb.stock import balanced, least_allocated, stock_scores
from simulator.clusters import asking, device, gpus, held, machine, node, pinned, saved, topology

from console.simulator.apiserver import AddedDefault, beyond, write_defaults
from console.simulator.compare import variants
from console.simulator.scheduler import NodeCandidate
from koordgate.cli import main, parser_of
from webhook.settings import WebhookSettings
from webhook.view.quotascopes import in_scopes, read_scope

Raw = dict[str, Any]
HEAD = {"apiVersion": "koordgate.io/v1alpha1", "kind": "Expectations"}
MIB = 2**20


# Options


@pytest.mark.parametrize(
    ("words", "key", "value"),
    [
        (["--gpu-memory", "A10=24Gi"], "gpu_memory", [("A10", 24 * 2**30)]),
        (["--gpu-memory", "1"], "gpu_memory", [("", 1)]),
        (["--gpu-memory", "a=b=1"], "gpu_memory", [("a=b", 1)]),
        (["--gpu-memory", "A10=0"], "", "a card has more memory than that; write bytes, such as A10=24Gi"),
        (["--gpu-memory", "A10=-1"], "", "'-1' is negative"),
        (["--gpu-memory", "A10=much"], "", "write MODEL=QUANTITY, such as A10=24Gi"),
        (["--width", "40"], "width", 40),
        (["--width", "10000"], "width", 10_000),
        (["--width", "39"], "", "'39': state columns from 40 to 10000"),
        (["--width", "10001"], "", "state columns from 40 to 10000"),
        (["--width", "1000000000"], "", "state columns from 40 to 10000"),
        (["--width", "100000"], "", "state columns from 40 to 10000"),
        (["--width", "0000050"], "", "state columns from 40 to 10000"),
        (["--width", "٤٠"], "", "state columns from 40 to 10000"),
        (["--width", "-50"], "", "state columns from 40 to 10000"),
    ],
)
def test_options_have_bounds(words: list[str], key: str, value: object, capsys: pytest.CaptureFixture[str]) -> None:
    parser = parser_of("simulate")
    if key:
        assert vars(parser.parse_args(["-f", "x", *words]))[key] == value
        return
    with pytest.raises(SystemExit):
        parser.parse_args(["-f", "x", f"{words[0]}={words[1]}"])
    assert str(value) in capsys.readouterr().err


def ways(*words: str) -> Any:
    parser = parser_of("replay")
    return variants(parser.parse_args(["-f", "x", *words]), WebhookSettings())


def test_sixteen_ways_are_compared_by_names_of_at_most_24_characters(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("scheduler: {preference: packing}\n")
    given = [word for at in range(15) for word in ("--compare", f"way {at}={file}")]
    assert len(ways(*given)) == 16
    with pytest.raises(ValueError, match="17 ways to compare; give 16 at most"):
        ways(*given, "--compare", f"one more={file}")
    assert list(ways("--compare", f" {'x' * 24} ={file}")) == ["as given", "x" * 24]
    assert list(ways("--preference", "packing", "--preference", "packing")) == ["packing"]
    for wrong in (f"{'x' * 25}={file}", "=x", "x=", "x", "a\tb=x"):
        with pytest.raises(ValueError, match="write NAME=FILE, with a name of at most 24 characters"):
            ways("--compare", wrong)


# Checks


def expecting(folder: Path, *pods: Raw) -> str:
    path = folder / "expected.json"
    path.write_text(json.dumps({**HEAD, "pods": pods}))
    return str(path)


def checked(folder: Path, capsys: pytest.CaptureFixture[str], objects: list[Raw], *pods: Raw) -> tuple[int, list[str]]:
    capsys.readouterr()
    status = main(["simulate", "-f", saved(folder, objects), "-e", expecting(folder, *pods)])
    said = [line for line in capsys.readouterr().err.splitlines() if "expectations" in line or "check" in line]
    return status, [line.removeprefix("koordgate simulate: ") for line in said]


CPUS = {
    "a number": (4, ""),
    "a list": ("0-1,8-9", ""),
    "another number": (3, "has the CPUs 0-1,8-9 of its own, 3 expected"),
    "another list": ("0-3", "has the CPUs 0-1,8-9 of its own, 0-3 expected"),
    "none": ("", "has the CPUs 0-1,8-9 of its own, none expected"),
    "no list": ("x", "cpus: "),
}


@pytest.mark.parametrize(("wanted", "says"), CPUS.values(), ids=CPUS)
def test_cpus_are_expected_by_number_or_as_a_list(
    wanted: int | str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    objects = [node(), topology(), pinned("own", 4), asking("plain", {"cpu": "1"})]
    status, said = checked(tmp_path, capsys, objects, {"pod": "own", "cpus": wanted}, {"pod": "plain", "cpus": 0})
    assert status == (1 if says else 0), said
    assert len(said) == (2 if says else 1)
    if says:
        assert f"default/own: {says}" in said[0]
    status, said = checked(tmp_path, capsys, objects, {"pod": "plain", "cpus": "0"})
    assert "default/plain: has no CPUs of its own, 0 expected" in said[0]


def test_amounts_are_expected_in_sum_over_the_devices(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    objects = [*machine(cards=4), gpus("three", 300), gpus("half", 50)]
    right = {"pod": "three", "amounts": {"gpu": {"gpu-core": 300, "gpu-memory-ratio": "300"}, "rdma": {"rdma": 0}}}
    assert checked(tmp_path, capsys, objects, right) == (0, ["1 of 1 check passed"])
    wrong = {"pod": "three", "amounts": {"gpu": {"gpu-memory": "much", "gpu-core": 299, "gpu-memory-ratio": 301}}}
    status, said = checked(tmp_path, capsys, objects, wrong, {"pod": "half", "amounts": {"gpu": {"gpu-core": 50}}})
    assert status == 1
    about = "expectations: Pod three with gpu gpu-memory much, gpu-core 299, gpu-memory-ratio 301: default/three: "
    assert said[0].startswith(f"{about}amounts: gpu-memory: ")
    assert said[1:] == [
        f"{about}holds 300 of gpu-core, 299 expected",
        f"{about}holds 300 of gpu-memory-ratio, 301 expected",
        "1 of 2 checks passed",
    ]


def test_the_devices_of_several_types_are_expected(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    objects = [*machine(cards=4), gpus("two", 200)]
    right = {"pod": "t?o", "count": 1, "devices": {"rdma": [], "gpu": [0, "GPU-node-1-1"]}, "node": "node-[12]"}
    assert checked(tmp_path, capsys, objects, right)[0] == 0
    status, said = checked(tmp_path, capsys, objects, {"pod": "two", "devices": {"gpu": [0], "rdma": [1]}})
    assert (status, len(said)) == (1, 3)
    assert "holds of GPUs 0 (GPU-node-1-0), 1 (GPU-node-1-1); 0 expected" in said[0]
    assert "none; 1 expected" in said[1]


@pytest.mark.parametrize(
    ("failing", "more"), [(20, []), (21, ["1 more check failed"]), (45, ["25 more checks failed"])]
)
def test_twenty_failures_are_told_and_the_others_counted(
    failing: int, more: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = [{"pod": f"absent-{at}"} for at in range(failing)]
    status, said = checked(tmp_path, capsys, [*machine(), gpus("half", 50)], *wrong, {"pod": "half"})
    assert status == 1
    assert len([line for line in said if line.startswith("expectations: ")]) == 20
    assert said[20:] == [*more, f"1 of {failing + 1} checks passed"]


# LimitRanges


def limited(*containers: tuple[Raw, Raw], init: tuple[Raw, Raw] | None = None) -> Raw:
    made = [{"name": f"c{at}", "resources": {"requests": of[0], "limits": of[1]}} for at, of in enumerate(containers)]
    first = [{"name": "init", "resources": {"requests": init[0], "limits": init[1]}}] if init else []
    return {"spec": {"containers": made, "initContainers": first}}


BEYOND: dict[str, tuple[Raw, Raw, list[str]]] = {
    "within": (
        limited(({"cpu": "1"}, {"cpu": "2"}), ({"cpu": "2"}, {"cpu": "2"})),
        {"type": "Container", "min": {"cpu": "1"}, "max": {"cpu": "2"}, "maxLimitRequestRatio": {"cpu": "2"}},
        [],
    ),
    "one container is below, one above": (
        limited(({"cpu": "999m"}, {"cpu": "1"}), ({"cpu": "1"}, {"cpu": "2001m"}), ({"cpu": "1"}, {"cpu": "1"})),
        {"type": "Container", "min": {"cpu": "1"}, "max": {"cpu": "2"}},
        [
            "minimum cpu usage per Container is 1, but request is 999m",
            "maximum cpu usage per Container is 2, but limit is 2001m",
        ],
    ),
    "nothing is stated": (
        limited(({}, {})),
        {"type": "Container", "min": {"memory": "1Gi"}, "max": {"cpu": "2"}, "maxLimitRequestRatio": {"cpu": "2"}},
        [
            "minimum memory usage per Container is 1Gi.  No request is specified",
            "maximum cpu usage per Container is 2.  No limit is specified",
            "cpu max limit to request ratio per Container is 2, but no request or no limit is specified",
        ],
    ),
    "the ratio": (
        limited(({"cpu": "1"}, {"cpu": "3"}), ({"cpu": "1"}, {}), ({}, {"cpu": "1"})),
        {"type": "Container", "maxLimitRequestRatio": {"cpu": "2"}},
        [
            "cpu max limit to request ratio per Container is 2, but provided ratio is 3.000000",
            "cpu max limit to request ratio per Container is 2, but no request or no limit is specified",
            "cpu max limit to request ratio per Container is 2, but no request or no limit is specified",
        ],
    ),
    "the sum of a Pod": (
        limited(({"cpu": "1"}, {"cpu": "1"}), ({"cpu": "1"}, {"cpu": "2"}), init=({"cpu": "1"}, {"cpu": "1"})),
        {"type": "Pod", "min": {"cpu": "3"}, "max": {"cpu": "2"}},
        [
            "minimum cpu usage per Pod is 3, but request is 2",
            "maximum cpu usage per Pod is 2, but limit is 3",
        ],
    ),
    "an init container": (
        limited(({"cpu": "1"}, {"cpu": "1"}), init=({"cpu": "5"}, {"cpu": "5"})),
        {"type": "Container", "max": {"cpu": "4"}},
        ["maximum cpu usage per Container is 4, but limit is 5"],
    ),
    "the sum of limits and of requests in whole numbers": (
        limited(({"a": "1"}, {"a": "2"}), ({"a": "1"}, {"a": "3"})),
        {"type": "Pod", "min": {"a": "3"}, "max": {"a": "4"}, "maxLimitRequestRatio": {"a": "2"}},
        [
            "minimum a usage per Pod is 3, but request is 2",
            "maximum a usage per Pod is 4, but limit is 5",
            "a max limit to request ratio per Pod is 2, but provided ratio is 2.500000",
        ],
    ),
    "bounds of several resources in their order": (
        limited(({"b": "1", "a": "1"}, {"b": "3", "a": "3"})),
        {"type": "Container", "min": {"b": "2", "a": "2"}, "max": {"b": "2", "a": "2"}},
        [
            "minimum a usage per Container is 2, but request is 1",
            "minimum b usage per Container is 2, but request is 1",
            "maximum a usage per Container is 2, but limit is 3",
            "maximum b usage per Container is 2, but limit is 3",
        ],
    ),
    "an amount of less than a thousandth": (
        limited(({"cpu": "2500u"}, {"cpu": "1"})),
        {"type": "Container", "min": {"cpu": "1"}},
        ["minimum cpu usage per Container is 1, but request is 2m"],
    ),
    "nothing at all": (
        {"spec": {"containers": [{"name": "c"}, {"name": "d", "resources": None}], "initContainers": None}},
        {"type": "Container", "min": {"cpu": "1"}, "max": None},
        ["minimum cpu usage per Container is 1.  No request is specified"] * 2,
    ),
    "a claim": (limited(({}, {})), {"type": "PersistentVolumeClaim", "min": {"cpu": "1"}}, []),
}


@pytest.mark.parametrize(("pod", "limit", "told"), BEYOND.values(), ids=BEYOND)
def test_a_pod_is_held_to_the_bounds_of_a_limit_range(pod: Raw, limit: Raw, told: list[str]) -> None:
    assert list(beyond(pod, [{"type": "Other"}, limit])) == told


def test_defaults_are_written_where_a_container_states_none() -> None:
    pod = limited(({"cpu": "1"}, {}), ({}, {"memory": "1Gi"}), init=({}, {}))
    ranges = {
        "a": [{"type": "Container", "default": {"memory": "2Gi"}, "defaultRequest": {"cpu": "100m"}}],
        "b": [{"type": "Container", "defaultRequest": {"cpu": "200m"}}, {"type": "Pod", "default": {"cpu": "9"}}],
    }
    added = write_defaults(pod, ranges)
    first, second = (one["resources"] for one in pod["spec"]["containers"])
    assert first["limits"] == {"memory": "2Gi"}
    assert first["requests"]["cpu"] == "1"
    assert second["limits"] == {"memory": "1Gi"}
    assert second["requests"]["cpu"] == "200m"
    assert pod["spec"]["initContainers"][0]["resources"]["limits"] == {"memory": "2Gi"}
    assert AddedDefault("c1", "cpu", "200m", "b") in added
    assert AddedDefault("c0", "memory", "2Gi", "a") in added
    assert write_defaults(limited(({}, {})), {"a": []}) == []


# Quotas


@pytest.mark.parametrize(
    ("spec", "scope", "inside"),
    [
        ({"activeDeadlineSeconds": 0}, {"scopes": ["Terminating"]}, True),
        ({}, {"scopes": ["Terminating"]}, False),
        ({}, {"scopes": ["NotTerminating"]}, True),
        ({}, {"scopes": ["BestEffort"]}, True),
        ({}, {"scopes": ["NotBestEffort"]}, False),
        ({}, {"scopes": ["BestEffort", "Terminating"]}, False),
        ({}, {"scopes": ["CrossNamespacePodAffinity"]}, False),
        ({"priorityClassName": "a"}, {"scopes": ["PriorityClass"]}, True),
        ({}, {"scopes": ["PriorityClass"]}, False),
        ({"priorityClassName": "a"}, ("In", ["b", "a"]), True),
        ({"priorityClassName": "a"}, ("In", ["b"]), False),
        ({"priorityClassName": "a"}, ("NotIn", ["b"]), True),
        ({"priorityClassName": "a"}, ("NotIn", ["a"]), False),
        ({}, ("DoesNotExist", []), True),
        ({"priorityClassName": "a"}, ("DoesNotExist", []), False),
        ({"priorityClassName": "a"}, ("Like", ["a"]), False),
        ({}, {}, True),
    ],
)
def test_a_quota_counts_the_pods_in_all_its_scopes(spec: Raw, scope: Any, inside: bool) -> None:  # noqa: FBT001
    if isinstance(scope, tuple):
        one = {"scopeName": "PriorityClass", "operator": scope[0], "values": scope[1]}
        scope = {"scopeSelector": {"matchExpressions": [one]}}
    assert in_scopes(read_scope({"containers": [{"name": "c"}], **spec}), scope) is inside


# Scores of a stock kube-scheduler


@pytest.mark.parametrize(
    ("each", "least", "even"),
    [
        ([(100, 0), (100, 0)], 100, 100),
        ([(100, 50), (100, 0)], 75, 75),
        ([(100, 100), (100, 0)], 50, 50),
        ([(100, 150), (100, 50)], 25, 75),
        ([(3, 1), (3, 2)], 49, 83),
        ([(100, 30)], 70, 100),
        ([(100, 150)], 0, 100),
        ([], 0, 100),
    ],
)
def test_what_is_left_and_how_evenly_is_scored(each: list[tuple[int, int]], least: int, even: int) -> None:
    assert (least_allocated(each), balanced(each)) == (least, even)


def candidate(name: str, *taints: str, cpu: int = 1000, memory: int = 1000 * MIB) -> NodeCandidate:
    found = tuple({"key": key, "effect": "PreferNoSchedule"} for key in taints)
    return NodeCandidate(name, {}, found, False, {"cpu": cpu, "memory": memory})


def test_nodes_are_scored_by_what_is_left_by_evenness_and_by_taints() -> None:
    nodes = [candidate("plain"), candidate("one", "a"), candidate("two", "a", "b"), candidate("used")]
    used = {"used": {"cpu": 400, "memory": 400 * MIB}}
    scores = stock_scores({}, {"cpu": 100, "memory": 200 * MIB}, nodes, used)
    assert scores == {
        "plain": 85 + 95 + 300,
        "one": 85 + 95 + 150,
        "two": 85 + 95,
        "used": 45 + 95 + 300,
    }
    tolerating = {"tolerations": [{"key": "b", "operator": "Exists"}]}
    assert stock_scores(tolerating, {"cpu": 100, "memory": 200 * MIB}, nodes, used)["two"] == 85 + 95
    same = stock_scores({}, {}, nodes[:1], {})
    assert same == {"plain": 85 + 95 + 300}


# Other dialects


@pytest.mark.parametrize(("words", "lines"), [((), 1), (("--all",), 3)])
def test_alike_pods_are_one_line_unless_all_are_wanted(
    words: tuple[str, ...], lines: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = saved(tmp_path, [asking(f"p{at}") for at in range(3)])
    assert main(["simulate", "-f", file, *words]) == 0
    assert sum(line.startswith("default/p") for line in capsys.readouterr().out.splitlines()) == lines


def test_yaml_is_for_programs_so_that_remarks_go_to_standard_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    silent = asking("silent", {"kubernetes.io/gpu-core": "10"}, nodeName="node-1", schedulerName="koord-scheduler")
    warned = asking("warned", {"kubernetes.io/gpu-memory": "4096"})
    file = saved(tmp_path, [*machine(), silent, warned, held("fine", "node-1", (0, 10))])
    errors = []
    for output in ("yaml", "json", "table"):
        main(["simulate", "-f", file, "-o", output])
        errors.append([line.partition(" and ")[0][:70] for line in capsys.readouterr().err.splitlines()])
    said = [
        "koordgate simulate: Pod default/silent: asks for devices",
        "koordgate simulate: Pod default/warned: warning: spec.containers[0].re",
    ]
    assert errors == [said, said, []]


def test_checks_are_written_as_junit_where_there_are_any(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = saved(tmp_path, [*machine(), gpus("half", 50)])
    path = tmp_path / "checks.xml"
    assert main(["simulate", "-f", file, "--junit", str(path)]) == 2
    assert capsys.readouterr().err == (
        "koordgate simulate: --junit writes what is checked: give expectations with -e, or --require-bound\n"
    )
    expected = expecting(tmp_path, {"pod": "half"})
    for words, suites in (
        (["-e", expected], ["expectations"]),
        (["--require-bound"], ["require-bound"]),
        (["-e", expected, "--require-bound"], ["expectations", "require-bound"]),
    ):
        assert main(["simulate", "-f", file, "--junit", str(path), *words]) == 0
        assert [one.get("name") for one in ET.parse(path).getroot()] == suites
        assert (
            capsys.readouterr().err
            == f"koordgate simulate: {'2 of 2 checks' if len(suites) > 1 else '1 of 1 check'} passed\n"
        )


def test_devices_and_topologies_of_nodes_that_are_not_there_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    objects = [*machine("b"), device("a"), device("c"), topology("b"), topology("d"), asking("p")]
    assert main(["simulate", "-f", saved(tmp_path, objects)]) == 0
    assert capsys.readouterr().err.splitlines() == [
        f"koordgate simulate: {what}: there is no Node with this name, so no Pod is placed there"
        for what in ("Devices a, c", "NodeResourceTopology d")
    ]
