"""The Pods that controllers create: their names, numbers, owners and order.

What runs already counts: of a Deployment with three replicas of which two are in the input, one is created. Names that
controllers generate end in letters that follow from the owner's name, so that a run repeats itself.

The source is Kubernetes, pkg/controller/daemon: NodeShouldRunDaemonPod, util.AddOrUpdateDaemonPodTolerations and
ReplaceDaemonSetPodNodeNameNodeAffinity.

A template is found by its `spec.containers`. How many Pods there are of it is the product of the numbers that stand on
the way to it: `replicas`, and of a Job's template the Pods that run at once.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final, NamedTuple

from console.simulator import apiserver
from console.simulator.apiserver import copied
from console.simulator.documents import InputError
from console.simulator.manifests import Way, must_have_pods, place_of, pods_in, wrong_shape
from console.simulator.objects import InputObject, Objects, generated_name, suffix
from console.terminal import counted
from webhook.view.nodeselection import may_land, tolerated

Raw = dict[str, Any]
_FINISHED: Final = ("Succeeded", "Failed")
_INDEX: Final = "batch.kubernetes.io/job-completion-index"
_DEEPEST: Final = 8  # owners of owners


class OwnedPod(NamedTuple):
    """A Pod of the input that an object of the input has created.

    Attributes:
        name: of the Pod.
        node: where it is bound; "" while it is not.
        finished: it has ended.
        labels: of the Pod.
        completion: its index in an indexed Job; -1 for none.
    """

    name: str
    node: str
    finished: bool
    labels: Mapping[str, str]
    completion: int


class Owners:
    """The objects of the input by what they created.

    Args:
        sources: all Pods, and objects that create Pods.
    """

    def __init__(self, sources: Iterable[InputObject]) -> None:
        self._by_uid: dict[str, int] = {}
        self._by_name: dict[tuple[str, str, str], int] = {}
        self._sources = list(sources)
        self._at = {id(source.object): index for index, source in enumerate(self._sources)}
        for index, source in enumerate(self._sources):
            metadata = source.object["metadata"]
            if source.kind != "Pod":
                self._by_name[source.kind, _namespace(source.object), metadata["name"]] = index
                if metadata.get("uid"):
                    self._by_uid[metadata["uid"]] = index
        self._pods: dict[int, list[OwnedPod]] = {}
        self._has_children: set[int] = set()
        for source in self._sources:
            above = list(islice(self._above(source.object), _DEEPEST))
            if source.kind == "Pod":
                for owner in above:  # a Pod of a ReplicaSet is one of its Deployment too, and so on
                    self._pods.setdefault(owner, []).append(_standing(source.object))
            else:
                self._has_children.update(above)

    def pods_of(self, source: InputObject) -> Sequence[OwnedPod]:
        """The Pods in the input that an object has created, directly or by others."""
        return self._pods.get(self._at[id(source.object)], ())

    def left_to_others(self, source: InputObject) -> bool:
        """Whether an object's Pods are those of another object of the input.

        A ReplicaSet's are its Deployment's. An object of a kind that is not Kubernetes' own creates its Pods by the
        workloads that it owns, where these are in the input.
        """
        if must_have_pods(source.object, source.kind):
            owner = self._owner(source.object)
            return owner is not None and self._sources[owner].kind == "Deployment"
        return self._at[id(source.object)] in self._has_children

    def _above(self, obj: Mapping[str, Any]) -> Iterator[int]:
        """The owner of an object, the owner of that, and so on."""
        owner = self._owner(obj)
        while owner is not None:
            yield owner
            owner = self._owner(self._sources[owner].object)

    def _owner(self, obj: Mapping[str, Any]) -> int | None:
        references = obj["metadata"].get("ownerReferences") or ()
        found = next((one for one in references if one.get("controller")), None)
        if found is None:
            return None
        namespace = _namespace(obj)
        known = self._by_uid.get(found.get("uid") or "")
        if known is None:
            known = self._by_name.get((found["kind"], namespace, found["name"]))
        if known is None and found["kind"] == "ReplicaSet":
            # The output of `kubectl get deployments,pods` lacks the ReplicaSets between both.
            digest = (obj["metadata"].get("labels") or {}).get("pod-template-hash")
            known = self._by_name.get(("Deployment", namespace, found["name"].removesuffix(f"-{digest}")))
        return known


def _standing(pod: Mapping[str, Any]) -> OwnedPod:
    metadata = pod["metadata"]
    index = str((metadata.get("annotations") or {}).get(_INDEX, ""))
    finished = (pod.get("status") or {}).get("phase") in _FINISHED or metadata.get("deletionTimestamp") is not None
    return OwnedPod(
        metadata["name"],
        pod["spec"].get("nodeName") or "",
        finished,
        metadata.get("labels") or {},
        int(index[:9]) if index.isdecimal() else -1,
    )


def _namespace(obj: Mapping[str, Any]) -> str:
    return str(obj["metadata"].get("namespace") or "default")


_HARD: Final = frozenset({"NoSchedule", "NoExecute"})
_ADDED: Final = (
    ("node.kubernetes.io/not-ready", "NoExecute"),
    ("node.kubernetes.io/unreachable", "NoExecute"),
    ("node.kubernetes.io/disk-pressure", "NoSchedule"),
    ("node.kubernetes.io/memory-pressure", "NoSchedule"),
    ("node.kubernetes.io/pid-pressure", "NoSchedule"),
    ("node.kubernetes.io/unschedulable", "NoSchedule"),
)
_OF_HOST_NETWORK: Final = ("node.kubernetes.io/network-unavailable", "NoSchedule")
_KIND: Final = "DaemonSet"
_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"


def nodes_of_daemon(spec: Mapping[str, Any], nodes: Sequence[Mapping[str, Any]]) -> list[str]:
    """The names, sorted, of the Nodes on which a Pod of this spec is created."""
    tolerations = _tolerations(spec)
    found = []
    for node in nodes:
        name, labels = node["metadata"]["name"], node["metadata"].get("labels") or {}
        taints = (node.get("spec") or {}).get("taints") or ()
        hard = (taint for taint in taints if taint.get("effect") in _HARD)
        if may_land(spec, name, labels) and all(tolerated(taint, tolerations) for taint in hard):
            found.append(name)
    return sorted(found)


def daemon_pod(template: Mapping[str, Any], node: str) -> Raw:
    """The Pod for one Node."""
    pod = copied(template)
    spec = pod["spec"]
    spec["tolerations"] = _tolerations(spec)
    field = {"key": "metadata.name", "operator": "In", "values": [node]}
    terms = {"nodeSelectorTerms": [{"matchFields": [field]}]}
    affinity = dict(spec.get("affinity") or {})
    affinity["nodeAffinity"] = {**(affinity.get("nodeAffinity") or {}), _REQUIRED: terms}
    spec["affinity"] = affinity
    return pod


def only_node(spec: Mapping[str, Any]) -> str:
    """The one Node that a Pod's required affinity names, as a DaemonSet's does; "" if it names none, or several."""
    match ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(_REQUIRED):
        case {"nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}]}:
            return str(node)
        case _:
            return ""


def of_another_node(pod: Mapping[str, Any], node: str) -> bool:
    """Whether a DaemonSet made a Pod that is not bound yet for another Node than this one."""
    owners = pod["metadata"].get("ownerReferences") or ()
    if pod["spec"].get("nodeName") or not any(one.get("controller") and one["kind"] == _KIND for one in owners):
        return False
    return only_node(pod["spec"]) not in {"", node}


def _tolerations(spec: Mapping[str, Any]) -> list[Raw]:
    added = [*_ADDED, *([_OF_HOST_NETWORK] if spec.get("hostNetwork") else ())]
    extra = [{"key": key, "operator": "Exists", "effect": effect} for key, effect in added]
    own = list(spec.get("tolerations") or ())
    return [*own, *(one for one in extra if one not in own)]


_MAX: Final = 250_001  # more than anybody may ask for
_MAX_LENGTH: Final = 200
_NOT_IN_NAMES: Final = frozenset({"spec", "template", "jobTemplate", "leaderWorkerTemplate"})
_NAMES: Final = ("name", "groupName")
_NUMBERS: Final = ("replicas", "numOfHosts")
_OUTSIDE: Final = re.compile(r"[^a-z0-9]+")


@dataclass(frozen=True, slots=True)
class FoundTemplate:
    """A Pod template in an object.

    Attributes:
        pod: the Pod that is made of it, with the object's name.
        place: where it is in the object.
        names: of its Pods.
        told: how many there are and why, for people.
    """

    pod: Raw
    place: str
    names: Sequence[str]
    told: str


def templates_of(obj: Mapping[str, Any], kind: str) -> Iterator[FoundTemplate]:
    """Find the templates of an object, in its order."""
    for way, pod in pods_in(obj, kind).items():
        place = place_of(way) or "the object itself"
        count, by = 1, list[str]()
        for at, number, key in _numbers(obj, way):
            count = min(count * number, _MAX)
            by.append(place_of((*at, key)))
        base = _base(obj, way)
        names = [f"{base}-{index}" for index in range(count)]
        why = f"by {' and '.join(by)}" if by else "no number is stated beside it"
        yield FoundTemplate(pod, place, names, f"{counted(count, 'Pod')} of {place}: {why}")


def _numbers(obj: Mapping[str, Any], way: Way) -> Iterator[tuple[Way, int, str]]:
    """The numbers on the way to a template: where each stands, how many Pods it makes of one, and its key."""
    part: Any = obj
    for depth, key in enumerate(way):
        if isinstance(part, dict) and depth:
            for name in _NUMBERS:
                if _is_number(part.get(name)):
                    yield way[:depth], part[name], name
            if key == "template" and _is_number(part.get("parallelism")):
                most = part.get("completions")
                yield (
                    way[:depth],
                    min(part["parallelism"], most) if _is_number(most) else part["parallelism"],
                    ("parallelism"),
                )
            size: Any = part.get("size")
            if key == "workerTemplate" and _is_number(size):
                # Of a LeaderWorkerSet: the leader is one of the group, and has the workers' template if it has none.
                yield way[:depth], size - 1 if part.get("leaderTemplate") else size, "size"
        part = part[key]


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _base(obj: Mapping[str, Any], way: Way) -> str:
    """The beginning of the names: the object's name, and the nearest name of the part that has the template."""
    part: Any = obj
    nearest = ""
    for depth, key in enumerate(way):
        if isinstance(part, dict) and depth:
            stated = next((part[name] for name in _NAMES if isinstance(part.get(name), str) and part[name]), "")
            nearest = stated or nearest
        if isinstance(key, str) and key not in _NOT_IN_NAMES:
            nearest = key
        part = part[key]
    name = f"{obj['metadata']['name']}-{nearest}" if nearest else str(obj["metadata"]["name"])
    return _OUTSIDE.sub("-", name.lower()).strip("-")[:_MAX_LENGTH]


