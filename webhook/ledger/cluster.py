"""Which store a cluster's replicas and commands use: the one line that another store changes."""

from collections.abc import Callable

from koordgate.kube.client import KubeClient
from webhook.ledger.kube import KubeStore
from webhook.ledger.store import Store


def cluster_store(kube: KubeClient, node_uid: Callable[[str], str | None] = lambda _node: None) -> Store:
    """Open the cluster's store.

    Args:
        kube: the open client.
        node_uid: the UID of a node, where it is known; needed to write.
    """
    return KubeStore(kube, node_uid)
