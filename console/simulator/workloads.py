"""The Pods that controllers create: their names, numbers, owners and order.

What runs already counts: of a Deployment with three replicas of which two are in the input, one is created. Names that
controllers generate end in letters that follow from the owner's name, so that a run repeats itself.

The source is Kubernetes, pkg/controller/daemon: NodeShouldRunDaemonPod, util.AddOrUpdateDaemonPodTolerations and
ReplaceDaemonSetPodNodeNameNodeAffinity.

A template is found by its `spec.containers`. How many Pods there are of it is the product of the numbers that stand on
the way to it: `replicas`, and of a Job's template the Pods that run at once.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
    """A Pod of the input that an object of the input has created."""

    name: str
    node: str
    finished: bool
    labels: Mapping[str, str]


class Owners:
    """The objects of the input by what they created."""

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
    finished = (pod.get("status") or {}).get("phase") in _FINISHED or metadata.get("deletionTimestamp") is not None
    return OwnedPod(metadata["name"], pod["spec"].get("nodeName") or "", finished, metadata.get("labels") or {})


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

    `told` says how many Pods there are and why.
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
        why = f"by {' and '.join(by)}" if by else "because it states no number"
        yield FoundTemplate(pod, place, names, f"{counted(count, 'Pod')} of {place}, {why}")


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
_TEMPLATE_HASH: Final = "pod-template-hash"
_COPIED: Final = ("labels", "annotations", "finalizers")


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
    """What objects create."""

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
        there = owners.pods_of(source)
        for wanted in _Creation(source.object, source.kind, there, objects.nodes, made.notes, about).pods():
            if len(made.pods) >= MAX_PODS:
                raise InputError(f"{source.where}: {about}: {MAX_PODS} Pods in all are the most: ask for fewer")
            key = _namespace(wanted.pod), wanted.pod["metadata"]["name"]
            if key in taken:
                made.notes.append(f"{about}: Pod {'/'.join(key)} is there already, so it is not created again")
                continue
            if len(made.pods) == before and (wrong := wrong_shape("Pod", wanted.pod)):
                where = f"{source.where}: {about}: its template"
                raise InputError(f"{where}: {wrong}; the API server would refuse it; correct it")
            taken.add(key)
            made.pods.append(wanted)
    return made


_REPLICATED: Final = ("Deployment", "ReplicaSet", "ReplicationController", "StatefulSet")


@dataclass(frozen=True, slots=True)
class _Creation:
    """Creates the Pods of one object.

    `there` are its Pods in the input; `notes` get what is not created and why.
    """

    obj: Raw
    kind: str
    there: Sequence[OwnedPod]
    nodes: Sequence[Mapping[str, Any]]
    notes: list[str]
    about: str

    @property
    def name(self) -> str:
        return str(self.obj["metadata"]["name"])

    @property
    def alive(self) -> list[OwnedPod]:
        return [one for one in self.there if not one.finished]

    def pods(self) -> Iterator[WantedPod]:
        """Create what is missing."""
        match self.kind:
            case _ if not must_have_pods(self.obj, self.kind):
                yield from self.of_other_kind()
            case kind if kind in _REPLICATED:
                yield from self.replicas(self.obj["spec"])
            case "DaemonSet":
                yield from self.daemons(self.obj["spec"]["template"])
            case "Job":
                yield from self.job(self.obj["spec"], self.obj.get("status") or {})
            case "CronJob":
                yield from self.run(self.obj["spec"])
            case _:
                self.note("it creates no Pod by itself; one is made of it")
                yield WantedPod(self.pod(self.obj["template"], self.name, None), self.about)

    def note(self, text: str) -> None:
        self.notes.append(f"{self.about}: {text}")

    def pod(self, template: Mapping[str, Any], name: str, owner: Raw | None, **more: Mapping[str, str]) -> Raw:
        """A Pod of a template, in the namespace of the object, with more labels and annotations."""
        stated = (template.get("metadata") or {}).items()
        metadata = copied({key: value for key, value in stated if key in _COPIED and value})
        for key, added in more.items():
            if added:
                metadata[key] = {**metadata.get(key, {}), **added}
        metadata = {"name": name, "namespace": _namespace(self.obj), **metadata}
        if owner is not None:
            metadata["ownerReferences"] = [_reference(owner)]
        return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": copied(template.get("spec") or {})}

    def replicas(self, spec: Mapping[str, Any]) -> Iterator[WantedPod]:
        """As many Pods as replicas are missing; those of a StatefulSet have ordinals, and follow one another."""
        wants, owner, namespace = _number(spec.get("replicas"), self.about), self.obj, _namespace(self.obj)
        labels: dict[str, str] = {}
        if not wants:
            self.note("replicas is 0, so it creates no Pod")
        if self.kind == "Deployment":
            hashes = (one.labels.get(_TEMPLATE_HASH) for one in self.alive)
            digest = next(filter(None, hashes), suffix("ReplicaSet", namespace, self.name, length=_HASH))
            labels[_TEMPLATE_HASH] = digest
            metadata = {"name": f"{self.name}-{digest}", "namespace": namespace}
            owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": metadata}
        if self.kind != "StatefulSet":
            for index in range(len(self.alive), wants):
                name = generated_name(f"{owner['metadata']['name']}-", namespace, index)
                yield WantedPod(self.pod(spec["template"], name, owner, labels=labels), self.about)
            return
        start, known = (spec.get("ordinals") or {}).get("start") or 0, {one.name for one in self.alive}
        revision = f"{self.name}-{suffix('StatefulSet', namespace, self.name, length=_HASH)}"
        before: Key | None = None
        for ordinal in range(start, start + wants):
            name = f"{self.name}-{ordinal}"
            if name not in known:
                labels = {
                    "apps.kubernetes.io/pod-index": str(ordinal),
                    "controller-revision-hash": revision,
                    "statefulset.kubernetes.io/pod-name": name,
                }
                ordered = spec.get("podManagementPolicy") != "Parallel"
                pod = self.pod(spec["template"], name, owner, labels=labels)
                yield WantedPod(pod, self.about, before if ordered else None)
            before = (namespace, name)

    def daemons(self, template: Mapping[str, Any]) -> Iterator[WantedPod]:
        """A Pod for each Node that its selection and tolerations allow."""
        known = {one.node for one in self.alive}
        allowed = nodes_of_daemon(template["spec"], self.nodes)
        if not allowed:
            self.note("no Node of the input is one that it selects and tolerates, so it creates no Pod")
        for node in allowed:
            if node not in known:
                name = generated_name(f"{self.name}-", _namespace(self.obj), node)
                yield WantedPod(daemon_pod(self.pod(template, name, self.obj), node), self.about)

    def job(self, spec: Mapping[str, Any], status: Mapping[str, Any], owner: Raw | None = None) -> Iterator[WantedPod]:
        """The Pods that run at the same time, as far as they are missing."""
        owner = owner or self.obj
        name = owner["metadata"]["name"]
        over = {one.get("type") for one in status.get("conditions") or () if one.get("status") == "True"}
        if spec.get("suspend") or over & {"Complete", "Failed"}:
            self.note(f"it {'is suspended' if spec.get('suspend') else 'has ended'}, so it creates no Pod")
            return
        parallel, done = _number(spec.get("parallelism"), self.about), status.get("succeeded") or 0
        left = parallel if spec.get("completions") is None else max(spec["completions"] - done, 0)
        at_once = min(parallel, left)
        if not at_once:
            self.note(f"it needs no Pod: parallelism {parallel}, {left} completions to go")
        elif left > at_once:
            self.note(f"{at_once} of {left} Pods run at once; the others follow as these end")
        labels = dict.fromkeys(("batch.kubernetes.io/job-name", "job-name"), name)
        labels |= dict.fromkeys(("batch.kubernetes.io/controller-uid", "controller-uid"), _reference(owner)["uid"])
        indexed = spec.get("completionMode") == "Indexed"
        # Those that have ended and those that run are taken to be the first.
        for index in range(done + len(self.alive), done + at_once):
            own = generated_name(f"{name}-{index}-" if indexed else f"{name}-", _namespace(self.obj), index)
            place = {_INDEX: str(index)} if indexed else {}
            pod = self.pod(spec["template"], own, owner, labels={**labels, **place}, annotations=place)
            if indexed:
                _tell_index(pod["spec"])
            yield WantedPod(pod, self.about)

    def run(self, spec: Mapping[str, Any]) -> Iterator[WantedPod]:
        """The Pods of one run of a CronJob."""
        if spec.get("suspend"):
            self.note("it is suspended, so it creates no Pod")
            return
        name = f"{self.name}-{suffix('CronJob', _namespace(self.obj), self.name)}"
        job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name, "namespace": _namespace(self.obj)}}
        self.note(f"one run of it, Job {name}")
        yield from self.job(spec["jobTemplate"]["spec"], {}, job)

    def of_other_kind(self) -> Iterator[WantedPod]:
        """As many Pods of each template as the numbers beside it say."""
        if self.there:
            self.note(f"{len(self.there)} of its Pods are in the input, so no others are created")
            return
        for one in templates_of(self.obj, self.kind):
            if wrong := wrong_shape("Pod", one.pod):
                self.note(f"{one.place} is not used: {wrong}")
                continue
            self.note(one.told)
            _number(len(one.names), self.about)
            for name in one.names:
                pod = self.pod(one.pod, name, self.obj)
                yield WantedPod({**pod, "metadata": {**copied(one.pod["metadata"]), **pod["metadata"]}}, self.about)


def _tell_index(spec: Raw) -> None:
    """Tell the containers of an indexed Job's Pod its index, as the Job's controller does."""
    source = {"fieldRef": {"fieldPath": f"metadata.labels['{_INDEX}']"}}
    for container in (*(spec.get("initContainers") or ()), *spec["containers"]):
        own = container.get("env") or ()
        container["env"] = [*own, {"name": "JOB_COMPLETION_INDEX", "valueFrom": source}]


def _reference(owner: Mapping[str, Any]) -> Raw:
    metadata = owner["metadata"]
    return {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": metadata["name"],
        "uid": str(metadata.get("uid") or apiserver.uid(owner["kind"], _namespace(owner), metadata["name"])),
        "controller": True,
        "blockOwnerDeletion": True,
    }


def _number(value: int | None, about: str) -> int:
    """Replicas and parallelism are 1 where they are left out."""
    if value is not None and value < 0:
        raise InputError(f"{about}: {value} Pods cannot be; write a number of 0 or more")
    if value is not None and value > MAX_PODS:
        raise InputError(f"{about}: {value} Pods; {MAX_PODS} in all are the most: ask for fewer")
    return 1 if value is None else value
