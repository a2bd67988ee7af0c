"""`koordgate packing`: what of the free devices Pods of a size can use, why not the rest, and what would help."""

import argparse
import asyncio
from typing import Final

from allocator.packing.stranded import Stranded, stranded
from console import terminal
from console.devices.session import add_cluster
from console.packing import data, report, wanted
from console.packing.planning import RoomPlan, first_with_moves, planned
from console.packing.running import NO_ROOM, guarded, show, state_of, tell
from console.packing.state import PackingState
from console.packing.wanted import WantedRoom
from console.simulator.objects import add_files
from koordgate.cli import Command
from koordgate.kube.client import KubeClient

_MOST_MOVES: Final = 64  # that are looked for; `koordgate defrag` has its own bound
_ENDED: Final = (
    "the search ended before everything was tried: on {nodes} of the nodes more Pods of a size may fit, and what they "
    "would take counts as remainder; name a model (--model)"
)


async def _read(arguments: argparse.Namespace) -> PackingState:
    if arguments.files:
        return await state_of(arguments)
    async with KubeClient.autodetect(context=arguments.context) as kube:
        return await state_of(arguments, kube)


async def _report(
    arguments: argparse.Namespace,
) -> tuple[PackingState, Stranded, list[WantedRoom], list[RoomPlan]]:
    state = await _read(arguments)
    sizes = wanted.table(state, arguments)
    may = sizes[0].guest.may
    rooms = [room for room in state.rooms if may is None or room.node.name in may]
    asked = [wanted.sized(state, arguments, arguments.size)] if arguments.size is not None else []
    if arguments.pod:
        asked = [await wanted.of_file(state, arguments.pod)]
    sizes += [one for one in asked if one.word and one.word not in {known.word for known in sizes}]
    found = stranded(rooms, wanted.kind_of(state, arguments), [one.guest for one in sizes], state.mix)
    if found.ended:
        state.notes.append(_ENDED.format(nodes=found.ended))
    if asked:
        return state, found, sizes, [planned(state, one, 1, _MOST_MOVES) for one in asked]
    first = first_with_moves(state, wanted.largest_first(state, arguments), 1, _MOST_MOVES)
    return state, found, sizes, [first] if first is not None else []


def _run(arguments: argparse.Namespace) -> int:
    return guarded("packing", lambda: _show(arguments))


def _show(arguments: argparse.Namespace) -> int:
    state, found, sizes, plans = asyncio.run(_report(arguments))
    tell("packing", state)
    if arguments.output == "text":
        show(*report.report_parts(state, found, sizes, plans))
    else:
        terminal.write_data(data.report_data(state, found, sizes, plans), arguments.output)
    asked = arguments.size is not None or arguments.pod
    return NO_ROOM if asked and not any(one.plan.fitting for one in plans) else 0


def _arguments(parser: argparse.ArgumentParser) -> None:
    add_files(parser, required=False)
    wanted.add_wanted(parser)
    parser.add_argument(
        *("-o", "--output"), choices=("text", "json", "yaml"), default="text", help="the format of the output"
    )
    add_cluster(parser)


COMMAND: Final = Command(
    description="Say how much of a cluster's devices is free, how much of it Pods of a size can use, and why not\n"
    "more: no CPU, no memory, too little left of a card or of a node, or out of service. Sizes are 10, 25 and 50 % of\n"
    "a card and 1, 2, 4 and 8 cards; the last row is for the cluster's typical requests. Then it says which Pods\n"
    "would have to move so that one more of a size fits: with --for or --pod of that size, else of the largest for\n"
    "which moves help. koordgate defrag makes these moves. Nothing is written.\n\n"
    "The cluster is that of the kubeconfig, or of -f: a snapshot, or manifests of Nodes, Devices and Pods.\n\n"
    "The exit status is 0, but 3 if what --for or --pod names fits nowhere now, 1 if the API server refused or did\n"
    "not answer, and 2 for wrong arguments or files.",
    examples="examples:\n"
    "  koordgate packing\n"
    "  koordgate packing --for 8 --model A100-SXM4-80GB\n"
    "  koordgate packing --for 2:50% --cpu 16 --memory 64Gi -f cluster.json.gz\n"
    "  koordgate packing --pod train.yaml -o json | jq .plans",
    arguments=_arguments,
    run=_run,
)
