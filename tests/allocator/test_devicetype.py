"""Device types are data: own types are read, chosen, written and read back as the built-in types are."""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from builders import app, container, device_object, node, pod, pod_spec, request
from hypothesis import given
from hypothesis import strategies as st

from allocator.place import Placement, place
from allocator.request.devices import names_devices, read_pod
from allocator.request.pod import read_request
from allocator.vocabulary.asks import DeviceAsk
from allocator.vocabulary.device import Device
from allocator.vocabulary.devicetype import (
    BUILT_IN,
    FPGA_TYPE,
    FULL,
    GPU_TYPE,
    RDMA_TYPE,
    DeviceType,
    DeviceTypeError,
    DeviceTypes,
    Unit,
    own_type,
)
from allocator.vocabulary.holdings import Holding, Share
from allocator.vocabulary.names import DEVICE_ALLOCATED, DOMAINS
from allocator.vocabulary.outcome import Refusal
from allocator.wire.allocatehint import DEVICE_ALLOCATE_HINT
from allocator.wire.classes import read_classes
from allocator.wire.deviceobject import read_device_object
from allocator.wire.nodeallocation import read_spec, write_spec
from allocator.wire.podallocated import read_allocation, write_annotations

MAX_COUNT = 128

NPU = own_type("npu", "example.com/npu", Unit.PERCENT, "NPU_VISIBLE_DEVICES")
CAMERA = own_type("camera", "example.com/camera", Unit.DEVICES)
QUEUE = own_type("queue", "example.com/queue-places", Unit.UNITS)
TYPES = BUILT_IN.with_types([NPU, CAMERA, QUEUE])


def entry(kind: str, minor: int, **fields: Any) -> dict[str, Any]:
    return {"type": kind, "id": f"{kind}-{minor}", "minor": minor, "health": True, **fields}


def device(kind: str, minor: int, amount: int = FULL) -> Device:
    return Device(kind, f"{kind}-{minor}", minor, healthy=True, capacity={kind: amount})


# The table


def test_an_own_type_has_one_name_in_every_domain() -> None:
    assert NPU.spellings("npu") == ("example.com/npu",)
    assert TYPES.resources["example.com/npu"].type is NPU
    assert {NPU.resource_name(domain, "npu") for domain in DOMAINS} == {"example.com/npu"}
    assert [TYPES.resources[one.names[one.name]].counts_devices for one in (NPU, CAMERA, QUEUE)] == [False, True, False]
    assert TYPES.by_name["queue"] is QUEUE
    assert TYPES.types[:3] == BUILT_IN.types


CLASHES: dict[str, tuple[DeviceType, str]] = {
    "a name that is built in": (
        own_type("gpu", "example.com/gpu", Unit.PERCENT),
        "device type gpu exists already; give the new one another name",
    ),
    "a name that is one's own": (own_type("npu", "example.com/other", Unit.PERCENT), "device type npu exists already"),
    "a resource that is built in": (
        own_type("fast", "koordinator.sh/rdma", Unit.PERCENT),
        "resource koordinator.sh/rdma of device type fast is already that of rdma",
    ),
    "a vendor's resource": (
        own_type("card", "nvidia.com/gpu", Unit.DEVICES),
        "resource nvidia.com/gpu of device type card is already that of gpu",
    ),
    "a resource that is one's own": (
        own_type("npu-2", "example.com/npu", Unit.UNITS),
        "resource example.com/npu of device type npu-2 is already that of npu",
    ),
}


def test_a_type_of_the_domains_whose_split_would_be_lost_is_refused() -> None:
    """In kubernetes.io no resource states the split: a Pod would get one device where it asked for parts of several."""
    split = DeviceType("tpu", tails=("tpu-core",), plain="tpu", split="tpu.shared", domains=DOMAINS)
    with pytest.raises(DeviceTypeError, match=r"device type tpu: tpu\.shared would be lost in translation"):
        BUILT_IN.with_types([split])
    assert BUILT_IN.with_types([replace(split, split="")]).by_name["tpu"].tails == ("tpu-core",)


