"""What a Pod requests of CPU orchestration: its QoS class, and how many CPUs of its own.

Rules of the CPU proposal, "Koordinator QoS CPU orchestration principles" and "Resource spec", and of Koordinator
(apis/extension/qos.go, pkg/webhook/pod/validating, pkg/scheduler/plugins/nodenumaresource):

- Pods labelled LSE, LSR, LS or BE are ours; LS Pods because some nodes require their alignment. Pods without a label
  that the annotation numa-scope puts in scope are treated as LS Pods.
- Only Pods labelled LSE or LSR get CPUs of their own, which not all of their containers run on (`owncpus`). A new
  Guaranteed Pod without a label is LS (principle 8), though Koordinator's default for it is LSR.
- `preferredCPUBindPolicy` FullPCPUs and SpreadByPCPUs choose among CPUs of a Pod's own, and have no effect on other
  Pods. A `requiredCPUBindPolicy` on other Pods could not be kept and is refused.
- ConstrainedBurst keeps an LS Pod within the shared pool of a NUMA node that has room for its limit. It is refused
  without a CPU limit, and for every other class: their Pods do not run on a shared pool.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from allocator.quantity import format_bytes
from allocator.request.cpuamounts import CPU, INJECTED, PodCpuAmounts, as_object, on_own_cpus, read_cpu_amounts
from allocator.vocabulary.cpunode import BindPolicy, CpuAsk, ExclusivePolicy, NumaExclusive, NumaPolicy, QosClass
from allocator.vocabulary.devicetype import BUILT_IN, DeviceTypes
from allocator.vocabulary.names import NUMA_SCOPE, OWN_CPUS
from allocator.vocabulary.outcome import Problem, excerpt
from allocator.wire.podannotations import (
    NUMA_TOPOLOGY_SPEC,
    RESOURCE_SPEC,
    NumaTopologySpec,
    ResourceSpec,
    read_numa_topology_spec,
    read_resource_spec,
)
from allocator.wire.strict import annotation_path

QOS_LABEL: Final = "koordinator.sh/qosClass"
PRIORITY_CLASS_LABEL: Final = "koordinator.sh/priority-class"
PROD: Final = "koord-prod"
_RECLAIMED: Final = ("koord-mid", "koord-batch", "koord-free")  # priority classes of reclaimable resources
_BANDS: Final = ((PROD, 9000), ("koord-mid", 7000), ("koord-batch", 5000), ("koord-free", 3000))  # first priorities
_BAND: Final = 1000  # priorities of each band


IN_SCOPE: Final = "true"  # the value of the annotation koordgate.io/numa-scope
_BOUND: Final = (QosClass.LSE, QosClass.LSR)
_STATING: Final = (RESOURCE_SPEC, NUMA_TOPOLOGY_SPEC, NUMA_SCOPE, OWN_CPUS)
_NOT_OURS: Final = ("", "SYSTEM", None)  # labels that leave a Pod to the kubelet
_OR_SHARED: Final = f", or name only other containers in the annotation {OWN_CPUS}: this one then runs on shared CPUs"


@dataclass(frozen=True, slots=True)
class CpuAskReading:
    """A Pod as read: `ask` is None if CPU orchestration does not concern the Pod, or if there are problems.

    `shared` are the containers that run in the shared pool, although the Pod has CPUs of its own.
    """

    ask: CpuAsk | None
    problems: tuple[Problem, ...] = ()
    shared: frozenset[str] = frozenset()


NO_CPU_ASK: Final = CpuAskReading(None)


def names_cpus(pod: Mapping[str, Any]) -> bool:
    """Whether CPU orchestration may concern a Pod: a cheap test of its QoS label and four annotations."""
    metadata = pod.get("metadata")
    if not isinstance(metadata, dict):
        return False
    labels, annotations = metadata.get("labels"), metadata.get("annotations")
    if isinstance(labels, dict) and labels.get(QOS_LABEL, "") not in _NOT_OURS:
        return True
    return isinstance(annotations, dict) and not annotations.keys().isdisjoint(_STATING)


def read_cpu_ask(pod: Mapping[str, Any], *, devices: bool = False, types: DeviceTypes = BUILT_IN) -> CpuAskReading:
    """Read what a Pod requests of CPU orchestration, and every mistake in it.

    `pod`: the Pod object, with or without the API server's defaults. `devices`: whether the Pod requests devices. A
    node's NUMA policy then holds for its CPU and memory too. `types`: the device types; their resources are not counted
    here.
    """
    if not names_cpus(pod):
        return CpuAskReading(_implied(pod, types)) if devices else NO_CPU_ASK
    problems: list[Problem] = []
    metadata: dict[str, Any] = pod["metadata"]
    labels = as_object(metadata.get("labels"), "metadata.labels", problems)
    annotations = as_object(metadata.get("annotations"), "metadata.annotations", problems)
    wishes = read_resource_spec(annotations, problems)
    numa = read_numa_topology_spec(annotations, problems)
    label = _read_qos(labels, problems)
    _check_policies(label, wishes, problems)
    if OWN_CPUS in annotations and label not in _BOUND:
        message = (
            f"is for Pods that get CPUs of their own; label the Pod {QOS_LABEL}: LSR (or LSE), or remove the annotation"
        )
        problems.append(Problem(annotation_path(OWN_CPUS), message))
    aligned = numa.exclusive is not None or numa.policy not in {None, NumaPolicy.NONE}
    burst = BindPolicy.CONSTRAINED_BURST in {wishes.required, wishes.preferred}
    scoped = _in_scope(annotations, problems) and label is None
    if label in {None, QosClass.SYSTEM} and not (aligned or burst or scoped):
        ask = _implied(pod, types) if devices and label is None and not problems else None
        return CpuAskReading(ask, tuple(problems))
    unread: list[Problem] = []
    spec = as_object(pod.get("spec"), "spec", unread)
    amounts = read_cpu_amounts(spec, unread, types.resources)
    wrong: list[Problem] = []
    own = on_own_cpus(amounts, annotations, wrong) if label in _BOUND else amounts
    problems.extend(wrong)
    ask = _ask(label, wishes, numa, amounts, own.milli)
    if label in _BOUND or label is QosClass.BE:
        _check_priority(label, labels, spec, problems)
    if label in _BOUND:
        if not (unread or wrong):
            _check_whole(label, own, len(amounts.containers), problems)
    elif ask.constrained_burst and not unread:
        _check_limited(amounts, problems)
    problems.extend(unread)
    shared = {one.name for one in amounts.containers}.difference(one.name for one in own.containers)
    return CpuAskReading(None if problems else ask, tuple(problems), frozenset(shared))


def _implied(pod: Mapping[str, Any], types: DeviceTypes) -> CpuAsk | None:
    """Read the amounts for a node's NUMA policy of a Pod that states nothing about CPUs; None if it has none."""
    labels = (pod.get("metadata") or {}).get("labels") or {}
    if labels.get(QOS_LABEL) == QosClass.SYSTEM:
        return None
    unread: list[Problem] = []
    amounts = read_cpu_amounts(as_object(pod.get("spec"), "spec", unread), unread, types.resources)
    if unread or not (amounts.milli or amounts.memory or amounts.others):
        return None  # the API server reports what cannot be read
    return replace(_ask(QosClass.LS, ResourceSpec(), NumaTopologySpec(), amounts, 0), implied=True)


