"""Reads Pods from the API server itself, for when the view may be behind."""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from typing import Any, Final

from allocator.vocabulary.devicetype import DeviceTypes
from koordgate.kube.client import KubeClient
from koordgate.kube.errors import NotFound
from koordgate.kube.resource import PODS
from webhook.view.podinfo import OtherPod, PodInfo, read_either

_PAGE: Final = 500


class LivePods(ABC):
    """Reads a Pod from the API server itself."""

    @abstractmethod
    async def find(self, namespace: str, name: str, deadline: float) -> PodInfo | OtherPod | None:
        """Read a Pod: what is kept of it if it is ours, or of others'; None where there is no such Pod."""

    async def read(self, namespace: str, name: str, deadline: float) -> tuple[str, PodInfo | None] | None:
        """Read a Pod: its UID, and what is kept of it if it is ours; None where there is no such Pod."""
        found = await self.find(namespace, name, deadline)
        if found is None:
            return None
        return found.uid, found if isinstance(found, PodInfo) else None

    async def list(self, namespace: str) -> AsyncIterator[dict[str, Any]]:  # noqa: ARG002 offline there is no more
        """List the Pods of a namespace.

        Raises KubeError: the API server refuses, or cannot be reached.
        """
        for nothing in tuple[dict[str, Any], ...]():
            yield nothing


class KubeLivePods(LivePods):
    """Reads Pods by GET."""

    def __init__(self, kube: KubeClient, types: DeviceTypes) -> None:
        self._kube = kube
        self._types = types

    async def find(self, namespace: str, name: str, deadline: float) -> PodInfo | OtherPod | None:
        """Read a Pod, as `LivePods.find`."""
        try:
            path = PODS.path(name, namespace)
        except ValueError:
            return None  # no Pod can have such a name
        try:
            obj = await self._kube.get(path, deadline=deadline)
        except NotFound:
            return None
        return read_either(obj, self._types)

    async def list(self, namespace: str) -> AsyncIterator[dict[str, Any]]:
        """List the Pods of a namespace, page by page, as `LivePods.list`."""
        async for page, _ in self._kube.list_pages(PODS.path(namespace=namespace), limit=_PAGE):
            for obj in page:
                yield obj
