"""Dialects that no installation reads, each as one entry of the table: a share per card, and annotations."""

from allocator.vocabulary.devicetype import BUILT_IN, GPU_TYPE
from allocator.vocabulary.dialects import Dialect, Term
from allocator.vocabulary.names import GPU, GPU_CORE, GPU_MEMORY, GPU_MEMORY_RATIO, GPU_SHARED, NVIDIA_GPU

MIB = 2**20
# `nvidia.com/gpu` alone means whole cards; beside these names it is the number of cards to share.
PER_CARD = Dialect(
    "per card",
    GPU_TYPE.name,
    (
        Term(NVIDIA_GPU, GPU_SHARED),
        Term("nvidia.com/gpumem", GPU_MEMORY, factor=MIB, each=True),
        Term("nvidia.com/gpumem-percentage", GPU_MEMORY_RATIO, each=True),
        Term("nvidia.com/gpucores", GPU_CORE, each=True),
    ),
    own=False,
    whole=True,
    memory=100,
)
BLOCKS = Dialect(
    "blocks",
    GPU_TYPE.name,
    (Term("example.com/core", GPU_CORE), Term("example.com/blocks", GPU_MEMORY, factor=256 * MIB)),
    own=False,
)
FRACTION = Dialect(
    "fraction",
    GPU_TYPE.name,
    (),
    annotations=(
        Term("gpu-fraction", GPU, factor=100, decimal=True),
        Term("gpu-fraction-memory", GPU_MEMORY, factor=MIB),
        Term("gpu-fraction-devices", GPU_SHARED),
    ),
    container="gpu-fraction-container",
    own=False,
)
TYPES = BUILT_IN.with_dialects([PER_CARD, BLOCKS, FRACTION])
