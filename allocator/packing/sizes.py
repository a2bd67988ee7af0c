"""Requests by their size alone: so many devices, and so much of each."""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from allocator.amounts import CPU, PODS
from allocator.headroom import needs_of
from allocator.packing.fleet import Guest
from allocator.request.typical import MEMORY
from allocator.vocabulary.asks import ContainerAsk, DeviceAsk, PodRequest
from allocator.vocabulary.devicetype import FULL, DeviceType
from allocator.vocabulary.mix import MOST_COUNT, Mix
from allocator.vocabulary.phase import Phase

_SIZE: Final = re.compile(r"(?P<count>[0-9]{1,3})|((?P<each>[0-9]{1,3}):)?(?P<percent>[0-9]{1,3})%?", re.ASCII)


class SizeError(ValueError):
    """A size cannot be read, or the type cannot be asked for by it; the message says what would work."""


@dataclass(frozen=True, slots=True)
class Size:
    """A size.

    Attributes:
        count: of devices, from 1.
        percent: of each, from 1 to 100.
    """

    count: int
    percent: int = FULL

    def __str__(self) -> str:
        if self.percent == FULL:
            return str(self.count)
        return f"{self.percent}%" if self.count == 1 else f"{self.count}:{self.percent}%"


SIZES: Final = (Size(1, 10), Size(1, 25), Size(1, 50), Size(1), Size(2), Size(4), Size(8))
"""The table of sizes that people ask for."""


def read_size(text: str) -> Size:
    """Read a size: `8` is eight whole devices, `50%` half of one, `2:50%` half of each of two.

    Raises:
        SizeError: it is none.
    """
    found = _SIZE.fullmatch(text)
    if found is None or (found["count"] is None and found["each"] is None and not text.endswith("%")):
        raise SizeError(f"{text!r} is no size: write 8 (whole cards), 50% (of one) or 2:50% (of each of two)")
    size = Size(int(found["count"] or found["each"] or 1), int(found["percent"] or FULL))
    if not 0 < size.count <= MOST_COUNT or not 0 < size.percent <= FULL:
        raise SizeError(f"{text!r} is no size: from 1 to {MOST_COUNT} cards, from 1% to {FULL}% of each")
    return size


def guest_of(
    size: Size, kind: DeviceType, mix: Mix, may: Collection[str] | None = None, asks: Mapping[str, int] | None = None
) -> Guest:
    """A Pod of a size.

    It requests as much CPU and memory as Pods of the mix request in the mean with as much of such devices, rounded up.

    Args:
        size: its size.
        kind: the type of its devices.
        mix: the typical requests.
        may: the nodes on which it may land; None for all.
        asks: amounts that it requests instead: thousandths of a CPU, bytes.

    Raises:
        SizeError: devices of the type are not divided in percent.
    """
    if size.percent < FULL and not any(kind.percent):
        raise SizeError(f"{size}: devices of type {kind.name} are not divided in percent; ask for whole ones")
    amounts = tuple(size.percent if percent else None for percent in kind.percent)
    need, percent = needs_of(mix).get(kind.name), size.count * size.percent
    typical = {CPU: need.cpu, MEMORY: need.memory} if need is not None else {}
    of_node = {name: -(-amount * percent // need.percent) for name, amount in typical.items() if need is not None}
    request = PodRequest((ContainerAsk("main", Phase.APP, DeviceAsk(kind, size.count, amounts)),))
    where = None if may is None else frozenset(may)
    return Guest(f"a Pod of {size}", "", str(size), request, {**of_node, **(asks or {}), PODS: 1}, where)
