"""Pods of other products that give GPUs, and what they therefore hold of a node's devices."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

from allocator.vocabulary.holdings import Share
from allocator.vocabulary.names import TYPE_GPU

UNNUMBERED: Final = -1
LATER: Final = 2**62
"""When something starts that has not started yet, in seconds: the latest numbers will count."""


class Product(StrEnum):
    """A product whose running Pods may be counted."""

    HAMI = "hami"
    VOLCANO = "volcano"
    GPUSHARE = "gpushare"
    KAI = "kai"


class Numbered(StrEnum):
    """By which of its numbers a product names a card.

    INDEX is the position in NVML's list, which closes up when a card vanishes. MINOR is the N of /dev/nvidiaN.
    """

    INDEX = "index"
    MINOR = "minor"


class ForeignPart(NamedTuple):
    """What a Pod holds of one card that is still to be found among the node's.

    It is named in one of three ways, or not at all: it may then be any card of the node.

    Attributes:
        id: the card's UUID; "" if it is named otherwise.
        by: which number names the card, if one does.
        number: this number.
        group: the group of Pods (KAI) whose reservation Pod has the card.
        memory: bytes that are held; None if they are stated as a part of the card, or not at all.
        part: memory as a part of the card's, (numerator, denominator), at most 1; None if it is not stated so.
        core: percent of the card's compute; 0 for compute without a limit, which counts as none.
    """

    id: str = ""
    by: Numbered = Numbered.INDEX
    number: int = UNNUMBERED
    group: str = ""
    memory: int | None = None
    part: tuple[int, int] | None = None
    core: int = 0

    @property
    def whole(self) -> bool:
        """Whether no amount of memory is stated, so that the whole card is held."""
        return self.memory is None and self.part is None

    def __str__(self) -> str:
        if self.id or self.group:
            return self.id or f"the card of the reservation Pod of group {self.group}"
        return f"the card with {self.by} {self.number}"


@dataclass(frozen=True, slots=True)
class ForeignPod:
    """A bound Pod of another product that has not finished, as far as its own fields say what it holds.

    Attributes:
        uid: its identity.
        namespace: where it lives.
        name: its name there.
        node: where it is bound.
        peer: the product.
        evidence: the annotation, label or resource that says what it holds.
        parts: what it holds.
        starts: when the numbers of its cards were resolved, seconds since the epoch: each start of a container, or of
            the Pod. Empty if that is not known.
        reserves: the group for which it is the reservation Pod (KAI); "" for any other Pod.
        problem: why it cannot be read; "" if it can. It may then hold any GPU of its node.
        uncounted: why it does not count; "" if it does.
        maker: the kind of object that creates it anew when it is deleted; see `maker_of`.
    """

    uid: str
    namespace: str
    name: str
    node: str
    peer: Product
    evidence: str
    parts: tuple[ForeignPart, ...] = ()
    starts: tuple[int, ...] = ()
    reserves: str = ""
    problem: str = ""
    uncounted: str = ""
    maker: str = ""

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class ConflictKind(StrEnum):
    """Why it is not certain that nothing is given twice.

    UNREADABLE: what a Pod holds cannot be read. UNKNOWN_DEVICE: no GPU of the node has the UUID, or no reservation Pod
    names the group's. UNKNOWN_NUMBER: which card a number meant when the Pod started is not known. OUT_OF_RANGE: no
    card had that number. OVERFULL: Pods of other products hold more of a device than there is. BESIDE_OURS: they and
    what koordgate has given do. UNCOUNTED: a Pod bears a product's annotations and is not bound by its scheduler.
    """

    UNREADABLE = "unreadable"
    UNKNOWN_DEVICE = "unknownDevice"
    UNKNOWN_NUMBER = "unknownNumber"
    OUT_OF_RANGE = "outOfRange"
    OVERFULL = "overfull"
    BESIDE_OURS = "besideOurs"
    UNCOUNTED = "uncounted"


@dataclass(frozen=True, slots=True)
class ForeignHolding:
    """What a Pod of another product holds on its node, and by which evidence.

    Attributes:
        uid: of the Pod.
        namespace: of the Pod, for people.
        name: of the Pod, for people.
        peer: the product.
        evidence: the annotation, label or resource that says so.
        shares: at most one per device. If it is not known which devices these are, one for each that it may be.
        within: UID of the reservation Pod that holds the whole cards of which these are parts; "" for none. Such a
            holding does not count beside the reservation Pod's.
        doubt: why it is not exact; None if it is.
        why: the same for people, "" if it is exact.
        maker: the kind of object that creates the Pod anew when it is deleted; see `maker_of`.
    """

    uid: str
    namespace: str
    name: str
    peer: Product
    evidence: str
    shares: tuple[Share, ...] = ()
    within: str = ""
    doubt: ConflictKind | None = None
    why: str = ""
    maker: str = ""

    @property
    def holder(self) -> str:
        """Who holds it, for people."""
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class AdoptionConflict:
    """Why it is not certain on a node that nothing is given twice.

    Attributes:
        node: its name.
        kind: of the conflict.
        devices: ids of the devices concerned; empty if none is.
        pods: the Pods concerned, as namespace/name, in order.
        uids: UIDs of these Pods, in the same order.
        message: for people: what is the matter, what is held because of it, and what to do.
    """

    node: str
    kind: ConflictKind
    devices: tuple[str, ...]
    pods: tuple[str, ...]
    uids: tuple[str, ...]
    message: str


@dataclass(frozen=True, slots=True)
class Numbering:
    """Which device each number meant, from a time on.

    Attributes:
        since: seconds since the epoch from which this is known to hold.
        after: the last time at which the numbering before is known to have held; `since` if the change is exact.
            Between the two, either may have held.
        indexes: UUIDs in the order of NVML's list; "" where it is not known.
        minors: UUID by minor.
        others: type and minor of each other device, with its id. One that has gone stays until its minor is another's.
    """

    since: int
    after: int
    indexes: tuple[str, ...] = ()
    minors: tuple[tuple[int, str], ...] = ()
    others: tuple[tuple[str, int, str], ...] = ()

    def device(self, kind: str, minor: int) -> str | None:
        """The id of a device of any type; "" if that is not known, None if there was none with that minor."""
        of_kind = self.minors if kind == TYPE_GPU else [one[1:] for one in self.others if one[0] == kind]
        return dict(of_kind).get(minor) if of_kind else ""

    def named(self, by: Numbered, number: int) -> str | None:
        """The UUID of a card; "" if that is not known, None if there was none with that number."""
        if by is Numbered.MINOR:
            return dict(self.minors).get(number)
        return self.indexes[number] if 0 <= number < len(self.indexes) else None


Numberings = tuple[Numbering, ...]
"""What is known of the past, the oldest first."""


def held_at(numberings: Numberings, time: int) -> Numberings:
    """Those that may have held at a time, in seconds since the epoch; none if that is not known."""
    ends = (*(one.since for one in numberings[1:]), LATER + 1)
    return tuple(
        one
        for at, (one, end) in enumerate(zip(numberings, ends, strict=False))
        if (time >= one.since or (at and time > one.after)) and time < end
    )


def counted(holdings: Mapping[str, ForeignHolding]) -> Iterable[ForeignHolding]:
    """Those that count: not those that are parts of what a reservation Pod holds."""
    return (one for one in holdings.values() if not one.within)
