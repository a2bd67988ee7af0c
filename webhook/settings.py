"""The settings of a koordgate process: one YAML file, read once, checked whole, then frozen."""

import ssl
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Final, Literal
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from allocator.cpu.resolve import CpuDefaults
from allocator.devices.delivery import DeliveryRules
from allocator.quantity import QuantityError, format_bytes, to_int
from allocator.request.typical import stated
from allocator.vocabulary.adopted import SCHEDULERS, Product
from allocator.vocabulary.asks import NODE_CLASSES, DeviceOrder, Preference
from allocator.vocabulary.cpunode import BindPolicy, ExclusivePolicy, NumaPolicy, NumaStrategy
from allocator.vocabulary.delivery import LimitProvider
from allocator.vocabulary.devicetype import DeviceType, DeviceTypes, Unit
from allocator.vocabulary.dialects import PEERS, Dialect
from allocator.vocabulary.mix import MAX_TYPICAL, MAX_WEIGHT, Mix, MixError, mix_of
from allocator.vocabulary.names import KOORD_SCHEDULER, KUBERNETES_DOMAIN, NVIDIA_GPU, TYPE_GPU, Mode
from allocator.vocabulary.outcome import did_you_mean
from allocator.wire.foreignpods import Adoption
from allocator.wire.mirror import Mirror
from koordgate.settings import (
    Name,
    OwnType,
    Port,
    Seconds,
    Section,
    decode,
    device_types,
    read_text,
)

