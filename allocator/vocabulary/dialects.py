"""The table of dialects: every name under which device types are asked for, and what a number under it means.

Every installation reads `DIALECTS`; of other products' dialects (`PEERS`), each is off until the settings turn it on.
Admission, the check that a Pod uses one dialect only, the view of Pods and the chart's match conditions all use these
tables. What a name means follows the product's own sources, which each entry cites by repository and file;
docs/reference/dialects.md says where koordgate differs. A further dialect needs only one more entry here, and `make
generate`. A type that the settings declare brings a dialect of its own.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

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


@dataclass(frozen=True, slots=True)
class Term:
    """One name of a dialect."""

    name: str  # a resource's full name or, among a dialect's annotations, an annotation's key
    # what it states: one of the type's tails, its plain tail (all of a device alike), or its split (the number of
    # devices over which the other amounts are spread). "": nothing that is allocated; it is removed from the Pod's
    # resources and kept in the original-request annotation.
    states: str
    factor: int = 1  # the tail's units in one unit of the name: 2**20 for MiB of memory, 100 for a fraction of a device
    counts: bool = False  # it counts whole devices
    each: bool = False  # the amount is per device, not for the container's devices together
    template: str = ""  # it counts devices, each of which gives this template's share; "" for none
    # its unit depends on the product's installation (`Dialect.sized`); `factor` is the product's default, or 0 if it
    # has none
    sized: bool = False
    clamped: bool = False  # more than all of a device counts as all of it
    decimal: bool = False  # an annotation that states a decimal number; others state whole numbers
    below: int = 0  # the amount, in the tail's unit, must be less than this; 0 for no bound
    quantity: bool = False  # an annotation that states bytes as a Kubernetes quantity
    # an annotation that states the most memory which the container may use of each device, and not what it asks for:
    # the memory tail in whose unit; "" for any other
    limits: str = ""
    beside: str = ""  # the annotation whose amount such a limit raises; "": a limit alone is what is asked as well


@dataclass(frozen=True)
class Form:
    """Annotations that name the container which they are about in their key, between a beginning and an end."""

    beginning: str
    end: str
    states: str = ""  # what the value states of that container, as `Term.states`
    limits: str = ""  # as `Term.limits`
    beside: str = ""  # as `Term.beside`
    mode: bool = False  # it states how cards are to be shared, as `Selects.mode`
    refusal: str = ""  # why a Pod with such an annotation is refused, and what to write; "" if it is read

    @cached_property
    def term(self) -> Term:
        """What the value means, under a name with CONTAINER in the container's place."""
        return Term(
            self.key("CONTAINER"),
            self.states,
            each=bool(self.states),
            quantity=bool(self.states or self.limits) and not self.beside,
            decimal=bool(self.beside),
            limits=self.limits,
            beside=self.beside,
        )

    def key(self, container: str) -> str:
        """The annotation about a container."""
        return f"{self.beginning}{container}{self.end}"

    def container(self, key: str) -> str | None:
        """The container that an annotation of this form is about; None for any other annotation."""
        between = len(key) - len(self.end)
        if between < len(self.beginning) or not (key.startswith(self.beginning) and key.endswith(self.end)):
            return None
        return key[len(self.beginning) : between]


@dataclass(frozen=True, slots=True)
class Selects:
    """The annotations by which a dialect's Pods choose among devices; "" for none."""

    models: str = ""  # parts of model names, separated by commas: one of them must be in the device's model
    not_models: str = ""  # none of them may be in it
    models_first: bool = False  # where `models` is stated, `not_models` is not read
    ids: str = ""  # ids of devices, separated by commas, of which the device must be one
    not_ids: str = ""  # ids of devices that are not to be used
    numa: str = ""  # "true" keeps each container's devices in one NUMA node
    mode: str = ""  # how cards are to be shared
    given: tuple[str, ...] = ()  # the values of `mode` that mean no more than koordgate does; others are refused
    unread: tuple[str, ...] = ()  # annotations that have no effect here, about which the author is warned

    @property
    def keys(self) -> tuple[str, ...]:
        """All of these annotations."""
        read = (self.models, self.not_models, self.ids, self.not_ids, self.numa, self.mode)
        return (*filter(None, read), *self.unread)


