"""How containers get the cards that a bind chose, and what keeps them to their memory of these."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from typing import Final, NamedTuple

from allocator.vocabulary.names import CORE_LIMIT_PREFIX, MEMORY_LIMIT_PREFIX, MEMORY_REQUEST_PREFIX

MADE_IN_MEMORY: Final = "runtime.nvidia.com/gpu"
"""The CDI kind of which NVIDIA's runtime makes the specification itself (NVIDIA Container Toolkit 1.15 and later)."""
DELIVERY_LABEL: Final = "koordgate.io/delivery"  # of a Node: the `Delivery` of its administrator's choice
DELIVERY_PROVED: Final = "koordgate.io/delivery-proved"  # of a Node: what a Pod last showed of its delivery
_QUALIFIED_SINCE: Final = (1, 15)


class Delivery(StrEnum):
    """A way in which a container gets its cards."""

    ENVIRONMENT = "environment"  # the default runtime is NVIDIA's and reads NVIDIA_VISIBLE_DEVICES
    RUNTIME_CLASS = "runtimeClass"  # the Pod's RuntimeClass leads to NVIDIA's runtime, which reads the variable
    NVIDIA_NRI = "nvidia-nri"  # NVIDIA's NRI plugin reads an annotation of the Pod that names CDI devices
    NRI = "nri"  # koordgate's enforcer brings them


class Bringing(StrEnum):
    """What the enforcer adds to a container that is to have cards."""

    CDI = "cdi"  # CDI devices
    ENVIRONMENT = "environment"  # NVIDIA_VISIBLE_DEVICES, which the node's runtime reads
    MOUNTS = "mounts"  # /dev/null below /var/run/nvidia-container-devices, which the node's runtime reads


class LimitProvider(StrEnum):
    """What keeps limits of what containers may use of GPUs."""

    NONE = "none"
    NVIDIA_TOOLKIT = "nvidia-toolkit"
    NVIDIA_FRACTIONS = "nvidia-fractions"
    CGROUP = "cgroup"  # the driver, whose limits the enforcer sets
    HAMI_CORE = "HAMi-core"  # a library in the container
    MPS = "mps"  # NVIDIA's MPS daemon; it keeps compute


@dataclass(frozen=True, slots=True)
class EnforcerTold:
    """What is told of a node's enforcer, which is registered with the container runtime."""

    brings: Bringing | None = None  # by what it brings cards; None if it brings none
    why_not: str = ""  # why it brings none, and the cure; a part of a sentence about the node
    provider: LimitProvider = LimitProvider.NONE  # what is to keep limits there
    no_limits: str | None = None  # why that keeps none, and the cure; "" if it does, None where that is not known


@dataclass(frozen=True, slots=True)
class NodeRuntime:
    """What is told of a node's container runtime; each is left empty, or None, where it is not known."""

    handlers: tuple[str, ...] = ()  # the names of its handlers, as the Node's status lists them
    showing: tuple[str, ...] = ()  # those of them that are NVIDIA's runtime
    default_shows: bool | None = None  # whether the default handler is NVIDIA's runtime
    # the CDI kinds, such as k8s.device-plugin.nvidia.com/gpu, that have a name for each card and each of its MIG
    # devices, which is the UUID; the preferred one first
    kinds: tuple[str, ...] = ()
    nri: bool | None = None  # whether NVIDIA's NRI plugin is on
    toolkit: tuple[int, ...] = ()  # version of the NVIDIA Container Toolkit, as (1, 20, 2)
    mode: str = ""  # of NVIDIA's runtime: auto, legacy, cdi, jit-cdi or csv
    unprivileged: bool | None = None  # whether NVIDIA's runtime heeds the variable of an unprivileged container
    # whether NVIDIA's fractioning operator keeps limits there (condition gpu-sharing.nvidia.com/Ready)
    fractions: bool = False
    # why driver and toolkit do not keep memory limits there, and the cure; "" where they do
    no_limits: str | None = None
    enforcer: EnforcerTold | None = None

    @property
    def variable_kind(self) -> str:
        """The CDI kind with which the variable names a card; "" where it has the bare UUID.

        In mode cdi a bare UUID is taken for one of a kind that has no such name, and the container is not created.
        Mode legacy, and toolkits before 1.15, know no other form; where nothing is known, it is what all but mode cdi
        understand.
        """
        if self.mode == "legacy" or (self.toolkit and self.toolkit < _QUALIFIED_SINCE):
            return ""
        return MADE_IN_MEMORY if self.toolkit or self.mode == "cdi" else ""


