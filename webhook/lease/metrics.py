"""The metrics of the health lease's keeper, each declared once (Prometheus text exposition)."""

from prometheus_client import CollectorRegistry, Counter, Gauge

from koordgate.exposition import expose
from webhook.lease.entries import Guarded


class LeaseMetrics:
    """All metrics of one process, on a registry of its own."""

    def __init__(self) -> None:
        registry = CollectorRegistry()
        self._registry = registry
        self.open = Gauge(
            "koordgate_lease_open",
            "1 for each entry of the webhook configurations that is open because no replica lived.",
            ["entry"],
            registry=registry,
        )
        self.silent = Gauge(
            "koordgate_lease_silent_seconds",
            "For how long this process has seen no replica renew the health lease.",
            registry=registry,
        )
        self.changes = Counter(
            "koordgate_lease_changes_total", "Entries opened and shut, by what was done.", ["done"], registry=registry
        )
        self.problem = Gauge(
            "koordgate_lease_problem",
            "1 while the health lease cannot do its work; the log says why.",
            registry=registry,
        )
        self.bugs = Counter(
            "koordgate_lease_bugs_total", "Work that a bug in the keeper of the lease ended.", registry=registry
        )
        for done in ("opened", "shut"):
            self.changes.labels(done)
        for guarded in Guarded:
            self.open.labels(guarded.entry)

    def exposition(self) -> bytes:
        """All metrics as text."""
        return self.exposed("")[0]

    def exposed(self, accept: str) -> tuple[bytes, str]:
        """All metrics, and their content type, as the header `Accept` of a scraper asks for them."""
        return expose(self._registry, accept)
