"""What ResourceClaims hold of a node's devices (DRA), and changes of a node's record for them (pure).

Two parties give cards away: koord-scheduler's binds, and whoever writes allocations into claims, which is mostly
kube-scheduler. Neither write may depend on a look at the other that may be out of date. Both are therefore decided on
the node's record, one after another: a bind records what it gives before it is answered, and the review of an
allocation does the same for the claim (`reserve`). What the other has recorded is refused.

A reservation bears a fence: the revision at which the claim was reviewed. The API server reviews each attempt of a
write with the very object that the attempt replaces, and performs it only if the claim is still at that revision
(k8s.io/apiserver, registry.Store.Update). Hence:

- Once a claim is seen at a later revision than the fence, no write that was answered with this reservation is still to
  come. What the claim then states is the truth, and the reservation says nothing any more (`standing`). Any later
  allocation has a review of its own, with a later fence. Old knowledge of a claim proves as much as fresh knowledge.
- The same holds once the claim is known to be deleted: no write revives its UID.
- While the claim is at the fence, the write may still come. Nothing but time ends that. The reservation is marked
  first; from then on no review is answered with it. It is released a grace after the mark, which is longer than any
  request lives (`judge`, as for binds that were not performed).

A reservation of a claim that holds its devices stays as long as the claim holds them: other replicas may not have seen
the claim yet. Claims do not exclude one another here: DRA's own allocator shares a card between claims, in parts or in
time.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, NamedTuple

from allocator.bind import Change, marked, released
from allocator.vocabulary.adopted import ForeignHolding, counted
from allocator.vocabulary.cardmemory import percent_of
from allocator.vocabulary.device import Device
from allocator.vocabulary.devicetype import FULL, DeviceType
from allocator.vocabulary.holdings import Holding, ResourceClaim, Share
from allocator.vocabulary.node import NodeSnapshot
from allocator.vocabulary.outcome import Refusal

Holdings = Mapping[str, Holding]
_MAX_NAMED: Final = 4  # holders that a refusal names

Freed = Literal["gone", "deallocated", "unperformed"]
"""Why a reservation is released."""


class ClaimedPart(NamedTuple):
    """What a claim holds of one device, which is still to be found among the node's."""

    kind: DeviceType  # the type of the driver's devices
    ids: tuple[str, ...]  # by any of which the device is known; empty if it is not known which it is
    memory: int | None = None  # the bytes that are held; None for the whole device


def claimed_shares(parts: Iterable[ClaimedPart], devices: Sequence[Device]) -> tuple[tuple[Share, ...], bool]:
    """Find the devices that a claim holds.

    Where none of a part's ids is a device's, the claim may hold any device of the type, and holds all.
    Returns the shares, one for each device, and whether each part was found.
    """
    named = {(device.type, name): device for device in devices for name in (device.id, device.bus) if name}
    shares: dict[str, Share] = {}
    found = True
    for part in parts:
        known = (named.get((part.kind.name, name)) for name in part.ids)
        one = next((device for device in known if device is not None), None)
        candidates = [device for device in devices if device.type == part.kind.name] if one is None else [one]
        found = found and (one is not None or not candidates)
        for device in candidates:
            amounts = _amounts(part if one is not None else part._replace(memory=None), device)
            before = shares.get(device.id)
            shares[device.id] = Share(device.type, device.id, device.minor, _added(before, amounts, device))
    return tuple(shares.values()), found


