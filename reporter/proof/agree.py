"""Proof: what was allocated to Pods, compared with what they really have (pure).

A Pod's annotations state what was allocated. The cpusets of its containers, the environments of their first processes,
and the processes that NVML lists on the cards show what it has. A Pod agrees if something of it was seen and nothing
contradicts its allocation.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import or_
from typing import Final

from allocator.vocabulary.cputopology import format_cpuset
from allocator.vocabulary.delivery import unqualified
from allocator.vocabulary.holdings import Share
from allocator.vocabulary.names import GPU_MEMORY, NVIDIA_GPU, TYPE_GPU
from allocator.wire.deviceobject import device_of
from reporter.gpu.facts import CgroupMemory
from reporter.kubelet.devicecheckpoint import PodDevices
from reporter.pods import NodePod

MEMORY: Final = "memory"
"""The kind of a `Mismatch`: a Pod uses more memory of a card than it holds."""
UNSHOWN: Final = "shown"
"""The kind of a `Mismatch`: a container does not see a card that it holds."""

_MAX_ANNOTATION: Final = 64 * 1024  # bytes of the annotation; all of an object together may have 256 KiB
_BY_CDI: Final = "void"  # what NVIDIA's CDI edits set: the container's device files alone tell its cards
_NOTHING: Final = ("", _BY_CDI, "none", "no")
_MIB: Final = 2**20
_NVIDIA: Final = NVIDIA_GPU.partition("/")[0] + "/"


@dataclass(frozen=True, slots=True)
class ContainerSeen:
    """What was seen of a running container; None if it could not be inspected."""

    cpus: int | None = None  # the CPUs of its cgroup
    visible: str | None = None  # NVIDIA_VISIBLE_DEVICES of its first process; "" if that is not set
    minors: frozenset[int] | None = None  # minors of the cards whose device files are in its file system


@dataclass(frozen=True, slots=True)
class CardUse:
    """A process on a card."""

    card: str
    pod: str | None  # the UID in its cgroup's path; None if it belongs to no Pod
    pid: int  # in the host's PID namespace
    memory: int | None  # bytes; None if NVML does not report it
    container: str = ""  # id of its container; "" if it is not known


@dataclass(frozen=True, slots=True)
class Evidence:
    """What was seen."""

    containers: Mapping[str, ContainerSeen] = field(default_factory=dict)  # container id to what was seen of it
    uses: Sequence[CardUse] = ()  # processes on cards
    # minor to UUID, for cards that are present: the driver reuses the minor of a card that is gone
    cards: Mapping[int, str] = field(default_factory=dict)
    # NVML's index to UUID, likewise. NVIDIA's runtime uses these indices, which follow PCI addresses and not minors.
    # Empty if unknown: then a number in a container's environment is taken for a minor.
    indices: Mapping[int, str] = field(default_factory=dict)
    running: frozenset[str] = frozenset()  # ids of the containers with cards that have a cgroup
    # card's UUID and container id to what the driver says of the container's memory of the card; those that could not
    # be asked are left out
    memory: Mapping[tuple[str, str], CgroupMemory] = field(default_factory=dict)
    slices: Mapping[str, int] = field(default_factory=dict)  # UUID of each MIG device to the minor of its card


@dataclass(frozen=True, slots=True)
class Mismatch:
    """One contradiction."""

    kind: str  # cpuset, environment, process, memory or shown
    message: str  # a sentence


_UNSEEN: Final = ContainerSeen()


@dataclass(frozen=True, slots=True)
class Agreement:
    """How a Pod compares with its allocation."""

    pod: NodePod  # which
    mismatches: tuple[Mismatch, ...]  # the contradictions; empty if it agrees


@dataclass(frozen=True, slots=True)
class CardClaim:
    """A container whose environment names cards that nobody gave to its Pod, and that no process of the Pod uses."""

    pod: NodePod  # which
    container: str
    cards: tuple[str, ...]  # UUIDs, sorted

    @property
    def message(self) -> str:
        """A sentence for the Pod's author."""
        return (
            f"container {self.container} names cards in NVIDIA_VISIBLE_DEVICES that nobody gave to this Pod; they "
            f"stay in service for others: request cards as a resource, or remove {_ids(frozenset(self.cards))} there"
        )


