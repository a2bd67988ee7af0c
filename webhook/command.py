"""`koordgate webhook`: one replica of the Deployment, from settings to a graceful end."""

import argparse
import asyncio
import gc
import logging
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import uvloop
from aiohttp import web

from koordgate import log
from koordgate.backoff import Backoff
from koordgate.cli import Command
from koordgate.kube.client import KubeClient
from koordgate.kube.errors import KubeError
from koordgate.kube.resource import ALL_POD_GROUPS, DEVICES, NODES, PODS, TOPOLOGIES, Resource
from koordgate.kube.watch import Handler, Happening, Reflector
from koordgate.settings import SettingsError, device_types
from webhook import settings
from webhook.app import listen, make_app, make_extender
from webhook.assembly import Parts, assemble
from webhook.edge import Draining
from webhook.ledger.cluster import cluster_store
from webhook.ledger.store import Listener, Watch
from webhook.settings import WebhookSettings
from webhook.tls.callers import Refusals, stranger
from webhook.tls.certs import REAL, FileSource, SecretSource, Source, utc_now
from webhook.tls.clientsecret import ClientSecret
from webhook.tls.register import Registration
from webhook.upkeep.publish import Publisher, published
from webhook.upkeep.waker import Waker
from webhook.view.feed import DeviceFeed, GroupFeed, NodeFeed, PodFeed, RecordFeed, TopologyFeed
from webhook.view.livepods import KubeLivePods
from webhook.view.podinfo import PodInfo
from webhook.view.served import ServedWatch

_LOG: Final = logging.getLogger(__name__)
_CONNECTIONS: Final = 32  # to the API server; binds to different nodes are written side by side
_WATCH_PATIENCE_S: Final = 60.0  # how long a watch may fail before the replica is not ready
_GARBAGE: Final = 20_000  # allocations between garbage collections; requests leave hardly any cycles
_FIRST_RETRY_S: Final = 1.0  # after a first reconciliation that failed
_EXPIRY_S: Final = 1.0  # between checks of assumed placements


