"""All annotations that state what a Pod holds: device-allocated, visible devices, and resource-status.

Resource-status has the CPUs, NUMA nodes and shared pools that a Pod was allocated:
`{"cpuset":"0-3","numaNodeResources":[{"node":0,"resources":{"cpu":"4"}}],"cpuSharedPools":[{"socket":0,"node":0}]}`;
`cpuSharedPools` is of the CPU proposal ("Resource status"), `numaNodeResources` of today's Koordinator
(apis/extension/numa_aware.go). An empty one is left out.

The device-allocated annotation in Koordinator's format (its apis/extension/device_share.go), and visible devices.

`{"gpu":[{"minor":0,"resources":{"kubernetes.io/gpu-core":"50",...},"id":"GPU-..."}]}`; resource names come out
sorted, memory in Kubernetes' binary form. It describes the Pod as a whole. One annotation per container and type says
which devices the container sees. The device proposal's own spellings are read as well: `resouurces`, `gpu-mem`,
`gpu-mem-ratio`, `uuid`.

What each container of a Pod may use of its devices, as annotations that only the bind writes.

koordgate.io/device-quotas is JSON: container -> device type -> one entry per device, in the order of minors. For the
downward API there is one more annotation per container and resource, which lists the same amounts as plain numbers.
A container of a group has its fractions of the group's holding beside its amounts (FLIP-53, step 3): `3/4`.

A limiter may take 0, or an empty text, for "no limit". An amount of nothing is therefore written as `none`, and what is
not limited as `unlimited`.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Final

from allocator.quantity import QuantityError, format_bytes, format_int, to_int
from allocator.vocabulary.asks import DeviceQuota, Quotas
from allocator.vocabulary.cpunode import CpuAsk, CpuShare, NumaShare, PoolCpus, QosClass
from allocator.vocabulary.cputopology import format_cpuset
from allocator.vocabulary.delivery import ASSUMED, ENFORCER, VOID, Delivery, Way, nri_annotation, unqualified
from allocator.vocabulary.devicetype import BUILT_IN, DeviceType, DeviceTypes
from allocator.vocabulary.holdings import Function, Holding, Share
from allocator.vocabulary.names import (
    DEVICE_ALLOCATED,
    DEVICE_QUOTAS,
    DOMAINS,
    GPU_MEMORY,
    GPU_MEMORY_RATIO,
    MEMORY_LIMIT_PREFIX,
    RESOURCE_STATUS,
    TYPE_GPU,
    device_quota,
    enforcer_cards,
    required_plugins,
    shown_by,
    visible_devices,
)
from allocator.wire.nodetopology import read_pool, write_pool
from allocator.wire.values import (
    UNREADABLE,
    as_cpus,
    as_id,
    as_json,
    as_list,
    as_object,
    as_text,
    parse_json,
    read_amount,
    stated,
    write_amount,
)

LARGEST_MINOR: Final = 2**31 - 1  # an int32 in Koordinator
_DRAFT_NAMES: Final = {  # the device proposal's spelling -> today's
    f"{domain}/{draft}": f"{domain}/{tail}"
    for domain in DOMAINS
    for draft, tail in (("gpu-mem", GPU_MEMORY), ("gpu-mem-ratio", GPU_MEMORY_RATIO))
}


_REQUIRED: Final = json.dumps([ENFORCER])


def write_annotations(
    shares: Sequence[Share], domain: str, types: DeviceTypes = BUILT_IN, way: Way = ASSUMED
) -> dict[str, str]:
    """Write a Pod's shares: device-allocated, and the visible devices of each container and type.

    `way`: how its containers get their GPUs, and in which form these are named. NVIDIA's NRI plugin has an annotation
    of its own beside the one that the variable reads. So has the enforcer where it alone shows them. The variable then
    reads `void`, and the runtime's validator lets the container wait while the enforcer is away.
    """
    if not shares:
        return {}
    by_nri = way.delivery is Delivery.NVIDIA_NRI
    by_type: dict[str, list[dict[str, Any]]] = {}
    seen: dict[str, list[str]] = {}
    for share in sorted(shares, key=lambda share: (share.type, share.minor, share.id)):
        by_type.setdefault(share.type, []).append(_write_share(share, types.by_name.get(share.type), domain))
        for container in share.containers:
            gpu = share.type == TYPE_GPU
            if gpu and way.hidden:
                seen[visible_devices(container)] = [VOID]
                seen.setdefault(enforcer_cards(container), []).append(share.id)
                seen[required_plugins(container)] = [_REQUIRED]
                continue
            name = way.named(share.id) if gpu and not by_nri else share.id
            seen.setdefault(visible_devices(container, share.type), []).append(name)
            if gpu and by_nri:
                seen.setdefault(nri_annotation(container), []).append(way.named(share.id))
    annotations = {DEVICE_ALLOCATED: json.dumps(by_type, separators=(",", ":"))}
    annotations.update((key, ",".join(ids)) for key, ids in seen.items())
    return annotations


def _write_share(share: Share, kind: DeviceType | None, domain: str) -> dict[str, Any]:
    """Write a share. The tails of a type that has left the settings are written as they are, without a domain."""
    named = sorted((kind.resource_name(domain, tail) if kind else tail, tail) for tail in share.amounts)
    amounts = {
        name: format_bytes(share.amounts[tail]) if kind and kind.in_bytes(tail) else format_int(share.amounts[tail])
        for name, tail in named
    }
    entry: dict[str, Any] = {"minor": share.minor, "resources": amounts}
    if share.id:  # Koordinator leaves an empty one out
        entry["id"] = share.id
    extension = stated(
        vfs=[_write_function(function) for function in share.functions],
        gpuSharedResourceTemplate=kind.template_of(share.amounts) if kind else "",  # Koordinator's key, for every type
    )
    return {**entry, **stated(extension=extension)}


def _write_function(function: Function) -> dict[str, Any]:
    return {**stated(minor=function.minor), "busID": function.bus_id}


def in_any_form(annotations: Mapping[str, str]) -> dict[str, str]:
    """A Pod's annotations with its GPUs by their bare UUIDs, and without what says the same to a plugin of the node.

    Two replicas may have heard differently of a node's runtime. What they wrote for the same holding is then equal.
    Where limits are stated, it is not the same whether the enforcer alone shows the cards.
    """
    found = dict(annotations)
    for key in annotations:
        kind, container = shown_by(key) or ("", "")
        if kind == TYPE_GPU:
            hidden = enforcer_cards(container)
            if found[key] == VOID and hidden in found and f"{MEMORY_LIMIT_PREFIX}{container}" not in found:
                found[key] = found.pop(hidden)
                found.pop(required_plugins(container), None)
            found[key] = _bare(found[key])
            again = nri_annotation(container)
            if again in found and _bare(found[again]) == found[key]:
                del found[again]
    return found


def _bare(names: str) -> str:
    return ",".join(map(unqualified, names.split(",")))


@dataclass(frozen=True, slots=True)
class DeviceAllocation:
    """A device-allocated annotation as read."""

    shares: tuple[Share, ...] = ()  # what could be read. A share without amounts is one whose entry states none.
    # the device types whose entries cannot be read; all types if the text as a whole cannot
    unread: tuple[str, ...] = ()
    problem: str = ""  # what cannot be read; "" if everything can


def read_allocation(annotations: Mapping[str, str], types: DeviceTypes = BUILT_IN) -> DeviceAllocation:
    """Read a Pod's shares from its annotations, each device type by itself; nothing if it has no device-allocated."""
    text = annotations.get(DEVICE_ALLOCATED)
    if text is None:
        return DeviceAllocation()
    try:
        entries = [(kind, listed) for kind, listed in parse_json(text).items() if kind in types.by_name]
    except (*UNREADABLE, AttributeError) as error:
        return DeviceAllocation(unread=tuple(types.by_name), problem=_unlike(error))
    containers = _containers_of(annotations)
    shares: list[Share] = []
    problems: dict[str, str] = {}
    for kind, listed in entries:
        try:
            found = [_read_share(types.by_name[kind], entry, containers, types) for entry in _list(listed)]
        except (ValueError, TypeError, AttributeError, KeyError) as error:
            problems[kind] = _unlike(error)
            continue
        if len({share.id or share.minor for share in found}) != len(found):
            problems[kind] = f"{DEVICE_ALLOCATED}: names one device twice"
            continue
        shares += found
    return DeviceAllocation(tuple(shares), tuple(problems), "; ".join(problems.values()))


