"""What other products write on the Pods that they bind: which GPUs, and how much of each.

Formats, each from the product's own code: HAMi (Project-HAMi/HAMi, pkg/device/devices.go: EncodePodSingleDevice),
Volcano vGPU, which has the same (volcano-sh/volcano, pkg/scheduler/api/devices/nvidia/vgpu), Volcano GPU share
(devices/nvidia/gpushare; volcano-sh/devices, pkg/plugin/nvidia/server.go: an index of NVML's list, which is resolved at
each start of a container), gpushare (gpushare-scheduler-extender, pkg/utils/pod.go; gpushare-device-plugin,
pkg/gpu/nvidia/nvidia.go: a minor, which is resolved once, when the kubelet admits the Pod), KAI
(kai-scheduler/KAI-scheduler, pkg/binder/binding/resourcereservation: a reservation Pod has the card; from 0.18 on
pkg/binder/plugins/nvfractions: annotations about the container that shares it).
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from fractions import Fraction
from typing import Any, Final

from allocator.quantity import QuantityError, to_int
from allocator.vocabulary.adopted import LATER, ForeignPart, ForeignPod, Numbered, Product
from allocator.vocabulary.devicetype import FULL
from allocator.vocabulary.excerpt import excerpt
from allocator.vocabulary.names import DEVICE_ALLOCATED
from allocator.vocabulary.peerresults import (
    GPUSHARE_DEV,
    GPUSHARE_IDX,
    GPUSHARE_POD,
    HAMI_ALLOCATED,
    KAI_CONTAINER,
    KAI_DEVICES,
    KAI_GROUP,
    KAI_LIMIT,
    KAI_REQUEST,
    KAI_RESERVED,
    VOLCANO_INDEX,
    VOLCANO_VGPU,
)

MIB: Final = 2**20
_MOST_TEXT: Final = 16 * 1024  # characters of one annotation; a card has some 60
_MOST_PARTS: Final = 256  # of one Pod
_MOST_STARTS: Final = 64  # containers
_MOST_NUMBER: Final = 1023
_MOST_MIB: Final = 2**32
_FINISHED: Final = ("Succeeded", "Failed")
_DECIMAL: Final = re.compile(r"[0-9]{0,3}(\.[0-9]{1,9})?", re.ASCII)
_NUMBER: Final = re.compile(r"[0-9]{1,12}", re.ASCII)
_VOLCANO_MEMORY: Final = "volcano.sh/gpu-memory"
_VOLCANO_NUMBER: Final = "volcano.sh/gpu-number"
_GPUSHARE_MEMORY: Final = "aliyun.com/gpu-mem"
_KAI_FRACTION: Final = "gpu-fraction"
_KAI_MEMORY: Final = "gpu-memory"
_KAI_NONE: Final = "-1"

Raw = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Adoption:
    """Which Pods of other products count.

    Attributes:
        peers: the products.
        schedulers: names of a product's schedulers: a Pod that states another one does not count. Empty or absent: any.
        reservations: the namespaces of KAI's reservation Pods.
        share_unit: bytes in one volcano.sh/gpu-memory.
        kai_unit: bytes in one of KAI's annotation gpu-memory.
    """

    peers: frozenset[Product] = frozenset()
    schedulers: Mapping[Product, frozenset[str]] = field(default_factory=dict)
    reservations: frozenset[str] = frozenset()
    share_unit: int = MIB
    kai_unit: int = MIB

    @property
    def theirs(self) -> frozenset[str]:
        """The names of the schedulers of all products that count."""
        return frozenset().union(*(self.schedulers.get(peer, ()) for peer in self.peers))


NO_ADOPTION: Final = Adoption()


class _UnreadableError(ValueError):
    """A statement that cannot be read; the message says what is wrong."""


@dataclass(frozen=True, slots=True)
class _Said:
    """What one product's fields of a Pod say."""

    evidence: str
    parts: tuple[ForeignPart, ...] = ()
    starts: tuple[int, ...] = ()
    reserves: str = ""


