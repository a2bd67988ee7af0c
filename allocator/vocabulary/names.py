"""The vocabulary: every resource, annotation, label, environment and model name that koordgate reads or writes.

The same device resources exist in two domains: `kubernetes.io` (the device proposal) and `koordinator.sh` (today's
Koordinator). Both are understood on input; the settings choose the one that is written. Inside koordgate a resource is
identified by its *tail*, the part after the domain ("gpu-core").

One device model is spelled in several ways. Koordinator's label gpu-model is the product's name without "NVIDIA",
blanks as dashes. NVIDIA's feature discovery keeps the word in nvidia.com/gpu.product and adds "-SHARED" if its device
plugin shares cards by time. HAMi puts "NVIDIA-" before names that have the word already.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final, NamedTuple

KUBERNETES_DOMAIN: Final = "kubernetes.io"
KOORDINATOR_DOMAIN: Final = "koordinator.sh"
DOMAINS: Final = (KUBERNETES_DOMAIN, KOORDINATOR_DOMAIN)

# Device types, as Device objects and the device-allocated annotation spell them.
TYPE_GPU: Final = "gpu"
TYPE_RDMA: Final = "rdma"
TYPE_FPGA: Final = "fpga"

# Tails of resource names. Units: percent of a device, percent, bytes, percent, number of devices.
GPU: Final = "gpu"
GPU_CORE: Final = "gpu-core"
GPU_MEMORY: Final = "gpu-memory"
GPU_MEMORY_RATIO: Final = "gpu-memory-ratio"
GPU_SHARED: Final = "gpu.shared"
RDMA: Final = "rdma"  # percent of a device
FPGA: Final = "fpga"

NVIDIA_GPU: Final = "nvidia.com/gpu"
NVIDIA: Final = "nvidia"  # the vendor, as the label gpu-vendor spells it

# The maps of a container's `resources`, in the order in which messages name them.
RESOURCE_MAPS: Final = ("requests", "limits")

# Annotations of Koordinator (its apis/extension).
DEVICE_ALLOCATED: Final = "scheduling.koordinator.sh/device-allocated"
RESOURCE_STATUS: Final = "scheduling.koordinator.sh/resource-status"
DEVICES_CHECKPOINTS: Final = ("node.koordinator.sh/devices-checkpoints", "node.koordinator.sh/gpu-checkpoints")

# Annotations of our own.
ORIGINAL_REQUEST: Final = "koordgate.io/original-request"
DIALECT: Final = "koordgate.io/dialect"  # on a Pod: the other product's dialect that it was translated from
OWN_CPUS: Final = "koordgate.io/own-cpus"  # on a Pod: the containers that run on its own CPUs, separated by commas
NUMA_SCOPE: Final = "koordgate.io/numa-scope"  # on a Pod: NUMA policies of nodes hold for it
RELEASED: Final = "koordgate.io/released"  # on a Node: when resources were last released while Pods waited
HEADROOM: Final = "koordgate.io/headroom"  # a taint: a Node that is short of CPU or memory for its free devices
CORDONED: Final = "koordgate.io/cordoned-devices"  # on a Device object: ids, separated by commas
ISOLATION_PROVIDER: Final = "koordinator.sh/gpu-isolation-provider"  # a label of a Pod and of the Nodes that have it
DEVICE_ORDER: Final = "koordgate.io/device-order"  # on a Pod, or as a Node's label: a `DeviceOrder`
DEVICE_SHARING: Final = "koordgate.io/device-sharing"  # on a Pod: how its containers share what it holds
DEVICE_QUOTAS: Final = "koordgate.io/device-quotas"  # on a Pod: what each container may use of its devices
LIMITS: Final = "koordgate.io/limits"  # on a Pod: "require" if its memory limits must be kept
GANG_TOGETHER: Final = "koordgate.io/gang-all-or-nothing"  # on a Pod: its gang is bound as a whole or not at all
GANG_GATE: Final = "koordgate.io/gang"  # a scheduling gate: room for the Pod's whole gang is not held yet
DEVICE_ID: Final = "koordgate.io/uuid"  # a label that each device has for selectors: its id
CLASSES: Final = "koordgate.io/classes"  # on a Node: its software classes
DEVICE_COUNTS: Final = "koordgate.io/devices"  # on a Device object: how many of each type are healthy, for people
RESERVED_MEMORY: Final = "koordgate.io/reserved-memory"  # a label of a GPU in a Device object: bytes the driver keeps
AGREEMENT: Final = "koordgate.io/pod-agreement"  # on a Device object: whether Pods have what was allocated to them
MODE_LABEL: Final = "koordgate.io/mode"  # a label of a Namespace: a `Mode`
VISIBLE_DEVICES_PREFIX: Final = "visible-devices.koordgate.io/"
_DEVICE_QUOTAS_PREFIX: Final = ".device-quotas.koordgate.io/"
# What NVIDIA's container toolkit is told of a container's memory, in MiB: the container's name follows.
MEMORY_REQUEST_PREFIX: Final = "nvidia-gpu-memory-request.koordgate.io/"
MEMORY_LIMIT_PREFIX: Final = "nvidia-gpu-memory-limit.koordgate.io/"
CORE_LIMIT_PREFIX: Final = "gpu-core-limit.koordgate.io/"  # for the enforcer, in percent of each card
ENFORCER_CARDS_PREFIX: Final = "nri.koordgate.io/"  # the cards that only the enforcer may show a container, by UUID
# The NRI plugins without which the container runtime's default validator refuses a container, whose name follows. It
# precedes the keys for all containers of a Pod, required-plugins.noderesource.dev and .../pod, which are the author's
# (containerd/nri, pkg/plugin).
REQUIRED_PLUGINS_PREFIX: Final = "required-plugins.noderesource.dev/container."
ASKED_LIMIT_PREFIX: Final = "gpu-memory-limit.koordgate.io/"  # on a Pod, with a container's name behind it

# Annotations by which software of the nodes shows containers devices. It compares the beginnings of keys, which need no
# slash: NVIDIA's NRI plugin also reads the bare `nvidia.cdi.k8s.io`, and the prefixes of NVIDIA's runtime are settings.
_CDI_BEGINNINGS: Final = ("nvidia.cdi.k8s.io", "cdi.k8s.io")
_FRACTIONS: Final = ("nvidia.com/container.", ".gpus.devices")  # NVIDIA's fractioning operator: beginning and end

_DECIDED_BEGINNINGS: Final = (
    MEMORY_REQUEST_PREFIX,
    MEMORY_LIMIT_PREFIX,
    CORE_LIMIT_PREFIX,
    ENFORCER_CARDS_PREFIX,
    REQUIRED_PLUGINS_PREFIX,
)

# Resources that quotas count (`allocator.request.quotaamounts`). No Node has them; schedulers are told to ignore them.
QUOTA_DOMAIN: Final = "quota.koordgate.io"
QUOTA_CPUS: Final = f"{QUOTA_DOMAIN}/cpus"  # CPUs of a Pod's own
_QUOTA_PREFIX: Final = f"{QUOTA_DOMAIN}/"

REPORTER_MANAGER: Final = "koordgate-reporter"  # the field manager of what the reporter writes

MIRROR_POD: Final = "kubernetes.io/config.mirror"

VISIBLE_DEVICES_ENV: Final = "NVIDIA_VISIBLE_DEVICES"
CUDA_DEVICES_ENV: Final = "CUDA_VISIBLE_DEVICES"

DEFAULT_SCHEDULER: Final = "default-scheduler"
KOORD_SCHEDULER: Final = "koord-scheduler"


def visible_devices(container: str, kind: str = TYPE_GPU) -> str:
    """Name the annotation that lists a container's devices of a type; any container's name fits after the slash."""
    return f"{VISIBLE_DEVICES_PREFIX if kind == TYPE_GPU else f'{kind}.{VISIBLE_DEVICES_PREFIX}'}{container}"


def shown_by(key: str) -> tuple[str, str] | None:
    """Return the type and the container of a visible-devices annotation; None for any other annotation."""
    before, prefix, container = key.partition(VISIBLE_DEVICES_PREFIX)
    if not prefix or (before and not before.endswith(".")):
        return None
    return (before[:-1] or TYPE_GPU, container)


def enforcer_cards(container: str) -> str:
    """Name the annotation that lists the cards which only the enforcer may show a container."""
    return f"{ENFORCER_CARDS_PREFIX}{container}"


def fractions_cards(container: str) -> str:
    """Name the annotation by which NVIDIA's fractioning operator shows a container cards."""
    beginning, end = _FRACTIONS
    return f"{beginning}{container}{end}"


