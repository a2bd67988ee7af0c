"""Kubernetes Events about a Node and its Pods: one for each occurrence, counted up if it occurs again."""

import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from koordgate.kube.client import KubeClient
from koordgate.kube.errors import KubeError, NotFound, TooManyRequests, Unreachable
from koordgate.kube.resource import EVENTS
from reporter.gpu.entries import timestamp
from reporter.pods import NodeIdentity, NodePod

_LOG: Final = logging.getLogger(__name__)
_COMPONENT: Final = "koordgate-reporter"
_REMEMBERED: Final = 512
_MAX_MESSAGE: Final = 1024
_OF_NODES: Final = "default"  # the namespace in which Events about cluster-scoped objects are


@dataclass(frozen=True, slots=True)
class Occurrence:
    """Something that happened."""

    about: Mapping[str, str]  # reference to the object concerned
    reason: str  # one word
    message: str  # a sentence
    type: Literal["Normal", "Warning"] = "Warning"  # normal or Warning
    count: int = 1  # how often it happened at once


def about_node(node: NodeIdentity) -> dict[str, str]:
    """Refer to the Node."""
    return {"apiVersion": "v1", "kind": "Node", "name": node.name, "uid": node.uid}


def about_pod(pod: NodePod) -> dict[str, str]:
    """Refer to a Pod."""
    return {"apiVersion": "v1", "kind": "Pod", "namespace": pod.namespace, "name": pod.name, "uid": pod.uid}


class EventWriter:
    """Writes Events in order; those that cannot be written now wait, up to a bound, and are written later."""

    def __init__(self, kube: KubeClient, clock: Callable[[], float]) -> None:
        self._kube = kube
        self._clock = clock
        self._written: dict[tuple[str, str, str], tuple[str, int]] = {}  # what occurred -> name of the Event and count

        self._waiting: deque[Occurrence] = deque(maxlen=_REMEMBERED)  # the oldest are dropped if there are too many

    def note(self, occurrences: Iterable[Occurrence]) -> None:
        """Queue occurrences."""
        self._waiting.extend(occurrences)

    async def write(self) -> None:
        """Write the queued Events; they stay queued while the API server does not answer.

        An Event that the API server refuses permanently, or that cannot be encoded, is logged and dropped: it would
        block all others.
        """
        while self._waiting:
            one = self._waiting[0]
            try:
                await self._write(one)
            except (Unreachable, TooManyRequests) as error:
                _LOG.warning("Events wait: %s", error)
                return
            except KubeError as error:
                _LOG.warning("an Event could not be written: %s", error, extra={"event": one.reason})
            except TypeError as error:  # orjson refuses a value this way
                _LOG.warning("an Event cannot be written as JSON; dropped: %s", error, extra={"event": one.reason})
            if self._waiting and self._waiting[0] is one:  # newer ones may have pushed it out
                self._waiting.popleft()

    async def _write(self, one: Occurrence) -> None:
        """Create an Event, or count an existing one up."""
        key = (one.about["uid"], one.reason, one.message)
        space = one.about.get("namespace") or _OF_NODES
        known = self._written.get(key)
        if known is not None and await self._again(space, *known, one, key):
            return
        self._written.pop(key, None)
        self._written[key] = (await self._create(space, one), one.count)
        while len(self._written) > _REMEMBERED:
            del self._written[next(iter(self._written))]

    async def _again(self, space: str, name: str, count: int, one: Occurrence, key: tuple[str, str, str]) -> bool:
        count += one.count
        body = {"count": count, "lastTimestamp": timestamp(self._clock())}
        try:
            await self._kube.patch(EVENTS.path(name, namespace=space), body, "merge")
        except NotFound:  # an Event lives an hour
            return False
        self._written[key] = (name, count)
        return True

    async def _create(self, space: str, one: Occurrence) -> str:
        now = timestamp(self._clock())
        event: dict[str, Any] = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"generateName": f"{one.about['name'][:200]}.", "namespace": space},
            "involvedObject": dict(one.about),
            "type": one.type,
            "reason": one.reason,
            # A lone surrogate, for example from a hostile file, could not be encoded.
            "message": one.message.encode(errors="backslashreplace").decode()[:_MAX_MESSAGE],
            "source": {"component": _COMPONENT},
            "reportingComponent": _COMPONENT,
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": one.count,
        }
        made = await self._kube.create(EVENTS.path(namespace=space), event)
        return str(made["metadata"]["name"])
