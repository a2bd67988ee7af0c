"""What other products would have written on a Pod that koordgate binds, for their dashboards, agents and schedulers.

`allocator.wire.foreignpods` reads the same formats and names their sources. A card is stated once, because readers add
up what containers have: at the first app container that uses it. A card that only init containers use is stated at the
first app container, because the Pod holds it as long as it lives, and HAMi lets go of what init containers have once
they have ended. Nothing is stated that a format cannot say: gpushare names one card, and Volcano GPU share indexes of
NVML's list, which the node's reporter must have stated.

A Node's annotation in which another product's device plugin lists its cards, with UUIDs and memory.

Formats, from the products' own code: HAMi (Project-HAMi/HAMi, pkg/device/devices.go: a JSON list in MiB, and before
v2.6 the text of docs/develop/protocol.md), Volcano vGPU (Project-HAMi/volcano-vgpu-device-plugin, pkg/util/util.go:
EncodeNodeDevices, a text of other values; pkg/plugin/register.go: memory in the unit of its installation).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from allocator.quantity import format_bytes
from allocator.vocabulary.adopted import (
    GPUSHARE_ASSIGNED,
    GPUSHARE_ASSUMED_AT,
    GPUSHARE_DEV,
    GPUSHARE_IDX,
    GPUSHARE_POD,
    HAMI_ALLOCATED,
    HAMI_BIND_TIME,
    HAMI_NODE,
    HAMI_PHASE,
    HAMI_TIME,
    HAMI_TO_ALLOCATE,
    VOLCANO_INDEX,
    VOLCANO_PREDICATE_TIME,
    Numberings,
    Product,
)
from allocator.vocabulary.device import Device
from allocator.vocabulary.holdings import Holding, Share
from allocator.vocabulary.names import GPU_CORE, GPU_MEMORY, NVIDIA, TYPE_GPU, ContainerNames
from allocator.vocabulary.outcome import excerpt
from allocator.wire.values import UNREADABLE, as_json, as_list, as_object

_HAMI: Final = "hami.io/node-nvidia-register"
_VOLCANO: Final = "volcano.sh/node-vgpu-register"
REGISTERS: Final = (_HAMI, _VOLCANO)
"""The annotations that list NVIDIA's cards; the first that a Node has counts."""

_MAX_TEXT: Final = 64 * 1024
_MAX_CARDS: Final = 64
_MIB: Final = 2**20
_MAX_BYTES: Final = 2**52
_MAX_DIGITS: Final = 16
_HAMI_FIELDS: Final = 7
_VOLCANO_FIELDS: Final = 5


class RegisteredCard(NamedTuple):
    """A card as a product registers it."""

    id: str
    memory: int  # its bytes, as the product counts them: more than the card has where it overcommits memory
    model: str  # with the vendor's name, blanks as dashes
    numa: int | None  # its NUMA node; None if it is not stated
    healthy: bool  # whether the product gives it


def read_register(annotations: Mapping[str, Any], vgpu_unit: int = _MIB) -> tuple[str, Sequence[RegisteredCard], str]:
    """Read the cards that a Node's annotations list, in their order, which is that of NVML.

    `vgpu_unit`: bytes in 1 of memory of Volcano vGPU. Returns the annotation ("" where there is none), the cards, and
    why it cannot be read ("" if it can).
    """
    key = next((one for one in REGISTERS if annotations.get(one)), "")
    if not key:
        return "", (), ""
    text = annotations[key]
    try:
        if not isinstance(text, str) or len(text) > _MAX_TEXT:
            raise ValueError(f"more than {_MAX_TEXT} characters, or no text")
        unit = vgpu_unit if key == _VOLCANO else _MIB
        if text.lstrip().startswith("["):
            found = [_entry(one, unit) for one in as_list(as_json(text))]
        else:
            line = _volcano_line if key == _VOLCANO else _hami_line
            found = [line(part.split(","), unit) for part in text.split(":") if part.strip()]
        if len(found) > _MAX_CARDS:
            raise ValueError(f"more than {_MAX_CARDS} cards")
        if len({card.id for card in found}) < len(found):
            raise ValueError("it lists a card twice")
    except UNREADABLE as error:
        return key, (), f"annotation {key}: {error}"
    return key, found, ""


def _hami_line(fields: Sequence[str], unit: int) -> RegisteredCard:
    identity, _, memory, _, model, numa, healthy = _values(fields, _HAMI_FIELDS)
    return _card(identity, _number(memory), unit, model, _number(numa), healthy=healthy.strip().lower() == "true")


def _volcano_line(fields: Sequence[str], unit: int) -> RegisteredCard:
    identity, _, memory, model, healthy = _values(fields, _VOLCANO_FIELDS)
    return _card(identity, _number(memory), unit, model, None, healthy=healthy.strip().lower() == "true")


def _values(fields: Sequence[str], least: int) -> Sequence[str]:
    if len(fields) < least:
        raise ValueError(f"{excerpt(','.join(fields))!r} has fewer than {least} values")
    return fields[:least]


