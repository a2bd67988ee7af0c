"""The shared pools of a node: what Pods hold by koordgate and by the kubelet is in none that it must not be in."""

import pytest
from machines_cpu import machine

from allocator.vocabulary.cpunode import CpuShare
from allocator.wire.nodetopology import NodeTopology, PodCpuAlloc
from webhook.view.snapshots import pools_on

MACHINE = machine("two sockets, 2 nodes, SMT, siblings near")
LSE, LSR = CpuShare("LSE", 0b11), CpuShare("LSR", 0b1100)
KUBELET = NodeTopology(
    "n", pod_cpu_allocs=(PodCpuAlloc("a", "p", "u", 0b110000, managed_by_kubelet=True), PodCpuAlloc("a", "q", "v", 1))
)


@pytest.mark.parametrize(
    ("held", "reported", "shared", "best_effort"),
    [
        pytest.param([], NodeTopology("n"), 0, 0, id="nobody holds any"),
        pytest.param([None, None], NodeTopology("n"), 0, 0, id="Pods without CPUs of their own"),
        pytest.param([None, LSE, None, LSR], NodeTopology("n"), 0b1111, 0b11, id="Pods with CPUs of their own"),
        pytest.param([LSR], KUBELET, 0b111100, 0b110000, id="and Pods that the kubelet gave some"),
    ],
)
def test_what_pods_hold_is_missing_in_the_pools(
    held: list[CpuShare | None], reported: NodeTopology, shared: int, best_effort: int
) -> None:
    found = pools_on(MACHINE, held, reported)
    every = MACHINE.all
    assert sum(one.cpus for one in found.shared) == every & ~shared
    assert sum(one.cpus for one in found.best_effort) == every & ~best_effort
