"""Why a Pod is on no node, or why it is on its node, as one value.

A Pod waits for reasons that are no node's (it was not translated, nobody schedules it), or because no node can hold it.
Where a bound Pod is follows from the same decision once more, on the cluster as it is now without the Pod.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, NamedTuple

from allocator.adopted import in_doubt
from allocator.amounts import BadQuantityError, pod_amounts, pod_charges
from allocator.bind import MAX_UNBOUND
from allocator.index.search import NodeFigures
from allocator.place import Placement, opened
from allocator.quantity import QuantityError, to_int
from allocator.reasons import CardReason, card_reasons
from allocator.vocabulary.holdings import Holding, Share
from allocator.vocabulary.names import DEFAULT_SCHEDULER, GANG_GATE, Mode
from console.cluster import mapping
from console.devicewords import adopted
from console.explain.nodes import NodeDetail, NodeVerdict, WayToFit, closed_to, detail, judge, remedies
from console.explain.scene import Scene, conditions
from console.simulator import words
from webhook.view.nodereport import Availability, DeviceReport, node_report
from webhook.view.podinfo import annotated_holding, read_pod_info

_MAX_NAMED: Final = 8


class Why(StrEnum):
    """The kinds of such reasons, as the JSON output names them."""

    FINISHED = "finished"
    ENDING = "terminating"
    FOREIGN = "notKoordgates"
    MODE = "mode"
    UNREADABLE = "unreadable"
    REFUSED = "refusedAtAdmission"
    MISSPELT = "misspelt"
    UNTRANSLATED = "notTranslated"
    SCHEDULER = "otherScheduler"
    QUOTA = "quota"
    GATE = "gate"
    GANG = "gang"
    UNSEEN = "noScheduler"
    ELSEWHERE = "roomElsewhere"


class Hurdle(NamedTuple):
    """One such reason."""

    why: Why
    text: str
    todo: str  # what to do about it
    stops: bool = True  # whether the Pod lands nowhere because of it, whatever nodes say
    details: tuple[str, ...] = ()  # what it consists of, a sentence each


def hurdles(scene: Scene) -> list[Hurdle]:
    """Find what keeps a Pod from all nodes; the most fundamental reason first."""
    ended = _ended(scene)
    if ended is not None:
        return [ended]
    found = [*_served(scene), *_over_quotas(scene), *_waits(scene)]
    return sorted(found, key=lambda one: not one.stops)


def _ended(scene: Scene) -> Hurdle | None:
    status, metadata = scene.given.get("status") or {}, scene.given["metadata"]
    if status.get("phase") in {"Succeeded", "Failed"}:
        why = f" ({status['reason']})" if status.get("reason") else ""
        return Hurdle(Why.FINISHED, f"it has ended: {status['phase']}{why}", "create a new Pod to run it again")
    if metadata.get("deletionTimestamp") is not None:
        return Hurdle(Why.ENDING, "it is being deleted", "wait until it is gone")
    return None


def held_by_others(scene: Scene) -> str:
    """What a Pod holds by another product's statement; "" if nothing."""
    theirs = scene.adopted
    if theirs is None or not theirs.shares:
        return ""
    held = "; ".join(adopted(theirs, scene.types))
    doubt = f", in doubt: {theirs.why}" if in_doubt(theirs) else ""
    return f"{held}{doubt}"


