"""Whether containers are kept to their memory of cards, and what they use of it (pure).

The bind decides a limit, NVIDIA's hook or the enforcer gives it to the driver as the container is created, and the
driver keeps it. What the driver says of a container's cgroup is compared with what was decided. Of library and daemon
it says nothing: there the enforcer's word counts. Where the driver does not count a container's memory, that of its
processes is summed up.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final, NamedTuple

from allocator.vocabulary.delivery import Keeping, LimitProvider, MemoryUse
from allocator.vocabulary.holdings import Share
from allocator.vocabulary.names import GPU_MEMORY, TYPE_GPU
from reporter.exchange import CardState
from reporter.gpu.facts import CgroupMemory
from reporter.pods import NodePod
from reporter.proof.agree import Evidence

_MAX_QUESTIONS: Final = 1024  # containers and cards that are asked about in one proof
_STEP: Final = 16  # a use that changed by less than this part of what is held is not told anew
_MIB: Final = 2**20
_NO_ANSWER: Final = CgroupMemory(problem="it was not asked")
_NO_LIMITS: Final = CgroupMemory()
_COOPERATIVE: Final = (LimitProvider.HAMI_CORE, LimitProvider.MPS)  # of them the driver knows nothing
_CURES: Final = {
    LimitProvider.CGROUP: "if that does not help, see koordgate doctor, which says whether the enforcer runs there",
    LimitProvider.HAMI_CORE: "the library comes into containers at their creation only",
    LimitProvider.MPS: "the daemon comes into containers at their creation only",
}


class Question(NamedTuple):
    """A container whose memory of a card the driver is asked for."""

    card: str
    container: str
    cgroup: str  # the full path of its cgroup on the host


@dataclass(frozen=True, slots=True)
class Judged:
    """What a running container has of a card."""

    pod: NodePod
    container: str
    use: MemoryUse

    @property
    def key(self) -> tuple[str, str, str]:
        """What of two proofs is the same: a container that was started again is another."""
        return self.pod.uid, self.container, self.use.card


def with_cards(pods: Iterable[NodePod]) -> tuple[NodePod, ...]:
    """The Pods that hold some of a GPU."""
    return tuple(pod for pod in pods if pod.has_gpu)


def questions(pods: Iterable[NodePod], cgroups: Mapping[str, str], cards: frozenset[str]) -> tuple[Question, ...]:
    """What the driver is asked: each running container that has cards, and each of its cards that answers.

    `cgroups`: container id to its cgroup; "" for one that the driver cannot be asked for.
    """
    found = [
        Question(share.id, identity, cgroups[identity])
        for pod, share, identity, _ in _containers(pods)
        if share.id in cards and cgroups.get(identity)
    ]
    return tuple(found[:_MAX_QUESTIONS])


def _containers(pods: Iterable[NodePod]) -> Iterator[tuple[NodePod, Share, str, str]]:
    """Each container with a card: its Pod, the Pod's share of the card, its id and its name."""
    for pod in sorted(pods, key=lambda pod: (pod.namespace, pod.name, pod.uid)):
        for share in pod.shares:
            if share.type == TYPE_GPU:
                for identity, name in pod.containers.items():
                    if name in share.containers:
                        yield pod, share, identity, name


Injected = Mapping[str, Mapping[str, CardState]]  # container id to card to what the enforcer limits it by


