"""`koordgate defrag`: plans which Pods to evict so that larger ones find room, and does it on demand."""

import argparse
import asyncio
import sys
from collections.abc import Sequence
from typing import Any, Final

from console import terminal
from console.devices.nodestate import CommandError
from console.devices.session import add_cluster
from console.packing import data, report, wanted
from console.packing.apply import MoveOutcome, Mover, MoveResult
from console.packing.planning import RoomPlan, first_with_moves, planned
from console.packing.running import NO_ROOM, guarded, say, show, state_of, tell
from console.packing.state import PackingState
from console.simulator.objects import add_files
from console.terminal import printable
from koordgate.cli import Command
from koordgate.kube.client import KubeClient

_INTERRUPTED: Final = 130
_MOST_ROOMS: Final = 100
_MOST_MOVES: Final = 1000
_WITH_DEFAULT: Final = 10


async def _plan(state: PackingState, arguments: argparse.Namespace) -> RoomPlan:
    rooms, most = arguments.count, arguments.most
    if arguments.pod:
        return planned(state, await wanted.of_file(state, arguments.pod), rooms, most)
    if arguments.size is not None:
        return planned(state, wanted.sized(state, arguments, arguments.size), rooms, most)
    found = first_with_moves(state, wanted.largest_first(state, arguments), rooms, most)
    if found is None:
        raise CommandError(f"no node has a device of type {arguments.type}")
    return found


async def _defrag(arguments: argparse.Namespace) -> int:
    if arguments.files:
        state = await state_of(arguments)
        found = await _plan(state, arguments)
        tell("defrag", state)
        return _told(arguments, state, found)
    async with KubeClient.autodetect(context=arguments.context) as kube:
        state = await state_of(arguments, kube)
        found = await _plan(state, arguments)
        tell("defrag", state)
        if not arguments.apply or not found.plan.moves:
            return _told(arguments, state, found)
        return await _apply(kube, arguments, state, found)


def _told(arguments: argparse.Namespace, state: PackingState, found: RoomPlan) -> int:
    """Show a plan; returns the exit status."""
    if arguments.output == "text":
        show(*report.plan_parts(state, found, applying=False))
    else:
        terminal.write_data({**data.plan_data(state, found), **data.about(state)}, arguments.output)
    return 0 if found.plan.moves else NO_ROOM


async def _apply(kube: KubeClient, arguments: argparse.Namespace, state: PackingState, found: RoomPlan) -> int:
    """Make the moves, once they are confirmed; returns the exit status."""
    text = arguments.output == "text"
    if text:
        show(*report.plan_parts(state, found, applying=True))
        sys.stdout.flush()
    moves = found.plan.moves
    if not arguments.yes and not await asyncio.to_thread(_confirmed, len(moves)):
        say("defrag", "nothing was evicted")
        return 0
    mover = Mover(
        kube, state.owners, state.types, arguments.timeout, _step if text else lambda line: say("defrag", line)
    )
    made = await mover.run(moves)
    done = sum(one.outcome is MoveOutcome.MOVED for one in made)
    if text:
        show(_outcome(made, len(moves)))
    else:
        applied = [data.made_data(one) for one in made]
        terminal.write_data({**data.plan_data(state, found), **data.about(state), "made": applied}, arguments.output)
    return 0 if done == len(moves) else NO_ROOM