@dataclass(frozen=True)
class Dialect:
    """One way to ask for devices of one type.

    A name may belong to several dialects of a type: `nvidia.com/gpu` counts whole cards by itself and, beside HAMi's
    names, the cards of which a share is taken. A Pod uses the first dialect of the table that has all the names that
    the Pod writes.
    """

    name: str  # unique among the dialects of its type
    type: str  # the device type's name
    terms: tuple[Term, ...]  # the resources of containers
    annotations: tuple[Term, ...] = ()  # annotations of a Pod that ask for devices for one container
    container: str = ""  # the annotation that names this container; without it, the first container is meant
    # only koordgate, or an author who knows it, writes these names. Otherwise they are some device plugin's, and a Pod
    # with them may belong to another scheduler.
    own: bool = True
    equal: bool = True  # kubernetes requires the request to equal the limit, as it does outside its own domain
    # all memory of devices, of which no core is stated, asks for whole devices. An explicit 0 of memory does not ask
    # for all of it in this sense.
    whole: bool = False
    memory: int = 0  # percent of each device's memory that is asked if the Pod states none; 0: the Pod must state some
    # bytes of each device's memory that are asked if a container states none, in place of `memory`; 0: none
    size: int = 0
    core: int = 0  # percent of each device's compute that are asked if a container states none; 0: none
    defaulted: bool = False  # an installation of the product may set `size` and `core`
    one_device: bool = False  # all containers of the Pod share one device, where they ask for parts of it
    vendor: str = ""  # whose devices are meant, in small letters; "": anybody's
    title: str = ""  # the product, as people name it; "" for koordgate's own names
    both: str = ""  # the tail of the memory that counts if a container states bytes and a ratio; "": that is refused
    needs: tuple[str, ...] = ()  # names of which a container must state one above 0; empty: any name asks for devices
    either: tuple[str, ...] = ()  # names of which a Pod may use one only
    full_core: bool = False  # 100 percent of compute or more are whole devices, whatever memory is stated beside them
    selects: Selects = Selects()  # the annotations by which its Pods choose among devices
    # annotations about the container that their key names. All of a Pod are about one container.
    forms: tuple[Form, ...] = ()

    @cached_property
    def by_name(self) -> Mapping[str, Term]:
        """Term's name -> term."""
        read = (form.term for form in self.forms if form.states or form.limits)
        return {term.name: term for term in (*self.terms, *self.annotations, *read)}

    @cached_property
    def beginnings(self) -> tuple[str, ...]:
        """The beginnings of its forms."""
        return tuple(dict.fromkeys(form.beginning for form in self.forms))

    def __str__(self) -> str:
        return f"{self.name} ({self.title})" if self.title else self.name

    def form_of(self, key: str) -> Form | None:
        """The form that an annotation has; None for any other annotation."""
        return next((form for form in self.forms if form.container(key) is not None), None)

    def has(self, names: Iterable[str]) -> bool:
        """Return whether all these names belong to the dialect."""
        return all(name in self.by_name for name in names)

    @property
    def sized(self) -> bool:
        """Whether the unit of its memory depends on the product's installation."""
        return any(term.sized for term in self.by_name.values())

    @property
    def unit(self) -> int:
        """Bytes in one unit of its memory; 0 if that is not known, or if it states no memory in such units."""
        return next((term.factor for term in self.by_name.values() if term.sized), 0)

    def with_unit(self, unit: int) -> "Dialect":
        """The same dialect in an installation in which one unit of its memory has so many bytes."""
        terms, annotations = (
            tuple(replace(term, factor=unit) if term.sized else term for term in known)
            for known in (self.terms, self.annotations)
        )
        return replace(self, terms=terms, annotations=annotations)


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