Key = tuple[str, str]

MAX_PODS: Final = 250_000
_HASH: Final = 10
_MAX_INDEX: Final = 100_000


@dataclass(frozen=True, slots=True)
class WantedPod:
    """A Pod of the input, or one that an object creates.

    Attributes:
        pod: as its author or its controller writes it.
        of: the kind, namespace and name of the object that creates it; "" for a Pod of the input.
        follows: the Pod (namespace and name) that must run before this one is created; None for none.
    """

    pod: Raw
    of: str = ""
    follows: Key | None = None


@dataclass(slots=True)
class Created:
    """What objects create.

    Attributes:
        pods: in the order of the input.
        notes: what is not created, and what is assumed, a sentence each.
    """

    pods: list[WantedPod] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def created(objects: Objects) -> Created:
    """List all Pods: those of the input, and those that its objects create.

    Raises:
        InputError: there are too many, or a template is none that the API server would accept.
    """
    made, owners = Created(), Owners(objects.sources)
    taken = {(_namespace(pod), pod["metadata"]["name"]) for pod in objects.pods}
    for source in objects.sources:
        if source.kind == "Pod":
            made.pods.append(WantedPod(source.object))
            continue
        if owners.left_to_others(source):
            continue
        about = f"{source.kind} {_namespace(source.object)}/{source.object['metadata']['name']}"
        before = len(made.pods)
        for wanted in _of(source, owners.pods_of(source), objects.nodes, made.notes, about):
            if len(made.pods) >= MAX_PODS:
                raise InputError(f"{source.where}: {about}: {MAX_PODS} Pods in all are the most: ask for fewer")
            key = _namespace(wanted.pod), wanted.pod["metadata"]["name"]
            if key in taken:
                made.notes.append(f"{about}: Pod {'/'.join(key)} is there already, so it is not created again")
                continue
            if len(made.pods) == before:
                _check(source, wanted.pod, about)
            taken.add(key)
            made.pods.append(wanted)
    return made


