"""Metrics of single devices: what they have, what is given of them and to whom, and what is really used.

Each reporter shows the devices of its own node, so that the figures of a large cluster are spread over its nodes.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Final

from prometheus_client import CollectorRegistry, Gauge

from allocator.vocabulary.device import Device
from allocator.vocabulary.devicetype import DeviceTypes
from allocator.vocabulary.holdings import sum_shares
from allocator.vocabulary.memoryuse import Keeping, MemoryUse
from allocator.vocabulary.names import TYPE_GPU
from reporter.gpu.facts import CardLoad
from reporter.pods import NodePod
from reporter.proof.agree import CardUse
from reporter.round.decide import Decided

_MOST_POD_SERIES: Final = 1000  # of one metric; a node of 16 cards with ten Pods on each has 480


class DeviceMetrics:
    """The metrics of a node's devices."""

    def __init__(self, registry: CollectorRegistry, types: DeviceTypes, *, pods: bool) -> None:
        self._types = types
        self._pods = pods
        device = ["type", "id"]
        self.info = Gauge(
            "koordgate_reporter_device_info",
            "1 for each device, with its minor, model, PCI address and NUMA node.",
            [*device, "minor", "model", "pci", "numa_node"],
            registry=registry,
        )
        self.usable = Gauge(
            "koordgate_reporter_device_usable",
            "1 if anything new may land on a device: it is healthy, not cordoned, and nobody else gave it away.",
            device,
            registry=registry,
        )
        self.capacity = Gauge(
            "koordgate_reporter_device_capacity",
            "What a device has, by resource, in the resource's unit.",
            [*device, "resource", "unit"],
            registry=registry,
        )
        self.allocated = Gauge(
            "koordgate_reporter_device_allocated",
            "What koordgate gave of a device to Pods that have not finished, likewise.",
            [*device, "resource", "unit"],
            registry=registry,
        )
        self.holders = Gauge(
            "koordgate_reporter_device_pods", "Pods that hold some of a device.", device, registry=registry
        )
        self.busy = Gauge(
            "koordgate_reporter_device_busy_ratio",
            "Part of the last sampling period, up to a second, in which a card ran a kernel.",
            device,
            registry=registry,
        )
        self.memory = Gauge(
            "koordgate_reporter_device_memory_used_bytes",
            "Memory of a card that is in use, the driver's own among it.",
            device,
            registry=registry,
        )
        self.limited = Gauge(
            "koordgate_reporter_device_memory_limit_bytes",
            "Sum of the limits that the driver keeps containers to on a card; of cards on which it keeps some.",
            device,
            registry=registry,
        )
        self.kept = Gauge(
            "koordgate_reporter_memory_limits",
            "Running containers, on each of their cards, by whether they are kept to their memory of it.",
            ["state"],
            registry=registry,
        )
        self.exceeding = Gauge(
            "koordgate_reporter_memory_exceeded",
            "Running containers, on each of their cards, that use more of its memory than they hold.",
            registry=registry,
        )
        container = ["namespace", "pod", "container", *device]
        self.container_used = Gauge(
            "koordgate_reporter_container_memory_used_bytes",
            "Memory of a card that a container has, as last read (only with metrics.pods).",
            container,
            registry=registry,
        )
        self.container_limit = Gauge(
            "koordgate_reporter_container_memory_limit_bytes",
            "What the driver lets a container have of a card; absent without a limit (only with metrics.pods).",
            container,
            registry=registry,
        )
        self.container_held = Gauge(
            "koordgate_reporter_container_memory_held_bytes",
            "What a container holds of a card's memory (only with metrics.pods).",
            container,
            registry=registry,
        )
        self.given = Gauge(
            "koordgate_reporter_pod_allocated",
            "What a Pod holds of a device, by resource (only with metrics.pods).",
            ["namespace", "pod", *device, "resource", "unit"],
            registry=registry,
        )
        self.used = Gauge(
            "koordgate_reporter_pod_memory_used_bytes",
            "Memory of a card that processes of a Pod have, as last compared (only with metrics.pods).",
            ["namespace", "pod", *device],
            registry=registry,
        )

    def show(self, decided: Decided, loads: Mapping[str, CardLoad], uses: Sequence[CardUse]) -> None:
        """Show a round's outcome; what is not there any more is not shown any more."""
        devices = decided.device.devices
        self._show_devices(devices, decided)
        for gauge in (self.busy, self.memory):
            gauge.clear()
        for uuid, load in loads.items():
            if load.busy is not None:
                self.busy.labels(TYPE_GPU, uuid).set(load.busy / 100)
            if load.memory is not None:
                self.memory.labels(TYPE_GPU, uuid).set(load.memory)
        memory = [one.use for one in decided.memory]
        self._show_limits(memory)
        if self._pods:
            self._show_pods(decided.holders, uses)
            self._show_containers(memory)

    def _show_devices(self, devices: Sequence[Device], decided: Decided) -> None:
        for gauge in (self.info, self.usable, self.capacity, self.allocated, self.holders):
            gauge.clear()
        shares = [share for pod in decided.holders for share in pod.shares]
        given, holders = sum_shares(shares), Counter(share.id for share in shares)
        for device in devices:
            numa = "" if device.numa_node is None else str(device.numa_node)
            self.info.labels(device.type, device.id, str(device.minor), device.model, device.bus, numa).set(1)
            self.usable.labels(device.type, device.id).set(device.healthy and device.id not in decided.elsewhere)
            self.holders.labels(device.type, device.id).set(holders[device.id])
            units = self._units(device.type)
            for tail, has in device.capacity.items():
                where = (device.type, device.id, tail, units.get(tail, ""))
                self.capacity.labels(*where).set(has)
                self.allocated.labels(*where).set(given.get(device.id, {}).get(tail, 0))

    def _show_pods(self, pods: Sequence[NodePod], uses: Sequence[CardUse]) -> None:
        self.given.clear()
        self.used.clear()
        amounts = (
            (pod, share, tail, amount) for pod in pods for share in pod.shares for tail, amount in share.amounts.items()
        )
        for pod, share, tail, amount in islice(amounts, _MOST_POD_SERIES):
            where = (share.type, share.id, tail, self._units(share.type).get(tail, ""))
            self.given.labels(pod.namespace, pod.name, *where).set(amount)
        by_uid = {pod.uid: pod for pod in pods}
        memory: Counter[tuple[str, str]] = Counter()
        for use in uses:
            if use.pod is not None and use.memory is not None:
                memory[use.pod, use.card] += use.memory
        for (uid, card), amount in islice(memory.items(), _MOST_POD_SERIES):
            if uid in by_uid:
                self.used.labels(by_uid[uid].namespace, by_uid[uid].name, TYPE_GPU, card).set(amount)

    def _show_limits(self, uses: Sequence[MemoryUse]) -> None:
        self.limited.clear()
        limits: Counter[str] = Counter()
        for use in uses:
            if use.limit is not None:
                limits[use.card] += use.limit
        for card, limit in limits.items():
            self.limited.labels(TYPE_GPU, card).set(limit)
        states = Counter(use.keeping for use in uses)
        for keeping in Keeping:
            self.kept.labels(keeping.value).set(states[keeping])
        self.exceeding.set(sum(use.exceeds for use in uses))

    def _show_containers(self, uses: Sequence[MemoryUse]) -> None:
        figures = (self.container_used, self.container_limit, self.container_held)
        for gauge in figures:
            gauge.clear()
        for use in uses[:_MOST_POD_SERIES]:
            where = (use.namespace, use.pod, use.container, TYPE_GPU, use.card)
            for gauge, amount in zip(figures, (use.used, use.limit, use.held), strict=True):
                if amount is not None:
                    gauge.labels(*where).set(amount)

    def _units(self, kind: str) -> dict[str, str]:
        found = self._types.by_name.get(kind)
        if found is None:
            return {}
        return {tail: unit.value for tail, unit in zip(found.tails, found.units, strict=True)}
