"""Records of the ledger that are empty, of Nodes that are gone: nobody else deletes them (`webhook.ledger.kube`)."""

import asyncio
import logging
import zlib
from collections.abc import Awaitable, Callable
from typing import Final

from koordgate.kube.errors import Forbidden, KubeError, TooManyRequests, Unauthorized, Unreachable
from webhook.ledger.ledger import Ledger
from webhook.view.nodes import NodeTable

_LOG: Final = logging.getLogger(__name__)
_PAUSE_S: Final = 0.05  # after each: 20 a second, one at a time, so that binds hardly wait for them
_DEADLINE_S: Final = 10.0
_GENERAL: Final = (Unreachable, TooManyRequests, Unauthorized, Forbidden)  # a failure of one node is a failure of all


class Discarder:
    """Deletes the records of Nodes that are gone, where nobody holds anything on them.

    Each replica visits them in an order of its own, the same every time, so that replicas share the work.
    """

    def __init__(
        self,
        nodes: NodeTable,
        ledger: Ledger,
        replica: str,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._nodes = nodes
        self._ledger = ledger
        self._replica = replica
        self._sleep = sleep

    async def run(self, every: float) -> None:
        """Discard every `every` seconds until cancelled; a failure is logged, and tried again in the next round."""
        while True:
            await self.discard()
            await self._sleep(every)

    async def discard(self) -> int:
        """Go through all records once; returns how many were deleted."""
        done = 0
        empty = [record.node for record in self._ledger.records() if not record.holdings]
        gone = [name for name in empty if self._nodes.facts(name) is None]
        for name in sorted(gone, key=lambda name: (zlib.crc32(f"{self._replica}/{name}".encode()), name)):
            if self._nodes.facts(name) is not None:
                continue
            try:
                done += await self._ledger.discard(name, _DEADLINE_S)
            except KubeError as error:
                _LOG.warning("the empty record of a node that is gone stays: %s", error, extra={"node": name})
                if isinstance(error, _GENERAL):
                    break
            await self._sleep(_PAUSE_S)
        return done