def judged(
    pods: Iterable[NodePod],
    evidence: Evidence,
    *,
    keeps: bool | None,
    provider: LimitProvider = LimitProvider.NONE,
    injected: Injected = MappingProxyType({}),
) -> tuple[Judged, ...]:
    """Judge each running container and card; what cannot be told is left out.

    `keeps`: whether the driver keeps limits at all; None if that is not known. `provider`: what is to keep them here,
    where the enforcer runs. `injected`: what it says of the containers.
    """
    there = frozenset(evidence.cards.values())
    by_process = _summed(evidence)
    found = []
    for pod, share, identity, name in _containers(pods):
        if identity not in evidence.running or share.id not in there:
            continue
        answer = evidence.memory.get((share.id, identity), _NO_LIMITS if keeps is False else _NO_ANSWER)
        wanted = pod.limits.get(name)
        used = answer.used if answer.used is not None else by_process.get((share.id, identity), 0)
        state = injected.get(identity, {}).get(share.id)
        by = provider if state is None or state.provider not in _COOPERATIVE else LimitProvider(state.provider)
        if wanted is None:
            keeping = Keeping.ACCOUNTING
        elif by in _COOPERATIVE:
            keeping = Keeping.INJECTED if state is not None and state.keeping == Keeping.INJECTED else Keeping.MISSING
        elif answer.problem:
            continue
        else:
            keeping = Keeping.ENFORCED if answer.hard == wanted else Keeping.MISSING
        if wanted is None and used is None:
            continue
        held = pod.parts.get((name, share.id), share.amounts.get(GPU_MEMORY, 0))
        limit = state.limit if state is not None and keeping is Keeping.INJECTED else answer.hard
        told = LimitProvider.NONE if wanted is None else by
        use = MemoryUse(share.id, pod.namespace, pod.name, name, keeping, used, limit, wanted, held, told)
        found.append(Judged(pod, identity, use))
    return tuple(found)


def _summed(evidence: Evidence) -> dict[tuple[str, str], int | None]:
    """Sum up the memory of each container's processes on each card; None if NVML does not tell that of one."""
    sums: dict[tuple[str, str], int | None] = {}
    for use in evidence.uses:
        if use.container:
            before = sums.get((use.card, use.container), 0)
            sums[use.card, use.container] = None if before is None or use.memory is None else before + use.memory
    return sums


def problems(evidence: Evidence) -> tuple[str, ...]:
    """Why the driver does not tell the limits of containers: a sentence for each reason."""
    told: dict[str, int] = defaultdict(int)
    for answer in evidence.memory.values():
        if answer.problem:
            told[answer.problem] += 1
    return tuple(
        f"the driver does not tell the memory limits of containers ({count}): {why}"
        for why, count in sorted(told.items())
    )


def steadied(before: Iterable[MemoryUse], now: Iterable[MemoryUse]) -> tuple[MemoryUse, ...]:
    """What is told of containers, with the former figure of each use that changed little.

    A program's use changes all the time, and each telling is a write of the Device object. The metrics have every
    figure.
    """
    known = {(one.card, one.namespace, one.pod, one.container): one for one in before}
    return tuple(_steady(known.get((one.card, one.namespace, one.pod, one.container)), one) for one in now)


def _steady(before: MemoryUse | None, now: MemoryUse) -> MemoryUse:
    if before is None or before.used is None or now.used is None or before == now:
        return now
    kept = replace(now, used=before.used)
    near = abs(before.used - now.used) * _STEP < max(now.held, now.wanted or 0)
    return kept if kept == before and near and kept.exceeds == now.exceeds else now


def missing_message(use: MemoryUse) -> str:
    """What to tell of a limit that is not in force."""
    has = "the driver has no limit for it" if use.limit is None else f"the driver limits it to {use.limit // _MIB} MiB"
    if use.provider in _COOPERATIVE:
        has = f"{use.provider} is not in the container"
    cure = (
        "if that does not help, see that the node's NVIDIA Container Toolkit is 1.20.1 or later and its driver R615 or "
        "later"
    )
    return (
        f"container {use.container}: its memory of card {use.card} is to be limited to {(use.wanted or 0) // _MIB} MiB "
        f"and {has}: delete the Pod so that it is created anew; {_CURES.get(use.provider, cure)}"
    )


def exceeded_message(use: MemoryUse) -> str:
    """What to tell of a container that uses more than it holds."""
    return (
        f"container {use.container} uses {-(-(use.used or 0) // _MIB)} MiB of card {use.card}, of which it holds "
        f"{use.held // _MIB} MiB: let it use less or ask for more; limits.provider and the Pod's annotation "
        "koordgate.io/limits: require keep containers to their memory"
    )