def agreements(
    pods: Iterable[NodePod], evidence: Evidence, left_alone: frozenset[str] = frozenset()
) -> list[Agreement]:
    """Compare the Pods that have an allocation, as far as something was seen of them.

    `left_alone`: cgroup UIDs of Pods whose CPUs the kubelet manages. Returns sorted by namespace and name. Pods without
    any evidence are left out: nothing was compared.
    """
    uses = defaultdict(list)
    for use in evidence.uses:
        uses[use.pod].append(use)
    found = []
    for pod in sorted(pods, key=lambda pod: (pod.namespace, pod.name, pod.uid)):
        its = uses.get(pod.cgroup, ())
        if not (pod.shares or pod.cpus) or not (its or _is_seen(pod, evidence)):
            continue
        mismatches = (
            *_cpusets(pod, evidence, kubelets=pod.cgroup in left_alone),
            *_environment(pod, evidence),
            *_unshown(pod, evidence),
            # otherwise `unaccounted_cards` reports its cards as held
            *(_processes(pod, its) if pod.shares and TYPE_GPU not in pod.unread else ()),
        )
        found.append(Agreement(pod, mismatches))
    return found


def _is_seen(pod: NodePod, evidence: Evidence) -> bool:
    return any(evidence.containers.get(identity, _UNSEEN) != _UNSEEN for identity in pod.containers)


def _cpusets(pod: NodePod, evidence: Evidence, *, kubelets: bool) -> list[Mismatch]:
    there = {name: evidence.containers.get(identity, _UNSEEN).cpus for identity, name in pod.containers.items()}
    seen = {name: cpus for name, cpus in there.items() if cpus is not None and name not in pod.shared}
    if not pod.cpus:
        return []
    given = format_cpuset(pod.cpus)
    if kubelets:  # it divides them among containers that request whole CPUs; the others run in its pool
        has = reduce(or_, (cpus for name, cpus in seen.items() if pod.asked.get(name)), 0)
        why = f"the kubelet's static policy gave its containers CPUs {format_cpuset(has)}; {given} were allocated"
        return [Mismatch("cpuset", why)] if has & ~pod.cpus else []
    return [
        Mismatch("cpuset", f"container {name} has CPUs {format_cpuset(cpus)}; {given} were allocated")
        for name, cpus in seen.items()
        if cpus != pod.cpus
    ]


def _environment(pod: NodePod, evidence: Evidence) -> list[Mismatch]:
    """Compare the containers' environments with the allocation."""
    found = []
    for identity, name in pod.containers.items():
        seen = evidence.containers.get(identity)
        if not pod.visible or seen is None or seen.visible in {None, _BY_CDI}:
            continue
        named = _words(seen.visible)
        given = pod.visible.get((name, TYPE_GPU), frozenset())
        if named != given:
            shown = f"{_ids(named)}; {_ids(given)} was allocated"
            found.append(Mismatch("environment", f"the environment of container {name} names {shown}"))
    return found


def _unshown(pod: NodePod, evidence: Evidence) -> list[Mismatch]:
    """Find containers that hold a card whose device file they do not have."""
    minors = {**evidence.slices, **{uuid: minor for minor, uuid in evidence.cards.items()}}
    found = []
    for identity, name in pod.containers.items():
        files = evidence.containers.get(identity, _UNSEEN).minors
        given = pod.visible.get((name, TYPE_GPU), frozenset())
        lacks = frozenset(card for card in given if card in minors and files is not None and minors[card] not in files)
        if lacks:
            why = (
                f"container {name} holds {_ids(lacks)} and has no device file of it: its runtime did not show it that "
                "card; find out how this node shows cards (koordgate doctor), then create the Pod again"
            )
            found.append(Mismatch(UNSHOWN, why))
    return found


def _words(visible: str | None) -> frozenset[str]:
    """The names in NVIDIA_VISIBLE_DEVICES, without CDI kinds."""
    return frozenset() if visible is None or visible in _NOTHING else frozenset(map(unqualified, visible.split(",")))


def _ids(ids: frozenset[str]) -> str:
    return ",".join(sorted(ids))[:200] or "no card"


def _processes(pod: NodePod, uses: Iterable[CardUse]) -> list[Mismatch]:
    """Find cards that a Pod uses without an allocation, and memory use beyond the allocation."""
    memory: dict[str, int] = defaultdict(int)
    for use in uses:
        memory[use.card] += use.memory or 0
    given = {share.id: _most(pod, share) for share in pod.shares}
    found = []
    for card, used in sorted(memory.items()):
        if card not in given:
            found.append(Mismatch("process", f"it uses card {card}, which was not allocated to it"))
        elif (most := given[card]) is not None and used > most:
            message = f"it uses more memory of card {card} than the {most // _MIB} MiB that were allocated to it"
            found.append(Mismatch(MEMORY, message))
    return found


def _most(pod: NodePod, share: Share) -> int | None:
    """The bytes of a card that a Pod may use: what it holds, and what its containers were granted beyond that."""
    held = share.amounts.get(GPU_MEMORY)
    return None if held is None else max(held, sum(pod.limits.get(name, 0) for name in share.containers))


