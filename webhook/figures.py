"""The figures of the cluster as metrics: what it has, what is given, what is free, and for what Pods wait."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from allocator.vocabulary.devicetype import DeviceTypes
from koordgate.breaks import Breaks
from webhook.view.capacity import OTHER, AmountSum, Capacity, DeviceState, DeviceSum
from webhook.view.worth import FreeWorth

UNASKED: Final = "unasked"  # kube-scheduler has not asked about the Pod yet, or not lately

_AMOUNTS: Final = {
    "capacity": ("koordgate_capacity", "What the devices have, by type, model and resource, in the resource's unit."),
    "allocated": ("koordgate_allocated", "What Pods and ResourceClaims hold of the devices, likewise."),
    "free": ("koordgate_free", "What is free of the devices that can be used, likewise."),
}


class ClusterFigures(Collector):
    """The figures. They are those of the last `refresh`.

    `answer`: returns what kube-scheduler was answered last about one of them; None if that is not known.
    """

    def __init__(
        self,
        capacity: Capacity,
        worth: FreeWorth,
        types: DeviceTypes,
        waiting: Callable[[], Iterable[str]],
        answer: Callable[[str], str | None],
    ) -> None:
        self._capacity = capacity
        self._worth = worth
        self._types = types
        self._waiting_now = waiting
        self._answer = answer
        self._waiting: Counter[str] = Counter()

    async def refresh(self) -> None:
        """Count anew; others run in between."""
        await self._capacity.refresh()
        await self._worth.refresh()
        breaks = Breaks()
        counted: Counter[str] = Counter()
        for uid in list(self._waiting_now()):
            counted[self._answer(uid) or UNASKED] += 1
            if breaks.due():
                await breaks.take()
        self._waiting = counted

    def collect(self) -> Iterator[Metric]:
        """All figures."""
        sums = self._capacity.sums()
        devices = GaugeMetricFamily(
            "koordgate_devices",
            "Devices by type, model and state: idle, shared (something is free of each resource), full, unusable.",
            labels=["type", "model", "state"],
        )
        counted = {key: number for key, number in sums if isinstance(key, DeviceSum)}
        for kind, model in dict.fromkeys((key.type, key.model) for key in counted):
            for state in DeviceState:
                devices.add_metric([kind, model, state], counted.get(DeviceSum(kind, model, state), 0))
        yield devices
        amounts = [(key, number) for key, number in sums if isinstance(key, AmountSum)]
        for what, (name, text) in _AMOUNTS.items():
            family = GaugeMetricFamily(name, text, labels=["type", "model", "resource", "unit"])
            for key, number in amounts:
                if key.what == what:
                    family.add_metric([key.type, key.model, key.resource, self._unit(key)], number)
            yield family
        yield self._free_by_worth()
        waiting = GaugeMetricFamily(
            "koordgate_pods_waiting",
            "Pods that wait, by what kube-scheduler was answered last about them (see koordgate_filter_answers_total); "
            "unasked: it has not asked yet.",
            labels=["answer"],
        )
        for said, number in sorted(self._waiting.items()):
            waiting.add_metric([said], number)
        yield waiting

    def _free_by_worth(self) -> GaugeMetricFamily:
        family = GaugeMetricFamily(
            "koordgate_free_devices",
            "What is free of the devices, in whole devices, by what it is worth to the typical requests for the type, "
            "on average: useful; node_short (its node has too little CPU or memory left); remainder (too little is "
            "left of the device, too few such devices are left, or the model is another).",
            labels=["type", "model", "worth"],
        )
        named = self._capacity.named()
        shown: defaultdict[tuple[str, str, str], float] = defaultdict(float)
        for key, number in self._worth.sums().items():
            model = key.model if (key.type, key.model) in named else OTHER
            shown[key.type, model, key.worth] += number
        for labels, number in sorted(shown.items()):
            family.add_metric(labels, number)
        return family

    def _unit(self, key: AmountSum) -> str:
        kind = self._types.by_name.get(key.type)
        found = dict(zip(kind.tails, kind.units, strict=True)) if kind is not None else {}
        unit = found.get(key.resource)
        return unit.value if unit is not None else ""
