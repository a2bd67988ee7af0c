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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from typing import Any, Final, NamedTuple

from allocator.quantity import QuantityError, to_int
from allocator.vocabulary.adopted import (
    BY_GPUSHARE,
    BY_HAMI,
    BY_KAI,
    BY_SHARE,
    BY_VGPU,
    GPUSHARE_DEV,
    GPUSHARE_POD,
    KAI_CONTAINER,
    KAI_DEVICES,
    KAI_GROUP,
    KAI_LIMIT,
    KAI_REQUEST,
    KAI_RESERVED,
    LATER,
    SCHEDULERS,
    ForeignPart,
    ForeignPod,
    Numbered,
    Product,
    Statement,
    maker_of,
)
from allocator.vocabulary.devicetype import FULL
from allocator.vocabulary.dialects import PEERS, Dialect
from allocator.vocabulary.names import (
    DEVICE_ALLOCATED,
    GPU,
    GPU_CORE,
    GPU_MEMORY,
    GPU_MEMORY_RATIO,
    NVIDIA_GPU,
    RESOURCE_MAPS,
    Phase,
)
from allocator.vocabulary.outcome import excerpt
from allocator.wire.values import MAX_CONTAINERS, as_time

MIB: Final = 2**20
_MAX_TEXT: Final = 16 * 1024  # characters of one annotation; a card has some 60
_MAX_PARTS: Final = 256  # of one Pod
_MAX_STARTS: Final = 64  # containers
_MAX_NUMBER: Final = 1023
_MAX_MIB: Final = 2**32
_FINISHED: Final = ("Succeeded", "Failed")
_DECIMAL: Final = re.compile(r"[0-9]{0,3}(\.[0-9]{1,9})?", re.ASCII)
_NUMBER: Final = re.compile(r"[0-9]{1,12}", re.ASCII)
_ALL: Final = 2**62  # bytes: more than any card has, so that all of it is held
_KAI_FRACTION: Final = "gpu-fraction"
_KAI_MEMORY: Final = "gpu-memory"
_KAI_NONE: Final = "-1"

Raw = Mapping[str, Any]


@dataclass(frozen=True)
class Adoption:
    """Which Pods of other products count."""

    peers: frozenset[Product] = frozenset()
    # names of a product's schedulers: a Pod that states another one does not count. Empty or absent: any.
    schedulers: Mapping[Product, frozenset[str]] = field(default_factory=dict)
    reservations: frozenset[str] = frozenset()  # the namespaces of KAI's reservation Pods
    # the products' dialects as they are installed, by name
    dialects: Mapping[str, Dialect] = field(default_factory=lambda: {one.name: one for one in PEERS})

    @cached_property
    def names(self) -> frozenset[str]:
        """The resources by which Pods of these products ask."""
        asking = (self.dialects[by.dialect].terms for by, _ in _READERS if by.product in self.peers)
        return frozenset(term.name for terms in asking for term in terms)

    @property
    def theirs(self) -> frozenset[str]:
        """The names of the schedulers of all products that count."""
        return frozenset().union(*(self.schedulers.get(peer, ()) for peer in self.peers))

    def binds(self, peer: Product, scheduler_name: str) -> bool:
        """Whether a scheduler of this name is one of a product."""
        return scheduler_name in self.schedulers.get(peer, ())

    def counts(self, dialect: str, scheduler_name: str) -> bool:
        """Whether a Pod counts that asks in a product's dialect and names this scheduler."""
        product = next((by.product for by, _ in _READERS if by.dialect == dialect), None)
        if product is None or product not in self.peers:
            return False
        return not self.schedulers.get(product) or self.binds(product, scheduler_name)


class _UnreadableError(ValueError):
    """A statement that cannot be read; the message says what is wrong."""


@dataclass(frozen=True, slots=True)
class _Said:
    """What one product's fields of a Pod say."""

    evidence: str
    parts: tuple[ForeignPart, ...] = ()
    starts: tuple[int, ...] = ()
    reserves: str = ""


