"""How containers get the cards that a bind chose: the ways that there are, and what a node's runtime can do."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

MADE_IN_MEMORY: Final = "runtime.nvidia.com/gpu"
"""The CDI kind of which NVIDIA's runtime makes the specification itself (NVIDIA Container Toolkit 1.15 and later)."""
DELIVERY_LABEL: Final = "koordgate.io/delivery"  # of a Node: the `Delivery` of its administrator's choice
_QUALIFIED_SINCE: Final = (1, 15)


class Delivery(StrEnum):
    """A way in which a container gets its cards."""

    ENVIRONMENT = "environment"  # the default runtime is NVIDIA's and reads NVIDIA_VISIBLE_DEVICES
    RUNTIME_CLASS = "runtimeClass"  # the Pod's RuntimeClass leads to NVIDIA's runtime, which reads the variable
    NVIDIA_NRI = "nvidia-nri"  # NVIDIA's NRI plugin reads an annotation of the Pod that names CDI devices


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

    def way(self, runtime_class: str) -> Way:
        """How a Pod with this `spec.runtimeClassName` gets its cards."""
        if not runtime_class:
            return self.plain
        return self.classed if runtime_class == self.runtime_class else self.other


NOTHING_TOLD: Final = NodeDelivery()
MAX_NRI_NAME_LENGTH: Final = 53
"""Characters of a container's name that fit into the key nvidia.cdi.k8s.io/container.NAME (63 after the slash)."""
_NRI_PREFIX: Final = "nvidia.cdi.k8s.io/container."


def nri_annotation(container: str) -> str:
    """Name the annotation by which NVIDIA's NRI plugin shows a container its devices."""
    return f"{_NRI_PREFIX}{container}"


def unqualified(name: str) -> str:
    """The UUID of a card as a `Way` names it."""
    return name.rpartition("=")[2]
