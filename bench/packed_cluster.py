"""Clusters of 8-GPU nodes, half full, for the benchmarks of the index."""

import random
import time
from dataclasses import replace
from typing import Final

import numpy as np
import orjson

from allocator.index.cluster import ClusterIndex
from allocator.index.packed import Packed
from allocator.index.query import PartOf, Query, RatioFrom, Want
from allocator.index.rows import load_row
from allocator.index.search import NodeSearch
from allocator.index.table import TypeRow
from allocator.vocabulary.asks import DeviceAsk, Preference
from allocator.vocabulary.devicetype import GPU_TYPE
from allocator.vocabulary.mix import MAX_TYPICAL, Mix, TypicalRequest, mix_of

GPUS: Final = 8
MEMORY: Final = 80 * 2**30
SEED: Final = 11
USES: Final = (0, 0, 0, 25, 50, 75, 100, 100, 100)  # percent of a card, all equally likely; about half on average
FULLNESS: Final = {"gpu": ("gpu-core", "gpu-memory-ratio")}
SIZES: Final = {"gpu": ("gpu-memory", 2**30)}
KINDS: Final = 512  # the number of different nodes, unless another is given
MAKE: Final = ("nvidia", "A100")
SHARES: Final = (5, 10, 20, 25, 30, 40, 50, 60, 70, 75, 80, 90)  # percent, of typical requests


def kinds(count: int = KINDS) -> list[list[int]]:
    """The used percent of each card, for every kind of node."""
    chance = random.Random(SEED)
    return [chance.choices(USES, k=GPUS) for _ in range(count)]


def packed(used: list[int]) -> TypeRow:
    """A node's cards, packed; `used` has the used percent of each."""
    percent, whole = [100 - part for part in used], [100] * GPUS
    classes = (
        Packed.of("gpu-core", whole, percent),
        Packed.of("gpu-memory", [MEMORY] * GPUS, [MEMORY * part // 100 for part in percent]),
        Packed.of("gpu-memory-ratio", whole, percent),
    )
    return TypeRow("gpu", classes, (1 << GPUS) - 1, sum((part > 0) << card for card, part in enumerate(used)))


def told(row: TypeRow) -> TypeRow:
    """The same cards with what the preference fragmentation needs to know of them: all of one make, and linked."""
    return replace(row, makes=(MAKE,) * GPUS, groups=(0,) * GPUS)


def load(used: list[int]) -> TypeRow:
    """What the Pods on its cards and others request of a node of 128 CPUs, 1 TiB of memory and 1 TiB of disk."""
    busy = sum(used)
    return load_row(
        {"cpu": 128_000, "memory": 2**40, "ephemeral-storage": 2**40},
        {"cpu": 1_500 + 100 * busy, "memory": 2**31 + 2**30 * busy // 4, "ephemeral-storage": 2**20 * busy},
    )


def mix() -> Mix:
    """As many typical requests as a mix may have: shares and whole cards, with different amounts of CPU and memory."""
    chance, requests = random.Random(SEED), list[TypicalRequest]()
    for number in range(MAX_TYPICAL):
        percent, count = (chance.choice(SHARES), 1) if number % 2 else (100, chance.choice((1, 1, 2, 4, 8)))
        amounts = {"gpu-core": percent, "gpu-memory-ratio": percent}
        ask = DeviceAsk(GPU_TYPE, count, tuple(amounts.get(tail) for tail in GPU_TYPE.tails))
        cpu, memory = 1000 * chance.randint(1, 32) + number, 2**30 * chance.randint(1, 256)
        requests.append(TypicalRequest(cpu, memory, ask, (), chance.randint(1, 16)))
    return mix_of(requests)


class Cluster:
    """An index of nodes, half full, and their names in the order in which a scheduler sends them."""

    def __init__(self, nodes: int, different: int = KINDS) -> None:
        self._rows = [told(packed(used)) for used in kinds(different)]
        self._loads = [load(used) for used in kinds(different)]
        self._names = [f"gpu-node-{number:05d}" for number in range(nodes)]
        self._chance = random.Random(SEED)
        self._written = 0
        self.index = ClusterIndex(FULLNESS, SIZES)
        self.index.typify(mix())
        self.rewrite()

    def rewrite(self) -> None:
        """Rewrite every node, with other cards in use than before."""
        self._written += 1
        for number in range(len(self._names)):
            self._put(number, (number * self._written + self._written) % len(self._rows))

    def rewrite_one(self, number: int) -> None:
        """Write one node anew, as a bind does."""
        self._put(number % len(self._names), number * 5 % len(self._rows))

    def _put(self, number: int, kind: int) -> None:
        self.index.put(self._names[number], (self._rows[kind], self._loads[kind]))

    def body(self) -> bytes:
        """The names as a scheduler sends them, in a new order."""
        names = list(self._names)
        self._chance.shuffle(names)
        return orjson.dumps(names)

    def query(self, number: int, way: Preference) -> Query:
        """A request that differs from the last 50: half a card, stated in percent or in bytes."""
        core = 1 + number % 50
        if number % 2:
            ratio: tuple[tuple[str, int | PartOf | RatioFrom], ...] = (
                ("gpu-memory", PartOf(50)),
                ("gpu-memory-ratio", 50),
            )
        else:
            ratio = (("gpu-memory", MEMORY // 2), ("gpu-memory-ratio", RatioFrom("gpu-memory", MEMORY // 2)))
        want = Want("gpu", 1, (("gpu-core", core), *ratio))
        if way is Preference.PACKING:
            return Query((want,))
        return Query((want,), ((want,),), (("cpu", 4000), ("memory", 16 * 2**30 + core)))

    def answer_ms(self, body: bytes, query: Query, way: Preference) -> float:
        """Milliseconds to find the nodes among these that can hold a Pod, and to compare them, JSON left out."""
        names: list[str] = orjson.loads(body)
        began = time.perf_counter()
        if way is Preference.PACKING:
            rows = self.index.positions(names)
            rows = rows[self.index.fitting(query)[rows]]
            found = int(np.count_nonzero(self.index.packing(rows, query)))
        else:
            found = len(next(NodeSearch(self.index, query, names).best_first(way, {}), ""))
        taken = (time.perf_counter() - began) * 1e3
        if not found:
            raise RuntimeError("a half full cluster holds the Pod on some nodes")
        return taken
