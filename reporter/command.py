"""`koordgate serve reporter`: runs the node's reporter, or looks once and changes nothing."""

import argparse
import asyncio
import gc
import logging
import os
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import yaml

from koordgate import log
from koordgate.cli import Command
from koordgate.kube.client import KubeClient
from koordgate.kube.errors import KubeError
from koordgate.settings import SettingsError, check, device_types
from koordgate.steady import asked_to_end
from reporter import settings
from reporter.agent import Agent
from reporter.cgroup import plan
from reporter.gpu.guarded import DriverRoots, GuardedNvml, Patience
from reporter.metrics import ReporterMetrics
from reporter.round.decide import Decided
from reporter.settings import ReporterSettings

_LOG: Final = logging.getLogger(__name__)
_CONNECTIONS: Final = 8  # four watches, and the writes
_GARBAGE: Final = 20_000


def node_name(configured: ReporterSettings) -> str:
    """This Node's name: from the settings, from $NODE_NAME, or the machine's name, as the kubelet does."""
    return configured.node or os.environ.get("NODE_NAME", "") or socket.gethostname().lower()


def client() -> KubeClient:
    """A client of the API server, with the access that this process has."""
    return KubeClient.autodetect(limit=_CONNECTIONS)


@asynccontextmanager
async def open_nvml(configured: ReporterSettings) -> AsyncIterator[GuardedNvml | None]:
    """The guarded NVML for the duration; None if GPUs are switched off."""
    if not configured.gpus.enabled:
        yield None
        return
    roots = configured.roots
    nvml = GuardedNvml(Patience(), DriverRoots(Path(roots.sysfs), Path(roots.proc)))
    try:
        yield nvml
    finally:
        await nvml.aclose()


async def serve(configured: ReporterSettings, until: asyncio.Event) -> None:
    """Report until the event is set."""
    async with open_nvml(configured) as nvml, client() as kube:
        metrics = ReporterMetrics(device_types(configured.devices.types), pods=configured.metrics.pods)
        agent = Agent(configured, node_name(configured), kube, nvml, metrics)
        gc.collect()
        gc.freeze()
        gc.set_threshold(_GARBAGE)
        await agent.run(until)


def show(decided: Decided, problems: tuple[str, ...]) -> str:
    """Show what was found as text: tables, then the objects as YAML."""
    from reporter import once  # noqa: PLC0415 the DaemonSet never needs what draws tables

    wants = plan.wants(decided.pods, decided.topology.pools, decided.topology.kubelet)
    objects = [body for body in (decided.device.body, decided.topology.body, decided.status) if body is not None]
    return (
        once.draw(decided, wants, problems)
        + "\n"
        + yaml.safe_dump_all(objects, sort_keys=False, explicit_start=True, width=120)
    )


async def look(configured: ReporterSettings, kube: KubeClient | None) -> tuple[Decided, tuple[str, ...]]:
    """Look once, with an NVML process for the duration; see `once.look`."""
    from reporter import once  # noqa: PLC0415 as above

    async with open_nvml(configured) as nvml:
        return await once.look(configured, node_name(configured), kube, nvml)


async def _look_and_show(configured: ReporterSettings, *, offline: bool) -> str:
    if offline:
        return show(*await look(configured, None))
    try:
        async with client() as kube:
            return show(*await look(configured, kube))
    except KubeError as error:
        decided, problems = await look(configured, None)
        return show(decided, (f"the API server: {error}", *problems))


async def _main(configured: ReporterSettings) -> None:
    ended = asked_to_end()
    await serve(configured, ended)


def _run(arguments: argparse.Namespace) -> int:
    try:
        configured = settings.load(arguments.config) if arguments.config else ReporterSettings()
        if arguments.check:
            told = check(arguments.config, ReporterSettings) if arguments.config else "no --config: all defaults"
            sys.stdout.write(f"{told}\n")
            return 0
    except SettingsError as error:
        sys.stderr.write(f"koordgate serve reporter: {error}\n")
        return 2
    if arguments.once != arguments.dry_run:
        sys.stderr.write("koordgate serve reporter: --once and --dry-run go together: one look, no change\n")
        return 2
    log.start("error" if arguments.once else configured.log_level, "reporter", configured.log_format)
    try:
        if arguments.once:
            sys.stdout.write(asyncio.run(_look_and_show(configured, offline=arguments.offline)))
        else:
            asyncio.run(_main(configured))
    except KubeError as error:
        sys.stderr.write(f"koordgate serve reporter: {error}\n")
        return 1
    return 0


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", type=Path, metavar="FILE", help="settings (YAML); defaults if left out")
    parser.add_argument("--check", action="store_true", help="check the settings and exit")
    parser.add_argument("--once", action="store_true", help="look once and exit; needs --dry-run")
    parser.add_argument("--dry-run", action="store_true", help="print the findings as tables and YAML; change nothing")
    parser.add_argument("--offline", action="store_true", help="with --once: look at the machine alone")


COMMAND: Final = Command(
    description="Report this node's devices and their health, and set containers' cpusets to their allocated CPUs.",
    examples="examples:\n"
    "  koordgate serve reporter --config /etc/koordgate/reporter.yaml\n"
    "  koordgate serve reporter --once --dry-run --offline",
    arguments=_arguments,
    run=_run,
)
