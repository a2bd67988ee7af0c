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
    """One device of a claim's allocation.

    Attributes:
        name: of the device.
        memory: the bytes that the claim consumes of a device that several claims share; None where it holds the whole
            device, or where what it consumes has no known meaning.
    """

    name: DeviceName
    memory: int | None = None


@dataclass(frozen=True, slots=True)
class ResourceClaim:
    """A ResourceClaim, as far as the drivers of our devices are concerned.

    Attributes:
        uid: its identity.
        namespace: where it lives.
        name: its name there.
        revision: its resourceVersion.
        node: the node that its allocation is limited to; "" if it states none.
        devices: what it holds of the drivers' devices; access for administration holds nothing.
        unread: its allocation cannot be read: it may hold any device of its node.
    """

    uid: str
    namespace: str
    name: str
    revision: int
    node: str = ""
    devices: tuple[ClaimedDevice, ...] = ()
    unread: bool = False

    @property
    def holds(self) -> bool:
        """Whether it may hold a device."""
        return bool(self.devices) or self.unread


class ListedDevice(NamedTuple):
    """A device of a ResourceSlice.

    Attributes:
        node: where it is; "" if it is not on one node.
        ids: its UUID, that of the card that it is a part of, and its PCI address in small letters, as far as stated.
    """

    node: str
    ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ResourceSlice:
    """A ResourceSlice of a driver of our devices.

    Attributes:
        name: of the object.
        driver: whose devices it lists.
        pool: the pool that they belong to.
        generation: of the pool; slices of older generations are outdated.
        devices: by name in the pool.
    """

    name: str
    driver: str
    pool: str
    generation: int
    devices: Mapping[str, ListedDevice] = field(default_factory=dict)
