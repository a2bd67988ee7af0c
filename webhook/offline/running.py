"""Running Pods of a device plugin: the objects do not state their devices, so devices are assumed for them.

Only the kubelet knows which devices it gave to a Pod. Its checkpoint is used if it is on the Device object. For the
other Pods, as many whole idle devices are withheld as they ask for.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from allocator.vocabulary.devicetype import DeviceTypes
from allocator.vocabulary.holdings import Share
from allocator.vocabulary.names import KUBERNETES_DOMAIN
from allocator.vocabulary.node import NodeSnapshot
from allocator.wire.deviceallocated import write_annotations
from webhook.view.podinfo import PodInfo, read_pod_info

Raw = dict[str, Any]

ASSUMED: Final = "koordgate.io/assumed"  # on such a Pod, only in memory: how many of its devices were assumed


def plugin_devices(info: PodInfo, types: DeviceTypes) -> dict[str, int]:
    """Count the whole devices of each type that the kubelet gave to a Pod that koordgate never translated.

    Returns:
        Type's name -> number; empty for a Pod that asks for none in this way, has an allocation, is not bound, or has
        ended.
    """
    if info.canonical or info.holds or not info.node or info.finished:
        return {}
    found: dict[str, int] = {}
    for name, amount in info.requests:
        known = types.resources.get(name)
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
    for pod in pods:
        info = read_pod_info(pod, types=types)
        wanted = plugin_devices(info, types) if info is not None else {}
        if info is None or not wanted:
            continue
        node = snapshot(info.node)
        busy = taken.setdefault(info.node, {*node.used, *node.kubelet_held})
        shares = []
        for kind, count in wanted.items():
            at = (info.node, kind)
            given = [one.id for one in node.devices if one.type == kind and one.id in node.kubelet_held]
            accounted = min(known.setdefault(at, len(given)), count)
            known[at] -= accounted
            idle = [one for one in node.devices if one.type == kind and one.id not in busy]
            chosen = sorted(idle, key=lambda one: not one.healthy)[: count - accounted]  # stable: by minor
            busy.update(one.id for one in chosen)
            shares += [Share(one.type, one.id, one.minor, one.capacity) for one in chosen]
        assumed.append(_with(pod, {ASSUMED: str(len(shares)), **write_annotations(shares, KUBERNETES_DOMAIN, types)}))
    return assumed


def _with(pod: Raw, annotations: Mapping[str, str]) -> Raw:
    metadata = pod["metadata"]
    return {**pod, "metadata": {**metadata, "annotations": {**(metadata.get("annotations") or {}), **annotations}}}