def _check(source: InputObject, pod: Raw, about: str) -> None:
    wrong = wrong_shape("Pod", pod)
    if wrong:
        raise InputError(f"{source.where}: {about}: its template: {wrong}; the API server would refuse it; correct it")


def _of(
    source: InputObject, there: Sequence[OwnedPod], nodes: Sequence[Mapping[str, Any]], notes: list[str], about: str
) -> Iterator[WantedPod]:
    makers: dict[str, Callable[[], Iterator[WantedPod]]] = {
        "Deployment": lambda: _deployment(source.object, there, notes, about),
        "ReplicaSet": lambda: _replicas(source.object, source.object, there, notes, about),
        "ReplicationController": lambda: _replicas(source.object, source.object, there, notes, about),
        "StatefulSet": lambda: _stateful(source.object, there, notes, about),
        "DaemonSet": lambda: _daemons(source.object, there, nodes, notes, about),
        "Job": lambda: _job(source.object, there, notes, about),
        "CronJob": lambda: _cron(source.object, notes, about),
        "PodTemplate": lambda: _template(source.object, notes, about),
    }
    if must_have_pods(source.object, source.kind):
        yield from makers[source.kind]()
        return
    if there:
        notes.append(f"{about}: {len(there)} of its Pods are in the input, so no others are created")
        return
    for one in templates_of(source.object, source.kind):
        wrong = wrong_shape("Pod", one.pod)
        if wrong:
            notes.append(f"{about}: {one.place} is not used: {wrong}")
            continue
        notes.append(f"{about}: {one.told}")
        _number(len(one.names), about)
        for name in one.names:
            pod = copied(one.pod)
            pod["metadata"]["name"] = name
            yield WantedPod(_owned(pod, source.object), about)


