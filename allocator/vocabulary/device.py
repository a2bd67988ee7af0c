"""One device of a node, of any type."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from allocator.vocabulary.names import GPU_MEMORY, NVIDIA

RATIO: Final = "-ratio"  # added to the name of an amount of bytes: the same amount in percent of a device

_PCI_ADDRESS: Final = re.compile(r"([0-9a-f]{4,8}):([0-9a-f]{2}):([0-9a-f]{2})\.([0-7])", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class VirtualFunction:
    """A virtual function of a device (SR-IOV)."""

    minor: int | None  # its number; None if the node does not report one
    bus_id: str  # its PCI address, which identifies it on the node
    # of its group on the Device object, for selectors
    labels: Mapping[str, str] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True)
class Device:
    """A device as its node's Device object describes it."""

    type: str  # "gpu",
    id: str  # its permanent identity: for a GPU, its UUID. Minors can change, ids do not.
    minor: int  # its current number on the node
    healthy: bool  # whether anything new may land on it
    capacity: Mapping[str, int]  # resource tail -> amount, in the resource's unit (percent, bytes, units)
    numa_node: int | None = None  # its NUMA node; None if the node does not report it
    pcie: str | None = None  # name of its PCIe root; None if the node does not report it
    model: str = ""  # the product's name; "" if unknown
    labels: Mapping[str, str] = field(default_factory=dict)  # of the device, for selectors
    why_not: str = ""  # why nothing new may land on it, for people; "" if anything may, or if no reason is given
    functions: tuple[VirtualFunction, ...] = ()  # its virtual functions, in the order of their bus ids
    vendor: str = ""  # who made it, in small letters; "" if unknown
    cordoned: bool = False  # an administrator has taken it out of service; it then counts as unhealthy
    bus: str = ""  # its PCI address, in small letters; "" if the node does not report it
    reserved: int = 0  # bytes of its memory, beside the capacity, that its driver keeps
    # the tails of its capacity that state its memory, in bytes and in percent; None for none. Derived.
    memory: tuple[str, str] | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        pairs = ((tail, tail + RATIO) for tail in self.capacity if tail + RATIO in self.capacity)
        object.__setattr__(self, "memory", next(pairs, None))

    def is_of(self, vendor: str) -> bool:
        """Whether a vendor made it; a device of an unknown vendor counts as NVIDIA's, as all did before."""
        return (self.vendor or NVIDIA) == vendor

    def has_at_most(self, tail: str) -> int:
        """How much of a resource can be held without that it was given twice.

        More than the capacity: others, and koordgate before it knew of the reserved memory, give all of a card's.
        """
        return self.capacity.get(tail, 0) + (self.reserved if tail == GPU_MEMORY else 0)

    @property
    def order(self) -> tuple[int, str]:
        """The stable order of a node's devices: minor, then id."""
        return (self.minor, self.id)


def pci_address(text: str) -> str | None:
    """Spell a PCI address as sysfs does: `00000000:3B:00.0` becomes `0000:3b:00.0`; None if it is not one."""
    match = _PCI_ADDRESS.fullmatch(text)
    if match is None:
        return None
    domain, bus, device, function = match.groups()
    return f"{int(domain, 16):04x}:{bus}:{device}.{function}".lower()
