"""The vocabulary: every resource, annotation, label and environment name that koordgate reads or writes.

Two domains spell the same device resources: `kubernetes.io` (the device proposal of seed document 1) and
`koordinator.sh` (today's Koordinator). Both are understood on input; one, by configuration, is written.
A resource is known inside koordgate by its *tail*, the part after the domain ("gpu-core").
"""

from typing import Final

KUBERNETES_DOMAIN: Final = "kubernetes.io"
KOORDINATOR_DOMAIN: Final = "koordinator.sh"
DOMAINS: Final = (KUBERNETES_DOMAIN, KOORDINATOR_DOMAIN)

# Device types, as Device objects and the device-allocated annotation spell them.
TYPE_GPU: Final = "gpu"

# Tails of resource names. Units: percent of a device, percent, bytes, percent, number of devices.
GPU: Final = "gpu"
GPU_CORE: Final = "gpu-core"
GPU_MEMORY: Final = "gpu-memory"
GPU_MEMORY_RATIO: Final = "gpu-memory-ratio"
GPU_SHARED: Final = "gpu.shared"
GPU_TAILS: Final = (GPU, GPU_CORE, GPU_MEMORY, GPU_MEMORY_RATIO, GPU_SHARED)

NVIDIA_GPU: Final = "nvidia.com/gpu"

# Annotations of Koordinator (its apis/extension).
DEVICE_ALLOCATED: Final = "scheduling.koordinator.sh/device-allocated"
RESOURCE_STATUS: Final = "scheduling.koordinator.sh/resource-status"
DEVICES_CHECKPOINTS: Final = ("node.koordinator.sh/devices-checkpoints", "node.koordinator.sh/gpu-checkpoints")

# Annotations of our own.
ORIGINAL_REQUEST: Final = "koordgate.io/original-request"
RELEASED: Final = "koordgate.io/released"  # on a Node: when something was last given back while Pods waited
VISIBLE_DEVICES_PREFIX: Final = "visible-devices.koordgate.io/"

MIRROR_POD: Final = "kubernetes.io/config.mirror"

VISIBLE_DEVICES_ENV: Final = "NVIDIA_VISIBLE_DEVICES"
NO_DEVICES: Final = "void"

DEFAULT_SCHEDULER: Final = "default-scheduler"
KOORD_SCHEDULER: Final = "koord-scheduler"


def resource_name(domain: str, tail: str) -> str:
    """Spell the resource with this tail in a domain: `kubernetes.io/gpu-core`."""
    return f"{domain}/{tail}"


# resource name -> (dialect, tail); a dialect is named by its domain, the plain one by its resource.
DEVICE_RESOURCES: Final[dict[str, tuple[str, str]]] = {
    **{resource_name(domain, tail): (domain, tail) for domain in DOMAINS for tail in GPU_TAILS},
    NVIDIA_GPU: (NVIDIA_GPU, GPU),
}


def visible_devices(container: str) -> str:
    """Name the annotation that holds a container's visible devices; a container's name always fits as its tail."""
    return VISIBLE_DEVICES_PREFIX + container


def is_allocation_annotation(key: str) -> bool:
    """Tell whether an annotation says who holds what: only the bind may write it."""
    return key in {DEVICE_ALLOCATED, RESOURCE_STATUS} or key.startswith(VISIBLE_DEVICES_PREFIX)
