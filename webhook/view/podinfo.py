"""What is kept of a Pod that asks for devices or CPUs, or holds some: only the fields that decisions use."""

import sys
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple, Self

from allocator.disputed import meant
from allocator.quantity import LARGEST
from allocator.request.original import read_asks
from allocator.request.pod import asks_by_metadata, is_ours
from allocator.request.typical import models_of
from allocator.request.unread import Taken, taken_by_others
from allocator.vocabulary.adopted import Numberings, maker_of
from allocator.vocabulary.asks import NO_HINT, NO_WISHES, ExclusiveLevel, PodRequest
from allocator.vocabulary.cardmemory import bytes_of, percent_of
from allocator.vocabulary.cpunode import CpuShare, QosClass
from allocator.vocabulary.device import Device
from allocator.vocabulary.devicetype import BUILT_IN, FULL, DeviceType, DeviceTypes
from allocator.vocabulary.holdings import Holding, Share, unnamed
from allocator.vocabulary.names import (
    DEVICE_ALLOCATED,
    GANG_GATE,
    NO_NAMES,
    RESOURCE_STATUS,
    ContainerNames,
    is_quota_resource,
)
from allocator.wire.deviceobject import starts_of
from allocator.wire.podallocated import AnnotationError, DeviceAllocation, read_allocation, read_cpu_share
from webhook.settings import SchedulerNames
from webhook.view.loads import BoundRequests, Requests, read_requests
from webhook.view.nodeselection import selection_of
from webhook.view.quotascopes import ANYTHING, PodScope, read_scope

_FINISHED: Final = frozenset({"Succeeded", "Failed"})
_OWN_CPUS: Final = (QosClass.LSE, QosClass.LSR)
_MAX_NAMED: Final = 8  # devices that one minor may have meant


@dataclass(frozen=True, slots=True)
class PodInfo:
    """A Pod as decisions see it."""

    uid: str
    namespace: str
    name: str
    node: str  # where it is bound; "" while it is not
    finished: bool  # it has succeeded or failed, and holds nothing any more
    terminating: bool  # deletion has begun
    scheduler_name: str
    # it asks in resources, or by the annotation device-sharing, that only koordgate's admission or its author writes,
    # and not only in those of a vendor's device plugin
    canonical: bool
    request: PodRequest  # what it asks for
    problem: str = ""  # why the request cannot be read; "" if it can
    shares: tuple[Share, ...] = ()  # the devices in its device-allocated annotation
    # when those were resolved that it names by minor alone, as `starts_of` says; empty if there are none
    starts: tuple[int, ...] = ()
    unread: tuple[str, ...] = ()  # the device types of its unreadable holdings; it may hold any device of them
    annotation_problem: str = ""  # why an annotation cannot be read; "" if all can
    cpus: CpuShare | None = None  # the CPUs in its resource-status annotation; None if there are none
    any_cpus: bool = False  # it holds unknown CPUs of its own, because they cannot be read; it may hold any
    priority: int = 0  # of its spec; 0 if there is none
    requests: Requests = ()  # what kube-scheduler counts for it on a node, by resource; empty if that cannot be read
    kinds: tuple[DeviceType, ...] = ()  # the types of its shares
    gated: bool = False  # koordgate's scheduling gate is on it
    gates: bool = False  # other scheduling gates are on it
    succeeded: bool = False  # it has succeeded
    models: tuple[str, ...] = ()  # the models of the nodes that it selects, by labels that name them; empty: any
    maker: str = ""  # the kind of object that creates it anew when it is deleted; see `maker_of`
    containers: ContainerNames = NO_NAMES  # by name
    # by which resources that are not read here another product would give it devices of koordgate's
    takes: tuple[Taken, ...] = ()
    # what selects nodes for it, as JSON (see `selection_of`), until it is bound, or if its gang is bound as a whole
    selection: bytes = b""
    # the device resources, and those that only quotas count, that its containers request
    states: tuple[str, ...] = ()
    scope: PodScope = ANYTHING  # in which scopes of quotas it is

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def asks(self) -> bool:
        """Whether it asks for devices or CPUs, readably or not."""
        return bool(self.request) or bool(self.problem)

    @property
    def over(self) -> bool:
        """Whether it holds nothing and will never be bound: it has finished, or is being deleted before it was bound.

        The API server binds no Pod that is being deleted (pkg/registry/core/pod/storage of kubernetes).
        """
        return self.finished or (self.terminating and not self.node)

    @property
    def all_or_nothing(self) -> bool:
        """Whether it asks that its gang is bound as a whole."""
        return self.request.wishes.all_or_nothing

    @property
    def holds(self) -> bool:
        """Whether its annotations describe a holding, readable or not."""
        return bool(self.shares) or self.cpus is not None or bool(self.unread) or self.any_cpus

    @property
    def lacks(self) -> bool:
        """Whether its annotations lack what only our bind gives: devices, or CPUs if it asks for no devices."""
        if self.request.containers:
            return not (self.shares or self.unread)
        return not self.holds and (bool(self.problem) or (self.request.cpu is not None and self.request.cpu.insists))

    @property
    def counted(self) -> BoundRequests | None:
        """What counts of it on a node; None where it is not bound, or has finished."""
        return BoundRequests(self.node, self.requests) if self.node and not self.finished else None

    def in_scope(self, schedulers: SchedulerNames) -> bool:
        """Whether only koord-scheduler may bind it.

        A Pod that asks for plain `nvidia.com/gpu` and another scheduler was never translated: it is older than the
        installation, or lives in an exempt namespace. Others may bind it, but not to a node whose devices are ours.
        """
        return self.asks and (self.canonical or self.scheduler_name == schedulers.of(self.namespace))


