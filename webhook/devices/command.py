"""`koordgate devices`: shows the devices of a cluster's nodes, their holders and published totals; cordons, drains."""

import argparse
import asyncio
import json
import sys
from pathlib import Path
from typing import Final

import yaml

from koordgate.cli import Command
from koordgate.kube.client import KubeClient
from koordgate.kube.errors import KubeError, Unreachable
from koordgate.settings import SettingsError
from webhook import terminal
from webhook.devices.cordons import Marked, mark
from webhook.devices.drain import Drain, DrainStep, DryRun, Progress
from webhook.devices.nodestate import CommandError, Known, read_cluster
from webhook.devices.tables import (
    NOT_THERE,
    add_row,
    devices_list,
    devices_table,
    new_table,
    packed_list,
    packed_table,
    told_share,
)
from webhook.ledger.cluster import cluster_store
from webhook.settings import WebhookSettings, load, types_of
from webhook.terminal import printable
from webhook.view.classes import pools_of

_UNUSABLE: Final = 2
_PODS_LEFT: Final = 3
_VERBS: Final = ("cordon", "uncordon", "drain")


def _show_marked(marked: Marked, *, cordon: bool, dry_run: bool) -> None:
    state, device = marked.state, marked.device
    name = f"{device.type} {device.minor} {device.id}" if device else f"{marked.identity} ({NOT_THERE})"
    done = "is cordoned" if cordon else "is not cordoned"
    again = "" if marked.changed else " already" if cordon else " anyway"
    dry = " (dry run: nothing is written)" if dry_run and marked.changed else ""
    after = "it takes no new Pods" if cordon else "it takes new Pods"
    if cordon and device is None:
        done, again, after = "cannot be cordoned", "", "the node does not list it"
    if not cordon and device is not None and not device.healthy:
        after = f"it still takes no new Pods: {device.why_not}"
    terminal.show(printable(f"{state.node}: {name} {done}{again}; {after}{dry}"))
    held = state.held(marked.identity)
    if not held:
        terminal.show("no Pod holds anything of it")
        return
    table = new_table("POD", "HOLDS")
    for holding, share in held:
        add_row(table, holding.holder, told_share(share))
    terminal.show(f"Pods that hold something of it, and run on: {len(held)}", table)


def _understand(arguments: argparse.Namespace) -> tuple[str, list[str]]:
    """Split the words into a verb, "" for showing devices, and its arguments.

    Raises:
        CommandError: the words do not fit together, or do not fit the options.
    """
    words: list[str] = arguments.words
    if not words or words[0] not in _VERBS:
        if arguments.dry_run is not DryRun.NONE:
            raise CommandError("--dry-run can be used with cordon, uncordon and drain only")
        return "", words
    verb, *about = words
    if len(about) != 2:  # noqa: PLR2004 a node and a device
        raise CommandError(f"{verb} takes a node and a device: koordgate devices {verb} NODE DEVICE")
    if arguments.packed or arguments.output != "table":
        raise CommandError(f"--packed and --output cannot be used with {verb}")
    return verb, about


async def _drain(kube: KubeClient, marked: Marked, arguments: argparse.Namespace) -> int:
    """Evict the Pods that hold some of a cordoned device; returns the exit status."""
    pods = [holding for holding, _ in marked.state.held(marked.identity) if not holding.fence]
    done = await Drain(kube, arguments.dry_run, arguments.timeout, _show_step).run(pods)
    left = [one for one in done if one.step in (DrainStep.BUDGET, DrainStep.LEFT)]
    if arguments.dry_run is not DryRun.NONE:
        return _PODS_LEFT if left else 0
    stays = "it stays cordoned" if marked.device is not None else "its node does not list it"
    if not left:
        terminal.show(printable(f"{marked.state.node}: no Pod holds {marked.identity} any more; {stays}"))
        return 0
    sys.stderr.write(
        f"koordgate devices: {len(left)} of {len(done)} Pods still hold the device after {arguments.timeout:g} s; "
        f"{stays}, run the command again\n"
    )
    return _PODS_LEFT


def _show_step(one: Progress) -> None:
    why = f": {one.why}" if one.why else ""
    terminal.show(printable(f"Pod {one.pod.namespace}/{one.pod.name}: {one.step}{why}"))


