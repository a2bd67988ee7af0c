"""`koordgate cordon`, `uncordon` and `drain`: one device of the whole cluster, by a word that only it has."""

import argparse
from typing import Final

from console.devices.lookup import HOW, find_device, place_of
from console.devices.marking import add_dry_run, add_timeout, carry_out_verb
from console.devices.nodestate import Known, read_cluster
from console.devices.session import CommandEnd, add_cluster, carry_out
from koordgate.cli import Command
from koordgate.kube.client import KubeClient
from webhook.ledger.cluster import cluster_store


def _command(verb: str, what: str, examples: str) -> Command:
    def run(arguments: argparse.Namespace) -> int:
        async def work(kube: KubeClient, known: Known) -> CommandEnd:
            store = cluster_store(kube)
            node = place_of(arguments.device)
            states = await read_cluster(kube, store, [node] if node else [], known)
            found = find_device(states, arguments.device)
            return await carry_out_verb(verb, (found.node, found.id), kube, store, known, arguments)

        return carry_out(arguments, work)

    def arguments_of(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("device", metavar="DEVICE", help=HOW)
        add_dry_run(parser)
        if verb == "drain":
            add_timeout(parser)
        add_cluster(parser)

    drains = " drain also gets pods and creates pods/eviction." if verb == "drain" else ""
    return Command(
        description=f"{what}\n\nIf DEVICE names several devices, they are listed and nothing is done. The exit "
        "status is 0 on success,\n1 if the API server refused or did not answer, 2 if DEVICE does not name exactly one "
        f"device{', and 3 if Pods still hold it' if verb == 'drain' else ''}.\n\n"
        "The user needs the rights to get and list nodes, devices.scheduling.koordinator.sh and\n"
        f"nodeallocations.koordgate.io, and to patch the devices (for a software class: the nodes).{drains}\n"
        "The command reads the installation's configmap, and lists pods if that has adopt.peers.",
        examples=f"examples:\n{examples}",
        arguments=arguments_of,
        run=run,
    )


CORDON: Final = _command(
    "cordon",
    "Take a device out of service. Pods that hold some of it keep running and are listed.",
    "  koordgate cordon GPU-8a56a4bc\n  koordgate cordon gpu-node-1/3 --dry-run\n"
    "  koordgate cordon gpu-node-1/0000:3b:00.0",
)
UNCORDON: Final = _command(
    "uncordon",
    "Return a device to service.",
    "  koordgate uncordon GPU-8a56a4bc\n  koordgate uncordon gpu-node-1/3",
)
DRAIN: Final = _command(
    "drain",
    "Cordon a device, and evict the Pods that hold some of it. PodDisruptionBudgets are respected.",
    "  koordgate drain GPU-8a56a4bc --dry-run\n  koordgate drain gpu-node-1/rdma/0 --timeout 600",
)
