"""Pods that run already: what other products gave them, and which Pods are alike.

Of a device plugin's Pod, only the kubelet knows which devices it has. Its checkpoint is used if it is on the Device
object. For the other Pods, as many whole idle devices are withheld as they ask for. Pods of other products hold what
their annotations state, where the settings count it; nothing is assumed for these.

Admission and the reading of a Pod depend on all of it except its name and identity. Pods that differ in nothing else
are therefore admitted and read alike. A cluster of a hundred thousand Pods has some thousand templates.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec
import orjson

from allocator.vocabulary.adopted import ConflictKind, Product
from allocator.vocabulary.devicetype import DeviceTypes
from allocator.vocabulary.holdings import Share
from allocator.vocabulary.names import KUBERNETES_DOMAIN, is_allocation_annotation
from allocator.vocabulary.node import NodeSnapshot
from allocator.wire.foreignpods import Adoption, read_foreign_pod
from allocator.wire.podallocated import write_annotations
from console.simulator.apiserver import AddedDefault
from console.simulator.assumed import ASSUMED, REPLICA
from webhook.boundedcache import BoundedCache
from webhook.settings import WebhookSettings
from webhook.view.loads import Requests
from webhook.view.podinfo import PodInfo, read_other_pod, read_pod_info

Raw = dict[str, Any]

OWN: Final = ("name", "uid", "generateName", "resourceVersion", "creationTimestamp", "managedFields")
"""What of a Pod's metadata is its own, and no part of a template."""

MAX_TEMPLATES: Final = 4096  # that are remembered (make bench NAME=simulate)
_SOME_NODE: Final = "-"


@dataclass(frozen=True, slots=True)
class Admitted:
    """What admission made of a Pod."""

    pod: Raw
    warnings: tuple[str, ...]
    added: tuple[AddedDefault, ...] = ()

    def for_another(self, pod: Mapping[str, Any], uid: str) -> Raw:
        """What it makes of another Pod of the same template; both share all that is no Pod's own."""
        metadata = {key: value for key, value in self.pod["metadata"].items() if key not in OWN}
        own = {key: pod["metadata"][key] for key in OWN if key in pod["metadata"]}
        made = {**self.pod, "metadata": {**metadata, **own, "uid": uid}}
        made.pop("status", None)
        return {**made, "status": pod["status"]} if "status" in pod else made


class PodReader:
    """Reads Pods as `read_pod_info` does; what those of one template ask for is read once."""

    def __init__(self) -> None:
        self._known: BoundedCache[bytes, PodInfo] = BoundedCache(MAX_TEMPLATES)

    def __call__(self, obj: Mapping[str, Any], known: PodInfo | None, types: DeviceTypes) -> PodInfo | None:
        """Read a Pod; `known` is what was known of it."""
        if known is not None:
            return read_pod_info(obj, known, types)
        key = _asked_by(obj)
        alike = self._known.get(key)
        if alike is not None:
            return read_pod_info(obj, replace(alike, uid=obj["metadata"]["uid"]), types)
        read = read_pod_info(obj, None, types)
        if read is not None and read.asks:
            # What a bound Pod asks for is not read again, whatever its annotations have come to say.
            self._known.put(key, replace(read, node=read.node or _SOME_NODE))
        return read


def template_of(pod: Mapping[str, Any]) -> bytes:
    """What a Pod has in common with all Pods of its template, as one value."""
    metadata = {key: value for key, value in pod["metadata"].items() if key not in OWN}
    return orjson.dumps([metadata, pod["spec"]], option=orjson.OPT_NON_STR_KEYS)


def _asked_by(pod: Mapping[str, Any]) -> bytes:
    """What a Pod's request follows from, as one value: not from what a bind adds."""
    metadata, spec = pod["metadata"], pod["spec"]
    written = metadata.get("annotations") or {}
    annotations = {key: value for key, value in written.items() if not is_allocation_annotation(key)}
    about = [metadata.get("namespace"), metadata.get("labels"), annotations]
    return orjson.dumps([*about, {key: value for key, value in spec.items() if key != "nodeName"}])


