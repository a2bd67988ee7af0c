"""Devices that are assumed for Nodes without a Device object, from their amounts and labels.

Before koordgate's reporter runs, nothing lists a cluster's cards one by one. A device plugin states how many there are,
labels state their model and memory, HAMi's and Volcano's plugins list them. What Pods that run state of
their cards gives these cards their ids. The result is a Device object with an annotation that says what it is based on.

A vendor's device plugin states how many there are: `huawei.com/Ascend910: 8`. A device has 100 percent of everything
that its type counts in percent. What it counts in bytes or units must be in the Node's capacity too, in sum.

NVIDIA's GPU feature discovery (NVIDIA/k8s-device-plugin, internal/lm), AMD's labeller (ROCm/k8s-device-plugin,
cmd/k8s-node-labeller), and the clouds: GKE, EKS with its autoscalers, Karpenter for AWS and Azure, AKS. A cloud that
labels neither model nor memory still labels the type of the machine.

The figures are what the vendors' drivers report. A model whose name states its size ("A100-SXM4-80GB") has that. Of a
model that was made in several sizes, a name without one means the smallest: more is not assumed.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from allocator.quantity import QuantityError, is_zero, parse, to_int
from allocator.vocabulary.adopted import Numbering, Product
from allocator.vocabulary.devicetype import BUILT_IN, FULL, DeviceType, DeviceTypes, Unit
from allocator.vocabulary.dialects import DIALECTS, GIB, MIB, PEERS
from allocator.vocabulary.names import GPU_COUNT, GPU_MEMORY_MIB, GPU_PRODUCT, NVIDIA, TYPE_GPU, model_name
from allocator.wire.deviceobject import DEVICE_NUMBERS, GPU_MODEL, GPU_VENDOR, write_numberings
from allocator.wire.foreignpods import Adoption, read_foreign_pod
from allocator.wire.mirror import RegisteredCard, read_register
from allocator.wire.podallocated import read_allocation
from koordgate.kube.resource import DEVICES

Raw = dict[str, Any]
_MAX: Final = 64  # devices of one type on one node


def assumed_entries(node: Mapping[str, Any], types: DeviceTypes, notes: list[str]) -> tuple[list[Raw], list[str]]:
    """Assume the devices of configured types that a Node states.

    Returns:
        Entries of a Device object, and the resources that they follow from.
    """
    status = node.get("status") or {}
    capacity = status.get("capacity") or status.get("allocatable") or {}
    allocatable = status.get("allocatable") or capacity
    entries: list[Raw] = []
    sources: list[str] = []
    for kind in types.types:
        resource = kind.names.get(kind.plain, "")
        if not resource or resource not in capacity:
            continue
        where = f"Node {node['metadata']['name']}: {resource}"
        try:
            count, usable = (_count(kind, of.get(resource, 0)) for of in (capacity, allocatable))
            amounts = _amounts(kind, capacity, count) if count else {}
        except (QuantityError, ValueError) as error:
            notes.append(f"{where}: {error}; no {kind.plural} are assumed, give the Node's Device object")
            continue
        entries += _entries(kind, node["metadata"]["name"], count, usable, amounts)
        sources += [resource] if count else []
    return entries, sources


def _count(kind: DeviceType, quantity: object) -> int:
    """The number of devices that an amount of the type's plain resource is."""
    amount = to_int(quantity)
    if kind.unit is Unit.UNITS:
        raise ValueError(f"how many devices {amount} units are is unknown")
    count, rest = (amount, 0) if kind.unit is Unit.DEVICES else divmod(amount, FULL)
    if rest:
        raise ValueError(f"{amount} percent are no whole devices")
    if count > _MAX:
        raise ValueError(f"{count} devices are more than {_MAX}")
    return count