class OtherPod(NamedTuple):
    """What is kept of a Pod that is none of ours. There may be a hundred thousand, so its amounts are packed."""

    uid: str
    node: str = ""  # where it is bound; "" while it is not, and once it has finished
    resources: tuple[str, ...] = ()  # what it requests there, by name
    amounts: bytes = b""  # of these, as 64-bit integers
    takes: tuple[Taken, ...] = ()  # as `PodInfo.takes`
    scheduler_name: str = ""  # of its spec, where it takes something; otherwise ""

    @classmethod
    def requesting(cls, uid: str, node: str, requests: Requests) -> Self:
        """A Pod that is bound to a node and requests this there."""
        amounts = array("q", [min(max(amount, 0), LARGEST) for _, amount in requests])
        return cls(uid, node, tuple(name for name, _ in requests), amounts.tobytes())

    @property
    def counted(self) -> BoundRequests | None:
        """What counts of it on its node; None where nothing does."""
        if not self.node:
            return None
        return BoundRequests(self.node, tuple(zip(self.resources, array("q", self.amounts), strict=True)))


def read_pod_info(
    obj: Mapping[str, Any], known: PodInfo | None = None, types: DeviceTypes = BUILT_IN
) -> PodInfo | None:
    """Read a Pod; None if it neither asks for devices or CPUs nor states that it holds some.

    `known`: what was known of it. The request of a Pod with the same UID is read again only if `_may_differ` says so.
    `types`: the device types that may be asked for.
    """
    metadata = obj["metadata"]
    spec = obj.get("spec") or {}
    annotations = metadata.get("annotations") or {}
    types = types.within(metadata.get("namespace", ""))
    if known is not None and known.uid == metadata["uid"] and not _may_differ(known, obj, types):
        asked = (known.canonical, known.request, known.problem)
    elif is_ours(obj, types) or DEVICE_ALLOCATED in annotations or RESOURCE_STATUS in annotations:
        asked = _read_asks(obj, types)
    else:
        return None
    allocation = _read_allocation(annotations, asked[1], types, unread=bool(asked[2]))
    cpus: CpuShare | None = None
    cpu_problem = ""
    try:
        cpus = read_cpu_share(annotations, asked[1].cpu, bound=bool(spec.get("nodeName")))
    except AnnotationError as error:
        cpu_problem = str(error)
    annotation_problem = "; ".join(filter(None, (allocation.problem, cpu_problem)))
    phase = (obj.get("status") or {}).get("phase")
    gates = [gate["name"] for gate in spec.get("schedulingGates") or ()]
    if known is None and not (asked[1] or asked[2] or allocation.shares or cpus or annotation_problem):
        return None
    return PodInfo(
        uid=metadata["uid"],
        namespace=metadata.get("namespace", ""),
        name=metadata["name"],
        node=spec.get("nodeName") or "",
        finished=phase in _FINISHED,
        terminating=metadata.get("deletionTimestamp") is not None,
        scheduler_name=spec.get("schedulerName") or "",
        canonical=asked[0],
        request=asked[1],
        problem=asked[2],
        shares=allocation.shares,
        starts=starts_of(obj) if any(not share.id for share in allocation.shares) else (),
        unread=allocation.unread,
        annotation_problem=annotation_problem,
        cpus=cpus,
        any_cpus=bool(cpu_problem) and _may_own_cpus(asked[1]),
        priority=spec.get("priority") or 0,
        requests=read_requests(spec),  # CPU and memory may be resized in place
        kinds=tuple(dict.fromkeys([types.by_name[share.type] for share in allocation.shares])),
        gated=GANG_GATE in gates,
        gates=any(gate != GANG_GATE for gate in gates),
        succeeded=phase == "Succeeded",
        models=models_of(spec),
        takes=taken_by_others(spec, types) if not asked[0] and not spec.get("nodeName") else (),
        maker=maker_of(metadata),
        containers=ContainerNames(*(_container_names(spec, of) for of in ("initContainers", "containers"))),
        selection=selection_of(spec) if not spec.get("nodeName") or asked[1].wishes.all_or_nothing else b"",
        states=known.states if known is not None and known.uid == metadata["uid"] else _states(spec, types),
        scope=read_scope(spec),
    )


