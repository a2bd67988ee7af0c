"""What is explained: a Pod, or what creates Pods, of which equal ones are explained once.

`deploy/web` names kinds as kubectl takes them. What has Pod templates and is not Kubernetes' own is named by its
resource and group: `rayclusters.ray.io/big`.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

import orjson

from console.cluster import Found, Raw, Reading
from console.devices.nodes import CommandError
from console.simulator import words
from console.simulator.documents import InputError
from console.simulator.manifests import must_have_pods, pods_in, refused, wrong_shape
from console.simulator.objects import InputObject, Objects
from console.simulator.workloads import Owners, created
from console.terminal import counted, some
from koordgate.kube.client import KubeClient
from koordgate.kube.errors import NotFound
from koordgate.kube.resource import Resource

_POD: Final = "Pod"
_KINDS: Final[Mapping[str, tuple[tuple[str, ...], Resource]]] = {
    "Deployment": (("deploy", "deployment"), Resource("apps", "v1", "deployments", namespaced=True)),
    "StatefulSet": (("sts", "statefulset"), Resource("apps", "v1", "statefulsets", namespaced=True)),
    "DaemonSet": (("ds", "daemonset"), Resource("apps", "v1", "daemonsets", namespaced=True)),
    "ReplicaSet": (("rs", "replicaset"), Resource("apps", "v1", "replicasets", namespaced=True)),
    "Job": (("job",), Resource("batch", "v1", "jobs", namespaced=True)),
    "CronJob": (("cj", "cronjob"), Resource("batch", "v1", "cronjobs", namespaced=True)),
    "ReplicationController": (
        ("rc", "replicationcontroller"),
        Resource("", "v1", "replicationcontrollers", namespaced=True),
    ),
}
_ALIASES: Final = {
    alias: kind
    for kind, (names, _) in {**_KINDS, _POD: (("po", "pod"), None)}.items()
    for name in names
    for alias in (name, f"{name}s")
}
"""As kubectl takes them, without a group; plurals too."""

_SHORT: Final = {kind: names[0] for kind, (names, _) in _KINDS.items()}
_GROUPED: Final = re.compile(r"([a-z0-9]+)\.([a-z0-9.-]+)")
_COPIES: Final = frozenset({"ControllerRevision"})  # a Pod template that is kept as a copy
_ENDED: Final = frozenset({"Succeeded", "Failed"})
_MAX_NAMED: Final = 8

Key = tuple[str, str, str]
"""Of an object: its kind, namespace and name."""


class Named(NamedTuple):
    """What the command line names: the kind ("" where it says none, or a namespace), the group, and the name."""

    kind: str
    group: str
    name: str
    namespace: str


@dataclass(frozen=True, slots=True)
class Target:
    """One Pod that is explained, for all that are like it."""

    pod: Raw
    of: str = ""  # what creates it, as `Deployment team/web`; "" for a Pod that is explained for itself
    waiting: int = 1  # Pods of it without a node, this one and those that are still to be created among them
    bound: int = 0  # Pods of it that have a node
    where: str = ""  # in the input, of a Pod that is still to be created; "" for one that is among the objects

    @property
    def several(self) -> bool:
        """Whether other Pods are like it."""
        return self.waiting > 1


def read_name(text: str, namespace: str) -> Named:
    """Read what the command line names: `NAME`, `NAMESPACE/NAME`, `KIND/NAME` or `RESOURCE.GROUP/NAME`."""
    before, _, name = text.rpartition("/")
    if not before or before.lower() in _ALIASES:
        return Named(_ALIASES.get(before.lower(), ""), "", name, namespace)
    grouped = _GROUPED.fullmatch(before.lower())
    if grouped is None:
        return Named("", "", name, before)
    kind, group = grouped.groups()
    return Named(_ALIASES.get(kind, kind), group, name, namespace)


async def read_object(kube: KubeClient, named: Named) -> list[Found]:
    """Read what creates Pods from the cluster; nothing where a Pod is named.

    Raises CommandError: there is none, or no such kind; KubeError: the API server refuses, or cannot be reached.
    """
    if named.kind in {"", _POD}:
        return []
    told = f"{_said(named)}/{named.name}"
    known = _KINDS.get(named.kind)
    kind, resource = (named.kind, known[1]) if known is not None else await _discovered(kube, named)
    try:
        obj = await kube.get(resource.path(named.name, named.namespace if resource.namespaced else None))
    except ValueError as error:
        raise CommandError(f"{told}: nothing can have that name: {error}") from error
    except NotFound as error:
        raise CommandError(f"there is no {told} in namespace {named.namespace}; name another one with -n") from error
    return [("the cluster", {"apiVersion": resource.api_version, **obj, "kind": kind}, kind)]


async def _discovered(kube: KubeClient, named: Named) -> tuple[str, Resource]:
    """Find a kind that is not Kubernetes' own, by its group."""
    try:
        group = await kube.get(f"/apis/{named.group}")
        version = str(group["preferredVersion"]["version"])
        listed = (await kube.get(f"/apis/{named.group}/{version}")).get("resources") or ()
    except NotFound as error:
        raise CommandError(f"{_said(named)}: the cluster has no API group {named.group}") from error
    for one in listed:
        names = {one["name"], one.get("singularName"), str(one["kind"]).lower(), *(one.get("shortNames") or ())}
        if named.kind in names and "/" not in one["name"]:
            return one["kind"], Resource(named.group, version, one["name"], namespaced=bool(one["namespaced"]))
    there = some(sorted(one["name"] for one in listed if "/" not in one["name"]), _MAX_NAMED)
    raise CommandError(f"{_said(named)}: group {named.group} has no such resource; it has {there}")


