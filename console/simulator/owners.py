"""Which object of the input created which other, by their ownerReferences (pure)."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple

from console.simulator.manifests import must_have_pods
from console.simulator.objects import InputObject

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
