"""Assembles a replica, in a cluster or offline; only the ledger's store and the reading of live Pods differ."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from allocator.vocabulary.asks import Preference
from allocator.vocabulary.devicetype import BUILT_IN, DeviceTypes
from allocator.vocabulary.mix import Mix
from koordgate.kube.client import KubeClient
from koordgate.settings import DevicePool
from webhook import calls
from webhook.admission.additions import SlotDefaults, runtime_class
from webhook.admission.limits import LimitPolicy
from webhook.admission.pods import PodWebhooks
from webhook.admission.scope import PolicyScope
from webhook.admission.translate import TranslationPolicy
from webhook.dra.controller import ClaimController
from webhook.dra.reviews import ClaimWebhook
from webhook.figures import ClusterFigures
from webhook.gangs.controller import Clocks, GangController, kube_lift
from webhook.gangs.room import GangRoom
from webhook.ledger.ledger import Counters, Ledger
from webhook.ledger.store import Store
from webhook.metrics import WebhookMetrics
from webhook.quotas.figures import QuotaFigures
from webhook.quotas.mirror import written_names
from webhook.quotas.table import LimitTable
from webhook.scheduling.assumed import Assumed
from webhook.scheduling.bindings import Binders, BindingWebhooks
from webhook.scheduling.contradiction import Contradictions
from webhook.scheduling.extender import Extender
from webhook.scheduling.fairness import SearchTime
from webhook.scheduling.ranking import Ranking
from webhook.settings import WebhookSettings, adoption_of, cpu_defaults, delivery_rules, mirror_of, read_mix, types_of
from webhook.shadow.controller import ListPods, ShadowController, ShadowParts, no_pods
from webhook.shadow.followed import FollowedPods
from webhook.shadow.judge import ShadowWebhooks
from webhook.tracing import OFF, Tracing
from webhook.upkeep.looplag import LoopLag
from webhook.upkeep.reconcile import Reconciler
from webhook.upkeep.reports import AdoptionWatch, BindEvents, EventReports
from webhook.view.capacity import Capacity
from webhook.view.claimfeed import NO_CLAIMS, LiveClaims
from webhook.view.cluster import ClusterView, SeenObjects
from webhook.view.livepods import LivePods
from webhook.view.namespaces import NamespaceModes
from webhook.view.podinfo import PodInfo
from webhook.view.snapshots import Defaults, pools_of
from webhook.view.worth import FreeWorth

_ROLL_OUT_S: Final = 600.0
"""How long replicas of another release or other settings may serve beside a new one: after as long, Kubernetes counts a
roll-out as failed (progressDeadlineSeconds)."""


def wall_clock() -> int:
    """Seconds since the epoch."""
    return int(time.time())


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of one replica; nothing runs yet."""

    settings: WebhookSettings
    types: DeviceTypes
    pools: tuple[tuple[str, DevicePool], ...]
    metrics: WebhookMetrics
    cluster: ClusterView
    store: Store
    ledger: Ledger
    scope: PolicyScope
    limits: LimitTable
    pods: PodWebhooks
    bindings: BindingWebhooks
    ranking: Ranking
    extender: Extender
    reconciler: Reconciler
    gang_controller: GangController
    reporter: EventReports
    bind_events: BindEvents
    loop_lag: LoopLag
    claims: ClaimWebhook
    claim_controller: ClaimController
    figures: ClusterFigures
    modes: NamespaceModes
    shadow: ShadowWebhooks
    shadow_controller: ShadowController
    adoption: AdoptionWatch
    typical: Callable[[], Mix]
    tracing: Tracing = OFF


