"""Devices that are assumed for Nodes without a Device object, from what others write on the Node (pure).

Before koordgate's reporter runs, nothing lists a cluster's cards one by one. A device plugin states how many there are,
feature discovery states their model and memory, HAMi's and Volcano's plugins list them. What Pods that run state of
their cards gives these cards their ids. The result is a Device object with an annotation that says what it is based on.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from allocator.quantity import QuantityError, parse, to_int
from allocator.vocabulary.adopted import Numbering, Product
from allocator.vocabulary.devicetype import BUILT_IN, DeviceTypes
from allocator.vocabulary.dialects import DIALECTS
from allocator.vocabulary.models import GPU_COUNT, GPU_MEMORY_MIB, GPU_PRODUCT, model_name
from allocator.vocabulary.names import NVIDIA, TYPE_GPU
from allocator.vocabulary.peers import GIB, MIB, PEERS
from allocator.wire.deviceallocated import read_allocation
from allocator.wire.foreignpods import Adoption, read_foreign_pod
from allocator.wire.noderegister import RegisteredCard, read_register
from allocator.wire.numberings import DEVICE_NUMBERS, write_numberings
from allocator.wire.partitions import GPU_MODEL, GPU_VENDOR
from koordgate.kube.resource import DEVICES
from webhook.offline.assumedtypes import assumed_entries
from webhook.offline.cardmemory import memory_of

Raw = dict[str, Any]

ASSUMED: Final = "koordgate.io/assumed"
"""On a Device object: what its devices are assumed from. On a running Pod of a device plugin: how many of its devices
were assumed. Both exist only in memory and in the output of offline commands."""

MOST_CARDS: Final = 64  # of one node
_MOST_NAMED: Final = 4  # nodes in one note
_REPLICAS: Final = "nvidia.com/gpu.replicas"  # feature discovery: how many times the plugin offers each card
_MIG_MODEL: Final = "-MIG-"  # in the model, where each counted device is a slice of a card
_MIG: Final = "nvidia.com/mig-"
_ALIYUN: Final = ("aliyun.com/gpu-count", "aliyun.com/gpu-mem")
_VOLCANO: Final = ("volcano.sh/gpu-number", "volcano.sh/gpu-memory")
_AMD_PRODUCT: Final = ("amd.com/gpu.product-name", "beta.amd.com/gpu.product-name")
_AMD_VRAM: Final = ("amd.com/gpu.vram", "beta.amd.com/gpu.vram")
_EVERY: Final = Adoption(frozenset(Product))


class _Vendor(NamedTuple):
    """How a vendor's plugin and labels state cards.

    Attributes:
        resource: that counts whole cards.
        vendor: as the label gpu-vendor spells it.
        models: labels of the model, the first that is there counts.
        memory: labels of a card's memory.
        unit: bytes in 1 of these.
        number: label of the number of cards; "" for none.
        replicas: label of how many times the plugin offers each card; "" for none.
    """

    resource: str
    vendor: str
    models: tuple[str, ...] = ()
    memory: tuple[str, ...] = ()
    unit: int = MIB
    number: str = ""
    replicas: str = ""


_LABELS: Final = {
    NVIDIA: _Vendor("", "", (GPU_PRODUCT,), (GPU_MEMORY_MIB,), MIB, GPU_COUNT, _REPLICAS),
    "amd": _Vendor("", "", _AMD_PRODUCT, _AMD_VRAM, GIB),
}


def _vendors() -> Iterator[_Vendor]:
    """Each resource that counts whole cards of a vendor, as the table of dialects has them."""
    for dialect in (*DIALECTS, *PEERS):
        for term in dialect.terms:
            if dialect.type == TYPE_GPU and not dialect.own and term.counts and term.name not in _VOLCANO:
                vendor = dialect.vendor or NVIDIA
                yield _LABELS.get(vendor, _Vendor("", ""))._replace(resource=term.name, vendor=vendor)


VENDORS: Final = tuple(_vendors())


class UnknownMemoryError(ValueError):
    """The memory of a Node's cards is not known; the message says what to write."""


