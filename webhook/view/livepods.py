"""Reads Pods from the API server itself, for when the view may be behind."""

from collections.abc import AsyncIterator
from typing import Any, Final, Protocol

from allocator.vocabulary.devicetype import DeviceTypes
from koordgate.kube.client import KubeClient
from koordgate.kube.errors import NotFound
from koordgate.kube.resource import PODS
from webhook.view.podinfo import PodInfo, read_pod_info

_PAGE: Final = 500


async def list_pods(kube: KubeClient, namespace: str) -> AsyncIterator[dict[str, Any]]:
    """List the Pods of a namespace, page by page.

    Raises:
        KubeError: the API server refuses, or cannot be reached.
    """
    async for page, _ in kube.list_pages(PODS.path(namespace=namespace), limit=_PAGE):
        for obj in page:
            yield obj


class KubeLivePods:
    """Reads Pods by GET.

    Args:
        kube: the open client.
        types: the device types that Pods may ask for.
    """

    def __init__(self, kube: KubeClient, types: DeviceTypes) -> None:
        self._kube = kube
        self._types = types

    async def read(self, namespace: str, name: str, deadline: float) -> tuple[str, PodInfo | None] | None:
        """Read a Pod: its UID, and what is kept of it if it is ours; None where there is no such Pod."""
        try:
            path = PODS.path(name, namespace)
        except ValueError:
            return None  # no Pod can have such a name
        try:
            obj = await self._kube.get(path, deadline=deadline)
        except NotFound:
            return None
        return obj["metadata"]["uid"], read_pod_info(obj, types=self._types)


class LivePods(Protocol):
    """Reads a Pod from the API server itself."""

    async def read(self, namespace: str, name: str, deadline: float) -> tuple[str, PodInfo | None] | None:
        """Read a Pod: its UID, and what is kept of it if it is ours; None where there is no such Pod."""
