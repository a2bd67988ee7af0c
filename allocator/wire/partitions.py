"""Partition tables of nodes: annotations of the Device object, and built-in tables."""

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

from allocator.quantity import QuantityError, to_int
from allocator.vocabulary.excerpt import excerpt
from allocator.vocabulary.partition import HOPPER, Board, Partition, PartitionPolicy, PartitionTable
from allocator.wire.values import MAX_OF_NODE, UNREADABLE, parse_json

GPU_PARTITIONS: Final = "scheduling.koordinator.sh/gpu-partitions"


GPU_PARTITION_POLICY: Final = "node.koordinator.sh/gpu-partition-policy"


GPU_VENDOR: Final = "node.koordinator.sh/gpu-vendor"


GPU_MODEL: Final = "node.koordinator.sh/gpu-model"


_KEYS: Final = frozenset({"minors", "gpuLinkType", "ringBusBandwidth", "allocationScore"})


_MAX_PARTITIONS: Final = 1024


_MAX_SIZE: Final = 64  # devices of one partition


_MAX_MINOR: Final = 2**31 - 1


_MAX_PROBLEMS: Final = 8


_MAX_LINK_LENGTH: Final = 64  # characters


def built_in(vendor: str, model: str, boards: Iterable[Board] = (HOPPER,)) -> PartitionTable | None:
    """Return the table of boards of this model, for nodes that state none; None if no board matches.

    `vendor`: label gpu-vendor; "" if absent. `model`: label gpu-model, such as "H100" or, as NVML names it,
    "H100-80GB-HBM3".
    """
    return next((board.table for board in boards if board.fits(vendor, model)), None)


def policy_of(device: Mapping[str, object], node: Mapping[str, object], *, stated: bool) -> PartitionPolicy:
    """Read the node's policy: from the Device object's labels if that states a table, otherwise from the Node's."""
    value = (device if stated else node).get(GPU_PARTITION_POLICY)
    return PartitionPolicy.HONOR if value == PartitionPolicy.HONOR else PartitionPolicy.PREFER


def read_partitions(text: object) -> tuple[PartitionTable, tuple[str, ...]]:
    """Read the gpu-partitions annotation.

    Returns the table without wrong entries, and one sentence for each of these. A text that cannot be read at all is an
    empty table, because a stated table replaces the built-in one.
    """
    problems: list[str] = []
    found: dict[tuple[int, ...], Partition] = {}
    for size, listed in _object(text, problems).items():
        if not isinstance(listed, list):
            problems.append(f"[{excerpt(size)!r}]: not a list of partitions; left out")
            continue
        for index, entry in enumerate(listed):
            if len(found) >= _MAX_PARTITIONS or len(problems) >= _MAX_PROBLEMS:
                problems.append(f"more than {_MAX_PARTITIONS} partitions or {_MAX_PROBLEMS} wrong ones; rest left out")
                return _table(found, problems)
            try:
                partition = _read_partition(size, entry, found)
                found[partition.minors] = partition
            except (ValueError, TypeError) as error:
                problems.append(f"[{excerpt(size)!r}][{index}]: {error}; left out")
    return _table(found, problems)


def _table(found: Mapping[tuple[int, ...], Partition], problems: list[str]) -> tuple[PartitionTable, tuple[str, ...]]:
    return PartitionTable(tuple(found.values())), tuple(f"annotation {GPU_PARTITIONS}: {one}" for one in problems)


def _object(text: object, problems: list[str]) -> dict[str, Any]:
    try:
        raw = parse_json(text, MAX_OF_NODE)
    except UNREADABLE as error:
        problems.append(f"not JSON ({error}); no partition is read")
        return {}
    if not isinstance(raw, dict):
        problems.append("not an object of numbers of GPUs; no partition is read")
        return {}
    return raw


def _read_partition(size: str, entry: object, found: Collection[tuple[int, ...]]) -> Partition:
    """Read one partition.

    Raises ValueError: it is wrong; the message says why; TypeError: as ValueError.
    """
    if not isinstance(entry, dict):
        raise TypeError("not an object")
    if unknown := sorted(entry.keys() - _KEYS):
        raise ValueError(f"unknown key {excerpt(unknown[0])!r}; known are {', '.join(sorted(_KEYS))}")
    minors = entry.get("minors")
    if not isinstance(minors, list) or not 0 < len(minors) <= _MAX_SIZE or str(len(minors)) != size:
        raise ValueError(f"minors is not a list of {excerpt(size)!r} numbers (1 to {_MAX_SIZE})")
    ordered = tuple(sorted(_whole(minor, "a minor", _MAX_MINOR) for minor in minors))
    if len(set(ordered)) != len(ordered):
        raise ValueError("a minor occurs twice")
    if ordered in found:
        raise ValueError("these minors occur twice")
    link = entry.get("gpuLinkType") or ""
    if not isinstance(link, str) or len(link) > _MAX_LINK_LENGTH:
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
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
        raise ValueError(f"{what} is not a whole number from 0 to 2^31-1")
    return value
