"""`koordgate packing`: what of the free devices Pods of a size can use, why not the rest, and what would help."""

import argparse
import asyncio
from typing import Final

from allocator.packing.stranded import stranded
from console import terminal
from console.cluster import read_files, read_live
from console.devices.nodes import CommandError
from console.notes import tell_notes
from console.packing import report, wanted
from console.packing.state import PackingState, read_state
from console.reading import add_cluster, connect
from console.simulator.documents import InputError
from console.simulator.objects import add_files
from koordgate.cli import Command
from webhook import settings

_NO_ROOM: Final = 3
_ENDED: Final = (
    "the search ended before everything was tried: on {nodes} of the nodes more Pods of a size may fit, and what they "
    "would take counts as remainder; name a model (--model)"
)


async def _read(arguments: argparse.Namespace) -> PackingState:
    configured = settings.load(arguments.config) if arguments.config else None
    if arguments.files:
        return read_state(read_files(arguments.files, configured), configured)
    async with connect(arguments) as kube:
        return read_state(await read_live(kube, arguments.installed_in, configured), configured)


async def _packing(arguments: argparse.Namespace) -> int:
    state = await _read(arguments)
    sizes = wanted.table(state, arguments)
    may = sizes[0].pod.may
    rooms = [room for room in state.rooms if may is None or room.node.name in may]
    if arguments.pod:
        asked = await wanted.of_file(state, arguments.pod)
    elif arguments.size is not None:
        asked = wanted.sized(state, arguments, arguments.size)
    else:
        asked = wanted.largest(state, arguments)
    if asked.word and asked.word not in {known.word for known in sizes}:
        sizes.append(asked)
    terminal.doing("filling the nodes")
    found = stranded(rooms, wanted.kind_of(state, arguments), [one.pod for one in sizes], state.mix)
    if found.ended:
        state.notes.append(_ENDED.format(nodes=found.ended))
    terminal.doing("looking where one Pod more fits")
    answer = wanted.answered(state, asked)
    tell_notes(arguments.called, state.notes, more="-o json has all")
    if arguments.output == "table":
        terminal.show(*report.report_parts(found, sizes, answer))
    else:
        terminal.write_data(report.report_data(state, found, sizes, answer), arguments.output)
    return _NO_ROOM if (arguments.size is not None or arguments.pod) and not answer.fitting else 0


def _run(arguments: argparse.Namespace) -> int:
    def run() -> int:
        return asyncio.run(_packing(arguments))

    return terminal.guarded(arguments.called, run, CommandError, InputError, hint=terminal.OR_FILES)


def _arguments(parser: argparse.ArgumentParser) -> None:
    add_files(parser, required=False)
    wanted.add_wanted(parser)
    terminal.add_output(parser)
    add_cluster(parser)


COMMAND: Final = Command(
    description="Say how much of a cluster's devices is free, how much of it Pods of a size can use, and why not more: "
    "no CPU, no memory, too little left of a card or of a node, or out of service. Sizes are 10, 25 and 50 % of a card "
    "and 1, 2, 4 and 8 cards; the last row is for the cluster's typical requests.\n\n"
    "Then it says where one Pod more fits: of the size of --for, that of --pod, or as many whole cards as a node has "
    "(8, 4, 2 or 1). If it fits nowhere, it names the nearest node and what is missing there, and the fewest Pods "
    "without which it would fit. Nothing is written.\n\n"
    "The cluster is that of the kubeconfig, or of -f: a snapshot, or manifests of Nodes, Devices and Pods. The exit "
    "status is 3 if what --for or --pod names fits nowhere now.",
    examples="examples:\n"
    "  koordgate packing\n"
    "  koordgate packing --for 8 --model A100-SXM4-80GB\n"
    "  koordgate packing --for 2:50% --cpu 16 --memory 64Gi -f cluster.json.gz\n"
    "  koordgate packing --pod train.yaml -o json | jq .wanted",
    arguments=_arguments,
    run=_run,
)
