"""Koordinator's Device object (scheduling.koordinator.sh/v1alpha1): the devices of one node.

The reader understands today's fields and those of the device proposal's first draft (`id`/`uuid`, `type`/`deviceType`,
`resources`/`resource`), resource names in both domains, the kubelet's checkpoint annotations, the partition table, and
two annotations of our own: how devices are linked, and which are cordoned.

Two devices are joined by NVLink lanes, by a common PCIe root, by a common NUMA node, by a common socket, or by nothing
but the machine. Each pair gets one integer, and a set of devices is as good as the sum over its pairs: the set "with
the maximum data transfer speed" (device proposal, "Motivation").

Koordinator's format has no field for lanes. They come from an annotation of our own on the Device object:

    koordgate.io/device-links: {"GPU-a": {"GPU-b": 2, "GPU-c": 1}, "GPU-b": {"GPU-a": 2}}
    koordgate.io/device-links: {"GPU-a": {"NVSwitch": 12}, "GPU-b": {"NVSwitch": 12}}

The number counts NVLink lanes (`nvidia-smi topo -m` shows it as NV#). Lanes into the node's switches connect a device
to every other device with such lanes; the smaller number counts. Places come from the Device object's `topology`.

Devices that an administrator has cordoned are in an annotation with their ids, separated by commas: on the Device
object for the devices listed there, and on the Node for its software classes.

Partition tables of nodes: annotations of the Device object, and built-in tables.

The Device object's annotation koordgate.io/device-numbers: which device each number meant, and since when.

Who names a device by its number means the one that had it when the Pod started. The reporter appends an entry when the
numbers change; the oldest are dropped.
"""

import itertools
import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any, Final

from allocator.quantity import QuantityError, to_int
from allocator.vocabulary.adopted import Numbering, Numberings
from allocator.vocabulary.delivery import NodeRuntime
from allocator.vocabulary.device import (
    HOPPER,
    MAX_DEVICES,
    MAX_LANES,
    NO_LINKS,
    SWITCH,
    UNWIRED,
    Board,
    Device,
    Lanes,
    Links,
    Partition,
    PartitionPolicy,
    PartitionTable,
    Place,
    VirtualFunction,
    Wiring,
    link,
)
from allocator.vocabulary.devicetype import BUILT_IN, FULL, DeviceType, DeviceTypes
from allocator.vocabulary.names import CORDONED, DEVICES_CHECKPOINTS, GPU_PRODUCT, RESERVED_MEMORY, TYPE_GPU, model_name
from allocator.vocabulary.outcome import excerpt
from allocator.wire.noderuntime import MAX_USES_LENGTH, MEMORY_LIMITS, NODE_RUNTIME, read_runtime
from allocator.wire.podallocated import LARGEST_MINOR
from allocator.wire.values import MAX_OF_NODE, UNREADABLE, as_json, as_list, as_object, as_text, as_time, parse_json

GPU_PARTITIONS: Final = "scheduling.koordinator.sh/gpu-partitions"
GPU_PARTITION_POLICY: Final = "node.koordinator.sh/gpu-partition-policy"
GPU_VENDOR: Final = "node.koordinator.sh/gpu-vendor"
GPU_MODEL: Final = "node.koordinator.sh/gpu-model"
_KEYS: Final = frozenset({"minors", "gpuLinkType", "ringBusBandwidth", "allocationScore"})
_MAX_PARTITIONS: Final = 1024
_MAX_SIZE: Final = 64  # devices of one partition
_MAX_MINOR: Final = 2**31 - 1
_MAX_PROBLEMS: Final = 8
_MAX_LINK_LENGTH: Final = 64  # characters


def built_in(vendor: str, model: str, boards: Iterable[Board] = (HOPPER,)) -> PartitionTable | None:
    """Return the table of boards of this model, for nodes that state none; None if no board matches.

    `vendor`: label gpu-vendor; "" if absent. `model`: label gpu-model, such as "H100" or, as NVML names it,
    "H100-80GB-HBM3".
    """
    return next((board.table for board in boards if board.fits(vendor, model)), None)


