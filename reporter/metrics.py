"""The reporter's metrics, each declared once."""

from collections import Counter as Count
from collections.abc import Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest

from allocator.vocabulary.devicetype import BUILT_IN, DeviceTypes
from koordgate.exposition import expose
from reporter.devicemetrics import DeviceMetrics
from reporter.gpu.facts import XidEvent
from reporter.gpu.health import CardState, NodeRecord
from reporter.gpu.xid import kind_of
from reporter.proof.agree import UNSHOWN, Agreement, CardClaim
from reporter.publish.device import others
from reporter.round.effects import ShowRound


class ReporterMetrics:
    """All metrics of one process, on a registry of its own."""

    def __init__(self, types: DeviceTypes = BUILT_IN, *, pods: bool = False) -> None:
        registry = CollectorRegistry()
        self._registry = registry
        self.devices = DeviceMetrics(registry, types, pods=pods)
        self.rounds = Counter("koordgate_reporter_rounds_total", "Rounds completed.", registry=registry)
        self.bugs = Counter(
            "koordgate_reporter_bugs_total",
            "Work that a bug in the reporter ended, by part.",
            ["part"],
            registry=registry,
        )
        self.writes = Counter(
            "koordgate_reporter_writes_total",
            "Writes accepted, by object; taken_back is true if somebody else had changed our fields.",
            ["object", "taken_back"],
            registry=registry,
        )
        self.problems = Gauge(
            "koordgate_reporter_problems", "What cannot be read, reported or enforced now.", registry=registry
        )
        self.nvml_up = Gauge(
            "koordgate_reporter_nvml_up",
            "1 while NVML answers, and where the node has no NVIDIA card.",
            registry=registry,
        )
        self.gpus = Gauge("koordgate_reporter_gpus", "Cards, by health state.", ["state"], registry=registry)
        self.gpu_errors = Gauge(
            "koordgate_reporter_gpu_errors",
            "Errors of a card since it was last healthy, with the reason that took it out of service.",
            ["uuid", "reason"],
            registry=registry,
        )
        self.devices_unusable = Gauge(
            "koordgate_reporter_devices_unusable",
            "1 for each NIC, FPGA and other device that is present and cannot be used, with the reason.",
            ["type", "id", "reason"],
            registry=registry,
        )
        self.gpu_ecc_errors = Gauge(
            "koordgate_reporter_gpu_ecc_errors",
            "Memory errors of a card since its driver was loaded or it was reset, as last read.",
            ["uuid", "kind"],
            registry=registry,
        )
        self.gpu_remapped_rows = Gauge(
            "koordgate_reporter_gpu_remapped_rows",
            "Rows of a card's memory that were replaced by spare rows, as last read.",
            ["uuid"],
            registry=registry,
        )
        self.gpu_retired_pages = Gauge(
            "koordgate_reporter_gpu_retired_pages",
            "Pages of a card's memory that were retired permanently, as last read.",
            ["uuid"],
            registry=registry,
        )
        self.gpu_last_error = Gauge(
            "koordgate_reporter_gpu_last_error_timestamp_seconds",
            "When a card last had an error that counts, or last showed a fault; absent if it never did.",
            ["uuid"],
            registry=registry,
        )
        self.xids = Counter(
            "koordgate_reporter_xids_total",
            "Xid errors, by severity; known is false if NVML named no known card.",
            ["class", "known"],
            registry=registry,
        )
        self.cpuset_writes = Counter(
            "koordgate_reporter_cpuset_writes_total", "Cpuset files written.", registry=registry
        )
        self.cpuset_reapplied = Counter(
            "koordgate_reporter_cpuset_reapplied_total",
            "Cgroups that somebody else had changed and that were corrected.",
            registry=registry,
        )
        self.take_overs = Counter(
            "koordgate_reporter_take_overs_total",
            "Times that allocated CPUs were written into the kubelet's CPU manager state.",
            registry=registry,
        )
        self.agreeing = Gauge(
            "koordgate_reporter_pods_agreeing", "Pods that have exactly what was allocated to them.", registry=registry
        )
        self.mismatches = Gauge(
            "koordgate_reporter_mismatches",
            "Contradictions between what was allocated and what Pods have, by kind.",
            ["kind"],
            registry=registry,
        )
        self.claims = Gauge(
            "koordgate_reporter_card_claims",
            "Cards that environments of containers name although nobody gave them to the Pods; they stay in service.",
            registry=registry,
        )
        self.watch = Counter(
            "koordgate_reporter_watch_total",
            "Lists, watches, relists and errors, by resource.",
            ["resource", "happening"],
            registry=registry,
        )

    def show_cards(self, node: NodeRecord) -> None:
        """Show the cards."""
        states = Count(card.health.state for card in node.cards.values())
        for state in CardState:
            self.gpus.labels(state.value).set(states[state])
        wears = (self.gpu_ecc_errors, self.gpu_remapped_rows, self.gpu_retired_pages, self.gpu_last_error)
        for gauge in (self.gpu_errors, *wears):
            gauge.clear()
        for uuid, card in node.cards.items():
            wear = card.facts.wear
            for gauge, labels, value in (
                (self.gpu_ecc_errors, (uuid, "corrected"), wear.corrected),
                (self.gpu_ecc_errors, (uuid, "uncorrected"), wear.uncorrected),
                (self.gpu_remapped_rows, (uuid,), wear.remapped_rows),
                (self.gpu_retired_pages, (uuid,), wear.retired_pages),
                (self.gpu_last_error, (uuid,), card.health.last_error or None),
            ):
                if value is not None:
                    gauge.labels(*labels).set(value)
            if card.health.cause is not None and not card.health.usable:
                self.gpu_errors.labels(uuid, card.health.cause.reason).set(card.health.count)

    def show_devices(self, body: Mapping[str, Any]) -> None:
        """Show the devices of a Device object other than cards."""
        self.devices_unusable.clear()
        for identity, one in others(body).items():
            if not one.healthy:
                self.devices_unusable.labels(one.type, identity, one.reason).set(1)

    def show_round(self, shown: ShowRound) -> None:
        """Count a round, and show its outcome."""
        self.rounds.inc()
        self.nvml_up.set(shown.nvml_up)
        self.show_cards(shown.cards)
        self.show_devices(shown.decided.device.body)
        self.devices.show(shown.decided, shown.loads, shown.uses)
        self.show_agreements(shown.decided.agreements)
        self.show_claims(shown.decided.claims)
        self.take_overs.inc(shown.taken_over)
        if shown.findings is not None:
            self.cpuset_writes.inc(shown.findings.written)
            self.cpuset_reapplied.inc(len(shown.findings.reapplied))
        self.problems.set(len(shown.problems))

    def heard_xid(self, xid: XidEvent, *, known: bool) -> None:
        """Count an Xid error."""
        self.xids.labels(kind_of(xid.xid).says.name.lower(), str(known).lower()).inc(xid.count)

    def show_agreements(self, found: tuple[Agreement, ...]) -> None:
        """Show how Pods compare with their allocations."""
        self.agreeing.set(sum(not one.mismatches for one in found))
        kinds = Count(mismatch.kind for one in found for mismatch in one.mismatches)
        for kind in ("cpuset", "environment", "process", "memory", UNSHOWN):
            self.mismatches.labels(kind).set(kinds[kind])

    def show_claims(self, found: tuple[CardClaim, ...]) -> None:
        """Show how many cards containers name without having them."""
        self.claims.set(sum(len(one.cards) for one in found))

    def exposition(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return generate_latest(self._registry)

    def exposed(self, accept: str) -> tuple[bytes, str]:
        """All metrics in the format that a scraper accepts, and its content type."""
        return expose(self._registry, accept)