def read_foreign_pod(obj: Raw, adoption: Adoption) -> ForeignPod | None:
    """Read a Pod; None if it is not bound, has finished, holds nothing by another product, or is koordgate's own.

    A Pod with an allocation of koordgate or Koordinator is none of these, unless it names another product's scheduler:
    what other products' annotations say of it is a mirror of that allocation.

    Args:
        obj: the Pod.
        adoption: which Pods count.
    """
    metadata, spec, status = obj["metadata"], obj.get("spec") or {}, obj.get("status") or {}
    annotations: Mapping[str, str] = metadata.get("annotations") or {}
    node = spec.get("nodeName") or ""
    if not adoption.peers or not node or status.get("phase") in _FINISHED:
        return None
    # An author can write the annotation too (in observed namespaces, say), and what his Pod really has would count as
    # free. koordgate and Koordinator bind no Pod that names another product's scheduler.
    if DEVICE_ALLOCATED in annotations and spec.get("schedulerName") not in adoption.theirs:
        return None
    said: list[tuple[Product, _Said]] = []
    problems: list[tuple[Product, str, str]] = []
    for peer, evidence, read in _READERS:
        if peer not in adoption.peers:
            continue
        try:
            found = read(obj, adoption)
        except _UnreadableError as error:
            problems.append((peer, evidence, f"{evidence}: {error}"))
        else:
            said += [(peer, found)] if found is not None else []
    if not said and not problems:
        return None
    peer, evidence = (problems[0][0], problems[0][1]) if problems else (said[0][0], said[0][1].evidence)
    if not problems and len(said) > 1:
        names = " and ".join(one.evidence for _, one in said)
        problems = [(peer, evidence, f"{names}: two products state what the Pod holds")]
    whole = _Said(evidence) if problems else said[0][1]
    return ForeignPod(
        metadata["uid"],
        metadata.get("namespace", ""),
        metadata["name"],
        node,
        peer,
        evidence,
        whole.parts,
        whole.starts,
        whole.reserves,
        problems[0][2] if problems else "",
        "" if whole.reserves else _uncounted(spec, peer, evidence, adoption),
    )


def _uncounted(spec: Raw, peer: Product, evidence: str, adoption: Adoption) -> str:
    """Say why a Pod does not count; "" if it does."""
    schedulers = adoption.schedulers.get(peer, frozenset())
    name = spec.get("schedulerName") or ""
    if not schedulers or name in schedulers:
        return ""
    known = ", ".join(sorted(schedulers))
    return (
        f"it has {evidence}, and its scheduler is {excerpt(name)!r}, none of {peer}'s ({known}), so that nothing is "
        f"held for it: add the name to adopt.schedulers if {peer} binds such Pods, or remove the annotation"
    )


def read_devices(text: str) -> tuple[ForeignPart, ...]:
    """Read the devices of a Pod as HAMi and Volcano vGPU write them: "UUID,TYPE,MiB,percent:" each, ";" per container.

    Raises:
        ValueError: the text does not have the format.
    """
    _check_length(text)
    parts = []
    for entry in text.replace(";", ":").split(":"):
        if not entry.strip():
            continue
        fields = entry.split(",")
        if len(fields) < 4 or not fields[0].strip() or not fields[1].strip():  # noqa: PLR2004 the format's fields
            raise _UnreadableError(f"{excerpt(entry)!r} is not UUID,TYPE,MiB,percent")
        mib, core = _number(fields[2]), _number(fields[3])
        if mib > _MOST_MIB:
            raise _UnreadableError(f"{mib} MiB is more than any card has")
        identity, _, mig = fields[0].strip().partition("[")  # a MIG device of the card: all of it is held
        if not identity:
            raise _UnreadableError(f"{excerpt(entry)!r} names no card before [")
        parts.append(ForeignPart(identity, memory=mib * MIB if mib and not mig else None, core=min(core, FULL)))
        _check_count(parts)
    return tuple(parts)


def _hami(obj: Raw, _adoption: Adoption) -> _Said | None:
    return _devices(obj, HAMI_ALLOCATED)


def _vgpu(obj: Raw, _adoption: Adoption) -> _Said | None:
    return _devices(obj, VOLCANO_VGPU)


def _devices(obj: Raw, key: str) -> _Said | None:
    text = _annotation(obj, key)
    if text is None:
        return None
    parts = read_devices(text)
    return _Said(key, parts) if parts else None