def policy_of(device: Mapping[str, object], node: Mapping[str, object], *, stated: bool) -> PartitionPolicy:
    """Read the node's policy: from the Device object's labels if that states a table, otherwise from the Node's."""
    value = (device if stated else node).get(GPU_PARTITION_POLICY)
    return PartitionPolicy.HONOR if value == PartitionPolicy.HONOR else PartitionPolicy.PREFER


def read_partitions(text: object) -> tuple[PartitionTable, tuple[str, ...]]:
    """Read the gpu-partitions annotation.

    Returns the table without wrong entries, and one sentence for each of these. A text that cannot be read at all is an
    empty table, because a stated table replaces the built-in one.
    """
    problems: list[str] = []
    found: dict[tuple[int, ...], Partition] = {}
    for size, listed in _table_object(text, problems).items():
        if not isinstance(listed, list):
            problems.append(f"[{excerpt(size)!r}]: not a list of partitions; left out")
            continue
        for index, entry in enumerate(listed):
            if len(found) >= _MAX_PARTITIONS or len(problems) >= _MAX_PROBLEMS:
                problems.append(f"more than {_MAX_PARTITIONS} partitions or {_MAX_PROBLEMS} wrong ones; rest left out")
                return _table(found, problems)
            try:
                partition = _read_partition(size, entry, found)
                found[partition.minors] = partition
            except (ValueError, TypeError) as error:
                problems.append(f"[{excerpt(size)!r}][{index}]: {error}; left out")
    return _table(found, problems)


def _table(found: Mapping[tuple[int, ...], Partition], problems: list[str]) -> tuple[PartitionTable, tuple[str, ...]]:
    return PartitionTable(tuple(found.values())), tuple(f"annotation {GPU_PARTITIONS}: {one}" for one in problems)


def _table_object(text: object, problems: list[str]) -> dict[str, Any]:
    try:
        raw = parse_json(text, MAX_OF_NODE)
    except UNREADABLE as error:
        problems.append(f"not JSON ({error}); no partition is read")
        return {}
    if not isinstance(raw, dict):
        problems.append("not an object of numbers of GPUs; no partition is read")
        return {}
    return raw


def _read_partition(size: str, entry: object, found: Collection[tuple[int, ...]]) -> Partition:
    """Read one partition.

    Raises ValueError: it is wrong; the message says why; TypeError: as ValueError.
    """
    if not isinstance(entry, dict):
        raise TypeError("not an object")
    if unknown := sorted(entry.keys() - _KEYS):
        raise ValueError(f"unknown key {excerpt(unknown[0])!r}; known are {', '.join(sorted(_KEYS))}")
    minors = entry.get("minors")
    if not isinstance(minors, list) or not 0 < len(minors) <= _MAX_SIZE or str(len(minors)) != size:
        raise ValueError(f"minors is not a list of {excerpt(size)!r} numbers (1 to {_MAX_SIZE})")
    ordered = tuple(sorted(_whole(minor, "a minor", _MAX_MINOR) for minor in minors))
    if len(set(ordered)) != len(ordered):
        raise ValueError("a minor occurs twice")
    if ordered in found:
        raise ValueError("these minors occur twice")
    link = entry.get("gpuLinkType") or ""
    if not isinstance(link, str) or len(link) > _MAX_LINK_LENGTH:
        raise ValueError("gpuLinkType is not a short text")
    bandwidth = entry.get("ringBusBandwidth")
    try:
        return Partition(
            ordered,
            _whole(entry.get("allocationScore") or 0, "allocationScore", _MAX_MINOR),
            None if bandwidth is None else to_int(bandwidth),
            link,
        )
    except QuantityError as error:
        raise ValueError(f"ringBusBandwidth: {error}") from error


