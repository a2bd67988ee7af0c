"""Asks the kubelet on its PodResources socket. HTTP/2 and protobuf, which take memory, are loaded only where it is."""

import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Final

from reporter.files import FileReading
from reporter.kubelet.podresources import Allocations, by_uid, names
from reporter.pods import NodePod

DEADLINE_S: Final = 3.0  # the kubelet answers within milliseconds
PATIENCE_S: Final = 60.0  # how long a kubelet may not answer before that is a problem: each restart takes a while
MAX_BYTES: Final = 2 * 2**20  # a node of 250 Pods answers some hundred kilobytes
_NOT_THERE: Final[FileReading[Allocations]] = FileReading(None, None)


class PodResourcesSocket:
    """The socket, called at each reading.

    A missing socket is no problem: older kubelets have none. If nobody serves the socket, the last answer is kept and
    marked as old, because the files, which are read each time, are newer.
    `path`: path of the socket; if "", it is never called. `pause`: seconds after a failure without another call: a
    kubelet that hangs then delays only one round in that time. `patience`: seconds that the socket may be unserved
    before that is a problem. A malformed answer is a problem immediately.
    """

    def __init__(
        self,
        path: str,
        *,
        pause: float = 0.0,
        patience: float = PATIENCE_S,
        deadline: float = DEADLINE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path = path
        self._pause = pause
        self._patience = patience
        self._deadline = deadline
        self._clock = clock
        self._reading = _NOT_THERE
        self._away_since: float | None = None
        self._not_before: float | None = None

    async def read(self, pods: Iterable[NodePod]) -> FileReading[Allocations]:
        """Call the kubelet; never raises because of the kubelet or a missing socket."""
        if not self._path or not _exists(self._path):
            self._away_since = self._not_before = None
            return _NOT_THERE
        if self._not_before is not None and self._clock() < self._not_before:
            return self._reading
        self._reading = await self._ask(pods)
        return self._reading

    async def _ask(self, pods: Iterable[NodePod]) -> FileReading[Allocations]:
        from reporter.kubelet import podlist  # noqa: PLC0415 they bring the libraries

        known = names(pods)
        try:
            data = await podlist.call(self._path, podlist.METHOD, b"", max_bytes=MAX_BYTES, seconds=self._deadline)
            listed = podlist.parse(data)
        except podlist.NotServedError as error:
            return self._kept(self._away(str(error)))
        except (podlist.CallError, podlist.PodListError) as error:
            return self._kept(f"{self._path}: {error}; the kubelet's files are used instead")
        self._away_since = self._not_before = None
        return FileReading(Allocations(by_uid(listed, known)), None)

    def _kept(self, problem: str | None) -> FileReading[Allocations]:
        self._not_before = self._clock() + self._pause
        value = self._reading.value
        return FileReading(replace(value, current=False) if value is not None else None, problem)

    def _away(self, why: str) -> str | None:
        now = self._clock()
        since = self._away_since = now if self._away_since is None else self._away_since
        if now - since < self._patience:
            return None
        return f"{self._path}: the kubelet does not serve it: {why}; see the kubelet's log; its files are used instead"


def _exists(path: str) -> bool:
    """Whether something exists there; True if that cannot be checked, so that the call shows the reason."""
    try:
        Path(path).stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return True
