"""Amounts in other products' names and annotations at their bounds: what is read, and every sentence of a refusal."""

from dataclasses import replace
from typing import Any

import pytest
from builders import ask, container, pod_spec

from allocator.request.devices import read_pod
from allocator.request.statedamounts import StatedAmounts
from allocator.vocabulary.asks import DeviceAsk
from allocator.vocabulary.devicetype import BUILT_IN, GPU_TYPE, DeviceType, DeviceTypes, Unit
from allocator.vocabulary.dialects import DIALECTS, PEERS, Dialect, Term

PEER = {one.name: one for one in PEERS}
HAMI, KAI, TENCENT, VOLCANO = (PEER[name] for name in ("hami", "kai", "tencent", "volcano"))
H, T = "nvidia.com/gpu", "tencent.com/vcuda-"
LIMITS = "spec.containers[0].resources.limits"


def read(dialect: Dialect, limits: dict[str, Any], annotations: dict[str, Any] | None = None) -> DeviceAsk | list[str]:
    """What a container asks for, or what is wrong with it."""
    types = DeviceTypes(BUILT_IN.types, (*DIALECTS, dialect))
    reading = read_pod(pod_spec(container(limits=limits)), types=types, annotations=annotations)
    if reading.problems:
        return [str(one) for one in reading.problems]
    (one,) = reading.request.containers
    return replace(one.ask, vendor="")


MORE = "is more memory than any device has; write a number of"
# The unit of memory in bytes, the amount, and the bytes that are asked for or how the refusal goes on
UNITS: dict[str, tuple[int, int, int | str]] = {
    "as much as any card could have": (2**10, 2**40, 2**50),
    "a unit more": (2**10, 2**40 + 1, f"1099511627777 times 1Ki {MORE} 1Ki; 1099511627777 are 1073741825"),
    "units of less than a KiB are bytes of something": (2**10 - 1, 2**41, (2**10 - 1) * 2**41),
    "as much in MiB": (2**20, 2**30, 2**50),
    "bytes in place of MiB": (2**20, 2**33, f"8589934592 times 1Mi {MORE} 1Mi; 8Gi are 8192"),
    "a byte more, rounded up": (2**20, 2**33 + 1, f"8589934593 times 1Mi {MORE} 1Mi; 8589934593 are 8193"),
    "the most bytes that could be meant": (2**20, 2**50, f"1125899906842624 times 1Mi {MORE} 1Mi; 1Pi are 1073741824"),
    "more than could be meant": (2**20, 2**50 + 2**20, f"1125899907891200 times 1Mi {MORE} 1Mi"),
}


@pytest.mark.parametrize(("unit", "amount", "expected"), UNITS.values(), ids=UNITS)
def test_memory_in_units_of_an_installation_is_bounded_by_what_a_card_could_have(
    unit: int, amount: int, expected: int | str
) -> None:
    told = [f"{LIMITS}[{H}mem]: {expected}"] if isinstance(expected, str) else ask(memory=expected)
    assert read(HAMI.with_unit(unit), {f"{H}mem": amount}) == told


FRACTION = "is not a decimal number above 0 and below 1; write one"
WHOLE = "is not a whole number above 0; write one"


@pytest.mark.parametrize(
    ("key", "text", "expected"),
    [
        ("gpu-fraction", "0.01", ask(core=1, ratio=1)),
        ("gpu-fraction", "0.001", ask(core=1, ratio=1)),
        ("gpu-fraction", "0.99", ask(core=99, ratio=99)),
        ("gpu-fraction", "0.501", ask(core=51, ratio=51)),
        ("gpu-fraction", "5e-1", ask(core=50, ratio=50)),
        ("gpu-fraction", "1", f"'1' {FRACTION}"),
        ("gpu-fraction", "1.5", f"'1.5' {FRACTION}"),
        ("gpu-fraction", "0", f"'0' {FRACTION}"),
        ("gpu-fraction", "0.0", f"'0.0' {FRACTION}"),
        ("gpu-fraction", ".", f"'.' {FRACTION}"),
        ("gpu-fraction", "half", f"'half' {FRACTION}"),
        ("gpu-fraction", "-0.5", f"'-0.5' {FRACTION}"),
        ("gpu-memory", "1", ask(memory=2**20)),
        ("gpu-memory", "0", f"'0' {WHOLE}"),
        ("gpu-memory", "1.5", f"'1.5' {WHOLE}"),
        ("gpu-memory", "1Gi", f"'1Gi' {WHOLE}"),
        ("gpu-memory", "9" * 18, None),
    ],
)
def test_an_annotation_states_a_number_of_its_kind_within_its_bounds(
    key: str, text: str, expected: DeviceAsk | str | None
) -> None:
    found = read(KAI, {}, {key: text})
    if expected is None:
        assert isinstance(found, list)
        assert "is more memory than any device has" in found[0]
    else:
        assert found == ([f"metadata.annotations[{key}]: {expected}"] if isinstance(expected, str) else expected)


def test_an_annotation_that_is_no_text_is_refused() -> None:
    told: Any
    (told,) = read(KAI, {}, {"gpu-fraction": 0.5})  # type: ignore[misc] # problems
    assert "is not a decimal number above 0 and below 1; write one" in str(told)


