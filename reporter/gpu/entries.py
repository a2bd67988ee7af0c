"""A node's cards as entries of Koordinator's Device object (pure).

The entries are those of Koordinator's node agent (pkg/koordlet/statesinformer, the GPU device reporter), so that
Koordinator's scheduler can read them. Added are: why a card is not used, NVLink, and MIG devices.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import combinations
from typing import Any, Final

from allocator.vocabulary.devicetype import FULL, GPU_TYPE
from allocator.vocabulary.names import (
    GPU_CORE,
    GPU_MEMORY,
    GPU_MEMORY_RATIO,
    KUBERNETES_DOMAIN,
    RESERVED_MEMORY,
    TYPE_GPU,
)
from allocator.wire.deviceobject import DEVICE_LINKS, GPU_MODEL, GPU_VENDOR, write_links
from reporter.gpu.facts import DriverFacts, FabricState, GpuFacts, MigDevice, Outage, Peer
from reporter.gpu.faults import notes
from reporter.gpu.health import CardRecord, CardState, HealthPolicy, NodeRecord, waits

TYPE_MIG: Final = "mig"  # not a type that is allocated: MIG devices are reported, not shared
DEVICE_OUTAGES: Final = "koordgate.io/device-outages"
DRIVER_VERSION: Final = "node.koordinator.sh/gpu-driver-version"
CUDA_VERSION: Final = "koordgate.io/cuda-version"
COMPUTE_CAPABILITY: Final = "koordgate.io/compute-capability"
HEALTH_STATE: Final = "koordgate.io/health-state"
FABRIC: Final = "koordgate.io/nvlink-fabric"
PCI_BUS: Final = "koordgate.io/pci-bus"
MIG_MODE: Final = "koordgate.io/mig-mode"
MIG_PROFILE: Final = "koordgate.io/mig-profile"
MIG_PARENT: Final = "koordgate.io/mig-parent"

_NVIDIA: Final = "nvidia"
_MAX_LABEL: Final = 63  # Kubernetes, label values
_MAX_MESSAGE: Final = 1024
_MAX_INT32: Final = 2**31 - 1
_KEPT_STEP: Final = 64 * 2**20  # bytes; cards of one model, whose drivers keep a little more or less, stay alike


@dataclass(frozen=True, slots=True)
class DeviceReport:
    """What a node's Device object states about its cards."""

    # entries of `spec.devices`, cards in the order of their minors, then MIG devices
    devices: tuple[dict[str, Any], ...]
    labels: Mapping[str, str]  # labels of the object; a label of ours that is missing here is removed
    annotations: Mapping[str, str]  # annotations of the object, likewise
    problems: tuple[str, ...]  # what could not be reported, a sentence each


@dataclass(frozen=True, slots=True)
class CardVerdict:
    """Whether a card may take anything new, and why not."""

    usable: bool  # whether it may
    reason: str  # one word for the condition
    message: str  # a sentence, "" if there is nothing to say


@dataclass(frozen=True, slots=True)
class Circumstances:
    """Conditions outside the cards that decide whether they may take anything new."""

    cordoned: frozenset[str] = frozenset()  # UUIDs of cards that an administrator cordoned
    outage: Outage | None = None  # why NVML cannot be read, once that has lasted too long for the cards to be trusted


def build(
    node: NodeRecord,
    driver: DriverFacts | None,
    policy: HealthPolicy,
    circumstances: Circumstances = Circumstances(),
    domain: str = KUBERNETES_DOMAIN,
) -> DeviceReport:
    """Write the Device object's entries about cards.

    `driver`: the driver as last read; None if it never was.
    """
    cards = _in_order(node)
    problems = [f"card {card.facts.uuid}: {problem}" for card, _ in cards for problem in card.facts.problems]
    devices: list[dict[str, Any]] = []
    slices: list[dict[str, Any]] = []
    for card, minor in cards:
        devices.append(_gpu_entry(card, minor, _judge(card, policy, circumstances), domain))
        for mig in card.facts.mig_devices if card.facts.mig else ():
            slices.append(_mig_entry(mig, len(slices), card.facts, _judge_slice(card, policy, circumstances)))
    devices += slices
    lanes = device_lanes(card.facts for card, _ in cards if card.health.present)
    annotations = {DEVICE_LINKS: write_links(lanes)} if lanes else {}
    outage = circumstances.outage
    if outage is not None:
        stated = {"reason": outage.reason, "message": outage.message, "since": timestamp(outage.since)}
        annotations[DEVICE_OUTAGES] = json.dumps({TYPE_GPU: stated}, separators=(",", ":"))
    return DeviceReport(tuple(devices), _object_labels(node, driver), annotations, tuple(problems))


