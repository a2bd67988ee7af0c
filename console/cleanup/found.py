"""What koordgate left in objects of others: which fields are its own (pure).

The reporter applies its fields under a field manager of its own, so that the API server itself keeps who owns what
(Kubernetes, "Server-Side Apply"). Nothing is guessed from names.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from allocator.vocabulary.names import (
    DEFAULT_SCHEDULER,
    GANG_GATE,
    HEADROOM,
    KUBERNETES_DOMAIN,
    ORIGINAL_REQUEST,
    REPORTER_MANAGER,
    is_quota_resource,
)

Raw = dict[str, Any]

DOMAIN: Final = "koordgate.io"
_AMOUNTS: Final = ("capacity", "allocatable")


def in_our_domain(key: str) -> bool:
    """Return whether a label or annotation is of koordgate's domain, or of a domain below it."""
    domain, slash, _ = key.partition("/")
    return bool(slash) and (domain == DOMAIN or domain.endswith(f".{DOMAIN}"))


@dataclass(frozen=True, slots=True)
class OwnedFields:
    """Fields of one object that one manager owns.

    Attributes:
        labels: their keys.
        amounts: names of resources in the status.
    """

    labels: frozenset[str] = frozenset()
    amounts: frozenset[str] = frozenset()


def owned(obj: Mapping[str, Any], *, by_reporter: bool) -> OwnedFields:
    """Read what the reporter owns of an object, or what all others own."""
    labels: set[str] = set()
    amounts: set[str] = set()
    for entry in obj["metadata"].get("managedFields") or ():
        if (entry.get("manager") == REPORTER_MANAGER) is not by_reporter:
            continue
        fields = entry.get("fieldsV1") or {}
        labels |= _keys(fields, "f:metadata", "f:labels")
        for part in _AMOUNTS:
            amounts |= _keys(fields, "f:status", f"f:{part}")
    return OwnedFields(frozenset(labels), frozenset(amounts))


def _keys(fields: Mapping[str, Any], *path: str) -> set[str]:
    at: Any = fields
    for step in path:
        at = at.get(step) if isinstance(at, Mapping) else None
    return {key.removeprefix("f:") for key in at if key.startswith("f:")} if isinstance(at, Mapping) else set()


def managers(obj: Mapping[str, Any]) -> frozenset[str]:
    """Read who owns fields of an object."""
    return frozenset(str(one.get("manager", "")) for one in obj["metadata"].get("managedFields") or ())


@dataclass(frozen=True, slots=True)
class SettingsLeft:
    """What of koordgate's domain is on an object of others.

    Attributes:
        labels: their keys.
        annotations: their keys.
    """

    labels: tuple[str, ...] = ()
    annotations: tuple[str, ...] = ()

    def patch(self, obj: Mapping[str, Any]) -> list[Raw]:
        """Write the patch of the object that removes it."""
        labels = _removals(obj, ("metadata", "labels"), self.labels)
        return [*labels, *_removals(obj, ("metadata", "annotations"), self.annotations)]


def settings_on(obj: Mapping[str, Any]) -> SettingsLeft:
    """Find what of koordgate's domain is on an object, such as a namespace's mode."""
    about = obj["metadata"]
    labels, annotations = (
        tuple(sorted(filter(in_our_domain, about.get(part) or {}))) for part in ("labels", "annotations")
    )
    return SettingsLeft(labels, annotations)


def _removals(obj: Mapping[str, Any], at: tuple[str, str], keys: Sequence[str]) -> Iterator[Raw]:
    """The operations that remove keys of a map, each only as it was read."""
    top, part = at
    there = (obj.get(top) or {}).get(part) or {}
    for key in keys:
        if key in there:
            path = f"/{top}/{part}/{key.replace('~', '~0').replace('/', '~1')}"
            yield {"op": "test", "path": path, "value": there[key]}
            yield {"op": "remove", "path": path}


