"""Nodes that are alike: `place()` refuses a request on all of them if it refuses it on one.

Thousands of nodes of a cluster are of a few makes, and many of them are empty or full. What takes long to refuse on one
of them need not be searched again on the others.
"""

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import fields, replace
from operator import attrgetter
from typing import Final

from allocator.vocabulary.asks import PodRequest
from allocator.vocabulary.cpunode import CpuNode
from allocator.vocabulary.device import Device, Wiring
from allocator.vocabulary.names import DEVICE_ID
from allocator.vocabulary.node import NodeSnapshot
from allocator.vocabulary.outcome import Refusal

# All fields of a CpuNode but its zones, which cannot be hashed as they are.
_CPU_RULES: Final = attrgetter(*(one.name for one in fields(CpuNode) if one.name != "zones"))


def signature_of(node: NodeSnapshot) -> Hashable:
    """All that a refusal by `place()` depends on, except what `depends_on_names` names.

    Names of nodes, ids of devices, and who holds what are not in it. Devices are numbered in the node's order, which is
    that of their ids too where type and minor are equal.
    """
    at = {device.id: number for number, device in enumerate(node.devices)}
    return (
        tuple([_device(device, node) for device in node.devices]),
        _wiring(node.wiring, at),
        None if node.cpu is None else _cpus(node.cpu, node),
        node.order,
        node.isolation,
        node.delivery,
        frozenset(node.functions_held()),
        tuple(sorted([(one.namespace, one.name, one.unread) for one in node.holdings.values() if one.unread])),
    )


def depends_on_names(request: PodRequest, node: NodeSnapshot) -> bool:
    """Whether a verdict may depend on ids of devices, or on what the Pod's gang holds there."""
    wishes = request.wishes
    if wishes.gang and any(holding.gang == wishes.gang for holding in node.holdings.values()):
        return True
    selectors = [selector for _, hint in wishes.hints for selector in (hint.selector, hint.functions) if selector]
    return any(requirement.key == DEVICE_ID for selector in selectors for requirement in selector.requirements)


def renamed(refusal: Refusal, by: str, on: str) -> Refusal | None:
    """The refusal by one node as a node like it would word it; None if it does not begin with the name."""
    prefix = f"{by}: "
    if not refusal.message.startswith(prefix):
        return None
    return replace(refusal, message=f"{on}: {refusal.message[len(prefix) :]}")


def _device(device: Device, node: NodeSnapshot) -> Hashable:
    used = node.used.get(device.id)
    return (
        device.type,
        device.minor,
        device.healthy,
        _items(device.capacity),
        device.numa_node,
        device.pcie,
        device.model,
        _items(device.labels) if device.labels else (),
        tuple([(one.minor, one.bus_id, _items(one.labels)) for one in device.functions]) if device.functions else (),
        device.vendor,
        device.cordoned,
        None if used is None else _items(used),
        device.id in node.kubelet_held,
        device.id in node.disputed,
        device.id in node.alone,
        device.id in node.unshared,
        device.id in node.claimed,
        device.id in node.adopted,
    )


def _wiring(wiring: Wiring, at: Mapping[str, int]) -> Hashable:
    links = wiring.links
    places = tuple([at.get(one) for one in links.ids])
    return places, links.rows, wiring.partitions, wiring.honour_partitions, wiring.others


def _cpus(cpu: CpuNode, node: NodeSnapshot) -> Hashable:
    use = node.cpu_use
    return (
        _CPU_RULES(cpu),
        _items(cpu.zones),
        (use.taken, use.exclusive_cores, use.lone_cores, use.exclusive_nodes, _items(use.numa), _items(use.others)),
        _sorted(one.cpus.cpus for one in node.holdings.values() if one.cpus is not None),
    )


def _items(of: Mapping[str, Hashable] | Mapping[int, Hashable] | Mapping[tuple[int, str], Hashable]) -> Hashable:
    return frozenset(of.items())


def _sorted(masks: Iterable[int]) -> tuple[int, ...]:
    return tuple(sorted(masks))
