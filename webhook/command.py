"""`koordgate webhook`: one replica of the Deployment, from settings to a graceful end."""

import argparse
import asyncio
import gc
import logging
import socket
import sys
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Final

import uvloop
from aiohttp import web

from koordgate import log
from koordgate.backoff import Backoff
from koordgate.cli import Command
from koordgate.kube.client import KubeClient
from koordgate.kube.errors import KubeError
from koordgate.kube.resource import (
    ALL_POD_GROUPS,
    DEVICE_TAINT_RULES,
    DEVICES,
    LIMIT_RANGES,
    NAMESPACES,
    NODES,
    PODS,
    RESOURCE_CLAIMS,
    RESOURCE_QUOTAS,
    RESOURCE_SLICES,
    RUNTIME_CLASSES,
    TOPOLOGIES,
    Resource,
)
from koordgate.kube.watch import Handler, Happening, Reflector
from koordgate.settings import SettingsError, check
from koordgate.steady import asked_to_end, steadily
from webhook import settings, traces
from webhook.app import listen, make_app, make_extender, served_map
from webhook.assembly import Parts, assemble
from webhook.dra.taints import RuleFeed, TaintKeeper
from webhook.edge import Draining
from webhook.ledger.cluster import cluster_store
from webhook.ledger.store import Listener, Watch
from webhook.quotas.keeper import QuotaKeeper
from webhook.quotas.mirror import written_names
from webhook.quotas.table import QuotaFeed, RangeFeed
from webhook.settings import WebhookSettings, types_of
from webhook.shadow.keeper import ObservedPodFeed
from webhook.tls.callers import Refusals, ask_for_certificate, stranger
from webhook.tls.certs import FileSource, SecretSource, Source
from webhook.tls.clientsecret import ClientSecret
from webhook.tls.lasting import LastingSource
from webhook.tls.register import Registration
from webhook.tls.timing import Timing
from webhook.upkeep.discard import Discarder
from webhook.upkeep.headroom import HeadroomKeeper
from webhook.upkeep.waker import Waker
from webhook.view.claimfeed import ClaimFeed, SliceFeed
from webhook.view.feed import DeviceFeed, GroupFeed, NodeFeed, RecordFeed, RuntimeClassFeed, TopologyFeed
from webhook.view.liveclaims import kube_claims
from webhook.view.livepods import KubeLivePods, list_pods
from webhook.view.namespaces import NamespaceFeed
from webhook.view.podinfo import PodInfo
from webhook.view.served import ServedWatch

_LOG: Final = logging.getLogger(__name__)
_CONNECTIONS: Final = 32  # to the API server; binds to different nodes are written side by side
_WATCH_PATIENCE_S: Final = 60.0  # how long a watch may fail before the replica is not ready
_SILENCE_S: Final = 150.0  # how long the API server may say nothing about a resource before the replica is not ready
_STANDSTILL_S: Final = 600.0  # how long a watch may do nothing at all before only a restart helps
_LAG_S: Final = 5.0  # a replica whose event loop is as late answers nobody in time
_GARBAGE: Final = 20_000  # allocations between garbage collections; requests leave hardly any cycles
_FIRST_RETRY_S: Final = 1.0  # after a first reconciliation that failed
_EXPIRY_S: Final = 1.0  # between checks of assumed placements
_KEEP_UP_S: Final = 0.5  # between two times at which changed nodes are taken in, if no request does it first


