"""The amounts that a node has for Pods, and the shortages of a Pod on it (pure)."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from allocator.amounts import Amounts, node_amounts
from allocator.vocabulary.device import Device
from allocator.vocabulary.devicetype import BUILT_IN, FULL, DeviceTypes


def allocatable(node: Mapping[str, Any], devices: Iterable[Device]) -> dict[str, int]:
    """The amounts that a Node has for Pods; device resources that it does not state are sums over its devices.

    Raises:
        BadQuantityError: an amount is not a quantity.
    """
    return {**_of_devices(devices), **node_amounts(node)}


def _of_devices(devices: Iterable[Device]) -> dict[str, int]:
    """Sum up healthy devices under every name of their resources, as the reporter would state them.

    The administrator's own types are stated nowhere; only the extender accounts for them (`managed`).
    """
    total: Counter[str] = Counter()
    for device in devices:
        if not device.healthy:
            continue
        for name, meaning in BUILT_IN.resources.items():
            if meaning.type.name == device.type and (meaning.dialect.own or meaning.counts_devices):
                # No device states gpu and gpu.shared. Each device counts as a whole one of both, as in Koordinator.
                total[name] += 1 if meaning.counts_devices else device.capacity.get(meaning.tail, FULL)
    return dict(total)


def managed(types: DeviceTypes) -> frozenset[str]:
    """The resources of own types, which kube-scheduler leaves to the extender if a node does not state them."""
    return frozenset(name for name, meaning in types.resources.items() if not meaning.type.domains)


def shortages(asked: Amounts, has: Amounts, used: Amounts) -> Iterable[tuple[str, int, int, int]]:
    """Find what a node lacks: resource, amount asked, free, and in total."""
    for name in sorted(asked):
        total = has.get(name, 0)
        free = total - used.get(name, 0)
        if asked[name] > max(free, 0):
            yield name, asked[name], max(free, 0), total
