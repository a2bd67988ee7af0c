"""Watches a resource that a cluster may not serve: its CRD may be missing, or its API switched off."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from koordgate.kube.client import KubeClient
from koordgate.kube.errors import KubeError, NotFound
from koordgate.kube.resource import Resource
from koordgate.kube.watch import Handler, Happening, Reflector

_EVERY_S: Final = 60.0
_MAX_REPORTED: Final = 100  # different errors


class ServedWatch:
    """Keeps a handler in step with a resource while the API server serves one of its versions.

    Discovery answers which: one or two small requests a minute, and nothing else while none is served.
    `handler`: hears of the objects; a resource that is no longer served counts as empty. `on_error`: called with the
    resource or object, and an error; with each text only once until a success. `every`: seconds between two looks at
    what is served.
    """

    def __init__(
        self,
        kube: KubeClient,
        versions: Sequence[Resource],
        handler: Handler,
        *,
        count: Callable[[Happening], None] = lambda _: None,
        on_error: Callable[[str, Exception], None] = lambda _about, _error: None,
        every: float = _EVERY_S,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.served: Resource | None = None  # the version that is watched; None while there is none
        self._kube = kube
        self._versions = versions
        self._handler = handler
        self._count = count
        self._on_error = on_error
        self._every = every
        self._sleep = sleep
        self._reported: set[tuple[str, str]] = set()

    async def run(self) -> None:
        """Look and watch until cancelled."""
        watching: asyncio.Task[None] | None = None
        try:
            while True:
                served = await self._look()
                if served != self.served:
                    self.served = served
                    await _end(watching)
                    watching = self._begin(served)
                await self._sleep(self._every)
        finally:
            await _end(watching)

    def _begin(self, served: Resource | None) -> asyncio.Task[None] | None:
        if served is None:
            self._handler.begin_list()
            self._handler.end_list()
            return None
        reflector = Reflector(self._kube, served, self._handler, count=self._happened, on_error=self._report)
        return asyncio.get_running_loop().create_task(reflector.run())

    async def _look(self) -> Resource | None:
        """The first version that is served; as before where the API server does not say."""
        try:
            versions = await self._named(f"/apis/{self._versions[0].group}", "versions", "version")
            for resource in self._versions:
                if resource.version in versions:
                    path = f"/apis/{resource.group}/{resource.version}"
                    if resource.plural in await self._named(path, "resources", "name"):
                        return resource
        except KubeError as error:
            self._report(self._versions[0].group, error)
            return self.served
        return None

    async def _named(self, path: str, members: str, key: str) -> set[str]:
        """The names in a discovery document; none where there is no such document."""
        try:
            document = await self._kube.get(path)
        except NotFound:
            return set()
        return {str(member.get(key)) for member in document.get(members) or ()}

    def _happened(self, happening: Happening) -> None:
        if happening == "watch":
            self._reported.clear()
        self._count(happening)

    def _report(self, about: str, error: Exception) -> None:
        said = about, str(error)
        if said not in self._reported and len(self._reported) < _MAX_REPORTED:
            self._reported.add(said)
            self._on_error(about, error)


async def _end(task: asyncio.Task[None] | None) -> None:
    if task is not None:
        task.cancel()
        await asyncio.wait([task])
