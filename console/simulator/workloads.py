"""The Pods that objects create, as their controllers would: names, numbers, owners, labels and order (pure).

What runs already counts: of a Deployment with three replicas of which two are in the input, one is created. Names that
controllers generate end in letters that follow from the owner's name, so that a run repeats itself.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from console.simulator import apiserver
from console.simulator.apiserver import copied
from console.simulator.daemons import daemon_pod, nodes_of_daemon
from console.simulator.documents import InputError
from console.simulator.manifests import must_have_pods
from console.simulator.objects import InputObject, Objects, generated_name, suffix
from console.simulator.owners import OwnedPod, Owners
from console.simulator.shapes import wrong_shape
from console.simulator.templates import templates_of

Raw = dict[str, Any]
Key = tuple[str, str]

MOST_PODS: Final = 250_000
_HASH: Final = 10
_MOST_INDEX: Final = 100_000
_INDEX: Final = "batch.kubernetes.io/job-completion-index"


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
            if len(made.pods) >= MOST_PODS:
                raise InputError(f"{source.where}: {about}: {MOST_PODS} Pods in all are the most: ask for fewer")
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
    free = iter(index for index in range(_MOST_INDEX) if not indexed or index not in busy)
    for _ in range(at_once - len(active)):
        index = next(free, None)
        if index is None:
            raise InputError(f"{about}: more than {_MOST_INDEX} indexes; ask for fewer completions")
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
            found.update(range(int(first[:9]), min(int((last or first)[:9]), _MOST_INDEX) + 1))
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
    if value is not None and value > MOST_PODS:
        raise InputError(f"{about}: {value} Pods; {MOST_PODS} in all are the most: ask for fewer")
    return 1 if value is None else value


def _namespace(obj: Mapping[str, Any]) -> str:
    return str(obj["metadata"].get("namespace") or "default")
