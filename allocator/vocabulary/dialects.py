"""The table of dialects: every name under which the built-in device types are asked for.

Every installation reads `DIALECTS`; of other products' dialects (`PEERS`), each is off until the settings turn it on.
Admission, the check that a Pod uses one dialect only, the view of Pods and the chart's match conditions all use these
tables. What a name means follows the product's own sources, which each entry cites by repository and file;
docs/dialects.md says where koordgate differs. A further dialect needs only one more entry here, and `make generate`.
"""

from typing import Final

from allocator.vocabulary.dialect import Dialect, Form, Selects, Term
from allocator.vocabulary.names import (
    DOMAINS,
    FPGA,
    GPU,
    GPU_CORE,
    GPU_MEMORY,
    GPU_MEMORY_RATIO,
    GPU_SHARED,
    KUBERNETES_DOMAIN,
    NVIDIA,
    NVIDIA_GPU,
    RDMA,
    TYPE_FPGA,
    TYPE_GPU,
    TYPE_RDMA,
)

MIB: Final = 2**20
GIB: Final = 2**30
VOLCANO_MEMORY: Final = "volcano.sh/gpu-memory"
VOLCANO_NUMBER: Final = "volcano.sh/gpu-number"
_ALL: Final = 100  # percent of a device's memory

# Project-HAMi/HAMi, pkg/device/nvidia/device.go: MutateAdmission and GenerateResourceRequests; pkg/device/devices.go:
# CheckType and CheckUUID; the defaults are those of charts/hami.
_HAMI: Final = Dialect(
    "hami",
    TYPE_GPU,
    (
        Term(NVIDIA_GPU, GPU_SHARED),
        Term("nvidia.com/gpumem", GPU_MEMORY, MIB, each=True, sized=True),
        Term("nvidia.com/gpumem-percentage", GPU_MEMORY_RATIO, each=True),
        Term("nvidia.com/gpucores", GPU_CORE, each=True, clamped=True),
        Term("nvidia.com/priority", ""),
    ),
    own=False,
    whole=True,
    memory=_ALL,
    defaulted=True,
    vendor=NVIDIA,
    title="HAMi",
    both=GPU_MEMORY,
    selects=Selects(
        models="nvidia.com/use-gputype",
        not_models="nvidia.com/nouse-gputype",
        ids="nvidia.com/use-gpuuuid",
        not_ids="nvidia.com/nouse-gpuuuid",
        numa="nvidia.com/numa-bind",
        mode="nvidia.com/vgpu-mode",
        given=("hami-core",),
        unread=(
            "hami.io/gpu-scheduler-policy",
            "hami.io/node-scheduler-policy",
            "hami.io/device-scoring-weights",
        ),
    ),
)

# volcano-sh/volcano, pkg/scheduler/api/devices/util.go: ExtractResourceRequest; devices/nvidia/vgpu/utils.go: how it
# chooses a card; devices/config/config.go: the defaults.
_VOLCANO: Final = Dialect(
    "volcano",
    TYPE_GPU,
    (
        Term("volcano.sh/vgpu-number", GPU_SHARED),
        Term("volcano.sh/vgpu-memory", GPU_MEMORY, MIB, each=True, sized=True),
        Term("volcano.sh/vgpu-memory-percentage", GPU_MEMORY_RATIO, each=True),
        Term("volcano.sh/vgpu-cores", GPU_CORE, each=True),
    ),
    own=False,
    memory=_ALL,
    vendor=NVIDIA,
    title="Volcano vGPU",
    both=GPU_MEMORY_RATIO,
    needs=("volcano.sh/vgpu-number", "volcano.sh/vgpu-memory"),
    selects=Selects(
        models="nvidia.com/use-gputype",
        not_models="nvidia.com/nouse-gputype",
        models_first=True,
        ids="volcano.sh/vgpu-use-gpuuuid",
        not_ids="volcano.sh/vgpu-nouse-gpuuuid",
        mode="volcano.sh/vgpu-mode",
        given=("hami-core",),
        unread=("volcano.sh/vgpu-podgroup-policy",),
    ),
)

# volcano-sh/volcano, pkg/scheduler/api/devices/nvidia/gpushare/share.go; plugins/deviceshare/deviceshare.go: a cluster
# reads one of the two names.
_VOLCANO_SHARE: Final = Dialect(
    "volcano-share",
    TYPE_GPU,
    (
        Term(VOLCANO_MEMORY, GPU_MEMORY, MIB, sized=True),
        Term(VOLCANO_NUMBER, GPU, counts=True),
    ),
    own=False,
    one_device=True,
    vendor=NVIDIA,
    title="Volcano GPU share",
    either=(VOLCANO_MEMORY, VOLCANO_NUMBER),
)

# AliyunContainerService/gpushare-scheduler-extender, pkg/utils/pod.go and pkg/cache/nodeinfo.go: the sum of a Pod's
# containers is taken of one card. Nodes report aliyun.com/gpu-count; of a Pod it is not read.
_GPUSHARE: Final = Dialect(
    "gpushare",
    TYPE_GPU,
    (
        Term("aliyun.com/gpu-mem", GPU_MEMORY, GIB, sized=True),
        Term("aliyun.com/gpu-count", ""),
    ),
    own=False,
    one_device=True,
    vendor=NVIDIA,
    title="Alibaba Cloud gpushare",
)

