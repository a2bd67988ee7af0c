"""A cluster as plain arrays, and its fragmentation from the definition (FGD paper, section 3). No code of koordgate.

Amounts are thousandths of CPUs and GPUs, and MiB. The fragmentation of a node is summed over the typical Pods with
their weights, so that all figures are exact integers; divided by the sum of the weights it is in thousandths of GPUs.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from openb.trace import WHOLE, TraceAsk, TraceNode, TracePod

TYPICAL_PERCENT = 95
Ints = np.ndarray


def typical(pods: Iterable[TracePod], percent: int = TYPICAL_PERCENT) -> list[tuple[TraceAsk, int]]:
    """The most frequent requests (CPU, GPUs, models; not memory) with their numbers, until they make up a share."""
    counted = Counter(pod.ask._replace(memory=0) for pod in pods)
    ordered = sorted(counted.items(), key=lambda each: (-each[1], each[0]))
    enough, found, total = counted.total() * percent, 0, []
    for ask, number in ordered:
        if found * 100 >= enough:
            break
        total.append((ask, number))
        found += number
    return total


class Arrays:
    """A cluster."""

    def __init__(self, nodes: Sequence[TraceNode], mix: Sequence[tuple[TraceAsk, int]]) -> None:
        self.nodes = nodes
        self.models = sorted({node.model for node in nodes})
        self.model = np.array([self.models.index(node.model) for node in nodes])
        self.cpu_total = np.array([node.cpu for node in nodes])
        self.memory_total = np.array([node.memory for node in nodes])
        self.cpu, self.memory = self.cpu_total.copy(), self.memory_total.copy()
        most = max(node.gpus for node in nodes)
        self.gpu = np.array([[WHOLE] * node.gpus + [0] * (most - node.gpus) for node in nodes])
        self.all_milli = int(self.gpu.sum())
        self.used = 0
        self.changes: list[int] = []  # the nodes that changed, in order
        self.weight = sum(weight for _, weight in mix)
        self._weights = np.array([weight for _, weight in mix])
        self._ask_cpu, self._ask_gpus, self._ask_milli = (np.array([ask[of] for ask, _ in mix]) for of in (0, 2, 3))
        self._of_model = np.array([self.allowed(ask) for ask, _ in mix])
        self.fragments = self.fragmentation(np.arange(len(nodes)), self.cpu, self.gpu)

    def allowed(self, ask: TraceAsk) -> Ints:
        """Which models will do."""
        return np.array([bool(ask.gpus and model) and (not ask.models or model in ask.models) for model in self.models])

    def fragmentation(self, rows: Ints, cpu: Ints, gpu: Ints) -> Ints:
        """The fragmentation of nodes, times the sum of the weights, with this much left on them."""
        left = gpu[:, None, :]
        small = left < self._ask_milli[None, :, None]
        fits = (cpu[:, None] >= self._ask_cpu) & ((~small).sum(2) >= self._ask_gpus)
        fits &= self._of_model[:, self.model[rows]].T
        found: np.ndarray = np.where(fits, np.where(small, left, 0).sum(2), gpu.sum(1)[:, None]) @ self._weights
        return found

    def fitting(self, ask: TraceAsk) -> Ints:
        """The nodes on which a Pod fits."""
        fits = (self.cpu >= ask.cpu) & (self.memory >= ask.memory)
        if ask.gpus:
            fits &= self.allowed(ask)[self.model] & ((self.gpu >= ask.milli).sum(1) >= ask.gpus)
        return np.flatnonzero(fits)

    def fullest(self, node: int, ask: TraceAsk) -> list[int]:
        """Of the GPUs of a node that have enough left, those that have least."""
        enough = [number for number, left in enumerate(self.gpu[node]) if left >= ask.milli] if ask.gpus else []
        return sorted(enough, key=lambda number: self.gpu[node][number])[: ask.gpus]

    def put(self, node: int, ask: TraceAsk, gpus: Sequence[int], sign: int = 1) -> None:
        """Place a Pod, or take it away (sign -1)."""
        self.cpu[node] -= sign * ask.cpu
        self.memory[node] -= sign * ask.memory
        for number in gpus:
            self.gpu[node, number] -= sign * ask.milli
        self.used += sign * ask.gpu_milli
        if min(self.cpu[node], self.memory[node], *self.gpu[node]) < 0:
            raise RuntimeError(f"{self.nodes[node].name} is overcommitted by {ask}")
        self.fragments[node] = self.fragmentation(np.array([node]), self.cpu[[node]], self.gpu[[node]])[0]
        self.changes.append(node)

    @property
    def allocated_percent(self) -> float:
        """Of all GPUs."""
        return self.used * 100 / self.all_milli

    @property
    def fragmented_percent(self) -> float:
        """The expected fragmentation, of all GPUs."""
        return int(self.fragments.sum()) * 100 / (self.weight * self.all_milli)
