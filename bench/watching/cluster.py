"""The cluster that is watched: a real control plane, replicas, scheduler, reporters, and Prometheus that scrapes them.

Prometheus is configured as its operator would be by the chart's ServiceMonitor and PodMonitors, with the chart's rules.
"""

import asyncio
import base64
import contextlib
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import nvml_standin
import yaml

from console.simulator.trace import TraceNode
from console.simulator.traceobjects import node_objects
from localplane import chart
from localplane.admin import AdminClient, JsonObject
from localplane.binaries import Binaries
from localplane.koord import start_koord_scheduler
from localplane.plane import ControlPlane
from localplane.process import Process, free_port
from localplane.replicas import Replicas, this_koordgate
from localplane.waiting import until
from watching.cards import HOST, ReportedNode

SCRAPE_S: Final = 5
_DEVICES: Final = "/apis/scheduling.koordinator.sh/v1alpha1/devices"
_VALUES: Final = {"alerts": {"enabled": True}}
# As in openb, whose authors keep the names of two models to themselves.
_TRACED: Final = (("G2", 3, 8, 96_000, 393_216), ("V100M32", 2, 4, 48_000, 376_832), ("T4", 4, 2, 104_000, 524_288))


@dataclass(frozen=True)
class Watched:
    """What runs.

    Attributes:
        admin: a client with all rights.
        replicas: of the webhook.
        nodes: those with reporters.
        config: of a Prometheus that scrapes all of it.
    """

    admin: AdminClient
    replicas: Replicas
    nodes: tuple[ReportedNode, ...]
    config: JsonObject


@contextlib.asynccontextmanager
async def watched_cluster(binaries: Binaries, folder: Path, reported: int = 3) -> AsyncIterator[Watched]:
    """Run all of it.

    Args:
        binaries: the control plane's programs and helm.
        folder: for data and logs.
        reported: nodes of eight cards that have a reporter; others have a Device object alone.
    """
    objects = chart.render(binaries, _VALUES)
    installed = [one for one in objects if one["kind"] != "PrometheusRule"]
    rules = chart.find(objects, "PrometheusRule", "koordgate")["spec"]
    library = folder / "nvml"
    library.mkdir()
    nvml_standin.build(library)
    async with (
        ControlPlane(
            binaries, workdir=folder / "plane", controller_manager=True, controllers="resourcequota-controller"
        ) as plane,
        plane.admin() as admin,
        contextlib.AsyncExitStack() as stack,
    ):
        await chart.install(plane, installed)
        await _add_traced(plane, admin)
        replicas = await stack.enter_async_context(
            Replicas(
                chart.settings_text(installed),
                kubeconfig=await plane.service_account_kubeconfig(chart.NAMESPACE, chart.RELEASE),
                workdir=folder / "replicas",
                listen=await plane.service_address(chart.NAMESPACE, chart.RELEASE),
            )
        )
        await start_koord_scheduler(plane, installed, replicas.extender)
        lease = await _keeper(plane, installed, folder, stack)
        nodes = []
        for number in range(reported):
            name = f"a100-{number}"
            (folder / name).mkdir()
            node = ReportedNode(name, number, library, folder / name, stack)
            await plane.add_node(name, {"cpu": "128", "memory": "1Ti", "pods": "250"}, labels={HOST: name})
            process = await node.start(plane)
            stack.push_async_callback(process.stop)
            nodes.append(node)

        async def told() -> bool:
            return {node.name for node in nodes} <= {one["metadata"]["name"] for one in await admin.items(_DEVICES)}

        await until(told, "the reporters have told of their nodes", deadline_s=120)
        authority = folder / "ca.crt"
        secret = await admin.get(f"/api/v1/namespaces/{chart.NAMESPACE}/secrets/koordgate-tls")
        authority.write_bytes(base64.b64decode(secret["data"]["ca.crt"]))
        (folder / "rules.yml").write_text(yaml.safe_dump(rules))
        config = _config(replicas, nodes, lease, authority, folder / "rules.yml")
        yield Watched(admin, replicas, tuple(nodes), config)


async def _add_traced(plane: ControlPlane, admin: AdminClient) -> None:
    for model, count, gpus, cpu, memory in _TRACED:
        for number in range(count):
            name = f"{model.lower()}-{number}"
            node, device = node_objects(TraceNode(name, cpu, memory, gpus, model))
            await admin.apply(device)
            has = dict(node["status"]["allocatable"])
            resources = [one["resources"] for one in device["spec"]["devices"]]
            for resource in ("gpu-core", "gpu-memory-ratio"):
                has[f"kubernetes.io/{resource}"] = str(100 * gpus)
            each = int(resources[0]["kubernetes.io/gpu-memory"].removesuffix("Mi"))
            has["kubernetes.io/gpu-memory"] = f"{each * gpus}Mi"
            await plane.add_node(name, has, labels=node["metadata"]["labels"])


async def _keeper(
    plane: ControlPlane, objects: list[JsonObject], folder: Path, stack: contextlib.AsyncExitStack
) -> int:
    """Start the keeper of the health lease; returns the port of its metrics."""
    port = free_port()
    settings = yaml.safe_load(chart.settings_text(objects))
    settings["healthLease"] |= {"host": "127.0.0.1", "port": port}
    path = folder / "lease.yaml"
    path.write_text(yaml.safe_dump(settings))
    kubeconfig = await plane.service_account_kubeconfig(chart.NAMESPACE, "koordgate-lease")
    argv = (*this_koordgate(), "lease", "--config", str(path))
    process = Process("lease", argv, folder / "lease.log", env={**os.environ, "KUBECONFIG": str(kubeconfig)})
    process.start()
    stack.push_async_callback(process.stop)
    return port


def _config(replicas: Replicas, nodes: list[ReportedNode], lease: int, authority: Path, rules: Path) -> dict[str, Any]:
    """prometheus.yml, with the labels that the operator's service discovery would give."""
    space = chart.NAMESPACE

    def target(port: str, pod: str, **labels: str) -> JsonObject:
        return {"targets": [f"127.0.0.1:{port}"], "labels": {"namespace": space, "pod": pod, **labels}}

    ports = [url.rpartition(":")[2] for url in replicas.urls]
    return {
        "global": {"scrape_interval": f"{SCRAPE_S}s", "evaluation_interval": f"{SCRAPE_S}s", "scrape_timeout": "4s"},
        "rule_files": [str(rules)],
        "scrape_configs": [
            {
                "job_name": "koordgate",
                "honor_labels": True,
                "scheme": "https",
                "tls_config": {"ca_file": str(authority), "server_name": f"koordgate.{space}.svc"},
                "static_configs": [
                    target(port, f"koordgate-{number}", service="koordgate") for number, port in enumerate(ports)
                ],
            },
            {
                "job_name": f"{space}/koordgate-reporter",
                "honor_labels": True,
                "static_configs": [
                    target(str(node.port), f"koordgate-reporter-{node.name}", node=node.name) for node in nodes
                ],
            },
            {
                "job_name": f"{space}/koordgate-lease",
                "static_configs": [target(str(lease), "koordgate-lease-0")],
            },
        ],
    }


async def troubles(watched: Watched, seconds: float) -> None:
    """A card falls off the bus; later a replica crashes and is started again."""
    await asyncio.sleep(seconds * 0.35)
    watched.nodes[-1].fail(5)
    await asyncio.sleep(seconds * 0.25)
    watched.replicas.kill(1)
    await asyncio.sleep(seconds * 0.1)
    await watched.replicas.start(1)
