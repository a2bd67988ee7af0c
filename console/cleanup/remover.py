"""Finds what koordgate left in a cluster, and removes it, phase by phase; what is gone already is no error."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from allocator.vocabulary.names import HEADROOM, REPORTER_MANAGER
from console.cleanup.found import NodeLeft, PodsLeft, SettingsLeft, left_on, managers, settings_on
from console.cleanup.parts import PHASES, RemovalPhase, RemovedKind
from koordgate.kube.client import KubeClient
from koordgate.kube.errors import Conflict, Invalid, KubeError, NotFound
from koordgate.kube.resource import (
    DAEMON_SETS,
    DEFINITIONS,
    DEPLOYMENTS,
    DEVICES,
    NAMESPACES,
    NODE_ALLOCATIONS,
    NODES,
    PODS,
    TOPOLOGIES,
    Resource,
)

Raw = dict[str, Any]
Tell = Callable[[str], None]

_PAGE: Final = 250
_TRIES: Final = 5
_NAMED: Final = 5  # names in one sentence
_LOOK_S: Final = 1.0
_CALL_S: Final = 30.0
_PART_OF: Final = "app.kubernetes.io/part-of"
_MANAGED_BY: Final = "app.kubernetes.io/managed-by"
_RELEASE: Final = "meta.helm.sh/release-name"


class InstalledError(Exception):
    """koordgate is still installed by Helm, or in another namespace; the message says what to do."""


@dataclass(slots=True)
class Left:
    """What stays, and why.

    Attributes:
        kept: sentences about what was not removed and will have to be.
        notes: sentences about what needs no removal.
        removed: how many objects and Nodes were, or would be, changed.
    """

    kept: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    removed: int = 0


class Remover:
    """Removes what koordgate left.

    Args:
        kube: the open client.
        namespace: the release's.
        tell: called with each removal, in the order in which it happens.
        dry_run: nothing is removed.
        timeout: seconds to wait for koordgate's own Pods to end.
        keep_settings: what people wrote on Nodes and namespaces in koordgate's domain stays.
        force: amounts of Nodes are removed although Pods there request them.
        sleep: waits.
    """

    def __init__(
        self,
        kube: KubeClient,
        namespace: str,
        tell: Tell,
        *,
        dry_run: bool,
        timeout: float,
        keep_settings: bool = False,
        force: bool = False,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._kube = kube
        self._namespace = namespace
        self._tell = tell
        self._dry = dry_run
        self._keep_settings = keep_settings
        self._force = force
        self._timeout = timeout
        self._sleep = sleep
        self._left = Left()

    async def run(self) -> Left:
        """Remove everything; run it again after an error, and it goes on where it was.

        Raises:
            InstalledError: a Helm release, or one in another namespace, is installed, and this is no dry run.
            KubeError: the API server refused, or does not answer; later phases were not begun.
        """
        await self._installed()
        for phase in PHASES:
            for part in phase.parts:
                await self._part(part)
            if phase.ends_pods and not self._dry:
                await self._ended(phase)
        found = PodsLeft()
        async for pod in self._list(PODS, None, ""):
            found.add(pod)
        self._about_pods(found)
        if not self._keep_settings:
            async for namespace in self._list(NAMESPACES, None, ""):
                with contextlib.suppress(NotFound):  # it is gone by now
                    await self._settings(namespace)
        await self._nodes(found)
        await self._objects()
        return self._left

    async def _installed(self) -> None:
        """See that nobody would restore what is removed here, or goes on to need it.

        A release that Helm knows is removed by Helm. One in another namespace still runs, and what belongs to no
        namespace is its own: the webhook configurations, the ledger, the amounts of Nodes.

        Raises:
            InstalledError: there is one, and this is no dry run.
        """
        for resource in (DEPLOYMENTS, DAEMON_SETS):
            async for obj in self._list(resource, None, f"{_PART_OF}=koordgate"):
                about = obj["metadata"]
                where, name = about["namespace"], (about.get("annotations") or {}).get(_RELEASE)
                if name:
                    told = f"Helm's release {name} is installed: first run helm uninstall {name} -n {where}"
                elif where != self._namespace:
                    told = (
                        f"koordgate runs in namespace {where} ({resource.plural} {about['name']}), not in "
                        f"{self._namespace}: name it with -n {where} if it is to be removed"
                    )
                else:
                    continue
                if not self._dry:
                    raise InstalledError(told)
                self._left.notes.append(told)
                return

    async def _part(self, part: RemovedKind) -> None:
        namespace = self._namespace if part.resource.namespaced else None
        if part.names:
            for name in part.names:
                if await self._there(part, name, namespace):
                    await self._delete(part.resource, name, namespace)
            return
        found = [obj async for obj in self._list(part.resource, None if part.everywhere else namespace, part.selector)]
        for obj in found:
            await self._delete(part.resource, obj["metadata"]["name"], obj["metadata"].get("namespace"))

    async def _ended(self, phase: RemovalPhase) -> None:
        """Wait until no Pod of our workloads is left.

        Raises:
            KubeError: some are left after the time.
        """
        waited = 0.0
        while True:
            pods = [pod async for pod in self._list(PODS, self._namespace, f"{_PART_OF}=koordgate")]
            if not pods:
                return
            if waited >= self._timeout:
                names = _some([pod["metadata"]["name"] for pod in pods])
                raise KubeError(
                    f"{phase.title}: {len(pods)} Pods still run after {self._timeout:g} s: {names}; they would write "
                    "again. See why they do not end, and run the command again"
                )
            await self._sleep(_LOOK_S)
            waited += _LOOK_S

    def _about_pods(self, found: PodsLeft) -> None:
        if found.running:
            self._left.notes.append(
                f"{found.running} Pods that koordgate translated go on running; their annotations end with them"
            )
        if found.waiting:
            self._left.kept.append(
                f"{len(found.waiting)} Pods wait for koordgate and are never placed: {_some(found.waiting)}; "
                "delete them, and create them again in another product's names (koordgate translate)"
            )

    async def _settings(self, namespace: Raw) -> None:
        """Remove what of our domain is on a namespace; it may change meanwhile, and is then read again.

        Raises:
            KubeError: the API server refuses, or the namespace is gone.
        """
        path = NAMESPACES.path(namespace["metadata"]["name"])
        for attempt in range(1, _TRIES + 1):
            left = settings_on(namespace)
            operations = left.patch(namespace)
            try:
                if operations and not self._dry:
                    await self._kube.patch(path, operations, "json", deadline=_CALL_S)
            except (Conflict, Invalid):
                if attempt == _TRIES:
                    raise
                namespace = await self._kube.get(path)
            else:
                if operations:
                    self._told(f"Namespace {namespace['metadata']['name']}: {', '.join(_about_settings(left))}")
                return

    async def _nodes(self, found: PodsLeft) -> None:
        async for node in self._list(NODES, None, ""):
            await self._node(node, {} if self._force else found.uses.get(node["metadata"]["name"], {}))

    async def _node(self, node: Raw, uses: Mapping[str, Sequence[str]]) -> None:
        left = left_on(node, uses, keep_settings=self._keep_settings)
        if left.something:
            try:
                left = await self._strip(node, uses, left)
            except NotFound:
                return
            self._told(_about_node(left))
        if left.needed:
            self._left.kept.append(
                f"Node {left.node} keeps {', '.join(left.needed)}: {_some(left.pods)} request it, and a "
                "kubelet that restarts would reject them; run the command again when they have ended, or with --force"
            )

    async def _strip(self, node: Raw, uses: Mapping[str, Sequence[str]], left: NodeLeft) -> NodeLeft:
        """Remove what is left on a Node; it may change meanwhile, and is then read again.

        Raises:
            KubeError: the API server refuses.
        """
        for attempt in range(1, _TRIES + 1):
            if self._dry or not left.something:
                return left
            path = NODES.path(left.node, subresource="status")
            try:
                if operations := left.patch(node):
                    await self._kube.patch(path, operations, "json", deadline=_CALL_S)
                if operations := left.untaint(node):
                    await self._kube.patch(NODES.path(left.node), operations, "json", deadline=_CALL_S)
                if left.recorded:
                    await self._disown(NODES, left.node, "Node", "status")
            except (Conflict, Invalid):
                if attempt == _TRIES:
                    raise
                node = await self._kube.get(NODES.path(left.node))
                left = left_on(node, uses, keep_settings=self._keep_settings)
            else:
                return left
        raise AssertionError("the last attempt returns or raises")

    async def _objects(self) -> None:
        """The ledger is ours; objects of the other two kinds are removed as far as nobody else writes them."""
        for resource in (DEVICES, TOPOLOGIES):
            others = False
            async for obj in self._list(resource, None, ""):
                others |= not await self._object(resource, obj)
            await self._definition(resource, others=others)
        async for obj in self._list(NODE_ALLOCATIONS, None, ""):
            await self._delete(NODE_ALLOCATIONS, obj["metadata"]["name"], None)
        await self._definition(NODE_ALLOCATIONS, others=False)

    async def _object(self, resource: Resource, obj: Raw) -> bool:
        """Remove an object, or what is ours in it; returns whether all of it was ours."""
        about, who = obj["metadata"], managers(obj)
        if (about.get("labels") or {}).get(_MANAGED_BY) == "koordgate" or who == {REPORTER_MANAGER}:
            await self._delete(resource, about["name"], None)
            return True
        if REPORTER_MANAGER in who:
            self._told(f"what is koordgate's in {resource.plural} {about['name']}")
            if not self._dry:
                await self._disown(resource, about["name"], obj["kind"])
        return False

    async def _disown(self, resource: Resource, name: str, kind: str, subresource: str | None = None) -> None:
        """Apply nothing as the reporter: what only it owns goes, and it owns nothing any more."""
        bare = {"apiVersion": resource.api_version, "kind": kind, "metadata": {"name": name}}
        path = resource.path(name, subresource=subresource)
        await self._kube.patch(path, bare, "apply", field_manager=REPORTER_MANAGER, force=True, deadline=_CALL_S)

    async def _definition(self, resource: Resource, *, others: bool) -> None:
        name = f"{resource.plural}.{resource.group}"
        try:
            found = await self._kube.get(DEFINITIONS.path(name))
        except NotFound:
            return
        if (found["metadata"].get("labels") or {}).get(_PART_OF) != "koordgate":
            self._left.notes.append(f"the definition {name} is another product's, and stays")
        elif others:
            self._left.notes.append(f"the definition {name} stays: others have objects of it")
        else:
            await self._delete(DEFINITIONS, name, None)

    async def _there(self, part: RemovedKind, name: str, namespace: str | None) -> bool:
        try:
            found = await self._kube.get(part.resource.path(name, namespace))
        except NotFound:
            return False
        return not part.annotation or part.annotation in (found["metadata"].get("annotations") or {})

    async def _delete(self, resource: Resource, name: str, namespace: str | None) -> None:
        where = f"{namespace}/{name}" if namespace else name
        if not self._dry:
            try:
                await self._kube.delete(resource.path(name, namespace), deadline=_CALL_S)
            except NotFound:
                return
        self._told(f"{resource.plural} {where}")

    def _told(self, what: str) -> None:
        self._left.removed += 1
        self._tell(what)

    async def _list(self, resource: Resource, namespace: str | None, selector: str) -> AsyncIterator[Raw]:
        params = {"labelSelector": selector} if selector else None
        path = resource.path(namespace=namespace)
        try:
            async for page, _ in self._kube.list_pages(path, limit=_PAGE, params=params, deadline=_CALL_S):
                for obj in page:
                    yield obj
        except NotFound:  # the API server does not serve it
            return


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"{', '.join(sorted(names)[:_NAMED])}{more}"


def _about_settings(left: NodeLeft | SettingsLeft) -> list[str]:
    return [*(f"label {key}" for key in left.labels), *(f"annotation {key}" for key in left.annotations)]


def _about_node(left: NodeLeft) -> str:
    parts = [
        *left.amounts,
        *_about_settings(left),
        *([f"taint {HEADROOM}"] if left.tainted else ()),
    ]
    return f"Node {left.node}: {', '.join(parts) or 'the record of the reporter as an owner'}"
