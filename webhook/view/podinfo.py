"""What is kept of a Pod that asks for devices or holds some: the fields that decisions use, and no more."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from allocator.amounts import BadQuantityError, pod_amounts
from allocator.quantity import LARGEST
from allocator.request.original import read_asks
from allocator.request.pod import asks_by_metadata, is_ours
from allocator.vocabulary.asks import NO_WISHES, PodRequest
from allocator.vocabulary.cpuask import CpuAsk
from allocator.vocabulary.cpunode import CpuShare
from allocator.vocabulary.device import Device
from allocator.vocabulary.devicetype import BUILT_IN, FULL, DeviceType, DeviceTypes
from allocator.vocabulary.hints import NO_HINT, ExclusiveLevel
from allocator.vocabulary.holdings import Holding, Share
from allocator.vocabulary.names import DEVICE_ALLOCATED, RESOURCE_STATUS
from allocator.wire.deviceallocated import AnnotationError, read_annotations
from allocator.wire.podallocated import read_cpu_share

_FINISHED: Final = frozenset({"Succeeded", "Failed"})


@dataclass(frozen=True, slots=True)
class PodInfo:
    """A Pod as decisions see it.

    Attributes:
        uid: its identity.
        namespace: where it lives.
        name: its name there.
        node: where it is bound, "" while it is not.
        finished: Succeeded or Failed: it holds nothing any more.
        terminating: deletion has begun.
        scheduler_name: of its spec.
        canonical: it asks in resources that only admission by koordgate, or its author, writes: not in those of a
            vendor's device plugin alone.
        request: what it asks for.
        problem: why the request cannot be read, "" where it can.
        shares: what its device-allocated annotation says it holds.
        annotation_problem: why an annotation cannot be read, "" where all can.
        cpus: what its resource-status annotation says it holds; None where it says nothing.
        priority: of its spec, 0 where that says nothing.
        requests: what kube-scheduler counts for it on a node, by resource; empty where that cannot be read.
        kinds: the types of its shares.
    """

    uid: str
    namespace: str
    name: str
    node: str
    finished: bool
    terminating: bool
    scheduler_name: str
    canonical: bool
    request: PodRequest
    problem: str = ""
    shares: tuple[Share, ...] = ()
    annotation_problem: str = ""
    cpus: CpuShare | None = None
    priority: int = 0
    requests: tuple[tuple[str, int], ...] = ()
    kinds: tuple[DeviceType, ...] = ()

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def asks(self) -> bool:
        """Whether it asks for devices or CPUs, readably or not."""
        return bool(self.request) or bool(self.problem)

    @property
    def holds(self) -> bool:
        """Whether its annotations say that it holds anything."""
        return bool(self.shares) or self.cpus is not None

    @property
    def lacks(self) -> bool:
        """Whether its annotations say nothing of what only our bind gives: devices; where it asks for none, CPUs."""
        if self.request.containers:
            return not self.shares
        return not self.holds and (bool(self.problem) or _insists(self.request.cpu))

    def in_scope(self, scheduler_name: str) -> bool:
        """Whether only koord-scheduler may bind it.

        A Pod that asks for plain `nvidia.com/gpu` and another scheduler was never translated (it is older than the
        installation, or lives in an exempt namespace): it is not ours to stop.
        """
        return self.asks and (self.canonical or self.scheduler_name == scheduler_name)


def read_pod_info(
    obj: Mapping[str, Any], known: PodInfo | None = None, types: DeviceTypes = BUILT_IN
) -> PodInfo | None:
    """Read a Pod; None where it neither asks for devices or CPUs nor says that it holds some.

    Args:
        obj: the Pod.
        known: what was known of it; what a Pod of one UID asks for is read again only where `_may_differ` says so.
        types: that may be asked for.
    """
    metadata = obj["metadata"]
    spec = obj.get("spec") or {}
    annotations = metadata.get("annotations") or {}
    if known is not None and known.uid == metadata["uid"] and not _may_differ(known, obj, types):
        asked = (known.canonical, known.request, known.problem)
        requests = known.requests
    elif is_ours(obj, types) or DEVICE_ALLOCATED in annotations or RESOURCE_STATUS in annotations:
        asked = _read_asks(obj, types)
        requests = _read_requests(spec)
    else:
        return None
    shares: tuple[Share, ...] = ()
    cpus: CpuShare | None = None
    annotation_problem = ""
    try:
        shares, cpus = read_annotations(annotations, types), read_cpu_share(annotations, asked[1].cpu)
    except AnnotationError as error:
        annotation_problem = str(error)
    if known is None and not (asked[1] or asked[2] or shares or cpus or annotation_problem):
        return None
    return PodInfo(
        uid=metadata["uid"],
        namespace=metadata.get("namespace", ""),
        name=metadata["name"],
        node=spec.get("nodeName") or "",
        finished=(obj.get("status") or {}).get("phase") in _FINISHED,
        terminating=metadata.get("deletionTimestamp") is not None,
        scheduler_name=spec.get("schedulerName") or "",
        canonical=asked[0],
        request=asked[1],
        problem=asked[2],
        shares=shares,
        annotation_problem=annotation_problem,
        cpus=cpus,
        priority=spec.get("priority") or 0,
        requests=requests,
        kinds=tuple(dict.fromkeys([types.by_name[share.type] for share in shares])),
    )


def _may_differ(known: PodInfo, obj: Mapping[str, Any], types: DeviceTypes) -> bool:
    """Tell whether a Pod may ask for something else than before.

    Its resources never change, but its CPUs, and how its devices are chosen, hang on labels and annotations, which its
    author may change, add and remove. What counts of a Pod that is bound is what it asked for until then.
    """
    if known.node:
        return False
    cpu = known.request.cpu
    orchestrated = cpu is not None and not cpu.implied
    said = bool(known.problem) or orchestrated or known.request.wishes != NO_WISHES
    return said or asks_by_metadata(obj, types)


def _insists(ask: CpuAsk | None) -> bool:
    """Tell whether a Pod asks for more of CPUs than its class alone does, which may be as well without an answer."""
    return ask is not None and (bool(ask.count) or ask.constrained_burst or ask.numa_policy is not None)


def _read_asks(obj: Mapping[str, Any], types: DeviceTypes) -> tuple[bool, PodRequest, str]:
    """Read what a Pod asks for: whether in resources of ours, the request, and why it cannot be read."""
    reading = read_asks(obj, types)
    named = {name for container in reading.containers for names in container.names for name in names}
    meanings = [types.resources[name] for name in named]
    canonical = any(meaning.dialect.own for meaning in meanings)
    request = PodRequest(()) if reading.problems else reading.request
    return canonical, request, "; ".join(str(problem) for problem in reading.problems)


def _read_requests(spec: Mapping[str, Any]) -> tuple[tuple[str, int], ...]:
    try:
        return tuple(sorted(pod_amounts(spec).items()))
    except BadQuantityError:  # which the API server would not have stored
        return ()


def annotated_holding(pod: PodInfo, devices: Sequence[Device], since: int) -> Holding | None:
    """Turn what a Pod's annotations say into a holding on a node's devices; None where it says nothing.

    Koordinator may leave out ids (found by minor then) and one of ratio and memory, and truncates ratios where we
    round up: what is accounted is the greater. One device may stand there twice, by id and by minor: its entries are
    added up. No amount is above what an object in the cluster can hold, which is more than any device has. Whether
    nobody else may be on its PCIe root stands in the Pod's hint.
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
        identity = share.id or (device.id if device else f"{share.type}-minor-{share.minor}")
        pair = pairs.get(share.type)
        amounts = _accounted(share, device, pair) if device and pair else dict(share.amounts)
        exclusive = hints.get(share.type, NO_HINT).exclusive
        alone, unshared = exclusive is ExclusiveLevel.PCIE, exclusive is ExclusiveLevel.DEVICE
        told = replace(share, id=identity, amounts=amounts, alone=alone, unshared=unshared)
        shares[identity] = _added(shares.get(identity), told)
    gang = pod.request.wishes.gang
    return Holding(pod.uid, pod.namespace, pod.name, since, tuple(shares.values()), pod.cpus, gang)


def _added(known: Share | None, more: Share) -> Share:
    """Add up two shares of one device."""
    amounts = dict(known.amounts) if known else {}
    for tail, amount in more.amounts.items():
        amounts[tail] = min(amounts.get(tail, 0) + amount, LARGEST)
    if known is None:
        return replace(more, amounts=amounts)
    return replace(known, amounts=amounts, containers=tuple(dict.fromkeys((*known.containers, *more.containers))))


def _accounted(share: Share, device: Device, pair: tuple[str, str]) -> dict[str, int]:
    """Complete the two tails that say how much memory a share has, in bytes and in percent of the device."""
    size, percent = pair
    total = device.capacity[size]
    memory, ratio = share.amounts.get(size), share.amounts.get(percent)
    if memory is None:
        memory = total * (ratio or 0) // FULL
    # A ratio's bytes are rounded down, so bytes that follow from the stated ratio need no more of it.
    needed = -(-memory * FULL // total)
    if ratio is None or memory > total * ratio // FULL:
        ratio = max(needed, ratio or 0)
    return {**share.amounts, size: memory, percent: ratio}
