"""`koordgate cleanup`: removes what koordgate left in a cluster, in a safe order; what is gone already is no error.

The reporter applies its fields under a field manager of its own, so that the API server itself keeps who owns what
(Kubernetes, "Server-Side Apply"). Nothing is guessed from names.
"""

import argparse
import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from allocator.vocabulary.names import (
    DEFAULT_SCHEDULER,
    GANG_GATE,
    HEADROOM,
    KOORD_SCHEDULER,
    KUBERNETES_DOMAIN,
    ORIGINAL_REQUEST,
    REPORTER_MANAGER,
    is_quota_resource,
)
from console import terminal
from console.reading import add_cluster, connect
from console.terminal import printable, some
from koordgate.cli import Command
from koordgate.kube.client import KubeClient
from koordgate.kube.errors import KubeError, NotFound
from koordgate.kube.resource import (
    ADMISSION_POLICIES,
    DAEMON_SETS,
    DEFINITIONS,
    DEPLOYMENTS,
    DEVICE_TAINT_RULES,
    DEVICES,
    FLOW_SCHEMAS,
    LEASES,
    MUTATING_WEBHOOKS,
    NAMESPACES,
    NODE_ALLOCATIONS,
    NODES,
    PODS,
    POLICY_BINDINGS,
    PRIORITY_LEVELS,
    RESOURCE_QUOTAS,
    SECRETS,
    TOPOLOGIES,
    VALIDATING_WEBHOOKS,
    Resource,
)
from webhook.quotas.mirror import MIRROR_LABEL
from webhook.settings import Certificate

Raw = dict[str, Any]

_KEPT: Final = 3
_PAGE: Final = 250
_MAX_NAMED: Final = 5  # names in one sentence
_LOOK_S: Final = 1.0
_MAX_WAIT_S: Final = 120.0  # for our own Pods to end
_CALL_S: Final = 30.0
_DOMAIN: Final = "koordgate.io"
_RBAC: Final = "rbac.authorization.k8s.io"
_PART_OF: Final = "app.kubernetes.io/part-of"
_MANAGED_BY: Final = "app.kubernetes.io/managed-by"
_RELEASE: Final = "meta.helm.sh/release-name"
_AMOUNTS: Final = ("capacity", "allocatable")


class RemovedKind(NamedTuple):
    """Objects that are removed: those with a label, or with names in the release's namespace and an annotation."""

    resource: Resource
    selector: str = f"{_PART_OF}=koordgate"
    names: tuple[str, ...] = ()
    annotation: str = ""
    everywhere: bool = False


_MADE: Final = Certificate()
STOPPED: Final = (
    # What stops Pods while no replica lives, then what the API server refuses by itself, then what runs.
    *map(RemovedKind, (MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS, POLICY_BINDINGS, ADMISSION_POLICIES)),
    *map(RemovedKind, (DEPLOYMENTS, DAEMON_SETS)),
    RemovedKind(PODS, "app.kubernetes.io/name=koordgate-doctor"),  # Helm leaves what it made for `helm test`
)
"""What would do harm, in order; no Pod of ours may be left after it, because it would write again."""
REST: Final = (
    # What does not end with the namespace, and what Helm made for `helm test`.
    *map(RemovedKind, (FLOW_SCHEMAS, PRIORITY_LEVELS)),
    *(
        RemovedKind(Resource(_RBAC, "v1", plural, namespaced=not plural.startswith("cluster")), everywhere=True)
        for plural in ("rolebindings", "roles", "clusterrolebindings", "clusterroles")
    ),
    RemovedKind(Resource("", "v1", "serviceaccounts", namespaced=True)),
    RemovedKind(RESOURCE_QUOTAS, f"{MIRROR_LABEL}=true", everywhere=True),
    *(RemovedKind(rules, f"{_MANAGED_BY}=koordgate") for rules in DEVICE_TAINT_RULES),
    RemovedKind(SECRETS, names=(_MADE.secret, _MADE.extender_secret, _MADE.client_secret)),
    # cert-manager makes them of the chart's Certificates, and leaves them when these are deleted.
    RemovedKind(
        SECRETS, names=("koordgate-cert", "koord-scheduler-cert"), annotation="cert-manager.io/certificate-name"
    ),
    RemovedKind(LEASES, names=(KOORD_SCHEDULER,)),
)


