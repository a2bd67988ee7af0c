"""`koordgate devices`: shows the devices of a cluster's nodes, who holds them and what is published; sets cordons."""

import argparse
import asyncio
import sys
from pathlib import Path
from typing import Final

import yaml

from koordgate.cli import Command
from koordgate.kube.client import KubeClient
from koordgate.kube.errors import KubeError, Unreachable
from koordgate.settings import SettingsError, device_types
from webhook import terminal
from webhook.devices.cordons import Marked, mark
from webhook.devices.nodestate import CommandError, Known, read_cluster
from webhook.devices.tables import (
    NOT_THERE,
    add_row,
    devices_list,
    devices_table,
    new_table,
    packed_list,
    packed_table,
    printable,
    told_share,
)
from webhook.ledger.cluster import cluster_store
from webhook.settings import WebhookSettings, load
from webhook.view.classes import pools_of

_UNUSABLE: Final = 2
_VERBS: Final = ("cordon", "uncordon")


def _show_marked(marked: Marked, *, cordon: bool, dry_run: bool) -> None:
    state, device = marked.state, marked.device
    name = f"{device.type} {device.minor} {device.id}" if device else f"{marked.identity} ({NOT_THERE})"
    done = "is cordoned" if cordon else "is not cordoned"
    again = "" if marked.changed else " already" if cordon else " anyway"
    dry = " (dry run: nothing is written)" if dry_run and marked.changed else ""
    after = "nothing new lands on it" if cordon else "Pods may land on it"
    if not cordon and device is not None and not device.healthy:
        after = f"nothing new lands on it still: {device.why_not}"
    terminal.show(printable(f"{state.node}: {name} {done}{again}; {after}{dry}"))
    held = state.held(marked.identity)
    if not held:
        terminal.show("no Pod holds anything of it")
        return
    table = new_table("POD", "HOLDS")
    for holding, share in held:
        add_row(table, f"{holding.namespace}/{holding.name}", told_share(share))
    terminal.show(f"Pods that hold something of it, and run on: {len(held)}", table)


def _understand(arguments: argparse.Namespace) -> tuple[str, list[str]]:
    """Split the words into a verb, "" for showing devices, and its arguments.

    Raises:
        CommandError: the words do not fit together, or do not fit the options.
    """
    words: list[str] = arguments.words
    if not words or words[0] not in _VERBS:
        if arguments.dry_run:
            raise CommandError("--dry-run can be used with cordon and uncordon only")
        return "", words
    verb, *about = words
    if len(about) != 2:  # noqa: PLR2004 a node and a device
        raise CommandError(f"{verb} takes a node and a device's id, as in: koordgate devices {verb} NODE ID")
    if arguments.packed or arguments.output != "table":
        raise CommandError(f"--packed and --output cannot be used with {verb}")
    return verb, about


async def _main(arguments: argparse.Namespace, known: Known) -> list[str]:
    """Run the command; returns what could not be read, a sentence each."""
    verb, about = _understand(arguments)
    async with KubeClient.autodetect() as kube:
        store = cluster_store(kube)
        if verb:
            cordon, dry_run = verb == "cordon", arguments.dry_run
            node, identity = about
            marked = await mark(kube, store, node, identity, known, cordon=cordon, dry_run=dry_run)
            _show_marked(marked, cordon=cordon, dry_run=dry_run)
            return list(marked.state.problems)
        states = await read_cluster(kube, store, about, known)
    if arguments.output == "yaml":
        listed = packed_list(states) if arguments.packed else devices_list(states)
        sys.stdout.write(yaml.safe_dump({"nodes": listed}, sort_keys=False, allow_unicode=True))
    else:
        terminal.show(packed_table(states) if arguments.packed else devices_table(states))
    return [problem for state in states for problem in state.problems]


def _run(arguments: argparse.Namespace) -> int:
    try:
        settings = load(arguments.config) if arguments.config else WebhookSettings()
        known = Known(device_types(settings.devices.types), pools_of(settings))
        problems = asyncio.run(_main(arguments, known))
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
    return 0


def _failed(status: int, message: str) -> int:
    sys.stderr.write(f"koordgate devices: {printable(message)}\n")
    return status


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = (
        "koordgate devices [options] [NODE ...]\n       koordgate devices [options] {cordon,uncordon} NODE ID"
    )
    parser.add_argument(
        "words",
        nargs="*",
        metavar="NODE",
        help="the nodes to show, all by default; or cordon or uncordon, a node, and the id of a device (a GPU's UUID, "
        "another device's PCI address, a name in a software class)",
    )
    parser.add_argument(
        "--packed",
        action="store_true",
        help="show what the nodes have published: the packed total and free amounts of each class",
    )
    parser.add_argument("--output", choices=("table", "yaml"), default="table", help="the format of the output")
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="with cordon and uncordon: let the API server check the change, and write nothing",
    )
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="the webhook's settings, which define device types of your own"
    )


COMMAND: Final = Command(
    description="Show the devices of a cluster's nodes, their health, how much of them is used and by which Pods. Or\n"
    "take one out of service with cordon: Pods that hold some of it keep running and are listed, and no other Pod\n"
    "gets any of it until uncordon. The cluster is that of the kubeconfig ($KUBECONFIG). This needs the rights to\n"
    "get and list nodes, devices.scheduling.koordinator.sh and nodeallocations.koordgate.io; cordons need the right\n"
    "to patch the devices (for a software class: the nodes).\n"
    "Objects that cannot be read are reported on standard error.",
    examples="examples:\n"
    "  koordgate devices\n"
    "  koordgate devices node-1 node-2 --output yaml\n"
    "  koordgate devices --packed\n"
    "  koordgate devices cordon node-1 GPU-8a56a4bc-d184-a047-2620-339f0c8ca1dc --dry-run\n"
    "  koordgate devices uncordon node-1 GPU-8a56a4bc-d184-a047-2620-339f0c8ca1dc",
    arguments=_arguments,
    run=_run,
)