def _confirmed(count: int) -> bool:
    pods = "this Pod" if count == 1 else f"these {count} Pods, one after another"
    sys.stderr.write(f"Evict {pods}? [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in {"y", "yes"}


def _step(line: str) -> None:
    show(printable(line))
    sys.stdout.flush()


def _outcome(made: Sequence[MoveResult], count: int) -> str:
    done = sum(one.outcome is MoveOutcome.MOVED for one in made)
    if done == count:
        return f"All {count} moves are made." if count > 1 else "The move is made."
    return (
        f"Stopped: {done} of {count} moves are made, and nothing else was evicted. The cluster is not as it was when "
        "the plan was made: run koordgate defrag again for a new one."
    )


def _run(arguments: argparse.Namespace) -> int:
    return guarded("defrag", lambda: _checked(arguments))


def _checked(arguments: argparse.Namespace) -> int:
    """Run the command if its options fit together.

    Raises:
        CommandError: they do not.
    """
    if arguments.apply and arguments.files:
        raise CommandError("--apply evicts Pods of a cluster, not of files: leave -f out")
    if arguments.apply and not arguments.yes and (not sys.stdin.isatty() or arguments.output != "text"):
        raise CommandError("--apply asks before it evicts Pods: run it on a terminal, or add --yes")
    if arguments.yes and not arguments.apply:
        raise CommandError("--yes confirms --apply: add that, or leave --yes out")
    try:
        return asyncio.run(_defrag(arguments))
    except KeyboardInterrupt:
        say("defrag", "interrupted; what was evicted before stays evicted, and nothing else will be")
        return _INTERRUPTED


def _number(most: int) -> Any:
    def read(text: str) -> int:
        if text.isascii() and text.isdigit() and len(text) < 10 and 0 < int(text) <= most:  # noqa: PLR2004 digits
            return int(text)
        raise argparse.ArgumentTypeError(f"{text!r}: write a number from 1 to {most}")

    return read


def _arguments(parser: argparse.ArgumentParser) -> None:
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--plan", action="store_true", help="only show the moves (the default)")
    what.add_argument("--apply", action="store_true", help="make the moves, after asking")
    parser.add_argument("--yes", action="store_true", help="with --apply: do not ask")
    add_files(parser, required=False)
    wanted.add_wanted(parser)
    parser.add_argument(
        "--count",
        type=_number(_MOST_ROOMS),
        default=1,
        metavar="NUMBER",
        help="how many more Pods of the size to make room for (default: 1)",
    )
    parser.add_argument(
        "--most",
        type=_number(_MOST_MOVES),
        default=_WITH_DEFAULT,
        metavar="NUMBER",
        help=f"how many Pods to move at most (default: {_WITH_DEFAULT})",
    )
    parser.add_argument(
        "--timeout",
        type=terminal.seconds,
        default=300.0,
        metavar="SECONDS",
        help="with --apply: how long to retry an eviction that a PodDisruptionBudget does not allow and to wait for "
        "the Pod to end, and then for the next one to be bound (default: 300)",
    )
    parser.add_argument(
        *("-o", "--output"), choices=("text", "json", "yaml"), default="text", help="the format of the output"
    )
    add_cluster(parser)


COMMAND: Final = Command(
    description="Plan which Pods to evict, one after another, so that a larger one finds room. Its controller\n"
    "creates each one again, and koordgate places the new Pod: the plan says where. A Pod is moved only if that is\n"
    "certain, if it brings the room nearer, and if no other node loses room. These Pods are not moved: Pods without a\n"
    "controller; Pods of DaemonSets, Jobs (unless --jobs is given), gangs, exempt namespaces and critical priorities;\n"
    "Pods with other conditions than koordgate's; Pods whose annotations forbid eviction, or whose\n"
    "PodDisruptionBudget allows none now.\n\n"
    "Without --apply nothing is changed. With --apply the Pods are evicted through the eviction API, which enforces\n"
    "PodDisruptionBudgets. It waits until the next Pod is bound, and stops at the first that is not where it was\n"
    "planned: run it again for a new plan.\n\n"
    "The exit status is 0 if there are moves, and all were made with --apply; 3 if none help, or it stopped; 1 if the\n"
    "API server refused or did not answer; 2 for wrong arguments or files.\n\n"
    "The cluster is that of the kubeconfig ($KUBECONFIG), or of -f. The user needs the rights of koordgate snapshot;\n"
    "with --apply also to create pods/eviction.",
    examples="examples:\n"
    "  koordgate defrag --plan\n"
    "  koordgate defrag --for 8 --model A100-SXM4-80GB --most 4\n"
    "  koordgate defrag --for 4 --count 2 -f cluster.json.gz -o yaml\n"
    "  koordgate defrag --for 8 --apply",
    arguments=_arguments,
    run=_run,
)
