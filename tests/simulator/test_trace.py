"""Traces: what is read, what is refused and how that is told, and orders of arrival."""

import pytest
from openb.objects import mix_of_trace, node_objects, percent, pod_object
from openb.trace import TraceAsk, TraceNode, TracePod, named, shuffled

from allocator.vocabulary.asks import DeviceAsk
from allocator.vocabulary.devicetype import BUILT_IN
from allocator.vocabulary.mix import TypicalRequest, mix_of

NODES = "sn,cpu_milli,memory_mib,gpu,model\n"
PODS = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,creation_time,deletion_time\n"
SHORT = "name,cpu_milli,memory_mib,num_gpu,gpu_milli\n"


POD = TracePod("a", TraceAsk(1, 2, 1, 500, ()))
PLAIN = TracePod("b", TraceAsk(1, 2, 0, 0, ()))


def test_pods_arrive_until_they_ask_for_enough_each_once_before_any_is_repeated() -> None:
    arriving = shuffled([POD, PLAIN], 1600, 3)
    assert sum(pod.ask.gpu_milli for pod in arriving) == 2000
    assert {pod.name for pod in arriving[:2]} == {"a", "b"}
    assert len({pod.name for pod in arriving}) == len(arriving)
    assert arriving == shuffled([POD, PLAIN], 1600, 3)


@pytest.mark.parametrize("seed", range(4))
def test_no_more_pods_arrive_than_are_needed(seed: int) -> None:
    pods = [POD, PLAIN, TracePod("c", TraceAsk(1, 2, 1, 300, ()))]
    asked = [pod.ask.gpu_milli for pod in shuffled(pods, 5000, seed)]
    assert sum(asked[:-1]) < 5000 <= sum(asked)
    assert {0, 300, 500} == set(asked)
    assert [pod.ask.gpu_milli for pod in shuffled([POD], 500, seed)] == [500]
    assert [pod.ask.gpu_milli for pod in shuffled([POD], 501, seed)] == [500, 500]


def test_a_stated_order_ends_when_enough_is_asked_and_repeated_pods_have_names_of_their_own() -> None:
    assert [pod.name for pod in named([POD, PLAIN], [0, 1, 0, 0, 0], 1500)] == ["a", "b", "a-r1", "a-r2"]


@pytest.mark.parametrize(("milli", "stated"), [(1, 1), (10, 1), (123, 13), (460, 46), (1000, 100)])
def test_thousandths_that_are_no_whole_percent_are_rounded_up(milli: int, stated: int) -> None:
    assert percent(milli) == stated


@pytest.mark.parametrize(
    ("ask", "limits"),
    [
        pytest.param(TraceAsk(500, 2, 0, 0, ()), {}, id="no GPU"),
        pytest.param(TraceAsk(500, 2, 4, 1000, ()), {"nvidia.com/gpu": "4"}, id="whole GPUs"),
        pytest.param(
            TraceAsk(500, 2, 1, 465, ()),
            {"koordinator.sh/gpu-core": "47", "koordinator.sh/gpu-memory-ratio": "47"},
            id="a part of one",
        ),
        pytest.param(
            TraceAsk(500, 2, 2, 300, ()),
            {
                "koordinator.sh/gpu.shared": "2",
                "koordinator.sh/gpu-core": "60",
                "koordinator.sh/gpu-memory-ratio": "60",
            },
            id="parts of two",
        ),
    ],
)
def test_a_pod_asks_as_its_author_would(ask: TraceAsk, limits: dict[str, str]) -> None:
    (container,) = pod_object(TracePod("a", ask))["spec"]["containers"]
    assert container["resources"]["limits"] == {"cpu": "500m", "memory": "2Mi", **limits}


def test_only_nodes_with_gpus_have_a_device_object() -> None:
    assert [obj["kind"] for obj in node_objects(TraceNode("a", 1, 2, 0, ""))] == ["Node"]
    node, device = node_objects(TraceNode("b", 1, 2, 3, "T4"))
    assert node["metadata"]["labels"]["node.koordinator.sh/gpu-model"] == "T4"
    assert node["status"]["allocatable"] == {"cpu": "1m", "memory": "2Mi", "pods": "1000"}
    assert [(one["minor"], one["health"]) for one in device["spec"]["devices"]] == [(0, True), (1, True), (2, True)]
    amounts = {"gpu-core": "100", "gpu-memory": "15109Mi", "gpu-memory-ratio": "100"}
    resources = {f"kubernetes.io/{tail}": amount for tail, amount in amounts.items()}
    assert [one["resources"] for one in device["spec"]["devices"]] == [resources] * 3
    _, other = node_objects(TraceNode("c", 1, 2, 1, "G2"))
    assert other["spec"]["devices"][0]["resources"]["kubernetes.io/gpu-memory"] == "24576Mi"


def test_models_that_will_do_are_a_node_affinity() -> None:
    models = {"key": "node.koordinator.sh/gpu-model", "operator": "In", "values": ["A", "B"]}
    required = {"nodeSelectorTerms": [{"matchExpressions": [models]}]}
    spec = pod_object(TracePod("a", TraceAsk(1, 2, 1, 1000, ("A", "B"))))["spec"]
    assert spec["affinity"] == {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
    assert "affinity" not in pod_object(TracePod("a", TraceAsk(1, 2, 1, 1000, ())))["spec"]


def test_the_mix_asks_for_parts_of_cards_in_percent_and_for_no_memory_of_hosts() -> None:
    pods = [TracePod("a", TraceAsk(2000, 4096, 2, 455, ("T4",))), TracePod("b", TraceAsk(1, 7, 0, 0, ()))]
    kind = BUILT_IN.by_name["gpu"]
    assert mix_of_trace(pods) == mix_of(
        [
            TypicalRequest(2000, 0, DeviceAsk(kind, 2, (46, None, 46)), ("T4",), 1),
            TypicalRequest(1, 0, weight=1),
        ]
    )


def test_the_mix_has_the_commonest_requests_that_make_up_95_percent() -> None:
    rare = TracePod("r", TraceAsk(7, 8, 1, 1000, ()))
    mix = mix_of_trace([POD] * 60 + [PLAIN] * 36 + [rare] * 4)
    assert [(one.cpu, one.weight, one.ask is None) for one in mix.requests] == [(1, 36, True), (1, 60, False)]


@pytest.mark.parametrize(("most", "weights"), [(950, [950]), (949, [949, 51])])
def test_what_makes_up_95_percent_exactly_is_enough(most: int, weights: list[int]) -> None:
    mix = mix_of_trace([POD] * most + [PLAIN] * (1000 - most))
    assert sorted((one.weight for one in mix.requests), reverse=True) == weights


def test_of_requests_that_are_as_common_the_smaller_is_typical() -> None:
    pods = [TracePod(f"p{cpu}", TraceAsk(cpu, 9 - cpu, 0, 0, ())) for cpu in (3, 1, 2)]
    common = [TracePod("a", TraceAsk(9, 1, 0, 0, ()))] * 90
    mix = mix_of_trace([*common, *pods, *pods])
    assert sorted((one.cpu, one.weight) for one in mix.requests) == [(1, 2), (9, 90)]
