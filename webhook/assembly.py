"""The parts of a replica, in a cluster or offline; only the ledger's store and the reading of live Pods differ."""

import time
from collections.abc import Callable, Collection

from allocator.vocabulary.asks import Preference
from allocator.vocabulary.devicetype import BUILT_IN, DeviceTypes
from koordgate.kube.client import KubeClient
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
from webhook.quotas.gate import Admit, QuotaGate, admit_all
from webhook.quotas.mirror import written_names
from webhook.quotas.table import LimitTable
from webhook.quotas.unstated import Unstated
from webhook.scheduling.assumed import Assumed
from webhook.scheduling.bindings import BindingWebhooks
from webhook.scheduling.contradiction import Contradictions
from webhook.scheduling.extender import Extender
from webhook.scheduling.fairness import SearchTime
from webhook.scheduling.nominate import Nominator, kube_nominate
from webhook.scheduling.ranking import Ranking
from webhook.settings import WebhookSettings, adoption_of, cpu_defaults, delivery_rules, read_mix, types_of
from webhook.shadow.controller import ShadowController, ShadowParts
from webhook.shadow.followed import FollowedPods
from webhook.shadow.judge import ShadowWebhooks
from webhook.tracing import OFF, Tracing
from webhook.upkeep.looplag import LoopLag
from webhook.upkeep.reconcile import Reconciler
from webhook.upkeep.reports import AdoptionWatch, BindEvents, EventReports
from webhook.view.capacity import Capacity
from webhook.view.claimfeed import NO_CLAIMS, kube_claims
from webhook.view.cluster import ClusterView, SeenObjects
from webhook.view.livepods import LivePods
from webhook.view.namespaces import NamespaceModes
from webhook.view.podinfo import PodInfo
from webhook.view.snapshots import Defaults, pools_of
from webhook.view.worth import FreeWorth


def wall_clock() -> int:
    """Seconds since the epoch."""
    return int(time.time())


