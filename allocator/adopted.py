"""What Pods of other products hold of a node's devices, by which evidence, and which conflicts there are (pure).

What a Pod states is compared with the node's devices. Where that does not say exactly which card it has, every card
that it may have is held, never none: an unreadable statement and an unknown UUID hold all GPUs of the node, a number
whose meaning is in doubt holds the stated amounts of each card that it may mean. Each such case is a conflict.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from allocator.vocabulary.adopted import (
    UNNUMBERED,
    AdoptionConflict,
    ConflictKind,
    ForeignHolding,
    ForeignPart,
    ForeignPod,
    Numbered,
    Numberings,
    deleting,
    held_at,
)
from allocator.vocabulary.cardmemory import percent_of
from allocator.vocabulary.device import Device
from allocator.vocabulary.devicetype import FULL
from allocator.vocabulary.holdings import Share
from allocator.vocabulary.names import GPU_CORE, GPU_MEMORY, GPU_MEMORY_RATIO, TYPE_GPU
from allocator.vocabulary.node import NodeSnapshot

_MAX_NAMED: Final = 8  # Pods and devices that a conflict names


class _Found(NamedTuple):
    """The cards that a part of a holding may be on, and why they are not exactly one."""

    cards: Sequence[Device]
    doubt: ConflictKind | None = None
    why: str = ""


class _Reservation(NamedTuple):
    """A reservation Pod that says which card it has."""

    uid: str
    id: str


@dataclass(frozen=True, slots=True)
class Survey:
    """Who holds what on a node besides koordgate's own Pods, and what is not certain."""

    held: tuple[ForeignHolding, ...]  # by Pod, in the order of namespace, name and UID
    conflicts: tuple[AdoptionConflict, ...]  # in the order of kind and message


def adopt(
    pods: Iterable[ForeignPod], devices: Sequence[Device], numberings: Numberings = ()
) -> dict[str, ForeignHolding]:
    """Find what Pods of other products hold.

    `devices`: of the node. Where it lists no GPU, nothing can be given, and nothing is held. Returns holdings by UID,
    in the order of UIDs.
    """
    ordered = sorted(pods, key=lambda pod: pod.uid)
    cards = [device for device in devices if device.type == TYPE_GPU]
    reserved = {
        pod.reserves: _Reservation(pod.uid, part.id)
        for pod in ordered
        if pod.reserves and not pod.uncounted
        for part in pod.parts
    }
    return {pod.uid: _holding(pod, cards, numberings, reserved) for pod in ordered}


def survey(node: NodeSnapshot) -> Survey:
    """List who holds what on a node by the statements of other products, and all conflicts."""
    held = sorted(node.foreign.values(), key=lambda one: (one.namespace, one.name, one.uid))
    return Survey(tuple(held), tuple(conflicts(node)))


def conflicts(node: NodeSnapshot) -> list[AdoptionConflict]:
    """Find the conflicts on a node, in the order of kind and message.

    Only what is exact is summed up: what a Pod may hold is a conflict of its own.
    """
    found = [
        AdoptionConflict(node.name, one.doubt, tuple(share.id for share in one.shares), (one.holder,), (uid,), one.why)
        for uid, one in node.foreign.items()
        if one.doubt is not None
    ]
    exact = [one for one in node.foreign.values() if one.doubt is None]
    if exact:
        outer = [one for one in exact if not one.within]
        parts = [one for one in exact if one.within]
        theirs, inside, ours = node.held_by(outer), node.held_by(parts), node.held_by(node.given())
        for device in node.devices:
            given, own = theirs.get(device.id, {}), ours.get(device.id, {})
            if _beyond(device, given):
                found.append(_overfull(node.name, device, _on(outer, device.id)))
            elif given and _beyond(device, own, given):
                found.append(_beside(node, device, _on(outer, device.id)))
            if _beyond(device, inside.get(device.id, {})):
                found.append(_overfull(node.name, device, _on(parts, device.id)))
    return sorted(found, key=lambda one: (one.kind, one.message, one.uids))


def doubts(node: NodeSnapshot) -> list[str]:
    """What is not certain of what Pods of other products hold on a node, a sentence for each Pod, in their order."""
    return [
        f"what Pod {one.holder} holds on {node.name} is in doubt: {one.why}"
        for one in sorted(node.foreign.values(), key=lambda one: (one.holder, one.uid))
        if in_doubt(one)
    ]


