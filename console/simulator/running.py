"""Running Pods to which others gave devices: what is known of them, and devices that are assumed for the rest.

Of a device plugin's Pod, only the kubelet knows which devices it has. Its checkpoint is used if it is on the Device
object. For the other Pods, as many whole idle devices are withheld as they ask for. Pods of other products hold what
their annotations state, where the settings count it; nothing is assumed for these.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import msgspec

from allocator.vocabulary.adopted import ConflictKind, Product
from allocator.vocabulary.devicetype import DeviceTypes
from allocator.vocabulary.holdings import Share
from allocator.vocabulary.names import KUBERNETES_DOMAIN
from allocator.vocabulary.node import NodeSnapshot
from allocator.wire.deviceallocated import write_annotations
from allocator.wire.foreignpods import Adoption, read_foreign_pod
from console.simulator.alike import PodReader
from console.simulator.assumed import ASSUMED, REPLICA
from webhook.settings import WebhookSettings
from webhook.view.loads import Requests
from webhook.view.podinfo import PodInfo, read_stranger

Raw = dict[str, Any]


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
    """Return the Pods of device plugins, each with an allocation of idle devices.

    Args:
        pods: all Pods of the cluster.
        snapshot: makes a node's snapshot, with everything that annotations state.
        types: the device types.
    """
    known: dict[tuple[str, str], int] = {}  # node and type -> devices that the kubelet's checkpoint accounts for
    taken: dict[str, set[str]] = {}
    assumed = []
    read = PodReader()
    for pod in pods:
        info = read(pod, None, types)
        there = info.counted if info is not None else read_stranger(pod).counted
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
    """Say which products' Pods state what they hold although the settings do not count it, a sentence each.

    Args:
        pods: all Pods of the cluster.
        adoption: what the settings count.
    """
    others = replace(adoption, peers=frozenset(Product) - adoption.peers)
    found = Counter((read.peer, read.evidence) for read in (read_foreign_pod(pod, others) for pod in pods) if read)
    for (peer, evidence), count in sorted(found.items()):
        have = f"{count} running Pods state" if count > 1 else "1 running Pod states"
        yield f"{have} in {evidence} what {peer} gave, and this does not count: add {peer} to adopt.peers"


def _with(pod: Raw, annotations: Mapping[str, str]) -> Raw:
    metadata = pod["metadata"]
    return {**pod, "metadata": {**metadata, "annotations": {**(metadata.get("annotations") or {}), **annotations}}}
