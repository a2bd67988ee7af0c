"""Kubernetes objects from files, folders and standard input, as YAML or JSON."""

import argparse
import hashlib
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from allocator.wire import gang, nodetopology
from console.simulator.documents import InputError, is_settings, read_documents
from console.simulator.manifests import must_have_pods, pods_in, refused, wrong_shape
from koordgate.kube.resource import (
    ALL_POD_GROUPS,
    DEVICES,
    PLUGIN_POD_GROUPS,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    RUNTIME_CLASSES,
)

Raw = dict[str, Any]

_UNUSED: Final = frozenset({"NodeAllocation", "Event", "MutatingWebhookConfiguration"})  # without a note
_ABOUT_SNAPSHOT: Final = "koordgate-snapshot"  # a ConfigMap that is left out without a note
_MAX_TOLD: Final = 3  # objects of a kind that are left out and named one by one
_MAX_BEGINNING: Final = 58  # characters of generateName that are kept, as by the API server
_LETTERS: Final = "bcdfghjklmnpqrstvwxz2456789"  # which make up no words
_VERSIONS: Final = {
    "Device": DEVICES.api_version,
    nodetopology.KIND: nodetopology.API_VERSION,
    gang.KIND: PLUGIN_POD_GROUPS.api_version,
    "ResourceSlice": RESOURCE_SLICES.api_version,
    "ResourceClaim": RESOURCE_CLAIMS.api_version,
    "PriorityClass": "scheduling.k8s.io/v1",
    "RuntimeClass": RUNTIME_CLASSES.api_version,
}
_GROUPS_READ: Final = frozenset(one.group for versions in ALL_POD_GROUPS for one in versions)
_TOOLS: Final = "; of a folder for Helm or kustomize, give what `helm template` or `kubectl kustomize` makes of it"
_KUSTOMIZATION: Final = "kustomization"
_LISTS: Final = {
    "Node": "nodes",
    "Device": "devices",
    nodetopology.KIND: "topologies",
    gang.KIND: "groups",
    **dict.fromkeys(("ResourceSlice", "ResourceClaim"), "claims"),
    "Pod": "pods",
    "Namespace": "namespaces",
    **dict.fromkeys(("LimitRange", "ResourceQuota"), "limits"),
    "PriorityClass": "priorities",
    "RuntimeClass": "runtimes",
}
"""Kind -> the list of `Objects` that has it."""

_CLUSTER_WIDE: Final = frozenset(
    {"Node", "Device", nodetopology.KIND, "ResourceSlice", "Namespace", "PriorityClass", "RuntimeClass"}
)
_COPIES: Final = frozenset({"ControllerRevision"})  # a Pod template that is kept as a copy, and creates no Pod


@dataclass(slots=True)
class Objects:
    """What was read, each kind in the order of the input.

    `groups` are PodGroups, `claims` ResourceSlices and ResourceClaims, `limits` LimitRanges and ResourceQuotas.
    `settings` is the ConfigMap of an installation, `sources` has Pods and objects with Pod templates in the order
    of the input. `found` counts objects by kind, `unused` those that were left out, and `notes` say which, a
    sentence each.
    """

    nodes: list[Raw] = field(default_factory=list)
    devices: list[Raw] = field(default_factory=list)
    topologies: list[Raw] = field(default_factory=list)
    groups: list[Raw] = field(default_factory=list)
    claims: list[Raw] = field(default_factory=list)
    pods: list[Raw] = field(default_factory=list)
    namespaces: list[Raw] = field(default_factory=list)
    limits: list[Raw] = field(default_factory=list)
    priorities: list[Raw] = field(default_factory=list)
    runtimes: list[Raw] = field(default_factory=list)
    settings: Raw | None = None
    sources: list["InputObject"] = field(default_factory=list)
    found: Counter[str] = field(default_factory=Counter)
    unused: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)

    @property
    def cluster(self) -> list[Raw]:
        """What describes the nodes, the namespaces, and what these limit."""
        about = [*self.namespaces, *self.limits, *self.priorities, *self.runtimes]
        return [*self.nodes, *self.devices, *self.topologies, *self.claims, *about]

    def leave_out(self, note: str, kind: str) -> None:
        """Note that an object is not used; of many of one kind, only the number is reported in the end."""
        self.unused[kind] += 1
        if self.unused[kind] <= _MAX_TOLD:
            self.notes.append(note)


class InputObject(NamedTuple):
    """A Pod, or an object that creates Pods."""

    where: str
    kind: str
    object: Raw


def add_files(parser: argparse.ArgumentParser, *, required: bool = True) -> None:
    """Add the option `-f` of commands that read such files: the paths for `read` or `read_all`, as `files`."""
    parser.add_argument(
        *("-f", "--filename"),
        dest="files",
        nargs="+",
        action="extend",
        default=[],
        required=required,
        metavar="FILE",
        help="YAML or JSON file (or .gz of one, such as a snapshot), folder of such files, or - for standard input; "
        "may be given more than once",
    )


def read(paths: Iterable[str]) -> Objects:
    """Read all objects of files, folders (their .yaml, .yml and .json files by name) and `-` (standard input).

    Raises:
        InputError: something cannot be read, is not an object, or occurs twice.
    """
    objects = Objects()
    seen: dict[tuple[str, str, str], str] = {}
    for where, obj, kind in read_all(paths):
        _take(where, obj, kind, objects, seen)
    for kind, count in objects.unused.items():
        if count > _MAX_TOLD:
            objects.notes.append(f"{count - _MAX_TOLD} more objects of kind {kind} are not used")
    return objects