def _served(scene: Scene) -> list[Hurdle]:
    """Whether koordgate and its scheduler have anything to do with the Pod."""
    own = scene.given["spec"].get("schedulerName") or DEFAULT_SCHEDULER
    namespace = scene.given["metadata"]["namespace"]
    info, ours = scene.info, scene.settings.scheduler.names.of(namespace)
    if scene.refused:
        first, *more = words.problems(scene.refused, scene.given)
        text = f"admission refuses it for {len(more) + 1} problems" if more else f"admission refuses it: {first}"
        return [Hurdle(Why.REFUSED, text, "correct it as admission says", details=(first, *more) if more else ())]
    if scene.misspelt:
        text = "it asks for what no node has"
        return [Hurdle(Why.MISSPELT, text, "correct the name, and create it again", details=tuple(scene.misspelt))]
    if info is None or not info.asks:
        text = f"it asks for no devices or CPUs of koordgate's, and {own} places it by itself"
        if held := held_by_others(scene):
            text += f"; on {scene.given['spec']['nodeName']} it holds {held}"
        return [Hurdle(Why.FOREIGN, text, "ask its scheduler: kubectl describe pod", stops=False)]
    if info.problem:
        todo = "delete it and create a correct one"
        return [Hurdle(Why.UNREADABLE, f"its request cannot be read: {info.problem}", todo)]
    if scene.mode is not Mode.ENFORCE:
        does = "only observes" if scene.mode is Mode.SHADOW else "does nothing in"
        text = f"koordgate {does} namespace {namespace} (mode {scene.mode}), so {own} places it without its devices"
        return [Hurdle(Why.MODE, text, f"koordgate adopt switch {namespace} --to enforce", stops=False)]
    found = []
    if scene.cluster.installed is False and scene.existing:
        text = "koordgate's webhooks are not installed in this cluster"
        found.append(Hurdle(Why.UNTRANSLATED, text, "install the chart, then create the Pod again"))
    elif scene.translated and scene.existing:
        text = "koordgate did not translate it when it was created (it is older than the installation, or no replica "
        text += "answered, or its namespace was not enforced)"
        found.append(Hurdle(Why.UNTRANSLATED, text, "delete it and create it again"))
    elif own != ours and scene.existing:
        text = f"its spec.schedulerName is {own}, and only {ours} may bind it"
        found.append(Hurdle(Why.SCHEDULER, text, "delete it, and create it without spec.schedulerName"))
    return found


def _over_quotas(scene: Scene) -> list[Hurdle]:
    """Quotas count when a Pod is created, so that one that exists has passed them."""
    if scene.existing:
        return []
    namespace = scene.given["metadata"]["namespace"]
    try:
        charged = {**pod_amounts(scene.pod["spec"]), **pod_charges(scene.pod["spec"])}
    except BadQuantityError:
        return []
    found = []
    for quota in scene.others.get("ResourceQuota", ()):
        if quota["metadata"].get("namespace") != namespace or mapping(quota.get("spec")).get("scopes"):
            continue
        for text in _beyond(quota, charged):
            words = f"ResourceQuota {quota['metadata']['name']} does not allow it: {text}"
            found.append(
                Hurdle(Why.QUOTA, words, "ask for less, let other Pods of the namespace end, or raise the quota")
            )
    return found


def _beyond(quota: Mapping[str, Any], charged: Mapping[str, int]) -> list[str]:
    status = mapping(quota.get("status"))
    hard = mapping(status.get("hard") or mapping(quota.get("spec")).get("hard"))
    used = mapping(status.get("used"))
    found = []
    for name, most in sorted(hard.items()):
        wanted = charged.get(name.removeprefix("requests."), charged.get(name, 0))
        try:
            # CPU is charged in thousandths.
            unit = 1000 if name in {"cpu", "requests.cpu"} else 1
            limit, now = (_amount(value, unit) for value in (most, used.get(name, 0)))
        except QuantityError:
            continue
        if wanted and now + wanted > limit:
            found.append(f"{name}: {most} allowed, {used.get(name, 0)} used, and it adds {wanted}{'m' * (unit > 1)}")
    return found


def _amount(value: object, unit: int) -> int:
    text = str(value)
    if unit > 1 and text.endswith("m"):
        return to_int(text.removesuffix("m"))
    return to_int(text) * unit


def _waits(scene: Scene) -> list[Hurdle]:
    spec, info = scene.given["spec"], scene.info
    gates = [str(one.get("name")) for one in spec.get("schedulingGates") or ()]
    found = []
    if others := [gate for gate in gates if gate != GANG_GATE]:
        text = f"it waits for its schedulingGates: {', '.join(others[:_MAX_NAMED])}"
        found.append(Hurdle(Why.GATE, text, "whoever set them must remove them"))
    if GANG_GATE in gates or (info is not None and info.all_or_nothing and scene.settings.gangs.all_or_nothing):
        found.append(_gang(scene))
    if info is None or gates or not scene.existing or spec.get("nodeName"):
        return found
    if not any(one.get("type") == "PodScheduled" for one in conditions(scene.given)):
        who = spec.get("schedulerName") or DEFAULT_SCHEDULER
        text = f"no scheduler has tried it yet: nobody named {who} has written a condition PodScheduled"
        todo = f"see that {who} runs and is the leader"
        todo += ": koordgate doctor" if who in scene.settings.scheduler.names else ""
        found.append(Hurdle(Why.UNSEEN, text, todo))
    held = scene.held_on
    if len(held) >= MAX_UNBOUND:
        text = f"it was given room on {' and '.join(held)} by binds that were not performed, and may go only there"
        found.append(Hurdle(Why.ELSEWHERE, text, "wait some minutes: what it is not bound to is given back"))
    return found


