"""What is free by what it is worth to typical requests: `allocator.fragmentation.worth`, for many nodes at once."""

from collections.abc import Iterator

import numpy as np

from allocator.fragmentation import Worth
from allocator.index.stock import Stock
from allocator.index.table import Ints
from allocator.index.typical import TypicalOf


def worth_by_make(of: TypicalOf, stock: Stock, cpu: Ints, memory: Ints) -> Iterator[tuple[int, Worth]]:
    """The sums over some nodes, for each make of device by its number.

    `cpu`: thousandths of a CPU that are left of each node. `memory`: bytes, likewise.
    """
    points, serving, makes = stock.points(of.counted, np.int64), stock.serving(of), stock.makes()
    enough = of.enough(np.add.reduce(serving, axis=1, dtype=np.uint8))  # at most `MAX_SLOTS` devices
    fits = enough & of.cpu.suffices(cpu) & of.memory.suffices(memory)
    could, does = (np.einsum("dn,dsn->sn", of.by_class(one), serving, dtype=np.int64) for one in (enough, fits))
    every = int(of.weight.sum(dtype=np.int64))
    parts = [np.zeros(int(makes.max(initial=0)) + 1, np.int64) for _ in Worth._fields]
    for part, weight in zip(parts, (does, could - does, every - could), strict=True):
        np.add.at(part, makes, weight * points)
    for make in np.unique(makes[stock.usable]).tolist():
        yield make, Worth(*(int(part[make]) for part in parts))
