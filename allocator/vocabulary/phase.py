"""A Pod's containers by the phase of its life in which they run."""

from enum import StrEnum
from typing import Final, NamedTuple


class Phase(StrEnum):
    """Init containers run one by one, sidecars from their start on, then all apps together (Kubernetes' rule)."""

    INIT = "init"
    SIDECAR = "sidecar"
    APP = "app"


class ContainerNames(NamedTuple):
    """A Pod's containers by name, in its order."""

    init: tuple[str, ...] = ()  # init containers and sidecars
    apps: tuple[str, ...] = ()  # all others


NO_NAMES: Final = ContainerNames()