@pytest.mark.parametrize(("new", "message"), CLASHES.values(), ids=CLASHES)
def test_a_type_whose_name_or_resource_is_taken_is_refused(new: DeviceType, message: str) -> None:
    with pytest.raises(DeviceTypeError) as refused:
        TYPES.with_types([new])
    assert str(refused.value).startswith(message)


@pytest.mark.parametrize("name", ["card", "xpu"])
def test_a_product_whose_names_are_another_types_cannot_be_turned_on(name: str) -> None:
    types = BUILT_IN.with_types([own_type(name, "aliyun.com/gpu-mem", Unit.UNITS)])
    left_out = {one.name for one in BUILT_IN.off} - {one.name for one in types.off}
    assert left_out == {"gpushare"}
    assert types.known.resources["aliyun.com/gpu-mem"].type.name == name


def test_types_are_equal_by_what_they_are_and_hash_by_name() -> None:
    again = own_type("npu", "example.com/npu", Unit.PERCENT, "NPU_VISIBLE_DEVICES")
    assert (again, hash(again)) == (NPU, hash(NPU))
    assert own_type("npu", "example.com/npu", Unit.UNITS) != NPU
    assert DeviceTypes((GPU_TYPE, RDMA_TYPE, FPGA_TYPE)) == BUILT_IN
    scoped = BUILT_IN.with_scopes({"team": BUILT_IN})
    assert (scoped, repr(scoped)) == (BUILT_IN, repr(BUILT_IN))


# Requests: resources, what is read

ASKS: dict[str, tuple[Mapping[str, Any], DeviceAsk | None]] = {
    "part of a device": ({"example.com/npu": "30"}, DeviceAsk(NPU, 1, (30,))),
    "two whole devices in percent": ({"example.com/npu": 200}, DeviceAsk(NPU, 2, (FULL,))),
    "three devices": ({"example.com/camera": 3}, DeviceAsk(CAMERA, 3, (FULL,))),
    "as many as any node has": ({"example.com/camera": MAX_COUNT}, DeviceAsk(CAMERA, MAX_COUNT, (FULL,))),
    "no device": ({"example.com/camera": 0}, None),
    "units": ({"example.com/queue-places": 7}, DeviceAsk(QUEUE, 1, (7,))),
    "more units than 100": ({"example.com/queue-places": "12k"}, DeviceAsk(QUEUE, 1, (12_000,))),
}


@pytest.mark.parametrize(("resources", "expected"), ASKS.values(), ids=ASKS)
def test_an_own_type_is_asked_for_in_its_unit(resources: Mapping[str, Any], expected: DeviceAsk | None) -> None:
    spec = pod_spec(container("a", limits=resources))
    reading = read_pod(spec, types=TYPES)
    assert reading.problems == ()
    assert [one.ask for one in reading.request.containers] == ([expected] if expected else [])
    assert names_devices(spec, TYPES)
    assert not names_devices(spec)  # without the configuration it is another product's resource
    assert not read_pod(spec).request


WRONG: dict[str, tuple[Mapping[str, Any], str]] = {
    "one and a half devices": ({"example.com/npu": 150}, "npu 150 is over 100, where only multiples of 100 are whole"),
    "half a device": ({"example.com/camera": "0.5"}, "camera]: 0.5 is no whole number of devices; write 1"),
    "too many": ({"example.com/camera": 129}, "129 is more devices than any node has; ask 128 at most"),
    "no unit": ({"example.com/queue-places": 0}, "queue must be greater than zero; or remove it"),
    "a negative number of units": ({"example.com/queue-places": -1}, "-1 is negative; ask 0 or more"),
}


@pytest.mark.parametrize(("resources", "message"), WRONG.values(), ids=WRONG)
def test_an_own_type_that_is_asked_for_wrongly_is_reported(resources: Mapping[str, Any], message: str) -> None:
    (problem,) = read_pod(pod_spec(container("a", limits=resources)), types=TYPES).problems
    assert message in str(problem)


def test_an_extended_resource_of_ones_own_must_be_requested_as_it_is_limited() -> None:
    spec = pod_spec(container(requests={"example.com/npu": 30}, limits={"example.com/npu": 60}))
    (problem,) = read_pod(spec, types=TYPES).problems
    assert problem.message.startswith("example.com/npu: the request must equal the limit")


