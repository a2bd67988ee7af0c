"""Partition tables: the sets of GPUs that a node's switched fabric can cut itself into.

A table comes from the Device object's annotation (Koordinator, apis/extension, gpu-partitions), or is built in for the
HGX boards of the Hopper family (Koordinator, pkg/scheduler/plugins/deviceshare). A set outside of the table may work
only slowly, or not at all; whether that matters is the node's policy, Honor or Prefer.

Of the partitions that fit, those of the highest allocationScore come first. Koordinator documents the score so, and
tries the lowest first; its documents are followed here.
"""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, NamedTuple

from allocator.quantity import LARGEST, QuantityError, format_bytes, to_int

GPU_PARTITIONS: Final = "scheduling.koordinator.sh/gpu-partitions"
GPU_PARTITION_POLICY: Final = "node.koordinator.sh/gpu-partition-policy"
GPU_VENDOR: Final = "node.koordinator.sh/gpu-vendor"
GPU_MODEL: Final = "node.koordinator.sh/gpu-model"

_NVLINK: Final = "NVLink"
_BUILT_IN_MODELS: Final = frozenset({"H100", "H800", "H20"})
_UNSWITCHED: Final = frozenset({"PCIe", "NVL"})  # the same chips on cards of their own
_BUILT_IN: Final = {
    1: tuple((minor,) for minor in range(8)),
    2: ((0, 1), (2, 3), (4, 5), (6, 7)),
    4: ((0, 1, 2, 3), (4, 5, 6, 7)),
    8: (tuple(range(8)),),
}
_KEYS: Final = frozenset({"minors", "gpuLinkType", "ringBusBandwidth", "allocationScore"})
_MAX_TEXT: Final = 2**18  # bytes: what Kubernetes allows an object's annotations in all
_MAX_PARTITIONS: Final = 1024
_MAX_SIZE: Final = 64  # devices of one partition
_MAX_MINOR: Final = 2**31 - 1
_MAX_PROBLEMS: Final = 8
_SHOWN: Final = 64  # characters of what somebody wrote


class Policy(StrEnum):
    """Whether whole GPUs of a node may be given out in sets that are no partition."""

    HONOR = "Honor"
    PREFER = "Prefer"


class Partition(NamedTuple):
    """One set of GPUs.

    Attributes:
        minors: its GPUs, ascending.
        score: Koordinator's allocationScore, higher preferred.
        bandwidth: of the ring through its GPUs, in bytes; None where the table does not state it.
        link: what joins them, as "NVLink"; "" where the table does not state it.
    """

    minors: tuple[int, ...]
    score: int = 0
    bandwidth: int | None = None
    link: str = ""


