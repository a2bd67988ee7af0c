"""The Node's device amounts and labels (pure): sums over devices, model, driver and memory.

The amounts of each resource are those of the devices in service, and what live Pods hold of the others.
kube-scheduler and the kubelet subtract the requests of all Pods on the node. Without the second part, the Pods on a
device out of service would take the amounts of devices in service: four idle cards could not be used while four other
cards with Pods are cordoned, and a kubelet that restarts would reject Pods that run. For the same reason a card's
memory counts with what its driver keeps: Pods that were given all of it, or state all of it and wait, remain
acceptable.

Both domains are written, as Koordinator's noderesource controller does
(pkg/slo-controller/noderesource/plugins/gpudeviceresource). `nvidia.com/gpu` belongs to the kubelet and is never
touched. With the mirror, the amounts of Volcano GPU share's device plugin are written as well, where no plugin does
(volcano-sh/devices, pkg/plugin/nvidia/utils.go: units of memory of all cards, and the number of cards). The labels of
NVIDIA's feature discovery, which selectors and schedulers know, are written where nobody else does.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from allocator.disputed import meant
from allocator.vocabulary.device import Device
from allocator.vocabulary.devicetype import FULL, DeviceType, DeviceTypes, Unit
from allocator.vocabulary.dialects import VOLCANO_MEMORY, VOLCANO_NUMBER
from allocator.vocabulary.holdings import Share
from allocator.vocabulary.names import (
    GPU_COUNT,
    GPU_MEMORY,
    GPU_MEMORY_MIB,
    GPU_PRODUCT,
    KOORDINATOR_DOMAIN,
    NVIDIA,
    TYPE_GPU,
)
from allocator.wire.deviceobject import GPU_MODEL, GPU_VENDOR
from reporter.gpu.entries import DRIVER_VERSION, label
from reporter.gpu.facts import GpuFacts
from reporter.pods import MANAGER, NodeIdentity

_MAX_ENTRIES: Final = 256  # of managedFields; with more, every field counts as somebody else's


def is_ours(live: Mapping[str, Any], at: Sequence[str], key: str) -> bool:
    """Whether nobody has a key, or the reporter alone.

    `at`: the way to the map that has the key.
    """
    there: Mapping[str, Any] = live
    for step in at:
        there = there.get(step) or {}
    if key not in there:
        return True
    entries = (live.get("metadata") or {}).get("managedFields") or []
    return len(entries) <= _MAX_ENTRIES and set(_owners(at, key, entries)) == {MANAGER}


def _owners(at: Sequence[str], key: str, entries: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """The field managers that own a key."""
    for entry in entries:
        fields = entry.get("fieldsV1") or {}
        for step in at:
            fields = fields.get(f"f:{step}") or {}
        if f"f:{key}" in fields:
            yield str(entry.get("manager"))


_MIB: Final = 2**20


def discovery_labels(cards: Iterable[GpuFacts], live: Mapping[str, Any] | None) -> dict[str, str]:
    """Write the labels that say which cards the node has, as far as they are ours to write."""
    if live is None:
        return {}
    found = list(cards)
    models, sizes = {card.model for card in found}, {card.memory for card in found}
    stated = {GPU_COUNT: str(len(found)) if found else ""}
    stated[GPU_PRODUCT] = label(models.pop()) if len(models) == 1 else ""
    size = sizes.pop() if len(sizes) == 1 else None
    stated[GPU_MEMORY_MIB] = str(size // _MIB) if size is not None else ""
    return {key: value for key, value in stated.items() if value and is_ours(live, ("metadata", "labels"), key)}


MEMORY_LABEL: Final = "koordgate.io/gpu-memory-mib"  # of each card, if all have the same


def build(
    node: NodeIdentity,
    devices: Iterable[Device],
    labels: Mapping[str, str],
    types: DeviceTypes,
    shares: Iterable[Share] = (),
    discovered: Mapping[str, str] | None = None,
    told: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Write what is applied to the Node through its `status` subresource, which gives no right to its spec.

    `devices`: all devices of the node; unhealthy ones are out of service. `labels`: the Device object's; vendor, model
    and driver are copied.
    """
    devices = tuple(devices)
    copied = {key: labels[key] for key in (GPU_VENDOR, GPU_MODEL, DRIVER_VERSION) if key in labels}
    sizes = {device.capacity[GPU_MEMORY] for device in devices if device.type == TYPE_GPU}
    if len(sizes) == 1:
        copied[MEMORY_LABEL] = str(sizes.pop() // _MIB)
    # Each status sync of the kubelet sets allocatable to capacity, for each name (pkg/kubelet/nodestatus/setters.go of
    # Kubernetes): with the totals as capacity, each would overwrite the other. The totals are on the Device object.
    usable = {**amounts(devices, types, shares), **(told or {})}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": node.name, "labels": {**copied, **(discovered or {})}},
        "status": {"capacity": usable, "allocatable": dict(usable)},
    }