def card_holders(entries: Iterable[PodDevices], evidence: Evidence) -> frozenset[str]:
    """Find the Pods that have cards according to the kubelet's checkpoint: `known` of `unaccounted_cards`.

    Cards are recognised by the ids of their devices, since a resource can have any name: by UUID, or by a slice of a
    UUID. A number counts as a minor only in an entry of NVIDIA's plugin: other plugins (fuse, RDMA) number their
    devices from 0 as well.
    Returns UIDs as the kubelet's files have them.
    """
    uuids, minors = frozenset(evidence.cards.values()), frozenset(map(str, evidence.cards))
    return frozenset(
        entry.pod_uid
        for entry in entries
        for plain in map(device_of, entry.device_ids)
        if plain in uuids or (plain in minors and entry.resource.startswith(_NVIDIA))
    )


@dataclass(frozen=True, slots=True)
class UnaccountedCards:
    """Pods with cards that nobody gave to them."""

    holding: tuple[PodDevices, ...] = ()  # what is withheld, as entries such as the kubelet's checkpoint would have
    claims: tuple[CardClaim, ...] = ()  # what is only reported


def unaccounted_cards(pods: Iterable[NodePod], evidence: Evidence, known: frozenset[str]) -> UnaccountedCards:
    """Find Pods that have cards without our annotation ("hot update"), so that these cards are not allocated.

    A Pod holds a card if NVML sees one of its processes on the card. A container whose environment names the card only
    claims it: an author writes the environment and can make files of any name, and would take the node's cards out of
    service. There is one exception: of a Pod whose allocation by us cannot be read, the environment counts, because
    only the bind writes allocations; where NVIDIA's CDI edits have replaced it, the device files count. The word `all`
    names no card: monitors and device plugins use it on every node, and many images set it.
    `known`: UIDs of Pods that have cards according to the kubelet's checkpoint (`card_holders`). A Pod that has only
    other devices there may still have a card.
    """
    by_pod: dict[str, list[CardUse]] = defaultdict(list)
    for use in evidence.uses:
        if use.pod is not None:
            by_pod[use.pod].append(use)
    holding, claims = [], []
    for pod in pods:
        if pod.finished or pod.cgroup in known or pod.has_gpu:
            continue
        used = {use.card for use in by_pod.get(pod.cgroup, ())}
        if used:
            holding.append(PodDevices(pod.uid, "", NVIDIA_GPU, tuple(sorted(used))))
        for identity, name in pod.containers.items():
            seen = evidence.containers.get(identity, _UNSEEN)
            unread = TYPE_GPU in pod.unread
            by_file = unread and seen.visible == _BY_CDI
            named = tuple(sorted((_cards_of(seen, evidence) if by_file else _named_cards(seen, evidence)) - used))
            if named and unread:
                holding.append(PodDevices(pod.uid, name, NVIDIA_GPU, named))
            elif named:
                claims.append(CardClaim(pod, name, named))
    return UnaccountedCards(tuple(holding), tuple(claims))


def _named_cards(seen: ContainerSeen, evidence: Evidence) -> set[str]:
    """The cards that a container's environment names and whose device files it has, as far as that is known.

    If the environment has numbers, the device files determine the cards: a number is an index in a list that may have
    changed since.
    """
    words = _words(seen.visible)
    if not words:
        return set()
    numbered = evidence.indices or evidence.cards
    by_number = {uuid for number, uuid in numbered.items() if str(number) in words}
    named = by_number | words.intersection(evidence.cards.values())
    if seen.minors is None:
        return named
    has = _cards_of(seen, evidence)
    return has if any(word.isdecimal() for word in words) else named & has


def _cards_of(seen: ContainerSeen, evidence: Evidence) -> set[str]:
    """The cards whose device files a container has."""
    return {uuid for minor, uuid in evidence.cards.items() if minor in (seen.minors or ())}


def annotation(found: Iterable[Agreement]) -> str:
    """Write how Pods compare, by UID; if the text is too long, only those that do not agree, as many as fit."""
    rows = {
        one.pod.uid: {
            "pod": str(one.pod),
            "agrees": not one.mismatches,
            **({"mismatches": [mismatch.message for mismatch in one.mismatches]} if one.mismatches else {}),
        }
        for one in found
    }
    if not rows:
        return ""
    text = _text(rows)
    if len(text) <= _MAX_ANNOTATION:
        return text
    wrong: dict[str, object] = {}
    size = len(_text(wrong))
    for uid, row in rows.items():
        if not row["agrees"]:
            size += len(_text({uid: row}))  # its braces stand for the comma
            if size > _MAX_ANNOTATION:
                break
            wrong[uid] = row
    return _text(wrong)


def _text(rows: Mapping[str, object]) -> str:
    return json.dumps(rows, separators=(",", ":"))