def _states(spec: Mapping[str, Any], types: DeviceTypes) -> tuple[str, ...]:
    containers = (*(spec.get("initContainers") or ()), *(spec.get("containers") or ()))
    requested = {name for one in containers for name in (one.get("resources") or {}).get("requests") or ()}
    return tuple(sorted(name for name in requested if name in types.resources or is_quota_resource(name)))


def _container_names(spec: Mapping[str, Any], of: str) -> tuple[str, ...]:
    return tuple(sys.intern(str(one.get("name", ""))) for one in spec.get(of) or ())


def read_other_pod(obj: Mapping[str, Any], types: DeviceTypes = BUILT_IN) -> OtherPod:
    """Read what is kept of a Pod that is none of ours.

    `types`: the device types that may be asked for.
    """
    metadata, spec = obj["metadata"], obj.get("spec") or {}
    node = spec.get("nodeName") or ""
    if (obj.get("status") or {}).get("phase") in _FINISHED:
        return OtherPod(metadata["uid"])
    if node:
        return OtherPod.requesting(metadata["uid"], node, read_requests(spec))
    takes = taken_by_others(spec, types.within(metadata.get("namespace", "")))
    return OtherPod(metadata["uid"], takes=takes, scheduler_name=(spec.get("schedulerName") or "") if takes else "")


def read_either(obj: Mapping[str, Any], types: DeviceTypes) -> PodInfo | OtherPod:
    """Read a Pod that is ours, or one that is not."""
    return read_pod_info(obj, types=types) or read_other_pod(obj, types)


