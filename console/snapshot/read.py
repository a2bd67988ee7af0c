"""Reads what a snapshot keeps from an API server: page by page, with a bound, and nothing is written."""

import secrets
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any, Final

import msgspec
import yaml

from allocator.wire import gang, nodeallocation, nodetopology
from console.reading import CONFIG_KEY, RELEASE, are_webhooks_installed, installed_settings, listed
from console.snapshot.fields import shapes
from console.snapshot.keep import Raw, Shape, object_of
from console.snapshot.names import OPEN, Namer
from koordgate.kube.client import KubeClient
from koordgate.kube.errors import Forbidden, NotFound
from koordgate.kube.resource import (
    ALL_POD_GROUPS,
    DEVICES,
    DISRUPTION_BUDGETS,
    EVENTS,
    LIMIT_RANGES,
    MUTATING_WEBHOOKS,
    NAMESPACES,
    NODE_ALLOCATIONS,
    NODES,
    PODS,
    PRIORITY_CLASSES,
    RESOURCE_CLAIMS,
    RESOURCE_QUOTAS,
    RESOURCE_SLICES,
    RUNTIME_CLASSES,
    TOPOLOGIES,
    Resource,
)
from webhook import settings
from webhook.settings import WebhookSettings

Progress = Callable[[str, int], object]

ABOUT: Final = "koordgate-snapshot"  # a ConfigMap that only snapshots have: how they came about
_WEBHOOKS: Final = {
    "apiVersion": MUTATING_WEBHOOKS.api_version,
    "kind": "MutatingWebhookConfiguration",
    "metadata": {"name": RELEASE},
}
_HINT: Final = ": name the installation's namespace with --installed-in, or give them with --config"
_KINDS: Final[Sequence[tuple[Resource, str]]] = (
    (NAMESPACES, "Namespace"),
    (NODES, "Node"),
    (DEVICES, "Device"),
    (TOPOLOGIES, nodetopology.KIND),
    (NODE_ALLOCATIONS, nodeallocation.KIND),
    (RESOURCE_SLICES, "ResourceSlice"),
    (RESOURCE_CLAIMS, "ResourceClaim"),
    (PRIORITY_CLASSES, "PriorityClass"),
    (RUNTIME_CLASSES, "RuntimeClass"),
    (RESOURCE_QUOTAS, "ResourceQuota"),
    (LIMIT_RANGES, "LimitRange"),
    *((versions[0], gang.KIND) for versions in ALL_POD_GROUPS),
    (DISRUPTION_BUDGETS, "PodDisruptionBudget"),
    (PODS, "Pod"),
    (EVENTS, "Event"),
)
_OURS_ONLY: Final = {EVENTS: {"fieldSelector": "reportingComponent=koordgate"}}
_OURS: Final = (DEVICES, NODE_ALLOCATIONS)  # kinds that koordgate's chart defines
# The parts of the settings that decide who gets what; the others are certificates, addresses and logs.
_SETTINGS: Final = (
    *("adopt", "cpus", "devices", "dialects", "domain", "dra", "gangs", "guard", "headroom", "identity", "ledger"),
    *("limits", "mirror", "mode", "numa", "quota", "scheduler", "stateMemory"),
)
_SELECTORS: Final = frozenset({"selector", "nodeSelector"})  # in the settings
_NAMESPACES: Final = ("namespace", "namespaces", "require")  # endings of fields of the settings that name them


@dataclass(slots=True)
class SnapshotWanted:
    """What a snapshot is to have: objects of these namespaces, or of all; these settings, or the installation's."""

    installed_in: str
    namespaces: Sequence[str] = ()
    anonymize: bool = False
    configured: WebhookSettings | None = None
    needed: Collection[Resource] = (NODES, PODS)  # without which there is none
    only: Collection[str] | None = None  # kinds; None for all that are known


@dataclass(slots=True)
class Taken:
    """A snapshot: the objects by kind, then by namespace and name; what was left out; and how many are of each kind."""

    items: list[Raw] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    listed: set[str] = field(default_factory=set)  # kinds of which all objects were read
    installed: bool | None = None  # whether koordgate's webhooks are there; None if that is not known


