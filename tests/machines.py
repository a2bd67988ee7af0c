"""Nodes worth naming, as data: (memory of each card in bytes), smallest minor first."""

from collections.abc import Iterable
from typing import Any

from builders import GIB, MIB, gpu, nic, node
from machines_cpu import build, siblings_near

from allocator.vocabulary.cpunode import CpuNode, Zone
from allocator.vocabulary.device import Device, Place, VirtualFunction, Wiring, link
from allocator.vocabulary.holdings import Holding
from allocator.vocabulary.node import NodeSnapshot

A100_80G = 81920 * MIB
A100_40G = 40960 * MIB
L4 = 23034 * MIB
T4 = 15472384 * 1024  # the device proposal's example: 15472384Ki
ODD = 8_589_934_591  # a number of bytes of which no percentage is a whole number

MACHINES: dict[str, tuple[int, ...]] = {
    "one T4": (T4,),
    "two T4": (T4, T4),
    "four A100": (A100_80G,) * 4,
    "eight A100": (A100_80G,) * 8,
    "mixed: two A100 of 80G, two of 40G, two L4": (A100_80G, A100_80G, A100_40G, A100_40G, L4, L4),
    "odd bytes": (ODD, ODD - 2, ODD + 8),
    "tiny: three bytes": (3, 3),
}


def devices(name: str) -> tuple[Device, ...]:
    return tuple(gpu(minor, memory) for minor, memory in enumerate(MACHINES[name]))


def machine(name: str) -> NodeSnapshot:
    """The named node, empty."""
    return node(*devices(name))


# A server of two NUMA nodes: CPUs 0-15 and 16-31 (a core is two adjacent CPUs), GPUs 0-3 and 4-7, NICs 0-1 and 2-3.
# PCIe root k has the GPUs 2k and 2k+1 and the NIC k, which has three virtual functions.

SERVER_CPUS = build(2, 1, 8, 2, siblings_near)
FAST, SLOW = {"speed": "fast"}, {"speed": "slow"}


def server_devices() -> list[Device]:
    cards = [gpu(minor, numa_node=minor // 4, pcie=f"pci{minor // 2}") for minor in range(8)]
    return [
        *cards,
        *(
            nic(
                root,
                VirtualFunction(0, f"0000:{root}f:00.1", FAST),
                VirtualFunction(1, f"0000:{root}f:00.2", SLOW),
                VirtualFunction(2, f"0000:{root}f:00.3", FAST),
                numa_node=root // 2,
                pcie=f"pci{root}",
            )
            for root in range(4)
        ),
    ]


def wired(devices: Iterable[Device], **fields: Any) -> Wiring:
    """The connections of these devices, by their places alone."""
    places = [Place(device.id, device.numa_node, device.pcie, device.numa_node) for device in devices]
    return Wiring(link(places), **fields)


def server_cpu(**fields: Any) -> CpuNode:
    zones = {at: Zone(16_000, 64 * GIB) for at in (0, 1)}
    return CpuNode(SERVER_CPUS, **{"zones": zones, **fields})


def server(
    holdings: Iterable[Holding] = (),
    *,
    devices: Iterable[Device] | None = None,
    cpu: CpuNode | None = None,
    **fields: Any,
) -> NodeSnapshot:
    """The server, with these holdings."""
    made = server_devices() if devices is None else list(devices)
    return node(*made, holdings=holdings, **{"wiring": wired(made), "cpu": cpu or server_cpu(), **fields})
