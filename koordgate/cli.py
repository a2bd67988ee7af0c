"""The console script `koordgate`: finds commands by entry point, and imports only the one that is run."""

import argparse
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points, version
from pathlib import PurePath
from textwrap import fill, wrap
from typing import Any, Final, NoReturn

from allocator.vocabulary.outcome import did_you_mean
from koordgate.topics import TOPICS

_PROGRAM: Final = "koordgate"
_CONSOLE: Final = ("rich", "shtab")  # of the extra of this name, which servers do without
_UNUSABLE: Final = 2
_INTERRUPTED: Final = 130  # 128 and the signal, as a shell reports it
_PLUGIN: Final = "kubectl-koordgate"  # kubectl runs it for `kubectl koordgate`
_WIDTH: Final = 80  # columns of help at most
_CHOICE: Final = re.compile(r"invalid choice: '(.*)' \(choose from (.*)\)$")  # argparse's words
_NAMESPACE: Final = ("-n", "--namespace")  # of Pods; commands that have none are given that of the release
_HOME: Final = "--installed-in"
_OPTION: Final = re.compile(r"unrecognized arguments: (--?[a-zA-Z][-a-zA-Z]*)")
GROUPS: Final[Mapping[str, Mapping[str, str]]] = {
    "try": {
        "demo": "show the whole product on this machine, without a cluster",
        "simulate": "show what would become of the Pods in files, without a cluster",
        "replay": "run the same Pods in several ways, and show them side by side",
        "translate": "show what admission makes of manifests, or rename requests",
    },
    "look": {
        "doctor": "say what is wrong with an installation, and what to do about it",
        "top": "show each device in a line: how much is held, and by whom",
        "pod": "show what Pods hold: devices, memory and CPUs",
        "explain": "say why a Pod is on no node, or on this one; what would help",
        "packing": "say how much of the free devices Pods can use, and why not all",
    },
    "act": {
        "cordon": "take a device out of service; its Pods keep running",
        "uncordon": "return a device to service",
        "drain": "cordon a device, and evict the Pods that hold some of it",
    },
    "move": {
        "adopt": "move namespaces from another product to koordgate, or back",
        "snapshot": "write what matters of a cluster into one file",
        "cleanup": "remove all that koordgate left in a cluster after helm uninstall",
    },
    "more": {
        "completion": "print a script that makes a shell complete commands and options",
        "help": "explain a command or a topic",
        "version": "print the version",
    },
}
"""The commands for people, with what each does."""
SERVE: Final = "serve"
SERVERS: Final[Mapping[str, str]] = {
    "webhook": "serve admission, binding and the scheduler extender of a cluster",
    "reporter": "report what a node has and its health; put cpusets into effect",
    "enforcer": "have containers created with the CPUs, cards and limits decided",
}
"""What the image runs, as `koordgate serve NAME`; people are not shown it among their commands."""


@dataclass(frozen=True, slots=True)
class Command:
    """A command."""

    description: str  # the beginning of `--help`; its paragraphs are filled, except those with indented lines
    examples: str  # the end of `--help`
    arguments: Callable[[argparse.ArgumentParser], None]  # adds its arguments to a parser
    # runs it, and returns the exit status. Its arguments have `called`: the command as it was called, which begins each
    # message.
    run: Callable[[argparse.Namespace], int]


class _Help(argparse.HelpFormatter):
    """Help of at most 80 columns. An option is never broken at its hyphens, nor an example anywhere."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=min(shutil.get_terminal_size().columns, _WIDTH))

    def _split_lines(self, text: str, width: int) -> list[str]:
        return wrap(" ".join(text.split()), width, break_on_hyphens=False, break_long_words=False)

    def _fill_text(self, text: str, width: int, indent: str) -> str:  # noqa: ARG002 the base class calls it so
        def filled(paragraph: str) -> str:
            return fill(" ".join(paragraph.split()), width, break_on_hyphens=False, break_long_words=False)

        return "\n\n".join(part if "\n  " in part else filled(part) for part in text.split("\n\n"))


class Parser(argparse.ArgumentParser):
    """A parser that takes no abbreviated options, and asks whether a word that it does not know was meant for another.

    What `--help` says names the program as it was called.
    """

    def __init__(self, **about: Any) -> None:
        given: dict[str, Any] = {"formatter_class": _Help, "allow_abbrev": False, **about}
        super().__init__(**given)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Read the arguments; what is left over is a mistake, which the parser reports that knows its own options."""
        read, left = super().parse_known_args(args, namespace)
        if left:
            self.error(f"unrecognized arguments: {' '.join(left)}")
        return read, left

    def error(self, message: str) -> NoReturn:
        """Exit with 2, with the word that may be meant."""
        if choice := _CHOICE.search(message):
            message += did_you_mean(choice[1], re.findall(r"[^', ]+", choice[2]))
        elif unknown := _OPTION.search(message):
            if unknown[1] in _NAMESPACE and _HOME in self._option_string_actions:
                message += f"; {_HOME} says where koordgate is installed"
            message += did_you_mean(unknown[1], (one for one in self._option_string_actions if one.startswith("--")))
        super().error(message)

    def format_help(self) -> str:
        """The text of `--help`."""
        return re.sub(rf"(?m)^( *){_PROGRAM} ", rf"\1{program()} ", super().format_help())


def main(argv: Sequence[str] | None = None) -> int:
    """Run `koordgate ARGV`; returns the exit status."""
    try:
        command, read = parse(sys.argv[1:] if argv is None else argv)
        return command.run(read)
    except KeyboardInterrupt:  # while a command is imported; a command that runs reports it itself
        sys.stderr.write(f"{program()}: interrupted\n")
        return _INTERRUPTED


