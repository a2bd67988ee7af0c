"""What other products state of a Pod that they bound: under which names, in which unit, for which containers."""

from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class Statement:
    """What a product states of a Pod that it bound, and what this means."""

    product: Product
    evidence: str  # the annotation or label that states it
    dialect: str  # in whose names its Pods ask. The unit of its memory is that of this dialect's installation.
    # whether its amounts are in that unit; otherwise the product has multiplied them, and they are MiB
    scaled: bool = True
    # whether each container of the Pod has its entry, init containers first. Otherwise only app containers that ask
    # have one.
    every: bool = False
    shrinks: bool = False  # whether the product lets go of what init containers have once all of them have ended


# Project-HAMi/HAMi, pkg/device/nvidia/device.go: GenerateResourceRequests multiplies; pkg/device/devices.go:
# Resourcereqs, an entry for each container; pkg/device/initContainer.go: the greater of init and app containers, and
# app containers alone once util.AllInitContainersSucceeded.
BY_HAMI: Final = Statement(Product.HAMI, HAMI_ALLOCATED, "hami", scaled=False, every=True, shrinks=True)
# volcano-sh/volcano, pkg/scheduler/api/devices/util.go: ExtractResourceRequest reads app containers that ask, and
# multiplies nothing.
BY_VGPU: Final = Statement(Product.VOLCANO, VOLCANO_VGPU, "volcano")
# devices/nvidia/gpushare/share.go: getGPUMemoryOfPod is the greater of init and app containers, for the Pod's life.
BY_SHARE: Final = Statement(Product.VOLCANO, VOLCANO_INDEX, "volcano-share")
# gpushare-scheduler-extender, pkg/utils/pod.go: GetGPUMemoryFromPodResource counts app containers. The device plugin
# (gpushare-device-plugin, pkg/gpu/nvidia/allocate.go) gives init containers the card too, and needs no annotation on a
# node with one card.
BY_GPUSHARE: Final = Statement(Product.GPUSHARE, GPUSHARE_IDX, "gpushare", shrinks=True)
# kai-scheduler/KAI-Scheduler, pkg/common/resources/gpu_sharing_container_ref.go: one container of a Pod shares cards.
BY_KAI: Final = Statement(Product.KAI, KAI_GROUP, "kai")
