"""The Device object (pure): GPUs, RDMA NICs, FPGAs, configured types, and devices that the kubelet allocated."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from allocator.vocabulary.adopted import Numbering, Numberings
from allocator.vocabulary.delivery import NodeRuntime
from allocator.vocabulary.device import Device
from allocator.vocabulary.devicetype import FULL, DeviceType, DeviceTypes, Unit
from allocator.vocabulary.names import (
    AGREEMENT,
    CORDONED,
    DEVICE_COUNTS,
    DEVICES_CHECKPOINTS,
    KUBERNETES_DOMAIN,
    TYPE_GPU,
)
from allocator.wire.deviceobject import (
    DEVICE_NUMBERS,
    GPU_MODEL,
    MAX_NUMBERINGS,
    read_device_object,
    read_numberings,
    write_numberings,
)
from allocator.wire.noderuntime import MEMORY_LIMITS, NODE_RUNTIME, write_runtime
from reporter.gpu.entries import TYPE_MIG, DeviceReport, timestamp
from reporter.inventory import PciDevice
from reporter.kubelet.checkpoint import CheckpointError
from reporter.kubelet.devicecheckpoint import UNTOLD, PodDevices, read_annotation
from reporter.kubelet.devicecheckpoint import annotation as checkpoints_annotation
from reporter.pods import NodeIdentity
from reporter.reading import GpuView

_MAX_OTHERS: Final = 256  # devices with those that have gone


def numberings(
    live: Mapping[str, Any] | None, gpus: GpuView, now: float, others: Iterable[PciDevice] = ()
) -> Numberings:
    """Which device each number means, and meant: the history that an annotation states, with the present numbers.

    Who names devices by number means those of the time at which a Pod started. Before the first entry nothing is known.
    That entry reaches back to the boot if nothing has changed since: the minors of cards, which the driver gives once,
    have no gap, and NVML lists the cards in their order. The minors of other devices are the reporter's own: they
    change as it tells them. While NVML cannot be read the history stays.
    """
    known, _ = read_numberings(annotations(live).get(DEVICE_NUMBERS))
    unread = not gpus.indexes or gpus.outage is not None
    if unread and not known and (gpus.node.cards or gpus.outage is not None):
        return known  # so that the first entry has the cards, and may reach back to the boot
    last = known[-1] if known else Numbering(0, 0)
    cards = (card.facts for card in gpus.node.cards.values() if card.health.present)
    indexes = last.indexes if unread else gpus.indexes
    minors = last.minors if unread else tuple(sorted((facts.minor, facts.uuid) for facts in cards))
    told = _told(last, others)
    if last == replace(last, indexes=indexes, minors=minors, others=told):
        return known
    oldest = last.since
    if known and (last.indexes, last.minors) == (indexes, minors):
        since = after = max(int(now) + 1, oldest)
    elif minors == tuple(enumerate(indexes)) and gpus.booted > oldest:
        since = after = int(gpus.booted)  # a boot makes new numbers at one moment
    else:
        since = max(int(now) + 1, oldest)
        after = max(oldest, min(int(gpus.until), since)) if known else since
    return (*known, Numbering(since, after, indexes, minors, told))[-MAX_NUMBERINGS:]


def _told(last: Numbering, others: Iterable[PciDevice]) -> tuple[tuple[str, int, str], ...]:
    """The devices besides cards, with those that have gone: one that comes and goes must not push out the history."""
    there = {(one.type, one.minor): one.bus for one in others}
    every = {(kind, minor): identity for kind, minor, identity in last.others} | there
    return tuple(sorted((*key, identity) for key, identity in (every if len(every) <= _MAX_OTHERS else there).items()))


API_VERSION: Final = "scheduling.koordinator.sh/v1alpha1"
KIND: Final = "Device"
SET_ASIDE: Final = "Cordoned"  # the reason of a device that an administrator set aside
_CARDS: Final = (TYPE_GPU, TYPE_MIG)
_MANAGED_BY: Final = {"app.kubernetes.io/managed-by": "koordgate"}


@dataclass(frozen=True, slots=True)
class DeviceObject:
    """The object to apply."""

    body: dict[str, Any]
    devices: tuple[Device, ...]  # what a reader of the object finds; the Node's amounts are computed from the same
    problems: tuple[str, ...]  # what could not be reported, a sentence each


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """What the object reports about Pods, and about the node's container runtime."""

    # devices that Pods have without an allocation of ours, from the kubelet or otherwise; None if nobody can tell, so
    # that all devices count as allocated
    held: Collection[PodDevices] | None = ()
    agreement: str = ""  # how Pods compare with their allocations, as text; left out if empty
    numberings: Numberings = ()  # which card each number meant
    memory: str = ""  # what containers have of their cards' memory, as text; left out if empty
    runtime: NodeRuntime | None = None  # what the container runtime can do; None if nothing is told of it


