"""`koordgate replay`: the same Pods in several ways, their placement, figures and refusals side by side."""

import argparse
import asyncio
import sys
from functools import partial
from typing import Final

from console import terminal
from console.notes import gathered
from console.simulator import compare
from console.simulator.compare import add_compare, variants
from console.simulator.documents import InputError
from console.simulator.simulate import add_input, read_input, wanted
from koordgate.cli import Command

_NARROW: Final = 80  # columns, where nobody asks for more


def _run(arguments: argparse.Namespace) -> int:
    return terminal.guarded(arguments.called, lambda: _replay(arguments), InputError)


def _replay(arguments: argparse.Namespace) -> int:
    given, configured = read_input(arguments)
    runs: dict[str, compare.Run] = {}
    noted: dict[str, None] = {}
    for name, way in variants(arguments, configured, dict(arguments.gpu_memory)).items():
        objects = way.objects(given)
        pods = wanted(objects, arguments.called)
        tell = partial(_tell, name, len(pods))
        runs[name] = asyncio.run(compare.run(objects, pods, way, arguments.seed, tell))
        noted |= dict.fromkeys(objects.notes)
    for note in gathered(noted):
        terminal.tell(arguments.called, note)
    terminal.show(*compare.tables(runs), most=arguments.width if arguments.width < terminal.WIDE else _NARROW)
    sys.stdout.flush()
    return 0


def _tell(name: str, total: int, done: int) -> None:
    terminal.doing(name, done, total)


def _arguments(parser: argparse.ArgumentParser) -> None:
    add_input(parser)
    add_compare(parser)


COMMAND: Final = Command(
    description="Run the Pods of files in several ways, each as simulate does, and show placement, how full and how "
    "fragmented the GPUs are, and refusals side by side. Each --preference is a way, and so is each --compare; with "
    "--compare alone, the input as it is comes first.",
    examples="examples:\n"
    "  koordgate replay -f cluster.yaml app.yaml \\\n"
    "    --preference packing --preference mostBalanced\n"
    "  koordgate replay -f cluster.yaml app.yaml \\\n"
    "    --compare 'big nodes=other-nodes.yaml'",
    arguments=_arguments,
    run=_run,
)