def volcano_amounts(devices: Iterable[Device], unit: int, live: Mapping[str, Any] | None) -> dict[str, str]:
    """Write what Volcano GPU share's device plugin states of a node, as far as it is ours to write.

    `unit`: bytes in one volcano.sh/gpu-memory; 0 to write nothing.
    """
    cards = [one for one in devices if one.type == TYPE_GPU and one.is_of(NVIDIA)] if unit and live is not None else []
    if not cards or live is None:
        return {}
    usable = [card for card in cards if card.healthy]
    units = sum(card.has_at_most(GPU_MEMORY) // unit for card in usable)
    stated = {VOLCANO_MEMORY: str(units), VOLCANO_NUMBER: str(len(usable))}
    ours = all(_is_free(live, of, name) for of in ("capacity", "allocatable") for name in stated)
    return stated if ours else {}


def _is_free(live: Mapping[str, Any], of: str, name: str) -> bool:
    """Whether nobody else states an amount: after a reboot the kubelet sets what no device plugin states to 0."""
    present = ((live.get("status") or {}).get(of) or {}).get(name)
    return present in {None, "0", 0} or is_ours(live, ("status", of), name)


def amounts(devices: Iterable[Device], types: DeviceTypes, shares: Iterable[Share] = ()) -> dict[str, str]:
    """Sum up the devices in service and what is held of the others, by full resource name.

    A type has 0 if the node has devices of it, but none is in service or held. A type without devices has no entry.
    """
    sums: dict[str, int] = defaultdict(int)
    devices, shares = tuple(devices), tuple(shares)
    by_id = {(device.type, device.id): device for device in devices}
    for share, ids in meant(shares, (), (), devices):
        on = next((by_id[share.type, identity] for identity in ids if (share.type, identity) in by_id), None)
        if on is None or not on.healthy:
            whole = on.capacity if on is not None else {}
            stated = any(share.amounts.values())
            for name, amount in _counted(types.by_name[share.type], share.amounts if stated else whole):
                sums[name] += amount
    for device in devices:
        most = {tail: device.has_at_most(tail) for tail in device.capacity}
        for name, amount in _counted(types.by_name[device.type], most):
            sums[name] += amount if device.healthy else 0
    return {name: str(sums[name]) for name in sorted(sums)}


def _counted(kind: DeviceType, held: Mapping[str, int]) -> Iterator[tuple[str, int]]:
    """Give each resource name of a type, with what these amounts of one device are in the name's unit."""
    for tail in kind.tails:
        amount = held.get(tail, 0)
        for name in kind.spellings(tail):
            yield name, amount // FULL if kind.simple and kind.unit is Unit.DEVICES else amount
    if not kind.simple:  # all parts of a device in one name; Koordinator sums it for GPUs as well
        percent = [held.get(tail, 0) for tail, in_percent in zip(kind.tails, kind.percent, strict=True) if in_percent]
        share = max(percent, default=FULL)
        yield kind.resource_name(KOORDINATOR_DOMAIN, kind.plain), share // FULL if kind.unit is Unit.DEVICES else share
