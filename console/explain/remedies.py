"""What would make a Pod fit on a node, in the order of effort: of the conditions on the node, the sums, the devices."""

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from allocator.reasons import ChangeKind
from console.explain.nodes import NodeDetail
from console.explain.scene import Scene
from webhook.view.nodeselection import UNSCHEDULABLE, may_land, tolerated

_HARD: Final = frozenset({"NoSchedule", "NoExecute"})
_MOST_NAMED: Final = 8
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
    found = [*_conditions(scene, node.verdict.name)]
    found += [
        WayToFit("room", f"{_LESS if one.beyond else _ROOM}: {one.text}", needed=True)
        for one in node.verdict.reasons
        if one.by == "kube-scheduler" and one.short.startswith("not enough")
    ]
    for change in node.changes:
        if change.kind is not ChangeKind.PODS:
            found.append(WayToFit(str(change.kind), change.text))
            continue
        names = [name for name, _ in node.leaving]
        told = ", ".join(f"{name} (priority {priority})" for name, priority in node.leaving[:_MOST_NAMED])
        more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
        found.append(
            WayToFit(str(change.kind), f"{change.text}: {told}{more}; {_evicts(scene, change.priority)}", tuple(names))
        )
    return found


def _evicts(scene: Scene, highest: int) -> str:
    """Whether kube-scheduler evicts Pods of these priorities for the Pod."""
    own = scene.pod["spec"].get("priority") or 0
    if scene.pod["spec"].get("preemptionPolicy") == "Never":
        return "nobody is evicted for it, because its preemptionPolicy is Never"
    if highest < own:
        return f"kube-scheduler may evict them for this Pod, whose priority is {own}"
    return f"nobody is evicted for this Pod, whose priority is {own}: give it one above {highest} (priorityClassName)"


def _conditions(scene: Scene, name: str) -> Iterator[WayToFit]:
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
