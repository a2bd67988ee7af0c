"""`koordgate demo`: the whole product on this machine, over real HTTPS or on a real control plane."""

import argparse
import asyncio
import logging
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, Protocol

from koordgate.cli import Command
from koordgate.data import MissingDataError, data_folder
from webhook.offline import report
from webhook.offline.account import Account
from webhook.offline.cluster import OfflineCluster, Result, State
from webhook.offline.controlplane import FOREIGNER, PlaneError, real_cluster
from webhook.offline.objects import InputError, Objects, read

_UNUSABLE: Final = 2
_STRAY: Final[dict[str, Any]] = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "demo-bound-around", "namespace": "default"},
    "spec": {
        "nodeSelector": {"koordgate.io/demo": "nowhere"},  # so that its own scheduler does not come first
        "containers": [
            {"name": "main", "image": "registry.example.com/main:1", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
        ],
    },
}


class Stage(Protocol):
    """A cluster that the demo is played on."""

    @property
    def devices(self) -> list[dict[str, Any]]:
        """The Device objects."""

    @property
    def pods(self) -> list[dict[str, Any]]:
        """All Pods as last seen."""

    @property
    def node_names(self) -> list[str]:
        """The names of the Nodes."""

    async def load(self, objects: Iterable[Mapping[str, Any]]) -> list[Result]:
        """Put in Nodes, Device objects, and Pods that are there already."""

    async def submit(self, pod: Mapping[str, Any]) -> Result:
        """Create a Pod, and see what becomes of it."""

    async def bind(self, namespace: str, name: str, node: str, username: str | None = None) -> Result:
        """Bind a Pod, as this user."""

    async def delete(self, namespace: str, name: str) -> None:
        """Delete a Pod."""


async def play(stage: Stage, cluster: Objects, workload: Objects, told: Callable[[], str]) -> bool:
    """Play the workload on a cluster, and print what becomes of it.

    Args:
        stage: empty.
        cluster: what it is filled with.
        workload: Pods to be created, in their order.
        told: ends the summary.

    Returns:
        Whether all went as it must: no device is given twice, and nobody else could bind a Pod that asks for devices.

    Raises:
        InputError: an object cannot be used.
    """
    results = await stage.load([*cluster.cluster, *cluster.pods])
    for result in results:
        _show(stage, result)
    for pod in workload.pods:
        results.append(await stage.submit(pod))
        _show(stage, results[-1])
    foreign = await _bind_around(stage)
    refused = foreign.state is State.BIND_REFUSED
    fate = "refused" if refused else f"{foreign.state}, which must not be"
    report.show(f"A Binding of {_STRAY['metadata']['name']} by {FOREIGNER}: {fate}", f"   {foreign.message}", "")
    account = Account(stage.devices, stage.pods)
    overgiven = account.overgiven()
    audit = "; ".join(overgiven) or "no GPU is given more than once over"
    report.show(report.cards_table(account), "")
    report.show(f"demo: {report.summary(results, account)}; a foreign Binding {fate}; {audit}{told()}")
    return refused and not overgiven


def _show(stage: Stage, result: Result) -> None:
    there = [] if result.state is State.DENIED else [result.pod]
    report.show(report.block(result, Account(stage.devices, there)), "")


async def _bind_around(stage: Stage) -> Result:
    """Try what must not work: somebody who is not koord-scheduler binds a Pod that asks for devices."""
    metadata = _STRAY["metadata"]
    created = await stage.submit(_STRAY)
    if created.state is State.DENIED:
        return created
    node = next(iter(stage.node_names), "nowhere")
    result = await stage.bind(metadata["namespace"], metadata["name"], node, FOREIGNER)
    await stage.delete(metadata["namespace"], metadata["name"])
    return result


async def _here(cluster: Objects, workload: Objects) -> bool:
    """Play on the in-memory cluster, with the webhook behind HTTPS."""
    async with OfflineCluster.over_https() as (stage, way):
        report.show(f"The webhook serves on {way.url}, in this process, with a certificate of its own making.", "")
        return await play(stage, cluster, workload, lambda: f"; {way.calls} requests were answered over HTTPS")


async def _really(cluster: Objects, workload: Objects) -> bool:
    """Play on a real control plane."""
    async with real_cluster() as stage:
        report.show("etcd, kube-apiserver and two kube-schedulers run on loopback, the chart is installed.", "")
        return await play(stage, cluster, workload, lambda: "; all on a real control plane")


async def _main(arguments: argparse.Namespace) -> bool:
    examples = None if arguments.cluster and arguments.workload else data_folder("examples")
    cluster, workload = (
        read([given or str(Path(str(examples), name))])
        for given, name in ((arguments.cluster, "cluster.yaml"), (arguments.workload, "workload.yaml"))
    )
    return await (_really if arguments.control_plane else _here)(cluster, workload)


def _run(arguments: argparse.Namespace) -> int:
    logging.basicConfig(level=logging.ERROR)
    try:
        right = asyncio.run(_main(arguments))
        sys.stdout.flush()
    except (InputError, MissingDataError) as error:
        sys.stderr.write(f"koordgate demo: {error}\n")
        return _UNUSABLE
    except PlaneError as error:
        sys.stderr.write(f"koordgate demo: {error}\n")
        return 1
    except BrokenPipeError:
        return report.unread()
    return 0 if right else 1


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--cluster", metavar="FILE", help="Nodes and Device objects (default: the example cluster)")
    parser.add_argument("--workload", metavar="FILE", help="Pods to be created (default: the example workload)")
    parser.add_argument(
        "--control-plane",
        action="store_true",
        help="on a real etcd, kube-apiserver and kube-scheduler on loopback, with the chart installed; they are built "
        "with Go where they are not there, which takes minutes the first time",
    )


COMMAND: Final = Command(
    description="Show the whole product on this machine, with nothing but Python: the real HTTPS webhook is started\n"
    "on the in-memory store, and Pods are created, scheduled and bound as the API server and kube-scheduler do it.\n"
    "Shown are what each Pod asked and what that became, which GPUs it got or why it got none, and who holds what.\n"
    "The exit status is 1 if a GPU was given twice, or somebody else could bind a Pod that asks for one.",
    examples="examples:\n  koordgate demo\n  koordgate demo --workload my-pods.yaml\n  koordgate demo --control-plane",
    arguments=_arguments,
    run=_run,
)
