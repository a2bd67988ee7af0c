"""Sandboxes, containers and a node's facts, as the enforcer is told them."""

from typing import Any

from allocator.vocabulary.cputopology import format_cpuset, parse
from reporter.enforcer.limits import Rules
from reporter.enforcer.model import Answer, Container, Sandbox
from reporter.exchange import CardPlace, Cpus, Facts

TIERS = {"Guaranteed": "", "Burstable": "burstable/", "BestEffort": "besteffort/"}
ONE, TWO, THREE = "GPU-1", "GPU-2", "GPU-3"
RULES = Rules(
    library="/opt/hami/libvgpu.so",
    preload="/state/ld.so.preload",
    caches="/state/caches",
    pipe="/run/mps",
    shm="/run/mps-shm",
)
# 16 CPUs, two NUMA nodes, nobody has any for itself.
CPUS = Cpus(
    shared="0-15",
    best_effort="0-15",
    shared_by_node={0: "0-7", 1: "8-15"},
    best_effort_by_node={0: "0-7", 1: "8-15"},
    system="0",
)
CARDS = {card: CardPlace(f"0000:0{number}:00.0", 80 * 2**30) for number, card in enumerate((ONE, TWO, THREE))}
FACTS = Facts(cpus=CPUS, cards=CARDS)
NVIDIA_CDI = {"gpu": "nvidia.com/gpu"}


def sandbox(
    number: object = 1, qos: str = "", tier: str = "Burstable", own: str = "", more: Any = None, **rest: Any
) -> Sandbox:
    """A sandbox of a Pod of a class, with CPUs of its own, and more annotations."""
    annotations = dict(more or {})
    if own:
        annotations["scheduling.koordinator.sh/resource-status"] = f'{{"cpuset":"{own}"}}'
    labels = {"koordinator.sh/qosClass": qos} if qos else {}
    path = f"/kubepods/{TIERS[tier]}podu{number}"
    return Sandbox(f"s{number}", f"u{number}", "ns", f"p{number}", labels, annotations, path, **rest)


def container(of: Sandbox, name: str = "main", attempt: int = 0, cpus: str = "", **rest: Any) -> Container:
    """A container of it."""
    identity = f"{of.id}-{name}-{attempt}"
    return Container(identity, of.id, name, cpus=parse(cpus), cgroup=f"{of.cgroup}/{identity}", **rest)


def moved(answer: Answer) -> dict[str, str]:
    """The updates of an answer: container's id to CPUs."""
    return {one.container: format_cpuset(one.cpus) for one in answer.updates}


def cpus_of(answer: Answer) -> str:
    """The CPUs that an answer gives its container."""
    return format_cpuset(answer.edits.cpus)
