"""What the commands about devices share: the cluster, the settings, and how failures are reported."""

import argparse
import asyncio
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from allocator.vocabulary.adopted import Product
from console import terminal
from console.devices.nodes import CommandError, Known
from console.reading import connect, installed_settings
from koordgate.kube.client import KubeClient
from webhook.settings import WebhookSettings, adoption_of, load, types_of
from webhook.view.snapshots import pools_of


class CommandEnd(NamedTuple):
    """The end of a command."""

    problems: Sequence[str] = ()  # what could not be read, a sentence each
    status: int = 0


Work = Callable[[KubeClient, Known], Awaitable[CommandEnd]]


def add_listing(parser: argparse.ArgumentParser, namespace: str, everywhere: str, wide: str) -> None:
    """Add the options that say what is listed, and in which form.

    `parser`: is added to.
    """
    whose = parser.add_mutually_exclusive_group()
    whose.add_argument(*("-n", "--namespace"), type=terminal.namespace, metavar="NAMESPACE", help=namespace)
    whose.add_argument(*("-A", "--all-namespaces"), action="store_true", help=everywhere)
    terminal.add_output(parser, wide=f"adds {wide}")


def carry_out(arguments: argparse.Namespace, work: Work, check: Callable[[], object] = lambda: None) -> int:
    """Do a command's work on the cluster, and return the exit status; failures are reported on standard error.

    `check`: raises CommandError if the arguments do not fit together; called before anything is opened.
    """

    async def main(configured: WebhookSettings | None) -> CommandEnd:
        async with connect(arguments) as kube:
            known = await _known(kube, arguments.installed_in, configured)
            done = await work(kube, known)
            return CommandEnd([*known.notes, *done.problems], done.status)

    def run() -> int:
        check()
        answer = asyncio.run(main(load(arguments.config) if arguments.config else None))
        sys.stdout.flush()
        for problem in answer.problems:
            terminal.tell(arguments.called, problem)
        return answer.status

    return terminal.guarded(arguments.called, run, CommandError)


async def _known(kube: KubeClient, installed_in: str, configured: WebhookSettings | None) -> Known:
    """What the settings define. Where they are not known, Pods of all products count: a card may be held by any."""
    settings, problem = await installed_settings(kube, installed_in, configured)
    if settings is not None:
        return Known(types_of(settings), pools_of(settings), settings.claimed, adoption_of(settings))
    settings = WebhookSettings()
    adoption = replace(adoption_of(settings), peers=frozenset(Product))
    note = (
        f"{problem}; Pods of all other products count, and device types of your own are not known: name the "
        "installation's namespace with --installed-in, or give the settings with --config"
    )
    return Known(types_of(settings), pools_of(settings), settings.claimed, adoption, (note,))
