"""Traces: what is read, what is refused and how that is told, and orders of arrival."""

import pytest

from allocator.vocabulary.asks import DeviceAsk
from allocator.vocabulary.devicetype import BUILT_IN
from allocator.vocabulary.mix import TypicalRequest, mix_of
from webhook.offline.documents import InputError
from webhook.offline.trace import TraceAsk, TraceNode, TracePod, named, read_nodes, read_pods, shuffled
from webhook.offline.traceobjects import mix_of_trace, node_objects, percent, pod_object

NODES = "sn,cpu_milli,memory_mib,gpu,model\n"
PODS = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,creation_time,deletion_time\n"
SHORT = "name,cpu_milli,memory_mib,num_gpu,gpu_milli\n"


def test_nodes_are_read_in_their_order() -> None:
    text = f"{NODES}b,96000,393216,8,G2\na,32000,262144,0,\n"
    assert read_nodes(text, "n.csv") == [TraceNode("b", 96000, 393216, 8, "G2"), TraceNode("a", 32000, 262144, 0, "")]


def test_pods_are_read_with_their_models_and_times() -> None:
    text = f"{PODS}a,6000,12288,1,460,V100M32|V100M16,LS,5,9.0\nb,1,2,0,0,T4,BE,,\n"
    assert read_pods(text, "p.csv") == [
        TracePod("a", TraceAsk(6000, 12288, 1, 460, ("V100M16", "V100M32")), 5, 9),
        TracePod("b", TraceAsk(1, 2, 0, 0, ())),
    ]


def test_models_and_times_may_be_left_out_and_other_columns_are_not_read() -> None:
    assert read_pods("more,name,cpu_milli,memory_mib,num_gpu,gpu_milli\r\nx,a,1,2,2,1000\r\n\r\n", "p.csv") == [
        TracePod("a", TraceAsk(1, 2, 2, 1000, ()))
    ]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        pytest.param("", "p.csv: the first line lacks name, cpu_milli", id="nothing"),
        pytest.param(SHORT, "p.csv: nothing below the first line", id="only a header"),
        pytest.param("name,cpu_milli\na,1\n", "the first line lacks memory_mib, num_gpu, gpu_milli", id="columns"),
        pytest.param(f"{SHORT}a,1,2,1\n", "p.csv, line 2: 4 values where the first line names 5", id="short line"),
        pytest.param(f"{SHORT}a,1,2,1,500\na,1,2,1,500\n", "line 3: a is in line 2 already", id="twice"),
        pytest.param(f"{SHORT}a,-1,2,1,500\n", "line 2: cpu_milli is '-1': write a whole number", id="negative"),
        pytest.param(f"{SHORT}a,1e3,2,1,500\n", "cpu_milli is '1e3'", id="no integer"),
        pytest.param(f"{SHORT}a,٣,2,1,500\n", "cpu_milli is '٣'", id="other digits"),
        pytest.param(f"{SHORT}a,{'9' * 5000},2,1,500\n", "whole number from 0 to", id="a very long number"),
        pytest.param(f"{SHORT}a,1,2,65,500\n", "num_gpu is '65': write a whole number from 0 to 64", id="many GPUs"),
        pytest.param(f"{SHORT}a,1,2,1,1001\n", "gpu_milli is '1001': write a whole number from 0 to 1000", id="milli"),
        pytest.param(f"{SHORT}a,1,2,1,0\n", "gpu_milli is 0 where num_gpu is 1", id="a GPU of nothing"),
        pytest.param(f"{SHORT}a,1,2,0,500\n", "gpu_milli is 500 where num_gpu is 0", id="no GPU of something"),
        pytest.param(f"{SHORT}A b,1,2,1,500\n", "name is 'A b': a name has", id="name"),
        pytest.param(f"{SHORT},1,2,1,500\n", "name is empty", id="no name"),
        pytest.param(f"{PODS}a,1,2,1,500,$(x),LS,1,2\n", "gpu_spec is '$(x)'", id="model"),
        pytest.param(f"{PODS}a,1,2,1,500,,LS,x,2\n", "creation_time is 'x': write whole seconds", id="time"),
        pytest.param(f"{PODS}a,1,2,1,500,,LS,9,2\n", "deletion_time is 2, before creation_time", id="ends too soon"),
        pytest.param(f'{SHORT}"a,1,2,1,500\n', "not CSV", id="an open quotation mark"),
    ],
)
def test_a_list_that_cannot_be_used_is_refused_by_line_with_a_remedy(text: str, told: str) -> None:
    with pytest.raises(InputError) as refused:
        read_pods(text, "p.csv")
    assert told in str(refused.value)
    assert len(str(refused.value)) < 300


def test_a_node_with_gpus_names_their_model() -> None:
    with pytest.raises(InputError, match="line 2: model is empty, but the node has GPUs"):
        read_nodes(f"{NODES}a,1,2,1,\n", "n.csv")


POD = TracePod("a", TraceAsk(1, 2, 1, 500, ()))
PLAIN = TracePod("b", TraceAsk(1, 2, 0, 0, ()))


def test_pods_arrive_until_they_ask_for_enough_each_once_before_any_is_repeated() -> None:
    arriving = shuffled([POD, PLAIN], 1600, 3)
    assert sum(pod.ask.gpu_milli for pod in arriving) == 2000
    assert {pod.name for pod in arriving[:2]} == {"a", "b"}
    assert len({pod.name for pod in arriving}) == len(arriving)
    assert arriving == shuffled([POD, PLAIN], 1600, 3)


def test_no_order_of_pods_without_gpus_ever_asks_for_enough() -> None:
    with pytest.raises(InputError, match="no Pod of the trace asks for a GPU"):
        shuffled([PLAIN], 1000, 1)


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
    assert [one["minor"] for one in device["spec"]["devices"]] == [0, 1, 2]


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
