"""One copy of what thousands of objects say alike: parsed JSON holds a copy in each. Nobody changes such a value."""

import sys
from collections.abc import Hashable, Mapping
from dataclasses import replace
from typing import Any, Final, TypeVar

from allocator.vocabulary.cpunode import CpuShare
from allocator.vocabulary.holdings import Holding
from allocator.wire.deviceobject import NodeDevices
from allocator.wire.nodetopology import NodeTopology
from webhook.boundedcache import BoundedCache
from webhook.ledger.store import Record
from webhook.view.loads import Requests
from webhook.view.podinfo import PodInfo, Stranger

T = TypeVar("T", bound=Hashable)
V = TypeVar("V")

_MOST_BYTES: Final = 16 * 2**20  # of values beside texts, about as long as they are when written out
_COPIES: Final[BoundedCache[Hashable, Any]] = BoundedCache(_MOST_BYTES)


def same_text(text: str) -> str:
    """The first copy of a text; it is forgotten with its last user."""
    return sys.intern(text) if type(text) is str else text


def same(value: T) -> T:
    """The first copy of a value."""
    return _first((type(value), value), value)


def same_mapping(value: Mapping[str, V]) -> Mapping[str, V]:
    """The first copy of a mapping."""
    return _first((dict, *value.items()), value)


def _first(key: Hashable, value: V) -> V:
    found: V | None = _COPIES.get(key)
    return _COPIES.put(key, value, len(repr(value))) if found is None else found


def lean_devices(devices: NodeDevices) -> NodeDevices:
    """A Device object that shares what others say alike."""
    lean = tuple(
        replace(
            device,
            type=same_text(device.type),
            capacity=same_mapping(device.capacity),
            pcie=None if device.pcie is None else same_text(device.pcie),
            model=same_text(device.model),
            vendor=same_text(device.vendor),
            labels=same_mapping(device.labels),
        )
        for device in devices.devices
    )
    return replace(devices, devices=lean)


def lean_topology(topology: NodeTopology) -> NodeTopology:
    """A topology that shares its CPUs: machines of one make are alike, and what is derived from their CPUs is large."""
    return topology if topology.cpu is None else replace(topology, cpu=same(topology.cpu))


def lean_record(record: Record) -> Record:
    """A record that shares what others say alike."""
    return replace(record, holdings={uid: _lean_holding(holding) for uid, holding in record.holdings.items()})


def _lean_holding(holding: Holding) -> Holding:
    shares = tuple(
        share._replace(
            type=same_text(share.type),
            amounts=same_mapping(share.amounts),
            containers=same(share.containers),
        )
        for share in holding.shares
    )
    return replace(holding, namespace=same_text(holding.namespace), shares=shares)


def lean_pod(pod: PodInfo, held: Holding | None) -> PodInfo:
    """A Pod that shares what others say alike, and with the ledger what both say of its devices and CPUs."""
    if held is not None and held.shares == pod.shares and _cpus(held.cpus) == _cpus(pod.cpus):
        pod = replace(pod, shares=held.shares, cpus=held.cpus)
    return replace(
        pod,
        namespace=same_text(pod.namespace),
        node=same_text(pod.node),
        scheduler_name=same_text(pod.scheduler_name),
        request=same(pod.request),
        requests=same(pod.requests),
        models=same(pod.models),
        selection=same(pod.selection),
    )


def lean_stranger(pod: Stranger) -> Stranger:
    """A Pod of others that shares what others say alike."""
    return pod._replace(node=same_text(pod.node), resources=same(pod.resources), takes=same(pod.takes))


def lean_amounts(amounts: Requests) -> Mapping[str, int]:
    """Amounts by resource, shared between nodes that have the same."""
    return same_mapping({same_text(name): amount for name, amount in amounts})


def _cpus(share: CpuShare | None) -> int | None:
    """Which CPUs a share has: all that an annotation says of it as well."""
    return None if share is None else share.cpus