# Devices: an entry of a Device object, the device or what is wrong

READ: dict[str, tuple[dict[str, Any], Device | str]] = {
    "percent, a whole one where nothing is reported": (entry("npu", 0), device("npu", 0)),
    "percent, reported": (entry("npu", 0, resources={"example.com/npu": "100"}), device("npu", 0)),
    "more than a whole one": (entry("npu", 0, resources={"example.com/npu": 101}), "npu above 100"),
    "devices": (entry("camera", 0, resources={"example.com/camera": "1"}), device("camera", 0)),
    "units": (entry("queue", 2, resources={"example.com/queue-places": "40"}), device("queue", 2, 40)),
    "units that are not reported": (entry("queue", 2), "no queue; a share of it cannot be counted"),
    "no units": (entry("queue", 2, resources={"example.com/queue-places": 0}), "no queue; a share of it cannot"),
    "another type's resource is not its own": (
        entry("queue", 2, resources={"example.com/npu": 5}),
        "no queue; a share of it cannot be counted",
    ),
}


@pytest.mark.parametrize(("told", "expected"), READ.values(), ids=READ)
def test_a_device_of_an_own_type_is_read(told: dict[str, Any], expected: Device | str) -> None:
    read = read_device_object(device_object(told), TYPES)
    if isinstance(expected, Device):
        assert (read.devices, read.problems) == ((expected,), ())
    else:
        assert read.devices == ()
        assert expected in read.problems[0]
    assert read_device_object(device_object(told)).devices == ()


# Choosing: requests of three types together, on a node with all of them


NODE = node(
    device("npu", 0),
    device("npu", 1),
    device("camera", 0),
    device("camera", 1),
    device("queue", 0, 10),
    device("queue", 1, 40),
)


def test_devices_of_every_type_are_chosen_written_and_read_back() -> None:
    of = request(
        app("a", DeviceAsk(NPU, 1, (30,))),
        app("a", DeviceAsk(CAMERA, 2, (FULL,))),
        app("b", DeviceAsk(QUEUE, 1, (12,))),
        app("b", DeviceAsk(NPU, 1, (70,))),
    )
    answer = place(of, NODE)
    assert isinstance(answer, Placement)
    assert answer.shares == (
        Share("npu", "npu-0", 0, {"npu": 100}, ("a", "b")),
        Share("camera", "camera-0", 0, {"camera": 100}, ("a",)),
        Share("camera", "camera-1", 1, {"camera": 100}, ("a",)),
        Share("queue", "queue-1", 1, {"queue": 12}, ("b",)),
    )
    annotations = write_annotations(answer.shares, "koordinator.sh", TYPES)
    assert json.loads(annotations.pop(DEVICE_ALLOCATED)) == {
        "camera": [
            {"minor": minor, "resources": {"example.com/camera": "100"}, "id": f"camera-{minor}"} for minor in (0, 1)
        ],
        "npu": [{"minor": 0, "resources": {"example.com/npu": "100"}, "id": "npu-0"}],
        "queue": [{"minor": 1, "resources": {"example.com/queue-places": "12"}, "id": "queue-1"}],
    }
    assert annotations == {
        "camera.visible-devices.koordgate.io/a": "camera-0,camera-1",
        "npu.visible-devices.koordgate.io/a": "npu-0",
        "npu.visible-devices.koordgate.io/b": "npu-0",
        "queue.visible-devices.koordgate.io/b": "queue-1",
    }
    written = write_annotations(answer.shares, "kubernetes.io", TYPES)
    assert sorted(read_allocation(written, TYPES).shares, key=repr) == sorted(answer.shares, key=repr)
    owner = Holding("uid", "default", "pod", 0, answer.shares)
    assert read_spec({"spec": write_spec([owner])}) == {"uid": owner}
    NODE.with_holding(owner).check_invariants()


SPREAD: dict[str, tuple[int, dict[str, str], dict[str, int]]] = {
    "of one": (250, {}, {"queue-0": 250}),
    "so much of all": (250, {"allocateStrategy": "ApplyForAll"}, {"queue-0": 250, "queue-1": 250}),
    "one of each": (2, {"allocateStrategy": "RequestsAsCount"}, {"queue-0": 1, "queue-1": 1}),
    "all of each": (
        2,
        {"allocateStrategy": "RequestsAsCount", "exclusivePolicy": "DeviceLevel"},
        {"queue-0": 300, "queue-1": 400},
    ),
}


