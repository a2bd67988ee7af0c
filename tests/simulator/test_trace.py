"""Traces: what is read, what is refused and how that is told, and orders of arrival."""

import pytest

from allocator.vocabulary.asks import DeviceAsk
from allocator.vocabulary.devicetype import BUILT_IN
from allocator.vocabulary.mix import TypicalRequest, mix_of
from console.simulator import trace
from console.simulator.documents import InputError
from console.simulator.trace import TraceAsk, TraceNode, TracePod, named, read_nodes, read_pods, shuffled
from console.simulator.traceobjects import mix_of_trace, node_objects, percent, pod_object

NODES = "sn,cpu_milli,memory_mib,gpu,model\n"
PODS = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,creation_time,deletion_time\n"
SHORT = "name,cpu_milli,memory_mib,num_gpu,gpu_milli\n"


def test_nodes_are_read_in_their_order() -> None:
    text = f"{NODES}b,96000,393216,8,G2\na,32000,262144,0,\nc,1,2,0,T4\n"
    assert read_nodes(text, "n.csv") == [
        TraceNode("b", 96000, 393216, 8, "G2"),
        TraceNode("a", 32000, 262144, 0, ""),
        TraceNode("c", 1, 2, 0, ""),
    ]


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
        pytest.param(f"{SHORT}a,1,2,1,500,6\n", "p.csv, line 2: 6 values where the first line names 5", id="long line"),
        pytest.param(f"{SHORT}a,1,2,1,500\na,1,2,1,500\n", "line 3: a is in line 2 already", id="twice"),
        pytest.param(f"{SHORT}a,-1,2,1,500\n", "line 2: cpu_milli is '-1': write a whole number", id="negative"),
        pytest.param(f"{SHORT}a,1e3,2,1,500\n", "cpu_milli is '1e3'", id="no integer"),
        pytest.param(f"{SHORT}a,٣,2,1,500\n", "cpu_milli is '٣'", id="other digits"),
        pytest.param(f"{SHORT}a,{'9' * 5000},2,1,500\n", "whole number from 0 to", id="a very long number"),
        pytest.param(f"{SHORT}a,1,2,65,500\n", "num_gpu is '65': write a whole number from 0 to 64", id="many GPUs"),
        pytest.param(f"{SHORT}a,1,2,1,1001\n", "gpu_milli is '1001': write a whole number from 0 to 1000", id="milli"),
        pytest.param(f"{SHORT}a,1,2,0064,500\n", "num_gpu is '0064'", id="zeros before"),
        pytest.param(f"{SHORT}a,1,1099511627777,0,0\n", "number from 0 to 1099511627776", id="too much memory"),
        pytest.param(f"{SHORT}a,1,2,1,0\n", "gpu_milli is 0 where num_gpu is 1", id="a GPU of nothing"),
        pytest.param(f"{SHORT}a,1,2,0,500\n", "gpu_milli is 500 where num_gpu is 0", id="no GPU of something"),
        pytest.param(f"{SHORT}A b,1,2,1,500\n", "name is 'A b': a name has", id="name"),
        pytest.param(f"{SHORT},1,2,1,500\n", "name is empty", id="no name"),
        pytest.param(f"{PODS}a,1,2,1,500,$(x),LS,1,2\n", "gpu_spec is '$(x)'", id="model"),
        pytest.param(f"{PODS}a,1,2,1,500,,LS,x,2\n", "creation_time is 'x': write whole seconds", id="time"),
        pytest.param(f"{PODS}a,1,2,1,500,,LS,.0,2\n", "creation_time is '.0': write whole seconds", id="no seconds"),
        pytest.param(f"{PODS}a,1,2,1,500,,LS,5.x,\n", "creation_time is '5.x': write whole seconds", id="no fraction"),
        pytest.param(f"{PODS}a,1,2,1,500,,LS,5.50,\n", "creation_time is '5.50': write", id="half a second"),
        pytest.param(f"{PODS}a,1,2,1,500,,LS,,٣\n", "deletion_time is '٣': write whole seconds", id="digits of a time"),
        pytest.param(f"{PODS}a,1,2,1,500,,LS,10000000000000,\n", "creation_time is '10000000000000'", id="a late time"),
        pytest.param(f"{PODS}a,1,2,1,500,,LS,9,2\n", "deletion_time is 2, before creation_time", id="ends too soon"),
        pytest.param(f'{SHORT}"a,1,2,1,500\n', "not CSV", id="an open quotation mark"),
    ],
)
def test_a_list_that_cannot_be_used_is_refused_by_line_with_a_remedy(text: str, told: str) -> None:
    with pytest.raises(InputError) as refused:
        read_pods(text, "p.csv")
    assert told in str(refused.value)
    assert len(str(refused.value)) < 300