def _volcano_share(obj: Raw, adoption: Adoption) -> _Said | None:
    """Read an index of NVML's list, or several; Volcano's device plugin gives a Pod without its resources no card."""
    text = _annotation(obj, VOLCANO_INDEX)
    memory, number = _limit(obj, _VOLCANO_MEMORY), _limit(obj, _VOLCANO_NUMBER)
    if text is None or not (memory or number):
        return None
    indexes = [_card_number(one) for one in text.split(",")]
    _check_count(indexes)
    if memory and len(indexes) != 1:
        raise _UnreadableError(f"names {len(indexes)} cards, and {_VOLCANO_MEMORY} is memory of one")
    if len(set(indexes)) != len(indexes):
        raise _UnreadableError("names a card twice")
    held = memory * adoption.share_unit if memory else None
    parts = tuple(ForeignPart(by=Numbered.INDEX, number=index, memory=held) for index in indexes)
    return _Said(VOLCANO_INDEX, parts, _container_starts(obj))


def _gpushare(obj: Raw, _adoption: Adoption) -> _Said | None:
    """Read a minor, and which part of the card is held; without its resource, the device plugin gives no card."""
    text = _annotation(obj, GPUSHARE_IDX)
    asked = _limit(obj, _GPUSHARE_MEMORY)
    if text is None or not asked:
        return None
    minor = _card_number(text)
    held, has = _annotation(obj, GPUSHARE_POD), _annotation(obj, GPUSHARE_DEV)
    units = asked if held is None else max(asked, _number(held))
    part: tuple[int, int] | None = None
    if has is not None:
        total = _number(has)
        if units > total:
            raise _UnreadableError(f"{units} units are held of a card that has {total} by {GPUSHARE_DEV}")
        part = units, total
    started = _time((obj.get("status") or {}).get("startTime"))
    return _Said(GPUSHARE_IDX, (ForeignPart(by=Numbered.MINOR, number=minor, part=part),), (started,))


def _kai(obj: Raw, adoption: Adoption) -> _Said | None:
    """Read the cards and the groups of a Pod that shares cards, or the card of a reservation Pod."""
    metadata = obj["metadata"]
    labels: Mapping[str, str] = metadata.get("labels") or {}
    groups = {value for key, value in labels.items() if value and _of_group(key)}
    named = _kai_stated(obj, KAI_DEVICES)
    if not groups and named is None:
        return None
    if groups and metadata.get("namespace", "") in adoption.reservations:
        group, identity = min(groups), _annotation(obj, KAI_RESERVED)
        known = identity not in {None, "", _KAI_NONE}
        part = ForeignPart(identity or "") if known else ForeignPart(group=group)
        return _Said(KAI_RESERVED, (part,), reserves=group)
    one = _kai_amount(obj, adoption)
    _check_count(groups)
    if named is None:
        return _Said(KAI_GROUP, tuple(one._replace(group=group) for group in sorted(groups)))
    key, text = named
    cards = [card.strip().rpartition("=")[2] for card in text.split(",")]
    _check_count(cards)
    if not all(cards):
        raise _UnreadableError(f"{key} names no card between two commas")
    # Which group has which card is not stated. The reservation Pods hold them all, so that any group will do.
    group = min(groups, default="")
    return _Said(KAI_GROUP if groups else key, tuple(one._replace(id=card, group=group) for card in cards))


