"""Why a Pod is on no node for reasons that are no node's: it was not translated, nobody schedules it, or it waits."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final, NamedTuple

from allocator.adopted import in_doubt
from allocator.amounts import BadQuantityError, pod_amounts, pod_charges
from allocator.bind import MAX_UNBOUND
from allocator.quantity import QuantityError, to_int
from allocator.vocabulary.mode import Mode
from allocator.vocabulary.names import DEFAULT_SCHEDULER, GANG_GATE
from console.explain.reading import mapping
from console.explain.scene import Scene, conditions
from console.simulator.words import adopted

_MOST_NAMED: Final = 8


class Why(StrEnum):
    """The kinds of such reasons, as the JSON output names them."""

    FINISHED = "finished"
    ENDING = "terminating"
    FOREIGN = "notKoordgates"
    MODE = "mode"
    UNREADABLE = "unreadable"
    REFUSED = "refusedAtAdmission"
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
    info, ours = scene.info, scene.settings.scheduler.name
    own = scene.given["spec"].get("schedulerName") or DEFAULT_SCHEDULER
    namespace = scene.given["metadata"]["namespace"]
    if scene.refused:
        return [Hurdle(Why.REFUSED, f"admission refuses it: {scene.refused}", "correct the Pod")]
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
        text = f"it waits for its schedulingGates: {', '.join(others[:_MOST_NAMED])}"
        found.append(Hurdle(Why.GATE, text, "whoever set them must remove them"))
    if GANG_GATE in gates or (info is not None and info.all_or_nothing and scene.settings.gangs.all_or_nothing):
        found.append(_gang(scene))
    if info is None or gates or not scene.existing or spec.get("nodeName"):
        return found
    if not any(one.get("type") == "PodScheduled" for one in conditions(scene.given)):
        who = spec.get("schedulerName") or DEFAULT_SCHEDULER
        text = f"no scheduler has tried it yet: nobody named {who} has written a condition PodScheduled"
        todo = f"see that {who} runs and is the leader"
        todo += ": koordgate doctor" if who == scene.settings.scheduler.name else ""
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
