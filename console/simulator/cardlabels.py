"""Labels of a Node that describe its cards, by who writes them (pure).

NVIDIA's GPU feature discovery (NVIDIA/k8s-device-plugin, internal/lm), AMD's labeller (ROCm/k8s-device-plugin,
cmd/k8s-node-labeller), and the clouds: GKE, EKS with its autoscalers, Karpenter for AWS and Azure, AKS. A cloud that
labels neither model nor memory still labels the type of the machine.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from allocator.quantity import QuantityError, parse
from allocator.vocabulary.dialects import GIB, MIB
from allocator.vocabulary.models import GPU_COUNT, GPU_MEMORY_MIB, GPU_PRODUCT
from allocator.vocabulary.names import NVIDIA

_INSTANCE_TYPE: Final = "node.kubernetes.io/instance-type"
REPLICAS: Final = "nvidia.com/gpu.replicas"
_CLOUD_PREFIX: Final = "nvidia-"
_WHOLE: Final = "spx"  # AMD's compute partition that is the whole card
_MIG_MODEL: Final = "-MIG-"
_SHARED_MODEL: Final = "-SHARED"
_KARPENTER: Final = ("karpenter.k8s.aws/instance-gpu", "eks.amazonaws.com/instance-gpu")


class CardLabels(NamedTuple):
    """The keys of one writer, the first that is there counts.

    Attributes:
        models: of the model.
        memory: of a card's memory.
        unit: bytes in 1 of these.
        numbers: of the number of cards.
        replicas: of how many times the plugin offers each card.
        parts: that are there only where parts of cards are counted instead of cards.
    """

    models: tuple[str, ...] = ()
    memory: tuple[str, ...] = ()
    unit: int = MIB
    numbers: tuple[str, ...] = ()
    replicas: tuple[str, ...] = ()
    parts: tuple[str, ...] = ()


OF_VENDOR: Final[Mapping[str, CardLabels]] = {
    NVIDIA: CardLabels(
        (GPU_PRODUCT,), (GPU_MEMORY_MIB,), MIB, (GPU_COUNT,), (REPLICAS,), ("nvidia.com/gpu.slices.gi",)
    ),
    "amd": CardLabels(
        ("amd.com/gpu.product-name", "beta.amd.com/gpu.product-name"),
        ("amd.com/gpu.vram", "beta.amd.com/gpu.vram"),
        GIB,
        parts=("amd.com/gpu.compute-memory-partition",),
    ),
}
OF_CLOUDS: Final = CardLabels(
    (
        "cloud.google.com/gke-accelerator",
        *(f"{key}-name" for key in _KARPENTER),
        "k8s.amazonaws.com/accelerator",
        "karpenter.azure.com/sku-gpu-name",
    ),
    tuple(f"{key}-memory" for key in _KARPENTER),
    MIB,
    (
        "cloud.google.com/gke-accelerator-count",
        *(f"{key}-count" for key in _KARPENTER),
        "karpenter.azure.com/sku-gpu-count",
    ),
    ("cloud.google.com/gke-max-shared-clients-per-gpu",),
    ("cloud.google.com/gke-gpu-partition-size",),
)

# The providers' pages of their machines; sizes that have a part of a card are left out.
_MACHINES: Final = tuple(
    (re.compile(pattern, re.ASCII), model)
    for pattern, model in (
        (r"p3dn\..*", "Tesla-V100-SXM2-32GB"),
        (r"p3\..*", "Tesla-V100-SXM2-16GB"),
        (r"p4d\..*", "A100-SXM4-40GB"),
        (r"p4de\..*", "A100-SXM4-80GB"),
        (r"p5\..*", "H100-80GB-HBM3"),
        (r"p5en?\..*", "H200"),
        (r"p6-b200\..*", "B200"),
        (r"g3s?\..*", "Tesla-M60"),
        (r"g4dn\..*", "Tesla-T4"),
        (r"g5\..*", "A10G"),
        (r"g5g\..*", "T4G"),
        (r"gr?6\..*", "L4"),
        (r"g6e\..*", "L40S"),
        (r"a2-ultragpu-.*", "A100-SXM4-80GB"),
        (r"a2-(high|mega)gpu-.*", "A100-SXM4-40GB"),
        (r"a3-ultragpu-.*", "H200"),
        (r"a3-(high|mega|edge)gpu-.*", "H100-80GB-HBM3"),
        (r"a4-highgpu-.*", "B200"),
        (r"g2-standard-.*", "L4"),
        (r"Standard_NC[0-9]+r?s_v2", "Tesla-P100-PCIE-16GB"),
        (r"Standard_NC[0-9]+r?s_v3", "Tesla-V100-PCIE-16GB"),
        (r"Standard_ND40rs_v2", "Tesla-V100-SXM2-32GB"),
        (r"Standard_ND[0-9]+r?s", "Tesla-P40"),
        (r"Standard_N[CV][0-9]+as_T4_v3", "Tesla-T4"),
        (r"Standard_NC[0-9]+ads_A100_v4", "A100-80GB-PCIe"),
        (r"Standard_ND96asr(_A100)?_v4", "A100-SXM4-40GB"),
        (r"Standard_ND96amsr_A100_v4", "A100-SXM4-80GB"),
        (r"Standard_NV(36adm|36ad|72ad)s_A10_v5", "A10"),
        (r"Standard_NC[0-9]+ads_H100_v5", "H100-NVL"),
        (r"Standard_ND96isr[a-z]*_H100_v5", "H100-80GB-HBM3"),
        (r"Standard_ND96isr[a-z]*_H200_v5", "H200"),
        (r"Standard_ND96isr[a-z]*_MI300X_v5", "MI300X"),
    )
)


def labels_of(vendor: str) -> tuple[CardLabels, ...]:
    """The keys that count for cards of a vendor, its own first."""
    own = OF_VENDOR.get(vendor)
    return (OF_CLOUDS,) if own is None else (own, OF_CLOUDS)


def model_label(labels: Mapping[str, Any], vendor: str, other: str = "") -> str:
    """The model that labels state: the vendor's, else the label `other`, else a cloud's, in capitals and without brand.

    A cloud's type of machine says more than its name of a model, which leaves out the memory.
    """
    own = OF_VENDOR.get(vendor)
    stated = text_label(labels, (*(own.models if own else ()), other)) or machine_model(labels)
    return stated or text_label(labels, OF_CLOUDS.models).lower().removeprefix(_CLOUD_PREFIX).upper()


def machine_model(labels: Mapping[str, Any]) -> str:
    """The model of the cards in a cloud's machine of the labelled type; "" where it is not known."""
    kind = text_label(labels, (_INSTANCE_TYPE,))
    return next((model for pattern, model in _MACHINES if pattern.fullmatch(kind)), "")