class InstalledError(Exception):
    """koordgate is still installed by Helm, or in another namespace; the message says what to do."""


@dataclass(slots=True)
class Remover:
    """Removes what koordgate left; `tell` is called with each removal, in the order in which it happens.

    With `force`, amounts of Nodes are removed although Pods there request them. Afterwards, `kept` has sentences about
    what was not removed and will have to be, `notes` about what needs no removal, and `removed` is how many objects and
    Nodes were, or would be, changed.
    """

    kube: KubeClient
    namespace: str
    tell: Callable[[str], None]
    dry_run: bool
    force: bool = False
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    kept: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    removed: int = 0

    async def run(self) -> None:
        """Remove everything; run it again after an error, and it goes on where it was.

        Raises InstalledError: a Helm release, or one in another namespace, is installed, and this is no dry run;
        KubeError: the API server refused, or does not answer, and what comes later was not begun.
        """
        await self._installed()
        for part in STOPPED:
            await self._part(part)
        if not self.dry_run:
            await self._ended()
        for part in REST:
            await self._part(part)
        uses = await self._pods()
        async for namespace in self._list(NAMESPACES):
            with suppress(NotFound):  # it is gone by now
                await self._settings(namespace)
        async for node in self._list(NODES):
            with suppress(NotFound):
                await self._node(node, {} if self.force else uses.get(node["metadata"]["name"], {}))
        await self._objects()

    async def _installed(self) -> None:
        """See that nobody would restore what is removed here, or goes on to need it.

        A release that Helm knows is removed by Helm. One in another namespace still runs, and what belongs to no
        namespace is its own: the webhook configurations, the ledger, the amounts of Nodes. Raises InstalledError: there
        is one, and this is no dry run.
        """
        for resource in (DEPLOYMENTS, DAEMON_SETS):
            async for obj in self._list(resource, selector=f"{_PART_OF}=koordgate"):
                about = obj["metadata"]
                where, name = about["namespace"], (about.get("annotations") or {}).get(_RELEASE)
                if name:
                    told = f"Helm's release {name} is installed: first run helm uninstall {name} -n {where}"
                elif where != self.namespace:
                    told = (
                        f"koordgate runs in namespace {where} ({resource.plural} {about['name']}), not in "
                        f"{self.namespace}: name it with --installed-in {where} if it is to be removed"
                    )
                else:
                    continue
                if not self.dry_run:
                    raise InstalledError(told)
                self.notes.append(told)
                return

    async def _part(self, part: RemovedKind) -> None:
        namespace = self.namespace if part.resource.namespaced and not part.everywhere else None
        found: list[Raw] = []
        for name in part.names:
            try:
                found.append(await self.kube.get(part.resource.path(name, namespace)))
            except NotFound:
                continue
        if not part.names:
            found = [obj async for obj in self._list(part.resource, namespace, part.selector)]
        for obj in found:
            if not part.annotation or part.annotation in (obj["metadata"].get("annotations") or {}):
                await self._delete(part.resource, obj)

    async def _ended(self) -> None:
        """Wait until no Pod of our workloads is left.

        Raises KubeError: some are left after the time.
        """
        waited = 0.0
        while pods := [pod async for pod in self._list(PODS, self.namespace, f"{_PART_OF}=koordgate")]:
            if waited >= _MAX_WAIT_S:
                names = _some([pod["metadata"]["name"] for pod in pods])
                raise KubeError(
                    f"Pods of koordgate that run after {_MAX_WAIT_S:g} s ({len(pods)}): {names}; they would write "
                    "again. See why they do not end, and run the command again"
                )
            terminal.doing(f"waiting until Pods of koordgate have ended: {len(pods)} left")
            await self.sleep(_LOOK_S)
            waited += _LOOK_S

    async def _pods(self) -> dict[str, dict[str, list[str]]]:
        """Tell of the Pods that wait; return node -> resource that its kubelet must know -> Pods that request it."""
        waiting: list[str] = []
        uses: dict[str, dict[str, list[str]]] = {}
        async for pod in self._list(PODS):
            about, spec = pod["metadata"], pod.get("spec") or {}
            if (pod.get("status") or {}).get("phase") in {"Succeeded", "Failed"}:
                continue
            name, requested = f"{about['namespace']}/{about['name']}", _requested(spec)
            if node := spec.get("nodeName"):
                for resource in filter(_rejects, requested):
                    uses.setdefault(node, {}).setdefault(resource, []).append(name)
                continue
            gated = any(gate.get("name") == GANG_GATE for gate in spec.get("schedulingGates") or ())
            translated = any(_rejects(one) or is_quota_resource(one) for one in requested)
            translated = translated or ORIGINAL_REQUEST in (about.get("annotations") or {})
            if gated or (translated and spec.get("schedulerName", DEFAULT_SCHEDULER) != DEFAULT_SCHEDULER):
                waiting.append(name)
        if waiting:
            self.kept.append(
                f"Pods that wait for koordgate and are never placed ({len(waiting)}): {_some(waiting)}; "
                "delete them, and create them again in another product's names (koordgate translate)"
            )
        return uses

    async def _patch(self, path: str, operations: Sequence[Raw]) -> None:
        if operations and not self.dry_run:
            await self.kube.patch(path, list(operations), "json", deadline=_CALL_S)

    async def _settings(self, namespace: Raw) -> None:
        labels, annotations = _of_domain(namespace, "labels"), _of_domain(namespace, "annotations")
        name = namespace["metadata"]["name"]
        await self._patch(NAMESPACES.path(name), _metadata_removals(namespace, labels, annotations))
        if labels or annotations:
            self._told(f"Namespace {name}: {', '.join(_words(labels, annotations))}")

    async def _node(self, node: Raw, uses: Mapping[str, Sequence[str]]) -> None:
        """Remove the reporter's amounts and labels, koordgate's taint, and what is of its domain."""
        name, status = node["metadata"]["name"], node.get("status") or {}
        amounts = _owned(node, "status", _AMOUNTS, by_reporter=True)
        amounts &= {one for part in _AMOUNTS for one in status.get(part) or {}}
        needed = sorted(one for one in amounts if one in uses)
        gone = sorted(amounts.difference(needed))
        alone = _owned(node, "metadata", ("labels",), by_reporter=True)
        alone -= _owned(node, "metadata", ("labels",), by_reporter=False)
        labels = alone & (node["metadata"].get("labels") or {}).keys() | _of_domain(node, "labels")
        annotations = _of_domain(node, "annotations")
        taints = (node.get("spec") or {}).get("taints") or []
        others = [taint for taint in taints if taint.get("key") != HEADROOM]
        recorded = REPORTER_MANAGER in _managers(node) and not needed
        operations = _metadata_removals(node, labels, annotations)
        operations += [one for part in _AMOUNTS for one in _removals(node, "status", part, gone)]
        await self._patch(NODES.path(name, subresource="status"), operations)
        if others != taints:
            tested = {"op": "test", "path": "/spec/taints", "value": taints}
            await self._patch(NODES.path(name), [tested, {**tested, "op": "replace", "value": others}])
        if recorded:
            await self._disown(NODES, name, "Node", "status")
        if operations or recorded or others != taints:
            words = [*gone, *_words(labels, annotations), *([f"taint {HEADROOM}"] if others != taints else [])]
            self._told(f"Node {name}: {', '.join(words) or 'the record of the reporter as an owner'}")
        if needed:
            pods = sorted({pod for one in needed for pod in uses[one]})
            self.kept.append(
                f"Node {name} keeps {', '.join(needed)}: {_some(pods)} request it, and a "
                "kubelet that restarts would reject them; run the command again when they have ended, or with --force"
            )

    async def _objects(self) -> None:
        """The ledger is ours; objects of the other two kinds are removed as far as nobody else writes them."""
        for resource in (DEVICES, TOPOLOGIES, NODE_ALLOCATIONS):
            others = False
            async for obj in self._list(resource):
                about, who = obj["metadata"], _managers(obj)
                ours = (about.get("labels") or {}).get(_MANAGED_BY) == "koordgate" or who == {REPORTER_MANAGER}
                if ours or resource is NODE_ALLOCATIONS:
                    await self._delete(resource, obj)
                    continue
                others = True
                if REPORTER_MANAGER in who:
                    self._told(f"what is koordgate's in {resource.plural} {about['name']}")
                    await self._disown(resource, about["name"], obj["kind"])
            await self._definition(resource, others=others)

    async def _disown(self, resource: Resource, name: str, kind: str, subresource: str | None = None) -> None:
        """Apply nothing as the reporter: what only it owns goes, and it owns nothing any more."""
        bare = {"apiVersion": resource.api_version, "kind": kind, "metadata": {"name": name}}
        path = resource.path(name, subresource=subresource)
        if not self.dry_run:
            await self.kube.patch(path, bare, "apply", field_manager=REPORTER_MANAGER, force=True, deadline=_CALL_S)

    async def _definition(self, resource: Resource, *, others: bool) -> None:
        name = f"{resource.plural}.{resource.group}"
        try:
            found = await self.kube.get(DEFINITIONS.path(name))
        except NotFound:
            return
        if (found["metadata"].get("labels") or {}).get(_PART_OF) != "koordgate":
            self.notes.append(f"the definition {name} is another product's, and stays")
        elif others:
            self.notes.append(f"the definition {name} stays: others have objects of it")
        else:
            await self._delete(DEFINITIONS, found)

    async def _delete(self, resource: Resource, obj: Raw) -> None:
        name, namespace = obj["metadata"]["name"], obj["metadata"].get("namespace")
        if not self.dry_run:
            try:
                await self.kube.delete(resource.path(name, namespace), deadline=_CALL_S)
            except NotFound:
                return
        self._told(f"{resource.plural} {f'{namespace}/' if namespace else ''}{name}")

    def _told(self, what: str) -> None:
        self.removed += 1
        self.tell(what)

    async def _list(self, resource: Resource, namespace: str | None = None, selector: str = "") -> AsyncIterator[Raw]:
        params = {"labelSelector": selector} if selector else None
        path = resource.path(namespace=namespace)
        terminal.doing(f"looking at {resource.plural}")
        try:
            async for page, _ in self.kube.list_pages(path, limit=_PAGE, params=params, deadline=_CALL_S):
                for obj in page:
                    yield obj
        except NotFound:  # the API server does not serve it
            return


