"""How the parts are put together, the same in a cluster and offline: only the store and the live Pods differ."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from allocator.devicetype import DeviceTypes
from koordgate.kube.client import KubeClient
from koordgate.ledger.ledger import Counters, Ledger
from koordgate.ledger.store import Store
from koordgate.metrics import Metrics
from koordgate.settings import Pool, Settings, cpu_defaults, device_types
from webhook.assumed import Assumed
from webhook.bindings import Binders, BindingWebhooks, LivePods
from webhook.classes import pools_of
from webhook.cluster import ClusterView, Defaults
from webhook.extender import Extender
from webhook.pods import PodWebhooks
from webhook.ranking import Ranking
from webhook.reconcile import Reconciler
from webhook.reports import Reporter
from webhook.translate import Policy
from webhook.validate import Writers


def wall_clock() -> int:
    """Seconds since the epoch."""
    return int(time.time())


@dataclass(frozen=True, slots=True)
class Parts:
    """One replica, put together; nothing runs yet."""

    settings: Settings
    types: DeviceTypes
    pools: tuple[tuple[str, Pool], ...]
    metrics: Metrics
    cluster: ClusterView
    ledger: Ledger
    pods: PodWebhooks
    bindings: BindingWebhooks
    ranking: Ranking
    extender: Extender
    reconciler: Reconciler
    reporter: Reporter


def assemble(
    settings: Settings,
    store: Callable[[ClusterView], Store],
    live: LivePods,
    *,
    kube: KubeClient | None = None,
    clock: Callable[[], int] = wall_clock,
    released: Callable[[str], None] = lambda _node: None,
) -> Parts:
    """Put a replica together.

    Args:
        settings: of the process.
        store: makes the store of the ledger, which may ask the view for what it knows of nodes.
        live: Pods from the API server itself.
        kube: where Events are written; None offline.
        clock: seconds since the epoch.
        released: called with a node on which something was given back, or that changed: who waits may fit there now.
    """
    metrics = Metrics()
    types = device_types(settings)
    cluster = ClusterView(clock, Defaults(settings.devices.order, cpu_defaults(settings)), refitted=released)
    counters = Counters(written=_written(metrics), lost_race=metrics.ledger_races.inc)
    ledger = Ledger(store(cluster), counters, watched=cluster.touch, gather=settings.ledger.gather_seconds)
    cluster.attach(ledger)
    reporter = Reporter(metrics, kube, clock)
    scheduler = settings.scheduler
    grace = settings.ledger.grace_seconds
    binders = Binders(scheduler.name, scheduler.username, settings.domain, grace, types)
    assumed = Assumed(time.monotonic, scheduler.assume_seconds, cluster.touched.add, released)
    ranking = Ranking(cluster, types, scheduler.preference, assumed)
    return Parts(
        settings=settings,
        types=types,
        pools=pools_of(settings),
        metrics=metrics,
        cluster=cluster,
        ledger=ledger,
        pods=PodWebhooks(
            Policy(settings.domain, scheduler.name, types),
            Writers(frozenset({settings.identity.username, scheduler.username})),
            cluster.memory_in_reach if settings.state_memory else lambda _pod: (None, 0),
        ),
        bindings=BindingWebhooks(binders, cluster, ledger, live, clock, settled=assumed.drop, sent=assumed.of),
        ranking=ranking,
        extender=Extender(cluster, ranking, types, scheduler.most_nodes or None),
        reconciler=Reconciler(
            scheduler_name=scheduler.name,
            grace=grace,
            cluster=cluster,
            ledger=ledger,
            live=live,
            clock=clock,
            reports=reporter,
            released=released,
        ),
        reporter=reporter,
    )


def _written(metrics: Metrics) -> Callable[[int], None]:
    def written(changes: int) -> None:
        metrics.ledger_writes.inc()
        metrics.ledger_changes.inc(changes)

    return written
