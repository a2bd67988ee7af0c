"""What keeps a container to its part of its cards (pure), by the provider of the node.

- cgroup: the driver's limit of a cgroup, for the Pod's at creation and for the container's own at its start. Every soft
  limit is 0 but that of a container that may use more than it holds: soft limits of cgroups that have gone stay counted
  in those above them.
- HAMi-core: a library of the administrator's, which reads variables. 0 means no limit there, and a missing or empty
  variable too; of CUDA's variables the last one set counts (HAMi-core, src/multiprocess). Its lock, which all Pods of a
  node could share as /tmp/vgpulock, is left out: whoever holds it stops the programs of all others as they start.
- mps: the administrator's daemon. Its memory limits hold against nobody and are not used: a variable of the tenant's
  drops them.

A container has one limit for all of its cards, so that it does not matter which of them has which number.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from allocator.vocabulary.delivery import MIB, REQUIRED, Keeping, LimitProvider
from allocator.vocabulary.names import (
    CORE_LIMIT_PREFIX,
    GPU_MEMORY,
    LIMITS,
    MEMORY_LIMIT_PREFIX,
    MEMORY_REQUEST_PREFIX,
    TYPE_GPU,
)
from allocator.wire.podallocated import read_allocation
from reporter.cgroup.layout import LayoutError, from_runtime
from reporter.enforcer.cards import cards_of
from reporter.enforcer.model import CardLimit, Container, Mount, MpsShare, Sandbox
from reporter.exchange import CardState, Facts

_CGROUPS: Final = "/sys/fs/cgroup"
LIBRARY: Final = "/usr/local/vgpu/libvgpu.so"
_CACHE: Final = "/usr/local/vgpu/cache"
_PRELOAD: Final = "/etc/ld.so.preload"
_MEMORY: Final = "CUDA_DEVICE_MEMORY_LIMIT"
_SWITCHES: Final = frozenset(
    {
        "ACTIVE_OOM_KILLER",
        "CUDA_DISABLE_CONTROL",
        "CUDA_REDIRECT",
        "CUDA_TASK_PRIORITY",
        "GPU_CORE_UTILIZATION_POLICY",
        "RECORD_KERNEL_INTERVAL",
    }
)
# CUDA_DEVICE_MAX_CONNECTIONS, which programs set, is CUDA's own.
_OF_HAMI: Final = ("CUDA_DEVICE_MEMORY_", "CUDA_DEVICE_SM_")
_OF_MPS: Final = "CUDA_MPS_"
OUR_NAMESPACES: Final = "koordgate_"  # begins their names
_ID_IN_NAMESPACE: Final = 54  # NVIDIA takes 64 small letters, digits and underscores
_PIPE: Final = "/tmp/nvidia-mps"  # CUDA's default, so that nothing changes if the variable is lost  # noqa: S108
_NVIDIAS: Final = (LimitProvider.NVIDIA_TOOLKIT, LimitProvider.NVIDIA_FRACTIONS)
_WHOLE: Final = 100
_NUMBER: Final = re.compile(r"[0-9]{1,9}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Rules:
    """What the administrator decided, and where the files of limiters are on the host."""

    cpus: bool = True  # whether cpusets are set
    closed: bool = False  # whether containers without cards are kept from NVIDIA's runtime
    exempt: frozenset[str] = frozenset()  # the namespaces whose containers are let alone by that
    library: str = ""  # HAMi-core's; "" if there is none
    preload: str = ""  # a file that names the library as containers see it
    caches: str = ""  # where containers have a folder each
    pipe: str = ""  # the MPS daemon's pipe directory; "" if there is none
    shm: str = "/dev/shm"  # its /dev/shm  # noqa: S108


@dataclass(frozen=True, slots=True)
class Part:
    """What a container may use of each of its cards."""

    request: int  # MiB that it holds, where it may use more; 0 where it may not
    memory: int  # MiB; 0 if that is not stated
    percent: int  # of the threads; 0 if that is not stated

    @property
    def bytes(self) -> int | None:
        """The memory in bytes; None if it is not stated."""
        return self.memory * MIB or None


@dataclass(frozen=True, slots=True)
class Limiter:
    """What limits a container; fields as in `Edits` and `Answer`."""

    environment: Mapping[str, str] = field(default_factory=dict)
    mounts: tuple[Mount, ...] = ()
    limits: tuple[CardLimit, ...] = ()
    caches: tuple[str, ...] = ()
    mps: MpsShare | None = None
    kept: Mapping[str, CardState] = field(default_factory=dict)  # card to what keeps its memory
    why_not: str = ""  # why nothing limits it although that was decided, and the cure
    required: bool = False  # whether it must not be created without


def required(annotations: Mapping[str, str]) -> bool:
    """Whether a Pod's limits must be kept."""
    return annotations.get(LIMITS) == REQUIRED


