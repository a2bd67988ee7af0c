"""Changes of a node's holdings (pure): a Pod is bound, releases its holding, or is adopted.

Each change takes the node's holdings and returns the new ones (None: unchanged) with an answer. It may be called again
with fresher holdings. A change that makes decisions of `place()` yields after each one the steps that it took.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from allocator.budget import Budget, Steps
from allocator.cpu.choose import shared_milli
from allocator.cpu.words import not_free
from allocator.place import MAX_STEPS, Placement, place
from allocator.request.quotaamounts import beyond
from allocator.vocabulary.asks import DeviceOrder, PodRequest
from allocator.vocabulary.cpunode import MILLI, CpuNode, CpuShare
from allocator.vocabulary.cputopology import format_cpuset
from allocator.vocabulary.device import Device
from allocator.vocabulary.holdings import Holding, Share, of_claims, unnamed
from allocator.vocabulary.node import NodeSnapshot
from allocator.vocabulary.outcome import Refusal

Holdings = Mapping[str, Holding]
_WAITS = "waits until room for its whole gang is held"
GANG_WAITS: Final = Refusal(_WAITS, short=_WAITS)
_ENDS: Final = "what an earlier bind of this Pod was given here is being given back; another node may be free for it"
ENDING: Final = Refusal(_ENDS, short=_ENDS)
MAX_UNBOUND: Final = 2  # nodes on which a Pod may hold something before it is bound: the bind to the first one failed
Snapshot = Callable[[Holdings], NodeSnapshot]
Change = Callable[[Holdings], tuple[Holdings | None, bool]]  # answers whether something was changed


@dataclass(frozen=True, slots=True)
class PodToBind:
    """A Pod that is to be bound."""

    uid: str
    namespace: str
    name: str
    request: PodRequest  # what it asks for
    # turns a node's devices into the holding that the Pod's annotations describe; None if they describe none
    annotated: Callable[[Sequence[Device]], Holding | None] | None = None
    all_or_nothing: bool = False  # whether it may be bound only to what is held for it, with the rest of its gang


@dataclass(frozen=True, slots=True)
class Decision:
    """The answer to a bind."""

    outcome: Holding | Refusal  # the Pod's holding, or why it has none
    repeated: bool = False  # the Pod held this before; the bind was retried


Deciding = Steps[tuple[Holdings | None, Decision]]


def bind(
    pod: PodToBind, snapshot: Snapshot, now: int, mark: str, sent: Holding | None = None
) -> Callable[[Holdings], Deciding]:
    """Give a Pod its share of a node. A Pod whose holding still serves it gets the same share again.

    A holding that a bind was answered with is never replaced: the API server may still perform that bind. If it does
    not serve the Pod any more, it is marked, and given back once no such bind can be left.
    `now`: seconds since the epoch. `mark`: the name of the mark, if one is needed; no other mark has it. `sent`: what
    the filter assumed for the Pod on this node; None if that is not known. Returns a change that makes at most four
    decisions of `place()`, all of them on the snapshot made at its beginning.
    """

    def change(holdings: Holdings) -> Deciding:
        node = snapshot(holdings)
        others = node.without([pod.uid])
        held = holdings.get(pod.uid)
        if (pod.all_or_nothing and held is None) or (held is not None and held.ending):
            return None, Decision(GANG_WAITS if pod.all_or_nothing else ENDING)
        if held is not None and (yield from _serves(held, pod, others)):
            if not held.until:
                return None, Decision(held, repeated=True)
            held = replace(held, since=now, until=0)
            return _recorded(holdings, node.with_holding(held)), Decision(held, repeated=True)
        if held is not None and not held.until:
            held = replace(held, ending=mark)
            return _recorded(holdings, node.with_holding(held)), Decision(ENDING)
        said = _annotated(pod, others)
        choosing = _place(pod.request, others, sent) if said is None else _adopt(pod.request, said, others)
        placed = yield from choosing
        if isinstance(placed, Refusal):
            return None, Decision(placed)
        gang = pod.request.wishes.gang
        holding = Holding(pod.uid, pod.namespace, pod.name, now, placed.shares, placed.cpus, gang)
        return _recorded(holdings, others.with_holding(holding)), Decision(holding)

    return change


def _recorded(holdings: Holdings, node: NodeSnapshot) -> Holdings:
    """What is to be recorded of a node: what Pods hold there, and what is recorded for ResourceClaims already."""
    return {**of_claims(holdings), **node.holdings}


def may_take(held: Holding | None) -> bool:
    """Whether a Pod of an all-or-nothing gang may be bound: something is held for it, and will not be given back."""
    return held is not None and not held.ending


def end(held: Holding, mark: str) -> Change:
    """Mark a Pod's holding: no bind is answered with it any more.

    `held`: as it was seen. A holding of the Pod that began at another time, or ends at another time, stays as it is.
    `mark`: its name; no other mark has it. Returns a change that answers whether the holding was marked.
    """
    return marked(held.uid, mark, lambda found: (found.since, found.until) == (held.since, held.until))


def marked(uid: str, mark: str, is_meant: Callable[[Holding], bool]) -> Change:
    """Mark a holding that has no mark yet, if it is the one that is meant."""

    def change(holdings: Holdings) -> tuple[Holdings | None, bool]:
        found = holdings.get(uid)
        if found is None or found.ending or not is_meant(found):
            return None, False
        return {**holdings, uid: replace(found, ending=mark)}, True

    return change


def keep(uid: str) -> Change:
    """Remove the mark from the holding of a Pod that is bound; answers whether there was one."""

    def change(holdings: Holdings) -> tuple[Holdings | None, bool]:
        found = holdings.get(uid)
        if found is None or not found.ending:
            return None, False
        return {**holdings, uid: replace(found, ending="")}, True

    return change


def release(uid: str, *, ending: str | None = None) -> Change:
    """Release a Pod's holding.

    `ending`: release it only if it bears this mark. What a bind was answered with may be released only so, as long as
    the Pod may still be bound to the node. Returns a change that answers whether anything was released.
    """
    return released(uid, lambda held: ending is None or held.ending == ending)


def released(uid: str, is_meant: Callable[[Holding], bool]) -> Change:
    """Release a holding, if it is the one that is meant."""

    def change(holdings: Holdings) -> tuple[Holdings | None, bool]:
        held = holdings.get(uid)
        if held is None or not is_meant(held):
            return None, False
        return {other: holding for other, holding in holdings.items() if other != uid}, True

    return change


def adopt_running(uid: str, snapshot: Snapshot) -> Change:
    """Record the holding that a bound Pod's annotations describe. The Pod runs, so nothing is refused.

    Nothing is recorded before the node has the devices that the annotations name by minor, nor of a Pod whose
    annotations cannot be read: until then, the annotations alone count.
    `snapshot`: makes the node from given holdings and from the annotations of live Pods. Returns a change that answers
    whether a holding was added to the ledger.
    """

    def change(holdings: Holdings) -> tuple[Holdings | None, bool]:
        if uid in holdings:
            return None, False
        adopted = snapshot(holdings).holdings.get(uid)
        if adopted is None or adopted.unread or not all(map(_is_resolved, adopted.shares)):
            return None, False
        return {**holdings, uid: adopted}, True

    return change


def _is_resolved(share: Share) -> bool:
    """Whether a share names its device and amounts; if not, they follow from a device that is not known yet."""
    return bool(share.amounts) and share.id != unnamed(share.type, share.minor)


def _annotated(pod: PodToBind, node: NodeSnapshot) -> Holding | None:
    return None if pod.annotated is None else pod.annotated(node.devices)


def decide(request: PodRequest, node: NodeSnapshot, only: Holding | None) -> Steps[Placement | Refusal]:
    """Make one decision of `place()`, which yields the steps that it took."""
    budget = Budget(MAX_STEPS)
    decided = place(request, node, only, budget)
    yield int(MAX_STEPS - budget.left)
    return decided


def _place(request: PodRequest, node: NodeSnapshot, sent: Holding | None) -> Steps[Placement | Refusal]:
    """Choose what the filter assumed for the Pod if that is still free: later Pods were sent to the rest.

    The assumption is ignored under `LEAST_USED`: other Pods may have come to that device since, and idle ones come
    first.
    """
    if sent is not None and (request.wishes.order or node.order) != DeviceOrder.LEAST_USED:
        placed = yield from decide(request, node, sent)
        if isinstance(placed, Placement):
            return placed
    return (yield from decide(request, node, None))


def _serves(held: Holding, pod: PodToBind, node: NodeSnapshot) -> Steps[bool]:
    """Whether a Pod's holding is still usable, free for the Pod, and what the Pod asks for now.

    This holds if `place`, restricted to the holding, would choose it again. Other Pods may have come and gone since.
    """
    said = _annotated(pod, node)
    choosing = decide(pod.request, node, held) if said is None else _adopt(pod.request, said, node)
    placed = yield from choosing
    return not isinstance(placed, Refusal) and _compared(placed, node) == _compared(held, node)


def _compared(of: Placement | Holding, node: NodeSnapshot) -> object:
    """What must be equal: all but which containers use which devices, and percentages that follow from bytes.

    An earlier release rounded these up.
    """
    ratios = {device.id: device.memory[1] for device in node.devices if device.memory is not None}
    shares = {
        share.id: (
            share.type,
            share.minor,
            {tail: amount for tail, amount in share.amounts.items() if tail != ratios.get(share.id)},
            share.functions,
            share.alone,
            share.unshared,
        )
        for share in of.shares
    }
    cpus = of.cpus
    return shares, cpus and (replace(cpus, numa=()), [one.node for one in cpus.numa])


def _adopt(request: PodRequest, said: Holding, node: NodeSnapshot) -> Steps[Placement | Refusal]:
    """Check a choice that Koordinator's scheduler has annotated, and adopt it.

    `place` decides: the request is placed on the annotated devices alone. The annotations must name exactly the devices
    that it takes; the amounts may exceed what it needs.
    """
    wrong = _not_free(said, node)
    if wrong:
        return _not_adopted(wrong)
    placed = yield from decide(request, node, said)
    if isinstance(placed, Refusal):
        return _not_adopted((yield from _needs_more(request, said, node)) or placed.message)
    used = {(share.type, share.id): share for share in placed.shares}
    shares = []
    for share in said.shares:
        own = used.get((share.type, share.id))
        if own is None:
            return _not_adopted(f"{node.name}: {_spoken(share)} is not needed")
        shares.append(share._replace(containers=own.containers, alone=own.alone, unshared=own.unshared))
    if more := beyond(request, shares):
        return _not_adopted(f"{node.name}: {more}")
    cpus = _adopted_cpus(request, said.cpus, placed.cpus)
    if isinstance(cpus, str):
        return _not_adopted(f"{node.name}: {cpus}")
    return Placement(node.name, tuple(shares), cpus)


def _adopted_cpus(request: PodRequest, said: CpuShare | None, placed: CpuShare | None) -> CpuShare | str | None:
    """Return the CPU share to record for a Pod, or what is wrong with the annotation.

    The share is the annotation's. Where NUMA nodes are accounted, the amounts in them are those of the placement.
    Koordinator's scheduler gives CPUs for all containers, also for those that run in the shared pool here.
    """
    if said is None:
        return placed
    own = placed.cpus if placed is not None else 0
    asked = request.cpu.milli if request.cpu is not None and request.cpu.count else 0
    if said.cpus != own and (own & ~said.cpus or said.cpus.bit_count() * MILLI != asked):
        more = said.cpus & ~own
        needed = f"they name no CPUs, and the Pod asks for {own.bit_count()} of its own"
        return f"CPUs {format_cpuset(more)} are not needed" if more else needed
    return replace(said, numa=placed.numa) if placed is not None and placed.numa else said


def _needs_more(request: PodRequest, said: Holding, node: NodeSnapshot) -> Steps[str]:
    """Name a device whose annotated amounts are below what the request takes, if nothing else is wrong; else ""."""
    capacity = {(device.type, device.id): device.capacity for device in node.devices}
    shares = [share._replace(amounts=capacity.get((share.type, share.id), share.amounts)) for share in said.shares]
    placed = yield from decide(request, node, replace(said, shares=tuple(shares)))
    amounts = {(share.type, share.id): share.amounts for share in said.shares}
    for share in placed.shares if isinstance(placed, Placement) else ():
        stated = amounts[share.type, share.id]
        if any(amount > stated.get(tail, 0) for tail, amount in share.amounts.items()):
            return f"{node.name}: {_spoken(share)} needs more than they state"
    return ""


def _not_adopted(why: str) -> Refusal:
    return Refusal(f"the allocation in the Pod's annotations cannot be adopted: {why}")


def _spoken(share: Share) -> str:
    return f"{share.type} {share.minor} ({share.id})"


def _not_free(said: Holding, node: NodeSnapshot) -> str:
    """Name something in the annotations that is not free; "" if everything is."""
    devices = {(device.type, device.id): device for device in node.devices}
    functions = node.functions_held()
    for share in said.shares:
        device = devices.get((share.type, share.id))
        tails = tuple(device.capacity) if device is not None else ()
        free = dict(zip(tails, node.free(device, tails), strict=True)) if device is not None else {}
        short = any(amount > free.get(tail, 0) for tail, amount in share.amounts.items())
        if short or any(function.bus_id in functions for function in share.functions):
            return f"{node.name}: {_spoken(share)} does not have the stated amounts free"
    cpus = said.cpus
    if cpus is None:
        return ""
    if missing := cpus.cpus & ~node.free_cpus:
        return f"{node.name}: CPUs {format_cpuset(missing)} are not free"
    return "" if cpus.cpus or node.cpu is None else _not_pooled(cpus, node, node.cpu)


def _not_pooled(share: CpuShare, node: NodeSnapshot, cpu: CpuNode) -> str:
    """Name a NUMA node whose shared pool has less free than the annotations state; "" if each has enough."""
    for one in share.numa:
        known = one.node in cpu.topology.nodes
        if not known or max(one.milli, 1) > shared_milli(cpu, node.cpu_use, one.node):
            return f"{node.name}: {not_free(one.milli, (one.node,))}"
    return ""