@dataclass(frozen=True, slots=True)
class Way:
    """How a node would give a Pod its cards."""

    delivery: Delivery | None  # the way; None where there is none
    kind: str = ""  # the CDI kind before each UUID, in the variable or the annotation; "" for the bare UUID
    why_not: str = ""  # why there is none, and the cure; a part of a sentence about the node
    known: bool = True  # whether it is known that this works
    hidden: bool = False  # whether the enforcer alone shows the cards: the variable then names none
    # why memory limits are not kept where cards come in this way, and the cure; "" where they are, None where that is
    # not known
    no_limits: str | None = None

    def named(self, identity: str) -> str:
        """A card as the variable, or the annotation, names it."""
        return f"{self.kind}={identity}" if self.kind else identity


ASSUMED: Final = Way(Delivery.ENVIRONMENT, known=False)
"""What holds of a node of which nothing is known yet: the variable, as before any way was told."""


@dataclass(frozen=True, slots=True)
class NodeDelivery:
    """How a node gives Pods their cards, by the RuntimeClass that they name."""

    plain: Way = ASSUMED  # to a Pod that names none
    classed: Way = ASSUMED  # to one that names the RuntimeClass of this installation
    other: Way = ASSUMED  # to one that names another
    showing: tuple[str, ...] = ()  # the handlers that are NVIDIA's runtime, as far as that is known
    runtime_class: str = ""  # the RuntimeClass of this installation
    provider: LimitProvider = LimitProvider.NONE  # what keeps limits there

    def way(self, runtime_class: str, *, limits: bool = False) -> Way:
        """How a Pod with this `spec.runtimeClassName` gets its cards; `limits`: whether its limits are required.

        Where the enforcer keeps limits, it alone brings what is limited: card and limit come together, or neither does.
        """
        named = self.classed if runtime_class == self.runtime_class else self.other
        found = named if runtime_class else self.plain
        if not limits or found.delivery is None or not by_enforcer(self.provider):
            return found
        return replace(found, delivery=Delivery.NRI, kind="", hidden=True)


NOTHING_TOLD: Final = NodeDelivery()
MAX_NRI_NAME_LENGTH: Final = 53
"""Characters of a container's name that fit into keys of NRI plugins, .../container.NAME (63 after the slash)."""
ENFORCER: Final = "koordgate"
"""The name of the enforcer as an NRI plugin."""
VOID: Final = "void"
"""What NVIDIA's runtime takes for no card, and for none of its own either."""
_NRI_PREFIX: Final = "nvidia.cdi.k8s.io/container."


def nri_annotation(container: str) -> str:
    """Name the annotation by which NVIDIA's NRI plugin shows a container its devices."""
    return f"{_NRI_PREFIX}{container}"


def unqualified(name: str) -> str:
    """The UUID of a card as a `Way` names it."""
    return name.rpartition("=")[2]


REQUIRED: Final = "require"
"""The value of a Pod's annotation `LIMITS`."""
MIB: Final = 2**20
_MAX_KEY_LENGTH: Final = 63  # characters after the slash of an annotation's key
_MEBIBYTES: Final = re.compile(r"[0-9]{1,9}", re.ASCII)
_EDITING: Final = ("auto", "cdi", "jit-cdi")  # the modes in which NVIDIA's runtime makes CDI edits

# The annotations that NVIDIA's fractioning operator reads of a Pod: nvidia.com/container.NAME.gpu-memory.limit
_FRACTIONS_PREFIX: Final = "nvidia.com/container."
_GPUS_DEVICES: Final = ".gpus.devices"
_GPU_MEMORY_REQUEST: Final = ".gpu-memory.request"
_GPU_MEMORY_LIMIT: Final = ".gpu-memory.limit"
_GPU_COMPUTE_MODE: Final = ".gpu-compute.mode"


class MemoryLimit(NamedTuple):
    """What a container may use of each of its GPUs: memory in whole MiB, and cores."""

    held: int  # what the Pod holds for it
    most: int  # the limit; above `held` where its author asked for that
    cores: int | None = None  # percent; None if no cores were asked for