@pytest.mark.parametrize(("amount", "hint", "expected"), SPREAD.values(), ids=SPREAD)
def test_units_are_spread_over_devices_as_the_hint_says(
    amount: int, hint: dict[str, str], expected: dict[str, int]
) -> None:
    asks = {"example.com/queue-places": str(amount)}
    annotations = {DEVICE_ALLOCATE_HINT: json.dumps({"queue": hint})}
    reading = read_request(pod(container(requests=asks, limits=asks), annotations=annotations), {}, TYPES)
    has = (300, 400)
    on = node(*(Device("queue", f"queue-{minor}", minor, True, {"queue": has[minor]}) for minor in (0, 1)))

    answer = place(reading.request, on)

    assert reading.problems == ()
    assert isinstance(answer, Placement)
    assert {share.id: share.amounts["queue"] for share in answer.shares} == expected


@pytest.mark.parametrize(
    ("amount", "hint", "cameras"),
    [(2, {}, 2), (2, {"allocateStrategy": "RequestsAsCount"}, 2), (1, {"allocateStrategy": "ApplyForAll"}, 3)],
    ids=["no strategy", "as a count", "all"],
)
def test_whole_devices_are_as_many_as_asked_or_all_of_them(amount: int, hint: dict[str, str], cameras: int) -> None:
    asks = {"example.com/camera": str(amount)}
    annotations = {DEVICE_ALLOCATE_HINT: json.dumps({"camera": hint})}
    reading = read_request(pod(container(requests=asks, limits=asks), annotations=annotations), {}, TYPES)
    on = node(*(Device("camera", f"camera-{minor}", minor, True, {"camera": 100}) for minor in range(3)))

    answer = place(reading.request, on)

    assert reading.problems == ()
    assert isinstance(answer, Placement)
    assert [share.id for share in answer.shares] == [f"camera-{minor}" for minor in range(cameras)]


def test_what_is_held_of_a_type_that_left_the_settings_is_written_as_it_is() -> None:
    """Nothing is lost: a ledger may hold devices of a type that its administrator has since removed."""
    shares = (Share("queue", "queue-1", 1, {"queue": 12}, ("b",)), Share("rdma", "nic", 0, {"rdma": 50}, ("a",)))
    annotations = write_annotations(shares, "kubernetes.io", BUILT_IN)
    assert json.loads(annotations.pop(DEVICE_ALLOCATED)) == {
        "queue": [{"minor": 1, "resources": {"queue": "12"}, "id": "queue-1"}],
        "rdma": [{"minor": 0, "resources": {"kubernetes.io/rdma": "50"}, "id": "nic"}],
    }
    assert annotations == {
        "queue.visible-devices.koordgate.io/b": "queue-1",
        "rdma.visible-devices.koordgate.io/a": "nic",
    }


# What is left: the holdings, the next request, its minors, or why not

LATER: dict[str, tuple[DeviceAsk, DeviceAsk, list[int] | str]] = {
    "units go where units are": (DeviceAsk(QUEUE, 1, (12,)), DeviceAsk(QUEUE, 1, (28,)), [1]),
    "units that do not fit there": (DeviceAsk(QUEUE, 1, (38,)), DeviceAsk(QUEUE, 1, (3,)), [0]),
    "units that fit nowhere": (
        DeviceAsk(QUEUE, 1, (38,)),
        DeviceAsk(QUEUE, 1, (11,)),
        (
            "node-1: container a asks 1 x (queue 11); 0 of 2 queue devices can hold it; "
            "the most free is queue 0 with queue 10"
        ),
    ),
    "100 units are no whole device": (DeviceAsk(QUEUE, 1, (1,)), DeviceAsk(QUEUE, 1, (FULL,)), "0 of 2 queue devices"),
    "whole devices": (DeviceAsk(CAMERA, 1, (FULL,)), DeviceAsk(CAMERA, 1, (FULL,)), [1]),
    "no whole device left": (
        DeviceAsk(CAMERA, 1, (FULL,)),
        DeviceAsk(CAMERA, 2, (FULL,)),
        (
            "node-1: container a asks 2 x (camera 100 %); 1 of 2 camera devices can hold it; "
            "the most free is camera 1 with camera 100 %"
        ),
    ),
    "percent go where percent are": (DeviceAsk(NPU, 1, (50,)), DeviceAsk(NPU, 1, (50,)), [0]),
    "a type that the node has not": (
        DeviceAsk(NPU, 1, (50,)),
        DeviceAsk(FPGA_TYPE, 1, (50,)),
        "node-1: no fpga devices known here (no Device object, or none in it)",
    ),
}


