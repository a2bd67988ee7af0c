"""A replica's part in the health lease: it renews the Lease while it is ready."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Final

from koordgate.kube.client import KubeClient
from koordgate.kube.errors import AlreadyExists, KubeError, NotFound
from koordgate.kube.resource import LEASES
from webhook.lease import record
from webhook.settings import WebhookSettings

_LOG: Final = logging.getLogger(__name__)


class LeaseRenewal:
    """Renews the Lease. All replicas renew the same one, each by a merge, so that none waits for another.

    Args:
        kube: the open client.
        settings: of the process.
        holder: the name of this replica.
        clock: seconds since the epoch.
        sleep: waits for seconds.

    Attributes:
        problem: why the latest renewal failed; "" if it did not.
    """

    def __init__(
        self,
        kube: KubeClient,
        settings: WebhookSettings,
        holder: str,
        *,
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self.problem = ""
        self._kube = kube
        self._lease = settings.health_lease
        self._namespace = settings.identity.namespace
        self._holder = holder
        self._clock = clock
        self._sleep = sleep

    async def run(self, ready: Callable[[], bool]) -> None:
        """Renew until cancelled.

        Args:
            ready: whether the replica serves; while it does not, it is silent.
        """
        while True:
            if ready():
                await self.renew()
            await self._sleep(self._lease.renew_seconds)

    async def renew(self) -> None:
        """Renew once; a failure is logged when it begins and when it ends."""
        try:
            await self._write()
        except KubeError as error:
            if str(error) != self.problem:
                _LOG.warning("the health lease is not renewed: %s", error)
            self.problem = str(error)
        else:
            if self.problem:
                _LOG.info("the health lease is renewed again")
            self.problem = ""

    async def _write(self) -> None:
        lease, renewed = self._lease, record.renewal(self._holder, self._clock(), self._lease.renew_seconds)
        try:
            await self._kube.patch(LEASES.path(lease.name, self._namespace), renewed, "merge")
        except NotFound:
            try:
                made = record.first(lease.name, renewed)
                await self._kube.create(LEASES.path(namespace=self._namespace), made)
            except AlreadyExists:  # another replica was faster: somebody lives
                return
