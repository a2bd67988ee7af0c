"""Device types made of several amounts, by settings alone: how they are requested, read, chosen and written."""

import json
from typing import Any

import pytest
from builders import GIB, app, container, device_object, pod, pod_spec, request
from hypothesis import given
from hypothesis import strategies as st
from npus import CAPACITY, DCU, NPU, TEXT, TYPES, npu, refused

from allocator.index.cluster import ClusterIndex
from allocator.index.rows import query_of, type_rows
from allocator.place import Placement, place
from allocator.request.devices import read_pod
from allocator.vocabulary.asks import DeviceAsk
from allocator.vocabulary.device import Device
from allocator.vocabulary.holdings import Holding
from allocator.vocabulary.names import DEVICE_ALLOCATED
from allocator.vocabulary.node import NodeSnapshot, fullness
from allocator.vocabulary.outcome import Refusal
from allocator.wire.deviceobject import GPU_PARTITIONS, read_device_object
from allocator.wire.podallocated import read_allocation, write_annotations
from koordgate.settings import device_types
from webhook.admission.translate import TranslationPolicy, canonical, translate
from webhook.settings import parse

H, D = "huawei.com/npu", "example.com/dcu"
WHOLE = (None, None, None, 100, 100)
Raw = dict[str, Any]


def asked(resources: Raw) -> DeviceAsk | str | None:
    """A container's one request, or what is wrong with it."""
    reading = read_pod(pod_spec(container(limits=resources)), types=TYPES)
    if reading.problems:
        return "; ".join(map(str, reading.problems))
    asks = [one.ask for one in reading.request.containers]
    return asks[0] if asks else None


def template(name: str, count: int = 1) -> DeviceAsk:
    return DeviceAsk(NPU, count, NPU.template(name).amounts, template=name)


# What a container writes -> its request, and admission's translation.
ASKS: dict[str, tuple[Raw, DeviceAsk, Raw]] = {
    "whole devices": ({H: 2}, DeviceAsk(NPU, 2, WHOLE), {H: "2"}),
    "a template": ({f"{H}-vir04": 1}, template("vir04"), {f"{H}-vir04": "1"}),
    "three of a template": ({f"{H}-vir01": "3"}, template("vir01", 3), {f"{H}-vir01": "3"}),
    "just what a template has": (
        {f"{H}-core": 4, f"{H}-cpu": 4, f"{H}-memory": "12Gi", f"{H}-dvpp": 50},
        template("vir04"),
        {f"{H}-vir04": "1"},
    ),
    "cores alone, rounded up": ({f"{H}-core": 3}, template("vir04_3c"), {f"{H}-vir04_3c": "1"}),
    "more CPUs than the smaller of two": ({f"{H}-core": 3, f"{H}-cpu": 4}, template("vir04"), {f"{H}-vir04": "1"}),
    "memory alone, rounded up": ({f"{H}-memory": 1}, template("vir01"), {f"{H}-vir01": "1"}),
    "two halves": ({f"{H}-core": 2, f"{H}.shared": 2}, template("vir01", 2), {f"{H}-vir01": "2"}),
    "no template, none beside": ({f"{H}-vir01": 0, H: 1}, DeviceAsk(NPU, 1, WHOLE), {H: "1"}),
    "percent of all": ({D: 30}, DeviceAsk(DCU, 1, (30, None, 30)), {f"{D}-compute": "30", f"{D}-vram-ratio": "30"}),
    "two whole ones in percent": (
        {D: 200},
        DeviceAsk(DCU, 2, (100, None, 100)),
        {f"{D}-compute": "200", f"{D}-vram-ratio": "200"},
    ),
    "compute and bytes": (
        {f"{D}-compute": 20, f"{D}-vram": "4Gi"},
        DeviceAsk(DCU, 1, (20, 4 * GIB, None)),
        {f"{D}-compute": "20", f"{D}-vram": "4Gi"},
    ),
    "halves of two": (
        {D: 100, f"{D}.shared": 2},
        DeviceAsk(DCU, 2, (50, None, 50)),
        {f"{D}-compute": "100", f"{D}-vram-ratio": "100", f"{D}.shared": "2"},
    ),
}