def _deployment(obj: Raw, there: Sequence[OwnedPod], notes: list[str], about: str) -> Iterator[WantedPod]:
    """The Pods of the ReplicaSet that a Deployment makes of its template."""
    name, namespace = obj["metadata"]["name"], _namespace(obj)
    known = (one.labels.get("pod-template-hash") for one in there if not one.finished)
    digest = next(filter(None, known), suffix("ReplicaSet", namespace, name, length=_HASH))
    metadata = {"name": f"{name}-{digest}", "namespace": namespace}
    replica_set = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": metadata}
    for wanted in _replicas(obj, replica_set, there, notes, about):
        wanted.pod["metadata"].setdefault("labels", {})["pod-template-hash"] = digest
        yield wanted


def _replicas(obj: Raw, owner: Raw, there: Sequence[OwnedPod], notes: list[str], about: str) -> Iterator[WantedPod]:
    """As many Pods as replicas are missing."""
    spec = obj["spec"]
    wants, has = _number(spec.get("replicas"), about), sum(not one.finished for one in there)
    if not wants:
        notes.append(f"{about}: replicas is 0, so it creates no Pod")
    for index in range(has, wants):
        pod = _pod(spec["template"], obj)
        pod["metadata"]["name"] = generated_name(f"{owner['metadata']['name']}-", _namespace(obj), index)
        yield WantedPod(_owned(pod, owner), about)