async def take(kube: KubeClient, wanted: SnapshotWanted, taken_at: str) -> Taken:
    """Read a cluster.

    Raises KubeError: the API server refuses what is needed, or cannot be reached.
    """
    taken = Taken()
    server = await _version(kube)
    stated, problem = await installed_settings(kube, wanted.installed_in, wanted.configured)
    taken.notes += [f"{problem}{_HINT}"] if problem else []
    names = await _namer(kube, taken.notes) if wanted.anonymize else OPEN
    known = shapes(settings.types_of(stated or WebhookSettings()))
    found: list[Raw] = []
    for resource, kind in _KINDS:
        if (names.hides and resource is EVENTS) or (wanted.only is not None and kind not in wanted.only):
            continue  # messages of Events name objects
        places = tuple(dict.fromkeys(wanted.namespaces)) if resource.namespaced and wanted.namespaces else (None,)
        read = await listed(
            kube,
            resource,
            _keeper(resource, kind, known[kind], names),
            namespaces=places,
            params=_OURS_ONLY.get(resource),
        )
        kept = sorted(read.noted(taken.notes, needed=resource in wanted.needed), key=_order)
        if read.absent and resource in _OURS:
            taken.notes.append(f"the cluster has no {resource.plural}.{resource.group}: install koordgate's chart")
        if not (read.absent or read.error or read.cut):
            taken.listed.add(kind)
        taken.counts[resource.plural] = taken.counts.get(resource.plural, 0) + len(kept)
        found += kept
    taken.installed = await are_webhooks_installed(kube, taken.notes)
    webhooks = [_WEBHOOKS] if taken.installed else []
    about = {"takenAt": taken_at, "kubernetes": server, "koordgate": version("koordgate")}
    if wanted.namespaces:
        about["namespaces"] = ", ".join(map(names.name, wanted.namespaces))
    home = names.name(wanted.installed_in)
    head = [_config_map(ABOUT, home, about)]
    if stated is not None:
        text = settings_text(stated, names, {home, *_called(found)})
        head.append(_config_map(RELEASE, home, {CONFIG_KEY: text}))
    if taken.notes:
        about["leftOut"] = "\n".join(taken.notes) if not names.hides else f"{len(taken.notes)} things"
    taken.items = [*head, *webhooks, *found]
    return taken


def _keeper(resource: Resource, kind: str, shape: Shape, names: Namer) -> Callable[[Raw], Raw]:
    return lambda obj: {"apiVersion": resource.api_version, "kind": kind, **object_of(shape, obj, names)}


def _called(found: Iterable[Raw]) -> set[str]:
    """The names of nodes and namespaces, as far as objects tell."""
    nodes = {obj["metadata"]["name"] for obj in found if obj["kind"] in {"Namespace", "Node"}}
    return nodes | {obj["metadata"]["namespace"] for obj in found if "namespace" in obj["metadata"]}


def _order(obj: Raw) -> tuple[str, str]:
    metadata = obj.get("metadata") or {}
    return str(metadata.get("namespace", "")), str(metadata.get("name", ""))


async def _version(kube: KubeClient) -> str:
    """The API server's version; "" if it does not tell."""
    try:
        return str((await kube.get("/version")).get("gitVersion", ""))
    except (NotFound, Forbidden):
        return ""


async def _namer(kube: KubeClient, notes: list[str]) -> Namer:
    """Replaces names alike in all snapshots of a cluster; its key is in none of them."""
    try:
        uid = str((await kube.get(NAMESPACES.path("kube-system")))["metadata"]["uid"])
    except (Forbidden, NotFound):
        notes.append("names are replaced by others than in the next snapshot: Namespace kube-system cannot be read")
        return Namer(secrets.token_bytes(32))
    return Namer(uid.encode())


def settings_text(stated: WebhookSettings, names: Namer = OPEN, called: Iterable[str] = ()) -> str:
    """Write settings as YAML, without certificates and addresses; `called` are names of nodes and namespaces."""
    whole = msgspec.to_builtins(stated)
    known = frozenset(called)

    def renamed(part: Any) -> Any:
        if isinstance(part, dict):
            return {word(key): of_key(key, value) for key, value in part.items()}
        if isinstance(part, list | tuple):
            return [renamed(one) for one in part]
        return word(part) if isinstance(part, str) else part

    def of_key(key: str, value: Any) -> Any:
        if key in _SELECTORS and isinstance(value, dict):
            return {names.key(one): names.value(one, of) for one, of in value.items()}
        return named(value) if key.lower().endswith(_NAMESPACES) else renamed(value)

    def named(part: Any) -> Any:
        """Namespaces: one, several, or what is stated of each."""
        if isinstance(part, dict):
            return {names.name(key): renamed(value) for key, value in part.items()}
        return names.name(part) if isinstance(part, str) else [names.name(one) for one in part]

    def word(text: str) -> str:
        """Replace what is called so, also within the name of a ServiceAccount."""
        return ":".join(names.name(one) if names.name(one) in known else one for one in text.split(":"))

    kept = {key: renamed(whole[key]) for key in _SETTINGS}
    return yaml.safe_dump(kept, sort_keys=True, allow_unicode=True)


def _config_map(name: str, namespace: str, data: dict[str, str]) -> Raw:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": namespace}, "data": data}
