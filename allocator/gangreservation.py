"""Holding room for the Pods of a gang (pure): changes of one node's holdings, before the Pods are bound.

A holding with `until` is a hold. A bind turns it into an ordinary holding (`until` 0), unless it is marked. A hold is
given back only as it was seen: one that a bind has taken, or whose time or mark was changed, stays.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from allocator.bind import Change, Holdings, PodToBind, Snapshot, decide
from allocator.budget import Steps
from allocator.vocabulary.holdings import WITHOUT_LIMIT, Holding, of_claims
from allocator.vocabulary.outcome import Refusal


@dataclass(frozen=True, slots=True)
class Planned:
    """A Pod, and what was planned for it on a node."""

    pod: PodToBind
    holding: Holding


def hold(
    planned: Sequence[Planned], snapshot: Snapshot, now: int, until: int, mark: str = ""
) -> Callable[[Holdings], Steps[tuple[Holdings | None, Refusal | None]]]:
    """Hold what was planned on one node: for all of these Pods, or for none.

    `now`: seconds since the epoch. `mark`: on the holds, so that no bind takes them yet; "" for none. Returns a change
    that answers why nothing is held: one of them has no room any more, or holds something here already, by the plan of
    another replica. None where all is held.
    """

    def change(holdings: Holdings) -> Steps[tuple[Holdings | None, Refusal | None]]:
        node = snapshot(holdings)
        for one in planned:
            pod = one.pod
            if pod.uid in holdings:
                return None, Refusal(f"{node.name}: another replica holds room for {pod.name}")
            placed = yield from decide(pod.request, node, one.holding)
            if isinstance(placed, Refusal):
                return None, placed
            gang = pod.request.wishes.gang
            made = Holding(pod.uid, pod.namespace, pod.name, now, placed.shares, placed.cpus, gang, until, mark)
            node = node.with_holding(made)
        return {**of_claims(holdings), **node.holdings}, None

    return change


def prolong(uids: Sequence[str], until: int) -> Change:
    """Let the holds of these Pods end at this moment, where they end earlier, and take their marks away.

    Returns a change that answers whether any was changed.
    """
    return _changed(uids, lambda held: bool(held.until and (held.until < until or held.ending)), until=until, ending="")


def close(uids: Sequence[str], mark: str) -> Change:
    """Mark the holds of these Pods, so that no bind takes them any more.

    `uids`: of the Pods. What a bind has taken is left alone. `mark`: its name; no other mark has it. Returns a change
    that answers whether any was marked.
    """
    return _changed(uids, lambda held: bool(held.until and not held.ending), ending=mark)


def limit(uids: Sequence[str], until: int) -> Change:
    """Let the holds of these Pods that have no end end at this moment; answers whether any was changed."""
    return _changed(uids, lambda held: held.until == WITHOUT_LIMIT, until=until, ending="")


def _changed(uids: Sequence[str], concerns: Callable[[Holding], bool], **fields: Any) -> Change:
    """Give these fields to those of the holdings that it concerns; answers whether any was changed."""

    def change(holdings: Holdings) -> tuple[Holdings | None, bool]:
        found = (held for uid in uids if (held := holdings.get(uid)) is not None and concerns(held))
        changed = {held.uid: replace(held, **fields) for held in found}
        return ({**holdings, **changed}, True) if changed else (None, False)

    return change


def hold_again(uid: str, ending: str, until: int) -> Change:
    """Turn what a bind was answered with, and what the Pod was never bound to, into a hold again.

    `ending`: the mark that it was seen with; a holding with another one, or a hold, stays as it is. Returns a change
    that answers whether it was turned.
    """
    return _changed([uid], lambda held: not held.until and held.ending == ending, until=until, ending="")


def give_back(holds: Mapping[str, tuple[int, str]]) -> Change:
    """Release holds.

    `holds`: UID -> when its hold was seen to end, and its mark. A hold with another end or another mark stays. Returns
    a change that answers whether any was released.
    """

    def change(holdings: Holdings) -> tuple[Holdings | None, bool]:
        gone = {uid for uid, held in holdings.items() if held.until and (held.until, held.ending) == holds.get(uid)}
        left = {uid: held for uid, held in holdings.items() if uid not in gone}
        return (left, True) if gone else (None, False)

    return change