def _said(named: Named) -> str:
    return f"{named.kind}.{named.group}" if named.group else named.kind


def in_namespace(read: Reading, namespace: str) -> Reading:
    """Put Pods, and what creates Pods, into a namespace where they state none, as `kubectl apply` does."""

    def placed(obj: Raw, kind: str) -> Raw:
        metadata = obj.get("metadata")
        if not isinstance(metadata, dict) or metadata.get("namespace") or not _has_pods(obj, kind):
            return obj
        return {**obj, "metadata": {**metadata, "namespace": namespace}}

    return replace(read, objects=[(where, placed(obj, kind), kind) for where, obj, kind in read.objects])


def _has_pods(obj: Raw, kind: str) -> bool:
    return kind == _POD or (kind not in _COPIES and (must_have_pods(obj, kind) or bool(pods_in(obj, kind))))


def key_of(obj: Mapping[str, Any], kind: str) -> Key:
    """The kind, namespace and name of an object that was checked."""
    metadata = obj.get("metadata") or {}
    return kind, str(metadata.get("namespace") or "default"), str(metadata.get("name"))


def find(read: Reading, named: Named | None, applied: Collection[Key] | None = None) -> list[Target]:
    """Find what is to be explained; where nothing is named, all that wait, equal ones once, in the input's order.

    `applied`: only these objects are meant, as if they were created now, whatever of them exists; None for all.
    Raises CommandError: there is no such object, or nothing waits; InputError: an object is none that an API server
    would accept.
    """
    objects = _objects(read.objects, applied)
    if named is not None and named.kind in {"", _POD}:
        pod = _pod(objects, named)
        if pod is not None:
            return [Target(pod)]
    made = _made(objects, named)
    if named is None:
        made = [one for one in made if one.waiting]
        if not made:
            raise CommandError("no Pod of the input waits for a node; name the Pod that is to be explained")
        return made
    if made:
        return made
    raise CommandError(_unknown(objects, named))


def _objects(listed: Iterable[Found], applied: Collection[Key] | None) -> Objects:
    """What is a Pod, or creates Pods."""
    objects = Objects()
    for where, obj, kind in listed:
        if kind == "Node":
            objects.nodes.append(obj)
        elif applied is not None and key_of(obj, kind) not in applied:
            continue
        elif kind == _POD:
            objects.pods.append(obj)
            objects.sources.append(InputObject(where, kind, obj))
        elif _has_pods(obj, kind):
            wrong = wrong_shape(kind if must_have_pods(obj, kind) else "", obj) or refused(obj, kind)
            if wrong:
                raise InputError(f"{where}: {kind}: {wrong}; the API server would refuse it; correct it")
            objects.sources.append(InputObject(where, kind, obj))
    return objects


def _pod(objects: Objects, named: Named) -> Raw | None:
    return next((one for one in objects.pods if _key(one) == (named.namespace, named.name)), None)


def _key(obj: Mapping[str, Any]) -> tuple[str, str]:
    return key_of(obj, "")[1:]