def _stateful(obj: Raw, there: Sequence[OwnedPod], notes: list[str], about: str) -> Iterator[WantedPod]:
    """A Pod for each ordinal, one after the other unless they are managed in parallel."""
    spec, name, namespace = obj["spec"], obj["metadata"]["name"], _namespace(obj)
    start, wants = (spec.get("ordinals") or {}).get("start") or 0, _number(spec.get("replicas"), about)
    ordered = spec.get("podManagementPolicy") != "Parallel"
    known = {one.name for one in there if not one.finished}
    if not wants:
        notes.append(f"{about}: replicas is 0, so it creates no Pod")
    before: Key | None = None
    for ordinal in range(start, start + wants):
        own = f"{name}-{ordinal}"
        if own not in known:
            pod = _pod(spec["template"], obj)
            pod["metadata"]["name"] = own
            pod["metadata"].setdefault("labels", {}).update(
                {
                    "apps.kubernetes.io/pod-index": str(ordinal),
                    "controller-revision-hash": f"{name}-{suffix('StatefulSet', namespace, name, length=_HASH)}",
                    "statefulset.kubernetes.io/pod-name": own,
                }
            )
            yield WantedPod(_owned(pod, obj), about, before if ordered else None)
        before = (namespace, own)


def _daemons(
    obj: Raw, there: Sequence[OwnedPod], nodes: Sequence[Mapping[str, Any]], notes: list[str], about: str
) -> Iterator[WantedPod]:
    """A Pod for each Node that its selection and tolerations allow."""
    template = _pod(obj["spec"]["template"], obj)
    known = {one.node for one in there if not one.finished}
    allowed = nodes_of_daemon(template["spec"], nodes)
    if not allowed:
        notes.append(f"{about}: no Node of the input is one that it selects and tolerates, so it creates no Pod")
    for node in allowed:
        if node not in known:
            pod = daemon_pod(template, node)
            pod["metadata"]["name"] = generated_name(f"{obj['metadata']['name']}-", _namespace(obj), node)
            yield WantedPod(_owned(pod, obj), about)


def _job(obj: Raw, there: Sequence[OwnedPod], notes: list[str], about: str) -> Iterator[WantedPod]:
    """The Pods of a Job that run at the same time, as far as they are missing."""
    spec, status, metadata = obj["spec"], obj.get("status") or {}, obj["metadata"]
    if spec.get("suspend"):
        notes.append(f"{about}: it is suspended, so it creates no Pod")
        return
    over = (one.get("type") for one in status.get("conditions") or () if one.get("status") == "True")
    if {"Complete", "Failed"}.intersection(over):
        notes.append(f"{about}: it has ended, so it creates no Pod")
        return
    parallel, completions = _number(spec.get("parallelism"), about), spec.get("completions")
    left = parallel if completions is None else completions - (status.get("succeeded") or 0)
    at_once = max(min(parallel, left), 0)
    active = [one for one in there if not one.finished]
    if not at_once:
        notes.append(f"{about}: it needs no Pod: parallelism {parallel}, {max(left, 0)} completions to go")
    elif left > at_once:
        notes.append(f"{about}: {at_once} of {left} Pods run at once; the others follow as these end")
    indexed = spec.get("completionMode") == "Indexed"
    busy = _indexes(str(status.get("completedIndexes") or "")) | {one.completion for one in active}
    free = iter(index for index in range(_MAX_INDEX) if not indexed or index not in busy)
    for _ in range(at_once - len(active)):
        index = next(free, None)
        if index is None:
            raise InputError(f"{about}: more than {_MAX_INDEX} indexes; ask for fewer completions")
        name = metadata["name"]
        beginning = f"{name}-{index}-" if indexed else f"{name}-"
        pod = _pod(spec["template"], obj)
        pod["metadata"]["name"] = generated_name(beginning, _namespace(obj), index)
        labels = pod["metadata"].setdefault("labels", {})
        labels["batch.kubernetes.io/job-name"] = labels["job-name"] = name
        labels["batch.kubernetes.io/controller-uid"] = labels["controller-uid"] = _uid(obj)
        if indexed:
            _give_index(pod, index)
        yield WantedPod(_owned(pod, obj), about)