def in_doubt(holding: ForeignHolding) -> bool:
    """Whether it is not certain what such a Pod holds, so that it holds all that it may."""
    return holding.doubt is not None and holding.doubt is not ConflictKind.UNCOUNTED


def _holding(
    pod: ForeignPod, cards: Sequence[Device], numberings: Numberings, reserved: Mapping[str, _Reservation]
) -> ForeignHolding:
    shares: dict[str, Share] = {}
    doubt: ConflictKind | None = None
    why, within = "", ""
    if pod.uncounted:
        doubt, why = ConflictKind.UNCOUNTED, pod.uncounted
    elif pod.problem:
        doubt = ConflictKind.UNREADABLE
        why = f"{pod.problem}. All GPUs of node {pod.node} are held: correct {pod.evidence}, or delete the Pod"
        shares = {card.id: _share(ForeignPart(), card, None) for card in cards}
    else:
        for part in pod.parts:
            reservation = _reservation(part, reserved)
            found = _find(pod, part, cards, numberings, reservation)
            for card in found.cards:
                shares[card.id] = _share(part if _known(found) else ForeignPart(), card, shares.get(card.id))
            if found.doubt is not None and doubt is None and cards:
                doubt, why = found.doubt, found.why
            if reservation is not None and not pod.reserves and found.doubt is None:
                within = reservation.uid
    # If one of its cards is in doubt, or not reserved, all of it counts beside what the reservation Pod holds.
    apart = any(part.group and _reservation(part, reserved) is None for part in pod.parts)
    within = "" if doubt is not None or apart else within
    why += deleting([(str(pod), pod.maker)]) if why and not pod.uncounted else ""
    held = tuple(shares.values())
    return ForeignHolding(pod.uid, pod.namespace, pod.name, pod.peer, pod.evidence, held, within, doubt, why, pod.maker)


def _reservation(part: ForeignPart, reserved: Mapping[str, _Reservation]) -> _Reservation | None:
    """The reservation Pod that has the card of a part; None if none has, or if no card is reserved for it."""
    if not part.id:
        return reserved.get(part.group)
    return next((one for one in reserved.values() if one.id == part.id), None) if part.group else None


def _known(found: _Found) -> bool:
    """Whether the stated amounts are those of each card that was found, rather than of a card that is not known."""
    return found.doubt in {None, ConflictKind.UNKNOWN_NUMBER}


def _find(
    pod: ForeignPod,
    part: ForeignPart,
    cards: Sequence[Device],
    numberings: Numberings,
    reservation: _Reservation | None,
) -> _Found:
    """Find the cards that a part may be on."""
    if part.id or part.group:
        identity = part.id or (reservation.id if reservation is not None else "")
        one = [card for card in cards if card.id == identity]
        if one:
            return _Found(one)
        why = f"{pod.evidence} names {part}, which is none of the GPUs of node {pod.node}"
        mend = _mend(pod)
        if part.group and not part.id and reservation is None:
            why = f"the reservation Pod of group {part.group}, which names its GPU of node {pod.node}, was not read"
            mend = f"give that Pod too if this was read from files, and delete Pod {pod} if it is gone"
        return _Found(cards, ConflictKind.UNKNOWN_DEVICE, f"{why}. All GPUs of the node are held: {mend}")
    if part.number == UNNUMBERED:
        return _unnamed(pod, cards)
    return _numbered(pod, part, cards, numberings)


def _unnamed(pod: ForeignPod, cards: Sequence[Device]) -> _Found:
    """Find the cards that a Pod may have of which nothing says which it has."""
    if len(cards) == 1:
        return _Found(cards)
    why = f"it asks for {pod.evidence}, and no annotation says which of the GPUs of node {pod.node} it has"
    return _Found(cards, ConflictKind.UNKNOWN_NUMBER, f"{why}. The amounts are held of every GPU: delete Pod {pod}")


def _mend(pod: ForeignPod) -> str:
    return f"let the node's reporter list its GPUs (give its Device object if files were read), or delete Pod {pod}"