@pytest.mark.parametrize(("resources", "ask", "written"), ASKS.values(), ids=ASKS)
def test_amounts_and_templates_are_asked_for_and_written_once_and_for_all(
    resources: Raw, ask: DeviceAsk, written: Raw
) -> None:
    assert asked(resources) == ask
    assert canonical(ask, "kubernetes.io", 80 * GIB) == written
    assert asked(written) == ask
    policy = TranslationPolicy("kubernetes.io", TYPES)
    made = pod(container(requests=written, limits=written), schedulerName="koord-scheduler")
    assert [one for one in translate(made, policy, None).operations if "resources" in one["path"]] == []


# What a container writes -> the refusal.
WRONG: dict[str, tuple[Raw, str]] = {
    "a template and amounts": (
        {f"{H}-vir01": 1, f"{H}-core": 1},
        "template vir01 already states what is asked of each device; core beside it contradicts; keep one",
    ),
    "two templates": ({f"{H}-vir01": 1, f"{H}-vir02": 1}, "vir01 and vir02 are both asked for; keep one"),
    "more devices than any node has": ({f"{H}-vir01": 129}, "ask 128 at most"),
    "more than any template has": (
        {f"{H}-core": 5},
        "no template of a npu has as much as is asked of each (vir01, vir02, vir04_3c, vir04); ask less, or whole",
    ),
    "percent of memory, which no template states": ({f"{H}-memory-ratio": 50}, "no template of a npu has as much"),
    "nothing at all": ({f"{H}-core": 0}, "nothing above 0 is asked; add memory-ratio"),
    "an odd split": ({f"{H}-core": 3, f"{H}.shared": 2}, "core 3 does not split evenly over 2 devices; ask 2 or 4"),
    "whole ones and parts": ({D: 100, f"{D}-compute": 10}, "dcu already states compute and vram, compute beside it"),
    "no device in percent": ({D: 0}, "dcu must be greater than zero: 50 is half a device"),
    "compute without memory": (
        {f"{D}-compute": 10},
        "compute 10 is asked without memory; add vram-ratio (percent of a device) or vram (bytes), or ask dcu alone",
    ),
    "memory twice": ({f"{D}-vram": 1, f"{D}-vram-ratio": 1}, "vram and vram-ratio are both asked"),
    "parts that do not agree": (
        {f"{D}-compute": 200, f"{D}-vram-ratio": 100},
        "compute 200 is 2 device(s) but vram-ratio 100 is 1",
    ),
    "a part above the whole": ({D: 150}, "dcu 150 is over 100, where only multiples of 100 are whole devices"),
    "too thin a split": ({D: 300, f"{D}.shared": 2}, "dcu 300 over dcu.shared 2 is more than 100 of each device"),
}


@pytest.mark.parametrize(("resources", "told"), WRONG.values(), ids=WRONG)
def test_what_can_never_work_is_reported(resources: Raw, told: str) -> None:
    assert told in str(asked(resources))


def test_settings_make_types_with_these_properties() -> None:
    types = device_types(parse(TEXT).devices.types)
    npu_type, dcu = types.by_name["npu"], types.by_name["dcu"]
    assert npu_type == NPU
    assert dict(zip(npu_type.tails, npu_type.units, strict=True)) == {
        "core": "units",
        "cpu": "units",
        "memory": "bytes",
        "memory-ratio": "percent",
        "dvpp": "percent",
    }
    assert npu_type.words == ("core", "cpu", "memory", "memory", "dvpp")
    assert (npu_type.plain, npu_type.split, npu_type.memory) == ("npu", "npu.shared", ("memory", "memory-ratio"))
    assert npu_type.names == {"npu": H, "npu.shared": f"{H}.shared", **{tail: f"{H}-{tail}" for tail in npu_type.tails}}
    assert [(one.fit, one.model_of_node, one.partitioned, one.states_memory) for one in (npu_type, dcu)] == [
        ((2, 0), True, True, False),
        ((1, 0), True, False, False),
    ]
    assert [(one.name, one.amounts, one.models) for one in npu_type.templates] == [
        ("vir01", (1, 1, 3 * GIB, None, 12), ()),
        ("vir02", (2, 2, 6 * GIB, None, 25), ("310P3",)),
        ("vir04_3c", (4, 3, 12 * GIB, None, 50), ()),
        ("vir04", (4, 4, 12 * GIB, None, 50), ()),
    ]
    quotas = {one: f"quota.koordgate.io/npu-{one}" for one in npu_type.tails}
    assert npu_type.charged == {"npu": "quota.koordgate.io/npu", **quotas}
    quotas = {one: f"quota.koordgate.io/dcu-{one}" for one in dcu.tails}
    assert dcu.charged == {"dcu": "quota.koordgate.io/dcu", **quotas}
    lpu = device_types(parse(LPU_TEXT).devices.types).by_name["lpu"]
    assert (lpu.fit, lpu.memory, lpu.partitioned, lpu.boards) == ((0,), None, False, ())


