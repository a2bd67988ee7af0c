"""The settings of `koordgate serve reporter`: one YAML file, read once, checked whole, then frozen."""

from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from allocator.devices.delivery import DeliveryRules
from allocator.quantity import QuantityError, to_int
from allocator.vocabulary.delivery import LimitProvider
from allocator.vocabulary.devicetype import DeviceType
from allocator.vocabulary.names import KUBERNETES_DOMAIN, TYPE_FPGA, TYPE_GPU, TYPE_RDMA
from koordgate.settings import Name, OwnType, Port, Seconds, Section, decode, device_types, read_text
from reporter import runtimefiles
from reporter.gpu.health import HealthPolicy
from reporter.inventory import FPGAS, PciMatch
from reporter.kubelet.devicecheckpoint import PATH as DEVICE_CHECKPOINT

_MAX_UNIT = 2**40
_HEX = r"^0x[0-9A-Fa-f]{1,4}$"
_CLASS = r"^0x[0-9A-Fa-f]{2}([0-9A-Fa-f]{2})?$"


class HostRoots(Section, frozen=True):
    """Where the host's folders are mounted."""

    sysfs: Name = "/sys"  # /sys
    proc: Name = "/proc"  # /proc, of the host's PID namespace
    cgroup: Name = "/sys/fs/cgroup"  # /sys/fs/cgroup; must be writable if cpusets are enforced
    kubelet: Name = "/var/lib/kubelet"
    state: Name = "/var/lib/koordgate"  # where the health of the cards is saved; must be writable
    dev: Name = "/dev"  # the reporter's own /dev


class ReporterServeSettings(Section, frozen=True):
    """Where health and metrics are served."""

    host: str = "127.0.0.1"  # address to listen on
    port: Port = 9446  # TCP port; 0 takes a free one


class KubeletSettings(Section, frozen=True):
    """The kubelet."""

    # its configuration file; if it is missing, the defaults are assumed
    configuration: Name = "/var/lib/kubelet/config.yaml"
    configz: bool = False  # ask the kubelet through the API server instead (needs the right to `nodes/proxy`)
    device_checkpoint: Name = DEVICE_CHECKPOINT  # its device manager's checkpoint
    # its PodResources socket, whose answers take precedence over the files; if "", it is not called
    pod_resources: str = "/var/lib/kubelet/pod-resources/kubelet.sock"


class Gpus(Section, frozen=True):
    """GPUs."""

    enabled: bool = True  # whether NVML is read; off on nodes that are known to have no GPU
    # whether the Node gets the labels nvidia.com/gpu.product, .memory and .count, if NVIDIA's feature discovery does
    # not write them
    discovery_labels: bool = True
    quiet_seconds: Seconds = 300.0  # how long a suspect card must show no errors before it recovers
    proving_seconds: Seconds = 600.0  # how long a recovering card must show none before it is in service again
    outage_seconds: Seconds = 60.0  # how long NVML may be out of reach before its cards take no new Pods

    @property
    def policy(self) -> HealthPolicy:
        """The settings as the health state machine takes them."""
        return HealthPolicy(quiet=self.quiet_seconds, proving=self.proving_seconds)


class RuntimeSettings(Section, frozen=True):
    """The container runtime, and how it is to show containers their cards."""

    # where its files are, as on the host. The last part of each path says what is in it: cdi (CDI specifications),
    # containerd, crio, or nvidia-container-runtime (the configuration of NVIDIA's runtime).
    directories: tuple[Name, ...] = ("/etc/cdi", "/var/run/cdi", "/etc/containerd", "/etc/nvidia-container-runtime")
    # as `devices.delivery` in the webhook's settings
    delivery: Literal["auto", "environment", "runtimeClass", "nvidia-nri", "nri"] = "auto"
    runtime_class_name: str = ""  # as `devices.runtimeClassName` there; "" if the cluster has none
    handler: str = ""  # the runtime handler of that RuntimeClass
    # the runtime handler of the reporter's own container, "" for the default one. null if the container was not given
    # NVIDIA_VISIBLE_DEVICES=all, so that nothing follows from the cards that it sees.
    own_handler: str | None = None
    policies: bool = False  # whether the GPU Operator's ClusterPolicy is read (needs the right to list them)

    def __post_init__(self) -> None:
        """Check what the folders are called."""
        for one in self.directories:
            if not one.startswith("/") or one.rpartition("/")[2] not in runtimefiles.NAMES:
                raise ValueError(
                    f"runtime.directories: {one} is no path of a folder that is called {', '.join(runtimefiles.NAMES)}"
                )

    @property
    def rules(self) -> DeliveryRules:
        """What the administrator decided about delivery."""
        return DeliveryRules(self.delivery, self.runtime_class_name, self.handler)


