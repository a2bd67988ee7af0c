"""The phase of a Pod's life in which a container runs."""

from enum import StrEnum


class Phase(StrEnum):
    """Init containers run one by one, sidecars from their start on, then all apps together (Kubernetes' rule)."""

    INIT = "init"
    SIDECAR = "sidecar"
    APP = "app"
