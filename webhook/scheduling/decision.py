"""The changes that the ledger is asked to make (pure): a Pod gets its share, gives it back, is adopted.

Each takes a node's holdings and returns the new ones (None: as they are) with an answer, and may be called again on
fresher holdings.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from allocator.place import Placement, place
from allocator.vocabulary.asks import PodRequest
from allocator.vocabulary.cpunode import cpu_use
from allocator.vocabulary.cpuset import format_cpuset
from allocator.vocabulary.device import Device
from allocator.vocabulary.holdings import Holding, Share
from allocator.vocabulary.node import NodeSnapshot
from allocator.vocabulary.outcome import Refusal
from allocator.vocabulary.preference import DeviceOrder
from webhook.view.podinfo import PodInfo, annotated_holding

Holdings = Mapping[str, Holding]
Snapshot = Callable[[Holdings], NodeSnapshot]


@dataclass(frozen=True, slots=True)
class Decision:
    """What a bind was answered.

    Attributes:
        outcome: the Pod's holding, or why there is none.
        repeated: the Pod held this before: a bind that is tried again.
        stale: what it held does not serve it any more, and nothing was changed: ask again with `unbound`, once that is
            known.
    """

    outcome: Holding | Refusal
    repeated: bool = False
    stale: bool = False


def bind(
    pod: PodInfo,
    snapshot: Snapshot,
    now: int,
    refresh_after: float,
    sent: Holding | None = None,
    *,
    unbound: bool = False,
) -> Callable[[Holdings], tuple[Holdings | None, Decision]]:
    """Give a Pod its share of a node; the same share again if it has one that serves it still.

    Args:
        pod: unbound, with a request.
        snapshot: the node on given holdings.
        now: seconds since the epoch.
        refresh_after: seconds after which a repeated bind renews `since`, so that no sweep can take away, as never
            bound, what is being bound at this moment.
        sent: what the Pod was sent to this node for, where that is known.
        unbound: the API server itself says that the Pod is not bound: it may be given something else than it holds.
    """

    def change(holdings: Holdings) -> tuple[Holdings | None, Decision]:
        node = snapshot(holdings)
        others = node.without([pod.uid])
        held = holdings.get(pod.uid)
        if held is not None and _serves(held, pod, others):
            if now - held.since <= refresh_after:
                return None, Decision(held, repeated=True)
            held = replace(held, since=now)
            return node.with_holding(held).holdings, Decision(held, repeated=True)
        if held is not None and not unbound:
            return None, Decision(held, repeated=True, stale=True)
        placed = _adopt(pod, others) if pod.holds else _place(pod.request, others, sent)
        if isinstance(placed, Refusal):
            return None, Decision(placed)
        gang = pod.request.wishes.gang
        holding = Holding(pod.uid, pod.namespace, pod.name, now, placed.shares, placed.cpus, gang)
        return others.with_holding(holding).holdings, Decision(holding)

    return change


def _place(request: PodRequest, node: NodeSnapshot, sent: Holding | None) -> Placement | Refusal:
    """Choose what the Pod was sent for where that can be had: those that follow were sent to what it leaves.

    But not where devices are used alike: others may have come to that one since, and what is idle comes first.
    """
    if sent is not None and (request.wishes.order or node.order) != DeviceOrder.LEAST_USED:
        placed = place(request, _only_free(sent, node))
        if isinstance(placed, Placement):
            return placed
    return place(request, node)


def _serves(held: Holding, pod: PodInfo, node: NodeSnapshot) -> bool:
    """Tell whether what a Pod was given is there still, free but for itself, and is what it asks for now.

    So it is where the Pod would get it again: on the node as it is or, since others may have come or gone, where
    nothing else is free. `node` is without the Pod.
    """
    if pod.holds:
        return _alike(_adopt(pod, node), held)
    return _alike(place(pod.request, node), held) or _alike(place(pod.request, _only_free(held, node)), held)


def _alike(placed: Placement | Refusal, held: Holding) -> bool:
    """Tell whether a placement is what a Pod holds.

    Its containers may have changed places among its devices, and a Pod without CPUs of its own the NUMA nodes.
    """
    return not isinstance(placed, Refusal) and _compared(placed) == _compared(held)


def _compared(of: Placement | Holding) -> object:
    shares = {
        share.id: (share.type, share.minor, dict(share.amounts), share.functions, share.alone, share.unshared)
        for share in of.shares
    }
    return shares, of.cpus and (replace(of.cpus, numa=()), len(of.cpus.numa))


def _adopt(pod: PodInfo, node: NodeSnapshot) -> Placement | Refusal:
    """Check what Koordinator's own scheduler has annotated, and take it over.

    The Pod is placed anew on a node where nothing is free but what the annotations name: that checks that they cover
    the request as it is to be covered, and says which container gets which.
    """
    said = annotated_holding(pod, node.devices, 0)
    if said is None:
        raise AssertionError("only a Pod with shares is adopted")
    wrong = _not_free(said, node)
    outcome = Refusal(wrong) if wrong else place(pod.request, _only_free(said, node))
    if isinstance(outcome, Refusal):
        return _not_adopted(outcome.message)
    placed = {(share.type, share.id): share for share in outcome.shares}
    shares = []
    for share in said.shares:
        used = placed.get((share.type, share.id))
        if used is not None and any(amount > share.amounts.get(tail, 0) for tail, amount in used.amounts.items()):
            return _not_adopted(f"{node.name}: {share.type} {share.minor} ({share.id}) needs more than they say")
        if used is None:
            shares.append(replace(share, containers=(), alone=False, unshared=False))
        else:
            shares.append(replace(share, containers=used.containers, alone=used.alone, unshared=used.unshared))
    return Placement(node.name, tuple(shares), said.cpus or outcome.cpus)


def _not_adopted(why: str) -> Refusal:
    return Refusal(f"the Pod's annotations of what it holds cannot be adopted: {why}")


def _only_free(said: Holding, node: NodeSnapshot) -> NodeSnapshot:
    """The node as if nothing were free but what `said` names and is free.

    What else is free of devices in use, or named, is taken by a holding without a Pod; idle devices and virtual
    functions are not there, and other CPUs are not offered: nobody holds these, which would count where Pods are kept
    apart from one another. Nor is the rest held of a device that the Pod shares with nobody, or whose PCIe root.
    """
    named = {(share.type, share.id): share.amounts for share in said.shares}
    functions = {function.bus_id for share in said.shares for function in share.functions}
    apart = {share.id for share in said.shares if share.alone or share.unshared}
    devices, rest = [], []
    for device in node.devices:
        free = _free(device, node)
        wanted = named.get((device.type, device.id))
        if wanted is None and device.id not in node.used and device.id not in node.kubelet_held:
            continue
        if wanted is not None and all(amount <= free.get(tail, 0) for tail, amount in wanted.items()):
            free = {tail: amount - wanted.get(tail, 0) for tail, amount in free.items()}
        left = tuple(function for function in device.functions if function.bus_id in functions)
        devices.append(device if left == device.functions else replace(device, functions=left))
        if any(free.values()) and device.id not in apart:
            rest.append(Share(device.type, device.id, device.minor, free))
    cpu = node.cpu
    if cpu is not None and said.cpus is not None and said.cpus.cpus:
        cpu = replace(cpu, offered=said.cpus.cpus)
    holdings = {**node.holdings, "": Holding("", "", "", 0, tuple(rest))} if rest else node.holdings
    return replace(node, devices=tuple(devices), holdings=holdings, cpu=cpu)


def _not_free(said: Holding, node: NodeSnapshot) -> str:
    """Name something that is said, needed or not, and is not there to be given; "" where all is."""
    usable = {
        (device.type, device.id): _free(device, node)
        for device in node.devices
        if device.healthy and device.id not in node.kubelet_held
    }
    functions = {function for held in node.holdings.values() for share in held.shares for function in share.functions}
    for share in said.shares:
        free = usable.get((share.type, share.id), {})
        if any(amount > free.get(tail, 0) for tail, amount in share.amounts.items()) or functions & {*share.functions}:
            return f"{node.name}: {share.type} {share.minor} ({share.id}) does not have free what they say"
    own = said.cpus.cpus if said.cpus is not None else 0
    if missing := own & ~_free_cpus(node):
        return f"{node.name}: CPUs {format_cpuset(missing)} are not free"
    return ""


def _free_cpus(node: NodeSnapshot) -> int:
    if node.cpu is None:
        return 0
    held = cpu_use(node.cpu, (holding.cpus for holding in node.holdings.values() if holding.cpus is not None))
    return node.cpu.topology.all & ~node.cpu.reserved & ~held.taken


def _free(device: Device, node: NodeSnapshot) -> dict[str, int]:
    used = node.used.get(device.id, {})
    return {tail: max(amount - used.get(tail, 0), 0) for tail, amount in device.capacity.items()}


def release(uid: str, *, held_since_before: float | None = None) -> Callable[[Holdings], tuple[Holdings | None, bool]]:
    """Take a Pod's holding away.

    Args:
        uid: of the Pod.
        held_since_before: only if the holding is older than this moment (a bind may have renewed it meanwhile).

    Returns:
        A change that answers whether there was something to take.
    """

    def change(holdings: Holdings) -> tuple[Holdings | None, bool]:
        held = holdings.get(uid)
        if held is None or (held_since_before is not None and held.since >= held_since_before):
            return None, False
        return {other: holding for other, holding in holdings.items() if other != uid}, True

    return change


def adopt_running(pod: PodInfo, snapshot: Snapshot) -> Callable[[Holdings], tuple[Holdings | None, bool]]:
    """Record what a Pod that is bound already says it holds: it runs, so nothing is refused.

    Returns:
        A change that answers whether it was missing from the ledger.
    """

    def change(holdings: Holdings) -> tuple[Holdings | None, bool]:
        if pod.uid in holdings:
            return None, False
        adopted = snapshot(holdings).holdings.get(pod.uid)
        return (None, False) if adopted is None else ({**holdings, pod.uid: adopted}, True)

    return change