@dataclass(frozen=True, slots=True)
class NodeLeft:
    """What is left on a Node.

    Attributes:
        node: its name.
        amounts: names of resources of the reporter's in its status.
        labels: of the reporter's, and of koordgate's domain.
        annotations: of koordgate's domain.
        needed: amounts that stay: Pods there request them, and a kubelet that restarts would reject these Pods.
        pods: these Pods.
        recorded: the API server's record still names the reporter as an owner, and none of its amounts must stay.
        tainted: it has the taint of nodes that are short of CPU or memory for their free devices.
    """

    node: str
    amounts: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    annotations: tuple[str, ...] = ()
    needed: tuple[str, ...] = ()
    pods: tuple[str, ...] = ()
    recorded: bool = False
    tainted: bool = False

    @property
    def something(self) -> bool:
        """Whether there is anything to remove."""
        return bool(self.amounts or self.labels or self.annotations or self.recorded or self.tainted)

    def patch(self, obj: Mapping[str, Any]) -> list[Raw]:
        """Write the patch of the Node's status subresource that removes it."""
        settings = SettingsLeft(self.labels, self.annotations).patch(obj)
        return [*settings, *(one for part in _AMOUNTS for one in _removals(obj, ("status", part), self.amounts))]

    def untaint(self, obj: Mapping[str, Any]) -> list[Raw]:
        """Write the patch of the Node that removes the taint, and leaves those of others in their order."""
        taints = (obj.get("spec") or {}).get("taints") or []
        others = [taint for taint in taints if taint.get("key") != HEADROOM]
        if others == taints:
            return []
        path = "/spec/taints"
        return [{"op": "test", "path": path, "value": taints}, {"op": "replace", "path": path, "value": others}]


def left_on(node: Mapping[str, Any], uses: Mapping[str, Sequence[str]], *, keep_settings: bool) -> NodeLeft:
    """Find what is left on a Node.

    Args:
        node: the Node.
        uses: resource -> the Pods that run there and request it.
        keep_settings: whether labels and annotations of our domain that people wrote stay.
    """
    about, status = node["metadata"], node.get("status") or {}
    ours, others = owned(node, by_reporter=True), owned(node, by_reporter=False)
    there = {name for part in _AMOUNTS for name in status.get(part) or {}}
    amounts = ours.amounts & there
    needed = {name for name in amounts if name in uses and _rejects(name)}
    labels, annotations = about.get("labels") or {}, about.get("annotations") or {}
    gone = {key for key in labels if key in ours.labels - others.labels}
    noted = {key for key in annotations if in_our_domain(key)}
    if keep_settings:
        noted &= {f"{DOMAIN}/released"}
    else:
        gone |= {key for key in labels if in_our_domain(key)}
    pods = sorted({pod for name in needed for pod in uses[name]})
    return NodeLeft(
        about["name"],
        tuple(sorted(amounts - needed)),
        tuple(sorted(gone)),
        tuple(sorted(noted)),
        tuple(sorted(needed)),
        tuple(pods),
        REPORTER_MANAGER in managers(node) and not needed,
        any(taint.get("key") == HEADROOM for taint in (node.get("spec") or {}).get("taints") or ()),
    )


def _rejects(resource: str) -> bool:
    """Return whether a kubelet rejects a Pod that requests a resource which its Node does not state.

    It drops extended resources from the request that the Node lacks (removeMissingExtendedResources). Resources of the
    domain kubernetes.io are no extended ones.
    """
    return f"{KUBERNETES_DOMAIN}/" in resource


@dataclass(slots=True)
class PodsLeft:
    """Pods that koordgate has translated or holds back; Pods are added one by one, and only their names are kept.

    Attributes:
        running: how many run.
        waiting: those that wait for koord-scheduler or for their gang, by namespace and name.
        uses: node -> resource -> the Pods that are bound there, have not ended, and request it.
    """

    running: int = 0
    waiting: list[str] = field(default_factory=list)
    uses: dict[str, dict[str, list[str]]] = field(default_factory=dict)

    def add(self, pod: Mapping[str, Any]) -> None:
        """Take in a Pod."""
        about, spec = pod["metadata"], pod.get("spec") or {}
        if (pod.get("status") or {}).get("phase") in {"Succeeded", "Failed"}:
            return
        name, node = f"{about['namespace']}/{about['name']}", spec.get("nodeName") or ""
        requested = tuple(_requested(spec))
        of_ours = any(_rejects(resource) or is_quota_resource(resource) for resource in requested)
        translated = of_ours or ORIGINAL_REQUEST in (about.get("annotations") or {})
        if not node:
            gated = any(gate.get("name") == GANG_GATE for gate in spec.get("schedulingGates") or ())
            ours = translated and spec.get("schedulerName", DEFAULT_SCHEDULER) != DEFAULT_SCHEDULER
            self.waiting += [name] if gated or ours else []
            return
        self.running += translated
        for resource in requested:
            if _rejects(resource):
                self.uses.setdefault(node, {}).setdefault(resource, []).append(name)


def _requested(spec: Mapping[str, Any]) -> Iterator[str]:
    names: set[str] = set()
    for part in ("containers", "initContainers"):
        for container in spec.get(part) or ():
            names |= ((container.get("resources") or {}).get("requests") or {}).keys()
    return iter(sorted(names))
