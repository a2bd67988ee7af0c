"""Who holds what on a node, and the recount that finds impossible holdings."""

import pytest
from builders import GIB, gpu, held, holding, node, part, share
from machines import machine

from allocator.vocabulary.cpunode import CpuShare
from allocator.vocabulary.holdings import Holding, InvariantError, Share
from allocator.vocabulary.node import NodeSnapshot

CARD = gpu(0)

# Impossible holdings: a node, and the message about it

IMPOSSIBLE: dict[str, tuple[NodeSnapshot, str]] = {
    "too much compute": (
        node(CARD, holdings=held(share(CARD, core=60), share(CARD, core=41))),
        "node-1: 101 gpu-core of GPU-0 given, it has 100",
    ),
    "a byte too much": (
        node(CARD, holdings=held(share(CARD, memory=80 * GIB), share(CARD, memory=1))),
        f"node-1: {80 * GIB + 1} gpu-memory of GPU-0 given, it has {80 * GIB}",
    ),
    "too much memory in percent": (
        node(CARD, holdings=held(part(CARD, 100), share(CARD, ratio=3))),
        "node-1: 101 gpu-memory-ratio of GPU-0 given, it has 100",
    ),
    "by one Pod alone": (node(CARD, holdings=held(share(CARD, core=101))), "node-1: 101 gpu-core of GPU-0 given"),
    "less than nothing": (
        node(CARD, holdings=held(share(CARD, core=-1))),
        "node-1: negative gpu-core in a share of GPU-0",
    ),
    "two shares of one card for one Pod": (
        node(CARD, holdings=[holding("uid-1", part(CARD, 10), part(CARD, 10))]),
        "node-1: Pod uid-1 has two shares of one device",
    ),
    "two cards with one id": (node(CARD, gpu(1, device_id="GPU-0")), "node-1: two devices with one id"),
    "a holding under another Pod's UID": (
        NodeSnapshot("node-1", (CARD,), {"uid-1": Holding("uid-2", "default", "pod", 0, ())}),
        "node-1: holding of uid-2 kept under uid-1",
    ),
    "a holding under another Pod's UID, which comes after its own": (
        NodeSnapshot("node-1", (CARD,), {"uid-2": Holding("uid-1", "default", "pod", 0, ())}),
        "node-1: holding of uid-1 kept under uid-2",
    ),
    "a resource that the card has not": (
        node(CARD, holdings=held(Share("gpu", "GPU-0", 0, {"x": 1}))),
        "node-1: 1 x of GPU-0 given, it has 0",
    ),
    "CPUs of two Pods": (
        node(CARD, holdings=[holding(f"uid-{cpus}", cpus=CpuShare("LSR", cpus)) for cpus in (0b0011, 0b0110)]),
        "node-1: CPUs 1 given twice, to Pod uid-6 too",
    ),
}


@pytest.mark.parametrize(("on", "message"), IMPOSSIBLE.values(), ids=IMPOSSIBLE)
def test_what_can_never_be_is_found_and_named(on: NodeSnapshot, message: str) -> None:
    with pytest.raises(InvariantError) as found:
        on.check_invariants()
    assert str(found.value).startswith(message)


POSSIBLE: dict[str, NodeSnapshot] = {
    "an empty node": node(),
    "an idle machine": machine("four A100"),
    "a full card": node(CARD, holdings=held(part(CARD, 50), part(CARD, 50))),
    "nothing of a resource that the card has not": node(CARD, holdings=held(Share("gpu", "GPU-0", 0, {"x": 0}))),
    "CPUs side by side": node(holdings=[holding(f"uid-{cpus}", cpus=CpuShare("LSR", cpus)) for cpus in (1, 2)]),
    "a holding on a card that went away": node(CARD, holdings=held(part(gpu(1), 100), part(gpu(1), 100))),
    "a holding on a card gone bad": node(gpu(0, healthy=False), holdings=held(part(CARD, 100))),
}


@pytest.mark.parametrize("on", POSSIBLE.values(), ids=POSSIBLE)
def test_what_may_be_is_let_be(on: NodeSnapshot) -> None:
    on.check_invariants()


def test_a_snapshot_never_changes_the_one_it_was_made_from() -> None:
    first = node(CARD, holdings=[holding("uid-1", part(CARD, 50))], kubelet=["GPU-9"])
    second = first.with_holding(holding("uid-2", part(CARD, 50)))
    third = second.without(["uid-1", "never-there"])
    assert [sorted(on.holdings) for on in (first, second, third)] == [["uid-1"], ["uid-1", "uid-2"], ["uid-2"]]
    assert [on.used["GPU-0"]["gpu-core"] for on in (first, second, third)] == [50, 100, 50]
    assert {on.kubelet_held for on in (first, second, third)} == {frozenset(["GPU-9"])}
