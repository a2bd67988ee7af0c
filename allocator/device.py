"""One device of a node, of any type."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from allocator.names import GPU_CORE, GPU_MEMORY, GPU_MEMORY_RATIO, TYPE_GPU

FULL: Final = 100  # percent: one whole device

# The resources a device of each type is made of, in the order in which people read them.
RESOURCES_OF: Final[Mapping[str, tuple[str, ...]]] = {
    TYPE_GPU: (GPU_CORE, GPU_MEMORY, GPU_MEMORY_RATIO),
}


@dataclass(frozen=True, slots=True)
class Device:
    """A device as its node's Device object describes it.

    Attributes:
        type: "gpu", ...
        id: its identity for life: a GPU's UUID. Minors renumber, ids do not.
        minor: its number on the node today.
        healthy: whether anything new may land on it.
        capacity: resource tail -> amount (percent or bytes).
        numa_node: None where the node does not say.
        pcie: name of its PCIe root, None where the node does not say.
        model: the product's name, "" where unknown.
    """

    type: str
    id: str
    minor: int
    healthy: bool
    capacity: Mapping[str, int]
    numa_node: int | None = None
    pcie: str | None = None
    model: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def order(self) -> tuple[int, str]:
        """The stable order of a node's devices: minor, then id."""
        return (self.minor, self.id)