# kai-scheduler/KAI-Scheduler, pkg/common/constants/constants.go: the names; pkg/common/resources/gpu_sharing.go: what
# they mean; gpu_sharing_container_ref.go: which container; gpu_sharing_validation.go: what is refused;
# pkg/binder/plugins/nvfractions/nv_fractions.go: what its binder writes.
_CONTAINER: Final = "nvidia.com/container."
_BY_KAI: Final = "is written by KAI's binder when it binds a Pod; remove it"
_EARLIER: Final = "is an earlier name of KAI's, which is not read; write nvidia.com/container.CONTAINER"
_KAI: Final = Dialect(
    "kai",
    TYPE_GPU,
    (),
    annotations=(
        Term("gpu-fraction", GPU, 100, each=True, decimal=True, below=100),
        Term("gpu-memory", GPU_MEMORY, MIB, each=True, sized=True),
        Term("gpu-fraction-num-devices", GPU_SHARED),
        Term("gpu-fraction.limit", "", decimal=True, limits=GPU_MEMORY_RATIO, beside="gpu-fraction"),
        Term("gpu-memory.limit", "", quantity=True, limits=GPU_MEMORY, beside="gpu-memory"),
    ),
    container="gpu-fraction-container-name",
    own=False,
    title="KAI Scheduler and Run:ai",
    needs=("gpu-fraction", "gpu-memory", f"{_CONTAINER}CONTAINER.gpu-memory.request"),
    either=("gpu-fraction", "gpu-memory"),
    selects=Selects(mode="kai.scheduler/gpu-compute-sharing-mode", given=("time-slicing",)),
    forms=(
        Form(_CONTAINER, ".gpu-memory.request", GPU_MEMORY),
        Form(_CONTAINER, ".gpu-memory.limit", limits=GPU_MEMORY),
        Form("kai.scheduler/container.", ".gpu-memory.portion.limit", limits=GPU_MEMORY_RATIO, beside="gpu-fraction"),
        Form(_CONTAINER, ".gpu-compute.mode", mode=True),
        Form(_CONTAINER, ".gpu-compute.request", refusal="is not read; gpu-fraction states compute and memory alike"),
        Form(_CONTAINER, ".gpu-compute.portion", refusal=_BY_KAI),
        Form(_CONTAINER, ".gpus.devices", refusal=_BY_KAI),
        *(
            Form("nvidia.cdi.k8s.io/", end, refusal=f"{_EARLIER}{end}")
            for end in (".gpu-memory.request", ".gpu-memory.limit")
        ),
        Form("nvidia.cdi.k8s.io/", ".gpus.devices", refusal=_BY_KAI),
    ),
)

# tkestack/gpu-admission, pkg/util/util.go and pkg/algorithm/allocate.go; tkestack/gpu-manager,
# pkg/services/allocator/nvidia/allocator.go: allocateOne; pkg/types/types.go: the memory block.
_TENCENT: Final = Dialect(
    "tencent",
    TYPE_GPU,
    (
        Term("tencent.com/vcuda-core", GPU_CORE),
        Term("tencent.com/vcuda-memory", GPU_MEMORY, 256 * MIB),
    ),
    own=False,
    vendor=NVIDIA,
    title="Tencent gpu-manager",
    needs=("tencent.com/vcuda-core",),
    full_core=True,
    selects=Selects(unread=("tencent.com/vcuda-core-limit",)),
)

# elastic-ai/elastic-gpu-scheduler, pkg/scheduler/allocate.go: NewGPURequest; elastic-ai/elastic-gpu,
# apis/elasticgpu/v1alpha1/types.go: the names in code. The scheduler's README says elasticgpu.io. The unit of memory
# differs between its parts, so that there is no default.
_ELASTIC: Final = Dialect(
    "elastic-gpu",
    TYPE_GPU,
    (
        *(
            term
            for domain in ("elasticgpu.io", "elasticgpu.com")
            for term in (
                Term(f"{domain}/gpu-core", GPU_CORE),
                Term(f"{domain}/gpu-memory", GPU_MEMORY, 0, sized=True),
            )
        ),
        Term("tke.cloud.tencent.com/qgpu-core", GPU_CORE),
        Term("tke.cloud.tencent.com/qgpu-memory", GPU_MEMORY, 0, sized=True),
        Term("nano-gpu/gpu-percent", GPU),
    ),
    own=False,
    vendor=NVIDIA,
    title="elastic-gpu and nano-gpu",
    full_core=True,
)


def _plain(name: str, resource: str, vendor: str, title: str) -> Dialect:
    """Whole devices of one vendor, as its device plugin counts them."""
    return Dialect(name, TYPE_GPU, (Term(resource, GPU, counts=True),), own=False, vendor=vendor, title=title)


PEERS: Final = (
    _HAMI,
    _VOLCANO,
    _VOLCANO_SHARE,
    _GPUSHARE,
    _KAI,
    _TENCENT,
    _ELASTIC,
    # koordinator-sh/koordinator, pkg/scheduler/plugins/deviceshare/utils.go: whole devices.
    _plain("amd", "amd.com/gpu", "amd", "AMD's device plugin"),
    _plain("dcu", "dcu.com/gpu", "hygon", "Hygon's device plugin"),
)


def _in_domain(domain: str, kind: str, *tails: str) -> Dialect:
    """Spell a type's own tails in one of the two domains, in the tails' own units."""
    terms = tuple(Term(f"{domain}/{tail}", tail) for tail in tails)
    return Dialect(domain, kind, terms, equal=domain != KUBERNETES_DOMAIN)


DIALECTS: Final = (
    *(_in_domain(domain, TYPE_GPU, GPU, GPU_CORE, GPU_MEMORY, GPU_MEMORY_RATIO, GPU_SHARED) for domain in DOMAINS),
    Dialect(NVIDIA_GPU, TYPE_GPU, (Term(NVIDIA_GPU, GPU, counts=True),), own=False, vendor=NVIDIA),
    *(_in_domain(domain, TYPE_RDMA, RDMA) for domain in DOMAINS),
    *(_in_domain(domain, TYPE_FPGA, FPGA) for domain in DOMAINS),
)
