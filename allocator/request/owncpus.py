"""Which containers of a Pod of class LSE or LSR run on its own CPUs; the others run in the shared pool (pure).

In Koordinator all containers do ("Only supports the CPU allocation mechanism of the Pod dimension"), so that whatever
an injector adds would have to ask for whole CPUs. Here, unless the Pod's annotation names its containers:

- A container that an injector is known to add runs in the shared pool. If all apps of the Pod are such, it is a Pod of
  the product itself, and the rule does not hold.
- So does one that asks for less than a CPU beside one that asks for whole CPUs, as the kubelet's static policy divides
  a Pod's containers (Kubernetes, pkg/kubelet/cm/cpumanager). CPU that the Pod states for itself as a whole has the same
  effect. An app must be left, so that no Pod has CPUs of its own for its init containers alone.

The rule depends on the Pod's spec and annotations alone: admission, the bind and the reporter ask it again.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from allocator.request.cpuamounts import CPU, CpuAmounts, PodCpuAmounts, as_object, read_cpu_amounts
from allocator.vocabulary.excerpt import excerpt
from allocator.vocabulary.injected import INJECTED
from allocator.vocabulary.names import OWN_CPUS
from allocator.vocabulary.outcome import Problem
from allocator.vocabulary.phase import Phase
from allocator.wire.strict import annotation_path

_SEPARATOR: Final = ","


def on_own_cpus(amounts: PodCpuAmounts, annotations: Mapping[str, object], problems: list[Problem]) -> PodCpuAmounts:
    """Keep the containers that run on the own CPUs of a Pod of class LSE or LSR.

    `problems`: is appended to; an annotation with a problem counts as not stated.
    """
    stated = _stated(amounts.containers, annotations, problems)
    if stated is None:
        return replace(amounts, containers=tuple(_implied(amounts)))
    return replace(amounts, containers=tuple(one for one in amounts.containers if one.name in stated))


def on_shared_cpus(pod: Mapping[str, Any]) -> frozenset[str]:
    """The names of the containers of a Pod of class LSE or LSR that run in the shared pool.

    Ephemeral containers are among them if the annotation names the Pod's containers: it cannot name these. Otherwise
    they run on the Pod's own CPUs, beside what they are to look at.
    """
    spec, problems = as_object(pod.get("spec"), "spec", []), list[Problem]()
    amounts = read_cpu_amounts(spec, [])
    annotations = as_object(as_object(pod.get("metadata"), "metadata", []).get("annotations"), "", [])
    own = {one.name for one in on_own_cpus(amounts, annotations, problems).containers}
    shared = frozenset(one.name for one in amounts.containers if one.name not in own)
    if OWN_CPUS not in annotations or problems:
        return shared
    return shared.union(str(one.get("name")) for one in spec.get("ephemeralContainers") or ())


def _stated(
    containers: Sequence[CpuAmounts], annotations: Mapping[str, object], problems: list[Problem]
) -> Collection[str] | None:
    """The containers that the annotation names; None if it is not stated, or wrong."""
    text = annotations.get(OWN_CPUS)
    if text is None:
        return None
    names = {one.name for one in containers if one.name}
    # No more parts than there are containers: the rest is one more part, which is no container's name.
    stated = [one.strip() for one in str(text).split(_SEPARATOR, len(names))]
    wrong = next((one for one in stated if one not in names), None)
    if wrong is None:
        return stated
    told = f"{excerpt(wrong)!r} is no container of the Pod" if wrong else "has an empty name"
    message = f"{told}; write the names of the containers that run on the Pod's own CPUs, separated by commas"
    problems.append(Problem(annotation_path(OWN_CPUS), message))
    return None


def _implied(amounts: PodCpuAmounts) -> Iterator[CpuAmounts]:
    """The containers that run on the Pod's own CPUs if it does not state which do."""
    authors = [one for one in amounts.containers if one.name not in INJECTED]
    if not _any_app(authors):
        authors = list(amounts.containers)
    large = [one for one in authors if not 0 < one.milli < CPU]
    whole = amounts.pod.cpu != (None, None) or any(one.milli and not one.milli % CPU for one in large)
    return iter(large if whole and _any_app(large) else authors)


def _any_app(containers: Sequence[CpuAmounts]) -> bool:
    return any(one.phase is Phase.APP for one in containers)
