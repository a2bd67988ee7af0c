"""Nodes worth naming, as data: (memory of each card in bytes), smallest minor first."""

from builders import MIB, gpu, node

from allocator.device import Device
from allocator.holdings import NodeSnapshot

A100_80G = 81920 * MIB
A100_40G = 40960 * MIB
L4 = 23034 * MIB
T4 = 15472384 * 1024  # seed document 1's example: 15472384Ki
ODD = 8_589_934_591  # a prime-like count of bytes: no percentage of it is whole

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
