"""What each node says of the Pod, one node in detail, and what would make the Pod fit there."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

from allocator.adopted import doubts
from allocator.amounts import BadQuantityError, pod_amounts
from allocator.place import Placement, place_by_numa
from allocator.preempt import PodStanding
from allocator.reasons import CardReason, Change, ChangeKind, card_reasons, changes, lack
from allocator.vocabulary.device import Device
from allocator.vocabulary.devicetype import FULL
from allocator.vocabulary.outcome import Refusal
from console.explain.scene import Scene
from console.simulator.scheduler import NodeCandidate, allocatable, candidate, managed, shortages, why_not
from console.terminal import some
from webhook.view.nodereport import node_report
from webhook.view.nodeselection import UNSCHEDULABLE, may_land, tolerated

_OPEN: Final[Mapping[str, Any]] = {}  # the spec of a Pod without conditions on nodes


@dataclass(frozen=True, slots=True)
class Reason:
    """One reason why a node cannot hold the Pod."""

    by: str  # who says so: koord-scheduler's filter ("koordgate"), or kube-scheduler's own plugins
    short: str  # in a few words that nodes share, for counting
    text: str  # in full
    beyond: bool = False  # whether the node has too little for the Pod even if all other Pods left


@dataclass(frozen=True, slots=True)
class NodeVerdict:
    """What one node says."""

    name: str
    reasons: tuple[Reason, ...]  # why it cannot hold the Pod, the first one first; empty if it can
    # how far it is from holding it: percent of devices and CPUs (`allocator.reasons.lack`), percent of each other
    # amount, and 100 if a condition on the node is not met. The nearest node has the least.
    lack: int
    permanent: bool = False  # it could not even if all other Pods left
    placement: Placement | None = None  # what the Pod would get there; None if `place()` refuses

    @property
    def fits(self) -> bool:
        """Whether it can hold the Pod now."""
        return not self.reasons


@dataclass(frozen=True, slots=True)
class CardDetail:
    """One device of a node: what it has for the Pod, and who holds some of it."""

    reason: CardReason  # as `card_reasons` gives it
    holders: tuple[str, ...]  # Pods and others that hold some of it, as namespace/name

    @property
    def device(self) -> Device:
        """The device."""
        return self.reason.device


@dataclass(frozen=True, slots=True)
class NodeDetail:
    """A node in detail."""

    verdict: NodeVerdict
    cards: tuple[CardDetail, ...] = ()  # its devices of the types that the Pod asks for
    # by NUMA node, why the Pod does not fit into it alone; "" if it does. Empty without a NUMA policy.
    numas: Mapping[int, str] = field(default_factory=dict)
    changes: tuple[Change, ...] = ()  # what would make the Pod fit there, as far as devices and CPUs are concerned
    # with a change that needs Pods to leave, these, as namespace/name with their priority
    leaving: tuple[tuple[str, int], ...] = ()
    doubts: tuple[str, ...] = ()  # what is not certain of what Pods of other products hold there, a sentence each


def judge(scene: Scene) -> list[NodeVerdict]:
    """Let each node judge the Pod; those that can hold it first, then the nearest first, equal ones by name.

    Nodes that the Pod's own selection excludes come last: its author wants another one.
    """
    found = [_judge(scene, node) for node in scene.nodes]
    about = {node["metadata"]["name"]: node["metadata"].get("labels") or {} for node in scene.nodes}
    excluded = {name for name, labels in about.items() if not may_land(scene.pod["spec"], name, labels)}
    return sorted(found, key=lambda one: (not one.fits, one.name in excluded, one.permanent, one.lack, one.name))


def closed_to(scene: Scene, node: Mapping[str, Any]) -> str | None:
    """The condition of a node (a cordon, a taint, a label) that keeps the Pod away; None if none does."""
    return why_not(scene.pod["spec"], _OPEN, candidate(node, {}), _OPEN)


def _judge(scene: Scene, node: Mapping[str, Any]) -> NodeVerdict:
    name, types = node["metadata"]["name"], scene.types
    spec, info = scene.pod["spec"], scene.info
    snapshot = scene.ranking.snapshot(name)
    reasons, far = [], 0
    try:
        has = candidate(node, allocatable(node, snapshot.devices))
        asked = pod_amounts(spec)
    except BadQuantityError as error:
        text = f"{error}; correct it"
        return NodeVerdict(name, (Reason("kube-scheduler", text, text),), FULL, permanent=True)
    if closed := closed_to(scene, node):
        reasons.append(Reason("kube-scheduler", closed, closed))
        far += FULL
    outcome: Placement | Refusal | None = None
    if info is not None and info.request and not info.problem:
        outcome = scene.ranking.verdict(name, scene.ranking.wanted(info), info.uid)
        if isinstance(outcome, Refusal):
            text = outcome.message.removeprefix(f"{name}: ")
            reasons.append(Reason("koordgate", outcome.short or text, text))
            far += lack(info.request, snapshot)
    devices = types.resources
    left = managed(types)
    counted = {
        what: much
        for what, much in asked.items()
        if (what in has.allocatable or what not in left) and not (isinstance(outcome, Refusal) and what in devices)
    }
    used = scene.seen.view.loads.requested(name)
    short = list(shortages(counted, has.allocatable, used))
    if short:
        room = why_not(_OPEN, counted, _unconditional(has), used) or ""
        beyond = any(much > total for _, much, _, total in short)
        names = ", ".join(what for what, *_ in short)
        reasons.append(Reason("kube-scheduler", f"not enough {names}", room, beyond))
        far += sum(-(-FULL * (much - free) // much) for _, much, free, _ in short)
    permanent = any(one.beyond for one in reasons) or (isinstance(outcome, Refusal) and outcome.permanent)
    return NodeVerdict(name, tuple(reasons), far, permanent, outcome if isinstance(outcome, Placement) else None)


def _unconditional(node: NodeCandidate) -> NodeCandidate:
    """The node without conditions on the Pods that it takes."""
    return replace(node, taints=(), unschedulable=False)


def detail(scene: Scene, verdict: NodeVerdict) -> NodeDetail:
    """Look at one node closely."""
    info = scene.info
    if info is None or not info.request:
        return NodeDetail(verdict)
    node, request = scene.ranking.snapshot(verdict.name), scene.ranking.wanted(info)
    holders = {one.id: sorted({who.holder for who, _ in one.held}) for one in node_report(node, scene.types).devices}
    cards = tuple(CardDetail(one, tuple(holders.get(one.device.id, ()))) for one in card_reasons(request, node))
    uncertain = tuple(doubts(node))
    if verdict.placement is not None:
        return NodeDetail(verdict, cards, doubts=uncertain)
    numas = {
        numa: "" if isinstance(outcome, Placement) else outcome.message.removeprefix(f"{node.name}: ")
        for numa, outcome in place_by_numa(request, node).items()
    }
    standing = {
        uid: PodStanding(pod.priority)
        for uid in node.holdings
        if (pod := scene.seen.view.pods.by_uid(uid)) is not None and not node.holdings[uid].fence
    }
    found = changes(request, node, standing)
    leaving = tuple(
        (f"{node.holdings[uid].namespace}/{node.holdings[uid].name}", standing[uid].priority)
        for change in found
        for uid in change.pods
    )
    return NodeDetail(verdict, cards, numas, tuple(found), leaving, uncertain)


_HARD: Final = frozenset({"NoSchedule", "NoExecute"})
_ROOM: Final = "ask for less, or let other Pods end"
_LESS: Final = "ask for no more than the node has"


class WayToFit(NamedTuple):
    """One thing that somebody can do."""

    kind: str
    text: str  # what to do, as an order
    pods: tuple[str, ...] = ()  # the Pods that must end for it, as namespace/name
    # whether the Pod fits only if this is done, whatever else is; otherwise one such thing suffices
    needed: bool = False


def remedies(scene: Scene, node: NodeDetail) -> list[WayToFit]:
    """What would make the Pod fit on a node. Where a node has several reasons, each needs its remedy."""
    found = [*_conditions_of(scene, node.verdict.name)]
    found += [
        WayToFit("room", f"{_LESS if one.beyond else _ROOM}: {one.text}", needed=True)
        for one in node.verdict.reasons
        if one.by == "kube-scheduler" and one.short.startswith("not enough")
    ]
    for change in node.changes:
        if change.kind is not ChangeKind.PODS:
            found.append(WayToFit(str(change.kind), change.text))
            continue
        told = some([f"{name} (priority {priority})" for name, priority in node.leaving])
        text = f"{change.text}: {told}; {_evicts(scene, change.priority)}"
        found.append(WayToFit(str(change.kind), text, tuple(name for name, _ in node.leaving)))
    return found


def _evicts(scene: Scene, highest: int) -> str:
    """Whether kube-scheduler evicts Pods of these priorities for the Pod."""
    own = scene.pod["spec"].get("priority") or 0
    if scene.pod["spec"].get("preemptionPolicy") == "Never":
        return "nobody is evicted for it, because its preemptionPolicy is Never"
    if highest < own:
        return f"kube-scheduler may evict them for this Pod, whose priority is {own}"
    return f"nobody is evicted for this Pod, whose priority is {own}: give it one above {highest} (priorityClassName)"


def _conditions_of(scene: Scene, name: str) -> Iterator[WayToFit]:
    node = next(one for one in scene.nodes if one["metadata"]["name"] == name)
    spec, pod = node.get("spec") or {}, scene.pod["spec"]
    tolerations = pod.get("tolerations") or ()
    if spec.get("unschedulable") and not tolerated(UNSCHEDULABLE, tolerations):
        yield WayToFit("cordon", f"kubectl uncordon {name}", needed=True)
    for taint in spec.get("taints") or ():
        if taint.get("effect") in _HARD and not tolerated(taint, tolerations):
            value = f"={taint['value']}" if taint.get("value") else ""
            text = f"add a toleration for {taint['key']}{value}:{taint['effect']} to the Pod, or remove the taint"
            yield WayToFit("taint", text, needed=True)
    labels: Mapping[str, Any] = node["metadata"].get("labels") or {}
    wrong = [
        f"{key}={value} (it has {labels[key]})" if key in labels else f"{key}={value} (it has no such label)"
        for key, value in (pod.get("nodeSelector") or {}).items()
        if labels.get(key) != value
    ]
    if wrong:
        text = f"the Pod's nodeSelector asks the node for {', '.join(wrong)}: change one of them"
        yield WayToFit("label", text, needed=True)
    elif not may_land(pod, name, labels):
        text = "change the Pod's required node affinity, or the node's labels: no term of it matches them"
        yield WayToFit("label", text, needed=True)
