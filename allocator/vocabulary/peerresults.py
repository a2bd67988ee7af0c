"""Names under which other products state what a Pod that they bound holds, by product."""

from typing import Final

from allocator.vocabulary.adopted import Product

HAMI_ALLOCATED: Final = "hami.io/vgpu-devices-allocated"
HAMI_TO_ALLOCATE: Final = "hami.io/vgpu-devices-to-allocate"
HAMI_NODE: Final = "hami.io/vgpu-node"
HAMI_TIME: Final = "hami.io/vgpu-time"
HAMI_PHASE: Final = "hami.io/bind-phase"
HAMI_BIND_TIME: Final = "hami.io/bind-time"
VOLCANO_VGPU: Final = "volcano.sh/vgpu-ids-new"
VOLCANO_INDEX: Final = "volcano.sh/gpu-index"
VOLCANO_PREDICATE_TIME: Final = "volcano.sh/predicate-time"
GPUSHARE_IDX: Final = "ALIYUN_COM_GPU_MEM_IDX"
GPUSHARE_POD: Final = "ALIYUN_COM_GPU_MEM_POD"
GPUSHARE_DEV: Final = "ALIYUN_COM_GPU_MEM_DEV"
GPUSHARE_ASSIGNED: Final = "ALIYUN_COM_GPU_MEM_ASSIGNED"
GPUSHARE_ASSUMED_AT: Final = "ALIYUN_COM_GPU_MEM_ASSUME_TIME"
KAI_GROUP: Final = "runai-gpu-group"  # a label; that of several groups is runai-gpu-group/<group>
KAI_CONTAINER: Final = "nvidia.com/container."  # annotations about a container, whose name and one of these follow:
KAI_DEVICES: Final = ".gpus.devices"  # UUIDs, or CDI names that end in them, separated by commas
KAI_REQUEST: Final = ".gpu-memory.request"  # bytes of each of them
KAI_LIMIT: Final = ".gpu-memory.limit"
KAI_RESERVED: Final = "run.ai/reserve_for_gpu_index"  # on a reservation Pod: the UUID of its card

SCHEDULERS: Final = {
    Product.HAMI: ("hami-scheduler",),
    Product.VOLCANO: ("volcano",),
    Product.GPUSHARE: (),
    Product.KAI: ("kai-scheduler", "runai-scheduler"),
}
"""The names of each product's scheduler; gpushare extends whichever scheduler a cluster has."""
