"""What a Pod was given on a node, and what stayed whole there, in one line of bounded length."""

from collections.abc import Iterator
from itertools import islice
from typing import Final

from allocator.devices.words import describe_amounts
from allocator.vocabulary.cpuset import format_cpuset
from allocator.vocabulary.devicetype import DeviceTypes
from allocator.vocabulary.holdings import Holding, Share
from allocator.vocabulary.node import NodeSnapshot

_MAX_DEVICES: Final = 8
_MAX_CPUS: Final = 100  # characters
_MAX_ID: Final = 12


def given(holding: Holding, node: NodeSnapshot, types: DeviceTypes) -> str:
    """Say what a Pod holds, beside whom, and how many idle devices of the same types it left idle."""
    without = node.without([holding.uid])
    told = [_device(share, without, types) for share in islice(holding.shares, _MAX_DEVICES)]
    if len(holding.shares) > _MAX_DEVICES:
        told.append(f"{len(holding.shares) - _MAX_DEVICES} more devices")
    if holding.cpus is not None and holding.cpus.cpus:
        cpus = format_cpuset(holding.cpus.cpus)
        told.append(f"CPUs {cpus if len(cpus) <= _MAX_CPUS else f'{cpus[:_MAX_CPUS]}...'}")
    return "; ".join([", ".join(told) or "a place in NUMA nodes", *_left(holding, without)])


def _device(share: Share, node: NodeSnapshot, types: DeviceTypes) -> str:
    kind = types.by_name[share.type]
    amounts = describe_amounts(kind, [share.amounts.get(tail) for tail in kind.tails])
    use = "shared" if share.id in node.used else "idle before"
    return f"{share.type} {share.minor} {share.id[:_MAX_ID]} ({amounts}; {use})"


def _left(holding: Holding, node: NodeSnapshot) -> Iterator[str]:
    taken = {share.id for share in holding.shares}
    for kind in islice(dict.fromkeys(share.type for share in holding.shares), _MAX_DEVICES):
        idle = [one.id for one in node.devices if one.type == kind and node.is_usable(one) and one.id not in node.used]
        left = sum(one not in taken for one in idle)
        yield f"{left} of {len(idle)} idle devices of type {kind} stay whole"