def _unlike(error: Exception) -> str:
    return f"{DEVICE_ALLOCATED}: not Koordinator's format ({error})"


def _list(value: object) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError(f"{type(value).__name__} where a list is required")
    return value


def _containers_of(annotations: Mapping[str, str]) -> dict[tuple[str, str], list[str]]:
    """Map type and device id to the containers that see the device, in the order of their names."""
    found: dict[tuple[str, str], list[str]] = {}
    for kind, container, devices in shown(annotations):
        for device in devices:
            found.setdefault((kind, device), []).append(container)
    return found


def shown(annotations: Mapping[str, str]) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Find the devices that each container is shown: type, container and ids, in the order of the annotations' keys."""
    for key in sorted(annotations):
        kind, container = shown_by(key) or ("", "")
        if kind:
            hidden = annotations.get(enforcer_cards(container), "")
            ids = hidden if kind == TYPE_GPU and annotations[key] == VOID else annotations[key]
            yield kind, container, tuple((_bare(ids) if kind == TYPE_GPU else ids).split(",")) if ids else ()


def _read_share(
    kind: DeviceType, entry: Mapping[str, Any], containers: Mapping[tuple[str, str], list[str]], types: DeviceTypes
) -> Share:
    minor = _minor(entry["minor"])
    if not 0 <= minor <= LARGEST_MINOR:
        raise ValueError("a minor is not from 0 to 2^31-1")
    identity = _text(entry.get("id") or entry.get("uuid"))
    amounts: dict[str, int] = {}
    for name, amount in (entry.get("resources") or entry.get("resouurces") or {}).items():
        known = types.resources.get(_DRAFT_NAMES.get(name, name))
        if known is not None and known.type == kind and known.dialect.own and known.tail in kind.tails:
            try:
                amounts[known.tail] = to_int(amount)
            except QuantityError as error:
                raise ValueError(f"{name}: {error}") from error
    functions = tuple(map(_read_function, _list((entry.get("extension") or {}).get("vfs") or [])))
    return Share(kind.name, identity, minor, amounts, tuple(containers.get((kind.name, identity), ())), functions)