class PciType(Section, frozen=True):
    """Which PCI devices have a type."""

    type: Name  # one of `types`, or fpga
    vendor: Annotated[str, Meta(pattern=_HEX)]  # PCI vendor id, as 0x10ee
    device: Annotated[str, Meta(pattern=_HEX)] | None = None  # PCI device id; any if left out
    # upper byte, or upper two bytes, of the PCI class, as 0x12 or 0x1200; any if left out
    class_: Annotated[str, Meta(pattern=_CLASS)] | None = msgspec.field(default=None, name="class")
    model: str = ""  # what templates, boards and selectors call their model; nothing if empty
    # name of an amount of the type -> quantity that each device has; bytes and units must be stated
    amounts: dict[Name, str | int] = msgspec.field(default_factory=dict)

    @property
    def match(self) -> PciMatch:
        """The settings as the inventory takes them."""
        code = int(self.class_, 16) if self.class_ else None
        whole = self.class_ is not None and len(self.class_) > len("0x12")
        return PciMatch(
            self.type,
            vendor=int(self.vendor, 16),
            device=int(self.device, 16) if self.device else None,
            base_class=code >> 8 if code is not None and whole else code,
            sub_class=code & 0xFF if code is not None and whole else None,
            model=self.model,
            amounts=tuple((name, to_int(amount)) for name, amount in sorted(self.amounts.items())),
        )

    def check(self, kind: DeviceType) -> None:
        """Compare the amounts with what devices of the type are made of.

        Raises ValueError: one is unknown to the type or not a quantity, or a required one is missing.
        """
        stated = dict(self.match.amounts)
        strange = sorted(stated.keys() - set(kind.tails))
        if strange:
            raise ValueError(f"devices.pci: {strange[0]} is not an amount of {kind.name}; use {', '.join(kind.tails)}")
        for tail, percent in zip(kind.tails, kind.percent, strict=True):
            if not (percent or kind.simple or stated.get(tail)):
                raise ValueError(
                    f"devices.pci: PCI does not report how much {tail} a {kind.name} has; state it in amounts"
                )


class ReporterDeviceSettings(Section, frozen=True):
    """Devices beyond GPUs."""

    types: tuple[OwnType, ...] = ()  # own device types, as in the webhook's settings
    pci: tuple[PciType, ...] = ()  # which PCI devices have which type


class ReporterCpuSettings(Section, frozen=True):
    """CPUs."""

    enforce: bool = True  # whether cgroups' cpusets are written
    memory: bool = False  # whether cpuset.mems follows the NUMA nodes that were allocated


class ReporterMetricSettings(Section, frozen=True):
    """Metrics."""

    # whether metrics name the Pods that hold devices. Whoever reaches the port reads them without a token.
    pods: bool = False


class HamiCore(Section, frozen=True):
    """HAMi-core, a library of the administrator's that limits what programs allocate through CUDA's own library."""

    library: str = ""  # where libvgpu.so is on the host; "" if it is not there


class Mps(Section, frozen=True):
    """The administrator's MPS daemon."""

    pipe: str = ""  # its pipe directory on the host; "" if there is no daemon
    shm: str = "/dev/shm"  # what it has as /dev/shm, on the host  # noqa: S108


