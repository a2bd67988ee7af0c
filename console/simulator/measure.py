"""How full and how fragmented the GPUs of an offline cluster are; only nodes that changed are looked at again."""

from typing import Final

from allocator.fragmentation import fragmentation, points_left
from allocator.vocabulary.devicetype import BUILT_IN, FULL
from allocator.vocabulary.mix import Mix
from allocator.vocabulary.names import GPU_CORE, GPU_MEMORY_RATIO, TYPE_GPU
from allocator.vocabulary.node import NodeSnapshot
from console.simulator.cluster import OfflineCluster

_GPU: Final = BUILT_IN.by_name[TYPE_GPU]
_ALIKE: Final = (GPU_CORE, GPU_MEMORY_RATIO)


class Measure:
    """Figures about the GPUs of a cluster, in percent of all usable ones.

    Args:
        cluster: with its nodes loaded.
        mix: by which fragmentation is measured.

    Attributes:
        gpus: the number of usable GPUs.
    """

    def __init__(self, cluster: OfflineCluster, mix: Mix) -> None:
        self._cluster = cluster
        self._mix = mix
        self._stale = set(cluster.node_names)
        self._points: dict[str, int] = {}
        self._given: dict[str, int] = {}
        snapshots = [cluster.parts.cluster.snapshot(name) for name in cluster.node_names]
        gpus = [(node, one) for node in snapshots for one in node.devices if one.type == TYPE_GPU and one.healthy]
        self.gpus = len(gpus)
        self._all_points = sum(points_left(_GPU, node.without(node.holdings), one) for node, one in gpus)

    def touch(self, node: str) -> None:
        """Something changed on a node."""
        self._stale.add(node)

    def _refresh(self) -> None:
        for name in self._stale:
            node = self._cluster.parts.cluster.snapshot(name)
            self._points[name] = self._of(node)
            self._given[name] = sum(
                max(node.used.get(one.id, {}).get(tail, 0) for tail in _ALIKE)
                for one in node.devices
                if one.type == TYPE_GPU and one.healthy
            )
        self._stale.clear()

    def _of(self, node: NodeSnapshot) -> int:
        loads = self._cluster.parts.cluster.loads
        has, used = loads.allocatable(node.name), loads.requested(node.name)
        cpu, memory = (has.get(name, 0) - used.get(name, 0) for name in ("cpu", "memory"))
        return fragmentation(node, cpu, memory, self._mix)

    def fragmented(self) -> float:
        """The fragmentation that is expected for the mix."""
        self._refresh()
        return _percent(sum(self._points.values()), self._mix.weight * self._all_points)

    def allocated(self) -> float:
        """What is given of the GPUs: of each the greater of its compute and its memory."""
        self._refresh()
        return _percent(sum(self._given.values()), self.gpus * FULL)


def _percent(part: int, whole: int) -> float:
    return part * 100 / whole if whole else 0.0
