"""Which devices a live Pod's annotations mean, and what these and the ledger state differently (pure).

A bind writes both in one step each, and nothing changes either of them while the Pod is bound. Where they differ,
somebody has edited one, and nobody knows which: the Pod may use what the one says and what the other says.

A minor is a device's number at the time of the allocation (device proposal, "DeviceAllocation"). Devices are numbered
again where one is added or lost, so that the minor may mean another device today.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from allocator.vocabulary.adopted import Numberings, held_at
from allocator.vocabulary.cpunode import CpuShare
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


class Dispute(NamedTuple):
    """What is stated differently of one Pod."""

    devices: frozenset[str] = frozenset()  # their ids. Nothing new may land on them.
    cpus: int = 0  # those that only the annotation states, bit i for CPU i. The Pod holds them too.


AGREED = Dispute()


def disputed_devices(
    held: Sequence[Share], said: Iterable[tuple[Share, Collection[str]]], pairs: Mapping[str, tuple[str, str]]
) -> frozenset[str]:
    """Find the devices about which the ledger and an annotation differ.

    They agree on a device if the ledger holds all that the annotation states of it. The ledger may hold more: an
    annotation may leave out amounts, and states truncated ones. Of a type that it does not state, it says nothing.
    `said`: what the annotation states, each share with the ids that it may be of. `pairs`: by type, the two resources
    that state the same of it in two units: the ledger may have one of them.
    """
    ours = {share.id: share for share in held}
    types: set[str] = set()
    named: set[str] = set()
    found: set[str] = set()
    for share, ids in said:
        types.add(share.type)
        named.update(ids)
        own = [ours[one] for one in ids if one in ours and ours[one].type == share.type]
        if not any(_covers(one, share, pairs.get(share.type, ())) for one in own):
            found.update(ids)
    return frozenset(found.union(one.id for one in held if one.type in types and one.id not in named))


def _covers(held: Share, said: Share, pair: tuple[str, ...]) -> bool:
    """Whether a share of the ledger has all amounts and functions that an annotation states."""
    has = held.amounts
    spared = {tail for tail in pair if tail not in has} if any(tail in has for tail in pair) else ()
    short = any(amount > has.get(tail, 0) for tail, amount in said.amounts.items() if tail not in spared)
    functions = {one.bus_id for one in held.functions}
    return not short and all(one.bus_id in functions for one in said.functions)


def disputed_cpus(held: CpuShare | None, said: CpuShare | None) -> int:
    """The CPUs that only an annotation states to be a Pod's own, bit i for CPU i."""
    return (said.cpus if said is not None else 0) & ~(held.cpus if held is not None else 0)