def _owned(obj: Mapping[str, Any], top: str, parts: Iterable[str], *, by_reporter: bool) -> set[str]:
    """The keys of some maps of an object that the reporter owns, or that others own, by the API server's record."""
    found: set[str] = set()
    for entry in obj["metadata"].get("managedFields") or ():
        if (entry.get("manager") == REPORTER_MANAGER) is by_reporter:
            for part in parts:
                fields = ((entry.get("fieldsV1") or {}).get(f"f:{top}") or {}).get(f"f:{part}") or {}
                found |= {key.removeprefix("f:") for key in fields if key.startswith("f:")}
    return found


def _managers(obj: Mapping[str, Any]) -> set[str]:
    return {str(one.get("manager", "")) for one in obj["metadata"].get("managedFields") or ()}


def _of_domain(obj: Mapping[str, Any], part: str) -> set[str]:
    """The labels or annotations of koordgate's domain, or of a domain below it."""
    domains = {key: key.partition("/")[0] for key in obj["metadata"].get(part) or {} if "/" in key}
    return {key for key, domain in domains.items() if domain == _DOMAIN or domain.endswith(f".{_DOMAIN}")}


def _metadata_removals(obj: Raw, labels: Iterable[str], annotations: Iterable[str]) -> list[Raw]:
    removed = (("labels", labels), ("annotations", annotations))
    return [one for part, keys in removed for one in _removals(obj, "metadata", part, sorted(keys))]