@dataclass(slots=True)
class AssumedDevices:
    """What is assumed.

    Attributes:
        devices: a Device object for each Node without one that has cards.
        notes: what they are based on, and what is left out, a sentence each.
    """

    devices: list[Raw] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


class _Card(NamedTuple):
    id: str
    memory: int
    healthy: bool
    numa: int | None = None


class _Cards(NamedTuple):
    """The cards of a node.

    Attributes:
        cards: in the order of minors.
        model: of all of them.
        vendor: of all of them.
        source: what they are assumed from.
    """

    cards: Sequence[_Card]
    model: str
    vendor: str
    source: str


def assume_devices(
    nodes: Iterable[Mapping[str, Any]],
    devices: Iterable[Mapping[str, Any]],
    pods: Iterable[Raw],
    memory: Mapping[str, int] | None = None,
    types: DeviceTypes = BUILT_IN,
) -> AssumedDevices:
    """Assume the GPUs, and the devices of configured types, of each Node that has no Device object.

    Args:
        nodes: all Nodes.
        devices: all Device objects.
        pods: all Pods; those that run may name the cards that they hold.
        memory: bytes of a card by model, in any spelling, where the user states it; "" for any other model.
        types: the device types.

    Raises:
        UnknownMemoryError: a Node has cards of which nothing says how much memory they have.
    """
    there = {obj["metadata"]["name"] for obj in devices}
    missing = [node for node in nodes if node["metadata"]["name"] not in there]
    named = _named_cards(pods, {node["metadata"]["name"] for node in missing})
    stated = {model_name(model): amount for model, amount in (memory or {}).items()}
    units = {dialect.name: dialect.unit for dialect in (*PEERS, *types.known.dialects)}
    found, sources, own = AssumedDevices(), dict[str, list[str]](), dict[str, list[str]]()
    for node in missing:
        name = node["metadata"]["name"]
        cards = _cards_of(node, named.get(name, {}), stated, units, found.notes)
        others, stated_by = assumed_entries(node, types, found.notes)
        if cards is not None:
            found.devices.append(_device_object(name, cards))
            sources.setdefault(cards.source, []).append(f"{len(cards.cards)} on {name}")
        if others:
            if cards is None:
                found.devices.append(_device_object(name, _Cards((), "", NVIDIA, "")))
            _add(found.devices[-1], others, stated_by)
            own.setdefault(", ".join(stated_by), []).append(f"{len(others)} on {name}")
    for source, where in own.items():
        found.notes.append(f"assumed devices: {_listed(where)}, from {source}: no Device object lists them")
    for source, where in sources.items():
        found.notes.append(
            f"assumed GPUs: {_listed(where)}, from {source}: no Device object lists them. What nothing states, such as "
            "PCIe roots, is unknown"
        )
    return found


