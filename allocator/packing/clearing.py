"""How few Pods could leave a node so that one more of a request fits: a bound from single devices, quick to find.

Most nodes of a cluster need more moves than the best one. What exactly must leave them, which takes many decisions of
`place()`, then need not be found.
"""

from collections.abc import Collection, Iterator, Sequence
from typing import Final, NamedTuple

from allocator.devices.offer import completed
from allocator.packing.fleet import Guest
from allocator.vocabulary.asks import DeviceAsk
from allocator.vocabulary.node import NodeSnapshot

NEVER: Final = 2**31
"""No number of these Pods suffices."""


class _Cost(NamedTuple):
    """What it takes until a device can serve a Pod.

    Attributes:
        leave: how many Pods must leave it at least; 0 if it can serve one now.
        once: whether it cannot serve two.
    """

    leave: int
    once: bool


def fewest_leaving(wanted: Guest, node: NodeSnapshot, count: int, tenants: Collection[str]) -> int:
    """A number of Pods of which not fewer must leave a node so that one more of a request fits there.

    It looks at no more than what is free of each device by itself. At least 1: a node with enough devices may lack
    something else.

    Args:
        wanted: a Pod of the request.
        node: the node.
        count: how many of them fit there now.
        tenants: UIDs of the Pods that may leave.

    Returns:
        The number; `NEVER` if it is certain that the devices do not suffice even if all of them leave.
    """
    if len(wanted.request.containers) != 1:
        return 1
    ask = wanted.request.containers[0].ask
    if ask.template or ask.empty:
        return 1
    costs = list(_costs(ask, node, tenants))
    if count and not all(cost.once for cost in costs):
        return 1  # those that fit may share devices
    missing = ask.count * (count + 1) - sum(not cost.leave for cost in costs)
    if missing <= 0:
        return 1
    clear = sorted(cost.leave for cost in costs if 0 < cost.leave < NEVER)
    if len(clear) < missing:
        return NEVER
    widest = max(len(node.holdings[uid].shares) for uid in tenants)  # so many devices are left by one Pod at most
    return -(-sum(clear[:missing]) // widest)


def _costs(ask: DeviceAsk, node: NodeSnapshot, tenants: Collection[str]) -> Iterator[_Cost]:
    """What each device of the type costs; those that can never serve are left out."""
    tails = ask.type.tails
    theirs: dict[str, list[Sequence[int]]] = {}
    for uid in tenants:
        for share in node.holdings[uid].shares:
            theirs.setdefault(share.id, []).append([share.amounts.get(tail, 0) for tail in tails])
    for device in node.devices:
        if device.type != ask.type.name or not node.is_usable(device):
            continue
        has = tuple([device.capacity[tail] for tail in tails])
        asked = completed(ask, has)
        used = node.used.get(device.id, {})
        free = [total - used.get(tail, 0) for tail, total in zip(tails, has, strict=True)]
        leave = 0
        for at, need in enumerate(asked):
            if need and need > free[at]:
                leave = max(leave, _number(need - free[at], [amounts[at] for amounts in theirs.get(device.id, ())]))
        once = any(2 * need > total for need, total in zip(asked, has, strict=True))
        if leave < NEVER:
            yield _Cost(leave, once)


def _number(lack: int, held: Sequence[int]) -> int:
    """How many of these amounts must be given back so that a lack is met."""
    for number, amount in enumerate(sorted(held, reverse=True), 1):
        lack -= amount
        if lack <= 0:
            return number
    return NEVER
