"""`koordgate serve webhook`: one replica of the Deployment, from settings to a graceful end."""

import argparse
import asyncio
import gc
import logging
import socket
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
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
from webhook.assembly import Parts
from webhook.dra.taints import RuleFeed, TaintController
from webhook.edge import Draining
from webhook.ledger.kube import cluster_store
from webhook.ledger.store import Watch
from webhook.quotas.controller import QuotaController
from webhook.quotas.table import QuotaFeed, RangeFeed
from webhook.settings import WebhookSettings, types_of
from webhook.shadow.controller import ObservedPodFeed
from webhook.tls.callers import Refusals, ask_for_certificate, why_refused
from webhook.tls.certs import ClientSecret, FileSource, LastingSource, SecretSource, Source
from webhook.tls.register import Registration
from webhook.tls.timing import Timing
from webhook.upkeep.discard import Discarder
from webhook.upkeep.headroom import HeadroomController
from webhook.upkeep.waker import Waker
from webhook.view.claimfeed import ClaimFeed, SliceFeed
from webhook.view.feed import DeviceFeed, GroupFeed, NodeFeed, RecordFeed, RuntimeClassFeed, TopologyFeed
from webhook.view.livepods import KubeLivePods
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


@dataclass(frozen=True, slots=True)
class Service:
    """Work of a replica that goes on until its end; after a bug, which is logged and counted, it begins again."""

    name: str
    run: Callable[[], Awaitable[object]]
    unready: Callable[[], Iterable[str]] = tuple  # the reasons why the replica is not ready, a clause each
    after: asyncio.Event | None = None  # it begins once this is set


