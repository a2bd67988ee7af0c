"""The store of a cluster's replicas and commands: the one line to change for another store."""

from collections.abc import Callable

from koordgate.kube.client import KubeClient
from webhook.ledger.kube import KubeStore
from webhook.ledger.store import Store


def cluster_store(kube: KubeClient, node_uid: Callable[[str], str | None] = lambda _node: None) -> Store:
    """Open the cluster's store.

    Args:
        kube: the open client.
        node_uid: returns the UID of a node if it is known; needed to write.
    """
    return KubeStore(kube, node_uid)