class Parts:
    """The parts of one replica, in a cluster or offline; nothing runs yet.

    `live`: reads Pods that the view has not seen yet. `kube`: None offline. `clock`: seconds since the epoch.
    `monotonic`: seconds since any moment. `released`: called with a node on which something was released, or that
    changed: Pods that wait may fit there now. `tracing`: makes what records traces; by default there are none.
    """

    def __init__(
        self,
        settings: WebhookSettings,
        store: Store,
        live: LivePods,
        *,
        kube: KubeClient | None = None,
        clock: Callable[[], int] = wall_clock,
        monotonic: Callable[[], float] = time.monotonic,
        released: Callable[[str], None] = lambda _node: None,
        tracing: Callable[[WebhookMetrics], Tracing] = lambda _metrics: OFF,
    ) -> None:
        self.settings, self.types, self.pools = settings, types_of(settings), pools_of(settings)
        self.store, self._live, self._kube = store, live, kube
        self._clock, self._monotonic, self._released = clock, monotonic, released
        self.metrics = WebhookMetrics()
        self.tracing = tracing(self.metrics)
        self.loop_lag = LoopLag(self.metrics.loop_lag.observe)
        self.metrics.worst_loop_lag.set_function(lambda: self.loop_lag.worst_recent_s)
        self.reporter = EventReports(self.metrics, kube, clock)
        self.modes = NamespaceModes(settings.mode, (*settings.quota.exempt_namespaces, settings.identity.namespace))
        self.limits = LimitTable(self.types)
        self._search_time = SearchTime()
        self._view()
        self._scheduling()
        self._admission()
        self._controllers()
        self._shadow()

    def _view(self) -> None:
        """What is known of the cluster, the ledger, and the requests that are typical."""
        settings, metrics = self.settings, self.metrics
        stated = read_mix(settings.scheduler.mix, self.types)
        follows = settings.scheduler.preference is Preference.FRAGMENTATION or settings.headroom.mode == "taint"
        self._seen = seen = SeenObjects(
            self._clock,
            Defaults(settings.devices.order, cpu_defaults(settings), delivery_rules(settings)),
            refitted=self._released,
            drivers=settings.claimed,
            monotonic=self._monotonic,
            adoption=adoption_of(settings),
            learns=follows and not stated,
        )

        def written(changes: int) -> None:
            metrics.ledger_writes.inc()
            metrics.ledger_changes.inc(changes)

        self.ledger = Ledger(
            self.store,
            Counters(written=written, lost_race=metrics.ledger_races.inc),
            watched=seen.changes.touch,
            gather=settings.ledger.gather_seconds,
            coming=lambda node: len(self.ranking.assumed.on(node)),
            tracing=self.tracing,
        )
        self.cluster = ClusterView(seen, self.ledger)
        self.typical = seen.mix.now if seen.mix is not None else lambda: stated
        metrics.typical.set_function(lambda: len(self.typical().requests) if follows else 0)
        self._worth = FreeWorth(self.cluster, self.types, self.typical if follows or stated else None, self._monotonic)

    def _scheduling(self) -> None:
        """The extender and the Binding."""
        settings, metrics, cluster = self.settings, self.metrics, self.cluster
        scheduler = settings.scheduler
        self._contradicted = Contradictions(metrics.index_contradictions.inc)
        assumed = Assumed(self._monotonic, scheduler.assume_seconds, self._released)
        self.ranking = self._ranking(cluster, assumed)
        gate = self._quotas()
        self.extender = Extender(
            cluster,
            self.ranking,
            self.types,
            scheduler.most_nodes or None,
            all_or_nothing=settings.gangs.all_or_nothing,
            search_time=self._search_time,
            interrupted=lambda reason: metrics.searches_ended.labels(reason).inc(),
            answered=lambda answer: metrics.filter_answers.labels(answer).inc(),
            uncounted=gate.judges if gate is not None else lambda _pod: False,
        )
        if self._kube is not None and scheduler.nominate_from:
            self.extender.nominator = Nominator(
                cluster,
                self.ranking,
                self._search_time,
                scheduler.names,
                scheduler.nominate_from,
                kube_nominate(self._kube),
                tried=lambda uid: self.extender.said_of(uid) is not None,
                nominated=lambda how: metrics.nominations.labels(how).inc(),
            )
        self.figures = ClusterFigures(
            Capacity(cluster, self.types),
            self._worth,
            self.types,
            lambda: cluster.pods.waiting(scheduler.names),
            self.extender.said_of,
        )
        metrics.add(self.figures, QuotaFigures(self.limits))

        def settled(uid: str, node: str) -> None:
            assumed.drop(uid, node)
            if node and (waited := cluster.pods.waited(uid)):
                metrics.bind_wait.observe(waited, calls.exemplar())

        self.bindings = BindingWebhooks(
            settings,
            cluster,
            self.ledger,
            self._live,
            self._clock,
            settled=settled,
            sent=assumed.of,
            search_time=self._search_time,
            admit=self._admit,
        )
        reporter = self.reporter
        self.bind_events = BindEvents(
            reporter.allocated,
            cluster.snapshot,
            self.types,
            scheduler.preference,
            metrics.bind_events_dropped.inc,
            reporter.bug_in_events,
        )
        if self._kube is not None:
            self.bindings.bound = self.bind_events.bound

    def _quotas(self) -> QuotaGate | None:
        """What Pods hold without stating it, and what judges those that quotas have not counted."""
        settings, cluster, kube, followed = self.settings, self.cluster, self._kube, self.modes.enforced

        def memory() -> int | None:
            smallest, largest = cluster.reach.of({})
            return smallest if smallest == largest else None

        written = written_names(self.types, settings.domain)
        self.unstated = Unstated(self.limits, cluster.pods, written, followed, memory)
        self._admit: Admit = admit_all
        if kube is None or not settings.quota.enabled:
            return None
        held = self.ledger.nodes_of
        gate = QuotaGate(kube, self.limits, self.unstated, cluster.pods, lambda uid: bool(held(uid)), followed)
        self._admit = gate.admit
        return gate

    def _ranking(self, view: ClusterView, assumed: Assumed) -> Ranking:
        """A ranking on a view, and on what is assumed there."""
        settings, scheduler = self.settings, self.settings.scheduler
        return Ranking(
            view,
            self.types,
            scheduler.preference,
            assumed,
            self._contradicted,
            settings.devices.order,
            scheduler.preference_classes,
            self.typical,
        )

    def _admission(self) -> None:
        """The reviews of Pods."""
        settings, cluster = self.settings, self.cluster
        scheduler, scope = settings.scheduler, settings.numa.scope
        slots = settings.devices.default_slot_resource_fraction
        ours = scheduler.names if scope.scheduler else ()
        self.scope = PolicyScope(frozenset(scope.namespaces), scope.selector, ours)
        policy = TranslationPolicy(
            settings.domain,
            self.types,
            scheduler.names,
            split=not settings.state_memory,
            scope=self.scope,
            gates=settings.gangs.all_or_nothing,
            charges=settings.quota.enabled,
            slots=SlotDefaults(slots.types, slots.namespaces),
            quota_environment=settings.devices.quota_environment,
            limits=LimitPolicy(settings.limits.provider, frozenset(settings.limits.require)),
            tolerations=settings.devices.tolerations,
        )
        classes, reach = cluster.runtime_classes, cluster.reach
        self.pods = PodWebhooks(
            policy,
            scheduler.username,
            reach.of,
            state_memory=settings.state_memory,
            limits=self.limits.of,
            states=self._stated,
            peers=settings.adopt.writers,
            runtime_class=lambda pod, reading: runtime_class(
                pod, reading, classes.rules, reach.delivery, classes.handler
            ),
        )

    def _stated(self, namespace: str) -> Collection[str] | None:
        """What Pods of a namespace are to state for quotas; None for everything that quotas count.

        Where it is only observed, Pods stay as they are, and what quotas would count of them is told. Offline, limits
        are as old as the cluster.
        """
        if not self.modes.enforced(namespace):
            return None
        limits = self.limits.of(namespace)
        counted = limits.counted if self._kube is None else self.unstated.counted(namespace)
        return counted.union(one.resource for one in limits.ranges)

    def _controllers(self) -> None:
        """What corrects the ledger beside requests, and tends gangs."""
        settings, cluster, ledger, kube = self.settings, self.cluster, self.ledger, self._kube
        schedulers, grace = settings.scheduler.names, settings.ledger.grace_seconds
        self._ignored = _ignored(self.types)
        self.gang_controller = GangController(
            cluster=cluster,
            ledger=ledger,
            new_room=lambda: GangRoom(cluster, self.ranking, self._ignored, self._search_time),
            lift=_never if kube is None else kube_lift(kube),
            clocks=Clocks(self._clock, self._monotonic),
            hold_seconds=settings.gangs.hold_seconds,
            reports=self.reporter,
            released=self._released,
            tended=lambda pod: pod.scheduler_name in schedulers or self.modes.enforced(pod.namespace),
            admit=self._admit,
        )

        def freed(node: str) -> None:
            self.gang_controller.retry()
            self._released(node)

        self.reconciler = Reconciler(
            schedulers=schedulers,
            grace=grace,
            cluster=cluster,
            ledger=ledger,
            live=self._live,
            clock=self._monotonic,
            reports=self.reporter,
            released=freed,
            hold_until=(lambda: int(self._clock() + settings.gangs.hold_seconds))
            if settings.gangs.all_or_nothing
            else None,
            enforced=self.modes.enforced,
        )
        self.adoption = AdoptionWatch(cluster, self.reporter)
        claims = NO_CLAIMS if kube is None else kube_claims(kube, settings.claimed)
        self.claims = ClaimWebhook(cluster, ledger, claims, self._clock, settings.ledger.given_back_seconds)
        self.claim_controller = ClaimController(
            cluster=cluster,
            ledger=ledger,
            live=claims,
            clock=self._monotonic,
            grace=grace,
            reports=self.reporter,
            released=freed,
        )

    def _shadow(self) -> None:
        """What would be done in namespaces that are only observed."""
        followed = FollowedPods(self.limits, written_names(self.types, self.settings.domain))
        self.shadow = ShadowWebhooks(self.pods, self.bindings, self.metrics, followed.over_quota)
        self.shadow_controller = ShadowController(
            ShadowParts(
                seen=self._seen,
                held=self.ledger,
                make_ranking=self._ranking,
                pods=self.pods,
                types=self.types,
                schedulers=self.settings.scheduler.names,
                ignored=self._ignored,
                modes=self.modes,
                metrics=self.metrics,
                reports=self.reporter,
                asked=lambda uid: bool(self.shadow.asked.get(uid)),
                list_pods=self._live.list,
            ),
            followed,
        )


def _ignored(types: DeviceTypes) -> frozenset[str]:
    """The resources that the chart has kube-scheduler ignore: those of own types, and how many devices share a request.

    kube-scheduler looks for those of a type with `ignoredByScheduler: false`. Nodes state them then.
    """
    own = (name for name, meaning in types.resources.items() if not meaning.type.domains)
    shared = (name for kind in BUILT_IN.types if kind.split for name in kind.spellings(kind.split))
    return frozenset({*own, *shared})


async def _never(pod: PodInfo) -> None:
    """Leave the gate where it is: nothing is written offline."""
