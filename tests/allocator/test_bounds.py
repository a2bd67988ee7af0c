"""The bounds on what others may write, as figures: the most is read, and one more is not."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from builders import ask, container, device_entry, device_object, nic_entry, pod
from claims import DRIVER, claim, listed, resource_slice, result
from foreignpods import Raw, hami, kai, volcano

import allocator
from allocator.amounts import BadQuantityError, node_amounts, pod_amounts
from allocator.index.query import QueryError, Want
from allocator.request.original import read_asks, too_large_node
from allocator.vocabulary.adopted import Numbering, Product
from allocator.vocabulary.cputopology import Cpu, CpuTopology, parse
from allocator.vocabulary.devicetype import BUILT_IN, Unit, own_type
from allocator.vocabulary.mix import MixError, TypicalRequest
from allocator.vocabulary.names import DEVICE_ALLOCATED, DEVICE_SHARING, ORIGINAL_REQUEST, RESOURCE_STATUS
from allocator.wire.allocatehint import DEVICE_ALLOCATE_HINT, PodHints, read_hints
from allocator.wire.classes import read_classes
from allocator.wire.deviceobject import (
    read_device_object,
    read_links,
    read_numberings,
    read_partitions,
    write_numberings,
)
from allocator.wire.foreignpods import Adoption, read_foreign_pod
from allocator.wire.mirror import read_register
from allocator.wire.nodetopology import CPU_TOPOLOGY, read_node_topology
from allocator.wire.podallocated import AnnotationError, read_allocation, read_resource_status
from allocator.wire.podannotations import RESOURCE_SPEC
from allocator.wire.resourceclaim import read_resource_claim, read_resource_slice

ADOPTED = Adoption(frozenset(Product))
OWN = BUILT_IN.with_types([own_type(f"queue{at}", f"example.com/queue{at}", Unit.UNITS) for at in range(129)])
QUEUES = BUILT_IN.with_types([own_type("queue", "example.com/queue", Unit.UNITS)])


def refused(error: type[Exception], what: Callable[[], object]) -> str:
    """What a call is refused with; "" if it is not."""
    try:
        what()
    except error as told:
        return str(told)
    return ""


def padded(text: str, length: int) -> str:
    return text + " " * (length - len(text))


def strange(pod: Raw) -> str:
    """Why a Pod of another product cannot be read; "" if it can."""
    found = read_foreign_pod(pod, ADOPTED)
    assert found is not None
    return found.problem


def started(containers: int) -> Raw:
    pod = volcano("0")
    pod["status"]["containerStatuses"] *= containers
    return pod


def numbered(*, entries: int = 1, cards: int = 1, minors: int = 1, since: int = 1) -> str:
    one = {"since": since, "indexes": ["G"] * cards, "minors": {str(at): "G" for at in range(minors)}}
    return read_numberings(json.dumps([one] * entries))[1]


def registered(cards: int = 1, mib: int = 1, length: int = 0) -> str:
    listed = [{"id": f"GPU-{at}", "devmem": mib} for at in range(cards)]
    return read_register({"hami.io/node-nvidia-register": padded(json.dumps(listed), length)})[2]


def registered_in_words(mib: str) -> str:
    return read_register({"volcano.sh/node-vgpu-register": f"GPU-0,10,{mib},A,true:"})[2]


def partition(size: int = 1, **more: Any) -> str:
    told = {str(size): [{"minors": list(range(size)), **more}]}
    return "".join(read_partitions(json.dumps(told))[1])


def linked(text: str, ids: str = "ab") -> str:
    return "".join(read_links(text, ids)[1])


def hinted(text: str) -> str:
    found = read_hints({DEVICE_ALLOCATE_HINT: text}, {"gpu"})
    return "" if isinstance(found, PodHints) else found[0].message


def selecting(selector: Any) -> str:
    return hinted(json.dumps({"gpu": {"selector": selector}}))


def devices(*entries: Raw) -> str:
    return "".join(read_device_object(device_object(*entries)).problems)


def functions(number: int) -> str:
    return devices(nic_entry(0, vfGroups=[{"vfs": [{"busID": str(at)} for at in range(number)]}]))


def claimed(results: int) -> str:
    obj = claim("c", *(result(f"gpu-{at}") for at in range(results)))
    read = read_resource_claim({**obj, "metadata": {**obj["metadata"], "resourceVersion": "1"}}, {DRIVER})
    return "unread" if read.unread else ""


def sliced(number: int) -> str:
    return refused(
        ValueError,
        lambda: read_resource_slice(
            resource_slice("n1", [listed(f"gpu-{at}", f"GPU-{at}") for at in range(number)]), {DRIVER}
        ),
    )


def wanted(count: int, amount: int = 1) -> str:
    return refused(QueryError, lambda: Want("gpu", count, (("gpu-core", amount),)))


def topology(**entry: int) -> str:
    detail = [{"id": 0, "core": 0, "socket": 0, "node": 0, **entry}]
    obj = {"metadata": {"name": "n1", "annotations": {CPU_TOPOLOGY: json.dumps({"detail": detail})}}}
    return "".join(read_node_topology(obj).problems)


def cpus(text: str) -> str:
    return refused(ValueError, lambda: parse(text))


def nodes(number: int) -> str:
    return refused(ValueError, lambda: CpuTopology.of(Cpu(at, at, 0, at) for at in range(number)))


def typical(count: int = 1, weight: int = 1, models: int = 0, cpu: int = 0, memory: int = 0) -> str:
    return naming(tuple(sorted(map(str, range(models)))), count, weight, cpu, memory)


def naming(models: tuple[str, ...], count: int = 1, weight: int = 1, cpu: int = 0, memory: int = 0) -> str:
    return refused(MixError, lambda: TypicalRequest(cpu, memory, ask(count, core=1), models, weight))


def zones(number: int) -> str:
    obj = {"metadata": {"name": "n1"}, "zones": [{"type": "Socket"}] * number}
    return "".join(read_node_topology(obj).problems)


def resources_of_zones(number: int) -> str:
    listed = [{"name": f"r{at}", "allocatable": "1"} for at in range(number)]
    zone = {"type": "Node", "name": "node-0", "resources": listed}
    return "".join(read_node_topology({"metadata": {"name": "n1"}, "zones": [zone]}).problems)


def functions_of_all(number: int) -> str:
    cards = [
        nic_entry(
            at, vfGroups=[{"vfs": [{"busID": f"{at}-{of}"} for of in range(at * 1000, min(number, at * 1000 + 1000))]}]
        )
        for at in range(-(-number // 1000))
    ]
    return devices(*cards)


def status(text: str) -> str:
    return refused(AnnotationError, lambda: read_resource_status({RESOURCE_STATUS: text}))


def asked(obj: Raw) -> str:
    return "".join(map(str, read_asks(obj).problems))


def annotated(key: str, text: str) -> str:
    return asked(pod(container("a", limits={"kubernetes.io/gpu": "50"}), annotations={key: text}))


def requesting(number: int, containers: int = 1) -> Raw:
    return {
        "containers": [{"name": "a", "resources": {"requests": {f"example.com/{at}": "1" for at in range(number)}}}]
        * containers
    }


def summed(spec: Raw) -> str:
    return refused(BadQuantityError, lambda: pod_amounts(spec))


def allocatable(number: int) -> str:
    node = {"metadata": {"name": "n1"}, "status": {"allocatable": {f"example.com/{at}": "1" for at in range(number)}}}
    return refused(BadQuantityError, lambda: node_amounts(node))


# how a number of them is read, the most, the problem with one more

BOUNDS: dict[str, tuple[Callable[[int], str], int, str]] = {
    "characters of what HAMi gave": (
        lambda most: strange(hami(padded("GPU-a,NVIDIA,1,0:", most))),
        16384,
        "more than 16384 characters",
    ),
    "cards that HAMi gave": (lambda most: strange(hami("a,b,1,0:" * most)), 256, "more than 256 cards"),
    "containers to which HAMi gave": (
        lambda most: strange(hami("GPU-a,b,1,0;" * most)),
        256,
        "more than 256 containers",
    ),
    "MiB that HAMi gave": (
        lambda most: strange(hami(f"GPU-a,NVIDIA,{most},0:")),
        4_294_967_296,
        "more than any card has",
    ),
    "cards that Volcano gave": (
        lambda most: strange(volcano(",".join(map(str, range(most))), None, limits={"volcano.sh/gpu-number": most})),
        256,
        "more than 256 cards",
    ),
    "the number of a card": (lambda most: strange(volcano(str(most))), 1023, "no node has a card 1024"),
    "containers that have started": (lambda most: strange(started(most)), 64, "more than 64 containers"),
    "groups of KAI": (lambda most: strange(kai(*map(str, range(most)))), 256, "more than 256 cards"),
    "numberings": (lambda most: numbered(entries=most), 16, "more than 16 entries"),
    "cards by index": (lambda most: numbered(cards=most), 1024, "more than 1024 cards"),
    "cards by minor": (lambda most: numbered(minors=most), 1024, "more than 1024 cards"),
    "the time of a numbering": (lambda most: numbered(since=most), 253_402_300_799, "is no time in seconds"),
    "characters of a register": (lambda most: registered(length=most), 65536, "more than 65536 characters"),
    "cards of a register": (registered, 64, "more than 64 cards"),
    "MiB of a registered card": (lambda most: registered(mib=most), 4_294_967_296, "is no number of 1Mi"),
    "digits of a registered card's memory": (lambda most: registered_in_words("1".zfill(most)), 16, "is no number"),
    "characters of partitions": (lambda most: "".join(read_partitions(padded("{}", most))[1]), 262_144, "256 KiB"),
    "partitions": (
        lambda most: "".join(read_partitions(json.dumps({"1": [{"minors": [at]} for at in range(most)]}))[1]),
        1024,
        "more than 1024 partitions",
    ),
    "devices of a partition": (partition, 64, "(1 to 64)"),
    "the score of a partition": (lambda most: partition(allocationScore=most), 2_147_483_647, "allocationScore is not"),
    "characters of links": (lambda most: linked(padded("{}", most)), 262_144, "256 KiB"),
    "lanes": (lambda most: linked(json.dumps({"a": {"b": most}})), 64, "not a number of lanes from 0 to 64"),
    "characters of hints": (lambda most: hinted(padded("{}", most)), 65536, "more than the 64 KiB"),
    "labels of a selector": (
        lambda most: selecting({"matchLabels": {f"a{at}": "b" for at in range(most)}}),
        64,
        "at most 64 labels",
    ),
    "expressions of a selector": (
        lambda most: selecting({"matchExpressions": [{"key": "a", "operator": "Exists"}] * most}),
        64,
        "a list of at most 64",
    ),
    "devices of a node": (
        lambda most: devices(*(device_entry(at) for at in range(most))),
        1024,
        "spec.devices: more than 1024",
    ),
    "virtual functions of a device": (functions, 1024, "more than 1024 virtual functions"),
    "the minor of a device": (lambda most: devices(device_entry(most)), 2_147_483_647, "is not from 0 to 2^31-1"),
    "the minor of a device that was given": (
        lambda most: read_allocation({DEVICE_ALLOCATED: json.dumps({"gpu": [{"minor": most, "id": "G"}]})}).problem,
        2_147_483_647,
        "a minor is not from 0 to 2^31-1",
    ),
    "results of a claim": (claimed, 32, "unread"),
    "devices of a slice": (sliced, 128, "129 devices"),
    "devices that are asked for": (wanted, 128, "ask from 1 to 128"),
    "an amount that is asked for": (
        lambda most: wanted(1, most),
        9_007_199_254_740_991,
        "ask from 0 to 90071992547409",
    ),
    "the number of a CPU's core": (lambda most: topology(core=most), 2_147_483_647, "no whole number from 0 to 2^31-1"),
    "devices of a typical request": (typical, 128, "129 devices: from 1 to 128"),
    "the weight of a typical request": (lambda most: typical(weight=most), 1_048_576, "from 1 to 1048576"),
    "models of a typical request": (lambda most: typical(models=most), 32, "33 models: each once, at most 32"),
    "NUMA nodes": (nodes, 1024, "1024"),
    "characters of a list of CPUs": (lambda most: cpus(padded("0", most)), 32768, "32769 characters; 32768 are read"),
    "characters of what a Pod was translated from": (
        lambda most: annotated(ORIGINAL_REQUEST, padded("{}", most)),
        65536,
        "has more than 64Ki; remove it, koordgate writes less",
    ),
    "characters of how containers share": (
        lambda most: annotated(DEVICE_SHARING, padded("{}", most)),
        65536,
        "more than the 64 KiB that are read",
    ),
    "characters of a resource-spec": (
        lambda most: annotated(RESOURCE_SPEC, padded("{}", most)),
        65536,
        "more than the 64 KiB that are read",
    ),
    "characters of what was given": (
        lambda most: read_allocation({DEVICE_ALLOCATED: padded("{}", most)}).problem,
        65536,
        "more than the 64 KiB that are read",
    ),
    "characters of a status": (lambda most: status(padded("{}", most)), 65536, "more than the 64 KiB that are read"),
    "NUMA nodes of a status": (
        lambda most: status(json.dumps({"numaNodeResources": [{"node": at} for at in range(most)]})),
        256,
        "more than 256 entries",
    ),
    "zones of a topology": (zones, 4096, "zones: more than 4096 entries; left out"),
    "zones and their resources": (
        resources_of_zones,
        4095,
        "zones[0].resources: with it the object has more than 4096",
    ),
    "virtual functions of a node": (functions_of_all, 8192, "the node has more than 8192 virtual functions; left out"),
    "groups of virtual functions": (lambda most: devices(nic_entry(0, vfGroups=[{}] * most)), 64, "more than 64"),
    "labels of a device": (
        lambda most: devices(device_entry(0, labels={f"a{at}": "" for at in range(most)})),
        256,
        "labels: more than 256",
    ),
    "containers of a Pod": (
        lambda most: asked(pod(*(container(f"c{at}") for at in range(most)))),
        256,
        "257 containers; koordgate reads 256 at most",
    ),
    "amounts of a Pod": (
        lambda most: asked({"spec": requesting(most)}),
        4096,
        "state 4097 amounts; koordgate reads 4096 at most",
    ),
    "annotations of a Pod": (
        lambda most: asked(pod(container("a"), annotations={f"a{at}": "" for at in range(most)})),
        4096,
        "4097 entries; koordgate reads 4096 at most",
    ),
    "labels of a Pod": (
        lambda most: asked(pod(container("a"), labels={f"a{at}": "" for at in range(most)})),
        4096,
        "metadata.labels: 4097 entries; koordgate reads 4096 at most",
    ),
    "characters of a Node's labels": (
        lambda most: str(too_large_node({"metadata": {"labels": {"a": "b" * (most - 1)}}}) or ""),
        262_144,
        "metadata.labels: 262145 characters; koordgate reads 256Ki at most",
    ),
    "taints of a Node": (
        lambda most: str(too_large_node({"metadata": {}, "spec": {"taints": [{}] * most}}) or ""),
        4096,
        "spec.taints: 4097 entries; koordgate reads 4096 at most",
    ),
    "resources of a container": (lambda most: summed(requesting(most)), 1024, "more than 1024 resources"),
    "containers and requests that are summed": (
        lambda most: summed({"containers": requesting(9, 200)["containers"] + [{}] * (most - 2000)}),
        2560,
        "more than 2560 containers and requests",
    ),
    "resources of a node": (allocatable, 1024, "more than 1024 resources"),
    "types of software classes": (
        lambda most: "".join(read_classes({f"queue{at}": {} for at in range(most)}, OWN)[1]),
        128,
        "not an object of at most 128 types",
    ),
    "software classes of a type": (
        lambda most: "".join(read_classes({"queue": {str(at): 1 for at in range(most)}}, QUEUES)[1]),
        128,
        "queue is no object of at most 128 ids",
    ),
}


@pytest.mark.parametrize(("says", "most", "told"), BOUNDS.values(), ids=BOUNDS)
def test_the_most_is_read_and_one_more_is_not(says: Callable[[int], str], most: int, told: str) -> None:
    assert says(most) == ""
    assert says(most + 1)
    assert told in says(most + 1)


# how a number of them is read, the least

LEAST: dict[str, tuple[Callable[[int], str], int]] = {
    "MiB of a registered card": (lambda least: registered(mib=least), 1),
    "the time of a numbering": (lambda least: numbered(since=least), 0),
    "the score of a partition": (lambda least: partition(allocationScore=least), 0),
    "lanes": (lambda least: linked(json.dumps({"a": {"b": least}})), 0),
    "the minor of a device": (lambda least: devices(device_entry(least)), 0),
    "devices that are asked for": (wanted, 1),
    "an amount that is asked for": (lambda least: wanted(1, least), 0),
    "the number of a CPU": (lambda least: topology(id=least), 0),
    "the number of a CPU's core": (lambda least: topology(core=least), 0),
    "the number of a CPU's socket": (lambda least: topology(socket=least), 0),
    "the number of a CPU's NUMA node": (lambda least: topology(node=least), 0),
    "devices of a typical request": (typical, 1),
    "thousandths of a CPU of a typical request": (lambda least: typical(cpu=least), 0),
    "bytes of a typical request": (lambda least: typical(memory=least), 0),
    "the weight of a typical request": (lambda least: typical(weight=least), 1),
}


@pytest.mark.parametrize(("says", "least"), LEAST.values(), ids=LEAST)
def test_the_least_is_read_and_one_less_is_not(says: Callable[[int], str], least: int) -> None:
    assert says(least) == ""
    assert says(least - 1)


@pytest.mark.parametrize(
    ("models", "told"),
    [
        (("a", "b"), ""),
        (("b", "a"), "2 models: each once"),
        (("a", "a", "b"), "3 models: each once"),
        (("a", "b", "b"), "3 models: each once"),
    ],
)
def test_a_typical_request_names_models_in_order_and_once(models: tuple[str, ...], told: str) -> None:
    assert told in naming(models)
    assert bool(naming(models)) is bool(told)


@pytest.mark.parametrize(("wrong", "read"), [(7, 1), (8, 0)])
def test_after_eight_wrong_partitions_no_other_is_read(wrong: int, read: int) -> None:
    found, problems = read_partitions(json.dumps({"1": [7] * wrong + [{"minors": [0]}]}))
    assert len(found.partitions) == read
    assert len(problems) == wrong + (1 - read)


def test_after_more_sizes_that_are_wrong_no_partition_is_read() -> None:
    wrong = {f"x{at}": 7 for at in range(9)}
    assert read_partitions(json.dumps({**wrong, "1": [{"minors": [0]}]}))[0].partitions == ()


def test_eight_problems_with_links_are_told() -> None:
    assert len(read_links(json.dumps({f"x{at}": {} for at in range(9)}), ["a"])[1]) == 8


def test_links_of_sixty_five_devices_are_not_read() -> None:
    ids = [f"d{at:02}" for at in range(65)]
    text = json.dumps({"d00": {"d01": 2}, "d02": {"d01": 3}})
    assert read_links(text, ids[:64])[0] == {("d00", "d01"): 2, ("d01", "d02"): 3}
    assert read_links(text, ids)[0] == {}


def test_of_seventeen_numberings_the_oldest_is_not_written() -> None:
    known = tuple(Numbering(at, at, ("G",)) for at in range(1, 18))
    assert read_numberings(write_numberings(known)) == (known[1:], "")


def test_when_a_numbering_begins_is_as_certain_as_it_was_written() -> None:
    sure = Numbering(5, 5, ("A", "B"), ((0, "A"), (2, "B")))
    known = (sure, replace(sure, since=9, after=7, indexes=("B",)), replace(sure, since=9, after=9))
    assert read_numberings(write_numberings(known)) == (known, "")
    odd = (replace(sure, after=6),)
    assert read_numberings(write_numberings(odd)) == (odd, "")


@pytest.mark.parametrize("times", [[(5, 5), (4, 4)], [(5, 5), (9, 4)], [(5, 6)] * 2])
def test_numberings_that_are_not_in_the_order_of_time_are_not_read(times: list[tuple[int, int]]) -> None:
    found, problem = read_numberings(json.dumps([{"since": since, "after": after} for since, after in times]))
    assert found == ()
    assert "not in the order of time" in problem


@pytest.mark.parametrize("wrong", ["", None, True, -1, 1.5, "5"])
def test_a_numbering_of_no_time_is_not_read(wrong: object) -> None:
    for entry in ({"since": wrong}, {"since": 5, "after": wrong}):
        found, problem = read_numberings(json.dumps([{"since": 0}, entry]))
        assert found == ()
        assert "is no time in seconds" in problem
    assert read_numberings('[{"since":0}]') == ((Numbering(0, 0),), "")


def test_json_that_others_wrote_is_parsed_in_one_place_alone() -> None:
    package = Path(allocator.__file__).parent
    assert [str(one.relative_to(package)) for one in package.rglob("*.py") if "json.loads" in one.read_text()] == [
        "wire/values.py"
    ]