def _read_allocation(
    annotations: Mapping[str, str], request: PodRequest, types: DeviceTypes, *, unread: bool
) -> DeviceAllocation:
    """Read device-allocated; a type that the Pod asks for and that the annotation does not mention is unreadable.

    If the request is `unread` and the annotation mentions no type, all types are.
    """
    read = read_allocation(annotations, types)
    stated = {share.type for share in read.shares}.union(read.unread)
    if unread and DEVICE_ALLOCATED in annotations and not stated:
        problem = f"{DEVICE_ALLOCATED}: names no device, and what the Pod asks for cannot be read"
        return DeviceAllocation(unread=tuple(types.by_name), problem=problem)
    if DEVICE_ALLOCATED not in annotations or not request.containers:
        return read
    missing = [kind for kind in (one.name for one in request.types()) if kind not in stated]
    if not missing:
        return read
    problem = f"{DEVICE_ALLOCATED}: names no device of type {', '.join(missing)}, which the Pod asks for"
    problems = "; ".join(filter(None, (read.problem, problem)))
    return DeviceAllocation(read.shares, (*read.unread, *missing), problems)


def _may_differ(known: PodInfo, obj: Mapping[str, Any], types: DeviceTypes) -> bool:
    """Return whether a Pod may ask for something other than before.

    Its devices never change. Labels and annotations decide its CPUs and how its devices are chosen, and its author
    may change these until it is bound; later changes do not count.
    """
    if known.node:
        return False
    cpu = known.request.cpu
    orchestrated = cpu is not None and not cpu.implied
    said = bool(known.problem) or orchestrated or known.request.wishes != NO_WISHES
    return said or asks_by_metadata(obj, types)


def _may_own_cpus(request: PodRequest) -> bool:
    """Whether a Pod may have CPUs of its own; Koordinator gives some to Pods without a class as well."""
    return request.cpu is None or request.cpu.qos in _OWN_CPUS


def _read_asks(obj: Mapping[str, Any], types: DeviceTypes) -> tuple[bool, PodRequest, str]:
    """Read a Pod's request: whether it uses our resources, the request itself, and why it cannot be read."""
    reading = read_asks(obj, types)
    named = {name for container in reading.containers for names in container.names for name in names}
    meanings = [types.resources[name] for name in named]
    canonical = bool(reading.sharing) or any(meaning.dialect.own for meaning in meanings)
    request = PodRequest(()) if reading.problems else reading.request
    return canonical, request, "; ".join(str(problem) for problem in reading.problems)


def on_node(pod: PodInfo, devices: Sequence[Device], cpus: int, numberings: Numberings = ()) -> PodInfo:
    """Compare a bound Pod with its node: a type, or CPUs, that it names by numbers unknown there cannot be read.

    Without an id, the minor is the only identity of a device. The Pod holds the device that had it when the minor was
    resolved, and each that may have had it. Where the node lists no device of the type, or no CPUs, nothing can be
    compared: its objects may not have been seen yet, or may be gone.
    `pod`: the Pod, with what its annotations say by themselves. `cpus`: all CPUs of its node, bit i for CPU i; 0 if
    they are not known.
    """
    if not pod.node or not (pod.cpus or any(not share.id for share in pod.shares)):
        return pod
    listed = {device.type for device in devices}.difference(pod.unread)
    shares: list[Share] = []
    lost: dict[str, int] = {}
    problems = []
    for share, ids in meant(pod.shares, pod.starts, numberings, devices):
        shares += [share._replace(id=identity) for identity in ids] or [share]
        if not ids and share.type in listed:
            lost[share.type] = share.minor
        if len(ids) > 1:
            either = " or ".join(ids[:_MAX_NAMED])
            problems.append(f"names {share.type} {share.minor}, which may have meant {either}; each of them is held")
    problems = [
        f"{DEVICE_ALLOCATED}: {problem}"
        for problem in (*(f"names {kind} {minor}, which the node lacks" for kind, minor in lost.items()), *problems)
    ]
    own = pod.cpus.cpus if pod.cpus is not None and _may_own_cpus(pod.request) else 0
    strange = bool(own and cpus) and not own & cpus
    if strange:
        problems.append(f"{RESOURCE_STATUS}: names no CPU that the node has")
    return replace(
        pod,
        shares=tuple(share for share in shares if share.type not in lost),
        unread=(*pod.unread, *lost),
        annotation_problem="; ".join(filter(None, (pod.annotation_problem, *problems))),
        any_cpus=pod.any_cpus or strange,
    )