def required_plugins(container: str) -> str:
    """Name the annotation that lists the NRI plugins without which a container is not created."""
    return f"{REQUIRED_PLUGINS_PREFIX}{container}"


def device_quota(container: str, tail: str) -> str:
    """Name the annotation that states what a container may use of each of its devices of one resource."""
    return f"{tail}{_DEVICE_QUOTAS_PREFIX}{container}"


def asked_limit(container: str) -> str:
    """Name the annotation that states the most memory which a container may use of each of its GPUs."""
    return f"{ASKED_LIMIT_PREFIX}{container}"


def is_delivery_annotation(key: str) -> bool:
    """Return whether software of the nodes, which is not koordgate's, shows a container devices by an annotation."""
    beginning, end = _FRACTIONS
    return key.startswith(_CDI_BEGINNINGS) or (key.startswith(beginning) and key.endswith(end))


def is_allocation_annotation(key: str) -> bool:
    """Return whether an annotation states what a Pod holds, or shows it devices; only the bind may write it."""
    stated = key in {DEVICE_ALLOCATED, DEVICE_QUOTAS, RESOURCE_STATUS}
    stated = stated or key.startswith(_DECIDED_BEGINNINGS)
    return stated or _DEVICE_QUOTAS_PREFIX in key or shown_by(key) is not None or is_delivery_annotation(key)


