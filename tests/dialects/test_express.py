"""What a dialect can say is written in it and read back as the same; what it cannot say is told."""

from typing import Any

import pytest
from builders import MIB, container, pod
from dialects.rows import types
from hypothesis import given, settings
from hypothesis import strategies as st
from trials import examples

from allocator.request.express import Expressed, express
from allocator.request.original import read_asks
from allocator.vocabulary.asks import (
    ContainerAsk,
    DeviceAsk,
    Operator,
    PartOfName,
    PodRequest,
    Requirement,
    Scope,
    Selector,
    TypeHint,
    Wishes,
)
from allocator.vocabulary.delivery import AskedLimit
from allocator.vocabulary.devicetype import BUILT_IN, GPU_TYPE, RDMA_TYPE, DeviceTypes
from allocator.vocabulary.dialects import PEERS, Dialect, Term
from allocator.vocabulary.names import Phase

ELASTIC = {"memoryUnit": "1Mi"}


def table(name: str) -> tuple[DeviceTypes, Dialect]:
    known = BUILT_IN if name in {"koordinator.sh", "kubernetes.io", "nvidia.com/gpu"} else None
    known = known or types(name, ELASTIC if name == "elastic-gpu" else None)
    return known, next(one for one in known.spoken["gpu"] if one.name == name)


NAMES = ["koordinator.sh", "kubernetes.io", "nvidia.com/gpu", *(one.name for one in PEERS)]
amounts = st.one_of(
    st.just((100, None, 100)),
    st.tuples(st.integers(0, 100), st.integers(1, 100).map(lambda n: n * 256 * MIB), st.none()),
    st.tuples(st.integers(0, 100), st.integers(1, 90_000).map(lambda n: n * MIB), st.none()),
    st.tuples(st.integers(0, 100), st.none(), st.integers(1, 100)),
    st.integers(1, 99).map(lambda n: (n, None, n)),
)
asked = st.builds(lambda count, of: DeviceAsk(GPU_TYPE, count, of), st.integers(1, 16), amounts)


def written(name: str, *asks: DeviceAsk, one_device: bool = False) -> tuple[dict[str, Any], Any]:
    """The Pod that asks for these in a dialect, and what was written."""
    _, dialect = table(name)
    request = PodRequest(tuple(ContainerAsk(c, Phase.APP, ask) for c, ask in zip("abc", asks, strict=False)))
    made = express(request, dialect, GPU_TYPE, "a", one_device=one_device)
    apps = [container(c, limits=made.resources.get(c)) for c, _ in zip("abc", asks, strict=False)]
    return pod(*apps, annotations=made.annotations), made


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=examples(60), deadline=None)
@given(ask=asked)
def test_what_a_dialect_writes_it_reads_back_as_the_same(name: str, ask: DeviceAsk) -> None:
    obj, made = written(name, ask)
    if made.missing:
        assert all(made.missing)
        return
    reading = read_asks(obj, table(name)[0])
    assert reading.problems == ()
    (read,) = reading.request.containers
    assert (read.ask.count, read.ask.amounts) == (ask.count, ask.amounts)


@pytest.mark.parametrize("name", ["hami", "volcano", "koordinator.sh"])
@settings(max_examples=examples(60), deadline=None)
@given(ask=asked)
def test_these_can_say_everything_but_unlimited_and_whole_at_once(name: str, ask: DeviceAsk) -> None:
    _, made = written(name, ask)
    if made.missing:  # percentages that the card count does not divide, and the like, exist in none of these
        pytest.fail("; ".join(made.missing))


def ask(count: int = 1, core: int = 0, mib: int = 0, ratio: int | None = None) -> DeviceAsk:
    return DeviceAsk(GPU_TYPE, count, (core, mib * MIB or None, ratio))