def parse(argv: Sequence[str]) -> tuple[Command, argparse.Namespace]:
    """Read a command line; what is wrong with it, or asked of its help, ends the program."""
    words = list(argv) or ["--help"]
    size = 2 if words[0] == SERVE else 1
    called, rest = " ".join(words[:size]), words[size:]
    if called not in _known():
        _mistaken(words)
    try:
        return load(called), parser_of(called).parse_args(rest)
    except ModuleNotFoundError as error:
        if error.name not in _CONSOLE:
            raise
        sys.stderr.write(f"{program()} {called}: {error.name} is not installed: pip install 'koordgate[console]'\n")
        sys.exit(_UNUSABLE)


def parser_of(called: str) -> Parser:
    """Make the parser of a command, such as `top` or `serve webhook`.

    What it reads names the command as it was called, as `called`.
    """
    command = load(called)
    made = Parser(prog=f"{program()} {called}", **_about(command))
    command.arguments(made)
    made.set_defaults(called=made.prog)
    return made


def names() -> tuple[str, ...]:
    """The commands for people, in order."""
    return tuple(name for group in GROUPS.values() for name in group)


def load(called: str) -> Command:
    """Import a command, such as `top` or `serve webhook`."""
    if own := _OWN.get(called):
        return own
    found: Command = commands()[called.removeprefix(f"{SERVE} ")].load()
    return found


def commands() -> Mapping[str, EntryPoint]:
    """The commands and servers that are modules, by name; none is imported."""
    return {point.name: point for point in entry_points(group="koordgate.commands")}


def program() -> str:
    """The program as it was called: `koordgate`, or `kubectl koordgate`."""
    return "kubectl koordgate" if PurePath(sys.argv[0]).stem == _PLUGIN else _PROGRAM


def whole_parser() -> argparse.ArgumentParser:
    """Make one parser of all commands for people, which are imported for it: for shells that complete arguments."""
    parser = argparse.ArgumentParser(prog=_PROGRAM)
    parser.add_argument("--version", action="version", version="")
    below = parser.add_subparsers(metavar="COMMAND", parser_class=Parser)
    for summaries in GROUPS.values():
        for name, summary in summaries.items():
            command = load(name)
            command.arguments(below.add_parser(name, help=summary, **_about(command)))
    return parser


def _about(command: Command) -> dict[str, Any]:
    """The texts around a command's arguments."""
    return {"description": command.description, "epilog": command.examples}


def _known() -> tuple[str, ...]:
    """All that can be called."""
    return (*names(), *(f"{SERVE} {name}" for name in SERVERS))


def _mistaken(words: Sequence[str]) -> NoReturn:
    """End with the overview, or with what is wrong with words that name no command."""
    serving = words[0] == SERVE
    overview, asked = _overview(serving=serving), " ".join(words[:2] if serving else words[:1])
    if asked in {SERVE, "-h", "--help", f"{SERVE} -h", f"{SERVE} --help"}:
        overview.print_help()
        sys.exit(0)
    if asked == "--version":
        sys.exit(_tell_version())
    if asked.startswith("-"):
        overview.error(f"give the command first, and then {asked}")
    guess = did_you_mean(asked, _known()) or f"; `{overview.prog} --help` lists those there are"
    overview.error(f"there is no command {asked!r}{guess}")


def _overview(*, serving: bool = False) -> Parser:
    called, groups = program(), GROUPS
    usage, ends = (
        f"{called} [-h] [--version] COMMAND ...",
        [
            f"`{called} help COMMAND` shows a command's options, with examples.",
            f"`{called} help TOPIC` explains {', '.join(TOPICS)}.",
        ],
    )
    if serving:
        called, groups = f"{called} {SERVE}", {"servers, which the chart runs": SERVERS}
        usage, ends = f"{called} [-h] SERVER ...", [f"`{called} SERVER --help` shows a server's options."]
    about = "Fine-grained devices and pinned CPUs for a stock Kubernetes."
    return Parser(prog=called, description=about, usage=usage, epilog="\n\n".join([*_listed(groups), *ends]))


def _listed(groups: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
    width = max(len(name) for group in groups.values() for name in group)
    for title, group in groups.items():
        yield "\n".join([f"{title}:", *(f"  {name:<{width}}  {summary}" for name, summary in group.items())])


def _explain(arguments: argparse.Namespace) -> int:
    words: list[str] = arguments.about
    about = " ".join(words)
    if about in TOPICS:
        sys.stdout.write(TOPICS[about])
        return 0
    if not words or words[0] in {SERVE, *names()}:
        parse([*words, "--help"])
    guess = did_you_mean(about, [*_known(), *TOPICS]) or f"; the topics are {', '.join(TOPICS)}"
    sys.stderr.write(f"{arguments.called}: there is no command or topic {about!r}{guess}\n")
    return _UNUSABLE


def _tell_version(_: argparse.Namespace | None = None) -> int:
    sys.stdout.write(f"{_PROGRAM} {version('koordgate')}\n")
    return 0


def _add_about(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("about", nargs="*", metavar="NAME", help=f"a command, or a topic: {', '.join(TOPICS)}")


_OWN: Final = {
    "help": Command(
        description="Show the options of a command with examples, or explain a topic.",
        examples="examples:\n  koordgate help top\n  koordgate help requests",
        arguments=_add_about,
        run=_explain,
    ),
    "version": Command(
        description="Print the version of koordgate.",
        examples="examples:\n  koordgate version",
        arguments=lambda _: None,
        run=_tell_version,
    ),
}
"""Commands that are no modules of their own."""