class Enforcement(Section, frozen=True):
    """The enforcer, which edits containers as they are created."""

    enabled: bool = False  # whether it runs
    socket: Name = "/var/run/nri/nri.sock"  # the container runtime's NRI socket; its folder is what is mounted
    # whether every container that holds no card is kept from NVIDIA's runtime, whatever its image says
    closed: bool = False
    exempt_namespaces: tuple[str, ...] = ()  # those whose containers are let alone by that
    kinds: dict[Name, str] = msgspec.field(default_factory=dict)  # device type to the CDI kind of its devices
    provider: LimitProvider = LimitProvider.NONE  # what keeps limits, where the Node's label states nothing
    hami_core: HamiCore = HamiCore()
    mps: Mps = Mps()


class Proof(Section, frozen=True):
    """Comparing allocations with what containers and cards really have."""

    enabled: bool = True  # whether it is done
    # whether containers' environments are read (needs CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH)
    environment: bool = False


class ReporterMirror(Section, frozen=True):
    """Amounts of the Node in other products' names."""

    volcano_unit: str = ""  # what one volcano.sh/gpu-memory is, such as 1Mi; if empty, the Node states none

    def __post_init__(self) -> None:
        """Check the unit."""
        if self.volcano_unit and not 1 <= self.unit <= _MAX_UNIT:
            raise ValueError(f"mirror.volcanoUnit is {self.volcano_unit}: one unit is from 1 byte to 1Ti")

    @property
    def unit(self) -> int:
        """The bytes of one unit; 0 if the Node states none."""
        try:
            return to_int(self.volcano_unit) if self.volcano_unit else 0
        except QuantityError as error:
            raise ValueError(f"mirror.volcanoUnit: {error}") from error


class ReporterSettings(Section, frozen=True):
    """All settings of `koordgate serve reporter`."""

    node: str = ""  # name of the Node; if empty, $NODE_NAME, else the machine's name
    # the domain of the resource names in the Device object; readers of the object know both
    domain: Literal["kubernetes.io", "koordinator.sh"] = KUBERNETES_DOMAIN
    round_seconds: Seconds = 10.0  # how often everything is read again, even if no change was seen
    log_level: Literal["debug", "info", "warning", "error"] = "info"  # debug, info, warning or error
    log_format: Literal["json", "text"] = "json"  # json or text
    roots: HostRoots = HostRoots()
    serve: ReporterServeSettings = ReporterServeSettings()
    kubelet: KubeletSettings = KubeletSettings()
    gpus: Gpus = Gpus()
    runtime: RuntimeSettings = RuntimeSettings()
    devices: ReporterDeviceSettings = ReporterDeviceSettings()
    cpus: ReporterCpuSettings = ReporterCpuSettings()
    proof: Proof = Proof()
    enforcement: Enforcement = Enforcement()
    metrics: ReporterMetricSettings = ReporterMetricSettings()
    mirror: ReporterMirror = ReporterMirror()

    def __post_init__(self) -> None:
        """Check rules that involve several keys."""
        types = device_types(self.devices.types)
        for one in self.devices.pci:
            if one.type not in types.by_name or one.type in {TYPE_GPU, TYPE_RDMA}:
                raise ValueError(
                    f"devices.pci: {one.type} is neither {TYPE_FPGA} nor one of devices.types: name it there"
                )
            one.check(types.by_name[one.type])


def pci_matches(settings: ReporterSettings) -> tuple[PciMatch, ...]:
    """Which PCI devices are reported; the administrator's rules come before the built-in ones."""
    return (*(one.match for one in settings.devices.pci), *FPGAS)


def load(path: Path) -> ReporterSettings:
    """Read a settings file.

    Raises SettingsError: it cannot be read, is not YAML, or has a wrong or unknown key.
    """
    return parse(read_text(path), str(path))


def parse(text: str, source: str = "settings") -> ReporterSettings:
    """Read settings from YAML text.

    Raises SettingsError: as for `load`; `source` is named in it.
    """
    return decode(text, source, ReporterSettings)