def _gang(scene: Scene) -> Hurdle:
    info = scene.info
    name = info.request.wishes.gang if info is not None else ""
    members: Mapping[str, str] = scene.seen.view.pods.gang(name) if name else {}
    bound = sum(1 for node in members.values() if node)
    size = scene.gang_size(name)
    text = f"its gang {name} is bound as a whole (Pods that exist: {len(members)}, that are bound: {bound}"
    text += f", that are needed: {size})" if size else ")"
    todo = "create the missing Pods" if size > len(members) else "room for all of them at once is needed: see the nodes"
    return Hurdle(Why.GANG, text, todo, stops=size > len(members))


def last_said(pod: Mapping[str, Any]) -> str:
    """What kube-scheduler said when it tried the Pod last; "" if it did not, or the message is not known."""
    told = (one for one in conditions(pod) if one.get("type") == "PodScheduled" and one.get("status") != "True")
    return next((str(one.get("message") or "") for one in told), "")


_REASONS: Final = ("DevicesAllocated",)


@dataclass(frozen=True, slots=True)
class Rival:
    """One node in the order in which koordgate would offer it to the Pod now."""

    name: str
    level: int  # how many levels of nodes are better; 0 for the best
    parts: NodeFigures  # the figures of the comparison


@dataclass(frozen=True, slots=True)
class TypeLeft:
    """The devices of one type on the Pod's node."""

    type: str  # their type
    total: int  # how many there are
    idle_before: int  # how many are usable and idle without the Pod
    idle_after: int  # how many of these the Pod left idle


@dataclass(frozen=True, slots=True)
class Whereabouts:
    """Why a bound Pod is where it is."""

    node: str
    holding: Holding | None  # what it holds there; None if that is not known
    order: Sequence[Rival]  # nodes that could hold it now and whose conditions it meets, the best first
    own: Rival | None  # its node among them; None if the node could not hold it now
    why_not: str  # why not
    placed: Placement | None  # what `place()` would choose on its node now; None if nothing
    opened: tuple[int, int]  # idle devices, and PCIe roots without a device in use, that it took into use
    beside: Mapping[str, Sequence[str]]  # by id of a device that it holds, the other holders of the device
    left: Sequence[TypeLeft]  # what it left whole
    cards: Sequence[CardReason]  # the other devices of its types, as they are without the Pod
    recorded: Sequence[str]  # what was recorded when it was bound, a sentence each

    @property
    def shares(self) -> Sequence[Share]:
        """The shares of devices that it holds."""
        return self.holding.shares if self.holding is not None else ()

    @property
    def same(self) -> bool:
        """Whether `place()` would choose the same devices and CPUs now."""
        if self.placed is None or self.holding is None:
            return False
        ids = {share.id for share in self.holding.shares}
        cpus = (one.cpus.cpus if one.cpus is not None else 0 for one in (self.placed, self.holding))
        return ids == {share.id for share in self.placed.shares} and len(set(cpus)) == 1


def standing(scene: Scene) -> Whereabouts | None:
    """Explain where a bound Pod is; None for one that asks for nothing that koordgate gives."""
    info, node = scene.info, str(scene.given["spec"]["nodeName"])
    given = read_pod_info(scene.given, types=scene.types)
    if info is None or not info.request or given is None:
        return None
    ranking, view = scene.ranking, scene.seen.view
    without = ranking.snapshot(node)
    holding = annotated_holding(view.compared(given), without.devices, 0, without.own_cpus)
    devices = {one.id: one for one in node_report(without, scene.types).devices}
    closed = {one["metadata"]["name"] for one in scene.nodes if closed_to(scene, one)} - {node}
    names = sorted(name for name in view.nodes.known() if name not in closed)
    levels = ranking.standing(info, names)
    parts = ranking.parts(info, names)
    order = sorted((Rival(name, level, parts[name]) for name, level in levels.items()), key=_place)
    verdict = ranking.verdict(node, ranking.wanted(info), info.uid)
    shares = holding.shares if holding is not None else ()
    return Whereabouts(
        node=node,
        holding=holding,
        order=order,
        own=next((one for one in order if one.name == node), None),
        why_not="" if isinstance(verdict, Placement) else verdict.message.removeprefix(f"{node}: "),
        placed=verdict if isinstance(verdict, Placement) else None,
        opened=opened(shares, without, info.request.wishes.order),
        beside={one.id: [who.holder for who, _ in devices[one.id].held] for one in shares if one.id in devices},
        left=_left(devices.values(), shares),
        cards=card_reasons(info.request, without),
        recorded=_recorded(scene),
    )


