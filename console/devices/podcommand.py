"""`koordgate pod`: what Pods hold, and of which node."""

import argparse
from typing import Final

from console import terminal
from console.devices.nodestate import CommandError, Known, NodeState, read_cluster
from console.devices.others import is_claim
from console.devices.pods import about_pod, counting, holders, pods_document, pods_table
from console.devices.session import CommandEnd, add_cluster, add_listing, carry_out
from koordgate.cli import Command
from koordgate.kube.client import KubeClient
from koordgate.kube.errors import NotFound
from koordgate.kube.resource import PODS
from webhook.ledger.cluster import cluster_store


async def _one(kube: KubeClient, namespace: str, name: str, known: Known, output: str) -> CommandEnd:
    """Show one Pod."""
    try:
        path = PODS.path(name, namespace)
    except ValueError as error:
        raise CommandError(f"no Pod can have that name: {error}") from error
    try:
        pod = await kube.get(path)
    except NotFound:
        pod = None
    node = str((pod or {}).get("spec", {}).get("nodeName") or "")
    try:
        states = await read_cluster(kube, cluster_store(kube), [node] if node else [], known)
    except CommandError:
        states = []  # its node has no devices, and the ledger nothing about it
    uid = pod["metadata"].get("uid") if pod is not None else None
    found = [
        one
        for one in holders(states, namespace)
        if one.holding.name == name and not is_claim(one.holding) and uid in {None, one.holding.uid}
    ]
    if pod is None and not found:
        raise CommandError(f"there is no Pod {namespace}/{name}; name its namespace with -n")
    if output in {"json", "yaml"}:
        terminal.write_data(pods_document(found), output)
    else:
        terminal.show(*about_pod(f"{namespace}/{name}", pod, found))
    return CommandEnd(_problems(states))


def _problems(states: list[NodeState]) -> list[str]:
    return [problem for state in states for problem in state.problems]


def _run(arguments: argparse.Namespace) -> int:
    async def work(kube: KubeClient, known: Known) -> CommandEnd:
        stated, _, name = (arguments.pod or "").rpartition("/")
        namespace = stated or arguments.namespace or kube.namespace
        if name:
            return await _one(kube, namespace, name, known, arguments.output)
        states = await read_cluster(kube, cluster_store(kube), [], known)
        found = counting(holders(states, "" if arguments.all_namespaces else namespace))
        if arguments.output in {"json", "yaml"}:
            terminal.write_data(pods_document(found), arguments.output)
        elif found:
            terminal.show(pods_table(found, wide=arguments.output == "wide"))
        else:
            where = "in any namespace" if arguments.all_namespaces else f"of namespace {namespace}"
            terminal.show(f"no Pod {where} holds anything")
        return CommandEnd(_problems(states))

    return carry_out(arguments, work, lambda: _check(arguments))


def _check(arguments: argparse.Namespace) -> None:
    name = arguments.pod or ""
    if name and arguments.all_namespaces:
        raise CommandError("-A lists Pods: leave out the name, or state its namespace with -n")
    stated = name.rpartition("/")[0]
    if stated and arguments.namespace not in {None, stated}:
        raise CommandError(f"{name} is of namespace {stated}, and -n says {arguments.namespace}: state one of them")


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "pod", nargs="?", metavar="POD", help="the Pod's name, or namespace/name (default: all that hold something)"
    )
    add_listing(
        parser,
        namespace="the namespace (default: that of the kubeconfig's context)",
        everywhere="Pods of all namespaces",
        wide="the ids of devices",
    )
    add_cluster(parser)


COMMAND: Final = Command(
    description="Show what Pods hold: devices, their memory, and CPUs, by koordgate's ledger, and by what\n"
    "other products state of their Pods where adopt.peers counts these.\n\n"
    "With a name, the Pod and each device that it holds with its containers; without, a line for each Pod that holds\n"
    "something. `koordgate explain` says why a Pod waits.\n\n"
    "The exit status is 0 on success, 1 if the API server refused or did not answer, and 2 for wrong arguments or an\n"
    "unknown Pod.\n\n"
    "The user needs the rights to get and list nodes, devices.scheduling.koordinator.sh and\n"
    "nodeallocations.koordgate.io, with a name to get pods, and to get the configmap with the settings.\n"
    "If adopt.peers is set, also to list pods.",
    examples="examples:\n"
    "  koordgate pod\n"
    "  koordgate pod -A\n"
    "  koordgate pod train-7 -n team-a\n"
    "  koordgate pod train-7 -n team-a -o json | jq '.pods[].devices[].id'",
    arguments=_arguments,
    run=_run,
)
