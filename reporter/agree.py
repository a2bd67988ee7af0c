"""Proof: what was decided, compared with what is (pure).

Decided is what a Pod's annotations say; what is are the cpusets of its containers, the environment of their first
processes, and the processes that NVML sees on the cards. A Pod agrees where none contradicts.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from allocator.cpu.cpuset import format_cpuset
from allocator.names import GPU_MEMORY, NVIDIA_GPU, TYPE_GPU
from reporter.kubelet.devicecheckpoint import PodDevices
from reporter.pods import NodePod

_LONGEST: Final = 64 * 1024  # bytes of the annotation; all of an object together may have 256 KiB
_NOTHING: Final = ("", "void", "none", "no")
_MIB: Final = 2**20


@dataclass(frozen=True, slots=True)
class ContainerSeen:
    """What was seen of a running container; what could not be looked at is None.

    Attributes:
        cpus: the CPUs that its cgroup has.
        visible: NVIDIA_VISIBLE_DEVICES of its first process; "" where that is not set.
        minors: the cards whose device files are in its file system.
    """

    cpus: int | None = None
    visible: str | None = None
    minors: frozenset[int] | None = None


@dataclass(frozen=True, slots=True)
class CardUse:
    """A process on a card.

    Attributes:
        card: its UUID.
        pod: the UID in its cgroup's path; None where it belongs to no Pod.
        pid: as the host counts.
        memory: bytes; None where NVML does not tell.
    """

    card: str
    pod: str | None
    pid: int
    memory: int | None


@dataclass(frozen=True, slots=True)
class Evidence:
    """What was seen.

    Attributes:
        containers: container id to what was seen of it.
        uses: processes on cards.
        cards: minor to UUID.
    """

    containers: Mapping[str, ContainerSeen] = field(default_factory=dict)
    uses: Sequence[CardUse] = ()
    cards: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Mismatch:
    """One contradiction.

    Attributes:
        kind: cpuset, environment, process or memory.
        message: a sentence.
    """

    kind: str
    message: str


@dataclass(frozen=True, slots=True)
class Agreement:
    """How a Pod compares.

    Attributes:
        pod: which.
        mismatches: none where it agrees.
    """

    pod: NodePod
    mismatches: tuple[Mismatch, ...]


def agreements(
    pods: Iterable[NodePod], evidence: Evidence, left_alone: frozenset[str] = frozenset()
) -> list[Agreement]:
    """Compare the Pods for which something was decided, and those that use a card that nobody gave them.

    Args:
        pods: of the node.
        evidence: what was seen.
        left_alone: cgroup UIDs of Pods whose CPUs are the kubelet's business.

    Returns:
        By namespace and name.
    """
    uses = defaultdict(list)
    for use in evidence.uses:
        uses[use.pod].append(use)
    found = []
    for pod in sorted(pods, key=lambda pod: (pod.namespace, pod.name, pod.uid)):
        mismatches = [
            *(_cpusets(pod, evidence) if pod.cgroup not in left_alone else ()),
            *_environment(pod, evidence),
            *(_processes(pod, uses.get(pod.cgroup, ())) if pod.shares else ()),  # else it is told as held: `strangers`
        ]
        if pod.shares or pod.cpus:
            found.append(Agreement(pod, tuple(mismatches)))
    return found


def _cpusets(pod: NodePod, evidence: Evidence) -> list[Mismatch]:
    found = []
    for identity, name in pod.containers.items():
        seen = evidence.containers.get(identity)
        if pod.cpus and seen is not None and seen.cpus is not None and seen.cpus != pod.cpus:
            has, given = format_cpuset(seen.cpus), format_cpuset(pod.cpus)
            found.append(Mismatch("cpuset", f"container {name} has CPUs {has}; {given} were decided"))
    return found


def _environment(pod: NodePod, evidence: Evidence) -> list[Mismatch]:
    """Compare what containers of a Pod of ours were told with what was decided."""
    found = []
    for identity, name in pod.containers.items():
        seen = evidence.containers.get(identity)
        if not pod.visible or seen is None or seen.visible is None:
            continue
        told = frozenset() if seen.visible in _NOTHING else frozenset(seen.visible.split(","))
        given = pod.visible.get((name, TYPE_GPU), frozenset())
        if told != given:
            shown = f"{_ids(told)}; {_ids(given)} was decided"
            found.append(Mismatch("environment", f"container {name} was told of {shown}"))
    return found


def _ids(ids: frozenset[str]) -> str:
    return ",".join(sorted(ids))[:200] or "no card"


def _processes(pod: NodePod, uses: Iterable[CardUse]) -> list[Mismatch]:
    """Find cards that a Pod uses without having them, and memory beyond what it was given."""
    memory: dict[str, int] = defaultdict(int)
    for use in uses:
        memory[use.card] += use.memory or 0
    given = {share.id: share.amounts.get(GPU_MEMORY) for share in pod.shares}
    found = []
    for card, used in sorted(memory.items()):
        if card not in given:
            found.append(Mismatch("process", f"it uses card {card}, which it was not given"))
        elif (most := given[card]) is not None and used > most:
            message = f"it uses more memory of card {card} than the {most // _MIB} MiB that it was given"
            found.append(Mismatch("memory", message))
    return found


def strangers(pods: Iterable[NodePod], evidence: Evidence, known: frozenset[str]) -> tuple[PodDevices, ...]:
    """Find Pods that have cards without our annotation ("hot update"), so that these are never given out.

    By a process on the card, or by the environment of a container that names the card and has its device file. Who
    says `all` has none by that: monitors and device plugins do on every node, and many images by themselves.

    Args:
        pods: of the node.
        evidence: what was seen.
        known: UIDs of Pods of which the kubelet's checkpoint tells.

    Returns:
        As the kubelet's checkpoint would tell it.
    """
    by_pod: dict[str, list[CardUse]] = defaultdict(list)
    for use in evidence.uses:
        if use.pod is not None:
            by_pod[use.pod].append(use)
    found = []
    for pod in pods:
        if pod.shares or pod.finished or pod.cgroup in known:
            continue
        used = {use.card for use in by_pod.get(pod.cgroup, ())}
        if used:
            found.append(PodDevices(pod.uid, "", NVIDIA_GPU, tuple(sorted(used))))
        for identity, name in pod.containers.items():
            told = _told_cards(evidence.containers.get(identity), evidence.cards) - used
            if told:
                found.append(PodDevices(pod.uid, name, NVIDIA_GPU, tuple(sorted(told))))
    return tuple(found)


def _told_cards(seen: ContainerSeen | None, cards: Mapping[int, str]) -> set[str]:
    """The cards that a container's environment names, and whose device files it has as far as that is known."""
    if seen is None or seen.visible is None or seen.visible in _NOTHING:
        return set()
    words = set(seen.visible.split(","))
    return {
        uuid
        for minor, uuid in cards.items()
        if (uuid in words or str(minor) in words) and (seen.minors is None or minor in seen.minors)
    }


def annotation(found: Iterable[Agreement]) -> str:
    """Write how Pods compare, by UID; where that is too long, those that do not agree only, as many as fit."""
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
    if len(text) > _LONGEST:
        wrong = {uid: row for uid, row in rows.items() if not row["agrees"]}
        while wrong and len(text := _text(wrong)) > _LONGEST:
            wrong.popitem()
        text = _text(wrong)
    return text


def _text(rows: Mapping[str, object]) -> str:
    return json.dumps(rows, separators=(",", ":"))