def _made(objects: Objects, named: Named | None) -> list[Target]:
    """What creates Pods with its Pods, and Pods that nothing among the objects creates, if nothing is named."""
    owners = Owners(objects.sources)
    by_key = {_key(pod): pod for pod in objects.pods}
    chosen = [
        one
        for one in objects.sources
        if one.kind != _POD and (_means(one, named) if named is not None else not owners.left_to_others(one))
    ]
    missing: dict[str, list[Raw]] = {}
    for wanted in created(replace(objects, sources=_with_pods(objects, chosen))).pods:
        missing.setdefault(wanted.of, []).append(wanted.pod)
    found: list[Target] = []
    owned: set[tuple[str, str]] = set()
    for source in chosen:
        namespace, name = _key(source.object)
        of = f"{source.kind} {namespace}/{name}"
        there = [by_key[namespace, one.name] for one in owners.pods_of(source) if not one.finished]
        owned.update(map(_key, there))
        found += _of_one(of, source.where, there, missing.get(of, []), alike=must_have_pods(source.object, source.kind))
    if named is None:
        found += _loose([pod for pod in objects.pods if _key(pod) not in owned])
    return found


def _with_pods(objects: Objects, chosen: Sequence[InputObject]) -> list[InputObject]:
    return [*(one for one in objects.sources if one.kind == _POD), *chosen]


def _means(source: InputObject, named: Named) -> bool:
    group = str(source.object.get("apiVersion")).rpartition("/")[0]
    kinds = {source.kind, source.kind.lower(), f"{source.kind.lower()}s"}
    called = named.kind in kinds or (not named.kind and not named.group)
    return called and named.group in {"", group} and _key(source.object) == (named.namespace, named.name)


def _of_one(of: str, where: str, there: Sequence[Raw], missing: Sequence[Raw], *, alike: bool) -> Iterator[Target]:
    """The Pods of what creates them; of one that is not Kubernetes' own, those of each template apart."""
    groups: dict[bytes, tuple[list[Raw], list[Raw]]] = {}
    for at, pods in enumerate((there, missing)):
        for pod in pods:
            groups.setdefault(b"" if alike else _asks(pod), ([], []))[at].append(pod)
    for known, new in groups.values():
        bound = [pod for pod in known if pod["spec"].get("nodeName")]
        waiting = [pod for pod in known if not pod["spec"].get("nodeName")]
        first = next(iter([*waiting, *new, *bound]))
        new_at = where if not waiting and new else ""
        yield Target(first, of, len(waiting) + len(new), len(bound), new_at)


def _asks(pod: Mapping[str, Any]) -> bytes:
    return orjson.dumps(pod["spec"].get("containers"), option=orjson.OPT_NON_STR_KEYS)


def _loose(pods: Iterable[Raw]) -> Iterator[Target]:
    """Pods that wait and that nothing among the objects creates: those of one owner that ask for the same once."""
    groups: dict[object, list[Raw]] = {}
    for pod in pods:
        ended = (pod.get("status") or {}).get("phase") in _ENDED or pod["metadata"].get("deletionTimestamp") is not None
        if ended or pod["spec"].get("nodeName"):
            continue
        owner = words.owner_of(pod)
        groups.setdefault((_key(pod)[0], owner or _key(pod), _asks(pod)), []).append(pod)
    for alike in groups.values():
        owner = words.owner_of(alike[0])
        of = f"{owner[0]} {_key(alike[0])[0]}/{owner[1]}" if owner is not None and len(alike) > 1 else ""
        yield Target(alike[0], of, len(alike))


def _unknown(objects: Objects, named: Named) -> str:
    """Say that there is no such object, and what may have been meant."""
    kind, name, namespace = named.kind or _POD, named.name, named.namespace
    if kind != _POD:
        others = sorted({f"{one.kind} {'/'.join(_key(one.object))}" for one in objects.sources if one.kind != _POD})
        known = f"there are {some(others, _MAX_NAMED)}" if others else "nothing that creates Pods was read"
        return f"there is no {_said(named)}/{name} in namespace {namespace}; {known}"
    found = {_key(pod): pod for pod in objects.pods}
    elsewhere = sorted(space for space, own in found if own == name)
    if elsewhere:
        there = f"there is one in {', '.join(elsewhere[:_MAX_NAMED])}: name it with -n"
        return f"there is no Pod {name} in namespace {namespace}; {there}"
    own = [pod for (space, _), pod in found.items() if space == namespace]
    owners = {owner for pod in own if (owner := words.owner_of(pod)) is not None and owner[1] == name}
    alike = sorted(f"{_SHORT.get(one, one.lower())}/{name}" for one, _ in owners)
    alike += sorted(known for pod in own if name in (known := _key(pod)[1]) or known in name)
    there = f"did you mean {', '.join(alike[:_MAX_NAMED])}?" if alike else f"{counted(len(found), _POD)} read"
    return f"there is no Pod {name} in namespace {namespace}; {there}"
