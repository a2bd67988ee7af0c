"""Names of device models: one model is spelled in several ways.

Koordinator's label gpu-model is the product's name without "NVIDIA", blanks as dashes. NVIDIA's feature discovery keeps
the word in nvidia.com/gpu.product and adds "-SHARED" if its device plugin shares cards by time. HAMi puts "NVIDIA-"
before names that have the word already.
"""

from typing import Final

MODEL: Final = "koordgate.io/model"  # a label that each device has for selectors: its model
GPU_PRODUCT: Final = "nvidia.com/gpu.product"  # NVIDIA's feature discovery: labels of a Node
GPU_MEMORY_MIB: Final = "nvidia.com/gpu.memory"
GPU_COUNT: Final = "nvidia.com/gpu.count"
MODEL_LABELS: Final = frozenset({MODEL, GPU_PRODUCT, "node.koordinator.sh/gpu-model"})


def model_name(spelled: str) -> str:
    """Reduce a model to one spelling: `NVIDIA-A100-SXM4-80GB-SHARED` is `A100-SXM4-80GB`."""
    return spelled.removeprefix("NVIDIA-").removeprefix("NVIDIA-").removesuffix("-SHARED")