_Slot = Annotated[int, Meta(ge=1, le=100)] | Annotated[str, Meta(pattern=r"^1/([1-9][0-9]?|100)$")]
Days = Annotated[float, Meta(gt=0, le=1_000_000)]
_NAMESPACE = "koordgate-system"
_NAME = r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
_LabelKey = Annotated[str, Meta(pattern=rf"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?{_NAME}$", max_length=317)]
_LabelValue = Annotated[str, Meta(pattern=rf"^({_NAME})?$")]
_NamespaceName = Annotated[str, Meta(pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")]
_NamespaceOrAll = Annotated[str, Meta(pattern=r"^(\*|[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)$")]
_MAX_BYTES: Final = 2**40
_MAX_STATED: Final = MAX_WEIGHT // MAX_TYPICAL  # a request may weigh no more, so that a mix stays within its bound


class TypicalSettings(Section, frozen=True):
    """One typical request."""

    # resources as a container of the Pod requests them: CPU, memory, and devices in any dialect that is on
    requests: dict[str, str | int]
    models: tuple[str, ...] = ()  # the models that its devices may have; any where empty
    weight: Annotated[int, Meta(ge=1, le=_MAX_STATED)] = 1  # how common it is; only its ratio to the others' counts


@dataclass(frozen=True, slots=True)
class SchedulerNames:
    """The values of `spec.schedulerName` of Pods that our scheduler binds; each is a profile of it."""

    everywhere: str = KOORD_SCHEDULER

    def of(self, namespace: str) -> str:  # noqa: ARG002 all namespaces have one name so far
        """The name that Pods of a namespace get."""
        return self.everywhere

    def __iter__(self) -> Iterator[str]:
        yield self.everywhere

    def __contains__(self, name: object) -> bool:
        return name == self.everywhere


class Scheduler(Section, frozen=True):
    """The scheduler whose Bindings allocate."""

    name: Name = KOORD_SCHEDULER  # the value that `spec.schedulerName` gets
    # the exact user that its Bindings come from
    username: Name = f"system:serviceaccount:{_NAMESPACE}:{KOORD_SCHEDULER}"
    # how many of the equally best nodes the extender's filter names; 0 names all that fit, best or not, and leaves the
    # choice to the scheduler's own scoring (with the extender's prioritize among it, if called)
    most_nodes: Annotated[int, Meta(ge=0)] = 16
    # from how many candidates on nodes are nominated for Pods that wait behind others; 0: never
    nominate_from: Annotated[int, Meta(ge=0)] = 2500
    # by what nodes are compared: packing, fragmentation, leastRequested or mostBalanced
    preference: Preference = Preference.FRAGMENTATION
    # the classes that count in leastRequested and mostBalanced: cpu, memory, ephemeral-storage, and device types by
    # name; all that a node has where empty
    preference_classes: tuple[Name, ...] = ()
    # the requests that are typical of the cluster, for fragmentation; learned from its Pods where empty
    mix: Annotated[tuple[TypicalSettings, ...], Meta(max_length=MAX_TYPICAL)] = ()
    assume_seconds: Seconds = 5.0  # how long a node that was named to a Pod counts as taken by it while no bind comes
    client_certificates: bool = True  # whether the extender answers only to a certificate of the scheduler
    # the exact common name of that certificate (RFC 5280 allows 64 characters)
    common_name: Annotated[str, Meta(min_length=1, max_length=64)] = KOORD_SCHEDULER

    @property
    def names(self) -> SchedulerNames:
        """The names of Pods that it binds."""
        return SchedulerNames(self.name)


class Guard(Section, frozen=True):
    """What other binders may do."""

    # what happens to a Binding, by another scheduler, of a Pod that asks for a device plugin's resource
    # (`nvidia.com/gpu`) and was never translated, to a node whose devices koordgate gives: refuse or warn
    plain_pods: Literal["refuse", "warn"] = "refuse"


class Identity(Section, frozen=True):
    """The identity of this installation in the cluster."""

    # the namespace in which it runs; its Secret is there, and the namespace's Pods are exempt
    namespace: Name = _NAMESPACE
    mutating: Name = "koordgate"  # name of its MutatingWebhookConfiguration, into which the CA is published
    validating: Name = "koordgate"  # name of its ValidatingWebhookConfiguration


class ServeSettings(Section, frozen=True):
    """The HTTPS server."""

    # address to listen on
    host: str = "0.0.0.0"  # noqa: S104 - a Pod serves on all its addresses
    port: Port = 9443  # TCP port; 0 takes a free one
    # TCP port of the scheduler extender, which alone asks for client certificates; 0 takes a free one
    extender_port: Port = 9444
    body_limit_bytes: Annotated[int, Meta(ge=1024)] = 7 * 1024 * 1024  # a larger review is refused with 413
    # of all bodies above 64 KiB that are in memory at once, on each port; further ones wait for a second, and are then
    # refused with 503. At least body_limit_bytes.
    bodies_bytes: Annotated[int, Meta(ge=1024)] = 16 * 1024 * 1024
    # most of them at once, on each port; the one that was silent for longest is closed for a new one
    connections: Annotated[int, Meta(ge=10, le=100_000)] = 1000
    deadline_seconds: Seconds = 4.0  # the longest any review takes, if its own `timeout` parameter is not shorter
    # how long the server still serves after SIGTERM, not ready, so that callers leave
    shutdown_delay_seconds: Annotated[float, Meta(ge=0, le=24 * 3600)] = 5.0
    # the CAs, as PEM, of the certificate that the API server shows to webhooks; reviews without one are refused then.
    # Empty: nobody is asked.
    client_authority: str = ""
    client_name: str = ""  # the exact common name of that certificate

    def __post_init__(self) -> None:
        """Check what concerns several keys."""
        if self.port == self.extender_port != 0:
            raise ValueError(f"port and extenderPort are both {self.port}: set one of them to another port")
        if bool(self.client_authority) != bool(self.client_name):
            raise ValueError("clientAuthority and clientName go together: set both, or neither")
        if self.client_authority:
            try:
                ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(cadata=self.client_authority)
            except (ssl.SSLError, ValueError) as error:
                raise ValueError(f"clientAuthority is no certificate as PEM ({error}): set the CA's text") from error
        if self.bodies_bytes < self.body_limit_bytes:
            raise ValueError(
                f"bodiesBytes is {self.bodies_bytes}, less than one body may have: set it to bodyLimitBytes "
                f"({self.body_limit_bytes}) or more"
            )


class CertificateFiles(Section, frozen=True):
    """A certificate from another source, such as cert-manager; reloaded when the files change."""

    certificate: Name  # file with the serving certificate and any intermediate ones, as PEM
    key: Name  # file with its private key, as PEM
    authority: Name  # file with the CA that callers are to trust, as PEM


class Certificate(Section, frozen=True):
    """Where the serving certificate comes from."""

    # name of the Secret that holds the self-signed CA and certificate that the API server sees
    secret: Name = "koordgate-tls"  # noqa: S105 - a Secret's name
    dns_names: tuple[str, ...] = ()  # names for which the certificate is valid
    ip_addresses: tuple[str, ...] = ()  # addresses for which it is valid
    authority_days: Days = 365  # life of the CA, and of the scheduler's certificate
    certificate_days: Days = 30  # life of the certificate; each is renewed after two thirds of its life
    # name of the Secret that holds the CA and the certificate that the scheduler sees
    extender_secret: Name = "koordgate-extender-tls"  # noqa: S105 - as above
    extender_authority_days: Days = 3650  # life of that CA's certificate; its key stays when it is renewed
    # name of the Secret with the scheduler's own certificate, which the extender's CA signs
    client_secret: Name = "koordgate-scheduler-tls"  # noqa: S105 - as above
    files: CertificateFiles | None = None  # used instead of the Secrets, if set
    # with `files`, the file with the CA that signed the scheduler's certificate, as PEM; None for `files.authority`
    client_authority: Name | None = None

    def __post_init__(self) -> None:
        """Check what concerns several keys."""
        if self.client_secret in {self.secret, self.extender_secret}:
            with_keys = "secret" if self.client_secret == self.secret else "extenderSecret"
            raise ValueError(
                f"{with_keys} and clientSecret are both {self.client_secret}: the scheduler may not read our keys"
            )
        if self.secret == self.extender_secret:
            raise ValueError(f"secret and extenderSecret are both {self.secret}: each CA has a Secret of its own")
        if self.client_authority is not None and self.files is None:
            raise ValueError("clientAuthority is for a certificate from files: set files too, or leave it out")

    @property
    def of_extender(self) -> "Certificate":
        """The same, for the certificate that the scheduler sees."""
        return msgspec.structs.replace(
            self,
            secret=self.extender_secret,
            extender_secret=self.secret,
            authority_days=self.extender_authority_days,
        )


class LedgerSettings(Section, frozen=True):
    """The ledger's times."""

    # how long a holding that was never bound is marked before it is released, which is longer than any API request; it
    # is marked after half of that time
    grace_seconds: Seconds = 120.0
    reconcile_seconds: Seconds = 60.0  # how often the ledger is compared with live Pods
    # how long a bind waits for others to share its node's write, while binds follow closely; up to 0.2 s while Pods
    # that were sent to the node have not come
    gather_seconds: Annotated[float, Meta(ge=0, le=1)] = 0.05

    @property
    def given_back_seconds(self) -> float:
        """Within which a holding that was never bound is released: half a grace to its mark, a grace, a comparison."""
        return 1.5 * self.grace_seconds + self.reconcile_seconds


class GangSettings(Section, frozen=True):
    """Gangs that are bound as a whole or not at all."""

    all_or_nothing: bool = False  # whether Pods may ask for that (annotation koordgate.io/gang-all-or-nothing)
    # how long room for such a gang is held while none of its Pods is bound
    hold_seconds: Annotated[float, Meta(ge=10, le=24 * 3600)] = 300.0


class SlotSettings(Section, frozen=True):
    """What containers that use devices and state no amount get together of one device, unless their Pod states it."""

    # device type -> percent of one device, or 1/N where a device has N slots
    types: dict[Name, _Slot] = msgspec.field(default_factory=dict)
    # namespace -> the same for its Pods; precedes `types`
    namespaces: dict[_NamespaceName, dict[Name, _Slot]] = msgspec.field(default_factory=dict)

    @property
    def named(self) -> set[str]:
        """The types that are named."""
        return {kind for slots in (self.types, *self.namespaces.values()) for kind in slots}


class DeviceSettings(Section, frozen=True):
    """Devices."""

    # the slots of containers that state no amount (koordgate.io/device-sharing)
    default_slot_resource_fraction: SlotSettings = SlotSettings()
    # whether the environment of every container that asks for GPUs states what it may use of them, and not only in Pods
    # with that annotation
    quota_environment: bool = False
    # which fitting device comes first: smallest (that suffices), mostUsed, leastUsed or minor; a Node's label and a
    # Pod's annotation koordgate.io/device-order take precedence
    order: DeviceOrder = DeviceOrder.SMALLEST
    types: tuple[OwnType, ...] = ()  # device types of the administrator's own
    # how containers get the cards that a bind chose: environment, runtimeClass, nvidia-nri, or auto, by what the
    # reporter tells of each node; a Node's label koordgate.io/delivery takes precedence
    delivery: Literal["auto", "environment", "runtimeClass", "nvidia-nri", "nri"] = "auto"
    # the RuntimeClass that leads to NVIDIA's runtime; it counts only where the cluster has it
    runtime_class_name: str = "nvidia"
    # what holds of a node of which nothing is known yet: it counts as environment, or it refuses
    delivery_unknown: Literal["environment", "refuse"] = "environment"
    # device type -> keys of taints, which Pods that ask for such devices tolerate
    tolerations: dict[Name, list[_LabelKey]] = msgspec.field(default_factory=lambda: {TYPE_GPU: [NVIDIA_GPU]})


class CpuSettings(Section, frozen=True):
    """CPU orchestration if neither the Pod nor the Node states anything."""

    bind_policy: Literal["FullPCPUs", "SpreadByPCPUs"] = "FullPCPUs"  # the policy by which CPUs are chosen
    # what is not shared with Pods of the same policy
    exclusive_policy: Literal["None", "PCPULevel", "NUMANodeLevel"] = "None"
    # which NUMA node comes first
    numa_allocate_strategy: Literal["MostAllocated", "LeastAllocated", "DistributeEvenly"] = "MostAllocated"
    numa_topology_policy: NumaPolicy = NumaPolicy.NONE  # how strictly a Pod's whole request is kept in one NUMA node


class NumaScopeSettings(Section, frozen=True):
    """The Pods that NUMA policies of nodes hold for, besides those that state something about their CPUs."""

    # whether they hold for all Pods whose author names our scheduler and that request CPU or memory
    scheduler: bool = True
    namespaces: tuple[_NamespaceName, ...] = ()  # all Pods of these that request CPU or memory
    # all Pods with all of these labels that request CPU or memory; none where empty
    selector: dict[_LabelKey, _LabelValue] = msgspec.field(default_factory=dict)


class NumaSettings(Section, frozen=True):
    """NUMA policies."""

    scope: NumaScopeSettings = NumaScopeSettings()  # the Pods that they hold for


class QuotaSettings(Section, frozen=True):
    """What quotas count."""

    # whether Pods state, in resources of the domain quota.koordgate.io, what quotas are to count, and quotas and
    # LimitRanges that name devices are kept in force for them. The scheduler must ignore this domain.
    enabled: bool = True
    # namespaces in which no Pod is translated; quotas there are left as they are
    exempt_namespaces: tuple[_NamespaceName, ...] = ()


class DraSettings(Section, frozen=True):
    """Dynamic resource allocation (DRA)."""

    enabled: bool = True  # whether what ResourceClaims hold counts as held, and is refused where Pods hold it
    # the drivers whose devices are those of a device type: name of the driver -> name of the type
    drivers: dict[Name, Name] = msgspec.field(default_factory=lambda: {"gpu.nvidia.com": "gpu"})
    # whether DeviceTaintRules tell DRA which devices Pods hold, where the API server serves such rules
    taints: bool = False


class HeadroomSettings(Section, frozen=True):
    """Nodes that are short of CPU or memory for their free devices."""

    # taint keeps the taint koordgate.io/headroom on them; remove takes it away; none leaves Nodes alone
    mode: Literal["none", "taint", "remove"] = "none"
    # below this part of what its free devices need, a node gets the taint
    taint_below_percent: Annotated[int, Meta(ge=1, le=10_000)] = 150
    # from this part on it may lose the taint; the greater one, so that taints do not come and go
    untaint_from_percent: Annotated[int, Meta(ge=1, le=10_000)] = 200
    # it loses the taint when it has had this part, or no free devices, for so long
    untaint_after_seconds: Annotated[int, Meta(ge=0, le=604_800)] = 10_800

    def __post_init__(self) -> None:  # the bounds go together
        if self.untaint_from_percent <= self.taint_below_percent:
            raise ValueError("make untaintFromPercent the greater one: it is not above taintBelowPercent")


class LimitSettings(Section, frozen=True):
    """Memory limits of containers on GPUs, kept on the node by what is not koordgate's."""

    # what keeps them: none, nvidia-toolkit, nvidia-fractions, or by the enforcer cgroup, HAMi-core, mps
    provider: LimitProvider = LimitProvider.NONE
    # namespaces in which Pods for parts of GPUs must have them; "*" for all. A Pod's annotation koordgate.io/limits may
    # require them too.
    require: tuple[_NamespaceOrAll, ...] = ()

    def __post_init__(self) -> None:
        """Check what concerns both keys."""
        if self.require and self.provider is LimitProvider.NONE:
            raise ValueError("require is set and provider is none: name what keeps limits, or leave require empty")


class AdoptSettings(Section, frozen=True):
    """Running Pods of other products."""

    peers: tuple[Product, ...] = ()  # the products whose Pods count as holding what their annotations state
    # the names of a product's schedulers, where they are not the product's own; a Pod of another scheduler does not
    # count. Empty for a product: any.
    schedulers: dict[Product, tuple[Name, ...]] = msgspec.field(default_factory=dict)
    # the namespaces in which KAI and Run:ai keep their reservation Pods
    reservation_namespaces: tuple[_NamespaceName, ...] = ("kai-resource-reservation", "runai-reservation")
    # the exact users of these products, who may write on Pods that exist by which annotations software of the nodes
    # shows them devices
    writers: tuple[str, ...] = ()

    def adoption(self, dialects: Mapping[str, Dialect]) -> Adoption:
        """Which Pods count; `dialects`: of the products, as they are installed, by name."""
        names = {peer: frozenset(self.schedulers.get(peer, SCHEDULERS[peer])) for peer in Product}
        return Adoption(frozenset(self.peers), names, frozenset(self.reservation_namespaces), dialects)


class MapSettings(Section, frozen=True):
    """The device map."""

    # whether it is served. Whoever may `get` the path /koordgate/map sees the Pods of all namespaces.
    enabled: bool = False
    port: Port = 9445  # TCP port; 0 takes a free one
    clients: Annotated[int, Meta(ge=1, le=1000)] = 32  # how many may follow the changes at once; further ones poll


class TracingSettings(Section, frozen=True):
    """Traces (OpenTelemetry)."""

    # the collector's address for OTLP over HTTP, as http://collector:4318; if "", there are no traces
    endpoint: str = ""
    # of the calls that state no trace, how many are traced. A call that states one is traced if its caller traces it.
    sampling_percent: Annotated[float, Meta(ge=0, le=100)] = 10.0
    authority: str = ""  # the CA of the collector's certificate, as PEM; if "", the CAs that the image trusts

    def __post_init__(self) -> None:
        """Check the address and the certificate."""
        if not self.endpoint:
            return
        example = "as in http://collector.monitoring:4318"
        try:
            parts = urlsplit(self.endpoint)
            host, _ = parts.hostname, parts.port
        except ValueError as error:
            raise ValueError(f"tracing.endpoint is no address: {error}; write it {example}") from error
        if parts.scheme not in {"http", "https"} or not host or not self.endpoint.isprintable():
            raise ValueError(f"tracing.endpoint is not an http or https address: write it {example}")
        if parts.username is not None or parts.query or parts.fragment:
            raise ValueError(
                "tracing.endpoint has a user, a query or a fragment: leave them out; what the collector asks for goes "
                "into the environment variable OTEL_EXPORTER_OTLP_HEADERS (chart: tracing.headersSecret)"
            )
        if self.authority:
            try:
                ssl.create_default_context(cadata=self.authority)
            except (ssl.SSLError, ValueError) as error:
                raise ValueError(f"tracing.authority is not a certificate as PEM: {error}") from error

    @property
    def address(self) -> str:
        """Where spans are sent; the path of OTLP is added where the endpoint has none."""
        parts = urlsplit(self.endpoint)
        return self.endpoint if parts.path.strip("/") else f"{parts.scheme}://{parts.netloc}/v1/traces"


class DialectSettings(Section, frozen=True):
    """Another product's dialect."""

    enabled: bool = False  # whether Pods may ask in it
    namespaces: tuple[_NamespaceName, ...] = ()  # only Pods of these may; all, where empty
    memory_unit: str = ""  # what one of its units of memory is, such as 1Mi; if empty, the product's default
    default_memory: str = ""  # the memory of each card for containers that state none, such as 4Gi; if empty, all of it
    # percent of each card's compute for containers that state none; 0 for no limit
    default_cores: Annotated[int, Meta(ge=0, le=100)] = 0


class WebhookSettings(Section, frozen=True):
    """All settings of `koordgate serve webhook`."""

    # the domain that resource names are written in; both are read
    domain: Literal["kubernetes.io", "koordinator.sh"] = KUBERNETES_DOMAIN
    # whether a translation also states gpu-memory, of the smallest GPU in reach. Turn it off with Koordinator's own
    # scheduler, which refuses ratio and memory side by side.
    state_memory: bool = True
    log_level: Literal["debug", "info", "warning", "error"] = "info"  # debug, info, warning or error
    log_format: Literal["json", "text"] = "json"  # json or text
    mode: Mode = Mode.ENFORCE  # what is done in namespaces without the label koordgate.io/mode: enforce, shadow or off
    scheduler: Scheduler = Scheduler()
    guard: Guard = Guard()
    identity: Identity = Identity()
    serve: ServeSettings = ServeSettings()
    certificate: Certificate = Certificate()
    ledger: LedgerSettings = LedgerSettings()
    gangs: GangSettings = GangSettings()
    devices: DeviceSettings = DeviceSettings()
    limits: LimitSettings = LimitSettings()
    cpus: CpuSettings = CpuSettings()
    numa: NumaSettings = NumaSettings()
    quota: QuotaSettings = QuotaSettings()
    dra: DraSettings = DraSettings()
    headroom: HeadroomSettings = HeadroomSettings()
    adopt: AdoptSettings = AdoptSettings()
    map: MapSettings = MapSettings()
    # the products whose own annotations a bind writes as well, so that their dashboards and agents go on
    mirror: tuple[Literal["hami", "volcano", "gpushare"], ...] = ()
    tracing: TracingSettings = TracingSettings()
    # other products' dialects, by name; those that are not named are off
    dialects: dict[str, DialectSettings] = msgspec.field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check what concerns several keys: dialects and types fit together, and only known types are named."""
        if self.map.enabled and self.map.port in {self.serve.port, self.serve.extender_port} - {0}:
            raise ValueError(f"map.port and a port of serve are both {self.map.port}: set one of them to another port")
        types = types_of(self).by_name
        slots = self.devices.default_slot_resource_fraction.named
        if strange := sorted(name for name in slots if name not in types or types[name].unit is not Unit.PERCENT):
            allowed = ", ".join(name for name, kind in types.items() if kind.unit is Unit.PERCENT)
            raise ValueError(
                f"devices.defaultSlotResourceFraction names {', '.join(strange)}: the types that are given in percent "
                f"are {allowed}"
            )
        if strange := sorted(self.devices.tolerations.keys() - types.keys()):
            raise ValueError(
                f"devices.tolerations names {', '.join(strange)}: the device types are {', '.join(types)}; types of "
                "your own are declared in devices.types"
            )
        known = (*NODE_CLASSES, *types)
        named = self.scheduler.preference_classes
        if unknown := [name for name in named if name not in known]:
            raise ValueError(
                f"scheduler.preferenceClasses names {', '.join(unknown)}: the classes are {', '.join(known)}; types of "
                "your own are declared in devices.types"
            )
        if len(set(named)) != len(named):
            raise ValueError("scheduler.preferenceClasses names a class twice: name each once")
        read_mix(self.scheduler.mix, types_of(self))
        if strange := [name for name in self.dra.drivers.values() if name not in types]:
            raise ValueError(
                f"dra.drivers names {', '.join(strange)}: the device types are {', '.join(types)}; types of your own "
                "are declared in devices.types"
            )

    @property
    def claimed(self) -> dict[str, DeviceType]:
        """The drivers whose devices ResourceClaims hold, and the type of these; none where DRA is not looked at."""
        types = device_types(self.devices.types).by_name
        return {driver: types[name] for driver, name in self.dra.drivers.items()} if self.dra.enabled else {}


def installed(settings: Mapping[str, DialectSettings]) -> list[Dialect]:
    """All dialects as their products' installations read them, on or off, in the table's order.

    Raises ValueError: a dialect is unknown, or its settings are wrong.
    """
    known = [one.name for one in PEERS]
    if strange := sorted(settings.keys() - set(known)):
        raise ValueError(
            f"dialects.{strange[0]}: there is no such dialect; there are {', '.join(known)}"
            f"{did_you_mean(strange[0], known)}"
        )
    return [as_installed(one, settings.get(one.name, DialectSettings())) for one in PEERS]


def dialects_on(settings: Mapping[str, DialectSettings]) -> tuple[list[Dialect], dict[str, list[Dialect]]]:
    """The dialects that are on in all namespaces, and by namespace those that are on there.

    Raises ValueError: as for `installed`.
    """
    everywhere: list[Dialect] = []
    scoped: dict[str, list[Dialect]] = {}
    for read in installed(settings):  # in the table's order, which decides where names are in several
        chosen = settings.get(read.name, DialectSettings())
        if not chosen.enabled:
            continue
        if not chosen.namespaces:
            everywhere.append(read)
        for namespace in chosen.namespaces:
            scoped.setdefault(namespace, []).append(read)
    return everywhere, scoped


def as_installed(dialect: Dialect, chosen: DialectSettings) -> Dialect:
    """A dialect as an installation of its product reads it.

    Raises ValueError: its unit of memory is wrong or missing, or the product has no such settings.
    """
    return _defaulted(_sized(dialect, chosen), chosen)


def _sized(dialect: Dialect, chosen: DialectSettings) -> Dialect:
    """A dialect with the unit of memory of this installation.

    Raises ValueError: the unit is wrong, or missing where the dialect is on.
    """
    where = f"dialects.{dialect.name}.memoryUnit"
    if not chosen.memory_unit:
        if chosen.enabled and dialect.sized and not dialect.unit:
            raise ValueError(f"{where} is missing: {dialect.title} has no default; state what one unit is, such as 1Mi")
        return dialect
    if not dialect.sized:
        raise ValueError(f"{where}: {dialect.title} counts no memory in units of an installation; remove it")
    return dialect.with_unit(_read_bytes(where, chosen.memory_unit, "one unit is"))


def _defaulted(dialect: Dialect, chosen: DialectSettings) -> Dialect:
    """A dialect with what this installation gives to containers that leave it out.

    Raises ValueError: the product has no such settings, or the memory is wrong.
    """
    keys = {"defaultMemory": chosen.default_memory, "defaultCores": chosen.default_cores}
    if wrong := [] if dialect.defaulted else [key for key, value in keys.items() if value]:
        raise ValueError(f"dialects.{dialect.name}.{wrong[0]}: {dialect.title} has no such setting; remove it")
    where, size = f"dialects.{dialect.name}.defaultMemory", 0
    if chosen.default_memory:
        size = _read_bytes(where, chosen.default_memory, "the memory of a card is")
    return replace(dialect, size=size, core=chosen.default_cores)


def _read_bytes(where: str, quantity: str, what: str) -> int:
    """Read a quantity of bytes.

    Raises ValueError: it is none, or out of bounds.
    """
    try:
        amount = to_int(quantity)
    except QuantityError as error:
        raise ValueError(f"{where}: {error}") from error
    if not 1 <= amount <= _MAX_BYTES:
        raise ValueError(f"{where} is {quantity}: {what} from 1 byte to {format_bytes(_MAX_BYTES)}")
    return amount


def read_mix(entries: Sequence[TypicalSettings], types: DeviceTypes) -> Mix:
    """Read the stated mix; empty where none is stated.

    Raises ValueError: a request cannot be read or is out of bounds, or none asks for devices.
    """
    requests = []
    for number, one in enumerate(entries):
        try:
            requests.append(stated(one.requests, one.models, one.weight, types))
        except MixError as error:
            raise ValueError(f"scheduler.mix[{number}]: {error}") from error
    if requests and not any(one.ask for one in requests):
        raise ValueError("scheduler.mix: no request asks for devices; add those that the cluster's Pods make")
    return mix_of(requests)


def types_of(settings: WebhookSettings) -> DeviceTypes:
    """The device types and the dialects in which Pods may ask for them, by namespace where that differs.

    Raises ValueError: a dialect is unknown, its unit of memory is wrong or missing, or its names are those of a type.
    """
    everywhere, scoped = dialects_on(settings.dialects)
    declared = device_types(settings.devices.types)
    known = DeviceTypes(declared.types, declared.dialects, tuple(installed(settings.dialects)))
    types = known.with_dialects(everywhere)
    return types.with_scopes({namespace: types.with_dialects(more) for namespace, more in scoped.items()})


def adoption_of(settings: WebhookSettings) -> Adoption:
    """Which Pods of other products count, and what these state."""
    return settings.adopt.adoption({one.name: one for one in installed(settings.dialects)})


def mirror_of(settings: WebhookSettings) -> Mirror:
    """The products whose annotations a bind writes as well, and in which unit these state memory."""
    units = {one.name: one.unit for one in installed(settings.dialects)}
    return Mirror(frozenset(map(Product, settings.mirror)), units["gpushare"])


def tells_volcano(settings: WebhookSettings) -> bool:
    """Whether Nodes state the amounts of Volcano GPU share's device plugin, as its users read them."""
    share = settings.dialects.get("volcano-share", DialectSettings())
    return share.enabled and "volcano" in settings.mirror


def cpu_defaults(settings: WebhookSettings) -> CpuDefaults:
    """The rules for CPUs if neither the Pod nor the Node states anything."""
    cpus = settings.cpus
    return CpuDefaults(
        BindPolicy(cpus.bind_policy),
        ExclusivePolicy(cpus.exclusive_policy),
        NumaStrategy(cpus.numa_allocate_strategy),
        cpus.numa_topology_policy,
    )


def delivery_rules(settings: WebhookSettings) -> DeliveryRules:
    """How containers get their cards; the RuntimeClass counts only where the cluster has it."""
    devices = settings.devices
    refused = devices.delivery_unknown == "refuse"
    limits = settings.limits.provider
    return DeliveryRules(devices.delivery, devices.runtime_class_name, unknown_refused=refused, limits=limits)


def without_gathering(settings: WebhookSettings) -> WebhookSettings:
    """The same settings, but binds never wait for others: offline they come one by one."""
    return msgspec.structs.replace(settings, ledger=msgspec.structs.replace(settings.ledger, gather_seconds=0.0))


def load(path: Path) -> WebhookSettings:
    """Read a settings file.

    Raises SettingsError: it cannot be read, is not YAML, or has a wrong or unknown key.
    """
    return parse(read_text(path), str(path))


def parse(text: str, source: str = "settings") -> WebhookSettings:
    """Read settings from YAML text.

    Raises SettingsError: as for `load`; `source` is named in it.
    """
    return decode(text, source, WebhookSettings)