def _whole(value: object, what: str, most: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
        raise ValueError(f"{what} is not a whole number from 0 to 2^31-1")
    return value


DEVICE_NUMBERS: Final = "koordgate.io/device-numbers"
MAX_NUMBERINGS: Final = 16  # of some 1 KB each for a node of 16 cards
_MAX_WRITTEN: Final = 2**16  # characters: all annotations of an object together may have 256 KiB
_MAX_CARDS: Final = 1024
_MAX_TYPES: Final = 64
_LATEST: Final = 253_402_300_799  # the last second of the year 9999


def write_numberings(numberings: Numberings) -> str:
    """Write the annotation: the latest entries, as many as there is room for."""
    entries = [
        {
            "since": one.since,
            **({"after": one.after} if one.after != one.since else {}),
            "indexes": list(one.indexes),
            "minors": {str(minor): identity for minor, identity in one.minors},
            **({"others": _by_type(one)} if one.others else {}),
        }
        for one in numberings[-MAX_NUMBERINGS:]
    ]
    while len(text := json.dumps(entries, separators=(",", ":"))) > _MAX_WRITTEN and entries:
        del entries[0]
    return text


def _by_type(one: Numbering) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    for kind, minor, identity in one.others:
        found.setdefault(kind, {})[str(minor)] = identity
    return found


def read_numberings(text: object) -> tuple[Numberings, str]:
    """Read the annotation.

    Returns what is known of the past, and why the annotation cannot be read; nothing is known then. "" if it can.
    """
    try:
        entries = as_list(as_json(text, MAX_OF_NODE))
        if len(entries) > MAX_NUMBERINGS:
            raise ValueError(f"more than {MAX_NUMBERINGS} entries")
        found = tuple(_read(as_object(entry)) for entry in entries)
        for before, one in itertools.pairwise(found):
            if not before.since <= one.after <= one.since:
                raise ValueError("the entries are not in the order of time")
    except UNREADABLE as error:
        return (), f"annotation {DEVICE_NUMBERS}: {error}; what a card's number meant is not known"
    return found, ""


def _read(entry: dict[str, Any]) -> Numbering:
    since, after = entry.get("since"), entry.get("after", entry.get("since"))
    for time in (since, after):
        if not isinstance(time, int) or isinstance(time, bool) or not 0 <= time <= _LATEST:
            raise ValueError(f"{excerpt(time)!r} is no time in seconds")
    indexes, others = as_list(entry.get("indexes")), as_object(entry.get("others") or {})
    if len(indexes) > _MAX_CARDS or len(others) > _MAX_TYPES:
        raise ValueError(f"more than {_MAX_CARDS} cards, or more than {_MAX_TYPES} other types")
    return Numbering(
        since or 0,
        after or 0,
        tuple(as_text(identity) for identity in indexes),
        _minors(entry.get("minors")),
        tuple((kind, *one) for kind in sorted(others) for one in _minors(others[kind])),
    )


def _minors(value: object) -> tuple[tuple[int, str], ...]:
    minors = as_object(value)
    if len(minors) > _MAX_CARDS:
        raise ValueError(f"more than {_MAX_CARDS} cards, or other devices of a type")
    return tuple(sorted((int(minor), as_text(identity)) for minor, identity in minors.items()))


def starts_of(pod: Mapping[str, Any]) -> tuple[int, ...]:
    """When the minors of a bound Pod were resolved, seconds since the epoch; empty if that is not known.

    A container gets its devices when it starts. While none runs, the Pod has those that it was bound to.
    """
    status = pod.get("status") or {}
    running = ((one.get("state") or {}).get("running") or {} for one in status.get("containerStatuses") or ())
    bound = (
        one.get("lastTransitionTime") for one in status.get("conditions") or () if one.get("type") == "PodScheduled"
    )
    started = {_time(one.get("startedAt")) for one in running} - {None}
    times = started or {_time(one) for one in bound} - {None} or {_time(status.get("startTime"))} - {None}
    return tuple(sorted(time for time in times if time is not None))


def _time(text: object) -> int | None:
    try:
        return as_time(text)
    except UNREADABLE:
        return None


DEVICE_LINKS: Final = "koordgate.io/device-links"


class _Problems(list[str]):
    """Sentences for people, up to a bounded number."""

    def note(self, sentence: str) -> None:
        if len(self) < _MAX_PROBLEMS:
            self.append(f"annotation {DEVICE_LINKS}: {sentence}")


def read_links(text: object, ids: Collection[str]) -> tuple[dict[tuple[str, str], int], tuple[str, ...]]:
    """Read the device-links annotation.

    `ids`: the devices that the object lists; others are left out. Returns (id, id), the smaller first -> lanes, without
    pairs that have none; and one sentence for each entry that could not be read. If two devices state different numbers
    for their link, the smaller counts.
    """
    problems = _Problems()
    known = set(ids) if len(ids) <= MAX_DEVICES else set()
    stated: dict[tuple[str, str], int] = {}
    switched: dict[str, int] = {}
    for device, peers in _object(text, problems).items():
        if device not in known:
            problems.note(f"{excerpt(device)!r} is not a device of this node that can be linked; left out")
        elif not isinstance(peers, dict):
            problems.note(f"{device!r}: not an object of peers; left out")
        else:
            _read_peers(device, peers, known, stated, switched, problems)
    lanes: dict[tuple[str, str], int] = {}
    for a, b in combinations(sorted(known), 2):
        there, back = stated.get((a, b)), stated.get((b, a))
        if there is not None and back is not None and there != back:
            problems.note(f"{a!r} and {b!r} state {there} and {back} lanes; the smaller counts")
        direct = min((count for count in (there, back) if count is not None), default=0)
        total = direct + min(switched.get(a, 0), switched.get(b, 0))
        if total:
            lanes[a, b] = total
    return lanes, tuple(problems)


def _object(text: object, problems: _Problems) -> dict[str, Any]:
    try:
        raw = parse_json(text, MAX_OF_NODE)
    except UNREADABLE as error:
        problems.note(f"not JSON ({error}); no links are read")
        return {}
    if not isinstance(raw, dict):
        problems.note("not an object of devices; no links are read")
        return {}
    return raw


def _read_peers(
    device: str,
    peers: Mapping[str, object],
    known: Collection[str],
    stated: dict[tuple[str, str], int],
    switched: dict[str, int],
    problems: _Problems,
) -> None:
    """Read one device's lanes, into `stated` (device, peer) and `switched`."""
    for peer, count in peers.items():
        if not isinstance(count, int) or isinstance(count, bool) or not 0 <= count <= MAX_LANES:
            problems.note(f"{device!r} to {excerpt(peer)!r}: not a number of lanes from 0 to {MAX_LANES}; left out")
        elif peer == SWITCH:
            switched[device] = count
        elif peer not in known or peer == device:
            problems.note(f"{device!r} to {excerpt(peer)!r}: no other device of this node; left out")
        else:
            stated[device, peer] = count


def write_links(lanes: Lanes) -> str:
    """Write the annotation: lanes between two devices, stated for both."""
    devices: dict[str, dict[str, int]] = {}
    for (a, b), count in lanes.items():
        devices.setdefault(a, {})[b] = count
        devices.setdefault(b, {})[a] = count
    return json.dumps(devices, sort_keys=True, separators=(",", ":"))


def read_cordons(annotations: Mapping[str, object]) -> frozenset[str]:
    """The ids in the annotation; none if it is absent or no text."""
    text = annotations.get(CORDONED)
    return frozenset(filter(None, map(str.strip, text.split(",")))) if isinstance(text, str) else frozenset()


def without_cordoned(device: Device, cordoned: frozenset[str]) -> Device:
    """The device unchanged or, if it is cordoned, as one on which nothing new may land."""
    if device.id not in cordoned:
        return device
    return replace(device, healthy=False, cordoned=True, why_not="cordoned by an administrator")


_MIG: Final = "mig"
_MAX_DEVICES: Final = 1024  # per node, and virtual functions per device; bounds the work for an absurd object
_MAX_FUNCTIONS: Final = 8192  # virtual functions per node
_MAX_GROUPS: Final = 64  # of virtual functions, per device
_MAX_LABELS: Final = 256  # per device, and per group of virtual functions

_MAX_NUMBER_LENGTH: Final = 15  # digits of an amount of memory


@dataclass(frozen=True, slots=True)
class NodeDevices:
    """A Device object as read."""

    node: str
    devices: tuple[Device, ...]  # the devices that could be read, by type and in the order of minors
    # ids of devices that the kubelet's device manager allocated; all devices if that cannot be read
    kubelet_held: frozenset[str] = frozenset()
    problems: tuple[str, ...] = ()  # one sentence for each part that could not be read; the other parts count
    links: Links = NO_LINKS  # how strongly any two of them are connected
    partitions: PartitionTable | None = None  # the table that the object states; None if it states none
    labels: Mapping[str, str] = field(default_factory=dict)
    cordoned: frozenset[str] = frozenset()  # ids of devices that an administrator has cordoned
    partitioned: tuple[DeviceType, ...] = ()  # the types whose devices may have to come as a set of a partition table
    # id of a device that the kubelet allocated -> UIDs of the Pods that have it, as far as stated; "" for those that
    # are not
    kubelet_pods: Mapping[str, frozenset[str]] = field(default_factory=dict)
    numberings: Numberings = ()  # which card each number meant
    runtime: NodeRuntime | None = None  # what the node's container runtime can do; None if the object does not tell
    # what containers have of their cards' memory, as text that `read_uses` reads. Nothing is decided by it, so that it
    # makes no difference, and it is read only where somebody looks.
    memory_uses: str = field(default="", compare=False)

    def named(self, node_labels: Mapping[str, str]) -> tuple[Device, ...]:
        """The devices; a GPU whose model or vendor neither its entry nor the object states has that of the Node's."""
        product = model_name(node_labels.get(GPU_MODEL) or node_labels.get(GPU_PRODUCT, ""))
        vendor = node_labels.get(GPU_VENDOR, "").lower()
        return tuple(
            replace(device, model=device.model or product, vendor=device.vendor or vendor)
            if device.type == TYPE_GPU and ((product and not device.model) or (vendor and not device.vendor))
            else device
            for device in self.devices
        )

    def wiring(self, node_labels: Mapping[str, str]) -> Wiring:
        """How the devices are connected; if the object states no partition table, boards by the Node's labels."""
        stated = self.partitions
        kinds = self.partitioned if stated is None else ()
        tables = [(kind.name, self._board(kind, node_labels)) for kind in kinds]
        table = tables[0][1] if tables else stated
        others = tuple(one for one in tables if one[1] != table)
        policy = policy_of(self.labels, node_labels, stated=stated is not None)
        if table is None and not others and policy is not PartitionPolicy.HONOR and self.links is NO_LINKS:
            return UNWIRED
        return Wiring(self.links, table, policy is PartitionPolicy.HONOR, others)

    def _board(self, kind: DeviceType, node_labels: Mapping[str, str]) -> PartitionTable | None:
        """The table of the board that a type's devices are on, by the model that labels or the devices state."""
        vendor, model = (self.labels.get(key) or node_labels.get(key, "") for key in (GPU_VENDOR, GPU_MODEL))
        own = next((device.model for device in self.devices if device.type == kind.name), "")
        return built_in(vendor, model_name(model or own or node_labels.get(GPU_PRODUCT, "")), kind.boards)


def read_device_object(obj: Mapping[str, Any], types: DeviceTypes = BUILT_IN) -> NodeDevices:
    """Read a Device object; a wrong entry is left out and named in `problems`."""
    problems: list[str] = []
    metadata = _mapping(obj.get("metadata"), "metadata", problems)
    labels = {str(k): str(v) for k, v in _mapping(metadata.get("labels"), "metadata.labels", problems).items()}
    annotations = _mapping(metadata.get("annotations"), "metadata.annotations", problems)
    listed = _mapping(obj.get("spec"), "spec", problems).get("devices")
    if listed is not None and not isinstance(listed, list):
        problems.append("spec.devices: not a list; no device is read")
        listed = None
    if len(listed or ()) > _MAX_DEVICES:
        problems.append(f"spec.devices: more than {_MAX_DEVICES}; the rest is left out")
    found = _read_devices((listed or [])[:_MAX_DEVICES], labels, types, problems)
    cordoned = read_cordons(annotations)
    devices = tuple(
        sorted(
            (without_cordoned(device, cordoned) for device, _ in found.values()),
            key=lambda device: (device.type, device.order),
        )
    )
    partitions = None
    if GPU_PARTITIONS in annotations:
        partitions, wrong = read_partitions(annotations[GPU_PARTITIONS])
        problems.extend(wrong)
    held = _read_checkpoints(annotations, devices, problems)
    sockets = {identity: socket for identity, (_, socket) in found.items()}
    links = _read_wiring(devices, sockets, annotations, problems)
    numberings, strange = read_numberings(annotations.get(DEVICE_NUMBERS))
    runtime, unlike = read_runtime(annotations.get(NODE_RUNTIME))
    uses = annotations.get(MEMORY_LIMITS)
    problems.extend(filter(None, [strange, unlike]))
    return NodeDevices(
        str(metadata.get("name", "")),
        devices,
        frozenset(held),
        tuple(problems),
        links,
        partitions,
        labels,
        cordoned,
        tuple(kind for kind in types.types if kind.partitioned),
        {identity: frozenset(uids) for identity, uids in held.items() if uids.difference({""})},
        numberings,
        runtime,
        uses if isinstance(uses, str) and len(uses) <= MAX_USES_LENGTH else "",
    )


def _read_devices(
    listed: Iterable[Any], labels: Mapping[str, str], types: DeviceTypes, problems: list[str]
) -> dict[str, tuple[Device, int | None]]:
    """Read the entries: id -> device and its socket."""
    devices: dict[str, tuple[Device, int | None]] = {}
    minors: set[tuple[str, int]] = set()
    functions: set[str] = set()
    for index, entry in enumerate(listed):
        try:
            device = _read_device(entry, labels, types)
        except (QuantityError, ValueError, TypeError, AttributeError) as error:
            problems.append(f"spec.devices[{index}]: {error}; left out")
            continue
        if device is None:
            continue
        if device.id in devices or (device.type, device.minor) in minors:
            problems.append(f"spec.devices[{index}]: id {device.id} or minor {device.minor} occurs twice; left out")
            continue
        twice = sorted(one.bus_id for one in device.functions if one.bus_id in functions)
        if twice:
            problems.append(f"spec.devices[{index}]: virtual function {twice[0]} is another device's too; left out")
            device = replace(device, functions=tuple(f for f in device.functions if f.bus_id not in functions))
        if len(functions) + len(device.functions) > _MAX_FUNCTIONS:
            problems.append(
                f"spec.devices[{index}]: with it the node has more than {_MAX_FUNCTIONS} virtual functions; left out"
            )
            break
        functions.update(one.bus_id for one in device.functions)
        devices[device.id] = (device, _number((entry.get("topology") or {}).get("socketID")))
        minors.add((device.type, device.minor))
    return devices


def _read_wiring(
    devices: Iterable[Device],
    sockets: Mapping[str, int | None],
    annotations: Mapping[str, Any],
    problems: list[str],
) -> Links:
    """Weigh how devices are connected; no links if nothing distinguishes the pairs."""
    places = [Place(device.id, device.numa_node, device.pcie, sockets[device.id]) for device in devices]
    lanes: Mapping[tuple[str, str], int] = {}
    if DEVICE_LINKS in annotations:
        lanes, wrong = read_links(annotations[DEVICE_LINKS], [place.id for place in places])
        problems.extend(wrong)
    if not lanes and all(place[1:] == (None, None, None) for place in places):
        return NO_LINKS
    return link(places, lanes)


def _mapping(value: object, path: str, problems: list[str]) -> Mapping[str, Any]:
    """Return an optional object; anything else is noted as a problem and counts as left out."""
    if isinstance(value, dict):
        return value
    if value is not None:
        problems.append(f"{path}: not an object; left out")
    return {}


def _read_device(entry: Mapping[str, Any], common: Mapping[str, str], types: DeviceTypes) -> Device | None:
    """Read one entry; None for a slice of a GPU in MIG mode, which is listed for people and never allocated.

    `common`: the labels of the object, which hold for GPUs without such labels of their own.
    """
    name = entry.get("type") or entry.get("deviceType")
    if not isinstance(name, str):
        raise TypeError("no type")
    kind = types.by_name.get(name)
    if name == _MIG:
        return None
    if kind is None:
        raise ValueError(f"type {excerpt(name)!r} is none of {', '.join(types.by_name)}; settings may add types")
    identity = entry.get("id") or entry.get("uuid")
    minor = entry.get("minor", 0)
    if not isinstance(identity, str) or not identity:
        raise ValueError("no id; a GPU's id is its UUID, another device's its PCI address")
    if "," in identity:
        raise ValueError(f"id {identity!r} has a comma, which separates ids in annotations")
    if not isinstance(minor, int) or isinstance(minor, bool) or not 0 <= minor <= LARGEST_MINOR:
        raise ValueError(f"minor {minor!r} is not from 0 to 2^31-1")
    topology = entry.get("topology") or {}
    pcie, bus = topology.get("pcieID"), topology.get("busID")
    labels = _labels(entry)
    healthy = entry.get("health") is True
    return Device(
        type=kind.name,
        id=identity,
        minor=minor,
        healthy=healthy,
        capacity=_read_capacity(kind, entry.get("resources") or entry.get("resource") or {}, types),
        numa_node=_number(topology.get("nodeID")),
        pcie=pcie if isinstance(pcie, str) and pcie else None,
        model=labels.get(GPU_MODEL, common.get(GPU_MODEL, "") if kind.model_of_node else ""),
        labels=labels,
        why_not="" if healthy else _why_not(entry.get("conditions")),
        functions=_read_functions(entry.get("vfGroups")),
        vendor=labels.get(GPU_VENDOR, common.get(GPU_VENDOR, "") if kind.model_of_node else "").lower(),
        bus=bus.lower() if isinstance(bus, str) else "",
        reserved=_read_reserved(labels.get(RESERVED_MEMORY, "")),
    )


def _labels(holder: Mapping[str, Any]) -> dict[str, str]:
    labels = holder.get("labels") or {}
    if len(labels) > _MAX_LABELS:
        raise ValueError(f"labels: more than {_MAX_LABELS}")
    return {str(key): str(value) for key, value in labels.items()}


def _read_reserved(text: str) -> int:
    """Bytes that the driver keeps; 0 for anything but a plain number of bytes."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= _MAX_NUMBER_LENGTH else 0


def _number(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _why_not(conditions: object) -> str:
    """The reason and message of the condition Healthy, if it is stated."""
    for condition in conditions if isinstance(conditions, list) else ():
        if isinstance(condition, dict) and condition.get("type") == "Healthy" and condition.get("status") != "True":
            reason, message = condition.get("reason") or "unhealthy", condition.get("message")
            return f"{reason}: {message}" if message else str(reason)
    return "unhealthy"


def _read_functions(groups: object) -> tuple[VirtualFunction, ...]:
    """Read virtual functions by group; a function has the labels of its group."""
    functions: dict[str, VirtualFunction] = {}
    if not isinstance(groups, list | None):
        raise TypeError("vfGroups: not a list")
    if len(groups or ()) > _MAX_GROUPS:
        raise ValueError(f"vfGroups: more than {_MAX_GROUPS}")
    for group in groups or ():
        labels = _labels(group)
        for entry in group.get("vfs") or ():
            bus_id, minor = entry.get("busID"), entry.get("minor", 0)
            if not isinstance(bus_id, str) or not bus_id or not isinstance(minor, int) or isinstance(minor, bool):
                raise ValueError("vfGroups: a virtual function without busID, or with a minor that is no number")
            functions[bus_id] = VirtualFunction(minor, bus_id, labels)
            if len(functions) > _MAX_DEVICES:
                raise ValueError(f"vfGroups: more than {_MAX_DEVICES} virtual functions")
    return tuple(functions[bus_id] for bus_id in sorted(functions))


def _read_capacity(kind: DeviceType, resources: Mapping[str, object], types: DeviceTypes) -> dict[str, int]:
    """Read a device's capacity: 100 of everything in percent unless stated; bytes and units must be stated."""
    capacity = {tail: FULL for tail, percent in zip(kind.tails, kind.percent, strict=True) if percent}
    stated: dict[str, int] = {}
    for name, amount in resources.items():
        known = types.resources.get(name)
        if known is not None and known.type == kind and known.dialect.own and known.tail in kind.tails:
            has = FULL if known.counts_devices else to_int(amount)
            if stated.setdefault(known.tail, has) != has:
                raise ValueError(f"{known.tail} is stated twice with different amounts, {stated[known.tail]} and {has}")
            capacity[known.tail] = has
    for tail, percent in zip(kind.tails, kind.percent, strict=True):
        if not capacity.get(tail) and not percent:
            raise ValueError(f"no {tail}; a share of it cannot be counted")
        if percent and capacity[tail] > FULL:
            raise ValueError(f"{tail} above 100, which is a whole device")
    return {tail: capacity[tail] for tail in kind.tails}


def _read_checkpoints(
    annotations: Mapping[str, str], devices: Iterable[Device], problems: list[str]
) -> dict[str, set[str]]:
    """Read which devices the kubelet allocated, and to which Pods (device proposal, "Compatible").

    Both annotation names are in use.

    If that cannot be read, any device may be in use: all count as allocated.
    """
    held: dict[str, set[str]] = {}
    for key in DEVICES_CHECKPOINTS:
        if key not in annotations:
            continue
        try:
            for entry in as_list(parse_json(annotations[key], MAX_OF_NODE)):
                uid = entry.get("podUID")
                for identity in _read_ids(entry):
                    held.setdefault(identity, set()).add(uid if isinstance(uid, str) else "")
        except (*UNREADABLE, AttributeError) as error:
            problems.append(
                f"annotation {key}: not the expected JSON ({error}); until it is corrected or removed, nothing new "
                "lands on this node's devices, because the kubelet may have allocated any of them"
            )
            for device in devices:
                held.setdefault(device.id, set()).add("")
    return held


def _read_ids(entry: Mapping[str, Any]) -> list[str]:
    ids = entry.get("deviceIDs") or []
    if not isinstance(ids, list):
        raise TypeError("deviceIDs is not a list")
    return [device_of(str(device)) for device in ids]


def device_of(identity: str) -> str:
    """Return the device of a kubelet's id: a plugin with time slicing reports replicas of a card, as GPU-...::3."""
    return identity.partition("::")[0]
