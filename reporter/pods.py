"""What the reporter keeps of a Pod (pure): everything allocated to it, and how to find its containers."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import or_
from typing import Any, Final

from allocator.quantity import QuantityError, to_int, to_milli
from allocator.request.cpuamounts import on_shared_cpus
from allocator.request.cpus import QOS_LABEL
from allocator.vocabulary.cpunode import QosClass
from allocator.vocabulary.delivery import MIB, decided_limits
from allocator.vocabulary.devicetype import BUILT_IN, DeviceTypes
from allocator.vocabulary.holdings import Share
from allocator.vocabulary.names import DEVICE_ALLOCATED, GPU_MEMORY, REPORTER_MANAGER, TYPE_GPU
from allocator.wire.deviceobject import starts_of
from allocator.wire.podallocated import (
    AnnotationError,
    ResourceStatus,
    read_allocation,
    read_quotas,
    read_resource_status,
    shown,
)
from reporter.cgroup import plan
from reporter.cgroup.layout import KubernetesQos, cgroup_uid

_FINISHED: Final = ("Succeeded", "Failed")
_CPU: Final = 1000
_OWN_CPUS: Final = (QosClass.LSE, QosClass.LSR)
_CPU_NAMES: Final = ("cpu", "kubernetes.io/batch-cpu")


@dataclass(frozen=True, slots=True)
class NodePod:
    """A Pod of this node."""

    uid: str
    namespace: str
    name: str
    cgroup: str  # the UID in its cgroup's name: for a static Pod, its file's hash. The kubelet's files use it too.
    qos_class: KubernetesQos  # its Kubernetes QoS class
    qos: str = ""  # its label koordinator.sh/qosClass, "" without
    shares: tuple[Share, ...] = ()  # the devices allocated to it, as far as they can be read
    # when those were resolved that it names by minor alone; empty if there are none, or if it is not known
    starts: tuple[int, ...] = ()
    unread: tuple[str, ...] = ()  # the device types of which it holds what cannot be read
    # container and device type to the ids in the container's environment, without CDI kinds
    visible: Mapping[tuple[str, str], frozenset[str]] = field(default_factory=dict)
    # container to the bytes of each of its GPUs to which it is to be kept, where that was decided
    limits: Mapping[str, int] = field(default_factory=dict)
    # container and id of a GPU to the bytes of it that are the container's part, where the bind stated that
    parts: Mapping[tuple[str, str], int] = field(default_factory=dict)
    status: ResourceStatus | None = None  # the CPUs allocated to it; None if none were
    # whether its resource-status cannot be read, or names no CPU of those that the Pod has alone, so that its CPUs are
    # unknown
    status_unreadable: bool = False
    # container, including init containers, to the whole CPUs that it requests; 0 if it requests none
    asked: Mapping[str, int] = field(default_factory=dict)
    # containers that run in the shared pool, although the Pod may have CPUs of its own
    shared: frozenset[str] = frozenset()
    # whole CPUs that its containers request in sum, rounded up; of Koordinator's batch-cpu too. 1 at least.
    needs: int = 1
    # id of each container, without its runtime, to its name
    containers: Mapping[str, str] = field(default_factory=dict)
    acknowledged: bool = False  # whether the kubelet has written its status, and so has admitted it
    deleted: bool = False  # whether it was deleted: it has ended, or is about to
    finished: bool = False  # whether it has ended
    problems: tuple[str, ...] = ()  # what of it cannot be read, a sentence each

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def cpus(self) -> int:
        """The CPUs allocated to it alone; 0 if there are none."""
        return self.status.cpus if self.status is not None else 0

    @property
    def may_own_cpus(self) -> bool:
        """Whether it may have CPUs of its own, which its resource-status does not say because it cannot be read.

        Koordinator's scheduler gives CPUs to Guaranteed Pods without a class as well.
        """
        guaranteed = not self.qos and self.qos_class is KubernetesQos.GUARANTEED
        return self.status_unreadable and (self.qos in _OWN_CPUS or guaranteed)

    @property
    def has_gpu(self) -> bool:
        """Whether any part of a GPU was allocated to it."""
        return any(share.type == TYPE_GPU for share in self.shares)

    @property
    def whole_cpus(self) -> bool:
        """Whether one of its containers requests whole CPUs."""
        return any(self.asked.values())

    def planned(self, *, mems: bool) -> plan.Pod:
        """The Pod as the cpuset plan takes it.

        `mems`: whether its memory follows the NUMA nodes that were allocated.
        """
        pod = plan.Pod(
            uid=self.cgroup,
            name=str(self),
            qos_class=self.qos_class,
            qos=self.qos,
            whole_cpus=self.whole_cpus,
            unreadable=self.status_unreadable,
            needs=self.needs,
            shared={identity: name for identity, name in self.containers.items() if name in self.shared},
        )
        return planned(pod, self.status, mems=mems)


def read_pod(obj: Mapping[str, Any], types: DeviceTypes = BUILT_IN) -> NodePod:
    """Read a Pod object; what cannot be read is left out and becomes a problem."""
    metadata, spec, status = obj["metadata"], obj.get("spec") or {}, obj.get("status") or {}
    annotations = metadata.get("annotations") or {}
    allocation = read_allocation(annotations, types)
    problems = [allocation.problem] if allocation.problem else []
    qos = (metadata.get("labels") or {}).get(QOS_LABEL, "")
    containers = [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]
    asked = {str(container.get("name")): _whole_cpus(container) for container in containers}
    shared = on_shared_cpus(obj) if qos in _OWN_CPUS else frozenset()
    own = any(cpus for name, cpus in asked.items() if name not in shared)
    decided: ResourceStatus | None = None
    status_unreadable = False
    try:
        decided = read_status(annotations, qos, own=own)
    except AnnotationError as error:
        status_unreadable = True
        problems.append(str(error))
    return NodePod(
        uid=metadata["uid"],
        namespace=metadata.get("namespace", ""),
        name=metadata["name"],
        cgroup=cgroup_uid(metadata["uid"], annotations),
        qos_class=_qos_class(status.get("qosClass")),
        qos=qos,
        shares=allocation.shares,
        starts=starts_of(obj) if any(not share.id for share in allocation.shares) else (),
        unread=allocation.unread,
        visible=_visible(annotations) if DEVICE_ALLOCATED in annotations else {},
        limits={container: mib * MIB for container, mib in decided_limits(annotations).items()},
        parts=_parts(annotations, types),
        status=decided,
        status_unreadable=status_unreadable,
        asked=asked,
        shared=shared,
        needs=max(-(-sum(map(_milli, spec.get("containers") or ())) // _CPU), 1),
        containers=_container_ids(status),
        acknowledged=bool(status.get("startTime")),
        deleted="deletionTimestamp" in metadata,
        finished=status.get("phase") in _FINISHED,
        problems=tuple(problems),
    )


def in_order(pods: Iterable[NodePod]) -> tuple[NodePod, ...]:
    """Sort Pods by namespace, name and UID."""
    return tuple(sorted(pods, key=lambda pod: (pod.namespace, pod.name, pod.uid)))


def read_status(annotations: Mapping[str, str], qos: str, *, own: bool = True) -> ResourceStatus | None:
    """Read the CPUs that were allocated to a Pod of this class; None if none were.

    `own`: whether a container runs on CPUs of the Pod's own, if its class has such. Raises AnnotationError: they
    cannot be read.
    """
    return read_resource_status(annotations, own=own and qos in _OWN_CPUS)


def planned(pod: plan.Pod, status: ResourceStatus | None, *, mems: bool) -> plan.Pod:
    """A Pod in the cpuset plan, with what was allocated to it.

    `mems`: whether its memory follows the NUMA nodes that were allocated.
    """
    if status is None:
        return pod
    nodes = reduce(or_, (1 << one.node for one in status.numa), 0) if mems else 0
    return replace(pod, cpus=status.cpus, pools=_pools(status), mems=nodes)


def _pools(status: ResourceStatus) -> int:
    """The NUMA nodes whose shared pools a Pod runs in: those that are named, else those in which it has CPU.

    Koordinator's scheduler writes no cpuSharedPools; its koordlet takes the NUMA nodes whose resources include CPU
    (pkg/koordlet/runtimehooks/hooks/cpuset). An entry without any resources names the NUMA node alone.
    """
    if status.pools:
        return reduce(or_, (1 << pool.node for pool in status.pools))
    with_cpu = (one.node for one in status.numa if not one.amounts or any(map(one.amounts.get, _CPU_NAMES)))
    return reduce(or_, (1 << node for node in with_cpu), 0)


def _qos_class(value: object) -> KubernetesQos:
    """The QoS class; Burstable for a Pod that has none yet."""
    return next((one for one in KubernetesQos if one.value == value), KubernetesQos.BURSTABLE)


def _visible(annotations: Mapping[str, str]) -> dict[tuple[str, str], frozenset[str]]:
    return {(container, kind): frozenset(ids) for kind, container, ids in shown(annotations)}


def _parts(annotations: Mapping[str, str], types: DeviceTypes) -> dict[tuple[str, str], int]:
    """The memory of each GPU that is a container's part of it."""
    return {
        (container, quota.id): amount
        for container, quotas in read_quotas(annotations, types).items()
        for quota in quotas
        if quota.type.name == TYPE_GPU and (amount := quota.amounts.get(GPU_MEMORY)) is not None
    }