@dataclass(frozen=True, slots=True)
class PartitionTable:
    """All partitions of a node.

    Attributes:
        partitions: each set of minors once; of equals, an earlier one is preferred.
        sizes: number of GPUs -> its partitions; derived.
        best: number of GPUs -> those of the highest score; derived.
    """

    partitions: tuple[Partition, ...] = ()
    sizes: Mapping[int, tuple[Partition, ...]] = field(init=False, repr=False, compare=False)
    best: Mapping[int, tuple[Partition, ...]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        sizes: dict[int, list[Partition]] = {}
        for partition in self.partitions:
            sizes.setdefault(len(partition.minors), []).append(partition)
        object.__setattr__(self, "sizes", {size: tuple(sizes[size]) for size in sorted(sizes)})
        best = {size: max(partition.score for partition in listed) for size, listed in sizes.items()}
        object.__setattr__(
            self, "best", {size: tuple(p for p in self.sizes[size] if p.score == best[size]) for size in self.sizes}
        )


class Fit(NamedTuple):
    """A partition that can be given, and its place among the others, smaller better."""

    standing: tuple[int, ...]
    partition: Partition


def fits(
    table: PartitionTable,
    count: int,
    free: Collection[int],
    ring_bandwidth: int | None = None,
    *,
    restricted: bool = False,
) -> list[Fit]:
    """List the partitions of `count` GPUs that can be given, best first.

    Order: the higher score; then what leaves the most whole: the larger partitions of their size's best score that
    stay wholly free, largest size first, by the sum of their scores; then the table's order.

    Args:
        table: of the node.
        count: GPUs wanted.
        free: minors of GPUs that are healthy and wholly free.
        ring_bandwidth: bytes that a partition must state at least.
        restricted: only partitions of the highest score that the table has for this count.
    """
    unbroken = set(free)
    listed = table.best if restricted else table.sizes
    found = [
        partition
        for partition in listed.get(count, ())
        if unbroken.issuperset(partition.minors)
        and (ring_bandwidth is None or (partition.bandwidth is not None and partition.bandwidth >= ring_bandwidth))
    ]
    whole = [
        [other for other in table.best[size] if unbroken.issuperset(other.minors)]
        for size in sorted(table.best, reverse=True)
        if size >= count
    ]
    ranked = [
        Fit((-partition.score, *(-_kept(partition, others) for others in whole)), partition) for partition in found
    ]
    ranked.sort(key=lambda fit: fit.standing)
    return ranked


def _kept(partition: Partition, others: list[Partition]) -> int:
    return sum(other.score for other in others if set(partition.minors).isdisjoint(other.minors))


def why_none(
    table: PartitionTable | None,
    count: int,
    free: Collection[int],
    ring_bandwidth: int | None = None,
    *,
    restricted: bool = False,
) -> str:
    """Say in a user's words why `fits` finds nothing."""
    if table is None:
        return (
            f"GPUs must come as a partition here, and the node has no partition table "
            f"(annotation {GPU_PARTITIONS} of its Device object)"
        )
    listed = (table.best if restricted else table.sizes).get(count)
    if listed is None:
        counts = ", ".join(map(str, table.sizes)) or "none"
        return f"{count} GPUs are no partition here; ask a number that the table has: {counts}"
    which = "best-scored partitions" if restricted else "partitions"
    if ring_bandwidth is not None:
        quick = [p for p in listed if p.bandwidth is not None and p.bandwidth >= ring_bandwidth]
        if not quick:
            most = max((p.bandwidth for p in listed if p.bandwidth is not None), default=None)
            told = "state none" if most is None else f"have at most {format_bytes(most)}"
            return f"ringBusBandwidth {format_bytes(ring_bandwidth)} asked; {which} of {count} GPUs {told}"
        listed = tuple(quick)
    return (
        f"{len(listed)} {which} of {count} GPUs would do, and in each a GPU is in use or unhealthy "
        f"({len(set(free))} GPUs wholly free)"
    )


def built_in(vendor: str, model: str) -> PartitionTable | None:
    """Return the table that boards of this model have, for nodes that state none.

    Args:
        vendor: label gpu-vendor, "" where absent.
        model: label gpu-model, as "H100" or, as NVML names it, "H100-80GB-HBM3".
    """
    name, *rest = model.split("-")
    if vendor not in {"", "nvidia"} or name not in _BUILT_IN_MODELS or _UNSWITCHED.intersection(rest):
        return None
    return _HOPPER


_HOPPER: Final = PartitionTable(
    tuple(Partition(minors, 1, None, _NVLINK) for sets in _BUILT_IN.values() for minors in sets)
)


def policy_of(device: Mapping[str, object], node: Mapping[str, object], *, stated: bool) -> Policy:
    """Read the node's policy: from the Device object's labels where that states a table, else from the Node's.

    Args:
        device: labels of the Device object.
        node: labels of the Node.
        stated: whether the Device object states a table.
    """
    value = (device if stated else node).get(GPU_PARTITION_POLICY)
    return Policy.HONOR if value == Policy.HONOR else Policy.PREFER


def read_partitions(text: object) -> tuple[PartitionTable, tuple[str, ...]]:
    """Read the gpu-partitions annotation.

    Returns:
        The table, less what makes no sense; and what was left out, a sentence each. A text that cannot be read at all
        is a table of nothing: whoever states a table does not mean the built-in one.
    """
    problems: list[str] = []
    found: dict[tuple[int, ...], Partition] = {}
    for size, listed in _object(text, problems).items():
        if not isinstance(listed, list):
            problems.append(f"[{size[:_SHOWN]!r}]: not a list of partitions; left out")
            continue
        for index, entry in enumerate(listed):
            if len(found) >= _MAX_PARTITIONS or len(problems) >= _MAX_PROBLEMS:
                problems.append(f"more than {_MAX_PARTITIONS} partitions or {_MAX_PROBLEMS} wrong ones; rest left out")
                return _table(found, problems)
            try:
                partition = _read_partition(size, entry, found)
                found[partition.minors] = partition
            except (ValueError, TypeError) as error:
                problems.append(f"[{size[:_SHOWN]!r}][{index}]: {error}; left out")
    return _table(found, problems)


def _table(found: Mapping[tuple[int, ...], Partition], problems: list[str]) -> tuple[PartitionTable, tuple[str, ...]]:
    return PartitionTable(tuple(found.values())), tuple(f"annotation {GPU_PARTITIONS}: {told}" for told in problems)


def _object(text: object, problems: list[str]) -> dict[str, Any]:
    if not isinstance(text, str) or len(text) > _MAX_TEXT:
        problems.append("not a text of at most 256 KiB; no partition is read")
        return {}
    try:
        raw = json.loads(text)
    except (ValueError, RecursionError) as error:
        problems.append(f"not JSON ({error}); no partition is read")
        return {}
    if not isinstance(raw, dict):
        problems.append("not an object of numbers of GPUs; no partition is read")
        return {}
    return raw


def _read_partition(size: str, entry: object, found: Collection[tuple[int, ...]]) -> Partition:
    """Read one partition.

    Raises:
        ValueError: it makes no sense; the message says why.
        TypeError: as ValueError.
    """
    if not isinstance(entry, dict):
        raise TypeError("not an object")
    if unknown := sorted(entry.keys() - _KEYS):
        raise ValueError(f"unknown key {unknown[0][:_SHOWN]!r}; known are {', '.join(sorted(_KEYS))}")
    minors = entry.get("minors")
    if not isinstance(minors, list) or not 0 < len(minors) <= _MAX_SIZE or str(len(minors)) != size:
        raise ValueError(f"minors is not a list of {size[:_SHOWN]!r} numbers (1 to {_MAX_SIZE})")
    ordered = tuple(sorted(_whole(minor, "a minor", _MAX_MINOR) for minor in minors))
    if len(set(ordered)) != len(ordered):
        raise ValueError("a minor stands twice")
    if ordered in found:
        raise ValueError("these minors stand twice")
    link = entry.get("gpuLinkType") or ""
    if not isinstance(link, str) or len(link) > _SHOWN:
        raise ValueError("gpuLinkType is not a short text")
    bandwidth = entry.get("ringBusBandwidth")
    try:
        return Partition(
            ordered,
            _whole(entry.get("allocationScore") or 0, "allocationScore", _MAX_MINOR),
            None if bandwidth is None else to_int(bandwidth),
            link,
        )
    except QuantityError as error:
        raise ValueError(f"ringBusBandwidth: {error}") from error


def _whole(value: object, what: str, most: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most <= LARGEST:
        raise ValueError(f"{what} is not a whole number from 0 to 2^31-1")
    return value