def _amounts(kind: DeviceType, capacity: Mapping[str, Any], count: int) -> dict[str, str]:
    """What each device has of what is not counted in percent, by the resource that states it."""
    found = {}
    for tail, percent in zip(kind.tails, kind.percent, strict=True):
        if percent:  # as the plain resource is, which states whole devices
            continue
        resource = kind.names[tail]
        if resource not in capacity:
            raise ValueError(f"how much {tail} each has is unknown, because the Node states no {resource}")
        found[resource] = str(to_int(capacity[resource]) // count)
    return found


def _entries(kind: DeviceType, node: str, count: int, usable: int, amounts: Mapping[str, str]) -> Iterable[Raw]:
    for minor in range(count):
        identity = f"assumed-{kind.name}-{minor}-{node}"
        healthy = minor < usable
        yield {"type": kind.name, "id": identity, "minor": minor, "health": healthy, "resources": dict(amounts)}


_INSTANCE_TYPE: Final = "node.kubernetes.io/instance-type"
REPLICAS: Final = "nvidia.com/gpu.replicas"
_CLOUD_PREFIX: Final = "nvidia-"
_WHOLE: Final = "spx"  # AMD's compute partition that is the whole card
_MIG_MODEL: Final = "-MIG-"
_SHARED_MODEL: Final = "-SHARED"
_KARPENTER: Final = ("karpenter.k8s.aws/instance-gpu", "eks.amazonaws.com/instance-gpu")


class CardLabels(NamedTuple):
    """The keys of one writer, the first that is there counts.

    Attributes:
        models: of the model.
        memory: of a card's memory.
        unit: bytes in 1 of these.
        numbers: of the number of cards.
        replicas: of how many times the plugin offers each card.
        parts: that are there only where parts of cards are counted instead of cards.
    """

    models: tuple[str, ...] = ()
    memory: tuple[str, ...] = ()
    unit: int = MIB
    numbers: tuple[str, ...] = ()
    replicas: tuple[str, ...] = ()
    parts: tuple[str, ...] = ()


OF_VENDOR: Final[Mapping[str, CardLabels]] = {
    NVIDIA: CardLabels(
        (GPU_PRODUCT,), (GPU_MEMORY_MIB,), MIB, (GPU_COUNT,), (REPLICAS,), ("nvidia.com/gpu.slices.gi",)
    ),
    "amd": CardLabels(
        ("amd.com/gpu.product-name", "beta.amd.com/gpu.product-name"),
        ("amd.com/gpu.vram", "beta.amd.com/gpu.vram"),
        GIB,
        parts=("amd.com/gpu.compute-memory-partition",),
    ),
}
OF_CLOUDS: Final = CardLabels(
    (
        "cloud.google.com/gke-accelerator",
        *(f"{key}-name" for key in _KARPENTER),
        "k8s.amazonaws.com/accelerator",
        "karpenter.azure.com/sku-gpu-name",
    ),
    tuple(f"{key}-memory" for key in _KARPENTER),
    MIB,
    (
        "cloud.google.com/gke-accelerator-count",
        *(f"{key}-count" for key in _KARPENTER),
        "karpenter.azure.com/sku-gpu-count",
    ),
    ("cloud.google.com/gke-max-shared-clients-per-gpu",),
    ("cloud.google.com/gke-gpu-partition-size",),
)

# The providers' pages of their machines; sizes that have a part of a card are left out.
_MACHINES: Final = tuple(
    (re.compile(pattern, re.ASCII), model)
    for pattern, model in (
        (r"p3dn\..*", "Tesla-V100-SXM2-32GB"),
        (r"p3\..*", "Tesla-V100-SXM2-16GB"),
        (r"p4d\..*", "A100-SXM4-40GB"),
        (r"p4de\..*", "A100-SXM4-80GB"),
        (r"p5\..*", "H100-80GB-HBM3"),
        (r"p5en?\..*", "H200"),
        (r"p6-b200\..*", "B200"),
        (r"g3s?\..*", "Tesla-M60"),
        (r"g4dn\..*", "Tesla-T4"),
        (r"g5\..*", "A10G"),
        (r"g5g\..*", "T4G"),
        (r"gr?6\..*", "L4"),
        (r"g6e\..*", "L40S"),
        (r"a2-ultragpu-.*", "A100-SXM4-80GB"),
        (r"a2-(high|mega)gpu-.*", "A100-SXM4-40GB"),
        (r"a3-ultragpu-.*", "H200"),
        (r"a3-(high|mega|edge)gpu-.*", "H100-80GB-HBM3"),
        (r"a4-highgpu-.*", "B200"),
        (r"g2-standard-.*", "L4"),
        (r"Standard_NC[0-9]+r?s_v2", "Tesla-P100-PCIE-16GB"),
        (r"Standard_NC[0-9]+r?s_v3", "Tesla-V100-PCIE-16GB"),
        (r"Standard_ND40rs_v2", "Tesla-V100-SXM2-32GB"),
        (r"Standard_ND[0-9]+r?s", "Tesla-P40"),
        (r"Standard_N[CV][0-9]+as_T4_v3", "Tesla-T4"),
        (r"Standard_NC[0-9]+ads_A100_v4", "A100-80GB-PCIe"),
        (r"Standard_ND96asr(_A100)?_v4", "A100-SXM4-40GB"),
        (r"Standard_ND96amsr_A100_v4", "A100-SXM4-80GB"),
        (r"Standard_NV(36adm|36ad|72ad)s_A10_v5", "A10"),
        (r"Standard_NC[0-9]+ads_H100_v5", "H100-NVL"),
        (r"Standard_ND96isr[a-z]*_H100_v5", "H100-80GB-HBM3"),
        (r"Standard_ND96isr[a-z]*_H200_v5", "H200"),
        (r"Standard_ND96isr[a-z]*_MI300X_v5", "MI300X"),
    )
)


def labels_of(vendor: str) -> tuple[CardLabels, ...]:
    """The keys that count for cards of a vendor, its own first."""
    own = OF_VENDOR.get(vendor)
    return (OF_CLOUDS,) if own is None else (own, OF_CLOUDS)


def model_label(labels: Mapping[str, Any], vendor: str, other: str = "") -> str:
    """The model that labels state: the vendor's, else the label `other`, else a cloud's, in capitals and without brand.

    A cloud's type of machine says more than its name of a model, which leaves out the memory.
    """
    own = OF_VENDOR.get(vendor)
    stated = text_label(labels, (*(own.models if own else ()), other)) or machine_model(labels)
    return stated or text_label(labels, OF_CLOUDS.models).lower().removeprefix(_CLOUD_PREFIX).upper()


def machine_model(labels: Mapping[str, Any]) -> str:
    """The model of the cards in a cloud's machine of the labelled type; "" where it is not known."""
    kind = text_label(labels, (_INSTANCE_TYPE,))
    return next((model for pattern, model in _MACHINES if pattern.fullmatch(kind)), "")


def text_label(labels: Mapping[str, Any], keys: Iterable[str]) -> str:
    """The value of the first of these labels that is there; "" without any."""
    return next((str(labels[key]) for key in keys if labels.get(key)), "")


def number_label(labels: Mapping[str, Any], keys: Iterable[str]) -> int:
    """The number that the first of these labels with one states, rounded down; 0 without any."""
    return next(filter(None, (whole_number(str(labels.get(key, ""))) for key in keys)), 0)


def whole_number(text: str) -> int:
    """A number of 0 or more, rounded down; 0 for any other text."""
    try:
        value = parse(text)
    except QuantityError:
        return 0
    return max(value.numerator // value.denominator, 0)


def parts_label(labels: Mapping[str, Any], vendor: str) -> str:
    """The label, with its value, that says that a Node's amounts count parts of cards (MIG); "" without one."""
    product = str(labels.get(GPU_PRODUCT, ""))
    if vendor == NVIDIA and _MIG_MODEL in product:
        return f"{GPU_PRODUCT}={product}"
    keys = (key for one in labels_of(vendor) for key in one.parts)
    stated = ((key, str(labels.get(key) or "")) for key in keys)
    return next((f"{key}={value}" for key, value in stated if value and not value.startswith(_WHOLE)), "")


def is_shared(labels: Mapping[str, Any]) -> bool:
    """Whether NVIDIA's discovery says that its plugin offers each card several times under the cards' own name."""
    return str(labels.get(GPU_PRODUCT, "")).endswith(_SHARED_MODEL)


_MIB: Final = 2**20
_GIB: Final = 2**30
_SIZE: Final = re.compile(r"(?<![0-9])([0-9]{1,4})GB(?![A-Z])", re.ASCII)
_MIB_OF: Final = {
    "A2": 15_356,
    "A10": 22_731,
    "A10G": 22_731,
    "A16": 15_356,
    "A30": 24_258,
    "A40": 46_068,
    "A100": 40_960,
    "B200": 183_359,
    "H100": 81_559,
    "H100-NVL": 95_830,
    "H200": 143_771,
    "L4": 23_034,
    "L40": 46_068,
    "L40S": 46_068,
    "M60": 7_618,
    "MI300X": 196_592,
    "P4": 7_611,
    "P40": 22_919,
    "P100": 16_280,
    "T4": 15_109,
    "T4G": 15_109,
    "V100": 16_160,
    "V100M16": 16_160,
    "V100M32": 32_510,
}
_PREFIX: Final = "TESLA-"


def memory_of(model: str) -> int:
    """The bytes of a card of this model; 0 if they are not known."""
    name = model_name(model.upper()).removeprefix(_PREFIX)
    size = _SIZE.search(name)
    if size is not None:
        return int(size.group(1)) * _GIB
    return _MIB_OF.get(name, 0) * _MIB


ASSUMED: Final = "koordgate.io/assumed"
"""On a Device object: what its devices are assumed from. On a running Pod of a device plugin: how many of its devices
were assumed. Both exist only in memory and in the output of offline commands."""

REPLICA: Final = ".shared"
"""Ends the name of a resource whose plugin shares devices by time and renames what it offers (`renameByDefault`)."""

MAX_CARDS: Final = 64  # of one node
_MAX_NAMED: Final = 4  # nodes in one note
_MIG: Final = "nvidia.com/mig-"
_ALIYUN: Final = ("aliyun.com/gpu-count", "aliyun.com/gpu-mem")
_VOLCANO: Final = ("volcano.sh/gpu-number", "volcano.sh/gpu-memory")
_OS: Final = "kubernetes.io/os"
_LINUX: Final = "linux"
_EVERY: Final = Adoption(frozenset(Product))


class _Vendor(NamedTuple):
    """A resource of a device plugin that counts whole cards, and the vendor as the label gpu-vendor spells it."""

    resource: str
    vendor: str

    @property
    def shared(self) -> str:
        """The name of a card's replicas where the plugin renames them."""
        return f"{self.resource}{REPLICA}"


def _vendors() -> Iterator[_Vendor]:
    """Each resource that counts whole cards of a vendor, as the table of dialects has them."""
    for dialect in (*DIALECTS, *PEERS):
        for term in dialect.terms:
            if dialect.type == TYPE_GPU and not dialect.own and term.counts and term.name not in _VOLCANO:
                yield _Vendor(term.name, dialect.vendor or NVIDIA)


VENDORS: Final = tuple(_vendors())


class _UnreadError(ValueError):
    """A Node's cards cannot be told; the message says why, and what to write."""


@dataclass(slots=True)
class AssumedDevices:
    """What is assumed.

    `notes` say what they are based on, and what is left out, a sentence each.
    """

    devices: list[Raw] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


class _Card(NamedTuple):
    id: str
    memory: int
    healthy: bool
    numa: int | None = None


class _Cards(NamedTuple):
    """The cards of a node."""

    cards: Sequence[_Card]
    model: str
    vendor: str
    source: str


class _Where(dict[str, list[str]]):
    """What is said of nodes -> the nodes."""


def assume_devices(
    nodes: Iterable[Mapping[str, Any]],
    devices: Iterable[Mapping[str, Any]],
    pods: Iterable[Raw],
    memory: Mapping[str, int] | None = None,
    types: DeviceTypes = BUILT_IN,
) -> AssumedDevices:
    """Assume the GPUs, and the devices of configured types, of each Node that has no Device object.

    The cards of a Node that do not follow from what it states are left out, and a note says so.

    `memory` has bytes of a card by model, in any spelling, where the user states it; "" for any other model.
    """
    there = {obj["metadata"]["name"] for obj in devices}
    missing = [node for node in nodes if node["metadata"]["name"] not in there]
    named = _named_cards(pods, {node["metadata"]["name"] for node in missing})
    stated = {model_name(model): amount for model, amount in (memory or {}).items()}
    units = {dialect.name: dialect.unit for dialect in (*PEERS, *types.known.dialects)}
    found, sources, own, unread = AssumedDevices(), _Where(), _Where(), _Where()
    for node in missing:
        name = node["metadata"]["name"]
        cards = None
        try:
            cards = _cards_of(node, named.get(name, {}), stated, units, found.notes)
        except _UnreadError as error:
            unread.setdefault(str(error), []).append(name)
        for resource in _sliced(node):
            unread.setdefault(f"{resource} counts parts of cards (MIG), which are not given", []).append(name)
        others, stated_by = assumed_entries(node, types, found.notes)
        if cards is not None:
            found.devices.append(_device_object(name, cards))
            sources.setdefault(cards.source, []).append(f"{len(cards.cards)} on {name}")
        if others:
            if cards is None:
                found.devices.append(_device_object(name, _Cards((), "", NVIDIA, "")))
            _add(found.devices[-1], others, stated_by)
            own.setdefault(", ".join(stated_by), []).append(f"{len(others)} on {name}")
    for why, where in unread.items():
        found.notes.append(f"GPUs left out on {_listed(where)}: {why}")
    for source, where in own.items():
        found.notes.append(f"assumed devices: {_listed(where)}, from {source}: no Device object lists them")
    for source, where in sources.items():
        found.notes.append(
            f"assumed GPUs: {_listed(where)}, from {source}: no Device object lists them. What nothing states, such as "
            "PCIe roots, is unknown"
        )
    return found


def _listed(where: Sequence[str]) -> str:
    rest = f" and {len(where) - _MAX_NAMED} more nodes" if len(where) > _MAX_NAMED else ""
    return f"{', '.join(where[:_MAX_NAMED])}{rest}"


def _named_cards(pods: Iterable[Raw], nodes: set[str]) -> dict[str, dict[str, int | None]]:
    """The ids that running Pods name on these nodes, each with its minor if the Pod states that too."""
    named: dict[str, dict[str, int | None]] = {}
    for pod in pods:
        node = (pod.get("spec") or {}).get("nodeName")
        if node not in nodes:
            continue
        here = named.setdefault(node, {})
        allocation = read_allocation(pod["metadata"].get("annotations") or {}, BUILT_IN)
        for share in allocation.shares:
            if share.type == TYPE_GPU and share.id:
                here[share.id] = share.minor
        metadata = {"uid": "", "namespace": "", **pod["metadata"]}
        foreign = read_foreign_pod({**pod, "metadata": metadata}, _EVERY)
        for part in foreign.parts if foreign is not None else ():
            if part.id:
                here.setdefault(part.id, None)
    return named


def _cards_of(
    node: Mapping[str, Any],
    named: Mapping[str, int | None],
    stated: Mapping[str, int],
    units: Mapping[str, int],
    notes: list[str],
) -> _Cards | None:
    """The cards of a Node; None if nothing says that it has any.

    `stated` has bytes of a card by model, `units` bytes in 1 of memory of each dialect.
    """
    name, labels = node["metadata"]["name"], node["metadata"].get("labels") or {}
    key, registered, problem = read_register(node["metadata"].get("annotations") or {}, units["volcano"])
    if problem:
        notes.append(f"Node {name}: {problem}; other statements of its cards are looked at")
    elif registered:
        return _registered(key, registered)
    capacity, allocatable = _stated(node)
    for vendor in VENDORS:
        offers = [name for name in (vendor.resource, vendor.shared) if _whole(capacity, name)]
        number = _number_key(labels, vendor.vendor)
        if not (offers or number):
            continue
        if labels.get(_OS, _LINUX) != _LINUX:
            raise _UnreadError(f"{_OS}={labels[_OS]}: koordgate's reporter does not run there")
        if parts := parts_label(labels, vendor.vendor):
            raise _UnreadError(f"{vendor.resource} counts parts of cards there ({parts}), which are not given")
        count, usable = _counted(vendor, capacity, allocatable, labels)
        if not count:
            continue
        model = model_label(labels, vendor.vendor, GPU_MODEL)
        amount, by = _memory(vendor, labels, model, stated)
        cards = _identified(name, count, usable, amount, named)
        source = " and ".join(offers) or (vendor.resource if vendor.resource in capacity else number)
        return _Cards(cards, model, vendor.vendor, f"{source} and {by}")
    return _shared_out(name, capacity, labels, named, units)


def _stated(node: Mapping[str, Any]) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """The capacity of a Node, and what of it is allocatable."""
    status = node.get("status") or {}
    capacity = status.get("capacity") or status.get("allocatable") or {}
    return capacity, status.get("allocatable") or capacity


def _sliced(node: Mapping[str, Any]) -> Iterator[str]:
    """The resources of a Node that count MIG devices beside whole cards."""
    capacity, _ = _stated(node)
    return (name for name in sorted(capacity) if name.startswith(_MIG) and not is_zero(capacity[name]))


def _number_key(labels: Mapping[str, str], vendor: str) -> str:
    """The label by which a vendor's own discovery counts cards, whether or not its plugin runs; "" without one."""
    own = OF_VENDOR.get(vendor)
    return next((key for key in (own.numbers if own else ()) if number_label(labels, (key,))), "")


def _registered(key: str, registered: Sequence[RegisteredCard]) -> _Cards:
    cards = [_Card(one.id, one.memory, one.healthy, one.numa) for one in registered]
    return _Cards(cards, registered[0].model, NVIDIA, f"the annotation {key}")


def _counted(
    vendor: _Vendor, capacity: Mapping[str, Any], allocatable: Mapping[str, Any], labels: Mapping[str, str]
) -> tuple[int, int]:
    """Count the cards, and how many of them the plugin gives.

    A plugin that shares cards by time offers each several times, under their own name or under one of its own. It may
    share some cards only.
    """
    writers = labels_of(vendor.vendor)
    plain, shared = (
        tuple(_whole(of, name) for of in (capacity, allocatable)) for name in (vendor.resource, vendor.shared)
    )
    # Discovery counts cards in MIG mode too, which the plugin counts under other names.
    keys = () if any(name.startswith(_MIG) for name in capacity) else (key for one in writers for key in one.numbers)
    number = number_label(labels, keys)
    times = number_label(labels, (key for one in writers for key in one.replicas))
    if not times:
        times = _times(vendor, plain[0], shared[0], number, labels)
    groups = [(plain, 1), (shared, times)] if shared[0] else [(plain, times)]
    count = number or sum(-(-offered // replicas) for (offered, _), replicas in groups)
    if count > MAX_CARDS:
        told = f"{vendor.resource} says {count} cards, more than {MAX_CARDS}"
        raise _UnreadError(f"{told}: give the Node's Device object")
    if vendor.resource not in capacity and not shared[0]:
        return count, count
    whole = len(groups) == 1
    given = (
        _given(count if whole else -(-offered // replicas), replicas, offered, usable)
        for (offered, usable), replicas in groups
    )
    return count, min(sum(given), count)


def _times(vendor: _Vendor, plain: int, shared: int, number: int, labels: Mapping[str, str]) -> int:
    """How many times a plugin offers each card where no label says it."""
    offered, cards = (shared, number - plain) if shared else (plain, number)
    if cards > 0:
        return max(-(-offered // cards), 1)
    if not (shared or (vendor.vendor == NVIDIA and is_shared(labels))):
        return 1
    raise _UnreadError(
        f"{vendor.shared if shared else vendor.resource} counts each card several times, and nothing says how often: "
        f"write the label {REPLICAS} on the Node, or give its Device object"
    )


def _given(count: int, replicas: int, offered: int, usable: int) -> int:
    """How many cards a plugin gives: a card that it does not give takes all its replicas away.

    Args:
        count: of the cards.
        replicas: how many times a card is offered that is shared.
        offered: how many replicas the plugin has, those of cards that it does not share among them.
        usable: how many of these it gives.
    """
    more, rest = divmod(offered - count, replicas - 1) if replicas > 1 else (0, 0)
    exact = not rest and 0 <= more <= count
    once = count - more if exact else 0
    here = min(count, offered if exact else -(-offered // replicas))
    lost = max(offered - usable, 0)
    alone = min(lost, once)
    return max(here - alone + (alone - lost) // replicas, 0)


def _memory(vendor: _Vendor, labels: Mapping[str, str], model: str, stated: Mapping[str, int]) -> tuple[int, str]:
    """The bytes of a card, and what says so."""
    own = stated.get(model_name(model)) or stated.get("")
    if own:
        return own, "--gpu-memory"
    writers = labels_of(vendor.vendor)
    for writer in writers:
        for key in writer.memory:
            amount = whole_number(str(labels.get(key, "")).removesuffix("i").removesuffix("G"))
            if amount:
                return amount * writer.unit, f"the label {key}"
    for known in (model, machine_model(labels)):
        if memory := memory_of(known):
            return memory, f"the model {known}"
    own_label = OF_VENDOR.get(vendor.vendor)
    label = f"write the label {own_label.memory[0]} on the Node, " if own_label else ""
    what = f"of model {model}" if model else "of an unknown model"
    example = f"{model}=24Gi" if model else "24Gi"
    raise _UnreadError(
        f"they are {what}, and nothing says how much memory they have: {label}give its Device object, or state "
        f"--gpu-memory {example} to koordgate simulate"
    )


def _identified(node: str, count: int, usable: int, memory: int, named: Mapping[str, int | None]) -> Sequence[_Card]:
    """Give the cards the ids that Pods name, by minor where it is stated; the others ids that say what they are."""
    ids = {minor: identity for identity, minor in sorted(named.items()) if minor is not None}
    loose = sorted(identity for identity, minor in named.items() if minor is None)
    for minor in range(count):
        if minor not in ids:
            ids[minor] = loose.pop(0) if loose else f"assumed-{minor}-{node}"
    return [_Card(ids[minor], memory, healthy=minor < usable) for minor in range(count)]


def _shared_out(
    name: str,
    capacity: Mapping[str, Any],
    labels: Mapping[str, str],
    named: Mapping[str, int | None],
    units: Mapping[str, int],
) -> _Cards | None:
    """The cards of a node whose plugin states their number and their memory in sum."""
    for (counts, sums), unit in ((_ALIYUN, units["gpushare"]), (_VOLCANO, units["volcano-share"])):
        count, memory = (_whole(capacity, resource) for resource in (counts, sums))
        if 0 < count <= MAX_CARDS and memory >= count:
            cards = _identified(name, count, count, memory // count * unit, named)
            return _Cards(cards, text_label(labels, (GPU_PRODUCT, GPU_MODEL)), NVIDIA, f"{counts} and {sums}")
    return None


def _whole(amounts: Mapping[str, Any], resource: str) -> int:
    try:
        return to_int(amounts.get(resource, "0"))
    except QuantityError as error:
        raise _UnreadError(f"{resource}: {error}; correct it") from error


def _add(device: Raw, entries: Sequence[Raw], stated_by: Sequence[str]) -> None:
    """Add devices of other types to a Device object."""
    device["spec"]["devices"] += entries
    annotations = device["metadata"]["annotations"]
    annotations[ASSUMED] = " and ".join([*filter(None, (annotations[ASSUMED],)), *stated_by])


def _device_object(node: str, cards: _Cards) -> Raw:
    ids = tuple(card.id for card in cards.cards)
    labels = {GPU_VENDOR: cards.vendor, **({GPU_MODEL: cards.model} if cards.model else {})}
    annotations = {ASSUMED: cards.source}
    if ids:
        numbering = Numbering(0, 0, ids, tuple(enumerate(ids)))
        annotations[DEVICE_NUMBERS] = write_numberings((numbering,))
    entries = []
    for minor, card in enumerate(cards.cards):
        amounts = {"gpu-core": "100", "gpu-memory": str(card.memory), "gpu-memory-ratio": "100"}
        entry: Raw = {
            "type": TYPE_GPU,
            "id": card.id,
            "minor": minor,
            "health": card.healthy,
            "resources": {f"koordinator.sh/{tail}": amount for tail, amount in amounts.items()},
        }
        if card.numa is not None:
            entry["topology"] = {"nodeID": card.numa}
        entries.append(entry)
    metadata = {"name": node, "labels": labels, "annotations": annotations}
    return {"apiVersion": DEVICES.api_version, "kind": "Device", "metadata": metadata, "spec": {"devices": entries}}