def _kai_amount(obj: Raw, adoption: Adoption) -> ForeignPart:
    """What a Pod has of each of its cards; without an amount, the whole card.

    An amount of one container comes before those of the Pod, as in KAI; a limit alone is what is asked as well.
    """
    fraction, memory = _annotation(obj, _KAI_FRACTION), _annotation(obj, _KAI_MEMORY)
    one = ForeignPart()
    if fraction is not None:
        if not _DECIMAL.fullmatch(fraction) or not any(digit in fraction for digit in "0123456789"):
            raise _UnreadableError(f"{_KAI_FRACTION} {excerpt(fraction)!r} is no decimal number")
        part_of = Fraction(fraction)
        if not 0 < part_of <= 1:
            raise _UnreadableError(f"{_KAI_FRACTION} {excerpt(fraction)!r} is not above 0 and at most 1")
        one = ForeignPart(part=part_of.as_integer_ratio(), core=-(-FULL * part_of.numerator // part_of.denominator))
    elif memory is not None:
        units = _number(memory)
        one = ForeignPart(memory=units * adoption.kai_unit) if units else one
    stated = _kai_stated(obj, KAI_REQUEST) or _kai_stated(obj, KAI_LIMIT)
    if stated is None:
        return one
    key, text = stated
    try:
        size = to_int(text)
    except QuantityError as error:
        raise _UnreadableError(f"{key}: {error}") from error
    return one._replace(memory=size, part=None) if size else one


def _kai_stated(obj: Raw, end: str) -> tuple[str, str] | None:
    """The annotation about a container with this end, and its text; KAI gives cards to one container of a Pod."""
    keys = [key for key in obj["metadata"].get("annotations") or {} if key.startswith(KAI_CONTAINER)]
    found = [key for key in keys if key.endswith(end)]
    if len(found) > 1:
        raise _UnreadableError(f"{len(found)} containers have {end[1:]}, and KAI gives cards to one")
    return (found[0], _annotation(obj, found[0]) or "") if found else None


def _of_group(key: str) -> bool:
    return key == KAI_GROUP or key.startswith(f"{KAI_GROUP}/")


_READERS: Final[tuple[tuple[Product, str, Callable[[Raw, Adoption], _Said | None]], ...]] = (
    (Product.HAMI, HAMI_ALLOCATED, _hami),
    (Product.VOLCANO, VOLCANO_VGPU, _vgpu),
    (Product.VOLCANO, VOLCANO_INDEX, _volcano_share),
    (Product.GPUSHARE, GPUSHARE_IDX, _gpushare),
    (Product.KAI, KAI_GROUP, _kai),
)


def _annotation(obj: Raw, key: str) -> str | None:
    text = (obj["metadata"].get("annotations") or {}).get(key)
    if text is None:
        return None
    if not isinstance(text, str):
        raise _UnreadableError(f"{key} is no text")
    _check_length(text)
    return text


def _check_length(text: str) -> None:
    if len(text) > _MOST_TEXT:
        raise _UnreadableError(f"has more than {_MOST_TEXT} characters")


def _check_count(parts: Iterable[object]) -> None:
    if sum(1 for _ in parts) > _MOST_PARTS:
        raise _UnreadableError(f"names more than {_MOST_PARTS} cards")


def _number(text: str) -> int:
    stripped = text.strip()
    if not _NUMBER.fullmatch(stripped):
        raise _UnreadableError(f"{excerpt(text)!r} is no whole number of at most twelve digits")
    return int(stripped)


def _card_number(text: str) -> int:
    number = _number(text)
    if number > _MOST_NUMBER:
        raise _UnreadableError(f"no node has a card {number}")
    return number


def _limit(obj: Raw, resource: str) -> int:
    """What a Pod's containers have of a resource in sum, by their limits."""
    total = 0
    for container in (obj.get("spec") or {}).get("containers") or ():
        amount = ((container.get("resources") or {}).get("limits") or {}).get(resource)
        try:
            total += 0 if amount is None else to_int(amount)
        except QuantityError as error:
            raise _UnreadableError(f"{resource}: {error}") from error
    return total


def _container_starts(obj: Raw) -> tuple[int, ...]:
    """When a Pod's containers started; one that does not run may start again at any later time."""
    return tuple(sorted(set(_starts((obj.get("status") or {}).get("containerStatuses") or ())))) or (LATER,)


def _starts(statuses: Iterable[Raw]) -> Iterator[int]:
    for number, status in enumerate(statuses):
        if number >= _MOST_STARTS:
            raise _UnreadableError(f"the Pod has more than {_MOST_STARTS} containers")
        yield _time(((status.get("state") or {}).get("running") or {}).get("startedAt"))


def _time(text: object) -> int:
    """Read a time of the API server in seconds since the epoch; `LATER` if there is none yet."""
    if not isinstance(text, str):
        return LATER
    try:
        return int(datetime.fromisoformat(text).timestamp())
    except (ValueError, OverflowError) as error:
        raise _UnreadableError(f"{excerpt(text)!r} is no time") from error