class _Use(NamedTuple):
    """What a container uses of a card."""

    memory: int = 0  # bytes, or what the unit of a statement counts; `_ALL` or more for all of the card
    core: int = 0  # percent of the card's compute

    def beside(self, other: "_Use") -> "_Use":
        """What both use together."""
        return _Use(self.memory + other.memory, self.core + other.core)

    def or_else(self, other: "_Use") -> "_Use":
        """What either uses at most."""
        return _Use(max(self.memory, other.memory), max(self.core, other.core))

    def part(self, **of: Any) -> ForeignPart:
        """The same of a card."""
        return ForeignPart(memory=self.memory if self.memory < _ALL else None, core=min(self.core, FULL), **of)


def read_foreign_pod(obj: Raw, adoption: Adoption) -> ForeignPod | None:
    """Read a Pod; None if it is not bound, has finished, holds nothing by another product, or is koordgate's own.

    A Pod with an allocation of koordgate or Koordinator is none of these, unless it names another product's scheduler:
    what other products' annotations say of it is a mirror of that allocation.
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
    asks = _names(obj, adoption.names)  # once: the many Pods of others cost no more than this
    said: list[tuple[Product, _Said]] = []
    problems: list[tuple[Product, str, str]] = []
    for by, read in _READERS:
        peer, evidence = by.product, by.evidence
        if peer not in adoption.peers:
            continue
        try:
            found = read(obj, by, adoption, asks)
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
        maker_of(metadata),
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


def read_devices(text: str, unit: int = MIB) -> tuple[tuple[ForeignPart, ...], ...]:
    """Read the devices of a Pod as HAMi and Volcano vGPU write them: "UUID,TYPE,memory,percent:" each.

    `text`: entries, of which each ends with ";", the last one perhaps without. `unit`: bytes in 1 of memory. Returns
    the devices of each entry, also of an empty one: an entry's position says which container it is of. Raises
    ValueError: the text does not have the format.
    """
    _check_length(text)
    entries = text.split(";")
    if not entries[-1].strip():
        entries.pop()
    if len(entries) > MAX_CONTAINERS:
        raise _UnreadableError(f"has entries of more than {MAX_CONTAINERS} containers")
    found = tuple(tuple(_device(one, unit) for one in entry.split(":") if one.strip()) for entry in entries)
    _check_count(part for parts in found for part in parts)
    return found


def _device(text: str, unit: int) -> ForeignPart:
    fields = text.split(",")
    if len(fields) < 4 or not fields[0].strip() or not fields[1].strip():  # noqa: PLR2004 the format's fields
        raise _UnreadableError(f"{excerpt(text)!r} is not UUID,TYPE,MiB,percent")
    memory, core = _number(fields[2]), _number(fields[3])
    if memory * unit > _MAX_MIB * MIB:
        raise _UnreadableError(f"{memory * unit // MIB} MiB is more than any card has")
    identity, _, mig = fields[0].strip().partition("[")  # a MIG device of the card: all of it is held
    if not identity:
        raise _UnreadableError(f"{excerpt(text)!r} names no card before [")
    return ForeignPart(identity, memory=memory * unit if memory and not mig else None, core=min(core, FULL))


def _by_uuid(obj: Raw, by: Statement, adoption: Adoption, asks: bool) -> _Said | None:  # noqa: FBT001
    """Read the cards of each container: of each card the most that the Pod has of it at one time."""
    text = _annotation(obj, by.evidence)
    entries = read_devices(text, adoption.dialects[by.dialect].unit if by.scaled else MIB) if text is not None else ()
    if not any(entries):
        return _unnamed(obj, by, adoption, asks)
    phases = [phase for phase, _ in _containers(obj)]
    if not by.every or len(entries) != len(phases):  # whose the entries are is not known: all may run at one time
        phases = [Phase.APP] * len(entries)
    uses: dict[str, list[tuple[Phase, _Use]]] = {}
    for phase, entry in zip(phases, entries, strict=True):
        for part in entry:
            use = _Use(_ALL if part.memory is None else part.memory, part.core)
            uses.setdefault(part.id, []).append((phase, use))
    shrunk = by.shrinks and _ended(obj)
    return _Said(by.evidence, tuple(_peak(of, ended=shrunk).part(id=card) for card, of in uses.items()))


def _volcano_share(obj: Raw, by: Statement, adoption: Adoption, asks: bool) -> _Said | None:  # noqa: FBT001
    """Read an index of NVML's list, or several; Volcano's device plugin gives a Pod without its resources no card."""
    text, asked = _annotation(obj, by.evidence), _asked(obj, by, adoption, asks)
    if text is None or asked is None:
        return _unnamed(obj, by, adoption, asks)
    indexes = [_card_number(one) for one in text.split(",")]
    _check_count(indexes)
    if asked.use.memory < _ALL and len(indexes) != 1:
        raise _UnreadableError(f"names {len(indexes)} cards, and {asked.name} is memory of one")
    if len(set(indexes)) != len(indexes):
        raise _UnreadableError("names a card twice")
    parts = tuple(asked.use.part(by=Numbered.INDEX, number=index) for index in indexes)
    return _Said(by.evidence, parts, _container_starts(obj))


def _gpushare(obj: Raw, by: Statement, adoption: Adoption, asks: bool) -> _Said | None:  # noqa: FBT001
    """Read a minor, and which part of the card is held; without its resource, the device plugin gives no card."""
    text, asked = _annotation(obj, by.evidence), _asked(obj, by, adoption, asks)
    if text is None or asked is None:
        return _unnamed(obj, by, adoption, asks)
    minor = _card_number(text)
    held, has = _annotation(obj, GPUSHARE_POD), _annotation(obj, GPUSHARE_DEV)
    units = max(asked.use.memory // adoption.dialects[by.dialect].unit, 0 if held is None else _number(held))
    part: tuple[int, int] | None = None
    if has is not None:
        total = _number(has)
        if units > total:
            raise _UnreadableError(f"{units} units are held of a card that has {total} by {GPUSHARE_DEV}")
        part = units, total
    started = _time((obj.get("status") or {}).get("startTime"))
    return _Said(by.evidence, (ForeignPart(by=Numbered.MINOR, number=minor, part=part),), (started,))


class _Asked(NamedTuple):
    """What a Pod asks of one card in a product's names."""

    use: _Use  # the most at one time
    name: str  # the first name by which it asks, of those that no device plugin of NVIDIA's has if there are any


