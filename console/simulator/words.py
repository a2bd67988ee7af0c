"""Pods and what they ask for in words, for the tables (pure)."""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from allocator.adopted import in_doubt
from allocator.request.cpus import PRIORITY_CLASS_LABEL, QOS_LABEL, names_cpus
from allocator.vocabulary.adopted import ConflictKind
from allocator.vocabulary.devicetype import DeviceTypes
from allocator.vocabulary.names import (
    ASKED_LIMIT_PREFIX,
    DEVICE_ORDER,
    DEVICE_SHARING,
    LIMITS,
    ORIGINAL_REQUEST,
    OWN_CPUS,
    RESOURCE_MAPS,
)
from allocator.wire.allocatehint import HINT_ANNOTATIONS
from allocator.wire.podannotations import NUMA_TOPOLOGY_SPEC, RESOURCE_SPEC
from allocator.wire.values import UNREADABLE, parse_json
from console.simulator.account import Account
from console.simulator.apiserver import AddedDefault
from console.simulator.assumed import ASSUMED
from webhook.view.podinfo import PodInfo, read_pod_info

Raw = Mapping[str, Any]

_WISHES: Final = (RESOURCE_SPEC, NUMA_TOPOLOGY_SPEC, *HINT_ANNOTATIONS, DEVICE_SHARING, DEVICE_ORDER, LIMITS, OWN_CPUS)
_MAX_LENGTH: Final = 200  # characters of an annotation that are shown
_TEMPLATE_HASH: Final = "pod-template-hash"


def name_of(pod: Raw) -> str:
    """Name a Pod with its namespace."""
    return f"{pod['metadata'].get('namespace') or 'default'}/{pod['metadata']['name']}"


def owner_of(pod: Raw) -> tuple[str, str] | None:
    """The kind and name of what creates a Pod; of a ReplicaSet that a Deployment made, the Deployment's."""
    metadata = pod["metadata"]
    owner = next((one for one in metadata.get("ownerReferences") or () if one.get("controller")), None)
    if owner is None:
        return None
    digest = (metadata.get("labels") or {}).get(_TEMPLATE_HASH)
    if owner["kind"] == "ReplicaSet" and digest and owner["name"].endswith(f"-{digest}"):
        return "Deployment", owner["name"].removesuffix(f"-{digest}")
    return str(owner["kind"]), str(owner["name"])


def problems(reason: str, pod: Raw) -> list[str]:
    """What a refusal of a Pod says, a line for each problem, without the Pod's name."""
    who = f"Pod {name_of(pod)}"
    first, *lines = reason.removeprefix(f"{who}: ").replace(f"{who} ", "it ").splitlines() or [""]
    return [line.removeprefix("- ") for line in lines] or [first]


def asked(pod: Raw, types: DeviceTypes, added: Iterable[AddedDefault] = ()) -> tuple[str, ...]:
    """What a Pod's author asked for: a line for each container that asks for devices or CPUs, and one per wish.

    What LimitRanges added to that follows, a line each.
    """
    others = (f"{one.container}: {one.resource}={one.amount} (added by LimitRange {one.by})" for one in added)
    return (*_lines(pod, _originals(pod), types), *others)


def admitted(pod: Raw, types: DeviceTypes) -> tuple[str, ...]:
    """What a Pod asks for after admission, in the same form as `asked`."""
    return tuple(_lines(pod, {}, types))


def _lines(pod: Raw, originals: Mapping[str, Any], types: DeviceTypes) -> Iterator[str]:
    spec = pod["spec"]
    orchestrated = names_cpus(pod)
    for container in (*(spec.get("initContainers") or ()), *(spec.get("containers") or ())):
        resources = container.get("resources") or {}
        texts = _amounts(originals.get(container["name"]) or resources, types.resources)
        if orchestrated:
            texts = [*_amounts(resources, ("cpu",)), *texts]
        if texts:
            yield f"{container['name']}: {' '.join(texts)}"
    metadata = pod["metadata"]
    labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
    if stated := [key for key in (QOS_LABEL, PRIORITY_CLASS_LABEL) if labels.get(key)]:
        yield " ".join(f"{key.rpartition('/')[2]}={labels[key]}" for key in stated)
    stated = [key for key in types.annotations if key in annotations]  # of dialects that ask by annotations
    stated += sorted(key for key in annotations if key.startswith(ASKED_LIMIT_PREFIX) or types.form_of(key))
    if stated:
        yield " ".join(f"{key}={_cut(' '.join(str(annotations[key]).split()))}" for key in stated)
    for key in _WISHES:
        if key in annotations:
            yield f"{key.rpartition('/')[2]} {_cut(' '.join(str(annotations[key]).split()))}"


def _amounts(resources: Mapping[str, Any], names: Iterable[str]) -> list[str]:
    """The amounts that a container states of these resources: requests, and limits that differ."""
    wanted = set(names)
    requests, limits = (
        {name: amount for name, amount in (resources.get(key) or {}).items() if name in wanted} for key in RESOURCE_MAPS
    )
    return [
        f"{name}={amount}" + (f" (limit {limits[name]})" if str(limits.get(name, amount)) != str(amount) else "")
        for name, amount in {**limits, **requests}.items()
    ]


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_LENGTH else f"{text[:_MAX_LENGTH]}..."


def _originals(pod: Raw) -> Mapping[str, Any]:
    """The resources that admission replaced, by container; empty if they cannot be read."""
    try:
        originals = parse_json((pod["metadata"].get("annotations") or {}).get(ORIGINAL_REQUEST, "{}"))
        json.dumps(originals, ensure_ascii=False).encode()  # UnicodeEncodeError, a ValueError, if it cannot be printed
    except UNREADABLE:
        return {}
    if not isinstance(originals, dict):
        return {}
    return {name: kept for name, kept in originals.items() if _is_resources(kept)}


def _is_resources(kept: object) -> bool:
    return isinstance(kept, dict) and all(isinstance(value, dict) for value in kept.values())


def trouble(pod: Raw, account: Account) -> str:
    """What is wrong with the allocation of a Pod that is bound; "" if nothing is."""
    theirs = account.adopted(pod)
    if theirs is not None and theirs.doubt is not ConflictKind.UNCOUNTED:
        return f"in doubt: {theirs.why}" if in_doubt(theirs) else ""
    info = read_pod_info(pod, types=account.types)
    if info is None or not info.node or info.finished:
        return ""
    assumed = (pod["metadata"].get("annotations") or {}).get(ASSUMED)
    if assumed == "0":
        return "holds devices that the kubelet's device plugin gave it"
    if assumed:
        return "holds devices that the kubelet's device plugin gave it; which ones is unknown, so idle ones are assumed"
    if info.annotation_problem:
        return f"has an unreadable allocation, so what it may hold takes no new Pods: {info.annotation_problem}"
    missing = info.asks and not info.holds
    told = "carries no allocation, so it holds none; to place it, remove spec.nodeName"
    return f"asks for {_what(info)} and {told}" if missing else ""


def _what(info: PodInfo) -> str:
    return "CPUs" if info.request.cpu is not None and not info.request.containers else "devices"