class Replica:
    """One replica against a cluster: its parts, and the services that run them."""

    def __init__(self, settings: WebhookSettings, kube: KubeClient, timing: Timing | None = None) -> None:
        self._settings = settings
        self._kube = kube
        self._timing = timing = timing or Timing(offset=lambda: kube.server_offset)
        self._waker = Waker(kube, lambda: self.parts.cluster.pods.anybody_waits(settings.scheduler.names))
        self.parts = Parts(
            settings,
            cluster_store(kube),
            KubeLivePods(kube, types_of(settings)),
            kube=kube,
            released=self._waker.released,
            tracing=partial(traces.opened, settings.tracing),
        )
        self.source: Source  # of the certificate that the API server sees
        self.extender_source: Source  # of the one that the scheduler sees; the same with a certificate from files
        client_secret = self._certificates(timing)
        metrics = self.parts.metrics
        # A connection that fails has no path; it counts for the extender as a whole.
        self._refusals = Refusals(metrics.requests.labels("/scheduler", "denied").inc)
        self.extender_source.entrance.refused = self._refusals.handshake
        metrics.certificate_expires.set_function(lambda: _timestamp(self.source.expires))
        metrics.headroom_nodes.set_function(lambda: len(self.parts.cluster.nodes.short))
        self.draining = Draining()
        self._reconciled, self._certified = asyncio.Event(), asyncio.Event()
        self.watches: list[tuple[str, Watch]] = []  # without which the replica is not ready
        self.services: list[Service] = [
            *self._watching(),
            *self._deciding(),
            *self._keeping(),
            *self._certifying(client_secret),
        ]

    def _certificates(self, timing: Timing) -> ClientSecret | None:
        """Set where both certificates come from; returns what keeps the scheduler's own, if koordgate makes it."""
        certificate, namespace = self._settings.certificate, self._settings.identity.namespace
        if certificate.files:
            self.source = self.extender_source = FileSource(certificate.files, timing, certificate.client_authority)
            return None
        self.source = SecretSource(self._kube, namespace, certificate, timing)
        lasting = LastingSource(self._kube, namespace, certificate.of_extender, certificate.secret, timing)
        shown = self.parts.metrics.extender_authority_expires
        shown.set_function(lambda: _timestamp(lasting.authority_expires))
        self.extender_source = lasting
        if not self._settings.scheduler.client_certificates:
            return None
        return ClientSecret(self._kube, self._settings, lasting, timing)

    def _watching(self) -> Iterator[Service]:
        """Follow what decisions depend on, and then what they do not."""
        settings, parts, types = self._settings, self.parts, self.parts.types
        cluster, bad = parts.cluster, parts.reporter.bad_object
        pods = ObservedPodFeed(
            cluster, self._pod_ended, self._pod_bound, types, parts.shadow_controller, parts.reconciler.listed
        )
        records = RecordFeed(cluster, parts.ledger, bad(parts.store.kind))
        kind = parts.store.kind
        yield self._watch(NAMESPACES, NamespaceFeed(parts.modes))
        yield self._watch(RUNTIME_CLASSES, RuntimeClassFeed(cluster))
        yield self._watch(NODES, NodeFeed(cluster, types, parts.pools, bad("nodes")))
        yield self._watch(DEVICES, DeviceFeed(cluster, types, bad("devices")))
        yield self._watch(TOPOLOGIES, TopologyFeed(cluster, bad("noderesourcetopologies")))
        yield self._followed(kind, parts.store.watch(records, self._counting(kind), self._watch_failed))
        # After the ledger: it is known by then, so holdings of Pods that have ended are found.
        watch = Reflector(self._kube, PODS, pods, count=self._counting(PODS.plural), on_error=self._watch_failed)
        cluster.pods.revision = lambda: watch.seen
        yield self._followed(PODS.plural, watch)
        if settings.dra.enabled:  # where the API server does not serve them, there are none
            yield self._watch(RESOURCE_SLICES, SliceFeed(cluster, bad("resourceslices")))
            yield self._watch(RESOURCE_CLAIMS, ClaimFeed(cluster))
        if settings.quota.enabled:
            yield self._watch(LIMIT_RANGES, RangeFeed(parts.limits, bad("limitranges")))
            yield self._watch(RESOURCE_QUOTAS, QuotaFeed(parts.limits))
        # The sizes of gangs steer and hold up nobody: a replica is ready without them.
        for versions in ALL_POD_GROUPS:
            group = versions[0].group
            name = f"{versions[0].plural}.{group}"
            yield Service("watch podgroups", self._served(name, versions, GroupFeed(cluster, group, bad(name))).run)

    def _deciding(self) -> Iterator[Service]:
        """Keep the ledger and the view up to date, beside requests and from the first reconciliation on."""
        parts, every = self.parts, self._settings.ledger.reconcile_seconds
        discarder = Discarder(parts.cluster.nodes, parts.ledger, socket.gethostname())
        yield Service("releases", parts.reconciler.run_releases)
        yield Service("releases of claims", parts.claim_controller.run_releases)
        yield Service("waker", self._waker.run)
        yield Service("loop lag", parts.loop_lag.run, self._lagging)
        yield Service("reconciliation", self._reconcile, self._unreconciled)
        yield Service("expiry", self._expire)
        done = self._reconciled
        yield Service("keeping up", self._keep_up, after=done)
        yield Service("reconciliation", partial(parts.reconciler.run_timer, every), after=done)
        yield Service("reconciliation of claims", partial(parts.claim_controller.run_timer, every), after=done)
        yield Service("conflicts of adoption", partial(parts.adoption.run_timer, every), after=done)
        yield Service("records of nodes that are gone", partial(discarder.run, every), after=done)
        if (nominator := parts.extender.nominator) is not None:
            yield Service("nominations", nominator.run, after=done)
        yield Service("observed Pods", parts.shadow_controller.run, after=done)

    def _keeping(self) -> Iterator[Service]:
        """Write objects of others, where settings ask for it."""
        settings, parts, kube = self._settings, self.parts, self._kube

        def healthy() -> bool:
            return not self.unready()

        if settings.quota.enabled:
            watched = dict(self.watches)
            quotas = QuotaController(
                kube,
                parts.limits,
                parts.unstated,
                lambda namespace: not parts.modes.enforced(namespace),
                parts.reporter.bad_object("resourcequotas"),
            )
            parts.modes.listen(quotas.switched)
            listed = watched[RESOURCE_QUOTAS.plural].synced, watched[PODS.plural].synced
            yield Service(
                "quotas",
                partial(quotas.run, *listed),
                lambda: () if quotas.settled.is_set() else ("quotas that name devices have no mirrors yet",),
                after=watched[NAMESPACES.plural].synced,
            )
        if settings.dra.enabled and settings.dra.taints:
            feed = RuleFeed()
            rules = self._served(DEVICE_TAINT_RULES[0].plural, DEVICE_TAINT_RULES, feed)
            yield Service("watch devicetaintrules", rules.run)
            taints = TaintController(kube, parts.cluster, feed, lambda: rules.served)
            yield Service("taints", partial(taints.run, healthy))
        if settings.headroom.mode != "none":
            changed = parts.metrics.headroom_changes
            headroom = HeadroomController(
                kube, parts.cluster, settings.headroom, parts.typical, lambda done: changed.labels(done).inc()
            )
            yield Service("headroom", partial(headroom.run, healthy))
        if settings.gangs.all_or_nothing:
            yield Service("gangs", partial(parts.gang_controller.run, healthy))

    def _certifying(self, client_secret: ClientSecret | None) -> Iterator[Service]:
        """Keep certificates valid and published."""
        registration = Registration(self._kube, self._settings.identity, self.source, self._timing)
        sources, done = dict.fromkeys((self.source, self.extender_source)), self._certified

        def unusable(source: Source) -> Iterator[str]:
            if problem := source.healthy(self._timing.earliest):
                yield problem

        def unpublished() -> Iterator[str]:
            if not registration.published:
                yield f"the CA is not published: {'; '.join(registration.problems)}"

        yield Service("certificates", self._start_sources)
        for source in sources:
            yield Service("certificates", partial(_renew, source), partial(unusable, source), after=done)
        yield Service("publication of the CA", registration.run, unpublished, after=done)
        if client_secret is not None:
            yield Service(
                "the scheduler's certificate",
                client_secret.run,
                lambda: () if client_secret.made else (f"the scheduler has no certificate: {client_secret.problem}",),
                after=done,
            )

    def _watch(self, resource: Resource, handler: Handler) -> Service:
        name = resource.plural
        watch = Reflector(self._kube, resource, handler, count=self._counting(name), on_error=self._watch_failed)
        return self._followed(name, watch)

    def _followed(self, name: str, watch: Watch) -> Service:
        self.watches.append((name, watch))
        return Service(f"watch {name}", watch.run, partial(_unheard, name, watch))

    def _served(self, name: str, versions: Sequence[Resource], feed: Handler) -> ServedWatch:
        return ServedWatch(self._kube, versions, feed, count=self._counting(name), on_error=self._watch_failed)

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
        reasons = ["shutting down"] if self.draining.begun else []
        return reasons + [reason for one in self.services for reason in one.unready()]

    def _lagging(self) -> Iterator[str]:
        lag = self.parts.loop_lag.worst_recent_s
        if lag > _LAG_S:
            yield f"the event loop was held for {lag:.1f} s"

    def _unreconciled(self) -> Iterator[str]:
        if not self._reconciled.is_set():
            yield "the ledger is not reconciled with live Pods yet"

    def sick(self) -> list[str]:
        """The reasons why only a restart helps, a clause each: what no outage of others can cause."""
        now = asyncio.get_running_loop().time()
        still = [(name, now - watch.stirred_at) for name, watch in self.watches]
        return [f"the watch of {name} has done nothing for {age:.0f} s" for name, age in still if age > _STANDSTILL_S]

    async def _steadily(self, service: Service) -> None:
        def bug() -> None:
            self.parts.metrics.bugs.labels(service.name).inc()
            _LOG.exception("a bug in %s; it begins again", service.name)

        if service.after is not None:
            await service.after.wait()
        await steadily(service.run, bug)

    async def run(self, until: asyncio.Event) -> None:
        """Serve until the event is set, then end gracefully."""
        async with asyncio.TaskGroup() as tasks:
            background = [tasks.create_task(self._steadily(one)) for one in self.services]
            certified = tasks.create_task(self._certified.wait())
            ending = tasks.create_task(until.wait())
            await asyncio.wait([certified, ending], return_when=asyncio.FIRST_COMPLETED)
            if certified.done():
                await self._serve(ending)
                await self.parts.ledger.idle()
                await self.parts.bind_events.close()
            for task in (*background, certified):
                task.cancel()

    async def _start_sources(self) -> None:
        """Start with a certificate for the API server; that for the scheduler may follow."""
        if self.extender_source is not self.source:
            await self.extender_source.attempt()  # first: while there is no other CA it gets one of its own
        await self.source.start()
        self._certified.set()

    async def _serve(self, ending: asyncio.Task[object]) -> None:
        """Listen on both ports until the end has begun and callers have had time to leave."""
        serve, asks = self._settings.serve, self._settings.scheduler.client_certificates
        if serve.client_authority:
            refuse = partial(self._refusals.request, port="the webhooks")
            ask_for_certificate(self.source.context, serve.client_authority, refuse)
        refused = self._no_api_server if serve.client_authority else lambda _http: ""
        app = make_app(self.parts, self.unready, self.draining, refused, sick=self.sick)
        extender = (
            make_extender(self.parts, self.draining, self._why_refused)
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

    def _why_refused(self, http: web.Request) -> str:
        """Why the caller of a request is not the scheduler; "" if it is."""
        reason = why_refused(http.get_extra_info("peercert"), self._settings.scheduler.common_name)
        if reason:
            self._refusals.request(reason)
        return reason

    def _no_api_server(self, http: web.Request) -> str:
        """Why the caller of a review is not the API server; "" if it is."""
        name = self._settings.serve.client_name
        reason = why_refused(http.get_extra_info("peercert"), name, "serve.clientName")
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
        """Reconcile once everything is listed, soon again if that fails."""
        for _, watch in self.watches:
            await watch.synced.wait()
        # The objects of the first lists live long: keep them out of further garbage collections.
        gc.collect()
        gc.freeze()
        gc.set_threshold(_GARBAGE)
        backoff = Backoff(_FIRST_RETRY_S, self._settings.ledger.reconcile_seconds)
        while not self._reconciled.is_set():
            try:
                await self.parts.reconciler.reconcile()
            except KubeError as error:
                _LOG.warning("first reconciliation failed, trying again: %s", error)
                await asyncio.sleep(backoff.failed())
            else:
                await self._catch_up()
                self._reconciled.set()

    async def _keep_up(self) -> None:
        """Take in changed nodes before a request has to."""
        while True:
            await asyncio.sleep(_KEEP_UP_S)
            await self._catch_up()

    async def _catch_up(self) -> None:
        await self.parts.ranking.catch_up_slowly()
        await self.parts.cluster.reach.catch_up_slowly()


async def _renew(source: Source) -> None:
    await source.start()
    await source.run()


def _unheard(name: str, watch: Watch) -> Iterator[str]:
    """Why the replica is not ready, as far as it is one watch's fault."""
    now = asyncio.get_running_loop().time()
    if not watch.synced.is_set():
        yield f"{name} are not listed yet ({watch.last_error or 'under way'})"
    elif watch.failing_since is not None and now - watch.failing_since > _WATCH_PATIENCE_S:
        yield f"{name} cannot be watched: {watch.last_error}"
    elif now - watch.heard_at > _SILENCE_S:
        yield f"{name} were last heard of {now - watch.heard_at:.0f} s ago"


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
        sys.stderr.write(f"koordgate serve webhook: {error}\n")
        return 2
    log.start(configured.log_level, "webhook", configured.log_format)
    try:
        uvloop.run(_main(configured))
    except KubeError as error:
        sys.stderr.write(f"koordgate serve webhook: {error}\n")
        return 1
    return 0


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--config", type=Path, required=True, metavar="FILE", help="settings (YAML); see docs/reference/settings.md"
    )
    parser.add_argument("--check", action="store_true", help="check the settings, and exit")


COMMAND: Final = Command(
    description="Serve admission, binding and the scheduler extender over HTTPS, against the cluster of the kubeconfig "
    "($KUBECONFIG) or of the Pod's service account.",
    examples="examples:\n"
    "  koordgate serve webhook --config /etc/koordgate/config.yaml\n"
    "  koordgate serve webhook --config config.yaml --check",
    arguments=_arguments,
    run=_run,
)