def read_all(paths: Iterable[str]) -> Iterator[tuple[str, Raw, str]]:
    """Read all objects of any kind; those of a List one by one.

    Yields:
        Where it is, the object, and its kind.

    Raises:
        InputError: something cannot be read, or is not an object.
    """
    for path in paths:
        yield from _objects(path)


def _objects(path: str) -> Iterator[tuple[str, Raw, str]]:
    empty = True
    for where, document in read_documents(path):
        if document is None:
            continue
        empty = False
        obj, kind = _identified(where, document, "")
        if not kind.endswith("List"):
            yield where, obj, kind
            continue
        items = obj.get("items") or []
        if not isinstance(items, list):
            raise InputError(f"{where}: items of the {kind} is not a list; make it one")
        for index, item in enumerate(items, 1):
            # Unlike the items of a List, those of a PodList have no kind.
            at = f"{where}, item {index}"
            yield at, *_identified(at, item, kind.removesuffix("List"))
    if empty:
        raise InputError(f"{path}: there is no object in it; give Kubernetes objects")


def _identified(where: str, document: object, default: str) -> tuple[Raw, str]:
    if not isinstance(document, dict):
        what = type(document).__name__
        raise InputError(f"{where}: {what} where a Kubernetes object must be; write apiVersion, kind and metadata")
    kind = document.get("kind") or default
    file = Path(where.partition(", document ")[0])
    if not kind and file.stem == _KUSTOMIZATION:
        told = f"kubectl kustomize {shlex.quote(str(file.parent))} | koordgate ... -f -"
        raise InputError(f"{where}: kustomize reads this file, and it has no object; give what it makes: {told}")
    if not isinstance(kind, str) or not kind:
        raise InputError(f"{where}: the object has no kind; add it, as `kind: Pod`{_TOOLS}")
    return document, kind


def _take(where: str, obj: Raw, kind: str, objects: Objects, seen: dict[tuple[str, str, str], str]) -> None:
    objects.found[kind] += 1
    if kind not in _LISTS and _is_file_of_a_program(obj, kind):
        rendered = "; for what it changes, give the output of `kubectl kustomize`" if kind == "Kustomization" else ""
        objects.leave_out(f"{where}: {kind} is not used{rendered}", kind)
        return
    name = _name(where, obj, kind, objects.found[kind])
    version = obj.get("apiVersion") or _VERSIONS.get(kind, "v1")
    of = f" of {version}" * (kind == gang.KIND and str(version).partition("/")[0] not in _GROUPS_READ)
    creates = not of and kind not in {*_LISTS, *_COPIES, *_UNUSED} and _creates(where, obj, kind)
    if strange := refused(obj, kind) if not (kind in _LISTS or creates) else "":
        raise InputError(f"{where}: {strange}; the API server would refuse it; correct it")
    if of or (kind not in _LISTS and not creates):
        if is_settings(obj, kind):
            objects.settings = objects.settings or obj
        elif kind not in _UNUSED and not (kind == "ConfigMap" and name == _ABOUT_SNAPSHOT):
            objects.leave_out(f"{where}: {kind} {name}{of} is not used", kind)
        return
    own = kind in _LISTS or must_have_pods(obj, kind)
    wrong = wrong_shape(kind if own else "", obj) or refused(obj, kind)
    if wrong:
        raise InputError(f"{where}: {kind} {name}: {wrong}; the API server would refuse it; correct it")
    namespace = "" if kind in _CLUSTER_WIDE else str(obj["metadata"].get("namespace") or "default")
    key = (kind if own else f"{kind}.{version}", namespace, name)
    if key in seen:
        full_name = f"{namespace}/{name}" if namespace else name
        raise InputError(f"{where}: {kind} {full_name} is already in {seen[key]}; remove or rename one of them")
    seen[key] = where
    taken = {"apiVersion": version, "kind": kind, **obj}
    if kind in _LISTS:
        getattr(objects, _LISTS[kind]).append(taken)
    if kind == "Pod" or creates:
        objects.sources.append(InputObject(where, kind, taken))


def _is_file_of_a_program(obj: Raw, kind: str) -> bool:
    """Whether an object is what a program reads and no API server has, such as kustomize's: it needs no name."""
    return "metadata" not in obj and not (must_have_pods(obj, kind) or pods_in(obj, kind) or refused(obj, kind))


def _name(where: str, obj: Raw, kind: str, number: int) -> str:
    """The name of an object; one that states generateName is given a name, as the API server does."""
    metadata = obj["metadata"] if isinstance(obj.get("metadata"), dict) else {}
    beginning = metadata.get("generateName")
    if not metadata.get("name") and beginning and isinstance(beginning, str):
        metadata["name"] = generated_name(beginning, kind, number)
    if not metadata.get("name"):
        raise InputError(f"{where}: the {kind} has no metadata.name; give it one")
    return str(metadata["name"])


def _creates(where: str, obj: Raw, kind: str) -> bool:
    """Whether an object has Pod templates."""
    if must_have_pods(obj, kind):
        if not pods_in(obj, kind):
            name = obj["metadata"]["name"]
            raise InputError(f"{where}: {kind} {name} has no Pod spec where one must be; write spec.template.spec")
        return True
    return bool(pods_in(obj, kind))


def generated_name(beginning: str, *of: object) -> str:
    """The name of an object that states generateName, as the API server makes it; the same for the same parts."""
    return f"{beginning[:_MAX_BEGINNING]}{suffix(beginning, *of)}"


def suffix(*of: object, length: int = 5) -> str:
    """Letters and digits as the API server adds to generated names; the same for the same parts."""
    digest = hashlib.sha256("/".join(map(str, of)).encode("utf-8", "replace")).digest()
    return "".join(_LETTERS[byte % len(_LETTERS)] for byte in digest[:length])