def _read_function(entry: Mapping[str, Any]) -> Function:
    return Function(_minor(entry.get("minor", 0)), _text(entry.get("busID")))


def _minor(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"minor {value!r} is no number")
    return value


def _text(value: object) -> str:
    text = str(value or "")
    text.encode()  # UnicodeEncodeError, a ValueError: a lone surrogate, which no object in the cluster can hold
    return text


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
    pools = sorted(status.pools, key=lambda pool: (pool.socket, pool.node))
    value = stated(
        cpuset=format_cpuset(status.cpus),
        numaNodeResources=[_write_numa(one) for one in sorted(status.numa, key=lambda one: one.node)],
        cpuSharedPools=[write_pool(PoolCpus(pool.socket, pool.node)) for pool in pools],
    )
    return json.dumps(value, separators=(",", ":"))


def _write_numa(numa: NumaResources) -> dict[str, Any]:
    resources = {name: write_amount(name, amount) for name, amount in sorted(numa.amounts.items())}
    return {"node": numa.node, **stated(resources=resources)}


def read_resource_status(annotations: Mapping[str, Any], *, own: bool = False) -> ResourceStatus | None:
    """Read a Pod's resource-status; None if it has none. Unknown fields are ignored.

    `own`: whether the Pod runs and has CPUs of its own, which the annotation must name. Raises AnnotationError: the
    annotation is not in Koordinator's format, or does not name the Pod's own CPUs.
    """
    text = annotations.get(RESOURCE_STATUS)
    if text is None:
        return None
    try:
        status = _read_status(as_object(as_json(text)))
    except UNREADABLE as error:
        raise AnnotationError(f"{RESOURCE_STATUS}: not Koordinator's format ({error})") from error
    if len({one.node for one in status.numa}) != len(status.numa):
        raise AnnotationError(f"{RESOURCE_STATUS}: names one NUMA node twice")
    if own and not status.cpus:
        raise AnnotationError(f"{RESOURCE_STATUS}: names no CPU, although the Pod asks for CPUs of its own")
    return status


