"""A Pod's CPU and memory requests and limits: by container, for the Pod as a whole, and in sum.

A Pod of class LSE or LSR has CPUs of its own. In Koordinator all containers run on them ("Only supports the CPU
allocation mechanism of the Pod dimension"), so that whatever an injector adds would have to ask for whole CPUs. Here,
unless the Pod's annotation names its containers:

- A container that an injector is known to add runs in the shared pool. If all apps of the Pod are such, it is a Pod of
  the product itself, and the rule does not hold.
- So does one that asks for less than a CPU beside one that asks for whole CPUs, as the kubelet's static policy divides
  a Pod's containers (Kubernetes, pkg/kubelet/cm/cpumanager). CPU that the Pod states for itself as a whole has the same
  effect. An app must be left, so that no Pod has CPUs of its own for its init containers alone.

The rule depends on the Pod's spec and annotations alone: admission, the bind and the reporter ask it again.

The name of an injected container is the one that the product's injector writes: Istio (istio/istio, manifests), Linkerd
(linkerd/linkerd2, pkg/k8s), Kuma (kumahq/kuma, pkg/plugins/runtime/k8s/util), Consul (hashicorp/consul-k8s,
control-plane/connect-inject), Dapr (dapr/dapr, pkg/injector), Knative (knative/serving,
pkg/reconciler/revision/resources), Vault (hashicorp/vault-k8s, agent-inject/agent), OpenTelemetry
(open-telemetry/opentelemetry-operator), GKE's driver for Cloud Storage (GoogleCloudPlatform/gcs-fuse-csi-driver,
pkg/webhook), and Azure's workload identity (Azure/azure-workload-identity, pkg/webhook).
"""

import re
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from allocator.quantity import QuantityError, to_milli
from allocator.vocabulary.cpunode import KubeletAsk
from allocator.vocabulary.names import OWN_CPUS, RESOURCE_MAPS, Phase, is_quota_resource
from allocator.vocabulary.outcome import Problem, excerpt
from allocator.wire.strict import annotation_path

INJECTORS: Final = {
    "Istio": ("istio-proxy", "istio-init", "istio-validation"),
    "Linkerd": ("linkerd-proxy", "linkerd-init", "linkerd-network-validator", "linkerd-debug"),
    "Kuma": ("kuma-sidecar", "kuma-init"),
    "Consul": ("consul-dataplane", "consul-connect-inject-init"),
    "Dapr": ("daprd",),
    "Knative": ("queue-proxy",),
    "Vault": ("vault-agent", "vault-agent-init"),
    "OpenTelemetry": ("otc-container",),
    "Cloud Storage FUSE (GKE)": ("gke-gcsfuse-sidecar", "gke-gcsfuse-metadata-prefetch"),
    "Azure Workload Identity": ("azwi-proxy", "azwi-proxy-init"),
}
"""Product to the containers that it adds."""

INJECTED: Final = frozenset(name for names in INJECTORS.values() for name in names)
"""The names of all of them."""


CPU: Final = 1000  # thousandths
ORDINARY: Final = frozenset({"cpu", "memory", "ephemeral-storage"})
"""Resources that are no devices, whatever a type is named."""

_UNSTATED: Final = (None, None)
_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", re.ASCII)  # a container's, as Kubernetes has it


@dataclass(frozen=True, slots=True)
class CpuAmounts:
    """The amounts of one container, or of the Pod as a whole; None for one that is not stated."""

    path: str  # path of its resources, with a container's name in place of its index
    name: str  # the container's; "" for the Pod, and for one whose name cannot be read
    phase: Phase
    cpu: tuple[int | None, int | None]  # request and limit, in thousandths
    memory: tuple[int | None, int | None]  # request and limit, in bytes
    # other resource to its request, in its unit; none that only quotas count
    others: Mapping[str, int] = field(default_factory=dict)

    @property
    def milli(self) -> int:
        """CPU request in thousandths; a missing one equals the limit."""
        return _default(self.cpu) or 0


