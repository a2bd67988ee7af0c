"""The page about commands: each command of `koordgate` with its options, from the parsers themselves."""

import argparse
from collections.abc import Iterator
from pathlib import Path
from textwrap import fill
from typing import Any, Final

from koordgate import cli
from koordgate.topics import TOPICS

PAGE: Final = Path(__file__).parent / "reference" / "commands.md"
_HEAD: Final = """\
# Commands

For administrators and authors of Pods. `koordgate help COMMAND` shows the same with examples; `make generate` writes
this page from the program. `kubectl koordgate COMMAND` is the same where `kubectl-koordgate` is on PATH.

"""
_CLUSTER: Final = "cluster"  # the group of the options that each command has which reads a cluster
_LONG: Final = 60  # characters
_TITLES: Final = {"kubeconfig": "Options of every command that reads a cluster", "exit-codes": "Exit codes"}
"""The topics that are true of all commands; the others have pages of their own."""


def text() -> str:
    """Write the page."""
    groups = {**cli.GROUPS, cli.SERVE: {f"{cli.SERVE} {name}": about for name, about in cli.SERVERS.items()}}
    parts = [_HEAD, "| | |\n|---|---|\n"]
    for title, group in groups.items():
        links = (f"[{name}](#koordgate-{name.replace(' ', '-')})" for name in group)
        parts.append(f"| {title} | {', '.join(links)} |\n")
    for topic, title in _TITLES.items():
        parts.append(f"\n## {title}\n\n```text\n{TOPICS[topic]}```\n")
    told: dict[str, str] = {}
    for title, group in groups.items():
        parts.append(f"\n## {title.capitalize()}\n")
        for name, summary in group.items():
            parts += _section(cli.parser_of(name), summary, 3, told)
    return "".join(parts)


def _section(one: argparse.ArgumentParser, summary: str, level: int, told: dict[str, str]) -> Iterator[str]:
    """A command; `told`: what was said of an option, and of which command, so that nothing long is said twice."""
    nested = [action for action in one._actions if isinstance(action, argparse._SubParsersAction)]  # noqa: SLF001 it has no public list
    yield f"\n{'#' * level} `{one.prog}`\n\n{_paragraph(summary[:1].upper() + summary[1:])}\n"
    actions = [action for group in one._action_groups if group.title != _CLUSTER for action in group._group_actions]  # noqa: SLF001 likewise
    if rows := [_row(action, one.prog, told) for action in actions if not _hidden(action)]:
        yield "\n| argument | meaning |\n|---|---|\n"
        yield from rows
    for action in nested:
        abouts = {choice.dest: choice.help or "" for choice in action._choices_actions}  # noqa: SLF001 likewise
        for name, child in action.choices.items():
            yield from _section(child, abouts[name], level + 1, told)


def _hidden(action: argparse.Action) -> bool:
    kinds = (argparse._HelpAction, argparse._SubParsersAction)  # noqa: SLF001 likewise
    return isinstance(action, kinds) or action.help == argparse.SUPPRESS


def _row(action: argparse.Action, prog: str, told: dict[str, str]) -> str:
    shown = ", ".join(f"`{flag}`" for flag in action.option_strings) or f"`{_value(action)}`"
    if action.option_strings and action.nargs != 0:
        shown += f" `{_value(action)}`"
    about = _plain(_help(action)) or "-"
    first = told.setdefault(about, prog) if len(about) > _LONG else prog
    return f"| {shown} | {about if first == prog else f'as for `{first}`'} |\n"


def _help(action: argparse.Action) -> str:
    given: dict[str, Any] = {**vars(action), "prog": ""}
    return (action.help or "") % {key: value for key, value in given.items() if value is not argparse.SUPPRESS}


def _value(action: argparse.Action) -> str:
    if action.choices is not None and action.metavar is None:
        return "{" + ",".join(map(str, action.choices)) + "}"
    return str(action.metavar or action.dest.upper())


def _paragraph(written: str) -> str:
    return fill(f"{_plain(written).rstrip('.')}.", 120, break_long_words=False, break_on_hyphens=False)


def _plain(written: str) -> str:
    """One paragraph, with nothing that a table or Markdown would take for its own."""
    return " ".join(written.split()).replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")