def assemble(  # noqa: PLR0913 keyword-only, most with a default
    settings: WebhookSettings,
    store: Store,
    live: LivePods,
    *,
    live_claims: LiveClaims = NO_CLAIMS,
    kube: KubeClient | None = None,
    list_pods: ListPods = no_pods,
    clock: Callable[[], int] = wall_clock,
    monotonic: Callable[[], float] = time.monotonic,
    released: Callable[[str], None] = lambda _node: None,
    tracing: Callable[[WebhookMetrics], Tracing] = lambda _metrics: OFF,
) -> Parts:
    """Assemble a replica.

    `live_claims`: likewise ResourceClaims; by default there are none. `kube`: writes Events, and removes scheduling
    gates; None offline. `list_pods`: lists the Pods of a namespace that is observed from now on; by default there are
    none. `clock`: seconds since the epoch. `monotonic`: seconds since any moment. `released`: called with a node on
    which something was released, or that changed: Pods that wait may fit there now. `tracing`: makes what records
    traces; by default there are none.
    """
    began = monotonic()
    modes = NamespaceModes(settings.mode, (*settings.quota.exempt_namespaces, settings.identity.namespace))
    metrics = WebhookMetrics()
    traces = tracing(metrics)
    types = types_of(settings)
    together = settings.gangs.all_or_nothing
    defaults = Defaults(settings.devices.order, cpu_defaults(settings), delivery_rules(settings))
    stated = read_mix(settings.scheduler.mix, types)
    asks_typical = settings.scheduler.preference is Preference.FRAGMENTATION or settings.headroom.mode == "taint"
    seen = SeenObjects(
        clock,
        defaults,
        refitted=released,
        drivers=settings.claimed,
        monotonic=monotonic,
        adoption=adoption_of(settings),
        learns=asks_typical and not stated,
    )
    counters = Counters(written=_written(metrics), lost_race=metrics.ledger_races.inc)
    gather = settings.ledger.gather_seconds
    touch = seen.changes.touch
    ledger = Ledger(store, counters, watched=touch, gather=gather, tracing=traces)
    cluster = ClusterView(seen, ledger)
    reporter = EventReports(metrics, kube, clock)
    scheduler = settings.scheduler
    grace = settings.ledger.grace_seconds
    binders = Binders(
        scheduler.names,
        scheduler.username,
        settings.domain,
        settings.ledger.given_back_seconds,
        types,
        warn_only=settings.guard.plain_pods == "warn",
        all_or_nothing=together,
        mirror=mirror_of(settings),
        preference=scheduler.preference,
        limits=settings.limits.provider,
        peers=frozenset(settings.adopt.writers),
        adoption=adoption_of(settings),
    )
    scope = PolicyScope(
        frozenset(settings.numa.scope.namespaces),
        settings.numa.scope.selector,
        settings.scheduler.name if settings.numa.scope.scheduler else "",
    )
    assumed = Assumed(time.monotonic, scheduler.assume_seconds, released)
    ignored = _ignored(types)
    contradicted = Contradictions(metrics.index_contradictions.inc)
    mix = seen.mix.now if seen.mix is not None else lambda: stated
    metrics.typical.set_function(lambda: len(mix().requests) if asks_typical else 0)
    ranking = Ranking(
        cluster,
        types,
        scheduler.preference,
        assumed,
        contradicted,
        settings.devices.order,
        scheduler.preference_classes,
        mix,
    )
    limits, search_time = LimitTable(types), SearchTime()
    slots = settings.devices.default_slot_resource_fraction
    gang_controller = GangController(
        cluster=cluster,
        ledger=ledger,
        new_room=lambda: GangRoom(cluster, ranking, ignored, search_time),
        lift=_never if kube is None else kube_lift(kube),
        clocks=Clocks(clock, monotonic),
        hold_seconds=settings.gangs.hold_seconds,
        reports=reporter,
        released=released,
        tended=lambda pod: pod.scheduler_name in scheduler.names or modes.enforced(pod.namespace),
    )

    def freed(node: str) -> None:
        gang_controller.retry()
        released(node)

    def settled(uid: str, node: str) -> None:
        assumed.drop(uid, node)
        if node and (waited := cluster.pods.waited(uid)):
            metrics.bind_wait.observe(waited, calls.exemplar())

    extender = Extender(
        cluster,
        ranking,
        types,
        scheduler.most_nodes or None,
        all_or_nothing=together,
        search_time=search_time,
        interrupted=lambda reason: metrics.searches_ended.labels(reason).inc(),
        answered=lambda answer: metrics.filter_answers.labels(answer).inc(),
    )
    learned = mix if asks_typical or stated else None
    worth = FreeWorth(cluster, types, learned, monotonic)
    figures = ClusterFigures(
        Capacity(cluster, types), worth, types, lambda: cluster.pods.waiting(scheduler.names), extender.said_of
    )
    metrics.add(figures, QuotaFigures(limits))
    classes = cluster.runtime_classes
    pods = PodWebhooks(
        TranslationPolicy(
            settings.domain,
            scheduler.name,
            types,
            split=not settings.state_memory,
            scope=scope,
            gates=together,
            charges=settings.quota.enabled,
            slots=SlotDefaults(slots.types, slots.namespaces),
            quota_environment=settings.devices.quota_environment,
            limits=LimitPolicy(settings.limits.provider, frozenset(settings.limits.require)),
            tolerations=settings.devices.tolerations,
        ),
        scheduler.username,
        cluster.reach.of,
        schedulers=scheduler.names,
        state_memory=settings.state_memory,
        limits=limits.of,
        peers=settings.adopt.writers,
        rolling_out=lambda: kube is not None and monotonic() - began < _ROLL_OUT_S,
        runtime_class=lambda pod, reading: runtime_class(
            pod, reading, classes.rules, cluster.reach.delivery, classes.handler
        ),
    )
    bind_events = BindEvents(
        reporter.allocated,
        cluster.snapshot,
        types,
        scheduler.preference,
        metrics.bind_events_dropped.inc,
        reporter.bug_in_events,
    )
    bindings = BindingWebhooks(
        binders,
        cluster,
        ledger,
        live,
        clock,
        settled=settled,
        sent=assumed.of,
        search_time=search_time,
    )
    if kube is not None:
        bindings.bound = bind_events.bound
    followed = FollowedPods(limits, written_names(types, settings.domain))
    shadow = ShadowWebhooks(pods, bindings, metrics, followed.over_quota)
    return Parts(
        settings=settings,
        types=types,
        pools=pools_of(settings),
        metrics=metrics,
        cluster=cluster,
        store=store,
        ledger=ledger,
        scope=scope,
        limits=limits,
        pods=pods,
        bindings=bindings,
        ranking=ranking,
        extender=extender,
        reconciler=Reconciler(
            schedulers=scheduler.names,
            grace=grace,
            cluster=cluster,
            ledger=ledger,
            live=live,
            clock=monotonic,
            reports=reporter,
            released=freed,
            hold_until=(lambda: int(clock() + settings.gangs.hold_seconds)) if together else None,
            enforced=modes.enforced,
        ),
        gang_controller=gang_controller,
        reporter=reporter,
        bind_events=bind_events,
        loop_lag=_loop_lag(metrics),
        claims=ClaimWebhook(cluster, ledger, live_claims, clock, settings.ledger.given_back_seconds),
        adoption=AdoptionWatch(cluster, reporter),
        claim_controller=ClaimController(
            cluster=cluster,
            ledger=ledger,
            live=live_claims,
            clock=monotonic,
            grace=grace,
            reports=reporter,
            released=freed,
        ),
        figures=figures,
        typical=mix,
        modes=modes,
        shadow=shadow,
        shadow_controller=ShadowController(
            ShadowParts(
                seen=seen,
                held=ledger,
                make_ranking=lambda view, sent: Ranking(
                    view,
                    types,
                    scheduler.preference,
                    sent,
                    contradicted,
                    settings.devices.order,
                    scheduler.preference_classes,
                    mix,
                ),
                pods=pods,
                types=types,
                schedulers=scheduler.names,
                ignored=ignored,
                modes=modes,
                metrics=metrics,
                reports=reporter,
                asked=lambda uid: bool(shadow.asked.get(uid)),
                list_pods=list_pods,
            ),
            followed,
        ),
        tracing=traces,
    )


def _loop_lag(metrics: WebhookMetrics) -> LoopLag:
    lag = LoopLag(metrics.loop_lag.observe)
    metrics.worst_loop_lag.set_function(lambda: lag.worst_recent_s)
    return lag


def _ignored(types: DeviceTypes) -> frozenset[str]:
    """The resources that the chart has kube-scheduler ignore: those of own types, and how many devices share a request.

    kube-scheduler looks for those of a type with `ignoredByScheduler: false`. Nodes state them then.
    """
    own = (name for name, meaning in types.resources.items() if not meaning.type.domains)
    shared = (name for kind in BUILT_IN.types if kind.split for name in kind.spellings(kind.split))
    return frozenset({*own, *shared})


async def _never(pod: PodInfo) -> None:
    """Leave the gate where it is: nothing is written offline."""


def _written(metrics: WebhookMetrics) -> Callable[[int], None]:
    def written(changes: int) -> None:
        metrics.ledger_writes.inc()
        metrics.ledger_changes.inc(changes)

    return written
