"""All annotations that state what a Pod holds: device-allocated, visible devices, and resource-status.

Resource-status has the CPUs, NUMA nodes and shared pools that a Pod was allocated:
`{"cpuset":"0-3","numaNodeResources":[{"node":0,"resources":{"cpu":"4"}}],"cpuSharedPools":[{"socket":0,"node":0}]}`;
`cpuSharedPools` is of the CPU proposal ("Resource status"), `numaNodeResources` of today's Koordinator
(apis/extension/numa_aware.go). An empty one is left out.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from allocator.vocabulary.cpuask import CpuAsk, QosClass
from allocator.vocabulary.cpunode import CpuShare, NumaShare, PoolCpus
from allocator.vocabulary.cpuset import format_cpuset
from allocator.vocabulary.delivery import ASSUMED, Way
from allocator.vocabulary.devicetype import BUILT_IN, DeviceTypes
from allocator.vocabulary.holdings import Holding
from allocator.vocabulary.names import RESOURCE_STATUS
from allocator.wire.deviceallocated import write_annotations
from allocator.wire.nodetopology import read_pool, write_pool
from allocator.wire.values import (
    UNREADABLE,
    as_cpus,
    as_id,
    as_json,
    as_list,
    as_object,
    as_text,
    read_amount,
    write_amount,
)

_MAX_NODES: Final = 256  # NUMA nodes


class AnnotationError(ValueError):
    """A resource-status that cannot be read; the message says why."""


@dataclass(frozen=True, slots=True)
class NumaResources:
    """What a Pod was allocated in one NUMA node, by resource: cpu in thousandths, others in their own unit."""

    node: int
    amounts: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ResourceStatus:
    """What a Pod was allocated."""

    cpus: int = 0  # the CPUs of its own; bit i is CPU i
    numa: tuple[NumaResources, ...] = ()  # the NUMA nodes to which it was aligned, one entry each
    pools: tuple[PoolCpus, ...] = ()  # the shared pools in which an LS Pod runs, by NUMA node, without their CPUs


def write_resource_status(status: ResourceStatus) -> str:
    """Write the annotation's value, NUMA nodes and pools in the order of their numbers."""
    value: dict[str, Any] = {}
    if status.cpus:
        value["cpuset"] = format_cpuset(status.cpus)
    if status.numa:
        value["numaNodeResources"] = [_write_numa(one) for one in sorted(status.numa, key=lambda one: one.node)]
    if status.pools:
        ordered = sorted(status.pools, key=lambda pool: (pool.socket, pool.node))
        value["cpuSharedPools"] = [write_pool(PoolCpus(pool.socket, pool.node)) for pool in ordered]
    return json.dumps(value, separators=(",", ":"))


def _write_numa(numa: NumaResources) -> dict[str, Any]:
    resources = {name: write_amount(name, amount) for name, amount in sorted(numa.amounts.items())}
    return {"node": numa.node, **({"resources": resources} if resources else {})}


def read_resource_status(annotations: Mapping[str, Any], *, own: bool = False) -> ResourceStatus | None:
    """Read a Pod's resource-status; None if it has none. Unknown fields are ignored.

    `own`: whether the Pod runs and has CPUs of its own, which the annotation must name. Raises AnnotationError: the
    annotation is not in Koordinator's format, or does not name the Pod's own CPUs.
    """
    text = annotations.get(RESOURCE_STATUS)
    if text is None:
        return None
    try:
        status = _read(as_object(as_json(text)))
    except UNREADABLE as error:
        raise AnnotationError(f"{RESOURCE_STATUS}: not Koordinator's format ({error})") from error
    if len({one.node for one in status.numa}) != len(status.numa):
        raise AnnotationError(f"{RESOURCE_STATUS}: names one NUMA node twice")
    if own and not status.cpus:
        raise AnnotationError(f"{RESOURCE_STATUS}: names no CPU, although the Pod asks for CPUs of its own")
    return status


def _read(raw: Mapping[str, Any]) -> ResourceStatus:
    return ResourceStatus(
        as_cpus(raw.get("cpuset")),
        tuple(_read_numa(as_object(entry)) for entry in as_list(raw.get("numaNodeResources"), _MAX_NODES)),
        tuple(read_pool(entry) for entry in as_list(raw.get("cpuSharedPools"), _MAX_NODES)),
    )


def _read_numa(entry: dict[str, Any]) -> NumaResources:
    resources = as_object(entry.get("resources"))
    return NumaResources(
        as_id(entry, "node"), {as_text(name): read_amount(name, amount) for name, amount in resources.items()}
    )


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