def test_amounts_are_a_templates_if_they_are_all_that_it_has() -> None:
    for one in NPU.templates:
        amounts: dict[str, Any] = dict(zip(NPU.tails, one.amounts, strict=True))
        assert NPU.template_of({**amounts, "memory-ratio": 1}) == one.name
    for tail, off in (("core", 1), ("core", -1), ("dvpp", 1), ("dvpp", -1)):
        amounts = dict(zip(NPU.tails, NPU.template("vir02").amounts, strict=True))
        assert NPU.template_of({**amounts, tail: (amounts[tail] or 0) + off}) == ""


TEMPLATES = """
devices:
  types:
    - name: tpu
      resource: example.com/tpu
      unit: devices
      amounts:
        - {name: core, resource: example.com/tpu-core}
        - {name: hbm, resource: example.com/tpu-hbm, unit: bytes, ratio: example.com/tpu-hbm-ratio}
      templates:
        - {name: half, amounts: {core: 50, hbm-ratio: 50}}
        - {name: one, amounts: {core: 1, hbm: 3}}
        - {name: none, amounts: {hbm: 9}}
"""


def test_templates_state_memory_in_either_unit_and_come_in_the_order_of_their_amounts() -> None:
    tpu = device_types(parse(TEMPLATES).devices.types).by_name["tpu"]
    assert tpu.tails == ("core", "hbm", "hbm-ratio")
    assert [(one.name, one.amounts) for one in tpu.templates] == [
        ("none", (0, 9, None)),
        ("one", (1, 3, None)),
        ("half", (50, None, 50)),
    ]


LPU_TEXT = """
devices:
  types:
    - name: lpu
      resource: example.com/lpu
      split: example.com/lpu.shared
      amounts: [{name: compute, resource: example.com/lpu-compute}, {name: io, resource: example.com/lpu-io}]
"""


@pytest.mark.parametrize(
    ("resources", "told"),
    [
        pytest.param({"": 50}, (1, (50, 50)), id="percent of all"),
        pytest.param({"-io": 30}, (1, (0, 30)), id="one amount"),
        pytest.param({"-compute": 200, "-io": 200}, (2, (100, 100)), id="two whole ones"),
        pytest.param({"-compute": 20, "-io": 60, ".shared": 2}, (2, (10, 30)), id="over two"),
        pytest.param(
            {"-compute": 0, "-io": 0}, "nothing above 0 is asked; ask lpu, or some of compute, io", id="nothing"
        ),
        pytest.param({"": 50, ".shared": 129}, "lpu.shared must be from 1 to 128", id="over too many"),
        pytest.param({"": 50, ".shared": 0}, "lpu.shared must be from 1 to 128", id="over none"),
    ],
)
def test_a_type_without_memory_is_asked_by_any_of_its_amounts(
    resources: dict[str, int], told: tuple[int, tuple[int, ...]] | str
) -> None:
    limits = {f"example.com/lpu{tail}": amount for tail, amount in resources.items()}
    reading = read_pod(pod_spec(container(limits=limits)), types=device_types(parse(LPU_TEXT).devices.types))
    if isinstance(told, str):
        assert told in "; ".join(map(str, reading.problems))
    else:
        assert [(one.ask.count, one.ask.amounts) for one in reading.request.containers] == [told]


def test_of_templates_that_are_too_small_eight_are_named() -> None:
    templates = ", ".join(f"{{name: t{number}, amounts: {{m: {number}}}}}" for number in range(1, 10))
    text = "{name: npu, resource: a/npu, unit: devices, amounts: [{name: m, resource: a/m, unit: units}], "
    types = device_types(parse(f"devices: {{types: [{text}templates: [{templates}]}}]}}").devices.types)
    (problem,) = read_pod(pod_spec(container(limits={"a/m": 10})), types=types).problems
    assert "asked of each (t1, t2, t3, t4, t5, t6, t7, t8); ask less" in str(problem)


