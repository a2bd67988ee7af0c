"""The reporter's metrics, each declared once.

Each reporter shows the devices of its own node, so that the figures of a large cluster are spread over its nodes.
"""

from collections import Counter as Count
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any, Final

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest

from allocator.vocabulary.delivery import Keeping, MemoryUse
from allocator.vocabulary.device import Device
from allocator.vocabulary.devicetype import BUILT_IN, DeviceTypes
from allocator.vocabulary.holdings import sum_shares
from allocator.vocabulary.names import TYPE_GPU
from koordgate.serving import expose
from reporter.enforcement import OTHER, REASONS, remarks_by_reason
from reporter.gpu.facts import CardLoad, XidEvent
from reporter.gpu.faults import kind_of
from reporter.gpu.health import CardState, NodeRecord
from reporter.pods import NodePod
from reporter.proof.agree import UNSHOWN, Agreement, CardClaim, CardUse
from reporter.publish.device import others
from reporter.reading import EnforcerReading
from reporter.round.decide import Decided
from reporter.round.messages import ShowRound

_NAMESPACE: Final = "koordgate_reporter"
_MAX_POD_SERIES: Final = 1000  # of one metric; a node of 16 cards with ten Pods on each has 480


class DeviceMetrics:
    """The metrics of a node's devices."""

    def __init__(self, registry: CollectorRegistry, types: DeviceTypes, *, pods: bool) -> None:
        self._types = types
        self._pods = pods
        gauge = partial(Gauge, namespace=_NAMESPACE, registry=registry)
        device = ["type", "id"]
        self.info = gauge(
            "device_info",
            "1 for each device, with its minor, model, PCI address and NUMA node.",
            [*device, "minor", "model", "pci", "numa_node"],
        )
        self.usable = gauge(
            "device_usable",
            "1 if anything new may land on a device: it is healthy, not cordoned, and nobody else gave it away.",
            device,
        )
        self.capacity = gauge(
            "device_capacity", "What a device has, by resource, in the resource's unit.", [*device, "resource", "unit"]
        )
        self.allocated = gauge(
            "device_allocated",
            "What koordgate gave of a device to Pods that have not finished, likewise.",
            [*device, "resource", "unit"],
        )
        self.holders = gauge("device_pods", "Pods that hold some of a device.", device)
        self.busy = gauge(
            "device_busy_ratio",
            "Part of the last sampling period, up to a second, in which a card ran a kernel.",
            device,
        )
        self.memory = gauge(
            "device_memory_used_bytes", "Memory of a card that is in use, the driver's own among it.", device
        )
        self.limited = gauge(
            "device_memory_limit_bytes",
            "Sum of the limits that the driver keeps containers to on a card; of cards on which it keeps some.",
            device,
        )
        self.kept = gauge(
            "memory_limits",
            "Running containers, on each of their cards, by whether they are kept to their memory of it.",
            ["state"],
        )
        self.exceeding = gauge(
            "memory_exceeded", "Running containers, on each of their cards, that use more of its memory than they hold."
        )
        container = ["namespace", "pod", "container", *device]
        self.container_used = gauge(
            "container_memory_used_bytes",
            "Memory of a card that a container has, as last read (only with metrics.pods).",
            container,
        )
        self.container_limit = gauge(
            "container_memory_limit_bytes",
            "What the driver lets a container have of a card; absent without a limit (only with metrics.pods).",
            container,
        )
        self.container_held = gauge(
            "container_memory_held_bytes",
            "What a container holds of a card's memory (only with metrics.pods).",
            container,
        )
        self.given = gauge(
            "pod_allocated",
            "What a Pod holds of a device, by resource (only with metrics.pods).",
            ["namespace", "pod", *device, "resource", "unit"],
        )
        self.used = gauge(
            "pod_memory_used_bytes",
            "Memory of a card that processes of a Pod have, as last compared (only with metrics.pods).",
            ["namespace", "pod", *device],
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
        given, holders = sum_shares(shares), Count(share.id for share in shares)
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
        for pod, share, tail, amount in islice(amounts, _MAX_POD_SERIES):
            where = (share.type, share.id, tail, self._units(share.type).get(tail, ""))
            self.given.labels(pod.namespace, pod.name, *where).set(amount)
        by_uid = {pod.uid: pod for pod in pods}
        memory: Count[tuple[str, str]] = Count()
        for use in uses:
            if use.pod is not None and use.memory is not None:
                memory[use.pod, use.card] += use.memory
        for (uid, card), amount in islice(memory.items(), _MAX_POD_SERIES):
            if uid in by_uid:
                self.used.labels(by_uid[uid].namespace, by_uid[uid].name, TYPE_GPU, card).set(amount)

    def _show_limits(self, uses: Sequence[MemoryUse]) -> None:
        self.limited.clear()
        limits: Count[str] = Count()
        for use in uses:
            if use.limit is not None:
                limits[use.card] += use.limit
        for card, limit in limits.items():
            self.limited.labels(TYPE_GPU, card).set(limit)
        states = Count(use.keeping for use in uses)
        for keeping in Keeping:
            self.kept.labels(keeping.value).set(states[keeping])
        self.exceeding.set(sum(use.exceeds for use in uses))

    def _show_containers(self, uses: Sequence[MemoryUse]) -> None:
        figures = (self.container_used, self.container_limit, self.container_held)
        for gauge in figures:
            gauge.clear()
        for use in uses[:_MAX_POD_SERIES]:
            where = (use.namespace, use.pod, use.container, TYPE_GPU, use.card)
            for gauge, amount in zip(figures, (use.used, use.limit, use.held), strict=True):
                if amount is not None:
                    gauge.labels(*where).set(amount)

    def _units(self, kind: str) -> dict[str, str]:
        found = self._types.by_name.get(kind)
        if found is None:
            return {}
        return {tail: unit.value for tail, unit in zip(found.tails, found.units, strict=True)}


class ReporterMetrics:
    """All metrics of one process, on a registry of its own."""

    def __init__(self, types: DeviceTypes = BUILT_IN, *, pods: bool = False) -> None:
        registry = CollectorRegistry()
        self._registry = registry
        counter = partial(Counter, namespace=_NAMESPACE, registry=registry)
        gauge = partial(Gauge, namespace=_NAMESPACE, registry=registry)
        self.devices = DeviceMetrics(registry, types, pods=pods)
        self.rounds = counter("rounds_total", "Rounds completed.")
        self.bugs = counter("bugs_total", "Work that a bug in the reporter ended, by part.", ["part"])
        self.writes = counter(
            "writes_total",
            "Writes accepted, by object; taken_back is true if somebody else had changed our fields.",
            ["object", "taken_back"],
        )
        self.problems = gauge("problems", "What cannot be read, reported or enforced now.")
        self.nvml_up = gauge("nvml_up", "1 while NVML answers, and where the node has no NVIDIA card.")
        self.gpus = gauge("gpus", "Cards, by health state.", ["state"])
        self.gpu_errors = gauge(
            "gpu_errors",
            "Errors of a card since it was last healthy, with the reason that took it out of service.",
            ["uuid", "reason"],
        )
        self.devices_unusable = gauge(
            "devices_unusable",
            "1 for each NIC, FPGA and other device that is present and cannot be used, with the reason.",
            ["type", "id", "reason"],
        )
        self.gpu_ecc_errors = gauge(
            "gpu_ecc_errors",
            "Memory errors of a card since its driver was loaded or it was reset, as last read.",
            ["uuid", "kind"],
        )
        self.gpu_remapped_rows = gauge(
            "gpu_remapped_rows", "Rows of a card's memory that were replaced by spare rows, as last read.", ["uuid"]
        )
        self.gpu_retired_pages = gauge(
            "gpu_retired_pages", "Pages of a card's memory that were retired permanently, as last read.", ["uuid"]
        )
        self.gpu_last_error = gauge(
            "gpu_last_error_timestamp_seconds",
            "When a card last had an error that counts, or last showed a fault; absent if it never did.",
            ["uuid"],
        )
        self.xids = counter(
            "xids_total", "Xid errors, by severity; known is false if NVML named no known card.", ["class", "known"]
        )
        self.cpuset_writes = counter("cpuset_writes_total", "Cpuset files written.")
        self.cpuset_reapplied = counter(
            "cpuset_reapplied_total", "Cgroups that somebody else had changed and that were corrected."
        )
        self.enforcer_registered = gauge(
            "enforcer_registered",
            "1 while the enforcer is registered with the container runtime; 0 also where none is.",
        )
        self.enforcer_remarks = gauge(
            "enforcer_remarks", "What the enforcer has to tell of Pods and of the node, by reason.", ["reason"]
        )
        self.agreeing = gauge("pods_agreeing", "Pods that have exactly what was allocated to them.")
        self.mismatches = gauge(
            "mismatches", "Contradictions between what was allocated and what Pods have, by kind.", ["kind"]
        )
        self.claims = gauge(
            "card_claims",
            "Cards that environments of containers name although nobody gave them to the Pods; they stay in service.",
        )
        self.watch = counter(
            "watch_total", "Lists, watches, relists and errors, by resource.", ["resource", "happening"]
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
        self.show_enforcer(shown.decided.enforcer)
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

    def show_enforcer(self, seen: EnforcerReading | None) -> None:
        """Show how the enforcer shows itself."""
        found = seen or EnforcerReading()
        self.enforcer_registered.set(found.registered)
        remarks = remarks_by_reason(found)
        for reason in (*REASONS, OTHER):
            self.enforcer_remarks.labels(reason).set(remarks[reason])

    def exposition(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return generate_latest(self._registry)

    def exposed(self, accept: str) -> tuple[bytes, str]:
        """All metrics in the format that a scraper accepts, and its content type."""
        return expose(self._registry, accept)
