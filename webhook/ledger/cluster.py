"""The store of a cluster's replicas and commands: the one line to change for another store."""

from koordgate.kube.client import KubeClient
from webhook.ledger.kube import KubeStore
from webhook.ledger.store import Store


def cluster_store(kube: KubeClient) -> Store:
    """Open the cluster's store."""
    return KubeStore(kube)