def part_of(annotations: Mapping[str, str], container: str) -> Part:
    """Read what a container may use."""
    prefixes = (MEMORY_REQUEST_PREFIX, MEMORY_LIMIT_PREFIX, CORE_LIMIT_PREFIX)
    request, memory, percent = (_number(annotations.get(f"{prefix}{container}", "")) for prefix in prefixes)
    return Part(request, memory, min(percent, _WHOLE))


def decided(annotations: Mapping[str, str], container: str) -> bool:
    """Whether it was decided that a container has limits of its cards."""
    part = part_of(annotations, container)
    limited = required(annotations) or part.memory or part.percent
    return bool(limited and cards_of(annotations, container).names)


def _number(text: str) -> int:
    return int(text) if _NUMBER.fullmatch(text) else 0


def limiter(sandbox: Sandbox, container: Container, facts: Facts, rules: Rules) -> Limiter:
    """Limit a container that is created, or say why it is not limited."""
    cards = cards_of(sandbox.annotations, container.name).names
    if not cards:
        return Limiter()
    must = required(sandbox.annotations)
    make = _MAKERS.get(facts.provider)
    if make is None:
        why = facts.no_limits if facts.provider in _NVIDIAS else _NOTHING_KEEPS
        return Limiter(why_not=why if must else "", required=must)
    if not decided(sandbox.annotations, container.name):
        return Limiter()  # It has whole cards.
    part = part_of(sandbox.annotations, container.name)
    why = facts.no_limits
    if not why and must and not part.memory and facts.provider != LimitProvider.MPS:
        why = f"the Pod's annotation {MEMORY_LIMIT_PREFIX}{container.name} states no memory limit: {_ANEW}"
    made = Limiter(why_not=why) if why else make(sandbox, container, cards, part, facts, rules)
    if made.why_not:
        missing = CardState(facts.provider, Keeping.MISSING, part.bytes)
        made = replace(made, kept=dict.fromkeys(cards, missing))
    return replace(made, required=must)


def _by_cgroup(
    sandbox: Sandbox, _container: Container, cards: tuple[str, ...], part: Part, facts: Facts, _rules: Rules
) -> Limiter:
    if not part.memory:
        return Limiter()  # It limits no cores.
    try:
        path = f"{_CGROUPS}/{from_runtime(sandbox.cgroup)}"
    except LayoutError as error:
        return Limiter(why_not=f"{error}: use containerd or CRI-O")
    limits = tuple(CardLimit(card, path, 0, _of_pod(sandbox.annotations, card, facts)) for card in cards)
    return Limiter(
        limits=limits, kept=dict.fromkeys(cards, CardState(LimitProvider.CGROUP, Keeping.ENFORCED, part.bytes))
    )


def _of_pod(annotations: Mapping[str, str], card: str, facts: Facts) -> int:
    """The most that a Pod's containers may use of a card together, in bytes: no less than any of them alone may.

    Not all of them run at once. Unless one may use more than it holds, they never use more than the Pod holds.
    """
    parts = []
    for key in annotations:
        name = key.removeprefix(MEMORY_LIMIT_PREFIX)
        if name != key and card in cards_of(annotations, name).names:
            parts.append(part_of(annotations, name))
    limits = [part.memory * MIB for part in parts]
    most = sum(limits)
    if not any(part.request for part in parts):
        shares = read_allocation(annotations).shares
        held = sum(share.amounts.get(GPU_MEMORY, 0) for share in shares if (share.type, share.id) == (TYPE_GPU, card))
        most = min(most, held or most)
    known = facts.cards.get(card)
    if known is not None and known.memory:
        most = min(most, known.memory)
    return max(most, *limits)