def _asked(obj: Raw, by: Statement, adoption: Adoption, asks: bool) -> _Asked | None:  # noqa: FBT001
    """What a Pod has of one card at most, if all its containers have the same one; None if it asks for nothing."""
    if not asks:
        return None
    dialect, name = adoption.dialects[by.dialect], ""
    uses: list[tuple[Phase, _Use]] = []
    for phase, container in _containers(obj):
        asked = _asked_by(container, dialect)
        if asked is not None:
            name = _telling(name, asked.name)
            uses.append((phase, asked.use))
    return _Asked(_peak(uses, ended=by.shrinks and _ended(obj)), name) if uses else None


def _telling(first: str, second: str) -> str:
    """Which of two names tells more of whose a Pod is; the first if both do."""
    return second if first in {"", NVIDIA_GPU} else first


def _asked_by(container: Raw, dialect: Dialect) -> _Asked | None:
    """What a container asks of each of its cards; all of it where that is not stated in bytes."""
    resources = container.get("resources") or {}
    stated = {**(resources.get("requests") or {}), **(resources.get("limits") or {})}
    amounts, first = dict[str, int](), ""
    for term in dialect.terms:
        if term.name not in stated or not term.states:
            continue
        try:
            amount = to_int(stated[term.name])
        except QuantityError as error:
            raise _UnreadableError(f"{term.name}: {error}") from error
        if amount:
            first = _telling(first, term.name)
            amounts[term.states] = amount * term.factor
    if not first:
        return None
    bytes_count = GPU not in amounts and not (dialect.both == GPU_MEMORY_RATIO and GPU_MEMORY_RATIO in amounts)
    memory = amounts.get(GPU_MEMORY, _ALL) if bytes_count else _ALL
    return _Asked(_Use(memory, amounts.get(GPU_CORE, 0)), first)


