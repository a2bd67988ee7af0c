"""The kubelet's PodResources service, asked over its socket: who has which devices and CPUs by its own word.

What HTTP/2 and protobuf take of memory is taken only where there is a socket.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Final

from reporter.kubelet.allocations import Allocations, by_uid, names
from reporter.kubelet.watched import FileReading
from reporter.pods import NodePod

DEADLINE_S: Final = 3.0  # the kubelet answers within milliseconds
PATIENCE_S: Final = 60.0  # how long a kubelet may be away before that is told: it is, whenever it is restarted
MOST_BYTES: Final = 2 * 2**20  # a node of 250 Pods answers some hundred kilobytes
_NOT_THERE: Final[FileReading[Allocations]] = FileReading(None, None)


class PodResourcesSocket:
    """The socket, asked anew each time.

    Without a socket nothing is told, and nothing is wrong: older kubelets and other folders have none. Where nobody
    serves it, what was told last is kept, and marked: the files, which are read anew, are newer.

    Args:
        path: of the socket; "" never asks.
        pause: seconds after a failure within which it is not asked again, so that a kubelet that hangs delays nothing
            more than once in that time.
        patience: seconds for which nobody may serve it before that is a problem. An answer that makes no sense is one
            at once.
        deadline: seconds for one answer.
        clock: monotonic seconds.
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
        """Ask; never raises for what the kubelet does, or for a socket that is missing.

        Args:
            pods: of the node, as they are known before it is asked.
        """
        if not self._path or not _exists(self._path):
            self._away_since = self._not_before = None
            return _NOT_THERE
        if self._not_before is not None and self._clock() < self._not_before:
            return self._reading
        self._reading = await self._ask(pods)
        return self._reading

    async def _ask(self, pods: Iterable[NodePod]) -> FileReading[Allocations]:
        from reporter.kubelet import podlist, unary  # noqa: PLC0415 they bring the libraries

        known = names(pods)
        try:
            data = await unary.call(self._path, podlist.METHOD, b"", most_bytes=MOST_BYTES, seconds=self._deadline)
            listed = podlist.parse(data)
        except unary.NotServedError as error:
            return self._kept(self._away(str(error)))
        except (unary.CallError, podlist.PodListError) as error:
            return self._kept(f"{self._path}: {error}; the kubelet's files count instead")
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
        return f"{self._path}: the kubelet does not serve it: {why}; see the kubelet's log; its files count instead"


def _exists(path: str) -> bool:
    """Whether something is there; what cannot be looked at is found out by the call."""
    try:
        Path(path).stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return True