@dataclass(frozen=True, slots=True)
class StatedHealth:
    """The health of one device as an object states it."""

    type: str
    healthy: bool  # whether it can be used
    reason: str = ""  # of its state, one word; "" if the object has none
    message: str = ""  # what is wrong with it; "" if nothing is, or the object does not say


def others(body: Mapping[str, Any] | None) -> dict[str, StatedHealth]:
    """Read the health of devices other than cards and their MIG devices, from an object of any writer."""
    found = {}
    for entry in _standing(body):
        kind, identity = (entry.get("type"), entry.get("id")) if isinstance(entry, dict) else (None, None)
        if isinstance(kind, str) and isinstance(identity, str) and kind not in _CARDS:
            listed = entry.get("conditions")
            first = listed[0] if isinstance(listed, list) and listed and isinstance(listed[0], dict) else {}
            reason, message = (first.get(key) for key in ("reason", "message"))
            found[identity] = StatedHealth(
                kind,
                healthy=entry.get("health") is True,
                reason=reason if isinstance(reason, str) else "",
                message=message if isinstance(message, str) else "",
            )
    return found


def held_before(live: Mapping[str, Any] | None) -> tuple[PodDevices, ...] | None:
    """Read which devices Pods have according to an object of any writer; None if nobody can tell."""
    stated = annotations(live)
    text = next((stated[key] for key in DEVICES_CHECKPOINTS if key in stated), None)
    if text is None:
        labels = ((live or {}).get("metadata") or {}).get("labels")
        ours = isinstance(labels, dict) and labels.items() >= _MANAGED_BY.items()
        return () if ours else None
    try:
        return read_annotation(text)
    except CheckpointError:
        return None


def cordoned(live: Mapping[str, Any] | None) -> frozenset[str]:
    """Read which devices an administrator cordoned: an annotation of the Device object that we never write."""
    text = annotations(live).get(CORDONED)
    return frozenset(word.strip() for word in text.split(",") if word.strip()) if isinstance(text, str) else frozenset()


def build(
    node: NodeIdentity,
    gpus: DeviceReport,
    others: Sequence[PciDevice],
    types: DeviceTypes,
    *,
    domain: str = KUBERNETES_DOMAIN,
    facts: DeviceFacts = DeviceFacts(),
    live: Mapping[str, Any] | None = None,
    now: float = 0.0,
) -> DeviceObject:
    """Write the object.

    `now`: seconds since 1970, for conditions that change now.
    """
    problems = list(gpus.problems)
    aside = cordoned(live)
    entries = _dated([*gpus.devices, *(_entry(one, types, aside, domain) for one in others)], live, timestamp(now))
    stated = dict(gpus.annotations)
    if facts.held is None or facts.held:
        text, untold = _checkpoints(facts.held)
        problems += untold
        stated.update(dict.fromkeys(DEVICES_CHECKPOINTS, text))
    if facts.numberings:
        stated[DEVICE_NUMBERS] = write_numberings(facts.numberings)
    if facts.runtime is not None:
        stated[NODE_RUNTIME] = write_runtime(facts.runtime)
    if facts.agreement:
        stated[AGREEMENT] = facts.agreement
    if facts.memory:
        stated[MEMORY_LIMITS] = facts.memory
    if entries:
        stated[DEVICE_COUNTS] = _counted(entries)
    body: dict[str, Any] = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {
            "name": node.name,
            "labels": {**_MANAGED_BY, **gpus.labels},
            "annotations": stated,
            "ownerReferences": [node.owner],
        },
        "spec": {"devices": entries},
    }
    read = read_device_object(body, types)
    problems += read.problems
    devices = tuple(replace(device, healthy=False) if device.id in aside else device for device in read.devices)
    return DeviceObject(body, devices, tuple(problems))