def _removals(obj: Mapping[str, Any], top: str, part: str, keys: Iterable[str]) -> list[Raw]:
    """The operations that remove keys of a map, each only as it was read."""
    there = (obj.get(top) or {}).get(part) or {}
    paths = ((key, f"/{top}/{part}/{key.replace('~', '~0').replace('/', '~1')}") for key in keys if key in there)
    tested = [{"op": "test", "path": path, "value": there[key]} for key, path in paths]
    return [op for one in tested for op in (one, {"op": "remove", "path": one["path"]})]


def _rejects(resource: str) -> bool:
    """Whether a kubelet rejects a Pod that requests a resource which its Node does not state.

    It drops extended resources from the request that the Node lacks (removeMissingExtendedResources). Resources of the
    domain kubernetes.io are no extended ones.
    """
    return f"{KUBERNETES_DOMAIN}/" in resource


def _requested(spec: Mapping[str, Any]) -> list[str]:
    every = (one for part in ("containers", "initContainers") for one in spec.get(part) or ())
    return sorted({name for one in every for name in (one.get("resources") or {}).get("requests") or {}})


def _some(names: Iterable[str]) -> str:
    return some(sorted(names), _MAX_NAMED)


def _words(labels: Iterable[str], annotations: Iterable[str]) -> list[str]:
    return [*(f"label {key}" for key in sorted(labels)), *(f"annotation {key}" for key in sorted(annotations))]


