"""How much CPU, memory and the like each node has left, as kube-scheduler counts it from Nodes and Pods.

kube-scheduler checks this itself when it binds Pods one by one. Only who holds room for several Pods at once must know
it before. It is kept for that case alone, because it needs an entry for every Pod in the cluster.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from allocator.amounts import CPU, PODS, BadQuantityError, amounts, pod_amounts
from allocator.vocabulary.holdings import InvariantError
from webhook.view.lean import same, same_text

Raw = Mapping[str, Any]
Requests = tuple[tuple[str, int], ...]
COUNTED: Final = (CPU, "ephemeral-storage", "memory", PODS)
_FINISHED: Final = frozenset({"Succeeded", "Failed"})


class NodeAmounts:
    """What nodes have, and what the Pods that are bound to them request.

    Args:
        kept: whether it is kept; otherwise every node has enough.
    """

    def __init__(self, *, kept: bool = False) -> None:
        self._kept = kept
        self._has: dict[str, Requests] = {}
        self._used: dict[str, dict[str, int]] = {}
        self._pods: dict[tuple[str, str], tuple[str, Requests]] = {}  # namespace and name -> node, requests

    def put_node(self, obj: Raw) -> None:
        """Take in a Node; amounts that cannot be read count as none."""
        if self._kept:
            status = obj.get("status") or {}
            try:  # the API server's own default of allocatable is capacity
                has = amounts(status.get("allocatable", status.get("capacity")), "status.allocatable")
            except BadQuantityError:
                has = {}
            self._has[obj["metadata"]["name"]] = same(_counted(has.items()))

    def drop_node(self, name: str) -> None:
        """Take in that a Node is gone."""
        self._has.pop(name, None)

    def put_pod(self, obj: Raw) -> None:
        """Take in a Pod; it counts while it is bound and not finished."""
        if not self._kept:
            return
        metadata, spec = obj["metadata"], obj.get("spec") or {}
        namespace, name = same_text(metadata.get("namespace", "")), metadata["name"]
        self.drop_pod(namespace, name)
        node = same_text(spec.get("nodeName") or "")
        if node and (obj.get("status") or {}).get("phase") not in _FINISHED:
            try:
                requests = _counted(pod_amounts(spec).items())
            except BadQuantityError:  # the API server stores no such Pod
                requests = ((PODS, 1),)
            self._pods[namespace, name] = node, same(requests)
            self._add(node, requests, 1)

    def drop_pod(self, namespace: str, name: str) -> None:
        """Take in that a Pod is gone."""
        known = self._pods.pop((namespace, name), None)
        if known is not None:
            self._add(*known, -1)

    def _add(self, node: str, requests: Requests, times: int) -> None:
        used = self._used.setdefault(node, dict.fromkeys(COUNTED, 0))
        for resource, amount in requests:
            used[resource] += times * amount
        if not used[PODS]:
            del self._used[node]

    def lacks(self, node: str, requests: Iterable[tuple[str, int]]) -> str:
        """Name a resource of which a node has too little left for these requests in sum; "" where it has enough."""
        if not self._kept:
            return ""
        has, used = dict(self._has.get(node, ())), self._used.get(node, {})
        asked = dict.fromkeys(COUNTED, 0)
        for name, amount in requests:
            if name in asked:
                asked[name] += amount
        short = (name for name in COUNTED if asked[name] and asked[name] > has.get(name, 0) - used.get(name, 0))
        return next(short, "")

    def check_invariants(self) -> None:
        """Compare the sums by node with the Pods.

        Raises:
            InvariantError: they disagree.
        """
        sums: dict[str, dict[str, int]] = {}
        for node, requests in self._pods.values():
            used = sums.setdefault(node, dict.fromkeys(COUNTED, 0))
            for resource, amount in requests:
                used[resource] += amount
        if sums != self._used:
            raise InvariantError(f"requests by node are {self._used}, not {sums}")


def _counted(requests: Iterable[tuple[str, int]]) -> Requests:
    return tuple(sorted((name, amount) for name, amount in requests if name in COUNTED))
