"""Random, first fit, BestFit, FGD, and a stock kube-scheduler, on plain arrays: each from its definition."""

import random
from collections.abc import Callable, Mapping

import numpy as np

from openb.arrays import Arrays, Ints
from openb.trace import WHOLE, TraceAsk

Choice = tuple[int, list[int]]
Strategy = Callable[[TraceAsk], Choice | None]
_LARGEST_CPU, _LARGEST_GPU, _POINTS = 128_000, 8_000, 100


class Randomly:
    """Any node on which the Pod fits, and there the fullest GPU."""

    def __init__(self, cluster: Arrays, seed: int) -> None:
        self._cluster = cluster
        self._chance = random.Random(seed)

    def __call__(self, ask: TraceAsk) -> Choice | None:
        fits = self._cluster.fitting(ask)
        if not len(fits):
            return None
        node = int(fits[self._chance.randrange(len(fits))])
        return node, self._cluster.fullest(node, ask)


class FirstFit:
    """The first node on which the Pod fits, and there the fullest GPU."""

    def __init__(self, cluster: Arrays, seed: int) -> None:
        self._cluster = cluster

    def __call__(self, ask: TraceAsk) -> Choice | None:
        fits = self._cluster.fitting(ask)
        return (int(fits[0]), self._cluster.fullest(int(fits[0]), ask)) if len(fits) else None


class BestFit:
    """The node with the least left of CPU and GPUs, equally weighted, in parts of the largest node; whole points."""

    def __init__(self, cluster: Arrays, seed: int) -> None:
        self._cluster = cluster

    def __call__(self, ask: TraceAsk) -> Choice | None:
        fits = self._cluster.fitting(ask)
        if not len(fits):
            return None
        cpu = self._cluster.cpu[fits] - ask.cpu
        gpu = self._cluster.gpu[fits].sum(1) - ask.gpu_milli
        common = 2 * _LARGEST_CPU * _LARGEST_GPU
        points = _POINTS * (common - cpu * _LARGEST_GPU - gpu * _LARGEST_CPU) // common
        node = int(fits[np.argmax(points)])
        return node, self._cluster.fullest(node, ask)


class Fgd:
    """The node and GPU where the fragmentation grows least; what did not change since is not worked out again.

    Nodes are compared in whole points from 0 to 100, as kube-scheduler compares them: 100 sigmoid(-growth), in GPUs.
    Without this step (`exact`) less is allocated: what differs by less than a point is no reason to open a new node.
    """

    exact = False

    def __init__(self, cluster: Arrays, seed: int) -> None:
        self._cluster = cluster
        self._known: dict[TraceAsk, tuple[int, Ints, Ints]] = {}

    def __call__(self, ask: TraceAsk) -> Choice | None:
        cluster = self._cluster
        fits = cluster.fitting(ask)
        if not len(fits):
            return None
        seen, growth, gpu = self._known.get(
            ask, (-1, np.zeros(len(cluster.nodes), int), np.zeros(len(cluster.nodes), int))
        )
        stale = np.arange(len(cluster.nodes)) if seen < 0 else np.unique(np.array(cluster.changes[seen:], int))
        if len(stale):
            growth[stale], gpu[stale] = self._grown(ask, stale)
        self._known[ask] = (len(cluster.changes), growth, gpu)
        points = growth[fits] if self.exact else -self._points(growth[fits])
        node = int(fits[np.argmin(points)])
        if ask.gpus == 1:
            return node, [int(gpu[node])]
        return node, cluster.fullest(node, ask)

    def _points(self, growth: Ints) -> Ints:
        return (_POINTS / (1 + np.exp(growth / (self._cluster.weight * WHOLE)))).astype(int)

    def _grown(self, ask: TraceAsk, rows: Ints) -> tuple[Ints, Ints]:
        """How much the fragmentation of nodes grows with a Pod, and on which GPU that is least."""
        cluster = self._cluster
        cpu, gpu, now = cluster.cpu[rows] - ask.cpu, cluster.gpu[rows], cluster.fragments[rows]
        best, chosen = np.full(len(rows), np.iinfo(np.int64).max), np.zeros(len(rows), int)
        if ask.gpus == 1:
            for number in range(gpu.shape[1]):
                fits = np.flatnonzero(gpu[:, number] >= ask.milli)
                after = gpu[fits]
                after[:, number] -= ask.milli
                growth = cluster.fragmentation(rows[fits], cpu[fits], after) - now[fits]
                better = growth < best[fits]
                best[fits[better]], chosen[fits[better]] = growth[better], number
            return best, chosen
        if ask.gpus:
            order = np.argsort(np.where(gpu >= ask.milli, gpu, np.iinfo(np.int64).max), axis=1, kind="stable")
            after = gpu.copy()
            np.put_along_axis(
                after, order[:, : ask.gpus], np.take_along_axis(after, order[:, : ask.gpus], 1) - ask.milli, 1
            )
            gpu = after
        fits = np.flatnonzero((gpu >= 0).all(1))
        best[fits] = cluster.fragmentation(rows[fits], cpu[fits], gpu[fits]) - now[fits]
        return best, chosen


class ExactFgd(Fgd):
    """The same, with nodes compared by the exact growth."""

    exact = True


class Stock:
    """A stock kube-scheduler for Pods without GPUs, and another strategy for the others.

    Its default scores of such Pods are NodeResourcesFit (LeastAllocated, of CPU and memory) and
    NodeResourcesBalancedAllocation, both with weight 1 and in whole points. One of the best nodes is taken at random.
    """

    def __init__(self, cluster: Arrays, seed: int, others: Callable[[Arrays, int], Strategy] = Fgd) -> None:
        self._cluster = cluster
        self._chance = random.Random(seed)
        self._others = others(cluster, seed)

    def __call__(self, ask: TraceAsk) -> Choice | None:
        if ask.gpus:
            return self._others(ask)
        cluster = self._cluster
        fits = cluster.fitting(ask)
        if not len(fits):
            return None
        cpu, memory = cluster.cpu_total[fits], cluster.memory_total[fits]
        cpu_left, memory_left = cluster.cpu[fits] - ask.cpu, cluster.memory[fits] - ask.memory
        least = (cpu_left * _POINTS // cpu + memory_left * _POINTS // memory) // 2
        # The standard deviation of two figures is half of their difference.
        unequal = abs(cpu_left * memory - memory_left * cpu)
        balanced = _POINTS * (2 * cpu * memory - unequal) // (2 * cpu * memory)
        points = least + balanced
        best = fits[points == points.max()]
        return int(best[self._chance.randrange(len(best))]), []


STRATEGIES: Mapping[str, Callable[[Arrays, int], Strategy]] = {
    "random": Randomly,
    "first fit": FirstFit,
    "BestFit": BestFit,
    "FGD": Fgd,
    "FGD, exact": ExactFgd,
    "FGD, CPU-only Pods by a stock kube-scheduler": Stock,
}