def _names(obj: Raw, names: frozenset[str]) -> bool:
    """Whether a container of a Pod states one of these resources."""
    spec = obj.get("spec") or {}
    for of in ("initContainers", "containers"):
        for container in spec.get(of) or ():
            resources = container.get("resources")
            if resources and not all(names.isdisjoint(resources.get(key) or ()) for key in RESOURCE_MAPS):
                return True
    return False


def _unnamed(obj: Raw, by: Statement, adoption: Adoption, asks: bool) -> _Said | None:  # noqa: FBT001
    """What a product's Pod has of a card that nothing names; None if the Pod is not that product's.

    It is if it names one of the product's schedulers, or any will do, and asks in names that no other product has, or
    names the product's own scheduler. The device plugin may give it a card all the same.
    """
    asked = _asked(obj, by, adoption, asks)
    if asked is None or not _is_of(obj, by, asked.name, adoption):
        return None
    return _Said(asked.name, (asked.use.part(),))


def _scheduler_of(obj: Raw) -> str:
    return (obj.get("spec") or {}).get("schedulerName") or ""


def _is_of(obj: Raw, by: Statement, name: str, adoption: Adoption) -> bool:
    scheduler = _scheduler_of(obj)
    theirs = adoption.schedulers.get(by.product)
    if theirs and scheduler not in theirs:
        return False
    return name != NVIDIA_GPU or scheduler in SCHEDULERS[by.product]


def _containers(obj: Raw) -> Sequence[tuple[Phase, Raw]]:
    """A Pod's containers and when they run, init containers first."""
    spec = obj.get("spec") or {}
    early, apps = spec.get("initContainers") or (), spec.get("containers") or ()
    if len(early) + len(apps) > MAX_CONTAINERS:
        raise _UnreadableError(f"the Pod has more than {MAX_CONTAINERS} containers")
    sidecar = {"Always": Phase.SIDECAR}
    return [
        *((sidecar.get(one.get("restartPolicy"), Phase.INIT), one) for one in early),
        *((Phase.APP, one) for one in apps),
    ]


def _peak(uses: Iterable[tuple[Phase, _Use]], *, ended: bool) -> _Use:
    """The most that containers use at one time.

    `uses`: in the order of `_containers`.
    """
    lasting = most = _Use()
    for phase, use in uses:
        if phase is not Phase.INIT:
            lasting = lasting.beside(use)
        elif not ended:
            most = most.or_else(lasting.beside(use))
    return most.or_else(lasting)


def _ended(obj: Raw) -> bool:
    """Whether all init containers of a Pod have ended well; while a sidecar runs, they have not."""
    early = (obj.get("spec") or {}).get("initContainers") or ()
    statuses = (obj.get("status") or {}).get("initContainerStatuses") or ()
    states = [((one.get("state") or {}).get("terminated") or {}).get("exitCode") for one in statuses]
    return len(states) == len(early) and all(code == 0 for code in states)


