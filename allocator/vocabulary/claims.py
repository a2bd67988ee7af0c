"""Dynamic resource allocation (DRA, resource.k8s.io/v1): what ResourceClaims hold, and what ResourceSlices list."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple


class DeviceName(NamedTuple):
    """How DRA names a device: by its driver, its pool and its name in the pool."""

    driver: str
    pool: str
    device: str

    def __str__(self) -> str:
        return f"{self.driver}/{self.pool}/{self.device}"


class ClaimedDevice(NamedTuple):
    """One device of a claim's allocation."""

    name: DeviceName
    # the bytes that the claim consumes of a device that several claims share; None where it holds the whole device, or
    # where what it consumes has no known meaning
    memory: int | None = None


@dataclass(frozen=True, slots=True)
class ResourceClaim:
    """A ResourceClaim, as far as the drivers of our devices are concerned."""

    uid: str
    namespace: str
    name: str
    revision: int
    node: str = ""  # the node that its allocation is limited to; "" if it states none
    # what it holds of the drivers' devices; access for administration holds nothing
    devices: tuple[ClaimedDevice, ...] = ()
    unread: bool = False  # its allocation cannot be read: it may hold any device of its node

    @property
    def holds(self) -> bool:
        """Whether it may hold a device."""
        return bool(self.devices) or self.unread


class ListedDevice(NamedTuple):
    """A device of a ResourceSlice."""

    node: str  # where it is; "" if it is not on one node
    # its UUID, that of the card that it is a part of, and its PCI address in small letters, as far as stated
    ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ResourceSlice:
    """A ResourceSlice of a driver of our devices."""

    name: str
    driver: str  # whose devices it lists
    pool: str  # the pool that they belong to
    generation: int  # of the pool; slices of older generations are outdated
    devices: Mapping[str, ListedDevice] = field(default_factory=dict)  # by name in the pool
