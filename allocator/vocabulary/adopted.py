"""Pods of other products that give GPUs: what they hold of a node's devices, and who creates them anew if deleted.

What other products state of a Pod that they bound: under which names, in which unit, for which containers.
"""

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, NamedTuple

from allocator.vocabulary.holdings import Share
from allocator.vocabulary.names import MIRROR_POD, TYPE_GPU

NODE: Final = "Node"
"""Of a static Pod, which a node's kubelet makes from a manifest there."""


def maker_of(metadata: Mapping[str, Any]) -> str:
    """The kind of a Pod's controller; `NODE` for a static Pod, "" if nothing creates it anew."""
    if MIRROR_POD in (metadata.get("annotations") or {}):
        return NODE
    owners = metadata.get("ownerReferences") or ()
    return next((sys.intern(str(one.get("kind"))) for one in owners if one.get("controller")), "")


def deleting(pods: Iterable[tuple[str, str]]) -> str:
    """What must be known before these Pods, each with its maker, are deleted: the end of a sentence; "" for nothing."""
    of: dict[str, list[str]] = {}
    for name, maker in sorted(pods):
        of.setdefault(maker, []).append(name)
    static = ", ".join(of.pop(NODE, ()))
    of.pop("", None)
    said = [f"of static Pods ({static}) remove the manifest from the node instead of deleting them"] if static else []
    said += [f"a {kind} then creates {' and '.join(names)} anew" for kind, names in sorted(of.items())]
    return "".join(f"; {one}" for one in said)


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
    """

    id: str = ""  # the card's UUID; "" if it is named otherwise
    by: Numbered = Numbered.INDEX  # which number names the card, if one does
    number: int = UNNUMBERED  # this number
    group: str = ""  # the group of Pods (KAI) whose reservation Pod has the card
    memory: int | None = None  # bytes that are held; None if they are stated as a part of the card, or not at all
    # memory as a part of the card's, (numerator, denominator), at most 1; None if it is not stated so
    part: tuple[int, int] | None = None
    core: int = 0  # percent of the card's compute; 0 for compute without a limit, which counts as none

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
    """A bound Pod of another product that has not finished, as far as its own fields say what it holds."""

    uid: str
    namespace: str
    name: str
    node: str
    peer: Product
    evidence: str  # the annotation, label or resource that says what it holds
    parts: tuple[ForeignPart, ...] = ()
    # when the numbers of its cards were resolved, seconds since the epoch: each start of a container, or of the Pod.
    # Empty if that is not known.
    starts: tuple[int, ...] = ()
    reserves: str = ""  # the group for which it is the reservation Pod (KAI); "" for any other Pod
    problem: str = ""  # why it cannot be read; "" if it can. It may then hold any GPU of its node.
    uncounted: str = ""  # why it does not count; "" if it does
    maker: str = ""  # the kind of object that creates it anew when it is deleted; see `maker_of`

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
    """What a Pod of another product holds on its node, and by which evidence."""

    uid: str
    namespace: str
    name: str
    peer: Product
    evidence: str  # the annotation, label or resource that says so
    # at most one per device. If it is not known which devices these are, one for each that it may be.
    shares: tuple[Share, ...] = ()
    # UID of the reservation Pod that holds the whole cards of which these are parts; "" for none. Such a holding does
    # not count beside the reservation Pod's.
    within: str = ""
    doubt: ConflictKind | None = None  # why it is not exact; None if it is
    why: str = ""  # the same for people, "" if it is exact
    maker: str = ""  # the kind of object that creates the Pod anew when it is deleted; see `maker_of`

    @property
    def holder(self) -> str:
        """Who holds it, for people."""
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class AdoptionConflict:
    """Why it is not certain on a node that nothing is given twice."""

    node: str
    kind: ConflictKind
    devices: tuple[str, ...]  # ids of the devices concerned; empty if none is
    pods: tuple[str, ...]  # the Pods concerned, as namespace/name, in order
    uids: tuple[str, ...]  # UIDs of these Pods, in the same order
    message: str  # for people: what is the matter, what is held because of it, and what to do


@dataclass(frozen=True, slots=True)
class Numbering:
    """Which device each number meant, from a time on."""

    since: int  # seconds since the epoch from which this is known to hold
    # the last time at which the numbering before is known to have held; `since` if the change is exact. Between the
    # two, either may have held.
    after: int
    indexes: tuple[str, ...] = ()  # UUIDs in the order of NVML's list; "" where it is not known
    minors: tuple[tuple[int, str], ...] = ()  # UUID by minor
    # type and minor of each other device, with its id. One that has gone stays until its minor is another's.
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
    ends = (*(max(one.since - 1, one.after) for one in numberings[1:]), LATER)
    return tuple(
        one
        for at, (one, end) in enumerate(zip(numberings, ends, strict=False))
        if (time >= one.since or (at and time > one.after)) and time <= end
    )


def counted(holdings: Mapping[str, ForeignHolding]) -> Iterable[ForeignHolding]:
    """Those that count: not those that are parts of what a reservation Pod holds."""
    return (one for one in holdings.values() if not one.within)


HAMI_ALLOCATED: Final = "hami.io/vgpu-devices-allocated"
HAMI_TO_ALLOCATE: Final = "hami.io/vgpu-devices-to-allocate"
HAMI_NODE: Final = "hami.io/vgpu-node"
HAMI_TIME: Final = "hami.io/vgpu-time"
HAMI_PHASE: Final = "hami.io/bind-phase"
HAMI_BIND_TIME: Final = "hami.io/bind-time"
VOLCANO_VGPU: Final = "volcano.sh/vgpu-ids-new"
VOLCANO_INDEX: Final = "volcano.sh/gpu-index"
VOLCANO_PREDICATE_TIME: Final = "volcano.sh/predicate-time"
GPUSHARE_IDX: Final = "ALIYUN_COM_GPU_MEM_IDX"
GPUSHARE_POD: Final = "ALIYUN_COM_GPU_MEM_POD"
GPUSHARE_DEV: Final = "ALIYUN_COM_GPU_MEM_DEV"
GPUSHARE_ASSIGNED: Final = "ALIYUN_COM_GPU_MEM_ASSIGNED"
GPUSHARE_ASSUMED_AT: Final = "ALIYUN_COM_GPU_MEM_ASSUME_TIME"
KAI_GROUP: Final = "runai-gpu-group"  # a label; that of several groups is runai-gpu-group/<group>
KAI_CONTAINER: Final = "nvidia.com/container."  # annotations about a container, whose name and one of these follow:
KAI_DEVICES: Final = ".gpus.devices"  # UUIDs, or CDI names that end in them, separated by commas
KAI_REQUEST: Final = ".gpu-memory.request"  # bytes of each of them
KAI_LIMIT: Final = ".gpu-memory.limit"
KAI_RESERVED: Final = "run.ai/reserve_for_gpu_index"  # on a reservation Pod: the UUID of its card

SCHEDULERS: Final = {
    Product.HAMI: ("hami-scheduler",),
    Product.VOLCANO: ("volcano",),
    Product.GPUSHARE: (),
    Product.KAI: ("kai-scheduler", "runai-scheduler"),
}
"""The names of each product's scheduler; gpushare extends whichever scheduler a cluster has."""