# What other products' names leave open
OPEN: dict[str, tuple[Dialect, dict[str, Any], DeviceAsk | str]] = {
    "no card, but memory and cores": (
        HAMI,
        {f"{H}mem": 5, f"{H}cores": 10, H: 0},
        f": {H}: 0 asks for no device, but {H}mem and {H}cores beside it asks for some; write 1, or remove it",
    ),
    "cores without a number": (
        VOLCANO,
        {"volcano.sh/vgpu-cores": 10, "volcano.sh/vgpu-memory-percentage": 20},
        (
            ": volcano.sh/vgpu-cores and volcano.sh/vgpu-memory-percentage alone asks for no device; add "
            "volcano.sh/vgpu-number or volcano.sh/vgpu-memory"
        ),
    ),
    "compute of one card, all of it": (TENCENT, {f"{T}core": 100}, ask(core=100, ratio=100)),
    "one and a half cards": (
        TENCENT,
        {f"{T}core": 150},
        f": {T}core 150 is over 100, where only multiples of 100 are whole devices; ask 100 or 200",
    ),
    "three and a bit": (
        TENCENT,
        {f"{T}core": 330, f"{T}memory": 4},
        f": {T}core 330 is over 100, where only multiples of 100 are whole devices; ask 300 or 400",
    ),
    "compute without memory": (TENCENT, {f"{T}core": 99}, f": {T}core is asked without memory; add {T}memory"),
    "all percent of each of two": (
        HAMI,
        {H: 2, f"{H}cores": 100, f"{H}mem": 100},
        ask(2, core=100, memory=100 * 2**20),
    ),
    "more percent than each has": (
        HAMI,
        {f"{H}mem-percentage": 101},
        f"[{H}mem-percentage]: 101 is more than 100 percent of each device; write 100 at most",
    ),
    "compute that an installation adds to each of two": (
        replace(HAMI, core=30),
        {H: 2, f"{H}mem": 100},
        ask(2, core=30, memory=100 * 2**20),
    ),
    "memory that an installation adds to each of three": (
        replace(HAMI, size=2**30, core=20),
        {H: 3, f"{H}cores": 10},
        ask(3, core=10, memory=2**30),
    ),
    "cards up to the bound": (HAMI, {H: 128, f"{H}mem": 64}, ask(128, memory=64 * 2**20)),
}


@pytest.mark.parametrize(("dialect", "limits", "expected"), OPEN.values(), ids=OPEN)
def test_what_other_products_names_leave_open_is_completed_or_told(
    dialect: Dialect, limits: dict[str, Any], expected: DeviceAsk | str
) -> None:
    assert read(dialect, limits) == ([f"{LIMITS}{expected}"] if isinstance(expected, str) else expected)


def test_containers_share_one_card_where_their_product_means_so_and_several_ask() -> None:
    memory = "volcano.sh/gpu-memory"
    for dialect, limits in ((PEER["volcano-share"], {memory: 100}), (HAMI, {f"{H}mem": 100})):
        types = DeviceTypes(BUILT_IN.types, (*DIALECTS, dialect))
        for count in (1, 2, 3):
            apps = [container(name, limits=limits) for name in "abc"[:count]]
            shared = read_pod(pod_spec(*apps, container("x")), types=types).one_device
            assert shared == ({"gpu"} if dialect.one_device and count > 1 else frozenset())


def test_who_says_nothing_states_no_amount_and_no_template() -> None:
    nothing = StatedAmounts()
    assert (nothing.tails, nothing.template, nothing.count) == ({}, "", 0)


def test_more_compute_than_each_card_has_counts_as_all_and_is_told() -> None:
    types = DeviceTypes(BUILT_IN.types, (*DIALECTS, HAMI))
    for cores, told in ((100, ()), (101, (f"{LIMITS}[{H}cores]: 101 is more than 100 percent and counts as 100",))):
        reading = read_pod(pod_spec(container(limits={f"{H}cores": cores, f"{H}mem": 100})), types=types)
        assert reading.problems == ()
        assert reading.warnings == told
        assert [one.ask.amounts for one in reading.request.containers] == [(100, 100 * 2**20, None)]


OF_MEMORY = DeviceType(
    "x",
    tails=("memory", "memory-ratio"),
    units=(Unit.BYTES, Unit.PERCENT),
    words=("memory", "memory"),
    plain="x",
    memory=("memory", "memory-ratio"),
    names={"x": "e/x", "memory": "e/x-memory", "memory-ratio": "e/x-ratio"},
)
OF_FOUR = replace(
    OF_MEMORY,
    tails=("core", "memory", "memory-ratio", "io"),
    units=(Unit.PERCENT, Unit.BYTES, Unit.PERCENT, Unit.PERCENT),
    words=("core", "memory", "memory", "io"),
)


@pytest.mark.parametrize(("kind", "what"), [(OF_MEMORY, "all"), (GPU_TYPE, "both"), (OF_FOUR, "all")])
def test_who_asks_for_no_memory_is_told_how_many_things_the_plain_name_states(kind: DeviceType, what: str) -> None:
    name = "kubernetes.io/gpu-memory" if kind is GPU_TYPE else "e/x-memory"
    (told,) = read_pod(pod_spec(container(limits={name: 0})), types=DeviceTypes((kind,))).problems
    assert told.message.endswith(f"or ask {kind.plain} alone for {what}")


def test_a_name_that_states_nothing_is_of_no_dialect_and_asks_for_nothing() -> None:
    assert read(HAMI, {H: 1, "nvidia.com/priority": 1}) == ask(core=100, ratio=100)
    bare = Dialect("bare", "gpu", (Term("e/some", "gpu"), Term("e/none", "")), own=False)
    assert read(bare, {"e/some": 30, "e/none": 5}) == ask(core=30, ratio=30)