def _entry(value: object, unit: int) -> RegisteredCard:
    entry = as_object(value)
    numa, healthy = entry.get("numa", 0), entry.get("health", True) is True
    return _card(entry.get("id"), entry.get("devmem"), unit, entry.get("type", ""), numa, healthy=healthy)


def _card(identity: object, memory: object, unit: int, model: object, numa: object, *, healthy: bool) -> RegisteredCard:
    if not isinstance(identity, str) or not identity.strip() or "," in identity:
        raise ValueError(f"{excerpt(identity)!r} is no UUID")
    most = _MAX_BYTES // unit
    if not isinstance(memory, int) or isinstance(memory, bool) or not 0 < memory <= most:
        raise ValueError(f"{excerpt(memory)!r} is no number of {format_bytes(unit)}")
    where = numa if isinstance(numa, int) and not isinstance(numa, bool) and numa >= 0 else None
    name = "-".join(str(model).split())
    return RegisteredCard(identity.strip(), memory * unit, name, where, healthy)


def _number(text: str) -> int:
    stripped = text.strip()
    if not stripped.isascii() or not stripped.removeprefix("-").isdecimal() or len(stripped) > _MAX_DIGITS:
        raise ValueError(f"{excerpt(text)!r} is no number")
    return int(stripped)


_NS: Final = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Mirror:
    """For which products a bind writes."""

    peers: frozenset[Product] = frozenset()  # HAMI, VOLCANO (GPU share) and GPUSHARE
    gpushare_unit: int = 2**30  # bytes in one aliyun.com/gpu-mem


NO_MIRROR: Final = Mirror()


def write_mirror(
    mirror: Mirror,
    holding: Holding,
    node: str,
    devices: Sequence[Device],
    numberings: Numberings,
    now: int,
    containers: ContainerNames,
) -> dict[str, str]:
    """Write a holding as other products do; empty if it has no NVIDIA GPU that the node lists.

    `now`: seconds since the epoch.
    """
    known = {device.id: device for device in devices if device.type == TYPE_GPU and device.is_of(NVIDIA)}
    shares = [share for share in holding.shares if share.type == TYPE_GPU]
    if not shares or any(share.id not in known for share in shares):
        return {}
    written: dict[str, str] = {}
    if Product.HAMI in mirror.peers:
        written |= _hami(shares, node, now, containers)
    if Product.VOLCANO in mirror.peers:
        written |= _volcano(shares, numberings, now)
    if Product.GPUSHARE in mirror.peers:
        written |= _gpushare(shares, known, mirror.gpushare_unit, now)
    return written


def write_devices(containers: Sequence[Sequence[tuple[str, int, int]]]) -> str:
    """Write devices as HAMi does: for each container (UUID, MiB, percent of the compute)."""
    entries = ("".join(f"{identity},NVIDIA,{mib},{core}:" for identity, mib, core in one) for one in containers)
    return "".join(f"{entry};" for entry in entries)


def _hami(shares: Sequence[Share], node: str, now: int, containers: ContainerNames) -> dict[str, str]:
    """Write an entry for each container, init containers first, because readers go by an entry's position."""
    apps = containers.apps or ("",)
    stated: dict[str, list[tuple[str, int, int]]] = {name: [] for name in apps}
    for share in shares:
        first = next((name for name in apps if name in share.containers), apps[0])
        mib = -(-share.amounts.get(GPU_MEMORY, 0) // _MIB)
        stated[first].append((share.id, mib, share.amounts.get(GPU_CORE, 0)))
    entries = [*([] for _ in containers.init), *stated.values()]
    return {
        HAMI_ALLOCATED: write_devices(entries),
        HAMI_TO_ALLOCATE: ";" * len(entries),
        HAMI_NODE: node,
        HAMI_TIME: str(now),
        HAMI_BIND_TIME: str(now),
        HAMI_PHASE: "success",
    }


def _volcano(shares: Sequence[Share], numberings: Numberings, now: int) -> dict[str, str]:
    latest = numberings[-1].indexes if numberings else ()
    if any(share.id not in latest for share in shares):
        return {}
    indexes = sorted(latest.index(share.id) for share in shares)
    return {VOLCANO_INDEX: ",".join(map(str, indexes)), VOLCANO_PREDICATE_TIME: str(now * _NS)}


def _gpushare(shares: Sequence[Share], known: Mapping[str, Device], unit: int, now: int) -> dict[str, str]:
    share = shares[0]
    total = known[share.id].capacity.get(GPU_MEMORY, 0) // unit
    held = min(-(-share.amounts.get(GPU_MEMORY, 0) // unit), total)
    if len(shares) != 1 or not held:
        return {}
    return {
        GPUSHARE_IDX: str(known[share.id].minor),
        GPUSHARE_POD: str(held),
        GPUSHARE_DEV: str(total),
        GPUSHARE_ASSIGNED: "true",
        GPUSHARE_ASSUMED_AT: str(now * _NS),
    }
