"""`koordgate reporter`: the node's reporter, from settings to a graceful end; or one look that changes nothing."""

import argparse
import asyncio
import gc
import logging
import os
import signal
import socket
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import yaml

from koordgate import log
from koordgate.cli import Command
from koordgate.kube.client import KubeClient
from koordgate.kube.errors import KubeError, NotFound
from koordgate.kube.resource import DEVICES, NODES, PODS, TOPOLOGIES, Resource
from koordgate.settings import SettingsError
from reporter import settings
from reporter.agent import Agent, rules_of
from reporter.cards import Cards
from reporter.cgroup import plan
from reporter.decide import Decided, StandingObjects, by_index, by_minor, decide
from reporter.gpu.guarded import DriverRoots, GuardedNvml, Patience
from reporter.gpu.health import NodeRecord
from reporter.host import Host
from reporter.kubelet import configz
from reporter.kubelet.podresources import PodResourcesSocket
from reporter.metrics import ReporterMetrics
from reporter.pods import NodePod, read_pod
from reporter.proof import evidence
from reporter.proof.agree import Evidence
from reporter.publish.identity import NodeIdentity, read_node
from reporter.settings import ReporterSettings

_LOG: Final = logging.getLogger(__name__)
_CONNECTIONS: Final = 8  # four watches, and what is written
_GARBAGE: Final = 20_000


def node_name(configured: ReporterSettings) -> str:
    """The Node that this is: by settings, by $NODE_NAME, or by the machine's name, as the kubelet does."""
    return configured.node or os.environ.get("NODE_NAME", "") or socket.gethostname().lower()


def client() -> KubeClient:
    """The API server, as this process reaches it."""
    return KubeClient.autodetect(limit=_CONNECTIONS)


def open_nvml(configured: ReporterSettings) -> GuardedNvml | None:
    """The guarded NVML; None where GPUs are switched off."""
    if not configured.gpus.enabled:
        return None
    roots = configured.roots
    return GuardedNvml(Patience(), DriverRoots(Path(roots.sysfs), Path(roots.proc)))


async def serve(configured: ReporterSettings, until: asyncio.Event) -> None:
    """Report until the event is set."""
    nvml = open_nvml(configured)
    try:
        async with client() as kube:
            agent = Agent(configured, node_name(configured), kube, nvml, ReporterMetrics())
            gc.collect()
            gc.freeze()
            gc.set_threshold(_GARBAGE)
            await agent.run(until)
    finally:
        if nvml is not None:
            await nvml.aclose()


async def look(configured: ReporterSettings, kube: KubeClient | None) -> tuple[Decided, tuple[str, ...]]:
    """Look once, and change nothing.

    Args:
        configured: the settings.
        kube: the cluster; None to look at the machine alone.

    Returns:
        What was found, and what of the cluster could not be read.
    """
    problems: list[str] = []
    name = node_name(configured)
    rules = rules_of(configured)
    host = Host(configured)
    node: dict[str, Any] | None = None
    pods: tuple[NodePod, ...] = ()
    standing = StandingObjects()
    if kube is not None:
        try:
            node = await _object(kube, NODES, name)
            standing = StandingObjects(await _object(kube, DEVICES, name), await _object(kube, TOPOLOGIES, name))
            pods = await _pods(kube, name, rules.types)
        except KubeError as error:
            problems.append(f"the API server: {error}")
    nvml = open_nvml(configured)
    try:
        cards = Cards(nvml, rules.policy, _keep_nothing, asyncio.to_thread)
        cards.start_from(host.load_health()[0])
        await cards.read()
        kubelet = PodResourcesSocket(configured.kubelet.pod_resources, patience=0)
        reading = replace(host.read(), told=await kubelet.read(pods))
        if kube is not None and configured.kubelet.configz:
            reading = replace(reading, configuration=await configz.ask(kube, name))
        root = reading.configuration.value.cgroup_root if reading.configuration.value else "/"
        uses = evidence.card_uses(await cards.processes(), host.proc)
        seen = Evidence(host.containers(pods, root), uses, by_minor(cards.view.node), by_index(cards.view.node))
        problems += host.take_over(pods, reading, dry=True).problems
    finally:
        if nvml is not None:
            await nvml.aclose()
    if cards.view.outage is not None:
        problems.append(f"NVML: {cards.view.outage.message}")
    identity = read_node(node) if node is not None else NodeIdentity(name, "")
    return decide(identity, reading, cards.view, pods, seen, rules, standing, time.time()), tuple(problems)


def _keep_nothing(_: NodeRecord) -> str:
    return ""


async def _object(kube: KubeClient, resource: Resource, name: str) -> dict[str, Any] | None:
    try:
        return await kube.get(resource.path(name))
    except NotFound:
        return None


async def _pods(kube: KubeClient, name: str, types: Any) -> tuple[NodePod, ...]:
    found = []
    async for page, _ in kube.list_pages(PODS.path(), params={"fieldSelector": f"spec.nodeName={name}"}):
        found += [read_pod(obj, types) for obj in page]
    return tuple(found)


def show(decided: Decided, problems: tuple[str, ...]) -> str:
    """All findings as text: tables, then the objects as YAML."""
    from reporter import tables  # noqa: PLC0415 the DaemonSet never needs what draws tables

    wants = plan.wants(decided.pods, decided.topology.pools, decided.topology.kubelet)
    objects = [body for body in (decided.device.body, decided.topology.body, decided.status) if body is not None]
    return (
        tables.draw(decided, wants, (*problems, *decided.problems))
        + "\n"
        + yaml.safe_dump_all(objects, sort_keys=False, explicit_start=True, width=120)
    )


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
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    await serve(configured, ended)


def _run(arguments: argparse.Namespace) -> int:
    try:
        configured = settings.load(arguments.config) if arguments.config else ReporterSettings()
    except SettingsError as error:
        sys.stderr.write(f"koordgate reporter: {error}\n")
        return 2
    if arguments.check:
        sys.stdout.write(f"{arguments.config}: all right\n")
        return 0
    if arguments.once != arguments.dry_run:
        sys.stderr.write("koordgate reporter: --once and --dry-run go together: one look, and nothing is changed\n")
        return 2
    log.start("error" if arguments.once else configured.log_level)
    try:
        if arguments.once:
            sys.stdout.write(asyncio.run(_look_and_show(configured, offline=arguments.offline)))
        else:
            asyncio.run(_main(configured))
    except KubeError as error:
        sys.stderr.write(f"koordgate reporter: {error}\n")
        return 1
    return 0


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", type=Path, metavar="FILE", help="settings (YAML); the defaults where left out")
    parser.add_argument("--check", action="store_true", help="only check the settings")
    parser.add_argument("--once", action="store_true", help="look once and end; with --dry-run")
    parser.add_argument(
        "--dry-run", action="store_true", help="print what was found, as tables and YAML; change nothing"
    )
    parser.add_argument("--offline", action="store_true", help="with --once: look at the machine alone")


COMMAND: Final = Command(
    description="Report what this node has and how healthy it is, and make its containers' cpusets what was decided.",
    examples="examples:\n"
    "  koordgate reporter --config /etc/koordgate/reporter.yaml\n"
    "  koordgate reporter --once --dry-run --offline",
    arguments=_arguments,
    run=_run,
)
