"""How a stock kube-scheduler scores nodes for a Pod that asks for no devices (pure, in its own integers).

Its default plugins that distinguish nodes for such a Pod, with their weights: NodeResourcesFit (LeastAllocated, of CPU
and memory: 1), NodeResourcesBalancedAllocation (1) and TaintToleration (3). Pod affinity, preferred node affinity, the
spreading of the Pods of one owner, and images are left out. The source is Kubernetes, pkg/scheduler/framework/plugins.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from allocator.amounts import CPU
from console.simulator.scheduler import NodeCandidate
from webhook.view.nodeselection import PREFER_NO_SCHEDULE, tolerated

_MAX: Final = 100
_TAINTS_WEIGHT: Final = 3
_MEMORY: Final = "memory"
_UNSTATED: Final = {CPU: 100, _MEMORY: 200 * 2**20}  # what counts for a Pod that requests none: thousandths, bytes


def stock_scores(
    spec: Mapping[str, Any],
    asked: Mapping[str, int],
    nodes: Sequence[NodeCandidate],
    used: Mapping[str, Mapping[str, int]],
) -> dict[str, int]:
    """Score the nodes on which a Pod fits.

    Args:
        spec: of the Pod.
        asked: the sum of the Pod's requests.
        nodes: on which it fits, at least one.
        used: by node, the sum of the requests of its Pods.
    """
    wants = [asked.get(name) or least for name, least in _UNSTATED.items()]
    tolerations = spec.get("tolerations") or ()
    shunned = {node.name: _untolerated(node, tolerations) for node in nodes}
    most = max(shunned.values())
    scores = {}
    for node in nodes:
        on = used.get(node.name) or {}
        each = [
            (node.allocatable[name], on.get(name, 0) + want)
            for name, want in zip(_UNSTATED, wants, strict=True)
            if node.allocatable.get(name)
        ]
        taints = _MAX * (most - shunned[node.name]) // most if most else _MAX
        scores[node.name] = least_allocated(each) + balanced(each) + _TAINTS_WEIGHT * taints
    return scores


def least_allocated(each: Sequence[tuple[int, int]]) -> int:
    """The mean of what is left, from 0 to 100; of each resource its capacity and what is requested with the Pod."""
    left = [_MAX * max(total - requested, 0) // total for total, requested in each]
    return sum(left) // len(left) if left else 0


def balanced(each: Sequence[tuple[int, int]]) -> int:
    """100 less the standard deviation of the requested parts; of two, that is half of their difference."""
    if len(each) != len(_UNSTATED):
        return _MAX
    (one, used_one), (other, used_other) = ((total, min(requested, total)) for total, requested in each)
    return _MAX * (2 * one * other - abs(used_one * other - used_other * one)) // (2 * one * other)


def _untolerated(node: NodeCandidate, tolerations: object) -> int:
    return sum(taint.get("effect") == PREFER_NO_SCHEDULE and not tolerated(taint, tolerations) for taint in node.taints)
