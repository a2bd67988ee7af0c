"""The cluster as it would be if koordgate had placed the Pods of the namespaces that it observes."""

from collections.abc import Callable
from collections.abc import Set as AbstractSet
from dataclasses import replace

from allocator.vocabulary.node import NodeSnapshot
from webhook.view.cluster import ClusterView, Held, SeenObjects


class ShadowView(ClusterView):
    """The true view, without what the observed Pods hold in truth. Where they would be is the ranking's to add.

    `observed_on`: the UIDs of the observed Pods that are bound to a node in truth.
    """

    def __init__(self, seen: SeenObjects, held: Held, observed_on: Callable[[str], AbstractSet[str]]) -> None:
        super().__init__(seen, held)
        self._observed_on = observed_on

    def snapshot(self, node: str) -> NodeSnapshot:
        """A node as it would be without the observed Pods.

        A device that the kubelet allocated is free only if it is stated that observed Pods alone have it.
        """
        snapshot = super().snapshot(node)
        observed = self._observed_on(node)
        if not observed:
            return snapshot
        listed = self.nodes.devices(node)
        pods_of = listed.kubelet_pods if listed is not None else {}
        others = frozenset(one for one in snapshot.kubelet_held if not (pods := pods_of.get(one)) or pods - observed)
        return replace(snapshot.without(observed), kubelet_held=others)
