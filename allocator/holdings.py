"""Who holds what on one node, and what is therefore free."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from allocator.device import Device


class InvariantError(AssertionError):
    """Holdings that can never be: more than a device has, or one Pod twice. Always a bug."""


@dataclass(frozen=True, slots=True)
class Share:
    """What one Pod holds of one device.

    Attributes:
        type: device type.
        id: the device's identity.
        minor: the device's number when the share was given.
        amounts: resource tail -> percent or bytes: the Pod's peak on this device.
        containers: the containers that see the device, in the Pod's order.
    """

    type: str
    id: str
    minor: int
    amounts: Mapping[str, int]
    containers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Holding:
    """What one Pod holds on one node.

    Attributes:
        uid: the Pod's UID, the only key: names are used again.
        namespace: of the Pod, for people.
        name: of the Pod, for people.
        since: when it was recorded, seconds since the epoch.
        shares: at most one a device.
    """

    uid: str
    namespace: str
    name: str
    since: int
    shares: tuple[Share, ...]


@dataclass(frozen=True, slots=True)
class NodeSnapshot:
    """One node at one moment: the only thing a decision looks at.

    Attributes:
        name: of the node.
        devices: in the order of `Device.order`.
        holdings: by Pod UID.
        kubelet_held: ids of devices that the kubelet's own device manager gave away; never ours to give.
        used: device id -> resource tail -> amount, summed over holdings; derived.
    """

    name: str
    devices: tuple[Device, ...]
    holdings: Mapping[str, Holding] = field(default_factory=dict)
    kubelet_held: frozenset[str] = frozenset()
    used: Mapping[str, Mapping[str, int]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "used", sum_used(self.holdings.values()))

    def with_holding(self, holding: Holding) -> "NodeSnapshot":
        """Return the node with this holding added, or put in place of the same Pod's."""
        return NodeSnapshot(self.name, self.devices, {**self.holdings, holding.uid: holding}, self.kubelet_held)

    def without(self, uids: Iterable[str]) -> "NodeSnapshot":
        """Return the node less the holdings of these Pods."""
        gone = set(uids)
        kept = {uid: holding for uid, holding in self.holdings.items() if uid not in gone}
        return NodeSnapshot(self.name, self.devices, kept, self.kubelet_held)

    def check_invariants(self) -> None:
        """Recount from scratch that no device is given more than once over.

        Raises:
            InvariantError: naming the device, the resource, and both figures.
        """
        by_id = {device.id: device for device in self.devices}
        if len(by_id) != len(self.devices):
            raise InvariantError(f"{self.name}: two devices with one id")
        totals: dict[tuple[str, str], int] = {}
        for uid, holding in self.holdings.items():
            if uid != holding.uid:
                raise InvariantError(f"{self.name}: holding of {holding.uid} kept under {uid}")
            if len({share.id for share in holding.shares}) != len(holding.shares):
                raise InvariantError(f"{self.name}: Pod {uid} has two shares of one device")
            for share in holding.shares:
                for tail, amount in share.amounts.items():
                    if amount < 0:
                        raise InvariantError(f"{self.name}: negative {tail} in a share of {share.id}")
                    totals[share.id, tail] = totals.get((share.id, tail), 0) + amount
        for (device_id, tail), total in totals.items():
            device = by_id.get(device_id)
            if device is not None and total > device.capacity.get(tail, 0):
                message = f"{self.name}: {total} {tail} of {device_id} given, it has {device.capacity.get(tail, 0)}"
                raise InvariantError(message)


def sum_used(holdings: Iterable[Holding]) -> dict[str, dict[str, int]]:
    """Sum what is held: device id -> resource tail -> amount."""
    used: dict[str, dict[str, int]] = {}
    for holding in holdings:
        for share in holding.shares:
            device = used.setdefault(share.id, {})
            for tail, amount in share.amounts.items():
                device[tail] = device.get(tail, 0) + amount
    return used