def _numbered(pod: ForeignPod, part: ForeignPart, cards: Sequence[Device], numberings: Numberings) -> _Found:
    """Find the cards that a number may have meant when it was resolved."""
    if len(cards) == 1 and not numberings:
        (only,) = cards
        if part.number == (0 if part.by is Numbered.INDEX else only.minor):
            return _Found(cards)
    meant: set[str | None] = set()
    for start in pod.starts or (None,):
        meant |= _meant(part, start, numberings)
    known = [card for card in cards if card.id in meant]
    if not meant - {None}:
        why = f"{pod.evidence} names {part}, and node {pod.node} had none when the Pod started"
        return _Found(cards, ConflictKind.OUT_OF_RANGE, f"{why}. All its GPUs are held: delete Pod {pod}")
    if meant.issubset(card.id for card in known):
        _, *others = known
        if not others:
            return _Found(known)
        either = " or ".join(card.id for card in known)
        why = f"{pod.evidence} names {part}, which meant {either} when its containers started. Each of them is held"
        return _Found(known, ConflictKind.UNKNOWN_NUMBER, f"{why}: delete Pod {pod} to end the doubt")
    why = f"{pod.evidence} names {part}, and it is not known which card that was when the Pod started"
    return _Found(cards, ConflictKind.UNKNOWN_NUMBER, f"{why}. The amounts are held of every GPU: delete Pod {pod}")


def _meant(part: ForeignPart, start: int | None, numberings: Numberings) -> set[str | None]:
    """What a number may have meant at a time; "" if that is not known, None if there was no such card."""
    held = held_at(numberings, start) if start is not None else ()
    return {one.named(part.by, part.number) for one in held} or {""}


def _share(part: ForeignPart, card: Device, before: Share | None) -> Share:
    """Add a part to what a Pod holds of a card; never more than the card has."""
    held = before.amounts if before is not None else dict.fromkeys(card.capacity, 0)
    more = _amounts(part, card.capacity, card.reserved)
    amounts = {tail: min(held[tail] + more[tail], has) for tail, has in card.capacity.items()}
    return Share(card.type, card.id, card.minor, amounts)


def _amounts(part: ForeignPart, capacity: Mapping[str, int], reserved: int) -> dict[str, int]:
    """What a part is of a card: bytes of memory, rounded up, these in percent, and compute."""
    if part.whole:
        return dict(capacity)
    total = capacity[GPU_MEMORY]
    if part.part is not None:
        of, every = part.part
        memory, ratio = -(-total * of // every), FULL * of // every
    else:
        memory = min(part.memory or 0, total + reserved)
        ratio = percent_of(memory, total + reserved)  # of what others take for the whole
    return {GPU_CORE: part.core, GPU_MEMORY: memory, GPU_MEMORY_RATIO: ratio}


def _beyond(device: Device, *sums: Mapping[str, int]) -> bool:
    return any(sum(one[tail] for one in sums if tail in one) > device.has_at_most(tail) for tail in device.capacity)


def _on(holdings: Iterable[ForeignHolding], identity: str) -> list[ForeignHolding]:
    holders = [one for one in holdings if any(share.id == identity for share in one.shares)]
    return sorted(holders, key=lambda one: (one.namespace, one.name, one.uid))


def _overfull(node: str, device: Device, holders: Sequence[ForeignHolding]) -> AdoptionConflict:
    message = (
        f"{device.type} {device.minor} ({device.id}) of node {node} is held beyond what it has, by {_names(holders)}: "
        "their products gave it away twice; delete one of the Pods"
    )
    return _conflict(node, ConflictKind.OVERFULL, device, holders, message)


def _beside(node: NodeSnapshot, device: Device, holders: Sequence[ForeignHolding]) -> AdoptionConflict:
    ours = sorted(one.holder for one in node.given() if any(share.id == device.id for share in one.shares))
    message = (
        f"{device.type} {device.minor} ({device.id}) of node {node.name} is held by {_names(holders)} as well as by "
        f"{', '.join(ours[:_MAX_NAMED])}, and it has too little for both; delete one of the Pods"
    )
    return _conflict(node.name, ConflictKind.BESIDE_OURS, device, holders, message)


def _conflict(
    node: str, kind: ConflictKind, device: Device, holders: Sequence[ForeignHolding], message: str
) -> AdoptionConflict:
    named = holders[:_MAX_NAMED]
    message += deleting((one.holder, one.maker) for one in named)
    pods, uids = tuple(one.holder for one in named), tuple(one.uid for one in named)
    return AdoptionConflict(node, kind, (device.id,), pods, uids, message)


def _names(holders: Sequence[ForeignHolding]) -> str:
    more = f" and {len(holders) - _MAX_NAMED} more" if len(holders) > _MAX_NAMED else ""
    return ", ".join(f"{one.holder} ({one.peer})" for one in holders[:_MAX_NAMED]) + more