# Keys of a type in the settings -> why they are refused.
CONTRADICTIONS = {
    "amounts: [{name: npu, resource: a/x}]": "amount npu has a name that is taken",
    "amounts: [{name: m, resource: a/m, ratio: a/r}]": "amount m has a ratio, which only bytes have",
    "amounts: [{name: m, resource: a/m, unit: devices}]": "m counts percent, bytes or units of one",
    "amounts: [{name: m, resource: a/m, unit: units}]": "percent of it say nothing of units of m; set its unit to",
    "unit: units, amounts: [{name: m, resource: a/m}]": "with amounts its unit is percent or devices, not units",
    "unit: bytes": "bytes are a unit of amounts",
    "split: a/s": "split and templates are for a type with amounts",
    "amounts: [{name: m, resource: a/npu}]": "resource a/npu of device type npu is named twice",
    "amounts: [{name: m, resource: nvidia.com/gpu}]": "nvidia.com/gpu of device type npu is already that of gpu",
    "amounts: [{name: m, resource: a/m}], pools: [{devices: {x: 1}}]": "pools hold one number",
    "amounts: [{name: m, resource: a/m}], templates: [{name: t, amounts: {x: 1}}]": "the type has no amount x",
    "amounts: [{name: m, resource: a/m}], templates: [{name: t, amounts: {z: 1, y: 1}}]": "the type has no amount y",
    "amounts: [{name: m, resource: a/m}], templates: [{name: t, amounts: {m: 0}}]": "it has no amount above 0",
    "amounts: [{name: m, resource: a/m}], templates: [{name: t, amounts: {m: 1.5}}]": "amounts",
    "amounts: [{name: m, resource: a/m}], templates: [{name: t, amounts: {m: lots}}]": "template t: 'lots' is not",
    "boards: [{models: [x], partitions: [[0, 0]]}]": "a partition, or a minor in one, is listed twice",
    "boards: [{models: [x], partitions: [[0, 1], [1, 0]]}]": "a partition, or a minor in one, is listed twice",
    "boards: [{models: [], partitions: []}]": "models",
    "unit: devices, amounts: [{name: m, resource: a/m, unit: bytes, ratio: a/r}], "
    "templates: [{name: t, amounts: {m: 1, m-ratio: 1}}]": "template t: keep one of m and m-ratio",
    "amounts: [{name: m, resource: a/m}], templates: [{name: t, amounts: {m: 1}}, {name: t, amounts: {m: 2}}]": (
        "template t is declared twice"
    ),
    "unit: devices, amounts: [{name: m, resource: a/m, unit: bytes, ratio: a/r}, "
    "{name: n, resource: a/n, unit: bytes, ratio: a/q}]": "two of its amounts have a ratio",
}


@pytest.mark.parametrize(("keys", "told"), CONTRADICTIONS.items(), ids=CONTRADICTIONS)
def test_settings_that_contradict_one_another_are_refused(keys: str, told: str) -> None:
    assert told in refused(keys)


# Devices


def on(*minors: int, model: str = "310P3", annotations: Raw | None = None, **fields: Any) -> NodeSnapshot:
    """A node with these NPUs, as its Device object is read."""
    read = read_device_object(
        device_object(*(npu(minor, model=model) for minor in minors), annotations=annotations), TYPES
    )
    assert read.problems == ()
    return NodeSnapshot("node-1", read.devices, wiring=read.wiring({}), **fields)


def test_a_device_is_read_with_all_that_it_is_made_of() -> None:
    (device,) = on(0).devices
    assert device == Device("npu", "npu-0", 0, True, CAPACITY, model="310P3", labels=device.labels)


def test_bytes_and_units_must_be_stated() -> None:
    read = read_device_object(device_object(npu(0, resources={"huawei.com/npu-core": "8"})), TYPES)
    assert read.devices == ()
    assert "no cpu; a share of it cannot be counted" in read.problems[0]


def minors(answer: Placement | Refusal) -> list[int] | str:
    return answer.message if isinstance(answer, Refusal) else [share.minor for share in answer.shares]