class Replica:
    """One replica against a cluster.

    Args:
        settings: of the process.
        kube: the open client.
        timing: how certificates are renewed; None for the real clock, compared with the API server's.

    Attributes:
        source: of the certificate that the API server sees.
        extender_source: of the one that the scheduler sees; the same with a certificate from files.
    """

    def __init__(self, settings: WebhookSettings, kube: KubeClient, timing: Timing | None = None) -> None:
        self._settings = settings
        self._kube = kube
        self._timing = timing = timing or Timing(offset=lambda: kube.server_offset)
        self._waker = Waker(kube, lambda: self.parts.cluster.pods.anybody_waits(settings.scheduler.name))
        self.parts: Parts = assemble(
            settings,
            cluster_store(kube),
            KubeLivePods(kube, types_of(settings)),
            live_claims=kube_claims(kube, settings.claimed),
            kube=kube,
            list_pods=partial(list_pods, kube),
            released=self._waker.released,
            tracing=partial(traces.opened, settings.tracing),
        )
        self.source: Source
        self.extender_source: Source
        self._client_secret: ClientSecret | None = None
        certificate = settings.certificate
        if certificate.files:
            self.source = self.extender_source = FileSource(certificate.files, timing, certificate.client_authority)
        else:
            namespace = settings.identity.namespace
            self.source = SecretSource(kube, namespace, certificate, timing)
            lasting = LastingSource(kube, namespace, certificate.of_extender, certificate.secret, timing)
            shown = self.parts.metrics.extender_authority_expires
            shown.set_function(lambda: _timestamp(lasting.authority_expires))
            self.extender_source = lasting
            if settings.scheduler.client_certificates:
                self._client_secret = ClientSecret(kube, settings, lasting, timing)
        self._registration = Registration(kube, settings.identity, self.source, timing)
        parts = self.parts
        # A connection that fails has no path; it counts for the extender as a whole.
        self._refusals = Refusals(parts.metrics.requests.labels("/scheduler", "denied").inc)
        self.extender_source.entrance.refused = self._refusals.handshake
        parts.metrics.certificate_expires.set_function(lambda: _timestamp(self.source.expires))
        reporter = parts.reporter
        self._discarder = Discarder(parts.cluster.nodes, parts.ledger, socket.gethostname())
        # Pods last: the ledger is known by then, so holdings of Pods that have ended are found.
        name, self._modes_watch = self._reflector(kube, NAMESPACES, NamespaceFeed(parts.modes))
        self._watches: list[tuple[str, Watch]] = [
            (name, self._modes_watch),
            self._reflector(kube, RUNTIME_CLASSES, RuntimeClassFeed(parts.cluster)),
            self._reflector(
                kube, NODES, NodeFeed(parts.cluster, parts.types, parts.pools, reporter.bad_object("nodes"))
            ),
            self._reflector(kube, DEVICES, DeviceFeed(parts.cluster, parts.types, reporter.bad_object("devices"))),
            self._reflector(
                kube, TOPOLOGIES, TopologyFeed(parts.cluster, reporter.bad_object("noderesourcetopologies"))
            ),
            self._records(RecordFeed(parts.cluster, parts.ledger, reporter.bad_object(parts.store.kind))),
            self._reflector(
                kube,
                PODS,
                ObservedPodFeed(
                    parts.cluster,
                    self._pod_ended,
                    self._pod_bound,
                    parts.types,
                    parts.shadow_keeper,
                    parts.reconciler.listed,
                ),
            ),
        ]
        self._taints: tuple[ServedWatch, TaintKeeper] | None = None
        if settings.dra.enabled:
            # Where the API server does not serve them, there are none.
            slices = SliceFeed(parts.cluster, reporter.bad_object("resourceslices"))
            self._watches.append(self._reflector(kube, RESOURCE_SLICES, slices))
            self._watches.append(self._reflector(kube, RESOURCE_CLAIMS, ClaimFeed(parts.cluster)))
            if settings.dra.taints:
                self._taints = self._tainting(kube)
        self._headroom = self._keeping_headroom(kube)
        self._quotas: QuotaKeeper | None = None
        if settings.quota.enabled:
            complain = reporter.bad_object
            ranges = RangeFeed(parts.limits, complain("limitranges"))
            self._quotas = QuotaKeeper(
                kube,
                parts.limits,
                written_names(parts.types, settings.domain),
                lambda namespace: not parts.modes.enforced(namespace),
                complain("resourcequotas"),
            )
            parts.modes.listen(self._quotas.switched)
            self._watches.append(self._reflector(kube, LIMIT_RANGES, ranges))
            name, self._quota_watch = self._reflector(kube, RESOURCE_QUOTAS, QuotaFeed(parts.limits))
            self._watches.append((name, self._quota_watch))
        # The sizes of gangs steer and hold up nobody: a replica is ready without them.
        self._groups = [self._served(kube, versions) for versions in ALL_POD_GROUPS]
        self._reconciled = False
        self.draining = Draining()

    def _reflector(self, kube: KubeClient, resource: Resource, handler: Handler) -> tuple[str, Watch]:
        name = resource.plural
        return name, Reflector(kube, resource, handler, count=self._counting(name), on_error=self._watch_failed)

    def _served(self, kube: KubeClient, versions: Sequence[Resource]) -> ServedWatch:
        group, name = versions[0].group, f"{versions[0].plural}.{versions[0].group}"
        feed = GroupFeed(self.parts.cluster, group, self.parts.reporter.bad_object(name))
        return ServedWatch(kube, versions, feed, count=self._counting(name), on_error=self._watch_failed)

    def _keeping_headroom(self, kube: KubeClient) -> HeadroomKeeper | None:
        cluster, metrics, headroom = self.parts.cluster, self.parts.metrics, self._settings.headroom
        metrics.headroom_nodes.set_function(lambda: len(cluster.nodes.short))
        if headroom.mode == "none":
            return None
        changed = metrics.headroom_changes
        return HeadroomKeeper(kube, cluster, headroom, self.parts.typical, lambda done: changed.labels(done).inc())

    def _tainting(self, kube: KubeClient) -> tuple[ServedWatch, TaintKeeper]:
        name, feed = DEVICE_TAINT_RULES[0].plural, RuleFeed()
        watch = ServedWatch(kube, DEVICE_TAINT_RULES, feed, count=self._counting(name), on_error=self._watch_failed)
        return watch, TaintKeeper(kube, self.parts.cluster, feed, lambda: watch.served)

    def _records(self, listener: Listener) -> tuple[str, Watch]:
        store = self.parts.store
        return store.kind, store.watch(listener, self._counting(store.kind), self._watch_failed)

    def _counting(self, name: str) -> Callable[[Happening], None]:
        counter = self.parts.metrics.watch
        return lambda happening: counter.labels(name, happening).inc()

    def _watch_failed(self, about: str, error: Exception) -> None:
        """A watch failed, or an object could not be taken in, which is a bug of ours."""
        if isinstance(error, KubeError):
            _LOG.warning("%s: %s", about, error)
        else:
            self.parts.metrics.bugs.labels("watch").inc()
            _LOG.error("a bug while %s were taken in: %s", about, error, exc_info=error)

    def _pod_ended(self, pod: PodInfo) -> None:
        """A Pod is over or gone: its holding can be released, and its assumed placement ends."""
        self.parts.ranking.assumed.drop(pod.uid)
        self.parts.reconciler.ended(pod)

    def _pod_bound(self, pod: PodInfo) -> None:
        """A Pod is bound, maybe to another node than this replica sent it to."""
        self.parts.ranking.assumed.drop(pod.uid, pod.node)
        self.parts.reconciler.bound(pod)

    def unready(self) -> list[str]:
        """The reasons why the replica is not ready, a clause each."""
        now = asyncio.get_running_loop().time()
        reasons = ["shutting down"] if self.draining.begun else []
        for name, watch in self._watches:
            if not watch.synced.is_set():
                reasons.append(f"{name} are not listed yet ({watch.last_error or 'under way'})")
            elif watch.failing_since is not None and now - watch.failing_since > _WATCH_PATIENCE_S:
                reasons.append(f"{name} cannot be watched: {watch.last_error}")
            elif now - watch.heard_at > _SILENCE_S:
                reasons.append(f"{name} were last heard of {now - watch.heard_at:.0f} s ago")
        lag = self.parts.loop_lag.worst_recent_s
        if lag > _LAG_S:
            reasons.append(f"the event loop was held for {lag:.1f} s")
        if not self._reconciled:
            reasons.append("the ledger is not reconciled with live Pods yet")
        if self._quotas is not None and not self._quotas.settled.is_set():
            reasons.append("quotas that name devices have no mirrors yet")
        earliest = self._timing.earliest
        reasons += [problem for source in self._sources if (problem := source.healthy(earliest))]
        if not self._registration.published:
            reasons.append(f"the CA is not published: {'; '.join(self._registration.problems)}")
        if self._client_secret is not None and not self._client_secret.made:
            reasons.append(f"the scheduler has no certificate: {self._client_secret.problem}")
        return reasons

    def sick(self) -> list[str]:
        """The reasons why only a restart helps, a clause each: what no outage of others can cause."""
        now = asyncio.get_running_loop().time()
        still = [(name, now - watch.stirred_at) for name, watch in self._watches]
        return [f"the watch of {name} has done nothing for {age:.0f} s" for name, age in still if age > _STANDSTILL_S]

    async def _steadily(self, part: str, work: Callable[[], Awaitable[object]]) -> None:
        """Do some work that goes on after a bug, which is logged and counted."""

        def bug() -> None:
            self.parts.metrics.bugs.labels(part).inc()
            _LOG.exception("a bug in %s; it begins again", part)

        await steadily(work, bug)

    async def run(self, until: asyncio.Event) -> None:
        """Serve until the event is set, then end gracefully."""
        async with asyncio.TaskGroup() as tasks:
            background: list[asyncio.Task[None]] = []

            def begin(part: str, work: Callable[[], Awaitable[object]]) -> None:
                background.append(tasks.create_task(self._steadily(part, work)))

            for name, watch in self._watches:
                begin(f"watch {name}", watch.run)
            for groups in self._groups:
                begin("watch podgroups", groups.run)
            begin("releases", self.parts.reconciler.run_releases)
            self._begin_claims(begin)
            begin("waker", self._waker.run)
            begin("loop lag", self.parts.loop_lag.run)
            if self._quotas is not None:
                begin("quotas", partial(self._keep_quotas, self._quotas))
            self._begin_keepers(begin)
            begin("reconciliation", self._reconcile)
            begin("expiry", self._expire)
            starting = tasks.create_task(self._start_sources())
            ending = tasks.create_task(until.wait())
            await asyncio.wait([starting, ending], return_when=asyncio.FIRST_COMPLETED)
            if starting.done():
                for source in self._sources:
                    begin("certificates", partial(self._renew, source))
                begin("publication of the CA", self._registration.run)
                if self._client_secret is not None:
                    begin("the scheduler's certificate", self._client_secret.run)
                await self._serve(ending)
                await self.parts.ledger.idle()
                await self.parts.bind_events.close()
            for task in (*background, starting):
                task.cancel()

    async def _keep_quotas(self, keeper: QuotaKeeper) -> None:
        """Keep mirrors, once it is known in which namespaces."""
        await self._modes_watch.synced.wait()
        await keeper.run(self._quota_watch.synced)

    def _begin_keepers(self, begin: Callable[[str, Callable[[], Awaitable[object]]], None]) -> None:
        """Begin what writes objects of others once all is known."""
        if self._headroom is not None:
            headroom = self._headroom
            begin("headroom", lambda: headroom.run(lambda: not self.unready()))
        if self._settings.gangs.all_or_nothing:
            begin("gangs", lambda: self.parts.keeper.run(lambda: not self.unready()))

    def _begin_claims(self, begin: Callable[[str, Callable[[], Awaitable[object]]], None]) -> None:
        """Begin what follows ResourceClaims."""
        begin("releases of claims", self.parts.claim_keeper.run_releases)
        if self._taints is not None:
            rules, taints = self._taints
            begin("watch devicetaintrules", rules.run)
            begin("taints", lambda: taints.run(lambda: not self.unready()))

    @property
    def _sources(self) -> tuple[Source, ...]:
        return tuple(dict.fromkeys((self.source, self.extender_source)))

    async def _start_sources(self) -> None:
        """Start with a certificate for the API server; that for the scheduler may follow."""

        async def start() -> None:
            if self.extender_source is not self.source:
                await self.extender_source.attempt()  # first: while there is no other CA it gets one of its own
            await self.source.start()

        await self._steadily("certificates", start)

    async def _renew(self, source: Source) -> None:
        await source.start()
        await source.run()

    async def _serve(self, ending: asyncio.Task[object]) -> None:
        """Listen on both ports until the end has begun and callers have had time to leave."""
        serve, asks = self._settings.serve, self._settings.scheduler.client_certificates
        if serve.client_authority:
            refuse = partial(self._refusals.request, port="the webhooks")
            ask_for_certificate(self.source.context, serve.client_authority, refuse)
        refused = self._no_api_server if serve.client_authority else lambda _http: ""
        app = make_app(self.parts, self.unready, self.draining, refused, sick=self.sick)
        extender = (
            make_extender(self.parts, self.draining, self._stranger)
            if asks
            else make_extender(self.parts, self.draining)
        )
        entrance = self.extender_source.entrance if asks else self.extender_source.context
        closed = self.parts.metrics.connections_closed
        webhooks, scheduler = (closed.labels(port).inc for port in ("webhooks", "extender"))
        async with (
            listen(app, serve, self.source.context, closed=webhooks),
            listen(extender, serve, entrance, port=serve.extender_port, closed=scheduler),
            served_map(self.parts, self._kube, self.source.context),
        ):
            await ending
            self.draining.begun = True
            _LOG.info("draining for %.0f s", serve.shutdown_delay_seconds)
            await asyncio.sleep(serve.shutdown_delay_seconds)

    def _stranger(self, http: web.Request) -> str:
        """Why the caller of a request is not the scheduler; "" if it is."""
        reason = stranger(http.get_extra_info("peercert"), self._settings.scheduler.common_name)
        if reason:
            self._refusals.request(reason)
        return reason

    def _no_api_server(self, http: web.Request) -> str:
        """Why the caller of a review is not the API server; "" if it is."""
        name = self._settings.serve.client_name
        reason = stranger(http.get_extra_info("peercert"), name, "serve.clientName")
        if not reason:
            return ""
        self._refusals.request(reason, port="the webhooks")
        return (
            f"the caller of this review is refused: {reason}. If it is the API server, give it the certificate of "
            "serve.clientName (--admission-control-config-file), or leave clientAuthority and clientName empty"
        )

    async def _expire(self) -> None:
        """Drop assumed placements whose bind did not come, and wake the Pods that were refused because of them."""
        while True:
            await asyncio.sleep(_EXPIRY_S)
            for node in self.parts.ranking.assumed.expire():
                self._waker.released(node)

    async def _reconcile(self) -> None:
        """Reconcile once everything is listed, soon again if that fails, then on a timer; discard on the same timer."""
        for _, watch in self._watches:
            await watch.synced.wait()
        # The objects of the first lists live long: keep them out of further garbage collections.
        gc.collect()
        gc.freeze()
        gc.set_threshold(_GARBAGE)
        every = self._settings.ledger.reconcile_seconds
        backoff = Backoff(_FIRST_RETRY_S, every)
        while not self._reconciled:
            try:
                await self.parts.reconciler.reconcile()
            except KubeError as error:
                _LOG.warning("first reconciliation failed, trying again: %s", error)
                await asyncio.sleep(backoff.failed())
            else:
                await self._catch_up()
                self._reconciled = True
        await asyncio.gather(
            self._steadily("keeping up", self._keep_up),
            self._steadily("reconciliation", lambda: self.parts.reconciler.run_timer(every)),
            self._steadily("reconciliation of claims", lambda: self.parts.claim_keeper.run_timer(every)),
            self._steadily("conflicts of adoption", lambda: self.parts.adoption.run_timer(every)),
            self._steadily("records of nodes that are gone", lambda: self._discarder.run(every)),
            self._steadily("observed Pods", self.parts.shadow_keeper.run),
        )

    async def _keep_up(self) -> None:
        """Take in changed nodes before a request has to."""
        while True:
            await asyncio.sleep(_KEEP_UP_S)
            await self._catch_up()

    async def _catch_up(self) -> None:
        await self.parts.ranking.catch_up_slowly()
        await self.parts.cluster.reach.catch_up_slowly()