@dataclass(frozen=True, slots=True)
class Keeper:
    """How a provider is told its limits, and where it keeps them."""

    # why it keeps none on a node for Pods that get their cards in a way, and the cure; "" where it keeps them, None
    # where that is not known
    why_not: Callable[[NodeRuntime, Way], str | None]
    # what the bind writes for a container: its name, its cards by UUID, and its limit
    annotations: Callable[[str, Sequence[str], MemoryLimit], dict[str, str]]
    # variable of the environment -> the beginning of the annotation that it reads; the container's name follows
    variables: Mapping[str, str] = field(default_factory=dict)
    longest_name: int = _MAX_KEY_LENGTH  # characters of a container's name that fit into its annotations
    # the beginning of the annotations by which a Pod's author may ask the provider too; "" for none. It acts on these
    # whatever koordgate requires.
    asked_by: str = ""
    # whether the enforcer keeps the limits. It alone then brings the container's cards, in the same answer.
    enforcer: bool = False
    cores: bool = False  # whether it keeps cores too


def _toolkit_why_not(runtime: NodeRuntime, way: Way) -> str | None:
    """NVIDIA's hook, which sets the driver's limits, comes with NVIDIA's CDI edits and with nothing else."""
    if runtime.no_limits != "" or way.delivery is Delivery.NVIDIA_NRI or runtime.mode in _EDITING:
        return runtime.no_limits
    if not runtime.mode:
        return None
    return (
        f"its NVIDIA runtime is in mode {runtime.mode}, which makes no CDI edits, and with these come the limits: set "
        'mode = "auto" under [nvidia-container-runtime] in its config.toml'
    )


def _toolkit_annotations(container: str, _cards: Sequence[str], limit: MemoryLimit) -> dict[str, str]:
    """Write the request and the limit as numbers of MiB.

    The hook makes the request the soft limit, which is guaranteed, and beyond which memory is borrowed. A container
    that cannot use more than it holds never borrows, and needs no guarantee. A soft limit of a container that has ended
    stays counted in the cgroups above it, so that none is better.
    """
    request = limit.held if limit.most > limit.held else 0
    return {f"{MEMORY_REQUEST_PREFIX}{container}": str(request), f"{MEMORY_LIMIT_PREFIX}{container}": str(limit.most)}


def _fractions_why_not(runtime: NodeRuntime, _way: Way) -> str:
    if runtime.fractions:
        return ""
    return (
        "NVIDIA's fractioning operator is not known to run there (the Node's condition gpu-sharing.nvidia.com/Ready is "
        "not True): install it, or repair its plugin on this node"
    )


def _fractions_annotations(container: str, cards: Sequence[str], limit: MemoryLimit) -> dict[str, str]:
    written = {
        _GPU_MEMORY_REQUEST: f"{limit.held}Mi",
        _GPU_MEMORY_LIMIT: f"{limit.most}Mi",
        _GPUS_DEVICES: ",".join(cards),
        _GPU_COMPUTE_MODE: "time-slicing",
    }
    return {f"{_FRACTIONS_PREFIX}{container}{suffix}": text for suffix, text in written.items()}


def _enforcer_why_not(provider: LimitProvider, runtime: NodeRuntime, _way: Way) -> str | None:
    told = runtime.enforcer
    if told is None:
        return (
            "koordgate's enforcer is not known to run there: set enforcement.enabled, and see why the container "
            "enforcer of koordgate's reporter is not ready on this node"
        )
    if told.provider is not provider:
        return f"koordgate's enforcer is still told to keep limits by {told.provider} there: let the reporter run"
    if told.brings is None:
        return f"koordgate's enforcer brings no cards there, and limits come with these: the node {told.why_not}"
    return told.no_limits


def _enforcer_annotations(container: str, cards: Sequence[str], limit: MemoryLimit) -> dict[str, str]:
    """Write memory as for the toolkit, and cores."""
    written = _toolkit_annotations(container, cards, limit)
    return written if limit.cores is None else {**written, f"{CORE_LIMIT_PREFIX}{container}": str(limit.cores)}


def _by_enforcer(provider: LimitProvider, *, cores: bool) -> Keeper:
    written = _enforcer_annotations if cores else _toolkit_annotations
    why_not = partial(_enforcer_why_not, provider)
    return Keeper(why_not, written, longest_name=MAX_NRI_NAME_LENGTH, enforcer=True, cores=cores)


