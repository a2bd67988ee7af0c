"""Nodes that are alike: what makes them differ, and when a refusal holds on one of them only.

`test_place_promises.py` has the properties: a refusal holds, in its words, on every node that is alike.
"""

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import pytest
from builders import app, gpu, gpus, holding, node, part, request
from machines import server, server_cpu, server_devices

from allocator.place import place
from allocator.signature import depends_on_names, renamed, signature_of
from allocator.vocabulary.adopted import ForeignHolding, Product
from allocator.vocabulary.asks import Operator, Requirement, Selector, TypeHint, Wishes
from allocator.vocabulary.cpunode import CpuNode, CpuShare
from allocator.vocabulary.device import NO_LINKS, Device, VirtualFunction, Wiring
from allocator.vocabulary.holdings import Function
from allocator.vocabulary.node import NodeSnapshot
from allocator.vocabulary.outcome import Refusal

CARDS = server_devices()
HALF = part(CARDS[0], 50)
BASE = server([holding("u", HALF, cpus=CpuShare("LSR", 0b11))])


def device(**changes: Any) -> NodeSnapshot:
    """The server with another first device."""
    return replace(BASE, devices=tuple(replace(one, **changes) if one.id == "GPU-0" else one for one in BASE.devices))


def cpu(**changes: object) -> NodeSnapshot:
    return replace(BASE, cpu=server_cpu(**changes))


def holding_of(*shares: object, mask: int = 0b11, unread: tuple[str, ...] = ()) -> NodeSnapshot:
    held = holding("u", *shares, cpus=CpuShare("LSR", mask))  # type: ignore[arg-type] # shares
    return BASE.holding_all({"u": replace(held, unread=unread)})


FUNCTION = VirtualFunction(0, "0000:01:00.1")

FOREIGN = ForeignHolding("f", "ns", "p", Product.HAMI, "annotation", (part(CARDS[1], 30),))

DIFFERENT: dict[str, Callable[[], NodeSnapshot]] = {
    "a minor": lambda: device(minor=20),
    "health": lambda: device(healthy=False),
    "a cordon": lambda: device(cordoned=True),
    "a capacity": lambda: device(capacity={**CARDS[0].capacity, "gpu-core": 99}),
    "a NUMA node": lambda: device(numa_node=1),
    "a PCIe root": lambda: device(pcie="elsewhere"),
    "a model": lambda: device(model="T4"),
    "a label": lambda: device(labels={"speed": "fast"}),
    "a function": lambda: device(functions=(FUNCTION,)),
    "a function's label": lambda: device(functions=(replace(FUNCTION, labels={"a": "b"}),)),
    "a vendor": lambda: device(vendor="amd"),
    "a type": lambda: device(type="fpga"),
    "one device less": lambda: replace(BASE, devices=BASE.devices[1:]),
    "an amount held": lambda: holding_of(part(CARDS[0], 40)),
    "another card held": lambda: holding_of(part(CARDS[1], 50)),
    "nothing of a card held": lambda: holding_of(part(CARDS[0], 0)),
    "nothing held": holding_of,
    "a share that is alone": lambda: holding_of(HALF._replace(alone=True)),
    "a share that is unshared": lambda: holding_of(HALF._replace(unshared=True)),
    "a function held": lambda: holding_of(HALF._replace(functions=(Function(0, "0000:01:00.1"),))),
    "other CPUs held": lambda: holding_of(HALF, mask=0b1100),
    "an annotation that cannot be read": lambda: holding_of(HALF, unread=("gpu",)),
    "a card held by the kubelet": lambda: replace(BASE, kubelet_held=frozenset({"GPU-3"})),
    "a disputed card": lambda: replace(BASE, disputed=frozenset({"GPU-3"})),
    "no connections": lambda: replace(BASE, wiring=replace(BASE.wiring, links=NO_LINKS)),
    "partitions honoured": lambda: replace(BASE, wiring=replace(BASE.wiring, honour_partitions=True)),
    "the order": lambda: replace(BASE, order="leastUsed"),
    "Pods of other products": lambda: replace(BASE, foreign={"f": FOREIGN}),
    "the isolation": lambda: replace(BASE, isolation="HAMi-core"),
    "how cards are given": lambda: replace(BASE, delivery=replace(BASE.delivery, runtime_class="nvidia")),
    "CPUs unknown": lambda: replace(BASE, cpu=None),
    "CPUs reserved": lambda: cpu(reserved=1),
    "CPUs pooled": lambda: cpu(pooled=1),
    "zones": lambda: cpu(zones={}),
    "an architecture": lambda: cpu(architecture="arm64"),
    "holders unknown": lambda: cpu(holders_unknown=True),
}


@pytest.mark.parametrize("change", DIFFERENT.values(), ids=DIFFERENT)
def test_nodes_that_differ_are_not_alike(change: Callable[[], NodeSnapshot]) -> None:
    assert signature_of(change()) != signature_of(BASE)


