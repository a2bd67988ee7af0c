"""How often a request fits on a node, one Pod after another."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from allocator.budget import Budget
from allocator.packing.fleet import Guest, NodeRoom, held_by
from allocator.place import MOST_STEPS, Placement, place
from allocator.vocabulary.holdings import Holding, Share
from allocator.vocabulary.node import NodeSnapshot

MOST_COPIES: Final = 2048  # on one node: a hundred small shares on each of twenty cards


@dataclass(frozen=True, slots=True)
class FilledNode:
    """A node with as many Pods of a request on it as fit.

    Attributes:
        count: how many they are.
        room: the node with them; they are not real, and one holding may stand for several.
    """

    count: int
    room: NodeRoom


class Copy(NamedTuple):
    """One more Pod of the request.

    Attributes:
        shares: what it would hold.
        node: the node with it and all before it; one holding may stand for several.
    """

    shares: tuple[Share, ...]
    node: NodeSnapshot


def filled(room: NodeRoom, wanted: Guest, decisions: Budget | None = None) -> FilledNode:
    """Fill a node with Pods of a request.

    Args:
        room: the node.
        wanted: a Pod of the request.
        decisions: how many may be made; they are spent. None for any number.
    """
    count = 0
    if not room.closed and (wanted.may is None or room.node.name in wanted.may):
        for copy in copies(room, wanted, decisions):
            if room.lacks(wanted.asks):
                break
            room = replace(room.requesting(wanted.asks), node=copy.node)
            count += 1
    return FilledNode(count, room)


def copies(room: NodeRoom, wanted: Guest, decisions: Budget | None = None) -> Iterator[Copy]:
    """What Pods of a request would hold on a node, one after another, if CPU and memory sufficed for all of them.

    The arguments are those of `filled`.
    """
    node = base = room.node
    together: Holding | None = None
    for count in range(MOST_COPIES):
        if decisions is not None and not decisions.covers(1):
            return
        outcome = place(wanted.request, node, None, Budget(MOST_STEPS))
        if not isinstance(outcome, Placement):
            return
        holding = replace(held_by(wanted, outcome), uid=f"{wanted.uid} {count}")
        if outcome.cpus is not None:  # CPUs are not added up
            together, base = None, node.with_holding(holding)
            node = base
        else:
            together = holding if together is None else _joined(together, holding)
            node = base.with_holding(together)
        yield Copy(outcome.shares, node)


def _joined(one: Holding, other: Holding) -> Holding:
    """Two holdings as one: a node with few holdings is quickly made."""
    shares = {share.id: share for share in one.shares}
    for share in other.shares:
        had = shares.get(share.id)
        if had is None:
            shares[share.id] = share
        else:
            amounts = Counter(had.amounts)
            amounts.update(share.amounts)
            shares[share.id] = had._replace(amounts=dict(amounts), functions=(*had.functions, *share.functions))
    return replace(one, shares=tuple(shares.values()))
