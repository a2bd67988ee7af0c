"""Objects applied, each only when it is not what it should be.

Server-side apply with a field manager of our own: what others own stays, what we stop to tell goes. Fields that we tell
and somebody else changed are taken back by force, as Kubernetes recommends for controllers; that is counted.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson

from koordgate.kube.client import KubeClient
from koordgate.kube.errors import Conflict, KubeError
from koordgate.kube.resource import Resource
from reporter.publish.compare import holds
from reporter.publish.identity import MANAGER
from reporter.publish.live import LiveObject

_LOG: Final = logging.getLogger(__name__)
_TRIES: Final = 4
_TYPE: Final = ("apiVersion", "kind")  # left out of the items of a list
_FIRST_PAUSE_S: Final = 1.0
_LONGEST_PAUSE_S: Final = 300.0


@dataclass(frozen=True, slots=True)
class Target:
    """Where something is applied.

    Attributes:
        resource: of the object.
        subresource: through which; the object itself where None.
    """

    resource: Resource
    subresource: str | None = None

    def __str__(self) -> str:
        return f"{self.resource.plural}/{self.subresource}" if self.subresource else self.resource.plural


class Applied:
    """One object, or one part of it, kept as it should be.

    Args:
        kube: the open client.
        target: where.
        live: how it stands.
        clock: monotonic, in seconds.
        wrote: told of each write that the API server took, and whether somebody else had changed it before.

    Attributes:
        problem: why the last write failed; "" where none did.
    """

    def __init__(
        self,
        kube: KubeClient,
        target: Target,
        live: LiveObject,
        clock: Callable[[], float],
        wrote: Callable[[Target, bool], None] = lambda _target, _taken_back: None,
    ) -> None:
        self._kube = kube
        self._target = target
        self._live = live
        self._clock = clock
        self._wrote = wrote
        self._last: bytes | None = None  # what was applied last; before the first, keys of an earlier run may stand
        self._failures = 0
        self._retry_at = 0.0
        self.problem = ""

    async def keep(self, body: Mapping[str, Any]) -> bool:
        """Apply, where the object is not so already and a failure is not too recent.

        Returns:
            Whether it stands as it should.
        """
        told = orjson.dumps(body, option=orjson.OPT_SORT_KEYS)
        stands = holds(self._live.obj, {key: value for key, value in body.items() if key not in _TYPE})
        if told == self._last and stands:
            return True
        if self._clock() < self._retry_at:
            return False
        taken_back = told == self._last and self._live.obj is not None
        try:
            answer = await self._apply(body)
        except KubeError as error:
            self._failed(error)
            return False
        self._last = told
        self._failures, self._retry_at, self.problem = 0, 0.0, ""
        self._live.take(answer)
        self._wrote(self._target, taken_back)
        return True

    async def _apply(self, body: Mapping[str, Any]) -> dict[str, Any]:
        path = self._target.resource.path(body["metadata"]["name"], subresource=self._target.subresource)
        for attempt in range(1, _TRIES + 1):
            try:
                return await self._kube.patch(path, body, "apply", field_manager=MANAGER, force=True)
            except Conflict:  # somebody writes at the same moment, again and again: the API server gave up
                if attempt == _TRIES:
                    raise
        raise AssertionError("the last attempt returns or raises")

    def _failed(self, error: KubeError) -> None:
        pause = min(_FIRST_PAUSE_S * 2.0**self._failures, _LONGEST_PAUSE_S)
        self._failures = min(self._failures + 1, 30)
        self._retry_at = self._clock() + pause
        problem = f"{self._target}: {error}"
        if problem != self.problem:
            _LOG.warning("not written, tried again in %.0f s: %s", pause, problem)
        self.problem = problem
