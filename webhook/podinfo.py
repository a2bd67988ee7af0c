"""What is kept of a Pod that asks for devices or holds some: the fields that decisions use, and no more."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from allocator.device import FULL, Device
from allocator.holdings import Holding, Share
from allocator.names import (
    DEVICE_ALLOCATED,
    DEVICE_RESOURCES,
    GPU_MEMORY,
    GPU_MEMORY_RATIO,
    NVIDIA_GPU,
    TYPE_GPU,
)
from allocator.quantity import LARGEST
from allocator.request import PodRequest, names_devices
from allocator.wire.deviceallocated import AnnotationError, read_annotations
from webhook.translate import read

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
        canonical: it asks in core, ratio and memory: only admission by koordgate, or its author, writes that.
        request: what it asks for.
        problem: why the request cannot be read, "" where it can.
        shares: what its device-allocated annotation says it holds.
        annotation_problem: why that annotation cannot be read, "" where it can.
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

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def asks(self) -> bool:
        """Whether it asks for devices, readably or not."""
        return bool(self.request) or bool(self.problem)

    def in_scope(self, scheduler_name: str) -> bool:
        """Whether only koord-scheduler may bind it.

        A Pod that asks for plain `nvidia.com/gpu` and another scheduler was never translated (it is older than the
        installation, or lives in an exempt namespace): it is not ours to stop.
        """
        return self.asks and (self.canonical or self.scheduler_name == scheduler_name)


def read_pod_info(obj: Mapping[str, Any], known: PodInfo | None = None) -> PodInfo | None:
    """Read a Pod; None where it neither asks for devices nor says that it holds some.

    Args:
        obj: the Pod.
        known: what was known of it; what a Pod of one UID asks for never changes and need not be read again.
    """
    metadata = obj["metadata"]
    spec = obj.get("spec") or {}
    annotations = metadata.get("annotations") or {}
    if known is not None and known.uid == metadata["uid"]:
        asked = (known.canonical, known.request, known.problem)
    elif names_devices(spec) or DEVICE_ALLOCATED in annotations:
        asked = _read_asks(obj)
    else:
        return None
    try:
        shares, annotation_problem = read_annotations(annotations), ""
    except AnnotationError as error:
        shares, annotation_problem = (), str(error)
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
    )


def _read_asks(obj: Mapping[str, Any]) -> tuple[bool, PodRequest, str]:
    """Read what a Pod asks for: whether in core and memory, the request, and why it cannot be read."""
    reading = read(obj)
    named = {name for container in reading.containers for names in container.names for name in names}
    canonical = any(DEVICE_RESOURCES[name][0] != NVIDIA_GPU for name in named)
    request = PodRequest(()) if reading.problems else reading.request
    return canonical, request, "; ".join(str(problem) for problem in reading.problems)


def annotated_holding(pod: PodInfo, devices: Sequence[Device], since: int) -> Holding | None:
    """Turn what a Pod's annotation says into a holding on a node's devices; None where it says nothing.

    Koordinator may leave out ids (found by minor then) and one of ratio and memory, and truncates ratios where we
    round up: what is accounted is the greater. One device may stand there twice, by id and by minor: its entries are
    added up. No amount is above what an object in the cluster can hold, which is more than any device has.
    """
    if not pod.shares:
        return None
    by_id = {device.id: device for device in devices}
    by_minor = {(device.type, device.minor): device for device in devices}
    shares: dict[str, Share] = {}
    for share in pod.shares:
        device = by_id.get(share.id) if share.id else by_minor.get((share.type, share.minor))
        identity = share.id or (device.id if device else f"{share.type}-minor-{share.minor}")
        amounts = _accounted(share, device) if device and share.type == TYPE_GPU else dict(share.amounts)
        told = Share(share.type, identity, share.minor, amounts, share.containers)
        shares[identity] = _added(shares.get(identity), told)
    return Holding(pod.uid, pod.namespace, pod.name, since, tuple(shares.values()))


def _added(known: Share | None, more: Share) -> Share:
    """Add up two shares of one device."""
    amounts = dict(known.amounts) if known else {}
    for tail, amount in more.amounts.items():
        amounts[tail] = min(amounts.get(tail, 0) + amount, LARGEST)
    if known is None:
        return replace(more, amounts=amounts)
    return replace(known, amounts=amounts, containers=tuple(dict.fromkeys((*known.containers, *more.containers))))


def _accounted(share: Share, device: Device) -> dict[str, int]:
    total = device.capacity[GPU_MEMORY]
    memory, ratio = share.amounts.get(GPU_MEMORY), share.amounts.get(GPU_MEMORY_RATIO)
    if memory is None:
        memory = total * (ratio or 0) // FULL
    # A ratio's bytes are rounded down, so bytes that follow from the stated ratio need no more of it.
    needed = -(-memory * FULL // total)
    if ratio is None or memory > total * ratio // FULL:
        ratio = max(needed, ratio or 0)
    return {**share.amounts, GPU_MEMORY: memory, GPU_MEMORY_RATIO: ratio}
