"""The page about commands: each command of `koordgate` with its options, from the parsers themselves."""

import argparse
from collections.abc import Iterator
from pathlib import Path
from textwrap import fill
from typing import Any, Final

from koordgate import cli

PAGE: Final = Path(__file__).parent / "reference" / "commands.md"
_HEAD: Final = """\
# Commands

`make generate` writes this page from the program. `koordgate COMMAND --help` shows the same, with examples. In a
checkout the program is `.venv/bin/koordgate`; the image starts it.

| command | what it does |
|---|---|
"""


def text() -> str:
    """Write the page."""
    parsers = {name: parser(name) for name in names()}
    rows = [f"| [`koordgate {name}`](#koordgate-{name}) | {cli.summary(name)} |\n" for name in parsers]
    return _HEAD + "".join(rows) + "".join(part for one in parsers.values() for part in _section(one, 2))


def names() -> list[str]:
    """The commands, in order."""
    return sorted(cli.commands())


def parser(name: str) -> argparse.ArgumentParser:
    """The parser of a command."""
    return cli.parser_of(name)


def _section(one: argparse.ArgumentParser, level: int) -> Iterator[str]:
    yield f"\n{'#' * level} `{one.prog}`\n"
    if one.description:
        yield f"\n{fill(_plain(one.description), 120, break_long_words=False, break_on_hyphens=False)}\n"
    nested = [action for action in one._actions if isinstance(action, argparse._SubParsersAction)]  # noqa: SLF001 it has no public list
    rows = [_row(action) for action in one._actions if not _hidden(action)]  # noqa: SLF001 likewise
    if rows:
        yield "\n| argument | meaning |\n|---|---|\n"
        yield from rows
    for action in nested:
        for child in action.choices.values():
            yield from _section(child, level + 1)


def _hidden(action: argparse.Action) -> bool:
    kinds = (argparse._HelpAction, argparse._SubParsersAction)  # noqa: SLF001 likewise
    return isinstance(action, kinds) or action.help == argparse.SUPPRESS


def _row(action: argparse.Action) -> str:
    shown = ", ".join(f"`{flag}`" for flag in action.option_strings) or f"`{_value(action)}`"
    if action.option_strings and action.nargs != 0:
        shown += f" `{_value(action)}`"
    return f"| {shown} | {_plain(_help(action)) or '-'} |\n"


def _help(action: argparse.Action) -> str:
    given: dict[str, Any] = {**vars(action), "prog": ""}
    return (action.help or "") % {key: value for key, value in given.items() if value is not argparse.SUPPRESS}


def _value(action: argparse.Action) -> str:
    if action.choices is not None:
        return "{" + ",".join(map(str, action.choices)) + "}"
    return str(action.metavar or action.dest.upper())


def _plain(written: str) -> str:
    """One paragraph, with nothing that a table or Markdown would take for its own."""
    return " ".join(written.split()).replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")