def _timestamp(moment: datetime | None) -> float:
    """Unix time; 0 for none."""
    return moment.timestamp() if moment is not None else 0.0


async def _main(configured: WebhookSettings) -> None:
    ended = asked_to_end()
    async with KubeClient.autodetect(limit=_CONNECTIONS) as kube:
        replica = Replica(configured, kube)
        try:
            await replica.run(ended)
        finally:
            await asyncio.to_thread(replica.parts.tracing.end)


def _run(arguments: argparse.Namespace) -> int:
    try:
        configured = settings.load(arguments.config)
        traces.check(configured.tracing)
        if arguments.check:
            sys.stdout.write(f"{check(arguments.config, settings.WebhookSettings)}\n")
            return 0
    except SettingsError as error:
        sys.stderr.write(f"koordgate webhook: {error}\n")
        return 2
    log.start(configured.log_level, "webhook", configured.log_format)
    try:
        uvloop.run(_main(configured))
    except KubeError as error:
        sys.stderr.write(f"koordgate webhook: {error}\n")
        return 1
    return 0


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--config", type=Path, required=True, metavar="FILE", help="settings (YAML); see docs/settings.md"
    )
    parser.add_argument("--check", action="store_true", help="check the settings, and exit")


COMMAND: Final = Command(
    description="Serve admission, binding and the scheduler extender over HTTPS, against the cluster of the kubeconfig "
    "($KUBECONFIG) or of the Pod's service account.",
    examples="examples:\n"
    "  koordgate webhook --config /etc/koordgate/config.yaml\n"
    "  koordgate webhook --config config.yaml --check",
    arguments=_arguments,
    run=_run,
)