def _marks(pod: Mapping[str, Any]) -> tuple[object, Mapping[str, Any]]:
    """A Pod's QoS label and its annotations; what has another shape is left out, because it is refused elsewhere."""
    metadata = as_object(pod.get("metadata"), "metadata", [])
    annotations = as_object(metadata.get("annotations"), "metadata.annotations", [])
    return as_object(metadata.get("labels"), "metadata.labels", []).get(QOS_LABEL), annotations


def not_aligned(pod: Mapping[str, Any]) -> str:
    """Warn of a numa-topology-spec on a Pod of class BE or SYSTEM, of which it aligns the devices only; "" if none."""
    label, annotations = _marks(pod)
    if label not in {QosClass.BE, QosClass.SYSTEM} or NUMA_TOPOLOGY_SPEC not in annotations:
        return ""
    return (
        f"{annotation_path(NUMA_TOPOLOGY_SPEC)}: holds for the devices of a Pod of class {label} only; its CPUs "
        f"and memory may come from every NUMA node. Set the label {QOS_LABEL} to LS to align them"
    )


def not_guaranteed(pod: Mapping[str, Any]) -> str:
    """Warn of an amount of a Pod of class LSE or LSR whose request is not its limit; "" if there is none.

    The kubelet's static policy gives CPUs to Guaranteed Pods only, and does not know that others have any. The CPU of
    containers that run in the shared pool may differ.
    """
    label, _ = _marks(pod)
    if label not in _BOUND:
        return ""
    amounts = read_cpu_amounts(as_object(pod.get("spec"), "spec", []), [])
    for one in (*amounts.containers, amounts.pod):
        for name, (request, limit), written in (
            ("memory", one.memory, format_bytes),
            ("cpu", one.cpu, "{}m".format),
        ):
            if request is not None and request != limit:
                return (
                    f"{one.path}.limits[{name}]: {'missing' if limit is None else 'differs from the request'}; the Pod "
                    "is not Guaranteed then, and a kubelet of the CPU manager policy static may give its CPUs to "
                    f"another Pod: write {written(request)} in both"
                )
    return ""