def _kai(obj: Raw, by: Statement, adoption: Adoption, asks: bool) -> _Said | None:  # noqa: ARG001, FBT001
    """Read the cards and the groups of a Pod that shares cards, or the card of a reservation Pod."""
    metadata = obj["metadata"]
    labels: Mapping[str, str] = metadata.get("labels") or {}
    groups = {value for key, value in labels.items() if value and _of_group(key)}
    named = _kai_stated(obj, KAI_DEVICES)
    if not groups and named is None:
        return _kai_unnamed(obj, by, adoption)
    if groups and metadata.get("namespace", "") in adoption.reservations:
        group, identity = min(groups), _annotation(obj, KAI_RESERVED)
        known = identity not in {None, "", _KAI_NONE}
        part = ForeignPart(identity or "") if known else ForeignPart(group=group)
        return _Said(KAI_RESERVED, (part,), reserves=group)
    one = _kai_amount(obj, by, adoption)
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


def _kai_unnamed(obj: Raw, by: Statement, adoption: Adoption) -> _Said | None:
    """What a Pod that KAI's scheduler bound has of a card that nothing names; whole cards are the kubelet's."""
    annotations = obj["metadata"].get("annotations") or {}
    asked = next((key for key in (_KAI_FRACTION, _KAI_MEMORY) if key in annotations), "")
    stated = _kai_stated(obj, KAI_REQUEST) or _kai_stated(obj, KAI_LIMIT)
    evidence = asked or (stated[0] if stated is not None else "")
    if not evidence or not adoption.binds(by.product, _scheduler_of(obj)):
        return None
    return _Said(evidence, (_kai_amount(obj, by, adoption),))


def _kai_amount(obj: Raw, by: Statement, adoption: Adoption) -> ForeignPart:
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
        one = ForeignPart(memory=units * adoption.dialects[by.dialect].unit) if units else one
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


_READERS: Final[tuple[tuple[Statement, Callable[[Raw, Statement, Adoption, bool], _Said | None]], ...]] = (
    (BY_HAMI, _by_uuid),
    (BY_VGPU, _by_uuid),
    (BY_SHARE, _volcano_share),
    (BY_GPUSHARE, _gpushare),
    (BY_KAI, _kai),
)
NO_ADOPTION: Final = Adoption()


def _annotation(obj: Raw, key: str) -> str | None:
    text = (obj["metadata"].get("annotations") or {}).get(key)
    if text is None:
        return None
    if not isinstance(text, str):
        raise _UnreadableError(f"{key} is no text")
    _check_length(text)
    return text


def _check_length(text: str) -> None:
    if len(text) > _MAX_TEXT:
        raise _UnreadableError(f"has more than {_MAX_TEXT} characters")


def _check_count(parts: Iterable[object]) -> None:
    if sum(1 for _ in parts) > _MAX_PARTS:
        raise _UnreadableError(f"names more than {_MAX_PARTS} cards")


def _number(text: str) -> int:
    stripped = text.strip()
    if not _NUMBER.fullmatch(stripped):
        raise _UnreadableError(f"{excerpt(text)!r} is no whole number of at most twelve digits")
    return int(stripped)


def _card_number(text: str) -> int:
    number = _number(text)
    if number > _MAX_NUMBER:
        raise _UnreadableError(f"no node has a card {number}")
    return number


def _container_starts(obj: Raw) -> tuple[int, ...]:
    """When a Pod's containers started; one that does not run may start again at any later time."""
    return tuple(sorted(set(_starts((obj.get("status") or {}).get("containerStatuses") or ())))) or (LATER,)


def _starts(statuses: Iterable[Raw]) -> Iterator[int]:
    for number, status in enumerate(statuses):
        if number >= _MAX_STARTS:
            raise _UnreadableError(f"the Pod has more than {_MAX_STARTS} containers")
        yield _time(((status.get("state") or {}).get("running") or {}).get("startedAt"))


def _time(text: object) -> int:
    """Read a time of the API server in seconds since the epoch; `LATER` if there is none yet."""
    if not isinstance(text, str):
        return LATER
    try:
        return as_time(text)
    except ValueError as error:
        raise _UnreadableError(str(error)) from error