def _give_index(pod: Raw, index: int) -> None:
    """Give a Pod of an indexed Job its index, as the Job's controller does."""
    for part in ("labels", "annotations"):
        pod["metadata"].setdefault(part, {})[_INDEX] = str(index)
    source = {"fieldRef": {"fieldPath": f"metadata.labels['{_INDEX}']"}}
    for key in ("initContainers", "containers"):
        for container in pod["spec"].get(key) or () if isinstance(pod["spec"].get(key), list) else ():
            if isinstance(container, dict):
                container["env"] = [
                    *(container.get("env") or ()),
                    {"name": "JOB_COMPLETION_INDEX", "valueFrom": source},
                ]


def _indexes(text: str) -> set[int]:
    """Read the indexes that an indexed Job has completed: `0-2,5`."""
    found: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        if first.isdecimal() and (last or first).isdecimal():
            found.update(range(int(first[:9]), min(int((last or first)[:9]), _MAX_INDEX) + 1))
    return found


def _cron(obj: Raw, notes: list[str], about: str) -> Iterator[WantedPod]:
    """The Pods of one run of a CronJob."""
    spec, name = obj["spec"], obj["metadata"]["name"]
    if spec.get("suspend"):
        notes.append(f"{about}: it is suspended, so it creates no Pod")
        return
    template = spec["jobTemplate"]
    metadata = {
        **{key: value for key, value in (template.get("metadata") or {}).items() if key in {"labels", "annotations"}},
        "name": f"{name}-{suffix('CronJob', _namespace(obj), name)}",
        "namespace": _namespace(obj),
    }
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": template["spec"]}
    notes.append(f"{about}: one run of it, Job {metadata['name']}")
    yield from _job(job, (), notes, about)


def _template(obj: Raw, notes: list[str], about: str) -> Iterator[WantedPod]:
    notes.append(f"{about}: it creates no Pod by itself; one is made of it")
    pod = _pod(obj["template"], obj)
    pod["metadata"]["name"] = obj["metadata"]["name"]
    yield WantedPod(pod, about)


def _pod(template: Mapping[str, Any], obj: Mapping[str, Any]) -> Raw:
    """A Pod of a template, in the namespace of its owner and without a name."""
    metadata = template.get("metadata")
    kept = copied(
        {key: value for key, value in metadata.items() if key in {"labels", "annotations", "finalizers"} and value}
        if isinstance(metadata, dict)
        else {}
    )
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "", "namespace": _namespace(obj), **kept},
        "spec": copied(template.get("spec") or {}),
    }


def _owned(pod: Raw, owner: Mapping[str, Any]) -> Raw:
    pod["metadata"]["ownerReferences"] = [
        {
            "apiVersion": owner["apiVersion"],
            "kind": owner["kind"],
            "name": owner["metadata"]["name"],
            "uid": _uid(owner),
            "controller": True,
            "blockOwnerDeletion": True,
        }
    ]
    return pod


def _uid(obj: Mapping[str, Any]) -> str:
    metadata = obj["metadata"]
    return str(metadata.get("uid") or apiserver.uid(obj["kind"], _namespace(obj), metadata["name"]))


def _number(value: int | None, about: str) -> int:
    """Replicas and parallelism are 1 where they are left out."""
    if value is not None and value < 0:
        raise InputError(f"{about}: {value} Pods cannot be; write a number of 0 or more")
    if value is not None and value > MAX_PODS:
        raise InputError(f"{about}: {value} Pods; {MAX_PODS} in all are the most: ask for fewer")
    return 1 if value is None else value
