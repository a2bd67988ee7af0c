"""The console script `koordgate`: finds sub-commands by entry point, and imports only the one that is run."""

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points, version
from typing import Final

GROUP: Final = "koordgate.commands"
_SUMMARIES: Final = {
    "adopt": "move a cluster from another product: check, report, switch namespaces and back",
    "cleanup": "remove all that koordgate left in a cluster after helm uninstall",
    "defrag": "plan which Pods to evict so that larger ones find room, and do it on demand",
    "demo": "show the whole product on this machine: translate, guard, allocate, holdings",
    "devices": "show a cluster's devices and who holds them; cordon, uncordon or drain one",
    "doctor": "look at an installation, and say what is wrong and what to do about it",
    "lease": "let a cluster create Pods while no replica of the webhook lives, and end that",
    "explain": "say why a Pod is on no node and what would help, or why it is on its node",
    "packing": "say what of the free devices nobody can use, why, and what a larger Pod would need",
    "reporter": "report what a node has and how healthy it is, and put cpusets into effect",
    "simulate": "run Kubernetes objects from files through admission, scheduling and binding, offline",
    "snapshot": "write what matters of a cluster into one file, for simulate, explain and bug reports",
    "translate": "show what manifests become, or write them in another product's dialect",
    "webhook": "serve admission, binding and the scheduler extender of a cluster",
}


@dataclass(frozen=True, slots=True)
class Command:
    """A sub-command.

    Attributes:
        description: the beginning of `--help`.
        examples: the end of `--help`.
        arguments: adds its arguments to a parser.
        run: runs it, and returns the exit status.
    """

    description: str
    examples: str
    arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


def main(argv: Sequence[str] | None = None) -> int:
    """Run `koordgate ARGV`; returns the exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    points = {point.name: point for point in entry_points(group=GROUP)}
    if not arguments or arguments[0] not in points:
        overview = _overview(sorted(points))
        overview.parse_args(arguments or ["--help"])
        overview.error("give the command first")
    command: Command = points[arguments[0]].load()
    return command.run(parser_of(arguments[0]).parse_args(arguments[1:]))


def parser_of(name: str) -> argparse.ArgumentParser:
    """Make the parser of a command that exists."""
    command: Command = next(iter(entry_points(group=GROUP, name=name))).load()
    parser = argparse.ArgumentParser(
        prog=f"koordgate {name}",
        description=command.description,
        epilog=command.examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.arguments(parser)
    return parser


def summary(name: str) -> str:
    """What a command does, in one line; "" if nobody wrote it."""
    return _SUMMARIES.get(name, "")


def _overview(names: Sequence[str]) -> argparse.ArgumentParser:
    width = max(map(len, names), default=0)
    listed = "\n".join(f"  {name:<{width}}  {summary(name)}" for name in names)
    parser = argparse.ArgumentParser(
        prog="koordgate",
        description="Fine-grained devices and pinned CPUs for a stock Kubernetes.",
        usage="koordgate [-h] [--version] COMMAND ...",
        epilog=f"commands:\n{listed}\n\n`koordgate COMMAND --help` shows a command's options, with examples.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"koordgate {version('koordgate')}")
    parser.add_argument("command", choices=names, metavar="COMMAND", help=argparse.SUPPRESS)
    return parser