def _amounts(part: ClaimedPart, device: Device) -> dict[str, int]:
    """What a part is of each of a device's resources: its bytes, and as much in percent of the others.

    What follows is rounded up, but for the percentage of the same memory.
    """
    pair = part.kind.memory
    if part.memory is None or pair is None:
        return dict(device.capacity)
    total = device.capacity[pair[0]]
    held = min(part.memory, total)
    percent = -(-held * FULL // total)
    shown = zip(part.kind.tails, part.kind.percent, strict=True)
    amounts = {tail: percent if counts else device.capacity[tail] for tail, counts in shown}
    return {**amounts, pair[0]: held, pair[1]: percent_of(held, total)}


def _added(before: Share | None, more: Mapping[str, int], device: Device) -> dict[str, int]:
    """Add up what one claim holds of one device; never more than the device has."""
    held = before.amounts if before is not None else {}
    return {tail: min(held.get(tail, 0) + more[tail], has) for tail, has in device.capacity.items()}


def standing(reservation: Holding, known: ResourceClaim | None) -> bool:
    """Whether a reservation still says more than what is known of its claim.

    `known`: the claim as it was seen at any time; None if it was not.
    """
    return known is None or known.uid != reservation.uid or known.revision <= reservation.fence


def reserve(
    wanted: Holding, snapshot: Callable[[Holdings], NodeSnapshot]
) -> Callable[[Holdings], tuple[Holdings | None, Refusal | None]]:
    """Record what an allocation will hold of a node, unless Pods hold too much of it.

    `wanted`: what the claim will hold, with its revision as the fence. Returns a change that answers why the claim may
    not have it; None if it may.
    """

    def change(holdings: Holdings) -> tuple[Holdings | None, Refusal | None]:
        known, taken = holdings.get(wanted.uid), wanted
        if known is not None and known.fence > wanted.fence:
            return None, Refusal(f"the claim has changed since revision {wanted.fence}")
        if known is not None and known.fence == wanted.fence:
            if known.ending:
                return None, Refusal("what an earlier attempt to allocate the claim was given is being given back")
            # Either attempt may still be performed, but not both: the claim is then at another revision.
            taken = replace(wanted, shares=_either(known.shares, wanted.shares))
        held = _in_the_way(wanted, snapshot(holdings))
        if held:
            return None, Refusal(held)
        return (None if taken == known else {**holdings, wanted.uid: taken}), None

    return change


def _either(first: Iterable[Share], second: Iterable[Share]) -> tuple[Share, ...]:
    """As much of each device as the one or the other attempt holds."""
    shares = {share.id: share for share in first}
    for share in second:
        known = shares.get(share.id, share)
        most = {tail: max(amount, known.amounts.get(tail, amount)) for tail, amount in share.amounts.items()}
        shares[share.id] = share._replace(amounts=most)
    return tuple(shares.values())


def _in_the_way(wanted: Holding, node: NodeSnapshot) -> str:
    """Say who holds a device of which too little is left for a claim; "" if nobody does."""
    given: list[Holding | ForeignHolding] = [*node.holdings.values(), *counted(node.foreign)]
    pods = node.held_by(given)
    others = node.held_by(one for uid, one in node.claims.items() if uid != wanted.uid)
    devices = {device.id: device for device in node.devices}
    for share in wanted.shares:
        device, used, claims = devices.get(share.id), pods.get(share.id, {}), others.get(share.id, {})
        capacity = share.amounts if device is None else device.capacity
        taken = ((used.get(tail), claims.get(tail, 0), tail, has) for tail, has in capacity.items())
        over = any(pod and pod + min(claim + share.amounts[tail], has) > has for pod, claim, tail, has in taken)
        root = None if device is None else device.pcie
        holders = [
            holding.holder
            for holding in given
            for one in holding.shares
            if (one.id == share.id and (over or one.unshared or one.alone))
            or (one.alone and root is not None and one.id in devices and devices[one.id].pcie == root)
        ]
        if holders:
            more = f" and {len(holders) - _MAX_NAMED} more" if len(holders) > _MAX_NAMED else ""
            named = ", ".join(sorted(holders)[:_MAX_NAMED])
            return f"{share.type} {share.minor} ({share.id}) of node {node.name} is held by {named}{more}"
    return ""


def judge(
    reservation: Holding, live: ResourceClaim | None, *, here: bool, seen_s: float, grace: float
) -> Freed | Literal["end"] | None:
    """Decide what is done about a reservation: release it for this reason, mark it ("end"), or nothing yet.

    `live`: the claim of that name, as read from the API server after the reservation was seen; None if there is none.
    `here`: whether the claim holds a device of the reservation's node. `seen_s`: seconds for which the reservation has
    been seen as it is, by one replica's monotonic clock. `grace`: seconds that are longer than any API request lives.
    """
    if live is None or live.uid != reservation.uid:
        return "gone"
    if here:
        return None
    if not standing(reservation, live):
        return "deallocated"
    if seen_s <= patience(reservation, grace):
        return None
    return "unperformed" if reservation.ending else "end"


def patience(reservation: Holding, grace: float) -> float:
    """Seconds for which a reservation must have been seen before time alone has consequences."""
    return grace if reservation.ending else grace / 2


def end(seen: Holding, mark: str) -> Change:
    """Mark a reservation that is as it was seen; answers whether it was marked.

    `mark`: its name; no other mark has it.
    """
    return marked(seen.uid, mark, lambda found: found.fence == seen.fence)


def release(seen: Holding) -> Change:
    """Release a reservation whose fence and mark are as they were seen; answers whether it was released."""
    return released(seen.uid, lambda found: (found.fence, found.ending) == (seen.fence, seen.ending))


@dataclass(frozen=True, slots=True)
class ClaimedToo:
    """A device of which Pods and claims together hold more than there is."""

    node: str
    type: str
    identity: str
    pods: tuple[str, ...]  # UIDs of the Pods
    claims: tuple[str, ...]  # the claims, by namespace and name


def claimed_too(node: NodeSnapshot) -> list[ClaimedToo]:
    """Find the devices of a node of which Pods and claims hold some, and together more than there is."""
    pods, claims = (node.held_by(held.values()) for held in (node.holdings, node.claims))
    found = []
    for device in node.devices:
        given, claimed = pods.get(device.id, {}), claims.get(device.id, {})
        both = (given, claimed)
        if all(both) and any(
            sum(one[tail] for one in both if tail in one) > has for tail, has in device.capacity.items()
        ):
            by_pods, by_claims = _holders(node.holdings, device.id), _holders(node.claims, device.id)
            names = sorted(f"{one.namespace}/{one.name}" for one in by_claims)
            uids = sorted(one.uid for one in by_pods)
            found.append(ClaimedToo(node.name, device.type, device.id, tuple(uids), tuple(names)))
    return found


def _holders(holdings: Holdings, identity: str) -> list[Holding]:
    return [one for one in holdings.values() if any(share.id == identity for share in one.shares)]