@pytest.mark.parametrize(("held", "asked", "expected"), LATER.values(), ids=LATER)
def test_what_is_left_of_a_type_is_counted_in_its_unit(
    held: DeviceAsk, asked: DeviceAsk, expected: list[int] | str
) -> None:
    first = place(request(app("a", held)), NODE)
    assert isinstance(first, Placement)
    answer = place(request(app("a", asked)), NODE.with_holding(Holding("uid", "default", "pod", 0, first.shares)))
    if isinstance(expected, str):
        assert isinstance(answer, Refusal)
        assert expected in answer.message
    else:
        assert isinstance(answer, Placement)
        assert [one.minor for one in answer.shares] == expected


@given(st.lists(st.integers(1, 30), max_size=20))
def test_a_device_of_units_is_filled_to_the_last_and_never_beyond(asked: list[int]) -> None:
    on = node(device("queue", 0, 100))
    given_out = 0
    for index, amount in enumerate(asked):
        answer = place(request(app("a", DeviceAsk(QUEUE, 1, (amount,)))), on)
        assert isinstance(answer, Placement) == (given_out + amount <= 100)
        if isinstance(answer, Placement):
            given_out += amount
            on = on.with_holding(Holding(f"uid-{index}", "default", "pod", 0, answer.shares))
    on.check_invariants()


# Software classes of a Node: the annotation, its devices, how many problems

CLASSES: dict[str, tuple[Any, list[Device], int]] = {
    "two queues": (
        '{"queue":{"slow":40,"fast":"10"}}',
        [
            Device("queue", "fast", 0, healthy=True, capacity={"queue": 10}),
            Device("queue", "slow", 1, healthy=True, capacity={"queue": 40}),
        ],
        0,
    ),
    "percent of a device": (
        '{"npu":{"a":1,"b":100,"c":101}}',
        [Device("npu", one, minor, healthy=True, capacity={"npu": 99 * minor + 1}) for minor, one in enumerate("ab")],
        1,
    ),
    "whole devices, whatever their number": (
        '{"camera":{"a":7,"b":0}}',
        [Device("camera", "a", 0, healthy=True, capacity={"camera": 100})],
        1,
    ),
    "none": ("{}", [], 0),
    "a type that nobody configured": ('{"pool":{"a":1},"queue":{}}', [], 1),
    "a type of several amounts": ('{"gpu":{"a":1}}', [], 1),
    "no object of ids": ('{"queue":[1]}', [], 1),
    "too many ids": (json.dumps({"queue": {str(one): 1 for one in range(129)}}), [], 1),
    "what makes no sense is left out, the rest counts": (
        '{"queue":{"a":-1,"b":0,"c,d":1,"":1,"e":"x","f":3}}',
        [Device("queue", "f", 5, healthy=True, capacity={"queue": 3})],
        5,
    ),
    "no JSON": ("{", [], 1),
    "a list": ("[]", [], 1),
    "nested without end": ("[" * 100_000, [], 1),
    "no text": (7, [], 1),
}


@pytest.mark.parametrize(("text", "devices", "problems"), CLASSES.values(), ids=CLASSES)
def test_software_classes_are_devices_of_their_type(text: object, devices: list[Device], problems: int) -> None:
    found, wrong = read_classes(text, TYPES)
    assert (list(found), len(wrong)) == (devices, problems)
    assert all(problem.startswith("annotation koordgate.io/classes: ") for problem in wrong)