def test_nodes_that_are_alike_are_found_by_their_likeness() -> None:
    others = [holding("v", part(CARDS[1], 30)), holding("u", HALF, cpus=CpuShare("LSR", 0b11))]
    assert {signature_of(server(others)): "found"}[
        signature_of(replace(server(others[::-1]), name="another"))
    ] == "found"


def test_pods_that_divide_the_same_cpus_otherwise_make_a_difference() -> None:
    """Whether a Pod is inside one NUMA node depends on which of the CPUs it has."""

    def divided(*masks: int) -> NodeSnapshot:
        none = holding("none", HALF)
        return server([none, *(holding(f"p{at}", cpus=CpuShare("LSR", mask)) for at, mask in enumerate(masks))])

    assert signature_of(divided(0b0011, 0b1100)) == signature_of(divided(0b1100, 0b0011))
    assert signature_of(divided(0b0011, 0b1100)) != signature_of(divided(0b0111, 0b1000))


LABELLED = {"labels": {"speed": "fast"}, "functions": (replace(FUNCTION, labels={"a": "b"}),)}


@pytest.mark.parametrize(
    "other",
    [{"labels": {"speed": "slow"}}, {"functions": (FUNCTION,)}, {"functions": (replace(FUNCTION, bus_id="other"),)}],
    ids=["other labels", "a function without its label", "another function"],
)
def test_labels_and_functions_are_compared_where_both_nodes_have_some(other: dict[str, object]) -> None:
    assert signature_of(device(**LABELLED)) == signature_of(device(**LABELLED))
    assert signature_of(device(**LABELLED)) != signature_of(device(**{**LABELLED, **other}))


def test_a_connection_of_a_device_that_the_node_does_not_list_is_no_listed_ones() -> None:
    links = BASE.wiring.links
    assert links.ids[0] == BASE.devices[0].id
    strange = replace(BASE.wiring, links=replace(links, ids=("strange", *links.ids[1:])))
    assert signature_of(replace(BASE, wiring=strange)) != signature_of(BASE)


def test_whatever_a_node_has_is_compared_or_named_here() -> None:
    """A new field fails here until `signature_of` takes it in, or until it is listed as what no refusal depends on."""
    assert {one.name for one in fields(NodeSnapshot) if one.init} == {
        *("name", "devices", "holdings", "claims", "foreign", "kubelet_held", "wiring", "cpu", "order", "isolation"),
        *("delivery", "disputed"),
    }
    assert {one.name for one in fields(Device) if one.init} == {
        *("type", "id", "minor", "healthy", "capacity", "numa_node", "pcie", "model", "labels", "why_not"),
        *("functions", "vendor", "cordoned", "bus"),
        "reserved",  # says what may have been given; no refusal depends on it
    }
    assert {one.name for one in fields(Wiring)} == {"links", "partitions", "honour_partitions", "others"}


@pytest.mark.parametrize("name", [one.name for one in fields(CpuNode) if one.name not in {"topology", "zones"}])
def test_whatever_a_node_says_of_its_cpus_is_compared(name: str) -> None:
    """A new field too, without a change of `signature_of`."""
    assert signature_of(cpu(**{name: "another"})) != signature_of(BASE)


def selecting(key: str, **fields: object) -> Wishes:
    selector = Selector((Requirement(key, Operator.IN, ("GPU-0",)),))
    return Wishes(hints=(("gpu", TypeHint(**{"selector": selector, **fields})),))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("wishes", "depends"),
    [
        pytest.param(Wishes(), False, id="no wishes"),
        pytest.param(selecting("koordgate.io/uuid"), True, id="a device by its id"),
        pytest.param(selecting("koordgate.io/minor"), False, id="a device by its minor"),
        pytest.param(selecting("speed"), False, id="a device by its own label"),
        pytest.param(Wishes(gang="default/train"), True, id="a gang that holds something there"),
        pytest.param(Wishes(gang="default/other"), False, id="a gang that holds nothing there"),
    ],
)
def test_a_verdict_depends_on_names_where_a_hint_or_the_gang_names_devices(wishes: Wishes, *, depends: bool) -> None:
    on = node(gpu(0), gpu(1), holdings=[holding("a"), holding("u", part(gpu(1), 50), gang="default/train")])
    assert depends_on_names(request(app("main", gpus(50)), wishes=wishes), on) is depends


def test_a_refusal_is_retold_with_the_other_nodes_name() -> None:
    told = place(request(app("main", gpus(200))), node(gpu(0)))
    assert isinstance(told, Refusal)
    again = renamed(told, "node-1", "node-2")
    assert again is not None
    assert again == replace(told, message=told.message.replace("node-1", "node-2"))
    assert again.short == told.short


def test_a_refusal_that_does_not_begin_with_the_nodes_name_is_not_retold() -> None:
    assert renamed(Refusal("node-10: too full"), "node-1", "node-2") is None
