"""The quotas on devices and on CPUs of Pods' own as metrics: what they limit, and what they count."""

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Final

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from allocator.quantity import QuantityError, parse
from webhook.quotas.mirror import counted_name
from webhook.quotas.table import LimitTable

_MAX: Final = 1_000  # series of each metric
_LABELS: Final = ("namespace", "quota", "resource")


class QuotaFigures(Collector):
    """The figures of all quotas that count translated Pods: an administrator's own, and mirrors."""

    def __init__(self, table: LimitTable) -> None:
        self._table = table

    def collect(self) -> Iterator[Metric]:
        """Both figures of each quota, in the resource's unit; an amount that is no quantity is left out."""
        hard = GaugeMetricFamily(
            "koordgate_quota_hard",
            "What a quota limits of a resource of the domain quota.koordgate.io, in the resource's unit (mirrors have "
            "names that end in .koordgate).",
            labels=_LABELS,
        )
        used = GaugeMetricFamily(
            "koordgate_quota_used", "What the API server counts for this quota, likewise.", labels=_LABELS
        )
        for labels, limit, counted in islice(self._rows(), _MAX):
            hard.add_metric(labels, limit)
            used.add_metric(labels, counted)
        yield hard
        yield used

    def _rows(self) -> Iterator[tuple[tuple[str, str, str], float, float]]:
        for namespace in self._table.namespaces():
            for name, quota in sorted(self._table.quotas(namespace).items()):
                for key in quota.hard:
                    resource, limit = counted_name(key), _number(quota.hard, key)
                    if resource and limit is not None:
                        yield (namespace, name, resource), limit, _number(quota.used, key) or 0.0


def _number(amounts: Mapping[str, str], key: str) -> float | None:
    try:
        return float(parse(amounts.get(key, "0")))
    except QuantityError:
        return None