WHOLE = ask(core=100, ratio=100)
GPUSHARE, TENCENT = "gpushare (Alibaba Cloud gpushare)", "tencent (Tencent gpu-manager)"
KAI, ELASTIC_GPU = "kai (KAI Scheduler and Run:ai)", "elastic-gpu (elastic-gpu and nano-gpu)"
NO_PERCENT = "states no memory in percent of a card"
MISSING = {
    "gpushare has no compute": ("gpushare", ask(core=30, mib=1024), [f"{GPUSHARE} states no compute (30 % here)"]),
    "gpushare has no percent": ("gpushare", ask(ratio=50), [f"{GPUSHARE} {NO_PERCENT} (50 % here)"]),
    "gpushare counts GiB": (
        "gpushare",
        ask(mib=1000),
        [f"{GPUSHARE} states memory in units of 1Gi, of which 1000Mi is no multiple"],
    ),
    "gpushare takes one card": (
        "gpushare",
        ask(2, mib=512),
        [f"{GPUSHARE} states no shares of several cards (2 here)"],
    ),
    "gpushare has no whole cards": ("gpushare", WHOLE, [f"{GPUSHARE} has no names for this combination"]),
    "nor several": ("gpushare", ask(2, core=100, ratio=100), [f"{GPUSHARE} has no names for this combination"]),
    "Tencent limits compute": ("tencent", ask(mib=512), [f"{TENCENT} cannot leave compute unlimited"]),
    "Tencent counts blocks": (
        "tencent",
        ask(core=50, mib=300),
        [f"{TENCENT} states memory in units of 256Mi, of which 300Mi is no multiple"],
    ),
    "Tencent has no percent": ("tencent", ask(core=50, ratio=50), [f"{TENCENT} {NO_PERCENT} (50 % here)"]),
    "KAI has one number": (
        "kai",
        ask(core=30, ratio=50),
        [f"{KAI} {NO_PERCENT} (50 % here)", f"{KAI} states no compute (30 % here)"],
    ),
    "KAI has no whole cards": ("kai", WHOLE, [f"{KAI} has no names for this combination"]),
    "plain devices are whole": (
        "nvidia.com/gpu",
        ask(core=50, ratio=50),
        [f"nvidia.com/gpu {NO_PERCENT} (50 % here)", "nvidia.com/gpu states no compute (50 % here)"],
    ),
    "plain devices have no bytes": (
        "amd",
        ask(mib=512),
        ["amd (AMD's device plugin) states no memory in bytes (512Mi here)"],
    ),
    "elastic-gpu takes one card": (
        "elastic-gpu",
        ask(2, core=30, ratio=30),
        [f"{ELASTIC_GPU} states no shares of several cards (2 here)"],
    ),
    "HAMi counts MiB": (
        "hami",
        DeviceAsk(GPU_TYPE, 2, (0, MIB // 2, None)),
        ["hami (HAMi) states memory in units of 1Mi, of which 512Ki is no multiple"],
    ),
    "Volcano counts MiB": (
        "volcano",
        DeviceAsk(GPU_TYPE, 1, (0, MIB + 1, None)),
        ["volcano (Volcano vGPU) states memory in units of 1Mi, of which 1048577 is no multiple"],
    ),
}


@pytest.mark.parametrize(("name", "wanted", "told"), MISSING.values(), ids=MISSING)
def test_what_a_dialect_cannot_say_is_told(name: str, wanted: DeviceAsk, told: list[str]) -> None:
    assert written(name, wanted)[1].missing == [f"container a: {one}" for one in told]


def test_a_dialect_that_needs_a_percentage_of_all_lacks_bytes_alone() -> None:
    dialect = Dialect("x", "gpu", (Term("x/gpu", "gpu"),), own=False, needs=("x/gpu",))
    request = PodRequest((ContainerAsk("a", Phase.APP, ask(mib=512)),))
    assert express(request, dialect, GPU_TYPE, "a").missing == ["container a: x states no memory in bytes (512Mi here)"]


WRITTEN = {
    "HAMi": (
        "hami",
        ask(2, core=30, mib=4096),
        {"nvidia.com/gpu": "2", "nvidia.com/gpucores": "30", "nvidia.com/gpumem": "4096"},
    ),
    "HAMi, whole": ("hami", ask(2, core=100, ratio=100), {"nvidia.com/gpu": "2"}),
    "HAMi, unlimited": (
        "hami",
        ask(ratio=100),
        {"nvidia.com/gpu": "1", "nvidia.com/gpumem-percentage": "100", "nvidia.com/gpucores": "0"},
    ),
    "Volcano": (
        "volcano",
        ask(core=10, ratio=20),
        {"volcano.sh/vgpu-number": "1", "volcano.sh/vgpu-cores": "10", "volcano.sh/vgpu-memory-percentage": "20"},
    ),
    "Volcano share": ("volcano-share", ask(mib=512), {"volcano.sh/gpu-memory": "512"}),
    "Volcano share, whole": ("volcano-share", ask(3, core=100, ratio=100), {"volcano.sh/gpu-number": "3"}),
    "gpushare": ("gpushare", ask(mib=3 * 1024), {"aliyun.com/gpu-mem": "3"}),
    "Tencent": ("tencent", ask(core=50, mib=512), {"tencent.com/vcuda-core": "50", "tencent.com/vcuda-memory": "2"}),
    "Tencent, whole": ("tencent", ask(2, core=100, ratio=100), {"tencent.com/vcuda-core": "200"}),
    "elastic-gpu": ("elastic-gpu", ask(mib=256), {"elasticgpu.io/gpu-memory": "256"}),
    "Koordinator": (
        "koordinator.sh",
        ask(2, core=30, mib=1024),
        {"koordinator.sh/gpu.shared": "2", "koordinator.sh/gpu-core": "60", "koordinator.sh/gpu-memory": "2Gi"},
    ),
    "Koordinator, alike": ("koordinator.sh", ask(core=50, ratio=50), {"koordinator.sh/gpu": "50"}),
    "Koordinator, half of each of two": (
        "koordinator.sh",
        ask(2, core=50, ratio=50),
        {"koordinator.sh/gpu.shared": "2", "koordinator.sh/gpu": "100"},
    ),
    "Koordinator, a MiB": ("koordinator.sh", ask(mib=1), {"koordinator.sh/gpu-memory": "1Mi"}),
    "Koordinator, a KiB": (
        "koordinator.sh",
        DeviceAsk(GPU_TYPE, 1, (0, 1024, None)),
        {"koordinator.sh/gpu-memory": "1024"},
    ),
    "HAMi, a TiB": ("hami", ask(mib=2**20), {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "1048576"}),
    "HAMi, a card in parts": (
        "hami",
        ask(core=100, mib=1024),
        {"nvidia.com/gpu": "1", "nvidia.com/gpucores": "100", "nvidia.com/gpumem": "1024"},
    ),
    "elastic-gpu, alike": ("elastic-gpu", ask(core=30, ratio=30), {"nano-gpu/gpu-percent": "30"}),
    "elastic-gpu, whole": ("elastic-gpu", ask(3, core=100, ratio=100), {"elasticgpu.io/gpu-core": "300"}),
    "plain": ("nvidia.com/gpu", ask(4, core=100, ratio=100), {"nvidia.com/gpu": "4"}),
}


@pytest.mark.parametrize(("name", "wanted", "limits"), WRITTEN.values(), ids=WRITTEN)
def test_a_request_is_written_plainly(name: str, wanted: DeviceAsk, limits: dict[str, str]) -> None:
    _, made = written(name, wanted)
    assert (made.missing, made.resources) == ([], {"a": limits})


def test_an_annotation_names_its_container_if_it_is_not_the_first() -> None:
    _, dialect = table("kai")
    request = PodRequest((ContainerAsk("b", Phase.APP, ask(2, core=30, ratio=30)),))
    made = express(request, dialect, GPU_TYPE, "a")
    assert made.annotations == {
        "gpu-fraction": "0.3",
        "gpu-fraction-num-devices": "2",
        "gpu-fraction-container-name": "b",
    }
    assert express(request, dialect, GPU_TYPE, "c").annotations == made.annotations
    assert express(request, dialect, GPU_TYPE, "b").annotations.keys() == made.annotations.keys() - {
        "gpu-fraction-container-name"
    }


def test_what_concerns_several_containers_is_told() -> None:
    two = (ask(mib=1024), ask(mib=2048))
    told = {
        (name, one_device): written(name, *two, one_device=one_device)[1].missing
        for name in NAMES
        for one_device in (False, True)
    }
    assert told["kai", False] == told["kai", True] == [f"{KAI} asks for one container of a Pod, and 2 ask here"]
    assert told["gpushare", True] == told["hami", False] == []
    assert told["gpushare", False] == [
        f"the containers need not share one card, and {GPUSHARE} puts all containers of a Pod on one card"
    ]
    assert told["hami", True] == ["the containers must share one card, and hami (HAMi) cannot say that"]
    assert written("gpushare", *two[:1])[1].missing == written("hami", *two[:1], one_device=True)[1].missing == []
    assert written("volcano-share", *two, one_device=True)[1].missing == []
    assert written("volcano-share", WHOLE, WHOLE)[1].missing == []
    assert written("volcano-share", ask(mib=512), WHOLE, one_device=True)[1].missing == [
        "volcano-share (Volcano GPU share) reads one of volcano.sh/gpu-memory and volcano.sh/gpu-number in a Pod"
    ]


def test_a_fraction_below_a_tenth_is_written_with_both_digits() -> None:
    assert written("kai", ask(core=5, ratio=5))[1].annotations == {"gpu-fraction": "0.05"}


def test_what_a_pod_asks_of_another_type_is_no_matter_of_the_dialect() -> None:
    rdma = ContainerAsk("a", Phase.APP, DeviceAsk(RDMA_TYPE, 1, (50,)))
    half = ContainerAsk("b", Phase.APP, ask(core=50, ratio=50))
    for name in ("kai", "hami", "gpushare"):
        assert express(PodRequest((rdma,)), table(name)[1], GPU_TYPE, "a") == Expressed()
    made = express(PodRequest((rdma, half)), table("kai")[1], GPU_TYPE, "a")
    assert made == Expressed({}, {"gpu-fraction": "0.5", "gpu-fraction-container-name": "b"})


def test_cards_of_another_vendor_are_not_asked_for() -> None:
    _, dialect = table("hami")
    wanted = DeviceAsk(GPU_TYPE, 1, (100, None, 100), vendor="amd")
    made = express(PodRequest((ContainerAsk("a", Phase.APP, wanted),)), dialect, GPU_TYPE, "a")
    assert made.missing == ["hami (HAMi) wants GPUs of nvidia, not of amd"]


MODEL, UUID = "koordgate.io/model", "koordgate.io/uuid"
T4, NO_A100 = PartOfName(MODEL, ("T4", ""), wanted=True), PartOfName(MODEL, ("A100",), wanted=False)
IDS, NO_IDS = Requirement(UUID, Operator.IN, ("x", "y")), Requirement(UUID, Operator.NOT_IN, ("z",))


def selecting(name: str, *requirements: Requirement | PartOfName, scope: Scope | None = None) -> Expressed:
    """A whole card in a dialect, chosen so."""
    hint = TypeHint(Selector(requirements) if requirements else None, scope=scope)
    wishes = Wishes(hints=(("rdma", TypeHint()), ("gpu", hint)))
    request = PodRequest((ContainerAsk("a", Phase.APP, ask(mib=1024)),), wishes=wishes)
    return express(request, table(name)[1], GPU_TYPE, "a")


@pytest.mark.parametrize(
    ("name", "requirements", "scope", "annotations"),
    [
        (
            "hami",
            (T4, NO_A100, IDS, NO_IDS),
            Scope.NUMA_NODE,
            {
                "nvidia.com/use-gputype": "T4,NVIDIA",
                "nvidia.com/nouse-gputype": "A100",
                "nvidia.com/use-gpuuuid": "x,y",
                "nvidia.com/nouse-gpuuuid": "z",
                "nvidia.com/numa-bind": "true",
            },
        ),
        ("hami", (), Scope.PCIE, {}),
        ("hami", (), None, {}),
        ("volcano", (NO_IDS,), Scope.NUMA_NODE, {"volcano.sh/vgpu-nouse-gpuuuid": "z"}),
    ],
)
def test_how_cards_are_selected_is_written_in_the_annotations_of_the_dialect(
    name: str, requirements: tuple[Requirement | PartOfName, ...], scope: Scope | None, annotations: dict[str, str]
) -> None:
    made = selecting(name, *requirements, scope=scope)
    assert (made.annotations, made.missing) == (annotations, [])


def test_a_selection_that_a_dialect_has_no_annotation_for_is_told() -> None:
    told = "cannot select devices by {} as this Pod does"
    labels = [
        Requirement(key, operator, ("v",)) for key in ("a", "zone") for operator in (Operator.IN, Operator.NOT_IN)
    ]
    assert selecting("hami", IDS, IDS, *labels).missing == [
        f"hami (HAMi) {told.format(key)}" for key in (UUID, "a", "a", "zone", "zone")
    ]
    assert selecting("gpushare", T4, NO_IDS, Requirement(UUID, Operator.EXISTS, ())).missing == [
        f"{GPUSHARE} {told.format(key)}" for key in (MODEL, UUID, UUID)
    ]


OF_A = "nvidia.com/container.a.gpu-memory"
EIGHT, HALF = ask(mib=8192), ask(core=50, ratio=50)
LIMITED: dict[str, tuple[str, DeviceAsk, AskedLimit, dict[str, str] | list[str]]] = {
    "KAI, bytes": (
        "kai",
        EIGHT,
        AskedLimit(12 * 2**30),
        {f"{OF_A}.request": "8Gi", f"{OF_A}.limit": "12Gi"},
    ),
    "KAI, bytes of each of two": (
        "kai",
        ask(2, mib=8192),
        AskedLimit(12 * 2**30),
        {"gpu-fraction-num-devices": "2", f"{OF_A}.request": "8Gi", f"{OF_A}.limit": "12Gi"},
    ),
    "KAI, a part": (
        "kai",
        HALF,
        AskedLimit(portion=80_000),
        {"gpu-fraction": "0.5", "kai.scheduler/container.a.gpu-memory.portion.limit": "0.8"},
    ),
    "KAI, a small part more": (
        "kai",
        ask(core=1, ratio=1),
        AskedLimit(portion=1001),
        {"gpu-fraction": "0.01", "kai.scheduler/container.a.gpu-memory.portion.limit": "0.01001"},
    ),
    "KAI, a part beside bytes": (
        "kai",
        EIGHT,
        AskedLimit(portion=80_000),
        [f"{KAI} cannot state a limit of memory above the request beside this request (80% here)"],
    ),
    "KAI, bytes beside a part": (
        "kai",
        HALF,
        AskedLimit(12 * 2**30),
        [f"{KAI} cannot state a limit of memory above the request beside this request (12Gi here)"],
    ),
    "KAI, a whole card": (
        "kai",
        HALF,
        AskedLimit(portion=100_000),
        [f"{KAI} cannot state a limit of memory above the request beside this request (100% here)"],
    ),
    "HAMi": (
        "hami",
        EIGHT,
        AskedLimit(12 * 2**30),
        ["hami (HAMi) cannot state a limit of memory above the request (12Gi here)"],
    ),
    "our own names": (
        "kubernetes.io",
        EIGHT,
        AskedLimit(12 * 2**30),
        {"gpu-memory-limit.koordgate.io/a": "12Gi"},
    ),
    "our own names, a part": (
        "nvidia.com/gpu",
        WHOLE,
        AskedLimit(portion=80_500),
        {"gpu-memory-limit.koordgate.io/a": "80.5%"},
    ),
}


@pytest.mark.parametrize(("name", "wanted", "limit", "told"), LIMITED.values(), ids=LIMITED)
def test_a_limit_above_the_request_is_written_where_the_dialect_can_say_it(
    name: str, wanted: DeviceAsk, limit: AskedLimit, told: dict[str, str] | list[str]
) -> None:
    sizes = (("a", limit.size), ("x", 1)) if limit.size else ()
    portions = (("a", limit.portion),) if limit.portion else ()
    request = PodRequest(
        (ContainerAsk("a", Phase.APP, wanted),), memory_limits=tuple(sizes), memory_portions=tuple(portions)
    )
    made = express(request, table(name)[1], GPU_TYPE, "x")
    assert (made.missing, made.annotations) == (
        ([f"container a: {one}" for one in told], {})
        if isinstance(told, list)
        else ([], {**told, **({"gpu-fraction-container-name": "a"} if "gpu-fraction" in told else {})})
    )


def test_bytes_that_are_no_whole_units_are_written_as_a_quantity_where_a_dialect_has_that() -> None:
    odd = DeviceAsk(GPU_TYPE, 1, (0, MIB + 1, None))
    assert written("kai", odd)[1].annotations == {f"{OF_A}.request": "1048577"}
    assert written("kai", DeviceAsk(GPU_TYPE, 1, (0, MIB // 2, None)))[1].missing