def annotated_holding(pod: PodInfo, devices: Sequence[Device], since: int, own_cpus: int = 0) -> Holding | None:
    """Turn a Pod's annotations into a holding on a node's devices; None if they describe none.

    Koordinator may leave out ids (the device is then found by its minor) and one of ratio and memory. Where one of them
    is more than the other, rounded up, the greater one is accounted in both. The entries of a device that is named
    twice, by id and by minor, are added up. No amount exceeds what an object in the cluster can hold, which is more
    than any device has. The Pod's hint says whether the Pod has a device's PCIe root to itself.

    What cannot be read counts as everything, never as nothing: an entry without amounts is the whole device, an
    unreadable type is all of its devices, and unreadable CPUs of its own are all of `own_cpus`.
    `since`: when the holding began, seconds since the epoch. `own_cpus`: the CPUs of the node that Pods may have as
    their own; bit i is CPU i.
    """
    if not pod.holds:
        return None
    by_id = {(device.type, device.id): device for device in devices}
    by_minor = {(device.type, device.minor): device for device in devices}
    shares: dict[str, Share] = {}
    hints = dict(pod.request.wishes.hints)
    pairs = {kind.name: kind.memory for kind in pod.kinds if kind.memory}
    for share in pod.shares:
        device = by_id.get((share.type, share.id)) if share.id else by_minor.get((share.type, share.minor))
        identity = share.id or (device.id if device else unnamed(share.type, share.minor))
        pair = pairs.get(share.type)
        amounts = _accounted(share, device, pair)
        exclusive = hints.get(share.type, NO_HINT).exclusive
        alone, unshared = exclusive is ExclusiveLevel.PCIE, exclusive is ExclusiveLevel.DEVICE
        read = share._replace(id=identity, amounts=amounts, alone=alone, unshared=unshared)
        shares[identity] = _added(shares.get(identity), read)
    for device in devices:
        if device.type in pod.unread:
            shares[device.id] = Share(device.type, device.id, device.minor, dict(device.capacity))
    cpus = CpuShare(QosClass.LSE, own_cpus) if pod.any_cpus and own_cpus else pod.cpus
    gang = pod.request.wishes.gang
    unread = (*pod.unread, "cpu") if pod.any_cpus else pod.unread
    return Holding(pod.uid, pod.namespace, pod.name, since, tuple(shares.values()), cpus, gang, unread=unread)


def _added(known: Share | None, more: Share) -> Share:
    """Add up two shares of one device."""
    amounts = dict(known.amounts) if known else {}
    for tail, amount in more.amounts.items():
        amounts[tail] = min(amounts.get(tail, 0) + amount, LARGEST)
    if known is None:
        return more._replace(amounts=amounts)
    return known._replace(amounts=amounts, containers=tuple(dict.fromkeys((*known.containers, *more.containers))))


def _accounted(share: Share, device: Device | None, pair: tuple[str, str] | None) -> dict[str, int]:
    """Complete the amounts of a share: all of the device if none is stated, and both figures of its memory."""
    if device is None:
        return dict(share.amounts)
    if not any(share.amounts.values()):
        return dict(device.capacity)
    if pair is None:
        return dict(share.amounts)
    size, percent = pair
    total = device.capacity[size]
    memory, ratio = share.amounts.get(size), share.amounts.get(percent)
    if memory is None and ratio is None:
        ratio = FULL
    if memory is None:
        memory = bytes_of(ratio or 0, total)
    ratio = max(ratio or 0, percent_of(memory, total))
    if ratio * total >= memory * FULL + total:  # an earlier release rounded the ratio of bytes up
        memory = bytes_of(ratio, total)
    return {**share.amounts, size: memory, percent: ratio}
