"""The Nodes of a DaemonSet, and what its controller adds to the Pod of each (pure).

The source is Kubernetes, pkg/controller/daemon: NodeShouldRunDaemonPod, util.AddOrUpdateDaemonPodTolerations and
ReplaceDaemonSetPodNodeNameNodeAffinity.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from console.simulator.apiserver import copied
from webhook.view.nodeselection import may_land, tolerated

Raw = dict[str, Any]
_HARD: Final = frozenset({"NoSchedule", "NoExecute"})
_ADDED: Final = (
    ("node.kubernetes.io/not-ready", "NoExecute"),
    ("node.kubernetes.io/unreachable", "NoExecute"),
    ("node.kubernetes.io/disk-pressure", "NoSchedule"),
    ("node.kubernetes.io/memory-pressure", "NoSchedule"),
    ("node.kubernetes.io/pid-pressure", "NoSchedule"),
    ("node.kubernetes.io/unschedulable", "NoSchedule"),
)
_OF_HOST_NETWORK: Final = ("node.kubernetes.io/network-unavailable", "NoSchedule")
_KIND: Final = "DaemonSet"
_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"


def nodes_of_daemon(spec: Mapping[str, Any], nodes: Sequence[Mapping[str, Any]]) -> list[str]:
    """The names, sorted, of the Nodes on which a Pod of this spec is created."""
    tolerations = _tolerations(spec)
    found = []
    for node in nodes:
        name, labels = node["metadata"]["name"], node["metadata"].get("labels") or {}
        taints = (node.get("spec") or {}).get("taints") or ()
        hard = (taint for taint in taints if taint.get("effect") in _HARD)
        if may_land(spec, name, labels) and all(tolerated(taint, tolerations) for taint in hard):
            found.append(name)
    return sorted(found)


def daemon_pod(template: Mapping[str, Any], node: str) -> Raw:
    """The Pod for one Node."""
    pod = copied(template)
    spec = pod["spec"]
    spec["tolerations"] = _tolerations(spec)
    field = {"key": "metadata.name", "operator": "In", "values": [node]}
    terms = {"nodeSelectorTerms": [{"matchFields": [field]}]}
    affinity = dict(spec.get("affinity") or {})
    affinity["nodeAffinity"] = {**(affinity.get("nodeAffinity") or {}), _REQUIRED: terms}
    spec["affinity"] = affinity
    return pod


def only_node(spec: Mapping[str, Any]) -> str:
    """The one Node that a Pod's required affinity names, as a DaemonSet's does; "" if it names none, or several."""
    match ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(_REQUIRED):
        case {"nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}]}:
            return str(node)
        case _:
            return ""


def of_another_node(pod: Mapping[str, Any], node: str) -> bool:
    """Whether a DaemonSet made a Pod that is not bound yet for another Node than this one."""
    owners = pod["metadata"].get("ownerReferences") or ()
    if pod["spec"].get("nodeName") or not any(one.get("controller") and one["kind"] == _KIND for one in owners):
        return False
    return only_node(pod["spec"]) not in {"", node}


def _tolerations(spec: Mapping[str, Any]) -> list[Raw]:
    added = [*_ADDED, *([_OF_HOST_NETWORK] if spec.get("hostNetwork") else ())]
    extra = [{"key": key, "operator": "Exists", "effect": effect} for key, effect in added]
    own = list(spec.get("tolerations") or ())
    return [*own, *(one for one in extra if one not in own)]
