"""All annotations that state what a Pod holds: device-allocated, visible devices, and resource-status."""

from collections.abc import Mapping

from allocator.vocabulary.cpuask import CpuAsk, QosClass
from allocator.vocabulary.cpunode import CpuShare, NumaShare, PoolCpus
from allocator.vocabulary.delivery import ASSUMED, Way
from allocator.vocabulary.devicetype import BUILT_IN, DeviceTypes
from allocator.vocabulary.holdings import Holding
from allocator.vocabulary.names import RESOURCE_STATUS
from allocator.wire.deviceallocated import write_annotations
from allocator.wire.resourcestatus import NumaResources, ResourceStatus, read_resource_status, write_resource_status


def write_allocation(
    holding: Holding, domain: str, types: DeviceTypes = BUILT_IN, way: Way = ASSUMED
) -> dict[str, str]:
    """Write a Pod's holding as annotations, resource names in this domain, and GPUs in the form of this way."""
    annotations = write_annotations(holding.shares, domain, types, way)
    if holding.cpus is not None:
        annotations[RESOURCE_STATUS] = write_resource_status(_status(holding.cpus))
    return annotations


def _status(share: CpuShare) -> ResourceStatus:
    numa = tuple(
        NumaResources(
            one.node,
            {
                **({"cpu": one.milli} if one.milli else {}),
                **({"memory": one.memory} if one.memory else {}),
                **dict(one.others),
            },
        )
        for one in share.numa
    )
    # CPU proposal, "Resource status": for Pods without CPUs of their own the status lists the pools to run in.
    pools = () if share.cpus else tuple(PoolCpus(one.socket, one.node) for one in share.numa)
    return ResourceStatus(share.cpus, numa, pools)


def read_cpu_share(annotations: Mapping[str, str], ask: CpuAsk | None, *, bound: bool = False) -> CpuShare | None:
    """Read the CPUs that a Pod holds; None if it has no resource-status annotation.

    `ask`: the Pod's request, because the annotation does not state its class and policies. `bound`: whether the Pod is
    bound: if it asks for CPUs of its own, it has some. Raises AnnotationError: the annotation does not have the format,
    or lacks the CPUs that the Pod has.
    """
    status = read_resource_status(annotations, own=bound and ask is not None and bool(ask.count))
    if status is None:
        return None
    sockets = {pool.node: pool.socket for pool in status.pools}
    numa = {
        one.node: NumaShare(
            one.node,
            one.amounts.get("cpu", 0),
            one.amounts.get("memory", 0),
            sockets.get(one.node, 0),
            tuple(sorted((name, amount) for name, amount in one.amounts.items() if name not in {"cpu", "memory"})),
        )
        for one in status.numa
    }
    for pool in status.pools:
        numa.setdefault(pool.node, NumaShare(pool.node, 0, 0, pool.socket))
    nodes = tuple(numa[at] for at in sorted(numa))
    if ask is None:
        return CpuShare(QosClass.LSR if status.cpus else QosClass.LS, status.cpus, numa=nodes)
    share = CpuShare(ask.qos, status.cpus, numa=nodes)
    if not status.cpus:
        return share
    return CpuShare(ask.qos, status.cpus, ask.preferred, ask.exclusive or share.exclusive, nodes)