def _read_status(raw: Mapping[str, Any]) -> ResourceStatus:
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
        NumaResources(one.node, {**stated(cpu=one.milli, memory=one.memory), **dict(one.others)}) for one in share.numa
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


NONE: Final = "none"
UNLIMITED: Final = "unlimited"


def write_quotas(quotas: Quotas, domain: str) -> dict[str, str]:
    """Write the annotations, resource names in this domain; {} for a Pod without devices."""
    if not quotas:
        return {}
    listed: dict[str, dict[str, list[dict[str, Any]]]] = {}
    variables: dict[str, list[str]] = {}
    for container in sorted(quotas):
        for one in quotas[container]:
            entry: dict[str, Any] = {"id": one.id, "resources": _resources(one, domain)}
            if one.fractions:
                entry["fractions"] = {
                    _name(one, tail, domain): str(part) for tail, part in sorted(one.fractions.items())
                }
            listed.setdefault(container, {}).setdefault(one.type.name, []).append(entry)
            for tail in one.type.limits:
                variables.setdefault(device_quota(container, tail), []).append(_plain(one.amounts[tail]))
    text = json.dumps(listed, separators=(",", ":"))
    return {DEVICE_QUOTAS: text, **{key: ",".join(values) for key, values in variables.items()}}


def _resources(quota: DeviceQuota, domain: str) -> dict[str, str]:
    named = {_name(quota, tail, domain): _written(quota.type, tail, quota.amounts[tail]) for tail in quota.type.tails}
    return dict(sorted(named.items()))


def _name(quota: DeviceQuota, tail: str, domain: str) -> str:
    return quota.type.resource_name(domain, tail)


def _written(kind: DeviceType, tail: str, amount: int | None) -> str:
    return (format_bytes if kind.in_bytes(tail) else format_int)(amount) if amount else _plain(amount)


def _plain(amount: int | None) -> str:
    if amount is None:
        return UNLIMITED
    return str(amount) if amount else NONE


def read_quotas(annotations: Mapping[str, str], types: DeviceTypes) -> Quotas:
    """Read the annotation, for people; {} if there is none, or one that cannot be read."""
    try:
        raw = parse_json(annotations.get(DEVICE_QUOTAS, "{}"))
        return {
            container: [_read_quota(kind, entry, types) for kind, entries in by_type.items() for entry in entries]
            for container, by_type in raw.items()
        }
    except (*UNREADABLE, KeyError, AttributeError):
        return {}


def _read_quota(kind: str, entry: Mapping[str, Any], types: DeviceTypes) -> DeviceQuota:
    amounts = {types.resources[name].tail: _amount(text) for name, text in entry["resources"].items()}
    fractions = {types.resources[name].tail: Fraction(text) for name, text in entry.get("fractions", {}).items()}
    return DeviceQuota(types.by_name[kind], str(entry["id"]), amounts, fractions)


def _amount(text: object) -> int | None:
    return None if text == UNLIMITED else 0 if text == NONE else to_int(text)
