"""What keeps containers to their memory of a GPU: the providers that there are, what each needs, and what it reads."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple

from allocator.vocabulary.delivery import Delivery, NodeRuntime, Way
from allocator.vocabulary.names import MEMORY_LIMIT_PREFIX, MEMORY_REQUEST_PREFIX

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


class LimitProvider(StrEnum):
    """What keeps memory limits."""

    NONE = "none"
    NVIDIA_TOOLKIT = "nvidia-toolkit"
    NVIDIA_FRACTIONS = "nvidia-fractions"


class MemoryLimit(NamedTuple):
    """What a container may use of the memory of each of its GPUs, in whole MiB."""

    held: int  # what the Pod holds for it
    most: int  # the limit; above `held` where its author asked for that


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
}
"""What there is beside `NONE`. A provider is one entry here."""
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
