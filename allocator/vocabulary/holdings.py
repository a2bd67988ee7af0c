"""What Pods and ResourceClaims (resource.k8s.io/v1) hold on one node, and what ResourceSlices list."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

from allocator.vocabulary.cpunode import CpuShare

WITHOUT_LIMIT: Final = 253_402_300_799  # the last second of the year 9999


class InvariantError(AssertionError):
    """Holdings that must never exist: more than a device has, or one Pod twice. Always a bug."""


class Function(NamedTuple):
    """A virtual function that comes with a share: its number (-1 if it has none) and its bus id."""

    minor: int
    bus_id: str


class Share(NamedTuple):
    """What one Pod holds of one device."""

    type: str  # device type
    id: str
    minor: int  # the device's number when the share was given
    amounts: Mapping[str, int]  # resource tail -> percent, bytes or units: the Pod's peak on this device
    containers: tuple[str, ...] = ()  # the containers that see the device, in the Pod's order
    functions: tuple[Function, ...] = ()  # virtual functions that come with it
    # no other Pod may hold a device of its PCIe root or, if the root is not known, the device itself (Koordinator's
    # exclusive policy PCIeLevel)
    alone: bool = False
    unshared: bool = False  # no other Pod may hold any part of the device, however much is free (DeviceLevel)


@dataclass(frozen=True, slots=True)
class Holding:
    """What one Pod holds on one node, or one ResourceClaim (DRA).

    Raises ValueError: the UID is empty.
    """

    uid: str  # the Pod's UID, the only key, because names are reused
    namespace: str
    name: str
    since: int  # when it was recorded, seconds since the epoch
    shares: tuple[Share, ...]  # at most one per device
    cpus: CpuShare | None = None  # its CPUs and NUMA nodes; None if the kubelet manages them
    gang: str = ""  # the group that the Pod belongs to, as namespace/name; "" for none
    # 0 for what a bind has given. Otherwise it is held for a Pod of an all-or-nothing gang, which a bind may take
    # (seconds since the epoch when it is meant to end, or `WITHOUT_LIMIT`).
    until: int = 0
    # the name of the mark that it is being given back, "" for none. While it is marked, no bind is answered with it,
    # and it is released once all binds that were answered before are over. Marks have different names.
    ending: str = ""
    # what the Pod's annotations do not state readably, so that the holding is all that it may be: device types, and
    # "cpu". Never recorded.
    unread: tuple[str, ...] = ()
    # 0 for a Pod. Of a ResourceClaim, the revision of the claim that this is about: a write of the claim that was
    # reviewed at this revision is performed only while the claim is still at it.
    fence: int = 0

    def __post_init__(self) -> None:
        if not self.uid:
            raise ValueError(f"a holding of Pod {self.namespace}/{self.name} without a UID")

    @property
    def holder(self) -> str:
        """Who holds it, for people."""
        return f"{'resourceclaim ' if self.fence else ''}{self.namespace}/{self.name}"


def of_claims(holdings: Mapping[str, Holding]) -> dict[str, Holding]:
    """Those of ResourceClaims."""
    return {uid: holding for uid, holding in holdings.items() if holding.fence}


def unnamed(kind: str, minor: int) -> str:
    """Name a device that an annotation names by its minor alone, while the node has no such device."""
    return f"{kind}-minor-{minor}"


class HasShares(Protocol):
    """Whatever holds shares of devices."""

    @property
    def shares(self) -> tuple[Share, ...]:
        """At most one per device."""


def sum_used(holdings: Iterable[HasShares]) -> dict[str, dict[str, int]]:
    """Sum what is held: device id -> resource tail -> amount."""
    return sum_shares(share for holding in holdings for share in holding.shares)


def sum_shares(shares: Iterable[Share]) -> dict[str, dict[str, int]]:
    """Sum shares: device id -> resource tail -> amount."""
    used: dict[str, dict[str, int]] = {}
    for share in shares:
        device = used.setdefault(share.id, {})
        for tail, amount in share.amounts.items():
            device[tail] = device.get(tail, 0) + amount
    return used


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