@dataclass(frozen=True, slots=True)
class PodCpuAmounts:
    """A Pod's amounts: of its containers in starting order, of the Pod itself, and of its RuntimeClass's overhead."""

    containers: tuple[CpuAmounts, ...]
    pod: CpuAmounts
    overhead_milli: int
    overhead_memory: int

    @property
    def milli(self) -> int:
        """CPU request in thousandths, without overhead."""
        return _requested(self.pod.cpu, ((one.phase, one.cpu) for one in self.containers))

    @property
    def memory(self) -> int:
        """Memory request in bytes, without overhead."""
        return _requested(self.pod.memory, ((one.phase, one.memory) for one in self.containers))

    @property
    def others(self) -> tuple[tuple[str, int], ...]:
        """Requests of other resources, by name, without overhead: what the containers request at their peak."""
        names = sorted({*self.pod.others, *(name for one in self.containers for name in one.others)})
        peaks = [(name, peak((one.phase, one.others.get(name, 0)) for one in self.containers)) for name in names]
        stated = [(name, self.pod.others.get(name, peak)) for name, peak in peaks]
        return tuple((name, amount) for name, amount in stated if amount)

    @property
    def unlimited(self) -> CpuAmounts | None:
        """The first app or sidecar without a CPU limit, if the Pod has no limit because of it; else None."""
        if self.pod.cpu[1] is not None:
            return None
        return next((one for one in self.containers if one.phase is not Phase.INIT and one.cpu[1] is None), None)

    @property
    def limit_milli(self) -> int:
        """CPU limit in thousandths, overhead included; 0 if there is none."""
        if self.unlimited is not None:
            return 0
        limit = self.pod.cpu[1]
        if limit is None:
            limit = peak((one.phase, one.cpu[1] or 0) for one in self.containers)
        return limit + self.overhead_milli if limit else 0

    @property
    def of_kubelet(self) -> tuple[KubeletAsk, ...]:
        """What the kubelet's CPU manager and device manager would give each container, if anything."""
        static = self.pod.cpu == self.pod.memory == _UNSTATED and (
            # Kubernetes' QoS class Guaranteed (pkg/apis/core/v1/helper/qos)
            _fixed([one.cpu for one in self.containers]) and _fixed([one.memory for one in self.containers])
        )
        asked = []
        for one in self.containers:
            milli = one.milli if static else 0
            devices = sorted((name, amount) for name, amount in one.others.items() if amount and _is_device(name))
            asked.append(KubeletAsk(one.phase, 0 if milli % CPU else milli // CPU, tuple(devices)))
        return tuple(one for one in asked if one.cpus or one.devices)


def _is_device(name: str) -> bool:
    """Whether a resource may be a device plugin's; huge pages are the memory manager's."""
    return not name.startswith("hugepages-")


def as_object(value: object, path: str, problems: list[Problem]) -> Mapping[str, Any]:
    """Return an optional object; anything else is noted as a problem and counts as left out."""
    if isinstance(value, dict):
        return value
    if value is not None:
        problems.append(Problem(path, "is no object, as it must be in a Pod"))
    return {}


def read_cpu_amounts(spec: Mapping[str, Any], problems: list[Problem], without: Container[str] = ()) -> PodCpuAmounts:
    """Read the amounts in a Pod's spec; one that cannot be read is noted as a problem and counts as not stated.

    `without`: resources that are not to be read: devices of ours.
    """
    containers = tuple(
        _read_resources(f"{path}.resources", name, phase, container.get("resources"), problems, without)
        for path, name, container, phase in _containers(spec, problems)
    )
    pod = _read_resources("spec.resources", "", Phase.APP, spec.get("resources"), problems, without)
    overhead = as_object(spec.get("overhead"), "spec.overhead", problems)
    return PodCpuAmounts(
        containers,
        pod,
        _read_amount(overhead, "cpu", "spec.overhead", 1, problems) or 0,
        _read_amount(overhead, "memory", "spec.overhead", CPU, problems) or 0,
    )


def _containers(
    spec: Mapping[str, Any], problems: list[Problem]
) -> Iterator[tuple[str, str, Mapping[str, Any], Phase]]:
    for key in ("initContainers", "containers"):
        listed = spec.get(key)
        if listed is not None and not isinstance(listed, list):
            problems.append(Problem(f"spec.{key}", "is no list, as it must be in a Pod"))
            continue
        for index, value in enumerate(listed or ()):
            stated = value.get("name") if isinstance(value, dict) else None
            name = stated if isinstance(stated, str) and _NAME.fullmatch(stated) else ""
            path = f"spec.{key}[{name or index}]"
            container = as_object(value, path, problems)
            phase = Phase.APP
            if key == "initContainers":
                phase = Phase.SIDECAR if container.get("restartPolicy") == "Always" else Phase.INIT
            yield path, name, container, phase


def _read_resources(
    path: str, name: str, phase: Phase, value: object, problems: list[Problem], without: Container[str]
) -> CpuAmounts:
    resources = as_object(value, path, problems)
    requests, limits = (as_object(resources.get(key), f"{path}.{key}", problems) for key in RESOURCE_MAPS)
    return CpuAmounts(
        path,
        name,
        phase,
        (
            _read_amount(requests, "cpu", f"{path}.requests", 1, problems),
            _read_amount(limits, "cpu", f"{path}.limits", 1, problems),
        ),
        (
            _read_amount(requests, "memory", f"{path}.requests", CPU, problems),
            _read_amount(limits, "memory", f"{path}.limits", CPU, problems),
        ),
        {
            resource: _read_amount(amounts, resource, f"{path}.{key}", CPU, problems) or 0
            for key, amounts in (("limits", limits), ("requests", requests))
            for resource in amounts
            if resource not in ORDINARY and resource not in without and not is_quota_resource(resource)
        },
    )


def _read_amount(amounts: Mapping[str, Any], name: str, path: str, divisor: int, problems: list[Problem]) -> int | None:
    """Read an amount in units of `divisor` thousandths, rounded up as Kubernetes does."""
    if amounts.get(name) is None:
        return None
    try:
        return -(-to_milli(amounts[name]) // divisor)
    except QuantityError as error:
        problems.append(Problem(f"{path}[{name}]", str(error)))
        return None


# Kubernetes' rule for a Pod's request (k8s.io/component-helpers, resource.PodRequests)


def _requested(
    pod: tuple[int | None, int | None], containers: Iterable[tuple[Phase, tuple[int | None, int | None]]]
) -> int:
    """The Pod's own request, otherwise its containers' peak; a missing request equals its limit."""
    if pod[0] is not None:
        return pod[0]
    stated = [(phase, _default(amounts)) for phase, amounts in containers]
    if all(amount is None for _, amount in stated):
        return pod[1] or 0
    return peak((phase, amount or 0) for phase, amount in stated)


def _default(amounts: tuple[int | None, int | None]) -> int | None:
    return amounts[1] if amounts[0] is None else amounts[0]


def _fixed(containers: Sequence[tuple[int | None, int | None]]) -> bool:
    """Whether every container has a limit, and requests as much, so that the sums are equal too."""
    return all(limit and request in {None, limit} for request, limit in containers)


def peak(containers: Iterable[tuple[Phase, int]]) -> int:
    """The greatest sum of any step: each init container with the sidecars started before it, then sidecars and apps."""
    most = sidecars = apps = 0
    for phase, amount in containers:
        if phase is Phase.APP:
            apps += amount
        elif phase is Phase.SIDECAR:
            sidecars += amount
        else:
            most = max(most, sidecars + amount)
    return max(most, sidecars + apps)


_SEPARATOR: Final = ","


def on_own_cpus(amounts: PodCpuAmounts, annotations: Mapping[str, object], problems: list[Problem]) -> PodCpuAmounts:
    """Keep the containers that run on the own CPUs of a Pod of class LSE or LSR.

    `problems`: is appended to; an annotation with a problem counts as not stated.
    """
    stated = _stated(amounts.containers, annotations, problems)
    if stated is None:
        return replace(amounts, containers=tuple(_implied(amounts)))
    return replace(amounts, containers=tuple(one for one in amounts.containers if one.name in stated))


def on_shared_cpus(pod: Mapping[str, Any]) -> frozenset[str]:
    """The names of the containers of a Pod of class LSE or LSR that run in the shared pool.

    Ephemeral containers are among them if the annotation names the Pod's containers: it cannot name these. Otherwise
    they run on the Pod's own CPUs, beside what they are to look at.
    """
    spec, problems = as_object(pod.get("spec"), "spec", []), list[Problem]()
    amounts = read_cpu_amounts(spec, [])
    annotations = as_object(as_object(pod.get("metadata"), "metadata", []).get("annotations"), "", [])
    own = {one.name for one in on_own_cpus(amounts, annotations, problems).containers}
    shared = frozenset(one.name for one in amounts.containers if one.name not in own)
    if OWN_CPUS not in annotations or problems:
        return shared
    return shared.union(str(one.get("name")) for one in spec.get("ephemeralContainers") or ())


def _stated(
    containers: Sequence[CpuAmounts], annotations: Mapping[str, object], problems: list[Problem]
) -> Collection[str] | None:
    """The containers that the annotation names; None if it is not stated, or wrong."""
    text = annotations.get(OWN_CPUS)
    if text is None:
        return None
    names = {one.name for one in containers if one.name}
    # No more parts than there are containers: the rest is one more part, which is no container's name.
    stated = [one.strip() for one in str(text).split(_SEPARATOR, len(names))]
    wrong = next((one for one in stated if one not in names), None)
    if wrong is None:
        return stated
    told = f"{excerpt(wrong)!r} is no container of the Pod" if wrong else "has an empty name"
    message = f"{told}; write the names of the containers that run on the Pod's own CPUs, separated by commas"
    problems.append(Problem(annotation_path(OWN_CPUS), message))
    return None


def _implied(amounts: PodCpuAmounts) -> Iterator[CpuAmounts]:
    """The containers that run on the Pod's own CPUs if it does not state which do."""
    authors = [one for one in amounts.containers if one.name not in INJECTED]
    if not _any_app(authors):
        authors = list(amounts.containers)
    large = [one for one in authors if not 0 < one.milli < CPU]
    whole = amounts.pod.cpu != (None, None) or any(one.milli and not one.milli % CPU for one in large)
    return iter(large if whole and _any_app(large) else authors)


def _any_app(containers: Sequence[CpuAmounts]) -> bool:
    return any(one.phase is Phase.APP for one in containers)