def _listed(where: Sequence[str]) -> str:
    rest = f" and {len(where) - _MOST_NAMED} more nodes" if len(where) > _MOST_NAMED else ""
    return f"{', '.join(where[:_MOST_NAMED])}{rest}"


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

    Args:
        node: the Node.
        named: the ids that Pods name there.
        stated: bytes of a card by model.
        units: bytes in 1 of memory of each dialect.
        notes: added to.
    """
    name, labels = node["metadata"]["name"], node["metadata"].get("labels") or {}
    key, registered, problem = read_register(node["metadata"].get("annotations") or {}, units["volcano"])
    if problem:
        notes.append(f"Node {name}: {problem}; other statements of its cards are looked at")
    elif registered:
        return _registered(key, registered)
    status = node.get("status") or {}
    capacity = status.get("capacity") or status.get("allocatable") or {}
    allocatable = status.get("allocatable") or capacity
    for vendor in VENDORS:
        model = _first(labels, vendor.models) or labels.get(GPU_MODEL, "")
        if vendor.resource not in capacity and not labels.get(vendor.number):
            continue
        if _MIG_MODEL in model:
            notes.append(
                f"Node {name}: {vendor.resource} counts slices ({GPU_PRODUCT}={model}), of which no parts are given; "
                "no devices are assumed"
            )
            return None
        count, usable = _counted(vendor, capacity, allocatable, labels, f"Node {name}")
        if not count:
            continue
        source = vendor.resource if vendor.resource in capacity else vendor.number
        amount, by = _memory(vendor, labels, model, stated, f"Node {name}")
        cards = _identified(name, count, usable, amount, named)
        return _Cards(cards, model, vendor.vendor, f"{source} and {by}")
    return _shared_out(name, capacity, labels, named, units)


def _registered(key: str, registered: Sequence[RegisteredCard]) -> _Cards:
    cards = [_Card(one.id, one.memory, one.healthy, one.numa) for one in registered]
    return _Cards(cards, registered[0].model, NVIDIA, f"the annotation {key}")


def _counted(
    vendor: _Vendor,
    capacity: Mapping[str, Any],
    allocatable: Mapping[str, Any],
    labels: Mapping[str, str],
    where: str,
) -> tuple[int, int]:
    """The number of cards, and how many of them the plugin gives."""
    has, usable = (_whole(of, vendor.resource, where) for of in (capacity, allocatable))
    replicas = _label(labels, vendor.replicas) or 1
    count = -(-has // replicas)
    # Feature discovery counts cards in MIG mode too, which the plugin counts under other names.
    if not any(name.startswith(_MIG) for name in capacity):
        count = _label(labels, vendor.number) or count
    if count > MOST_CARDS:
        raise UnknownMemoryError(
            f"{where}: {vendor.resource} says {count} cards, more than {MOST_CARDS}: give the Node's Device object"
        )
    return count, min(-(-usable // replicas), count) if vendor.resource in capacity else count


def _memory(
    vendor: _Vendor, labels: Mapping[str, str], model: str, stated: Mapping[str, int], where: str
) -> tuple[int, str]:
    """The bytes of a card, and what says so."""
    own = stated.get(model_name(model)) or stated.get("")
    if own:
        return own, "--gpu-memory"
    for key in vendor.memory:
        amount = _number(str(labels.get(key, "")).removesuffix("i").removesuffix("G"))
        if amount:
            return amount * vendor.unit, f"the label {key}"
    known = memory_of(model)
    if known:
        return known, f"the model {model}"
    label = vendor.memory[0] if vendor.memory else GPU_MEMORY_MIB
    what = f"of model {model}" if model else "of an unknown model"
    example = f"{model}=24Gi" if model else "24Gi"
    raise UnknownMemoryError(
        f"{where}: its GPUs are {what}, and nothing says how much memory they have: write --gpu-memory {example}, the "
        f"label {label} on the Node, or give its Device object"
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
        count, memory = (_whole(capacity, resource, f"Node {name}") for resource in (counts, sums))
        if 0 < count <= MOST_CARDS and memory >= count:
            cards = _identified(name, count, count, memory // count * unit, named)
            return _Cards(cards, _first(labels, (GPU_PRODUCT, GPU_MODEL)), NVIDIA, f"{counts} and {sums}")
    return None


def _whole(amounts: Mapping[str, Any], resource: str, where: str) -> int:
    try:
        return to_int(amounts.get(resource, "0"))
    except QuantityError as error:
        raise UnknownMemoryError(f"{where}: {resource}: {error}; correct it") from error


def _first(labels: Mapping[str, str], keys: Iterable[str]) -> str:
    return next((str(labels[key]) for key in keys if labels.get(key)), "")


def _label(labels: Mapping[str, str], key: str) -> int:
    """A number that a label states; 0 if it states none."""
    return _number(str(labels.get(key, "")))


def _number(text: str) -> int:
    try:
        value = parse(text)
    except QuantityError:
        return 0
    return max(value.numerator // value.denominator, 0)


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
