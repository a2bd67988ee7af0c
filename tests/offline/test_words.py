"""What the command line says of Pods and devices, in few words."""

import json
from typing import Any

import pytest
from builders import container, gpu, pod

from allocator.devices.words import how_many
from allocator.vocabulary.devicetype import BUILT_IN, FPGA_TYPE, GPU_TYPE, RDMA_TYPE, DeviceType, Unit, own_type
from allocator.vocabulary.holdings import Function, Share
from allocator.vocabulary.names import DEVICE_ORDER, ORIGINAL_REQUEST
from webhook.offline import words
from webhook.offline.account import DeviceUse
from webhook.offline.cluster import PodFate, Result
from webhook.offline.report import MOST_LISTED, show_groups
from webhook.settings import DialectSettings, WebhookSettings, types_of

GIB = 2**30
QUEUE = own_type("queue", "example.com/queue", Unit.UNITS)
TYPES = BUILT_IN.with_types([QUEUE])


@pytest.mark.parametrize(
    ("amount", "text"),
    [
        (0, "0 GiB"),
        (GIB, "1 GiB"),
        (80 * GIB, "80 GiB"),
        (3 * GIB // 2, "1.5 GiB"),
        (GIB // 20 - 1, "0 GiB"),
        (GIB // 20 + 1, "0.1 GiB"),
        (2 * GIB - 1, "2 GiB"),
    ],
)
def test_bytes_are_gib_to_the_tenth(amount: int, text: str) -> None:
    assert words.gib(amount) == text


@pytest.mark.parametrize(
    ("kind", "count", "text"),
    [
        (GPU_TYPE, 0, "0 GPUs"),
        (GPU_TYPE, 1, "1 GPU"),
        (GPU_TYPE, 2, "2 GPUs"),
        (RDMA_TYPE, 1, "1 rdma device"),
        (QUEUE, 3, "3 queue devices"),
    ],
)
def test_devices_are_counted(kind: DeviceType, count: int, text: str) -> None:
    assert how_many(count, kind) == text


@pytest.mark.parametrize(
    ("kind", "text"),
    [(GPU_TYPE, "GPU-01234567"), (FPGA_TYPE, "GPU-01234567"), (QUEUE, "GPU-0123456789-and-so-on-and-so-o")],
)
def test_an_id_is_cut_where_it_is_unique_and_a_name_later(kind: DeviceType, text: str) -> None:
    assert words.shown_id("GPU-0123456789-and-so-on-and-so-on-and-so-on", kind) == text[:32]


def test_the_id_of_an_assumed_card_keeps_its_whole_number() -> None:
    assert words.short_id("assumed-12-gpu-a100-1") == "assumed-12"


# --- shares


def card(**amounts: int) -> Share:
    return Share("gpu", "GPU-0", 0, {tail.replace("_", "-"): amount for tail, amount in amounts.items()})


FUNCTIONS = (Function(0, "0000:10:00.1"), Function(1, "0000:10:00.2"))

SHARES: dict[str, tuple[DeviceType, Share, str, str]] = {
    "a whole card": (
        GPU_TYPE,
        card(gpu_core=100, gpu_memory=80 * GIB, gpu_memory_ratio=100),
        "core 100 %, memory 80 GiB (100 %)",
        "whole",
    ),
    "equal parts": (
        GPU_TYPE,
        card(gpu_core=30, gpu_memory=24 * GIB, gpu_memory_ratio=30),
        "core 30 %, memory 24 GiB (30 %)",
        "30 %",
    ),
    "parts that differ": (
        GPU_TYPE,
        card(gpu_core=30, gpu_memory=8 * GIB, gpu_memory_ratio=10),
        "core 30 %, memory 8 GiB (10 %)",
        "core 30 %, memory 10 %",
    ),
    "memory alone": (
        GPU_TYPE,
        card(gpu_core=0, gpu_memory=8 * GIB, gpu_memory_ratio=10),
        "core 0 %, memory 8 GiB (10 %)",
        "memory 10 %",
    ),
    "an amount of two is stated": (GPU_TYPE, card(gpu_core=30), "gpu-core 30 %", "30 %"),
    "nothing is stated": (GPU_TYPE, card(), words._UNSTATED, words._UNSTATED),
    "a NIC with functions": (
        RDMA_TYPE,
        Share("rdma", "n", 0, {"rdma": 25}, functions=FUNCTIONS),
        "rdma 25 %, virtual function 0000:10:00.1, 0000:10:00.2",
        "25 %, function 0000:10:00.1, 0000:10:00.2",
    ),
    "units of a queue": (QUEUE, Share("queue", "fast", 0, {"queue": 3}), "queue 3", "3"),
    "as many units as percent of a whole": (QUEUE, Share("queue", "fast", 0, {"queue": 100}), "queue 100", "100"),
}


@pytest.mark.parametrize("name", SHARES)
def test_a_share_is_said_in_full_and_in_brief(name: str) -> None:
    kind, share, full, brief = SHARES[name]
    assert (words.share_of(share, kind), words.part_of(share, kind)) == (full, brief)


USES: dict[str, tuple[DeviceUse, str]] = {
    "two Pods on a card": (
        DeviceUse(
            "n",
            GPU_TYPE,
            0,
            "GPU-0",
            gpu(0),
            by_kubelet=False,
            held=(
                ("a", card(gpu_core=30, gpu_memory=24 * GIB, gpu_memory_ratio=30)),
                ("b", card(gpu_core=20, gpu_memory=GIB // 2, gpu_memory_ratio=1)),
            ),
        ),
        "core 50 %, 24.5 of 80 GiB",
    ),
    "a card that is gone": (
        DeviceUse(
            "n", GPU_TYPE, 0, "GPU-0", None, by_kubelet=False, held=(("a", card(gpu_core=30, gpu_memory=24 * GIB)),)
        ),
        "core 30 %, 24 GiB",
    ),
    "units of a queue that is gone": (
        DeviceUse(
            "n", QUEUE, 0, "fast", None, by_kubelet=False, held=(("a", Share("queue", "fast", 0, {"queue": 3})),)
        ),
        "3",
    ),
}


@pytest.mark.parametrize("name", USES)
def test_what_is_used_of_a_device_is_said_of_how_much(name: str) -> None:
    use, text = USES[name]
    assert words.used_of(use) == text


# --- what Pods ask for


def asks(annotations: dict[str, str] | None = None, labels: dict[str, str] | None = None) -> dict[str, Any]:
    """A Pod of an init container and two others, after admission."""
    containers = [
        container("main", requests={"koordinator.sh/gpu-core": 50, "cpu": 2}, limits={"koordinator.sh/gpu-core": 50}),
        container("side", limits={"koordinator.sh/rdma": 25}),
        container("plain", requests={"cpu": 1}),
    ]
    made = pod(*containers, annotations=annotations or {}, labels=labels or {})
    made["spec"]["initContainers"] = [container("first", requests={"koordinator.sh/fpga": 100})]
    return made


PLAIN = ("first: koordinator.sh/fpga=100", "main: koordinator.sh/gpu-core=50", "side: koordinator.sh/rdma=25")


def test_each_container_that_asks_has_a_line_and_init_containers_come_first() -> None:
    assert words.asked(asks(), TYPES) == words.admitted(asks(), TYPES) == PLAIN


def test_a_pod_that_asks_by_an_annotation_of_a_dialect_is_not_said_to_ask_for_nothing() -> None:
    kai = types_of(WebhookSettings(dialects={"kai": DialectSettings(enabled=True)}))
    made = pod(container("main"), annotations={"gpu-fraction": "0.5", "example.com/own": "x"})
    assert words.asked(made, kai) == ("gpu-fraction=0.5",)
    assert words.asked(made, BUILT_IN) == ()


def test_what_the_author_wrote_comes_before_what_admission_made_of_it() -> None:
    original = {"main": {"requests": {"nvidia.com/gpu": "1"}, "limits": {"nvidia.com/gpu": "2"}}}
    made = asks({ORIGINAL_REQUEST: json.dumps(original)})
    assert words.asked(made, TYPES) == (PLAIN[0], "main: nvidia.com/gpu=1 (limit 2)", PLAIN[2])
    assert words.admitted(made, TYPES) == PLAIN


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        "7",
        '{"main": 7}',
        '{"main": {"requests": 7}}',
        '{"main": {"requests": {"x": "\\ud800"}}}',
        "[" * 99999,
    ],
)
def test_an_original_request_that_cannot_be_read_is_none(text: str) -> None:
    assert words.asked(asks({ORIGINAL_REQUEST: text}), TYPES) == PLAIN


def test_wishes_and_the_classes_of_cpus_have_lines_and_long_ones_are_cut() -> None:
    labels = {"koordinator.sh/qosClass": "LSR", "koordinator.sh/priority-class": "koord-prod"}
    made = asks({DEVICE_ORDER: "a\n  " + "b" * 300}, labels)
    *_, classes, wish = words.asked(made, TYPES)
    assert classes == "qosClass=LSR priority-class=koord-prod"
    assert wish == f"{DEVICE_ORDER.rpartition('/')[2]} a {'b' * 198}..."
    assert words.asked(made, TYPES)[1] == "main: cpu=2 koordinator.sh/gpu-core=50"
    exact = asks({DEVICE_ORDER: "b" * 200})
    assert words.asked(exact, TYPES)[-1].endswith(" " + "b" * 200)


def test_of_more_pods_than_are_listed_those_without_a_node_come_first(capsys: pytest.CaptureFixture[str]) -> None:
    there = [Result(pod(name=f"p{n}", nodeName="n1"), PodFate.BOUND) for n in range(MOST_LISTED)]
    waits = Result(pod(name="waits"), PodFate.UNSCHEDULABLE, ("n1: 0 GPUs fit",))
    show_groups([*there, waits])
    lines = capsys.readouterr().out.splitlines()
    assert "waits" in lines[1]
    assert "p0 " in lines[2]
    show_groups([*there[1:], waits])
    assert "waits" in capsys.readouterr().out.splitlines()[MOST_LISTED]
