"""The console script `koordgate`: finds sub-commands by entry point, and imports only the one that is run."""

import argparse
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points, version
from pathlib import PurePath
from typing import Final, NoReturn, TypedDict

from allocator.vocabulary.outcome import did_you_mean

_GROUP: Final = "koordgate.commands"
_PROGRAM: Final = "koordgate"
_CONSOLE: Final = ("rich", "shtab")  # of the extra of this name, which servers do without
_UNUSABLE: Final = 2
_PLUGIN: Final = "kubectl-koordgate"  # kubectl runs it for `kubectl koordgate`
_CHOICE: Final = re.compile(r"invalid choice: '(.*)' \(choose from (.*)\)$")  # argparse's words
_OPTION: Final = re.compile(r"unrecognized arguments: (--[-a-z]+)")
_SUMMARIES: Final = {
    "adopt": "move a cluster from another product: check, report, switch namespaces and back",
    "cleanup": "remove all that koordgate left in a cluster after helm uninstall",
    "completion": "print a script that makes a shell complete commands and options",
    "cordon": "take a device out of service; Pods that hold some of it keep running",
    "demo": "show the whole product on this machine: translate, guard, allocate, holdings",
    "devices": "show a cluster's devices and who holds them; cordon, uncordon or drain one",
    "drain": "cordon a device, and evict the Pods that hold some of it",
    "doctor": "look at an installation, and say what is wrong and what to do about it",
    "enforcer": "have containers created with the CPUs, cards and limits that were decided, on a node",
    "explain": "say why a Pod is on no node and what would help, or why it is on its node",
    "packing": "say how much of the free devices nobody can use, why, and what a larger Pod would need",
    "pod": "show what Pods hold: devices, memory and CPUs, and of which node",
    "reporter": "report what a node has and how healthy it is, and put cpusets into effect",
    "simulate": "run Kubernetes objects from files through admission, scheduling and binding, offline",
    "snapshot": "write what matters of a cluster into one file, for simulate, explain and bug reports",
    "top": "show every device of a cluster in a line with bars, once or as it changes",
    "translate": "show what manifests become, or write them in another product's dialect",
    "uncordon": "return a device to service",
    "webhook": "serve admission, binding and the scheduler extender of a cluster",
}


@dataclass(frozen=True, slots=True)
class Command:
    """A sub-command."""

    description: str  # the beginning of `--help`
    examples: str  # the end of `--help`
    arguments: Callable[[argparse.ArgumentParser], None]  # adds its arguments to a parser
    # runs it, and returns the exit status. Its arguments have `called`: the command as it was called, which begins each
    # message.
    run: Callable[[argparse.Namespace], int]


class _Parser(argparse.ArgumentParser):
    """A parser that asks whether a word that it does not know was meant for another one."""

    def error(self, message: str) -> NoReturn:
        """Exit with 2, with the word that may be meant."""
        if choice := _CHOICE.search(message):
            message += did_you_mean(choice[1], re.findall(r"[^', ]+", choice[2]))
        elif unknown := _OPTION.search(message):
            message += did_you_mean(unknown[1], re.findall(r"--[a-z][-a-z]*", self.format_usage()))
        super().error(message)


def main(argv: Sequence[str] | None = None) -> int:
    """Run `koordgate ARGV`; returns the exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    points = commands()
    if not arguments or arguments[0] not in points:
        overview = _overview(sorted(points))
        overview.parse_args(arguments or ["--help"])
        overview.error("give the command first")
    name = arguments[0]
    try:
        command: Command = points[name].load()
    except ModuleNotFoundError as error:
        if error.name not in _CONSOLE:
            raise
        sys.stderr.write(f"{program()} {name}: {error.name} is not installed: pip install 'koordgate[console]'\n")
        return _UNUSABLE
    return command.run(parser_of(name).parse_args(arguments[1:]))


def parser_of(name: str) -> argparse.ArgumentParser:
    """Make the parser of a command that exists; what it reads names the command as it was called, as `called`."""
    command: Command = commands()[name].load()
    parser = _Parser(prog=f"{program()} {name}", **_about(command))
    command.arguments(parser)
    parser.set_defaults(called=parser.prog)
    return parser


def summary(name: str) -> str:
    """What a command does, in one line; "" if nobody wrote it."""
    return _SUMMARIES.get(name, "")


def commands() -> Mapping[str, EntryPoint]:
    """The sub-commands by name; none is imported."""
    return {point.name: point for point in entry_points(group=_GROUP)}


def program() -> str:
    """The program as it was called: `koordgate`, or `kubectl koordgate`."""
    return "kubectl koordgate" if PurePath(sys.argv[0]).stem == _PLUGIN else _PROGRAM


def whole_parser() -> argparse.ArgumentParser:
    """Make one parser of all sub-commands, which are imported for it: for shells that complete their arguments."""
    parser = argparse.ArgumentParser(prog=_PROGRAM)
    parser.add_argument("--version", action="version", version="")
    below = parser.add_subparsers(metavar="COMMAND")
    for name, point in sorted(commands().items()):
        command: Command = point.load()
        command.arguments(below.add_parser(name, help=summary(name), **_about(command)))
    return parser


class _About(TypedDict):
    """The texts around a parser's arguments."""

    description: str
    epilog: str
    formatter_class: type[argparse.HelpFormatter]


def _about(command: Command) -> _About:
    return {
        "description": command.description,
        "epilog": _as_called(command.examples),
        "formatter_class": argparse.RawDescriptionHelpFormatter,
    }


def _as_called(text: str) -> str:
    """Name the program as it was called wherever a line begins with it."""
    return re.sub(rf"(?m)^( *){_PROGRAM} ", rf"\1{program()} ", text)


def _overview(names: Sequence[str]) -> argparse.ArgumentParser:
    width = max(map(len, names), default=0)
    listed = "\n".join(f"  {name:<{width}}  {summary(name)}" for name in names)
    called = program()
    parser = _Parser(
        prog=called,
        description="Fine-grained devices and pinned CPUs for a stock Kubernetes.",
        usage=f"{called} [-h] [--version] COMMAND ...",
        epilog=f"commands:\n{listed}\n\n`{called} COMMAND --help` shows a command's options, with examples.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"{_PROGRAM} {version('koordgate')}")
    parser.add_argument("command", choices=names, metavar="COMMAND", help=argparse.SUPPRESS)
    return parser
