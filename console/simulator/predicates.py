"""Which nodes a Pod fits on, and which of these is chosen: the imitated part of kube-scheduler (pure).

It considers spec.unschedulable, taints, nodeSelector, required node affinity and sums of resources. It ignores Pod
affinity, topology spread, volumes, host ports, priorities and preemption. Only the extender scores.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from allocator.amounts import CPU
from allocator.quantity import format_bytes
from console.simulator.resources import shortages
from webhook.view.nodeselection import UNSCHEDULABLE, may_land, tolerated

_CORDONED: Final = "the node is cordoned (spec.unschedulable)"
_TAINTED: Final = "the Pod does not tolerate the taint"
_UNSELECTED: Final = "the Pod's nodeSelector or required node affinity does not match the node's labels"
_UNREADY: Final = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
_HARD: Final = frozenset({"NoSchedule", "NoExecute"})
_MILLI: Final = 1000
_MOST_NAMED: Final = 16
_BYTES: Final = ("memory", "ephemeral-storage", "gpu-memory")


@dataclass(frozen=True, slots=True)
class NodeCandidate:
    """The part of a node that the predicates read.

    Attributes:
        name: the node's name.
        labels: the node's labels.
        taints: the node's taints.
        unschedulable: whether it is cordoned.
        allocatable: amounts by resource, in milli-CPUs, bytes and units.
    """

    name: str
    labels: Mapping[str, str]
    taints: Sequence[Mapping[str, Any]]
    unschedulable: bool
    allocatable: Mapping[str, int]


def candidate(node: Mapping[str, Any], allocatable: Mapping[str, int]) -> NodeCandidate:
    """Make a candidate from a Node object."""
    metadata, spec = node["metadata"], node.get("spec") or {}
    taints = tuple(spec.get("taints") or ())
    unschedulable = bool(spec.get("unschedulable"))
    return NodeCandidate(metadata["name"], metadata.get("labels") or {}, taints, unschedulable, allocatable)


def closed_to_some(node: NodeCandidate) -> bool:
    """Whether a node may refuse a Pod that has no node selection and for which it has enough."""
    return node.unschedulable or any(taint.get("effect") in _HARD for taint in node.taints)


def why_not(
    spec: Mapping[str, Any], asked: Mapping[str, int], node: NodeCandidate, used: Mapping[str, int]
) -> str | None:
    """Why a Pod does not fit on a node; None if it does.

    Args:
        spec: the Pod's spec.
        asked: the sum of the Pod's requests.
        node: the node.
        used: the sum of the requests of the node's Pods.
    """
    tolerations = spec.get("tolerations") or ()
    if node.unschedulable and not tolerated(UNSCHEDULABLE, tolerations):
        return _CORDONED
    for taint in node.taints:
        if taint.get("effect") in _HARD and not tolerated(taint, tolerations):
            value = f"={taint['value']}" if taint.get("value") else ""
            return f"{_TAINTED} {taint['key']}{value}:{taint['effect']}"
    if not may_land(spec, node.name, node.labels):
        return _UNSELECTED
    short = [
        f"{name}: {_told(name, amount)} requested, {_told(name, free)} of {_told(name, total)} free"
        if name in node.allocatable
        else f"{name}: {_told(name, amount)} requested, and the node states none in status.allocatable"
        for name, amount, free, total in shortages(asked, node.allocatable, used)
    ]
    return f"not enough {'; '.join(short)}" if short else None


def _told(name: str, amount: int) -> str:
    if name == CPU:
        whole, rest = divmod(amount, _MILLI)
        return f"{amount}m" if rest else str(whole)
    return format_bytes(amount) if name.rpartition("/")[2] in _BYTES else str(amount)


def unready(nodes: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Say which Nodes are not Ready and yet take Pods, because no taint says so; one sentence, or none.

    kube-scheduler looks at taints alone. The control plane adds them to a Node that is not Ready.
    """
    found = []
    for node in nodes:
        conditions = (node.get("status") or {}).get("conditions") or ()
        ready = next((one.get("status") for one in conditions if one.get("type") == "Ready"), "True")
        taints = (node.get("spec") or {}).get("taints") or ()
        if ready != "True" and not any(taint.get("key") in _UNREADY for taint in taints):
            found.append(node["metadata"]["name"])
    match sorted(found):
        case []:
            return
        case [one]:
            what = f"Node {one} is"
        case several:
            what = f"Nodes {_listed(several)} are"
    yield (
        f"{what} not Ready, without the taint {_UNREADY[0]}: counted as taking Pods, because kube-scheduler looks at "
        "taints alone; add the taint if that is wrong"
    )


def best(scores: Mapping[str, int], among: Callable[[Sequence[str]], str] = min) -> str:
    """Choose the node with the highest score.

    Args:
        scores: by node, at least one.
        among: chooses among the sorted names of nodes with equal scores; by default the first.
    """
    highest = max(scores.values())
    return among(sorted(name for name, score in scores.items() if score == highest))


def grouped(reasons: Mapping[str, str]) -> tuple[str, ...]:
    """Write reasons as lines; nodes with the same reason share one.

    Nodes that are not meant for the Pod come last: what the others lack says more than a control plane's taint.
    """
    nodes: dict[str, list[str]] = {}
    for node in sorted(reasons):
        nodes.setdefault(reasons[node].removeprefix(f"{node}: "), []).append(node)
    ordered = sorted(nodes.items(), key=lambda one: one[0].startswith((_CORDONED, _TAINTED, _UNSELECTED)))
    return tuple(f"{_listed(names)}: {reason}" for reason, names in ordered)


def _listed(names: Sequence[str]) -> str:
    """Of thousands of nodes with one reason some are named."""
    more = len(names) - _MOST_NAMED
    return f"{', '.join(names[:_MOST_NAMED])}{f' and {more} more nodes' if more > 0 else ''}"