def counting_all(settings: WebhookSettings) -> WebhookSettings:
    """The same settings, but running Pods of every product that can be read count as holding what they state."""
    adopt = msgspec.structs.replace(settings.adopt, peers=tuple(Product))
    return msgspec.structs.replace(settings, adopt=adopt)


def plugin_devices(info: PodInfo, types: DeviceTypes) -> dict[str, int]:
    """Count the whole devices of each type that the kubelet gave to a Pod that koordgate never translated.

    Returns:
        Type's name -> number; empty for a Pod that asks for none in this way, has an allocation, is not bound, or has
        ended.
    """
    if info.canonical or info.holds or not info.node or info.finished:
        return {}
    return _whole_devices(info.requests, types)


def _whole_devices(requests: Requests, types: DeviceTypes) -> dict[str, int]:
    """Count the devices of each type that a device plugin gave for these amounts, whether or not its names are read.

    A replica of a device that is shared by time holds the device: Pods that share it ask koordgate for nothing.
    """
    found: dict[str, int] = {}
    for name, amount in requests:
        own = name.removesuffix(REPLICA)
        known = types.resources.get(own) or types.known.resources.get(own)
        if known is not None and known.counts_devices and not known.dialect.own and amount:
            found[known.type.name] = found.get(known.type.name, 0) + amount
    return found


def assume(pods: Iterable[Raw], snapshot: Callable[[str], NodeSnapshot], types: DeviceTypes) -> list[Raw]:
    """Return the Pods of device plugins, each with an allocation of idle devices."""
    known: dict[tuple[str, str], int] = {}  # node and type -> devices that the kubelet's checkpoint accounts for
    taken: dict[str, set[str]] = {}
    assumed = []
    read = PodReader()
    for pod in pods:
        info = read(pod, None, types)
        there = info.counted if info is not None else read_other_pod(pod).counted
        if there is None:
            continue
        wanted = plugin_devices(info, types) if info is not None else _whole_devices(there.requests, types)
        if not wanted:
            continue
        node = snapshot(there.node)
        stated = node.foreign.get(pod["metadata"]["uid"])
        if stated is not None and stated.doubt is not ConflictKind.UNCOUNTED:
            continue
        busy = taken.setdefault(node.name, {*node.used, *node.kubelet_held})
        shares = []
        for kind, count in wanted.items():
            at = (node.name, kind)
            given = [one.id for one in node.devices if one.type == kind and one.id in node.kubelet_held]
            accounted = min(known.setdefault(at, len(given)), count)
            known[at] -= accounted
            idle = [one for one in node.devices if one.type == kind and one.id not in busy]
            chosen = sorted(idle, key=lambda one: not one.healthy)[: count - accounted]  # stable: by minor
            busy.update(one.id for one in chosen)
            shares += [Share(one.type, one.id, one.minor, one.capacity) for one in chosen]
        assumed.append(_with(pod, {ASSUMED: str(len(shares)), **write_annotations(shares, KUBERNETES_DOMAIN, types)}))
    return assumed


def unnamed_products(pods: Iterable[Raw], adoption: Adoption) -> Iterator[str]:
    """Say which products' Pods state what they hold although the settings do not count it, a sentence each."""
    others = replace(adoption, peers=frozenset(Product) - adoption.peers)
    found = Counter((read.peer, read.evidence) for read in (read_foreign_pod(pod, others) for pod in pods) if read)
    for (peer, evidence), count in sorted(found.items()):
        have = f"{count} running Pods state" if count > 1 else "1 running Pod states"
        yield f"{have} in {evidence} what {peer} gave, and this does not count: add {peer} to adopt.peers"


def _with(pod: Raw, annotations: Mapping[str, str]) -> Raw:
    metadata = pod["metadata"]
    return {**pod, "metadata": {**metadata, "annotations": {**(metadata.get("annotations") or {}), **annotations}}}
