"""Which Pods must go from a node so that another fits: those whose devices and CPUs make room, and no more.

kube-scheduler proposes victims by sums over the node, which says nothing of single devices: two halves of two cards
make no whole one.
"""

from collections.abc import Collection, Iterable, Mapping

from allocator.asks import PodRequest
from allocator.holdings import Holding, NodeSnapshot
from allocator.outcome import Refusal
from allocator.place import place


def choose_victims(
    request: PodRequest, node: NodeSnapshot, priorities: Mapping[str, int], priority: int, proposed: Collection[str]
) -> tuple[str, ...] | None:
    """Choose victims on one node.

    Args:
        request: of the Pod that is to come.
        node: as it stands.
        priorities: of the Pods that hold something there, by UID; one that is not named here is never a victim.
        priority: of the Pod that is to come: only lower ones give way.
        proposed: by the scheduler.

    Returns:
        UIDs: what of the proposal holds nothing of ours (it is there for other resources), and of our Pods the fewest
        important ones that make room and give back, in every resource, at least as much as the proposed ones would.
        None where not even all lower Pods together make room.
    """
    lower = sorted(
        (uid for uid in node.holdings if priorities.get(uid, priority) < priority),
        key=lambda uid: (-priorities[uid], node.holdings[uid].since, uid),
    )
    others = tuple(uid for uid in proposed if uid not in node.holdings)
    victims = set(lower)
    if isinstance(place(request, node.without(victims)), Refusal):
        return None
    needed = _given_back(node, (uid for uid in proposed if uid in victims))
    for spared in lower:  # the most important and the oldest are spared first
        rest = victims - {spared}
        enough = _covers(_given_back(node, rest), needed)
        if enough and not isinstance(place(request, node.without(rest)), Refusal):
            victims = rest
    return (*others, *sorted(victims, key=lambda uid: (priorities[uid], uid)))


def _given_back(node: NodeSnapshot, uids: Iterable[str]) -> dict[tuple[str, str], int]:
    """Sum up what Pods hold, by type and resource; CPUs of their own as one more resource."""
    total: dict[tuple[str, str], int] = {}
    for uid in uids:
        for key, amount in _amounts(node.holdings[uid]):
            total[key] = total.get(key, 0) + amount
    return total


def _amounts(holding: Holding) -> list[tuple[tuple[str, str], int]]:
    held = [((share.type, tail), amount) for share in holding.shares for tail, amount in share.amounts.items()]
    if holding.cpus is not None and holding.cpus.cpus:
        held.append((("cpu", ""), holding.cpus.cpus.bit_count()))
    return held


def _covers(has: Mapping[tuple[str, str], int], needed: Mapping[tuple[str, str], int]) -> bool:
    return all(has.get(key, 0) >= amount for key, amount in needed.items())