def device_lanes(gpus: Iterable[GpuFacts]) -> dict[tuple[str, str], int]:
    """Count the NVLink lanes between cards: direct ones, and those through switches that both cards connect to.

    Through switches a card reaches another with as many lanes as both have.
    Returns (UUID, UUID), the smaller first -> lanes; pairs without any are left out.
    """
    cards = sorted(gpus, key=lambda gpu: gpu.uuid)
    pairs = {(a.uuid, b.uuid): min(_lanes(a, b), _lanes(b, a)) for a, b in combinations(cards, 2)}
    return {pair: lanes for pair, lanes in pairs.items() if lanes}


def kept_by_driver(gpu: GpuFacts) -> int:
    """The bytes of a card that no Pod can have because its driver keeps them, rounded up; 0 if it does not say."""
    kept = -(-(gpu.reserved or 0) // _KEPT_STEP) * _KEPT_STEP
    return kept if gpu.memory is not None and kept < gpu.memory else 0


def timestamp(seconds: float) -> str:
    """Write a time as Kubernetes does: `2026-11-20T20:53:19Z`."""
    try:
        return datetime.fromtimestamp(int(seconds), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError, OSError):  # outside the calendar
        return timestamp(0)


def label(text: str) -> str:
    """Turn any text into a label's value: `NVIDIA H200` becomes `NVIDIA-H200`."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", text)[:_MAX_LABEL].strip("-_.")


def model_label(model: str) -> str:
    """Spell a card's model as Koordinator does: without the maker, blanks as dashes."""
    return label(model.removeprefix("NVIDIA "))


def _lanes(one: GpuFacts, other: GpuFacts) -> int:
    direct = sum(link.peer is Peer.GPU and link.bus is not None and link.bus == other.bus for link in one.links)
    return direct + (_switched(one) if _switched(other) and _same_fabric(one, other) else 0)


def _switched(gpu: GpuFacts) -> int:
    return sum(link.peer is Peer.SWITCH for link in gpu.links)


def _same_fabric(one: GpuFacts, other: GpuFacts) -> bool:
    """Whether switches join two cards of a node: neither reports a fabric, or both have joined the same one."""
    ours, theirs = one.fabric, other.fabric
    if ours is None or theirs is None:
        return ours is theirs
    joined = ours.state is FabricState.COMPLETED and theirs.state is FabricState.COMPLETED
    return joined and (ours.cluster, ours.clique) == (theirs.cluster, theirs.clique)


def _in_order(node: NodeRecord) -> list[tuple[CardRecord, int]]:
    """Order the cards by minor: the driver's, unless the card is missing and another card now has its minor."""
    numbered: dict[int, CardRecord] = {}
    cards = node.cards.values()
    for card in sorted(cards, key=lambda card: (not card.health.present, card.facts.minor, card.facts.uuid)):
        minor = card.facts.minor
        numbered[minor if minor not in numbered else max(numbered) + 1] = card
    return [(numbered[minor], minor) for minor in sorted(numbered)]


def _judge(card: CardRecord, policy: HealthPolicy, circumstances: Circumstances) -> CardVerdict:
    """Decide whether a card as a whole may be allocated; if not, name the gravest reason."""
    verdict = _judge_slice(card, policy, circumstances)
    if verdict.usable and card.facts.mig:
        message = "the card is in MIG mode: its MIG devices are listed with type mig, and are not allocated"
        return CardVerdict(usable=False, reason="MIGEnabled", message=message)
    if verdict.usable and card.facts.memory is None:
        return CardVerdict(usable=False, reason="NoMemorySize", message=verdict.message)
    return verdict


def _judge_slice(card: CardRecord, policy: HealthPolicy, circumstances: Circumstances) -> CardVerdict:
    """Decide whether a card works and may be used, in MIG mode or not."""
    if not card.health.usable:
        return CardVerdict(usable=False, reason=_reason(card), message=_explain(card, policy))
    if card.facts.uuid in circumstances.cordoned:
        return CardVerdict(usable=False, reason="Cordoned", message="an administrator cordoned the card")
    if circumstances.outage is not None:
        return CardVerdict(usable=False, reason=circumstances.outage.reason, message=circumstances.outage.message)
    return CardVerdict(usable=True, reason="Healthy", message="; ".join(notes(card.facts)))


def _reason(card: CardRecord) -> str:
    if card.health.state is CardState.RECOVERING or card.health.cause is None:
        return card.health.state.value.capitalize()
    return card.health.cause.reason


def _explain(card: CardRecord, policy: HealthPolicy) -> str:
    """Explain to people why a card takes nothing new; the text changes only with its state, cause and count."""
    health = card.health
    cause = health.cause
    if cause is None:
        return health.state.value
    state = f"{health.state.value} ({health.count} errors)" if health.count > 1 else health.state.value
    wait = f"{waits(health, policy):.0f} s without errors"
    if health.state is CardState.RECOVERING:
        return f"{state}: {cause.text}; in service again after {wait}"
    if health.state is CardState.SUSPECT and cause.reason not in health.standing:
        return f"{state}: {cause.message}; recovers after {wait}"
    return f"{state}: {cause.message}"


def _gpu_entry(card: CardRecord, minor: int, verdict: CardVerdict, domain: str) -> dict[str, Any]:
    gpu = card.facts
    resources: dict[str, str] = {GPU_CORE: str(FULL), GPU_MEMORY_RATIO: str(FULL)}
    kept = kept_by_driver(gpu)
    if gpu.memory is not None:
        resources[GPU_MEMORY] = str(gpu.memory - kept)
    labels = {GPU_VENDOR: _NVIDIA, GPU_MODEL: model_label(gpu.model), HEALTH_STATE: card.health.state.value}
    if gpu.compute_capability is not None:
        labels[COMPUTE_CAPABILITY] = "{}.{}".format(*gpu.compute_capability)
    if gpu.fabric is not None and gpu.fabric.state is FabricState.COMPLETED and not gpu.fabric.status:
        labels[FABRIC] = f"{gpu.fabric.cluster}.{gpu.fabric.clique}"  # as NVIDIA's feature discovery joins the two
    if gpu.mig:
        labels[MIG_MODE] = "enabled"
    if kept:
        labels[RESERVED_MEMORY] = str(kept)
    entry: dict[str, Any] = {
        "type": TYPE_GPU,
        "id": gpu.uuid,
        "minor": minor,
        "health": verdict.usable,
        "labels": {key: value for key, value in labels.items() if value},
        "resources": {GPU_TYPE.resource_name(domain, tail): resources[tail] for tail in sorted(resources)},
        "conditions": [_condition(verdict)],
    }
    if gpu.module is not None and gpu.module <= _MAX_INT32:
        entry["moduleID"] = gpu.module
    # As Koordinator does: no topology if the NUMA node is unknown, and never a socket.
    if gpu.numa_node is not None and gpu.pcie_root is not None:
        entry["topology"] = {"socketID": -1, "nodeID": gpu.numa_node, "pcieID": gpu.pcie_root, "busID": gpu.bus}
    elif gpu.bus is not None:
        entry["labels"][PCI_BUS] = gpu.bus
    return entry


def _mig_entry(mig: MigDevice, number: int, parent: GpuFacts, verdict: CardVerdict) -> dict[str, Any]:
    labels = {
        GPU_VENDOR: _NVIDIA,
        GPU_MODEL: model_label(parent.model),
        MIG_PROFILE: label(mig.profile),
        MIG_PARENT: label(parent.uuid),
    }
    return {
        "type": TYPE_MIG,
        "id": mig.uuid,
        "minor": number,
        "health": verdict.usable,
        "labels": {key: value for key, value in labels.items() if value},
        "conditions": [_condition(verdict)],
    }


def _condition(verdict: CardVerdict) -> dict[str, str]:
    return {
        "type": "Healthy",
        "status": "True" if verdict.usable else "False",
        "reason": verdict.reason,
        "message": verdict.message[:_MAX_MESSAGE],
    }


def _object_labels(node: NodeRecord, driver: DriverFacts | None) -> dict[str, str]:
    models = {model_label(card.facts.model) for card in node.cards.values()}
    labels = {GPU_VENDOR: _NVIDIA if models else "", GPU_MODEL: models.pop() if len(models) == 1 else ""}
    if driver is not None:
        labels[DRIVER_VERSION] = label(driver.version or "")
        labels[CUDA_VERSION] = label(driver.cuda or "")
    return {key: value for key, value in labels.items() if value}
