"""One object applied by server-side apply, with a field manager of our own.

Fields of others stay, and fields that we no longer set are removed. Fields of ours that somebody else changed are taken
back by force, as Kubernetes recommends for controllers.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from koordgate.kube.client import KubeClient
from koordgate.kube.errors import Conflict
from koordgate.kube.resource import Resource
from reporter.publish.identity import MANAGER

_TRIES: Final = 4


@dataclass(frozen=True, slots=True)
class Target:
    """Where something is applied."""

    resource: Resource
    subresource: str | None = None  # the subresource to write through; None for the object itself

    def __str__(self) -> str:
        return f"{self.resource.plural}/{self.subresource}" if self.subresource else self.resource.plural


async def apply(kube: KubeClient, target: Target, body: Mapping[str, Any]) -> dict[str, Any]:
    """Apply an object; after a conflict it is tried again immediately, a few times.

    Returns the object as it is now. Raises KubeError: the API server did not accept it.
    """
    path = target.resource.path(body["metadata"]["name"], subresource=target.subresource)
    for attempt in range(1, _TRIES + 1):
        try:
            return await kube.patch(path, body, "apply", field_manager=MANAGER, force=True)
        except Conflict:  # the API server gives up after repeated simultaneous writes of others
            if attempt == _TRIES:
                raise
    raise AssertionError("the last attempt returns or raises")