KEEPERS: Final[Mapping[LimitProvider, Keeper]] = {
    LimitProvider.NVIDIA_TOOLKIT: Keeper(
        _toolkit_why_not,
        _toolkit_annotations,
        {  # NVIDIA Container Toolkit 1.20.1 and 1.20.2 read the singular names, later ones prefer the plural ones
            "NVIDIA_GPU_MEMORY_REQUEST": MEMORY_REQUEST_PREFIX,
            "NVIDIA_GPU_MEMORY_REQUESTS": MEMORY_REQUEST_PREFIX,
            "NVIDIA_GPU_MEMORY_LIMIT": MEMORY_LIMIT_PREFIX,
            "NVIDIA_GPU_MEMORY_LIMITS": MEMORY_LIMIT_PREFIX,
        },
    ),
    LimitProvider.NVIDIA_FRACTIONS: Keeper(
        _fractions_why_not,
        _fractions_annotations,
        longest_name=_MAX_KEY_LENGTH - len(_FRACTIONS_PREFIX.rpartition("/")[2]) - len(_GPU_MEMORY_REQUEST),
        asked_by=_FRACTIONS_PREFIX,
    ),
    LimitProvider.CGROUP: _by_enforcer(LimitProvider.CGROUP, cores=False),
    LimitProvider.HAMI_CORE: _by_enforcer(LimitProvider.HAMI_CORE, cores=True),
    LimitProvider.MPS: _by_enforcer(LimitProvider.MPS, cores=True),
}
"""What there is beside `NONE`. A provider is one entry here."""


def by_enforcer(provider: str) -> bool:
    """Whether this is the name of a provider that keeps its limits by the enforcer."""
    return any(one == provider and keeper.enforcer for one, keeper in KEEPERS.items())


LIMIT_VARIABLES: Final = tuple(sorted({variable for keeper in KEEPERS.values() for variable in keeper.variables}))
"""The variables by which any provider learns a container's limits; no author may set them."""


def read_limits(annotations: Mapping[str, str]) -> dict[str, int]:
    """Read what a bind stated to any provider, for people: container -> MiB of each of its cards."""
    found: dict[str, int] = {}
    for key in sorted(annotations):
        amount = annotations[key].removesuffix("Mi")
        for before, after in ((MEMORY_LIMIT_PREFIX, ""), (_FRACTIONS_PREFIX, _GPU_MEMORY_LIMIT)):
            if key.startswith(before) and key.endswith(after) and _MEBIBYTES.fullmatch(amount):
                found[key[len(before) : len(key) - len(after)]] = int(amount)
    return found


def decided_limits(annotations: Mapping[str, str]) -> dict[str, int]:
    """Read as `read_limits`, without what only an author stated: a bind names a container's cards beside its limit."""
    return {
        container: mib
        for container, mib in read_limits(annotations).items()
        if f"{MEMORY_LIMIT_PREFIX}{container}" in annotations
        or f"{_FRACTIONS_PREFIX}{container}{_GPUS_DEVICES}" in annotations
    }


def states_limit(key: str) -> bool:
    """Whether an annotation may state a limit to a provider, in a form in which authors of Pods may state their own."""
    return key.startswith(_FRACTIONS_PREFIX)


NOTHING_KEEPS: Final = (
    "nothing keeps memory limits in this installation (limits.provider is none): let an administrator set it, or "
    "remove the Pod's annotation koordgate.io/limits"
)


class Keeping(StrEnum):
    """Whether a container is kept to its memory of a card."""

    ENFORCED = "enforced"  # the driver has the limit that was decided
    INJECTED = "injected"  # library or daemon came into the container: programs that mean well keep to the limit
    MISSING = "missing"  # a limit was decided, and the driver has none, or another
    ACCOUNTING = "accounting"  # none was decided: what is used is counted, and nothing keeps the container to it


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """A container's memory of one card, in bytes."""

    card: str
    namespace: str
    pod: str
    container: str
    keeping: Keeping  # whether it is kept to its memory
    used: int | None = None  # what it uses; None if that is not known
    limit: int | None = None  # what the driver lets it have at most; None if the driver has no limit
    wanted: int | None = None  # the limit that was decided; None if none was
    held: int = 0  # what it holds of the card
    provider: LimitProvider = LimitProvider.NONE  # what keeps the limit that was decided

    @property
    def exceeds(self) -> bool:
        """Whether it uses more than it holds, and more than it was granted beyond that."""
        return bool(self.held) and self.used is not None and self.used > max(self.held, self.wanted or 0)


WHOLE: Final = 100_000  # parts of a card's memory


class AskedLimit(NamedTuple):
    """A limit of memory, in one of two ways."""

    size: int = 0  # bytes of each card; 0 if it is a part of the card
    portion: int = 0  # of each card's memory, in 100000ths; 0 if it is in bytes