def is_quota_resource(name: str) -> bool:
    """Return whether a resource is one that only quotas count."""
    return name.startswith(_QUOTA_PREFIX)


MODEL: Final = "koordgate.io/model"  # a label that each device has for selectors: its model
GPU_PRODUCT: Final = "nvidia.com/gpu.product"  # NVIDIA's feature discovery: labels of a Node
GPU_MEMORY_MIB: Final = "nvidia.com/gpu.memory"
GPU_COUNT: Final = "nvidia.com/gpu.count"
MODEL_LABELS: Final = frozenset({MODEL, GPU_PRODUCT, "node.koordinator.sh/gpu-model"})


def model_name(spelled: str) -> str:
    """Reduce a model to one spelling: `NVIDIA-A100-SXM4-80GB-SHARED` is `A100-SXM4-80GB`."""
    return spelled.removeprefix("NVIDIA-").removeprefix("NVIDIA-").removesuffix("-SHARED")


class Mode(StrEnum):
    """The mode of a namespace."""

    ENFORCE = "enforce"
    """Pods are translated, validated, given devices, and guarded."""
    SHADOW = "shadow"
    """What would be done is reported; nothing is changed, and nobody is refused."""
    OFF = "off"
    """Nothing is done."""


def mode_of(labels: Mapping[str, object], default: Mode) -> Mode:
    """The mode that the labels of a Namespace state; the default where they state none that is known.

    The selectors of the chart's webhooks say the same, so that the API server decides alike while no replica answers.
    """
    stated = labels.get(MODE_LABEL)
    return next((mode for mode in Mode if mode == stated), default)


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
