"""The cluster as a replica would see it, from objects that were read once."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from allocator.vocabulary.adopted import Product
from allocator.vocabulary.mode import Mode
from allocator.wire.foreignpods import Adoption
from console.adopt.objects import RUNTIME_CLASS, Cluster
from console.simulator.running import PodReader
from webhook.ledger.kube import record_or_error
from webhook.ledger.store import Record, UnreadableError
from webhook.settings import WebhookSettings, adoption_of, cpu_defaults, delivery_rules, types_of
from webhook.view.claimfeed import ClaimFeed, SliceFeed
from webhook.view.classes import pools_of
from webhook.view.cluster import ClusterView, SeenObjects
from webhook.view.feed import Complain, DeviceFeed, Listing, NodeFeed, PodFeed, RuntimeClassFeed, TopologyFeed
from webhook.view.namespaces import NamespaceFeed, NamespaceModes
from webhook.view.podinfo import PodInfo
from webhook.view.snapshots import Defaults

Raw = dict[str, Any]


class Records:
    """The ledger's records, to be read only (a `webhook.view.cluster.Held`)."""

    def __init__(self, records: Mapping[str, Record]) -> None:
        self._records = records

    def record(self, node: str) -> Record:
        """A node's record; one without holdings where there is none."""
        return self._records.get(node, Record(node))

    def nodes_of(self, uid: str) -> Sequence[str]:
        """The nodes on which a Pod holds something."""
        return [node for node, record in self._records.items() if uid in record.holdings]


class AdoptView:
    """A cluster that was read once, as a replica would see it.

    `adoption` says which Pods of other products count; by default those of all that are known. `problems` has for each
    node what could not be read of its objects.
    """

    def __init__(self, cluster: Cluster, adoption: Adoption | None = None) -> None:
        self.settings: WebhookSettings = cluster.settings
        self.problems: dict[str, list[str]] = {}
        found = [record_or_error(obj) for obj in cluster.objects("NodeAllocation")]
        self.records = Records({one.node: one for one in found if isinstance(one, Record)})
        exempt = (*self.settings.quota.exempt_namespaces, self.settings.identity.namespace)
        self.modes = NamespaceModes(self.settings.mode, exempt)
        types = types_of(self.settings)
        defaults = Defaults(self.settings.devices.order, cpu_defaults(self.settings), delivery_rules(self.settings))
        if adoption is None:  # what other products state is asked for, whichever of them the settings count
            adoption = replace(adoption_of(self.settings), peers=frozenset(Product))
        seen = SeenObjects(lambda: 0, defaults, drivers=self.settings.claimed, adoption=adoption)
        self.view = ClusterView(seen, self.records)
        pools = pools_of(self.settings)
        feeds: dict[str, Listing] = {
            "Namespace": NamespaceFeed(self.modes),
            RUNTIME_CLASS: RuntimeClassFeed(self.view),
            "Node": NodeFeed(self.view, types, pools, self._complain("Node")),
            "Device": DeviceFeed(self.view, types, self._complain("Device")),
            "NodeResourceTopology": TopologyFeed(self.view, self._complain("NodeResourceTopology")),
            "ResourceSlice": SliceFeed(self.view, self._complain("ResourceSlice")),
            "ResourceClaim": ClaimFeed(self.view),
            "Pod": PodFeed(self.view, _nothing, _nothing, types, PodReader()),
        }
        if not cluster.classes:  # it is not known which there are; the one that is configured is assumed
            assumed = self.settings.devices.runtime_class_name
            self.view.runtime_classes.put(assumed, assumed)
        for kind, feed in feeds.items():
            for obj in cluster.objects(kind):
                feed.put(obj)
        for one in found:
            if isinstance(one, UnreadableError):
                self.view.nodes.block(one.node, str(one))
                self._complain("NodeAllocation")(one.node, (str(one),))

    def mode(self, namespace: str) -> Mode:
        """The mode of a namespace."""
        return self.modes.of(namespace)

    def _complain(self, kind: str) -> Complain:
        def complain(name: str, problems: tuple[str, ...]) -> None:
            if problems:
                self.problems.setdefault(name, []).extend(f"{kind} {name}: {problem}" for problem in problems)

        return complain


def _nothing(_pod: PodInfo) -> None:
    """Nothing follows from the end or the bind of a Pod here."""
