"""Which devices annotations mean that name them by minor alone (pure).

A minor is a device's number at the time of the allocation (device proposal, "DeviceAllocation"). Devices are numbered
again where one is added or lost, so that the minor may mean another device today.
"""

from collections.abc import Iterable, Iterator, Sequence

from allocator.vocabulary.adopted import Numberings, held_at
from allocator.vocabulary.device import Device
from allocator.vocabulary.holdings import Share


def meant(
    shares: Iterable[Share], starts: Sequence[int], numberings: Numberings, devices: Iterable[Device]
) -> Iterator[tuple[Share, tuple[str, ...]]]:
    """Find the devices that shares are of.

    `starts`: when its minors were resolved, seconds since the epoch; empty if that is not known. Yields each share with
    the ids that it may be of, ascending: one, unless the past is not known exactly; none if the node is not known to
    have had such a device. At a time of which nothing is known, a minor may have meant whatever it is known to have
    meant at any time.
    """
    now = {(device.type, device.minor): device.id for device in devices}
    for share in shares:
        kind, minor = share.type, share.minor
        found = {one.device(kind, minor) for start in starts for one in held_at(numberings, start)}
        if not share.id and (not found or "" in found):
            found = {*(one.device(kind, minor) for one in numberings), now.get((kind, minor))}
        yield share, (share.id,) if share.id else tuple(sorted(filter(None, found)))