def below_one(pod: Mapping[str, Any], shared: frozenset[str]) -> str:
    """Warn of containers that run in the shared pool because they ask for less than one CPU; "" if none does.

    `shared`: its containers that run in the shared pool, as `read_cpu_ask` says.
    """
    names = shared - INJECTED
    if not names or OWN_CPUS in _marks(pod)[1]:
        return ""
    amounts = read_cpu_amounts(as_object(pod.get("spec"), "spec", []), [])
    small = [one for one in amounts.containers if one.name in names]
    more = f" (and {len(small) - 1} more)" if len(small) > 1 else ""
    return (
        f"{small[0].path}: less than one CPU, so that this container{more} runs on shared CPUs, not on the Pod's own; "
        f"to state which containers run on these, name them in the annotation {OWN_CPUS}"
    )


def without_effect(pod: Mapping[str, Any]) -> str:
    """Warn of a resource-spec that chooses among CPUs of a Pod's own, on a Pod that gets none; "" if there is none.

    Koordinator ignores it silently.
    """
    label, annotations = _marks(pod)
    spec = ResourceSpec() if label in _BOUND else read_resource_spec(annotations, [])
    if BindPolicy.CONSTRAINED_BURST in {spec.required, spec.preferred}:
        return ""
    stated = [
        key
        for key, value in (
            ("preferredCPUBindPolicy", spec.preferred),
            ("preferredCPUExclusivePolicy", spec.exclusive),
            ("requiredCPUBindPolicy", spec.required),
        )
        if value is not None
    ]
    if not stated:
        return ""
    return (
        f"{annotation_path(RESOURCE_SPEC)}: {', '.join(stated)} without effect: only Pods labelled {QOS_LABEL}: LSE or "
        "LSR get CPUs of their own"
    )


def _read_qos(labels: Mapping[str, Any], problems: list[Problem]) -> QosClass | None:
    value = labels.get(QOS_LABEL)
    if value in (None, ""):
        return None
    for qos in QosClass:
        if qos.value == value:
            return qos
    shown = repr(excerpt(value)) if isinstance(value, str) else f"a {type(value).__name__}"
    allowed = ", ".join(QosClass)
    problems.append(Problem(f"metadata.labels[{QOS_LABEL}]", f"{shown} is no QoS class; write one of {allowed}"))
    return None