class Replica:
    """One replica against a cluster.

    Args:
        settings: of the process.
        kube: the open client.
    """

    def __init__(self, settings: WebhookSettings, kube: KubeClient) -> None:
        self._settings = settings
        self._waker = Waker(kube, lambda: self.parts.cluster.pods.anybody_waits())  # noqa: PLW0108 there are no parts yet
        self.parts: Parts = assemble(
            settings,
            lambda seen: cluster_store(kube, seen.nodes.uid),
            KubeLivePods(kube, device_types(settings.devices.types)),
            kube=kube,
            released=self._waker.released,
            published=published,
        )
        self.source: Source
        self._client_secret: ClientSecret | None = None
        certificate = settings.certificate
        if certificate.files:
            self.source = FileSource(certificate.files, REAL, certificate.client_authority)
        else:
            self.source = own = SecretSource(kube, settings.identity.namespace, certificate)
            if settings.scheduler.client_certificates:
                self._client_secret = ClientSecret(kube, settings, own)
        self._registration = Registration(kube, settings.identity, self.source)
        parts = self.parts
        # A connection that fails has no path; it counts for the extender as a whole.
        self._refusals = Refusals(parts.metrics.requests.labels("/scheduler", "denied").inc)
        self.source.entrance.refused = self._refusals.handshake
        parts.metrics.certificate_expires.set_function(self._certificate_expires)
        reporter = parts.reporter
        self._publisher = publisher = Publisher(parts.cluster, parts.ledger, socket.gethostname())
        # Pods last: the ledger is known by then, so holdings of Pods that have ended are found.
        self._watches: list[tuple[str, Watch]] = [
            self._reflector(
                kube,
                NODES,
                publisher.nodes(NodeFeed(parts.cluster, parts.types, parts.pools, reporter.bad_object("nodes"))),
            ),
            self._reflector(kube, DEVICES, DeviceFeed(parts.cluster, parts.types, reporter.bad_object("devices"))),
            self._reflector(
                kube, TOPOLOGIES, TopologyFeed(parts.cluster, reporter.bad_object("noderesourcetopologies"))
            ),
            self._records(RecordFeed(parts.cluster, parts.ledger, reporter.bad_object(parts.store.kind))),
            self._reflector(kube, PODS, PodFeed(parts.cluster, self._pod_ended, self._pod_bound, parts.types)),
        ]
        # The sizes of gangs steer and hold up nobody: a replica is ready without them.
        self._groups = [self._served(kube, versions) for versions in ALL_POD_GROUPS]
        self._reconciled = False
        self.draining = Draining()

    def _reflector(self, kube: KubeClient, resource: Resource, handler: Handler) -> tuple[str, Watch]:
        name = resource.plural
        return name, Reflector(kube, resource, handler, count=self._counting(name), on_error=_log_watch_error)

    def _served(self, kube: KubeClient, versions: Sequence[Resource]) -> ServedWatch:
        group, name = versions[0].group, f"{versions[0].plural}.{versions[0].group}"
        feed = GroupFeed(self.parts.cluster, group, self.parts.reporter.bad_object(name))
        return ServedWatch(kube, versions, feed, count=self._counting(name), on_error=_log_watch_error)

    def _records(self, listener: Listener) -> tuple[str, Watch]:
        store = self.parts.store
        return store.kind, store.watch(listener, self._counting(store.kind), _log_watch_error)

    def _counting(self, name: str) -> Callable[[Happening], None]:
        counter = self.parts.metrics.watch
        return lambda happening: counter.labels(name, happening).inc()

    def _pod_ended(self, pod: PodInfo) -> None:
        """A Pod finished or is gone: its holding can be released, and its assumed placement ends."""
        self.parts.ranking.assumed.drop(pod.uid)
        self.parts.reconciler.ended(pod)

    def _pod_bound(self, pod: PodInfo) -> None:
        """A Pod is bound, maybe to another node than this replica sent it to."""
        self.parts.ranking.assumed.drop(pod.uid, pod.node)
        self.parts.reconciler.bound(pod)

    def _certificate_expires(self) -> float:
        expires = self.source.expires
        return expires.timestamp() if expires is not None else 0.0

    def unready(self) -> list[str]:
        """The reasons why the replica is not ready, a clause each."""
        now = asyncio.get_running_loop().time()
        reasons = ["shutting down"] if self.draining.begun else []
        for name, watch in self._watches:
            if not watch.synced.is_set():
                reasons.append(f"{name} are not listed yet ({watch.last_error or 'under way'})")
            elif watch.failing_since is not None and now - watch.failing_since > _WATCH_PATIENCE_S:
                reasons.append(f"{name} cannot be watched: {watch.last_error}")
        if not self._reconciled:
            reasons.append("the ledger is not reconciled with live Pods yet")
        certificate = self.source.healthy(utc_now())
        if certificate:
            reasons.append(certificate)
        if not self._registration.published:
            reasons.append(f"the CA is not published: {'; '.join(self._registration.problems)}")
        if self._client_secret is not None and not self._client_secret.made:
            reasons.append(f"the scheduler has no certificate: {self._client_secret.problem}")
        return reasons

    async def run(self, until: asyncio.Event) -> None:
        """Serve until the event is set, then end gracefully."""
        async with asyncio.TaskGroup() as tasks:
            background = [tasks.create_task(watch.run()) for _, watch in self._watches]
            background += [tasks.create_task(groups.run()) for groups in self._groups]
            background.append(tasks.create_task(self.parts.reconciler.run_releases()))
            background.append(tasks.create_task(self._waker.run()))
            if self._settings.gangs.all_or_nothing:
                background.append(tasks.create_task(self.parts.keeper.run(lambda: not self.unready())))
            background.append(tasks.create_task(self._reconcile()))
            background.append(tasks.create_task(self._expire()))
            starting = tasks.create_task(self.source.start())
            ending = tasks.create_task(until.wait())
            await asyncio.wait([starting, ending], return_when=asyncio.FIRST_COMPLETED)
            if starting.done():
                background.append(tasks.create_task(self.source.run()))
                background.append(tasks.create_task(self._registration.run()))
                if self._client_secret is not None:
                    background.append(tasks.create_task(self._client_secret.run()))
                await self._serve(ending)
                await self.parts.ledger.idle()
            for task in (*background, starting):
                task.cancel()

    async def _serve(self, ending: asyncio.Task[object]) -> None:
        """Listen on both ports until the end has begun and callers have had time to leave."""
        serve, asks = self._settings.serve, self._settings.scheduler.client_certificates
        app = make_app(self.parts, self.unready, self.draining)
        extender = (
            make_extender(self.parts, self.draining, self._stranger)
            if asks
            else make_extender(self.parts, self.draining)
        )
        entrance = self.source.entrance if asks else self.source.context
        async with (
            listen(app, serve, self.source.context),
            listen(extender, serve, entrance, port=serve.extender_port),
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

    async def _expire(self) -> None:
        """Drop assumed placements whose bind did not come, and wake the Pods that were refused because of them."""
        while True:
            await asyncio.sleep(_EXPIRY_S)
            for node in self.parts.ranking.assumed.expire():
                self._waker.released(node)

    async def _reconcile(self) -> None:
        """Reconcile once everything is listed, soon again if that fails, then on a timer; publish on the same timer."""
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
                self.parts.ranking.catch_up()
                self._reconciled = True
        await asyncio.gather(self.parts.reconciler.run_timer(every), self._publisher.run(every))


def _log_watch_error(about: str, error: Exception) -> None:
    _LOG.warning("%s: %s", about, error)


async def _main(configured: WebhookSettings) -> None:
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    async with KubeClient.autodetect(limit=_CONNECTIONS) as kube:
        await Replica(configured, kube).run(ended)


def _run(arguments: argparse.Namespace) -> int:
    try:
        configured = settings.load(arguments.config)
    except SettingsError as error:
        sys.stderr.write(f"koordgate webhook: {error}\n")
        return 2
    if arguments.check:
        sys.stdout.write(f"{arguments.config}: all right\n")
        return 0
    log.start(configured.log_level)
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
