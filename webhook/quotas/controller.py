"""Keeps the mirrors of quotas that name devices: one write brings one mirror up to date.

Every replica keeps all mirrors. A create fails if the mirror exists, and a write or a delete is bound to the revision
that was seen, so that replicas do not undo each other's work: whoever comes late sees what the other wrote.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Final

from allocator.quantity import QuantityError
from koordgate.backoff import Backoff
from koordgate.breaks import with_breaks
from koordgate.kube.client import KubeClient
from koordgate.kube.errors import AlreadyExists, Conflict, KubeError, NotFound
from koordgate.kube.resource import RESOURCE_QUOTAS
from webhook.quotas.mirror import (
    NOBODY,
    Listed,
    Quota,
    is_right,
    may_replace,
    mirror_body,
    mirror_name,
    mirrored,
    read_quota,
)
from webhook.quotas.table import Key, LimitTable
from webhook.quotas.unstated import Unstated

_LOG: Final = logging.getLogger(__name__)
_FIRST_RETRY_S: Final = 1.0
_MAX_RETRY_S: Final = 60.0
_DEADLINE_S: Final = 5.0
_GATHER_S: Final = 0.1  # after a change of a Pod
_OVERTAKEN: Final = (Conflict, NotFound)  # another replica was faster; the watch will tell
Complain = Callable[[str, tuple[str, ...]], None]


class QuotaController:
    """Keeps mirrors.

    `unstated`: what Pods hold without stating it. `skipped`: whether no Pod of a namespace is translated; quotas there
    count their Pods as ever. `complain`: called with a quota's namespace/name and why it has no right mirror; with
    nothing once it has.
    """

    def __init__(
        self,
        kube: KubeClient,
        table: LimitTable,
        unstated: Unstated,
        skipped: Callable[[str], bool],
        complain: Complain = lambda _name, _problems: None,
    ) -> None:
        # set once every quota that was listed first has a mirror, or its first write has failed
        self.settled = asyncio.Event()
        self._kube = kube
        self._table = table
        self._unstated = unstated
        self._skipped = skipped
        self._complain = complain
        self._due: dict[Key, None] = {}
        self._retries: dict[Key, Backoff] = {}
        self._woken = asyncio.Event()
        self._gathering: set[Key] = set()
        table.changed = self._changed
        unstated.changed = self._held

    def _changed(self, key: Key) -> None:
        """A quota or a mirror changed; a mirror that lost its label is still that of its original."""
        self._unstated.look(key[0])
        self._due[key] = None
        self._due.update(((key[0], name), None) for name in self._originals(key))
        self._woken.set()

    def _held(self, key: Key) -> None:
        """Pods hold more or less of a quota without stating it; of many at once the mirror tells in one write."""
        if key not in self._gathering:
            self._gathering.add(key)
            asyncio.get_running_loop().call_later(_GATHER_S, self._gathered, key)

    def _gathered(self, key: Key) -> None:
        self._gathering.discard(key)
        self._again(key)

    def switched(self, namespace: str) -> None:
        """Whether a namespace is skipped may have changed."""
        self._unstated.look(namespace)
        self._due.update(((namespace, name), None) for name in self._table.quotas(namespace))
        self._woken.set()

    async def run(self, *listed: asyncio.Event) -> None:
        """Keep all mirrors until cancelled.

        `listed`: set once quotas, and Pods, have been listed.
        """
        for one in listed:
            await one.wait()
        while True:
            self._woken.clear()
            while self._due:
                key = next(iter(self._due))
                del self._due[key]
                await self._tend(key)
            self.settled.set()
            await self._woken.wait()

    async def _tend(self, key: Key) -> None:
        """Bring the mirror of one quota up to date; a failure is reported, and tried again later."""
        try:
            problem = await self._mend(key)
            self._unstated.has_mirror(key, may=not problem)
        except _OVERTAKEN:
            problem = ""
        except (KubeError, QuantityError) as error:
            problem = f"its mirror {mirror_name(key[1])} cannot be written, so it may limit no new Pod: {error}"
        except Exception as error:  # noqa: BLE001 what one quota is like must not stop the replica
            _LOG.exception("quota %s/%s cannot be mirrored", *key)
            problem = f"its mirror {mirror_name(key[1])} cannot be written: {type(error).__name__}"
        if problem:
            self._later(key)  # of a quota that is gone as well: its mirror may have to be deleted
            self._complain("/".join(key), (problem,))
        else:
            self._retries.pop(key, None)
            self._complain("/".join(key), ())

    def _later(self, key: Key) -> None:
        backoff = self._retries.setdefault(key, Backoff(_FIRST_RETRY_S, _MAX_RETRY_S))
        asyncio.get_running_loop().call_later(backoff.failed(), self._again, key)

    def _again(self, key: Key) -> None:
        self._due[key] = None
        self._woken.set()

    async def _mend(self, key: Key) -> str:
        """Perform the one write that is needed; returns why none can be made, "" if all is well."""
        namespace, name = key
        if self._skipped(namespace):
            return ""
        await with_breaks(self._unstated.fill())
        if not self._unstated.is_full(namespace):
            self._held(key)  # its quotas changed a moment ago
            return ""
        quota = self._table.quota(key)
        if quota is not None and quota.mirror:
            if not self._originals(key):
                await self._delete(quota)
            return ""
        known = self._table.quota((namespace, mirror_name(name)))
        plan = None if quota is None else self._unstated.plan(quota, known)
        if plan is None and quota is not None:
            self._held(key)  # another replica has seen more: what it counted may be missing here
            return ""
        if quota is None or plan is None or not plan[0]:
            if known is not None and known.mirror:
                await self._delete(known)
            return ""
        return await self._write(quota, known, *plan)

    async def _write(self, quota: Quota, known: Quota | None, limits: Mapping[str, int], listed: Listed) -> str:
        """Write a mirror, if it is not right; `known` is what has its name now."""
        if known is None:
            return await self._create(quota, limits, listed)
        if not may_replace(known):
            return _taken(known.name)
        if known.scopes != quota.scopes:  # which cannot be changed
            await self._delete(known)
        elif not is_right(known, quota, limits) or known.listed.pods != listed.pods:
            path = RESOURCE_QUOTAS.path(known.name, known.namespace)
            await self._kube.replace(path, mirror_body(quota, limits, known, listed), deadline=_DEADLINE_S)
        return ""

    async def _create(self, quota: Quota, limits: Mapping[str, int], listed: Listed) -> str:
        body = mirror_body(quota, limits, None, listed)
        name, namespace = body["metadata"]["name"], quota.namespace
        try:
            await self._kube.create(RESOURCE_QUOTAS.path(namespace=namespace), body, deadline=_DEADLINE_S)
        except AlreadyExists:
            found = await self._kube.get(RESOURCE_QUOTAS.path(name, namespace), deadline=_DEADLINE_S)
            return _taken(name) if read_quota(found, self._table.within(namespace)) is None else ""
        _LOG.info("quota %s/%s has mirror %s: %s", namespace, quota.name, name, body["spec"]["hard"])
        return ""

    def _originals(self, key: Key) -> list[str]:
        """The quotas of which this may be the mirror: those of its namespace that name devices."""
        namespace, mirror = key
        types = self._table.within(namespace)
        return [
            name
            for name, quota in self._table.quotas(namespace).items()
            if mirror_name(name) == mirror
            and not quota.mirror
            and mirrored(quota, types, self._unstated.written, self._unstated.sums(quota, NOBODY))
        ]

    async def _delete(self, mirror: Quota) -> None:
        path = RESOURCE_QUOTAS.path(mirror.name, mirror.namespace)
        await self._kube.delete(path, revision=mirror.revision, deadline=_DEADLINE_S)


def _taken(name: str) -> str:
    return f"another quota has the name of its mirror, {name}, so it limits no new Pod; give that one another name"