async def _main(arguments: argparse.Namespace, known: Known) -> tuple[list[str], int]:
    """Run the command; returns what could not be read, a sentence each, and the exit status."""
    verb, about = _understand(arguments)
    async with KubeClient.autodetect(context=arguments.context) as kube:
        store = cluster_store(kube)
        if verb:
            cordon, dry_run = verb != "uncordon", arguments.dry_run
            node, word = about
            marked = await mark(kube, store, node, word, known, cordon=cordon, held=verb == "drain", dry_run=dry_run)
            _show_marked(marked, cordon=cordon, dry_run=dry_run is not DryRun.NONE)
            status = await _drain(kube, marked, arguments) if verb == "drain" else 0
            return list(marked.state.problems), status
        states = await read_cluster(kube, store, about, known)
    if arguments.output != "table":
        document = {"nodes": packed_list(states) if arguments.packed else devices_list(states)}
        sys.stdout.write(
            yaml.safe_dump(document, sort_keys=False, allow_unicode=True)
            if arguments.output == "yaml"
            else json.dumps(document, indent=2) + "\n"
        )
    else:
        terminal.show(packed_table(states) if arguments.packed else devices_table(states))
    return [problem for state in states for problem in state.problems], 0


def _run(arguments: argparse.Namespace) -> int:
    try:
        settings = load(arguments.config) if arguments.config else WebhookSettings()
        known = Known(types_of(settings), pools_of(settings), settings.claimed)
        problems, status = asyncio.run(_main(arguments, known))
        sys.stdout.flush()
    except (CommandError, SettingsError) as error:
        return _failed(_UNUSABLE, str(error))
    except Unreachable as error:
        return _failed(1, f"the API server of the kubeconfig does not answer: {error}")
    except KubeError as error:
        return _failed(1, str(error))
    except BrokenPipeError:
        return terminal.unread()
    for problem in problems:
        sys.stderr.write(f"koordgate devices: {printable(problem)}\n")
    return status


def _failed(status: int, message: str) -> int:
    sys.stderr.write(f"koordgate devices: {printable(message)}\n")
    return status


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = (
        "koordgate devices [options] [NODE ...]\n       koordgate devices [options] {cordon,uncordon,drain} NODE DEVICE"
    )
    parser.add_argument(
        "words",
        nargs="*",
        metavar="NODE",
        help="the nodes to show (default: all); or cordon, uncordon or drain with a node and a device. A device is "
        "named by its id (a GPU's UUID, another device's PCI address, a name in a software class), the beginning of "
        "one id, its type and minor (gpu/3), or its PCI address",
    )
    parser.add_argument(
        "--packed",
        action="store_true",
        help="show what the nodes have published: the packed total and free amounts of each class",
    )
    parser.add_argument(
        *("-o", "--output"), choices=("table", "json", "yaml"), default="table", help="the format of the output"
    )
    parser.add_argument("--context", metavar="NAME", help="the context of the kubeconfig (default: the current one)")
    parser.add_argument(
        "--dry-run",
        type=DryRun,
        choices=(DryRun.CLIENT, DryRun.SERVER),
        nargs="?",
        const=DryRun.SERVER,
        default=DryRun.NONE,
        help="with cordon, uncordon and drain: write nothing; --dry-run alone is server: the API server checks the "
        "changes and evictions",
    )
    parser.add_argument(
        "--timeout",
        type=terminal.seconds,
        default=300.0,
        metavar="SECONDS",
        help="with drain: how long to retry evictions that a PodDisruptionBudget does not allow, and to wait for Pods "
        "to end (default: 300)",
    )
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="the webhook's settings, which define device types of your own"
    )


COMMAND: Final = Command(
    description="Show the devices of a cluster's nodes, their health, how much of them is used and by which Pods.\n\n"
    "cordon    takes a device out of service. Pods that hold some of it keep running and are listed.\n"
    "uncordon  returns it to service.\n"
    "drain     cordons a device and evicts the Pods that hold some of it. PodDisruptionBudgets are respected.\n\n"
    "The exit status is 0 on success, 1 if the API server refused or did not answer, 2 for wrong arguments, and\n"
    "3 if Pods still hold the drained device. Objects that cannot be read are reported on standard error.\n\n"
    "The cluster is that of the kubeconfig ($KUBECONFIG). The user needs the rights to get and list nodes,\n"
    "devices.scheduling.koordinator.sh and nodeallocations.koordgate.io. cordon and drain also patch the devices\n"
    "(for a software class: the nodes); drain also gets pods and creates pods/eviction. What ResourceClaims hold is\n"
    "shown to users who may list resourceclaims and resourceslices of resource.k8s.io.",
    examples="examples:\n"
    "  koordgate devices\n"
    "  koordgate devices node-1 node-2 --output yaml\n"
    "  koordgate devices --packed\n"
    "  koordgate devices cordon node-1 GPU-8a56a4bc-d184-a047-2620-339f0c8ca1dc --dry-run\n"
    "  koordgate devices drain node-1 gpu/3 --timeout 600\n"
    "  koordgate devices uncordon node-1 GPU-8a56a4bc-d184-a047-2620-339f0c8ca1dc",
    arguments=_arguments,
    run=_run,
)
