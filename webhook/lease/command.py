"""`koordgate lease`: keeps the health lease."""

import argparse
import asyncio
import logging
import sys
from pathlib import Path
from typing import Final

from koordgate import log
from koordgate.cli import Command
from koordgate.ending import asked_to_end
from koordgate.kube.client import KubeClient
from koordgate.kube.errors import KubeError
from koordgate.serving import listen
from koordgate.settings import SettingsError
from webhook import settings
from webhook.lease.keeper import LeaseKeeper
from webhook.lease.metrics import LeaseMetrics
from webhook.settings import WebhookSettings

_LOG: Final = logging.getLogger(__name__)
_CONNECTIONS: Final = 4


async def keep(configured: WebhookSettings, kube: KubeClient, until: asyncio.Event) -> None:
    """Keep the lease, and serve health and metrics, until the event is set."""
    lease, metrics = configured.health_lease, LeaseMetrics()
    keeper = LeaseKeeper(kube, configured, metrics)
    async with listen(lease.host, lease.port, metrics.exposed, keeper.unhealthy) as port:
        _LOG.info("serving on %s:%d", lease.host, port)
        keeping = asyncio.create_task(keeper.run())
        await until.wait()
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)


async def _main(configured: WebhookSettings) -> None:
    ended = asked_to_end()
    async with KubeClient.autodetect(limit=_CONNECTIONS) as kube:
        await keep(configured, kube, ended)


def _run(arguments: argparse.Namespace) -> int:
    try:
        configured = settings.load(arguments.config)
    except SettingsError as error:
        sys.stderr.write(f"koordgate lease: {error}\n")
        return 2
    if not configured.health_lease.enabled:
        sys.stderr.write(
            f"koordgate lease: {arguments.config}: healthLease.enabled is false, so no replica renews the lease; set "
            "it to true, or do not run this command\n"
        )
        return 2
    log.start(configured.log_level, "lease", configured.log_format)
    try:
        asyncio.run(_main(configured))
    except KubeError as error:
        sys.stderr.write(f"koordgate lease: {error}\n")
        return 1
    except OSError as error:
        sys.stderr.write(f"koordgate lease: cannot serve health and metrics: {error}; set healthLease.port\n")
        return 1
    return 0


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--config", type=Path, required=True, metavar="FILE", help="the webhook's settings (YAML); see docs/settings.md"
    )


COMMAND: Final = Command(
    description="Open the entries that guard Pods while no replica of the webhook lives, and shut them once replicas\n"
    "answer again. Pods for devices are refused meanwhile by a policy of the API server. The cluster is that of the\n"
    "kubeconfig ($KUBECONFIG) or of the Pod's service account.",
    examples="examples:\n  koordgate lease --config /etc/koordgate/config.yaml",
    arguments=_arguments,
    run=_run,
)
