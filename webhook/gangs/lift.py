"""Removes koordgate's scheduling gate from a Pod."""

from collections.abc import Awaitable, Callable
from typing import Any, Final

from allocator.vocabulary.names import GANG_GATE
from koordgate.kube.client import KubeClient
from koordgate.kube.errors import Invalid, NotFound
from koordgate.kube.resource import PODS
from webhook.view.podinfo import PodInfo

_DEADLINE_S: Final = 5.0


def kube_lift(kube: KubeClient) -> Callable[[PodInfo], Awaitable[None]]:
    """Make the function that removes the gate by a patch.

    The patch tests that the Pod is the same and that its first gate is ours, which it is if no other gate is left. A
    Pod that is gone, or has no such gate any more, is left alone.
    """

    async def lift(pod: PodInfo) -> None:
        operations: list[dict[str, Any]] = [
            {"op": "test", "path": "/metadata/uid", "value": pod.uid},
            {"op": "test", "path": "/spec/schedulingGates/0/name", "value": GANG_GATE},
            {"op": "remove", "path": "/spec/schedulingGates/0"},
        ]
        try:
            await kube.patch(PODS.path(pod.name, pod.namespace), operations, "json", deadline=_DEADLINE_S)
        except (Invalid, NotFound):
            return

    return lift
