"""What the commands about devices share: the cluster, the settings, and how failures are told."""

import argparse
import asyncio
import json
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml

from koordgate.kube.client import KubeClient
from koordgate.kube.errors import KubeError, Unreachable
from koordgate.settings import SettingsError
from webhook import terminal
from webhook.devices.nodestate import CommandError, Known
from webhook.settings import WebhookSettings, load, types_of
from webhook.terminal import printable
from webhook.view.classes import pools_of

UNUSABLE: Final = 2
"""The exit status for wrong arguments."""


class CommandEnd(NamedTuple):
    """The end of a command.

    Attributes:
        problems: what could not be read, a sentence each.
        status: the exit status.
    """

    problems: Sequence[str] = ()
    status: int = 0


Work = Callable[[KubeClient, Known], Awaitable[CommandEnd]]


def add_cluster(parser: argparse.ArgumentParser) -> None:
    """Add the options that say which cluster is meant, and what its settings define."""
    parser.add_argument("--context", metavar="NAME", help="the context of the kubeconfig (default: the current one)")
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="the webhook's settings, which define device types of your own"
    )


def carry_out(arguments: argparse.Namespace, work: Work, check: Callable[[], object] = lambda: None) -> int:
    """Do a command's work on the cluster, and return the exit status; failures are told on standard error.

    Args:
        arguments: of the command line.
        work: is done with the open client.
        check: raises CommandError if the arguments do not fit together; called before anything is opened.
    """

    async def main(known: Known) -> CommandEnd:
        async with KubeClient.autodetect(context=arguments.context) as kube:
            return await work(kube, known)

    def failed(status: int, message: str) -> int:
        sys.stderr.write(f"{arguments.called}: {printable(message)}\n")
        return status

    try:
        check()
        settings = load(arguments.config) if arguments.config else WebhookSettings()
        known = Known(types_of(settings), pools_of(settings), settings.claimed)
        answer = asyncio.run(main(known))
        sys.stdout.flush()
    except (CommandError, SettingsError) as error:
        return failed(UNUSABLE, str(error))
    except Unreachable as error:
        return failed(1, f"the API server of the kubeconfig does not answer: {error}")
    except KubeError as error:
        return failed(1, str(error))
    except BrokenPipeError:
        return terminal.unread()
    for problem in answer.problems:
        failed(0, problem)
    return answer.status


def write_data(document: dict[str, Any], output: str) -> None:
    """Print a document as `json` or `yaml`."""
    sys.stdout.write(
        yaml.safe_dump(document, sort_keys=False, allow_unicode=True)
        if output == "yaml"
        else json.dumps(document, indent=2) + "\n"
    )