def _checkpoints(held: Collection[PodDevices] | None) -> tuple[str, tuple[str, ...]]:
    """Write what is held, and what is wrong: without the annotation, nothing would count as allocated."""
    why = "the kubelet's checkpoint was never readable, and no object in the cluster says what it held"
    try:
        if held is not None:
            return checkpoints_annotation(held), ()
    except CheckpointError as error:
        why = str(error)
    return UNTOLD, (f"the kubelet's allocations cannot be reported: {why}; all devices count as allocated",)


def _counted(entries: Iterable[Mapping[str, Any]]) -> str:
    """Count the healthy ones of each type, and all: `7/8 gpu, 2/2 rdma`."""
    healthy, every = Counter[str](), Counter[str]()
    for entry in entries:
        every[entry["type"]] += 1
        healthy[entry["type"]] += entry["health"]
    return ", ".join(f"{healthy[kind]}/{every[kind]} {kind}" for kind in sorted(every))


def worth_telling(body: Mapping[str, Any], live: Mapping[str, Any] | None) -> bool:
    """Whether the object is needed: a node that never had a device needs none."""
    return live is not None or bool(body["spec"]["devices"]) or bool(body["metadata"]["annotations"])


def _entry(one: PciDevice, types: DeviceTypes, aside: frozenset[str], domain: str) -> dict[str, Any]:
    """Write a device as Koordinator writes an RDMA NIC (pkg/koordlet/statesinformer, the device reporter)."""
    kind = types.by_name[one.type]
    problem = "an administrator set the device aside" if one.bus in aside else one.problem
    reason = SET_ASIDE if one.bus in aside else one.reason if one.problem else "Healthy"
    entry: dict[str, Any] = {
        "type": one.type,
        "id": one.bus,
        "minor": one.minor,
        "health": not problem,
        "resources": _amounts(one, kind, domain),
        "conditions": [
            {"type": "Healthy", "status": "False" if problem else "True", "reason": reason, "message": problem[:1024]}
        ],
    }
    if one.numa_node is not None and one.pcie_root is not None:
        entry["topology"] = {"socketID": -1, "nodeID": one.numa_node, "pcieID": one.pcie_root, "busID": one.bus}
    if one.model:
        entry["labels"] = {GPU_MODEL: one.model}
    if one.functions:
        entry["vfGroups"] = [{"vfs": [{"minor": -1, "busID": bus} for bus in one.functions]}]
    return entry


def _amounts(one: PciDevice, kind: DeviceType, domain: str) -> dict[str, str]:
    """Write what a whole device has: 100 of everything in percent, the rest as its match states it."""
    if kind.simple and not one.amounts:
        whole = "100" if kind.unit is Unit.PERCENT else "1"
        return {kind.resource_name(domain, kind.plain): whole}
    stated = {tail: FULL for tail, percent in zip(kind.tails, kind.percent, strict=True) if percent} | dict(one.amounts)
    return {kind.resource_name(domain, tail): str(stated[tail]) for tail in sorted(stated)}


def _standing(live: Mapping[str, Any] | None) -> list[Any]:
    """The `spec.devices` of an object; empty if there are none."""
    spec = (live or {}).get("spec")
    devices = spec.get("devices") if isinstance(spec, dict) else None
    return devices if isinstance(devices, list) else []


def _dated(entries: Iterable[Mapping[str, Any]], live: Mapping[str, Any] | None, now: str) -> list[dict[str, Any]]:
    """Date each condition: as in the cluster if its status is still the same, otherwise now."""
    since: dict[tuple[object, object], str] = {}
    for entry in _standing(live):
        listed = entry.get("conditions") if isinstance(entry, dict) else None
        for condition in listed if isinstance(listed, list) else ():
            time = condition.get("lastTransitionTime") if isinstance(condition, dict) else None
            if isinstance(time, str) and isinstance(entry.get("id"), str):
                since[entry["id"], str(condition.get("status"))] = time
    return [
        {
            **entry,
            "conditions": [
                {**one, "lastTransitionTime": since.get((entry["id"], one["status"]), now)}
                for one in entry["conditions"]
            ],
        }
        for entry in entries
    ]


def annotations(live: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """The annotations of an object of any writer; empty if it has none."""
    metadata = (live or {}).get("metadata")
    found = metadata.get("annotations") if isinstance(metadata, dict) else None
    return found if isinstance(found, dict) else {}