async def _main(arguments: argparse.Namespace) -> int:
    dry_run, word = not arguments.yes, "removed" if arguments.yes else "would remove"
    async with connect(arguments) as kube:
        remover = Remover(
            kube,
            arguments.installed_in,
            lambda what: terminal.show(printable(f"{word}  {what}")),
            dry_run,
            arguments.force,
        )
        await remover.run()
    for sentence in (*remover.notes, *remover.kept):
        terminal.show(printable(f"note: {sentence}"))
    if dry_run:
        terminal.show(f"dry run: {remover.removed} would be removed; nothing was; --yes removes it")
        return 0
    left = f"the notes above say what stays ({len(remover.kept)})" if remover.kept else "nothing of koordgate is left"
    terminal.show(f"{remover.removed} removed; {left}")
    return _KEPT if remover.kept else 0


def _run(arguments: argparse.Namespace) -> int:
    hint = "; what comes after it is not removed: run the command again"
    return terminal.guarded(arguments.called, lambda: asyncio.run(_main(arguments)), InstalledError, refused=hint)


def _arguments(parser: argparse.ArgumentParser) -> None:
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--dry-run", action="store_true", help="only list what would be removed (the default)")
    which.add_argument("--yes", action="store_true", help="remove it")
    parser.add_argument(
        "--force",
        action="store_true",
        help="also remove amounts from Nodes whose Pods request them: a kubelet that restarts rejects these Pods",
    )
    add_cluster(parser, settings=False)


COMMAND: Final = Command(
    description="Remove all that koordgate left in a cluster after helm uninstall.\n\n"
    "Webhook configurations and policies go first, so that nothing refuses Pods meanwhile, then workloads. What these "
    "made follows: Secrets, quota mirrors, taints for DRA, amounts, labels and taints of Nodes, labels of namespaces, "
    "the ledger, and the Device and NodeResourceTopology objects that nobody else writes. Pods are not touched. The "
    "command can be run again at any time, and goes on where it was. Without --yes it only lists what it would do.\n\n"
    "The exit status is 0 if nothing is left, 2 also while Helm's release is installed, and 3 if something stays "
    "because Pods need it; the notes say what. The user must be the cluster's administrator.",
    examples="examples:\n"
    "  koordgate cleanup\n"
    "  helm uninstall koordgate -n koordgate-system && koordgate cleanup --yes\n"
    "  koordgate cleanup --yes --installed-in gpus",
    arguments=_arguments,
    run=_run,
)