def _whole_cpus(container: Mapping[str, Any]) -> int:
    amount = ((container.get("resources") or {}).get("requests") or {}).get("cpu")
    try:
        milli = to_milli(amount) if amount is not None else 0
    except QuantityError:
        return 0
    return milli // _CPU if milli > 0 and milli % _CPU == 0 else 0


def _milli(container: Mapping[str, Any]) -> int:
    """Thousandths of a CPU that a container requests; Koordinator's batch-cpu counts these itself."""
    cpu, batch = map(((container.get("resources") or {}).get("requests") or {}).get, _CPU_NAMES)
    try:
        return (to_milli(cpu) if cpu is not None else 0) + (to_int(batch) if batch is not None else 0)
    except QuantityError:
        return 0


def _container_ids(status: Mapping[str, Any]) -> dict[str, str]:
    found = {}
    for key in ("initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses"):
        for one in status.get(key) or ():
            identity = str(one.get("containerID") or "").partition("://")[2]
            if identity:
                found[identity] = str(one.get("name"))
    return found


MANAGER: Final = REPORTER_MANAGER  # the owner of our fields


@dataclass(frozen=True, slots=True)
class NodeIdentity:
    """The part of a Node that matters here."""

    name: str
    uid: str
    # its annotations; the administrator's are copied to the NodeResourceTopology
    annotations: Mapping[str, str] = field(default_factory=dict)

    @property
    def owner(self) -> dict[str, Any]:
        """An owner reference: objects that have it are deleted with the Node."""
        return {"apiVersion": "v1", "kind": "Node", "name": self.name, "uid": self.uid}


def read_node(obj: Mapping[str, Any]) -> NodeIdentity:
    """Read a Node object."""
    metadata = obj["metadata"]
    return NodeIdentity(metadata["name"], metadata["uid"], dict(metadata.get("annotations") or {}))