def _in_scope(annotations: Mapping[str, Any], problems: list[Problem]) -> bool:
    """Whether a Pod without a class is held to a node's NUMA policy as an LS Pod is."""
    value = annotations.get(NUMA_SCOPE)
    if value not in (None, IN_SCOPE):
        problems.append(Problem(annotation_path(NUMA_SCOPE), f'must be "{IN_SCOPE}"; write that, or remove it'))
    return value == IN_SCOPE


def _ask(
    label: QosClass | None, wishes: ResourceSpec, numa: NumaTopologySpec, amounts: PodCpuAmounts, own: int
) -> CpuAsk:
    """What a Pod asks.

    `own`: thousandths of a CPU that its containers on its own CPUs request, if it has such CPUs.
    """
    milli, memory = amounts.milli, amounts.memory
    required = wishes.required
    tried = required or wishes.preferred
    preferred = None if tried is BindPolicy.DEFAULT else tried
    exclusive = None if wishes.exclusive is ExclusivePolicy.DEFAULT else wishes.exclusive
    bound = label in _BOUND
    if not bound:
        exclusive = None
        if preferred is not BindPolicy.CONSTRAINED_BURST:
            required = preferred = None
    policy = None if numa.policy is NumaPolicy.NONE else numa.policy
    total = milli + amounts.overhead_milli
    return CpuAsk(
        qos=label or (QosClass.LS if milli or memory else QosClass.BE),
        count=(own + amounts.overhead_milli) // CPU if bound else 0,
        milli=total,
        memory=memory + amounts.overhead_memory,
        limit_milli=amounts.limit_milli,
        required=required,
        preferred=preferred,
        exclusive=exclusive,
        numa_policy=policy,
        single_numa_exclusive=numa.exclusive or (NumaExclusive.REQUIRED if policy else None),
        of_kubelet=amounts.of_kubelet,
        others=amounts.others,
    )


# What is wrong


def _check_policies(label: QosClass | None, wishes: ResourceSpec, problems: list[Problem]) -> None:
    path = annotation_path(RESOURCE_SPEC)
    burst = BindPolicy.CONSTRAINED_BURST
    if burst in {wishes.required, wishes.preferred}:
        if label in _BOUND:
            message = (
                f"{burst} chooses a shared pool for LS Pods, but a Pod of class {label} gets CPUs of its own; "
                f"write {BindPolicy.DEFAULT}, {BindPolicy.FULL_PCPUS} or {BindPolicy.SPREAD_BY_PCPUS}"
            )
            problems.append(Problem(path, message))
        elif label in {QosClass.BE, QosClass.SYSTEM}:
            message = f"{burst} is for LS Pods; a Pod of class {label} does not run in the shared pool; remove it"
            problems.append(Problem(path, message))
    if label not in _BOUND and wishes.required in {BindPolicy.FULL_PCPUS, BindPolicy.SPREAD_BY_PCPUS}:
        message = (
            f"requiredCPUBindPolicy {wishes.required} is for Pods that get CPUs of their own; "
            f"label the Pod {QOS_LABEL}: LSR (or LSE), or remove the policy"
        )
        problems.append(Problem(path, message))


def _check_priority(
    qos: QosClass | None, labels: Mapping[str, Any], spec: Mapping[str, Any], problems: list[Problem]
) -> None:
    """Find a priority class that contradicts the QoS class, as Koordinator's webhook does.

    CPUs of a Pod's own cannot be reclaimed, as those of the classes mid, batch and free are. A Pod of class BE runs on
    reclaimed CPUs, which koord-prod excludes. The label comes first, then the priority class's name, then the band of
    `spec.priority` (Koordinator, apis/extension/priority.go). A Pod outside the bands has no such class.
    """
    label = labels.get(PRIORITY_CLASS_LABEL)
    path, named = f"metadata.labels[{PRIORITY_CLASS_LABEL}]", label
    if label in (None, ""):
        path, named = "spec.priorityClassName", spec.get("priorityClassName")
        if named != PROD and named not in _RECLAIMED:
            path, named = "spec.priority", _band(spec.get("priority"))
    if named is None:
        return
    if qos is QosClass.BE:
        if named == PROD:
            message = (
                f"a Pod of class BE runs on reclaimed CPUs, and {PROD} excludes that; use {' or '.join(_RECLAIMED)}"
            )
            problems.append(Problem(path, message))
    elif named != PROD:
        message = f"a Pod of class {qos} has CPUs of its own, which needs {PROD}; write {PROD}, or leave it out"
        problems.append(Problem(path, message))