def _by_hami_core(
    _sandbox: Sandbox, container: Container, cards: tuple[str, ...], part: Part, _facts: Facts, rules: Rules
) -> Limiter:
    if not rules.library:
        return Limiter(why_not=_NO_LIBRARY)
    stated = container.environment
    environment = {name: "" for name in stated if name in _SWITCHES or name.startswith((*_OF_HAMI, _OF_MPS))}
    if "libvgpu" in stated.get("LD_PRELOAD", ""):
        libraries = stated["LD_PRELOAD"].replace(":", " ").split()
        environment["LD_PRELOAD"] = " ".join(one for one in libraries if "libvgpu" not in one)
    environment["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"  # It takes CUDA's numbers for NVML's.
    environment["CUDA_DEVICE_MEMORY_SHARED_CACHE"] = f"{_CACHE}/shared"
    for number in range(len(cards)):
        if part.memory:
            environment[f"{_MEMORY}_{number}"] = f"{part.memory}m"
        if part.percent:
            environment[f"CUDA_DEVICE_SM_LIMIT_{number}"] = str(part.percent)
    cache = f"{rules.caches}/{container.id}"
    return Limiter(
        environment,
        (Mount(rules.library, LIBRARY), Mount(rules.preload, _PRELOAD), Mount(cache, _CACHE, writable=True)),
        caches=(cache,),
        kept=dict.fromkeys(cards, CardState(LimitProvider.HAMI_CORE, Keeping.INJECTED, part.bytes)),
    )


def namespace(container: str) -> str:
    """The name of a container's namespace of the MPS daemon. `container`: its id."""
    return f"{OUR_NAMESPACES}{container[:_ID_IN_NAMESPACE]}"


def _by_mps(
    _sandbox: Sandbox, container: Container, cards: tuple[str, ...], part: Part, facts: Facts, rules: Rules
) -> Limiter:
    if not rules.pipe:
        return Limiter(why_not=_NO_PIPE)
    percent = part.percent or _WHOLE
    share = MpsShare(namespace(container.id) if facts.mps_namespaces else "", percent)
    pipe = f"{facts.mps_namespaces}/{share.namespace}" if share.namespace else rules.pipe
    environment = {name: "" for name in container.environment if name.startswith(_OF_MPS)}
    environment["CUDA_MPS_PIPE_DIRECTORY"] = _PIPE
    environment["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = str(percent)
    return Limiter(
        environment,
        (Mount(pipe, _PIPE, writable=True), Mount(rules.shm, "/dev/shm", writable=True)),  # noqa: S108
        mps=share,
        kept=dict.fromkeys(cards, CardState(LimitProvider.MPS, Keeping.INJECTED)),
    )


def running(
    sandbox: Sandbox, container: Container, facts: Facts, rules: Rules
) -> tuple[Limiter, tuple[CardLimit, ...]]:
    """What limits a container that runs, or is about to, and the driver's limits of its own cgroup.

    Library and daemon come into a container at its creation only.
    """
    made = limiter(sandbox, container, facts, rules)
    if any(mount.destination not in container.mounts for mount in made.mounts):
        missing = {card: one.missing for card, one in made.kept.items()}
        return replace(made, kept=missing), ()
    if not made.limits:
        return made, ()
    try:
        path = f"{_CGROUPS}/{from_runtime(container.cgroup)}"
    except LayoutError:
        return made, ()  # Of its Pod's there is one.
    part = part_of(sandbox.annotations, container.name)
    soft = part.request if part.request < part.memory else 0
    return made, tuple(CardLimit(one.card, path, soft * MIB, part.memory * MIB) for one in made.limits)


_Maker = Callable[[Sandbox, Container, tuple[str, ...], Part, Facts, Rules], Limiter]
_MAKERS: Final[Mapping[str, _Maker]] = {
    LimitProvider.CGROUP: _by_cgroup,
    LimitProvider.HAMI_CORE: _by_hami_core,
    LimitProvider.MPS: _by_mps,
}

_ANEW: Final = "delete the Pod, so that the one in its place is bound anew"
_NOTHING_KEEPS: Final = (
    "nothing keeps limits on this node: let an administrator set limits.provider or the Node's label "
    "koordinator.sh/gpu-isolation-provider, or remove the Pod's annotation koordgate.io/limits"
)
_NO_LIBRARY: Final = (
    "HAMi-core's library is not there: put libvgpu.so on the node, and state its path as enforcement.hamiCore.library"
)
_NO_PIPE: Final = "no MPS daemon is known: run one on the node, and state its pipe directory as enforcement.mps.pipe"