def text_label(labels: Mapping[str, Any], keys: Iterable[str]) -> str:
    """The value of the first of these labels that is there; "" without any."""
    return next((str(labels[key]) for key in keys if labels.get(key)), "")


def number_label(labels: Mapping[str, Any], keys: Iterable[str]) -> int:
    """The number that the first of these labels with one states, rounded down; 0 without any."""
    return next(filter(None, (whole_number(str(labels.get(key, ""))) for key in keys)), 0)


def whole_number(text: str) -> int:
    """A number of 0 or more, rounded down; 0 for any other text."""
    try:
        value = parse(text)
    except QuantityError:
        return 0
    return max(value.numerator // value.denominator, 0)


def parts_label(labels: Mapping[str, Any], vendor: str) -> str:
    """The label, with its value, that says that a Node's amounts count parts of cards (MIG); "" without one."""
    product = str(labels.get(GPU_PRODUCT, ""))
    if vendor == NVIDIA and _MIG_MODEL in product:
        return f"{GPU_PRODUCT}={product}"
    keys = (key for one in labels_of(vendor) for key in one.parts)
    stated = ((key, str(labels.get(key) or "")) for key in keys)
    return next((f"{key}={value}" for key, value in stated if value and not value.startswith(_WHOLE)), "")


def is_shared(labels: Mapping[str, Any]) -> bool:
    """Whether NVIDIA's discovery says that its plugin offers each card several times under the cards' own name."""
    return str(labels.get(GPU_PRODUCT, "")).endswith(_SHARED_MODEL)
