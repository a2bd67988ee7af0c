"""The metrics of a koordgate process, each declared once (Prometheus text exposition)."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_FAST_BUCKETS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)


class WebhookMetrics:
    """All metrics of one process, on a registry of its own."""

    content_type = "text/plain; version=0.0.4; charset=utf-8"

    def __init__(self) -> None:
        registry = CollectorRegistry()
        self._registry = registry
        self.requests = Counter(
            "koordgate_requests_total",
            "Requests answered, by path and outcome (allowed, patched, denied, errored, bad).",
            ["path", "outcome"],
            registry=registry,
        )
        self.seconds = Histogram(
            "koordgate_request_seconds",
            "Time to answer a request, by path.",
            ["path"],
            buckets=_FAST_BUCKETS,
            registry=registry,
        )
        self.bugs = Counter(
            "koordgate_bugs_total", "Handlers that failed on a bug of ours.", ["path"], registry=registry
        )
        self.index_contradictions = Counter(
            "koordgate_index_contradictions_total",
            "Nodes that the index excluded and place() accepted: a bug of ours; they were still offered.",
            registry=registry,
        )
        self.ledger_writes = Counter(
            "koordgate_ledger_writes_total", "Compare-and-swap writes that succeeded.", registry=registry
        )
        self.ledger_changes = Counter(
            "koordgate_ledger_changes_total",
            "Changes that those writes carried; above writes where binds to one node were committed together.",
            registry=registry,
        )
        self.ledger_races = Counter(
            "koordgate_ledger_lost_races_total", "Writes that came too late and were decided again.", registry=registry
        )
        self.reconciled = Counter(
            "koordgate_ledger_reconciled_total",
            "Corrected differences of ledger and live Pods, by kind (gone, finished, unbound, moved, adopted).",
            ["kind"],
            registry=registry,
        )
        self.unmanaged = Gauge(
            "koordgate_pods_bound_around",
            "Pods that ask for devices and were bound without an allocation: they see no device.",
            registry=registry,
        )
        self.unreadable = Gauge(
            "koordgate_pods_unreadable",
            "Bound Pods whose allocation cannot be read: devices or CPUs of their nodes are closed.",
            registry=registry,
        )
        self.held_twice = Gauge(
            "koordgate_devices_held_twice",
            "Devices that koordgate gave to one Pod and the kubelet's device plugin to another.",
            registry=registry,
        )
        self.watch = Counter(
            "koordgate_watch_total",
            "Lists, watches, relists and errors, by resource.",
            ["resource", "happening"],
            registry=registry,
        )
        self.bad_objects = Gauge(
            "koordgate_bad_objects",
            "Objects that could not be read and are left out, by resource.",
            ["resource"],
            registry=registry,
        )
        self.certificate_expires = Gauge(
            "koordgate_certificate_not_after_seconds",
            "When the serving certificate expires, Unix time; 0 while there is none.",
            registry=registry,
        )
        self.ready = Gauge("koordgate_ready", "1 while the process is ready.", registry=registry)

    def exposition(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return generate_latest(self._registry)