@dataclass(frozen=True, slots=True)
class Statement:
    """What a product states of a Pod that it bound, and what this means."""

    product: Product
    evidence: str  # the annotation or label that states it
    dialect: str  # in whose names its Pods ask. The unit of its memory is that of this dialect's installation.
    # whether its amounts are in that unit; otherwise the product has multiplied them, and they are MiB
    scaled: bool = True
    # whether each container of the Pod has its entry, init containers first. Otherwise only app containers that ask
    # have one.
    every: bool = False
    shrinks: bool = False  # whether the product lets go of what init containers have once all of them have ended


# Project-HAMi/HAMi, pkg/device/nvidia/device.go: GenerateResourceRequests multiplies; pkg/device/devices.go:
# Resourcereqs, an entry for each container; pkg/device/initContainer.go: the greater of init and app containers, and
# app containers alone once util.AllInitContainersSucceeded.
BY_HAMI: Final = Statement(Product.HAMI, HAMI_ALLOCATED, "hami", scaled=False, every=True, shrinks=True)
# volcano-sh/volcano, pkg/scheduler/api/devices/util.go: ExtractResourceRequest reads app containers that ask, and
# multiplies nothing.
BY_VGPU: Final = Statement(Product.VOLCANO, VOLCANO_VGPU, "volcano")
# devices/nvidia/gpushare/share.go: getGPUMemoryOfPod is the greater of init and app containers, for the Pod's life.
BY_SHARE: Final = Statement(Product.VOLCANO, VOLCANO_INDEX, "volcano-share")
# gpushare-scheduler-extender, pkg/utils/pod.go: GetGPUMemoryFromPodResource counts app containers. The device plugin
# (gpushare-device-plugin, pkg/gpu/nvidia/allocate.go) gives init containers the card too, and needs no annotation on a
# node with one card.
BY_GPUSHARE: Final = Statement(Product.GPUSHARE, GPUSHARE_IDX, "gpushare", shrinks=True)
# kai-scheduler/KAI-Scheduler, pkg/common/resources/gpu_sharing_container_ref.go: one container of a Pod shares cards.
BY_KAI: Final = Statement(Product.KAI, KAI_GROUP, "kai")
