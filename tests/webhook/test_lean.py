"""What thousands of objects say alike is kept once: the values stay what they were, and copies become one."""

import copy
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from builders import gpu, held, holding, part
from machines_cpu import machine
from world import gpu_pod

from allocator.vocabulary.cpunode import CpuShare
from allocator.vocabulary.cputopology import parse
from allocator.wire.deviceobject import NodeDevices
from allocator.wire.nodetopology import NodeTopology
from webhook.ledger.store import Record
from webhook.view import feed
from webhook.view.podinfo import PodInfo, read_pod_info

SMALL = "one socket, 4 cores, SMT"


def another(text: str) -> str:
    """An equal text that is another object, as each parsed object has its own."""
    made: str = json.loads(json.dumps(text + "!"))[:-1]
    return made


def test_equal_texts_become_one() -> None:
    first, second = another("a namespace"), another("a namespace")
    assert first is not second
    assert feed.same_text(first) is feed.same_text(second)


def test_what_only_looks_like_a_text_stays_as_it_is() -> None:
    class Text(str):
        __slots__ = ()

    text = Text("a namespace")
    assert feed.same_text(text) is text


def test_equal_values_become_one_and_those_of_other_types_stay_apart() -> None:
    first, second = (tuple(json.loads("[1000, 2000]")) for _ in range(2))
    assert feed.same(first) is feed.same(second)
    assert feed.same(1) is not feed.same(1.0)
    assert (type(feed.same(True)), type(feed.same(1))) == (bool, int)


def test_equal_mappings_become_one_whose_order_is_the_same() -> None:
    one, same, other = {"gpu-core": 100, "gpu-memory": 7}, {"gpu-core": 100, "gpu-memory": 7}, {"gpu-core": 50}
    assert feed.same_mapping(one) is feed.same_mapping(same)
    assert feed.same_mapping(other) == other
    turned = dict(reversed(one.items()))
    assert list(feed.same_mapping(turned)) == ["gpu-memory", "gpu-core"]


def pod(name: str) -> PodInfo:
    info = read_pod_info(gpu_pod(name, 50, nodeName="n1"))
    assert info is not None
    return info


def topology(name: str) -> NodeTopology:
    return NodeTopology(name, copy.deepcopy(machine(SMALL)))


def record(name: str) -> Record:
    return Record(name, holdings={one.uid: one for one in held(part(gpu(0), 30, "main"), part(gpu(1), 30, "main"))})


def devices(name: str) -> NodeDevices:
    return NodeDevices(name, (gpu(0, pcie=another("pci0000:3a")), gpu(1)))


ALIKE: dict[str, tuple[Callable[[str], Any], Callable[[Any], Any], Callable[[Any], list[Any]]]] = {
    "devices": (
        devices,
        feed.lean_devices,
        lambda it: [part for one in it.devices for part in (one.type, one.capacity, one.pcie, one.model, one.labels)],
    ),
    "topologies": (topology, feed.lean_topology, lambda it: [it.cpu]),
    "records": (
        record,
        feed.lean_record,
        lambda it: [
            part
            for one in it.holdings.values()
            for share in one.shares
            for part in (one.namespace, share.type, share.amounts, share.containers)
        ],
    ),
    "Pods": (
        pod,
        lambda it: feed.lean_pod(it, None),
        lambda it: [it.namespace, it.node, it.scheduler_name, it.request, it.requests],
    ),
}


@pytest.mark.parametrize("name", ALIKE)
def test_objects_of_one_kind_share_what_they_say_alike(name: str) -> None:
    make, thin, parts = ALIKE[name]
    first, second = make("a"), make("b")
    one, two = thin(first), thin(second)
    assert (one, two) == (first, second), "what they say is the same"
    assert [a is b for a, b in zip(parts(one), parts(two), strict=True)] == [True] * len(parts(one))


def test_a_topology_without_cpus_stays_as_it_is() -> None:
    bare = NodeTopology("a")
    assert feed.lean_topology(bare) is bare


SHARES = (part(gpu(1), 50),)


@pytest.mark.parametrize(
    ("says", "kept"),
    [
        pytest.param(holding("a", *SHARES), True, id="the same"),
        pytest.param(holding("a", part(gpu(0), 50)), False, id="an earlier card"),
        pytest.param(holding("a", part(gpu(2), 50)), False, id="a later card"),
        pytest.param(holding("a", *SHARES, cpus=CpuShare("LSR", parse("0-1"))), False, id="CPUs beside it"),
        pytest.param(None, False, id="nothing"),
    ],
)
def test_a_pod_shares_with_the_ledger_what_both_say(says: Any, kept: bool) -> None:  # noqa: FBT001 a parameter
    info = replace(pod("a"), shares=copy.deepcopy(SHARES))
    thin = feed.lean_pod(info, says)
    assert thin == info
    assert says is None or (thin.shares is says.shares) is kept
