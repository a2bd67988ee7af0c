"""The metrics of a koordgate process, each declared once."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.registry import Collector

from koordgate.serving import expose

_FAST_BUCKETS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
_WAIT_BUCKETS = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1_000.0, 3_000.0, 10_000.0)


class WebhookMetrics:
    """All metrics of one process, on a registry of its own."""

    def __init__(self) -> None:
        registry = CollectorRegistry()
        self._registry = registry
        self.requests = Counter(
            "koordgate_requests_total",
            "Requests answered, by path and outcome (allowed, patched, denied, errored, bad).",
            ["path", "outcome"],
            registry=registry,
        )
        self.refusals = Counter(
            "koordgate_refusals_total",
            "Reviews refused, by path and reason: translation (what the Pod asks for cannot be translated); validation "
            "(it was not translated, a quota cannot count it, or it has or loses what only koordgate writes); "
            "too_large; no_room (the node has none for the Pod or claim, or none that may be given now); quota (one "
            "that is newer than the Pod has no room for it); other_scheduler (only koord-scheduler may bind the Pod); "
            "untranslated (it was created without koordgate, which gives its node's devices); forged (a Binding states "
            "another allocation than the ledger); outdated (the object is gone, bound, ended or changed); unreadable "
            "(what it states of itself); malformed (no API server sends it); caller (no API server is it); unavailable "
            "(the API server or the ledger does not answer); late (no decision in time); bug (of koordgate).",
            ["path", "reason"],
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
        self.searches_ended = Counter(
            "koordgate_searches_ended_total",
            "Searches for a node that ended before all nodes were judged, by reason: time (of one call), namespace "
            "(the time of the Pod's namespace, or of all together, was used up).",
            ["reason"],
            registry=registry,
        )
        self.filter_answers = Counter(
            "koordgate_filter_answers_total",
            "Answers to kube-scheduler about a Pod: fits; full (it fits once others leave); impossible (it fits "
            "nowhere even then); unfinished (the search ended early); gang (no room is held for its gang); bound "
            "elsewhere (it holds something on other nodes); unreadable.",
            ["answer"],
            registry=registry,
        )
        self.nominations = Counter(
            "koordgate_nominations_total",
            "Nodes that were nominated for waiting Pods: written; late (kube-scheduler had tried the Pod by then); "
            "withdrawn (kube-scheduler did not come to the Pod).",
            ["how"],
            registry=registry,
        )
        self.bind_wait = Histogram(
            "koordgate_bind_wait_seconds",
            "From when this replica first saw a Pod until its bind was decided.",
            buckets=_WAIT_BUCKETS,
            registry=registry,
        )
        self.bind_events_dropped = Counter(
            "koordgate_bind_events_dropped_total",
            "Events DevicesAllocated that were not written, because too many Pods were bound at once.",
            registry=registry,
        )
        self.headroom_nodes = Gauge(
            "koordgate_headroom_nodes",
            "Nodes with the taint koordgate.io/headroom: short of CPU or memory for their free devices.",
            registry=registry,
        )
        self.headroom_changes = Counter(
            "koordgate_headroom_changes_total",
            "Writes of this taint by this replica, by what was done (set, removed).",
            ["done"],
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
            "Corrected differences of ledger and live Pods, by kind (gone, finished, unbound, moved, adopted), and of "
            "ledger and live ResourceClaims (gone, deallocated, unperformed).",
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
            "Bound Pods whose allocation cannot be read: devices or CPUs of their nodes are withheld.",
            registry=registry,
        )
        self.held_twice = Gauge(
            "koordgate_devices_held_twice",
            "Devices that koordgate gave to one Pod and the kubelet's device plugin to another.",
            registry=registry,
        )
        self.troubles = Gauge(
            "koordgate_device_troubles",
            "What is wrong with devices that Pods hold, by reason of the Event about it: Pods whose annotation and the "
            "ledger differ (AllocationDisputed), Pods whose node lacks their device (DeviceVanished), nodes that list "
            "a GPU of another (DeviceListedTwice).",
            ["reason"],
            registry=registry,
        )
        self.claimed_too = Gauge(
            "koordgate_devices_claimed_too",
            "Devices that koordgate gave to Pods and DRA to ResourceClaims, together more than there is.",
            registry=registry,
        )
        self.claims_unmatched = Gauge(
            "koordgate_claims_unmatched",
            "ResourceClaims of which it is unknown which devices they hold: they hold all of a type on their nodes.",
            registry=registry,
        )
        self.adopted = Gauge(
            "koordgate_adopted_pods",
            "Running Pods of other products that hold devices, by product.",
            ["peer"],
            registry=registry,
        )
        self.adoption_conflicts = Gauge(
            "koordgate_adoption_conflicts",
            "Where it is not certain what Pods of other products hold, or where a device is held twice, by kind.",
            ["kind"],
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
        self.typical = Gauge(
            "koordgate_typical_requests",
            "Typical requests: fragmentation compares nodes by them, and headroom reads from them what devices need; 0 "
            "where neither is on.",
            registry=registry,
        )
        self.loop_lag = Histogram(
            "koordgate_event_loop_lag_seconds",
            "How late the event loop came to a look that is due every 50 ms; all requests wait meanwhile.",
            buckets=_FAST_BUCKETS,
            registry=registry,
        )
        self.worst_loop_lag = Gauge(
            "koordgate_event_loop_worst_lag_seconds",
            "The greatest such lag of the last 10 to 20 seconds.",
            registry=registry,
        )
        self.certificate_expires = Gauge(
            "koordgate_certificate_not_after_seconds",
            "When the serving certificate expires, Unix time; 0 while there is none.",
            registry=registry,
        )
        self.connections_closed = Counter(
            "koordgate_connections_closed_total",
            "Connections closed because there were too many, no request came, or one was compressed or had a head of "
            "more than 32 KiB, by port (webhooks, extender, map).",
            ["port"],
            registry=registry,
        )
        self.extender_authority_expires = Gauge(
            "koordgate_extender_authority_not_after_seconds",
            "When the CA expires that the scheduler trusts, Unix time; 0 with a certificate from files. It is renewed "
            "after two thirds of its life; a scheduler that started before then must start again before it expires.",
            registry=registry,
        )
        self.shadow_pods = Counter(
            "koordgate_shadow_pods_total",
            "Pods created in observed namespaces that ask for devices or CPUs, by what would have become of them "
            "(translated, unchanged, refused), and by dialect (own: koordgate's names and plain nvidia.com/gpu).",
            ["outcome", "dialect"],
            registry=registry,
        )
        self.shadow_refused = Counter(
            "koordgate_shadow_refused_total",
            "What would have been refused in observed namespaces, by reason: Pods (translation, validation, quota), "
            "and Bindings by other schedulers (binding).",
            ["reason"],
            registry=registry,
        )
        self.shadow_placements = Counter(
            "koordgate_shadow_placements_total",
            "Observed Pods for which a node was looked for, by outcome: fits, and waits (at the first try).",
            ["outcome"],
            registry=registry,
        )
        self.shadow_compared = Counter(
            "koordgate_shadow_compared_total",
            "Observed Pods that were bound, by where koordgate would have them (same_node, other_node, would_wait).",
            ["outcome"],
            registry=registry,
        )
        self.shadow_followed = Gauge(
            "koordgate_shadow_followed_pods",
            "Observed Pods that exist, by what would be true of them (placed, waiting, refused). Every replica follows "
            "all of them.",
            ["state"],
            registry=registry,
        )
        self.spans = Counter(
            "koordgate_spans_total",
            "Spans of traces, by what became of them (exported; failed: the collector did not take them; dropped: the "
            "queue was full). They are counted with tracing.endpoint only.",
            ["outcome"],
            registry=registry,
        )
        self.ready = Gauge("koordgate_ready", "1 while the process is ready.", registry=registry)

    def add(self, *collectors: Collector) -> None:
        """Show what other objects know, as it is when the metrics are asked for."""
        for collector in collectors:
            self._registry.register(collector)

    def exposition(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return generate_latest(self._registry)

    def exposed(self, accept: str) -> tuple[bytes, str]:
        """All metrics in the format that a scraper accepts, and its content type."""
        return expose(self._registry, accept)