def holding(uid: str, ask: DeviceAsk, there: NodeSnapshot) -> NodeSnapshot:
    answer = place(request(app("a", ask)), there)
    assert isinstance(answer, Placement)
    return there.with_holding(Holding(uid, "default", uid, 0, answer.shares))


def test_templates_share_a_device_until_anything_runs_out() -> None:
    there = on(0, 1)
    for uid in ("a", "b"):
        there = holding(uid, template("vir04_3c"), there)
    there.check_invariants()
    assert there.used["npu-0"] == {"core": 8, "cpu": 6, "memory": 24 * GIB, "memory-ratio": 100, "dvpp": 100}
    assert minors(place(request(app("a", template("vir01"))), there)) == [1]
    told = minors(place(request(app("a", DeviceAsk(NPU, 2, WHOLE))), there))
    assert "asks 2 x (whole); 1 of 2 npu devices can hold it" in told
    told = minors(place(request(app("a", template("vir04", 2))), there))
    assert "asks 2 x (vir04: core 4, cpu 4, memory 12 GiB, dvpp 50 %)" in told


def test_a_template_of_one_model_is_taken_of_that_model_alone() -> None:
    there = on(0, model="910")
    assert isinstance(place(request(app("a", template("vir02"))), there), Refusal)
    assert minors(place(request(app("a", template("vir01"))), there)) == [0]


PAIR = DeviceAsk(NPU, 2, WHOLE)
TABLE = json.dumps({"2": [{"minors": [0, 1], "allocationScore": 1}]})


@pytest.mark.parametrize(
    ("annotations", "model", "expected"),
    [({}, "310P3", [0, 3]), ({GPU_PARTITIONS: TABLE}, "310P3", [0, 1]), ({}, "910", [0, 1])],
    ids=["by the board", "the node states its own", "a board without a table"],
)
def test_whole_devices_come_as_a_partition(annotations: Raw, model: str, expected: list[int]) -> None:
    assert minors(place(request(app("a", PAIR)), on(0, 1, 2, 3, model=model, annotations=annotations))) == expected


def test_a_board_of_one_type_says_nothing_of_anothers_devices() -> None:
    wiring = read_device_object(device_object(npu(0)), TYPES).wiring({})
    assert (wiring.table("gpu"), wiring.table("npu") is None) == (None, False)


def test_shares_are_written_with_their_template_and_read_back() -> None:
    answer = place(request(app("a", template("vir04")), app("b", DeviceAsk(NPU, 1, WHOLE))), on(0, 1))
    assert isinstance(answer, Placement)
    annotations = write_annotations(answer.shares, "koordinator.sh", TYPES)
    whole, part = sorted(json.loads(annotations[DEVICE_ALLOCATED])["npu"], key=lambda entry: "extension" in entry)
    assert part["extension"] == {"gpuSharedResourceTemplate": "vir04"}
    assert part["resources"] == {
        "huawei.com/npu-core": "4",
        "huawei.com/npu-cpu": "4",
        "huawei.com/npu-dvpp": "50",
        "huawei.com/npu-memory": "12Gi",
        "huawei.com/npu-memory-ratio": "50",
    }
    assert "extension" not in whole
    assert sorted(read_allocation(annotations, TYPES).shares, key=repr) == sorted(answer.shares, key=repr)


@given(
    st.lists(st.sampled_from([template(one.name, n) for one in NPU.templates for n in (1, 2)] + [PAIR]), max_size=8),
    st.sampled_from([template("vir02"), template("vir04"), DeviceAsk(NPU, 1, WHOLE)]),
)
def test_nothing_is_given_twice_and_the_index_excludes_no_node_that_would_do(
    before: list[DeviceAsk], then: DeviceAsk
) -> None:
    there = on(0, 1, 2)
    for number, ask in enumerate(before):
        answer = place(request(app("a", ask)), there)
        if isinstance(answer, Placement):
            there = there.with_holding(Holding(f"uid-{number}", "d", "p", 0, answer.shares))
    there.check_invariants()
    index = ClusterIndex({kind.name: fullness(kind) for kind in TYPES.types})
    index.put("node-1", type_rows(there))
    wanted = request(app("a", then))
    assert not isinstance(place(wanted, there), Placement) or index.fitting(query_of(wanted)).any()
