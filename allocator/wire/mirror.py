"""What other products would have written on a Pod that koordgate binds, for their dashboards, agents and schedulers.

`allocator.wire.foreignpods` reads the same formats and names their sources. A card is stated once, because readers add
up what containers have: at the first app container that uses it. A card that only init containers use is stated at the
first app container, because the Pod holds it as long as it lives, and HAMi lets go of what init containers have once
they have ended. Nothing is stated that a format cannot say: gpushare names one card, and Volcano GPU share indexes of
NVML's list, which the node's reporter must have stated.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from allocator.vocabulary.adopted import Numberings, Product
from allocator.vocabulary.device import Device
from allocator.vocabulary.holdings import Holding, Share
from allocator.vocabulary.names import GPU_CORE, GPU_MEMORY, NVIDIA, TYPE_GPU
from allocator.vocabulary.peerresults import (
    GPUSHARE_ASSIGNED,
    GPUSHARE_ASSUMED_AT,
    GPUSHARE_DEV,
    GPUSHARE_IDX,
    GPUSHARE_POD,
    HAMI_ALLOCATED,
    HAMI_BIND_TIME,
    HAMI_NODE,
    HAMI_PHASE,
    HAMI_TIME,
    HAMI_TO_ALLOCATE,
    VOLCANO_INDEX,
    VOLCANO_PREDICATE_TIME,
)
from allocator.vocabulary.phase import ContainerNames

_MIB: Final = 2**20
_NS: Final = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Mirror:
    """For which products a bind writes."""

    peers: frozenset[Product] = frozenset()  # HAMI, VOLCANO (GPU share) and GPUSHARE
    gpushare_unit: int = 2**30  # bytes in one aliyun.com/gpu-mem


NO_MIRROR: Final = Mirror()


def write_mirror(
    mirror: Mirror,
    holding: Holding,
    node: str,
    devices: Sequence[Device],
    numberings: Numberings,
    now: int,
    containers: ContainerNames,
) -> dict[str, str]:
    """Write a holding as other products do; empty if it has no NVIDIA GPU that the node lists.

    `now`: seconds since the epoch.
    """
    known = {device.id: device for device in devices if device.type == TYPE_GPU and device.is_of(NVIDIA)}
    shares = [share for share in holding.shares if share.type == TYPE_GPU]
    if not shares or any(share.id not in known for share in shares):
        return {}
    written: dict[str, str] = {}
    if Product.HAMI in mirror.peers:
        written |= _hami(shares, node, now, containers)
    if Product.VOLCANO in mirror.peers:
        written |= _volcano(shares, numberings, now)
    if Product.GPUSHARE in mirror.peers:
        written |= _gpushare(shares, known, mirror.gpushare_unit, now)
    return written


def write_devices(containers: Sequence[Sequence[tuple[str, int, int]]]) -> str:
    """Write devices as HAMi does: for each container (UUID, MiB, percent of the compute)."""
    entries = ("".join(f"{identity},NVIDIA,{mib},{core}:" for identity, mib, core in one) for one in containers)
    return "".join(f"{entry};" for entry in entries)


def _hami(shares: Sequence[Share], node: str, now: int, containers: ContainerNames) -> dict[str, str]:
    """Write an entry for each container, init containers first, because readers go by an entry's position."""
    apps = containers.apps or ("",)
    stated: dict[str, list[tuple[str, int, int]]] = {name: [] for name in apps}
    for share in shares:
        first = next((name for name in apps if name in share.containers), apps[0])
        mib = -(-share.amounts.get(GPU_MEMORY, 0) // _MIB)
        stated[first].append((share.id, mib, share.amounts.get(GPU_CORE, 0)))
    entries = [*([] for _ in containers.init), *stated.values()]
    return {
        HAMI_ALLOCATED: write_devices(entries),
        HAMI_TO_ALLOCATE: ";" * len(entries),
        HAMI_NODE: node,
        HAMI_TIME: str(now),
        HAMI_BIND_TIME: str(now),
        HAMI_PHASE: "success",
    }


def _volcano(shares: Sequence[Share], numberings: Numberings, now: int) -> dict[str, str]:
    latest = numberings[-1].indexes if numberings else ()
    if any(share.id not in latest for share in shares):
        return {}
    indexes = sorted(latest.index(share.id) for share in shares)
    return {VOLCANO_INDEX: ",".join(map(str, indexes)), VOLCANO_PREDICATE_TIME: str(now * _NS)}


def _gpushare(shares: Sequence[Share], known: Mapping[str, Device], unit: int, now: int) -> dict[str, str]:
    share = shares[0]
    total = known[share.id].capacity.get(GPU_MEMORY, 0) // unit
    held = min(-(-share.amounts.get(GPU_MEMORY, 0) // unit), total)
    if len(shares) != 1 or not held:
        return {}
    return {
        GPUSHARE_IDX: str(known[share.id].minor),
        GPUSHARE_POD: str(held),
        GPUSHARE_DEV: str(total),
        GPUSHARE_ASSIGNED: "true",
        GPUSHARE_ASSUMED_AT: str(now * _NS),
    }
