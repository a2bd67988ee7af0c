"""Nodes and Pods of the end-to-end benchmark; each Pod as its author writes it and as koordgate translates it."""

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

CARD_GIB = 80
FUNCTIONS = {"fast": 4, "slow": 2}  # virtual functions of each NIC, by label
JOINT = {
    "scheduling.koordinator.sh/device-joint-allocate": {"deviceTypes": ["gpu", "rdma"], "requiredScope": "SamePCIe"},
    "scheduling.koordinator.sh/device-allocate-hint": {"rdma": {"vfSelector": {"matchLabels": {"speed": "fast"}}}},
}


@dataclass(frozen=True)
class Kind:
    """Pods with the same request.

    Attributes:
        asks: what a user writes.
        gpus: the total percent of a GPU's compute and memory that it means.
        rdma: the total percent of a NIC.
        annotations: by key, as JSON values.
    """

    asks: Mapping[str, str]
    gpus: int
    rdma: int = 0
    annotations: Mapping[str, Any] = field(default_factory=dict)

    @property
    def translated(self) -> dict[str, str]:
        """The part of the request that a scheduler without koordgate can count."""
        gpus = {"gpu-core": self.gpus, "gpu-memory-ratio": self.gpus, "gpu-memory": f"{CARD_GIB * self.gpus // 100}Gi"}
        amounts = {**gpus, "rdma": self.rdma} if self.rdma else gpus
        return {f"kubernetes.io/{tail}": str(amount) for tail, amount in amounts.items()}


HALF = Kind({"kubernetes.io/gpu": "50"}, 50)
MIX = {  # numbers in a hundred Pods; together they take 107 GPUs
    "half": (40, HALF),
    "quarter": (15, Kind({"kubernetes.io/gpu": "25"}, 25)),
    "one": (15, Kind({"nvidia.com/gpu": "1"}, 100)),
    "two": (8, Kind({"koordinator.sh/gpu": "200"}, 200)),
    "four": (4, Kind({"nvidia.com/gpu": "4"}, 400)),
    "eight": (2, Kind({"nvidia.com/gpu": "8"}, 800)),
    "half-joint": (8, Kind({"kubernetes.io/gpu": "50", "kubernetes.io/rdma": "20"}, 50, 20, JOINT)),
    "two-joint": (8, Kind({"kubernetes.io/gpu": "200", "kubernetes.io/rdma": "10"}, 200, 10, JOINT)),
}


def halves(count: int) -> list[tuple[str, Kind]]:
    """Pods that each ask for half a GPU: name and kind."""
    return [(f"half-{number}", HALF) for number in range(count)]


def mix(count: int) -> list[tuple[str, Kind]]:
    """Pods of all kinds in their shares, in a mixed order that is always the same: name and kind."""
    hundred = [(name, kind) for name, (share, kind) in MIX.items() for _ in range(share)]
    pods = [(f"mix-{number}-{name}", kind) for number in range(count) for name, kind in (hundred[number % 100],)]
    random.Random(4).shuffle(pods)
    return pods