def _band(priority: object) -> str | None:
    """Name the priority class in whose band a priority is; None outside the bands."""
    if not isinstance(priority, int):
        return None
    return next((name for name, first in _BANDS if first <= priority < first + _BAND), None)


def _check_whole(qos: QosClass | None, amounts: PodCpuAmounts, containers: int, problems: list[Problem]) -> None:
    """Find CPU amounts that are not whole, or whose limit is not the request (CPU proposal, QoS principle 1).

    A container that states no CPU runs on the Pod's. CPU stated for the Pod as a whole follows the same rule; a limit
    alone is compared with the request that the API server derives: the sum of the containers.
    `amounts`: of the containers that run on the Pod's own CPUs.
    """
    known = len(problems)
    for one in amounts.containers:
        _check_pair(one.path, *one.cpu, problems)
    if containers > 1:
        problems[known:] = [replace(one, message=f"{one.message}{_OR_SHARED}") for one in problems[known:]]
    request, limit = amounts.pod.cpu
    if request is None and limit is not None and len(problems) == known:
        request = amounts.milli
    _check_pair(amounts.pod.path, request, limit, problems)
    if amounts.overhead_milli % CPU:
        message = (
            f"{amounts.overhead_milli}m is not a whole number of CPUs, so the Pod's sum is not either; "
            f"use a RuntimeClass whose overhead is whole, or a QoS class other than {qos}"
        )
        problems.append(Problem("spec.overhead[cpu]", message))
    if len(problems) == known and not amounts.milli:
        message = f"a Pod of class {qos} requests no CPU; state a whole number of CPUs in requests and limits"
        if len(amounts.containers) < containers:
            message = (
                f"no container that runs on the Pod's own CPUs requests any; name in the annotation {OWN_CPUS} the "
                "containers that run on them, with a whole number of CPUs in requests and limits"
            )
        problems.append(Problem("spec.containers", message))


def _check_pair(path: str, request: int | None, limit: int | None, problems: list[Problem]) -> None:
    found = [
        Problem(f"{path}.{key}[cpu]", f"{amount}m is no whole number of CPUs; write {_nearest(amount)}")
        for key, amount in (("requests", request), ("limits", limit))
        if amount is not None and amount % CPU
    ]
    if found:
        problems.extend(found)
    elif request is not None and limit is None:
        if request:
            message = f"missing; in a Pod of class LSE or LSR it must equal the request: write {request // CPU}"
            problems.append(Problem(f"{path}.limits[cpu]", message))
    elif request is not None and limit is not None and request != limit:
        low, high = request // CPU, limit // CPU
        message = f"request {low} and limit {high} differ; in a Pod of class LSE or LSR write {low} or {high} in both"
        problems.append(Problem(f"{path}.requests[cpu]", message))


def _nearest(milli: int) -> str:
    low = milli // CPU
    return f"{low} or {low + 1}" if low else "1"


def _check_limited(amounts: PodCpuAmounts, problems: list[Problem]) -> None:
    """Find why a Pod of policy ConstrainedBurst has no CPU limit, by which its pool is chosen."""
    if amounts.limit_milli:
        return
    one = amounts.unlimited
    path = f"{one.path}.limits[cpu]" if one else "spec.containers"
    what = "missing" if one else "no CPU limit is above 0"
    message = f"{what}; {BindPolicy.CONSTRAINED_BURST} chooses a pool by the Pod's CPU limit: state one"
    problems.append(Problem(path, message))