def _place(one: Rival) -> tuple[int, str]:
    return one.level, one.name


def _left(devices: Iterable[DeviceReport], shares: Sequence[Share]) -> list[TypeLeft]:
    taken = {share.id for share in shares}
    found = []
    for kind in dict.fromkeys(share.type for share in shares):
        there = [one for one in devices if one.kind.name == kind and one.device is not None]
        idle = [one.id for one in there if one.state is Availability.FREE]
        found.append(TypeLeft(kind, len(there), len(idle), len([one for one in idle if one not in taken])))
    return found


def _recorded(scene: Scene) -> list[str]:
    """What koordgate said when it bound the Pod, in the order of time."""
    uid = scene.given["metadata"].get("uid")
    about = [
        event
        for event in scene.others.get("Event", ())
        if event.get("reason") in _REASONS and mapping(event.get("involvedObject")).get("uid") == uid
    ]
    about.sort(key=lambda event: str(event.get("lastTimestamp") or ""))
    return [f"{event.get('lastTimestamp') or 'time unknown'}: {event.get('message')}" for event in about]


_BEFORE: Final = frozenset({Why.REFUSED, Why.UNREADABLE, Why.FINISHED, Why.ENDING})  # no node is asked then
_OTHERS: Final = frozenset({Why.FOREIGN, Why.MODE})  # another scheduler places it, whatever koordgate would do


@dataclass(frozen=True, slots=True)
class Explanation:
    """The answer."""

    scene: Scene  # the Pod, and its cluster
    hurdles: list[Hurdle] = field(default_factory=list)  # what keeps it from all nodes
    # what each node says, the best or nearest first; of a bound Pod none
    verdicts: list[NodeVerdict] = field(default_factory=list)
    # nodes in detail: those that were asked for, else the nearest one
    nodes: list[NodeDetail] = field(default_factory=list)
    remedies: list[list[WayToFit]] = field(default_factory=list)  # what would make the Pod fit on each of these
    # of a bound Pod, why it is there; None if it asks for nothing that koordgate gives
    standing: Whereabouts | None = None

    @property
    def bound(self) -> bool:
        """Whether the Pod has a node."""
        return bool(self.scene.given["spec"].get("nodeName"))

    @property
    def stopped(self) -> Hurdle | None:
        """The first thing that keeps the Pod from all nodes."""
        return next((one for one in self.hurdles if one.stops), None)

    @property
    def aside(self) -> Hurdle | None:
        """Why another scheduler, and not koordgate, places a Pod for which there is room."""
        if self.stopped is not None or not (self.bound or self.fitting):
            return None
        return next((one for one in self.hurdles if one.why in _OTHERS), None)

    @property
    def fitting(self) -> list[NodeVerdict]:
        """The nodes that can hold it now."""
        return [one for one in self.verdicts if one.fits]


def explain(scene: Scene, nodes: list[str]) -> Explanation:
    """Explain a Pod.

    `nodes`: names of nodes to look at closely; empty for the nearest.
    """
    found = hurdles(scene)
    if any(one.why is Why.FINISHED for one in found):
        return Explanation(scene, found)
    if scene.given["spec"].get("nodeName"):
        return Explanation(scene, found, standing=standing(scene))
    if any(one.why in _BEFORE for one in found):
        return Explanation(scene, found)
    verdicts = _best_first(scene, judge(scene))
    chosen = [one for one in verdicts if one.name in nodes] if nodes else verdicts[:1]
    details = [detail(scene, one) for one in chosen]
    return Explanation(scene, found, verdicts, details, [remedies(scene, one) for one in details])


def _best_first(scene: Scene, verdicts: list[NodeVerdict]) -> list[NodeVerdict]:
    """Order the nodes that can hold the Pod as koordgate would offer them; the others stay as they are."""
    fitting = [one.name for one in verdicts if one.fits]
    if scene.info is None or not scene.info.request or not fitting:
        return verdicts
    levels = scene.ranking.standing(scene.info, fitting)
    last = len(levels)
    return sorted(verdicts, key=lambda one: levels.get(one.name, last) if one.fits else last)