def test_as_much_as_may_be_is_read() -> None:
    name, model = "a" * 63, "M" * 63
    text = (
        f"{PODS}{name},1099511627776,2,64,1000,{model},LS,0,9999999999999.000\nb,00,2,0,0,,LS,5.,5\nc,0,2,0,0,,LS,,9\n"
    )
    assert read_pods(text, "p.csv") == [
        TracePod(name, TraceAsk(1_099_511_627_776, 2, 64, 1000, (model,)), 0, 9_999_999_999_999),
        TracePod("b", TraceAsk(0, 2, 0, 0, ()), 5, 5),
        TracePod("c", TraceAsk(0, 2, 0, 0, ()), None, 9),
    ]


@pytest.mark.parametrize("name", ["a", "a-b", "a.b-c", "0", "ab-c"])
def test_names_may_have_dashes_and_dots_inside(name: str) -> None:
    assert [pod.name for pod in read_pods(f"{SHORT}{name},1,2,0,0\n", "p.csv")] == [name]
    assert [node.model for node in read_nodes(f"{NODES}n,1,2,1,{name}_X\n", "n.csv")] == [f"{name}_X"]


@pytest.mark.parametrize("name", ["-a", "a-", "ab.", ".ab", "a_b", "Ab", "a" * 64])
def test_what_is_no_name_is_refused(name: str) -> None:
    with pytest.raises(InputError) as refused:
        read_pods(f"{SHORT}{name},1,2,0,0\n", "p.csv")
    assert str(refused.value) == (
        f"p.csv, line 2: name is '{name[:40]}': a name has 1 to 63 small letters, digits, dashes and dots, and begins "
        "and ends with a letter or digit"
    )


@pytest.mark.parametrize("model", ["-a", "a-", "ab.", "_ab", "a b", "ab_", "a" * 64])
def test_what_is_no_model_is_refused(model: str) -> None:
    with pytest.raises(InputError) as refused:
        read_nodes(f"{NODES}n,1,2,1,{model}\n", "n.csv")
    assert str(refused.value) == (
        f"n.csv, line 2: model is '{model[:40]}': a model has at most 63 letters, digits, dashes, dots and underscores"
    )


def test_a_line_is_named_by_its_number_and_a_long_name_is_cut() -> None:
    long = "x" * 90
    with pytest.raises(InputError) as refused:
        read_pods(f"{SHORT}\na,1,2,0,0\n{long},1,2,0,0\n", "p.csv")
    assert str(refused.value).startswith("p.csv, line 4: name is 'xxxx")
    rows = list(trace._rows(f"{SHORT}{long},1,2,0,0\n", "p.csv", ("name",)))
    assert len(rows) == 1
    with pytest.raises(InputError) as refused:
        list(trace._rows(f"{SHORT}a,1,2,0,0\n\n{long},1,2,0,0\n{long},1,2,0,0\n", "p.csv", ("name",)))
    assert str(refused.value) == f"p.csv, line 5: {'x' * 80} is in line 4 already; give it another name"
    with pytest.raises(InputError, match=r"^p.csv, line 3: not CSV \(.*\); correct it$"):
        read_pods(f'{SHORT}a,1,2,0,0\n"b"c,1,2,0,0\n', "p.csv")


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


@pytest.mark.parametrize("seed", range(4))
def test_no_more_pods_arrive_than_are_needed(seed: int) -> None:
    pods = [POD, PLAIN, TracePod("c", TraceAsk(1, 2, 1, 300, ()))]
    asked = [pod.ask.gpu_milli for pod in shuffled(pods, 5000, seed)]
    assert sum(asked[:-1]) < 5000 <= sum(asked)
    assert {0, 300, 500} == set(asked)
    assert [pod.ask.gpu_milli for pod in shuffled([POD], 500, seed)] == [500]
    assert [pod.ask.gpu_milli for pod in shuffled([POD], 501, seed)] == [500, 500]


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
